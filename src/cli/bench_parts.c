#include "cli/bench_parts.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"

struct bench_part_answer {
    int code;
    double at;
};

/* --- in a part's process ---------------------------------------------------------------------- */

static void begin_stage(struct mu_post *post)
{
    struct bench_part *part = MU_CONTAINER_OF(post, struct bench_part, post);

    part->go(part->context);
}

/* One stage is over before the next one is asked for, so there is one post at most. */
static void *await_stages(void *context)
{
    struct bench_part *part = context;
    char byte;

    while (read(part->ask, &byte, 1) == 1) {
        part->post.run = begin_stage;
        mu_uv_env_post(part->uv, &part->post);
    }
    _exit(CLI_OK);
    return NULL;
}

int bench_part_listen(struct bench_part *part, struct mu_uv_env *uv, void (*go)(void *context),
                      void *context)
{
    pthread_t thread;

    part->uv = uv;
    part->go = go;
    part->context = context;
    return pthread_create(&thread, NULL, await_stages, part) == 0
               ? CLI_OK
               : cli_fail(CLI_FAILED, "cannot start a thread");
}

void bench_part_passed(struct bench_part *part, int code, double at)
{
    const struct bench_part_answer answer = {.code = code, .at = at};

    if (write(part->answer, &answer, sizeof(answer)) != (ssize_t)sizeof(answer)) {
        _exit(CLI_FAILED);
    }
}

/* --- in the parent ---------------------------------------------------------------------------- */

/* The ends of the other parts' pipes must not outlive the parent in a part. */
static void close_others(struct bench_parts *p)
{
    for (uint64_t i = 0; i < p->count; i++) {
        (void)close(p->all[i].ask);
        (void)close(p->all[i].answer);
    }
}

int bench_parts_start(struct bench_parts *p, uint64_t count,
                      int (*run)(void *context, uint64_t index, struct bench_part *part),
                      void *context)
{
    *p = (struct bench_parts){.all = calloc(count, sizeof(*p->all))};
    if (p->all == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    (void)signal(SIGPIPE, SIG_IGN);
    for (; p->count < count; p->count++) {
        struct bench_part *part = &p->all[p->count];
        int ask[2];
        int answer[2];

        if (pipe(ask) != 0 || pipe(answer) != 0 || (part->pid = fork()) < 0) {
            return cli_fail(CLI_FAILED, "cannot start a process for the benchmark");
        }
        if (part->pid == 0) {
            close_others(p);
            (void)close(ask[1]);
            (void)close(answer[0]);
            part->ask = ask[0];
            part->answer = answer[1];
            _exit(run(context, p->count, part));
        }
        (void)close(ask[0]);
        (void)close(answer[1]);
        part->ask = ask[1];
        part->answer = answer[0];
    }
    return CLI_OK;
}

/* An answer is shorter than what a pipe takes at once, so it comes whole. */
static struct bench_part_answer read_answer(const struct bench_part *part)
{
    struct bench_part_answer answer = {0};
    ssize_t n;

    do {
        n = read(part->answer, &answer, sizeof(answer));
    } while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof(answer)) {
        answer.code = cli_fail(CLI_FAILED, "a process of the benchmark has died");
    }
    return answer;
}

int bench_parts_stage(struct bench_parts *p, double *ret_at)
{
    int code = CLI_OK;

    *ret_at = 0;
    for (uint64_t i = 0; i < p->count; i++) {
        if (write(p->all[i].ask, "g", 1) != 1) {
            return cli_fail(CLI_FAILED, "a process of the benchmark has died");
        }
    }
    for (uint64_t i = 0; i < p->count && code == CLI_OK; i++) {
        struct bench_part_answer answer = read_answer(&p->all[i]);

        code = answer.code;
        *ret_at = answer.at > *ret_at ? answer.at : *ret_at;
    }
    return code;
}

void bench_parts_stop(struct bench_parts *p)
{
    close_others(p);
    for (uint64_t i = 0; i < p->count; i++) {
        (void)waitpid(p->all[i].pid, NULL, 0);
    }
    free(p->all);
    *p = (struct bench_parts){0};
}
