/*
 * The first failure of a round. The worker that ends first is not always the one that failed first:
 * a worker that raised an exception closes its connections while it is still ending, and workers
 * that depended on it may be dead before it is. So each sign of failing takes a ticket at the
 * server, from a counter in the round's store: a traceback, the closing of its descriptors (see
 * `dying` in core/child.h, which comes before any other worker can notice), at the latest the exit.
 * Of all workers that then do end badly by themselves, the one with the lowest ticket was first;
 * tickets come over the network, so workers that complain of a lost one come after those that do
 * not (mu_failure_order()). The record is in one key, where an earlier failure replaces a later
 * one.
 */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "service/agent/agent_internal.h"

#define TICKET_KEY "muster/signs"
#define FRESH_MS   5000 /* an older sign was about something else */
#define TRIES_MAX  32   /* attempts to write, against others that write */

/* Whether it can be asked. One that is gone with its host would not even say that it is. */
static bool has_store(const struct mu_agent_round *r)
{
    return r->store_open && !r->store_gone;
}

/* --- tickets ---------------------------------------------------------------------------------- */

static bool is_fresh(const struct mu_agent_worker *w)
{
    uint64_t age_ns = mu_mono_since(w->ticket_at, mu_env_now(w->s->env).mono);

    return (w->ticket != 0 || w->ticket_busy) && age_ns <= FRESH_MS * MU_NS_PER_MS;
}

static void write_first(struct mu_agent_round *r);

static void on_ticket(struct mu_store_op *op)
{
    struct mu_agent_worker *w = MU_CONTAINER_OF(op, struct mu_agent_worker, ticket_op);
    struct mu_agent_round *r = w->s->round;

    w->ticket_busy = false;
    /* A worker without a number comes after those that have one. */
    w->ticket = op->status == 0 && op->reply.number > 0 ? (uint64_t)op->reply.number : INT64_MAX;
    if (w->failed && r != NULL && !r->closing) {
        write_first(r);
        mu_agent_settle(w->s);
    }
}

void mu_agent_failure_sign(struct mu_agent_worker *w)
{
    struct mu_agent_round *r = w->s->round;

    if (is_fresh(w) || w->ticket_busy || r == NULL || r->closing || !r->store_open) {
        return;
    }
    w->ticket_at = mu_env_now(w->s->env).mono;
    if (r->store_gone) {
        w->ticket = INT64_MAX; /* as without an answer */
        return;
    }
    w->ticket = 0;
    w->ticket_busy = true;
    w->ticket_key = MU_SPAN_LIT(TICKET_KEY);
    w->ticket_op = (struct mu_store_op){
        .request = {.verb = MU_STORE_ADD, .keys = &w->ticket_key, .key_count = 1, .number = 1},
        .timeout_ms = w->s->config.verdict_ms,
        .done = on_ticket,
    };
    mu_store_submit(r->stores.store, &w->ticket_op);
}

/* --- the record ------------------------------------------------------------------------------- */

static void keep(struct mu_agent_round *r, struct mu_span text)
{
    struct mu_agent_verdict *v = &r->s->verdict;
    struct mu_failure f;

    if (mu_failure_decode(text, &f) != 0) {
        return;
    }
    r->failure_known = true;
    mu_failure_fini(&v->first_failure);
    v->first_failure = f;
    v->has_failure = true;
    v->failure_here = f.group_rank == r->rank;
    mu_agent_failure_tell_running(r->s);
}

static uint64_t order_of(struct mu_span text)
{
    struct mu_failure f;
    uint64_t order;

    if (mu_failure_decode(text, &f) != 0) {
        return UINT64_MAX;
    }
    order = mu_failure_order(f.ticket, f.effect);
    mu_failure_fini(&f);
    return order;
}

static uint64_t worker_order(const struct mu_agent_worker *w)
{
    return mu_failure_order(w->ticket, w->effect);
}

/* Returns the end of what the worker wrote, in new memory with a zero behind it. NULL: there is
 * nothing, or no memory. */
static char *read_tail(const struct mu_agent_worker *w, size_t cap, size_t *ret_len)
{
    struct mu_agent_service *s = w->s;
    char *text = mu_malloc(cap + 1);

    if (text != NULL) {
        *ret_len = s->events.tail(s->events.context, w->local_rank, (uint8_t *)text, cap);
        text[*ret_len] = '\0';
    }
    return text;
}

