/*
 * The hang watchdog. Eight ranks on two agents are sampled once a second, in virtual time, while
 * they act as a table says: the twelve kinds of hang must be noticed in time with the right rank
 * named, and healthy jobs must not alarm in an hour. The pulses go through their codec.
 */
#include "unit.h"

#include <stdio.h>

#include <muster/error.h>

#include "core/prng.h"
#include "failheap.h"
#include "proto/stacks/watchdog.h"

#define RANKS   8
#define AGENTS  2
#define LOCAL   (RANKS / AGENTS)
#define HANG_S  60
#define SEEDS   20
#define HOUR_S  3600
#define MS      UINT64_C(1000000)
#define ALL     0xffu
#define NOT(r)  (ALL & ~(r))
#define RANK(n) (1u << (n))

/* What a rank does for a second. */
enum act {
    ACT_TRAIN,     /* computes, now here, now there */
    ACT_CRUNCH,    /* computes in one call of a C library */
    ACT_SPIN,      /* waits for its GPU in a busy loop */
    ACT_REDUCE,    /* waits for others in an all_reduce */
    ACT_BROADCAST, /* waits for others at another line */
    ACT_POLL,      /* waits for others in a busy loop */
    ACT_BACKWARD,  /* waits for a thread of its own, which waits for others */
    ACT_SLEEP,
    ACT_LOCK,
    ACT_STREAM_AT_LOCK, /* the same, while somebody else uses the network */
    ACT_GIL,            /* sleeps in C and holds the GIL */
    ACT_STARVED,        /* waits for its data loader, which does nothing */
    ACT_FED,            /* waits for its data loader, which computes */
    ACT_STOPPED,
    ACT_STREAM_STOPPED, /* the same, while somebody else uses the network */
    ACT_FROZEN,         /* in a frozen cgroup, where nobody can look */
    ACT_PIPE,           /* writes to a pipe that nobody reads */
    ACT_TEARDOWN,
    ACT_ENDED,
    ACT_IMPORT,   /* reads files */
    ACT_FSYNC,    /* waits for the disk, which writes */
    ACT_NFS,      /* waits for a disk that does not answer */
    ACT_DOWNLOAD, /* the network moves, and memory grows */
    ACT_STREAM,   /* the network moves, and nothing else */
    ACT_POOL,     /* waits for processes of its own, which compute */
    ACT_HIDDEN,   /* computes, and nobody can see that */
    ACT_SERVE,
    ACT_PROMPT, /* somebody sits at pdb */
    ACT_TRACED,
    ACT_PRINT, /* a line every 40 seconds, and no more */
    ACT_STORE, /* sets a key every 40 seconds */
    ACT_MARK,  /* a step every 40 seconds */
    ACT_AMBLE, /* hardly computes, but is somewhere else every 40 seconds */
};

static const struct {
    uint64_t cpu_ms; /* in each second */
    uint64_t place;  /* 0: changes each second */
    enum mu_pulse_stance stance;
    bool unseen; /* nobody can look */
} acts[] = {
    [ACT_TRAIN] = {700, 0, MU_STANCE_UNKNOWN, false},
    [ACT_CRUNCH] = {1000, 101, MU_STANCE_UNKNOWN, false},
    [ACT_SPIN] = {1000, 102, MU_STANCE_UNKNOWN, false},
    [ACT_REDUCE] = {2, 103, MU_STANCE_OTHERS, false},
    [ACT_BROADCAST] = {2, 104, MU_STANCE_OTHERS, false},
    [ACT_POLL] = {1000, 105, MU_STANCE_OTHERS, false},
    [ACT_BACKWARD] = {1, 126, MU_STANCE_PERHAPS, false},
    [ACT_SLEEP] = {1, 106, MU_STANCE_UNKNOWN, false},
    [ACT_LOCK] = {1, 107, MU_STANCE_UNKNOWN, false},
    [ACT_STREAM_AT_LOCK] = {1, 107, MU_STANCE_UNKNOWN, false},
    [ACT_GIL] = {0, 108, MU_STANCE_UNKNOWN, false},
    [ACT_STARVED] = {3, 109, MU_STANCE_UNKNOWN, false},
    [ACT_FED] = {3, 109, MU_STANCE_UNKNOWN, false},
    [ACT_STOPPED] = {0, 110, MU_STANCE_OTHERS, false},
    [ACT_STREAM_STOPPED] = {0, 110, MU_STANCE_UNKNOWN, false},
    [ACT_FROZEN] = {0, 111, MU_STANCE_UNKNOWN, true},
    [ACT_PIPE] = {0, 112, MU_STANCE_UNKNOWN, false},
    [ACT_TEARDOWN] = {1, 113, MU_STANCE_UNKNOWN, false},
    [ACT_ENDED] = {0, 0, MU_STANCE_UNKNOWN, true},
    [ACT_IMPORT] = {10, 123, MU_STANCE_UNKNOWN, false},
    [ACT_FSYNC] = {1, 114, MU_STANCE_UNKNOWN, false},
    [ACT_NFS] = {0, 115, MU_STANCE_UNKNOWN, false},
    [ACT_DOWNLOAD] = {5, 116, MU_STANCE_UNKNOWN, false},
    [ACT_STREAM] = {5, 124, MU_STANCE_UNKNOWN, false},
    [ACT_POOL] = {2, 125, MU_STANCE_UNKNOWN, false},
    [ACT_HIDDEN] = {900, 0, MU_STANCE_UNKNOWN, true},
    [ACT_SERVE] = {1, 117, MU_STANCE_REQUESTS, false},
    [ACT_PROMPT] = {0, 118, MU_STANCE_PERSON, false},
    [ACT_TRACED] = {0, 119, MU_STANCE_UNKNOWN, true},
    [ACT_PRINT] = {1, 120, MU_STANCE_UNKNOWN, false},
    [ACT_STORE] = {1, 121, MU_STANCE_UNKNOWN, false},
    [ACT_MARK] = {1, 122, MU_STANCE_UNKNOWN, false},
    [ACT_AMBLE] = {1, 0, MU_STANCE_UNKNOWN, false},
};

