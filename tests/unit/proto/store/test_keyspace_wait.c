/* Waiting: who is woken by what, in which order, and what a wait costs. */
#include "keyspace_fixture.h"

#include <stdio.h>

static struct mu_ks_wait waits[4];

static int setup_waits(void **state)
{
    memset(waits, 0, sizeof(waits));
    return setup_keyspace(state);
}

/* Starts a wait for one key, or for two if the second is not NULL. Returns whether it is over. */
static bool wait_for(size_t slot, enum mu_ks_wait_kind kind, const char *key, const char *other)
{
    struct mu_span keys[] = {mu_span_str(key), mu_span_str(other == NULL ? "" : other)};
    bool ready;

    assert_int_equal(mu_ks_wait(&ks, &waits[slot], kind, keys, other == NULL ? 1 : 2, &ready), 0);
    assert_int_equal(mu_ks_wait_active(&waits[slot]), !ready);
    return ready;
}

static void assert_ready(size_t slot)
{
    assert_ptr_equal(mu_ks_next_ready(&ks), &waits[slot]);
    assert_false(mu_ks_wait_active(&waits[slot]));
}

static void assert_none_ready(void)
{
    assert_null(mu_ks_next_ready(&ks));
}

static void test_keyspace_wait_for_what_is_there_is_over_at_once(void **state)
{
    bool ready = false;

    (void)state;
    set("a", "");
    push("q", "x");
    assert_true(wait_for(0, MU_KS_WAIT_TORCH, "a", "q"));
    assert_true(wait_for(0, MU_KS_WAIT_ALL, "q", "a"));
    assert_int_equal(mu_ks_wait(&ks, &waits[0], MU_KS_WAIT_TORCH, NULL, 0, &ready), 0);
    assert_true(ready);
    assert_int_equal(ks.wait_count, 0);
    assert_none_ready();
}

static void test_keyspace_wait_ends_when_the_last_key_came(void **state)
{
    struct mu_span missing[2];

    (void)state;
    assert_false(wait_for(0, MU_KS_WAIT_TORCH, "a", "b"));
    assert_int_equal(ks.wait_count, 1);
    assert_int_equal(mu_ks_wait_missing(&waits[0], missing, 2), 2);
    set("b", "");
    assert_none_ready();
    assert_int_equal(mu_ks_wait_missing(&waits[0], missing, 2), 1);
    assert_span_text(missing[0], "a");
    assert_int_equal(mu_ks_wait_missing(&waits[0], NULL, 0), 1);
    set("a", "");
    assert_ready(0);
    assert_none_ready();
    assert_int_equal(ks.wait_count, 0);
    assert_int_equal(mu_ks_wait_missing(&waits[0], missing, 2), 0);
}

static void test_keyspace_wait_is_ended_by_every_verb_that_creates(void **state)
{
    struct mu_span k = MU_SPAN_LIT("k");

    (void)state;
    for (int verb = 0; verb < 6; verb++) {
        for (int kind = MU_KS_WAIT_TORCH; kind <= MU_KS_WAIT_ALL; kind++) {
            assert_false(wait_for(0, (enum mu_ks_wait_kind)kind, "k", NULL));
            switch (verb) {
            case 0:
                set("k", "v");
                break;
            case 1:
                (void)add("k", 1);
                break;
            case 2:
                (void)append("k", "v");
                break;
            case 3:
                assert_true(compare_set("k", "", "v", "v"));
                break;
            case 4:
                assert_int_equal(mu_ks_multi_set(&ks, &k, &k, 1, 0), 0);
                break;
            default:
                (void)push("k", "v");
                assert_int_equal(pop("k", "v"), 1);
                break;
            }
            assert_ready(0);
            (void)del("k");
        }
    }
    assert_int_equal(ks.memory_bytes, 0);
}

static void test_keyspace_wait_is_not_ended_by_a_compare_set_that_wrote_nothing(void **state)
{
    (void)state;
    assert_false(wait_for(0, MU_KS_WAIT_TORCH, "k", NULL));
    assert_false(compare_set("k", "x", "y", "x"));
    assert_false(del("k"));
    assert_none_ready();
    mu_ks_wait_cancel(&ks, &waits[0]);
}

/* Set b, delete b, set a: the wait for both is over, as in PyTorch. */
static void test_keyspace_wait_counts_a_key_that_came_and_went(void **state)
{
    (void)state;
    for (int kind = MU_KS_WAIT_TORCH; kind <= MU_KS_WAIT_ALL; kind++) {
        assert_false(wait_for(0, (enum mu_ks_wait_kind)kind, "a", "b"));
        set("b", "");
        assert_true(del("b"));
        set("a", "");
        assert_ready(0);
        assert_true(del("a"));
    }
}

