/* muster peer: a host on a loop of its own. */
#include "cli/cmd_peer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "cli/cli_loop.h"
#include "codec/multiaddr.h"
#include "service/peer_echo.h"
#include "service/peer_host.h"

struct peer_app {
    const struct peer_options *o;
    struct cli_loop loop;
    struct mu_identity identity;
    struct mu_peer_host *host;
    struct mu_peer_echo echo;
    /* ping */
    struct mu_peer_connect connect;
    struct mu_peer_ping ping;
    struct mu_timer timer;
    struct mu_buf addr;
    uint64_t sent, answered;
    uint64_t min_ns, max_ns, sum_ns;
    bool busy; /* with one of them */
    int code;
};

/* --- life ------------------------------------------------------------------------------------- */

static void on_stopped(void *context)
{
    struct peer_app *app = context;

    mu_peer_host_free(app->host);
    app->host = NULL;
    cli_loop_stop(&app->loop);
}

static void on_signal(void *context, int number)
{
    struct peer_app *app = context;

    (void)number;
    if (app->host != NULL) {
        mu_peer_host_stop(app->host);
    }
}

/* Calls `use` for each of the words between commas. Stops at the first that fails. */
static int each_word(struct peer_app *app, const char *list,
                     int (*use)(struct peer_app *app, const char *word, struct mu_errmsg *msg))
{
    char *copy = list == NULL ? NULL : strdup(list);
    char *save = NULL;
    int code = 0;

    for (char *word = copy == NULL ? NULL : strtok_r(copy, ",", &save); word != NULL && code == 0;
         word = strtok_r(NULL, ",", &save)) {
        struct mu_errmsg msg;
        int err = use(app, word, &msg);

        if (err != 0) {
            code = cli_fail(err == MUSTER_EINVAL ? CLI_USAGE : CLI_ADDRESS, "%s", msg.text);
        }
    }
    free(copy);
    return code;
}

static int use_listen(struct peer_app *app, const char *word, struct mu_errmsg *msg)
{
    return mu_peer_host_listen(app->host, word, msg);
}

static int use_announce(struct peer_app *app, const char *word, struct mu_errmsg *msg)
{
    return mu_peer_host_announce(app->host, word, msg);
}

