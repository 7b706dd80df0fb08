/* Averaging, as a program does it: members in two runtimes, on loopback. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <muster/muster.h>

#define MEMBERS 4
#define COUNT   30000 /* values of the first tensor */

static muster_runtime *runtimes[2];

struct member {
    muster_average *average;
    float a[COUNT];
    float b[6];
    float c; /* a tensor without dimensions */
    struct muster_tensor tensors[3];
    double weight;
    int64_t timeout_ms;
    int status;
    char text[400];
    struct muster_average_result *result;
    pthread_t thread;
};

static struct member members[MEMBERS];

static int set_up(void **state)
{
    (void)state;
    return muster_runtime_new(&runtimes[0]) != 0 || muster_runtime_new(&runtimes[1]) != 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (size_t i = 0; i < MEMBERS; i++) {
        muster_average_result_free(members[i].result);
        muster_average_close(members[i].average);
        members[i] = (struct member){0};
    }
    muster_runtime_free(runtimes[0]);
    muster_runtime_free(runtimes[1]);
    return 0;
}

static void must(int err)
{
    if (err != 0) {
        fail_msg("%s", muster_errmsg());
    }
}

/* --- members ---------------------------------------------------------------------------------- */

static float value_of(size_t i, size_t at)
{
    return (float)(i * 10 + at % 7);
}

static void fill(size_t i)
{
    struct member *m = &members[i];

    for (size_t k = 0; k < COUNT; k++) {
        m->a[k] = value_of(i, k);
    }
    for (size_t k = 0; k < 6; k++) {
        m->b[k] = value_of(i, k);
    }
    m->c = (float)i;
}

static struct muster_average_config config_of(size_t i)
{
    static const uint64_t shape_a[] = {COUNT};
    static const uint64_t shape_b[] = {2, 3};
    static const char *first[1];
    struct muster_average_config config = muster_average_config_defaults();
    struct member *m = &members[i];

    m->tensors[0] = (struct muster_tensor){
        .name = "a", .dtype = MUSTER_DTYPE_F32, .rank = 1, .shape = shape_a, .data = m->a};
    m->tensors[1] = (struct muster_tensor){
        .name = "b", .dtype = MUSTER_DTYPE_F32, .rank = 2, .shape = shape_b, .data = m->b};
    m->tensors[2] = (struct muster_tensor){.name = "c", .dtype = MUSTER_DTYPE_F32, .data = &m->c};
    first[0] = members[0].average == NULL ? NULL : muster_average_address(members[0].average);
    config.prefix = "run";
    config.tensors = m->tensors;
    config.tensor_count = 3;
    config.part_bytes = 10000;
    config.dht = first;
    config.dht_count = first[0] == NULL ? 0 : 1;
    config.target_size = 2;
    config.matchmaking_ms = 1500;
    config.request_ms = 700;
    m->weight = 1;
    m->timeout_ms = 60000;
    fill(i);
    return config;
}

static void open_member(size_t i, const struct muster_average_config *config)
{
    must(muster_average_open(runtimes[i % 2], config, &members[i].average));
}

static void *step(void *arg)
{
    struct member *m = arg;

    m->status = muster_average_step(m->average, m->weight, m->timeout_ms, &m->result);
    (void)snprintf(m->text, sizeof(m->text), "%s", muster_errmsg());
    return NULL;
}

/* All of them at once. */
static void step_all(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        muster_average_result_free(members[i].result);
        members[i].result = NULL;
        assert_int_equal(pthread_create(&members[i].thread, NULL, step, &members[i]), 0);
    }
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(pthread_join(members[i].thread, NULL), 0);
    }
}

static void assert_mean(size_t count, float tolerance)
{
    double total = 0;

    for (size_t i = 0; i < count; i++) {
        total += members[i].weight;
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < COUNT; k++) {
            double mean = 0;

            for (size_t j = 0; j < count; j++) {
                mean += members[j].weight * (double)value_of(j, k) / total;
            }
            assert_true(fabs((double)members[i].a[k] - mean) <= (double)tolerance);
        }
    }
}

