#include "service/server/rdzv_lead.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"
#include "service/server/rdzv_hub_internal.h"

#define DISTANCE     (UINT64_C(1) << 20) /* between incarnations, at most */
#define LOOK_BACK_MS UINT64_C(60000)     /* who was not heard for so long is out of reach */
#define PARKED_BYTES ((size_t)1 << 14)   /* more than any join has */

/* A join that waits until it is known who hosts. */
struct parked {
    struct mu_rpc_served base;
    struct mu_list link; /* lead->parked */
    size_t *joins;
    bool knows; /* of succession: it can be sent elsewhere */
    struct mu_buf payload;
};

static mu_mono_t mono(const struct mu_rdzv_lead *lead)
{
    return mu_env_now(lead->hub->env).mono;
}

bool mu_rdzv_lead_is(const struct mu_rdzv_hub *hub, struct mu_span run_id)
{
    return hub->lead != NULL && mu_span_eq(run_id, mu_span_str(hub->lead->run_id));
}

void mu_rdzv_lead_begin(struct mu_rdzv_lead *lead, struct mu_rdzv_hub *hub)
{
    lead->hub = hub;
    mu_list_init(&lead->parked);
    mu_buf_init(&lead->line, MU_RDZV_LINE_BYTES_MAX);
    mu_buf_init(&lead->legacy, MU_RDZV_LEGACY_MAX);
    hub->lead = lead;
}

void mu_rdzv_lead_fini(struct mu_rdzv_lead *lead)
{
    mu_buf_fini(&lead->line);
    mu_buf_fini(&lead->legacy);
    lead->hub = NULL;
}

void mu_rdzv_lead_end_turn(struct mu_rdzv_lead *lead)
{
    mu_rpc_server_end_turn(lead->hub->on.wire);
}

static struct mu_rdzv_run *run_of(const struct mu_rdzv_lead *lead)
{
    return mu_rdzv_run_find(lead->hub, mu_span_str(lead->run_id));
}

/* --- joins that wait -------------------------------------------------------------------------- */

static void free_parked(struct parked *p)
{
    mu_list_remove(&p->link);
    mu_rpc_served_remove(&p->base);
    mu_buf_fini(&p->payload);
    mu_free(p);
}

static void parked_cancel(struct mu_rpc_served *base, int why)
{
    mu_rpc_session_reply(base->session, base->id, why, mu_span_str(muster_strerror(why)));
    free_parked(MU_CONTAINER_OF(base, struct parked, base));
}

static void parked_credit(struct mu_rpc_served *base)
{
    (void)base;
}

static void parked_end(struct mu_rpc_served *base)
{
    parked_cancel(base, 0);
}

static void parked_free(struct mu_rpc_served *base)
{
    free_parked(MU_CONTAINER_OF(base, struct parked, base));
}

static const struct mu_rpc_served_ops parked_ops = {
    .cancel = parked_cancel,
    .credit = parked_credit,
    .end = parked_end,
    .free = parked_free,
};

/* The notice that sends a node to the host. */
static void send_away(const struct mu_rdzv_lead *lead, struct mu_rpc_session *session, uint64_t id,
                      bool knows)
{
    const struct mu_rdzv_heir heir = {.addr = mu_span_str(lead->moved_addr)};
    struct mu_rdzv_notice notice = {.kind = MU_RDZV_NOTICE_MOVED, .term = lead->moved_term};
    char text[MU_RDZV_NAME_LEN_MAX + 80];
    struct mu_buf line;

    mu_buf_init(&line, MU_RDZV_LINE_BYTES_MAX);
    if (knows && mu_rdzv_heir_encode(&line, &heir) == 0) {
        notice.line = mu_buf_span(&line);
        (void)mu_rdzv_member_send(session, id, lead->hub->on.scratch, &notice);
    }
    mu_buf_fini(&line);
    (void)snprintf(text, sizeof(text), "the run has moved: %s hosts it", lead->moved_addr);
    mu_rpc_session_reply(session, id, MUSTER_ERDZV_LOST, mu_span_str(text));
}

