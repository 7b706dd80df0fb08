#include "scenarios/rdzv/succession_node.h"

#include <stdio.h>
#include <string.h>

#include "core/assert.h"

const char *const succ_bug_names[SUCC_BUGS] = {
    [SUCC_BUG_NONE] = "none",
    [SUCC_BUG_PROMISE_TWICE] = "twice",
    [SUCC_BUG_MINORITY] = "minority",
    [SUCC_BUG_OLD_TERM] = "old-term",
    [SUCC_BUG_PREPARED_IGNORED] = "prepared",
    [SUCC_BUG_COMMIT_EARLY] = "early",
    [SUCC_BUG_HALF] = "half",
    [SUCC_BUG_READY_AFTER_PROMISE] = "ready",
    [SUCC_BUG_ROUND_REUSED] = "round",
    [SUCC_BUG_BASES_DROPPED] = "bases",
    [SUCC_BUG_OLD_LEGACY] = "legacy",
    [SUCC_BUG_NOT_TOLD] = "not-told",
    [SUCC_BUG_NO_WAY_BACK] = "no-way-back",
};

static const struct mu_succession_heir heirs[SUCC_NODES_MAX] = {
    {"a", "a:1"}, {"b", "b:1"}, {"c", "c:1"}, {"d", "d:1"}, {"e", "e:1"},
    {"f", "f:1"}, {"g", "g:1"}, {"h", "h:1"}, {"i", "i:1"},
};

const struct mu_succession_heir *succ_heirs(void)
{
    return heirs;
}

static uint32_t node_of(const char *address)
{
    return (uint32_t)(address[0] - 'a');
}

static void check(struct succ_node *n, const char *wrong)
{
    if (wrong != NULL) {
        n->failed(n->context, wrong);
    }
}

static void pump(struct succ_node *n, mu_mono_t now);

/* --- as a client ----------------------------------------------------------------------------- */

static void send_kind(struct succ_node *n, uint32_t to, enum succ_kind kind, uint32_t call)
{
    n->send(n->context, n->id, to, &(struct succ_msg){.kind = (uint8_t)kind, .call = call});
}

/* Old versions of a world of one: the bugs that count wrongly. */
static void spoil_view(enum succ_bug bug, struct mu_succession_view *view)
{
    for (uint32_t i = 0; i < view->count; i++) {
        struct mu_electorate *e = &view->may[i];

        if (bug == SUCC_BUG_MINORITY && e->rank != MU_SUCCESSION_NO_RANK) {
            e->world = 1;
            e->rank = 0;
        } else if (bug == SUCC_BUG_HALF && e->world % 2 == 0) {
            e->world--;
            e->rank = e->rank >= e->world ? 0 : e->rank;
        }
    }
    if (bug == SUCC_BUG_PREPARED_IGNORED && view->step == MU_SUCCESSION_BOUND) {
        view->count--;
        view->step = MU_SUCCESSION_TOLD;
    }
}

static void send_ask(struct succ_node *n, const struct mu_succession_action *a)
{
    struct succ_ask *ours = &n->asks[a->call];
    struct succ_msg msg = {.kind = SUCC_ASK};
    struct mu_succession_ask ask;

    mu_succession_get_ask(&n->m, a->call, &ask);
    ours->call = ++n->calls;
    ours->to = node_of(a->address);
    if (a->term != 0) {
        check(n, succ_truth_promise(n->truth, n->id, a->term, ours->to));
    }
    msg.call = ours->call;
    msg.u.ask.term = ask.term;
    msg.u.ask.promised = ask.promised;
    msg.u.ask.view = ask.view;
    msg.legacy = ask.legacy.version;
    msg.legacy_term = ask.legacy.term;
    spoil_view(n->bug, &msg.u.ask.view);
    n->send(n->context, n->id, ours->to, &msg);
    if (n->bug == SUCC_BUG_PROMISE_TWICE && a->term != 0) {
        n->m.promised = a->term - 1;
        n->m.promised_to[0] = '\0';
    }
}

static void send_join(struct succ_node *n, uint32_t to)
{
    struct succ_msg msg = {.kind = SUCC_JOIN};

    n->join_call = ++n->calls;
    n->join_to = to;
    n->bye = false;
    msg.call = n->join_call;
    msg.u.view = n->m.view;
    n->send(n->context, n->id, to, &msg);
}

