#include "proto/store/torch_server.h"

#include "codec/store/torch_wire.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "proto/store/torch_server_private.h"

struct mu_torch_limits mu_torch_limits_defaults(void)
{
    return (struct mu_torch_limits){
        .key_bytes_max = MU_TORCH_KEY_BYTES_MAX,
        .value_bytes_max = MU_TORCH_VALUE_BYTES_MAX,
        .keys_max = MU_TORCH_KEYS_MAX,
        .request_bytes_max = (size_t)64 << 20,
        .output_bytes_high = (size_t)256 << 10,
        .output_bytes_max = (size_t)256 << 20,
        .watches_max = 1024,
    };
}

void mu_torch_server_init(struct mu_torch_server *t, const struct mu_torch_limits *limits,
                          void *owner)
{
    size_t high = limits->output_bytes_high;

    *t = (struct mu_torch_server){.owner = owner, .limits = limits};
    t->wait.owner = owner;
    mu_list_init(&t->watches);
    mu_list_init(&t->deferred);
    mu_list_init(&t->dropped);
    mu_list_init(&t->lent);
    mu_buf_init(&t->in, limits->request_bytes_max);
    /* An answer of the largest size may begin while others, up to output_bytes_high, still wait. */
    mu_buf_init(&t->out, high > SIZE_MAX - limits->output_bytes_max
                             ? SIZE_MAX
                             : limits->output_bytes_max + high);
}

static void drop_registrations(struct mu_torch_server *t, struct mu_keyspace *ks)
{
    struct mu_list *node;

    if (t->writer != NULL) {
        mu_holds_withdraw(t->holds, t->writer);
        mu_free(t->writer);
        t->writer = NULL;
    }
    if (ks == NULL) {
        mu_torch_server_drop_deferred(t);
        return;
    }
    mu_ks_wait_cancel(ks, &t->wait);
    while ((node = mu_list_pop(&t->watches)) != NULL) {
        struct mu_torch_watch *w = MU_CONTAINER_OF(node, struct mu_torch_watch, link);

        mu_ks_unwatch(ks, &w->watch);
        mu_free(w);
    }
    t->watch_count = 0;
}

void mu_torch_server_fini(struct mu_torch_server *t, struct mu_keyspace *ks)
{
    drop_registrations(t, ks);
    while (!mu_list_empty(&t->lent)) {
        mu_torch_loans_drop(t, MU_CONTAINER_OF(t->lent.next, struct mu_torch_loans, link));
    }
    mu_buf_fini(&t->in);
    mu_buf_fini(&t->out);
    mu_free(t->errmsg);
    t->errmsg = NULL;
}

int mu_torch_server_sniff(struct mu_span first)
{
    if (first.len == 0) {
        return MUSTER_EAGAIN;
    }
    return first.data[0] <= MU_TORCH_OPCODE_MAX ? 1 : 0;
}

int mu_torch_server_fail(struct mu_torch_server *t, int code, const struct mu_errmsg *e)
{
    t->poison = code;
    mu_free(t->errmsg);
    t->errmsg = mu_strndup(e->text, strlen(e->text));
    mu_buf_fini(&t->in);
    return code;
}

const char *mu_torch_server_errmsg(const struct mu_torch_server *t)
{
    if (t->errmsg != NULL) {
        return t->errmsg;
    }
    /* There may have been no memory even for the text. */
    return t->poison != 0 ? muster_strerror(t->poison) : "";
}

/* --- framing: how long is the request at hand? --------------------------------------------- */

static int refuse_count(struct mu_torch_server *t, const struct mu_torch_shape *shape,
                        uint64_t count)
{
    struct mu_errmsg e;

    return mu_torch_server_fail(t,
                                mu_err(&e, MUSTER_ELIMIT,
                                       "%s of %llu keys is over the limit of %zu", shape->name,
                                       (unsigned long long)count, t->limits->keys_max),
                                &e);
}

static int refuse_part(struct mu_torch_server *t, bool key, uint64_t len)
{
    struct mu_errmsg e;

    return mu_torch_server_fail(t,
                                mu_err(&e, MUSTER_ELIMIT,
                                       "%s of %llu bytes is over the limit of %zu",
                                       key ? "key" : "value", (unsigned long long)len,
                                       key ? t->limits->key_bytes_max : t->limits->value_bytes_max),
                                &e);
}

static int refuse_request(struct mu_torch_server *t, const struct mu_torch_shape *shape)
{
    struct mu_errmsg e;

    return mu_torch_server_fail(t,
                                mu_err(&e, MUSTER_ELIMIT, "%s is over the limit of %zu bytes",
                                       shape->name, t->limits->request_bytes_max),
                                &e);
}

