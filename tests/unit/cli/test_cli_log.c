/* Lines of the log as JSON: what becomes of key=value pairs. */
#include "unit.h"

#include <string.h>

#include "cli/cli_log.h"

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    return text == NULL ? "(none)" : text;
}

static json_int_t number_of(const json_t *object, const char *name)
{
    assert_true(json_is_integer(json_object_get(object, name)));
    return json_integer_value(json_object_get(object, name));
}

static void test_line_lifts_run_round_and_rank(void **state)
{
    json_t *line = cli_log_line(MUSTER_LOG_INFO, "RDZV-ROUND-ENDED",
                                "RDZV-ROUND-ENDED run=\"train 7\" incarnation=12 round=3 rank=2 "
                                "reason=\"lost\" node=\"a\\\\b\\\"c\"");
    const json_t *fields = json_object_get(line, "fields");

    (void)state;
    assert_string_equal(text_of(line, "level"), "info");
    assert_string_equal(text_of(line, "id"), "RDZV-ROUND-ENDED");
    assert_string_equal(text_of(line, "run"), "train 7");
    assert_int_equal(number_of(line, "round"), 3);
    assert_int_equal(number_of(line, "rank"), 2);
    assert_int_equal(number_of(fields, "incarnation"), 12);
    assert_string_equal(text_of(fields, "reason"), "lost");
    assert_string_equal(text_of(fields, "node"), "a\\b\"c");
    assert_int_equal(json_object_size(fields), 3);
    json_decref(line);
}

static void test_line_of_another_run_is_not_of_our_place(void **state)
{
    json_t *line;

    (void)state;
    cli_log_place("ours", 5, 1);
    line = cli_log_line(MUSTER_LOG_WARN, "A", "A run=theirs words");
    assert_string_equal(text_of(line, "run"), "theirs");
    assert_true(json_is_null(json_object_get(line, "round")));
    assert_true(json_is_null(json_object_get(line, "rank")));
    json_decref(line);
    line = cli_log_line(MUSTER_LOG_WARN, "A", "A words=2");
    assert_string_equal(text_of(line, "run"), "ours");
    assert_int_equal(number_of(line, "round"), 5);
    assert_int_equal(number_of(line, "rank"), 1);
    json_decref(line);
    cli_log_place(NULL, -1, -1);
}

static void test_line_takes_any_bytes(void **state)
{
    static const char *const lines[] = {
        "X",
        "X ",
        "X =",
        "X a=",
        "X a=\"",
        "X a=\"\\",
        "X a=\"\\x",
        "X a=\"\\x4",
        "X a=\"\\x00\"",
        "X a=\"\\xff\"",
        "X run=",
        "X run=\"\xff\xfe\"",
        "X rank=99999999999999999999999",
        "X round=-1 round=x",
        "X   two  blanks a=1  ",
        "another id=2",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        json_t *line = cli_log_line(MUSTER_LOG_DEBUG, "X", lines[i]);
        char *text = json_dumps(line, JSON_COMPACT);

        assert_non_null(text);
        assert_int_equal(json_object_size(line), 10);
        free(text);
        json_decref(line);
    }
}

static void test_line_undoes_what_was_quoted(void **state)
{
    json_t *line =
        cli_log_line(MUSTER_LOG_INFO, "X", "X run=\"na\\x22me \\x5c\" why=\"a b\" c d=1");

    (void)state;
    assert_string_equal(text_of(line, "run"), "na\"me \\");
    assert_string_equal(text_of(json_object_get(line, "fields"), "why"), "a b");
    assert_int_equal(number_of(json_object_get(line, "fields"), "d"), 1);
    json_decref(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line_lifts_run_round_and_rank),
        cmocka_unit_test(test_line_of_another_run_is_not_of_our_place),
        cmocka_unit_test(test_line_takes_any_bytes),
        cmocka_unit_test(test_line_undoes_what_was_quoted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
