/*
 * One node of PyTorch's `etcd` rendezvous (EtcdRendezvousHandler), as a machine: the same keys, the
 * same texts, the same times to live, so that both kinds meet in one run. docs/rendezvous-etcd.md
 * describes the protocol.
 *
 *     mu_retcd_init(&m, &config);
 *     mu_retcd_step(&m, &(struct mu_retcd_event){.type = MU_RETCD_JOIN, .now = ...}, &up);
 *     up.flags      what to tell the user
 *     up.cancels    lanes whose request is no longer needed
 *     up.requests   lanes with a request to send: m.lanes[i].request, lent until the lane's next
 *     mu_retcd_deadline(&m)    when to step with MU_RETCD_TIMEOUT
 *
 * A lane is one request at a time: MAIN goes through the rendezvous, RANK keeps our keep-alive key
 * alive, RUN the directory of the run, CLOSE closes the run. Each answer carries the number of its
 * request; an answer that is no longer expected is dropped. A request is cancelled before its lane
 * gets another; whether it was carried out does not matter.
 *
 *   OUT -join-> MAKE (directories) -> CREATE -105-> READ --joinable--> JOIN -> [LAST] -> PEERS
 *                 ^                     |             |                 (CAS)   (call)     |frozen
 *                 |                     v             +--final--> ANNOUNCE -> FREE         v
 *                 +--- REST 1 s <--- COUNTER -> PUBLISH                     (wait)      CONFIRM
 *                      or at once                                                          |
 *   IN a round <-------------------------- KV <------------- FINAL (wait) <----------------+
 *
 * Other nodes cannot see where we differ from PyTorch: after a write whose answer was lost, we look
 * whether the state shows it (confirm); a counter that is gone, or that another node has changed
 * meanwhile, is a reason to try again; a keep-alive key that ended while its round goes on is put
 * again; a run that never had a state can be closed; and a node that finds a member dead lets the
 * others see that a node waits before it removes the state.
 */
#ifndef MU_RDZV_ETCD_H
#define MU_RDZV_ETCD_H

#include "codec/etcd/v2.h"
#include "codec/rdzv/etcd_state.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/prng.h"
#include "core/time.h"

/* PyTorch's constants, in seconds. */
#define MU_RETCD_SETUP_TTL_S    5
#define MU_RETCD_FROZEN_TTL_S   10
#define MU_RETCD_JOINABLE_TTL_S 10
#define MU_RETCD_RANK_TTL_S     10
#define MU_RETCD_RUN_TTL_S      7200

#define MU_RETCD_LOOK_MS 5000u /* how often keep-alives are checked: half their TTL */

#define MU_RETCD_PREFIX_MAX 512

struct mu_retcd_config {
    const char *prefix; /* "/torchelastic/p2p"; copied, as is `run_id` */
    const char *run_id;
    uint32_t min_nodes;
    uint32_t max_nodes;
    uint64_t timeout_ms;   /* time for a join. 600 s */
    uint64_t last_call_ms; /* from when the minimum is there. 30 s */
    uint64_t close_ms;     /* time for a close. 10 s */
    uint64_t watch_ms;     /* how often a watch without events is begun again. 15 s */
    /* How long we announce that we wait before we give up a round whose member is dead: PyTorch's
     * members see only the count, and look at it every 5 s (1.13) or 0.1 s (2.x). 5.5 s */
    uint64_t notice_ms;
    bool notice_lost; /* while in a round, look for keep-alive keys that ended */
    uint64_t seed;    /* for pauses between tries */
};

struct mu_retcd_config mu_retcd_config_defaults(void);

enum mu_retcd_lane_id {
    MU_RETCD_MAIN = 0,
    MU_RETCD_RANK,
    MU_RETCD_RUN,
    MU_RETCD_CLOSE,
    MU_RETCD_LANES,
};

enum mu_retcd_verb {
    MU_RETCD_MKDIR = 1, /* dir=true, prevExist=false */
    MU_RETCD_MAKE,      /* value, prevExist=false */
    MU_RETCD_GET,
    MU_RETCD_LIST,
    MU_RETCD_SWAP,    /* value, prevValue */
    MU_RETCD_COUNT,   /* value, prevIndex, prevExist=true */
    MU_RETCD_PUT,     /* no value */
    MU_RETCD_REFRESH, /* refresh=true, prevExist=true */
    MU_RETCD_DROP,    /* delete, prevValue */
    MU_RETCD_WATCH,   /* waitIndex */
};

