#include "codec/failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "codec/json.h"
#include "core/alloc.h"
#include "core/utf8.h"

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

/* Six bytes at the most; 0 if the character stays as it is. */
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
    return err == 0 ? mu_failure_put(out, "}") : err;
}

/* --- reading ---------------------------------------------------------------------------------- */

void mu_failure_fini(struct mu_failure *f)
{
    mu_free(f->host);
    mu_free(f->message);
    mu_free(f->traceback);
    mu_free(f->tail);
    *f = (struct mu_failure){0};
}

/* Takes the place of what was there. */
static int take_text(char **to, struct mu_span undecoded)
{
    /* No escape is shorter than what it stands for. */
    size_t cap = undecoded.len + 1;
    char *text = mu_malloc(cap);

    if (text == NULL) {
        return MUSTER_ENOMEM;
    }
    (void)mu_json_decode(undecoded, text, cap);
    mu_free(*to);
    *to = text;
    return 0;
}

static int take_number(const struct mu_json_token *t, int64_t min, int64_t max, int64_t *ret)
{
    int64_t v;

    if (t->type != MU_JSON_NUMBER || !mu_json_int(t->text, &v) || v < min || v > max) {
        return MUSTER_EPROTO;
    }
    *ret = v;
    return 0;
}

static int take_member(struct mu_failure *f, struct mu_span key, const struct mu_json_token *t)
{
    static const char *const names[] = {"rank", "local_rank", "group_rank", "restart_count"};
    uint32_t *const numbers[] = {&f->rank, &f->local_rank, &f->group_rank, &f->restart_count};
    static const char *const text_names[] = {"host", "message", "traceback", "tail"};
    char **const texts[] = {&f->host, &f->message, &f->traceback, &f->tail};
    int64_t v = 0;
    int err = 0;

    for (size_t i = 0; i < 4; i++) {
        if (mu_json_is(key, names[i])) {
            err = take_number(t, 0, UINT32_MAX, &v);
            *numbers[i] = (uint32_t)v;
            return err;
        }
        if (mu_json_is(key, text_names[i])) {
            return t->type == MU_JSON_STRING ? take_text(texts[i], t->text) : MUSTER_EPROTO;
        }
    }
    if (mu_json_is(key, "pid")) {
        err = take_number(t, 0, INT64_MAX, &f->pid);
    } else if (mu_json_is(key, "exit_code")) {
        err = take_number(t, -64, INT32_MAX, &v);
        f->exit_code = (int)v;
    } else if (mu_json_is(key, "round")) {
        err = take_number(t, 0, INT64_MAX, &v);
        f->round = (uint64_t)v;
    } else if (mu_json_is(key, "ticket")) {
        err = take_number(t, 0, INT64_MAX, &v);
        f->ticket = (uint64_t)v;
    } else if (mu_json_is(key, "time")) {
        err = take_number(t, INT64_MIN, INT64_MAX, &f->time_s);
    } else if (mu_json_is(key, "effect")) {
        f->effect = t->type == MU_JSON_TRUE;
    } else if (mu_json_is(key, "error_file")) {
        f->has_error_file = t->type == MU_JSON_TRUE;
    }
    return err;
}

static int fill_texts(struct mu_failure *f)
{
    char **const texts[] = {&f->host, &f->message, &f->traceback, &f->tail};

    for (size_t i = 0; i < 4; i++) {
        if (*texts[i] == NULL) {
            *texts[i] = mu_strndup("", 0);
        }
        if (*texts[i] == NULL) {
            return MUSTER_ENOMEM;
        }
    }
    return 0;
}

int mu_failure_decode(struct mu_span in, struct mu_failure *ret_failure)
{
    struct mu_failure f = {0};
    struct mu_json_token t;
    struct mu_span key = {0};
    struct mu_json j;
    int err;

    if (in.len > MU_FAILURE_BYTES_MAX) {
        return MUSTER_EPROTO;
    }
    mu_json_init(&j, in);
    err = mu_json_next(&j, &t);
    if (err == 0 && t.type != MU_JSON_OBJECT) {
        return MUSTER_EPROTO;
    }
    while (err == 0 && (err = mu_json_next(&j, &t)) == 0) {
        if (t.depth == 1 && t.type == MU_JSON_KEY) {
            key = t.text;
        } else if (t.depth == 1) {
            err = take_member(&f, key, &t);
        }
    }
    err = err == MUSTER_ENOENT ? fill_texts(&f) : err;
    if (err != 0) {
        mu_failure_fini(&f);
        return err;
    }
    *ret_failure = f;
    return 0;
}

/* --- error files ------------------------------------------------------------------------------ */

/* Where a token of an error file stands: the names of the members around it. */
struct place {
    struct mu_span keys[4]; /* by depth, from 1 on */
};

static bool is_at(const struct place *p, unsigned depth, const char *a, const char *b,
                  const char *c)
{
    const char *const names[] = {a, b, c};

    for (unsigned i = 0; i < 3; i++) {
        if (names[i] == NULL) {
            return depth == i;
        }
        if (!mu_json_is(p->keys[i + 1], names[i])) {
            return false;
        }
    }
    return depth == 3;
}

/* Python writes the time as a text; the other shape as a number. Fractions are cut. */
static void take_time(struct mu_failure *f, const struct mu_json_token *t)
{
    struct mu_span digits = t->text;
    int64_t v;

    for (size_t i = 0; i < digits.len; i++) {
        if (digits.data[i] == '.') {
            digits.len = i;
        }
    }
    if ((t->type == MU_JSON_NUMBER || t->type == MU_JSON_STRING) && mu_json_int(digits, &v)) {
        f->time_s = v;
    }
}

static int take_error(struct mu_failure *f, const struct place *p, const struct mu_json_token *t)
{
    if (is_at(p, t->depth, "message", NULL, NULL) ||
        is_at(p, t->depth, "message", "message", NULL)) {
        return t->type == MU_JSON_STRING ? take_text(&f->message, t->text) : 0;
    }
    if (is_at(p, t->depth, "message", "extraInfo", "py_callstack")) {
        return t->type == MU_JSON_STRING ? take_text(&f->traceback, t->text) : 0;
    }
    if (is_at(p, t->depth, "timestamp", NULL, NULL) ||
        is_at(p, t->depth, "message", "extraInfo", "timestamp")) {
        take_time(f, t);
    }
    return 0;
}

int mu_failure_read_error_file(struct mu_failure *f, struct mu_span text)
{
    struct mu_failure got = {.time_s = f->time_s};
    struct place place = {0};
    struct mu_json_token t;
    struct mu_json j;
    int err;

    mu_json_init(&j, text);
    err = mu_json_next(&j, &t);
    if (err == 0 && t.type != MU_JSON_OBJECT) {
        err = MUSTER_EPROTO;
    }
    while (err == 0 && (err = mu_json_next(&j, &t)) == 0) {
        if (t.depth < 1 || t.depth > 3) {
            continue;
        }
        if (t.type == MU_JSON_KEY) {
            place.keys[t.depth] = t.text;
        } else {
            err = take_error(&got, &place, &t);
        }
    }
    err = err == MUSTER_ENOENT ? fill_texts(&got) : err == 0 ? MUSTER_EPROTO : err;
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

/* Where `word`, in small letters, begins for the last time; the length if it is nowhere. */
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

/* Where it was, not what: the names of files and functions say nothing about the reason. */
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
