/* The requests; json_reply.c has the replies. */
#include "codec/etcd/json.h"

#include <stdio.h>

#include "codec/text/base64.h"

/* A text being written; the first failure sticks, and what was written is removed at the end. */
struct writer {
    struct mu_buf *out;
    size_t from;
    bool comma; /* before the next member */
    int err;
};

static struct writer begin(struct mu_buf *out)
{
    return (struct writer){.out = out, .from = out->len};
}

static int finish(struct writer *w)
{
    if (w->err != 0) {
        w->out->len = w->from;
    }
    return w->err;
}

static void say(struct writer *w, struct mu_span text)
{
    if (w->err == 0) {
        w->err = mu_buf_append(w->out, text);
    }
}

static void say_text(struct writer *w, const char *text)
{
    say(w, mu_span_str(text));
}

static void open_bracket(struct writer *w, const char *bracket)
{
    say_text(w, bracket);
    w->comma = false;
}

static void close_bracket(struct writer *w, const char *bracket)
{
    say_text(w, bracket);
    w->comma = true;
}

static void say_name(struct writer *w, const char *name)
{
    say_text(w, w->comma ? ",\"" : "\"");
    say_text(w, name);
    say_text(w, "\":");
    w->comma = true;
}

static void say_number(struct writer *w, const char *name, int64_t number)
{
    char text[32];

    say_name(w, name);
    (void)snprintf(text, sizeof(text), "\"%lld\"", (long long)number);
    say_text(w, text);
}

static void say_word(struct writer *w, const char *name, const char *word)
{
    say_name(w, name);
    say_text(w, word);
}

static void say_bytes(struct writer *w, const char *name, struct mu_span bytes)
{
    say_name(w, name);
    say_text(w, "\"");
    if (w->err == 0) {
        w->err = mu_base64_encode(w->out, bytes);
    }
    say_text(w, "\"");
}

/* Writes text in quotes. What is not ASCII counts as UTF-8 and is written as it is. */
static void say_quoted(struct writer *w, const char *name, struct mu_span text)
{
    char escape[8];

    say_name(w, name);
    say_text(w, "\"");
    for (size_t i = 0; i < text.len; i++) {
        uint8_t c = text.data[i];

        if (c < 0x20 || c == '"' || c == '\\') {
            (void)snprintf(escape, sizeof(escape), "\\u%04x", c);
            say_text(w, escape);
        } else {
            say(w, mu_span(&text.data[i], 1));
        }
    }
    say_text(w, "\"");
}

/* --- operations ------------------------------------------------------------------------------- */

const char *mu_etcd_op_path(enum mu_etcd_op_kind kind)
{
    switch (kind) {
    case MU_ETCD_RANGE:
        return "/v3/kv/range";
    case MU_ETCD_PUT:
        return "/v3/kv/put";
    case MU_ETCD_DELETE:
        break;
    }
    return "/v3/kv/deleterange";
}

static void say_range(struct writer *w, const struct mu_etcd_op *op)
{
    if (op->limit != 0) {
        say_number(w, "limit", op->limit);
    }
    if (op->revision != 0) {
        say_number(w, "revision", op->revision);
    }
    if (op->by_creation) {
        say_word(w, "sort_order", op->newest_first ? "\"DESCEND\"" : "\"ASCEND\"");
        say_word(w, "sort_target", "\"CREATE\"");
    }
    if (op->create_max != 0) {
        say_number(w, "max_create_revision", op->create_max);
    }
    if (op->keys_only) {
        say_word(w, "keys_only", "true");
    }
    if (op->count_only) {
        say_word(w, "count_only", "true");
    }
}

static void say_op(struct writer *w, const struct mu_etcd_op *op)
{
    open_bracket(w, "{");
    say_bytes(w, "key", op->key);
    if (op->end.len != 0) {
        say_bytes(w, "range_end", op->end);
    }
    switch (op->kind) {
    case MU_ETCD_RANGE:
        say_range(w, op);
        break;
    case MU_ETCD_PUT:
        say_bytes(w, "value", op->value);
        if (op->lease != 0) {
            say_number(w, "lease", op->lease);
        }
        break;
    case MU_ETCD_DELETE:
        break;
    }
    if (op->prev_kv && op->kind != MU_ETCD_RANGE) {
        say_word(w, "prev_kv", "true");
    }
    close_bracket(w, "}");
}

int mu_etcd_encode_op(struct mu_buf *out, const struct mu_etcd_op *op)
{
    struct writer w = begin(out);

    say_op(&w, op);
    return finish(&w);
}

/* --- transactions ----------------------------------------------------------------------------- */

