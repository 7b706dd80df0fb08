#include "service/peer/relay_internal.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "codec/peer/multiaddr.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "crypto/relay_voucher.h"
#include "service/base/log.h"

#define PLACES_MAX   16
#define ADDRS_MAX    4 /* addresses that one place brings */
#define FAILURES_MAX 3 /* in a row, until the relay counts as useless */
#define AGAIN_MS     10

static const struct mu_span hop_name = {(const uint8_t *)MU_RELAY_HOP_NAME,
                                        sizeof(MU_RELAY_HOP_NAME) - 1};

/* A place at a relay, held or wanted. */
struct mu_relay_place {
    struct mu_list link; /* relay->places */
    struct mu_peer_relay *relay;
    struct mu_relay_reservation reservation;
    struct mu_peer_id at;
    struct mu_buf given; /* the address from the user; empty: it was found among the peers */
    struct mu_timer timer;
    struct mu_host_stream stream; /* while we ask for the place */
    struct mu_relay_in in;
    struct mu_buf out;
    struct mu_buf addrs[ADDRS_MAX]; /* the addresses at which it leads to us, while it is held */
    bool answered;
    bool held; /* as others were told */
};

static void look_around(struct mu_peer_relay *relay);

/* --- the addresses it brings ------------------------------------------------------------------ */

struct mu_span mu_peer_relay_addr(const struct mu_peer_relay *relay, size_t i)
{
    MU_LIST_FOREACH (it, &relay->places) {
        const struct mu_relay_place *p = MU_CONTAINER_OF(it, struct mu_relay_place, link);

        for (size_t n = 0; n < ADDRS_MAX && p->held; n++) {
            if (p->addrs[n].len != 0 && i-- == 0) {
                return mu_buf_span(&p->addrs[n]);
            }
        }
    }
    return (struct mu_span){0};
}

static void tell_host(struct mu_peer_relay *relay)
{
    struct mu_span addrs[PLACES_MAX * ADDRS_MAX];
    mu_mono_t again = MU_MONO_NEVER;
    size_t n = 0;

    while (n < PLACES_MAX * ADDRS_MAX && (addrs[n] = mu_peer_relay_addr(relay, n)).len != 0) {
        n++;
    }
    if (mu_peer_host_tell_circuits(relay->host, addrs, n) != 0) {
        again = mu_mono_add_ms(mu_env_now(relay->env).mono, AGAIN_MS);
    }
    mu_env_timer_arm(relay->env, &relay->tell_timer, again);
}

static void on_tell_timer(struct mu_timer *timer)
{
    tell_host(MU_CONTAINER_OF(timer, struct mu_peer_relay, tell_timer));
}

static void tell_addrs(struct mu_peer_relay *relay)
{
    tell_host(relay);
    if (relay->config.changed != NULL) {
        relay->config.changed(relay->config.context);
    }
}

bool mu_relay_has_place(const struct mu_peer_relay *relay, const struct mu_peer_id *at)
{
    MU_LIST_FOREACH (it, &relay->places) {
        const struct mu_relay_place *p = MU_CONTAINER_OF(it, struct mu_relay_place, link);

        if (mu_peer_id_eq(&p->at, at)) {
            return p->reservation.held || p->reservation.asking;
        }
    }
    return false;
}

/* Tells the others the state of the reservation, and sets its timer. */
static void settle(struct mu_relay_place *p)
{
    struct mu_peer_relay *relay = p->relay;
    char id[MU_PEER_ID_TEXT_MAX];

    if (p->held != p->reservation.held) {
        p->held = p->reservation.held;
        (void)mu_peer_host_keep(relay->host, &p->at, p->held);
        mu_log(MUSTER_LOG_INFO, p->held ? "RELAY-HELD" : "RELAY-LOST", "at=%s",
               mu_peer_id_format(&p->at, id));
        tell_addrs(relay);
    }
    mu_env_timer_arm(relay->env, &p->timer, mu_relay_reservation_deadline(&p->reservation));
}

static void clear_addrs(struct mu_relay_place *p)
{
    for (size_t i = 0; i < ADDRS_MAX; i++) {
        mu_buf_reset(&p->addrs[i]);
    }
}

