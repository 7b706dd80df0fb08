/*
 * What others can have of us. Workers write into their vaults and tell nobody, so the heads are
 * looked at, 64 bytes each, some times a second. What is new is read and hashed on other threads,
 * and given to those who ask for it. A worker may overwrite it at any time, and begins with its
 * head: so whoever reads bytes looks at the head afterwards, and if it is another one, they do not
 * count.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "service/agent/kept_internal.h"

#define LOOK_MS   250
#define HASH_STEP 16u  /* chunks, for one turn of a thread */
#define METADATA  0xc4 /* msgpack: bytes, and their number */
#define DOWNLOADS 64   /* of others at a time; a partner has one for each rank */

/* A share's bytes: on any thread. */
struct mu_agent_offer_source {
    const struct mu_vaults *source;
    struct mu_vault vault;
    uint8_t head[MU_KEPT_HEAD_LEN];
};

struct mu_agent_hash_job {
    struct mu_work work;
    struct mu_agent_copies *c;
    struct mu_state_share *share; /* a reference */
    uint32_t vault;
    uint32_t next;
    int err;
};

void mu_agent_copies_prefix(char out[MU_AGENT_KEPT_PREFIX_CAP], bool replicated, uint32_t rank)
{
    if (replicated) {
        (void)snprintf(out, MU_AGENT_KEPT_PREFIX_CAP, "kept-all");
    } else {
        (void)snprintf(out, MU_AGENT_KEPT_PREFIX_CAP, "kept-%" PRIu32, rank);
    }
}

/* --- a share ---------------------------------------------------------------------------------- */

static int read_version(struct mu_state_share *share, uint64_t offset, void *buf, size_t len)
{
    const struct mu_agent_offer_source *f = share->owner;
    uint8_t head[MU_KEPT_HEAD_LEN];
    int err = f->source->read(&f->vault, MU_KEPT_HEAD_BYTES + offset, buf, len);

    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    err = err != 0 ? err : f->source->read(&f->vault, 0, head, sizeof(head));
    return err == 0 && memcmp(head, f->head, sizeof(head)) != 0 ? MUSTER_ENOENT : err;
}

static void on_released(struct mu_state_share *share)
{
    mu_free(share->owner);
}

/* All copies of a replicated version are called the same. */
static struct mu_kept_head told(const struct mu_kept_head *head)
{
    struct mu_kept_head h = *head;

    h.rank = h.replicated ? 0 : h.rank;
    return h;
}

static struct mu_state_share *new_share(struct mu_agent_copies *c, uint32_t vault,
                                        const struct mu_kept_head *head)
{
    struct mu_agent_offer_source *f = mu_calloc(1, sizeof(*f));
    struct mu_kept_head own = told(head);
    char prefix[MU_AGENT_KEPT_PREFIX_CAP];
    uint8_t meta[2 + MU_KEPT_HEAD_LEN] = {METADATA, MU_KEPT_HEAD_LEN};
    struct mu_state_share *share = NULL;
    struct mu_state_share_spec spec;
    struct mu_layout layout;
    struct mu_errmsg msg;

    mu_layout_init(&layout);
    mu_kept_head_encode(&own, meta + 2);
    mu_agent_copies_prefix(prefix, head->replicated, head->rank);
    spec = (struct mu_state_share_spec){.prefix = mu_span_str(prefix),
                                        .epoch = head->version.era,
                                        .step = head->version.step,
                                        .metadata = mu_span(meta, sizeof(meta)),
                                        .layout = &layout};
    if (f != NULL &&
        mu_layout_add(&layout, MU_SPAN_LIT("kept"), MU_DTYPE_U8, &head->bytes, 1) == 0 &&
        mu_state_share_new(&spec, &share, &msg) == 0) {
        f->source = c->source;
        f->vault = c->s->kept.vaults[vault];
        mu_kept_head_encode(head, f->head);
        share->read = read_version;
        share->released = on_released;
        share->owner = f;
        f = NULL;
    }
    mu_layout_fini(&layout);
    mu_free(f);
    return share;
}

static void forget(struct mu_agent_copies *c, struct mu_agent_kept_offer *o)
{
    if (o->given && c->donor != NULL) {
        mu_state_donor_withdraw(c->donor, o->share, 0);
    }
    mu_state_share_drop(o->share);
    *o = (struct mu_agent_kept_offer){0};
}

/* --- hashing ---------------------------------------------------------------------------------- */

static void run_job(struct mu_work *work)
{
    struct mu_agent_hash_job *job = MU_CONTAINER_OF(work, struct mu_agent_hash_job, work);
    uint32_t left = job->share->chunks - job->next;
    uint32_t count = left < HASH_STEP ? left : HASH_STEP;
    struct mu_errmsg msg;

    job->err = mu_state_share_hash(job->share, job->next, count);
    job->next += count;
    if (job->err == 0 && job->next == job->share->chunks) {
        job->err = mu_state_share_seal(job->share, &job->c->identity, &msg);
    }
}

