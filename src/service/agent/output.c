#include "service/agent/output.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/agent/output_internal.h"

#define LINE_MAX_DEFAULT  (32u * 1024u)
#define QUEUE_MAX_DEFAULT (256u * 1024u)
#define FLUSH_MS_DEFAULT  200u
#define PREFIX_MAX        1024u

static const char *const stream_names[2] = {"stdout", "stderr"};

static int no_memory(struct mu_errmsg *msg)
{
    return mu_err(msg, MUSTER_ENOMEM, "out of memory");
}

/* --- the tail --------------------------------------------------------------------------------- */

static void ring_append(struct output_ring *r, struct mu_span s)
{
    if (r->data == NULL) {
        r->data = mu_malloc(MU_OUTPUT_TAIL_MAX);
        if (r->data == NULL) {
            return;
        }
    }
    if (s.len > MU_OUTPUT_TAIL_MAX) {
        s = mu_span_skip(s, s.len - MU_OUTPUT_TAIL_MAX);
    }
    if (r->len + s.len > MU_OUTPUT_TAIL_MAX) {
        size_t drop = r->len + s.len - MU_OUTPUT_TAIL_MAX;

        r->start = (r->start + drop) % MU_OUTPUT_TAIL_MAX;
        r->len -= drop;
    }
    while (s.len > 0) {
        size_t at = (r->start + r->len) % MU_OUTPUT_TAIL_MAX;
        size_t n = MU_OUTPUT_TAIL_MAX - at < s.len ? MU_OUTPUT_TAIL_MAX - at : s.len;

        memcpy(r->data + at, s.data, n);
        r->len += n;
        s = mu_span_skip(s, n);
    }
}

/* Copies the end of what is held, at most `cap` bytes. */
static size_t ring_copy(const struct output_ring *r, uint8_t *buf, size_t cap)
{
    size_t len = r->len < cap ? r->len : cap;
    size_t skip = r->len - len;

    for (size_t done = 0; done < len;) {
        size_t at = (r->start + skip + done) % MU_OUTPUT_TAIL_MAX;
        size_t n = MU_OUTPUT_TAIL_MAX - at < len - done ? MU_OUTPUT_TAIL_MAX - at : len - done;

        memcpy(buf + done, r->data + at, n);
        done += n;
    }
    return len;
}

/* Only the last state of a progress bar is kept, or it would push out all that matters. */
static void keep_line(struct output_stream *s, const struct mu_line *line)
{
    struct output_worker *w = s->worker;

    if (w->redraw_by == s && line->text.len > 0) {
        w->tail.len -= w->redraw < w->tail.len ? w->redraw : w->tail.len;
    } else if (w->redraw_by == s) {
        w->redraw_by = NULL;
        return; /* "100%\r" and then "\n" */
    }
    w->redraw_by = NULL;
    ring_append(&w->tail, line->text);
    if (line->end != MU_LINE_CUT) {
        ring_append(&w->tail, MU_SPAN_LIT("\n"));
    }
    if (line->end == MU_LINE_CR) {
        w->redraw_by = s;
        w->redraw = line->text.len + 1;
    }
}

/* Appends to what `buf` holds of `cap`, at the cost of its front; the new length. */
static size_t append_end(uint8_t *buf, size_t len, size_t cap, struct mu_span s)
{
    s = s.len > cap ? mu_span_skip(s, s.len - cap) : s;
    if (len + s.len > cap) {
        memmove(buf, buf + (len + s.len - cap), cap - s.len);
        len = cap - s.len;
    }
    if (s.len > 0) {
        memcpy(buf + len, s.data, s.len);
    }
    return len + s.len;
}

size_t mu_output_tail(struct mu_output *out, uint32_t local_rank, uint8_t *buf, size_t cap)
{
    struct output_worker *w;
    size_t len = 0;

    if (local_rank >= out->count) {
        return 0;
    }
    w = &out->workers[local_rank];
    cap = cap < MU_OUTPUT_TAIL_MAX ? cap : MU_OUTPUT_TAIL_MAX;
    /* Streams that went straight to a file are read from there. */
    for (int i = 0; i < 2; i++) {
        struct mu_errmsg msg;
        size_t n;

        if (w->streams[i].direct &&
            out->files->ops->read_end(out->files, w->streams[i].path, buf + len,
                                      w->streams[0].direct && w->streams[1].direct ? cap / 2
                                                                                   : cap - len,
                                      &n, &msg) == 0) {
            len += n;
        }
    }
    if (w->tail.len > 0) {
        size_t own = w->tail.len < cap / 2 ? w->tail.len : cap / 2;

        own = len == 0 ? cap : own;
        if (len + own > cap) {
            memmove(buf, buf + (len + own - cap), cap - own);
            len = cap - own;
        }
        len += ring_copy(&w->tail, buf + len, own);
    }
    for (int i = 0; i < 2; i++) {
        struct mu_span part = mu_buf_span(&w->streams[i].lines.part);

        part = mu_span_skip(part, w->streams[i].lines.drop);
        if (part.len > 0) {
            len = append_end(buf, len, cap, part);
            len = append_end(buf, len, cap, MU_SPAN_LIT("\n"));
        }
    }
    return len;
}

