/* Links: greeting, the lives of a session, keep-alive. */
#include "proto/rpc/rpc_internal.h"

/* Room that a link's control buffer has beside its greeting, for PING, PONG and ACK. */
#define BEAT_ROOM 96

/* --- round trips ------------------------------------------------- */

void mu_rpc_ask(struct mu_rpc *r, uint64_t seq)
{
    if (r->asked_at.ns == MU_MONO_NEVER.ns) {
        r->asked_at = r->now.mono;
        r->asked_seq = seq;
    }
}

void mu_rpc_note_answer(struct mu_rpc *r, uint64_t ack)
{
    if (r->asked_at.ns != MU_MONO_NEVER.ns &&
        (ack == 0 ? r->asked_seq == 0 : r->asked_seq != 0 && ack >= r->asked_seq)) {
        uint64_t ns = mu_mono_since(r->asked_at, r->now.mono);

        r->rtt_ns = ns < r->rtt_ns ? ns : r->rtt_ns;
        r->asked_at = MU_MONO_NEVER;
    }
}

void mu_rpc_confirm(struct mu_rpc *r, mu_mono_t said)
{
    if (mu_mono_before(r->confirmed, said) && mu_mono_reached(said, r->now.mono)) {
        r->confirmed = said;
    }
}

void mu_rpc_widen(struct mu_rpc *r, uint64_t *window, uint64_t max, struct mu_rpc_mark *mark,
                  uint64_t done)
{
    uint64_t ns = mu_mono_since(mark->at, r->now.mono);
    uint64_t bytes = done - mark->done;

    if (ns == 0 || ns < r->rtt_ns) {
        return; /* What arrives within less than a round trip says nothing about the speed. */
    }
    *mark = (struct mu_rpc_mark){done, r->now.mono};
    if (*window < max && bytes < UINT32_MAX && r->rtt_ns < 60 * MU_NS_PER_S &&
        bytes * (r->rtt_ns / 1000 + 1) / (ns / 1000 + 1) * 2 > *window) {
        *window = *window * 2 < max ? *window * 2 : max;
        mu_trace(&r->config.trace, "rpc.widened", *window, r->rtt_ns);
    }
}

/* --- lives -------------------------------------------------------- */

void mu_rpc_begin_life(struct mu_rpc *r)
{
    r->fresh = true;
    r->terms_known = false;
    r->peer_frame_max = MU_RPC_FRAME_MIN;
    r->in_seq = 0;
    r->in_quiet = 0;
    r->in_quiet_bytes = 0;
    mu_rpc_loans_drop(r);
    mu_buf_reset(&r->out);
    mu_buf_trim(&r->out, 0);
    r->out_at = 0;
    r->kept_bytes = 0;
    r->out_base = 0;
    r->out_next = 0;
    r->out_high = 0;
    mu_rpc_rewind(r);
    r->own_base = r->own_next - mu_rpc_own_first(r);
    r->peer_base += r->peer_next - mu_rpc_peer_first(r);
    r->peer_next = mu_rpc_peer_first(r);
    r->own_spent = 0;
    r->own_limit = MU_RPC_CREDIT_MIN;
    r->peer_spent = 0;
    r->peer_done = 0;
    r->peer_limit = r->config.call_window_bytes;
    r->call_window = r->config.call_window_bytes;
    r->item_window = r->config.item_window_bytes;
    r->call_mark = (struct mu_rpc_mark){0, r->now.mono};
}

static void lose_life(struct mu_rpc *r)
{
    mu_trace(&r->config.trace, "rpc.lost", r->life, r->out_count);
    mu_rpc_end_all(r, MUSTER_ESESSION);
    mu_rpc_begin_life(r);
}

static uint32_t clamp_ms(uint32_t ms, uint32_t least, uint32_t most)
{
    return ms < least ? least : ms > most ? most : ms;
}

void mu_rpc_set_beats(struct mu_rpc *r, uint32_t beat_ms, uint32_t dead_ms)
{
    beat_ms = beat_ms != 0 ? beat_ms : r->config.beat_ms;
    dead_ms = dead_ms != 0 ? dead_ms : r->config.dead_ms;
    r->beat_ms = clamp_ms(beat_ms, MU_RPC_BEAT_MS_MIN, MU_RPC_DEAD_MS_MAX / 2);
    r->dead_ms = clamp_ms(dead_ms, 2 * r->beat_ms, MU_RPC_DEAD_MS_MAX);
}

