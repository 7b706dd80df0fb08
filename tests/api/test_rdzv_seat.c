/*
 * Goal: the public handler does what its header says at each step of a rendezvous, whatever comes
 * in between and from whichever thread. Method: a backend that does only what the test tells it to
 * stands in for ours, so that every order of events can be had.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>
#include <muster/muster.h>

#include "api/rdzv_api.h"
#include "failheap.h"

/* --- the backend ------------------------------------------------------------------------------ */

#define AUTO_ASSIGN 1u /* a join is answered with round 0, as its only member */
#define MUTE        2u /* says nothing to a leave */

struct fake {
    struct mu_rdzv_handler h;
    struct mu_timer left;
    struct mu_timer assigned;
    struct mu_timer freed;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int joins; /* under the lock, as the rest */
    int leaves;
    int close_runs;
};

static struct fake *fake;      /* the last one opened */
static unsigned fake_manner;   /* of those to come */
static const char *fake_store; /* what AUTO_ASSIGN says */

static void count(struct fake *f, int *what)
{
    (void)pthread_mutex_lock(&f->lock);
    ++*what;
    (void)pthread_cond_broadcast(&f->cond);
    (void)pthread_mutex_unlock(&f->lock);
}

static void wait_count(struct fake *f, const int *what, int least)
{
    (void)pthread_mutex_lock(&f->lock);
    while (*what < least) {
        (void)pthread_cond_wait(&f->cond, &f->lock);
    }
    (void)pthread_mutex_unlock(&f->lock);
}

static void soon(struct fake *f, struct mu_timer *timer)
{
    mu_env_timer_arm(f->h.env, timer, mu_env_now(f->h.env).mono);
}

static void on_left_timer(struct mu_timer *timer)
{
    struct fake *f = MU_CONTAINER_OF(timer, struct fake, left);

    f->h.events.left(f->h.events.context);
}

static void on_assigned_timer(struct mu_timer *timer)
{
    struct fake *f = MU_CONTAINER_OF(timer, struct fake, assigned);

    f->h.events.assigned(f->h.events.context, &(struct mu_rdzv_assignment){
                                                  .world = 1,
                                                  .restarts_left = UINT32_MAX,
                                                  .store = fake_store,
                                              });
}

static void on_freed_timer(struct mu_timer *timer)
{
    struct fake *f = MU_CONTAINER_OF(timer, struct fake, freed);

    f->h.events.freed(f->h.events.context);
}

static void fake_join(struct mu_rdzv_handler *h)
{
    struct fake *f = MU_CONTAINER_OF(h, struct fake, h);

    h->events.record(h->events.context, &(struct mu_rdzv_record){
                                            .name = "fake.join",
                                            .run_id = h->run_id,
                                            .message = "a \"quoted\"\n\x80 line \xe2\x82\xac",
                                            .node = "n\\1",
                                            .state = MU_RDZV_RECORD_RUNNING,
                                            .rank = -1,
                                        });
    if ((fake_manner & AUTO_ASSIGN) != 0) {
        soon(f, &f->assigned);
    }
    count(f, &f->joins);
}

static void fake_leave(struct mu_rdzv_handler *h)
{
    struct fake *f = MU_CONTAINER_OF(h, struct fake, h);

    if ((fake_manner & MUTE) == 0) {
        soon(f, &f->left);
    }
    count(f, &f->leaves);
}

static void fake_close_run(struct mu_rdzv_handler *h)
{
    struct fake *f = MU_CONTAINER_OF(h, struct fake, h);

    count(f, &f->close_runs);
}

static void fake_free(struct mu_rdzv_handler *h)
{
    struct fake *f = MU_CONTAINER_OF(h, struct fake, h);

    soon(f, &f->freed);
}

int mu_rdzv_open(struct mu_env *env, const struct mu_rdzv_params *params,
                 const struct mu_rdzv_events *events, struct mu_rdzv_handler **ret_handler,
                 struct mu_errmsg *reterr_msg)
{
    static const struct mu_rdzv_handler_ops ops = {
        .join = fake_join,
        .leave = fake_leave,
        .close_run = fake_close_run,
        .free = fake_free,
    };

