/*
 * All interleavings of three nodes that join, leave, are lost and fail, of closing, of the passing
 * of time and of notices that are pulled or not. From each state that was reached every step is
 * tried; states are told apart by all that can matter for what comes, with times and rounds taken
 * relative to now, so that there is an end to them. After each step the shape of the room and what
 * the nodes believe must be right; from each state, when nothing disturbs any more and enough nodes
 * are in, a round must form within a last call and an upscale delay.
 */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/map.h"
#include "room_watch.h"

#define NODES       3
#define STATES_MAX  60000
#define BUCKETS_MAX 64
#define QUARTER_MS  250

enum step_kind {
    JOIN,
    LEAVE,
    LOST,
    FAIL,
    KINDS_PER_NODE,
};

enum {
    CLOSE = KINDS_PER_NODE * NODES,
    WAIT_QUARTER,
    WAIT_DEADLINE,
    PULL_ONE,
    STEPS,
};

/* All that a step changes. It is copied as a whole and back to its place: pointers stay good. */
struct world {
    struct mu_room room;
    struct mu_room_member members[NODES];
    struct room_view views[NODES];
    mu_mono_t now;
};

static struct world w;
static struct mu_room_config config;
static uint32_t targets[NODES];
static bool pulls_all; /* after each step, as a server does */

/* What can matter for the future. */
struct key {
    uint8_t state, waiters_told, restarts;
    uint8_t lost_place[NODES]; /* by node: the rank that it left behind, plus 1 */
    uint64_t last_call, call_end, upscale, waiters_next;
    struct {
        uint8_t state, rank, has_rank, told, notices, reason, was, place, ended_place, news_place;
        uint8_t view_running, view_age, ended_age, ended_who;
    } members[NODES];
};

static struct {
    struct mu_map_node node;
    struct key key;
    uint32_t parent;
    uint8_t step;
    uint8_t depth;
} states[STATES_MAX];

static uint32_t state_count;
static struct mu_map seen;

/* --- one step -------------------------------------------------------------------------------- */

static bool pull_one(void)
{
    struct mu_room_member *m;
    struct mu_room_notice n;

    if (!mu_room_next_notice(&w.room, &m, &n)) {
        return false;
    }
    room_watch_notice(w.views, NODES, m, &n);
    return true;
}

static bool do_node_step(enum step_kind kind, size_t i)
{
    struct mu_room_member *m = &w.members[i];
    struct mu_errmsg msg;

    switch (kind) {
    case JOIN:
        if (m->state != MU_ROOM_OUT || m->notices != 0) {
            return false;
        }
        return mu_room_join(&w.room, w.now, m, config.nodes_min, config.nodes_max, &msg) == 0;
    case LEAVE:
    case LOST:
        if (m->state == MU_ROOM_OUT && m->notices == 0) {
            return false;
        }
        room_watch_gone(&w.views[i]);
        (kind == LEAVE ? mu_room_leave : mu_room_lost)(&w.room, w.now, m);
        assert_int_equal(m->notices, 0);
        return true;
    case FAIL:
        if (!w.views[i].running) {
            return false;
        }
        /* It may be wrong about the round that runs. */
        mu_room_fail(&w.room, w.now, m, w.views[i].round);
        return true;
    case KINDS_PER_NODE:
        break;
    }
    return false;
}

static bool pass_until(mu_mono_t at)
{
    if (at.ns == MU_MONO_NEVER.ns) {
        return false;
    }
    w.now = at;
    mu_room_tick(&w.room, w.now);
    return true;
}

/* False if there was nothing to do in this state. */
static bool do_step(unsigned step)
{
    switch (step) {
    case CLOSE:
        if (w.room.state == MU_ROOM_IS_CLOSED) {
            return false;
        }
        mu_room_close(&w.room, w.now);
        return true;
    case WAIT_QUARTER:
        return mu_room_deadline(&w.room).ns != MU_MONO_NEVER.ns &&
               pass_until(mu_mono_add_ms(w.now, QUARTER_MS));
    case WAIT_DEADLINE:
        return pass_until(mu_room_deadline(&w.room));
    case PULL_ONE:
        return pull_one();
    default:
        return do_node_step(step / NODES, step % NODES);
    }
}

static bool do_checked_step(unsigned step)
{
    uint64_t round = w.room.round;

    if (!do_step(step)) {
        return false;
    }
    room_watch_shape(&w.room, w.now);
    assert_true(w.room.round >= round);
    if (pulls_all) {
        while (pull_one()) {
        }
    }
    if (mu_list_empty(&w.room.ended) && mu_list_empty(&w.room.news)) {
        room_watch_agreed(&w.room, w.views, NODES);
    }
    return true;
}

