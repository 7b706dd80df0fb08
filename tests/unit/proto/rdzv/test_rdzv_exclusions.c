/* Nodes that a run does not let in: the table, and what the room does with it. */
#include "unit.h"

#include "core/prng.h"
#include "failheap.h"
#include "room_fixture.h"

#define NOW(ms) ((mu_mono_t){MU_NS_PER_S + (uint64_t)(ms)*MU_NS_PER_MS})

static const struct mu_exclude_policy policy = {.after = 3, .within_ms = 10000, .for_ms = 60000};

static struct mu_exclusions x;
static struct room_fixture f;

static bool fail_at(uint64_t ms)
{
    return mu_exclusions_fail(&x, NOW(ms), "m1", "a");
}

static bool is_excluded(uint64_t ms)
{
    return mu_exclusions_find(&x, NOW(ms), "m1", "another") != NULL;
}

/* --- the table ------------------------------------------------------------------------------- */

static void test_exclusions_count_failures_in_a_window(void **state)
{
    (void)state;
    mu_exclusions_init(&x, &policy);
    assert_false(fail_at(0));
    assert_false(fail_at(9000));
    assert_false(fail_at(10000)); /* The first is as old as the window. */
    assert_true(fail_at(18999));
    assert_true(is_excluded(18999) && is_excluded(78998));
    assert_false(is_excluded(78999));
    assert_int_equal(mu_exclusions_count(&x, NOW(20000)), 1);
    /* What led to it does not count any more. */
    assert_false(fail_at(79000));
    assert_false(fail_at(79001));
    assert_true(fail_at(79002));
    assert_int_equal(x.total, 2);
    mu_exclusions_fini(&x);
    /* Nor if its time is over before their window is. */
    mu_exclusions_init(&x,
                       &(struct mu_exclude_policy){.after = 2, .within_ms = 9000, .for_ms = 1000});
    assert_false(fail_at(0));
    assert_true(fail_at(1));
    assert_false(fail_at(1500));
    assert_true(fail_at(1501));
    mu_exclusions_fini(&x);
}

static void test_exclusions_are_off_without_a_policy(void **state)
{
    (void)state;
    mu_exclusions_init(&x, &(struct mu_exclude_policy){0});
    for (unsigned i = 0; i < 100; i++) {
        assert_false(fail_at(i));
    }
    assert_int_equal(x.count, 0);
    mu_exclusions_fini(&x);
    /* More than can be kept is as much as can be kept. */
    mu_exclusions_init(&x, &(struct mu_exclude_policy){.after = 99, .within_ms = 1, .for_ms = 1});
    assert_int_equal(x.policy.after, MU_RDZV_FAILURES_MAX);
    mu_exclusions_fini(&x);
}

static void test_exclusions_take_back_the_echo_of_a_loss(void **state)
{
    (void)state;
    mu_exclusions_init(&x, &policy);
    assert_false(fail_at(0));
    assert_false(fail_at(1000));
    assert_true(fail_at(2000));
    mu_exclusions_forgive(&x, NOW(2000));
    assert_false(is_excluded(2001));
    assert_true(fail_at(3000)); /* The first two still count. */
    assert_int_equal(mu_exclusions_add(&x, NOW(3000), "", "b", MU_SPAN_LIT(""), 5000), 0);
    mu_exclusions_forgive(&x, NOW(3000));
    assert_non_null(mu_exclusions_find(&x, NOW(3001), "", "b")); /* by hand */
    mu_exclusions_fini(&x);
}

static void test_exclusions_know_a_node_by_machine_name_and_host(void **state)
{
    static char reason[2 * MU_EXCLUSION_TEXT_MAX];

    (void)state;
    mu_exclusions_init(&x, &policy);
    assert_int_equal(mu_exclusions_add(&x, NOW(0), "", "node3", MU_SPAN_LIT("loud"), 1000), 0);
    assert_non_null(mu_exclusions_find(&x, NOW(1), "m", "node3"));
    assert_non_null(mu_exclusions_find(&x, NOW(1), "m", "node3_77_ab"));
    assert_null(mu_exclusions_find(&x, NOW(1), "m", "node33_77_ab"));
    assert_null(mu_exclusions_find(&x, NOW(1), "m", "node"));
    assert_null(mu_exclusions_find(&x, NOW(1), "", ""));
    assert_int_equal(mu_exclusions_lift(&x, "node33"), 0);
    assert_int_equal(mu_exclusions_lift(&x, ""), 0);
    assert_int_equal(mu_exclusions_lift(&x, "node3"), 1);
    assert_int_equal(mu_exclusions_add(&x, NOW(0), "m7", "node3_1_a", MU_SPAN_LIT(""), 1000), 0);
    assert_non_null(mu_exclusions_find(&x, NOW(1), "m7", "whatever"));
    assert_string_equal(mu_exclusions_find(&x, NOW(1), "m7", "b")->reason, "excluded by hand");
    assert_int_equal(mu_exclusions_lift(&x, "node3"), 1); /* by the host of its name */
    /* A reason that is too long is cut. */
    memset(reason, 'r', sizeof(reason));
    assert_int_equal(mu_exclusions_add(&x, NOW(0), "m8", "b", mu_span(reason, sizeof(reason)), 9),
                     0);
    assert_int_equal(strlen(mu_exclusions_find(&x, NOW(1), "m8", "b")->reason),
                     MU_EXCLUSION_TEXT_MAX);
    mu_exclusions_fini(&x);
}

