#include "cli/run_watch.h"

#include <stdio.h>
#include <string.h>

/* --- life ------------------------------------------------------------------------------------- */

static void write_line(void *context, const char *line, size_t len)
{
    mu_output_say(context, MU_STDERR, mu_span(line, len));
}

static void on_stopped(void *context)
{
    struct run_watch *w = context;

    w->then(w->context);
}

static int open_page(struct run_watch *w, struct run_options *o, struct mu_env *env)
{
    const struct muster_lock *lock = cli_lock_of(&o->lock);
    const struct cli_page_place place = {
        .http = o->http, .token_file = lock->token_file, .insecure = lock->insecure};
    struct mu_status_source source = mu_agent_status_source(&w->status);
    struct mu_status_page_config config = {.stopped = on_stopped, .context = w};
    struct mu_errmsg msg = {{0}};
    char token[CLI_PAGE_TOKEN_CAP];
    int code = cli_page_prepare(&place, &config, token);
    int err = code != 0 ? 0 : mu_status_page_start(env, &source, &config, &w->page, &msg);

    explicit_bzero(token, sizeof(token));
    return err == 0 ? code : cli_fail(cli_exit_code(err), "--http: %s", msg.text);
}

int run_watch_open(struct run_watch *w, struct run_options *o,
                   const struct mu_agent_service_config *config, struct mu_env *env,
                   struct mu_output *output, const char *host)
{
    w->output = output;
    w->run_id = config->rdzv.run_id;
    cli_log_divert(write_line, output);
    cli_log_place(w->run_id, -1, -1);
    if (mu_agent_status_init(&w->status, env, config, host) != 0) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    return o->http == NULL ? 0 : open_page(w, o, env);
}

void run_watch_close(struct run_watch *w, void (*then)(void *context), void *context)
{
    if (w->page == NULL) {
        then(context);
        return;
    }
    w->then = then;
    w->context = context;
    mu_status_page_tell(w->page); /* the page shows how the run ended */
    mu_status_page_stop(w->page);
}

void run_watch_fini(struct run_watch *w)
{
    cli_log_divert(NULL, NULL);
    mu_status_page_free(w->page);
    mu_agent_status_fini(&w->status);
}

const char *run_watch_address(const struct run_watch *w, char *buf, size_t cap)
{
    return w->page == NULL ? "" : mu_addr_format(mu_status_page_addr(w->page), buf, cap);
}

