#include "service/agent/straggle.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/printable.h"
#include "service/agent/agent_internal.h"

#define KEY_CAP      32
#define SPAN_LOOKS   10
#define LIST_BYTES   ((size_t)16 << 10) /* MU_STRAGGLERS_MAX of them */
#define MESSAGE_HEAD 128                /* of paces, with the name of the node */

static const char *node_name(const struct mu_agent_service *s)
{
    return s->config.host != NULL ? s->config.host : s->rdzv->node;
}

/* --- operations ------------------------------------------------------------------------------- */

static void on_op(struct mu_store_op *op)
{
    struct mu_agent_round *r = MU_CONTAINER_OF(op, struct mu_agent_round, pace.op);

    r->pace.busy = false;
    if (r->closing) {
        mu_agent_round_settle(r);
    } else if (r->s->straggle.looking && r->s->round == r && r->pace.then != NULL) {
        r->pace.then(r, op);
    }
}

/* Makes room for `count` keys, and for `bytes` of a value. */
static bool begin_op(struct mu_agent_round *r, size_t count, size_t bytes)
{
    mu_agent_pace_op_fini(&r->pace);
    r->pace.keys = mu_calloc(count, sizeof(*r->pace.keys));
    mu_buf_init(&r->pace.bytes, bytes + count * KEY_CAP);
    return r->pace.keys != NULL && mu_buf_reserve(&r->pace.bytes, bytes + count * KEY_CAP) == 0;
}

/* The room was reserved, so that what is put there stays where it is. */
static struct mu_span put_key(struct mu_agent_round *r, uint32_t node)
{
    size_t at = r->pace.bytes.len;
    char key[KEY_CAP];
    int len = snprintf(key, sizeof(key), MU_AGENT_PACE_KEY "%" PRIu32, node);

    mu_buf_put(&r->pace.bytes, mu_span(key, (size_t)len));
    return mu_span(r->pace.bytes.data + at, (size_t)len);
}

static void submit(struct mu_agent_round *r, enum mu_store_verb verb, size_t count,
                   void (*then)(struct mu_agent_round *r, struct mu_store_op *op))
{
    bool writes = verb == MU_STORE_SET;

    r->pace.then = then;
    r->pace.busy = true;
    r->pace.op = (struct mu_store_op){
        .request = {.verb = verb,
                    .flags = writes ? 0 : MU_STORE_NOWAIT,
                    .keys = r->pace.keys,
                    .key_count = count,
                    .values = writes ? &r->pace.value : NULL,
                    .value_count = writes ? 1 : 0},
        .timeout_ms = r->s->config.verdict_ms,
        .done = on_op,
    };
    mu_store_submit(r->stores.store, &r->pace.op);
}

void mu_agent_pace_op_fini(struct mu_agent_pace_op *io)
{
    mu_free(io->keys);
    io->keys = NULL;
    mu_buf_fini(&io->bytes);
}

/* --- what is said ----------------------------------------------------------------------------- */

static void tell(struct mu_agent_service *s, enum mu_straggle_word word,
                 const struct mu_straggler *who)
{
    struct mu_straggle_change change = {.word = word, .who = *who};

    /* Its text comes from another node. */
    (void)mu_printable(change.who.text, sizeof(change.who.text), mu_span_str(who->text), false);
    (void)mu_printable(change.who.node, sizeof(change.who.node), mu_span_str(who->node), false);
    mu_agent_log(s, "%s", change.who.text);
    if (s->events.straggler != NULL) {
        s->events.straggler(s->events.context, &change);
    }
}

static const struct mu_straggler *find(const struct mu_stragglers *list,
                                       const struct mu_straggler *who)
{
    for (size_t i = 0; i < list->count; i++) {
        if (mu_straggler_is(&list->list[i], who)) {
            return &list->list[i];
        }
    }
    return NULL;
}

/* Says what is new in a list, and what is not in it any more. */
static void take_list(struct mu_agent_service *s, const struct mu_stragglers *list)
{
    struct mu_stragglers *told = &s->straggle.told;

    for (size_t i = 0; i < told->count; i++) {
        if (find(list, &told->list[i]) == NULL) {
            struct mu_straggler who = told->list[i];

            mu_straggle_say_over(&who);
            tell(s, MU_STRAGGLE_OVER, &who);
        }
    }
    for (size_t i = 0; i < list->count; i++) {
        if (find(told, &list->list[i]) == NULL) {
            tell(s, MU_STRAGGLE_NAMED, &list->list[i]);
        }
    }
    *told = *list;
}

