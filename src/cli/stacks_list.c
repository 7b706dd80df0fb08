/* Processes of this machine, and a look at each of them. */
#include "cli/cmd_stacks.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "core/alloc.h"
#include "service/stacks/take.h"

/* The pool has a few threads only: more at once would only hold memory. */
#define AT_ONCE 8

/* The kernel can hold up whoever looks at a process: its memory may be another program's to give
 * out, or be on a disk that does not answer. After so long without an end of any look we go on. */
#define PATIENCE_MS 5000

static bool any_stuck;

struct list_one {
    struct mu_stacks_take take;
    struct stacks_list *list;
    bool ended;
    char late[64]; /* what there is to say if it has not */
};

struct stacks_list {
    struct cli_loop loop;
    struct list_one all[STACKS_PIDS_MAX];
    size_t count;
    size_t begun;
    size_t ended;
    struct mu_timer patience;
    size_t ended_before; /* when it was armed */
    bool stuck;          /* a look has not come back: its thread, and the loop, cannot end */
};

struct stacks_list *stacks_list_new(void)
{
    return mu_calloc(1, sizeof(struct stacks_list));
}

void stacks_list_free(struct stacks_list *list)
{
    if (list != NULL && list->stuck) {
        return; /* threads still use it */
    }
    if (list != NULL) {
        for (size_t i = 0; i < list->begun; i++) {
            mu_stacks_take_fini(&list->all[i].take);
        }
    }
    mu_free(list);
}

bool stacks_list_add(struct stacks_list *list, const struct mu_stacks_report *head)
{
    if (list->count == STACKS_PIDS_MAX) {
        return false;
    }
    list->all[list->count++] = (struct list_one){
        .take = {.pid = head->pid, .head = *head, .family = head->rank != MU_STACKS_NO_RANK},
        .list = list,
    };
    return true;
}

size_t stacks_list_count(const struct stacks_list *list)
{
    return list->count;
}

static void on_taken(struct mu_stacks_take *take);

static void begin_more(struct stacks_list *list)
{
    while (list->begun < list->count && list->begun - list->ended < AT_ONCE) {
        struct mu_stacks_take *take = &list->all[list->begun++].take;
        int err;

        take->done = on_taken;
        err = mu_stacks_take(list->loop.env, take);
        if (err != 0) {
            take->err = err; /* Otherwise it is another thread's by now. */
            MU_CONTAINER_OF(take, struct list_one, take)->ended = true;
            list->ended++;
        }
    }
    if (list->ended == list->count) {
        cli_loop_stop(&list->loop);
    }
}

static void on_taken(struct mu_stacks_take *take)
{
    struct list_one *one = MU_CONTAINER_OF(take, struct list_one, take);

    one->ended = true;
    one->list->ended++;
    begin_more(one->list);
}

static void be_patient(struct stacks_list *list)
{
    list->ended_before = list->ended;
    mu_env_timer_arm(list->loop.env, &list->patience,
                     mu_mono_add_ms(mu_env_now(list->loop.env).mono, PATIENCE_MS));
}

static void on_patience_over(struct mu_timer *timer)
{
    struct stacks_list *list = MU_CONTAINER_OF(timer, struct stacks_list, patience);

    if (list->ended != list->ended_before) {
        be_patient(list);
        return;
    }
    list->stuck = any_stuck = true;
    for (size_t i = 0; i < list->count; i++) {
        struct list_one *one = &list->all[i];

        (void)snprintf(one->late, sizeof(one->late),
                       "process %" PRId64 " could not be looked at in time", one->take.pid);
    }
    cli_loop_stop(&list->loop);
}

static void on_signal(void *context, int number)
{
    (void)context;
    _exit(128 + number); /* exit() would wait for looks */
}

int stacks_list_take(struct stacks_list *list)
{
    int code = cli_loop_open(&list->loop, on_signal, list);

    if (code == 0) {
        mu_timer_init(&list->patience, on_patience_over);
        be_patient(list);
        begin_more(list);
        cli_loop_run(&list->loop);
    }
    if (code == 0 && !list->stuck) {
        mu_env_timer_arm(list->loop.env, &list->patience, MU_MONO_NEVER);
        cli_loop_close(&list->loop);
    }
    return code;
}

bool stacks_list_stuck(void)
{
    return any_stuck;
}

int stacks_list_report(const struct stacks_list *list, size_t i, struct mu_span *ret_report,
                       const char **reterr_text)
{
    const struct mu_stacks_take *take = &list->all[i].take;

    if (!list->all[i].ended) {
        *reterr_text = list->all[i].late;
        return MUSTER_ETIMEDOUT;
    }
    if (take->err != 0) {
        *reterr_text = take->why.text[0] != '\0' ? take->why.text : muster_strerror(take->err);
        return take->err;
    }
    *ret_report = mu_buf_span(&take->report);
    return 0;
}
