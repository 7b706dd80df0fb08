/* Frames out. Sequenced ones are kept until they are acknowledged, control frames go before them.
 */
#include "proto/rpc_internal.h"

#include "core/assert.h"

/* Whatever is said carries the acknowledgement and shows that we are alive. */
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
    size_t len = r->out.len - at - MU_RPC_HEADER;

    MU_ASSERT(len <= UINT32_MAX);
    mu_put_u32(r->out.data + r->out.head + at, (uint32_t)len);
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

/* --- what is kept ------------------------------------------------ */

static bool is_over(const struct mu_rpc *r, uint64_t high)
{
    return r->out.len - r->out_sent > high || r->out.len > high * MU_RPC_KEPT_FACTOR;
}

bool mu_rpc_is_crowded(const struct mu_rpc *r)
{
    return is_over(r, r->config.output_bytes_high);
}

static size_t frame_size_at(const struct mu_rpc *r, size_t offset)
{
    return MU_RPC_HEADER + (size_t)mu_get_u32(r->out.data + r->out.head + offset);
}

void mu_rpc_drop_acked(struct mu_rpc *r, uint64_t ack)
{
    size_t bytes = 0;

    while (r->out_base < ack) {
        bytes += frame_size_at(r, bytes);
        r->out_base++;
    }
    mu_buf_consume(&r->out, bytes);
    mu_buf_trim(&r->out, MU_RPC_KEEP_BYTES);
    r->out_sent -= bytes < r->out_sent ? bytes : r->out_sent;
}

void mu_rpc_rewind(struct mu_rpc *r)
{
    r->out_sent = 0;
    r->out_left = 0;
    r->out_seq = r->out_base;
}

void mu_rpc_cut_output(struct mu_rpc *r)
{
    r->out.len = r->out_sent + r->out_left;
}

/* --- out --------------------------------------------------------- */

struct mu_span mu_rpc_output(const struct mu_rpc *r)
{
    struct mu_span rest;

    if (r->link == MU_RPC_LINK_NONE) {
        return (struct mu_span){0};
    }
    rest = mu_span_skip(mu_buf_span(&r->out), r->out_sent);
    if (r->out_left != 0) {
        /* The frame that was begun comes first; then control frames, if there are any. */
        rest.len = r->ctl.len != 0 ? r->out_left : rest.len;
        return rest;
    }
    if (r->ctl.len != 0) {
        return mu_buf_span(&r->ctl);
    }
    return r->link == MU_RPC_LINK_UP ? rest : (struct mu_span){0};
}

static void sent_sequenced(struct mu_rpc *r, size_t n)
{
    MU_ASSERT(n <= r->out.len - r->out_sent);
    while (n != 0) {
        size_t part;

        if (r->out_left == 0) {
            r->out_left = frame_size_at(r, r->out_sent);
        }
        part = n < r->out_left ? n : r->out_left;
        r->out_sent += part;
        r->out_left -= part;
        n -= part;
        if (r->out_left == 0) {
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

/* --- on the way -------------------------------------------------- */

/*
 * Control frames that are made here find room without fail: a link begins with enough of it, and
 * they are written only when all the others have left.
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
        mu_put_u64(nonce, ++r->ping_nonce);
        mu_rpc_put_control(r, &r->ctl, MU_RPC_PING, mu_span(nonce, sizeof(nonce)));
    }
    if (r->ctl.len == 0) {
        mu_rpc_put_control(r, &r->ctl, MU_RPC_ACK, (struct mu_span){0});
    }
    r->want_pong = false;
    r->want_ping = false;
}

/*
 * Grants calls by halves of the window. While we are crowded nothing is granted: a peer that does
 * not read its replies is not asked for more, whatever makes the replies.
 */
static void grant_calls(struct mu_rpc *r)
{
    uint64_t limit = r->peer_done + r->config.call_window_bytes;
    uint8_t total[8];

    if (limit - r->peer_limit < r->config.call_window_bytes / 2 || mu_rpc_is_crowded(r) ||
        mu_rpc_reserve(r, sizeof(total)) != 0) {
        return;
    }
    mu_put_u64(total, limit);
    mu_rpc_put(r, MU_RPC_CREDIT, 0, mu_span(total, sizeof(total)));
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
    /* Half of what stalled them, so that each does not go on for a single frame only. */
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
