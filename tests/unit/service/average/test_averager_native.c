/*
 * An averager on the native wire among members that behave badly, in the simulator: node a
 * averages; node b is a client of its group, and does by hand what it likes.
 */
#include "peer_rig.h"

#include "codec/average/schema.h"
#include "crypto/hash.h"
#include "proto/average/native_schema.h"
#include "service/average/averager_native.h"
#include "service/state/swarm.h"

#define JOIN  "run_native::MusterNative.rpc_join_group"
#define LINK  "run_native::MusterNative.rpc_link"
#define COUNT 100 /* values, in ten parts */
#define PARTS 10
#define CALLS 12

/* A call of b's. */
struct ask {
    struct mu_peer_items items;
    int replies;
    int ended;
    uint8_t last[2048]; /* message */
    size_t last_len;
};

static struct rig rig;
static struct mu_state_swarm *swarms[2];
static int stopped;
static struct mu_averager *averager;
static struct mu_averager_config config;
static struct mu_averager_step step;
static struct mu_layout layout;
static float values[COUNT];
static uint8_t *data[] = {(uint8_t *)values};
static int done, done_status;
static uint32_t done_counted, done_position;
static char done_why[256];
static uint8_t done_digest[MU_NATIVE_DIGEST_LEN];
static struct ask asks[CALLS];
static struct mu_avg_reply group;
static struct mu_native_hello hello;

/* --- the world -------------------------------------------------------------------------------- */

static void on_stopped(void *context)
{
    (void)context;
    stopped++;
}

static void open_swarm(void *arg)
{
    size_t i = (size_t)((struct rig_node *)arg - rig.node);
    struct mu_state_swarm_config c = mu_state_swarm_config_defaults();
    struct mu_errmsg msg;

    c.host = rig.node[i].host;
    c.peers = &rig.node[0].identity.id;
    c.peer_count = i == 0 ? 0 : 1;
    c.stopped = on_stopped;
    assert_int_equal(mu_state_swarm_start(&c, &swarms[i], &msg), 0);
}

static void start_inside(void *arg)
{
    struct mu_errmsg msg;

    (void)arg;
    config.host = rig.node[0].host;
    config.calls = mu_state_swarm_calls(swarms[0]);
    config.dht = mu_state_swarm_dht(swarms[0]);
    assert_int_equal(mu_averager_start(&config, &averager, &msg), 0);
}

static void start(void)
{
    static const uint64_t shape[] = {COUNT};

    rig_open(&rig, 2, NULL);
    rig_run_all(&rig);
    stopped = done = 0;
    memset(asks, 0, sizeof(asks));
    mu_layout_init(&layout);
    assert_int_equal(mu_layout_add(&layout, MU_SPAN_LIT("w"), MU_DTYPE_F32, shape, 1), 0);
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = 1;
    }
    rig_introduce(&rig.node[1], &rig.node[0]);
    for (size_t i = 0; i < 2; i++) {
        mu_sim_call(rig.node[i].proc, open_swarm, &rig.node[i]);
        rig_run(&rig, 3000);
    }
    config = mu_averager_config_defaults();
    config.prefix = "run";
    config.native = true;
    config.layout = &layout;
    config.data = data;
    config.part_bytes = COUNT * 4 / PARTS;
    config.sender_ms = 2000;
    config.reduce_ms = 20000;
    config.stopped = on_stopped;
    mu_sim_call(rig.node[0].proc, start_inside, NULL);
}

static void stop_averager(void *arg)
{
    (void)arg;
    mu_averager_stop(averager);
}

static void stop_swarm(void *arg)
{
    mu_state_swarm_stop(arg);
}

static void cancel_asks(void *arg)
{
    (void)arg;
    for (size_t i = 0; i < CALLS; i++) {
        mu_peer_items_cancel(&asks[i].items);
    }
}

static void cancel_ask(void *arg)
{
    mu_peer_items_cancel(&((struct ask *)arg)->items);
}

