/* The grammar that all commands share: times, words between options, and mistyped words. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/cmd_kv.h"

static struct {
    double timeout, grace;
    uint64_t count;
    bool json;
    const char *store;
} o;
static const struct cli_option options[] = {
    {"timeout", "TIME", "", CLI_SECONDS, &o.timeout, 0, .bare = 300},
    {"timeout-ms", "MS", "write --timeout 10s", CLI_GONE, NULL, 0},
    {"grace", "TIME", "", CLI_SECONDS, &o.grace, 3600},
    {"sync", "TIME", "", CLI_SECONDS, &o.grace, 3600, .bare = 9},
    {"count", "N", "", CLI_NUMBER, &o.count, 10, .letter = 'c'},
    {"json", NULL, "", CLI_FLAG, &o.json, 0},
    {"store", "URL", "", CLI_TEXT, &o.store, 0},
};
static const char *const operations[] = {"serve", "get", "store", NULL};
static const struct cli_verb verb = {
    "demo", "", "", options, sizeof(options) / sizeof(options[0]), .operations = operations};

static char said[4096];
static char *words[16];
static int word_count;

/* Parses a line as the prompt and a shell divide it. */
static int parse(const char *line)
{
    static char text[512];
    static char name[] = "demo";
    static char *argv[18] = {name};
    char **rest = argv;
    FILE *file = tmpfile();
    int keep = dup(STDERR_FILENO);
    int code;
    size_t n;

    assert_non_null(file);
    o = (__typeof__(o)){0};
    (void)snprintf(text, sizeof(text), "%s", line);
    word_count = 1 + kv_split(text, argv + 1, 16);
    assert_true(word_count >= 1);
    (void)dup2(fileno(file), STDERR_FILENO);
    code = cli_parse(&verb, &word_count, &rest);
    (void)fflush(stderr);
    (void)dup2(keep, STDERR_FILENO);
    (void)close(keep);
    rewind(file);
    n = fread(said, 1, sizeof(said) - 1, file);
    said[n] = '\0';
    (void)fclose(file);
    for (int i = 0; i < word_count; i++) {
        words[i] = rest[i];
    }
    return code;
}

static void assert_says(const char *line, const char *text)
{
    assert_int_equal(parse(line), CLI_USAGE);
    if (strstr(said, text) == NULL) {
        fail_msg("%s: \"%s\" is not in: %s", line, text, said);
    }
}

static void test_options_times(void **state)
{
    static const struct {
        const char *text;
        uint32_t ms;
    } good[] = {{"500ms", 500},  {"5s", 5000}, {"2m", 120000},    {"1h", 3600000},
                {"5", 5000},     {"0.3", 300}, {".5", 500},       {"1.5m", 90000},
                {"0", 0},        {"0s", 0},    {"0.1ms", 1},      {"1e1", 10000},
                {"300", 300000}, {"+2", 2000}, {"0.25h", 900000}, {"300000ms", 300000}};
    static const char *const bad[] = {"s",    "5x", "5 s",  "-1", "-1s", "nan", "inf",
                                      "0x10", "5S", "5sec", "1d", "1,5", "ms",  "--"};

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        char line[64];

        (void)snprintf(line, sizeof(line), "get --timeout %s", good[i].text);
        assert_int_equal(parse(line), 0);
        assert_int_equal(cli_ms(o.timeout), good[i].ms);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char line[64];

        (void)snprintf(line, sizeof(line), "get '--timeout=%s'", bad[i]);
        assert_says(line, "is not a time: write 500ms, 5s, 2m or 1h");
    }
}

