/* The heap of deadlines against a model that searches an array. */
#include "unit.h"

#include "core/heap.h"
#include "core/prng.h"

#define NODES 200

static struct mu_heap_node nodes[NODES];

/* The earliest node by time, then by the order of insertion, found the slow way. */
static struct mu_heap_node *model_min(void)
{
    struct mu_heap_node *min = NULL;

    for (size_t i = 0; i < NODES; i++) {
        if (!mu_heap_contains(&nodes[i])) {
            continue;
        }
        if (min == NULL || nodes[i].at.ns < min->at.ns ||
            (nodes[i].at.ns == min->at.ns && nodes[i].seq < min->seq)) {
            min = &nodes[i];
        }
    }
    return min;
}

static void test_heap_agrees_with_a_search_over_random_operations(void **state)
{
    struct mu_prng prng;
    struct mu_heap h;

    (void)state;
    mu_prng_seed(&prng, 3);
    mu_heap_init(&h);
    for (size_t i = 0; i < NODES; i++) {
        mu_heap_node_init(&nodes[i]);
    }
    for (int step = 0; step < 50000; step++) {
        struct mu_heap_node *n = &nodes[mu_prng_below(&prng, NODES)];
        mu_mono_t t = {mu_prng_below(&prng, 50)};
        struct mu_heap_node *min = model_min();
        uint64_t what = mu_prng_below(&prng, 10);

        assert_ptr_equal(mu_heap_min(&h), min);
        assert_true(mu_heap_deadline(&h).ns == (min == NULL ? UINT64_MAX : min->at.ns));
        if (what < 5) {
            mu_heap_remove(&h, n);
            assert_false(mu_heap_contains(n));
            mu_heap_insert(&h, n, t);
        } else if (what < 7) {
            mu_heap_remove(&h, n);
        } else {
            struct mu_heap_node *due = mu_heap_pop_due(&h, t);

            assert_ptr_equal(due, min != NULL && min->at.ns <= t.ns ? min : NULL);
        }
    }
}

static void test_heap_breaks_ties_by_the_order_of_insertion(void **state)
{
    struct mu_heap h;

    (void)state;
    mu_heap_init(&h);
    for (size_t i = 0; i < NODES; i++) {
        mu_heap_node_init(&nodes[i]);
    }
    /* Backwards through memory, so that the order of addresses is the wrong one. */
    for (size_t i = NODES; i-- > 0;) {
        mu_heap_insert(&h, &nodes[i], (mu_mono_t){i % 2});
    }
    for (uint64_t at = 0; at < 2; at++) {
        for (size_t i = NODES; i-- > 0;) {
            if (i % 2 == at) {
                assert_ptr_equal(mu_heap_pop_due(&h, (mu_mono_t){at}), &nodes[i]);
            }
        }
        assert_null(mu_heap_pop_due(&h, (mu_mono_t){at}));
    }
    assert_null(mu_heap_min(&h));
}

static void test_heap_never_comes_due(void **state)
{
    struct mu_heap_node n;
    struct mu_heap h;

    (void)state;
    mu_heap_init(&h);
    mu_heap_node_init(&n);
    mu_heap_insert(&h, &n, MU_MONO_NEVER);
    assert_null(mu_heap_pop_due(&h, MU_MONO_NEVER));
    mu_heap_remove(&h, &n);
    mu_heap_remove(&h, &n);
    assert_null(mu_heap_min(&h));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heap_agrees_with_a_search_over_random_operations),
        cmocka_unit_test(test_heap_breaks_ties_by_the_order_of_insertion),
        cmocka_unit_test(test_heap_never_comes_due),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
