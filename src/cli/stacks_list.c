/* Processes of this machine, and a look at each of them. */
#include "cli/cmd_stacks.h"
#include "core/alloc.h"
#include "service/stacks/take.h"

/* The pool has a few threads only: more at once would only hold memory. */
#define AT_ONCE 8

struct list_one {
    struct mu_stacks_take take;
    struct stacks_list *list;
};

struct stacks_list {
    struct cli_loop loop;
    struct list_one all[STACKS_PIDS_MAX];
    size_t count;
    size_t begun;
    size_t ended;
};

struct stacks_list *stacks_list_new(void)
{
    return mu_calloc(1, sizeof(struct stacks_list));
}

void stacks_list_free(struct stacks_list *list)
{
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
    list->all[list->count++] =
        (struct list_one){.take = {.pid = head->pid, .head = *head}, .list = list};
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
            list->ended++;
        }
    }
    if (list->ended == list->count) {
        cli_loop_stop(&list->loop);
    }
}

static void on_taken(struct mu_stacks_take *take)
{
    struct stacks_list *list = MU_CONTAINER_OF(take, struct list_one, take)->list;

    list->ended++;
    begin_more(list);
}

static void on_signal(void *context, int number)
{
    (void)context;
    (void)number; /* A look takes a moment: it ends by itself. */
}

int stacks_list_take(struct stacks_list *list)
{
    int code = cli_loop_open(&list->loop, on_signal, list);

    if (code == 0) {
        begin_more(list);
        cli_loop_run(&list->loop);
        cli_loop_close(&list->loop);
    }
    return code;
}

int stacks_list_report(const struct stacks_list *list, size_t i, struct mu_span *ret_report,
                       const char **reterr_text)
{
    const struct mu_stacks_take *take = &list->all[i].take;

    if (take->err != 0) {
        *reterr_text = take->why.text[0] != '\0' ? take->why.text : muster_strerror(take->err);
        return take->err;
    }
    *ret_report = mu_buf_span(&take->report);
    return 0;
}
