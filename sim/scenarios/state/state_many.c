/*
 * Newcomers that begin at about the same time load a state from one donor with a limited rate, and
 * serve each other. The scenario compares the time with that of a single newcomer, in virtual time,
 * in a world without faults.
 *
 * What must hold: all have it within 1.6 times the time of one, and the donor has sent little more
 * than the size of the state, because the others wait for the donor.
 */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "crypto/identity.h"
#include "scenarios/scenarios.h"
#include "service/state/donor.h"
#include "service/state/loader.h"

#define CHUNK     4096u
#define CHUNKS    512u
#define RATE      (100u * CHUNK) /* so a single newcomer takes five seconds */
#define PORT      29700
#define CROWD_MAX 12u
#define CROWD_MIN 2u
/* How many chunks the complete donor may send twice: those in progress before the newcomers know of
 * each other, and at the end. */
#define TWICE_MAX (CHUNKS / 4)
#define LIMIT_NS  (120 * MU_NS_PER_S)

struct many;

struct newcomer {
    struct many *many;
    uint32_t number;
    struct mu_sim_proc *proc;
    uint64_t begun_ns;
    uint64_t took_ns; /* 0: it does not have the state yet */
    /* While it runs. */
    struct mu_env *env;
    struct mu_state_donor *donor;
    struct mu_state_loader *loader;
    struct mu_state_share *kept;
    struct mu_timer timer;
    uint8_t *memory;
    bool donor_gone;
    bool stopping;
};

struct many {
    struct mu_sim *sim;
    struct mu_identity identity;
    struct mu_layout layout;
    uint8_t *content;
    struct mu_sim_proc *giver;
    struct mu_env *giver_env;
    struct mu_state_donor *donor;
    struct newcomer newcomers[1 + CROWD_MAX]; /* the first loads alone */
    uint32_t first, count;                    /* the newcomers that load now */
    bool leaving;
};

/* --- the donor -------------------------------------------------------------------------------- */

static void on_giver_stopped(void *context)
{
    struct many *w = context;

    mu_state_donor_free(w->donor);
    w->donor = NULL;
    mu_sim_exit(w->giver_env);
}

static int start_giver(struct mu_env *env, void *arg)
{
    struct many *w = arg;
    struct mu_state_donor_config config = mu_state_donor_config_defaults();
    struct mu_state_share *share;
    struct mu_errmsg msg;
    struct mu_state_share_spec spec = {
        .prefix = MU_SPAN_LIT("run"),
        .metadata = MU_SPAN_LIT("\x80"),
        .layout = &w->layout,
        .data = w->content,
        .chunk_bytes = CHUNK,
    };
    int err = mu_addr_parse("d:29700", 0, &config.listen, &msg);

    w->giver_env = env;
    config.name = "giver";
    config.gate.bytes_per_s = RATE;
    config.gate.burst_bytes = RATE / 4;
    config.stopped = on_giver_stopped;
    config.context = w;
    err = err != 0 ? err : mu_state_donor_start(env, &config, &w->donor, &msg);
    if (err == 0) {
        MU_ASSERT(mu_state_share_new(&spec, &share, &msg) == 0);
        MU_ASSERT(mu_state_share_hash(share, 0, CHUNKS) == 0);
        MU_ASSERT(mu_state_share_seal(share, &w->identity, &msg) == 0);
        MU_ASSERT(mu_state_donor_put(w->donor, share) == 0);
        mu_state_share_drop(share);
    }
    return err;
}

static void stop_giver(void *arg)
{
    mu_state_donor_stop(((struct many *)arg)->donor);
}

/* --- a newcomer ------------------------------------------------------------------------------- */

static void rearm(struct newcomer *n, uint64_t ms)
{
    mu_env_timer_arm(n->env, &n->timer, mu_mono_add_ms(mu_env_now(n->env).mono, ms));
}

static void release(struct mu_state_share *share)
{
    mu_free(share->owner);
}

static int on_accept(void *context, struct mu_state_plan *plan, struct mu_errmsg *reterr_msg)
{
    struct newcomer *n = context;

    n->memory = mu_calloc(CHUNKS, CHUNK);
    if (n->memory == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "no memory for it");
    }
    plan->owner = n->memory;
    plan->released = release;
    return mu_state_segments_new(&n->many->layout, NULL, n->memory, &plan->segments,
                                 &plan->segment_count);
}

