#include "proto/torch_client.h"

#include "codec/torch_wire.h"
#include "core/alloc.h"
#include "core/assert.h"

/* What the next answer looks like. */
enum expect {
    EXPECT_PONG = 1, /* u32: the handshake's nonce */
    EXPECT_WAIT,     /* u8 */
    EXPECT_CANCEL,   /* u8: WAIT_CANCELED, after a STOP_WAITING that crossed our CANCEL_WAIT */
    EXPECT_CHECK,    /* u8 */
    EXPECT_ACK,      /* u8: READY, of the empty CHECK behind what has no answer */
    EXPECT_NUMBER,   /* i64 */
    EXPECT_VALUES,   /* `values` times length and bytes */
    EXPECT_POP,      /* i64; length and bytes unless it is 0 */
    EXPECT_LIST,     /* i64 count; as many keys */
};

/* A request in flight. */
struct flight {
    struct mu_list link;
    uint64_t tag;
    enum mu_store_verb verb;
    enum expect expect; /* now */
    enum expect then;   /* after the second step was sent; 0 if there is none */
    bool alone;         /* nothing may be submitted behind it */
    bool blocking;
    size_t values; /* EXPECT_VALUES: how many */
    size_t extra_len;
    uint8_t extra[]; /* the request of the second step, or what compare_set desires */
};

struct mu_torch_client_config mu_torch_client_config_defaults(void)
{
    return (struct mu_torch_client_config){
        .generation = MU_TORCH_2,
        .value_bytes_max = (size_t)1 << 30,
        .values_max = (size_t)16 << 20,
        .output_bytes_max = (size_t)1 << 30,
    };
}

int mu_torch_client_init(struct mu_torch_client *c, const struct mu_torch_client_config *config)
{
    size_t answer_max = config->value_bytes_max;
    int err;

    *c = (struct mu_torch_client){.config = *config};
    mu_list_init(&c->flights);
    mu_buf_init(&c->out, config->output_bytes_max);
    /* The largest value comes with its length, and from a queue with the queue's. */
    mu_buf_init(&c->in, answer_max > SIZE_MAX / 4 ? SIZE_MAX / 4 : answer_max + 16);
    if (config->generation == MU_TORCH_1) {
        c->greeted = true;
        c->has_event = true;
        c->event = (struct mu_torch_client_event){.type = MU_TORCH_CLIENT_READY};
        return 0;
    }
    err = mu_buf_reserve(&c->out, MU_TORCH_VALIDATE_LEN + 5);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(&c->out, MU_TORCH_VALIDATE);
    mu_buf_put_u32(&c->out, MU_TORCH_MAGIC);
    mu_buf_put_u8(&c->out, MU_TORCH_PING);
    mu_buf_put_u32(&c->out, config->nonce);
    return 0;
}

void mu_torch_client_fini(struct mu_torch_client *c)
{
    struct mu_list *node;

    while ((node = mu_list_pop(&c->flights)) != NULL) {
        mu_free(MU_CONTAINER_OF(node, struct flight, link));
    }
    c->flight_count = 0;
    mu_free(c->values);
    c->values = NULL;
    mu_buf_fini(&c->in);
    mu_buf_fini(&c->out);
}

/* --- encoding ------------------------------------------------------------------------------ */

static bool is_bare(struct mu_span key)
{
    return mu_span_eq(key, MU_SPAN_LIT(MU_TORCH_WORKERS_KEY));
}

static size_t key_len(struct mu_span key)
{
    return 8 + key.len + (is_bare(key) ? 0 : 1);
}

static uint8_t opcode_of(const struct mu_torch_client *c, enum mu_torch_op op)
{
    return c->config.generation == MU_TORCH_1 ? mu_torch_shapes[op].gen1 : (uint8_t)op;
}

/* The length of a request as encode() writes it. */
static size_t encoded_len(enum mu_torch_op op, const struct mu_store_request *r)
{
    const struct mu_torch_shape *shape = &mu_torch_shapes[op];
    size_t len = 1u + (shape->list ? 8u : 0u) + shape->tail;

    for (size_t i = 0; shape->parts != 0 && i < r->key_count; i++) {
        len += key_len(r->keys[i]);
    }
    for (size_t i = 0; shape->parts > 1 && i < r->value_count; i++) {
        len += 8 + r->values[i].len;
    }
    return len;
}

