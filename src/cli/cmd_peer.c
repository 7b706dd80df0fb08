/* muster peer: an identity among peers, and peers to speak to. */
#include "cli/cmd_peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "codec/base64.h"
#include "codec/peer_id.h"

#define WORDS_MAX 1024

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
        return cli_usage("peer", "a key file is needed");
    }
    code = o->fresh ? peer_key_make(o, &identity) : peer_key_get(o, &identity);
    if (code == 0) {
        print_identity(o, &identity);
        mu_identity_fini(&identity);
    }
    return code;
}

/* --- the verb --------------------------------------------------------------------------------- */

static int run(struct peer_options *o, const char *const *words, size_t count)
{
    const char *what = count > 0 ? words[0] : NULL;
    const char *word = count > 1 ? words[1] : NULL;

    if (what != NULL && strcmp(what, "call") == 0) {
        o->address = word;
        o->method = count > 2 ? words[2] : NULL;
        o->data = words + 3;
        o->data_count = count > 3 ? count - 3 : 0;
        return peer_call(o);
    }
    if (count > 2) {
        return cli_usage("peer", "\"%s\" is one word too many", words[2]);
    }
    if (what != NULL && strcmp(what, "id") == 0) {
        if (word != NULL) {
            o->identity = word;
        }
        return show_id(o);
    }
    if (what != NULL && strcmp(what, "serve") == 0) {
        return word != NULL ? cli_usage("peer", "serve takes options only") : peer_serve(o);
    }
    if (what != NULL && strcmp(what, "ping") == 0) {
        o->address = word;
        return word == NULL ? cli_usage("peer", "a multiaddr is needed: whom to ping")
                            : peer_ping(o);
    }
    return cli_usage("peer", "one of id, serve, ping and call is needed");
}

int cmd_peer(int argc, char **argv)
{
    static const char *const types[] = {"ed25519", "rsa", NULL};
    struct peer_options o = {.type = "ed25519",
                             .listen = "/ip4/127.0.0.1/tcp/0",
                             .bits = 2048,
                             .count = 4,
                             .timeout_ms = 10000,
                             .idle = 600,
                             .relay_bytes = (uint64_t)4 << 30,
                             .relay_seconds = 1800,
                             .conns_max = 1024};
    const struct cli_option options[] = {
        {"identity", "FILE", "the key file; without, a key for this once", CLI_TEXT, &o.identity,
         0},
        {"new", NULL, "id: makes the key file, which must not be there", CLI_FLAG, &o.fresh, 0},
        {"type", "TYPE", "of a new key: ed25519, rsa (ed25519)", CLI_TEXT, &o.type, 0, .of = types},
        {"bits", "N", "of a new RSA key (2048)", CLI_NUMBER, &o.bits, 8192},
        {"listen", "MULTIADDR,...", "serve: where (/ip4/127.0.0.1/tcp/0)", CLI_TEXT, &o.listen, 0},
        {"announce", "MULTIADDR,...", "serve: what others are told instead", CLI_TEXT, &o.announce,
         0},
        {"allow", "PEER,...", "serve: who may come (everybody)", CLI_TEXT, &o.allow, 0},
        {"relay", NULL, "serve: is a relay for peers that cannot be dialled", CLI_FLAG, &o.relay,
         0},
        {"relay-bytes", "N", "serve: that a circuit carries each way (4 GiB); 0: no limit",
         CLI_SIZE, &o.relay_bytes, 0},
        {"relay-seconds", "N", "serve: that a circuit lasts (1800); 0: no limit", CLI_NUMBER,
         &o.relay_seconds, UINT32_MAX},
        {"via", "MULTIADDR,...", "serve: is reached through these relays", CLI_TEXT, &o.via, 0},
        {"autorelay", NULL, "serve: is reached through relays that it meets", CLI_FLAG,
         &o.autorelay, 0},
        {"idle", "SECONDS", "serve: closes connections without streams (600); 0: never", CLI_NUMBER,
         &o.idle, 86400},
        {"conns", "N", "serve: connections at the most (1024)", CLI_NUMBER, &o.conns_max, 1000000},
        {"count", "N", "ping: how often (4)", CLI_NUMBER, &o.count, 1000000},
        {"bootstrap", "MULTIADDR,...", "serve, call: peers through whom others are found", CLI_TEXT,
         &o.bootstrap, 0},
        {"stream", NULL, "call: items both ways, each DATA one of them", CLI_FLAG, &o.stream, 0},
        {"timeout-ms", "MS", "ping: for the connection, and for each; call: for all of it (10000)",
         CLI_NUMBER, &o.timeout_ms, 3600000},
        {"json", NULL, "one object a line", CLI_FLAG, &o.json, 0},
    };
    const struct cli_verb verb = {
        "peer", "id|serve|ping|call [OPTIONS] [FILE|MULTIADDR|PEER METHOD [DATA]]",
        "id      shows who a key file is; with --new, makes it\n"
        "serve   listens, answers identify and ping, tells where peers are, and echoes on "
        "/muster/echo/1.0.0, muster::Echo.echo and, with --stream, muster::Echo.stream\n"
        "ping    how long a round trip to a peer takes, secured and proved\n"
        "call    calls a method of a peer, as hivemind's peers do; PEER is a multiaddr, or an id "
        "with --bootstrap; DATA is a text, or hex:..., or - for standard input",
        options, sizeof(options) / sizeof(options[0])};
    const char *words[WORDS_MAX] = {NULL};
    size_t n = 0;
    int err = cli_parse(&verb, &argc, &argv);

    while (err == 0 && argc > 0) {
        if (n == WORDS_MAX) {
            return cli_usage("peer", "there are at most %d words", WORDS_MAX);
        }
        words[n++] = argv[0];
        err = cli_parse(&verb, &argc, &argv);
    }
    return err != 0 ? err : run(&o, words, n);
}