/* Resets what belongs to one link; `ctl` is taken over. */
static void start_link(struct mu_rpc *r, enum mu_rpc_link link, struct mu_buf *ctl)
{
    mu_buf_fini(&r->ctl);
    r->ctl = *ctl;
    r->link = link;
    r->rtt_ns = UINT64_MAX;
    r->asked_at = MU_MONO_NEVER;
    mu_rpc_ask(r, 0); /* WELCOME answers HELLO, and most often a call answers WELCOME. */
    r->last_rx = r->now.mono;
    r->received_at = r->now.mono;
    r->last_tx = r->now.mono;
    r->last_ping = r->now.mono;
    r->want_ping = false;
    r->want_pong = false;
    r->dead_told = false;
    r->dead_event = false;
    r->drain_told = false;
    mu_rpc_end_frame(r);
    r->in_quiet = 0;
    r->in_quiet_bytes = 0;
    mu_rpc_rewind(r);
}

int mu_rpc_dialled(struct mu_rpc *r, struct mu_now now)
{
    struct mu_rpc_hello hello = {
        .version_min = MU_RPC_VERSION,
        .version_max = MU_RPC_VERSION,
        .life = r->life,
        .calls_credit = r->config.call_window_bytes,
        .frame_bytes_max = r->config.frame_bytes_max,
        .grace_ms = r->config.grace_ms,
        .beat_ms = r->config.beat_ms,
        .dead_ms = r->config.dead_ms,
        .name = mu_span_str(r->config.name),
        .credential = r->config.credential,
    };
    struct mu_rpc_header h = {.type = MU_RPC_HELLO};
    struct mu_buf ctl;
    int err = mu_rpc_usable(r);

    if (err != 0) {
        return err;
    }
    memcpy(hello.session, r->config.session, sizeof(hello.session));
    mu_buf_init(&ctl, r->ctl.max);
    err = mu_buf_reserve(&ctl, MU_RPC_MAGIC_LEN + MU_RPC_HEADER + BEAT_ROOM);
    if (err == 0) {
        mu_buf_put(&ctl, MU_SPAN_LIT(MU_RPC_MAGIC));
        (void)mu_buf_grow(&ctl, MU_RPC_HEADER);
        err = mu_rpc_hello_encode(&ctl, &hello);
    }
    if (err != 0) {
        mu_buf_fini(&ctl);
        return err;
    }
    mu_rpc_unlinked(r, now); /* a link that is still there is replaced */
    mu_rpc_enter(r, now);
    h.len = (uint32_t)(ctl.len - MU_RPC_MAGIC_LEN - MU_RPC_HEADER);
    h.ack = r->in_seq;
    mu_rpc_header_encode(ctl.data + MU_RPC_MAGIC_LEN, &h);
    mu_rpc_set_beats(r, 0, 0);
    start_link(r, MU_RPC_LINK_DIALLED, &ctl);
    mu_trace(&r->config.trace, "rpc.dialled", r->life, r->in_seq);
    return 0;
}

/* --- the side that listens --------------------------------------- */

enum verdict {
    BEGIN = 1, /* a new life, the first one or after another */
    AGAIN,     /* the same life, whose WELCOME did not arrive */
    RESUME,
    STALE,
};

/*
 * Decides which life a HELLO means. The client counts the fresh starts that it saw, so it is one
 * behind if and only if our WELCOME got lost; then it has sent nothing and received nothing in this
 * life. Any other number below ours comes from a connection that was overtaken by a later one (or
 * from another client with the same session), and must not harm the life that goes on.
 */
static enum verdict judge(const struct mu_rpc *r, const struct mu_rpc_hello *hello)
{
    bool one_behind = hello->life + 1 == r->life;

    if (hello->life > r->life || r->life == 0) {
        return BEGIN;
    }
    if (r->fresh) {
        /* Without grace the life ended with its link: there is nothing left to harm. */
        return hello->life == r->life || one_behind ? BEGIN : STALE;
    }
    if (hello->life == r->life) {
        if (r->grace_ms == 0) {
            return BEGIN;
        }
        return hello->ack < r->out_base ? STALE : RESUME;
    }
    if (one_behind && r->in_seq == 0) {
        return r->out_base == 0 ? AGAIN : r->grace_ms == 0 ? BEGIN : STALE;
    }
    return STALE;
}

static int encode_welcome(struct mu_rpc *r, struct mu_buf *ctl, bool resumed)
{
    struct mu_rpc_welcome w = {
        .version = MU_RPC_VERSION,
        .resumed = resumed,
        .calls_credit = r->config.call_window_bytes,
        .frame_bytes_max = r->config.frame_bytes_max,
        .name = mu_span_str(r->config.name),
    };
    int err = mu_buf_reserve(ctl, MU_RPC_HEADER + BEAT_ROOM);

    memcpy(w.incarnation, r->config.incarnation, sizeof(w.incarnation));
    if (err == 0) {
        (void)mu_buf_grow(ctl, MU_RPC_HEADER);
        err = mu_rpc_welcome_encode(ctl, &w);
    }
    return err;
}

