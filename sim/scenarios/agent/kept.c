/*
 * Kept states: the vaults of two to four nodes with one or two workers each. Workers train in
 * step, and keep their shard, or a copy that is the same for all, every few steps. A save goes word
 * by word, and whatever is killed dies between any two of them: workers; agents, with their vaults;
 * both; two nodes at once. Then the agents report what they find, node 0 decides, and the workers
 * go on with what they load. Ranks also move to other nodes.
 *
 * - What a rank loads is whole: every word is of the version that was decided on.
 * - All ranks load the same version, and it is the newest that every rank has whole.
 * - If only workers died, and nodes keep their ranks, there is one, at most one save old.
 * - A step that was trained twice is never mixed with what it was the first time.
 */
#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/state/recall.h"
#include "scenarios/scenarios.h"

#define NODES_MAX   4
#define WORKERS_MAX 2
#define PLACES_MAX  (NODES_MAX * WORKERS_MAX)
#define WORDS       6 /* of a state */
#define VAULT_BYTES (MU_KEPT_HEAD_BYTES + WORDS * 8)
#define ACTIONS     1200

enum kept_plant {
    KEPT_SOUND = 0,
    KEPT_HASTY,   /* the head is whole before the state */
    KEPT_GREEDY,  /* the newest version is overwritten */
    KEPT_AGELESS, /* every attempt has the same era and nonce */
    KEPT_ALONE,   /* node 0 decides by what it has itself */
    KEPT_SHALLOW, /* a worker loads the newest that it finds */
};

struct kept_vault {
    uint8_t head[MU_KEPT_HEAD_LEN];
    uint64_t words[WORDS];
};

/* A save under way: what is written next. */
struct kept_save {
    bool busy;
    unsigned vault;
    unsigned at;
    uint64_t step;
    uint64_t truth; /* of what is copied */
};

struct kept_place {
    struct kept_vault vaults[MU_KEPT_VAULTS];
    struct mu_kept_terms terms;
    uint64_t truth;   /* what the state of this rank is: a hash of all that it has trained */
    uint64_t step;    /* trained so far */
    uint64_t started; /* the last save that has begun; 0: none in this attempt */
    struct kept_save save;
};

/* What a vault really has: kept beside it by the scenario. */
struct kept_truth {
    struct mu_kept_version version;
    uint64_t truth;
    uint64_t attempt; /* in which it was trained */
    uint32_t rank;
    uint32_t world;
    bool whole;
};

struct kept_world {
    struct mu_sim *sim;
    enum kept_plant plant;
    uint32_t nodes;
    uint32_t workers;
    uint32_t order[NODES_MAX]; /* which node has which rank */
    bool replicated;
    uint64_t every;
    struct kept_place places[PLACES_MAX]; /* by node */
    struct kept_truth truths[PLACES_MAX][MU_KEPT_VAULTS];
    bool fresh; /* vaults were lost, or ranks have changed: there may be nothing to load */
    uint64_t attempts;
    uint32_t actions;
};

static uint32_t draw(struct kept_world *w, uint32_t below)
{
    return (uint32_t)mu_prng_below(mu_sim_prng(w->sim), below);
}

static uint32_t world_of(const struct kept_world *w)
{
    return w->nodes * w->workers;
}

static struct kept_place *place_of(struct kept_world *w, uint32_t rank)
{
    return &w->places[w->order[rank / w->workers] * w->workers + rank % w->workers];
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    a = (a ^ b) * UINT64_C(0x9e3779b97f4a7c15);
    return a ^ a >> 29;
}

/* Word `i` of a state: each depends on everything before. */
static uint64_t word_of(uint64_t truth, unsigned i)
{
    return mix(truth, i + 1);
}

/* --- what there is, without the codec -------------------------------------------------------- */

static struct kept_truth *truth_of(struct kept_world *w, const struct kept_place *p, unsigned v)
{
    return &w->truths[p - w->places][v];
}