/* A run of eight ranks, its two agents, and who decides. */
struct world {
    struct mu_watchdog agents[AGENTS];
    struct mu_watchdog_sample samples[AGENTS][LOCAL];
    struct mu_watchdog_node nodes[AGENTS];
    struct mu_watchdog_run run;
    struct mu_prng prng;
    mu_mono_t now;
    uint64_t second;
    uint64_t gap_ms;   /* between samples */
    unsigned unheard;  /* agents that are not heard from, one bit each */
    uint64_t noise_ms; /* of CPU time, at most, in each second of each rank */
    bool blind;        /* stacks cannot be read */
    struct mu_watchdog_verdict verdict;
    unsigned missing; /* one bit for each rank */
};

static void world_begin(struct world *w, uint64_t seed)
{
    struct mu_watchdog_config config;

    *w = (struct world){.now = {1000 * MU_NS_PER_S}, .gap_ms = 1000};
    mu_prng_seed(&w->prng, seed);
    mu_watchdog_defaults(&config);
    config.workers = LOCAL;
    for (uint32_t a = 0; a < AGENTS; a++) {
        assert_int_equal(mu_watchdog_init(&w->agents[a], &config), 0);
        for (uint32_t i = 0; i < LOCAL; i++) {
            mu_watchdog_start(&w->agents[a], i, a * LOCAL + i);
        }
    }
    mu_watchdog_run_init(&w->run, (uint64_t)HANG_S * 1000);
}

static void world_end(struct world *w)
{
    for (uint32_t a = 0; a < AGENTS; a++) {
        mu_watchdog_fini(&w->agents[a]);
    }
}

static void act_out(struct world *w, uint32_t rank, enum act act)
{
    struct mu_watchdog_sample *s = &w->samples[rank / LOCAL][rank % LOCAL];
    bool tick = w->second % 40 == 0;

    s->cpu_ns += acts[act].cpu_ms * MS;
    s->family_ns += act == ACT_POOL || act == ACT_FED ? 400 * MS : 0;
    s->cpu_ns += w->noise_ms == 0 ? 0 : mu_prng_below(&w->prng, w->noise_ms) * MS;
    s->stopped = act == ACT_STOPPED || act == ACT_STREAM_STOPPED;
    s->traced = act == ACT_TRACED;
    s->ended = act == ACT_ENDED;
    s->unseen = act == ACT_HIDDEN;
    s->memory_bytes += act == ACT_DOWNLOAD ? 1 << 20 : 0;
    s->on_disk = act == ACT_FSYNC || act == ACT_NFS;
    s->io_bytes += act == ACT_IMPORT ? 1 << 20 : 0;
    s->output_bytes += act == ACT_PRINT && tick ? 30 : 0;
    s->store_ops += act == ACT_STORE && tick ? 1 : 0;
    s->marks += act == ACT_MARK && tick ? 1 : 0;
    w->nodes[rank / LOCAL].disk_bytes += act == ACT_FSYNC ? 4096 : 0;
    w->nodes[rank / LOCAL].net_bytes += act == ACT_DOWNLOAD || act == ACT_STREAM ||
                                                act == ACT_STREAM_AT_LOCK ||
                                                act == ACT_STREAM_STOPPED
                                            ? 1 << 20
                                            : 2000;
    s->place = 0;
    /* As a driver does, the stack is read only when it is wanted. */
    if (!acts[act].unseen && !w->blind &&
        mu_watchdog_wants_place(&w->agents[rank / LOCAL], rank % LOCAL)) {
        s->place = act == ACT_AMBLE       ? 500 + w->second / 40
                   : acts[act].place == 0 ? 1000 + w->second
                                          : acts[act].place;
        s->stance = acts[act].stance;
    }
}

/* Sends the pulses through their codec to whoever decides. */
static size_t gather(struct world *w, struct mu_pulse pulses[RANKS])
{
    struct mu_buf b;
    size_t count = 0;

    mu_buf_init(&b, 4096);
    for (uint32_t a = 0; a < AGENTS; a++) {
        struct mu_pulse local[LOCAL];
        size_t got = 0;

        if ((w->unheard >> a & 1) != 0) {
            continue;
        }
        for (uint32_t i = 0; i < LOCAL; i++) {
            local[i] = mu_watchdog_pulse(&w->agents[a], i);
        }
        mu_buf_reset(&b);
        assert_int_equal(mu_pulse_encode(&b, local, LOCAL), 0);
        assert_int_equal(mu_pulse_count(mu_buf_span(&b), &got), 0);
        for (size_t i = 0; i < got; i++) {
            pulses[count++] = mu_pulse_at(mu_buf_span(&b), i);
        }
    }
    mu_buf_fini(&b);
    return count;
}

static void judge(struct world *w)
{
    struct mu_pulse pulses[RANKS];
    uint32_t missing[RANKS];
    size_t count = gather(w, pulses);

    assert_int_equal(mu_watchdog_judge(&w->run, pulses, count, RANKS, &w->verdict, missing), 0);
    w->missing = 0;
    for (uint32_t i = 0; i < w->verdict.missing_count; i++) {
        w->missing |= RANK(missing[i]);
    }
}

static void world_second(struct world *w, const enum act now[RANKS])
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        act_out(w, rank, now[rank]);
    }
    w->now = mu_mono_add_ms(w->now, w->gap_ms);
    for (uint32_t a = 0; a < AGENTS; a++) {
        mu_watchdog_sample(&w->agents[a], w->now, &w->nodes[a], w->samples[a]);
    }
    w->second++;
    judge(w);
}

/* Acts alike for some seconds; true at the first that is said to be a hang. */
static bool act_for(struct world *w, unsigned ranks, enum act act, enum act others,
                    uint64_t seconds)
{
    enum act now[RANKS];

    for (uint32_t i = 0; i < RANKS; i++) {
        now[i] = (ranks >> i & 1) != 0 ? act : others;
    }
    for (uint64_t i = 0; i < seconds; i++) {
        world_second(w, now);
        if (w->verdict.word == MU_WATCHDOG_HANG) {
            return true;
        }
    }
    return false;
}