/* The times and the acknowledgement are applied only when nothing can fail any more. */
static void complete_welcome(struct mu_rpc *r, struct mu_buf *ctl)
{
    uint8_t *payload = ctl->data + ctl->head + MU_RPC_HEADER;
    struct mu_rpc_header h = {
        .len = (uint32_t)(ctl->len - MU_RPC_HEADER), .type = MU_RPC_WELCOME, .ack = r->in_seq};

    mu_rpc_header_encode(ctl->data + ctl->head, &h);
    mu_put_u32(payload + 16, r->grace_ms);
    mu_put_u32(payload + 20, r->beat_ms);
    mu_put_u32(payload + 24, r->dead_ms);
}

int mu_rpc_accepted(struct mu_rpc *r, struct mu_now now, const struct mu_rpc_hello *hello)
{
    enum verdict verdict = judge(r, hello);
    struct mu_buf ctl;
    int err = mu_rpc_usable(r);

    if (err != 0) {
        return err;
    }
    if (hello->version_min > MU_RPC_VERSION || hello->version_max < MU_RPC_VERSION) {
        return MUSTER_EVERSION;
    }
    if (verdict == STALE) {
        return MUSTER_ESESSION;
    }
    if (hello->life == UINT32_MAX || (verdict == RESUME && hello->ack > r->out_high)) {
        return MUSTER_EPROTO;
    }
    mu_buf_init(&ctl, r->ctl.max);
    err = encode_welcome(r, &ctl, verdict == RESUME);
    if (err != 0) {
        mu_buf_fini(&ctl);
        return err;
    }
    mu_rpc_enter(r, now);
    if (verdict == BEGIN) {
        if (!r->fresh) {
            lose_life(r);
        }
        r->life = hello->life + 1;
    } else if (verdict == RESUME) {
        mu_rpc_drop_acked(r, hello->ack);
    }
    if (verdict != RESUME) {
        r->fresh = false;
        r->own_limit = hello->calls_credit;
        r->peer_frame_max = hello->frame_bytes_max;
        r->terms_known = true;
    }
    r->grace_ms = hello->grace_ms < r->config.grace_ms ? hello->grace_ms : r->config.grace_ms;
    mu_rpc_set_beats(r, hello->beat_ms, hello->dead_ms);
    complete_welcome(r, &ctl);
    start_link(r, MU_RPC_LINK_UP, &ctl);
    r->unlinked_at = MU_MONO_NEVER;
    mu_trace(&r->config.trace, verdict == RESUME ? "rpc.resumed" : "rpc.begun", r->life, r->in_seq);
    mu_rpc_settle(r);
    return 0;
}

/* --- the side that dials ----------------------------------------- */

int mu_rpc_on_welcome(struct mu_rpc *r, struct mu_span payload)
{
    struct mu_rpc_welcome w;
    struct mu_errmsg e;
    uint64_t ack = r->header.ack;

    if (mu_rpc_welcome_decode(payload, &w) != 0) {
        return mu_rpc_violate(r, mu_err(&e, MUSTER_EPROTO, "malformed WELCOME"), &e);
    }
    if (w.resumed ? r->fresh || ack < r->out_base || ack > r->out_high : ack != 0) {
        return mu_rpc_violate(
            r,
            mu_err(&e, MUSTER_EPROTO, "WELCOME (resumed %d) acknowledges %llu frames, we sent %llu",
                   w.resumed, (unsigned long long)ack, (unsigned long long)r->out_high),
            &e);
    }
    if (w.resumed) {
        mu_rpc_drop_acked(r, ack);
        mu_rpc_confirm(r, r->asked_at); /* our HELLO */
    } else {
        if (!r->fresh) {
            lose_life(r);
        }
        r->fresh = false;
        r->life++;
        r->own_limit = w.calls_credit;
        r->peer_frame_max = w.frame_bytes_max;
        r->terms_known = true;
    }
    mu_rpc_note_answer(r, 0);
    memcpy(r->peer_incarnation, w.incarnation, sizeof(r->peer_incarnation));
    r->grace_ms = w.grace_ms;
    r->beat_ms = w.beat_ms;
    r->dead_ms = w.dead_ms;
    r->link = MU_RPC_LINK_UP;
    r->unlinked_at = MU_MONO_NEVER;
    mu_rpc_rewind(r);
    mu_trace(&r->config.trace, w.resumed ? "rpc.resumed" : "rpc.begun", r->life, r->in_seq);
    mu_rpc_tell(r, (struct mu_rpc_event){
                       .type = MU_RPC_EV_WELCOMED, .resumed = w.resumed, .payload = w.name});
    return 0;
}

/* --- either ------------------------------------------------------ */