/* Makes an address of ours from one of the relay's; the relay's id is appended if it is missing. */
static int add_addr(struct mu_relay_place *p, struct mu_span addr)
{
    struct mu_span id = mu_peer_id_span(&p->at);
    struct mu_peer_id named = {0};
    struct mu_addr unused;
    size_t i = 0;
    int err = mu_multiaddr_dial(addr, &unused, &named);

    while (i < ADDRS_MAX && p->addrs[i].len != 0) {
        i++;
    }
    if (err != 0 || i == ADDRS_MAX || (named.len != 0 && !mu_peer_id_eq(&named, &p->at))) {
        return err;
    }
    err = mu_buf_append(&p->addrs[i], addr);
    if (err == 0 && named.len == 0) {
        err = mu_uvarint_append(&p->addrs[i], MU_MA_P2P);
        err = err != 0 ? err : mu_uvarint_append(&p->addrs[i], id.len);
        err = err != 0 ? err : mu_buf_append(&p->addrs[i], id);
    }
    err = err != 0 ? err : mu_uvarint_append(&p->addrs[i], MU_MA_P2P_CIRCUIT);
    if (err != 0) {
        mu_buf_reset(&p->addrs[i]);
    }
    return err;
}

/* MUSTER_ENOMEM: the place would have no address. */
static int learn_addrs(struct mu_relay_place *p, struct mu_span walk)
{
    struct mu_span addr;
    bool starved = false;

    clear_addrs(p);
    while (mu_relay_next_addr(&walk, &addr)) {
        starved = add_addr(p, addr) == MUSTER_ENOMEM || starved;
    }
    /* A relay that names no address has the one at which we found it. */
    if (p->addrs[0].len == 0 && p->given.len != 0) {
        starved = add_addr(p, mu_buf_span(&p->given)) == MUSTER_ENOMEM || starved;
    }
    for (size_t i = 0; p->addrs[0].len == 0; i++) {
        addr = mu_peer_host_addr(p->relay->host, &p->at, i);
        if (addr.len == 0) {
            break;
        }
        starved = add_addr(p, addr) == MUSTER_ENOMEM || starved;
    }
    return p->addrs[0].len == 0 && starved ? MUSTER_ENOMEM : 0;
}

/* --- asking ----------------------------------------------------------------------------------- */

static int check_voucher(const struct mu_relay_place *p, struct mu_span envelope)
{
    struct mu_relay_voucher voucher;
    int err = envelope.len == 0 ? 0 : mu_relay_voucher_open(envelope, &voucher);

    if (err != 0 || envelope.len == 0) {
        return err;
    }
    return mu_peer_id_eq(&voucher.relay, &p->at) &&
                   mu_peer_id_eq(&voucher.peer, mu_peer_host_id(p->relay->host))
               ? 0
               : MUSTER_EPEERID;
}

static void fail(struct mu_relay_place *p, const char *why)
{
    char id[MU_PEER_ID_TEXT_MAX];
    bool news = p->given.len != 0 && p->reservation.failures == 0; /* for its user */

    mu_log(news ? MUSTER_LOG_WARN : MUSTER_LOG_INFO, "RELAY-NO-PLACE", "at=%s why=\"%s\"",
           mu_peer_id_format(&p->at, id), why);
    mu_relay_reservation_failed(&p->reservation, mu_env_now(p->relay->env).mono);
    settle(p);
    if (p->given.len != 0 && p->relay->config.refused != NULL) {
        p->relay->config.refused(p->relay->config.context, &p->at, why);
    }
}

static void take_answer(struct mu_relay_place *p, struct mu_span bytes)
{
    struct mu_relay_msg msg;

    p->answered = true;
    mu_host_stream_end(&p->stream);
    if (mu_relay_msg_decode(MU_RELAY_HOP, bytes, &msg) != 0 || msg.type != MU_RELAY_STATUS ||
        (msg.status == MU_RELAY_OK && !msg.reserved)) {
        fail(p, "the relay broke the relay protocol");
    } else if (msg.status != MU_RELAY_OK) {
        fail(p, mu_relay_status_text(msg.status));
    } else if (check_voucher(p, msg.voucher) != 0) {
        fail(p, "the relay's voucher is not valid");
    } else if (learn_addrs(p, msg.addrs) != 0) {
        fail(p, "out of memory");
    } else {
        bool held = p->held;

        mu_relay_reservation_granted(&p->reservation, mu_env_now(p->relay->env), msg.expire_s);
        settle(p);
        if (held) {
            tell_addrs(p->relay); /* the relay may have moved */
        }
    }
}

