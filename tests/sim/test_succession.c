/*
 * All interleavings of three nodes whose host is lost. Messages are delivered in every order that
 * keeps the order on each link; the host dies at any step; one direction of a link is cut for good;
 * timeouts fire, and nodes take each other for lost, at any time. How often each of these happens
 * is bounded, which bounds the terms and rounds. States are told apart by all that matters for what
 * comes; times do not, since each may be over at any step.
 *
 * After each step the checker of sim/checkers/succession.h must have nothing to say. From each
 * quiet state in which more than half of every electorate that counts is alive, when nothing goes
 * wrong any more, all nodes that are alive must come to run in one round.
 *
 *     test_succession            what takes seconds: also each bug that can be planted is found
 *     test_succession --some     a part of that, for builds that are slow
 *     test_succession --walk 1 42     one walk again, by its plan and its seed
 *     test_succession --whole    what takes minutes
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios/rdzv/succession_node.h"

#define NODES       3
#define QUEUE_MAX   16
#define DEPTH_MAX   600
#define ROUNDS_MAX  16
#define TERMS_MAX   24
#define GO_ON_TURNS 3000
#define WALK_TRIES  1500

struct queue {
    uint32_t count;
    struct succ_msg msgs[QUEUE_MAX];
};

struct budget {
    uint8_t deaths, cuts, suspicions, ticks, forms;
};

struct world {
    struct succ_node nodes[NODES];
    struct succ_truth truth;
    struct queue links[NODES][NODES];
    bool dead[NODES];
    bool cut[NODES][NODES];
    struct budget left;
    uint8_t members[ROUNDS_MAX][TERMS_MAX]; /* of each round that was formed, by its term: bits */
    mu_mono_t now;
};

static struct world w;
static const char *wrong;

/* --- the world -------------------------------------------------------------------------------- */

static void fail(void *context, const char *what)
{
    (void)context;
    wrong = wrong == NULL ? what : wrong;
}

static void send(void *context, uint32_t from, uint32_t to, const struct succ_msg *msg)
{
    struct queue *q = &w.links[from][to];

    (void)context;
    if (w.dead[to] || w.cut[from][to]) {
        return;
    }
    if (q->count == QUEUE_MAX) {
        fail(NULL, "a link is full");
        return;
    }
    q->msgs[q->count++] = *msg;
}

static void deliver(uint32_t from, uint32_t to)
{
    struct queue *q = &w.links[from][to];
    struct succ_msg msg = q->msgs[0];

    q->count--;
    memmove(&q->msgs[0], &q->msgs[1], q->count * sizeof(q->msgs[0]));
    memset(&q->msgs[q->count], 0, sizeof(q->msgs[0]));
    succ_node_receive(&w.nodes[to], w.now, from, &msg);
}

/* What a node says to itself needs no time. */
static void deliver_own(void)
{
    for (uint32_t i = 0; i < NODES; i++) {
        while (w.links[i][i].count > 0 && wrong == NULL) {
            deliver(i, i);
        }
    }
}

static bool is_apart(uint32_t a, uint32_t b)
{
    return a != b && (w.dead[a] || w.dead[b] || w.cut[a][b] || w.cut[b][a]);
}

static void die(uint32_t node)
{
    w.dead[node] = true;
    for (uint32_t i = 0; i < NODES; i++) {
        memset(&w.links[i][node], 0, sizeof(w.links[i][node]));
    }
}

static void form(uint32_t node)
{
    struct succ_node *n = &w.nodes[node];
    uint64_t round = n->m.first_round;

    if (round >= ROUNDS_MAX || n->m.host_term >= TERMS_MAX) {
        fail(NULL, "there are too many rounds or terms");
        return;
    }
    succ_node_form(n, w.now);
    w.members[round][n->m.host_term] = 0;
    for (uint32_t i = 0; i < n->world; i++) {
        w.members[round][n->m.host_term] |= (uint8_t)(1u << n->seats[i]);
    }
}

/* --- steps ------------------------------------------------------------------------------------ */