    if (params->nodes_max == 666) {
        return mu_err(reterr_msg, MUSTER_EADDR, "the fake has no address");
    }
    fake->h = (struct mu_rdzv_handler){.ops = &ops, .env = env, .events = *events};
    (void)snprintf(fake->h.run_id, sizeof(fake->h.run_id), "%s", params->run_id);
    (void)snprintf(fake->h.addr, sizeof(fake->h.addr), "127.0.0.1");
    mu_timer_init(&fake->left, on_left_timer);
    mu_timer_init(&fake->assigned, on_assigned_timer);
    mu_timer_init(&fake->freed, on_freed_timer);
    *ret_handler = &fake->h;
    return 0;
}

/* --- what the test tells it ------------------------------------------------------------------- */

static muster_runtime *rt;
static muster_server *server;
static char url[128];

struct order {
    struct mu_door door;
    void (*run)(const struct mu_rdzv_events *events, const void *what);
    const void *what;
};

static void run_order(struct mu_door *door)
{
    struct order *o = MU_CONTAINER_OF(door, struct order, door);

    o->run(&fake->h.events, o->what);
    mu_door_open(door);
}

static void tell(void (*run)(const struct mu_rdzv_events *events, const void *what),
                 const void *what)
{
    struct order o = {.run = run, .what = what};

    mu_door_pass(rt, &o.door, run_order);
}

static void tell_assigned(const struct mu_rdzv_events *e, const void *what)
{
    e->assigned(e->context, what);
}

static void tell_ended(const struct mu_rdzv_events *e, const void *what)
{
    e->ended(e->context, what);
}

static void tell_waiting(const struct mu_rdzv_events *e, const void *what)
{
    e->waiting(e->context, *(const uint32_t *)what);
}

static void tell_closed(const struct mu_rdzv_events *e, const void *what)
{
    (void)what;
    e->closed(e->context);
}

static void tell_failed(const struct mu_rdzv_events *e, const void *what)
{
    e->failed(e->context, MUSTER_ERDZV_TIMEOUT, what);
}

static void tell_close_failed(const struct mu_rdzv_events *e, const void *what)
{
    e->close_failed(e->context, MUSTER_ERDZV_CONN, what);
}

static void assign(uint64_t round, uint32_t rank)
{
    static const struct mu_rdzv_peer members[] = {{"node0", "127.0.0.1"}, {"node1", "addr1"}};
    char store[160];

    (void)snprintf(store, sizeof(store), "%s?prefix=torch.rendezvous.job.%u", url, (unsigned)round);
    tell(tell_assigned, &(struct mu_rdzv_assignment){
                            .incarnation = 3,
                            .round = round,
                            .rank = rank,
                            .world = 2,
                            .restarts_left = 5,
                            .member_count = 2,
                            .members = members,
                            .store = store,
                        });
}

static const struct mu_rdzv_ending lost = {
    .reason = MU_RDZV_ENDED_LOST, .who = "node1", .who_rank = 1, .text = "node1 was lost"};

/* --- threads ---------------------------------------------------------------------------------- */

struct caller {
    pthread_t thread;
    muster_rdzv *rdzv;
    int (*call)(struct caller *c);
    int status;
    char text[256];
    struct muster_rdzv_info info;
};

static void *run_caller(void *context)
{
    struct caller *c = context;

    c->status = c->call(c);
    (void)snprintf(c->text, sizeof(c->text), "%s", muster_errmsg());
    return NULL;
}

static void start(struct caller *c, muster_rdzv *rdzv, int (*call)(struct caller *c))
{
    c->rdzv = rdzv;
    c->call = call;
    assert_int_equal(pthread_create(&c->thread, NULL, run_caller, c), 0);
}

static int finish(struct caller *c)
{
    assert_int_equal(pthread_join(c->thread, NULL), 0);
    return c->status;
}

static int call_next(struct caller *c)
{
    return muster_rdzv_next(c->rdzv, &c->info);
}

static int call_set_closed(struct caller *c)
{
    return muster_rdzv_set_closed(c->rdzv);
}

static int call_ended(struct caller *c)
{
    return muster_rdzv_ended(c->rdzv, MUSTER_RDZV_FOREVER);
}

static int call_event(struct caller *c)
{
    struct muster_rdzv_event event;

    return muster_rdzv_wait_event(c->rdzv, MUSTER_RDZV_FOREVER, &event);
}

