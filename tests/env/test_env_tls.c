/* The battery over secure connections: on libuv, and on the simulator in a rough world. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "certs.h"
#include "drive_sim.h"
#include "drive_uv.h"
#include "service/lock/tls_env.h"

static struct mu_tls_config config;
static struct mu_tls_env *tls;

static int secure(struct env_under_test *eut)
{
    struct mu_errmsg why;

    if (mu_tls_env_new(eut->env, &config, &tls, &why) != 0) {
        (void)fprintf(stderr, "%s\n", why.text);
        return -1;
    }
    eut->env = mu_tls_env_env(tls);
    return 0;
}

static int uv_up(struct env_under_test *eut)
{
    return drive_uv_up(eut) == 0 ? secure(eut) : -1;
}

static void uv_down(struct env_under_test *eut)
{
    mu_tls_env_free(tls);
    drive_uv_down(eut);
}

static int sim_up(struct env_under_test *eut)
{
    return drive_sim_up(eut) == 0 ? secure(eut) : -1;
}

static void sim_down(struct env_under_test *eut)
{
    mu_tls_env_free(tls);
    drive_sim_down(eut);
}

int main(int argc, char **argv)
{
    static const char *const files[] = {"ca", "node", NULL};
    struct drive_sim rough = drive_sim_rough();
    struct env_under_test uv = {.up = uv_up,
                                .down = uv_down,
                                .run_until = drive_uv_run_until,
                                .listen_addr = battery_tcp_listen,
                                .dial_addr = battery_same_addr,
                                .refused_addr = battery_tcp_refused,
                                .accepts_late = true,
                                .zoo = argc > 1 ? argv[1] : "zoo"};
    struct env_under_test sim = uv;
    struct cert_authority ca;
    char directory[] = "/tmp/muster-test-XXXXXX";
    char paths[3][64];
    int failed;

    drive_uv_raise_files();
    if (mkdtemp(directory) == NULL) {
        return 1;
    }
    certs_authority(&ca, directory, "ca");
    certs_leaf(&ca, directory, "node", "IP:127.0.0.1", 3600);
    (void)snprintf(paths[0], sizeof(paths[0]), "%s/node.pem", directory);
    (void)snprintf(paths[1], sizeof(paths[1]), "%s/node.key", directory);
    (void)snprintf(paths[2], sizeof(paths[2]), "%s/ca.pem", directory);
    config = (struct mu_tls_config){.cert = paths[0], .key = paths[1], .ca = paths[2]};

    sim.up = sim_up;
    sim.down = sim_down;
    sim.run_until = drive_sim_run_until;
    sim.context = &rough;
    failed = battery_main("env tls on uv", &uv);
    failed += battery_main("env tls on a rough sim", &sim);
    certs_authority_free(&ca);
    certs_remove(directory, files);
    return failed;
}
