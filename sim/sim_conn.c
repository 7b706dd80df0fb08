/* The two ends of a simulated connection: bytes, their ends and resets. */
#include "sim_conn.h"

#include <errno.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

#define CAPACITY_DEFAULT (256 * 1024)
#define CHUNK_MAX        (64 * 1024)
#define CHUNK_GAP_NS     2000 /* between two pieces of what has already arrived */

/* --- life ------------------------------------------------------------------------------------- */

static void run_arrive(struct sim_action *action);
static void run_ack(struct sim_action *action);
static void run_rst(struct sim_action *action);
static void run_closed(struct sim_action *action);
static void run_linger(struct sim_action *action);

void sim_end_init(struct sim_end *end, struct sim_pair *pair, struct mu_sim_host *host,
                  enum sim_end_state state)
{
    size_t capacity = pair->sim->faults.capacity_bytes;
    uint64_t id = pair->id;

    *end = (struct sim_end){.pair = pair, .state = state, .host = host};
    mu_list_init(&end->link);
    mu_buf_init(&end->out, capacity == 0 ? CAPACITY_DEFAULT : capacity);
    end->arrive = (struct sim_action){.run = run_arrive, .kind = SIM_ARRIVE, .subject = id};
    end->ack = (struct sim_action){.run = run_ack, .kind = SIM_ACK, .subject = id};
    end->rst = (struct sim_action){.run = run_rst, .kind = SIM_RST, .subject = id};
    end->closed = (struct sim_action){.run = run_closed, .kind = SIM_CLOSED, .subject = id};
    end->linger = (struct sim_action){.run = run_linger, .kind = SIM_LINGER, .subject = id};
}

void sim_end_widen(struct sim_end *end)
{
    end->out.max = end->out.max < CAPACITY_DEFAULT ? CAPACITY_DEFAULT : end->out.max;
}

void sim_end_own(struct sim_end *end, struct mu_sim_proc *proc)
{
    end->proc = proc;
    end->arrive.proc = proc;
    end->ack.proc = proc;
    end->closed.proc = proc;
}

static void cancel_all(struct sim_end *end)
{
    struct mu_sim *sim = end->pair->sim;

    sim_cancel(sim, &end->arrive);
    sim_cancel(sim, &end->ack);
    sim_cancel(sim, &end->rst);
    sim_cancel(sim, &end->closed);
    sim_cancel(sim, &end->linger);
}

void sim_pair_free(struct sim_pair *pair)
{
    sim_cancel(pair->sim, &pair->syn);
    sim_cancel(pair->sim, &pair->accept);
    sim_cancel(pair->sim, &pair->open);
    for (int i = 0; i < 2; i++) {
        if (pair->ends[i].state != SIM_END_NONE) {
            cancel_all(&pair->ends[i]);
            mu_list_remove(&pair->ends[i].link);
            mu_buf_fini(&pair->ends[i].out);
            mu_free(pair->ends[i].segments);
        }
    }
    mu_list_remove(&pair->link);
    mu_free(pair);
}

/* Returns whether no process is there, or not any more. */
static bool is_lost(const struct sim_end *end)
{
    return end->state == SIM_END_NONE || end->state == SIM_END_GONE || end->state == SIM_END_DARK;
}

static bool is_over(const struct sim_end *end)
{
    return end->conn == NULL && is_lost(end);
}

void sim_pair_release(struct sim_pair *pair)
{
    if (is_over(&pair->ends[0]) && is_over(&pair->ends[1])) {
        sim_pair_free(pair);
    }
}

/* --- the end of an end ------------------------------------------------------------------------ */

/* What has not arrived at the other side never will. */
static void drop_output(struct sim_end *end)
{
    mu_buf_reset(&end->out);
    end->segment_count = 0;
    end->sent = end->arrived = end->delivered;
    end->fin = false;
}

