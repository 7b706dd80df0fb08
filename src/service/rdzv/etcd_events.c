/* Reports what the machine says, in the form that all backends share. */
#include "service/rdzv/etcd.h"

#include <inttypes.h>
#include <stdio.h>

static void tell_assigned(struct mu_rdzv_etcd *n, const struct mu_retcd_update *up)
{
    char url[MU_RDZV_ETCD_URL_CAP];
    struct mu_rdzv_assignment assignment = {
        .round = up->version,
        .rank = up->rank,
        .world = up->world,
        .restarts_left = UINT32_MAX,
        .store = url,
        .torch_1 = n->config.torch_1,
        .workers_serve = true,
    };

    (void)mu_rdzv_etcd_url(url, &n->config, n->base.run_id, up->version);
    n->state = MU_RDZV_ETCD_IN;
    n->version = up->version;
    n->world = up->world;
    n->rank = up->rank;
    n->waiting = 0;
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_SUCCEEDED, n->rank, "etcd.assigned",
                           "rank %" PRIu32 " of %" PRIu32 " in version %" PRIu64, up->rank,
                           up->world, up->version);
    n->base.events.assigned(n->base.events.context, &assignment);
}

static void end_round(struct mu_rdzv_etcd *n, struct mu_rdzv_ending *ending)
{
    n->state = MU_RDZV_ETCD_BETWEEN;
    n->upscale_at = MU_MONO_NEVER;
    ending->round = n->version;
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, n->rank, "etcd.ended", "%s",
                           ending->text);
    n->base.events.ended(n->base.events.context, ending);
}

static void tell_ended(struct mu_rdzv_etcd *n, const struct mu_retcd_update *up)
{
    struct mu_rdzv_ending ending = {.reason = MU_RDZV_ENDED_LOST};
    char name[32];
    char text[160];

    switch (up->end) {
    case MU_RETCD_END_LOST:
        if (up->lost < n->world) {
            (void)snprintf(name, sizeof(name), "rank %" PRIu64, up->lost);
            ending.who = name;
            ending.who_rank = (uint32_t)up->lost;
        }
        (void)snprintf(text, sizeof(text), "the keep-alive key of %s has ended",
                       ending.who != NULL ? ending.who : "a member");
        break;
    case MU_RETCD_END_GONE:
        (void)snprintf(text, sizeof(text),
                       "version %" PRIu64 " was given up: the keep-alive key of a member has ended",
                       up->version);
        break;
    case MU_RETCD_END_DROPPED:
        ending.reason = MU_RDZV_ENDED_DROPPED;
        (void)snprintf(text, sizeof(text),
                       "version %" PRIu64 " was given up: our keep-alive key had ended",
                       up->version);
        break;
    }
    ending.text = text;
    end_round(n, &ending);
}

void mu_rdzv_etcd_upscale(struct mu_rdzv_etcd *n)
{
    struct mu_rdzv_ending ending = {.reason = MU_RDZV_ENDED_UPSCALE};
    char text[96];

    n->upscale_at = MU_MONO_NEVER;
    if (n->state != MU_RDZV_ETCD_IN) {
        return;
    }
    (void)snprintf(text, sizeof(text), "%" PRIu64 " %s to be let in", n->waiting,
                   n->waiting == 1 ? "node waits" : "nodes wait");
    ending.text = text;
    end_round(n, &ending);
}

/*
 * The count includes all that wait, also a member whose workers have failed. When a round is full,
 * the count is no reason to end it: if a member waits, its key ends, and then the round does.
 */
static void tell_waiting(struct mu_rdzv_etcd *n, const struct mu_retcd_update *up)
{
    n->waiting = up->waiting;
    n->base.events.waiting(n->base.events.context,
                           (uint32_t)(up->waiting < UINT32_MAX ? up->waiting : UINT32_MAX));
    if (n->freeing || n->state != MU_RDZV_ETCD_IN) {
        return;
    }
    if (up->waiting == 0 || n->world >= n->config.machine.max_nodes ||
        n->config.upscale_delay_ms == UINT64_MAX) {
        n->upscale_at = MU_MONO_NEVER;
    } else if (n->config.upscale_delay_ms == 0) {
        mu_rdzv_etcd_upscale(n);
    } else if (!mu_mono_before(n->upscale_at, MU_MONO_NEVER)) {
        n->upscale_at = mu_mono_add_ms(mu_env_now(n->base.env).mono, n->config.upscale_delay_ms);
    }
}

