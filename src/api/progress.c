/* The public progress tracker. */
#include <muster/progress.h>

#include <math.h>

#include "api/state_api.h"
#include "core/alloc.h"
#include "service/base/log.h"
#include "service/state/progress_track.h"

#define OWNER_BITS 2048

struct muster_progress {
    muster_state *state;
    muster_runtime *rt;
    struct mu_identity owner;
    struct mu_progress_track *track;
};

void muster_progress_config_init(struct muster_progress_config *ret, size_t size)
{
    struct mu_progress_config d = mu_progress_track_config_defaults().progress;
    struct muster_progress_config ours = {.tolerance = d.tolerance, .look_ms = d.fetch_max_ms};

    mu_api_give(ret, size, &ours, sizeof(ours));
}

void muster_progress_hooks_init(struct muster_progress_hooks *ret, size_t size)
{
    struct muster_progress_hooks ours = {.context = NULL};

    mu_api_give(ret, size, &ours, sizeof(ours));
}

/* --- the way to the loop ---------------------------------------------------------------------- */

struct progress_door {
    struct mu_door door;
    muster_progress *p;
    const struct muster_progress_config *config;
    uint64_t epoch;
    uint64_t samples;
    int status;
    bool answer;
    struct muster_progress_view *view;
    int err;
    struct mu_errmsg msg;
};

