/* What agents say to each other when their workers stand still; see watchdog.h. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/agent/hang.h"
#include "service/agent/agent_internal.h"
#include "service/agent/env.h"

#define KEY_CAP    32
#define SAY_PARTS  4    /* pulses of workers that stand still are written again so often */
#define READ_PARTS 8    /* how often others' are read */
#define ASK_MS     4000 /* for all agents to say where their workers are */
#define RECENT_MS  UINT64_C(60000) /* a hang that was over for longer did not end the run */

static uint64_t since(struct mu_agent_service *s, mu_mono_t at)
{
    return mu_mono_since(at, mu_env_now(s->env).mono);
}

/* --- operations ------------------------------------------------------------------------------- */

static void on_op(struct mu_store_op *op)
{
    struct mu_agent_round *r = MU_CONTAINER_OF(op, struct mu_agent_round, hang.op);

    r->hang.busy = false;
    if (r->closing) {
        mu_agent_round_settle(r);
    } else if (r->s->watchdog.sampling && r->s->round == r) {
        r->hang.then(r, op);
    }
}

/* Makes room for `count` keys and `count` values, and for `bytes` of what they point to. */
static bool begin_op(struct mu_agent_round *r, size_t count, size_t bytes)
{
    mu_free(r->hang.spans);
    r->hang.spans = mu_calloc(2 * count, sizeof(*r->hang.spans));
    mu_buf_fini(&r->hang.bytes);
    mu_buf_init(&r->hang.bytes, bytes + count * KEY_CAP);
    return r->hang.spans != NULL && mu_buf_reserve(&r->hang.bytes, bytes + count * KEY_CAP) == 0;
}

/* The room was reserved, so that what is put there stays where it is. */
static struct mu_span put(struct mu_agent_round *r, struct mu_span what)
{
    size_t at = r->hang.bytes.len;
    int err = mu_buf_append(&r->hang.bytes, what);

    MU_ASSERT(err == 0);
    return mu_span(mu_buf_span(&r->hang.bytes).data + at, what.len);
}

static struct mu_span put_key(struct mu_agent_round *r, const char *prefix, uint32_t number)
{
    char key[KEY_CAP];
    int len = snprintf(key, sizeof(key), "%s%" PRIu32, prefix, number);

    return put(r, mu_span(key, (size_t)len));
}

static void submit(struct mu_agent_round *r, enum mu_store_verb verb, size_t count, bool values,
                   void (*then)(struct mu_agent_round *r, struct mu_store_op *op))
{
    bool reads = verb == MU_STORE_GET || verb == MU_STORE_MULTI_GET;

    r->hang.then = then;
    r->hang.busy = true;
    r->hang.op = (struct mu_store_op){
        .request = {.verb = verb,
                    .flags = reads ? MU_STORE_NOWAIT : 0,
                    .keys = r->hang.spans,
                    .key_count = count,
                    .values = values ? r->hang.spans + count : NULL,
                    .value_count = values ? count : 0},
        .timeout_ms = r->s->config.verdict_ms,
        .done = on_op,
    };
    mu_store_submit(r->stores.store, &r->hang.op);
}

void mu_agent_hang_op_fini(struct mu_agent_hang_op *io)
{
    mu_free(io->spans);
    mu_buf_fini(&io->bytes);
}

/* --- what an agent is told -------------------------------------------------------------------- */

static void log_hang(struct mu_agent_service *s, const struct mu_hang *h)
{
    mu_agent_log(s, "%s", h->text);
    if (s->events.hang != NULL) {
        s->events.hang(s->events.context, h);
    }
}

static bool is_there(const struct mu_agent_worker *w)
{
    return w->spawned && w->running && !w->end.exited;
}

/* Whether SIGABRT makes it say where it is: Python's faulthandler is armed by the environment, and
 * a process that is stopped does nothing. */
