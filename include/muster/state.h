/*
 * State from peers: who joins a job, or fell behind, gets the current weights from those who have
 * them.
 *
 * A state is some metadata and an ordered list of named tensors, at a version. Who has one shares
 * it; who needs one loads it:
 *
 *     struct muster_state_config config = muster_state_config_defaults();
 *     config.listen = "0.0.0.0:29700";
 *     muster_state_open(rt, &config, &state);
 *     muster_state_share(state, &(struct muster_state_source){
 *         .prefix = "job7", .epoch = 12, .step = 4800, .priority = 12,
 *         .tensors = tensors, .tensor_count = n});
 *
 *     const char *donors[] = {"10.0.0.1:29700", "10.0.0.2:29700"};
 *     struct muster_state_request request = muster_state_request_defaults();
 *     request.prefix = "job7";
 *     request.donors = donors;
 *     request.donor_count = 2;
 *     request.tensors = mine;                  in place; without them, into new memory
 *     request.tensor_count = n;
 *     if (muster_state_load(rt, &request, &copy) != 0)
 *         die(muster_errmsg());                what each donor did
 *     train_from(muster_state_copy_info(copy)->epoch);
 *     muster_state_copy_free(copy);
 *
 * What a download does. All donors are asked what they have. The state with the highest priority is
 * taken, of several the newest (epoch, then step), of several of these one at random. Its manifest
 * has the hash of every chunk of 1 MiB and is signed by whoever gives it out; all who hold the same
 * bytes serve them, each as fast as it can; each chunk is checked before it counts. Who sends a
 * wrong one is not asked again, of one that is lost the one chunk is asked of another. Others who
 * load the same state at the same time serve what they have, if they may (`listen`, `through`). If
 * the version is replaced everywhere before it was loaded, the next one is loaded.
 *
 * What holds afterwards. With 0, every byte is that of the manifest. With an error, nothing is
 * returned and, in place, the caller's tensors hold anything: they were checked against the
 * manifest first, so that a state of another model (MUSTER_EINVAL) touches nothing.
 *
 * Where the bytes go. Plain (TCP or a unix socket): everybody who can reach the address can read
 * the state; the bytes leave by sendfile where they lie in a file or in muster_state_alloc(). If
 * the runtime's lock has a credential (muster/runtime.h): beyond loopback encrypted, and for those
 * alone who show it. With `key`, between peers of libp2p: encrypted, and each side knows the
 * other's id. muster_state_transport() says which.
 *
 * In a swarm. Peers that are in one DHT need no addresses of each other:
 *
 *     const char *swarm[] = {"/ip4/10.0.0.1/tcp/31337/p2p/12D3KooW..."};
 *     config.key = "";
 *     config.listen = "/ip4/0.0.0.0/tcp/0";
 *     config.dht = swarm;
 *     config.dht_count = 1;
 *     config.hivemind = "TrainingStateAverager";    for hivemind's trainers too
 *     ... and to load: request.dht = swarm; request.dht_count = 1; ...
 *
 * What is shared is said there, under "PREFIX.all_averagers", with its priority, for 30 s and again
 * every 10, until it is hidden, unshared or closed. A load looks there who has something under its
 * prefix. Who speaks this library's protocol is asked as above, all at once; who speaks only
 * hivemind's is asked by that, one after the other: before the others if it says to have something
 * newer than all of them, and else if they fail. docs/hivemind-state.md says what that protocol can
 * and cannot promise; what it gives is checked against `tensors` before any of it is written there.
 *
 * All functions may be called from any thread. Those that wait return MUSTER_EINVAL on the
 * runtime's own.
 */
#ifndef MUSTER_STATE_H
#define MUSTER_STATE_H

#include <muster/rpc.h>
#include <muster/store.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- tensors ---------------------------------------------------------------------------------- */

/* Types of elements: those of safetensors. */
enum muster_dtype {
    MUSTER_DTYPE_BOOL = 1,
    MUSTER_DTYPE_U8,
    MUSTER_DTYPE_I8,
    MUSTER_DTYPE_F8_E5M2,
    MUSTER_DTYPE_F8_E4M3,
    MUSTER_DTYPE_F8_E8M0,
    MUSTER_DTYPE_I16,
    MUSTER_DTYPE_U16,
    MUSTER_DTYPE_F16,
    MUSTER_DTYPE_BF16,
    MUSTER_DTYPE_I32,
    MUSTER_DTYPE_U32,
    MUSTER_DTYPE_F32,
    MUSTER_DTYPE_I64,
    MUSTER_DTYPE_U64,
    MUSTER_DTYPE_F64,
    MUSTER_DTYPE_C64,
    MUSTER_DTYPE_F4,      /* two to a byte */
    MUSTER_DTYPE_F6_E2M3, /* four to three bytes, as the next */
    MUSTER_DTYPE_F6_E3M2,
};