/* --- states ---------------------------------------------------------------------------------- */

static uint64_t relative(mu_mono_t at)
{
    return at.ns == MU_MONO_NEVER.ns ? UINT64_MAX : at.ns <= w.now.ns ? 0 : at.ns - w.now.ns;
}

/* A round runs, is the last one that ended, or is older: more is not asked of it. */
static uint8_t age_of(uint64_t round)
{
    uint64_t age = w.room.round - round;

    return age < 2 ? (uint8_t)age : 2;
}

static uint8_t place_in(const struct mu_list *head, const struct mu_list *node)
{
    uint8_t place = 1;

    MU_LIST_FOREACH (it, head) {
        if (it == node) {
            return place;
        }
        place++;
    }
    return 0;
}

static void describe(struct key *key)
{
    memset(key, 0, sizeof(*key));
    key->state = (uint8_t)w.room.state;
    if (w.room.state == MU_ROOM_IS_RUNNING) {
        key->waiters_told = (uint8_t)w.room.waiters_told;
        key->waiters_next = relative(w.room.waiters_next);
    }
    key->restarts = config.restarts_max == UINT32_MAX ? 0 : (uint8_t)w.room.restarts;
    key->last_call = relative(w.room.last_call);
    if (w.room.last_call.ns != MU_MONO_NEVER.ns) {
        key->call_end = relative(w.room.call_end);
    }
    key->upscale = relative(w.room.upscale);
    for (uint32_t k = 0; k < w.room.place_count; k++) {
        for (size_t i = 0; i < NODES; i++) {
            if (strcmp(w.room.places[k].name, w.members[i].name) == 0) {
                key->lost_place[i] = (uint8_t)(w.room.places[k].rank + 1);
            }
        }
    }
    for (size_t i = 0; i < NODES; i++) {
        const struct mu_room_member *m = &w.members[i];

        key->members[i].state = (uint8_t)m->state;
        key->members[i].notices = (uint8_t)m->notices;
        if (m->state != MU_ROOM_OUT) {
            key->members[i].has_rank = m->has_rank;
            key->members[i].rank = m->has_rank ? (uint8_t)m->rank : 0;
            key->members[i].told = m->told;
            key->members[i].place = place_in(&w.room.in[m->state].members, &m->link);
        }
        if (m->notices & 1u << MU_ROOM_ENDED) {
            key->members[i].reason = (uint8_t)m->reason;
            key->members[i].ended_who = (uint8_t)m->who_rank;
            key->members[i].ended_age = age_of(m->ended_round);
            key->members[i].ended_place = place_in(&w.room.ended, &m->ended);
        }
        if (m->notices & ~(1u << MU_ROOM_ENDED)) {
            key->members[i].was = (uint8_t)m->was;
            key->members[i].news_place = place_in(&w.room.news, &m->news);
        }
        key->members[i].view_running = w.views[i].running;
        key->members[i].view_age = w.views[i].running ? age_of(w.views[i].round) : 0;
    }
}

static void note_state(uint32_t parent, unsigned step)
{
    struct key key;

    describe(&key);
    if (mu_map_find(&seen, mu_span(&key, sizeof(key))) != NULL) {
        return;
    }
    assert_true(state_count < STATES_MAX);
    states[state_count].key = key;
    states[state_count].parent = parent;
    states[state_count].step = (uint8_t)step;
    states[state_count].depth = state_count == 0 ? 0 : (uint8_t)(states[parent].depth + 1);
    assert_int_equal(mu_map_insert(&seen, &states[state_count].node,
                                   mu_span(&states[state_count].key, sizeof(key))),
                     0);
    state_count++;
}

static void start(void)
{
    memset(&w, 0, sizeof(w));
    w.now = (mu_mono_t){MU_NS_PER_S};
    for (size_t i = 0; i < NODES; i++) {
        (void)snprintf(w.members[i].name, sizeof(w.members[i].name), "n%zu", i);
        w.members[i].owner = (void *)(uintptr_t)i;
        w.members[i].target = targets[i];
    }
    assert_int_equal(mu_room_init(&w.room, &config, 1), 0);
}

static void stop(void)
{
    for (size_t i = 0; i < NODES; i++) {
        mu_room_leave(&w.room, w.now, &w.members[i]);
    }
    mu_room_fini(&w.room);
}