static bool can_speak(const struct mu_agent_service *s, const struct mu_agent_worker *w)
{
    const char *armed = mu_agent_env_get(s->config.inherited, "PYTHONFAULTHANDLER");

    return (armed == NULL || armed[0] != '\0') &&
           mu_watchdog_pulse(&s->watchdog.machine, w->local_rank).state != MU_PULSE_STOPPED;
}

static void on_kill(struct mu_timer *timer)
{
    struct mu_agent_service *s =
        MU_CONTAINER_OF(timer, struct mu_agent_service, watchdog.kill_timer);

    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        if (s->workers[i].hung && is_there(&s->workers[i])) {
            (void)mu_env_child_signal(s->env, &s->workers[i].child, SIGKILL, MU_CHILD_FAMILY);
        }
    }
}

void mu_agent_hang_init(struct mu_agent_service *s)
{
    mu_timer_init(&s->watchdog.kill_timer, on_kill);
}

/* It has the grace to write where it hangs, and to end. */
static void end_worker(struct mu_agent_service *s, struct mu_agent_worker *w)
{
    bool speaks = can_speak(s, w);

    if (is_there(w)) {
        w->hung = true;
        mu_agent_log(
            s, "rank %" PRIu32 " (local rank %" PRIu32 ") is ended because the run hangs, by %s",
            w->end.rank, w->local_rank, speaks ? "SIGABRT" : "SIGKILL");
        (void)mu_env_child_signal(s->env, &w->child, speaks ? SIGABRT : SIGKILL, MU_CHILD_FAMILY);
        mu_env_timer_arm(s->env, &s->watchdog.kill_timer,
                         mu_mono_add_ms(mu_env_now(s->env).mono, s->config.policy.grace_ms));
    }
}

static void act(struct mu_agent_service *s, const struct mu_hang *h)
{
    uint32_t base = s->attempt.ranks.base;
    uint32_t local_rank = h->blamed - base;
    char reason[64];

    if (h->over || h->action < MU_HANG_RESTART || h->blamed < base ||
        local_rank >= s->config.policy.workers) {
        return;
    }
    (void)snprintf(reason, sizeof(reason), "rank %" PRIu32 " was missing in a hang", h->blamed);
    if (h->action == MU_HANG_EXCLUDE && mu_rdzv_exclude_self(s->rdzv, reason)) {
        mu_agent_log(s, "this node asks to be excluded: %s", reason);
        return;
    }
    if (h->action == MU_HANG_EXCLUDE) {
        mu_agent_log(s, "the backend %s cannot exclude a node", s->rdzv->backend);
    }
    end_worker(s, &s->workers[local_rank]);
}

/* Takes `h` over. What a hang was stays known when it is over, for the verdict. */
static void take(struct mu_agent_service *s, struct mu_hang *h)
{
    struct mu_agent_watchdog *d = &s->watchdog;
    bool known = d->has_told && d->told.number == h->number;

    if (known ? d->told.over || !h->over : h->over) {
        mu_hang_fini(h); /* it was told, or was over before we heard of it */
        return;
    }
    log_hang(s, h);
    if (h->over) {
        d->told.over = true;
        d->over_at = mu_env_now(s->env).mono;
        mu_hang_fini(h);
        return;
    }
    mu_hang_fini(&d->told);
    d->told = *h;
    d->has_told = true;
    s->verdict.hang = &d->told;
    act(s, &d->told);
}

static void on_hang_read(struct mu_agent_round *r, struct mu_store_op *op)
{
    struct mu_hang h;

    if (op->status == 0 && op->reply.value_count == 1 &&
        mu_hang_decode(op->reply.values[0], &h) == 0) {
        take(r->s, &h);
    }
}

static void read_hang(struct mu_agent_round *r)
{
    if (begin_op(r, 1, sizeof(MU_AGENT_HANG_KEY))) {
        r->s->watchdog.read_at = mu_env_now(r->s->env).mono;
        r->hang.spans[0] = put(r, MU_SPAN_LIT(MU_AGENT_HANG_KEY));
        submit(r, MU_STORE_GET, 1, false, on_hang_read);
    }
}

