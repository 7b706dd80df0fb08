/* The authorization wrapper of the DHT's messages. */
#include "codec/dht/msg.h"

#include <muster/error.h>

#include "codec/bin/pb.h"

enum {
    FIELD_AUTH = 1,
};

/* Stores the bytes of a field in its place, if it is one of the `count` fields that are bytes. */
static int take_bytes(const struct mu_pb_field *f, struct mu_span *const *to, size_t count)
{
    if (f->number > count || to[f->number - 1] == NULL) {
        return 0;
    }
    if (f->type != MU_PB_BYTES) {
        return MUSTER_EPROTO;
    }
    *to[f->number - 1] = f->bytes;
    return 0;
}

static int read_bytes(struct mu_span bytes, struct mu_span *const *to, size_t count)
{
    struct mu_pb_field f;
    int got;

    while ((got = mu_pb_next(&bytes, &f)) == 1) {
        int err = take_bytes(&f, to, count);

        if (err != 0) {
            return err;
        }
    }
    return got;
}

static void put_bytes(struct mu_pb_out *pb, uint32_t number, struct mu_span bytes)
{
    if (bytes.len != 0) {
        mu_pb_put_bytes(pb, number, bytes);
    }
}

int mu_dht_token_decode(struct mu_span bytes, struct mu_dht_token *ret)
{
    struct mu_dht_token token = {0};
    struct mu_span *const to[] = {&token.username, &token.public_key, &token.expiration_time,
                                  &token.signature};
    int err = read_bytes(bytes, to, 4);

    if (err == 0) {
        *ret = token;
    }
    return err;
}

int mu_dht_token_encode(struct mu_buf *out, const struct mu_dht_token *token)
{
    struct mu_pb_out pb = mu_pb_out(out);

    put_bytes(&pb, 1, token->username);
    put_bytes(&pb, 2, token->public_key);
    put_bytes(&pb, 3, token->expiration_time);
    put_bytes(&pb, 4, token->signature);
    return pb.err;
}

int mu_dht_auth_decode(struct mu_span bytes, struct mu_dht_auth *ret)
{
    struct mu_dht_auth auth = {0};
    struct mu_span *const to[] = {&auth.token, &auth.service_key, NULL, &auth.nonce,
                                  &auth.signature};
    struct mu_pb_field f;
    int got;

    while ((got = mu_pb_next(&bytes, &f)) == 1) {
        int err = take_bytes(&f, to, 5);

        if (err != 0) {
            return err;
        }
        if (f.number == 3 && f.type == MU_PB_FIXED64) {
            auth.time = mu_pb_double(&f);
        }
    }
    if (got == 0) {
        *ret = auth;
    }
    return got;
}

int mu_dht_auth_encode(struct mu_buf *out, const struct mu_dht_auth *auth)
{
    struct mu_pb_out pb = mu_pb_out(out);

    put_bytes(&pb, 1, auth->token);
    put_bytes(&pb, 2, auth->service_key);
    if (auth->time != 0) {
        mu_pb_put_double(&pb, 3, auth->time);
    }
    put_bytes(&pb, 4, auth->nonce);
    put_bytes(&pb, 5, auth->signature);
    return pb.err;
}

int mu_dht_reply_auth_decode(struct mu_span bytes, struct mu_dht_reply_auth *ret)
{
    struct mu_dht_reply_auth auth = {0};
    struct mu_span *const to[] = {&auth.token, &auth.nonce, &auth.signature};
    int err = read_bytes(bytes, to, 3);

    if (err == 0) {
        *ret = auth;
    }
    return err;
}

int mu_dht_reply_auth_encode(struct mu_buf *out, const struct mu_dht_reply_auth *auth)
{
    struct mu_pb_out pb = mu_pb_out(out);

    put_bytes(&pb, 1, auth->token);
    put_bytes(&pb, 2, auth->nonce);
    put_bytes(&pb, 3, auth->signature);
    return pb.err;
}

int mu_dht_auth_replace(struct mu_buf *out, struct mu_span message, struct mu_span auth)
{
    struct mu_pb_out pb = mu_pb_out(out);
    struct mu_span rest = message;
    struct mu_pb_field f;
    int got = 1;

    mu_pb_put_bytes(&pb, FIELD_AUTH, auth);
    while (got == 1) {
        struct mu_span before = rest;

        got = mu_pb_next(&rest, &f);
        if (got == 1 && f.number != FIELD_AUTH) {
            mu_pb_put_raw(&pb, mu_span(before.data, before.len - rest.len));
        }
    }
    return got != 0 ? got : pb.err;
}

int mu_dht_auth_find(struct mu_span message, struct mu_span *ret_auth)
{
    struct mu_span found = {0};
    struct mu_pb_field f;
    int got;

    while ((got = mu_pb_next(&message, &f)) == 1) {
        if (f.number == FIELD_AUTH && f.type == MU_PB_BYTES) {
            found = f.bytes;
        }
    }
    if (got == 0) {
        *ret_auth = found;
    }
    return got;
}
