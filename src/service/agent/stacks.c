/*
 * An agent answers whoever asks for the stacks of the run; service/agent/stacks.h has the keys.
 *
 *     WAITS -- a question is there --> COUNTS --> READS --> LOOKS --> WRITES --> DELETES --> RESTS
 *       ^                                                                                     |
 *       +---------------------------- a second since it woke, or longer after an error ------+
 *
 * Everything but the looking is an operation of the round's store, one at a time. An error only
 * means that nobody gets an answer this time.
 */
#include "service/agent/stacks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/agent/agent_internal.h"
#include "service/agent/env.h"
#include "service/stacks/flight_take.h"
#include "service/stacks/take.h"

#define AGAIN_MS     5000 /* after an error of the store */
#define OP_MS        5000
#define LATE_DUMP_MS 2000 /* a dump that comes after the time for it is our doing, too */
#define AT_ONCE      2    /* the threads of the pool have other work, too */

struct look_one {
    struct mu_stacks_take take;
    struct mu_agent_look *look;
    bool ended;
    const char *note; /* instead of a report */
};

/* A look at all workers. Who waits for it may give up, and it goes on until it has ended. */
struct mu_agent_look {
    struct mu_agent_service *s;
    struct mu_agent_round *r; /* NULL: nobody waits any more */
    uint32_t count;
    uint32_t begun;
    uint32_t ended;
    bool flying; /* flight recorders were asked, and are waited for */
    struct mu_flight_take flight;
    struct look_one list[];
};

/* --- operations of the store ------------------------------------------------------------------ */

static void wait_for_question(struct mu_agent_round *r);
static void count_questions(struct mu_agent_round *r);
static void read_question(struct mu_agent_round *r);
static void write_answer(struct mu_agent_round *r, const struct mu_agent_look *look);

static void arm(struct mu_agent_round *r, mu_mono_t at)
{
    mu_env_timer_arm(r->s->env, &r->stacks.timer, at);
}

static void rest(struct mu_agent_round *r, uint64_t ms)
{
    struct mu_agent_stacks *k = &r->stacks;

    k->state = MU_AGENT_STACKS_RESTS;
    mu_stacks_answer_fini(&k->answer);
    arm(r, mu_mono_add_ms(k->woke, ms));
}

static void on_op(struct mu_store_op *op);

static void submit(struct mu_agent_round *r, struct mu_store_request request, uint32_t timeout_ms)
{
    struct mu_agent_stacks *k = &r->stacks;

    request.keys = k->keys;
    k->op = (struct mu_store_op){.request = request, .timeout_ms = timeout_ms, .done = on_op};
    k->busy = true;
    mu_store_submit(r->stores.store, &k->op);
}

static void name_question(struct mu_agent_stacks *k, uint64_t question)
{
    int len =
        snprintf(k->names[0], sizeof(k->names[0]), MU_AGENT_STACKS_ASK_KEY "/%" PRIu64, question);

    k->keys[0] = mu_span(k->names[0], (size_t)len);
}

static void name_answer(struct mu_agent_round *r, size_t i, uint64_t question)
{
    struct mu_agent_stacks *k = &r->stacks;
    int len = snprintf(k->names[i], sizeof(k->names[i]), MU_AGENT_STACKS_KEY "%" PRIu64 "/%" PRIu32,
                       question, r->rank);

    k->keys[i] = mu_span(k->names[i], (size_t)len);
}

/* --- looking ---------------------------------------------------------------------------------- */

static void on_taken(struct mu_stacks_take *take);

static void free_look(struct mu_agent_look *look)
{
    for (uint32_t i = 0; i < look->count; i++) {
        mu_stacks_take_fini(&look->list[i].take);
    }
    mu_flight_take_fini(&look->flight);
    mu_free(look->flight.workers);
    mu_free(look);
}

/* Where one look has not come back, others may not either: they must not take up the pool. */
static uint32_t at_once(struct mu_agent_service *s)
{
    return mu_agent_watchdog_stuck(s) == MU_STACKS_NOBODY ? AT_ONCE : 1;
}

static void begin_looks(struct mu_agent_look *look)
{
    while (look->r != NULL && look->begun < look->count &&
           look->begun - look->ended < at_once(look->s)) {
        struct look_one *one = &look->list[look->begun++];
        int err = one->note == NULL ? mu_stacks_take(look->s->env, &one->take) : MUSTER_ENOENT;

        if (err != 0) {
            one->note = one->note != NULL ? one->note : muster_strerror(err);
            look->ended++;
        }
    }
}

