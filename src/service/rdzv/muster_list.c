/*
 * The list of members of a large round: keys of the store, which its assignment names by their hash
 * (codec/rdzv/msg.h). They are asked of the relay that the session goes by, which holds them for
 * all nodes behind it; of the server, in the node's own session, if there is no relay, or if that
 * does not have them in time or has something else.
 *
 * The assignment is told when the list is there. What must be told after it does not wait for that:
 * then it is told without the list.
 */
#include <string.h>

#include "codec/store/msg.h"
#include "core/alloc.h"
#include "crypto/hash.h"
#include "service/rdzv/muster.h"

#define SILENT_MS     15000 /* without a word of a relay, which may be busy with others */
#define RELAY_MS      60000 /* for all that is asked of it */
#define GREETINGS     2
#define REQUEST_BYTES (MU_RDZV_LIST_KEY_MAX + 64)

static struct mu_rdzv_muster *node_of(struct mu_rdzv_listing *l)
{
    return MU_CONTAINER_OF(l, struct mu_rdzv_muster, list);
}

static void begin(struct mu_rdzv_muster *n);

/* The session at the relay is of no use any more. */
static void hang_up(struct mu_rdzv_listing *l)
{
    mu_env_timer_arm(node_of(l)->base.env, &l->timer, MU_MONO_NEVER);
    if (l->client == MU_RDZV_CLIENT_LIVE) {
        l->client = MU_RDZV_CLIENT_CLOSING;
        mu_rpc_client_close(&l->rpc);
    }
    if (l->relayed) {
        l->call = 0;
        l->relayed = false;
    }
}

static void end(struct mu_rdzv_listing *l)
{
    hang_up(l);
    l->active = false;
    l->call = 0;
    mu_buf_fini(&l->bytes);
}

bool mu_rdzv_list_drop(struct mu_rdzv_muster *n)
{
    bool due = n->list.active;

    end(&n->list);
    return due;
}

bool mu_rdzv_list_end(struct mu_rdzv_muster *n)
{
    end(&n->list);
    return n->list.client == MU_RDZV_CLIENT_NONE;
}

/* --- what comes ------------------------------------------------------------------------------- */

/* The relay's answer did not help: the server has it. Its own did not, either: there is none. */
static void give_up(struct mu_rdzv_listing *l)
{
    struct mu_rdzv_muster *n = node_of(l);

    if (l->relayed) {
        hang_up(l);
        begin(n);
        return;
    }
    end(l);
    mu_rdzv_muster_tell_assigned(n, mu_buf_span(&n->held), (struct mu_span){0});
    mu_rdzv_muster_run(n);
}

static void tell(struct mu_rdzv_muster *n)
{
    struct mu_rdzv_listing *l = &n->list;
    struct mu_buf bytes = l->bytes;

    mu_buf_init(&l->bytes, MU_RDZV_LIST_BYTES_MAX);
    end(l);
    mu_rdzv_muster_tell_assigned(n, mu_buf_span(&n->held), mu_buf_span(&bytes));
    mu_buf_fini(&bytes);
    if (l->waiting && !n->freeing) {
        l->waiting = false;
        n->base.events.waiting(n->base.events.context, l->waiters);
    }
    mu_rdzv_muster_run(n);
}

static bool is_whole(const struct mu_rdzv_listing *l, const struct mu_rdzv_list *list)
{
    uint8_t hash[MU_SHA256_LEN];

    mu_sha256(hash, mu_buf_span(&l->bytes));
    return memcmp(hash, list->hash, sizeof(hash)) == 0;
}

/* The notice that waits. */
static bool read_held(const struct mu_rdzv_muster *n, struct mu_rdzv_notice *ret)
{
    return mu_rdzv_notice_decode(mu_buf_span(&n->held), ret) == 0 && ret->list.len != 0;
}

static int ask(struct mu_rdzv_muster *n)
{
    struct mu_rdzv_listing *l = &n->list;
    uint32_t piece = (uint32_t)(l->bytes.len / MU_RDZV_LIST_PIECE);
    char text[MU_RDZV_LIST_KEY_MAX];
    struct mu_rdzv_notice notice;
    struct mu_store_request q = {.verb = MU_STORE_GET, .flags = MU_STORE_NOWAIT, .key_count = 1};
    struct mu_span key;
    struct mu_buf out;
    int err = read_held(n, &notice) ? 0 : MUSTER_EPROTO;

    mu_buf_init(&out, REQUEST_BYTES);
    if (err == 0) {
        key = mu_rdzv_list_key(text, mu_span_str(n->base.run_id), notice.incarnation, notice.round,
                               &notice.list, piece);
        q.keys = &key;
        err = mu_store_request_encode(&out, &q);
    }
    if (err == 0) {
        err = mu_rpc_client_call(l->relayed ? &l->rpc : &n->rpc, MU_SPAN_LIT("muster::Store.get"),
                                 mu_buf_span(&out), 0, &l->call);
    }
    mu_buf_fini(&out);
    return err;
}

