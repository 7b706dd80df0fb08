#include "service/state/progress_track.h"

#include <stdio.h>

#include <muster/error.h>

#include "codec/bin/msgpack.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"

#define KEY_CAP 512

struct mu_progress_track {
    struct mu_progress_track_config config;
    struct mu_env *env;
    struct mu_dht_service *dht;
    struct mu_progress machine;
    int pauses;
    struct mu_dht_id key;
    struct mu_buf subkey;
    struct mu_timer timer;
    struct mu_dht_wish store;
    struct mu_dht_wish fetch;
    double expiration; /* of the last record */
    bool storing;
    bool fetching;
    bool said; /* there is a record of ours */
    bool stopping;
    bool over; /* it does not wait for anything any more */
    struct mu_progress_track_stats stats;
};

static void turn_later(struct mu_progress_track *t)
{
    mu_env_timer_arm(t->env, &t->timer, mu_env_now(t->env).mono);
}

/* --- our record ------------------------------------------------------------------------------- */

static void on_stored(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct mu_progress_track *t = MU_CONTAINER_OF(wish, struct mu_progress_track, store);

    t->storing = false;
    if (op->count != 0 && op->results[0].stored != 0) {
        t->stats.stored++;
    } else {
        t->stats.unheard++;
        mu_log(MUSTER_LOG_INFO, "PROGRESS-UNHEARD", "status=%s", muster_errname(op->status));
    }
    turn_later(t);
}

static void store(struct mu_progress_track *t, struct mu_span value)
{
    double expiration =
        mu_dht_service_time(t->dht) + (double)t->config.progress.expiration_ms / 1e3;
    struct mu_dht_put put;

    /* A later record must expire later, or it is not accepted. */
    if (expiration <= t->expiration) {
        expiration = t->expiration + 1e-3;
    }
    put = (struct mu_dht_put){t->key, mu_buf_span(&t->subkey), value, expiration};
    t->store.done = on_stored;
    if (mu_dht_service_store(t->dht, &t->store, &put, 1) == 0) {
        t->expiration = expiration;
        t->storing = true;
    } else {
        t->stats.unheard++;
    }
}

static void store_record(struct mu_progress_track *t)
{
    struct mu_progress_record record = mu_progress_record(&t->machine, mu_env_now(t->env));
    struct mu_buf value;

    mu_buf_init(&value, 512);
    if (mu_progress_record_encode(&record, &value) == 0) {
        store(t, mu_buf_span(&value));
        t->said = true;
    }
    mu_buf_fini(&value);
}

static void store_goodbye(struct mu_progress_track *t)
{
    t->said = false;
    store(t, MU_SPAN_LIT("\xc0"));
}

/* --- records of the others -------------------------------------------------------------------- */

static void on_fetched(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct mu_progress_track *t = MU_CONTAINER_OF(wish, struct mu_progress_track, fetch);
    bool found = op->count != 0 && op->results[0].type == MU_DHT_FOUND_DICTIONARY;

    t->fetching = false;
    t->stats.fetched++;
    if (!t->stopping) {
        mu_progress_fetched(&t->machine, mu_env_now(t->env), found ? 0 : op->status,
                            found ? mu_buf_span(&op->results[0].value) : (struct mu_span){0});
    }
    turn_later(t);
}

static void fetch(struct mu_progress_track *t)
{
    int err;

    t->fetch.done = on_fetched;
    err = mu_dht_service_get(t->dht, &t->fetch, &t->key, 1, true);
    t->fetching = err == 0;
    if (err != 0) {
        mu_progress_fetched(&t->machine, mu_env_now(t->env), err, (struct mu_span){0});
    }
}

/* --- the turn --------------------------------------------------------------------------------- */

static void finish(struct mu_progress_track *t)
{
    void (*stopped)(void *context) = t->config.stopped;
    void *context = t->config.context;

    mu_env_timer_arm(t->env, &t->timer, MU_MONO_NEVER);
    (void)mu_state_swarm_own(t->config.swarm, NULL);
    mu_buf_fini(&t->subkey);
    mu_free(t);
    if (stopped != NULL) {
        stopped(context);
    }
}

/* Stores and fetches what is due. */
static void turn(struct mu_progress_track *t)
{
    struct mu_now now = mu_env_now(t->env);
    mu_mono_t at;

    if (t->stopping) {
        return;
    }
    if (!t->storing && mu_progress_store_due(&t->machine, now)) {
        store_record(t);
    }
    if (!t->fetching && mu_progress_fetch_due(&t->machine, now)) {
        fetch(t);
    }
    at = mu_progress_deadline(&t->machine);
    if (mu_mono_reached(at, now.mono) && (t->storing || t->fetching)) {
        at = MU_MONO_NEVER; /* its end will come */
    }
    mu_env_timer_arm(t->env, &t->timer, at);
}

static void leave(struct mu_progress_track *t)
{
    if (t->storing || t->fetching) {
        return;
    }
    if (t->said && !t->over) {
        store_goodbye(t);
        if (t->storing) {
            mu_env_timer_arm(t->env, &t->timer,
                             mu_mono_add_ms(mu_env_now(t->env).mono, t->config.goodbye_ms));
            return;
        }
    }
    finish(t);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_progress_track *t = MU_CONTAINER_OF(timer, struct mu_progress_track, timer);

    if (!t->stopping) {
        turn(t);
    } else if (t->storing || t->fetching) {
        t->over = true; /* no node heard that we leave: the record will expire */
        if (t->storing) {
            mu_dht_service_cancel(&t->store);
        }
        if (t->fetching) {
            mu_dht_service_cancel(&t->fetch);
        }
    } else {
        leave(t);
    }
}

