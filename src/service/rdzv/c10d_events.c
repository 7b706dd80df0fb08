/* Reports what the machine says, in the form that all backends share. */
#include "service/rdzv/c10d.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/alloc.h"
#include "service/base/log.h"

static void tell_assigned(struct mu_rdzv_c10d *n, const struct mu_rdzv_update *up)
{
    struct mu_rdzv_peer *peers =
        n->config.members ? mu_rdzv_c10d_peers(up->members, up->world) : NULL;
    char url[MU_RDZV_C10D_URL_CAP];
    enum mu_rdzv_dialect found = n->machine.v.dialect;
    struct mu_rdzv_assignment assignment = {
        .round = (uint64_t)up->round,
        .rank = (uint32_t)up->rank,
        .world = (uint32_t)up->world,
        .restarts_left = UINT32_MAX,
        .member_count = peers != NULL ? up->world : 0,
        .members = peers,
        .store = mu_rdzv_c10d_url(url, &n->config, n->base.run_id, up->round),
        .torch_1 =
            (found != MU_RDZV_DIALECT_UNKNOWN ? found : n->config.dialect) == MU_RDZV_DIALECT_1_13,
    };

    n->state = MU_RDZV_C10D_IN;
    n->world = up->world;
    n->rank = up->rank;
    mu_rdzv_handler_record(
        &n->base, MU_RDZV_RECORD_SUCCEEDED, up->rank, mu_rdzv_c10d_step(n, "assigned"),
        "rank %" PRId64 " of %zu in round %" PRId64, up->rank, up->world, up->round);
    n->base.events.assigned(n->base.events.context, &assignment);
    mu_free(peers);
}

/* --- whether all are there -------------------------------------------------------------------- */

void mu_rdzv_c10d_end_doubt(struct mu_rdzv_c10d *n)
{
    n->doubts = false;
    mu_free(n->beats);
    n->beats = NULL;
}

/* The heartbeat of a member in the state as it is known, or 0: a state in which it is not, such as
 * that of a host that was started anew, tells nothing of it. */
static mu_wall_t beat_of(const struct mu_rdzv_c10d *n, size_t rank)
{
    const struct mu_rdzv_member *m =
        mu_rdzv_state_find(&n->machine.state, n->machine.members[rank]);

    return m != NULL && m->has_heartbeat ? m->heartbeat : (mu_wall_t){0};
}

/* Clocks differ: what counts is not the time of a heartbeat, but that another one has come. */
static bool have_all_beaten(const struct mu_rdzv_c10d *n)
{
    for (size_t i = 0; i < n->world; i++) {
        mu_wall_t beat = beat_of(n, i);

        if ((int64_t)i != n->rank && (beat.ns == 0 || beat.ns == n->beats[i].ns)) {
            return false;
        }
    }
    return true;
}

static void settle_doubt(struct mu_rdzv_c10d *n, bool seen)
{
    if (n->beats == NULL && seen) {
        n->beats = mu_calloc(n->world, sizeof(*n->beats));
        for (size_t i = 0; n->beats != NULL && i < n->world; i++) {
            n->beats[i] = beat_of(n, i);
        }
    } else if (n->beats != NULL && have_all_beaten(n)) {
        mu_rdzv_c10d_end_doubt(n);
        if (n->base.events.sure != NULL) {
            n->base.events.sure(n->base.events.context);
        }
    }
}

/* Ends the round for the user. */
static void end_round(struct mu_rdzv_c10d *n, struct mu_rdzv_ending *ending)
{
    n->state = MU_RDZV_C10D_BETWEEN;
    n->upscale_at = MU_MONO_NEVER;
    mu_rdzv_c10d_end_doubt(n);
    ending->round = (uint64_t)n->machine.v.round;
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, n->rank, mu_rdzv_c10d_step(n, "ended"),
                           "%s", ending->text);
    n->base.events.ended(n->base.events.context, ending);
}

/* Returns the first member, by rank, that is not in the round any more; NULL if all are. */
static const struct mu_rdzv_node *find_lost(const struct mu_rdzv_c10d *n, uint32_t *ret_rank)
{
    for (size_t i = 0; i < n->world; i++) {
        const struct mu_rdzv_member *m =
            mu_rdzv_state_find(&n->machine.state, n->machine.members[i]);

        if (m == NULL || !m->participant) {
            *ret_rank = (uint32_t)i;
            return n->machine.members[i];
        }
    }
    return NULL;
}

static void tell_lost(struct mu_rdzv_c10d *n, const struct mu_rdzv_update *up)
{
    struct mu_rdzv_ending ending = {.reason = MU_RDZV_ENDED_LOST};
    const struct mu_rdzv_node *who = find_lost(n, &ending.who_rank);
    const struct mu_rdzv_member *still =
        who == NULL ? NULL : mu_rdzv_state_find(&n->machine.state, who);
    char name[MU_RDZV_C10D_NAME_CAP];
    char text[MU_RDZV_C10D_NAME_CAP + 128];

    if (still != NULL && still->waiting) {
        ending.reason = MU_RDZV_ENDED_LEFT;
    }
    ending.who = who == NULL ? NULL : mu_rdzv_c10d_name(name, who);
    (void)snprintf(text, sizeof(text), "%s %s; %zu of %zu members are left",
                   ending.who == NULL ? "a member" : ending.who,
                   ending.reason == MU_RDZV_ENDED_LEFT ? "has left the round for the next one"
                                                       : "is gone",
                   up->left, n->world);
    ending.text = text;
    end_round(n, &ending);
}

