#include "service/server/server_internal.h"

#include <string.h>

#include "core/alloc.h"
#include "service/base/log.h"

static struct mu_store_conn *conn_of(const struct mu_rpc_conn *base)
{
    return MU_CONTAINER_OF(base, struct mu_store_conn, base);
}

/* --- output ----------------------------------------------------------------------------------- */

size_t mu_store_conn_output_len(const struct mu_store_conn *c)
{
    switch (c->kind) {
    case MU_STORE_CONN_TORCH:
        return mu_torch_server_output_len(&c->torch);
    case MU_STORE_CONN_NATIVE:
        return c->base.session == NULL ? 0 : mu_rpc_output(&c->base.session->rpc).len;
    case MU_STORE_CONN_CARRIED:
        return mu_store_carry_output_len(c);
    case MU_STORE_CONN_NEW:
        break;
    }
    return 0;
}

static size_t get_output(const struct mu_rpc_conn *base, struct mu_span *spans, size_t cap)
{
    const struct mu_store_conn *c = conn_of(base);

    if (c->kind == MU_STORE_CONN_CARRIED) {
        return mu_store_carry_output(c, spans, cap);
    }
    return c->kind == MU_STORE_CONN_TORCH ? mu_torch_server_output(&c->torch, spans, cap)
                                          : mu_rpc_native.output(base, spans, cap);
}

static void note_sent(struct mu_rpc_conn *base, size_t n)
{
    struct mu_store_conn *c = conn_of(base);

    if (c->kind == MU_STORE_CONN_TORCH) {
        mu_torch_server_sent(&c->torch, n);
        c->ready -= n;
        c->next -= n < c->next ? n : c->next;
    } else if (c->kind == MU_STORE_CONN_CARRIED) {
        mu_store_carry_sent(c, n);
    } else {
        mu_rpc_native.sent(base, n);
    }
}

/* Takes up reading again if what stopped it is over. */
static void maybe_resume(struct mu_store_conn *c)
{
    struct mu_store_server *s = c->server;

    if (!c->base.paused || s->draining ||
        (c->kind == MU_STORE_CONN_TORCH &&
         (c->torch.blocked ||
          mu_torch_server_output_len(&c->torch) > s->config.torch.output_bytes_high ||
          mu_torch_server_is_full(&c->torch)))) {
        return;
    }
    if (mu_store_commit_saturated(s)) {
        /* Others who were woken on the same turn were quicker. */
        if (mu_list_empty(&c->stalled)) {
            mu_list_push(&s->stalled, &c->stalled);
        }
        return;
    }
    mu_list_remove(&c->stalled);
    mu_rpc_conn_resume(&c->base);
}

/* Whether requests of it are being executed elsewhere whose answers it may still read. */
static bool owes_answers(const struct mu_store_conn *c)
{
    return c->kind == MU_STORE_CONN_TORCH &&
           (c->ended ? mu_torch_server_owes(&c->torch) : c->torch.deferred_count != 0);
}

/* Whether something is left that could be sent. */
static bool has_more(const struct mu_store_conn *c)
{
    struct mu_span next;

    return !c->base.blocked &&
           (c->kind == MU_STORE_CONN_TORCH ? c->ready != 0 : get_output(&c->base, &next, 1) != 0);
}

/* Sends up to `max` bytes, and of a torch connection only what need not wait for the disk; how
 * many. What is then left, and could be sent, has its turn later. */
static size_t send_some(struct mu_store_conn *c, size_t max)
{
    struct mu_store_server *s = c->server;
    bool held = c->kind == MU_STORE_CONN_TORCH && c->ready < max;
    size_t sent = mu_rpc_conn_send(&c->base, held ? c->ready : max);

    s->stats.bytes_out += sent;
    c->moved = sent != 0 ? mu_env_now(s->env).mono : c->moved;
    if (sent == max && has_more(c)) {
        mu_list_push(&s->in_turn, &c->in_turn);
        mu_env_timer_arm(s->env, &s->turn_timer, mu_env_now(s->env).mono);
    }
    return sent;
}

void mu_store_conn_account(struct mu_store_conn *c)
{
    if (c->kind == MU_STORE_CONN_TORCH) {
        mu_store_account(c->server, &c->memory, mu_torch_server_memory(&c->torch));
    }
}

/* Something was sent, or may be read: what follows from that. */
static void after_sending(struct mu_store_conn *c)
{
    if (c->base.closing) {
        return;
    }
    mu_rpc_conn_flushed(&c->base);
    mu_store_conn_account(c);
    maybe_resume(c);
    if (c->kind == MU_STORE_CONN_CARRIED && mu_store_carry_is_over(c)) {
        mu_rpc_conn_close(&c->base, false);
        return;
    }
    /* Who broke a rule and does not read either is not waited for. */
    if ((c->eof && !c->base.paused && mu_store_conn_output_len(c) == 0 && !owes_answers(c)) ||
        (c->ended && c->base.blocked)) {
        mu_rpc_conn_close(&c->base, false);
    }
}

