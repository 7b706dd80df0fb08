/* muster p2pd: flags as Go's programs take them, so that a program that starts libp2p's daemon can
 * start this one instead. */
#include "cli/cmd_p2pd.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "codec/peer/multiaddr.h"

enum flag_type { FLAG_BOOL = 1, FLAG_TEXT, FLAG_INT, FLAG_DURATION };

struct flag {
    const char *name;
    enum flag_type type;
    void *to; /* NULL: the flag is read and has no effect */
    const char *help;
    bool *given; /* set if the flag was given; may be NULL */
};

#define FLAGS_MAX 64

int p2pd_fail(int code, const char *format, ...)
{
    va_list args;

    (void)fflush(stdout);
    (void)fputs("p2pd: ", stderr);
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
    return code;
}

static bool read_bool(const char *text, bool *ret)
{
    static const char *const yes[] = {"1", "t", "T", "true", "TRUE", "True"};
    static const char *const no[] = {"0", "f", "F", "false", "FALSE", "False"};

    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *ret = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

/* "30s", "1.5m", "1h30m", "250ms", "0". */
static bool read_duration(const char *text, uint64_t *ret_ms)
{
    static const struct {
        const char *name;
        double ms;
    } units[] = {{"ns", 1e-6}, {"us", 1e-3}, {"ms", 1}, {"s", 1e3}, {"m", 6e4}, {"h", 3.6e6}};
    double total = 0;

    if (strcmp(text, "0") == 0) {
        *ret_ms = 0;
        return true;
    }
    while (*text != '\0') {
        char *end;
        double number = strtod(text, &end);
        size_t unit = 0;
        size_t len = strcspn(end, "0123456789.");

        if (end == text || strspn(text, "0123456789.") != (size_t)(end - text)) {
            return false;
        }
        while (unit < 6 &&
               (strlen(units[unit].name) != len || strncmp(units[unit].name, end, len) != 0)) {
            unit++;
        }
        if (unit == 6) {
            return false;
        }
        total += number * units[unit].ms;
        text = end + len;
    }
    if (!(total >= 0 && total < 4e9)) {
        return false;
    }
    *ret_ms = total > 0 && total < 1 ? 1 : (uint64_t)total;
    return true;
}

static bool read_int(const char *text, int64_t *ret)
{
    char *end;

    errno = 0;
    *ret = strtoll(text, &end, 0);
    return errno == 0 && end != text && *end == '\0';
}

static bool set(const struct flag *f, const char *value)
{
    int64_t number;
    uint64_t ms;
    bool on;

    switch (f->type) {
    case FLAG_BOOL:
        if (!read_bool(value, &on)) {
            return false;
        }
        if (f->to != NULL) {
            *(bool *)f->to = on;
        }
        return true;
    case FLAG_TEXT:
        if (f->to != NULL) {
            *(const char **)f->to = value;
        }
        return true;
    case FLAG_INT:
        if (!read_int(value, &number)) {
            return false;
        }
        if (f->to != NULL) {
            *(int64_t *)f->to = number;
        }
        return true;
    case FLAG_DURATION:
        if (!read_duration(value, &ms)) {
            return false;
        }
        if (f->to != NULL) {
            *(uint64_t *)f->to = ms;
        }
        return true;
    }
    return false;
}

static void print_help(FILE *to, const struct flag *flags, size_t count)
{
    (void)fprintf(
        to,
        "usage: p2pd [-FLAG=VALUE ...]\n\n"
        "Runs a p2p daemon for hivemind, in place of libp2p's; also `muster p2pd`.\n\nflags:\n");
    for (size_t i = 0; i < count; i++) {
        (void)fprintf(to, "  -%-26s %s%s\n", flags[i].name, flags[i].help,
                      flags[i].to == NULL ? " (no effect)" : "");
    }
}

static int parse(int argc, char **argv, const struct flag *flags, size_t count)
{
    for (int i = 1; i < argc; i++) {
        char name[64];
        const char *word = argv[i];
        const char *value;
        size_t len;
        size_t at = 0;

        if (word[0] != '-' || word[1] == '\0') {
            return p2pd_fail(CLI_USAGE, "\"%s\" is not a flag", word);
        }
        word += word[1] == '-' ? 2 : 1;
        if (*word == '\0') {
            return i + 1 == argc ? 0 : p2pd_fail(CLI_USAGE, "\"%s\" is not a flag", argv[i + 1]);
        }
        value = strchr(word, '=');
        len = value == NULL ? strlen(word) : (size_t)(value - word);
        (void)snprintf(name, sizeof(name), "%.*s", (int)(len < 63 ? len : 63), word);
        if (strcmp(name, "h") == 0 || strcmp(name, "help") == 0) {
            print_help(stdout, flags, count);
            return -1;
        }
        while (at < count && strcmp(flags[at].name, name) != 0) {
            at++;
        }
        if (at == count) {
            (void)p2pd_fail(CLI_USAGE, "flag provided but not defined: -%s", name);
            print_help(stderr, flags, count);
            return CLI_USAGE;
        }
        if (value != NULL) {
            value++;
        } else if (flags[at].type == FLAG_BOOL) {
            value = "1";
        } else if (i + 1 < argc) {
            value = argv[++i];
        } else {
            return p2pd_fail(CLI_USAGE, "flag needs an argument: -%s", name);
        }
        if (!set(&flags[at], value)) {
            return p2pd_fail(CLI_USAGE, "invalid value for -%s: \"%s\"", name, value);
        }
        if (flags[at].given != NULL) {
            *flags[at].given = true;
        }
    }
    return 0;
}

/* A client at that address controls the daemon: it speaks in the daemon's name and has it dial. */
static int check_listen(const struct p2pd_options *o)
{
    struct mu_errmsg msg;
    struct mu_addr addr;
    struct mu_buf bytes;
    bool far;

    mu_buf_init(&bytes, MU_MULTIADDR_MAX);
    far = mu_multiaddr_parse(&bytes, o->listen, &msg) == 0 &&
          mu_multiaddr_dial(mu_buf_span(&bytes), &addr, NULL) == 0 && !mu_addr_is_loopback(&addr);
    mu_buf_fini(&bytes);
    if (!far) {
        return 0; /* A text that is not an address is refused where it is used. */
    }
    if (!o->remote_control) {
        return p2pd_fail(CLI_USAGE,
                         "-listen=%s: everyone who reaches it from other hosts could command this "
                         "daemon; listen at /unix/... or on loopback, or give -remoteControl=1",
                         o->listen);
    }
    return p2pd_fail(0, "warning: everyone who reaches %s commands this daemon (-remoteControl)",
                     o->listen);
}

static bool fits(int64_t number)
{
    return number >= 0 && number <= INT32_MAX;
}

/* A flag that cannot be obeyed is refused, not ignored in silence. */
static int refuse(const struct p2pd_options *o, bool noise, const char *muxer, const char *file,
                  bool from_stdin)
{
    if (!noise) {
        return p2pd_fail(CLI_USAGE, "-noise=0: Noise is the only way to secure connections here");
    }
    if (strcmp(muxer, "yamux") != 0) {
        return p2pd_fail(CLI_USAGE, "-muxer=%s: yamux is the only multiplexer here", muxer);
    }
    if (*file != '\0' || from_stdin) {
        return p2pd_fail(CLI_USAGE, "-%s: configuration files are not read; use flags",
                         from_stdin ? "i" : "f");
    }
    if (o->install && o->uninstall) {
        return p2pd_fail(CLI_USAGE, "-install and -uninstall exclude each other");
    }
    if (o->force_public && o->force_private) {
        return p2pd_fail(CLI_USAGE, "forceReachability must be public or private, not both");
    }
    if (o->bootstrap && *o->bootstrap_peers == '\0') {
        return p2pd_fail(
            CLI_USAGE,
            "-b: there is no peer to bootstrap from; name some with -bootstrapPeers (those of "
            "IPFS are not built in)");
    }
    if (*o->trusted_relays != '\0' && (!o->relay || !o->auto_relay)) {
        return p2pd_fail(CLI_USAGE, "-trustedRelays needs -relay=1 and -autoRelay=1");
    }
    if (o->auto_relay && o->relay && !o->relay_discovery && *o->trusted_relays == '\0') {
        return p2pd_fail(CLI_USAGE, "-autoRelay needs -relayDiscovery=1 or -trustedRelays");
    }
    if (!fits(o->relay_max_circuits) || !fits(o->relay_max_reservations) ||
        o->relay_data_limit < 0) {
        return p2pd_fail(CLI_USAGE,
                         "-relayMaxCircuits, -relayMaxReservations or -relayDataLimit is "
                         "out of range");
    }
    if (o->msg_len_max < 1024 || o->msg_len_max > 1 << 30) {
        return p2pd_fail(CLI_USAGE, "-persistentConnMaxMsgSize must be from 1024 to 1073741824");
    }
    return 0;
}

static struct p2pd_options defaults(void)
{
    return (struct p2pd_options){
        .listen = "/unix/tmp/p2pd.sock",
        .id = "",
        .host_addrs = "",
        .announce_addrs = "",
        .bootstrap_peers = "",
        .trusted_relays = "",
        .relay = true,
        .relay_discovery = true,
        .relay_max_circuits = 16,
        .relay_max_reservations = 128,
        .relay_data_limit = INT64_C(1) << 32,
        .relay_time_limit_ms = 1800000,
        .msg_len_max = 4 << 20,
    };
}

int p2pd_parse(int argc, char **argv, struct p2pd_options *o)
{
    const char *muxer = "yamux";
    const char *file = "";
    bool noise = true;
    bool from_stdin = false;
    const struct flag flags[] = {
        {"listen", FLAG_TEXT, &o->listen, "where clients connect (/unix/tmp/p2pd.sock)"},
        {"remoteControl", FLAG_BOOL, &o->remote_control, "allow other hosts to reach -listen"},
        {"q", FLAG_BOOL, &o->quiet, "do not print the startup lines"},
        {"id", FLAG_TEXT, &o->id, "the key file (a temporary key)"},
        {"install", FLAG_BOOL, &o->install, "put this daemon into python3's hivemind, and end"},
        {"uninstall", FLAG_BOOL, &o->uninstall, "bring hivemind's own daemon back, and end"},
        {"b", FLAG_BOOL, &o->bootstrap, "connect to some of -bootstrapPeers first"},
        {"bootstrapPeers", FLAG_TEXT, &o->bootstrap_peers, "the peers for -b, with commas"},
        {"hostAddrs", FLAG_TEXT, &o->host_addrs, "where to listen for peers (everywhere)"},
        {"announceAddrs", FLAG_TEXT, &o->announce_addrs, "addresses to announce to peers"},
        {"noListenAddrs", FLAG_BOOL, &o->no_listen, "do not listen for peers"},
        {"dht", FLAG_BOOL, &o->dht, "find peers by their ids, and help others to"},
        {"dhtClient", FLAG_BOOL, &o->dht_client, "find peers by their ids"},
        {"dhtServer", FLAG_BOOL, &o->dht_server, "the same as -dht"},
        {"idleTimeout", FLAG_DURATION, &o->idle_ms,
         "end if no client opens a persistent connection (0: never)"},
        {"persistentConnMaxMsgSize", FLAG_INT, &o->msg_len_max, "longest message (4194304)"},
        {"relay", FLAG_BOOL, &o->relay, "reach peers through relays (1)", &o->relay_given},
        {"relayService", FLAG_BOOL, &o->relay_service,
         "be a relay for other peers (1 if -relay=1 is given)", &o->relay_service_given},
        {"relayDiscovery", FLAG_BOOL, &o->relay_discovery, "with -autoRelay: look for relays (1)"},
        {"autoRelay", FLAG_BOOL, &o->auto_relay, "be reached through relays"},
        {"trustedRelays", FLAG_TEXT, &o->trusted_relays, "relays to use"},
        {"relayMaxCircuits", FLAG_INT, &o->relay_max_circuits, "most circuits of a peer (16)"},
        {"relayMaxReservations", FLAG_INT, &o->relay_max_reservations, "most peers served (128)"},
        {"relayDataLimit", FLAG_INT, &o->relay_data_limit, "bytes each way of a circuit (4 GiB)"},
        {"relayTimeLimit", FLAG_DURATION, &o->relay_time_limit_ms, "duration of a circuit (30m)"},
        {"forceReachabilityPublic", FLAG_BOOL, &o->force_public, "the daemon can be dialled"},
        {"forceReachabilityPrivate", FLAG_BOOL, &o->force_private, "the daemon cannot be dialled"},
        {"noise", FLAG_BOOL, &noise, "must be 1"},
        {"muxer", FLAG_TEXT, &muxer, "must be yamux"},
        {"f", FLAG_TEXT, &file, "refused: configuration files are not read"},
        {"i", FLAG_BOOL, &from_stdin, "refused: configuration files are not read"},
        {"tls", FLAG_BOOL, NULL, "TLS besides Noise"},
        {"quic", FLAG_BOOL, NULL, "deprecated"},
        {"autonat", FLAG_BOOL, &o->autonat, "tell peers whether they can be dialled"},
        {"natPortMap", FLAG_BOOL, NULL, "ask a router for a port"},
        {"connManager", FLAG_BOOL, NULL, "close connections when there are many"},
        {"connHi", FLAG_INT, NULL, "number of connections at which it begins"},
        {"connLo", FLAG_INT, NULL, "number of connections at which it ends"},
        {"connGrace", FLAG_DURATION, NULL, "age at which connections may be closed"},
        {"relayActive", FLAG_BOOL, NULL, "deprecated"},
        {"relayHop", FLAG_BOOL, NULL, "deprecated"},
        {"relayHopLimit", FLAG_INT, NULL, "deprecated"},
        {"relayBufferSize", FLAG_INT, NULL, "size of a circuit's buffer"},
        {"metricsAddr", FLAG_TEXT, NULL, "where metrics are served"},
        {"pprof", FLAG_BOOL, NULL, "Go's profiles"},
        {"pprofPort", FLAG_INT, NULL, "where Go's profiles are served"},
        {"pubsub", FLAG_BOOL, NULL, "pubsub; requests for it are answered with an error"},
        {"pubsubRouter", FLAG_TEXT, NULL, "router of pubsub"},
        {"pubsubSign", FLAG_BOOL, NULL, "sign messages of pubsub"},
        {"pubsubSignStrict", FLAG_BOOL, NULL, "refuse messages without a signature"},
        {"gossipsubHeartbeatInterval", FLAG_DURATION, NULL, "interval of the heartbeats"},
        {"gossipsubHeartbeatInitialDelay", FLAG_DURATION, NULL, "delay of the first heartbeat"},
    };
    int code;

    *o = defaults();
    code = parse(argc, argv, flags, sizeof(flags) / sizeof(flags[0]));
    /* hivemind gives only -relay=1, and its peers rely on each other as relays. */
    if (!o->relay_service_given) {
        o->relay_service = o->relay && o->relay_given;
    }
    code = code != 0 ? code : refuse(o, noise, muxer, file, from_stdin);
    return code != 0 ? code : check_listen(o);
}