/* Whoever waits gets what there is; the look is freed when nothing of it is under way. */
static void settle_look(struct mu_agent_look *look)
{
    struct mu_agent_service *s = look->s;
    struct mu_agent_round *r = look->r;

    begin_looks(look);
    if (r != NULL && look->ended == look->count && !look->flying) {
        write_answer(r, look);
        look->r = NULL;
    }
    if (look->r == NULL && look->begun == look->ended && !look->flying) {
        s->look = s->look == look ? NULL : s->look;
        free_look(look);
        mu_agent_settle(s);
    }
}

static void on_taken(struct mu_stacks_take *take)
{
    struct look_one *one = MU_CONTAINER_OF(take, struct look_one, take);

    one->ended = true;
    if (take->err != 0) {
        one->note =
            take->err == MUSTER_ENOENT ? "the process has ended" : muster_strerror(take->err);
    }
    one->look->ended++;
    settle_look(one->look);
}

static void look_at(struct look_one *one, const struct mu_agent_worker *w)
{
    const struct mu_agent_service *s = w->s;

    one->take = (struct mu_stacks_take){
        .pid = w->end.pid,
        .head = {.kind = MU_STACKS_OTHER,
                 .node = mu_span_str(s->config.host != NULL ? s->config.host : s->rdzv->node),
                 .rank = w->end.rank,
                 .local_rank = w->local_rank,
                 .pid = w->end.pid,
                 .round = s->attempt.round},
        .family = true,
        .done = on_taken,
    };
    one->note = w->end.exited ? "the process has ended"
                : !w->running ? "the process does not run yet"
                : w->local_rank == mu_agent_watchdog_stuck(w->s)
                    ? "an earlier look at it has not ended"
                    : NULL;
}

static void on_flown(struct mu_flight_take *take)
{
    struct mu_agent_look *look = MU_CONTAINER_OF(take, struct mu_agent_look, flight);

    look->flying = false;
    if (take->asked == 0) {
        mu_agent_watchdog_calm(look->s); /* nobody was made to do anything */
    }
    settle_look(look);
}

/* Asks the flight recorders of our workers. Half of an answer is theirs. */
static void ask_flights(struct mu_agent_look *look)
{
    struct mu_agent_service *s = look->s;
    struct mu_agent_env_flight env = mu_agent_env_flight(s->config.inherited, s->config.flight);
    struct mu_flight_take *take = &look->flight;

    if (env.pipe == NULL || look->count == 0) {
        return;
    }
    take->workers = mu_calloc(look->count, sizeof(*take->workers));
    if (take->workers == NULL) {
        return;
    }
    take->count = look->count;
    take->config = (struct mu_flight_take_config){
        .env = s->env,
        .pipe = env.pipe,
        .dumps = {env.dumps[0], env.dumps[1]},
        .timeout_ms = look->r->stacks.flight_ms - look->r->stacks.flight_ms / 8,
        .brief_max = MU_STACKS_ANSWER_BYTES_MAX / 2 / look->count,
        .done = on_flown,
    };
    for (uint32_t i = 0; i < look->count; i++) {
        const struct mu_agent_worker *w = &s->workers[i];

        take->workers[i].rank = w->end.rank;
        take->workers[i].pid = w->running && !w->end.exited ? w->end.pid : 0;
    }
    look->flying = mu_flight_take_start(take) == 0;
    if (look->flying) {
        mu_agent_watchdog_disturb(s, take->config.timeout_ms + LATE_DUMP_MS);
    }
}

static void look_at_workers(struct mu_agent_round *r)
{
    struct mu_agent_service *s = r->s;
    uint32_t count = s->generation == 0 ? 0 : s->config.policy.workers;
    /* The pool must not fill up with looks that do not come back. */
    bool held = s->look != NULL || mu_agent_watchdog_blind(s);
    struct mu_agent_look *look;

    r->stacks.state = MU_AGENT_STACKS_LOOKS;
    look = mu_calloc(1, sizeof(*look) + count * sizeof(look->list[0]));
    if (look == NULL) {
        rest(r, MU_AGENT_STACKS_REST_MS);
        return;
    }
    look->s = s;
    look->r = r;
    look->count = count;
    for (uint32_t i = 0; i < count; i++) {
        look->list[i].look = look;
        look_at(&look->list[i], &s->workers[i]);
        if (held) {
            look->list[i].note = "an earlier look at a worker of this node has not ended";
        }
    }
    if (s->look == NULL) {
        s->look = look;
        ask_flights(look);
    }
    arm(r, mu_mono_add_ms(mu_env_now(s->env).mono,
                          look->flying && r->stacks.flight_ms > MU_AGENT_STACKS_LOOK_MS
                              ? r->stacks.flight_ms
                              : MU_AGENT_STACKS_LOOK_MS));
    settle_look(look);
}

/* --- the answer ------------------------------------------------------------------------------- */