static struct muster_rdzv_params params(uint32_t flags)
{
    return (struct muster_rdzv_params){.backend = "muster",
                                       .endpoint = "127.0.0.1:1",
                                       .run_id = "job",
                                       .nodes_min = 1,
                                       .nodes_max = 2,
                                       .flags = flags};
}

static void fresh_fake(void)
{
    fake = calloc(1, sizeof(*fake));
    assert_non_null(fake);
    (void)pthread_mutex_init(&fake->lock, NULL);
    (void)pthread_cond_init(&fake->cond, NULL);
}

static void free_fake(void)
{
    (void)pthread_cond_destroy(&fake->cond);
    (void)pthread_mutex_destroy(&fake->lock);
    free(fake);
}

static muster_rdzv *open_flagged(uint32_t flags)
{
    struct muster_rdzv_params p = params(flags);
    muster_rdzv *rdzv = NULL;

    fresh_fake();
    assert_int_equal(muster_rdzv_open(rt, &p, &rdzv), 0);
    return rdzv;
}

static muster_rdzv *open_one(void)
{
    return open_flagged(0);
}

/* In round 0, as rank 0. */
static muster_rdzv *open_in_round(struct muster_rdzv_info *ret_info)
{
    muster_rdzv *rdzv = open_one();
    struct caller c;

    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    assign(0, 0);
    assert_int_equal(finish(&c), 0);
    *ret_info = c.info;
    return rdzv;
}

static void close_one(muster_rdzv *rdzv, int leaves)
{
    muster_rdzv_close(rdzv);
    assert_int_equal(fake->leaves, leaves);
    free_fake();
}

static void assert_says(const char *text, const char *word)
{
    if (strstr(text, word) == NULL) {
        fail_msg("no '%s' in: %s", word, text);
    }
}

/* --- a round ---------------------------------------------------------------------------------- */

static void test_rdzv_next_returns_what_was_assigned(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv = open_in_round(&info);
    struct muster_value value;
    muster_store *bootstrap;
    char text[64];

    (void)state;
    assert_string_equal(muster_rdzv_backend(rdzv), "muster");
    assert_string_equal(muster_rdzv_run_id(rdzv), "job");
    assert_int_equal(info.round, 0);
    assert_int_equal(info.incarnation, 3);
    assert_int_equal(info.rank, 0);
    assert_int_equal(info.world_size, 2);
    assert_int_equal(info.restarts_left, 5);
    assert_int_equal(info.member_count, 2);
    assert_string_equal(info.members[1], "node1");
    assert_string_equal(info.member_addrs[1], "addr1");
    assert_says(info.store_url, "?prefix=torch.rendezvous.job.0");

    assert_int_equal(muster_store_set(info.store, muster_str("k"), muster_str("v"), 5000), 0);
    assert_int_equal(muster_store_get(info.store, muster_str("MASTER_PORT"), &value, 5000), 0);
    (void)snprintf(text, sizeof(text), "%u", info.bootstrap_port);
    assert_string_equal(value.data, text);
    muster_value_free(&value);
    assert_string_equal(info.bootstrap_addr, "127.0.0.1");
    assert_true(muster_rdzv_use_agent_store(rdzv));
    (void)snprintf(text, sizeof(text), "tcp://127.0.0.1:%u", info.bootstrap_port);
    assert_int_equal(muster_store_open(rt, text, NULL, &bootstrap), 0);
    muster_store_close(bootstrap);
    close_one(rdzv, 1);
    assert_int_not_equal(
        muster_store_open(rt, text, &(struct muster_store_config){1000, 300}, &bootstrap), 0);
}

static void test_rdzv_flags_leave_out_what_is_not_wanted(void **state)
{
    muster_rdzv *rdzv = open_flagged(MUSTER_RDZV_NO_STORE);
    struct caller c;

    (void)state;
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    assign(4, 1);
    assert_int_equal(finish(&c), 0);
    assert_null(c.info.store);
    assert_string_equal(c.info.bootstrap_addr, "");
    assert_int_equal(c.info.rank, 1);
    close_one(rdzv, 1);

    rdzv = open_flagged(MUSTER_RDZV_NO_BOOTSTRAP);
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    assign(4, 1); /* Nobody publishes anything. */
    assert_int_equal(finish(&c), 0);
    assert_int_equal(muster_store_set(c.info.store, muster_str("k"), muster_str("v"), 5000), 0);
    close_one(rdzv, 1);
}

