/*
 * Searches in memory, from a seed: matchmakers that meet in one bucket, with delays, lost and late
 * messages, skewed clocks and members that die at any step. In each of them
 * - every one that lives ends, at its deadline at the latest;
 * - those that end in one group agree on its members, and are in it;
 * - nobody is in two groups, and a group has one leader;
 * - without a fault, and with clocks that agree, nobody is left over if two or more searched.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/bin/msgpack.h"
#include "codec/dht/dict.h"
#include "core/prng.h"
#include "proto/average/matchmaker.h"

#define PEERS_MAX  8
#define WIRE_MAX   4096
#define MESSAGE    2048
#define TIMEOUT_MS 30000
#define WALL_S     1000000
#define STEPS_MAX  200000

enum message_kind { ASK, REPLY, CLOSED, GONE, FETCHED };

struct message {
    uint64_t at, order;
    uint32_t from, to;
    enum message_kind kind;
    uint64_t number;
    size_t len;
    uint8_t bytes[MESSAGE];
};

struct searcher {
    struct mu_matchmaker m;
    bool begun, gone, ended, client;
    uint64_t begin_ns, dies_ns;
    double skew;
    double expiration; /* its record, 0: none */
    bool looking;
};

/* Which call of a follower is which call at the leader. */
struct call {
    uint32_t from, to;
    uint64_t out; /* the follower's number */
};

static struct searcher peers[PEERS_MAX];
static uint32_t count;
static struct message wire[WIRE_MAX];
static size_t wire_count;
static uint64_t wire_order;
static struct call calls[WIRE_MAX]; /* by the leader's number, minus one */
static size_t call_count;
static uint64_t last_at[PEERS_MAX][PEERS_MAX];
static struct mu_prng prng;
static uint64_t clock_ns, seed;
static uint32_t delay_ms, loss_ppm;

static void fail(const char *what, uint32_t peer)
{
    (void)fprintf(stderr, "seed %llu: %s (peer %u)\n", (unsigned long long)seed, what, peer);
    exit(1);
}

static struct mu_now now(uint32_t i)
{
    return (struct mu_now){
        {clock_ns}, {WALL_S * MU_NS_PER_S + clock_ns + (uint64_t)(int64_t)(peers[i].skew * 1e9)}};
}

static struct mu_peer_id peer_id(uint32_t i)
{
    uint8_t bytes[38] = {0, 0x24, 8, 1, 0x12, 0x20};
    struct mu_peer_id id;

    bytes[20] = (uint8_t)(i * 37);
    bytes[37] = (uint8_t)i;
    if (mu_peer_id_from_bytes(&id, mu_span(bytes, sizeof(bytes))) != 0) {
        abort();
    }
    return id;
}

static uint32_t peer_of(const struct mu_peer_id *id)
{
    return id->bytes[37];
}

static void put(uint32_t from, uint32_t to, enum message_kind kind, uint64_t number,
                struct mu_span bytes)
{
    struct message *w;
    uint64_t at = clock_ns + mu_prng_below(&prng, delay_ms * MU_NS_PER_MS + 1);

    if (wire_count == WIRE_MAX || bytes.len > MESSAGE) {
        fail("the wire is full", from);
    }
    if (kind != FETCHED && mu_prng_chance(&prng, loss_ppm)) {
        return; /* a stream that stays silent */
    }
    last_at[from][to] = at > last_at[from][to] ? at : last_at[from][to];
    w = &wire[wire_count++];
    *w = (struct message){
        .at = last_at[from][to], .order = wire_order++, .from = from, .to = to, .number = number};
    w->kind = kind;
    w->len = bytes.len;
    if (bytes.len != 0) {
        memcpy(w->bytes, bytes.data, bytes.len);
    }
}

/* The records of all who look for a group. */
static void answer_fetch(uint32_t i, uint64_t number)
{
    struct mu_buf entries;
    struct mu_buf dict;
    size_t n = 0;

    mu_buf_init(&entries, MESSAGE);
    mu_buf_init(&dict, MESSAGE);
    for (uint32_t k = 0; k < count; k++) {
        struct mu_peer_id id = peer_id(k);
        uint8_t subkey[64] = {0xc4, id.len};
        struct mu_dht_entry entry = {.subkey = mu_span(subkey, 2u + id.len),
                                     .value = peers[k].looking ? MU_SPAN_LIT("\xc3")
                                                               : MU_SPAN_LIT("\xc2"),
                                     .expiration = peers[k].expiration};

        memcpy(subkey + 2, id.bytes, id.len);
        if (peers[k].expiration != 0) {
            n += mu_dht_dict_put(&entries, &entry) == 0;
        }
    }
    if (mu_dht_dict_begin(&dict, WALL_S, n, entries.len) != 0 ||
        mu_buf_append(&dict, mu_buf_span(&entries)) != 0) {
        fail("no room", i);
    }
    put(i, i, FETCHED, number, mu_buf_span(&dict));
    mu_buf_fini(&entries);
    mu_buf_fini(&dict);
}