bool succ_node_has_host(const struct succ_node *n)
{
    return n->m.state == MU_SUCCESSION_TURNING || n->m.state == MU_SUCCESSION_FOLLOWING;
}

void succ_node_lost(struct succ_node *n, mu_mono_t now)
{
    if (n->join_call != 0 && n->bug != SUCC_BUG_READY_AFTER_PROMISE) {
        send_kind(n, n->join_to, SUCC_LEAVE, n->join_call);
        n->join_call = 0;
    }
    spoil_view(n->bug, &n->m.view);
    mu_succession_lost(&n->m, now);
    pump(n, now);
}

uint32_t succ_node_asks(const struct succ_node *n, uint32_t to)
{
    uint32_t i = 0;

    while (i < MU_SUCCESSION_CALLS && (n->asks[i].call == 0 || n->asks[i].to != to)) {
        i++;
    }
    return i;
}

void succ_node_unreached(struct succ_node *n, mu_mono_t now, uint32_t ask)
{
    n->asks[ask].call = 0;
    mu_succession_unreached(&n->m, now, ask);
    pump(n, now);
}

static void on_prepare(struct succ_node *n, mu_mono_t now, const struct succ_msg *msg)
{
    const struct mu_succession_prepare *p = &msg->u.prepare;

    if (n->bug == SUCC_BUG_READY_AFTER_PROMISE && p->term < n->m.promised) {
        n->send(n->context, n->id, n->join_to,
                &(struct succ_msg){.kind = SUCC_READY,
                                   .call = msg->call,
                                   .term = p->term,
                                   .round = p->round.round,
                                   .step = (uint8_t)p->step});
        return;
    }
    mu_succession_prepare(&n->m, now, p);
    if (n->m.view.round == p->round.round && n->m.view.term == p->term &&
        (n->bug != SUCC_BUG_OLD_LEGACY || n->m.legacy.version == 0)) {
        (void)mu_succession_set_legacy(
            &n->m, &(struct mu_succession_legacy){
                       .term = msg->legacy_term, .round = msg->legacy, .version = msg->legacy});
    }
}

static void on_answer(struct succ_node *n, mu_mono_t now, uint32_t from, const struct succ_msg *msg)
{
    uint32_t ask = succ_node_asks(n, from);
    struct mu_succession_answer answer = {.kind = (enum mu_succession_answer_kind)msg->answer,
                                          .term = msg->term,
                                          .address = heirs[msg->about].address};

    if (ask == MU_SUCCESSION_CALLS || n->asks[ask].call != msg->call) {
        return;
    }
    n->asks[ask].call = 0;
    if (answer.kind == MU_SUCCESSION_FORGET && answer.term < n->m.promised) {
        succ_truth_reborn(n->truth, n->id);
    }
    mu_succession_answered(&n->m, now, ask, &answer);
}

/* --- as a host ------------------------------------------------------------------------------- */

static void on_join(struct succ_node *n, mu_mono_t now, uint32_t from, const struct succ_msg *msg)
{
    struct succ_client *c = &n->clients[from];

    succ_node_drop(n, now, from);
    if (n->m.state != MU_SUCCESSION_HOSTING) {
        send_kind(n, from, SUCC_REFUSED, msg->call);
        return;
    }
    c->joined = true;
    c->join_call = msg->call;
    memset(&c->peer, 0, sizeof(c->peer));
    c->peer.owner = c;
    (void)snprintf(c->peer.name, sizeof(c->peer.name), "%s", heirs[from].name);
    c->peer.view = msg->u.view;
    n->changed = true;
    n->send(n->context, n->id, from,
            &(struct succ_msg){.kind = SUCC_JOINED, .call = msg->call, .term = n->m.host_term});
    mu_succession_peer_in(&n->m, now, &c->peer);
}

static void on_ask(struct succ_node *n, mu_mono_t now, uint32_t from, const struct succ_msg *msg)
{
    struct succ_client *c = &n->clients[from];

    if (c->asks) {
        mu_succession_unasked(&n->m, &c->asker);
    }
    memset(&c->asker, 0, sizeof(c->asker));
    c->asks = true;
    c->ask_call = msg->call;
    c->asker.owner = c;
    (void)snprintf(c->asker.name, sizeof(c->asker.name), "%s", heirs[from].name);
    c->asker.ask.term = msg->u.ask.term;
    c->asker.ask.promised = msg->u.ask.promised;
    c->asker.ask.view = msg->u.ask.view;
    c->asker.ask.legacy = (struct mu_succession_legacy){
        .term = msg->legacy_term, .round = msg->legacy, .version = msg->legacy};
    if (n->bug == SUCC_BUG_NO_WAY_BACK && n->m.state == MU_SUCCESSION_HOSTING) {
        c->asker.ask.promised = 0;
    }
    mu_succession_asked(&n->m, now, &c->asker);
}

