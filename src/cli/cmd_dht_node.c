/* muster dht: a node of the DHT on its own loop. */
#include "cli/cmd_dht.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd_peer.h"
#include "codec/peer/multiaddr.h"

/* --- the end: close from the top of the stack to its bottom------------------------------------ */

static void on_host_stopped(void *context)
{
    struct dht_app *app = context;

    mu_peer_host_free(app->host);
    app->host = NULL;
    cli_loop_stop(&app->loop);
}

static void stop_host(struct dht_app *app)
{
    mu_peer_calls_free(app->calls);
    mu_kad_stop(app->kad);
    mu_peer_autonat_free(app->autonat);
    mu_peer_relay_free(app->relay);
    app->calls = NULL;
    app->kad = NULL;
    app->autonat = NULL;
    app->relay = NULL;
    mu_peer_host_stop(app->host);
}

static void on_dht_stopped(void *context)
{
    struct dht_app *app = context;

    mu_dht_service_free(app->dht);
    app->dht = NULL;
    stop_host(app);
}

void dht_stop(struct dht_app *app, int code)
{
    if (app->stopping) {
        return;
    }
    app->stopping = true;
    app->code = app->code != 0 ? app->code : code;
    if (app->stopped != NULL) {
        app->stopped(app);
    }
    if (app->dht != NULL) {
        mu_dht_service_stop(app->dht);
    } else if (app->host != NULL) {
        stop_host(app);
    }
}

static void on_signal(void *context, int number)
{
    (void)number;
    dht_stop(context, 0);
}

/* --- the beginning ---------------------------------------------------------------------------- */

static int use_listen(void *context, const char *word, struct mu_errmsg *msg)
{
    struct dht_app *app = context;

    return mu_peer_host_listen(app->host, word, msg);
}

static int use_announce(void *context, const char *word, struct mu_errmsg *msg)
{
    struct dht_app *app = context;

    return mu_peer_host_announce(app->host, word, msg);
}

static int use_peer(void *context, const char *word, struct mu_errmsg *msg)
{
    struct dht_app *app = context;
    struct mu_peer_id peer;
    struct mu_addr addr;
    struct mu_buf binary;
    int err;

    if (app->peer_count == DHT_PEERS_MAX) {
        return mu_err(msg, MUSTER_EINVAL, "there are at most %d peers", DHT_PEERS_MAX);
    }
    mu_buf_init(&binary, MU_MULTIADDR_MAX);
    err = mu_multiaddr_parse(&binary, word, msg);
    if (err == 0 && mu_multiaddr_dial(mu_buf_span(&binary), &addr, &peer) != 0 &&
        mu_multiaddr_circuit(mu_buf_span(&binary), NULL, NULL, &peer) != 0) {
        err = mu_err(msg, MUSTER_EINVAL, "%s", mu_multiaddr_refusal(mu_buf_span(&binary)));
    }
    if (err == 0 && peer.len == 0) {
        err = mu_err(msg, MUSTER_EINVAL, "it lacks the peer's id (/p2p/ID at its end)");
    }
    err = err != 0 ? err : mu_peer_host_add_addr(app->host, &peer, mu_buf_span(&binary));
    mu_buf_fini(&binary);
    if (err == 0) {
        app->peers[app->peer_count++] = peer;
    }
    return err;
}

static void print_addrs(struct dht_app *app)
{
    char id[MU_PEER_ID_TEXT_MAX];
    char text[MU_MULTIADDR_TEXT_MAX];
    char node[2 * MU_DHT_ID_LEN + 1];
    const struct mu_dht_id *own = &mu_dht_routing(mu_dht_service_node(app->dht))->config.self;
    json_t *addrs = json_array();
    struct mu_span addr;

    (void)mu_peer_id_format(&app->identity.id, id);
    for (size_t i = 0; (addr = mu_peer_host_announced(app->host, i)).len != 0; i++) {
        char whole[MU_MULTIADDR_TEXT_MAX + MU_PEER_ID_TEXT_MAX];

        (void)snprintf(whole, sizeof(whole), "%s/p2p/%s",
                       mu_multiaddr_format(addr, text, sizeof(text)), id);
        if (!app->o->json) {
            printf("%s\n", whole);
        }
        (void)json_array_append_new(addrs, json_string(whole));
    }
    if (app->o->json) {
        json_t *object;

        for (size_t i = 0; i < MU_DHT_ID_LEN; i++) {
            (void)snprintf(node + 2 * i, 3, "%02x", own->bytes[i]);
        }
        object = json_pack("{s:s, s:s, s:O}", "id", id, "node", node, "listen", addrs);

        (void)json_dumpf(object, stdout, JSON_COMPACT);
        (void)putchar('\n');
        json_decref(object);
    }
    json_decref(addrs);
    (void)fflush(stdout);
}

/* The first peer stands for all: what was dialled, and what came of it. */
static const char *why_not(const struct dht_app *app, int status)
{
    const char *why = app->peer_count == 0 ? "" : mu_peer_host_why(app->host, &app->peers[0]);

    return why[0] != '\0' ? why : muster_strerror(status);
}

static void on_joined(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct dht_app *app = MU_CONTAINER_OF(wish, struct dht_app, join);

    if (app->stopping) {
        return;
    }
    if (app->begin != NULL) {
        int code = op->status == 0
                       ? app->begin(app)
                       : cli_fail(op->status == MUSTER_EDHT_NOBODY ? CLI_CONNECT : CLI_FAILED,
                                  "cannot join the DHT: %s", why_not(app, op->status));

        if (code != 0) {
            dht_stop(app, code);
        }
        return;
    }
    /* A node that serves tries again without being told. */
    if (op->status != 0) {
        (void)cli_fail(0, "not joined yet: %s", why_not(app, op->status));
    } else if (app->peer_count != 0 && op->reachable == 0) {
        (void)cli_fail(0, "no other node can reach this one; check --advertise and the firewall");
    }
    if (app->o->json) {
        printf("{\"joined\":%s,\"answered\":%u,\"reachable\":%u}\n",
               op->status == 0 ? "true" : "false", op->answered, op->reachable);
    } else {
        printf("%s\n", op->status == 0 ? "joined" : "waiting");
    }
    (void)fflush(stdout);
}

