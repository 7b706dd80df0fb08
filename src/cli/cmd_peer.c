/* muster peer: makes a libp2p identity; serves, pings and calls peers. */
#include "cli/cmd_peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "codec/text/base64.h"
#include "codec/peer/id.h"

/* --- id --------------------------------------------------------------------------------------- */

static const char *type_name(enum mu_key_type type)
{
    switch (type) {
    case MU_KEY_RSA:
        return "rsa";
    case MU_KEY_ED25519:
        return "ed25519";
    case MU_KEY_SECP256K1:
        return "secp256k1";
    case MU_KEY_ECDSA:
        return "ecdsa";
    }
    return "unknown";
}

static void print_identity(const struct peer_options *o, const struct mu_identity *identity)
{
    char id[MU_PEER_ID_TEXT_MAX];
    char cid[MU_PEER_ID_CID_MAX];

    (void)mu_peer_id_format(&identity->id, id);
    (void)mu_peer_id_format_cid(&identity->id, cid);
    if (o->json) {
        json_t *object =
            json_pack("{s:s, s:s, s:s}", "id", id, "cid", cid, "type", type_name(identity->type));

        (void)json_dumpf(object, stdout, JSON_COMPACT);
        (void)putchar('\n');
        json_decref(object);
    } else {
        printf("%s\n%s\n%s\n", id, cid, type_name(identity->type));
    }
}

static int show_id(const struct peer_options *o)
{
    struct mu_identity identity;
    int code;

    if (o->identity == NULL) {
        return cli_usage("peer", "name the key file");
    }
    code = o->fresh ? peer_key_make(o, &identity) : peer_key_get(o, &identity);
    if (code == 0) {
        print_identity(o, &identity);
        mu_identity_fini(&identity);
    }
    return code;
}

/* --- the command ------------------------------------------------------------------------------ */

static int run(struct peer_options *o, const char *const *words, size_t count)
{
    const char *what = words[0];
    const char *word = count > 1 ? words[1] : NULL;

    if (strcmp(what, "call") == 0) {
        o->address = word;
        o->method = count > 2 ? words[2] : NULL;
        o->data = words + 3;
        o->data_count = count > 3 ? count - 3 : 0;
        return peer_call(o);
    }
    if (count > 2) {
        return cli_usage("peer", "unexpected argument \"%s\"", words[2]);
    }
    if (strcmp(what, "id") == 0) {
        if (word != NULL) {
            o->identity = word;
        }
        return show_id(o);
    }
    if (strcmp(what, "serve") == 0) {
        return word != NULL ? cli_usage("peer", "serve takes no arguments, only options")
                            : peer_serve(o);
    }
    o->address = word;
    return word == NULL ? cli_usage("peer", "name the peer to ping: a multiaddr") : peer_ping(o);
}

int cmd_peer(int argc, char **argv)
{
    static const char *const types[] = {"ed25519", "rsa", NULL};
    static const char *const operations[] = {"id", "serve", "ping", "call", NULL};
    struct peer_options o = {.type = "ed25519",
                             .listen = "/ip4/127.0.0.1/tcp/0",
                             .bits = 2048,
                             .count = 4,
                             .timeout = 10,
                             .idle = 600,
                             .relay_bytes = (uint64_t)4 << 30,
                             .relay_time = 1800,
                             .conns_max = 1024};
    const struct cli_option options[] = {
        {"identity", "FILE", "the key file (a temporary key)", CLI_TEXT, &o.identity, 0},
        {"new", NULL, "id: make the key file, which must not exist", CLI_FLAG, &o.fresh, 0},
        {"type", "TYPE", "id: type of a new key, ed25519 or rsa (ed25519)", CLI_TEXT, &o.type, 0,
         .of = types},
        {"bits", "N", "id: size of a new RSA key (2048)", CLI_NUMBER, &o.bits, 8192},
        {"listen", "MULTIADDR,...", "serve: where to listen (/ip4/127.0.0.1/tcp/0)", CLI_TEXT,
         &o.listen, 0},
        {"advertise", "MULTIADDR,...", "serve: the addresses that others dial (those of --listen)",
         CLI_TEXT, &o.announce, 0},
        {"announce", "MULTIADDR,...", "write --advertise", CLI_GONE, NULL, 0},
        {"allow", "PEER,...", "serve: ids of the peers that may connect (all)", CLI_TEXT, &o.allow,
         0},
        {"relay", NULL, "serve: be a relay for peers that cannot be dialled", CLI_FLAG, &o.relay,
         0},
        {"relay-bytes", "N", "serve: bytes that a circuit may carry each way (4 GiB); 0: no limit",
         CLI_SIZE, &o.relay_bytes, 0},
        {"relay-time", "TIME", "serve: how long a circuit may last (30m); 0: no limit", CLI_SECONDS,
         &o.relay_time, 0},
        {"relay-seconds", "N", "write --relay-time 30m", CLI_GONE, NULL, 0},
        {"via", "MULTIADDR,...", "serve: be reached through these relays", CLI_TEXT, &o.via, 0},
        {"autorelay", NULL, "serve: be reached through relays among the connected peers", CLI_FLAG,
         &o.autorelay, 0},
        {"idle", "TIME", "serve: close connections without streams after this (10m); 0: never",
         CLI_SECONDS, &o.idle, 86400},
        {"conns", "N", "serve: greatest number of connections (1024)", CLI_NUMBER, &o.conns_max,
         1000000},
        {"count", "N", "ping: number of pings (4)", CLI_NUMBER, &o.count, 1000000},
        {"bootstrap", "MULTIADDR,...", "serve, call: peers through which other peers are found",
         CLI_TEXT, &o.bootstrap, 0},
        {"stream", NULL, "call: the method has items both ways; each DATA is one of them", CLI_FLAG,
         &o.stream, 0},
        {"timeout", "TIME", "ping: limit to connect, and for each; call: for the call (10s)",
         CLI_SECONDS, &o.timeout, 3600},
        {"timeout-ms", "MS", "write --timeout 10s, or --timeout 500ms", CLI_GONE, NULL, 0},
        {"json", NULL, "print one JSON object per line", CLI_FLAG, &o.json, 0},
    };
    const struct cli_verb verb = {
        "peer",
        "id|serve|ping|call [OPTIONS] [FILE|MULTIADDR|PEER METHOD [DATA]]",
        "id      prints the peer id of a key file; with --new, makes the file\n"
        "serve   listens; answers identify and ping, tells where other peers are, and echoes:\n"
        "        /muster/echo/1.0.0, muster::Echo.echo and (--stream) muster::Echo.stream\n"
        "ping    connects to a peer and prints the time of each round trip\n"
        "call    calls a method of a peer, as hivemind's peers do; PEER is a multiaddr, or an id\n"
        "        with --bootstrap; DATA is a text, hex:DIGITS, or - for standard input",
        options,
        sizeof(options) / sizeof(options[0]),
        .operations = operations};
    int err = cli_parse(&verb, &argc, &argv);

    return err != 0 ? err : run(&o, (const char *const *)argv, (size_t)argc);
}
