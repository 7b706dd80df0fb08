/* Frames in. */
#include "proto/rpc/rpc_internal.h"

struct range {
    uint32_t least;
    uint32_t most;
};

static struct range payload_range(const struct mu_rpc *r, enum mu_rpc_frame_type type)
{
    switch (type) {
    case MU_RPC_HELLO:
        return (struct range){4, MU_RPC_HELLO_MAX};
    case MU_RPC_WELCOME:
        return (struct range){4, MU_RPC_HELLO_MAX};
    case MU_RPC_REFUSE:
    case MU_RPC_DRAIN:
        return (struct range){4, 4 + MU_RPC_MESSAGE_MAX};
    case MU_RPC_PING:
    case MU_RPC_PONG:
    case MU_RPC_CREDIT:
        return (struct range){8, 8};
    case MU_RPC_ACK:
    case MU_RPC_BYE:
    case MU_RPC_END:
    case MU_RPC_CANCEL:
        return (struct range){0, 0};
    case MU_RPC_CALL:
        return (struct range){MU_RPC_CALL_HEAD + 1, r->config.frame_bytes_max};
    case MU_RPC_REPLY:
        return (struct range){4, r->config.frame_bytes_max};
    case MU_RPC_ITEM:
        return (struct range){0, r->config.frame_bytes_max};
    }
    return (struct range){1, 0};
}

/* Returns whether a frame of this type may come now. */
static bool is_welcome_now(const struct mu_rpc *r, enum mu_rpc_frame_type type)
{
    if (r->link == MU_RPC_LINK_DIALLED) {
        return type == MU_RPC_WELCOME || type == MU_RPC_REFUSE;
    }
    return type != MU_RPC_HELLO && type != MU_RPC_WELCOME;
}

/* Reads the complete header in r->head; no memory is taken for its payload yet. */
static int read_header(struct mu_rpc *r)
{
    struct mu_rpc_header *h = &r->header;
    struct mu_errmsg e;
    struct range range;
    const char *name;

    if (mu_rpc_header_decode(r->head, h) != 0) {
        return mu_rpc_violate(
            r,
            mu_err(&e, MUSTER_EPROTO, "unknown frame: type %u, flags %u", r->head[4], r->head[5]),
            &e);
    }
    name = mu_rpc_frame_name(h->type);
    if (!is_welcome_now(r, (enum mu_rpc_frame_type)h->type)) {
        return mu_rpc_violate(r, mu_err(&e, MUSTER_EPROTO, "%s is out of place", name), &e);
    }
    if (h->type != MU_RPC_CREDIT && (h->id != 0) != mu_rpc_is_sequenced(h->type)) {
        return mu_rpc_violate(
            r, mu_err(&e, MUSTER_EPROTO, "%s with id %llu", name, (unsigned long long)h->id), &e);
    }
    range = payload_range(r, (enum mu_rpc_frame_type)h->type);
    if (h->len < range.least || h->len > range.most) {
        int code = h->len > r->config.frame_bytes_max ? MUSTER_ELIMIT : MUSTER_EPROTO;

        return mu_rpc_violate(r,
                              mu_err(&e, code, "%s of %u bytes, expected %u to %u", name,
                                     (unsigned)h->len, (unsigned)range.least, (unsigned)range.most),
                              &e);
    }
    return 0;
}

/* The other end refuses us, or ends a session in which it found a fault. */
static int on_refuse(struct mu_rpc *r, struct mu_span payload)
{
    struct mu_rpc_status s;
    struct mu_errmsg e;

    if (mu_rpc_status_decode(payload, &s) != 0 || s.status == 0) {
        return mu_rpc_violate(r, mu_err(&e, MUSTER_EPROTO, "malformed REFUSE"), &e);
    }
    if (r->link == MU_RPC_LINK_UP) {
        r->closed = true;
        mu_rpc_end_all(r, s.status);
        mu_rpc_cut_output(r);
    }
    r->link = MU_RPC_LINK_OVER;
    mu_rpc_tell(r, (struct mu_rpc_event){
                       .type = MU_RPC_EV_REFUSED, .status = s.status, .payload = s.payload});
    return 0;
}

