#include "service/stacks/take.h"

#include "core/alloc.h"
#include "service/stacks/look.h"

static void on_run(struct mu_work *work)
{
    struct mu_stacks_take *take = MU_CONTAINER_OF(work, struct mu_stacks_take, work);

    take->err = mu_stacks_look(take->look, take->pid, &take->head, &take->report, &take->why);
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
    take->look->known = (struct mu_stacks_known){0};
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
