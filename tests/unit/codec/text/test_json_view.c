/* JSON in place: what is valid, walking, numbers, strings, and the splitter on every cut. */
#include "unit.h"

#include <muster/error.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec/text/json_view.h"
#include "core/prng.h"

static void test_json_view_knows_what_is_valid(void **unused)
{
    static const char *const good[] = {
        "{}",
        "[]",
        " {\"a\":1} ",
        "[1,-0.5e+10,true,false,null,\"x\\u00e9\\n\"]",
        "{\"a\":{\"b\":[{}]}}",
        "0",
        "\"\"",
        "[[],[[]]]",
        "{\"a\":\"}\"}",
    };
    static const char *const bad[] = {
        "",           " ",       "{",           "}",        "{}}",
        "{} {}",      "[1,]",    "{\"a\"}",     "{\"a\":}", "{a:1}",
        "01",         "1.",      "-",           "+1",       "1e",
        "tru",        "\"\\x\"", "\"\\u12g4\"", "\"a\nb\"", "[1 2]",
        "{\"a\":1,}", "\"",      "{]",          "[}",       "nul",
        "[\"a\":1]",  "{1:2}",   "[",           "]",        "[,1]",
        ".5",         "1e+",     "truex",       "\"\\",     "1 2",
        "[1],",       "nan",     "{\"a\" 1}",   "'a'",      "{\"a\":1 \"b\":2}",
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        if (!mu_jv_valid(mu_span_str(good[i]))) {
            fail_msg("%s is refused", good[i]);
        }
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (mu_jv_valid(mu_span_str(bad[i]))) {
            fail_msg("%s is taken", bad[i]);
        }
    }
}

static void test_json_view_depth_is_bounded(void **unused)
{
    char text[2 * (MU_JV_DEPTH_MAX + 1) + 1];

    (void)unused;
    for (size_t depth = MU_JV_DEPTH_MAX; depth <= MU_JV_DEPTH_MAX + 1; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        assert_int_equal(mu_jv_valid(mu_span(text, 2 * depth)), depth == MU_JV_DEPTH_MAX);
    }
}

static void test_json_view_every_cut_of_a_text_is_refused(void **unused)
{
    static const char text[] = "{\"a\\u0041\": [1.5e3, true, null, {\"b\": \"c\"}]}";

    (void)unused;
    for (size_t len = 0; len < sizeof(text) - 1; len++) {
        /* In a block of its own, so that a sanitizer sees a step beyond. */
        char *cut = malloc(len + 1);

        memcpy(cut, text, len);
        assert_false(mu_jv_valid(mu_span(cut, len)));
        free(cut);
    }
    assert_true(mu_jv_valid(mu_span_str(text)));
}

static void test_json_view_walk_finds_members_and_elements(void **unused)
{
    struct mu_span root = mu_jv_root(
        MU_SPAN_LIT(" { \"a\" : [1, {\"x\":\"]}\"}, \"b\\\"\"] , \"bb\":true,\"a\":2} "));
    struct mu_jv_walk w = mu_jv_walk(mu_jv_member(root, "a"));
    struct mu_span value;

    (void)unused;
    assert_true(mu_jv_next(&w, NULL, &value));
    assert_span_text(value, "1");
    assert_true(mu_jv_next(&w, NULL, &value));
    assert_span_text(mu_jv_member(value, "x"), "\"]}\"");
    assert_true(mu_jv_next(&w, NULL, &value));
    assert_span_text(value, "\"b\\\"\"");
    assert_false(mu_jv_next(&w, NULL, &value));
    assert_true(mu_jv_is_true(mu_jv_member(root, "bb")));
    assert_int_equal(mu_jv_member(root, "b").len, 0);
    assert_int_equal(mu_jv_member(MU_SPAN_LIT("[1]"), "b").len, 0);
}

static void test_json_view_walk_passes_escapes(void **unused)
{
    static const char *const strings[] = {"\\\"", "\\\\", "\\\\\\\"", "x\\\"y\\\"", "", "\\\\\\\\"};

    (void)unused;
    for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++) {
        char text[64];
        int64_t number;

        (void)snprintf(text, sizeof(text), "[{\"s\":\"%s\"},{\"n\":7}]", strings[i]);
        assert_true(mu_jv_valid(mu_span_str(text)));
        {
            struct mu_jv_walk w = mu_jv_walk(mu_jv_root(mu_span_str(text)));
            struct mu_span value;

            assert_true(mu_jv_next(&w, NULL, &value));
            assert_true(mu_jv_next(&w, NULL, &value));
            assert_true(mu_jv_int(mu_jv_member(value, "n"), &number));
            assert_int_equal(number, 7);
            assert_false(mu_jv_next(&w, NULL, &value));
        }
    }
}

