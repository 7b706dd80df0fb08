#include "service/state/hm_load.h"

#include <inttypes.h>

#include <muster/error.h>

#include "service/base/log.h"

/* The timer does all that the machine wants: neither a call nor we ourselves may be freed while a
 * callback of the call runs. */
static void pump_later(struct mu_hm_load *l)
{
    mu_env_timer_arm(l->env, &l->timer, mu_env_now(l->env).mono);
}

/* --- looking for donors ----------------------------------------------------------------------- */

static void on_looked(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct mu_hm_load *l = MU_CONTAINER_OF(wish, struct mu_hm_load, wish);
    bool found = op->count != 0 && op->results[0].type == MU_DHT_FOUND_DICTIONARY;

    l->looking = false;
    /* What was found counts, even if not all nodes could be asked. */
    mu_hm_download_found(&l->download, mu_env_now(l->env), found ? 0 : op->status,
                         found ? mu_buf_span(&op->results[0].value) : (struct mu_span){0});
    pump_later(l);
}

static void look(struct mu_hm_load *l)
{
    int err;

    if (l->config.known.len != 0) {
        mu_hm_download_found(&l->download, mu_env_now(l->env), 0, l->config.known);
        return;
    }
    l->wish.done = on_looked;
    err = mu_dht_service_get(l->config.dht, &l->wish, &l->key, 1, true);
    if (err != 0) {
        mu_hm_download_found(&l->download, mu_env_now(l->env), err, (struct mu_span){0});
        return;
    }
    l->looking = true;
}

/* --- a donor ---------------------------------------------------------------------------------- */

/* Gives the sink what the last message had. */
static void pass_on(struct mu_hm_load *l)
{
    const struct mu_hm_assembler *a = &l->download.assembler;
    struct mu_errmsg msg;
    int err = 0;

    if (a->piece.bytes.len == 0) {
        return;
    }
    if (l->begun != l->number) {
        l->begun = l->number;
        err = l->config.sink->begin(l->config.sink, mu_buf_span(&a->got.metadata), &msg);
    }
    err =
        err != 0 ? err : l->config.sink->put(l->config.sink, a->piece.offset, a->piece.bytes, &msg);
    if (err != 0) {
        mu_hm_download_fail(&l->download, err, msg.text);
    }
}

static void on_item(struct mu_peer_items *items, struct mu_span message)
{
    struct mu_hm_load *l = MU_CONTAINER_OF(items, struct mu_hm_load, items);

    mu_hm_download_item(&l->download, mu_env_now(l->env), l->number, message);
    pass_on(l);
    pump_later(l);
}

static void on_ended(struct mu_peer_items *items, int status, const char *text)
{
    struct mu_hm_load *l = MU_CONTAINER_OF(items, struct mu_hm_load, items);

    mu_hm_download_closed(&l->download, mu_env_now(l->env), l->number, status, text);
    pump_later(l);
}

static const struct mu_peer_items_events events = {.item = on_item, .ended = on_ended};

static void call(struct mu_hm_load *l, const struct mu_hm_download_event *e)
{
    int err;

    l->number = e->number;
    l->items.on = &events;
    mu_peer_items_open(l->config.calls, &l->items, &e->peer, l->config.name);
    err = mu_peer_items_send(&l->items, (struct mu_span){0}); /* an empty DownloadRequest */
    err = err != 0 ? err : mu_peer_items_end(&l->items);
    if (err != 0) {
        mu_peer_items_cancel(&l->items);
        mu_hm_download_closed(&l->download, mu_env_now(l->env), e->number, err,
                              muster_strerror(err));
    }
}

/* --- the pump --------------------------------------------------------------------------------- */

static void tell_failures(const struct mu_hm_download *d)
{
    for (size_t i = 0; i < d->donor_count; i++) {
        const struct mu_hm_donor_report *donor = &d->donors[i];
        char peer[MU_PEER_ID_TEXT_MAX];

        if (donor->status < 0) {
            mu_log(MUSTER_LOG_INFO, "HM-DONOR-FAILED", "peer=%s messages=%" PRIu64 " reason=\"%s\"",
                   mu_peer_id_format(&donor->peer, peer), donor->messages, donor->text.text);
        }
    }
}

static void pump(struct mu_hm_load *l)
{
    struct mu_hm_download_event e;

    while (mu_hm_download_next_event(&l->download, &e)) {
        switch (e.type) {
        case MU_HM_DOWNLOAD_FIND:
            look(l);
            break;
        case MU_HM_DOWNLOAD_OPEN:
            call(l, &e);
            break;
        case MU_HM_DOWNLOAD_DROP:
            mu_peer_items_cancel(&l->items);
            break;
        case MU_HM_DOWNLOAD_ENDED:
            l->ended = true;
            if (l->looking) {
                mu_dht_service_cancel(&l->wish);
            }
            break;
        }
    }
    if (!l->ended) {
        mu_env_timer_arm(l->env, &l->timer, mu_hm_download_deadline(&l->download));
    } else if (!l->looking) {
        tell_failures(&l->download);
        if (l->config.sink != NULL && mu_hm_download_status(&l->download) != 0) {
            l->config.sink->failed(l->config.sink);
        }
        l->done(l, mu_hm_download_status(&l->download), mu_hm_download_text(&l->download));
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_hm_load *l = MU_CONTAINER_OF(timer, struct mu_hm_load, timer);

    mu_hm_download_tick(&l->download, mu_env_now(l->env));
    pump(l);
}

/* --- life ------------------------------------------------------------------------------------- */

int mu_hm_load_start(struct mu_env *env, const struct mu_hm_load_config *config,
                     struct mu_hm_load *l)
{
    void (*done)(struct mu_hm_load * load, int status, const char *text) = l->done;
    struct mu_hm_download_config download = config->download;
    struct mu_dht_id key;
    int err = mu_hm_all_averagers(config->prefix, &key);

    if (err != 0) {
        return err;
    }
    *l = (struct mu_hm_load){.done = done, .env = env, .config = *config, .key = key};
    mu_env_entropy(env, &download.seed, sizeof(download.seed));
    download.state.pass_on = config->sink != NULL;
    mu_hm_download_init(&l->download, &download, mu_env_now(env));
    mu_timer_init(&l->timer, on_timer);
    pump_later(l);
    return 0;
}

void mu_hm_load_cancel(struct mu_hm_load *l)
{
    if (!l->ended) {
        mu_hm_download_cancel(&l->download);
        pump_later(l);
    }
}

void mu_hm_load_take(struct mu_hm_load *l, struct mu_hm_loaded *ret, struct mu_peer_id *ret_from)
{
    mu_hm_download_take(&l->download, ret, ret_from);
}

const struct mu_hm_download *mu_hm_load_machine(const struct mu_hm_load *l)
{
    return &l->download;
}

void mu_hm_load_fini(struct mu_hm_load *l)
{
    mu_hm_download_fini(&l->download);
}
