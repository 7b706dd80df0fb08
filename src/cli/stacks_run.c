/*
 * The stacks of a whole run: its server says which round it is in and who is in it, and the store
 * of that round takes the question to all agents (service/agent/stacks.h).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd_stacks.h"
#include "core/alloc.h"
#include "core/reader.h"
#include "service/agent/stacks.h"
#include "service/rdzv/ask.h"
#include "service/rdzv/bootstrap.h"
#include "service/rdzv/muster.h"
#include "service/stacks/summary.h"

#define FIND_MS           10000 /* for the server to say what there is */
#define FINDS_MAX         3     /* times that it is asked: a round may end just then */
#define FLIGHTS_BYTES_MAX ((size_t)1 << 20)
#define FLIGHTS_TAKEN_MAX ((size_t)1 << 30)
#define NAMED_MAX         20 /* nodes that are named one by one: the page stays a page */
#define HERE_ADVICE       "`muster stacks` without --rdzv-endpoint shows the workers of one machine"

struct member {
    char *node;
    char *addr;
    bool answered;
};

struct view {
    struct cli_loop loop;
    const struct stacks_options *o;
    struct mu_rdzv_ask_servers servers;
    char run_id[MU_RDZV_RUN_ID_MAX + 1]; /* "": to be found */
    size_t runs;                         /* that could be meant */
    unsigned finds;
    bool asked; /* the agents of this round were asked before, and none has answered */
    bool moved; /* the run is in another round now */
    char state[32];
    uint64_t incarnation;
    uint64_t round;
    struct mu_addr server;
    struct member *members; /* by rank */
    uint32_t member_count;
    size_t member_cap;
    struct mu_rdzv_round_store store;
    struct mu_stacks_ask ask;
    struct stacks_page page;
    struct mu_buf flights; /* of all answers */
    uint32_t left_out;
    uint32_t cut;
    uint32_t late; /* nodes that have not answered */
    int code;
};

static void find_run(struct view *v);

static void fail(struct view *v, int code)
{
    v->code = code;
    cli_loop_stop(&v->loop);
}

/* --- what is printed -------------------------------------------------------------------------- */

static void put_head_json(struct view *v)
{
    json_t *object = v->page.object;
    json_t *late = json_array();

    for (uint32_t i = 0; i < v->member_count; i++) {
        const struct member *m = &v->members[i];

        if (!m->answered) {
            (void)json_array_append_new(late, json_pack("{s:I, s:s, s:s}", "rank", (json_int_t)i,
                                                        "name", m->node, "addr", m->addr));
        }
    }
    (void)json_object_set_new(object, "run_id", json_string(v->run_id));
    (void)json_object_set_new(object, "round", json_integer((json_int_t)v->round));
    (void)json_object_set_new(object, "nodes", json_integer(v->member_count));
    (void)json_object_set_new(object, "late", late);
    (void)json_object_set_new(object, "world", json_integer(v->page.world));
    (void)json_object_set_new(object, "left_out", json_integer(v->left_out));
    (void)json_object_set_new(object, "cut", json_integer(v->cut));
}

static void say_late(const struct view *v)
{
    uint32_t named = 0;

    for (uint32_t i = 0; i < v->member_count && named < NAMED_MAX; i++) {
        if (!v->members[i].answered) {
            printf("no answer from node %" PRIu32 ": %s at %s\n", i, v->members[i].node,
                   v->members[i].addr);
            named++;
        }
    }
    if (v->late > named) {
        printf("no answer from %" PRIu32 " more nodes\n", v->late - named);
    }
    if (v->late != 0) {
        printf("  a node does not answer if it is stopped, cut off, or an older muster\n");
    }
}

static void say_head(const struct view *v)
{
    printf("run %s, round %" PRIu64 ": %" PRIu32 " of %" PRIu32 " nodes have answered\n", v->run_id,
           v->round, v->member_count - v->late, v->member_count);
    say_late(v);
    if (v->left_out != 0) {
        printf("%" PRIu32 " workers are left out: the answers of their nodes would be too long\n",
               v->left_out);
    }
    if (v->cut != 0) {
        printf("%" PRIu32 " workers are shown with their main thread only, for the same reason\n",
               v->cut);
    }
}

