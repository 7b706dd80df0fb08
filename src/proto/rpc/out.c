/* Frames out. Sequenced ones are kept until they are acknowledged, control frames go before them.
 */
#include "proto/rpc/rpc_internal.h"

#include "core/assert.h"

/* Every frame carries the acknowledgement and shows that we are alive. */
static void note_said(struct mu_rpc *r)
{
    r->in_quiet = 0;
    r->in_quiet_bytes = 0;
    r->last_tx = r->now.mono;
}

int mu_rpc_reserve(struct mu_rpc *r, size_t len)
{
    return mu_buf_reserve(&r->out, MU_RPC_HEADER + len);
}

size_t mu_rpc_begin(struct mu_rpc *r, enum mu_rpc_frame_type type, uint64_t wire_id)
{
    struct mu_rpc_header h = {.type = (uint8_t)type, .ack = r->in_seq, .id = wire_id};
    size_t at = r->out.len;

    mu_rpc_header_encode(mu_buf_grow(&r->out, MU_RPC_HEADER), &h);
    note_said(r);
    return at;
}

void mu_rpc_finish(struct mu_rpc *r, size_t at)
{
    mu_rpc_finish_lent(r, at, 0);
}

void mu_rpc_finish_lent(struct mu_rpc *r, size_t at, size_t lent)
{
    size_t len = r->out.len - at - MU_RPC_HEADER + lent;

    MU_ASSERT(len <= UINT32_MAX);
    mu_put_u32(r->out.data + r->out.head + at, (uint32_t)len);
    r->kept_bytes += MU_RPC_HEADER + len;
    r->out_next++;
}

void mu_rpc_put(struct mu_rpc *r, enum mu_rpc_frame_type type, uint64_t wire_id,
                struct mu_span payload)
{
    size_t at = mu_rpc_begin(r, type, wire_id);

    mu_buf_put(&r->out, payload);
    mu_rpc_finish(r, at);
}

void mu_rpc_put_control(struct mu_rpc *r, struct mu_buf *ctl, enum mu_rpc_frame_type type,
                        struct mu_span payload)
{
    struct mu_rpc_header h = {
        .len = (uint32_t)payload.len, .type = (uint8_t)type, .ack = r->in_seq};

    mu_rpc_header_encode(mu_buf_grow(ctl, MU_RPC_HEADER), &h);
    mu_buf_put(ctl, payload);
    note_said(r);
}

/* --- kept frames ------------------------------------------------- */

static bool is_over(const struct mu_rpc *r, uint64_t high)
{
    uint64_t kept = high * MU_RPC_KEPT_FACTOR;

    /* The other end need not acknowledge less. */
    kept = kept < 2 * MU_RPC_QUIET_BYTES ? 2 * MU_RPC_QUIET_BYTES : kept;
    return r->kept_bytes - r->sent_bytes > high || r->kept_bytes > kept;
}

bool mu_rpc_is_crowded(const struct mu_rpc *r)
{
    return is_over(r, r->config.output_bytes_high);
}

struct frame {
    size_t bytes; /* in all */
    size_t lent;  /* of these, not in `out` */
};

/* Describes the frame that begins there; `loan` is the first that can belong to it. */
static struct frame frame_at(const struct mu_rpc *r, size_t offset, struct mu_list *loan)
{
    size_t bytes = MU_RPC_HEADER + (size_t)mu_get_u32(r->out.data + r->out.head + offset);
    const struct mu_rpc_loan *l = mu_rpc_loan_at(r, loan);

    /* If the next frame has a loan, the loan follows at least its header. */
    if (l != NULL && l->at - r->out_at <= offset + bytes) {
        return (struct frame){bytes, l->data.len};
    }
    return (struct frame){bytes, 0};
}

void mu_rpc_drop_acked(struct mu_rpc *r, uint64_t ack)
{
    size_t inside = 0;
    size_t bytes = 0;

    while (r->out_base < ack) {
        struct frame f = frame_at(r, inside, r->loans.next);

        if (f.lent != 0) {
            mu_rpc_loan_drop(r, mu_rpc_loan_at(r, r->loans.next));
        }
        inside += f.bytes - f.lent;
        bytes += f.bytes;
        r->out_base++;
    }
    mu_buf_consume(&r->out, inside);
    mu_buf_trim(&r->out, MU_RPC_KEEP_BYTES);
    r->out_at += inside;
    r->out_sent -= inside < r->out_sent ? inside : r->out_sent;
    r->kept_bytes -= bytes;
    r->sent_bytes -= bytes < r->sent_bytes ? bytes : r->sent_bytes;
}

