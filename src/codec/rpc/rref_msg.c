#include "codec/rpc/rref_msg.h"

#include <string.h>

#include <muster/error.h>

#include "core/reader.h"

#define TOKEN_VERSION 1

static uint8_t *put_id(uint8_t *at, struct mu_rref_id id)
{
    mu_put_u64(at, id.life);
    mu_put_u64(at + 8, id.number);
    return at + 16;
}

static struct mu_rref_id read_id(struct mu_reader *r)
{
    uint64_t life = mu_read_u64(r);

    return (struct mu_rref_id){life, mu_read_u64(r)};
}

void mu_rref_msg_encode(uint8_t out[MU_RREF_MSG_LEN], const struct mu_rref_msg *msg)
{
    mu_put_u64(out, msg->life);
    mu_put_u64(out + 8, msg->floor);
    (void)put_id(put_id(out + 16, msg->rref), msg->fork);
}

int mu_rref_msg_decode(struct mu_span *in, struct mu_rref_msg *ret)
{
    struct mu_reader r = mu_reader(*in);
    struct mu_rref_msg msg;

    msg.life = mu_read_u64(&r);
    msg.floor = mu_read_u64(&r);
    msg.rref = read_id(&r);
    msg.fork = read_id(&r);
    if (r.failed || msg.life == 0) {
        return MUSTER_EPROTO;
    }
    *in = r.rest;
    *ret = msg;
    return 0;
}

void mu_rref_answer_encode(uint8_t out[MU_RREF_ANSWER_LEN], const struct mu_rref_answer *answer)
{
    mu_put_u64(out, answer->life);
    mu_put_u64(out + 8, answer->floor);
    out[16] = (uint8_t)answer->verdict;
}

int mu_rref_answer_decode(struct mu_span in, struct mu_rref_answer *ret)
{
    struct mu_reader r = mu_reader(in);
    uint64_t life = mu_read_u64(&r);
    uint64_t floor = mu_read_u64(&r);
    uint8_t verdict = mu_read_u8(&r);

    if (!mu_reader_done(&r) || life == 0 || verdict > MU_RREF_STALE) {
        return MUSTER_EPROTO;
    }
    *ret = (struct mu_rref_answer){life, floor, (enum mu_rref_verdict)verdict};
    return 0;
}

static uint8_t *put_name(uint8_t *at, const char *name)
{
    size_t len = strlen(name);

    *at = (uint8_t)len;
    memcpy(at + 1, name, len);
    return at + 1 + len;
}

size_t mu_rref_token_encode(uint8_t out[MU_RREF_TOKEN_MAX], const struct mu_rref_token *token)
{
    uint8_t *at = out;

    *at++ = TOKEN_VERSION;
    at = put_id(put_id(at, token->rref), token->fork);
    mu_put_u64(at, token->owner_life);
    at = put_name(put_name(at + 8, token->owner), token->parent);
    return (size_t)(at - out);
}

static int read_name(struct mu_reader *r, char ret[MU_RPC_WORKER_MAX + 1])
{
    struct mu_span name = mu_read_bytes(r, mu_read_u8(r));

    if (r->failed || !mu_rpc_worker_name_ok(name)) {
        return MUSTER_EPROTO;
    }
    memcpy(ret, name.data, name.len);
    ret[name.len] = '\0';
    return 0;
}

int mu_rref_token_decode(struct mu_span in, struct mu_rref_token *ret)
{
    struct mu_reader r = mu_reader(in);
    struct mu_rref_token token;
    uint8_t version = mu_read_u8(&r);

    token.rref = read_id(&r);
    token.fork = read_id(&r);
    token.owner_life = mu_read_u64(&r);
    if (r.failed || version != TOKEN_VERSION || token.rref.life == 0 || token.rref.number == 0 ||
        token.fork.life == 0 || token.fork.number == 0 || token.owner_life == 0) {
        return MUSTER_EPROTO;
    }
    if (read_name(&r, token.owner) != 0 || read_name(&r, token.parent) != 0 ||
        !mu_reader_done(&r)) {
        return MUSTER_EPROTO;
    }
    *ret = token;
    return 0;
}
