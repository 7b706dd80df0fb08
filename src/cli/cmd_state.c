/* muster state: shares the state of a model, and pulls it on other machines. */
#include "cli/cmd_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cmd_peer.h"

int state_request(const struct state_options *o, muster_runtime *rt,
                  struct muster_state_request *ret)
{
    *ret = muster_state_request_defaults();
    ret->prefix = o->prefix != NULL ? o->prefix : "";
    ret->donors = o->words;
    ret->donor_count = o->word_count;
    ret->key = o->identity;
    ret->allow = o->peers;
    ret->allow_count = o->peer_count;
    ret->trust = o->trusted;
    ret->trust_count = o->trusted_count;
    ret->id = o->id;
    ret->by_priority = o->by_priority;
    ret->dht = o->swarm != NULL ? o->dht : NULL;
    ret->dht_count = o->dht_count;
    ret->hivemind = o->hivemind;
    ret->bytes_max = o->max_size;
    ret->timeout_ms = cli_timeout(o->timeout);
    ret->idle_ms = cli_ms(o->idle);
    ret->stall_ms = cli_ms(o->stall);
    ret->connect_ms = cli_ms(o->connect);
    return o->store == NULL ? 0 : muster_store_open(rt, o->store, NULL, &ret->store);
}

char *state_size(char out[24], uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1023.95 && unit < 4) {
        value /= 1024;
        unit++;
    }
    (void)snprintf(out, 24, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return out;
}

void state_print(json_t *object)
{
    (void)json_dumpf(object, stdout, JSON_COMPACT);
    (void)fputc('\n', stdout);
    (void)fflush(stdout);
    json_decref(object);
}

static int take_words(struct state_options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (o->word_count == STATE_WORDS_MAX) {
            return cli_usage("state", "name at most %d donors", STATE_WORDS_MAX);
        }
        o->words[o->word_count++] = argv[i];
    }
    return 0;
}

/* Splits the value of an option at its commas, in a copy of its text. */
static int split(const char *option, char *text, const char **words, size_t *count)
{
    char *save = NULL;

    for (char *word = strtok_r(text, ",", &save); word != NULL; word = strtok_r(NULL, ",", &save)) {
        if (*count == STATE_PEERS_MAX) {
            return cli_usage("state", "--%s takes at most %d values", option, STATE_PEERS_MAX);
        }
        words[(*count)++] = word;
    }
    return 0;
}

/* In a swarm, a state is found under its prefix, which is the first word. */
static int take_prefix(struct state_options *o)
{
    if (o->prefix == NULL && o->word_count != 0) {
        o->prefix = o->words[0];
        memmove(o->words, o->words + 1, --o->word_count * sizeof(*o->words));
    }
    return o->prefix != NULL ? 0
                             : cli_usage("state", "with --bootstrap, name the PREFIX of the state");
}

/* Divides --allow into peers that may load from us and address ranges for the lock. `ranges` has
 * room for all of it. */
static int sort_allowed(struct state_options *o, char *ranges, size_t cap)
{
    size_t peers = 0;
    size_t len = 0;

    for (size_t i = 0; i < o->peer_count; i++) {
        const char *word = o->peers[i];
        struct mu_peer_id id;
        struct mu_errmsg msg;

        if (strpbrk(word, "./:") != NULL) {
            len += (size_t)snprintf(ranges + len, cap - len, "%s%s", len == 0 ? "" : ",", word);
            o->lock->allow = ranges;
        } else if (mu_peer_id_parse(&id, word, &msg) != 0) {
            return cli_usage(
                "state", "--allow takes peer ids and address ranges, and \"%s\" is neither", word);
        } else {
            o->peers[peers++] = word;
        }
    }
    o->peer_count = peers;
    return 0;
}

/* Every restriction of the command line is enforced or refused, because the user relies on it. A
 * token is accepted, since it may be for the store or for the page. */
static int check_lock(const struct state_options *o, bool serving)
{
    const struct muster_lock *lock = &o->lock->lock;
    bool peers = o->identity != NULL || (!serving && o->word_count != 0 && o->words[0][0] == '/');

    if (o->via_count != 0 && (!serving || !peers)) {
        return cli_usage("state", "--via names relays, which lead peers to a donor: use it with "
                                  "serve and --identity or --bootstrap");
    }
    if (o->peer_count != 0 && !peers && o->store == NULL) {
        return cli_usage("state",
                         "--allow names peers, which only --identity or --bootstrap uses: add "
                         "--identity FILE, or use --token-file FILE instead");
    }
    if (peers && o->store == NULL && o->http == NULL &&
        (lock->token_file != NULL || lock->cert != NULL)) {
        return cli_usage("state",
                         "peers do not show the job's %s: use --allow PEER,... instead, or "
                         "leave out --identity and --bootstrap",
                         lock->token_file != NULL ? "token" : "certificates");
    }
    return 0;
}

