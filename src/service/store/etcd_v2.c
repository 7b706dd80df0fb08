/*
 * PyTorch's EtcdStore, on etcd's v2 API: the key and the value of each in base64, as a file of a
 * directory. The verbs that PyTorch lacks there (compare_set, delete, lists, append) are here as
 * far as v2 allows.
 *
 * Base64 has slashes, which v2 takes for directories: PyTorch writes such keys and never finds them
 * again, because it looks into one directory only. We ask for each key by its own path, and find it
 * in any directory.
 *
 * v2 has no transactions to make a write that is in doubt harmless: such a write ends with
 * MUSTER_ECONN, and the text says so.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "codec/text/base64.h"
#include "codec/etcd/v2.h"
#include "core/alloc.h"
#include "service/store/etcd.h"

#define TEXT_MAX   (64u << 20)
#define POLL_MS    15000u /* a wait reads its key again that often, even if nothing was reported */
#define KEYS       "/v2/keys"
#define NUMBER_MAX 24

struct v2_store {
    struct mu_store base;
    struct mu_etcd *etcd;
    struct mu_list ops;
    struct mu_etcd2_reply reply; /* of the call whose answer is being handled */
    bool closing;
    bool leaving;
    char prefix[];
};

struct v2_op {
    struct v2_store *s;
    struct mu_store_op *op;
    struct mu_list link;
    struct mu_etcd_call call;
    struct mu_buf path;
    struct mu_buf body;
    struct mu_buf held; /* values, one behind the other; or the value to write */
    size_t *ends;       /* where each value ends in `held` */
    size_t at;          /* how many keys are done */
    int64_t number;
    bool waited;
    int ending;
};

static void read_key(struct v2_op *e);
static void write_key(struct v2_op *e);

/* --- ending ----------------------------------------------------------------------------------- */

static void on_etcd_closed(void *context)
{
    struct v2_store *s = context;

    if (s->base.closed != NULL) {
        s->base.closed(s->base.context);
    }
    mu_etcd2_reply_fini(&s->reply);
    mu_free(s);
}

static void check_closed(struct v2_store *s)
{
    if (s->closing && !s->leaving && mu_list_empty(&s->ops)) {
        s->leaving = true;
        mu_etcd_close(s->etcd, on_etcd_closed, s);
    }
}

static void end_op(struct v2_op *e, int status, const char *text)
{
    struct v2_store *s = e->s;
    struct mu_store_op *op = e->op;

    mu_env_timer_arm(s->base.env, &op->timer, MU_MONO_NEVER);
    mu_list_remove(&e->link);
    op->impl = NULL;
    mu_store_finish(op, status, text);
    mu_buf_fini(&e->path);
    mu_buf_fini(&e->body);
    mu_buf_fini(&e->held);
    mu_free(e->ends);
    mu_free(e);
    check_closed(s);
}

static void answer(struct v2_op *e, int64_t number, const struct mu_span *values, size_t count)
{
    e->op->reply =
        (struct mu_store_reply){.number = number, .values = values, .value_count = count};
    end_op(e, 0, NULL);
}

static void fail_later(struct v2_op *e, int status)
{
    e->ending = e->ending != 0 ? e->ending : status;
    mu_env_timer_arm(e->s->base.env, &e->op->timer, mu_env_now(e->s->base.env).mono);
}

static void finish_ended(struct v2_op *e)
{
    const struct mu_store_request *q = &e->op->request;
    char text[MU_ERRMSG_CAP] = "";
    char quoted[64];

    if (e->ending == MUSTER_ETIMEDOUT && e->waited && e->at < q->key_count) {
        (void)snprintf(text, sizeof(text), "timed out waiting for key %s",
                       mu_span_quote(quoted, sizeof(quoted), q->keys[e->at]));
    } else if (e->ending == MUSTER_ETIMEDOUT) {
        (void)snprintf(text, sizeof(text), "etcd did not answer within %u ms%s", e->op->timeout_ms,
                       e->call.unknown && !mu_store_verb_is_read(q->verb)
                           ? ": the operation may or may not have happened"
                           : "");
    }
    end_op(e, e->ending, text[0] != '\0' ? text : NULL);
}

static void on_op_timer(struct mu_timer *timer)
{
    struct v2_op *e = MU_CONTAINER_OF(timer, struct mu_store_op, timer)->impl;

    e->ending = e->ending != 0 ? e->ending : MUSTER_ETIMEDOUT;
    if (mu_etcd_call_active(&e->call)) {
        mu_etcd_cancel(&e->call);
    } else {
        finish_ended(e);
    }
}

