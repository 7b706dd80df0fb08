/*
 * What the files of the public state download share.
 *
 *     state.c          sharing, and what others are told about shared states
 *     state_copy.c     where a loaded state is kept
 *     state_keep.c     states that the agent keeps for a worker
 *     state_load.c     loads: their begin, wait and end
 *     state_loading.c  a load, on the loop
 *     state_net.c      the runtime's connections, or peers; the key that signs
 *     state_save.c     files, without the network
 *     state_share.c    how something comes to be shared
 *     state_stream.c   a state that goes into its file as it comes
 *     state_swarm.c    in a DHT, with hivemind's peers
 *     state_tensor.c   tensors, and memory for them
 *     state_threads.c  copies of many bytes, on several threads
 */
#ifndef MU_STATE_API_H
#define MU_STATE_API_H

#include <muster/state.h>

#include "api/queue_api.h"
#include "crypto/state_tree.h"
#include "service/state/donor.h"
#include "service/state/loader.h"
#include "service/state/peers.h"
#include "service/state/swarm.h"
#include "service/state/swarm_load.h"
#include "transport/mapped.h"

/* How connections are made. */
struct mu_state_net {
    muster_runtime *rt;
    struct mu_env *env;
    const char *transport;
    struct mu_state_peers *peers;
    bool closed;                  /* closed to all peers except those that were named */
    struct mu_identity *identity; /* peers refer to it, and the net may move */
};

struct mu_state_net_terms {
    const char *key;          /* NULL: no peers, unless `peers` is set */
    bool peers;               /* peers without a key: one is made */
    const char *sign;         /* the key that signs, without peers; NULL: one is made */
    bool minds;               /* warns if others cannot dial us */
    const char *const *allow; /* ids of the peers that may connect */
    size_t allow_count;
    const char *const *donors; /* allowed as well, if they are peers */
    size_t donor_count;
};

/** Reads a key from its file. MUSTER_EINVAL, errors of the file system. */
int mu_state_read_key(const char *path, struct mu_identity *ret, struct mu_errmsg *msg);
/** Waits for the loop. */
int mu_state_net_open(struct mu_state_net *net, muster_runtime *rt,
                      const struct mu_state_net_terms *terms, struct mu_errmsg *msg);
/** Waits for the loop. Nothing may use it any more. */
void mu_state_net_close(struct mu_state_net *net);
/** On the loop: makes a donor listen; `listen` NULL: nowhere. `ret_text` is the address that others
 * dial. MUSTER_ELOCKED: other hosts can reach it, and nothing says which of them may connect. */
int mu_state_net_listen(struct mu_state_net *net, const char *listen, const char *advertise,
                        struct mu_state_donor_config *config, struct mu_state_donor **ret,
                        char *ret_text, size_t cap, struct mu_errmsg *msg);

/** On the loop: listens as a peer, without a donor. `what` is what strangers could do, for
 * MUSTER_ELOCKED. */
int mu_state_net_listen_peers(struct mu_state_net *net, const char *listen, const char *advertise,
                              const char *what, char *ret_text, size_t cap, struct mu_errmsg *msg);

/** Whether one of these addresses, or multiaddrs, is on this host. */
bool mu_state_any_is_here(const char *const *texts, size_t count);

/* A node of a DHT. It must not move in memory while it is open. */
struct mu_state_node {
    muster_runtime *rt;
    struct mu_state_swarm *swarm; /* NULL: in no DHT */
    struct mu_door *waiter;       /* waits until it has joined, or has stopped */
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
/** Waits for its end. Call it before the net is closed. Harmless when it is not open. */
void mu_state_node_close(struct mu_state_node *node);
/** Makes what hivemind's peers get of a share that is sealed; it holds a reference. MUSTER_EINVAL,
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
    bool near;                        /* it is on loopback, or its peers are */
    char told[MU_STATE_ADDR_MAX + 1]; /* told to donors, which put in the IP address that they see
                                         us under */
};

/* Bytes to copy from one place to another. */
struct mu_state_put {
    uint8_t *to;
    const uint8_t *from;
    uint64_t len;
};

/** Copies all of them, on up to `threads` threads; 0: as many as help. Nothing overlaps. */
void mu_state_put_all(const struct mu_state_put *moves, size_t count, uint64_t threads);