static bool is_any_address(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

const char *run_watch_address_for_others(const struct run_watch *w, const char *local_addr,
                                         const char *host, char *buf, size_t cap)
{
    struct mu_addr node = {.kind = MU_ADDR_TCP};
    struct mu_addr page;

    if (w->page == NULL) {
        return "";
    }
    page = *mu_status_page_addr(w->page);
    (void)snprintf(node.host, sizeof(node.host), "%s",
                   local_addr == NULL || local_addr[0] == '\0' ? host : local_addr);
    if (is_any_address(page.host)) {
        memcpy(page.host, node.host, sizeof(page.host));
    } else if (mu_addr_is_loopback(&page) && !mu_addr_is_loopback(&node)) {
        return "";
    }
    return mu_addr_format(&page, buf, cap);
}

/* --- what happens ----------------------------------------------------------------------------- */

void run_watch_log(struct run_watch *w, const char *line)
{
    mu_agent_status_log(&w->status, line);
    cli_log_tell(MUSTER_LOG_INFO, "AGENT", -1, NULL, "%s", line);
}

void run_watch_record(struct run_watch *w, const struct mu_rdzv_record *record)
{
    (void)w;
    cli_log_tell(MUSTER_LOG_DEBUG, "RDZV-STEP", record->rank,
                 json_pack("{s:s, s:o}", "name", record->name, "node", cli_log_text(record->node)),
                 "%s", record->message);
}

void run_watch_prepare(struct run_watch *w, const struct mu_agent_attempt *a)
{
    mu_agent_status_prepare(&w->status, a);
    cli_log_place(w->run_id, (int64_t)a->round, a->group_rank);
    cli_log_tell(
        MUSTER_LOG_INFO, "AGENT-ROUND", -1,
        json_pack("{s:I, s:I, s:I, s:I, s:I}", "nodes", (json_int_t)a->group_world, "first_worker",
                  (json_int_t)a->ranks.base, "world", (json_int_t)a->ranks.world, "workers",
                  (json_int_t)a->workers, "restarts", (json_int_t)a->restart_count),
        "round %llu: node %u of %u", (unsigned long long)a->round, a->group_rank, a->group_world);
}

static void tell_started(const struct run_watch *w, uint32_t local_rank, int64_t pid)
{
    const struct mu_agent_attempt *a = &w->status.attempt;

    cli_log_tell(MUSTER_LOG_INFO, "WORKER-STARTED", a->ranks.base + local_rank,
                 json_pack("{s:I, s:I, s:I}", "node_rank", (json_int_t)a->group_rank, "local_rank",
                           (json_int_t)local_rank, "worker_pid", (json_int_t)pid),
                 "rank %u started", a->ranks.base + local_rank);
}

/* Returns whether the start of that worker was not reported yet. */
static bool is_new(const struct run_watch *w, uint32_t local_rank)
{
    return local_rank < w->status.worker_count &&
           w->status.workers[local_rank].state == MU_WORKER_STARTING;
}

void run_watch_started(struct run_watch *w, const struct mu_agent_service *agent)
{
    for (uint32_t i = 0; i < w->status.worker_count; i++) {
        if (is_new(w, i)) {
            tell_started(w, i, mu_agent_service_pid(agent, i));
        }
    }
    mu_agent_status_started(&w->status, agent);
}

void run_watch_step(struct run_watch *w, uint32_t local_rank, uint64_t step, uint64_t ns)
{
    mu_agent_status_step(&w->status, local_rank, step, ns);
}

void run_watch_exited(struct run_watch *w, const struct mu_agent_worker_end *end)
{
    /* A worker may end before the last one has started. */
    if (is_new(w, end->local_rank) && end->pid != 0) {
        tell_started(w, end->local_rank, end->pid);
    }
    mu_agent_status_exited(&w->status, end);
    cli_log_tell(MUSTER_LOG_INFO, "WORKER-ENDED", end->rank,
                 json_pack("{s:I, s:I, s:I, s:i, s:b}", "node_rank",
                           (json_int_t)w->status.attempt.group_rank, "local_rank",
                           (json_int_t)end->local_rank, "worker_pid", (json_int_t)end->pid,
                           "exit_code", end->exit_code, "stopped", end->stopped),
                 "rank %u ended with code %d", end->rank, end->exit_code);
}

void run_watch_hang(struct run_watch *w, const struct mu_hang *hang)
{
    mu_agent_status_hang(&w->status, hang);
    cli_log_tell(hang->over ? MUSTER_LOG_INFO : MUSTER_LOG_WARN,
                 hang->over ? "RUN-RESUMED" : "RUN-HANG", -1,
                 json_pack("{s:I, s:I, s:I, s:o, s:b, s:s, s:o}", "since",
                           (json_int_t)hang->since_s, "still_ms", (json_int_t)hang->still_ms,
                           "missing_count", (json_int_t)hang->missing_count, "missing",
                           cli_log_text(hang->missing), "split", hang->split, "action",
                           mu_hang_action_name(hang->action), "stacks", cli_log_text(hang->stacks)),
                 "%s", hang->text);
}

void run_watch_health(struct run_watch *w, const struct mu_health_findings *now,
                      const struct mu_health_finding *news)
{
    mu_agent_status_health(&w->status, now, news);
    if (news != NULL) {
        cli_log_tell(MUSTER_LOG_WARN, "NODE-HEALTH", -1,
                     json_pack("{s:s, s:s, s:o, s:o, s:o}", "level",
                               mu_health_level_name(news->level), "kind",
                               mu_health_kind_name(news->kind), "gpu",
                               news->gpu < 0 ? json_null() : json_integer(news->gpu), "subject",
                               cli_log_text(news->subject), "remedy", cli_log_text(news->remedy)),
                     "%s", news->text);
    }
}

void run_watch_straggler(struct run_watch *w, const struct mu_straggle_change *change)
{
    const struct mu_straggler *who = &change->who;
    bool over = change->word == MU_STRAGGLE_OVER;

    mu_agent_status_straggler(&w->status, change);
    cli_log_tell(over ? MUSTER_LOG_INFO : MUSTER_LOG_WARN, over ? "STRAGGLER-OVER" : "STRAGGLER",
                 -1,
                 json_pack("{s:I, s:I, s:o, s:I, s:I}", "first_rank", (json_int_t)who->rank,
                           "rank_count", (json_int_t)who->rank_count, "host",
                           cli_log_text(who->node), "kept_permille", (json_int_t)who->kept_permille,
                           "delay_permille", (json_int_t)who->delay_permille),
                 "%s", who->text);
}

void run_watch_paced(struct run_watch *w, const struct mu_agent_paced *paced)
{
    mu_agent_status_paced(&w->status, paced);
}

void run_watch_gone(struct run_watch *w)
{
    mu_agent_status_gone(&w->status);
}

void run_watch_ended(struct run_watch *w, const struct mu_agent_verdict *verdict)
{
    struct mu_buf text;
    json_t *fields = NULL;

    mu_agent_status_ended(&w->status, verdict);
    mu_buf_init(&text, (size_t)16 << 20);
    if (mu_agent_verdict_json(verdict, &text) == 0) {
        fields = json_loadb((const char *)mu_buf_span(&text).data, text.len, 0, NULL);
    }
    mu_buf_fini(&text);
    cli_log_tell(mu_agent_verdict_exit_code(verdict) == 0 ? MUSTER_LOG_INFO : MUSTER_LOG_ERROR,
                 "AGENT-ENDED", -1, fields, "%s", verdict->text == NULL ? "" : verdict->text);
}
