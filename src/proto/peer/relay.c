#include "proto/peer/relay.h"

#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

#define IP_MAX     64
#define MINUTE_MS  60000
#define LIFE_MIN_S 60
#define LIFE_MAX_S 86400
#define DOUBLINGS  16

/* --- reservations ----------------------------------------------------------------------------- */

struct reservation {
    struct mu_map_node by_peer;
    struct mu_list link; /* hop->by_end */
    struct mu_peer_id peer;
    mu_mono_t ends_at;
    mu_mono_t minute_at; /* the time from which renewals are counted */
    uint32_t renewals;
    uint8_t ip_len;
    uint8_t ip[IP_MAX];
};

struct mu_relay_hop_config mu_relay_hop_config_defaults(void)
{
    return (struct mu_relay_hop_config){
        .reservation_ms = 3600 * 1000,
        .reservations_max = 128,
        .reservations_ip_max = 32,
        .renewals_max = 8,
        .circuits_max = 1024,
        .circuits_peer_max = 16,
        .open_ms = 30000,
        .limit = {.duration_s = 1800, .data_bytes = (uint64_t)4 << 30},
    };
}

void mu_relay_hop_init(struct mu_relay_hop *hop, const struct mu_relay_hop_config *config)
{
    hop->config = *config;
    hop->circuit_count = 0;
    mu_map_init(&hop->by_peer, config->seed);
    mu_list_init(&hop->by_end);
    mu_list_init(&hop->circuits);
}

static void drop(struct mu_relay_hop *hop, struct reservation *r)
{
    mu_map_remove(&hop->by_peer, &r->by_peer);
    mu_list_remove(&r->link);
    mu_free(r);
}

void mu_relay_hop_fini(struct mu_relay_hop *hop)
{
    MU_ASSERT(mu_list_empty(&hop->circuits));
    MU_LIST_FOREACH_SAFE (it, tmp, &hop->by_end) {
        drop(hop, MU_CONTAINER_OF(it, struct reservation, link));
    }
    mu_map_fini(&hop->by_peer);
}

static struct reservation *find(const struct mu_relay_hop *hop, const struct mu_peer_id *peer)
{
    struct mu_map_node *node = mu_map_find(&hop->by_peer, mu_peer_id_span(peer));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct reservation, by_peer);
}

static uint32_t count_ip(const struct mu_relay_hop *hop, struct mu_span ip)
{
    uint32_t n = 0;

    MU_LIST_FOREACH (it, &hop->by_end) {
        const struct reservation *r = MU_CONTAINER_OF(it, struct reservation, link);

        n += mu_span_eq(mu_span(r->ip, r->ip_len), ip) ? 1 : 0;
    }
    return n;
}

/* Makes a new reservation if there is room. */
static struct reservation *add(struct mu_relay_hop *hop, const struct mu_peer_id *peer,
                               struct mu_span ip)
{
    struct reservation *r;

    if (hop->by_peer.count >= hop->config.reservations_max ||
        (ip.len != 0 && count_ip(hop, ip) >= hop->config.reservations_ip_max)) {
        return NULL;
    }
    r = mu_calloc(1, sizeof(*r));
    if (r == NULL) {
        return NULL;
    }
    r->peer = *peer;
    r->minute_at = MU_MONO_NEVER;
    r->ip_len = (uint8_t)ip.len;
    if (ip.len != 0) {
        memcpy(r->ip, ip.data, ip.len);
    }
    mu_list_init(&r->link);
    if (mu_map_insert(&hop->by_peer, &r->by_peer, mu_peer_id_span(&r->peer)) != 0) {
        mu_free(r);
        return NULL;
    }
    return r;
}

static bool may_renew(const struct mu_relay_hop *hop, struct reservation *r, mu_mono_t now)
{
    if (r->minute_at.ns == MU_MONO_NEVER.ns ||
        mu_mono_reached(mu_mono_add_ms(r->minute_at, MINUTE_MS), now)) {
        r->minute_at = now;
        r->renewals = 0;
    }
    if (r->renewals >= hop->config.renewals_max) {
        return false;
    }
    r->renewals++;
    return true;
}

