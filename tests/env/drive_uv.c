#include "drive_uv.h"

#include <sys/resource.h>

#include "transport/uv_env.h"

/* For what always comes: a sanitizer and a machine with much else to do make it late. */
#define PATIENCE_MS 300000

int drive_uv_up(struct env_under_test *eut)
{
    struct mu_uv_env *uv;

    if (mu_uv_env_new(&uv) != 0) {
        return -1;
    }
    eut->context = uv;
    eut->env = mu_uv_env_env(uv);
    return 0;
}

void drive_uv_down(struct env_under_test *eut)
{
    mu_uv_env_free(eut->context);
}

struct deadline {
    struct mu_timer timer;
    bool late;
};

static void on_deadline(struct mu_timer *timer)
{
    MU_CONTAINER_OF(timer, struct deadline, timer)->late = true;
}

bool drive_uv_run_until(struct env_under_test *eut, bool (*done)(void *context), void *context)
{
    struct deadline deadline = {0};

    mu_timer_init(&deadline.timer, on_deadline);
    mu_env_timer_arm(eut->env, &deadline.timer,
                     mu_mono_add_ms(mu_env_now(eut->env).mono, PATIENCE_MS));
    while (!done(context) && !deadline.late) {
        mu_uv_env_turn(eut->context);
    }
    mu_env_timer_arm(eut->env, &deadline.timer, MU_MONO_NEVER);
    return !deadline.late;
}

void drive_uv_raise_files(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < 4096) {
        files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
}
