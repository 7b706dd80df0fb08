/*
 * Agents with real workers: several of them on one loop, with the native rendezvous on loopback
 * between them. Workers are scripts of the shell.
 *
 *     struct seat *a = seat_prepare(0, "echo $RANK", 2, 2, "");     ... a->config may be changed
 *     seat_start(a);
 *     seat_wait_ended(a);             a->verdict, a->text, a->json, a->out, a->log
 *
 * Each test has seats_setup() and seats_teardown(), which frees the agents that are left.
 */
#ifndef MU_AGENT_SEATS_H
#define MU_AGENT_SEATS_H

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

#define AGENTS         3
#define SEATS_PATIENCE 60 /* seconds; nothing takes that long */

extern char **environ;

struct seat {
    struct mu_agent_service *agent;
    struct mu_agent_service_config config;
    const char *argv[4];
    char out[1 << 16];
    size_t out_len;
    char log[1 << 14];
    size_t log_len;
    char tails[MU_AGENT_RUNNING_MAX + 2][8192]; /* of its workers */
    size_t tail_lens[MU_AGENT_RUNNING_MAX + 2];
    char error_text[512]; /* what workers leave in their error files */
    void (*streams)(void *context, uint32_t local_rank, struct mu_spawn *what);
    unsigned starts;
    unsigned exits;       /* of workers */
    unsigned hangs, ends; /* hangs that were told, and their ends */
    bool ended;
    bool freed;
    struct mu_agent_verdict verdict; /* its pointers are good until the agent is freed */
    char text[1 << 14];
    char json[1 << 16];
};

static struct mu_uv_env *uv;
static struct seat seats[AGENTS];
static char endpoint[64];
static char run_id[32];
static struct mu_timer patience;

/* --- what agents tell ------------------------------------------------------------------------- */

static inline void keep(char *to, size_t cap, size_t *len, struct mu_span in)
{
    size_t room = cap - 1 - *len;
    size_t n = in.len < room ? in.len : room;

    if (n != 0) {
        memcpy(to + *len, in.data, n);
    }
    *len += n;
    to[*len] = '\0';
}

static inline void on_log(void *context, const char *line)
{
    struct seat *seat = context;

    keep(seat->log, sizeof(seat->log), &seat->log_len, mu_span_str(line));
    keep(seat->log, sizeof(seat->log), &seat->log_len, MU_SPAN_LIT("\n"));
}

static inline int on_prepare(void *context, const struct mu_agent_attempt *attempt,
                             struct mu_errmsg *msg)
{
    struct seat *seat = context;

    (void)attempt;
    (void)msg;
    memset(seat->tail_lens, 0, sizeof(seat->tail_lens));
    return 0;
}

static inline size_t on_output(void *context, uint32_t local_rank, struct mu_child *child,
                               enum mu_stream stream, struct mu_span in)
{
    struct seat *seat = context;

    (void)child;
    (void)stream;
    keep(seat->out, sizeof(seat->out), &seat->out_len, in);
    keep(seat->tails[local_rank], sizeof(seat->tails[0]), &seat->tail_lens[local_rank], in);
    return in.len;
}

static inline size_t on_tail(void *context, uint32_t local_rank, uint8_t *buf, size_t cap)
{
    struct seat *seat = context;
    size_t len = seat->tail_lens[local_rank];

    assert_true(len <= cap);
    memcpy(buf, seat->tails[local_rank], len);
    return len;
}

static inline void on_started(void *context, const struct mu_agent_attempt *attempt)
{
    struct seat *seat = context;

    assert_int_equal(attempt->workers, seat->config.policy.workers);
    seat->starts += 1;
}

static inline void on_step(void *context, uint32_t local_rank, uint64_t step, uint64_t ns)
{
    struct seat *seat = context;
    char text[64];

    (void)ns; /* the lines of a test may come at once */
    (void)snprintf(text, sizeof(text), "worker %u: step %llu\n", local_rank,
                   (unsigned long long)step);
    on_log(seat, text);
}

static inline void read_error_file(void *context, uint32_t local_rank, struct mu_buf *out)
{
    struct seat *seat = context;

    (void)local_rank;
    (void)mu_buf_append(out, mu_span_str(seat->error_text));
}

static inline void on_exited(void *context, const struct mu_agent_worker_end *end)
{
    (void)end;
    ((struct seat *)context)->exits++;
}

static inline void on_hang(void *context, const struct mu_hang *hang)
{
    struct seat *seat = context;

    seat->hangs += hang->over ? 0 : 1;
    seat->ends += hang->over ? 1 : 0;
}

