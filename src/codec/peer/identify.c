#include "codec/peer/identify.h"

#include <muster/error.h>

#include "codec/peer/multiaddr.h"
#include "codec/bin/pb.h"

enum {
    PUBLIC_KEY = 1,
    LISTEN_ADDR = 2,
    PROTOCOL = 3,
    OBSERVED_ADDR = 4,
    PROTOCOL_VERSION = 5,
    AGENT_VERSION = 6,
    SIGNED_RECORD = 8,
};

/* --- reading ---------------------------------------------------------------------------------- */

static int take_field(struct mu_identify *id, const struct mu_pb_field *f)
{
    size_t max = MU_IDENTIFY_MESSAGE_MAX;

    switch (f->number) {
    case PUBLIC_KEY:
        id->public_key = f->bytes;
        break;
    case LISTEN_ADDR:
        id->addr_count += mu_multiaddr_check(f->bytes) == 0 ? 1 : 0;
        break;
    case PROTOCOL:
        id->protocol_count++;
        max = MU_IDENTIFY_NAME_MAX;
        break;
    case OBSERVED_ADDR:
        id->observed_addr = f->bytes;
        break;
    case PROTOCOL_VERSION:
        id->protocol_version = f->bytes;
        max = MU_IDENTIFY_VERSION_MAX;
        break;
    case AGENT_VERSION:
        id->agent_version = f->bytes;
        max = MU_IDENTIFY_VERSION_MAX;
        break;
    case SIGNED_RECORD:
        id->signed_record = f->bytes;
        break;
    }
    return f->bytes.len > max || id->addr_count > MU_IDENTIFY_ADDRS_MAX ||
                   id->protocol_count > MU_IDENTIFY_PROTOCOLS_MAX
               ? MUSTER_ELIMIT
               : 0;
}

int mu_identify_decode(struct mu_span bytes, struct mu_identify *ret)
{
    struct mu_identify id = {.all = bytes};
    struct mu_pb_field f;
    int err;

    while ((err = mu_pb_next(&bytes, &f)) == 1) {
        if (f.type == MU_PB_BYTES) {
            err = take_field(&id, &f);
            if (err != 0) {
                return err;
            }
        }
    }
    if (err == 0) {
        *ret = id;
    }
    return err;
}

static bool next_of(struct mu_span *walk, uint32_t number, struct mu_span *ret)
{
    struct mu_pb_field f;

    while (mu_pb_next(walk, &f) == 1) {
        if (f.number == number && f.type == MU_PB_BYTES) {
            *ret = f.bytes;
            return true;
        }
    }
    return false;
}

bool mu_identify_next_addr(struct mu_span *walk, struct mu_span *ret_addr)
{
    struct mu_span addr;

    while (next_of(walk, LISTEN_ADDR, &addr)) {
        if (mu_multiaddr_check(addr) == 0) {
            *ret_addr = addr;
            return true;
        }
    }
    return false;
}

bool mu_identify_next_protocol(struct mu_span *walk, struct mu_span *ret_name)
{
    return next_of(walk, PROTOCOL, ret_name);
}

/* --- a stream of messages --------------------------------------------------------------------- */

void mu_identify_in_init(struct mu_identify_in *in)
{
    *in = (struct mu_identify_in){0};
    mu_buf_init(&in->bytes, (size_t)MU_IDENTIFY_MESSAGES_MAX * MU_IDENTIFY_MESSAGE_MAX);
}

void mu_identify_in_fini(struct mu_identify_in *in)
{
    mu_buf_fini(&in->bytes);
}

/* One more byte of a length. */
static int take_length(struct mu_identify_in *in, uint8_t byte)
{
    uint64_t len;
    size_t used;
    int err;

    in->head[in->head_len++] = byte;
    err = mu_uvarint_get(mu_span(in->head, in->head_len), &used, &len);
    if (err == MUSTER_EAGAIN) {
        return 0;
    }
    if (err == 0 && (len > MU_IDENTIFY_MESSAGE_MAX || in->messages == MU_IDENTIFY_MESSAGES_MAX)) {
        err = MUSTER_ELIMIT;
    }
    if (err != 0) {
        in->poison = err;
        return err;
    }
    in->messages++;
    in->left = (size_t)len;
    in->head_len = 0;
    return 0;
}

int mu_identify_in_recv(struct mu_identify_in *in, struct mu_span bytes)
{
    struct mu_identify_in before = *in;
    int err = in->poison;

    while (err == 0 && bytes.len != 0) {
        size_t len = 1;

        if (in->left == 0) {
            err = take_length(in, bytes.data[0]);
        } else {
            len = in->left < bytes.len ? in->left : bytes.len;
            err = mu_buf_append(&in->bytes, mu_span(bytes.data, len));
            in->left -= len;
        }
        bytes = mu_span_skip(bytes, len);
    }
    if (err == MUSTER_ENOMEM) {
        /* Drops what was added; the memory for it may stay. */
        struct mu_buf got = in->bytes;

        *in = before;
        in->bytes = got;
        in->bytes.len = before.bytes.len;
    }
    return err;
}

int mu_identify_in_end(const struct mu_identify_in *in, struct mu_span *ret_bytes)
{
    if (in->poison != 0) {
        return in->poison;
    }
    if (in->messages == 0 || in->left != 0 || in->head_len != 0) {
        return MUSTER_EPROTO;
    }
    *ret_bytes = mu_buf_span(&in->bytes);
    return 0;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* A message that is being filled, and is written when it is full. */
struct filling {
    struct mu_buf message;
    struct mu_buf *out;
    uint32_t messages;
    int err;
};

static void flush(struct filling *to)
{
    if (to->err == 0 && to->messages == MU_IDENTIFY_MESSAGES_MAX) {
        to->err = MUSTER_ELIMIT;
    }
    if (to->err == 0) {
        to->err = mu_uvarint_append(to->out, to->message.len);
    }
    if (to->err == 0) {
        to->err = mu_buf_append(to->out, mu_buf_span(&to->message));
    }
    to->messages++;
    mu_buf_reset(&to->message);
}

static void put(struct filling *to, uint32_t number, struct mu_span bytes)
{
    struct mu_pb_out pb = mu_pb_out(&to->message);

    if (bytes.data == NULL || to->err != 0) {
        return;
    }
    if (to->message.len != 0 &&
        mu_pb_bytes_len(number, bytes.len) > MU_IDENTIFY_MESSAGE_MAX - to->message.len) {
        flush(to);
    }
    mu_pb_put_bytes(&pb, number, bytes);
    to->err = to->err == 0 ? pb.err : to->err;
}

int mu_identify_encode(const struct mu_identify_out *say, struct mu_buf *out)
{
    struct filling to = {.out = out};

    mu_buf_init(&to.message, MU_IDENTIFY_MESSAGE_MAX);
    put(&to, PUBLIC_KEY, say->public_key);
    for (size_t i = 0; i < say->addr_count; i++) {
        put(&to, LISTEN_ADDR, say->addrs[i]);
    }
    for (size_t i = 0; i < say->protocol_count; i++) {
        put(&to, PROTOCOL, say->protocols[i]);
    }
    put(&to, OBSERVED_ADDR, say->observed_addr);
    put(&to, PROTOCOL_VERSION, say->protocol_version);
    put(&to, AGENT_VERSION, say->agent_version);
    put(&to, SIGNED_RECORD, say->signed_record);
    flush(&to);
    mu_buf_fini(&to.message);
    return to.err;
}
