/* muster rdzv join: joins a run as a node and prints one line for each event. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "cli/cmd_rdzv.h"

#define WAIT_MS      2000  /* until a join says what it waits for */
#define WAIT_STEP_MS 10000 /* and then every so often */

struct join {
    struct cli_loop loop;
    const struct rdzv_options *o;
    struct mu_rdzv_handler *handler;
    struct mu_timer wait; /* for the next line about what a join waits for */
    bool was_in;          /* a round was assigned to this node */
    bool ending;
    int code;
};

/* --- printing --------------------------------------------------------------------------------- */

static json_t *event(const char *name)
{
    json_t *object = json_object();

    (void)json_object_set_new(object, "event", json_string(name));
    return object;
}

/* Names may be any bytes; JSON is text. */
static json_t *text(const char *bytes)
{
    json_t *string = json_string(bytes);

    return string != NULL ? string : json_string("?");
}

static void put(json_t *object, const char *name, json_t *value)
{
    (void)json_object_set_new(object, name, value);
}

static void put_number(json_t *object, const char *name, uint64_t number)
{
    put(object, name, json_integer((json_int_t)number));
}

static void print_event(json_t *object)
{
    (void)json_dumpf(object, stdout, JSON_COMPACT);
    (void)fputc('\n', stdout);
    (void)fflush(stdout);
    json_decref(object);
}

static void print_assigned(const struct mu_rdzv_assignment *a)
{
    json_t *object = event("assigned");
    json_t *members = json_array();

    put_number(object, "round", a->round);
    put_number(object, "rank", a->rank);
    put_number(object, "world_size", a->world);
    for (size_t i = 0; i < a->member_count; i++) {
        json_t *member = json_object();

        put(member, "name", text(a->members[i].name));
        put(member, "addr", text(a->members[i].addr));
        (void)json_array_append_new(members, member);
    }
    put(object, "members", members);
    put(object, "store", text(a->store));
    print_event(object);
}

static void say_assigned(const struct mu_rdzv_assignment *a)
{
    printf("assigned: round %" PRIu64 ", rank %" PRIu32 " of %" PRIu32 ", store %s\n", a->round,
           a->rank, a->world, a->store);
    for (size_t i = 0; i < a->member_count; i++) {
        printf("  %5zu  %s  %s%s\n", i, a->members[i].name, a->members[i].addr,
               i == a->rank ? "  (this node)" : "");
    }
    (void)fflush(stdout);
}

static const char *reason_name(enum mu_rdzv_end_reason reason)
{
    switch (reason) {
    case MU_RDZV_ENDED_LOST:
        return "lost";
    case MU_RDZV_ENDED_LEFT:
        return "left";
    case MU_RDZV_ENDED_UPSCALE:
        return "upscale";
    case MU_RDZV_ENDED_FAILED:
        return "failed";
    case MU_RDZV_ENDED_DROPPED:
        return "dropped";
    }
    return "unknown";
}

static void print_ended(const struct mu_rdzv_ending *e)
{
    json_t *object;

    if (e->reason == MU_RDZV_ENDED_LOST) {
        object = event("lost");
        put_number(object, "round", e->round);
        if (e->who != NULL) {
            put_number(object, "rank", e->who_rank);
            put(object, "name", text(e->who));
        }
        print_event(object);
    }
    object = event("ended");
    put_number(object, "round", e->round);
    put(object, "reason", json_string(reason_name(e->reason)));
    if (e->who != NULL) {
        put_number(object, "rank", e->who_rank);
        put(object, "name", text(e->who));
    }
    put(object, "text", text(e->text));
    print_event(object);
}

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    (void)fflush(stdout);
}

/* --- what happens ----------------------------------------------------------------------------- */

static void arm_wait(struct join *j, uint64_t ms)
{
    mu_env_timer_arm(j->loop.env, &j->wait,
                     ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(mu_env_now(j->loop.env).mono, ms));
}

static void on_wait(struct mu_timer *timer)
{
    struct join *j = MU_CONTAINER_OF(timer, struct join, wait);

    (void)mu_rdzv_explain(j->handler);
    arm_wait(j, WAIT_STEP_MS);
}

static void on_explained(void *context, const char *why)
{
    struct join *j = context;

    cli_log_tell(MUSTER_LOG_INFO, "RDZV-WAITS", -1, NULL, "%s", why);
    if (!cli_log_is_json() && !j->o->quiet) {
        (void)fprintf(stderr, "muster: still waiting: %s\n", why);
    }
}

static void begin_join(struct join *j)
{
    arm_wait(j, WAIT_MS);
    mu_rdzv_join(j->handler);
}

/* Ends the process in order, with this exit code unless there is one already. */
static void finish(struct join *j, int code)
{
    if (!j->ending) {
        j->ending = true;
        j->code = code;
        arm_wait(j, 0);
        mu_rdzv_free(j->handler);
    }
}

static void on_assigned(void *context, const struct mu_rdzv_assignment *a)
{
    struct join *j = context;

    j->was_in = true;
    arm_wait(j, 0);
    cli_log_place(j->o->run_id, (int64_t)a->round, a->rank);
    cli_log_tell(MUSTER_LOG_INFO, "ROUND-BEGAN", -1,
                 json_pack("{s:I, s:o}", "world_size", (json_int_t)a->world, "store",
                           cli_log_text(a->store)),
                 "round %" PRIu64 ": rank %" PRIu32 " of %" PRIu32, a->round, a->rank, a->world);
    if (j->o->json) {
        print_assigned(a);
    } else {
        say_assigned(a);
    }
}

