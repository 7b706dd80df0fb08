/*
 * Copies of kept states: two to five nodes with one or two workers each, of which each holds copies
 * of what others keep. Workers train in step and keep shards, word by word; partners copy them,
 * word by word, and whatever happens happens between any two words: workers are killed, nodes are
 * lost for good and replaced, several at once, ranks move, fetches fail. Then the agents report
 * what they have and hold, node 0 makes a plan, ranks fetch what they lack, and all load.
 *
 * - What a rank loads is whole, and all ranks load the same.
 * - It is the newest version of which every shard is whole on some node of the round, unless
 *   somebody could not fetch that one: then all go on without it.
 * - What all ranks had kept and all partners had copied is never lost with as many nodes as there
 *   are copies, nor while the next version is copied.
 */
#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/agent/partners.h"
#include "proto/state/copies.h"
#include "proto/state/recall.h"
#include "scenarios/scenarios.h"

#define NODES_MAX   5
#define WORKERS_MAX 2
#define RANKS_MAX   (NODES_MAX * WORKERS_MAX)
#define WORDS       5 /* of a state */
#define ACTIONS     2500
#define VERSIONS    (MU_KEPT_VAULTS + 2) /* of a place, with what was fetched */

enum copies_plant {
    COPIES_SOUND = 0,
    COPIES_HASTY,   /* a copy is reported before it is whole */
    COPIES_AGELESS, /* a copy is found by its step alone */
    COPIES_SELF,    /* a node is its own partner */
    COPIES_GREEDY,  /* the newest copy is overwritten */
    COPIES_UNHEARD, /* who could not fetch goes on alone */
};

/* A version as it really is, beside what its head says. */
struct copies_version {
    bool whole;
    struct mu_kept_head head; /* it counts if `whole` */
    uint64_t truth;           /* of what it should have */
    uint64_t words[WORDS];
};

struct copies_place {
    struct copies_version vaults[MU_KEPT_VAULTS];
    struct copies_version fetched;
    struct copies_version coming; /* fetched for the attempt that begins */
    struct copies_version loaded; /* what was loaded, if it is not in a vault */
    struct mu_kept_terms terms;
    uint64_t truth;
    uint64_t step;
    uint64_t started; /* the last save that has begun */
    bool saving;
    unsigned into;
    unsigned at;
    struct mu_kept_head head; /* of what is saved */
    uint64_t saved;           /* its truth */
};

/* What a node holds of one rank. */
struct copies_held {
    struct mu_copies copies;
    struct copies_version versions[MU_COPIES_PLACES];
    unsigned at;
    unsigned vault; /* of the source, from which it is read */
};

struct copies_world {
    struct mu_sim *sim;
    enum copies_plant plant;
    uint32_t nodes;
    uint32_t workers;
    uint32_t wanted;
    uint32_t keys[NODES_MAX];  /* topology, by node */
    uint32_t order[NODES_MAX]; /* which node has which rank */
    uint64_t every;
    struct copies_place places[RANKS_MAX];         /* by node */
    struct copies_held held[NODES_MAX][RANKS_MAX]; /* by node and rank */
    bool is_source[NODES_MAX][NODES_MAX];          /* [of whom][node rank] */
    struct mu_kept_answer answer;
    uint64_t attempts;
    uint32_t actions;
};

static uint32_t draw(struct copies_world *w, uint32_t below)
{
    return (uint32_t)mu_prng_below(mu_sim_prng(w->sim), below);
}

static uint32_t world_of(const struct copies_world *w)
{
    return w->nodes * w->workers;
}

static uint32_t node_of(const struct copies_world *w, uint32_t rank)
{
    return w->order[rank / w->workers];
}

static struct copies_place *place_of(struct copies_world *w, uint32_t rank)
{
    return &w->places[node_of(w, rank) * w->workers + rank % w->workers];
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    a = (a ^ b) * UINT64_C(0x9e3779b97f4a7c15);
    return a ^ a >> 29;
}

static bool is_same(const struct mu_kept_version *a, const struct mu_kept_version *b)
{
    return mu_kept_version_cmp(a, b) == 0;
}

