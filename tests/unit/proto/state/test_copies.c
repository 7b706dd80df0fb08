/* The two places for copies of one rank's versions. */
#include "unit.h"

#include "proto/state/copies.h"

static struct mu_kept_head version(uint64_t era, uint64_t step)
{
    return (struct mu_kept_head){.version = {.era = era, .nonce = 7, .step = step}, .world = 2};
}

static void load(struct mu_copies *c, uint64_t era, uint64_t step, bool whole)
{
    struct mu_kept_head h = version(era, step);

    assert_true(mu_copies_wants(c, &h));
    (void)mu_copies_begin(c, &h);
    mu_copies_end(c, whole);
}

/* Whatever happens to the next version, the newest whole one stays. */
static void test_copies_newest_stays(void **state)
{
    struct mu_copies c = {0};
    struct mu_kept_head h = version(3, 30);

    (void)state;
    assert_null(mu_copies_newest(&c));
    load(&c, 3, 10, true);
    load(&c, 3, 20, true);
    assert_int_equal(mu_copies_newest(&c)->version.step, 20);
    assert_int_equal(mu_copies_begin(&c, &h), 0);
    assert_false(c.whole[0]);
    assert_true(c.whole[1]);
    assert_int_equal(mu_copies_newest(&c)->version.step, 20);
    mu_copies_end(&c, false);
    assert_int_equal(mu_copies_newest(&c)->version.step, 20);
    load(&c, 3, 40, true);
    assert_int_equal(mu_copies_newest(&c)->version.step, 40);
    assert_int_equal(mu_copies_next(&c), 1);
}

static void test_copies_want_what_is_newer(void **state)
{
    struct mu_copies c = {0};
    struct mu_kept_head old = version(3, 20);
    struct mu_kept_head later = version(4, 15);

    (void)state;
    load(&c, 3, 20, true);
    assert_false(mu_copies_wants(&c, &old));
    assert_true(mu_copies_wants(&c, &later));
    (void)mu_copies_begin(&c, &later);
    later.version.step = 16;
    assert_false(mu_copies_wants(&c, &later)); /* one at a time */
    mu_copies_end(&c, true);
    assert_true(mu_copies_wants(&c, &later));
}

/* Workers go on from 20 although 30 was kept here: 30 must not stand in the way of 20's successors,
 * nor count. */
static void test_copies_forget_what_nobody_loads(void **state)
{
    struct mu_copies c = {0};
    struct mu_kept_head loaded = version(3, 20);

    (void)state;
    load(&c, 3, 20, true);
    load(&c, 3, 30, true);
    mu_copies_forget(&c, &loaded.version);
    assert_true(c.whole[0]);
    assert_false(c.whole[1]);
    assert_int_equal(mu_copies_newest(&c)->version.step, 20);
    mu_copies_forget(&c, NULL);
    assert_null(mu_copies_newest(&c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies_newest_stays),
        cmocka_unit_test(test_copies_want_what_is_newer),
        cmocka_unit_test(test_copies_forget_what_nobody_loads),
    };

    return cmocka_run_group_tests_name("copies", tests, NULL, NULL);
}
