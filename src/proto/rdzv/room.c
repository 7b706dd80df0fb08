#include "proto/rdzv/room_internal.h"

#include "core/assert.h"

int mu_room_init(struct mu_room *room, const struct mu_room_config *config, uint64_t incarnation)
{
    if (config->nodes_min == 0 || config->nodes_max < config->nodes_min ||
        config->members_max < config->nodes_max) {
        return MUSTER_EINVAL;
    }
    *room = (struct mu_room){
        .config = *config,
        .state = MU_ROOM_IS_GATHERING,
        .incarnation = incarnation,
        .last_call = MU_MONO_NEVER,
        .upscale = MU_MONO_NEVER,
    };
    for (size_t i = 0; i < sizeof(room->in) / sizeof(room->in[0]); i++) {
        mu_list_init(&room->in[i].members);
    }
    mu_list_init(&room->ended);
    mu_list_init(&room->news);
    mu_map_init(&room->names, config->seed);
    mu_heap_init(&room->targets);
    mu_exclusions_init(&room->exclusions, &config->exclude);
    return 0;
}

void mu_room_fini(struct mu_room *room)
{
    struct mu_room_member *member;
    struct mu_room_notice notice;

    MU_ASSERT(room->names.count == 0);
    while (mu_room_next_notice(room, &member, &notice)) {
    }
    mu_map_fini(&room->names);
    mu_exclusions_fini(&room->exclusions);
}

bool mu_room_done(const struct mu_room *room)
{
    return (room->state == MU_ROOM_IS_CLOSED || room->state == MU_ROOM_IS_FAILED) &&
           mu_list_empty(&room->news);
}

/* --- members --------------------------------------------------------------------------------- */

void mu_room_move(struct mu_room *room, struct mu_room_member *member,
                  enum mu_room_member_state state)
{
    if (member->state != MU_ROOM_OUT) {
        mu_list_remove(&member->link);
        room->in[member->state].count--;
    }
    member->state = state;
    if (state != MU_ROOM_OUT) {
        mu_list_push(&room->in[state].members, &member->link);
        room->in[state].count++;
    }
    room->steps++;
}

void mu_room_take_out(struct mu_room *room, struct mu_room_member *member)
{
    mu_room_move(room, member, MU_ROOM_OUT);
    mu_map_remove(&room->names, &member->named);
    mu_heap_remove(&room->targets, &member->targeted);
    member->told = false;
}

struct mu_room_member *mu_room_find(const struct mu_room *room, struct mu_span name)
{
    struct mu_map_node *node = mu_map_find(&room->names, name);

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_room_member, named);
}

/* A node of that name is back; it may get its place again. */
static void stop_missing(struct mu_room *room, const char *name)
{
    for (uint32_t i = 0; i < room->place_count; i++) {
        if (strcmp(room->places[i].name, name) == 0) {
            room->places[i].missing = false;
        }
    }
}

/* --- requests -------------------------------------------------------------------------------- */

/* Returns the text that ends within `cap` bytes; no data if it does not, or has control
 * characters. */
static struct mu_span check_text(const char *text, size_t cap)
{
    size_t len = strnlen(text, cap);

    for (size_t i = 0; i < len; i++) {
        if ((uint8_t)text[i] < 0x20 || text[i] == 0x7f) {
            return (struct mu_span){0};
        }
    }
    return len == cap ? (struct mu_span){0} : mu_span(text, len);
}

/* Copies such a text, if it fits. */
static bool take_text(char to[MU_ROOM_NAME_MAX + 1], struct mu_span text)
{
    if (text.len > MU_ROOM_NAME_MAX || memchr(text.data, '\0', text.len) != NULL) {
        return false;
    }
    memcpy(to, text.data, text.len);
    to[text.len] = '\0';
    return check_text(to, MU_ROOM_NAME_MAX + 1).data != NULL;
}

/* Checks everything that a join can be refused for, the most helpful reason first. */
static int check_join(const struct mu_room *room, mu_mono_t now,
                      const struct mu_room_member *member, uint32_t nodes_min, uint32_t nodes_max,
                      struct mu_errmsg *reterr_msg)
{
    struct mu_span name = check_text(member->name, sizeof(member->name));
    struct mu_span topology = check_text(member->topology, sizeof(member->topology));
    char quoted[64];