/* A script from before, when the number was milliseconds. */
static void test_options_bare_times_that_are_probably_milliseconds(void **state)
{
    (void)state;
    assert_says("get --timeout 300000", "--timeout 300000 has no unit and would be 83.33 hours");
    assert_says("get --timeout 300000", "write 300000ms for milliseconds, or 300000s for seconds");
    assert_says("get --timeout 1000", "would be 16.67 minutes");
    assert_says("get --sync 50", "--sync 50 has no unit and would be 50 seconds: write 50ms");
    assert_int_equal(parse("get --timeout 1000s"), 0);
    assert_int_equal(cli_ms(o.timeout), 1000000);
    assert_int_equal(parse("get --grace 3600"), 0);
    assert_says("get --grace 3601", "is longer than 1h");
    assert_says("get --grace 100000", "write 100000ms");
    assert_says("get --timeout 5000000s", "is longer than 4294967s");
}

static void test_options_stand_between_words(void **state)
{
    (void)state;
    assert_int_equal(parse("--json get a --count 3 b -- --timeout -x"), 0);
    assert_true(o.json && o.count == 3);
    assert_int_equal(word_count, 5);
    assert_string_equal(words[0], "get");
    assert_string_equal(words[1], "a");
    assert_string_equal(words[2], "b");
    assert_string_equal(words[3], "--timeout");
    assert_string_equal(words[4], "-x");
    assert_int_equal(parse("get a -5 -.5 - -c4"), 0);
    assert_int_equal(word_count, 5);
    assert_string_equal(words[2], "-5");
    assert_string_equal(words[3], "-.5");
    assert_string_equal(words[4], "-");
    assert_int_equal(o.count, 4);
    assert_int_equal(parse("get --store -odd a"), 0);
    assert_string_equal(o.store, "-odd");
}

static void test_options_mistakes(void **state)
{
    (void)state;
    assert_says("get --tiemout 5", "there is no option --tiemout (did you mean --timeout?)");
    assert_says("get --time=5", "there is no option --time (did you mean --timeout?)");
    assert_says("get --jsno", "(did you mean --json?)");
    assert_says("get --wholly-other", "if it is not meant as an option, write -- before it");
    assert_says("gte a", "there is no operation \"gte\" (did you mean get?)");
    assert_says("elsewhere", "there is no operation \"elsewhere\": say serve, get or store");
    assert_says("--json", "say what to do: serve, get or store");
    assert_says("get --timeout-ms 5", "there is no --timeout-ms any more: write --timeout 10s");
    assert_says("get --timeout-ms=5", "there is no --timeout-ms any more");
    assert_says("get --store --json", "--store needs a value (URL)");
    assert_says("get --store", "--store needs a value (URL)");
    assert_says("get --timeout=", "--timeout needs a value (TIME)");
    assert_says("get --json=1", "--json takes no value");
    assert_says("get --count 11", "--count 11 is not a number, or is out of range");
    assert_says("get -x", "there is no option -x");
}

static void assert_split(const char *line, int count, const char *joined)
{
    char text[256];
    char all[256] = "";
    char *found[4];
    int n;

    (void)snprintf(text, sizeof(text), "%s", line);
    n = kv_split(text, found, 4);
    assert_int_equal(n, count);
    for (int i = 0; i < n; i++) {
        (void)snprintf(all + strlen(all), sizeof(all) - strlen(all), "[%s]", found[i]);
    }
    assert_string_equal(all, joined);
}

static void test_options_lines_of_the_prompt(void **state)
{
    (void)state;
    assert_split("", 0, "");
    assert_split(" \t\n", 0, "");
    assert_split("get key\n", 2, "[get][key]");
    assert_split("set k 'two words'", 3, "[set][k][two words]");
    assert_split("set k \"it's\" ", 3, "[set][k][it's]");
    assert_split("set a\\ b c\\\\d ''", 4, "[set][a b][c\\d][]");
    assert_split("set 'a\\b'\"c\\\"d\"e", 2, "[set][a\\bc\"de]");
    assert_split("set k 'open", -1, "");
    assert_split("a b c d e", -1, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_times),
        cmocka_unit_test(test_options_bare_times_that_are_probably_milliseconds),
        cmocka_unit_test(test_options_stand_between_words),
        cmocka_unit_test(test_options_mistakes),
        cmocka_unit_test(test_options_lines_of_the_prompt),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
