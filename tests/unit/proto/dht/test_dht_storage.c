/* Records that expire: which of two is kept, what is never given out, and what is refused. */
#include "unit.h"

#include <muster/error.h>

#include "codec/bin/msgpack.h"
#include "core/alloc.h"
#include "failheap.h"
#include "proto/dht/storage.h"

#define NOW 1000.0

static struct mu_dht_storage storage;
static struct mu_dht_id key = {{1}};
static struct mu_dht_id other = {{2}};

static int set_up(void **unused)
{
    (void)unused;
    mu_dht_storage_init(&storage, &(struct mu_dht_storage_config){.horizon_s = 1000,
                                                                  .subkeys_max = 20,
                                                                  .peer_subkeys_max = 8,
                                                                  .value_len_max = 100,
                                                                  .bytes_max = 100000,
                                                                  .records_max = 10});
    return 0;
}

static int tear_down(void **unused)
{
    (void)unused;
    mu_dht_storage_fini(&storage);
    return 0;
}

static struct mu_peer_id peer(uint8_t n)
{
    return (struct mu_peer_id){.len = 34, .bytes = {0x12, 0x20, n}};
}

static int put(double now, const char *value, double expiration)
{
    return mu_dht_storage_put(&storage, now, NULL, &key, mu_span_str(value), expiration);
}

static int put_sub(double now, uint8_t subkey, const char *value, double expiration)
{
    return mu_dht_storage_put_subkey(&storage, now, NULL, &key, mu_span(&subkey, 1),
                                     mu_span_str(value), expiration);
}

static void assert_value(double now, const char *value, double expiration)
{
    const struct mu_dht_record *r = mu_dht_storage_get(&storage, now, &key);

    assert_non_null(r);
    assert_int_equal(r->type, MU_DHT_FOUND_REGULAR);
    assert_span_text(r->value, value);
    assert_true(r->expiration == expiration);
}

static size_t count_entries(double now)
{
    const struct mu_dht_record *r = mu_dht_storage_get(&storage, now, &key);
    struct mu_dht_entry e;
    const void *walk = NULL;
    size_t n = 0;

    while (r != NULL && mu_dht_record_next(r, &walk, &e)) {
        assert_true(e.expiration > now);
        n++;
    }
    return n;
}

static void test_storage_keeps_what_expires_later(void **unused)
{
    (void)unused;
    assert_int_equal(put(NOW, "a", NOW + 10), 0);
    assert_int_equal(put(NOW, "b", NOW + 10), MUSTER_EDHT_OLD);
    assert_int_equal(put(NOW, "c", NOW + 9), MUSTER_EDHT_OLD);
    assert_value(NOW, "a", NOW + 10);
    assert_int_equal(put(NOW, "d", NOW + 11), 0);
    assert_value(NOW, "d", NOW + 11);
}

static void test_storage_a_refused_record_does_not_shorten_the_one_that_is_kept(void **unused)
{
    (void)unused;
    assert_int_equal(put(NOW, "long", NOW + 100), 0);
    assert_int_equal(put(NOW, "short", NOW + 1), MUSTER_EDHT_OLD);
    assert_value(NOW + 50, "long", NOW + 100);
}

static void test_storage_never_gives_out_what_has_expired(void **unused)
{
    (void)unused;
    assert_int_equal(put(NOW, "a", NOW), MUSTER_EDHT_EXPIRED);
    assert_int_equal(put(NOW, "a", NOW - 1), MUSTER_EDHT_EXPIRED);
    assert_int_equal(put(NOW, "a", __builtin_nan("")), MUSTER_EDHT_EXPIRED);
    assert_int_equal(put(NOW, "a", NOW + 5), 0);
    assert_true(mu_dht_storage_next_expiration(&storage) == NOW + 5);
    assert_value(NOW + 4.999, "a", NOW + 5);
    assert_null(mu_dht_storage_get(&storage, NOW + 5, &key));
    assert_int_equal(storage.bytes, 0);
    assert_int_equal(put(NOW + 6, "b", NOW + 7), 0);
}