/* --- twelve kinds of hang --------------------------------------------------------------------- */

enum named { NAMED_ODD, NAMED_NONE };

static const struct hang {
    const char *name;
    enum act odd;
    enum act others;
    enum act second; /* of ranks 4 to 7, the second process group; ACT_TRAIN: as the others */
    enum named named;
} hangs[] = {
    {"sleep", ACT_SLEEP, ACT_REDUCE, ACT_TRAIN, NAMED_ODD},
    {"lock", ACT_LOCK, ACT_REDUCE, ACT_TRAIN, NAMED_ODD},
    {"GIL held in C", ACT_GIL, ACT_REDUCE, ACT_TRAIN, NAMED_ODD},
    {"data loader starved", ACT_STARVED, ACT_REDUCE, ACT_TRAIN, NAMED_ODD},
    {"SIGSTOP", ACT_STOPPED, ACT_REDUCE, ACT_TRAIN, NAMED_ODD},
    {"SIGSTOP on a busy network", ACT_STREAM_STOPPED, ACT_REDUCE, ACT_TRAIN, NAMED_ODD},
    {"frozen cgroup", ACT_FROZEN, ACT_REDUCE, ACT_TRAIN, NAMED_ODD},
    {"blocked pipe", ACT_PIPE, ACT_REDUCE, ACT_TRAIN, NAMED_ODD},
    {"one rank skips a collective", ACT_BROADCAST, ACT_REDUCE, ACT_TRAIN, NAMED_ODD},
    {"wrong order", ACT_REDUCE, ACT_BROADCAST, ACT_TRAIN, NAMED_ODD},
    /* All are at the same line; only the flight recorder can tell them apart. */
    {"wrong size", ACT_REDUCE, ACT_REDUCE, ACT_TRAIN, NAMED_NONE},
    {"exit in teardown", ACT_ENDED, ACT_REDUCE, ACT_TRAIN, NAMED_ODD},
    {"one process group of two", ACT_SLEEP, ACT_REDUCE, ACT_BROADCAST, NAMED_ODD},
    {"SIGSTOP in one group of two", ACT_STOPPED, ACT_REDUCE, ACT_BROADCAST, NAMED_ODD},
    {"stuck in teardown", ACT_TEARDOWN, ACT_ENDED, ACT_TRAIN, NAMED_ODD},
    {"dead disk", ACT_NFS, ACT_REDUCE, ACT_TRAIN, NAMED_ODD},
    {"GPUs that spin", ACT_SLEEP, ACT_SPIN, ACT_TRAIN, NAMED_ODD},
    {"a barrier beside GPUs that spin", ACT_BROADCAST, ACT_SPIN, ACT_TRAIN, NAMED_ODD},
    {"no data, and others pass back", ACT_BROADCAST, ACT_BACKWARD, ACT_TRAIN, NAMED_ODD},
    {"asleep, and others pass back", ACT_SLEEP, ACT_BACKWARD, ACT_TRAIN, NAMED_ODD},
    {"stuck on the way back", ACT_BACKWARD, ACT_REDUCE, ACT_TRAIN, NAMED_ODD},
    {"collectives that spin", ACT_LOCK, ACT_POLL, ACT_TRAIN, NAMED_ODD},
};

static void set_acts(const struct hang *h, uint32_t odd, enum act now[RANKS])
{
    for (uint32_t i = 0; i < RANKS; i++) {
        now[i] = h->second != ACT_TRAIN && i >= RANKS / 2 ? h->second : h->others;
    }
    now[odd] = h->odd;
}

static void expect_hang(const struct hang *h, uint64_t seed)
{
    enum act now[RANKS];
    struct world w;
    uint32_t odd;
    uint64_t began;

    world_begin(&w, seed);
    odd = (uint32_t)mu_prng_below(&w.prng, h->second == ACT_TRAIN ? RANKS : RANKS / 2);
    w.noise_ms = 1 + mu_prng_below(&w.prng, 30);
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 10 + mu_prng_below(&w.prng, 400)));
    began = w.second;
    set_acts(h, odd, now);
    do {
        world_second(&w, now);
    } while (w.verdict.word == MU_WATCHDOG_NOTHING && w.second < began + HOUR_S);
    if (w.second - began < HANG_S || w.second - began > HANG_S + 10) {
        fail_msg("%s: noticed after %d s", h->name, (int)(w.second - began));
    }
    if (w.missing != (h->named == NAMED_ODD ? RANK(odd) : 0)) {
        fail_msg("%s: rank %u is missing, but the ranks named are %#x", h->name, odd, w.missing);
    }
    assert_int_equal(w.verdict.word, MU_WATCHDOG_HANG);
    world_second(&w, now);
    assert_int_equal(w.verdict.word, MU_WATCHDOG_HANGING);
    world_end(&w);
}

static void test_watchdog_notices_each_kind_of_hang(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof(hangs) / sizeof(hangs[0]); i++) {
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            expect_hang(&hangs[i], seed);
        }
    }
}

/* --- healthy jobs ----------------------------------------------------------------------------- */

/* For the first `for_s` of every `every_s` seconds, `ranks` do `act` and the others `others`; for
 * the rest of them, all train. */