static uint8_t *put_key(uint8_t *at, struct mu_span key)
{
    mu_put_u64(at, key_len(key) - 8);
    at += 8;
    if (!is_bare(key)) {
        *at++ = '/';
    }
    if (key.len != 0) {
        memcpy(at, key.data, key.len);
    }
    return at + key.len;
}

static uint8_t *put_value(uint8_t *at, struct mu_span value)
{
    mu_put_u64(at, value.len);
    if (value.len != 0) {
        memcpy(at + 8, value.data, value.len);
    }
    return at + 8 + value.len;
}

/*
 * Writes one request: every one is an opcode, a count if it is a list, keys with the values that
 * belong to them, and the number if there is a tail.
 */
static void encode(const struct mu_torch_client *c, enum mu_torch_op op,
                   const struct mu_store_request *r, uint8_t *at)
{
    const struct mu_torch_shape *shape = &mu_torch_shapes[op];
    size_t value = 0;

    *at++ = opcode_of(c, op);
    if (shape->list) {
        mu_put_u64(at, r->key_count);
        at += 8;
    }
    for (size_t i = 0; shape->parts != 0 && i < r->key_count; i++) {
        at = put_key(at, r->keys[i]);
        for (uint8_t k = 1; k < shape->parts; k++) {
            at = put_value(at, r->values[value++]);
        }
    }
    if (shape->tail == 8) {
        mu_put_u64(at, (uint64_t)r->number);
    }
}

/* --- submitting ---------------------------------------------------------------------------- */

/* How an operation is carried out. */
struct plan {
    enum mu_torch_op first;  /* the request that is sent now */
    enum expect expect;      /* its answer */
    enum mu_torch_op second; /* what is sent once that was good, if `then` */
    enum expect then;
    bool ack; /* an empty CHECK goes behind it */
};

static struct plan make_plan(const struct mu_store_request *r)
{
    bool nowait = (r->flags & MU_STORE_NOWAIT) != 0;
    struct plan two = {.first = nowait ? MU_TORCH_CHECK : MU_TORCH_WAIT,
                       .expect = nowait ? EXPECT_CHECK : EXPECT_WAIT};

    switch ((int)r->verb) {
    case MU_STORE_SET:
        return (struct plan){.first = MU_TORCH_SET, .expect = EXPECT_ACK, .ack = true};
    case MU_STORE_APPEND:
        return (struct plan){.first = MU_TORCH_APPEND, .expect = EXPECT_ACK, .ack = true};
    case MU_STORE_MULTI_SET:
        return (struct plan){.first = MU_TORCH_MULTI_SET, .expect = EXPECT_ACK, .ack = true};
    case MU_STORE_QUEUE_PUSH:
        return (struct plan){.first = MU_TORCH_QUEUE_PUSH, .expect = EXPECT_ACK, .ack = true};
    case MU_STORE_GET:
        two.second = MU_TORCH_GET;
        two.then = EXPECT_VALUES;
        return two;
    case MU_STORE_MULTI_GET:
        /* Of no keys there is no answer that could be awaited. */
        two.second = MU_TORCH_MULTI_GET;
        two.then = r->key_count == 0 ? 0 : EXPECT_VALUES;
        return two;
    case MU_STORE_QUEUE_POP:
        if (nowait) {
            return (struct plan){.first = MU_TORCH_QUEUE_POP, .expect = EXPECT_POP};
        }
        two.second = MU_TORCH_QUEUE_POP;
        two.then = EXPECT_POP;
        return two;
    case MU_STORE_ADD:
        return (struct plan){.first = MU_TORCH_ADD, .expect = EXPECT_NUMBER};
    case MU_STORE_COMPARE_SET:
        return (struct plan){.first = MU_TORCH_COMPARE_SET, .expect = EXPECT_VALUES};
    case MU_STORE_CHECK:
        return (struct plan){.first = MU_TORCH_CHECK, .expect = EXPECT_CHECK};
    case MU_STORE_WAIT:
        return (struct plan){.first = MU_TORCH_WAIT, .expect = EXPECT_WAIT};
    case MU_STORE_DELETE:
        return (struct plan){.first = MU_TORCH_DELETE_KEY, .expect = EXPECT_NUMBER};
    case MU_STORE_NUM_KEYS:
        return (struct plan){.first = MU_TORCH_GETNUMKEYS, .expect = EXPECT_NUMBER};
    case MU_STORE_QUEUE_LEN:
        return (struct plan){.first = MU_TORCH_QUEUE_LEN, .expect = EXPECT_NUMBER};
    default:
        return (struct plan){.first = MU_TORCH_LIST_KEYS, .expect = EXPECT_LIST};
    }
}

