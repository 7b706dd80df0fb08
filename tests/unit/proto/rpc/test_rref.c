/*
 * Remote references without a network: tables that hand each other their messages, lost, doubled or
 * late as a test likes. sim/scenarios/rpc/rref.c has the storms.
 */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "core/prng.h"
#include "failheap.h"
#include "proto/rpc/rref.h"

#define NODES 3

static const char *const names[NODES] = {"o", "p", "c"}; /* owner, parent, child */

struct world {
    struct mu_rref_table node[NODES];
    mu_mono_t now;
    size_t freed;
    bool doubled;           /* every message comes twice */
    enum mu_rref_verb lost; /* messages of this kind fail */
    size_t sent[MU_RREF_PROBE + 1];
};

static void init_node(struct world *w, int i, uint64_t life)
{
    struct mu_rref_config config = mu_rref_config_defaults();

    config.life = life;
    config.seed = 1;
    (void)snprintf(config.name, sizeof(config.name), "%s", names[i]);
    mu_rref_init(&w->node[i], &config);
}

static void open_world(struct world *w)
{
    memset(w, 0, sizeof(*w));
    w->now = (mu_mono_t){MU_NS_PER_S};
    for (int i = 0; i < NODES; i++) {
        init_node(w, i, (uint64_t)i + 10);
    }
}

static void close_world(struct world *w)
{
    for (int i = 0; i < NODES; i++) {
        mu_rref_fini(&w->node[i]);
    }
}

