/* Goal: endpoints and configurations mean what they mean to PyTorch, and what means nothing is
 * refused in words that name it. */
#include "unit.h"

#include <stdio.h>

#include "codec/rdzv/params.h"

struct endpoint {
    const char *text;
    const char *host;
    uint16_t port;
};

static void test_rdzv_endpoint_is_read_as_pytorch_reads_it(void **state)
{
    static const struct endpoint cases[] = {
        {NULL, "localhost", 29400},
        {"", "localhost", 29400},
        {" \t\n", "localhost", 29400},
        {"host", "host", 29400},
        {"host:1", "host", 1},
        {"host:0", "host", 0},
        {"  host:1\n", "host", 1},
        {"h_1.x:07", "h_1.x", 7},
        {"host:00080", "host", 80},
        {"host:65535", "host", 65535},
        {"[::1]", "::1", 29400},
        {"[::1]:5", "::1", 5},
        {"::1:5", "::1", 5},
        {"2001:db8::2:29400", "2001:db8::2", 29400},
        {"[host]:5", "host", 5},
        {"127.0.0.1", "127.0.0.1", 29400},
        {"-a-", "-a-", 29400},
        {"b\xc3\xbc"
         "cher.example:2",
         "b\xc3\xbc"
         "cher.example",
         2},
        {"\xe8\x8a\x82\xe7\x82\xb9:2", "\xe8\x8a\x82\xe7\x82\xb9", 2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_errmsg msg = {0};
        struct mu_addr addr = {0};

        if (mu_rdzv_endpoint_parse(cases[i].text, MU_RDZV_PORT, &addr, &msg) != 0) {
            fail_msg("%s: %s", cases[i].text, msg.text);
        }
        assert_int_equal(addr.kind, MU_ADDR_TCP);
        assert_string_equal(addr.host, cases[i].host);
        assert_int_equal(addr.port, cases[i].port);
    }
}

static void test_rdzv_endpoint_that_is_none_is_refused_in_words(void **state)
{
    static const struct {
        const char *text;
        const char *word;
    } cases[] = {
        {"host:", "port"},
        {"host:-1", "port"},
        {"host: 5", "port"},
        {"host:65536", "port"},
        {"host:99999", "port"},
        {"host:123456", "port"},
        {"host:1x", "port"},
        {"host:+1", "port"},
        {"a b:1", "host"},
        {"http://x:1", "host"},
        {":5", "host"},
        {"[::1", "host"},
        {"[]", "host"},
        {"[]:5", "host"},
        {"a/b", "host"},
        {"a\x01", "host"},
        {"a\x80", "host"},
        {"a\xc3", "host"},
        {"a\xc2\xa0", "host"},
        {"a\xe2\x80\x8b", "host"},
        {"a\xed\xa0\x80", "host"},
        {"a\xf5\x80\x80\x80", "host"},
        {"a\xe3\x80\x80:1", "host"},
        {"::1", "[address]"},
        {"fe80::1", "[address]"},
        {"1:2:3:4:5:6:7:8", "[address]"},
        {"::::5", "[address]"},
        {"[a:b]:1", "[address]"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_errmsg msg = {0};
        struct mu_addr addr = {.port = 77};

        if (mu_rdzv_endpoint_parse(cases[i].text, MU_RDZV_PORT, &addr, &msg) != MUSTER_EINVAL) {
            fail_msg("%s was taken", cases[i].text);
        }
        if (strstr(msg.text, cases[i].word) == NULL) {
            fail_msg("%s: %s", cases[i].text, msg.text);
        }
        assert_int_equal(addr.port, 77);
    }
}

static void test_rdzv_endpoint_host_of_255_bytes_fits_and_one_more_does_not(void **state)
{
    char text[300];
    struct mu_errmsg msg = {0};
    struct mu_addr addr;

    (void)state;
    memset(text, 'a', sizeof(text));
    text[MU_ADDR_HOST_MAX] = '\0';
    assert_int_equal(mu_rdzv_endpoint_parse(text, 1, &addr, &msg), 0);
    assert_int_equal(strlen(addr.host), MU_ADDR_HOST_MAX);
    text[MU_ADDR_HOST_MAX] = 'a';
    text[MU_ADDR_HOST_MAX + 1] = '\0';
    assert_int_equal(mu_rdzv_endpoint_parse(text, 1, &addr, &msg), MUSTER_EINVAL);
}

static void test_rdzv_config_items_are_trimmed_and_the_last_of_a_key_wins(void **state)
{
    const char *config = "  a = 1 ,b=x=y,\tc=2, a=3 ";
    struct mu_errmsg msg = {0};
    struct mu_span value = {0};

    (void)state;
    assert_int_equal(mu_rdzv_config_check(config, &msg), 0);
    assert_true(mu_rdzv_config_get(config, "a", &value));
    assert_span_text(value, "3");
    assert_true(mu_rdzv_config_get(config, "b", &value));
    assert_span_text(value, "x=y");
    assert_true(mu_rdzv_config_get(config, "c", &value));
    assert_span_text(value, "2");
    assert_false(mu_rdzv_config_get(config, "d", &value));
    assert_false(mu_rdzv_config_get(NULL, "a", &value));
    assert_int_equal(mu_rdzv_config_check(NULL, &msg), 0);
    assert_int_equal(mu_rdzv_config_check("", &msg), 0);
    assert_int_equal(mu_rdzv_config_check(" \t", &msg), 0);
}

static void test_rdzv_config_list_ends_at_the_next_key(void **state)
{
    const char *config = "a=1,via = x:1, y:2 ,z:3 ,b=2";
    struct mu_errmsg msg = {0};
    struct mu_span value = {0};
    struct mu_span rest = mu_span_str(config);
    struct mu_span key;
    int keys = 0;

    (void)state;
    assert_int_equal(mu_rdzv_config_check(config, &msg), 0);
    assert_true(mu_rdzv_config_get(config, "via", &value));
    assert_span_text(value, "x:1, y:2 ,z:3");
    assert_true(mu_rdzv_config_get(config, "b", &value));
    assert_span_text(value, "2");
    while (mu_rdzv_config_next(&rest, &key)) {
        keys++;
    }
    assert_int_equal(keys, 3);
    /* A list does not begin with nothing, and no other value is one. */
    assert_int_equal(mu_rdzv_config_check("via=,x:1", &msg), MUSTER_EINVAL);
    assert_int_equal(mu_rdzv_config_check("via=x:1,,b=2", &msg), MUSTER_EINVAL);
    assert_int_equal(mu_rdzv_config_check("via=x:1,", &msg), MUSTER_EINVAL);
    assert_int_equal(mu_rdzv_config_check("a=x:1,y:2", &msg), MUSTER_EINVAL);
}

static void test_rdzv_config_item_without_key_or_value_is_named(void **state)
{
    static const struct {
        const char *text;
        const char *word;
    } cases[] = {
        {"=1", "item 1"},      {"a=1,", "item 2"}, {",a=1", "item 1"},
        {"a=1, =2", "item 2"}, {"a", "\"a\""},     {"a=", "\"a\""},
        {"a=1,b= ", "\"b\""},  {",", "item 1"},    {"a=1,,b=2", "item 2"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_errmsg msg = {0};

        assert_int_equal(mu_rdzv_config_check(cases[i].text, &msg), MUSTER_EINVAL);
        if (strstr(msg.text, cases[i].word) == NULL) {
            fail_msg("%s: %s", cases[i].text, msg.text);
        }
    }
}

static void test_rdzv_config_bool_knows_pytorchs_words(void **state)
{
    static const char *const yes[] = {"1", "true", "t", "yes", "y", "TRUE", "True", "Y"};
    static const char *const no[] = {"0", "false", "f", "no", "n", "FALSE", "No"};
    static const char *const bad[] = {"2", "on", "tru", "truee", "01", "-"};
    struct mu_errmsg msg = {0};
    char config[32];
    bool value;

    (void)state;
    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
        (void)snprintf(config, sizeof(config), "k=%s", yes[i]);
        value = false;
        assert_int_equal(mu_rdzv_config_bool(config, "k", false, &value, &msg), 0);
        assert_true(value);
    }
    for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++) {
        (void)snprintf(config, sizeof(config), "k=%s", no[i]);
        value = true;
        assert_int_equal(mu_rdzv_config_bool(config, "k", true, &value, &msg), 0);
        assert_false(value);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        (void)snprintf(config, sizeof(config), "k=%s", bad[i]);
        assert_int_equal(mu_rdzv_config_bool(config, "k", true, &value, &msg), MUSTER_EINVAL);
        assert_non_null(strstr(msg.text, "'k'"));
        assert_non_null(strstr(msg.text, bad[i]));
    }
    assert_int_equal(mu_rdzv_config_bool("", "k", true, &value, &msg), 0);
    assert_true(value);
}

static void test_rdzv_config_int_takes_what_python_takes_within_64_bits(void **state)
{
    static const struct {
        const char *config;
        int64_t value;
    } good[] = {
        {"k=0", 0},   {"k=-7", -7},      {"k=+7", 7},
        {"k=007", 7}, {"k=1_000", 1000}, {"k=9223372036854775807", INT64_MAX},
        {"x=1", 42},  {"", 42},
    };
    static const char *const bad[] = {"k=x",
                                      "k=1.5",
                                      "k=1e3",
                                      "k=-",
                                      "k=--1",
                                      "k=_1",
                                      "k=1_",
                                      "k=1__0",
                                      "k=0x10",
                                      "k=1 2",
                                      "k=9223372036854775808",
                                      "k=99999999999999999999999"};
    struct mu_errmsg msg = {0};
    int64_t value;

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        value = -1;
        assert_int_equal(mu_rdzv_config_int(good[i].config, "k", 42, &value, &msg), 0);
        assert_int_equal(value, good[i].value);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (mu_rdzv_config_int(bad[i], "k", 42, &value, &msg) != MUSTER_EINVAL) {
            fail_msg("%s was taken", bad[i]);
        }
        assert_non_null(strstr(msg.text, "integer"));
    }
}

