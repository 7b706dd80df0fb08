/*
 * One machine of a succession under inputs in any order, made of the bytes: what it was told by a
 * host, what others ask it, what it is answered. After each of them:
 *  - what it has promised, and its view, never go back, unless it is told to forget or leaves;
 *  - a term is promised to one address;
 *  - nothing is said READY below a promise;
 *  - it hosts only with more than half of every electorate that it knows may be the last;
 *  - a round is committed only when all are told, and half of every base is ready.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "core/reader.h"
#include "proto/rdzv/succession.h"

#define OTHERS 5
#define TERMS  64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct mu_succession_heir heirs[] = {
    {"a", "a:1"}, {"b", "b:1"}, {"", "c:1"}, {"d", "d:1"}, {"e", "e:1"}};

struct world {
    struct mu_succession m;
    struct mu_reader in;
    mu_mono_t now;
    struct mu_succession_asker askers[OTHERS];
    bool asks[OTHERS];
    struct mu_succession_peer peers[OTHERS];
    bool joined[OTHERS];
    char promised_to[TERMS];
    uint64_t promised;
    struct mu_succession_view view;
    bool hosted;
};

static uint64_t small(struct world *w, uint32_t bound)
{
    return mu_read_u8(&w->in) % bound;
}

static struct mu_electorate read_electorate(struct world *w)
{
    struct mu_electorate e = {
        .term = small(w, 8), .round = small(w, 8), .world = (uint32_t)small(w, 6)};
    uint32_t rank = (uint32_t)small(w, 8);

    e.rank = rank == 7 ? MU_SUCCESSION_NO_RANK : rank;
    return e;
}

static void read_view(struct world *w, struct mu_succession_view *v)
{
    memset(v, 0, sizeof(*v));
    v->term = small(w, 8);
    v->round = small(w, 8);
    v->step = (enum mu_succession_step)small(w, 5);
    v->count = (uint32_t)small(w, MU_SUCCESSION_CONFIGS + 2);
    for (uint32_t i = 0; i < v->count && i < MU_SUCCESSION_CONFIGS; i++) {
        v->may[i] = read_electorate(w);
    }
    if (small(w, 2) != 0) {
        v->told = read_electorate(w);
    }
    v->past_count = (uint32_t)small(w, MU_SUCCESSION_PAST + 2);
    for (uint32_t i = 0; i < v->past_count && i < MU_SUCCESSION_PAST; i++) {
        v->past[i] = read_electorate(w);
    }
}

static uint64_t read_term(struct world *w)
{
    uint8_t byte = mu_read_u8(&w->in);

    return byte == 255 ? UINT64_MAX : byte % 12;
}

/* --- what must hold --------------------------------------------------------------------------- */

static void check_promise(struct world *w, uint64_t term, const char *to)
{
    if (term < TERMS) {
        MU_ASSERT(w->promised_to[term] == '\0' || w->promised_to[term] == to[0]);
        w->promised_to[term] = to[0];
    }
}

static void forget(struct world *w)
{
    memset(w->promised_to, 0, sizeof(w->promised_to));
    memset(&w->view, 0, sizeof(w->view));
    w->promised = 0;
}

static void check_commit(const struct world *w)
{
    uint32_t told = 0;

    MU_ASSERT(w->m.base_count == 1 && w->m.step == MU_SUCCESSION_COMMITTED);
    for (uint32_t i = 0; i < OTHERS; i++) {
        const struct mu_succession_peer *p = &w->peers[i];

        told += w->joined[i] && p->rank != MU_SUCCESSION_NO_RANK &&
                (p->old || p->said >= MU_SUCCESSION_TOLD);
    }
    MU_ASSERT(w->m.config.mode == MU_SUCCESSION_ANY || told == w->m.preparing.world);
}

