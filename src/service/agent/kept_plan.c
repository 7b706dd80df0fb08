/*
 * Copies in the decision what workers load. Beside its report each agent writes what it holds for
 * others, and where it gives that. If all have, the agent of node 0 makes a plan in place of an
 * answer: it may choose a version that some ranks have on other nodes only. Those agents fetch it,
 * and say whether they have; then node 0 says that all may begin, or makes another plan without
 * that version, so that all ranks begin with the same in any case.
 *
 *     muster/kept/copies/NODE     a holding
 *     muster/kept/answer          a plan; after N that failed: muster/kept/answer/N
 *     muster/kept/done/N/NODE     "1": what plan N has this node fetch is there; "0": it is not
 *     muster/kept/go/N            "1": all begin; "0": another plan follows
 *     muster/kept/at/NODE         u32 first rank, u32 ranks, and where their states are given
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "proto/agent/partners.h"
#include "service/agent/kept_internal.h"

#define HOLDING_KEY "muster/kept/copies/"
#define DONE_KEY    "muster/kept/done/"
#define GO_KEY      "muster/kept/go/"
#define AT_KEY      "muster/kept/at/"
#define TRIES_MAX   3
#define WAIT_MS     660000 /* for those who fetch; longer than they may take (kept_fetch.c) */

static struct mu_agent_round *round_of(struct mu_store_op *op)
{
    return MU_CONTAINER_OF(op, struct mu_agent_round, kept.op);
}

static void set_key(struct mu_agent_round *r, const char *prefix, uint32_t number)
{
    int len = snprintf(r->kept.name, sizeof(r->kept.name), "%s%" PRIu32, prefix, number);

    mu_free(r->kept.keys);
    r->kept.keys = NULL;
    r->kept.pair[0] = mu_span(r->kept.name, (size_t)len);
}

static void set_answer_key(struct mu_agent_round *r)
{
    set_key(r, MU_AGENT_KEPT_ANSWER_KEY "/", r->kept.tries);
    if (r->kept.tries == 0) {
        r->kept.pair[0] = mu_span_str(MU_AGENT_KEPT_ANSWER_KEY);
    }
}

static void submit(struct mu_agent_round *r, enum mu_store_verb verb, size_t keys, size_t values,
                   void (*done)(struct mu_store_op *op))
{
    mu_agent_kept_submit(r, verb, keys, values, r->s->config.store_ms, done);
}

static void no_memory(struct mu_agent_round *r)
{
    mu_agent_round_not_ready(r, MUSTER_ENOMEM, "out of memory");
}

/* --- what we hold ----------------------------------------------------------------------------- */

static struct mu_span topology_of(const struct mu_agent_service *s)
{
    struct mu_span key = {0};

    if (s->config.rdzv.config == NULL ||
        !mu_rdzv_config_get(s->config.rdzv.config, "topology", &key) ||
        key.len > MU_KEPT_TEXT_MAX) {
        return (struct mu_span){0};
    }
    return key;
}

static size_t count_held(const struct mu_agent_copies *c)
{
    size_t count = 1;

    MU_LIST_FOREACH (it, &c->copiers) {
        count += MU_COPIES_PLACES;
    }
    MU_LIST_FOREACH (it, &c->fetches) {
        count++;
    }
    return count;
}

bool mu_agent_plan_report(struct mu_agent_round *r)
{
    struct mu_agent_copies *c = r->s->kept.copies;
    struct mu_kept_holding h = {0};
    int err;

    if (c == NULL || !mu_agent_copies_listen(c)) {
        return false;
    }
    h.copies = c->wanted;
    h.addr = mu_span_str(c->addr);
    h.topology = topology_of(r->s);
    h.heads = mu_calloc(count_held(c), sizeof(*h.heads));
    if (h.heads == NULL) {
        return false;
    }
    mu_agent_copiers_report(c, &h);
    mu_agent_fetches_report(c, &h);
    err = mu_kept_holding_encode(&h, &r->kept.holding);
    mu_free(h.heads);
    (void)snprintf(r->kept.second, sizeof(r->kept.second), HOLDING_KEY "%" PRIu32, r->rank);
    r->kept.pair[1] = mu_span_str(r->kept.second);
    r->kept.values[1] = mu_buf_span(&r->kept.holding);
    r->kept.holds = err == 0;
    return r->kept.holds;
}

/* --- node 0 decides --------------------------------------------------------------------------- */

static void on_plan_written(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);
    struct mu_kept_plan plan = r->kept.plan;

    r->kept.plan = (struct mu_kept_plan){0};
    if (mu_agent_kept_goes_on(r)) {
        mu_agent_plan_take(r, &plan);
    } else {
        mu_kept_plan_fini(&plan);
    }
}

