/*
 * Copies of what the ranks of other nodes keep. Each rank has a copier while the workers of a round
 * run: it waits until the source has something newer, asking some times a second on one connection,
 * and loads that over the older of its two versions. When a round has ended the copies stay, until
 * they are of no use any more, or their memory is needed.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "proto/agent/partners.h"
#include "service/agent/kept_internal.h"

#define AGAIN_MS  250 /* how often a source is asked */
#define SETTLE_MS 0   /* there is one source: nobody else is waited for */

/* --- memory ----------------------------------------------------------------------------------- */

static uint64_t need_of(uint64_t bytes)
{
    return bytes + MU_KEPT_HEAD_BYTES;
}

/* What the workers' own vaults take, or will: of a place that has kept nothing yet we believe that
 * it will keep as much as others do. */
static uint64_t own_memory(const struct mu_agent_copies *c, uint64_t bytes)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < c->s->config.policy.workers; i++) {
        sum += MU_KEPT_VAULTS * need_of(c->sizes[i] != 0 ? c->sizes[i] : bytes);
    }
    return sum;
}

static uint64_t copied_memory(const struct mu_agent_copies *c)
{
    uint64_t sum = 0;

    MU_LIST_FOREACH (it, &c->copiers) {
        const struct mu_agent_copier *k = MU_CONTAINER_OF(it, struct mu_agent_copier, link);

        sum += k->places[0].written + k->places[1].written;
    }
    return sum;
}

static void say_no_room(struct mu_agent_copier *k, uint64_t lacks)
{
    struct mu_agent_copies *c = k->c;

    k->refused = true;
    if (!c->said_room) {
        c->said_room = true;
        mu_agent_log(c->s,
                     "no room for copies of rank %" PRIu32 "'s states: give --keep-memory %" PRIu64
                     " MiB more, or --keep-copies less",
                     k->rank, (lacks >> 20) + 1);
    }
}

static void leave(struct mu_agent_copier *k)
{
    k->leaving = true;
    k->stopping = true;
    if (k->loader != NULL) {
        mu_state_loader_cancel(k->loader);
    }
}

/* Copies of ranks whose node is no source of ours any more make room. */
static bool drop_strays(struct mu_agent_copies *c)
{
    bool any = false;

    MU_LIST_FOREACH (it, &c->copiers) {
        struct mu_agent_copier *k = MU_CONTAINER_OF(it, struct mu_agent_copier, link);

        if (k->source[0] == '\0' && !k->leaving) {
            leave(k);
            any = true;
        }
    }
    return any;
}

/* Whether both versions of `k` have room, the larger of what they are and will be. */
static bool has_room(struct mu_agent_copier *k, uint64_t bytes)
{
    struct mu_agent_copies *c = k->c;
    uint64_t need = need_of(bytes);
    uint64_t sum = own_memory(c, bytes) + copied_memory(c);

    for (unsigned i = 0; i < MU_COPIES_PLACES; i++) {
        sum += need > k->places[i].written ? need - k->places[i].written : 0;
    }
    if (sum <= c->total) {
        return true;
    }
    if (!drop_strays(c)) {
        say_no_room(k, sum - c->total);
    }
    return false;
}

/* States have grown since there was room for their copies. */
static void keep_to_bound(struct mu_agent_copies *c)
{
    uint64_t sum = own_memory(c, 0) + copied_memory(c);

    if (sum <= c->total || drop_strays(c)) {
        return;
    }
    MU_LIST_FOREACH (it, &c->copiers) {
        struct mu_agent_copier *k = MU_CONTAINER_OF(it, struct mu_agent_copier, link);

        if (!k->leaving && k->places[0].written + k->places[1].written != 0) {
            say_no_room(k, sum - c->total);
            leave(k);
            return; /* one at a time */
        }
    }
}

/* --- loading ---------------------------------------------------------------------------------- */

static bool is_newer(const struct mu_agent_copier *k, uint64_t era, uint64_t step)
{
    const struct mu_kept_head *newest = mu_copies_newest(&k->copies);

    return newest == NULL || era > newest->version.era ||
           (era == newest->version.era && step > newest->version.step);
}