static int check_supported(const struct mu_torch_client *c, const struct mu_store_request *r)
{
    if (r->lease != 0 || (r->flags & ~MU_STORE_NOWAIT) != 0) {
        return MUSTER_ENOTSUP;
    }
    switch (r->verb) {
    case MU_STORE_SET:
    case MU_STORE_GET:
    case MU_STORE_ADD:
    case MU_STORE_COMPARE_SET:
    case MU_STORE_CHECK:
    case MU_STORE_WAIT:
    case MU_STORE_DELETE:
    case MU_STORE_NUM_KEYS:
        return 0;
    case MU_STORE_APPEND:
    case MU_STORE_MULTI_GET:
    case MU_STORE_MULTI_SET:
    case MU_STORE_QUEUE_PUSH:
    case MU_STORE_QUEUE_POP:
    case MU_STORE_QUEUE_LEN:
        return c->config.generation == MU_TORCH_2 ? 0 : MUSTER_ENOTSUP;
    case MU_STORE_LIST_KEYS:
        return c->config.generation == MU_TORCH_2 && r->key_count == 0 ? 0 : MUSTER_ENOTSUP;
    case MU_STORE_BARRIER:
    case MU_STORE_WATCH:
    case MU_STORE_LEASE_GRANT:
    case MU_STORE_LEASE_KEEP:
    case MU_STORE_LEASE_REVOKE:
        break;
    }
    return MUSTER_ENOTSUP;
}

/* Whether keys and values are as many as the request on the wire has room for. */
static bool parts_fit(enum mu_torch_op op, const struct mu_store_request *r)
{
    const struct mu_torch_shape *shape = &mu_torch_shapes[op];

    if (shape->list) {
        return r->value_count == (shape->parts == 2 ? r->key_count : 0);
    }
    if (shape->parts == 0) {
        return r->key_count == 0 && r->value_count == 0;
    }
    return r->key_count == 1 && r->value_count == shape->parts - 1u;
}

static struct flight *make_flight(const struct mu_torch_client *c, const struct plan *plan,
                                  const struct mu_store_request *r, uint64_t tag)
{
    struct mu_span desired = {0};
    size_t extra_len = 0;
    struct flight *f;

    if (plan->then != 0) {
        extra_len = encoded_len(plan->second, r);
    } else if (r->verb == MU_STORE_COMPARE_SET) {
        desired = r->values[1];
        extra_len = desired.len;
    }
    f = mu_malloc(sizeof(*f) + extra_len);
    if (f == NULL) {
        return NULL;
    }
    *f = (struct flight){
        .tag = tag,
        .verb = r->verb,
        .expect = plan->expect,
        .then = plan->then,
        .blocking = plan->expect == EXPECT_WAIT,
        .alone = plan->expect == EXPECT_WAIT || plan->then != 0,
        .values = r->verb == MU_STORE_MULTI_GET ? r->key_count : 1,
        .extra_len = extra_len,
    };
    if (plan->then != 0) {
        encode(c, plan->second, r, f->extra);
    } else if (desired.len != 0) {
        memcpy(f->extra, desired.data, desired.len);
    }
    return f;
}

int mu_torch_client_submit(struct mu_torch_client *c, const struct mu_store_request *request,
                           uint64_t tag)
{
    static const struct mu_store_request nothing;
    struct plan plan;
    struct flight *f;
    size_t len;
    int err;

    if (c->poison != 0) {
        return c->poison;
    }
    err = check_supported(c, request);
    if (err != 0) {
        return err;
    }
    plan = make_plan(request);
    if (!parts_fit(plan.first, request) || (plan.then != 0 && !parts_fit(plan.second, request))) {
        return MUSTER_EINVAL;
    }
    if (c->flight_count != 0 && (plan.expect == EXPECT_WAIT ||
                                 MU_CONTAINER_OF(c->flights.prev, struct flight, link)->alone)) {
        return MUSTER_EAGAIN;
    }
    len = encoded_len(plan.first, request);
    err = mu_buf_reserve(&c->out, len + (plan.ack ? encoded_len(MU_TORCH_CHECK, &nothing) : 0));
    if (err != 0) {
        return err;
    }
    f = make_flight(c, &plan, request, tag);
    if (f == NULL) {
        return MUSTER_ENOMEM;
    }
    encode(c, plan.first, request, mu_buf_grow(&c->out, len));
    if (plan.ack) {
        encode(c, MU_TORCH_CHECK, &nothing, mu_buf_grow(&c->out, 9));
    }
    mu_list_push(&c->flights, &f->link);
    c->flight_count++;
    return 0;
}