/** "F32"; NULL for what is none. */
MUSTER_EXPORT const char *muster_dtype_name(enum muster_dtype dtype);

/* A tensor: little-endian, the last dimension running fastest, no gaps. */
struct muster_tensor {
    const char *name; /* 1 to 65535 bytes, unique in its state */
    enum muster_dtype dtype;
    uint32_t rank; /* 0: a single element */
    const uint64_t *shape;
    void *data; /* as many bytes as that makes */
};

/** How many bytes a tensor of this type and shape has; UINT64_MAX if there can be none such. */
MUSTER_EXPORT uint64_t muster_tensor_bytes(const struct muster_tensor *tensor);

/**
 * Memory for tensors that leaves for others without being copied; to be used like any other.
 * Zeroed. NULL: there is none. `len` is that of muster_state_alloc().
 */
MUSTER_EXPORT void *muster_state_alloc(size_t len);
MUSTER_EXPORT void muster_state_free(void *memory);

/* A version that somebody has. */
struct muster_state_info {
    char prefix[208];
    char id[65]; /* of its manifest, in hex: the same for the same bytes */
    uint64_t epoch;
    uint64_t step;
    uint64_t bytes;
    uint64_t tensors;
    double priority;
    char signer[64]; /* the peer whose signature it has; "": nobody's, it is hivemind's */
};

/* --- sharing ---------------------------------------------------------------------------------- */

typedef struct muster_state muster_state;

/* Text is copied. */
struct muster_state_config {
    /* Where others come: "HOST:PORT", port 0: any free one; "unix:/PATH". With `key` a multiaddr:
     * "/ip4/0.0.0.0/tcp/0". NULL: nowhere; for loading only. Default: any port, of every address if
     * the runtime's lock has a credential or is `insecure`; else of loopback. */
    const char *listen;
    const char *advertise; /* the host that others dial. NULL: that of `listen`, or our name */
    const char *key;       /* the file of a peer's key: connections between peers, signed with it;
                                "": a key for this process only */
    const char *sign; /* without a `key`: the file of the key that signs what is shared, so that
                         others can insist on it. NULL: one for this process only */
    const char *const *allow; /* ids of the peers that may come; nobody else is spoken to. With a
                                 `key`; NULL: all */
    size_t allow_count;
    const char *const *dht; /* multiaddrs of nodes of the swarm's DHT; needs a `key`. NULL: it is in
                               none */
    size_t dht_count;       /* 0, with a `dht`: it is the first of a new one */
    const char *hivemind;   /* the class that hivemind's trainers share by, "TrainingStateAverager":
                               they are served, too. NULL: they are not */
    const char *encoding;   /* of tensors that they get: "NONE", "FLOAT16", "MEANSTD_16BIT",
                               "QUANTILE_8BIT", "UNIFORM_8BIT", "BLOCKWISE_8BIT". NULL: "NONE" */
    uint32_t slots;         /* downloads that are served at once; others wait. 16 */
    uint64_t rate_bytes;    /* that leave in a second, for all together. 0: no bound */
    uint32_t replaced_ms;   /* how long a version that was replaced is still given to those who
                                are loading it. 60,000 */
};

MUSTER_EXPORT struct muster_state_config muster_state_config_defaults(void);

/**
 * Listens, and joins the DHT. MUSTER_ELOCKED: other hosts reach the address, and nothing says who
 * of them may come. That is the runtime's credential, or with a `key`, since peers do not show that
 * one, `allow`; or the lock's `insecure`, which lets anybody in. MUSTER_EADDR, MUSTER_EURL,
 * MUSTER_EINVAL (the key, an id), MUSTER_EDHT_NOBODY (none of `dht` answers), MUSTER_ENOMEM.
 */
MUSTER_EXPORT int muster_state_open(muster_runtime *runtime,
                                    const struct muster_state_config *config,
                                    muster_state **ret_state);
/** Ends it; downloads from here end too, and what was shared is free when this returns. NULL is
 * fine. */
