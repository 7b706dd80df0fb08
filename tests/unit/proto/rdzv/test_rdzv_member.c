/*
 * A member of a native run, whatever happens to it: all short orders of events from each state, and
 * long ones from a seed. member_world.h says what must hold.
 */
#include "unit.h"

#include "core/prng.h"
#include "member_world.h"

#define DEPTH 4
#define SEEDS 4000
#define STEPS 120

static void begin(struct member_world *w, uint64_t join_timeout_ms)
{
    member_world_init(w, join_timeout_ms);
    w->m.link.linked = true;
}

static void begin_joining(struct member_world *w)
{
    begin(w, MEMBER_JOIN_MS);
    member_world_join(w, false);
    member_world_say(w, 0);
    member_world_enter(w, MU_RDZV_PLACE_GATHERING);
    assert_int_equal(w->m.call, MU_MEMBER_CALL_ENTERED);
}

static void begin_in(struct member_world *w)
{
    begin_joining(w);
    member_world_assign(w, 1);
    assert_int_equal(w->user, MU_MEMBER_IN);
}

static void begin_between(struct member_world *w)
{
    begin_in(w);
    member_world_end(w, 1);
    member_world_assign(w, 2);
    assert_int_equal(w->user, MU_MEMBER_BETWEEN);
    assert_int_equal(w->m.held, MU_MEMBER_HELD_BACK);
}

static void begin_spare(struct member_world *w)
{
    begin_joining(w);
    member_world_enter(w, MU_RDZV_PLACE_SPARE);
}

static void begin_cut(struct member_world *w)
{
    begin_in(w);
    w->m.link.linked = false;
    member_world_sleep(w, mu_mono_add_ms(w->now, 2500));
    assert_int_equal(w->user, MU_MEMBER_BETWEEN);
}

/* Until when its workers may run if its own process does not. */
static void test_who_is_counted_on_is_so_for_a_while(void **state)
{
    struct member_world w;
    (void)state;

    begin(&w, MEMBER_JOIN_MS);
    assert_int_equal(mu_member_counted_until(&w.m, w.now).ns, MU_MONO_NEVER.ns);
    begin_in(&w);
    assert_int_equal(mu_member_counted_until(&w.m, w.now).ns,
                     mu_mono_add_ms(member_heard(&w), MEMBER_KEPT_MS * 29 / 30).ns);
    w.now = mu_mono_add_ms(w.now, 500);
    w.m.link.confirmed = w.now;
    assert_int_equal(mu_member_counted_until(&w.m, w.now).ns,
                     mu_mono_add_ms(w.now, MEMBER_KEPT_MS * 29 / 30).ns);
    w.m.link.hosting = true;
    assert_int_equal(mu_member_counted_until(&w.m, w.now).ns, MU_MONO_NEVER.ns);
    w.m.link.hosting = false;
    member_world_leave(&w);
    assert_int_equal(mu_member_counted_until(&w.m, w.now).ns, MU_MONO_NEVER.ns);
}

static size_t tried;

static void try_all(const struct member_world *from, unsigned depth)
{
    for (unsigned kind = 0; kind < MEMBER_EVENTS; kind++) {
        struct member_world w = *from;

        /* The number makes each kind of reply, reason and time come up somewhere. */
        member_world_event(&w, kind, (uint32_t)(tried++ * 37));
        if (depth > 1) {
            try_all(&w, depth - 1);
        } else {
            member_world_finish(&w);
        }
    }
}

static void test_all_short_orders_of_events_hold_from_each_state(void **state)
{
    static void (*const begins[])(struct member_world *) = {begin_joining, begin_in, begin_between,
                                                            begin_spare, begin_cut};
    struct member_world w;

    (void)state;
    begin(&w, MEMBER_JOIN_MS);
    try_all(&w, DEPTH);
    for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++) {
        begins[i](&w);
        try_all(&w, DEPTH - 1);
    }
}

static void test_long_orders_of_events_hold(void **state)
{
    unsigned told[MU_MEMBER_CLOSE_FAILED + 1] = {0};

    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct mu_prng prng;
        struct member_world w;

        mu_prng_seed(&prng, seed);
        begin(&w, seed % 4 == 0 ? 0 : MEMBER_JOIN_MS);
        w.m.link.hosting = seed % 16 == 1;
        for (unsigned i = 0; i < STEPS; i++) {
            /* The ends of everything come now and then only. */
            unsigned kind = (unsigned)mu_prng_below(&prng, MEMBER_EVENTS);
            bool rare = kind == 3 || (kind >= 14 && kind <= 19);

            if (!rare || mu_prng_below(&prng, 8) == 0) {
                member_world_event(&w, kind, (uint32_t)mu_prng_u64(&prng));
            }
        }
        member_world_finish(&w);
        for (unsigned i = 0; i <= MU_MEMBER_CLOSE_FAILED; i++) {
            told[i] += w.told[i];
        }
    }
    for (unsigned i = MU_MEMBER_CANCEL; i <= MU_MEMBER_CLOSE_FAILED; i++) {
        assert_in_range(told[i], 100, UINT32_MAX); /* Nothing is true of nothing. */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_is_counted_on_is_so_for_a_while),
        cmocka_unit_test(test_all_short_orders_of_events_hold_from_each_state),
        cmocka_unit_test(test_long_orders_of_events_hold),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