/* --- training and keeping --------------------------------------------------------------------- */

static void begin_save(struct copies_world *w, uint32_t rank)
{
    struct copies_place *p = place_of(w, rank);
    struct mu_kept_head heads[MU_KEPT_VAULTS];
    bool whole[MU_KEPT_VAULTS];

    for (unsigned v = 0; v < MU_KEPT_VAULTS; v++) {
        heads[v] = p->vaults[v].head;
        whole[v] = p->vaults[v].whole;
    }
    p->started = p->step;
    p->saving = true;
    p->at = 0;
    p->into = mu_kept_oldest(heads, whole, &p->terms);
    p->saved = p->truth;
    p->head = (struct mu_kept_head){
        .version = {.era = p->terms.era, .nonce = p->terms.nonce, .step = p->step},
        .rank = rank,
        .world = world_of(w),
        .bytes = WORDS * 8};
    p->vaults[p->into].whole = false;
}

static void save_word(struct copies_place *p)
{
    struct copies_version *v = &p->vaults[p->into];

    if (p->at < WORDS) {
        v->words[p->at] = mix(p->saved, p->at + 1);
        p->at++;
    } else {
        v->head = p->head;
        v->truth = p->saved;
        v->whole = true;
        p->saving = false;
    }
}

static bool is_due(const struct copies_world *w, const struct copies_place *p)
{
    return p->step != 0 && p->step % w->every == 0 && p->started != p->step &&
           !(p->terms.found && p->terms.version.step == p->step);
}

static bool may_train(struct copies_world *w, uint32_t rank)
{
    uint64_t step = place_of(w, rank)->step;

    for (uint32_t i = 0; i < world_of(w); i++) {
        const struct copies_place *p = place_of(w, i);

        if (p->step < step || (p->step == step && is_due(w, p))) {
            return false;
        }
    }
    return true;
}

static void work(struct copies_world *w, uint32_t rank)
{
    struct copies_place *p = place_of(w, rank);

    if (is_due(w, p) && !p->saving) {
        begin_save(w, rank);
    } else if (p->saving) {
        save_word(p);
    } else if (may_train(w, rank)) {
        p->step++;
        p->truth = mix(mix(p->truth, p->step), w->attempts);
    }
}

/* --- copying ---------------------------------------------------------------------------------- */

static bool is_of_round(const struct copies_world *w, const struct mu_kept_head *h)
{
    const struct mu_kept_answer *a = &w->answer;

    return (h->version.era == a->era && h->version.nonce == a->nonce) ||
           (a->found && is_same(&h->version, &a->version));
}

/* The vaults, and what was fetched. */
static struct copies_version *vault_of(struct copies_place *p, unsigned i)
{
    return i < MU_KEPT_VAULTS ? &p->vaults[i] : i == MU_KEPT_VAULTS ? &p->fetched : &p->coming;
}

static void begin_copy(struct copies_world *w, struct copies_held *h, uint32_t rank)
{
    struct copies_place *p = place_of(w, rank);
    unsigned best = UINT32_MAX;
    unsigned into;

    for (unsigned i = 0; i < VERSIONS; i++) {
        const struct copies_version *v = vault_of(p, i);

        if (v->whole && v->head.rank == rank && is_of_round(w, &v->head) &&
            (best == UINT32_MAX ||
             mu_kept_version_cmp(&v->head.version, &vault_of(p, best)->head.version) > 0)) {
            best = i;
        }
    }
    if (best == UINT32_MAX || !mu_copies_wants(&h->copies, &vault_of(p, best)->head)) {
        return;
    }
    if (w->plant == COPIES_GREEDY && h->copies.whole[0] && h->copies.whole[1]) {
        h->copies.whole[1 - mu_copies_next(&h->copies)] = false;
    }
    into = mu_copies_begin(&h->copies, &vault_of(p, best)->head);
    h->versions[into].whole = false;
    h->vault = best;
    h->at = 0;
    if (w->plant == COPIES_HASTY) {
        h->copies.whole[into] = true;
        h->copies.heads[into] = h->copies.coming;
    }
}