enum {
    DELIVER = 0,
    LOSE = DELIVER + NODES * NODES,
    UNREACH = LOSE + NODES,
    DROP = UNREACH + NODES * MU_SUCCESSION_CALLS,
    TICK = DROP + NODES * NODES,
    FORM = TICK + NODES,
    DIE = FORM + NODES,
    CUT = DIE + NODES,
    STEPS = CUT + NODES * NODES,
};

static bool spend(uint8_t *budget)
{
    if (*budget == 0) {
        return false;
    }
    --*budget;
    return true;
}

/* Whether the other end of a call has given it up. Then its connection ends, which is noticed. */
static bool is_given_up(uint32_t i, uint32_t to, bool kept)
{
    return is_apart(i, to) || (!kept && w.links[i][to].count == 0 && w.links[to][i].count == 0);
}

static bool may_lose(uint32_t i)
{
    struct succ_node *n = &w.nodes[i];
    struct succ_client *c = &w.nodes[n->join_to].clients[i];

    return is_given_up(i, n->join_to, c->joined && c->join_call == n->join_call);
}

static bool may_unreach(uint32_t i, uint32_t ask)
{
    const struct succ_ask *a = &w.nodes[i].asks[ask];
    struct succ_client *c = &w.nodes[a->to].clients[i];

    return !w.dead[i] && a->call != 0 && is_given_up(i, a->to, c->asks && c->ask_call == a->call);
}

static bool lose(uint32_t i)
{
    struct succ_node *n = &w.nodes[i];

    if (w.dead[i] || !succ_node_has_host(n) || (!may_lose(i) && !spend(&w.left.suspicions))) {
        return false;
    }
    succ_node_lost(n, w.now);
    return true;
}

static bool drop(uint32_t host, uint32_t client)
{
    struct succ_client *c = &w.nodes[host].clients[client];

    if (host == client || w.dead[host] || (!c->asks && !c->joined) ||
        (!is_apart(host, client) && !spend(&w.left.suspicions))) {
        return false;
    }
    succ_node_drop(&w.nodes[host], w.now, client);
    return true;
}

static bool tick(uint32_t i)
{
    struct mu_succession *m = &w.nodes[i].m;

    if (w.dead[i] || mu_succession_deadline(m).ns == UINT64_MAX || !spend(&w.left.ticks)) {
        return false;
    }
    *(m->state == MU_SUCCESSION_HOSTING ? &m->probe_at : &m->give_up) = w.now;
    memset(m->passed_over, 0, sizeof(m->passed_over));
    succ_node_tick(&w.nodes[i], w.now);
    return true;
}

static bool cut(uint32_t from, uint32_t to)
{
    if (from == to || is_apart(from, to) || !spend(&w.left.cuts)) {
        return false;
    }
    w.cut[from][to] = true;
    memset(&w.links[from][to], 0, sizeof(w.links[from][to]));
    return true;
}

/* False if there is nothing to do in this state. */
static bool do_step(unsigned step)
{
    uint32_t i = step % NODES;
    uint32_t j = step / NODES % NODES;

    if (step < LOSE) {
        if (i == j || w.links[j][i].count == 0 || w.dead[i]) {
            return false;
        }
        deliver(j, i);
        return true;
    }
    if (step < UNREACH) {
        return lose(step - LOSE);
    }
    if (step < DROP) {
        i = (step - UNREACH) % NODES;
        j = (step - UNREACH) / NODES;
        if (!may_unreach(i, j)) {
            return false;
        }
        succ_node_unreached(&w.nodes[i], w.now, j);
        return true;
    }
    if (step < TICK) {
        return drop((step - DROP) / NODES, (step - DROP) % NODES);
    }
    if (step < FORM) {
        return tick(step - TICK);
    }
    if (step < DIE) {
        i = step - FORM;
        if (w.dead[i] || !succ_node_may_form(&w.nodes[i]) || !spend(&w.left.forms)) {
            return false;
        }
        form(i);
        return true;
    }
    if (step < CUT) {
        i = step - DIE;
        if (w.dead[i] || w.nodes[i].m.state != MU_SUCCESSION_HOSTING || !spend(&w.left.deaths)) {
            return false;
        }
        die(i);
        return true;
    }
    return cut((step - CUT) / NODES, (step - CUT) % NODES);
}