/* The round is over, or will not begin: who is left gathers for the next. */
static void gather(struct succ_node *n)
{
    mu_succession_abort(&n->m);
    n->changed = true;
}

static void leave(struct succ_node *n, mu_mono_t now, struct succ_client *c)
{
    if (c->joined) {
        c->joined = false;
        mu_succession_peer_out(&n->m, now, &c->peer, false);
        gather(n);
    }
}

void succ_node_drop(struct succ_node *n, mu_mono_t now, uint32_t client)
{
    struct succ_client *c = &n->clients[client];

    if (c->asks) {
        c->asks = false;
        mu_succession_unasked(&n->m, &c->asker);
    }
    leave(n, now, c);
    pump(n, now);
}

bool succ_node_may_form(const struct succ_node *n)
{
    if (n->m.state != MU_SUCCESSION_HOSTING || !n->changed || mu_succession_waits(&n->m)) {
        return false;
    }
    for (uint32_t i = 0; i < n->count; i++) {
        if (n->clients[i].joined) {
            return true;
        }
    }
    return false;
}

void succ_node_form(struct succ_node *n, mu_mono_t now)
{
    uint64_t round = n->m.first_round;
    struct mu_errmsg msg;

    n->world = 0;
    for (uint32_t i = 0; i < n->count; i++) {
        if (n->clients[i].joined) {
            n->seats[n->world++] = (uint8_t)i;
        }
    }
    if (mu_succession_begin(&n->m, round, n->world, &msg) != 0) {
        n->failed(n->context, "a round could not begin");
        return;
    }
    n->seated_round = round;
    n->changed = false;
    for (uint32_t i = 0; i < n->world; i++) {
        mu_succession_seat(&n->m, &n->clients[n->seats[i]].peer, i);
        if (n->bug == SUCC_BUG_NOT_TOLD) {
            n->clients[n->seats[i]].peer.said = MU_SUCCESSION_TOLD;
        }
    }
    mu_succession_go(&n->m, now);
    if (n->bug == SUCC_BUG_COMMIT_EARLY) {
        for (uint32_t i = 0; i < n->m.base_count; i++) {
            n->m.left[i] = n->m.bases[i].world;
        }
    }
    pump(n, now);
}

static void commit(struct succ_node *n, const struct mu_succession_action *a)
{
    struct succ_commit commit = {
        .term = a->term, .round = a->round, .legacy = a->round, .world = n->world};

    for (uint32_t i = 0; i < n->world; i++) {
        commit.voters[i].node = n->seats[i];
    }
    check(n, succ_truth_commit(n->truth, &commit));
    for (uint32_t i = 0; i < n->world; i++) {
        struct succ_client *c = &n->clients[n->seats[i]];

        if (c->joined) {
            n->send(n->context, n->id, n->seats[i],
                    &(struct succ_msg){.kind = SUCC_ASSIGNED,
                                       .call = c->join_call,
                                       .term = a->term,
                                       .round = a->round,
                                       .step = (uint8_t)i});
        }
    }
}

static void step_down(struct succ_node *n)
{
    for (uint32_t i = 0; i < n->count; i++) {
        struct succ_client *c = &n->clients[i];

        if (c->joined) {
            c->joined = false;
            send_kind(n, i, SUCC_BYE, c->join_call);
        }
    }
    /* Our own agent was a member as well; its host is gone with us. */
    n->join_call = 0;
}

static void begin_to_host(struct succ_node *n)
{
    if (n->bug == SUCC_BUG_ROUND_REUSED) {
        n->m.first_round = 1;
    }
    if (n->bug == SUCC_BUG_BASES_DROPPED && n->m.base_count > 1) {
        n->m.base_count = 1;
    }
    check(n, succ_truth_promise(n->truth, n->id, n->m.host_term, n->id));
    check(n, succ_truth_host(n->truth, n->id, &n->m));
    n->m.legacy = n->m.heritage;
    n->changed = true;
    send_join(n, n->id);
}

