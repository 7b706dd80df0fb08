/* The verdict: one screen for people, one object for programs. */
#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "service/agent/agent.h"

#define SCREEN_LINES 12 /* of the last output, or of a traceback */
#define RANKS_SHOWN  6
#define LINE_BYTES   160
#define FIELD_BYTES  1024 /* of a sentence or of paths */

int mu_agent_verdict_exit_code(const struct mu_agent_verdict *v)
{
    if (v->outcome == MU_AGENT_ERROR && v->code == MUSTER_ERDZV_TIMEOUT) {
        return 3;
    }
    if (v->outcome == MU_AGENT_ERROR &&
        (v->code == MUSTER_ERDZV_CONN || v->code == MUSTER_ERDZV_EXCLUDED)) {
        return 4;
    }
    return v->outcome == MU_AGENT_SUCCEEDED || v->outcome == MU_AGENT_GRACEFUL ? 0 : 1;
}

/* --- words ------------------------------------------------------------------------------------ */

/* "exit code 3", "SIGKILL (signal 9)" */
static const char *describe_exit(int code, char *out, size_t cap)
{
    const char *name = mu_signal_name(-code);

    if (code >= 0) {
        (void)snprintf(out, cap, "exit code %d", code);
    } else if (name != NULL) {
        (void)snprintf(out, cap, "%s (signal %d)", name, -code);
    } else {
        (void)snprintf(out, cap, "signal %d", -code);
    }
    return out;
}

/* "with exit code 3", "by SIGKILL" */
static const char *describe_briefly(int code, char *out, size_t cap)
{
    const char *name = mu_signal_name(-code);

    if (name != NULL) {
        (void)snprintf(out, cap, "by %s", name);
    } else {
        (void)snprintf(out, cap, code < 0 ? "by signal %d" : "with exit code %d",
                       code < 0 ? -code : code);
    }
    return out;
}

static bool is_stopped(const struct mu_agent_worker_end *w)
{
    return w->exited && w->stopped;
}

static bool is_first(const struct mu_agent_verdict *v, const struct mu_agent_worker_end *w)
{
    return v->has_failure && v->failure_here && v->first_failure.rank == w->rank &&
           w->exit_code != 0; /* 0: it is the one that was started in its place */
}

/* Whether the worker failed by itself, but not first. */
static bool is_follower(const struct mu_agent_verdict *v, const struct mu_agent_worker_end *w)
{
    return w->exited && !w->stopped && w->exit_code != 0 && !is_first(v, w);
}

/* --- for people ------------------------------------------------------------------------------- */

/* Other nodes and workers wrote it: control characters do not reach the terminal. */
static int put_plain(struct mu_buf *out, struct mu_span line, size_t max)
{
    char text[FIELD_BYTES];
    size_t len = 0;

    for (size_t i = 0; i < line.len && len < max; i++) {
        uint8_t c = line.data[i];

        if (c == '\t') {
            text[len++] = ' ';
        } else if (c != '\r' && c != '\0') {
            text[len++] = c < 0x20 || c == 0x7f ? '?' : (char)c;
        }
    }
    return mu_buf_append(out, mu_span(text, len));
}

static int put_last_lines(struct mu_buf *out, const char *title, const char *text)
{
    size_t end = strlen(text);
    size_t begin;
    size_t lines = 0;
    int err;

    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == '\r' || text[end - 1] == ' ')) {
        end--;
    }
    if (end == 0) {
        return 0;
    }
    for (begin = end; begin > 0; begin--) {
        lines += text[begin - 1] == '\n';
        if (lines == SCREEN_LINES) {
            break;
        }
    }
    err = mu_failure_put(out, "  %s:\n", title);
    while (err == 0 && begin < end) {
        const char *newline = memchr(text + begin, '\n', end - begin);
        size_t stop = newline == NULL ? end : (size_t)(newline - text);

        err = mu_failure_put(out, "    | ");
        if (err == 0) {
            err = put_plain(out, mu_span(text + begin, stop - begin), LINE_BYTES);
        }
        if (err == 0) {
            err = mu_failure_put(out, "\n");
        }
        begin = stop + 1;
    }
    return err;
}

static int put_field(struct mu_buf *out, const char *name, const char *text)
{
    int err = mu_failure_put(out, "  %-10s ", name);

    if (err == 0) {
        err = put_plain(out, mu_span_str(text), FIELD_BYTES);
    }
    return err == 0 ? mu_failure_put(out, "\n") : err;
}

