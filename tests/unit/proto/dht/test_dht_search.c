/* The beam search: what it asks, in which order, and when it ends. */
#include "unit.h"

#include <muster/error.h>

#include "failheap.h"
#include "proto/dht/search.h"

static struct mu_dht_search search;
static const struct mu_dht_id target = {{0}};

/* Node `n` is at distance `n` from the target. */
static struct mu_dht_neighbour node(uint16_t n)
{
    struct mu_dht_neighbour who = {.peer = {.len = 34, .bytes = {0x12, 0x20}}};

    who.node.bytes[18] = (uint8_t)(n >> 8);
    who.node.bytes[19] = (uint8_t)n;
    who.peer.bytes[2] = (uint8_t)(n >> 8);
    who.peer.bytes[3] = (uint8_t)n;
    return who;
}

static uint16_t number_of(const struct mu_dht_neighbour *who)
{
    return (uint16_t)(who->node.bytes[18] << 8 | who->node.bytes[19]);
}

static void begin(uint32_t beam, uint32_t workers, const uint16_t *start, size_t count)
{
    struct mu_dht_neighbour nodes[32];

    mu_dht_search_init(&search,
                       &(struct mu_dht_search_config){
                           .self = node(9999), .beam = beam, .workers = workers, .calls_max = 40});
    for (size_t i = 0; i < count; i++) {
        nodes[i] = node(start[i]);
    }
    assert_int_equal(mu_dht_search_add(&search, &target, nodes, count), 0);
}

static void learn(const struct mu_dht_search_call *call, uint16_t n)
{
    struct mu_dht_neighbour who = node(n);

    assert_int_equal(mu_dht_search_learn(&search, call, 0, &who), 0);
}

static void test_search_asks_the_nearest_first_and_as_many_as_it_may(void **unused)
{
    static const uint16_t start[] = {50, 10, 40, 20, 30};
    struct mu_dht_search_call a;
    struct mu_dht_search_call b;
    struct mu_dht_search_call c;

    (void)unused;
    begin(3, 2, start, 5);
    assert_true(mu_dht_search_next_call(&search, &a));
    assert_true(mu_dht_search_next_call(&search, &b));
    assert_false(mu_dht_search_next_call(&search, &c));
    assert_int_equal(number_of(&a.who), 10);
    assert_int_equal(number_of(&b.who), 20);
    learn(&a, 5);
    learn(&a, 10);
    learn(&a, 9999); /* that is us */
    mu_dht_search_answered(&search, a.number, true);
    assert_true(mu_dht_search_next_call(&search, &c));
    assert_int_equal(number_of(&c.who), 5);
    assert_int_equal(c.hops, 2);
    mu_dht_search_fini(&search);
}

static void test_search_ends_when_the_beam_was_asked(void **unused)
{
    static const uint16_t start[] = {10, 20, 30, 40};
    struct mu_dht_search_call call;
    struct mu_dht_neighbour near[4];
    uint32_t query;
    int calls = 0;

    (void)unused;
    begin(2, 4, start, 4);
    while (mu_dht_search_next_call(&search, &call)) {
        calls++;
        assert_false(mu_dht_search_done(&search));
        mu_dht_search_answered(&search, call.number, true);
    }
    assert_int_equal(calls, 2);
    assert_true(mu_dht_search_next_end(&search, &query));
    assert_false(mu_dht_search_next_end(&search, &query));
    assert_true(mu_dht_search_done(&search));
    assert_int_equal(mu_dht_search_nearest(&search, 0, 4, near), 4);
    assert_int_equal(number_of(&near[0]), 10);
    assert_int_equal(mu_dht_search_hops(&search, 0), 1);
    assert_int_equal(mu_dht_search_calls(&search, 0), 2);
    mu_dht_search_fini(&search);
}

static void test_search_who_fails_is_out_of_the_beam(void **unused)
{
    static const uint16_t start[] = {10, 20, 30, 40};
    struct mu_dht_search_call call;
    struct mu_dht_neighbour near[4];
    int calls = 0;

    (void)unused;
    begin(2, 1, start, 4);
    while (mu_dht_search_next_call(&search, &call)) {
        calls++;
        mu_dht_search_answered(&search, call.number, number_of(&call.who) > 20);
    }
    assert_int_equal(calls, 4);
    assert_int_equal(mu_dht_search_nearest(&search, 0, 4, near), 2);
    assert_int_equal(number_of(&near[0]), 30);
    mu_dht_search_fini(&search);
}

