#include "service/agent/status.h"

#include <inttypes.h>
#include <stdio.h>

#include <muster/version.h>

#include "core/alloc.h"
#include "service/server/server.h"

int mu_agent_status_init(struct mu_agent_status *s, struct mu_env *env,
                         const struct mu_agent_service_config *config, const char *host)
{
    *s = (struct mu_agent_status){.env = env, .config = config, .host = host, .state = "joining"};
    s->began = mu_env_now(env).mono;
    s->worker_count = config->policy.workers;
    mu_buf_init(&s->failure, MU_FAILURE_BYTES_MAX);
    mu_buf_init(&s->hang_stacks, MU_HANG_TEXT_MAX + 2 + MU_HANG_STACKS_MAX);
    s->workers = mu_calloc(s->worker_count, sizeof(*s->workers));
    return s->workers == NULL ? MUSTER_ENOMEM : 0;
}

void mu_agent_status_fini(struct mu_agent_status *s)
{
    mu_free(s->workers);
    s->workers = NULL;
    mu_free(s->nodes);
    mu_free(s->kept);
    mu_buf_fini(&s->failure);
    mu_buf_fini(&s->hang_stacks);
}

const char *mu_agent_worker_state_name(enum mu_agent_worker_state state)
{
    switch (state) {
    case MU_WORKER_STARTING:
        return "starting";
    case MU_WORKER_RUNNING:
        return "running";
    case MU_WORKER_SUCCEEDED:
        return "succeeded";
    case MU_WORKER_FAILED:
        return "failed";
    case MU_WORKER_STOPPED:
        return "stopped";
    }
    return "?";
}

/* --- callbacks -------------------------------------------------------------------------------- */

static void note(struct mu_agent_status *s, const char *text)
{
    mu_status_events_add(&s->events, mu_env_now(s->env).wall, s->config->rdzv.run_id, text);
}

static void mark(struct mu_agent_status *s, enum mu_status_mark what, uint32_t nodes,
                 const char *who)
{
    struct mu_status_point point = {
        .at = mu_env_now(s->env).wall, .round = s->attempt.round, .mark = what, .nodes = nodes};

    (void)snprintf(point.who, sizeof(point.who), "%s", who);
    mu_status_history_add(&s->history, &point);
}

static void set_worker(struct mu_agent_status *s, uint32_t i, enum mu_agent_worker_state state)
{
    s->workers[i].state = state;
    s->workers[i].since = mu_env_now(s->env).mono;
}

void mu_agent_status_log(struct mu_agent_status *s, const char *line)
{
    (void)snprintf(s->text, sizeof(s->text), "%s", line);
    note(s, line);
}

void mu_agent_status_prepare(struct mu_agent_status *s, const struct mu_agent_attempt *attempt)
{
    s->attempt = *attempt;
    s->has_attempt = true;
    s->state = "starting";
    s->hangs = false;
    s->stragglers = (struct mu_stragglers){0};
    s->node_count = s->kept_count = 0;
    s->steps.known = false;
    mark(s, MU_STATUS_ROUND, attempt->group_world, "");
    for (uint32_t i = 0; i < s->worker_count; i++) {
        s->workers[i] = (struct mu_agent_status_worker){0};
        set_worker(s, i, MU_WORKER_STARTING);
    }
}

void mu_agent_status_started(struct mu_agent_status *s, const struct mu_agent_service *agent)
{
    s->agent = agent;
    if (strcmp(s->state, "starting") == 0) { /* no worker has failed already */
        s->state = "running";
    }
    for (uint32_t i = 0; i < s->worker_count; i++) {
        s->workers[i].pid = mu_agent_service_pid(agent, i);
        if (s->workers[i].state == MU_WORKER_STARTING) {
            set_worker(s, i, MU_WORKER_RUNNING);
        }
    }
}

static void keep_step_time(struct mu_agent_status_steps *steps, uint32_t local_rank, uint64_t ns)
{
    uint64_t us = ns / 1000;

    if (!steps->known) {
        steps->known = true;
        steps->local_rank = local_rank;
    }
    if (steps->local_rank == local_rank) {
        steps->us[steps->count++ % MU_AGENT_STATUS_STEPS] =
            us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
    }
}

void mu_agent_status_step(struct mu_agent_status *s, uint32_t local_rank, uint64_t step,
                          uint64_t ns)
{
    struct mu_agent_status_worker *w;

    if (local_rank >= s->worker_count) {
        return;
    }
    w = &s->workers[local_rank];
    w->has_step = true;
    w->step = step;
    if (ns != 0) {
        w->step_ns = ns;
        keep_step_time(&s->steps, local_rank, ns);
    }
}