/* --- how our workers did ---------------------------------------------------------------------- */

static void measure_worker(struct mu_agent_service *s, uint32_t i)
{
    struct mu_agent_straggle *g = &s->straggle;
    uint32_t typical = g->told.typical_permille;
    uint32_t spans =
        g->span_count < MU_STRAGGLE_SHORT ? (uint32_t)g->span_count : MU_STRAGGLE_SHORT;
    uint32_t looks = 0;
    uint32_t waits = 0;
    uint32_t delay = 0;

    for (uint32_t at = 0; at < spans; at++) {
        const struct mu_pace *pace = &g->paces[at * s->config.policy.workers + i];

        looks += pace->looks;
        waits += pace->waits;
        delay += pace->delay_permille;
    }
    g->workers[i] = (struct mu_straggle_rank){.known = looks != 0};
    if (looks != 0) {
        uint32_t share = waits * 1000 / looks;

        g->workers[i].waits_permille = (uint16_t)share;
        g->workers[i].kept_permille = (uint16_t)(typical > share ? typical - share : 0);
        g->workers[i].delay_permille = (uint16_t)(delay / spans);
    }
}

static void tell_paced(struct mu_agent_service *s, bool judged)
{
    struct mu_agent_straggle *g = &s->straggle;
    const struct mu_agent_paced paced = {.workers = g->workers, .run = judged ? &g->run : NULL};

    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        uint32_t rank = s->attempt.ranks.base + i;

        if (judged && rank < g->run.config.world) {
            g->workers[i] = mu_straggle_rank(&g->run, rank);
        } else {
            measure_worker(s, i);
        }
    }
    if (s->events.paced != NULL) {
        s->events.paced(s->events.context, &paced);
    }
}

/* --- node 0 ----------------------------------------------------------------------------------- */

static const struct mu_pace *last_paces(const struct mu_agent_service *s)
{
    const struct mu_agent_straggle *g = &s->straggle;

    return &g->paces[(g->span_count - 1) % MU_STRAGGLE_SHORT * s->config.policy.workers];
}

/* The paces of all other nodes, if there are any. */
static void judge(struct mu_agent_round *r, const struct mu_span *values, size_t count)
{
    struct mu_agent_service *s = r->s;
    struct mu_agent_straggle *g = &s->straggle;
    const struct mu_pace *own = last_paces(s);
    struct mu_straggle_change change;

    mu_straggle_begin(&g->run);
    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        mu_straggle_add(&g->run, 0, mu_span_str(node_name(s)), &own[i]);
    }
    for (uint32_t node = 1; node <= count && node < g->run.config.nodes; node++) {
        struct mu_paces paces;

        if (mu_paces_decode(values[node - 1], &paces) != 0 || g->heard[node] == paces.span + 1) {
            continue;
        }
        g->heard[node] = paces.span + 1;
        for (size_t i = 0; i < paces.count; i++) {
            struct mu_pace pace = mu_paces_at(&paces, i);

            mu_straggle_add(&g->run, node, paces.node, &pace);
        }
    }
    mu_straggle_judge(&g->run);
    while (mu_straggle_next(&g->run, &change)) {
        continue; /* take_list() finds them */
    }
    take_list(s, mu_straggle_list(&g->run));
    tell_paced(s, true);
}

static void tell_others(struct mu_agent_round *r)
{
    struct mu_agent_straggle *g = &r->s->straggle;

    if (begin_op(r, 1, LIST_BYTES) &&
        mu_stragglers_encode(&r->pace.bytes, mu_straggle_list(&g->run)) == 0) {
        r->pace.keys[0] = MU_SPAN_LIT(MU_AGENT_STRAGGLERS_KEY);
        r->pace.value = mu_buf_span(&r->pace.bytes);
        submit(r, MU_STORE_SET, 1, NULL);
    }
}

