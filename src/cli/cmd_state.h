/* What the files of `muster state` share. */
#ifndef MU_CMD_STATE_H
#define MU_CMD_STATE_H

#include <jansson.h>
#include <muster/state.h>

#include "cli/cli_lock.h"

#define STATE_WORDS_MAX 64
#define STATE_PEERS_MAX 64

struct state_options {
    const char *listen;
    const char *advertise;
    const char *prefix;
    const char *output;
    const char *store;
    const char *identity;
    const char *swarm; /* multiaddrs, separated by commas, or "new"; NULL: no swarm */
    const char *hivemind;
    const char *encoding;
    const char *dht[STATE_PEERS_MAX]; /* split from `swarm` */
    size_t dht_count;
    const char *http;                   /* address of the status page */
    const char *allow;                  /* peers and address ranges, separated by commas */
    const char *peers[STATE_PEERS_MAX]; /* split from `allow` */
    size_t peer_count;
    const char *sign;                     /* serve: the key that signs */
    const char *trust;                    /* peer ids and key files, separated by commas */
    const char *trusted[STATE_PEERS_MAX]; /* split from `trust`: ids */
    size_t trusted_count;
    const char *id;                   /* the only state that is pulled */
    const char *through;              /* serve: relays, separated by commas */
    const char *via[STATE_PEERS_MAX]; /* split from `through` */
    size_t via_count;
    bool by_priority;
    struct cli_lock *lock;
    uint64_t epoch, step, slots, rate, max_size;
    double priority;
    bool has_epoch;
    bool has_priority;
    double timeout, idle, stall, connect;
    bool json;
    bool quiet;
    bool no_serve;
    bool stay;
    const char *words[STATE_WORDS_MAX]; /* a file, or addresses */
    size_t word_count;
};

/** Fills in the request that pull and ls share; `store` is opened if one was named. */
int state_request(const struct state_options *o, muster_runtime *rt,
                  struct muster_state_request *ret);
/** Writes a size such as "1.5 GiB"; returns `out`. */
char *state_size(char out[24], uint64_t bytes);
/** Prints an object as one line and frees it. */
void state_print(json_t *object);

/* Each returns an exit code. */
int state_serve(const struct state_options *o);
int state_pull(const struct state_options *o);
int state_ls(const struct state_options *o);

#endif
