/*
 * Every order of events among three nodes of a rendezvous that join, join again, leave, crash, are
 * stopped for a while and close over one compare-and-set register. The machines are the real ones;
 * what is explored is when a request reaches the register, when time passes and who notices first,
 * and at which of these moments somebody wants something else, dies or is stopped. How often each
 * may happen is bounded by a budget, everything else is exhaustive: states that were met before are
 * not followed again.
 *
 * Two orders of events that cannot make a difference count as one. What happens inside a node (it
 * is answered, it is told) is seen by nobody else, so it is not interleaved with what happens in
 * others, but with all that may happen to the node itself. Time passes when all are waiting for it,
 * but for those who are stopped. The first test does without these savings.
 *
 * After each step:   all who were ever assigned a round were assigned the same world; ranks are
 *                    those of their order, unique and without a gap; nobody is a member of one
 *                    round and listed in another, or gets its old round again.
 * Whenever all is quiet: left alone from here, fairly driven, every operation ends; and if the run
 *                    is not closed and enough nodes still want to, they all meet in one round.
 */
#include "rdzv_sys.h"

#include <stdio.h>

static struct mu_rdzv_config base;
static bool all_orders; /* even those that cannot make a difference */
static uint64_t states;
static uint64_t ends;
static uint64_t assignments;
static size_t deepest;

/* --- states that were met ---------------------------------------------- */

static uint64_t *met;
static size_t met_cap;

static void forget_all(size_t cap)
{
    free(met);
    met = calloc(cap, sizeof(*met));
    assert_non_null(met);
    met_cap = cap;
    states = ends = assignments = 0;
    deepest = 0;
}

/* Whether it is new. */
static bool remember(uint64_t print)
{
    size_t at = (size_t)print & (met_cap - 1);

    while (met[at] != 0) {
        if (met[at] == print) {
            return false;
        }
        at = (at + 1) & (met_cap - 1);
    }
    if (states * 10 > met_cap * 8) {
        fail_msg("more than %zu states; the budget is too large", met_cap / 10 * 8);
    }
    met[at] = print;
    states++;
    return true;
}

/* --- what happened, for the one who has to find out ---------------------- */

#define PATH_MAX 400

static char path[PATH_MAX][24];
static size_t depth;

static void broken(const struct sys *s, const char *what)
{
    for (size_t i = 0; i < depth; i++) {
        print_message("%zu %s\n", i, path[i]);
    }
    for (size_t i = 0; i < NODES; i++) {
        print_message("%c: %s, round %lld\n", (int)('a' + i), mu_rdzv_phase_name(s->a[i].r.v.phase),
                      (long long)s->a[i].r.v.round);
    }
    fail_msg("%s", what);
}

/* --- the parts that move -------------------------------------------------- */

static void check_assignment(struct sys *s, size_t i, const struct mu_rdzv_update *up)
{
    char world[8] = {0};

    assignments++;
    if (up->round >= ROUNDS || up->world > base.settings.max_nodes ||
        up->world < base.settings.min_nodes || up->rank < 0 || (size_t)up->rank >= up->world) {
        broken(s, "an assignment out of all bounds");
    }
    for (size_t k = 0; k < up->world; k++) {
        world[k] = up->members[k]->addr[0];
        if (k > 0 && world[k] <= world[k - 1]) {
            broken(s, "ranks do not follow the order of the nodes");
        }
    }
    if (world[up->rank] != (char)('a' + i)) {
        broken(s, "a node has the rank of another");
    }
    if (up->round <= s->a[i].last_round) {
        broken(s, "a node that joined again got its old round");
    }
    s->a[i].last_round = up->round;
    if (s->worlds[up->round][0] == '\0') {
        memcpy(s->worlds[up->round], world, sizeof(world));
    } else if (memcmp(s->worlds[up->round], world, sizeof(world)) != 0) {
        broken(s, "two worlds in one round");
    }
}