/* --- what node 0 says ------------------------------------------------------------------------- */

/* The next of the missing ranks that is in a state, or in any other (`is` false), from number `at`
 * of them on; NULL: there is none. Pulses and missing ranks are sorted alike. */
static const struct mu_pulse *next_missing(const struct mu_agent_watchdog *d, uint32_t *at,
                                           uint32_t *pulse, enum mu_pulse_state state, bool is)
{
    for (; *at < d->verdict.missing_count; (*at)++) {
        while (*pulse < d->pulse_count && d->pulses[*pulse].rank < d->missing[*at]) {
            (*pulse)++;
        }
        if (*pulse < d->pulse_count && d->pulses[*pulse].rank == d->missing[*at] &&
            (d->pulses[*pulse].state == state) == is) {
            (*at)++;
            return &d->pulses[*pulse];
        }
    }
    return NULL;
}

/* The rank whose worker has to go: the first that is missing and still there, or else the first
 * that is there. */
static uint32_t blame(const struct mu_agent_watchdog *d)
{
    uint32_t at = 0;
    uint32_t pulse = 0;
    const struct mu_pulse *p = next_missing(d, &at, &pulse, MU_PULSE_ENDED, false);

    for (uint32_t i = 0; p == NULL && i < d->pulse_count; i++) {
        p = d->pulses[i].state != MU_PULSE_ENDED ? &d->pulses[i] : NULL;
    }
    return p == NULL ? 0 : p->rank;
}

/* How many of the missing ranks are in a state. */
static uint32_t count_missing(const struct mu_agent_watchdog *d, enum mu_pulse_state state)
{
    uint32_t at = 0;
    uint32_t pulse = 0;
    uint32_t count = 0;

    while (next_missing(d, &at, &pulse, state, true) != NULL) {
        count++;
    }
    return count;
}

/* "rank 3 (node2) is missing, stopped by a signal or frozen" */
static void put_missing(const struct mu_agent_watchdog *d, const char *ranks, char *out, size_t cap)
{
    uint32_t count = d->verdict.missing_count;
    bool all_ended = count_missing(d, MU_PULSE_ENDED) == count;
    bool all_stopped = count_missing(d, MU_PULSE_STOPPED) == count;
    const char *how = all_ended     ? ", and has ended"
                      : all_stopped ? ", stopped by a signal or frozen"
                                    : "";
    bool named = count == 1 && d->missing_node[0] != '\0';

    if (count == 0) {
        (void)snprintf(out, cap, "%s",
                       d->verdict.split ? "each rank is in another place"
                                        : "all ranks are in the same place");
    } else if (d->verdict.split) {
        (void)snprintf(out, cap, "rank%s %s may be missing", count == 1 ? "" : "s", ranks);
    } else if (count == 1) {
        (void)snprintf(out, cap, "rank %s%s%s%s is missing%s", ranks, named ? " (" : "",
                       d->missing_node, named ? ")" : "", how);
    } else {
        (void)snprintf(out, cap, "ranks %s are missing%s", ranks,
                       all_ended ? ", and have ended" : how);
    }
}

/* What the flight recorders know comes first: it is more than what can be seen from outside. */
static void put_places(struct mu_agent_watchdog *d, struct mu_buf *line)
{
    struct mu_buf places;

    mu_buf_init(&places, MU_HANG_STACKS_MAX);
    if (mu_flights_write_line(&d->flights, line) != 0) {
        mu_buf_reset(line);
    }
    if (mu_groups_write_line(&d->groups, &places) == 0 && places.len != 0) {
        (void)mu_buf_append(line, line->len == 0 ? MU_SPAN_LIT("") : MU_SPAN_LIT("; "));
        (void)mu_buf_append(line, mu_buf_span(&places));
    }
    mu_buf_fini(&places);
}