void mu_rdzv_lead_park(struct mu_rdzv_hub *hub, struct mu_rpc_session *session, size_t *joins,
                       const struct mu_rpc_event *event, const struct mu_rdzv_join *join)
{
    struct mu_rdzv_lead *lead = hub->lead;
    bool knows = (join->flags & MU_RDZV_JOIN_HEIR) != 0;
    struct parked *p;

    if (lead->moved_term != 0) {
        send_away(lead, session, event->id, knows);
        return;
    }
    p = mu_calloc(1, sizeof(*p));
    if (p != NULL) {
        mu_buf_init(&p->payload, PARKED_BYTES);
    }
    if (p == NULL || mu_buf_append(&p->payload, event->payload) != 0 ||
        mu_rpc_served_add(&p->base, &parked_ops, session, event->id) != 0) {
        if (p != NULL) {
            mu_buf_fini(&p->payload);
        }
        mu_free(p);
        mu_rpc_session_reply(session, event->id, MUSTER_ENOMEM,
                             MU_SPAN_LIT("no memory for another member"));
        return;
    }
    p->joins = joins;
    p->knows = knows;
    mu_list_push(&lead->parked, &p->link);
}

/* --- members ---------------------------------------------------------------------------------- */

static void copy_electorate(struct mu_electorate *to, const struct mu_rdzv_electorate *from)
{
    *to = (struct mu_electorate){.term = from->term,
                                 .round = from->round,
                                 .world = from->world,
                                 .rank = from->rank,
                                 .incarnation = from->incarnation};
}

void mu_rdzv_lead_view(struct mu_succession_view *to, const struct mu_rdzv_view *from)
{
    *to = (struct mu_succession_view){
        .term = from->term,
        .round = from->round,
        .step = (enum mu_succession_step)from->step,
        .count = from->count,
    };
    for (uint32_t i = 0; i < from->count; i++) {
        copy_electorate(&to->may[i], &from->may[i]);
    }
    copy_electorate(&to->told, &from->told);
    to->past_count = from->past_count;
    for (uint32_t i = 0; i < from->past_count; i++) {
        copy_electorate(&to->past[i], &from->past[i]);
    }
}

int mu_rdzv_lead_in(struct mu_rdzv_member *m, const struct mu_rdzv_join *join)
{
    if (m->run->lead == NULL) {
        return 0;
    }
    m->peer = mu_calloc(1, sizeof(*m->peer));
    if (m->peer == NULL) {
        return MUSTER_ENOMEM;
    }
    (void)snprintf(m->peer->name, sizeof(m->peer->name), "%s", m->room.name);
    m->peer->old = (join->flags & MU_RDZV_JOIN_HEIR) == 0;
    mu_rdzv_lead_view(&m->peer->view, &join->view);
    if (join->view.count > 0 && join->view.may[0].term > 0 &&
        join->view.may[0].rank != MU_SUCCESSION_NO_RANK) {
        /* The first of those that may be the last round is one that it ran in. */
        m->room.before = (struct mu_room_before){
            .known = true, .round = join->view.may[0].round, .rank = join->view.may[0].rank};
    }
    return 0;
}

void mu_rdzv_lead_entered(struct mu_rdzv_member *m)
{
    struct mu_rdzv_lead *lead = m->run->lead;

    if (lead != NULL) {
        m->peer->owner = m;
        mu_succession_peer_in(lead->machine, mono(lead), m->peer);
        lead->wake(lead->context);
    }
}

void mu_rdzv_lead_out(struct mu_rdzv_member *m, bool good)
{
    struct mu_rdzv_lead *lead = m->run->lead;

    if (m->peer != NULL && m->peer->owner != NULL) {
        mu_succession_peer_out(lead->machine, mono(lead), m->peer, good);
        lead->wake(lead->context);
    }
    mu_free(m->peer);
    m->peer = NULL;
    m->owed_prepare = false;
}

void mu_rdzv_lead_ready(struct mu_rdzv_member *m, const struct mu_rdzv_ready *ready)
{
    struct mu_rdzv_lead *lead = m->run->lead;

    mu_succession_ready(lead->machine, mono(lead), m->peer, ready->term, ready->round,
                        (enum mu_succession_step)ready->step);
    lead->wake(lead->context);
}

void mu_rdzv_lead_prepare(struct mu_rdzv_lead *lead, struct mu_succession_peer *peer,
                          const struct mu_succession_prepare *prepare)
{
    struct mu_rdzv_member *m = peer->owner;

    (void)lead;
    m->owed_prepare = true;
    m->prepare = *prepare;
    mu_rdzv_member_push(m);
}

void mu_rdzv_lead_notice(const struct mu_rdzv_lead *lead, struct mu_rdzv_notice *notice)
{
    notice->term = lead->machine->host_term;
    notice->line = lead->line.len != 0 ? mu_buf_span(&lead->line) : lead->named;
    notice->legacy = mu_buf_span(&lead->legacy);
}