/* A part of what was on its way, perhaps nothing, perhaps all, is lost. */
static void truncate_output(struct sim_end *end)
{
    uint64_t on_way = end->sent - end->arrived;
    uint64_t lost = mu_prng_below(&end->pair->sim->prng, on_way + 1);

    end->sent -= lost;
    end->out.len -= (size_t)lost;
    while (end->segment_count != 0) {
        size_t at = end->segment_head + end->segment_count - 1;
        struct sim_segment *last = &end->segments[at % end->segment_cap];
        uint64_t before =
            end->segment_count == 1 ? end->arrived : end->segments[(at - 1) % end->segment_cap].end;

        if (before < end->sent) {
            last->end = end->sent;
            break;
        }
        end->segment_count--;
    }
}

/*
 * The other end is gone and may never have said so. Keep-alive, which the real driver turns on,
 * finds out in the end.
 */
static void miss(struct sim_end *peer)
{
    struct mu_sim *sim = peer->pair->sim;

    if (peer->state == SIM_END_OPEN && !sim_scheduled(&peer->rst)) {
        peer->rst_status = -ETIMEDOUT;
        sim_schedule(sim, &peer->rst,
                     sim->now_ns + SIM_TIMEOUT_NS + mu_prng_below(&sim->prng, SIM_TIMEOUT_NS / 4));
    }
}

void sim_end_notice(struct sim_end *end)
{
    if (is_lost(sim_end_peer(end))) {
        miss(end);
    }
}

static void go(struct sim_end *end)
{
    struct mu_sim *sim = end->pair->sim;

    if (end->state == SIM_END_BACKLOG) {
        mu_list_remove(&end->link);
        end->listener = NULL;
        sim_cancel(sim, &end->pair->accept);
    }
    end->state = SIM_END_GONE;
    end->want_writable = false;
    drop_output(end);
    sim_cancel(sim, &end->ack);
    sim_cancel(sim, &end->linger);
    sim_cancel(sim, &end->rst);
    end->arrive.proc = NULL;
    sim_end_arm(end);
    miss(sim_end_peer(end));
}

static void tell_closed(struct sim_end *end, int status, uint64_t at_ns)
{
    if (end->conn != NULL && !sim_scheduled(&end->closed)) {
        end->status = status;
        sim_schedule(end->pair->sim, &end->closed, at_ns);
    }
}

void sim_end_fail(struct sim_end *end, int status)
{
    struct sim_pair *pair = end->pair;

    if (is_lost(end)) {
        return;
    }
    if (end->state == SIM_END_DIALLING) {
        sim_cancel(pair->sim, &pair->syn);
        sim_cancel(pair->sim, &pair->open);
    }
    go(end);
    tell_closed(end, status, pair->sim->now_ns);
}

void sim_end_reset_peer(struct sim_end *end)
{
    struct sim_end *peer = sim_end_peer(end);
    struct mu_sim *sim = end->pair->sim;

    if (is_lost(peer) || (sim_scheduled(&peer->rst) && peer->rst_status == -ECONNRESET)) {
        return;
    }
    peer->rst_status = -ECONNRESET;
    sim_schedule(sim, &peer->rst, sim_link_arrival(end->host, peer->host, 0, end->last_at_ns));
}

static void run_rst(struct sim_action *action)
{
    struct sim_end *end = MU_CONTAINER_OF(action, struct sim_end, rst);
    struct sim_end *peer = sim_end_peer(end);
    bool lost = end->rst_status == -ECONNRESET && sim_link_is_cut(peer->host, end->host);

    sim_trace_step(end->pair->sim, (uint64_t)-end->rst_status, lost ? 1 : 0);
    if (lost) {
        miss(end);
    } else {
        sim_end_fail(end, end->rst_status);
    }
    sim_pair_release(end->pair);
}

static void run_closed(struct sim_action *action)
{
    struct sim_end *end = MU_CONTAINER_OF(action, struct sim_end, closed);
    struct mu_sim_proc *proc = end->proc;
    struct mu_conn *conn = end->conn;
    int status = end->status;

    sim_trace_step(proc->sim, (uint64_t) - (int64_t)status, 0);
    end->conn = NULL;
    conn->impl = NULL;
    mu_list_remove(&end->link);
    sim_end_own(end, NULL);
    sim_pair_release(end->pair);
    sim_enter(proc);
    conn->on->closed(conn, status);
    sim_leave(proc);
}

