/* Messages of a persistent connection, and between daemons for a unary call. */
#include <muster/error.h>

#include "codec/peer/p2pd_msg.h"
#include "codec/bin/pb.h"
#include "codec/bin/uvarint.h"

/* Field numbers. */
enum {
    CALL_ID = 1,
    /* of messages from clients */
    ADD_UNARY = 2,
    CALL_UNARY = 3,
    UNARY_RESPONSE = 4,
    CANCEL = 5,
    REMOVE_UNARY = 6,
    /* of messages from daemons */
    CALL_RESPONSE = 2,
    REQUEST = 3,
    DAEMON_ERROR = 4,
    /* inside of these */
    HANDLER_NAME = 1,
    HANDLER_BALANCED = 2,
    CALL_PEER = 1,
    CALL_NAME = 2,
    CALL_DATA = 3,
    BODY_RESPONSE = 1,
    BODY_ERROR = 2,
    ERROR_TEXT = 1,
};

static int decode_handler(struct mu_span in, struct mu_p2pd_call *c)
{
    struct mu_pb_field f;
    bool named = false;
    int got;

    while ((got = mu_pb_next(&in, &f)) == 1) {
        if (f.number == HANDLER_NAME && f.type == MU_PB_BYTES) {
            c->name = f.bytes;
            named = true;
        } else if (f.number == HANDLER_BALANCED && f.type == MU_PB_VARINT) {
            c->balanced = f.value != 0;
        }
    }
    return got != 0 || !named ? MUSTER_EPROTO : 0;
}

static int decode_unary(struct mu_span in, struct mu_p2pd_call *c)
{
    struct mu_pb_field f;
    unsigned seen = 0;
    int got;

    while ((got = mu_pb_next(&in, &f)) == 1) {
        if (f.type != MU_PB_BYTES || f.number > CALL_DATA) {
            continue;
        }
        seen |= 1u << f.number;
        if (f.number == CALL_PEER) {
            c->peer = f.bytes;
        } else if (f.number == CALL_NAME) {
            c->name = f.bytes;
        } else {
            c->data = f.bytes;
        }
    }
    return got != 0 || seen != (1u << CALL_PEER | 1u << CALL_NAME | 1u << CALL_DATA) ? MUSTER_EPROTO
                                                                                     : 0;
}

static int decode_text(struct mu_span in, struct mu_p2pd_call *c)
{
    struct mu_pb_field f;
    int got;

    while ((got = mu_pb_next(&in, &f)) == 1) {
        if (f.number == ERROR_TEXT && f.type == MU_PB_BYTES) {
            c->data = f.bytes;
        }
    }
    return got;
}

/* Checks a body, which is passed on as it is but must be readable. */
static int check_body(struct mu_span in)
{
    struct mu_pb_field f;
    int got;

    while ((got = mu_pb_next(&in, &f)) == 1) {
    }
    return got;
}

/* Takes one of several alternatives: of two the last counts, and the other is forgotten. */
static int take(struct mu_p2pd_call *c, enum mu_p2pd_call_kind kind, struct mu_span in)
{
    struct mu_span id = c->id;

    *c = (struct mu_p2pd_call){.kind = kind, .id = id};
    switch (kind) {
    case MU_P2PD_ADD_UNARY:
    case MU_P2PD_REMOVE_UNARY:
        return decode_handler(in, c);
    case MU_P2PD_CALL_UNARY:
    case MU_P2PD_REQUEST:
        return decode_unary(in, c);
    case MU_P2PD_UNARY_RESPONSE:
    case MU_P2PD_CALL_RESPONSE:
        c->body = in;
        return check_body(in);
    case MU_P2PD_DAEMON_ERROR:
        return decode_text(in, c);
    case MU_P2PD_CANCEL:
    case MU_P2PD_NOTHING:
        break;
    }
    return check_body(in);
}

static enum mu_p2pd_call_kind kind_from_client(uint32_t number)
{
    switch (number) {
    case ADD_UNARY:
        return MU_P2PD_ADD_UNARY;
    case CALL_UNARY:
        return MU_P2PD_CALL_UNARY;
    case UNARY_RESPONSE:
        return MU_P2PD_UNARY_RESPONSE;
    case CANCEL:
        return MU_P2PD_CANCEL;
    case REMOVE_UNARY:
        return MU_P2PD_REMOVE_UNARY;
    default:
        return MU_P2PD_NOTHING;
    }
}

static enum mu_p2pd_call_kind kind_from_daemon(uint32_t number)
{
    switch (number) {
    case CALL_RESPONSE:
        return MU_P2PD_CALL_RESPONSE;
    case REQUEST:
        return MU_P2PD_REQUEST;
    case DAEMON_ERROR:
        return MU_P2PD_DAEMON_ERROR;
    case CANCEL:
        return MU_P2PD_CANCEL;
    default:
        return MU_P2PD_NOTHING;
    }
}

static int decode(struct mu_span in, enum mu_p2pd_call_kind (*kind_of)(uint32_t number),
                  struct mu_p2pd_call *ret)
{
    struct mu_p2pd_call c = {0};
    struct mu_pb_field f;
    bool has_id = false;
    int got;

    while ((got = mu_pb_next(&in, &f)) == 1) {
        enum mu_p2pd_call_kind kind;

        if (f.type != MU_PB_BYTES) {
            continue;
        }
        if (f.number == CALL_ID) {
            c.id = f.bytes;
            has_id = true;
            continue;
        }
        kind = kind_of(f.number);
        if (kind != MU_P2PD_NOTHING && take(&c, kind, f.bytes) != 0) {
            return MUSTER_EPROTO;
        }
    }
    if (got != 0 || !has_id || c.id.len != MU_P2PD_CALL_ID_LEN) {
        return MUSTER_EPROTO;
    }
    *ret = c;
    return 0;
}