static void check_membership(const struct sys *s)
{
    for (size_t i = 0; s->present && i < NODES; i++) {
        const struct mu_rdzv_vars *v = &s->a[i].r.v;

        if (s->a[i].alive && v->phase == MU_RDZV_MEMBER && s->reg.participant[i] &&
            (s->reg.round != v->round || !s->reg.complete)) {
            broken(s, "a member of one round takes part in another");
        }
    }
}

static void fill_blob(struct blob *blob, const struct mu_rdzv_state *s, struct mu_span bytes)
{
    assert_true(bytes.len <= BLOB_MAX);
    *blob = (struct blob){
        .meaning = meaning(s), .round = s->round, .complete = s->complete, .len = bytes.len};
    memcpy(blob->bytes, bytes.data, bytes.len);
    for (size_t i = 0; i < s->member_count; i++) {
        blob->participant[s->members[i].node.addr[0] - 'a'] = s->members[i].participant;
    }
}

static void step(struct sys *s, size_t i, struct mu_rdzv_event ev)
{
    struct actor *a = &s->a[i];
    struct mu_rdzv_update up;

    do {
        ev.now = (struct mu_now){.mono = {MONO + s->now}, .wall = {EPOCH + s->now}};
        assert_int_equal(mu_rdzv_step(&a->r, &ev, &up), 0);
        if ((up.flags & (MU_RDZV_DO_READ | MU_RDZV_DO_WRITE)) != 0) {
            a->stage = SENT;
            a->request = up.request;
            a->write = (up.flags & MU_RDZV_DO_WRITE) != 0;
            a->has_token = up.has_token;
            a->token = up.has_token ? mu_get_u64(up.token.data) : 0;
            if (a->write) {
                fill_blob(&a->blob, &a->r.next, up.bytes);
            }
        }
        if ((up.flags & MU_RDZV_ASSIGNED) != 0) {
            check_assignment(s, i, &up);
            a->waiting = 0;
            a->left = a->world = up.world;
        }
        a->waiting = (up.flags & MU_RDZV_WAITING) != 0 ? up.waiting : a->waiting;
        a->left = (up.flags & MU_RDZV_LOST) != 0 ? up.left : a->left;
        if ((up.flags & MU_RDZV_FAILED) != 0 && (up.failed & ~(unsigned)MU_RDZV_OP_CLOSE) != 0) {
            a->wants = false;
        }
        /* Waits of no length are not worth a choice. */
        ev = (struct mu_rdzv_event){.type = MU_RDZV_TIMEOUT};
    } while (mu_mono_reached(up.deadline, (mu_mono_t){MONO + s->now}) && a->stage == NOT_ASKING);
}

static void wish(struct sys *s, size_t i, enum mu_rdzv_event_type type)
{
    if (type == MU_RDZV_JOIN) {
        s->a[i].wants = true;
    } else if (type == MU_RDZV_LEAVE) {
        s->a[i].wants = false;
    }
    step(s, i, (struct mu_rdzv_event){.type = type});
}

static void watch(struct sys *s, size_t i)
{
    uint8_t token[8];

    mu_put_u64(token, s->version);
    s->a[i].watch = false;
    step(s, i, (struct mu_rdzv_event){.type = MU_RDZV_WATCH, .token = {token, sizeof(token)}});
}

static void exec(struct sys *s, size_t i)
{
    struct actor *a = &s->a[i];

    a->stage = a->alive ? DONE : NOT_ASKING;
    a->accepted = a->write && (a->has_token ? s->present && a->token == s->version : !s->present);
    if (a->accepted) {
        s->reg = a->blob;
        s->present = true;
        s->version++;
    } else {
        a->blob = s->reg;
    }
    a->present = s->present;
    a->token = s->version;
    for (size_t k = 0; a->accepted && k < NODES; k++) {
        s->a[k].watch = s->a[k].alive;
        if (s->a[k].alive && !s->a[k].paused && !all_orders) {
            watch(s, k);
        }
    }
}