static int on_drain(struct mu_rpc *r, struct mu_span payload)
{
    struct mu_rpc_status s;
    struct mu_errmsg e;

    if (mu_rpc_status_decode(payload, &s) != 0) {
        return mu_rpc_violate(r, mu_err(&e, MUSTER_EPROTO, "malformed DRAIN"), &e);
    }
    mu_rpc_tell(r, (struct mu_rpc_event){
                       .type = MU_RPC_EV_DRAIN, .status = s.status, .payload = s.payload});
    return 0;
}

static int on_bye(struct mu_rpc *r)
{
    r->closed = true;
    mu_rpc_end_all(r, MUSTER_ECLOSED);
    mu_rpc_cut_output(r);
    r->link = MU_RPC_LINK_OVER;
    mu_rpc_tell(r, (struct mu_rpc_event){.type = MU_RPC_EV_BYE});
    return 0;
}

static int dispatch(struct mu_rpc *r, struct mu_span payload)
{
    switch ((enum mu_rpc_frame_type)r->header.type) {
    case MU_RPC_HELLO:
        break;
    case MU_RPC_WELCOME:
        return mu_rpc_on_welcome(r, payload);
    case MU_RPC_REFUSE:
        return on_refuse(r, payload);
    case MU_RPC_PING:
        /* Several PINGs that came before the answer could leave get one answer, to the last. */
        r->want_pong = true;
        r->pong_nonce = mu_get_u64(payload.data);
        return 0;
    case MU_RPC_PONG:
        mu_rpc_note_answer(r, 0);
        mu_rpc_confirm(r, (mu_mono_t){mu_get_u64(payload.data)});
        return 0;
    case MU_RPC_ACK:
        return 0;
    case MU_RPC_DRAIN:
        return on_drain(r, payload);
    case MU_RPC_BYE:
        return on_bye(r);
    case MU_RPC_CALL:
        return mu_rpc_on_call(r, payload);
    case MU_RPC_REPLY:
        return mu_rpc_on_reply(r, payload);
    case MU_RPC_ITEM:
        return (r->header.id & 1) == (mu_rpc_own_first(r) & 1) ? mu_rpc_on_own_item(r, payload)
                                                               : mu_rpc_on_peer_item(r, payload);
    case MU_RPC_END:
        return mu_rpc_on_end(r);
    case MU_RPC_CANCEL:
        return mu_rpc_on_cancel(r);
    case MU_RPC_CREDIT:
        return mu_rpc_on_credit(r, payload);
    }
    return MUSTER_EPROTO;
}

static int handle_frame(struct mu_rpc *r, struct mu_span payload)
{
    struct mu_errmsg e;
    int err;

    if (r->link == MU_RPC_LINK_UP) {
        if (r->header.ack > r->out_seq) {
            return mu_rpc_violate(r,
                                  mu_err(&e, MUSTER_EPROTO, "%s acknowledges %llu frames of %llu",
                                         mu_rpc_frame_name(r->header.type),
                                         (unsigned long long)r->header.ack,
                                         (unsigned long long)r->out_seq),
                                  &e);
        }
        if (r->header.ack != 0) {
            mu_rpc_note_answer(r, r->header.ack);
        }
        if (r->header.ack > r->out_base) {
            mu_rpc_drop_acked(r, r->header.ack);
        }
    }
    err = dispatch(r, payload);
    if (err == 0 && mu_rpc_is_sequenced(r->header.type)) {
        if (r->in_seq == 0 && r->config.role == MU_RPC_SERVER) {
            mu_rpc_note_answer(r, 0);
        }
        r->in_seq++;
        r->frames_in++;
        r->in_quiet++;
        r->in_quiet_bytes += MU_RPC_HEADER + payload.len;
    }
    return err;
}

/* Takes bytes into the header until it is complete, then checks it. MUSTER_EAGAIN: it is not
 * complete. */