MUSTER_EXPORT void muster_state_close(muster_state *state);
/** What others dial: "HOST:PORT", "unix:/PATH", or a multiaddr with our peer id; "" if it does not
 * listen. */
MUSTER_EXPORT const char *muster_state_address(const muster_state *state);
/** "plain", "peer", or "lock": beyond loopback encrypted, for those with the job's credential. */
MUSTER_EXPORT const char *muster_state_transport(const muster_state *state);

/* What is shared. Text and shapes are copied, the tensors' bytes are not. */
struct muster_state_source {
    const char *prefix; /* under which it is found; up to 200 bytes, in a swarm without dots. One
                           state for each */
    uint64_t epoch;
    uint64_t step;
    double priority;              /* of several states of one epoch the one with the highest is
                                     loaded; hivemind's trainers, who know no epochs, go by it */
    bool hidden;                  /* nobody may load it, until muster_state_set() says otherwise */
    struct muster_bytes metadata; /* msgpack, up to 16 MiB */
    const struct muster_tensor *tensors;
    size_t tensor_count;
    /** The tensors' memory is not looked at any more: never before muster_state_share() has
     * returned. On the runtime's thread. May be NULL. */
    void (*released)(void *context);
    void *context;
};

/**
 * Shares a state, in place of the one that had its prefix: who is loading that one goes on with it
 * for up to `replaced_ms`, and is then told that it is gone. Hashes all bytes first, on this
 * thread and others of the runtime; the tensors must not change from now on until `released`.
 * MUSTER_EINVAL, MUSTER_EEXIST (two tensors of one name), MUSTER_ELIMIT, MUSTER_ENOTSUP (hivemind
 * has no such type), MUSTER_ENOMEM: nothing has changed, and `released` is not called.
 *
 * hivemind's trainers get the tensors in their order, and the metadata with the epoch added to it
 * as "epoch", if it is a map that has none.
 */
MUSTER_EXPORT int muster_state_share(muster_state *state, const struct muster_state_source *source);
/**
 * The same with the tensors of a safetensors file; those of `source` are ignored, and its metadata
 * too if it is empty: then it is the file's. The file must not be changed while it is shared; if it
 * is replaced by another (renamed over), the old one is shared. For hivemind's trainers it is read
 * into memory. MUSTER_ECORRUPT (no such file), errors of the file system.
 */
MUSTER_EXPORT int muster_state_share_file(muster_state *state, const char *path,
                                          const struct muster_state_source *source);
/** Changes how a state that is shared stands among others, and whether it may be loaded. Downloads
 * under way are not disturbed. MUSTER_ENOENT. */
MUSTER_EXPORT int muster_state_set(muster_state *state, const char *prefix, double priority,
                                   bool hidden);
/** What is shared under a prefix, as others see it: its id, and who has signed it, which they can
 * hold us to (`id` and `trust` of muster_state_request). MUSTER_ENOENT. */
MUSTER_EXPORT int muster_state_shared(muster_state *state, const char *prefix,
                                      struct muster_state_info *ret_info);
/**
 * Withdraws a state. Returns when its memory is not looked at any more: at once if nobody is
 * loading it, else when they have finished, or after `wait_ms`, when they are told that it is gone.
 * MUSTER_ENOENT.
 */
MUSTER_EXPORT int muster_state_unshare(muster_state *state, const char *prefix, uint32_t wait_ms);

/**
 * Writes where the states under a prefix are to be had into a store, for as long as this process
 * has it open (MUSTER_LEASE_SESSION): a key below "muster-state/PREFIX/". Others find it there
 * with muster_state_request.store. MUSTER_EINVAL (it does not listen), errors of the store.
 */
MUSTER_EXPORT int muster_state_announce(muster_state *state, muster_store *store,
                                        const char *prefix, int64_t timeout_ms);

struct muster_state_stats {
    uint64_t downloads;   /* begun here */
    uint64_t turned_away; /* no slot was free */
    uint64_t chunks;      /* given out */
    uint64_t bytes;
    uint32_t active;             /* downloads now */
    uint64_t hivemind_downloads; /* begun by hivemind's peers, beside those above, */
    uint64_t hivemind_completed; /* and all of it sent */
    uint64_t declared;           /* writes that the DHT took */
};

/** What has been given to others so far. */
MUSTER_EXPORT void muster_state_stats(muster_state *state, struct muster_state_stats *ret_stats);