static void test_storage_refuses_what_lasts_beyond_the_horizon(void **unused)
{
    (void)unused;
    assert_int_equal(put(NOW, "a", NOW + 1001), MUSTER_EDHT_FUTURE);
    assert_int_equal(put(NOW, "a", __builtin_inf()), MUSTER_EDHT_FUTURE);
    assert_int_equal(put_sub(NOW, 1, "a", 1e300), MUSTER_EDHT_FUTURE);
    assert_int_equal(put(NOW, "a", NOW + 1000), 0);
    assert_int_equal(storage.refused, 3);
}

static void test_storage_subkeys_expire_one_by_one(void **unused)
{
    (void)unused;
    assert_int_equal(put_sub(NOW, 1, "a", NOW + 10), 0);
    assert_int_equal(put_sub(NOW, 2, "b", NOW + 20), 0);
    assert_int_equal(put_sub(NOW, 3, "c", NOW + 5), 0);
    assert_int_equal(put_sub(NOW, 1, "d", NOW + 9), MUSTER_EDHT_OLD);
    assert_int_equal(put_sub(NOW, 1, "e", NOW + 11), 0);
    assert_int_equal(count_entries(NOW), 3);
    assert_int_equal(count_entries(NOW + 5), 2);
    assert_int_equal(count_entries(NOW + 11), 1);
    assert_true(mu_dht_storage_get(&storage, NOW + 11, &key)->expiration == NOW + 20);
    assert_int_equal(count_entries(NOW + 20), 0);
    assert_int_equal(storage.bytes, 0);
}

static void test_storage_a_dictionary_and_a_value_follow_the_same_rule(void **unused)
{
    (void)unused;
    assert_int_equal(put(NOW, "a", NOW + 10), 0);
    assert_int_equal(put_sub(NOW, 1, "b", NOW + 10), MUSTER_EDHT_OLD);
    assert_int_equal(put_sub(NOW, 1, "b", NOW + 11), 0);
    assert_int_equal(count_entries(NOW), 1);
    assert_int_equal(put(NOW, "c", NOW + 11), MUSTER_EDHT_OLD);
    assert_int_equal(put(NOW, "c", NOW + 12), 0);
    assert_value(NOW, "c", NOW + 12);
}

static void test_storage_encodes_a_dictionary_that_can_be_read(void **unused)
{
    struct mu_dht_dict dict;
    struct mu_dht_entry e;
    struct mu_buf out;
    const struct mu_dht_record *r;

    (void)unused;
    for (uint8_t i = 0; i < 18; i++) {
        assert_int_equal(put_sub(NOW, i, "value", NOW + 10 + i), 0);
    }
    r = mu_dht_storage_get(&storage, NOW, &key);
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_dht_record_encode(r, &out), 0);
    assert_int_equal(out.len, mu_dht_record_len(r));
    assert_int_equal(mu_dht_dict_decode(mu_buf_span(&out), &dict), 0);
    assert_true(dict.latest == NOW + 27);
    for (uint8_t i = 0; i < 18; i++) {
        assert_true(mu_dht_dict_next(&dict, &e));
        assert_int_equal(e.subkey.data[0], i);
        assert_span_text(e.value, "value");
    }
    mu_buf_fini(&out);
}

static void test_storage_one_peer_cannot_fill_a_dictionary(void **unused)
{
    struct mu_peer_id a = peer(1);
    struct mu_peer_id b = peer(2);
    size_t stored = 0;
    int err = 0;

    (void)unused;
    for (uint32_t i = 0; i < 10000; i++) {
        uint8_t subkey[5] = {0xce, (uint8_t)(i >> 24), (uint8_t)(i >> 16), (uint8_t)(i >> 8),
                             (uint8_t)i};

        err = mu_dht_storage_put_subkey(&storage, NOW, &a, &key, mu_span(subkey, 5),
                                        MU_SPAN_LIT("x"), NOW + 100);
        stored += err == 0;
    }
    assert_int_equal(err, MUSTER_EDHT_SUBKEYS);
    assert_int_equal(stored, 8);
    /* What it has it may renew, and there is room for others. */
    assert_int_equal(mu_dht_storage_put_subkey(&storage, NOW, &a, &key, MU_SPAN_LIT("\xce\0\0\0\0"),
                                               MU_SPAN_LIT("y"), NOW + 101),
                     0);
    assert_int_equal(mu_dht_storage_put_subkey(&storage, NOW, &b, &key, MU_SPAN_LIT("\x7f"),
                                               MU_SPAN_LIT("x"), NOW + 100),
                     0);
    assert_int_equal(count_entries(NOW), 9);
    assert_true(storage.bytes < 10000);
}