static void describe(struct mu_agent_watchdog *d, const char *ranks, struct mu_hang *h)
{
    char missing[MU_HANG_MISSING_MAX + 128];
    char text[MU_HANG_TEXT_MAX + 1];
    struct mu_buf line;
    struct mu_span places;

    put_missing(d, ranks, missing, sizeof(missing));
    mu_buf_init(&line, MU_HANG_STACKS_MAX);
    put_places(d, &line);
    places = mu_buf_span(&line);
    (void)snprintf(text, sizeof(text), "no rank has made progress for %" PRIu64 " s: %s%s%.*s",
                   h->still_ms / 1000, missing, places.len == 0 ? "" : "; ", (int)places.len,
                   (const char *)places.data);
    h->text = mu_strndup(text, strlen(text));
    mu_buf_reset(&line);
    if (mu_flights_write_text(&d->flights, &line) == 0 &&
        mu_groups_write_text(&d->groups, &line) == 0) {
        places = mu_buf_span(&line);
        h->stacks = mu_strndup((const char *)places.data, places.len);
    }
    mu_buf_fini(&line);
}

static void on_told(struct mu_agent_round *r, struct mu_store_op *op)
{
    r->s->watchdog.tell_due = op->status != 0;
}

/* Writes what was told last. */
static void tell_others(struct mu_agent_round *r)
{
    struct mu_span text = mu_buf_span(&r->s->watchdog.tell_text);

    if (begin_op(r, 1, sizeof(MU_AGENT_HANG_KEY) + text.len)) {
        r->hang.spans[0] = put(r, MU_SPAN_LIT(MU_AGENT_HANG_KEY));
        r->hang.spans[1] = put(r, text);
        submit(r, MU_STORE_SET, 1, true, on_told);
    }
}

static void tell(struct mu_agent_round *r, struct mu_hang *h)
{
    struct mu_agent_watchdog *d = &r->s->watchdog;

    if (h->text == NULL) {
        mu_hang_fini(h);
        return; /* there is no memory */
    }
    mu_buf_reset(&d->tell_text);
    d->tell_due = r->world > 1 && mu_hang_encode(&d->tell_text, h) == 0;
    take(r->s, h);
    if (d->tell_due && !r->hang.busy) {
        tell_others(r);
    }
}

/* On how many nodes the missing ranks are. */
static uint32_t count_nodes(const struct mu_agent_watchdog *d)
{
    uint32_t count = d->verdict.missing_count == 0 ? 0 : 1;

    for (uint32_t i = 1; i < d->verdict.missing_count && count == 1; i++) {
        count += d->nodes[d->missing[i]] != d->nodes[d->missing[0]] ? 1 : 0;
    }
    return count;
}

static enum mu_hang_action decide(struct mu_agent_round *r)
{
    const struct mu_agent_watchdog *d = &r->s->watchdog;
    const struct mu_hang_view c = {.wanted = r->s->config.hang_action,
                                   .missing_count = d->verdict.missing_count,
                                   .split = d->verdict.split,
                                   .missing_nodes = count_nodes(d),
                                   .nodes = r->world,
                                   .nodes_min = r->s->config.rdzv.nodes_min};
    const char *why;
    enum mu_hang_action action = mu_hang_decide(&c, &why);

    if (why != NULL) {
        mu_agent_log(r->s, "%s", why);
    }
    return action;
}

static void tell_hang(struct mu_agent_round *r)
{
    struct mu_agent_watchdog *d = &r->s->watchdog;
    char ranks[MU_HANG_MISSING_MAX + 1] = "";
    struct mu_hang h = {
        .number = ++d->number,
        .since_s =
            (int64_t)(mu_env_now(r->s->env).wall.ns / MU_NS_PER_S - d->verdict.still_ms / 1000),
        .still_ms = d->verdict.still_ms,
        .missing_count = d->verdict.missing_count,
        .split = d->verdict.split,
        .blamed = blame(d),
        .action = decide(r),
    };

    if (d->verdict.missing_count != 0) {
        (void)mu_groups_ranges(ranks, sizeof(ranks), d->missing, d->verdict.missing_count);
    }
    h.missing = mu_strndup(ranks, strlen(ranks));
    describe(d, ranks, &h);
    tell(r, &h);
}