/* --- rounds ----------------------------------------------------------------------------------- */

static bool is_named(const struct mu_rdzv_lead *lead, const char *addr)
{
    struct mu_span rest = lead->named;
    struct mu_rdzv_heir heir;

    while (mu_rdzv_heir_next(&rest, &heir) == 0) {
        if (mu_span_eq(heir.addr, mu_span_str(addr))) {
            return true;
        }
    }
    return false;
}

/* The name of the member that listens at a named endpoint, if there is one. */
static struct mu_span name_of(const struct mu_rdzv_run *run, struct mu_span addr)
{
    MU_LIST_FOREACH (it, &run->room.in[MU_ROOM_RUNNING].members) {
        const struct mu_rdzv_member *m = mu_rdzv_member_of(it);

        if (mu_span_eq(addr, mu_span_str(m->heir))) {
            return mu_span_str(m->room.name);
        }
    }
    return (struct mu_span){0};
}

/* The named endpoints, then members by rank, as many as there may be. A line that found no memory
 * is shorter. */
static void make_line(struct mu_rdzv_lead *lead, const struct mu_rdzv_run *run, uint32_t world)
{
    uint32_t len = mu_succession_line_len(world);
    struct mu_span rest = lead->named;
    struct mu_rdzv_heir heir;
    uint32_t rank = 0;
    uint32_t i = 0;

    mu_buf_reset(&lead->line);
    while (mu_rdzv_heir_next(&rest, &heir) == 0) {
        heir.node = name_of(run, heir.addr);
        (void)mu_rdzv_heir_encode(&lead->line, &heir);
    }
    MU_LIST_FOREACH (it, &run->room.in[MU_ROOM_RUNNING].members) {
        const struct mu_rdzv_member *m = mu_rdzv_member_of(it);

        if (i < len && rank++ == mu_succession_line_rank(world, i)) {
            i++;
            if (m->heir[0] != '\0' && !is_named(lead, m->heir)) {
                heir = (struct mu_rdzv_heir){.node = mu_span_str(m->room.name),
                                             .addr = mu_span_str(m->heir)};
                (void)mu_rdzv_heir_encode(&lead->line, &heir);
            }
        }
    }
}

/* Which nodes are excluded, or on the way there; of too many, those that are. */
static void put_excluded(struct mu_buf *out, const struct mu_rdzv_lead *lead,
                         const struct mu_room *room)
{
    if (mu_exclusions_encode(&room->exclusions, mono(lead), true, out) != 0) {
        mu_buf_reset(out);
        (void)mu_exclusions_encode(&room->exclusions, mono(lead), false, out);
    }
}

static void make_legacy(struct mu_rdzv_lead *lead, const struct mu_rdzv_run *run)
{
    const struct mu_room *room = &run->room;
    struct mu_rdzv_legacy legacy = {
        .term = lead->machine->host_term,
        .round = room->round,
        .version = ++lead->version,
        .incarnation = room->incarnation,
        .restarts = room->restarts,
        .losses_for_ms = mu_mono_since(mono(lead), room->losses_until) / MU_NS_PER_MS,
        .closed = room->state == MU_ROOM_IS_CLOSED,
        .members = room->names.count == 0 ? 1 : (uint32_t)room->names.count,
        .nodes_min = room->config.nodes_min,
        .nodes_max = room->config.nodes_max,
        .members_max = room->config.members_max,
        .restarts_max = room->config.restarts_max,
        .losses_max = room->config.losses.max,
        .losses_ms = room->config.losses.window_ms,
        .last_call_ms = room->config.last_call_ms,
        .upscale_delay_ms = room->config.upscale_delay_ms,
        .exclude_after = room->config.exclude.after,
        .exclude_within_ms = room->config.exclude.within_ms,
        .exclude_for_ms = room->config.exclude.for_ms,
    };
    const struct mu_room_member *self = mu_room_find(room, mu_span_str(lead->machine->config.name));
    struct mu_buf excluded;

    if (self != NULL && self->has_rank) {
        legacy.host = mu_span_str(self->name);
        legacy.topology = mu_span_str(self->topology);
        legacy.rank = self->rank;
    }
    mu_buf_init(&excluded, MU_RDZV_LEGACY_EXCLUDED_MAX);
    put_excluded(&excluded, lead, room);
    legacy.excluded = mu_buf_span(&excluded);
    mu_buf_reset(&lead->legacy);
    (void)mu_rdzv_legacy_encode(&lead->legacy, &legacy);
    mu_buf_fini(&excluded);
}