static void answer(struct sys *s, size_t i)
{
    struct actor *a = &s->a[i];
    struct blob blob = a->blob;
    uint8_t token[8];

    mu_put_u64(token, a->token);
    a->stage = NOT_ASKING;
    step(s, i,
         (struct mu_rdzv_event){
             .type = !a->write     ? MU_RDZV_STATE_READ
                     : a->accepted ? MU_RDZV_STATE_WRITTEN
                                   : MU_RDZV_WRITE_LOST,
             .request = a->request,
             .present = a->present,
             .bytes = {blob.bytes, blob.len},
             .token = {token, sizeof(token)},
         });
}

static bool is_due(const struct sys *s, size_t i)
{
    return s->a[i].alive && !s->a[i].paused &&
           mu_mono_reached(mu_rdzv_deadline(&s->a[i].r), (mu_mono_t){MONO + s->now});
}

/* The next moment at which somebody has something to do. */
static bool next_moment(const struct sys *s, uint64_t *ret_at)
{
    mu_mono_t at = MU_MONO_NEVER;

    for (size_t i = 0; i < NODES; i++) {
        if (s->a[i].alive && !s->a[i].paused && !is_due(s, i)) {
            at = mu_mono_min(at, mu_rdzv_deadline(&s->a[i].r));
        }
    }
    *ret_at = at.ns - MONO;
    return at.ns != MU_MONO_NEVER.ns;
}

/* --- left alone ------------------------------------------------------------- */

static bool is_spare(const struct actor *a)
{
    const struct mu_rdzv_member *me = mu_rdzv_state_find(&a->r.state, &a->r.node);

    return a->r.v.phase == MU_RDZV_JOINING && a->r.v.known && me != NULL && me->spare;
}

/* An agent joins again when somebody waits, somebody is lost, or it was dropped itself. */
static bool should_rejoin(const struct actor *a)
{
    enum mu_rdzv_phase phase = a->r.v.phase;

    return a->alive && a->wants && !a->paused &&
           (phase == MU_RDZV_IDLE ||
            (phase == MU_RDZV_MEMBER && (a->waiting != 0 || a->left != a->world)));
}

static bool is_quiet(const struct sys *s)
{
    for (size_t i = 0; i < NODES; i++) {
        const struct actor *a = &s->a[i];

        if (a->stage == SENT || (!a->paused && (a->stage == DONE || a->watch || is_due(s, i)))) {
            return false;
        }
    }
    return true;
}

static bool all_settled(const struct sys *s)
{
    for (size_t i = 0; i < NODES; i++) {
        const struct actor *a = &s->a[i];

        if (a->alive && !a->paused &&
            (a->r.v.closing ||
             (a->r.v.phase != MU_RDZV_IDLE && a->r.v.phase != MU_RDZV_MEMBER && !is_spare(a)))) {
            return false;
        }
    }
    return true;
}

/* Drives everybody in turn; false when there is nothing to do before time passes. */
static bool drive(struct sys *s)
{
    bool moved = false;

    for (size_t i = 0; i < NODES; i++) {
        struct actor *a = &s->a[i];

        if (a->stage == SENT) {
            exec(s, i);
        } else if (a->paused) {
            continue;
        } else if (a->stage == DONE) {
            answer(s, i);
        } else if (a->alive && a->watch) {
            watch(s, i);
        } else if (is_due(s, i)) {
            step(s, i, (struct mu_rdzv_event){.type = MU_RDZV_TIMEOUT});
        } else if (should_rejoin(a)) {
            wish(s, i, MU_RDZV_JOIN);
        } else {
            continue;
        }
        moved = true;
    }
    return moved;
}

static void check_outcome(const struct sys *s)
{
    size_t wanting = 0;
    size_t members = 0;
    int64_t round = -1;

    for (size_t i = 0; i < NODES; i++) {
        const struct actor *a = &s->a[i];

        if (a->alive && a->wants) {
            wanting++;
            if (a->r.v.phase == MU_RDZV_MEMBER) {
                members++;
                if (round >= 0 && round != a->r.v.round) {
                    broken(s, "two worlds in the end");
                }
                round = a->r.v.round;
            }
        }
    }
    if (s->closed) {
        return;
    }
    if (wanting >= base.settings.min_nodes &&
        members != (wanting < base.settings.max_nodes ? wanting : base.settings.max_nodes)) {
        broken(s, "not all who want to have met in the end");
    }
}

