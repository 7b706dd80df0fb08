#include "codec/peer/frame.h"

#include <muster/error.h>

#include "codec/bin/pb.h"
#include "codec/bin/uvarint.h"

/* Field numbers of PersistentConnectionRequest and what is in it. */
enum {
    FIELD_CALL_ID = 1,
    FIELD_CALL = 3,
    FIELD_RESPONSE = 4,
    CALL_PEER = 1,
    CALL_NAME = 2,
    CALL_DATA = 3,
    RESPONSE_DATA = 1,
    RESPONSE_ERROR = 2,
    ERROR_TEXT = 1,
};

static size_t body_len(const struct mu_call_frame *f)
{
    size_t len = mu_pb_bytes_len(1, f->data.len);

    if (f->kind == MU_CALL_REQUEST) {
        len += mu_pb_bytes_len(CALL_PEER, f->peer.len) + mu_pb_bytes_len(CALL_NAME, f->name.len);
    }
    return len;
}

int mu_call_frame_encode(struct mu_buf *out, const struct mu_call_frame *f)
{
    struct mu_pb_out pb = mu_pb_out(out);
    size_t body = body_len(f);
    size_t len = mu_pb_bytes_len(FIELD_CALL_ID, f->id.len) + mu_pb_bytes_len(FIELD_CALL, body);
    int err = len > MU_CALL_FRAME_MAX ? MUSTER_ELIMIT : mu_uvarint_append(out, len);

    if (err != 0) {
        return err;
    }
    mu_pb_put_bytes(&pb, FIELD_CALL_ID, f->id);
    switch (f->kind) {
    case MU_CALL_REQUEST:
        mu_pb_put_head(&pb, FIELD_CALL, body);
        mu_pb_put_bytes(&pb, CALL_PEER, f->peer);
        mu_pb_put_bytes(&pb, CALL_NAME, f->name);
        mu_pb_put_bytes(&pb, CALL_DATA, f->data);
        break;
    case MU_CALL_RESPONSE:
    case MU_CALL_ERROR:
        mu_pb_put_head(&pb, FIELD_RESPONSE, body);
        mu_pb_put_bytes(&pb, f->kind == MU_CALL_RESPONSE ? RESPONSE_DATA : RESPONSE_ERROR, f->data);
        break;
    }
    return pb.err;
}

static int decode_call(struct mu_span in, struct mu_call_frame *f)
{
    struct mu_pb_field field;
    int got;

    f->kind = MU_CALL_REQUEST;
    while ((got = mu_pb_next(&in, &field)) == 1) {
        if (field.type != MU_PB_BYTES) {
            continue;
        }
        if (field.number == CALL_PEER) {
            f->peer = field.bytes;
        } else if (field.number == CALL_NAME) {
            f->name = field.bytes;
        } else if (field.number == CALL_DATA) {
            f->data = field.bytes;
        }
    }
    return got;
}

/* An answer with neither comes from a handler that failed without a text. */
static int decode_response(struct mu_span in, struct mu_call_frame *f)
{
    struct mu_pb_field field;
    int got;

    f->kind = MU_CALL_ERROR;
    while ((got = mu_pb_next(&in, &field)) == 1) {
        if (field.type == MU_PB_BYTES && field.number <= RESPONSE_ERROR) {
            f->kind = field.number == RESPONSE_DATA ? MU_CALL_RESPONSE : MU_CALL_ERROR;
            f->data = field.bytes;
        }
    }
    return got;
}

static int decode_message(struct mu_span in, struct mu_call_frame *ret)
{
    struct mu_call_frame f = {0};
    struct mu_pb_field field;
    int got;

    while ((got = mu_pb_next(&in, &field)) == 1) {
        int err = 0;

        if (field.type != MU_PB_BYTES) {
            continue;
        }
        if (field.number == FIELD_CALL_ID) {
            f.id = field.bytes;
        } else if (field.number == FIELD_CALL) {
            err = decode_call(field.bytes, &f);
        } else if (field.number == FIELD_RESPONSE) {
            err = decode_response(field.bytes, &f);
        }
        if (err != 0) {
            return err;
        }
    }
    if (got != 0 || f.kind == 0) {
        return MUSTER_EPROTO;
    }
    *ret = f;
    return 1;
}

