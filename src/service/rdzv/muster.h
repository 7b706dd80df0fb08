/* What the files of the native backend share: see service/rdzv/rdzv.h for what it does. */
#ifndef MU_RDZV_MUSTER_H
#define MU_RDZV_MUSTER_H

#include "codec/rdzv/msg.h"
#include "core/buf.h"
#include "proto/rdzv/member.h"
#include "service/rdzv/rdzv.h"
#include "service/wire/carry.h"
#include "service/wire/rpc_client.h"

enum mu_rdzv_succession_mode {
    MU_RDZV_SUCCESSION_OFF = 0, /* who can bind the endpoint hosts, and nobody else */
    MU_RDZV_SUCCESSION_MAJORITY,
    MU_RDZV_SUCCESSION_ANY,
};

struct mu_rdzv_muster_config {
    uint32_t nodes_min;
    uint32_t nodes_max;
    uint64_t join_timeout_ms;  /* 0: none */
    uint64_t last_call_ms;     /* UINT64_MAX: never over */
    uint64_t upscale_delay_ms; /* UINT64_MAX: never */
    uint32_t beat_ms;
    uint32_t dead_ms;
    uint32_t grace_ms;
    uint32_t restarts_max; /* UINT32_MAX: no bound */
    uint32_t losses_max;   /* with MU_RDZV_JOIN_LOSSES */
    uint64_t losses_ms;
    uint32_t target;
    uint32_t spares;
    uint32_t
        join_flags; /* MU_RDZV_JOIN_*: whether it is told the members, and which bounds it sets */
    enum mu_rdzv_host_wish host;
    uint32_t exclude_after; /* with MU_RDZV_JOIN_EXCLUDE */
    uint64_t exclude_within_ms;
    uint64_t exclude_for_ms;
    enum mu_rdzv_succession_mode succession;
    struct mu_addr relays[MU_CARRY_RELAYS_MAX]; /* `via`: the server is reached by one of these */
    size_t relay_count;
    char topology[MU_RDZV_NAME_LEN_MAX + 1];
    char machine[MU_RDZV_NAME_LEN_MAX + 1]; /* "": as mu_rdzv_machine() */
};

/** The keys of the native backend. MUSTER_EINVAL in words. */
int mu_rdzv_muster_configure(struct mu_rdzv_muster_config *c, const struct mu_rdzv_params *params,
                             struct mu_errmsg *reterr_msg);

/**
 * Writes an id of this machine that stays the same when it is started again: 32 hexadecimal digits
 * of a hash, from which nothing can be read. It is made of what the machine has of this: the uuids
 * of its GPUs, /etc/machine-id; and of its name if it has no GPUs. Containers of one image may
 * share a machine-id: then GPUs tell their hosts apart, and without GPUs their names do.
 */
#define MU_RDZV_MACHINE_LEN 32
void mu_rdzv_machine(struct mu_env *env, char ret[MU_RDZV_MACHINE_LEN + 1]);

/**
 * The URL of a round's store: "tcp://HOST:PORT?prefix=rdzv/RUN/INCARNATION.ROUND". Returns `url`.
 */
#define MU_RDZV_STORE_URL_CAP 2048
char *mu_rdzv_store_url(char *url, const struct mu_addr *endpoint, const char *run_id,
                        uint64_t incarnation, uint64_t round);

/*
 * The members of an assignment as texts with an end. What `*ret_peers` points to is one block, for
 * mu_free(). MUSTER_EPROTO: not `world` of them; MUSTER_ENOMEM.
 */
int mu_rdzv_peers_decode(struct mu_span members, uint32_t world, struct mu_rdzv_peer **ret_peers);

/* --- a node ----------------------------------------------------------------------------------- */

enum mu_rdzv_muster_client {
    MU_RDZV_CLIENT_NONE = 0,
    MU_RDZV_CLIENT_LIVE,
    MU_RDZV_CLIENT_CLOSING,  /* on_client_closed() follows */
    MU_RDZV_CLIENT_RENEWING, /* likewise, and another one after that */
};

/* What the node does on the next turn, because no callback runs inside a call. */
enum {
    MU_RDZV_SOON_RECORD = 1 << 0, /* which node hosts */
    MU_RDZV_SOON_EXPLAIN = 1 << 1,
    MU_RDZV_SOON_FREE = 1 << 2,
};

struct mu_rdzv_succession;

/* An assignment that waits for the list of its members (muster_list.c). */
struct mu_rdzv_listing {
    bool active;
    bool relayed; /* it is asked of the relay, in a session of its own; else in ours */
    bool waiting; /* `waiters` are told after the assignment */
    uint32_t waiters;
    enum mu_rdzv_muster_client client; /* at the relay */
    struct mu_rpc_client rpc;
    uint64_t call; /* 0: none */
    struct mu_buf bytes;
    struct mu_timer timer; /* until the relay is given up */
};

