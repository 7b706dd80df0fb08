#include "service/agent/agent.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/agent/agent_internal.h"
#include "service/server/gateway_etcd.h"

#define GOODBYE_MS    5000  /* for the rendezvous to take our last words */
#define ASK_MS        400   /* for workers that may have failed before the first known one */
#define UNTIL_LATE_MS 200   /* for the watcher to hear that the workers may live on */
#define WAIT_MS       2000  /* until a node that joins logs what it waits for */
#define WAIT_STEP_MS  10000 /* and then every so often */
#define LINGER_MS                                                                                  \
    3000 /* for others to hear from our server that a run is over; or for nodes to come back before
            a rendezvous host whose work is done goes */

struct mu_agent_service_config mu_agent_service_config_defaults(void)
{
    return (struct mu_agent_service_config){
        .policy = mu_agent_config_defaults(),
        .role = "default",
        .generation = MU_EXCHANGE_2,
        .share = true,
        .holds = true,
        .store_ms = 60000,
        .verdict_ms = 2000,
        .check_ms = 60000,
        .hang_action = MU_HANG_TELL,
        .keep_copies = 1,
    };
}

void mu_agent_log(struct mu_agent_service *s, const char *format, ...)
{
    char line[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    s->events.log(s->events.context, line);
}

/* --- what a join waits for -------------------------------------------------------------------- */

static void begin_wait(struct mu_agent_service *s)
{
    s->joining = true;
    s->join_since = mu_env_now(s->env).mono;
    mu_env_timer_arm(s->env, &s->wait_timer, mu_mono_add_ms(s->join_since, WAIT_MS));
}

static void end_wait(struct mu_agent_service *s)
{
    s->joining = false;
    mu_env_timer_arm(s->env, &s->wait_timer, MU_MONO_NEVER);
}

static void on_explained(void *context, const char *text)
{
    struct mu_agent_service *s = context;
    mu_mono_t now = mu_env_now(s->env).mono;
    unsigned long long waited = mu_mono_since(s->join_since, now) / MU_NS_PER_S;
    char left[40] = "";
    char line[1024];

    if (!s->joining || s->rdzv == NULL) {
        return;
    }
    if (mu_mono_before(s->rdzv->join_by, MU_MONO_NEVER)) {
        (void)snprintf(
            left, sizeof(left), ", %llu s left",
            (unsigned long long)((mu_mono_until_ms(s->rdzv->join_by, now) + 500) / 1000));
    }
    (void)snprintf(line, sizeof(line), "still waiting after %llu s%s: %s", waited, left, text);
    (s->events.waits != NULL ? s->events.waits : s->events.log)(s->events.context, line);
}

static void on_wait_timer(struct mu_timer *timer)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(timer, struct mu_agent_service, wait_timer);
    char text[MU_RDZV_RUN_ID_MAX + 128];

    if (s->rdzv == NULL) {
        return; /* It is being freed. */
    }
    mu_env_timer_arm(s->env, &s->wait_timer, mu_mono_add_ms(mu_env_now(s->env).mono, WAIT_STEP_MS));
    if (!mu_rdzv_explain(s->rdzv)) {
        (void)snprintf(text, sizeof(text), "no round of \"%s\" has formed yet (backend %s)",
                       s->rdzv->run_id, s->rdzv->backend);
        on_explained(s, text);
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

static void finish_free(struct mu_agent_service *s)
{
    void (*freed)(void *context) = s->events.freed;
    void *context = s->events.context;

    mu_env_timer_arm(s->env, &s->timer, MU_MONO_NEVER);
    mu_env_timer_arm(s->env, &s->end_timer, MU_MONO_NEVER);
    mu_env_timer_arm(s->env, &s->soon, MU_MONO_NEVER);
    mu_env_timer_arm(s->env, &s->hold_timer, MU_MONO_NEVER);
    mu_env_timer_arm(s->env, &s->host_timer, MU_MONO_NEVER);
    mu_env_timer_arm(s->env, &s->wait_timer, MU_MONO_NEVER);
    mu_env_timer_arm(s->env, &s->check.timer, MU_MONO_NEVER);
    mu_env_timer_arm(s->env, &s->warm_timer, MU_MONO_NEVER);
    mu_agent_watchdog_fini(s);
    mu_agent_health_fini(s);
    mu_agent_straggle_fini(s);
    mu_free((void *)s->warm_envp);
    mu_buf_fini(&s->warm_env);
    mu_failure_fini(&s->verdict.first_failure);
    mu_agent_kept_fini(s);
    mu_agent_workers_fini(s);
    mu_free(s);
    freed(context);
}

/* Returns what `text` has behind the last line that was logged: "x; y" after "x" adds "y". */
static const char *unsaid(const struct mu_agent_service *s, const char *text)
{
    size_t len = strlen(s->said.text);

    if (len == 0 || strncmp(text, s->said.text, len) != 0 ||
        (text[len] != '\0' && strncmp(text + len, "; ", 2) != 0)) {
        return text;
    }
    return text[len] == '\0' ? text + len : text + len + 2;
}

/* Whether workers failed and that ended the run. Backends that keep no budget only say that another
 * node has closed it. */
static bool is_failure(const struct mu_agent_verdict *v)
{
    return v->has_failure && (v->outcome == MU_AGENT_FAILED || v->code == MUSTER_ERDZV_CLOSED);
}

static void tell_end(struct mu_agent_service *s)
{
    struct mu_agent_verdict *v = &s->verdict;

    s->told = true;
    mu_env_timer_arm(s->env, &s->end_timer, MU_MONO_NEVER);
    mu_env_timer_arm(s->env, &s->ask_timer, MU_MONO_NEVER);
    mu_agent_hang_end(s);
    v->text = s->text.text;
    v->unsaid = unsaid(s, v->text);
    v->run_id = s->rdzv->run_id;
    v->host = s->config.host != NULL ? s->config.host : s->rdzv->node;
    v->program = s->config.argv[0];
    v->workers = s->ends;
    v->worker_count = s->config.policy.workers;
    for (uint32_t i = 0; i < v->worker_count; i++) {
        s->ends[i] = s->workers[i].end;
    }
    if (is_failure(v) && v->first_failure.effect) {
        mu_agent_failure_list_own(s);
    } else {
        v->running_count = 0;
    }
    v->restart_count = s->attempt.restart_count;
    v->round = s->attempt.round;
    v->took_ms = mu_mono_since(s->since, mu_env_now(s->env).mono) / MU_NS_PER_MS;
    s->events.ended(s->events.context, v);
}

static void carry_out_rdzv(struct mu_agent_service *s)
{
    unsigned todo = s->rdzv_todo;

    s->rdzv_todo = 0;
    if ((todo & MU_AGENT_DO_JOIN) != 0) {
        s->rdzv->blameless = !s->join_failed;
        begin_wait(s);
        mu_rdzv_join(s->rdzv);
    }
    if ((todo & MU_AGENT_DO_LEAVE) != 0) {
        end_wait(s);
        s->leaving = true;
        s->rdzv->finished =
            s->machine.state == MU_AGENT_IS_BARRIER || s->machine.outcome == MU_AGENT_SUCCEEDED;
        mu_rdzv_leave(s->rdzv);
    }
    if ((todo & MU_AGENT_DO_CLOSE) == 0) {
        return;
    }
    if (s->leaving) {
        /* The others must hear first that the round is over, and stop their workers: closing the
         * run would let them go on. */
        s->rdzv_todo = MU_AGENT_DO_CLOSE;
    } else {
        s->closing = true;
        mu_rdzv_close_run(s->rdzv);
    }
}

/*
 * Finds the first failure, as far as it can be known: what is in the store, and if others have
 * shown signs before that one, what is there a moment later, when they have ended.
 */
static bool has_asked(struct mu_agent_service *s)
{
    struct mu_agent_round *r = s->round;
    bool wanted = s->verdict.outcome != MU_AGENT_SUCCEEDED &&
                  s->verdict.outcome != MU_AGENT_GRACEFUL && r != NULL && r->store_open;

    if (!wanted || s->asked_again) {
        return r == NULL || !r->op_busy;
    }
    if (mu_agent_failure_is_publishing(s) || s->ask_waiting) {
        return false;
    }
    if (!s->asked) {
        s->asked = true;
        if (!r->failure_known) {
            mu_agent_failure_read(r);
        }
    }
    if (r->op_busy) {
        return false;
    }
    if (!r->failure_known ||
        (s->verdict.first_failure.ticket <= 1 && !s->verdict.first_failure.effect)) {
        s->asked_again = true;
        return true;
    }
    s->ask_waiting = true;
    mu_env_timer_arm(s->env, &s->ask_timer, mu_mono_add_ms(mu_env_now(s->env).mono, ASK_MS));
    return false;
}

static void on_ask_timer(struct mu_timer *timer)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(timer, struct mu_agent_service, ask_timer);

    s->ask_waiting = false;
    s->asked_again = true;
    mu_agent_failure_read(s->round);
    mu_agent_settle(s);
}

void mu_agent_settle(struct mu_agent_service *s)
{
    if (s->pumping) {
        return; /* it is done at the end of the pump */
    }
    if (s->in_call) {
        mu_env_timer_arm(s->env, &s->soon, mu_env_now(s->env).mono);
        return;
    }
    if (s->rdzv_todo != 0 && !mu_agent_failure_is_publishing(s)) {
        carry_out_rdzv(s);
    }
    if (s->over && !s->told) {
        bool asked = has_asked(s);

        if (s->generation == 0 &&
            (s->end_late || (asked && s->rdzv_todo == 0 && !s->leaving && !s->closing))) {
            tell_end(s);
        }
        return;
    }
    if (s->freeing && mu_list_empty(&s->rounds) && !s->check.spawned && s->look == NULL &&
        mu_agent_warm_end(s) && mu_agent_watchdog_idle(s) && mu_agent_straggle_idle(s) &&
        mu_agent_kept_idle(s) && mu_agent_guards_end(s)) {
        if (s->rdzv != NULL) {
            struct mu_rdzv_handler *rdzv = s->rdzv;

            s->rdzv = NULL;
            rdzv->linger_ms = s->machine.closed ? LINGER_MS : 0;
            mu_rdzv_free(rdzv);
        } else if (s->rdzv_freed) {
            finish_free(s);
        }
    }
}

static void on_end_timer(struct mu_timer *timer)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(timer, struct mu_agent_service, end_timer);

    s->end_late = true;
    mu_agent_settle(s);
}