/* A download from here that goes on. */
struct muster_state_transfer {
    char peer[64]; /* the other end */
    char prefix[208];
    uint64_t bytes;     /* that it was given; it may get others elsewhere */
    uint64_t total;     /* of the state */
    double bytes_per_s; /* lately */
    uint64_t age_ms;
};

/** Fills in up to `cap`, but for hivemind's peers; returns how many there are. */
MUSTER_EXPORT size_t muster_state_transfers(muster_state *state,
                                            struct muster_state_transfer *ret_rows, size_t cap);

/* --- loading ---------------------------------------------------------------------------------- */

typedef struct muster_state_copy muster_state_copy;
typedef struct muster_state_loading muster_state_loading;

/* How far it is. */
struct muster_state_progress {
    const struct muster_state_info *info; /* NULL while the donors are being asked, and as long as
                                             a donor of hivemind's sends */
    uint64_t bytes;                       /* verified */
    uint64_t total;
    uint64_t resumed;   /* of `bytes`, that were there from the start */
    uint64_t wasted;    /* that came and were of no use */
    double bytes_per_s; /* over the last seconds */
    uint32_t donors;    /* that serve it now */
    uint32_t banned;    /* that sent something wrong */
    uint32_t lost;      /* that were lost on the way */
    uint32_t restarts;  /* versions that were gone before they were whole */
    bool hivemind;      /* a donor of hivemind's gave it: whole, but signed by nobody */
};

/* Text is copied. */
struct muster_state_request {
    const char *prefix;        /* "": any */
    const char *const *donors; /* addresses, as muster_state_address() has them */
    size_t donor_count;
    muster_store *store;    /* where others have announced themselves; NULL: nowhere. Borrowed */
    const char *const *dht; /* as in muster_state_config: donors are found there, too. NULL: that of
                               `through`, if it is in one. The prefix is not empty then */
    size_t dht_count;       /* not 0 with a `dht` */
    const char *hivemind;   /* likewise: donors of hivemind's are asked; NULL: they are not. With
                               `through`, what that one has */
    const char *key; /* of our side among peers, as in muster_state_config. NULL: one for this
                               load, if multiaddrs are to be dialled */
    const char *const *allow; /* likewise; the peers of `donors` are allowed too. With `through`,
                                 what that one has */
    size_t allow_count;

    /* Which one: the highest epoch, of several the highest priority, of several the last step. */
    const char *const *trust; /* ids of peers: only what one of them has signed, whoever gives it */
    size_t trust_count;       /* 0: whoever has signed it */
    const char *id;           /* only this one: its id, 64 hex digits. NULL: any */
    bool by_priority;         /* the priority goes before the epoch, though anybody can claim one */

    /* In place: the caller's tensors, which must be those of the state in their order, with their
     * types and shapes. None: new memory. */
    const struct muster_tensor *tensors;
    size_t tensor_count;
    /* Into a safetensors file, which then is the copy's memory. FILE.part while it grows, which is
     * no link and nobody else's; what such a one holds already is not loaded again, and one of
     * which nothing could be used again is removed. NULL: no file. */
    const char *file;

    /* A state with more bytes is refused before memory or disk is taken for it. 0: into new memory
     * no more than the machine has available, into a file no more than nine tenths of what the disk
     * has free; in place any. */
    uint64_t bytes_max;

    int64_t timeout_ms;  /* for all of it; MUSTER_TIMEOUT_NEVER. 600,000 */
    uint32_t idle_ms;    /* within which something must come, from anybody. 30,000 */
    uint32_t stall_ms;   /* after which a donor's chunk is asked of another. 5,000 */
    uint32_t connect_ms; /* for a donor to answer. 5,000 */
    /* Where others get from us what is there already, as in muster_state_config, MUSTER_ELOCKED
     * included; NULL: nowhere. */
    const char *listen;
    muster_state *through; /* or at this one's; it must outlive the load. NULL: none */
    bool keep_serving;     /* also when it is whole, until muster_state_copy_free() */
    uint32_t progress_ms;  /* how often `progress` is called at most. 100 */
    /** On the runtime's thread. Returns true to go on, false to cancel. May be NULL. */
    bool (*progress)(void *context, const struct muster_state_progress *progress);
    void *context;
};

MUSTER_EXPORT struct muster_state_request muster_state_request_defaults(void);

