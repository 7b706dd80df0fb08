/*
 * The hang watchdog of agents with real workers, which are scripts of the shell: several agents on
 * one loop, with the native rendezvous on loopback between them.
 */
#include "unit.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "service/agent/agent_internal.h"
#include "transport/uv_env.h"

#define AGENTS   2
#define PATIENCE 60 /* seconds; nothing here takes that long */
#define HANG_MS  1000

extern char **environ;

static struct seat {
    struct mu_agent_service *agent;
    struct mu_agent_service_config config;
    const char *argv[4];
    char log[1 << 15];
    unsigned hangs, ends; /* that were told */
    bool ended, freed;
    enum mu_agent_outcome outcome;
    int code;
    char text[1 << 14];
    char json[1 << 17];
} seats[AGENTS];

static struct mu_uv_env *uv;
static char endpoint[64];
static struct mu_timer patience;

/* --- the rig ---------------------------------------------------------------------------------- */

static void on_log(void *context, const char *line)
{
    struct seat *seat = context;
    size_t len = strlen(seat->log);

    (void)snprintf(seat->log + len, sizeof(seat->log) - len, "%s\n", line);
}

static size_t on_output(void *context, uint32_t local_rank, struct mu_child *child,
                        enum mu_stream stream, struct mu_span in)
{
    (void)context;
    (void)local_rank;
    (void)child;
    (void)stream;
    return in.len;
}

static size_t on_tail(void *context, uint32_t local_rank, uint8_t *buf, size_t cap)
{
    (void)context;
    (void)local_rank;
    (void)buf;
    (void)cap;
    return 0;
}

static void on_hang(void *context, const struct mu_hang *hang)
{
    struct seat *seat = context;

    seat->hangs += hang->over ? 0 : 1;
    seat->ends += hang->over ? 1 : 0;
}

static void on_ended(void *context, const struct mu_agent_verdict *verdict)
{
    struct seat *seat = context;
    struct mu_buf out;

    seat->ended = true;
    seat->outcome = verdict->outcome;
    seat->code = verdict->code;
    mu_buf_init(&out, sizeof(seat->json) - 1);
    assert_int_equal(mu_agent_verdict_text(verdict, false, &out), 0);
    assert_true(out.len < sizeof(seat->text));
    memcpy(seat->text, mu_buf_span(&out).data, out.len);
    mu_buf_reset(&out);
    assert_int_equal(mu_agent_verdict_json(verdict, &out), 0);
    memcpy(seat->json, mu_buf_span(&out).data, out.len);
    mu_buf_fini(&out);
}

static void on_freed(void *context)
{
    ((struct seat *)context)->freed = true;
}

static void on_patience(struct mu_timer *timer)
{
    (void)timer;
    for (int i = 0; i < AGENTS; i++) {
        (void)fprintf(stderr, "--- agent %d ---\n%s", i, seats[i].log);
    }
    (void)fprintf(stderr, "nothing happens any more\n");
    abort();
}

static uint16_t free_port(void)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
    (void)close(fd);
    return ntohs(addr.sin_port);
}

static int setup(void **state)
{
    (void)state;
    memset(seats, 0, sizeof(seats));
    assert_int_equal(mu_uv_env_new(&uv), 0);
    (void)snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%u", free_port());
    mu_timer_init(&patience, on_patience);
    mu_env_timer_arm(mu_uv_env_env(uv), &patience,
                     mu_mono_add_ms(mu_env_now(mu_uv_env_env(uv)).mono, (uint64_t)PATIENCE * 1000));
    return 0;
}

static struct seat *start(int i, const char *script, uint32_t nodes_min, uint32_t nodes_max,
                          enum mu_hang_action action)
{
    const struct mu_agent_service_events events = {
        .log = on_log,
        .output = on_output,
        .tail = on_tail,
        .hang = on_hang,
        .ended = on_ended,
        .freed = on_freed,
        .context = &seats[i],
    };
    struct seat *seat = &seats[i];
    struct mu_errmsg msg = {{0}};

    seat->argv[0] = "/bin/sh";
    seat->argv[1] = "-c";
    seat->argv[2] = script;
    seat->config = mu_agent_service_config_defaults();
    seat->config.policy.workers = 2;
    seat->config.policy.restarts_max = 1;
    seat->config.policy.grace_ms = 5000;
    seat->config.policy.excluded_ends = true;
    seat->config.rdzv = (struct mu_rdzv_params){
        .backend = "muster",
        .endpoint = endpoint,
        .run_id = "hang",
        .nodes_min = nodes_min,
        .nodes_max = nodes_max,
        .local_addr = "127.0.0.1",
        .config = i == 0 ? "max_restarts=1,name=a,machine=a,is_host=true"
                         : "max_restarts=1,name=b,machine=b,is_host=false",
    };
    seat->config.argv = seat->argv;
    seat->config.inherited = (const char *const *)environ;
    seat->config.hang_ms = HANG_MS;
    seat->config.hang_action = action;
    if (mu_agent_service_new(mu_uv_env_env(uv), &seat->config, &events, &seat->agent, &msg) != 0) {
        fail_msg("%s", msg.text);
    }
    mu_agent_service_start(seat->agent);
    return seat;
}