static void end(void)
{
    mu_sim_call(rig.node[1].proc, cancel_asks, NULL);
    mu_sim_call(rig.node[0].proc, stop_averager, NULL);
    rig_run(&rig, 12000);
    assert_int_equal(stopped, 1);
    for (size_t i = 0; i < 2; i++) {
        mu_sim_call(rig.node[i].proc, stop_swarm, swarms[i]);
        rig_run(&rig, 10000);
    }
    assert_int_equal(stopped, 3);
    rig_stop_node(&rig.node[0]);
    rig_stop_node(&rig.node[1]);
    rig_run(&rig, 6000);
    mu_layout_fini(&layout);
    rig_close(&rig);
}

/* --- a step of a's ---------------------------------------------------------------------------- */

static void on_done(struct mu_averager_step *s, const struct mu_averager_result *result)
{
    (void)s;
    done++;
    done_status = result->status;
    done_counted = 0;
    done_position = result->position;
    done_why[0] = '\0';
    memcpy(done_digest, result->digest, sizeof(done_digest));
    for (size_t i = 0; i < result->member_count; i++) {
        done_counted += result->members[i].counted ? 1 : 0;
        if (result->members[i].why != NULL) {
            (void)snprintf(done_why, sizeof(done_why), "%s", result->members[i].why);
        }
    }
}

static void step_inside(void *arg)
{
    struct mu_errmsg msg;

    (void)arg;
    step = (struct mu_averager_step){.weight = 1, .timeout_ms = 60000, .done = on_done};
    assert_int_equal(mu_averager_step(averager, &step, &msg), 0);
}

/* --- what b does ------------------------------------------------------------------------------ */

static void on_reply(struct mu_peer_items *items, struct mu_span message)
{
    struct ask *k = MU_CONTAINER_OF(items, struct ask, items);

    k->replies++;
    assert_true(message.len <= sizeof(k->last));
    memcpy(k->last, message.data, message.len);
    k->last_len = message.len;
}

static void on_ended(struct mu_peer_items *items, int status, const char *text)
{
    (void)status;
    (void)text;
    MU_CONTAINER_OF(items, struct ask, items)->ended++;
}

static const struct mu_peer_items_events events = {.item = on_reply, .ended = on_ended};

static const char *method;
static struct mu_span to_send;

static void ask_inside(void *arg)
{
    struct ask *k = arg;

    k->items.on = &events;
    mu_peer_items_open(mu_state_swarm_calls(swarms[1]), &k->items, &rig.node[0].identity.id,
                       method);
}

static void send_inside(void *arg)
{
    (void)mu_peer_items_send(&((struct ask *)arg)->items, to_send);
}

static void send(struct ask *k, struct mu_span message)
{
    to_send = message;
    mu_sim_call(rig.node[1].proc, send_inside, k);
    rig_run(&rig, 50);
}

static void ask(struct ask *k, const char *name, struct mu_span message)
{
    method = name;
    mu_sim_call(rig.node[1].proc, ask_inside, k);
    if (message.len != 0) {
        send(k, message);
    }
    rig_run(&rig, 300);
}

static void say(struct ask *k, const struct mu_native_msg *msg)
{
    struct mu_buf out;

    mu_buf_init(&out, 4096);
    assert_int_equal(mu_native_msg_encode(msg, &out), 0);
    send(k, mu_buf_span(&out));
    mu_buf_fini(&out);
}

static void say_hello(struct ask *k)
{
    struct mu_native_msg msg = {.type = MU_NATIVE_HELLO, .hello = hello};

    method = LINK;
    mu_sim_call(rig.node[1].proc, ask_inside, k);
    say(k, &msg);
    rig_run(&rig, 300);
}

static void give(struct ask *k, uint32_t part, size_t count, float value, double weight)
{
    float some[COUNT];
    struct mu_native_msg msg = {.type = MU_NATIVE_PART,
                                .part = part,
                                .weight = weight,
                                .values = mu_span(some, count * sizeof(float))};

    for (size_t i = 0; i < count; i++) {
        some[i] = value;
    }
    say(k, &msg);
}

