/* Whom a node knows: buckets that split, reserves, and the nearest, checked against all of them. */
#include "unit.h"

#include <stdlib.h>

#include <muster/error.h>

#include "core/prng.h"
#include "failheap.h"
#include "proto/dht/table.h"

static struct mu_dht_table table;
static struct mu_prng prng;

static struct mu_dht_id draw_id(void)
{
    struct mu_dht_id id;

    for (int i = 0; i < MU_DHT_ID_LEN; i++) {
        id.bytes[i] = (uint8_t)mu_prng_u64(&prng);
    }
    return id;
}

static struct mu_peer_id peer(uint32_t n)
{
    return (struct mu_peer_id){.len = 34, .bytes = {0x12, 0x20, (uint8_t)n, (uint8_t)(n >> 8), 1}};
}

static int set_up(void **unused)
{
    (void)unused;
    mu_prng_seed(&prng, 7);
    return mu_dht_table_init(&table, &(struct mu_dht_table_config){.self = draw_id()});
}

static int tear_down(void **unused)
{
    (void)unused;
    mu_dht_table_fini(&table);
    return 0;
}

static int heard(const struct mu_dht_id *node, uint32_t n)
{
    struct mu_dht_neighbour ping;
    struct mu_peer_id p = peer(n);

    return mu_dht_table_heard(&table, node, &p, &ping);
}

static void check_buckets(void)
{
    size_t count = 0;

    for (size_t i = 0; i < table.bucket_count; i++) {
        const struct mu_dht_bucket *b = table.buckets[i];

        assert_true(b->count <= 20 && b->spare_count <= 20);
        assert_true(i == 0 || memcmp(table.buckets[i - 1]->low.bytes, b->low.bytes, 20) < 0);
        MU_LIST_FOREACH (it, &b->nodes) {
            const struct mu_dht_contact *c = MU_CONTAINER_OF(it, struct mu_dht_contact, link);

            for (unsigned bit = 0; bit < b->depth; bit++) {
                assert_int_equal(mu_dht_id_bit(&c->who.node, bit), mu_dht_id_bit(&b->low, bit));
            }
            count++;
        }
    }
    assert_int_equal(count, table.count);
}

static struct mu_dht_id sort_target;

static int by_distance(const void *a, const void *b)
{
    return mu_dht_nearer(&sort_target, &((const struct mu_dht_neighbour *)a)->node,
                         &((const struct mu_dht_neighbour *)b)->node);
}

static void test_table_finds_the_nearest_of_all_it_knows(void **unused)
{
    static struct mu_dht_neighbour all[4096];
    struct mu_dht_neighbour near[20];

    (void)unused;
    for (uint32_t i = 0; i < 1500; i++) {
        struct mu_dht_id id = draw_id();

        assert_true(heard(&id, i) >= 0);
    }
    check_buckets();
    for (int round = 0; round < 50; round++) {
        struct mu_dht_id target = round == 0 ? table.config.self : draw_id();
        size_t count = 0;
        size_t got;

        for (size_t i = 0; i < table.bucket_count; i++) {
            MU_LIST_FOREACH (it, &table.buckets[i]->nodes) {
                all[count++] = MU_CONTAINER_OF(it, struct mu_dht_contact, link)->who;
            }
        }
        sort_target = target;
        qsort(all, count, sizeof(all[0]), by_distance);
        got = mu_dht_table_nearest(&table, &target, 20, &all[1].node, near);
        assert_int_equal(got, 20);
        assert_true(mu_dht_id_eq(&near[0].node, &all[0].node));
        for (size_t i = 1; i < got; i++) {
            assert_true(mu_dht_id_eq(&near[i].node, &all[i + 1].node));
        }
    }
}

static void test_table_keeps_who_has_long_been_there(void **unused)
{
    struct mu_dht_neighbour ping;
    struct mu_dht_id first = {{0}};
    int pings = 0;

    (void)unused;
    mu_dht_table_fini(&table);
    /* Our own id is in the other half, and at depth 5 a bucket is not split any more. */
    assert_int_equal(mu_dht_table_init(&table, &(struct mu_dht_table_config){.self = {{0x80}}}), 0);
    for (uint32_t i = 0; i < 60; i++) {
        struct mu_dht_id id = {{0x04, (uint8_t)i}};
        struct mu_peer_id p = peer(i);
        int err = mu_dht_table_heard(&table, &id, &p, &ping);

        if (i == 0) {
            first = id;
        }
        assert_true(err >= 0);
        if (err == 1) {
            struct mu_dht_id silent = {{0x04, (uint8_t)pings}};

            assert_true(mu_dht_id_eq(&ping.node, &silent));
            pings++;
        }
    }
    assert_int_equal(table.count, 20);
    assert_int_equal(pings, 20); /* each once, until it has answered */
    check_buckets();
    assert_true(mu_dht_table_knows(&table, &first));
    /* Who does not answer makes room for the newest of the reserve. */
    mu_dht_table_lost(&table, &first);
    assert_int_equal(table.count, 20);
    assert_false(mu_dht_table_knows(&table, &first));
    assert_int_equal(mu_dht_table_nearest(&table, &(struct mu_dht_id){{0x04, 59}}, 1, NULL, &ping),
                     1);
    assert_int_equal(ping.node.bytes[1], 59);
}

static void test_table_nobody_takes_the_place_of_another(void **unused)
{
    struct mu_dht_id a = draw_id();
    struct mu_dht_id b = draw_id();
    struct mu_peer_id one = peer(1);

    (void)unused;
    assert_int_equal(heard(&a, 1), 0);
    assert_int_equal(heard(&a, 2), MUSTER_EEXIST);
    assert_int_equal(heard(&table.config.self, 3), MUSTER_EINVAL);
    assert_true(mu_dht_id_eq(mu_dht_table_node_of(&table, &one), &a));
    /* A peer that has started anew has another id, and one place as before. */
    assert_int_equal(heard(&b, 1), 0);
    assert_int_equal(table.count, 1);
    assert_false(mu_dht_table_knows(&table, &a));
    assert_true(mu_dht_id_eq(mu_dht_table_node_of(&table, &one), &b));
}

static void test_table_has_an_end(void **unused)
{
    int err = 0;

    (void)unused;
    table.config.nodes_max = 100;
    for (uint32_t i = 0; i < 1000; i++) {
        struct mu_dht_id id = draw_id();

        err = heard(&id, i);
    }
    assert_int_equal(err, MUSTER_ELIMIT);
    assert_true(table.by_node.count <= 100);
    check_buckets();
}

static void test_table_without_memory_stays_whole(void **unused)
{
    (void)unused;
    for (long nth = 0; nth < 200; nth++) {
        struct mu_dht_id id = draw_id();

        failheap_arm(nth % 5);
        (void)heard(&id, (uint32_t)nth);
        (void)heard(&id, (uint32_t)nth);
        failheap_disarm();
        check_buckets();
        assert_int_equal(table.by_node.count, table.by_peer.count);
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_table_finds_the_nearest_of_all_it_knows),
        T(test_table_keeps_who_has_long_been_there),
        T(test_table_nobody_takes_the_place_of_another),
        T(test_table_has_an_end),
        T(test_table_without_memory_stays_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
