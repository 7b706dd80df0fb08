/*
 * One node of a rendezvous whose state is in a compare-and-set register: a key of a store, or a key
 * of etcd. It is a decision machine that does not know its backend; a driver carries out what it
 * asks for and feeds the answers back.
 *
 *     mu_rdzv_init(&r, &config, &msg);
 *     for each event (a wish, an answer, a watch, mu_rdzv_deadline() reached):
 *         mu_rdzv_step(&r, &event, &update);
 *         DO_READ    get the state, answer with STATE_READ
 *         DO_WRITE   compare-and-set, answer with STATE_WRITTEN or WRITE_LOST
 *         ASSIGNED, WAITING, LOST, CLOSED, ENDED, FAILED, SKEWED, SEEN    tell the user
 *         DEADLINE   arm the one timer at update.deadline
 *
 * What it does:
 *
 *                  JOIN                                    row 5: ASSIGNED
 *       IDLE ─────────────▶ EXITING ─────────▶ JOINING ───────────────────▶ MEMBER
 *       ▲ ▲ ▲                  │    no longer     │                          │ │ │
 *       │ │ │  FAILED          │  a participant   │                     JOIN │ │ │ LEAVE
 *       │ │ └──────────────────┴──────────────────┤        back to EXITING ◀─┘ │ │
 *       │ │                                       │ LEAVE                      │ │
 *       │ │  ENDED (left)                         ▼                            │ │
 *       │ └──────────────────────────────────  LEAVING ◀───────────────────────┼─┘
 *       │                                                                      │
 *       └──────────────────────────────────────────────────────────────────────┘
 *              ENDED (dropped by the others), FAILED (out of touch for too long)
 *
 * EXITING and JOINING share one deadline. CLOSE and LOOK can be asked for at any time and run
 * beside everything else. While MEMBER, the node keeps its heartbeat fresh and looks for changes.
 *
 * With a backend that pushes (config.push, WATCH events) the machine waits for the watch; without,
 * it reads once a second as PyTorch does. A read that a watch asks for is delayed at random, longer
 * with more nodes, so that N nodes do not all read after each of N writes.
 *
 * The driver's duties, in order:
 *     1. One request at a time. Each has a number, which the answer echoes; an answer to any other
 *        number is dropped. A DO_READ or DO_WRITE while another is in progress replaces it: cancel
 *        the old one, or let its answer be dropped.
 *     2. Every request is answered, by BACKEND_FAILED if need be. (The machine also gives up at the
 *        deadline of the operation.)
 *     3. With config.push, a WATCH for every change that a finished STATE_READ may not have seen:
 *        set up the watch before the first read; after a watch was lost, send WATCH once it is
 *        back.
 *     4. When mu_rdzv_deadline() is reached, send TIMEOUT. An early or second one is harmless.
 *
 * A driver need not write the bytes itself if another node writes for all: it may pass on the wish
 * (update.action) and answer with STATE_READ once the wish was considered, whatever the result. A
 * driver that always knows the state need not wait to be asked: STATE_READ with request 0 is news,
 * and is dropped while a request is in progress.
 *
 * Spans of an event are borrowed until step returns. What an update points to is lent until the
 * next step. A step that fails (MUSTER_ENOMEM, MUSTER_EINVAL) has changed nothing; give the event
 * again.
 */
#ifndef MU_RDZV_NODE_H
#define MU_RDZV_NODE_H

#include "core/buf.h"
#include "core/prng.h"
#include "core/trace.h"
#include "proto/rdzv/rules.h"

struct mu_rdzv_config {
    struct mu_rdzv_settings settings; /* its generation follows from the dialect */
    struct mu_rdzv_node node;         /* copied */
    enum mu_rdzv_dialect dialect;     /* used while the state shows no dialect. 2 */
    bool push;                        /* the driver sends WATCH events. false */
    bool turns; /* the driver delays a write until its turn: no back-off. false */
    bool plain; /* states are passed as structs, not as bytes: see below. false */
    uint64_t seed;
    uint32_t poll_ms;        /* how old a state may be, and how long to sleep. 1 s */
    uint32_t first_delay_ms; /* greatest random delay of a first join without push. 300 ms */
    uint32_t backoff_ms_min; /* greatest random delay after a lost write; doubled each time. 2 ms */
    uint32_t backoff_ms_max; /* 1 s */
    uint32_t retry_ms;       /* after a transient failure; doubled up to poll_ms. 100 ms */
    uint32_t spread_us_per_node; /* a read asked for by a watch waits up to this times nodes.
                                    100 us */
    size_t token_bytes_max;      /* a longer token is an error. 64 MiB: c10d's token is the stored
                                    text */
    struct mu_trace trace;
};