static void release(struct seat *seat)
{
    while (!seat->ended) {
        mu_uv_env_turn(uv);
    }
    mu_agent_service_free(seat->agent);
    while (!seat->freed) {
        mu_uv_env_turn(uv);
    }
    seat->agent = NULL;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < AGENTS; i++) {
        if (seats[i].agent != NULL) {
            release(&seats[i]);
        }
    }
    mu_env_timer_arm(mu_uv_env_env(uv), &patience, MU_MONO_NEVER);
    mu_uv_env_free(uv);
    return 0;
}

static void wait_both_ended(void)
{
    while (!seats[0].ended || !seats[1].ended) {
        mu_uv_env_turn(uv);
    }
}

static void assert_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" is not in:\n%s", part, text);
    }
}

/* Three ranks sleep; the fourth reads what nobody writes. */
#define STUCK                                                                                      \
    "if [ $RANK = 3 ]; then p=$(mktemp -u); mkfifo $p; exec 3<>$p; rm $p; exec cat <&3; fi; "      \
    "exec sleep 1000"

/* --- the tests -------------------------------------------------------------------------------- */

static void test_hang_is_told_on_every_node(void **state)
{
    (void)state;
    (void)start(0, STUCK, 2, 2, MU_HANG_TELL);
    (void)start(1, STUCK, 2, 2, MU_HANG_TELL);
    while (seats[0].hangs == 0 || seats[1].hangs == 0) {
        mu_uv_env_turn(uv);
    }
    for (int i = 0; i < AGENTS; i++) {
        assert_has(seats[i].log, "no rank has made progress for 1 s: rank 3 (");
        assert_has(seats[i].log, ") is missing");
    }
    /* Who ends it now can read what was seen. */
    mu_agent_service_signal(seats[0].agent, SIGTERM);
    mu_agent_service_signal(seats[1].agent, SIGTERM);
    wait_both_ended();
    for (int i = 0; i < AGENTS; i++) {
        assert_int_equal(seats[i].outcome, MU_AGENT_STOPPED);
        assert_has(seats[i].text, "hung before: no rank has made progress");
        assert_has(seats[i].json, "\"missing\": \"3\"");
        assert_int_equal(seats[i].hangs, 1);
    }
}

static void test_hang_that_ends_is_over_and_not_in_the_verdict(void **state)
{
    struct seat *a;

    (void)state;
    a = start(0, "[ $RANK = 0 ] && sleep 3; echo done", 1, 1, MU_HANG_TELL);
    while (!a->ended) {
        mu_uv_env_turn(uv);
    }
    assert_int_equal(a->hangs, 1);
    assert_int_equal(a->outcome, MU_AGENT_SUCCEEDED);
    assert_has(a->json, "\"hang\": null");
}

static void test_hang_costs_a_restart(void **state)
{
    static const char script[] = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; " STUCK;

    (void)state;
    (void)start(0, script, 2, 2, MU_HANG_RESTART);
    (void)start(1, script, 2, 2, MU_HANG_RESTART);
    wait_both_ended();
    for (int i = 0; i < AGENTS; i++) {
        assert_int_equal(seats[i].outcome, MU_AGENT_SUCCEEDED);
    }
    assert_true(
        strstr(seats[0].log, "rank 3 (local rank 1) is ended because the run hangs") != NULL ||
        strstr(seats[1].log, "rank 3 (local rank 1) is ended because the run hangs") != NULL);
}

static void test_hang_without_a_restart_left_is_the_cause_of_the_failure(void **state)
{
    (void)state;
    (void)start(0, STUCK, 2, 2, MU_HANG_RESTART);
    (void)start(1, STUCK, 2, 2, MU_HANG_RESTART);
    wait_both_ended();
    for (int i = 0; i < AGENTS; i++) {
        assert_int_equal(seats[i].outcome, MU_AGENT_FAILED);
        assert_has(seats[i].text, "first failure: rank 3 ");
        assert_has(seats[i].text, "the watchdog ended it: no rank has made progress");
    }
}

/* The node that did not host is excluded, and the other one goes on alone. Each has two ranks: who
 * has rank 3 depends on who came first. */
static void test_hang_excludes_the_node(void **state)
{
    static const char script[] = "[ $GROUP_WORLD_SIZE = 1 ] && exit 0; " STUCK;
    int gone;

    (void)state;
    (void)start(0, script, 1, 2, MU_HANG_EXCLUDE);
    (void)start(1, script, 1, 2, MU_HANG_EXCLUDE);
    wait_both_ended();
    gone = strstr(seats[0].log, "this node asks to be excluded") != NULL ? 0 : 1;
    assert_has(seats[gone].log, "this node asks to be excluded: rank 3 was missing in a hang");
    assert_int_equal(seats[gone].outcome, MU_AGENT_ERROR);
    assert_int_equal(seats[gone].code, MUSTER_ERDZV_EXCLUDED);
    assert_int_equal(seats[1 - gone].outcome, MU_AGENT_SUCCEEDED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_hang_is_told_on_every_node, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hang_that_ends_is_over_and_not_in_the_verdict, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_hang_costs_a_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(
            test_hang_without_a_restart_left_is_the_cause_of_the_failure, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hang_excludes_the_node, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