/* --- lines ------------------------------------------------------------------------------------ */

static void write_all(struct mu_sink *sink, struct mu_span data)
{
    size_t taken;

    sink->ops->write(sink, data, &taken); /* a file takes all */
}

static void write_file(struct output_stream *s, struct mu_span data)
{
    const struct mu_output *out = s->worker->out;
    bool whole = s->file->error == 0;

    write_all(s->file, data);
    if (whole && s->file->error != 0 && out->lost != NULL) {
        out->lost(out->context, s->path, s->file->error);
    }
}

static void copy_filtered(struct output_stream *s, struct mu_span text)
{
    struct mu_output *out = s->worker->out;
    struct mu_sink *sink = out->filtered[s->stream == MU_STDERR];

    if (sink != NULL && s->prefixed &&
        mu_text_filter_matches(out->filters[s->stream == MU_STDERR], text)) {
        write_all(sink, mu_buf_span(&s->worker->prefix));
        write_all(sink, text);
        write_all(sink, MU_SPAN_LIT("\n"));
    }
}

static void take_line(struct output_stream *s, const struct mu_line *line, bool last)
{
    mu_list_remove(&s->unshown);
    keep_line(s, line);
    copy_filtered(s, line->text);
    if (s->console != NULL && !output_console_put(s, line, last)) {
        s->skipped++;
    }
}

/* A line that has no end yet is shown after a while. */
static void show_later(struct output_stream *s)
{
    struct mu_output *out = s->worker->out;

    if (s->console == NULL || !mu_list_empty(&s->unshown) || s->lines.drop != 0 ||
        s->lines.part.len <= s->lines.shown) {
        return;
    }
    s->show_at = mu_mono_add_ms(mu_env_now(out->env).mono, out->flush_ms);
    if (mu_list_empty(&out->unshown)) {
        mu_env_timer_arm(out->env, &out->timer, s->show_at);
    }
    mu_list_push(&out->unshown, &s->unshown);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_output *out = MU_CONTAINER_OF(timer, struct mu_output, timer);
    mu_mono_t now = mu_env_now(out->env).mono;

    while (!mu_list_empty(&out->unshown)) {
        struct output_stream *s = MU_CONTAINER_OF(out->unshown.next, struct output_stream, unshown);
        struct mu_line line;

        if (!mu_mono_reached(s->show_at, now)) {
            mu_env_timer_arm(out->env, &out->timer, s->show_at);
            return;
        }
        mu_list_remove(&s->unshown);
        /* Without room the part waits for its end; the console has enough to show. */
        if (output_console_has_room(s) && mu_lines_peek(&s->lines, &line)) {
            (void)output_console_put(s, &line, false);
            output_console_pump(s->console);
        }
    }
}

/* Whether the console has no room, and the stream is one that can wait. */
static bool has_to_wait(const struct output_stream *s)
{
    return s->console != NULL && s->file == NULL && !s->worker->exited &&
           !output_console_has_room(s);
}

void output_stream_finish(struct output_stream *s)
{
    struct mu_line line;

    if (has_to_wait(s)) {
        s->ending = true;
        output_console_wait(s);
        return;
    }
    s->ending = false;
    if (mu_lines_end(&s->lines, &line)) {
        take_line(s, &line, true);
    }
}

size_t mu_output_take(struct mu_output *out, uint32_t local_rank, struct mu_child *child,
                      enum mu_stream stream, struct mu_span in)
{
    struct output_stream *s;
    struct mu_span rest = in;
    struct mu_line line;

    MU_ASSERT(local_rank < out->count && (stream == MU_STDOUT || stream == MU_STDERR));
    s = &out->workers[local_rank].streams[stream == MU_STDERR];
    s->child = in.len == 0 ? NULL : child;
    if (in.len == 0) {
        output_stream_finish(s);
    } else if (s->file != NULL) {
        write_file(s, in);
    }
    while (rest.len > 0) {
        if (has_to_wait(s)) {
            output_console_pump(s->console);
            if (has_to_wait(s)) {
                output_console_wait(s);
                break;
            }
        }
        if (!mu_lines_next(&s->lines, &rest, &line)) {
            break;
        }
        take_line(s, &line, false);
    }
    if (s->console != NULL) {
        show_later(s);
        output_console_pump(s->console);
    }
    return in.len - rest.len;
}

