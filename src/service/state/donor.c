#include "service/state/donor.h"

#include <errno.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/listen.h"
#include "service/base/log.h"
#include "service/state/donor_internal.h"

#define DROPPED "STATE-PEER-DROPPED"

struct mu_state_donor_config mu_state_donor_config_defaults(void)
{
    return (struct mu_state_donor_config){
        .name = "muster",
        .gate = mu_state_gate_config_defaults(),
        .replaced_ms = 60000,
        .drain_ms = 2000,
        .swarm_ms = 10000,
        .again_ms = 1000,
        .sessions_max = 1024,
        .asks_max = 4096,
    };
}

struct mu_rpc_config mu_state_rpc_terms(void)
{
    struct mu_rpc_config terms = mu_rpc_config_defaults();

    /* Nothing is taken up again on a session: another one is begun, for what is still missing. So
     * what was sent is forgotten at once. */
    terms.grace_ms = 0;
    terms.frame_bytes_max = 2 * MU_STATE_CHUNK_BYTES_MAX;
    terms.item_window_bytes = 16u << 20;
    terms.item_window_bytes_max = 16u << 20;
    terms.output_bytes_high = 4u << 20;
    terms.output_bytes_max = 64u << 20;
    return terms;
}

/* --- states ----------------------------------------------------------------------------------- */

static void free_given(struct mu_state_given *given)
{
    struct mu_list *it;

    while ((it = mu_list_pop(&given->swarm)) != NULL) {
        mu_free(MU_CONTAINER_OF(it, struct mu_state_member, link));
    }
    mu_list_remove(&given->link);
    mu_state_share_drop(given->share);
    mu_free(given);
}

void mu_state_given_settle(struct mu_state_given *given)
{
    if (given->leaving && given->downloads == 0) {
        /* Offers that are still on their way hold the share, not the stand. */
        MU_LIST_FOREACH_SAFE (it, tmp, &given->donor->streams) {
            struct mu_state_stream *s = MU_CONTAINER_OF(it, struct mu_state_stream, link);

            if (s->given == given) {
                mu_state_stream_end(s, MUSTER_ENOENT, "gone: that version was withdrawn");
            }
        }
        free_given(given);
    }
}

static void tell_gone(struct mu_state_given *given)
{
    given->downloads++; /* It is settled once, below. */
    MU_LIST_FOREACH_SAFE (it, tmp, &given->donor->streams) {
        struct mu_state_stream *s = MU_CONTAINER_OF(it, struct mu_state_stream, link);

        if (s->given == given) {
            mu_state_stream_end(s, MUSTER_ENOENT, "gone: that version was replaced");
        }
    }
    given->downloads--;
    mu_state_given_settle(given);
}

static void leave(struct mu_state_given *given, uint32_t wait_ms)
{
    struct mu_env *env = given->donor->env;

    given->leaving = true;
    given->gone_at = mu_mono_add_ms(mu_env_now(env).mono, wait_ms);
    /* On the timer: no callback runs in here. */
    mu_env_timer_arm(env, &given->donor->timer, mu_env_now(env).mono);
}

struct mu_state_given *mu_state_given_find(struct mu_state_donor *d,
                                           const struct mu_state_which *which)
{
    struct mu_state_given *best = NULL;

    MU_LIST_FOREACH (it, &d->given_list) {
        struct mu_state_given *given = MU_CONTAINER_OF(it, struct mu_state_given, link);
        const struct mu_state_share *share = given->share;

        if (which->by_id) {
            /* Who has begun may begin again as long as it is here. */
            if (memcmp(share->id, which->id, sizeof(share->id)) == 0 && !share->hidden &&
                (!given->leaving || given->downloads != 0)) {
                return given;
            }
        } else if (!given->leaving && !share->hidden &&
                   mu_span_eq(which->prefix, mu_span_str(share->prefix)) &&
                   (best == NULL || share->priority > best->share->priority)) {
            best = given;
        }
    }
    return best;
}

static struct mu_state_given *find_put(struct mu_state_donor *d, struct mu_span prefix)
{
    MU_LIST_FOREACH (it, &d->given_list) {
        struct mu_state_given *given = MU_CONTAINER_OF(it, struct mu_state_given, link);

        if (given->put && !given->leaving &&
            mu_span_eq(prefix, mu_span_str(given->share->prefix))) {
            return given;
        }
    }
    return NULL;
}

static int add_given(struct mu_state_donor *d, struct mu_state_share *share, bool put)
{
    struct mu_state_given *given = d->stopping ? NULL : mu_calloc(1, sizeof(*given));
    struct mu_state_given *old;

    if (given == NULL) {
        return d->stopping ? MUSTER_ECLOSED : MUSTER_ENOMEM;
    }
    old = put ? find_put(d, mu_span_str(share->prefix)) : NULL;
    if (old != NULL) {
        leave(old, d->config.replaced_ms);
    }
    given->donor = d;
    given->put = put;
    given->share = mu_state_share_hold(share);
    mu_list_init(&given->swarm);
    mu_list_push(&d->given_list, &given->link);
    return 0;
}

