/*
 * Leases.
 *
 *     GRANTING ──► KEPT ⇄ KEEPING ──► lost            stop: ──► REVOKING ──► stopped
 *
 * We choose the lease's number, so that asking for it twice is as once: the second time etcd says
 * that there is one already.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/assert.h"
#include "service/etcd/etcd_internal.h"

#define KEEPS_PER_TTL 3u
#define REVOKE_MS     1000u
#define REST_MS       50u

enum lease_state {
    IDLE = 0,
    GRANTING,
    KEPT,
    KEEPING,
    REVOKING,
    ENDING, /* on its timer, or when its call has ended */
};

static void keep(struct mu_etcd_lease *l);

mu_mono_t mu_etcd_lease_deadline(const struct mu_etcd_lease *l)
{
    return mu_mono_add_ns(l->kept, (uint64_t)l->ttl_s * MU_NS_PER_S);
}

static void tell_end(struct mu_etcd_lease *l)
{
    struct mu_etcd *etcd = l->etcd;

    mu_env_timer_arm(etcd->env, &l->timer, MU_MONO_NEVER);
    mu_list_remove(&l->link);
    l->state = IDLE;
    if (l->stopping) {
        l->stopped(l);
    } else {
        if (l->errmsg.text[0] == '\0') {
            (void)mu_err(&l->errmsg, l->verdict, "%s", muster_strerror(l->verdict));
        }
        l->lost(l, l->verdict);
    }
    mu_etcd_check_closed(etcd);
}

/* Ends it on a later turn, or when its call has. */
static void end_lease(struct mu_etcd_lease *l, int why)
{
    l->verdict = l->verdict != 0 ? l->verdict : why;
    l->state = ENDING;
    if (mu_etcd_call_active(&l->call)) {
        mu_etcd_cancel(&l->call);
        mu_env_timer_arm(l->etcd->env, &l->timer, MU_MONO_NEVER);
    } else {
        mu_env_timer_arm(l->etcd->env, &l->timer, mu_env_now(l->etcd->env).mono);
    }
}

static void send(struct mu_etcd_lease *l, const char *path, uint32_t timeout_ms,
                 void (*done)(struct mu_etcd_call *call))
{
    l->call = (struct mu_etcd_call){
        .path = path,
        .body = mu_span_str(l->body),
        .repeat = true,
        .timeout_ms = timeout_ms,
        .done = done,
    };
    mu_etcd_submit(l->etcd, &l->call);
}

/* The next keep-alive, or the end of its time: whichever is due first. */
static void arm(struct mu_etcd_lease *l)
{
    uint64_t ttl_ns = (uint64_t)l->ttl_s * MU_NS_PER_S;
    mu_mono_t at = l->state == KEPT ? mu_mono_add_ns(l->kept, ttl_ns / KEEPS_PER_TTL)
                                    : mu_mono_add_ns(l->kept, ttl_ns);

    mu_env_timer_arm(l->etcd->env, &l->timer, at);
}

/* --- keeping ---------------------------------------------------------------------------------- */

static void take_kept(struct mu_etcd_lease *l)
{
    bool first = !l->told;

    l->kept = l->call.tried;
    if (mu_mono_reached(mu_etcd_lease_deadline(l), mu_env_now(l->etcd->env).mono)) {
        (void)mu_err(&l->errmsg, MUSTER_ETIMEDOUT, "the answer came when the lease's time was up");
        end_lease(l, MUSTER_ETIMEDOUT);
        return;
    }
    l->state = KEPT;
    l->told = true;
    arm(l);
    if (first) {
        l->granted(l);
    }
}

/* Keeps it a moment later. */
static void rest(struct mu_etcd_lease *l)
{
    mu_mono_t at = mu_mono_add_ms(mu_env_now(l->etcd->env).mono, REST_MS);

    l->state = KEPT;
    mu_env_timer_arm(l->etcd->env, &l->timer, mu_mono_min(at, mu_etcd_lease_deadline(l)));
}

static void on_kept(struct mu_etcd_call *call)
{
    struct mu_etcd_lease *l = MU_CONTAINER_OF(call, struct mu_etcd_lease, call);

    if (l->state == ENDING) {
        tell_end(l);
        return;
    }
    if (call->status == 0 && call->reply->ttl_s > 0) {
        l->ttl_s = call->reply->ttl_s;
        take_kept(l);
        return;
    }
    if (call->status == 0 || call->status == MUSTER_ENOENT) {
        (void)mu_err(&l->errmsg, MUSTER_ENOENT, "etcd has ended the lease");
        end_lease(l, MUSTER_ENOENT);
        return;
    }
    l->errmsg = call->errmsg;
    if (mu_mono_reached(mu_etcd_lease_deadline(l), mu_env_now(l->etcd->env).mono)) {
        end_lease(l, call->status);
    } else if (call->status == MUSTER_EREFUSED || call->status == MUSTER_ECLOSED) {
        end_lease(l, call->status);
    } else if (call->status == MUSTER_ENOMEM) {
        rest(l); /* At once there would be none either. */
    } else {
        keep(l); /* The client lost patience, we have not: there is time left. */
    }
}