static void end_job(struct mu_agent_hash_job *job)
{
    struct mu_agent_copies *c = job->c;

    mu_state_share_drop(job->share);
    mu_free(job);
    c->hashing = false;
    mu_agent_copies_wake(c);
}

static void job_done(struct mu_work *work)
{
    struct mu_agent_hash_job *job = MU_CONTAINER_OF(work, struct mu_agent_hash_job, work);
    struct mu_agent_copies *c = job->c;
    struct mu_agent_kept_offer *o = &c->offers[job->vault];
    bool whole = job->next == job->share->chunks;

    if (o->share != job->share || c->stopping) {
        end_job(job); /* it was forgotten meanwhile */
    } else if (job->err != 0) {
        forget(c, o);
        end_job(job);
    } else if (!whole && mu_env_work(c->s->env, &job->work) == 0) {
        return;
    } else {
        o->given = whole && mu_state_donor_add(c->donor, o->share) == 0;
        if (!o->given) {
            forget(c, o);
        }
        end_job(job);
    }
}

static void begin_job(struct mu_agent_copies *c, uint32_t vault, const struct mu_kept_head *head)
{
    struct mu_agent_kept_offer *o = &c->offers[vault];
    struct mu_agent_hash_job *job = mu_calloc(1, sizeof(*job));
    struct mu_state_share *share = new_share(c, vault, head);

    if (job == NULL || share == NULL) {
        mu_state_share_drop(share);
        mu_free(job);
        return;
    }
    *job = (struct mu_agent_hash_job){
        .work = {.run = run_job, .done = job_done}, .c = c, .share = share, .vault = vault};
    if (mu_env_work(c->s->env, &job->work) != 0) {
        mu_state_share_drop(share);
        mu_free(job);
        return;
    }
    o->share = mu_state_share_hold(share);
    o->head = *head;
    c->hashing = true;
}

/* --- looking ---------------------------------------------------------------------------------- */

static bool is_same(const struct mu_kept_head *a, const struct mu_kept_head *b)
{
    return mu_kept_version_cmp(&a->version, &b->version) == 0 && a->rank == b->rank &&
           a->world == b->world && a->replicated == b->replicated && a->bytes == b->bytes;
}

static void look_at(struct mu_agent_copies *c, uint32_t vault, struct mu_kept_head *ret,
                    bool *ret_whole)
{
    const struct mu_agent_kept *k = &c->s->kept;
    struct mu_agent_kept_offer *o = &c->offers[vault];
    uint64_t *size = &c->sizes[vault / MU_KEPT_VAULTS];
    uint8_t bytes[MU_KEPT_HEAD_LEN];

    *ret_whole = c->source->read(&k->vaults[vault], 0, bytes, sizeof(bytes)) == 0 &&
                 mu_kept_head_decode(bytes, k->bytes, ret) == 0;
    if (o->share != NULL && (!*ret_whole || !is_same(ret, &o->head))) {
        forget(c, o);
    }
    if (*ret_whole && ret->bytes > *size) {
        *size = ret->bytes;
    }
}

/* Whether it is of use for those who hold copies: of the attempt that runs, or what it loaded. */
static bool is_of_use(const struct mu_agent_copies *c, const struct mu_kept_head *h)
{
    const struct mu_kept_answer *a = &c->answer;

    return c->round != NULL && !h->replicated &&
           ((h->version.era == a->era && h->version.nonce == a->nonce) ||
            (a->found && mu_kept_version_cmp(&h->version, &a->version) == 0));
}

/* The vault of a worker place that is hashed next: what somebody waits for, or the newest version.
 * UINT32_MAX: none. */
static uint32_t pick(struct mu_agent_copies *c, uint32_t local_rank, struct mu_kept_head *ret)
{
    uint32_t first = local_rank * MU_KEPT_VAULTS;
    uint32_t best = UINT32_MAX;
    bool urgent = false;

    for (uint32_t i = first; i < first + MU_KEPT_VAULTS; i++) {
        struct mu_kept_head h;
        bool whole;

        look_at(c, i, &h, &whole);
        if (whole && c->offers[i].wanted && !urgent && c->offers[i].share == NULL) {
            urgent = true;
            best = i;
            *ret = h;
        } else if (whole && !urgent && is_of_use(c, &h) &&
                   (best == UINT32_MAX || mu_kept_version_cmp(&h.version, &ret->version) > 0)) {
            best = i;
            *ret = h;
        }
    }
    return best == UINT32_MAX || c->offers[best].share != NULL ? UINT32_MAX : best;
}

static void look(struct mu_agent_copies *c)
{
    for (uint32_t i = 0; i < c->s->config.policy.workers; i++) {
        struct mu_kept_head head;
        uint32_t vault = pick(c, i, &head);

        if (vault != UINT32_MAX && !c->hashing && c->donor != NULL) {
            begin_job(c, vault, &head);
        }
    }
}