int mu_state_donor_put(struct mu_state_donor *d, struct mu_state_share *share)
{
    return add_given(d, share, true);
}

int mu_state_donor_add(struct mu_state_donor *d, struct mu_state_share *share)
{
    return add_given(d, share, false);
}

struct mu_state_share *mu_state_donor_find(struct mu_state_donor *d, struct mu_span prefix)
{
    struct mu_state_given *given = find_put(d, prefix);

    return given == NULL ? NULL : given->share;
}

void mu_state_donor_withdraw(struct mu_state_donor *d, struct mu_state_share *share,
                             uint32_t wait_ms)
{
    MU_LIST_FOREACH (it, &d->given_list) {
        struct mu_state_given *given = MU_CONTAINER_OF(it, struct mu_state_given, link);

        if (given->share == share) {
            leave(given, wait_ms);
        }
    }
}

void mu_state_donor_stats(const struct mu_state_donor *d, struct mu_state_donor_stats *ret)
{
    *ret = d->stats;
    ret->active = d->gate.taken;
}

void mu_state_donor_limit(struct mu_state_donor *d, const struct mu_state_gate_config *gate)
{
    d->config.gate = *gate;
    mu_state_gate_configure(&d->gate, gate, mu_env_now(d->env).mono);
    mu_env_timer_arm(d->env, &d->timer, mu_env_now(d->env).mono);
}

/* --- connections ------------------------------------------------------------------------------ */

static struct mu_state_donor *donor_of(const struct mu_rpc_server *s)
{
    return MU_CONTAINER_OF(s, struct mu_state_donor, server);
}

static void complain(struct mu_rpc_server *s, const char *peer, const char *why)
{
    struct mu_state_donor *d = donor_of(s);
    mu_mono_t now = mu_env_now(d->env).mono;

    if (!mu_log_may(&d->dropped, now)) {
        d->dropped.unsaid++;
        return;
    }
    mu_log_said(&d->dropped, now, MUSTER_LOG_WARN, DROPPED, "peer=%s why=\"%s\"", peer, why);
}

static int greet(struct mu_rpc_server *s, const struct mu_rpc_hello *hello,
                 struct mu_rpc_session *known, struct mu_errmsg *reterr_msg)
{
    (void)hello;
    (void)known;
    return donor_of(s)->stopping
               ? mu_err(reterr_msg, MUSTER_EDRAIN, "this donor of states is leaving")
               : 0;
}

static struct mu_rpc_session *session_new(struct mu_rpc_server *s, const struct mu_rpc_hello *hello)
{
    struct mu_state_client *v = mu_calloc(1, sizeof(*v));

    (void)hello;
    if (v == NULL) {
        return NULL;
    }
    v->donor = donor_of(s);
    return &v->base;
}

static void session_free(struct mu_rpc_session *session)
{
    struct mu_state_client *v = MU_CONTAINER_OF(session, struct mu_state_client, base);

    MU_LIST_FOREACH_SAFE (it, tmp, &v->donor->draining) {
        struct mu_state_stream *s = MU_CONTAINER_OF(it, struct mu_state_stream, link);

        if (s->base.session == session) {
            mu_state_stream_orphan(s);
        }
    }
    MU_LIST_FOREACH (it, &v->donor->given_list) {
        mu_state_given_forget(MU_CONTAINER_OF(it, struct mu_state_given, link), v);
    }
    mu_free(v);
}

static void turn_ended(struct mu_rpc_server *s)
{
    mu_state_donor_turn(donor_of(s));
}

static void on_closed(struct mu_rpc_conn *c, int status)
{
    (void)c;
    if (status == -EIO) {
        mu_log(MUSTER_LOG_ERROR, "STATE-FILE-CUT",
               "why=\"a file that is shared became shorter\" remedy=\"replace files by renaming\"");
    }
}

static void on_accept_failed(struct mu_listener *listener, int status)
{
    (void)listener;
    mu_log(MUSTER_LOG_ERROR, "STATE-ACCEPT-FAILED",
           "why=\"%s\" remedy=\"raise the descriptor limit (ulimit -n) of this process\"",
           muster_strerror(status));
}

static void flush_conn(struct mu_rpc_conn *c)
{
    (void)mu_rpc_conn_send(c, SIZE_MAX);
    /* Room for more chunks is made use of at once. */
    if (c->session != NULL && mu_rpc_deadline(&c->session->rpc).ns == 0) {
        mu_rpc_session_pump(c->session);
    }
}

static const struct mu_rpc_server_ops server_ops = {
    .turn_ended = turn_ended,
    .complain = complain,
    .accept_failed = on_accept_failed,
    .protocol = &mu_rpc_native,
    .flush = flush_conn,
    .closed = on_closed,
    .greet = greet,
    .session_new = session_new,
    .session_free = session_free,
    .call = mu_state_donor_call,
};

/* --- the turn --------------------------------------------------------------------------------- */