/* Decodes the answer. False: the op has ended, because there is no answer or it makes no sense. */
static bool take_reply(struct v2_op *e)
{
    int err;

    if (e->ending != 0) {
        finish_ended(e);
        return false;
    }
    if (e->call.status != 0) {
        struct mu_errmsg msg = e->call.errmsg;

        end_op(e, e->call.status, msg.text);
        return false;
    }
    err = mu_etcd2_reply_decode(&e->s->reply, e->call.text);
    if (err != 0) {
        end_op(e, err, "etcd's answer cannot be read");
        return false;
    }
    return true;
}

/* Ends the op over an unexpected answer. */
static void end_refused(struct v2_op *e)
{
    const struct mu_etcd2_reply *r = &e->s->reply;
    char text[MU_ERRMSG_CAP];
    int status = r->code == MU_ETCD2_NOT_FILE || r->code == MU_ETCD2_NOT_DIR ? MUSTER_EINVAL
                                                                             : MUSTER_EREFUSED;

    (void)snprintf(text, sizeof(text), "etcd says: %.*s (%.*s)",
                   (int)(r->message.len < 80 ? r->message.len : 80), (const char *)r->message.data,
                   (int)(r->cause.len < 80 ? r->cause.len : 80), (const char *)r->cause.data);
    end_op(e, status, text);
}

/* --- requests --------------------------------------------------------------------------------- */

/* Makes the path of the store, or of a key in it. */
static int make_path(struct v2_op *e, bool key)
{
    const struct mu_store_request *q = &e->op->request;
    struct mu_buf name;
    int err;

    mu_buf_reset(&e->path);
    mu_buf_init(&name, TEXT_MAX);
    err = mu_buf_append(&e->path, MU_SPAN_LIT(KEYS));
    if (err == 0) {
        err = mu_etcd2_path(&e->path, mu_span_str(e->s->prefix));
    }
    if (err == 0 && key) {
        err = mu_buf_append(&e->path, MU_SPAN_LIT("/"));
        err = err != 0 ? err : mu_base64_encode(&name, q->keys[e->at]);
        err = err != 0 ? err : mu_etcd2_path(&e->path, mu_buf_span(&name));
    }
    mu_buf_fini(&name);
    return err;
}

static void send(struct v2_op *e, const char *method, const char *query, bool repeat,
                 uint32_t timeout_ms, void (*done)(struct mu_etcd_call *call))
{
    int err = mu_buf_append(&e->path, mu_span(query, strlen(query) + 1));

    if (err != 0) {
        fail_later(e, err);
        return;
    }
    e->call = (struct mu_etcd_call){
        .method = method,
        .path = (const char *)mu_buf_span(&e->path).data,
        .body = strcmp(method, "PUT") == 0 ? mu_buf_span(&e->body) : (struct mu_span){0},
        .repeat = repeat,
        .v2 = true,
        .timeout_ms = timeout_ms,
        .done = done,
    };
    mu_etcd_submit(e->s->etcd, &e->call);
}

static struct v2_op *op_of(struct mu_etcd_call *call)
{
    return MU_CONTAINER_OF(call, struct v2_op, call);
}

/* --- reading ---------------------------------------------------------------------------------- */

static void next_key(struct v2_op *e)
{
    const struct mu_store_request *q = &e->op->request;
    struct mu_span *values;
    size_t from = 0;

    e->at++;
    e->waited = false;
    if (e->at < q->key_count) {
        read_key(e);
        return;
    }
    if (q->verb == MU_STORE_CHECK || q->verb == MU_STORE_WAIT) {
        answer(e, 1, NULL, 0);
        return;
    }
    values = mu_malloc((q->key_count + 1) * sizeof(*values));
    if (values == NULL) {
        end_op(e, MUSTER_ENOMEM, NULL);
        return;
    }
    for (size_t i = 0; i < q->key_count; i++) {
        values[i] = mu_span_skip(mu_buf_span(&e->held), from);
        values[i].len = e->ends[i] - from;
        from = e->ends[i];
    }
    answer(e, 0, values, q->key_count);
    mu_free(values);
}

/* The key changed, or it has been long enough: reads it again. */
static void on_waited(struct mu_etcd_call *call)
{
    struct v2_op *e = op_of(call);

    if (e->ending != 0) {
        finish_ended(e);
    } else if (call->status == 0 || call->status == MUSTER_ETIMEDOUT) {
        read_key(e);
    } else {
        struct mu_errmsg msg = call->errmsg;

        end_op(e, call->status, msg.text);
    }
}

