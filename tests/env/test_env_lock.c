/*
 * The battery over the locked environment without a credential, where connections of loopback are
 * those of the environment below.
 */
#include <stdio.h>

#include "drive_uv.h"
#include "service/lock/env.h"
#include "service/lock/tls_env.h"

static struct mu_lock_env *lock;
static struct mu_tls_env *tls;

static int lock_up(struct env_under_test *eut, bool sealed)
{
    struct mu_tls_config config = {.token = MU_SPAN_LIT("the token of this test")};
    struct mu_lock_policy policy = {0};
    struct mu_errmsg why;

    if (mu_lock_env_new(eut->env, &policy, &lock) != 0) {
        return -1;
    }
    tls = NULL;
    if (sealed) {
        if (mu_tls_env_new(mu_lock_env_wire(lock), &config, &tls, &why) != 0) {
            (void)fprintf(stderr, "%s\n", why.text);
            return -1;
        }
        mu_tls_env_on_shown(tls, mu_lock_env_shown, lock);
        mu_lock_env_seal(lock, mu_tls_env_env(tls));
    }
    eut->env = mu_lock_env_env(lock);
    return 0;
}

static void lock_down(void)
{
    mu_lock_env_free(lock);
    mu_tls_env_free(tls);
}

static int uv_up_bare(struct env_under_test *eut)
{
    return drive_uv_up(eut) == 0 ? lock_up(eut, false) : -1;
}

static void uv_down(struct env_under_test *eut)
{
    lock_down();
    drive_uv_down(eut);
}

int main(int argc, char **argv)
{
    struct env_under_test bare = {.up = uv_up_bare,
                                  .down = uv_down,
                                  .run_until = drive_uv_run_until,
                                  .listen_addr = battery_tcp_listen,
                                  .dial_addr = battery_same_addr,
                                  .refused_addr = battery_tcp_refused,
                                  .passes_on = true,
                                  .zoo = argc > 1 ? argv[1] : "zoo"};

    drive_uv_raise_files();
    return battery_main("env lock, no credential", &bare);
}