void mu_rpc_rewind(struct mu_rpc *r)
{
    r->out_sent = 0;
    r->out_left = 0;
    r->out_lent = 0;
    r->sent_bytes = 0;
    r->loan_due = r->loans.next;
    r->out_seq = r->out_base;
}

/* Returns how much of the frame that was begun must still be sent from `out`. */
static size_t inside_left(const struct mu_rpc *r)
{
    return r->out_left > r->out_lent ? r->out_left - r->out_lent : 0;
}

void mu_rpc_cut_output(struct mu_rpc *r)
{
    struct mu_list *it = r->out_lent != 0 ? r->loan_due->next : r->loan_due;

    while (it != &r->loans) {
        struct mu_rpc_loan *loan = mu_rpc_loan_at(r, it);

        it = it->next;
        mu_rpc_loan_drop(r, loan);
    }
    r->out.len = r->out_sent + inside_left(r);
    r->kept_bytes = r->sent_bytes + r->out_left;
}

/* --- out --------------------------------------------------------- */

struct gathering {
    struct mu_span *spans;
    size_t cap;
    size_t count;
    size_t left; /* bytes that may still be added */
};

static void gather(struct gathering *g, struct mu_span span)
{
    span.len = span.len < g->left ? span.len : g->left;
    if (span.len != 0 && g->count < g->cap) {
        g->spans[g->count++] = span;
        g->left -= span.len;
    }
}

/* Adds a loan without its first `skip` bytes. */
static void gather_loan(struct gathering *g, const struct mu_rpc_loan *loan, size_t skip)
{
    if (loan->lent == NULL) {
        gather(g, mu_span_skip(loan->data, skip));
        return;
    }
    for (size_t i = 0; i < loan->lent->count && g->count < g->cap; i++) {
        struct mu_span span = loan->lent->spans[i];
        size_t gone = skip < span.len ? skip : span.len;

        skip -= gone;
        gather(g, mu_span_skip(span, gone));
    }
}

static void gather_sequenced(const struct mu_rpc *r, struct gathering *g)
{
    struct mu_span out = mu_buf_span(&r->out);
    const struct mu_rpc_loan *loan;
    struct mu_list *it = r->loan_due;
    size_t at = r->out_sent;

    if (r->out_lent != 0 && r->out_left <= r->out_lent) {
        loan = mu_rpc_loan_at(r, it);
        gather_loan(g, loan, r->out_lent - r->out_left);
        it = it->next;
    }
    while ((loan = mu_rpc_loan_at(r, it)) != NULL && g->count < g->cap && g->left != 0) {
        size_t end = (size_t)(loan->at - r->out_at);

        gather(g, mu_span(out.data + at, end - at));
        gather_loan(g, loan, 0);
        at = end;
        it = it->next;
    }
    if (loan == NULL && at < out.len) {
        gather(g, mu_span(out.data + at, out.len - at));
    }
}

size_t mu_rpc_outputv(const struct mu_rpc *r, struct mu_span *spans, size_t cap)
{
    struct gathering g = {.spans = spans, .cap = cap, .left = SIZE_MAX};

    if (r->link == MU_RPC_LINK_NONE) {
        return 0;
    }
    if (r->out_left == 0 && r->ctl.len != 0) {
        gather(&g, mu_buf_span(&r->ctl));
    } else if (r->out_left != 0 || r->link == MU_RPC_LINK_UP) {
        /* The frame that was begun comes first; then control frames, if there are any. */
        g.left = r->ctl.len != 0 ? r->out_left : SIZE_MAX;
        gather_sequenced(r, &g);
    }
    return g.count;
}

struct mu_span mu_rpc_output(const struct mu_rpc *r)
{
    struct mu_span first = {0};

    (void)mu_rpc_outputv(r, &first, 1);
    return first;
}