static void test_rdzv_next_goes_on_when_a_round_ends_before_it_is_open(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct caller c;

    (void)state;
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    assign(10, 1); /* Its rank 0 publishes nothing: it is the one that is lost. */
    tell(tell_ended, &lost);
    wait_count(fake, &fake->joins, 2);
    assign(11, 0);
    assert_int_equal(finish(&c), 0);
    assert_int_equal(c.info.round, 11);
    close_one(rdzv, 1);
}

static void test_rdzv_next_leaves_a_round_whose_store_is_none(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct caller c;

    (void)state;
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    tell(tell_assigned, &(struct mu_rdzv_assignment){.world = 1, .store = "nonsense"});
    assert_int_equal(finish(&c), MUSTER_ERDZV_STATE);
    assert_says(c.text, "URL");
    assert_int_equal(fake->leaves, 1);
    close_one(rdzv, 1); /* It is out: nothing to leave. */
}

static void test_rdzv_next_leaves_the_round_it_is_in(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv = open_in_round(&info);
    struct caller waits;
    struct caller c;

    (void)state;
    start(&waits, rdzv, call_ended);
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 2);
    assert_int_equal(finish(&waits), 0);
    assert_says(waits.text, "next round");
    assign(1, 0);
    assert_int_equal(finish(&c), 0);
    assert_int_equal(c.info.round, 1);
    assert_int_not_equal(c.info.bootstrap_port, 0);
    close_one(rdzv, 1);
}

static void test_rdzv_next_fails_with_the_words_of_the_backend_and_can_be_tried_again(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct caller c;

    (void)state;
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    tell(tell_failed, "1 of 2 nodes joined; missing: node1");
    assert_int_equal(finish(&c), MUSTER_ERDZV_TIMEOUT);
    assert_string_equal(c.text, "1 of 2 nodes joined; missing: node1");
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 2);
    assign(7, 0);
    assert_int_equal(finish(&c), 0);
    close_one(rdzv, 1);
}

/* --- what happens in a round ------------------------------------------------------------------ */

static void test_rdzv_ended_wakes_and_says_why(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv = open_in_round(&info);
    struct muster_rdzv_event event;
    struct caller c;
    uint32_t n = 2;

    (void)state;
    assert_int_equal(muster_rdzv_ended(rdzv, 0), MUSTER_ETIMEDOUT);
    assert_int_equal(muster_rdzv_ended(rdzv, 5), MUSTER_ETIMEDOUT);
    assert_int_equal(muster_rdzv_ended(rdzv, -2), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_wait_event(rdzv, 0, &event), MUSTER_ETIMEDOUT);
    tell(tell_waiting, &n);
    assert_int_equal(muster_rdzv_num_nodes_waiting(rdzv, &n), 0);
    assert_int_equal(n, 2);
    assert_int_equal(muster_rdzv_wait_event(rdzv, -1, &event), 0);
    assert_int_equal(event.kind, MUSTER_RDZV_EVENT_WAITING);
    assert_int_equal(event.waiting, 2);
    assert_string_equal(event.text, "2 nodes wait to be let in");

    start(&c, rdzv, call_ended);
    tell(tell_ended, &lost);
    assert_int_equal(finish(&c), 0);
    assert_string_equal(c.text, "node1 was lost");
    assert_int_equal(muster_rdzv_num_nodes_waiting(rdzv, &n), 0);
    assert_int_equal(n, 0);
    assert_int_equal(muster_rdzv_wait_event(rdzv, -1, &event), 0);
    assert_int_equal(event.kind, MUSTER_RDZV_EVENT_ENDED);
    assert_int_equal(event.reason, MUSTER_RDZV_ENDED_LOST);
    assert_string_equal(event.who, "node1");
    assert_int_equal(event.who_rank, 1);
    assert_int_equal(muster_rdzv_wait_event(rdzv, 0, &event), MUSTER_ETIMEDOUT);
    /* What was lent is still there. */
    assert_int_equal(muster_store_set(info.store, muster_str("k"), muster_str("v"), 5000), 0);
    close_one(rdzv, 1);
}