static void wait_for_key(struct v2_op *e, int64_t index)
{
    char query[64];
    int err = make_path(e, true);

    if (err != 0) {
        end_op(e, err, NULL);
        return;
    }
    e->waited = true;
    (void)snprintf(query, sizeof(query), "?wait=true&waitIndex=%" PRId64, index + 1);
    send(e, "GET", query, true, POLL_MS, on_waited);
}

/* Decides what add, append and compare_set write. 1: nothing, and the answer is in `held`. */
static int decide(struct v2_op *e, bool there, struct mu_span old)
{
    const struct mu_store_request *q = &e->op->request;
    char text[NUMBER_MAX];
    int64_t number = 0;
    int err = 0;

    mu_buf_reset(&e->held);
    if (q->verb == MU_STORE_ADD) {
        if (there && !mu_setcd_read_number(old, &number)) {
            return MUSTER_ENOTNUM;
        }
        e->number = (int64_t)((uint64_t)number + (uint64_t)q->number);
        (void)snprintf(text, sizeof(text), "%" PRId64, e->number);
        return mu_buf_append(&e->held, mu_span_str(text));
    }
    if (q->verb == MU_STORE_APPEND) {
        e->number = (int64_t)(old.len + q->values[0].len);
        err = mu_buf_append(&e->held, old);
        return err != 0 ? err : mu_buf_append(&e->held, q->values[0]);
    }
    if (there ? mu_span_eq(old, q->values[0]) : q->values[0].len == 0) {
        e->number = 1;
        return mu_buf_append(&e->held, q->values[1]);
    }
    e->number = 0;
    err = mu_buf_append(&e->held, there ? old : q->values[0]);
    return err != 0 ? err : 1;
}

static void answer_change(struct v2_op *e)
{
    struct mu_span value = mu_buf_span(&e->held);
    bool swap = e->op->request.verb == MU_STORE_COMPARE_SET;

    answer(e, e->number, swap ? &value : NULL, swap ? 1 : 0);
}

static int start_form(struct v2_op *e, struct mu_span value)
{
    struct mu_buf text;
    int err;

    mu_buf_reset(&e->body);
    mu_buf_init(&text, TEXT_MAX);
    err = mu_base64_encode(&text, value);
    if (err == 0) {
        err = mu_etcd2_field(&e->body, "value", mu_buf_span(&text));
    }
    mu_buf_fini(&text);
    return err;
}

static void on_swapped(struct mu_etcd_call *call)
{
    struct v2_op *e = op_of(call);
    int64_t code;

    if (!take_reply(e)) {
        return;
    }
    code = e->s->reply.code;
    if (code == 0) {
        answer_change(e);
    } else if (code == MU_ETCD2_COMPARE_FAILED || code == MU_ETCD2_EXISTS ||
               code == MU_ETCD2_NOT_FOUND) {
        read_key(e); /* another client came in between */
    } else {
        end_refused(e);
    }
}

/* Goes on from the present value; `modified` is 0 if the key is absent. */
static void change_from(struct v2_op *e, struct mu_span old, int64_t modified)
{
    char number[NUMBER_MAX];
    int err = decide(e, modified != 0, old);

    if (err == 1) {
        answer_change(e);
        return;
    }
    err = err != 0 ? err : start_form(e, mu_buf_span(&e->held));
    if (err == 0 && modified == 0) {
        err = mu_etcd2_field(&e->body, "prevExist", MU_SPAN_LIT("false"));
    } else if (err == 0) {
        (void)snprintf(number, sizeof(number), "%" PRId64, modified);
        err = mu_etcd2_field(&e->body, "prevIndex", mu_span_str(number));
    }
    err = err != 0 ? err : make_path(e, true);
    if (err != 0) {
        end_op(e, err, NULL);
    } else {
        send(e, "PUT", "", false, 0, on_swapped);
    }
}

static void take_missing(struct v2_op *e, int64_t index)
{
    const struct mu_store_request *q = &e->op->request;

    switch ((int)q->verb) {
    case MU_STORE_CHECK:
        answer(e, 0, NULL, 0);
        break;
    case MU_STORE_ADD:
    case MU_STORE_APPEND:
    case MU_STORE_COMPARE_SET:
        change_from(e, (struct mu_span){0}, 0);
        break;
    default:
        if ((q->flags & MU_STORE_NOWAIT) != 0) {
            end_op(e, MUSTER_ENOENT, NULL);
        } else {
            wait_for_key(e, index);
        }
        break;
    }
}

