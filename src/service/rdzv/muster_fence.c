/* The native backend's fence: how a node knows that the others may go on without it. */
#include <inttypes.h>

#include "service/rdzv/muster.h"

#define NOTICE_OF 6   /* of the time: for workers to end after the stop signal */
#define MARGIN_OF 10  /* of the time: for a kill to be carried out, and clocks that are not alike */
#define LATE_MS   50  /* a look that comes so much later was ours to miss */
#define LISTEN_MS 100 /* after that: for answers that have come meanwhile */
#define AGAIN_OF  30  /* of the time: how often is looked whether we are in touch again */

static bool is_member(const struct mu_rdzv_muster *n)
{
    return n->client == MU_RDZV_CLIENT_LIVE && n->call != 0 && n->entered;
}

static void refresh(struct mu_rdzv_muster *n, mu_mono_t now)
{
    if (is_member(n)) {
        mu_mono_t heard = mu_rpc_confirmed(&n->rpc.rpc);

        n->kept_ns = mu_rpc_kept_ms(&n->rpc.rpc) * MU_NS_PER_MS;
        n->counted_on = n->server != NULL                     ? now
                        : mu_mono_before(heard, n->join_said) ? n->join_said
                                                              : heard;
    }
}

/* Our user has until `by`, which may be past. */
static void tell_cut_off(struct mu_rdzv_muster *n, mu_mono_t now, mu_mono_t by)
{
    uint64_t ms = mu_mono_since(n->counted_on, now) / MU_NS_PER_MS;
    struct mu_errmsg why;
    bool ended = false;

    n->cut_off = n->counted_on;
    (void)mu_err(&why, 0, "%.120s has not answered for %" PRIu64 ".%" PRIu64 " s", n->address,
                 ms / 1000, ms % 1000 / 100);
    if (n->base.events.cut_off != NULL) {
        ended = n->base.events.cut_off(n->base.events.context, by);
    }
    if (n->spare && n->state == MU_RDZV_JOINING) {
        mu_rdzv_muster_arm_join(n); /* It may be not even that any more. */
    }
    if (n->state == MU_RDZV_IN && !ended && !n->leaving && !n->freeing) {
        n->say = n->call != 0 ? MU_RDZV_SAY_STOPPED : 0;
        mu_rdzv_muster_tell_dropped(n, why.text);
    }
}

/* When what was begun must be stopped. */
static mu_mono_t warn_at(const struct mu_rdzv_muster *n)
{
    return mu_mono_add_ns(n->counted_on,
                          n->kept_ns - n->kept_ns / MARGIN_OF - n->kept_ns / NOTICE_OF);
}

void mu_rdzv_muster_fence(struct mu_rdzv_muster *n)
{
    mu_mono_t now = mu_env_now(n->base.env).mono;
    mu_mono_t warn;
    mu_mono_t by;

    refresh(n, now);
    if (n->counted_on.ns == MU_MONO_NEVER.ns || n->leaving || n->freeing) {
        n->fence_at = MU_MONO_NEVER;
        return;
    }
    by = mu_mono_add_ns(n->counted_on, n->kept_ns - n->kept_ns / MARGIN_OF);
    warn = warn_at(n);
    if (!mu_mono_reached(warn, now)) {
        n->fence_at = warn;
        if (n->spare && n->cut_off.ns != MU_MONO_NEVER.ns) {
            n->join_deadline = MU_MONO_NEVER;
        }
        n->cut_off = MU_MONO_NEVER;
        if (n->held.len != 0) {
            mu_rdzv_muster_soon(n, MU_RDZV_SOON_HELD);
        }
    } else if (!mu_mono_reached(by, now) && mu_mono_reached(n->fence_at, now) &&
               mu_mono_since(n->fence_at, now) > LATE_MS * MU_NS_PER_MS) {
        /* It was us who were away: what has come meanwhile is heard first. */
        n->fence_at = mu_mono_min(mu_mono_add_ms(now, LISTEN_MS), by);
    } else {
        n->fence_at = mu_mono_add_ns(now, n->kept_ns / AGAIN_OF + 1); /* Are we in touch again? */
        if (n->cut_off.ns != n->counted_on.ns) {
            tell_cut_off(n, now, by);
        }
    }
    mu_rdzv_muster_rearm(n);
}

bool mu_rdzv_muster_in_doubt(struct mu_rdzv_muster *n)
{
    mu_mono_t now = mu_env_now(n->base.env).mono;

    refresh(n, now);
    return n->counted_on.ns != MU_MONO_NEVER.ns &&
           mu_mono_since(n->counted_on, now) > n->kept_ns / 2;
}

bool mu_rdzv_muster_is_cut_off(struct mu_rdzv_muster *n)
{
    mu_mono_t now = mu_env_now(n->base.env).mono;

    refresh(n, now);
    return n->counted_on.ns != MU_MONO_NEVER.ns && mu_mono_reached(warn_at(n), now);
}

void mu_rdzv_muster_forsaken(struct mu_rdzv_muster *n)
{
    refresh(n, mu_env_now(n->base.env).mono);
    n->entered = n->spare = false;
}

void mu_rdzv_muster_unfence(struct mu_rdzv_muster *n)
{
    n->entered = n->spare = false;
    n->counted_on = n->cut_off = n->fence_at = MU_MONO_NEVER;
}