static int refuse_opcode(struct mu_torch_server *t, uint8_t opcode)
{
    struct mu_errmsg e;

    if (t->generation == MU_TORCH_2 && opcode == MU_TORCH_VALIDATE) {
        return mu_torch_server_fail(t, mu_err(&e, MUSTER_EPROTO, "VALIDATE a second time"), &e);
    }
    return mu_torch_server_fail(t, mu_err(&e, MUSTER_EPROTO, "unknown opcode %u", (unsigned)opcode),
                                &e);
}

/* Returns the operation of an opcode, or MU_TORCH_NONE. */
static uint8_t op_of(const struct mu_torch_server *t, uint8_t opcode)
{
    if (t->generation == MU_TORCH_1) {
        return opcode <= MU_TORCH_OPCODE_MAX_1 ? mu_torch_ops_1[opcode] : MU_TORCH_NONE;
    }
    return opcode != MU_TORCH_VALIDATE && opcode <= MU_TORCH_OPCODE_MAX ? opcode : MU_TORCH_NONE;
}

/*
 * Looks for the end of the request that `in` begins with. Returns 1 and its length, 0 if its rest
 * has not come, or an error. Every length is checked as soon as it can be read, long before the
 * bytes it announces are there.
 *
 * scan_offset and scan_left remember how far this came, so that a request that comes byte by byte
 * is scanned once, not once for each byte: scan_offset is the place of the next length (it may lie
 * ahead of what has come), or 0 if not even a count could be read.
 */
static int measure(struct mu_torch_server *t, const struct mu_torch_shape *shape, struct mu_span in,
                   size_t *ret_len)
{
    const struct mu_torch_limits *limits = t->limits;
    size_t offset = t->scan_offset;
    uint64_t left = t->scan_left;

    if (offset == 0) {
        offset = 1;
        left = shape->parts;
        if (shape->list) {
            if (in.len < 9) {
                return 0;
            }
            left = mu_get_u64(in.data + 1);
            if (left > limits->keys_max) {
                return refuse_count(t, shape, left);
            }
            if (left > limits->request_bytes_max / (8u * shape->parts)) {
                return refuse_request(t, shape);
            }
            left *= shape->parts;
            offset = 9;
        }
    }
    while (left > 0 && offset <= in.len && in.len - offset >= 8) {
        uint64_t len = mu_get_u64(in.data + offset);
        bool key = mu_torch_part_is_key(shape, left);

        if (len > (key ? limits->key_bytes_max : limits->value_bytes_max)) {
            return refuse_part(t, key, len);
        }
        /* The least that must come: this part, the lengths of the others, the tail. */
        left--;
        if (len > limits->request_bytes_max ||
            offset + 8 + 8 * left + shape->tail > limits->request_bytes_max - len) {
            return refuse_request(t, shape);
        }
        offset += 8 + (size_t)len;
    }
    if (left == 0 && offset + shape->tail <= in.len) {
        t->scan_offset = 0;
        t->scan_left = 0;
        *ret_len = offset + shape->tail;
        return 1;
    }
    t->scan_offset = offset;
    t->scan_left = left;
    return 0;
}

/* Returns how many bytes certainly belong to the half-sent request in t->in, so as many can be
 * taken. */
static size_t expected_len(const struct mu_torch_server *t)
{
    uint8_t op;

    if (t->generation == MU_TORCH_UNDECIDED) {
        return MU_TORCH_VALIDATE_LEN;
    }
    if (t->scan_offset == 0) {
        return 9;
    }
    op = op_of(t, mu_buf_span(&t->in).data[0]);
    return t->scan_offset + 8 * (size_t)t->scan_left + mu_torch_shapes[op].tail;
}

/* --- the stream ---------------------------------------------------------------------------- */

/*
 * Generation 2 begins with VALIDATE: a zero and the magic. A zero is also SET of generation 1, but
 * the length of its key cannot look like the magic under any sane limit.
 */
static int decide(struct mu_torch_server *t, struct mu_span in, size_t *ret_len)
{
    if (in.data[0] != 0) {
        t->generation = MU_TORCH_1;
        return 0;
    }
    if (in.len < MU_TORCH_VALIDATE_LEN) {
        return 0;
    }
    if (mu_get_u32(in.data + 1) != MU_TORCH_MAGIC) {
        t->generation = MU_TORCH_1;
        return 0;
    }
    t->generation = MU_TORCH_2;
    *ret_len = MU_TORCH_VALIDATE_LEN;
    return 1;
}

/* What step() returns for a request that is complete and cannot be executed yet. */
#define BLOCKED 2

/* Executes the request at the start of `in`: returns 1 and its length, 0 if it is not complete,
 * BLOCKED, or an error. */