static void run_linger(struct sim_action *action)
{
    struct sim_end *end = MU_CONTAINER_OF(action, struct sim_end, linger);

    sim_trace_step(end->pair->sim, 0, 0);
    if (end->state == SIM_END_LINGERING) {
        sim_end_reset_peer(end);
        go(end);
    }
    sim_pair_release(end->pair);
}

void sim_end_orphan(struct sim_end *end)
{
    struct sim_end *peer = sim_end_peer(end);
    struct mu_sim *sim = end->pair->sim;
    bool unread = peer->state != SIM_END_NONE && peer->delivered != peer->arrived;

    if (end->state == SIM_END_OPEN && !unread && mu_prng_below(&sim->prng, 3) != 0) {
        truncate_output(end);
        end->fin = true;
        end->fin_at_ns = sim_link_arrival(end->host, peer->host, 0, end->last_at_ns);
        end->state = SIM_END_LINGERING;
        sim_schedule(sim, &end->linger, sim->now_ns + SIM_LINGER_NS);
        sim_end_arm(peer);
        sim_end_arm(end);
    } else if (end->state != SIM_END_LINGERING && end->state != SIM_END_GONE) {
        sim_end_reset_peer(end);
        if (end->state == SIM_END_DIALLING) {
            sim_cancel(sim, &end->pair->syn);
            sim_cancel(sim, &end->pair->open);
        }
        go(end);
    }
}

void sim_end_dark(struct sim_end *end)
{
    struct sim_end *peer = sim_end_peer(end);
    struct mu_sim *sim = end->pair->sim;

    if (is_lost(end)) {
        return;
    }
    if (end->state == SIM_END_BACKLOG) {
        mu_list_remove(&end->link);
        end->listener = NULL;
        sim_cancel(sim, &end->pair->accept);
    }
    if (end->state == SIM_END_DIALLING) {
        sim_cancel(sim, &end->pair->syn);
        sim_cancel(sim, &end->pair->open);
    }
    cancel_all(end);
    truncate_output(end);
    end->fin = false;
    end->state = SIM_END_DARK;
    miss(peer);
}

/* --- bytes out -------------------------------------------------------------------------------- */

static int push_segment(struct sim_end *end, uint64_t at_ns)
{
    if (end->segment_count == end->segment_cap) {
        size_t cap = end->segment_cap == 0 ? 4 : end->segment_cap * 2;
        struct sim_segment *bigger = mu_calloc(cap, sizeof(*bigger));

        if (bigger == NULL) {
            return MUSTER_ENOMEM;
        }
        for (size_t i = 0; i < end->segment_count; i++) {
            bigger[i] = end->segments[(end->segment_head + i) % end->segment_cap];
        }
        mu_free(end->segments);
        end->segments = bigger;
        end->segment_head = 0;
        end->segment_cap = cap;
    }
    end->segments[(end->segment_head + end->segment_count++) % end->segment_cap] =
        (struct sim_segment){end->sent, at_ns};
    return 0;
}

/* Returns how much of `len` there is room for now. Nothing is acknowledged across a cut. */
static size_t room_for(struct sim_end *end, size_t len)
{
    struct mu_sim *sim = end->pair->sim;
    struct sim_end *peer = sim_end_peer(end);
    size_t room;

    if (end->state == SIM_END_DIALLING) {
        return 0;
    }
    if (!sim_link_is_cut(peer->host, end->host)) {
        end->acked = end->delivered;
    }
    room = end->out.max - (size_t)(end->sent - end->acked);
    room = room < len ? room : len;
    if (room != 0 && mu_prng_chance(&sim->prng, sim->faults.short_take_ppm)) {
        room = (size_t)mu_prng_below(&sim->prng, room + 1);
    }
    return room;
}

