/*
 * The world of the store's scenarios: the real server, in memory or on a disk, and five client
 * processes, three on the native wire and two on PyTorch's. A client has one store and several
 * workers that share it: each does one thing after another, so the client has as many operations in
 * progress as workers. What a worker does is its job; a job also keeps the history of all its
 * workers and judges it at the end.
 *
 * The story is always the same: faults for a while; all heal; every worker must make progress; then
 * a calm in which every operation must succeed at once; then all leave nothing behind, and jobs
 * judge.
 *
 * Roles, and what jobs keep, belong to the test and outlive processes. Workers live in their
 * process.
 */
#ifndef MU_SIM_STORE_WORLD_H
#define MU_SIM_STORE_WORLD_H

#include "checkers/once.h"
#include "service/store/store.h"
#include "service/server/server_internal.h"
#include "sim.h"

#define STORE_CLIENTS     5
#define STORE_NATIVES     3 /* the first ones */
#define STORE_WORKERS_MAX 8
#define STORE_JOBS_MAX    3
#define STORE_SERVERS_MAX 4
#define STORE_PORT        29500
#define STORE_FAULTY_NS   (15 * MU_NS_PER_S)

/* Planted bugs. */
enum store_plant {
    STORE_PLANT_NOTHING = 0,
    STORE_PLANT_LYING_DISK,      /* commits are sometimes lost in silence */
    STORE_PLANT_RETRYING_CLIENT, /* repeats an add whose outcome is unknown */
    STORE_PLANT_RETRYING_PUSH,   /* repeats a push whose outcome is unknown */
    STORE_PLANT_RETRYING_POP,    /* repeats a pop whose outcome is unknown */
    STORE_PLANT_IMPATIENT_POP,   /* keeps an element back and works on the next one first */
    STORE_PLANT_FORGETFUL_WATCH, /* watches again after a loss without reading the present keys */
    STORE_PLANT_CARELESS_KEEPER, /* counts a lease as kept once it has asked for it */
    STORE_PLANT_WISHFUL_CLIENT,  /* counts itself as connected while it tries to connect */
    STORE_PLANT_SLOW_SYNC,       /* the server writes five times less often than promised */
    STORE_PLANT_TORN_SET,        /* a multi_set that is several sets */
    STORE_PLANT_HASTY_READS,     /* the mirror of etcd answers before the watch is there */
    /* Of held keys, in the order of their enums. */
    STORE_PLANT_HOLDS, /* and the next ones: enum mu_holds_plant, from 1 on */
    STORE_PLANT_CACHE = STORE_PLANT_HOLDS + 5, /* enum mu_cache_plant, from 1 on */
    STORE_PLANT_HELD_END = STORE_PLANT_CACHE + 6,
    STORE_PLANT_BLIND_TO_ENOMEM, /* counts an operation that found no memory as done */
};

enum store_disk {
    STORE_DISK_DRAWN = 0, /* one of the next two */
    STORE_DISK_NONE,      /* all in memory; the server lives through the run */
    STORE_DISK_ALWAYS,
    STORE_DISK_INTERVAL,
};

struct store_world;
struct store_worker;

/* How an operation ended. */
enum store_verdict {
    STORE_DONE = 1, /* with status 0 */
    STORE_ABSENT,   /* MUSTER_ENOENT */
    STORE_UNKNOWN,  /* it may have taken effect, now or later */
};

/* Where a worker of the same job sits in each life of its client. */
struct store_role {
    struct store_world *world;
    struct store_member *member;
    const struct store_job *job;
    void *state;       /* the job's */
    uint32_t number;   /* number among the roles of this job, from 0 */
    uint32_t answered; /* operations that were answered */
    uint32_t wanted;   /* answers until it counts as making progress */
    const char *doing; /* the operation in progress, or NULL */
};

