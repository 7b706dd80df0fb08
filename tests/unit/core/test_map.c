/* The hash map: growth in small steps, removal meanwhile, iteration, and a table that cannot grow.
 */
#include "unit.h"

#include "core/err.h"
#include "core/list.h"
#include "core/map.h"
#include "core/prng.h"
#include "failheap.h"

#define ITEMS 3000

struct item {
    struct mu_map_node node;
    uint32_t key;
    bool in;
    unsigned seen;
};

static struct item items[ITEMS];

static struct mu_span key_of(const struct item *it)
{
    return mu_span(&it->key, sizeof(it->key));
}

static struct item *item_of(struct mu_map_node *n)
{
    return MU_CONTAINER_OF(n, struct item, node);
}

static void reset_items(void)
{
    for (uint32_t i = 0; i < ITEMS; i++) {
        items[i] = (struct item){.key = i};
    }
}

static void insert(struct mu_map *m, struct item *it)
{
    assert_int_equal(mu_map_insert(m, &it->node, key_of(it)), 0);
    it->in = true;
}

static void check_all(const struct mu_map *m)
{
    size_t in = 0;

    for (size_t i = 0; i < ITEMS; i++) {
        struct mu_map_node *found = mu_map_find(m, key_of(&items[i]));

        assert_ptr_equal(found, items[i].in ? &items[i].node : NULL);
        items[i].seen = 0;
        in += items[i].in ? 1 : 0;
    }
    assert_int_equal(m->count, in);
    for (struct mu_map_node *n = mu_map_next(m, NULL); n != NULL; n = mu_map_next(m, n)) {
        item_of(n)->seen++;
    }
    for (size_t i = 0; i < ITEMS; i++) {
        assert_int_equal(items[i].seen, items[i].in ? 1 : 0);
    }
}

static void test_map_finds_everything_at_every_step_of_its_growth(void **state)
{
    struct mu_map m;
    bool was_moving = false;

    (void)state;
    reset_items();
    mu_map_init(&m, 42);
    for (size_t i = 0; i < ITEMS; i++) {
        insert(&m, &items[i]);
        was_moving = was_moving || m.old != NULL;
        if (i < 200 || i % 97 == 0) {
            check_all(&m);
        }
    }
    assert_true(was_moving);
    assert_true(m.bucket_count >= ITEMS / 2);
    mu_map_fini(&m);
}

/* No single insertion moves more than a few buckets. */
static void test_map_grows_in_small_steps(void **state)
{
    struct mu_map m;

    (void)state;
    reset_items();
    mu_map_init(&m, 7);
    for (size_t i = 0; i < ITEMS; i++) {
        size_t moved = m.old != NULL ? m.moved : 0;
        size_t old_count = m.old_count;

        insert(&m, &items[i]);
        if (m.old != NULL && m.old_count == old_count) {
            assert_true(m.moved - moved <= 8);
        }
    }
    mu_map_fini(&m);
}

static void test_map_agrees_with_a_model_over_random_insertions_and_removals(void **state)
{
    struct mu_prng prng;
    struct mu_map m;
    unsigned removed_while_moving = 0;

    (void)state;
    reset_items();
    mu_prng_seed(&prng, 11);
    mu_map_init(&m, mu_prng_u64(&prng));
    for (int step = 0; step < 30000; step++) {
        struct item *it = &items[mu_prng_below(&prng, ITEMS)];

        if (!it->in) {
            insert(&m, it);
        } else if (mu_prng_chance(&prng, 600000)) {
            removed_while_moving += m.old != NULL ? 1 : 0;
            mu_map_remove(&m, &it->node);
            it->in = false;
        }
        if (step % 499 == 0) {
            check_all(&m);
        }
    }
    check_all(&m);
    assert_true(removed_while_moving > 100);
    mu_map_fini(&m);
}

static void test_map_lets_an_element_go_once_its_successor_is_known(void **state)
{
    struct mu_map m;
    struct mu_map_node *n;
    size_t gone = 0;

    (void)state;
    reset_items();
    mu_map_init(&m, 5);
    /* Stop in the middle of a move, so that both tables hold something. */
    for (size_t i = 0; i < ITEMS && !(i > 1000 && m.old != NULL && m.moved > 50); i++) {
        insert(&m, &items[i]);
    }
    assert_non_null(m.old);
    n = mu_map_next(&m, NULL);
    while (n != NULL) {
        struct mu_map_node *next = mu_map_next(&m, n);

        mu_map_remove(&m, n);
        item_of(n)->in = false;
        gone++;
        n = next;
    }
    assert_true(gone > 1000);
    check_all(&m);
    mu_map_fini(&m);
}

static void test_map_takes_any_bytes_as_key_even_none(void **state)
{
    struct mu_map_node empty;
    struct mu_map_node zeros;
    struct mu_map m;

    (void)state;
    mu_map_init(&m, 5);
    assert_null(mu_map_find(&m, (struct mu_span){0}));
    assert_int_equal(mu_map_insert(&m, &empty, (struct mu_span){0}), 0);
    assert_int_equal(mu_map_insert(&m, &zeros, mu_span("\0\0", 2)), 0);
    assert_ptr_equal(mu_map_find(&m, mu_span("", 0)), &empty);
    assert_ptr_equal(mu_map_find(&m, mu_span("\0\0\0", 2)), &zeros);
    assert_null(mu_map_find(&m, mu_span("\0", 1)));
    mu_map_fini(&m);
}

static void test_map_that_cannot_grow_goes_on(void **state)
{
    struct mu_map m;

    (void)state;
    reset_items();
    mu_map_init(&m, 5);
    failheap_arm(0);
    assert_int_equal(mu_map_insert(&m, &items[0].node, key_of(&items[0])), MUSTER_ENOMEM);
    assert_int_equal(m.count, 0);
    failheap_arm(1);
    for (size_t i = 0; i < 500; i++) {
        insert(&m, &items[i]);
    }
    assert_true(failheap_fired());
    failheap_disarm();
    check_all(&m);
    for (size_t i = 500; i < ITEMS; i++) {
        insert(&m, &items[i]);
    }
    check_all(&m);
    mu_map_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map_finds_everything_at_every_step_of_its_growth),
        cmocka_unit_test(test_map_grows_in_small_steps),
        cmocka_unit_test(test_map_agrees_with_a_model_over_random_insertions_and_removals),
        cmocka_unit_test(test_map_lets_an_element_go_once_its_successor_is_known),
        cmocka_unit_test(test_map_takes_any_bytes_as_key_even_none),
        cmocka_unit_test(test_map_that_cannot_grow_goes_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
