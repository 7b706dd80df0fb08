/* Worker processes: starting, stopping, their end, and their channels. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "service/agent/env.h"
#include "service/agent/agent_internal.h"

#define TRACEBACK "Traceback (most recent call last)"
#define RAISED_MS UINT64_C(1000) /* after a traceback, for the worker to end because of it */
#define MISSED_MS UINT64_C(5000) /* until we have noticed what the watcher did */
#define HOLD_MS   300 /* how long a worker that may be ending has for that before it is signalled */

/* --- the channels ----------------------------------------------------------------------------- */

static struct mu_agent_worker *worker_of(struct mu_conn *conn)
{
    return MU_CONTAINER_OF(conn, struct mu_agent_worker, channel);
}

static void maybe_saved(struct mu_agent_service *s)
{
    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        if (s->workers[i].warned) {
            return;
        }
    }
    mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_SAVED, .generation = s->generation});
}

static void no_need_to_wait(struct mu_agent_worker *w)
{
    w->asked = false;
    if (w->warned) {
        w->warned = false;
        maybe_saved(w->s);
    }
}

static void take_line(struct mu_agent_worker *w)
{
    if (strcmp(w->line, "notify") == 0) {
        w->asked = true;
    } else if (strcmp(w->line, "saved") == 0 && w->warned) {
        w->warned = false;
        maybe_saved(w->s);
    } else if (strncmp(w->line, "step ", strlen("step ")) == 0) {
        mu_agent_step_take(w, w->line + strlen("step "));
    }
}

static size_t on_channel_data(struct mu_conn *conn, struct mu_span in)
{
    struct mu_agent_worker *w = worker_of(conn);

    for (size_t i = 0; i < in.len; i++) {
        if (in.data[i] == '\n') {
            w->line[w->line_len] = '\0';
            w->line_len = 0;
            take_line(w);
        } else if (w->line_len + 1 < sizeof(w->line)) {
            w->line[w->line_len++] = (char)in.data[i];
        }
    }
    return in.len;
}

static void on_channel_eof(struct mu_conn *conn)
{
    mu_env_close(conn->env, conn, true);
}

static void on_channel_writable(struct mu_conn *conn)
{
    (void)conn;
}

static void maybe_gone(struct mu_agent_service *s);

static void on_channel_closed(struct mu_conn *conn, int status)
{
    struct mu_agent_worker *w = worker_of(conn);

    (void)status;
    w->channel_open = false;
    no_need_to_wait(w);
    maybe_gone(w->s);
}

static const struct mu_conn_events channel_events = {
    .data = on_channel_data,
    .eof = on_channel_eof,
    .writable = on_channel_writable,
    .closed = on_channel_closed,
};

void mu_agent_workers_warn(struct mu_agent_service *s, uint64_t within_ms)
{
    char text[64];
    int len = snprintf(text, sizeof(text), "change %llu\n", (unsigned long long)within_ms);

    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        struct mu_agent_worker *w = &s->workers[i];

        if (w->asked && w->channel_open && !w->end.exited) {
            size_t taken = 0;

            mu_env_send(s->env, &w->channel, mu_span(text, (size_t)len), &taken);
            w->warned = taken == (size_t)len;
        }
    }
    maybe_saved(s);
}

/* --- callbacks of processes ------------------------------------------------------------------- */

static struct mu_agent_worker *child_worker(struct mu_child *child)
{
    return MU_CONTAINER_OF(child, struct mu_agent_worker, child);
}

static void maybe_gone(struct mu_agent_service *s)
{
    uint64_t generation = s->generation;

    if (generation == 0 || s->spawned_count != 0) {
        return;
    }
    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        if (s->workers[i].channel_open) {
            return;
        }
    }
    s->generation = 0;
    if (s->events.gone != NULL) {
        s->events.gone(s->events.context, &s->attempt);
    }
    mu_agent_tell(s,
                  (struct mu_agent_event){.type = MU_AGENT_GROUP_GONE, .generation = generation});
}

static void tell_spawn_failed(struct mu_agent_service *s, uint32_t local_rank, int code,
                              const char *text)
{
    if (!s->spawn_failed) {
        s->spawn_failed = true;
        mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_SPAWN_FAILED,
                                                 .generation = s->generation,
                                                 .local_rank = local_rank,
                                                 .code = code,
                                                 .text = text});
    }
}

static void send_signal(struct mu_agent_worker *w, int signal)
{
    w->held = false;
    w->end.stopped = w->end.stopped || (!w->end.exited && !w->dying);
    (void)mu_env_child_signal(w->s->env, &w->child, signal, MU_CHILD_FAMILY);
}