/* Whether it is as it should be for good: nobody has a reason to do anything. */
static bool is_over(const struct sys *s)
{
    for (size_t i = 0; i < NODES; i++) {
        if (should_rejoin(&s->a[i])) {
            return false;
        }
    }
    return all_settled(s);
}

/* Whether somebody was stopped. */
static bool wake_all(struct sys *s)
{
    bool any = false;

    for (size_t i = 0; i < NODES; i++) {
        any = any || s->a[i].paused;
        s->a[i].paused = false;
    }
    return any;
}

static void check_left_alone(const struct sys *start)
{
    struct sys *s = copy_sys(start);
    uint64_t until = s->now + 3 * base.settings.join_timeout_ms * MU_NS_PER_MS;
    /* Members know by then who is dead. */
    uint64_t least = s->now + (mu_rdzv_dead_after_ms(&base.settings) + 6000) * MU_NS_PER_MS;
    bool any_gone = false;

    ends++;
    for (size_t i = 0; i < NODES; i++) {
        const struct actor *a = &s->a[i];

        any_gone = any_gone || !a->alive || a->paused || (a->joined && !a->wants);
    }
    for (;;) {
        uint64_t at;
        bool more;

        while (drive(s)) {
        }
        more = next_moment(s, &at);
        if (is_over(s) && (!any_gone || s->now >= least || !more)) {
            if (wake_all(s)) {
                continue;
            }
            break;
        }
        if (!more || at > until) {
            broken(s, "an operation does not end");
        }
        s->now = at;
        if (s->now >= least) {
            /* Those who were stopped go on after the others took them for dead. */
            wake_all(s);
        }
    }
    check_outcome(s);
    free_sys(s);
}

/* --- the search -------------------------------------------------------------- */

enum move {
    JOIN,
    LEAVE,
    CLOSE,
    CRASH,
    CRASH_WITH_REQUEST,
    PAUSE,
    RESUME,
    EXEC,
    ANSWER,
    WATCH,
    TIMEOUT,
    MOVES
};

static const char *const move_names[MOVES] = {
    [JOIN] = "joins",
    [LEAVE] = "leaves",
    [CLOSE] = "closes",
    [CRASH] = "crashes",
    [CRASH_WITH_REQUEST] = "crashes, request lost",
    [PAUSE] = "is stopped",
    [RESUME] = "goes on",
    [EXEC] = "reaches the reg",
    [ANSWER] = "is answered",
    [WATCH] = "is told of a change",
    [TIMEOUT] = "notices the time",
};

static bool is_enabled(const struct sys *s, size_t i, enum move move)
{
    const struct actor *a = &s->a[i];
    enum mu_rdzv_phase phase = a->r.v.phase;

    if (move == EXEC) {
        return a->stage == SENT;
    }
    if (!a->alive || a->paused) {
        return a->alive && move == RESUME;
    }
    switch (move) {
    case JOIN:
        return (phase == MU_RDZV_IDLE || phase == MU_RDZV_MEMBER) &&
               (!a->joined || s->left.joins > 0);
    case LEAVE:
        return s->left.leaves > 0 && phase != MU_RDZV_IDLE && phase != MU_RDZV_LEAVING;
    case CLOSE:
        return s->left.closes > 0 && a->joined;
    case CRASH:
        return s->left.crashes > 0 && a->joined;
    case CRASH_WITH_REQUEST:
        return s->left.crashes > 0 && a->stage == SENT && a->write;
    case PAUSE:
        return s->left.pauses > 0 && a->joined;
    case ANSWER:
        return a->stage == DONE;
    case WATCH:
        return a->watch;
    case TIMEOUT:
        return is_due(s, i);
    case RESUME:
    case EXEC:
    case MOVES:
        break;
    }
    return false;
}

