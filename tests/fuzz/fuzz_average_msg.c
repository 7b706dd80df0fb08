/*
 * Messages of averaging: u8 which, and the message. What can be decoded is encoded again, and must
 * decode to the same; the values of a part are decoded as well.
 */
#include <stdlib.h>

#include "codec/average/msg.h"

#define VALUES_MAX ((size_t)1 << 20)

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

static void take_gather(struct mu_span in, struct mu_buf *out)
{
    struct mu_avg_gather a;
    struct mu_avg_gather b;

    if (mu_avg_gather_decode(in, &a) == 0) {
        require(mu_avg_gather_encode(&a, out) == 0);
        require(mu_avg_gather_decode(mu_buf_span(out), &b) == 0);
        require(a.mode == b.mode && a.bandwidth_known == b.bandwidth_known &&
                mu_span_eq(a.user, b.user));
    }
}

static void take_join(struct mu_span in, struct mu_buf *out)
{
    struct mu_avg_join a;
    struct mu_avg_join b;

    if (mu_avg_join_decode(in, &a) == 0) {
        require(mu_avg_join_encode(&a, out) == 0);
        require(mu_avg_join_decode(mu_buf_span(out), &b) == 0);
        require(mu_span_eq(a.schema_hash, b.schema_hash) && mu_span_eq(a.gather, b.gather) &&
                mu_span_eq(a.group_key, b.group_key) && a.client_mode == b.client_mode);
    }
}

static void take_reply(struct mu_span in, struct mu_buf *out)
{
    static struct mu_avg_reply a;
    static struct mu_avg_reply b;

    if (mu_avg_reply_decode(in, &a) == 0) {
        require(mu_avg_reply_encode(&a, out) == 0);
        require(mu_avg_reply_decode(mu_buf_span(out), &b) == 0);
        require(a.code == b.code && a.member_count == b.member_count &&
                a.suggested == b.suggested && mu_span_eq(a.group_id, b.group_id));
    }
}

static void take_data(struct mu_span in, struct mu_buf *out)
{
    struct mu_avg_data a;
    struct mu_avg_data b;
    uint8_t *values;
    size_t len;

    if (mu_avg_data_decode(in, &a) != 0 || (a.tensor && mu_avg_data_len(&a) > VALUES_MAX)) {
        return;
    }
    len = a.tensor ? mu_avg_data_len(&a) : 0;
    values = malloc(len + 1);
    if (!a.tensor || mu_avg_data_values(&a, (struct mu_space){values, len}) == 0) {
        require(mu_avg_data_encode(&a, mu_span(values, len), out) == 0);
        require(mu_avg_data_decode(mu_buf_span(out), &b) == 0);
        require(a.code == b.code && a.tensor == b.tensor && a.elements == b.elements &&
                a.dtype == b.dtype && a.compression == b.compression);
    }
    free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const take[])(struct mu_span in, struct mu_buf * out) = {take_gather, take_join,
                                                                           take_reply, take_data};
    struct mu_buf out;

    if (size != 0) {
        mu_buf_init(&out, (size_t)64 << 20);
        take[data[0] % 4](mu_span(data + 1, size - 1), &out);
        mu_buf_fini(&out);
    }
    return 0;
}
