#include "proto/etcd/lease.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/assert.h"

#define TTL_MAX_S     INT64_C(9000000000) /* etcd grants no more */
#define KEEPS_PER_TTL 3u
#define REVOKE_MS     1000u
#define REST_MS       50u

/* When it is lost unless it is kept before. */
static mu_mono_t deadline_of(const struct mu_etcd_holder *h)
{
    return mu_mono_add_ns(h->kept, (uint64_t)h->ttl_s * MU_NS_PER_S);
}

static void take_ttl(struct mu_etcd_holder *h, int64_t ttl_s)
{
    h->ttl_s = ttl_s < TTL_MAX_S ? ttl_s : TTL_MAX_S;
}

static bool has_call(const struct mu_etcd_holder *h)
{
    return h->state == MU_ETCD_HOLDER_GRANTING || h->state == MU_ETCD_HOLDER_KEEPING ||
           h->state == MU_ETCD_HOLDER_LEAVING || h->state == MU_ETCD_HOLDER_REVOKING ||
           h->state == MU_ETCD_HOLDER_CANCELING;
}

static void send(struct mu_etcd_holder *h, enum mu_etcd_holder_state state, const char *path,
                 uint32_t timeout_ms)
{
    if (state != MU_ETCD_HOLDER_GRANTING) {
        (void)snprintf(h->body, sizeof(h->body), "{\"ID\":\"%" PRId64 "\"}", h->id);
    }
    h->state = state;
    h->path = path;
    h->timeout_ms = timeout_ms;
    h->due = MU_ETCD_HOLDER_SEND;
}

/* Ends it when its call has ended, or on a later turn. */
static void end_later(struct mu_etcd_holder *h, int why, mu_mono_t now)
{
    h->verdict = h->verdict != 0 ? h->verdict : why;
    if (has_call(h)) {
        h->state = MU_ETCD_HOLDER_CANCELING;
        h->wake = MU_MONO_NEVER;
        h->due = MU_ETCD_HOLDER_CANCEL;
    } else {
        h->state = MU_ETCD_HOLDER_ENDING;
        h->wake = now;
    }
}

/* The call has ended: the holder has none until it sends the next. */
static void end_answered(struct mu_etcd_holder *h, int why, mu_mono_t now)
{
    h->state = MU_ETCD_HOLDER_ENDING;
    end_later(h, why, now);
}

static void end_now(struct mu_etcd_holder *h)
{
    h->state = MU_ETCD_HOLDER_IDLE;
    h->wake = MU_MONO_NEVER;
    h->due = MU_ETCD_HOLDER_END;
    if (!h->stopping && h->errmsg.text[0] == '\0') {
        (void)mu_err(&h->errmsg, h->verdict, "%s", muster_strerror(h->verdict));
    }
}

/* --- keeping ---------------------------------------------------------------------------------- */

static void keep(struct mu_etcd_holder *h, mu_mono_t now)
{
    uint64_t left = mu_mono_until_ms(deadline_of(h), now);
    uint64_t third = (uint64_t)h->ttl_s * 1000 / KEEPS_PER_TTL;

    /* Each try has a third of the time at the most, so that a silent endpoint does not use it up;
     * and it counts from when it went out. */
    left = left < third ? left : third;
    left = left == 0 ? 1 : left < UINT32_MAX ? left : UINT32_MAX;
    send(h, MU_ETCD_HOLDER_KEEPING, "/v3/lease/keepalive", (uint32_t)left);
    h->wake = deadline_of(h);
}

static void take_kept(struct mu_etcd_holder *h, mu_mono_t sent, mu_mono_t now)
{
    h->kept = sent;
    if (mu_mono_reached(deadline_of(h), now)) {
        (void)mu_err(&h->errmsg, MUSTER_ETIMEDOUT, "the answer came when the lease's time was up");
        end_answered(h, MUSTER_ETIMEDOUT, now);
        return;
    }
    h->state = MU_ETCD_HOLDER_KEPT;
    h->wake = mu_mono_add_ns(h->kept, (uint64_t)h->ttl_s * MU_NS_PER_S / KEEPS_PER_TTL);
    h->due = h->was_granted ? 0 : MU_ETCD_HOLDER_GRANTED;
    h->was_granted = true;
}

static void take_keep_answer(struct mu_etcd_holder *h, const struct mu_etcd_answer *a,
                             mu_mono_t sent, mu_mono_t now)
{
    if (a->status == 0 && a->reply->ttl_s > 0) {
        take_ttl(h, a->reply->ttl_s);
        take_kept(h, sent, now);
        return;
    }
    if (a->status == 0 || a->status == MUSTER_ENOENT) {
        (void)mu_err(&h->errmsg, MUSTER_ENOENT, "etcd has ended the lease");
        end_answered(h, MUSTER_ENOENT, now);
        return;
    }
    h->errmsg = a->errmsg;
    if (mu_mono_reached(deadline_of(h), now) || a->status == MUSTER_EREFUSED ||
        a->status == MUSTER_ECLOSED) {
        end_answered(h, a->status, now);
    } else if (a->status == MUSTER_ENOMEM) {
        h->state = MU_ETCD_HOLDER_KEPT; /* At once there would be none either. */
        h->wake = mu_mono_min(mu_mono_add_ms(now, REST_MS), deadline_of(h));
    } else {
        keep(h, now); /* The client lost patience, we have not: there is time left. */
    }
}