static void on_soon(struct mu_timer *timer)
{
    mu_agent_settle(MU_CONTAINER_OF(timer, struct mu_agent_service, soon));
}

static void take_end(struct mu_agent_service *s, const struct mu_agent_update *u)
{
    uint64_t wait_ms = (uint64_t)s->config.verdict_ms * 2 + GOODBYE_MS;

    s->over = true;
    mu_env_children_until(s->env, MU_MONO_NEVER); /* what is left has its own time */
    s->verdict.outcome = u->outcome;
    s->verdict.code = u->code;
    s->verdict.signal = u->outcome == MU_AGENT_STOPPED ? s->last_signal : 0;
    (void)mu_err(&s->text, 0, "%s", u->text);
    mu_agent_watchdog_stop(s);
    mu_agent_straggle_stop(s);
    mu_agent_workers_leave(s);
    mu_agent_check_stop(s);
    (void)mu_agent_warm_end(s);
    mu_env_timer_arm(s->env, &s->end_timer, mu_mono_add_ms(mu_env_now(s->env).mono, wait_ms));
}

/* --- the pump --------------------------------------------------------------------------------- */

static void start_exchange(struct mu_agent_service *s, uint64_t round)
{
    if (s->next == NULL || s->next->number != round) {
        /* There was not enough memory for the assignment. */
        mu_agent_tell(s, (struct mu_agent_event){
                             .type = MU_AGENT_NOT_READY, .round = round, .code = MUSTER_ENOMEM});
        return;
    }
    mu_agent_round_close(s->round);
    s->round = s->next;
    s->next = NULL;
    mu_agent_round_exchange(s->round);
}