static void test_rdzv_config_seconds_are_above_zero_and_at_most_a_year(void **state)
{
    static const struct {
        const char *config;
        uint64_t ms;
    } good[] = {
        {"k=5", 5000},
        {"k=0.25", 250},
        {"k=.5", 500},
        {"k=3.", 3000},
        {"k=0.0001", 1},
        {"k=1.0019", 1002},
        {"k=5s", 5000},
        {"k=500ms", 500},
        {"k=1.5ms", 2},
        {"k=0.1ms", 1},
        {"k=1.5m", 90000},
        {"k=2h", 7200000},
        {"k=8784h", UINT64_C(31622400000)},
        {"k=31622400", UINT64_C(31622400000)},
        {"x=1", 77},
    };
    static const char *const bad[] = {
        "k=0",     "k=0.0", "k=-1",       "k=+1",    "k=1d",
        "k=8785h", "k=0ms", "k=ms",       "k=5sm",   "k=5 s",
        "k=1e3",   "k=.",   "k=31622401", "k=1.2.3", "k=99999999999999999999999999"};
    struct mu_errmsg msg = {0};
    uint64_t ms;

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        ms = 0;
        assert_int_equal(mu_rdzv_config_seconds(good[i].config, "k", 77, &ms, &msg), 0);
        assert_int_equal(ms, good[i].ms);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ms = 1234;
        if (mu_rdzv_config_seconds(bad[i], "k", 77, &ms, &msg) != MUSTER_EINVAL) {
            fail_msg("%s was taken", bad[i]);
        }
        assert_int_equal(ms, 1234);
        assert_non_null(strstr(msg.text, "'k'"));
    }
}

