#include "proto/store/torch_client_private.h"

#include "core/alloc.h"

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
    /* The largest answer is a value with its length, and from a queue also the queue's length. */
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
        mu_free(MU_CONTAINER_OF(node, struct mu_torch_flight, link));
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

/* Returns the length of a request as encode() writes it. */
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
 * Writes one request: an opcode, a count if it is a list, keys with their values, and a number if
 * there is a tail.
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
    enum mu_torch_op first;      /* the request that is sent now */
    enum mu_torch_expect expect; /* its answer */
    enum mu_torch_op second;     /* the request that is sent if the first one succeeded, if
                                    `then` */
    enum mu_torch_expect then;
    bool ack; /* an empty CHECK follows it */
};

static struct plan make_plan(const struct mu_store_request *r)
{
    bool nowait = (r->flags & MU_STORE_NOWAIT) != 0;
    struct plan two = {.first = nowait ? MU_TORCH_CHECK : MU_TORCH_WAIT,
                       .expect = nowait ? MU_TORCH_EXPECT_CHECK : MU_TORCH_EXPECT_WAIT};

    switch ((int)r->verb) {
    case MU_STORE_SET:
        return (struct plan){.first = MU_TORCH_SET, .expect = MU_TORCH_EXPECT_ACK, .ack = true};
    case MU_STORE_APPEND:
        return (struct plan){.first = MU_TORCH_APPEND, .expect = MU_TORCH_EXPECT_ACK, .ack = true};
    case MU_STORE_MULTI_SET:
        return (struct plan){
            .first = MU_TORCH_MULTI_SET, .expect = MU_TORCH_EXPECT_ACK, .ack = true};
    case MU_STORE_QUEUE_PUSH:
        return (struct plan){
            .first = MU_TORCH_QUEUE_PUSH, .expect = MU_TORCH_EXPECT_ACK, .ack = true};
    case MU_STORE_GET:
        two.second = MU_TORCH_GET;
        two.then = MU_TORCH_EXPECT_VALUES;
        return two;
    case MU_STORE_MULTI_GET:
        /* A request without keys has no answer to wait for. */
        two.second = MU_TORCH_MULTI_GET;
        two.then = r->key_count == 0 ? 0 : MU_TORCH_EXPECT_VALUES;
        return two;
    case MU_STORE_QUEUE_POP:
        if (nowait) {
            return (struct plan){.first = MU_TORCH_QUEUE_POP, .expect = MU_TORCH_EXPECT_POP};
        }
        two.second = MU_TORCH_QUEUE_POP;
        two.then = MU_TORCH_EXPECT_POP;
        return two;
    case MU_STORE_ADD:
        return (struct plan){.first = MU_TORCH_ADD, .expect = MU_TORCH_EXPECT_NUMBER};
    case MU_STORE_COMPARE_SET:
        return (struct plan){.first = MU_TORCH_COMPARE_SET, .expect = MU_TORCH_EXPECT_VALUES};
    case MU_STORE_CHECK:
        return (struct plan){.first = MU_TORCH_CHECK, .expect = MU_TORCH_EXPECT_CHECK};
    case MU_STORE_WAIT:
        return (struct plan){.first = MU_TORCH_WAIT, .expect = MU_TORCH_EXPECT_WAIT};
    case MU_STORE_DELETE:
        return (struct plan){.first = MU_TORCH_DELETE_KEY, .expect = MU_TORCH_EXPECT_NUMBER};
    case MU_STORE_NUM_KEYS:
        return (struct plan){.first = MU_TORCH_GETNUMKEYS, .expect = MU_TORCH_EXPECT_NUMBER};
    case MU_STORE_QUEUE_LEN:
        return (struct plan){.first = MU_TORCH_QUEUE_LEN, .expect = MU_TORCH_EXPECT_NUMBER};
    default:
        return (struct plan){.first = MU_TORCH_LIST_KEYS, .expect = MU_TORCH_EXPECT_LIST};
    }
}

static int check_supported(const struct mu_torch_client *c, const struct mu_store_request *r)
{
    unsigned kind = c->config.generation == MU_TORCH_2 ? MU_STORE_IN_TORCH2 : MU_STORE_IN_TORCH1;

    return r->lease == 0 && (r->flags & ~MU_STORE_NOWAIT) == 0 &&
                   (mu_store_verb_facts(r->verb)->known & kind) != 0 &&
                   (r->verb != MU_STORE_LIST_KEYS || r->key_count == 0)
               ? 0
               : MUSTER_ENOTSUP;
}

/* Returns whether the numbers of keys and values are those of the request on the wire. */
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

static struct mu_torch_flight *make_flight(const struct mu_torch_client *c, const struct plan *plan,
                                           const struct mu_store_request *r, uint64_t tag)
{
    struct mu_span desired = {0};
    size_t extra_len = 0;
    struct mu_torch_flight *f;

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
    *f = (struct mu_torch_flight){
        .tag = tag,
        .verb = r->verb,
        .expect = plan->expect,
        .then = plan->then,
        .blocking = plan->expect == MU_TORCH_EXPECT_WAIT,
        .alone = plan->expect == MU_TORCH_EXPECT_WAIT || plan->then != 0,
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
    struct mu_torch_flight *f;
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
    if (c->flight_count != 0 &&
        (plan.expect == MU_TORCH_EXPECT_WAIT ||
         MU_CONTAINER_OF(c->flights.prev, struct mu_torch_flight, link)->alone)) {
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
    struct mu_torch_flight *f;
    int err;

    if (c->poison != 0) {
        return c->poison;
    }
    f = MU_CONTAINER_OF(c->flights.next, struct mu_torch_flight, link);
    if (c->flight_count == 0 || !f->blocking) {
        return MUSTER_ENOENT;
    }
    if (c->config.generation == MU_TORCH_1) {
        return MUSTER_ENOTSUP;
    }
    if (c->canceling || f->expect != MU_TORCH_EXPECT_WAIT) {
        return 0; /* The request does not block any more; its answer is on the way. */
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
