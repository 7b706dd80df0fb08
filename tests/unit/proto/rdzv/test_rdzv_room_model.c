/*
 * The room against a naive model: 200,000 random steps of nodes that come, go, are lost and fail,
 * of time that passes in time or late, of joins that run out of memory and of notices that are
 * pulled at once, later or one by one. The model holds a plain table and looks through all of it
 * for everything. After each step the members' states, ranks and the deadline must be the model's,
 * and each notice that is pulled must be one that the model has for that member, with its words;
 * when none is left the model has none either. Now and then the churn stops, and a round must form
 * in time.
 */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/prng.h"
#include "failheap.h"
#include "room_watch.h"

#define STEPS 200000
#define NODES 14
#define NEVER MU_MONO_NEVER.ns

/* What a node is in the model, and what it is still to be told. */
struct node {
    enum mu_room_member_state state;
    uint64_t arrival;
    bool has_rank;
    uint32_t rank;
    uint32_t zone; /* 0: it gave no topology */
    uint32_t rack;
    uint32_t target;
    bool told;
    bool owed_assigned, owed_waiters, owed_ended, owed_closed, owed_failed;
    uint64_t ended_round;
    enum mu_room_end_reason reason;
    int who; /* -1: nobody */
    uint32_t who_rank;
    enum mu_room_member_state was;
};

#define LOSSES_MAX 5

static struct {
    struct mu_room_config config;
    enum mu_room_state state;
    uint64_t round;
    uint32_t restarts;
    uint64_t last_call, call_ms, call_end, upscale, waiters_next, hold;
    uint64_t losses[LOSSES_MAX]; /* when each is forgotten */
    uint64_t sure;
    uint32_t doubted;
    bool undecided;
    bool newcomer;
    uint32_t waiters_told;
    bool after_round;
    uint64_t arrivals;
    struct {
        bool free; /* since the last round */
        int node;
        uint32_t zone, rack;
    } places[NODES]; /* by rank */
    struct node nodes[NODES];
} model;

static struct mu_room room;
static struct mu_room_member members[NODES];
static struct room_view views[NODES];
static struct mu_prng prng;
static mu_mono_t now;
static struct {
    unsigned rounds, upscales, restarts, failed, closed, promoted, refused, calm, forgiven, looped;
    unsigned back, near;
} tally;

static uint64_t pick(uint64_t bound)
{
    return mu_prng_below(&prng, bound);
}

static uint64_t later(uint64_t ms)
{
    return mu_mono_add_ms(now, ms).ns;
}

/* --- the model ------------------------------------------------------------------------------- */

static uint32_t count_in(enum mu_room_member_state state)
{
    uint32_t count = 0;

    for (size_t i = 0; i < NODES; i++) {
        count += model.nodes[i].state == state;
    }
    return count;
}

static uint32_t count_all(void)
{
    return NODES - count_in(MU_ROOM_OUT);
}

/* The one that came first of those in that state, or -1. */
static int oldest_in(enum mu_room_member_state state)
{
    int oldest = -1;

    for (int i = 0; i < NODES; i++) {
        if (model.nodes[i].state == state &&
            (oldest < 0 || model.nodes[i].arrival < model.nodes[oldest].arrival)) {
            oldest = i;
        }
    }
    return oldest;
}

static int nearness(uint32_t zone, uint32_t rack, const struct node *n)
{
    return zone != n->zone ? 0 : rack == n->rack ? 2 : zone != 0;
}

/* The spare that takes the place of that node, or -1; of several the one that came first. */
static int spare_for(int gone)
{
    const struct node *g = &model.nodes[gone];
    int best = oldest_in(MU_ROOM_SPARE);

    for (int i = 0; i < NODES; i++) {
        const struct node *n = &model.nodes[i];

        if (n->state == MU_ROOM_SPARE) {
            int better =
                nearness(g->zone, g->rack, n) - nearness(g->zone, g->rack, &model.nodes[best]);

            if (better > 0 || (better == 0 && n->arrival < model.nodes[best].arrival)) {
                best = i;
            }
        }
    }
    return best;
}

