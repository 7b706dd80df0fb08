/* The battery over the simulator: in a quiet world and in a rough one. */
#include <stdio.h>

#include "drive_sim.h"

static void unix_listen(struct env_under_test *eut, struct mu_addr *ret)
{
    static unsigned number;

    (void)eut;
    *ret = (struct mu_addr){.kind = MU_ADDR_UNIX};
    (void)snprintf(ret->host, sizeof(ret->host), "/run/%u", number++);
}

int main(void)
{
    struct drive_sim quiet = drive_sim_quiet();
    struct drive_sim rough = drive_sim_rough();
    struct env_under_test tcp = {.up = drive_sim_up,
                                 .down = drive_sim_down,
                                 .run_until = drive_sim_run_until,
                                 .listen_addr = battery_tcp_listen,
                                 .dial_addr = battery_same_addr,
                                 .refused_addr = battery_tcp_refused,
                                 .zoo = "zoo",
                                 .context = &quiet};
    struct env_under_test un = tcp;
    struct env_under_test hard = tcp;
    int failed;

    un.listen_addr = unix_listen;
    hard.context = &rough;
    failed = battery_main("env sim tcp", &tcp);
    failed += battery_main("env sim unix", &un);
    failed += battery_main("env sim tcp, rough", &hard);
    return failed;
}
