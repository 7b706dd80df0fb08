/*
 * The simulator: the second driver of the services. It implements struct mu_env on virtual time,
 * for as many hosts and processes as a test wants, in one thread, and makes things go wrong as a
 * seed says. docs/simulator.md explains it.
 *
 *     struct mu_sim *sim = mu_sim_new(&(struct mu_sim_config){.seed = 0x1f3a, .faults = faults});
 *     struct mu_sim_host *host = mu_sim_host_new(sim, "a");
 *     struct mu_sim_proc *proc = mu_sim_proc_new(host, &(struct mu_sim_program){
 *         .name = "server", .start = start_server, .arg = &test});
 *     mu_sim_run_for(sim, 10 * MU_NS_PER_S);
 *     mu_sim_heal(sim);
 *     mu_sim_run_for(sim, 60 * MU_NS_PER_S);
 *     if (mu_sim_failure(sim) != NULL) { ... }
 *     mu_sim_free(sim);
 *
 * Determinism. Everything that happens is an action on one heap ordered by (time, sequence). All
 * randomness comes from the seed. Nothing depends on an address, the real time or the environment,
 * so the same seed gives the same run, and with a trace the same bytes.
 *
 * Processes and memory. A process is what its program's `start` sets up on the environment it is
 * given. It can be killed at any step; it then gets no more callbacks. Its memory goes with it: the
 * simulator is linked with sim_alloc.c in place of core/alloc.c, which charges every mu_malloc()
 * made while the code of a process runs to that process, and a kill frees them all. Services need
 * no special way to be discarded, and AddressSanitizer finds any use of a dead process's memory.
 * Two rules follow for tests:
 *  - What must outlive a process (histories, verdicts) is allocated outside of it: before it
 *    starts, or between mu_sim_outside() and mu_sim_inside(). Blocks stay with their first owner,
 *    also when they are grown or freed elsewhere.
 *  - No code outside keeps a pointer into a process past its death; `killed` tells of it. Simulated
 *    code keeps no global state, which would survive a kill.
 *
 * A process that ends by itself (mu_sim_exit()) must have closed and freed everything; anything
 * left fails the run.
 */
#ifndef MU_SIM_H
#define MU_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/disk.h"
#include "core/env.h"
#include "core/prng.h"
#include "core/time.h"
#include "core/trace.h"

struct mu_sim;
struct mu_sim_host;
struct mu_sim_proc;

/* --- what can go wrong ------------------------------------------------------------------------
 *
 * A zero turns a fault off. `_ppm` are chances in a million, `_every_ns` mean times between two
 * faults of a kind, `_max_ns` the longest duration.
 */
struct mu_sim_faults {
    /* Links. */
    uint64_t latency_min_ns; /* each link draws its own base between these, and each segment */
    uint64_t latency_max_ns; /* takes up to half as long again */
    uint32_t spike_ppm;      /* a segment takes up to spike_max_ns longer */
    uint64_t spike_max_ns;
    uint32_t ns_per_byte;     /* the link's speed; 0: no limit */
    size_t capacity_bytes;    /* in flight in one direction of a connection; 0: 256 KiB */
    uint32_t short_take_ppm;  /* mu_env_send() takes less than there is room for */
    uint32_t chunk_ppm;       /* a delivery is split at a random place */
    uint32_t byte_ppm;        /* a delivery is split after its first byte */
    uint32_t dial_refuse_ppm; /* a dial is refused although a process listens */
    uint32_t dial_slow_ppm;   /* a dial takes up to dial_slow_max_ns longer */
    uint64_t dial_slow_max_ns;
    uint64_t reset_every_ns; /* a connection is reset, seen by one end at once, or by both */
    uint64_t cut_every_ns;   /* one direction between two hosts carries nothing for a while */
    uint64_t cut_max_ns;
    uint32_t cut_reset_ppm; /* at its end a connection across it is reset instead of resuming */