/* Any time may be over at any step, so none has a value. */
static void level_times(void)
{
    mu_mono_t later = mu_mono_add_ms(w.now, 1000);

    for (uint32_t i = 0; i < NODES; i++) {
        struct mu_succession *m = &w.nodes[i].m;

        mu_prng_seed(&m->prng, i);
        m->patience_ns = m->config.patience_ms * MU_NS_PER_MS;
        m->give_up = m->give_up.ns == UINT64_MAX ? MU_MONO_NEVER : later;
        m->probe_at = m->probe_at.ns == UINT64_MAX ? MU_MONO_NEVER : later;
        for (uint32_t k = 0; k < NODES; k++) {
            m->passed_over[k] = mu_mono_before(w.now, m->passed_over[k]) ? later : (mu_mono_t){0};
        }
    }
}

static bool do_checked_step(unsigned step)
{
    if (!do_step(step)) {
        return false;
    }
    deliver_own();
    level_times();
    return true;
}

/* --- what tells states apart ------------------------------------------------------------------ */

static uint64_t hash;

static void mix(uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= hash >> 29;
}

static uint32_t numbers[NODES][64];
static uint32_t number_count[NODES];

static void note_call(uint32_t node, uint32_t call)
{
    if (call != 0 && number_count[node] < 64) {
        numbers[node][number_count[node]++] = call;
    }
}

/* Calls count by their order only. */
static void mix_call(uint32_t node, uint32_t call)
{
    uint32_t below = 0;

    for (uint32_t i = 0; i < number_count[node]; i++) {
        bool first = true;

        for (uint32_t k = 0; k < i; k++) {
            first = first && numbers[node][k] != numbers[node][i];
        }
        below += first && numbers[node][i] < call;
    }
    mix(call == 0 ? 0 : below + 1);
}

static bool is_clients(const struct succ_msg *msg)
{
    return msg->kind == SUCC_JOIN || msg->kind == SUCC_READY || msg->kind == SUCC_LEAVE ||
           msg->kind == SUCC_ASK || msg->kind == SUCC_HANG_UP || msg->kind == SUCC_PROBE;
}

static void note_calls(void)
{
    memset(number_count, 0, sizeof(number_count));
    for (uint32_t i = 0; i < NODES; i++) {
        note_call(i, w.nodes[i].join_call);
        for (uint32_t k = 0; k < MU_SUCCESSION_CALLS; k++) {
            note_call(i, w.nodes[i].asks[k].call);
        }
        for (uint32_t k = 0; k < NODES; k++) {
            const struct succ_client *c = &w.nodes[i].clients[k];
            const struct queue *q = &w.links[i][k];

            note_call(k, c->asks ? c->ask_call : 0);
            note_call(k, c->joined ? c->join_call : 0);
            for (uint32_t x = 0; x < q->count; x++) {
                note_call(is_clients(&q->msgs[x]) ? i : k, q->msgs[x].call);
            }
        }
    }
}

static void mix_electorate(const struct mu_electorate *e)
{
    mix(e->term << 48 ^ e->round << 16 ^ (uint64_t)e->world << 8 ^ (e->rank & 0xff));
}

static void mix_view(const struct mu_succession_view *v)
{
    mix(v->term << 32 ^ v->round << 8 ^ (uint64_t)v->step << 4 ^ v->count);
    for (uint32_t i = 0; i < v->count; i++) {
        mix_electorate(&v->may[i]);
    }
    mix_electorate(&v->told);
    for (uint32_t i = 0; i < v->past_count; i++) {
        mix_electorate(&v->past[i]);
    }
}

static void mix_host(const struct succ_node *n)
{
    const struct mu_succession *m = &n->m;

    mix(m->first_round << 8 ^ (uint64_t)m->step << 4 ^ m->base_count);
    mix_electorate(&m->preparing);
    for (uint32_t i = 0; i < m->base_count; i++) {
        mix_electorate(&m->bases[i]);
    }
    mix((uint64_t)n->changed << 32 ^ n->world << 24 ^ (uint64_t)n->seats[0] << 16 ^
        (uint64_t)n->seats[1] << 8 ^ n->seats[2]);
}