/* They stay when the hang is over, until the next one. */
static void keep_stacks(struct mu_agent_status *s, const struct mu_hang *hang)
{
    mu_buf_reset(&s->hang_stacks);
    if (mu_buf_append(&s->hang_stacks, mu_span_str(hang->text)) != 0 ||
        mu_buf_append(&s->hang_stacks, MU_SPAN_LIT("\n\n")) != 0 ||
        mu_buf_append(&s->hang_stacks, mu_span_str(hang->stacks)) != 0) {
        mu_buf_reset(&s->hang_stacks);
    }
}

void mu_agent_status_hang(struct mu_agent_status *s, const struct mu_hang *hang)
{
    s->hangs = !hang->over;
    if (s->hangs) {
        s->hang_count++;
        s->hang_since = hang->since_s;
        (void)snprintf(s->hang_missing, sizeof(s->hang_missing), "%s", hang->missing);
        (void)snprintf(s->hang_text, sizeof(s->hang_text), "%s", hang->text);
        keep_stacks(s, hang);
    }
}

void mu_agent_status_health(struct mu_agent_status *s, const struct mu_health_findings *now,
                            const struct mu_health_finding *news)
{
    s->fault_count = s->warn_count = s->ill_count = 0;
    s->xid_count += news != NULL && news->kind == MU_HEALTH_XID ? 1 : 0;
    for (size_t i = 0; i < now->count; i++) {
        s->fault_count += now->items[i].level == MU_HEALTH_FAULT ? 1 : 0;
        s->warn_count += now->items[i].level == MU_HEALTH_WARN ? 1 : 0;
        if (now->items[i].level >= MU_HEALTH_WARN && s->ill_count < MU_AGENT_STATUS_ILL) {
            s->ill[s->ill_count++] = now->items[i];
        }
    }
}

void mu_agent_status_exited(struct mu_agent_status *s, const struct mu_agent_worker_end *end)
{
    bool failed = !end->stopped && end->exit_code != 0;
    char text[128];

    if (end->local_rank >= s->worker_count) {
        return;
    }
    s->workers[end->local_rank].pid = end->pid;
    s->workers[end->local_rank].exit_code = end->exit_code;
    set_worker(s, end->local_rank,
               end->exit_code == 0 ? MU_WORKER_SUCCEEDED
               : failed            ? MU_WORKER_FAILED
                                   : MU_WORKER_STOPPED);
    if (failed) {
        const char *name = end->exit_code < 0 ? mu_signal_name(-end->exit_code) : NULL;

        s->failures++;
        s->state = "stopping";
        (void)snprintf(text, sizeof(text), "rank %" PRIu32, end->rank);
        mark(s, MU_STATUS_FAILED, 1, text);
        if (name != NULL) {
            (void)snprintf(text, sizeof(text), "rank %" PRIu32 " was ended by %s", end->rank, name);
        } else {
            (void)snprintf(text, sizeof(text), "rank %" PRIu32 " ended with %d", end->rank,
                           end->exit_code);
        }
        note(s, text);
    }
}

void mu_agent_status_gone(struct mu_agent_status *s)
{
    s->state = "joining";
    mark(s, MU_STATUS_ENDED, 0, "");
}

/* The states' spelling. */
static const char *state_after(enum mu_agent_outcome outcome)
{
    switch (outcome) {
    case MU_AGENT_SUCCEEDED:
        return "succeeded";
    case MU_AGENT_FAILED:
        return "failed";
    case MU_AGENT_STOPPED:
        return "stopped";
    case MU_AGENT_GRACEFUL:
        return "graceful";
    case MU_AGENT_ERROR:
        return "error";
    }
    return "?";
}

void mu_agent_status_ended(struct mu_agent_status *s, const struct mu_agent_verdict *v)
{
    s->ended = true;
    s->agent = NULL;
    s->state = state_after(v->outcome);
    mark(s, MU_STATUS_OVER, 0, "");
    (void)snprintf(s->verdict, sizeof(s->verdict), "%s", v->text == NULL ? "" : v->text);
    if (v->has_failure && mu_failure_brief(&s->failure, &v->first_failure) != 0) {
        mu_buf_reset(&s->failure);
    }
    if (v->unsaid != NULL && v->unsaid[0] != '\0') {
        note(s, v->unsaid);
    }
}

/* --- JSON ------------------------------------------------------------------------------------- */