static void sent_sequenced(struct mu_rpc *r, size_t n)
{
    MU_ASSERT(n <= r->kept_bytes - r->sent_bytes);
    while (n != 0) {
        size_t inside;
        size_t part;

        if (r->out_left == 0) {
            struct frame f = frame_at(r, r->out_sent, r->loan_due);

            r->out_left = f.bytes;
            r->out_lent = f.lent;
        }
        part = n < r->out_left ? n : r->out_left;
        inside = inside_left(r);
        r->out_sent += part < inside ? part : inside;
        r->out_left -= part;
        r->sent_bytes += part;
        n -= part;
        if (r->out_left == 0) {
            r->loan_due = r->out_lent != 0 ? r->loan_due->next : r->loan_due;
            r->out_lent = 0;
            r->out_seq++;
            r->frames_out++;
        }
    }
    r->out_high = r->out_seq > r->out_high ? r->out_seq : r->out_high;
    if (r->grace_ms == 0) {
        mu_rpc_drop_acked(r, r->out_seq);
    }
}

void mu_rpc_sent(struct mu_rpc *r, size_t n)
{
    if (n == 0) {
        return;
    }
    if (r->out_left == 0 && r->ctl.len != 0) {
        mu_buf_consume(&r->ctl, n);
    } else {
        sent_sequenced(r, n);
    }
    mu_rpc_settle(r);
}

/* --- control ----------------------------------------------------- */

/*
 * Control frames that are made here always find room: a link begins with enough of it, and they are
 * written only when all the others have left.
 */
static void write_beats(struct mu_rpc *r)
{
    bool want_ack = r->grace_ms != 0 &&
                    (r->in_quiet > MU_RPC_QUIET_FRAMES || r->in_quiet_bytes > MU_RPC_QUIET_BYTES);
    uint8_t nonce[8];

    if (r->link != MU_RPC_LINK_UP || r->ctl.len != 0 ||
        !(r->want_ping || r->want_pong || want_ack)) {
        return;
    }
    if (mu_buf_reserve(&r->ctl, 2 * (MU_RPC_HEADER + sizeof(nonce))) != 0) {
        return;
    }
    if (r->want_pong) {
        mu_put_u64(nonce, r->pong_nonce);
        mu_rpc_put_control(r, &r->ctl, MU_RPC_PONG, mu_span(nonce, sizeof(nonce)));
    }
    if (r->want_ping) {
        mu_rpc_ask(r, 0);
        mu_put_u64(nonce, r->now.mono.ns); /* The answer says which PING was heard. */
        mu_rpc_put_control(r, &r->ctl, MU_RPC_PING, mu_span(nonce, sizeof(nonce)));
    }
    if (r->ctl.len == 0) {
        mu_rpc_put_control(r, &r->ctl, MU_RPC_ACK, (struct mu_span){0});
    }
    r->want_pong = false;
    r->want_ping = false;
}

/*
 * Grants calls by halves of the window. While we are crowded nothing is granted: an end that does
 * not read its replies is not asked for more calls.
 */
static void grant_calls(struct mu_rpc *r)
{
    uint64_t limit = r->peer_done + r->call_window;
    uint8_t total[8];

    if (limit - r->peer_limit < r->call_window / 2 || mu_rpc_is_crowded(r) ||
        mu_rpc_reserve(r, sizeof(total)) != 0) {
        return;
    }
    mu_rpc_widen(r, &r->call_window, r->config.call_window_bytes_max, &r->call_mark, r->peer_done);
    limit = r->peer_done + r->call_window;
    mu_put_u64(total, limit);
    mu_rpc_put(r, MU_RPC_CREDIT, 0, mu_span(total, sizeof(total)));
    mu_rpc_ask(r, r->out_next);
    r->peer_limit = limit;
}

static void wake_list(struct mu_rpc *r, struct mu_list *list)
{
    struct mu_list *at;

    while ((at = mu_list_pop(list)) != NULL) {
        mu_rpc_make_due(r, MU_CONTAINER_OF(at, struct mu_rpc_entry, stall), MU_RPC_DUE_CREDIT);
    }
}

static void wake_stalled(struct mu_rpc *r)
{
    /* They continue at half of what stalled them, so that each can send more than a single
     * frame. */
    if (is_over(r, r->config.output_bytes_high / 2)) {
        return;
    }
    wake_list(r, &r->stalled_in);
    if (r->terms_known && r->own_spent < r->own_limit) {
        wake_list(r, &r->stalled_out);
        r->credit_event = r->credit_event || r->call_stalled;
        r->call_stalled = false;
    }
}

void mu_rpc_settle(struct mu_rpc *r)
{
    if (r->closed) {
        return;
    }
    grant_calls(r);
    mu_rpc_grant_owed(r);
    mu_rpc_reply_failed(r);
    wake_stalled(r);
    write_beats(r);
}
