#include "cli/run_output.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/run_writer.h"

#define LINE_BYTES_MAX ((size_t)64 << 10) /* what is longer is shown in pieces */
#define PREFIX_MAX     512

/* One stream of one worker. */
struct stream {
    int fd; /* its log file; -1: none */
    bool rests;
    size_t len; /* of a line that has no end yet */
    size_t cap;
    char *line;
};

struct run_output {
    const struct run_options *o;
    struct run_writer *writer;
    bool own_base;       /* we made it up */
    char base[PATH_MAX]; /* "": no directories */
    char run[PATH_MAX];
    char attempt[PATH_MAX];
    char error_path[PATH_MAX];
    const char *template_text;   /* of prefixes; NULL: [role0]: */
    uint32_t rank_base;          /* of the attempt */
    int filtered[2];             /* files of --duplicate-*-filters; -1: none */
    struct stream (*streams)[2]; /* by local rank: output, errors */
};

/* --- directories ------------------------------------------------------------------------------ */

static bool join_path(char out[PATH_MAX], const char *a, const char *b)
{
    errno = ENAMETOOLONG;
    return snprintf(out, PATH_MAX, "%s%s", a, b) < PATH_MAX;
}

static int make_directories(struct run_output *out)
{
    const char *temporary = getenv("TMPDIR");
    char name[MU_RDZV_RUN_ID_MAX + 1];

    (void)snprintf(name, sizeof(name), "%s", out->o->rdzv.run_id);
    for (char *at = name; *at != '\0'; at++) {
        *at = *at == '/' ? '_' : *at;
    }
    if (out->o->log_dir != NULL) {
        if (!join_path(out->base, out->o->log_dir, "") ||
            (mkdir(out->base, 0777) != 0 && errno != EEXIST)) {
            return cli_fail(CLI_FAILED, "cannot make the directory \"%s\": %s", out->o->log_dir,
                            strerror(errno));
        }
    } else {
        out->own_base = true;
        if (!join_path(out->base, temporary != NULL && temporary[0] != '\0' ? temporary : "/tmp",
                       "/torchelastic_XXXXXX") ||
            mkdtemp(out->base) == NULL) {
            return cli_fail(CLI_FAILED, "cannot make a directory for logs: %s", strerror(errno));
        }
    }
    if (snprintf(out->run, sizeof(out->run), "%s/%s_XXXXXX", out->base, name) >=
            (int)sizeof(out->run) ||
        mkdtemp(out->run) == NULL) {
        return cli_fail(CLI_FAILED, "cannot make a directory for logs in \"%s\": %s", out->base,
                        strerror(errno));
    }
    return 0;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    return type == FTW_DP || type == FTW_D ? rmdir(path) : unlink(path);
}

static int remove_if_empty(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    if (type == FTW_DP) {
        (void)rmdir(path);
    }
    return 0;
}

/* --- files ------------------------------------------------------------------------------------ */

static int open_log(const char *path, int *ret_fd, struct mu_errmsg *reterr_msg)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0) {
        int err = -errno;

        return mu_err(reterr_msg, err, "cannot open \"%s\": %s", path, strerror(-err));
    }
    *ret_fd = fd;
    return 0;
}

static int prepare_worker(struct run_output *out, uint32_t local_rank, struct mu_errmsg *reterr_msg)
{
    static const char *const names[] = {"stdout.log", "stderr.log"};
    unsigned masks = out->o->redirect_masks[local_rank] | out->o->tee_masks[local_rank];
    char path[PATH_MAX + 32];
    int err = 0;

    (void)snprintf(path, sizeof(path), "%s/%" PRIu32, out->attempt, local_rank);
    if (mkdir(path, 0777) != 0) {
        err = -errno;
        return mu_err(reterr_msg, err, "cannot make \"%s\": %s", path, strerror(-err));
    }
    for (unsigned i = 0; err == 0 && i < 2; i++) {
        if ((masks >> i & 1) != 0) {
            (void)snprintf(path, sizeof(path), "%s/%" PRIu32 "/%s", out->attempt, local_rank,
                           names[i]);
            err = open_log(path, &out->streams[local_rank][i].fd, reterr_msg);
        }
    }
    return err;
}

static int prepare_filters(struct run_output *out, struct mu_errmsg *reterr_msg)
{
    static const char *const names[] = {"filtered_stdout.log", "filtered_stderr.log"};
    const struct run_texts *filters[] = {&out->o->stdout_filters, &out->o->stderr_filters};
    char path[PATH_MAX + 32];
    int err = 0;

    for (unsigned i = 0; err == 0 && i < 2; i++) {
        if (filters[i]->count != 0) {
            (void)snprintf(path, sizeof(path), "%s/%s", out->attempt, names[i]);
            err = open_log(path, &out->filtered[i], reterr_msg);
        }
    }
    return err;
}

int run_output_prepare(struct run_output *out, const struct mu_agent_attempt *attempt,
                       struct mu_errmsg *reterr_msg)
{
    int err = 0;

