/*
 * The world of the rendezvous' scenarios: the real server on one host, 3 to 12 nodes on hosts of
 * their own, each with the real handler (service/rdzv.h), all in one run.
 *
 * A node joins, works for a while, and then does something: it goes on, says that its workers
 * failed, leaves and comes back, closes the run, gives up its handler and opens another, or crashes
 * and comes back under the same name or another one. When its round ends it joins again. What it is
 * told goes to the checker of rounds at once.
 *
 * The story: faults and churn for a while; all heal, and nobody does anything any more but join;
 * all must come to one round, within a stated time; that round must last through a calm; one node
 * is killed, the others must hear of it at once and find together again, and so with the one that
 * comes back; then all leave without a trace, or one closes the run and all must hear of it.
 *
 * Nodes are the test's and outlive processes; a struct rdzv_life lives in its process.
 */
#ifndef MU_SIM_RDZV_WORLD_H
#define MU_SIM_RDZV_WORLD_H

#include "checkers/rounds.h"
#include "service/rdzv.h"
#include "service/store_server_internal.h"
#include "sim.h"

#define RDZV_NODES_MIN 3
#define RDZV_NODES_MAX 12
#define RDZV_FAULTY_NS (20 * MU_NS_PER_S)
#define RDZV_NAME_MAX  32

/* What may be wrong on purpose. */
enum rdzv_plant {
    RDZV_PLANT_NOTHING = 0,
    RDZV_PLANT_DEAF,      /* a node that does not hear that its round has ended */
    RDZV_PLANT_DIZZY,     /* a node that takes its rank in the round before for the one it has */
    RDZV_PLANT_LOOSE,     /* a node that counts the members that it knows, not those of the round */
    RDZV_PLANT_IMPATIENT, /* a node that joins and forgets about it: its join never ends */
    RDZV_PLANT_GHOST,     /* a node that shows up for an incarnation that is over */
    RDZV_PLANT_SULKY,     /* a node that, once it was dropped, never joins again */
};

struct rdzv_node;
struct rdzv_world;

struct rdzv_setup {
    const char *backend;
    enum rdzv_plant plant;
    bool polling;         /* some nodes reach the store in PyTorch's protocol and have to poll */
    uint64_t converge_ns; /* by when all are in one round after healing */
    uint64_t answer_ns;   /* how much later than its timeout a join may end */
    uint64_t leave_ns;    /* by when whoever leaves has left */
    uint64_t close_ns;    /* by when a close has come about or failed */
    /** Adds what is the backend's own to a node's configuration, each with a comma before it. */
    void (*configure)(struct rdzv_node *n, char *text, size_t cap);
    /** Whether the join under way may last: the node is spare, or late and not let in. */
    bool (*may_wait)(const struct rdzv_node *n);
    /** Bends what was drawn to what the backend can bear. NULL: nothing. */
    void (*tune)(struct rdzv_world *w);
    uint64_t lost_ns; /* by when a round that lost a member to kill -9 is known to be over */
    /** After every step. NULL: nothing to look at. */
    void (*check)(struct rdzv_world *w);
};

/* What a node does once it has worked for a while. */
enum rdzv_deed {
    RDZV_DEED_GO_ON = 0,
    RDZV_DEED_FAIL,
    RDZV_DEED_LEAVE,
    RDZV_DEED_REOPEN,
    RDZV_DEED_CRASH,
    RDZV_DEED_CLOSE,
    RDZV_DEEDS,
};

/* What a node is at, as it sees it itself: the picture in service/rdzv.h. */
enum rdzv_stand {
    RDZV_OUT = 0,
    RDZV_JOINING,
    RDZV_IN,
    RDZV_BETWEEN,
    RDZV_LEAVING,
    RDZV_FREEING,
};

struct rdzv_node {
    struct rdzv_world *world;
    uint32_t number;
    uint32_t names; /* how many it had */
    char name[RDZV_NAME_MAX];
    struct mu_sim_proc *proc;
    struct rdzv_life *life; /* NULL while it is dead */
    bool polls;
    enum rdzv_stand stand;
    bool closing;      /* it has asked for the end of the run */
    bool over;         /* it was told that the run is closed */
    bool done;         /* its handler is good for nothing any more */
    bool knows;        /* in the end: it knows that the run is closed */
    uint64_t since_ns; /* that it asked for what it waits for: joining, leaving, freeing */
    uint64_t close_ns;
    uint32_t assignments;
    uint32_t endings;
};

struct rdzv_world {
    struct mu_sim *sim;
    const struct rdzv_setup *setup;
    uint32_t node_count;
    uint32_t nodes_min;
    uint32_t nodes_max;
    uint64_t join_timeout_ms;
    uint64_t last_call_ms;
    uint64_t upscale_delay_ms; /* UINT64_MAX: late-comers never end a round */
    uint32_t restarts_max;
    uint32_t target; /* that nodes announce; 0: none */
    uint64_t work_max_ns;
    uint32_t churn[RDZV_DEEDS]; /* weights */
    bool closes;                /* the run is closed now and then */
    bool disk;                  /* the server keeps its store */
    bool server_dies;           /* and may be killed */
    bool memory;                /* allocations may fail */
    bool skewed;                /* wall clocks are off by more than a heartbeat bears */

    struct mu_sim_proc *server_proc;
    struct rdzv_serving *serving; /* NULL while the server is dead */
    uint32_t server_lives;
    struct rdzv_node nodes[RDZV_NODES_MAX];
    struct rounds rounds;

    bool healed;      /* nobody does anything but join */
    bool leaving;     /* everybody goes */
    uint64_t late_ns; /* by how much timers may be late */
};

struct rdzv_serving {
    struct rdzv_world *world;
    struct mu_env *env;
    struct mu_store_server *server;
};

/* A node's process. */
struct rdzv_life {
    struct rdzv_node *node;
    struct mu_env *env;
    struct mu_prng prng;
    struct mu_timer timer;
    struct mu_rdzv_handler *handler; /* NULL between two of them */
    bool calling;                    /* a call into the handler is under way */
    bool exiting;                    /* the process ends when its handler is freed */
    uint32_t starved;
};

/** The whole story, for a scenario's `run`. */
void rdzv_world_run(struct mu_sim *sim, const struct rdzv_setup *setup);
struct mu_sim_faults rdzv_world_faults(struct mu_prng *prng);

/* rdzv_node.c */
/** The program of a node; its argument is the struct rdzv_node. */
int rdzv_node_start(struct mu_env *env, void *arg);
void rdzv_node_killed(void *arg);
/** Has the node leave, free its handler and exit. As mu_sim_call() wants it. */
void rdzv_node_go(void *arg);
/** Has the node close the run. */
void rdzv_node_close(void *arg);
/** Fails the run if the node waits for something that should have ended. */
void rdzv_node_check_deadlines(struct rdzv_node *n);

#endif