static bool wants(void *context, const struct mu_state_entry *e)
{
    const struct mu_agent_copier *k = context;
    const struct mu_kept_answer *a = &k->c->answer;

    return !k->stopping && is_newer(k, e->epoch, e->step) &&
           (e->epoch == a->era ||
            (a->found && e->epoch == a->version.era && e->step == a->version.step));
}

static bool is_of_round(const struct mu_agent_copier *k, const struct mu_kept_head *h)
{
    const struct mu_kept_answer *a = &k->c->answer;

    return h->rank == k->rank && !h->replicated &&
           ((h->version.era == a->era && h->version.nonce == a->nonce) ||
            (a->found && mu_kept_version_cmp(&h->version, &a->version) == 0));
}

/* A version was overwritten before it was here, or passed over: then the copies of several ranks
 * may have no step in common. */
static void say_too_fast(struct mu_agent_copier *k)
{
    struct mu_agent_copies *c = k->c;

    if (!c->said_fast) {
        c->said_fast = true;
        mu_agent_log(c->s,
                     "rank %" PRIu32 " keeps states faster than they are copied here (step %" PRIu64
                     "): keep them less often, or a lost node may cost more than a save",
                     k->rank, k->copies.coming.version.step);
    }
}

/* How far apart versions are that follow each other is the least that was seen. */
static void watch_pace(struct mu_agent_copier *k, const struct mu_kept_head *last)
{
    const struct mu_kept_head *now = &k->copies.coming;
    uint64_t gap = now->version.step - last->version.step;

    if (last->version.era != now->version.era || gap == 0) {
        return;
    }
    if (k->gap != 0 && gap > k->gap) {
        say_too_fast(k);
    }
    k->gap = k->gap == 0 || gap < k->gap ? gap : k->gap;
}

static int accept(void *context, struct mu_state_plan *plan, struct mu_errmsg *reterr_msg)
{
    struct mu_agent_copier *k = context;
    struct mu_agent_kept_place *p;
    struct mu_kept_head head;
    unsigned into;
    int err;

    if (k->copies.loading) {
        mu_copies_end(&k->copies, false);
        say_too_fast(k);
    }
    if (k->stopping || !mu_agent_place_head(k->c, plan->offer, &head) || !is_of_round(k, &head) ||
        !mu_copies_wants(&k->copies, &head)) {
        return mu_err(reterr_msg, MUSTER_ECANCELED, "it is not of this round");
    }
    if (!has_room(k, head.bytes)) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "no room");
    }
    into = mu_copies_begin(&k->copies, &head);
    if (mu_copies_newest(&k->copies) != NULL) {
        watch_pace(k, mu_copies_newest(&k->copies));
    }
    p = &k->places[into];
    mu_state_share_drop(p->share); /* the loader was begun when nobody else used it */
    p->share = NULL;
    p->beside = &k->places[1 - into];
    err = mu_agent_place_make(p);
    err = err != 0 ? err : mu_agent_place_plan(p, plan);
    mu_state_loader_expect(k->loader, false); /* if these do not give it, nobody does */
    return err == 0 ? 0 : mu_err(reterr_msg, err, "its memory: %s", muster_strerror(err));
}

/* Once in a round: all that we are to hold is there. */
static void maybe_say_whole(struct mu_agent_copies *c)
{
    const struct mu_kept_head *last = NULL;
    uint32_t count = 0;

    MU_LIST_FOREACH (it, &c->copiers) {
        const struct mu_agent_copier *k = MU_CONTAINER_OF(it, struct mu_agent_copier, link);
        const struct mu_kept_head *newest = mu_copies_newest(&k->copies);

        if (k->source[0] == '\0') {
            continue;
        }
        if (newest == NULL || !is_of_round(k, newest)) {
            return;
        }
        last = newest;
        count++;
    }
    if (last != NULL && !c->said_whole && c->round != NULL) {
        c->said_whole = true;
        mu_agent_log(c->s,
                     "round %" PRIu64 ": this node has copies of the states of %" PRIu32
                     " ranks of other nodes, the first of step %" PRIu64,
                     c->round->number, count, last->version.step);
    }
}

