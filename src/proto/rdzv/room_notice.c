#include "proto/rdzv/room_internal.h"

#include <string.h>

#include "core/assert.h"
#include "proto/rdzv/text.h"

#define BIT(kind) (UINT32_C(1) << (kind))

/* --- what is pending ------------------------------------------------------------------------- */

/*
 * There are two queues. Ends of rounds have their own queue, which is pulled first: when any member
 * is told a rank, no member believes any more that the round before it runs.
 */
void mu_room_tell(struct mu_room *room, struct mu_room_member *member,
                  enum mu_room_notice_kind kind)
{
    if (kind == MU_ROOM_ENDED) {
        if ((member->notices & BIT(MU_ROOM_ENDED)) == 0) {
            mu_list_push(&room->ended, &member->ended);
        }
    } else if ((member->notices & ~BIT(MU_ROOM_ENDED)) == 0) {
        mu_list_push(&room->news, &member->news);
    }
    member->notices |= BIT(kind);
    room->steps++;
}

bool mu_room_untell(struct mu_room_member *member, enum mu_room_notice_kind kind)
{
    if ((member->notices & BIT(kind)) == 0) {
        return false;
    }
    member->notices &= ~BIT(kind);
    if (kind == MU_ROOM_ENDED) {
        mu_list_remove(&member->ended);
    } else if ((member->notices & ~BIT(MU_ROOM_ENDED)) == 0) {
        mu_list_remove(&member->news);
    }
    return true;
}

void mu_room_untell_all(struct mu_room_member *member)
{
    member->notices = 0;
    mu_list_remove(&member->ended);
    mu_list_remove(&member->news);
}

const enum mu_room_member_state mu_room_states_in[MU_ROOM_STATES_IN] = {
    MU_ROOM_RUNNING, MU_ROOM_GATHERING, MU_ROOM_WAITING, MU_ROOM_SPARE};

void mu_room_dismiss(struct mu_room *room, enum mu_room_notice_kind kind)
{
    for (size_t i = 0; i < MU_ROOM_STATES_IN; i++) {
        struct mu_room_member *member;

        while ((member = mu_room_first(room, mu_room_states_in[i])) != NULL) {
            mu_room_take_out(room, member);
            mu_room_untell_all(member);
            member->was = mu_room_states_in[i];
            mu_room_tell(room, member, kind);
        }
    }
}

/* --- what is pulled -------------------------------------------------------------------------- */

static void fill_end(const struct mu_room *room, const struct mu_room_member *member,
                     struct mu_room_notice *notice)
{
    notice->round = member->ended_round;
    notice->reason = member->reason;
    notice->who_rank = member->who_rank;
    /* Only the last end's name is kept. A driver that pulls after each call gets every name. */
    if (room->last_end.has_who && room->last_end.round == member->ended_round) {
        notice->who = room->last_end.who;
    }
}

static void fill_news(const struct mu_room *room, struct mu_room_member *member,
                      struct mu_room_notice *notice)
{
    switch (notice->kind) {
    case MU_ROOM_ASSIGNED:
        notice->round = room->round;
        notice->rank = member->rank;
        notice->world = room->in[MU_ROOM_RUNNING].count;
        notice->restarts_left = room->config.restarts_max == UINT32_MAX
                                    ? UINT32_MAX
                                    : room->config.restarts_max - room->restarts;
        member->told = true;
        break;
    case MU_ROOM_ENDED:
        break;
    case MU_ROOM_WAITERS:
        notice->round = room->round;
        notice->waiters = room->in[MU_ROOM_WAITING].count;
        break;
    case MU_ROOM_CLOSED:
        notice->was = member->was;
        break;
    case MU_ROOM_FAILED:
        notice->was = member->was;
        notice->round = room->last_end.round;
        notice->reason = room->last_end.reason;
        notice->who = room->last_end.has_who ? room->last_end.who : NULL;
        notice->who_rank = room->last_end.who_rank;
        break;
    case MU_ROOM_EXCLUDED:
        break;
    }
}

bool mu_room_next_notice(struct mu_room *room, struct mu_room_member **ret_member,
                         struct mu_room_notice *ret_notice)
{
    static const enum mu_room_notice_kind order[] = {
        MU_ROOM_ASSIGNED, MU_ROOM_WAITERS, MU_ROOM_CLOSED, MU_ROOM_FAILED, MU_ROOM_EXCLUDED,
    };
    struct mu_room_notice notice = {.incarnation = room->incarnation};
    struct mu_room_member *member;
    size_t i = 0;

    if (!mu_list_empty(&room->ended)) {
        member = MU_CONTAINER_OF(room->ended.next, struct mu_room_member, ended);
        (void)mu_room_untell(member, MU_ROOM_ENDED);
        notice.kind = MU_ROOM_ENDED;
        fill_end(room, member, &notice);
    } else if (!mu_list_empty(&room->news)) {
        member = MU_CONTAINER_OF(room->news.next, struct mu_room_member, news);
        while (!mu_room_untell(member, order[i])) {
            i++;
            MU_ASSERT(i < sizeof(order) / sizeof(order[0]));
        }
        notice.kind = order[i];
        fill_news(room, member, &notice);
    } else {
        return false;
    }
    room->notices++;
    room->steps++;
    *ret_member = member;
    *ret_notice = notice;
    return true;
}