static void make_plan(struct mu_agent_round *r)
{
    uint64_t nonce;
    int err;

    mu_env_entropy(r->s->env, &nonce, sizeof(nonce));
    mu_kept_plan_fini(&r->kept.plan);
    mu_buf_reset(&r->kept.holding);
    err = mu_recall_plan(&r->kept.recall, nonce, &r->kept.plan);
    if (err == 0 && r->kept.tries == TRIES_MAX) {
        r->kept.plan.answer.found = false;
        r->kept.plan.fetch_count = 0;
    }
    err = err != 0 ? err : mu_kept_plan_encode(&r->kept.plan, &r->kept.holding);
    if (err != 0) {
        no_memory(r);
        return;
    }
    set_answer_key(r);
    r->kept.values[0] = mu_buf_span(&r->kept.holding);
    submit(r, MU_STORE_SET, 1, 1, on_plan_written);
}

static int take_holding(struct mu_recall *recall, uint32_t node, struct mu_span bytes)
{
    struct mu_kept_holding h;
    int err = mu_kept_holding_decode(bytes, &h);

    if (err == 0) {
        err = mu_recall_take_holding(recall, node, &h);
        mu_free(h.heads);
    }
    return err;
}

static void on_holdings(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);
    struct mu_errmsg msg;
    int err = 0;

    if (!mu_agent_kept_goes_on(r)) {
        return;
    }
    for (uint32_t i = 0; err == 0 && i < r->world; i++) {
        err = op->reply.value_count != r->world
                  ? MUSTER_EPROTO
                  : take_holding(&r->kept.recall, i, op->reply.values[i]);
    }
    if (err == 0) {
        make_plan(r);
    } else {
        (void)mu_err(&msg, err, "copies of kept states: what the nodes report: %s",
                     muster_strerror(err));
        mu_agent_round_not_ready(r, err, msg.text);
    }
}

static void on_holdings_looked(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);

    if (!mu_agent_kept_goes_on(r)) {
        return;
    }
    if (op->reply.number == 0) {
        mu_agent_kept_answer(r);
    } else if (mu_agent_kept_keys(r, HOLDING_KEY, NULL, r->world) != 0) {
        no_memory(r);
    } else {
        submit(r, MU_STORE_MULTI_GET, r->world, 0, on_holdings);
    }
}

void mu_agent_plan_begin(struct mu_agent_round *r)
{
    if (mu_agent_kept_keys(r, HOLDING_KEY, NULL, r->world) != 0) {
        no_memory(r);
    } else {
        submit(r, MU_STORE_CHECK, r->world, 0, on_holdings_looked);
    }
}

/* --- all agree -------------------------------------------------------------------------------- */

static void on_next_plan(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);
    struct mu_kept_plan plan;

    if (!mu_agent_kept_goes_on(r)) {
        return;
    }
    if (op->reply.value_count == 1 && mu_kept_plan_decode(op->reply.values[0], &plan) == 0) {
        mu_agent_plan_take(r, &plan);
    } else {
        mu_agent_round_not_ready(r, MUSTER_EPROTO, "kept states: node 0's plan cannot be read");
    }
}

/* The plan could not be carried out: node 0 makes another one. */
static void try_again(struct mu_agent_round *r)
{
    r->kept.tries++;
    if (r->rank == 0) {
        mu_recall_exclude(&r->kept.recall, &r->kept.plan.answer.version);
        make_plan(r);
    } else {
        set_answer_key(r);
        submit(r, MU_STORE_GET, 1, 0, on_next_plan);
    }
}

static void obey(struct mu_agent_round *r, bool go)
{
    struct mu_kept_answer answer = r->kept.plan.answer;

    if (go) {
        mu_agent_kept_settled(r, &answer);
    } else {
        mu_agent_log(r->s,
                     "round %" PRIu64 ": step %" PRIu64
                     " could not be fetched by all that lack it: without it",
                     r->number, answer.version.step);
        try_again(r);
    }
}

static void on_go(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);

    if (mu_agent_kept_goes_on(r)) {
        obey(r, op->reply.value_count == 1 && mu_span_eq(op->reply.values[0], MU_SPAN_LIT("1")));
    }
}

static void on_go_written(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);

    if (mu_agent_kept_goes_on(r)) {
        obey(r, r->kept.fetched);
    }
}

static void say_go(struct mu_agent_round *r)
{
    set_key(r, GO_KEY, r->kept.tries);
    r->kept.values[0] = mu_span_str(r->kept.fetched ? "1" : "0");
    submit(r, MU_STORE_SET, 1, 1, on_go_written);
}