static void test_storage_a_dictionary_has_an_end_for_all_together(void **unused)
{
    (void)unused;
    for (uint8_t i = 0; i < 20; i++) {
        assert_int_equal(put_sub(NOW, i, "x", NOW + 10), 0);
    }
    assert_int_equal(put_sub(NOW, 20, "x", NOW + 10), MUSTER_EDHT_SUBKEYS);
    assert_int_equal(put_sub(NOW, 19, "y", NOW + 11), 0);
    assert_int_equal(count_entries(NOW + 10), 1);
    assert_int_equal(put_sub(NOW + 10, 20, "x", NOW + 20), 0);
}

static void test_storage_one_peer_has_its_share_of_the_memory_and_no_more(void **unused)
{
    struct mu_peer_id a = peer(1);
    struct mu_peer_id b = peer(2);
    char value[100];
    int err = 0;

    (void)unused;
    memset(value, 'x', sizeof(value));
    storage.config.records_max = 100000;
    for (uint32_t i = 0; i < 10000 && err == 0; i++) {
        struct mu_dht_id id = {{(uint8_t)(i >> 8), (uint8_t)i, 9}};

        err = mu_dht_storage_put(&storage, NOW, &a, &id, mu_span(value, 100), NOW + 100);
    }
    assert_int_equal(err, MUSTER_EDHT_QUOTA);
    assert_true(storage.bytes < storage.config.bytes_max);
    assert_int_equal(mu_dht_storage_put(&storage, NOW, &b, &key, mu_span(value, 100), NOW + 100),
                     0);
    mu_dht_storage_expire(&storage, NOW + 100);
    assert_int_equal(storage.bytes, 0);
    assert_int_equal(storage.owners.count, 0);
}

/* Small records of one peer are not all that a node has room for. */
static void test_storage_one_peer_has_its_share_of_the_records_and_no_more(void **unused)
{
    struct mu_peer_id a = peer(1);
    struct mu_peer_id b = peer(2);
    uint32_t taken = 0;

    (void)unused;
    storage.config.records_max = 80;
    storage.config.peer_records_max = 10;
    for (uint8_t i = 0; i < 80; i++) {
        struct mu_dht_id id = {{i, 9}};

        taken += mu_dht_storage_put(&storage, NOW, &a, &id, MU_SPAN_LIT("x"), NOW + 100) == 0;
    }
    assert_int_equal(taken, 10);
    /* It may renew what it has, and others have their own share. */
    assert_int_equal(mu_dht_storage_put(&storage, NOW, &a, &(struct mu_dht_id){{3, 9}},
                                        MU_SPAN_LIT("y"), NOW + 200),
                     0);
    assert_int_equal(mu_dht_storage_put(&storage, NOW, &a, &(struct mu_dht_id){{3, 8}},
                                        MU_SPAN_LIT("y"), NOW + 200),
                     MUSTER_EDHT_QUOTA);
    assert_int_equal(mu_dht_storage_put(&storage, NOW, &b, &key, MU_SPAN_LIT("x"), NOW + 100), 0);
    /* When its records have expired, there is room for others. */
    assert_int_equal(mu_dht_storage_put(&storage, NOW + 150, &a, &(struct mu_dht_id){{3, 8}},
                                        MU_SPAN_LIT("y"), NOW + 200),
                     0);
}

static void test_storage_one_peer_has_an_eighth_of_the_records(void **unused)
{
    struct mu_dht_storage s;

    (void)unused;
    mu_dht_storage_init(&s, &(struct mu_dht_storage_config){0});
    assert_int_equal(s.config.peer_records_max, 8192);
    mu_dht_storage_fini(&s);
}

