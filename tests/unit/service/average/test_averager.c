/*
 * An averager among peers that behave badly, in the simulator: node a averages, node b asks it by
 * hand, what it likes.
 */
#include <float.h>

#include "peer_rig.h"

#include "codec/average/power.h"
#include "codec/average/schema.h"
#include "crypto/hash.h"
#include "service/average/averager.h"
#include "service/state/swarm.h"

#define PREFIX "run"
#define JOIN   "run::DecentralizedAverager.rpc_join_group"
#define PART   "run::DecentralizedAverager.rpc_aggregate_part"
#define COUNT  100 /* values */
#define CALLS  16

/* A call of b's. */
struct ask {
    struct mu_peer_items items;
    int replies;
    int ended;
    int status;
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
static uint64_t shape[] = {COUNT, 0};
static size_t axes = 1;
static uint8_t *data[] = {(uint8_t *)values};
static int start_status;
static struct mu_errmsg start_text;
static int done, done_status;
static uint32_t done_members, done_local;
static char done_why[256];
static struct ask asks[CALLS];
static struct mu_avg_reply group;

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
    (void)arg;
    config.host = rig.node[0].host;
    config.calls = mu_state_swarm_calls(swarms[0]);
    config.dht = mu_state_swarm_dht(swarms[0]);
    start_status = mu_averager_start(&config, &averager, &start_text);
}

static void prepare(void)
{
    rig_open(&rig, 2, NULL);
    rig_run_all(&rig);
    stopped = 0;
    memset(asks, 0, sizeof(asks));
    done = 0;
    mu_layout_init(&layout);
    assert_int_equal(mu_layout_add(&layout, MU_SPAN_LIT("w"), MU_DTYPE_F32, shape, axes), 0);
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = 1;
    }
    rig_introduce(&rig.node[1], &rig.node[0]);
    for (size_t i = 0; i < 2; i++) {
        mu_sim_call(rig.node[i].proc, open_swarm, &rig.node[i]);
        rig_run(&rig, 3000);
    }
    config = mu_averager_config_defaults();
    config.prefix = PREFIX;
    config.layout = &layout;
    config.data = data;
    config.part_bytes = 40; /* ten parts */
    config.sender_ms = 2000;
    config.reducer_ms = 4000;
    config.stopped = on_stopped;
}

static void start(void)
{
    mu_sim_call(rig.node[0].proc, start_inside, NULL);
    assert_int_equal(start_status, 0);
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
        if (asks[i].items.calls != NULL && asks[i].ended == 0) {
            mu_peer_items_cancel(&asks[i].items);
        }
    }
}

static void end(bool started)
{
    mu_sim_call(rig.node[1].proc, cancel_asks, NULL);
    if (started) {
        mu_sim_call(rig.node[0].proc, stop_averager, NULL);
        rig_run(&rig, 12000);
        assert_int_equal(stopped, 1);
    }
    for (size_t i = 0; i < 2; i++) {
        mu_sim_call(rig.node[i].proc, stop_swarm, swarms[i]);
        rig_run(&rig, 10000);
    }
    assert_int_equal(stopped, started ? 3 : 2);
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
    done_members = (uint32_t)result->member_count;
    done_local = result->parts_local;
    done_why[0] = '\0';
    for (size_t i = 0; i < result->member_count; i++) {
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
    assert_int_equal(mu_averager_step(averager, &step, &msg), MUSTER_EBUSY);
}

/* --- what b asks ------------------------------------------------------------------------------ */

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
    struct ask *k = MU_CONTAINER_OF(items, struct ask, items);

    (void)text;
    k->ended++;
    k->status = status;
}

static const struct mu_peer_items_events events = {.item = on_reply, .ended = on_ended};

static const char *method;

static void ask_inside(void *arg)
{
    struct ask *k = arg;

    k->items.on = &events;
    mu_peer_items_open(mu_state_swarm_calls(swarms[1]), &k->items, &rig.node[0].identity.id,
                       method);
}

static struct mu_span to_send;