void mu_output_exited(struct mu_output *out, uint32_t local_rank)
{
    struct output_worker *w;

    if (local_rank >= out->count) {
        return;
    }
    w = &out->workers[local_rank];
    w->exited = true;
    for (int i = 0; i < 2; i++) {
        struct output_stream *s = &w->streams[i];

        if (mu_list_empty(&s->waiting)) {
            continue;
        }
        mu_list_remove(&s->waiting);
        if (s->ending) {
            output_stream_finish(s);
        } else if (s->child != NULL) {
            mu_env_child_resume(out->env, s->child, s->stream);
        }
    }
}

/* --- attempts --------------------------------------------------------------------------------- */

static char *join(const char *dir, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Makes dir/name in new memory. NULL: there is no memory, or the name is too long. */
static char *join(const char *dir, const char *format, ...)
{
    char name[256];
    char path[MU_OUTPUT_PATH_MAX];
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof(name)) {
        return NULL;
    }
    n = snprintf(path, sizeof(path), "%s/%s", dir, name);
    return n < 0 || (size_t)n >= sizeof(path) ? NULL : mu_strndup(path, (size_t)n);
}

static void close_sink(struct mu_sink **sink)
{
    if (*sink != NULL) {
        (*sink)->ops->close(*sink);
        *sink = NULL;
    }
}

void mu_output_end(struct mu_output *out)
{
    for (size_t i = 0; i < out->count; i++) {
        for (int j = 0; j < 2; j++) {
            struct output_stream *s = &out->workers[i].streams[j];
            struct mu_line line;

            if (s->worker == NULL) {
                continue; /* the attempt did not begin */
            }
            if (mu_lines_end(&s->lines, &line)) {
                take_line(s, &line, true);
            }
            if (s->console != NULL) {
                (void)output_console_note(s, true);
            }
            s->skipped = 0;
            s->ending = false;
            mu_list_remove(&s->unshown);
            output_console_forget(s);
            close_sink(&s->file);
        }
    }
    close_sink(&out->filtered[0]);
    close_sink(&out->filtered[1]);
    for (size_t i = 0; i < out->console_count; i++) {
        output_console_pump(&out->consoles[i]);
    }
}

static void free_workers(struct mu_output *out)
{
    mu_output_end(out);
    for (size_t i = 0; i < out->count; i++) {
        struct output_worker *w = &out->workers[i];

        for (int j = 0; j < 2; j++) {
            if (w->streams[j].worker != NULL) {
                mu_lines_fini(&w->streams[j].lines);
                mu_free(w->streams[j].path);
            }
        }
        mu_buf_fini(&w->prefix);
        mu_free(w->tail.data);
        mu_free(w->error_file);
    }
    mu_free(out->workers);
    out->workers = NULL;
    out->count = 0;
}

/* Sets where a stream goes. */
static int set_stream(struct output_worker *w, int i, uint32_t local_rank, const char *dir,
                      struct mu_errmsg *msg)
{
    struct mu_output *out = w->out;
    struct output_stream *s = &w->streams[i];
    uint8_t bit = i == 0 ? MU_STD_OUT : MU_STD_ERR;
    bool tee = (mu_std_masks_get(out->tees, local_rank) & bit) != 0;
    bool redirected = !tee && (mu_std_masks_get(out->redirects, local_rank) & bit) != 0;

    s->worker = w;
    s->stream = i == 0 ? MU_STDOUT : MU_STDERR;
    s->prefixed = tee;
    mu_list_init(&s->waiting);
    mu_list_init(&s->unshown);
    mu_lines_init(&s->lines, out->line_max);
    if (!redirected && mu_rank_filter_shows(out->shown, local_rank)) {
        s->console = &out->consoles[i < (int)out->console_count ? i : 0];
    }
    if (dir == NULL || (!tee && !redirected)) {
        return 0;
    }
    s->path = join(dir, "%s.log", stream_names[i]);
    if (s->path == NULL) {
        return no_memory(msg);
    }
    s->direct = redirected;
    return redirected ? 0 : out->files->ops->create(out->files, s->path, &s->file, msg);
}