/* --- life ------------------------------------------------------------------------------------- */

struct mu_progress_track_config mu_progress_track_config_defaults(void)
{
    return (struct mu_progress_track_config){
        .progress = mu_progress_config_defaults(),
        .goodbye_ms = 3000,
    };
}

static int prepare(struct mu_progress_track *t, struct mu_errmsg *reterr_msg)
{
    struct mu_mp_out out = mu_mp_out(&t->subkey);
    char key[KEY_CAP];
    int len = snprintf(key, sizeof(key), "%s_progress", t->config.run);
    int err;

    if (t->config.run[0] == '\0' || len < 0 || (size_t)len >= sizeof(key)) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the name of a run must have 1 to %d bytes",
                      KEY_CAP);
    }
    err = mu_dht_key_text(mu_span(key, (size_t)len), &t->key);
    if (err == 0) {
        err = mu_state_swarm_own(t->config.swarm, t->config.owner);
        if (err == MUSTER_EBUSY) {
            return mu_err(reterr_msg, err, "this swarm already reports the progress of a run");
        }
    }
    if (err == 0) {
        mu_mp_put_bin(&out, mu_state_swarm_mark(t->config.swarm));
        err = out.err;
        if (err != 0) {
            (void)mu_state_swarm_own(t->config.swarm, NULL);
        }
    }
    return err == 0 ? 0 : mu_err(reterr_msg, err, "%s", muster_strerror(err));
}

int mu_progress_track_start(const struct mu_progress_track_config *config,
                            struct mu_progress_track **ret, struct mu_errmsg *reterr_msg)
{
    struct mu_progress_track *t = mu_calloc(1, sizeof(*t));
    struct mu_progress_config progress = config->progress;
    int err;

    if (t == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    t->config = *config;
    t->env = mu_peer_host_env(mu_state_swarm_host(config->swarm));
    t->dht = mu_state_swarm_dht(config->swarm);
    mu_buf_init(&t->subkey, 4096);
    mu_timer_init(&t->timer, on_timer);
    err = prepare(t, reterr_msg);
    if (err != 0) {
        mu_buf_fini(&t->subkey);
        mu_free(t);
        return err;
    }
    progress.self = *mu_peer_host_id(mu_state_swarm_host(config->swarm));
    mu_progress_init(&t->machine, &progress, mu_env_now(t->env));
    turn_later(t);
    *ret = t;
    return 0;
}

const struct mu_progress *mu_progress_track_view(const struct mu_progress_track *t)
{
    return &t->machine;
}

void mu_progress_track_report(struct mu_progress_track *t, uint64_t epoch, uint64_t samples)
{
    mu_progress_report(&t->machine, mu_env_now(t->env), epoch, samples);
    turn(t);
}

void mu_progress_track_update_epoch(struct mu_progress_track *t, uint64_t epoch)
{
    mu_progress_update_epoch(&t->machine, mu_env_now(t->env), epoch);
    turn(t);
}

void mu_progress_track_pause(struct mu_progress_track *t)
{
    if (t->pauses++ == 0) {
        mu_progress_pause(&t->machine);
        turn(t);
    }
}

void mu_progress_track_resume(struct mu_progress_track *t)
{
    if (t->pauses > 0 && --t->pauses == 0) {
        mu_progress_resume(&t->machine, mu_env_now(t->env));
        turn(t);
    }
}

bool mu_progress_track_ready(struct mu_progress_track *t)
{
    return mu_progress_ready(&t->machine, mu_env_now(t->env));
}

bool mu_progress_track_needs_state(struct mu_progress_track *t)
{
    bool needs = mu_progress_needs_state(&t->machine);

    turn(t);
    return needs;
}

int mu_progress_track_enter(struct mu_progress_track *t, const struct mu_progress_hooks *hooks)
{
    int err = mu_progress_enter(&t->machine, hooks);

    turn(t);
    return err;
}

void mu_progress_track_leave(struct mu_progress_track *t, int status, uint64_t epoch)
{
    (void)mu_progress_leave(&t->machine, mu_env_now(t->env), status, epoch);
    if (t->pauses > 0) {
        mu_progress_pause(&t->machine);
    }
    turn(t);
}

void mu_progress_track_on_stopped(struct mu_progress_track *t, void (*stopped)(void *context),
                                  void *context)
{
    t->config.stopped = stopped;
    t->config.context = context;
}

void mu_progress_track_stop(struct mu_progress_track *t)
{
    MU_ASSERT(!t->stopping);
    t->stopping = true;
    if (t->fetching) {
        mu_dht_service_cancel(&t->fetch); /* a store under way may end */
    }
    mu_env_timer_arm(t->env, &t->timer,
                     t->storing || t->fetching
                         ? mu_mono_add_ms(mu_env_now(t->env).mono, t->config.goodbye_ms)
                         : mu_env_now(t->env).mono);
}

void mu_progress_track_stats(const struct mu_progress_track *t, struct mu_progress_track_stats *ret)
{
    *ret = t->stats;
}