static uint32_t largest_target(void)
{
    uint32_t largest = 0;

    for (size_t i = 0; i < NODES; i++) {
        if (model.nodes[i].state != MU_ROOM_OUT && model.nodes[i].target > largest) {
            largest = model.nodes[i].target;
        }
    }
    return largest;
}

/* The gathering node without a rank yet in this round that comes first by zone, rack and number,
 * of those that are as near to the place as that. */
static int first_without(const bool *done, uint32_t place, int near)
{
    int first = -1;

    for (int i = 0; i < NODES; i++) {
        const struct node *n = &model.nodes[i];
        const struct node *f = first < 0 ? NULL : &model.nodes[first];

        if (n->state == MU_ROOM_GATHERING && !done[i] &&
            nearness(model.places[place].zone, model.places[place].rack, n) >= near &&
            (f == NULL || n->zone < f->zone || (n->zone == f->zone && n->rack < f->rack))) {
            first = i;
        }
    }
    return first;
}

static void model_give(int i, uint32_t rank, bool *taken, bool *done)
{
    taken[rank] = true;
    done[i] = true;
    model.nodes[i].rank = rank;
    model.nodes[i].has_rank = true;
}

/* Places that were lost go to whoever had them, then to the nearest. */
static void model_fill(uint32_t world, bool *taken, bool *done)
{
    for (uint32_t rank = 0; rank < world; rank++) {
        int i = model.places[rank].node;

        if (model.places[rank].free && model.nodes[i].state == MU_ROOM_GATHERING && !done[i]) {
            model_give(i, rank, taken, done);
            tally.back++;
        }
    }
    for (int near = 2; near > 0; near--) {
        for (uint32_t rank = 0; rank < world; rank++) {
            int i = first_without(done, rank, near);

            if (model.places[rank].free && !taken[rank] && i >= 0) {
                model_give(i, rank, taken, done);
                tally.near++;
            }
        }
    }
}

static void model_form(void)
{
    uint32_t world = count_in(MU_ROOM_GATHERING);
    bool taken[NODES] = {0};
    bool done[NODES] = {0};

    for (int i = 0; i < NODES; i++) {
        struct node *n = &model.nodes[i];

        if (n->state == MU_ROOM_GATHERING && n->has_rank && n->rank < world) {
            assert_false(taken[n->rank]);
            taken[n->rank] = true;
            done[i] = true;
        }
    }
    model_fill(world, taken, done);
    for (uint32_t rank = 0; rank < world; rank++) {
        if (!taken[rank]) {
            model_give(first_without(done, rank, 0), rank, taken, done);
        }
    }
    memset(model.places, 0, sizeof(model.places));
    for (int i = 0; i < NODES; i++) {
        if (model.nodes[i].state == MU_ROOM_GATHERING) {
            model.nodes[i].state = MU_ROOM_RUNNING;
            model.nodes[i].owed_assigned = true;
        }
    }
    model.state = MU_ROOM_IS_RUNNING;
    model.last_call = NEVER;
    model.waiters_told = 0;
    model.waiters_next = 0;
    tally.rounds++;
}

static void model_dismiss(enum mu_room_notice_kind kind)
{
    for (size_t i = 0; i < NODES; i++) {
        struct node *n = &model.nodes[i];

        if (n->state != MU_ROOM_OUT) {
            n->was = n->state;
            n->state = MU_ROOM_OUT;
            n->told = n->owed_assigned = n->owed_waiters = n->owed_ended = false;
            n->owed_closed = kind == MU_ROOM_CLOSED;
            n->owed_failed = kind == MU_ROOM_FAILED;
        }
    }
}

/* `who` and its rank are known to those who fail as well. */
static struct {
    int who;
    uint32_t rank;
    uint64_t round;
    enum mu_room_end_reason reason;
} last_end;

/* So many losses are free, and each is again when its turn has come, one after the other. */
static bool is_free_loss(void)
{
    uint64_t each = model.config.losses.window_ms * MU_NS_PER_MS;
    uint64_t last = now.ns;
    int free = -1;

    if (each == 0) {
        return true;
    }
    for (uint32_t i = 0; i < model.config.losses.max; i++) {
        last = model.losses[i] > last ? model.losses[i] : last;
        free = model.losses[i] <= now.ns ? (int)i : free;
    }
    if (free >= 0) {
        model.losses[free] = last + each / model.config.losses.max;
    }
    return free >= 0;
}