static void take_found(struct v2_op *e, const struct mu_etcd2_node *node)
{
    const struct mu_store_request *q = &e->op->request;
    bool change =
        q->verb == MU_STORE_ADD || q->verb == MU_STORE_APPEND || q->verb == MU_STORE_COMPARE_SET;
    struct mu_buf value;
    int err;

    if (q->verb == MU_STORE_CHECK || q->verb == MU_STORE_WAIT) {
        next_key(e);
        return;
    }
    mu_buf_init(&value, TEXT_MAX);
    err = mu_base64_decode(&value, node->value);
    if (err == 0 && !change) {
        err = mu_buf_append(&e->held, mu_buf_span(&value));
        e->ends[e->at] = e->held.len;
    }
    if (err != 0) {
        end_op(e, err, err == MUSTER_ECORRUPT ? "the value in etcd is not base64" : NULL);
    } else if (change) {
        change_from(e, mu_buf_span(&value), node->modified);
    } else {
        next_key(e);
    }
    mu_buf_fini(&value);
}

static void on_read(struct mu_etcd_call *call)
{
    struct v2_op *e = op_of(call);
    const struct mu_etcd2_reply *r = &e->s->reply;

    if (!take_reply(e)) {
        return;
    }
    if (r->code == MU_ETCD2_NOT_FOUND) {
        take_missing(e, r->index);
    } else if (r->code == 0 && r->node_count > 0 && r->nodes[0].dir) {
        take_missing(e, call->index); /* another key's slashes made a directory here */
    } else if (r->code == 0 && r->node_count > 0) {
        take_found(e, &r->nodes[0]);
    } else {
        end_refused(e);
    }
}

static void read_key(struct v2_op *e)
{
    int err = make_path(e, true);

    if (err != 0) {
        fail_later(e, err);
    } else {
        send(e, "GET", "?quorum=true", true, 0, on_read);
    }
}

/* Answers 1, or `missing` where etcd has no such key. */
static void answer_there(struct v2_op *e, int64_t missing)
{
    if (!take_reply(e)) {
        return;
    }
    if (e->s->reply.code != 0 && e->s->reply.code != MU_ETCD2_NOT_FOUND) {
        end_refused(e);
    } else {
        answer(e, e->s->reply.code == 0 ? 1 : missing, NULL, 0);
    }
}

/* The question was only whether the store can be reached. */
static void on_pinged(struct mu_etcd_call *call)
{
    answer_there(op_of(call), 1);
}

static int ping(struct v2_op *e)
{
    int err = make_path(e, false);

    if (err == 0) {
        send(e, "GET", "?quorum=true", true, 0, on_pinged);
    }
    return err;
}

/* --- writing ---------------------------------------------------------------------------------- */

static void on_written(struct mu_etcd_call *call)
{
    struct v2_op *e = op_of(call);

    if (!take_reply(e)) {
        return;
    }
    if (e->s->reply.code != 0) {
        end_refused(e);
    } else if (++e->at < e->op->request.key_count) {
        write_key(e);
    } else {
        answer(e, 0, NULL, 0);
    }
}

static void write_key(struct v2_op *e)
{
    int err = make_path(e, true);

    err = err != 0 ? err : start_form(e, e->op->request.values[e->at]);
    if (err != 0) {
        fail_later(e, err);
    } else {
        send(e, "PUT", "", false, 0, on_written);
    }
}

static void on_deleted(struct mu_etcd_call *call)
{
    answer_there(op_of(call), 0);
}

/* --- lists ------------------------------------------------------------------------------------ */

/* Reads the key from a path below the store. False: the path is not that of a key. */
static bool read_name(struct v2_op *e, struct mu_span path)
{
    size_t skip = strlen(e->s->prefix) + 1;
    struct mu_buf text;
    int err;

    if (path.len <= skip) {
        return false;
    }
    mu_buf_init(&text, TEXT_MAX);
    err = mu_buf_append(&text, mu_span_skip(path, skip));
    if (err == 0 && text.len % 4 == 3) {
        err = mu_buf_append(&text, MU_SPAN_LIT("/")); /* v2 has dropped it from the end */
    }
    err = err != 0 ? err : mu_base64_decode(&e->held, mu_buf_span(&text));
    mu_buf_fini(&text);
    return err == 0;
}