void mu_store_conn_flush(struct mu_rpc_conn *base)
{
    struct mu_store_conn *c = conn_of(base);

    if (c->kind == MU_STORE_CONN_TORCH) {
        mu_store_commit_mark(c);
    }
    if (mu_list_empty(&c->in_turn)) {
        (void)send_some(c, MU_STORE_AT_ONCE_BYTES);
    }
    after_sending(c);
}

void mu_store_conn_turn(struct mu_timer *timer)
{
    struct mu_store_server *s = MU_CONTAINER_OF(timer, struct mu_store_server, turn_timer);
    size_t left = MU_STORE_TURN_BYTES;
    struct mu_list *it;

    while (left != 0 && (it = mu_list_pop(&s->in_turn)) != NULL) {
        struct mu_store_conn *c = MU_CONTAINER_OF(it, struct mu_store_conn, in_turn);

        left -= send_some(c, left < MU_STORE_SLICE_BYTES ? left : MU_STORE_SLICE_BYTES);
        after_sending(c);
    }
    if (!mu_list_empty(&s->in_turn)) {
        mu_env_timer_arm(s->env, &s->turn_timer, mu_env_now(s->env).mono);
    }
    mu_store_server_finish_turn(s);
}

/* --- the end of a connection ------------------------------------------------------------------ */

void mu_store_account(struct mu_store_server *s, size_t *counted, size_t now)
{
    s->buffer_bytes += now - *counted;
    *counted = now;
}

/* What a torch connection's requests are executed on; NULL: they go elsewhere. */
static struct mu_keyspace *keyspace_of(struct mu_store_server *s)
{
    return s->backing != NULL ? NULL : &s->ks;
}

void mu_store_conn_release(struct mu_rpc_conn *base)
{
    struct mu_store_conn *c = conn_of(base);

    if (c->kind == MU_STORE_CONN_TORCH) {
        mu_store_backed_release(c);
        mu_torch_server_fini(&c->torch, keyspace_of(c->server));
        c->kind = MU_STORE_CONN_NEW;
    } else if (c->kind == MU_STORE_CONN_CARRIED) {
        mu_store_carry_release(c);
        c->kind = MU_STORE_CONN_NEW;
    }
    mu_store_account(c->server, &c->memory, 0);
    mu_list_remove(&c->held);
    mu_list_remove(&c->stalled);
    mu_list_remove(&c->in_turn);
}

/*
 * Ends a torch connection that broke a rule. The protocol has no way to say what went wrong, but
 * the answers to the requests before it are owed, and those may wait for the disk.
 */
void mu_store_conn_end_torch(struct mu_store_conn *c)
{
    char peer[64];

    if (!c->ended) {
        c->ended = true;
        c->eof = true;
        mu_env_peer(c->server->env, &c->base.base, peer, sizeof(peer));
        mu_store_server_log_peer(c->server, peer, mu_torch_server_errmsg(&c->torch));
        mu_rpc_conn_touch(&c->base);
    }
}

/* --- input ------------------------------------------------------------------------------------ */

static void torch_ready(struct mu_ks_owner *owner, struct mu_ks_wait *wait)
{
    struct mu_store_conn *c = MU_CONTAINER_OF(owner, struct mu_store_conn, owner);

    if (mu_torch_server_wake(&c->torch, wait) != 0) {
        mu_store_conn_end_torch(c);
        return;
    }
    /* Sent at once and not at the end of the turn: where a thousand wait for one key, the second
     * visit to each would find its memory out of the cache. */
    mu_store_conn_flush(&c->base);
}

static void torch_changed(struct mu_ks_owner *owner, struct mu_ks_watch *watch,
                          const struct mu_change *change)
{
    struct mu_store_conn *c = MU_CONTAINER_OF(owner, struct mu_store_conn, owner);

    if (mu_torch_server_changed(&c->torch, watch, change) != 0) {
        mu_store_conn_end_torch(c);
        return;
    }
    mu_rpc_conn_touch(&c->base);
}

/* What its next request changes was given back. */
static void torch_unheld(struct mu_ks_owner *owner)
{
    struct mu_store_conn *c = MU_CONTAINER_OF(owner, struct mu_store_conn, owner);

    c->torch.blocked = false;
    maybe_resume(c);
}