/* A run that moves is never seen at one moment: this is what there was. */
static void show_flights(struct view *v)
{
    struct mu_buf out;

    mu_buf_init(&out, FLIGHTS_BYTES_MAX);
    if (mu_stacks_flights(mu_buf_span(&v->flights), v->o->json, &out) == 0 && v->o->json) {
        (void)json_object_set_new(
            v->page.object, "flights",
            json_loadb((const char *)mu_buf_span(&out).data, out.len, 0, NULL));
    } else if (out.len != 0) {
        (void)fwrite(mu_buf_span(&out).data, 1, out.len, stdout);
    }
    mu_buf_fini(&out);
}

static void show(struct view *v)
{
    int code;

    for (uint32_t i = 0; i < v->member_count; i++) {
        v->late += v->members[i].answered ? 0 : 1;
    }
    if (v->o->json) {
        put_head_json(v);
    } else {
        say_head(v);
    }
    show_flights(v);
    code = stacks_page_print(&v->page);
    v->code = code != 0 ? code : v->late != 0 ? CLI_FAILED : CLI_OK;
}

/* --- the agents ------------------------------------------------------------------------------- */

static void on_answer(void *context, uint32_t node, const struct mu_stacks_answer *answer)
{
    struct view *v = context;
    struct mu_reader r = mu_reader(answer->reports);

    v->members[node].answered = true;
    (void)mu_buf_append(&v->flights, answer->flights);
    v->left_out += answer->left_out;
    v->cut += answer->cut;
    if (answer->world > v->page.world) {
        v->page.world = answer->world;
    }
    while (r.rest.len != 0 && !r.failed) {
        if (stacks_page_add(&v->page, mu_read_span32(&r)) != 0) {
            v->left_out++;
        }
    }
}

static void on_store_closed(void *context)
{
    struct view *v = context;

    if (v->asked) {
        find_run(v);
    } else {
        cli_loop_stop(&v->loop);
    }
}

static void on_asked(struct mu_stacks_ask *ask, int status)
{
    struct view *v = ask->config.context;

    if (status != 0) {
        v->code = cli_fail(cli_exit_code(status), "%s", ask->errmsg.text);
    } else if (ask->answered == 0 && v->finds < FINDS_MAX) {
        v->asked = true; /* The round may be over: the server is asked again. */
    } else {
        show(v);
    }
    mu_store_close(v->store.store, on_store_closed, v);
}

static void ask_agents(struct view *v)
{
    char url[MU_RDZV_STORE_URL_CAP];
    struct mu_errmsg msg = {{0}};
    int err;

    v->asked = false;
    (void)mu_rdzv_store_url(url, &v->server, v->run_id, v->incarnation, v->round);
    err = mu_rdzv_round_store_open(v->loop.env, url, FIND_MS, &v->store, &msg);
    if (err != 0) {
        fail(v, cli_fail(cli_exit_code(err), "%s", msg.text));
        return;
    }
    v->ask.config = (struct mu_stacks_ask_config){
        .env = v->loop.env,
        .store = v->store.store,
        .nodes = v->member_count,
        .timeout_ms = cli_ms(v->o->timeout),
        .all_threads = v->o->all_threads,
        .answer = on_answer,
        .done = on_asked,
        .context = v,
    };
    mu_stacks_ask_start(&v->ask);
}

/* --- the run ---------------------------------------------------------------------------------- */

static void free_members(struct view *v)
{
    for (size_t i = 0; i < v->member_cap; i++) {
        mu_free(v->members[i].node);
        mu_free(v->members[i].addr);
    }
    mu_free(v->members);
    v->members = NULL;
    v->member_count = 0;
    v->member_cap = 0;
}

/* Keeps those with a rank, by rank. False: there is no memory, or the answer makes no sense. */
static bool keep_members(struct view *v, const struct mu_rdzv_run_view *run)
{
    free_members(v);
    v->members = mu_calloc(run->member_count + 1, sizeof(*v->members));
    if (v->members == NULL) {
        return false;
    }
    v->member_cap = run->member_count;
    for (size_t i = 0; i < run->member_count; i++) {
        const struct mu_rdzv_member_view *m = &run->members[i];

        if (m->rank < 0 || strcmp(m->place, "running") != 0) {
            continue;
        }
        if ((uint64_t)m->rank >= run->member_count || v->members[m->rank].node != NULL) {
            return false;
        }
        v->members[m->rank].node = mu_strndup(m->node, strlen(m->node));
        v->members[m->rank].addr = mu_strndup(m->addr, strlen(m->addr));
        v->member_count++;
    }
    for (uint32_t i = 0; i < v->member_count; i++) {
        if (v->members[i].node == NULL || v->members[i].addr == NULL) {
            return false;
        }
    }
    return true;
}

