/* The matchmaker's limits and errors; what it does is told in tests/trace/match-*.txt. */
#include "unit.h"

#include <stdio.h>

#include "codec/bin/msgpack.h"
#include "codec/dht/dict.h"
#include "failheap.h"
#include "proto/average/matchmaker.h"

static const uint8_t gather[] = {0x93, 0xc0, 0, 0xc4, 1, 0xc0};
static const struct mu_now start = {{1000000000}, {UINT64_C(1000000) * MU_NS_PER_S}};

static struct mu_peer_id peer(uint16_t number)
{
    uint8_t bytes[38] = {0, 0x24, 8, 1, 0x12, 0x20};
    struct mu_peer_id id;

    mu_put_u16(bytes + 30, number);
    assert_int_equal(mu_peer_id_from_bytes(&id, mu_span(bytes, sizeof(bytes))), 0);
    return id;
}

static struct mu_matchmaker_config config(void)
{
    struct mu_matchmaker_config c = mu_matchmaker_config_defaults();

    c.self = peer(500);
    c.gather = mu_span(gather, sizeof(gather));
    (void)snprintf(c.key, sizeof(c.key), "demo.0b");
    return c;
}

static struct mu_now after_ms(uint64_t ms)
{
    return (struct mu_now){mu_mono_add_ms(start.mono, ms), {start.wall.ns + ms * MU_NS_PER_MS}};
}

static void test_config(void **state)
{
    static struct mu_matchmaker m;
    struct mu_matchmaker_config c = config();

    (void)state;
    c.key[0] = '\0';
    assert_int_equal(mu_matchmaker_init(&m, &c, start), MUSTER_EINVAL);
    c = config();
    c.gather.len--;
    assert_int_equal(mu_matchmaker_init(&m, &c, start), MUSTER_EINVAL);
    c = config();
    c.client = true; /* and does not say so */
    assert_int_equal(mu_matchmaker_init(&m, &c, start), MUSTER_EINVAL);
    c = config();
    c.request_ms = c.matchmaking_ms;
    assert_int_equal(mu_matchmaker_init(&m, &c, start), MUSTER_EINVAL);
    c = config();
    c.followers_max = MU_AVG_MEMBERS_MAX;
    assert_int_equal(mu_matchmaker_init(&m, &c, start), MUSTER_EINVAL);
    c = config();
    c.size_min = 4;
    c.target_size = 3;
    assert_int_equal(mu_matchmaker_init(&m, &c, start), MUSTER_EINVAL);
}

/* A bucket of `count` peers that all precede us. */
static struct mu_span fill(struct mu_buf *out, uint16_t count)
{
    struct mu_buf entries;

    mu_buf_init(out, 1 << 20);
    mu_buf_init(&entries, 1 << 20);
    for (uint16_t i = 0; i < count; i++) {
        struct mu_peer_id id = peer(i);
        struct mu_buf key;
        struct mu_mp_out mp;
        struct mu_dht_entry entry = {.value = MU_SPAN_LIT("\xc3"), .expiration = 1000004};

        mu_buf_init(&key, 64);
        mp = mu_mp_out(&key);
        mu_mp_put_bin(&mp, mu_peer_id_span(&id));
        entry.subkey = mu_buf_span(&key);
        assert_int_equal(mu_dht_dict_put(&entries, &entry), 0);
        mu_buf_fini(&key);
    }
    assert_int_equal(mu_dht_dict_begin(out, 1000004, count, entries.len), 0);
    assert_int_equal(mu_buf_append(out, mu_buf_span(&entries)), 0);
    mu_buf_fini(&entries);
    return mu_buf_span(out);
}

/* Of a bucket with more than candidates_max, the earliest are asked, each once, however often it is
 * read; and it is read at most every MU_MATCHMAKER_FETCH_MS_MIN. */
static void test_bounds(void **state)
{
    static struct mu_matchmaker m;
    struct mu_matchmaker_config c = config();
    struct mu_matchmaker_event e;
    struct mu_buf buf;
    struct mu_span bucket = fill(&buf, 50);
    unsigned calls = 0;
    unsigned fetches = 0;

    (void)state;
    c.candidates_max = 20;
    c.fetch_ms = 1;
    assert_int_equal(mu_matchmaker_init(&m, &c, start), 0);
    for (uint64_t ms = 0; ms < 3000; ms++) {
        mu_matchmaker_tick(&m, after_ms(ms));
        while (mu_matchmaker_next_event(&m, &e)) {
            if (e.type == MU_MATCHMAKER_CALL) {
                assert_memory_equal(e.peer.bytes + 30, &(uint16_t){(uint16_t)calls}, 2);
                calls++;
                mu_matchmaker_closed(&m, after_ms(ms), e.number);
            } else if (e.type == MU_MATCHMAKER_FETCH) {
                fetches++;
                mu_matchmaker_fetched(&m, after_ms(ms), e.number, 0, bucket);
            }
        }
    }
    assert_int_equal(calls, 20);
    assert_in_range(fetches, 2, 3000 / MU_MATCHMAKER_FETCH_MS_MIN);
    mu_matchmaker_fini(&m);
    mu_buf_fini(&buf);
}

/* Whatever allocation fails, the search ends in order, and what was taken is given back. */
static void test_no_memory(void **state)
{
    struct mu_buf buf;
    struct mu_span bucket = fill(&buf, 3);
    static const uint8_t zero[MU_AVG_SCHEMA_LEN];
    struct mu_avg_join join = {.schema_hash = mu_span(zero, sizeof(zero)),
                               .expiration = 1000009,
                               .gather = mu_span(gather, sizeof(gather)),
                               .group_key = MU_SPAN_LIT("demo.0b")};
    struct mu_peer_id id = peer(600);
    struct mu_buf request;

    (void)state;
    mu_buf_init(&request, 4096);
    assert_int_equal(mu_avg_join_encode(&join, &request), 0);
    for (long nth = 0;; nth++) {
        static struct mu_matchmaker m;
        struct mu_matchmaker_config c = config();
        struct mu_matchmaker_event e;
        bool fired;
        int err;

        failheap_arm(nth);
        err = mu_matchmaker_init(&m, &c, start);
        if (err == 0) {
            mu_matchmaker_asked(&m, start, 1, &id, mu_buf_span(&request));
            while (mu_matchmaker_next_event(&m, &e)) {
                mu_matchmaker_fetched(&m, start, e.number, 0, bucket);
            }
            mu_matchmaker_tick(&m, after_ms(5000));
            while (mu_matchmaker_next_event(&m, &e)) {
            }
        }
        fired = failheap_fired();
        failheap_disarm();
        assert_true(err == 0 || (fired && err == MUSTER_ENOMEM));
        mu_matchmaker_fini(&m);
        if (!fired) {
            assert_int_equal(err, 0);
            break;
        }
    }
    mu_buf_fini(&request);
    mu_buf_fini(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