static void test_rdzv_member_that_is_out_is_told_and_need_not_leave(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv = open_in_round(&info);
    struct muster_rdzv_event event;

    (void)state;
    tell(tell_failed, "out of touch");
    assert_int_equal(muster_rdzv_ended(rdzv, -1), 0);
    assert_string_equal(muster_errmsg(), "out of touch");
    assert_int_equal(muster_rdzv_wait_event(rdzv, -1, &event), 0);
    assert_int_equal(event.reason, MUSTER_RDZV_ENDED_OUT);
    assert_int_equal(event.status, MUSTER_ERDZV_TIMEOUT);
    assert_null(event.who);
    close_one(rdzv, 0);
}

static void test_rdzv_asks_nothing_of_a_round_that_never_began(void **state)
{
    muster_rdzv *rdzv = open_one();
    bool closed = true;
    uint32_t n = 7;

    (void)state;
    assert_int_equal(muster_rdzv_ended(rdzv, -1), 0);
    assert_says(muster_errmsg(), "no round");
    assert_int_equal(muster_rdzv_is_closed(rdzv, &closed), 0);
    assert_false(closed);
    assert_int_equal(muster_rdzv_num_nodes_waiting(rdzv, &n), 0);
    assert_int_equal(n, 0);
    close_one(rdzv, 0);
}

/* --- closing the run -------------------------------------------------------------------------- */

static void test_rdzv_set_closed_is_waited_for_by_all_who_ask(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv = open_in_round(&info);
    struct muster_rdzv_event event;
    struct caller a;
    struct caller b;
    struct caller waits;
    bool closed;

    (void)state;
    start(&waits, rdzv, call_ended);
    start(&a, rdzv, call_set_closed);
    start(&b, rdzv, call_set_closed);
    wait_count(fake, &fake->close_runs, 1);
    tell(tell_closed, NULL);
    assert_int_equal(finish(&a), 0);
    assert_int_equal(finish(&b), 0);
    assert_int_equal(fake->close_runs, 1);
    assert_int_equal(finish(&waits), 0);
    assert_says(waits.text, "closed");
    assert_int_equal(muster_rdzv_is_closed(rdzv, &closed), 0);
    assert_true(closed);
    assert_true(muster_rdzv_shutdown(rdzv));
    assert_int_equal(fake->close_runs, 1);
    assert_int_equal(muster_rdzv_wait_event(rdzv, -1, &event), 0);
    assert_int_equal(event.kind, MUSTER_RDZV_EVENT_ENDED);
    assert_int_equal(event.reason, MUSTER_RDZV_ENDED_CLOSED);
    assert_int_equal(muster_rdzv_wait_event(rdzv, -1, &event), 0);
    assert_int_equal(event.kind, MUSTER_RDZV_EVENT_CLOSED);
    close_one(rdzv, 0);
}

static void test_rdzv_set_closed_says_that_it_did_not_work(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct caller c;

    (void)state;
    start(&c, rdzv, call_set_closed);
    wait_count(fake, &fake->close_runs, 1);
    tell(tell_close_failed, "nobody answers");
    assert_int_equal(finish(&c), MUSTER_ERDZV_CONN);
    assert_string_equal(c.text, "nobody answers");
    close_one(rdzv, 0);
}

static void test_rdzv_next_ends_when_the_run_is_closed_while_a_round_is_opened(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct caller c;

    (void)state;
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    assign(20, 1);
    tell(tell_closed, NULL);
    assert_int_equal(finish(&c), MUSTER_ERDZV_CLOSED);
    close_one(rdzv, 0);
}

/* --- closing the handler ---------------------------------------------------------------------- */

/* Until so many threads are inside a call: none may begin one when it is closed. */
static void wait_callers(muster_rdzv *rdzv, unsigned number)
{
    struct mu_rdzv_seat *s = rdzv->context;
    unsigned callers;

    do {
        (void)sched_yield();
        (void)pthread_mutex_lock(&s->lock);
        callers = s->callers;
        (void)pthread_mutex_unlock(&s->lock);
    } while (callers != number);
}

static void *run_close(void *context)
{
    muster_rdzv_close(context);
    return NULL;
}