/* Takes the first `n` bytes of the spans: one segment, as a kernel would send them. */
static void take(struct sim_end *end, const struct mu_span *spans, size_t n)
{
    struct sim_end *peer = sim_end_peer(end);
    size_t left = n;
    int rc;

    for (size_t i = 0; left != 0; i++) {
        size_t part = spans[i].len < left ? spans[i].len : left;

        rc = mu_buf_append(&end->out, mu_span(spans[i].data, part));
        MU_ASSERT(rc == 0); /* The simulator itself does not simulate an empty heap. */
        left -= part;
    }
    end->sent += n;
    end->last_at_ns = sim_link_arrival(end->host, peer->host, n, end->last_at_ns);
    rc = push_segment(end, end->last_at_ns);
    MU_ASSERT(rc == 0);
    if (!sim_scheduled(&peer->arrive)) {
        sim_end_arm(peer);
    }
}

void sim_net_sendv(struct mu_env *env, struct mu_conn *conn, const struct mu_span *spans,
                   size_t count, size_t *ret_taken)
{
    struct sim_end *end = conn->impl;
    struct mu_sim_heap *heap = mu_sim_outside();
    struct mu_sim *sim = mu_sim_of(env);
    size_t total = mu_span_total(spans, count);
    size_t n;

    if (end == NULL || end->fin || (end->state != SIM_END_OPEN && end->state != SIM_END_DIALLING)) {
        *ret_taken = total;
        mu_sim_inside(heap);
        return;
    }
    n = room_for(end, total);
    if (n != 0) {
        take(end, spans, n);
    }
    if (n < total) {
        end->want_writable = true;
        /* Later deliveries bring an acknowledgement; if there are none, this does. A dial is
         * acknowledged when it opens. */
        if (end->state == SIM_END_OPEN && end->delivered == end->sent) {
            sim_schedule(sim, &end->ack,
                         sim_link_arrival(sim_end_peer(end)->host, end->host, 0, 0));
        }
    }
    *ret_taken = n;
    mu_sim_inside(heap);
}

/* The way back is open: the sender learns how far its bytes came. */
static void run_ack(struct sim_action *action)
{
    struct sim_end *end = MU_CONTAINER_OF(action, struct sim_end, ack);
    struct sim_end *peer = sim_end_peer(end);
    struct mu_sim *sim = end->pair->sim;
    bool writable;

    if (sim_link_is_cut(peer->host, end->host)) {
        sim_schedule(sim, &end->ack, sim_link_arrival(peer->host, end->host, 0, 0));
        return;
    }
    end->acked = end->delivered;
    writable = end->want_writable && end->state == SIM_END_OPEN &&
               (size_t)(end->sent - end->acked) < end->out.max;
    sim_trace_step(sim, end->sent - end->acked, writable ? 1 : 0);
    if (writable) {
        end->want_writable = false;
        sim_enter(end->proc);
        end->conn->on->writable(end->conn);
        sim_leave(end->proc);
    }
}

/* --- bytes in --------------------------------------------------------------------------------- */

void sim_end_arm(struct sim_end *end)
{
    struct sim_end *peer = sim_end_peer(end);
    struct mu_sim *sim = end->pair->sim;
    uint64_t gap;

    sim_cancel(sim, &end->arrive);
    if (end->stalled || peer->state == SIM_END_NONE || end->state == SIM_END_DIALLING ||
        end->state == SIM_END_BACKLOG || end->state == SIM_END_DARK) {
        return;
    }
    if (peer->arrived != peer->delivered) {
        gap = mu_prng_below(&sim->prng, CHUNK_GAP_NS);
        sim_schedule(sim, &end->arrive, sim->now_ns + gap);
    } else if (peer->segment_count != 0) {
        sim_schedule(sim, &end->arrive, peer->segments[peer->segment_head].at_ns);
    } else if (peer->fin && !end->eof_told) {
        sim_schedule(sim, &end->arrive, peer->fin_at_ns);
    }
}

/* Moves what is due by now to this side of the link. */
static void advance(struct sim_end *from, uint64_t now_ns)
{
    while (from->segment_count != 0 && from->segments[from->segment_head].at_ns <= now_ns) {
        from->arrived = from->segments[from->segment_head].end;
        from->segment_head = (from->segment_head + 1) % from->segment_cap;
        from->segment_count--;
    }
}