static void make_move(struct sys *s, size_t i, enum move move)
{
    struct actor *a = &s->a[i];

    switch (move) {
    case JOIN:
        s->left.joins -= a->joined;
        a->joined = true;
        wish(s, i, MU_RDZV_JOIN);
        break;
    case LEAVE:
        s->left.leaves--;
        wish(s, i, MU_RDZV_LEAVE);
        break;
    case CLOSE:
        s->left.closes--;
        s->closed = true;
        wish(s, i, MU_RDZV_CLOSE);
        break;
    case CRASH:
    case CRASH_WITH_REQUEST:
        s->left.crashes--;
        a->alive = a->watch = false;
        a->wants = false;
        if (move == CRASH_WITH_REQUEST || a->stage == DONE || !a->write) {
            a->stage = NOT_ASKING;
        }
        break;
    case PAUSE:
        s->left.pauses--;
        a->paused = true;
        break;
    case RESUME:
        a->paused = false;
        break;
    case EXEC:
        exec(s, i);
        break;
    case ANSWER:
        answer(s, i);
        break;
    case WATCH:
        watch(s, i);
        break;
    case TIMEOUT:
        step(s, i, (struct mu_rdzv_event){.type = MU_RDZV_TIMEOUT});
        break;
    case MOVES:
        break;
    }
}

static void explore(const struct sys *s);

static void follow(struct sys *s, const char *name, char who)
{
    assert_true(depth < PATH_MAX);
    (void)snprintf(path[depth], sizeof(path[depth]), "%c %s", who, name);
    depth++;
    deepest = depth > deepest ? depth : deepest;
    check_membership(s);
    explore(s);
    depth--;
    free_sys(s);
}

/* The node with something to do that nobody else can see, if there is one: it goes first. */
static size_t who_goes_first(const struct sys *s)
{
    for (size_t i = 0; i < NODES && !all_orders; i++) {
        const struct actor *a = &s->a[i];

        if (a->alive && !a->paused && (a->stage == DONE || a->watch || is_due(s, i))) {
            return i;
        }
    }
    return NODES;
}

static void explore(const struct sys *s)
{
    size_t first = who_goes_first(s);
    uint64_t at;

    if (!remember(print_sys(s))) {
        return;
    }
    if (is_quiet(s)) {
        check_left_alone(s);
    }
    for (size_t i = 0; i < NODES; i++) {
        for (int move = 0; move < MOVES; move++) {
            if ((first == NODES || first == i) && is_enabled(s, i, (enum move)move)) {
                struct sys *next = copy_sys(s);

                make_move(next, i, (enum move)move);
                follow(next, move_names[move], (char)('a' + i));
            }
        }
    }
    if (s->left.ticks > 0 && is_quiet(s) && next_moment(s, &at)) {
        struct sys *next = copy_sys(s);

        next->now = at;
        next->left.ticks--;
        follow(next, "time passes", '-');
    }
}

static void search(const char *title, size_t min, size_t max, struct budget limits)
{
    struct sys *s = calloc(1, sizeof(*s));
    struct mu_errmsg msg;

    assert_non_null(s);
    base = mu_rdzv_config_defaults();
    base.settings.min_nodes = min;
    base.settings.max_nodes = max;
    base.settings.last_call_timeout_ms = 3000;
    base.settings.join_timeout_ms = 60000;
    base.settings.keep_alive_max_attempt = 2; /* dead after 10 s: fewer moments to explore */
    base.push = true;
    base.backoff_ms_min = base.backoff_ms_max =
        0; /* when a node comes back is explored, not drawn */
    base.spread_us_per_node = 0;
    s->left = limits;
    for (size_t i = 0; i < NODES; i++) {
        char addr[2] = {(char)('a' + i), '\0'};

        base.node = (struct mu_rdzv_node){.addr = addr, .pid = 1, .local_id = 0};
        assert_int_equal(mu_rdzv_init(&s->a[i].r, &base, &msg), 0);
        s->a[i].alive = true;
        s->a[i].last_round = -1;
    }
    forget_all((size_t)1 << 19);
    depth = 0;
    explore(s);
    print_message("%s: %llu states, %llu of them quiet, %llu assignments, %zu steps deep\n", title,
                  (unsigned long long)states, (unsigned long long)ends,
                  (unsigned long long)assignments, deepest);
    free_sys(s);
    free(met);
    met = NULL;
}