/* Returns the same as a text: zeros in it become blanks. */
static char *dup_tail(const struct mu_agent_worker *w)
{
    size_t len = 0;
    char *text = read_tail(w, MU_FAILURE_TAIL_MAX, &len);

    for (size_t i = 0; text != NULL && i < len; i++) {
        if (text[i] == '\0') {
            text[i] = ' ';
        }
    }
    return text;
}

/* Whether the worker complains of a lost one. */
static bool is_effect(const struct mu_agent_worker *w)
{
    size_t len = 0;
    char *text = read_tail(w, MU_AGENT_TAIL_BYTES, &len);
    bool effect = text != NULL && mu_failure_is_effect(mu_span(text, len));

    mu_free(text);
    return effect;
}

static void read_error_file(struct mu_agent_service *s, uint32_t local_rank, struct mu_failure *f)
{
    struct mu_buf text;

    if (s->events.read_error_file == NULL) {
        return;
    }
    mu_buf_init(&text, MU_FAILURE_BYTES_MAX);
    s->events.read_error_file(s->events.context, local_rank, &text);
    if (text.len != 0 && mu_failure_read_error_file(f, mu_buf_span(&text)) != 0) {
        mu_agent_log(s, "the error file of rank %u (local rank %u) is not in PyTorch's format",
                     f->rank, local_rank);
    }
    mu_buf_fini(&text);
}

static const char *host_of(const struct mu_agent_service *s)
{
    return s->config.host != NULL ? s->config.host : s->rdzv->node;
}

/* What this machine knows of the failure beside the worker's own words. */
static void add_circumstances(const struct mu_agent_worker *w, struct mu_failure *f)
{
    const struct mu_agent_service_events *on = &w->s->events;
    char cause[MU_FAILURE_CAUSE_MAX + 1] = "";
    char logs[MU_FAILURE_LOGS_MAX + 1] = "";

    if (w->hung && w->s->watchdog.has_told) {
        (void)snprintf(cause, sizeof(cause), "the watchdog ended it: %s", w->s->watchdog.told.text);
    } else if (on->explain != NULL) {
        on->explain(on->context, &w->end, f->tail == NULL ? "" : f->tail, cause, sizeof(cause));
    }
    mu_agent_health_cause(w->s, w, cause, sizeof(cause));
    if (on->log_files != NULL) {
        on->log_files(on->context, w->local_rank, logs, sizeof(logs));
    }
    f->cause = mu_strndup(cause, strlen(cause));
    f->logs = mu_strndup(logs, strlen(logs));
}

static int encode(struct mu_agent_round *r, const struct mu_agent_worker *w)
{
    struct mu_agent_service *s = r->s;
    struct mu_failure f = {
        .host = mu_strndup(host_of(s), strlen(host_of(s))),
        .group_rank = r->rank,
        .rank = w->end.rank,
        .local_rank = w->local_rank,
        .pid = w->end.pid,
        .exit_code = w->end.exit_code,
        .round = r->number,
        .restart_count = s->attempt.restart_count,
        .ticket = w->ticket,
        .effect = w->effect,
        .time_s = (int64_t)(mu_env_now(s->env).wall.ns / MU_NS_PER_S),
        .tail = dup_tail(w),
    };
    int err;

    read_error_file(s, w->local_rank, &f);
    add_circumstances(w, &f);
    mu_buf_reset(&r->op_text);
    err = mu_failure_encode(&r->op_text, &f);
    mu_failure_fini(&f);
    return err;
}

void mu_agent_failure_forget(struct mu_agent_service *s)
{
    mu_failure_fini(&s->verdict.first_failure);
    s->verdict.has_failure = false;
    s->verdict.failure_here = false;
    s->verdict.running_count = 0;
    s->verdict.hang = NULL;
}

/* --- workers that did not fail ---------------------------------------------------------------- */

static void on_running_told(struct mu_store_op *op)
{
    struct mu_agent_round *r = MU_CONTAINER_OF(op, struct mu_agent_round, running_op);

    r->running_busy = false;
    if (r->closing) {
        mu_agent_round_settle(r);
    } else {
        mu_agent_settle(r->s);
    }
}

