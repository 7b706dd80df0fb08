/*
 * Loads a state from donors that have it, on the loop's thread. A service: it runs on libuv and in
 * the simulator; proto/state/fetch.h decides which donor is asked for what.
 *
 *     mu_state_loader_start(env, &config, &loader, &msg);
 *     mu_state_loader_add(loader, "10.0.0.1:29700");         as many as are known
 *       accept(): this state was chosen; says where to put it
 *       progress()
 *     ended(): every byte is verified, or why not; nothing is written to that memory any more
 *     closed(): the last callback; mu_state_loader_free()
 *
 *     ASKING --all have said what they have--> OFFERING --verified, accepted--> RESUMING
 *        ^                                                                         |
 *        +---------- the version is gone everywhere ---------- FETCHING <----------+
 *
 * A donor that fails in any way is passed over; the report says what each did. Meanwhile verified
 * chunks are served to others, through `donor`.
 */
#ifndef MU_STATE_LOADER_H
#define MU_STATE_LOADER_H

#include "codec/state/msg.h"
#include "core/env.h"
#include "core/err.h"
#include "service/state/donor.h"
#include "service/state/share.h"

struct mu_state_loader;

/* The memory for a state that was chosen. */
struct mu_state_plan {
    const struct mu_state_offer *offer; /* verified; lent for the call */
    const struct mu_state_entry *entry; /* as it was listed; likewise */
    bool again; /* the plan before this one was `whole_only`, and not all chunks were there */
    /* The callback fills these in. */
    struct mu_state_segment *segments; /* allocated; the loader takes it */
    size_t segment_count;
    uint8_t *maybe;  /* a bit for each chunk that may be there, allocated; NULL: no chunk */
    bool whole_only; /* the memory must not be written to: it serves if all chunks are there, and
                        else the callback comes again */
    /** As in struct mu_state_share; `released` comes when that memory is not used any more, whether
     * the load succeeded or not. */
    int (*read)(struct mu_state_share *share, uint64_t offset, void *buf, size_t len);
    int (*prepare)(struct mu_state_share *share, uint64_t offset, uint64_t len);
    void (*released)(struct mu_state_share *share);
    void *owner;
};

struct mu_state_loader_progress {
    const struct mu_state_entry *entry; /* NULL: not chosen yet */
    const struct mu_peer_id *signer;    /* of that one; lent likewise */
    uint64_t bytes, total, resumed, wasted;
    uint64_t bytes_per_s;
    uint32_t donors, banned, lost, restarts;
};

struct mu_state_loader_config {
    char prefix[MU_STATE_PREFIX_MAX + 1]; /* "": any */
    const char *name;                     /* our name in others' logs; borrowed */
    uint64_t timeout_ms;                  /* 0: no limit */
    uint32_t idle_ms;                     /* 30 s */
    uint32_t stall_ms;                    /* 5 s */
    uint32_t connect_ms;                  /* 5 s */
    uint32_t settle_ms;   /* how long to wait for the others when one has said what it has. 1 s */
    uint32_t again_ms;    /* when donors without anything are asked again, if more are expected.
                             500 */
    uint32_t progress_ms; /* 100 */
    uint32_t links_max;   /* donors, found ones included. 256 */
    bool by_priority;     /* takes the highest priority, not the highest epoch */
    const struct mu_peer_id *trust; /* takes only states that one of these has signed; borrowed */
    size_t trust_count;             /* 0: any signer */
    const uint8_t *id;              /* takes only this state; NULL: any. Borrowed */
    bool list_only;                 /* ends when all have said what they have */
    bool expect_more;               /* more donors may still be added: mu_state_loader_expect() */
    bool keep;                      /* the complete state is still served through `donor` */
    struct mu_state_donor *donor;   /* serves others with its listener; NULL: no serving */
    char own_addr[MU_STATE_ADDR_MAX + 1]; /* its address, for others to dial */
    /** Resolves an address; NULL: mu_addr_parse(). */
    int (*resolve)(void *context, const char *text, struct mu_addr *ret,
                   struct mu_errmsg *reterr_msg);
    /** Whether an address may be dialled that only a donor named. NULL: any. */
    bool (*may_dial)(void *context, const char *text);
    /** Whether a state that a donor has listed may be taken. NULL: any. */
    bool (*wants)(void *context, const struct mu_state_entry *entry);
    /** A state was chosen. An error ends the load. May come again, if a version is gone: the
     * earlier memory is released by then. */
    int (*accept)(void *context, struct mu_state_plan *plan, struct mu_errmsg *reterr_msg);
    /** Returns false to cancel. May be NULL. */
    bool (*progress)(void *context, const struct mu_state_loader_progress *progress);
    /** Once. With 0 `share` is the complete state; the owner gets its reference. */
    void (*ended)(void *context, int status, const char *text, struct mu_state_share *share);
    void (*closed)(void *context);
    void *context;
};

struct mu_state_loader_config mu_state_loader_config_defaults(void);

/** MUSTER_ENOMEM. Nothing is dialled before the next turn. */
int mu_state_loader_start(struct mu_env *env, const struct mu_state_loader_config *config,
                          struct mu_state_loader **ret, struct mu_errmsg *reterr_msg);
/** Adds a donor; a known one is left alone. MUSTER_EURL, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_state_loader_add(struct mu_state_loader *l, const char *addr, struct mu_errmsg *reterr_msg);
void mu_state_loader_expect(struct mu_state_loader *l, bool more);
/** Ends the load with MUSTER_ECANCELED, unless it is just ending otherwise. */
void mu_state_loader_cancel(struct mu_state_loader *l);
/** Appends what each donor did, a line each. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int mu_state_loader_report(const struct mu_state_loader *l, struct mu_buf *out);
void mu_state_loader_progress(const struct mu_state_loader *l,
                              struct mu_state_loader_progress *ret);

/* What donors said, for list_only; lent. */
struct mu_state_row {
    const char *donor;
    int status; /* MUSTER_ENOENT: it has no state */
    const char *text;
    const struct mu_state_entry *entry; /* with status 0 */
    const struct mu_peer_id *signer;    /* likewise: the signer of that state */
};

/** Gets row number `i`; false after the last. */
bool mu_state_loader_row(const struct mu_state_loader *l, size_t i, struct mu_state_row *ret);

/** After `closed`. */
void mu_state_loader_free(struct mu_state_loader *l);

#endif