static void on_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct mu_relay_place *p = MU_CONTAINER_OF(s, struct mu_relay_place, stream);
    struct mu_span msg;
    size_t used;
    int err;

    mu_host_stream_consumed(s, bytes.len);
    if (p->answered) {
        return;
    }
    err = mu_relay_in_recv(&p->in, bytes, &used, &msg);
    if (err == 1) {
        take_answer(p, msg);
    } else if (err < 0) {
        p->answered = true;
        mu_host_stream_reset(s);
        fail(p, "the relay's answer cannot be read");
    }
}

static void on_writable(struct mu_host_stream *s)
{
    struct mu_relay_place *p = MU_CONTAINER_OF(s, struct mu_relay_place, stream);

    mu_buf_consume(&p->out, mu_host_stream_write(s, mu_buf_span(&p->out)));
}

static void on_ready(struct mu_host_stream *s, struct mu_span name)
{
    (void)name;
    on_writable(s);
}

static void on_eof(struct mu_host_stream *s)
{
    mu_host_stream_end(s);
}

static void on_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct mu_relay_place *p = MU_CONTAINER_OF(s, struct mu_relay_place, stream);

    if (!p->answered) {
        p->answered = true;
        fail(p, status == MUSTER_EREFUSED ? "that peer is not a relay" : text);
    }
}

static const struct mu_host_stream_events ask_events = {
    .ready = on_ready,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .ended = on_ended,
};

static void ask(struct mu_relay_place *p)
{
    const struct mu_relay_out say = {.type = MU_RELAY_RESERVE};
    struct mu_peer_relay *relay = p->relay;

    mu_host_stream_reset(&p->stream); /* does not wait for an earlier request */
    mu_relay_in_fini(&p->in);
    mu_relay_in_init(&p->in);
    mu_buf_reset(&p->out);
    p->answered = false;
    if (p->given.len != 0) {
        (void)mu_peer_host_add_addr(relay->host, &p->at, mu_buf_span(&p->given));
    }
    if (mu_relay_msg_encode(MU_RELAY_HOP, &say, &p->out) != 0) {
        fail(p, "out of memory");
        return;
    }
    mu_host_stream_open(relay->host, &p->stream, &p->at, &hop_name, 1);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_relay_place *p = MU_CONTAINER_OF(timer, struct mu_relay_place, timer);
    mu_mono_t now = mu_env_now(p->relay->env).mono;

    mu_relay_reservation_tick(&p->reservation, now);
    if (mu_relay_reservation_ask(&p->reservation, now)) {
        ask(p);
    }
    settle(p);
    if (p->reservation.failures >= FAILURES_MAX) {
        look_around(p->relay);
    }
}

/* --- places ----------------------------------------------------------------------------------- */

static struct mu_relay_place *find_place(const struct mu_peer_relay *relay,
                                         const struct mu_peer_id *at)
{
    MU_LIST_FOREACH (it, &relay->places) {
        struct mu_relay_place *p = MU_CONTAINER_OF(it, struct mu_relay_place, link);

        if (mu_peer_id_eq(&p->at, at)) {
            return p;
        }
    }
    return NULL;
}

static struct mu_relay_place *add_place(struct mu_peer_relay *relay, const struct mu_peer_id *at)
{
    struct mu_relay_place *p = mu_calloc(1, sizeof(*p));
    struct mu_relay_reservation_config config = relay->config.reservation;

