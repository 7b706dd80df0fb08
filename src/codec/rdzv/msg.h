/*
 * The messages between nodes and server of a native rendezvous: the payloads of the methods
 * `muster::Rendezvous.*` of the native wire. docs/native-wire.md specifies the bytes.
 *
 *     join     a stream both ways, as long as the node is a member
 *                  caller   CALL join   ITEM say*  (failed, ...)          END: wants out
 *                  callee   ITEM notice*  (assigned, ended, waiters)      REPLY: is out, and why
 *              The reply's status is 0 (it left), MUSTER_ERDZV_CLOSED, _GRACEFUL (closed while
 *              spare), _RESTARTS (the budget is spent), _LOSSES (too many nodes were lost),
 *              _TIMEOUT (no round in time), _LOST (another came under its name), _EXCLUDED,
 *              MUSTER_EINVAL, MUSTER_ELIMIT; the text says why.
 *     status   one run, with its members, or the list of all
 *     close    the run is over for all nodes
 *     exclude  a node is not let in for a time, or is again
 *
 * Spans that decoders return point into the input. Decoders refuse what they do not understand
 * (MUSTER_EPROTO), except that they ignore bytes after the known fields of a version.
 */
#ifndef MU_RDZV_MSG_H
#define MU_RDZV_MSG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/span.h"

#define MU_RDZV_METHOD_PREFIX  "muster::Rendezvous."
#define MU_RDZV_METHOD_JOIN    "muster::Rendezvous.join"
#define MU_RDZV_METHOD_STATUS  "muster::Rendezvous.status"
#define MU_RDZV_METHOD_EXPLAIN "muster::Rendezvous.explain"
#define MU_RDZV_METHOD_CLOSE   "muster::Rendezvous.close"
#define MU_RDZV_METHOD_EXCLUDE "muster::Rendezvous.exclude"

#define MU_RDZV_NAME_LEN_MAX 255 /* run id, node, topology, address, page, reason: each */
#define MU_RDZV_FAILURES_MAX 16  /* of one node, that are counted */

enum {
    MU_RDZV_JOIN_MEMBERS = 1 << 0, /* it wants the list of members with every assignment */
    MU_RDZV_JOIN_FEW = 1 << 1,     /* if there are at most MU_RDZV_FEW. Both: it takes a longer list
                                      from the store as well; see struct mu_rdzv_list */
    MU_RDZV_JOIN_SPARES = 1 << 2,  /* `spares` is set: a bound */
    MU_RDZV_JOIN_SPENT = 1 << 3,   /* `spent` is set */
    MU_RDZV_JOIN_LOSSES = 1 << 4,  /* `losses_max` and `losses_ms` are set */
    MU_RDZV_JOIN_PAGE = 1 << 5,    /* `page` is set */
    MU_RDZV_JOIN_MACHINE = 1 << 6, /* `machine` is set */
    MU_RDZV_JOIN_HEIR = 1 << 7,    /* `heir` is set: it knows PREPARE and MOVED */
    MU_RDZV_JOIN_TERM = 1 << 8,    /* `term` and `view` are set */
    /* 9 and 10 are not used yet. */
    MU_RDZV_JOIN_EXCLUDE = 1 << 11, /* `exclude_after`, `exclude_within_ms`, `exclude_for_ms` are */
};

/*
 * Sending a list of N members to N nodes takes N squared bytes: that helps in a world of a few
 * nodes, and is the cost of the round in one of thousands, where nobody reads it.
 */
#define MU_RDZV_FEW 128

/*
 * So a longer list is kept once, as keys of the round, for those who ask for it: relays hold these
 * for all nodes behind them. The assignment has only its length and its hash, by which the keys are
 * named, and by which everybody can tell that what they were given is the list.
 */
#define MU_RDZV_LIST_BYTES_MAX ((size_t)64 << 20)
#define MU_RDZV_LIST_PIECE     ((size_t)1 << 20) /* of one key: as much as gateways hold */
#define MU_RDZV_LIST_HASH_LEN  32                /* SHA-256 */
#define MU_RDZV_LIST_KEY_MAX   512
struct mu_rdzv_list {
    uint32_t len; /* 0: there is none */
    uint8_t hash[MU_RDZV_LIST_HASH_LEN];
};

/* The nodes of a round, which vote by their rank. docs/succession.md. */
#define MU_RDZV_ELECTORATES_MAX  8
#define MU_RDZV_ELECTORATE_BYTES (3 * 8 + 2 * 4)
#define MU_RDZV_STEP_MAX         3 /* the last one of enum mu_succession_step */
struct mu_rdzv_electorate {
    uint64_t term;
    uint64_t round;
    uint32_t world; /* at least 1 */
    uint32_t rank;  /* of whose view this is, or who is told; UINT32_MAX: it has no vote */
    uint64_t incarnation;
};

