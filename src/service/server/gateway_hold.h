/*
 * What a gateway to another server need not ask it: reads of keys that it holds, and calls that its
 * clients share. It stands between gateway_server.c and the session with that server, and drives
 * proto/store/cache.h and adds.h.
 *
 * Which operations may be answered here. Operations of one client take effect in the order in which
 * it sent them. So a read is answered from memory, or shares a call, only if nothing that its
 * client sent before is under way; otherwise it is passed on and keeps its place. In the same way
 * an operation that shares a call, and has not been sent, is passed on by itself as soon as its
 * client sends another.
 *
 * WAITs of PyTorch's clients for one key share a call although the key may be a queue, of which a
 * push ends one WAIT. Then one of them is told, and pops next. The others stay `behind` its client
 * until it has popped, and are then passed on by themselves, to stand in the server's line. Without
 * that they would find the element that is not popped yet.
 */
#ifndef MU_SERVER_GATEWAY_HOLD_H
#define MU_SERVER_GATEWAY_HOLD_H

#include "service/server/gateway.h"

struct mu_gateway_hold;

struct mu_gateway_hold_events {
    /** Sends an operation as a call of its own. */
    void (*pass)(struct mu_gateway_hold *h, struct mu_gateway_op *op);
    /** An operation has ended: its status, reply and errmsg are set. */
    void (*ended)(struct mu_gateway_hold *h, struct mu_gateway_op *op);
    /** Keys are wanted back. False: they can be given back at once. */
    bool (*recalled)(struct mu_gateway_hold *h, struct mu_span payload);
    /** Keys may be lent from now on; or, with a status, never. */
    void (*lends)(struct mu_gateway_hold *h, int status);
    /** With a relay: it is lost, or does not answer. */
    void (*lost)(struct mu_gateway_hold *h);
    void (*turn_ended)(struct mu_gateway_hold *h);
};

/* Whether the gateway may lend what it holds. */
enum mu_gateway_lending {
    MU_GATEWAY_KEEPS = 0, /* nobody has asked */
    MU_GATEWAY_ASKS,      /* the other server does not know yet */
    MU_GATEWAY_LENDS,
};

struct mu_gateway_hold {
    struct mu_env *env;
    struct mu_gateway_hold_events events;
    struct mu_cache cache;
    struct mu_adds adds;
    bool wanted;  /* keys are held, if the server grants it */
    bool refused; /* it does not, or it does not let us lend them */
    enum mu_gateway_lending lending;
    uint64_t era; /* another one after each session: what was lent in one is no part of the next */
    struct mu_store *store; /* NULL: not reached */
    /* Where keys are read and held: `store`, or that of a relay. What changes a key never goes
     * there. NULL: nowhere now. */
    struct mu_store *reader;
    /* Private from here. */
    struct mu_store_op stream; /* by which keys are asked back */
    struct mu_store_op renewal;
    struct mu_store_op lend;
    bool lend_busy;
    bool lend_stale;             /* it is of a session that is over */
    struct mu_store *streams_in; /* the store of that call; NULL: there is none */
    bool renewing;
    mu_mono_t renewal_at; /* when it was sent */
    uint64_t renewal_era;
    mu_mono_t stream_at; /* when to try again; 0: not at all */
    struct mu_timer timer;
    struct mu_timer soon;
    struct mu_list hits;
    struct mu_list behind; /* struct mu_gateway_op */
    mu_mono_t behind_until;
    size_t calls; /* under way, the two above not counted */
};

void mu_gateway_hold_init(struct mu_gateway_hold *h, struct mu_env *env, bool wanted,
                          const struct mu_gateway_hold_events *events);
/** After mu_gateway_hold_leave() and the end of every call and operation. */
void mu_gateway_hold_fini(struct mu_gateway_hold *h);
/** There is a session with the server; keys are read and held by `reader`, which may be the same,
 * or NULL. */
void mu_gateway_hold_open(struct mu_gateway_hold *h, struct mu_store *store,
                          struct mu_store *reader);
/** Keys are read and held there from now on. The calls to the one before end when it is closed, and
 * what waits for them is passed on. */
void mu_gateway_hold_read_from(struct mu_gateway_hold *h, struct mu_store *reader);
/** It is about to be closed. Its calls end by that. */
void mu_gateway_hold_leave(struct mu_gateway_hold *h);
/** Takes an operation. False: it is to be sent as a call of its own, in its place. */
bool mu_gateway_hold_take(struct mu_gateway_hold *h, struct mu_gateway_op *op);
/**
 * A call with this request is about to be sent, now and not later: keys that it changes are not
 * answered for any more. The server relies on that, and does not ask them back.
 */
void mu_gateway_hold_sending(struct mu_gateway_hold *h, const struct mu_store_request *q);
/** Gives up an operation that is here and was not sent. False: it is not. */
bool mu_gateway_hold_cancel(struct mu_gateway_hold *h, struct mu_gateway_op *op);
/** Wants to lend keys: events.lends() follows, unless it is so or was refused already. */
void mu_gateway_hold_lend(struct mu_gateway_hold *h);
/** Whether this key, which is in memory, may be lent now. Who changes it asks for it to be given
 * back first, but not ADDs that are on their way. */
bool mu_gateway_hold_lends(const struct mu_gateway_hold *h, struct mu_span key);
/** Until when what is lent must be over; 0: nothing may be lent. */
mu_mono_t mu_gateway_hold_until(struct mu_gateway_hold *h);
/** Gives back what events.recalled() said, now that nobody holds it through us. */
void mu_gateway_hold_give_back(struct mu_gateway_hold *h, struct mu_span payload);
/** An operation is over: for its client, whichever way it went. */
void mu_gateway_hold_forget(struct mu_gateway_hold *h, struct mu_gateway_op *op);

#endif