/* A word, and then a look at the head: if it is not that version's any more, nothing counts. */
static void copy_word(struct copies_world *w, struct copies_held *h, uint32_t rank)
{
    const struct copies_version *from = vault_of(place_of(w, rank), h->vault);
    struct copies_version *to = &h->versions[h->copies.into];

    if (!from->whole || !is_same(&from->head.version, &h->copies.coming.version)) {
        mu_copies_end(&h->copies, false);
    } else if (h->at < WORDS) {
        to->words[h->at] = from->words[h->at];
        h->at++;
    } else {
        to->head = h->copies.coming;
        to->truth = from->truth;
        to->whole = true;
        mu_copies_end(&h->copies, true);
    }
}

/* Returns whether there was something to do. */
static bool copy(struct copies_world *w, uint32_t node, uint32_t rank)
{
    struct copies_held *h = &w->held[node][rank];

    if (!w->is_source[node][rank / w->workers]) {
        return false;
    }
    if (!h->copies.loading) {
        begin_copy(w, h, rank);
        return h->copies.loading;
    }
    copy_word(w, h, rank);
    return true;
}

static void copy_all(struct copies_world *w)
{
    for (uint32_t i = 0; i < w->nodes * world_of(w); i++) {
        while (copy(w, i / world_of(w), i % world_of(w))) {
        }
    }
}

static void find_sources(struct copies_world *w, uint32_t copies)
{
    uint32_t keys[NODES_MAX];
    struct mu_partners p;

    for (uint32_t i = 0; i < w->nodes; i++) {
        keys[i] = w->keys[w->order[i]];
    }
    MU_ASSERT(mu_partners_init(&p, copies, w->nodes, keys) == 0);
    if (w->plant == COPIES_SELF) {
        p.distance = 0;
    }
    memset(w->is_source, 0, sizeof(w->is_source));
    for (uint32_t i = 0; i < w->nodes; i++) {
        uint32_t sources[MU_PARTNERS_MAX];
        size_t count = mu_partners_sources(&p, i, sources);

        for (size_t k = 0; k < count; k++) {
            if (w->plant == COPIES_SELF && k == 0) {
                sources[k] = i;
            }
            w->is_source[w->order[i]][sources[k]] = true;
        }
    }
    mu_partners_fini(&p);
}

/* --- what there is, without the codec and the machine ----------------------------------------- */

static bool has(const struct copies_version *v, const struct mu_kept_version *version,
                uint32_t rank, uint32_t world)
{
    return v->whole && is_same(&v->head.version, version) && v->head.rank == rank &&
           v->head.world == world;
}

static bool node_has(struct copies_world *w, uint32_t node, uint32_t rank,
                     const struct mu_kept_version *version)
{
    bool found = false;

    for (uint32_t i = node * w->workers; i < (node + 1) * w->workers; i++) {
        for (unsigned v = 0; v < VERSIONS; v++) {
            found = found || has(vault_of(&w->places[i], v), version, rank, world_of(w));
        }
    }
    for (unsigned i = 0; i < MU_COPIES_PLACES; i++) {
        const struct copies_held *h = &w->held[node][rank];

        found = found || (h->copies.whole[i] && has(&h->versions[i], version, rank, world_of(w)));
    }
    return found;
}

static bool is_complete(struct copies_world *w, const struct mu_kept_version *version)
{
    for (uint32_t rank = 0; rank < world_of(w); rank++) {
        bool found = false;

        for (uint32_t node = 0; node < w->nodes; node++) {
            found = found || node_has(w, node, rank, version);
        }
        if (!found) {
            return false;
        }
    }
    return true;
}

static void consider(struct copies_world *w, const struct copies_version *v,
                     struct mu_kept_version *best, bool *any)
{
    if (v->whole && (!*any || mu_kept_version_cmp(&v->head.version, best) > 0) &&
        is_complete(w, &v->head.version)) {
        *best = v->head.version;
        *any = true;
    }
}

