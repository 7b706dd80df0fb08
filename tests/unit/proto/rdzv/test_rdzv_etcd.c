/*
 * The etcd rendezvous: its texts, byte for byte as PyTorch writes them, its URL, and the machine
 * where the golden traces (tests/trace/rdzv-etcd-*.txt) do not look: answers that nobody waits for,
 * servers that will never do, and no memory.
 */
#include "unit.h"

#include "codec/rdzv/etcd_state.h"
#include "failheap.h"
#include "proto/rdzv/etcd.h"
#include "service/rdzv/url.h"

#define KEY0 "/p/run_x/rdzv/v_1/rank_0"
#define KEY1 "/p/run_x/rdzv/v_1/rank_1"

static void expect_edit(const char *text, struct mu_retcd_edit edit, const char *expected)
{
    struct mu_buf out;

    mu_buf_init(&out, MU_RETCD_STATE_MAX);
    assert_int_equal(mu_retcd_state_edit(mu_span_str(text), &edit, &out), 0);
    assert_int_equal(mu_buf_append(&out, mu_span("", 1)), 0);
    assert_string_equal((const char *)mu_buf_span(&out).data, expected);
    mu_buf_fini(&out);
}

static void test_rdzv_etcd_state_edits_write_what_python_would(void **state)
{
    (void)state;
    expect_edit("{\"status\": \"joinable\", \"version\": \"1\", \"participants\": []}",
                (struct mu_retcd_edit){.join = true},
                "{\"status\": \"joinable\", \"version\": \"1\", \"participants\": [0]}");
    expect_edit("{\"status\": \"joinable\", \"version\": \"1\", \"participants\": [0]}",
                (struct mu_retcd_edit){.join = true, .status = "frozen", .empty_keep_alives = true},
                "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0, 1], "
                "\"keep_alives\": []}");
    expect_edit("{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0, 1], "
                "\"keep_alives\": [\"" KEY1 "\"]}",
                (struct mu_retcd_edit){
                    .status = "final", .keep_alive = KEY0, .set_waiting = true, .waiting = 0},
                "{\"status\": \"final\", \"version\": \"1\", \"participants\": [0, 1], "
                "\"keep_alives\": [\"" KEY1 "\", \"" KEY0 "\"], \"num_workers_waiting\": 0}");
    expect_edit("{\"status\": \"final\", \"more\": [1,2], \"num_workers_waiting\": 1}",
                (struct mu_retcd_edit){.set_waiting = true, .waiting = 2},
                "{\"status\": \"final\", \"more\": [1,2], \"num_workers_waiting\": 2}");
    expect_edit("{\"status\": \"setup\"}", (struct mu_retcd_edit){.status = "closed"},
                "{\"status\": \"closed\"}");
}

static void test_rdzv_etcd_state_reads_every_status_and_refuses_nonsense(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"status\": 1}",
        "{\"status\": \"setup\", \"status\": \"setup\"}",
        "{\"status\": \"joinable\", \"participants\": []}",
        "{\"status\": \"joinable\", \"version\": 1, \"participants\": []}",
        "{\"status\": \"joinable\", \"version\": \"1/..\", \"participants\": []}",
        "{\"status\": \"joinable\", \"version\": \"0\", \"participants\": []}",
        "{\"status\": \"joinable\", \"version\": \"1\", \"participants\": 3}",
        "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0]}",
        "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0], \"keep_alives\": [1]}",
        "{\"status\": \"final\", \"version\": \"1\", \"participants\": [0], \"keep_alives\": []}",
        ("{\"status\": \"final\", \"version\": \"1\", \"participants\": [0], \"keep_alives\": [], "
         "\"num_workers_waiting\": -1}"),
    };
    struct mu_retcd_state s;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(mu_retcd_state_decode(mu_span_str(bad[i]), &s), MUSTER_EPROTO);
    }
    assert_int_equal(mu_retcd_state_decode(MU_SPAN_LIT("{\"status\": \"odd\"}"), &s), 0);
    assert_int_equal(s.status, MU_RETCD_OTHER);
    assert_int_equal(
        mu_retcd_state_decode(MU_SPAN_LIT("{\"status\": \"final\", \"version\": \"12\", "
                                          "\"participants\": [0, 1], \"keep_alives\": [\"a\", "
                                          "\"b\"], \"num_workers_waiting\": 3}"),
                              &s),
        0);
    assert_int_equal(s.status, MU_RETCD_FINAL);
    assert_int_equal(s.version, 12);
    assert_int_equal(s.participants, 2);
    assert_int_equal(s.keep_alives, 2);
    assert_int_equal(s.waiting, 3);
}

