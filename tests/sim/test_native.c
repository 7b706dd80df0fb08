/*
 * All interleavings of a round of averaging in the native mode. Messages are delivered in every
 * order that keeps the order on each link; a member dies at any step; who is dead is noticed at any
 * later step, by each for itself, before or after what it sent last has come; timers fire at any
 * time, and members take each other for lost. How often each of these happens is bounded. States
 * are told apart by all that matters for what comes.
 *
 * After each step the observer of sim/scenarios/average/native_node.h must have nothing to say.
 * From each state that has been reached, when nothing goes wrong any more, everybody must end; and
 * with success, if a quorum is alive and nobody alive has lost anybody alive.
 *
 *     test_native              what takes seconds: walks, each planted bug, a part of all orders
 *     test_native --some       a part of that, for builds that are slow
 *     test_native --walk 1 42  one walk again, by its plan and its seed
 *     test_native --whole      what takes minutes
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/prng.h"
#include "scenarios/average/native_node.h"

#define QUEUE_MAX   48
#define DEPTH_MAX   1200
#define GO_ON_TURNS 20000
#define WALK_TRIES  3000

struct queue {
    uint32_t count;
    struct nat_frame frames[QUEUE_MAX];
};

struct budget {
    uint8_t deaths, suspicions, ticks;
};

struct plan {
    const char *name;
    uint32_t nodes;
    uint64_t clients;
    uint32_t parts;
    struct budget budget;
    uint64_t states_max; /* 0: only with --whole */
};

struct world {
    struct nat_node nodes[NAT_NODES_MAX];
    struct nat_truth truth;
    bool dead[NAT_NODES_MAX];
    bool lost[NAT_NODES_MAX][NAT_NODES_MAX];
    struct budget left;
    mu_mono_t now;
    uint32_t queued; /* messages, of which the first are the oldest of their links */
    struct queue links[NAT_NODES_MAX][NAT_NODES_MAX];
};

static struct world w;
static struct nat_round round_;
static uint32_t nodes;
static const char *wrong;

static struct mu_now now_(void)
{
    return (struct mu_now){w.now, {0}};
}

/* --- the world -------------------------------------------------------------------------------- */

static void fail(void *context, const char *what)
{
    (void)context;
    wrong = wrong == NULL ? what : wrong;
}

static void send(void *context, uint32_t from, uint32_t to, const struct nat_frame *frame)
{
    struct queue *q = &w.links[from][to];

    (void)context;
    if (w.dead[to] || w.lost[to][from] || w.nodes[to].released) {
        return;
    }
    if (q->count == QUEUE_MAX) {
        fail(NULL, "a link is full");
        return;
    }
    q->frames[q->count++] = *frame;
}

static void empty(uint32_t from, uint32_t to)
{
    memset(&w.links[from][to], 0, sizeof(w.links[from][to]));
}

/* Who has been released has ended its links. */
static void tidy(void)
{
    for (uint32_t i = 0; i < nodes; i++) {
        for (uint32_t k = 0; w.nodes[i].released && k < nodes; k++) {
            empty(k, i);
        }
    }
}

static void deliver(uint32_t from, uint32_t to)
{
    struct queue *q = &w.links[from][to];
    struct nat_frame frame = q->frames[0];

    q->count--;
    memmove(&q->frames[0], &q->frames[1], q->count * sizeof(q->frames[0]));
    memset(&q->frames[q->count], 0, sizeof(q->frames[0]));
    nat_node_receive(&w.nodes[to], now_(), from, mu_span(frame.bytes, frame.len));
}

static bool is_apart(uint32_t a, uint32_t b)
{
    return w.dead[a] || w.dead[b] || w.lost[a][b] || w.lost[b][a] || w.nodes[a].released ||
           w.nodes[b].released;
}

static void notice(uint32_t who, uint32_t whom)
{
    w.lost[who][whom] = true;
    empty(whom, who);
    nat_node_lost(&w.nodes[who], now_(), whom);
}

static void die(uint32_t i)
{
    w.dead[i] = true;
    for (uint32_t k = 0; k < nodes; k++) {
        empty(k, i);
    }
}

static bool is_up(uint32_t i)
{
    return !w.dead[i] && !w.nodes[i].released;
}

/* --- steps ------------------------------------------------------------------------------------ */

