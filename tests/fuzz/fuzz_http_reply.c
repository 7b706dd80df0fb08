/* A reply to a GET. Whatever comes, what is lent lies within it; a head that is encoded again means
 * the same; and a body is the same in whatever pieces it comes. */
#include "codec/text/http_reply.h"

#include <inttypes.h>
#include <stdio.h>

#include <muster/error.h>

#include "core/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct outcome {
    uint64_t sum; /* of the body's bytes, by their places */
    uint64_t len;
    bool ended;
    int err;
};

static void check_again(const struct mu_http_reply *r)
{
    struct mu_http_reply again = {0};
    char text[128];
    size_t used = 0;
    int n = snprintf(text, sizeof(text), "HTTP/1.1 %d x\r\n", r->code);

    if (r->chunked) {
        n += snprintf(text + n, sizeof(text) - (size_t)n, "Transfer-Encoding: chunked\r\n");
    } else if (r->sized) {
        n += snprintf(text + n, sizeof(text) - (size_t)n, "Content-Length: %" PRIu64 "\r\n",
                      r->length);
    }
    n += snprintf(text + n, sizeof(text) - (size_t)n, "\r\n");
    MU_ASSERT(mu_http_reply_parse(mu_span(text, (size_t)n), &again, &used) == 0);
    MU_ASSERT(used == (size_t)n && again.code == r->code && again.chunked == r->chunked &&
              again.sized == r->sized && again.length == r->length);
}

/* Reads a body of which `step` bytes more are there each time. */
static struct outcome read_body(const struct mu_http_reply *r, struct mu_span all, size_t step)
{
    struct outcome o = {0};
    struct mu_http_body body;
    size_t at = 0;
    size_t end = step < all.len ? step : all.len;

    mu_http_body_init(&body, r);
    while (!body.ended) {
        struct mu_span in = mu_span(all.data + at, end - at);
        struct mu_span piece = {0};

        o.err = mu_http_body_take(&body, &in, &piece);
        if (o.err == MUSTER_EAGAIN && end < all.len) {
            end = all.len - end > step ? end + step : all.len;
            continue;
        }
        if (o.err != 0) {
            break;
        }
        MU_ASSERT(piece.len == 0 ||
                  (piece.data >= all.data && piece.data + piece.len <= all.data + all.len));
        for (size_t i = 0; i < piece.len; i++) {
            o.sum += (++o.len) * piece.data[i];
        }
        at = (size_t)(in.data - all.data);
    }
    o.ended = mu_http_body_end(&body) == 0;
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_http_reply reply;
    size_t used;

    if (mu_http_reply_parse(mu_span(data, size), &reply, &used) == 0) {
        struct mu_span rest = mu_span(data + used, size - used);
        struct outcome whole = read_body(&reply, rest, size);
        struct outcome slow = read_body(&reply, rest, 1);

        MU_ASSERT(used <= size && used <= MU_HTTP_REPLY_MAX);
        MU_ASSERT(!(reply.chunked && reply.sized) && reply.code >= 100 && reply.code <= 999);
        MU_ASSERT(whole.sum == slow.sum && whole.len == slow.len && whole.ended == slow.ended &&
                  whole.err == slow.err);
        MU_ASSERT(!whole.ended || !reply.sized || whole.len == reply.length);
        check_again(&reply);
    }
    return 0;
}