static int take_header(struct mu_rpc *r, struct mu_span in, size_t *ret_used)
{
    size_t part = MU_RPC_HEADER - (size_t)r->head_len;
    int err;

    part = part < in.len ? part : in.len;
    if (part != 0) {
        memcpy(r->head + r->head_len, in.data, part);
        r->head_len = (uint8_t)(r->head_len + part);
    }
    *ret_used = part;
    if (r->head_len < MU_RPC_HEADER) {
        return MUSTER_EAGAIN;
    }
    err = read_header(r);
    if (err != 0) {
        return err;
    }
    r->head_read = true;
    mu_buf_reset(&r->in);
    mu_buf_trim(&r->in, r->header.len > MU_RPC_KEEP_BYTES ? r->header.len : MU_RPC_KEEP_BYTES);
    r->in.max = r->header.len; /* so that growing ends at the right size */
    mu_rpc_begin_landing(r);
    return 0;
}

/* Takes bytes to the memory that the call's owner provides; they may be there already. */
static int take_landing(struct mu_rpc *r, struct mu_span in, size_t *ret_used)
{
    size_t part = r->header.len - r->landed;

    part = part < in.len ? part : in.len;
    if (r->land_to != NULL && part != 0 && in.data != r->land_to + r->landed) {
        memcpy(r->land_to + r->landed, in.data, part);
    }
    r->landed += part;
    *ret_used = part;
    return r->landed < r->header.len ? MUSTER_EAGAIN
                                     : handle_frame(r, mu_span(r->land_to, r->header.len));
}

/* Takes bytes to the frame's own buffer; they may be there already. */
static int take_inside(struct mu_rpc *r, struct mu_span in, size_t *ret_used)
{
    size_t part = r->header.len - r->in.len;
    int err = 0;

    part = part < in.len ? part : in.len;
    if (r->in.data != NULL && in.data == r->in.data + r->in.head + r->in.len) {
        (void)mu_buf_grow(&r->in, part);
    } else {
        err = mu_buf_append(&r->in, mu_span(in.data, part));
    }
    if (err != 0) {
        return err;
    }
    *ret_used = part;
    return r->in.len < r->header.len ? MUSTER_EAGAIN : handle_frame(r, mu_buf_span(&r->in));
}

/*
 * Takes the payload, from where it lies if it is all there, and handles the frame. How much was
 * used is told in any case: a frame that found no memory stays and is tried again.
 */
static int take_payload(struct mu_rpc *r, struct mu_span in, size_t *ret_used)
{
    int err;

    *ret_used = 0;
    if (r->land_to != NULL || r->land_lost) {
        err = take_landing(r, in, ret_used);
    } else if (r->in.len == 0 && in.len >= r->header.len) {
        err = handle_frame(r, mu_span(in.data, r->header.len));
        if (err == 0) {
            *ret_used = r->header.len;
        }
    } else {
        err = take_inside(r, in, ret_used);
    }
    if (err == 0) {
        mu_rpc_end_frame(r);
        /* This follows each frame, so that the output does not depend on how the bytes were
         * split. */
        mu_rpc_settle(r);
        if (r->header.type == MU_RPC_PING) {
            mu_rpc_trim(r);
        }
    }
    return err;
}

int mu_rpc_recv(struct mu_rpc *r, struct mu_now now, struct mu_span in, size_t *ret_used)
{
    size_t used = 0;
    int err = 0;

    if (r->poison != 0) {
        return r->poison;
    }
    mu_rpc_enter(r, now);
    if (in.len != 0) {
        r->last_rx = now.mono;
        r->received_at = now.mono;
    }
    while (err == 0 && !mu_rpc_has_event(r)) {
        size_t part = 0;

        if (r->link == MU_RPC_LINK_NONE || r->link == MU_RPC_LINK_OVER) {
            used = in.len; /* further bytes are dropped */
            break;
        }
        if (!r->head_read) {
            err = take_header(r, mu_span_skip(in, used), &part);
        } else {
            err = take_payload(r, mu_span_skip(in, used), &part);
        }
        used += part;
    }
    if (r->poison != 0) {
        return r->poison;
    }
    if (err != 0 && err != MUSTER_EAGAIN && used == 0) {
        return err;
    }
    *ret_used = used;
    return 0;
}
