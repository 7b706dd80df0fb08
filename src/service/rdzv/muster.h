/* What the files of the native backend share: see service/rdzv/rdzv.h for what it does. */
#ifndef MU_RDZV_MUSTER_H
#define MU_RDZV_MUSTER_H

#include "codec/rdzv/msg.h"
#include "core/buf.h"
#include "service/rdzv/rdzv.h"
#include "service/wire/rpc_client.h"

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
    uint32_t target;
    uint32_t spares;
    uint32_t
        join_flags; /* MU_RDZV_JOIN_*: whether it is told the members, and spares are bounded */
    enum mu_rdzv_host_wish host;
    char topology[MU_RDZV_NAME_LEN_MAX + 1];
};

/** The keys of the native backend. MUSTER_EINVAL in words. */
int mu_rdzv_muster_configure(struct mu_rdzv_muster_config *c, const struct mu_rdzv_params *params,
                             struct mu_errmsg *reterr_msg);

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

enum mu_rdzv_muster_state { MU_RDZV_OUT = 0, MU_RDZV_JOINING, MU_RDZV_IN, MU_RDZV_BETWEEN };

enum mu_rdzv_muster_client {
    MU_RDZV_CLIENT_NONE = 0,
    MU_RDZV_CLIENT_LIVE,
    MU_RDZV_CLIENT_CLOSING, /* on_client_closed() follows */
};

/* What is to be done on the next turn, because no callback runs inside a call. */
enum {
    MU_RDZV_SOON_RECORD = 1 << 0, /* who hosts */
    MU_RDZV_SOON_FAIL = 1 << 1,   /* soon_status, soon_text */
    MU_RDZV_SOON_LEFT = 1 << 2,
    MU_RDZV_SOON_HELD = 1 << 3,   /* the assignment that was held back */
    MU_RDZV_SOON_CLOSED = 1 << 4, /* the run is */
    MU_RDZV_SOON_FREE = 1 << 5,
    MU_RDZV_SOON_EXPLAIN = 1 << 6,
};

struct mu_rdzv_muster {
    struct mu_rdzv_handler base;
    struct mu_rdzv_muster_config config;
    struct mu_addr endpoint;
    char address[MU_ADDR_HOST_MAX + 16];
    struct mu_store_server *server; /* if it hosts */
    bool elsewhere;                 /* the endpoint is a name, and no address of this machine */
    enum mu_rdzv_muster_client client;
    bool client_again; /* once it is closed */
    struct mu_rpc_client rpc;
    enum mu_rdzv_muster_state state;
    uint64_t call;         /* join; 0: none */
    uint64_t close_call;   /* 0: none */
    uint64_t explain_call; /* 0: none */
    bool entered;          /* as the server said */
    bool spare;            /* likewise: it waits without a bound, while it is in touch */
    unsigned say; /* enum mu_rdzv_say of `round`, for the server when it can be; 0: nothing */
    bool say_end; /* likewise: we want out */
    bool closing; /* a close of the run was asked for */
    bool closed;  /* the run is */
    bool closed_told;
    bool leaving;
    bool join_extended; /* the join is late, and the server has some more time to say why */
    bool freeing;
    uint64_t incarnation; /* that was last heard of; 0: none yet */
    uint64_t round;       /* that it is in */
    int64_t rank;
    struct mu_buf held; /* an ASSIGNED whose user is not back yet, or that may be an old one */
    uint64_t held_round;
    unsigned soon;
    int soon_status;
    struct mu_errmsg soon_text;
    struct mu_errmsg host_text;
    struct mu_timer timer;
    mu_mono_t join_deadline;
    mu_mono_t leave_deadline;
    mu_mono_t close_deadline;
    mu_mono_t retry_at;
    uint32_t spent; /* restarts of `incarnation` */

    /* muster_fence.c */
    mu_mono_t join_said;  /* when the join that goes on was */
    mu_mono_t counted_on; /* the last moment known at which we were; MU_MONO_NEVER: nobody does */
    uint64_t kept_ns;     /* for so long after that the server waits for us */
    mu_mono_t fence_at;   /* when to look again; MU_MONO_NEVER: there is nothing to look for */
    mu_mono_t cut_off;    /* `counted_on` when our user was last told that it is */
};

/** Sets the timer to what comes first. */
void mu_rdzv_muster_rearm(struct mu_rdzv_muster *n);
/** The time of a join begins, if it has a bound. */
void mu_rdzv_muster_arm_join(struct mu_rdzv_muster *n);
/** Has something done on the next turn. */
void mu_rdzv_muster_soon(struct mu_rdzv_muster *n, unsigned what);
/** Something found no memory: says it again in a moment. */
void mu_rdzv_muster_retry_later(struct mu_rdzv_muster *n);

/*
 * muster_fence.c. The server counts on a member that it has heard of within the time that the
 * two have agreed on (mu_rpc_kept_ms()), and others may go on without it at the end of that time.
 * So a member that is not answered stops what it has begun before that, by its own clock, counted
 * from when it said what was answered last:
 *
 *     0                                         22/30      27/30     30/30 of the time
 *     |--- beats, a sixth apart, unanswered ------|-- stop --|-- none --|--> others may begin
 *                                               cut_off     `by`      the server holds it for lost
 *
 * Who hosts the server sleeps when it sleeps, and is not cut off from it.
 */
/** What was confirmed, or changed: looks whether we are counted on, and when to look again. */
void mu_rdzv_muster_fence(struct mu_rdzv_muster *n);
/** Whether we have not been answered for so long that others may have lost us. */
bool mu_rdzv_muster_in_doubt(struct mu_rdzv_muster *n);
/** Whether what the server has said may be about a time in which it still counted on us. */
bool mu_rdzv_muster_is_cut_off(struct mu_rdzv_muster *n);
/** Our place is gone, or about to be; what was begun there is still to be stopped in time. */
void mu_rdzv_muster_forsaken(struct mu_rdzv_muster *n);
/** Out for good: nothing is fenced any more. */
void mu_rdzv_muster_unfence(struct mu_rdzv_muster *n);

/* muster_explain.c: what a join waits for, in the server's words if it can be asked. */
void mu_rdzv_muster_explain(struct mu_rdzv_muster *n);
void mu_rdzv_muster_explain_reply(struct mu_rdzv_muster *n, int status, const char *text);

/* muster_events.c: what the server says, and what the user is told of it. The user may call
 * anything from inside; the node is there until its `freed`. */
void mu_rdzv_muster_item(void *context, uint64_t id, struct mu_span payload);
void mu_rdzv_muster_reply(void *context, uint64_t id, int status, struct mu_span payload);
/** The server does not know us any more, or cannot be asked. */
void mu_rdzv_muster_dropped(struct mu_rdzv_muster *n, const char *why);
/** The round is over for this node, as far as it knows. */
void mu_rdzv_muster_tell_dropped(struct mu_rdzv_muster *n, const char *why);
void mu_rdzv_muster_tell_assigned(struct mu_rdzv_muster *n, const struct mu_rdzv_notice *notice);
void mu_rdzv_muster_tell_failed(struct mu_rdzv_muster *n, int status, const char *text);
void mu_rdzv_muster_tell_closed(struct mu_rdzv_muster *n, int status, const char *text);
void mu_rdzv_muster_tell_left(struct mu_rdzv_muster *n);
void mu_rdzv_muster_tell_close_failed(struct mu_rdzv_muster *n, int status, const char *text);

#endif