static inline void on_ended(void *context, const struct mu_agent_verdict *verdict)
{
    struct seat *seat = context;
    struct mu_buf out;

    assert_false(seat->ended);
    seat->ended = true;
    seat->verdict = *verdict;
    mu_buf_init(&out, sizeof(seat->json) - 1);
    assert_int_equal(mu_agent_verdict_text(verdict, false, &out), 0);
    assert_true(out.len < sizeof(seat->text));
    memcpy(seat->text, mu_buf_span(&out).data, out.len);
    mu_buf_reset(&out);
    assert_int_equal(mu_agent_verdict_json(verdict, &out), 0);
    memcpy(seat->json, mu_buf_span(&out).data, out.len);
    mu_buf_fini(&out);
}

static inline void on_freed(void *context)
{
    struct seat *seat = context;

    seat->freed = true;
}

/* --- the rig ---------------------------------------------------------------------------------- */

static inline void on_impatience(struct mu_timer *timer)
{
    (void)timer;
    for (int i = 0; i < AGENTS; i++) {
        if (seats[i].agent != NULL) {
            (void)fprintf(stderr, "--- agent %d ---\n%s--- its output ---\n%s", i, seats[i].log,
                          seats[i].out);
        }
    }
    (void)fprintf(stderr, "nothing happens any more\n");
    abort();
}

static inline uint16_t free_port(void)
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

static inline int seats_setup(void **state)
{
    static unsigned count;
    (void)state;

    memset(seats, 0, sizeof(seats));
    assert_int_equal(mu_uv_env_new(&uv), 0);
    (void)snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%u", free_port());
    (void)snprintf(run_id, sizeof(run_id), "run%u", count++);
    mu_timer_init(&patience, on_impatience);
    mu_env_timer_arm(
        mu_uv_env_env(uv), &patience,
        mu_mono_add_ms(mu_env_now(mu_uv_env_env(uv)).mono, (uint64_t)SEATS_PATIENCE * 1000));
    return 0;
}

static inline struct seat *seat_prepare(int i, const char *script, uint32_t nodes_min,
                                        uint32_t nodes_max, const char *conf)
{
    struct seat *seat = &seats[i];

    seat->argv[0] = "/bin/sh";
    seat->argv[1] = "-c";
    seat->argv[2] = script;
    seat->config = mu_agent_service_config_defaults();
    seat->config.policy.workers = 2;
    seat->config.policy.grace_ms = 5000;
    seat->config.rdzv = (struct mu_rdzv_params){
        .backend = "muster",
        .endpoint = endpoint,
        .run_id = run_id,
        .nodes_min = nodes_min,
        .nodes_max = nodes_max,
        .local_addr = "127.0.0.1",
        .config = conf,
    };
    seat->config.argv = seat->argv;
    seat->config.inherited = (const char *const *)environ;
    return seat;
}

static inline void seat_start(struct seat *seat)
{
    const struct mu_agent_service_events events = {
        .log = on_log,
        .prepare = on_prepare,
        .streams = seat->streams,
        .output = on_output,
        .tail = on_tail,
        .started = on_started,
        .step = on_step,
        .read_error_file = read_error_file,
        .exited = on_exited,
        .hang = on_hang,
        .ended = on_ended,
        .freed = on_freed,
        .context = seat,
    };
    struct mu_errmsg msg = {{0}};
    int err = mu_agent_service_new(mu_uv_env_env(uv), &seat->config, &events, &seat->agent, &msg);

    if (err != 0) {
        fail_msg("%s", msg.text);
    }
    mu_agent_service_start(seat->agent);
}

static inline void seat_wait_ended(struct seat *seat)
{
    while (!seat->ended) {
        mu_uv_env_turn(uv);
    }
}

static inline void seat_stop(struct seat *seat)
{
    mu_agent_service_signal(seat->agent, SIGTERM);
    seat_wait_ended(seat);
}

static inline void seat_wait_output(struct seat *seat, const char *text)
{
    while (strstr(seat->out, text) == NULL) {
        mu_uv_env_turn(uv);
    }
}

static inline void seat_release(struct seat *seat)
{
    seat_wait_ended(seat);
    mu_agent_service_free(seat->agent);
    while (!seat->freed) {
        mu_uv_env_turn(uv);
    }
    seat->agent = NULL;
}

static inline int seats_teardown(void **state)
{
    (void)state;

    for (int i = 0; i < AGENTS; i++) {
        if (seats[i].agent != NULL) {
            seat_release(&seats[i]);
        }
    }
    mu_env_timer_arm(mu_uv_env_env(uv), &patience, MU_MONO_NEVER);
    mu_uv_env_free(uv);
    return 0;
}

static inline void assert_outcome(const struct seat *seat, enum mu_agent_outcome outcome)
{
    if (seat->verdict.outcome != outcome) {
        fail_msg("%s: %s\n%s", mu_agent_outcome_name(seat->verdict.outcome), seat->verdict.text,
                 seat->log);
    }
}

static inline void assert_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" is not in:\n%s", part, text);
    }
}

#endif
