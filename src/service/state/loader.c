#include "service/state/loader.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"
#include "service/state/loader_internal.h"

#define RESTARTS_MAX 64
#define WAITING_MAX  256 /* asks of one donor */
#define LEAVE_MS     5   /* how often we check whether the memory is free */
#define SAMPLE_MS    100 /* of the rate */

struct mu_state_loader_config mu_state_loader_config_defaults(void)
{
    return (struct mu_state_loader_config){
        .name = "muster",
        .idle_ms = 30000,
        .stall_ms = 5000,
        .connect_ms = 5000,
        .settle_ms = 1000,
        .again_ms = 500,
        .progress_ms = 100,
        .links_max = 256,
    };
}

static mu_mono_t now_of(const struct mu_state_loader *l)
{
    return mu_env_now(l->env).mono;
}

/* --- donors ----------------------------------------------------------------------------------- */

static int resolve(struct mu_state_loader *l, const char *text, struct mu_addr *ret,
                   struct mu_errmsg *reterr_msg)
{
    return l->config.resolve != NULL ? l->config.resolve(l->config.context, text, ret, reterr_msg)
                                     : mu_addr_parse(text, 0, ret, reterr_msg);
}

static struct mu_state_link *find_link(struct mu_state_loader *l, const char *name)
{
    MU_LIST_FOREACH (it, &l->links) {
        struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        if (strcmp(k->name, name) == 0) {
            return k;
        }
    }
    return NULL;
}

static int new_link(struct mu_state_loader *l, const char *name, struct mu_state_link **ret,
                    struct mu_errmsg *reterr_msg)
{
    struct mu_state_link *k;
    struct mu_addr addr;
    int err;

    if (strlen(name) > MU_STATE_ADDR_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "the address of a donor may have at most %d bytes",
                      MU_STATE_ADDR_MAX);
    }
    if (l->link_count >= l->config.links_max) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "there are at most %u donors",
                      (unsigned)l->config.links_max);
    }
    err = resolve(l, name, &addr, reterr_msg);
    if (err != 0) {
        return err;
    }
    k = mu_calloc(1, sizeof(*k));
    if (k == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    k->loader = l;
    k->addr = addr;
    mu_buf_init(&k->waiting, WAITING_MAX * sizeof(uint32_t));
    (void)snprintf(k->name, sizeof(k->name), "%s", name);
    mu_list_push(&l->links, &k->link);
    l->link_count++;
    *ret = k;
    return 0;
}

struct mu_state_link *mu_state_loader_link(struct mu_state_loader *l, const char *name,
                                           struct mu_errmsg *reterr_msg)
{
    struct mu_state_link *k = NULL;

    return find_link(l, name) != NULL || new_link(l, name, &k, reterr_msg) != 0 ? NULL : k;
}

int mu_state_loader_add(struct mu_state_loader *l, const char *addr, struct mu_errmsg *reterr_msg)
{
    struct mu_state_link *k = NULL;
    int err = find_link(l, addr) != NULL ? 0 : new_link(l, addr, &k, reterr_msg);

    if (k != NULL) {
        /* A donor that comes this late is not asked what it has, but for the state that is being
         * loaded. */
        k->found = l->phase > MU_STATE_ASKING;
        mu_env_timer_arm(l->env, &l->timer, now_of(l));
    }
    return err;
}

/* --- progress and report ---------------------------------------------------------------------- */

static void take_sample(struct mu_state_loader *l, uint64_t bytes)
{
    size_t last = (l->sample_count + MU_STATE_SAMPLES - 1) % MU_STATE_SAMPLES;

    if (l->sample_count != 0 &&
        mu_mono_since(l->samples[last].at, now_of(l)) < SAMPLE_MS * MU_NS_PER_MS) {
        return;
    }
    l->samples[l->sample_count % MU_STATE_SAMPLES].at = now_of(l);
    l->samples[l->sample_count % MU_STATE_SAMPLES].bytes = bytes;
    l->sample_count++;
}