static void mix_node(uint32_t i)
{
    const struct succ_node *n = &w.nodes[i];
    const struct mu_succession *m = &n->m;

    mix((uint64_t)m->state << 56 ^ m->promised << 48 ^ (uint64_t)m->promised_to[0] << 40 ^
        (uint64_t)m->host[0] << 32 ^ m->host_term << 24 ^ (uint64_t)m->home << 20 ^
        (uint64_t)m->visited[0] << 16 ^ (uint64_t)m->visited[1] << 8 ^ (uint64_t)m->after << 1 ^
        (uint64_t)(m->give_up.ns == UINT64_MAX));
    mix(m->legacy.term << 40 ^ m->legacy.version << 32 ^
        (uint64_t)(m->probe_at.ns == UINT64_MAX) << 24 ^ m->probe_entry << 16 ^ n->join_to << 8);
    for (uint32_t k = 0; k < MU_SUCCESSION_CALLS; k++) {
        const struct mu_succession_call *call = &m->calls[k ^ m->home_call];

        mix((uint64_t)call->asking << 40 ^ (uint64_t)call->asked[0] << 32 ^ call->term << 16 ^
            (uint64_t)n->asks[k ^ m->home_call].to << 8 ^ call->entry);
        mix_call(i, n->asks[k ^ m->home_call].call);
    }
    for (uint32_t k = 0; k < NODES; k++) {
        mix(m->passed_over[k].ns != 0);
    }
    mix_view(&m->view);
    mix_call(i, n->join_call);
    mix(n->round_term << 32 ^ n->round);
    if (m->state == MU_SUCCESSION_HOSTING) {
        mix_host(n);
    }
    for (uint32_t k = 0; k < NODES; k++) {
        const struct succ_client *c = &n->clients[k];

        mix((uint64_t)c->asks << 1 ^ c->joined);
        if (c->asks) {
            mix_call(k, c->ask_call);
            mix(c->asker.ask.term << 32 ^ c->asker.ask.promised << 16 ^
                c->asker.ask.legacy.version << 8 ^ c->asker.ask.legacy.term);
            mix_view(&c->asker.ask.view);
        }
        if (c->joined) {
            mix_call(k, c->join_call);
            mix((uint64_t)c->peer.rank << 32 ^ c->peer.said);
            for (uint32_t b = 0; b < m->base_count; b++) {
                mix(c->peer.votes[b]);
            }
        }
    }
}

static void mix_msg(uint32_t from, uint32_t to, const struct succ_msg *msg)
{
    mix((uint64_t)msg->kind << 56 ^ (uint64_t)msg->about << 48 ^ (uint64_t)msg->step << 40 ^
        (uint64_t)msg->answer << 32 ^ msg->term << 16 ^ msg->round);
    mix(msg->legacy << 32 ^ msg->legacy_term);
    mix_call(is_clients(msg) ? from : to, msg->call);
    if (msg->kind == SUCC_JOIN) {
        mix_view(&msg->u.view);
    } else if (msg->kind == SUCC_ASK) {
        mix(msg->u.ask.term << 32 ^ msg->u.ask.promised);
        mix_view(&msg->u.ask.view);
    } else if (msg->kind == SUCC_PREPARE) {
        const struct mu_succession_prepare *p = &msg->u.prepare;

        mix(p->term << 32 ^ (uint64_t)p->step << 16 ^ p->base_count);
        mix_electorate(&p->round);
        for (uint32_t i = 0; i < p->base_count; i++) {
            mix_electorate(&p->bases[i]);
        }
    }
}

static void mix_truth(void)
{
    const struct succ_truth *t = &w.truth;

    for (uint32_t i = 0; i < 8; i++) {
        mix((uint64_t)t->terms[i].host << 8 ^ t->terms[i].last);
        for (uint32_t k = 0; k < NODES; k++) {
            mix(t->promised_to[k][i]);
        }
    }
    for (uint32_t i = 0; i < t->commit_count; i++) {
        mix(t->commits[i].term << 32 ^ t->commits[i].round << 8 ^ t->commits[i].world);
    }
    for (uint32_t k = 0; k < NODES; k++) {
        mix((uint64_t)t->lives[k] << 32 ^ t->promised[k]);
    }
}