struct mu_retcd_request {
    uint64_t number;
    enum mu_retcd_verb verb;
    struct mu_span key; /* the whole path */
    struct mu_span value;
    struct mu_span prev;
    int64_t ttl_s;       /* 0: no TTL, which removes an earlier one */
    int64_t index;       /* COUNT, WATCH */
    bool recursive;      /* WATCH */
    uint64_t timeout_ms; /* WATCH: without an event by then, the answer is MUSTER_ETIMEDOUT. Else
                            0 */
};

struct mu_retcd_lane {
    struct mu_retcd_request request; /* valid while out */
    bool out;                        /* the lane waits for an answer */
    struct mu_buf key;
    struct mu_buf value;
    struct mu_buf prev;
    mu_mono_t wake; /* while not out: when the lane continues */
};

enum mu_retcd_event_type {
    MU_RETCD_JOIN = 1, /* from any phase: into a later round */
    MU_RETCD_LEAVE,
    MU_RETCD_CLOSE_RUN,
    MU_RETCD_ANSWER,
    MU_RETCD_TIMEOUT,
};

struct mu_retcd_event {
    enum mu_retcd_event_type type;
    mu_mono_t now;
    /* ANSWER. Status 0: `reply` is etcd's answer, which may be a refusal. */
    enum mu_retcd_lane_id lane;
    uint64_t number;
    int status;
    const char *text;
    int64_t index; /* etcd's, as of the answer */
    const struct mu_etcd2_reply *reply;
};

enum {
    MU_RETCD_ASSIGNED = 1 << 0,
    MU_RETCD_ENDED = 1 << 1,
    MU_RETCD_WAITING = 1 << 2,
    MU_RETCD_FAILED = 1 << 3, /* the join failed */
    MU_RETCD_LEFT = 1 << 4,
    MU_RETCD_CLOSED_NOW = 1 << 5, /* the run is closed */
    MU_RETCD_CLOSE_FAILED = 1 << 6,
};

enum mu_retcd_end {
    MU_RETCD_END_LOST = 1, /* a member's keep-alive key ended */
    MU_RETCD_END_GONE,     /* another node has given the round up */
    MU_RETCD_END_DROPPED,  /* likewise, and it was our key that had ended */
};

struct mu_retcd_update {
    unsigned flags;
    unsigned requests; /* a bit for each lane */
    unsigned cancels;
    uint64_t version; /* ASSIGNED, ENDED */
    uint32_t rank;
    uint32_t world;
    uint64_t waiting;
    enum mu_retcd_end end;
    uint64_t lost; /* END_LOST: the rank whose key ended, or UINT64_MAX */
    int code;      /* FAILED: MUSTER_ERDZV_*, MUSTER_ENOMEM */
    struct mu_errmsg text;
    int close_code;
    struct mu_errmsg close_text;
    struct mu_errmsg note; /* what was done, for the log; "": nothing */
};