static void set_hello(void)
{
    struct mu_native_schema s = {.part_bytes = COUNT * 4 / PARTS};
    struct mu_buf text;

    mu_buf_init(&text, 4096);
    assert_int_equal(mu_avg_schema_encode(&layout, &text), 0);
    mu_sha1(s.layout, mu_buf_span(&text));
    mu_buf_fini(&text);
    hello = (struct mu_native_hello){.version = MU_NATIVE_VERSION, .members = 2};
    mu_native_schema_hash(&s, hello.schema);
}

/* a looks for a group, b joins it by hand as a client, and the group begins. */
static void join(void)
{
    static const uint8_t gather[] = {0x93, 0xc0, 0x01, 0xc4, 0x01, 0xc0};
    struct mu_avg_join request = {.schema_hash = mu_span(hello.schema, MU_AVG_SCHEMA_LEN),
                                  .gather = mu_span(gather, sizeof(gather)),
                                  .client_mode = true,
                                  .group_key = MU_SPAN_LIT("run_native.0b")};
    struct mu_buf out;

    set_hello();
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_avg_join_encode(&request, &out), 0);
    mu_sim_call(rig.node[0].proc, step_inside, NULL);
    rig_run(&rig, 200);
    ask(&asks[0], JOIN, mu_buf_span(&out));
    mu_buf_fini(&out);
    assert_int_equal(asks[0].replies, 1);
    for (int i = 0; i < 700 && asks[0].replies == 1; i++) {
        rig_run(&rig, 10);
    }
    assert_int_equal(mu_avg_reply_decode(mu_span(asks[0].last, asks[0].last_len), &group), 0);
    assert_int_equal(group.code, MU_AVG_BEGIN_ALLREDUCE);
    assert_int_equal(group.member_count, 2);
    memcpy(hello.group_id, group.group_id.data, sizeof(hello.group_id));
    hello.position = mu_peer_id_eq(&group.members[1], &rig.node[1].identity.id) ? 1 : 0;
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_native_averager_without_a_step_turns_callers_away(void **unused)
{
    (void)unused;
    start();
    set_hello();
    say_hello(&asks[0]);
    assert_int_equal(asks[0].ended, 1);
    assert_int_equal(asks[0].replies, 0);
    ask(&asks[1], LINK, MU_SPAN_LIT("nonsense"));
    assert_int_equal(asks[1].ended, 1);
    ask(&asks[2], LINK, (struct mu_span){0});
    assert_int_equal(asks[2].ended, 0);
    rig_run(&rig, 3000); /* who says nothing is not waited for */
    assert_int_equal(asks[2].ended, 1);
    end();
}

/* Who calls before our group is known waits for it, with so many others and no more. */
static void test_native_averager_has_so_many_callers(void **unused)
{
    (void)unused;
    start();
    averager->config.streams_peer_max = 5;
    set_hello();
    memset(hello.group_id, 7, sizeof(hello.group_id));
    mu_sim_call(rig.node[0].proc, step_inside, NULL);
    rig_run(&rig, 200);
    for (size_t i = 0; i < 6; i++) {
        say_hello(&asks[i + 1]);
    }
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(asks[i + 1].ended, 0);
    }
    assert_int_equal(asks[6].ended, 1);
    rig_run(&rig, 70000);
    assert_int_equal(done, 1);
    assert_int_equal(done_status, MUSTER_ETIMEDOUT);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(asks[i + 1].ended, 1); /* there is no group */
    }
    end();
}

/* What b does when the group has begun. a is the only one that votes, so its round goes on. */
enum hostile {
    NO_CALL,
    NO_HELLO,
    NO_MESSAGE,
    OTHER_GROUP,
    OTHER_SCHEMA,
    OTHER_PLACE,
    OTHER_VERSION,
    ONLY_HELLO,
    LEAVES,
    NONSENSE,
    WRONG_LENGTH,
    NOT_FINITE,
    NO_SUCH_PART,
    OUT_OF_ORDER,
    CHANGED_WEIGHT,
    PROPOSES,
    HELLO_AGAIN,
    HALF,
    HOSTILE_KINDS,
};