void mu_rdzv_lead_formed(struct mu_rdzv_run *run, uint64_t round, uint32_t world)
{
    struct mu_rdzv_lead *lead = run->lead;
    struct mu_errmsg why;

    if (lead == NULL) {
        return;
    }
    lead->held = true;
    lead->round = round;
    make_line(lead, run, world);
    make_legacy(lead, run);
    mu_succession_set_incarnation(lead->machine, run->room.incarnation);
    if (mu_succession_begin(lead->machine, round + MU_RDZV_LEAD_FIRST, world, &why) != 0) {
        /* Not our round to give any more: the members are about to be sent away. */
        mu_log(MUSTER_LOG_WARN, "RDZV-ROUND-HELD", "run=\"%.100s\" why=\"%s\"", run->id, why.text);
        return;
    }
    MU_LIST_FOREACH (it, &run->room.in[MU_ROOM_RUNNING].members) {
        struct mu_rdzv_member *m = mu_rdzv_member_of(it);

        mu_succession_seat(lead->machine, m->peer, m->room.rank);
    }
    mu_succession_go(lead->machine, mono(lead));
    lead->wake(lead->context);
}

void mu_rdzv_lead_ended(struct mu_rdzv_run *run)
{
    if (run->lead != NULL && run->lead->held) {
        run->lead->held = false; /* Nobody is owed an assignment any more. */
        mu_succession_abort(run->lead->machine);
        run->lead->wake(run->lead->context);
    }
}

static void tell_line(const struct mu_rdzv_run *run, enum mu_room_member_state state)
{
    MU_LIST_FOREACH (it, &run->room.in[state].members) {
        struct mu_rdzv_member *m = mu_rdzv_member_of(it);

        if (!m->peer->old && m->entered == 0) {
            m->entered = (uint32_t)state;
            mu_rdzv_member_push(m);
        }
    }
}

void mu_rdzv_lead_commit(struct mu_rdzv_lead *lead, uint64_t round)
{
    struct mu_rdzv_run *run = run_of(lead);

    if (run == NULL || !lead->held || lead->round + MU_RDZV_LEAD_FIRST != round) {
        return;
    }
    lead->held = false;
    MU_LIST_FOREACH (it, &run->room.in[MU_ROOM_RUNNING].members) {
        mu_rdzv_member_push(mu_rdzv_member_of(it));
    }
    /* Those without a rank are told the line, too: they follow whoever hosts then. */
    tell_line(run, MU_ROOM_WAITING);
    tell_line(run, MU_ROOM_SPARE);
}

void mu_rdzv_lead_changed(struct mu_rdzv_run *run)
{
    struct mu_rdzv_lead *lead = run->lead;

    if (lead != NULL && lead->hosting && !lead->held && lead->line.len != 0) {
        make_legacy(lead, run);
        tell_line(run, MU_ROOM_RUNNING);
        tell_line(run, MU_ROOM_WAITING);
        tell_line(run, MU_ROOM_SPARE);
    }
}

/* --- who hosts -------------------------------------------------------------------------------- */

int mu_rdzv_lead_host(struct mu_rdzv_lead *lead, const struct mu_rdzv_heritage *heritage,
                      struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_legacy legacy;
    struct mu_rdzv_run *run;
    uint64_t distance;
    struct mu_list *it;
    int err;

    MU_ASSERT(!lead->hosting);
    /* Others may host at the same time, where most endpoints were started anew. */
    mu_env_entropy(lead->hub->env, &distance, sizeof(distance));
    lead->hub->incarnation += distance % DISTANCE;
    lead->moved_term = 0;
    if (heritage->legacy.len != 0) {
        err = mu_rdzv_legacy_decode(heritage->legacy, &legacy);
        if (err == 0) {
            err = mu_rdzv_run_succeed(lead, &legacy, heritage->first_round, &run, reterr_msg);
        }
        if (err != 0) {
            return err;
        }
        lead->version = legacy.version;
        mu_room_hold(&run->room, mono(lead), heritage->hold);
    }
    lead->hosting = true;
    while ((it = mu_list_pop(&lead->parked)) != NULL) {
        struct parked *p = MU_CONTAINER_OF(it, struct parked, link);
        struct mu_rpc_event event = {.id = p->base.id, .payload = mu_buf_span(&p->payload)};
        struct mu_rpc_session *session = p->base.session;
        size_t *joins = p->joins;

        mu_rpc_served_remove(&p->base);
        mu_rdzv_member_start(lead->hub, session, joins, &event);
        mu_buf_fini(&p->payload);
        mu_free(p);
    }
    return 0;
}

