/*
 * The public rendezvous from inside. A handler is a table of ops, for registered backends too; our
 * own backends share one implementation, the client: the half that other threads see (rendezvous.c)
 * and the half on the loop's thread (rdzv_client.c), with a lock between them.
 */
#ifndef MU_RDZV_API_H
#define MU_RDZV_API_H

#include "api/api.h"
#include "service/rdzv/rdzv.h"
#include "service/rdzv/bootstrap.h"

#define MU_RDZV_BACKEND_LEN_MAX 31
#define MU_RDZV_LEAVE_MS        3000 /* how long leaving may take */

struct muster_rdzv {
    struct muster_rdzv_ops ops;
    void *context;
    char backend[MU_RDZV_BACKEND_LEN_MAX + 1];
    char run_id[];
};

/*
 * A client at the rendezvous, as the loop sees it:
 *
 *           next()             assigned            store and bootstrap are there
 *      OUT --------> JOINING -----------> OPENING -------------------------------> IN
 *                     ^  ^ |                | |                                    |
 *                     |  | | failed: OUT    | | cannot be opened: LEAVING          | ended
 *                     |  +------------------+                                      v
 *                     |       ended                                             BETWEEN
 *                     +------------------------------ next() from IN, BETWEEN -----+
 *
 * failed and closed lead to OUT from anywhere, close() through LEAVING.
 */
enum mu_rdzv_client_place {
    MU_RDZV_CLIENT_OUT = 1,
    MU_RDZV_CLIENT_JOINING,
    MU_RDZV_CLIENT_OPENING,
    MU_RDZV_CLIENT_IN,
    MU_RDZV_CLIENT_BETWEEN,
    MU_RDZV_CLIENT_LEAVING,
};

struct mu_rdzv_client;

/* A round that was assigned, with everything that the user borrows. It outlives its time in the
 * client until its store and its bootstrap have ended. */
struct mu_rdzv_round {
    struct mu_rdzv_client *client;
    struct muster_rdzv_info info;
    struct mu_rdzv_round_store stores; /* .store NULL: not open */
    struct mu_rdzv_bootstrap *bootstrap;
    struct mu_store_op probe;
    bool dropped;
    bool share;
    unsigned pending; /* how many callbacks will still come */
    void *texts;      /* one block for everything that `info` points to */
};

struct mu_rdzv_client {
    muster_runtime *rt;
    uint32_t flags;
    bool share_wanted; /* rank 0 serves a store, if the others can use it */
    bool is_static;    /* its endpoint is the bootstrap address */
    struct mu_addr endpoint;
    char host[MU_ADDR_HOST_MAX + 1]; /* the machine's name, for the records */
    int64_t pid;

    /* Only the loop uses these. */
    struct mu_rdzv_handler *handler;
    enum mu_rdzv_client_place place;
    struct mu_rdzv_round *round; /* OPENING, IN, and until next() is called */
    size_t rounds;               /* how many rounds are not freed yet */
    int leave_status;            /* LEAVING because of an error: what next() will return */
    struct mu_errmsg leave_text;
    struct mu_timer leave_timer;
    bool leaving_for_good;
    bool freed; /* the handler was freed */

    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    unsigned callers; /* how many threads are inside a call that waits */
    bool going;       /* muster_rdzv_close(), muster_rdzv_interrupt() */
    bool gone;
    bool next_wanted; /* next() is under way */
    bool next_done;
    int next_status;
    struct mu_errmsg next_text;
    struct muster_rdzv_info info;
    bool in_round;
    bool closed;
    bool close_wanted;
    int close_status;
    struct mu_errmsg close_text;
    uint32_t waiting;
    bool share;         /* of the last round */
    uint64_t explained; /* how often the handler has said what next() waits for */
    struct mu_errmsg explained_text;
    /* What happened since the round began, and which of it was not reported yet. */
    uint64_t round_number;
    enum muster_rdzv_end_reason end_reason;
    int end_status;
    bool end_has_who;
    char end_who[MU_RDZV_RUN_ID_MAX + 1];
    uint32_t end_who_rank;
    struct mu_errmsg end_text;
    bool tell_waiting;
    bool tell_ended;
    bool tell_closed;
    /* Borrowed by the thread that waits for events. */
    char event_who[MU_RDZV_RUN_ID_MAX + 1];
    struct mu_errmsg event_text;
};

/* --- rendezvous.c ----------------------------------------------------------------------------- */

/**
 * Holds the rendezvous for a caller that makes several calls as one: muster_rdzv_close() waits
 * until it is released, and every call meanwhile ends with MUSTER_ECLOSED. False: it is being
 * closed already (MUSTER_ECLOSED). A registered backend is not held.
 */
bool mu_rdzv_hold(muster_rdzv *r);
void mu_rdzv_unhold(muster_rdzv *r);

/* --- rdzv_client.c: on the loop -----------------------------------------------------------------
 * */

/** The callbacks for the handler, with the client as context. */
struct mu_rdzv_events mu_rdzv_client_events(struct mu_rdzv_client *s);
/** Joins the next round, for next(). */
void mu_rdzv_client_join(struct mu_rdzv_client *s);
/** Asks what next() waits for: `explained` grows, unless next() is over first. False: the backend
 * cannot tell. */
bool mu_rdzv_client_explain(struct mu_rdzv_client *s);
/** Leaves and frees the handler; `gone` follows. */
void mu_rdzv_client_free(struct mu_rdzv_client *s);
/** A round calls these: it is open; it cannot be (MUSTER_ERDZV_* and others); it has ended. */
void mu_rdzv_client_opened(struct mu_rdzv_client *s);
void mu_rdzv_client_not_opened(struct mu_rdzv_client *s, int status, const char *text);
void mu_rdzv_client_round_freed(struct mu_rdzv_client *s);

/* --- rdzv_round.c: on the loop ---------------------------------------------------------------- */

/**
 * Copies the assignment and opens what the parameters want: mu_rdzv_client_opened() or
 * _not_opened() follows. 1: it is open already, since nothing was wanted. MUSTER_ENOMEM,
 * MUSTER_EURL, MUSTER_EADDR.
 */
int mu_rdzv_round_open(struct mu_rdzv_client *s, const struct mu_rdzv_assignment *a,
                       struct mu_rdzv_round **ret_round, struct mu_errmsg *reterr_msg);
/** Closes it in the background. NULL is fine. */
void mu_rdzv_round_drop(struct mu_rdzv_round *r);

/* --- rendezvous.c ----------------------------------------------------------------------------- */

/** Makes a handler for one of our own backends. */
int mu_rdzv_client_new(muster_runtime *rt, const struct muster_rdzv_params *params,
                       muster_rdzv **ret_rdzv);

/* --- rdzv_record.c ---------------------------------------------------------------------------- */

/** Gives a record to the sink, if there is one. */
void mu_rdzv_tell(const struct muster_rdzv_record *record);

/* --- store.c ---------------------------------------------------------------------------------- */

/** Wraps a store of the loop in a public one; the store stays the caller's. Safe on any thread. */
muster_store *mu_api_store_wrap(muster_runtime *rt, struct mu_store *store);
/** Frees the wrapper; the store itself must have been closed. */
void mu_api_store_unwrap(muster_store *store);

#endif