/* The newest version that is complete. False: there is none. */
static bool newest(struct copies_world *w, struct mu_kept_version *ret)
{
    bool any = false;

    for (uint32_t i = 0; i < world_of(w); i++) {
        for (unsigned v = 0; v < VERSIONS; v++) {
            consider(w, vault_of(&w->places[i], v), ret, &any);
        }
    }
    for (uint32_t i = 0; i < NODES_MAX * RANKS_MAX; i++) {
        struct copies_held *h = &w->held[i / RANKS_MAX][i % RANKS_MAX];

        consider(w, &h->versions[0], ret, &any);
        consider(w, &h->versions[1], ret, &any);
    }
    return any;
}

/* --- an attempt ------------------------------------------------------------------------------- */

static void report(struct copies_world *w, struct mu_recall *recall, uint32_t node_rank)
{
    struct mu_kept_head heads[WORKERS_MAX * MU_KEPT_VAULTS];
    struct mu_kept_report r = {.workers = w->workers, .heads = heads};

    for (uint32_t i = 0; i < w->workers; i++) {
        struct copies_place *p = place_of(w, node_rank * w->workers + i);

        for (unsigned v = 0; v < MU_KEPT_VAULTS; v++) {
            if (p->vaults[v].whole) {
                heads[r.head_count++] = p->vaults[v].head;
            }
        }
    }
    MU_ASSERT(mu_recall_take(recall, node_rank, &r) == 0);
}

static void report_held(struct copies_world *w, struct mu_recall *recall, uint32_t node_rank)
{
    static const char *const keys[] = {"", "a", "b"};
    struct mu_kept_head heads[RANKS_MAX * MU_COPIES_PLACES + WORKERS_MAX];
    uint32_t node = w->order[node_rank];
    struct mu_kept_holding h = {.copies = w->wanted,
                                .addr = MU_SPAN_LIT("node"),
                                .topology = mu_span_str(keys[w->keys[node]]),
                                .heads = heads};
    struct mu_kept_holding got;
    struct mu_buf bytes;

    for (uint32_t rank = 0; rank < world_of(w); rank++) {
        for (unsigned i = 0; i < MU_COPIES_PLACES; i++) {
            if (w->held[node][rank].copies.whole[i]) {
                heads[h.head_count++] = w->held[node][rank].copies.heads[i];
            }
        }
    }
    for (uint32_t i = 0; i < w->workers; i++) {
        if (w->places[node * w->workers + i].fetched.whole) {
            heads[h.head_count++] = w->places[node * w->workers + i].fetched.head;
        }
    }
    mu_buf_init(&bytes, MU_KEPT_HOLDING_BYTES_MAX);
    MU_ASSERT(mu_kept_holding_encode(&h, &bytes) == 0);
    MU_ASSERT(mu_kept_holding_decode(mu_buf_span(&bytes), &got) == 0);
    if (w->plant == COPIES_AGELESS) {
        for (size_t i = 0; i < got.head_count; i++) {
            got.heads[i].version.era = w->answer.era;
            got.heads[i].version.nonce = w->answer.nonce;
        }
    }
    MU_ASSERT(mu_recall_take_holding(recall, node_rank, &got) == 0);
    mu_free(got.heads);
    mu_buf_fini(&bytes);
}

/* Where a node has this version of a rank; NULL: nowhere. */
static const struct copies_version *find(struct copies_world *w, uint32_t node, uint32_t rank,
                                         const struct mu_kept_version *version)
{
    bool by_step = w->plant == COPIES_AGELESS;

    for (uint32_t i = node * w->workers; i < (node + 1) * w->workers; i++) {
        for (unsigned v = 0; v < VERSIONS; v++) {
            if (has(vault_of(&w->places[i], v), version, rank, world_of(w))) {
                return vault_of(&w->places[i], v);
            }
        }
    }
    for (unsigned i = 0; i < MU_COPIES_PLACES; i++) {
        const struct mu_copies *c = &w->held[node][rank].copies;

        if (c->whole[i] && (by_step ? c->heads[i].version.step == version->step
                                    : is_same(&c->heads[i].version, version))) {
            return &w->held[node][rank].versions[i];
        }
    }
    return NULL;
}