/* A worker that has told why it failed, and not that it lost another one, failed by itself. */
static void doubt(struct mu_agent_service *s, const struct mu_agent_update *u)
{
    if (mu_agent_failure_is_own(&s->workers[u->first_rank])) {
        mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_SURE, .round = u->round});
    } else {
        mu_rdzv_doubt(s->rdzv);
    }
}

static void carry_out(struct mu_agent_service *s, const struct mu_agent_update *u)
{
    const unsigned rdzv = MU_AGENT_DO_JOIN | MU_AGENT_DO_LEAVE | MU_AGENT_DO_CLOSE;

    if ((u->flags & MU_AGENT_DO_REPORT) != 0) {
        mu_agent_failure_publish(&s->workers[u->first_rank]);
    }
    if ((u->flags & MU_AGENT_DO_SIGNAL) != 0) {
        mu_agent_workers_signal(s, u->signal, false);
    }
    if ((u->flags & MU_AGENT_DO_KILL) != 0) {
        mu_agent_workers_signal(s, 0, true);
    }
    if ((u->flags & MU_AGENT_DO_WARN) != 0) {
        mu_agent_workers_warn(s, u->within_ms);
    }
    s->rdzv_todo |= u->flags & rdzv;
    if ((u->flags & MU_AGENT_DO_JOIN) != 0) {
        s->join_failed = u->failed;
    }
    if ((u->flags & MU_AGENT_DO_EXCHANGE) != 0) {
        start_exchange(s, u->round);
    }
    if ((u->flags & MU_AGENT_DO_SPAWN) != 0) {
        mu_agent_workers_spawn(s, u->generation, u->restart_count);
    }
    if ((u->flags & MU_AGENT_DO_BARRIER) != 0) {
        mu_agent_round_barrier(s->round);
    }
    if ((u->flags & MU_AGENT_DO_DOUBT) != 0) {
        doubt(s, u);
    }
    if ((u->flags & MU_AGENT_DO_CHECK) != 0) {
        mu_agent_check_start(s);
    }
    if ((u->flags & MU_AGENT_ENDED) != 0) {
        take_end(s, u);
    }
}

