/*
 * Hosts of peers in the simulator, for unit tests: nodes named a, b, c…, each a process on a host
 * of its own, with an identity of a fixed seed, listening on port 4001, with a handler that echoes.
 * Calls are streams that write a pattern, end, and check that it comes back.
 */
#ifndef PEER_RIG_H
#define PEER_RIG_H

#include <stdio.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "scenarios/peer/peer_talk.h"
#include "service/peer/host.h"
#include "sim.h"
#include "unit.h"

#define RIG_NODES 36
#define RIG_ECHO  "/rig/echo/1.0.0"
#define RIG_PORT  4001

struct rig;

struct rig_node {
    struct rig *rig;
    char name[4];
    struct mu_identity identity;
    struct mu_peer_host_config config;
    bool listens;
    struct mu_sim_host *sim_host;
    struct mu_sim_proc *proc;
    struct mu_env *env;
    struct mu_peer_host *host; /* NULL: stopped */
    struct mu_peer_handler echo;
    struct mu_peer_watch watch;
    size_t echoes; /* streams that echo */
    size_t connected;
    size_t disconnected;
    size_t identified;
    int why;
};

struct rig {
    struct mu_sim *sim;
    struct rig_node node[RIG_NODES];
    size_t count;
};

struct rig_call {
    struct mu_host_stream stream;
    size_t bytes;
    size_t sent;
    size_t got;
    bool wrong;
    bool ready;
    bool eof;
    int ended; /* how often */
    int status;
    char text[256];
};

static const struct mu_span rig_echo_names[] = {{(const uint8_t *)RIG_ECHO, sizeof(RIG_ECHO) - 1}};

/* --- the handler ------------------------------------------------------------------------------ */

static struct mu_host_stream *rig_opened(struct mu_peer_handler *handler,
                                         const struct mu_peer_id *peer, struct mu_span name)
{
    struct rig_node *n = MU_CONTAINER_OF(handler, struct rig_node, echo);
    struct peer_echo *e = peer_echo_new(sizeof(*e), &n->echoes);

    (void)peer;
    (void)name;
    assert_non_null(e);
    return &e->stream;
}

/* --- nodes ------------------------------------------------------------------------------------ */

static void rig_connected(struct mu_peer_watch *w, const struct mu_peer_id *peer)
{
    (void)peer;
    MU_CONTAINER_OF(w, struct rig_node, watch)->connected++;
}

static void rig_identified(struct mu_peer_watch *w, const struct mu_peer_id *peer)
{
    (void)peer;
    MU_CONTAINER_OF(w, struct rig_node, watch)->identified++;
}

static void rig_disconnected(struct mu_peer_watch *w, const struct mu_peer_id *peer, int why)
{
    struct rig_node *n = MU_CONTAINER_OF(w, struct rig_node, watch);

    (void)peer;
    n->disconnected++;
    n->why = why;
}

static void rig_stopped(void *context)
{
    struct rig_node *n = context;

    mu_peer_host_free(n->host);
    n->host = NULL;
    mu_sim_exit(n->env);
}

static int rig_start(struct mu_env *env, void *arg)
{
    struct rig_node *n = arg;
    struct mu_errmsg msg;

    n->env = env;
    n->config.stopped = rig_stopped;
    n->config.context = n;
    assert_int_equal(mu_peer_host_start(env, &n->config, &n->host, &msg), 0);
    n->echo = (struct mu_peer_handler){.name = RIG_ECHO, .opened = rig_opened};
    assert_int_equal(mu_peer_host_serve(n->host, &n->echo), 0);
    n->watch = (struct mu_peer_watch){
        .connected = rig_connected, .identified = rig_identified, .disconnected = rig_disconnected};
    mu_peer_host_watch(n->host, &n->watch);
    if (n->listens) {
        char addr[64];

        (void)snprintf(addr, sizeof(addr), "/dns/%s/tcp/%d", n->name, RIG_PORT);
        assert_int_equal(mu_peer_host_listen(n->host, addr, &msg), 0);
    }
    return 0;
}

