/*
 * State: a process that joins a job, or fell behind, gets the current weights from those that have
 * them.
 *
 * A state is some metadata and an ordered list of named tensors, at a version. A donor shares it; a
 * newcomer loads it:
 *
 *     struct muster_state_config config = muster_state_config_defaults();
 *     config.listen = "0.0.0.0:29700";
 *     muster_state_open(rt, &config, &state);
 *     struct muster_state_source source = muster_state_source_defaults();
 *     source.prefix = "job7";
 *     source.epoch = 12;
 *     source.step = 4800;
 *     source.tensors = tensors;
 *     source.tensor_count = n;
 *     muster_state_share(state, &source);
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
 * What a download does. It asks all donors what they have. It takes the state with the highest
 * epoch, of several the one with the highest priority, then the last step, then one at random. The
 * state's manifest has the hash of every chunk of 1 MiB and is signed by a peer that shares it. All
 * donors that hold the same bytes serve them, each as fast as it can, and each chunk is checked
 * before it counts. A donor that sends a wrong chunk is not asked again; when a donor is lost,
 * another is asked for its chunk. Newcomers that load the same state at the same time serve what
 * they have, if they may (`listen`, `through`). If the version is replaced everywhere before it was
 * loaded, the next one is loaded.
 *
 * What holds afterwards. With 0, every byte is that of the manifest. With an error, nothing is
 * returned and, in place, the content of the caller's tensors is undefined; but they are checked
 * against the manifest first, so that a state of another model (MUSTER_EINVAL) touches nothing.
 *
 * Where the bytes go. Plain (TCP or a unix socket): everything that can reach the address can read
 * the state; the bytes leave by sendfile if they are in a file or in muster_state_alloc(). If the
 * runtime's lock has a credential (muster/runtime.h): beyond loopback the bytes are encrypted, and
 * only clients with the credential get them. With `key`, between libp2p peers: the bytes are
 * encrypted, and each side knows the other's id. muster_state_transport() says which it is.
 *
 * In a swarm. Peers in one DHT do not need each other's addresses:
 *
 *     const char *swarm[] = {"/ip4/10.0.0.1/tcp/31337/p2p/12D3KooW..."};
 *     config.key = "";
 *     config.listen = "/ip4/0.0.0.0/tcp/0";
 *     config.dht = swarm;
 *     config.dht_count = 1;
 *     config.hivemind = "TrainingStateAverager";    for hivemind's trainers too
 *     ... and to load: request.dht = swarm; request.dht_count = 1; ...
 *
 * The DHT lists what is shared under "PREFIX.all_averagers", with its priority, for 30 s and again
 * every 10, until it is hidden, unshared or closed. A load looks there for donors under its prefix.
 * Donors that speak this library's protocol are asked as above, all at once. Donors that speak only
 * hivemind's protocol are asked in it, one after the other: before the others if they claim to have
 * something newer than all of them, otherwise if the others fail. docs/hivemind-state.md says what
 * that protocol can and cannot promise; what it gives is checked against `tensors` before any of it
 * is written there.
 *
 * All functions may be called from any thread. Functions that wait return MUSTER_EINVAL on the
 * runtime's own thread.
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
    MUSTER_DTYPE_F6_E2M3, /* four to three bytes, like F6_E3M2 */
    MUSTER_DTYPE_F6_E3M2,
};

/** The type's name, such as "F32"; NULL if there is no such type. */
MUSTER_EXPORT const char *muster_dtype_name(enum muster_dtype dtype);

/* A tensor: little-endian, the last dimension running fastest, no gaps. */
struct muster_tensor {
    const char *name; /* 1 to 65535 bytes, unique in its state */
    enum muster_dtype dtype;
    uint32_t rank; /* 0: a single element */
    const uint64_t *shape;
    void *data;        /* as many bytes as type and shape need */
    void *reserved[2]; /* NULL */
};

/** How many bytes a tensor of this type and shape has; UINT64_MAX if no such tensor can exist. */
MUSTER_EXPORT uint64_t muster_tensor_bytes(const struct muster_tensor *tensor);

/**
 * Zeroed memory for tensors, which is sent to others without being copied; use it like any other
 * memory. NULL: there is not enough memory.
 */
MUSTER_EXPORT void *muster_state_alloc(size_t len);
MUSTER_EXPORT void muster_state_free(void *memory);

