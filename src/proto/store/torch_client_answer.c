#include "proto/store/torch_client_private.h"

#include "core/alloc.h"
#include "core/assert.h"

/* Returns the request whose answer comes next; NULL while that is the handshake's. */
static struct mu_torch_flight *first_flight(const struct mu_torch_client *c)
{
    return c->greeted ? MU_CONTAINER_OF(c->flights.next, struct mu_torch_flight, link) : NULL;
}

static int poison(struct mu_torch_client *c, int code)
{
    c->poison = code;
    return code;
}

/*
 * Reads the lengths in the part of the answer that has come, from where it stopped last. Returns 1
 * once the answer is complete, 0 before, or an error. scan_offset is the place of the next length;
 * after it at least 8 bytes must come for each of scan_left.
 */
static int measure(struct mu_torch_client *c, enum mu_torch_expect expect, size_t values)
{
    struct mu_span in = mu_buf_span(&c->in);
    uint64_t left = c->scan_left;
    size_t offset = c->scan_offset;

    if (offset == 0) {
        switch (expect) {
        case MU_TORCH_EXPECT_WAIT:
        case MU_TORCH_EXPECT_CANCEL:
        case MU_TORCH_EXPECT_CHECK:
        case MU_TORCH_EXPECT_ACK:
            offset = 1;
            break;
        case MU_TORCH_EXPECT_PONG:
            offset = 4;
            break;
        case MU_TORCH_EXPECT_NUMBER:
            offset = 8;
            break;
        case MU_TORCH_EXPECT_VALUES:
            left = values;
            break;
        case MU_TORCH_EXPECT_POP:
        case MU_TORCH_EXPECT_LIST:
            if (in.len < 8) {
                return 0;
            }
            offset = 8;
            left = mu_get_u64(in.data);
            if (left > INT64_MAX) {
                return poison(c, mu_err(&c->errmsg, MUSTER_EPROTO, "a negative count"));
            }
            if (expect == MU_TORCH_EXPECT_POP) {
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

/* Points c->values at the `count` parts in the answer from `offset` on. */
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
static int finish(struct mu_torch_client *c, struct mu_torch_flight *f, int status, int64_t number,
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

/* The wait or the check succeeded: sends the second step if there is one. */
static int go_on(struct mu_torch_client *c, struct mu_torch_flight *f)
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

static int take_wait(struct mu_torch_client *c, struct mu_torch_flight *f, uint8_t byte)
{
    if (byte == MU_TORCH_STOP_WAITING) {
        if (!c->canceling) {
            return go_on(c, f);
        }
        /* The answer crossed our CANCEL_WAIT, whose own answer will still come. */
        f->expect = MU_TORCH_EXPECT_CANCEL;
        return 0;
    }
    if (byte == MU_TORCH_WAIT_CANCELED && c->canceling) {
        return finish(c, f, MUSTER_ECANCELED, 0, 0);
    }
    return refuse_byte(c, "WAIT", byte);
}

static int take_check(struct mu_torch_client *c, struct mu_torch_flight *f, uint8_t byte)
{
    if (byte == MU_TORCH_READY) {
        return go_on(c, f);
    }
    if (byte == MU_TORCH_NOT_READY) {
        return finish(c, f, f->verb == MU_STORE_CHECK ? 0 : MUSTER_ENOENT, 0, 0);
    }
    return refuse_byte(c, "CHECK", byte);
}

static int take_pop(struct mu_torch_client *c, struct mu_torch_flight *f)
{
    int64_t len_before = (int64_t)mu_get_u64(mu_buf_span(&c->in).data);
    int err;

    if (len_before == 0) {
        return finish(c, f, f->blocking ? MUSTER_EAGAIN : MUSTER_ENOENT, 0, 0);
    }
    err = split_values(c, 8, 1);
    return err != 0 ? err : finish(c, f, 0, len_before, 1);
}

/* Returns the user's keys: those with a leading '/', without it. */
static int take_list(struct mu_torch_client *c, struct mu_torch_flight *f)
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

static int take_values(struct mu_torch_client *c, struct mu_torch_flight *f)
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

/* Handles a complete answer in c->in. */
static int take_answer(struct mu_torch_client *c, struct mu_torch_flight *f,
                       enum mu_torch_expect expect)
{
    const uint8_t *data = mu_buf_span(&c->in).data;

    switch (expect) {
    case MU_TORCH_EXPECT_PONG:
        return take_pong(c);
    case MU_TORCH_EXPECT_WAIT:
        return take_wait(c, f, data[0]);
    case MU_TORCH_EXPECT_CANCEL:
        if (data[0] != MU_TORCH_WAIT_CANCELED) {
            return refuse_byte(c, "CANCEL_WAIT", data[0]);
        }
        /* A plain wait did succeed; a request with a second step was given up. */
        return finish(c, f, f->then == 0 ? 0 : MUSTER_ECANCELED, 0, 0);
    case MU_TORCH_EXPECT_CHECK:
        return take_check(c, f, data[0]);
    case MU_TORCH_EXPECT_ACK:
        return data[0] == MU_TORCH_READY ? finish(c, f, 0, 0, 0) : refuse_byte(c, "CHECK", data[0]);
    case MU_TORCH_EXPECT_NUMBER:
        return finish(c, f, 0, (int64_t)mu_get_u64(data), 0);
    case MU_TORCH_EXPECT_VALUES:
        return take_values(c, f);
    case MU_TORCH_EXPECT_POP:
        return take_pop(c, f);
    case MU_TORCH_EXPECT_LIST:
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
    struct mu_torch_flight *f = first_flight(c);
    enum mu_torch_expect expect = f == NULL ? MU_TORCH_EXPECT_PONG : f->expect;
    size_t values = f == NULL ? 0 : f->values;
    size_t n;
    int got = measure(c, expect, values);

    MU_ASSERT(got == 0);
    /* Takes only what certainly belongs to this answer, and not a byte of the next one. */
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
            return poison(c, mu_err(&c->errmsg, MUSTER_EPROTO, "an answer without a request"));
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
