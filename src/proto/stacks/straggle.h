/*
 * Stragglers: who keeps the other ranks of a run waiting. In synchronous training all ranks end a
 * step together, so how long a step took says nothing about who was slow. What differs is how they
 * spend it: all ranks but the slow one wait for it, in a collective. So an agent looks now and then
 * whether each of its workers waits for others or works, and the rank that waits least, by far, is
 * the one that the others wait for. This compares shares of time, no times: clocks of machines need
 * not agree. It is two decision machines. Each agent has a `mu_pacer`, which turns looks into paces
 * (codec/stacks/pace.h), one for each worker and span. One agent also has a `mu_straggle`, which
 * gets the paces of all ranks and names stragglers.
 *
 *     mu_pacer_init(&p, &config);
 *     mu_pacer_start(&p, i, rank);                     for each worker that is started
 *     after mu_pacer_gap_ns(&p), again and again:
 *         mu_pacer_look(&p, now, looks);               one for each local worker
 *         if (mu_pacer_take(&p, now, paces)) -> send to who decides
 *     there, once a span:
 *         mu_straggle_begin(&s);
 *         mu_straggle_add(&s, node, name, &pace);      of all ranks that were heard from
 *         mu_straggle_judge(&s);                       O(ranks log ranks)
 *         while (mu_straggle_next(&s, &change)) ...    who is named, and for whom it is over
 *         mu_straggle_list(&s, &list); mu_straggle_rank(&s, rank);
 *
 * A rank is *behind* in a span if it waits at most half as long as the others do (the median of
 * them), and less by `least_permille` of the time. It is a straggler if over the last six, twelve
 * or thirty spans, whichever shows it first,
 *  - it is behind in sum, by more than chance explains: with many ranks, some look late by chance;
 *  - it is behind in 80 % of the spans in which the others waited at all, which are four at least;
 *  - the run went on all the while: it made five steps, by marks, or else by waits that ended;
 *  - few are like it: one rank of sixteen. In a pipeline, whose stages differ by design, every rank
 *    of the slowest stage is behind, and none is named. If half the
 *    ranks of one node are, the node is named; likewise only one of sixteen may be.
 * It is over when, in the last six spans, it did not keep the others waiting for half of that time.
 *
 *               behind, as above                 (MU_STRAGGLE_NAMED, once)
 *     NOBODY -----------------------> STRAGGLER
 *            <----------------------            (MU_STRAGGLE_OVER, once)
 *               kept_permille below half of least_permille, or not seen any more
 *
 * Rules, each with a test of that name:
 *  - a warm-up is not judged: the first three spans in which the run made steps;
 *  - a long wait is not a slow rank: an evaluation or a checkpoint on one rank names nobody. Of one
 *    wait only five looks count, and a span in which most ranks have too few is left out: so it
 *    weighs no more than one step;
 *  - ranks that are slow in turns are nobody's fault: none of them is behind often enough;
 *  - looks come at uneven times, so that they cannot fall into step with the training;
 *  - a late look is not counted, nor is the rest of its span: if the agent was paused, or the
 *    machine asleep, the workers may have been as well;
 *  - a rank that is not heard from or cannot be looked at is no evidence.
 */
#ifndef MU_STRAGGLE_H
#define MU_STRAGGLE_H

#include "codec/stacks/pace.h"
#include "codec/stacks/report.h"
#include "core/time.h"

/* --- an agent --------------------------------------------------------------------------------- */

struct mu_pacer_config {
    uint64_t interval_ns; /* between looks, on average. 1 s */
    uint64_t span_ns;     /* 10 s */
    uint32_t workers;     /* 1 to MU_PACES_MAX */
};

enum mu_pacer_stance {
    MU_PACER_UNSEEN = 0, /* nobody could look, or what it does is not known */
    MU_PACER_WORKS,
    MU_PACER_WAITS, /* for other ranks */
};

/* What is seen of a worker. The numbers only grow; one that shrinks is another process's. */
struct mu_pacer_look {
    enum mu_pacer_stance stance;
    uint64_t delay_ns; /* for which it could have run, and others had the CPU */
    uint64_t marks;
};

/* Whether a thread waits for other ranks, by its innermost frame. */
enum mu_pacer_wait {
    MU_PACER_WAIT_NONE = 0, /* it works: it computes, loads data, sleeps, waits for a disk */
    MU_PACER_WAIT,          /* it does: a collective of PyTorch, a store; also its GPU, if it waits
                               for that by name, whatever the GPU waits for */
    MU_PACER_WAIT_AT_LOCK,  /* if it sleeps at a lock: a backward pass, DDP, FSDP, whose collectives
                               run in other threads */
};

enum mu_pacer_wait mu_pacer_wait_of(const struct mu_stacks_frame *innermost);

struct mu_pacer_worker {
    struct mu_pace pace; /* of the span so far */
    struct mu_pacer_look last;
    uint64_t delay_ns; /* in the span so far */
    uint64_t waits;    /* looks at the wait that it is in */
    bool looked;
};

struct mu_pacer {
    struct mu_pacer_config config;
    struct mu_pacer_worker *workers;
    uint32_t span;  /* that is under way */
    uint64_t looks; /* so far */
    mu_mono_t began;
    mu_mono_t looked_at;
    bool looked;
};