/* Without an id: the one that runs. */
static void note_run(struct view *v, const struct mu_rdzv_run_view *run)
{
    if (strcmp(run->state, "running") == 0) {
        v->runs++;
        (void)snprintf(v->run_id, sizeof(v->run_id), "%s", run->run_id);
    }
}

static void on_run(void *context, const struct mu_rdzv_run_view *run)
{
    struct view *v = context;

    if (v->run_id[0] == '\0' || v->runs != 0) {
        note_run(v, run);
        return;
    }
    v->moved = run->incarnation != v->incarnation || run->round != v->round;
    v->incarnation = run->incarnation;
    v->round = run->round;
    v->server = run->server;
    (void)snprintf(v->state, sizeof(v->state), "%s", run->state);
    if ((!v->asked || v->moved) && !keep_members(v, run)) {
        v->state[0] = '\0';
    }
}

static void on_list(struct view *v)
{
    if (v->runs == 0) {
        fail(v, cli_fail(CLI_NO_KEY, "the server has no run with workers (" HERE_ADVICE ")"));
    } else if (v->runs > 1) {
        fail(v, cli_fail(CLI_USAGE,
                         "the server has %zu runs; name one with --rdzv-id, as `muster "
                         "rdzv status` lists them",
                         v->runs));
    } else {
        v->runs = 0;
        find_run(v);
    }
}

static void on_found(void *context, int status, const char *why)
{
    struct view *v = context;

    if (status == MUSTER_ENOENT) {
        fail(v, cli_fail(CLI_NO_KEY, "the server has no run \"%s\" (" HERE_ADVICE ")", v->run_id));
    } else if (status != 0) {
        fail(v, cli_fail(cli_exit_code(status), "%s (" HERE_ADVICE ")", why));
    } else if (v->run_id[0] == '\0' || v->runs != 0) {
        on_list(v);
    } else if (v->state[0] == '\0') {
        fail(v, cli_fail(CLI_FAILED, "the members of the run \"%s\" cannot be told", v->run_id));
    } else if (strcmp(v->state, "running") != 0 || v->member_count == 0) {
        fail(v, cli_fail(CLI_FAILED, "the run \"%s\" is %s: it has no workers now", v->run_id,
                         v->state));
    } else if (v->asked && !v->moved) {
        show(v);
        cli_loop_stop(&v->loop);
    } else {
        ask_agents(v);
    }
}

static void find_run(struct view *v)
{
    const struct mu_rdzv_ask_events events = {.run = on_run, .done = on_found, .context = v};
    int err;

    v->finds++;
    err = mu_rdzv_ask(v->loop.env, MU_RDZV_ASK_STATUS, &v->servers, v->run_id, FIND_MS, &events);
    if (err != 0) {
        fail(v, cli_fail(cli_exit_code(err), "%s", muster_strerror(err)));
    }
}

static void on_signal(void *context, int number)
{
    (void)context;
    exit(128 + number);
}

int stacks_of_run(const struct stacks_options *o)
{
    struct view v = {.o = o};
    struct mu_errmsg msg = {{0}};
    int count = mu_rdzv_endpoints_parse(o->endpoint, MU_RDZV_PORT, v.servers.addrs,
                                        MU_RDZV_ASK_SERVERS_MAX, &msg);

    if (count < 0) {
        return cli_usage("stacks", "%s", msg.text);
    }
    if (o->run_id != NULL && strlen(o->run_id) > MU_RDZV_RUN_ID_MAX) {
        return cli_usage("stacks", "an id of a run has at most %d bytes", MU_RDZV_RUN_ID_MAX);
    }
    v.servers.count = (size_t)count;
    (void)snprintf(v.run_id, sizeof(v.run_id), "%s", o->run_id == NULL ? "" : o->run_id);
    v.code = cli_loop_open_locked(&v.loop, on_signal, &v, o->lock);
    if (v.code != 0) {
        return v.code;
    }
    stacks_page_init(&v.page, o);
    mu_buf_init(&v.flights, FLIGHTS_TAKEN_MAX);
    find_run(&v);
    cli_loop_run(&v.loop);
    cli_loop_close(&v.loop);
    stacks_page_fini(&v.page);
    mu_buf_fini(&v.flights);
    free_members(&v);
    return v.code;
}