/* Appends a line for each worker that we had to stop. False: one is held back, and may still end by
 * itself. */
static bool list_running(struct mu_agent_service *s, struct mu_buf *out)
{
    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        const struct mu_agent_worker *w = &s->workers[i];

        if (w->held) {
            return false;
        }
        if (w->end.stopped) {
            (void)mu_failure_put(out, "%u %u %.63s\n", w->end.rank, w->local_rank, host_of(s));
        }
    }
    return true;
}

void mu_agent_failure_tell_running(struct mu_agent_service *s)
{
    struct mu_agent_round *r = s->round;

    if (r == NULL || r->closing || r->running_told || !has_store(r) || !r->failure_known ||
        !s->verdict.first_failure.effect) {
        return;
    }
    mu_buf_reset(&r->running_text);
    if (!list_running(s, &r->running_text) || r->running_text.len == 0) {
        return;
    }
    r->running_told = true;
    r->running_busy = true;
    r->running_key = MU_SPAN_LIT(MU_AGENT_RUNNING_KEY);
    r->running_value = mu_buf_span(&r->running_text);
    /* A store without this operation refuses it: then every node knows of its own workers only. */
    r->running_op = (struct mu_store_op){
        .request = {.verb = MU_STORE_APPEND,
                    .keys = &r->running_key,
                    .key_count = 1,
                    .values = &r->running_value,
                    .value_count = 1},
        .timeout_ms = s->config.verdict_ms,
        .done = on_running_told,
    };
    mu_store_submit(r->stores.store, &r->running_op);
}

/* Takes the lines of all agents. */
static void take_running(struct mu_agent_verdict *v, struct mu_span text)
{
    v->running_count = 0;
    while (text.len != 0) {
        const uint8_t *newline = memchr(text.data, '\n', text.len);
        size_t len = newline == NULL ? text.len : (size_t)(newline - text.data) + 1;
        struct mu_agent_running one = {0};
        char line[128];

        (void)snprintf(line, sizeof(line), "%.*s", (int)len, (const char *)text.data);
        if (sscanf(line, "%u %u %63s", &one.rank, &one.local_rank, one.host) == 3) {
            if (v->running_count < MU_AGENT_RUNNING_MAX) {
                v->running[v->running_count] = one;
            }
            v->running_count += 1;
        }
        text = mu_span_skip(text, len);
    }
}

void mu_agent_failure_list_own(struct mu_agent_service *s)
{
    struct mu_buf text;

    mu_buf_init(&text, MU_AGENT_RUNNING_BYTES);
    if (s->verdict.running_count == 0 && list_running(s, &text)) {
        take_running(&s->verdict, mu_buf_span(&text));
    }
    mu_buf_fini(&text);
}

/* --- writing and reading ---------------------------------------------------------------------- */

static void on_op(struct mu_store_op *op);

static void submit(struct mu_agent_round *r, enum mu_store_verb verb, uint32_t flags,
                   size_t value_count)
{
    r->op_key =
        r->reads_running ? MU_SPAN_LIT(MU_AGENT_RUNNING_KEY) : MU_SPAN_LIT(MU_AGENT_FAILURE_KEY);
    r->op = (struct mu_store_op){
        .request =
            {
                .verb = verb,
                .flags = flags,
                .keys = &r->op_key,
                .key_count = 1,
                .values = r->op_values,
                .value_count = value_count,
            },
        .timeout_ms = r->s->config.verdict_ms,
        .done = on_op,
    };
    r->op_busy = true;
    mu_store_submit(r->stores.store, &r->op);
}

static void submit_write(struct mu_agent_round *r)
{
    r->publishes = true;
    r->op_values[0] = mu_buf_span(&r->op_known);
    r->op_values[1] = mu_buf_span(&r->op_text);
    submit(r, MU_STORE_COMPARE_SET, 0, 2);
}

/* Returns true if it must be written again, over what another agent wrote. */
static bool take_written(struct mu_agent_round *r, struct mu_span value)
{
    if (mu_span_eq(value, mu_buf_span(&r->op_text)) || order_of(value) <= r->op_order) {
        keep(r, value);
        return false;
    }
    mu_buf_reset(&r->op_known);
    return mu_buf_append(&r->op_known, value) == 0 && ++r->tries < TRIES_MAX;
}