static int set_worker(struct mu_output *out, uint32_t i, uint32_t rank, const char *attempt_dir,
                      struct mu_errmsg *msg)
{
    struct output_worker *w = &out->workers[i];
    char *dir = NULL;
    int rc;

    w->out = out;
    mu_buf_init(&w->prefix, PREFIX_MAX);
    rc = mu_prefix_expand(mu_span_str(out->prefix), mu_span_str(out->role), rank, i, &w->prefix);
    if (rc != 0) {
        return mu_err(msg, rc, "the prefix of rank %lu: %s", (unsigned long)rank,
                      muster_strerror(rc));
    }
    if (attempt_dir != NULL) {
        dir = join(attempt_dir, "%lu", (unsigned long)i);
        w->error_file = dir == NULL ? NULL : join(dir, "error.json");
        rc = w->error_file == NULL ? no_memory(msg)
                                   : out->files->ops->make_dir(out->files, dir, msg);
    }
    for (int j = 0; rc == 0 && j < 2; j++) {
        rc = set_stream(w, j, i, dir, msg);
    }
    mu_free(dir);
    return rc;
}

static int open_filtered(struct mu_output *out, const char *dir, struct mu_errmsg *msg)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < 2; i++) {
        char *path;

        if (out->filters[i]->count == 0) {
            continue;
        }
        path = join(dir, "filtered_%s.log", stream_names[i]);
        rc = path == NULL ? no_memory(msg)
                          : out->files->ops->create(out->files, path, &out->filtered[i], msg);
        mu_free(path);
    }
    return rc;
}

int mu_output_begin(struct mu_output *out, uint32_t attempt, const uint32_t *ranks, size_t count,
                    struct mu_errmsg *reterr_msg)
{
    char *dir = NULL;
    int rc = 0;

    free_workers(out);
    out->workers = mu_calloc(count, sizeof(*out->workers));
    if (out->workers == NULL) {
        return no_memory(reterr_msg);
    }
    out->count = count;
    if (out->run_dir != NULL) {
        dir = join(out->run_dir, "attempt_%lu", (unsigned long)attempt);
        rc = dir == NULL ? no_memory(reterr_msg)
                         : out->files->ops->remove_dir(out->files, dir, reterr_msg);
        if (rc == 0) {
            rc = out->files->ops->make_dir(out->files, dir, reterr_msg);
        }
        if (rc == 0) {
            rc = open_filtered(out, dir, reterr_msg);
        }
    }
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = set_worker(out, (uint32_t)i, ranks[i], dir, reterr_msg);
    }
    mu_free(dir);
    if (rc != 0) {
        free_workers(out);
    }
    return rc;
}

void mu_output_fill(struct mu_output *out, uint32_t local_rank, struct mu_spawn *what)
{
    MU_ASSERT(local_rank < out->count);
    for (int i = 0; i < 2; i++) {
        const struct output_stream *s = &out->workers[local_rank].streams[i];

        what->streams[s->stream] = s->direct ? (struct mu_spawn_stream){MU_SPAWN_FILE, s->path}
                                             : (struct mu_spawn_stream){MU_SPAWN_PIPE, NULL};
    }
}

const char *mu_output_error_file(const struct mu_output *out, uint32_t local_rank)
{
    const char *path = local_rank < out->count ? out->workers[local_rank].error_file : NULL;

    return path == NULL ? "" : path;
}

void mu_output_log_files(const struct mu_output *out, uint32_t local_rank, char *text, size_t cap)
{
    const struct output_stream *streams =
        local_rank < out->count ? out->workers[local_rank].streams : NULL;
    const char *first = streams == NULL ? NULL : streams[0].path;
    const char *second = streams == NULL ? NULL : streams[1].path;
    int n = snprintf(text, cap, "%s%s%s", first == NULL ? "" : first,
                     first == NULL || second == NULL ? "" : ", ", second == NULL ? "" : second);

    if (n < 0 || (size_t)n >= cap) {
        text[0] = '\0';
    }
}

void mu_output_read_error(struct mu_output *out, uint32_t local_rank, struct mu_buf *text)
{
    const char *path = mu_output_error_file(out, local_rank);
    size_t cap = text->max - text->len;
    uint8_t *bytes = path[0] == '\0' ? NULL : mu_malloc(cap);
    struct mu_errmsg msg;
    size_t len;

    if (bytes != NULL && out->files->ops->read_end(out->files, path, bytes, cap, &len, &msg) == 0) {
        (void)mu_buf_append(text, mu_span(bytes, len));
    }
    mu_free(bytes);
}

/* --- life ------------------------------------------------------------------------------------- */

const char *mu_output_run_dir(const struct mu_output *out)
{
    return out->run_dir;
}