/* Makes the world what it was when the state was found. */
static void replay(uint32_t state)
{
    uint8_t path[256];
    size_t len = states[state].depth;

    for (size_t i = len; i > 0; i--) {
        path[i - 1] = states[state].step;
        state = states[state].parent;
    }
    start();
    for (size_t i = 0; i < len; i++) {
        assert_true(do_checked_step(path[i]));
    }
}

/* --- all of them ----------------------------------------------------------------------------- */

/* Nobody comes or goes any more: who is in runs, as far as there is room, soon enough. */
static void check_liveness(void)
{
    mu_mono_t end = mu_mono_add_ms(w.now, config.last_call_ms + config.upscale_delay_ms);

    if (w.room.names.count < config.nodes_min) {
        return;
    }
    while (!mu_mono_before(end, mu_room_deadline(&w.room))) {
        assert_true(do_checked_step(WAIT_DEADLINE));
    }
    while (pull_one()) {
    }
    room_watch_agreed(&w.room, w.views, NODES);
    assert_int_equal(w.room.state, MU_ROOM_IS_RUNNING);
    assert_int_equal(w.room.in[MU_ROOM_WAITING].count, 0);
}

/* Tries every step in every state that is reached in fewer than `depth` steps. */
static void explore(unsigned depth)
{
    static struct world saved;
    struct mu_map_node *buckets[BUCKETS_MAX];

    memset(states, 0, sizeof(states));
    state_count = 0;
    mu_map_init(&seen, 1);
    start();
    note_state(0, 0);
    stop();
    for (uint32_t s = 0; s < state_count; s++) {
        replay(s);
        saved = w;
        assert_true(w.room.names.bucket_count <= BUCKETS_MAX && w.room.names.old == NULL);
        if (w.room.names.bucket_count != 0) {
            memcpy(buckets, w.room.names.buckets, w.room.names.bucket_count * sizeof(*buckets));
        }
        for (unsigned step = 0; step <= STEPS; step++) {
            if (step == STEPS) {
                check_liveness();
            } else if (states[s].depth < depth && do_checked_step(step)) {
                note_state(s, step);
            }
            /* The first join brings the table of names; an empty one stands for none. */
            if (saved.room.names.bucket_count == 0) {
                mu_map_fini(&w.room.names);
            } else {
                memcpy(saved.room.names.buckets, buckets,
                       saved.room.names.bucket_count * sizeof(*buckets));
            }
            w = saved;
        }
        stop();
    }
    mu_map_fini(&seen);
}

static void set_up(uint32_t min, uint32_t max, uint32_t restarts_max)
{
    config = (struct mu_room_config){
        .nodes_min = min,
        .nodes_max = max,
        .last_call_ms = 1000,
        .upscale_delay_ms = 500,
        .restarts_max = restarts_max,
        .members_max = NODES,
        .seed = 1,
    };
    memset(targets, 0, sizeof(targets));
}

static uint32_t deepest(void)
{
    return states[state_count - 1].depth;
}

/* As a server drives it: there is an end to what can happen, and all of it is tried. */
static void test_room_every_interleaving_of_three_nodes_is_right(void **state)
{
    (void)state;
    pulls_all = true;
    for (uint32_t min = 1; min <= NODES; min++) {
        for (uint32_t max = min; max <= NODES; max++) {
            set_up(min, max, UINT32_MAX);
            explore(200);
            print_message("%u to %u nodes: %u states, %u steps deep\n", min, max, state_count,
                          deepest());
            assert_true(deepest() < 200);
        }
    }
}

static void test_room_every_interleaving_with_targets_and_a_budget_is_right(void **state)
{
    (void)state;
    pulls_all = true;
    set_up(1, 3, 1);
    targets[0] = 2;
    targets[1] = 3;
    explore(200);
    print_message("targets, budget 1: %u states, %u steps deep\n", state_count, deepest());
    assert_true(deepest() < 200);
}

/* Notices are pulled one by one, at any time: coalesced, they must still tell a true story. */
static void test_room_every_interleaving_with_slow_pulling_is_right(void **state)
{
    (void)state;
    pulls_all = false;
    for (uint32_t min = 1; min <= NODES; min++) {
        for (uint32_t max = min; max <= NODES; max++) {
            set_up(min, max, UINT32_MAX);
            explore(200);
            print_message("%u to %u nodes, slow pulling: %u states, %u steps deep\n", min, max,
                          state_count, deepest());
            assert_true(deepest() < 200);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room_every_interleaving_of_three_nodes_is_right),
        cmocka_unit_test(test_room_every_interleaving_with_targets_and_a_budget_is_right),
        cmocka_unit_test(test_room_every_interleaving_with_slow_pulling_is_right),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