int mu_torch_client_cancel(struct mu_torch_client *c)
{
    struct flight *f;
    int err;

    if (c->poison != 0) {
        return c->poison;
    }
    f = MU_CONTAINER_OF(c->flights.next, struct flight, link);
    if (c->flight_count == 0 || !f->blocking) {
        return MUSTER_ENOENT;
    }
    if (c->config.generation == MU_TORCH_1) {
        return MUSTER_ENOTSUP;
    }
    if (c->canceling || f->expect != EXPECT_WAIT) {
        return 0; /* It waits no longer; its answer is on the way. */
    }
    err = mu_buf_reserve(&c->out, 1);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(&c->out, MU_TORCH_CANCEL_WAIT);
    c->canceling = true;
    return 0;
}

size_t mu_torch_client_in_flight(const struct mu_torch_client *c)
{
    return c->flight_count;
}

/* --- answers ------------------------------------------------------------------------------- */

/* The request whose answer comes next; NULL while that is the handshake's. */
static struct flight *first_flight(const struct mu_torch_client *c)
{
    return c->greeted ? MU_CONTAINER_OF(c->flights.next, struct flight, link) : NULL;
}

static int poison(struct mu_torch_client *c, int code)
{
    c->poison = code;
    return code;
}

/*
 * Reads the lengths in the part of the answer that has come, from where it stopped last. Returns 1
 * once the answer is whole, 0 before, or an error. scan_offset is where the next length stands;
 * behind it at least 8 bytes must come for each of scan_left.
 */
static int measure(struct mu_torch_client *c, enum expect expect, size_t values)
{
    struct mu_span in = mu_buf_span(&c->in);
    uint64_t left = c->scan_left;
    size_t offset = c->scan_offset;

    if (offset == 0) {
        switch (expect) {
        case EXPECT_WAIT:
        case EXPECT_CANCEL:
        case EXPECT_CHECK:
        case EXPECT_ACK:
            offset = 1;
            break;
        case EXPECT_PONG:
            offset = 4;
            break;
        case EXPECT_NUMBER:
            offset = 8;
            break;
        case EXPECT_VALUES:
            left = values;
            break;
        case EXPECT_POP:
        case EXPECT_LIST:
            if (in.len < 8) {
                return 0;
            }
            offset = 8;
            left = mu_get_u64(in.data);
            if (left > INT64_MAX) {
                return poison(c, mu_err(&c->errmsg, MUSTER_EPROTO, "a negative count"));
            }
            if (expect == EXPECT_POP) {
                left = left == 0 ? 0 : 1;
            } else if (left > c->config.values_max || left > c->in.max / 8) {
                return poison(c, mu_err(&c->errmsg, MUSTER_ELIMIT,
                                        "an answer of %llu keys is over the limit of %zu",
                                        (unsigned long long)left, c->config.values_max));
            }
            break;
        }
    }
    while (left > 0 && offset <= in.len && in.len - offset >= 8) {
        uint64_t len = mu_get_u64(in.data + offset);

        left--;
        if (len > c->in.max || offset + 8 + 8 * left > c->in.max - len) {
            return poison(c, mu_err(&c->errmsg, MUSTER_ELIMIT,
                                    "an answer with a value of %llu bytes is over the limit of "
                                    "%zu in all",
                                    (unsigned long long)len, c->config.value_bytes_max));
        }
        offset += 8 + (size_t)len;
    }
    c->scan_offset = offset;
    c->scan_left = left;
    return left == 0 && offset <= in.len ? 1 : 0;
}

/* Points c->values at the `count` parts that stand in the answer from `offset` on. */
static int split_values(struct mu_torch_client *c, size_t offset, size_t count)
{
    struct mu_span in = mu_buf_span(&c->in);

    if (count > c->values_cap) {
        struct mu_span *grown = mu_realloc(c->values, count * sizeof(*grown));

        if (grown == NULL) {
            return poison(c, mu_err(&c->errmsg, MUSTER_ENOMEM, "no memory for an answer"));
        }
        c->values = grown;
        c->values_cap = count;
    }
    for (size_t i = 0; i < count; i++) {
        size_t len = (size_t)mu_get_u64(in.data + offset);

        c->values[i] = mu_span(in.data + offset + 8, len);
        offset += 8 + len;
    }
    return 0;
}

