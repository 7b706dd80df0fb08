#include "proto/p2pd/conn.h"

#include <muster/error.h>

#include "codec/bin/uvarint.h"

#define KEEP_BYTES 4096 /* of an empty buffer */

struct mu_p2pd_conn_config mu_p2pd_conn_config_defaults(void)
{
    return (struct mu_p2pd_conn_config){.msg_len_max = 4u << 20, .out_len_max = 16u << 20};
}

void mu_p2pd_conn_init(struct mu_p2pd_conn *c, const struct mu_p2pd_conn_config *config)
{
    *c = (struct mu_p2pd_conn){.config = *config, .phase = MU_P2PD_ASKING};
    mu_buf_init(&c->in, config->msg_len_max + MU_UVARINT_LEN_MAX);
    mu_buf_init(&c->out, config->out_len_max);
}

void mu_p2pd_conn_fini(struct mu_p2pd_conn *c)
{
    mu_buf_fini(&c->in);
    mu_buf_fini(&c->out);
}

static int poison(struct mu_p2pd_conn *c, int err, const char *text)
{
    c->phase = MU_P2PD_OVER;
    c->err = mu_err(&c->why, err, "%s", text);
    return err;
}

/* --- what comes ------------------------------------------------------------------------------- */

static void drop_told(struct mu_p2pd_conn *c)
{
    if (c->told && !c->asked) {
        c->told = false;
        c->need = 0;
        mu_buf_reset(&c->in);
        mu_buf_trim(&c->in, KEEP_BYTES);
    }
}

/* Takes the bytes of a length, one by one. */
static int take_length(struct mu_p2pd_conn *c, struct mu_span in, size_t *used)
{
    uint64_t len;
    int err = MUSTER_EAGAIN;

    while (err == MUSTER_EAGAIN && *used < in.len) {
        if (mu_buf_append(&c->in, mu_span(in.data + *used, 1)) != 0) {
            return MUSTER_ENOMEM;
        }
        ++*used;
        err = mu_uvarint_get(mu_buf_span(&c->in), &c->head, &len);
    }
    if (err == MUSTER_EAGAIN) {
        return 0;
    }
    if (err != 0) {
        return poison(c, MUSTER_EPROTO, "the length of a message cannot be read");
    }
    if (len > c->config.msg_len_max) {
        return poison(c, MUSTER_ELIMIT, "a message is longer than may be");
    }
    c->need = c->head + (size_t)len;
    return 0;
}

int mu_p2pd_conn_recv(struct mu_p2pd_conn *c, struct mu_span in, size_t *ret_used)
{
    size_t used = 0;
    int err = 0;

    if (c->phase == MU_P2PD_OVER) {
        return c->err;
    }
    *ret_used = 0;
    drop_told(c);
    if (c->phase == MU_P2PD_RAW || c->asked) {
        return 0;
    }
    if (c->need == 0) {
        err = take_length(c, in, &used);
    }
    if (err == 0 && c->need > c->in.len && used < in.len) {
        size_t more = c->need - c->in.len;

        more = more < in.len - used ? more : in.len - used;
        err = mu_buf_append(&c->in, mu_span(in.data + used, more));
        used += err == 0 ? more : 0;
    }
    /* What has been taken is kept even if there was no memory for the rest. */
    *ret_used = used;
    return err;
}

bool mu_p2pd_conn_next_event(struct mu_p2pd_conn *c, struct mu_p2pd_event *ret)
{
    struct mu_p2pd_event e = {0};
    struct mu_span body;
    int err;

    drop_told(c);
    if ((c->phase != MU_P2PD_ASKING && c->phase != MU_P2PD_PERSISTENT) || c->asked ||
        c->need == 0 || c->in.len < c->need) {
        return false;
    }
    e.message = mu_buf_span(&c->in);
    body = mu_span_skip(e.message, c->head);
    if (c->phase == MU_P2PD_ASKING) {
        e.type = MU_P2PD_EV_REQUEST;
        err = mu_p2pd_request_decode(body, &e.request);
    } else {
        e.type = MU_P2PD_EV_CALL;
        err = mu_p2pd_call_decode(body, &e.call);
    }
    if (err != 0) {
        (void)poison(c, err, "a message cannot be read");
        return false;
    }
    c->told = true;
    c->asked = c->phase == MU_P2PD_ASKING;
    *ret = e;
    return true;
}

/* --- answers ---------------------------------------------------------------------------------- */

static bool may_reply(const struct mu_p2pd_conn *c)
{
    return c->phase == MU_P2PD_ASKING && c->asked;
}

/* The request is answered if it could be said so. */
static int replied(struct mu_p2pd_conn *c, int err)
{
    if (err == 0) {
        c->asked = false;
    }
    return err;
}

int mu_p2pd_conn_reply_ok(struct mu_p2pd_conn *c)
{
    return may_reply(c) ? replied(c, mu_p2pd_put_ok(&c->out)) : MUSTER_EINVAL;
}

int mu_p2pd_conn_reply_error(struct mu_p2pd_conn *c, const char *text)
{
    return may_reply(c) ? replied(c, mu_p2pd_put_error(&c->out, text)) : MUSTER_EINVAL;
}

int mu_p2pd_conn_reply_identify(struct mu_p2pd_conn *c, const struct mu_p2pd_peer *self)
{
    return may_reply(c) ? replied(c, mu_p2pd_put_identify(&c->out, self)) : MUSTER_EINVAL;
}

int mu_p2pd_conn_reply_peers(struct mu_p2pd_conn *c, const struct mu_p2pd_peer *peers, size_t count)
{
    return may_reply(c) ? replied(c, mu_p2pd_put_peers(&c->out, peers, count)) : MUSTER_EINVAL;
}

int mu_p2pd_conn_reply_dht(struct mu_p2pd_conn *c, bool first, bool more,
                           enum mu_p2pd_dht_answer answer, const struct mu_p2pd_peer *peer,
                           struct mu_span value)
{
    int err = may_reply(c) ? mu_p2pd_put_dht(&c->out, !first, answer, peer, value) : MUSTER_EINVAL;

    return more ? err : replied(c, err);
}

int mu_p2pd_conn_reply_stream(struct mu_p2pd_conn *c, const struct mu_p2pd_stream_info *info)
{
    int err = may_reply(c) ? replied(c, mu_p2pd_put_stream(&c->out, info)) : MUSTER_EINVAL;

    if (err == 0) {
        drop_told(c);
        c->phase = MU_P2PD_RAW;
    }
    return err;
}

int mu_p2pd_conn_reply_upgrade(struct mu_p2pd_conn *c)
{
    int err = mu_p2pd_conn_reply_ok(c);

    if (err == 0) {
        drop_told(c);
        c->phase = MU_P2PD_PERSISTENT;
    }
    return err;
}

int mu_p2pd_conn_tell(struct mu_p2pd_conn *c, const struct mu_p2pd_call *call)
{
    return c->phase == MU_P2PD_PERSISTENT ? mu_p2pd_call_encode(&c->out, call) : MUSTER_EINVAL;
}

struct mu_span mu_p2pd_conn_output(const struct mu_p2pd_conn *c)
{
    return mu_buf_span(&c->out);
}

void mu_p2pd_conn_sent(struct mu_p2pd_conn *c, size_t len)
{
    mu_buf_consume(&c->out, len);
    mu_buf_trim(&c->out, KEEP_BYTES);
}

const char *mu_p2pd_conn_errmsg(const struct mu_p2pd_conn *c)
{
    return c->why.text;
}