/* Carries out a plan. False: somebody could not fetch. */
static bool fetch(struct copies_world *w, const struct mu_kept_plan *plan)
{
    bool all = true;

    for (size_t i = 0; i < plan->fetch_count; i++) {
        const struct mu_kept_fetch *f = &plan->fetches[i];
        struct copies_place *p = place_of(w, f->rank);
        uint32_t from = w->order[f->nodes[draw(w, f->node_count)]];
        const struct copies_version *v = find(w, from, f->rank, &plan->answer.version);

        if (v == NULL) {
            mu_sim_fail(w->sim, "node %" PRIu32 " does not have what it reported", from);
            return false;
        }
        if (draw(w, 25) == 0) {
            all = false;
        } else {
            p->coming = *v;
            p->coming.head.version = plan->answer.version;
        }
    }
    for (uint32_t i = 0; i < world_of(w) && !all && w->plant != COPIES_UNHEARD; i++) {
        w->places[i].coming.whole = false;
    }
    return all;
}

static bool check_plan(struct copies_world *w, const struct mu_kept_answer *a)
{
    struct mu_kept_version best = {0};
    bool any = newest(w, &best);

    if (a->found != any || (any && !is_same(&best, &a->version))) {
        mu_sim_fail(w->sim,
                    "era %" PRIu64 " step %" PRIu64 " was decided on (%d), but %" PRIu64
                    " step %" PRIu64 " is the newest that is complete (%d)",
                    a->version.era, a->version.step, a->found, best.era, best.step, any);
        return false;
    }
    return true;
}

/* Node 0 makes plans until one is carried out. Returns whether some could not be. */
static bool decide(struct copies_world *w, uint32_t *ret_copies)
{
    struct mu_kept_plan plan;
    struct mu_recall recall;
    bool failed = false;
    bool done = false;

    MU_ASSERT(mu_recall_init(&recall, w->nodes) == 0);
    for (uint32_t i = 0; i < w->nodes; i++) {
        report(w, &recall, i);
        report_held(w, &recall, i);
    }
    while (!done && mu_sim_failure(w->sim) == NULL) {
        MU_ASSERT(mu_recall_plan(&recall, mu_prng_u64(mu_sim_prng(w->sim)), &plan) == 0);
        w->answer = plan.answer;
        *ret_copies = plan.copies;
        if (w->plant != COPIES_AGELESS && !failed && !check_plan(w, &plan.answer)) {
            mu_kept_plan_fini(&plan);
            break;
        }
        done = fetch(w, &plan) || w->plant == COPIES_UNHEARD;
        if (!done) {
            failed = true;
            mu_recall_exclude(&recall, &plan.answer.version);
        }
        mu_kept_plan_fini(&plan);
    }
    mu_recall_fini(&recall);
    return failed;
}

static void load(struct copies_world *w, uint32_t rank)
{
    struct copies_place *p = place_of(w, rank);
    const struct copies_version *v =
        w->answer.found ? find(w, node_of(w, rank), rank, &w->answer.version) : NULL;

    p->terms = (struct mu_kept_terms){.era = w->answer.era,
                                      .nonce = w->answer.nonce,
                                      .rank = rank,
                                      .world = world_of(w),
                                      .found = w->answer.found,
                                      .version = w->answer.version};
    p->started = 0;
    p->saving = false;
    p->step = v == NULL ? 0 : w->answer.version.step;
    p->truth = v == NULL ? mix(7, rank) : v->truth;
    p->loaded = v == NULL ? (struct copies_version){0} : *v;
    if (w->answer.found && v == NULL) {
        mu_sim_fail(w->sim, "rank %" PRIu32 " begins without step %" PRIu64 ", others with it",
                    rank, w->answer.version.step);
    }
    for (unsigned i = 0; v != NULL && i < WORDS; i++) {
        if (v->words[i] != mix(v->truth, i + 1) || !v->whole ||
            !is_same(&v->head.version, &w->answer.version)) {
            mu_sim_fail(w->sim, "rank %" PRIu32 " loads what is not that version", rank);
            return;
        }
    }
}

/* What is newer than what is loaded is forgotten; so is a fetched version that is not loaded.
 * Agents keep those that are as long as their worker has not kept two newer ones. */
