/*
 * The world of the rendezvous' scenarios: the real server on one host, 3 to 12 nodes on hosts of
 * their own, each with the real handler (service/rdzv/rdzv.h), all in one run. In some seeds there
 * is no server but that of the first node, which hosts.
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
#include "service/rdzv/rdzv.h"
#include "service/server/server_internal.h"
#include "scenarios/scenarios.h"
#include "sim.h"

#define RDZV_NODES_MIN 3
#define RDZV_NODES_MAX 12
#define RDZV_FAULTY_NS (20 * MU_NS_PER_S)
#define RDZV_NAME_MAX  32

/* What may be wrong on purpose. Where it is a node, it is the first one. */
enum rdzv_plant {
    RDZV_PLANT_NOTHING = 0,
    RDZV_PLANT_DEAF,      /* it does not hear that its round has ended */
    RDZV_PLANT_DIZZY,     /* it takes the rank it had before for the one it has */
    RDZV_PLANT_LOOSE,     /* it takes the world for smaller than it is */
    RDZV_PLANT_GHOST,     /* it takes a round for one of the incarnation before */
    RDZV_PLANT_FORGETFUL, /* it does not notice that it was assigned: its join never ends */
    RDZV_PLANT_SULKY,     /* once a round of its has ended it never joins again */
    RDZV_PLANT_RESTLESS,  /* it gives up rounds for no reason, however calm it is */
    RDZV_PLANT_RECOUNT,   /* a server that begins to count anew when it is started */
    RDZV_PLANT_SWAPPED,   /* a server that mixes up two ranks */
};

struct rdzv_node;
struct rdzv_life;
struct rdzv_world;

struct rdzv_setup {
    const char *backend;
    enum rdzv_plant plant;
    bool final;           /* a run that is closed stays closed: nodes go on to another one */
    bool polling;         /* some nodes reach the store in PyTorch's protocol and have to poll */
    uint64_t converge_ns; /* by when all are in one round after healing */
    uint64_t join_factor; /* so many times its timeout a join may take, */
    uint64_t answer_ns;   /* and how much later than its timeout a join may end */
    uint64_t leave_ns;    /* by when whoever leaves has left */
    uint64_t close_ns;    /* by when a close has come about or failed */
    /** Adds what is the backend's own to a node's configuration, each with a comma before it. */
    void (*configure)(struct rdzv_node *n, char *text, size_t cap);
    /** Whether the join under way may last beyond its time: the node is spare. */
    bool (*may_wait)(const struct rdzv_node *n);
    /** Bends what was drawn to what the backend can bear. NULL: nothing. */
    void (*tune)(struct rdzv_world *w);
    uint64_t lost_ns; /* by when a round that lost a member to kill -9 is known to be over */
    /** The server in the process of a node that hosts, or NULL. */
    struct mu_store_server *(*hosted)(const struct rdzv_life *l);
    /** After every step. NULL: nothing to look at. */
    void (*check)(struct rdzv_world *w);
    /* Where there is no server of ours; all NULL otherwise. */
    const char *endpoint;
    void (*begin)(struct rdzv_world *w); /* in the place of starting one */
    void (*heal)(struct rdzv_world *w);
    void (*finish)(struct rdzv_world *w);
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

/* What a node is at, as it sees it itself: the picture in service/rdzv/rdzv.h. */
enum rdzv_phase {
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
    enum rdzv_phase phase;
    bool closing;      /* it has asked for the end of the run */
    bool over;         /* it was told that the run is closed */
    bool shut;         /* or knows it otherwise */
    bool done;         /* its handler is good for nothing any more */
    uint64_t run;      /* that it takes part in */
    bool knows;        /* in the end: it knows that the run is closed */
    uint64_t since_ns; /* that it asked for what it waits for: joining, leaving, freeing */
    uint64_t close_ns;
    bool spare; /* when the server was last looked at */
    uint32_t assignments;
    uint32_t endings;
    uint32_t failures;
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
    uint32_t beat_s; /* c10d */
    uint64_t work_max_ns;
    uint32_t churn[RDZV_DEEDS]; /* weights */
    bool closes;                /* the run is closed now and then */
    bool disk;                  /* the server keeps its store */
    bool server_dies;           /* and may be killed */
    bool memory;                /* allocations may fail */
    bool hopeless;              /* whether they find together is not asked */

    bool hosting; /* the first node hosts, and there is no other server */
    struct mu_sim_proc *server_proc;
    struct rdzv_serving *serving;   /* NULL while the server is dead */
    struct mu_store_server *server; /* as of the last step; NULL while there is none */
    uint32_t server_lives;          /* how many there were */
    uint64_t seen_news;             /* of the server, when it was last looked at */
    struct rdzv_node nodes[RDZV_NODES_MAX];
    struct rounds rounds;

    struct fake_etcd *etcd; /* or that */
    bool strict;            /* nobody is stopped or late, nor wants for memory */
    uint64_t split_ns;      /* since when there have been two worlds; 0: there are not */

    bool healed;      /* nobody does anything but join */
    bool calm;        /* nothing happens, and nothing may */
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

/** Writes ",KEY=SECONDS" for a configuration; returns its length. UINT64_MAX: never. */
size_t rdzv_config_delay(char *text, size_t cap, const char *key, uint64_t ms);

/* RDZV_SCENARIO(identifier, name, summary, faults, bug, setup...) */
#define RDZV_SCENARIO(id, text, words, faults_of, is_planted, ...)                                 \
    static const struct rdzv_setup setup_##id = {__VA_ARGS__};                                     \
    SIM_SCENARIO(id, text, words, faults_of, is_planted, rdzv_world_run(sim, &setup_##id))

/* rdzv_node.c */
/** The program of a node; its argument is the struct rdzv_node. */
int rdzv_node_start(struct mu_env *env, void *arg);
void rdzv_node_killed(void *arg);
/** Has the node leave, free its handler and exit. As mu_sim_call() wants it. */
void rdzv_node_go(void *arg);
/** Has the node close the run. */
void rdzv_node_close(void *arg);
/** The time of a join begins when it is not, or no longer, that of a spare. */
void rdzv_node_note_spare(struct rdzv_node *n);
/** For a setup whose backend stands on a register: spares may. */
bool rdzv_c10d_may_wait(const struct rdzv_node *n);
/** Fails the run if the node waits for something that should have ended. */
void rdzv_node_check_deadlines(struct rdzv_node *n);

#endif