static void send_inside(void *arg)
{
    struct ask *k = arg;

    assert_int_equal(mu_peer_items_send(&k->items, to_send), 0);
}

static void ask(struct ask *k, const char *name, struct mu_span message)
{
    method = name;
    mu_sim_call(rig.node[1].proc, ask_inside, k);
    if (message.len != 0) {
        to_send = message;
        mu_sim_call(rig.node[1].proc, send_inside, k);
    }
    rig_run(&rig, 500);
}

static void send(struct ask *k, struct mu_span message)
{
    to_send = message;
    mu_sim_call(rig.node[1].proc, send_inside, k);
}

static void end_inside(void *arg)
{
    assert_int_equal(mu_peer_items_end(&((struct ask *)arg)->items), 0);
}

/* The call ends when b has ended its requests, and not before. */
static void end_requests(struct ask *k)
{
    assert_int_equal(k->ended, 0);
    mu_sim_call(rig.node[1].proc, end_inside, k);
    rig_run(&rig, 500);
    assert_int_equal(k->ended, 1);
}

static void expect_code(struct ask *k, enum mu_avg_code code)
{
    struct mu_avg_data message;

    assert_int_equal(k->replies, 1);
    end_requests(k);
    assert_int_equal(mu_avg_data_decode(mu_span(k->last, k->last_len), &message), 0);
    assert_int_equal(message.code, code);
    assert_int_equal(k->ended, 1);
    assert_int_equal(k->status, 0);
}

static struct mu_span part_of(struct mu_buf *out, struct mu_span group_id, bool first,
                              uint64_t elements, float value)
{
    struct mu_avg_data message = {.code = first ? MU_AVG_PART_FOR_AVERAGING : MU_AVG_NO_CODE,
                                  .group_id = first ? group_id : (struct mu_span){0},
                                  .weight = 1,
                                  .tensor = true,
                                  .dtype = MU_DTYPE_F32,
                                  .elements = elements};
    float some[COUNT];

    for (size_t i = 0; i < COUNT; i++) {
        some[i] = value;
    }
    mu_buf_reset(out);
    assert_int_equal(mu_avg_data_encode(&message, mu_span(some, (size_t)elements * 4), out), 0);
    return mu_buf_span(out);
}

static struct mu_span join_request(struct mu_buf *out)
{
    static uint8_t schema[MU_AVG_SCHEMA_LEN];
    static const uint8_t gather[] = {0x93, 0xc0, 0x00, 0xc4, 0x01, 0xc0};
    struct mu_avg_join join = {.schema_hash = mu_span(schema, sizeof(schema)),
                               .gather = mu_span(gather, sizeof(gather)),
                               .group_key = MU_SPAN_LIT(PREFIX ".0b")};
    struct mu_buf text;

    mu_buf_init(&text, 4096);
    assert_int_equal(mu_avg_schema_encode(&layout, &text), 0);
    mu_sha1(schema, mu_buf_span(&text));
    mu_buf_fini(&text);
    mu_buf_reset(out);
    assert_int_equal(mu_avg_join_encode(&join, out), 0); /* no time counts as never */
    return mu_buf_span(out);
}