/* What a node was told last: as struct mu_succession_view. */
struct mu_rdzv_view {
    uint64_t term;
    uint64_t round;
    uint32_t step; /* enum mu_succession_step; 0: nothing, as is `count` then */
    uint32_t count;
    struct mu_rdzv_electorate may[MU_RDZV_ELECTORATES_MAX];
    struct mu_rdzv_electorate told; /* world 0: unset */
    uint32_t past_count;
    struct mu_rdzv_electorate past[MU_RDZV_ELECTORATES_MAX];
};

struct mu_rdzv_join {
    struct mu_span run_id;
    struct mu_span node;     /* its name; unique in the run */
    struct mu_span addr;     /* how others reach it; told to them with the members */
    struct mu_span topology; /* "": no topology */
    uint32_t flags;
    uint32_t nodes_min;
    uint32_t nodes_max;
    uint32_t target;           /* how many nodes there will be in total; 0: unknown */
    uint32_t restarts_max;     /* UINT32_MAX: no bound. The first node of a run sets these three */
    uint64_t last_call_ms;     /* UINT64_MAX: it never ends */
    uint64_t upscale_delay_ms; /* UINT64_MAX: late nodes never end a round */
    uint64_t join_timeout_ms;  /* how long it waits for a round, each time; 0: for ever */
    uint64_t incarnation;      /* the run's, if the node was in it before; 0: any */
    uint32_t spares;           /* how many beyond nodes_max may wait; the first node sets it, too */
    uint32_t spent;            /* restarts in `incarnation` that it knows of */
    uint32_t losses_max;       /* how many nodes may be lost; the first node sets these, too */
    uint64_t losses_ms;        /* in this time */
    struct mu_span page;       /* HOST:PORT of its agent's status page, for those who look */
    struct mu_span machine;    /* what stays the same when the node comes back under another name */
    uint32_t exclude_after;    /* failures of a node, at most MU_RDZV_FAILURES_MAX; 0: never */
    uint64_t exclude_within_ms;
    uint64_t exclude_for_ms; /* the first node sets these three, too */
    struct mu_span heir;     /* HOST:PORT where it could host the run; "": nowhere */
    uint64_t term;           /* the highest that it has promised or followed */
    struct mu_rdzv_view view;
};

/* What a member reports when it drops out of a round. It stays a member. */
enum mu_rdzv_say {
    MU_RDZV_SAY_FAILED = 1, /* its workers failed by themselves */
    MU_RDZV_SAY_STOPPED,    /* it has stopped them: it did not know whether it still counted, or it
                               cannot tell their failure from the loss of others */
    MU_RDZV_SAY_DONE,       /* they have all ended well, and it is about to leave */
    MU_RDZV_SAY_READY,      /* no report: it has noted what PREPARE said. See mu_rdzv_ready */
};

/* READY, whole. */
struct mu_rdzv_ready {
    uint64_t round;
    uint64_t term;
    uint32_t step; /* enum mu_succession_step */
};

enum mu_rdzv_notice_kind {
    MU_RDZV_NOTICE_ASSIGNED = 1,
    MU_RDZV_NOTICE_ENDED,
    MU_RDZV_NOTICE_WAITERS,
    MU_RDZV_NOTICE_ENTERED, /* the first notice: it is in, without a rank yet; has `place` */
    MU_RDZV_NOTICE_PREPARE, /* before ASSIGNED: the round that may begin; READY is the answer */
    MU_RDZV_NOTICE_MOVED,   /* the last notice: another node hosts the run */
};

enum mu_rdzv_place { /* as enum mu_room_member_state */
                     MU_RDZV_PLACE_GATHERING = 1,
                     MU_RDZV_PLACE_RUNNING,
                     MU_RDZV_PLACE_WAITING,
                     MU_RDZV_PLACE_SPARE,
};

/* Fields that a kind does not have are zero. */
struct mu_rdzv_notice {
    enum mu_rdzv_notice_kind kind;
    uint64_t incarnation;
    uint64_t round; /* ASSIGNED: the round that begins; ENDED: the one that is over */
    uint32_t rank;
    uint32_t world;
    uint32_t restarts_left; /* UINT32_MAX: no bound */
    uint32_t waiters;
    uint32_t reason; /* enum mu_room_end_reason */
    uint32_t place;  /* ENTERED */
    bool has_who;
    struct mu_span who;
    uint32_t who_rank;
    struct mu_span members; /* ASSIGNED, if asked for: `world` of them, in order of rank; read with
                               mu_rdzv_member_next() */
    struct mu_rdzv_list list; /* ASSIGNED without members, if both were asked for */
    /* PREPARE, whose rank may be UINT32_MAX (it only votes in a base); MOVED, whose line is the
     * host; ENTERED, if other nodes could host the run. term 0: they could not. */
    uint64_t term;
    uint32_t step; /* PREPARE: enum mu_succession_step */
    uint32_t base_count;
    struct mu_rdzv_electorate bases[MU_RDZV_ELECTORATES_MAX]; /* PREPARE; ranks are not told */
    struct mu_span line;   /* who could host it, the first first: see codec/rdzv/heir.h, */
    struct mu_span legacy; /* as this */
};

