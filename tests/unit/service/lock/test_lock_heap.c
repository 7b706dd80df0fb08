/*
 * The lock without memory: each allocation that a process makes while another is let in, or sent
 * away, fails once, alone or with all behind it; those of OpenSSL as well.
 *
 * Goal: nobody gets in by it who has no credential, nothing is left behind, and the next one is
 * served. Method: the sweep below, over a listener and one that dials it.
 */
#include <stdlib.h>

#include <openssl/crypto.h>

#include <muster/log.h>

#include "lock_rig.h"

static long left = -1; /* allocations until one fails; below zero: none does */
static bool only_one;  /* or all behind it as well */
static bool fired;

/* What the simulator needs for itself does not fail: only what a process asks for. */
static bool may_have(size_t size)
{
    struct mu_sim_heap *heap = mu_sim_outside();

    (void)size;
    mu_sim_inside(heap);
    if (heap == NULL || left < 0 || left-- > 0) {
        return true;
    }
    left = only_one ? -1 : 0;
    fired = true;
    return false;
}

static void *get(size_t size, const char *file, int line)
{
    (void)file;
    (void)line;
    return may_have(size) ? malloc(size) : NULL;
}

static void *get_again(void *ptr, size_t size, const char *file, int line)
{
    (void)file;
    (void)line;
    return may_have(size) ? realloc(ptr, size) : NULL;
}

static void give(void *ptr, const char *file, int line)
{
    (void)file;
    (void)line;
    free(ptr);
}

static void dial(void *arg)
{
    struct node *n = arg;
    struct mu_addr addr = server_addr();

    n->conn = (struct mu_conn){.on = &events};
    n->open = false;
    n->live = mu_env_dial(n->env, &n->conn, &addr) == 0;
}

static void greet(void *arg)
{
    struct node *n = arg;
    size_t taken = 0;

    mu_env_send(n->env, &n->conn, MU_SPAN_LIT("hello"), &taken);
}

/* One that dials is let in, or not; whether an allocation failed. */
static bool tell(struct world *w, long nth, bool alone)
{
    struct node *n = &w->client;

    fired = false;
    only_one = alone;
    left = nth;
    mu_sim_call(n->proc, dial, n);
    (void)mu_sim_run_until(w->sim, PATIENCE, is_settled, n);
    if (n->open && n->live) {
        mu_sim_call(n->proc, greet, n);
        (void)mu_sim_run_until(w->sim, PATIENCE, is_over, n);
    }
    left = -1;
    return fired;
}

static void sweep(const char *token, const char *their_token, long step)
{
    long told = 0;

    for (int alone = 0; alone < 2; alone++) {
        for (long nth = -1;; nth += step, told++) {
            bool right = their_token != NULL && strcmp(token, their_token) == 0;
            struct world w;
            bool some;

            world_init(&w, STRANGER, token, their_token);
            some = tell(&w, nth, alone != 0);
            assert_true(right || w.server.accepted == 0);
            assert_true(w.server.got.len == 0 || right);
            if (right && some) { /* The next one is served. */
                if (w.client.live) {
                    mu_env_close(w.client.env, &w.client.conn, true);
                }
                mu_sim_run_for(w.sim, PATIENCE);
                assert_false(w.client.live || w.server.live);
                mu_buf_reset(&w.client.got);
                say(&w, "again");
                assert_span_text(mu_buf_span(&w.client.got), "again");
            } else if (right) {
                assert_span_text(mu_buf_span(&w.client.got), "hello");
            }
            world_fini(&w);
            if (!some && nth >= 0) {
                break;
            }
        }
    }
    assert_true(told > 4);
}

static void test_lock_without_memory_serves_the_next_one(void **state)
{
    (void)state;
    sweep(MY_TOKEN, MY_TOKEN, 2);
}

static void test_lock_without_memory_lets_nobody_in(void **state)
{
    (void)state;
    sweep(MY_TOKEN, NOT_IT, 2);
    sweep(MY_TOKEN, NULL, 1);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lock_without_memory_serves_the_next_one),
        cmocka_unit_test(test_lock_without_memory_lets_nobody_in),
    };

    if (CRYPTO_set_mem_functions(get, get_again, give) != 1) {
        return 1;
    }
    mu_alloc_hook = may_have;
    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
