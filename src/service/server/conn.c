#include "service/server/server_internal.h"

#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"

/* --- output ----------------------------------------------------------------------------------- */

void mu_store_conn_touch(struct mu_store_conn *c)
{
    if (!c->closing && mu_list_empty(&c->dirty)) {
        mu_list_push(&c->server->dirty, &c->dirty);
    }
}

size_t mu_store_conn_output_len(const struct mu_store_conn *c)
{
    switch (c->kind) {
    case MU_STORE_CONN_TORCH:
        return mu_torch_server_output_len(&c->u.torch);
    case MU_STORE_CONN_NATIVE:
        return mu_rpc_hosted_output(&c->u.native).len;
    case MU_STORE_CONN_NEW:
        break;
    }
    return 0;
}

/* The first of what may be sent, `max` bytes at the most; how many spans. */
static size_t sendable(const struct mu_store_conn *c, struct mu_span *spans, size_t max)
{
    size_t count = 0;
    size_t n = 0;

    if (c->kind == MU_STORE_CONN_TORCH && c->ready != 0) {
        count = mu_torch_server_output(&c->u.torch, spans, MU_ENV_SPANS_MAX);
        max = max < c->ready ? max : c->ready;
    } else if (c->kind == MU_STORE_CONN_NATIVE) {
        count = mu_rpc_hosted_outputv(&c->u.native, spans, MU_ENV_SPANS_MAX);
    }
    while (n < count && max != 0) {
        spans[n].len = spans[n].len < max ? spans[n].len : max;
        max -= spans[n++].len;
    }
    return n;
}

static void mark_sent(struct mu_store_conn *c, size_t n)
{
    if (c->kind == MU_STORE_CONN_TORCH) {
        mu_torch_server_sent(&c->u.torch, n);
        c->ready -= n;
        c->next -= n < c->next ? n : c->next;
    } else {
        mu_rpc_hosted_sent(&c->u.native, n);
    }
}

/* Takes up reading again if what stopped it is over. */
static void maybe_resume(struct mu_store_conn *c)
{
    struct mu_store_server *s = c->server;

    if (!c->paused || s->draining ||
        (c->kind == MU_STORE_CONN_TORCH &&
         (mu_torch_server_output_len(&c->u.torch) > s->config.torch.output_bytes_high ||
          mu_torch_server_is_full(&c->u.torch)))) {
        return;
    }
    if (mu_store_commit_saturated(s)) {
        /* Others who were woken on the same turn were quicker. */
        if (mu_list_empty(&c->stalled)) {
            mu_list_push(&s->stalled, &c->stalled);
        }
        return;
    }
    c->paused = false;
    mu_list_remove(&c->stalled);
    mu_env_resume(s->env, &c->base);
}

/* Whether requests of it are being executed elsewhere whose answers it may still read. */
static bool owes_answers(const struct mu_store_conn *c)
{
    return c->kind == MU_STORE_CONN_TORCH &&
           (c->ended ? mu_torch_server_owes(&c->u.torch) : c->u.torch.deferred_count != 0);
}

/* Sends up to `max` bytes; how many. What is then left, and could be sent, has its turn later. */
static size_t send_some(struct mu_store_conn *c, size_t max)
{
    struct mu_store_server *s = c->server;
    struct mu_span spans[MU_ENV_SPANS_MAX];
    size_t left = max;

    while (!c->closing && !c->blocked) {
        size_t count = sendable(c, spans, left == 0 ? 1 : left);
        size_t bytes = mu_span_total(spans, count);
        size_t taken = 0;

        if (bytes == 0) {
            break;
        }
        if (left == 0) {
            mu_list_push(&s->in_turn, &c->in_turn);
            mu_env_timer_arm(s->env, &s->turn_timer, mu_env_now(s->env).mono);
            break;
        }
        mu_env_sendv(s->env, &c->base, spans, count, &taken);
        s->stats.bytes_out += taken;
        c->moved = taken != 0 ? mu_env_now(s->env).mono : c->moved;
        mark_sent(c, taken);
        c->blocked = taken < bytes;
        left -= taken;
    }
    return max - left;
}

void mu_store_conn_account(struct mu_store_conn *c)
{
    if (c->kind == MU_STORE_CONN_TORCH) {
        mu_store_account(c->server, &c->memory, mu_torch_server_memory(&c->u.torch));
    }
}