static void take_grant_answer(struct mu_etcd_holder *h, const struct mu_etcd_answer *a,
                              mu_mono_t sent, mu_mono_t now)
{
    if (a->grpc_code == MU_ETCD_PRECONDITION) {
        h->kept = now; /* Nobody knows when the first call arrived: it counts once it is kept. */
        keep(h, now);
    } else if (a->status != 0) {
        h->errmsg = a->errmsg;
        end_answered(h, a->status, now);
    } else {
        take_ttl(h, a->reply->ttl_s > 0 ? a->reply->ttl_s : h->ttl_s);
        take_kept(h, sent, now);
    }
}

/* --- in and out ------------------------------------------------------------------------------- */

void mu_etcd_holder_start(struct mu_etcd_holder *h, int64_t id, int64_t ttl_s, mu_mono_t now)
{
    MU_ASSERT(h->state == MU_ETCD_HOLDER_IDLE);
    *h = (struct mu_etcd_holder){.id = id, .kept = now, .wake = MU_MONO_NEVER};
    take_ttl(h, ttl_s);
    (void)snprintf(h->body, sizeof(h->body), "{\"TTL\":\"%" PRId64 "\",\"ID\":\"%" PRId64 "\"}",
                   h->ttl_s, id);
    send(h, MU_ETCD_HOLDER_GRANTING, "/v3/lease/grant", 0);
}

void mu_etcd_holder_done(struct mu_etcd_holder *h, const struct mu_etcd_answer *a, mu_mono_t sent,
                         mu_mono_t now)
{
    switch (h->state) {
    case MU_ETCD_HOLDER_GRANTING:
        take_grant_answer(h, a, sent, now);
        break;
    case MU_ETCD_HOLDER_KEEPING:
        take_keep_answer(h, a, sent, now);
        break;
    case MU_ETCD_HOLDER_LEAVING:
        if (a->status != MUSTER_ECLOSED) {
            send(h, MU_ETCD_HOLDER_REVOKING, "/v3/lease/revoke", REVOKE_MS);
            break;
        }
        end_now(h);
        break;
    case MU_ETCD_HOLDER_REVOKING:
    case MU_ETCD_HOLDER_CANCELING:
        end_now(h);
        break;
    case MU_ETCD_HOLDER_IDLE:
    case MU_ETCD_HOLDER_KEPT:
    case MU_ETCD_HOLDER_ENDING:
        break;
    }
}

void mu_etcd_holder_stop(struct mu_etcd_holder *h, bool revoke, mu_mono_t now)
{
    if (h->state == MU_ETCD_HOLDER_IDLE || h->stopping) {
        return;
    }
    h->stopping = true;
    if (!revoke || h->state == MU_ETCD_HOLDER_CANCELING || h->state == MU_ETCD_HOLDER_ENDING) {
        end_later(h, MUSTER_ECANCELED, now);
        return;
    }
    h->wake = MU_MONO_NEVER;
    if (h->state == MU_ETCD_HOLDER_KEPT) {
        send(h, MU_ETCD_HOLDER_REVOKING, "/v3/lease/revoke", REVOKE_MS);
    } else {
        /* The call that is out goes first, so that it cannot come later. */
        h->state = MU_ETCD_HOLDER_LEAVING;
        h->due = MU_ETCD_HOLDER_CANCEL;
    }
}

void mu_etcd_holder_close(struct mu_etcd_holder *h, mu_mono_t now)
{
    if (h->state != MU_ETCD_HOLDER_IDLE && h->state != MU_ETCD_HOLDER_CANCELING &&
        h->state != MU_ETCD_HOLDER_ENDING) {
        end_later(h, MUSTER_ECLOSED, now);
    }
}

void mu_etcd_holder_tick(struct mu_etcd_holder *h, mu_mono_t now)
{
    struct mu_errmsg why = h->errmsg;

    if (!mu_mono_reached(h->wake, now)) {
        return;
    }
    if (h->state == MU_ETCD_HOLDER_ENDING) {
        end_now(h);
    } else if (mu_mono_reached(deadline_of(h), now)) {
        (void)mu_err(&h->errmsg, MUSTER_ETIMEDOUT,
                     "the lease could not be kept for %" PRId64 " s%s%.150s", h->ttl_s,
                     why.text[0] != '\0' ? ": " : "", why.text);
        end_later(h, MUSTER_ETIMEDOUT, now);
    } else if (h->state == MU_ETCD_HOLDER_KEPT) {
        keep(h, now);
    }
}

enum mu_etcd_holder_action mu_etcd_holder_next(struct mu_etcd_holder *h)
{
    enum mu_etcd_holder_action due = h->due;

    h->due = 0;
    return due;
}