static bool is_bad_end(const struct mu_agent_update *u)
{
    return (u->flags & MU_AGENT_ENDED) != 0 && u->outcome != MU_AGENT_SUCCEEDED &&
           u->outcome != MU_AGENT_GRACEFUL;
}

static void step(struct mu_agent_service *s, const struct mu_agent_event *event)
{
    struct mu_agent_update u;
    int err = mu_agent_step(&s->machine, event, &u);

    MU_ASSERT(err == 0);
    /* An end that was decided before the workers were gone was reported then. A bad one that comes
     * at once is in the verdict, and is not said twice. */
    if (u.text != NULL && unsaid(s, u.text)[0] != '\0' && !is_bad_end(&u)) {
        mu_agent_log(s, "%s", unsaid(s, u.text));
        (void)mu_err(&s->said, 0, "%s", u.text);
    }
    carry_out(s, &u);
}

/* While we host the rendezvous only for others, checks now and then whether there are any. */
static void watch_for_desertion(struct mu_agent_service *s)
{
    if (!s->host_waits && s->rdzv != NULL && s->rdzv->ops->deserted != NULL &&
        mu_agent_hosts_only(&s->machine)) {
        s->host_waits = true;
        mu_env_timer_arm(s->env, &s->host_timer,
                         mu_mono_add_ms(mu_env_now(s->env).mono, LINGER_MS));
    }
}

void mu_agent_tell(struct mu_agent_service *s, struct mu_agent_event event)
{
    event.now = mu_env_now(s->env);
    if (s->pumping) {
        struct mu_agent_pending *p;

        MU_ASSERT(s->pending_count < MU_AGENT_PENDING_MAX);
        p = &s->pending[s->pending_count++];
        p->event = event;
        if (event.text != NULL) {
            (void)mu_err(&p->text, 0, "%s", event.text);
        }
        return;
    }
    s->pumping = true;
    step(s, &event);
    while (s->pending_count != 0) {
        struct mu_agent_pending first = s->pending[0];

        s->pending_count -= 1;
        memmove(s->pending, s->pending + 1, s->pending_count * sizeof(s->pending[0]));
        if (first.event.text != NULL) {
            first.event.text = first.text.text;
        }
        step(s, &first.event);
    }
    s->pumping = false;
    mu_env_timer_arm(s->env, &s->timer, mu_agent_deadline(&s->machine));
    watch_for_desertion(s);
    mu_agent_settle(s);
}

static void on_host_timer(struct mu_timer *timer)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(timer, struct mu_agent_service, host_timer);

    s->host_waits = false;
    if (s->rdzv != NULL && s->rdzv->ops->deserted(s->rdzv)) {
        mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_ALONE});
    } else {
        watch_for_desertion(s);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(timer, struct mu_agent_service, timer);

    mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_TIMEOUT});
}