/* The rate over the last three seconds or so. */
static uint64_t rate(const struct mu_state_loader *l, uint64_t bytes)
{
    size_t first = l->sample_count < MU_STATE_SAMPLES ? 0 : l->sample_count % MU_STATE_SAMPLES;
    uint64_t ns;

    if (l->sample_count == 0 || bytes < l->samples[first].bytes) {
        return 0;
    }
    ns = mu_mono_since(l->samples[first].at, now_of(l));
    return ns == 0 ? 0 : (uint64_t)((double)(bytes - l->samples[first].bytes) * 1e9 / (double)ns);
}

void mu_state_loader_progress(const struct mu_state_loader *l, struct mu_state_loader_progress *ret)
{
    *ret = (struct mu_state_loader_progress){
        .entry = l->has_want ? &l->want.entry : NULL,
        .signer = l->has_want ? &l->want.signer : NULL,
        .resumed = l->resumed_bytes,
        .wasted = l->wasted_before,
        .lost = l->lost,
        .restarts = l->restarts,
        .total = l->has_want ? l->want.entry.bytes : 0,
        .bytes = l->resumed_bytes > l->done_bytes ? l->resumed_bytes : l->done_bytes,
    };
    if (l->has_fetch) {
        ret->bytes = mu_state_fetch_bytes_done(&l->fetch);
        ret->wasted += mu_state_fetch_bytes_wasted(&l->fetch);
        ret->bytes_per_s = rate(l, ret->bytes);
    } else if (l->whole) {
        ret->bytes = ret->total;
    }
    MU_LIST_FOREACH (it, &l->links) {
        const struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        ret->banned += k->banned ? 1 : 0;
        ret->donors += k->stream != 0 ? 1 : 0;
    }
}

static void tell_progress(struct mu_state_loader *l)
{
    struct mu_state_loader_progress p;

    if (l->phase >= MU_STATE_LEAVING || !mu_mono_reached(l->progress_at, now_of(l))) {
        return;
    }
    l->progress_at = mu_mono_add_ms(now_of(l), l->config.progress_ms);
    mu_state_loader_progress(l, &p);
    if (l->has_fetch) {
        take_sample(l, p.bytes);
    }
    if (l->config.progress != NULL && !l->config.progress(l->config.context, &p)) {
        l->canceled = true;
    }
}

/* Reports the donors that were not asked for a chunk. */
static int report_links(const struct mu_state_loader *l, struct mu_buf *out)
{
    int err = 0;

    MU_LIST_FOREACH (it, &l->links) {
        const struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);
        char line[sizeof(k->name) + sizeof(k->text) + 32];
        const char *what = k->text[0] != '\0' ? k->text
                           : k->status != 0   ? muster_strerror(k->status)
                           : !k->asked        ? "did not answer in time"
                                              : "does not have this state";

        if (k->is_donor || err != 0) {
            continue;
        }
        (void)snprintf(line, sizeof(line), "%s: %s%s\n", k->name, k->banned ? "banned: " : "",
                       what);
        err = mu_buf_append(out, mu_span_str(line));
    }
    return err;
}

int mu_state_loader_report(const struct mu_state_loader *l, struct mu_buf *out)
{
    int err = mu_buf_append(out, mu_buf_span(&l->report));

    if (err == 0 && l->has_fetch) {
        err = mu_state_fetch_report(&l->fetch, out);
    }
    return err != 0 || l->told ? err : report_links(l, out);
}

bool mu_state_loader_row(const struct mu_state_loader *l, size_t i, struct mu_state_row *ret)
{
    MU_LIST_FOREACH (it, &l->links) {
        const struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);
        size_t rows = k->entry_count == 0 ? 1 : k->entry_count;

        if (i >= rows) {
            i -= rows;
            continue;
        }
        *ret = (struct mu_state_row){.donor = k->name, .text = k->text};
        if (k->entry_count != 0) {
            ret->entry = &k->entries[i].entry;
            ret->signer = &k->entries[i].signer;
        } else if (k->status != 0) {
            ret->status = k->status;
        } else {
            ret->status = k->asked ? MUSTER_ENOENT : MUSTER_ETIMEDOUT;
            ret->text = k->asked ? "it does not have this state" : "it did not answer in time";
        }
        return true;
    }
    return false;
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Ends landing, asking and serving; the rest follows when nothing uses the memory any more. */
static void leave(struct mu_state_loader *l)
{
    l->phase = MU_STATE_LEAVING;
    if (l->has_fetch) {
        /* Chunks that are still being hashed must not count: they would not be put into place. */
        mu_state_fetch_cancel(&l->fetch);
    }
    MU_LIST_FOREACH (it, &l->links) {
        struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        mu_state_fetching_unaim(k);
        k->wanted = false;
        if (k->stream != 0 && k->live && !k->closing) {
            (void)mu_rpc_client_cancel(&k->client, k->stream);
        }
        k->stream = k->have_call = k->swarm_call = 0;
    }
    if (l->served && !(l->whole && l->config.keep)) {
        mu_state_donor_withdraw(l->config.donor, l->share, 0);
    }
    mu_env_timer_arm(l->env, &l->timer, now_of(l));
}