static void tell_over(struct mu_agent_round *r)
{
    struct mu_agent_watchdog *d = &r->s->watchdog;
    struct mu_hang h = d->told;
    char text[96];

    (void)snprintf(text, sizeof(text), "the run moves again, after %" PRIu64 " s",
                   d->verdict.still_ms / 1000);
    h.over = true;
    h.text = mu_strndup(text, strlen(text));
    h.missing = mu_strndup("", 0);
    h.stacks = mu_strndup("", 0);
    if (d->has_told) {
        tell(r, &h);
    } else {
        mu_hang_fini(&h);
    }
}

/* --- the stacks of all ranks ------------------------------------------------------------------ */

static void on_answer(void *context, uint32_t node, const struct mu_stacks_answer *answer)
{
    struct mu_agent_watchdog *d = context;
    struct mu_span reports = answer->reports;
    struct mu_stacks_report report;
    int err;

    (void)node;
    (void)mu_flights_add(&d->flights, answer->flights);
    while ((err = mu_stacks_answer_next(&reports, &report)) != MUSTER_ENOENT) {
        if (err != 0) {
            continue;
        }
        (void)mu_groups_add(&d->groups, &report);
        if (d->verdict.missing_count == 1 && report.rank == d->missing[0]) {
            (void)snprintf(d->missing_node, sizeof(d->missing_node), "%.*s", (int)report.node.len,
                           (const char *)report.node.data);
        }
    }
}

static void name_node(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;

    if (d->missing_node[0] == '\0' && d->verdict.missing_count == 1) {
        (void)snprintf(d->missing_node, sizeof(d->missing_node), "%s",
                       mu_agent_stacks_node(s, d->nodes[d->missing[0]]));
    }
}

/* Whoever has not answered is left out of the places, but not of the pulses. */
static void on_asked(struct mu_stacks_ask *ask, int status)
{
    struct mu_agent_watchdog *d = ask->config.context;
    struct mu_agent_service *s = MU_CONTAINER_OF(d, struct mu_agent_service, watchdog);

    d->asking = false;
    if (status != MUSTER_ECANCELED && d->sampling && s->round != NULL && !s->round->closing &&
        (!d->suspects || mu_agent_hang_confirm(s))) {
        mu_agent_hang_name(d);
        name_node(s);
        tell_hang(s->round);
    }
    mu_groups_fini(&d->groups);
    mu_flights_fini(&d->flights);
}

/* Without a store there is nobody to ask, and the hang is told without places. */
static void find_places(struct mu_agent_round *r)
{
    struct mu_agent_watchdog *d = &r->s->watchdog;
    struct mu_groups_config config;

    mu_groups_defaults(&config);
    mu_groups_init(&d->groups, &config);
    mu_flights_init(&d->flights);
    d->missing_node[0] = '\0';
    d->ask.config = (struct mu_stacks_ask_config){
        .timeout_ms = ASK_MS, .answer = on_answer, .done = on_asked, .context = d};
    d->asking = mu_agent_stacks_ask(r->s, &d->ask) == 0;
    if (!d->asking) {
        if (!d->suspects) {
            tell_hang(r);
        }
        mu_groups_fini(&d->groups);
        mu_flights_fini(&d->flights);
    }
}

/* --- the judgement ---------------------------------------------------------------------------- */

static bool make_room(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;

    if (d->pulses == NULL || d->world != s->attempt.ranks.world) {
        mu_free(d->pulses);
        mu_free(d->missing);
        mu_free(d->nodes);
        d->world = s->attempt.ranks.world;
        d->pulses = mu_calloc(d->world, sizeof(*d->pulses));
        d->missing = mu_calloc(d->world, sizeof(*d->missing));
        d->nodes = mu_calloc(d->world, sizeof(*d->nodes));
    }
    d->pulse_count = 0;
    return d->pulses != NULL && d->missing != NULL && d->nodes != NULL;
}

