/* The token reader of JSON: what it takes, what it refuses, what strings and numbers become. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include <muster/error.h>

#include "codec/json.h"

/* The tokens of a text in one line, each with its depth; or "bad". */
static const char *tokens_of(struct mu_span in)
{
    static char out[4096];
    static const char names[] = "?{}[]ksntf0";
    struct mu_json_token t;
    struct mu_json j;
    size_t n = 0;
    int err;

    out[0] = '\0';
    mu_json_init(&j, in);
    while ((err = mu_json_next(&j, &t)) == 0) {
        n += (size_t)snprintf(out + n, sizeof(out) - n, "%c%u", names[t.type], t.depth);
        if (t.type == MU_JSON_KEY || t.type == MU_JSON_STRING || t.type == MU_JSON_NUMBER) {
            n += (size_t)snprintf(out + n, sizeof(out) - n, "(%.*s)", (int)t.text.len,
                                  (const char *)t.text.data);
        }
        assert_true(n < sizeof(out) - 64);
    }
    /* It stays as it ended. */
    assert_int_equal(mu_json_next(&j, &t), err);
    if (err == MUSTER_EPROTO) {
        return "bad";
    }
    assert_int_equal(err, MUSTER_ENOENT);
    return out;
}

static void assert_tokens(const char *text, const char *expected)
{
    assert_string_equal(tokens_of(mu_span_str(text)), expected);
}

static void test_json_reads_what_agents_write(void **state)
{
    (void)state;
    assert_tokens("{\"role\": \"default\", \"rank\": 0, \"local_world_size\": 2}",
                  "{0k1(role)s1(default)k1(rank)n1(0)k1(local_world_size)n1(2)}0");
    assert_tokens("[0, 4, 0, 4]", "[0n1(0)n1(4)n1(0)n1(4)]0");
    assert_tokens(" [ ] ", "[0]0");
    assert_tokens("{}", "{0}0");
    assert_tokens("\t-1.5e+3\r\n", "n0(-1.5e+3)");
    assert_tokens("[true,false,null,\"\\u00e9\\\"\"]", "[0t1f101s1(\\u00e9\\\")]0");
    assert_tokens("{\"a\":{\"b\":[{}]},\"c\":[[]]}", "{0k1(a){1k2(b)[2{3}3]2}1k1(c)[1[2]2]1}0");
}

static void test_json_refuses_what_is_none(void **state)
{
    static const char *const bad[] = {
        "",          " ",
        "{",         "}",
        "[",         "]",
        "[}",        "{]",
        "[1,]",      "[,1]",
        "[1 2]",     "{\"a\"}",
        "{\"a\":}",  "{\"a\":1,}",
        "{1:2}",     "{a:1}",
        "01",        "-",
        "1.",        ".5",
        "1e",        "1e+",
        "+1",        "nul",
        "truex",     "\"",
        "\"\\x\"",   "\"\\u12\"",
        "\"\n\"",    "\"\\",
        "1 2",       "{} {}",
        "[1],",      "nan",
        "{\"a\" 1}", "[\"a\":1]",
        "'a'",       "{\"a\":1 \"b\":2}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (strcmp(tokens_of(mu_span_str(bad[i])), "bad") != 0) {
            fail_msg("taken: %s", bad[i]);
        }
    }
}

static void test_json_bounds_depth(void **state)
{
    char text[2 * MU_JSON_DEPTH_MAX + 8];

    (void)state;
    memset(text, '[', MU_JSON_DEPTH_MAX);
    memset(text + MU_JSON_DEPTH_MAX, ']', MU_JSON_DEPTH_MAX);
    assert_string_not_equal(tokens_of(mu_span(text, 2 * MU_JSON_DEPTH_MAX)), "bad");
    memset(text, '[', MU_JSON_DEPTH_MAX + 1);
    memset(text + MU_JSON_DEPTH_MAX + 1, ']', MU_JSON_DEPTH_MAX + 1);
    assert_string_equal(tokens_of(mu_span(text, 2 * MU_JSON_DEPTH_MAX + 2)), "bad");
}

static void test_json_every_cut_of_a_text_is_refused(void **state)
{
    static const char text[] = "{\"a\\u0041\": [1.5e3, true, null, {\"b\": \"c\"}]}";

    (void)state;
    for (size_t len = 0; len < sizeof(text) - 1; len++) {
        /* In a block of its own, so that a sanitizer sees a step beyond. */
        char *cut = malloc(len + 1);

        memcpy(cut, text, len);
        assert_string_equal(tokens_of(mu_span(cut, len)), "bad");
        free(cut);
    }
}

static void assert_decodes(const char *text, const char *expected)
{
    char out[64];

    assert_int_equal(mu_json_decode(mu_span_str(text), out, sizeof(out)), strlen(expected));
    assert_string_equal(out, expected);
}

static void test_json_decodes_strings(void **state)
{
    char out[4];

    (void)state;
    assert_decodes("plain", "plain");
    assert_decodes("\\\"\\\\\\/\\b\\f\\n\\r\\t", "\"\\/\b\f\n\r\t");
    assert_decodes("\\u00e9\\u20ac", "\xc3\xa9\xe2\x82\xac");
    assert_decodes("\\ud83d\\ude00", "\xf0\x9f\x98\x80");
    assert_decodes("\\ud83d!", "\xef\xbf\xbd!");
    assert_decodes("\\ude00", "\xef\xbf\xbd");
    assert_decodes("\\ud83d\\u0041", "\xef\xbf\xbd"
                                     "A");
    assert_int_equal(mu_json_decode(MU_SPAN_LIT("abcdef"), out, sizeof(out)), 6);
    assert_string_equal(out, "abc");
}

static void test_json_numbers_are_whole_or_refused(void **state)
{
    int64_t v = 7;

    (void)state;
    assert_true(mu_json_int(MU_SPAN_LIT("-12"), &v));
    assert_int_equal(v, -12);
    assert_true(mu_json_int(MU_SPAN_LIT("999999999999999999"), &v));
    assert_false(mu_json_int(MU_SPAN_LIT("1.0"), &v));
    assert_false(mu_json_int(MU_SPAN_LIT("1e3"), &v));
    assert_false(mu_json_int(MU_SPAN_LIT("9999999999999999999"), &v));
    assert_false(mu_json_int(MU_SPAN_LIT("-"), &v));
}

static void test_json_quote_and_decode_are_inverse(void **state)
{
    char all[256], quoted[2048], back[512];
    size_t len;

    (void)state;
    for (unsigned i = 0; i < 255; i++) {
        all[i] = (char)(i + 1);
    }
    len = mu_json_quote(mu_span(all, 255), quoted, sizeof(quoted));
    assert_true(len < sizeof(quoted));
    assert_int_equal(mu_json_decode(mu_span(quoted + 1, len - 2), back, sizeof(back)), 255);
    assert_memory_equal(back, all, 255);
    /* What does not fit is told, and nothing is written behind the end. */
    quoted[3] = 'x';
    assert_int_equal(mu_json_quote(MU_SPAN_LIT("abcdef"), quoted, 3), 8);
    assert_int_equal(quoted[3], 'x');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_reads_what_agents_write),
        cmocka_unit_test(test_json_refuses_what_is_none),
        cmocka_unit_test(test_json_bounds_depth),
        cmocka_unit_test(test_json_every_cut_of_a_text_is_refused),
        cmocka_unit_test(test_json_decodes_strings),
        cmocka_unit_test(test_json_numbers_are_whole_or_refused),
        cmocka_unit_test(test_json_quote_and_decode_are_inverse),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