static void assert_good(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct muster_average_result *r = members[i].result;

        if (members[i].status != 0) {
            fail_msg("%s", members[i].text);
        }
        assert_non_null(r);
        assert_int_equal(r->member_count, count);
        assert_int_equal(r->parts_local, 0);
        assert_int_equal(strlen(r->group_id), 40);
        assert_string_equal(r->group_id, members[0].result->group_id);
        assert_string_equal(r->members[r->position].peer, muster_average_peer(members[i].average));
        assert_true(r->bytes_received > 0 && r->bytes_sent > 0);
    }
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_average_of_two(void **state)
{
    struct muster_average_config config = config_of(0);

    (void)state;
    open_member(0, &config);
    config = config_of(1);
    open_member(1, &config);
    members[1].weight = 3;
    for (int round = 0; round < 3; round++) {
        fill(0);
        fill(1);
        step_all(2);
        assert_good(2);
        assert_mean(2, 1e-5f);
        assert_string_equal(muster_average_result_digest(members[0].result), "");
        assert_false(muster_average_result_counted(members[0].result, 0));
        assert_true(fabsf(members[0].c - 0.75f) < 1e-6f);
    }
}

static void test_average_of_four_with_a_client(void **state)
{
    struct muster_average_config config;

    (void)state;
    for (size_t i = 0; i < MEMBERS; i++) {
        config = config_of(i);
        config.target_size = MEMBERS;
        config.encoding = "MEANSTD_16BIT"; /* of a tensor without dimensions as well */
        if (i == 3) {
            config.mode = MUSTER_AVERAGE_CLIENT;
            config.listen = NULL;
        }
        if (i == 2) {
            config.mode = MUSTER_AVERAGE_AUX;
        }
        open_member(i, &config);
        members[i].weight = i == 2 ? 0 : (double)(i + 1);
    }
    step_all(MEMBERS);
    assert_good(MEMBERS);
    assert_mean(MEMBERS, 0.05f);
}

static void test_average_in_a_queue(void **state)
{
    struct muster_average_config config = config_of(0);
    struct muster_average_request request = muster_average_request_defaults();
    struct muster_average_result *result;
    struct muster_queued event;
    muster_queue *queue;

    (void)state;
    open_member(0, &config);
    must(muster_queue_new(runtimes[0], &queue));
    request.queue = queue;
    request.context = &config;
    request.timeout_ms = 60000;
    assert_int_equal(muster_average_wait(members[0].average, 0), MUSTER_ENOENT);
    assert_int_equal(muster_average_end(members[0].average, &result), MUSTER_ENOENT);
    must(muster_average_begin(members[0].average, &request));
    assert_int_equal(muster_average_begin(members[0].average, &request), MUSTER_EBUSY);
    assert_int_equal(muster_average_wait(members[0].average, 0), MUSTER_ETIMEDOUT);
    muster_average_cancel(members[0].average);
    must(muster_queue_wait(queue, 60000));
    assert_int_equal(muster_queue_take(queue, &event, 1), 1);
    assert_int_equal(event.kind, MUSTER_QUEUED_AVERAGED);
    assert_ptr_equal(event.object, members[0].average);
    assert_ptr_equal(event.context, &config);
    assert_int_equal(muster_average_begin(members[0].average, &request), MUSTER_EBUSY);
    assert_int_equal(muster_average_end(members[0].average, &result), MUSTER_ECANCELED);
    assert_non_null(result);
    assert_int_equal(result->member_count, 0);
    muster_average_result_free(result);
    muster_average_close(members[0].average);
    members[0].average = NULL;
    muster_queue_free(queue);
}

static void expect_refusal(struct muster_average_config *config, int err, const char *words)
{
    muster_average *average;

    assert_int_equal(muster_average_open(runtimes[0], config, &average), err);
    if (strstr(muster_errmsg(), words) == NULL) {
        fail_msg("%s", muster_errmsg());
    }
}

