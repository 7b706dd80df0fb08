/* Which nodes hold copies of what others keep. */
#include "unit.h"

#include "core/err.h"
#include "failheap.h"
#include "proto/agent/partners.h"

static struct mu_partners p;

static void begin(uint32_t wanted, uint32_t nodes, const uint32_t *keys)
{
    assert_int_equal(mu_partners_init(&p, wanted, nodes, keys), 0);
}

static void assert_partners(uint32_t rank, uint32_t first, uint32_t second)
{
    uint32_t got[MU_PARTNERS_MAX];

    assert_int_equal(mu_partners_of(&p, rank, got), 2);
    assert_int_equal(got[0], first);
    assert_int_equal(got[1], second);
}

static void test_partners_are_the_next_nodes(void **state)
{
    (void)state;
    begin(2, 5, NULL);
    assert_partners(0, 1, 2);
    assert_partners(3, 4, 0);
    assert_partners(4, 0, 1);
    mu_partners_fini(&p);
}

/* Two nodes of one rack are lost together: their partners are in the other one. */
static void test_partners_have_another_key(void **state)
{
    static const uint32_t racks[] = {0, 0, 0, 1, 1, 1};
    static const uint32_t mixed[] = {0, 1, 2, 0, 1, 2, 0, 1};

    (void)state;
    begin(2, 6, racks);
    assert_partners(0, 3, 4);
    assert_partners(2, 5, 0); /* the last one has no better second */
    mu_partners_fini(&p);
    begin(2, 8, mixed);
    for (uint32_t rank = 0; rank < 8; rank++) {
        uint32_t got[MU_PARTNERS_MAX];

        assert_int_equal(mu_partners_of(&p, rank, got), 2);
        assert_true(mixed[got[0]] != mixed[rank] && mixed[got[1]] != mixed[rank]);
    }
    mu_partners_fini(&p);
}

static void test_partners_of_few_nodes(void **state)
{
    uint32_t got[MU_PARTNERS_MAX];

    (void)state;
    for (uint32_t nodes = 0; nodes < 2; nodes++) {
        begin(3, nodes, NULL);
        assert_int_equal(mu_partners_of(&p, 0, got), 0);
        assert_int_equal(mu_partners_sources(&p, 0, got), 0);
        mu_partners_fini(&p);
    }
    begin(3, 2, NULL);
    assert_int_equal(mu_partners_of(&p, 1, got), 1);
    assert_int_equal(got[0], 0);
    mu_partners_fini(&p);
}

static bool has(const uint32_t *list, size_t count, uint32_t rank)
{
    for (size_t i = 0; i < count; i++) {
        if (list[i] == rank) {
            return true;
        }
    }
    return false;
}

/* For all ways to divide nodes: nobody is its own partner or has one twice; who holds my copies has
 * me as a source; and if no key has more than half, the first partner has another key. */
static void check_all(uint32_t nodes, const uint32_t *keys, uint32_t longest)
{
    for (uint32_t rank = 0; rank < nodes; rank++) {
        uint32_t partners[MU_PARTNERS_MAX];
        size_t count = mu_partners_of(&p, rank, partners);

        for (size_t i = 0; i < count; i++) {
            uint32_t sources[MU_PARTNERS_MAX];

            assert_true(partners[i] < nodes && partners[i] != rank);
            assert_false(has(partners, i, partners[i]));
            assert_true(has(sources, mu_partners_sources(&p, partners[i], sources), rank));
        }
        assert_true(count == 0 || longest > nodes / 2 || keys[partners[0]] != keys[rank]);
    }
}

static void test_partners_agree(void **state)
{
    uint32_t keys[40];

    (void)state;
    for (uint32_t nodes = 1; nodes <= 40; nodes++) {
        for (uint32_t kinds = 1; kinds <= nodes; kinds++) {
            for (uint32_t i = 0; i < nodes; i++) {
                keys[i] = (i * i + i / 3) % kinds;
            }
            for (uint32_t wanted = 0; wanted <= MU_PARTNERS_MAX; wanted++) {
                uint32_t counts[40] = {0};
                uint32_t longest = 0;

                for (uint32_t i = 0; i < nodes; i++) {
                    longest = ++counts[keys[i]] > longest ? counts[keys[i]] : longest;
                }
                begin(wanted, nodes, keys);
                check_all(nodes, keys, longest);
                mu_partners_fini(&p);
            }
        }
    }
}

static void test_partners_have_limits(void **state)
{
    (void)state;
    assert_int_equal(mu_partners_init(&p, MU_PARTNERS_MAX + 1, 5, NULL), MUSTER_ELIMIT);
    for (long i = 0; i < 3; i++) {
        failheap_arm(i);
        assert_int_equal(mu_partners_init(&p, 1, 5, NULL), MUSTER_ENOMEM);
        failheap_disarm();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_partners_are_the_next_nodes),
        cmocka_unit_test(test_partners_have_another_key),
        cmocka_unit_test(test_partners_of_few_nodes),
        cmocka_unit_test(test_partners_agree),
        cmocka_unit_test(test_partners_have_limits),
    };

    return cmocka_run_group_tests_name("partners", tests, NULL, NULL);
}
