/* The loop's half of a client: the handler's events, and what next() and close() ask for. */
#include "api/rdzv_api.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void lock_client(struct mu_rdzv_client *s)
{
    (void)pthread_mutex_lock(&s->lock);
}

/* Wakes the threads that wait. */
static void unlock_and_wake(struct mu_rdzv_client *s)
{
    (void)pthread_cond_broadcast(&s->cond);
    (void)pthread_mutex_unlock(&s->lock);
}

static void drop_round(struct mu_rdzv_client *s)
{
    struct mu_rdzv_round *r = s->round;

    s->round = NULL;
    mu_rdzv_round_drop(r);
}

/* --- next() ----------------------------------------------------------------------------------- */

static void finish_next(struct mu_rdzv_client *s, int status, const char *text)
{
    lock_client(s);
    if (s->next_wanted && !s->next_done) {
        s->next_done = true;
        s->next_status = mu_err(&s->next_text, status, "%s", text);
    }
    unlock_and_wake(s);
}

void mu_rdzv_client_join(struct mu_rdzv_client *s)
{
    lock_client(s);
    s->in_round = false;
    s->waiting = 0;
    s->tell_waiting = s->tell_ended = false;
    (void)mu_err(&s->end_text, 0, "this node has asked for the next round");
    unlock_and_wake(s);
    mu_env_timer_arm(s->rt->env, &s->leave_timer, MU_MONO_NEVER);
    drop_round(s);
    s->place = MU_RDZV_CLIENT_JOINING;
    mu_rdzv_join(s->handler);
}

void mu_rdzv_client_opened(struct mu_rdzv_client *s)
{
    s->place = MU_RDZV_CLIENT_IN;
    lock_client(s);
    s->info = s->round->info;
    s->share = s->round->share;
    s->in_round = true;
    s->round_number = s->info.round;
    s->waiting = 0;
    s->tell_waiting = s->tell_ended = false;
    s->next_done = true;
    s->next_status = 0;
    unlock_and_wake(s);
}

/* The node is out, or counts as out. */
static void finish_leaving(struct mu_rdzv_client *s)
{
    mu_env_timer_arm(s->rt->env, &s->leave_timer, MU_MONO_NEVER);
    s->place = MU_RDZV_CLIENT_OUT;
    if (s->leaving_for_good) {
        mu_rdzv_free(s->handler);
    } else {
        finish_next(s, s->leave_status, s->leave_text.text);
    }
}

static void on_leave_timer(struct mu_timer *timer)
{
    finish_leaving(MU_CONTAINER_OF(timer, struct mu_rdzv_client, leave_timer));
}

static void begin_leaving(struct mu_rdzv_client *s)
{
    s->place = MU_RDZV_CLIENT_LEAVING;
    mu_env_timer_arm(s->rt->env, &s->leave_timer,
                     mu_mono_add_ms(mu_env_now(s->rt->env).mono, MU_RDZV_LEAVE_MS));
    mu_rdzv_leave(s->handler);
}

/* A member that cannot work in its round leaves, so that the others do not wait for it. */
void mu_rdzv_client_not_opened(struct mu_rdzv_client *s, int status, const char *text)
{
    s->leave_status = mu_err(&s->leave_text, status, "%s", text);
    drop_round(s);
    begin_leaving(s);
}

/* --- the handler's events --------------------------------------------------------------------- */

static void on_assigned(void *context, const struct mu_rdzv_assignment *a)
{
    struct mu_rdzv_client *s = context;
    struct mu_errmsg msg;
    int err;

    if (s->place != MU_RDZV_CLIENT_JOINING) {
        return; /* it crossed our leaving */
    }
    s->place = MU_RDZV_CLIENT_OPENING;
    err = mu_rdzv_round_open(s, a, &s->round, &msg);
    if (err < 0) {
        /* Another node chose the store's URL: if it is invalid, that is not this node's error. */
        mu_rdzv_client_not_opened(s, err == MUSTER_EURL ? MUSTER_ERDZV_STATE : err, msg.text);
    } else if (err == 1) {
        mu_rdzv_client_opened(s);
    }
}

/* The user's round is over; what the user borrowed stays valid until the next one is wanted. */
static void end_round(struct mu_rdzv_client *s, enum muster_rdzv_end_reason reason, int status,
                      const struct mu_rdzv_ending *e)
{
    lock_client(s);
    if (s->in_round) {
        s->in_round = false;
        s->waiting = 0;
        s->tell_waiting = false;
        s->tell_ended = true;
        s->end_reason = reason;
        s->end_status = mu_err(&s->end_text, status, "%s", e->text);
        s->end_has_who = e->who != NULL;
        (void)snprintf(s->end_who, sizeof(s->end_who), "%s", e->who == NULL ? "" : e->who);
        s->end_who_rank = e->who_rank;
    }
    unlock_and_wake(s);
}

static enum muster_rdzv_end_reason public_reason(enum mu_rdzv_end_reason reason)
{
    switch (reason) {
    case MU_RDZV_ENDED_LOST:
        return MUSTER_RDZV_ENDED_LOST;
    case MU_RDZV_ENDED_LEFT:
        return MUSTER_RDZV_ENDED_LEFT;
    case MU_RDZV_ENDED_UPSCALE:
        return MUSTER_RDZV_ENDED_UPSCALE;
    case MU_RDZV_ENDED_FAILED:
        return MUSTER_RDZV_ENDED_FAILED;
    case MU_RDZV_ENDED_DROPPED:
        return MUSTER_RDZV_ENDED_DROPPED;
    }
    return MUSTER_RDZV_ENDED_OUT;
}