static void put_agent(struct mu_status_text *t, const struct mu_agent_status *s)
{
    const struct mu_agent_service_config *c = s->config;
    const struct mu_agent_attempt *a = &s->attempt;

    mu_status_put(t, ",\"agent\":{\"run\":");
    mu_status_quote(t, c->rdzv.run_id);
    mu_status_put(t, ",\"role\":");
    mu_status_quote(t, c->role == NULL ? "" : c->role);
    mu_status_put(t, ",\"host\":");
    mu_status_quote(t, s->host);
    mu_status_put(t, ",\"backend\":");
    mu_status_quote(t, c->rdzv.backend);
    mu_status_put(t, ",\"endpoint\":");
    mu_status_quote(t, c->rdzv.endpoint == NULL ? "" : c->rdzv.endpoint);
    mu_status_put(t, ",\"state\":\"%s\",\"up_ms\":%" PRIu64, s->state,
                  mu_mono_since(s->began, mu_env_now(s->env).mono) / MU_NS_PER_MS);
    mu_status_put(t, ",\"nodes_min\":%" PRIu32 ",\"nodes_max\":%" PRIu32, c->rdzv.nodes_min,
                  c->rdzv.nodes_max);
    mu_status_put(t, ",\"restarts\":%" PRIu32 ",\"restarts_max\":%" PRIu32 ",\"failures\":%" PRIu64,
                  a->restart_count, c->policy.restarts_max, s->failures);
    if (s->has_attempt) {
        mu_status_put(t,
                      ",\"round\":%" PRIu64 ",\"rank\":%" PRIu32 ",\"nodes\":%" PRIu32
                      ",\"first_worker\":%" PRIu32 ",\"world\":%" PRIu32,
                      a->round, a->group_rank, a->group_world, a->ranks.base, a->ranks.world);
    }
    mu_status_put(t, ",\"text\":");
    mu_status_quote(t, s->text);
    mu_status_put(t, "}");
}

static void put_hang(struct mu_status_text *t, const struct mu_agent_status *s)
{
    if (!s->hangs || s->ended) {
        return;
    }
    mu_status_put(t, ",\"hang\":{\"since\":%" PRId64 ",\"missing\":", s->hang_since);
    mu_status_quote(t, s->hang_missing);
    mu_status_put(t, ",\"text\":");
    mu_status_quote(t, s->hang_text);
    mu_status_put(t, "}");
}

static void put_health(struct mu_status_text *t, const struct mu_agent_status *s)
{
    for (uint32_t i = 0; i < s->ill_count; i++) {
        const struct mu_health_finding *f = &s->ill[i];

        mu_status_put(
            t, "%s{\"level\":\"%s\",\"kind\":\"%s\",\"text\":", i == 0 ? ",\"health\":[" : ",",
            mu_health_level_name(f->level), mu_health_kind_name(f->kind));
        mu_status_quote(t, f->text);
        mu_status_put(t, ",\"remedy\":");
        mu_status_quote(t, f->remedy);
        mu_status_put(t, "}");
    }
    if (s->ill_count != 0) {
        mu_status_put(t, "]");
    }
}

static void put_workers(struct mu_status_text *t, const struct mu_agent_status *s)
{
    uint32_t count = s->has_attempt ? s->worker_count : 0;
    uint32_t told = count < MU_AGENT_STATUS_WORKERS ? count : MU_AGENT_STATUS_WORKERS;
    mu_mono_t now = mu_env_now(s->env).mono;

    mu_status_put(t, ",\"workers\":[");
    for (uint32_t i = 0; i < told; i++) {
        const struct mu_agent_status_worker *w = &s->workers[i];

        mu_status_put(t,
                      "%s{\"rank\":%" PRIu32 ",\"local_rank\":%" PRIu32 ",\"pid\":%" PRId64
                      ",\"state\":\"%s\",\"since_ms\":%" PRIu64,
                      i == 0 ? "" : ",", s->attempt.ranks.base + i, i, w->pid,
                      mu_agent_worker_state_name(w->state),
                      mu_mono_since(w->since, now) / MU_NS_PER_MS);
        if (w->state > MU_WORKER_RUNNING) {
            mu_status_put(t, ",\"exit_code\":%d", w->exit_code);
        }
        if (w->has_step) {
            mu_status_put(t, ",\"step\":%" PRIu64 ",\"step_us\":%" PRIu64, w->step,
                          w->step_ns / 1000);
        }
        if (w->pace.known) {
            mu_status_put(t, ",\"waits_permille\":%u,\"kept_permille\":%u,\"delay_permille\":%u",
                          w->pace.waits_permille, w->pace.kept_permille, w->pace.delay_permille);
        }
        mu_status_put(t, "}");
    }
    mu_status_put(t, "],\"workers_more\":%" PRIu32, count - told);
}

