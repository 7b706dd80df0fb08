/* What agents say to each other when their workers stand still; see watchdog.h. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/agent/agent_internal.h"

#define KEY_CAP    32
#define SAY_PARTS  4 /* pulses of workers that stand still are written again so often */
#define READ_PARTS 8 /* how often others' are read */
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

static void end_worker(struct mu_agent_service *s, struct mu_agent_worker *w)
{
    if (w->spawned && w->running && !w->end.exited) {
        w->hung = true;
        mu_agent_log(s, "rank %" PRIu32 " (local rank %" PRIu32 ") is ended because the run hangs",
                     w->end.rank, w->local_rank);
        (void)mu_env_child_signal(s->env, &w->child, SIGKILL, MU_CHILD_FAMILY);
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

    if (d->has_told && d->told.number == h->number && d->told.over == h->over) {
        mu_hang_fini(h);
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

/* "rank 3 (node2) is missing, stopped by a signal" */
static void put_missing(const struct mu_agent_watchdog *d, const char *ranks, char *out, size_t cap)
{
    uint32_t count = d->verdict.missing_count;
    bool all_ended = count_missing(d, MU_PULSE_ENDED) == count;
    bool all_stopped = count_missing(d, MU_PULSE_STOPPED) == count;
    const char *how = all_ended ? ", and has ended" : all_stopped ? ", stopped by a signal" : "";
    bool named = count == 1 && d->missing_node[0] != '\0';

    if (count == 0) {
        (void)snprintf(out, cap, "all ranks are in the same place");
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

static void describe(struct mu_agent_watchdog *d, const char *ranks, struct mu_hang *h)
{
    char missing[MU_HANG_MISSING_MAX + 128];
    char text[MU_HANG_TEXT_MAX + 1];
    struct mu_buf line;
    struct mu_span places;

    put_missing(d, ranks, missing, sizeof(missing));
    mu_buf_init(&line, MU_HANG_STACKS_MAX);
    if (mu_groups_write_line(&d->groups, &line) != 0) {
        mu_buf_reset(&line);
    }
    places = mu_buf_span(&line);
    (void)snprintf(text, sizeof(text), "no rank has made progress for %" PRIu64 " s: %s%s%.*s",
                   h->still_ms / 1000, missing, places.len == 0 ? "" : "; ", (int)places.len,
                   (const char *)places.data);
    h->text = mu_strndup(text, strlen(text));
    mu_buf_reset(&line);
    if (mu_groups_write_text(&d->groups, &line) == 0) {
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
        .action = r->s->config.hang_action,
    };

    if (d->verdict.missing_count != 0) {
        (void)mu_groups_ranges(ranks, sizeof(ranks), d->missing, d->verdict.missing_count);
    }
    h.missing = mu_strndup(ranks, strlen(ranks));
    describe(d, ranks, &h);
    mu_groups_fini(&d->groups);
    d->grouping = false;
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

static void add_report(struct mu_agent_watchdog *d, struct mu_span bytes)
{
    struct mu_stacks_report report;

    if (mu_stacks_report_decode(bytes, &report) != 0) {
        return;
    }
    (void)mu_groups_add(&d->groups, &report);
    if (d->verdict.missing_count == 1 && report.rank == d->missing[0]) {
        (void)snprintf(d->missing_node, sizeof(d->missing_node), "%.*s", (int)report.node.len,
                       (const char *)report.node.data);
    }
}

static bool is_own(const struct mu_agent_service *s, uint32_t rank)
{
    return rank >= s->attempt.ranks.base && rank - s->attempt.ranks.base < s->config.policy.workers;
}

static void on_seen(struct mu_agent_round *r, struct mu_store_op *op);

/* Reads the next ones, or says what there is to say. */
static void read_seen(struct mu_agent_round *r)
{
    struct mu_agent_watchdog *d = &r->s->watchdog;
    size_t count = 0;

    if (d->seen_next < d->world && begin_op(r, MU_AGENT_SEEN_BATCH, 0)) {
        for (; d->seen_next < d->world && count < MU_AGENT_SEEN_BATCH; d->seen_next++) {
            if (!is_own(r->s, d->seen_next)) {
                r->hang.spans[count++] = put_key(r, MU_AGENT_SEEN_KEY, d->seen_next);
            }
        }
    }
    if (count == 0) {
        tell_hang(r);
    } else {
        submit(r, MU_STORE_MULTI_GET, count, false, on_seen);
    }
}

static void on_seen(struct mu_agent_round *r, struct mu_store_op *op)
{
    for (size_t i = 0; op->status == 0 && i < op->reply.value_count; i++) {
        add_report(&r->s->watchdog, op->reply.values[i]);
    }
    read_seen(r);
}

static void find_places(struct mu_agent_round *r)
{
    struct mu_agent_watchdog *d = &r->s->watchdog;
    struct mu_groups_config config;

    mu_groups_defaults(&config);
    mu_groups_init(&d->groups, &config);
    d->grouping = true;
    d->missing_node[0] = '\0';
    for (uint32_t i = 0; i < r->s->config.policy.workers; i++) {
        add_report(d, mu_buf_span(&d->sampler.workers[i].report));
    }
    d->seen_next = r->world == 1 ? d->world : 0;
    read_seen(r);
}

/* --- the judgement ---------------------------------------------------------------------------- */

static bool make_room(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;

    if (d->pulses == NULL || d->world != s->attempt.ranks.world) {
        mu_free(d->pulses);
        mu_free(d->missing);
        d->world = s->attempt.ranks.world;
        d->pulses = mu_calloc(d->world, sizeof(*d->pulses));
        d->missing = mu_calloc(d->world, sizeof(*d->missing));
    }
    d->pulse_count = 0;
    return d->pulses != NULL && d->missing != NULL;
}

static void add_pulse(struct mu_agent_watchdog *d, struct mu_pulse pulse)
{
    if (d->pulse_count < d->world) {
        d->pulses[d->pulse_count++] = pulse;
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
        add_pulse(d, mu_watchdog_pulse(&d->machine, i));
    }
    sort_pulses(d);
    if (mu_watchdog_judge(&d->run, d->pulses, d->pulse_count, d->world, &v, d->missing) != 0) {
        return;
    }
    d->verdict = v;
    switch (v.word) {
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
            add_pulse(d, mu_pulse_at(op->reply.values[i], j));
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

/* The stacks come first: whoever finds the pulses finds them as well, in any kind of store. */
static void say(struct mu_agent_round *r)
{
    struct mu_agent_service *s = r->s;
    struct mu_agent_watchdog *d = &s->watchdog;
    uint32_t workers = s->config.policy.workers;
    struct mu_pulse *pulses = mu_calloc(workers, sizeof(*pulses));
    struct mu_buf encoded;
    size_t bytes = 0;

    mu_buf_init(&encoded, 64 + (size_t)workers * 2 * MU_PULSE_SIZE);
    for (uint32_t i = 0; pulses != NULL && i < workers; i++) {
        pulses[i] = mu_watchdog_pulse(&d->machine, i);
        bytes += d->sampler.workers[i].report.len + 1;
    }
    d->said_at = mu_env_now(s->env).mono;
    if (pulses != NULL && mu_pulse_encode(&encoded, pulses, workers) == 0 &&
        begin_op(r, (size_t)workers + 1, bytes + encoded.len)) {
        size_t count = (size_t)workers + 1;

        for (uint32_t i = 0; i < workers; i++) {
            struct mu_span report = mu_buf_span(&d->sampler.workers[i].report);

            r->hang.spans[i] = put_key(r, MU_AGENT_SEEN_KEY, s->attempt.ranks.base + i);
            r->hang.spans[count + i] = put(r, report.len == 0 ? MU_SPAN_LIT("-") : report);
        }
        r->hang.spans[workers] = put_key(r, MU_AGENT_PULSE_KEY, r->rank);
        r->hang.spans[count + workers] = put(r, mu_buf_span(&encoded));
        d->saying_still = d->still;
        submit(r, MU_STORE_MULTI_SET, count, true, on_said);
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

    if (r == NULL || r->closing || !r->has_ranks) {
        return;
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
    if (d->grouping) {
        mu_groups_fini(&d->groups);
    }
    d->grouping = false;
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