static void test_rdzv_close_ends_every_call_of_other_threads(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv = open_in_round(&info);
    struct caller ended;
    struct caller event;
    struct caller closes;
    pthread_t thread;

    (void)state;
    start(&ended, rdzv, call_ended);
    start(&event, rdzv, call_event);
    start(&closes, rdzv, call_set_closed);
    wait_count(fake, &fake->close_runs, 1);
    wait_callers(rdzv, 3);
    assert_int_equal(pthread_create(&thread, NULL, run_close, rdzv), 0);
    assert_int_equal(finish(&ended), MUSTER_ECLOSED);
    assert_int_equal(finish(&event), MUSTER_ECLOSED);
    assert_int_equal(finish(&closes), MUSTER_ECLOSED);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(fake->leaves, 1);
    free_fake();
}

static void test_rdzv_close_interrupts_next(void **state)
{
    struct caller c;

    (void)state;
    for (int opening = 0; opening < 2; opening++) {
        muster_rdzv *rdzv = open_one();

        start(&c, rdzv, call_next);
        wait_count(fake, &fake->joins, 1);
        if (opening != 0) {
            assign(30, 1);
        }
        muster_rdzv_close(rdzv);
        assert_int_equal(finish(&c), MUSTER_ECLOSED);
        assert_says(c.text, "muster_rdzv_close");
        assert_int_equal(fake->leaves, 1);
        free_fake();
    }
}

static void test_rdzv_close_waits_for_no_farewell_for_ever(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv = open_in_round(&info);

    (void)state;
    fake_manner = MUTE;
    close_one(rdzv, 1);
    fake_manner = 0;
}

static void test_rdzv_next_is_for_one_thread_at_a_time(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct muster_rdzv_info info;
    struct caller c;

    (void)state;
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    assert_int_equal(muster_rdzv_next(rdzv, &info), MUSTER_EBUSY);
    assign(40, 0);
    assert_int_equal(finish(&c), 0);
    close_one(rdzv, 1);
}

struct on_loop {
    struct mu_door door;
    muster_rdzv *rdzv;
    int status[5];
};

static void call_on_loop(struct mu_door *door)
{
    struct on_loop *o = MU_CONTAINER_OF(door, struct on_loop, door);
    struct muster_rdzv_params p = params(0);
    struct muster_rdzv_event event;
    struct muster_rdzv_info info;
    muster_rdzv *other;

    o->status[0] = muster_rdzv_next(o->rdzv, &info);
    o->status[1] = muster_rdzv_set_closed(o->rdzv);
    o->status[2] = muster_rdzv_ended(o->rdzv, 1);
    o->status[3] = muster_rdzv_wait_event(o->rdzv, 1, &event);
    o->status[4] = muster_rdzv_open(rt, &p, &other);
    mu_door_open(door);
}

static void test_rdzv_calls_on_the_runtimes_thread_are_refused(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct on_loop o = {.rdzv = rdzv};

    (void)state;
    mu_door_pass(rt, &o.door, call_on_loop);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(o.status[i], MUSTER_EINVAL);
    }
    close_one(rdzv, 0);
}

static void test_rdzv_open_fails_with_the_words_of_the_backend(void **state)
{
    struct muster_rdzv_params p = params(0);
    muster_rdzv *rdzv;

    (void)state;
    p.nodes_max = 666;
    assert_int_equal(muster_rdzv_open(rt, &p, &rdzv), MUSTER_EADDR);
    assert_string_equal(muster_errmsg(), "the fake has no address");
    p = params(8);
    assert_int_equal(muster_rdzv_open(rt, &p, &rdzv), MUSTER_EINVAL);
    assert_says(muster_errmsg(), "flag");
}

