#include "codec/agent/failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "codec/text/json_string.h"
#include "codec/text/json_view.h"
#include "core/alloc.h"
#include "core/utf8.h"

#define TEXTS 6

/* Its texts, and their names in JSON, in the same order. */
struct texts {
    char **at[TEXTS];
};

static const char *const text_names[TEXTS] = {"host", "message", "traceback",
                                              "tail", "cause",   "logs"};

static struct texts texts_of(struct mu_failure *f)
{
    return (struct texts){{&f->host, &f->message, &f->traceback, &f->tail, &f->cause, &f->logs}};
}

/* --- writing ---------------------------------------------------------------------------------- */

int mu_failure_put(struct mu_buf *out, const char *format, ...)
{
    char text[512];
    va_list args;
    int len;

    va_start(args, format);
    len = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (len < 0 || (size_t)len >= sizeof(text)) {
        return MUSTER_ELIMIT;
    }
    return mu_buf_append(out, mu_span(text, (size_t)len));
}

/* At most six bytes; 0 if the character stays as it is. */
static size_t escape(const uint8_t *p, size_t len, char out[8])
{
    static const char plain[] = "\"\\\n\r\t\b\f";
    static const char letters[] = "\"\\nrtbf";
    const char *at = p[0] == 0 ? NULL : strchr(plain, p[0]);

    if (at != NULL) {
        out[0] = '\\';
        out[1] = letters[at - plain];
        return 2;
    }
    if (p[0] < 0x20 || p[0] == 0x7f) {
        return (size_t)snprintf(out, 8, "\\u%04x", p[0]);
    }
    return mu_utf8_len(mu_span(p, len)) == 0 ? (size_t)snprintf(out, 8, "\\ufffd") : 0;
}

int mu_failure_put_text(struct mu_buf *out, struct mu_span text)
{
    size_t begin = 0;
    size_t at = 0;
    int err = mu_failure_put(out, "\"");

    while (err == 0 && at < text.len) {
        char escaped[8];
        size_t len = escape(text.data + at, text.len - at, escaped);

        if (len == 0) {
            at += mu_utf8_len(mu_span_skip(text, at));
            continue;
        }
        err = mu_buf_append(out, mu_span(text.data + begin, at - begin));
        if (err == 0) {
            err = mu_buf_append(out, mu_span(escaped, len));
        }
        at += 1;
        begin = at;
    }
    if (err == 0 && at != begin) {
        err = mu_buf_append(out, mu_span(text.data + begin, at - begin));
    }
    return err == 0 ? mu_failure_put(out, "\"") : err;
}

/* The last or the first bytes of a text, in whole characters. */
static struct mu_span cut(const char *text, size_t max, bool keep_end)
{
    struct mu_span s = text == NULL ? (struct mu_span){0} : mu_span(text, strlen(text));

    if (s.len <= max) {
        return s;
    }
    if (keep_end) {
        s = mu_span(s.data + (s.len - max), max);
        while (s.len > 0 && (s.data[0] & 0xc0) == 0x80) {
            s = mu_span(s.data + 1, s.len - 1);
        }
        return s;
    }
    s.len = max;
    while (s.len > 0 && (s.data[s.len] & 0xc0) == 0x80) {
        s.len -= 1;
    }
    return s;
}

static int put_member(struct mu_buf *out, const char *name, struct mu_span text)
{
    int err = mu_failure_put(out, ", \"%s\": ", name);

    return err == 0 ? mu_failure_put_text(out, text) : err;
}

