/*
 * A minimal service around the machine of proto/rdzv/succession.h: a node of a run with its hub, a
 * room that forms a round of whoever has joined, and messages that are structs. The simulator's
 * scenario `rdzv-succession` and the exhaustive test drive the same code.
 *
 *     succ_node_start(), _receive(), _tick()     what happens to it; it calls `send` and `failed`
 *     succ_node_lost()                           its host is lost, as far as it can see
 *     succ_node_unreached()                      whom it asks, or joins, is out of reach
 *     succ_node_drop()                           it has lost a client
 *     succ_node_form()                           its room forms a round
 *
 * The struct has no pointers of its own beside the machine's, so that a world of nodes can be
 * copied away and back to its place.
 */
#ifndef MU_SIM_SUCCESSION_NODE_H
#define MU_SIM_SUCCESSION_NODE_H

#include "checkers/succession.h"

enum succ_kind {
    SUCC_JOIN = 1, /* call, view */
    SUCC_JOINED,   /* call, term */
    SUCC_REFUSED,  /* call: it does not host */
    SUCC_PREPARE,  /* call, prepare, legacy */
    SUCC_READY,    /* call, term, round, step */
    SUCC_ASSIGNED, /* call, term, round, rank */
    SUCC_BYE,      /* call: the host hosts no more */
    SUCC_LEAVE,    /* call: the member is gone */
    SUCC_ASK,      /* call, ask */
    SUCC_ANSWER,   /* call, answer, term, about */
    SUCC_HANG_UP,  /* call */
    SUCC_PROBE,    /* term, round */
    SUCC_PROBED,   /* term, round, about */
};

struct succ_msg {
    uint8_t kind;
    uint8_t about; /* a node */
    uint8_t step;
    uint8_t answer;
    uint32_t call;
    uint64_t term;
    uint64_t round;
    uint64_t legacy; /* the round before which it was written; term: that of `prepare` or `ask` */
    uint64_t legacy_term;
    union {
        struct mu_succession_view view;
        struct mu_succession_prepare prepare;
        struct {
            uint64_t term, promised;
            struct mu_succession_view view;
        } ask;
    } u;
};

/* Bugs that can be planted, each in one place; all must be found. */
enum succ_bug {
    SUCC_BUG_NONE = 0,
    SUCC_BUG_PROMISE_TWICE,    /* a promise is forgotten once it is given */
    SUCC_BUG_MINORITY,         /* one promise is enough */
    SUCC_BUG_OLD_TERM,         /* who has promised in vain goes back to its old host */
    SUCC_BUG_PREPARED_IGNORED, /* what a node is bound to, and not told as committed, is not told */
    SUCC_BUG_COMMIT_EARLY,     /* nobody has to be READY */
    SUCC_BUG_HALF,             /* half of an electorate is enough for a successor */
    SUCC_BUG_READY_AFTER_PROMISE, /* the old host is still told READY */
    SUCC_BUG_ROUND_REUSED,        /* a new host counts its rounds from 1 */
    SUCC_BUG_BASES_DROPPED,       /* a new host has one base only */
    SUCC_BUG_OLD_LEGACY,          /* the legacy of the first term is kept */
    SUCC_BUG_NOT_TOLD,            /* members are bound before all of them are told */
    SUCC_BUG_NO_WAY_BACK,         /* a host does not step down for one who has promised more */
    SUCC_BUGS,
};

extern const char *const succ_bug_names[SUCC_BUGS];

struct succ_client {
    bool asks, joined;
    uint32_t ask_call, join_call;
    struct mu_succession_asker asker;
    struct mu_succession_peer peer;
};

struct succ_ask {
    uint32_t call; /* 0: none */
    uint32_t to;
};

struct succ_node {
    struct mu_succession m;
    uint32_t id;
    uint32_t count; /* of nodes in the world */
    enum succ_bug bug;
    bool turned; /* Its line has the nodes that are no endpoints in the opposite order, as if it had
                    not heard of a round that gave them other ranks. */
    struct mu_succession_heir line[SUCC_NODES_MAX];
    struct succ_truth *truth;

    /* What it does as a client. */
    uint32_t calls;     /* a number for each */
    uint32_t join_call; /* 0: none */
    uint32_t join_to;
    struct succ_ask asks[MU_SUCCESSION_CALLS];
    bool bye;                   /* its host said so: it is lost */
    uint64_t round_term, round; /* it was assigned to last; 0: none */

    /* What it does as a host. */
    struct succ_client clients[SUCC_NODES_MAX];
    bool changed;          /* Members came or went since the last round was formed. */
    uint64_t seated_round; /* that was formed last */
    uint32_t world;
    uint8_t seats[SUCC_NODES_MAX];

    void (*send)(void *context, uint32_t from, uint32_t to, const struct succ_msg *msg);
    void (*failed)(void *context, const char *what);
    void *context;
    struct mu_trace trace; /* of the machine */
};

/** The endpoints are the first `endpoints` nodes of `count`; one that is started `anew` has no vote
 * there. The rest of the struct is zero but for the truth, the bug, `turned` and what it calls. */
void succ_node_start(struct succ_node *n, mu_mono_t now, uint32_t id, uint32_t count,
                     uint32_t endpoints, bool anew, uint64_t seed);
void succ_node_receive(struct succ_node *n, mu_mono_t now, uint32_t from,
                       const struct succ_msg *msg);
/** Whether it has a host that it could lose. */
bool succ_node_has_host(const struct succ_node *n);
void succ_node_lost(struct succ_node *n, mu_mono_t now);
/** The number of its ask to that node; MU_SUCCESSION_CALLS: it does not ask there. */
uint32_t succ_node_asks(const struct succ_node *n, uint32_t to);
/** Whom that ask went to is out of reach. */
void succ_node_unreached(struct succ_node *n, mu_mono_t now, uint32_t ask);
/** It has lost a client: its asks and its membership. Harmless if it has none. */
void succ_node_drop(struct succ_node *n, mu_mono_t now, uint32_t client);
/** Whether the room could form another round. */
bool succ_node_may_form(const struct succ_node *n);
void succ_node_form(struct succ_node *n, mu_mono_t now);
void succ_node_tick(struct succ_node *n, mu_mono_t now);
/** The names and addresses of the world's nodes, in order. */
const struct mu_succession_heir *succ_heirs(void);

#endif