    if (room->state == MU_ROOM_IS_CLOSED) {
        return mu_err(reterr_msg, MUSTER_ECLOSED, "the run is closed");
    }
    if (room->state == MU_ROOM_IS_FAILED && room->too_many_losses) {
        return mu_err(reterr_msg, MUSTER_ECLOSED, "the run has lost nodes too often");
    }
    if (room->state == MU_ROOM_IS_FAILED) {
        return mu_err(reterr_msg, MUSTER_ECLOSED, "the run has used up its %u restarts",
                      room->config.restarts_max);
    }
    if (nodes_min != room->config.nodes_min || nodes_max != room->config.nodes_max) {
        return mu_err(
            reterr_msg, MUSTER_EINVAL,
            "this run has --nnodes %u:%u, and this node gives %u:%u; give all nodes the same",
            room->config.nodes_min, room->config.nodes_max, nodes_min, nodes_max);
    }
    if (name.len == 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a node's name must have 1 to %d bytes without control characters",
                      MU_ROOM_NAME_MAX);
    }
    if (topology.data == NULL) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a topology key must have at most %d bytes without control characters",
                      MU_ROOM_TOPOLOGY_MAX);
    }
    if (check_text(member->machine, sizeof(member->machine)).data == NULL) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a machine's id must have at most %d bytes without control characters",
                      MU_ROOM_NAME_MAX);
    }
    if (mu_exclusions_find(&room->exclusions, now, member->machine, member->name) != NULL) {
        mu_room_explain_exclusion(room, now, member, reterr_msg);
        return MUSTER_ERDZV_EXCLUDED;
    }
    if (mu_room_find(room, name) != NULL) {
        return mu_err(reterr_msg, MUSTER_EEXIST, "a node named %s has already joined",
                      mu_span_quote(quoted, sizeof(quoted), name));
    }
    if (room->names.count >= room->config.members_max) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "the run has %u members and takes no more",
                      room->config.members_max);
    }
    return 0;
}

int mu_room_join(struct mu_room *room, mu_mono_t now, struct mu_room_member *member,
                 uint32_t nodes_min, uint32_t nodes_max, struct mu_errmsg *reterr_msg)
{
    int r;

    MU_ASSERT(member->state == MU_ROOM_OUT && member->notices == 0);
    r = check_join(room, now, member, nodes_min, nodes_max, reterr_msg);
    if (r < 0) {
        return r;
    }
    r = mu_map_insert(&room->names, &member->named, mu_span_str(member->name));
    if (r < 0) {
        return mu_err(reterr_msg, r, "no memory for another member");
    }

    member->arrival = ++room->arrivals;
    member->has_rank = room->succeeds && member->before.known;
    if (member->has_rank) {
        member->rank = member->before.rank;
    }
    member->finished = false;
    member->told = false;
    mu_list_init(&member->link);
    mu_list_init(&member->ended);
    mu_list_init(&member->news);
    mu_heap_node_init(&member->targeted);
    if (member->target != 0) {
        /* The heap has the smallest key on top; negated targets put the largest there. */
        mu_heap_insert(&room->targets, &member->targeted, (mu_mono_t){UINT32_MAX - member->target});
    }
    stop_missing(room, member->name);
    if (room->state == MU_ROOM_IS_GATHERING && (member->has_rank || !room->succeeds) &&
        room->in[MU_ROOM_GATHERING].count < room->config.nodes_max) {
        mu_room_move(room, member, MU_ROOM_GATHERING);
        room->newcomer = true;
    } else if (room->state == MU_ROOM_IS_RUNNING &&
               room->in[MU_ROOM_RUNNING].count + room->in[MU_ROOM_WAITING].count <
                   room->config.nodes_max) {
        mu_room_move(room, member, MU_ROOM_WAITING);
    } else {
        mu_room_move(room, member, MU_ROOM_SPARE);
        member->has_rank = false; /* Others took all places. */
        room->newcomer = room->state == MU_ROOM_IS_GATHERING && room->succeeds;
    }
    mu_trace(&room->config.trace, "room.join", member->state, room->names.count);
    mu_room_settle(room, now);
    return 0;
}

/* Returns a member that is excluded now, or NULL. */
static struct mu_room_member *find_excluded(const struct mu_room *room, mu_mono_t now)
{
    for (size_t i = 0; i < MU_ROOM_STATES_IN; i++) {
        MU_LIST_FOREACH (it, &room->in[mu_room_states_in[i]].members) {
            struct mu_room_member *member = mu_room_member_of(it);

            if (mu_exclusions_find(&room->exclusions, now, member->machine, member->name) != NULL) {
                return member;
            }
        }
    }
    return NULL;
}

