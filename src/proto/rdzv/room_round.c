#include "proto/rdzv/room_internal.h"

#include "core/assert.h"

/* --- a round begins -------------------------------------------------------------------------- */

uint32_t mu_room_target(const struct mu_room *room)
{
    const struct mu_heap_node *largest = mu_heap_min(&room->targets);

    return largest == NULL ? 0 : (uint32_t)(UINT32_MAX - largest->at.ns);
}

uint32_t mu_room_here(const struct mu_room *room)
{
    uint32_t here = room->in[MU_ROOM_GATHERING].count;
    uint32_t more = room->succeeds ? room->in[MU_ROOM_SPARE].count : 0;
    uint32_t places = room->config.nodes_max - here;

    return here + (more < places ? more : places);
}

/* Promotes spares while there are places. */
static void fill_up(struct mu_room *room, const char *topology)
{
    while (room->in[MU_ROOM_GATHERING].count < room->config.nodes_max &&
           mu_room_promote(room, topology, MU_ROOM_GATHERING)) {
    }
}

static void form_round(struct mu_room *room)
{
    uint32_t world = mu_room_here(room);

    if (room->succeeds) {
        fill_up(room, room->place_count == 0 ? "" : room->places[0].topology);
    }
    MU_ASSERT(world >= room->config.nodes_min && world <= room->config.nodes_max);
    mu_room_give_ranks(room);
    room->state = MU_ROOM_IS_RUNNING;
    room->last_call = MU_MONO_NEVER;
    room->expected = 0;
    room->succeeds = false;
    room->waiters_told = 0;
    room->waiters_next = (mu_mono_t){0};
    room->place_count = 0;
    room->missing_more = false;
    room->rounds++;
    mu_trace(&room->config.trace, "room.formed", room->round, world);
}

/* --- a round ends ---------------------------------------------------------------------------- */

static void name_end(struct mu_room *room, enum mu_room_end_reason reason,
                     const struct mu_room_member *who)
{
    room->last_end.reason = reason;
    room->last_end.has_who = who != NULL;
    room->last_end.who_rank = who == NULL ? 0 : who->rank;
    if (who != NULL) {
        memcpy(room->last_end.who, who->name, sizeof(room->last_end.who));
    }
}

/*
 * Moves a member of the round that has just ended into the gathering; it is told of the end if it
 * was told of the round.
 */
static void send_back(struct mu_room *room, struct mu_room_member *member)
{
    (void)mu_room_untell(member, MU_ROOM_ASSIGNED);
    (void)mu_room_untell(member, MU_ROOM_WAITERS);
    if (member->told) {
        /* The member was told of this round, so it has been told of the end of the one before
         * it. */
        MU_ASSERT((member->notices & 1u << MU_ROOM_ENDED) == 0);
        member->told = false;
        member->ended_round = room->last_end.round;
        member->reason = room->last_end.reason;
        member->who_rank = room->last_end.who_rank;
        mu_room_tell(room, member, MU_ROOM_ENDED);
    }
    mu_room_move(room, member, MU_ROOM_GATHERING);
}

static void fail_run(struct mu_room *room)
{
    room->state = MU_ROOM_IS_FAILED;
    room->undecided = false;
    mu_trace(&room->config.trace, "room.failed", room->restarts, room->names.count);
    mu_room_dismiss(room, MU_ROOM_FAILED);
}

/* Workers failed, which costs a restart; it may turn out that they did not fail by themselves. */
static void charge(struct mu_room *room, mu_mono_t now)
{
    if (mu_mono_reached(room->sure, now)) {
        room->doubted = 0;
    }
    if (room->doubted == 0) {
        room->doubt_since = now;
    }
    if (room->restarts != room->config.restarts_max) {
        /* Without a limit, restarts are counted too, for statistics. */
        room->restarts += room->restarts < UINT32_MAX - 1;
        room->doubted++;
    } else if (mu_mono_before(now, room->sure)) {
        room->undecided = true;
    } else {
        fail_run(room);
    }
}

void mu_room_count_loss(struct mu_room *room, mu_mono_t now, const struct mu_room_member *who)
{
    if (!mu_losses_add(&room->losses_until, &room->config.losses, now)) {
        name_end(room, MU_ROOM_END_LOST, who);
        room->too_many_losses = true;
        fail_run(room);
    }
}

bool mu_room_forgive(struct mu_room *room, mu_mono_t now)
{
    if (!mu_mono_before(now, room->sure) || (room->doubted == 0 && !room->undecided)) {
        return false;
    }
    mu_trace(&room->config.trace, "room.forgiven", room->doubted, room->undecided);
    room->restarts -= room->doubted;
    room->doubted = 0;
    room->undecided = false;
    mu_exclusions_forgive(&room->exclusions, room->doubt_since);
    return true;
}

void mu_room_end_round(struct mu_room *room, mu_mono_t now, enum mu_room_end_reason reason,
                       const struct mu_room_member *who)
{
    struct mu_room_member *member;

    MU_ASSERT(room->state == MU_ROOM_IS_RUNNING);
    mu_trace(&room->config.trace, "room.ended", room->round, reason);
    name_end(room, reason, who);
    room->last_end.round = room->round;
    room->round++;
    room->state = MU_ROOM_IS_GATHERING;
    room->upscale = MU_MONO_NEVER;
    if (reason == MU_ROOM_END_FAILED) {
        charge(room, now);
    } else if (reason == MU_ROOM_END_LOST) {
        mu_room_count_loss(room, now, who);
    }
    if (room->state == MU_ROOM_IS_FAILED) {
        return;
    }
    while ((member = mu_room_first(room, MU_ROOM_RUNNING)) != NULL) {
        send_back(room, member);
    }
    /* There is room for all WAITING members by definition, and for spares as far as it goes. */
    while ((member = mu_room_first(room, MU_ROOM_WAITING)) != NULL) {
        mu_room_move(room, member, MU_ROOM_GATHERING);
    }
    fill_up(room, who == NULL ? "" : who->topology);
    if (reason == MU_ROOM_END_UPSCALE) {
        /* The late nodes were gathered while the round went on; now all are here. */
        form_round(room);
    } else {
        room->regroups = true;
    }
}