    /* Processes and hosts. */
    uint64_t pause_every_ns; /* like SIGSTOP: no callbacks; afterwards time has jumped */
    uint64_t pause_max_ns;
    uint64_t kill_every_ns; /* like SIGKILL; started again within down_max_ns */
    uint64_t down_max_ns;
    uint32_t power_ppm;      /* a kill takes the whole host down: other ends see silence, not a
                                reset */
    uint32_t timer_late_ppm; /* a timer fires up to timer_late_max_ns late */
    uint64_t timer_late_max_ns;
    uint64_t work_max_ns;      /* mu_env_work() takes up to this long */
    uint32_t drift_ppm;        /* monotonic clocks run fast or slow by up to this */
    uint64_t wall_skew_max_ns; /* wall clocks are off by up to this, either way */
    uint64_t wall_jump_every_ns;
    uint32_t alloc_fail_ppm;    /* an allocation of a process fails */
    uint64_t shortage_every_ns; /* all allocations of one process fail for a while */
    uint64_t shortage_max_ns;
    uint32_t disk_fail_ppm; /* a commit fails and nothing of it is kept */
    uint32_t disk_lie_ppm;  /* a commit succeeds and nothing of it is kept: a planted bug, never
                              drawn */
};

/** A quiet world: 50 to 200 microseconds of latency, nothing else. */
struct mu_sim_faults mu_sim_faults_none(void);
/** Swarm testing: draws which faults there are, and how many; each is often absent. */
struct mu_sim_faults mu_sim_faults_draw(struct mu_prng *prng);
/** Adds memory shortages in a few seeds, for programs that must survive them. */
void mu_sim_faults_draw_memory(struct mu_sim_faults *f, struct mu_prng *prng);
/** Both. */
struct mu_sim_faults mu_sim_faults_draw_all(struct mu_prng *prng);

/* --- the world -------------------------------------------------------------------------------- */

struct mu_sim_config {
    uint64_t seed;
    struct mu_sim_faults faults;
    FILE *trace;        /* one line for each step, or NULL */
    uint64_t steps_max; /* a run with more counts as stuck; 0: 20 million */
    uint64_t length_ns; /* how long a scenario of variable length lasts; 0: its own length */
};

/** Returns NULL if there is no memory. */
struct mu_sim *mu_sim_new(const struct mu_sim_config *config);
/** Ends all processes (without any callback) and frees everything. */
void mu_sim_free(struct mu_sim *sim);
/** Returns the true time since the start; hosts' clocks differ from it. */
uint64_t mu_sim_now_ns(const struct mu_sim *sim);
uint64_t mu_sim_steps(const struct mu_sim *sim);
/** Returns a hash over all steps so far: two runs with the same hash did the same. */
uint64_t mu_sim_digest(const struct mu_sim *sim);
/** Returns random numbers for the scenario's own choices. */
struct mu_prng *mu_sim_prng(struct mu_sim *sim);
const struct mu_sim_faults *mu_sim_faults(const struct mu_sim *sim);
/** Returns how long the scenario lasts: as was asked for, or else the fallback. */
uint64_t mu_sim_length_ns(const struct mu_sim *sim, uint64_t fallback);

/** Runs one action and then every checker. False: nothing is left to do, or the run has failed. */
bool mu_sim_step(struct mu_sim *sim);
/** Runs until `ns` of virtual time have passed or the run has failed. */
void mu_sim_run_for(struct mu_sim *sim, uint64_t ns);
/** Runs until `done` returns true, and returns true; false when `ns` have passed, or the run has
 * failed. */
bool mu_sim_run_until(struct mu_sim *sim, uint64_t ns, bool (*done)(void *arg), void *arg);

