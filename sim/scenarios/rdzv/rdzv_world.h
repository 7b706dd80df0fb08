/*
 * The world of the rendezvous' scenarios: the real server on one host, 3 to 12 nodes on their own
 * hosts, each with the real handler (service/rdzv/rdzv.h), all in one run. In some seeds the only
 * server is that of the first node, which hosts the rendezvous.
 *
 * A node joins, works for a while, and then does something: it goes on, reports that its workers
 * failed, leaves and comes back, closes the run, gives up its handler and opens another, or crashes
 * and comes back under the same name or another one. When its round ends it joins again. What it is
 * told goes to the checker of rounds at once.
 *
 * The story: faults and churn for a while; all heal, and nodes only join; all must come to one
 * round within a stated time; that round must last through a calm; one node is killed, the others
 * must hear of it at once and meet again, and again with the one that comes back; then all leave
 * nothing behind, or one closes the run and all must hear of it.
 *
 * Nodes belong to the test and outlive processes; a struct rdzv_life lives in its process.
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
#define RDZV_RELAYS    2
#define RDZV_SEATS_MAX (4 * RDZV_NODES_MAX) /* those that crashed may not be missed yet */

/* Planted bugs. Where a node has the fault, it is the first one. */
enum rdzv_plant {
    RDZV_PLANT_NOTHING = 0,
    RDZV_PLANT_DEAF,      /* the node does not hear that its round has ended */
    RDZV_PLANT_DIZZY,     /* it takes its earlier rank for the present one */
    RDZV_PLANT_LOOSE,     /* it takes the world for smaller than it is */
    RDZV_PLANT_GHOST,     /* it takes a round for one of the incarnation before */
    RDZV_PLANT_FORGETFUL, /* it does not notice that it was assigned: its join never ends */
    RDZV_PLANT_SULKY,     /* once its round has ended it never joins again */
    RDZV_PLANT_RESTLESS,  /* it gives up rounds for no reason, however calm it is */
    RDZV_PLANT_RECOUNT,   /* a server that counts rounds from the start again when it is
                             restarted */
    RDZV_PLANT_SWAPPED,   /* a server that mixes up two ranks */
    RDZV_PLANT_SHUFFLED,  /* a server that forgets who had which rank */
};

struct rdzv_node;
struct rdzv_life;
struct rdzv_world;

struct rdzv_setup {
    const char *backend;
    enum rdzv_plant plant;
    bool relays;          /* nodes reach the server by relays, most of them */
    bool final;           /* a run that is closed stays closed: nodes go on to another one */
    bool polling;         /* some nodes reach the store in PyTorch's protocol and have to poll */
    uint64_t converge_ns; /* when all must be in one round after healing */
    uint64_t join_factor; /* how many times its timeout a join may take */
    uint64_t answer_ns;   /* how much later than its timeout a join may end */
    uint64_t leave_ns;    /* when a node that leaves must have left */
    uint64_t close_ns;    /* when a close must have succeeded or failed */
    /** Adds the backend's own settings to a node's configuration, each after a comma. */
    void (*configure)(struct rdzv_node *n, char *text, size_t cap);
    /** Returns whether the join in progress may last beyond its time, because the node is spare. */
    bool (*may_wait)(const struct rdzv_node *n);
    /** Adapts what was drawn to what the backend can bear. NULL: nothing. */
    void (*tune)(struct rdzv_world *w);
    uint64_t lost_ns; /* when a round that lost a member to kill -9 must be known to be over */
    /** Returns the server in the process of the rendezvous host, or NULL. */
    struct mu_store_server *(*hosted)(const struct rdzv_life *l);
    /** Called after every step. NULL: nothing to check. */
    void (*check)(struct rdzv_world *w);
    /** Returns whether nodes that did not meet could not, by the rules. NULL: they always can. */
    bool (*excused)(const struct rdzv_world *w);
    /* For backends without a server of ours; all NULL otherwise. */
    const char *endpoint;
    uint32_t endpoints;                  /* so many of the first nodes are named in it, or 0 */
    void (*begin)(struct rdzv_world *w); /* instead of starting a server */
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

/* A node's state, as it sees it itself: the diagram in service/rdzv/rdzv.h. */
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
    uint32_t names; /* how many names it had */
    char name[RDZV_NAME_MAX];
    struct mu_sim_proc *proc;
    struct rdzv_life *life; /* NULL while it is dead */
    bool polls;
    enum rdzv_phase phase;
    bool closing;      /* it has asked for the end of the run */
    bool over;         /* it was told that the run is closed */
    bool shut;         /* it knows it in another way */
    bool done;         /* its handler cannot be used any more */
    uint64_t run;      /* the run that it takes part in */
    bool knows;        /* in the end: it knows that the run is closed */
    uint64_t since_ns; /* since when it waits: joining, leaving, freeing */
    uint64_t close_ns;
    bool spare; /* at the last check of the server */
    uint32_t assignments;
    uint32_t endings;
    uint32_t failures;
};

