/* What the plan of a round has us fetch before our workers start, from all that have it at once. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "service/agent/kept_internal.h"

#define FETCH_MS 600000 /* for all of it */
#define IDLE_MS  120000 /* until the first chunk: its source may have to hash it first */
#define SAY_MS   5000   /* how often it is said how much has come */

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1u << 30);
}

/* --- one -------------------------------------------------------------------------------------- */

static bool wants(void *context, const struct mu_state_entry *e)
{
    const struct mu_agent_fetch *f = context;

    return f->round != NULL && e->epoch == f->version.era && e->step == f->version.step;
}

static int accept(void *context, struct mu_state_plan *plan, struct mu_errmsg *reterr_msg)
{
    struct mu_agent_fetch *f = context;
    struct mu_kept_head head;
    int err;

    if (f->round == NULL || !mu_agent_place_head(f->c, plan->offer, &head) ||
        mu_kept_version_cmp(&head.version, &f->version) != 0 || head.replicated != f->replicated ||
        (!head.replicated && head.rank != f->rank) || head.world != f->world) {
        return mu_err(reterr_msg, MUSTER_ECANCELED, "it is not what was reported");
    }
    f->head = head;
    err = mu_agent_place_make(&f->place);
    err = err != 0 ? err : mu_agent_place_plan(&f->place, plan);
    mu_state_loader_expect(f->loader, false); /* if these do not give it, nobody does */
    return err == 0 ? 0 : mu_err(reterr_msg, err, "its memory: %s", muster_strerror(err));
}

static bool progress(void *context, const struct mu_state_loader_progress *p)
{
    struct mu_agent_fetch *f = context;
    mu_mono_t now = mu_env_now(f->c->s->env).mono;

    if (f->round != NULL && mu_mono_reached(f->say_at, now)) {
        f->say_at = mu_mono_add_ms(now, SAY_MS);
        mu_agent_log(f->c->s,
                     "rank %" PRIu32 "'s state, step %" PRIu64 ", comes from %s: %.1f of %.1f GiB",
                     f->rank, f->version.step, f->from, gib(p->bytes), gib(p->total));
    }
    return f->round != NULL;
}

static void ended(void *context, int status, const char *text, struct mu_state_share *share)
{
    struct mu_agent_fetch *f = context;

    f->whole = status == 0 && f->round != NULL;
    if (f->whole) {
        mu_agent_place_whole(&f->place, &f->head, share);
        mu_agent_log(f->c->s, "rank %" PRIu32 "'s state, step %" PRIu64 ", came from %s: %.3f GiB",
                     f->rank, f->version.step, f->from, gib(f->head.bytes));
    } else {
        mu_state_share_drop(share);
        if (f->round != NULL) {
            mu_agent_log(f->c->s,
                         "rank %" PRIu32 "'s state, step %" PRIu64 ", did not come from %s: %s",
                         f->rank, f->version.step, f->from, text);
        }
    }
}

static void maybe_ended(struct mu_agent_round *r)
{
    struct mu_agent_copies *c = r->s->kept.copies;
    bool all = true;

    MU_LIST_FOREACH (it, &c->fetches) {
        const struct mu_agent_fetch *f = MU_CONTAINER_OF(it, struct mu_agent_fetch, link);

        if (f->round == r && f->loader != NULL) {
            return;
        }
        all = all && (f->round != r || f->whole);
    }
    MU_LIST_FOREACH (it, &c->fetches) {
        struct mu_agent_fetch *f = MU_CONTAINER_OF(it, struct mu_agent_fetch, link);

        f->round = f->round == r ? NULL : f->round;
    }
    mu_agent_fetches_ended(r, all && !r->kept.fetch_failed);
}

static void closed(void *context)
{
    struct mu_agent_fetch *f = context;

    mu_state_loader_free(f->loader);
    f->loader = NULL;
    if (f->round != NULL) {
        maybe_ended(f->round);
    } else {
        f->leaving = f->leaving || !f->whole;
        mu_agent_copies_wake(f->c);
    }
}

/* --- all of a round --------------------------------------------------------------------------- */

/* What we fetch are those entries whose rank is ours. */
static bool is_ours(const struct mu_agent_round *r, const struct mu_kept_fetch *f)
{
    return f->rank >= r->ranks.base && f->rank - r->ranks.base < r->s->config.policy.workers;
}