/** The defaults named above; settings' min and max, node and seed are the caller's to set. */
struct mu_rdzv_config mu_rdzv_config_defaults(void);

enum mu_rdzv_event_type {
    MU_RDZV_JOIN = 1,       /* The local node wants to join the next round. Not while a join is
                              pending. */
    MU_RDZV_LEAVE,          /* The local node wants to leave, whatever it was doing. */
    MU_RDZV_CLOSE,          /* No node may join this run any more. */
    MU_RDZV_LOOK,           /* Report the present state: SEEN. `anew` */
    MU_RDZV_STATE_READ,     /* `request`, `present`, `bytes` or `state`, `token` */
    MU_RDZV_STATE_WRITTEN,  /* `request`, `token`: our compare-and-set won. */
    MU_RDZV_WRITE_LOST,     /* `request`, `present`, `bytes`, `token`: the state that is there
                              instead. */
    MU_RDZV_BACKEND_FAILED, /* `request`, `status`, `text`, `transient` */
    MU_RDZV_WATCH,          /* The state may have changed; `token` of the new one if known. */
    MU_RDZV_TIMEOUT,        /* mu_rdzv_deadline() has been reached. */
};

struct mu_rdzv_event {
    enum mu_rdzv_event_type type;
    struct mu_now now;
    uint64_t request;
    bool present; /* there is a state; otherwise bytes and token mean nothing */
    struct mu_span bytes;
    const struct mu_rdzv_state *state; /* config.plain: instead of `bytes` */
    struct mu_span token;              /* opaque: kept, given back, compared */
    int status;                        /* MUSTER_ECORRUPT: what is stored is not a state */
    const char *text;                  /* may be NULL */
    bool transient;                    /* it is worth another try until the deadline */
    bool anew;                         /* read the state, however well it is known */
};

enum {
    MU_RDZV_DO_READ = 1 << 0,
    MU_RDZV_DO_WRITE = 1 << 1,
    MU_RDZV_ASSIGNED = 1 << 2,
    MU_RDZV_WAITING = 1 << 3, /* MEMBER: how many nodes wait and have a seat; told when it
                                 changes */
    MU_RDZV_LOST = 1 << 4,    /* MEMBER: members have left or were lost; the round goes on without
                                them */
    MU_RDZV_CLOSED = 1 << 5,  /* the run is closed; told once */
    MU_RDZV_ENDED = 1 << 6,   /* this node is in no round any more */
    MU_RDZV_FAILED = 1 << 7,
    MU_RDZV_SKEWED = 1 << 8, /* a clock is ahead of ours by more than settings.skew_ms_max */
    MU_RDZV_SEEN = 1 << 9,
    MU_RDZV_DEADLINE = 1 << 10, /* always set, so that a driver need not remember */
};

enum mu_rdzv_end {
    MU_RDZV_END_LEFT = 1, /* the node left */
    MU_RDZV_END_DROPPED,  /* the others count it as lost, or the state is gone */
};

/* What failed; several operations can fail at once, for one reason. */
enum {
    MU_RDZV_OP_JOIN = 1 << 0,
    MU_RDZV_OP_LEAVE = 1 << 1,
    MU_RDZV_OP_CLOSE = 1 << 2,
    MU_RDZV_OP_LOOK = 1 << 3,
    MU_RDZV_OP_MEMBER = 1 << 4, /* the membership itself: the backend is out of reach */
};

struct mu_rdzv_update {
    unsigned flags;
    uint64_t request;           /* DO_READ, DO_WRITE */
    enum mu_rdzv_action action; /* DO_WRITE: what the write does */
    struct mu_span bytes;       /* DO_WRITE: the state's pickle; config.plain: no bytes */
    bool has_token;             /* DO_WRITE: false: write only if there is no state */
    struct mu_span token;
    int64_t rank; /* ASSIGNED */
    size_t world;
    int64_t round;
    const struct mu_rdzv_node *const *members; /* ASSIGNED: `world` of them, by rank */
    size_t waiting;                            /* WAITING */
    size_t left;                               /* LOST: participants that are left */
    enum mu_rdzv_end end;                      /* ENDED */
    unsigned failed;                           /* FAILED: MU_RDZV_OP_* */
    int code;                                  /* FAILED: MUSTER_ERDZV_* */
    const char *text;                          /* FAILED: the reason, with names and numbers */
    uint64_t skew_ms;                          /* SKEWED */
    const struct mu_rdzv_node *skewed;         /* SKEWED: whose clock */
    mu_mono_t deadline;                        /* DEADLINE */
};

enum mu_rdzv_phase {
    MU_RDZV_IDLE = 1,
    MU_RDZV_EXITING,
    MU_RDZV_JOINING,
    MU_RDZV_MEMBER,
    MU_RDZV_LEAVING,
};