static void test_exclusions_table_has_a_bound(void **state)
{
    char name[16];

    (void)state;
    mu_exclusions_init(&x, &policy);
    for (unsigned i = 0; i < MU_EXCLUSIONS_MAX + 10; i++) {
        (void)snprintf(name, sizeof(name), "n%u", i);
        assert_int_equal(mu_exclusions_add(&x, NOW(i), "", name, MU_SPAN_LIT("r"), 100000 + i), 0);
    }
    assert_int_equal(x.count, MU_EXCLUSIONS_MAX);
    assert_null(mu_exclusions_find(&x, NOW(200), "", "n9")); /* it would have been over first */
    assert_non_null(mu_exclusions_find(&x, NOW(200), "", "n10"));
    mu_exclusions_fini(&x);

    mu_exclusions_init(&x, &policy);
    failheap_arm(0);
    assert_int_equal(mu_exclusions_add(&x, NOW(0), "", "a", MU_SPAN_LIT(""), 1), MUSTER_ENOMEM);
    failheap_disarm();
    assert_int_equal(x.count, 0);
    mu_exclusions_fini(&x);
}

static void test_exclusions_can_be_handed_over(void **state)
{
    struct mu_exclusions y;
    struct mu_buf text;
    const struct mu_exclusion *e;

    (void)state;
    mu_exclusions_init(&x, &policy);
    mu_exclusions_init(&y, &policy);
    assert_false(fail_at(1000));
    assert_false(fail_at(2000));
    assert_int_equal(mu_exclusions_add(&x, NOW(0), "m2", "b", MU_SPAN_LIT("loud"), 9000), 0);
    mu_buf_init(&text, MU_EXCLUSIONS_BYTES_MAX);
    assert_int_equal(mu_exclusions_encode(&x, NOW(3000), true, &text), 0);
    /* Another server, whose clock shows something else. */
    assert_int_equal(mu_exclusions_decode(&y, NOW(500000), mu_buf_span(&text)), 0);
    e = mu_exclusions_find(&y, NOW(505999), "m2", "");
    assert_non_null(e);
    assert_string_equal(e->reason, "loud");
    assert_string_equal(e->node, "b");
    assert_null(mu_exclusions_find(&y, NOW(506000), "m2", ""));
    assert_true(mu_exclusions_fail(&y, NOW(507000), "m1", "a")); /* the third */
    /* Cut anywhere, it is refused or a part of it. */
    for (size_t n = 0; n < text.len; n++) {
        int err = mu_exclusions_decode(&y, NOW(1), mu_span(mu_buf_span(&text).data, n));

        assert_true(err == 0 || err == MUSTER_EPROTO);
    }
    mu_buf_reset(&text);
    assert_int_equal(mu_exclusions_encode(&x, NOW(3000), false, &text), 0);
    mu_exclusions_fini(&y);
    mu_exclusions_init(&y, &policy);
    assert_int_equal(mu_exclusions_decode(&y, NOW(0), mu_buf_span(&text)), 0);
    assert_int_equal(y.count, 1); /* only what holds */
    mu_buf_fini(&text);
    mu_exclusions_fini(&x);
    mu_exclusions_fini(&y);
}

/* --- the room -------------------------------------------------------------------------------- */

static void join(const char *name, const char *machine)
{
    (void)snprintf(room_member(&f, name)->machine, 16, "%s", machine);
    room_join(&f, name);
}

static void setup_room(uint32_t min, uint32_t max)
{
    room_prepare(&f, min, max);
    f.config.exclude = policy;
    room_open(&f);
}

