/*
 * The messages of succession: the first byte says which. What was decoded can be encoded, and that
 * decodes to the same again (bytes that a later version added are gone by then).
 */
#include "codec/rdzv/heir.h"
#include "core/assert.h"

static void try_promise(struct mu_span in, struct mu_buf *once, struct mu_buf *twice)
{
    struct mu_rdzv_promise promise;

    if (mu_rdzv_promise_decode(in, &promise) == 0) {
        MU_ASSERT(mu_rdzv_promise_encode(once, &promise) == 0);
        MU_ASSERT(mu_rdzv_promise_decode(mu_buf_span(once), &promise) == 0);
        MU_ASSERT(mu_rdzv_promise_encode(twice, &promise) == 0);
    }
}

static void try_answer(struct mu_span in, struct mu_buf *once, struct mu_buf *twice)
{
    struct mu_rdzv_answer answer;

    if (mu_rdzv_answer_decode(in, &answer) == 0) {
        MU_ASSERT(mu_rdzv_answer_encode(once, &answer) == 0);
        MU_ASSERT(mu_rdzv_answer_decode(mu_buf_span(once), &answer) == 0);
        MU_ASSERT(mu_rdzv_answer_encode(twice, &answer) == 0);
    }
}

static void try_legacy(struct mu_span in, struct mu_buf *once, struct mu_buf *twice)
{
    struct mu_rdzv_legacy legacy;

    if (mu_rdzv_legacy_decode(in, &legacy) == 0) {
        MU_ASSERT(mu_rdzv_legacy_encode(once, &legacy) == 0);
        MU_ASSERT(mu_rdzv_legacy_decode(mu_buf_span(once), &legacy) == 0);
        MU_ASSERT(mu_rdzv_legacy_encode(twice, &legacy) == 0);
    }
}

static void try_line(struct mu_span in, struct mu_buf *once, struct mu_buf *twice)
{
    struct mu_rdzv_heir heir;
    struct mu_span again;

    while (mu_rdzv_heir_next(&in, &heir) == 0) {
        MU_ASSERT(mu_rdzv_heir_encode(once, &heir) == 0);
    }
    again = mu_buf_span(once);
    while (mu_rdzv_heir_next(&again, &heir) == 0) {
        MU_ASSERT(mu_rdzv_heir_encode(twice, &heir) == 0);
    }
    MU_ASSERT(again.len == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const tries[])(struct mu_span, struct mu_buf *,
                                 struct mu_buf *) = {try_promise, try_answer, try_legacy, try_line};
    struct mu_buf once;
    struct mu_buf twice;

    if (size == 0) {
        return 0;
    }
    mu_buf_init(&once, size);
    mu_buf_init(&twice, size);
    tries[data[0] % (sizeof(tries) / sizeof(tries[0]))](mu_span(data + 1, size - 1), &once, &twice);
    MU_ASSERT(mu_span_eq(mu_buf_span(&once), mu_buf_span(&twice)));
    mu_buf_fini(&once);
    mu_buf_fini(&twice);
    return 0;
}
