#include "service/stacks/take.h"

#include "core/alloc.h"
#include "service/stacks/family.h"
#include "service/stacks/look.h"

static int look_at(struct mu_stacks_take *take, int64_t pid)
{
    take->look->known = (struct mu_stacks_known){0};
    mu_buf_reset(&take->report);
    return mu_stacks_look(take->look, pid, &take->head, &take->report, &take->why);
}

static bool shows_python(const struct mu_stacks_take *take)
{
    struct mu_stacks_report report;

    return mu_stacks_report_decode(mu_buf_span(&take->report), &report) == 0 &&
           report.kind == MU_STACKS_PYTHON;
}

/* Looks for an interpreter that the process has started. Returns whether there is one. */
static bool look_at_family(struct mu_stacks_take *take)
{
    const struct mu_peek *peek = take->look->peek;
    int64_t pids[MU_STACKS_FAMILY_SEEN];
    struct mu_peek_process *p;
    uint32_t count;

    if (peek->open(take->pid, &p) != 0) {
        return false;
    }
    count = mu_stacks_family(peek, p, pids, MU_STACKS_FAMILY_SEEN);
    peek->close(p);
    for (uint32_t i = 0; i < count; i++) {
        if (look_at(take, pids[i]) == 0 && shows_python(take)) {
            return true;
        }
    }
    return false;
}

static void on_run(struct mu_work *work)
{
    struct mu_stacks_take *take = MU_CONTAINER_OF(work, struct mu_stacks_take, work);

    take->err = look_at(take, take->pid);
    if (take->family && take->err == 0 && !shows_python(take) && !look_at_family(take)) {
        take->err = look_at(take, take->pid);
    }
}

static void on_done(struct mu_work *work)
{
    struct mu_stacks_take *take = MU_CONTAINER_OF(work, struct mu_stacks_take, work);

    mu_free(take->look);
    take->look = NULL;
    take->done(take);
}

int mu_stacks_take(struct mu_env *env, struct mu_stacks_take *take)
{
    const struct mu_peek *peek = mu_env_peek(env);
    int err;

    mu_buf_init(&take->report, MU_STACKS_REPORT_BYTES_MAX);
    take->why.text[0] = '\0';
    take->look = NULL;
    if (peek == NULL) {
        return mu_err(&take->why, MUSTER_ENOTSUP, "there is no process %lld here",
                      (long long)take->pid);
    }
    take->look = mu_malloc(sizeof(*take->look));
    if (take->look == NULL) {
        return MUSTER_ENOMEM;
    }
    take->look->peek = peek;
    take->look->main_only = false;
    take->work = (struct mu_work){.run = on_run, .done = on_done};
    err = mu_env_work(env, &take->work);
    if (err != 0) {
        mu_free(take->look);
        take->look = NULL;
    }
    return err;
}

void mu_stacks_take_fini(struct mu_stacks_take *take)
{
    mu_buf_fini(&take->report);
}