static uint64_t hash_world(void)
{
    hash = 1;
    note_calls();
    mix_truth();
    for (uint32_t i = 0; i < NODES; i++) {
        mix(w.dead[i]);
        if (!w.dead[i]) {
            mix_node(i);
        }
        for (uint32_t k = 0; k < NODES; k++) {
            mix((uint64_t)w.cut[i][k] << 8 ^ w.links[i][k].count);
            for (uint32_t x = 0; x < w.links[i][k].count; x++) {
                mix_msg(i, k, &w.links[i][k].msgs[x]);
            }
        }
    }
    mix((uint64_t)w.left.deaths << 32 ^ (uint64_t)w.left.cuts << 24 ^
        (uint64_t)w.left.suspicions << 16 ^ (uint64_t)w.left.ticks << 8 ^ w.left.forms);
    return hash == 0 ? 1 : hash;
}

/* --- the run goes on -------------------------------------------------------------------------- */

/* Whether more than half of every electorate that may be the last committed one is alive and has
 * not forgotten. Who is in it is known from above, not from what the nodes know. */
static bool can_go_on(void)
{
    const struct mu_succession_view *latest = NULL;

    for (uint32_t i = 0; i < NODES; i++) {
        const struct mu_succession_view *v = &w.nodes[i].m.view;

        if (!w.dead[i] && (latest == NULL || mu_succession_view_later(v, latest))) {
            latest = v;
        }
    }
    for (uint32_t e = 0; latest != NULL && e < latest->count; e++) {
        const struct mu_electorate *in = &latest->may[e];
        uint32_t alive = 0;

        for (uint32_t i = 0; i < NODES; i++) {
            bool votes =
                in->term == 0 ? i < in->world : (w.members[in->round][in->term] & 1u << i) != 0;

            alive += votes && !w.dead[i] && w.truth.lives[i] == 0;
        }
        if (2 * alive <= in->world) {
            return false;
        }
    }
    return latest != NULL;
}

static bool all_run(void)
{
    const struct succ_commit *last;
    uint32_t in = 0;

    if (w.truth.commit_count == 0) {
        return false;
    }
    last = &w.truth.commits[w.truth.commit_count - 1];
    for (uint32_t i = 0; i < NODES; i++) {
        if (!w.dead[i]) {
            in++;
            if (w.nodes[i].round != last->round || w.nodes[i].round_term != last->term ||
                (w.nodes[i].m.state != MU_SUCCESSION_FOLLOWING &&
                 w.nodes[i].m.state != MU_SUCCESSION_HOSTING)) {
                return false;
            }
        }
    }
    return in == last->world;
}

/* Nothing goes wrong any more, and what went wrong is noticed. */
static void heal(void)
{
    for (uint32_t i = 0; i < NODES; i++) {
        for (uint32_t k = 0; k < NODES; k++) {
            if (is_apart(i, k)) {
                memset(&w.links[i][k], 0, sizeof(w.links[i][k]));
                memset(&w.links[k][i], 0, sizeof(w.links[k][i]));
            }
        }
    }
    for (uint32_t i = 0; i < NODES; i++) {
        for (uint32_t k = 0; k < NODES; k++) {
            if (!w.dead[i] && is_apart(i, k)) {
                if (succ_node_has_host(&w.nodes[i]) && w.nodes[i].join_to == k) {
                    succ_node_lost(&w.nodes[i], w.now);
                }
                if (succ_node_asks(&w.nodes[i], k) < MU_SUCCESSION_CALLS) {
                    succ_node_unreached(&w.nodes[i], w.now, succ_node_asks(&w.nodes[i], k));
                }
                succ_node_drop(&w.nodes[i], w.now, k);
            }
        }
    }
    memset(w.cut, 0, sizeof(w.cut));
}