static void model_fail(void)
{
    model_dismiss(MU_ROOM_FAILED);
    model.state = MU_ROOM_IS_FAILED;
    model.undecided = false;
}

static void model_name(enum mu_room_end_reason reason, int who)
{
    last_end.who = who;
    last_end.rank = who < 0 ? 0 : model.nodes[who].rank;
    last_end.reason = reason;
}

static void model_count_loss(int who)
{
    if (!is_free_loss()) {
        model_name(MU_ROOM_END_LOST, who);
        tally.looped++;
        model_fail();
    }
}

static void model_charge(void)
{
    model.doubted = model.sure <= now.ns ? 0 : model.doubted;
    if (model.config.restarts_max == UINT32_MAX || model.restarts < model.config.restarts_max) {
        model.restarts++;
        model.doubted++;
        tally.restarts++;
    } else if (now.ns < model.sure) {
        model.undecided = true;
    } else {
        model_fail();
    }
}

static bool model_forgive(void)
{
    if (model.sure <= now.ns || (model.doubted == 0 && !model.undecided)) {
        return false;
    }
    model.restarts -= model.doubted;
    model.doubted = 0;
    model.undecided = false;
    tally.forgiven++;
    return true;
}

static void model_end(enum mu_room_end_reason reason, int who)
{
    model_name(reason, who);
    last_end.round = model.round;
    model.state = MU_ROOM_IS_GATHERING;
    model.upscale = NEVER;
    if (reason == MU_ROOM_END_FAILED) {
        model_charge();
    } else if (reason == MU_ROOM_END_LOST) {
        model_count_loss(who);
    }
    if (model.state == MU_ROOM_IS_FAILED) {
        model.round++;
        return;
    }
    for (size_t i = 0; i < NODES; i++) {
        struct node *n = &model.nodes[i];

        if (n->state == MU_ROOM_RUNNING) {
            n->state = MU_ROOM_GATHERING;
            n->owed_assigned = n->owed_waiters = false;
            if (n->told) {
                n->told = false;
                n->owed_ended = true;
                n->ended_round = model.round;
                n->reason = reason;
                n->who = who;
                n->who_rank = last_end.rank;
            }
        }
    }
    model.round++;
    for (int late; count_in(MU_ROOM_GATHERING) < model.config.nodes_max;) {
        late = oldest_in(MU_ROOM_WAITING);
        if (late < 0) {
            late = who < 0 ? oldest_in(MU_ROOM_SPARE) : spare_for(who);
            tally.promoted += late >= 0;
        }
        if (late < 0) {
            break;
        }
        model.nodes[late].state = MU_ROOM_GATHERING;
    }
    if (reason == MU_ROOM_END_UPSCALE) {
        tally.upscales++;
        model_form();
    } else {
        model.after_round = true;
    }
}

static void model_settle_running(void)
{
    uint32_t running = count_in(MU_ROOM_RUNNING);
    uint32_t waiting = count_in(MU_ROOM_WAITING);
    uint32_t here = running + waiting;
    uint32_t target = largest_target();

    if (waiting == 0) {
        model.upscale = NEVER;
    } else if (model.config.upscale_delay_ms != UINT64_MAX) {
        if (model.upscale == NEVER) {
            model.upscale = later(model.config.upscale_delay_ms);
        }
        if (here == model.config.nodes_max || (target > running && target <= here) ||
            model.upscale <= now.ns) {
            model_end(MU_ROOM_END_UPSCALE, -1);
            return;
        }
    }
    if (waiting != model.waiters_told && model.waiters_next <= now.ns) {
        model.waiters_told = waiting;
        model.waiters_next = later(1000);
        for (size_t i = 0; i < NODES; i++) {
            model.nodes[i].owed_waiters |= model.nodes[i].state == MU_ROOM_RUNNING;
        }
    }
}