enum mu_relay_status mu_relay_hop_reserve(struct mu_relay_hop *hop, struct mu_now now,
                                          const struct mu_peer_id *peer, struct mu_span ip,
                                          bool relayed, uint64_t *ret_expire_s)
{
    struct reservation *r = find(hop, peer);

    if (relayed) {
        return MU_RELAY_PERMISSION_DENIED;
    }
    if (r == NULL) {
        r = add(hop, peer, mu_span(ip.data, ip.len < IP_MAX ? ip.len : IP_MAX));
    }
    if (r == NULL || !may_renew(hop, r, now.mono)) {
        return MU_RELAY_RESERVATION_REFUSED;
    }
    r->ends_at = mu_mono_add_ms(now.mono, hop->config.reservation_ms);
    mu_list_remove(&r->link);
    mu_list_push(&hop->by_end, &r->link);
    *ret_expire_s = (now.wall.ns + hop->config.reservation_ms * MU_NS_PER_MS) / MU_NS_PER_S;
    return MU_RELAY_OK;
}

bool mu_relay_hop_reserved(const struct mu_relay_hop *hop, mu_mono_t now,
                           const struct mu_peer_id *peer)
{
    const struct reservation *r = find(hop, peer);

    return r != NULL && !mu_mono_reached(r->ends_at, now);
}

void mu_relay_hop_forget(struct mu_relay_hop *hop, const struct mu_peer_id *peer)
{
    struct reservation *r = find(hop, peer);

    if (r != NULL) {
        drop(hop, r);
    }
}

size_t mu_relay_hop_count(const struct mu_relay_hop *hop)
{
    return hop->by_peer.count;
}

mu_mono_t mu_relay_hop_deadline(const struct mu_relay_hop *hop)
{
    return mu_list_empty(&hop->by_end)
               ? MU_MONO_NEVER
               : MU_CONTAINER_OF(hop->by_end.next, struct reservation, link)->ends_at;
}

bool mu_relay_hop_expire(struct mu_relay_hop *hop, mu_mono_t now, struct mu_peer_id *ret_peer)
{
    struct reservation *r;

    if (!mu_mono_reached(mu_relay_hop_deadline(hop), now)) {
        return false;
    }
    r = MU_CONTAINER_OF(hop->by_end.next, struct reservation, link);
    *ret_peer = r->peer;
    drop(hop, r);
    return true;
}

/* --- circuits --------------------------------------------------------------------------------- */

static uint32_t count_circuits(const struct mu_relay_hop *hop, const struct mu_peer_id *peer)
{
    uint32_t n = 0;

    MU_LIST_FOREACH (it, &hop->circuits) {
        const struct mu_relay_circuit *c = MU_CONTAINER_OF(it, struct mu_relay_circuit, link);

        n += mu_peer_id_eq(&c->from, peer) || mu_peer_id_eq(&c->to, peer) ? 1 : 0;
    }
    return n;
}

enum mu_relay_status mu_relay_hop_connect(struct mu_relay_hop *hop, mu_mono_t now,
                                          const struct mu_peer_id *from,
                                          const struct mu_peer_id *to, bool relayed,
                                          struct mu_relay_circuit *ret_circuit)
{
    const struct mu_relay_hop_config *config = &hop->config;
    uint64_t bytes = config->limit.data_bytes;

    if (relayed || mu_peer_id_eq(from, to)) {
        return MU_RELAY_PERMISSION_DENIED;
    }
    if (!mu_relay_hop_reserved(hop, now, to)) {
        return MU_RELAY_NO_RESERVATION;
    }
    if (hop->circuit_count >= config->circuits_max ||
        count_circuits(hop, from) >= config->circuits_peer_max ||
        count_circuits(hop, to) >= config->circuits_peer_max) {
        return MU_RELAY_RESOURCE_LIMIT_EXCEEDED;
    }
    *ret_circuit = (struct mu_relay_circuit){
        .hop = hop,
        .from = *from,
        .to = *to,
        .ends_at = mu_mono_add_ms(now, config->open_ms),
        .left = {bytes == 0 ? UINT64_MAX : bytes, bytes == 0 ? UINT64_MAX : bytes},
    };
    mu_list_init(&ret_circuit->link);
    mu_list_push(&hop->circuits, &ret_circuit->link);
    hop->circuit_count++;
    return MU_RELAY_OK;
}

void mu_relay_circuit_open(struct mu_relay_circuit *circuit, mu_mono_t now)
{
    uint32_t s = circuit->hop->config.limit.duration_s;

    circuit->ends_at = s == 0 ? MU_MONO_NEVER : mu_mono_add_ms(now, (uint64_t)s * 1000);
}