struct store_job {
    size_t state_size;
    size_t worker_size; /* of the struct that begins with a struct store_worker */
    /** Returns whether clients of this protocol can do the job. NULL: all can. */
    bool (*suits)(enum mu_store_tcp_protocol protocol);
    void (*make)(struct store_world *w, void *state);
    void (*drop)(void *state);
    /** Called after all clients have left. */
    void (*check)(struct store_world *w, void *state);

    /** The worker has thought: submits its op, thinks again, or stops. */
    void (*next)(struct store_worker *worker);
    /** The worker's op ended: thinks, or submits. */
    void (*done)(struct store_worker *worker, enum store_verdict verdict);
    /** A change that the worker's op watches. NULL if it watches nothing. */
    void (*change)(struct store_worker *worker, const struct mu_change *change);
    /** The client has died. */
    void (*killed)(struct store_role *role);
    /** Returns whether the worker has made progress since all faults ended. NULL: two answers. */
    bool (*got_on)(const struct store_role *role);

    /** Called at the end of the calm, while all clients are still there. NULL: nothing to check. */
    void (*calm)(struct store_world *w, void *state);
    /** The server is up, its disk loaded and no client served yet; or it is down. */
    void (*server_up)(struct store_world *w, void *state);
    void (*server_down)(struct store_world *w, void *state);
    /** With `oracle`: a change in the server, at the moment when it is made. */
    void (*noted)(struct store_world *w, void *state, const struct mu_change *change);
};

struct store_setup {
    const struct store_job *jobs[STORE_JOBS_MAX]; /* each gets a role at a native client */
    enum store_disk disk;
    enum store_plant plant;
    bool backed;      /* several servers whose keys are in an etcd cluster */
    bool cached;      /* their reads come from their mirrors */
    bool oracle;      /* the test watches all keys in the server itself */
    bool keep_awake;  /* the server is never paused */
    uint64_t wait_ns; /* after healing, before progress is checked */
    bool gateways;    /* the second and third server are gateways to the first */
    bool deep;        /* the third is one to the second */
    bool tree;        /* the second and the third are relays for the fourth */
    bool reading;     /* most of what linear workers do are reads */
};

struct store_member {
    struct store_world *world;
    uint32_t number;
    enum mu_store_tcp_protocol protocol;
    struct mu_sim_proc *proc;
    bool quiet; /* it was started after all faults had ended */
    uint32_t lives;
    uint32_t role_count;
    struct store_role roles[STORE_WORKERS_MAX];
};

/* Where a server runs. */
struct store_host {
    struct store_world *world;
    uint32_t number;
    struct mu_sim_proc *proc;
    struct store_serving *serving; /* NULL while the server is dead */
};

struct store_world {
    struct mu_sim *sim;
    const struct store_setup *setup;
    enum store_disk disk;
    size_t journal_bytes_high; /* small in some runs, so that requests must wait for the disk */
    uint32_t grace_ms;
    uint32_t sync_interval_ms;
    uint32_t lease_ms; /* of held keys */
    uint64_t think_max_ns;
    enum store_bursts {
        STORE_BURSTS_NONE = 0, /* every worker acts at its own times */
        STORE_BURSTS_CLIENT,   /* the workers of a client act at the same moments */
        STORE_BURSTS_ALL,      /* all workers act at the same moments */
    } bursts;
    bool memory;      /* allocations may fail */
    uint32_t aim_ppm; /* how often a server dies after an answer */

    struct fake_etcd *etcd; /* backed */
    struct store_host hosts[STORE_SERVERS_MAX];
    uint32_t host_count;
    uint32_t incarnation; /* of the server, from 1 */
    struct store_member members[STORE_CLIENTS];
    void *states[STORE_JOBS_MAX];
    struct once *ops;
    uint64_t orders; /* a clock for histories: each event has its own time */

    bool healed;
    uint64_t quiet_ns; /* since then no process sleeps, and nothing is cut off */
    bool calm;
    bool finishing; /* workers do what they still must, and stop */
    bool leaving;
    bool drained; /* the server has left in order, and came back to show its keys */
};