/* --- doing what the machine says -------------------------------------------------------------- */

static void act(struct succ_node *n, const struct mu_succession_action *a)
{
    switch (a->type) {
    case MU_SUCCESSION_ASK:
        send_ask(n, a);
        break;
    case MU_SUCCESSION_HANG_UP:
        if (n->asks[a->call].call != 0) {
            send_kind(n, n->asks[a->call].to, SUCC_HANG_UP, n->asks[a->call].call);
            n->asks[a->call].call = 0;
        }
        break;
    case MU_SUCCESSION_FOLLOW:
        send_join(n, node_of(a->address));
        break;
    case MU_SUCCESSION_CHECK:
        send_kind(n, n->join_to, SUCC_PROBE, n->join_call);
        break;
    case MU_SUCCESSION_SAY_READY:
        n->send(n->context, n->id, n->join_to,
                &(struct succ_msg){.kind = SUCC_READY,
                                   .call = n->join_call,
                                   .term = a->term,
                                   .round = a->round,
                                   .step = (uint8_t)a->step});
        break;
    case MU_SUCCESSION_HOST:
        begin_to_host(n);
        break;
    case MU_SUCCESSION_COMMIT:
        commit(n, a);
        break;
    case MU_SUCCESSION_STEP_DOWN:
        step_down(n);
        break;
    case MU_SUCCESSION_PROBE:
        n->send(n->context, n->id, node_of(a->address),
                &(struct succ_msg){.kind = SUCC_PROBE,
                                   .term = n->m.host_term,
                                   .round = n->m.first_round,
                                   .about = (uint8_t)n->id});
        break;
    }
}

static void pump(struct succ_node *n, mu_mono_t now)
{
    struct mu_succession_prepare prepare;
    struct mu_succession_peer *peer;
    struct mu_succession_asker *asker;
    struct mu_succession_answer answer;
    struct mu_succession_action action;

    (void)now;
    while (mu_succession_next_prepare(&n->m, &peer, &prepare)) {
        struct succ_client *c = peer->owner;
        struct succ_msg msg = {.kind = SUCC_PREPARE, .call = c->join_call};

        msg.u.prepare = prepare;
        msg.legacy = prepare.round.round;
        msg.legacy_term = prepare.term;
        n->send(n->context, n->id, (uint32_t)(c - n->clients), &msg);
    }
    while (mu_succession_next_answer(&n->m, &asker, &answer)) {
        struct succ_client *c = asker->owner;
        bool known = answer.address != NULL;

        c->asks = false;
        n->send(n->context, n->id, (uint32_t)(c - n->clients),
                &(struct succ_msg){.kind = SUCC_ANSWER,
                                   .call = c->ask_call,
                                   .answer = (uint8_t)answer.kind,
                                   .term = answer.term,
                                   .about = (uint8_t)(known ? node_of(answer.address) : n->id)});
    }
    while (mu_succession_next(&n->m, &action)) {
        act(n, &action);
    }
    if (n->m.state == MU_SUCCESSION_CLAIMING) {
        check(n, succ_truth_promise(n->truth, n->id, n->m.promised, n->id));
    }
}

/* --- what comes in ---------------------------------------------------------------------------- */

static void on_probe(struct succ_node *n, mu_mono_t now, uint32_t from, const struct succ_msg *msg)
{
    struct mu_succession_probe reply;
    struct mu_succession_probe probe = {
        .term = msg->term, .round = msg->round, .address = heirs[from].address};

    if (msg->call != 0) {
        /* A member wants to know whether we are there. */
        n->send(n->context, n->id, from,
                &(struct succ_msg){.kind = SUCC_PROBED, .call = msg->call});
        return;
    }
    mu_succession_probed(&n->m, now, &probe, &reply);
    if (reply.term != 0) {
        n->send(n->context, n->id, from,
                &(struct succ_msg){.kind = SUCC_PROBED,
                                   .term = reply.term,
                                   .round = reply.round,
                                   .about = (uint8_t)node_of(reply.address)});
    }
}

static void on_probed(struct succ_node *n, mu_mono_t now, const struct succ_msg *msg)
{
    if (msg->call != 0) {
        if (msg->call == n->join_call) {
            mu_succession_heard(&n->m, now);
        }
        return;
    }
    mu_succession_better(&n->m, now,
                         &(struct mu_succession_probe){.term = msg->term,
                                                       .round = msg->round,
                                                       .address = heirs[msg->about].address});
}

