#include "codec/rpc/frame.h"

#include <muster/error.h>

#include "core/reader.h"

void mu_rpc_header_encode(uint8_t *out, const struct mu_rpc_header *h)
{
    mu_put_u32(out, h->len);
    out[4] = h->type;
    out[5] = h->flags;
    mu_put_u16(out + 6, 0);
    mu_put_u64(out + 8, h->ack);
    mu_put_u64(out + 16, h->id);
}

static bool is_known(uint8_t type)
{
    switch (type) {
#define IS_KNOWN(name, number, sequenced) case number:
        MU_RPC_FRAME_MAP(IS_KNOWN)
#undef IS_KNOWN
        return true;
    default:
        return false;
    }
}

int mu_rpc_header_decode(const uint8_t *in, struct mu_rpc_header *ret)
{
    if (!is_known(in[4]) || in[5] != 0 || mu_get_u16(in + 6) != 0) {
        return MUSTER_EPROTO;
    }
    *ret = (struct mu_rpc_header){
        .len = mu_get_u32(in),
        .type = in[4],
        .ack = mu_get_u64(in + 8),
        .id = mu_get_u64(in + 16),
    };
    return 0;
}

bool mu_rpc_is_sequenced(uint8_t type)
{
    switch (type) {
#define IS_SEQUENCED(name, number, sequenced)                                                      \
    case number:                                                                                   \
        return (sequenced) != 0;
        MU_RPC_FRAME_MAP(IS_SEQUENCED)
#undef IS_SEQUENCED
    default:
        return false;
    }
}

const char *mu_rpc_frame_name(uint8_t type)
{
    switch (type) {
#define FRAME_NAME(name, number, sequenced)                                                        \
    case number:                                                                                   \
        return #name;
        MU_RPC_FRAME_MAP(FRAME_NAME)
#undef FRAME_NAME
    default:
        return "unknown";
    }
}

bool mu_rpc_is_method(struct mu_span method)
{
    if (method.len == 0 || method.len > MU_RPC_METHOD_MAX) {
        return false;
    }
    for (size_t i = 0; i < method.len; i++) {
        if (method.data[i] <= 0x20 || method.data[i] >= 0x7f) {
            return false;
        }
    }
    return true;
}

/* Reads bytes after a u16 length, at most `max` of them. */
static struct mu_span read_text(struct mu_reader *r, size_t max)
{
    uint16_t len = mu_read_u16(r);

    if (len > max) {
        r->failed = true;
    }
    return mu_read_bytes(r, len);
}

static void put_text(struct mu_buf *out, struct mu_span text)
{
    mu_buf_put_u16(out, (uint16_t)text.len);
    mu_buf_put(out, text);
}

#define HELLO_FIXED 52

int mu_rpc_hello_encode(struct mu_buf *out, const struct mu_rpc_hello *h)
{
    int err;

    if (h->name.len > MU_RPC_NAME_MAX || h->credential.len > MU_RPC_CREDENTIAL_MAX) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, HELLO_FIXED + h->name.len + h->credential.len);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u16(out, h->version_min);
    mu_buf_put_u16(out, h->version_max);
    mu_buf_put(out, mu_span(h->session, sizeof(h->session)));
    mu_buf_put_u32(out, h->life);
    mu_buf_put_u64(out, h->calls_credit);
    mu_buf_put_u32(out, h->frame_bytes_max);
    mu_buf_put_u32(out, h->grace_ms);
    mu_buf_put_u32(out, h->beat_ms);
    mu_buf_put_u32(out, h->dead_ms);
    put_text(out, h->name);
    put_text(out, h->credential);
    return 0;
}

int mu_rpc_hello_decode(struct mu_span in, struct mu_rpc_hello *ret)
{
    struct mu_reader r = mu_reader(in);
    struct mu_rpc_hello h = {0};
    struct mu_span session;

    h.version_min = mu_read_u16(&r);
    h.version_max = mu_read_u16(&r);
    if (r.failed || h.version_min > h.version_max) {
        return MUSTER_EPROTO;
    }
    /* We can read what follows the versions only if ours is among them. */
    if (h.version_min > MU_RPC_VERSION || h.version_max < MU_RPC_VERSION) {
        return MUSTER_EVERSION;
    }
    session = mu_read_bytes(&r, MU_RPC_SESSION_LEN);
    h.life = mu_read_u32(&r);
    h.calls_credit = mu_read_u64(&r);
    h.frame_bytes_max = mu_read_u32(&r);
    h.grace_ms = mu_read_u32(&r);
    h.beat_ms = mu_read_u32(&r);
    h.dead_ms = mu_read_u32(&r);
    h.name = read_text(&r, MU_RPC_NAME_MAX);
    h.credential = read_text(&r, MU_RPC_CREDENTIAL_MAX);
    if (r.failed || (r.rest.len != 0 && h.version_max == MU_RPC_VERSION)) {
        return MUSTER_EPROTO;
    }
    if (h.calls_credit < MU_RPC_CREDIT_MIN || h.frame_bytes_max < MU_RPC_FRAME_MIN) {
        return MUSTER_EPROTO;
    }
    memcpy(h.session, session.data, sizeof(h.session));
    *ret = h;
    return 0;
}