static void test_json_view_numbers_are_whole_and_fit(void **unused)
{
    int64_t n;

    (void)unused;
    assert_true(mu_jv_int(MU_SPAN_LIT("\"-9223372036854775808\""), &n));
    assert_true(n == INT64_MIN);
    assert_true(mu_jv_int(MU_SPAN_LIT("9223372036854775807"), &n));
    assert_true(n == INT64_MAX);
    assert_false(mu_jv_int(MU_SPAN_LIT("9223372036854775808"), &n));
    assert_false(mu_jv_int(MU_SPAN_LIT("99999999999999999999999"), &n));
    assert_false(mu_jv_int(MU_SPAN_LIT("1.5"), &n));
    assert_false(mu_jv_int(MU_SPAN_LIT("\"\""), &n));
    assert_false(mu_jv_int(MU_SPAN_LIT("\"-\""), &n));
    assert_false(mu_jv_int((struct mu_span){0}, &n));
    assert_int_equal(n, 0);
}

static void test_json_view_strings_lose_their_escapes(void **unused)
{
    struct mu_buf out;
    struct mu_span text;

    (void)unused;
    mu_buf_init(&out, 256);
    assert_int_equal(mu_buf_reserve(&out, 128), 0);
    assert_true(mu_jv_string(MU_SPAN_LIT("\"plain\""), &out, &text));
    assert_span_text(text, "plain");
    assert_int_equal(out.len, 0);
    assert_true(
        mu_jv_string(MU_SPAN_LIT("\"a\\/\\\"\\n\\u00e9\\u20ac\\ud83d\\ude00z\""), &out, &text));
    assert_span_text(text, "a/\"\n\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z");
    assert_false(mu_jv_string(MU_SPAN_LIT("\"\\ud83d\""), &out, &text));
    assert_false(mu_jv_string(MU_SPAN_LIT("\"\\ude00\\ud83d\""), &out, &text));
    assert_false(mu_jv_string(MU_SPAN_LIT("12"), &out, &text));
    mu_buf_fini(&out);
}

static const char stream[] = " {\"a\":\"}{\\\"\"}\n{\"b\":[{},{\"c\":\"\\\\\"}]}{}\n";

/* The objects of the stream, with a '|' behind each, when it comes in pieces of that size. */
static void split_in(size_t size, struct mu_prng *prng, char *out)
{
    struct mu_jv_split s = {0};
    size_t at = 0;

    while (at < sizeof(stream) - 1) {
        size_t n = prng != NULL ? 1 + mu_prng_below(prng, size) : size;
        struct mu_span in =
            mu_span(stream + at, n < sizeof(stream) - 1 - at ? n : sizeof(stream) - 1 - at);

        at += in.len;
        while (in.len > 0) {
            size_t used;
            bool whole;

            assert_int_equal(mu_jv_split(&s, in, &used, &whole), 0);
            for (size_t i = 0; i < used; i++) {
                if (in.data[i] != '\n') {
                    *out++ = (char)in.data[i];
                }
            }
            if (whole) {
                *out++ = '|';
            }
            in = mu_span_skip(in, used);
        }
    }
    *out = '\0';
}

static void test_json_view_split_is_the_same_however_it_comes(void **unused)
{
    struct mu_prng prng;
    char text[256];

    (void)unused;
    for (size_t size = 1; size < sizeof(stream); size++) {
        split_in(size, NULL, text);
        assert_string_equal(text, " {\"a\":\"}{\\\"\"}|{\"b\":[{},{\"c\":\"\\\\\"}]}|{}|");
    }
    mu_prng_seed(&prng, 1);
    for (int i = 0; i < 100; i++) {
        split_in(7, &prng, text);
        assert_string_equal(text, " {\"a\":\"}{\\\"\"}|{\"b\":[{},{\"c\":\"\\\\\"}]}|{}|");
    }
}

static void test_json_view_split_stays_broken(void **unused)
{
    static const char *const bad[] = {"x", "\"a\"", "]", "}", "[1]", "404 page not found"};

    (void)unused;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mu_jv_split s = {0};
        size_t used;
        bool whole;

        assert_int_equal(mu_jv_split(&s, mu_span_str(bad[i]), &used, &whole), MUSTER_EPROTO);
        assert_int_equal(mu_jv_split(&s, MU_SPAN_LIT("{}"), &used, &whole), MUSTER_EPROTO);
        assert_false(whole);
    }
}

static void test_json_view_split_depth_is_bounded(void **unused)
{
    struct mu_jv_split s = {0};
    size_t used;
    bool whole;
    int err = 0;

    (void)unused;
    for (size_t i = 0; i < 1000 && err == 0; i++) {
        err = mu_jv_split(&s, MU_SPAN_LIT("{"), &used, &whole);
        assert_true(i <= MU_JV_DEPTH_MAX);
    }
    assert_int_equal(err, MUSTER_EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_view_knows_what_is_valid),
        cmocka_unit_test(test_json_view_depth_is_bounded),
        cmocka_unit_test(test_json_view_every_cut_of_a_text_is_refused),
        cmocka_unit_test(test_json_view_walk_finds_members_and_elements),
        cmocka_unit_test(test_json_view_walk_passes_escapes),
        cmocka_unit_test(test_json_view_numbers_are_whole_and_fit),
        cmocka_unit_test(test_json_view_strings_lose_their_escapes),
        cmocka_unit_test(test_json_view_split_is_the_same_however_it_comes),
        cmocka_unit_test(test_json_view_split_stays_broken),
        cmocka_unit_test(test_json_view_split_depth_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