    run_output_gone(out);
    out->rank_base = attempt->ranks.base;
    if (out->base[0] == '\0') {
        return 0;
    }
    if (snprintf(out->attempt, sizeof(out->attempt), "%s/attempt_%" PRIu32, out->run,
                 attempt->restart_count) >= (int)sizeof(out->attempt)) {
        return mu_err(reterr_msg, -ENAMETOOLONG, "the path of the log directory is too long");
    }
    /* A change of members uses the number again. */
    (void)nftw(out->attempt, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    if (mkdir(out->attempt, 0777) != 0) {
        err = -errno;
        return mu_err(reterr_msg, err, "cannot make \"%s\": %s", out->attempt, strerror(-err));
    }
    for (uint32_t i = 0; err == 0 && i < out->o->workers; i++) {
        err = prepare_worker(out, i, reterr_msg);
    }
    return err != 0 ? err : prepare_filters(out, reterr_msg);
}

const char *run_output_error_file(struct run_output *out, uint32_t local_rank)
{
    out->error_path[0] = '\0';
    if (out->base[0] != '\0' &&
        snprintf(out->error_path, sizeof(out->error_path), "%s/%" PRIu32 "/error.json",
                 out->attempt, local_rank) >= (int)sizeof(out->error_path)) {
        out->error_path[0] = '\0';
    }
    return out->error_path;
}

void run_output_read_error_file(struct run_output *out, uint32_t local_rank, struct mu_buf *text)
{
    FILE *f;
    char buf[4096];
    size_t n;

    if (run_output_error_file(out, local_rank)[0] == '\0' ||
        (f = fopen(out->error_path, "re")) == NULL) {
        return;
    }
    while ((n = fread(buf, 1, sizeof(buf), f)) > 0 && mu_buf_append(text, mu_span(buf, n)) == 0) {
    }
    (void)fclose(f);
}

/* --- lines ------------------------------------------------------------------------------------ */

static size_t put_text(char *prefix, size_t n, const char *text, size_t len)
{
    if (len > PREFIX_MAX - n) {
        len = PREFIX_MAX - n;
    }
    memcpy(prefix + n, text, len);
    return n + len;
}

/* "[default0]:", or what TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE makes of it. Returns the length. */
static size_t make_prefix(const struct run_output *out, uint32_t local_rank, char *prefix)
{
    static const char *const names[] = {"${role_name}", "${rank}", "${local_rank}"};
    const char *at =
        out->template_text != NULL ? out->template_text : "[${role_name}${local_rank}]:";
    char numbers[2][16];
    const char *values[] = {out->o->role, numbers[0], numbers[1]};
    size_t n = 0;

    (void)snprintf(numbers[0], sizeof(numbers[0]), "%" PRIu32, out->rank_base + local_rank);
    (void)snprintf(numbers[1], sizeof(numbers[1]), "%" PRIu32, local_rank);
    while (*at != '\0') {
        size_t i = 0;

        while (i < 3 && strncmp(at, names[i], strlen(names[i])) != 0) {
            i++;
        }
        if (i < 3) {
            n = put_text(prefix, n, values[i], strlen(values[i]));
            at += strlen(names[i]);
        } else {
            n = put_text(prefix, n, at++, 1);
        }
    }
    return n;
}

static bool passes_filter(const struct run_texts *filters, const char *line, size_t len)
{
    for (size_t i = 0; i < filters->count; i++) {
        if (memmem(line, len, filters->items[i], strlen(filters->items[i])) != NULL) {
            return true;
        }
    }
    return false;
}

/* One line with its end, or the piece of one. */
static void show_line(struct run_output *out, uint32_t local_rank, unsigned i, const char *line,
                      size_t len)
{
    const struct run_texts *filters = i == 0 ? &out->o->stdout_filters : &out->o->stderr_filters;
    bool teed = (out->o->tee_masks[local_rank] >> i & 1) != 0;
    char prefix[PREFIX_MAX] = "";
    size_t n = teed ? make_prefix(out, local_rank, prefix) : 0;

    if (out->o->shown[local_rank]) {
        run_writer_put(out->writer, i == 0 ? STDOUT_FILENO : STDERR_FILENO, prefix, n, line, len);
    }
    if (teed && out->filtered[i] >= 0 && passes_filter(filters, line, len)) {
        run_writer_put(out->writer, out->filtered[i], prefix, n, line, len);
    }
}

static bool keep_rest(struct stream *s, const char *data, size_t len)
{
    if (s->cap - s->len < len) {
        size_t cap = s->len + len > 256 ? s->len + len : 256;
        char *line = realloc(s->line, cap * 2);

        if (line == NULL) {
            return false;
        }
        s->line = line;
        s->cap = cap * 2;
    }
    memcpy(s->line + s->len, data, len);
    s->len += len;
    return true;
}

static void flush_rest(struct run_output *out, uint32_t local_rank, unsigned i)
{
    struct stream *s = &out->streams[local_rank][i];

    if (s->len != 0) {
        show_line(out, local_rank, i, s->line, s->len);
        s->len = 0;
    }
}

/* Cuts into lines. A carriage return ends one as well: progress bars want to be seen. */
static void show(struct run_output *out, uint32_t local_rank, unsigned i, const char *data,
                 size_t len)
{
    struct stream *s = &out->streams[local_rank][i];

    while (len > 0) {
        size_t n = 0;
        bool ended;

        while (n < len && data[n] != '\n' && data[n] != '\r') {
            n++;
        }
        ended = n < len;
        n += ended;
        if (ended && data[n - 1] == '\r' && n < len && data[n] == '\n') {
            n++;
        }
        if (s->len == 0 && ended) {
            show_line(out, local_rank, i, data, n);
        } else if (!keep_rest(s, data, n)) {
            flush_rest(out, local_rank, i);
            show_line(out, local_rank, i, data, n);
        } else if (ended || s->len >= LINE_BYTES_MAX) {
            flush_rest(out, local_rank, i);
        }
        data += n;
        len -= n;
    }
}

size_t run_output_take(struct run_output *out, uint32_t local_rank, enum mu_stream stream,
                       struct mu_span in)
{
    unsigned i = stream == MU_STDERR;
    struct stream *s = &out->streams[local_rank][i];
    unsigned redirected = out->o->redirect_masks[local_rank] >> i & 1;
    unsigned teed = out->o->tee_masks[local_rank] >> i & 1;