int mu_failure_encode(struct mu_buf *out, const struct mu_failure *f)
{
    int err = mu_failure_put(
        out,
        "{\"rank\": %u, \"local_rank\": %u, \"group_rank\": %u, \"pid\": %lld, "
        "\"exit_code\": %d, \"round\": %llu, \"restart_count\": %u, \"ticket\": %llu, "
        "\"time\": %lld, \"effect\": %s, \"error_file\": %s",
        f->rank, f->local_rank, f->group_rank, (long long)f->pid, f->exit_code,
        (unsigned long long)f->round, f->restart_count, (unsigned long long)f->ticket,
        (long long)f->time_s, f->effect ? "true" : "false", f->has_error_file ? "true" : "false");

    if (err == 0) {
        err = put_member(out, "host", cut(f->host, MU_FAILURE_HOST_MAX, false));
    }
    if (err == 0) {
        err = put_member(out, "message", cut(f->message, MU_FAILURE_MESSAGE_MAX, false));
    }
    if (err == 0) {
        err = put_member(out, "traceback", cut(f->traceback, MU_FAILURE_TRACEBACK_MAX, true));
    }
    if (err == 0) {
        err = put_member(out, "tail", cut(f->tail, MU_FAILURE_TAIL_MAX, true));
    }
    if (err == 0) {
        err = put_member(out, "cause", cut(f->cause, MU_FAILURE_CAUSE_MAX, false));
    }
    if (err == 0) {
        err = put_member(out, "logs", cut(f->logs, MU_FAILURE_LOGS_MAX, false));
    }
    return err == 0 ? mu_failure_put(out, "}") : err;
}

/* The last lines of a text, without the line end of the last one. */
static struct mu_span last_lines(const char *text)
{
    struct mu_span s = cut(text, MU_FAILURE_LINES_BYTES, true);
    size_t lines = 0;
    size_t begin;

    while (s.len > 0 && s.data[s.len - 1] == '\n') {
        s.len -= 1;
    }
    for (begin = s.len; begin > 0; begin--) {
        lines += s.data[begin - 1] == '\n';
        if (lines == MU_FAILURE_LINES) {
            break;
        }
    }
    return mu_span_skip(s, begin);
}

int mu_failure_brief(struct mu_buf *out, const struct mu_failure *f)
{
    const char *signal = mu_signal_name(-f->exit_code);
    bool raised = f->traceback != NULL && f->traceback[0] != '\0';
    int err = mu_failure_put(
        out,
        "{\"rank\": %u, \"local_rank\": %u, \"exit_code\": %d, \"round\": %llu, "
        "\"restart_count\": %u",
        f->rank, f->local_rank, f->exit_code, (unsigned long long)f->round, f->restart_count);

    if (err == 0 && signal != NULL) {
        err = put_member(out, "signal", mu_span_str(signal));
    }
    if (err == 0) {
        err = put_member(out, "host", cut(f->host, MU_FAILURE_HOST_MAX, false));
    }
    if (err == 0) {
        err = put_member(out, "cause", cut(f->cause, MU_FAILURE_CAUSE_MAX, false));
    }
    if (err == 0) {
        err = put_member(out, "message", cut(f->message, MU_FAILURE_LINES_BYTES, false));
    }
    if (err == 0) {
        err = put_member(out, "logs", cut(f->logs, MU_FAILURE_LOGS_MAX, false));
    }
    if (err == 0) {
        err = put_member(out, "last_lines", last_lines(raised ? f->traceback : f->tail));
    }
    return err == 0 ? mu_failure_put(out, "}") : err;
}

/* --- reading ---------------------------------------------------------------------------------- */

void mu_failure_fini(struct mu_failure *f)
{
    struct texts texts = texts_of(f);

    for (size_t i = 0; i < TEXTS; i++) {
        mu_free(*texts.at[i]);
    }
    *f = (struct mu_failure){0};
}

/* Replaces the text that was there. */
static int take_text(char **to, struct mu_span string)
{
    /* An escape is never shorter than what it stands for. */
    size_t cap = string.len - 1;
    char *text = mu_malloc(cap);

    if (text == NULL) {
        return MUSTER_ENOMEM;
    }
    (void)mu_json_decode(string, text, cap);
    mu_free(*to);
    *to = text;
    return 0;
}

static int take_number(struct mu_span value, int64_t min, int64_t max, int64_t *ret)
{
    int64_t v;

    if (mu_jv_is_string(value) || !mu_jv_int(value, &v) || v < min || v > max) {
        return MUSTER_EPROTO;
    }
    *ret = v;
    return 0;
}

static bool is_named(struct mu_span name, const char *text)
{
    return mu_span_eq(name, mu_span_str(text));
}

