/* The state of a rendezvous as a container: members are found, kept in order, copied, dropped. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include <muster/error.h>

#include "codec/rdzv/state.h"
#include "core/prng.h"
#include "failheap.h"

static struct mu_rdzv_node node_of(const char *addr, int64_t pid, int64_t local_id)
{
    return (struct mu_rdzv_node){.addr = (char *)(uintptr_t)addr, .pid = pid, .local_id = local_id};
}

static struct mu_rdzv_member *add(struct mu_rdzv_state *s, const char *addr, int64_t pid)
{
    struct mu_rdzv_node node = node_of(addr, pid, 0);
    struct mu_rdzv_member *member = NULL;

    assert_int_equal(mu_rdzv_state_add(s, &node, &member), 0);
    return member;
}

static struct mu_rdzv_member *find(const struct mu_rdzv_state *s, const char *addr, int64_t pid)
{
    struct mu_rdzv_node node = node_of(addr, pid, 0);

    return mu_rdzv_state_find(s, &node);
}

/* The index holds each member once, in order. */
static void check_order(const struct mu_rdzv_state *s)
{
    for (size_t i = 1; i < s->member_count; i++) {
        assert_true(mu_rdzv_node_compare(&s->members[s->order[i - 1]].node,
                                         &s->members[s->order[i]].node) < 0);
    }
}

static void test_rdzv_state_orders_nodes_by_address_pid_and_local_id(void **unused)
{
    static const struct mu_rdzv_node ordered[] = {
        {(char *)(uintptr_t) "", 9, 9},
        {(char *)(uintptr_t) "host-10", 5, 0},
        {(char *)(uintptr_t) "host-2", -3, 0},
        {(char *)(uintptr_t) "host-2", 9, -1},
        {(char *)(uintptr_t) "host-2", 9, 0},
        {(char *)(uintptr_t) "host-2", 10, 0},
        {(char *)(uintptr_t) "host-2", INT64_MAX, 0},
        {(char *)(uintptr_t) "host-20", 0, 0},
        {(char *)(uintptr_t) "z", 0, 0},
        {(char *)(uintptr_t) "\xc3\xa4", 0, 0},         /* U+00E4 */
        {(char *)(uintptr_t) "\xef\xbf\xbd", 0, 0},     /* U+FFFD */
        {(char *)(uintptr_t) "\xf0\x9f\x98\x80", 0, 0}, /* U+1F600 */
    };
    size_t count = sizeof(ordered) / sizeof(ordered[0]);

    (void)unused;
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < count; k++) {
            int sign = mu_rdzv_node_compare(&ordered[i], &ordered[k]);

            assert_int_equal((sign > 0) - (sign < 0), (i > k) - (i < k));
            assert_int_equal(mu_rdzv_node_equal(&ordered[i], &ordered[k]), i == k);
        }
    }
}

static void test_rdzv_state_adds_a_node_once(void **unused)
{
    struct mu_rdzv_state s;
    char addr[] = "host";

    (void)unused;
    mu_rdzv_state_init(&s);
    assert_null(find(&s, "host", 1));
    add(&s, addr, 1)->participant = true;
    addr[0] = 'x'; /* it was copied */

    assert_ptr_equal(add(&s, "host", 1), &s.members[0]);
    assert_true(s.members[0].participant);
    assert_int_equal(s.member_count, 1);
    assert_ptr_equal(find(&s, "host", 1), &s.members[0]);
    assert_null(find(&s, "host", 2));
    assert_null(find(&s, "hos", 1));
    mu_rdzv_state_fini(&s);
}

static void test_rdzv_state_keeps_members_in_the_order_they_came(void **unused)
{
    struct mu_rdzv_state s;
    struct mu_prng rng;
    char addr[32];

    (void)unused;
    mu_rdzv_state_init(&s);
    mu_prng_seed(&rng, 5);
    for (int64_t i = 0; i < 5000; i++) {
        (void)snprintf(addr, sizeof(addr), "node-%u", (unsigned)mu_prng_below(&rng, 700));
        add(&s, addr, i)->rank = i;
    }
    assert_int_equal(s.member_count, 5000);
    check_order(&s);
    for (size_t i = 0; i < s.member_count; i++) {
        assert_int_equal(s.members[i].rank, i);
        assert_ptr_equal(mu_rdzv_state_find(&s, &s.members[i].node), &s.members[i]);
    }
    mu_rdzv_state_fini(&s);
}

static void test_rdzv_state_drops_members_without_a_flag(void **unused)
{
    struct mu_rdzv_state s;
    struct mu_prng rng;
    char addr[32];

    (void)unused;
    mu_rdzv_state_init(&s);
    mu_rdzv_state_compact(&s); /* of nothing */
    mu_prng_seed(&rng, 6);
    for (int64_t i = 0; i < 1000; i++) {
        struct mu_rdzv_member *m;

        (void)snprintf(addr, sizeof(addr), "node-%u", (unsigned)mu_prng_below(&rng, 100));
        m = add(&s, addr, i);
        m->participant = i % 7 == 1;
        m->waiting = i % 7 == 2;
        m->spare = i % 7 == 3;
        m->has_heartbeat = i % 7 == 4;
    }
    mu_rdzv_state_compact(&s);

    check_order(&s);
    assert_int_equal(s.member_count, 572);
    for (size_t i = 0, pid = 0; i < s.member_count; i++, pid++) {
        while (pid % 7 == 0 || pid % 7 > 4) {
            pid++;
        }
        assert_int_equal(s.members[i].node.pid, pid);
        assert_ptr_equal(mu_rdzv_state_find(&s, &s.members[i].node), &s.members[i]);
    }
    (void)add(&s, "one more", 1);
    check_order(&s);
    mu_rdzv_state_fini(&s);
    assert_int_equal(s.member_count, 0);
}