static void on_paces(struct mu_agent_round *r, struct mu_store_op *op)
{
    if (op->status != 0) {
        tell_paced(r->s, false);
        return;
    }
    judge(r, op->reply.values, op->reply.value_count);
    tell_others(r);
}

static void read_paces(struct mu_agent_round *r)
{
    if (!begin_op(r, r->world - 1, 0)) {
        return;
    }
    for (uint32_t i = 1; i < r->world; i++) {
        r->pace.keys[i - 1] = put_key(r, i);
    }
    submit(r, MU_STORE_MULTI_GET, r->world - 1, on_paces);
}

/* --- other nodes ------------------------------------------------------------------------------ */

static void on_list(struct mu_agent_round *r, struct mu_store_op *op)
{
    struct mu_stragglers *list = mu_malloc(sizeof(*list));

    if (list != NULL && op->status == 0 && op->reply.value_count == 1 &&
        mu_stragglers_decode(op->reply.values[0], list) == 0) {
        take_list(r->s, list);
    }
    mu_free(list);
    tell_paced(r->s, false);
}

static void on_written(struct mu_agent_round *r, struct mu_store_op *op)
{
    if (op->status != 0 || !begin_op(r, 1, 0)) {
        return;
    }
    r->pace.keys[0] = MU_SPAN_LIT(MU_AGENT_STRAGGLERS_KEY);
    submit(r, MU_STORE_GET, 1, on_list);
}

static void write_paces(struct mu_agent_round *r)
{
    struct mu_agent_service *s = r->s;
    uint32_t workers = s->config.policy.workers;
    size_t bytes = MESSAGE_HEAD + (size_t)workers * MU_PACE_SIZE;
    size_t at;

    if (!begin_op(r, 1, bytes)) {
        return;
    }
    r->pace.keys[0] = put_key(r, r->rank);
    at = r->pace.bytes.len;
    if (mu_paces_encode(&r->pace.bytes, s->straggle.pacer.span - 1, mu_span_str(node_name(s)),
                        last_paces(s), workers) == 0) {
        r->pace.value = mu_span_skip(mu_buf_span(&r->pace.bytes), at);
        submit(r, MU_STORE_SET, 1, on_written);
    }
}

/* --- spans ------------------------------------------------------------------------------------ */

static void end_span(struct mu_agent_service *s)
{
    struct mu_agent_round *r = s->round;

    s->straggle.span_count++;
    if (r == NULL || r->closing || !r->has_ranks) {
        return;
    }
    if (r->world == 1) {
        judge(r, NULL, 0);
    } else if (!r->store_open || r->store_gone || r->pace.busy || r->store_closing) {
        return;
    } else if (r->rank == 0) {
        read_paces(r);
    } else {
        write_paces(r);
    }
}

static void arm(struct mu_agent_service *s)
{
    uint64_t ms = mu_pacer_gap_ns(&s->straggle.pacer) / MU_NS_PER_MS;

    mu_env_timer_arm(s->env, &s->straggle.timer,
                     mu_mono_add_ms(mu_env_now(s->env).mono, ms == 0 ? 1 : ms));
}

static void take_looks(struct mu_agent_service *s)
{
    struct mu_agent_straggle *g = &s->straggle;
    mu_mono_t now = mu_env_now(s->env).mono;
    struct mu_pace *next;

    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        g->looks[i] = g->glancer.workers[i].look;
        g->looks[i].marks = s->workers[i].mark_count;
    }
    mu_pacer_look(&g->pacer, now, g->looks);
    next = &g->paces[g->span_count % MU_STRAGGLE_SHORT * s->config.policy.workers];
    if (mu_pacer_take(&g->pacer, now, next)) {
        end_span(s);
    }
}

static void on_run(struct mu_work *work)
{
    mu_stacks_glancer_run(
        &MU_CONTAINER_OF(work, struct mu_agent_service, straggle.work)->straggle.glancer);
}

