/* Which fragment of a model is averaged after which step. */
#include "unit.h"

#include "proto/average/fragment.h"

static void one_of_each_in_every_period(void **state)
{
    static const uint32_t plans[][2] = {{500, 8}, {100, 7}, {8, 8}, {1, 1}, {9, 4}, {4096, 4096}};

    (void)state;
    for (size_t p = 0; p < sizeof(plans) / sizeof(plans[0]); p++) {
        uint32_t every = plans[p][0];
        uint32_t count = plans[p][1];
        uint32_t expected = 0;
        uint64_t next = 0;

        assert_true(mu_fragment_check(every, count));
        for (uint64_t step = 1; step <= (uint64_t)every * 3; step++) {
            uint32_t fragment = UINT32_MAX;
            uint32_t promised = UINT32_MAX;

            next = mu_fragment_next(every, count, step - 1, &promised);
            assert_true(next >= step && next <= step - 1 + (every + count - 1) / count);
            if (mu_fragment_due(every, count, step, &fragment)) {
                assert_int_equal(fragment, expected);
                assert_true(next == step && promised == fragment);
                expected = (expected + 1) % count;
            } else {
                assert_true(next > step);
            }
            if (step % every == 0) {
                assert_int_equal(expected, 0);
            }
        }
    }
}

static void what_cannot_be(void **state)
{
    uint32_t fragment;

    (void)state;
    assert_false(mu_fragment_check(7, 8));
    assert_false(mu_fragment_check(7, 0));
    assert_false(mu_fragment_check(MU_FRAGMENT_EVERY_MAX + 1, 1));
    assert_true(mu_fragment_check(MU_FRAGMENT_EVERY_MAX, MU_FRAGMENT_COUNT_MAX));
    assert_false(mu_fragment_check(MU_FRAGMENT_EVERY_MAX, MU_FRAGMENT_COUNT_MAX + 1));
    assert_false(mu_fragment_due(10, 2, 0, &fragment));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_of_each_in_every_period),
        cmocka_unit_test(what_cannot_be),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
