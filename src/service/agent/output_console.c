#include "service/agent/output_internal.h"

#include <stdio.h>

#define MARK_END  MU_SPAN_LIT(" [...]\n")
#define MARK_NEXT MU_SPAN_LIT("[...] ")
/* How many bytes a line may have around it besides its prefix. */
#define AROUND_MAX 32u
#define NOTE_MAX   256u
#define ERASE      "\r\x1b[K" /* back to the beginning of the line, which is emptied */

static size_t room_for(const struct output_stream *s)
{
    return s->worker->out->line_max + s->worker->prefix.len + AROUND_MAX;
}

bool output_console_has_room(const struct output_stream *s)
{
    const struct mu_buf *q = &s->console->queue;
    size_t max = s->worker->out->queue_max;

    return q->len <= max && max - q->len >= room_for(s);
}

/* Makes room, beyond `queue_max` for streams that cannot wait. */
static bool make_room(struct output_stream *s, size_t n, bool last)
{
    struct mu_buf *q = &s->console->queue;
    size_t max = last || s->worker->exited ? q->max : s->worker->out->queue_max;

    return q->len <= max && max - q->len >= n && mu_buf_reserve(q, n) == 0;
}

bool output_console_note(struct output_stream *s, bool last)
{
    struct output_console *c = s->console;
    struct mu_span prefix = s->prefixed ? mu_buf_span(&s->worker->prefix) : (struct mu_span){0};
    char text[NOTE_MAX];
    int n;

    if (s->skipped == 0) {
        return true;
    }
    n = snprintf(text, sizeof(text), "(%llu lines are not shown here%s%.120s)\n",
                 (unsigned long long)s->skipped, s->path == NULL ? "" : "; all are in ",
                 s->path == NULL ? "" : s->path);
    if (!make_room(s, 1 + prefix.len + (size_t)n, last)) {
        return false;
    }
    if (c->open) {
        mu_buf_put_u8(&c->queue, '\n');
    }
    mu_buf_put(&c->queue, prefix);
    mu_buf_put(&c->queue, mu_span(text, (size_t)n));
    c->open = c->rewritten = false;
    s->skipped = 0;
    return true;
}

/* Ends the line on the console, and notes what stays open. */
static void put_end(struct output_stream *s, enum mu_line_end end, bool last)
{
    struct output_console *c = s->console;

    c->open = c->rewritten = false;
    c->redraw = false;
    switch (end) {
    case MU_LINE_LF:
        mu_buf_put_u8(&c->queue, '\n');
        return;
    case MU_LINE_CRLF:
        mu_buf_put(&c->queue, MU_SPAN_LIT("\r\n"));
        return;
    case MU_LINE_CR:
        mu_buf_put_u8(&c->queue, '\r');
        c->redraw = true;
        break;
    case MU_LINE_CUT:
        if (s->prefixed) {
            mu_buf_put(&c->queue, MARK_END);
            return;
        }
        break;
    case MU_LINE_NONE:
        if (last && s->prefixed) {
            mu_buf_put_u8(&c->queue, '\n');
            return;
        }
        break;
    }
    c->open = true;
    c->open_by = s;
}

bool output_console_put(struct output_stream *s, const struct mu_line *line, bool last)
{
    struct output_console *c = s->console;
    struct mu_span text = mu_span_skip(line->text, line->shown);
    bool own;

    if (!output_console_note(s, last)) {
        return false;
    }
    own = c->open && c->open_by == s;
    if (line->shown > 0 && text.len == 0 && !own) {
        return true; /* another's line has ended it already */
    }
    if (!make_room(s, text.len + s->worker->prefix.len + AROUND_MAX, last)) {
        return false;
    }
    if (c->open && !own) {
        mu_buf_put_u8(&c->queue, '\n');
    }
    if (s->prefixed && (!own || c->redraw)) {
        mu_buf_put(&c->queue, mu_buf_span(&s->worker->prefix));
        if (line->goes_on && line->shown == 0) {
            mu_buf_put(&c->queue, MARK_NEXT);
        }
    }
    mu_buf_put(&c->queue, text);
    put_end(s, line->end, last);
    return true;
}

void output_console_wait(struct output_stream *s)
{
    if (mu_list_empty(&s->waiting)) {
        mu_list_push(&s->console->waiters, &s->waiting);
    }
}

/* Streams that rest are read again, each in its turn; one that finds no room then waits behind the
 * others. */