static void forget(struct copies_world *w)
{
    for (uint32_t i = 0; i < NODES_MAX * RANKS_MAX; i++) {
        struct copies_held *h = &w->held[i / RANKS_MAX][i % RANKS_MAX];

        if (h->copies.loading) {
            mu_copies_end(&h->copies, false);
        }
        mu_copies_forget(&h->copies, w->answer.found ? &w->answer.version : NULL);
        for (unsigned k = 0; k < MU_COPIES_PLACES; k++) {
            h->versions[k].whole = h->versions[k].whole && h->copies.whole[k];
        }
    }
    for (uint32_t i = 0; i < world_of(w); i++) {
        w->places[i].fetched = w->places[i].loaded;
        w->places[i].coming.whole = false;
    }
}

static void begin_attempt(struct copies_world *w, const struct mu_kept_version *least)
{
    uint32_t copies = 0;
    bool failed;

    for (uint32_t i = 0; i < NODES_MAX * RANKS_MAX; i++) {
        struct copies_held *h = &w->held[i / RANKS_MAX][i % RANKS_MAX];

        if (h->copies.loading && w->plant != COPIES_HASTY) {
            mu_copies_end(&h->copies, false);
        }
    }
    failed = decide(w, &copies);
    w->attempts++;
    mu_sim_note(w->sim, NULL, "attempt %" PRIu64 ": %s %" PRIu64, w->attempts,
                w->answer.found ? "step" : "nothing", w->answer.version.step);
    if (least != NULL && !failed &&
        (!w->answer.found || mu_kept_version_cmp(&w->answer.version, least) < 0)) {
        mu_sim_fail(w->sim, "step %" PRIu64 " had all its copies, and is lost", least->step);
    }
    for (uint32_t rank = 0; rank < world_of(w) && mu_sim_failure(w->sim) == NULL; rank++) {
        load(w, rank);
    }
    forget(w);
    find_sources(w, copies);
}

/* --- what is lost ----------------------------------------------------------------------------- */

static void lose_node(struct copies_world *w, uint32_t node)
{
    memset(&w->places[node * w->workers], 0, w->workers * sizeof(w->places[0]));
    memset(w->held[node], 0, sizeof(w->held[node]));
}

static void shuffle(struct copies_world *w)
{
    for (uint32_t i = w->nodes; i > 1; i--) {
        uint32_t other = draw(w, i);
        uint32_t node = w->order[i - 1];

        w->order[i - 1] = w->order[other];
        w->order[other] = node;
    }
}

static bool is_kept_by_all(struct copies_world *w, const struct mu_kept_version *v)
{
    for (uint32_t rank = 0; rank < world_of(w); rank++) {
        if (place_of(w, rank)->saving || !node_has(w, node_of(w, rank), rank, v)) {
            return false;
        }
    }
    return true;
}

static uint64_t last_begun(struct copies_world *w)
{
    uint64_t last = 0;

    for (uint32_t rank = 0; rank < world_of(w); rank++) {
        uint64_t started = place_of(w, rank)->started;

        last = started > last ? started : last;
    }
    return last;
}

/* Lets those go on that have not kept the last version that somebody has begun to keep, and all
 * partners copy it. False: it does not come to that. */
static bool calm(struct copies_world *w, struct mu_kept_version *ret)
{
    for (uint32_t i = 0; i < 400; i++) {
        uint64_t last = last_begun(w);
        bool busy = false;

        for (uint32_t rank = 0; rank < world_of(w); rank++) {
            const struct copies_place *p = place_of(w, rank);

            if (last == 0 || p->saving || p->started < last) {
                work(w, rank);
                busy = true;
            }
        }
        if (!busy) {
            *ret = place_of(w, 0)->head.version;
            copy_all(w);
            return is_kept_by_all(w, ret);
        }
    }
    return false;
}