/* A report that says why there is nothing to report. */
static int add_note(struct mu_stacks_answer_writer *w, const struct look_one *one)
{
    struct mu_stacks_report head = one->take.head;
    struct mu_stacks_writer report;
    struct mu_buf out;
    int err;

    head.note = mu_span_str(one->note != NULL ? one->note : "it could not be looked at in time");
    mu_stacks_writer_init(&report);
    mu_buf_init(&out, MU_STACKS_REPORT_BYTES_MAX);
    err = mu_stacks_writer_finish(&report, &head, &out);
    if (err == 0) {
        err = mu_stacks_answer_add(w, mu_buf_span(&out), false);
    }
    mu_stacks_writer_fini(&report);
    mu_buf_fini(&out);
    return err;
}

static int add_flights(struct mu_stacks_answer_writer *w, const struct mu_agent_look *look)
{
    int err = 0;

    for (uint32_t i = 0; i < look->flight.count && err == 0; i++) {
        const struct mu_flight_take_worker *one = &look->flight.workers[i];
        struct mu_stacks_flight flight = {
            .rank = one->rank,
            .note = mu_span_str(look->flying ? "its dump was not read in time" : one->note)};

        if (!look->flying) {
            flight.dump = mu_buf_span(&one->brief);
        }
        if (flight.dump.len != 0 || flight.note.len != 0) {
            err = mu_stacks_answer_add_flight(w, &flight);
        }
    }
    return err;
}

static int make_answer(struct mu_agent_round *r, const struct mu_agent_look *look)
{
    struct mu_stacks_answer_writer *w = &r->stacks.answer;
    const struct mu_stacks_answer head = {.node = mu_span_str(r->s->rdzv->node),
                                          .workers = r->s->config.policy.workers,
                                          .world = r->has_ranks ? r->ranks.world : 0};
    int err = mu_stacks_answer_begin(w, &head, MU_STACKS_ANSWER_BYTES_MAX);

    for (uint32_t i = 0; i < look->count && err == 0; i++) {
        const struct look_one *one = &look->list[i];

        err = one->ended && one->note == NULL
                  ? mu_stacks_answer_add(w, mu_buf_span(&one->take.report), !r->stacks.all_threads)
                  : add_note(w, one);
    }
    return err != 0 ? err : add_flights(w, look);
}

/* Questions that came since the last answer get the same one. */
static void write_answer(struct mu_agent_round *r, const struct mu_agent_look *look)
{
    struct mu_agent_stacks *k = &r->stacks;
    size_t count = 0;

    arm(r, MU_MONO_NEVER);
    if (make_answer(r, look) != 0) {
        rest(r, MU_AGENT_STACKS_REST_MS);
        return;
    }
    k->state = MU_AGENT_STACKS_WRITES;
    for (uint64_t n = k->question; n > k->seen && count < MU_AGENT_STACKS_SHARED_MAX; n--) {
        name_answer(r, count, n);
        k->values[count] = mu_stacks_answer_end(&k->answer);
        count++;
    }
    k->old = k->fresh;
    k->old_count = k->fresh_count;
    k->seen = k->fresh = k->question;
    k->fresh_count = count;
    submit(r,
           (struct mu_store_request){.verb = MU_STORE_MULTI_SET,
                                     .key_count = count,
                                     .values = k->values,
                                     .value_count = count},
           OP_MS);
}

/* An answer that nobody waits for any more takes up room: it goes when the next one is there. */
static void delete_old(struct mu_agent_round *r)
{
    struct mu_agent_stacks *k = &r->stacks;

    if (k->old_count == 0) {
        rest(r, MU_AGENT_STACKS_REST_MS);
        return;
    }
    k->state = MU_AGENT_STACKS_DELETES;
    name_answer(r, 0, k->old);
    k->old--;
    k->old_count--;
    submit(r, (struct mu_store_request){.verb = MU_STORE_DELETE, .key_count = 1}, OP_MS);
}

/* --- questions -------------------------------------------------------------------------------- */

static void wait_for_question(struct mu_agent_round *r)
{
    r->stacks.state = MU_AGENT_STACKS_WAITS;
    name_question(&r->stacks, r->stacks.seen + 1);
    submit(r, (struct mu_store_request){.verb = MU_STORE_WAIT, .key_count = 1}, 0);
}

static void count_questions(struct mu_agent_round *r)
{
    r->stacks.state = MU_AGENT_STACKS_COUNTS;
    r->stacks.keys[0] = MU_SPAN_LIT(MU_AGENT_STACKS_ASK_KEY);
    submit(r, (struct mu_store_request){.verb = MU_STORE_ADD, .key_count = 1}, OP_MS);
}