static void model_settle(void)
{
    uint32_t here = count_in(MU_ROOM_GATHERING);
    uint32_t target = largest_target();

    if (model.state == MU_ROOM_IS_RUNNING) {
        model_settle_running();
    } else if (model.state == MU_ROOM_IS_GATHERING) {
        bool after_round = model.after_round;

        bool newcomer = model.newcomer;

        model.after_round = false;
        model.newcomer = false;
        if (here < model.config.nodes_min) {
            model.last_call = NEVER;
        } else if (model.last_call == NEVER) {
            model.call_ms = model.config.last_call_ms / (after_round ? 4 : 1);
            model.last_call = later(model.call_ms);
            model.call_end = later(model.call_ms * 10);
        } else if (newcomer) {
            model.last_call = later(model.call_ms);
            model.last_call = model.last_call < model.call_end ? model.last_call : model.call_end;
        }
        if (model.undecided) {
            if (model.sure <= now.ns) {
                model_fail();
            }
            return;
        }
        if (here < model.config.nodes_min) {
            return;
        }
        if ((here == model.config.nodes_max || (target > 0 && target <= here) ||
             model.last_call <= now.ns) &&
            model.hold <= now.ns) {
            model_form();
        }
    }
}

static uint64_t model_deadline(void)
{
    uint64_t waiters = NEVER;

    if (model.state == MU_ROOM_IS_GATHERING) {
        uint32_t here = count_in(MU_ROOM_GATHERING);
        uint32_t target = largest_target();

        if (model.undecided) {
            return model.sure;
        }
        if (here < model.config.nodes_min) {
            return NEVER;
        }
        return here == model.config.nodes_max || (target > 0 && target <= here) ||
                       model.last_call < model.hold
                   ? model.hold
                   : model.last_call;
    }
    if (model.state != MU_ROOM_IS_RUNNING) {
        return NEVER;
    }
    if (count_in(MU_ROOM_WAITING) != model.waiters_told) {
        waiters = model.waiters_next;
    }
    return waiters < model.upscale ? waiters : model.upscale;
}

static void model_join(int i)
{
    struct node *n = &model.nodes[i];
    uint32_t zone = n->zone;
    uint32_t rack = n->rack;
    uint32_t target = n->target;

    *n = (struct node){.arrival = ++model.arrivals, .zone = zone, .rack = rack, .target = target};
    if (model.state == MU_ROOM_IS_GATHERING) {
        n->state = count_in(MU_ROOM_GATHERING) < model.config.nodes_max ? MU_ROOM_GATHERING
                                                                        : MU_ROOM_SPARE;
        model.newcomer = n->state == MU_ROOM_GATHERING;
    } else {
        bool room_left =
            count_in(MU_ROOM_RUNNING) + count_in(MU_ROOM_WAITING) < model.config.nodes_max;

        n->state = room_left ? MU_ROOM_WAITING : MU_ROOM_SPARE;
    }
    model_settle();
}

static void model_part(int i, enum mu_room_end_reason reason)
{
    struct node *n = &model.nodes[i];
    enum mu_room_member_state state = n->state;
    bool forgiven;

    n->state = MU_ROOM_OUT;
    n->told = false;
    n->owed_assigned = n->owed_waiters = n->owed_ended = n->owed_closed = n->owed_failed = false;
    if (state == MU_ROOM_OUT) {
        return;
    }
    if (n->has_rank) {
        model.places[n->rank].free = true;
        model.places[n->rank].node = i;
        model.places[n->rank].zone = n->zone;
        model.places[n->rank].rack = n->rack;
    }
    forgiven = n->has_rank && model_forgive();
    if (state == MU_ROOM_RUNNING) {
        model_end(reason, i);
    }
    if (forgiven && (state != MU_ROOM_RUNNING || reason == MU_ROOM_END_LEFT)) {
        model_count_loss(i);
    }
    if (state == MU_ROOM_WAITING || state == MU_ROOM_GATHERING) {
        int spare = spare_for(i);

        if (spare >= 0) {
            model.nodes[spare].state = state;
        }
    }
    model_settle();
}

/* --- comparing ------------------------------------------------------------------------------- */