/* Something was sent, or may be read: what follows from that. */
static void after_sending(struct mu_store_conn *c)
{
    if (c->closing) {
        return;
    }
    if (c->kind == MU_STORE_CONN_NATIVE) {
        mu_rpc_hosted_flushed(&c->u.native);
    } else {
        mu_store_conn_account(c);
    }
    maybe_resume(c);
    /* Who broke a rule and does not read either is not waited for. */
    if ((c->eof && !c->paused && mu_store_conn_output_len(c) == 0 && !owes_answers(c)) ||
        (c->ended && c->blocked)) {
        mu_store_conn_close(c, false);
    }
}

void mu_store_conn_flush(struct mu_store_conn *c)
{
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

void mu_store_conn_release(struct mu_store_conn *c)
{
    switch (c->kind) {
    case MU_STORE_CONN_TORCH:
        mu_store_backed_release(c);
        mu_torch_server_fini(&c->u.torch, keyspace_of(c->server));
        break;
    case MU_STORE_CONN_NATIVE:
        mu_rpc_hosted_release(&c->u.native);
        break;
    case MU_STORE_CONN_NEW:
        break;
    }
    c->kind = c->kind == MU_STORE_CONN_NATIVE ? c->kind : MU_STORE_CONN_NEW;
    mu_store_account(c->server, &c->memory, 0);
    mu_list_remove(&c->dirty);
    mu_list_remove(&c->held);
    mu_list_remove(&c->stalled);
    mu_list_remove(&c->in_turn);
}

void mu_store_conn_close(struct mu_store_conn *c, bool abort)
{
    if (!c->closing) {
        c->closing = true;
        mu_store_conn_release(c);
        mu_env_close(c->server->env, &c->base, abort);
    }
}

void mu_store_conn_drop(struct mu_store_conn *c, const char *why)
{
    char peer[64];

    if (!c->closing) {
        mu_env_peer(c->server->env, &c->base, peer, sizeof(peer));
        mu_store_server_log_peer(c->server, peer, why);
        mu_store_conn_close(c, false);
    }
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
        mu_env_peer(c->server->env, &c->base, peer, sizeof(peer));
        mu_store_server_log_peer(c->server, peer, mu_torch_server_errmsg(&c->u.torch));
        mu_store_conn_touch(c);
    }
}

/* --- input ------------------------------------------------------------------------------------ */

static void torch_ready(struct mu_ks_owner *owner, struct mu_ks_wait *wait)
{
    struct mu_store_conn *c = MU_CONTAINER_OF(owner, struct mu_store_conn, owner);

    if (mu_torch_server_wake(&c->u.torch, wait) != 0) {
        mu_store_conn_end_torch(c);
        return;
    }
    /* Sent at once and not at the end of the turn: where a thousand wait for one key, the second
     * visit to each would find its memory out of the cache. */
    mu_store_conn_flush(c);
}

static void torch_changed(struct mu_ks_owner *owner, struct mu_ks_watch *watch,
                          const struct mu_change *change)
{
    struct mu_store_conn *c = MU_CONTAINER_OF(owner, struct mu_store_conn, owner);

    if (mu_torch_server_changed(&c->u.torch, watch, change) != 0) {
        mu_store_conn_end_torch(c);
        return;
    }
    mu_store_conn_touch(c);
}