void mu_rpc_unlinked(struct mu_rpc *r, struct mu_now now)
{
    enum mu_rpc_link was = r->link;

    if (was == MU_RPC_LINK_NONE) {
        return;
    }
    r->now = now;
    r->link = MU_RPC_LINK_NONE;
    mu_buf_fini(&r->ctl);
    r->want_ping = false;
    r->want_pong = false;
    r->dead_event = false;
    mu_rpc_end_frame(r);
    mu_rpc_rewind(r);
    if (was == MU_RPC_LINK_DIALLED) {
        return;
    }
    r->unlinked_at = r->dead_told ? r->last_rx : now.mono;
    r->eof_grace_ms = UINT32_MAX;
    if (!r->closed && was == MU_RPC_LINK_UP && r->grace_ms == 0) {
        lose_life(r);
    }
}

void mu_rpc_eof(struct mu_rpc *r, struct mu_now now, uint32_t grace_ms)
{
    mu_rpc_unlinked(r, now);
    r->eof_grace_ms = grace_ms;
}

static mu_mono_t forgive(mu_mono_t since, mu_mono_t now, uint64_t ns)
{
    return since.ns == MU_MONO_NEVER.ns ? since : mu_mono_min(mu_mono_add_ns(since, ns), now);
}

void mu_rpc_stalled(struct mu_rpc *r, struct mu_now now, uint64_t ns)
{
    if (ns >= r->beat_ms * MU_NS_PER_MS) {
        ns = UINT64_MAX;
    }
    mu_trace(&r->config.trace, "rpc.stalled", ns, 0);
    r->last_rx = forgive(r->last_rx, now.mono, ns);
    r->unlinked_at = forgive(r->unlinked_at, now.mono, ns);
}

bool mu_rpc_linked(const struct mu_rpc *r)
{
    return r->link == MU_RPC_LINK_UP;
}

const uint8_t *mu_rpc_peer_incarnation(const struct mu_rpc *r)
{
    return r->peer_incarnation;
}

mu_mono_t mu_rpc_last_heard(const struct mu_rpc *r)
{
    return r->last_rx;
}

mu_mono_t mu_rpc_last_received(const struct mu_rpc *r)
{
    return r->received_at;
}

mu_mono_t mu_rpc_confirmed(const struct mu_rpc *r)
{
    return r->confirmed;
}

uint32_t mu_rpc_kept_ms(const struct mu_rpc *r)
{
    return r->grace_ms < r->dead_ms ? r->grace_ms : r->dead_ms;
}

mu_mono_t mu_rpc_forsaken_at(const struct mu_rpc *r)
{
    if (r->unlinked_at.ns != MU_MONO_NEVER.ns && r->eof_grace_ms != UINT32_MAX) {
        return (mu_mono_t){0};
    }
    return mu_mono_add_ms(r->last_rx, mu_rpc_kept_ms(r));
}

mu_mono_t mu_rpc_grace_deadline(const struct mu_rpc *r)
{
    if (r->unlinked_at.ns == MU_MONO_NEVER.ns) {
        return MU_MONO_NEVER;
    }
    if (r->closed) {
        return r->unlinked_at;
    }
    return mu_mono_add_ms(r->unlinked_at,
                          r->grace_ms < r->eof_grace_ms ? r->grace_ms : r->eof_grace_ms);
}

static mu_mono_t dead_at(const struct mu_rpc *r)
{
    return r->dead_told ? MU_MONO_NEVER : mu_mono_add_ms(r->last_rx, r->dead_ms);
}

static mu_mono_t beat_at(const struct mu_rpc *r)
{
    return mu_mono_add_ms(r->config.confirms ? r->last_ping : r->last_tx, r->beat_ms);
}

mu_mono_t mu_rpc_link_deadline(const struct mu_rpc *r)
{
    switch (r->link) {
    case MU_RPC_LINK_NONE:
    case MU_RPC_LINK_OVER:
        break;
    case MU_RPC_LINK_DIALLED:
        return dead_at(r);
    case MU_RPC_LINK_UP:
        return mu_mono_min(beat_at(r), dead_at(r));
    }
    return MU_MONO_NEVER;
}

void mu_rpc_keep_alive(struct mu_rpc *r)
{
    if (r->link != MU_RPC_LINK_DIALLED && r->link != MU_RPC_LINK_UP) {
        return;
    }
    if (mu_mono_reached(dead_at(r), r->now.mono)) {
        mu_trace(&r->config.trace, "rpc.dead", mu_mono_since(r->last_rx, r->now.mono), 0);
        r->dead_told = true;
        r->dead_event = true;
    }
    if (r->link == MU_RPC_LINK_UP && mu_mono_reached(beat_at(r), r->now.mono)) {
        /* If earlier control frames still wait, the other end does not read: one PING is enough. */
        r->want_ping = true;
        r->last_ping = r->now.mono;
        r->last_tx = r->now.mono;
        mu_rpc_trim(r);
    }
}