struct mu_rdzv_muster {
    struct mu_rdzv_handler base;
    struct mu_rdzv_muster_config config;
    struct mu_addr endpoint;
    char address[MU_ADDR_HOST_MAX + 16];
    struct mu_store_server *server;  /* if it hosts, or could */
    struct mu_rdzv_succession *heir; /* NULL: succession is off */
    bool reaches;                    /* `endpoint` is where to connect; else nobody hosts now */
    bool elsewhere;                  /* the endpoint is a name, and no address of this machine */
    enum mu_rdzv_muster_client client;
    struct mu_carry_env *carry; /* NULL: no relay stands between */
    mu_mono_t leave_at;         /* when a relay that is silent is left; MU_MONO_NEVER */
    mu_mono_t left_since;       /* what was confirmed last when one was left */
    struct mu_rpc_client rpc;
    struct mu_member member; /* for inputs: mu_rdzv_muster_member() */
    uint64_t call;           /* join; 0: none */
    uint64_t close_call;     /* 0: none */
    uint64_t explain_call;   /* 0: none */
    struct mu_rdzv_listing list;
    struct mu_span lent; /* the notice that is being heard */
    struct mu_buf held;  /* the assignment that is held back, as it came */
    int64_t rank;        /* of the round that it was in last */
    bool freeing;
    bool stays; /* the user has no workers left, and keeps its place in the round */
    unsigned soon;
    mu_mono_t until;    /* what the user was told last: see `counted` */
    mu_mono_t renew_at; /* when to begin another session, if there is none; MU_MONO_NEVER */
    struct mu_errmsg host_text;
    struct mu_timer timer;
};

/** The machine, after it was shown the session as it is now. */
struct mu_member *mu_rdzv_muster_member(struct mu_rdzv_muster *n);
/** Does what the machine wants done, and sets the timer to what comes next. */
void mu_rdzv_muster_run(struct mu_rdzv_muster *n);
/** Makes a call with the run's id. */
int mu_rdzv_muster_ask(struct mu_rdzv_muster *n, struct mu_span method, uint32_t timeout_ms,
                       uint64_t *ret_id);

/** Connects to `endpoint`, which has changed; a session with another server is given up. */
void mu_rdzv_muster_connect(struct mu_rdzv_muster *n);
/** Gives the session up: there is nobody to connect to. `why` is for the user, if it is in a
 * round. */
void mu_rdzv_muster_disconnect(struct mu_rdzv_muster *n, const char *why);
/** Something that had to end before the node can be freed has ended. */
void mu_rdzv_muster_ended(struct mu_rdzv_muster *n);

/* muster_via.c: the relays by which the server is reached. */

/** Makes the environment in which the session is, if there are relays. MUSTER_ENOMEM. */
int mu_rdzv_via_new(struct mu_rdzv_muster *n);
/** The environment of the session. */
struct mu_env *mu_rdzv_via_env(struct mu_rdzv_muster *n);
/** Something was heard, or time has passed: leaves a relay that is silent. Sets n->leave_at. */
void mu_rdzv_via_look(struct mu_rdzv_muster *n);
/** Writes " by way of HOST:PORT", or nothing. Returns `text`. */
const char *mu_rdzv_via_text(const struct mu_rdzv_muster *n, char *text, size_t cap);

/* muster_list.c: the list of members of a large round. */

void mu_rdzv_list_init(struct mu_rdzv_muster *n);
/** Asks for the list of the assignment in n->held, which is told when it is there. */
void mu_rdzv_list_begin(struct mu_rdzv_muster *n);
/** A reply in our own session that may be about it. False: it is not. */
bool mu_rdzv_list_reply(struct mu_rdzv_muster *n, uint64_t id, int status, struct mu_span payload);
/** Something else is to be told: whether the assignment is still due, without the list. */
bool mu_rdzv_list_drop(struct mu_rdzv_muster *n);
/** Ends what is under way. True: nothing is; else mu_rdzv_muster_ended() follows. */
bool mu_rdzv_list_end(struct mu_rdzv_muster *n);
/** muster_events.c: tells an assignment. `members` are those that it does not have itself. */
void mu_rdzv_muster_tell_assigned(struct mu_rdzv_muster *n, struct mu_span payload,
                                  struct mu_span members);

/* muster_explain.c: what a join waits for, in the server's words if it can be asked. */
void mu_rdzv_muster_explain(struct mu_rdzv_muster *n);
void mu_rdzv_muster_explain_reply(struct mu_rdzv_muster *n, int status, struct mu_span words);

/* muster_events.c: what the server says, and what the user is told of it. The user may call
 * anything from inside; the node is there until its `freed`. */
void mu_rdzv_muster_item(void *context, uint64_t id, struct mu_span payload);
void mu_rdzv_muster_reply(void *context, uint64_t id, int status, struct mu_span payload);
void mu_rdzv_muster_act(struct mu_rdzv_muster *n, const struct mu_member_action *action);

#endif