struct store_serving {
    struct store_world *world;
    struct store_host *host;
    struct mu_env *env;
    struct mu_store_server *server;
    struct mu_ks_owner owner; /* of the oracle's watch */
    struct mu_ks_watch watch;
};

/* A client's process. */
struct store_peer {
    struct store_member *member;
    struct mu_env *env;
    struct mu_store *store;
    struct store_worker *workers[STORE_WORKERS_MAX];
    uint32_t working;
    uint32_t starved; /* operations in a row that found no memory */
};

/* The first member of a job's own struct. The job fills `op.request` and `op.timeout_ms`. */
struct store_worker {
    struct store_role *role;
    struct store_peer *peer;
    struct mu_prng prng;
    struct mu_timer timer;
    struct mu_store_op op;
    uint64_t ticket;
    uint64_t submitted_ns;
    uint32_t incarnation; /* of the server, then */
    bool submitted_calm;
    bool busy;
    bool stopped;
};

/** The whole story, for a scenario's `run`. */
void store_world_run(struct mu_sim *sim, const struct store_setup *setup);
/** backed: makes members of the cluster go away and come back, until the faults end. */
void store_world_trouble_etcd(struct mu_sim *sim, void *world);
/** backed: writes to the cluster as another client, until the faults end. */
void store_world_write_elsewhere(struct mu_sim *sim, void *world);
/** Faults for a store's scenario: swarm, disk and memory included. */
struct mu_sim_faults store_world_faults(struct mu_prng *prng);

enum store_news {
    STORE_SERVER_UP = 1,
    STORE_SERVER_DOWN,
    STORE_CALM,
};

/* store_host.c: servers and the hosts they run on */
/** Tells every job that the server is up or down. */
void store_world_tell(struct store_world *w, enum store_news news);
/** The first server has the keys. */
bool store_host_is_gateway(const struct store_host *h);
/** Returns the server of a client: with gateways, one of the native clients bypasses them. */
uint32_t store_member_host(const struct store_member *m);
/** A server's program; `arg` is its host. */
int store_host_start(struct mu_env *env, void *arg);
void store_host_killed(void *arg);
/** Called in the server's process. */
void store_host_drain(void *arg);
/** A client was answered: its server may die within the next two milliseconds. */
void store_host_aim(struct store_world *w, const struct store_member *m);

/** Starts worker->op; the job's `done` follows. */
void store_worker_submit(struct store_worker *worker);
/** The job's `next` follows, within the world's thinking time times `percent`. */
void store_worker_think(struct store_worker *worker, uint32_t percent);
/** The worker stops. When all workers of its client have stopped, the client leaves. */
void store_worker_stop(struct store_worker *worker);
/** Returns whether the server ended the op because its time was up; a local timeout only means
 * silence. */
bool store_worker_told_timeout(const struct store_worker *worker);
/** Draws a positive number that no worker of the run has drawn before. */
int64_t store_worker_unique(struct store_worker *worker);
/** Kills the worker's client and starts it again, on a later step. */
void store_worker_restart_client(struct store_worker *worker);

/** Returns the next tick of the histories' clock. */
uint64_t store_world_order(struct store_world *w);
/** Reads a client's key in the server's keyspace. False if it has no value. */
bool store_world_peek(const struct store_world *w, const char *key, struct mu_span *ret_value);
/** Grows memory of the test by doubling; it may be called from any process. */
void *store_grow(void *array, size_t count, size_t *cap, size_t size);
/** Parses a decimal number; false for anything else. */
bool store_read_number(struct mu_span text, int64_t *ret);

extern const struct store_job store_job_linear;
extern const struct store_job store_job_append;
extern const struct store_job store_job_queue;
extern const struct store_job store_job_watch;
extern const struct store_job store_job_write;
extern const struct store_job store_job_lease;
extern const struct store_job store_job_session;
extern const struct store_job store_job_loss;
extern const struct store_job store_job_reads;

#endif