static void test_keyspace_wait_counts_a_repeated_key_once(void **state)
{
    (void)state;
    assert_false(wait_for(0, MU_KS_WAIT_TORCH, "q", "q"));
    assert_int_equal(waits[0].missing, 1);
    push("q", "x");
    assert_ready(0);
}

static void test_keyspace_wait_wakes_in_the_order_of_arrival(void **state)
{
    (void)state;
    for (size_t i = 4; i-- > 0;) {
        assert_false(wait_for(i, MU_KS_WAIT_TORCH, "k", NULL));
    }
    set("k", "");
    for (size_t i = 4; i-- > 0;) {
        assert_ready(i);
    }
}

static void test_keyspace_push_ends_one_torch_wait_and_all_others(void **state)
{
    (void)state;
    assert_false(wait_for(0, MU_KS_WAIT_TORCH, "q", NULL));
    assert_false(wait_for(1, MU_KS_WAIT_TORCH, "q", NULL));
    assert_false(wait_for(2, MU_KS_WAIT_ALL, "q", NULL));
    push("q", "x");
    assert_ready(2);
    assert_ready(0);
    assert_none_ready();
    push("q", "y");
    assert_ready(1);
    assert_none_ready();
    assert_int_equal(mu_ks_queue_len(&ks, MU_SPAN_LIT("q")), 2);
}

/* A wait for more than the queue is counted down, but it is not about to pop. */
static void test_keyspace_push_passes_a_torch_wait_that_misses_more(void **state)
{
    (void)state;
    assert_false(wait_for(0, MU_KS_WAIT_TORCH, "q", "k"));
    assert_false(wait_for(1, MU_KS_WAIT_TORCH, "q", NULL));
    push("q", "x");
    assert_ready(1);
    assert_none_ready();
    assert_int_equal(waits[0].missing, 1);
    set("k", "");
    assert_ready(0);
}

static void test_keyspace_pop_waits_for_an_element_not_for_a_value(void **state)
{
    uint8_t *popped;
    size_t len;

    (void)state;
    assert_false(wait_for(0, MU_KS_WAIT_POP, "q", NULL));
    set("q", "value");
    assert_none_ready();
    assert_int_equal(push("q", "one"), 1);
    assert_ready(0);
    popped = mu_ks_wait_take_popped(&waits[0], &len);
    assert_span_text(mu_span(popped, len), "one");
    mu_free(popped);
    assert_int_equal(waits[0].len_before, 1);
    assert_int_equal(mu_ks_queue_len(&ks, MU_SPAN_LIT("q")), 0);
    push("q", "two");
    push("q", "three");
    assert_true(wait_for(0, MU_KS_WAIT_POP, "q", NULL));
    popped = mu_ks_wait_take_popped(&waits[0], &len);
    assert_span_text(mu_span(popped, len), "two");
    assert_int_equal(waits[0].len_before, 2);
    mu_free(popped);
}

static void test_keyspace_push_serves_pops_and_torch_waits_in_their_order(void **state)
{
    (void)state;
    assert_false(wait_for(0, MU_KS_WAIT_POP, "q", NULL));
    assert_false(wait_for(1, MU_KS_WAIT_TORCH, "q", NULL));
    assert_false(wait_for(2, MU_KS_WAIT_POP, "q", NULL));
    push("q", "1");
    assert_ready(0);
    assert_none_ready();
    push("q", "2");
    assert_ready(1);
    assert_none_ready();
    assert_int_equal(mu_ks_queue_len(&ks, MU_SPAN_LIT("q")), 1);
    /* The oldest element goes first, whoever pushed last. */
    push("q", "3");
    assert_ready(2);
    assert_int_equal(waits[2].len_before, 2);
    assert_memory_equal(waits[2].popped, "2", 1);
    assert_int_equal(pop("q", "3"), 1);
    mu_ks_wait_cancel(&ks, &waits[0]);
    mu_ks_wait_cancel(&ks, &waits[2]);
    assert_int_equal(ks.memory_bytes, 0);
}