/* The first request in flight is done. */
static int finish(struct mu_torch_client *c, struct flight *f, int status, int64_t number,
                  size_t values)
{
    c->event = (struct mu_torch_client_event){
        .type = MU_TORCH_CLIENT_REPLY,
        .tag = f->tag,
        .status = status,
        .reply = {.number = number, .values = values == 0 ? NULL : c->values, values},
    };
    c->has_event = true;
    c->lent = true;
    c->canceling = false;
    mu_list_remove(&f->link);
    c->flight_count--;
    mu_free(f);
    return 0;
}

/* The wait or the check was good: sends the second step if there is one. */
static int go_on(struct mu_torch_client *c, struct flight *f)
{
    int err;

    if (f->then == 0) {
        return finish(c, f, 0, f->verb == MU_STORE_CHECK ? 1 : 0, 0);
    }
    err = mu_buf_append(&c->out, mu_span(f->extra, f->extra_len));
    if (err != 0) {
        return poison(c, mu_err(&c->errmsg, err, "no room for the second step of a get"));
    }
    f->expect = f->then;
    return 0;
}

static int refuse_byte(struct mu_torch_client *c, const char *what, uint8_t byte)
{
    return poison(c,
                  mu_err(&c->errmsg, MUSTER_EPROTO, "an answer to %s of %u", what, (unsigned)byte));
}

static int take_wait(struct mu_torch_client *c, struct flight *f, uint8_t byte)
{
    if (byte == MU_TORCH_STOP_WAITING) {
        if (!c->canceling) {
            return go_on(c, f);
        }
        /* It crossed our CANCEL_WAIT, whose own answer is still to come. */
        f->expect = EXPECT_CANCEL;
        return 0;
    }
    if (byte == MU_TORCH_WAIT_CANCELED && c->canceling) {
        return finish(c, f, MUSTER_ECANCELED, 0, 0);
    }
    return refuse_byte(c, "WAIT", byte);
}

static int take_check(struct mu_torch_client *c, struct flight *f, uint8_t byte)
{
    if (byte == MU_TORCH_READY) {
        return go_on(c, f);
    }
    if (byte == MU_TORCH_NOT_READY) {
        return finish(c, f, f->verb == MU_STORE_CHECK ? 0 : MUSTER_ENOENT, 0, 0);
    }
    return refuse_byte(c, "CHECK", byte);
}

static int take_pop(struct mu_torch_client *c, struct flight *f)
{
    int64_t len_before = (int64_t)mu_get_u64(mu_buf_span(&c->in).data);
    int err;

    if (len_before == 0) {
        return finish(c, f, f->blocking ? MUSTER_EAGAIN : MUSTER_ENOENT, 0, 0);
    }
    err = split_values(c, 8, 1);
    return err != 0 ? err : finish(c, f, 0, len_before, 1);
}

/* The user's keys: those with a leading '/', and without it. */
static int take_list(struct mu_torch_client *c, struct flight *f)
{
    size_t count = (size_t)mu_get_u64(mu_buf_span(&c->in).data);
    size_t kept = 0;
    int err = split_values(c, 8, count);

    if (err != 0) {
        return err;
    }
    for (size_t i = 0; i < count; i++) {
        if (c->values[i].len != 0 && c->values[i].data[0] == '/') {
            c->values[kept++] = mu_span_skip(c->values[i], 1);
        }
    }
    return finish(c, f, 0, 0, kept);
}

static int take_values(struct mu_torch_client *c, struct flight *f)
{
    int64_t number = 0;
    int err = split_values(c, 0, f->values);

    if (err != 0) {
        return err;
    }
    if (f->verb == MU_STORE_COMPARE_SET) {
        number = mu_span_eq(c->values[0], mu_span(f->extra, f->extra_len)) ? 1 : 0;
    }
    return finish(c, f, 0, number, f->values);
}

static int take_pong(struct mu_torch_client *c)
{
    uint32_t nonce = mu_get_u32(mu_buf_span(&c->in).data);

    if (nonce != c->config.nonce) {
        return poison(c, mu_err(&c->errmsg, MUSTER_EPROTO, "the answer to PING is %u instead of %u",
                                (unsigned)nonce, (unsigned)c->config.nonce));
    }
    c->greeted = true;
    c->event = (struct mu_torch_client_event){.type = MU_TORCH_CLIENT_READY};
    c->has_event = true;
    c->lent = true;
    return 0;
}