static void greet_wrongly(enum hostile kind)
{
    hello.group_id[0] ^= kind == OTHER_GROUP ? 1 : 0;
    hello.schema[31] ^= kind == OTHER_SCHEMA ? 1 : 0;
    hello.position ^= kind == OTHER_PLACE ? 1 : 0;
    hello.version = kind == OTHER_VERSION ? MU_NATIVE_VERSION + 1 : MU_NATIVE_VERSION;
    say_hello(&asks[1]);
    assert_int_equal(asks[1].ended, 1);
    assert_int_equal(asks[1].replies, 0);
}

static void break_rules(enum hostile kind)
{
    struct mu_native_msg msg = {.type = MU_NATIVE_PROPOSE, .ballot = hello.position};

    say_hello(&asks[1]);
    assert_int_equal(asks[1].ended, 0);
    assert_true(asks[1].replies >= 1);
    if (kind == LEAVES) {
        mu_sim_call(rig.node[1].proc, cancel_asks, NULL);
    } else if (kind == NONSENSE) {
        send(&asks[1], MU_SPAN_LIT("nonsense"));
    } else if (kind == WRONG_LENGTH) {
        give(&asks[1], 0, 9, 3, 1);
    } else if (kind == NOT_FINITE) {
        give(&asks[1], 0, 10, __builtin_nanf(""), 1);
    } else if (kind == NO_SUCH_PART) {
        give(&asks[1], PARTS, 10, 3, 1);
    } else if (kind == OUT_OF_ORDER) {
        give(&asks[1], 1, 10, 3, 1);
    } else if (kind == CHANGED_WEIGHT) {
        give(&asks[1], 0, 10, 3, 1);
        give(&asks[1], 1, 10, 3, 2);
    } else if (kind == PROPOSES) {
        say(&asks[1], &msg);
    } else if (kind == HELLO_AGAIN) {
        msg = (struct mu_native_msg){.type = MU_NATIVE_HELLO, .hello = hello};
        say(&asks[1], &msg);
    } else if (kind == HALF) {
        for (uint32_t p = 0; p < PARTS / 2; p++) {
            give(&asks[1], p, 10, 3, 1);
        }
    }
}

static void misbehave(enum hostile kind)
{
    if (kind == NO_CALL) {
        return;
    }
    if (kind == NO_HELLO) {
        ask(&asks[1], LINK, (struct mu_span){0});
    } else if (kind == NO_MESSAGE) {
        ask(&asks[1], LINK, MU_SPAN_LIT("nonsense"));
        assert_int_equal(asks[1].ended, 1);
    } else if (kind <= OTHER_VERSION) {
        greet_wrongly(kind);
    } else {
        break_rules(kind);
        if (kind >= NONSENSE && kind <= HELLO_AGAIN) {
            rig_run(&rig, 300);
            assert_int_equal(asks[1].ended, 1);
        }
    }
}

static void test_native_averager_survives_hostile_members(void **unused)
{
    (void)unused;
    for (int kind = 0; kind < HOSTILE_KINDS; kind++) {
        start();
        join();
        misbehave((enum hostile)kind);
        rig_run(&rig, 5000);
        assert_int_equal(done, 1);
        assert_int_equal(done_status, 0);
        assert_int_equal(done_counted, 1);
        assert_string_not_equal(done_why, "");
        for (size_t i = 0; i < COUNT; i++) {
            assert_true(values[i] == 1);
        }
        end();
    }
}