int mu_p2pd_call_decode(struct mu_span in, struct mu_p2pd_call *ret)
{
    return decode(in, kind_from_client, ret);
}

int mu_p2pd_answer_decode(struct mu_span in, struct mu_p2pd_call *ret)
{
    return decode(in, kind_from_daemon, ret);
}

/* --- writing ---------------------------------------------------------------------------------- */

static uint32_t number_of(enum mu_p2pd_call_kind kind)
{
    switch (kind) {
    case MU_P2PD_ADD_UNARY:
        return ADD_UNARY;
    case MU_P2PD_CALL_UNARY:
        return CALL_UNARY;
    case MU_P2PD_UNARY_RESPONSE:
        return UNARY_RESPONSE;
    case MU_P2PD_REMOVE_UNARY:
        return REMOVE_UNARY;
    case MU_P2PD_CALL_RESPONSE:
        return CALL_RESPONSE;
    case MU_P2PD_REQUEST:
        return REQUEST;
    case MU_P2PD_DAEMON_ERROR:
        return DAEMON_ERROR;
    case MU_P2PD_CANCEL:
        return CANCEL;
    case MU_P2PD_NOTHING:
        break;
    }
    return 0;
}

static size_t inner_len(const struct mu_p2pd_call *c)
{
    switch (c->kind) {
    case MU_P2PD_ADD_UNARY:
        return mu_pb_bytes_len(HANDLER_NAME, c->name.len) + 2;
    case MU_P2PD_REMOVE_UNARY:
        return mu_pb_bytes_len(HANDLER_NAME, c->name.len);
    case MU_P2PD_CALL_UNARY:
    case MU_P2PD_REQUEST:
        return mu_pb_bytes_len(CALL_PEER, c->peer.len) + mu_pb_bytes_len(CALL_NAME, c->name.len) +
               mu_pb_bytes_len(CALL_DATA, c->data.len);
    case MU_P2PD_UNARY_RESPONSE:
    case MU_P2PD_CALL_RESPONSE:
        return c->body.len;
    case MU_P2PD_DAEMON_ERROR:
        return mu_pb_bytes_len(ERROR_TEXT, c->data.len);
    case MU_P2PD_CANCEL:
    case MU_P2PD_NOTHING:
        break;
    }
    return 0;
}

static size_t message_len(const struct mu_p2pd_call *c)
{
    return mu_pb_bytes_len(CALL_ID, c->id.len) +
           (c->kind == MU_P2PD_NOTHING ? 0 : mu_pb_bytes_len(number_of(c->kind), inner_len(c)));
}

size_t mu_p2pd_call_len(const struct mu_p2pd_call *c)
{
    size_t len = message_len(c);

    return mu_uvarint_len(len) + len;
}

static void put_inner(struct mu_pb_out *pb, const struct mu_p2pd_call *c)
{
    switch (c->kind) {
    case MU_P2PD_ADD_UNARY:
        mu_pb_put_bytes(pb, HANDLER_NAME, c->name);
        mu_pb_put_varint(pb, HANDLER_BALANCED, c->balanced ? 1 : 0);
        break;
    case MU_P2PD_REMOVE_UNARY:
        mu_pb_put_bytes(pb, HANDLER_NAME, c->name);
        break;
    case MU_P2PD_CALL_UNARY:
    case MU_P2PD_REQUEST:
        mu_pb_put_bytes(pb, CALL_PEER, c->peer);
        mu_pb_put_bytes(pb, CALL_NAME, c->name);
        mu_pb_put_bytes(pb, CALL_DATA, c->data);
        break;
    case MU_P2PD_UNARY_RESPONSE:
    case MU_P2PD_CALL_RESPONSE:
        mu_pb_put_raw(pb, c->body);
        break;
    case MU_P2PD_DAEMON_ERROR:
        mu_pb_put_bytes(pb, ERROR_TEXT, c->data);
        break;
    case MU_P2PD_CANCEL:
    case MU_P2PD_NOTHING:
        break;
    }
}

int mu_p2pd_call_encode(struct mu_buf *out, const struct mu_p2pd_call *c)
{
    struct mu_pb_out pb = mu_pb_out(out);
    size_t len = message_len(c);
    int err = mu_buf_reserve(out, mu_uvarint_len(len) + len);

    if (err != 0) {
        return err;
    }
    (void)mu_uvarint_append(out, len);
    mu_pb_put_bytes(&pb, CALL_ID, c->id);
    if (c->kind != MU_P2PD_NOTHING) {
        mu_pb_put_head(&pb, number_of(c->kind), inner_len(c));
        put_inner(&pb, c);
    }
    return pb.err;
}

bool mu_p2pd_body_decode(struct mu_span body, struct mu_span *ret_data)
{
    struct mu_pb_field f;
    bool ok = false;

    *ret_data = (struct mu_span){0};
    while (mu_pb_next(&body, &f) == 1) {
        if (f.type == MU_PB_BYTES && f.number <= BODY_ERROR) {
            ok = f.number == BODY_RESPONSE;
            *ret_data = f.bytes;
        }
    }
    return ok;
}

int mu_p2pd_body_encode(struct mu_buf *out, bool error, struct mu_span data)
{
    struct mu_pb_out pb = mu_pb_out(out);

    mu_pb_put_bytes(&pb, error ? BODY_ERROR : BODY_RESPONSE, data);
    return pb.err;
}