static void read_question(struct mu_agent_round *r)
{
    struct mu_agent_stacks *k = &r->stacks;

    if (k->op.reply.number <= 0 || (uint64_t)k->op.reply.number <= k->seen) {
        rest(r, AGAIN_MS); /* somebody else has written to these keys */
        return;
    }
    k->state = MU_AGENT_STACKS_READS;
    k->question = (uint64_t)k->op.reply.number;
    name_question(k, k->question);
    submit(
        r,
        (struct mu_store_request){.verb = MU_STORE_GET, .flags = MU_STORE_NOWAIT, .key_count = 1},
        OP_MS);
}

static void take_question(struct mu_agent_round *r)
{
    const struct mu_store_reply *reply = &r->stacks.op.reply;
    char text[24] = "";
    unsigned long ms = 0;

    if (r->stacks.op.status == 0 && reply->value_count == 1 &&
        reply->values[0].len < sizeof(text)) {
        memcpy(text, reply->values[0].data, reply->values[0].len);
    }
    r->stacks.all_threads = strncmp(text, "all", 3) == 0;
    if (strchr(text, ' ') != NULL) {
        ms = strtoul(strchr(text, ' '), NULL, 10);
    }
    r->stacks.flight_ms =
        ms < MU_AGENT_STACKS_FLIGHT_MS_MAX ? (uint32_t)ms : MU_AGENT_STACKS_FLIGHT_MS_MAX;
    look_at_workers(r);
}

static void on_op(struct mu_store_op *op)
{
    struct mu_agent_stacks *k = MU_CONTAINER_OF(op, struct mu_agent_stacks, op);
    struct mu_agent_round *r = MU_CONTAINER_OF(k, struct mu_agent_round, stacks);

    k->busy = false;
    if (r->closing) {
        mu_agent_round_settle(r);
        return;
    }
    if (k->state == MU_AGENT_STACKS_WAITS) {
        k->woke = mu_env_now(r->s->env).mono;
    }
    if (op->status != 0 && k->state != MU_AGENT_STACKS_READS) {
        rest(r, AGAIN_MS);
        return;
    }
    switch (k->state) {
    case MU_AGENT_STACKS_WAITS:
        count_questions(r);
        break;
    case MU_AGENT_STACKS_COUNTS:
        read_question(r);
        break;
    case MU_AGENT_STACKS_READS:
        take_question(r); /* one that is not set yet asks for main threads */
        break;
    case MU_AGENT_STACKS_WRITES:
    case MU_AGENT_STACKS_DELETES:
        delete_old(r);
        break;
    case MU_AGENT_STACKS_OFF:
    case MU_AGENT_STACKS_LOOKS:
    case MU_AGENT_STACKS_RESTS:
        MU_ASSERT(false); /* no operation is under way in these */
        break;
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_agent_stacks *k = MU_CONTAINER_OF(timer, struct mu_agent_stacks, timer);
    struct mu_agent_round *r = MU_CONTAINER_OF(k, struct mu_agent_round, stacks);

    if (k->state == MU_AGENT_STACKS_LOOKS) {
        struct mu_agent_look *look = r->s->look;

        write_answer(r, look);
        look->r = NULL;
        settle_look(look);
    } else if (!r->store_gone) {
        wait_for_question(r);
    }
}

/* --- life ------------------------------------------------------------------------------------- */

void mu_agent_stacks_init(struct mu_agent_round *r)
{
    mu_list_init(&r->stacks.asks);
    mu_timer_init(&r->stacks.timer, on_timer);
    mu_buf_init(&r->stacks.answer.out, 0);
}

void mu_agent_stacks_start(struct mu_agent_round *r)
{
    if (r->stacks.state == MU_AGENT_STACKS_OFF && r->store_open && !r->closing) {
        wait_for_question(r);
    }
}

void mu_agent_stacks_close(struct mu_agent_round *r)
{
    struct mu_agent_stacks *k = &r->stacks;
    struct mu_agent_look *look = r->s->look;

    arm(r, MU_MONO_NEVER);
    if (k->busy) {
        mu_store_cancel(&k->op);
    }
    MU_LIST_FOREACH (it, &k->asks) {
        mu_stacks_ask_cancel(MU_CONTAINER_OF(it, struct mu_stacks_ask, link));
    }
    if (look != NULL && look->r == r) {
        look->r = NULL;
        if (look->flying) {
            mu_flight_take_hurry(&look->flight);
        }
        settle_look(look);
    }
}

bool mu_agent_stacks_closed(const struct mu_agent_round *r)
{
    return !r->stacks.busy && mu_list_empty(&r->stacks.asks);
}

void mu_agent_stacks_fini(struct mu_agent_round *r)
{
    mu_stacks_answer_fini(&r->stacks.answer);
}
