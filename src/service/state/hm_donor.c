#include "service/state/hm_donor.h"

#include <inttypes.h>
#include <stdio.h>

#include <muster/error.h>

#include "codec/bin/msgpack.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"

#define REFUSALS_MAX 64 /* streams that only get a refusal */

struct mu_hm_snapshot {
    struct mu_hm_state state;
    struct mu_hm_snapshot_config config;
    uint32_t refs;
};

/* A peer that downloads, or will be refused. */
struct download {
    struct mu_list link;
    struct mu_hm_donor *donor;
    struct mu_peer_items items;
    struct mu_timer timer;
    struct mu_hm_snapshot *snapshot; /* NULL before the request, and for a refusal */
    struct mu_hm_chunker chunker;
    struct mu_buf message; /* a message that is not sent yet */
    mu_mono_t until;       /* its snapshot was replaced: it may go on until then */
    bool slot;
    bool sent; /* all messages were sent */
};

struct mu_hm_donor {
    struct mu_env *env;
    struct mu_hm_donor_config config;
    char *name;
    struct mu_dht_id key;
    struct mu_buf subkey;
    struct mu_peer_items_handler handler;
    struct mu_list downloads;
    uint32_t streams;
    struct mu_hm_snapshot *snapshot;
    double priority;
    struct mu_timer timer; /* for the entry, and for the end */
    struct mu_dht_wish wish;
    double expiration; /* of the last entry */
    bool storing;
    bool changed;  /* since the write under way began */
    bool declared; /* our entry is not nil */
    bool stopping;
    struct mu_hm_donor_stats stats;
};

/* --- snapshots -------------------------------------------------------------------------------- */

int mu_hm_snapshot_new(const struct mu_hm_snapshot_config *config, struct mu_hm_snapshot **ret,
                       struct mu_errmsg *reterr_msg)
{
    struct mu_hm_snapshot *s = mu_calloc(1, sizeof(*s));
    int err;

    if (s == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "%s", muster_strerror(MUSTER_ENOMEM));
    }
    err = mu_hm_state_init(&s->state, &config->state, reterr_msg);
    if (err != 0) {
        mu_free(s);
        return err;
    }
    s->config = *config;
    s->refs = 1;
    *ret = s;
    return 0;
}

void mu_hm_snapshot_ref(struct mu_hm_snapshot *s)
{
    s->refs++;
}

void mu_hm_snapshot_unref(struct mu_hm_snapshot *s)
{
    if (s == NULL || --s->refs != 0) {
        return;
    }
    mu_hm_state_fini(&s->state);
    if (s->config.release != NULL) {
        s->config.release(s->config.context);
    }
    mu_free(s);
}

/* --- downloads -------------------------------------------------------------------------------- */

static bool is_sharing(const struct mu_hm_donor *d)
{
    return d->config.allowed && (d->snapshot != NULL || d->name == NULL) && !d->stopping;
}

static void free_download(struct download *x)
{
    struct mu_hm_donor *d = x->donor;

    mu_env_timer_arm(d->env, &x->timer, MU_MONO_NEVER);
    mu_list_remove(&x->link);
    mu_hm_snapshot_unref(x->snapshot);
    mu_buf_fini(&x->message);
    d->streams--;
    d->stats.active -= x->slot;
    mu_free(x);
}

static void cut_off(struct download *x, const char *why)
{
    char peer[MU_PEER_ID_TEXT_MAX];

    if (x->snapshot != NULL) {
        x->donor->stats.cut_off++;
        mu_log(MUSTER_LOG_INFO, "HM-DOWNLOAD-CUT", "peer=%s reason=\"%s\"",
               mu_peer_id_format(&x->items.peer, peer), why);
    }
    mu_peer_items_cancel(&x->items);
    free_download(x);
}

static void watch(struct download *x)
{
    mu_mono_t idle = mu_mono_add_ms(mu_env_now(x->donor->env).mono, x->donor->config.idle_ms);

    mu_env_timer_arm(x->donor->env, &x->timer, mu_mono_min(idle, x->until));
}