/**
 * Loads the newest state. `ret_copy` may be NULL in place. MUSTER_ENOENT: nobody has one under the
 * prefix, or one that `id` and `trust` let pass; MUSTER_EINVAL: it is not what `tensors` say, or
 * what is no id; MUSTER_ETIMEDOUT: the deadline, or
 * nothing came for `idle_ms`; MUSTER_ECONN: no donor is left; MUSTER_ECANCELED;
 * MUSTER_ELIMIT: it has more than `bytes_max`, or than the disk has to spare;
 * MUSTER_ECORRUPT: all donors sent something wrong; MUSTER_EDISK and errors of the file
 * system; MUSTER_ENOMEM. The text says what each donor did; muster_state_report() says all of it.
 */
MUSTER_EXPORT int muster_state_load(muster_runtime *runtime,
                                    const struct muster_state_request *request,
                                    muster_state_copy **ret_copy);

/** The same in two steps, so that another thread can cancel it. */
MUSTER_EXPORT int muster_state_load_begin(muster_runtime *runtime,
                                          const struct muster_state_request *request,
                                          muster_state_loading **ret_loading);
/** From any thread, until muster_state_load_end() was called. */
MUSTER_EXPORT void muster_state_load_cancel(muster_state_loading *loading);
/** Waits for the end and frees `loading`. Errors as muster_state_load(). */
MUSTER_EXPORT int muster_state_load_end(muster_state_loading *loading,
                                        muster_state_copy **ret_copy);
/** What each donor did, a line each, of the last load that ended on this thread. Lent until the
 * next one; never NULL. */
MUSTER_EXPORT const char *muster_state_report(void);

/* A loaded state: its version, its metadata, how many tensors it has. Lent until it is freed. */
MUSTER_EXPORT const struct muster_state_info *muster_state_copy_info(const muster_state_copy *copy);
MUSTER_EXPORT struct muster_bytes muster_state_copy_metadata(const muster_state_copy *copy);
MUSTER_EXPORT size_t muster_state_copy_count(const muster_state_copy *copy);
/** Tensor number `i`; lent until muster_state_copy_free(). Its data is the copy's own memory, or in
 * place the caller's. */
MUSTER_EXPORT struct muster_tensor muster_state_copy_tensor(const muster_state_copy *copy,
                                                            size_t i);
/** How the load went, at its end. */
MUSTER_EXPORT const struct muster_state_progress *
muster_state_copy_progress(const muster_state_copy *copy);
/** Frees its memory; it is not served any more. NULL is fine. */
MUSTER_EXPORT void muster_state_copy_free(muster_state_copy *copy);

/* --- looking ---------------------------------------------------------------------------------- */

/* What a donor has, or why it did not say. */
struct muster_state_row {
    char donor[300];
    struct muster_state_info info; /* with status 0 */
    uint64_t have;                 /* chunks, of so many */
    uint64_t chunks;
    bool hivemind; /* it does not speak this library's protocol: `info` has but the prefix and the
                      priority that the DHT tells */
    int status;
    char why[256];
};

/**
 * Asks donors what they have: fills up to `cap` rows, one for each state, and one for each donor
 * that has none (MUSTER_ENOENT) or does not answer. Uses donors, store, dht, through, key, prefix
 * and connect_ms of the request. Returns how many there are, or an error as
 * muster_state_load().
 */
MUSTER_EXPORT int muster_state_list(muster_runtime *runtime,
                                    const struct muster_state_request *request,
                                    struct muster_state_row *ret_rows, size_t cap);

/* --- files ------------------------------------------------------------------------------------ */

/**
 * Writes tensors into a safetensors file, which muster_state_share_file() and others read. It is
 * written beside (PATH.save), reaches the disk and is renamed: there is the old file or the whole
 * new one. The metadata, msgpack, may be empty. From any thread. MUSTER_EINVAL, MUSTER_EEXIST (two
 * tensors of one name), MUSTER_ELIMIT, MUSTER_ENOMEM, errors of the file system.
 */
MUSTER_EXPORT int muster_state_save(const char *path, const struct muster_tensor *tensors,
                                    size_t tensor_count, struct muster_bytes metadata);
/**
 * Reads a safetensors file into the caller's tensors, which must be those of the file in their
 * order, with their types and shapes: else MUSTER_EINVAL, and nothing has been written.
 * MUSTER_ECORRUPT, MUSTER_ENOMEM, errors of the file system.
 */
MUSTER_EXPORT int muster_state_read(const char *path, const struct muster_tensor *tensors,
                                    size_t tensor_count);

#ifdef __cplusplus
}
#endif

#endif