static void on_ended(void *context, const struct mu_rdzv_ending *ending)
{
    struct join *j = context;

    cli_log_tell(MUSTER_LOG_INFO, "ROUND-ENDED", -1,
                 json_pack("{s:s, s:o}", "reason", reason_name(ending->reason), "node",
                           ending->who == NULL ? json_null() : cli_log_text(ending->who)),
                 "%s", ending->text);
    cli_log_place(j->o->run_id, -1, -1);
    if (j->o->json) {
        print_ended(ending);
    } else {
        say("ended: %s\n", ending->text);
    }
    if (j->o->rejoin) {
        begin_join(j);
    } else if (ending->reason == MU_RDZV_ENDED_DROPPED) {
        finish(j, CLI_FAILED);
    } else {
        j->code = CLI_OK;
        mu_rdzv_leave(j->handler);
    }
}

static void on_waiting(void *context, uint32_t count)
{
    struct join *j = context;

    if (j->o->json) {
        json_t *object = event("waiting");

        put_number(object, "count", count);
        print_event(object);
    } else {
        say("waiting: %" PRIu32 " nodes\n", count);
    }
}

static void say_closed(const struct join *j, const char *why)
{
    cli_log_tell(MUSTER_LOG_INFO, "RUN-CLOSED", -1, NULL, "%s", why);
    if (j->o->json) {
        json_t *object = event("closed");

        put(object, "text", text(why));
        print_event(object);
    } else {
        say("closed: %s\n", why);
    }
}

static void on_closed(void *context)
{
    struct join *j = context;

    say_closed(j, "the run is over");
    finish(j, CLI_OK);
}

static void on_failed(void *context, int status, const char *why)
{
    struct join *j = context;

    if (status == MUSTER_ERDZV_CLOSED || status == MUSTER_ERDZV_GRACEFUL) {
        /* For a node that took part, the end of the run is not a failure. */
        say_closed(j, why);
        finish(j, j->was_in ? CLI_OK : cli_exit_code(status));
        return;
    }
    if (j->o->json) {
        json_t *object = event("failed");

        put(object, "error", json_string(muster_errname(status)));
        put(object, "text", text(why));
        print_event(object);
    }
    finish(j, cli_fail(cli_exit_code(status), "%s", why));
}

static void on_left(void *context)
{
    struct join *j = context;

    cli_log_tell(MUSTER_LOG_INFO, "LEFT", -1, NULL, "left the rendezvous");
    if (j->o->json) {
        print_event(event("left"));
    } else {
        say("left\n");
    }
    finish(j, j->code);
}

static void on_close_failed(void *context, int status, const char *why)
{
    (void)context;
    (void)status;
    (void)why;
}

static void on_record(void *context, const struct mu_rdzv_record *record)
{
    struct join *j = context;
    const char *dot = strchr(record->name, '.');
    bool host = dot != NULL && (strcmp(dot, ".host") == 0 || strcmp(dot, ".trouble") == 0);

    cli_log_tell(host ? MUSTER_LOG_INFO : MUSTER_LOG_DEBUG, "RDZV-STEP", record->rank,
                 json_pack("{s:s, s:o}", "name", record->name, "node", cli_log_text(record->node)),
                 "%s", record->message);
    if (cli_log_is_json()) {
        return;
    }
    if (j->o->verbose) {
        (void)fprintf(stderr, "muster: %s: %s\n", record->name, record->message);
    } else if (host && !j->o->quiet) {
        (void)fprintf(stderr, "muster: %s\n", record->message);
    }
}

static void on_freed(void *context)
{
    struct join *j = context;

    cli_loop_stop(&j->loop);
}

static void on_signal(void *context, int number)
{
    struct join *j = context;

    (void)number;
    if (!j->ending) {
        arm_wait(j, 0);
        mu_rdzv_leave(j->handler);
    }
}

int rdzv_join(const struct rdzv_options *o)
{
    struct join j = {.o = o};
    const struct mu_rdzv_events events = {
        .assigned = on_assigned,
        .ended = on_ended,
        .waiting = on_waiting,
        .explained = on_explained,
        .closed = on_closed,
        .failed = on_failed,
        .left = on_left,
        .close_failed = on_close_failed,
        .record = on_record,
        .freed = on_freed,
        .context = &j,
    };
    struct mu_rdzv_params params = {
        .backend = o->backend,
        .endpoint = o->endpoint,
        .run_id = o->run_id,
        .local_addr = o->local_addr,
        .config = o->config,
    };
    struct mu_errmsg msg = {{0}};
    int err = rdzv_parse_nnodes(o->nnodes, &params.nodes_min, &params.nodes_max);

    if (err != 0) {
        return err;
    }
    err = cli_loop_open_locked(&j.loop, on_signal, &j, o->lock);
    if (err != 0) {
        return err;
    }
    err = mu_rdzv_open(j.loop.env, &params, &events, &j.handler, &msg);
    if (err != 0) {
        cli_loop_close(&j.loop);
        return cli_fail(cli_exit_code(err), "%s", msg.text);
    }
    mu_timer_init(&j.wait, on_wait);
    begin_join(&j);
    cli_loop_run(&j.loop);
    cli_loop_close(&j.loop);
    return j.code;
}