static void test_rdzv_sharing_can_be_turned_off_as_with_pytorch(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv;
    muster_store *bootstrap;
    char text[64];

    (void)state;
    assert_int_equal(setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", 1), 0);
    rdzv = open_in_round(&info);
    assert_int_equal(unsetenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE"), 0);
    assert_false(muster_rdzv_use_agent_store(rdzv));
    assert_int_not_equal(info.bootstrap_port, 0);
    (void)snprintf(text, sizeof(text), "tcp://127.0.0.1:%u", info.bootstrap_port);
    assert_int_not_equal(
        muster_store_open(rt, text, &(struct muster_store_config){1000, 300}, &bootstrap), 0);
    close_one(rdzv, 1);
}

/* --- the record ------------------------------------------------------------------------------- */

struct seen {
    int count;
    char name[32];
    char host[256];
    int64_t pid;
    int64_t rank;
    int64_t time_us;
    enum muster_rdzv_state state;
};

static void see(const struct muster_rdzv_record *r, void *context)
{
    struct seen *s = context;

    s->count++;
    (void)snprintf(s->name, sizeof(s->name), "%s", r->name);
    (void)snprintf(s->host, sizeof(s->host), "%s", r->host);
    s->pid = r->pid;
    s->rank = r->rank;
    s->time_us = r->time_us;
    s->state = r->state;
}

static void test_rdzv_sink_gets_every_record(void **state)
{
    struct seen seen = {0};
    struct muster_rdzv_info info;
    muster_rdzv *rdzv;
    char host[256] = "";

    (void)state;
    muster_rdzv_set_sink(see, &seen);
    rdzv = open_in_round(&info);
    muster_rdzv_set_sink(NULL, NULL); /* From here on `seen` is ours again. */
    assert_int_equal(gethostname(host, sizeof(host) - 1), 0);
    assert_int_equal(seen.count, 1);
    assert_string_equal(seen.name, "fake.join");
    assert_string_equal(seen.host, host);
    assert_int_equal(seen.pid, getpid());
    assert_int_equal(seen.rank, -1);
    assert_int_equal(seen.state, MUSTER_RDZV_RUNNING);
    assert_true(seen.time_us > INT64_C(1600000000000000));
    close_one(rdzv, 1);
}

static const char *text_of(json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));

    return text == NULL ? "(none)" : text;
}