/* One thing that is due: a message, news of the dead, a round, or else the next deadline. */
static void do_next(void)
{
    mu_mono_t next = MU_MONO_NEVER;
    bool idle = true;

    for (uint32_t i = 0; i < NODES; i++) {
        struct succ_node *n = &w.nodes[i];

        if (w.dead[i]) {
            continue;
        }
        for (uint32_t k = 0; k < NODES; k++) {
            if (w.links[k][i].count > 0) {
                deliver(k, i);
                idle = false;
            }
        }
        for (uint32_t k = 0; k < MU_SUCCESSION_CALLS; k++) {
            if (may_unreach(i, k)) {
                succ_node_unreached(n, w.now, k);
                idle = false;
            }
        }
        if (succ_node_has_host(n) && may_lose(i)) {
            succ_node_lost(n, w.now);
            idle = false;
        }
    }
    for (uint32_t i = 0; idle && i < NODES; i++) {
        if (!w.dead[i] && succ_node_may_form(&w.nodes[i])) {
            succ_node_form(&w.nodes[i], w.now);
            idle = false;
        }
        if (!w.dead[i]) {
            next = mu_mono_min(next, mu_succession_deadline(&w.nodes[i].m));
        }
    }
    if (idle && next.ns != UINT64_MAX) {
        w.now = next.ns > w.now.ns ? next : w.now;
        for (uint32_t i = 0; i < NODES; i++) {
            if (!w.dead[i]) {
                succ_node_tick(&w.nodes[i], w.now);
            }
        }
    }
}

static void check_goes_on(void)
{
    if (!can_go_on()) {
        return;
    }
    for (uint32_t i = 0; i < NODES; i++) {
        mu_prng_seed(&w.nodes[i].m.prng, UINT64_C(77) * (i + 1));
    }
    heal();
    for (uint32_t i = 0; i < GO_ON_TURNS && wrong == NULL; i++) {
        if (all_run()) {
            return;
        }
        do_next();
    }
    fail(NULL, "the run does not go on");
}

static bool is_quiet(void)
{
    for (uint32_t i = 0; i < NODES; i++) {
        for (uint32_t k = 0; k < NODES; k++) {
            if (w.links[i][k].count != 0) {
                return false;
            }
        }
    }
    return true;
}

/* --- all of them ------------------------------------------------------------------------------ */

struct plan {
    const char *name;
    uint32_t endpoints;
    struct budget budget;
    uint64_t states_max; /* so that a test ends; 0: only --whole */
};

struct frame {
    struct world world;
    unsigned step;
};

static struct frame *stack;
static uint64_t *seen;
static uint64_t seen_mask;
static uint64_t state_count, quiet_count, deepest;

static bool note_state(void)
{
    uint64_t key = hash_world();
    uint64_t at = key & seen_mask;

    while (seen[at] != 0) {
        if (seen[at] == key) {
            return false;
        }
        at = (at + 1) & seen_mask;
    }
    seen[at] = key;
    state_count++;
    return true;
}

static void start(const struct plan *plan, enum succ_bug bug)
{
    memset(&w, 0, sizeof(w));
    wrong = NULL;
    w.now = (mu_mono_t){MU_NS_PER_S};
    w.left = plan->budget;
    for (uint32_t i = 0; i < NODES; i++) {
        w.nodes[i].send = send;
        w.nodes[i].failed = fail;
        w.nodes[i].truth = &w.truth;
        w.nodes[i].bug = bug;
        succ_node_start(&w.nodes[i], w.now, i, NODES, plan->endpoints, false, i);
        deliver_own();
    }
    level_times();
}

static const char *step_name(unsigned step, char *text, size_t cap)
{
    unsigned bases[] = {DELIVER, LOSE, UNREACH, DROP, TICK, FORM, DIE, CUT, STEPS};
    const char *names[] = {"deliver", "lost", "unreached", "drop", "tick", "form", "die", "cut"};
    unsigned kind = 0;

    while (step >= bases[kind + 1]) {
        kind++;
    }
    step -= bases[kind];
    if (kind == 0 || kind == 3 || kind == 7) {
        (void)snprintf(text, cap, "%s %c %c", names[kind], 'a' + (int)(step / NODES),
                       'a' + (int)(step % NODES));
    } else {
        (void)snprintf(text, cap, "%s %c", names[kind], 'a' + (int)step);
    }
    return text;
}