static void test_rdzv_state_copies_all_of_it(void **unused)
{
    struct mu_rdzv_state from;
    struct mu_rdzv_state to;

    (void)unused;
    mu_rdzv_state_init(&from);
    mu_rdzv_state_init(&to);
    (void)add(&to, "overwritten", 1);
    from.round = 7;
    from.complete = from.closed = from.has_deadline = from.nodes_repeated = true;
    from.deadline.ns = 99;
    add(&from, "b", 2)->waiting = true;
    add(&from, "a", 1)->rank = 4;

    assert_int_equal(mu_rdzv_state_copy(&to, &from), 0);
    assert_int_equal(mu_rdzv_state_copy(&to, &to), 0);
    mu_rdzv_state_fini(&from);
    assert_int_equal(mu_rdzv_state_copy(&from, &to), 0);

    assert_int_equal(from.round, 7);
    assert_true(from.complete && from.closed && from.has_deadline && from.nodes_repeated);
    assert_int_equal(from.deadline.ns, 99);
    assert_int_equal(from.member_count, 2);
    assert_string_equal(from.members[0].node.addr, "b");
    assert_true(from.members[0].waiting);
    assert_int_equal(find(&from, "a", 1)->rank, 4);
    (void)add(&from, "c", 3);
    check_order(&from);
    assert_int_equal(to.member_count, 2);
    mu_rdzv_state_fini(&to);
    assert_int_equal(mu_rdzv_state_copy(&from, &to), 0);
    assert_int_equal(from.member_count, 0);
    mu_rdzv_state_fini(&from);
}

static void test_rdzv_state_keeps_to_its_limits(void **unused)
{
    struct mu_rdzv_state s;
    char *addr = calloc(1, MU_RDZV_ADDR_MAX + 2);
    struct mu_rdzv_node node = node_of(addr, 0, 0);
    struct mu_rdzv_member *member = NULL;

    (void)unused;
    mu_rdzv_state_init(&s);
    memset(addr, 'x', MU_RDZV_ADDR_MAX + 1);
    addr[MU_RDZV_ADDR_MAX + 1] = '\0';
    assert_int_equal(mu_rdzv_state_add(&s, &node, &member), MUSTER_ELIMIT);
    addr[MU_RDZV_ADDR_MAX] = '\0';
    assert_int_equal(mu_rdzv_state_add(&s, &node, &member), 0);
    addr[0] = '\0';
    for (node.pid = 1; node.pid < MU_RDZV_MEMBERS_MAX; node.pid++) {
        assert_int_equal(mu_rdzv_state_add(&s, &node, &member), 0);
    }
    assert_int_equal(mu_rdzv_state_add(&s, &node, &member), MUSTER_ELIMIT);
    node.pid = 5;
    assert_int_equal(mu_rdzv_state_add(&s, &node, &member), 0);
    assert_int_equal(s.member_count, MU_RDZV_MEMBERS_MAX);
    mu_rdzv_state_fini(&s);
    free(addr);
}

static void test_rdzv_state_survives_a_failing_heap(void **unused)
{
    struct mu_rdzv_state s;
    struct mu_rdzv_state copy;

    (void)unused;
    for (long nth = 0;; nth++) {
        struct mu_rdzv_member *member = NULL;
        size_t added = 0;
        bool fired;
        int err = 0;

        mu_rdzv_state_init(&s);
        mu_rdzv_state_init(&copy);
        failheap_arm(nth);
        for (int64_t pid = 0; pid < 40 && err == 0; pid++) {
            struct mu_rdzv_node node = node_of("host", pid * 7 % 40, 0);

            err = mu_rdzv_state_add(&s, &node, &member);
            added += err == 0 ? 1 : 0;
        }
        err = err != 0 ? err : mu_rdzv_state_copy(&copy, &s);
        fired = failheap_fired();
        failheap_disarm();

        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        assert_int_equal(s.member_count, added);
        check_order(&s);
        assert_int_equal(copy.member_count, fired ? 0 : 40);
        mu_rdzv_state_compact(&s);
        assert_int_equal(s.member_count, 0);
        mu_rdzv_state_fini(&s);
        mu_rdzv_state_fini(&copy);
        if (!fired) {
            assert_true(nth > 80);
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_state_orders_nodes_by_address_pid_and_local_id),
        cmocka_unit_test(test_rdzv_state_adds_a_node_once),
        cmocka_unit_test(test_rdzv_state_keeps_members_in_the_order_they_came),
        cmocka_unit_test(test_rdzv_state_drops_members_without_a_flag),
        cmocka_unit_test(test_rdzv_state_copies_all_of_it),
        cmocka_unit_test(test_rdzv_state_keeps_to_its_limits),
        cmocka_unit_test(test_rdzv_state_survives_a_failing_heap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