static void on_dialled_back(void *context, const struct mu_peer_id *by, bool reached,
                            const char *text)
{
    struct dht_app *app = context;

    if (!app->stopping) {
        app->unreached = peer_say_dialled_back(by, reached, text, app->unreached, "");
    }
}

/* A node that serves is a relay as well, and asks others to dial it back. */
static int start_services(struct dht_app *app, bool client)
{
    struct mu_peer_relay_config relay = mu_peer_relay_config_defaults();
    struct mu_peer_autonat_config autonat = {.context = app};
    struct mu_errmsg msg;
    int err;

    relay.hop = !client && !app->o->no_relay;
    autonat.told = client ? NULL : on_dialled_back;
    err = mu_peer_relay_start(app->host, &relay, &app->relay, &msg);
    if (err != 0) {
        return cli_fail(CLI_FAILED, "%s", msg.text);
    }
    err = mu_peer_autonat_start(app->host, &autonat, &app->autonat);
    return err == 0 ? 0 : cli_fail(CLI_FAILED, "%s", muster_strerror(err));
}

static int start_host(struct dht_app *app)
{
    struct mu_peer_host_config config = mu_peer_host_config_defaults();
    struct mu_errmsg msg;
    int err;

    config.identity = &app->identity;
    config.agent = "muster/" MUSTER_VERSION;
    config.stopped = on_host_stopped;
    config.context = app;
    err = mu_peer_host_start(app->loop.env, &config, &app->host, &msg);
    return err == 0 ? 0 : cli_fail(CLI_FAILED, "%s", msg.text);
}

static int start_dht(struct dht_app *app, bool client)
{
    struct mu_dht_service_config config = {
        .dht = mu_dht_config_defaults(), .stopped = on_dht_stopped, .context = app};
    struct mu_kad_config kad = mu_kad_config_defaults();
    struct mu_errmsg msg = {{0}};
    int err;

    kad.client = client;
    err = mu_kad_start(app->host, &kad, &app->kad);
    err = err != 0 ? err : mu_peer_calls_new(app->host, NULL, &app->calls);
    if (err != 0) {
        return cli_fail(CLI_FAILED, "%s", muster_strerror(err));
    }
    config.unary = mu_peer_calls_unary(app->calls);
    config.dht.self.peer = app->identity.id;
    config.dht.client = client;
    config.dht.replicas = (uint32_t)app->o->replicas;
    config.dht.op_ms = cli_ms(app->o->timeout);
    (void)mu_dht_chain_add(&config.dht.chain, &app->validator.base);
    err = mu_dht_service_start(app->loop.env, &config, &app->dht, &msg);
    return err == 0 ? 0 : cli_fail(CLI_FAILED, "%s", msg.text);
}

static int begin(struct dht_app *app, bool client)
{
    int code = start_services(app, client);
    int err;

    code = code != 0 ? code : start_dht(app, client);
    code = code != 0 ? code : cli_use_words(app->o->peers, use_peer, app);
    if (!client) {
        code = code != 0 ? code : cli_use_words(app->o->announce, use_announce, app);
        peer_use_numbers(app->host);
        code = code != 0 ? code : cli_use_words(app->o->listen, use_listen, app);
    } else if (code == 0 && app->peer_count == 0) {
        code = cli_usage("dht", "name the nodes to join through: --bootstrap MULTIADDR,...");
    }
    if (code != 0) {
        return code;
    }
    if (!client) {
        print_addrs(app);
    }
    app->join.done = on_joined;
    err = mu_dht_service_join(app->dht, &app->join, app->peers, app->peer_count);
    return err == 0 ? 0 : cli_fail(CLI_FAILED, "%s", muster_strerror(err));
}

static int read_keys(struct dht_app *app)
{
    struct peer_options key = {.identity = app->o->identity, .type = "ed25519"};
    struct peer_options owner = {.identity = app->o->owner, .type = "rsa"};
    int code = peer_key_get(&key, &app->identity);
    int err;

    if (code != 0) {
        return code;
    }
    if (app->o->owner != NULL) {
        code = peer_key_get(&owner, &app->owner);
        app->has_owner = code == 0;
    }
    if (code == 0) {
        err = mu_dht_owner_init(&app->validator, app->has_owner ? &app->owner : NULL);
        code = err == 0 ? 0 : cli_fail(CLI_USAGE, "%s: --owner needs an RSA key", app->o->owner);
    }
    if (code != 0) {
        mu_identity_fini(&app->identity);
        if (app->has_owner) {
            mu_identity_fini(&app->owner);
        }
    }
    return code;
}

int dht_run(struct dht_app *app, bool client)
{
    int code = read_keys(app);

    if (code != 0) {
        return code;
    }
    code = cli_loop_open_peers(&app->loop, on_signal, app);
    if (code == 0) {
        app->code = start_host(app);
        if (app->code == 0) {
            code = begin(app, client);
            if (code != 0) {
                dht_stop(app, code);
            }
            cli_loop_run(&app->loop);
        }
        cli_loop_close(&app->loop);
        code = app->code;
    }
    mu_dht_owner_fini(&app->validator);
    mu_identity_fini(&app->identity);
    if (app->has_owner) {
        mu_identity_fini(&app->owner);
    }
    return code;
}