static uint32_t vote(const struct mu_succession_view *v, const struct mu_electorate *in)
{
    uint32_t votes = 0;

    for (uint32_t i = 0; i < v->count; i++) {
        votes |= v->may[i].term == in->term && v->may[i].round == in->round &&
                 v->may[i].rank != MU_SUCCESSION_NO_RANK;
    }
    for (uint32_t i = 0; i < v->past_count; i++) {
        votes |= v->past[i].term == in->term && v->past[i].round == in->round &&
                 v->past[i].rank != MU_SUCCESSION_NO_RANK;
    }
    return votes | (v->count > 0 && v->told.world > 0 && v->told.term == in->term &&
                    v->told.round == in->round && v->told.rank != MU_SUCCESSION_NO_RANK);
}

/* It has begun to host: who has promised was not answered yet. */
static void check_host(const struct world *w)
{
    for (uint32_t b = 0; b < w->m.base_count; b++) {
        uint32_t votes = vote(&w->m.view, &w->m.bases[b]);

        for (uint32_t i = 0; i < OTHERS; i++) {
            if (w->asks[i] && w->askers[i].ask.term == w->m.host_term) {
                votes += vote(&w->askers[i].ask.view, &w->m.bases[b]);
            }
        }
        MU_ASSERT(w->m.config.mode == MU_SUCCESSION_ANY || 2 * votes > w->m.bases[b].world);
    }
}

/* The counts that decide are kept up to date, word by word; here they are taken anew. */
static void check_counts(const struct world *w)
{
    uint32_t ready[MU_SUCCESSION_CONFIGS] = {0};
    uint32_t told = 0;

    MU_LIST_FOREACH (it, &w->m.peers) {
        const struct mu_succession_peer *p = MU_CONTAINER_OF(it, struct mu_succession_peer, link);

        told += p->rank != MU_SUCCESSION_NO_RANK && (p->old || p->said >= MU_SUCCESSION_TOLD);
        for (uint32_t b = 0; b < w->m.base_count; b++) {
            ready[b] +=
                p->votes[b] != MU_SUCCESSION_NO_RANK && (p->old || p->said == MU_SUCCESSION_BOUND);
        }
    }
    MU_ASSERT(told == w->m.told);
    MU_ASSERT(memcmp(ready, w->m.ready, w->m.base_count * sizeof(ready[0])) == 0);
}

static void act(struct world *w, const struct mu_succession_action *a)
{
    struct mu_succession_ask ask;
    struct mu_succession_probe probe;

    switch (a->type) {
    case MU_SUCCESSION_ASK:
        mu_succession_get_ask(&w->m, a->call, &ask);
        MU_ASSERT(ask.term == 0 || ask.term == ask.promised);
        if (a->term != 0) {
            check_promise(w, a->term, a->address);
        }
        break;
    case MU_SUCCESSION_SAY_READY:
        MU_ASSERT(a->term >= w->m.promised);
        break;
    case MU_SUCCESSION_HOST:
        MU_ASSERT(a->term == w->m.promised && w->m.base_count > 0);
        check_promise(w, a->term, "a");
        break;
    case MU_SUCCESSION_COMMIT:
        check_commit(w);
        break;
    case MU_SUCCESSION_STEP_DOWN:
        memset(w->joined, 0, sizeof(w->joined));
        break;
    case MU_SUCCESSION_PROBE:
        mu_succession_get_probe(&w->m, &probe);
        break;
    case MU_SUCCESSION_FOLLOW:
    case MU_SUCCESSION_HANG_UP:
    case MU_SUCCESSION_CHECK:
        break;
    }
}