static void ended(void *context, int status, const char *text, struct mu_state_share *share)
{
    struct mu_agent_copier *k = context;
    bool whole = status == 0 && !k->stopping && k->copies.loading;

    (void)text;
    k->loaded = whole;
    if (!whole && k->copies.loading && !k->stopping) {
        say_too_fast(k);
    }
    if (k->copies.loading) {
        mu_copies_end(&k->copies, whole);
    }
    if (whole) {
        mu_agent_place_whole(&k->places[k->copies.into], &k->copies.coming, share);
        maybe_say_whole(k->c);
    } else {
        mu_state_share_drop(share);
    }
    k->places[0].beside = k->places[1].beside = NULL;
}

static void go(struct mu_agent_copier *k);

static void closed(void *context)
{
    struct mu_agent_copier *k = context;

    mu_state_loader_free(k->loader);
    k->loader = NULL;
    k->stopping = k->leaving;
    if (k->c->stopping || k->leaving) {
        mu_agent_copies_wake(k->c);
    } else if (k->loaded) {
        go(k); /* otherwise after the next look */
    }
}

/* Waits at the source for something newer; if it cannot yet, it does so after the next look. */
static void go(struct mu_agent_copier *k)
{
    struct mu_state_loader_config config = mu_state_loader_config_defaults();
    struct mu_errmsg msg;

    if (k->loader != NULL || k->leaving || k->refused || k->source[0] == '\0' ||
        k->c->round == NULL || k->c->stopping ||
        !mu_agent_place_free(&k->places[mu_copies_next(&k->copies)])) {
        return;
    }
    mu_agent_copies_prefix(config.prefix, false, k->rank);
    config.name = k->c->s->rdzv->node;
    config.idle_ms = 0;
    config.settle_ms = SETTLE_MS;
    config.again_ms = AGAIN_MS;
    config.links_max = 1;
    config.expect_more = true;
    config.wants = wants;
    config.accept = accept;
    config.ended = ended;
    config.closed = closed;
    config.context = k;
    if (mu_state_loader_start(k->c->s->env, &config, &k->loader, &msg) == 0 &&
        mu_state_loader_add(k->loader, k->source, &msg) != 0) {
        k->refused = true;
        mu_state_loader_cancel(k->loader);
    }
}

/* --- rounds ----------------------------------------------------------------------------------- */

static struct mu_agent_copier *find(struct mu_agent_copies *c, uint32_t rank)
{
    MU_LIST_FOREACH (it, &c->copiers) {
        struct mu_agent_copier *k = MU_CONTAINER_OF(it, struct mu_agent_copier, link);

        if (k->rank == rank && !k->leaving) {
            return k;
        }
    }
    return NULL;
}

static struct mu_agent_copier *find_or_make(struct mu_agent_copies *c, uint32_t rank)
{
    struct mu_agent_copier *k = find(c, rank);

    if (k == NULL) {
        k = mu_calloc(1, sizeof(*k));
        if (k != NULL) {
            k->c = c;
            k->rank = rank;
            k->places[0].c = k->places[1].c = c;
            mu_list_push(&c->copiers, &k->link);
        }
    }
    return k;
}

void mu_agent_copiers_source(struct mu_agent_copies *c, const char *addr, uint32_t base,
                             uint32_t workers)
{
    for (uint32_t i = 0; i < workers; i++) {
        struct mu_agent_copier *k = find_or_make(c, base + i);

        if (k != NULL) {
            (void)snprintf(k->source, sizeof(k->source), "%s", addr);
            go(k);
        }
    }
}

/* What is newer than what the workers load is of no use: not all ranks have it. */
void mu_agent_copiers_begin(struct mu_agent_copies *c, struct mu_agent_round *r)
{
    const struct mu_kept_answer *a = &r->kept.answer;

    c->round = r;
    c->answer = *a;
    c->said_whole = false;
    c->said_room = false;
    c->said_fast = false;
    MU_LIST_FOREACH (it, &c->copiers) {
        struct mu_agent_copier *k = MU_CONTAINER_OF(it, struct mu_agent_copier, link);

        k->refused = false;
        if (!k->copies.loading) {
            mu_copies_forget(&k->copies, a->found ? &a->version : NULL);
        }
    }
    mu_agent_copies_wake(c);
}