static void test_rdzv_etcd_state_finds_the_keep_alive_that_is_missing(void **state)
{
    struct mu_span text = MU_SPAN_LIT("{\"status\": \"final\", \"keep_alives\": [\"" KEY0
                                      "\", \"p\\/run_x/rdzv/v_1/rank_1\"]}");
    struct mu_etcd2_node nodes[] = {{.key = MU_SPAN_LIT("/p/run_x/rdzv/v_1")},
                                    {.key = MU_SPAN_LIT(KEY0)},
                                    {.key = MU_SPAN_LIT(KEY1)}};
    struct mu_etcd2_reply listing = {.nodes = nodes, .node_count = 3};
    uint64_t rank = 0;
    bool has = false;

    (void)state;
    assert_int_equal(mu_retcd_state_missing(text, &listing, NULL, &rank), 0);
    listing.node_count = 2;
    assert_int_equal(mu_retcd_state_missing(text, &listing, NULL, &rank), 1);
    assert_int_equal(rank, 1);
    assert_int_equal(mu_retcd_state_missing(text, &listing, KEY1, &rank), 0);
    assert_int_equal(mu_retcd_state_has(text, KEY1, &has), 0);
    assert_true(has);
    assert_int_equal(mu_retcd_state_has(text, KEY1 "1", &has), 0);
    assert_false(has);
}

static void test_rdzv_etcd_extra_data_is_one_object_of_texts(void **state)
{
    struct mu_buf out;
    struct mu_buf more;
    struct mu_buf value;

    (void)state;
    mu_buf_init(&out, 4096);
    mu_buf_init(&more, 4096);
    mu_buf_init(&value, 4096);
    assert_int_equal(
        mu_retcd_extra_edit((struct mu_span){0}, MU_SPAN_LIT("a"), MU_SPAN_LIT("1"), &out), 0);
    assert_true(mu_span_eq(mu_buf_span(&out), MU_SPAN_LIT("{\"a\": \"1\"}")));
    assert_int_equal(
        mu_retcd_extra_edit(mu_buf_span(&out), MU_SPAN_LIT("b"), MU_SPAN_LIT("2"), &more), 0);
    assert_true(mu_span_eq(mu_buf_span(&more), MU_SPAN_LIT("{\"a\": \"1\", \"b\": \"2\"}")));
    assert_int_equal(mu_retcd_extra_get(mu_buf_span(&more), MU_SPAN_LIT("b"), &value), 1);
    assert_true(mu_span_eq(mu_buf_span(&value), MU_SPAN_LIT("2")));
    assert_int_equal(mu_retcd_extra_get(mu_buf_span(&more), MU_SPAN_LIT("c"), &value), 0);
    assert_int_equal(mu_retcd_extra_get(MU_SPAN_LIT("[]"), MU_SPAN_LIT("c"), &value),
                     MUSTER_EPROTO);
    mu_buf_fini(&out);
    mu_buf_fini(&more);
    mu_buf_fini(&value);
}

/* --- the URL ---------------------------------------------------------------------------------- */

static void test_rdzv_url_says_what_options_would(void **state)
{
    struct mu_rdzv_params given = {
        .backend = "",
        .endpoint = "etcd://h:2379/1234?min_workers=1&max_workers=3&last_call_timeout=5"
                    "&etcd_prefix=%2Fx%20y&protocol=https",
        .config = "timeout=9",
        .nodes_min = 7,
        .nodes_max = 7,
    };
    struct mu_errmsg msg;
    struct mu_rdzv_url u;

    (void)state;
    assert_true(mu_rdzv_url_is("", given.endpoint));
    assert_false(mu_rdzv_url_is("", "h:2379"));
    assert_true(mu_rdzv_url_is("etcd", given.endpoint));
    assert_false(mu_rdzv_url_is("etcd-v3", given.endpoint)); /* That is what it calls a cluster. */
    assert_int_equal(mu_rdzv_url_init(&u, &given, &msg), 0);
    assert_string_equal(u.params.backend, "etcd");
    assert_string_equal(u.params.endpoint, "h:2379");
    assert_string_equal(u.params.run_id, "1234");
    assert_int_equal(u.params.nodes_min, 1);
    assert_int_equal(u.params.nodes_max, 3);
    assert_string_equal(u.params.config,
                        "timeout=9,last_call_timeout=5,etcd_prefix=/x y,protocol=https");
    mu_rdzv_url_fini(&u);
}

