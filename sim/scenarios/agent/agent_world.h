/*
 * Whole agents in the simulator: what agent.c (the world and its story) and agent_node.c (one
 * agent, its workers, and the checks of its events) share.
 */
#ifndef MU_SIM_AGENT_WORLD_H
#define MU_SIM_AGENT_WORLD_H

#include "service/agent/agent_internal.h"
#include "service/server/server.h"
#include "sim_child.h"

#define AGENTS_MAX       4
#define AGENTS_MEETINGS  1024
#define AGENTS_WORDS_MAX 8

enum agents_plant {
    AGENTS_PLANT_NOTHING = 0,
    /* An agent takes its workers for gone when only their descendants are left. */
    AGENTS_PLANT_EARLY,
    /* The server forgets how much of the budget was spent. */
    AGENTS_PLANT_SPENDTHRIFT,
    /* Agents do not notice that there are no answers. */
    AGENTS_PLANT_NUMB
};

struct agents_world;

struct agents_node {
    struct agents_world *world;
    uint32_t number;
    struct mu_sim_proc *proc;
    struct mu_sim_host *host;
    struct agents_life *life;
    uint32_t lives;
    uint64_t entered_ns; /* since when it knows an incarnation of the run; 0: it knows no
                            incarnation */
    uint64_t died_ns;    /* the last time it died; what it left behind goes soon after */

    /* The attempt in progress, or the last one. */
    uint64_t attempt; /* counted over all lives */
    uint32_t spawned;
    uint32_t exited; /* a bit for each local rank */
    bool gone;
    bool ended;
    uint64_t ended_ns;
    const struct agents_meeting *meeting; /* of it */
};

/* In the agent's memory. */
struct agents_life {
    struct agents_node *node;
    struct mu_env *env;
    struct mu_agent_service *agent;
    uint32_t run;
    char run_id[16];
    char config[256];
    char mark[40]; /* ATTEMPT=..., in the environment of its workers */
    const char *argv[2];
    const char *inherited[2];
    const char *zygote[4];
    char death[24]; /* dies=..., of the zygote */
};

struct agents_serving {
    struct agents_world *world;
    struct mu_env *env;
    struct mu_store_server *server;
};

/* A round as workers knew it. */
struct agents_meeting {
    uint32_t run;
    uint64_t incarnation;
    uint64_t round;
    uint64_t served_ns; /* since when its server was there */
    uint32_t restart_count;
    bool started;   /* restart_count holds */
    uint64_t ranks; /* ranks that were given to workers, one bit for each */
    char world[16]; /* WORLD_SIZE of the first of them; "": not known yet */
    char master[64];
    bool failed; /* a worker failed in it, while it was neither over nor being stopped */
};

struct agents_world {
    struct mu_sim *sim;
    enum agents_plant plant;
    struct mu_sim_proc *server_proc;
    struct agents_serving *serving;
    uint64_t served_ns; /* since when */
    struct agents_node nodes[AGENTS_MAX];
    uint32_t node_count;
    uint32_t nodes_min;
    uint32_t workers;
    uint32_t restarts_max;
    uint32_t last_call_ms;
    uint32_t upscale_ms; /* UINT32_MAX: never */
    uint32_t join_timeout_ms;
    uint32_t grace_ms;
    uint32_t work_max_ms;
    uint32_t fail_of_8; /* how many workers fail */
    uint32_t odd_of_8;  /* how many do odd things */
    bool signals;
    bool supervised;
    bool warm; /* agents have standbys */
    bool disk;
    bool memory;
    bool steady;          /* no worker fails by itself, and no restart is charged */
    uint64_t work_end_ns; /* when the work of the one job ends, which ends well; 0: many jobs */
    bool quiet;           /* nothing is lost on the way, so failures are counted */
    bool healed;
    bool leaving;
    uint32_t run;
    struct agents_meeting meetings[AGENTS_MEETINGS];
    uint32_t meeting_count;
    const struct agents_node *worker_of; /* a node whose workers run, of those checked in this
                                            step */
    bool overlap;                        /* other workers run in another round */
    uint64_t overlap_ns;                 /* since when they overlap; 0: they do not */
    uint64_t late_ns;                    /* how long they may overlap */
    char texts[AGENTS_WORDS_MAX][32];
    const char *words[AGENTS_WORDS_MAX + 1];
    uint32_t word_count;
};

/** Draws a number for the scenario. */
uint32_t agents_draw(struct agents_world *w, uint32_t below);
/** Returns the run's incarnation as the agent knows it; 0: not known. */
uint64_t agents_incarnation(const struct agents_life *l);
/** Returns the node of that host. */
struct agents_node *agents_node_of(struct agents_world *w, const struct mu_sim_host *host);
/** Chooses what a worker does, for mu_sim_set_exec(); `arg` is the world. */
int agents_script(void *arg, struct mu_sim_host *host, const struct mu_spawn *what,
                  const char *const **ret_script);
/** The program of an agent; its argument is the struct agents_node. */
int agents_node_start(struct mu_env *env, void *arg);
void agents_node_killed(void *arg);

#endif