static int step(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span in,
                size_t *ret_len)
{
    uint8_t op;
    int got;

    if (t->generation == MU_TORCH_UNDECIDED) {
        got = decide(t, in, ret_len);
        if (got != 0 || t->generation == MU_TORCH_UNDECIDED) {
            return got;
        }
    }
    op = op_of(t, in.data[0]);
    if (op == MU_TORCH_NONE) {
        return refuse_opcode(t, in.data[0]);
    }
    got = measure(t, &mu_torch_shapes[op], in, ret_len);
    if (got == 1) {
        struct mu_span request = mu_span(in.data, *ret_len);
        int err;

        if (t->holds != NULL && t->holds->count != 0) {
            int may = mu_torch_server_ask(t, (enum mu_torch_op)op, request);

            if (may != 1) {
                t->blocked = may == 0;
                return may == 0 ? BLOCKED : may;
            }
        }
        err = ks == NULL ? mu_torch_server_defer(t, (enum mu_torch_op)op, request)
                         : mu_torch_server_execute(t, ks, (enum mu_torch_op)op, request);
        if (err != 0) {
            return err;
        }
    }
    return got;
}

static int fail_memory(struct mu_torch_server *t, int err)
{
    struct mu_errmsg e;

    return mu_torch_server_fail(
        t, mu_err(&e, err, "cannot hold a half-sent request: %s", muster_strerror(err)), &e);
}

/* Takes bytes from `in` while a half-sent request waits in t->in. */
static int recv_buffered(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span in,
                         size_t *ret_used)
{
    size_t n = expected_len(t) - t->in.len;
    size_t len;
    int got;

    if (n > in.len) {
        n = in.len;
    }
    got = mu_buf_append(&t->in, mu_span(in.data, n));
    if (got != 0) {
        return fail_memory(t, got);
    }
    got = step(t, ks, mu_buf_span(&t->in), &len);
    if (got < 0) {
        return got;
    }
    if (got == BLOCKED) {
        /* As if the last bytes had not come yet: they come again with the next call. */
        t->in.len -= n;
        got = measure(t, &mu_torch_shapes[op_of(t, mu_buf_span(&t->in).data[0])],
                      mu_buf_span(&t->in), &len);
        MU_ASSERT(got == 0);
        *ret_used = 0;
        return 0;
    }
    if (got == 1) {
        MU_ASSERT(len == t->in.len);
        mu_buf_reset(&t->in);
        mu_buf_trim(&t->in, 0);
    }
    *ret_used = n;
    return 0;
}

bool mu_torch_server_is_full(const struct mu_torch_server *t)
{
    return t->deferred_bytes > t->limits->output_bytes_high ||
           t->deferred_count >= MU_TORCH_DEFERRED_MAX;
}

static bool has_room(const struct mu_torch_server *t)
{
    return mu_torch_server_output_len(t) <= t->limits->output_bytes_high &&
           !mu_torch_server_is_full(t);
}

/* Executes complete requests in `in` in place; keeps a copy of an incomplete one. */
static int recv_direct(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span in,
                       size_t *ret_used)
{
    size_t used = 0;

    while (used < in.len && has_room(t)) {
        size_t len;
        int got = step(t, ks, mu_span_skip(in, used), &len);

        if (got < 0) {
            return got;
        }
        if (got == BLOCKED) {
            break;
        }
        if (got == 0) {
            got = mu_buf_append(&t->in, mu_span_skip(in, used));
            if (got != 0) {
                return fail_memory(t, got);
            }
            used = in.len;
            break;
        }
        used += len;
    }
    *ret_used = used;
    return 0;
}

int mu_torch_server_recv(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span in,
                         size_t *ret_used)
{
    size_t used = 0;

    if (t->poison != 0) {
        return t->poison;
    }
    while (used < in.len && has_room(t) && !t->blocked) {
        struct mu_span rest = mu_span_skip(in, used);
        size_t n = 0;
        int err = t->in.len != 0 ? recv_buffered(t, ks, rest, &n) : recv_direct(t, ks, rest, &n);

        if (err != 0 && ks == NULL) {
            mu_torch_server_drop_waits(t);
            return err;
        }
        if (err != 0) {
            drop_registrations(t, ks);
            return err;
        }
        used += n;
    }
    *ret_used = used;
    return 0;
}

size_t mu_torch_server_memory(const struct mu_torch_server *t)
{
    return t->in.cap + t->out.cap + t->lent_memory + t->deferred_bytes +
           t->watch_count * sizeof(struct mu_torch_watch) +
           (t->errmsg != NULL ? strlen(t->errmsg) + 1 : 0);
}
