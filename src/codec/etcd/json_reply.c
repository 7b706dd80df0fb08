/*
 * Replies. Members are recognised by their names, whichever call they answer: no two calls give one
 * name two meanings. Room for everything is reserved before anything is read: a text has no more
 * keys than braces, and the keys have no more bytes than the text.
 */
#include <string.h>

#include "codec/etcd/json.h"
#include "codec/text/json_view.h"
#include "core/alloc.h"

void mu_etcd_reply_init(struct mu_etcd_reply *r)
{
    *r = (struct mu_etcd_reply){0};
    mu_buf_init(&r->bytes, SIZE_MAX / 2);
}

static void clear(struct mu_etcd_reply *r)
{
    struct mu_etcd_reply empty = {.bytes = r->bytes, .kvs = r->kvs, .kv_cap = r->kv_cap};

    mu_free(r->results);
    mu_free(r->events);
    mu_buf_reset(&empty.bytes);
    *r = empty;
}

void mu_etcd_reply_fini(struct mu_etcd_reply *r)
{
    clear(r);
    mu_buf_fini(&r->bytes);
    mu_free(r->kvs);
    r->kvs = NULL;
    r->kv_cap = 0;
}

/* --- values ----------------------------------------------------------------------------------- */

static int read_int(struct mu_span value, int64_t *ret)
{
    return mu_jv_int(value, ret) ? 0 : MUSTER_EPROTO;
}

static int read_text(struct mu_etcd_reply *r, struct mu_span value, struct mu_span *ret)
{
    return mu_jv_string(value, &r->bytes, ret) ? 0 : MUSTER_EPROTO;
}

static bool named(struct mu_span name, const char *text)
{
    return mu_span_eq(name, mu_span_str(text));
}

static int read_kv(struct mu_etcd_reply *r, struct mu_span object, struct mu_etcd_kv *ret)
{
    const struct mu_jv_field fields[] = {
        {"key", MU_JV_BASE64, &ret->key},
        {"value", MU_JV_BASE64, &ret->value},
        {"mod_revision", MU_JV_INT, &ret->mod_revision},
        {"create_revision", MU_JV_INT, &ret->create_revision},
        {"version", MU_JV_INT, &ret->version},
        {"lease", MU_JV_INT, &ret->lease},
    };

    *ret = (struct mu_etcd_kv){0};
    return mu_jv_read_all(object, fields, sizeof(fields) / sizeof(fields[0]), &r->bytes);
}

static size_t count_elements(struct mu_span array)
{
    struct mu_jv_walk w = mu_jv_walk(array);
    struct mu_span value;
    size_t count = 0;

    while (mu_jv_next(&w, NULL, &value)) {
        count++;
    }
    return count;
}

static bool is_array(struct mu_span value)
{
    return value.len > 0 && value.data[0] == '[';
}

/* The keys follow those that were read before. */
static int read_kvs(struct mu_etcd_reply *r, struct mu_span array, struct mu_etcd_result *result)
{
    struct mu_jv_walk w = mu_jv_walk(array);
    struct mu_span value;
    int err = is_array(array) && result->kv_count == 0 ? 0 : MUSTER_EPROTO;

    result->kvs = r->kvs + r->kv_count;
    while (err == 0 && mu_jv_next(&w, NULL, &value)) {
        if (r->kv_count == r->kv_cap) {
            return MUSTER_EPROTO; /* more keys than braces: these are not objects */
        }
        err = read_kv(r, value, &r->kvs[r->kv_count]);
        if (err == 0) {
            r->kv_count++;
            result->kv_count++;
        }
    }
    return err;
}

/* --- results ---------------------------------------------------------------------------------- */