/* A member of the server's room, as it was seen last. */
struct rdzv_seat {
    const struct mu_room_member *member; /* valid while it is in: it may be gone */
    uint64_t arrival;
    char name[MU_ROOM_NAME_MAX + 1];
    char topology[MU_ROOM_TOPOLOGY_MAX + 1];
    uint32_t rank;
};

struct rdzv_seats {
    struct rdzv_seat all[RDZV_SEATS_MAX];
    uint32_t count;
};

struct rdzv_world {
    struct mu_sim *sim;
    const struct rdzv_setup *setup;
    uint32_t node_count;
    uint32_t nodes_min;
    uint32_t nodes_max;
    uint64_t join_timeout_ms;
    uint64_t last_call_ms;
    uint64_t upscale_delay_ms; /* UINT64_MAX: late nodes never end a round */
    uint32_t restarts_max;
    uint32_t target; /* target that nodes announce; 0: no target */
    bool excludes;   /* nodes that fail too often are not let in for a while */
    uint32_t racks;  /* nodes are in so many, by their topology keys */
    uint32_t beat_s; /* c10d */
    uint64_t work_max_ns;
    uint32_t churn[RDZV_DEEDS]; /* weights */
    bool closes;                /* the run is closed now and then */
    bool disk;                  /* the server keeps its store */
    bool server_dies;           /* the server may be killed */
    bool memory;                /* allocations may fail */
    bool hopeless;              /* nodes need not meet */

    bool hosting; /* the first node hosts, and there is no other server */
    struct mu_sim_proc *relay_procs[RDZV_RELAYS]; /* NULL: there are none */
    struct mu_sim_proc *server_proc;
    struct rdzv_serving *serving;   /* NULL while the server is dead */
    struct mu_store_server *server; /* at the last step; NULL while there is no server */
    uint32_t server_lives;          /* how many lives it had */
    uint64_t seen_news;             /* of the server, at its last check */
    uint64_t seen_members;
    struct rdzv_seats ranked; /* those of the last round that are still members */
    struct rdzv_seats spares;
    uint64_t seats_round;
    uint64_t seats_incarnation;
    struct rdzv_node nodes[RDZV_NODES_MAX];
    struct rounds rounds;

    struct fake_etcd *etcd; /* or this cluster */
    bool strict;            /* no process is suspended, late or short of memory */
    uint64_t split_ns;      /* since when there are two worlds; 0: there are not */

    bool anew; /* most endpoints were started anew at once: the run may have been, too */

    bool healed;      /* nodes only join */
    bool calm;        /* nothing happens, and nothing may happen */
    bool leaving;     /* all nodes leave */
    uint64_t late_ns; /* how late timers may be */
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
    struct mu_rdzv_handler *handler; /* NULL between two handlers */
    bool calling;                    /* a call into the handler is in progress */
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

/** The native backend's settings, for a setup. */
void rdzv_native_configure(struct rdzv_node *n, char *text, size_t cap);

/* rdzv_node.c */
/** The program of a node; its argument is the struct rdzv_node. */
int rdzv_node_start(struct mu_env *env, void *arg);
void rdzv_node_killed(void *arg);
/** Makes the node leave, free its handler and exit. For mu_sim_call(). */
void rdzv_node_go(void *arg);
/** Makes the node close the run. */
void rdzv_node_close(void *arg);
/** The time of a join counts only while the node is not spare. */
void rdzv_node_note_spare(struct rdzv_node *n);
/** For a setup whose backend uses a register: spares may. */
bool rdzv_c10d_may_wait(const struct rdzv_node *n);
/** Fails the run if the node waits for something that should have ended. */
void rdzv_node_check_deadlines(struct rdzv_node *n);

#endif
