/* muster p2pd: a p2p daemon on its own loop. */
#include "cli/cmd_p2pd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/cli_loop.h"
#include "cli/cmd_peer.h"
#include "service/p2pd/p2pd.h"

#define FAREWELL_MS 500 /* time for peers to hear that the daemon ends */

struct app {
    const struct p2pd_options *o;
    struct cli_loop loop;
    struct mu_identity identity;
    struct mu_p2pd *d;
    bool hurried;
};

/* --- the end ---------------------------------------------------------------------------------- */

static void on_stop_timer(struct mu_timer *timer)
{
    struct app *app = MU_CONTAINER_OF(timer, struct app, loop.stop_timer);

    if (app->hurried) {
        _exit(app->loop.code); /* The socket is gone already, and the peers have had their time. */
    }
    app->hurried = true;
    mu_env_timer_arm(app->loop.env, &app->loop.stop_timer,
                     mu_mono_add_ms(mu_env_now(app->loop.env).mono, FAREWELL_MS));
    mu_p2pd_stop(app->d);
}

static void on_stopped(void *context)
{
    struct app *app = context;

    mu_env_timer_arm(app->loop.env, &app->loop.stop_timer, MU_MONO_NEVER);
    mu_p2pd_free(app->d);
    app->d = NULL;
    cli_loop_stop(&app->loop);
}

static void on_ended(void *context, enum mu_p2pd_end why)
{
    struct app *app = context;

    if (why == MU_P2PD_END_IDLE) {
        (void)p2pd_fail(0, "no client opened a persistent connection in time (-idleTimeout)");
    }
    cli_loop_end(&app->loop, CLI_OK);
}

static void print_stats(struct app *app)
{
    struct mu_p2pd_stats s;
    struct mu_peer_host_stats h;

    mu_p2pd_stats(app->d, &s);
    mu_peer_host_stats(mu_p2pd_host(app->d), &h);
    (void)fprintf(stderr,
                  "p2pd: clients=%llu persistent=%llu handlers=%llu streams=%llu calls=%llu "
                  "served=%llu calls_ever=%llu served_ever=%llu answered=%llu failed=%llu "
                  "canceled=%llu held_bytes=%llu peers=%llu conns=%llu bytes_in=%llu "
                  "bytes_out=%llu\n",
                  (unsigned long long)s.clients, (unsigned long long)s.persistent,
                  (unsigned long long)s.handlers, (unsigned long long)s.streams,
                  (unsigned long long)s.calls, (unsigned long long)s.served,
                  (unsigned long long)s.calls_ever, (unsigned long long)s.served_ever,
                  (unsigned long long)s.answered, (unsigned long long)s.failed,
                  (unsigned long long)s.canceled, (unsigned long long)s.held_bytes,
                  (unsigned long long)h.peers, (unsigned long long)h.conns,
                  (unsigned long long)h.bytes_in, (unsigned long long)h.bytes_out);
}

static void on_signal(void *context, int number)
{
    struct app *app = context;

    if (number == SIGTERM) {
        cli_loop_end(&app->loop, 128 + number);
    } else if (number == SIGUSR1 && app->d != NULL) {
        print_stats(app);
    }
}

/* --- the beginning ---------------------------------------------------------------------------- */

static void print_line(const char *head, const char *text)
{
    printf("%s%s\n", head, text);
    (void)fflush(stdout);
}

static void print_ready(struct app *app)
{
    char id[MU_PEER_ID_TEXT_MAX];
    char text[MU_MULTIADDR_TEXT_MAX];
    struct mu_span addr;

    if (app->o->quiet) {
        return;
    }
    print_line("Control socket: ",
               mu_multiaddr_format(mu_p2pd_listening(app->d, 0), text, sizeof(text)));
    print_line("Peer ID: ", mu_peer_id_format(&app->identity.id, id));
    print_line("Peer Addrs:", "");
    for (size_t i = 0; (addr = mu_peer_host_announced(mu_p2pd_host(app->d), i)).len != 0; i++) {
        print_line("", mu_multiaddr_format(addr, text, sizeof(text)));
    }
}

static void on_bootstrapped(void *context, int status, const char *text)
{
    struct app *app = context;

    if (status == 0) {
        print_ready(app);
    } else {
        cli_loop_end(&app->loop,
                     p2pd_fail(CLI_FAILED, "failed to connect to bootstrap peers: %s", text));
    }
}

/* Counts the addresses of a flag that were used, and those that were skipped. */
struct addrs {
    struct app *app;
    cli_word_fn *use;
    size_t used;
    size_t skipped;
};

static int use_or_skip(void *context, const char *word, struct mu_errmsg *msg)
{
    struct addrs *a = context;
    int err = a->use(a->app, word, msg);

    if (err == MUSTER_EADDR || err == MUSTER_ENOTSUP) {
        a->skipped++;
        return 0;
    }
    a->used += err == 0 ? 1 : 0;
    return err;
}

/* Calls `use` for each address. An address whose transport is not supported (QUIC) is left out if
 * there is another. */
static int use_addrs(struct app *app, const char *list, const char *flag, cli_word_fn *use)
{
    struct addrs a = {.app = app, .use = use};
    struct mu_errmsg msg = {""};

    if (cli_each_word(list, use_or_skip, &a, &msg) != 0 || (a.used == 0 && a.skipped != 0)) {
        return p2pd_fail(CLI_FAILED, "-%s: %s", flag, msg.text);
    }
    return 0;
}

static int use_host_addr(void *context, const char *word, struct mu_errmsg *msg)
{
    struct app *app = context;

    return mu_peer_host_listen(mu_p2pd_host(app->d), word, msg);
}