    if (p == NULL) {
        return NULL;
    }
    config.seed = mu_prng_u64(&relay->prng);
    mu_relay_reservation_init(&p->reservation, &config, mu_env_now(relay->env).mono);
    p->relay = relay;
    p->at = *at;
    p->answered = true;
    p->stream.on = &ask_events;
    mu_timer_init(&p->timer, on_timer);
    mu_relay_in_init(&p->in);
    mu_buf_init(&p->out, MU_RELAY_MSG_MAX + 2);
    mu_buf_init(&p->given, MU_MULTIADDR_MAX);
    for (size_t i = 0; i < ADDRS_MAX; i++) {
        mu_buf_init(&p->addrs[i], MU_MULTIADDR_MAX);
    }
    mu_list_init(&p->link);
    mu_list_push(&relay->places, &p->link);
    relay->place_count++;
    settle(p);
    return p;
}

static void free_place(struct mu_relay_place *p)
{
    struct mu_peer_relay *relay = p->relay;

    mu_env_timer_arm(relay->env, &p->timer, MU_MONO_NEVER);
    mu_host_stream_reset(&p->stream);
    if (p->held) {
        (void)mu_peer_host_keep(relay->host, &p->at, false);
    }
    mu_relay_in_fini(&p->in);
    mu_buf_fini(&p->out);
    mu_buf_fini(&p->given);
    for (size_t i = 0; i < ADDRS_MAX; i++) {
        mu_buf_fini(&p->addrs[i]);
    }
    mu_list_remove(&p->link);
    relay->place_count--;
    mu_free(p);
}

int mu_peer_relay_reserve(struct mu_peer_relay *relay, const char *multiaddr,
                          struct mu_errmsg *reterr_msg)
{
    struct mu_relay_place *p;
    struct mu_peer_id at = {0};
    struct mu_addr unused;
    struct mu_buf addr;
    int err;

    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    err = mu_multiaddr_parse(&addr, multiaddr, reterr_msg);
    if (err == 0 && (mu_multiaddr_dial(mu_buf_span(&addr), &unused, &at) != 0 || at.len == 0)) {
        err = mu_err(reterr_msg, MUSTER_EINVAL,
                     "%.160s: a relay's address ends with /p2p/ and its id", multiaddr);
    }
    if (err == 0 && mu_peer_id_eq(&at, mu_peer_host_id(relay->host))) {
        err = mu_err(reterr_msg, MUSTER_EINVAL, "%.160s: that is this peer itself", multiaddr);
    }
    p = err != 0 ? NULL : find_place(relay, &at);
    if (err == 0 && p == NULL) {
        if (relay->place_count == PLACES_MAX) {
            err = mu_err(reterr_msg, MUSTER_ELIMIT, "at most %d relays can be used", PLACES_MAX);
        } else {
            p = add_place(relay, &at);
            err = p == NULL ? mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory") : 0;
        }
    }
    if (p != NULL) {
        mu_buf_reset(&p->given);
        if (mu_buf_append(&p->given, mu_buf_span(&addr)) != 0) {
            err = mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
        }
    }
    mu_buf_fini(&addr);
    return err;
}

/* --- peers that come and go ------------------------------------------------------------------- */

/* Whether another relay would be of use. */
static bool wants_more(const struct mu_peer_relay *relay)
{
    uint32_t good = 0;

    MU_LIST_FOREACH (it, &relay->places) {
        good +=
            MU_CONTAINER_OF(it, struct mu_relay_place, link)->reservation.failures < FAILURES_MAX;
    }
    return relay->config.autorelay && good < relay->config.wanted &&
           relay->place_count < PLACES_MAX;
}

static void consider(struct mu_peer_relay *relay, const struct mu_peer_id *peer)
{
    if (wants_more(relay) && mu_peer_host_speaks(relay->host, peer, MU_RELAY_HOP_NAME) &&
        !mu_peer_host_limited(relay->host, peer) && find_place(relay, peer) == NULL) {
        (void)add_place(relay, peer);
    }
}

/* Looks whether a connected peer can replace a relay that is useless. */
static void look_around(struct mu_peer_relay *relay)
{
    const struct mu_peer_id *peer = NULL;

    while (wants_more(relay) && (peer = mu_peer_host_next_peer(relay->host, peer)) != NULL) {
        consider(relay, peer);
    }
}