static bool rank_has(struct kept_world *w, uint32_t rank, const struct kept_truth *t)
{
    uint32_t node = w->order[rank / w->workers];

    for (uint32_t i = node * w->workers; i < (node + 1) * w->workers; i++) {
        for (unsigned v = 0; v < MU_KEPT_VAULTS; v++) {
            const struct kept_truth *other = &w->truths[i][v];

            if (other->whole && mu_kept_version_cmp(&other->version, &t->version) == 0 &&
                (w->replicated || (other->rank == rank && other->world == world_of(w)))) {
                return true;
            }
        }
    }
    return false;
}

/* The newest version that all ranks have; NULL: none. */
static const struct kept_truth *newest(struct kept_world *w)
{
    const struct kept_truth *best = NULL;

    for (uint32_t i = 0; i < PLACES_MAX * MU_KEPT_VAULTS; i++) {
        const struct kept_truth *t = &w->truths[i / MU_KEPT_VAULTS][i % MU_KEPT_VAULTS];
        bool all = t->whole;

        for (uint32_t rank = 0; all && rank < world_of(w); rank++) {
            all = rank_has(w, rank, t);
        }
        if (all && (best == NULL || mu_kept_version_cmp(&t->version, &best->version) > 0)) {
            best = t;
        }
    }
    return best;
}

/* --- workers ---------------------------------------------------------------------------------- */

static bool is_spared(const struct kept_world *w, uint32_t rank)
{
    return w->replicated && rank % w->workers != 0;
}

static void begin_save(struct kept_world *w, uint32_t rank)
{
    struct kept_place *p = place_of(w, rank);
    struct mu_kept_head heads[MU_KEPT_VAULTS];
    bool whole[MU_KEPT_VAULTS];

    p->started = p->step;
    if (is_spared(w, rank)) {
        return;
    }
    for (unsigned v = 0; v < MU_KEPT_VAULTS; v++) {
        whole[v] = mu_kept_head_decode(p->vaults[v].head, VAULT_BYTES, &heads[v]) == 0;
    }
    p->save = (struct kept_save){.busy = true,
                                 .vault = mu_kept_oldest(heads, whole, &p->terms),
                                 .step = p->step,
                                 .truth = p->truth};
    for (unsigned v = 0; w->plant == KEPT_GREEDY && v < MU_KEPT_VAULTS; v++) {
        if (whole[v] && heads[v].version.era == p->terms.era) {
            p->save.vault = v;
        }
    }
}

static struct mu_kept_head head_of(const struct kept_world *w, const struct kept_place *p,
                                   uint64_t step)
{
    return (struct mu_kept_head){
        .version = {.era = p->terms.era, .nonce = p->terms.nonce, .step = step},
        .replicated = w->replicated,
        .rank = p->terms.rank,
        .world = p->terms.world,
        .bytes = WORDS * 8};
}

/* One word of a save: the checksum is cleared, the state, the head, its checksum. */
static void go_on_saving(struct kept_world *w, uint32_t rank)
{
    struct kept_place *p = place_of(w, rank);
    struct kept_save *s = &p->save;
    struct kept_vault *v = &p->vaults[s->vault];
    struct kept_truth *t = truth_of(w, p, s->vault);
    struct mu_kept_head h = head_of(w, p, s->step);
    uint8_t head[MU_KEPT_HEAD_LEN];
    unsigned at = s->at++;

    mu_kept_head_encode(&h, head);
    if (at == 0) {
        t->whole = false;
        memset(v->head + MU_KEPT_HEAD_LEN - 8, 0, 8);
        if (w->plant == KEPT_HASTY) {
            memcpy(v->head, head, sizeof(head));
        }
    } else if (at <= WORDS) {
        v->words[at - 1] = word_of(s->truth, at - 1);
    } else if (at == WORDS + 1) {
        memcpy(v->head, head, MU_KEPT_HEAD_LEN - 8);
    } else {
        memcpy(v->head, head, MU_KEPT_HEAD_LEN);
        *t = (struct kept_truth){.version = h.version,
                                 .truth = s->truth,
                                 .attempt = w->attempts,
                                 .rank = h.rank,
                                 .world = h.world,
                                 .whole = true};
        s->busy = false;
    }
}