/* Makes BASE/RUNID_xxxxxx; a slash in a run id does not make a directory. */
static int make_run_dir(struct mu_output *out, const struct mu_output_config *config,
                        struct mu_errmsg *msg)
{
    char base[MU_OUTPUT_PATH_MAX];
    char path[MU_OUTPUT_PATH_MAX];
    char made[MU_OUTPUT_PATH_MAX];
    size_t start;
    int n;
    int rc = 0;

    if (config->base[0] == '\0') {
        n = snprintf(path, sizeof(path), "%s/torchelastic_",
                     config->temp == NULL ? "/tmp" : config->temp);
        rc = n < 0 || (size_t)n >= sizeof(path)
                 ? mu_err(msg, MUSTER_ELIMIT, "the path of the log directory is too long")
                 : out->files->ops->make_unique_dir(out->files, path, base, sizeof(base), msg);
        if (rc == 0) {
            out->fresh_base = mu_strndup(base, strlen(base));
            rc = out->fresh_base == NULL ? no_memory(msg) : 0;
        }
    } else {
        n = snprintf(base, sizeof(base), "%s", config->base);
        rc = n < 0 || (size_t)n >= sizeof(base)
                 ? mu_err(msg, MUSTER_ELIMIT, "the path of the log directory is too long")
                 : out->files->ops->make_dir(out->files, base, msg);
    }
    if (rc != 0) {
        return rc;
    }
    start = strlen(base) + 1;
    n = snprintf(path, sizeof(path), "%s/%s_", base, config->run_id);
    if (n < 0 || (size_t)n >= sizeof(path)) {
        return mu_err(msg, MUSTER_ELIMIT, "the path of the log directory is too long");
    }
    for (char *p = path + start; *p != '\0'; p++) {
        *p = *p == '/' ? '_' : *p;
    }
    rc = out->files->ops->make_unique_dir(out->files, path, made, sizeof(made), msg);
    if (rc == 0) {
        out->run_dir = mu_strndup(made, strlen(made));
        rc = out->run_dir == NULL ? no_memory(msg) : 0;
    }
    return rc;
}

int mu_output_new(struct mu_env *env, const struct mu_output_config *config, struct mu_output **ret,
                  struct mu_errmsg *reterr_msg)
{
    struct mu_output *out = mu_calloc(1, sizeof(*out));
    const char *prefix = config->prefix == NULL ? MU_PREFIX_TEMPLATE : config->prefix;
    int rc = 0;

    if (out == NULL) {
        return no_memory(reterr_msg);
    }
    out->env = env;
    out->files = config->files;
    out->redirects = config->redirects;
    out->tees = config->tees;
    out->shown = config->shown;
    out->filters[0] = config->filters[0];
    out->filters[1] = config->filters[1];
    out->line_max = config->line_max == 0 ? LINE_MAX_DEFAULT : config->line_max;
    out->queue_max = config->queue_max == 0 ? QUEUE_MAX_DEFAULT : config->queue_max;
    if (out->queue_max < out->line_max + 2 * PREFIX_MAX) {
        out->queue_max = out->line_max + 2 * PREFIX_MAX; /* smaller, and nothing would ever fit */
    }
    out->lost = config->lost;
    out->context = config->context;
    out->flush_ms = config->flush_ms == 0 ? FLUSH_MS_DEFAULT : config->flush_ms;
    mu_list_init(&out->unshown);
    mu_timer_init(&out->timer, on_timer);
    out->role = mu_strndup(config->role, strlen(config->role));
    out->prefix = mu_strndup(prefix, strlen(prefix));
    if (out->role == NULL || out->prefix == NULL) {
        rc = no_memory(reterr_msg);
    }
    if (rc == 0) {
        rc = output_consoles_open(out, reterr_msg);
    }
    if (rc == 0 && config->base != NULL && strcmp(config->base, "/dev/null") != 0) {
        rc = make_run_dir(out, config, reterr_msg);
    }
    if (rc != 0) {
        mu_output_free(out);
        return rc;
    }
    *ret = out;
    return 0;
}

void mu_output_free(struct mu_output *out)
{
    if (out == NULL) {
        return;
    }
    free_workers(out);
    mu_env_timer_arm(out->env, &out->timer, MU_MONO_NEVER);
    output_consoles_close(out);
    if (out->fresh_base != NULL) {
        out->files->ops->prune_dir(out->files, out->fresh_base);
    }
    mu_free(out->fresh_base);
    mu_free(out->role);
    mu_free(out->prefix);
    mu_free(out->run_dir);
    mu_free(out);
}
