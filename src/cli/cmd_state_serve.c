/* muster state serve. */
#include "cli/state_page.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli_loop.h"
#include "codec/state/hm_trainer.h"

#define ADDRESS_MAX 512

static const char *describe(const struct state_options *o, const char *transport)
{
    if (strcmp(transport, "lock") == 0) {
        return "encrypted, for nodes with the job's credential; plain on loopback";
    }
    if (strcmp(transport, "peer") == 0) {
        return o->peer_count != 0
                   ? "encrypted, for the peers of --allow; each side proves its id"
                   : "encrypted, for any peer that reaches the address; each side proves its id";
    }
    return "not encrypted, for anyone who reaches the address";
}

/* Returns the file's name without its directory and its suffix. */
static char *prefix_of(const char *path, bool in_swarm)
{
    const char *base = strrchr(path, '/') == NULL ? path : strrchr(path, '/') + 1;
    char *name = strdup(base);
    char *dot = name == NULL ? NULL : strrchr(name, '.');

    if (dot != NULL && dot != name) {
        *dot = '\0';
    }
    /* A dot begins the suffix of a DHT key. */
    while (in_swarm && name != NULL && (dot = strchr(name, '.')) != NULL) {
        *dot = '_';
    }
    return name;
}

/* Prints what is shared and where other hosts find it. */
static void say_shared(const struct state_options *o, muster_state *state,
                       const struct muster_state_info *info)
{
    char address[ADDRESS_MAX];

    if (o->json) {
        json_t *addresses = json_array();

        for (size_t i = 0; muster_state_address_at(state, i, address, sizeof(address)); i++) {
            (void)json_array_append_new(addresses, json_string(address));
        }
        state_print(json_pack("{s:s, s:s, s:s, s:s, s:o, s:I, s:I, s:s, s:s, s:s}", "event",
                              "serving", "file", o->words[0], "prefix", info->prefix, "address",
                              muster_state_address(state), "addresses", addresses, "epoch",
                              (json_int_t)info->epoch, "step", (json_int_t)info->step, "id",
                              info->id, "signer", info->signer, "transport",
                              muster_state_transport(state)));
        return;
    }
    printf("%s, version %" PRIu64 ".%" PRIu64 ", under the prefix %s\n", o->words[0], info->epoch,
           info->step, info->prefix);
    printf("id %s\nsigned by %s%s\n", info->id, info->signer,
           o->sign == NULL && (o->identity == NULL || o->identity[0] == '\0')
               ? ", a temporary key (--sign FILE uses one that others can trust)"
               : "");
    printf("serving at %s (%s)\n", muster_state_address(state),
           describe(o, muster_state_transport(state)));
    for (size_t i = 1; muster_state_address_at(state, i, address, sizeof(address)); i++) {
        printf("serving at %s\n", address);
    }
    if (o->swarm != NULL) {
        printf("found in the DHT under %s.all_averagers%s%s\n", info->prefix,
               o->hivemind != NULL ? ", by hivemind's peers too: " : "",
               o->hivemind != NULL ? o->hivemind : "");
    }
    (void)fflush(stdout);
}

static int share(const struct state_options *o, muster_state *state, const char *prefix,
                 uint64_t epoch, struct state_page *page)
{
    /* What hivemind's trainers load says of which epoch it is. */
    bool told = o->hivemind != NULL && strcmp(o->hivemind, MU_HM_TRAINER) == 0 && !o->has_epoch;
    struct muster_state_source source = muster_state_source_defaults();
    struct muster_state_info info = {0};
    int err;

    source.prefix = prefix;
    source.epoch = told ? 0 : epoch;
    source.step = o->step;
    source.priority = o->has_priority ? o->priority : told ? 0 : (double)epoch;
    err = muster_state_share_file(state, o->words[0], &source);
    if (err != 0) {
        return cli_fail(err == MUSTER_EINVAL ? CLI_USAGE : CLI_STORAGE, "%s", muster_errmsg());
    }
    (void)muster_state_shared(state, prefix, &info);
    say_shared(o, state, &info);
    state_page_note(page, NULL, "%s is shared as version %" PRIu64 ".%" PRIu64, o->words[0],
                    info.epoch, info.step);
    return 0;
}

