/* The calls `promise` that a node makes: asks, and probes. */
#include "service/rdzv/succession.h"

#include <stdio.h>
#include <string.h>

#define PROBE_MS 1000 /* for the answer to a probe */

static mu_mono_t mono(const struct mu_rdzv_caller *c)
{
    return mu_env_now(c->n->base.env).mono;
}

/* --- what is said ----------------------------------------------------------------------------- */

static void copy_electorate(struct mu_rdzv_electorate *to, const struct mu_electorate *from)
{
    *to = (struct mu_rdzv_electorate){.term = from->term,
                                      .round = from->round,
                                      .world = from->world,
                                      .rank = from->rank,
                                      .incarnation = from->incarnation};
}

void mu_rdzv_view_of(struct mu_rdzv_view *to, const struct mu_succession_view *from)
{
    *to = (struct mu_rdzv_view){.term = from->term, .round = from->round, .count = from->count};
    to->step = from->count == 0 ? 0 : (uint32_t)from->step;
    for (uint32_t i = 0; i < from->count; i++) {
        copy_electorate(&to->may[i], &from->may[i]);
    }
    copy_electorate(&to->told, &from->told);
    to->past_count = from->past_count;
    for (uint32_t i = 0; i < from->past_count; i++) {
        copy_electorate(&to->past[i], &from->past[i]);
    }
}

/* How long from now until the lost host has stopped its workers, as far as we know. */
static uint32_t stopped_in_ms(const struct mu_rdzv_succession *s, mu_mono_t now)
{
    uint64_t ms = mu_mono_since(now, s->stopped) / MU_NS_PER_MS;

    return s->certain ? 0 : mu_mono_reached(s->stopped, now) ? 1 : (uint32_t)ms + 1;
}

static void fill_ask(const struct mu_rdzv_caller *c, struct mu_rdzv_promise *p)
{
    const struct mu_rdzv_succession *s = c->n->heir;
    struct mu_succession_ask ask;

    mu_succession_get_ask(&s->machine, c->number, &ask);
    p->kind = MU_RDZV_PROMISE_ASK;
    p->term = ask.term;
    p->promised = ask.promised;
    p->stopped_in_ms = stopped_in_ms(s, mono(c));
    p->lost = mu_span_str(s->lost_name);
    mu_rdzv_view_of(&p->view, &ask.view);
    p->legacy = ask.legacy.bytes;
}

static void fill_probe(const struct mu_rdzv_caller *c, struct mu_rdzv_promise *p)
{
    struct mu_succession_probe probe;

    mu_succession_get_probe(&c->n->heir->machine, &probe);
    p->kind = MU_RDZV_PROMISE_PROBE;
    p->term = probe.term;
    p->round = probe.round;
    p->addr = mu_span_str(probe.address);
}

static void fail(struct mu_rdzv_caller *c);

static void call(struct mu_rdzv_caller *c)
{
    struct mu_rdzv_promise p = {.run_id = mu_span_str(c->n->base.run_id),
                                .node = mu_span_str(c->n->base.node)};
    struct mu_buf out;
    int err;

    if (c->probes) {
        fill_probe(c, &p);
    } else {
        fill_ask(c, &p);
    }
    mu_buf_init(&out, (size_t)2 * MU_RDZV_LEGACY_MAX);
    err = c->probes && p.term == 0 ? MUSTER_EINVAL : mu_rdzv_promise_encode(&out, &p);
    if (err == 0) {
        err = mu_rpc_client_call(&c->rpc, MU_SPAN_LIT(MU_RDZV_METHOD_PROMISE), mu_buf_span(&out),
                                 c->probes ? PROBE_MS : 0, &c->call);
    }
    mu_buf_fini(&out);
    if (err != 0) {
        c->call = 0;
        fail(c);
    }
}

/* --- what comes of it ------------------------------------------------------------------------- */

static void fail(struct mu_rdzv_caller *c)
{
    bool wanted = c->wanted[0] != '\0';

    mu_rdzv_caller_hang_up(c);
    if (wanted && !c->probes) {
        mu_succession_unreached(&c->n->heir->machine, mono(c), c->number);
    }
    mu_rdzv_succession_wake(c->n->heir);
}

static void take_answer(struct mu_rdzv_caller *c, const struct mu_rdzv_answer *answer)
{
    struct mu_succession *machine = &c->n->heir->machine;
    char address[MU_RDZV_NAME_LEN_MAX + 1];

    (void)snprintf(address, sizeof(address), "%.*s", (int)answer->addr.len,
                   (const char *)answer->addr.data);
    if (c->probes) {
        mu_succession_better(machine, mono(c),
                             &(struct mu_succession_probe){
                                 .term = answer->term, .round = answer->round, .address = address});
        return;
    }
    mu_succession_answered(machine, mono(c), c->number,
                           &(struct mu_succession_answer){
                               .kind = answer->kind == MU_RDZV_ANSWER_RAISE ? MU_SUCCESSION_RAISE
                                       : answer->kind == MU_RDZV_ANSWER_FOLLOW
                                           ? MU_SUCCESSION_FOLLOW_IT
                                           : MU_SUCCESSION_FORGET,
                               .term = answer->term,
                               .address = address,
                           });
}