static const struct healthy {
    const char *name;
    unsigned ranks;
    enum act act;
    enum act others;
    uint64_t for_s;
    uint64_t every_s;
} healthy[] = {
    {"steady training", ALL, ACT_TRAIN, ACT_TRAIN, 1, 1},
    {"long import", ALL, ACT_IMPORT, ACT_IMPORT, 600, HOUR_S},
    {"slow import on one rank", RANK(5), ACT_IMPORT, ACT_REDUCE, 900, HOUR_S},
    {"compilation on all ranks", ALL, ACT_TRAIN, ACT_TRAIN, 1200, HOUR_S},
    {"compilation on one rank", RANK(0), ACT_TRAIN, ACT_REDUCE, 1200, HOUR_S},
    {"compilers of one rank", RANK(0), ACT_POOL, ACT_REDUCE, 1000, 1200},
    {"compilers of most ranks", NOT(RANK(1) | RANK(6)), ACT_POOL, ACT_REDUCE, 1000, 1200},
    {"checkpoint by one rank", RANK(0), ACT_IMPORT, ACT_REDUCE, 500, 600},
    {"checkpoint that waits for the disk", RANK(0), ACT_FSYNC, ACT_REDUCE, 500, 600},
    {"checkpoint by all ranks", ALL, ACT_FSYNC, ACT_FSYNC, 300, 600},
    {"evaluation on one rank", RANK(0), ACT_TRAIN, ACT_REDUCE, 1000, 1200},
    {"evaluation in one long call", RANK(0), ACT_CRUNCH, ACT_REDUCE, 1000, 1200},
    {"evaluation while GPUs spin", RANK(0), ACT_CRUNCH, ACT_SPIN, 1000, 1200},
    {"one long call on all ranks", ALL, ACT_CRUNCH, ACT_CRUNCH, 1000, 1200},
    {"long GPU kernels on all ranks", ALL, ACT_SPIN, ACT_SPIN, 1000, 1200},
    {"long data loading", ALL, ACT_FED, ACT_FED, 1000, 1200},
    {"data loading on one rank", RANK(6), ACT_FED, ACT_REDUCE, 1000, 1200},
    {"download by one rank", RANK(0), ACT_DOWNLOAD, ACT_REDUCE, 1000, 1200},
    {"data that are not kept", RANK(0), ACT_STREAM, ACT_REDUCE, 300, 400},
    {"a worker that is hidden", RANK(0), ACT_HIDDEN, ACT_REDUCE, 1000, 1200},
    {"download, others poll for a file", RANK(0), ACT_CRUNCH, ACT_SLEEP, 1000, 1200},
    {"idle server", ALL, ACT_SERVE, ACT_SERVE, HOUR_S, HOUR_S},
    {"idle parameter server", RANK(0), ACT_SERVE, ACT_TRAIN, HOUR_S, HOUR_S},
    {"debugger attached", RANK(2), ACT_TRACED, ACT_REDUCE, 1000, 1200},
    {"somebody at pdb", RANK(2), ACT_PROMPT, ACT_REDUCE, 1000, 1200},
    {"short sleeps on all ranks", ALL, ACT_SLEEP, ACT_SLEEP, 50, 90},
    {"slow barrier", ALL, ACT_REDUCE, ACT_REDUCE, 55, 60},
    {"a line now and then", ALL, ACT_PRINT, ACT_PRINT, HOUR_S, HOUR_S},
    {"a key now and then", RANK(3), ACT_STORE, ACT_REDUCE, HOUR_S, HOUR_S},
    {"a step now and then", RANK(3), ACT_MARK, ACT_SLEEP, HOUR_S, HOUR_S},
    {"hardly any work", RANK(3), ACT_AMBLE, ACT_REDUCE, HOUR_S, HOUR_S},
    {"all done", ALL, ACT_ENDED, ACT_ENDED, HOUR_S, HOUR_S},
};

static void test_watchdog_leaves_healthy_jobs_alone(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof(healthy) / sizeof(healthy[0]); i++) {
        const struct healthy *h = &healthy[i];
        struct world w;

        world_begin(&w, i);
        w.noise_ms = 20;
        while (w.second < HOUR_S) {
            bool hang = w.second % h->every_s < h->for_s
                            ? act_for(&w, h->ranks, h->act, h->others, 1)
                            : act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 1);

            if (hang) {
                fail_msg("%s: a false alarm after %d s", h->name, (int)w.second);
            }
        }
        world_end(&w);
    }
}

/* --- the rules -------------------------------------------------------------------------------- */

static void test_watchdog_no_alarm_while_one_rank_moves(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_false(act_for(&w, RANK(4), ACT_TRAIN, ACT_REDUCE, 10000));
    assert_true(act_for(&w, RANK(4), ACT_SLEEP, ACT_REDUCE, HANG_S + 10));
    assert_int_equal(w.missing, RANK(4));
    world_end(&w);
}

static void test_watchdog_silences_that_are_alike_are_not_a_hang_until_then(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_false(act_for(&w, ALL, ACT_SLEEP, ACT_SLEEP, HANG_S));
    assert_true(act_for(&w, ALL, ACT_SLEEP, ACT_SLEEP, 5));
    assert_int_equal(w.verdict.missing_count, 0);
    assert_true(w.verdict.still_ms >= (uint64_t)HANG_S * 1000);
    assert_false(w.verdict.split);
    world_end(&w);
}

static void test_watchdog_a_rank_that_waits_for_others_may_burn_cpu_time(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 10));
    assert_true(act_for(&w, ALL, ACT_POLL, ACT_POLL, HANG_S + 10));
    world_end(&w);
}

/* Two that spin in one place beside a silent one are a hang, one or different places are not. */
static void test_watchdog_ranks_that_spin_in_one_place_stand_still(void **unused)
{
    static const enum act two_places[RANKS] = {ACT_SPIN, ACT_SPIN,   ACT_SPIN,   ACT_SPIN,
                                               ACT_SPIN, ACT_CRUNCH, ACT_CRUNCH, ACT_SLEEP};
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 10));
    assert_false(act_for(&w, RANK(0), ACT_SPIN, ACT_SLEEP, 600));
    assert_false(act_for(&w, 0x0fu, ACT_SPIN, ACT_SLEEP, 600));
    assert_false(act_for(&w, 0x0fu, ACT_SPIN, ACT_CRUNCH, 600));
    assert_false(act_for(&w, ALL, ACT_SPIN, ACT_SPIN, 600));
    for (int i = 0; i < 600; i++) {
        world_second(&w, two_places);
        assert_int_not_equal(w.verdict.word, MU_WATCHDOG_HANG);
    }
    assert_true(act_for(&w, 0x1fu, ACT_SPIN, ACT_SLEEP, HANG_S + 10));
    assert_int_equal(w.missing, 0xe0u);
    world_end(&w);
}