/* A client that gives everything, once while somebody else says that it is this client. */
static void test_native_averager_counts_a_client(void **unused)
{
    uint8_t digest[MU_NATIVE_DIGEST_LEN];
    struct mu_native_msg msg;

    (void)unused;
    start();
    join();
    say_hello(&asks[1]);
    say_hello(&asks[2]); /* there is a link already */
    assert_int_equal(asks[1].ended, 0);
    assert_int_equal(asks[2].ended, 1);
    for (uint32_t p = 0; p < PARTS; p++) {
        give(&asks[1], p, 10, 4, 2);
    }
    rig_run(&rig, 500);
    assert_int_equal(done, 1);
    assert_int_equal(done_status, 0);
    assert_int_equal(done_counted, 2);
    assert_string_equal(done_why, "");
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(values[i] == 3);
    }
    mu_sha256(digest, mu_span(values, sizeof(values)));
    assert_memory_equal(digest, done_digest, sizeof(digest));
    /* a waits for it to say that it is done; then its link ends. */
    assert_int_equal(asks[1].ended, 0);
    assert_int_equal(mu_native_msg_decode(mu_span(asks[1].last, asks[1].last_len), &msg), 0);
    assert_int_equal(msg.type, MU_NATIVE_FINAL);
    msg = (struct mu_native_msg){.type = MU_NATIVE_DONE, .sum = msg.sum};
    say(&asks[1], &msg);
    rig_run(&rig, 500);
    assert_int_equal(mu_native_msg_decode(mu_span(asks[1].last, asks[1].last_len), &msg), 0);
    assert_int_equal(msg.type, MU_NATIVE_CLOSE);
    assert_int_equal(asks[1].ended, 1);
    end();
}

/* What is to be said to somebody who does not listen is not kept without end. */
static void flood(void *arg)
{
    struct mu_native_msg msg = {.type = MU_NATIVE_LOST};
    struct mu_averager_link *l = arg;

    for (uint32_t i = l->queued; i < MU_AVERAGER_CONTROL_MAX; i++) {
        mu_averager_link_say(l, &msg);
    }
    assert_false(l->over);
    assert_int_equal(l->queued, MU_AVERAGER_CONTROL_MAX);
    mu_averager_link_say(l, &msg);
    assert_true(l->over);
    assert_int_equal(l->queued, 0);
}

static void test_native_averager_keeps_so_many_messages(void **unused)
{
    (void)unused;
    start();
    join();
    mu_sim_call(rig.node[0].proc, flood, &averager->native->links[hello.position]);
    rig_run(&rig, 2000);
    assert_int_equal(done, 1);
    assert_int_equal(done_status, 0);
    assert_string_equal(done_why, "it does not read what we send it");
    end();
}

/* Who never says that it is done is waited for, but not in each of many rounds. */
static void test_native_averager_waits_in_so_many_rounds(void **unused)
{
    (void)unused;
    start();
    averager->config.sender_ms = 60000;
    averager->config.reduce_ms = 120000;
    for (int round = 0; round < MU_AVERAGER_LINGER_MAX + 1; round++) {
        mu_sim_call(rig.node[1].proc, cancel_ask, &asks[0]);
        memset(&asks[0], 0, sizeof(asks[0]));
        join();
        say_hello(&asks[round + 1]);
        for (uint32_t p = 0; p < PARTS; p++) {
            give(&asks[round + 1], p, 10, 4, 2);
        }
        rig_run(&rig, 1000);
        assert_int_equal(done, round + 1);
        assert_int_equal(done_status, 0);
        assert_int_equal(done_counted, 2);
    }
    rig_run(&rig, 1000);
    assert_int_equal(asks[1].ended, 1);
    for (int round = 1; round < MU_AVERAGER_LINGER_MAX + 1; round++) {
        assert_int_equal(asks[round + 1].ended, 0);
    }
    end();
}

/* Others need not be waited for when we stop. */
static void test_native_averager_stops_in_a_round(void **unused)
{
    (void)unused;
    start();
    join();
    say_hello(&asks[1]);
    give(&asks[1], 0, 10, 4, 2);
    assert_int_equal(done, 0);
    end();
    assert_int_equal(done, 1);
    assert_int_equal(done_status, MUSTER_ECANCELED);
    assert_true(values[0] == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_native_averager_without_a_step_turns_callers_away),
        cmocka_unit_test(test_native_averager_has_so_many_callers),
        cmocka_unit_test(test_native_averager_survives_hostile_members),
        cmocka_unit_test(test_native_averager_counts_a_client),
        cmocka_unit_test(test_native_averager_keeps_so_many_messages),
        cmocka_unit_test(test_native_averager_waits_in_so_many_rounds),
        cmocka_unit_test(test_native_averager_stops_in_a_round),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