/* A version of a state. */
struct muster_state_info {
    char prefix[208];
    char id[65]; /* the manifest's id in hex: the same for the same bytes */
    uint64_t epoch;
    uint64_t step;
    uint64_t bytes;
    uint64_t tensors;
    double priority;
    char signer[64]; /* the peer that signed it; "": it is hivemind's, which is not signed */
};

/* --- sharing ---------------------------------------------------------------------------------- */

typedef struct muster_state muster_state;

/* Text is copied. */
struct muster_state_config {
    size_t size; /* set by the defaults */
    /* Where others connect: "HOST:PORT", port 0: any free one; "unix:/PATH". With `key` a
     * multiaddr: "/ip4/0.0.0.0/tcp/0". NULL: nowhere; for loading only. Default: any port, on every
     * address if the runtime's lock has a credential or is `insecure`; otherwise on loopback. */
    const char *listen;
    const char *advertise; /* the host that others dial. NULL: that of `listen`, or our host name */
    const char *key;       /* the file of our peer key: connections are between peers, and states
                              are signed with it; "": a key for this process only */
    const char *sign; /* without a `key`: the file of the key that signs what is shared, so that
                         others can insist on it. NULL: a key for this process only */
    const char *const *allow; /* ids of the peers that may connect and be dialled. With a `key`;
                                 NULL: all */
    size_t allow_count;
    const char *const *dht; /* multiaddrs of nodes of the swarm's DHT; needs a `key`. NULL: no
                               swarm */
    size_t dht_count;       /* 0, with a `dht`: this is the first node of a new DHT */
    const char *const *via; /* multiaddrs of relays, with their ids: through these, others reach a
                               donor that they cannot dial. Needs a `key`. NULL: none */
    size_t via_count;       /* at most 16 */
    const char *hivemind;   /* the class that hivemind's trainers use to share,
                               "TrainingStateAverager": they are served, too. NULL: they are not */
    const char *encoding;   /* of tensors for hivemind's trainers: "NONE", "FLOAT16",
                               "MEANSTD_16BIT", "QUANTILE_8BIT", "UNIFORM_8BIT", "BLOCKWISE_8BIT".
                               NULL: "NONE" */
    uint32_t slots;         /* how many downloads are served at once; others wait. 16 */
    uint64_t rate_bytes;    /* bytes sent in a second, for all together. 0: no bound */
    uint32_t replaced_ms;   /* how long a replaced version is still given to those that are loading
                               it. 60,000 */
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_state_config_init(struct muster_state_config *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_state_config muster_state_config_defaults(void)
{
    struct muster_state_config it;

    muster_state_config_init(&it, sizeof(it));
    return it;
}

/**
 * Listens, and joins the DHT. MUSTER_ELOCKED: other hosts can reach the address, and nothing says
 * which of them may connect. The runtime's credential says so, or, with a `key` (peers do not show
 * the credential), `allow`; or the lock's `insecure`, which lets everything in. MUSTER_EADDR,
 * MUSTER_EURL, MUSTER_EINVAL (the key, an id), MUSTER_EDHT_NOBODY (no node in `dht` answers),
 * MUSTER_ECONN (no relay of `via` leads here), MUSTER_ENOMEM. If a peer of the DHT tries to dial us
 * and cannot, the log says so (SWARM-UNREACHABLE).
 */
MUSTER_EXPORT int muster_state_open(muster_runtime *runtime,
                                    const struct muster_state_config *config,
                                    muster_state **ret_state);
/** Ends sharing; downloads from here end too, and the shared memory is no longer used when this
 * returns. NULL is fine. */
MUSTER_EXPORT void muster_state_close(muster_state *state);
/** The address that others dial: "HOST:PORT", "unix:/PATH", or a multiaddr with our peer id; "" if
 * it does not listen. */
MUSTER_EXPORT const char *muster_state_address(const muster_state *state);
/** Writes address number `i` that others can dial: a peer may have several, also through relays.
 * Number 0 is muster_state_address(). False: there are not so many. */
MUSTER_EXPORT bool muster_state_address_at(muster_state *state, size_t i, char *ret_text,
                                           size_t cap);
/** "plain", "peer", or "lock": encrypted beyond loopback, for clients with the job's credential. */
MUSTER_EXPORT const char *muster_state_transport(const muster_state *state);

/* What is shared. Text and shapes are copied, the tensors' bytes are not. */
struct muster_state_source {
    size_t size;        /* set by the defaults */
    const char *prefix; /* the name it is found by; up to 200 bytes, without dots in a swarm. A
                           prefix has one state */
    uint64_t epoch;
    uint64_t step;
    double priority;              /* of several states of one epoch, the one with the highest is
                                     loaded; hivemind's trainers, which do not look at epochs,
                                     choose by it */
    bool hidden;                  /* it cannot be loaded until muster_state_set() shows it */
    struct muster_bytes metadata; /* msgpack, up to 16 MiB */
    const struct muster_tensor *tensors;
    size_t tensor_count;
    /** Called on the runtime's thread when the tensors' memory is no longer read, never before
     * muster_state_share() has returned. May be NULL. */
    void (*released)(void *context);
    void *context;
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_state_source_init(struct muster_state_source *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_state_source muster_state_source_defaults(void)
{
    struct muster_state_source it;

    muster_state_source_init(&it, sizeof(it));
    return it;
}

/**
 * Shares a state, in place of the one that had its prefix: downloads of that one go on for up to
 * `replaced_ms`, and are then told that it is gone. Hashes all bytes first, on this thread and on
 * others of the runtime; the tensors must not change from now on until `released`. MUSTER_EINVAL,
 * MUSTER_EEXIST (two tensors of one name), MUSTER_ELIMIT, MUSTER_ENOTSUP (hivemind has no such
 * type), MUSTER_ENOMEM: nothing has changed, and `released` is not called.
 *
 * hivemind's trainers get the tensors in their order, and the metadata with the epoch added to it
 * as "epoch", if it is a map without one. If the metadata names an epoch, the state is of that one;
 * `epoch` is the same or 0. For a "TrainingStateAverager" the priority must be the epoch too, or 0,
 * and the metadata must have "optimizer_metadata" (docs/hivemind-state.md); a trainer that got
 * anything else would download it again and again, so MUSTER_EINVAL says what is missing.
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
/** Changes a shared state's priority, and whether it may be loaded. Downloads under way go on.
 * MUSTER_ENOENT; MUSTER_EINVAL for a priority that is not the epoch, with a
 * "TrainingStateAverager". */
MUSTER_EXPORT int muster_state_set(muster_state *state, const char *prefix, double priority,
                                   bool hidden);
/** Tells what is shared under a prefix, as others see it: its id and its signer, on which they can
 * insist (`id` and `trust` of muster_state_request). MUSTER_ENOENT. */
MUSTER_EXPORT int muster_state_shared(muster_state *state, const char *prefix,
                                      struct muster_state_info *ret_info);
/**
 * Withdraws a state. Returns when its memory is no longer read: at once if no download is under
 * way, otherwise when all downloads have finished, or after `wait_ms`, when they are told that the
 * state is gone. MUSTER_ENOENT.
 */
MUSTER_EXPORT int muster_state_unshare(muster_state *state, const char *prefix, uint32_t wait_ms);

/**
 * Writes into a store where the states under a prefix can be loaded, for as long as this process
 * has the store open (MUSTER_LEASE_SESSION): a key below "muster-state/PREFIX/". Others find it
 * with muster_state_request.store. MUSTER_EINVAL (it does not listen), errors of the store.
 */
MUSTER_EXPORT int muster_state_announce(muster_state *state, muster_store *store,
                                        const char *prefix, int64_t timeout_ms);

struct muster_state_stats {
    uint64_t downloads;   /* begun */
    uint64_t turned_away; /* no slot was free */
    uint64_t chunks;      /* given out */
    uint64_t bytes;
    uint32_t active;             /* downloads now */
    uint64_t hivemind_downloads; /* begun by hivemind's peers, not counted above */
    uint64_t hivemind_completed; /* of these, sent to the end */
    uint64_t declared;           /* writes that the DHT took */
};

/** Counts what has been given to others so far. */
MUSTER_EXPORT void muster_state_stats(muster_state *state, struct muster_state_stats *ret_stats);

/* A download from here that is under way. */
struct muster_state_transfer {
    char peer[64]; /* the other end */
    char prefix[208];
    uint64_t bytes;     /* given from here; it may get others elsewhere */
    uint64_t total;     /* of the state */
    double bytes_per_s; /* lately */
    uint64_t age_ms;
};

/** Fills in up to `cap` downloads, without those of hivemind's peers; returns how many there
 * are. */
MUSTER_EXPORT size_t muster_state_transfers(muster_state *state,
                                            struct muster_state_transfer *ret_rows, size_t cap);

/* --- loading ---------------------------------------------------------------------------------- */

typedef struct muster_state_copy muster_state_copy;
typedef struct muster_state_loading muster_state_loading;

/* How far a load is. */
struct muster_state_progress {
    const struct muster_state_info *info; /* NULL while the donors are being asked, and while one of
                                             hivemind's donors sends */
    uint64_t bytes;                       /* verified */
    uint64_t total;
    uint64_t resumed;   /* how many of `bytes` were there from the start */
    uint64_t wasted;    /* bytes that came and were of no use */
    double bytes_per_s; /* over the last few seconds */
    uint32_t donors;    /* donors that serve it now */
    uint32_t banned;    /* donors that sent something wrong */
    uint32_t lost;      /* donors that were lost on the way */
    uint32_t restarts;  /* versions that were replaced before they were whole */
    bool hivemind;      /* one of hivemind's donors gave it: whole, but not signed */
};

/* Text is copied. */
struct muster_state_request {
    size_t size;               /* set by the defaults */
    const char *prefix;        /* "": any */
    const char *const *donors; /* addresses, as muster_state_address() has them */
    size_t donor_count;
    muster_store *store;    /* where donors have announced themselves; NULL: nowhere. Not copied */
    const char *const *dht; /* as in muster_state_config: donors are found there, too. NULL: that of
                               `through`, if it is in one. The prefix must not be empty then */
    size_t dht_count;       /* not 0 with a `dht` */
    const char *hivemind;   /* likewise: hivemind's donors are asked; NULL: they are not. With
                               `through`, its setting holds */
    const char *key; /* our key among peers, as in muster_state_config. NULL: a key for this load,
                        if it dials multiaddrs */
    const char *const *allow; /* likewise; the peers of `donors` are allowed too. With `through`,
                                 its setting holds */
    size_t allow_count;

    /* Which state is loaded: the highest epoch, then the highest priority, then the last step. */
    const char *const *trust; /* ids of peers: only what one of them has signed, from any donor */
    size_t trust_count;       /* 0: any signer */
    const char *id;           /* only this one: its id, 64 hex digits. NULL: any */
    bool by_priority;         /* the priority, which any donor can claim, goes before the epoch */

    /* To load in place: the caller's tensors, which must be those of the state in their order, with
     * their types and shapes. Without tensors: new memory. */
    const struct muster_tensor *tensors;
    size_t tensor_count;
    /* To load into a safetensors file, which is then the copy's memory. While it grows it is
     * FILE.part, which must not be a link or another user's file. What FILE.part holds already is
     * not loaded again; it is removed if nothing in it could be used again. NULL: no file. */
    const char *file;

    /* A state with more bytes is refused before memory or disk is taken for it. 0: into new memory
     * no more than the machine has available, into a file no more than nine tenths of the disk's
     * free space; in place any size. */
    uint64_t bytes_max;

    int64_t timeout_ms;  /* for the whole load. 600,000 */
    uint32_t idle_ms;    /* the longest time in which no donor sends anything. 30,000 */
    uint32_t stall_ms;   /* after which another donor is asked for a chunk. 5,000 */
    uint32_t connect_ms; /* for a donor to answer. 5,000 */
    /* Where others can get from us what we have so far, as in muster_state_config, MUSTER_ELOCKED
     * included; NULL: nowhere. */
    const char *listen;
    muster_state *through; /* or at this state's address; it must outlive the load. Or NULL */
    bool keep_serving;     /* also when the copy is whole, until muster_state_copy_free() */
    uint32_t progress_ms;  /* the shortest time between calls of `progress`. 100 */
    /** Called on the runtime's thread. Returns true to go on, false to cancel. May be NULL. */
    bool (*progress)(void *context, const struct muster_state_progress *progress);
    void *context;
    /* With muster_state_load_begin(): the load is put into this queue when it has ended
     * (MUSTER_QUEUED_LOADED), with `context`; muster_state_load_end() then does not wait. */
    muster_queue *queue;
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_state_request_init(struct muster_state_request *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_state_request muster_state_request_defaults(void)
{
    struct muster_state_request it;

    muster_state_request_init(&it, sizeof(it));
    return it;
}

/**
 * Loads the newest state. `ret_copy` may be NULL in place. MUSTER_ENOENT: no donor has one under
 * the prefix, or one that `id` and `trust` allow; MUSTER_EINVAL: it does not match `tensors`, or
 * `id` or `trust` has something that is no id; MUSTER_ETIMEDOUT: the deadline has passed, or
 * nothing came for `idle_ms`; MUSTER_ECONN: no donor is left; MUSTER_ECANCELED; MUSTER_ELIMIT: it
 * has more than `bytes_max`, or more than the disk can spare; MUSTER_ECORRUPT: all donors sent
 * something wrong; MUSTER_EDISK and errors of the file system; MUSTER_ENOMEM. The text says what
 * each donor did; muster_state_report() has the full report.
 */
MUSTER_EXPORT int muster_state_load(muster_runtime *runtime,
                                    const struct muster_state_request *request,
                                    muster_state_copy **ret_copy);

/** As muster_state_load(), in two steps, so that another thread can cancel it. */
MUSTER_EXPORT int muster_state_load_begin(muster_runtime *runtime,
                                          const struct muster_state_request *request,
                                          muster_state_loading **ret_loading);
/** Waits for the load's end, for up to `timeout_ms` (MUSTER_ETIMEDOUT); 0 asks without waiting. It
 * does not return the load's result: muster_state_load_end() does. */
MUSTER_EXPORT int muster_state_load_wait(muster_state_loading *loading, int64_t timeout_ms);
/** How far the load is, or was no more than `progress_ms` of the request ago; from any thread,
 * until muster_state_load_end() is called. `info` points to `ret_info`, which may be NULL, or is
 * NULL. */
MUSTER_EXPORT void muster_state_load_progress(muster_state_loading *loading,
                                              struct muster_state_progress *ret_progress,
                                              struct muster_state_info *ret_info);
/** May be called from any thread, until muster_state_load_end() is called. */
MUSTER_EXPORT void muster_state_load_cancel(muster_state_loading *loading);
/** Waits for the end and frees `loading`. Errors as muster_state_load(). */
MUSTER_EXPORT int muster_state_load_end(muster_state_loading *loading,
                                        muster_state_copy **ret_copy);
/** What each donor did, one line each, in the last load that ended on this thread. Valid until the
 * next load; never NULL. */
MUSTER_EXPORT const char *muster_state_report(void);

/* A loaded state: its version, its metadata, how many tensors it has. Valid until it is freed. */
MUSTER_EXPORT const struct muster_state_info *muster_state_copy_info(const muster_state_copy *copy);
MUSTER_EXPORT struct muster_bytes muster_state_copy_metadata(const muster_state_copy *copy);
MUSTER_EXPORT size_t muster_state_copy_count(const muster_state_copy *copy);
/** Tensor number `i`; valid until muster_state_copy_free(). Its data is the copy's own memory, or,
 * in place, the caller's. */
MUSTER_EXPORT struct muster_tensor muster_state_copy_tensor(const muster_state_copy *copy,
                                                            size_t i);
/** The progress at the end of the load. */
MUSTER_EXPORT const struct muster_state_progress *
muster_state_copy_progress(const muster_state_copy *copy);
/** Frees the copy's memory; it is no longer served. NULL is fine. */
MUSTER_EXPORT void muster_state_copy_free(muster_state_copy *copy);

/* --- listing what donors have ----------------------------------------------------------------- */

/* What a donor has, or why it did not say. */
struct muster_state_row {
    char donor[300];
    struct muster_state_info info; /* with status 0 */
    uint64_t have;                 /* how many of `chunks` it has */
    uint64_t chunks;
    bool hivemind; /* it does not speak this library's protocol: `info` has only the prefix, and the
                      priority from the DHT */
    int status;
    char why[256];
};

/**
 * Asks donors what they have: fills in up to `cap` rows, one for each state, and one for each donor
 * that has no state (MUSTER_ENOENT) or does not answer. Uses donors, store, dht, through, key,
 * prefix and connect_ms of the request. Returns how many rows there are, or an error as
 * muster_state_load().
 */
MUSTER_EXPORT int muster_state_list(muster_runtime *runtime,
                                    const struct muster_state_request *request,
                                    struct muster_state_row *ret_rows, size_t cap);

/* --- files ------------------------------------------------------------------------------------ */

/**
 * Writes tensors into a safetensors file, which muster_state_share_file() and others read. It is
 * written to PATH.save, synced to disk and renamed, so that PATH is always the old file or the
 * whole new one. The metadata, msgpack, may be empty. From any thread. MUSTER_EINVAL, MUSTER_EEXIST
 * (two tensors of one name), MUSTER_ELIMIT, MUSTER_ENOMEM, errors of the file system.
 */
MUSTER_EXPORT int muster_state_save(const char *path, const struct muster_tensor *tensors,
                                    size_t tensor_count, struct muster_bytes metadata);
/**
 * Reads a safetensors file into the caller's tensors, which must be those of the file in their
 * order, with their types and shapes; otherwise MUSTER_EINVAL, and nothing has been written.
 * MUSTER_ECORRUPT, MUSTER_ENOMEM, errors of the file system.
 */
MUSTER_EXPORT int muster_state_read(const char *path, const struct muster_tensor *tensors,
                                    size_t tensor_count);

/* --- kept by the agent ------------------------------------------------------------------------
 *
 * A worker of `muster run --keep-memory` can keep its state in memory of its agent, which outlives
 * it. When workers start again, all of them load the newest version that every rank has kept:
 *
 *     struct muster_state_kept kept;
 *     uint64_t first = 0;
 *     if (muster_state_kept(&kept) == 0 && muster_state_restore(mine, n) == 0)
 *         first = kept.step + 1;
 *     for (uint64_t step = first; step < 1000; step++) {
 *         struct muster_state_keep_request keep = muster_state_keep_request_defaults();
 *         keep.step = step;
 *         keep.tensors = mine;
 *         keep.tensor_count = n;
 *         muster_state_keep(&keep);            MUSTER_ENOTSUP where nothing keeps states
 *     }
 *
 * Each rank keeps its own shard, and all of them the same steps. docs/kept.md says what survives
 * what. Only the worker itself may call these functions, not processes that it has started.
 */

struct muster_state_keep_request {
    size_t size;
    const struct muster_tensor *tensors; /* in memory of the host */
    size_t tensor_count;
    struct muster_bytes metadata; /* msgpack. Default: empty */
    uint64_t step;                /* the same on all ranks; it grows */
    uint64_t threads;             /* that copy. Default: 0, as many as help */
    /** The state is the same on all ranks, so one copy on each node is enough: that of local rank
     * 0. The other ranks call the function, too, and it returns 0 at once. Default: false. */
    bool replicated;
    /** Return once the copy has begun. The tensors must not change before muster_state_keep_wait()
     * has returned. Default: false. */
    bool background;
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_state_keep_request_init(struct muster_state_keep_request *ret,
                                                  size_t size);
/** The struct with the defaults. */
static inline struct muster_state_keep_request muster_state_keep_request_defaults(void)
{
    struct muster_state_keep_request it;

    muster_state_keep_request_init(&it, sizeof(it));
    return it;
}

/**
 * Copies the tensors into the agent's memory. The last two versions stay until the new one is
 * whole. If a copy is under way, it waits for that first. From any thread. MUSTER_ENOTSUP: nothing
 * keeps states here; MUSTER_ELIMIT: the state is larger than --keep-memory allows; MUSTER_ENOMEM:
 * the machine has not so much memory left; MUSTER_EINVAL, MUSTER_EEXIST (two tensors of one name).
 * With an error nothing was kept, and what was kept before is still there.
 */
MUSTER_EXPORT int muster_state_keep(const struct muster_state_keep_request *request);
/** Waits until the copy that is under way, if there is one, is whole. */
MUSTER_EXPORT void muster_state_keep_wait(void);

/* The version that the workers of this round load. */
struct muster_state_kept {
    uint64_t step;
    uint64_t bytes;           /* of the tensors and their description */
    struct muster_bytes head; /* the head of a safetensors file, with the metadata; it stays until
                                 the process ends */
};

/** Tells what is kept for this worker. MUSTER_ENOENT: nothing that all ranks have; MUSTER_ENOTSUP:
 * nothing keeps states here; MUSTER_ECORRUPT: it was overwritten; MUSTER_ENOMEM. */
MUSTER_EXPORT int muster_state_kept(struct muster_state_kept *ret_kept);
/**
 * Copies that version into the caller's tensors, which must be those that were kept, in their
 * order, with their types and shapes; otherwise MUSTER_EINVAL, and nothing has been written. The
 * errors of muster_state_kept(); with MUSTER_ECORRUPT the content of the tensors is undefined.
 */
MUSTER_EXPORT int muster_state_restore(const struct muster_tensor *tensors, size_t tensor_count);

#ifdef __cplusplus
}
#endif

#endif