static void compare_states(void)
{
    assert_int_equal(room.state, model.state);
    assert_int_equal(room.round, model.round);
    assert_int_equal(room.restarts, model.restarts);
    assert_int_equal(mu_room_deadline(&room).ns, model_deadline());
    for (size_t i = 0; i < NODES; i++) {
        assert_int_equal(members[i].state, model.nodes[i].state);
        if (members[i].state != MU_ROOM_OUT) {
            assert_int_equal(members[i].has_rank, model.nodes[i].has_rank);
            assert_true(!members[i].has_rank || members[i].rank == model.nodes[i].rank);
        }
    }
    room_watch_shape(&room, now);
}

static bool is_anybody_owed_an_end(void)
{
    for (size_t i = 0; i < NODES; i++) {
        if (model.nodes[i].owed_ended) {
            return true;
        }
    }
    return false;
}

static void compare_who(const struct mu_room_notice *notice, int who, uint32_t who_rank)
{
    assert_int_equal(notice->who_rank, who_rank);
    if (who < 0) {
        assert_null(notice->who);
    } else {
        assert_string_equal(notice->who, members[who].name);
    }
}

static void check_owed(struct node *n, const struct mu_room_notice *notice)
{
    switch (notice->kind) {
    case MU_ROOM_ASSIGNED:
        assert_true(n->owed_assigned && !is_anybody_owed_an_end());
        assert_int_equal(notice->round, model.round);
        assert_int_equal(notice->rank, n->rank);
        assert_int_equal(notice->world, count_in(MU_ROOM_RUNNING));
        assert_int_equal(notice->restarts_left, model.config.restarts_max == UINT32_MAX
                                                    ? UINT32_MAX
                                                    : model.config.restarts_max - model.restarts);
        n->owed_assigned = false;
        n->told = true;
        break;
    case MU_ROOM_ENDED:
        assert_true(n->owed_ended);
        assert_int_equal(notice->round, n->ended_round);
        assert_int_equal(notice->reason, n->reason);
        /* Only the last one's name is kept. */
        compare_who(notice, n->ended_round == last_end.round ? n->who : -1, n->who_rank);
        n->owed_ended = false;
        break;
    case MU_ROOM_WAITERS:
        assert_true(n->owed_waiters && !n->owed_assigned);
        assert_int_equal(notice->waiters, count_in(MU_ROOM_WAITING));
        n->owed_waiters = false;
        break;
    case MU_ROOM_CLOSED:
        assert_true(n->owed_closed);
        assert_int_equal(notice->was, n->was);
        n->owed_closed = false;
        break;
    case MU_ROOM_FAILED:
        assert_true(n->owed_failed);
        assert_int_equal(notice->was, n->was);
        assert_int_equal(notice->round, last_end.round);
        assert_int_equal(notice->reason, last_end.reason);
        compare_who(notice, last_end.who, last_end.rank);
        n->owed_failed = false;
        break;
    case MU_ROOM_EXCLUDED:
        fail();
        break;
    }
}

static bool pull_one(void)
{
    struct mu_room_member *m;
    struct mu_room_notice notice;

    if (!mu_room_next_notice(&room, &m, &notice)) {
        return false;
    }
    assert_int_equal(notice.incarnation, room.incarnation);
    check_owed(&model.nodes[(uintptr_t)m->owner], &notice);
    room_watch_notice(views, NODES, m, &notice);
    return true;
}

static void pull_all(void)
{
    while (pull_one()) {
    }
    for (size_t i = 0; i < NODES; i++) {
        const struct node *n = &model.nodes[i];

        assert_false(n->owed_assigned || n->owed_ended || n->owed_waiters || n->owed_closed ||
                     n->owed_failed);
    }
    room_watch_agreed(&room, views, NODES);
}

/* --- steps ----------------------------------------------------------------------------------- */

static void open_room(uint64_t incarnation)
{
    static const uint64_t delays[] = {0, 1, 500, 1000, 5000, UINT64_MAX};
    uint32_t min = 1 + (uint32_t)pick(5);

    memset(&model, 0, sizeof(model));
    model.config = (struct mu_room_config){
        .nodes_min = min,
        .nodes_max = min + (uint32_t)pick(6),
        .last_call_ms = delays[pick(5)],
        .upscale_delay_ms = delays[pick(6)],
        .restarts_max = pick(3) == 0 ? (uint32_t)pick(6) : UINT32_MAX,
        .losses = {(uint32_t)pick(LOSSES_MAX + 1), pick(2) == 0 ? 0 : 1 + pick(20000)},
        .members_max = (uint32_t)(10 + pick(NODES)),
        .seed = pick(UINT32_MAX),
    };
    model.state = MU_ROOM_IS_GATHERING;
    model.last_call = model.upscale = NEVER;
    assert_int_equal(mu_room_init(&room, &model.config, incarnation), 0);
}