static void settle(struct world *w)
{
    struct mu_succession_prepare prepare;
    struct mu_succession_peer *peer;
    struct mu_succession_asker *asker;
    struct mu_succession_answer answer;
    struct mu_succession_action action;
    char text[64];

    if (w->m.state == MU_SUCCESSION_HOSTING && !w->hosted) {
        check_host(w);
    }
    w->hosted = w->m.state == MU_SUCCESSION_HOSTING;
    check_counts(w);
    while (mu_succession_next_prepare(&w->m, &peer, &prepare)) {
        MU_ASSERT(!peer->old && prepare.base_count > 0);
    }
    while (mu_succession_next_answer(&w->m, &asker, &answer)) {
        w->asks[asker - w->askers] = false;
    }
    while (mu_succession_next(&w->m, &action)) {
        act(w, &action);
    }
    check_counts(w);
    MU_LIST_FOREACH (it, &w->m.peers) {
        MU_ASSERT(!MU_CONTAINER_OF(it, struct mu_succession_peer, link)->news);
    }
    MU_ASSERT(w->m.promised >= w->promised);
    MU_ASSERT(!mu_succession_view_later(&w->view, &w->m.view));
    w->promised = w->m.promised;
    w->view = w->m.view;
    mu_succession_explain(&w->m, text, sizeof(text));
    MU_ASSERT(memchr(text, '\0', sizeof(text)) != NULL);
}

/* --- inputs ----------------------------------------------------------------------------------- */

static void ask_it(struct world *w, uint32_t i)
{
    struct mu_succession_asker *asker = &w->askers[i];

    if (w->asks[i]) {
        mu_succession_unasked(&w->m, asker);
    }
    memset(asker, 0, sizeof(*asker));
    (void)snprintf(asker->name, sizeof(asker->name), "%s", heirs[i].name);
    asker->ask.term = read_term(w);
    asker->ask.promised = read_term(w);
    read_view(w, &asker->ask.view);
    asker->ask.legacy.version = small(w, 4);
    w->asks[i] = true;
    mu_succession_asked(&w->m, w->now, asker);
}

static void join_it(struct world *w, uint32_t i)
{
    struct mu_succession_peer *peer = &w->peers[i];

    if (w->m.state != MU_SUCCESSION_HOSTING || w->joined[i]) {
        return;
    }
    memset(peer, 0, sizeof(*peer));
    (void)snprintf(peer->name, sizeof(peer->name), "%s", heirs[i].name);
    peer->old = small(w, 4) == 0;
    read_view(w, &peer->view);
    w->joined[i] = true;
    mu_succession_peer_in(&w->m, w->now, peer);
}

static void begin(struct world *w)
{
    uint32_t world = 0;
    struct mu_errmsg msg;

    for (uint32_t i = 0; i < OTHERS; i++) {
        world += w->joined[i];
    }
    if (mu_succession_begin(&w->m, w->m.first_round + small(w, 3) - 1, world, &msg) != 0) {
        return;
    }
    for (uint32_t i = 0, rank = 0; i < OTHERS; i++) {
        if (w->joined[i]) {
            mu_succession_seat(&w->m, &w->peers[i], rank++);
        }
    }
    mu_succession_go(&w->m, w->now);
}

static void answer_it(struct world *w)
{
    uint32_t call = (uint32_t)small(w, MU_SUCCESSION_CALLS);
    struct mu_succession_answer answer = {.kind = (enum mu_succession_answer_kind)(1 + small(w, 3)),
                                          .term = read_term(w)};

    answer.address = answer.kind == MU_SUCCESSION_RAISE ? NULL : heirs[small(w, OTHERS)].address;
    if (answer.kind == MU_SUCCESSION_FORGET && answer.term < w->m.promised &&
        w->m.calls[call].asking && strcmp(answer.address, "a:1") != 0) {
        forget(w);
    }
    mu_succession_answered(&w->m, w->now, call, &answer);
}

static void tell_it(struct world *w)
{
    struct mu_succession_prepare p = {.term = read_term(w)};

    p.step = (enum mu_succession_step)small(w, 4);
    p.round = read_electorate(w);
    p.round.term = p.term;
    p.base_count = (uint32_t)small(w, MU_SUCCESSION_CONFIGS + 1);
    for (uint32_t i = 0; i < p.base_count; i++) {
        p.bases[i] = read_electorate(w);
    }
    mu_succession_prepare(&w->m, w->now, &p);
}

