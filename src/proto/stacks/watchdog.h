/*
 * The hang watchdog: notices that a run makes no progress, without a call in the script, from what
 * an agent sees of its workers anyway. It is two decision machines. Each agent has a
 * `mu_watchdog`, which turns samples of its workers into pulses (codec/stacks/pulse.h). One agent
 * also has a `mu_watchdog_run`, which gets the pulses of all ranks and says whether the run hangs,
 * and who is missing.
 *
 *     mu_watchdog_init(&w, &config);
 *     mu_watchdog_start(&w, local_rank, rank);              for each worker that is started
 *     every config.interval_ns:
 *         mu_watchdog_sample(&w, now, &node, samples);      one for each local worker
 *         if (mu_watchdog_wants_place(&w, i)) take its stack, for the next sample
 *         mu_watchdog_pulse(&w, i) -> send to who decides
 *     there, with the pulses of all ranks:
 *         mu_watchdog_judge(&run, pulses, count, world, &verdict, missing);
 *
 * A worker:
 *
 *             start          first sample           nothing moved
 *     ENDED --------> FRESH --------------> BUSY -----------------> WAITING
 *       ^                                   ^  ^                     |   |
 *       | exit, from any state              |  +---------------------+   | nothing moved for
 *                                           |     something moved        | quiet_ns
 *                                           |                            v
 *                                           +------------------------- SILENT
 *
 *     any -- a signal stopped it --> STOPPED;   any -- a debugger holds it --> TRACED; and back
 *
 * A run:
 *
 *                     all ranks stand still for hang_ms
 *             MOVES ------------------------------------> HANGS  (MU_WATCHDOG_HANG, once)
 *               ^    mu_watchdog_run_confirm()              |
 *               +-------------------------------------------+
 *                     a rank moves, or starts       (MU_WATCHDOG_RESUMED, once)
 *
 * What counts as a move: CPU time of the worker and its descendants (busy_permille of one core);
 * bytes read or written; output; a change of a key in the store; a mark of progress; another stack
 * than at the last look; more memory than ever before; bytes that move on the disk while a thread
 * waits for it, or on the network while the worker does not wait for other ranks and is not
 * stopped. The network is the machine's, and others may use it: it alone excuses a worker for
 * lend_ns at most, and not one that has stood still for hang_ns, so that others' bytes do not end a
 * hang that was told. So imports, compilation, checkpoints, loading of data and an evaluation on
 * one rank move, and a rank that computes is busy however long it takes.
 *
 * Rules, each with a test of that name:
 *  - no alarm while one rank moves: the others may be waiting for it;
 *  - silences that are alike on all ranks are not a hang until hang_ms have passed;
 *  - a rank that waits for others may burn CPU time: as long as looks show it in the same
 *    collective, only what it reads, writes or prints is a move. A look may fail, but not for
 *    quiet_ns;
 *  - ranks that spin in one place stand still if all that move do so in the same place, at least
 *    one rank is silent, and fewer are silent than spin: so GPU jobs hang, where a wait is a busy
 *    loop. One rank that computes in one place is not enough; and whose descendants compute, as
 *    compilers do, does not spin;
 *  - if all ranks have been where they are for hang_ms, and too many of them compute for that rule,
 *    only others can tell whether the run hangs: it is a suspect (MU_WATCHDOG_SUSPECT). The flight
 *    recorders of ranks that wait in different collectives do, and then it is confirmed;
 *  - whoever waits for requests or for a person is not hung. Servers are left out of the judgement
 *    of the others; a debugger or a prompt on one rank excuses all;
 *  - a late sample is not counted: if the agent was paused, or the machine asleep, for longer than
 *    two intervals, nobody's silence grows. The second of two late samples in a row counts, as two
 *    intervals: an agent that is always late still notices;
 *  - what we made workers do is no evidence: a sample that is disturbed is neither a move nor a
 *    silence;
 *  - a worker that cannot be seen is no evidence: it may compute;
 *  - a rank that is not heard from, or has just been started, is no evidence: no alarm.
 *
 * Who is missing, in a hang: if some ranks wait for others and some do not, those that do not; if
 * some have ended while others wait for them, those that have ended; if some are stuck after others
 * have ended, those that are stuck; else the ranks that are not where most ranks are, but nobody if
 * more than two ranks are all in different places. If all wait for others in the same place,
 * whoever waits for requests instead may be the one. A rank that spins, or that perhaps waits for
 * others (MU_STANCE_PERHAPS), waits as well here: in DDP, all but the one that has run out of data
 * are in a backward pass. Whether it moves is another question, for which that is no answer: there
 * its CPU time counts.
 *
 * A sample costs O(workers), a judgement O(ranks), and in a hang O(ranks log ranks).
 */
#ifndef MU_WATCHDOG_H
#define MU_WATCHDOG_H

#include "codec/stacks/pulse.h"
#include "core/time.h"

#define MU_WATCHDOG_WORKERS_MAX 4096

struct mu_watchdog_config {
    uint64_t interval_ns;   /* between samples. 1 s */
    uint64_t quiet_ns;      /* without a move, after which a worker is SILENT. 5 s */
    uint32_t busy_permille; /* of one core, from which on CPU time is a move. 50 */
    uint64_t io_floor;      /* bytes a second, from which on input and output are a move. 4 KiB */
    uint64_t net_floor;     /* the same of the node's network, and of growing memory. 256 KiB */
    uint64_t hang_ns;       /* a silence that has lasted so long is a hang. 1 min */
    uint64_t lend_ns;       /* for how long, in one silence, the network stands for a move. 5 min */
    bool marked;      /* the script marks its progress: after the first mark of a worker, what else
                         it prints is not a move. false */
    uint32_t workers; /* of this node: 1 to MU_WATCHDOG_WORKERS_MAX */
};