static int try_join(int i)
{
    struct mu_errmsg msg;
    bool no_memory = pick(20) == 0;
    int r;

    members[i].target = pick(3) == 0 ? 1 + (uint32_t)pick(12) : 0;
    model.nodes[i].target = members[i].target;
    model.nodes[i].zone = pick(2) == 0 ? 1 + (uint32_t)pick(3) : 0;
    model.nodes[i].rack = model.nodes[i].zone == 0 ? 0 : 1 + (uint32_t)pick(12);
    members[i].topology[0] = '\0';
    if (model.nodes[i].zone != 0) {
        (void)snprintf(members[i].topology, sizeof(members[i].topology), "zone%u/rack%u",
                       model.nodes[i].zone, model.nodes[i].rack);
    }
    if (no_memory) {
        failheap_arm(0);
    }
    r = mu_room_join(&room, now, &members[i], model.config.nodes_min, model.config.nodes_max, &msg);
    failheap_disarm();
    return r;
}

static void step_join(int i)
{
    bool is_over = model.state == MU_ROOM_IS_CLOSED || model.state == MU_ROOM_IS_FAILED;
    int r;

    if (members[i].state != MU_ROOM_OUT || members[i].notices != 0) {
        return;
    }
    r = try_join(i);
    if (is_over) {
        assert_int_equal(r, MUSTER_ECLOSED);
    } else if (count_all() >= model.config.members_max) {
        assert_int_equal(r, MUSTER_ELIMIT);
    } else if (r == 0) {
        model_join(i);
        return;
    } else {
        assert_int_equal(r, MUSTER_ENOMEM);
    }
    tally.refused++;
}

static void step_part(int i)
{
    room_watch_gone(&views[i]);
    if (pick(2) == 0) {
        mu_room_leave(&room, now, &members[i]);
        model_part(i, MU_ROOM_END_LEFT);
    } else {
        mu_room_lost(&room, now, &members[i]);
        model_part(i, MU_ROOM_END_LOST);
    }
}

static void step_fail(int i)
{
    uint64_t round = model.round - (pick(4) == 0);
    bool stops = pick(2) == 0;

    (stops ? mu_room_stop : mu_room_fail)(&room, now, &members[i], round);
    if (model.nodes[i].state == MU_ROOM_RUNNING && round == model.round) {
        model_end(stops ? MU_ROOM_END_LOST : MU_ROOM_END_FAILED, i);
        model_settle();
    } else if (stops && model.nodes[i].state == MU_ROOM_GATHERING && model.nodes[i].has_rank &&
               round == last_end.round && model_forgive()) {
        model_count_loss(i);
        model_settle();
    }
}

static void step_doubt(void)
{
    uint64_t until = now.ns + pick(4 * MU_NS_PER_S);

    if (pick(4) == 0) {
        mu_room_be_sure(&room, now);
        model.sure = now.ns < model.sure ? now.ns : model.sure;
        model_settle();
        return;
    }
    mu_room_doubt(&room, now, (mu_mono_t){until});
    model.doubted = model.sure <= now.ns ? 0 : model.doubted;
    model.sure = until > model.sure ? until : model.sure;
}

static void step_hold(void)
{
    uint64_t until = now.ns + pick(2 * MU_NS_PER_S);

    mu_room_hold(&room, now, (mu_mono_t){until});
    model.hold = until > model.hold ? until : model.hold;
    model_settle();
}

static void step_time(void)
{
    uint64_t deadline = model_deadline();

    if (deadline != NEVER && pick(2) == 0) {
        now.ns = deadline + (pick(4) == 0 ? pick(10 * MU_NS_PER_S) : 0);
    } else {
        now.ns += pick(700 * MU_NS_PER_MS);
    }
    mu_room_tick(&room, now);
    model_settle();
}