/* The first byte decides: PyTorch's opcodes end at 18, the native wire begins with 'M'. */
static bool decide(struct mu_store_conn *c, struct mu_span in)
{
    if (mu_torch_server_sniff(in) == 1) {
        c->kind = MU_STORE_CONN_TORCH;
        c->owner.ready = torch_ready;
        c->owner.changed = torch_changed;
        c->owner.unheld = torch_unheld;
        mu_torch_server_init(&c->torch, &c->server->config.torch, &c->owner);
        c->torch.holds = c->server->grants ? &c->server->holds : NULL;
        if (c->server->backing != NULL && mu_store_backed_open(c) != 0) {
            mu_rpc_conn_drop(&c->base, "out of memory");
            return false;
        }
        return true;
    }
    if (mu_store_carry_sniff(in)) {
        const char *why = mu_store_carry_begin(c);

        if (why != NULL) {
            mu_rpc_conn_drop(&c->base, why);
            return false;
        }
        c->kind = MU_STORE_CONN_CARRIED;
        return true;
    }
    if (mu_rpc_greet_sniff(in) != 0) {
        c->kind = MU_STORE_CONN_NATIVE;
        return true;
    }
    mu_rpc_conn_drop(&c->base,
                     in.data[0] == 0x16
                         ? "this looks like TLS, and this server has no credential (--token-file)"
                     : in.data[0] >= 'A' && in.data[0] <= 'Z'
                         ? "this looks like HTTP or another text protocol, not a store client"
                         : "the first byte belongs to no protocol the store speaks");
    return false;
}

static size_t torch_input(struct mu_store_conn *c, struct mu_span in)
{
    size_t journal_len = mu_ks_journal_len(&c->server->ks);
    size_t used = 0;
    int err;

    if (c->server->holds.count != 0) {
        c->server->holds.now = mu_env_now(c->server->env).mono;
    }
    err = mu_torch_server_recv(&c->torch, keyspace_of(c->server), in, &used);

    mu_store_commit_note(c, journal_len);
    if (c->peer != NULL) {
        int taken = mu_store_backed_take(c);

        err = err != 0 ? err : taken;
    }
    mu_store_conn_account(c);
    if (err != 0) {
        mu_store_conn_end_torch(c);
        return in.len;
    }
    /* Before those whom the request woke: whoever asked should not wait for them. */
    if (mu_torch_server_output_len(&c->torch) != 0) {
        mu_store_conn_flush(&c->base);
    }
    return used;
}

static size_t take_input(struct mu_rpc_conn *base, struct mu_span in)
{
    struct mu_store_conn *c = conn_of(base);
    struct mu_store_server *s = c->server;
    size_t used;

    if (c->ended) {
        return in.len;
    }
    if (s->draining || mu_store_commit_saturated(s)) {
        if (mu_list_empty(&c->stalled)) {
            mu_list_push(&s->stalled, &c->stalled);
        }
        return 0;
    }
    if (c->kind == MU_STORE_CONN_NEW && !decide(c, in)) {
        return in.len;
    }
    /* Who reads nothing is not moved by what it says. */
    c->moved = mu_store_conn_output_len(c) == 0 ? mu_env_now(s->env).mono : c->moved;
    used = c->kind == MU_STORE_CONN_TORCH     ? torch_input(c, in)
           : c->kind == MU_STORE_CONN_CARRIED ? mu_store_carry_input(c, in)
                                              : mu_rpc_native.input(base, in);
    used = base->closing ? in.len : used;
    s->stats.bytes_in += used;
    return used;
}

/* A torch client that is done sending may still read its answers; a native one is gone. */
static bool end_input(struct mu_rpc_conn *base)
{
    struct mu_store_conn *c = conn_of(base);

    if (c->kind == MU_STORE_CONN_CARRIED) {
        mu_store_carry_eof(c);
        return false;
    }
    if (c->kind != MU_STORE_CONN_TORCH) {
        return mu_rpc_native.eof(base);
    }
    c->eof = true;
    mu_rpc_conn_touch(base);
    return true;
}

const struct mu_rpc_protocol mu_store_protocol = {
    .input = take_input,
    .output = get_output,
    .sent = note_sent,
    .eof = end_input,
};

struct mu_rpc_conn *mu_store_conn_new(struct mu_rpc_server *wire)
{
    struct mu_store_server *s = MU_CONTAINER_OF(wire, struct mu_store_server, wire);
    struct mu_store_conn *c;

    if (wire->conn_count >= s->config.connections_max || s->draining) {
        mu_store_server_log_peer(s, "new", "the server has as many connections as it may");
        return NULL;
    }
    c = mu_calloc(1, sizeof(*c));
    if (c == NULL) {
        return NULL;
    }
    c->server = s;
    c->moved = mu_env_now(s->env).mono;
    mu_list_init(&c->held);
    mu_list_init(&c->stalled);
    mu_list_init(&c->in_turn);
    s->stats.connections_total++;
    return &c->base;
}
