/* muster rdzv extra: the extra data of a version of PyTorch's etcd rendezvous. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd_rdzv.h"
#include "service/rdzv/etcd_extra.h"

struct extra {
    struct cli_loop loop;
    int code;
};

static void on_done(void *context, int status, struct mu_span value, const char *text)
{
    struct extra *x = context;

    if (status != 0) {
        x->code = cli_fail(cli_exit_code(status), "%s", text);
    } else {
        (void)fwrite(value.data, 1, value.len, stdout);
        (void)fputc('\n', stdout);
    }
    cli_loop_stop(&x->loop);
}

static void on_signal(void *context, int number)
{
    (void)context;
    exit(128 + number);
}

int rdzv_extra(const struct rdzv_options *o)
{
    struct extra x = {.code = 0};
    struct mu_rdzv_params params = {
        .backend = o->backend, .endpoint = o->endpoint, .run_id = o->run_id, .config = o->config};
    struct mu_rdzv_etcd_extra_config config = {
        .params = &params,
        .version = o->version,
        .load = o->words[1] == NULL,
        .timeout_ms = cli_ms(o->timeout),
        .done = on_done,
        .context = &x,
    };
    struct mu_errmsg msg = {{0}};
    int err = rdzv_parse_nnodes(o->nnodes, &params.nodes_min, &params.nodes_max);

    if (strcmp(o->backend, "etcd") != 0) {
        return cli_usage("rdzv", "only the backend etcd has extra data: --rdzv-backend etcd");
    }
    if (err != 0 || o->words[0] == NULL) {
        return err != 0 ? err : cli_usage("rdzv", "write muster rdzv extra NAME [VALUE]");
    }
    config.name = mu_span_str(o->words[0]);
    config.value = mu_span_str(o->words[1] == NULL ? "" : o->words[1]);
    err = cli_loop_open_locked(&x.loop, on_signal, &x, o->lock);
    if (err != 0) {
        return err;
    }
    err = mu_rdzv_etcd_extra(x.loop.env, &config, &msg);
    if (err != 0) {
        cli_loop_close(&x.loop);
        return cli_fail(cli_exit_code(err), "%s", msg.text);
    }
    cli_loop_run(&x.loop);
    cli_loop_close(&x.loop);
    return x.code;
}