/** Fails the run: nothing runs any more. The first failure stays. */
void mu_sim_fail(struct mu_sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** A checker could not decide within its limits: the run is neither clean nor failed. */
void mu_sim_undecided(struct mu_sim *sim);
/** Returns the failure, or NULL. */
const char *mu_sim_failure(const struct mu_sim *sim);
/** Has `check` called after every step; it calls mu_sim_fail(). At most 8. */
void mu_sim_add_checker(struct mu_sim *sim, void (*check)(struct mu_sim *sim, void *arg),
                        void *arg);
/** Has `run` called once at that time from the start, outside of every process. MUSTER_ENOMEM. */
int mu_sim_at(struct mu_sim *sim, uint64_t at_ns, void (*run)(struct mu_sim *sim, void *arg),
              void *arg);

/* --- hosts and processes ---------------------------------------------------------------------- */

/** Makes a host that is dialled by this name. Names are unique and shorter than 32 bytes. */
struct mu_sim_host *mu_sim_host_new(struct mu_sim *sim, const char *name);
struct mu_sim_host *mu_sim_host_find(struct mu_sim *sim, const char *name);

#define MU_SIM_KEEP_ALIVE 1u /* faults never kill it */
#define MU_SIM_KEEP_AWAKE 2u /* faults never pause it */

struct mu_sim_program {
    const char *name; /* borrowed for the simulation's life */
    /** Sets the process up, in its memory. A negative code is a failure of the run. */
    int (*start)(struct mu_env *env, void *arg);
    /** The process was killed: its memory is still there, and is gone when this returns. May be
     * NULL. */
    void (*killed)(void *arg);
    void *arg;
    unsigned flags;
};

/** Starts a process, at the present time, on a later step. */
struct mu_sim_proc *mu_sim_proc_new(struct mu_sim_host *host, const struct mu_sim_program *program);
bool mu_sim_proc_alive(const struct mu_sim_proc *proc);
/** Returns whether it has no connection, listener, timer, work, child or disk. */
bool mu_sim_proc_idle(const struct mu_sim_proc *proc);
/** Returns how often it was started. */
uint32_t mu_sim_proc_starts(const struct mu_sim_proc *proc);
/** Returns since when it is awake: the end of its last pause, which may be in the future; 0: no
 * pause so far. */
uint64_t mu_sim_proc_awake_ns(const struct mu_sim_proc *proc);
/** Return the environment of a process, and the process (and its simulator) of an environment. */
struct mu_env *mu_sim_proc_env(struct mu_sim_proc *proc);
struct mu_sim_proc *mu_sim_proc_of(struct mu_env *env);
struct mu_sim *mu_sim_of(struct mu_env *env);
struct mu_sim_host *mu_sim_proc_host(struct mu_sim_proc *proc);
/**
 * Runs `run` at once as the living process, as a signal would: what it allocates belongs to the
 * process. Not from within a callback.
 */
void mu_sim_call(struct mu_sim_proc *proc, void (*run)(void *arg), void *arg);
/** Ends the calling process by itself once its callback has returned. */
void mu_sim_exit(struct mu_env *env);

/** How a process dies. */
enum mu_sim_kill {
    MU_SIM_KILL_PROCESS = 1, /* the host's kernel ends its connections: end of stream or reset */
    MU_SIM_KILL_POWER, /* the host loses power with all its processes: silence, and resets once it
                          is back */
};

/** Kills a process, but not the one whose callback is running. A dead one is left alone. */
void mu_sim_kill(struct mu_sim_proc *proc, enum mu_sim_kill how);
/** Starts a dead process (and its host) again. A living one is left alone. */
void mu_sim_restart(struct mu_sim_proc *proc);
void mu_sim_pause(struct mu_sim_proc *proc, uint64_t ns);
/** What processes see of each other (core/peek.h), from the next start on; NULL, as at first:
 * nothing. */
void mu_sim_set_peek(struct mu_sim *sim, const struct mu_peek *peek);

/* --- faults that a scenario chooses ----------------------------------------------------------- */

/** Cuts one direction between two hosts for that long; what was on its way continues then. */
void mu_sim_cut(struct mu_sim_host *from, struct mu_sim_host *to, uint64_t ns);
/** Resets every connection between the two hosts. */
void mu_sim_reset(struct mu_sim_host *a, struct mu_sim_host *b);
void mu_sim_wall_jump(struct mu_sim_host *host, int64_t ns);
/** The wall clocks of all hosts are right from now on, until they jump again. */
void mu_sim_wall_set(struct mu_sim *sim);
/** From now on the world is quiet: cuts end, dead processes are started again, pauses run out. */
void mu_sim_heal(struct mu_sim *sim);

/* --- memory ----------------------------------------------------------------------------------- */

struct mu_sim_heap;

/** From here on allocations belong to the test, until mu_sim_inside() is given what this
 * returned. */
struct mu_sim_heap *mu_sim_outside(void);
void mu_sim_inside(struct mu_sim_heap *heap);
/**
 * Allocates zeroed memory of the current process for the test's own purposes; it never fails. It is
 * freed with mu_free(), like all memory of a process.
 */
void *mu_sim_calloc(size_t size);
/** While set, no fault makes an allocation fail: the test is at work, not what it tests. */
void mu_sim_spare_memory(bool spared);
/** Returns whether an allocation of the process would fail now, and counts as one. For the
 * environment. */
bool mu_sim_out_of_memory(struct mu_env *env);
/** Returns how much memory the process holds. */
size_t mu_sim_proc_blocks(const struct mu_sim_proc *proc);

/* --- disks --------------------------------------------------------------------------------------
 *
 * A disk belongs to its host and outlives processes. A commit is atomic: a process killed before
 * its work ran has not committed, one killed between `run` and `done` has.
 */

/** Opens the host's disk of that name, and makes it if necessary. MUSTER_EBUSY, MUSTER_ENOMEM. */
int mu_sim_disk_open(struct mu_env *env, const char *name, struct mu_disk **ret_disk,
                     struct mu_errmsg *reterr_msg);
/** Returns the revision of the last commit. */
uint64_t mu_sim_disk_revision(struct mu_sim_host *host, const char *name);

/* --- trace ------------------------------------------------------------------------------------ */

/** Returns whether lines are written, so that no text is formatted in vain. */
bool mu_sim_tracing(const struct mu_sim *sim);
/** Adds a line of the scenario. */
void mu_sim_note(struct mu_sim *sim, const struct mu_sim_proc *proc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** Returns a sink for the machines of a process, which makes their events lines. Valid for the
 * process's life.
 */
struct mu_trace mu_sim_trace(struct mu_env *env);
/** Log lines (muster/log.h) of this run become notes: all while tracing, else only errors. */
void mu_sim_trace_log(struct mu_sim *sim);

/* --- scenarios -------------------------------------------------------------------------------- */

struct mu_sim_scenario {
    const char *name;
    const char *summary;
    /** Chooses the faults of a seed; NULL: mu_sim_faults_draw(). */
    struct mu_sim_faults (*faults)(struct mu_prng *prng);
    /** Sets up, runs, heals and checks the world. Failures are reported with mu_sim_fail(). */
    void (*run)(struct mu_sim *sim);
    /** It has a planted bug, and some seed must find it; left out when all are run. */
    bool planted;
    /** A run takes seconds; left out when all are run. */
    bool slow;
};

/** The scenarios that are built in; the list ends with NULL. */
extern const struct mu_sim_scenario *const mu_sim_scenarios[];
const struct mu_sim_scenario *mu_sim_scenario_find(const char *name);

struct mu_sim_result {
    bool failed;
    bool undecided;
    uint64_t steps;
    uint64_t digest;
    uint64_t virtual_ns;
    char failure[512];
};

/** Runs a scenario once: everything is made from the seed and freed again. `length_ns` as in struct
 * mu_sim_config; if it is set, there is no limit of steps. */
void mu_sim_scenario_run_for(const struct mu_sim_scenario *scenario, uint64_t seed,
                             uint64_t length_ns, FILE *trace, struct mu_sim_result *ret);
/** The same with the scenario's own length. */
void mu_sim_scenario_run(const struct mu_sim_scenario *scenario, uint64_t seed, FILE *trace,
                         struct mu_sim_result *ret);

#endif