/* Most compute, and not in one place: as GPUs that wait in different collectives, and as healthy
 * jobs. Somebody else must say which it is. */
static void test_watchdog_suspects_where_it_cannot_tell(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_false(act_for(&w, RANK(3), ACT_CRUNCH, ACT_SPIN, HANG_S - 1));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_NOTHING);
    assert_false(act_for(&w, RANK(3), ACT_CRUNCH, ACT_SPIN, 20));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_SUSPECT);
    assert_true(w.verdict.still_ms >= (uint64_t)HANG_S * 1000);
    assert_int_equal(w.verdict.missing_count, 0);
    mu_watchdog_run_confirm(&w.run, w.verdict.still_ms);
    assert_false(act_for(&w, RANK(3), ACT_CRUNCH, ACT_SPIN, 2));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_HANGING);
    /* It is seen at the next look. */
    for (int i = 0; i < 10 && w.verdict.word == MU_WATCHDOG_HANGING; i++) {
        assert_false(act_for(&w, RANK(3), ACT_TRAIN, ACT_SPIN, 1));
    }
    assert_int_equal(w.verdict.word, MU_WATCHDOG_RESUMED);
    assert_false(act_for(&w, RANK(3), ACT_CRUNCH, ACT_SPIN, 2 * HANG_S));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_SUSPECT);
    assert_false(act_for(&w, 0, ACT_SPIN, ACT_SPIN, 2 * HANG_S));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_SUSPECT);
    assert_false(act_for(&w, RANK(3), ACT_TRAIN, ACT_SPIN, 10));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_NOTHING);
    world_end(&w);
}

static void test_watchdog_whoever_waits_for_requests_or_a_person_is_not_hung(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 10));
    assert_false(act_for(&w, RANK(1), ACT_PROMPT, ACT_REDUCE, 600));
    assert_false(act_for(&w, RANK(1), ACT_TRACED, ACT_REDUCE, 600));
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 10));
    assert_false(act_for(&w, ALL, ACT_SERVE, ACT_SERVE, 600));
    /* If all others are in the same collective, it may be the one that they wait for. */
    assert_true(act_for(&w, RANK(1), ACT_SERVE, ACT_REDUCE, 600));
    assert_int_equal(w.missing, RANK(1));
    assert_true(w.verdict.split);
    world_end(&w);
}

/* When the debugger lets go, everybody has stood still for long, but not because of a hang. */
static void test_watchdog_begins_anew_after_a_debugger(void **unused)
{
    static const enum act held[RANKS] = {ACT_SPIN, ACT_TRACED, ACT_SPIN, ACT_SPIN,
                                         ACT_SPIN, ACT_SPIN,   ACT_SPIN, ACT_SLEEP};
    static const enum act let_go[RANKS] = {ACT_SPIN, ACT_SPIN, ACT_SPIN, ACT_SPIN,
                                           ACT_SPIN, ACT_SPIN, ACT_SPIN, ACT_SLEEP};
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 10));
    assert_false(act_for(&w, RANK(1), ACT_TRACED, ACT_REDUCE, 600));
    assert_false(act_for(&w, RANK(1), ACT_SLEEP, ACT_REDUCE, HANG_S - 1));
    assert_true(act_for(&w, RANK(1), ACT_SLEEP, ACT_REDUCE, 10));
    world_end(&w);
    world_begin(&w, 1);
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 10));
    assert_false(act_for(&w, ALL, ACT_SPIN, ACT_SPIN, 100));
    for (int i = 0; i < 600 + HANG_S - 5; i++) {
        world_second(&w, i < 600 ? held : let_go);
        assert_int_equal(w.verdict.word, MU_WATCHDOG_NOTHING);
    }
    world_end(&w);
}

static void test_watchdog_a_late_sample_is_not_counted(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 10));
    assert_false(act_for(&w, ALL, ACT_REDUCE, ACT_REDUCE, 30));
    w.gap_ms = 7200000;
    assert_false(act_for(&w, ALL, ACT_REDUCE, ACT_REDUCE, 1));
    w.gap_ms = 1000;
    assert_false(act_for(&w, ALL, ACT_REDUCE, ACT_REDUCE, HANG_S - 31));
    assert_true(act_for(&w, ALL, ACT_REDUCE, ACT_REDUCE, 10));
    world_end(&w);
    /* A clock that stands still counts nothing either. */
    world_begin(&w, 1);
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 10));
    w.gap_ms = 0;
    assert_false(act_for(&w, ALL, ACT_REDUCE, ACT_REDUCE, HOUR_S));
    world_end(&w);
}

/* A machine may have other users. */
static void test_watchdog_the_network_alone_excuses_for_a_while(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 10));
    assert_false(act_for(&w, RANK(3), ACT_STREAM, ACT_REDUCE, 290 + HANG_S));
    assert_true(act_for(&w, RANK(3), ACT_STREAM, ACT_REDUCE, 20));
    assert_int_equal(w.missing, RANK(3));
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 10));
    assert_false(act_for(&w, RANK(3), ACT_STREAM, ACT_REDUCE, 290 + HANG_S)); /* once more */
    world_end(&w);
}

static void test_watchdog_the_network_alone_does_not_end_a_hang(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_true(act_for(&w, RANK(3), ACT_LOCK, ACT_REDUCE, 600));
    for (int i = 0; i < 10; i++) {
        assert_false(act_for(&w, RANK(3), ACT_STREAM_AT_LOCK, ACT_REDUCE, 1));
        assert_int_equal(w.verdict.word, MU_WATCHDOG_HANGING);
        assert_false(act_for(&w, RANK(3), ACT_LOCK, ACT_REDUCE, 2 * HANG_S));
    }
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 1));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_RESUMED);
    world_end(&w);
}

