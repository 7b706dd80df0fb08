/*
 * Requests that another executor handles: parsed and kept in order, then answered. WAIT and BARRIER
 * are what others may overtake; PING and CANCEL_WAIT need no executor, but have their turn.
 */
#include "proto/store/torch_server_private.h"

#include "core/alloc.h"
#include "core/assert.h"

enum request_state {
    NEW = 0, /* no executor has it yet */
    TAKEN,   /* an executor has it */
    LOCAL,   /* its turn has not come */
    DROPPED, /* somebody stops it */
    WATCHING,
};

static const uint8_t verbs[MU_TORCH_OP_COUNT] = {
    [MU_TORCH_SET] = MU_STORE_SET,
    [MU_TORCH_COMPARE_SET] = MU_STORE_COMPARE_SET,
    [MU_TORCH_GET] = MU_STORE_GET,
    [MU_TORCH_ADD] = MU_STORE_ADD,
    [MU_TORCH_CHECK] = MU_STORE_CHECK,
    [MU_TORCH_WAIT] = MU_STORE_WAIT,
    [MU_TORCH_GETNUMKEYS] = MU_STORE_NUM_KEYS,
    [MU_TORCH_DELETE_KEY] = MU_STORE_DELETE,
    [MU_TORCH_APPEND] = MU_STORE_APPEND,
    [MU_TORCH_MULTI_GET] = MU_STORE_MULTI_GET,
    [MU_TORCH_MULTI_SET] = MU_STORE_MULTI_SET,
    [MU_TORCH_QUEUE_PUSH] = MU_STORE_QUEUE_PUSH,
    [MU_TORCH_QUEUE_POP] = MU_STORE_QUEUE_POP,
    [MU_TORCH_QUEUE_LEN] = MU_STORE_QUEUE_LEN,
    [MU_TORCH_LIST_KEYS] = MU_STORE_LIST_KEYS,
    [MU_TORCH_BARRIER] = MU_STORE_BARRIER,
    [MU_TORCH_WATCH_KEY] = MU_STORE_WATCH,
};

/* --- parsing ---------------------------------------------------------------------------------- */

static struct mu_span next_part(struct mu_span *rest)
{
    struct mu_span part = {rest->data + 8, (size_t)mu_get_u64(rest->data)};

    *rest = mu_span_skip(*rest, 8 + part.len);
    return part;
}

/* Copies the request and finds its parts. NULL: no memory. */
static struct mu_torch_request *make_request(enum mu_torch_op op, struct mu_span bytes)
{
    const struct mu_torch_shape *shape = &mu_torch_shapes[op];
    size_t items = shape->list ? (size_t)mu_get_u64(bytes.data + 1) : shape->parts != 0 ? 1 : 0;
    size_t values = shape->parts > 1 ? shape->parts - 1u : 0;
    size_t spans = items * (1 + values);
    struct mu_torch_request *r;
    struct mu_span rest;

    r = mu_malloc(sizeof(*r) + spans * sizeof(struct mu_span) + bytes.len);
    if (r == NULL) {
        return NULL;
    }
    *r = (struct mu_torch_request){.op = (uint8_t)op,
                                   .memory = spans * sizeof(struct mu_span) + bytes.len};
    mu_list_init(&r->link);
    r->parts = (struct mu_span *)(r + 1);
    rest = mu_span(memcpy(r->parts + spans, bytes.data, bytes.len), bytes.len);
    rest = mu_span_skip(rest, shape->list ? 9 : 1);
    for (size_t i = 0; i < items; i++) {
        r->parts[i] = next_part(&rest);
        for (size_t v = 0; v < values; v++) {
            r->parts[items + i * values + v] = next_part(&rest);
        }
    }
    r->request = (struct mu_store_request){
        .verb = (enum mu_store_verb)verbs[op],
        .keys = r->parts,
        .key_count = items,
        .values = r->parts + items,
        .value_count = items * values,
        .number = shape->tail == 8 ? (int64_t)mu_get_u64(rest.data) : 0,
    };
    if (op == MU_TORCH_GET || op == MU_TORCH_MULTI_GET || op == MU_TORCH_QUEUE_POP) {
        r->request.flags = MU_STORE_NOWAIT;
    }
    if (op == MU_TORCH_PING) {
        memcpy(r->ping, rest.data, sizeof(r->ping));
    }
    return r;
}

void mu_torch_request_free(struct mu_torch_request *r)
{
    if (r->server != NULL) {
        r->server->deferred_bytes -= r->memory;
        r->server->deferred_count--;
    }
    mu_list_remove(&r->link);
    mu_free(r);
}

/* --- the order of answers --------------------------------------------------------------------- */

static int put(struct mu_torch_server *t, enum mu_torch_op op, size_t n)
{
    struct mu_errmsg e;
    int err = n > t->limits->output_bytes_max ? MUSTER_ELIMIT : mu_buf_reserve(&t->out, n);

    return err == 0 ? 0
                    : mu_torch_server_fail(t,
                                           mu_err(&e, err, "the answer to %s: %s",
                                                  mu_torch_shapes[op].name, muster_strerror(err)),
                                           &e);
}

