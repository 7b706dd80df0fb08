#include "proto/peer/mss.h"

#include <muster/error.h>

#include "codec/bin/uvarint.h"
#include "core/assert.h"

enum {
    LENGTH_LEN_MAX = 2, /* of the longest message */
    /* The most that one negotiation can write: every name of ours, or an answer to every one of
     * theirs. The other side need not read it before the negotiation is over. */
    SAID_BYTES_MAX = (MU_MSS_PROPOSALS_MAX + 1) * (LENGTH_LEN_MAX + MU_MSS_MESSAGE_MAX),
};

static const struct mu_span header = {(const uint8_t *)"/multistream/1.0.0", 18};
static const struct mu_span not_available = {(const uint8_t *)"na", 2};
static const struct mu_span list_all = {(const uint8_t *)"ls", 2};

void mu_mss_init(struct mu_mss *m, enum mu_mss_role role)
{
    *m = (struct mu_mss){.role = role, .state = MU_MSS_WANT_HEADER};
    mu_buf_init(&m->in, MU_UVARINT_LEN_MAX + MU_MSS_MESSAGE_MAX);
    mu_buf_init(&m->names, SAID_BYTES_MAX);
    mu_buf_init(&m->out, SAID_BYTES_MAX);
}

void mu_mss_fini(struct mu_mss *m)
{
    mu_buf_fini(&m->in);
    mu_buf_fini(&m->names);
    mu_buf_fini(&m->out);
}

static int fail(struct mu_mss *m, int code, const char *text)
{
    m->poison = code;
    return mu_err(&m->why, code, "%s", text);
}

/* --- messages --------------------------------------------------------------------------------- */

static size_t message_len(struct mu_span name)
{
    return mu_uvarint_len(name.len + 1) + name.len + 1;
}

/* Writes into room that was reserved. */
static void put_message(struct mu_buf *to, struct mu_span name)
{
    uint8_t length[MU_UVARINT_LEN_MAX + 1];

    mu_buf_put(to, mu_span(length, mu_uvarint_put(length, name.len + 1)));
    mu_buf_put(to, name);
    mu_buf_put(to, MU_SPAN_LIT("\n"));
}

static int append_message(struct mu_buf *to, struct mu_span name)
{
    int err = mu_buf_reserve(to, message_len(name));

    if (err == 0) {
        put_message(to, name);
    }
    return err;
}

/*
 * Reads the message that `bytes` begin with: its whole length and the name in it. MUSTER_EAGAIN:
 * there are too few bytes to know its length; MUSTER_EPROTO, MUSTER_ELIMIT.
 */
static int measure(struct mu_span bytes, size_t *ret_len, size_t *ret_name_at)
{
    uint64_t len;
    size_t at;
    int err = mu_uvarint_get(bytes, &at, &len);

    if (err != 0) {
        return err;
    }
    if (len == 0) {
        return MUSTER_EPROTO; /* There is not even a line end. */
    }
    if (len > MU_MSS_MESSAGE_MAX) {
        return MUSTER_ELIMIT;
    }
    *ret_len = at + (size_t)len;
    *ret_name_at = at;
    return 0;
}

/* Returns the name in the first message, which exists. */
static struct mu_span first_name(const struct mu_buf *messages)
{
    size_t len = 0;
    size_t at = 0;

    if (messages->len == 0) {
        return (struct mu_span){0};
    }
    MU_ASSERT(measure(mu_buf_span(messages), &len, &at) == 0 && len <= messages->len);
    return mu_span(mu_buf_span(messages).data + at, len - at - 1);
}

/* --- initiator -------------------------------------------------------------------------------- */