void mu_state_loader_end(struct mu_state_loader *l, int status, const char *text)
{
    if (l->phase < MU_STATE_LEAVING) {
        l->again = false;
        l->status = mu_err(&l->text, status, "%s", text);
        leave(l);
    }
}

void mu_state_loader_restart(struct mu_state_loader *l)
{
    if (l->restarts >= RESTARTS_MAX) {
        mu_state_loader_end(l, MUSTER_ENOENT,
                            "every version was replaced before it was loaded; try again");
        return;
    }
    l->restarts++;
    l->again = true;
    leave(l);
}

static bool is_free(const struct mu_state_loader *l)
{
    return l->jobs == 0 &&
           (l->share == NULL || !l->served || (l->whole && l->config.keep) || l->share->refs == 1);
}

static void go_on(struct mu_state_loader *l)
{
    (void)mu_state_fetch_report(&l->fetch, &l->report);
    l->wasted_before +=
        mu_state_fetch_bytes_wasted(&l->fetch) + mu_state_fetch_bytes_done(&l->fetch);
    mu_state_fetching_fini(l);
    mu_state_share_drop(l->share);
    l->share = NULL;
    l->served = false;
    l->sample_count = 0;
    mu_state_ask_begin(l);
}

static void tell_end(struct mu_state_loader *l)
{
    struct mu_state_share *share = l->share;

    if (l->has_fetch) {
        (void)mu_state_fetch_report(&l->fetch, &l->report);
        l->wasted_before += mu_state_fetch_bytes_wasted(&l->fetch);
        l->done_bytes = mu_state_fetch_bytes_done(&l->fetch);
    }
    (void)report_links(l, &l->report);
    if (share != NULL) {
        share->have = NULL;
        share->have_count = share->chunks;
    }
    l->told = true;
    mu_state_fetching_fini(l);
    l->share = NULL;
    if (l->status != 0) {
        mu_state_share_drop(share);
        share = NULL;
    }
    MU_LIST_FOREACH (it, &l->links) {
        mu_state_link_close(MU_CONTAINER_OF(it, struct mu_state_link, link));
    }
    l->config.ended(l->config.context, l->status, l->text.text, share);
}

static bool all_closed(const struct mu_state_loader *l)
{
    MU_LIST_FOREACH (it, &l->links) {
        if (MU_CONTAINER_OF(it, struct mu_state_link, link)->live) {
            return false;
        }
    }
    return true;
}

/* --- the turn --------------------------------------------------------------------------------- */

static void check_time(struct mu_state_loader *l)
{
    mu_mono_t now = now_of(l);

    if (l->canceled) {
        mu_state_loader_end(l, MUSTER_ECANCELED, "canceled");
    } else if (l->phase == MU_STATE_FETCHING) {
        if (mu_mono_reached(mu_state_fetch_deadline(&l->fetch), now)) {
            mu_state_fetch_tick(&l->fetch, now);
        }
    } else if (l->phase < MU_STATE_FETCHING && mu_mono_reached(l->deadline, now)) {
        mu_state_loader_end(l, MUSTER_ETIMEDOUT,
                            l->last.text[0] != '\0' ? l->last.text
                                                    : "no donor said in time what it has");
    } else if (l->phase < MU_STATE_RESUMING && mu_mono_reached(l->idle_at, now)) {
        mu_state_loader_end(l, MUSTER_ETIMEDOUT,
                            l->last.text[0] != '\0' ? l->last.text
                                                    : "no donor sent anything in time");
    }
}