/* Training is in step: nobody is a step ahead of one who has not begun the last one. */
static bool may_train(struct kept_world *w, uint32_t rank)
{
    uint64_t step = place_of(w, rank)->step;

    for (uint32_t i = 0; i < world_of(w); i++) {
        const struct kept_place *p = place_of(w, i);

        if (p->step < step || (p->step == step && step % w->every == 0 && step != 0 &&
                               p->started != step && p->terms.version.step != step)) {
            return false;
        }
    }
    return true;
}

static void work(struct kept_world *w, uint32_t rank)
{
    struct kept_place *p = place_of(w, rank);
    bool due = p->step != 0 && p->step % w->every == 0 && p->started != p->step &&
               !(p->terms.found && p->terms.version.step == p->step);

    if (due && !p->save.busy) {
        begin_save(w, rank);
    } else if (p->save.busy && (due || draw(w, 2) == 0)) {
        go_on_saving(w, rank);
    } else if (!due && may_train(w, rank)) {
        p->step++;
        p->truth = mix(mix(p->truth, p->step), w->attempts);
    }
}

/* --- an attempt ------------------------------------------------------------------------------- */

static void report(struct kept_world *w, struct mu_recall *recall, uint32_t node_rank)
{
    struct mu_kept_head heads[WORKERS_MAX * MU_KEPT_VAULTS];
    struct mu_kept_report r = {.workers = w->workers, .heads = heads};
    struct mu_kept_report got;
    struct mu_buf bytes;

    for (uint32_t i = 0; i < w->workers; i++) {
        struct kept_place *p = place_of(w, node_rank * w->workers + i);

        for (unsigned v = 0; v < MU_KEPT_VAULTS; v++) {
            r.head_count +=
                mu_kept_head_decode(p->vaults[v].head, VAULT_BYTES, &heads[r.head_count]) == 0;
        }
    }
    mu_buf_init(&bytes, MU_KEPT_REPORT_BYTES_MAX);
    MU_ASSERT(mu_kept_report_encode(&r, &bytes) == 0);
    MU_ASSERT(mu_kept_report_decode(mu_buf_span(&bytes), &got) == 0);
    MU_ASSERT(mu_recall_take(recall, node_rank, &got) == 0);
    mu_free(got.heads);
    mu_buf_fini(&bytes);
}

static struct mu_kept_answer decide(struct kept_world *w)
{
    struct mu_kept_answer answer;
    struct mu_kept_answer got;
    struct mu_recall recall;
    uint8_t bytes[MU_KEPT_ANSWER_LEN];

    MU_ASSERT(mu_recall_init(&recall, w->nodes) == 0);
    for (uint32_t node = 0; node < w->nodes; node++) {
        report(w, &recall, w->plant == KEPT_ALONE ? 0 : node);
        if (w->plant == KEPT_ALONE) {
            break;
        }
    }
    if (w->plant == KEPT_ALONE) {
        recall.node_count = 1;
    }
    mu_recall_decide(&recall, mu_prng_u64(mu_sim_prng(w->sim)), &answer);
    mu_recall_fini(&recall);
    if (w->plant == KEPT_AGELESS) {
        answer.era = 1;
        answer.nonce = 1;
    }
    mu_kept_answer_encode(&answer, bytes);
    MU_ASSERT(mu_kept_answer_decode(mu_span(bytes, sizeof(bytes)), &got) == 0);
    return got;
}