static void probe_it(struct world *w, bool reply)
{
    struct mu_succession_probe probe = {.term = read_term(w), .round = small(w, 8)};
    struct mu_succession_probe answer;

    probe.address = heirs[small(w, OTHERS)].address;
    if (reply) {
        mu_succession_better(&w->m, w->now, &probe);
    } else {
        mu_succession_probed(&w->m, w->now, &probe, &answer);
    }
}

static void be_asked(struct world *w, uint8_t kind, uint32_t i)
{
    switch (kind) {
    case 0:
        ask_it(w, i);
        break;
    case 1:
        if (w->asks[i]) {
            w->asks[i] = false;
            mu_succession_unasked(&w->m, &w->askers[i]);
        }
        break;
    case 2:
        join_it(w, i);
        break;
    case 3:
        if (w->joined[i]) {
            w->joined[i] = false;
            mu_succession_peer_out(&w->m, w->now, &w->peers[i], small(w, 2) != 0);
        }
        break;
    case 4:
        begin(w);
        break;
    case 5:
        mu_succession_abort(&w->m);
        break;
    case 6:
        if (w->joined[i]) {
            mu_succession_ready(&w->m, w->now, &w->peers[i], w->m.host_term, w->m.preparing.round,
                                (enum mu_succession_step)small(w, 4));
        }
        break;
    default:
        probe_it(w, kind == 7);
        break;
    }
}

static void live(struct world *w, uint8_t kind)
{
    switch (kind) {
    case 0:
        answer_it(w);
        break;
    case 1:
        mu_succession_unreached(&w->m, w->now, (uint32_t)small(w, MU_SUCCESSION_CALLS));
        break;
    case 2:
        mu_succession_lost(&w->m, w->now);
        break;
    case 3:
        mu_succession_followed(&w->m, w->now, w->m.host_term, w->m.host);
        break;
    case 4:
        mu_succession_heard(&w->m, w->now);
        break;
    case 5:
        tell_it(w);
        break;
    case 6:
        mu_succession_assigned(&w->m, w->m.view.term, w->m.view.round);
        break;
    case 7:
        if (mu_succession_deadline(&w->m).ns != UINT64_MAX) {
            w->now = mu_succession_deadline(&w->m);
        }
        mu_succession_tick(&w->m, w->now);
        break;
    default:
        forget(w);
        mu_succession_left(&w->m);
        settle(w);
        memset(w->asks, 0, sizeof(w->asks));
        memset(w->joined, 0, sizeof(w->joined));
        mu_succession_start(&w->m, w->now,
                            &(struct mu_succession_line){.count = OTHERS, .heirs = heirs}, 0);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world w;
    uint8_t terms;

    memset(&w, 0, sizeof(w));
    w.in = mu_reader(mu_span(data, size));
    w.now = (mu_mono_t){MU_NS_PER_S};
    terms = mu_read_u8(&w.in);
    mu_succession_init(&w.m, &(struct mu_succession_config){
                                 .name = "a",
                                 .address = "a:1",
                                 .mode = terms & 1 ? MU_SUCCESSION_ANY : MU_SUCCESSION_MAJORITY,
                                 .seed = terms});
    mu_succession_start(
        &w.m, w.now, &(struct mu_succession_line){.count = 1 + terms / 2 % OTHERS, .heirs = heirs},
        terms & 0x80 ? 0 : MU_SUCCESSION_NO_RANK);
    settle(&w);
    while (!w.in.failed && w.in.rest.len > 0) {
        uint8_t kind = mu_read_u8(&w.in) % 18;

        if (kind < 9) {
            live(&w, kind);
        } else {
            be_asked(&w, kind - 9, (uint32_t)small(&w, OTHERS));
        }
        settle(&w);
    }
    return 0;
}
