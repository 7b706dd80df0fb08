#include "unit.h"

#include <muster/error.h>

#include "failheap.h"
#include "proto/rpc/once.h"

static const uint8_t alice[MU_RPC_CALLER_LEN] = {1};
static const uint8_t bob[MU_RPC_CALLER_LEN] = {2};

#define MAKE(name, ...)                                                                            \
    struct mu_rpc_once name;                                                                       \
    struct mu_rpc_once_config name##_config = mu_rpc_once_config_defaults();                       \
    __VA_ARGS__;                                                                                   \
    mu_rpc_once_init(&name, &name##_config)

static void test_once_runs_joins_and_replays(void **state)
{
    struct mu_rpc_once_key *key = NULL;
    struct mu_rpc_once_key *again = NULL;

    (void)state;
    MAKE(o, );
    assert_int_equal(mu_rpc_once_begin(&o, alice, 5, 5, false, &key), MU_RPC_ONCE_RUN);
    assert_int_equal(mu_rpc_once_begin(&o, alice, 5, 5, true, &again), MU_RPC_ONCE_JOIN);
    assert_ptr_equal(key, again);
    /* Another's number is another's. */
    assert_int_equal(mu_rpc_once_begin(&o, bob, 5, 5, false, &again), MU_RPC_ONCE_RUN);
    mu_rpc_once_answer(&o, again, 0, MU_SPAN_LIT("b"));
    mu_rpc_once_answer(&o, key, MUSTER_ENOENT, MU_SPAN_LIT("no"));
    assert_int_equal(mu_rpc_once_begin(&o, alice, 5, 5, true, &again), MU_RPC_ONCE_REPLAY);
    assert_int_equal(again->status, MUSTER_ENOENT);
    assert_true(mu_span_eq(mu_buf_span(&again->content), MU_SPAN_LIT("no")));
    mu_rpc_once_fini(&o);
}

static void test_once_forgets_what_is_below_the_floor_and_never_runs_it_again(void **state)
{
    struct mu_rpc_once_key *key = NULL;

    (void)state;
    MAKE(o, );
    for (uint64_t i = 0; i < 1000; i++) {
        assert_int_equal(mu_rpc_once_begin(&o, alice, i, i, false, &key), MU_RPC_ONCE_RUN);
        mu_rpc_once_answer(&o, key, 0, MU_SPAN_LIT("answer"));
        assert_int_equal(o.keys, 1);
    }
    assert_int_equal(mu_rpc_once_begin(&o, alice, 3, 3, true, &key), MU_RPC_ONCE_REFUSE);
    assert_int_equal(mu_rpc_once_begin(&o, alice, 998, 0, false, &key), MU_RPC_ONCE_REFUSE);
    mu_rpc_once_fini(&o);
}

static void test_once_keeps_a_running_call_whose_caller_lost_patience(void **state)
{
    struct mu_rpc_once_key *key = NULL;
    struct mu_rpc_once_key *next = NULL;

    (void)state;
    MAKE(o, );
    assert_int_equal(mu_rpc_once_begin(&o, alice, 1, 1, false, &key), MU_RPC_ONCE_RUN);
    assert_int_equal(mu_rpc_once_begin(&o, alice, 2, 2, false, &next), MU_RPC_ONCE_RUN);
    assert_int_equal(o.keys, 2);
    mu_rpc_once_answer(&o, key, 0, MU_SPAN_LIT("late"));
    assert_int_equal(o.keys, 1);
    mu_rpc_once_answer(&o, next, 0, MU_SPAN_LIT(""));
    assert_int_equal(mu_rpc_once_begin(&o, alice, 2, 2, true, &next), MU_RPC_ONCE_REPLAY);
    mu_rpc_once_fini(&o);
}

static void test_once_gives_up_the_oldest_answers_over_its_bytes(void **state)
{
    struct mu_rpc_once_key *key = NULL;
    static const uint8_t kilobyte[1024];

    (void)state;
    MAKE(o, o_config.bytes_max = 10 * 1024);
    for (uint64_t i = 0; i < 50; i++) {
        assert_int_equal(mu_rpc_once_begin(&o, alice, i, 0, false, &key), MU_RPC_ONCE_RUN);
        mu_rpc_once_answer(&o, key, 0, mu_span(kilobyte, sizeof(kilobyte)));
        assert_true(o.bytes <= 10 * 1024);
    }
    assert_int_equal(mu_rpc_once_begin(&o, alice, 49, 0, true, &key), MU_RPC_ONCE_REPLAY);
    assert_int_equal(mu_rpc_once_begin(&o, alice, 0, 0, true, &key), MU_RPC_ONCE_REFUSE);
    /* One that is too long for all of it is not kept, and does not run again. */
    assert_int_equal(mu_rpc_once_begin(&o, bob, 0, 0, false, &key), MU_RPC_ONCE_RUN);
    mu_rpc_once_answer(&o, key, 0, mu_span(kilobyte, sizeof(kilobyte)));
    mu_rpc_once_fini(&o);
}

static void test_once_bounds_keys_and_callers(void **state)
{
    struct mu_rpc_once_key *keys[4];
    struct mu_rpc_once_key *key = NULL;
    uint8_t caller[MU_RPC_CALLER_LEN] = {0};

    (void)state;
    MAKE(o, o_config.keys_max = 4; o_config.callers_max = 3);
    for (uint64_t i = 0; i < 4; i++) {
        assert_int_equal(mu_rpc_once_begin(&o, alice, i, 0, false, &keys[i]), MU_RPC_ONCE_RUN);
    }
    assert_int_equal(mu_rpc_once_begin(&o, alice, 4, 0, false, &key), MU_RPC_ONCE_FULL);
    /* Nobody was forgotten: whoever is not known has never been here. */
    assert_int_equal(mu_rpc_once_begin(&o, bob, 1, 0, true, &key), MU_RPC_ONCE_RUN);
    mu_rpc_once_withdraw(&o, key);
    for (uint8_t i = 10; i < 30; i++) {
        caller[0] = i;
        assert_int_equal(mu_rpc_once_begin(&o, caller, 0, 0, false, &key), MU_RPC_ONCE_RUN);
        mu_rpc_once_answer(&o, key, 0, MU_SPAN_LIT("x"));
        assert_true(o.callers.count <= 3);
    }
    /* Alice's calls run: she is not forgotten. Bob was, and cannot prove that his call is new. */
    assert_int_equal(mu_rpc_once_begin(&o, alice, 0, 0, true, &key), MU_RPC_ONCE_JOIN);
    assert_int_equal(mu_rpc_once_begin(&o, bob, 1, 0, true, &key), MU_RPC_ONCE_REFUSE);
    for (size_t i = 0; i < 4; i++) {
        mu_rpc_once_withdraw(&o, keys[i]);
    }
    mu_rpc_once_fini(&o);
}

static void test_once_withdrawn_may_run_another_time(void **state)
{
    struct mu_rpc_once_key *key = NULL;

    (void)state;
    MAKE(o, );
    assert_int_equal(mu_rpc_once_begin(&o, alice, 1, 1, false, &key), MU_RPC_ONCE_RUN);
    mu_rpc_once_withdraw(&o, key);
    assert_int_equal(mu_rpc_once_begin(&o, alice, 1, 1, true, &key), MU_RPC_ONCE_RUN);
    mu_rpc_once_answer(&o, key, 0, MU_SPAN_LIT("x"));
    mu_rpc_once_fini(&o);
}

static void test_once_survives_failing_allocations(void **state)
{
    (void)state;
    for (long n = 0; n < 40; n++) {
        unsigned runs = 0;

        MAKE(o, );
        failheap_arm(n);
        for (int i = 0; i < 4; i++) {
            struct mu_rpc_once_key *key = NULL;
            enum mu_rpc_once_verdict v = mu_rpc_once_begin(&o, alice, 1, 1, i > 0, &key);

            if (v == MU_RPC_ONCE_RUN) {
                runs++;
                mu_rpc_once_answer(&o, key, 0, MU_SPAN_LIT("x"));
            }
        }
        failheap_disarm();
        assert_true(runs <= 1);
        mu_rpc_once_fini(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once_runs_joins_and_replays),
        cmocka_unit_test(test_once_forgets_what_is_below_the_floor_and_never_runs_it_again),
        cmocka_unit_test(test_once_keeps_a_running_call_whose_caller_lost_patience),
        cmocka_unit_test(test_once_gives_up_the_oldest_answers_over_its_bytes),
        cmocka_unit_test(test_once_bounds_keys_and_callers),
        cmocka_unit_test(test_once_withdrawn_may_run_another_time),
        cmocka_unit_test(test_once_survives_failing_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