static void expel_excluded(struct mu_room *room, mu_mono_t now);

/* Removes a member that left, was lost, or is expelled: it is told, before the others get another
 * rank. */
static void part(struct mu_room *room, mu_mono_t now, struct mu_room_member *member,
                 enum mu_room_end_reason reason, bool expelled)
{
    enum mu_room_member_state state = member->state;
    bool excluded = false;
    bool forgiven;

    if (member->notices != 0) {
        mu_room_untell_all(member);
    }
    if (state == MU_ROOM_OUT) {
        return;
    }
    mu_room_take_out(room, member);
    if (expelled) {
        mu_room_tell(room, member, MU_ROOM_EXCLUDED);
    }
    mu_trace(&room->config.trace, "room.part", reason, room->names.count);
    if (member->has_rank) {
        mu_room_vacate(room, member, reason == MU_ROOM_END_LOST);
    }
    /* Failures in doubt are the echo of a loss, and not of an expulsion. */
    forgiven = !expelled && member->has_rank && !(reason == MU_ROOM_END_LEFT && member->finished) &&
               mu_room_forgive(room, now);
    if (member->has_rank && reason == MU_ROOM_END_LOST) {
        excluded = mu_exclusions_fail(&room->exclusions, now, member->machine, member->name);
    }
    if (state == MU_ROOM_RUNNING) {
        mu_room_end_round(room, now, reason, member);
    }
    if (forgiven && (state != MU_ROOM_RUNNING || reason != MU_ROOM_END_LOST)) {
        mu_room_count_loss(room, now, member); /* It has ended a round, too. */
    }
    if (state == MU_ROOM_WAITING || state == MU_ROOM_GATHERING) {
        (void)mu_room_promote(room, member->topology, state); /* There is room for one more now. */
    }
    if (excluded) {
        expel_excluded(room, now); /* Its machine may be in again, under another name. */
    }
    mu_room_settle(room, now);
}

void mu_room_leave(struct mu_room *room, mu_mono_t now, struct mu_room_member *member)
{
    part(room, now, member, MU_ROOM_END_LEFT, false);
}

void mu_room_lost(struct mu_room *room, mu_mono_t now, struct mu_room_member *member)
{
    part(room, now, member, MU_ROOM_END_LOST, false);
}

/* For the others, who is expelled has left. */
static void expel_excluded(struct mu_room *room, mu_mono_t now)
{
    struct mu_room_member *member;

    while ((member = find_excluded(room, now)) != NULL) {
        part(room, now, member, MU_ROOM_END_LEFT, true);
    }
}

/* The member stays, but is no longer in that round. */
static void give_up_round(struct mu_room *room, mu_mono_t now, struct mu_room_member *member,
                          uint64_t round, enum mu_room_end_reason reason)
{
    /* Its message may have been on its way while the round ended, or even while the next one
     * began. */
    if (member->state != MU_ROOM_RUNNING || round != room->round) {
        return;
    }
    mu_room_end_round(room, now, reason, member);
    if (reason == MU_ROOM_END_FAILED && room->state == MU_ROOM_IS_GATHERING &&
        mu_exclusions_fail(&room->exclusions, now, member->machine, member->name)) {
        expel_excluded(room, now);
    }
    mu_room_settle(room, now);
}

void mu_room_fail(struct mu_room *room, mu_mono_t now, struct mu_room_member *member,
                  uint64_t round)
{
    give_up_round(room, now, member, round, MU_ROOM_END_FAILED);
}

void mu_room_stop(struct mu_room *room, mu_mono_t now, struct mu_room_member *member,
                  uint64_t round)
{
    /* It was out of reach while the workers of another member failed. */
    if (member->state == MU_ROOM_GATHERING && member->has_rank && round == room->last_end.round &&
        mu_room_forgive(room, now)) {
        mu_room_count_loss(room, now, member);
        mu_room_settle(room, now);
        return;
    }
    give_up_round(room, now, member, round, MU_ROOM_END_LOST);
}

void mu_room_finish(struct mu_room_member *member)
{
    member->finished = true;
}

/* --- exclusion ------------------------------------------------------------------------------- */

/* Returns a member that `who` means, or NULL. */
static const struct mu_room_member *find_meant(const struct mu_room *room, const char *who)
{
    for (size_t i = 0; i < MU_ROOM_STATES_IN; i++) {
        MU_LIST_FOREACH (it, &room->in[mu_room_states_in[i]].members) {
            const struct mu_room_member *member = mu_room_member_of(it);

            if (mu_exclusion_names(who, member->machine, member->name)) {
                return member;
            }
        }
    }
    return NULL;
}