/* Passes the door from any thread; `run` opens it before it returns. */
static void pass(muster_progress *p, struct progress_door *d, void (*run)(struct mu_door *door))
{
    d->p = p;
    mu_door_pass_anywhere(p->rt, &d->door, run);
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_stopped(void *context)
{
    mu_door_open(context);
}

static void start_on_loop(struct mu_door *door)
{
    struct progress_door *d = MU_CONTAINER_OF(door, struct progress_door, door);
    struct mu_progress_track_config config = mu_progress_track_config_defaults();
    struct mu_progress_config *p = &config.progress;
    uint32_t look = d->config->look_ms;

    config.swarm = d->p->state->node.swarm;
    config.owner = &d->p->owner;
    config.run = d->config->run;
    config.stopped = NULL;
    p->client = d->config->client;
    p->target_batch_size = d->config->batch;
    p->tolerance = d->config->tolerance;
    p->fetch_max_ms = look;
    p->fetch_alone_ms = p->fetch_alone_ms < look ? p->fetch_alone_ms : look;
    p->fetch_min_ms = p->fetch_min_ms < look ? p->fetch_min_ms : look;
    d->err = mu_progress_track_start(&config, &d->p->track, &d->msg);
    if (d->err == 0 && d->config->epoch != 0) {
        mu_progress_track_update_epoch(d->p->track, d->config->epoch);
    }
    mu_door_open(door);
}

static int make_owner(const char *file, struct mu_identity *ret, struct mu_errmsg *msg)
{
    int err;

    if (file != NULL) {
        return mu_state_read_key(file, ret, msg);
    }
    err = mu_identity_generate_rsa(ret, OWNER_BITS);
    return err == 0 ? 0 : mu_err(msg, err, "cannot make a key: %s", muster_strerror(err));
}

int muster_progress_open(muster_state *state, const struct muster_progress_config *given,
                         muster_progress **ret_progress)
{
    struct muster_progress_config config;
    struct progress_door d = {.config = &config};
    muster_progress *p;
    int err = MU_API_TAKE(progress_config, &config, given);

    if (err != 0) {
        return err;
    }
    if (mu_runtime_is_mine(state->rt) || state->node.swarm == NULL || config.run == NULL ||
        config.batch == 0 || config.look_ms == 0) {
        return mu_api_error(
            MUSTER_EINVAL,
            mu_runtime_is_mine(state->rt)
                ? "this call waits: make it on a thread of your own, not the runtime's"
            : state->node.swarm == NULL ? "progress needs a state in a swarm: set its `dht`"
                                        : "`run`, `batch` and `look_ms` are needed");
    }
    p = mu_calloc(1, sizeof(*p));
    if (p == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    p->state = state;
    p->rt = state->rt;
    d.err = make_owner(config.owner, &p->owner, &d.msg);
    if (d.err == 0) {
        pass(p, &d, start_on_loop);
        if (d.err != 0) {
            mu_identity_fini(&p->owner);
        }
    }
    if (d.err != 0) {
        mu_free(p);
        return mu_api_error(d.err, d.msg.text);
    }
    *ret_progress = p;
    return 0;
}

static void stop_on_loop(struct mu_door *door)
{
    struct progress_door *d = MU_CONTAINER_OF(door, struct progress_door, door);

    mu_progress_track_on_stopped(d->p->track, on_stopped, door);
    mu_progress_track_stop(d->p->track);
}

void muster_progress_close(muster_progress *p)
{
    struct progress_door d = {.p = p};

    if (p == NULL || mu_runtime_would_wait(p->rt, "muster_progress_close")) {
        return;
    }
    mu_door_pass(p->rt, &d.door, stop_on_loop);
    mu_identity_fini(&p->owner);
    mu_free(p);
}

/* --- our own progress ------------------------------------------------------------------------- */

static void report_on_loop(struct mu_door *door)
{
    struct progress_door *d = MU_CONTAINER_OF(door, struct progress_door, door);

    mu_progress_track_report(d->p->track, d->epoch, d->samples);
    mu_door_open(door);
}

void muster_progress_report(muster_progress *p, uint64_t epoch, uint64_t samples)
{
    struct progress_door d = {.epoch = epoch, .samples = samples};

    pass(p, &d, report_on_loop);
}

static void enter_on_loop(struct mu_door *door)
{
    struct progress_door *d = MU_CONTAINER_OF(door, struct progress_door, door);

    mu_progress_track_update_epoch(d->p->track, d->epoch);
    mu_door_open(door);
}

void muster_progress_enter_epoch(muster_progress *p, uint64_t epoch)
{
    struct progress_door d = {.epoch = epoch};

    pass(p, &d, enter_on_loop);
}

static void pause_on_loop(struct mu_door *door)
{
    struct progress_door *d = MU_CONTAINER_OF(door, struct progress_door, door);

    mu_progress_track_pause(d->p->track);
    mu_door_open(door);
}

void muster_progress_pause(muster_progress *p)
{
    struct progress_door d = {0};

    pass(p, &d, pause_on_loop);
}

static void resume_on_loop(struct mu_door *door)
{
    struct progress_door *d = MU_CONTAINER_OF(door, struct progress_door, door);

    mu_progress_track_resume(d->p->track);
    mu_door_open(door);
}

void muster_progress_resume(muster_progress *p)
{
    struct progress_door d = {0};

    pass(p, &d, resume_on_loop);
}

/* --- the view --------------------------------------------------------------------------------- */

static void ready_on_loop(struct mu_door *door)
{
    struct progress_door *d = MU_CONTAINER_OF(door, struct progress_door, door);

    d->answer = mu_progress_track_ready(d->p->track);
    mu_door_open(door);
}

bool muster_progress_ready(muster_progress *p)
{
    struct progress_door d = {0};

    pass(p, &d, ready_on_loop);
    return d.answer;
}

static void needs_on_loop(struct mu_door *door)
{
    struct progress_door *d = MU_CONTAINER_OF(door, struct progress_door, door);

    d->answer = mu_progress_track_needs_state(d->p->track);
    mu_door_open(door);
}

bool muster_progress_needs_state(muster_progress *p)
{
    struct progress_door d = {0};

    pass(p, &d, needs_on_loop);
    return d.answer;
}

static void view_on_loop(struct mu_door *door)
{
    struct progress_door *d = MU_CONTAINER_OF(door, struct progress_door, door);
    const struct mu_progress *m = mu_progress_track_view(d->p->track);
    double now = (double)mu_env_now(d->p->rt->env).wall.ns / 1e9;
    struct mu_progress_track_stats stats;

    mu_progress_track_stats(d->p->track, &stats);
    *d->view = (struct muster_progress_view){
        .epoch = m->epoch,
        .samples = m->samples,
        .samples_per_second = m->samples_per_second,
        .swarm_epoch = m->swarm.epoch,
        .swarm_samples = m->swarm.samples,
        .swarm_samples_per_second = m->swarm.samples_per_second,
        .eta_seconds = isfinite(m->swarm.eta) ? m->swarm.eta - now : m->swarm.eta,
        .peers = m->swarm.peers,
        .clients = m->swarm.clients,
        .suspects = m->swarm.suspects,
        .looks = stats.fetched,
    };
    mu_door_open(door);
}

void muster_progress_get(muster_progress *p, struct muster_progress_view *ret)
{
    struct progress_door d = {.view = ret};

    pass(p, &d, view_on_loop);
}

/* --- catching up ------------------------------------------------------------------------------ */

static void begin_on_loop(struct mu_door *door)
{
    struct progress_door *d = MU_CONTAINER_OF(door, struct progress_door, door);
    struct mu_progress_hooks none = {0}; /* hooks wait, so they ran on the caller's thread */

    d->err = mu_progress_track_enter(d->p->track, &none);
    mu_door_open(door);
}

static void end_on_loop(struct mu_door *door)
{
    struct progress_door *d = MU_CONTAINER_OF(door, struct progress_door, door);

    mu_progress_track_leave(d->p->track, d->status, d->epoch);
    mu_door_open(door);
}

static int run_hooks(const struct muster_progress_hooks *hooks)
{
    int err;

    if (hooks->join_round_with_zero_weight != NULL) {
        err = hooks->join_round_with_zero_weight(hooks->context);
        if (err != 0) {
            mu_log(MUSTER_LOG_WARN, "ROUND-LET-GO", "status=%s", muster_errname(err));
        }
    }
    err = hooks->await_pending_updates == NULL ? 0 : hooks->await_pending_updates(hooks->context);
    return err == 0 ? 0 : mu_api_error(err, "await_pending_updates() failed");
}

int muster_progress_catch_up(muster_progress *p, const struct muster_progress_hooks *hooks,
                             const struct muster_state_request *request,
                             muster_state_copy **ret_copy)
{
    struct muster_progress_hooks own = muster_progress_hooks_defaults();
    struct muster_state_request r;
    struct progress_door d = {0};
    muster_state_copy *copy = NULL;
    int err;

    if (mu_runtime_is_mine(p->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    err = MU_API_TAKE(state_request, &r, request);
    if (err == 0 && hooks != NULL) {
        err = MU_API_TAKE(progress_hooks, &own, hooks);
    }
    if (err == 0) {
        err = run_hooks(&own);
    }
    if (err != 0) {
        return err;
    }
    pass(p, &d, begin_on_loop);
    if (r.through == NULL && r.dht == NULL) {
        r.through = p->state;
    }
    err = muster_state_load(p->rt, &r, &copy);
    d = (struct progress_door){.status = err};
    d.epoch = err == 0 ? muster_state_copy_info(copy)->epoch : 0;
    pass(p, &d, end_on_loop);
    if (err != 0) {
        return err;
    }
    if (ret_copy != NULL) {
        *ret_copy = copy;
    } else {
        muster_state_copy_free(copy);
    }
    return 0;
}