/* What is seen of a worker. All numbers only grow, as long as the process lives; one that shrinks
 * counts as a move. Bytes are those of the worker and all its descendants: a data loader works in
 * processes of its own. */
struct mu_watchdog_sample {
    uint64_t cpu_ns;
    uint64_t family_ns;    /* CPU time of its descendants */
    uint64_t io_bytes;     /* read and written, by calls or from the disk */
    uint64_t memory_bytes; /* resident; may shrink */
    uint64_t output_bytes; /* printed */
    uint64_t store_ops; /* that changed a key: PyTorch's monitors ask all the time. Where workers of
                           all nodes share a store, one worker stands for all */
    uint64_t marks;     /* of progress */
    uint64_t step;      /* the number of the last one, if it has one */
    uint64_t place;     /* a digest of the main thread's stack; 0: nobody looked */
    enum mu_pulse_stance stance; /* by that stack */
    bool on_disk;                /* a thread is in uninterruptible sleep (state D) */
    bool stopped;                /* state T, or frozen with its control group */
    bool traced;                 /* state t, or TracerPid is not 0 */
    bool ended;
    bool unseen; /* it has not ended, as far as we know, and nothing can be seen of it */
};

/* What is seen of the node. */
struct mu_watchdog_node {
    uint64_t disk_bytes;
    uint64_t net_bytes;
};

struct mu_watchdog_worker {
    struct mu_watchdog_sample last;
    uint32_t rank;
    enum mu_pulse_state state;
    enum mu_pulse_stance stance;
    uint64_t place;
    uint64_t still_ns;
    uint64_t fixed_ns;
    uint64_t unseen_ns; /* since somebody looked at its stack */
    uint64_t lent_ns;   /* for how long nothing but the network has moved */
    uint64_t memory_high;
    bool burns; /* it used CPU time before the last sample */
    bool sampled;
};

struct mu_watchdog {
    struct mu_watchdog_config config;
    struct mu_watchdog_worker *workers;
    struct mu_watchdog_node node;
    mu_mono_t sampled_at;
    bool sampled;
    bool late;      /* the last sample was */
    bool disturbed; /* the next sample says nothing */
};

void mu_watchdog_defaults(struct mu_watchdog_config *config);
/** MUSTER_EINVAL: a config without an interval or with a wrong number of workers. MUSTER_ENOMEM. */
int mu_watchdog_init(struct mu_watchdog *w, const struct mu_watchdog_config *config);
void mu_watchdog_fini(struct mu_watchdog *w);

/** A worker was started; what was known of the last one in its place is forgotten. */
void mu_watchdog_start(struct mu_watchdog *w, uint32_t worker, uint32_t rank);
/** We have made the workers do something, such as write the dumps of their flight recorders: what
 * the next sample shows is only where later ones begin. */
void mu_watchdog_disturb(struct mu_watchdog *w);
/** Takes config.workers samples. */
void mu_watchdog_sample(struct mu_watchdog *w, mu_mono_t now, const struct mu_watchdog_node *node,
                        const struct mu_watchdog_sample *samples);
/**
 * Whether to look at the stack of that worker before the next sample. Most are looked at every
 * `quiet_ns`, and one that burns CPU time while it waits for others each time: without a look, that
 * is a move. Where nobody can look, samples have no place, and this stays true.
 */
bool mu_watchdog_wants_place(const struct mu_watchdog *w, uint32_t worker);
struct mu_pulse mu_watchdog_pulse(const struct mu_watchdog *w, uint32_t worker);

/* --- the run ---------------------------------------------------------------------------------- */

enum mu_watchdog_word {
    MU_WATCHDOG_NOTHING = 0,
    MU_WATCHDOG_HANG,    /* the run hangs; this is said once */
    MU_WATCHDOG_HANGING, /* it still does */
    MU_WATCHDOG_RESUMED, /* it moves again, after it was said to hang */
    MU_WATCHDOG_SUSPECT, /* it may hang, or compute: for as long as that is so */
};

struct mu_watchdog_verdict {
    enum mu_watchdog_word word;
    uint64_t still_ms;      /* HANG, HANGING, SUSPECT: for how long, at least, all have stood still.
                               RESUMED: for how long they had when that was last said */
    uint32_t missing_count; /* HANG, HANGING: 0 if all ranks are alike, or each is elsewhere */
    bool split; /* who is missing is a guess: no place has more than half of the ranks, or those
                   that are named wait for requests; or nobody is named: each is elsewhere */
};

struct mu_watchdog_run {
    uint64_t hang_ms; /* 0: never */
    uint64_t still_ms;
    bool hangs;
    bool confirmed;
};

void mu_watchdog_run_init(struct mu_watchdog_run *run, uint64_t hang_ms);
/** The run, which was a suspect for `still_ms`, is known to hang: until a rank moves, it does. */
void mu_watchdog_run_confirm(struct mu_watchdog_run *run, uint64_t still_ms);
/**
 * Judges by the pulses of all ranks that were heard from lately, in any order; `world` is how many
 * ranks there should be. `missing` has room for `count` ranks and gets those that are missing, in
 * the order of the pulses. MUSTER_ENOMEM: nothing changed.
 */
int mu_watchdog_judge(struct mu_watchdog_run *run, const struct mu_pulse *pulses, size_t count,
                      uint32_t world, struct mu_watchdog_verdict *ret_verdict, uint32_t *missing);

#endif