/* Prepares the next message, if none waits. 1, 0, or an error. */
static int prepare(struct download *x)
{
    return x->message.len != 0 ? 1 : mu_hm_chunker_next(&x->chunker, &x->message);
}

static void send_more(struct mu_peer_items *items)
{
    struct download *x = MU_CONTAINER_OF(items, struct download, items);
    int err;

    if (x->snapshot == NULL || x->sent) {
        return;
    }
    watch(x);
    while ((err = prepare(x)) == 1) {
        err = mu_peer_items_send(items, mu_buf_span(&x->message));
        if (err != 0) {
            break;
        }
        x->donor->stats.messages++;
        mu_buf_reset(&x->message);
    }
    if (err == 0) {
        x->sent = true;
        err = mu_peer_items_end(items);
    }
    if (err != 0 && err != MUSTER_EAGAIN) {
        mu_peer_items_fail(items, muster_strerror(err));
    }
}

/* One peer has at most half of the slots. */
static bool take_slot(struct download *x)
{
    struct mu_hm_donor *d = x->donor;
    uint32_t theirs = 0;

    MU_LIST_FOREACH (it, &d->downloads) {
        struct download *other = MU_CONTAINER_OF(it, struct download, link);

        theirs += other->slot && mu_peer_id_eq(&other->items.peer, &x->items.peer);
    }
    x->slot = d->stats.active < d->config.slots && theirs < (d->config.slots + 1) / 2;
    d->stats.active += x->slot;
    return x->slot;
}

static void on_item(struct mu_peer_items *items, struct mu_span message)
{
    struct download *x = MU_CONTAINER_OF(items, struct download, items);
    struct mu_hm_donor *d = x->donor;
    char peer[MU_PEER_ID_TEXT_MAX];

    if (x->snapshot != NULL || x->sent) {
        return; /* a peer sends one request only */
    }
    x->sent = true; /* until there is something to send */
    if (mu_hm_request_decode(message) != 0) {
        mu_peer_items_fail(items, "the request cannot be read");
    } else if (!is_sharing(d)) {
        d->stats.denied++;
        (void)mu_peer_items_end(items); /* no message: hivemind's way to refuse */
    } else if (!take_slot(x)) {
        d->stats.busy++;
        mu_peer_items_fail(items, "busy: all download slots are taken");
    } else {
        mu_log(MUSTER_LOG_DEBUG, "HM-DOWNLOAD", "peer=%s messages=%" PRIu64,
               mu_peer_id_format(&items->peer, peer), mu_hm_state_messages(&d->snapshot->state));
        d->stats.downloads++;
        x->sent = false;
        x->snapshot = d->snapshot;
        mu_hm_snapshot_ref(x->snapshot);
        mu_hm_chunker_init(&x->chunker, &x->snapshot->state);
        send_more(items);
    }
}

static void on_end(struct mu_peer_items *items)
{
    struct download *x = MU_CONTAINER_OF(items, struct download, items);

    if (x->snapshot == NULL && !x->sent) {
        (void)mu_peer_items_end(items); /* there was no request */
    }
}

static void on_ended(struct mu_peer_items *items, int status, const char *text)
{
    struct download *x = MU_CONTAINER_OF(items, struct download, items);

    (void)text;
    if (x->snapshot != NULL) {
        x->donor->stats.completed += status == 0 && x->sent;
        x->donor->stats.cut_off += status != 0 || !x->sent;
    }
    free_download(x);
}

static const struct mu_peer_items_events events = {
    .item = on_item,
    .end = on_end,
    .writable = send_more,
    .ended = on_ended,
};

static void on_idle(struct mu_timer *timer)
{
    struct download *x = MU_CONTAINER_OF(timer, struct download, timer);
    bool replaced = mu_mono_reached(x->until, mu_env_now(x->donor->env).mono);

    cut_off(x, replaced ? "its version was replaced" : "the peer read nothing for too long");
}