static void on_ended(void *context, const struct mu_rdzv_ending *e)
{
    struct mu_rdzv_client *s = context;

    if (s->place == MU_RDZV_CLIENT_IN) {
        s->place = MU_RDZV_CLIENT_BETWEEN;
        end_round(s, public_reason(e->reason), 0, e);
    } else if (s->place == MU_RDZV_CLIENT_OPENING) {
        /* The user never saw this round: next() goes on to the following one. */
        drop_round(s);
        s->place = MU_RDZV_CLIENT_JOINING;
        mu_rdzv_join(s->handler);
    }
}

static void on_waiting(void *context, uint32_t count)
{
    struct mu_rdzv_client *s = context;

    lock_client(s);
    if (s->in_round && s->waiting != count) {
        s->waiting = count;
        s->tell_waiting = true;
    }
    unlock_and_wake(s);
}

static void on_explained(void *context, const char *text)
{
    struct mu_rdzv_client *s = context;

    lock_client(s);
    s->explained++;
    (void)mu_err(&s->explained_text, 0, "%s", text);
    unlock_and_wake(s);
}

bool mu_rdzv_client_explain(struct mu_rdzv_client *s)
{
    if (s->place == MU_RDZV_CLIENT_JOINING) {
        return mu_rdzv_explain(s->handler);
    }
    on_explained(s, "the store of the round is being opened");
    return true;
}

/* Out without having left: by failure, or because the run is closed. */
static void fall_out(struct mu_rdzv_client *s, enum muster_rdzv_end_reason reason, int status,
                     const char *text)
{
    enum mu_rdzv_client_place place = s->place;

    switch (place) {
    case MU_RDZV_CLIENT_OUT:
        break;
    case MU_RDZV_CLIENT_OPENING:
        drop_round(s);
        s->place = MU_RDZV_CLIENT_OUT;
        finish_next(s, status, text);
        break;
    case MU_RDZV_CLIENT_JOINING:
        s->place = MU_RDZV_CLIENT_OUT;
        finish_next(s, status, text);
        break;
    case MU_RDZV_CLIENT_IN:
    case MU_RDZV_CLIENT_BETWEEN:
        s->place = MU_RDZV_CLIENT_OUT;
        end_round(s, reason, status, &(struct mu_rdzv_ending){.text = text});
        break;
    case MU_RDZV_CLIENT_LEAVING:
        finish_leaving(s);
        break;
    }
}

static void on_closed(void *context)
{
    struct mu_rdzv_client *s = context;

    lock_client(s);
    if (!s->closed) {
        s->closed = true;
        s->tell_closed = true;
    }
    s->close_wanted = false;
    s->close_status = 0;
    unlock_and_wake(s);
    fall_out(s, MUSTER_RDZV_ENDED_CLOSED, MUSTER_ERDZV_CLOSED, "the run was closed");
}

static void on_failed(void *context, int status, const char *text)
{
    fall_out(context, MUSTER_RDZV_ENDED_OUT, status, text);
}

static void on_left(void *context)
{
    struct mu_rdzv_client *s = context;

    if (s->place == MU_RDZV_CLIENT_LEAVING) {
        finish_leaving(s);
    }
}

static void on_close_failed(void *context, int status, const char *text)
{
    struct mu_rdzv_client *s = context;

    lock_client(s);
    s->close_wanted = false;
    s->close_status = mu_err(&s->close_text, status, "%s", text);
    unlock_and_wake(s);
}

static void on_record(void *context, const struct mu_rdzv_record *r)
{
    struct mu_rdzv_client *s = context;

    mu_rdzv_tell(&(struct muster_rdzv_record){
        .name = r->name,
        .run_id = r->run_id,
        .message = r->message,
        .host = s->host,
        .pid = s->pid,
        .state = (enum muster_rdzv_state)r->state,
        .rank = r->rank,
        .node = r->node,
        .time_us = (int64_t)(mu_env_now(s->rt->env).wall.ns / 1000),
    });
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Another thread frees the client as soon as it knows: nothing may be touched after this. */
static void check_gone(struct mu_rdzv_client *s)
{
    if (s->freed && s->rounds == 0) {
        lock_client(s);
        s->gone = true;
        unlock_and_wake(s);
    }
}

static void on_freed(void *context)
{
    struct mu_rdzv_client *s = context;

    s->freed = true;
    check_gone(s);
}

void mu_rdzv_client_round_freed(struct mu_rdzv_client *s)
{
    s->rounds--;
    check_gone(s);
}

void mu_rdzv_client_free(struct mu_rdzv_client *s)
{
    s->leaving_for_good = true;
    drop_round(s);
    if (s->place == MU_RDZV_CLIENT_OUT) {
        mu_rdzv_free(s->handler);
    } else if (s->place != MU_RDZV_CLIENT_LEAVING) {
        begin_leaving(s);
    }
}

struct mu_rdzv_events mu_rdzv_client_events(struct mu_rdzv_client *s)
{
    mu_timer_init(&s->leave_timer, on_leave_timer);
    s->place = MU_RDZV_CLIENT_OUT;
    return (struct mu_rdzv_events){
        .assigned = on_assigned,
        .ended = on_ended,
        .waiting = on_waiting,
        .explained = on_explained,
        .closed = on_closed,
        .failed = on_failed,
        .left = on_left,
        .close_failed = on_close_failed,
        .record = on_record,
        .freed = on_freed,
        .context = s,
    };
}