static void test_rdzv_all_orders_of_joining(void **unused)
{
    (void)unused;
    all_orders = true;
    search("join, all orders", 3, 3, (struct budget){0});
    all_orders = false;
    search("join", 2, 3, (struct budget){.ticks = 4});
    search("join again", 2, 3, (struct budget){.joins = 2});
}

static void test_rdzv_all_orders_of_leaving(void **unused)
{
    (void)unused;
    search("leave twice", 2, 3, (struct budget){.leaves = 2});
    search("leave and join again", 2, 3, (struct budget){.leaves = 1, .joins = 1});
    search("leave, with time", 1, 2, (struct budget){.leaves = 1, .ticks = 2});
}

static void test_rdzv_all_orders_of_crashing(void **unused)
{
    (void)unused;
    search("crash, with time", 2, 3, (struct budget){.crashes = 1, .ticks = 4});
    search("crash twice", 2, 3, (struct budget){.crashes = 2, .ticks = 2});
    search("crash and leave", 2, 3, (struct budget){.crashes = 1, .leaves = 1});
    search("crash and join again", 2, 3, (struct budget){.crashes = 1, .joins = 1});
}

static void test_rdzv_all_orders_of_closing(void **unused)
{
    (void)unused;
    search("close", 2, 3, (struct budget){.closes = 1, .ticks = 1});
    search("close and leave", 2, 3, (struct budget){.closes = 1, .leaves = 1});
    search("close and crash", 2, 3, (struct budget){.closes = 1, .crashes = 1});
}

/* Three nodes, two seats. */
static void test_rdzv_all_orders_with_a_spare(void **unused)
{
    (void)unused;
    search("spare, join again", 2, 2, (struct budget){.joins = 1});
    search("spare, leave", 2, 2, (struct budget){.leaves = 1, .ticks = 1});
    search("spare, crash", 2, 2, (struct budget){.crashes = 1, .ticks = 2});
    search("spare, close", 2, 2, (struct budget){.closes = 1});
}

static void test_rdzv_all_orders_of_being_stopped(void **unused)
{
    (void)unused;
    search("stop", 2, 3, (struct budget){.pauses = 1, .ticks = 2});
    search("stop and leave", 3, 3, (struct budget){.pauses = 1, .leaves = 1});
}

static void test_rdzv_some_orders(void **unused)
{
    (void)unused;
    search("join", 2, 3, (struct budget){.ticks = 2});
    search("leave", 2, 3, (struct budget){.leaves = 1});
    search("crash", 2, 3, (struct budget){.crashes = 1, .ticks = 1});
    search("spare", 2, 2, (struct budget){.closes = 1});
}

int main(int argc, char **argv)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_rdzv_all_orders_of_joining),
        cmocka_unit_test(test_rdzv_all_orders_of_leaving),
        cmocka_unit_test(test_rdzv_all_orders_of_crashing),
        cmocka_unit_test(test_rdzv_all_orders_of_closing),
        cmocka_unit_test(test_rdzv_all_orders_with_a_spare),
        cmocka_unit_test(test_rdzv_all_orders_of_being_stopped),
    };
    const struct CMUnitTest some[] = {
        cmocka_unit_test(test_rdzv_some_orders),
    };

    if (argc > 1 && strcmp(argv[1], "some") == 0) {
        return cmocka_run_group_tests(some, NULL, NULL);
    }
    return cmocka_run_group_tests(all, NULL, NULL);
}