int mu_mss_propose(struct mu_mss *m, struct mu_span name)
{
    size_t len = message_len(name);
    bool first = m->proposals == 0;
    int err;

    if (m->role != MU_MSS_INITIATOR || m->state == MU_MSS_AGREED || m->state == MU_MSS_REFUSED ||
        m->poison != 0 || name.len == 0 || name.len > MU_MSS_NAME_MAX ||
        memchr(name.data, '\n', name.len) != NULL) {
        return MUSTER_EINVAL;
    }
    if (m->proposals == MU_MSS_PROPOSALS_MAX) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(&m->names, len);
    if (err == 0 && first) {
        err = mu_buf_reserve(&m->out, message_len(header) + len);
    }
    if (err != 0) {
        return err;
    }
    put_message(&m->names, name);
    if (first) {
        put_message(&m->out, header);
        put_message(&m->out, name);
    }
    m->proposals++;
    return 0;
}

/* Handles an answer to the first of our names. */
static int take_answer(struct mu_mss *m, struct mu_span name)
{
    struct mu_span ours = first_name(&m->names);
    size_t len = message_len(ours);
    int err = 0;

    if (ours.len != 0 && mu_span_eq(name, ours)) {
        m->state = MU_MSS_AGREED;
        m->event = MU_MSS_EV_AGREED;
        return 0;
    }
    if (ours.len == 0 || !mu_span_eq(name, not_available)) {
        return fail(m, MUSTER_EPROTO, "the answer is for another protocol than was proposed");
    }
    if (m->names.len == len) {
        m->state = MU_MSS_REFUSED;
        m->event = MU_MSS_EV_REFUSED;
    } else {
        struct mu_span rest = mu_span_skip(mu_buf_span(&m->names), len);
        size_t next_len = 0;
        size_t at;

        MU_ASSERT(measure(rest, &next_len, &at) == 0);
        err = mu_buf_append(&m->out, mu_span(rest.data, next_len));
    }
    if (err == 0) {
        mu_buf_consume(&m->names, len);
    }
    return err;
}

bool mu_mss_may_send(const struct mu_mss *m)
{
    if (m->role == MU_MSS_RESPONDER || m->state == MU_MSS_AGREED) {
        return m->state == MU_MSS_AGREED;
    }
    return m->state != MU_MSS_REFUSED && m->names.len != 0 &&
           message_len(first_name(&m->names)) == m->names.len;
}

/* --- responder -------------------------------------------------------------------------------- */

static int take_name(struct mu_mss *m, struct mu_span name)
{
    if (m->proposals == MU_MSS_PROPOSALS_MAX) {
        return fail(m, MUSTER_ELIMIT, "the peer proposed too many protocols");
    }
    if (name.len == 0 || mu_span_eq(name, list_all) || mu_span_eq(name, not_available)) {
        int err = append_message(&m->out, not_available);

        m->proposals += err == 0 ? 1 : 0;
        return err;
    }
    m->proposals++;
    m->state = MU_MSS_ASKED;
    m->event = MU_MSS_EV_PROPOSED;
    return 0;
}

int mu_mss_accept(struct mu_mss *m)
{
    int err;

    MU_ASSERT(m->state == MU_MSS_ASKED);
    err = append_message(&m->out, first_name(&m->in));
    m->state = err == 0 ? MU_MSS_AGREED : m->state;
    return err;
}

int mu_mss_refuse(struct mu_mss *m)
{
    int err;

    MU_ASSERT(m->state == MU_MSS_ASKED);
    err = append_message(&m->out, not_available);
    if (err == 0) {
        m->state = MU_MSS_WANT_NAME;
        mu_buf_reset(&m->in);
    }
    return err;
}

/* --- in --------------------------------------------------------------------------------------- */

static int take_header(struct mu_mss *m, struct mu_span name)
{
    int err = 0;

    if (!mu_span_eq(name, header)) {
        return fail(m, MUSTER_EPROTO, "the peer does not speak multistream-select");
    }
    if (m->role == MU_MSS_RESPONDER) {
        err = append_message(&m->out, header);
    }
    if (err == 0) {
        m->state = m->role == MU_MSS_RESPONDER ? MU_MSS_WANT_NAME : MU_MSS_WANT_ANSWER;
    }
    return err;
}