enum {
    N = NAT_NODES_MAX,
    DELIVER = 0,
    NOTICE = DELIVER + N * N,
    TICK = NOTICE + N * N,
    DIE = TICK + 3 * N,
    STEPS = DIE + N,
};

static bool spend(uint8_t *budget)
{
    if (*budget == 0) {
        return false;
    }
    --*budget;
    return true;
}

static bool tick(uint32_t i, uint32_t which)
{
    struct mu_native *m = &w.nodes[i].m;
    mu_mono_t *timer = which == 0 ? &m->patience : which == 1 ? &m->lead_until : &m->have_at;

    if (!is_up(i) || timer->ns == UINT64_MAX || !spend(&w.left.ticks)) {
        return false;
    }
    *timer = w.now;
    nat_node_tick(&w.nodes[i], now_());
    return true;
}

/* False if there is nothing to do in this state. */
static bool do_step(unsigned step)
{
    uint32_t i = step % N;
    uint32_t j = step / N % N;

    if (step >= DIE) {
        i = step - DIE;
        if (i >= nodes || !is_up(i) || !spend(&w.left.deaths)) {
            return false;
        }
        die(i);
        return true;
    }
    if (step >= TICK) {
        return (step - TICK) % N < nodes && tick((step - TICK) % N, (step - TICK) / N);
    }
    if (i >= nodes || j >= nodes || i == j) {
        return false;
    }
    if (step >= NOTICE) {
        if (!is_up(i) || w.lost[i][j] || (!is_apart(i, j) && !spend(&w.left.suspicions))) {
            return false;
        }
        notice(i, j);
        return true;
    }
    if (w.links[j][i].count == 0 || !is_up(i) || w.lost[i][j]) {
        return false;
    }
    deliver(j, i);
    return true;
}

/* Any time may be over at any step, so none has a value. */
static void level(mu_mono_t *at)
{
    at->ns = at->ns == UINT64_MAX ? UINT64_MAX : w.now.ns + 1000 * MU_NS_PER_S;
}

static bool do_checked_step(unsigned step)
{
    if (!do_step(step)) {
        return false;
    }
    tidy();
    for (uint32_t i = 0; i < nodes; i++) {
        struct mu_native *m = &w.nodes[i].m;

        level(&m->patience);
        level(&m->lead_until);
        level(&m->have_at);
        if (!w.dead[i] && w.nodes[i].ended && w.nodes[i].status != 0 &&
            w.nodes[i].status != MUSTER_ECONN) {
            fail(NULL, "a member ends with an error that nobody caused");
        }
    }
    return true;
}

/* --- what tells states apart ------------------------------------------------------------------ */

static uint64_t hash;

static void mix(uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= hash >> 29;
}

static void mix_bytes(const void *data, size_t len)
{
    const uint8_t *at = data;

    while (len > 0) {
        uint64_t word = 0;
        size_t some = len < 8 ? len : 8;

        memcpy(&word, at, some);
        mix(word);
        at += some;
        len -= some;
    }
}

static void mix_member(const struct mu_native_member *m)
{
    const uint64_t fields[] = {m->owed,       m->given,     m->wanted,      m->lost,
                               m->give_shard, m->give_next, m->tell_shard,  m->tell_next,
                               m->weighed,    m->accepted,  m->accepted_at, m->whole};

    mix_bytes(fields, sizeof(fields));
    mix_bytes(m->digest, m->accepted ? 8 : 0);
}

static void mix_shard(const struct mu_native_shard *s)
{
    const uint64_t fields[] = {s->averaged, s->source, s->have_told, s->held, s->shared};

    mix_bytes(fields, sizeof(fields));
}