static int take_member(struct mu_failure *f, struct mu_span name, struct mu_span value)
{
    static const char *const names[] = {"rank", "local_rank", "group_rank", "restart_count"};
    uint32_t *const numbers[] = {&f->rank, &f->local_rank, &f->group_rank, &f->restart_count};
    struct texts texts = texts_of(f);
    int64_t v = 0;
    int err = 0;

    for (size_t i = 0; i < 4; i++) {
        if (is_named(name, names[i])) {
            err = take_number(value, 0, UINT32_MAX, &v);
            *numbers[i] = (uint32_t)v;
            return err;
        }
    }
    for (size_t i = 0; i < TEXTS; i++) {
        if (is_named(name, text_names[i])) {
            return mu_jv_is_string(value) ? take_text(texts.at[i], value) : MUSTER_EPROTO;
        }
    }
    if (is_named(name, "pid")) {
        err = take_number(value, 0, INT64_MAX, &f->pid);
    } else if (is_named(name, "exit_code")) {
        err = take_number(value, -64, INT32_MAX, &v);
        f->exit_code = (int)v;
    } else if (is_named(name, "round")) {
        err = take_number(value, 0, INT64_MAX, &v);
        f->round = (uint64_t)v;
    } else if (is_named(name, "ticket")) {
        err = take_number(value, 0, INT64_MAX, &v);
        f->ticket = (uint64_t)v;
    } else if (is_named(name, "time")) {
        err = take_number(value, INT64_MIN, INT64_MAX, &f->time_s);
    } else if (is_named(name, "effect")) {
        f->effect = mu_jv_is_true(value);
    } else if (is_named(name, "error_file")) {
        f->has_error_file = mu_jv_is_true(value);
    }
    return err;
}

static int fill_texts(struct mu_failure *f)
{
    struct texts texts = texts_of(f);

    for (size_t i = 0; i < TEXTS; i++) {
        if (*texts.at[i] == NULL) {
            *texts.at[i] = mu_strndup("", 0);
        }
        if (*texts.at[i] == NULL) {
            return MUSTER_ENOMEM;
        }
    }
    return 0;
}

int mu_failure_decode(struct mu_span in, struct mu_failure *ret_failure)
{
    struct mu_failure f = {0};
    struct mu_jv_walk w;
    struct mu_span name;
    struct mu_span value;
    int err = 0;

    if (in.len > MU_FAILURE_BYTES_MAX || !mu_jv_valid(in)) {
        return MUSTER_EPROTO;
    }
    w = mu_jv_walk(mu_jv_root(in));
    if (!w.object) {
        return MUSTER_EPROTO;
    }
    while (err == 0 && mu_jv_next(&w, &name, &value)) {
        err = take_member(&f, name, value);
    }
    err = err == 0 ? fill_texts(&f) : err;
    if (err != 0) {
        mu_failure_fini(&f);
        return err;
    }
    *ret_failure = f;
    return 0;
}

/* --- error files ------------------------------------------------------------------------------ */

/* Python writes the time as a text, the other shape as a number. Fractions are cut off. */
static void take_time(struct mu_failure *f, struct mu_span value)
{
    struct mu_span digits = mu_jv_is_string(value) ? mu_span(value.data + 1, value.len - 2) : value;
    int64_t v;

    for (size_t i = 0; i < digits.len; i++) {
        if (digits.data[i] == '.') {
            digits.len = i;
        }
    }
    if (mu_jv_int(digits, &v)) {
        f->time_s = v;
    }
}

static int take_if_text(char **to, struct mu_span value)
{
    return mu_jv_is_string(value) ? take_text(to, value) : 0;
}

static int take_extra(struct mu_failure *f, struct mu_span extra)
{
    struct mu_jv_walk w = mu_jv_walk(extra);
    struct mu_span name;
    struct mu_span value;
    int err = 0;

    while (err == 0 && w.object && mu_jv_next(&w, &name, &value)) {
        if (is_named(name, "py_callstack")) {
            err = take_if_text(&f->traceback, value);
        } else if (is_named(name, "timestamp")) {
            take_time(f, value);
        }
    }
    return err;
}

/* The text itself, or an object with the text and more. */
static int take_message(struct mu_failure *f, struct mu_span message)
{
    struct mu_jv_walk w = mu_jv_walk(message);
    struct mu_span name;
    struct mu_span value;
    int err = take_if_text(&f->message, message);

    while (err == 0 && w.object && mu_jv_next(&w, &name, &value)) {
        if (is_named(name, "message")) {
            err = take_if_text(&f->message, value);
        } else if (is_named(name, "extraInfo")) {
            err = take_extra(f, value);
        }
    }
    return err;
}