static void on_started(struct mu_child *child, int status)
{
    struct mu_agent_worker *w = child_worker(child);
    struct mu_agent_service *s = w->s;

    if (status != 0 && w->warm) {
        mu_agent_warm_refused(s, w->local_rank, child->error.text);
        w->again = true; /* once it is gone */
        return;
    }
    if (status != 0) {
        tell_spawn_failed(s, w->local_rank, status, child->error.text);
        return;
    }
    w->running = true;
    w->end.pid = child->pid;
    s->running_count += 1;
    if (w->signal_due != 0) {
        send_signal(w, w->signal_due);
    }
    if (w->kill_due) {
        send_signal(w, SIGKILL);
    }
    if (s->running_count == s->config.policy.workers) {
        mu_agent_log(s, "round %llu: ranks %u to %u of %u are running",
                     (unsigned long long)s->attempt.round, s->attempt.ranks.base,
                     s->attempt.ranks.base + s->config.policy.workers - 1, s->attempt.ranks.world);
        if (s->events.started != NULL) {
            s->events.started(s->events.context, &s->attempt);
        }
        mu_agent_warm_running(s);
        mu_agent_watchdog_begin(s);
        mu_agent_straggle_begin(s);
        mu_agent_tell(
            s, (struct mu_agent_event){.type = MU_AGENT_SPAWNED, .generation = s->generation});
    }
}

static size_t on_output(struct mu_child *child, enum mu_stream stream, struct mu_span in)
{
    struct mu_agent_worker *w = child_worker(child);
    struct mu_agent_service *s = w->s;
    size_t used = s->events.output(s->events.context, w->local_rank, child, stream, in);

    w->output_bytes += used;
    if (stream == MU_STDERR && used != 0 &&
        memmem(in.data, used, TRACEBACK, sizeof(TRACEBACK) - 1) != NULL) {
        w->raised_at = mu_env_now(s->env).mono;
        w->raised = true;
        mu_agent_failure_sign(w);
    }
    return used;
}

static void on_dying(struct mu_child *child)
{
    struct mu_agent_worker *w = child_worker(child);

    w->dying = !w->end.stopped; /* one that we stopped before may be dying because of that */
    mu_agent_failure_sign(w);
}

/* The watcher has ended the workers, because this process was stopped: none of them has failed, and
 * the round is over for us. */
static void miss_round(struct mu_agent_service *s)
{
    if (s->round == NULL) {
        return;
    }
    mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_CUT_OFF, .by = s->until});
    mu_agent_tell(s,
                  (struct mu_agent_event){
                      .type = MU_AGENT_ROUND_ENDED,
                      .round = s->round->number,
                      .text = "this agent was stopped, or had lost touch with the others, for so "
                              "long that its workers were ended"});
}

/* Whether the watcher may have killed the workers a moment ago. It may have done so while we woke
 * and were just about to tell it that they may live on. */
static bool was_late(const struct mu_agent_service *s)
{
    mu_mono_t now = mu_env_now(s->env).mono;

    return mu_mono_reached(s->until, now) ||
           (s->missed_at.ns != MU_MONO_NEVER.ns &&
            mu_mono_since(s->missed_at, now) <= MISSED_MS * MU_NS_PER_MS);
}

static void on_exited(struct mu_child *child, int status)
{
    struct mu_agent_worker *w = child_worker(child);
    struct mu_agent_service *s = w->s;

    if (status == -SIGKILL && was_late(s)) {
        w->end.stopped = true;
        miss_round(s);
    }
    w->end.exited = true;
    w->end.exit_code = status;
    if (s->events.exited != NULL) {
        s->events.exited(s->events.context, &w->end);
    }
    no_need_to_wait(w);
    if (w->held) {
        send_signal(w, w->held_signal); /* to the processes that it has left */
    }
    if (status != 0 && !w->end.stopped) {
        mu_agent_failure_publish(w);
    }
    mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_EXITED,
                                             .generation = s->generation,
                                             .local_rank = w->local_rank,
                                             .exit_code = status});
}

static void forget_child(struct mu_agent_worker *w)
{
    w->spawned = false;
    w->s->spawned_count -= 1;
    if (w->channel_open) {
        mu_env_close(w->s->env, &w->channel, true);
    }
}

static void start_plainly(struct mu_agent_worker *w);

static void on_gone(struct mu_child *child)
{
    struct mu_agent_worker *w = child_worker(child);

    forget_child(w);
    if (w->again && w->signal_due == 0 && !w->kill_due) {
        start_plainly(w);
    }
    maybe_gone(w->s);
}

static const struct mu_child_events child_events = {
    .started = on_started,
    .output = on_output,
    .dying = on_dying,
    .exited = on_exited,
    .gone = on_gone,
};

/* --- starting --------------------------------------------------------------------------------- */