/** How many bytes of memory are available without taking them from others; UINT64_MAX: unknown. */
uint64_t mu_state_memory_available(void);

/* The memory of a state; the owner of a share. */
struct mu_state_home {
    struct mu_mapped *mapped;    /* NULL: `memory` */
    uint64_t data_at;            /* offset in the file */
    bool finished;               /* the file was there, and stays as it is */
    void *memory;                /* NULL: the caller's own */
    struct mu_hm_loaded *loaded; /* or that of what one of hivemind's donors gave; allocated */
    void (*released)(void *context);
    void *context;
    struct mu_door *waiter; /* opened when the memory is no longer read */
};

/** The owner's half of struct mu_state_share, in both directions. */
int mu_state_home_read(struct mu_state_share *share, uint64_t offset, void *buf, size_t len);
void mu_state_home_released(struct mu_state_share *share);

struct muster_state_copy {
    muster_runtime *rt;
    struct mu_state_share *share;
    struct mu_state_donor *donor;     /* the donor that still serves it, or NULL */
    struct mu_state_donor *own_donor; /* a donor of its own, and its connections */
    struct mu_state_net net;
    struct muster_state_info info;
    struct muster_state_progress progress;
    char *names;     /* terminated */
    size_t *name_at; /* for each tensor */
};

/** Fills `info` from an entry; `signer` NULL: not signed. */
void mu_state_info_of(struct muster_state_info *ret, const struct mu_state_entry *entry,
                      const struct mu_peer_id *signer);
/** Reads the head of a mapped file without touching the mapping. MUSTER_ECORRUPT, MUSTER_EDISK,
 * MUSTER_ENOMEM. */
int mu_state_read_head(const struct mu_mapped *m, struct mu_buf *out, struct mu_errmsg *msg);
/** Turns public tensors into a layout, and back. */
int mu_state_layout_of(const struct muster_tensor *tensors, size_t count, struct mu_layout *ret,
                       uint8_t ***ret_data, struct mu_errmsg *msg);
/** Makes a copy of a share that is whole; takes the reference. MUSTER_ENOMEM: the reference stays
 * the caller's. */
int mu_state_copy_new(muster_runtime *rt, struct mu_state_share *share, muster_state_copy **ret);

/* Where a load is put. */
struct mu_state_target {
    struct mu_layout expected; /* in place */
    uint8_t **tensors;
    bool in_place;
    uint64_t bytes_max; /* 0: as much as there is room for */
    char *file;         /* or into a file */
    char *part;
    bool fresh; /* the part file was made for this load */
};

/** As in struct mu_state_loader_config. */
int mu_state_target_accept(struct mu_state_target *t, struct mu_state_plan *plan,
                           struct mu_errmsg *msg);
/** The file is whole: renames it. */
int mu_state_target_finish(struct mu_state_target *t, struct mu_state_share *share,
                           struct mu_errmsg *msg);
/** The load failed: removes a file that was not there before. */
void mu_state_target_give_up(struct mu_state_target *t);
void mu_state_target_fini(struct mu_state_target *t);

/** How many bytes the target has room for; UINT64_MAX: unknown. */
uint64_t mu_state_target_room(const struct mu_state_target *t);

/* A state that goes into the target's file as it comes. It must not move in memory. */
struct mu_state_stream_file {
    struct mu_hm_sink sink;
    struct mu_state_target *target;
    struct mu_mapped *file; /* NULL: nothing has come yet */
    uint64_t data_at;       /* where the tensors begin in the file */
    uint64_t kept;          /* bytes there that may be the same as those that come */
    uint64_t same;          /* bytes that were */
    uint64_t room;          /* for so many bytes */
    bool came;              /* something did */
    struct mu_state_builder hash;
    uint8_t *block;
};

void mu_state_stream_file_init(struct mu_state_stream_file *s, struct mu_state_target *target);
/** Harmless on a zeroed one. */
void mu_state_stream_file_fini(struct mu_state_stream_file *s);
/** All has come: the hashes of its chunks, lent. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_state_stream_file_leaves(struct mu_state_stream_file *s, struct mu_span *ret);
/** Completes the file with the head of this manifest. The mapping is the caller's. Errors as
 * mu_state_file_head(), or of the file system. */