/* The next version is on its way when nodes are lost. */
static void go_on(struct copies_world *w, const struct mu_kept_version *from)
{
    for (uint32_t i = draw(w, 150); i > 0; i--) {
        uint32_t rank = draw(w, world_of(w));
        const struct copies_place *p = place_of(w, rank);

        if (draw(w, 2) == 0) {
            (void)copy(w, draw(w, w->nodes), rank);
        } else if (p->step < from->step + w->every || p->saving || is_due(w, p)) {
            work(w, rank);
        }
    }
}

static void lose_nodes(struct copies_world *w, uint32_t count)
{
    uint32_t first = draw(w, w->nodes);

    for (uint32_t i = 0; i < count; i++) {
        lose_node(w, (first + i) % w->nodes);
    }
}

static void kill_something(struct copies_world *w)
{
    uint32_t copies = w->wanted < w->nodes - 1 ? w->wanted : w->nodes - 1;
    struct mu_kept_version least;
    bool safe = false;

    switch (draw(w, 6)) {
    case 0:
    case 1:
        safe = calm(w, &least);
        if (safe) {
            go_on(w, &least);
        }
        lose_nodes(w, 1 + draw(w, copies));
        break;
    case 2:
        lose_nodes(w, 1 + draw(w, 2));
        break;
    case 3:
        shuffle(w);
        break;
    default:
        break; /* workers, of whom all are started again */
    }
    begin_attempt(w, safe ? &least : NULL);
}

static void act(struct mu_sim *sim, void *arg)
{
    struct copies_world *w = arg;

    if (draw(w, 150) == 0) {
        kill_something(w);
    } else if (draw(w, 2) == 0) {
        work(w, draw(w, world_of(w)));
    } else {
        (void)copy(w, draw(w, w->nodes), draw(w, world_of(w)));
    }
    if (++w->actions < ACTIONS && mu_sim_failure(sim) == NULL &&
        mu_sim_at(sim, mu_sim_now_ns(sim) + MU_NS_PER_MS, act, w) != 0) {
        mu_sim_fail(sim, "no memory");
    }
}

static void run_planted(struct mu_sim *sim, enum copies_plant plant)
{
    struct copies_world *w = mu_calloc(1, sizeof(*w));

    MU_ASSERT(w != NULL);
    w->sim = sim;
    w->plant = plant;
    w->nodes = 2 + draw(w, NODES_MAX - 1);
    w->workers = 1 + draw(w, WORKERS_MAX);
    w->wanted = 1 + draw(w, MU_PARTNERS_MAX);
    w->every = 1 + draw(w, 3);
    for (uint32_t i = 0; i < w->nodes; i++) {
        w->order[i] = i;
        w->keys[i] = draw(w, w->nodes < 3 ? w->nodes : 3);
    }
    begin_attempt(w, NULL);
    act(sim, w);
    mu_sim_run_for(sim, 2 * ACTIONS * MU_NS_PER_MS);
    mu_free(w);
}

static struct mu_sim_faults no_faults(struct mu_prng *prng)
{
    (void)prng;
    return mu_sim_faults_none();
}

#define COPIES(symbol, text, told, bug, which)                                                     \
    static void run_##symbol(struct mu_sim *sim)                                                   \
    {                                                                                              \
        run_planted(sim, (which));                                                                 \
    }                                                                                              \
    const struct mu_sim_scenario mu_sim_scenario_##symbol = {.name = (text),                       \
                                                             .summary = (told),                    \
                                                             .faults = no_faults,                  \
                                                             .run = run_##symbol,                  \
                                                             .planted = (bug)};

COPIES(copies, "copies", "copies of kept states on other nodes, while nodes are lost", false,
       COPIES_SOUND)
COPIES(copies_ageless, "copies-ageless", "a bug: a copy is found by its step alone", true,
       COPIES_AGELESS)
COPIES(copies_greedy, "copies-greedy", "a bug: the newest copy is overwritten", true, COPIES_GREEDY)
COPIES(copies_hasty, "copies-hasty", "a bug: a copy is reported before it is whole", true,
       COPIES_HASTY)
COPIES(copies_self, "copies-self", "a bug: a node is its own partner", true, COPIES_SELF)
COPIES(copies_unheard, "copies-unheard", "a bug: who could not fetch goes on alone", true,
       COPIES_UNHEARD)