size_t mu_agent_fetches_nodes(const struct mu_agent_round *r, uint32_t *ret, size_t cap)
{
    const struct mu_kept_plan *p = &r->kept.plan;
    size_t count = 0;

    for (size_t i = 0; i < p->fetch_count; i++) {
        for (uint32_t n = 0; is_ours(r, &p->fetches[i]) && n < p->fetches[i].node_count; n++) {
            uint32_t node = p->fetches[i].nodes[n];
            size_t k = 0;

            while (k < count && ret[k] != node) {
                k++;
            }
            if (k == count && count < cap && node < r->world) {
                ret[count++] = node;
            }
        }
    }
    return count;
}

static int add_donors(struct mu_agent_fetch *f, const struct mu_kept_fetch *what,
                      const struct mu_kept_holding *holdings, const uint32_t *nodes, size_t count)
{
    struct mu_errmsg msg;
    int found = MUSTER_ENOENT;

    for (size_t i = 0; i < count; i++) {
        for (uint32_t n = 0; n < what->node_count; n++) {
            char addr[MU_AGENT_KEPT_ADDR_CAP];

            if (what->nodes[n] == nodes[i] && holdings[i].addr.len < sizeof(addr)) {
                (void)snprintf(addr, sizeof(addr), "%.*s", (int)holdings[i].addr.len,
                               (const char *)holdings[i].addr.data);
                found = mu_state_loader_add(f->loader, addr, &msg) == 0 ? 0 : found;
            }
        }
    }
    return found;
}

static void name_source(struct mu_agent_fetch *f, const struct mu_kept_fetch *what)
{
    size_t n = (size_t)snprintf(f->from, sizeof(f->from), "node %" PRIu32, what->nodes[0]);

    for (uint32_t i = 1; i < what->node_count; i++) {
        n += (size_t)snprintf(f->from + n, sizeof(f->from) - n, "%s%" PRIu32,
                              i + 1 == what->node_count ? " and " : ", ", what->nodes[i]);
    }
}

static struct mu_agent_fetch *new_fetch(struct mu_agent_round *r, const struct mu_kept_fetch *what)
{
    struct mu_agent_copies *c = r->s->kept.copies;
    const struct mu_kept_answer *a = &r->kept.plan.answer;
    struct mu_agent_fetch *f = mu_calloc(1, sizeof(*f));

    if (f != NULL) {
        f->c = c;
        f->place.c = c;
        f->round = r;
        f->rank = what->rank;
        f->replicated = a->replicated;
        f->version = a->version;
        f->world = a->world;
        f->say_at = mu_mono_add_ms(mu_env_now(r->s->env).mono, SAY_MS);
        name_source(f, what);
        mu_list_push(&c->fetches, &f->link);
    }
    return f;
}

static int start(struct mu_agent_fetch *f)
{
    struct mu_state_loader_config config = mu_state_loader_config_defaults();
    struct mu_errmsg msg;

    mu_agent_copies_prefix(config.prefix, f->replicated, f->rank);
    config.name = f->c->s->rdzv->node;
    config.timeout_ms = FETCH_MS;
    config.idle_ms = IDLE_MS;
    config.expect_more = true;
    config.wants = wants;
    config.accept = accept;
    config.progress = progress;
    config.ended = ended;
    config.closed = closed;
    config.context = f;
    return mu_state_loader_start(f->c->s->env, &config, &f->loader, &msg);
}

void mu_agent_fetches_begin(struct mu_agent_round *r, const struct mu_kept_holding *holdings,
                            const uint32_t *nodes, size_t count)
{
    const struct mu_kept_plan *p = &r->kept.plan;

    r->kept.fetch_failed = false;
    for (size_t i = 0; i < p->fetch_count; i++) {
        struct mu_agent_fetch *f;

        if (!is_ours(r, &p->fetches[i])) {
            continue;
        }
        f = new_fetch(r, &p->fetches[i]);
        if (f == NULL || start(f) != 0) {
            r->kept.fetch_failed = true;
        } else if (add_donors(f, &p->fetches[i], holdings, nodes, count) != 0) {
            mu_state_loader_cancel(f->loader);
        }
    }
    maybe_ended(r);
}

static bool is_source(const struct mu_kept_fetch *f, uint32_t node)
{
    for (uint32_t i = 0; i < f->node_count; i++) {
        if (f->nodes[i] == node) {
            return true;
        }
    }
    return false;
}