static void test_storage_what_one_peer_may_bring_is_counted_to_the_byte(void **unused)
{
    struct mu_peer_id a = peer(1);
    struct mu_peer_id b = peer(2);
    size_t one;

    (void)unused;
    assert_int_equal(mu_dht_storage_put(&storage, NOW, &a, &key, MU_SPAN_LIT("four"), NOW + 10), 0);
    one = storage.bytes;
    storage.config.peer_bytes_max = 2 * one;
    assert_int_equal(mu_dht_storage_put(&storage, NOW, &a, &other, MU_SPAN_LIT("four"), NOW + 10),
                     0);
    mu_dht_storage_expire(&storage, NOW + 10);
    storage.config.peer_bytes_max = 2 * one - 1;
    assert_int_equal(mu_dht_storage_put(&storage, NOW, &a, &key, MU_SPAN_LIT("four"), NOW + 10), 0);
    assert_int_equal(mu_dht_storage_put(&storage, NOW, &a, &other, MU_SPAN_LIT("four"), NOW + 10),
                     MUSTER_EDHT_QUOTA);
    assert_int_equal(storage.bytes, one);
    assert_int_equal(mu_dht_storage_put(&storage, NOW, &b, &other, MU_SPAN_LIT("four"), NOW + 10),
                     0);
    assert_int_equal(mu_dht_storage_put(&storage, NOW, NULL, &(struct mu_dht_id){{3}},
                                        MU_SPAN_LIT("four"), NOW + 10),
                     0);
}

static void test_storage_a_dictionary_is_as_long_as_an_answer_can_carry(void **unused)
{
    size_t two;

    (void)unused;
    assert_int_equal(put_sub(NOW, 1, "four", NOW + 10), 0);
    assert_int_equal(put_sub(NOW, 2, "four", NOW + 10), 0);
    two = mu_dht_record_len(mu_dht_storage_get(&storage, NOW, &key));
    storage.config.dict_len_max = two;
    assert_int_equal(put_sub(NOW, 3, "", NOW + 10), MUSTER_EDHT_SUBKEYS);
    assert_int_equal(put_sub(NOW, 2, "five5", NOW + 11), MUSTER_EDHT_SUBKEYS);
    assert_int_equal(put_sub(NOW, 2, "FOUR", NOW + 11), 0);
    assert_int_equal(count_entries(NOW), 2);
    assert_int_equal(mu_dht_record_len(mu_dht_storage_get(&storage, NOW, &key)), two);
    assert_int_equal(put_sub(NOW + 10, 3, "four", NOW + 20), 0); /* The first has expired. */
}

static void test_storage_a_full_one_refuses_and_a_full_cache_makes_room(void **unused)
{
    struct mu_dht_storage cache;

    (void)unused;
    mu_dht_storage_init(&cache, &(struct mu_dht_storage_config){.cache = true, .records_max = 10});
    for (uint8_t i = 0; i < 10; i++) {
        struct mu_dht_id id = {{i}};

        assert_int_equal(
            mu_dht_storage_put(&storage, NOW, NULL, &id, MU_SPAN_LIT("x"), NOW + 10 + i), 0);
        assert_int_equal(mu_dht_storage_put(&cache, NOW, NULL, &id, MU_SPAN_LIT("x"), NOW + 10 + i),
                         0);
    }
    other.bytes[0] = 77;
    assert_int_equal(mu_dht_storage_put(&storage, NOW, NULL, &other, MU_SPAN_LIT("x"), NOW + 50),
                     MUSTER_EFULL);
    assert_int_equal(mu_dht_storage_put(&cache, NOW, NULL, &other, MU_SPAN_LIT("x"), NOW + 50), 0);
    assert_int_equal(cache.by_key.count, 10);
    assert_null(mu_dht_storage_get(&cache, NOW, &(struct mu_dht_id){{0}}));
    assert_non_null(mu_dht_storage_get(&cache, NOW, &(struct mu_dht_id){{1}}));
    mu_dht_storage_fini(&cache);
}