static void test_rdzv_url_refuses_in_words(void **state)
{
    static const struct {
        const char *endpoint;
        const char *backend;
        const char *words;
    } cases[] = {
        {"etcd://h/j?min_workers=0", "", "min_workers=0"},
        {"etcd://h/j?max_workers=x", "etcd", "max_workers=x"},
        {"etcd://h/j?cacert=a,b", "", "cacert"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_rdzv_params given = {.backend = cases[i].backend, .endpoint = cases[i].endpoint};
        struct mu_errmsg msg = {{0}};
        struct mu_rdzv_url u;

        assert_int_equal(mu_rdzv_url_init(&u, &given, &msg), MUSTER_EINVAL);
        assert_non_null(strstr(msg.text, cases[i].words));
    }
}

/* --- the machine ------------------------------------------------------------------------------ */

static void start(struct mu_retcd *m, struct mu_retcd_update *up)
{
    struct mu_retcd_config config = mu_retcd_config_defaults();

    config.run_id = "x";
    config.prefix = "p/"; /* As "/p". */
    assert_int_equal(mu_retcd_init(m, &config), 0);
    mu_retcd_step(m, &(struct mu_retcd_event){.type = MU_RETCD_JOIN}, up);
}

static struct mu_retcd_event answer_of(const struct mu_retcd *m, int status,
                                       const struct mu_etcd2_reply *reply)
{
    return (struct mu_retcd_event){.type = MU_RETCD_ANSWER,
                                   .lane = MU_RETCD_MAIN,
                                   .number = m->lanes[MU_RETCD_MAIN].request.number,
                                   .status = status,
                                   .text = "words",
                                   .reply = reply};
}

static void test_rdzv_etcd_drops_answers_that_nobody_waits_for(void **state)
{
    struct mu_etcd2_reply done = {0};
    struct mu_retcd_update up;
    struct mu_retcd_event event;
    struct mu_retcd m;

    (void)state;
    start(&m, &up);
    assert_int_equal(up.requests, 1u << MU_RETCD_MAIN);
    assert_true(mu_span_eq(m.lanes[MU_RETCD_MAIN].request.key, MU_SPAN_LIT("/p")));
    event = answer_of(&m, 0, &done);
    event.number++;
    mu_retcd_step(&m, &event, &up);
    assert_int_equal(up.requests, 0);
    event.number--;
    mu_retcd_step(&m, &event, &up);
    assert_int_equal(up.requests, 1u << MU_RETCD_MAIN);
    mu_retcd_step(&m, &event, &up); /* Twice. */
    assert_int_equal(up.requests, 0);
    mu_retcd_step(&m, &(struct mu_retcd_event){.type = MU_RETCD_LEAVE}, &up);
    assert_int_equal(up.flags, MU_RETCD_LEFT);
    assert_int_equal(up.cancels, 1u << MU_RETCD_MAIN);
    mu_retcd_fini(&m);
}

static void test_rdzv_etcd_gives_up_at_once_where_time_does_not_heal(void **state)
{
    struct mu_retcd_update up;
    struct mu_retcd_event event;
    struct mu_retcd m;

    (void)state;
    start(&m, &up);
    event = answer_of(&m, MUSTER_EVERSION, NULL);
    mu_retcd_step(&m, &event, &up);
    assert_int_equal(up.flags, MU_RETCD_FAILED);
    assert_int_equal(up.code, MUSTER_ERDZV_CONN);
    assert_string_equal(up.text.text, "words");
    mu_retcd_fini(&m);
}

/* Through to a round, with every allocation failing in turn. */
static bool reach_round(struct mu_retcd *m)
{
    static const char *const reads[] = {
        "0",
        "{\"status\": \"joinable\", \"version\": \"1\", \"participants\": []}",
        "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0], \"keep_alives\": []}",
        "{\"status\": \"frozen\", \"version\": \"1\", \"participants\": [0], \"keep_alives\": []}",
        ("{\"status\": \"final\", \"version\": \"1\", \"participants\": [0], \"keep_alives\": "
         "[\"/p/run_x/rdzv/v_1/rank_0\"], \"num_workers_waiting\": 0}"),
    };
    struct mu_etcd2_node node = {.modified = 7};
    struct mu_etcd2_reply reply = {.nodes = &node, .node_count = 1};
    struct mu_retcd_update up;
    size_t read = 0;

    mu_retcd_step(m, &(struct mu_retcd_event){.type = MU_RETCD_JOIN}, &up);
    for (int i = 0; i < 200; i++) {
        struct mu_retcd_event event = {.type = MU_RETCD_TIMEOUT, .now = mu_retcd_deadline(m)};

        if ((up.flags & MU_RETCD_ASSIGNED) != 0) {
            return true;
        }
        if (m->lanes[MU_RETCD_MAIN].out) {
            bool get = m->lanes[MU_RETCD_MAIN].request.verb == MU_RETCD_GET;

            node.value = get ? mu_span_str(reads[read]) : (struct mu_span){0};
            event = answer_of(m, 0, &reply);
            event.now = m->now;
            read += get && read < 4 ? 1 : 0;
        }
        mu_retcd_step(m, &event, &up);
        if (strcmp(mu_retcd_phase_name(m), "create") == 0) {
            read = 0; /* It has begun anew. */
        }
    }
    return false;
}

static void test_rdzv_etcd_bears_a_want_of_memory(void **state)
{
    bool fired = true;

    (void)state;
    for (long nth = 0; fired; nth++) {
        struct mu_retcd_config config = mu_retcd_config_defaults();
        struct mu_retcd_update up;
        struct mu_retcd m;

        config.run_id = "x";
        config.prefix = "/p";
        assert_int_equal(mu_retcd_init(&m, &config), 0);
        failheap_arm(nth);
        mu_retcd_step(&m, &(struct mu_retcd_event){.type = MU_RETCD_JOIN}, &up);
        (void)reach_round(&m);
        fired = failheap_fired();
        failheap_disarm();
        /* Once there is memory again, all is well. */
        assert_true(reach_round(&m));
        mu_retcd_fini(&m);
        assert_true(nth < 200);
    }
}

static void test_rdzv_etcd_prefix_is_so_long(void **unused)
{
    struct mu_retcd_config config = mu_retcd_config_defaults();
    char prefix[MU_RETCD_PREFIX_MAX + 2] = "";
    struct mu_retcd m;

    (void)unused;
    memset(prefix, 'p', MU_RETCD_PREFIX_MAX);
    config.run_id = "x";
    config.prefix = prefix;
    assert_int_equal(mu_retcd_init(&m, &config), 0);
    mu_retcd_fini(&m);
    prefix[MU_RETCD_PREFIX_MAX] = 'p';
    assert_int_equal(mu_retcd_init(&m, &config), MUSTER_EINVAL);
}

/* Meets VERSION_DIGITS_MAX of codec/rdzv/etcd_state.c. */
static void test_rdzv_etcd_state_reads_versions_that_are_so_long(void **unused)
{
    static const char *const texts[] = {
        "{\"status\": \"joinable\", \"version\": \"123456789012345678\", \"participants\": []}",
        "{\"status\": \"joinable\", \"version\": \"1234567890123456789\", \"participants\": []}",
    };
    struct mu_retcd_state s;

    (void)unused;
    assert_int_equal(mu_retcd_state_decode(mu_span_str(texts[0]), &s), 0);
    assert_true(s.version == UINT64_C(123456789012345678));
    assert_int_equal(mu_retcd_state_decode(mu_span_str(texts[1]), &s), MUSTER_EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_etcd_state_edits_write_what_python_would),
        cmocka_unit_test(test_rdzv_etcd_state_reads_every_status_and_refuses_nonsense),
        cmocka_unit_test(test_rdzv_etcd_state_finds_the_keep_alive_that_is_missing),
        cmocka_unit_test(test_rdzv_etcd_extra_data_is_one_object_of_texts),
        cmocka_unit_test(test_rdzv_url_says_what_options_would),
        cmocka_unit_test(test_rdzv_url_refuses_in_words),
        cmocka_unit_test(test_rdzv_etcd_drops_answers_that_nobody_waits_for),
        cmocka_unit_test(test_rdzv_etcd_gives_up_at_once_where_time_does_not_heal),
        cmocka_unit_test(test_rdzv_etcd_bears_a_want_of_memory),
        cmocka_unit_test(test_rdzv_etcd_prefix_is_so_long),
        cmocka_unit_test(test_rdzv_etcd_state_reads_versions_that_are_so_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