static void test_room_node_that_fails_too_often_is_not_let_in(void **state)
{
    (void)state;
    setup_room(2, 3);
    join("a", "m1");
    join("b", "m2");
    join("c", "m3");
    room_expect(&f, "a assigned 0: 0/3\nb assigned 0: 1/3\nc assigned 0: 2/3\n");
    for (uint64_t round = 0; round < 2; round++) {
        mu_room_fail(&f.room, f.now, room_member(&f, "b"), round);
        room_pass(&f, 100);
        while (f.room.in[MU_ROOM_RUNNING].count != 3) {
            room_pass(&f, 100);
        }
        f.diary[0] = '\0';
        for (struct mu_room_member *m;;) {
            struct mu_room_notice n;

            if (!mu_room_next_notice(&f.room, &m, &n)) {
                break;
            }
        }
    }
    mu_room_fail(&f.room, f.now, room_member(&f, "b"), 2);
    room_expect(&f, "a ended 2: failed b\nc ended 2: failed b\nb excluded\n");
    room_pass(&f, 250);
    room_expect(&f, "a assigned 3: 0/2\nc assigned 3: 1/2\n"); /* c's rank was too high */
    /* Under another name it is the same machine. */
    (void)snprintf(room_member(&f, "b2")->machine, 16, "m2");
    assert_int_equal(room_try_join(&f, "b2"), MUSTER_ERDZV_EXCLUDED);
    assert_string_equal(f.msg.text,
                        "this node is excluded from the run for another 60 s: its workers failed, "
                        "or it was lost, 3 times within 10 s; `muster rdzv include b` lets it in");
    room_pass(&f, 60000);
    room_join(&f, "b2");
    room_expect(&f, "a ended 3: upscale\nc ended 3: upscale\n"
                    "a assigned 4: 0/3\nc assigned 4: 1/3\nb2 assigned 4: 2/3\n");
    room_teardown(&f);
}

static void test_room_loss_counts_and_its_echo_does_not(void **state)
{
    (void)state;
    setup_room(1, 3);
    f.room.exclusions.policy.after = 1;
    join("a", "m1");
    join("b", "m2");
    join("c", "m3");
    /* a's workers fail because b is gone, which is noticed later. */
    mu_room_doubt(&f.room, f.now, mu_mono_add_ms(f.now, 4000));
    mu_room_fail(&f.room, f.now, room_member(&f, "a"), 0);
    assert_non_null(mu_exclusions_find(&f.room.exclusions, f.now, "m1", "a"));
    room_pass(&f, 500);
    room_lose(&f, "b");
    assert_null(mu_exclusions_find(&f.room.exclusions, f.now, "m1", "a"));
    assert_non_null(mu_exclusions_find(&f.room.exclusions, f.now, "m2", "b"));
    assert_int_equal(f.room.restarts, 0);
    /* It left: that is no failure. */
    room_leave(&f, "c");
    assert_null(mu_exclusions_find(&f.room.exclusions, f.now, "m3", "c"));
    room_teardown(&f);
}

static void test_room_excludes_who_is_named(void **state)
{
    static char many[MU_ROOM_NAME_MAX + 2];
    char text[400];

    (void)state;
    setup_room(2, 2);
    join("a_1_x", "m1");
    join("b_2_y", "m2");
    join("s_3_z", "m3");
    join("t_4_z", "m4");
    room_expect(&f, "a_1_x assigned 0: 0/2\nb_2_y assigned 0: 1/2\n");
    assert_int_equal(
        mu_room_exclude(&f.room, f.now, MU_SPAN_LIT("a"), MU_SPAN_LIT("loud"), 5000, &f.msg), 0);
    room_expect(&f, "b_2_y ended 0: left a_1_x\na_1_x excluded\ns_3_z assigned 1: 0/2\n"
                    "b_2_y assigned 1: 1/2\n");
    /* A spare has to go, too. */
    assert_int_equal(
        mu_room_exclude(&f.room, f.now, MU_SPAN_LIT("m4"), MU_SPAN_LIT(""), 5000, &f.msg), 0);
    room_expect(&f, "t_4_z excluded\n");
    room_lose(&f, "b_2_y");
    room_expect(&f, "s_3_z ended 1: lost b_2_y\n");
    mu_room_explain(&f.room, text, sizeof(text));
    assert_string_equal(text, "1 of 2 nodes are here; not back since round 1: b_2_y; here: s_3_z; "
                              "excluded: a_1_x (loud), t_4_z (excluded by hand)");
    assert_int_equal(mu_room_include(&f.room, MU_SPAN_LIT("nobody")), 0);
    assert_int_equal(mu_room_include(&f.room, MU_SPAN_LIT("a")), 1);
    room_join(&f, "a_1_x");
    room_expect(&f, "s_3_z assigned 2: 0/2\na_1_x assigned 2: 1/2\n");
    /* What makes no sense. */
    memset(many, 'x', sizeof(many));
    assert_int_equal(mu_room_exclude(&f.room, f.now, MU_SPAN_LIT(""), MU_SPAN_LIT(""), 1, &f.msg),
                     MUSTER_EINVAL);
    assert_int_equal(mu_room_exclude(&f.room, f.now, MU_SPAN_LIT("a"), MU_SPAN_LIT(""), 0, &f.msg),
                     MUSTER_EINVAL);
    assert_int_equal(
        mu_room_exclude(&f.room, f.now, MU_SPAN_LIT("a\nb"), MU_SPAN_LIT(""), 1, &f.msg),
        MUSTER_EINVAL);
    assert_int_equal(
        mu_room_exclude(&f.room, f.now, mu_span(many, sizeof(many)), MU_SPAN_LIT(""), 1, &f.msg),
        MUSTER_EINVAL);
    room_teardown(&f);
}