/* Reads a member of the reply to a range, put or delete; false: it is not one. */
static bool read_result_member(struct mu_etcd_reply *r, struct mu_etcd_result *result,
                               struct mu_span name, struct mu_span value, int *ret_err)
{
    if (named(name, "kvs") || named(name, "prev_kvs")) {
        *ret_err = read_kvs(r, value, result);
    } else if (named(name, "prev_kv")) {
        *ret_err = r->kv_count < r->kv_cap && result->kv_count == 0 ? 0 : MUSTER_EPROTO;
        result->kvs = r->kvs + r->kv_count;
        if (*ret_err == 0) {
            *ret_err = read_kv(r, value, result->kvs);
            r->kv_count++;
            result->kv_count = 1;
        }
    } else if (named(name, "count")) {
        *ret_err = read_int(value, &result->count);
    } else if (named(name, "deleted")) {
        *ret_err = read_int(value, &result->deleted);
    } else if (named(name, "more")) {
        result->more = mu_jv_is_true(value);
    } else {
        return false;
    }
    return true;
}

static int read_result(struct mu_etcd_reply *r, struct mu_span object, struct mu_etcd_result *ret)
{
    struct mu_jv_walk w = mu_jv_walk(object);
    struct mu_span name;
    struct mu_span body;
    int err = 0;

    if (!w.object || !mu_jv_next(&w, &name, &body)) {
        return MUSTER_EPROTO;
    }
    if (named(name, "response_range")) {
        ret->kind = MU_ETCD_RANGE;
    } else if (named(name, "response_put")) {
        ret->kind = MU_ETCD_PUT;
    } else if (named(name, "response_delete_range")) {
        ret->kind = MU_ETCD_DELETE;
    } else {
        return MUSTER_EPROTO;
    }
    w = mu_jv_walk(body);
    while (err == 0 && w.object && mu_jv_next(&w, &name, &body)) {
        (void)read_result_member(r, ret, name, body, &err);
    }
    return err;
}

static int read_responses(struct mu_etcd_reply *r, struct mu_span array)
{
    struct mu_jv_walk w = mu_jv_walk(array);
    size_t count = count_elements(array);
    struct mu_span value;
    int err = is_array(array) ? 0 : MUSTER_EPROTO;

    mu_free(r->results);
    r->result_count = 0;
    r->results = mu_calloc(count + 1, sizeof(*r->results));
    if (r->results == NULL) {
        return MUSTER_ENOMEM;
    }
    while (err == 0 && mu_jv_next(&w, NULL, &value)) {
        err = read_result(r, value, &r->results[r->result_count]);
        r->result_count++;
    }
    return err;
}

/* --- events ----------------------------------------------------------------------------------- */

static int read_event(struct mu_etcd_reply *r, struct mu_span object, struct mu_etcd_event *ret)
{
    struct mu_jv_walk w = mu_jv_walk(object);
    struct mu_span name;
    struct mu_span value;
    int err = w.object ? 0 : MUSTER_EPROTO;

    while (err == 0 && mu_jv_next(&w, &name, &value)) {
        if (named(name, "type")) {
            ret->deleted = mu_span_eq(value, MU_SPAN_LIT("\"DELETE\""));
        } else if (named(name, "kv")) {
            err = read_kv(r, value, &ret->kv);
        } else if (named(name, "prev_kv")) {
            err = read_kv(r, value, &ret->prev);
            ret->has_prev = true;
        }
    }
    return err;
}

static int read_events(struct mu_etcd_reply *r, struct mu_span array)
{
    struct mu_jv_walk w = mu_jv_walk(array);
    size_t count = count_elements(array);
    struct mu_span value;
    int err = is_array(array) ? 0 : MUSTER_EPROTO;

    mu_free(r->events);
    r->event_count = 0;
    r->events = mu_calloc(count + 1, sizeof(*r->events));
    if (r->events == NULL) {
        return MUSTER_ENOMEM;
    }
    while (err == 0 && mu_jv_next(&w, NULL, &value)) {
        err = read_event(r, value, &r->events[r->event_count]);
        r->event_count++;
    }
    return err;
}

/* --- the whole -------------------------------------------------------------------------------- */

/* A refusal is {"error": text, "code": n}, or in a stream {"error": {"grpc_code": n, ...}}, which
 * 3.6 spells {"error": {"code": n, ...}}. */
static int read_error(struct mu_etcd_reply *r, struct mu_span value)
{
    struct mu_span part;
    int err = 0;

    r->is_error = true;
    if (!mu_jv_is_object(value)) {
        return read_text(r, value, &r->message);
    }
    part = mu_jv_member(value, "grpc_code");
    part = part.len != 0 ? part : mu_jv_member(value, "code");
    if (part.len != 0) {
        err = read_int(part, &r->code);
    }
    part = mu_jv_member(value, "message");
    if (err == 0 && part.len != 0) {
        err = read_text(r, part, &r->message);
    }
    return err;
}