static mu_mono_t settle_given(struct mu_state_donor *d)
{
    mu_mono_t now = mu_env_now(d->env).mono;
    mu_mono_t at = MU_MONO_NEVER;

    MU_LIST_FOREACH_SAFE (it, tmp, &d->given_list) {
        struct mu_state_given *given = MU_CONTAINER_OF(it, struct mu_state_given, link);

        if (!given->leaving) {
            continue;
        }
        if (mu_mono_reached(given->gone_at, now)) {
            tell_gone(given);
        } else if (given->downloads == 0) {
            mu_state_given_settle(given);
        } else {
            at = mu_mono_min(at, given->gone_at);
        }
    }
    return at;
}

static void stop_if_idle(struct mu_state_donor *d)
{
    if (!d->stopping || d->stopped || !mu_rpc_server_is_empty(&d->server) || d->jobs != 0) {
        return;
    }
    d->stopped = true;
    mu_log_rest(&d->dropped, MUSTER_LOG_WARN, DROPPED);
    mu_env_timer_arm(d->env, &d->timer, MU_MONO_NEVER);
    mu_rpc_server_stop(&d->server);
    if (d->config.stopped != NULL) {
        d->config.stopped(d->config.context);
    }
}

void mu_state_donor_turn(struct mu_state_donor *d)
{
    struct mu_state_turn *turn;
    mu_mono_t at;

    if (d->in_turn || d->stopped) {
        return;
    }
    d->in_turn = true;
    (void)settle_given(d);
    do {
        while ((turn = mu_state_gate_next(&d->gate, mu_env_now(d->env).mono)) != NULL) {
            mu_state_stream_serve(MU_CONTAINER_OF(turn, struct mu_state_stream, turn));
        }
        mu_rpc_server_flush(&d->server);
        turn = mu_state_gate_next(&d->gate, mu_env_now(d->env).mono);
        if (turn != NULL) {
            mu_state_stream_serve(MU_CONTAINER_OF(turn, struct mu_state_stream, turn));
        }
    } while (turn != NULL || !mu_list_empty(&d->server.touched));
    at = mu_state_streams_sweep(d);
    at = mu_mono_min(at, settle_given(d));
    at = mu_mono_min(at, mu_state_gate_deadline(&d->gate));
    at = mu_mono_min(at, mu_log_rest_at(&d->dropped));
    mu_env_timer_arm(d->env, &d->timer, at);
    d->in_turn = false;
    stop_if_idle(d);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_state_donor *d = MU_CONTAINER_OF(timer, struct mu_state_donor, timer);

    mu_rpc_server_feel_pulse(&d->server);
    if (mu_mono_reached(mu_log_rest_at(&d->dropped), mu_env_now(d->env).mono)) {
        mu_log_rest(&d->dropped, MUSTER_LOG_WARN, DROPPED);
    }
    mu_state_donor_turn(d);
}

/* --- life ------------------------------------------------------------------------------------- */

static void free_memory(struct mu_state_donor *d)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &d->given_list) {
        free_given(MU_CONTAINER_OF(it, struct mu_state_given, link));
    }
    mu_rpc_server_fini(&d->server);
    mu_free(d);
}

static void init_donor(struct mu_state_donor *d)
{
    struct mu_rpc_server_config server = {
        .rpc = mu_state_rpc_terms(), .sessions_max = d->config.sessions_max, .eof_grace_ms = 0};

    mu_env_entropy(d->env, &server.rpc.seed, sizeof(server.rpc.seed));
    server.rpc.name = d->config.name;
    mu_list_init(&d->given_list);
    mu_list_init(&d->streams);
    mu_list_init(&d->draining);
    mu_timer_init(&d->timer, on_timer);
    mu_state_gate_init(&d->gate, &d->config.gate, mu_env_now(d->env).mono);
    mu_rpc_server_init(&d->server, d->env, &server, &server_ops);
}

int mu_state_donor_start(struct mu_env *env, const struct mu_state_donor_config *config,
                         struct mu_state_donor **ret, struct mu_errmsg *reterr_msg)
{
    struct mu_state_donor *d = mu_calloc(1, sizeof(*d));
    int err = 0;

    if (d == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    d->env = env;
    d->config = *config;
    init_donor(d);
    if (config->listen.kind != 0) {
        err = mu_rpc_server_listen(&d->server, &d->listener, &d->config.listen);
    }
    if (err != 0) {
        err = mu_listen_failed(env, &config->listen, err, reterr_msg);
        free_memory(d);
        return err;
    }
    *ret = d;
    return 0;
}

const struct mu_addr *mu_state_donor_addr(const struct mu_state_donor *d)
{
    return &d->config.listen;
}

void mu_state_donor_on_stopped(struct mu_state_donor *d, void (*stopped)(void *context),
                               void *context)
{
    d->config.stopped = stopped;
    d->config.context = context;
}

void mu_state_donor_stop(struct mu_state_donor *d)
{
    if (d->stopping) {
        return;
    }
    d->stopping = true;
    mu_rpc_server_leave(&d->server, "the donor is leaving");
    mu_env_timer_arm(d->env, &d->timer, mu_env_now(d->env).mono);
}

void mu_state_donor_free(struct mu_state_donor *d)
{
    if (d != NULL) {
        MU_ASSERT(d->stopped);
        free_memory(d);
    }
}