static void open_call(uint32_t i, const struct mu_matchmaker_event *e)
{
    calls[call_count] = (struct call){i, peer_of(&e->peer), e->number};
    put(i, peer_of(&e->peer), ASK, ++call_count, e->message);
}

static void pump(uint32_t i)
{
    struct searcher *s = &peers[i];
    struct mu_matchmaker_event e;

    while (!s->gone && mu_matchmaker_next_event(&s->m, &e)) {
        switch (e.type) {
        case MU_MATCHMAKER_DECLARE:
        case MU_MATCHMAKER_LEAVE:
            s->expiration = e.expiration;
            s->looking = e.type == MU_MATCHMAKER_DECLARE;
            break;
        case MU_MATCHMAKER_FETCH:
            answer_fetch(i, e.number);
            break;
        case MU_MATCHMAKER_CALL:
            open_call(i, &e);
            break;
        case MU_MATCHMAKER_HANG_UP:
            for (size_t k = 0; k < call_count; k++) {
                if (calls[k].from == i && calls[k].out == e.number) {
                    put(i, calls[k].to, GONE, k + 1, (struct mu_span){0});
                }
            }
            break;
        case MU_MATCHMAKER_REPLY:
            put(i, calls[e.number - 1].from, REPLY, calls[e.number - 1].out, e.message);
            if (e.last) {
                put(i, calls[e.number - 1].from, CLOSED, calls[e.number - 1].out,
                    (struct mu_span){0});
            }
            break;
        case MU_MATCHMAKER_END:
            s->ended = true;
            break;
        }
    }
}

static void deliver(const struct message *w)
{
    struct searcher *s = &peers[w->to];
    struct mu_peer_id id = peer_id(w->from);
    struct mu_span bytes = mu_span(w->bytes, w->len);

    if (s->gone || !s->begun) {
        /* Nobody is there: a call to it fails. */
        if (w->kind == ASK) {
            put(w->to, w->from, CLOSED, calls[w->number - 1].out, (struct mu_span){0});
        }
        return;
    }
    switch (w->kind) {
    case ASK:
        mu_matchmaker_asked(&s->m, now(w->to), w->number, &id, bytes);
        break;
    case REPLY:
        mu_matchmaker_replied(&s->m, now(w->to), w->number, bytes);
        break;
    case CLOSED:
        mu_matchmaker_closed(&s->m, now(w->to), w->number);
        break;
    case GONE:
        mu_matchmaker_gone(&s->m, now(w->to), w->number);
        break;
    case FETCHED:
        mu_matchmaker_fetched(&s->m, now(w->to), w->number, 0, bytes);
        break;
    }
    pump(w->to);
}

static void begin_peer(uint32_t i, uint32_t target)
{
    static const uint8_t node[] = {0x93, 0xc0, 0, 0xc4, 1, 0xc0};
    static const uint8_t client[] = {0x93, 0xc0, 1, 0xc4, 1, 0xc0};
    struct mu_matchmaker_config c = mu_matchmaker_config_defaults();

    c.self = peer_id(i);
    c.client = peers[i].client;
    c.gather = c.client ? mu_span(client, 6) : mu_span(node, 6);
    (void)snprintf(c.key, sizeof(c.key), "demo.0b");
    memset(c.group_id, (int)i + 1, sizeof(c.group_id));
    c.target_size = target;
    c.timeout_ms = TIMEOUT_MS;
    c.seed = seed * 16 + i;
    if (mu_matchmaker_init(&peers[i].m, &c, now(i)) != 0) {
        fail("no init", i);
    }
    peers[i].begun = true;
    pump(i);
}

/* When something happens to peer `i` by itself. */
static uint64_t own_time(uint32_t i)
{
    struct searcher *s = &peers[i];

    if (s->gone) {
        return UINT64_MAX;
    }
    if (!s->begun) {
        return s->begin_ns;
    }
    return s->dies_ns < mu_matchmaker_deadline(&s->m).ns ? s->dies_ns
                                                         : mu_matchmaker_deadline(&s->m).ns;
}

static void happen(uint32_t i, uint32_t target)
{
    struct searcher *s = &peers[i];

    if (!s->begun) {
        begin_peer(i, target);
    } else if (s->dies_ns <= clock_ns) {
        s->gone = true;
        for (size_t k = 0; k < call_count; k++) {
            if (calls[k].from == i) {
                put(i, calls[k].to, GONE, k + 1, (struct mu_span){0});
            } else if (calls[k].to == i) {
                put(i, calls[k].from, CLOSED, calls[k].out, (struct mu_span){0});
            }
        }
    } else {
        mu_matchmaker_tick(&s->m, now(i));
        pump(i);
    }
}