static int serve_until_signal(const struct state_options *o, muster_state *state,
                              const char *prefix, const sigset_t *signals, struct state_page *page)
{
    uint64_t epoch = o->epoch;
    struct muster_state_stats stats;
    char size[24];
    int number = 0;
    int code = share(o, state, prefix, epoch, page);

    while (code == 0 && sigwait(signals, &number) == 0 && number == SIGHUP) {
        /* If this fails, the old state stays shared. */
        (void)share(o, state, prefix, ++epoch, page);
    }
    muster_state_stats(state, &stats);
    if (code == 0 && o->json) {
        state_print(json_pack("{s:s, s:I, s:I, s:I, s:I}", "event", "stopped", "downloads",
                              (json_int_t)stats.downloads, "chunks", (json_int_t)stats.chunks,
                              "bytes", (json_int_t)stats.bytes, "hivemind_downloads",
                              (json_int_t)stats.hivemind_downloads));
    } else if (code == 0) {
        printf("%" PRIu64 " downloads, %s sent\n", stats.downloads, state_size(size, stats.bytes));
        if (o->hivemind != NULL) {
            printf("%" PRIu64 " downloads by hivemind's peers\n", stats.hivemind_downloads);
        }
    }
    return code;
}

static int serve(const struct state_options *o, muster_runtime *rt, const sigset_t *signals)
{
    struct muster_state_config config = muster_state_config_defaults();
    char *prefix = o->prefix != NULL ? strdup(o->prefix) : prefix_of(o->words[0], o->swarm != NULL);
    static struct state_page page;
    muster_store *store = NULL;
    muster_state *state;
    int err;
    int code;

    config.listen = o->listen != NULL           ? o->listen
                    : o->identity != NULL       ? "/ip4/0.0.0.0/tcp/29701"
                    : cli_lock_lets_in(o->lock) ? "0.0.0.0:29700"
                                                : "127.0.0.1:29700";
    config.advertise = o->advertise;
    config.key = o->identity;
    config.sign = o->sign;
    config.allow = o->peers;
    config.allow_count = o->peer_count;
    config.dht = o->swarm != NULL ? o->dht : NULL;
    config.dht_count = o->dht_count;
    config.via = o->via;
    config.via_count = o->via_count;
    config.hivemind = o->hivemind;
    config.encoding = o->encoding;
    config.slots = (uint32_t)o->slots;
    config.rate_bytes = o->rate;
    err = prefix == NULL ? MUSTER_ENOMEM : muster_state_open(rt, &config, &state);
    if (err != 0) {
        free(prefix);
        return cli_fail(cli_exit_code(err), "%s", muster_errmsg());
    }
    if (o->store != NULL) {
        err = muster_store_open(rt, o->store, NULL, &store);
        err = err != 0 ? err : muster_state_announce(state, store, prefix, 10000);
    }
    code = err != 0 ? cli_fail(cli_exit_code(err), "%s", muster_errmsg())
                    : state_page_open(&page, o, "sharing");
    if (code == 0) {
        state_page_serve(&page, state, prefix);
        code = serve_until_signal(o, state, prefix, signals, &page);
        state_page_close(&page);
    }
    muster_store_close(store);
    muster_state_close(state);
    free(prefix);
    return code;
}

int state_serve(const struct state_options *o)
{
    muster_runtime *rt;
    sigset_t signals;
    int code;

    cli_block_signals(&signals, true);
    code = cli_runtime_new(o->lock, &rt);
    if (code != 0) {
        return code;
    }
    code = serve(o, rt, &signals);
    muster_runtime_free(rt);
    return code;
}