/* Options of the swarm. */
static int prepare_swarm(struct state_options *o, bool serving, char *copy)
{
    int err = 0;

    if (o->swarm == NULL) {
        return o->hivemind != NULL || o->encoding != NULL
                   ? cli_usage(
                         "state",
                         "--hivemind and --encoding need --bootstrap, which finds hivemind's peers")
                   : 0;
    }
    if (o->hivemind != NULL && o->hivemind[0] == '\0') {
        return cli_usage("state",
                         "--hivemind needs a value (CLASS), such as TrainingStateAverager");
    }
    if (o->identity == NULL) {
        o->identity = ""; /* a temporary key */
    }
    if (!serving || strcmp(o->swarm, "new") != 0) {
        err = split("bootstrap", copy, o->dht, &o->dht_count);
        err = err == 0 && o->dht_count == 0 ? cli_usage("state", "--bootstrap needs multiaddrs")
                                            : err;
    }
    return err != 0 || serving ? err : take_prefix(o);
}

/* Copies of the options that are split at commas. */
struct copies {
    char *swarm;
    char *via;
    char *allow;
    char *ranges;
    char *trust;
    char ids[STATE_PEERS_MAX][MU_PEER_ID_TEXT_MAX]; /* ids of trusted keys */
};

/* A word that is not a peer id is the name of a key file. */
static int read_trusted(struct state_options *o, struct copies *c)
{
    for (size_t i = 0; i < o->trusted_count; i++) {
        struct peer_options key = {.identity = o->trusted[i]};
        struct mu_identity identity;
        struct mu_peer_id id;
        struct mu_errmsg msg;
        int code;

        if (mu_peer_id_parse(&id, o->trusted[i], &msg) == 0) {
            continue;
        }
        code =
            access(o->trusted[i], R_OK) == 0
                ? peer_key_get(&key, &identity)
                : cli_usage("state", "--trust takes peer ids and key files, and \"%s\" is neither",
                            o->trusted[i]);
        if (code != 0) {
            return code;
        }
        o->trusted[i] = mu_peer_id_format(&identity.id, c->ids[i]);
        mu_identity_fini(&identity);
    }
    return 0;
}