static void test_rdzv_sink_json_writes_lines_that_parse(void **state)
{
    struct muster_rdzv_record all = {.name = "x",
                                     .run_id = "r",
                                     .message = NULL,
                                     .host = "h",
                                     .pid = 9,
                                     .state = MUSTER_RDZV_FAILED,
                                     .rank = 3,
                                     .time_us = 1700000000000042};
    struct muster_rdzv_info info;
    char *text = NULL;
    size_t len = 0;
    FILE *file = open_memstream(&text, &len);
    char bytes[256];
    muster_rdzv *rdzv;
    json_t *line;
    char *next;

    (void)state;
    assert_non_null(file);
    muster_rdzv_set_sink(muster_rdzv_sink_json, file);
    rdzv = open_in_round(&info);
    muster_rdzv_set_sink(NULL, NULL);
    for (int i = 1; i < 256; i++) {
        bytes[i - 1] = (char)i;
    }
    bytes[255] = '\0';
    all.node = bytes;
    muster_rdzv_sink_json(&all, file);
    /* Cut off, too long for what they say, a surrogate, beyond the last one; and good ones. */
    all.node = "\xe2\x82|\xc0\x80|\xe0\x80\x80|\xed\xa0\x80|\xf4\x90\x80\x80|\xf0\x9f\x98\x80|"
               "\xc3\xa9|\xf0\x9f";
    muster_rdzv_sink_json(&all, file);
    assert_int_equal(fclose(file), 0);

    next = strchr(text, '\n');
    assert_non_null(next);
    line = json_loadb(text, (size_t)(next - text), 0, NULL);
    assert_non_null(line);
    assert_string_equal(text_of(line, "name"), "fake.join");
    assert_string_equal(text_of(line, "run_id"), "job");
    assert_string_equal(text_of(line, "message"), "a \"quoted\"\n\xef\xbf\xbd line \xe2\x82\xac");
    assert_string_equal(text_of(line, "node"), "n\\1");
    assert_string_equal(text_of(line, "node_state"), "RUNNING");
    assert_true(json_is_null(json_object_get(line, "rank")));
    assert_int_equal(json_integer_value(json_object_get(line, "pid")), getpid());
    json_decref(line);

    text[next - text] = '\0';
    line = json_loads(next + 1, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(line);
    assert_int_equal(json_integer_value(json_object_get(line, "rank")), 3);
    assert_true(json_real_value(json_object_get(line, "time")) > 1.6e9);
    assert_int_equal(strncmp(text_of(line, "node"), "\x01\x02\x03\x04\x05\x06\x07\b\t\n", 10), 0);
    json_decref(line);
    line = json_loads(strchr(next + 1, '\n') + 1, 0, NULL);
    assert_non_null(line);
#define BAD "\xef\xbf\xbd"
    assert_string_equal(text_of(line, "node"),
                        BAD BAD "|" BAD BAD "|" BAD BAD BAD "|" BAD BAD BAD "|" BAD BAD BAD BAD
                                "|\xf0\x9f\x98\x80|\xc3\xa9|" BAD BAD);
    json_decref(line);
    free(text);
    close_one(rdzv, 1);
}

/* --- no memory -------------------------------------------------------------------------------- */

static void test_rdzv_bears_a_failure_of_each_allocation(void **state)
{
    bool fired = true;

    (void)state;
    fake_manner = AUTO_ASSIGN;
    fake_store = "hash:?prefix=torch.rendezvous.job.0";
    for (long nth = 0; fired; nth++) {
        struct muster_rdzv_params p = params(0);
        struct muster_rdzv_info info;
        muster_rdzv *rdzv = NULL;
        int err;

        fresh_fake();
        failheap_arm(nth);
        err = muster_rdzv_open(rt, &p, &rdzv);
        if (err == 0) {
            err = muster_rdzv_next(rdzv, &info);
            muster_rdzv_close(rdzv);
        }
        fired = failheap_fired();
        failheap_disarm();
        /* A server that has no memory to listen with says that it cannot use its address. */
        if (err != 0 && err != MUSTER_ENOMEM && err != MUSTER_EADDR) {
            fail_msg("allocation %ld: %s", nth, muster_strerror(err));
        }
        assert_true(fired || err == 0);
        assert_true(nth < 1000);
        free_fake();
    }
    fake_manner = 0;
}

/* ---------------------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    struct muster_server_config config = muster_server_config_defaults();

    (void)state;
    config.listen = "127.0.0.1:0";
    if (muster_runtime_new(&rt) != 0 || muster_server_start(rt, &config, &server) != 0) {
        return -1;
    }
    (void)snprintf(url, sizeof(url), "tcp://%s", muster_server_address(server));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    muster_server_free(server);
    muster_runtime_free(rt);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_next_returns_what_was_assigned),
        cmocka_unit_test(test_rdzv_flags_leave_out_what_is_not_wanted),
        cmocka_unit_test(test_rdzv_next_goes_on_when_a_round_ends_before_it_is_open),
        cmocka_unit_test(test_rdzv_next_leaves_a_round_whose_store_is_none),
        cmocka_unit_test(test_rdzv_next_leaves_the_round_it_is_in),
        cmocka_unit_test(test_rdzv_next_fails_with_the_words_of_the_backend_and_can_be_tried_again),
        cmocka_unit_test(test_rdzv_ended_wakes_and_says_why),
        cmocka_unit_test(test_rdzv_member_that_is_out_is_told_and_need_not_leave),
        cmocka_unit_test(test_rdzv_asks_nothing_of_a_round_that_never_began),
        cmocka_unit_test(test_rdzv_set_closed_is_waited_for_by_all_who_ask),
        cmocka_unit_test(test_rdzv_set_closed_says_that_it_did_not_work),
        cmocka_unit_test(test_rdzv_next_ends_when_the_run_is_closed_while_a_round_is_opened),
        cmocka_unit_test(test_rdzv_close_ends_every_call_of_other_threads),
        cmocka_unit_test(test_rdzv_close_interrupts_next),
        cmocka_unit_test(test_rdzv_close_waits_for_no_farewell_for_ever),
        cmocka_unit_test(test_rdzv_next_is_for_one_thread_at_a_time),
        cmocka_unit_test(test_rdzv_calls_on_the_runtimes_thread_are_refused),
        cmocka_unit_test(test_rdzv_open_fails_with_the_words_of_the_backend),
        cmocka_unit_test(test_rdzv_sharing_can_be_turned_off_as_with_pytorch),
        cmocka_unit_test(test_rdzv_sink_gets_every_record),
        cmocka_unit_test(test_rdzv_sink_json_writes_lines_that_parse),
        cmocka_unit_test(test_rdzv_bears_a_failure_of_each_allocation),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
