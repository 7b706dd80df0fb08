/* The head of a request: whatever comes, what is lent lies within it. */
#include "codec/text/http_head.h"
#include "core/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(struct mu_span s, const uint8_t *data, size_t used)
{
    MU_ASSERT(s.len == 0 || (s.data >= data && s.data + s.len <= data + used));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_http_head head;
    size_t used;

    if (mu_http_head_parse(mu_span(data, size), &head, &used) == 0) {
        struct mu_http_head again;
        size_t same;

        MU_ASSERT(used <= size && used <= MU_HTTP_HEAD_MAX && head.path.len != 0);
        check(head.path, data, used);
        check(head.query, data, used);
        check(head.host, data, used);
        check(head.authorization, data, used);
        /* What follows makes no difference. */
        MU_ASSERT(mu_http_head_parse(mu_span(data, used), &again, &same) == 0 && same == used);
    }
    return 0;
}