int mu_room_exclude(struct mu_room *room, mu_mono_t now, struct mu_span who, struct mu_span reason,
                    uint64_t for_ms, struct mu_errmsg *reterr_msg)
{
    char name[MU_ROOM_NAME_MAX + 1] = "";
    const struct mu_room_member *meant;
    char words[MU_ROOM_NAME_MAX + 1] = "";

    if (!take_text(name, who) || who.len == 0 || !take_text(words, reason) || for_ms == 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "an exclusion needs a node and a time, and its texts have at most %d bytes "
                      "without control characters",
                      MU_ROOM_NAME_MAX);
    }
    meant = find_meant(room, name);
    if (mu_exclusions_add(&room->exclusions, now, meant == NULL ? "" : meant->machine,
                          meant == NULL ? name : meant->name, reason, for_ms) != 0) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "no memory for another exclusion");
    }
    mu_trace(&room->config.trace, "room.exclude", for_ms, room->names.count);
    expel_excluded(room, now);
    mu_room_settle(room, now);
    return 0;
}

uint32_t mu_room_include(struct mu_room *room, struct mu_span who)
{
    char name[MU_ROOM_NAME_MAX + 1] = "";

    return take_text(name, who) ? mu_exclusions_lift(&room->exclusions, name) : 0;
}

void mu_room_explain_exclusion(const struct mu_room *room, mu_mono_t now,
                               const struct mu_room_member *member, struct mu_errmsg *ret)
{
    const struct mu_exclusion *e =
        mu_exclusions_find(&room->exclusions, now, member->machine, member->name);

    if (e == NULL) {
        (void)mu_err(ret, 0, "this node was excluded");
        return;
    }
    (void)mu_err(ret, 0,
                 "this node is excluded from the run for another %llu s: %s; `muster rdzv include "
                 "%.120s` lets it in",
                 (unsigned long long)((mu_mono_until_ms(e->until, now) + 999) / 1000), e->reason,
                 e->node);
}

/* --- times ----------------------------------------------------------------------------------- */

void mu_room_hold(struct mu_room *room, mu_mono_t now, mu_mono_t until)
{
    if (mu_mono_before(room->hold, until)) {
        room->hold = until;
        mu_trace(&room->config.trace, "room.hold", mu_mono_since(now, until), 0);
    }
    mu_room_settle(room, now);
}

void mu_room_doubt(struct mu_room *room, mu_mono_t now, mu_mono_t until)
{
    if (mu_mono_reached(room->sure, now)) {
        room->doubted = 0;
    }
    if (mu_mono_before(room->sure, until)) {
        room->sure = until;
    }
}

void mu_room_doubt_on(struct mu_room *room, mu_mono_t until)
{
    if ((room->doubted != 0 || room->undecided) && mu_mono_before(room->sure, until)) {
        room->sure = until;
    }
}

void mu_room_be_sure(struct mu_room *room, mu_mono_t now)
{
    room->sure = mu_mono_min(room->sure, now);
    mu_room_settle(room, now);
}

void mu_room_inherit(struct mu_room *room, uint32_t spent)
{
    spent = spent < room->config.restarts_max ? spent : room->config.restarts_max;
    room->restarts = spent > room->restarts ? spent : room->restarts;
}

void mu_room_succeed(struct mu_room *room, mu_mono_t now, const struct mu_room_legacy *past)
{
    MU_ASSERT(room->names.count == 0);
    room->round = past->round + 1;
    mu_room_inherit(room, past->restarts);
    room->losses_until = past->losses_until;
    room->expected = past->expected;
    room->ran = past->ran;
    room->succeeds = true;
    room->last_end.round = past->round;
    if (past->place.name[0] != '\0') {
        room->places[0] = past->place;
        room->places[0].missing = true;
        room->place_count = 1;
    }
    mu_room_count_loss(room, now, NULL);
}

void mu_room_close(struct mu_room *room, mu_mono_t now)
{
    (void)now;
    if (room->state == MU_ROOM_IS_CLOSED || room->state == MU_ROOM_IS_FAILED) {
        return;
    }
    room->state = MU_ROOM_IS_CLOSED;
    mu_trace(&room->config.trace, "room.closed", room->round, room->names.count);
    mu_room_dismiss(room, MU_ROOM_CLOSED);
}

void mu_room_tick(struct mu_room *room, mu_mono_t now)
{
    mu_room_settle(room, now);
}