/* The part of a machine that owns no memory: saved before a step, and restored if it fails. */
struct mu_rdzv_vars {
    struct mu_now now;
    struct mu_prng prng;
    enum mu_rdzv_phase phase;
    bool closing;
    bool looking;
    mu_mono_t op_deadline;    /* EXITING, JOINING, LEAVING */
    mu_mono_t close_deadline; /* closing */
    mu_mono_t look_deadline;  /* looking */
    mu_mono_t beat_deadline;  /* of the keep-alive that is due; NEVER while no keep-alive is due */
    uint64_t request;         /* number of the last request */
    bool reading;
    bool writing;
    mu_mono_t asked_at;
    bool warned; /* the time is up; the answer has a last chance from `warned_at` on */
    mu_mono_t warned_at;
    bool known; /* `state` and `token` are what the backend held at `synced_at` */
    bool stale; /* the state may have changed since; read it again at `read_at` */
    mu_mono_t synced_at;
    mu_mono_t read_at;
    mu_mono_t wake;               /* there is nothing to do before */
    bool held;                    /* `wake` is the end of a back-off: a watch does not shorten it */
    bool backed_off;              /* the next write has had its back-off */
    bool read_again;              /* the next write has had its second look */
    uint32_t losses;              /* writes that were lost in a row */
    uint64_t answer_ns;           /* how long the backend takes to answer; 0: unknown */
    uint64_t pace_ns;             /* how long the round takes for each node to join; 0: unknown */
    mu_mono_t paced_at;           /* when the round had */
    size_t paced_count;           /* this many participants */
    int64_t paced_round;          /* the round that was measured */
    uint32_t failures;            /* requests that failed in a row */
    enum mu_rdzv_dialect dialect; /* the dialect that was found, or UNKNOWN */
    bool has_token;
    uint64_t token_hash;
    uint64_t watch_hash; /* hash of the token of the last WATCH; 0: it had no token */
    int64_t round_top;   /* the highest round ever seen; -1: no round */
    int64_t round;       /* MEMBER: the round, and what was last told of it; else the last one */
    size_t left;
    size_t waiting;
    bool closed_said;
    bool skew_said;
    bool why_said; /* `why` has the text of a join that ran out of time */
    struct mu_errmsg why;
};

/* Counters, for a status page. */
struct mu_rdzv_stats {
    uint64_t reads;
    uint64_t writes;
    uint64_t lost;
    uint64_t failures;
    uint64_t dropped; /* nodes that were dropped as silent */
    uint64_t skewed;  /* states with a clock beyond the bound */
};

struct mu_rdzv {
    struct mu_rdzv_config config;
    struct mu_rdzv_node node; /* its address is owned */
    struct mu_rdzv_vars v;
    struct mu_rdzv_stats stats;
    struct mu_rdzv_state state; /* as last read or written, then sanitised */
    struct mu_rdzv_state old;   /* the state before; a read fills this one, then they swap */
    struct mu_rdzv_state next;  /* what is being written */
    struct mu_buf token;
    struct mu_buf old_token;
    struct mu_buf out;           /* `next` as bytes */
    struct mu_rdzv_state roster; /* members of the round that was assigned last */
    const struct mu_rdzv_node **members;
    size_t member_cap;
};

/** Returns MUSTER_EINVAL, with a message, for invalid settings or an address that is empty or too
 * long; MUSTER_ENOMEM. */
int mu_rdzv_init(struct mu_rdzv *r, const struct mu_rdzv_config *config,
                 struct mu_errmsg *reterr_msg);
void mu_rdzv_fini(struct mu_rdzv *r);

/**
 * Returns 0, and `*ret_update` says what to do. MUSTER_EINVAL: JOIN while a join or leave is
 * pending. MUSTER_ENOMEM. After an error nothing has changed.
 */
int mu_rdzv_step(struct mu_rdzv *r, const struct mu_rdzv_event *event,
                 struct mu_rdzv_update *ret_update);
/** Returns when to send TIMEOUT; MU_MONO_NEVER: not at all. */
mu_mono_t mu_rdzv_deadline(const struct mu_rdzv *r);

/** Returns the last known state, lent until the next step; NULL if no state was read yet. */
const struct mu_rdzv_state *mu_rdzv_state(const struct mu_rdzv *r);
/** Writes what a join under way waits for, as of the last known state. Returns whether that is more
 * nodes. */
bool mu_rdzv_say_join(const struct mu_rdzv *r, struct mu_errmsg *ret);
/** Returns a name such as "JOINING". The text is static. */
const char *mu_rdzv_phase_name(enum mu_rdzv_phase phase);

#endif