static void delivered(struct sim_end *end, size_t n)
{
    struct sim_end *peer = sim_end_peer(end);
    struct mu_sim *sim = end->pair->sim;

    mu_buf_consume(&peer->out, n);
    peer->delivered += n;
    if (n != 0 && peer->want_writable && !sim_scheduled(&peer->ack)) {
        sim_schedule(sim, &peer->ack, sim_link_arrival(end->host, peer->host, 0, 0));
    }
}

static size_t draw_chunk(struct mu_sim *sim, size_t available)
{
    if (available > 1 && mu_prng_chance(&sim->prng, sim->faults.byte_ppm)) {
        return 1;
    }
    if (available > 1 && mu_prng_chance(&sim->prng, sim->faults.chunk_ppm)) {
        available = 1 + (size_t)mu_prng_below(&sim->prng, available);
    }
    return available < CHUNK_MAX ? available : CHUNK_MAX;
}

/* Asks the owner for the memory of the next bytes; only most of the time, as the environment
 * allows. */
static struct mu_space ask_room(struct sim_end *end)
{
    struct mu_space room = {0};

    if (end->conn->on->room != NULL && mu_prng_below(&end->pair->sim->prng, 8) != 0) {
        sim_enter(end->proc);
        room = end->conn->on->room(end->conn);
        sim_leave(end->proc);
    }
    return room;
}

/* Delivers into the owner's memory; or into a new copy for each delivery, so that a sanitizer sees
 * a read past its end or after it. */
static void offer(struct sim_end *end, size_t available)
{
    struct sim_end *peer = sim_end_peer(end);
    struct mu_sim *sim = end->pair->sim;
    struct mu_space room = ask_room(end);
    size_t n = draw_chunk(sim, room.len != 0 && room.len < available ? room.len : available);
    uint8_t *copy = room.len != 0 ? room.data : mu_malloc(n);
    size_t used;

    MU_ASSERT(copy != NULL);
    memcpy(copy, mu_buf_span(&peer->out).data, n);
    end->resumed = false;
    sim_trace_step(sim, n, available);
    sim_enter(end->proc);
    used = end->conn->on->data(end->conn, mu_span(copy, n));
    sim_leave(end->proc);
    if (room.len == 0) {
        mu_free(copy);
    }
    MU_ASSERT(used <= n && (room.len == 0 || used == n || end->state != SIM_END_OPEN));
    if (used < n && !end->resumed) {
        end->stalled = end->state == SIM_END_OPEN;
    }
    delivered(end, used);
}

static void tell_eof(struct sim_end *end)
{
    struct sim_end *peer = sim_end_peer(end);
    bool hung_up = peer->state == SIM_END_LINGERING && end->pair->addr.kind == MU_ADDR_UNIX;

    end->eof_told = true;
    if (peer->state == SIM_END_LINGERING) {
        go(peer); /* The stream has ended; what is sent to it from now on is answered with a
                     reset. */
    }
    if (end->state == SIM_END_OPEN) {
        sim_enter(end->proc);
        end->conn->on->eof(end->conn);
        if (hung_up && end->state == SIM_END_OPEN && end->conn->on->hung_up != NULL) {
            end->conn->on->hung_up(end->conn);
        }
        sim_leave(end->proc);
    }
}

/*
 * No process is here: a reset goes back, and again as often as the sender tries. The sender keeps
 * its bytes, which are not acknowledged, until a reset gets through.
 */
static void refuse(struct sim_end *end, bool something)
{
    struct mu_sim *sim = end->pair->sim;
    enum sim_end_state sender = sim_end_peer(end)->state;

    sim_trace_step(sim, 0, something ? 1 : 0);
    if (!something) {
        sim_end_arm(end);
    } else if (sender == SIM_END_OPEN || sender == SIM_END_LINGERING) {
        sim_end_reset_peer(end);
        sim_schedule(sim, &end->arrive, sim->now_ns + 2 * SIM_RTO_NS);
    }
    sim_pair_release(end->pair);
}