/* Handles the message in `in`, which is complete. */
static int take_message(struct mu_mss *m, size_t len, size_t name_at)
{
    struct mu_span name = mu_span(mu_buf_span(&m->in).data + name_at, len - name_at - 1);
    int err = 0;

    if (name.data[name.len] != '\n') {
        return fail(m, MUSTER_EPROTO, "a name without a line end");
    }
    switch (m->state) {
    case MU_MSS_WANT_HEADER:
        err = take_header(m, name);
        break;
    case MU_MSS_WANT_ANSWER:
        err = take_answer(m, name);
        break;
    case MU_MSS_WANT_NAME:
        err = take_name(m, name);
        break;
    case MU_MSS_ASKED:
    case MU_MSS_AGREED:
    case MU_MSS_REFUSED:
        MU_ASSERT(false); /* nothing is read in this state */
        break;
    }
    if (err == 0 && m->state != MU_MSS_ASKED) {
        mu_buf_reset(&m->in);
    }
    return err;
}

static bool listens(const struct mu_mss *m)
{
    return m->state != MU_MSS_ASKED && m->state != MU_MSS_AGREED && m->state != MU_MSS_REFUSED;
}

/* Adds bytes to the message that was begun, and handles it if it is complete; `*ret_used` is how
 * much of `in` was used. */
static int recv_some(struct mu_mss *m, struct mu_span in, size_t *ret_used)
{
    size_t len = 0;
    size_t name_at = 0;
    size_t take;
    int err = measure(mu_buf_span(&m->in), &len, &name_at);

    /* While the message's length is not known, this takes one byte; then all of it. */
    take = err == 0 ? len - m->in.len : 1;
    take = take < in.len ? take : in.len;
    err = mu_buf_append(&m->in, mu_span(in.data, take));
    if (err != 0) {
        return err;
    }
    err = measure(mu_buf_span(&m->in), &len, &name_at);
    if (err == MUSTER_ELIMIT) {
        err = fail(m, err, "a message of more than 1024 bytes");
    } else if (err == MUSTER_EPROTO) {
        err = fail(m, err, "a length that cannot be read");
    } else if (err == MUSTER_EAGAIN) {
        err = 0;
    } else if (m->in.len == len) {
        err = take_message(m, len, name_at);
    }
    if (err == MUSTER_ENOMEM) {
        m->in.len -= take; /* The bytes count as not received. */
        return err;
    }
    *ret_used = take;
    return err;
}

int mu_mss_recv(struct mu_mss *m, struct mu_span in, size_t *ret_used)
{
    size_t used = 0;
    int err = m->poison;

    while (err == 0 && used < in.len && listens(m)) {
        size_t taken = 0;

        err = recv_some(m, mu_span_skip(in, used), &taken);
        used += taken;
    }
    *ret_used = used;
    return used != 0 && m->poison == 0 ? 0 : err;
}

bool mu_mss_next_event(struct mu_mss *m, struct mu_mss_event *ret_event)
{
    if (m->event == 0) {
        return false;
    }
    *ret_event = (struct mu_mss_event){m->event, mu_mss_name(m)};
    m->event = 0;
    return true;
}

struct mu_span mu_mss_name(const struct mu_mss *m)
{
    if (m->state != MU_MSS_AGREED && m->state != MU_MSS_ASKED) {
        return (struct mu_span){0};
    }
    return first_name(m->role == MU_MSS_INITIATOR ? &m->names : &m->in);
}

/* --- out -------------------------------------------------------------------------------------- */

struct mu_span mu_mss_output(const struct mu_mss *m)
{
    return mu_buf_span(&m->out);
}

void mu_mss_sent(struct mu_mss *m, size_t len)
{
    mu_buf_consume(&m->out, len);
}

const char *mu_mss_errmsg(const struct mu_mss *m)
{
    return m->why.text;
}