static void say_compare(struct writer *w, const struct mu_etcd_compare *c)
{
    static const char *const results[] = {"\"EQUAL\"", "\"GREATER\"", "\"LESS\"", "\"NOT_EQUAL\""};

    open_bracket(w, w->comma ? ",{" : "{");
    say_bytes(w, "key", c->key);
    say_word(w, "result", results[c->result]);
    switch (c->target) {
    case MU_ETCD_MOD:
        say_word(w, "target", "\"MOD\"");
        say_number(w, "mod_revision", c->number);
        break;
    case MU_ETCD_CREATE:
        say_word(w, "target", "\"CREATE\"");
        say_number(w, "create_revision", c->number);
        break;
    case MU_ETCD_VERSION:
        say_word(w, "target", "\"VERSION\"");
        say_number(w, "version", c->number);
        break;
    case MU_ETCD_VALUE:
        say_word(w, "target", "\"VALUE\"");
        say_bytes(w, "value", c->value);
        break;
    case MU_ETCD_LEASE:
        say_word(w, "target", "\"LEASE\"");
        say_number(w, "lease", c->number);
        break;
    }
    close_bracket(w, "}");
}

static void say_branch(struct writer *w, const char *name, const struct mu_etcd_op *ops,
                       size_t count)
{
    static const char *const names[] = {"", "request_range", "request_put", "request_delete_range"};

    say_name(w, name);
    open_bracket(w, "[");
    for (size_t i = 0; i < count; i++) {
        open_bracket(w, w->comma ? ",{" : "{");
        say_name(w, names[ops[i].kind]);
        say_op(w, &ops[i]);
        close_bracket(w, "}");
    }
    close_bracket(w, "]");
}

int mu_etcd_encode_txn(struct mu_buf *out, const struct mu_etcd_txn *txn)
{
    struct writer w = begin(out);

    open_bracket(&w, "{");
    say_name(&w, "compare");
    open_bracket(&w, "[");
    for (size_t i = 0; i < txn->compare_count; i++) {
        say_compare(&w, &txn->compares[i]);
    }
    close_bracket(&w, "]");
    say_branch(&w, "success", txn->success, txn->success_count);
    say_branch(&w, "failure", txn->failure, txn->failure_count);
    close_bracket(&w, "}");
    return finish(&w);
}

/* --- the rest --------------------------------------------------------------------------------- */

int mu_etcd_encode_watch(struct mu_buf *out, const struct mu_etcd_watch_request *watch)
{
    struct writer w = begin(out);

    open_bracket(&w, "{");
    say_name(&w, "create_request");
    open_bracket(&w, "{");
    say_bytes(&w, "key", watch->key);
    if (watch->end.len != 0) {
        say_bytes(&w, "range_end", watch->end);
    }
    if (watch->start_revision != 0) {
        say_number(&w, "start_revision", watch->start_revision);
    }
    if (watch->prev_kv) {
        say_word(&w, "prev_kv", "true");
    }
    if (watch->no_delete) {
        say_word(&w, "filters", "[\"NODELETE\"]");
    }
    close_bracket(&w, "}");
    close_bracket(&w, "}");
    return finish(&w);
}

int mu_etcd_encode_grant(struct mu_buf *out, int64_t ttl_s, int64_t id)
{
    struct writer w = begin(out);

    open_bracket(&w, "{");
    say_number(&w, "TTL", ttl_s);
    if (id != 0) {
        say_number(&w, "ID", id);
    }
    close_bracket(&w, "}");
    return finish(&w);
}

int mu_etcd_encode_lease(struct mu_buf *out, int64_t id, bool keys)
{
    struct writer w = begin(out);

    open_bracket(&w, "{");
    say_number(&w, "ID", id);
    if (keys) {
        say_word(&w, "keys", "true");
    }
    close_bracket(&w, "}");
    return finish(&w);
}

int mu_etcd_encode_auth(struct mu_buf *out, struct mu_span name, struct mu_span password)
{
    struct writer w = begin(out);

    open_bracket(&w, "{");
    say_quoted(&w, "name", name);
    say_quoted(&w, "password", password);
    close_bracket(&w, "}");
    return finish(&w);
}

int mu_etcd_prefix_end(struct mu_buf *out, struct mu_span prefix)
{
    size_t len = prefix.len;
    int err;

    while (len > 0 && prefix.data[len - 1] == 0xff) {
        len--;
    }
    if (len == 0) {
        return mu_buf_append(out, mu_span("", 1)); /* one zero byte: no end */
    }
    err = mu_buf_append(out, mu_span(prefix.data, len));
    if (err == 0) {
        out->data[out->head + out->len - 1]++;
    }
    return err;
}