static void run_arrive(struct sim_action *action)
{
    struct sim_end *end = MU_CONTAINER_OF(action, struct sim_end, arrive);
    struct sim_end *peer = sim_end_peer(end);
    struct mu_sim *sim = end->pair->sim;
    size_t available;
    bool fin;

    if (!sim_link_is_cut(peer->host, end->host)) {
        advance(peer, sim->now_ns);
    } else if (peer->arrived == peer->delivered) {
        sim_schedule(sim, &end->arrive, sim_link_arrival(peer->host, end->host, 0, 0));
        return;
    }
    available = (size_t)(peer->arrived - peer->delivered);
    fin = peer->fin && available == 0 && peer->segment_count == 0 && !end->eof_told &&
          peer->fin_at_ns <= sim->now_ns;
    if (end->state == SIM_END_GONE) {
        refuse(end, available != 0 || fin);
        return;
    }
    if (available != 0 && end->state == SIM_END_OPEN) {
        offer(end, available);
    } else if (available != 0) {
        sim_trace_step(sim, available, available);
        delivered(end, available);
    } else if (fin) {
        tell_eof(end);
    }
    sim_trace_step(sim, 0, 0);
    if (!sim_scheduled(&end->arrive)) {
        sim_end_arm(end);
    }
    sim_pair_release(end->pair);
}

void sim_net_resume(struct mu_env *env, struct mu_conn *conn)
{
    struct sim_end *end = conn->impl;

    (void)env;
    if (end == NULL) {
        return;
    }
    end->resumed = true;
    if (end->stalled) {
        end->stalled = false;
        sim_end_arm(end);
    }
}

/* --- closing ---------------------------------------------------------------------------------- */

/* The end of the stream follows the bytes that were taken. */
static void send_fin(struct sim_end *end)
{
    if (!end->fin) {
        end->fin = true;
        end->fin_at_ns = sim_link_arrival(end->host, sim_end_peer(end)->host, 0, end->last_at_ns);
        end->want_writable = false;
    }
}

void sim_net_finish(struct mu_env *env, struct mu_conn *conn)
{
    struct sim_end *end = conn->impl;

    (void)env;
    if (end != NULL && end->state == SIM_END_OPEN && !is_lost(sim_end_peer(end))) {
        send_fin(end);
        sim_end_arm(sim_end_peer(end));
    }
}

/* Both ends closed in order. */
static void close_softly(struct sim_end *end)
{
    struct mu_sim *sim = end->pair->sim;
    struct sim_end *peer = sim_end_peer(end);

    send_fin(end);
    if (peer->eof_told) {
        go(end); /* The other end has heard of the end before. */
        return;
    }
    end->state = SIM_END_LINGERING;
    end->want_writable = false;
    end->arrive.proc = NULL;
    end->ack.proc = NULL;
    sim_schedule(sim, &end->linger, sim->now_ns + SIM_LINGER_NS);
    sim_end_arm(peer);
    sim_end_arm(end);
}

static void close_hard(struct sim_end *end)
{
    struct sim_pair *pair = end->pair;

    if (end->state == SIM_END_DIALLING) {
        sim_cancel(pair->sim, &pair->syn);
        sim_cancel(pair->sim, &pair->open);
    }
    sim_end_reset_peer(end);
    go(end);
}

void sim_net_close(struct mu_env *env, struct mu_conn *conn, bool abort)
{
    struct sim_end *end = conn->impl;
    struct mu_sim *sim = mu_sim_of(env);
    uint64_t at = sim->now_ns;

    if (end == NULL) {
        return;
    }
    end->stalled = false;
    end->status = 0; /* It may have failed a moment ago, but the owner asked for the end. */
    if (end->state == SIM_END_LINGERING && abort) {
        close_hard(end);
    } else if (end->state == SIM_END_OPEN && !abort && !is_lost(sim_end_peer(end))) {
        close_softly(end);
        at += mu_prng_below(&sim->prng, MU_NS_PER_MS);
    } else if (end->state == SIM_END_OPEN || end->state == SIM_END_DIALLING) {
        close_hard(end);
    }
    tell_closed(end, 0, at);
}