static void test_average_refuses_what_cannot_be(void **state)
{
    struct muster_average_config config = config_of(0);
    struct muster_tensor integer = {.name = "i", .dtype = MUSTER_DTYPE_I64, .data = members[0].a};

    (void)state;
    config.prefix = "a.b";
    expect_refusal(&config, MUSTER_EINVAL, "dot");
    config.prefix = "";
    expect_refusal(&config, MUSTER_EINVAL, "empty");
    config = config_of(0);
    config.tensor_count = 0;
    expect_refusal(&config, MUSTER_EINVAL, "no tensors");
    config = config_of(0);
    config.tensors = &integer;
    config.tensor_count = 1;
    expect_refusal(&config, MUSTER_ENOTSUP, "i is I64");
    config = config_of(0);
    config.size_min = 1;
    expect_refusal(&config, MUSTER_EINVAL, "2 to 256");
    config = config_of(0);
    config.size_min = 3; /* more than the two that are aimed at */
    expect_refusal(&config, MUSTER_EINVAL, "smaller than the least that is wanted, 3");
    config = config_of(0);
    config.request_ms = config.matchmaking_ms;
    expect_refusal(&config, MUSTER_EINVAL, "shorter");
    config = config_of(0);
    config.part_bytes = 2;
    expect_refusal(&config, MUSTER_EINVAL, "parts of 2 bytes");
    config.part_bytes = (16U << 20) + 1;
    expect_refusal(&config, MUSTER_EINVAL, "at most 16777216");
    config = config_of(0);
    config.described =
        (const enum muster_dtype[]){MUSTER_DTYPE_F16, MUSTER_DTYPE_I32, MUSTER_DTYPE_F16};
    expect_refusal(&config, MUSTER_EINVAL, "F32, F16, BF16 or F64");
}

static void test_average_refuses_tensors_that_share_memory(void **state)
{
    uint64_t two = 2;
    struct muster_tensor shared[] = {
        {.name = "x",
         .dtype = MUSTER_DTYPE_F32,
         .rank = 1,
         .shape = &two,
         .data = members[0].a + 1},
        {.name = "y",
         .dtype = MUSTER_DTYPE_F32,
         .rank = 1,
         .shape = &two,
         .data = members[0].a + 3},
        {.name = "z", .dtype = MUSTER_DTYPE_F32, .data = members[0].a + 2},
    };
    struct muster_average_config config = config_of(0);

    (void)state;
    config.tensors = shared;
    config.tensor_count = 3;
    expect_refusal(&config, MUSTER_EINVAL, "tensors x and z share memory");
}

static void test_average_refuses_wires_and_places_that_cannot_be(void **state)
{
    struct muster_average_config config = config_of(0);

    (void)state;
    config.encoding = "FLOAT61";
    expect_refusal(&config, MUSTER_EINVAL, "BLOCKWISE_8BIT");
    config = config_of(0);
    config.wire = "nativ";
    expect_refusal(&config, MUSTER_EINVAL, "no such wire");
    config.wire = "native";
    config.encoding = "FLOAT16";
    expect_refusal(&config, MUSTER_EINVAL, "native wire");
    config.encoding = NULL;
    config.averager = "GradientAverager";
    expect_refusal(&config, MUSTER_EINVAL, "class of hivemind's");
    config = config_of(0);
    config.wire = "native";
    config.target_size = 65;
    expect_refusal(&config, MUSTER_EINVAL, "2 to 64");
    config = config_of(0);
    config.group_bits = "012";
    expect_refusal(&config, MUSTER_EINVAL, "bits");
    config = config_of(0);
    config.listen = NULL;
    expect_refusal(&config, MUSTER_EINVAL, "client");
    config = config_of(0);
    config.dht = (const char *const[]){"/ip4/127.0.0.1/tcp/1"};
    config.dht_count = 1;
    expect_refusal(&config, MUSTER_EURL, "names no peer");
    config.dht = (const char *const[]){
        "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWQVcsi3Hz26LZem5gvQpNpJ2DKoRC2af3C2xHB49tDSDz"};
    expect_refusal(&config, MUSTER_EDHT_NOBODY, "cannot join the DHT");
    config = config_of(0);
    config.listen = "/ip4/0.0.0.0/tcp/0";
    expect_refusal(&config, MUSTER_ELOCKED, "average with us");
    config.listen = "0.0.0.0:0";
    expect_refusal(&config, MUSTER_EINVAL, "not a multiaddr");
}

