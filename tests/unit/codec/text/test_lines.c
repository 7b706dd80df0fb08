/* Goal: the same lines whatever the pieces. Method: write down what comes, compare texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "codec/text/lines.h"
#include "core/prng.h"
#include "failheap.h"

struct story {
    struct mu_lines lines;
    char text[8192];
    size_t len;
};

static void story_init(struct story *s, size_t max)
{
    memset(s, 0, sizeof(*s));
    mu_lines_init(&s->lines, max);
}

/* "text" and what ended it: n (LF), c (CRLF), r (CR), + (cut), . (nothing). */
static void note(struct story *s, const struct mu_line *line)
{
    static const char ends[] = "?ncr+.";

    s->len +=
        (size_t)snprintf(s->text + s->len, sizeof(s->text) - s->len, "%s%.*s%c|",
                         line->goes_on ? "+" : "", (int)line->text.len,
                         line->text.len == 0 ? "" : (const char *)line->text.data, ends[line->end]);
}

static void feed(struct story *s, const char *text, size_t len)
{
    struct mu_span in = mu_span(text, len);
    struct mu_line line;

    while (mu_lines_next(&s->lines, &in, &line)) {
        note(s, &line);
    }
    assert_int_equal(in.len, 0);
}

static void feed_text(struct story *s, const char *text)
{
    feed(s, text, strlen(text));
}

static const char *finish(struct story *s)
{
    struct mu_line line;

    if (mu_lines_end(&s->lines, &line)) {
        note(s, &line);
    }
    assert_false(mu_lines_end(&s->lines, &line));
    mu_lines_fini(&s->lines);
    return s->text;
}

static void test_lines_end_in_four_ways(void **state)
{
    struct story s;

    (void)state;
    story_init(&s, 10);
    feed_text(&s, "one\ntwo\r\n50%\r60%\r\r\n\nlonger than ten\nrest");
    assert_string_equal(finish(&s), "onen|twoc|50%r|60%r|c|n|longer tha+|+n tenn|rest.|");
}

static void test_lines_of_the_longest_length_are_not_cut(void **state)
{
    struct story s;

    (void)state;
    story_init(&s, 4);
    feed_text(&s, "abcd\nabcde\nabcdabcd\r\nabcd");
    assert_string_equal(finish(&s), "abcdn|abcd+|+en|abcd+|+abcdc|abcd.|");
}

static void test_lines_held_carriage_return_ends_with_the_stream(void **state)
{
    struct story s;

    (void)state;
    story_init(&s, 10);
    feed_text(&s, "99%\r");
    assert_string_equal(finish(&s), "99%r|");
}

static void test_lines_do_not_depend_on_how_bytes_come(void **state)
{
    struct mu_prng prng;
    char text[400];

    (void)state;
    mu_prng_seed(&prng, 1);
    for (int round = 0; round < 2000; round++) {
        struct story whole;
        struct story bytes;
        struct story pieces;
        size_t len = (size_t)mu_prng_below(&prng, sizeof(text));

        for (size_t i = 0; i < len; i++) {
            text[i] = "abcdefgh\n\r"[mu_prng_below(&prng, 10)];
        }
        story_init(&whole, 5);
        story_init(&bytes, 5);
        story_init(&pieces, 5);
        feed(&whole, text, len);
        for (size_t i = 0; i < len; i++) {
            feed(&bytes, text + i, 1);
        }
        for (size_t at = 0; at < len;) {
            size_t n = 1 + (size_t)mu_prng_below(&prng, len - at);

            feed(&pieces, text + at, n);
            at += n;
        }
        finish(&whole);
        assert_string_equal(finish(&bytes), whole.text);
        assert_string_equal(finish(&pieces), whole.text);
    }
}

static void test_lines_can_be_looked_at_before_they_end(void **state)
{
    struct mu_lines l;
    struct mu_line line;
    struct mu_span in = MU_SPAN_LIT("a\nname: ");

    (void)state;
    mu_lines_init(&l, 100);
    assert_true(mu_lines_next(&l, &in, &line));
    assert_false(mu_lines_next(&l, &in, &line));
    assert_true(mu_lines_peek(&l, &line));
    assert_int_equal(line.shown, 0);
    assert_memory_equal(line.text.data, "name: ", 6);
    assert_false(mu_lines_peek(&l, &line));

    in = MU_SPAN_LIT("x");
    assert_false(mu_lines_next(&l, &in, &line));
    assert_true(mu_lines_peek(&l, &line));
    assert_int_equal(line.shown, 6);
    in = MU_SPAN_LIT("y\n");
    assert_true(mu_lines_next(&l, &in, &line));

    assert_int_equal(line.text.len, 8);
    assert_int_equal(line.shown, 7);
    assert_int_equal(line.end, MU_LINE_LF);
    mu_lines_fini(&l);
}

static void test_lines_without_memory_are_cut_and_whole(void **state)
{
    (void)state;
    for (long nth = 0;; nth++) {
        struct mu_lines l;
        char got[64] = "";
        bool fired;

        mu_lines_init(&l, 100);
        failheap_arm(nth);
        for (int i = 0; i < 12; i++) {
            struct mu_span in = mu_span(&"ab\ncdef\r\nghi"[i], 1);
            struct mu_line line;

            while (mu_lines_next(&l, &in, &line)) {
                assert_true(strlen(got) + line.text.len < sizeof(got));
                if (line.text.len > 0) {
                    memcpy(got + strlen(got), line.text.data, line.text.len);
                }
            }
            assert_int_equal(in.len, 0);
        }
        fired = failheap_fired();
        failheap_disarm();
        if (!fired) {
            assert_string_equal(got, "abcdef");
            mu_lines_fini(&l);
            break;
        }
        assert_memory_equal(got, "abcdefghi", strlen(got));
        mu_lines_fini(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_end_in_four_ways),
        cmocka_unit_test(test_lines_of_the_longest_length_are_not_cut),
        cmocka_unit_test(test_lines_held_carriage_return_ends_with_the_stream),
        cmocka_unit_test(test_lines_do_not_depend_on_how_bytes_come),
        cmocka_unit_test(test_lines_can_be_looked_at_before_they_end),
        cmocka_unit_test(test_lines_without_memory_are_cut_and_whole),
    };

    return cmocka_run_group_tests_name("lines", tests, NULL, NULL);
}