/* --- the rendezvous --------------------------------------------------------------------------- */

static void on_assigned(void *context, const struct mu_rdzv_assignment *a)
{
    struct mu_agent_service *s = context;
    bool fewer;

    end_wait(s);
    if (s->freeing) {
        return; /* we leave it when the rounds are closed; no other round may begin */
    }
    s->said.text[0] = '\0'; /* a line about the last round may be logged for this one as well */
    mu_agent_log(s, "round %llu: node %u of %u", (unsigned long long)a->round, a->rank, a->world);
    fewer = s->round != NULL && mu_agent_round_has_fewer(s->round, a);
    mu_agent_round_close(s->next);
    s->next = mu_agent_round_new(s, a);
    mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_ASSIGNED,
                                             .round = a->round,
                                             .restarts_left = a->restarts_left,
                                             .doubt_ms = a->world > 1 ? s->rdzv->doubt_ms : 0,
                                             .fewer = fewer,
                                             .host = s->rdzv->hosting});
}

static bool on_cut_off(void *context, mu_mono_t by)
{
    struct mu_agent_service *s = context;

    mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_CUT_OFF, .by = by});
    return s->machine.state == MU_AGENT_IS_BARRIER;
}

/* The watcher ends the workers if we cannot, because we are stopped. */
static void on_counted(void *context, mu_mono_t until)
{
    struct mu_agent_service *s = context;

    if (!s->over) {
        mu_mono_t now = mu_env_now(s->env).mono;

        if (mu_mono_reached(s->until, mu_mono_add_ms(now, UNTIL_LATE_MS))) {
            s->missed_at = now; /* On its way to the watcher, it may be too late. */
        }
        s->until = until;
        mu_env_children_until(s->env, until);
    }
}

static void on_ended(void *context, const struct mu_rdzv_ending *ending)
{
    struct mu_agent_service *s = context;
    struct mu_agent_round *r = s->round;

    if (r != NULL && r->number == ending->round && ending->host_gone) {
        mu_agent_failure_give_up(r);
    } else if (r != NULL && r->number == ending->round && r->store_open && !r->failure_known &&
               s->next == NULL) {
        mu_agent_failure_read(r);
    }
    mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_ROUND_ENDED,
                                             .round = ending->round,
                                             .lost = ending->reason == MU_RDZV_ENDED_LOST,
                                             .failed = ending->reason == MU_RDZV_ENDED_FAILED,
                                             .text = ending->text});
}

static void on_sure(void *context)
{
    struct mu_agent_service *s = context;

    mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_SURE, .round = s->machine.round});
}

static void on_waiting(void *context, uint32_t count)
{
    struct mu_agent_service *s = context;

    if (count != 0) {
        mu_agent_log(s, "%u nodes wait to be let in", count);
    }
}

static void on_closed(void *context)
{
    struct mu_agent_service *s = context;

    s->closing = false;
    mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_RDZV_CLOSED});
}

static void on_failed(void *context, int status, const char *text)
{
    struct mu_agent_service *s = context;

    end_wait(s);
    mu_agent_tell(
        s, (struct mu_agent_event){.type = MU_AGENT_RDZV_FAILED, .code = status, .text = text});
}

static void on_left(void *context)
{
    struct mu_agent_service *s = context;

    s->leaving = false;
    mu_agent_settle(s);
}

static void on_close_failed(void *context, int status, const char *text)
{
    struct mu_agent_service *s = context;

    s->closing = false;
    mu_agent_log(s, "the run could not be closed: %s",
                 text != NULL && text[0] != '\0' ? text : muster_strerror(status));
    mu_agent_settle(s);
}

static void on_record(void *context, const struct mu_rdzv_record *record)
{
    struct mu_agent_service *s = context;
    const char *step = strchr(record->name, '.');

    if (step != NULL && s->config.rdzv.nodes_max > 1 &&
        (strcmp(step, ".host") == 0 || strcmp(step, ".trouble") == 0)) {
        /* Which node hosts, and why it cannot be reached: of use if there are others. */
        mu_agent_log(s, "%s", record->message);
    }
    if (s->events.record != NULL) {
        s->events.record(s->events.context, record);
    }
}

static void on_freed(void *context)
{
    struct mu_agent_service *s = context;

    s->rdzv_freed = true;
    mu_agent_settle(s);
}