/* It may have been a wrong alarm, so whoever comes back is as one who was just started. */
static void test_watchdog_a_worker_that_cannot_be_seen_is_no_evidence(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_false(act_for(&w, RANK(3), ACT_HIDDEN, ACT_REDUCE, HOUR_S));
    assert_int_equal(mu_watchdog_pulse(&w.agents[0], 3).state, MU_PULSE_FRESH);
    assert_false(act_for(&w, RANK(3), ACT_SLEEP, ACT_REDUCE, HANG_S - 5));
    assert_true(act_for(&w, RANK(3), ACT_SLEEP, ACT_REDUCE, 20));
    assert_int_equal(w.missing, RANK(3));
    assert_false(act_for(&w, RANK(3), ACT_HIDDEN, ACT_REDUCE, 5));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_NOTHING);
    world_end(&w);
}

static void disturb(struct world *w)
{
    for (uint32_t a = 0; a < AGENTS; a++) {
        mu_watchdog_disturb(&w->agents[a]);
    }
}

static void test_watchdog_what_we_made_workers_do_is_no_evidence(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_true(act_for(&w, RANK(2), ACT_LOCK, ACT_REDUCE, 600));
    disturb(&w); /* They write dumps, and compute for it. */
    assert_false(act_for(&w, ALL, ACT_IMPORT, ACT_IMPORT, 1));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_HANGING);
    assert_false(act_for(&w, RANK(2), ACT_LOCK, ACT_REDUCE, 30));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_HANGING);
    disturb(&w); /* What they needed for that, they keep. */
    assert_false(act_for(&w, ALL, ACT_DOWNLOAD, ACT_DOWNLOAD, 1));
    assert_false(act_for(&w, RANK(2), ACT_LOCK, ACT_REDUCE, 1));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_HANGING);
    disturb(&w); /* But what they do by themselves after that counts. */
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 2));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_RESUMED);
    /* Who is disturbed all the time has not been silent. */
    for (int i = 0; i < 2 * HANG_S; i++) {
        disturb(&w);
        assert_false(act_for(&w, ALL, ACT_REDUCE, ACT_REDUCE, 1));
    }
    world_end(&w);
}

static void test_watchdog_an_agent_that_is_always_late_still_notices(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    w.gap_ms = 3000;
    assert_false(act_for(&w, ALL, ACT_REDUCE, ACT_REDUCE, HANG_S / 3));
    assert_true(act_for(&w, ALL, ACT_REDUCE, ACT_REDUCE, HANG_S));
    world_end(&w);
}

static void test_watchdog_a_rank_that_is_not_heard_from_is_no_evidence(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    w.unheard = 2;
    assert_false(act_for(&w, ALL, ACT_REDUCE, ACT_REDUCE, 600));
    w.unheard = 0;
    assert_true(act_for(&w, ALL, ACT_REDUCE, ACT_REDUCE, 1));
    w.unheard = 2;
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 5));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_NOTHING);
    w.unheard = 0;
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 1));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_RESUMED);
    world_end(&w);
}

static void test_watchdog_a_rank_that_was_just_started_is_no_evidence(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    for (int life = 0; life < 50; life++) {
        assert_false(act_for(&w, ALL, ACT_REDUCE, ACT_REDUCE, HANG_S - 5));
        for (uint32_t i = 0; i < LOCAL; i++) {
            mu_watchdog_start(&w.agents[1], i, LOCAL + i);
            assert_int_equal(mu_watchdog_pulse(&w.agents[1], i).state, MU_PULSE_FRESH);
        }
    }
    world_end(&w);
}

static void test_watchdog_says_when_it_goes_on(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_true(act_for(&w, RANK(2), ACT_LOCK, ACT_REDUCE, 600));
    assert_false(act_for(&w, RANK(2), ACT_LOCK, ACT_REDUCE, 30));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_HANGING);
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 1));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_RESUMED);
    assert_true(w.verdict.still_ms >= 90000);
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 1));
    assert_int_equal(w.verdict.word, MU_WATCHDOG_NOTHING);
    assert_true(act_for(&w, RANK(2), ACT_LOCK, ACT_REDUCE, 600));
    world_end(&w);
}

/* Without stacks, all that can be said is that nothing moves, and who was stopped or has ended. */
static void test_watchdog_notices_hangs_without_stacks(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    w.blind = true;
    assert_true(act_for(&w, RANK(2), ACT_LOCK, ACT_REDUCE, HANG_S + 10));
    assert_int_equal(w.missing, 0);
    world_end(&w);
    world_begin(&w, 1);
    w.blind = true;
    assert_true(act_for(&w, RANK(2), ACT_STOPPED, ACT_REDUCE, HANG_S + 10));
    assert_int_equal(w.missing, RANK(2));
    world_end(&w);
}

static void test_watchdog_says_when_who_is_missing_is_a_guess(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_true(act_for(&w, 0x0fu, ACT_REDUCE, ACT_BROADCAST, 600));
    assert_true(w.verdict.split);
    assert_int_equal(w.verdict.missing_count, 4);
    world_end(&w);
}

/* What was seen once does not excuse CPU time for ever. */
static void test_watchdog_trusts_no_old_look(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_false(act_for(&w, ALL, ACT_POLL, ACT_POLL, 30));
    w.blind = true;
    assert_false(act_for(&w, ALL, ACT_POLL, ACT_POLL, HOUR_S));
    world_end(&w);
    /* Ranks that were seen in one place, and compute since: that they are still there is not
     * known. */
    world_begin(&w, 1);
    assert_false(act_for(&w, RANK(2), ACT_SLEEP, ACT_SPIN, 20));
    w.blind = true;
    assert_false(act_for(&w, RANK(2), ACT_SLEEP, ACT_CRUNCH, 600));
    world_end(&w);
}

/* On a busy machine, a look at a thread that runs fails now and then. */
static void test_watchdog_a_look_that_fails_once_is_not_a_move(void **unused)
{
    unsigned told = 0;
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_false(act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 10));
    for (int i = 0; i < 10 * HANG_S; i++) {
        w.blind = i % 7 == 3;
        told += act_for(&w, ALL, ACT_POLL, ACT_POLL, 1) ? 1 : 0;
        assert_int_not_equal(w.verdict.word, MU_WATCHDOG_RESUMED);
    }
    assert_int_equal(told, 1);
    world_end(&w);
}