static struct mu_room_member *first_member(const struct mu_room *room)
{
    for (size_t i = 0; i < MU_ROOM_STATES_IN; i++) {
        const struct mu_list *members = &room->in[mu_room_states_in[i]].members;

        if (!mu_list_empty(members)) {
            return MU_CONTAINER_OF(members->next, struct mu_room_member, link);
        }
    }
    return NULL;
}

/* All members are sent away, and the run is given up. Each that goes may end a round for the
 * others, or begin one. */
static void dissolve(struct mu_rdzv_lead *lead, struct mu_rdzv_run *run)
{
    struct mu_room_member *member;
    struct mu_room_notice notice;

    while (!run->over && (member = first_member(&run->room)) != NULL) {
        mu_room_leave(&run->room, mono(lead), member);
        mu_rdzv_member_move(member->owner, lead->moved_term != 0);
    }
    /* The run may have ended over it, for all who were left. */
    while (!run->over && mu_room_next_notice(&run->room, &member, &notice)) {
        mu_rdzv_member_move(member->owner, lead->moved_term != 0);
    }
    mu_rdzv_run_drop(run);
}

void mu_rdzv_lead_moved(struct mu_rdzv_lead *lead, uint64_t term, const char *addr)
{
    struct mu_rdzv_run *run = lead->hosting ? run_of(lead) : NULL;
    struct mu_list *it;

    lead->moved_term = term;
    (void)snprintf(lead->moved_addr, sizeof(lead->moved_addr), "%s", addr);
    lead->held = lead->hosting = false;
    if (run != NULL) {
        dissolve(lead, run);
    }
    mu_buf_reset(&lead->line);
    while (term != 0 && (it = mu_list_pop(&lead->parked)) != NULL) {
        struct parked *p = MU_CONTAINER_OF(it, struct parked, link);

        send_away(lead, p->base.session, p->base.id, p->knows);
        free_parked(p);
    }
}

void mu_rdzv_member_move(struct mu_rdzv_member *m, bool known)
{
    struct mu_rdzv_lead *lead = m->run->lead;

    if (known) {
        send_away(lead, m->base.session, m->base.id, m->peer != NULL && !m->peer->old);
    } else {
        mu_rpc_session_reply(m->base.session, m->base.id, MUSTER_ESESSION,
                             MU_SPAN_LIT("this node does not host the run any more"));
    }
    mu_rdzv_member_free(m);
}

/* How many members of the round, without `self`, were known to hear us at that time or later. */
static uint32_t count_confirmed(const struct mu_rdzv_run *run, const char *self, mu_mono_t since)
{
    uint32_t count = 0;

    MU_LIST_FOREACH (it, &run->room.in[MU_ROOM_RUNNING].members) {
        const struct mu_rdzv_member *m = mu_rdzv_member_of(it);

        count += !mu_mono_before(mu_rpc_confirmed(&m->base.session->rpc), since) &&
                 strcmp(m->room.name, self) != 0;
    }
    return count;
}

mu_mono_t mu_rdzv_lead_confirmed(const struct mu_rdzv_lead *lead, const char *self)
{
    struct mu_rdzv_run *run = lead->hosting ? run_of(lead) : NULL;
    uint32_t world = run == NULL || run->over ? 0 : run->room.in[MU_ROOM_RUNNING].count;
    uint32_t needed = (world + 1) / 2; /* at least half, with ourselves */
    uint64_t from;
    uint64_t to;

    if (needed <= 1) {
        return MU_MONO_NEVER;
    }
    to = mono(lead).ns;
    from = to > LOOK_BACK_MS * MU_NS_PER_MS ? to - LOOK_BACK_MS * MU_NS_PER_MS : 0;
    while (to - from > MU_NS_PER_MS) {
        uint64_t middle = from + (to - from) / 2;

        if (count_confirmed(run, self, (mu_mono_t){middle}) + 1 >= needed) {
            from = middle;
        } else {
            to = middle;
        }
    }
    return (mu_mono_t){from};
}