static bool is_wait(const struct mu_torch_request *r)
{
    return r->op == MU_TORCH_WAIT || r->op == MU_TORCH_BARRIER;
}

/* This WAIT or BARRIER is not answered any more. */
static void drop_wait(struct mu_torch_server *t, struct mu_torch_request *r)
{
    mu_list_remove(&r->link);
    if (r->state == TAKEN) {
        mu_list_push(&t->dropped, &r->link);
    } else {
        mu_torch_request_free(r);
    }
}

void mu_torch_server_drop_waits(struct mu_torch_server *t)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &t->deferred) {
        struct mu_torch_request *r = MU_CONTAINER_OF(it, struct mu_torch_request, link);

        if (is_wait(r)) {
            drop_wait(t, r);
        }
    }
}

static int run_local(struct mu_torch_server *t, struct mu_torch_request *r)
{
    int err;

    if (r->op == MU_TORCH_CANCEL_WAIT) {
        /* Drops what waits before it, but not what comes after it. */
        MU_LIST_FOREACH_SAFE (it, tmp, &t->deferred) {
            struct mu_torch_request *w = MU_CONTAINER_OF(it, struct mu_torch_request, link);

            if (w == r) {
                break;
            }
            drop_wait(t, w); /* Nothing else is left before it. */
        }
        err = put(t, r->op, 1);
        if (err == 0) {
            mu_buf_put_u8(&t->out, MU_TORCH_WAIT_CANCELED);
        }
    } else {
        err = put(t, r->op, sizeof(r->ping));
        if (err == 0) {
            mu_buf_put(&t->out, mu_span(r->ping, sizeof(r->ping)));
        }
    }
    mu_torch_request_free(r);
    return err;
}

/* Answers requests that need no executor, as far as their turn has come. */
static int run_locals(struct mu_torch_server *t)
{
    MU_LIST_FOREACH (it, &t->deferred) {
        struct mu_torch_request *r = MU_CONTAINER_OF(it, struct mu_torch_request, link);

        if (r->state == LOCAL) {
            int err = run_local(t, r);

            if (err != 0) {
                return err;
            }
            it = &t->deferred; /* The walk begins again, because the list has changed. */
        } else if (!is_wait(r)) {
            break;
        }
    }
    return 0;
}

int mu_torch_server_defer(struct mu_torch_server *t, enum mu_torch_op op, struct mu_span request)
{
    struct mu_torch_request *r = make_request(op, request);
    struct mu_errmsg e;

    if (r == NULL) {
        return mu_torch_server_fail(
            t, mu_err(&e, MUSTER_ENOMEM, "%s: out of memory", mu_torch_shapes[op].name), &e);
    }
    /* As in torch_server_exec.c, the client's WAIT or BARRIER has timed out, or is replaced. */
    if (t->generation == MU_TORCH_1 || is_wait(r)) {
        mu_torch_server_drop_waits(t);
    }
    r->server = t;
    r->state = op == MU_TORCH_PING || op == MU_TORCH_CANCEL_WAIT ? LOCAL : NEW;
    t->deferred_bytes += r->memory;
    t->deferred_count++;
    mu_list_push(&t->deferred, &r->link);
    return run_locals(t);
}

bool mu_torch_server_owes(const struct mu_torch_server *t)
{
    MU_LIST_FOREACH (it, &t->deferred) {
        const struct mu_torch_request *r = MU_CONTAINER_OF(it, struct mu_torch_request, link);

        if (!t->cut && !is_wait(r)) {
            return true;
        }
    }
    return false;
}

struct mu_torch_request *mu_torch_server_next_request(struct mu_torch_server *t)
{
    MU_LIST_FOREACH (it, &t->deferred) {
        struct mu_torch_request *r = MU_CONTAINER_OF(it, struct mu_torch_request, link);

        if (r->state == NEW) {
            r->state = TAKEN;
            return r;
        }
    }
    return NULL;
}

struct mu_torch_request *mu_torch_server_next_dropped(struct mu_torch_server *t)
{
    MU_LIST_FOREACH (it, &t->dropped) {
        struct mu_torch_request *r = MU_CONTAINER_OF(it, struct mu_torch_request, link);

        if (r->state == TAKEN) {
            r->state = DROPPED; /* It stays in the list: it may outlive the connection. */
            return r;
        }
    }
    return NULL;
}

void mu_torch_server_drop_deferred(struct mu_torch_server *t)
{
    struct mu_list *lists[] = {&t->deferred, &t->dropped};

    for (size_t i = 0; i < 2; i++) {
        MU_LIST_FOREACH_SAFE (it, tmp, lists[i]) {
            struct mu_torch_request *r = MU_CONTAINER_OF(it, struct mu_torch_request, link);

            if (r->state == NEW || r->state == LOCAL) {
                mu_torch_request_free(r);
            } else {
                mu_list_remove(&r->link); /* Its executor frees it. */
                r->server = NULL;
            }
        }
    }
    t->deferred_count = 0;
    t->deferred_bytes = 0;
}