static void expect_refused(struct mu_rdzv_params params, const char *word)
{
    struct mu_errmsg msg = {0};

    assert_int_equal(mu_rdzv_params_check(&params, &msg), MUSTER_EINVAL);
    if (strstr(msg.text, word) == NULL) {
        fail_msg("no '%s' in: %s", word, msg.text);
    }
}

static void test_rdzv_params_are_checked_one_by_one(void **state)
{
    const struct mu_rdzv_params good = {
        .backend = "c10d", .run_id = "run", .nodes_min = 1, .nodes_max = 1};
    struct mu_rdzv_params p = good;
    struct mu_errmsg msg = {0};
    char run_id[MU_RDZV_RUN_ID_MAX + 2];

    (void)state;
    assert_int_equal(mu_rdzv_params_check(&good, &msg), 0);
    p.backend = "";
    expect_refused(p, "backend");
    p.backend = NULL;
    expect_refused(p, "backend");
    p = good;
    p.run_id = NULL;
    expect_refused(p, "run id");
    memset(run_id, 'r', sizeof(run_id));
    run_id[MU_RDZV_RUN_ID_MAX] = '\0';
    p.run_id = run_id;
    assert_int_equal(mu_rdzv_params_check(&p, &msg), 0);
    run_id[MU_RDZV_RUN_ID_MAX] = 'r';
    run_id[MU_RDZV_RUN_ID_MAX + 1] = '\0';
    expect_refused(p, "256 bytes");
    p = good;
    p.nodes_min = 0;
    expect_refused(p, "minimum");
    p.nodes_min = 2;
    expect_refused(p, "maximum");
    p = good;
    p.config = "a";
    expect_refused(p, "\"a\"");
}