static int put_first(struct mu_buf *out, const struct mu_agent_verdict *v)
{
    const struct mu_failure *f = &v->first_failure;
    char how[64];
    int err =
        mu_failure_put(out, "first failure: rank %u (local rank %u) on ", f->rank, f->local_rank);

    if (err == 0) {
        err = put_plain(out, mu_span_str(f->host), LINE_BYTES);
    }
    if (err == 0) {
        err = mu_failure_put(out, "%s: %s\n  pid %lld, round %llu, restart %u\n",
                             v->failure_here ? " (this node)" : "",
                             describe_exit(f->exit_code, how, sizeof(how)), (long long)f->pid,
                             (unsigned long long)f->round, f->restart_count);
    }
    if (err == 0 && f->cause[0] != '\0') {
        err = put_field(out, "cause:", f->cause);
    }
    if (err == 0 && f->message[0] != '\0') {
        err = put_field(out, "error:", f->message);
    }
    if (err == 0 && f->logs[0] != '\0') {
        err = put_field(out, "log files:", f->logs);
    }
    if (err == 0 && f->traceback[0] != '\0') {
        err = put_last_lines(out, "end of its traceback", f->traceback);
    } else if (err == 0) {
        err = put_last_lines(out, "its last lines", f->tail);
    }
    return err;
}

/* Appends the ranks of the workers that `is` accepts, as many as fit on a line. */
static int put_ranks(struct mu_buf *out, const struct mu_agent_verdict *v, const char *title,
                     bool (*is)(const struct mu_agent_verdict *v,
                                const struct mu_agent_worker_end *w))
{
    uint32_t count = 0;
    char how[64];
    int err = 0;

    for (uint32_t i = 0; i < v->worker_count; i++) {
        count += is(v, &v->workers[i]);
    }
    if (count == 0) {
        return 0;
    }
    err = mu_failure_put(out, "%s:", title);
    for (uint32_t i = 0, shown = 0; err == 0 && i < v->worker_count; i++) {
        const struct mu_agent_worker_end *w = &v->workers[i];

        if (!is(v, w)) {
            continue;
        }
        if (shown == RANKS_SHOWN) {
            err = mu_failure_put(out, ", and %u more", count - shown);
            break;
        }
        err = mu_failure_put(out, "%s rank %u (local rank %u) %s", shown == 0 ? "" : ",", w->rank,
                             w->local_rank, describe_briefly(w->exit_code, how, sizeof(how)));
        shown++;
    }
    return err == 0 ? mu_failure_put(out, "\n") : err;
}

static bool stopped_here(const struct mu_agent_verdict *v, const struct mu_agent_worker_end *w)
{
    return is_stopped(w) && !is_first(v, w) && v->running_count == 0;
}

/* The workers that failed complain of others: those that did not fail may be the reason. */
static int put_running(struct mu_buf *out, const struct mu_agent_verdict *v)
{
    uint32_t shown = v->running_count < RANKS_SHOWN ? v->running_count : RANKS_SHOWN;
    int err = v->running_count == 0 ? 0 : mu_failure_put(out, "still running then, perhaps hung:");

    for (uint32_t i = 0; err == 0 && i < shown; i++) {
        err = mu_failure_put(out, "%s rank %u (local rank %u) on ", i == 0 ? "" : ",",
                             v->running[i].rank, v->running[i].local_rank);
        if (err == 0) {
            err = put_plain(out, mu_span_str(v->running[i].host), LINE_BYTES);
        }
    }
    if (err == 0 && shown < v->running_count) {
        err = mu_failure_put(out, ", and %u more", v->running_count - shown);
    }
    return err == 0 && v->running_count != 0 ? mu_failure_put(out, "\n") : err;
}

/* "12.3 s", "5 min 3 s", "2 h 10 min" */
static const char *describe_time(uint64_t ms, char *out, size_t cap)
{
    unsigned long long s = ms / 1000;

    if (s < 100) {
        (void)snprintf(out, cap, "%llu.%llu s", s, (unsigned long long)(ms / 100 % 10));
    } else if (s < 3600) {
        (void)snprintf(out, cap, "%llu min %llu s", s / 60, s % 60);
    } else {
        (void)snprintf(out, cap, "%llu h %llu min", s / 3600, s / 60 % 60);
    }
    return out;
}

/* What the watchdog saw before the workers ended, often by PyTorch's own timeout. */
static int put_hang(struct mu_buf *out, const struct mu_agent_verdict *v)
{
    int err = v->hang == NULL ? 0 : mu_failure_put(out, "hung before: ");

    if (err == 0 && v->hang != NULL) {
        err = put_plain(out, mu_span_str(v->hang->text), FIELD_BYTES);
        err = err == 0 ? mu_failure_put(out, "\n") : err;
    }
    return err;
}

int mu_agent_verdict_text(const struct mu_agent_verdict *v, bool brief, struct mu_buf *out)
{
    const char *why = brief ? v->unsaid : v->text;
    char took[48];
    int err =
        mu_failure_put(out, "%s after %s%s", mu_agent_outcome_name(v->outcome),
                       describe_time(v->took_ms, took, sizeof(took)), why[0] == '\0' ? "" : ": ");

    if (err == 0) {
        err = put_plain(out, mu_span_str(why), FIELD_BYTES);
    }
    if (err == 0) {
        err = mu_failure_put(out, "\n");
    }
    if (err == 0) {
        err = put_hang(out, v);
    }
    if (err == 0 && v->has_failure) {
        err = put_first(out, v);
    }
    if (err == 0) {
        err = put_ranks(out, v, "failed as well on this node", is_follower);
    }
    if (err == 0) {
        err = put_running(out, v);
    }
    if (err == 0) {
        err = put_ranks(out, v, "stopped by the agent on this node", stopped_here);
    }
    return err;
}

