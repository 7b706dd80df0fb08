#include "cli/run_events.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

/* What differs from one record to the next. */
struct event {
    const char *state;
    const struct mu_agent_worker_end *worker; /* NULL: a record of the agent */
    const char *raw_error;                    /* or NULL */
    int64_t duration_ms;                      /* -1: no duration */
};

static uint64_t now_ms(const struct run_events *e)
{
    return mu_env_now(e->env).mono.ns / MU_NS_PER_MS;
}

/* --- one record ------------------------------------------------------------------------------- */

/* The inner metadata, which torchrun writes as a text inside the outer. A worker's values are in
 * arrays. */
static char *make_inner(const struct run_events *e, const struct mu_agent_worker_end *w)
{
    const char *program = ((const char *const *)e->o->argv.items)[0];
    const char *slash = strrchr(program, '/');
    const struct mu_ranks *ranks = &e->attempt.ranks;
    json_t *inner = json_pack("{s:I, s:s*}", "group_world_size", (json_int_t)e->attempt.group_world,
                              "entry_point", slash == NULL ? program : slash + 1);
    char *text;

    if (inner != NULL && w != NULL) {
        json_t *more =
            json_pack("{s:[I], s:[I], s:[I], s:[I]}", "local_rank", (json_int_t)w->local_rank,
                      "role_rank", (json_int_t)ranks->role_base + w->local_rank, "role_world_size",
                      (json_int_t)ranks->role_world, "worker_pid", (json_int_t)w->pid);

        (void)json_object_update(inner, more);
        json_decref(more);
        if (w->exited) {
            (void)json_object_set_new(inner, "exit_code", json_pack("[i]", w->exit_code));
        }
    }
    text = inner == NULL ? NULL : json_dumps(inner, 0);
    json_decref(inner);
    return text;
}

/* Bytes that are not text also become null: an incomplete record is better than no record. */
static json_t *text_or_null(const char *text)
{
    json_t *value = text == NULL ? NULL : json_string(text);

    return value == NULL ? json_null() : value;
}

static json_t *make_metadata(const struct run_events *e, const struct event *event)
{
    const struct mu_agent_worker_end *w = event->worker;
    char *inner = make_inner(e, w);
    char pid[24] = "";
    json_t *metadata;

    if (w != NULL) {
        (void)snprintf(pid, sizeof(pid), "%lld", (long long)w->pid);
    }
    metadata = json_pack(
        "{s:o, s:o, s:I, s:o, s:o, s:o, s:s, s:I, s:s, s:o, s:o, s:I, s:o}", "run_id",
        text_or_null(e->o->rdzv.run_id), "global_rank",
        w == NULL ? json_null() : json_integer(w->rank), "group_rank",
        (json_int_t)e->attempt.group_rank, "worker_id", text_or_null(w == NULL ? NULL : pid),
        "role", text_or_null(e->o->role), "hostname", text_or_null(e->host), "state", event->state,
        "total_run_time", (json_int_t)((now_ms(e) - e->began_ms) / 1000), "rdzv_backend",
        e->o->rdzv.backend, "raw_error", text_or_null(event->raw_error), "metadata",
        text_or_null(inner), "agent_restarts", (json_int_t)e->attempt.restart_count, "duration_ms",
        event->duration_ms < 0 ? json_null() : json_integer(event->duration_ms));
    free(inner);
    return metadata;
}

static void emit(const struct run_events *e, struct event event)
{
    char name[64];
    json_t *line;
    char *text;

    (void)snprintf(name, sizeof(name), "torchelastic.worker.status.%s", event.state);
    line = json_pack("{s:s, s:s, s:i, s:o}", "name", name, "source",
                     event.worker == NULL ? "AGENT" : "WORKER", "timestamp", 0, "metadata",
                     make_metadata(e, &event));
    text = line == NULL ? NULL : json_dumps(line, 0);
    if (text != NULL) {
        mu_output_say(e->output, MU_STDERR, mu_span_str(text));
        mu_output_say(e->output, MU_STDERR, MU_SPAN_LIT("\n"));
    }
    free(text);
    json_decref(line);
}

/* --- what happens ----------------------------------------------------------------------------- */

void run_events_init(struct run_events *e, const struct run_options *o, struct mu_output *output,
                     struct mu_env *env, const char *host)
{
    *e = (struct run_events){.o = o, .output = output, .env = env, .host = host};
    e->began_ms = now_ms(e);
    e->joined_ms = e->began_ms;
}

void run_events_record(struct run_events *e, const struct mu_rdzv_record *record)
{
    const char *dot = strrchr(record->name, '.');

    if (dot != NULL && strcmp(dot, ".assigned") == 0) {
        e->assigned_ms = now_ms(e);
    }
}

void run_events_prepare(struct run_events *e, const struct mu_agent_attempt *attempt)
{
    uint64_t now = now_ms(e);
    /* If ranks came while workers were being stopped, the agent did not wait for them. */
    uint64_t assigned = e->assigned_ms < e->joined_ms ? e->joined_ms : e->assigned_ms;

    e->attempt = *attempt;
    e->has_attempt = true;
    if (e->o->events) {
        emit(e, (struct event){.state = "RENDEZVOUS",
                               .duration_ms = (int64_t)(assigned - e->joined_ms)});
        emit(e, (struct event){.state = "ASSIGN_WORKER_RANKS",
                               .duration_ms = (int64_t)(now - assigned)});
    }
}

void run_events_started(struct run_events *e, const struct mu_agent_service *agent)
{
    for (uint32_t i = 0; e->o->events && i < e->attempt.workers; i++) {
        const struct mu_agent_worker_end worker = {
            .rank = e->attempt.ranks.base + i,
            .local_rank = i,
            .pid = mu_agent_service_pid(agent, i),
        };

        emit(e, (struct event){.state = "START", .worker = &worker, .duration_ms = -1});
    }
}

void run_events_gone(struct run_events *e)
{
    e->joined_ms = now_ms(e);
}

static void emit_end(const struct run_events *e, const struct mu_agent_worker_end *w)
{
    bool failed = w->exited && w->exit_code != 0 && !w->stopped;
    struct mu_buf text;

    mu_buf_init(&text, MU_FAILURE_BYTES_MAX);
    if (failed) {
        mu_output_read_error(e->output, w->local_rank, &text);
    }
    emit(e, (struct event){
                .state = failed                           ? "FAILED"
                         : w->exited && w->exit_code == 0 ? "SUCCEEDED"
                                                          : "TERMINATED",
                .worker = w,
                .raw_error = text.len != 0 && mu_buf_append(&text, mu_span("", 1)) == 0
                                 ? (const char *)mu_buf_span(&text).data
                                 : NULL,
                .duration_ms = -1,
            });
    mu_buf_fini(&text);
}

void run_events_ended(struct run_events *e, const struct mu_agent_verdict *verdict)
{
    /* As in torchrun, an agent that came to its end has succeeded, whatever its workers did. */
    bool failed = verdict->outcome == MU_AGENT_ERROR || verdict->outcome == MU_AGENT_STOPPED;

    if (!e->o->events) {
        return;
    }
    for (uint32_t i = 0; e->has_attempt && i < verdict->worker_count; i++) {
        emit_end(e, &verdict->workers[i]);
    }
    emit(e, (struct event){.state = failed ? "FAILED" : "SUCCEEDED",
                           .raw_error = failed ? verdict->text : NULL,
                           .duration_ms = -1});
}