void mu_agent_copiers_end(struct mu_agent_copies *c)
{
    c->round = NULL;
    MU_LIST_FOREACH (it, &c->copiers) {
        struct mu_agent_copier *k = MU_CONTAINER_OF(it, struct mu_agent_copier, link);

        k->source[0] = '\0';
        if (k->loader != NULL) {
            k->stopping = true;
            mu_state_loader_cancel(k->loader);
        }
        mu_agent_place_give(&k->places[0]);
        mu_agent_place_give(&k->places[1]);
    }
}

void mu_agent_copiers_report(const struct mu_agent_copies *c, struct mu_kept_holding *holding)
{
    MU_LIST_FOREACH (it, &c->copiers) {
        const struct mu_agent_copier *k = MU_CONTAINER_OF(it, struct mu_agent_copier, link);

        for (unsigned i = 0; i < MU_COPIES_PLACES && !k->leaving; i++) {
            if (k->copies.whole[i] && holding->head_count < MU_KEPT_HELD_MAX) {
                holding->heads[holding->head_count++] = k->copies.heads[i];
            }
        }
    }
}

const struct mu_vault *mu_agent_copiers_find(const struct mu_agent_copies *c,
                                             const struct mu_kept_answer *answer, uint32_t rank)
{
    MU_LIST_FOREACH (it, &c->copiers) {
        const struct mu_agent_copier *k = MU_CONTAINER_OF(it, struct mu_agent_copier, link);

        for (unsigned i = 0; i < MU_COPIES_PLACES; i++) {
            if (k->rank == rank && !k->leaving && k->copies.whole[i] && !answer->replicated &&
                mu_kept_version_cmp(&k->copies.heads[i].version, &answer->version) == 0) {
                return &k->places[i].own.reader;
            }
        }
    }
    return NULL;
}

/* All sources have two versions here: nobody needs what others had before. */
static bool are_full(const struct mu_agent_copies *c)
{
    bool any = false;

    MU_LIST_FOREACH (it, &c->copiers) {
        const struct mu_agent_copier *k = MU_CONTAINER_OF(it, struct mu_agent_copier, link);

        if (k->source[0] == '\0') {
            continue;
        }
        for (unsigned i = 0; i < MU_COPIES_PLACES; i++) {
            if (!k->copies.whole[i] || !is_of_round(k, &k->copies.heads[i])) {
                return false;
            }
        }
        any = true;
    }
    return any;
}

/* Frees those that leave, when nothing uses their memory. */
static void sweep(struct mu_agent_copies *c)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &c->copiers) {
        struct mu_agent_copier *k = MU_CONTAINER_OF(it, struct mu_agent_copier, link);

        if (k->leaving && k->loader == NULL) {
            bool free_0 = mu_agent_place_free(&k->places[0]);

            if (mu_agent_place_free(&k->places[1]) && free_0) {
                mu_agent_place_fini(&k->places[0]);
                mu_agent_place_fini(&k->places[1]);
                mu_list_remove(&k->link);
                mu_free(k);
            }
        }
    }
}

void mu_agent_copiers_look(struct mu_agent_copies *c)
{
    keep_to_bound(c);
    if (c->round != NULL && are_full(c)) {
        (void)drop_strays(c);
    }
    sweep(c);
    MU_LIST_FOREACH (it, &c->copiers) {
        go(MU_CONTAINER_OF(it, struct mu_agent_copier, link));
    }
}

bool mu_agent_copiers_idle(struct mu_agent_copies *c)
{
    MU_LIST_FOREACH (it, &c->copiers) {
        leave(MU_CONTAINER_OF(it, struct mu_agent_copier, link));
    }
    sweep(c);
    return mu_list_empty(&c->copiers);
}
