#include "cli/bench_server.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/cli_loop.h"

#define LENDER_NICE 15

struct child {
    struct mu_uv_env *uv;
    struct mu_store_server *server;
    struct mu_post post;
    int ask;
    int answer;
};

/* --- the server's process --------------------------------------------------------------------- */

static void write_figures(struct mu_post *post)
{
    struct child *c = MU_CONTAINER_OF(post, struct child, post);
    struct bench_server_figures f = {.cpu_us = 0};
    struct rusage usage;

    mu_store_server_stats(c->server, &f.stats);
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        f.memory_kib = (uint64_t)usage.ru_maxrss;
        f.cpu_us = (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
                   (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    }
    if (write(c->answer, &f, sizeof(f)) != (ssize_t)sizeof(f)) {
        _exit(CLI_FAILED);
    }
}

/* When the bench closes the pipe, this process ends. */
static void *await_questions(void *context)
{
    struct child *c = context;
    char byte;

    while (read(c->ask, &byte, 1) == 1) {
        c->post.run = write_figures;
        mu_uv_env_post(c->uv, &c->post);
    }
    _exit(CLI_OK);
    return NULL;
}

static void on_stopped(void *context, int status, const char *why)
{
    (void)context;
    (void)status;
    (void)why;
}

/* A client has as many sockets to one address as it has ports: others take 127.0.0.2, and so on. */
static int listen_more(struct child *c, uint16_t port, unsigned places)
{
    struct mu_errmsg msg = {{0}};

    for (unsigned i = 1; i < places; i++) {
        struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = port};

        bench_server_place(i, addr.host, sizeof(addr.host));
        if (mu_store_server_listen(c->server, &addr, &msg) != 0) {
            return cli_fail(CLI_ADDRESS, "%s", msg.text);
        }
    }
    return 0;
}

static int run_child(struct child *c, const char *backing, unsigned places)
{
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct mu_errmsg msg = {{0}};
    pthread_t thread;
    uint16_t port;

    (void)signal(SIGPIPE, SIG_IGN);
    if (backing != NULL) {
        (void)setpriority(PRIO_PROCESS, 0, LENDER_NICE); /* the server is what is measured */
    }
    (void)cli_raise_descriptor_limit();
    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .host = "127.0.0.1"};
    config.stopped = on_stopped;
    config.backing = backing;
    if (mu_uv_env_new(&c->uv) != 0) {
        return cli_fail(CLI_FAILED, "the server for the benchmark cannot start");
    }
    if (mu_store_server_start(mu_uv_env_env(c->uv), &config, &c->server, &msg) != 0) {
        return cli_fail(CLI_ADDRESS, "%s", msg.text);
    }
    port = mu_store_server_addr(c->server)->port;
    if (listen_more(c, port, places) != 0) {
        return CLI_ADDRESS;
    }
    if (write(c->answer, &port, sizeof(port)) != (ssize_t)sizeof(port) ||
        pthread_create(&thread, NULL, await_questions, c) != 0) {
        return CLI_FAILED;
    }
    mu_uv_env_run(c->uv);
    return CLI_OK;
}

/* --- for the bench ---------------------------------------------------------------------------- */

static bool read_all(int fd, void *to, size_t len)
{
    char *at = to;

    while (len != 0) {
        ssize_t n = read(fd, at, len);

        if (n <= 0) {
            return false;
        }
        at += n;
        len -= (size_t)n;
    }
    return true;
}

void bench_server_place(unsigned index, char *host, size_t cap)
{
    (void)snprintf(host, cap, "127.0.0.%u", index + 1);
}

int bench_server_start(struct bench_server *s, const char *backing, unsigned places)
{
    int ask[2];
    int answer[2];

    if (pipe(ask) != 0 || pipe(answer) != 0 || (s->pid = fork()) < 0) {
        return cli_fail(CLI_FAILED, "cannot start a process for the benchmark's server");
    }
    if (s->pid == 0) {
        struct child c = {.ask = ask[0], .answer = answer[1]};

        (void)close(ask[1]);
        (void)close(answer[0]);
        _exit(run_child(&c, backing, places));
    }
    (void)close(ask[0]);
    (void)close(answer[1]);
    s->ask = ask[1];
    s->answer = answer[0];
    if (!read_all(s->answer, &s->port, sizeof(s->port))) {
        return cli_fail(CLI_FAILED, "the server for the benchmark did not start");
    }
    return 0;
}

bool bench_server_figures(struct bench_server *s, struct bench_server_figures *ret)
{
    return write(s->ask, "?", 1) == 1 && read_all(s->answer, ret, sizeof(*ret));
}

void bench_server_stop(struct bench_server *s)
{
    (void)close(s->ask);
    (void)close(s->answer);
    (void)waitpid(s->pid, NULL, 0);
}