static void fill_env(const struct mu_agent_service *s, struct mu_agent_env *e)
{
    const struct mu_agent_round *r = s->round;

    *e = (struct mu_agent_env){
        .inherited = s->config.inherited,
        .role = s->config.role,
        .run_id = s->rdzv->run_id,
        .workers = s->config.policy.workers,
        .restarts_max = s->config.policy.restarts_max,
        .restart_count = s->attempt.restart_count,
        .round = r->number,
        .group_rank = r->rank,
        .group_world = r->world,
        .ranks = r->ranks,
        .master_addr = r->master_addr,
        .master_port = r->master_port,
        .use_agent_store = r->share,
        .virtual_local_rank = s->config.virtual_local_rank,
        .signals_to_handle = s->config.signals_to_handle,
        .grace_ms = s->config.policy.grace_ms,
        .notify_fd = s->config.policy.change_ms != 0 ? MU_CHILD_CHANNEL_FD : -1,
        .flight = s->config.flight,
        .flight_renamed = s->config.flight_renamed,
    };
}

/* Makes it of a standby, if one waits, or else as a new process. */
static int spawn_from(struct mu_agent_worker *w, struct mu_spawn *what,
                      struct mu_standbys *standbys)
{
    int err = MUSTER_EAGAIN;

    w->child = (struct mu_child){.on = &child_events};
    w->channel = (struct mu_conn){.on = &channel_events};
    if (standbys != NULL) {
        what->from = standbys;
        err = mu_env_spawn(w->s->env, &w->child, what);
        what->from = NULL;
    }
    w->warm = err == 0;
    return w->warm ? 0 : mu_env_spawn(w->s->env, &w->child, what);
}

static int spawn_one(struct mu_agent_worker *w, const struct mu_agent_env *e,
                     struct mu_standbys *standbys, struct mu_errmsg *reterr_msg)
{
    struct mu_agent_service *s = w->s;
    const char *error_file =
        s->events.error_file == NULL ? "" : s->events.error_file(s->events.context, w->local_rank);
    const char *const *envp = NULL;
    const char *const *argv = NULL;
    const struct mu_vault *vaults[MU_CHILD_VAULTS_MAX] = {NULL};
    char text[MU_KEPT_TERMS_LEN_MAX + 1];
    struct mu_agent_env own = *e;
    struct mu_kept_terms terms;
    struct mu_spawn what;
    int err;

    if (mu_agent_kept_give(s, w->local_rank, vaults, &terms)) {
        (void)mu_kept_terms_encode(&terms, text);
        own.vaults = text;
    }
    err = mu_agent_env_build(&own, w->local_rank, error_file, &envp, reterr_msg);

    if (err != 0) {
        return err;
    }
    err = mu_agent_argv_build(s->config.argv, w->local_rank, &argv);
    if (err == 0) {
        what = (struct mu_spawn){
            .argv = argv,
            .envp = envp,
            .streams = {{.to = MU_SPAWN_INHERIT}, {.to = MU_SPAWN_PIPE}, {.to = MU_SPAWN_PIPE}},
            .sentinel = true,
            .channel = s->config.policy.change_ms != 0 ? &w->channel : NULL,
        };
        memcpy(what.vaults, vaults, sizeof(vaults));
        if (s->events.streams != NULL) {
            s->events.streams(s->events.context, w->local_rank, &what);
        }
        err = spawn_from(w, &what, standbys);
    }
    if (err == 0) {
        w->spawned = true;
        w->channel_open = what.channel != NULL;
        s->spawned_count += 1;
    } else {
        (void)mu_err(reterr_msg, err, "%s", muster_strerror(err));
    }
    mu_free((void *)argv);
    mu_free((void *)envp);
    return err;
}

static void reset_worker(struct mu_agent_worker *w)
{
    w->running = false;
    w->signal_due = 0;
    w->kill_due = false;
    w->end = (struct mu_agent_worker_end){.rank = w->s->attempt.ranks.base + w->local_rank,
                                          .local_rank = w->local_rank};
    w->asked = false;
    w->warned = false;
    w->line_len = 0;
    w->has_step = false;
    w->output_bytes = 0;
    w->mark_count = 0;
    w->hung = false;
    w->ticket = 0;
    w->dying = false;
    w->raised = false;
    w->failed = false;
    w->held = false;
    w->warm = false;
    w->again = false;
}

/* Its standby could not become it. */
static void start_plainly(struct mu_agent_worker *w)
{
    struct mu_errmsg msg = {{0}};
    struct mu_agent_env e;
    int err;

    w->again = false;
    fill_env(w->s, &e);
    err = spawn_one(w, &e, NULL, &msg);
    if (err != 0) {
        tell_spawn_failed(w->s, w->local_rank, err, msg.text);
    }
}

