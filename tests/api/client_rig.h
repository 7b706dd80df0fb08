/*
 * A backend that does only what the test tells it to stands in for ours, so that every order of
 * events can be had; and threads that call the public handler meanwhile.
 */
#ifndef MU_TEST_SEAT_RIG_H
#define MU_TEST_SEAT_RIG_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <muster/muster.h>

#include "api/rdzv_api.h"
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

static inline void count(struct fake *f, int *what)
{
    (void)pthread_mutex_lock(&f->lock);
    ++*what;
    (void)pthread_cond_broadcast(&f->cond);
    (void)pthread_mutex_unlock(&f->lock);
}

static inline void wait_count(struct fake *f, const int *what, int least)
{
    (void)pthread_mutex_lock(&f->lock);
    while (*what < least) {
        (void)pthread_cond_wait(&f->cond, &f->lock);
    }
    (void)pthread_mutex_unlock(&f->lock);
}

static inline void soon(struct fake *f, struct mu_timer *timer)
{
    mu_env_timer_arm(f->h.env, timer, mu_env_now(f->h.env).mono);
}

static inline void on_left_timer(struct mu_timer *timer)
{
    struct fake *f = MU_CONTAINER_OF(timer, struct fake, left);

    f->h.events.left(f->h.events.context);
}

static inline void on_assigned_timer(struct mu_timer *timer)
{
    struct fake *f = MU_CONTAINER_OF(timer, struct fake, assigned);

    f->h.events.assigned(f->h.events.context, &(struct mu_rdzv_assignment){
                                                  .world = 1,
                                                  .restarts_left = UINT32_MAX,
                                                  .store = fake_store,
                                              });
}

static inline void on_freed_timer(struct mu_timer *timer)
{
    struct fake *f = MU_CONTAINER_OF(timer, struct fake, freed);

    f->h.events.freed(f->h.events.context);
}

static inline void fake_join(struct mu_rdzv_handler *h)
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

static inline void fake_leave(struct mu_rdzv_handler *h)
{
    struct fake *f = MU_CONTAINER_OF(h, struct fake, h);

    if ((fake_manner & MUTE) == 0) {
        soon(f, &f->left);
    }
    count(f, &f->leaves);
}

static inline void fake_close_run(struct mu_rdzv_handler *h)
{
    struct fake *f = MU_CONTAINER_OF(h, struct fake, h);

    count(f, &f->close_runs);
}

static inline void fake_free(struct mu_rdzv_handler *h)
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

static inline void run_order(struct mu_door *door)
{
    struct order *o = MU_CONTAINER_OF(door, struct order, door);

    o->run(&fake->h.events, o->what);
    mu_door_open(door);
}

static inline void tell(void (*run)(const struct mu_rdzv_events *events, const void *what),
                        const void *what)
{
    struct order o = {.run = run, .what = what};

    mu_door_pass(rt, &o.door, run_order);
}

static inline void tell_assigned(const struct mu_rdzv_events *e, const void *what)
{
    e->assigned(e->context, what);
}

static inline void tell_ended(const struct mu_rdzv_events *e, const void *what)
{
    e->ended(e->context, what);
}

static inline void tell_waiting(const struct mu_rdzv_events *e, const void *what)
{
    e->waiting(e->context, *(const uint32_t *)what);
}

static inline void tell_closed(const struct mu_rdzv_events *e, const void *what)
{
    (void)what;
    e->closed(e->context);
}

static inline void tell_failed(const struct mu_rdzv_events *e, const void *what)
{
    e->failed(e->context, MUSTER_ERDZV_TIMEOUT, what);
}

static inline void tell_close_failed(const struct mu_rdzv_events *e, const void *what)
{
    e->close_failed(e->context, MUSTER_ERDZV_CONN, what);
}

static inline void assign(uint64_t round, uint32_t rank)
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

static inline void *run_caller(void *context)
{
    struct caller *c = context;

    c->status = c->call(c);
    (void)snprintf(c->text, sizeof(c->text), "%s", muster_errmsg());
    return NULL;
}

static inline void start(struct caller *c, muster_rdzv *rdzv, int (*call)(struct caller *c))
{
    c->rdzv = rdzv;
    c->call = call;
    assert_int_equal(pthread_create(&c->thread, NULL, run_caller, c), 0);
}

static inline int finish(struct caller *c)
{
    assert_int_equal(pthread_join(c->thread, NULL), 0);
    return c->status;
}

static inline int call_next(struct caller *c)
{
    return muster_rdzv_next(c->rdzv, &c->info);
}

static inline int call_set_closed(struct caller *c)
{
    return muster_rdzv_set_closed(c->rdzv);
}

static inline int call_ended(struct caller *c)
{
    return muster_rdzv_ended(c->rdzv, MUSTER_TIMEOUT_NEVER);
}

static inline int call_event(struct caller *c)
{
    struct muster_rdzv_event event;

    return muster_rdzv_wait_event(c->rdzv, MUSTER_TIMEOUT_NEVER, &event);
}

static inline struct muster_rdzv_params params(uint32_t flags)
{
    return (struct muster_rdzv_params){.size = sizeof(struct muster_rdzv_params),
                                       .backend = "muster",
                                       .endpoint = "127.0.0.1:1",
                                       .run_id = "job",
                                       .nodes_min = 1,
                                       .nodes_max = 2,
                                       .flags = flags};
}

static inline void fresh_fake(void)
{
    fake = calloc(1, sizeof(*fake));
    assert_non_null(fake);
    (void)pthread_mutex_init(&fake->lock, NULL);
    (void)pthread_cond_init(&fake->cond, NULL);
}

static inline void free_fake(void)
{
    (void)pthread_cond_destroy(&fake->cond);
    (void)pthread_mutex_destroy(&fake->lock);
    free(fake);
}

static inline muster_rdzv *open_flagged(uint32_t flags)
{
    struct muster_rdzv_params p = params(flags);
    muster_rdzv *rdzv = NULL;

    fresh_fake();
    assert_int_equal(muster_rdzv_open(rt, &p, &rdzv), 0);
    return rdzv;
}

static inline muster_rdzv *open_one(void)
{
    return open_flagged(0);
}

/* In round 0, as rank 0. */
static inline muster_rdzv *open_in_round(struct muster_rdzv_info *ret_info)
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

static inline void close_one(muster_rdzv *rdzv, int leaves)
{
    muster_rdzv_close(rdzv);
    assert_int_equal(fake->leaves, leaves);
    free_fake();
}

static inline void assert_says(const char *text, const char *word)
{
    if (strstr(text, word) == NULL) {
        fail_msg("no '%s' in: %s", word, text);
    }
}

static inline int set_up(void **state)
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

static inline int tear_down(void **state)
{
    (void)state;
    muster_server_free(server);
    muster_runtime_free(rt);
    return 0;
}

#endif