struct mu_rdzv_member_msg {
    struct mu_span node;
    struct mu_span addr;
    uint32_t rank;      /* UINT32_MAX: no rank */
    uint32_t place;     /* status only; 0 in a notice */
    uint64_t silent_ms; /* status only: time since it was last heard */
};

struct mu_rdzv_run_msg {
    struct mu_span run_id;
    uint32_t state; /* enum mu_room_state */
    uint64_t incarnation;
    uint64_t round; /* the running one, or the next one */
    uint32_t nodes_min;
    uint32_t nodes_max;
    uint32_t restarts_left;
    uint32_t counts[4];  /* by place, less one */
    struct mu_span text; /* one sentence: what it waits for, or how the last round ended */
    uint32_t member_count;
    struct mu_span members;    /* only if one run was asked for */
    struct mu_span exclusions; /* likewise; read with mu_rdzv_exclusion_next() */
};

/* A node that is not let in, or that has failed. */
struct mu_rdzv_exclusion_msg {
    struct mu_span key;    /* its machine, or its name; not empty */
    struct mu_span node;   /* its name, as it was seen last */
    struct mu_span reason; /* in words */
    bool by_hand;
    uint64_t left_ms; /* of the time for which it is not let in; 0: it is let in */
    uint32_t failure_count;
    uint64_t ago_ms[MU_RDZV_FAILURES_MAX]; /* the oldest first */
};

/* What somebody wants done about a node. */
struct mu_rdzv_exclude_msg {
    struct mu_span run_id;
    struct mu_span who; /* its name, its host, or its machine */
    struct mu_span reason;
    uint64_t for_ms; /* 0: it is let in again */
};

int mu_rdzv_join_encode(struct mu_buf *out, const struct mu_rdzv_join *join);
int mu_rdzv_join_decode(struct mu_span in, struct mu_rdzv_join *ret_join);

/* What a member sends on its stream. */
int mu_rdzv_say_encode(struct mu_buf *out, enum mu_rdzv_say what, uint64_t round);
int mu_rdzv_say_decode(struct mu_span in, enum mu_rdzv_say *ret_what, uint64_t *ret_round);

int mu_rdzv_ready_encode(struct mu_buf *out, const struct mu_rdzv_ready *ready);
/** After mu_rdzv_say_decode() has found READY. */
int mu_rdzv_ready_decode(struct mu_span in, struct mu_rdzv_ready *ret_ready);

int mu_rdzv_notice_encode(struct mu_buf *out, const struct mu_rdzv_notice *notice);
int mu_rdzv_notice_decode(struct mu_span in, struct mu_rdzv_notice *ret_notice);

/** Writes the key of a piece of a round's list:
 * "/rdzv/RUN/INCARNATION.ROUND/members.HASH.PIECE". */
struct mu_span mu_rdzv_list_key(char text[MU_RDZV_LIST_KEY_MAX], struct mu_span run_id,
                                uint64_t incarnation, uint64_t round,
                                const struct mu_rdzv_list *list, uint32_t piece);

int mu_rdzv_member_encode(struct mu_buf *out, const struct mu_rdzv_member_msg *member);
/** Takes the next member off `*members`. 0; MUSTER_ENOENT: there are no more; MUSTER_EPROTO. */
int mu_rdzv_member_next(struct mu_span *members, struct mu_rdzv_member_msg *ret_member);

/* status asks for one run ("" for all); the answer is a sequence of runs. explain asks for one run;
 * the answer is only its text. close has the run id. */
int mu_rdzv_run_id_encode(struct mu_buf *out, struct mu_span run_id);
int mu_rdzv_run_id_decode(struct mu_span in, struct mu_span *ret_run_id);
int mu_rdzv_run_encode(struct mu_buf *out, const struct mu_rdzv_run_msg *run);
/** As mu_rdzv_member_next(). */
int mu_rdzv_run_next(struct mu_span *runs, struct mu_rdzv_run_msg *ret_run);

int mu_rdzv_exclusion_encode(struct mu_buf *out, const struct mu_rdzv_exclusion_msg *exclusion);
/** As mu_rdzv_member_next(). */
int mu_rdzv_exclusion_next(struct mu_span *exclusions, struct mu_rdzv_exclusion_msg *ret_exclusion);
int mu_rdzv_exclude_encode(struct mu_buf *out, const struct mu_rdzv_exclude_msg *exclude);
int mu_rdzv_exclude_decode(struct mu_span in, struct mu_rdzv_exclude_msg *ret_exclude);

#endif