void mu_pacer_defaults(struct mu_pacer_config *config);
/** MUSTER_EINVAL: a config without times or with a wrong number of workers. MUSTER_ENOMEM. */
int mu_pacer_init(struct mu_pacer *p, const struct mu_pacer_config *config);
void mu_pacer_fini(struct mu_pacer *p);
/** A worker was started; what was known of the last one in its place is forgotten. */
void mu_pacer_start(struct mu_pacer *p, uint32_t worker, uint32_t rank);
/** How long after the last look the next one is due: half an interval to one and a half. */
uint64_t mu_pacer_gap_ns(const struct mu_pacer *p);
/** Takes config.workers looks. */
void mu_pacer_look(struct mu_pacer *p, mu_mono_t now, const struct mu_pacer_look *looks);
/** Whether a span is over: then copies the paces of all workers, and begins the next. Its number is
 * then `span` - 1. */
bool mu_pacer_take(struct mu_pacer *p, mu_mono_t now, struct mu_pace *paces);

/* --- the run ---------------------------------------------------------------------------------- */

#define MU_STRAGGLE_RANKS_MAX 65536
#define MU_STRAGGLE_SPANS     30 /* that are kept, and the longest time that is judged by */
#define MU_STRAGGLE_SHORT     6  /* the shortest; figures for people are of this time */

struct mu_straggle_config {
    uint32_t world;          /* ranks: 1 to MU_STRAGGLE_RANKS_MAX */
    uint32_t nodes;          /* 1 to world */
    uint32_t span_ms;        /* how long a span is, for texts. 10 s */
    uint32_t least_permille; /* of the time, for which a straggler keeps the others waiting. 100 */
    uint32_t steps_min;      /* in the time that is judged by. 5 */
};

/* A rank in one span; without looks: not heard from. */
struct mu_straggle_span {
    uint16_t looks;
    uint16_t waits;
    uint16_t turns;
    uint16_t delay_permille;
    uint16_t marks; /* 65535: that, or more */
};

struct mu_straggle_history {
    uint32_t node;
    struct mu_straggle_span spans[MU_STRAGGLE_SPANS]; /* a ring */
    uint32_t late;  /* one bit a span, the last one lowest: it was behind */
    uint32_t could; /* likewise: the others waited, and it could be compared */
};

/* How a rank did in the last MU_STRAGGLE_SHORT spans. */
struct mu_straggle_rank {
    bool known;
    uint32_t node;
    uint16_t waits_permille;
    uint16_t kept_permille; /* for how much of the time it waited less than the others */
    uint16_t delay_permille;
};

enum mu_straggle_word {
    MU_STRAGGLE_NAMED = 1,
    MU_STRAGGLE_OVER,
};

struct mu_straggle_change {
    enum mu_straggle_word word;
    struct mu_straggler who;
};

struct mu_straggle {
    struct mu_straggle_config config;
    struct mu_straggle_history *histories; /* of `world` ranks */
    char (*names)[MU_PACE_NODE_MAX + 1];   /* of nodes */
    uint64_t span;                         /* that is being filled, plus one: how many there were */
    uint32_t compared;   /* one bit a span, the last one lowest: most ranks could be compared */
    uint32_t warm_spans; /* that had steps, until there are enough, */
    uint64_t warm_at;    /* in this span; only later ones are judged */
    struct mu_straggle_stats *sums; /* of the time that is being judged by */
    uint64_t *order; /* ranks that can be compared, in the order of their shares of waits */
    uint32_t order_count;
    struct mu_straggle_tally *tallies; /* of nodes */
    struct mu_straggle_rank *ranks;
    struct mu_stragglers named;
    struct mu_straggle_change changes[2 * MU_STRAGGLERS_MAX];
    size_t change_count;
    size_t change_taken;
};

void mu_straggle_defaults(struct mu_straggle_config *config);
/** MUSTER_EINVAL: a wrong number of ranks or nodes. MUSTER_ENOMEM. */
int mu_straggle_init(struct mu_straggle *s, const struct mu_straggle_config *config);
/** Zeros are fine. */
void mu_straggle_fini(struct mu_straggle *s);

/** A span begins. */
void mu_straggle_begin(struct mu_straggle *s);
/** What a rank did in it. Ranks and nodes beyond the world are ignored. */
void mu_straggle_add(struct mu_straggle *s, uint32_t node, struct mu_span name,
                     const struct mu_pace *pace);
/** All ranks that were heard from have been added. */
void mu_straggle_judge(struct mu_straggle *s);
/** Takes the next change off; false: there are no more. */
bool mu_straggle_next(struct mu_straggle *s, struct mu_straggle_change *ret_change);
/** Makes the text of a straggler that is one no longer. */
void mu_straggle_say_over(struct mu_straggler *who);
/** Who keeps the others waiting now; the texts are as of when they were named. */
const struct mu_stragglers *mu_straggle_list(const struct mu_straggle *s);
/** `rank` is in the world. */
struct mu_straggle_rank mu_straggle_rank(const struct mu_straggle *s, uint32_t rank);

#endif