static void print_path(uint32_t depth)
{
    char text[64];

    for (uint32_t i = 0; i <= depth; i++) {
        (void)printf("    %s\n", step_name(stack[i].step, text, sizeof(text)));
    }
}

static void print_nodes(void)
{
    for (uint32_t i = 0; i < NODES; i++) {
        const struct mu_succession *m = &w.nodes[i].m;
        char text[256];

        mu_succession_explain(m, text, sizeof(text));
        (void)printf("  %c%s: state %d, promised %" PRIu64 ", view %" PRIu64 "/%" PRIu64
                     " step %d of %" PRIu32 ", %" PRIu32 " bases; %s\n",
                     'a' + (int)i, w.dead[i] ? ", dead" : "", (int)m->state, m->promised,
                     m->view.term, m->view.round, (int)m->view.step, m->view.count, m->base_count,
                     text);
    }
}

/* Tries every step in every state. False: there was something wrong. */
static bool explore(const struct plan *plan, enum succ_bug bug, bool loud)
{
    uint32_t depth = 0;
    bool changed = false; /* The world is not that of the frame. */

    memset(seen, 0, (seen_mask + 1) * sizeof(*seen));
    state_count = quiet_count = deepest = 0;
    start(plan, bug);
    (void)note_state();
    stack[0] = (struct frame){.world = w};
    for (;;) {
        struct frame *f = &stack[depth];

        if (f->step == STEPS || state_count >= plan->states_max) {
            if (depth-- == 0) {
                return true;
            }
            stack[depth].step++;
            changed = true;
            continue;
        }
        if (changed) {
            w = f->world;
        }
        changed = do_checked_step(f->step);
        if (changed && (wrong != NULL || note_state())) {
            bool quiet = wrong == NULL && is_quiet();

            if (quiet) {
                quiet_count++;
                stack[depth + 1].world = w;
                check_goes_on();
                if (wrong == NULL) {
                    w = stack[depth + 1].world;
                }
            }
            if (wrong != NULL) {
                if (loud) {
                    (void)printf("%s: %s, after\n", plan->name, wrong);
                    print_path(depth);
                }
                return false;
            }
            if (depth + 2 < DEPTH_MAX) {
                depth++;
                deepest = depth > deepest ? depth : deepest;
                stack[depth].world = w;
                stack[depth].step = 0;
                changed = false;
                continue;
            }
        }
        f->step++;
    }
}

static const struct plan plans[] = {
    {"one endpoint, the host dies", 1, {.deaths = 1, .ticks = 1, .forms = 3}, 200000},
    {"one endpoint, one suspicion", 1, {.suspicions = 1, .ticks = 1, .forms = 2}, 200000},
    {"one endpoint, a cut", 1, {.cuts = 1, .ticks = 1, .forms = 1}, 200000},
    {"three endpoints, the host dies", 3, {.deaths = 1, .ticks = 1, .forms = 1}, 300000},
    {"three endpoints, a cut", 3, {.cuts = 1, .forms = 1}, 200000},
    /* Too many for every day. */
    {"one endpoint, death and time", 1, {.deaths = 1, .ticks = 3, .forms = 3}, 0},
    {"one endpoint, death and a cut", 1, {.deaths = 1, .cuts = 1, .ticks = 1, .forms = 2}, 0},
    {"one endpoint, suspicions", 1, {.suspicions = 2, .ticks = 2, .forms = 3}, 0},
    {"three endpoints, death and time", 3, {.deaths = 1, .ticks = 2, .forms = 2}, 0},
    {"three endpoints, suspicions", 3, {.suspicions = 1, .ticks = 2, .forms = 2}, 0},
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
        good = explore(&plan, SUCC_BUG_NONE, true);
        (void)printf("%s: %" PRIu64 " states%s, %" PRIu64 " quiet, %" PRIu64 " steps deep: %s\n",
                     plan.name, state_count, state_count >= plan.states_max ? " and more" : "",
                     quiet_count, deepest, good ? "good" : "BAD");
        (void)fflush(stdout);
        bad += !good;
    }
    return bad;
}

/* --- walks ------------------------------------------------------------------------------------ */