static void rearm(struct mu_state_loader *l)
{
    mu_mono_t at = MU_MONO_NEVER;

    switch (l->phase) {
    case MU_STATE_ASKING:
    case MU_STATE_OFFERING:
        at = mu_state_ask_deadline(l);
        break;
    case MU_STATE_RESUMING:
    case MU_STATE_FETCHING:
        at = mu_state_fetching_deadline(l);
        break;
    case MU_STATE_LEAVING:
        at = l->jobs == 0 ? mu_mono_add_ms(now_of(l), LEAVE_MS) : MU_MONO_NEVER;
        break;
    case MU_STATE_ENDED:
        break;
    }
    if (l->phase < MU_STATE_LEAVING) {
        at = mu_mono_min(at, l->progress_at);
        at = l->canceled ? now_of(l) : at;
    }
    mu_env_timer_arm(l->env, &l->timer, at);
}

void mu_state_loader_turn(struct mu_state_loader *l)
{
    bool closed;

    if (l->in_turn || l->closed) {
        return;
    }
    l->in_turn = true;
    check_time(l);
    if (l->phase == MU_STATE_LEAVING && is_free(l)) {
        if (l->again) {
            go_on(l);
        } else {
            l->phase = MU_STATE_ENDED;
            tell_end(l);
        }
    }
    if (l->phase < MU_STATE_RESUMING) {
        mu_state_ask_turn(l);
    }
    if (l->phase == MU_STATE_RESUMING || l->phase == MU_STATE_FETCHING) {
        mu_state_fetching_turn(l);
    }
    tell_progress(l);
    MU_LIST_FOREACH (it, &l->links) {
        mu_state_link_flush(MU_CONTAINER_OF(it, struct mu_state_link, link));
    }
    rearm(l);
    l->in_turn = false;
    closed = l->phase == MU_STATE_ENDED && all_closed(l);
    if (closed) {
        l->closed = true;
        mu_env_timer_arm(l->env, &l->timer, MU_MONO_NEVER);
        l->config.closed(l->config.context);
    }
}

static void on_timer(struct mu_timer *timer)
{
    mu_state_loader_turn(MU_CONTAINER_OF(timer, struct mu_state_loader, timer));
}

/* --- life ------------------------------------------------------------------------------------- */

int mu_state_loader_start(struct mu_env *env, const struct mu_state_loader_config *config,
                          struct mu_state_loader **ret, struct mu_errmsg *reterr_msg)
{
    struct mu_state_loader *l = mu_calloc(1, sizeof(*l));

    if (l == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    l->env = env;
    l->config = *config;
    mu_list_init(&l->links);
    mu_timer_init(&l->timer, on_timer);
    mu_state_offer_init(&l->offer);
    mu_buf_init(&l->report, (size_t)1 << 20);
    l->deadline =
        config->timeout_ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(now_of(l), config->timeout_ms);
    l->progress_at = mu_mono_add_ms(now_of(l), config->progress_ms);
    mu_state_ask_begin(l);
    mu_env_timer_arm(env, &l->timer, now_of(l));
    *ret = l;
    return 0;
}

void mu_state_loader_expect(struct mu_state_loader *l, bool more)
{
    l->config.expect_more = more;
    if (!l->closed) {
        mu_env_timer_arm(l->env, &l->timer, now_of(l));
    }
}

void mu_state_loader_cancel(struct mu_state_loader *l)
{
    l->canceled = true;
    if (!l->closed) {
        mu_env_timer_arm(l->env, &l->timer, now_of(l));
    }
}

void mu_state_loader_free(struct mu_state_loader *l)
{
    if (l == NULL) {
        return;
    }
    MU_ASSERT(l->closed);
    MU_LIST_FOREACH_SAFE (it, tmp, &l->links) {
        struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        mu_free(k->entries);
        mu_free(k->bounce);
        mu_buf_fini(&k->waiting);
        mu_free(k);
    }
    mu_state_offer_fini(&l->offer);
    mu_buf_fini(&l->report);
    mu_free(l);
}
