/* muster peer: a libp2p host on its own loop, and serve. */
#include "cli/cmd_peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "codec/peer/multiaddr.h"
#include "service/peer/echo.h"
#include "transport/uv_env.h"

struct serve {
    struct peer_app app;
    struct mu_peer_echo echo;
    struct mu_peer_echo_calls echo_calls;
};

/* --- life ------------------------------------------------------------------------------------- */

static void on_stopped(void *context)
{
    struct peer_app *app = context;

    mu_peer_host_free(app->host);
    app->host = NULL;
    cli_loop_stop(&app->loop);
}

/* Closes from the top of the stack to its bottom. */
static void on_stop_timer(struct mu_timer *timer)
{
    struct peer_app *app = MU_CONTAINER_OF(timer, struct peer_app, loop.stop_timer);

    if (app->ending != NULL) {
        app->ending(app);
    }
    for (size_t i = 0; i < app->bootstrap_count; i++) {
        mu_peer_bootstrap_stop(&app->bootstrap[i].base);
    }
    mu_peer_calls_free(app->calls);
    mu_kad_stop(app->kad);
    mu_peer_autonat_free(app->autonat);
    mu_peer_relay_free(app->relay);
    app->autonat = NULL;
    app->relay = NULL;
    app->calls = NULL;
    app->kad = NULL;
    mu_peer_host_stop(app->host);
}

void peer_app_stop(struct peer_app *app, int code)
{
    cli_loop_end(&app->loop, code);
}

static void on_signal(void *context, int number)
{
    struct peer_app *app = context;

    (void)number;
    peer_app_stop(app, app->interrupted);
}

static int use_listen(void *context, const char *word, struct mu_errmsg *msg)
{
    struct peer_app *app = context;

    return mu_peer_host_listen(app->host, word, msg);
}

static int use_announce(void *context, const char *word, struct mu_errmsg *msg)
{
    struct peer_app *app = context;

    return mu_peer_host_announce(app->host, word, msg);
}

