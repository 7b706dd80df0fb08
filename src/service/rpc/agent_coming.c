/*
 * Messages that come in pieces, and long answers on their way out: their memory. A message says how
 * long it is, so the pieces after the first are received right where they stay.
 */
#include "core/alloc.h"
#include "service/rpc/agent_internal.h"

/* The first memory for a message; it doubles at least when it grows. */
#define FIRST_BYTES ((size_t)1 << 20)
#define GROWTH      4
/* The alignment of the first part's bytes, for users that compute with them. */
#define ALIGNMENT 64

/* How many sent answers are looked at in one turn. */
#define SWEEP_MAX 16

static struct mu_buf take_buf(struct mu_rpc_agent *a, size_t len, size_t least)
{
    struct mu_buf buf;

    mu_buf_init(&buf, 0);
    if (a->config.take_buf != NULL) {
        buf = a->config.take_buf(a->config.context, len, least);
    } else {
        buf.data = mu_malloc(least);
        buf.cap = buf.data == NULL ? 0 : least;
    }
    return buf;
}

void mu_rpc_agent_give_buf(struct mu_rpc_agent *a, struct mu_buf *buf)
{
    if (a->config.give_buf != NULL && buf->data != NULL) {
        a->config.give_buf(a->config.context, buf);
    }
    mu_buf_fini(buf);
}

/* --- in --------------------------------------------------------------------------------------- */

/* Allocates the first memory of a message whose head says that it has `total` bytes. */
static int begin(struct mu_rpc_agent *a, struct mu_rpc_coming *c, size_t head)
{
    size_t whole = c->total + ALIGNMENT;
    struct mu_buf buf;

    if (c->total > c->buf.max) {
        return MUSTER_ELIMIT;
    }
    buf = take_buf(a, whole, whole < FIRST_BYTES ? whole : FIRST_BYTES);
    if (buf.data == NULL) {
        return MUSTER_ENOMEM;
    }
    buf.max = c->buf.max;
    buf.head = (ALIGNMENT - ((uintptr_t)buf.data + head) % ALIGNMENT) % ALIGNMENT;
    c->buf = buf;
    return 0;
}

/* Makes room for `len` more bytes, and for some that will come if `len` does not fit. */
static int reserve(struct mu_rpc_coming *c, size_t len)
{
    struct mu_buf *b = &c->buf;
    size_t whole = c->total + ALIGNMENT;
    size_t cap = b->len + len > whole / GROWTH ? whole : (b->len + len) * GROWTH;
    uint8_t *data;

    if (c->total == 0 || b->len + len > c->total) {
        return mu_buf_reserve(b, len); /* it is longer than it said, or did not say */
    }
    if (len <= b->cap - b->head - b->len) {
        return 0;
    }
    /* mu_realloc() moves long memory without a copy; mu_buf_reserve() would copy it. */
    data = mu_realloc(b->data, cap);
    if (data == NULL) {
        return MUSTER_ENOMEM;
    }
    b->data = data;
    b->cap = cap;
    return 0;
}

int mu_rpc_coming_add(struct mu_rpc_line *line, uint64_t id, struct mu_rpc_coming *c,
                      struct mu_span piece)
{
    struct mu_rpc *rpc = mu_rpc_line_rpc(line);
    size_t left;
    int err = 0;

    /* The buffer may move: no piece has a place until it gets one below. */
    if (c->total != 0) {
        (void)mu_rpc_land(rpc, id, (struct mu_space){0});
    }
    if (c->buf.data == NULL) {
        size_t head = 0;

        if (mu_rpc_msg_total(piece, &head, &c->total) == 0 && c->total > FIRST_BYTES / 2) {
            err = begin(line->agent, c, head);
        } else {
            c->total = 0;
        }
    }
    if (err == 0 && c->buf.data != NULL && piece.data == c->buf.data + c->buf.head + c->buf.len) {
        (void)mu_buf_grow(&c->buf, piece.len); /* it was received there */
    } else if (err == 0) {
        err = reserve(c, piece.len);
        if (err == 0) {
            err = mu_buf_append(&c->buf, piece);
        }
    }
    if (err != 0 || c->total == 0 || c->buf.len >= c->total) {
        return err;
    }
    left = c->total - c->buf.len;
    left = left < MU_RPC_PIECE ? left : MU_RPC_PIECE;
    if (reserve(c, left) == 0) {
        (void)mu_rpc_land(rpc, id, (struct mu_space){c->buf.data + c->buf.head + c->buf.len, left});
    }
    return 0;
}

void mu_rpc_coming_drop(struct mu_rpc_line *line, uint64_t id, struct mu_rpc_coming *c)
{
    if (line != NULL && c->total != 0) {
        (void)mu_rpc_land(mu_rpc_line_rpc(line), id, (struct mu_space){0});
    }
    mu_buf_fini(&c->buf);
    c->total = 0;
}

/* --- out -------------------------------------------------------------------------------------- */

void mu_rpc_answer_keep(struct mu_rpc_agent *a, struct mu_rpc_blob *blob)
{
    mu_list_push(&a->answers, &blob->link);
}

void mu_rpc_answers_sweep(struct mu_rpc_agent *a, bool all)
{
    size_t seen = 0;

    MU_LIST_FOREACH_SAFE (it, tmp, &a->answers) {
        struct mu_rpc_blob *blob = MU_CONTAINER_OF(it, struct mu_rpc_blob, link);

        if (!all && seen++ == SWEEP_MAX) {
            return;
        }
        if (blob->refs == 1) {
            mu_rpc_agent_give_buf(a, &blob->buf);
        }
        if (all || blob->refs == 1) {
            mu_list_remove(&blob->link);
            mu_rpc_blob_drop(blob);
        }
    }
}