static void keep(struct mu_etcd_lease *l)
{
    mu_mono_t now = mu_env_now(l->etcd->env).mono;
    uint64_t left = mu_mono_until_ms(mu_etcd_lease_deadline(l), now);
    uint64_t third = (uint64_t)l->ttl_s * 1000 / KEEPS_PER_TTL;

    /* Each try has a third of the time at the most, so that a silent endpoint does not use it up;
     * and it counts from when it went out. */
    l->state = KEEPING;
    left = left < third ? left : third;
    send(l, "/v3/lease/keepalive", left == 0 ? 1 : (uint32_t)left, on_kept);
    arm(l);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_etcd_lease *l = MU_CONTAINER_OF(timer, struct mu_etcd_lease, timer);

    if (l->state == ENDING) {
        tell_end(l);
    } else if (mu_mono_reached(mu_etcd_lease_deadline(l), mu_env_now(l->etcd->env).mono)) {
        struct mu_errmsg why = l->errmsg;

        (void)mu_err(&l->errmsg, MUSTER_ETIMEDOUT,
                     "the lease could not be kept for %" PRId64 " s%s%.150s", l->ttl_s,
                     why.text[0] != '\0' ? ": " : "", why.text);
        end_lease(l, MUSTER_ETIMEDOUT);
    } else if (l->state == KEPT) {
        keep(l);
    } else {
        arm(l);
    }
}

/* --- granting --------------------------------------------------------------------------------- */

static void on_granted(struct mu_etcd_call *call)
{
    struct mu_etcd_lease *l = MU_CONTAINER_OF(call, struct mu_etcd_lease, call);
    bool again = call->grpc_code == MU_ETCD_PRECONDITION;

    if (l->state == ENDING) {
        tell_end(l);
        return;
    }
    if (call->status != 0 && !again) {
        l->errmsg = call->errmsg;
        end_lease(l, call->status);
        return;
    }
    if (!again && call->reply->ttl_s > 0) {
        l->ttl_s = call->reply->ttl_s;
    }
    (void)snprintf(l->body, sizeof(l->body), "{\"ID\":\"%" PRId64 "\"}", l->id);
    if (again) {
        /* Who knows when the first one arrived: it counts once it is kept. */
        l->kept = mu_env_now(l->etcd->env).mono;
        keep(l);
    } else {
        take_kept(l);
    }
}

void mu_etcd_lease_start(struct mu_etcd *etcd, struct mu_etcd_lease *l)
{
    uint64_t number;

    MU_ASSERT(l->state == IDLE);
    mu_env_entropy(etcd->env, &number, sizeof(number));
    l->etcd = etcd;
    l->id = (int64_t)(number >> 2 | 1);
    l->ttl_s = l->ttl_s < 1 ? 1 : l->ttl_s;
    l->verdict = 0;
    l->stopping = false;
    l->errmsg.text[0] = '\0';
    l->told = false;
    l->kept = mu_env_now(etcd->env).mono;
    l->state = GRANTING;
    mu_timer_init(&l->timer, on_timer);
    mu_list_init(&l->link);
    mu_list_push(&etcd->leases, &l->link);
    (void)snprintf(l->body, sizeof(l->body), "{\"TTL\":\"%" PRId64 "\",\"ID\":\"%" PRId64 "\"}",
                   l->ttl_s, l->id);
    send(l, "/v3/lease/grant", 0, on_granted);
}

/* --- ending ----------------------------------------------------------------------------------- */

static void on_revoked(struct mu_etcd_call *call)
{
    tell_end(MU_CONTAINER_OF(call, struct mu_etcd_lease, call));
}

static void on_left(struct mu_etcd_call *call)
{
    struct mu_etcd_lease *l = MU_CONTAINER_OF(call, struct mu_etcd_lease, call);

    if (l->state == ENDING || call->status == MUSTER_ECLOSED) {
        tell_end(l);
        return;
    }
    (void)snprintf(l->body, sizeof(l->body), "{\"ID\":\"%" PRId64 "\"}", l->id);
    send(l, "/v3/lease/revoke", REVOKE_MS, on_revoked);
}

void mu_etcd_lease_stop(struct mu_etcd_lease *l, bool revoke)
{
    if (l->state == IDLE || l->stopping) {
        return;
    }
    l->stopping = true;
    if (!revoke || l->state == ENDING) {
        end_lease(l, MUSTER_ECANCELED);
        return;
    }
    mu_env_timer_arm(l->etcd->env, &l->timer, MU_MONO_NEVER);
    l->state = REVOKING;
    if (mu_etcd_call_active(&l->call)) {
        l->call.done = on_left; /* The one that is out goes first, so that it cannot come later. */
        mu_etcd_cancel(&l->call);
    } else {
        l->call.status = 0;
        on_left(&l->call);
    }
}

void mu_etcd_lease_end_all(struct mu_etcd *etcd)
{
    MU_LIST_FOREACH (it, &etcd->leases) {
        struct mu_etcd_lease *l = MU_CONTAINER_OF(it, struct mu_etcd_lease, link);

        if (l->state != ENDING) {
            end_lease(l, MUSTER_ECLOSED);
        }
    }
}