static void mix_node(const struct nat_node *n)
{
    const struct mu_native *m = &n->m;
    const uint64_t fields[] = {m->gone,        m->lead,         m->promised, m->owners,
                               m->proposed_at, m->proposed_sum, m->sum,      m->accepted_at,
                               m->highest,     m->set.members};
    const bool flags[] = {m->proposed,
                          m->bound,
                          m->final,
                          m->placed,
                          m->hashed,
                          m->accepted,
                          m->refetched,
                          m->hurry,
                          n->ended,
                          n->released,
                          m->patience.ns == UINT64_MAX,
                          m->have_at.ns == UINT64_MAX};
    const uint64_t led[] = {m->ballot,    m->promises, m->holders,         m->backed,
                            m->excluded,  m->dones,    m->sum_led,         m->seen_sum,
                            m->seen_at,   m->free_at,  m->set_led.members, m->seen_set.members,
                            m->fetch_from};
    const bool led_flags[] = {m->decided, m->bound_led, m->seen,
                              m->repeat,  m->repeated,  m->was_free};

    mix_bytes(fields, sizeof(fields));
    mix_bytes(flags, sizeof(flags));
    if (m->lead != MU_NATIVE_LEAD_IDLE) {
        mix_bytes(led, sizeof(led));
        mix_bytes(led_flags, sizeof(led_flags));
    }
    for (uint32_t i = 0; i < nodes; i++) {
        mix_member(&m->members[i]);
        mix_shard(&m->shards[i]);
    }
    mix_bytes(n->got, sizeof(uint32_t) * nodes * nodes);
}

static uint64_t hash_world(void)
{
    hash = 1;
    mix(w.truth.set.members << 1 ^ w.truth.any);
    mix((uint64_t)w.left.deaths << 16 ^ (uint64_t)w.left.suspicions << 8 ^ w.left.ticks);
    for (uint32_t i = 0; i < nodes; i++) {
        mix(w.dead[i]);
        if (!w.dead[i]) {
            mix_node(&w.nodes[i]);
        }
        for (uint32_t k = 0; k < nodes; k++) {
            const struct queue *q = &w.links[i][k];

            mix((uint64_t)w.lost[i][k] << 8 ^ q->count);
            for (uint32_t x = 0; x < q->count; x++) {
                mix_bytes(q->frames[x].bytes, q->frames[x].len);
            }
        }
    }
    return hash == 0 ? 1 : hash;
}

/* --- the round ends --------------------------------------------------------------------------- */

static uint64_t voters_alive(void)
{
    uint64_t alive = 0;

    for (uint32_t i = 0; i < nodes; i++) {
        bool failed = w.nodes[i].ended && w.nodes[i].status != 0;

        alive |= !w.dead[i] && !failed ? UINT64_C(1) << i : 0;
    }
    return alive & ~round_.clients;
}

static bool is_quorum(uint64_t members)
{
    uint64_t voters = ((UINT64_C(1) << nodes) - 1) & ~round_.clients;
    int all = __builtin_popcountll(voters);
    int some = __builtin_popcountll(members);

    return 2 * some > all || (2 * some == all && (members & voters & (~voters + 1)) != 0);
}

/* Whether everybody who is alive and has not ended must come to an end with success. */
static bool must_succeed(void)
{
    for (uint32_t i = 0; i < nodes; i++) {
        bool failed = w.nodes[i].ended && w.nodes[i].status != 0;

        for (uint32_t k = 0; k < nodes; k++) {
            bool other_failed = w.nodes[k].ended && w.nodes[k].status != 0;

            if (!w.dead[i] && !w.dead[k] && !failed && !other_failed && w.lost[i][k]) {
                return false;
            }
        }
    }
    return is_quorum(voters_alive());
}

static bool deliver_some(void)
{
    bool some = false;

    for (uint32_t i = 0; i < nodes; i++) {
        for (uint32_t k = 0; k < nodes; k++) {
            if (is_up(i) && !w.lost[i][k] && w.links[k][i].count > 0) {
                deliver(k, i);
                tidy();
                some = true;
            }
        }
    }
    for (uint32_t i = 0; i < nodes && !some; i++) {
        for (uint32_t k = 0; k < nodes; k++) {
            if (i != k && is_up(i) && !w.lost[i][k] && is_apart(i, k)) {
                notice(i, k);
                tidy();
                some = true;
            }
        }
    }
    return some;
}

static bool all_ended(void)
{
    for (uint32_t i = 0; i < nodes; i++) {
        if (!w.dead[i] && !w.nodes[i].ended) {
            return false;
        }
    }
    return true;
}