static void test_average_refuses_values_that_are_not_finite(void **state)
{
    struct muster_average_config config = config_of(0);

    (void)state;
    open_member(0, &config);
    members[0].b[5] = NAN;
    assert_int_equal(muster_average_step(members[0].average, 1, 1000, NULL), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "tensor b"));
    members[0].b[5] = 1e36F;
    assert_int_equal(muster_average_step(members[0].average, 1, 1000, NULL), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "too large"));
    members[0].b[5] = 0;
    assert_int_equal(muster_average_step(members[0].average, -1, 1000, NULL), MUSTER_EINVAL);
    assert_int_equal(muster_average_step(members[0].average, (double)NAN, 1000, NULL),
                     MUSTER_EINVAL);
}

static void test_average_says_that_nobody_came(void **state)
{
    struct muster_average_config config = config_of(0);

    (void)state;
    open_member(0, &config);
    members[0].timeout_ms = 1000;
    step_all(1);
    assert_int_equal(members[0].status, MUSTER_ETIMEDOUT);
    assert_non_null(strstr(members[0].text, "nobody else looked for one in run.0b"));
    assert_true(members[0].a[1] == value_of(0, 1));
}

static void test_average_says_that_tensors_differ(void **state)
{
    struct muster_average_config config = config_of(0);

    (void)state;
    open_member(0, &config);
    config = config_of(1);
    config.tensor_count = 2;
    open_member(1, &config);
    members[0].timeout_ms = members[1].timeout_ms = 8000;
    step_all(2);
    assert_int_equal(members[0].status, MUSTER_ETIMEDOUT);
    assert_int_equal(members[1].status, MUSTER_ETIMEDOUT);
    /* Whoever asked the other was told, and who was asked knows as well. */
    assert_non_null(strstr(members[0].text, "other shapes or types"));
    assert_non_null(strstr(members[1].text, "other shapes or types"));
}

/* --- the native wire -------------------------------------------------------------------------- */

static void open_natives(size_t count, const char *encoding)
{
    for (size_t i = 0; i < count; i++) {
        struct muster_average_config config = config_of(i);

        config.target_size = (uint32_t)count;
        config.wire = "native";
        config.encoding = encoding;
        open_member(i, &config);
    }
}

static bool is_same(const struct member *a, const struct member *b)
{
    return memcmp(a->a, b->a, sizeof(a->a)) == 0 && memcmp(a->b, b->b, sizeof(a->b)) == 0 &&
           memcmp(&a->c, &b->c, sizeof(a->c)) == 0;
}

/* All that succeeded hold the same bits, and their results name the same members. */
static void assert_agreed(size_t count)
{
    const struct member *first = NULL;

    for (size_t i = 0; i < count; i++) {
        const struct member *m = &members[i];

        if (m->status != 0) {
            assert_int_equal(m->a[1] == value_of(i, 1) && m->a[COUNT - 1] == value_of(i, COUNT - 1),
                             true);
            continue;
        }
        first = first == NULL ? m : first;
        assert_int_equal(strlen(muster_average_result_digest(m->result)), 64);
        assert_string_equal(muster_average_result_digest(m->result),
                            muster_average_result_digest(first->result));
        assert_int_equal(m->result->parts_local, 0);
        assert_true(is_same(m, first));
        for (size_t k = 0; k < m->result->member_count; k++) {
            assert_int_equal(muster_average_result_counted(m->result, k),
                             muster_average_result_counted(first->result, k));
            assert_string_equal(m->result->members[k].peer, first->result->members[k].peer);
        }
    }
}

static void test_average_of_four_on_the_native_wire(void **state)
{
    (void)state;
    open_natives(MEMBERS, NULL);
    for (size_t i = 0; i < MEMBERS; i++) {
        members[i].weight = (double)(i + 1);
    }
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < MEMBERS; i++) {
            fill(i);
        }
        step_all(MEMBERS);
        assert_good(MEMBERS);
        assert_mean(MEMBERS, 1e-5f);
        assert_agreed(MEMBERS);
        for (size_t k = 0; k < MEMBERS; k++) {
            assert_true(muster_average_result_counted(members[0].result, k));
            assert_string_equal(members[0].result->members[k].why, "");
        }
    }
}