static void on_ended(void *context, int status, const char *text, struct mu_state_share *share)
{
    struct newcomer *n = context;
    struct many *w = n->many;
    struct mu_buf report;

    if (status != 0) {
        mu_sim_fail(w->sim, "n%u could not load: %s", n->number, text);
        return;
    }
    if (memcmp(n->memory, w->content, (size_t)CHUNKS * CHUNK) != 0) {
        mu_sim_fail(w->sim, "a load went well and gave something else");
    }
    n->took_ns = mu_sim_now_ns(w->sim) - n->begun_ns;
    n->kept = share;
    if (mu_sim_tracing(w->sim)) {
        mu_buf_init(&report, 65536);
        (void)mu_state_loader_report(n->loader, &report);
        mu_sim_note(w->sim, n->proc, "has it after %llu ms\n%.*s",
                    (unsigned long long)(n->took_ns / MU_NS_PER_MS), (int)report.len,
                    (const char *)mu_buf_span(&report).data);
        mu_buf_fini(&report);
    }
}

static void on_closed(void *context)
{
    struct newcomer *n = context;

    mu_state_loader_free(n->loader);
    n->loader = NULL;
}

static void on_stopped(void *context)
{
    struct newcomer *n = context;

    n->donor_gone = true;
    rearm(n, 0);
}

static void begin(struct newcomer *n)
{
    struct many *w = n->many;
    struct mu_state_loader_config config = mu_state_loader_config_defaults();
    struct mu_errmsg msg;

    (void)snprintf(config.own_addr, sizeof(config.own_addr), "n%u:%d", n->number, PORT);
    config.donor = n->donor;
    config.keep = true;
    config.accept = on_accept;
    config.ended = on_ended;
    config.closed = on_closed;
    config.context = n;
    n->begun_ns = mu_sim_now_ns(w->sim);
    MU_ASSERT(mu_state_loader_start(n->env, &config, &n->loader, &msg) == 0);
    MU_ASSERT(mu_state_loader_add(n->loader, "d:29700", &msg) == 0);
}

static void on_timer(struct mu_timer *timer)
{
    struct newcomer *n = MU_CONTAINER_OF(timer, struct newcomer, timer);

    if (n->begun_ns == 0) {
        begin(n);
    } else if ((n->many->leaving || (n->number == 0 && n->took_ns != 0)) && n->loader == NULL &&
               !n->stopping) {
        n->stopping = true;
        mu_state_donor_stop(n->donor);
    }
    if (n->donor_gone) {
        mu_env_timer_arm(n->env, &n->timer, MU_MONO_NEVER);
        mu_state_donor_free(n->donor);
        mu_state_share_drop(n->kept);
        mu_sim_exit(n->env);
        return;
    }
    rearm(n, 100);
}

static int start_newcomer(struct mu_env *env, void *arg)
{
    struct newcomer *n = arg;
    struct mu_state_donor_config config = mu_state_donor_config_defaults();
    struct mu_errmsg msg;
    char text[64];
    int err;

    n->env = env;
    (void)snprintf(text, sizeof(text), "n%u:%d", n->number, PORT);
    err = mu_addr_parse(text, 0, &config.listen, &msg);
    config.name = "newcomer";
    config.stopped = on_stopped;
    config.context = n;
    err = err != 0 ? err : mu_state_donor_start(env, &config, &n->donor, &msg);
    if (err == 0) {
        mu_timer_init(&n->timer, on_timer);
        /* Processes that are started together begin within a few milliseconds. */
        rearm(n, 1 + mu_prng_below(mu_sim_prng(n->many->sim), 50));
    }
    return err;
}

/* --- the world -------------------------------------------------------------------------------- */

static void make_state(struct many *w)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN] = {1};
    uint64_t bytes = (uint64_t)CHUNKS * CHUNK;

    MU_ASSERT(mu_identity_from_seed(&w->identity, seed) == 0);
    mu_layout_init(&w->layout);
    MU_ASSERT(mu_layout_add(&w->layout, MU_SPAN_LIT("w"), MU_DTYPE_U8, &bytes, 1) == 0);
    w->content = mu_sim_calloc(bytes);
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t word = mu_prng_u64(mu_sim_prng(w->sim));

        memcpy(w->content + i, &word, sizeof(word));
    }
}