static struct mu_peer_items *on_opened(struct mu_peer_items_handler *h,
                                       const struct mu_peer_id *peer)
{
    struct mu_hm_donor *d = MU_CONTAINER_OF(h, struct mu_hm_donor, handler);
    struct download *x;

    (void)peer;
    if (d->streams >= d->config.slots + REFUSALS_MAX) {
        return NULL;
    }
    x = mu_calloc(1, sizeof(*x));
    if (x == NULL) {
        return NULL;
    }
    x->donor = d;
    x->items.on = &events;
    x->until = MU_MONO_NEVER;
    d->streams++;
    mu_buf_init(&x->message, SIZE_MAX);
    mu_timer_init(&x->timer, on_idle);
    mu_list_init(&x->link);
    mu_list_push(&d->downloads, &x->link);
    watch(x);
    return &x->items;
}

/* --- the entry in the DHT --------------------------------------------------------------------- */

static void declare(struct mu_hm_donor *d);

static void finish(struct mu_hm_donor *d)
{
    void (*stopped)(void *context) = d->config.stopped;
    void *context = d->config.context;

    mu_env_timer_arm(d->env, &d->timer, MU_MONO_NEVER);
    mu_hm_snapshot_unref(d->snapshot);
    mu_buf_fini(&d->subkey);
    mu_free(d->name);
    mu_free(d);
    if (stopped != NULL) {
        stopped(context);
    }
}

static void arm_after(struct mu_hm_donor *d, uint32_t ms)
{
    mu_env_timer_arm(d->env, &d->timer, mu_mono_add_ms(mu_env_now(d->env).mono, ms));
}

static void on_stored(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct mu_hm_donor *d = MU_CONTAINER_OF(wish, struct mu_hm_donor, wish);

    d->storing = false;
    if (op->count != 0 && op->results[0].stored != 0) {
        d->stats.declared++;
    } else {
        d->stats.unheard++;
        if (op->status != MUSTER_ECANCELED && op->status != MUSTER_ECLOSED) {
            mu_log(MUSTER_LOG_WARN, "HM-DECLARE-FAILED", "status=%s, trying again",
                   muster_errname(op->status));
        }
    }
    if (d->stopping && (!d->declared || op->status == MUSTER_ECLOSED)) {
        arm_after(d, 0); /* which ends the donor */
    } else if (d->changed) {
        declare(d);
    }
}

/* Writes our priority; nil when nothing is shared. */
static int store_entry(struct mu_hm_donor *d)
{
    struct mu_buf value;
    struct mu_mp_out out;
    double now = mu_dht_service_time(d->config.dht);
    double expiration = now + d->config.declare_ms / 1e3;
    struct mu_dht_put put;
    int err;

    /* A later record must expire later, or it is not accepted. */
    if (expiration <= d->expiration) {
        expiration = d->expiration + 1e-3;
    }
    mu_buf_init(&value, 16);
    out = mu_mp_out(&value);
    if (is_sharing(d)) {
        mu_mp_put_double(&out, d->priority);
    } else {
        mu_mp_put_nil(&out);
    }
    put = (struct mu_dht_put){d->key, mu_buf_span(&d->subkey), mu_buf_span(&value), expiration};
    d->wish.done = on_stored;
    err = out.err != 0 ? out.err : mu_dht_service_store(d->config.dht, &d->wish, &put, 1);
    mu_buf_fini(&value);
    if (err == 0) {
        d->expiration = expiration;
        d->declared = is_sharing(d);
        d->storing = true;
        d->changed = false;
    }
    return err;
}