static void test_average_natively_with_a_client_in_a_byte(void **state)
{
    static const char *const encodings[] = {"INT8", "FP8"};

    (void)state;
    for (size_t e = 0; e < 2; e++) {
        for (size_t i = 0; i < 3; i++) {
            struct muster_average_config config = config_of(i);

            config.target_size = 3;
            config.wire = "native";
            config.encoding = encodings[e];
            config.mode = i == 2 ? MUSTER_AVERAGE_CLIENT : MUSTER_AVERAGE_NODE;
            config.listen = i == 2 ? NULL : config.listen;
            open_member(i, &config);
        }
        step_all(3);
        assert_good(3);
        assert_mean(3, e == 0 ? 0.3f : 1.6f);
        assert_agreed(3);
        /* A byte for each value, to and fro, instead of four. */
        assert_true(members[0].result->bytes_sent < sizeof(members[0].a) * 3 / 4);
        for (size_t i = 0; i < 3; i++) {
            muster_average_close(members[i].average);
            members[i].average = NULL;
        }
    }
}

/* A member dies in the middle of a round, as far as the others can see. */
static void test_average_natively_without_one_that_goes(void **state)
{
    struct muster_average_look look;

    (void)state;
    open_natives(MEMBERS, NULL);
    for (size_t i = 0; i < MEMBERS; i++) {
        assert_int_equal(pthread_create(&members[i].thread, NULL, step, &members[i]), 0);
    }
    do {
        muster_average_look(members[3].average, &look);
    } while (look.phase == MUSTER_AVERAGE_SEARCHING || look.phase == MUSTER_AVERAGE_FOLLOWING);
    muster_average_cancel(members[3].average);
    for (size_t i = 0; i < MEMBERS; i++) {
        assert_int_equal(pthread_join(members[i].thread, NULL), 0);
    }
    for (size_t i = 0; i < 3; i++) {
        if (members[i].status != 0) {
            fail_msg("member %zu: %s", i, members[i].text);
        }
    }
    assert_agreed(MEMBERS);
}

static void test_average_of_other_wires_and_encodings_never_meets(void **state)
{
    struct muster_average_config config = config_of(0);

    (void)state;
    config.target_size = 0;
    config.wire = "native";
    open_member(0, &config);
    config = config_of(1);
    open_member(1, &config);
    config = config_of(2);
    config.wire = "native";
    config.encoding = "INT8";
    config.target_size = 0;
    open_member(2, &config);
    for (size_t i = 0; i < 3; i++) {
        members[i].timeout_ms = 6000;
    }
    step_all(3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(members[i].status, MUSTER_ETIMEDOUT);
        assert_true(members[i].a[1] == value_of(i, 1));
    }
    assert_non_null(strstr(members[1].text, "nobody else looked for one in run.0b"));
    assert_true(strstr(members[0].text, "encoding") != NULL ||
                strstr(members[2].text, "encoding") != NULL);
}

/* One peer shares its state and averages. */
static void test_average_through_a_state(void **state)
{
    struct muster_state_config donor = muster_state_config_defaults();
    struct muster_average_config config;
    muster_average *second;
    muster_state *shared;

    (void)state;
    donor.listen = "/ip4/127.0.0.1/tcp/0";
    donor.key = "";
    donor.dht = (const char *const[]){NULL};
    must(muster_state_open(runtimes[0], &donor, &shared));
    config = config_of(0);
    config.through = shared;
    open_member(0, &config);
    assert_string_equal(muster_average_address(members[0].average), muster_state_address(shared));
    assert_int_equal(muster_average_open(runtimes[0], &config, &second), MUSTER_EEXIST);
    config = config_of(1);
    open_member(1, &config);
    step_all(2);
    assert_good(2);
    assert_mean(2, 1e-5f);
    muster_average_close(members[0].average);
    members[0].average = NULL;
    muster_state_close(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_average_of_two, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_average_of_four_with_a_client, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_average_in_a_queue, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_average_refuses_what_cannot_be, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_average_refuses_tensors_that_share_memory, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_average_refuses_wires_and_places_that_cannot_be,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_average_refuses_values_that_are_not_finite, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_average_says_that_nobody_came, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_average_says_that_tensors_differ, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_average_through_a_state, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_average_of_four_on_the_native_wire, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_average_natively_with_a_client_in_a_byte, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_average_natively_without_one_that_goes, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_average_of_other_wires_and_encodings_never_meets,
                                        set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