static void put_steps(struct mu_status_text *t, const struct mu_agent_status *s)
{
    const struct mu_agent_status_steps *steps = &s->steps;
    uint64_t first =
        steps->count < MU_AGENT_STATUS_STEPS ? 0 : steps->count - MU_AGENT_STATUS_STEPS;

    if (steps->count == 0) {
        return;
    }
    mu_status_put(t, ",\"step_times_us\":[");
    for (uint64_t i = first; i < steps->count; i++) {
        mu_status_put(t, "%s%" PRIu32, i == first ? "" : ",", steps->us[i % MU_AGENT_STATUS_STEPS]);
    }
    mu_status_put(t, "]");
}

static void put_verdict(struct mu_status_text *t, const struct mu_agent_status *s)
{
    if (!s->ended) {
        return;
    }
    mu_status_put(t, ",\"verdict\":{\"outcome\":\"%s\",\"text\":", s->state);
    mu_status_quote(t, s->verdict);
    if (s->failure.len != 0) {
        mu_status_put(t, ",\"first_failure\":");
        t->err = t->err != 0 ? t->err : mu_buf_append(t->out, mu_buf_span(&s->failure));
    }
    mu_status_put(t, "}");
}

static int tell_json(void *context, struct mu_buf *out)
{
    const struct mu_agent_status *s = context;
    struct mu_status_text t = {.out = out};

    mu_status_put(&t, "{\"kind\":\"agent\",\"version\":\"" MUSTER_VERSION "\",\"address\":");
    mu_status_quote(&t, s->host);
    mu_status_put(&t, ",\"at_ms\":%" PRIu64 ",\"ready\":%s",
                  mu_env_now(s->env).wall.ns / MU_NS_PER_MS,
                  strcmp(s->state, "running") == 0 ? "true" : "false");
    put_agent(&t, s);
    put_hang(&t, s);
    if (s->hang_stacks.len != 0) {
        mu_status_put(&t, ",\"hangs\":%" PRIu64, s->hang_count);
    }
    put_health(&t, s);
    mu_agent_status_put_stragglers(&t, s);
    put_workers(&t, s);
    put_steps(&t, s);
    mu_status_history_put(&t, &s->history);
    put_verdict(&t, s);
    mu_status_events_put(&t, &s->events);
    mu_status_put(&t, "}");
    return t.err;
}

/* --- Prometheus ------------------------------------------------------------------------------- */

static void put_figure(struct mu_status_text *t, const struct mu_agent_status *s, const char *name,
                       const char *type, const char *help, uint64_t value)
{
    mu_status_metric(t, name, type, help);
    mu_status_put(t, "%s{run=", name);
    mu_status_quote(t, s->config->rdzv.run_id);
    mu_status_put(t, "} %" PRIu64 "\n", value);
}

/* Of the first worker here that reports its steps. */
static void put_step_metrics(struct mu_status_text *t, const struct mu_agent_status *s)
{
    for (uint32_t i = 0; s->has_attempt && i < s->worker_count; i++) {
        const struct mu_agent_status_worker *w = &s->workers[i];

        if (!w->has_step) {
            continue;
        }
        put_figure(t, s, "muster_agent_step", "gauge", "The last step of training.", w->step);
        if (w->step_ns != 0) {
            mu_status_metric(t, "muster_agent_step_seconds", "gauge", "How long that step took.");
            mu_status_put(t, "muster_agent_step_seconds{run=");
            mu_status_quote(t, s->config->rdzv.run_id);
            mu_status_put(t, "} %" PRIu64 ".%06" PRIu64 "\n", w->step_ns / MU_NS_PER_S,
                          w->step_ns % MU_NS_PER_S / 1000);
        }
        return;
    }
}

/* Of the servers of the workers' store that are here: the gateway's memory, and what the one that
 * has the keys is asked. */