/* A whole answer is in c->in. */
static int take_answer(struct mu_torch_client *c, struct flight *f, enum expect expect)
{
    const uint8_t *data = mu_buf_span(&c->in).data;

    switch (expect) {
    case EXPECT_PONG:
        return take_pong(c);
    case EXPECT_WAIT:
        return take_wait(c, f, data[0]);
    case EXPECT_CANCEL:
        if (data[0] != MU_TORCH_WAIT_CANCELED) {
            return refuse_byte(c, "CANCEL_WAIT", data[0]);
        }
        /* A plain wait did succeed; what would have gone on to a second step has been given up. */
        return finish(c, f, f->then == 0 ? 0 : MUSTER_ECANCELED, 0, 0);
    case EXPECT_CHECK:
        return take_check(c, f, data[0]);
    case EXPECT_ACK:
        return data[0] == MU_TORCH_READY ? finish(c, f, 0, 0, 0) : refuse_byte(c, "CHECK", data[0]);
    case EXPECT_NUMBER:
        return finish(c, f, 0, (int64_t)mu_get_u64(data), 0);
    case EXPECT_VALUES:
        return take_values(c, f);
    case EXPECT_POP:
        return take_pop(c, f);
    case EXPECT_LIST:
        return take_list(c, f);
    }
    mu_panic(__FILE__, __LINE__, "an answer of no known kind");
}

static void drop_answer(struct mu_torch_client *c)
{
    mu_buf_reset(&c->in);
    mu_buf_trim(&c->in, (size_t)64 << 10);
    c->lent = false;
    c->scan_offset = 0;
    c->scan_left = 0;
}

/* Takes a piece of one answer off `in`. */
static int recv_some(struct mu_torch_client *c, struct mu_span in, size_t *ret_used)
{
    struct flight *f = first_flight(c);
    enum expect expect = f == NULL ? EXPECT_PONG : f->expect;
    size_t values = f == NULL ? 0 : f->values;
    size_t n;
    int got = measure(c, expect, values);

    MU_ASSERT(got == 0);
    /* What is known to belong to this answer, and not a byte of the next one. */
    n = c->scan_offset + 8 * (size_t)c->scan_left;
    n = (n == 0 ? 8 : n) - c->in.len;
    if (n > in.len) {
        n = in.len;
    }
    got = mu_buf_append(&c->in, mu_span(in.data, n));
    if (got != 0) {
        return poison(c, mu_err(&c->errmsg, got, "no memory for an answer"));
    }
    got = measure(c, expect, values);
    if (got < 0) {
        return got;
    }
    if (got == 1) {
        int err = take_answer(c, f, expect);

        if (err != 0) {
            return err;
        }
        if (!c->has_event) {
            drop_answer(c);
        }
    }
    *ret_used = n;
    return 0;
}

int mu_torch_client_recv(struct mu_torch_client *c, struct mu_span in, size_t *ret_used)
{
    size_t used = 0;

    if (c->poison != 0) {
        return c->poison;
    }
    if (!c->has_event && c->lent) {
        drop_answer(c);
    }
    while (used < in.len && !c->has_event) {
        size_t n = 0;
        int err;

        if (c->greeted && c->flight_count == 0) {
            return poison(c, mu_err(&c->errmsg, MUSTER_EPROTO, "an answer nobody asked for"));
        }
        err = recv_some(c, mu_span_skip(in, used), &n);
        if (err != 0) {
            return err;
        }
        used += n;
    }
    *ret_used = used;
    return 0;
}

bool mu_torch_client_next_event(struct mu_torch_client *c, struct mu_torch_client_event *ret)
{
    if (!c->has_event) {
        return false;
    }
    *ret = c->event;
    c->has_event = false;
    return true;
}

struct mu_span mu_torch_client_output(const struct mu_torch_client *c)
{
    return mu_buf_span(&c->out);
}

void mu_torch_client_sent(struct mu_torch_client *c, size_t n)
{
    mu_buf_consume(&c->out, n);
    mu_buf_trim(&c->out, (size_t)64 << 10);
}

const char *mu_torch_client_errmsg(const struct mu_torch_client *c)
{
    return c->errmsg.text;
}
