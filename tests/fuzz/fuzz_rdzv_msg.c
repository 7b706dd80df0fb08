/*
 * The rendezvous' messages: the first byte says which. What was decoded can be encoded, and that
 * decodes to the same again (bytes that a later version added are gone by then).
 */
#include "codec/rdzv/msg.h"
#include "core/assert.h"

static void try_join(struct mu_span in, struct mu_buf *once, struct mu_buf *twice)
{
    struct mu_rdzv_join join;

    if (mu_rdzv_join_decode(in, &join) == 0) {
        MU_ASSERT(mu_rdzv_join_encode(once, &join) == 0);
        MU_ASSERT(mu_rdzv_join_decode(mu_buf_span(once), &join) == 0);
        MU_ASSERT(mu_rdzv_join_encode(twice, &join) == 0);
    }
}

static void try_notice(struct mu_span in, struct mu_buf *once, struct mu_buf *twice)
{
    struct mu_rdzv_notice notice;

    if (mu_rdzv_notice_decode(in, &notice) == 0) {
        MU_ASSERT(mu_rdzv_notice_encode(once, &notice) == 0);
        MU_ASSERT(mu_rdzv_notice_decode(mu_buf_span(once), &notice) == 0);
        MU_ASSERT(mu_rdzv_notice_encode(twice, &notice) == 0);
    }
}

static void try_members(struct mu_span in, struct mu_buf *once, struct mu_buf *twice)
{
    struct mu_rdzv_member_msg member;
    struct mu_span again;

    while (mu_rdzv_member_next(&in, &member) == 0) {
        MU_ASSERT(mu_rdzv_member_encode(once, &member) == 0);
    }
    again = mu_buf_span(once);
    while (mu_rdzv_member_next(&again, &member) == 0) {
        MU_ASSERT(mu_rdzv_member_encode(twice, &member) == 0);
    }
    MU_ASSERT(again.len == 0);
}

static void try_runs(struct mu_span in, struct mu_buf *once, struct mu_buf *twice)
{
    struct mu_rdzv_run_msg run;
    struct mu_span again;

    while (mu_rdzv_run_next(&in, &run) == 0) {
        MU_ASSERT(mu_rdzv_run_encode(once, &run) == 0);
    }
    again = mu_buf_span(once);
    while (mu_rdzv_run_next(&again, &run) == 0) {
        MU_ASSERT(mu_rdzv_run_encode(twice, &run) == 0);
    }
    MU_ASSERT(again.len == 0);
}

static void try_small(struct mu_span in, struct mu_buf *once, struct mu_buf *twice)
{
    enum mu_rdzv_say what;
    struct mu_rdzv_ready ready;
    struct mu_span run_id;
    uint64_t round;

    if (mu_rdzv_ready_decode(in, &ready) == 0) {
        MU_ASSERT(mu_rdzv_ready_encode(once, &ready) == 0);
        MU_ASSERT(mu_rdzv_ready_encode(twice, &ready) == 0);
    } else if (mu_rdzv_say_decode(in, &what, &round) == 0) {
        MU_ASSERT(mu_rdzv_say_encode(once, what, round) == 0);
        MU_ASSERT(mu_rdzv_say_encode(twice, what, round) == 0);
    } else if (mu_rdzv_run_id_decode(in, &run_id) == 0) {
        MU_ASSERT(mu_rdzv_run_id_encode(once, run_id) == 0);
        MU_ASSERT(mu_rdzv_run_id_encode(twice, run_id) == 0);
    }
}

static void try_exclusions(struct mu_span in, struct mu_buf *once, struct mu_buf *twice)
{
    struct mu_rdzv_exclusion_msg exclusion;
    struct mu_span again;

    while (mu_rdzv_exclusion_next(&in, &exclusion) == 0) {
        MU_ASSERT(mu_rdzv_exclusion_encode(once, &exclusion) == 0);
    }
    again = mu_buf_span(once);
    while (mu_rdzv_exclusion_next(&again, &exclusion) == 0) {
        MU_ASSERT(mu_rdzv_exclusion_encode(twice, &exclusion) == 0);
    }
    MU_ASSERT(again.len == 0);
}

static void try_exclude(struct mu_span in, struct mu_buf *once, struct mu_buf *twice)
{
    struct mu_rdzv_exclude_msg exclude;

    if (mu_rdzv_exclude_decode(in, &exclude) == 0) {
        MU_ASSERT(mu_rdzv_exclude_encode(once, &exclude) == 0);
        MU_ASSERT(mu_rdzv_exclude_decode(mu_buf_span(once), &exclude) == 0);
        MU_ASSERT(mu_rdzv_exclude_encode(twice, &exclude) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const tries[])(struct mu_span, struct mu_buf *, struct mu_buf *) = {
        try_join, try_notice, try_members, try_runs, try_small, try_exclusions, try_exclude,
    };
    struct mu_buf once;
    struct mu_buf twice;

    if (size == 0) {
        return 0;
    }
    mu_buf_init(&once, 2 * size + 512); /* A join reserves room for all that it can have. */
    mu_buf_init(&twice, 2 * size + 512);
    tries[data[0] % (sizeof(tries) / sizeof(tries[0]))](mu_span(data + 1, size - 1), &once, &twice);
    MU_ASSERT(mu_span_eq(mu_buf_span(&once), mu_buf_span(&twice)));
    mu_buf_fini(&once);
    mu_buf_fini(&twice);
    return 0;
}