/* The first byte decides: PyTorch's opcodes end at 18, the native wire begins with 'M'. */
static bool decide(struct mu_store_conn *c, struct mu_span in)
{
    if (mu_torch_server_sniff(in) == 1) {
        c->kind = MU_STORE_CONN_TORCH;
        c->owner.ready = torch_ready;
        c->owner.changed = torch_changed;
        mu_torch_server_init(&c->u.torch, &c->server->config.torch, &c->owner);
        if (c->server->backing != NULL && mu_store_backed_open(c) != 0) {
            mu_store_conn_drop(c, "out of memory");
            return false;
        }
        return true;
    }
    if (mu_rpc_greet_sniff(in) != 0) {
        c->kind = MU_STORE_CONN_NATIVE;
        mu_rpc_hosted_init(&c->u.native, &c->server->host, &c->base);
        return true;
    }
    mu_store_conn_drop(c,
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
    int err = mu_torch_server_recv(&c->u.torch, keyspace_of(c->server), in, &used);

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
    if (mu_torch_server_output_len(&c->u.torch) != 0) {
        mu_store_conn_flush(c);
    }
    return used;
}

static size_t on_data(struct mu_conn *base, struct mu_span in)
{
    struct mu_store_conn *c = MU_CONTAINER_OF(base, struct mu_store_conn, base);
    struct mu_store_server *s = c->server;
    size_t used;

    if (c->closing || c->ended) {
        return in.len;
    }
    if (s->draining || mu_store_commit_saturated(s)) {
        c->paused = true;
        if (mu_list_empty(&c->stalled)) {
            mu_list_push(&s->stalled, &c->stalled);
        }
        return 0;
    }
    if (c->kind == MU_STORE_CONN_NEW && !decide(c, in)) {
        mu_store_server_finish_turn(s);
        return in.len;
    }
    /* Who reads nothing is not moved by what it says. */
    c->moved = mu_store_conn_output_len(c) == 0 ? mu_env_now(s->env).mono : c->moved;
    used =
        c->kind == MU_STORE_CONN_TORCH ? torch_input(c, in) : mu_rpc_hosted_input(&c->u.native, in);
    if (c->closing) {
        used = in.len;
    }
    c->paused = used < in.len;
    s->stats.bytes_in += used;
    mu_store_server_finish_turn(s);
    return used;
}

static void on_eof(struct mu_conn *base)
{
    struct mu_store_conn *c = MU_CONTAINER_OF(base, struct mu_store_conn, base);

    c->eof = true;
    /* A torch client that is done sending may still read its answers; a native one is gone. */
    if (c->kind == MU_STORE_CONN_TORCH) {
        mu_store_conn_touch(c);
    } else {
        if (c->kind == MU_STORE_CONN_NATIVE) {
            mu_rpc_hosted_eof(&c->u.native);
        }
        mu_store_conn_close(c, false);
    }
    mu_store_server_finish_turn(c->server);
}

static void on_writable(struct mu_conn *base)
{
    struct mu_store_conn *c = MU_CONTAINER_OF(base, struct mu_store_conn, base);

    c->blocked = false;
    mu_store_conn_touch(c);
    mu_store_server_finish_turn(c->server);
}

static void on_closed(struct mu_conn *base, int status)
{
    struct mu_store_conn *c = MU_CONTAINER_OF(base, struct mu_store_conn, base);
    struct mu_store_server *s = c->server;

    (void)status; /* A peer that resets its connection is an everyday thing. */
    if (!c->closing) {
        c->closing = true;
        mu_store_conn_release(c);
    }
    mu_list_remove(&c->link);
    s->conn_count--;
    mu_free(c);
    mu_store_server_finish_turn(s);
}

static void on_open(struct mu_conn *base)
{
    (void)base;
    mu_panic(__FILE__, __LINE__, "accepted connections to be open from the start");
}

static const struct mu_conn_events conn_events = {
    .open = on_open,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .closed = on_closed,
};

struct mu_conn *mu_store_conn_accept(struct mu_listener *listener)
{
    struct mu_store_server *s = MU_CONTAINER_OF(listener, struct mu_store_server, listener);
    struct mu_store_conn *c;

    if (s->conn_count >= s->config.connections_max || s->draining) {
        mu_store_server_log_peer(s, "new", "the server has as many connections as it may");
        return NULL;
    }
    c = mu_calloc(1, sizeof(*c));
    if (c == NULL) {
        return NULL;
    }
    c->base.on = &conn_events;
    c->server = s;
    c->moved = mu_env_now(s->env).mono;
    mu_list_init(&c->dirty);
    mu_list_init(&c->held);
    mu_list_init(&c->stalled);
    mu_list_init(&c->in_turn);
    mu_list_push(&s->conns, &c->link);
    s->conn_count++;
    s->stats.connections_total++;
    return &c->base;
}

void mu_store_conn_accept_failed(struct mu_listener *listener, int status)
{
    (void)listener;
    mu_log(MUSTER_LOG_ERROR, "STORE-ACCEPT-FAILED",
           "why=\"%s\" remedy=\"raise the descriptor limit (ulimit -n) of the server; "
           "waiting clients are served as soon as others leave\"",
           muster_strerror(status));
}