/* a looks for a group, b joins it by hand, and the group begins. */
static void join(struct mu_buf *out)
{
    mu_sim_call(rig.node[0].proc, step_inside, NULL);
    rig_run(&rig, 200);
    ask(&asks[0], JOIN, join_request(out));
    assert_int_equal(asks[0].replies, 1);
    rig_run(&rig, 6000);
    assert_int_equal(asks[0].replies, 2);
    assert_int_equal(mu_avg_reply_decode(mu_span(asks[0].last, asks[0].last_len), &group), 0);
    assert_int_equal(group.code, MU_AVG_BEGIN_ALLREDUCE);
    assert_int_equal(group.member_count, 2);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_averager_without_a_step_says_so(void **unused)
{
    static const uint8_t id[MU_AVG_GROUP_ID_LEN] = {1};
    struct mu_avg_reply reply;
    struct mu_buf out;

    (void)unused;
    prepare();
    start();
    mu_buf_init(&out, 4096);
    ask(&asks[0], JOIN, join_request(&out));
    assert_int_equal(asks[0].replies, 1);
    assert_int_equal(mu_avg_reply_decode(mu_span(asks[0].last, asks[0].last_len), &reply), 0);
    assert_int_equal(reply.code, MU_AVG_NOT_LOOKING_FOR_GROUP);
    end_requests(&asks[0]);
    ask(&asks[1], PART, part_of(&out, mu_span(id, sizeof(id)), true, 10, 0));
    expect_code(&asks[1], MU_AVG_BAD_GROUP_ID);
    ask(&asks[2], PART, part_of(&out, mu_span(id, sizeof(id)), false, 10, 0));
    expect_code(&asks[2], MU_AVG_INTERNAL_ERROR);
    ask(&asks[3], PART, MU_SPAN_LIT("nonsense"));
    expect_code(&asks[3], MU_AVG_INTERNAL_ERROR);
    mu_buf_fini(&out);
    end(true);
}

static void test_averager_has_so_many_streams(void **unused)
{
    (void)unused;
    prepare();
    config.streams_peer_max = 3;
    start();
    for (size_t i = 0; i < 4; i++) {
        ask(&asks[i], i % 2 == 0 ? JOIN : PART, (struct mu_span){0});
    }
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(asks[i].ended, 0);
    }
    assert_int_equal(asks[3].ended, 1);
    /* Who says nothing is not waited for. */
    rig_run(&rig, 12000);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(asks[i].ended, 1);
    }
    ask(&asks[4], JOIN, (struct mu_span){0});
    assert_int_equal(asks[4].ended, 0);
    end(true);
    prepare();
    config.streams_max = 2;
    start();
    for (size_t i = 0; i < 3; i++) {
        ask(&asks[i], JOIN, (struct mu_span){0});
    }
    assert_int_equal(asks[1].ended, 0);
    assert_int_equal(asks[2].ended, 1);
    end(true);
}

static void test_averager_needs_a_group_of_its_size(void **unused)
{
    struct mu_buf out;

    (void)unused;
    prepare();
    config.size_min = 1;
    mu_sim_call(rig.node[0].proc, start_inside, NULL);
    assert_int_equal(start_status, MUSTER_EINVAL);
    config.size_min = 3;
    start();
    mu_buf_init(&out, 4096);
    mu_sim_call(rig.node[0].proc, step_inside, NULL);
    rig_run(&rig, 200);
    ask(&asks[0], JOIN, join_request(&out));
    rig_run(&rig, 70000);
    assert_int_equal(done, 1);
    assert_int_equal(done_status, MUSTER_ETIMEDOUT);
    assert_int_equal(done_members, 0);
    mu_buf_fini(&out);
    end(true);
}

/* What b sends when the group has begun. It serves nothing, so its own share is always lost. */
enum hostile {
    SILENT,
    LEAVES,
    WRONG_LENGTH,
    NOT_FINITE,
    TOO_LARGE, /* finite, and no sum with it is */
    CHANGED,
    TOO_MANY,
    HOSTILE_KINDS,
};

static void misbehave(enum hostile kind, struct mu_buf *out)
{
    if (kind == SILENT) {
        return;
    }
    ask(&asks[1], PART,
        part_of(out, group.group_id, true, kind == WRONG_LENGTH ? 1 : 10,
                kind == NOT_FINITE  ? __builtin_nanf("")
                : kind == TOO_LARGE ? FLT_MAX
                                    : 3));
    if (kind == LEAVES) {
        mu_sim_call(rig.node[1].proc, cancel_asks, NULL);
        asks[1].ended = 1;
    } else if (kind == CHANGED) {
        struct mu_avg_data other = {
            .tensor = true, .weight = 2, .dtype = MU_DTYPE_F32, .elements = 10};
        float some[10] = {0};

        mu_buf_reset(out);
        assert_int_equal(mu_avg_data_encode(&other, mu_span(some, sizeof(some)), out), 0);
        send(&asks[1], mu_buf_span(out));
    } else if (kind == TOO_MANY) {
        for (int i = 0; i < 5; i++) {
            send(&asks[1], part_of(out, group.group_id, false, 10, 3));
        }
    }
}

