#include "unit.h"

#include "proto/agent/relays.h"

static void test_relays_begin_with_so_many_nodes(void **state)
{
    (void)state;
    assert_int_equal(mu_relays_of(MU_RELAYS_AUTO, 255).count, 0);
    assert_int_equal(mu_relays_of(MU_RELAYS_AUTO, 256).count, 16);
    assert_int_equal(mu_relays_of(MU_RELAYS_AUTO, 256).group, 16);
    assert_int_equal(mu_relays_of(MU_RELAYS_AUTO, 12500).count, MU_RELAYS_MAX);
    assert_int_equal(mu_relays_of(MU_RELAYS_OFF, 12500).count, 0);
    assert_int_equal(mu_relays_of(2, 5).count, 2);
    assert_int_equal(mu_relays_of(2, 3).count, 0);
    assert_int_equal(mu_relays_of(1, 0).count, 0);
    assert_int_equal(mu_relays_of(1, 1).count, 0);
}

/* Whatever the number of nodes, each is node 0, or a relay, or has one, which all agree on. */
static void test_relays_everybody_has_one(void **state)
{
    static const uint32_t wants[] = {MU_RELAYS_AUTO, 1, 2, 3, 7, 50};

    (void)state;
    for (uint32_t nodes = 1; nodes < 700; nodes++) {
        for (size_t i = 0; i < sizeof(wants) / sizeof(wants[0]); i++) {
            struct mu_relays r = mu_relays_of(wants[i], nodes);
            uint32_t found = 0;

            for (uint32_t rank = 0; rank < nodes; rank++) {
                uint32_t groups[MU_RELAYS_TRIED];
                size_t n = mu_relays_for(&r, rank, groups);

                found += mu_relays_is_one(&r, rank) ? 1 : 0;
                assert_true((n != 0) == (r.count != 0 && rank != 0 && !mu_relays_is_one(&r, rank)));
                assert_true(n == 0 || groups[0] == mu_relays_group(&r, rank));
                for (size_t k = 0; k < n; k++) {
                    assert_true(groups[k] < r.count);
                    assert_true(k == 0 || groups[k] != groups[k - 1]);
                }
            }
            assert_int_equal(found, r.count);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_relays_begin_with_so_many_nodes),
        cmocka_unit_test(test_relays_everybody_has_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
