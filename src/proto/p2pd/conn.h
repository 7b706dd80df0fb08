/*
 * The daemon's end of one connection of a client's: a stream machine. Messages are those of
 * codec/peer/p2pd_msg.h.
 *
 *     ASKING -- upgrade --> PERSISTENT
 *        '----- stream ---> RAW                      any -- a violation --> OVER
 *
 * ASKING: requests come one at a time; the next is not looked at before the last was answered.
 * PERSISTENT: calls come as they are sent, and are told to the client in any order.
 * RAW: the connection is not ours any more. Nothing of what was behind the request has been taken.
 *
 *     mu_p2pd_conn_recv(&c, bytes, &used)       less than all while somebody must act first:
 *     while (mu_p2pd_conn_next_event(&c, &e))   ask for events, answer the request, and go on
 *     mu_p2pd_conn_reply_...(&c, ...)
 *     mu_p2pd_conn_output() mu_p2pd_conn_sent()
 *
 * Deterministic; no time in it. A message over `msg_len_max` is a violation before any memory is
 * taken for it, and memory grows with what has come, not with what is announced.
 */
#ifndef MU_P2PD_CONN_H
#define MU_P2PD_CONN_H

#include <stdbool.h>

#include "codec/peer/p2pd_msg.h"
#include "core/buf.h"
#include "core/err.h"

struct mu_p2pd_conn_config {
    size_t msg_len_max; /* of one message, either way. 4 MiB, as hivemind has it */
    size_t out_len_max; /* of what waits to be sent. 16 MiB: two messages and many small ones */
};

struct mu_p2pd_conn_config mu_p2pd_conn_config_defaults(void);

enum mu_p2pd_phase {
    MU_P2PD_ASKING = 1,
    MU_P2PD_PERSISTENT,
    MU_P2PD_RAW,
    MU_P2PD_OVER,
};

enum mu_p2pd_event_type {
    MU_P2PD_EV_REQUEST = 1, /* to be answered, now or later */
    MU_P2PD_EV_CALL,
};

struct mu_p2pd_event {
    enum mu_p2pd_event_type type;
    struct mu_p2pd_request request; /* lent until it is answered */
    struct mu_p2pd_call call;       /* lent until the next call that is not const, and so is */
    struct mu_span message;         /* CALL: all of it with its length, to be passed on */
};

struct mu_p2pd_conn {
    struct mu_p2pd_conn_config config;
    enum mu_p2pd_phase phase;
    bool asked; /* a request was told, and is not answered */
    bool told;  /* the message in `in` was; it goes with the next call, if it is answered */
    struct mu_buf in;
    size_t need; /* how long the message in `in` is going to be; 0: not known yet */
    size_t head; /* of that, its length's own */
    struct mu_buf out;
    int err;
    struct mu_errmsg why;
};

void mu_p2pd_conn_init(struct mu_p2pd_conn *c, const struct mu_p2pd_conn_config *config);
void mu_p2pd_conn_fini(struct mu_p2pd_conn *c);

/**
 * Takes bytes, of one message at the most: nothing while a message is to be asked for, a request is
 * not answered, or in RAW. MUSTER_EPROTO, MUSTER_ELIMIT: a violation, returned from then on;
 * MUSTER_ENOMEM.
 */
int mu_p2pd_conn_recv(struct mu_p2pd_conn *c, struct mu_span in, size_t *ret_used);
/** False: more must come. A message that cannot be read poisons the connection: c->err. */
bool mu_p2pd_conn_next_event(struct mu_p2pd_conn *c, struct mu_p2pd_event *ret);

/* Answers to the request that was told. Each returns 0; MUSTER_EINVAL: there is none;
 * MUSTER_ELIMIT, MUSTER_ENOMEM: it is still to be answered. */
int mu_p2pd_conn_reply_ok(struct mu_p2pd_conn *c);
int mu_p2pd_conn_reply_error(struct mu_p2pd_conn *c, const char *text);
int mu_p2pd_conn_reply_identify(struct mu_p2pd_conn *c, const struct mu_p2pd_peer *self);
int mu_p2pd_conn_reply_peers(struct mu_p2pd_conn *c, const struct mu_p2pd_peer *peers,
                             size_t count);
/** `more`: others follow, bare, by this function too; the first one is a response. */
int mu_p2pd_conn_reply_dht(struct mu_p2pd_conn *c, bool first, bool more,
                           enum mu_p2pd_dht_answer answer, const struct mu_p2pd_peer *peer,
                           struct mu_span value);
/** The connection is a stream's from then on. */
int mu_p2pd_conn_reply_stream(struct mu_p2pd_conn *c, const struct mu_p2pd_stream_info *info);
/** The connection is persistent from then on. */
int mu_p2pd_conn_reply_upgrade(struct mu_p2pd_conn *c);

/** PERSISTENT: tells the client. MUSTER_EINVAL, MUSTER_ELIMIT, MUSTER_ENOMEM; nothing changed. */
int mu_p2pd_conn_tell(struct mu_p2pd_conn *c, const struct mu_p2pd_call *call);

/** What is to be sent; lent until the next call. */
struct mu_span mu_p2pd_conn_output(const struct mu_p2pd_conn *c);
void mu_p2pd_conn_sent(struct mu_p2pd_conn *c, size_t len);
const char *mu_p2pd_conn_errmsg(const struct mu_p2pd_conn *c);

#endif