/* Makes the world; the nodes' configs may be changed before rig_run_all(). */
static inline void rig_open(struct rig *r, size_t count, const struct mu_sim_faults *faults)
{
    memset(r, 0, sizeof(*r));
    r->count = count;
    r->sim = mu_sim_new(&(struct mu_sim_config){
        .seed = 7, .faults = faults != NULL ? *faults : mu_sim_faults_none()});
    assert_non_null(r->sim);
    for (size_t i = 0; i < count; i++) {
        struct rig_node *n = &r->node[i];
        uint8_t seed[MU_IDENTITY_SEED_LEN];

        memset(seed, (int)i + 1, sizeof(seed));
        assert_int_equal(mu_identity_from_seed(&n->identity, seed), 0);
        n->rig = r;
        n->name[0] = (char)(i < 26 ? 'a' + i : 'A' + i - 26);
        n->listens = true;
        n->config = mu_peer_host_config_defaults();
        n->config.identity = &n->identity;
        n->sim_host = mu_sim_host_new(r->sim, n->name);
    }
}

static inline void rig_run(struct rig *r, uint64_t ms)
{
    mu_sim_run_for(r->sim, ms * MU_NS_PER_MS);
    if (mu_sim_failure(r->sim) != NULL) {
        fail_msg("%s", mu_sim_failure(r->sim));
    }
}

static inline void rig_run_all(struct rig *r)
{
    for (size_t i = 0; i < r->count; i++) {
        struct rig_node *n = &r->node[i];

        n->proc = mu_sim_proc_new(
            n->sim_host, &(struct mu_sim_program){.name = n->name, .start = rig_start, .arg = n});
        assert_non_null(n->proc);
    }
    rig_run(r, 1);
}

static void rig_stop(void *arg)
{
    struct rig_node *n = arg;

    mu_peer_host_stop(n->host);
}

static inline void rig_stop_node(struct rig_node *n)
{
    if (n->host != NULL) {
        mu_sim_call(n->proc, rig_stop, n);
    }
}

/* Stops all; nothing may be left of them. */
static inline void rig_close(struct rig *r)
{
    for (size_t i = 0; i < r->count; i++) {
        rig_stop_node(&r->node[i]);
    }
    rig_run(r, 120000);
    for (size_t i = 0; i < r->count; i++) {
        assert_null(r->node[i].host);
        assert_int_equal(r->node[i].echoes, 0);
        mu_identity_fini(&r->node[i].identity);
    }
    mu_sim_free(r->sim);
}

/* `of` learns where `who` is. */
struct rig_pair {
    struct rig_node *of;
    struct rig_node *who;
};

static void rig_introduce_inside(void *arg)
{
    struct rig_pair *p = arg;
    struct mu_buf addr;
    struct mu_errmsg msg;
    char text[64];

    mu_buf_init(&addr, 256);
    (void)snprintf(text, sizeof(text), "/dns4/%s/tcp/%d", p->who->name, RIG_PORT);
    assert_int_equal(mu_multiaddr_parse(&addr, text, &msg), 0);
    assert_int_equal(mu_peer_host_add_addr(p->of->host, &p->who->identity.id, mu_buf_span(&addr)),
                     0);
    mu_buf_fini(&addr);
}

static inline void rig_introduce(struct rig_node *of, struct rig_node *who)
{
    mu_sim_call(of->proc, rig_introduce_inside, &(struct rig_pair){of, who});
}

/* Its address where connections are streams between peers. */
static inline struct mu_addr rig_addr(const struct rig_node *n)
{
    struct mu_addr addr;
    struct mu_errmsg msg;
    char id[MU_PEER_ID_TEXT_MAX];
    char text[MU_PEER_ID_TEXT_MAX + 8];

    (void)snprintf(text, sizeof(text), "peer:%s", mu_peer_id_format(&n->identity.id, id));
    assert_int_equal(mu_addr_parse(text, 0, &addr, &msg), 0);
    return addr;
}

/* --- memory ----------------------------------------------------------------------------------- */

enum { RIG_MISSES = 3 };

static long rig_miss_at; /* allocations until the first of those that fail */

static bool rig_miss_hook(size_t size)
{
    struct mu_sim_heap *heap = mu_sim_outside();

    (void)size;
    mu_sim_inside(heap);
    if (heap == NULL) {
        return true; /* It is the world's. */
    }
    rig_miss_at--;
    return rig_miss_at >= 0 || rig_miss_at < -RIG_MISSES;
}