/* Writes the entry, now or after the write under way, and again after a third of its life. */
static void declare(struct mu_hm_donor *d)
{
    d->changed = true;
    if (d->config.dht == NULL || (!is_sharing(d) && !d->declared)) {
        return;
    }
    if (!d->storing && store_entry(d) != 0) {
        d->stats.unheard++;
    }
    if (!d->stopping) {
        arm_after(d, d->config.declare_ms / 3);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_hm_donor *d = MU_CONTAINER_OF(timer, struct mu_hm_donor, timer);

    if (!d->stopping) {
        declare(d);
    } else if (d->storing) {
        d->declared = false; /* the last write was not heard; the entry expires by itself */
        mu_dht_service_cancel(&d->wish);
    } else {
        finish(d);
    }
}

/* --- life ------------------------------------------------------------------------------------- */

struct mu_hm_donor_config mu_hm_donor_config_defaults(void)
{
    return (struct mu_hm_donor_config){
        .allowed = true,
        .slots = 4,
        .declare_ms = 30000,
        .idle_ms = 60000,
        .goodbye_ms = 3000,
    };
}

static int prepare_entry(struct mu_hm_donor *d, const struct mu_hm_donor_config *config)
{
    struct mu_mp_out out = mu_mp_out(&d->subkey);

    mu_mp_put_bin(&out, mu_peer_id_span(&config->self));
    return out.err != 0 ? out.err : mu_hm_all_averagers(config->prefix, &d->key);
}

int mu_hm_donor_start(struct mu_env *env, const struct mu_hm_donor_config *config,
                      struct mu_hm_donor **ret, struct mu_errmsg *reterr_msg)
{
    struct mu_hm_donor *d = mu_calloc(1, sizeof(*d));
    int err;

    if (d == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "%s", muster_strerror(MUSTER_ENOMEM));
    }
    d->env = env;
    d->config = *config;
    mu_buf_init(&d->subkey, 128);
    mu_list_init(&d->downloads);
    mu_timer_init(&d->timer, on_timer);
    d->name = config->name == NULL ? NULL : mu_strndup(config->name, strlen(config->name));
    err = config->name != NULL && d->name == NULL ? MUSTER_ENOMEM : prepare_entry(d, config);
    if (err == 0 && d->name != NULL) {
        d->handler = (struct mu_peer_items_handler){.name = d->name, .opened = on_opened};
        err = mu_peer_items_serve(config->calls, &d->handler);
    }
    if (err != 0) {
        mu_buf_fini(&d->subkey);
        mu_free(d->name);
        mu_free(d);
        return mu_err(reterr_msg, err, "serve %s: %s",
                      config->name != NULL ? config->name : config->prefix, muster_strerror(err));
    }
    *ret = d;
    return 0;
}

void mu_hm_donor_set(struct mu_hm_donor *d, struct mu_hm_snapshot *snapshot)
{
    struct mu_hm_snapshot *old = d->snapshot;
    bool was = is_sharing(d);

    if (snapshot != NULL) {
        mu_hm_snapshot_ref(snapshot);
    }
    d->snapshot = snapshot;
    mu_hm_snapshot_unref(old);
    if (is_sharing(d) != was) {
        declare(d);
    }
}

void mu_hm_donor_replace(struct mu_hm_donor *d, struct mu_hm_snapshot *snapshot, uint32_t wait_ms)
{
    mu_mono_t until = mu_mono_add_ms(mu_env_now(d->env).mono, wait_ms);

    MU_LIST_FOREACH (it, &d->downloads) {
        struct download *x = MU_CONTAINER_OF(it, struct download, link);

        if (x->snapshot != NULL && x->snapshot != snapshot) {
            x->until = mu_mono_min(x->until, until);
            watch(x);
        }
    }
    mu_hm_donor_set(d, snapshot);
}

void mu_hm_donor_set_allowed(struct mu_hm_donor *d, bool allowed)
{
    bool was = is_sharing(d);

    d->config.allowed = allowed;
    if (is_sharing(d) != was) {
        declare(d);
    }
}

void mu_hm_donor_set_priority(struct mu_hm_donor *d, double priority)
{
    bool changed = priority < d->priority || priority > d->priority;

    d->priority = priority;
    if (changed && is_sharing(d)) {
        declare(d);
    }
}

void mu_hm_donor_stats(const struct mu_hm_donor *d, struct mu_hm_donor_stats *ret)
{
    *ret = d->stats;
}

void mu_hm_donor_stop(struct mu_hm_donor *d)
{
    if (d->stopping) {
        return;
    }
    if (d->name != NULL) {
        mu_peer_items_unserve(&d->handler);
    }
    while (!mu_list_empty(&d->downloads)) {
        cut_off(MU_CONTAINER_OF(d->downloads.next, struct download, link), "the donor stops");
    }
    d->stopping = true;
    declare(d);
    arm_after(d, d->storing ? d->config.goodbye_ms : 0);
}