/* --- a property ------------------------------------------------------------------------------ */

#define CHURN_NODES 8

/* Whatever happens, no machine has a rank while it is excluded. */
static void test_room_no_excluded_machine_ever_has_a_rank(void **state)
{
    static struct mu_room_member crowd[CHURN_NODES];
    struct mu_room_notice n;
    struct mu_room_member *m;
    struct mu_prng prng;
    unsigned refused = 0;

    (void)state;
    mu_prng_seed(&prng, 7);
    setup_room(2, 5);
    for (unsigned step = 0; step < 40000; step++) {
        size_t i = mu_prng_below(&prng, CHURN_NODES);

        switch (mu_prng_below(&prng, 5)) {
        case 0:
            if (crowd[i].state == MU_ROOM_OUT && crowd[i].notices == 0) {
                (void)snprintf(crowd[i].name, 16, "n%zu_%u", i, step);
                (void)snprintf(crowd[i].machine, 8, "m%zu", i % 6); /* some have two nodes */
                refused += mu_room_join(&f.room, f.now, &crowd[i], 2, 5, &f.msg) != 0;
            }
            break;
        case 1:
            mu_room_lost(&f.room, f.now, &crowd[i]);
            break;
        case 2:
            if (mu_prng_below(&prng, 4) == 0) {
                mu_room_doubt(&f.room, f.now, mu_mono_add_ms(f.now, 3000));
            }
            mu_room_fail(&f.room, f.now, &crowd[i], f.room.round);
            break;
        case 3:
            if (mu_prng_below(&prng, 20) == 0) {
                (void)mu_room_exclude(&f.room, f.now, mu_span_str(crowd[i].machine),
                                      MU_SPAN_LIT("x"), 1 + mu_prng_below(&prng, 9000), &f.msg);
            }
            break;
        default:
            room_pass(&f, mu_prng_below(&prng, 3000));
            break;
        }
        while (mu_room_next_notice(&f.room, &m, &n)) {
        }
        for (size_t k = 0; k < CHURN_NODES; k++) {
            assert_true(crowd[k].state == MU_ROOM_OUT ||
                        mu_exclusions_find(&f.room.exclusions, f.now, crowd[k].machine,
                                           crowd[k].name) == NULL);
        }
    }
    print_message("%u joins refused, %llu exclusions, %llu rounds\n", refused,
                  (unsigned long long)f.room.exclusions.total, (unsigned long long)f.room.rounds);
    assert_true(refused > 1000 && f.room.exclusions.total > 100 && f.room.rounds > 1000);
    for (size_t i = 0; i < CHURN_NODES; i++) {
        mu_room_lost(&f.room, f.now, &crowd[i]);
    }
    room_teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exclusions_count_failures_in_a_window),
        cmocka_unit_test(test_exclusions_are_off_without_a_policy),
        cmocka_unit_test(test_exclusions_take_back_the_echo_of_a_loss),
        cmocka_unit_test(test_exclusions_know_a_node_by_machine_name_and_host),
        cmocka_unit_test(test_exclusions_table_has_a_bound),
        cmocka_unit_test(test_exclusions_can_be_handed_over),
        cmocka_unit_test(test_room_node_that_fails_too_often_is_not_let_in),
        cmocka_unit_test(test_room_loss_counts_and_its_echo_does_not),
        cmocka_unit_test(test_room_excludes_who_is_named),
        cmocka_unit_test(test_room_no_excluded_machine_ever_has_a_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
