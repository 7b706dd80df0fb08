/*
 * A room with a crowd of members around it and a diary: every notice that is pulled becomes a line
 * such as "a assigned 0: 1/2" or "b ended 0: lost c", so that a test states what is told as text.
 */
#ifndef MU_ROOM_FIXTURE_H
#define MU_ROOM_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>

#include "unit.h"

#include "proto/rdzv/room.h"

#define CROWD     16
#define DIARY_CAP 8192

struct room_fixture {
    struct mu_room room;
    struct mu_room_config config;
    struct mu_room_member members[CROWD]; /* named as they are first used */
    size_t used;
    mu_mono_t now;
    char diary[DIARY_CAP];
    struct mu_errmsg msg;
};

static inline struct mu_room_config room_config(uint32_t min, uint32_t max)
{
    return (struct mu_room_config){
        .nodes_min = min,
        .nodes_max = max,
        .last_call_ms = 1000,
        .upscale_delay_ms = 500,
        .restarts_max = UINT32_MAX,
        .members_max = 65536,
        .seed = 1,
    };
}

/** `config` may be changed between this and room_open(). */
static inline void room_prepare(struct room_fixture *f, uint32_t min, uint32_t max)
{
    *f = (struct room_fixture){.config = room_config(min, max), .now = {MU_NS_PER_S}};
}

static inline void room_open(struct room_fixture *f)
{
    assert_int_equal(mu_room_init(&f->room, &f->config, 7), 0);
}

static inline void room_setup(struct room_fixture *f, uint32_t min, uint32_t max)
{
    room_prepare(f, min, max);
    room_open(f);
}

/** The member of that name, in or out. */
static inline struct mu_room_member *room_member(struct room_fixture *f, const char *name)
{
    struct mu_room_member *m;

    for (size_t i = 0; i < f->used; i++) {
        if (strcmp(f->members[i].name, name) == 0) {
            return &f->members[i];
        }
    }
    assert_true(f->used < CROWD);
    m = &f->members[f->used++];
    (void)snprintf(m->name, sizeof(m->name), "%s", name);
    return m;
}

static inline int room_try_join(struct room_fixture *f, const char *name)
{
    return mu_room_join(&f->room, f->now, room_member(f, name), f->config.nodes_min,
                        f->config.nodes_max, &f->msg);
}

static inline void room_join(struct room_fixture *f, const char *name)
{
    assert_int_equal(room_try_join(f, name), 0);
}

static inline void room_join_target(struct room_fixture *f, const char *name, uint32_t target)
{
    room_member(f, name)->target = target;
    room_join(f, name);
}

static inline void room_leave(struct room_fixture *f, const char *name)
{
    mu_room_leave(&f->room, f->now, room_member(f, name));
}

static inline void room_lose(struct room_fixture *f, const char *name)
{
    mu_room_lost(&f->room, f->now, room_member(f, name));
}

/** Time passes, and the room is told. */
static inline void room_pass(struct room_fixture *f, uint64_t ms)
{
    f->now = mu_mono_add_ms(f->now, ms);
    mu_room_tick(&f->room, f->now);
}

static inline void room_write_notice(char *line, size_t cap, const struct mu_room_member *m,
                                     const struct mu_room_notice *n)
{
    static const char *const reasons[] = {"", "lost", "left", "upscale", "failed"};
    unsigned long long round = n->round;

    switch (n->kind) {
    case MU_ROOM_ASSIGNED:
        (void)snprintf(line, cap, "%s assigned %llu: %u/%u\n", m->name, round, n->rank, n->world);
        break;
    case MU_ROOM_ENDED:
        (void)snprintf(line, cap, "%s ended %llu: %s%s%s\n", m->name, round, reasons[n->reason],
                       n->who == NULL ? "" : " ", n->who == NULL ? "" : n->who);
        break;
    case MU_ROOM_WAITERS:
        (void)snprintf(line, cap, "%s waiters %llu: %u\n", m->name, round, n->waiters);
        break;
    case MU_ROOM_CLOSED:
        (void)snprintf(line, cap, "%s closed\n", m->name);
        break;
    case MU_ROOM_FAILED:
        (void)snprintf(line, cap, "%s failed %llu: %s %s\n", m->name, round, reasons[n->reason],
                       n->who);
        break;
    case MU_ROOM_EXCLUDED:
        (void)snprintf(line, cap, "%s excluded\n", m->name);
        break;
    }
}

/** Pulls all notices and fails unless they are these lines. */
static inline void room_expect(struct room_fixture *f, const char *lines)
{
    struct mu_room_member *m;
    struct mu_room_notice n;
    size_t len = 0;

    f->diary[0] = '\0';
    while (mu_room_next_notice(&f->room, &m, &n)) {
        assert_int_equal(n.incarnation, f->room.incarnation);
        room_write_notice(f->diary + len, sizeof(f->diary) - len, m, &n);
        len += strlen(f->diary + len);
    }
    assert_string_equal(f->diary, lines);
}

static inline void room_teardown(struct room_fixture *f)
{
    for (size_t i = 0; i < f->used; i++) {
        mu_room_leave(&f->room, f->now, &f->members[i]);
    }
    mu_room_fini(&f->room);
}

#endif