static void on_done(struct mu_work *work)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(work, struct mu_agent_service, straggle.work);

    s->straggle.busy = false;
    if (s->straggle.begin_due) {
        mu_agent_straggle_begin(s);
    } else if (s->straggle.looking) {
        take_looks(s);
        arm(s);
    }
    mu_agent_settle(s);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(timer, struct mu_agent_service, straggle.timer);
    struct mu_agent_straggle *g = &s->straggle;

    if (g->busy || !g->looking) {
        return;
    }
    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        const struct mu_agent_worker *w = &s->workers[i];

        g->glancer.workers[i].pid = w->end.exited ? 0 : w->end.pid;
    }
    g->work = (struct mu_work){.run = on_run, .done = on_done};
    g->busy = mu_env_work(s->env, &g->work) == 0;
    if (!g->busy) {
        arm(s);
    }
}

/* --- life ------------------------------------------------------------------------------------- */

void mu_agent_straggle_init(struct mu_agent_service *s)
{
    struct mu_agent_straggle *g = &s->straggle;
    const struct mu_peek *peek = mu_env_peek(s->env);
    uint32_t workers = s->config.policy.workers;

    mu_timer_init(&g->timer, on_timer);
    if (s->config.straggle_ms == 0 || peek == NULL) {
        return;
    }
    g->looks = mu_calloc(workers, sizeof(*g->looks));
    g->paces = mu_calloc((size_t)workers * MU_STRAGGLE_SHORT, sizeof(*g->paces));
    g->workers = mu_calloc(workers, sizeof(*g->workers));
    g->on = mu_stacks_glancer_init(&g->glancer, peek, workers) == 0 && g->looks != NULL &&
            g->paces != NULL && g->workers != NULL;
}

/* Only node 0 judges. */
static int start_run(struct mu_agent_service *s)
{
    struct mu_agent_straggle *g = &s->straggle;
    struct mu_straggle_config config;

    mu_straggle_fini(&g->run);
    mu_free(g->heard);
    g->heard = NULL;
    if (s->round == NULL || s->round->rank != 0) {
        return 0;
    }
    mu_straggle_defaults(&config);
    config.world = s->attempt.ranks.world;
    config.nodes = s->round->world;
    config.span_ms = (uint32_t)s->config.straggle_ms;
    g->heard = mu_calloc(config.nodes, sizeof(*g->heard));
    return g->heard == NULL ? MUSTER_ENOMEM : mu_straggle_init(&g->run, &config);
}

static int start_pacer(struct mu_agent_service *s)
{
    struct mu_agent_straggle *g = &s->straggle;
    struct mu_pacer_config config;
    int err;

    mu_pacer_fini(&g->pacer);
    mu_pacer_defaults(&config);
    config.workers = s->config.policy.workers;
    config.span_ns = s->config.straggle_ms * MU_NS_PER_MS;
    config.interval_ns = config.span_ns / SPAN_LOOKS;
    err = mu_pacer_init(&g->pacer, &config);
    for (uint32_t i = 0; err == 0 && i < config.workers; i++) {
        mu_pacer_start(&g->pacer, i, s->attempt.ranks.base + i);
    }
    return err;
}

void mu_agent_straggle_begin(struct mu_agent_service *s)
{
    struct mu_agent_straggle *g = &s->straggle;

    if (!g->on) {
        return;
    }
    g->looking = false;
    g->begin_due = g->busy;
    if (g->busy || s->generation == 0 || start_pacer(s) != 0 || start_run(s) != 0) {
        return;
    }
    g->told = (struct mu_stragglers){0};
    g->span_count = 0;
    g->looking = true;
    arm(s);
}

void mu_agent_straggle_stop(struct mu_agent_service *s)
{
    s->straggle.looking = false;
    s->straggle.begin_due = false;
    mu_env_timer_arm(s->env, &s->straggle.timer, MU_MONO_NEVER);
}

bool mu_agent_straggle_idle(struct mu_agent_service *s)
{
    mu_agent_straggle_stop(s);
    return !s->straggle.busy;
}

void mu_agent_straggle_fini(struct mu_agent_service *s)
{
    struct mu_agent_straggle *g = &s->straggle;

    mu_env_timer_arm(s->env, &g->timer, MU_MONO_NEVER);
    mu_pacer_fini(&g->pacer);
    mu_straggle_fini(&g->run);
    mu_stacks_glancer_fini(&g->glancer);
    mu_free(g->looks);
    mu_free(g->paces);
    mu_free(g->workers);
    mu_free(g->heard);
}