static void on_op(struct mu_store_op *op)
{
    struct mu_agent_round *r = MU_CONTAINER_OF(op, struct mu_agent_round, op);
    struct mu_agent_service *s = r->s;
    bool has_value = op->status == 0 && op->reply.value_count != 0 && op->reply.values[0].len != 0;

    r->op_busy = false;
    if (r->closing) {
        mu_agent_round_settle(r);
        return;
    }
    if (r->reads_running) {
        r->reads_running = false;
        if (has_value) {
            take_running(&s->verdict, op->reply.values[0]);
        }
    } else if (!r->publishes) {
        if (has_value) {
            keep(r, op->reply.values[0]);
        }
        if (s->asked_again && s->verdict.first_failure.effect && !r->again && has_store(r)) {
            r->reads_running = true;
            submit(r, MU_STORE_GET, MU_STORE_NOWAIT, 0);
            return;
        }
    } else if (has_value && take_written(r, op->reply.values[0])) {
        submit_write(r);
        return;
    } else if (!has_value) {
        keep(r, mu_buf_span(&r->op_text)); /* nothing contradicts it */
    }
    r->publishes = false;
    if (r->again) {
        r->again = false;
        write_first(r);
    }
    mu_agent_settle(s);
}

/* Returns the first of our own workers that failed. NULL: no worker failed, or a ticket is still
 * missing. */
static struct mu_agent_worker *find_first(struct mu_agent_service *s)
{
    struct mu_agent_worker *first = NULL;

    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        struct mu_agent_worker *w = &s->workers[i];

        if (w->failed && w->ticket_busy) {
            return NULL;
        }
        if (w->failed && (first == NULL || worker_order(w) < worker_order(first))) {
            first = w;
        }
    }
    return first;
}

static void write_first(struct mu_agent_round *r)
{
    struct mu_agent_worker *w = find_first(r->s);
    const struct mu_failure *known = &r->s->verdict.first_failure;

    if (r->op_busy) {
        r->again = true;
        return;
    }
    if (w == NULL ||
        (r->failure_known && mu_failure_order(known->ticket, known->effect) <= worker_order(w))) {
        return;
    }
    r->op_order = worker_order(w);
    r->tries = 0;
    if (encode(r, w) != 0) {
        mu_agent_log(
            r->s, "the failure of rank %u (local rank %u) cannot be recorded for the other nodes",
            w->end.rank, w->local_rank);
    } else if (!has_store(r)) {
        keep(r, mu_buf_span(&r->op_text));
    } else {
        submit_write(r);
    }
}

void mu_agent_failure_publish(struct mu_agent_worker *w)
{
    struct mu_agent_round *r = w->s->round;

    if (w->failed || r == NULL || r->closing) {
        return;
    }
    mu_agent_failure_sign(w);
    w->failed = true;
    w->effect = is_effect(w);
    if (!w->ticket_busy) {
        write_first(r);
    }
}

bool mu_agent_failure_is_own(const struct mu_agent_worker *w)
{
    uint64_t age_ns = mu_mono_since(w->raised_at, mu_env_now(w->s->env).mono);

    return w->raised && age_ns <= FRESH_MS * MU_NS_PER_MS && !w->effect;
}

bool mu_agent_failure_is_publishing(const struct mu_agent_service *s)
{
    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        if (s->workers[i].failed && s->workers[i].ticket_busy) {
            return true;
        }
    }
    return s->round != NULL && s->round->op_busy && s->round->publishes;
}

void mu_agent_failure_read(struct mu_agent_round *r)
{
    if (!r->op_busy && has_store(r) && !r->closing) {
        submit(r, MU_STORE_GET, MU_STORE_NOWAIT, 0);
    }
}

void mu_agent_failure_give_up(struct mu_agent_round *r)
{
    struct mu_agent_service *s = r->s;

    r->store_gone = true;
    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        if (s->workers[i].ticket_busy) {
            mu_store_cancel(&s->workers[i].ticket_op);
        }
    }
    if (r->op_busy) {
        mu_store_cancel(&r->op);
    }
    if (r->hang.busy) {
        mu_store_cancel(&r->hang.op);
    }
    if (r->pace.busy) {
        mu_store_cancel(&r->pace.op);
    }
}
