/*
 * What must hold for a room at any time, whatever was done to it: its own shape
 * (room_watch_shape()), and what its members believe after what they were told
 * (room_watch_notice()). A view belongs to a member; its index is the member's `owner`.
 */
#ifndef MU_ROOM_WATCH_H
#define MU_ROOM_WATCH_H

#include <stdlib.h>

#include "unit.h"

#include "proto/rdzv/room.h"

/* What a node believes. */
struct room_view {
    bool running; /* it was told a rank, and not that the round ended */
    uint64_t round;
    uint32_t rank;
    uint32_t world;
    uint64_t ended_round; /* the last round that it was told the end of, plus 1 */
};

static inline uint32_t room_count(const struct mu_room *room, enum mu_room_member_state state)
{
    uint32_t count = 0;

    MU_LIST_FOREACH (it, &room->in[state].members) {
        const struct mu_room_member *m = MU_CONTAINER_OF(it, struct mu_room_member, link);

        assert_int_equal(m->state, state);
        /* One world: whoever runs has the rank of its place, so ranks are unique, without gaps. */
        if (state == MU_ROOM_RUNNING) {
            assert_true(m->has_rank);
            assert_int_equal(m->rank, count);
        }
        if (state == MU_ROOM_WAITING || state == MU_ROOM_SPARE) {
            assert_false(m->has_rank);
        }
        if (m->told) {
            assert_int_equal(state, MU_ROOM_RUNNING);
        }
        count++;
    }
    assert_int_equal(count, room->in[state].count);
    return count;
}

static inline void room_watch_queues(const struct mu_room *room)
{
    MU_LIST_FOREACH (it, &room->ended) {
        const struct mu_room_member *m = MU_CONTAINER_OF(it, struct mu_room_member, ended);

        assert_true(m->notices & 1u << MU_ROOM_ENDED);
        assert_true(m->state != MU_ROOM_OUT && m->ended_round < room->round);
    }
    MU_LIST_FOREACH (it, &room->news) {
        const struct mu_room_member *m = MU_CONTAINER_OF(it, struct mu_room_member, news);
        uint32_t last = 1u << MU_ROOM_CLOSED | 1u << MU_ROOM_FAILED;

        assert_true((m->notices & ~(1u << MU_ROOM_ENDED)) != 0);
        assert_int_equal(m->state == MU_ROOM_OUT, (m->notices & last) != 0);
        if (m->state != MU_ROOM_OUT) {
            assert_int_equal(m->state, MU_ROOM_RUNNING);
            assert_int_equal(m->told, (m->notices & 1u << MU_ROOM_ASSIGNED) == 0);
        }
    }
}

static inline void room_watch_shape(const struct mu_room *room, mu_mono_t now)
{
    const struct mu_room_config *config = &room->config;
    uint32_t gathering = room_count(room, MU_ROOM_GATHERING);
    uint32_t running = room_count(room, MU_ROOM_RUNNING);
    uint32_t waiting = room_count(room, MU_ROOM_WAITING);
    uint32_t spare = room_count(room, MU_ROOM_SPARE);
    mu_mono_t deadline = mu_room_deadline(room);

    assert_int_equal(gathering + running + waiting + spare, room->names.count);
    switch (room->state) {
    case MU_ROOM_IS_GATHERING:
        assert_int_equal(running + waiting, 0);
        /* Only a room that is held, or undecided, can be full and not run. */
        assert_true(gathering < config->nodes_max || room->undecided ||
                    !mu_mono_reached(room->hold, now));
        assert_true(spare == 0 || gathering == config->nodes_max);
        assert_int_equal(gathering >= config->nodes_min || room->undecided,
                         deadline.ns != MU_MONO_NEVER.ns);
        break;
    case MU_ROOM_IS_RUNNING:
        assert_int_equal(gathering, 0);
        assert_in_range(running, config->nodes_min, config->nodes_max);
        assert_true(running + waiting <= config->nodes_max);
        assert_true(spare == 0 || running + waiting == config->nodes_max);
        if (waiting != 0 && config->upscale_delay_ms != UINT64_MAX) {
            assert_true(deadline.ns != MU_MONO_NEVER.ns);
        }
        break;
    case MU_ROOM_IS_CLOSED:
    case MU_ROOM_IS_FAILED:
        assert_int_equal(room->names.count, 0);
        assert_int_equal(deadline.ns, MU_MONO_NEVER.ns);
        break;
    }
    /* What is due was done. */
    assert_false(mu_mono_reached(deadline, now));
    room_watch_queues(room);
}

/** A node is out by its own doing: it believes nothing any more. */
static inline void room_watch_gone(struct room_view *view)
{
    *view = (struct room_view){0};
}

static inline void room_watch_assigned(struct room_view *views, size_t count,
                                       const struct mu_room_notice *n, struct room_view *view)
{
    /* A rank in a new round only when the end of the old one was told, to it and to all others. */
    assert_false(view->running);
    assert_true(n->round >= view->ended_round);
    assert_true(n->rank < n->world);
    for (size_t i = 0; i < count; i++) {
        if (views[i].running) {
            assert_int_equal(views[i].round, n->round);
            assert_int_equal(views[i].world, n->world);
            assert_int_not_equal(views[i].rank, n->rank);
        }
    }
    view->running = true;
    view->round = n->round;
    view->rank = n->rank;
    view->world = n->world;
}

static inline void room_watch_notice(struct room_view *views, size_t count,
                                     const struct mu_room_member *m, const struct mu_room_notice *n)
{
    struct room_view *view = &views[(uintptr_t)m->owner];

    switch (n->kind) {
    case MU_ROOM_ASSIGNED:
        room_watch_assigned(views, count, n, view);
        break;
    case MU_ROOM_ENDED:
        assert_true(view->running);
        assert_int_equal(n->round, view->round);
        assert_in_range(n->reason, MU_ROOM_END_LOST, MU_ROOM_END_FAILED);
        view->running = false;
        view->ended_round = n->round + 1;
        break;
    case MU_ROOM_WAITERS:
        assert_true(view->running);
        assert_int_equal(n->round, view->round);
        break;
    case MU_ROOM_CLOSED:
    case MU_ROOM_FAILED:
        assert_int_not_equal(n->was, MU_ROOM_OUT);
        *view = (struct room_view){0};
        break;
    case MU_ROOM_EXCLUDED:
        *view = (struct room_view){0};
        break;
    }
}

/** Nothing is pending: everybody believes exactly what is. */
static inline void room_watch_agreed(const struct mu_room *room, const struct room_view *views,
                                     size_t count)
{
    uint32_t believers = 0;

    MU_LIST_FOREACH (it, &room->in[MU_ROOM_RUNNING].members) {
        const struct mu_room_member *m = MU_CONTAINER_OF(it, struct mu_room_member, link);
        const struct room_view *view = &views[(uintptr_t)m->owner];

        assert_true(view->running);
        assert_int_equal(view->round, room->round);
        assert_int_equal(view->rank, m->rank);
        assert_int_equal(view->world, room->in[MU_ROOM_RUNNING].count);
    }
    for (size_t i = 0; i < count; i++) {
        believers += views[i].running;
    }
    assert_int_equal(believers, room->in[MU_ROOM_RUNNING].count);
}

#endif