/* Where a rank finds the version, as its agent looks for it: own vaults first. */
static bool load(struct kept_world *w, uint32_t rank, const struct mu_kept_answer *answer,
                 uint64_t *ret_attempt)
{
    struct kept_place *p = place_of(w, rank);
    uint32_t node = w->order[rank / w->workers];
    struct mu_kept_head h;

    for (uint32_t n = 0; n < w->workers; n++) {
        struct kept_place *from =
            &w->places[node * w->workers + (rank % w->workers + n) % w->workers];

        for (unsigned v = 0; v < MU_KEPT_VAULTS; v++) {
            uint64_t truth = truth_of(w, from, v)->truth;

            if (mu_kept_head_decode(from->vaults[v].head, VAULT_BYTES, &h) != 0 ||
                (!h.replicated && h.rank != rank) ||
                (w->plant != KEPT_SHALLOW &&
                 mu_kept_version_cmp(&h.version, &answer->version) != 0)) {
                continue;
            }
            for (unsigned i = 0; i < WORDS; i++) {
                if (from->vaults[v].words[i] != word_of(truth, i) || !truth_of(w, from, v)->whole) {
                    mu_sim_fail(w->sim, "rank %" PRIu32 " loads a state that is not whole", rank);
                    return false;
                }
            }
            p->truth = truth;
            p->step = h.version.step;
            *ret_attempt = truth_of(w, from, v)->attempt;
            return true;
        }
    }
    mu_sim_fail(w->sim, "rank %" PRIu32 " does not have step %" PRIu64, rank, answer->version.step);
    return false;
}

static void check_answer(struct kept_world *w, const struct mu_kept_answer *answer, uint64_t least)
{
    const struct kept_truth *best = newest(w);

    if (answer->found && best == NULL) {
        mu_sim_fail(w->sim, "step %" PRIu64 " is not whole, but was decided on",
                    answer->version.step);
    } else if (!answer->found && best != NULL) {
        mu_sim_fail(w->sim, "step %" PRIu64 " is whole, but was not decided on",
                    best->version.step);
    } else if (best != NULL && mu_kept_version_cmp(&best->version, &answer->version) != 0) {
        mu_sim_fail(w->sim, "step %" PRIu64 " was decided on, but %" PRIu64 " is newer",
                    answer->version.step, best->version.step);
    } else if (!w->fresh && least != 0 && (!answer->found || answer->version.step < least)) {
        mu_sim_fail(w->sim, "only step %" PRIu64 " is left, and %" PRIu64 " was kept by all",
                    answer->version.step, least);
    }
}

static void begin_attempt(struct kept_world *w, uint64_t least)
{
    struct mu_kept_answer answer = decide(w);
    uint64_t truth = 0;
    uint64_t trained = 0; /* in which attempt */

    w->attempts++;
    mu_sim_note(w->sim, NULL, "attempt %" PRIu64 ": %s %" PRIu64, w->attempts,
                answer.found ? "step" : "nothing", answer.version.step);
    check_answer(w, &answer, least);
    for (uint32_t rank = 0; rank < world_of(w) && mu_sim_failure(w->sim) == NULL; rank++) {
        struct kept_place *p = place_of(w, rank);
        uint64_t attempt = 0;

        p->terms = (struct mu_kept_terms){.era = answer.era,
                                          .nonce = answer.nonce,
                                          .rank = rank,
                                          .world = world_of(w),
                                          .found = answer.found,
                                          .version = answer.version,
                                          .replicated = answer.replicated};
        p->started = 0;
        p->step = 0;
        p->truth = mix(7, w->replicated ? 0 : rank);
        p->save.busy = false;
        if (answer.found && !load(w, rank, &answer, &attempt)) {
            return;
        }
        /* All ranks of a replicated state have the same, and all ranks are at the same step. */
        truth = rank == 0 ? p->truth : truth;
        trained = rank == 0 ? attempt : trained;
        if ((w->replicated && p->truth != truth) || attempt != trained ||
            p->step != place_of(w, 0)->step) {
            mu_sim_fail(w->sim, "rank %" PRIu32 " does not have what rank 0 has", rank);
        }
    }
    w->fresh = false;
}

/* --- what is killed --------------------------------------------------------------------------- */

static void lose_node(struct kept_world *w, uint32_t node)
{
    for (uint32_t i = node * w->workers; i < (node + 1) * w->workers; i++) {
        memset(w->places[i].vaults, 0, sizeof(w->places[i].vaults));
        memset(w->truths[i], 0, sizeof(w->truths[i]));
    }
    w->fresh = true;
}