size_t mu_relay_circuit_pass(struct mu_relay_circuit *circuit, unsigned way, size_t n)
{
    if (n > circuit->left[way]) {
        n = (size_t)circuit->left[way];
    }
    if (circuit->left[way] != UINT64_MAX) {
        circuit->left[way] -= n;
    }
    circuit->passed[way] += n;
    return n;
}

void mu_relay_circuit_end(struct mu_relay_circuit *circuit)
{
    if (circuit->hop != NULL) {
        mu_list_remove(&circuit->link);
        circuit->hop->circuit_count--;
        circuit->hop = NULL;
    }
}

/* --- behind a relay --------------------------------------------------------------------------- */

struct mu_relay_reservation_config mu_relay_reservation_config_defaults(void)
{
    return (struct mu_relay_reservation_config){
        .margin_ms = 120000,
        .answer_ms = 30000,
        .retry_ms = 2000,
        .retry_max_ms = 300000,
    };
}

void mu_relay_reservation_init(struct mu_relay_reservation *k,
                               const struct mu_relay_reservation_config *config, mu_mono_t now)
{
    *k = (struct mu_relay_reservation){
        .config = *config, .ask_at = now, .until_at = MU_MONO_NEVER, .ends_at = MU_MONO_NEVER};
    mu_prng_seed(&k->prng, config->seed);
}

/* The delay grows each time, and is random so that not all peers of a relay ask at once. */
static void ask_later(struct mu_relay_reservation *k, mu_mono_t now)
{
    uint64_t ms = k->config.retry_ms;

    for (uint32_t i = 0; i < k->failures && i < DOUBLINGS && ms < k->config.retry_max_ms; i++) {
        ms *= 2;
    }
    ms = ms < k->config.retry_max_ms ? ms : k->config.retry_max_ms;
    k->failures++;
    k->asking = false;
    k->until_at = MU_MONO_NEVER;
    k->ask_at = mu_mono_add_ms(now, ms / 2 + mu_prng_below(&k->prng, ms / 2 + 1));
}

void mu_relay_reservation_tick(struct mu_relay_reservation *k, mu_mono_t now)
{
    if (k->asking && mu_mono_reached(k->until_at, now)) {
        ask_later(k, now);
    }
    if (k->held && mu_mono_reached(k->ends_at, now)) {
        k->held = false;
        k->ends_at = MU_MONO_NEVER;
    }
}

bool mu_relay_reservation_ask(struct mu_relay_reservation *k, mu_mono_t now)
{
    if (k->asking || !mu_mono_reached(k->ask_at, now)) {
        return false;
    }
    k->asking = true;
    k->ask_at = MU_MONO_NEVER;
    k->until_at = mu_mono_add_ms(now, k->config.answer_ms);
    return true;
}

void mu_relay_reservation_granted(struct mu_relay_reservation *k, struct mu_now now,
                                  uint64_t expire_s)
{
    uint64_t wall_s = now.wall.ns / MU_NS_PER_S;
    uint64_t life_s = expire_s > wall_s ? expire_s - wall_s : 0;
    uint64_t margin_ms;

    life_s = life_s < LIFE_MIN_S ? LIFE_MIN_S : life_s > LIFE_MAX_S ? LIFE_MAX_S : life_s;
    margin_ms = life_s * 1000 / 4;
    margin_ms = margin_ms < k->config.margin_ms ? margin_ms : k->config.margin_ms;
    k->asking = false;
    k->held = true;
    k->failures = 0;
    k->until_at = MU_MONO_NEVER;
    k->ends_at = mu_mono_add_ms(now.mono, life_s * 1000);
    k->ask_at = mu_mono_add_ms(now.mono, life_s * 1000 - margin_ms);
}

void mu_relay_reservation_failed(struct mu_relay_reservation *k, mu_mono_t now)
{
    if (k->asking) {
        ask_later(k, now);
    }
}

void mu_relay_reservation_lost(struct mu_relay_reservation *k, mu_mono_t now)
{
    if (k->held || k->asking) {
        k->held = false;
        k->ends_at = MU_MONO_NEVER;
        ask_later(k, now);
    }
}

mu_mono_t mu_relay_reservation_deadline(const struct mu_relay_reservation *k)
{
    return mu_mono_min(k->asking ? k->until_at : k->ask_at, k->ends_at);
}