/* --- life ------------------------------------------------------------------------------------- */

static int open_rdzv(struct mu_agent_service *s, struct mu_errmsg *reterr_msg)
{
    const struct mu_rdzv_events events = {
        .assigned = on_assigned,
        .cut_off = on_cut_off,
        .counted = on_counted,
        .ended = on_ended,
        .sure = on_sure,
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

    return mu_rdzv_open(s->env, &s->config.rdzv, &events, &s->rdzv, reterr_msg);
}

int mu_agent_service_new(struct mu_env *env, const struct mu_agent_service_config *config,
                         const struct mu_agent_service_events *events,
                         struct mu_agent_service **ret_agent, struct mu_errmsg *reterr_msg)
{
    struct mu_agent_service *s;
    int err;

    if (config->argv == NULL || config->argv[0] == NULL || config->inherited == NULL) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the agent needs a program and an environment");
    }
    if (config->backing != NULL) {
        err = mu_gateway_etcd_check(config->backing, reterr_msg);
        if (err != 0) {
            mu_err_prefix(reterr_msg, "--store-backing");
            return err;
        }
    }
    if (config->keeps && strcmp(config->rdzv.backend, "muster") != 0) {
        return mu_err(reterr_msg, MUSTER_ENOTSUP,
                      "--keep-memory: only the backend muster can keep states, because every node "
                      "must have an agent of muster");
    }
    if (config->keeps && config->identical) {
        return mu_err(reterr_msg, MUSTER_ENOTSUP,
                      "--keep-memory: states cannot be kept with TORCH_ELASTIC_WORKER_IDENTICAL=1, "
                      "because the agents exchange nothing then; unset it");
    }
    s = mu_calloc(1, sizeof(*s));
    if (s == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    s->env = env;
    s->config = *config;
    s->events = *events;
    s->until = MU_MONO_NEVER;
    s->missed_at = MU_MONO_NEVER;
    mu_list_init(&s->rounds);
    mu_list_init(&s->guards);
    mu_timer_init(&s->timer, on_timer);
    mu_timer_init(&s->end_timer, on_end_timer);
    mu_timer_init(&s->soon, on_soon);
    mu_timer_init(&s->ask_timer, on_ask_timer);
    mu_timer_init(&s->host_timer, on_host_timer);
    mu_timer_init(&s->wait_timer, on_wait_timer);
    mu_agent_check_init(s);
    mu_agent_warm_init(s);
    mu_agent_watchdog_init(s);
    mu_agent_health_init(s);
    mu_agent_straggle_init(s);
    err = mu_agent_init(&s->machine, &config->policy, reterr_msg);
    if (err == 0) {
        err = mu_agent_workers_init(s);
        if (err != 0) {
            (void)mu_err(reterr_msg, err, "out of memory");
        }
    }
    if (err == 0) {
        err = open_rdzv(s, reterr_msg);
    }
    if (err != 0) {
        mu_agent_watchdog_fini(s);
        mu_agent_health_fini(s);
        mu_agent_straggle_fini(s);
        mu_agent_workers_fini(s);
        mu_free(s);
        return err;
    }
    *ret_agent = s;
    return 0;
}

void mu_agent_service_start(struct mu_agent_service *s)
{
    s->since = mu_env_now(s->env).mono;
    s->in_call = true;
    mu_agent_kept_start(s);
    mu_agent_warm_start(s);
    mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_START});
    s->in_call = false;
}

void mu_agent_service_signal(struct mu_agent_service *s, int signal)
{
    if (signal >= 1 && signal <= MU_AGENT_SIGNAL_MAX && !s->freeing) {
        if (s->last_signal == 0) {
            s->last_signal = signal;
        }
        s->in_call = true;
        mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_SIGNAL, .signal = signal});
        s->in_call = false;
    }
}

void mu_agent_service_free(struct mu_agent_service *s)
{
    if (s->freeing) {
        return;
    }
    s->freeing = true;
    end_wait(s);
    mu_agent_check_stop(s);
    s->told = true; /* the caller does not want to hear of it any more */
    s->in_call = true;
    mu_agent_round_close(s->round);
    mu_agent_round_close(s->next);
    s->round = s->next = NULL;
    mu_agent_settle(s);
    s->in_call = false;
}