int mu_call_frame_decode(struct mu_span in, struct mu_call_frame *ret, size_t *ret_used)
{
    uint64_t len;
    size_t head;
    int err = mu_uvarint_get(in, &head, &len);

    if (err == MUSTER_EAGAIN) {
        return 0;
    }
    if (err != 0) {
        return err;
    }
    if (len > MU_CALL_FRAME_MAX) {
        return MUSTER_ELIMIT;
    }
    if (in.len - head < len) {
        return 0;
    }
    *ret_used = head + (size_t)len;
    return decode_message(mu_span(in.data + head, (size_t)len), ret);
}

/* --- streaming -------------------------------------------------------------------------------- */

static int put_item_head(struct mu_buf *out, uint8_t marker, uint64_t len)
{
    uint8_t head[MU_ITEM_HEAD_LEN] = {marker};

    for (int i = 0; i < 8; i++) {
        head[1 + i] = (uint8_t)(len >> (8 * (7 - i)));
    }
    return mu_buf_append(out, mu_span(head, sizeof(head)));
}

int mu_item_encode_two(struct mu_buf *out, uint8_t marker, struct mu_span a, struct mu_span b)
{
    int err = a.len > SIZE_MAX - MU_ITEM_HEAD_LEN || b.len > SIZE_MAX - MU_ITEM_HEAD_LEN - a.len
                  ? MUSTER_ELIMIT
                  : mu_buf_reserve(out, MU_ITEM_HEAD_LEN + a.len + b.len);

    err = err != 0 ? err : put_item_head(out, marker, a.len + b.len);
    err = err != 0 ? err : mu_buf_append(out, a);
    return err != 0 ? err : mu_buf_append(out, b);
}

int mu_item_encode(struct mu_buf *out, uint8_t marker, struct mu_span message)
{
    return mu_item_encode_two(out, marker, message, (struct mu_span){0});
}

int mu_item_error_encode(struct mu_buf *out, struct mu_span text)
{
    size_t len = text.len == 0 ? 0 : mu_pb_bytes_len(ERROR_TEXT, text.len);
    struct mu_pb_out pb = mu_pb_out(out);
    int err = mu_buf_reserve(out, MU_ITEM_HEAD_LEN + len);

    err = err != 0 ? err : put_item_head(out, MU_ITEM_MARKER_ERROR, len);
    if (err == 0 && text.len != 0) {
        mu_pb_put_bytes(&pb, ERROR_TEXT, text);
        err = pb.err;
    }
    return err;
}

int mu_item_head_decode(struct mu_span in, uint8_t *ret_marker, uint64_t *ret_len)
{
    uint64_t len = 0;

    if (in.len > 0 && in.data[0] > MU_ITEM_MARKER_ERROR) {
        return MUSTER_EPROTO;
    }
    if (in.len < MU_ITEM_HEAD_LEN) {
        return 0;
    }
    for (int i = 1; i < MU_ITEM_HEAD_LEN; i++) {
        len = len << 8 | in.data[i];
    }
    *ret_marker = in.data[0];
    *ret_len = len;
    return 1;
}

int mu_item_error_decode(struct mu_span message, struct mu_span *ret_text)
{
    struct mu_span text = {0};
    struct mu_pb_field field;
    int got;

    while ((got = mu_pb_next(&message, &field)) == 1) {
        if (field.number == ERROR_TEXT && field.type == MU_PB_BYTES) {
            text = field.bytes;
        }
    }
    if (got == 0) {
        *ret_text = text;
    }
    return got;
}
