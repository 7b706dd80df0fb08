/*
 * Loading a state from hivemind's peers (proto/state/hm_download.h) over the DHT and calls between
 * peers. On the loop's thread.
 *
 *     struct mu_hm_load load = {.done = on_loaded};
 *     mu_hm_load_start(env, &config, &load);
 *     on_loaded: mu_hm_load_take(&load, &loaded, &from);
 *                mu_hm_load_fini(&load);
 */
#ifndef MU_HM_LOAD_H
#define MU_HM_LOAD_H

#include "proto/state/hm_download.h"
#include "service/dht/dht.h"
#include "service/peer/call.h"

/* Takes the bytes of a state as they come, so that they need no memory. */
struct mu_hm_sink {
    /** The first bytes of a donor follow: what another one gave is void. `metadata` is what the
     * donor has told so far. 0, or an error with a text, which ends the load, as does that of
     * `put`. */
    int (*begin)(struct mu_hm_sink *sink, struct mu_span metadata, struct mu_errmsg *reterr_msg);
    /** The next bytes. */
    int (*put)(struct mu_hm_sink *sink, uint64_t offset, struct mu_span bytes,
               struct mu_errmsg *reterr_msg);
    /** No donor gave a state. `begin` may come again, with another load. */
    void (*failed)(struct mu_hm_sink *sink);
};

struct mu_hm_load_config {
    struct mu_peer_calls *calls; /* borrowed until `done`, as the next */
    struct mu_dht_service *dht;
    const char *prefix; /* borrowed for the call */
    const char *name;   /* of the handler; see mu_hm_handler_name(). Borrowed until `done` */
    struct mu_hm_download_config download; /* the seed is drawn */
    struct mu_span known; /* the donors: a dictionary as it is under the key. Borrowed until `done`.
                             Empty: the DHT is asked */
    struct mu_hm_sink *sink; /* NULL: what is loaded is kept in memory. Borrowed until `done` */
};

struct mu_hm_load {
    /**
     * Once, on a later turn: the status of mu_hm_download_status(). Then, or later, the state may
     * be taken; mu_hm_load_fini() frees the rest.
     */
    void (*done)(struct mu_hm_load *load, int status, const char *text);
    /* private from here */
    struct mu_env *env;
    struct mu_hm_load_config config;
    struct mu_dht_id key;
    struct mu_hm_download download;
    struct mu_dht_wish wish;
    struct mu_peer_items items;
    uint64_t number; /* of the call of `items` */
    uint64_t begun;  /* the call whose bytes the sink gets */
    struct mu_timer timer;
    bool looking;
    bool ended;
};

/** MUSTER_EINVAL, MUSTER_ENOMEM: `done` will not come. */
int mu_hm_load_start(struct mu_env *env, const struct mu_hm_load_config *config,
                     struct mu_hm_load *load);
/** `done` comes with MUSTER_ECANCELED, unless it is on its way already. */
void mu_hm_load_cancel(struct mu_hm_load *load);
/** After `done` with 0, once: the state is the caller's. */
void mu_hm_load_take(struct mu_hm_load *load, struct mu_hm_loaded *ret,
                     struct mu_peer_id *ret_from);
/** The machine: which donors were asked, and the progress. */
const struct mu_hm_download *mu_hm_load_machine(const struct mu_hm_load *load);
/** After `done`. */
void mu_hm_load_fini(struct mu_hm_load *load);

#endif