/* Copies, and what was fetched before, are given at any time. */
void mu_agent_fetches_give(struct mu_agent_round *r)
{
    const struct mu_kept_plan *p = &r->kept.plan;

    for (size_t i = 0; i < p->fetch_count; i++) {
        if (is_source(&p->fetches[i], r->rank)) {
            mu_agent_copies_want(r->s->kept.copies, &p->answer.version, p->answer.replicated,
                                 p->fetches[i].rank);
        }
    }
}

void mu_agent_fetches_cancel(struct mu_agent_copies *c, const struct mu_agent_round *r)
{
    MU_LIST_FOREACH (it, &c->fetches) {
        struct mu_agent_fetch *f = MU_CONTAINER_OF(it, struct mu_agent_fetch, link);

        if (f->round == r) {
            f->round = NULL;
            if (f->loader != NULL) {
                mu_state_loader_cancel(f->loader);
            }
        }
    }
}

void mu_agent_fetches_report(const struct mu_agent_copies *c, struct mu_kept_holding *holding)
{
    MU_LIST_FOREACH (it, &c->fetches) {
        const struct mu_agent_fetch *f = MU_CONTAINER_OF(it, struct mu_agent_fetch, link);

        if (f->whole && !f->leaving && holding->head_count < MU_KEPT_HELD_MAX) {
            holding->heads[holding->head_count++] = f->head;
        }
    }
}

const struct mu_vault *mu_agent_fetches_find(const struct mu_agent_copies *c,
                                             const struct mu_kept_answer *answer, uint32_t rank)
{
    MU_LIST_FOREACH (it, &c->fetches) {
        const struct mu_agent_fetch *f = MU_CONTAINER_OF(it, struct mu_agent_fetch, link);

        if (f->whole && !f->leaving && f->replicated == answer->replicated &&
            (f->replicated || f->rank == rank) &&
            mu_kept_version_cmp(&f->version, &answer->version) == 0) {
            return &f->place.own.reader;
        }
    }
    return NULL;
}

/* --- afterwards ------------------------------------------------------------------------------- */

/* Whether our worker has two newer versions of its own: then all ranks have one. */
static bool is_old(const struct mu_agent_fetch *f)
{
    const struct mu_agent_copies *c = f->c;
    uint32_t newer = 0;

    for (uint32_t i = 0; i < c->s->kept.made; i++) {
        uint8_t bytes[MU_KEPT_HEAD_LEN];
        struct mu_kept_head h;

        newer += c->source->read(&c->s->kept.vaults[i], 0, bytes, sizeof(bytes)) == 0 &&
                 mu_kept_head_decode(bytes, c->s->kept.bytes, &h) == 0 &&
                 (f->replicated ? h.replicated : h.rank == f->rank) &&
                 mu_kept_version_cmp(&h.version, &f->version) > 0;
    }
    return newer >= 2;
}

static void sweep(struct mu_agent_copies *c)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &c->fetches) {
        struct mu_agent_fetch *f = MU_CONTAINER_OF(it, struct mu_agent_fetch, link);

        if (f->leaving && f->loader == NULL && f->round == NULL && mu_agent_place_free(&f->place)) {
            mu_agent_place_fini(&f->place);
            mu_list_remove(&f->link);
            mu_free(f);
        }
    }
}

void mu_agent_fetches_look(struct mu_agent_copies *c)
{
    MU_LIST_FOREACH (it, &c->fetches) {
        struct mu_agent_fetch *f = MU_CONTAINER_OF(it, struct mu_agent_fetch, link);
        bool loaded = c->round != NULL && c->answer.found &&
                      mu_kept_version_cmp(&f->version, &c->answer.version) == 0;

        /* In a round that began from something else, nobody needs it. */
        f->leaving = f->leaving || (c->round != NULL && f->round == NULL && (!loaded || is_old(f)));
    }
    sweep(c);
}

bool mu_agent_fetches_idle(struct mu_agent_copies *c)
{
    MU_LIST_FOREACH (it, &c->fetches) {
        struct mu_agent_fetch *f = MU_CONTAINER_OF(it, struct mu_agent_fetch, link);

        f->leaving = true;
        f->round = NULL;
        if (f->loader != NULL) {
            mu_state_loader_cancel(f->loader);
        }
    }
    sweep(c);
    return mu_list_empty(&c->fetches);
}