int mu_state_stream_file_finish(struct mu_state_stream_file *s, const struct mu_state_manifest *m,
                                struct mu_mapped **ret_file, uint64_t *ret_data_at,
                                struct mu_errmsg *msg);

/** Hashes all chunks, on this thread and others. Errors as mu_state_share_hash(). */
int mu_state_hash_all(struct mu_state_share *share);

/* A load's search for donors that are announced in a store; the loop's. */
struct mu_state_look {
    muster_store *store; /* NULL: it does not search */
    struct mu_timer timer;
    struct mu_post post;
    muster_op *op; /* NULL: none is under way */
};

struct muster_state_loading {
    muster_runtime *rt;
    struct mu_state_net net; /* unless `through` has one */
    bool own_net;
    struct mu_state_net *by;
    struct mu_state_node own_node; /* unless `through` has one */
    struct mu_state_swarm *swarm;  /* NULL: not through a swarm */
    struct mu_state_donor *own_donor;
    struct mu_state_loader *loader; /* otherwise */
    struct mu_state_swarm_load *swarm_load;
    struct mu_state_loader_config config;
    struct mu_state_target target;
    struct mu_peer_id *trust;    /* what `config` points to */
    uint8_t id[MU_STATE_ID_LEN]; /* what `config` points to */
    bool near;                   /* an address of this host was named */
    const char *listen;          /* borrowed until the load has begun */
    struct mu_state_look look;
    bool keep;
    bool (*progress)(void *context, const struct muster_state_progress *progress);
    void *context;
    struct muster_state_row *rows; /* for muster_state_list() */
    size_t row_cap;
    size_t row_count;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    /* Written by the loop under the lock, until it is closed. */
    struct muster_state_info info;
    struct muster_state_progress last;
    bool closed;
    struct mu_queued place;
    bool refused; /* the loop's: it did not begin, so its end is not queued */

    int status;
    struct mu_errmsg text;
    struct mu_state_share *share;
    struct mu_hm_loaded loaded; /* from hivemind's donor, until it is a share */
    bool has_loaded;
    double loaded_priority;
    struct mu_state_stream_file stream; /* if it goes into a file */
    struct mu_buf report;
};

/* How a load is reached from other threads. */
struct mu_state_load_door {
    struct mu_door door;
    struct muster_state_loading *g;
    const char *const *donors; /* the first donors */
    size_t donor_count;
    struct muster_values announced; /* keys of the donors in the store */
    int err;
    struct mu_errmsg msg;
};

/** Sets the callbacks of `g->config` to this load. */
void mu_state_loading_callbacks(struct muster_state_loading *g);
/** On the loop, for mu_door_pass(): start it; cancel it; after its end, stop the search, and free
 * its loader. Between the last two the loop must have another turn. */
void mu_state_loading_start(struct mu_door *door);
void mu_state_loading_stop(struct mu_door *door);
void mu_state_loading_unlook(struct mu_door *door);
void mu_state_loading_free(struct mu_door *door);
/** The same as stop, for a caller on the loop. */
void mu_state_loading_cancel(struct muster_state_loading *g);
/** On the loop: begins a load through a swarm; `ended` and `closed` are those of the loader. */
int mu_state_loading_in_swarm(struct muster_state_loading *g, const char *const *donors,
                              size_t donor_count, struct mu_errmsg *msg);
/** Turns what hivemind's donor gave into a share like others, at its target. */
int mu_state_loading_settle(struct muster_state_loading *g, struct mu_errmsg *msg);
/** Adds a row and counts it; NULL: there is no room for it. */
struct muster_state_row *mu_state_loading_row(struct muster_state_loading *g);

void mu_state_look_init(struct muster_state_loading *g, muster_store *store);
/** Reads the keys of the donors that are announced now; waits. Errors of the store. */
int mu_state_look_first(struct muster_state_loading *g, int64_t timeout_ms,
                        struct muster_values *ret);
/** On the loop: adds the donor of such a key. */
void mu_state_look_add(struct muster_state_loading *g, const char *key);
/** On the loop: looks again and again, until the load is closed; or stops. */
void mu_state_look_start(struct muster_state_loading *g);
void mu_state_look_stop(struct muster_state_loading *g);

/** Stops a donor and frees it; waits for the loop. */
void mu_state_donor_end(muster_runtime *rt, struct mu_state_donor *donor);

#endif