/* Reads a member that is only a number, a flag or a text. 1: it was one; 0: it is not. */
static int read_simple(struct mu_etcd_reply *r, struct mu_span name, struct mu_span value)
{
    const struct mu_jv_field fields[] = {
        {"ID", MU_JV_INT, &r->lease_id},
        {"TTL", MU_JV_INT, &r->ttl_s},
        {"grantedTTL", MU_JV_INT, &r->granted_s},
        {"compact_revision", MU_JV_INT, &r->compact_revision},
        {"code", MU_JV_INT, &r->code},
        {"succeeded", MU_JV_TRUE, &r->succeeded},
        {"created", MU_JV_TRUE, &r->created},
        {"canceled", MU_JV_TRUE, &r->canceled},
        {"token", MU_JV_TEXT, &r->token},
        {"version", MU_JV_TEXT, &r->version},
        {"etcdserver", MU_JV_TEXT, &r->version},
        {"message", MU_JV_TEXT, &r->message},
        {"cancel_reason", MU_JV_TEXT, &r->message},
    };

    return mu_jv_read(fields, sizeof(fields) / sizeof(fields[0]), name, value, &r->bytes);
}

static int read_member(struct mu_etcd_reply *r, struct mu_span name, struct mu_span value)
{
    int err = read_simple(r, name, value);

    if (err != 0) {
        return err < 0 ? err : 0;
    }
    if (named(name, "header")) {
        struct mu_span revision = mu_jv_member(value, "revision");

        return revision.len == 0 ? 0 : read_int(revision, &r->revision);
    }
    if (named(name, "responses")) {
        return read_responses(r, value);
    }
    if (named(name, "events")) {
        return read_events(r, value);
    }
    if (named(name, "error")) {
        return read_error(r, value);
    }
    if (named(name, "keys")) {
        r->lease_keys = count_elements(value);
        return 0;
    }
    return read_result_member(r, &r->results[0], name, value, &err) ? err : 0;
}

static int make_room(struct mu_etcd_reply *r, struct mu_span text)
{
    size_t braces = 0;
    int err = mu_buf_reserve(&r->bytes, text.len * 2 + 1);

    if (err != 0) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < text.len; i++) {
        braces += text.data[i] == '{' ? 1 : 0;
    }
    if (braces > r->kv_cap) {
        struct mu_etcd_kv *kvs = mu_realloc(r->kvs, braces * sizeof(*kvs));

        if (kvs == NULL) {
            return MUSTER_ENOMEM;
        }
        r->kvs = kvs;
        r->kv_cap = braces;
    }
    r->results = mu_calloc(1, sizeof(*r->results));
    r->result_count = 1;
    return r->results == NULL ? MUSTER_ENOMEM : 0;
}

int mu_etcd_reply_decode(struct mu_etcd_reply *r, struct mu_span text)
{
    struct mu_jv_walk w;
    struct mu_span name;
    struct mu_span value;
    struct mu_span result;
    bool txn = false;
    int err;

    clear(r);
    if (text.len > SIZE_MAX / 256 || !mu_jv_valid(text)) {
        return MUSTER_EPROTO;
    }
    value = mu_jv_root(text);
    result = mu_jv_member(value, "result");
    value = mu_jv_is_object(result) ? result : value;
    w = mu_jv_walk(value);
    err = w.object ? make_room(r, text) : MUSTER_EPROTO;
    while (err == 0 && mu_jv_next(&w, &name, &value)) {
        /* After the results of a transaction, no member is a result itself. */
        txn = txn || named(name, "responses");
        if (txn && (named(name, "kvs") || named(name, "prev_kvs") || named(name, "prev_kv"))) {
            err = MUSTER_EPROTO;
        } else if (!(txn &&
                     (named(name, "count") || named(name, "deleted") || named(name, "more")))) {
            err = read_member(r, name, value);
        }
    }
    if (err != 0) {
        clear(r);
    }
    return err;
}
