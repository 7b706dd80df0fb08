/*
 * What the files of the public state download share.
 *
 *     state.c          one that shares, and what it says of what it shares
 *     state_copy.c     where what is loaded lies
 *     state_load.c     loads: how they are begun, waited for and ended
 *     state_loading.c  a load, on the loop
 *     state_net.c      as the runtime has it, or peers; the key that signs
 *     state_save.c     files, without anybody else
 *     share.c    how something comes to be shared
 *     swarm.c    in a DHT, with hivemind's peers
 *     state_tensor.c   tensors, and memory for them
 */
#ifndef MU_STATE_API_H
#define MU_STATE_API_H

#include <muster/state.h>

#include "api/api.h"
#include "service/state/donor.h"
#include "service/state/loader.h"
#include "service/state/peers.h"
#include "service/state/swarm.h"
#include "service/state/swarm_load.h"
#include "transport/mapped.h"

/* What connections are made of. */
struct mu_state_net {
    muster_runtime *rt;
    struct mu_env *env;
    const char *transport;
    struct mu_state_peers *peers;
    bool closed;                  /* to all peers but those that were named */
    struct mu_identity *identity; /* peers refer to it, and the net may move */
};

struct mu_state_net_terms {
    const char *key;          /* NULL: no peers, unless there are to be some */
    bool peers;               /* without a key: one is drawn */
    const char *sign;         /* the key that signs, without peers; NULL: one is drawn */
    const char *const *allow; /* who of them may come */
    size_t allow_count;
    const char *const *donors; /* allowed too, if they are peers */
    size_t donor_count;
};

/** A key from its file. MUSTER_EINVAL, errors of the file system. */
int mu_state_read_key(const char *path, struct mu_identity *ret, struct mu_errmsg *msg);
/** Waits for the loop. */
int mu_state_net_open(struct mu_state_net *net, muster_runtime *rt,
                      const struct mu_state_net_terms *terms, struct mu_errmsg *msg);
/** Waits for the loop. Nothing may use it any more. */
void mu_state_net_close(struct mu_state_net *net);
/** On the loop: has a donor listen; `listen` NULL: nowhere. `ret_text` is what others dial.
 * MUSTER_ELOCKED: other hosts reach it, and nothing says who may come. */
int mu_state_net_listen(struct mu_state_net *net, const char *listen, const char *advertise,
                        struct mu_state_donor_config *config, struct mu_state_donor **ret,
                        char *ret_text, size_t cap, struct mu_errmsg *msg);

/** Whether one of these addresses, or multiaddrs, is of this host. */
bool mu_state_any_is_here(const char *const *texts, size_t count);

/* A place in a DHT. Stays where it is while it is open. */
struct mu_state_node {
    muster_runtime *rt;
    struct mu_state_swarm *swarm; /* NULL: none */
    struct mu_door *waiter;       /* for it to have joined, or to have stopped */
    int joined;
};

struct mu_state_node_terms {
    const char *const *dht;
    size_t dht_count;
    const char *averager;
    bool client;
    uint32_t slots;
    uint32_t op_ms; /* 0: the default */
};

/** Joins; waits for that. MUSTER_EINVAL, MUSTER_EURL, MUSTER_EDHT_NOBODY, MUSTER_ENOMEM. */
int mu_state_node_open(struct mu_state_node *node, struct mu_state_net *net,
                       const struct mu_state_node_terms *terms, struct mu_errmsg *msg);
/** Waits for its end. Before the net is closed. Harmless when it is not open. */
void mu_state_node_close(struct mu_state_node *node);
/** What hivemind's peers get of a share that is sealed; it holds a reference. MUSTER_EINVAL,
 * MUSTER_ENOTSUP, MUSTER_ENOMEM. */
int mu_state_snapshot_of(struct mu_state_share *share, enum mu_hm_compression compression,
                         struct mu_hm_snapshot **ret, struct mu_errmsg *msg);

struct muster_state {
    muster_runtime *rt;
    struct mu_state_net net;
    struct mu_state_node node;
    enum mu_hm_compression compression;
    uint32_t replaced_ms;
    struct mu_state_donor *donor;
    char address[MU_STATE_ADDR_MAX + 1];
    bool near;                        /* it is on loopback, or among peers there */
    char told[MU_STATE_ADDR_MAX + 1]; /* to donors, who put in the number that they see us under */
};

/* Memory that a state lies in; a share's owner. */
struct mu_state_home {
    struct mu_mapped *mapped;    /* NULL: `memory` */
    uint64_t data_at;            /* in the file */
    void *memory;                /* NULL: the caller's own */
    struct mu_hm_loaded *loaded; /* or that of what a donor of hivemind's gave; allocated */
    void (*released)(void *context);
    void *context;
    struct mu_door *waiter; /* opened when nobody looks at it any more */
};

/** The owner's half of struct mu_state_share, in both directions. */
int mu_state_home_read(struct mu_state_share *share, uint64_t offset, void *buf, size_t len);
void mu_state_home_released(struct mu_state_share *share);