/* Pulses of ranks that there are not are passed over: the others are then one too few to judge. */
static void add_pulse(struct mu_agent_watchdog *d, struct mu_pulse pulse, uint32_t node)
{
    if (pulse.rank < d->world && d->pulse_count < d->world) {
        d->pulses[d->pulse_count++] = pulse;
        d->nodes[pulse.rank] = node;
    }
}

/* By rank: the missing ones are named in this order. Nodes come with ascending ranks, mostly. */
static void sort_pulses(struct mu_agent_watchdog *d)
{
    for (uint32_t i = 1; i < d->pulse_count; i++) {
        struct mu_pulse p = d->pulses[i];
        uint32_t j = i;

        for (; j > 0 && d->pulses[j - 1].rank > p.rank; j--) {
            d->pulses[j] = d->pulses[j - 1];
        }
        d->pulses[j] = p;
    }
}

static void judge(struct mu_agent_round *r)
{
    struct mu_agent_watchdog *d = &r->s->watchdog;
    struct mu_watchdog_verdict v;

    for (uint32_t i = 0; i < r->s->config.policy.workers; i++) {
        add_pulse(d, mu_watchdog_pulse(&d->machine, i), r->rank);
    }
    sort_pulses(d);
    if (mu_watchdog_judge(&d->run, d->pulses, d->pulse_count, d->world, &v, d->missing) != 0) {
        return;
    }
    d->verdict = v;
    d->suspects = v.word == MU_WATCHDOG_SUSPECT;
    if (!d->suspects) {
        mu_free(d->suspicion);
        d->suspicion = NULL;
    }
    switch (v.word) {
    case MU_WATCHDOG_SUSPECT:
        if (!mu_mono_before(mu_env_now(r->s->env).mono, d->suspect_due)) {
            find_places(r);
        }
        break;
    case MU_WATCHDOG_HANG:
        find_places(r);
        break;
    case MU_WATCHDOG_RESUMED:
        tell_over(r);
        break;
    case MU_WATCHDOG_NOTHING:
    case MU_WATCHDOG_HANGING:
        break;
    }
}

/* The store has an answer only if all of them stand still, or have since they did. */
static void on_pulses(struct mu_agent_round *r, struct mu_store_op *op)
{
    struct mu_agent_watchdog *d = &r->s->watchdog;

    if (op->status != 0 || !make_room(r->s)) {
        return;
    }
    for (size_t i = 0; i < op->reply.value_count; i++) {
        size_t count = 0;

        (void)mu_pulse_count(op->reply.values[i], &count);
        for (size_t j = 0; j < count; j++) {
            add_pulse(d, mu_pulse_at(op->reply.values[i], j), (uint32_t)i + 1);
        }
    }
    judge(r);
}

static void read_pulses(struct mu_agent_round *r)
{
    r->s->watchdog.read_at = mu_env_now(r->s->env).mono;
    if (!begin_op(r, r->world, 0)) {
        return;
    }
    for (uint32_t i = 1; i < r->world; i++) {
        r->hang.spans[i - 1] = put_key(r, MU_AGENT_PULSE_KEY, i);
    }
    submit(r, MU_STORE_MULTI_GET, r->world - 1, false, on_pulses);
}

/* --- what the other nodes say ----------------------------------------------------------------- */

static void on_said(struct mu_agent_round *r, struct mu_store_op *op)
{
    struct mu_agent_watchdog *d = &r->s->watchdog;

    if (op->status == 0) {
        d->said_still = d->saying_still;
    }
}