static int use_allow(void *context, const char *word, struct mu_errmsg *msg)
{
    struct peer_app *app = context;
    struct mu_peer_id id;
    int err = mu_peer_id_parse(&id, word, msg);

    if (err == 0 && mu_peer_host_allow(app->host, &id) != 0) {
        err = mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    return err;
}

static void on_bootstrap(struct mu_peer_bootstrap *base, int status, const char *text)
{
    struct peer_bootstrap *b = MU_CONTAINER_OF(base, struct peer_bootstrap, base);
    struct peer_app *app = b->app;

    if (app->loop.stopping) {
        return;
    }
    b->tried = true;
    if (app->bootstrapped != NULL) {
        app->bootstrapped(app, b, status, text);
    }
}

int peer_use_bootstrap(void *context, const char *word, struct mu_errmsg *msg)
{
    struct peer_app *app = context;
    struct peer_bootstrap *b = &app->bootstrap[app->bootstrap_count];
    struct mu_addr unused;
    struct mu_buf addr;
    int err;

    if (app->bootstrap_count == PEER_BOOTSTRAP_MAX) {
        return mu_err(msg, MUSTER_EINVAL, "there are at most %d peers to bootstrap from",
                      PEER_BOOTSTRAP_MAX);
    }
    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    err = mu_multiaddr_parse(&addr, word, msg);
    if (err == 0 && mu_multiaddr_dial(mu_buf_span(&addr), &unused, NULL) != 0 &&
        mu_multiaddr_circuit(mu_buf_span(&addr), NULL, NULL, NULL) != 0) {
        err = mu_err(msg, MUSTER_EINVAL, "%s", mu_multiaddr_refusal(mu_buf_span(&addr)));
    }
    if (err == 0) {
        *b = (struct peer_bootstrap){.app = app, .base.told = on_bootstrap};
        err = mu_peer_bootstrap_start(app->host, &b->base, mu_buf_span(&addr));
        if (err != 0) {
            (void)mu_err(msg, err, "out of memory");
        } else {
            app->bootstrap_count++;
        }
    }
    mu_buf_fini(&addr);
    return err;
}

static int start(void *context)
{
    struct peer_app *app = context;
    struct mu_peer_host_config config = mu_peer_host_config_defaults();
    struct mu_errmsg msg;
    int err;

    config.identity = &app->identity;
    config.agent = "muster/" MUSTER_VERSION;
    config.idle_ms = cli_ms(app->o->idle);
    config.conns_max = (uint32_t)app->o->conns_max;
    config.connect_ms = cli_ms(app->o->timeout);
    config.dial_ms = cli_ms(app->o->timeout);
    config.private_swarm = app->o->allow != NULL;
    config.stopped = on_stopped;
    config.context = app;
    err = mu_peer_host_start(app->loop.env, &config, &app->host, &msg);
    if (err != 0) {
        return cli_fail(CLI_FAILED, "%s", msg.text);
    }
    err = mu_peer_relay_start(app->host, &app->relay_config, &app->relay, &msg);
    if (err != 0) {
        peer_app_stop(app, cli_fail(CLI_FAILED, "%s", msg.text));
        cli_loop_run(&app->loop);
        return app->loop.code;
    }
    return 0;
}

static int begin_verb(void *context)
{
    struct peer_app *app = context;

    return app->begin(app);
}

int peer_app_calls(struct peer_app *app, bool client)
{
    struct mu_kad_config config = mu_kad_config_defaults();
    int err;

    config.client = client;
    err = mu_kad_start(app->host, &config, &app->kad);
    err = err != 0 ? err : mu_peer_calls_new(app->host, NULL, &app->calls);
    return err == 0 ? 0 : cli_fail(CLI_FAILED, "%s", muster_strerror(err));
}

int peer_app_run(struct peer_app *app, int (*begin)(struct peer_app *app))
{
    int code = peer_key_get(app->o, &app->identity);

    if (code != 0) {
        return code;
    }
    code = cli_loop_open_peers(&app->loop, on_signal, app);
    if (code == 0) {
        app->begin = begin;
        code = cli_loop_live(&app->loop, start, begin_verb, on_stop_timer);
    }
    mu_identity_fini(&app->identity);
    return code;
}

/* --- serve ------------------------------------------------------------------------------------ */

bool peer_say_dialled_back(const struct mu_peer_id *by, bool reached, const char *text,
                           bool unreached, const char *remedy)
{
    char id[MU_PEER_ID_TEXT_MAX];

    (void)mu_peer_id_format(by, id);
    if (reached && unreached) {
        (void)cli_fail(0, "the peer %s has dialled this one", id);
    } else if (!reached && !unreached) {
        (void)cli_fail(
            0, "the peer %s cannot dial this one (%s): check --advertise and the firewall%s", id,
            text, remedy);
    }
    return unreached || !reached;
}

static void on_dialled_back(void *context, const struct mu_peer_id *by, bool reached,
                            const char *text)
{
    struct peer_app *app = context;

    if (!app->loop.stopping && mu_peer_relay_addr(app->relay, 0).len == 0) {
        app->unreached = peer_say_dialled_back(by, reached, text, app->unreached,
                                               ", or let a relay lead others here (--via)");
    }
}

static void use_number(void *context, const char *ip)
{
    (void)mu_peer_host_add_number(context, ip);
}

void peer_use_numbers(struct mu_peer_host *host)
{
    mu_uv_env_each_far_number(use_number, host);
}

/* The addresses that other peers dial. */
static struct mu_span get_dialled(const struct peer_app *app, bool relayed, size_t i)
{
    return relayed ? mu_peer_relay_addr(app->relay, i) : mu_peer_host_announced(app->host, i);
}

/* All addresses are printed on one line. */
static void print_addrs(struct peer_app *app, bool relayed)
{
    char id[MU_PEER_ID_TEXT_MAX];
    char text[MU_MULTIADDR_TEXT_MAX];
    struct mu_span addr;
    json_t *addrs = json_array();

    (void)mu_peer_id_format(&app->identity.id, id);
    for (size_t i = 0; (addr = get_dialled(app, relayed, i)).len != 0; i++) {
        char whole[MU_MULTIADDR_TEXT_MAX + MU_PEER_ID_TEXT_MAX + 8];

        (void)snprintf(whole, sizeof(whole), "%s/p2p/%s",
                       mu_multiaddr_format(addr, text, sizeof(text)), id);
        if (app->o->json) {
            (void)json_array_append_new(addrs, json_string(whole));
        } else {
            printf("%s\n", whole);
        }
    }
    if (app->o->json) {
        json_t *object = json_pack("{s:s, s:O}", "id", id, relayed ? "relayed" : "listen", addrs);

        (void)json_dumpf(object, stdout, JSON_COMPACT);
        (void)putchar('\n');
        json_decref(object);
    }
    json_decref(addrs);
    (void)fflush(stdout);
}

static void say_bootstrapped(struct peer_app *app, struct peer_bootstrap *b, int status,
                             const char *text)
{
    (void)app;
    (void)b;
    if (status != 0) {
        (void)cli_fail(0, "--bootstrap: %s; trying again", text);
    }
}

static void on_relayed(void *context)
{
    struct peer_app *app = context;

    if (!app->loop.stopping) {
        print_addrs(app, true);
    }
}

static int use_via(void *context, const char *word, struct mu_errmsg *msg)
{
    struct peer_app *app = context;

    return mu_peer_relay_reserve(app->relay, word, msg);
}

static void end_serve(struct peer_app *app)
{
    mu_peer_echo_calls_unserve(&MU_CONTAINER_OF(app, struct serve, app)->echo_calls);
}

static int begin_serve(struct peer_app *app)
{
    const struct mu_peer_autonat_config autonat = {.told = on_dialled_back, .context = app};
    struct serve *s = MU_CONTAINER_OF(app, struct serve, app);
    int code = peer_app_calls(app, false);

    if (code != 0) {
        return code;
    }
    mu_peer_echo_init(&s->echo, MU_PEER_ECHO_NAME);
    if (mu_peer_autonat_start(app->host, &autonat, &app->autonat) != 0 ||
        mu_peer_host_serve(app->host, &s->echo.handler) != 0 ||
        mu_peer_echo_calls_serve(&s->echo_calls, app->calls) != 0) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    code = cli_use_words(app->o->allow, use_allow, app);
    if (code == 0) {
        code = cli_use_words(app->o->announce, use_announce, app);
    }
    if (code == 0) {
        peer_use_numbers(app->host);
        code = cli_use_words(app->o->listen, use_listen, app);
    }
    if (code == 0) {
        code = cli_use_words(app->o->bootstrap, peer_use_bootstrap, app);
    }
    if (code == 0) {
        print_addrs(app, false);
        code = cli_use_words(app->o->via, use_via, app);
    }
    return code;
}

int peer_serve(const struct peer_options *o)
{
    struct serve s = {.app.o = o, .app.ending = end_serve, .app.bootstrapped = say_bootstrapped};
    struct mu_peer_relay_config *config = &s.app.relay_config;

    *config = mu_peer_relay_config_defaults();
    config->hop = o->relay;
    config->hop_terms.limit.data_bytes = o->relay_bytes;
    config->hop_terms.limit.duration_s = (cli_ms(o->relay_time) + 999) / 1000;
    config->autorelay = o->autorelay;
    config->changed = on_relayed;
    config->context = &s.app;
    cli_take_hangup();
    return peer_app_run(&s.app, begin_serve);
}