static void tell_failed(struct mu_rdzv_etcd *n, const struct mu_retcd_update *up)
{
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_FAILED, n->rank, "etcd.failed", "%s: %s",
                           muster_strerror(up->code), up->text.text);
    /* A join that the user asked for meanwhile will still begin. */
    if (n->state == MU_RDZV_ETCD_JOINING && (n->soon & MU_RDZV_ETCD_JOIN) == 0) {
        n->state = MU_RDZV_ETCD_OUT;
        n->base.events.failed(n->base.events.context, up->code, up->text.text);
    }
}

static void tell_rest(struct mu_rdzv_etcd *n, const struct mu_retcd_update *up)
{
    if ((up->flags & MU_RETCD_LEFT) != 0 && !n->freeing) {
        n->rank = -1;
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_SUCCEEDED, -1, "etcd.left", "left the run");
        n->base.events.left(n->base.events.context);
    }
    if ((up->flags & MU_RETCD_CLOSED_NOW) != 0 && !n->freeing) {
        n->closed = true;
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_SUCCEEDED, n->rank, "etcd.closed",
                               "the run is closed");
        n->base.events.closed(n->base.events.context);
    }
    if ((up->flags & MU_RETCD_CLOSE_FAILED) != 0 && !n->freeing) {
        n->base.events.close_failed(n->base.events.context, up->close_code, up->close_text.text);
    }
}

void mu_rdzv_etcd_tell(struct mu_rdzv_etcd *n, const struct mu_retcd_update *up)
{
    if (up->note.text[0] != '\0') {
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, n->rank, "etcd.step", "%s",
                               up->note.text);
    }
    if ((up->flags & MU_RETCD_ASSIGNED) != 0 && n->state == MU_RDZV_ETCD_JOINING && !n->freeing) {
        tell_assigned(n, up);
    }
    if ((up->flags & MU_RETCD_ENDED) != 0 && n->state == MU_RDZV_ETCD_IN && !n->freeing) {
        tell_ended(n, up);
    }
    if ((up->flags & MU_RETCD_WAITING) != 0 && n->state == MU_RDZV_ETCD_IN && !n->freeing) {
        tell_waiting(n, up);
    }
    if ((up->flags & MU_RETCD_FAILED) != 0 && !n->freeing) {
        tell_failed(n, up);
    }
    tell_rest(n, up);
}

void mu_rdzv_etcd_explain(struct mu_rdzv_etcd *n)
{
    char text[MU_ERRMSG_CAP + MU_RDZV_ETCD_TEXT_CAP + 64];
    char doctor[MU_RDZV_ETCD_TEXT_CAP + 16];
    struct mu_errmsg words = {{0}};
    bool lacks = false;

    if (n->state != MU_RDZV_ETCD_JOINING || n->freeing) {
        return;
    }
    (void)snprintf(doctor, sizeof(doctor), "etcd etcd://%s", n->config.endpoints);
    if (n->found) {
        lacks = mu_retcd_say_join(&n->machine, &words);
    } else {
        mu_rdzv_handler_unreached(&n->base, n->config.endpoints, doctor, &words);
    }
    (void)snprintf(text, sizeof(text), "%s%s%s%s", words.text,
                   lacks ? "; on a missing node, try `muster doctor " : "", lacks ? doctor : "",
                   lacks ? "`" : "");
    mu_rdzv_handler_explained(&n->base, n->machine.deadline, text);
}

void mu_rdzv_etcd_trouble(void *context, int status, const char *where, const char *why)
{
    struct mu_rdzv_etcd *n = context;

    if (n->state == MU_RDZV_ETCD_JOINING && !n->freeing) {
        mu_rdzv_handler_trouble(&n->base, status, where, why);
    }
}