static void on_done(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);

    if (!mu_agent_kept_goes_on(r)) {
        return;
    }
    for (size_t i = 0; i < op->reply.value_count; i++) {
        r->kept.fetched = r->kept.fetched && mu_span_eq(op->reply.values[i], MU_SPAN_LIT("1"));
    }
    say_go(r);
}

/* The node of a rank, going up with the ranks. */
static uint32_t node_of(const struct mu_recall *recall, uint32_t rank, uint32_t from)
{
    while (from + 1 < recall->node_count && recall->nodes[from + 1].base <= rank) {
        from++;
    }
    return from;
}

/* Node 0 waits for all that fetch, but itself. */
static void await_done(struct mu_agent_round *r)
{
    const struct mu_kept_plan *p = &r->kept.plan;
    uint32_t *nodes = mu_calloc(p->fetch_count + 1, sizeof(*nodes));
    char prefix[40];
    size_t count = 0;
    uint32_t node = 0;
    int err = nodes == NULL ? MUSTER_ENOMEM : 0;

    for (size_t i = 0; err == 0 && i < p->fetch_count; i++) {
        node = node_of(&r->kept.recall, p->fetches[i].rank, node);
        if (node != 0 && (count == 0 || nodes[count - 1] != node)) {
            nodes[count++] = node;
        }
    }
    (void)snprintf(prefix, sizeof(prefix), DONE_KEY "%u/", r->kept.tries);
    if (err == 0 && count == 0) {
        mu_free(nodes);
        say_go(r);
        return;
    }
    err = err != 0 ? err : mu_agent_kept_keys(r, prefix, nodes, count);
    mu_free(nodes);
    if (err != 0) {
        no_memory(r);
    } else {
        mu_agent_kept_submit(r, MU_STORE_MULTI_GET, count, 0, WAIT_MS, on_done);
    }
}

static void await_go(struct mu_agent_round *r)
{
    if (r->rank == 0) {
        await_done(r);
    } else {
        set_key(r, GO_KEY, r->kept.tries);
        mu_agent_kept_submit(r, MU_STORE_GET, 1, 0, WAIT_MS, on_go);
    }
}

static void on_told(struct mu_store_op *op)
{
    if (mu_agent_kept_goes_on(round_of(op))) {
        await_go(round_of(op));
    }
}

void mu_agent_fetches_ended(struct mu_agent_round *r, bool all)
{
    char prefix[40];

    r->kept.fetched = all;
    if (r->rank == 0) {
        await_go(r);
        return;
    }
    (void)snprintf(prefix, sizeof(prefix), DONE_KEY "%u/", r->kept.tries);
    if (mu_agent_kept_keys(r, prefix, &r->rank, 1) != 0) {
        no_memory(r);
        return;
    }
    r->kept.values[0] = mu_span_str(all ? "1" : "0");
    submit(r, MU_STORE_SET, 1, 1, on_told);
}

/* From how many nodes we may fetch, and from which; the list is for mu_free(), NULL: no memory. */
static uint32_t *list_sources(const struct mu_agent_round *r, size_t *ret_count)
{
    size_t cap = (size_t)r->s->config.policy.workers * MU_KEPT_SOURCES_MAX;
    uint32_t *nodes = mu_calloc(cap, sizeof(*nodes));

    *ret_count = nodes == NULL ? 0 : mu_agent_fetches_nodes(r, nodes, cap);
    return nodes;
}

/* Where those are that have what we fetch. */
static void on_sources(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);
    struct mu_kept_holding *holdings;
    uint32_t *nodes;
    size_t count;
    size_t read = 0;

    if (!mu_agent_kept_goes_on(r)) {
        return;
    }
    nodes = list_sources(r, &count);
    holdings = mu_calloc(count + 1, sizeof(*holdings));
    while (holdings != NULL && read < count && op->reply.value_count == count &&
           mu_kept_holding_decode(op->reply.values[read], &holdings[read]) == 0) {
        read++;
    }
    mu_agent_fetches_begin(r, holdings, nodes, read);
    while (read > 0) {
        mu_free(holdings[--read].heads);
    }
    mu_free(holdings);
    mu_free(nodes);
}

void mu_agent_plan_take(struct mu_agent_round *r, struct mu_kept_plan *plan)
{
    uint32_t *nodes;
    size_t count;

    mu_kept_plan_fini(&r->kept.plan);
    r->kept.plan = *plan;
    r->kept.has_plan = true;
    if (plan->fetch_count == 0) {
        mu_agent_kept_settled(r, &r->kept.plan.answer);
        return;
    }
    mu_agent_fetches_give(r);
    nodes = list_sources(r, &count);
    r->kept.fetched = true;
    if (nodes != NULL && count == 0) {
        await_go(r);
    } else if (nodes == NULL || mu_agent_kept_keys(r, HOLDING_KEY, nodes, count) != 0) {
        no_memory(r);
    } else {
        submit(r, MU_STORE_MULTI_GET, count, 0, on_sources);
    }
    mu_free(nodes);
}