static void check_ends(void)
{
    bool must = must_succeed();
    bool before[NAT_NODES_MAX];

    for (uint32_t i = 0; i < nodes; i++) {
        before[i] = w.nodes[i].ended;
    }
    for (uint32_t turn = 0; turn < GO_ON_TURNS && wrong == NULL && !all_ended(); turn++) {
        mu_mono_t next = MU_MONO_NEVER;

        if (deliver_some()) {
            continue;
        }
        for (uint32_t i = 0; i < nodes; i++) {
            next = is_up(i) ? mu_mono_min(next, mu_native_deadline(&w.nodes[i].m)) : next;
        }
        if (next.ns == UINT64_MAX) {
            break;
        }
        w.now = next.ns > w.now.ns ? next : w.now;
        for (uint32_t i = 0; i < nodes; i++) {
            if (is_up(i)) {
                nat_node_tick(&w.nodes[i], now_());
            }
        }
        tidy();
    }
    if (!all_ended()) {
        fail(NULL, "a round does not end");
    }
    for (uint32_t i = 0; i < nodes && must; i++) {
        if (!w.dead[i] && !before[i] && w.nodes[i].status != 0) {
            fail(NULL, "a member that reaches a quorum keeps its own values");
        }
    }
}

/* --- all orders ------------------------------------------------------------------------------- */

struct frame {
    struct world world;
    unsigned step;
};

static uint64_t *seen;
static uint64_t seen_mask;
static uint64_t state_count, end_count, deepest;
static struct frame *stack;

static bool is_new(uint64_t key)
{
    uint64_t at = key & seen_mask;

    while (seen[at] != 0) {
        if (seen[at] == key) {
            return false;
        }
        at = (at + 1) & seen_mask;
    }
    seen[at] = key;
    return true;
}

/* Copies of a world leave out the links between members that are not there. */
static size_t world_len(void)
{
    return offsetof(struct world, links) + sizeof(w.links[0]) * nodes;
}

static void start(const struct plan *plan, enum nat_bug bug, uint32_t codec, uint64_t salt)
{
    memset(&w, 0, sizeof(w));
    wrong = NULL;
    nodes = plan->nodes;
    w.now = (mu_mono_t){1000 * MU_NS_PER_S};
    w.left = plan->budget;
    nat_round_init(&round_, plan->nodes, plan->clients, plan->parts, codec, salt);
    round_.times.gather_ms = 4000;
    round_.times.propose_ms = 4000;
    round_.times.prepare_ms = 1000;
    round_.times.takeover_ms = 12000;
    round_.times.total_ms = 20000000;
    for (uint32_t i = 0; i < nodes; i++) {
        w.nodes[i].truth = &w.truth;
        w.nodes[i].send = send;
        w.nodes[i].failed = fail;
        w.nodes[i].bug = bug;
        nat_node_start(&w.nodes[i], now_(), i, &round_);
    }
}

static void print_step(unsigned step)
{
    uint32_t i = step % N;
    uint32_t j = step / N % N;

    if (step >= DIE) {
        (void)printf("  %u dies\n", step - DIE);
    } else if (step >= TICK) {
        (void)printf("  %u: timer %u\n", (step - TICK) % N, (step - TICK) / N);
    } else if (step >= NOTICE) {
        (void)printf("  %u has lost %u\n", i, j);
    } else {
        (void)printf("  %u -> %u\n", j, i);
    }
}

static void print_nodes(void)
{
    for (uint32_t i = 0; i < nodes; i++) {
        const struct mu_native *m = &w.nodes[i].m;

        (void)printf("  member %u%s: promised %u, lead %d, sum %u, proposed %u at %u, accepted %d, "
                     "final %d, ended %d status %d gone %" PRIx64 " owners %" PRIx64 "\n",
                     i, w.dead[i] ? " (dead)" : "", m->promised, (int)m->lead, m->sum,
                     m->proposed_sum, m->proposed_at, m->accepted, m->final, w.nodes[i].ended,
                     w.nodes[i].status, m->gone, m->owners);
    }
}

/* What a step does, by delivering again; only for reading. */
static void print_path(const struct plan *plan, enum nat_bug bug, uint32_t codec, uint64_t salt,
                       const unsigned *steps, uint32_t count)
{
    const char *what = wrong;

    start(plan, bug, codec, salt);
    for (uint32_t x = 0; x < count; x++) {
        uint32_t i = steps[x] % N;
        uint32_t j = steps[x] / N % N;

        if (steps[x] < NOTICE && w.links[j][i].count > 0) {
            struct mu_native_msg msg;
            const struct nat_frame *f = &w.links[j][i].frames[0];

            if (mu_native_msg_decode(mu_span(f->bytes, f->len), &msg) == 0) {
                (void)printf("  %u -> %u %s ballot %u sum %u part %u\n", j, i,
                             mu_native_type_name(msg.type), msg.ballot, msg.sum, msg.part);
            }
        } else {
            print_step(steps[x]);
        }
        (void)do_checked_step(steps[x]);
    }
    print_nodes();
    check_ends();
    (void)printf("and then\n");
    print_nodes();
    wrong = what;
}

