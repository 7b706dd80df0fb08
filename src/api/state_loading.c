/* The public state download: a load, on the loop. */
#include <stdio.h>
#include <string.h>

#include "api/state_api.h"
#include "core/alloc.h"

/* --- what the loader asks --------------------------------------------------------------------- */

static int resolve(void *context, const char *text, struct mu_addr *ret,
                   struct mu_errmsg *reterr_msg)
{
    muster_state_loading *g = context;

    return g->by->peers != NULL ? mu_state_peers_resolve(g->by->peers, text, ret, reterr_msg)
                                : mu_addr_parse(text, 0, ret, reterr_msg);
}

/* A load that was given addresses on this host may dial others there. */
static bool may_dial(void *context, const char *text)
{
    return ((muster_state_loading *)context)->near || mu_state_addr_is_elsewhere(text);
}

static int accept(void *context, struct mu_state_plan *plan, struct mu_errmsg *reterr_msg)
{
    muster_state_loading *g = context;

    return mu_state_target_accept(&g->target, plan, reterr_msg);
}

static void note_progress(muster_state_loading *g, const struct mu_state_loader_progress *p)
{
    (void)pthread_mutex_lock(&g->lock);
    if (p->entry != NULL) {
        mu_state_info_of(&g->info, p->entry, p->signer);
    }
    g->last = (struct muster_state_progress){
        .info = p->entry == NULL ? NULL : &g->info,
        .bytes = p->bytes,
        .total = p->total,
        .resumed = p->resumed,
        .wasted = p->wasted,
        .bytes_per_s = (double)p->bytes_per_s,
        .donors = p->donors,
        .banned = p->banned,
        .lost = p->lost,
        .restarts = p->restarts,
    };
    (void)pthread_mutex_unlock(&g->lock);
}

static bool on_progress(void *context, const struct mu_state_loader_progress *p)
{
    muster_state_loading *g = context;

    note_progress(g, p);
    return g->progress == NULL || g->progress(g->context, &g->last);
}

struct muster_state_row *mu_state_loading_row(muster_state_loading *g)
{
    size_t i = g->row_count++;

    return i < g->row_cap ? &g->rows[i] : NULL;
}

static void take_rows(muster_state_loading *g)
{
    struct mu_state_row row;

    for (size_t i = 0; mu_state_loader_row(g->loader, i, &row); i++) {
        struct muster_state_row *to = mu_state_loading_row(g);

        if (to != NULL) {
            *to = (struct muster_state_row){.status = row.status};
            (void)snprintf(to->donor, sizeof(to->donor), "%.299s", row.donor);
            (void)snprintf(to->why, sizeof(to->why), "%.255s", row.text);
            if (row.entry != NULL) {
                mu_state_info_of(&to->info, row.entry, row.signer);
                to->have = row.entry->have;
                to->chunks = row.entry->chunks;
            }
        }
    }
}

static void on_ended(void *context, int status, const char *text, struct mu_state_share *share)
{
    muster_state_loading *g = context;
    struct mu_state_loader_progress p;

    if (g->loader != NULL) {
        mu_state_loader_progress(g->loader, &p);
        note_progress(g, &p);
    }
    g->status = mu_err(&g->text, status, "%s", text);
    g->share = share;
    if (g->swarm_load == NULL) {
        (void)mu_state_loader_report(g->loader, &g->report);
    }
    if (g->rows != NULL && g->loader != NULL) {
        take_rows(g);
    }
}

static void on_closed(void *context)
{
    muster_state_loading *g = context;

    (void)pthread_mutex_lock(&g->lock);
    g->closed = true;
    if (!g->refused) {
        (void)mu_queued_push(&g->place, MUSTER_QUEUED_LOADED);
    }
    (void)pthread_cond_broadcast(&g->cond);
    (void)pthread_mutex_unlock(&g->lock);
}

void mu_state_loading_callbacks(muster_state_loading *g)
{
    g->config.resolve = resolve;
    g->config.may_dial = may_dial;
    g->config.accept = accept;
    g->config.progress = on_progress;
    g->config.ended = on_ended;
    g->config.closed = on_closed;
    g->config.context = g;
}

/* --- what other threads ask ------------------------------------------------------------------- */

void mu_state_loading_start(struct mu_door *door)
{
    struct mu_state_load_door *d = MU_CONTAINER_OF(door, struct mu_state_load_door, door);
    struct mu_state_donor_config config = mu_state_donor_config_defaults();
    muster_state_loading *g = d->g;

    if (g->listen != NULL) {
        d->err = mu_state_net_listen(g->by, g->listen, NULL, &config, &g->own_donor,
                                     g->config.own_addr, sizeof(g->config.own_addr), &d->msg);
        if (d->err == 0 && g->by->peers == NULL) {
            /* The donors know under which IP address they see us. */
            (void)mu_addr_format(mu_state_donor_addr(g->own_donor), g->config.own_addr,
                                 sizeof(g->config.own_addr));
        }
        g->config.donor = g->own_donor;
    }
    if (d->err == 0 && g->swarm != NULL) {
        d->err = mu_state_loading_in_swarm(g, d->donors, d->donor_count, &d->msg);
        g->refused = d->err != 0;
        mu_door_open(door);
        return;
    }
    if (d->err == 0) {
        d->err = mu_state_loader_start(g->by->env, &g->config, &g->loader, &d->msg);
    }
    for (size_t i = 0; d->err == 0 && i < d->donor_count; i++) {
        d->err = mu_state_loader_add(g->loader, d->donors[i], &d->msg);
        if (d->err != 0) {
            mu_state_loader_cancel(g->loader);
        }
    }
    for (size_t i = 0; d->err == 0 && i < d->announced.count; i++) {
        mu_state_look_add(g, d->announced.items[i].data);
    }
    if (d->err == 0) {
        mu_state_look_start(g);
    }
    g->refused = d->err != 0;
    mu_door_open(door);
}

void mu_state_loading_cancel(muster_state_loading *g)
{
    if (g->swarm_load != NULL) {
        mu_state_swarm_load_cancel(g->swarm_load);
    } else {
        mu_state_loader_cancel(g->loader);
    }
}

void mu_state_loading_stop(struct mu_door *door)
{
    mu_state_loading_cancel(MU_CONTAINER_OF(door, struct mu_state_load_door, door)->g);
    mu_door_open(door);
}

void mu_state_loading_unlook(struct mu_door *door)
{
    mu_state_look_stop(MU_CONTAINER_OF(door, struct mu_state_load_door, door)->g);
    mu_door_open(door);
}

void mu_state_loading_free(struct mu_door *door)
{
    muster_state_loading *g = MU_CONTAINER_OF(door, struct mu_state_load_door, door)->g;

    if (g->swarm_load != NULL) {
        mu_state_swarm_load_free(g->swarm_load); /* it owns the loader */
    } else {
        mu_state_loader_free(g->loader);
    }
    mu_door_open(door);
}