int mu_failure_read_error_file(struct mu_failure *f, struct mu_span text)
{
    struct mu_failure got = {.time_s = f->time_s};
    struct mu_jv_walk w;
    struct mu_span name;
    struct mu_span value;
    int err = 0;

    if (!mu_jv_valid(text)) {
        return MUSTER_EPROTO;
    }
    w = mu_jv_walk(mu_jv_root(text));
    if (!w.object) {
        return MUSTER_EPROTO;
    }
    while (err == 0 && mu_jv_next(&w, &name, &value)) {
        if (is_named(name, "message")) {
            err = take_message(&got, value);
        } else if (is_named(name, "timestamp")) {
            take_time(&got, value);
        }
    }
    err = err == 0 ? fill_texts(&got) : err;
    if (err == 0) {
        mu_free(f->message);
        mu_free(f->traceback);
        f->message = got.message;
        f->traceback = got.traceback;
        f->time_s = got.time_s;
        f->has_error_file = true;
        got.message = NULL;
        got.traceback = NULL;
    }
    mu_failure_fini(&got);
    return err;
}

/* --- cause and effect ------------------------------------------------------------------------- */

uint64_t mu_failure_order(uint64_t ticket, bool effect)
{
    return effect ? ticket | UINT64_C(1) << 63 : ticket;
}

static char lower(uint8_t c)
{
    return (char)(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
}

/* Where `word`, in lower case, begins for the last time; the text's length if it does not occur. */
static size_t find_last(struct mu_span text, const char *word)
{
    size_t len = strlen(word);

    for (size_t at = text.len < len ? 0 : text.len - len + 1; at > 0; at--) {
        size_t i = 0;

        while (i < len && lower(text.data[at - 1 + i]) == word[i]) {
            i++;
        }
        if (i == len) {
            return at - 1;
        }
    }
    return text.len;
}

/* A frame says where it failed, not why: names of files and functions do not tell the reason. */
static bool is_frame(struct mu_span line)
{
    static const char *const begins[] = {"  File ", "    ", "frame #"};

    for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++) {
        size_t len = strlen(begins[i]);

        if (line.len >= len && memcmp(line.data, begins[i], len) == 0) {
            return true;
        }
    }
    return false;
}

static bool speaks_of_peers(struct mu_span line)
{
    static const char *const words[] = {
        "connection", "broken pipe",    "by peer", "timed out", "timeout",
        "socket",     "unexpected eof", "nccl",    "gloo",
    };

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (find_last(line, words[i]) != line.len) {
            return true;
        }
    }
    return false;
}

bool mu_failure_is_effect(struct mu_span tail)
{
    static const char *const begins[] = {"traceback (most recent call last)", "terminate called"};
    size_t begin = tail.len;

    for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++) {
        size_t at = find_last(tail, begins[i]);

        begin = at < begin ? at : begin;
    }
    tail = mu_span_skip(tail, begin);
    while (tail.len != 0) {
        const uint8_t *newline = memchr(tail.data, '\n', tail.len);
        size_t len = newline == NULL ? tail.len : (size_t)(newline - tail.data) + 1;
        struct mu_span line = mu_span(tail.data, len);

        if (!is_frame(line) && speaks_of_peers(line)) {
            return true;
        }
        tail = mu_span_skip(tail, len);
    }
    return false;
}

/* --- names ------------------------------------------------------------------------------------ */

const char *mu_signal_name(int number)
{
    static const char *const names[] = {
        NULL,        "SIGHUP",  "SIGINT",    "SIGQUIT", "SIGILL",   "SIGTRAP", "SIGABRT", "SIGBUS",
        "SIGFPE",    "SIGKILL", "SIGUSR1",   "SIGSEGV", "SIGUSR2",  "SIGPIPE", "SIGALRM", "SIGTERM",
        "SIGSTKFLT", "SIGCHLD", "SIGCONT",   "SIGSTOP", "SIGTSTP",  "SIGTTIN", "SIGTTOU", "SIGURG",
        "SIGXCPU",   "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO",   "SIGPWR",  "SIGSYS",
    };

    return number > 0 && (size_t)number < sizeof(names) / sizeof(names[0]) ? names[number] : NULL;
}