void mu_rdzv_c10d_upscale(struct mu_rdzv_c10d *n)
{
    struct mu_rdzv_ending ending = {.reason = MU_RDZV_ENDED_UPSCALE};
    char text[96];

    n->upscale_at = MU_MONO_NEVER;
    if (n->state != MU_RDZV_C10D_IN) {
        return;
    }
    (void)snprintf(text, sizeof(text), "%zu %s to be let in", n->machine.v.waiting,
                   n->machine.v.waiting == 1 ? "node waits" : "nodes wait");
    ending.text = text;
    end_round(n, &ending);
}

static void tell_waiting(struct mu_rdzv_c10d *n, const struct mu_rdzv_update *up)
{
    n->base.events.waiting(n->base.events.context, (uint32_t)up->waiting);
    if (n->freeing || n->state != MU_RDZV_C10D_IN) {
        return;
    }
    if (up->waiting == 0 || n->config.upscale_delay_ms == UINT64_MAX) {
        n->upscale_at = MU_MONO_NEVER;
    } else if (n->config.upscale_delay_ms == 0) {
        mu_rdzv_c10d_upscale(n);
    } else if (!mu_mono_before(n->upscale_at, MU_MONO_NEVER)) {
        n->upscale_at = mu_mono_add_ms(mu_env_now(n->base.env).mono, n->config.upscale_delay_ms);
    }
}

static void tell_left(struct mu_rdzv_c10d *n)
{
    n->rank = -1;
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_SUCCEEDED, -1, mu_rdzv_c10d_step(n, "left"),
                           "left the run");
    n->base.events.left(n->base.events.context);
}

static void tell_ended(struct mu_rdzv_c10d *n, const struct mu_rdzv_update *up)
{
    struct mu_rdzv_ending ending = {
        .reason = MU_RDZV_ENDED_DROPPED,
        .text = "the others have gone on without this node, or the state was deleted",
    };

    if (up->end == MU_RDZV_END_LEFT) {
        tell_left(n);
    } else if (n->state == MU_RDZV_C10D_IN) {
        end_round(n, &ending);
    }
}

static void tell_failed(struct mu_rdzv_c10d *n, const struct mu_rdzv_update *up)
{
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_FAILED, n->rank, mu_rdzv_c10d_step(n, "failed"),
                           "%s: %s", muster_strerror(up->code), up->text);
    if ((up->failed & MU_RDZV_OP_MEMBER) != 0 && n->state == MU_RDZV_C10D_IN &&
        up->code == MUSTER_ERDZV_CONN) {
        /* The others go on, if they are in touch. This node may be one of them again. */
        struct mu_rdzv_ending ending = {.reason = MU_RDZV_ENDED_DROPPED, .text = up->text};

        end_round(n, &ending);
    } else if ((up->failed & (MU_RDZV_OP_JOIN | MU_RDZV_OP_MEMBER)) != 0 &&
               n->state != MU_RDZV_C10D_OUT) {
        /* A join that the user asked for meanwhile will still begin. */
        if ((n->soon & MU_RDZV_C10D_JOIN) == 0) {
            n->state = MU_RDZV_C10D_OUT;
            n->upscale_at = MU_MONO_NEVER;
            n->base.events.failed(n->base.events.context, up->code, up->text);
        }
    }
    if ((up->failed & MU_RDZV_OP_LEAVE) != 0 && !n->freeing) {
        tell_left(n); /* the node has left all the same: the others will notice its silence */
    }
    if ((up->failed & MU_RDZV_OP_CLOSE) != 0 && !n->freeing) {
        n->base.events.close_failed(n->base.events.context, up->code, up->text);
    }
}

static void tell_skewed(struct mu_rdzv_c10d *n, const struct mu_rdzv_update *up)
{
    char name[MU_RDZV_C10D_NAME_CAP];

    mu_rdzv_c10d_name(name, up->skewed);
    mu_log(MUSTER_LOG_WARN, "RDZV-SKEW", "run=\"%s\" node=%.200s ahead_ms=%" PRIu64, n->base.run_id,
           name, up->skew_ms);
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, n->rank, mu_rdzv_c10d_step(n, "skew"),
                           "the clock of %.200s is ahead of ours by %" PRIu64 " ms", name,
                           up->skew_ms);
}

void mu_rdzv_c10d_tell(struct mu_rdzv_c10d *n, const struct mu_rdzv_update *up)
{
    if ((up->flags & MU_RDZV_SKEWED) != 0) {
        tell_skewed(n, up);
    }
    if ((up->flags & MU_RDZV_ASSIGNED) != 0 && n->state == MU_RDZV_C10D_JOINING) {
        tell_assigned(n, up);
    }
    if ((up->flags & MU_RDZV_LOST) != 0 && n->state == MU_RDZV_C10D_IN && !n->freeing) {
        tell_lost(n, up);
    }
    if ((up->flags & MU_RDZV_WAITING) != 0 && n->state == MU_RDZV_C10D_IN && !n->freeing) {
        tell_waiting(n, up);
    }
    if ((up->flags & MU_RDZV_ENDED) != 0 && !n->freeing) {
        tell_ended(n, up);
    }
    if ((up->flags & MU_RDZV_FAILED) != 0 && !n->freeing) {
        tell_failed(n, up);
    }
    if (n->doubts && n->state == MU_RDZV_C10D_IN && !n->freeing) {
        settle_doubt(n, (up->flags & MU_RDZV_SEEN) != 0);
    }
    if ((up->flags & MU_RDZV_CLOSED) != 0) {
        n->closed = true;
    }
    /* A join that is under way, or waits for its turn, ends before the user hears of the close. */
    if (n->closed && n->state != MU_RDZV_C10D_JOINING && !n->freeing && !n->closed_told) {
        n->closed_told = true;
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_SUCCEEDED, n->rank,
                               mu_rdzv_c10d_step(n, "closed"), "the run is closed");
        n->base.events.closed(n->base.events.context);
    }
}