/* --- descriptions ---------------------------------------------------------------------------- */

void mu_room_each_ranked(const struct mu_room *room,
                         void (*each)(void *context, const struct mu_room_member *member),
                         void *context)
{
    MU_LIST_FOREACH (it, &room->in[MU_ROOM_RUNNING].members) {
        each(context, mu_room_member_of(it));
    }
}

/* Appends a name of a list if it fits with room for the sentence's end; returns whether it did. */
static bool add_name(struct mu_text *t, bool first, const char *name)
{
    static const size_t end_len = sizeof(", and 4294967295 more") - 1;

    if (t->len + 2 + strlen(name) + end_len >= t->cap) {
        return false;
    }
    mu_text_add(t, "%s%s", first ? "" : ", ", name);
    return true;
}

static void add_members(struct mu_text *t, const struct mu_room_group *group)
{
    uint32_t named = 0;

    MU_LIST_FOREACH (it, &group->members) {
        if (!add_name(t, named == 0, mu_room_member_of(it)->name)) {
            mu_text_add(t, "%s%u more", named == 0 ? "" : ", and ", group->count - named);
            return;
        }
        named++;
    }
}

static void explain_missing(const struct mu_room *room, struct mu_text *t)
{
    bool first = true;

    for (uint32_t i = 0; i < room->place_count; i++) {
        const struct mu_room_place *place = &room->places[i];

        if (place->missing && first) {
            mu_text_add(t,
                        "; not back since round %llu: ", (unsigned long long)room->last_end.round);
        }
        if (place->missing && !add_name(t, first, place->name)) {
            break;
        }
        first = first && !place->missing;
    }
    if (!first) {
        mu_text_add(t, "%s%s", room->missing_more ? ", and more" : "",
                    room->in[MU_ROOM_GATHERING].count == 0 ? "" : "; here");
    }
}

static void explain_excluded(const struct mu_room *room, struct mu_text *t)
{
    bool first = true;

    for (uint32_t i = 0; i < room->exclusions.count; i++) {
        const struct mu_exclusion *e = &room->exclusions.all[i];

        if (mu_exclusion_holds(e, room->seen)) {
            mu_text_add(t, "%s%s (%s)", first ? "; excluded: " : ", ", e->node, e->reason);
            first = false;
        }
    }
}

static void explain_gathering(const struct mu_room *room, struct mu_text *t)
{
    uint32_t here = mu_room_here(room);
    uint32_t min = room->config.nodes_min;
    uint32_t max = room->config.nodes_max;
    uint32_t target = mu_room_target(room);

    if (room->undecided) {
        mu_text_add(
            t,
            "the workers of %s failed, and no restart is left; looking whether a node was lost, ",
            room->last_end.who);
    }
    if (here < min) {
        mu_text_add(t, "%u of %s%u nodes are here", here, min == max ? "" : "at least ", min);
    } else if (target > here && target <= max) {
        mu_text_add(t, "%u of %u announced nodes are here, last call for the others", here, target);
    } else {
        mu_text_add(t, "%u of at most %u nodes are here, last call for more", here, max);
    }
    explain_missing(room, t);
    if (here != 0) {
        mu_text_add(t, ": ");
        add_members(t, &room->in[MU_ROOM_GATHERING]);
    }
    explain_excluded(room, t);
}

bool mu_room_lacks(const struct mu_room *room)
{
    uint32_t here = mu_room_here(room);

    return room->state == MU_ROOM_IS_GATHERING && here != 0 && here < room->config.nodes_min;
}

void mu_room_explain(const struct mu_room *room, char *text, size_t cap)
{
    struct mu_text t = {text, 0, cap};

    MU_ASSERT(cap >= 1);
    text[0] = '\0';
    switch (room->state) {
    case MU_ROOM_IS_GATHERING:
        explain_gathering(room, &t);
        break;
    case MU_ROOM_IS_RUNNING:
        mu_text_add(&t, "round %llu runs with %u nodes; %u waiting, %u spare",
                    (unsigned long long)room->round, room->in[MU_ROOM_RUNNING].count,
                    room->in[MU_ROOM_WAITING].count, room->in[MU_ROOM_SPARE].count);
        break;
    case MU_ROOM_IS_CLOSED:
        mu_text_add(&t, "the run is closed");
        break;
    case MU_ROOM_IS_FAILED:
        if (room->too_many_losses) {
            mu_text_add(
                &t,
                "the run has lost nodes too often: more than %u times within %llu s, the bound of "
                "--max-losses; the last one was %s",
                room->config.losses.max, (unsigned long long)(room->config.losses.window_ms / 1000),
                room->last_end.has_who ? room->last_end.who : "not named");
            break;
        }
        mu_text_add(&t, "the run has used up its %u restarts; the last round ended because %s %s",
                    room->config.restarts_max, room->last_end.who,
                    room->last_end.reason == MU_ROOM_END_LOST ? "was lost" : "failed");
        break;
    }
}
