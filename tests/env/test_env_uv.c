/* The battery over libuv, by TCP and by unix socket. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "drive_uv.h"

static char directory[64];

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
    struct env_under_test tcp = {.up = drive_uv_up,
                                 .down = drive_uv_down,
                                 .run_until = drive_uv_run_until,
                                 .listen_addr = battery_tcp_listen,
                                 .dial_addr = battery_same_addr,
                                 .refused_addr = battery_tcp_refused,
                                 .zoo = argc > 1 ? argv[1] : "zoo"};
    struct env_under_test un = tcp;
    struct env_under_test abstract = tcp;
    int failed;

    un.listen_addr = unix_listen;
    un.refused_addr = unix_refused;
    abstract.listen_addr = abstract_listen;
    abstract.refused_addr = abstract_refused;
    drive_uv_raise_files();
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
