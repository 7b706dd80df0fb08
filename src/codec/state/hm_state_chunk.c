/* The donor's side of codec/state/hm_state.h. */
#include <inttypes.h>

#include "codec/state/hm_state.h"
#include "codec/bin/msgpack.h"
#include "codec/bin/pb.h"
#include "core/alloc.h"
#include "core/assert.h"

#define HEAD_LEN_MAX 1024 /* of all fields of a tensor except its bytes */

static uint64_t count_chunks(uint64_t len)
{
    return len / MU_HM_CHUNK + (len % MU_HM_CHUNK != 0);
}

static int check_config(const struct mu_hm_state_config *config, struct mu_errmsg *reterr_msg)
{
    const struct mu_layout *l = config->layout;

    if (l->count == 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the state has no tensors");
    }
    if (!mu_mp_is_value(config->metadata)) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the metadata is not MessagePack");
    }
    for (size_t i = 0; i < l->shape_count; i++) {
        if (l->shapes[i] > UINT32_MAX) {
            return mu_err(reterr_msg, MUSTER_EINVAL, "a dimension of %" PRIu64, l->shapes[i]);
        }
    }
    return 0;
}

static int add_encoder(struct mu_hm_state *s, size_t i, struct mu_errmsg *reterr_msg)
{
    const struct mu_layout *l = s->config.layout;
    char name[64];
    struct mu_hm_tensor t = {
        .dtype = l->tensors[i].dtype,
        .compression = s->config.compression,
        .bfloat16_raw = s->config.bfloat16_raw,
        .shape = mu_layout_shape(l, i),
        .rank = l->tensors[i].rank,
    };
    int err;

    if (mu_hm_tensor_check(&t) != 0) {
        t.compression = MU_HM_NONE;
    }
    err = mu_hm_encoder_init(&s->encoders[i], &t, s->config.values[i]);
    if (err == 0 && count_chunks(mu_hm_encoder_len(&s->encoders[i])) > INT32_MAX) {
        err = MUSTER_EINVAL;
    }
    if (err != 0) {
        return mu_err(reterr_msg, err, "tensor %zu, %s: %s", i,
                      mu_span_quote(name, sizeof(name), mu_layout_name(l, i)),
                      muster_strerror(err));
    }
    s->messages += count_chunks(mu_hm_encoder_len(&s->encoders[i]));
    s->messages += mu_hm_encoder_len(&s->encoders[i]) == 0;
    return 0;
}

int mu_hm_state_init(struct mu_hm_state *s, const struct mu_hm_state_config *config,
                     struct mu_errmsg *reterr_msg)
{
    int err = check_config(config, reterr_msg);

    *s = (struct mu_hm_state){.config = *config};
    if (err != 0) {
        return err;
    }
    s->encoders = mu_calloc(config->layout->count, sizeof(*s->encoders));
    if (s->encoders == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "%s", muster_strerror(MUSTER_ENOMEM));
    }
    for (size_t i = 0; i < config->layout->count && err == 0; i++) {
        err = add_encoder(s, i, reterr_msg);
    }
    if (err != 0) {
        mu_hm_state_fini(s);
    }
    return err;
}

void mu_hm_state_fini(struct mu_hm_state *s)
{
    for (size_t i = 0; s->encoders != NULL && i < s->config.layout->count; i++) {
        mu_hm_encoder_fini(&s->encoders[i]);
    }
    mu_free(s->encoders);
    s->encoders = NULL;
}

uint64_t mu_hm_state_messages(const struct mu_hm_state *s)
{
    return s->messages;
}

uint64_t mu_hm_state_bytes(const struct mu_hm_state *s)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < s->config.layout->count; i++) {
        bytes += mu_hm_encoder_len(&s->encoders[i]);
    }
    return bytes;
}

void mu_hm_chunker_init(struct mu_hm_chunker *c, const struct mu_hm_state *s)
{
    *c = (struct mu_hm_chunker){.state = s};
}

static void put_shape(struct mu_pb_out *out, const struct mu_hm_tensor *t)
{
    uint8_t packed[MU_TENSOR_RANK_MAX * 5];
    size_t len = 0;

    for (uint32_t i = 0; i < t->rank; i++) {
        uint64_t left = t->shape[i];

        do {
            packed[len++] = (uint8_t)((left & 0x7f) | (left > 0x7f ? 0x80 : 0));
            left >>= 7;
        } while (left != 0);
    }
    if (len != 0) {
        mu_pb_put_bytes(out, 2, mu_span(packed, len));
    }
}

/* Writes the fields of a tensor that follow its bytes, in the order of their numbers. */
static int put_tail(struct mu_buf *tail, const struct mu_hm_encoder *e)
{
    struct mu_pb_out out = mu_pb_out(tail);
    uint64_t chunks = count_chunks(mu_hm_encoder_len(e));

    put_shape(&out, &e->t);
    mu_pb_put_bytes(&out, 4, mu_span_str(mu_dtype_torch_name(e->t.dtype)));
    if (e->t.compression != MU_HM_NONE) {
        mu_pb_put_varint(&out, 5, e->t.compression);
    }
    if (chunks != 0) {
        mu_pb_put_varint(&out, 6, chunks);
    }
    return out.err;
}

static int put_message(const struct mu_hm_chunker *c, struct mu_hm_cursor *cursor, size_t len,
                       struct mu_span tail, struct mu_buf *buf)
{
    const struct mu_hm_encoder *e = &c->state->encoders[c->tensor];
    struct mu_span metadata = c->state->config.metadata;
    size_t tensor_len = (len == 0 ? 0 : mu_pb_bytes_len(1, len)) + tail.len;
    struct mu_pb_out out = mu_pb_out(buf);
    int err = mu_buf_reserve(buf, metadata.len + tensor_len + 64);

    if (err != 0) {
        return err;
    }
    if (c->tensor == 0 && !c->begun) {
        mu_pb_put_bytes(&out, 1, metadata);
    }
    mu_pb_put_head(&out, 2, tensor_len);
    if (len != 0) {
        mu_pb_put_head(&out, 1, len);
        mu_hm_encoder_read(e, cursor, mu_buf_grow(buf, len), len);
    }
    mu_pb_put_raw(&out, tail);
    MU_ASSERT(out.err == 0); /* there was room */
    return 0;
}

int mu_hm_chunker_next(struct mu_hm_chunker *c, struct mu_buf *out)
{
    const struct mu_hm_encoder *e = &c->state->encoders[c->tensor];
    struct mu_hm_cursor cursor = c->cursor;
    struct mu_buf tail;
    uint64_t left;
    size_t len;
    int err = 0;

    if (c->tensor == c->state->config.layout->count) {
        return 0;
    }
    left = mu_hm_encoder_len(e) - cursor.offset;
    len = left < MU_HM_CHUNK ? (size_t)left : MU_HM_CHUNK;
    mu_buf_init(&tail, HEAD_LEN_MAX);
    if (!c->begun) {
        err = put_tail(&tail, e);
    }
    if (err == 0) {
        err = put_message(c, &cursor, len, mu_buf_span(&tail), out);
    }
    mu_buf_fini(&tail);
    if (err != 0) {
        return err;
    }
    c->cursor = cursor;
    c->begun = true;
    if (len == left) {
        c->tensor++;
        c->begun = false;
        mu_hm_cursor_init(&c->cursor);
    }
    return 1;
}