static void on_identified(struct mu_peer_watch *watch, const struct mu_peer_id *peer)
{
    consider(MU_CONTAINER_OF(watch, struct mu_peer_relay, watch), peer);
}

static void on_disconnected(struct mu_peer_watch *watch, const struct mu_peer_id *peer, int why)
{
    struct mu_peer_relay *relay = MU_CONTAINER_OF(watch, struct mu_peer_relay, watch);
    struct mu_relay_place *p = find_place(relay, peer);

    (void)why;
    mu_relay_hop_gone(relay, peer);
    if (p == NULL) {
        return;
    }
    mu_relay_reservation_lost(&p->reservation, mu_env_now(relay->env).mono);
    settle(p);
    if (p->given.len == 0) {
        free_place(p); /* it is found again if it comes again */
        look_around(relay);
    }
}

/* --- life ------------------------------------------------------------------------------------- */

struct mu_peer_relay_config mu_peer_relay_config_defaults(void)
{
    return (struct mu_peer_relay_config){
        .hop_terms = mu_relay_hop_config_defaults(),
        .wanted = 2,
        .reservation = mu_relay_reservation_config_defaults(),
    };
}

int mu_peer_relay_start(struct mu_peer_host *host, const struct mu_peer_relay_config *config,
                        struct mu_peer_relay **ret, struct mu_errmsg *reterr_msg)
{
    struct mu_peer_relay *relay = mu_calloc(1, sizeof(*relay));
    uint64_t seed;
    int err;

    if (relay == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    relay->host = host;
    relay->env = mu_peer_host_env(host);
    relay->config = *config;
    mu_env_entropy(relay->env, &seed, sizeof(seed));
    mu_prng_seed(&relay->prng, seed);
    mu_list_init(&relay->hops);
    mu_list_init(&relay->places);
    mu_timer_init(&relay->tell_timer, on_tell_timer);
    err = mu_circuits_new(relay, &relay->circuits);
    if (err == 0) {
        err = mu_relay_hop_serve(relay);
        if (err != 0) {
            mu_relay_hop_unserve(relay);
            mu_circuits_leave(relay->circuits);
        }
    }
    if (err != 0) {
        mu_free(relay);
        return mu_err(reterr_msg, err, "%s",
                      err == MUSTER_EEXIST ? "the host has a relay service already"
                                           : muster_strerror(err));
    }
    relay->watch =
        (struct mu_peer_watch){.identified = on_identified, .disconnected = on_disconnected};
    mu_peer_host_watch(host, &relay->watch);
    look_around(relay);
    *ret = relay;
    return 0;
}

void mu_peer_relay_free(struct mu_peer_relay *relay)
{
    if (relay == NULL) {
        return;
    }
    mu_peer_host_unwatch(&relay->watch);
    MU_LIST_FOREACH_SAFE (it, tmp, &relay->places) {
        free_place(MU_CONTAINER_OF(it, struct mu_relay_place, link));
    }
    mu_env_timer_arm(relay->env, &relay->tell_timer, MU_MONO_NEVER);
    (void)mu_peer_host_tell_circuits(relay->host, NULL, 0); /* this takes no memory */
    mu_relay_hop_unserve(relay);
    mu_circuits_leave(relay->circuits);
    mu_free(relay);
}

void mu_peer_relay_stats(const struct mu_peer_relay *relay, struct mu_peer_relay_stats *ret)
{
    *ret = relay->stats;
    ret->reservations = mu_relay_hop_count(&relay->hop);
    ret->circuits = relay->hop.circuit_count;
    MU_LIST_FOREACH (it, &relay->hop.circuits) {
        const struct mu_relay_circuit *c = MU_CONTAINER_OF(it, struct mu_relay_circuit, link);

        ret->bytes += c->passed[0] + c->passed[1];
    }
    ret->streams = relay->hop_count;
    MU_LIST_FOREACH (it, &relay->places) {
        ret->places += MU_CONTAINER_OF(it, struct mu_relay_place, link)->held ? 1 : 0;
    }
    ret->dialled = relay->circuits->dialled;
    ret->stopped = relay->circuits->stopped;
}