static int prepare(struct state_options *o, const char *what, struct copies *c)
{
    bool serving = strcmp(what, "serve") == 0;
    int err;

    c->swarm = strdup(o->swarm != NULL ? o->swarm : "");
    c->via = strdup(o->through != NULL ? o->through : "");
    c->allow = strdup(o->allow != NULL ? o->allow : "");
    c->ranges = strdup(c->allow == NULL ? "" : c->allow);
    c->trust = strdup(o->trust != NULL ? o->trust : "");
    if (c->swarm == NULL || c->via == NULL || c->allow == NULL || c->ranges == NULL ||
        c->trust == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    err = prepare_swarm(o, serving, c->swarm);
    err = err != 0 ? err : split("via", c->via, o->via, &o->via_count);
    err = err != 0 ? err : split("allow", c->allow, o->peers, &o->peer_count);
    err = err != 0 ? err : sort_allowed(o, c->ranges, strlen(c->ranges) + 1);
    err = err != 0 ? err : split("trust", c->trust, o->trusted, &o->trusted_count);
    err = err != 0 ? err : read_trusted(o, c);
    return err != 0 ? err : check_lock(o, serving);
}

static int run(const struct state_options *o, const char *what)
{
    bool here = o->word_count != 0 || o->store != NULL || o->swarm != NULL;

    if (o->stall <= 0 || o->connect <= 0) {
        return cli_usage("state", "--stall and --connect must be greater than 0");
    }
    if (strcmp(what, "serve") == 0) {
        return o->word_count != 1 ? cli_usage("state", "serve needs one FILE") : state_serve(o);
    }
    if (!here) {
        return cli_usage("state",
                         "%s needs the addresses of donors, --store URL or --bootstrap MULTIADDR",
                         what);
    }
    return what[0] == 'p' ? state_pull(o) : state_ls(o);
}

static struct cli_lock lock;
static struct state_options given = {.slots = 16,
                                     .idle = 30,
                                     .stall = 5,
                                     .connect = 5,
                                     .output = "state.safetensors",
                                     .lock = &lock};

static const struct cli_option options[] = {
    {"output", "FILE", "pull: the file to write (state.safetensors)", CLI_TEXT, &given.output, 0,
     .letter = 'o'},
    {"prefix", "NAME", "name of the state (serve: the file's name; pull, ls: any)", CLI_TEXT,
     &given.prefix, 0},
    {"listen", "ADDRESS", "serve: where to listen (port 29700); pull: where to pass chunks on",
     CLI_TEXT, &given.listen, 0},
    {"advertise", "HOST", "serve: the host that others dial (that of --listen)", CLI_TEXT,
     &given.advertise, 0},
    {"epoch", "N", "serve: the version of the state (that of hivemind's metadata, or 0)",
     CLI_NUMBER, &given.epoch, 0, .given = &given.has_epoch},
    {"step", "N", "serve: the version within the epoch (0)", CLI_NUMBER, &given.step, 0},
    {"priority", "X", "serve: within one epoch, the highest is pulled (the epoch)", CLI_REAL,
     &given.priority, 0, .given = &given.has_priority},
    {"slots", "N", "serve: number of downloads at once (16)", CLI_NUMBER, &given.slots, 100000},
    {"rate", "SIZE", "serve: bytes sent per second, for all downloads (no limit)", CLI_SIZE,
     &given.rate, 0},
    {"store", "URL", "the store in which donors announce themselves and are found", CLI_TEXT,
     &given.store, 0},
    {"identity", "FILE", "a peer's key: connections are between peers (see muster peer)", CLI_TEXT,
     &given.identity, 0},
    {"sign", "FILE", "serve: the key that signs the state (that of --identity, or a new one)",
     CLI_TEXT, &given.sign, 0},
    {"trust", "PEER|FILE,...", "pull: only a state that one of these peers or keys has signed",
     CLI_TEXT, &given.trust, 0},
    {"id", "STATE", "pull: only the state with this id, as serve and ls print it", CLI_TEXT,
     &given.id, 0},
    {"by-priority", NULL, "pull: the highest priority, although anybody can claim one", CLI_FLAG,
     &given.by_priority, 0},
    {"bootstrap", "MULTIADDR,...", "nodes of the DHT to join through; serve: \"new\" begins one",
     CLI_TEXT, &given.swarm, 0},
    {"dht", "MULTIADDR,...", "write --bootstrap", CLI_GONE, NULL, 0},
    {"via", "MULTIADDR,...", "serve: relays that lead others here, for a host that none can dial",
     CLI_TEXT, &given.through, 0},
    {"hivemind", "CLASS", "with --bootstrap: also hivemind's peers whose averagers have this class",
     CLI_TEXT, &given.hivemind, 0},
    {"encoding", "NAME", "serve: encoding of the tensors that hivemind's peers get (NONE)",
     CLI_TEXT, &given.encoding, 0},
    CLI_LOCK_CREDENTIAL(&lock),
    {"allow", "PEER|CIDR,...", "peers that may load; addresses for a plain --store (MUSTER_ALLOW)",
     CLI_TEXT, &given.allow, 0},
    {"insecure", NULL, "let everyone in, without a credential (MUSTER_INSECURE=1)", CLI_FLAG,
     &lock.lock.insecure, 0},
    {"max-size", "SIZE", "pull: refuse a larger state (nine tenths of the free disk)", CLI_SIZE,
     &given.max_size, 0},
    {"timeout", "TIME", "pull: time limit for the whole pull (0: no limit)", CLI_SECONDS,
     &given.timeout, 0},
    {"idle", "TIME", "pull: give up after this long without a chunk (30s)", CLI_SECONDS,
     &given.idle, 0},
    {"stall", "TIME", "pull: pass over a donor that is silent for this long (5s)", CLI_SECONDS,
     &given.stall, 0},
    {"connect", "TIME", "pull, ls: how long a donor may take to answer (5s)", CLI_SECONDS,
     &given.connect, 0},
    {"no-serve", NULL, "pull: pass no chunks on to other newcomers", CLI_FLAG, &given.no_serve, 0},
    {"stay", NULL, "pull: continue to serve the complete state, until a signal", CLI_FLAG,
     &given.stay, 0},
    {"http", "HOST:PORT", "serve, pull: serve a status page of the downloads", CLI_TEXT,
     &given.http, 0},
    {"quiet", NULL, "pull: print no progress", CLI_FLAG, &given.quiet, 0, .letter = 'q'},
    {"json", NULL, "print one JSON object per line", CLI_FLAG, &given.json, 0},
};
static const char *const operations[] = {"serve", "pull", "ls", NULL};
static const struct cli_verb verb = {
    "state",
    "serve [OPTIONS] FILE | pull [OPTIONS] [-o FILE] ADDRESS... | ls ADDRESS...\n"
    "       muster state pull|ls [OPTIONS] --bootstrap MULTIADDR,... PREFIX",
    "serve   shares a .safetensors file with the nodes that pull it; on SIGHUP, its new content\n"
    "pull    gets the newest state from all donors at once, and verifies it; an interrupted pull\n"
    "        continues where it was\n"
    "ls      lists which donor has which state",
    options,
    sizeof(options) / sizeof(options[0]),
    .operations = operations};

int cmd_state(int argc, char **argv)
{
    static struct copies copies;
    int err = cli_parse(&verb, &argc, &argv);

    err = err != 0 ? err : take_words(&given, argc, argv);
    err = err != 0 ? err : prepare(&given, argv[0], &copies);
    err = err != 0 ? err : run(&given, argv[0]);
    free(copies.swarm);
    free(copies.via);
    free(copies.allow);
    free(copies.ranges);
    free(copies.trust);
    return err;
}