/* From our host, or from whom we have asked to be. */
static void receive_as_member(struct succ_node *n, mu_mono_t now, uint32_t from,
                              const struct succ_msg *msg)
{
    if (msg->call != n->join_call || from != n->join_to) {
        return;
    }
    switch (msg->kind) {
    case SUCC_JOINED:
        if (n->join_to != n->id) {
            mu_succession_followed(&n->m, now, msg->term, heirs[n->join_to].address);
            succ_truth_follow(n->truth, n->id, msg->term);
        }
        break;
    case SUCC_PREPARE:
        on_prepare(n, now, msg);
        break;
    case SUCC_ASSIGNED:
        check(n, succ_truth_assigned(n->truth, n->id, msg->term, msg->round, msg->step));
        mu_succession_assigned(&n->m, msg->term, msg->round);
        n->round_term = msg->term;
        n->round = msg->round;
        break;
    case SUCC_REFUSED:
    case SUCC_BYE:
        n->join_call = 0;
        mu_succession_lost(&n->m, now);
        break;
    default:
        break;
    }
}

/* From a member, or one who wants to be. */
static void receive_as_host(struct succ_node *n, mu_mono_t now, uint32_t from,
                            const struct succ_msg *msg)
{
    struct succ_client *c = &n->clients[from];

    if (msg->kind == SUCC_JOIN) {
        on_join(n, now, from, msg);
    } else if (msg->kind == SUCC_READY && c->joined && msg->call == c->join_call) {
        mu_succession_ready(&n->m, now, &c->peer, msg->term, msg->round,
                            (enum mu_succession_step)msg->step);
    } else if (msg->kind == SUCC_LEAVE && c->joined && msg->call == c->join_call) {
        leave(n, now, c);
    }
}

void succ_node_receive(struct succ_node *n, mu_mono_t now, uint32_t from,
                       const struct succ_msg *msg)
{
    struct succ_client *c = &n->clients[from];

    switch (msg->kind) {
    case SUCC_ASK:
        on_ask(n, now, from, msg);
        break;
    case SUCC_ANSWER:
        on_answer(n, now, from, msg);
        break;
    case SUCC_HANG_UP:
        if (c->asks && msg->call == c->ask_call) {
            c->asks = false;
            mu_succession_unasked(&n->m, &c->asker);
        }
        break;
    case SUCC_PROBE:
        on_probe(n, now, from, msg);
        break;
    case SUCC_PROBED:
        on_probed(n, now, msg);
        break;
    default:
        receive_as_host(n, now, from, msg);
        receive_as_member(n, now, from, msg);
        break;
    }
    pump(n, now);
}

static bool has_promised(const struct mu_succession *m)
{
    for (uint32_t i = 0; i < MU_SUCCESSION_CALLS; i++) {
        if (m->calls[i].asking && m->calls[i].term != 0) {
            return true;
        }
    }
    return false;
}

void succ_node_tick(struct succ_node *n, mu_mono_t now)
{
    if (n->bug == SUCC_BUG_OLD_TERM && has_promised(&n->m)) {
        n->m.promised = n->m.host_term;
        mu_succession_better(
            &n->m, now,
            &(struct mu_succession_probe){.term = n->m.host_term, .address = n->m.host});
    }
    mu_succession_tick(&n->m, now);
    pump(n, now);
}

void succ_node_start(struct succ_node *n, mu_mono_t now, uint32_t id, uint32_t count,
                     uint32_t endpoints, bool anew, uint64_t seed)
{
    MU_ASSERT(count <= SUCC_NODES_MAX);
    n->id = id;
    n->count = count;
    mu_succession_init(&n->m, &(struct mu_succession_config){.name = heirs[id].name,
                                                             .address = heirs[id].address,
                                                             .seed = seed,
                                                             .trace = n->trace});
    mu_succession_start(&n->m, now,
                        &(struct mu_succession_line){.count = endpoints, .heirs = heirs},
                        id < endpoints && !anew ? id : MU_SUCCESSION_NO_RANK);
    pump(n, now);
    for (uint32_t i = 0; i < count; i++) {
        n->line[i] = heirs[n->turned && i >= endpoints ? endpoints + count - 1 - i : i];
    }
    mu_succession_set_line(&n->m, &(struct mu_succession_line){.count = count, .heirs = n->line});
}