static void put_store_metrics(struct mu_status_text *t, const struct mu_agent_status *s)
{
    const struct mu_store_server *gateway = NULL;
    const struct mu_store_server *server = NULL;
    struct mu_store_server_stats stats;

    if (s->agent != NULL) {
        mu_agent_service_stores(s->agent, &gateway, &server);
    }
    if (gateway != NULL) {
        mu_store_server_stats(gateway, &stats);
        put_figure(t, s, "muster_agent_store_cached_keys", "gauge",
                   "Keys of the workers' store that the gateway answers for.", stats.cached);
        put_figure(t, s, "muster_agent_store_cache_hits_total", "counter",
                   "Reads of the round that it answered from memory.", stats.cache_hits);
        put_figure(t, s, "muster_agent_store_cache_misses_total", "counter",
                   "Reads that it had to pass on.", stats.cache_misses);
        put_figure(t, s, "muster_agent_store_children", "gauge",
                   "Gateways whose sessions it carries, as a relay.", stats.carried);
    }
    if (server != NULL) {
        mu_store_server_stats(server, &stats);
        put_figure(t, s, "muster_agent_store_messages_in_total", "counter",
                   "Messages of the round to the workers' store.", stats.messages_in);
        put_figure(t, s, "muster_agent_store_bytes_out_total", "counter", "Bytes that it sent.",
                   stats.bytes_out);
        put_figure(t, s, "muster_agent_store_granted_total", "counter",
                   "How often a gateway was given a key to answer for.", stats.granted);
        put_figure(t, s, "muster_agent_store_recalls_total", "counter",
                   "How often one was asked back.", stats.recalls);
    }
}

static int tell_metrics(void *context, struct mu_buf *out)
{
    const struct mu_agent_status *s = context;
    struct mu_status_text t = {.out = out};
    uint32_t counts[MU_WORKER_STATES] = {0};

    mu_status_metric(&t, "muster_info", "gauge", "The version of muster.");
    mu_status_put(&t, "muster_info{version=\"" MUSTER_VERSION "\"} 1\n");
    put_figure(&t, s, "muster_agent_up_seconds", "gauge", "How long the agent has been running.",
               mu_mono_since(s->began, mu_env_now(s->env).mono) / MU_NS_PER_S);
    put_figure(&t, s, "muster_agent_restarts_total", "counter", "Restarts of the workers.",
               s->attempt.restart_count);
    put_figure(&t, s, "muster_agent_failures_total", "counter", "Workers that failed here.",
               s->failures);
    put_figure(&t, s, "muster_agent_hangs_total", "counter", "Hangs of the run.", s->hang_count);
    put_figure(&t, s, "muster_agent_hung", "gauge", "1 while the run hangs.", s->hangs ? 1 : 0);
    put_figure(&t, s, "muster_agent_health_faults", "gauge",
               "Faults of this machine that keep its node out.", s->fault_count);
    put_figure(&t, s, "muster_agent_health_warnings", "gauge", "Warnings about this machine.",
               s->warn_count);
    put_figure(&t, s, "muster_agent_xids_total", "counter", "Errors that the GPU driver reported.",
               s->xid_count);
    if (s->has_attempt) {
        put_figure(&t, s, "muster_agent_round", "gauge", "The workers' round.", s->attempt.round);
        put_figure(&t, s, "muster_agent_rank", "gauge", "The rank of this node.",
                   s->attempt.group_rank);
        put_figure(&t, s, "muster_agent_nodes", "gauge", "Nodes in the round.",
                   s->attempt.group_world);
    }
    for (uint32_t i = 0; s->has_attempt && i < s->worker_count; i++) {
        counts[s->workers[i].state]++;
    }
    mu_status_metric(&t, "muster_agent_workers", "gauge", "Workers of this node, by state.");
    for (int i = MU_WORKER_STARTING; i < MU_WORKER_STATES; i++) {
        mu_status_put(&t, "muster_agent_workers{run=");
        mu_status_quote(&t, s->config->rdzv.run_id);
        mu_status_put(&t, ",state=\"%s\"} %" PRIu32 "\n",
                      mu_agent_worker_state_name((enum mu_agent_worker_state)i), counts[i]);
    }
    put_step_metrics(&t, s);
    put_store_metrics(&t, s);
    mu_agent_status_pace_metrics(&t, s);
    return t.err;
}

static int tell_stacks(void *context, struct mu_buf *out)
{
    const struct mu_agent_status *s = context;

    return s->hang_stacks.len == 0
               ? mu_buf_append(out,
                               MU_SPAN_LIT("The run has not hung so far. `muster stacks` shows "
                                           "what its workers do at any time.\n"))
               : mu_buf_append(out, mu_buf_span(&s->hang_stacks));
}

static bool tell_ready(void *context)
{
    const struct mu_agent_status *s = context;

    return strcmp(s->state, "running") == 0;
}

struct mu_status_source mu_agent_status_source(struct mu_agent_status *s)
{
    return (struct mu_status_source){.json = tell_json,
                                     .metrics = tell_metrics,
                                     .ready = tell_ready,
                                     .stacks = tell_stacks,
                                     .context = s};
}