struct muster_state_copy {
    muster_runtime *rt;
    struct mu_state_share *share;
    struct mu_state_donor *donor;     /* that serves it still; NULL: none */
    struct mu_state_donor *own_donor; /* of its own, and what that stands on */
    struct mu_state_net net;
    struct muster_state_info info;
    struct muster_state_progress progress;
    char *names;     /* terminated */
    size_t *name_at; /* for each tensor */
};

/** Fills `info` from an entry; `signer` NULL: nobody. */
void mu_state_info_of(struct muster_state_info *ret, const struct mu_state_entry *entry,
                      const struct mu_peer_id *signer);
/** Reads the head of a mapped file without touching the mapping. MUSTER_ECORRUPT, MUSTER_EDISK,
 * MUSTER_ENOMEM. */
int mu_state_read_head(const struct mu_mapped *m, struct mu_buf *out, struct mu_errmsg *msg);
/** The public form of a layout and back. */
int mu_state_layout_of(const struct muster_tensor *tensors, size_t count, struct mu_layout *ret,
                       uint8_t ***ret_data, struct mu_errmsg *msg);
/** A copy of a share that is whole; takes the reference. MUSTER_ENOMEM: it does not. */
int mu_state_copy_new(muster_runtime *rt, struct mu_state_share *share, muster_state_copy **ret);

/* Where a load is to lie. */
struct mu_state_target {
    struct mu_layout expected; /* in place */
    uint8_t **tensors;
    bool in_place;
    uint64_t bytes_max; /* 0: what there is room for */
    char *file;         /* or into a file */
    char *part;
    bool fresh; /* which was made for this load */
};

/** As in struct mu_state_loader_config. */
int mu_state_target_accept(struct mu_state_target *t, struct mu_state_plan *plan,
                           struct mu_errmsg *msg);
/** The file is whole: it gets its name. */
int mu_state_target_finish(struct mu_state_target *t, struct mu_state_share *share,
                           struct mu_errmsg *msg);
/** Nothing came of it: no file is left that was not there before. */
void mu_state_target_give_up(struct mu_state_target *t);
void mu_state_target_fini(struct mu_state_target *t);

/** Hashes all chunks, on this thread and others. Errors as mu_state_share_hash(). */
int mu_state_hash_all(struct mu_state_share *share);

struct muster_state_loading {
    muster_runtime *rt;
    struct mu_state_net net; /* unless it is another one's */
    bool own_net;
    struct mu_state_net *by;
    struct mu_state_node own_node; /* likewise */
    struct mu_state_swarm *swarm;  /* NULL: not through one */
    struct mu_state_donor *own_donor;
    struct mu_state_loader *loader; /* or else */
    struct mu_state_swarm_load *swarm_load;
    struct mu_state_loader_config config;
    struct mu_state_target target;
    struct mu_peer_id *trust;    /* what `config` refers to, as the next */
    uint8_t id[MU_STATE_ID_LEN]; /* likewise */
    bool near;                   /* something of this host is among what was named */
    const char *listen;          /* lent for the beginning */
    muster_store *store;
    bool keep;
    bool (*progress)(void *context, const struct muster_state_progress *progress);
    void *context;
    struct muster_state_info info;
    struct muster_state_progress last;
    struct muster_state_row *rows; /* of a list */
    size_t row_cap;
    size_t row_count;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool closed;
    int status;
    struct mu_errmsg text;
    struct mu_state_share *share;
    struct mu_hm_loaded loaded; /* of hivemind's, until it is a share */
    bool has_loaded;
    double loaded_priority;
    struct mu_buf report;
};

/* How a load is reached from other threads. */
struct mu_state_load_door {
    struct mu_door door;
    struct muster_state_loading *g;
    const char *const *donors; /* to start with */
    size_t donor_count;
    struct muster_values announced; /* keys of those whom a store knows */
    int err;
    struct mu_errmsg msg;
};

/** Has the loader of `g->config` call this load. */
void mu_state_loading_callbacks(struct muster_state_loading *g);
/** On the loop, for mu_door_pass(): starts it; adds those who were announced; cancels it; frees
 * its loader after its end. */
void mu_state_loading_start(struct mu_door *door);
void mu_state_loading_add(struct mu_door *door);
void mu_state_loading_stop(struct mu_door *door);
void mu_state_loading_free(struct mu_door *door);
/** The same as stop, for who is on the loop. */
void mu_state_loading_cancel(struct muster_state_loading *g);
/** On the loop: begins a load through a swarm; `ended` and `closed` are those of the loader. */
int mu_state_loading_in_swarm(struct muster_state_loading *g, const char *const *donors,
                              size_t donor_count, struct mu_errmsg *msg);
/** What was loaded from a donor of hivemind's becomes a share like others, where it is to lie. */
int mu_state_loading_settle(struct muster_state_loading *g, struct mu_errmsg *msg);
/** The row behind those that there are; NULL: there is no room for it. It is counted. */
struct muster_state_row *mu_state_loading_row(struct muster_state_loading *g);

/** Stops a donor of ours and frees it; waits for the loop. */
void mu_state_donor_end(muster_runtime *rt, struct mu_state_donor *donor);

#endif