static void test_rdzv_config_as_long_as_may_be_is_taken_and_one_byte_more_is_refused(void **state)
{
    static char config[MU_RDZV_CONFIG_LEN_MAX + 2] = "a=";
    struct mu_errmsg msg = {0};

    (void)state;
    memset(config + 2, 'x', MU_RDZV_CONFIG_LEN_MAX - 2);
    assert_int_equal(mu_rdzv_config_check(config, &msg), 0);
    config[MU_RDZV_CONFIG_LEN_MAX] = 'x';
    assert_int_equal(mu_rdzv_config_check(config, &msg), MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "65537 bytes"));
}

static void test_rdzv_losses_are_a_number_and_a_time(void **state)
{
    static const char *const bad[] = {"",      "100",  "/60",   "100/",     "100/0",        "-1/60",
                                      "1.5/2", "a/60", "100/a", "100/60/1", "4294967295/60"};
    struct mu_errmsg msg;
    uint32_t max;
    uint64_t ms;

    (void)state;
    assert_int_equal(mu_rdzv_losses_parse(mu_span_str("100/3600"), &max, &ms, &msg), 0);
    assert_int_equal(max, 100);
    assert_int_equal(ms, 3600000);
    assert_int_equal(mu_rdzv_losses_parse(mu_span_str("0/0.5"), &max, &ms, &msg), 0);
    assert_int_equal(max, 0);
    assert_int_equal(ms, 500);
    assert_int_equal(mu_rdzv_losses_parse(mu_span_str("100/1h"), &max, &ms, &msg), 0);
    assert_int_equal(ms, 3600000);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(mu_rdzv_losses_parse(mu_span_str(bad[i]), &max, &ms, &msg), MUSTER_EINVAL);
        assert_non_null(strstr(msg.text, "write N/TIME, such as 100/1h"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_endpoint_is_read_as_pytorch_reads_it),
        cmocka_unit_test(test_rdzv_endpoint_that_is_none_is_refused_in_words),
        cmocka_unit_test(test_rdzv_endpoint_host_of_255_bytes_fits_and_one_more_does_not),
        cmocka_unit_test(test_rdzv_config_items_are_trimmed_and_the_last_of_a_key_wins),
        cmocka_unit_test(test_rdzv_config_list_ends_at_the_next_key),
        cmocka_unit_test(test_rdzv_config_item_without_key_or_value_is_named),
        cmocka_unit_test(test_rdzv_config_as_long_as_may_be_is_taken_and_one_byte_more_is_refused),
        cmocka_unit_test(test_rdzv_config_bool_knows_pytorchs_words),
        cmocka_unit_test(test_rdzv_config_int_takes_what_python_takes_within_64_bits),
        cmocka_unit_test(test_rdzv_config_seconds_are_above_zero_and_at_most_a_year),
        cmocka_unit_test(test_rdzv_losses_are_a_number_and_a_time),
        cmocka_unit_test(test_rdzv_params_are_checked_one_by_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