static void test_storage_what_is_too_long_or_no_subkey_is_refused(void **unused)
{
    char value[101] = {0};

    (void)unused;
    assert_int_equal(mu_dht_storage_put(&storage, NOW, NULL, &key, mu_span(value, 101), NOW + 1),
                     MUSTER_EDHT_VALUE);
    assert_int_equal(mu_dht_storage_put_subkey(&storage, NOW, NULL, &key, MU_SPAN_LIT("\xa5q"),
                                               MU_SPAN_LIT("x"), NOW + 1),
                     MUSTER_EDHT_VALUE);
    assert_int_equal(mu_dht_storage_put_subkey(&storage, NOW, NULL, &key, MU_SPAN_LIT(""),
                                               MU_SPAN_LIT("x"), NOW + 1),
                     MUSTER_EDHT_VALUE);
    assert_int_equal(storage.by_key.count, 0);
}

static void test_storage_subkeys_may_be_so_long_and_no_longer(void **unused)
{
    uint8_t subkey[2 + 31] = {0xd9, 31}; /* a text of 31 bytes */

    (void)unused;
    memset(subkey + 2, 's', 31);
    storage.config.subkey_len_max = sizeof(subkey) - 1;
    assert_int_equal(mu_dht_storage_put_subkey(&storage, NOW, NULL, &key,
                                               mu_span(subkey, sizeof(subkey)), MU_SPAN_LIT("x"),
                                               NOW + 1),
                     MUSTER_EDHT_VALUE);
    assert_int_equal(storage.by_key.count, 0);
    subkey[1] = 30;
    assert_int_equal(mu_dht_storage_put_subkey(&storage, NOW, NULL, &key,
                                               mu_span(subkey, sizeof(subkey) - 1),
                                               MU_SPAN_LIT("x"), NOW + 1),
                     0);
}

static void test_storage_without_memory_nothing_changes(void **unused)
{
    struct mu_peer_id from = peer(3);

    (void)unused;
    for (long nth = 0;; nth++) {
        bool fired;
        int a;
        int b;
        int c;

        failheap_arm(nth);
        a = mu_dht_storage_put(&storage, NOW, &from, &other, MU_SPAN_LIT("x"), NOW + 1);
        b = mu_dht_storage_put_subkey(&storage, NOW, &from, &key, MU_SPAN_LIT("\x01"),
                                      MU_SPAN_LIT("x"), NOW + 1);
        c = mu_dht_storage_put_subkey(&storage, NOW, &from, &key, MU_SPAN_LIT("\x02"),
                                      MU_SPAN_LIT("x"), NOW + 2);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(mu_dht_storage_get(&storage, NOW, &other) != NULL, a == 0);
        assert_int_equal(count_entries(NOW), (b == 0) + (c == 0));
        mu_dht_storage_expire(&storage, NOW + 10);
        assert_int_equal(storage.bytes, 0);
        assert_int_equal(storage.owners.count, 0);
        if (!fired) {
            assert_true(a == 0 && b == 0 && c == 0);
            break;
        }
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_storage_keeps_what_expires_later),
        T(test_storage_a_refused_record_does_not_shorten_the_one_that_is_kept),
        T(test_storage_never_gives_out_what_has_expired),
        T(test_storage_refuses_what_lasts_beyond_the_horizon),
        T(test_storage_subkeys_expire_one_by_one),
        T(test_storage_a_dictionary_and_a_value_follow_the_same_rule),
        T(test_storage_encodes_a_dictionary_that_can_be_read),
        T(test_storage_one_peer_cannot_fill_a_dictionary),
        T(test_storage_a_dictionary_has_an_end_for_all_together),
        T(test_storage_one_peer_has_its_share_of_the_memory_and_no_more),
        T(test_storage_one_peer_has_its_share_of_the_records_and_no_more),
        T(test_storage_one_peer_has_an_eighth_of_the_records),
        T(test_storage_what_one_peer_may_bring_is_counted_to_the_byte),
        T(test_storage_a_dictionary_is_as_long_as_an_answer_can_carry),
        T(test_storage_a_full_one_refuses_and_a_full_cache_makes_room),
        T(test_storage_what_is_too_long_or_no_subkey_is_refused),
        T(test_storage_subkeys_may_be_so_long_and_no_longer),
        T(test_storage_without_memory_nothing_changes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