    if (in.len == 0) {
        if (s->len != 0 && keep_rest(s, "\n", 1)) { /* the next line must not go on with this */
            flush_rest(out, local_rank, i);
        }
        return 0;
    }
    if (run_writer_full(out->writer)) {
        s->rests = true;
        return 0;
    }
    if (s->fd >= 0) {
        run_writer_put(out->writer, s->fd, (const char *)in.data, in.len, NULL, 0);
    }
    if (teed != 0 || redirected == 0) {
        show(out, local_rank, i, (const char *)in.data, in.len);
    }
    return in.len;
}

void run_output_resume(struct run_output *out, struct mu_agent_service *agent)
{
    for (uint32_t r = 0; r < out->o->workers; r++) {
        for (unsigned i = 0; i < 2; i++) {
            if (out->streams[r][i].rests) {
                out->streams[r][i].rests = false;
                mu_agent_service_resume(agent, r, i == 0 ? MU_STDOUT : MU_STDERR);
            }
        }
    }
}

void run_output_gone(struct run_output *out)
{
    for (uint32_t r = 0; r < out->o->workers; r++) {
        for (unsigned i = 0; i < 2; i++) {
            struct stream *s = &out->streams[r][i];

            flush_rest(out, r, i);
            if (s->fd >= 0) {
                run_writer_close(out->writer, s->fd);
                s->fd = -1;
            }
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        if (out->filtered[i] >= 0) {
            run_writer_close(out->writer, out->filtered[i]);
            out->filtered[i] = -1;
        }
    }
}

void run_output_say(struct run_output *out, const char *line)
{
    char text[1024];
    int n = snprintf(text, sizeof(text) - 1, "muster: %s", line);
    size_t len = n < (int)sizeof(text) - 1 ? (size_t)n : sizeof(text) - 2;

    text[len++] = '\n';
    run_writer_put(out->writer, STDERR_FILENO, text, len, NULL, 0);
}

void run_output_write(struct run_output *out, const char *text, size_t len)
{
    bool ended = len > 0 && text[len - 1] == '\n';

    run_writer_put(out->writer, STDERR_FILENO, text, len, "\n", ended ? 0 : 1);
}

/* --- the whole -------------------------------------------------------------------------------- */

int run_output_new(const struct run_options *o, void (*drained)(void *context), void *context,
                   struct run_output **ret_output)
{
    struct run_output *out = calloc(1, sizeof(*out));
    int code = 0;

    if (out != NULL) {
        out->streams = calloc(o->workers, sizeof(*out->streams));
        out->writer = run_writer_new(drained, context);
    }
    if (out == NULL || out->streams == NULL || out->writer == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    out->o = o;
    out->template_text = getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    out->filtered[0] = out->filtered[1] = -1;
    for (uint32_t i = 0; i < o->workers; i++) {
        out->streams[i][0].fd = out->streams[i][1].fd = -1;
    }
    if (o->log_dir == NULL || strcmp(o->log_dir, "/dev/null") != 0) {
        code = make_directories(out);
    }
    if (code != 0) {
        run_output_free(out);
        return code;
    }
    *ret_output = out;
    return 0;
}

void run_output_free(struct run_output *out)
{
    run_output_gone(out);
    run_writer_free(out->writer);
    if (out->own_base && out->base[0] != '\0') {
        (void)nftw(out->base, remove_if_empty, 16, FTW_DEPTH | FTW_PHYS);
    }
    for (uint32_t i = 0; i < out->o->workers; i++) {
        free(out->streams[i][0].line);
        free(out->streams[i][1].line);
    }
    free(out->streams);
    free(out);
}