/* Mostly messages come, and rounds are formed; else there would be trouble and nothing else. */
static unsigned draw_step(struct mu_prng *prng)
{
    uint64_t percent = mu_prng_below(prng, 100);

    if (percent < 70) {
        return DELIVER + (unsigned)mu_prng_below(prng, LOSE - DELIVER);
    }
    if (percent < 75) {
        return FORM + (unsigned)mu_prng_below(prng, DIE - FORM);
    }
    return (unsigned)mu_prng_below(prng, STEPS);
}

/*
 * More trouble than can be tried in every order: steps are drawn from a seed, and then the run must
 * go on. False: there was something wrong.
 */
static bool walk(const struct plan *plan, enum succ_bug bug, uint64_t seed, bool loud)
{
    struct mu_prng prng;
    uint32_t depth = 0;

    mu_prng_seed(&prng, seed);
    start(plan, bug);
    for (uint32_t tries = 0; tries < WALK_TRIES && wrong == NULL && depth < DEPTH_MAX; tries++) {
        unsigned step = draw_step(&prng);

        stack[depth].step = step;
        if (do_checked_step(step)) {
            depth++;
        }
    }
    if (wrong == NULL) {
        check_goes_on();
    }
    if (wrong != NULL && loud) {
        (void)printf("%s, seed %" PRIu64 ": %s, after\n", plan->name, seed, wrong);
        print_path(depth == 0 ? 0 : depth - 1);
        print_nodes();
    }
    return wrong == NULL;
}

static const struct plan troubles[] = {
    {"one endpoint", 1, {.deaths = 1, .cuts = 1, .suspicions = 3, .ticks = 6, .forms = 5}, 0},
    {"three endpoints", 3, {.deaths = 1, .cuts = 1, .suspicions = 3, .ticks = 6, .forms = 4}, 0},
    {"without deaths", 3, {.cuts = 1, .suspicions = 6, .ticks = 8, .forms = 5}, 0},
};

#define TROUBLES (sizeof(troubles) / sizeof(troubles[0]))

static int walk_all(uint64_t seeds)
{
    int bad = 0;

    for (size_t i = 0; i < TROUBLES; i++) {
        uint64_t seed = 0;

        while (seed < seeds && walk(&troubles[i], SUCC_BUG_NONE, seed, true)) {
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
static int find_bugs(uint64_t seeds, bool loud)
{
    int bad = 0;

    for (enum succ_bug bug = SUCC_BUG_NONE + 1; bug < SUCC_BUGS; bug++) {
        bool found = false;

        for (uint64_t seed = 0; !found && seed < seeds; seed++) {
            for (size_t i = 0; !found && i < TROUBLES; i++) {
                if (!walk(&troubles[i], bug, seed, loud)) {
                    found = true;
                    (void)printf("bug %s: found with %s, seed %" PRIu64 ": %s\n",
                                 succ_bug_names[bug], troubles[i].name, seed, wrong);
                }
            }
        }
        if (!found) {
            (void)printf("bug %s: NOT FOUND\n", succ_bug_names[bug]);
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

    seen_mask = (UINT64_C(1) << (whole ? 28 : 20)) - 1;
    seen = calloc(seen_mask + 1, sizeof(*seen));
    stack = calloc(DEPTH_MAX, sizeof(*stack));
    if (seen == NULL || stack == NULL) {
        (void)fprintf(stderr, "no memory\n");
        return 1;
    }
    if (argc == 4 && strcmp(argv[1], "--walk") == 0) {
        size_t plan = strtoul(argv[2], NULL, 10) % TROUBLES;

        return walk(&troubles[plan], SUCC_BUG_NONE, strtoull(argv[3], NULL, 10), true) ? 0 : 1;
    }
    bad = walk_all(whole ? 2000000 : some ? 500 : 10000);
    if (!some) {
        bad += find_bugs(whole ? 1000000 : 50000, argc > 1 && strcmp(argv[1], "--loud") == 0);
    }
    bad += explore_all(whole, some ? 20000 : UINT64_MAX);
    free(seen);
    free(stack);
    return bad == 0 ? 0 : 1;
}