static void say(struct mu_agent_round *r)
{
    struct mu_agent_service *s = r->s;
    struct mu_agent_watchdog *d = &s->watchdog;
    uint32_t workers = s->config.policy.workers;
    struct mu_pulse *pulses = mu_calloc(workers, sizeof(*pulses));
    struct mu_buf encoded;

    mu_buf_init(&encoded, 64 + (size_t)workers * 2 * MU_PULSE_SIZE);
    for (uint32_t i = 0; pulses != NULL && i < workers; i++) {
        pulses[i] = mu_watchdog_pulse(&d->machine, i);
    }
    d->said_at = mu_env_now(s->env).mono;
    if (pulses != NULL && mu_pulse_encode(&encoded, pulses, workers) == 0 &&
        begin_op(r, 1, encoded.len)) {
        r->hang.spans[0] = put_key(r, MU_AGENT_PULSE_KEY, r->rank);
        r->hang.spans[1] = put(r, mu_buf_span(&encoded));
        d->saying_still = d->still;
        submit(r, MU_STORE_SET, 1, true, on_said);
    }
    mu_buf_fini(&encoded);
    mu_free(pulses);
}

/* --- turns ------------------------------------------------------------------------------------ */

static bool is_say_due(struct mu_agent_service *s)
{
    const struct mu_agent_watchdog *d = &s->watchdog;

    return d->still != d->said_still ||
           (d->still && since(s, d->said_at) >= mu_agent_watchdog_part_ns(d, SAY_PARTS));
}

static bool is_read_due(struct mu_agent_service *s)
{
    const struct mu_agent_watchdog *d = &s->watchdog;

    return (d->still || (d->has_told && !d->told.over)) &&
           since(s, d->read_at) >= mu_agent_watchdog_part_ns(d, READ_PARTS);
}

static void turn_alone(struct mu_agent_round *r)
{
    if ((r->s->watchdog.still || r->s->watchdog.run.hangs) && make_room(r->s)) {
        judge(r);
    }
}

static void turn_first(struct mu_agent_round *r)
{
    if (r->s->watchdog.tell_due) {
        tell_others(r);
    } else if (is_read_due(r->s)) {
        read_pulses(r);
    }
}

/* News comes first. Of two things that are due, it is the one that was done longer ago: with a
 * short hang time, both are due each time. */
static void turn_other(struct mu_agent_round *r)
{
    struct mu_agent_watchdog *d = &r->s->watchdog;
    bool news = d->still != d->said_still;

    if (is_say_due(r->s) &&
        (news || !is_read_due(r->s) || mu_mono_before(d->said_at, d->read_at))) {
        say(r);
    } else if (is_read_due(r->s)) {
        read_hang(r);
    }
}

void mu_agent_hang_turn(struct mu_agent_service *s)
{
    struct mu_agent_round *r = s->round;

    if (r == NULL || r->closing || !r->has_ranks || s->watchdog.asking) {
        return; /* what is judged stays as it is while the stacks for it are on their way */
    }
    if (r->world == 1) {
        turn_alone(r);
    } else if (!r->store_open || r->store_gone || r->hang.busy || r->store_closing) {
        return;
    } else if (r->rank == 0) {
        turn_first(r);
    } else {
        turn_other(r);
    }
}

void mu_agent_hang_reset(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;

    mu_watchdog_run_init(&d->run, d->hang_ms);
    mu_free(d->suspicion);
    d->suspicion = NULL;
    d->suspect_due = mu_env_now(s->env).mono;
    if (d->asking) {
        mu_stacks_ask_cancel(&d->ask);
    }
    mu_env_timer_arm(s->env, &d->kill_timer, MU_MONO_NEVER);
    mu_hang_fini(&d->told);
    d->has_told = d->tell_due = d->said_still = false;
    d->number = 0;
    s->verdict.hang = NULL;
}

void mu_agent_hang_end(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;

    if (mu_agent_verdict_exit_code(&s->verdict) == 0 ||
        (d->has_told && d->told.over && since(s, d->over_at) > RECENT_MS * MU_NS_PER_MS)) {
        s->verdict.hang = NULL;
    }
}