/* A piece: another one follows, or the list is whole, or is not what it should be. */
static void take(struct mu_rdzv_listing *l, int status, struct mu_span payload)
{
    struct mu_rdzv_muster *n = node_of(l);
    struct mu_store_reply reply = {0};
    struct mu_rdzv_notice notice;
    struct mu_span *parts = NULL;

    l->call = 0;
    if (status == 0) {
        status = mu_store_reply_decode(payload, 1, &reply, &parts);
    }
    if (status == 0 && (reply.value_count != 1 || !read_held(n, &notice) ||
                        reply.values[0].len > notice.list.len - l->bytes.len)) {
        status = MUSTER_EPROTO;
    }
    if (status == 0) {
        status = mu_buf_append(&l->bytes, reply.values[0]);
    }
    mu_free(parts);
    if (status == 0 && l->bytes.len == notice.list.len && is_whole(l, &notice.list)) {
        tell(n);
        return;
    }
    if (status == 0 && (l->bytes.len == notice.list.len || l->bytes.len % MU_RDZV_LIST_PIECE != 0 ||
                        ask(n) != 0)) {
        status = MUSTER_EPROTO;
    }
    if (status != 0) {
        give_up(l);
    }
}

bool mu_rdzv_list_reply(struct mu_rdzv_muster *n, uint64_t id, int status, struct mu_span payload)
{
    if (!n->list.active || n->list.relayed || id != n->list.call) {
        return false;
    }
    take(&n->list, status, payload);
    return true;
}

/* --- at the relay ----------------------------------------------------------------------------- */

static void on_reply(void *context, uint64_t id, int status, struct mu_span payload)
{
    struct mu_rdzv_listing *l = context;

    if (l->active && l->relayed && id == l->call) {
        take(l, status, payload);
    }
}

static void lose_relay(struct mu_rdzv_listing *l)
{
    if (l->active && l->relayed) {
        give_up(l);
    }
}

static void on_ready(void *context)
{
    struct mu_rdzv_listing *l = context;

    if (l->active && l->relayed && l->call == 0 && ask(node_of(l)) != 0) {
        give_up(l);
    }
}

static void on_mismatch(void *context, bool silent)
{
    (void)silent;
    lose_relay(context);
}

static void on_failed(void *context, int status, const char *text)
{
    (void)status;
    (void)text;
    lose_relay(context);
}

/* It is gone: nobody listens there, or the connection was lost. */
static void on_trouble(void *context, int status, bool was_open)
{
    (void)status;
    (void)was_open;
    lose_relay(context);
}

static void on_timer(struct mu_timer *timer)
{
    lose_relay(MU_CONTAINER_OF(timer, struct mu_rdzv_listing, timer));
}

static void on_closed(void *context)
{
    struct mu_rdzv_listing *l = context;

    l->client = MU_RDZV_CLIENT_NONE;
    if (node_of(l)->freeing) {
        mu_rdzv_muster_ended(node_of(l));
    }
}

static int open_relay(struct mu_rdzv_muster *n, const struct mu_addr *relay)
{
    struct mu_rdzv_listing *l = &n->list;
    const struct mu_rpc_client_config config = {
        .addr = *relay,
        .name = n->base.node,
        .connect_ms = RELAY_MS,
        .greetings = GREETINGS,
        .probe_ms = SILENT_MS,
        .dead_ms = SILENT_MS,
        .beat_ms = SILENT_MS / 6,
    };
    const struct mu_rpc_client_events events = {
        .ready = on_ready,
        .mismatch = on_mismatch,
        .failed = on_failed,
        .trouble = on_trouble,
        .gave_up = on_failed,
        .reply = on_reply,
        .closed = on_closed,
        .context = l,
    };
    int err = mu_rpc_client_init(&l->rpc, n->base.env, &config, &events);

    if (err == 0) {
        l->client = MU_RDZV_CLIENT_LIVE;
        l->relayed = true;
        mu_env_timer_arm(n->base.env, &l->timer,
                         mu_mono_add_ms(mu_env_now(n->base.env).mono, RELAY_MS));
    }
    return err;
}

/* --- for the node ----------------------------------------------------------------------------- */

/* In our own session. */
static void begin(struct mu_rdzv_muster *n)
{
    mu_buf_reset(&n->list.bytes);
    if (n->client != MU_RDZV_CLIENT_LIVE || ask(n) != 0) {
        give_up(&n->list);
        return;
    }
    mu_rpc_client_run_soon(&n->rpc);
}

void mu_rdzv_list_begin(struct mu_rdzv_muster *n)
{
    const struct mu_addr *relay = n->carry == NULL ? NULL : mu_carry_env_relay(n->carry);

    mu_buf_init(&n->list.bytes, MU_RDZV_LIST_BYTES_MAX);
    n->list.active = true;
    if (relay == NULL || n->list.client != MU_RDZV_CLIENT_NONE || open_relay(n, relay) != 0) {
        begin(n);
    }
}

void mu_rdzv_list_init(struct mu_rdzv_muster *n)
{
    mu_timer_init(&n->list.timer, on_timer);
    mu_buf_init(&n->list.bytes, MU_RDZV_LIST_BYTES_MAX);
}