#define WELCOME_FIXED 46

int mu_rpc_welcome_encode(struct mu_buf *out, const struct mu_rpc_welcome *w)
{
    int err;

    if (w->name.len > MU_RPC_NAME_MAX) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, WELCOME_FIXED + w->name.len);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u16(out, w->version);
    mu_buf_put_u8(out, w->resumed ? 1 : 0);
    mu_buf_put_u8(out, 0);
    mu_buf_put_u64(out, w->calls_credit);
    mu_buf_put_u32(out, w->frame_bytes_max);
    mu_buf_put_u32(out, w->grace_ms);
    mu_buf_put_u32(out, w->beat_ms);
    mu_buf_put_u32(out, w->dead_ms);
    put_text(out, w->name);
    mu_buf_put(out, mu_span(w->incarnation, sizeof(w->incarnation)));
    return 0;
}

int mu_rpc_welcome_decode(struct mu_span in, struct mu_rpc_welcome *ret)
{
    struct mu_reader r = mu_reader(in);
    struct mu_rpc_welcome w = {0};
    struct mu_span incarnation;
    uint8_t resumed;
    uint8_t zero;

    w.version = mu_read_u16(&r);
    resumed = mu_read_u8(&r);
    zero = mu_read_u8(&r);
    w.resumed = resumed != 0;
    w.calls_credit = mu_read_u64(&r);
    w.frame_bytes_max = mu_read_u32(&r);
    w.grace_ms = mu_read_u32(&r);
    w.beat_ms = mu_read_u32(&r);
    w.dead_ms = mu_read_u32(&r);
    w.name = read_text(&r, MU_RPC_NAME_MAX);
    incarnation = mu_read_bytes(&r, MU_RPC_SESSION_LEN);
    if (!mu_reader_done(&r) || w.version != MU_RPC_VERSION || resumed > 1 || zero != 0) {
        return MUSTER_EPROTO;
    }
    if (w.calls_credit < MU_RPC_CREDIT_MIN || w.frame_bytes_max < MU_RPC_FRAME_MIN) {
        return MUSTER_EPROTO;
    }
    if (w.beat_ms < MU_RPC_BEAT_MS_MIN || w.dead_ms > MU_RPC_DEAD_MS_MAX ||
        w.dead_ms / 2 < w.beat_ms) {
        return MUSTER_EPROTO;
    }
    memcpy(w.incarnation, incarnation.data, sizeof(w.incarnation));
    *ret = w;
    return 0;
}

/* An error's text, cut to its limit, never within a character. */
static struct mu_span cut_text(struct mu_span text)
{
    if (text.len > MU_RPC_MESSAGE_MAX) {
        text.len = MU_RPC_MESSAGE_MAX;
        while (text.len > 0 && (text.data[text.len] & 0xc0) == 0x80) {
            text.len--;
        }
    }
    return text;
}

int mu_rpc_status_encode(struct mu_buf *out, const struct mu_rpc_status *s)
{
    struct mu_span payload = s->status == 0 ? s->payload : cut_text(s->payload);
    int err = payload.len > UINT32_MAX - 4 ? MUSTER_ELIMIT : mu_buf_reserve(out, 4 + payload.len);

    if (err != 0) {
        return err;
    }
    mu_buf_put_u32(out, (uint32_t)s->status);
    mu_buf_put(out, payload);
    return 0;
}

int mu_rpc_status_decode(struct mu_span in, struct mu_rpc_status *ret)
{
    struct mu_reader r = mu_reader(in);
    int32_t status = (int32_t)mu_read_u32(&r);

    if (r.failed || status > 0 || (status != 0 && r.rest.len > MU_RPC_MESSAGE_MAX)) {
        return MUSTER_EPROTO;
    }
    *ret = (struct mu_rpc_status){.status = status, .payload = r.rest};
    return 0;
}

int mu_rpc_call_encode(struct mu_buf *out, const struct mu_rpc_call_body *c)
{
    int err;

    if (!mu_rpc_is_method(c->method) ||
        c->payload.len > UINT32_MAX - MU_RPC_CALL_HEAD - MU_RPC_METHOD_MAX) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, MU_RPC_CALL_HEAD + c->method.len + c->payload.len);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u32(out, c->timeout_ms);
    mu_buf_put_u32(out, c->flags);
    mu_buf_put_u64(out, c->item_credit);
    mu_buf_put_u8(out, (uint8_t)c->method.len);
    mu_buf_put(out, c->method);
    mu_buf_put(out, c->payload);
    return 0;
}

int mu_rpc_call_decode(struct mu_span in, struct mu_rpc_call_body *ret)
{
    struct mu_reader r = mu_reader(in);
    struct mu_rpc_call_body c = {0};

    c.timeout_ms = mu_read_u32(&r);
    c.flags = mu_read_u32(&r);
    c.item_credit = mu_read_u64(&r);
    c.method = mu_read_bytes(&r, mu_read_u8(&r));
    if (r.failed || !mu_rpc_is_method(c.method)) {
        return MUSTER_EPROTO;
    }
    c.payload = r.rest;
    *ret = c;
    return 0;
}