/* A worker that is busy is looked at now and then; one that does nothing, once at first. */
static void test_watchdog_looks_seldom(void **unused)
{
    unsigned looks = 0;
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    for (int i = 0; i < 100; i++) {
        (void)act_for(&w, RANK(1), ACT_SERVE, ACT_TRAIN, 1);
        looks += mu_watchdog_wants_place(&w.agents[0], 0) ? 1 : 0;
        looks += mu_watchdog_wants_place(&w.agents[0], 1) ? 1 : 0;
    }
    assert_in_range(looks, 36, 44);
    world_end(&w);
}

static void test_watchdog_off_never_alarms(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    mu_watchdog_run_init(&w.run, 0);
    assert_false(act_for(&w, ALL, ACT_SLEEP, ACT_SLEEP, HOUR_S));
    world_end(&w);
}

/* With marks of its own, a script's other output is not progress: monitors print, too. */
static void test_watchdog_counts_only_marks_where_there_are_some(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    for (uint32_t a = 0; a < AGENTS; a++) {
        w.agents[a].config.marked = true;
    }
    assert_false(act_for(&w, ALL, ACT_PRINT, ACT_PRINT, 600)); /* no marks so far */
    assert_false(act_for(&w, ALL, ACT_MARK, ACT_MARK, 600));
    assert_true(act_for(&w, ALL, ACT_PRINT, ACT_PRINT, 600));
    world_end(&w);
}

static void test_watchdog_tells_the_state_of_each_worker(void **unused)
{
    struct world w;

    (void)unused;
    world_begin(&w, 1);
    assert_int_equal(mu_watchdog_pulse(&w.agents[0], 0).state, MU_PULSE_FRESH);
    (void)act_for(&w, ALL, ACT_TRAIN, ACT_TRAIN, 2);
    assert_int_equal(mu_watchdog_pulse(&w.agents[0], 0).state, MU_PULSE_BUSY);
    (void)act_for(&w, RANK(0), ACT_SLEEP, ACT_TRAIN, 3);
    assert_int_equal(mu_watchdog_pulse(&w.agents[0], 0).state, MU_PULSE_WAITING);
    assert_int_equal(mu_watchdog_pulse(&w.agents[0], 0).still_ms, 3000);
    (void)act_for(&w, RANK(0), ACT_SLEEP, ACT_TRAIN, 3);
    assert_int_equal(mu_watchdog_pulse(&w.agents[0], 0).state, MU_PULSE_SILENT);
    (void)act_for(&w, RANK(0), ACT_STOPPED, ACT_TRAIN, 1);
    assert_int_equal(mu_watchdog_pulse(&w.agents[0], 0).state, MU_PULSE_STOPPED);
    (void)act_for(&w, RANK(0), ACT_TRACED, ACT_TRAIN, 1);
    assert_int_equal(mu_watchdog_pulse(&w.agents[0], 0).state, MU_PULSE_TRACED);
    (void)act_for(&w, RANK(0), ACT_TRAIN, ACT_TRAIN, 1);
    assert_int_equal(mu_watchdog_pulse(&w.agents[0], 0).state, MU_PULSE_BUSY);
    (void)act_for(&w, RANK(0), ACT_ENDED, ACT_TRAIN, 1);
    assert_int_equal(mu_watchdog_pulse(&w.agents[0], 0).state, MU_PULSE_ENDED);
    assert_int_equal(mu_watchdog_pulse(&w.agents[1], 3).rank, 7);
    world_end(&w);
}

static void test_watchdog_checks_its_config(void **unused)
{
    struct mu_watchdog_config config;
    struct mu_watchdog w;

    (void)unused;
    mu_watchdog_defaults(&config);
    config.workers = 0;
    assert_int_equal(mu_watchdog_init(&w, &config), MUSTER_EINVAL);
    config.workers = MU_WATCHDOG_WORKERS_MAX + 1;
    assert_int_equal(mu_watchdog_init(&w, &config), MUSTER_EINVAL);
    config.workers = MU_WATCHDOG_WORKERS_MAX;
    assert_int_equal(mu_watchdog_init(&w, &config), 0);
    mu_watchdog_fini(&w);
    config.interval_ns = 0;
    assert_int_equal(mu_watchdog_init(&w, &config), MUSTER_EINVAL);
    config.interval_ns = 1;
    failheap_arm(0);
    assert_int_equal(mu_watchdog_init(&w, &config), MUSTER_ENOMEM);
    failheap_disarm();
}

static void test_watchdog_without_memory_changes_nothing(void **unused)
{
    struct mu_pulse pulses[2] = {
        {.rank = 0, .state = MU_PULSE_SILENT, .still_ms = 1000, .place = 1},
        {.rank = 1, .state = MU_PULSE_SILENT, .still_ms = 1000, .place = 2}};
    struct mu_watchdog_verdict v;
    struct mu_watchdog_run run;
    uint32_t missing[2];

    (void)unused;
    mu_watchdog_run_init(&run, 1000);
    failheap_arm(0);
    assert_int_equal(mu_watchdog_judge(&run, pulses, 2, 2, &v, missing), MUSTER_ENOMEM);
    failheap_disarm();
    assert_int_equal(mu_watchdog_judge(&run, pulses, 2, 2, &v, missing), 0);
    assert_int_equal(v.word, MU_WATCHDOG_HANG);
    assert_int_equal(missing[0], 1);
    assert_true(v.split);
}

/* As in a pipeline of stages: no place is that of most ranks, so nobody is elsewhere. */
static void test_watchdog_names_nobody_if_each_rank_is_elsewhere(void **unused)
{
    struct mu_pulse pulses[4] = {0};
    struct mu_watchdog_verdict v;
    struct mu_watchdog_run run;
    uint32_t missing[4];

    (void)unused;
    for (uint32_t i = 0; i < 4; i++) {
        pulses[i] = (struct mu_pulse){
            .rank = i, .state = MU_PULSE_SILENT, .still_ms = 1000, .place = i + 1};
    }
    mu_watchdog_run_init(&run, 1000);
    assert_int_equal(mu_watchdog_judge(&run, pulses, 4, 4, &v, missing), 0);
    assert_int_equal(v.word, MU_WATCHDOG_HANG);
    assert_true(v.split && v.missing_count == 0);
    mu_watchdog_run_init(&run, 1000);
    pulses[3].place = 2; /* that is at least more than any other */
    assert_int_equal(mu_watchdog_judge(&run, pulses, 4, 4, &v, missing), 0);
    assert_true(v.split && v.missing_count == 2);
}