/* --- for programs ----------------------------------------------------------------------------- */

static int put_member(struct mu_buf *out, const char *name, const char *text)
{
    int err = mu_failure_put(out, ", \"%s\": ", name);

    if (err == 0 && text == NULL) {
        return mu_failure_put(out, "null");
    }
    return err == 0 ? mu_failure_put_text(out, mu_span_str(text)) : err;
}

static const char *became(const struct mu_agent_verdict *v, const struct mu_agent_worker_end *w)
{
    return !w->exited          ? (w->pid == 0 ? "not started" : "not ended")
           : is_first(v, w)    ? "failed first"
           : w->stopped        ? "stopped"
           : w->exit_code == 0 ? "succeeded"
                               : "failed";
}

static int put_worker(struct mu_buf *out, const struct mu_agent_verdict *v,
                      const struct mu_agent_worker_end *w)
{
    int err = mu_failure_put(out, "{\"rank\": %u, \"local_rank\": %u, \"pid\": %lld", w->rank,
                             w->local_rank, (long long)w->pid);

    if (err == 0 && w->exited) {
        err = mu_failure_put(out, ", \"exit_code\": %d", w->exit_code);
    }
    if (err == 0 && w->exited && w->exit_code < 0) {
        err = put_member(out, "signal", mu_signal_name(-w->exit_code));
    }
    if (err == 0) {
        err = put_member(out, "became", became(v, w));
    }
    return err == 0 ? mu_failure_put(out, "}") : err;
}

static int put_failure(struct mu_buf *out, const struct mu_agent_verdict *v)
{
    int err = mu_failure_put(out, ", \"first_failure\": ");

    if (err != 0 || !v->has_failure) {
        return err != 0 ? err : mu_failure_put(out, "null");
    }
    err = mu_failure_encode(out, &v->first_failure);
    if (err == 0) {
        out->len -= 1; /* its closing brace */
        err = mu_failure_put(out, ", \"here\": %s", v->failure_here ? "true" : "false");
    }
    if (err == 0 && v->first_failure.exit_code < 0) {
        err = put_member(out, "signal", mu_signal_name(-v->first_failure.exit_code));
    }
    return err == 0 ? mu_failure_put(out, "}") : err;
}

int mu_agent_verdict_json(const struct mu_agent_verdict *v, struct mu_buf *out)
{
    int err = mu_failure_put(out, "{\"outcome\": \"%s\", \"exit_code\": %d",
                             mu_agent_outcome_name(v->outcome), mu_agent_verdict_exit_code(v));

    if (err == 0) {
        err = put_member(out, "text", v->text);
    }
    if (err == 0 && v->code != 0) {
        err = put_member(out, "error", muster_errname(v->code));
    }
    if (err == 0 && v->signal != 0) {
        err = put_member(out, "signal", mu_signal_name(v->signal));
    }
    if (err == 0) {
        err = put_member(out, "run_id", v->run_id);
    }
    if (err == 0) {
        err = put_member(out, "host", v->host);
    }
    if (err == 0) {
        err = put_member(out, "program", v->program);
    }
    if (err == 0) {
        err = mu_failure_put(out, ", \"round\": %llu, \"restart_count\": %u, \"took_ms\": %llu",
                             (unsigned long long)v->round, v->restart_count,
                             (unsigned long long)v->took_ms);
    }
    if (err == 0) {
        err = put_failure(out, v);
    }
    if (err == 0) {
        err = mu_failure_put(out, ", \"hang\": ");
    }
    if (err == 0) {
        err = v->hang == NULL ? mu_failure_put(out, "null") : mu_hang_encode(out, v->hang);
    }
    if (err == 0) {
        err = mu_failure_put(out, ", \"still_running\": [");
    }
    for (uint32_t i = 0; err == 0 && i < v->running_count && i < MU_AGENT_RUNNING_MAX; i++) {
        err = mu_failure_put(out, "%s{\"rank\": %u, \"local_rank\": %u", i == 0 ? "" : ", ",
                             v->running[i].rank, v->running[i].local_rank);
        if (err == 0) {
            err = put_member(out, "host", v->running[i].host);
        }
        err = err == 0 ? mu_failure_put(out, "}") : err;
    }
    if (err == 0) {
        err = mu_failure_put(out, "], \"workers\": [");
    }
    for (uint32_t i = 0; err == 0 && i < v->worker_count; i++) {
        err = i == 0 ? 0 : mu_failure_put(out, ", ");
        if (err == 0) {
            err = put_worker(out, v, &v->workers[i]);
        }
    }
    return err == 0 ? mu_failure_put(out, "]}\n") : err;
}