static void shuffle(struct kept_world *w)
{
    for (uint32_t i = w->nodes; i > 1; i--) {
        uint32_t other = draw(w, i);
        uint32_t node = w->order[i - 1];

        w->order[i - 1] = w->order[other];
        w->order[other] = node;
    }
    w->fresh = true;
}

/* The last save that all ranks have begun; the one before it was finished by all. */
static uint64_t least_of(struct kept_world *w)
{
    uint64_t begun = UINT64_MAX;
    uint64_t loaded = place_of(w, 0)->terms.found ? place_of(w, 0)->terms.version.step : 0;

    for (uint32_t rank = 0; rank < world_of(w); rank++) {
        uint64_t started = place_of(w, rank)->started;

        begun = started < begun ? started : begun;
    }
    return begun >= loaded + 2 * w->every ? begun - w->every : loaded;
}

static void kill_something(struct kept_world *w)
{
    uint64_t least = least_of(w);

    switch (draw(w, 8)) {
    case 0:
        lose_node(w, draw(w, w->nodes));
        break;
    case 1:
        lose_node(w, draw(w, w->nodes));
        lose_node(w, draw(w, w->nodes));
        break;
    case 2:
        shuffle(w);
        break;
    default:
        break; /* workers, of whom all are started again */
    }
    begin_attempt(w, least);
}

static void act(struct mu_sim *sim, void *arg)
{
    struct kept_world *w = arg;

    if (draw(w, 60) == 0) {
        kill_something(w);
    } else {
        work(w, draw(w, world_of(w)));
    }
    if (++w->actions < ACTIONS && mu_sim_failure(sim) == NULL &&
        mu_sim_at(sim, mu_sim_now_ns(sim) + MU_NS_PER_MS, act, w) != 0) {
        mu_sim_fail(sim, "no memory");
    }
}

static void run_planted(struct mu_sim *sim, enum kept_plant plant)
{
    struct kept_world w = {.sim = sim, .plant = plant, .fresh = true};

    w.nodes = 2 + draw(&w, NODES_MAX - 1);
    w.workers = 1 + draw(&w, WORKERS_MAX);
    w.replicated = draw(&w, 3) == 0;
    w.every = 1 + draw(&w, 3);
    for (uint32_t i = 0; i < w.nodes; i++) {
        w.order[i] = i;
    }
    begin_attempt(&w, 0);
    act(sim, &w);
    mu_sim_run_for(sim, 2 * ACTIONS * MU_NS_PER_MS);
}

static struct mu_sim_faults no_faults(struct mu_prng *prng)
{
    (void)prng;
    return mu_sim_faults_none();
}

#define KEPT(symbol, text, told, bug, which)                                                       \
    static void run_##symbol(struct mu_sim *sim)                                                   \
    {                                                                                              \
        run_planted(sim, (which));                                                                 \
    }                                                                                              \
    const struct mu_sim_scenario mu_sim_scenario_##symbol = {.name = (text),                       \
                                                             .summary = (told),                    \
                                                             .faults = no_faults,                  \
                                                             .run = run_##symbol,                  \
                                                             .planted = (bug)};

KEPT(kept, "kept", "states that agents keep, while workers and agents are killed", false,
     KEPT_SOUND)
KEPT(kept_hasty, "kept-hasty", "a bug: the head is whole before the state", true, KEPT_HASTY)
KEPT(kept_greedy, "kept-greedy", "a bug: the newest version is overwritten", true, KEPT_GREEDY)
KEPT(kept_ageless, "kept-ageless", "a bug: attempts cannot be told apart", true, KEPT_AGELESS)
KEPT(kept_alone, "kept-alone", "a bug: node 0 decides by what it has itself", true, KEPT_ALONE)
KEPT(kept_shallow, "kept-shallow", "a bug: workers load the first that they find", true,
     KEPT_SHALLOW)