static void test_watchdog_pulses_keep_their_numbers(void **unused)
{
    struct mu_pulse p = {.rank = 70000,
                         .state = MU_PULSE_SILENT,
                         .stance = MU_STANCE_REQUESTS,
                         .still_ms = UINT64_C(1) << 40,
                         .fixed_ms = 3,
                         .place = UINT64_MAX,
                         .step = 12345};
    uint8_t longer[6 + 48] = {1, 48, 1};
    struct mu_pulse got;
    struct mu_buf b;
    size_t count = 0;

    (void)unused;
    mu_buf_init(&b, 100);
    assert_int_equal(mu_pulse_encode(&b, &p, 1), 0);
    assert_int_equal(mu_pulse_count(mu_buf_span(&b), &count), 0);
    assert_int_equal(count, 1);
    got = mu_pulse_at(mu_buf_span(&b), 0);
    assert_int_equal(got.rank, p.rank);
    assert_int_equal(got.state, p.state);
    assert_int_equal(got.stance, p.stance);
    assert_int_equal(got.still_ms, p.still_ms);
    assert_int_equal(got.fixed_ms, p.fixed_ms);
    assert_int_equal(got.place, p.place);
    assert_int_equal(got.step, p.step);
    /* A later version may have longer pulses. */
    memcpy(longer + 6, b.data + 6, MU_PULSE_SIZE);
    assert_int_equal(mu_pulse_count(mu_span(longer, sizeof(longer)), &count), 0);
    assert_int_equal(mu_pulse_at(mu_span(longer, sizeof(longer)), 0).step, 12345);
    b.data[0] = 2;
    assert_int_equal(mu_pulse_count(mu_buf_span(&b), &count), MUSTER_EPROTO);
    b.data[0] = 1;
    b.data[6 + 4] = MU_PULSE_ENDED + 1;
    assert_int_equal(mu_pulse_count(mu_buf_span(&b), &count), MUSTER_EPROTO);
    b.data[6 + 4] = 0;
    assert_int_equal(mu_pulse_count(mu_buf_span(&b), &count), MUSTER_EPROTO);
    b.data[6 + 4] = MU_PULSE_BUSY;
    b.data[6 + 5] = MU_STANCE_PERHAPS + 1;
    assert_int_equal(mu_pulse_count(mu_buf_span(&b), &count), MUSTER_EPROTO);
    b.data[6 + 5] = 0;
    assert_int_equal(mu_pulse_count(mu_span(b.data, b.len - 1), &count), MUSTER_EPROTO);
    mu_put_u32(b.data + 2, MU_PULSES_MAX + 1);
    assert_int_equal(mu_pulse_count(mu_buf_span(&b), &count), MUSTER_ELIMIT);
    assert_int_equal(mu_pulse_encode(&b, &p, MU_PULSES_MAX + 1), MUSTER_ELIMIT);
    assert_int_equal(mu_pulse_encode(&b, &p, 2), MUSTER_ELIMIT);
    mu_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_watchdog_notices_each_kind_of_hang),
        cmocka_unit_test(test_watchdog_leaves_healthy_jobs_alone),
        cmocka_unit_test(test_watchdog_no_alarm_while_one_rank_moves),
        cmocka_unit_test(test_watchdog_silences_that_are_alike_are_not_a_hang_until_then),
        cmocka_unit_test(test_watchdog_a_rank_that_waits_for_others_may_burn_cpu_time),
        cmocka_unit_test(test_watchdog_ranks_that_spin_in_one_place_stand_still),
        cmocka_unit_test(test_watchdog_suspects_where_it_cannot_tell),
        cmocka_unit_test(test_watchdog_whoever_waits_for_requests_or_a_person_is_not_hung),
        cmocka_unit_test(test_watchdog_begins_anew_after_a_debugger),
        cmocka_unit_test(test_watchdog_a_late_sample_is_not_counted),
        cmocka_unit_test(test_watchdog_the_network_alone_excuses_for_a_while),
        cmocka_unit_test(test_watchdog_the_network_alone_does_not_end_a_hang),
        cmocka_unit_test(test_watchdog_a_worker_that_cannot_be_seen_is_no_evidence),
        cmocka_unit_test(test_watchdog_what_we_made_workers_do_is_no_evidence),
        cmocka_unit_test(test_watchdog_an_agent_that_is_always_late_still_notices),
        cmocka_unit_test(test_watchdog_a_rank_that_is_not_heard_from_is_no_evidence),
        cmocka_unit_test(test_watchdog_a_rank_that_was_just_started_is_no_evidence),
        cmocka_unit_test(test_watchdog_says_when_it_goes_on),
        cmocka_unit_test(test_watchdog_notices_hangs_without_stacks),
        cmocka_unit_test(test_watchdog_says_when_who_is_missing_is_a_guess),
        cmocka_unit_test(test_watchdog_trusts_no_old_look),
        cmocka_unit_test(test_watchdog_a_look_that_fails_once_is_not_a_move),
        cmocka_unit_test(test_watchdog_looks_seldom),
        cmocka_unit_test(test_watchdog_off_never_alarms),
        cmocka_unit_test(test_watchdog_counts_only_marks_where_there_are_some),
        cmocka_unit_test(test_watchdog_tells_the_state_of_each_worker),
        cmocka_unit_test(test_watchdog_checks_its_config),
        cmocka_unit_test(test_watchdog_without_memory_changes_nothing),
        cmocka_unit_test(test_watchdog_names_nobody_if_each_rank_is_elsewhere),
        cmocka_unit_test(test_watchdog_pulses_keep_their_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
