/*
 * Both machines of averaging under what others send them: the first byte chooses one, and then each
 * step is u8 what, u8 who, u8 how long, and a message or a number. Whatever comes, events end, time
 * goes on, and the machine ends by its deadline.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/reader.h"
#include "proto/average/matchmaker.h"
#include "proto/average/reduce.h"

#define EVENTS_MAX 100000 /* of one step: more than all members and parts */
#define HOUR_NS    (3600 * MU_NS_PER_S)

static uint64_t clock_ns;

static struct mu_now now(void)
{
    return (struct mu_now){{clock_ns}, {1000000 * MU_NS_PER_S + clock_ns}};
}

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

static struct mu_peer_id peer(uint8_t letter)
{
    uint8_t bytes[38] = {0, 0x24, 8, 1, 0x12, 0x20};
    struct mu_peer_id id;

    bytes[37] = letter;
    require(mu_peer_id_from_bytes(&id, mu_span(bytes, sizeof(bytes))) == 0);
    return id;
}

/* --- the matchmaker --------------------------------------------------------------------------- */

struct numbers {
    uint64_t fetch, call;
    bool ended;
};

static void pull(struct mu_matchmaker *m, struct numbers *n)
{
    struct mu_matchmaker_event e;
    size_t events = 0;

    while (mu_matchmaker_next_event(m, &e)) {
        /* After the end there is only a refusal of those who ask. */
        require(events++ < EVENTS_MAX && (!n->ended || e.type == MU_MATCHMAKER_REPLY));
        n->fetch = e.type == MU_MATCHMAKER_FETCH ? e.number : n->fetch;
        n->call = e.type == MU_MATCHMAKER_CALL ? e.number : n->call;
        n->ended = n->ended || e.type == MU_MATCHMAKER_END;
    }
}

static void match_step(struct mu_matchmaker *m, struct mu_reader *in, const struct numbers *n)
{
    uint8_t what = mu_read_u8(in);
    uint8_t who = mu_read_u8(in);
    struct mu_peer_id id = peer(who);
    struct mu_span message;

    clock_ns += mu_read_u8(in) * (uint64_t)50 * MU_NS_PER_MS;
    message = mu_read_bytes(in, mu_read_u16(in));
    if (in->failed) {
        return;
    }
    switch (what % 6) {
    case 0:
        mu_matchmaker_fetched(m, now(), n->fetch, 0, message);
        break;
    case 1:
        mu_matchmaker_replied(m, now(), n->call, message);
        break;
    case 2:
        mu_matchmaker_closed(m, now(), n->call);
        break;
    case 3:
        mu_matchmaker_asked(m, now(), 1 + (uint64_t)who, &id, message);
        break;
    case 4:
        mu_matchmaker_gone(m, now(), 1 + (uint64_t)who);
        break;
    default:
        mu_matchmaker_tick(m, now());
        break;
    }
}

static void fuzz_matchmaker(struct mu_reader *in)
{
    static const uint8_t gather[] = {0x93, 0xc0, 0, 0xc4, 1, 0xc0};
    static struct mu_matchmaker m;
    struct mu_matchmaker_config c = mu_matchmaker_config_defaults();
    struct numbers n = {0};

    c.self = peer('m');
    c.gather = mu_span(gather, sizeof(gather));
    (void)snprintf(c.key, sizeof(c.key), "demo.0b");
    memset(c.schema, 0x55, sizeof(c.schema));
    c.timeout_ms = 60000;
    c.target_size = mu_read_u8(in) % 4 == 3 ? 3 : 0;
    require(mu_matchmaker_init(&m, &c, now()) == 0);
    pull(&m, &n);
    while (!in->failed && in->rest.len != 0) {
        match_step(&m, in, &n);
        pull(&m, &n);
    }
    clock_ns += HOUR_NS;
    mu_matchmaker_tick(&m, now());
    pull(&m, &n);
    require(n.ended);
    mu_matchmaker_fini(&m);
}

/* --- the all-reduce --------------------------------------------------------------------------- */

static void pull_reduce(struct mu_reduce *r, bool *ended)
{
    struct mu_reduce_event e;
    size_t events = 0;

    while (mu_reduce_next_event(r, &e)) {
        require(events++ < EVENTS_MAX && !*ended);
        require(e.type != MU_REDUCE_DONE || e.weights - e.weights == 0);
        *ended = e.type == MU_REDUCE_END;
    }
}

static void reduce_step(struct mu_reduce *r, struct mu_reader *in)
{
    const struct mu_avg_division *d = r->config.division;
    uint8_t what = mu_read_u8(in);
    uint32_t who = mu_read_u8(in) % (uint32_t)d->member_count;
    struct mu_avg_data data = {0};
    struct mu_span message;
    enum mu_avg_code code;
    uint32_t part;
    bool good;

    clock_ns += mu_read_u8(in) * (uint64_t)200 * MU_NS_PER_MS;
    message = mu_read_bytes(in, mu_read_u16(in));
    if (in->failed) {
        return;
    }
    good = mu_avg_data_decode(message, &data) == 0;
    switch (what % 7) {
    case 0:
        mu_reduce_sent(r, now(), who);
        break;
    case 1:
        require(mu_reduce_result(r, now(), who, &data, good, &part) != 1 ||
                d->parts[part].owner == who);
        break;
    case 2:
        mu_reduce_cut_off(r, now(), who, "it is gone");
        break;
    case 3:
        (void)mu_reduce_opened(r, now(), who, &data, &code);
        break;
    case 4:
        require(mu_reduce_part(r, now(), who, &data, good, &part) != 1 ||
                (good && d->parts[part].owner == r->config.position));
        break;
    case 5:
        mu_reduce_ended(r, now(), who);
        break;
    default:
        mu_reduce_tick(r, now());
        break;
    }
}

static void fuzz_reduce(struct mu_reader *in)
{
    static struct mu_avg_division division;
    static struct mu_reduce r;
    struct mu_avg_tensor tensor = {.dtype = MU_DTYPE_F32, .told = MU_DTYPE_F32};
    struct mu_avg_gather members[8] = {0};
    uint64_t fractions[8];
    size_t count = 1 + mu_read_u8(in) % 8u;
    uint8_t clients = mu_read_u8(in);
    struct mu_reduce_config c = mu_reduce_config_defaults();
    bool ended = false;

    tensor.elements = mu_read_u8(in);
    for (size_t i = 1; i < count; i++) {
        members[i].mode = (clients >> i & 1) != 0 ? MU_AVG_CLIENT : MU_AVG_NODE;
    }
    require(mu_avg_fractions(tensor.elements, members, count, fractions) == 0);
    require(mu_avg_divide_vector(&division, &tensor, 1, fractions, count, 16) == 0);
    c.division = &division;
    c.group_id = MU_SPAN_LIT("abcdefghijklmnopqrst");
    c.position = (uint32_t)(mu_read_u8(in) % count);
    c.window = 1 + mu_read_u8(in) % 4u;
    require(mu_reduce_init(&r, &c, now()) == 0);
    pull_reduce(&r, &ended);
    while (!in->failed && in->rest.len != 0) {
        reduce_step(&r, in);
        pull_reduce(&r, &ended);
    }
    clock_ns += HOUR_NS;
    mu_reduce_tick(&r, now());
    pull_reduce(&r, &ended);
    require(ended);
    mu_avg_division_fini(&division);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_reader in = mu_reader(mu_span(data, size));

    clock_ns = MU_NS_PER_S;
    if (mu_read_u8(&in) % 2 == 0) {
        fuzz_matchmaker(&in);
    } else {
        fuzz_reduce(&in);
    }
    return 0;
}