/* --- answers ---------------------------------------------------------------------------------- */

static int fail_request(struct mu_torch_server *t, const struct mu_torch_request *r, int status,
                        const char *text)
{
    struct mu_errmsg e;
    char quoted[96];

    if (r->request.key_count == 0) {
        (void)mu_err(&e, status, "%s: %s", mu_torch_shapes[r->op].name, text);
    } else {
        (void)mu_err(&e, status, "%s of %s: %s", mu_torch_shapes[r->op].name,
                     mu_span_quote(quoted, sizeof(quoted), r->request.keys[0]), text);
    }
    return mu_torch_server_fail(t, status, &e);
}

static int answer_i64(struct mu_torch_server *t, enum mu_torch_op op, int64_t v)
{
    int err = put(t, op, 8);

    if (err == 0) {
        mu_buf_put_u64(&t->out, (uint64_t)v);
    }
    return err;
}

static int answer_u8(struct mu_torch_server *t, enum mu_torch_op op, uint8_t v)
{
    int err = put(t, op, 1);

    if (err == 0) {
        mu_buf_put_u8(&t->out, v);
    }
    return err;
}

/* Writes values one after the other, with `numbers` before all. */
static int answer_values(struct mu_torch_server *t, enum mu_torch_op op,
                         const struct mu_store_reply *reply, bool number)
{
    size_t bytes = number ? 8 : 0;
    int err;

    for (size_t i = 0; i < reply->value_count; i++) {
        bytes += 8 + reply->values[i].len;
    }
    err = put(t, op, bytes);
    if (err != 0) {
        return err;
    }
    if (number) {
        mu_buf_put_u64(&t->out, (uint64_t)reply->number);
    }
    for (size_t i = 0; i < reply->value_count; i++) {
        mu_buf_put_u64(&t->out, reply->values[i].len);
        mu_buf_put(&t->out, reply->values[i]);
    }
    return 0;
}

static int answer(struct mu_torch_server *t, const struct mu_torch_request *r,
                  const struct mu_store_reply *reply)
{
    switch (r->op) {
    case MU_TORCH_SET:
    case MU_TORCH_APPEND:
    case MU_TORCH_QUEUE_PUSH:
    case MU_TORCH_MULTI_SET:
        return 0;
    case MU_TORCH_GET:
    case MU_TORCH_COMPARE_SET:
    case MU_TORCH_MULTI_GET:
        return answer_values(t, r->op, reply, false);
    case MU_TORCH_QUEUE_POP:
    case MU_TORCH_LIST_KEYS:
        return answer_values(t, r->op, reply, true);
    case MU_TORCH_CHECK:
        return answer_u8(t, r->op, reply->number != 0 ? MU_TORCH_READY : MU_TORCH_NOT_READY);
    case MU_TORCH_WAIT:
    case MU_TORCH_BARRIER:
        return answer_u8(t, r->op, MU_TORCH_STOP_WAITING);
    case MU_TORCH_ADD:
    case MU_TORCH_GETNUMKEYS:
    case MU_TORCH_DELETE_KEY:
    case MU_TORCH_QUEUE_LEN:
        return answer_i64(t, r->op, reply->number);
    case MU_TORCH_WATCH_KEY:
        return answer_u8(t, r->op, MU_TORCH_KEY_CALLBACK_REGISTERED);
    case MU_TORCH_VALIDATE:
    case MU_TORCH_CANCEL_WAIT:
    case MU_TORCH_PING:
        break;
    }
    mu_panic(__FILE__, __LINE__, "nobody to answer what needs no answer");
}

int mu_torch_server_answer(struct mu_torch_server *t, struct mu_torch_request *r, int status,
                           const struct mu_store_reply *reply, const char *text)
{
    static const struct mu_span nothing[1];
    struct mu_store_reply empty = {.values = nothing, .value_count = 1};
    int err = t->cut ? t->poison : 0;

    MU_ASSERT(r->state == TAKEN && r->server == t);
    if (err == 0 && status == MUSTER_ENOENT && r->op == MU_TORCH_GET &&
        t->generation == MU_TORCH_2) {
        err = answer(t, r, &empty);
    } else if (err == 0 && status == MUSTER_ENOENT && r->op == MU_TORCH_QUEUE_POP) {
        err = answer_i64(t, r->op, 0);
    } else if (err == 0 && status != 0) {
        err = fail_request(t, r, status, text);
    } else if (err == 0) {
        err = answer(t, r, reply);
    }
    if (r->op == MU_TORCH_WATCH_KEY && err == 0) {
        r->state = WATCHING;
        mu_list_remove(&r->link);
        mu_list_push(&t->dropped, &r->link);
    } else {
        mu_torch_request_free(r);
    }
    if (err == 0) {
        err = run_locals(t);
    }
    t->cut = t->cut || err != 0;
    return err != 0 ? err : t->poison;
}