static void start_some(struct many *w, uint32_t first, uint32_t count)
{
    static const char *const names[1 + CROWD_MAX] = {"n0", "n1", "n2", "n3",  "n4",  "n5", "n6",
                                                     "n7", "n8", "n9", "n10", "n11", "n12"};

    w->first = first;
    w->count = count;
    for (uint32_t i = first; i < first + count; i++) {
        struct newcomer *n = &w->newcomers[i];

        n->many = w;
        n->number = i;
        n->proc = mu_sim_proc_new(
            mu_sim_host_new(w->sim, names[i]),
            &(struct mu_sim_program){.name = "newcomer", .start = start_newcomer, .arg = n});
    }
}

static bool all_have_it(void *arg)
{
    const struct many *w = arg;

    for (uint32_t i = w->first; i < w->first + w->count; i++) {
        if (w->newcomers[i].took_ns == 0) {
            return false;
        }
    }
    return true;
}

static bool all_left(void *arg)
{
    const struct many *w = arg;
    bool left = !mu_sim_proc_alive(w->giver);

    for (uint32_t i = 0; i < w->first + w->count; i++) {
        left = left && !mu_sim_proc_alive(w->newcomers[i].proc);
    }
    return left;
}

static uint64_t chunks_given(const struct many *w)
{
    struct mu_state_donor_stats stats;

    mu_state_donor_stats(w->donor, &stats);
    return stats.chunks;
}

static void judge(struct many *w, uint64_t given)
{
    uint64_t alone = w->newcomers[0].took_ns;
    uint64_t most = 0;

    for (uint32_t i = w->first; i < w->first + w->count; i++) {
        most = w->newcomers[i].took_ns > most ? w->newcomers[i].took_ns : most;
    }
    mu_sim_note(w->sim, w->giver, "%u took %llu%% of one's time; %llu chunks of %u were given",
                w->count, (unsigned long long)(most * 100 / alone), (unsigned long long)given,
                CHUNKS);
    if (most * 10 > alone * 16) {
        mu_sim_fail(w->sim, "%u newcomers took %llu ms, one alone %llu ms", w->count,
                    (unsigned long long)(most / MU_NS_PER_MS),
                    (unsigned long long)(alone / MU_NS_PER_MS));
    }
    if (given > CHUNKS + TWICE_MAX) {
        mu_sim_fail(w->sim, "%llu chunks were given of a state that has %u",
                    (unsigned long long)given, CHUNKS);
    }
}

static void run_crowd(struct mu_sim *sim)
{
    struct many *w = mu_sim_calloc(sizeof(*w));
    uint64_t given;

    mu_sim_trace_log(sim);
    w->sim = sim;
    make_state(w);
    w->giver =
        mu_sim_proc_new(mu_sim_host_new(sim, "d"),
                        &(struct mu_sim_program){.name = "giver", .start = start_giver, .arg = w});
    start_some(w, 0, 1);
    if (!mu_sim_run_until(sim, LIMIT_NS, all_have_it, w)) {
        mu_sim_fail(sim, "one alone did not come to an end");
    }
    mu_sim_run_for(sim, MU_NS_PER_S); /* lets the donor's bucket fill */
    given = w->donor == NULL ? 0 : chunks_given(w);
    start_some(w, 1,
               CROWD_MIN + (uint32_t)mu_prng_below(mu_sim_prng(sim), CROWD_MAX - CROWD_MIN + 1));
    if (!mu_sim_run_until(sim, LIMIT_NS, all_have_it, w)) {
        mu_sim_fail(sim, "the newcomers did not come to an end");
    }
    if (mu_sim_failure(sim) == NULL) {
        judge(w, chunks_given(w) - given);
        w->leaving = true;
        mu_sim_call(w->giver, stop_giver, w);
    }
    if (!mu_sim_run_until(sim, LIMIT_NS, all_left, w)) {
        mu_sim_fail(sim, "somebody did not stop");
    }
    mu_free(w->content);
    mu_identity_fini(&w->identity);
    mu_layout_fini(&w->layout);
    mu_free(w);
}

static struct mu_sim_faults draw_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_none();

    /* Latencies from one rack to one continent. */
    f.latency_max_ns = f.latency_min_ns + mu_prng_below(prng, 20 * MU_NS_PER_MS);
    return f;
}

const struct mu_sim_scenario mu_sim_scenario_state_many = {
    .name = "state-many",
    .summary = "many newcomers of one donor with a limited rate: hardly slower than one",
    .faults = draw_faults,
    .run = run_crowd,
};