void mu_agent_copies_want(struct mu_agent_copies *c, const struct mu_kept_version *version,
                          bool replicated, uint32_t rank)
{
    const struct mu_agent_kept *k = &c->s->kept;

    for (uint32_t i = 0; i < k->made; i++) {
        if (k->whole[i] && mu_kept_version_cmp(&k->heads[i].version, version) == 0 &&
            k->heads[i].replicated == replicated && (replicated || k->heads[i].rank == rank)) {
            c->offers[i].wanted = true;
            mu_agent_copies_wake(c);
            return;
        }
    }
}

/* --- life ------------------------------------------------------------------------------------- */

static void free_donor(struct mu_agent_copies *c)
{
    mu_state_donor_free(c->donor);
    c->donor = NULL;
    mu_agent_settle(c->s); /* may free `c` */
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_agent_copies *c = MU_CONTAINER_OF(timer, struct mu_agent_copies, timer);
    mu_mono_t now = mu_env_now(c->s->env).mono;

    if (c->stopped) {
        free_donor(c);
        return;
    }
    mu_env_timer_arm(c->s->env, &c->timer, mu_mono_add_ms(now, LOOK_MS));
    if (c->stopping) {
        mu_agent_settle(c->s);
        return;
    }
    look(c);
    mu_agent_copiers_look(c);
    mu_agent_fetches_look(c);
}

void mu_agent_copies_wake(struct mu_agent_copies *c)
{
    mu_env_timer_arm(c->s->env, &c->timer, mu_env_now(c->s->env).mono);
}

void mu_agent_copies_start(struct mu_agent_service *s)
{
    struct mu_agent_copies *c = mu_calloc(1, sizeof(*c));
    uint8_t seed[MU_IDENTITY_SEED_LEN];

    if (c == NULL) {
        return;
    }
    mu_list_init(&c->copiers);
    mu_list_init(&c->fetches);
    mu_timer_init(&c->timer, on_timer);
    c->s = s;
    c->source = s->kept.source;
    c->wanted = s->config.keep_copies;
    c->total = s->kept.bytes * s->kept.made;
    c->offers = mu_calloc(s->kept.made, sizeof(*c->offers));
    c->sizes = mu_calloc(s->config.policy.workers, sizeof(*c->sizes));
    mu_env_entropy(s->env, seed, sizeof(seed));
    if (c->offers == NULL || c->sizes == NULL || mu_identity_from_seed(&c->identity, seed) != 0) {
        mu_free(c->offers);
        mu_free(c->sizes);
        mu_free(c);
        return;
    }
    s->kept.copies = c;
}

static void on_stopped(void *context)
{
    struct mu_agent_copies *c = context;

    c->stopped = true;
    mu_agent_copies_wake(c); /* it is freed on a later turn */
}

bool mu_agent_copies_listen(struct mu_agent_copies *c)
{
    struct mu_state_donor_config config = mu_state_donor_config_defaults();
    struct mu_agent_service *s = c->s;
    struct mu_addr own = {.kind = MU_ADDR_TCP};
    struct mu_errmsg msg = {{0}};

    if (c->donor != NULL || c->stopping) {
        return !c->stopping;
    }
    (void)snprintf(own.host, sizeof(own.host), "%s", s->rdzv->addr);
    if (mu_rdzv_place(s->env, &own) != 0) {
        (void)snprintf(own.host, sizeof(own.host), "::");
    }
    own.port = 0;
    config.listen = own;
    config.name = s->rdzv->node;
    config.gate.slots = DOWNLOADS;
    config.stopped = on_stopped;
    config.context = c;
    if (mu_state_donor_start(s->env, &config, &c->donor, &msg) != 0) {
        mu_agent_log(s, "no copies of kept states: %s", msg.text);
        return false;
    }
    own = *mu_state_donor_addr(c->donor);
    (void)snprintf(own.host, sizeof(own.host), "%s", s->rdzv->addr);
    (void)mu_addr_format(&own, c->addr, sizeof(c->addr));
    mu_agent_copies_wake(c);
    return true;
}

static void stop(struct mu_agent_copies *c)
{
    c->stopping = true;
    for (uint32_t i = 0; i < c->s->kept.made; i++) {
        forget(c, &c->offers[i]);
    }
    if (c->donor != NULL) {
        mu_state_donor_stop(c->donor);
    }
}

bool mu_agent_kept_idle(struct mu_agent_service *s)
{
    struct mu_agent_copies *c = s->kept.copies;
    bool idle;

    if (c == NULL) {
        return true;
    }
    if (!c->stopping) {
        stop(c);
        mu_agent_copies_wake(c);
    }
    idle = mu_agent_copiers_idle(c);
    idle = mu_agent_fetches_idle(c) && idle;
    return idle && c->donor == NULL && !c->hashing;
}

void mu_agent_copies_fini(struct mu_agent_service *s)
{
    struct mu_agent_copies *c = s->kept.copies;

    if (c != NULL) {
        mu_env_timer_arm(s->env, &c->timer, MU_MONO_NEVER);
        mu_identity_fini(&c->identity);
        mu_free(c->offers);
        mu_free(c->sizes);
        mu_free(c);
        s->kept.copies = NULL;
    }
}