static void on_reply(void *context, uint64_t id, int status, struct mu_span payload)
{
    struct mu_rdzv_caller *c = context;
    struct mu_rdzv_answer answer;

    if (id != c->call || id == 0 || c->n->freeing) {
        return;
    }
    c->call = 0;
    if (status != 0 || mu_rdzv_answer_decode(payload, &answer) != 0 ||
        c->probes != (answer.kind == MU_RDZV_ANSWER_PROBED)) {
        fail(c);
        return;
    }
    c->wanted[0] = '\0';
    take_answer(c, &answer);
    if (answer.kind != MU_RDZV_ANSWER_RAISE) {
        mu_rdzv_caller_hang_up(c);
    }
    mu_rdzv_succession_wake(c->n->heir);
}

static void on_ready(void *context)
{
    struct mu_rdzv_caller *c = context;

    if (c->wanted[0] != '\0' && c->call == 0) {
        call(c);
    }
}

static void on_failed(void *context, int status, const char *text)
{
    (void)status;
    (void)text;
    fail(context);
}

static void on_mismatch(void *context, bool silent)
{
    (void)silent;
    fail(context);
}

/* A connection that was there, and is lost, will not be waited for. */
static void on_trouble(void *context, int status, bool was_open)
{
    (void)status;
    (void)was_open;
    fail(context);
}

static void dial(struct mu_rdzv_caller *c);

static void on_closed(void *context)
{
    struct mu_rdzv_caller *c = context;

    c->client = MU_RDZV_CLIENT_NONE;
    if (c->n->freeing) {
        mu_rdzv_muster_ended(c->n);
    } else if (c->wanted[0] != '\0') {
        dial(c);
    }
}

static void dial(struct mu_rdzv_caller *c)
{
    const struct mu_rpc_client_events events = {
        .ready = on_ready,
        .mismatch = on_mismatch,
        .failed = on_failed,
        .trouble = on_trouble,
        .gave_up = on_failed,
        .reply = on_reply,
        .closed = on_closed,
        .context = c,
    };
    struct mu_rpc_client_config config = {
        .name = c->n->base.node,
        .connect_ms = MU_SUCCESSION_REACH_MS,
        .reconnect_ms = MU_SUCCESSION_REACH_MS,
        .probe_ms = MU_SUCCESSION_REACH_MS,
        .greetings = 1,
        .try_once = true,
        .grace_ms = c->n->config.grace_ms,
        .beat_ms = c->n->config.beat_ms,
        .dead_ms = c->n->config.dead_ms,
    };
    struct mu_errmsg msg;

    memcpy(c->address, c->wanted, sizeof(c->address));
    if (mu_rdzv_endpoint_parse(c->address, MU_RDZV_PORT, &config.addr, &msg) == 0 &&
        mu_rpc_client_init(&c->rpc, c->n->base.env, &config, &events) == 0) {
        c->client = MU_RDZV_CLIENT_LIVE;
    } else {
        fail(c);
    }
}

void mu_rdzv_caller_hang_up(struct mu_rdzv_caller *c)
{
    c->wanted[0] = '\0';
    c->call = 0;
    if (c->client == MU_RDZV_CLIENT_LIVE) {
        c->client = MU_RDZV_CLIENT_CLOSING;
        mu_rpc_client_close(&c->rpc);
    }
}

void mu_rdzv_succession_hang_up(struct mu_rdzv_succession *s)
{
    for (uint32_t i = 0; i < MU_SUCCESSION_CALLS; i++) {
        mu_rdzv_caller_hang_up(&s->asks[i]);
    }
}

void mu_rdzv_caller_call(struct mu_rdzv_caller *c, const char *address)
{
    if (c->client == MU_RDZV_CLIENT_LIVE && c->rpc.ready && strcmp(c->address, address) == 0) {
        if (c->call != 0) {
            (void)mu_rpc_client_cancel(&c->rpc, c->call);
        }
        (void)snprintf(c->wanted, sizeof(c->wanted), "%s", address);
        call(c);
        mu_rpc_client_flush(&c->rpc);
        return;
    }
    mu_rdzv_caller_hang_up(c);
    (void)snprintf(c->wanted, sizeof(c->wanted), "%s", address);
    if (c->client == MU_RDZV_CLIENT_NONE) {
        dial(c);
    }
}