static void run(uint32_t target)
{
    for (uint64_t steps = 0;; steps++) {
        size_t next = SIZE_MAX;
        uint32_t who = 0;
        uint64_t at;

        for (size_t i = 0; i < wire_count; i++) {
            if (next == SIZE_MAX || wire[i].at < wire[next].at ||
                (wire[i].at == wire[next].at && wire[i].order < wire[next].order)) {
                next = i;
            }
        }
        for (uint32_t i = 1; i < count; i++) {
            who = own_time(i) < own_time(who) ? i : who;
        }
        at = own_time(who);
        if (steps > STEPS_MAX) {
            fail("it goes on and on", who);
        }
        if (next == SIZE_MAX && at == UINT64_MAX) {
            return;
        }
        if (next != SIZE_MAX && wire[next].at <= at) {
            struct message w = wire[next];

            wire[next] = wire[--wire_count];
            clock_ns = w.at > clock_ns ? w.at : clock_ns;
            deliver(&w);
        } else {
            clock_ns = at > clock_ns ? at : clock_ns;
            happen(who, target);
        }
    }
}

static bool in_group(const struct searcher *s)
{
    return s->begun && s->ended && mu_matchmaker_status(&s->m) == 0;
}

static void check_pair(uint32_t i, uint32_t k)
{
    const struct mu_avg_reply *a = &peers[i].m.group;
    const struct mu_avg_reply *b = &peers[k].m.group;

    if (!mu_span_eq(a->group_id, b->group_id)) {
        return;
    }
    if (a->member_count != b->member_count || (peers[i].m.leading && peers[k].m.leading)) {
        fail("one group is two", i);
    }
    for (size_t n = 0; n < a->member_count; n++) {
        if (!mu_peer_id_eq(&a->members[n], &b->members[n])) {
            fail("one group has different members", i);
        }
    }
}

static void check(bool faults)
{
    uint32_t grouped = 0;
    uint32_t nodes = 0;

    for (uint32_t i = 0; i < count; i++) {
        struct searcher *s = &peers[i];
        struct mu_peer_id id = peer_id(i);

        nodes += !s->client;
        if (!s->gone && !s->ended) {
            fail("it did not end", i);
        }
        if (!in_group(s)) {
            continue;
        }
        grouped++;
        if (!mu_peer_id_eq(&s->m.group.members[s->m.position], &id)) {
            fail("it is not where it is said to be", i);
        }
        for (uint32_t k = 0; k < i; k++) {
            if (in_group(&peers[k])) {
                check_pair(i, k);
            }
        }
    }
    if (!faults && nodes > 0 && count > 1 && grouped != count) {
        fail("somebody was left over", grouped);
    }
}

static uint32_t begin(bool faults)
{
    wire_count = 0;
    call_count = 0;
    clock_ns = MU_NS_PER_S;
    memset(last_at, 0, sizeof(last_at));
    delay_ms = faults && mu_prng_below(&prng, 2) == 0 ? 1500 : 50;
    loss_ppm = faults && mu_prng_below(&prng, 3) == 0 ? 100000 : 0;
    count = 1 + (uint32_t)mu_prng_below(&prng, PEERS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        struct searcher *s = &peers[i];

        memset(s, 0, sizeof(*s));
        s->client = mu_prng_below(&prng, 5) == 0;
        s->begin_ns = clock_ns + mu_prng_below(&prng, (faults ? 10000 : 2000) * MU_NS_PER_MS);
        s->dies_ns = faults && mu_prng_below(&prng, 4) == 0
                         ? clock_ns + mu_prng_below(&prng, 15000 * MU_NS_PER_MS)
                         : UINT64_MAX;
        s->skew = faults && mu_prng_below(&prng, 3) == 0
                      ? (double)mu_prng_below(&prng, 8000) / 1000 - 4
                      : 0;
    }
    return faults && mu_prng_below(&prng, 2) == 0 ? 2 + (uint32_t)mu_prng_below(&prng, 3) : 0;
}

int main(int argc, char **argv)
{
    uint64_t seeds = argc > 2 ? strtoull(argv[2], NULL, 10) : 500;
    uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    uint64_t grouped = 0;
    uint64_t all = 0;

    for (seed = first; seed < first + seeds; seed++) {
        bool faults = seed % 4 != 0;

        mu_prng_seed(&prng, seed);
        run(begin(faults));
        check(faults);
        for (uint32_t i = 0; i < count; i++) {
            all++;
            grouped += in_group(&peers[i]);
            mu_matchmaker_fini(&peers[i].m);
        }
    }
    (void)printf("%llu of %llu peers found a group\n", (unsigned long long)grouped,
                 (unsigned long long)all);
    return 0;
}