/* --- while the workers run -------------------------------------------------------------------- */

static void take_source(struct mu_agent_copies *c, struct mu_span text)
{
    char addr[MU_AGENT_KEPT_ADDR_CAP];
    uint32_t base;
    uint32_t workers;

    if (text.len <= 8 || text.len - 8 >= sizeof(addr)) {
        return;
    }
    base = mu_get_u32(text.data);
    workers = mu_get_u32(text.data + 4);
    if (workers <= MU_KEPT_WORKERS_MAX && base <= INT32_MAX) {
        (void)snprintf(addr, sizeof(addr), "%.*s", (int)(text.len - 8),
                       (const char *)text.data + 8);
        mu_agent_copiers_source(c, addr, base, workers);
    }
}

/* Copies are not what the round depends on: errors of these operations are only said. */
static bool has_answered(struct mu_agent_round *r)
{
    r->kept.busy = false;
    mu_free(r->kept.keys);
    r->kept.keys = NULL;
    if (r->closing) {
        mu_agent_round_settle(r);
        return false;
    }
    if (r->kept.op.status != 0) {
        mu_agent_log(r->s, "round %" PRIu64 ": no copies of kept states are made here: %s",
                     r->number, muster_strerror(r->kept.op.status));
    }
    return r->kept.op.status == 0;
}

static void on_found(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);

    if (has_answered(r) && r->s->kept.copies->round == r) {
        for (size_t i = 0; i < op->reply.value_count; i++) {
            take_source(r->s->kept.copies, op->reply.values[i]);
        }
    }
}

static uint32_t *expand(const struct mu_kept_plan *p, uint32_t nodes)
{
    uint32_t *keys = p->part_count == 0 ? NULL : mu_calloc((size_t)nodes + 1, sizeof(*keys));
    uint32_t at = 0;

    for (size_t i = 0; keys != NULL && i < p->part_count; i++) {
        for (uint32_t n = 0; n < p->parts[i].nodes && at < nodes; n++) {
            keys[at++] = p->parts[i].key < nodes ? p->parts[i].key : 0;
        }
    }
    return keys;
}

static size_t find_sources(struct mu_agent_round *r)
{
    uint32_t *keys = expand(&r->kept.plan, r->world);
    struct mu_partners p;
    size_t count = 0;

    if (mu_partners_init(&p, r->kept.plan.copies, r->world, keys) == 0) {
        count = mu_partners_sources(&p, r->rank, r->kept.sources);
        mu_partners_fini(&p);
    }
    mu_free(keys);
    return count;
}

static void on_said(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);
    size_t count;

    if (!has_answered(r)) {
        return;
    }
    count = find_sources(r);
    if (count != 0 && mu_agent_kept_keys(r, AT_KEY, r->kept.sources, count) == 0) {
        submit(r, MU_STORE_MULTI_GET, count, 0, on_found);
    }
}

void mu_agent_kept_run(struct mu_agent_round *r)
{
    struct mu_agent_copies *c = r->s->kept.copies;
    uint8_t head[8];

    if (c == NULL || r->closing) {
        return;
    }
    if (!r->kept.has_plan) {
        if (r->kept.has_answer && r->world > 1) {
            mu_agent_log(r->s,
                         "round %" PRIu64
                         ": no copies of kept states: not all nodes make them (--keep-copies)",
                         r->number);
        }
        return;
    }
    if (r->world == 1) {
        return;
    }
    mu_agent_copiers_begin(c, r);
    mu_put_u32(head, r->ranks.base);
    mu_put_u32(head + 4, r->s->config.policy.workers);
    mu_buf_reset(&r->kept.holding);
    if (mu_buf_append(&r->kept.holding, mu_span(head, sizeof(head))) == 0 &&
        mu_buf_append(&r->kept.holding, mu_span_str(c->addr)) == 0) {
        set_key(r, AT_KEY, r->rank);
        r->kept.values[0] = mu_buf_span(&r->kept.holding);
        submit(r, MU_STORE_SET, 1, 1, on_said);
    }
}

void mu_agent_kept_close(struct mu_agent_round *r)
{
    struct mu_agent_copies *c = r->s->kept.copies;

    if (r->kept.busy) {
        mu_store_cancel(&r->kept.op);
    }
    if (c != NULL) {
        mu_agent_fetches_cancel(c, r);
        if (c->round == r) {
            mu_agent_copiers_end(c);
        }
    }
}