static bool explore(const struct plan *plan, enum nat_bug bug)
{
    static unsigned path[DEPTH_MAX];
    uint32_t depth = 0;

    memset(seen, 0, (seen_mask + 1) * sizeof(*seen));
    state_count = end_count = deepest = 0;
    start(plan, bug, 0, 0x2103);
    memcpy(&stack[0].world, &w, world_len());
    stack[0].step = 0;
    while (state_count < plan->states_max) {
        struct frame *f = &stack[depth];

        if (f->step == STEPS) {
            if (depth == 0) {
                break;
            }
            depth--;
            continue;
        }
        memcpy(&w, &f->world, world_len());
        path[depth] = f->step;
        if (!do_checked_step(f->step++)) {
            continue;
        }
        if (wrong == NULL && is_new(hash_world())) {
            state_count++;
            if (depth + 1 == DEPTH_MAX) {
                fail(NULL, "a round has no end");
            } else {
                depth++;
                deepest = depth > deepest ? depth : deepest;
                memcpy(&stack[depth].world, &w, world_len());
                stack[depth].step = 0;
                end_count++;
                check_ends();
                if (wrong != NULL) {
                    depth--;
                }
            }
        }
        if (wrong != NULL) {
            (void)printf("%s: %s, after\n", plan->name, wrong);
            print_path(plan, bug, 0, 0x2103, path, depth + 1);
            return false;
        }
    }
    return true;
}

static const struct plan plans[] = {
    {"three, all well", 3, 0, 1, {0}, 100000},
    {"three, one dies", 3, 0, 1, {.deaths = 1}, 100000},
    {"three, timers", 3, 0, 1, {.ticks = 1}, 8000},
    {"three, one suspicion", 3, 0, 1, {.suspicions = 1}, 8000},
    {"two, one dies", 2, 0, 1, {.deaths = 1, .ticks = 1}, 20000},
    {"two and a client, one dies", 3, 4, 1, {.deaths = 1}, 20000},
    {"three, one dies, timers", 3, 0, 1, {.deaths = 1, .ticks = 2}, 0},
};

#define PLANS (sizeof(plans) / sizeof(plans[0]))

static int explore_all(bool whole, uint64_t most)
{
    int bad = 0;

    for (size_t i = 0; i < PLANS; i++) {
        struct plan plan = plans[i];
        bool good;

        if (!whole && plan.states_max == 0) {
            continue;
        }
        plan.states_max = whole ? seen_mask / 4 * 3 : plan.states_max;
        plan.states_max = plan.states_max < most ? plan.states_max : most;
        good = explore(&plan, NAT_BUG_NONE);
        (void)printf("%s: %" PRIu64 " states%s, %" PRIu64 " steps deep: %s\n", plan.name,
                     state_count, state_count >= plan.states_max ? " and more" : ", which is all",
                     deepest, good ? "good" : "BAD");
        (void)fflush(stdout);
        bad += !good;
    }
    return bad;
}

/* --- walks ------------------------------------------------------------------------------------ */

static const struct plan troubles[] = {
    {"two", 2, 0, 2, {.deaths = 1, .suspicions = 1, .ticks = 3}, 0},
    {"three", 3, 0, 1, {.deaths = 1, .suspicions = 1, .ticks = 4}, 0},
    {"four", 4, 0, 2, {.deaths = 1, .suspicions = 2, .ticks = 6}, 0},
    {"five, two die", 5, 0, 1, {.deaths = 2, .ticks = 6}, 0},
    {"five with clients", 5, 0x12, 2, {.deaths = 2, .suspicions = 1, .ticks = 6}, 0},
    {"seven", 7, 0, 1, {.deaths = 3, .suspicions = 1, .ticks = 8}, 0},
    {"seven with a client first", 7, 1, 2, {.deaths = 2, .suspicions = 2, .ticks = 8}, 0},
};