static int use_allow(struct peer_app *app, const char *word, struct mu_errmsg *msg)
{
    struct mu_peer_id id;
    int err = mu_peer_id_parse(&id, word, msg);

    if (err == 0 && mu_peer_host_allow(app->host, &id) != 0) {
        err = mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    return err;
}

static int start(struct peer_app *app)
{
    struct mu_peer_host_config config = mu_peer_host_config_defaults();
    struct mu_errmsg msg;
    int err;

    config.identity = &app->identity;
    config.agent = "muster/" MUSTER_VERSION;
    config.idle_ms = (uint32_t)(app->o->idle * 1000);
    config.conns_max = (uint32_t)app->o->conns_max;
    config.connect_ms = (uint32_t)app->o->timeout_ms;
    config.dial_ms = (uint32_t)app->o->timeout_ms;
    config.private_swarm = app->o->allow != NULL;
    config.stopped = on_stopped;
    config.context = app;
    err = mu_peer_host_start(app->loop.env, &config, &app->host, &msg);
    return err == 0 ? 0 : cli_fail(CLI_FAILED, "%s", msg.text);
}

/* Runs a loop around `begin`, which returns an exit code; it ends when the host has stopped. */
static int run(struct peer_app *app, int (*begin)(struct peer_app *app))
{
    int code = peer_key_get(app->o, &app->identity);

    if (code != 0) {
        return code;
    }
    (void)cli_raise_descriptor_limit();
    code = cli_loop_open(&app->loop, on_signal, app);
    if (code != 0) {
        mu_identity_fini(&app->identity);
        return code;
    }
    app->code = start(app);
    if (app->code == 0) {
        app->code = begin(app);
        if (app->code != 0) {
            mu_peer_host_stop(app->host);
        }
        cli_loop_run(&app->loop);
    }
    cli_loop_close(&app->loop);
    mu_identity_fini(&app->identity);
    return app->code;
}

/* --- serve ------------------------------------------------------------------------------------ */

static void print_addrs(struct peer_app *app)
{
    char id[MU_PEER_ID_TEXT_MAX];
    char text[MU_MULTIADDR_TEXT_MAX];
    struct mu_span addr;
    json_t *addrs = json_array();

    (void)mu_peer_id_format(&app->identity.id, id);
    for (size_t i = 0; (addr = mu_peer_host_listening(app->host, i)).len != 0; i++) {
        char whole[MU_MULTIADDR_TEXT_MAX + MU_PEER_ID_TEXT_MAX];

        (void)snprintf(whole, sizeof(whole), "%s/p2p/%s",
                       mu_multiaddr_format(addr, text, sizeof(text)), id);
        if (app->o->json) {
            (void)json_array_append_new(addrs, json_string(whole));
        } else {
            printf("%s\n", whole);
        }
    }
    if (app->o->json) {
        json_t *object = json_pack("{s:s, s:O}", "id", id, "listen", addrs);

        (void)json_dumpf(object, stdout, JSON_COMPACT);
        (void)putchar('\n');
        json_decref(object);
    }
    json_decref(addrs);
    (void)fflush(stdout);
}

static int begin_serve(struct peer_app *app)
{
    int code;

    mu_peer_echo_init(&app->echo, MU_PEER_ECHO_NAME);
    if (mu_peer_host_serve(app->host, &app->echo.handler) != 0) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    code = each_word(app, app->o->allow, use_allow);
    if (code == 0) {
        code = each_word(app, app->o->announce, use_announce);
    }
    if (code == 0) {
        code = each_word(app, app->o->listen, use_listen);
    }
    if (code == 0) {
        print_addrs(app);
    }
    return code;
}

int peer_serve(const struct peer_options *o)
{
    struct peer_app app = {.o = o};

    return run(&app, begin_serve);
}

/* --- ping ------------------------------------------------------------------------------------- */

static void print_ping(const struct peer_app *app, uint64_t rtt_ns)
{
    char id[MU_PEER_ID_TEXT_MAX];

    (void)mu_peer_id_format(&app->ping.peer, id);
    if (app->o->json) {
        printf("{\"peer\":\"%s\",\"seq\":%" PRIu64 ",\"rtt_us\":%.1f}\n", id, app->sent,
               (double)rtt_ns / 1000.0);
    } else {
        printf("%s: seq=%" PRIu64 " time=%.3f ms\n", id, app->sent, (double)rtt_ns / 1e6);
    }
    (void)fflush(stdout);
}

static void on_ping(struct mu_peer_ping *ping, int status, const char *text, uint64_t rtt_ns)
{
    struct peer_app *app = MU_CONTAINER_OF(ping, struct peer_app, ping);

    app->busy = false;
    if (status != 0) {
        app->code = cli_fail(status == MUSTER_ETIMEDOUT ? CLI_TIMEOUT : CLI_FAILED, "%s", text);
        mu_peer_host_stop(app->host);
        return;
    }
    app->answered++;
    print_ping(app, rtt_ns);
    if (app->sent >= app->o->count) {
        mu_peer_host_stop(app->host);
    } else {
        mu_env_timer_arm(app->loop.env, &app->timer,
                         mu_mono_add_ms(mu_env_now(app->loop.env).mono, 10));
    }
}

static void send_ping(struct peer_app *app)
{
    app->busy = true;
    app->sent++;
    app->ping.timeout_ms = (uint32_t)app->o->timeout_ms;
    app->ping.done = on_ping;
    mu_peer_host_ping(app->host, &app->ping);
}

static void on_timer(struct mu_timer *timer)
{
    struct peer_app *app = MU_CONTAINER_OF(timer, struct peer_app, timer);

    if (app->host != NULL) {
        send_ping(app);
    }
}

static void on_connected(struct mu_peer_connect *connect, int status, const char *text)
{
    struct peer_app *app = MU_CONTAINER_OF(connect, struct peer_app, connect);

    app->busy = false;
    if (status != 0) {
        app->code = cli_fail(status == MUSTER_ETIMEDOUT ? CLI_TIMEOUT : CLI_CONNECT, "%s", text);
        mu_peer_host_stop(app->host);
        return;
    }
    app->ping.peer = connect->peer;
    send_ping(app);
}

static int begin_ping(struct peer_app *app)
{
    struct mu_errmsg msg;

    mu_timer_init(&app->timer, on_timer);
    if (mu_multiaddr_parse(&app->addr, app->o->address, &msg) != 0) {
        return cli_fail(CLI_USAGE, "%s", msg.text);
    }
    app->busy = true;
    app->connect.addr = mu_buf_span(&app->addr);
    app->connect.done = on_connected;
    mu_peer_host_connect(app->host, &app->connect);
    return 0;
}

int peer_ping(const struct peer_options *o)
{
    struct peer_app app = {.o = o};
    int code;

    mu_buf_init(&app.addr, MU_MULTIADDR_MAX);
    code = run(&app, begin_ping);
    mu_buf_fini(&app.addr);
    return code;
}