static int index_of(const char *name)
{
    for (int i = 0; i < NODES; i++) {
        if (strcmp(names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

static int hand_over(struct world *w, int to, const char *from, enum mu_rref_verb verb,
                     const struct mu_rref_msg *msg)
{
    struct mu_rref_table *t = &w->node[to];
    struct mu_rref_value *v = NULL;
    int verdict = 0;

    switch (verb) {
    case MU_RREF_CREATE:
        verdict = mu_rref_on_create(t, w->now, from, msg, &v);
        if (v != NULL) {
            v->ready = true;
        }
        return verdict;
    case MU_RREF_FORK:
        return mu_rref_on_fork(t, w->now, from, msg);
    case MU_RREF_ACCEPT:
        return mu_rref_on_accept(t, w->now, from, msg);
    case MU_RREF_DELETE:
        return mu_rref_on_delete(t, w->now, from, msg);
    case MU_RREF_CANCEL:
        return mu_rref_on_cancel(t, w->now, from, msg);
    case MU_RREF_PROBE:
        return mu_rref_on_probe(t, w->now, from, msg);
    }
    return MUSTER_EINVAL;
}

static bool send_one(struct world *w, int from)
{
    struct mu_rref_op *op = mu_rref_next_op(&w->node[from], w->now);
    struct mu_rref_answer answer;
    int verdict;
    int to;

    if (op == NULL) {
        return false;
    }
    to = index_of(op->peer->name);
    w->sent[op->verb]++;
    if (op->verb == w->lost || to < 0) {
        mu_rref_op_ended(&w->node[from], w->now, op, to < 0 ? MUSTER_EWORKER : MUSTER_ECONN, NULL);
        return true;
    }
    if (w->doubled) {
        (void)hand_over(w, to, names[from], op->verb, &op->msg);
    }
    verdict = hand_over(w, to, names[from], op->verb, &op->msg);
    answer = (struct mu_rref_answer){w->node[to].config.life, mu_rref_floor(&w->node[to]),
                                     verdict < 0 ? MU_RREF_DONE : (enum mu_rref_verdict)verdict};
    mu_rref_op_ended(&w->node[from], w->now, op, verdict < 0 ? verdict : 0, &answer);
    return true;
}

/* Until nobody has anything to say at this time. */
static void settle(struct world *w)
{
    struct mu_rref_value *v;
    bool did;

    do {
        did = false;
        for (int i = 0; i < NODES; i++) {
            while (send_one(w, i)) {
                did = true;
            }
            while ((v = mu_rref_next_dead(&w->node[i])) != NULL) {
                mu_rref_value_free(&w->node[i], v);
                w->freed++;
            }
            while (mu_rref_next_changed(&w->node[i]) != NULL) {
            }
        }
    } while (did);
}

static void pass_time(struct world *w, uint64_t ms)
{
    for (uint64_t i = 0; i < ms; i += 100) {
        w->now = mu_mono_add_ms(w->now, 100);
        settle(w);
    }
}

static struct mu_rref_user *create(struct world *w, int at, const char *owner)
{
    struct mu_rref_user *u = NULL;

    assert_int_equal(mu_rref_create(&w->node[at], w->now, owner, NULL, &u), 0);
    return u;
}

struct token {
    uint8_t bytes[MU_RREF_TOKEN_MAX];
    size_t len;
    uint64_t number;
};

static struct token fork_to(struct world *w, int at, struct mu_rref_user *u, const char *child)
{
    struct token t;

    assert_int_equal(mu_rref_fork(&w->node[at], u, child, t.bytes, &t.len, &t.number), 0);
    return t;
}

static int take(struct world *w, int at, const struct token *t, struct mu_rref_user **ret)
{
    struct mu_errmsg msg;

    return mu_rref_take(&w->node[at], w->now, mu_span(t->bytes, t->len), ret, &msg);
}

static struct mu_rref_stats stats(struct world *w, int at)
{
    struct mu_rref_stats s;

    mu_rref_stats(&w->node[at], &s);
    return s;
}

static void assert_nothing_left(struct world *w)
{
    for (int i = 0; i < NODES; i++) {
        struct mu_rref_stats s = stats(w, i);

        assert_int_equal(s.values + s.forks + s.users + s.children, 0);
    }
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_rref_value_is_freed_with_its_only_user(void **state)
{
    struct mu_rref_user *u;
    struct world w;

    (void)state;
    open_world(&w);
    u = create(&w, 1, "o");
    assert_false(mu_rref_confirmed(u));
    assert_int_equal(stats(&w, 1).pending_users, 1);
    settle(&w);
    assert_true(mu_rref_confirmed(u));
    assert_int_equal(stats(&w, 0).values, 1);
    mu_rref_release(&w.node[1], w.now, u);
    assert_int_equal(w.freed, 0);
    settle(&w);
    assert_int_equal(w.freed, 1);
    assert_nothing_left(&w);
    close_world(&w);
}

static void test_rref_delete_waits_until_the_user_is_confirmed(void **state)
{
    struct mu_rref_user *u;
    struct world w;

    (void)state;
    open_world(&w);
    u = create(&w, 1, "o");
    mu_rref_release(&w.node[1], w.now, u);
    assert_true(send_one(&w, 1));
    assert_int_equal(w.sent[MU_RREF_CREATE], 1);
    assert_int_equal(w.sent[MU_RREF_DELETE], 0);
    settle(&w);
    assert_int_equal(w.sent[MU_RREF_DELETE], 1);
    assert_int_equal(w.freed, 1);
    assert_nothing_left(&w);
    close_world(&w);
}

static void test_rref_parent_stays_until_its_child_is_confirmed(void **state)
{
    struct mu_rref_user *u;
    struct mu_rref_user *child;
    struct token t;
    struct world w;

    (void)state;
    open_world(&w);
    u = create(&w, 1, "o");
    settle(&w);
    t = fork_to(&w, 1, u, "c");
    mu_rref_release(&w.node[1], w.now, u);
    settle(&w);
    assert_int_equal(w.sent[MU_RREF_DELETE], 0);
    /* The owner does not answer the child: the parent stays. */
    assert_int_equal(take(&w, 2, &t, &child), 0);
    w.lost = MU_RREF_FORK;
    pass_time(&w, 3000);
    assert_int_equal(w.sent[MU_RREF_DELETE], 0);
    assert_int_equal(w.sent[MU_RREF_ACCEPT], 0);
    assert_false(mu_rref_confirmed(child));
    w.lost = MU_RREF_ACCEPT;
    pass_time(&w, 6000);
    assert_true(mu_rref_confirmed(child));
    assert_int_equal(stats(&w, 0).forks, 2);
    w.lost = 0;
    pass_time(&w, 6000);
    assert_int_equal(stats(&w, 0).forks, 1);
    assert_int_equal(w.freed, 0);
    mu_rref_release(&w.node[2], w.now, child);
    settle(&w);
    assert_int_equal(w.freed, 1);
    assert_nothing_left(&w);
    close_world(&w);
}

static void test_rref_messages_that_come_twice_do_no_harm(void **state)
{
    struct mu_rref_user *u;
    struct mu_rref_user *child;
    struct mu_rref_user *home;
    struct token t;
    struct world w;

    (void)state;
    open_world(&w);
    w.doubled = true;
    u = create(&w, 1, "o");
    settle(&w);
    t = fork_to(&w, 1, u, "c");
    assert_int_equal(take(&w, 2, &t, &child), 0);
    mu_rref_release(&w.node[1], w.now, u);
    settle(&w);
    mu_rref_cancel(&w.node[1], w.now, t.number);
    t = fork_to(&w, 2, child, "o");
    assert_int_equal(take(&w, 0, &t, &home), 0);
    mu_rref_release(&w.node[2], w.now, child);
    settle(&w);
    assert_int_equal(w.freed, 0);
    assert_int_equal(stats(&w, 0).forks, 1);
    mu_rref_release(&w.node[0], w.now, home);
    settle(&w);
    assert_int_equal(w.freed, 1);
    assert_nothing_left(&w);
    close_world(&w);
}

static void test_rref_token_is_taken_once_or_void(void **state)
{
    struct mu_rref_user *u;
    struct mu_rref_user *child;
    struct token taken;
    struct token unread;
    struct world w;

    (void)state;
    open_world(&w);
    u = create(&w, 1, "o");
    settle(&w);
    taken = fork_to(&w, 1, u, "c");
    unread = fork_to(&w, 1, u, "c");
    assert_int_equal(take(&w, 2, &taken, &child), 0);
    assert_int_equal(take(&w, 2, &taken, &child), MUSTER_EEXIST);
    mu_rref_release(&w.node[2], w.now, child);
    settle(&w);
    assert_int_equal(take(&w, 2, &taken, &child), MUSTER_ECANCELED);
    /* Its call has ended, and nobody took it. */
    mu_rref_cancel(&w.node[1], w.now, unread.number);
    settle(&w);
    assert_int_equal(stats(&w, 1).children, 0);
    assert_int_equal(take(&w, 2, &unread, &child), MUSTER_ECANCELED);
    /* What the child remembers goes with the parent's floor. */
    unread = fork_to(&w, 1, u, "c");
    mu_rref_cancel(&w.node[1], w.now, unread.number);
    settle(&w);
    mu_rref_release(&w.node[1], w.now, u);
    settle(&w);
    assert_nothing_left(&w);
    close_world(&w);
}

static void test_rref_fork_of_an_unconfirmed_user_is_refused(void **state)
{
    struct mu_rref_user *u;
    uint8_t bytes[MU_RREF_TOKEN_MAX];
    uint64_t number;
    size_t len;
    struct world w;

    (void)state;
    open_world(&w);
    u = create(&w, 1, "o");
    assert_int_equal(mu_rref_fork(&w.node[1], u, "c", bytes, &len, &number), MUSTER_EAGAIN);
    settle(&w);
    mu_rref_release(&w.node[1], w.now, u);
    settle(&w);
    assert_nothing_left(&w);
    close_world(&w);
}

static void test_rref_another_life_under_the_name_releases_the_one_before(void **state)
{
    struct mu_rref_msg stale = {.life = 11, .rref = {11, 1}, .fork = {11, 1}};
    struct mu_rref_user *u;
    struct world w;

    (void)state;
    open_world(&w);
    (void)create(&w, 1, "o");
    (void)create(&w, 1, "o");
    settle(&w);
    assert_int_equal(stats(&w, 0).forks, 2);
    mu_rref_fini(&w.node[1]);
    init_node(&w, 1, 77);
    /* It says nothing by itself: the owner asks. */
    pass_time(&w, 25000);
    assert_int_equal(w.freed, 2);
    assert_int_equal(stats(&w, 0).forks, 0);
    assert_int_equal(mu_rref_on_fork(&w.node[0], w.now, "p", &stale), MU_RREF_STALE);
    u = create(&w, 1, "o");
    settle(&w);
    /* And the owner's: its users cannot use it any more. */
    mu_rref_fini(&w.node[0]);
    init_node(&w, 0, 78);
    w.now = mu_mono_add_ms(w.now, 1);
    mu_rref_release(&w.node[1], w.now, create(&w, 1, "o"));
    settle(&w);
    assert_int_equal(u->status, MUSTER_ESESSION);
    mu_rref_release(&w.node[1], w.now, u);
    settle(&w);
    assert_nothing_left(&w);
    close_world(&w);
}

static void test_rref_removed_worker_holds_nothing_and_is_not_heard(void **state)
{
    struct mu_rref_msg late = {.life = 11, .rref = {11, 9}, .fork = {11, 9}};
    struct mu_rref_value *v;
    struct mu_rref_user *u;
    struct world w;

    (void)state;
    open_world(&w);
    assert_int_equal(mu_rref_peer_back(&w.node[0], "p"), 0);
    u = create(&w, 1, "o");
    settle(&w);
    mu_rref_peer_gone(&w.node[0], w.now, "p");
    settle(&w);
    assert_int_equal(w.freed, 1);
    assert_int_equal(mu_rref_on_create(&w.node[0], w.now, "p", &late, &v), MU_RREF_STALE);
    assert_null(v);
    /* It was added again: the same process may go on, with new ones. */
    assert_int_equal(mu_rref_peer_back(&w.node[0], "p"), 0);
    mu_rref_release(&w.node[1], w.now, create(&w, 1, "o"));
    mu_rref_release(&w.node[1], w.now, u);
    settle(&w);
    assert_int_equal(w.freed, 2);
    /* The owner is removed where its users are. */
    u = create(&w, 1, "o");
    settle(&w);
    mu_rref_peer_gone(&w.node[1], w.now, "o");
    assert_int_equal(u->status, MUSTER_EWORKER);
    mu_rref_release(&w.node[1], w.now, u);
    assert_int_equal(stats(&w, 1).users, 0);
    close_world(&w);
}

static void test_rref_failed_creation_is_taken_back(void **state)
{
    struct mu_rref_user *u;
    struct world w;

    (void)state;
    open_world(&w);
    w.lost = MU_RREF_CREATE;
    u = create(&w, 1, "o");
    settle(&w);
    assert_int_equal(u->status, MUSTER_ECONN);
    assert_int_equal(w.sent[MU_RREF_CREATE], 1); /* Not again: it may have run. */
    assert_int_equal(w.sent[MU_RREF_DELETE], 1); /* For the same reason. */
    mu_rref_release(&w.node[1], w.now, u);
    settle(&w);
    assert_nothing_left(&w);
    close_world(&w);
}

static void test_rref_strangers_cannot_take_what_is_not_theirs(void **state)
{
    struct mu_rref_msg msg = {.life = 66};
    struct mu_rref_value *v;
    struct mu_rref_user *u;
    struct world w;

    (void)state;
    open_world(&w);
    u = create(&w, 1, "o");
    settle(&w);
    /* Another's fork is not deleted, not taken over, and not made again. */
    msg.rref = u->rref;
    msg.fork = u->fork;
    assert_int_equal(mu_rref_on_delete(&w.node[0], w.now, "c", &msg), MU_RREF_DONE);
    assert_int_equal(mu_rref_on_fork(&w.node[0], w.now, "c", &msg), MUSTER_EPROTO);
    assert_int_equal(mu_rref_on_create(&w.node[0], w.now, "c", &msg, &v), MUSTER_EPROTO);
    assert_int_equal(mu_rref_on_cancel(&w.node[0], w.now, "c", &msg), MUSTER_EPROTO);
    assert_int_equal(stats(&w, 0).forks, 1);
    w.node[0].config.values_max = 1;
    msg = (struct mu_rref_msg){.life = 66, .rref = {66, 1}, .fork = {66, 1}};
    assert_int_equal(mu_rref_on_create(&w.node[0], w.now, "c", &msg, &v), MUSTER_ELIMIT);
    mu_rref_release(&w.node[1], w.now, u);
    settle(&w);
    assert_nothing_left(&w);
    close_world(&w);
}

/* All that can fail fails once; what was begun ends all the same. */
static void test_rref_survives_failing_allocations(void **state)
{
    (void)state;
    for (long nth = 0;; nth++) {
        struct mu_rref_user *u = NULL;
        struct mu_rref_user *child = NULL;
        struct mu_errmsg msg;
        struct token t = {.len = 0};
        struct world w;
        bool fired;

        open_world(&w);
        failheap_arm(nth);
        if (mu_rref_create(&w.node[1], w.now, "o", NULL, &u) == 0) {
            settle(&w);
            if (mu_rref_fork(&w.node[1], u, "c", t.bytes, &t.len, &t.number) == 0) {
                (void)mu_rref_take(&w.node[2], w.now, mu_span(t.bytes, t.len), &child, &msg);
                settle(&w);
                mu_rref_cancel(&w.node[1], w.now, t.number);
                settle(&w);
            }
        }
        fired = failheap_fired();
        failheap_disarm();
        if (u != NULL) {
            mu_rref_release(&w.node[1], w.now, u);
        }
        if (child != NULL) {
            mu_rref_release(&w.node[2], w.now, child);
        }
        pass_time(&w, 12000);
        assert_nothing_left(&w);
        close_world(&w);
        if (!fired) {
            break;
        }
    }
}

/* --- bytes ------------------------------------------------------------------------------------ */

static void test_rref_token_survives_the_way_and_every_other_length_is_refused(void **state)
{
    struct mu_rref_token token = {.rref = {1, 2}, .fork = {3, 4}, .owner_life = 5};
    struct mu_rref_token back;
    uint8_t bytes[MU_RREF_TOKEN_MAX + 1] = {0};
    size_t len;

    (void)state;
    memset(token.owner, 'o', MU_RPC_WORKER_MAX);
    memset(token.parent, 'p', MU_RPC_WORKER_MAX);
    len = mu_rref_token_encode(bytes, &token);
    assert_int_equal(len, MU_RREF_TOKEN_MAX);
    assert_int_equal(mu_rref_token_decode(mu_span(bytes, len), &back), 0);
    assert_memory_equal(&back.rref, &token.rref, sizeof(token.rref));
    assert_string_equal(back.owner, token.owner);
    assert_string_equal(back.parent, token.parent);
    assert_int_equal(back.owner_life, 5);
    for (size_t i = 0; i <= sizeof(bytes); i++) {
        assert_int_equal(mu_rref_token_decode(mu_span(bytes, i), &back),
                         i == len ? 0 : MUSTER_EPROTO);
    }
}

static void test_rref_garbage_is_no_token(void **state)
{
    struct mu_prng prng;

    (void)state;
    mu_prng_seed(&prng, 7);
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[96];
        struct mu_rref_token token;
        struct mu_rref_answer answer;
        struct mu_rref_msg msg;
        struct mu_span in;
        size_t len = mu_prng_below(&prng, sizeof(bytes));

        for (size_t k = 0; k < len; k++) {
            bytes[k] = (uint8_t)mu_prng_u64(&prng);
        }
        bytes[0] = 1;
        in = mu_span(bytes, len);
        (void)mu_rref_token_decode(in, &token);
        (void)mu_rref_answer_decode(in, &answer);
        (void)mu_rref_msg_decode(&in, &msg);
    }
}

/* --- limits ----------------------------------------------------------------------------------- */

static void test_rref_owner_holds_for_so_many_forks(void **state)
{
    struct mu_rref_msg msg = {.life = 12, .rref = {12, 1}, .fork = {12, 1}};
    struct mu_rref_msg fork = {.life = 12, .fork = {12, 2}};
    struct mu_rref_value *v;
    struct mu_rref_user *u;
    struct world w;

    (void)state;
    open_world(&w);
    w.node[0].config.forks_max = 2;
    u = create(&w, 1, "o");
    settle(&w);
    fork.rref = u->rref;
    assert_int_equal(mu_rref_on_create(&w.node[0], w.now, "c", &msg, &v), MU_RREF_DONE);
    msg.rref.number = msg.fork.number = 3;
    assert_int_equal(mu_rref_on_create(&w.node[0], w.now, "c", &msg, &v), MUSTER_ELIMIT);
    assert_null(v);
    assert_int_equal(mu_rref_on_fork(&w.node[0], w.now, "c", &fork), MUSTER_ELIMIT);
    assert_int_equal(stats(&w, 0).forks, 2);
    assert_int_equal(stats(&w, 0).values, 2);
    /* When one has gone there is room, and what was said before may be said again. */
    msg.rref.number = msg.fork.number = 1;
    assert_int_equal(mu_rref_on_delete(&w.node[0], w.now, "c", &msg), MU_RREF_DONE);
    assert_int_equal(mu_rref_on_fork(&w.node[0], w.now, "c", &fork), MU_RREF_DONE);
    assert_int_equal(mu_rref_on_fork(&w.node[0], w.now, "c", &fork), MU_RREF_DONE);
    assert_int_equal(mu_rref_on_delete(&w.node[0], w.now, "c", &fork), MU_RREF_DONE);
    mu_rref_release(&w.node[1], w.now, u);
    settle(&w);
    assert_nothing_left(&w);
    close_world(&w);
}

static void test_rref_table_knows_so_many_workers(void **state)
{
    struct mu_rref_msg msg = {.life = 12, .rref = {12, 1}, .fork = {12, 1}};
    struct mu_rref_value *v;
    struct mu_rref_user *users[2];
    struct mu_rref_user *none = NULL;
    struct world w;

    (void)state;
    open_world(&w);
    w.node[0].config.peers_max = 1;
    w.node[1].config.peers_max = 1;
    users[0] = create(&w, 1, "o");
    settle(&w);
    assert_int_equal(mu_rref_on_create(&w.node[0], w.now, "c", &msg, &v), MUSTER_ELIMIT);
    assert_int_equal(mu_rref_create(&w.node[1], w.now, "c", NULL, &none), MUSTER_ELIMIT);
    assert_null(none);
    users[1] = create(&w, 1, "o"); /* Those that are known go on. */
    settle(&w);
    assert_true(mu_rref_confirmed(users[1]));
    mu_rref_release(&w.node[1], w.now, users[0]);
    mu_rref_release(&w.node[1], w.now, users[1]);
    settle(&w);
    assert_nothing_left(&w);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rref_value_is_freed_with_its_only_user),
        cmocka_unit_test(test_rref_delete_waits_until_the_user_is_confirmed),
        cmocka_unit_test(test_rref_parent_stays_until_its_child_is_confirmed),
        cmocka_unit_test(test_rref_messages_that_come_twice_do_no_harm),
        cmocka_unit_test(test_rref_token_is_taken_once_or_void),
        cmocka_unit_test(test_rref_fork_of_an_unconfirmed_user_is_refused),
        cmocka_unit_test(test_rref_another_life_under_the_name_releases_the_one_before),
        cmocka_unit_test(test_rref_removed_worker_holds_nothing_and_is_not_heard),
        cmocka_unit_test(test_rref_failed_creation_is_taken_back),
        cmocka_unit_test(test_rref_strangers_cannot_take_what_is_not_theirs),
        cmocka_unit_test(test_rref_survives_failing_allocations),
        cmocka_unit_test(test_rref_token_survives_the_way_and_every_other_length_is_refused),
        cmocka_unit_test(test_rref_garbage_is_no_token),
        cmocka_unit_test(test_rref_owner_holds_for_so_many_forks),
        cmocka_unit_test(test_rref_table_knows_so_many_workers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