enum mu_retcd_phase {
    MU_RETCD_P_OUT = 0,
    MU_RETCD_P_MAKE_PREFIX,
    MU_RETCD_P_MAKE_RUN,
    MU_RETCD_P_MAKE_RDZV,
    MU_RETCD_P_MAKE_COUNTER,
    MU_RETCD_P_CREATE,
    MU_RETCD_P_COUNTER_GET,
    MU_RETCD_P_COUNTER_SET,
    MU_RETCD_P_VERSION_DIR,
    MU_RETCD_P_PUBLISH,
    MU_RETCD_P_READ,
    MU_RETCD_P_SETTLE, /* setup or frozen: waits until it is something else */
    MU_RETCD_P_REST,
    MU_RETCD_P_JOIN_PAUSE,
    MU_RETCD_P_JOIN_READ,
    MU_RETCD_P_JOIN_SWAP,
    MU_RETCD_P_LAST_PAUSE,
    MU_RETCD_P_LAST_READ,
    MU_RETCD_P_LAST_FREEZE,
    MU_RETCD_P_LAST_KEEP,
    MU_RETCD_P_LAST_WATCH,
    MU_RETCD_P_PEERS_READ,
    MU_RETCD_P_PEERS_WATCH,
    MU_RETCD_P_CONFIRM_PAUSE,
    MU_RETCD_P_CONFIRM_READ,
    MU_RETCD_P_CONFIRM_LEASE,
    MU_RETCD_P_CONFIRM_SWAP,
    MU_RETCD_P_FINAL_READ,
    MU_RETCD_P_FINAL_WATCH,
    MU_RETCD_P_ANNOUNCE_PAUSE,
    MU_RETCD_P_ANNOUNCE_READ,
    MU_RETCD_P_ANNOUNCE_SWAP,
    MU_RETCD_P_FREE_PAUSE,
    MU_RETCD_P_FREE_READ,
    MU_RETCD_P_FREE_LIST,
    MU_RETCD_P_FREE_DROP,
    MU_RETCD_P_FREE_WATCH,
    MU_RETCD_P_KV,
    MU_RETCD_P_IN_READ,
    MU_RETCD_P_IN_LIST,
    MU_RETCD_P_IN_WATCH,
    MU_RETCD_P_IN_REST,
    MU_RETCD_P_BETWEEN, /* its round is over, and no other join was asked for */
    MU_RETCD_PHASES,
};

enum mu_retcd_close_phase {
    MU_RETCD_C_IDLE = 0,
    MU_RETCD_C_READ,
    MU_RETCD_C_SWAP,
    MU_RETCD_C_MKDIR,
    MU_RETCD_C_MAKE,
    MU_RETCD_C_PAUSE,
};

struct mu_retcd {
    struct mu_retcd_config config;
    char *root;   /* PREFIXrun_ID */
    char *prefix; /* without a slash at its end; "": no prefix */
    struct mu_prng prng;
    struct mu_retcd_lane lanes[MU_RETCD_LANES];
    uint64_t numbers;
    mu_mono_t now;
    struct mu_retcd_update *up; /* of the current step */

    enum mu_retcd_phase phase;
    bool constructed;
    mu_mono_t deadline;  /* the join's deadline */
    mu_mono_t last_call; /* end of the last call, if it is ours */
    uint64_t version;    /* the round that we are in or want to join */
    uint64_t counter;
    int64_t counter_index;
    uint32_t rank;
    uint32_t world;
    struct mu_buf text; /* the state as it was last read, and its parsed form */
    struct mu_retcd_state state;
    int64_t index;
    struct mu_buf lease; /* our keep-alive key */
    bool leased;         /* RANK keeps it alive */
    bool lapsed;         /* it had ended, and was put again */
    uint64_t waiting;    /* as last told */
    mu_mono_t drop_at;   /* the round that we wait for is not given up before */
    bool drop_due;       /* it is given up at drop_at */
    mu_mono_t list_at;   /* when to check the keep-alives */
    bool closed;
    bool closed_told;
    struct mu_errmsg why; /* of the last failure of this join */

    enum mu_retcd_close_phase close_phase;
    mu_mono_t close_deadline;
    struct mu_errmsg close_why;
};

/** MUSTER_ENOMEM, MUSTER_EINVAL (a prefix that is too long). */
int mu_retcd_init(struct mu_retcd *m, const struct mu_retcd_config *config);
void mu_retcd_fini(struct mu_retcd *m);
/** Cannot fail: a step that finds no memory is tried again later. */
void mu_retcd_step(struct mu_retcd *m, const struct mu_retcd_event *event,
                   struct mu_retcd_update *ret_update);
mu_mono_t mu_retcd_deadline(const struct mu_retcd *m);
/** Writes what a join under way waits for, as of the state that was read last. Returns whether that
 * is more nodes. */
bool mu_retcd_say_join(const struct mu_retcd *m, struct mu_errmsg *ret);
/** Returns the current phase as one word in lower case. */
const char *mu_retcd_phase_name(const struct mu_retcd *m);
/** Returns whether the node is in a round, or in one that is over. */
bool mu_retcd_is_member(const struct mu_retcd *m);

#endif