static void test_search_costs_no_more_than_its_budget(void **unused)
{
    static const uint16_t start[] = {5000};
    struct mu_dht_search_call call;
    uint16_t next = 4999;
    uint32_t query;
    int calls = 0;

    (void)unused;
    begin(20, 1, start, 1);
    while (mu_dht_search_next_call(&search, &call)) {
        calls++;
        for (int i = 0; i < 20; i++) {
            learn(&call, next--); /* somebody who always knows of somebody nearer */
        }
        mu_dht_search_answered(&search, call.number, true);
    }
    assert_int_equal(calls, 40);
    assert_true(mu_dht_search_next_end(&search, &query));
    mu_dht_search_fini(&search);
}

static void test_search_stops_when_told_and_ignores_who_answers_late(void **unused)
{
    static const uint16_t start[] = {10, 20};
    struct mu_dht_search_call call;
    uint32_t query;

    (void)unused;
    begin(2, 4, start, 2);
    assert_true(mu_dht_search_next_call(&search, &call));
    mu_dht_search_stop(&search, 0);
    assert_true(mu_dht_search_next_end(&search, &query));
    learn(&call, 3);
    mu_dht_search_answered(&search, call.number, true);
    mu_dht_search_answered(&search, call.number, true);
    mu_dht_search_answered(&search, 777, true);
    assert_false(mu_dht_search_next_call(&search, &call));
    mu_dht_search_fini(&search);
}

static void test_search_asks_one_node_about_several_keys(void **unused)
{
    struct mu_dht_neighbour who = node(300);
    struct mu_dht_search_call call;

    (void)unused;
    mu_dht_search_init(&search, &(struct mu_dht_search_config){.self = node(9999), .batch = 3});
    for (uint8_t i = 0; i < 5; i++) {
        struct mu_dht_id id = {{0}};

        id.bytes[18] = 1;
        id.bytes[19] = (uint8_t)(1 << i);
        assert_int_equal(mu_dht_search_add(&search, &id, &who, 1), 0);
    }
    assert_true(mu_dht_search_next_call(&search, &call));
    assert_int_equal(call.count, 3);
    for (int i = 1; i < 3; i++) {
        assert_true(call.queries[i] != call.queries[0]);
    }
    mu_dht_search_answered(&search, call.number, true);
    mu_dht_search_fini(&search);
}

static void test_search_without_memory_ends_all_the_same(void **unused)
{
    static const uint16_t start[] = {10, 20, 30};
    uint32_t query;

    (void)unused;
    for (long nth = 0; nth < 8; nth++) {
        struct mu_dht_search_call call;
        int ends = 0;

        begin(3, 1, start, 3);
        failheap_arm(nth);
        for (int i = 0; i < 20; i++) {
            if (mu_dht_search_next_call(&search, &call)) {
                struct mu_dht_neighbour more = node((uint16_t)(100 + i));

                (void)mu_dht_search_learn(&search, &call, 0, &more);
                mu_dht_search_answered(&search, call.number, true);
            }
            ends += mu_dht_search_next_end(&search, &query);
        }
        failheap_disarm();
        assert_int_equal(ends, 1);
        mu_dht_search_fini(&search);
    }
}

/* Of more nodes than it remembers a query forgets the farthest. */
static void test_search_remembers_so_many_nodes(void **unused)
{
    static const uint16_t start[] = {1000, 2000, 3000};
    struct mu_dht_neighbour nodes[3];
    struct mu_dht_search_call call;

    (void)unused;
    for (size_t i = 0; i < 3; i++) {
        nodes[i] = node(start[i]);
    }
    mu_dht_search_init(&search, &(struct mu_dht_search_config){
                                    .self = node(9999), .beam = 20, .workers = 20, .nodes_max = 4});
    assert_int_equal(mu_dht_search_add(&search, &target, nodes, 3), 0);
    assert_true(mu_dht_search_next_call(&search, &call));
    assert_int_equal(number_of(&call.who), 1000);
    learn(&call, 1500); /* There is room, */
    learn(&call, 4000); /* none for one that is farther than all, */
    learn(&call, 1700); /* and a nearer one takes the place of 3000. */
    mu_dht_search_answered(&search, call.number, true);
    for (size_t i = 0; i < 3; i++) {
        static const uint16_t expected[] = {1500, 1700, 2000};

        assert_true(mu_dht_search_next_call(&search, &call));
        assert_int_equal(number_of(&call.who), expected[i]);
    }
    assert_false(mu_dht_search_next_call(&search, &call));
    mu_dht_search_fini(&search);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search_asks_the_nearest_first_and_as_many_as_it_may),
        cmocka_unit_test(test_search_ends_when_the_beam_was_asked),
        cmocka_unit_test(test_search_who_fails_is_out_of_the_beam),
        cmocka_unit_test(test_search_costs_no_more_than_its_budget),
        cmocka_unit_test(test_search_stops_when_told_and_ignores_who_answers_late),
        cmocka_unit_test(test_search_asks_one_node_about_several_keys),
        cmocka_unit_test(test_search_without_memory_ends_all_the_same),
        cmocka_unit_test(test_search_remembers_so_many_nodes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