/* Enough nodes are in and nothing happens any more: a round forms within both delays. */
static void calm_down(void)
{
    uint64_t wait_ms =
        model.config.last_call_ms +
        (model.config.upscale_delay_ms == UINT64_MAX ? 0 : model.config.upscale_delay_ms);
    mu_mono_t end;

    for (int i = 0; i < NODES && count_all() < model.config.nodes_min; i++) {
        step_join(i);
    }
    if (count_all() < model.config.nodes_min || model.undecided) {
        return;
    }
    end = mu_mono_add_ms(now.ns < model.hold ? (mu_mono_t){model.hold} : now, wait_ms);
    while (!mu_mono_before(end, mu_room_deadline(&room))) {
        now = mu_room_deadline(&room);
        mu_room_tick(&room, now);
        model_settle();
        compare_states();
    }
    pull_all();
    assert_int_equal(room.state, MU_ROOM_IS_RUNNING);
    if (model.config.upscale_delay_ms != UINT64_MAX) {
        assert_int_equal(room.in[MU_ROOM_WAITING].count, 0);
    }
    tally.calm++;
}

/* Over, or enough of it: the next incarnation begins, with other numbers. */
static void step_close(void)
{
    bool is_over = model.state == MU_ROOM_IS_CLOSED || model.state == MU_ROOM_IS_FAILED;

    if (!is_over) {
        mu_room_close(&room, now);
        model.state = MU_ROOM_IS_CLOSED;
        model_dismiss(MU_ROOM_CLOSED);
        tally.closed++;
        return;
    }
    tally.failed += model.state == MU_ROOM_IS_FAILED;
    pull_all();
    assert_true(mu_room_done(&room));
    mu_room_fini(&room);
    open_room(room.incarnation + 1);
}

static void step(void)
{
    uint64_t what = pick(1000);
    int i = (int)pick(NODES);

    if (model.state == MU_ROOM_IS_FAILED || model.state == MU_ROOM_IS_CLOSED) {
        what = pick(3) == 0 ? 0 : what;
    }
    if (what < 4) {
        step_close();
    } else if (what < 10) {
        calm_down();
    } else if (what < 450) {
        step_join(i);
    } else if (what < 600) {
        step_part(i);
    } else if (what < 700) {
        step_fail(i);
    } else if (what < 710) {
        step_hold();
    } else if (what < 800) {
        step_doubt();
    } else {
        step_time();
    }
    compare_states();
    switch (pick(4)) {
    case 0:
        break;
    case 1:
        (void)pull_one();
        break;
    default:
        pull_all();
        break;
    }
}

static void test_room_does_what_the_model_does(void **state)
{
    (void)state;
    mu_prng_seed(&prng, 20260715);
    now = (mu_mono_t){MU_NS_PER_S};
    for (size_t i = 0; i < NODES; i++) {
        (void)snprintf(members[i].name, sizeof(members[i].name), "n%zu", i);
        members[i].owner = (void *)(uintptr_t)i;
    }
    open_room(1);
    for (unsigned i = 0; i < STEPS; i++) {
        step();
    }
    print_message("%u rounds, %u upscales, %u restarts, %u promoted, %u closed, %u failed, "
                  "%u refused, %u times calm, %u back, %u near\n",
                  tally.rounds, tally.upscales, tally.restarts, tally.promoted, tally.closed,
                  tally.failed, tally.refused, tally.calm, tally.back, tally.near);
    /* The walk has been everywhere. */
    assert_true(tally.rounds > 1000 && tally.upscales > 1000 && tally.restarts > 1000);
    assert_true(tally.promoted > 100 && tally.closed > 100 && tally.failed > 100);
    assert_true(tally.refused > 100 && tally.calm > 100);
    assert_true(tally.forgiven > 100 && tally.looped > 100);
    assert_true(tally.back > 50 && tally.near > 1000);
    for (size_t i = 0; i < NODES; i++) {
        mu_room_leave(&room, now, &members[i]);
    }
    mu_room_fini(&room);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room_does_what_the_model_does),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