static void on_listed(struct mu_etcd_call *call)
{
    struct v2_op *e = op_of(call);
    const struct mu_etcd2_reply *r = &e->s->reply;
    struct mu_span prefix =
        e->op->request.key_count > 0 ? e->op->request.keys[0] : (struct mu_span){0};
    struct mu_span *keys;
    size_t count = 0;

    if (!take_reply(e)) {
        return;
    }
    if (r->code != 0 && r->code != MU_ETCD2_NOT_FOUND) {
        end_refused(e);
        return;
    }
    keys = mu_malloc((r->node_count + 1) * sizeof(*keys));
    if (keys == NULL || mu_buf_reserve(&e->held, call->text.len + 1) != 0) {
        mu_free(keys);
        end_op(e, MUSTER_ENOMEM, NULL);
        return;
    }
    for (size_t i = 1; i < r->node_count; i++) {
        size_t from = e->held.len;

        if (!r->nodes[i].dir && read_name(e, r->nodes[i].key)) {
            keys[count] = mu_span_skip(mu_buf_span(&e->held), from);
            count += mu_span_starts_with(keys[count], prefix) ? 1 : 0;
        }
    }
    if (e->op->request.verb == MU_STORE_NUM_KEYS) {
        answer(e, (int64_t)count, NULL, 0);
    } else {
        answer(e, (int64_t)count, keys, count);
    }
    mu_free(keys);
}

/* --- the store -------------------------------------------------------------------------------- */

static int start(struct v2_op *e)
{
    const struct mu_store_request *q = &e->op->request;
    int err = 0;

    if ((mu_store_verb_facts(q->verb)->known & MU_STORE_IN_ETCD2) == 0) {
        return MUSTER_ENOTSUP;
    }
    switch ((int)q->verb) {
    case MU_STORE_SET:
    case MU_STORE_MULTI_SET:
        if (q->key_count == 0 || q->value_count != q->key_count) {
            return MUSTER_EINVAL;
        }
        if (q->lease != 0) {
            return MUSTER_ENOTSUP;
        }
        write_key(e);
        return 0;
    case MU_STORE_GET:
    case MU_STORE_MULTI_GET:
    case MU_STORE_CHECK:
    case MU_STORE_WAIT:
    case MU_STORE_ADD:
    case MU_STORE_APPEND:
    case MU_STORE_COMPARE_SET:
        e->ends = mu_calloc(q->key_count + 1, sizeof(*e->ends));
        if (e->ends == NULL || q->lease != 0) {
            return e->ends == NULL ? MUSTER_ENOMEM : MUSTER_ENOTSUP;
        }
        if (q->key_count == 0) {
            return ping(e);
        }
        read_key(e);
        return 0;
    case MU_STORE_DELETE:
        err = make_path(e, true);
        if (err == 0) {
            send(e, "DELETE", "", false, 0, on_deleted);
        }
        return err;
    default: /* num_keys, list_keys */
        err = make_path(e, false);
        if (err == 0) {
            send(e, "GET", "?recursive=true&quorum=true", true, 0, on_listed);
        }
        return err;
    }
}

static void v2_submit(struct mu_store *store, struct mu_store_op *op)
{
    struct v2_store *s = MU_CONTAINER_OF(store, struct v2_store, base);
    struct v2_op *e = mu_store_alloc(store, op, s->closing ? MUSTER_ECLOSED : 0, sizeof(*e));
    int err;

    if (e == NULL) {
        return;
    }
    e->s = s;
    e->op = op;
    mu_buf_init(&e->path, TEXT_MAX);
    mu_buf_init(&e->body, TEXT_MAX);
    mu_buf_init(&e->held, TEXT_MAX);
    mu_list_push(&s->ops, &e->link);
    mu_store_begin(store, op, e, on_op_timer);
    err = start(e);
    if (err != 0) {
        fail_later(e, err);
    }
}

static void v2_cancel(struct mu_store *store, struct mu_store_op *op)
{
    (void)store;
    if (op->impl != NULL) {
        fail_later(op->impl, MUSTER_ECANCELED);
    }
}

static void v2_close(struct mu_store *store)
{
    struct v2_store *s = MU_CONTAINER_OF(store, struct v2_store, base);

    s->closing = true;
    MU_LIST_FOREACH (it, &s->ops) {
        fail_later(MU_CONTAINER_OF(it, struct v2_op, link), MUSTER_ECLOSED);
    }
    check_closed(s);
}

static const struct mu_store_kind v2_kind = {
    .submit = v2_submit,
    .cancel = v2_cancel,
    .close = v2_close,
};

int mu_store_etcd_v2_new(struct mu_etcd *etcd, struct mu_env *env, const char *prefix,
                         struct mu_store **ret_store)
{
    size_t len = strlen(prefix);
    struct v2_store *s = mu_calloc(1, sizeof(*s) + len + 1);

    if (s == NULL) {
        return MUSTER_ENOMEM;
    }
    s->base.kind = &v2_kind;
    s->base.env = env;
    s->etcd = etcd;
    memcpy(s->prefix, prefix, len + 1);
    mu_list_init(&s->ops);
    mu_etcd2_reply_init(&s->reply);
    *ret_store = &s->base;
    return 0;
}
