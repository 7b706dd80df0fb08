/*
 * What agent_hang.c (the story and its checks) and agent_hang_seen.c (what workers really do, and
 * what can be seen of it) share.
 */
#ifndef MU_SIM_AGENT_HANG_WORLD_H
#define MU_SIM_AGENT_HANG_WORLD_H

#include "service/agent/agent_internal.h"
#include "service/server/server.h"
#include "sim_child.h"

#define NODES_MAX   4
#define WORKERS_MAX 3
#define RANKS_MAX   (NODES_MAX * WORKERS_MAX)

enum hang_plant {
    HANG_PLANT_NOTHING = 0,
    HANG_PLANT_SLEEPLESS, /* time that the machine slept counts as silence */
    HANG_PLANT_FORGETFUL, /* the first agent forgets that it has told a hang */
    HANG_PLANT_DEAF,      /* agents do not read what the first one tells */
    HANG_PLANT_MUTE,      /* an agent does not say that its workers move again */
    HANG_PLANT_CHILDLESS, /* descendants are overlooked */
    HANG_PLANT_SWAPPED,   /* an agent mixes up two of its workers */
    HANG_PLANT_LIARS,     /* no bug: agents speak of ranks that are not theirs, or nobody's */
};

enum act {
    ACT_COMPUTE,
    ACT_CHILD, /* a descendant computes */
    ACT_WRITE,
    ACT_TRACED,
    ACT_WAIT, /* for others. From here on nothing moves */
    ACT_STUCK,
    ACT_STOPPED,
};

/* What a rank really does. */
struct truth {
    enum act act;
    uint64_t since_ns;
    uint64_t done_ns[ACT_STOPPED + 1]; /* of each kind, before `since_ns` */
};

struct hang_world;

struct mu_peek_process {
    int64_t pid;
    uint32_t rank;
    uint32_t users;
};

struct hang_node {
    struct hang_world *world;
    uint32_t number;
    struct mu_sim_host *host;
    struct mu_sim_proc *proc;
    struct mu_env *env;
    struct mu_agent_service *agent;
    uint32_t told;      /* hangs, since the last change of scene that ended one */
    uint32_t told_over; /* that one was over */
    char missing[64];
    bool hung;    /* by what was told last */
    uint32_t lie; /* LIARS: the rank of its first worker */
    bool done;
    char config[128];
    const char *argv[2];
    const char *inherited[1];
};

struct hang_world {
    struct mu_sim *sim;
    enum hang_plant plant;
    struct hang_node nodes[NODES_MAX];
    uint32_t node_count;
    uint32_t workers;
    uint64_t hang_ms;
    uint64_t interval_ns;
    uint64_t slack_ns; /* how much shorter a silence may be that is told as a hang */
    uint64_t stale_ns; /* how long after its end */
    struct truth truths[RANKS_MAX];
    struct mu_peek_process peeks[2 * RANKS_MAX];
    uint32_t spawned;
    uint64_t still_since_ns; /* all ranks stand still; UINT64_MAX: they do not */
    uint64_t silence_ns;     /* how long the last silence that counts was */
    uint64_t silence_end_ns;
    const struct hang_node *napper; /* the last */
    uint64_t napped_ns;             /* when it woke up, or will */
    bool leaving;
    struct mu_store_server *server;
    struct mu_env *server_env;
    struct mu_sim_proc *server_proc;
    const char *script[3];
};

static inline uint32_t hang_rank_count(const struct hang_world *w)
{
    return w->node_count * w->workers;
}

/** Whether nothing moves. */
bool hang_is_still(enum act act);
/** From `at_ns` on the rank does that, and until then nothing. */
void hang_set_act(struct hang_world *w, uint32_t rank, enum act act, uint64_t at_ns);
/** What an agent sees, of the world that was given last. */
const struct mu_peek *hang_peek(struct hang_world *w);

#endif