#define TROUBLES (sizeof(troubles) / sizeof(troubles[0]))

/* Mostly messages come; else there would be trouble and nothing else. */
static unsigned draw_step(struct mu_prng *prng)
{
    uint64_t percent = mu_prng_below(prng, 1000);
    uint32_t i = (uint32_t)mu_prng_below(prng, nodes);
    uint32_t k = (uint32_t)mu_prng_below(prng, nodes);

    if (percent < 940) {
        return DELIVER + k * N + i;
    }
    if (percent < 985) {
        return NOTICE + k * N + i;
    }
    return percent < 995 ? TICK + (unsigned)mu_prng_below(prng, 3) * N + i : DIE + i;
}

static bool walk(const struct plan *plan, enum nat_bug bug, uint64_t seed, bool loud)
{
    static unsigned path[WALK_TRIES];
    struct mu_prng prng;
    uint32_t depth = 0;
    uint32_t codec = (uint32_t)(seed % 3);

    mu_prng_seed(&prng, seed);
    start(plan, bug, codec, seed);
    for (uint32_t tries = 0; tries < WALK_TRIES && wrong == NULL && !all_ended(); tries++) {
        path[depth] = draw_step(&prng);
        depth += do_checked_step(path[depth]);
    }
    if (wrong == NULL) {
        check_ends();
    }
    if (wrong != NULL && loud) {
        (void)printf("%s, seed %" PRIu64 ": %s, after\n", plan->name, seed, wrong);
        print_nodes();
        print_path(plan, bug, codec, seed, path, depth);
    }
    return wrong == NULL;
}

static int walk_all(uint64_t seeds)
{
    int bad = 0;

    for (size_t i = 0; i < TROUBLES; i++) {
        uint64_t seed = 0;

        while (seed < seeds && walk(&troubles[i], NAT_BUG_NONE, seed, true)) {
            seed++;
        }
        (void)printf("%s: %" PRIu64 " walks: %s\n", troubles[i].name, seed,
                     seed == seeds ? "good" : "BAD");
        (void)fflush(stdout);
        bad += seed < seeds;
    }
    return bad;
}

/* Each planted bug must be found by some walk. */
static int find_bugs(uint64_t seeds)
{
    int bad = 0;

    for (enum nat_bug bug = NAT_BUG_NONE + 1; bug < NAT_BUGS; bug++) {
        bool found = false;

        for (uint64_t seed = 0; !found && seed < seeds; seed++) {
            for (size_t i = 0; !found && i < TROUBLES; i++) {
                if (!walk(&troubles[i], bug, seed, false)) {
                    found = true;
                    (void)printf("bug %s: found with %s, seed %" PRIu64 ": %s\n",
                                 nat_bug_names[bug], troubles[i].name, seed, wrong);
                }
            }
        }
        if (!found) {
            (void)printf("bug %s: NOT FOUND\n", nat_bug_names[bug]);
        }
        (void)fflush(stdout);
        bad += !found;
    }
    return bad;
}

int main(int argc, char **argv)
{
    bool whole = argc > 1 && strcmp(argv[1], "--whole") == 0;
    bool some = argc > 1 && strcmp(argv[1], "--some") == 0;
    int bad;

    if (argc == 4 && strcmp(argv[1], "--walk") == 0) {
        size_t plan = strtoul(argv[2], NULL, 10) % TROUBLES;

        return walk(&troubles[plan], NAT_BUG_NONE, strtoull(argv[3], NULL, 10), true) ? 0 : 1;
    }
    seen_mask = (UINT64_C(1) << (whole ? 27 : 20)) - 1;
    seen = calloc(seen_mask + 1, sizeof(*seen));
    stack = calloc(DEPTH_MAX, sizeof(*stack));
    if (seen == NULL || stack == NULL) {
        (void)fprintf(stderr, "no memory\n");
        return 1;
    }
    bad = walk_all(whole ? 200000 : some ? 100 : 500);
    if (!some) {
        bad += find_bugs(whole ? 200000 : 20000);
    }
    bad += explore_all(whole, some ? 5000 : UINT64_MAX);
    free(seen);
    free(stack);
    return bad == 0 ? 0 : 1;
}