static void test_averager_survives_hostile_members(void **unused)
{
    struct mu_buf out;

    (void)unused;
    mu_buf_init(&out, 4096);
    for (int kind = 0; kind < HOSTILE_KINDS; kind++) {
        prepare();
        start();
        join(&out);
        misbehave((enum hostile)kind, &out);
        rig_run(&rig, 10000);
        assert_int_equal(done, 1);
        assert_int_equal(done_status, 0);
        assert_int_equal(done_members, 2);
        assert_int_equal(done_local, 5); /* b's share; a's own holds an average */
        assert_string_not_equal(done_why, "");
        for (size_t i = 0; i < COUNT; i++) {
            assert_true(values[i] >= 1 && values[i] <= 3);
        }
        end(true);
    }
    mu_buf_fini(&out);
}

static void suffix(uint8_t id[MU_AVG_GROUP_ID_MAX], const char *phase)
{
    memcpy(id, group.group_id.data, MU_AVG_GROUP_ID_LEN);
    memcpy(id + MU_AVG_GROUP_ID_LEN, phase, strlen(phase));
}

/* Two phases of PowerSGD, in each of which a and b own half: b sends its parts of the second before
 * those of the first, or none. */
static void run_power(bool sends, struct mu_buf *out)
{
    const size_t len = MU_AVG_GROUP_ID_LEN + sizeof(MU_AVG_PHASE_P) - 1;
    uint8_t p[MU_AVG_GROUP_ID_MAX];
    uint8_t q[MU_AVG_GROUP_ID_MAX];

    prepare();
    config.part_bytes = 20;
    config.power_rank = MU_AVG_RANK_MAX + 1;
    mu_sim_call(rig.node[0].proc, start_inside, NULL);
    assert_int_equal(start_status, MUSTER_EINVAL);
    config.power_rank = 1;
    config.sender_ms = 5000; /* the first phase lasts until then without b's parts */
    start();
    join(out);
    suffix(p, MU_AVG_PHASE_P);
    suffix(q, MU_AVG_PHASE_Q);
    if (sends) {
        ask(&asks[1], PART, part_of(out, mu_span(q, len), true, 5, 3));
        assert_int_equal(asks[1].replies, 0);
        assert_int_equal(asks[1].ended, 0);
        ask(&asks[2], PART, part_of(out, group.group_id, true, 5, 3));
        expect_code(&asks[2], MU_AVG_BAD_GROUP_ID);
        ask(&asks[3], PART, part_of(out, mu_span(p, len), true, 5, 2));
    }
    rig_run(&rig, 12000);
    assert_int_equal(done, 1);
    assert_int_equal(done_status, 0);
    assert_int_equal(done_local, 2); /* b's share of both phases */
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(values[i] > 0 && values[i] < 10);
    }
    if (sends) {
        struct mu_avg_data answer;

        for (size_t i = 1; i <= 3; i += 2) {
            assert_int_equal(asks[i].replies, 1);
            assert_int_equal(mu_avg_data_decode(mu_span(asks[i].last, asks[i].last_len), &answer),
                             0);
            assert_int_equal(answer.code, MU_AVG_AVERAGED_PART);
            assert_int_equal(answer.elements, 5);
        }
    }
    end(true);
}

static void test_averager_power(void **unused)
{
    struct mu_buf out;

    (void)unused;
    mu_buf_init(&out, 4096);
    shape[0] = shape[1] = 10;
    axes = 2;
    run_power(true, &out);
    run_power(false, &out);
    shape[0] = COUNT;
    axes = 1;
    mu_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_averager_without_a_step_says_so),
        cmocka_unit_test(test_averager_has_so_many_streams),
        cmocka_unit_test(test_averager_needs_a_group_of_its_size),
        cmocka_unit_test(test_averager_survives_hostile_members),
        cmocka_unit_test(test_averager_power),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