/* Of the nodes' allocations number `nth` fails, and some behind it; then there is memory again. */
static inline void rig_miss(long nth)
{
    rig_miss_at = nth;
    mu_alloc_hook = rig_miss_hook;
}

/* Whether any has failed. That is over now. */
static inline bool rig_missed(void)
{
    mu_alloc_hook = NULL;
    return rig_miss_at < 0;
}

/* --- calls ------------------------------------------------------------------------------------ */

static inline uint8_t rig_byte(size_t at)
{
    return (uint8_t)(at * 7 + (at >> 8) * 31 + (at >> 16));
}

static void rig_call_more(struct mu_host_stream *s)
{
    struct rig_call *c = MU_CONTAINER_OF(s, struct rig_call, stream);

    while (c->sent < c->bytes) {
        uint8_t chunk[4096];
        size_t n = c->bytes - c->sent < sizeof(chunk) ? c->bytes - c->sent : sizeof(chunk);
        size_t taken;

        for (size_t i = 0; i < n; i++) {
            chunk[i] = rig_byte(c->sent + i);
        }
        taken = mu_host_stream_write(s, mu_span(chunk, n));
        c->sent += taken;
        if (taken < n) {
            return;
        }
    }
    mu_host_stream_end(s);
}

static void rig_call_ready(struct mu_host_stream *s, struct mu_span name)
{
    (void)name;
    MU_CONTAINER_OF(s, struct rig_call, stream)->ready = true;
}

static void rig_call_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct rig_call *c = MU_CONTAINER_OF(s, struct rig_call, stream);

    for (size_t i = 0; i < bytes.len; i++) {
        c->wrong = c->wrong || bytes.data[i] != rig_byte(c->got + i);
    }
    c->got += bytes.len;
    mu_host_stream_consumed(s, bytes.len);
}

static void rig_call_eof(struct mu_host_stream *s)
{
    MU_CONTAINER_OF(s, struct rig_call, stream)->eof = true;
}

static void rig_call_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct rig_call *c = MU_CONTAINER_OF(s, struct rig_call, stream);

    c->ended++;
    c->status = status;
    (void)snprintf(c->text, sizeof(c->text), "%s", text);
}

static const struct mu_host_stream_events rig_call_events = {
    .ready = rig_call_ready,
    .data = rig_call_data,
    .eof = rig_call_eof,
    .writable = rig_call_more,
    .ended = rig_call_ended,
};

struct rig_calling {
    struct rig_node *from;
    struct rig_node *to;
    struct rig_call *call;
    const struct mu_span *names;
    size_t name_count;
};

static void rig_call_inside(void *arg)
{
    struct rig_calling *c = arg;

    c->call->stream = (struct mu_host_stream){.on = &rig_call_events};
    mu_host_stream_open(c->from->host, &c->call->stream, &c->to->identity.id, c->names,
                        c->name_count);
    rig_call_more(&c->call->stream);
}

static inline void rig_call_names(struct rig_node *from, struct rig_node *to, struct rig_call *call,
                                  size_t bytes, const struct mu_span *names, size_t count)
{
    memset(call, 0, sizeof(*call));
    call->bytes = bytes;
    mu_sim_call(from->proc, rig_call_inside, &(struct rig_calling){from, to, call, names, count});
}

static inline void rig_call(struct rig_node *from, struct rig_node *to, struct rig_call *call,
                            size_t bytes)
{
    rig_call_names(from, to, call, bytes, rig_echo_names, 1);
}

static inline void rig_assert_echoed(const struct rig_call *c)
{
    assert_string_equal(c->text, "");
    assert_int_equal(c->status, 0);
    assert_int_equal(c->ended, 1);
    assert_true(c->eof);
    assert_false(c->wrong);
    assert_int_equal(c->got, c->bytes);
}

static inline struct mu_peer_host_stats rig_stats(const struct rig_node *n)
{
    struct mu_peer_host_stats stats;

    mu_peer_host_stats(n->host, &stats);
    return stats;
}

#endif