/* Without the flag, the daemon listens on all addresses of the families that the machine has. */
static int use_any_addr(void *context, const char *word, struct mu_errmsg *msg)
{
    struct app *app = context;

    return mu_peer_host_listen(mu_p2pd_host(app->d), word, msg) == 0 ? 0 : MUSTER_EADDR;
}

static int use_announce(void *context, const char *word, struct mu_errmsg *msg)
{
    struct app *app = context;

    return mu_peer_host_announce(mu_p2pd_host(app->d), word, msg);
}

static int use_bootstrap(void *context, const char *word, struct mu_errmsg *msg)
{
    struct app *app = context;

    return mu_p2pd_bootstrap(app->d, word, msg);
}

static int use_relay(void *context, const char *word, struct mu_errmsg *msg)
{
    struct app *app = context;

    return mu_peer_relay_reserve(mu_p2pd_relay(app->d), word, msg);
}

static void use_number(void *context, const char *ip)
{
    (void)mu_peer_host_add_number(context, ip);
}

static int begin(void *context)
{
    struct app *app = context;
    const struct p2pd_options *o = app->o;
    struct mu_errmsg msg;
    int code = 0;

    mu_uv_env_each_number(use_number, mu_p2pd_host(app->d));
    if (*o->announce_addrs != '\0') {
        code = use_addrs(app, o->announce_addrs, "announceAddrs", use_announce);
    }
    if (code == 0 && !o->no_listen) {
        code = *o->host_addrs != '\0'
                   ? use_addrs(app, o->host_addrs, "hostAddrs", use_host_addr)
                   : use_addrs(app, "/ip4/0.0.0.0/tcp/0,/ip6/::/tcp/0", "hostAddrs", use_any_addr);
    }
    if (code == 0 && *o->trusted_relays != '\0') {
        code = use_addrs(app, o->trusted_relays, "trustedRelays", use_relay);
    }
    if (code == 0 && mu_p2pd_listen(app->d, o->listen, &msg) != 0) {
        code = p2pd_fail(CLI_FAILED, "-listen: %s", msg.text);
    }
    if (code == 0 && *o->bootstrap_peers != '\0' && o->bootstrap) {
        code = use_addrs(app, o->bootstrap_peers, "bootstrapPeers", use_bootstrap);
    }
    if (code == 0 && o->bootstrap) {
        mu_p2pd_bootstrap_begin(app->d);
    } else if (code == 0) {
        print_ready(app);
    }
    return code;
}

/* The daemon does not find out whether other peers can dial it. A daemon that listens may be a
 * relay, and one that was not said to be reachable looks for relays if it may. */
static struct mu_peer_relay_config relay_config(const struct p2pd_options *o)
{
    struct mu_peer_relay_config config = mu_peer_relay_config_defaults();

    config.hop = o->relay_service && !o->no_listen && !o->force_private;
    config.hop_terms.circuits_peer_max = (uint32_t)o->relay_max_circuits;
    config.hop_terms.reservations_max = (uint32_t)o->relay_max_reservations;
    config.hop_terms.limit.data_bytes = (uint64_t)o->relay_data_limit;
    config.hop_terms.limit.duration_s = (uint32_t)(o->relay_time_limit_ms / 1000);
    config.autorelay = o->auto_relay && o->relay_discovery && !o->force_public;
    return config;
}

static int start(void *context)
{
    struct app *app = context;
    struct mu_p2pd_config config = mu_p2pd_config_defaults();
    const struct p2pd_options *o = app->o;
    struct mu_peer_relay_config relay = relay_config(o);
    struct mu_errmsg msg;

    config.identity = &app->identity;
    config.agent = P2PD_AGENT MUSTER_VERSION;
    config.routing = o->dht || o->dht_server ? MU_P2PD_ROUTING_SERVER
                     : o->dht_client         ? MU_P2PD_ROUTING_CLIENT
                                             : MU_P2PD_ROUTING_OFF;
    config.msg_len_max = (size_t)o->msg_len_max;
    config.idle_ms = (uint32_t)o->idle_ms;
    config.relay = o->relay ? &relay : NULL;
    config.autonat = o->autonat;
    config.ended = on_ended;
    config.bootstrapped = on_bootstrapped;
    config.stopped = on_stopped;
    config.context = app;
    return mu_p2pd_start(app->loop.env, &config, &app->d, &msg) == 0
               ? 0
               : p2pd_fail(CLI_FAILED, "%s", msg.text);
}

static int run(struct app *app)
{
    sigset_t set;
    int code;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGUSR1);
    (void)signal(SIGINT, SIG_IGN); /* Ctrl-C is meant for the program that started the daemon, and
                                      reaches both. */
    code = cli_loop_open_for(&app->loop, &set, on_signal, app);
    if (code != 0) {
        return code;
    }
    return cli_loop_live(&app->loop, start, begin, on_stop_timer);
}

int cmd_p2pd(int argc, char **argv)
{
    struct p2pd_options o;
    struct peer_options key = {.type = "ed25519"};
    struct app app = {.o = &o};
    int code = p2pd_parse(argc, argv, &o);

    if (code != 0) {
        return code < 0 ? CLI_OK : code;
    }
    if (o.install || o.uninstall) {
        return p2pd_install(o.install);
    }
    key.identity = *o.id == '\0' ? NULL : o.id;
    if (peer_key_get(&key, &app.identity) != 0) {
        return CLI_FAILED;
    }
    (void)umask(0077); /* Only the user that started the daemon may use the socket. */
    p2pd_log_open();
    (void)cli_raise_descriptor_limit();
    cli_take_hangup();
    code = run(&app);
    mu_identity_fini(&app.identity);
    return code;
}