/* --- clocks ---------------------------------------------------------------------------------- */

/* After a round, those that ran are here already: this is time enough to see which others were lost
 * with it. */
static uint64_t regroup_ms(uint64_t last_call_ms)
{
    return last_call_ms == UINT64_MAX ? UINT64_MAX : last_call_ms / MU_ROOM_REGROUP;
}

/* Returns when the gathering ends if no member comes or goes. */
static mu_mono_t forms_at(const struct mu_room *room)
{
    uint32_t here = mu_room_here(room);
    uint32_t target = mu_room_target(room);
    bool waits = room->succeeds && room->in[MU_ROOM_GATHERING].count < room->ran;

    if (room->undecided) {
        return room->sure;
    }
    if (here < room->config.nodes_min) {
        return MU_MONO_NEVER;
    }
    if (!waits && (here == room->config.nodes_max || (target != 0 && here >= target) ||
                   (room->expected != 0 && here >= room->expected))) {
        return room->hold;
    }
    return mu_mono_before(room->last_call, room->hold) ? room->hold : room->last_call;
}

/* The minimum was reached, or a node has come since. */
static void set_last_call(struct mu_room *room, mu_mono_t now, bool regroups)
{
    uint64_t ms = room->config.last_call_ms;

    if (room->last_call.ns == MU_MONO_NEVER.ns) {
        room->call_ms = regroups ? regroup_ms(ms) : ms;
        room->call_end = mu_mono_add_ms(now, room->call_ms > UINT64_MAX / MU_ROOM_LAST_CALLS
                                                 ? UINT64_MAX
                                                 : room->call_ms * MU_ROOM_LAST_CALLS);
    } else if (!room->newcomer) {
        return;
    }
    room->last_call = mu_mono_min(mu_mono_add_ms(now, room->call_ms), room->call_end);
}

static void settle_gathering(struct mu_room *room, mu_mono_t now)
{
    uint32_t here = mu_room_here(room);
    bool regroups = room->regroups || room->succeeds;

    room->regroups = false;
    if (here < room->config.nodes_min) {
        room->last_call = MU_MONO_NEVER;
    } else {
        set_last_call(room, now, regroups);
    }
    room->newcomer = false;
    if (!mu_mono_reached(forms_at(room), now)) {
        return;
    }
    if (room->undecided) {
        fail_run(room);
    } else {
        form_round(room);
    }
}

/* Returns whether it makes no sense to wait for more late nodes. */
static bool is_everybody_here(const struct mu_room *room)
{
    uint32_t running = room->in[MU_ROOM_RUNNING].count;
    uint32_t here = running + room->in[MU_ROOM_WAITING].count;
    uint32_t target = mu_room_target(room);

    /* A target that was met without the late nodes says nothing about them. */
    return here == room->config.nodes_max || (running < target && target <= here);
}

static void settle_running(struct mu_room *room, mu_mono_t now)
{
    uint32_t waiting = room->in[MU_ROOM_WAITING].count;

    if (waiting == 0) {
        room->upscale = MU_MONO_NEVER;
    } else if (room->config.upscale_delay_ms != UINT64_MAX) {
        if (room->upscale.ns == MU_MONO_NEVER.ns) {
            room->upscale = mu_mono_add_ms(now, room->config.upscale_delay_ms);
        }
        if (mu_mono_reached(room->upscale, now) || is_everybody_here(room)) {
            mu_room_end_round(room, now, MU_ROOM_END_UPSCALE, NULL);
            return;
        }
    }
    /* The members get one wave of notices in a while, however many nodes come and go. */
    if (waiting != room->waiters_told && mu_mono_reached(room->waiters_next, now)) {
        room->waiters_told = waiting;
        room->waiters_next = mu_mono_add_ms(now, MU_ROOM_WAITERS_MS);
        MU_LIST_FOREACH (it, &room->in[MU_ROOM_RUNNING].members) {
            mu_room_tell(room, mu_room_member_of(it), MU_ROOM_WAITERS);
        }
    }
}

void mu_room_settle(struct mu_room *room, mu_mono_t now)
{
    room->seen = now;
    switch (room->state) {
    case MU_ROOM_IS_GATHERING:
        settle_gathering(room, now);
        break;
    case MU_ROOM_IS_RUNNING:
        settle_running(room, now);
        break;
    case MU_ROOM_IS_CLOSED:
    case MU_ROOM_IS_FAILED:
        break;
    }
}

mu_mono_t mu_room_deadline(const struct mu_room *room)
{
    switch (room->state) {
    case MU_ROOM_IS_GATHERING:
        return forms_at(room);
    case MU_ROOM_IS_RUNNING:
        if (room->in[MU_ROOM_WAITING].count != room->waiters_told) {
            return mu_mono_min(room->upscale, room->waiters_next);
        }
        return room->upscale;
    case MU_ROOM_IS_CLOSED:
    case MU_ROOM_IS_FAILED:
        break;
    }
    return MU_MONO_NEVER;
}
