/* The battery over libuv, by TCP and by unix socket. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "battery.h"
#include "transport/uv_env.h"

static char directory[64];

static int up(struct env_under_test *eut)
{
    struct mu_uv_env *uv;

    if (mu_uv_env_new(&uv) != 0) {
        return -1;
    }
    eut->context = uv;
    eut->env = mu_uv_env_env(uv);
    return 0;
}

static void down(struct env_under_test *eut)
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

static bool run_until(struct env_under_test *eut, bool (*done)(void *context), void *context)
{
    struct deadline deadline = {0};

    mu_timer_init(&deadline.timer, on_deadline);
    mu_env_timer_arm(eut->env, &deadline.timer, mu_mono_add_ms(mu_env_now(eut->env).mono, 20000));
    while (!done(context) && !deadline.late) {
        mu_uv_env_turn(eut->context);
    }
    mu_env_timer_arm(eut->env, &deadline.timer, MU_MONO_NEVER);
    return !deadline.late;
}

static void tcp_listen(struct env_under_test *eut, struct mu_addr *ret)
{
    (void)eut;
    *ret = (struct mu_addr){.kind = MU_ADDR_TCP, .host = "127.0.0.1"};
}

static void same_addr(struct env_under_test *eut, const struct mu_addr *listening,
                      struct mu_addr *ret)
{
    (void)eut;
    *ret = *listening;
}

static void tcp_refused(struct env_under_test *eut, struct mu_addr *ret)
{
    (void)eut;
    *ret = (struct mu_addr){.kind = MU_ADDR_TCP, .host = "127.0.0.1", .port = 1};
}

static void unix_listen(struct env_under_test *eut, struct mu_addr *ret)
{
    static unsigned number;

    (void)eut;
    *ret = (struct mu_addr){.kind = MU_ADDR_UNIX};
    (void)snprintf(ret->host, sizeof(ret->host), "%s/%u", directory, number++);
}

static void unix_refused(struct env_under_test *eut, struct mu_addr *ret)
{
    (void)eut;
    *ret = (struct mu_addr){.kind = MU_ADDR_UNIX};
    (void)snprintf(ret->host, sizeof(ret->host), "%s/nobody", directory);
}

static void abstract_listen(struct env_under_test *eut, struct mu_addr *ret)
{
    unix_listen(eut, ret);
    ret->host[0] = '@'; /* The name is as good in the abstract namespace. */
}

static void abstract_refused(struct env_under_test *eut, struct mu_addr *ret)
{
    unix_refused(eut, ret);
    ret->host[0] = '@';
}

int main(int argc, char **argv)
{
    struct env_under_test tcp = {.up = up,
                                 .down = down,
                                 .run_until = run_until,
                                 .listen_addr = tcp_listen,
                                 .dial_addr = same_addr,
                                 .refused_addr = tcp_refused,
                                 .zoo = argc > 1 ? argv[1] : "zoo"};
    struct env_under_test un = tcp;
    struct env_under_test abstract = tcp;
    struct rlimit files;
    int failed;

    un.listen_addr = unix_listen;
    un.refused_addr = unix_refused;
    abstract.listen_addr = abstract_listen;
    abstract.refused_addr = abstract_refused;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < 4096) {
        files.rlim_cur = files.rlim_max < 4096 ? files.rlim_max : 4096;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    (void)snprintf(directory, sizeof(directory), "/tmp/muster-test-XXXXXX");
    if (mkdtemp(directory) == NULL) {
        return 1;
    }
    failed = battery_main("env uv tcp", &tcp);
    failed += battery_main("env uv unix", &un);
    failed += battery_main("env uv abstract", &abstract);
    if (rmdir(directory) != 0) {
        (void)fprintf(stderr, "sockets were left behind in %s\n", directory);
        failed++;
    }
    return failed;
}