static void begin_attempt(struct mu_agent_service *s, uint64_t generation, uint32_t restart_count)
{
    const struct mu_agent_round *r = s->round;

    s->generation = generation;
    s->running_count = 0;
    s->spawn_failed = false;
    mu_agent_failure_forget(s);
    s->attempt = (struct mu_agent_attempt){
        .round = r->number,
        .generation = generation,
        .restart_count = restart_count,
        .group_rank = r->rank,
        .group_world = r->world,
        .ranks = r->ranks,
        .workers = s->config.policy.workers,
        .run_id = s->rdzv->run_id,
        .role = s->config.role,
    };
    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        reset_worker(&s->workers[i]);
    }
}

void mu_agent_workers_spawn(struct mu_agent_service *s, uint64_t generation, uint32_t restart_count)
{
    struct mu_errmsg msg = {{0}};
    struct mu_agent_env e;
    uint32_t i = 0;
    int err = 0;

    begin_attempt(s, generation, restart_count);
    s->missed_at = MU_MONO_NEVER;
    fill_env(s, &e);
    if (s->events.prepare != NULL) {
        err = s->events.prepare(s->events.context, &s->attempt, &msg);
    }
    while (err == 0 && i < s->config.policy.workers) {
        err = spawn_one(&s->workers[i], &e, mu_agent_warm_standbys(s), &msg);
        i += err == 0;
    }
    mu_agent_warm_used(s);
    if (err != 0) {
        tell_spawn_failed(s, i, err, msg.text);
        maybe_gone(s);
    }
}

/* --- stopping --------------------------------------------------------------------------------- */

/* Whether the worker has just written a traceback, so that it is probably ending: we want to see
 * how. */
static bool has_just_raised(const struct mu_agent_worker *w)
{
    return w->raised &&
           mu_mono_since(w->raised_at, mu_env_now(w->s->env).mono) < RAISED_MS * MU_NS_PER_MS;
}

static void hold(struct mu_agent_service *s)
{
    mu_env_timer_arm(s->env, &s->hold_timer, mu_mono_add_ms(mu_env_now(s->env).mono, HOLD_MS));
}

static void on_hold_timer(struct mu_timer *timer)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(timer, struct mu_agent_service, hold_timer);

    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        struct mu_agent_worker *w = &s->workers[i];

        if (w->held && w->spawned && has_just_raised(w)) {
            hold(s); /* an interpreter takes its time to end */
        } else if (w->held && w->spawned) {
            send_signal(w, w->held_signal);
        }
    }
    mu_agent_failure_tell_running(s);
}

/* Whether the worker may end by itself: then we know more than if we had stopped it. When the job
 * ends because of a failure, every worker has a moment for that: it may have failed at the same
 * time, and perhaps first. */
static bool is_ending(const struct mu_agent_worker *w)
{
    return !w->end.exited && !w->end.stopped &&
           (has_just_raised(w) || mu_agent_has_failed(&w->s->machine));
}

void mu_agent_workers_signal(struct mu_agent_service *s, int signal, bool kill)
{
    mu_agent_watchdog_stop(s);
    mu_agent_straggle_stop(s);
    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        struct mu_agent_worker *w = &s->workers[i];

        if (w->spawned && !w->running) {
            w->signal_due = signal;
            w->kill_due = w->kill_due || kill;
        } else if (w->spawned && !kill && is_ending(w)) {
            w->held_signal = signal;
            w->held = true;
            hold(s);
        } else if (w->spawned) {
            send_signal(w, kill ? SIGKILL : signal);
        }
    }
    mu_agent_failure_tell_running(s);
}

void mu_agent_workers_leave(struct mu_agent_service *s)
{
    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        struct mu_agent_worker *w = &s->workers[i];

        if (w->spawned) {
            mu_env_child_leave(s->env, &w->child, s->config.policy.stop_signal,
                               s->config.policy.grace_ms);
            forget_child(w);
        }
    }
    maybe_gone(s);
}

int64_t mu_agent_service_pid(const struct mu_agent_service *s, uint32_t local_rank)
{
    return local_rank < s->config.policy.workers ? s->workers[local_rank].end.pid : 0;
}

/* --- life ------------------------------------------------------------------------------------- */

int mu_agent_workers_init(struct mu_agent_service *s)
{
    uint32_t count = s->config.policy.workers;

    mu_timer_init(&s->hold_timer, on_hold_timer);
    s->workers = mu_calloc(count, sizeof(*s->workers));
    s->ends = mu_calloc(count, sizeof(*s->ends));
    if (s->workers == NULL || s->ends == NULL) {
        return MUSTER_ENOMEM;
    }
    for (uint32_t i = 0; i < count; i++) {
        s->workers[i].s = s;
        s->workers[i].local_rank = i;
        s->workers[i].end.local_rank = i;
    }
    return 0;
}

void mu_agent_workers_fini(struct mu_agent_service *s)
{
    mu_free(s->workers);
    mu_free(s->ends);
}