static void wake_waiters(struct output_console *c)
{
    struct mu_list turn;
    struct mu_list *it;

    mu_list_init(&turn);
    while ((it = mu_list_pop(&c->waiters)) != NULL) {
        mu_list_push(&turn, it);
    }
    while ((it = mu_list_pop(&turn)) != NULL) {
        struct output_stream *s = MU_CONTAINER_OF(it, struct output_stream, waiting);

        if (s->ending) {
            output_stream_finish(s);
        } else if (s->child != NULL) {
            mu_env_child_resume(c->out->env, s->child, s->stream);
        }
    }
}

void output_console_pump(struct output_console *c)
{
    while (c->queue.len > 0) {
        size_t taken = 0;

        c->sink->ops->write(c->sink, mu_buf_span(&c->queue), &taken);
        mu_buf_consume(&c->queue, taken);
        if (taken == 0) {
            break;
        }
    }
    mu_buf_trim(&c->queue, 4096);
}

static bool nothing_waits(const struct mu_output *out)
{
    for (size_t i = 0; i < out->console_count; i++) {
        if (out->consoles[i].queue.len > 0 || !mu_list_empty(&out->consoles[i].waiters)) {
            return false;
        }
    }
    return true;
}

static void on_writable(struct mu_sink *sink)
{
    struct output_console *c = sink->user;
    struct mu_output *out = c->out;

    output_console_pump(c);
    if (c->queue.len <= out->queue_max / 2 && !mu_list_empty(&c->waiters)) {
        wake_waiters(c);
        output_console_pump(c);
    }
    if (out->drained != NULL && nothing_waits(out)) {
        void (*drained)(void *arg) = out->drained;

        out->drained = NULL;
        drained(out->drained_arg);
    }
}

static struct output_console *console_of(struct mu_output *out, enum mu_stream stream)
{
    return &out->consoles[stream == MU_STDERR && out->console_count == 2 ? 1 : 0];
}

void mu_output_say(struct mu_output *out, enum mu_stream stream, struct mu_span text)
{
    struct output_console *c = console_of(out, stream);

    if (mu_buf_reserve(&c->queue, 1 + text.len) != 0) {
        return;
    }
    if (c->open) {
        mu_buf_put_u8(&c->queue, '\n');
    }
    c->open = c->rewritten = false;
    mu_buf_put(&c->queue, text);
    output_console_pump(c);
}

void mu_output_rewrite(struct mu_output *out, enum mu_stream stream, struct mu_span line)
{
    struct output_console *c = console_of(out, stream);

    if (mu_buf_reserve(&c->queue, sizeof(ERASE) + line.len) != 0) {
        return;
    }
    if (c->rewritten) {
        mu_buf_put(&c->queue, MU_SPAN_LIT(ERASE));
    } else if (c->open) {
        mu_buf_put_u8(&c->queue, '\n');
    }
    mu_buf_put(&c->queue, line);
    c->open = c->rewritten = true;
    c->open_by = NULL;
    output_console_pump(c);
}

bool mu_output_flush(struct mu_output *out, void (*drained)(void *arg), void *arg)
{
    for (size_t i = 0; i < out->console_count; i++) {
        output_console_pump(&out->consoles[i]);
    }
    if (nothing_waits(out)) {
        return true;
    }
    out->drained = drained;
    out->drained_arg = arg;
    return false;
}

void output_console_forget(struct output_stream *s)
{
    mu_list_remove(&s->waiting);
    if (s->console != NULL && s->console->open_by == s) {
        s->console->open_by = NULL;
    }
}

int output_consoles_open(struct mu_output *out, struct mu_errmsg *reterr_msg)
{
    static const enum mu_stream streams[] = {MU_STDOUT, MU_STDERR};

    for (size_t i = 0; i < 2; i++) {
        struct mu_sink *sink;
        struct output_console *c = &out->consoles[out->console_count];
        int rc = out->files->ops->console(out->files, streams[i], &sink, reterr_msg);

        if (rc != 0) {
            return rc;
        }
        out->closing[i] = sink;
        if (i == 1 && sink == out->consoles[0].sink) {
            break;
        }
        c->out = out;
        c->sink = sink;
        sink->user = c;
        sink->writable = on_writable;
        mu_buf_init(&c->queue, out->queue_max + MU_OUTPUT_EXTRA_MAX);
        mu_list_init(&c->waiters);
        out->console_count++;
    }
    return 0;
}

void output_consoles_close(struct mu_output *out)
{
    for (size_t i = 0; i < out->console_count; i++) {
        mu_buf_fini(&out->consoles[i].queue);
    }
    for (size_t i = 0; i < 2; i++) {
        if (out->closing[i] != NULL) {
            out->closing[i]->ops->close(out->closing[i]);
        }
    }
}