static void test_keyspace_cancel_ends_a_wait_in_any_state(void **state)
{
    (void)state;
    mu_ks_wait_cancel(&ks, &waits[0]);
    assert_false(wait_for(0, MU_KS_WAIT_TORCH, "a", "b"));
    set("a", "");
    mu_ks_wait_cancel(&ks, &waits[0]);
    set("b", "");
    assert_none_ready();
    assert_true(del("a") && del("b"));
    assert_false(wait_for(0, MU_KS_WAIT_ALL, "a", NULL));
    assert_false(wait_for(1, MU_KS_WAIT_POP, "a", NULL));
    push("a", "lost");
    mu_ks_wait_cancel(&ks, &waits[1]);
    mu_ks_wait_cancel(&ks, &waits[0]);
    assert_none_ready();
    assert_false(mu_ks_has(&ks, MU_SPAN_LIT("a")));
    mu_ks_wait_cancel(&ks, &waits[0]);
    assert_int_equal(ks.memory_bytes, 0);
    assert_int_equal(ks.wait_count, 0);
}

/* Deleting a key that others wait for keeps their place, and a wait keeps no value alive. */
static void test_keyspace_wait_survives_a_delete_of_its_key(void **state)
{
    (void)state;
    set("k", "");
    assert_false(wait_for(0, MU_KS_WAIT_POP, "k", NULL));
    assert_true(del("k"));
    assert_false(mu_ks_has(&ks, MU_SPAN_LIT("k")));
    assert_int_equal(ks.key_count, 0);
    push("k", "x");
    assert_ready(0);
    mu_ks_wait_cancel(&ks, &waits[0]);
}

static void test_keyspace_wait_floods_stop_at_the_memory_limit(void **state)
{
    static struct mu_span keys[1000];
    static char names[1000][8];
    struct mu_ks_config config = fixture_config();
    bool ready;

    (void)state;
    mu_ks_fini(&ks);
    config.memory_bytes_max = 20000;
    config.keys_max = 1000;
    assert_int_equal(mu_ks_init(&ks, &config), 0);
    for (size_t i = 0; i < 1000; i++) {
        keys[i] = mu_span(names[i], (size_t)snprintf(names[i], sizeof(names[i]), "%zu", i));
    }
    assert_int_equal(mu_ks_wait(&ks, &waits[0], MU_KS_WAIT_TORCH, keys, 1000, &ready),
                     MUSTER_EFULL);
    assert_int_equal(ks.memory_bytes, 0);
    assert_int_equal(ks.wait_count, 0);
    assert_int_equal(ks.entries.count, 0);
    assert_false(mu_ks_wait_active(&waits[0]));
    assert_int_equal(mu_ks_wait(&ks, &waits[0], MU_KS_WAIT_TORCH, keys, 20, &ready), 0);
    assert_true(ks.memory_bytes > 20 * sizeof(struct mu_ks_reg));
    mu_ks_wait_cancel(&ks, &waits[0]);
    assert_int_equal(ks.memory_bytes, 0);
    ks.config.keys_max = 5;
    assert_int_equal(mu_ks_wait(&ks, &waits[0], MU_KS_WAIT_TORCH, keys, 6, &ready), MUSTER_ELIMIT);
}

int main(void)
{
#define WAIT_TEST(name) cmocka_unit_test_setup_teardown(name, setup_waits, teardown_keyspace)
    const struct CMUnitTest tests[] = {
        WAIT_TEST(test_keyspace_wait_for_what_is_there_is_over_at_once),
        WAIT_TEST(test_keyspace_wait_ends_when_the_last_key_came),
        WAIT_TEST(test_keyspace_wait_is_ended_by_every_verb_that_creates),
        WAIT_TEST(test_keyspace_wait_is_not_ended_by_a_compare_set_that_wrote_nothing),
        WAIT_TEST(test_keyspace_wait_counts_a_key_that_came_and_went),
        WAIT_TEST(test_keyspace_wait_counts_a_repeated_key_once),
        WAIT_TEST(test_keyspace_wait_wakes_in_the_order_of_arrival),
        WAIT_TEST(test_keyspace_push_ends_one_torch_wait_and_all_others),
        WAIT_TEST(test_keyspace_push_passes_a_torch_wait_that_misses_more),
        WAIT_TEST(test_keyspace_pop_waits_for_an_element_not_for_a_value),
        WAIT_TEST(test_keyspace_push_serves_pops_and_torch_waits_in_their_order),
        WAIT_TEST(test_keyspace_cancel_ends_a_wait_in_any_state),
        WAIT_TEST(test_keyspace_wait_survives_a_delete_of_its_key),
        WAIT_TEST(test_keyspace_wait_floods_stop_at_the_memory_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
