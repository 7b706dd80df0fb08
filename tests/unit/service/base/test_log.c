/* Lines of the log: one each, whatever others have put into their names. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "service/base/log.h"

static char last[2048];

static void take(void *context, enum muster_log_level level, const char *id, const char *line)
{
    (void)context;
    (void)level;
    (void)id;
    (void)snprintf(last, sizeof(last), "%s", line);
}

static void test_line_has_nothing_in_it_that_a_terminal_obeys(void **state)
{
    (void)state;
    muster_log_set(take, NULL, MUSTER_LOG_INFO);
    mu_log(MUSTER_LOG_INFO, "NODE-LOST", "name=%s", "a\x1b[2J\nmuster: error: FORGED \xc2\x9b\xff");
    assert_string_equal(last, "NODE-LOST name=a\\x1b[2J\\x0amuster: error: FORGED \\xc2\\x9b\\xff");
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line_has_nothing_in_it_that_a_terminal_obeys),
    };

    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
