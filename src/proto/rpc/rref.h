/*
 * Remote references: which worker holds which value of which other, so that a value is freed when,
 * and only when, its last user is gone. A pure machine; service/rpc/rref_agent.c drives it over the
 * RPC agent.
 *
 * The owner has the value and a table of forks, one for each user anywhere. A user is one fork: it
 * came to be by CREATE (the value is made on another worker), or from a token that a parent sent
 * along with a call of its own.
 *
 *      user            owner                 parent P        child C          owner O
 *       |--- CREATE ---->| fork added           |--- token ---->|                |
 *       |<-- done -------| value is made        | (stays)       |---- FORK ----->| fork added
 *    confirmed           |                      |               |<--- done ------|
 *       :                :                      |<--- ACCEPT ---| confirmed      |
 *       |--- DELETE ---->| fork removed       may go            :                :
 *
 * The invariant: a user that is not confirmed is held by one that is. A parent says
 * DELETE only when its children are settled: the child has said ACCEPT, or is gone, or the token is
 * void. A child says ACCEPT only when the owner has said that it knows its fork. A user says DELETE
 * only when it is confirmed (or its CREATE failed, and may have arrived).
 *
 * Tokens. A token whose call has ended is canceled: the parent asks the child (CANCEL), which has
 * taken it by then or never will: the answer decides. What the child must remember is bounded by
 * what the parent has not settled: each message has the parent's floor.
 *
 * Lives. Names are used again, so each message and each answer has the sender's life. Another life
 * under the same name means that the one before is gone, with its forks; its late messages are
 * refused. So are those of a worker that was removed (mu_rref_peer_gone()). An owner asks holders
 * that were silent for a while for a sign of life (PROBE); a missing answer has no consequence.
 *
 * Messages are handed out again until they are answered or the other worker is gone. The driver
 * sends each as a call that runs at most once, so that a late repetition cannot follow a later
 * message; handing one out again does no harm.
 *
 * The driver: after any input, sends what mu_rref_next_op() hands out and reports the answer with
 * mu_rref_op_ended(); learns of users with mu_rref_next_changed(), frees the values of
 * mu_rref_next_dead(); comes again at mu_rref_deadline().
 */
#ifndef MU_RREF_H
#define MU_RREF_H

#include "codec/rpc/rref_msg.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/heap.h"
#include "core/list.h"
#include "core/map.h"
#include "core/time.h"

enum mu_rref_verb {
    MU_RREF_CREATE = 1,
    MU_RREF_FORK,
    MU_RREF_ACCEPT,
    MU_RREF_DELETE,
    MU_RREF_CANCEL,
    MU_RREF_PROBE,
};

struct mu_rref_config {
    char name[MU_RPC_WORKER_MAX + 1]; /* ours */
    uint64_t life;                    /* ours: random, and not 0 */
    uint64_t seed;
    uint32_t again_ms;     /* a message that failed is sent again after this, */
    uint32_t again_ms_max; /* twice that, and so on, up to this. 200, 5,000 */
    uint32_t probe_ms;     /* 10,000 */
    size_t values_max;     /* values that others may make us hold. 1,048,576 */
    size_t forks_max;      /* 4,194,304 */
    size_t peers_max;      /* 65,536 */
    bool hasty;            /* a planted bug for the simulator: a parent does not wait for its
                              children */
    bool leaky;            /* a planted bug: a worker that is restarted keeps what it held
                              before */
};

struct mu_rref_config mu_rref_config_defaults(void);

struct mu_rpc_in;
struct mu_rref_peer;
struct mu_rref_user;

enum mu_rref_op_state {
    MU_RREF_OP_IDLE = 0,
    MU_RREF_OP_QUEUED,
    MU_RREF_OP_OUT, /* mu_rref_op_ended() follows */
};

/* A message to a peer. */
struct mu_rref_op {
    enum mu_rref_verb verb;
    enum mu_rref_op_state state;
    struct mu_rref_peer *peer;
    struct mu_rref_msg msg; /* filled when it is handed out */
    struct mu_heap_node due;
    uint32_t failures;
};

#define MU_RREF_LIVES_MAX 8

/* A worker that holds or owns something, or gets tokens. */
struct mu_rref_peer {
    struct mu_map_node by_name;
    struct mu_list all;
    char name[MU_RPC_WORKER_MAX + 1];
    uint64_t life;                    /* 0: it was not heard yet */
    uint64_t gone[MU_RREF_LIVES_MAX]; /* lives that are over; the oldest is overwritten */
    size_t gone_count;
    bool removed;            /* its messages do not count */
    struct mu_list forks;    /* forks of our values */
    struct mu_list users;    /* our users of its values */
    struct mu_list taken;    /* our users from its tokens, which it was not told of yet */
    struct mu_list children; /* our tokens that are on their way to it */
    struct mu_list voids;    /* its tokens that are void, or were taken */
    uint64_t floor;          /* the floor of its tokens */
    mu_mono_t heard;
    struct mu_rref_op probe;
};

struct mu_rref_fork {
    struct mu_map_node by_id;
    struct mu_list link; /* value->forks */
    struct mu_list held; /* peer->forks */
    struct mu_rref_id id;
    struct mu_rref_value *value;
    struct mu_rref_peer *holder; /* NULL: this process */
};

/* A value of ours. */
struct mu_rref_value {
    struct mu_map_node by_id;
    struct mu_list forks;
    struct mu_list dead; /* table->dead */
    struct mu_rref_id id;
    /* For the driver. */
    bool ready;
    int status; /* 0, or the error of making it; `content` is the text then */
    struct mu_buf content;
    struct mu_list waiting;
    struct mu_list local;      /* users of this process that wait */
    struct mu_rpc_in *running; /* the call that makes it */
    bool buried;               /* dead; it only waits for the call that makes it */
};

/* A user in this process. */
struct mu_rref_user {
    struct mu_map_node by_fork;
    struct mu_list all;
    struct mu_list by_owner;  /* peer->users */
    struct mu_list by_parent; /* peer->taken */
    struct mu_list changed;   /* table->changed */
    struct mu_rref_id rref;
    struct mu_rref_id fork;
    struct mu_rref_peer *owner;  /* NULL: this process */
    struct mu_rref_peer *parent; /* must be told; NULL: it was told, or there is no parent */
    struct mu_rref_value *value; /* of this process */
    uint64_t owner_life;         /* 0: not known yet */
    bool creates;
    bool asked;        /* the owner has answered, or never will answer */
    bool there;        /* the owner may have our fork */
    bool released;     /* it is not used any more */
    uint32_t children; /* how many are not settled */
    int status;        /* 0, or why it cannot be used any more */
    struct mu_rref_op op;
    void *handle;  /* the driver's; NULL: changes are not told */
    void *payload; /* sent with CREATE; the driver takes it, else it is freed with mu_free() */
};

struct mu_rref_child;

struct mu_rref_table {
    struct mu_rref_config config;
    struct mu_map peers;
    struct mu_map values;
    struct mu_map forks;
    struct mu_map users;
    struct mu_map children;
    struct mu_list all_peers;
    struct mu_list all_users;
    struct mu_list pending; /* children by their numbers */
    struct mu_list changed;
    struct mu_list dead;
    struct mu_heap due;
    uint64_t number; /* the last number that was given */
    bool stopped;
};

void mu_rref_init(struct mu_rref_table *t, const struct mu_rref_config *config);
/** No message may be out, and no value may be `running`. */
void mu_rref_fini(struct mu_rref_table *t);
/** From now on nothing is sent. */
void mu_rref_stop(struct mu_rref_table *t);

/* --- users ------------------------------------------------------------------------------------ */

/** The value will be made by the worker `owner`: CREATE is handed out. MUSTER_ELIMIT, _ENOMEM. */
int mu_rref_create(struct mu_rref_table *t, mu_mono_t now, const char *owner, void *payload,
                   struct mu_rref_user **ret_user);
/** Makes a value of our own, and a user of it. MUSTER_ENOMEM. */
int mu_rref_create_here(struct mu_rref_table *t, struct mu_rref_user **ret_user);
/**
 * Makes a user from a token that came here. MUSTER_EPROTO (not a token), MUSTER_EEXIST (it was
 * taken), MUSTER_ECANCELED (it is void), MUSTER_ESESSION (its process is gone), MUSTER_ENOENT (we
 * owned the value and have freed it), MUSTER_ELIMIT, MUSTER_ENOMEM.
 */
int mu_rref_take(struct mu_rref_table *t, mu_mono_t now, struct mu_span token,
                 struct mu_rref_user **ret_user, struct mu_errmsg *reterr_msg);
static inline bool mu_rref_confirmed(const struct mu_rref_user *u)
{
    return u->asked && u->status == 0;
}
/**
 * Makes a token for the worker `child`. MUSTER_EAGAIN (the user is not confirmed yet), its own
 * status, MUSTER_ELIMIT, MUSTER_ENOMEM. `*ret_number` is for mu_rref_cancel().
 */
int mu_rref_fork(struct mu_rref_table *t, struct mu_rref_user *user, const char *child,
                 uint8_t ret_token[MU_RREF_TOKEN_MAX], size_t *ret_len, uint64_t *ret_number);
/** The call of the token has ended: it was delivered or never will be. Harmless for a settled
 * token. */
void mu_rref_cancel(struct mu_rref_table *t, mu_mono_t now, uint64_t number);
/** Releases a user, which may be freed at once. */
void mu_rref_release(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *user);

/* --- messages that came ----------------------------------------------------------------------- */

/**
 * Each returns a verdict, or a negative code (MUSTER_ENOMEM, MUSTER_ELIMIT, MUSTER_EPROTO), and
 * then nothing has changed but what is known of the sender. `*ret_value` of CREATE is the value to
 * make, or NULL: the message came before.
 */
int mu_rref_on_create(struct mu_rref_table *t, mu_mono_t now, const char *from,
                      const struct mu_rref_msg *msg, struct mu_rref_value **ret_value);
int mu_rref_on_fork(struct mu_rref_table *t, mu_mono_t now, const char *from,
                    const struct mu_rref_msg *msg);
int mu_rref_on_accept(struct mu_rref_table *t, mu_mono_t now, const char *from,
                      const struct mu_rref_msg *msg);
int mu_rref_on_delete(struct mu_rref_table *t, mu_mono_t now, const char *from,
                      const struct mu_rref_msg *msg);
int mu_rref_on_cancel(struct mu_rref_table *t, mu_mono_t now, const char *from,
                      const struct mu_rref_msg *msg);
int mu_rref_on_probe(struct mu_rref_table *t, mu_mono_t now, const char *from,
                     const struct mu_rref_msg *msg);
/** Returns the floor for messages and answers: the least number of a token that is not settled. */
uint64_t mu_rref_floor(const struct mu_rref_table *t);
struct mu_rref_value *mu_rref_find_value(struct mu_rref_table *t, struct mu_rref_id id);

/* --- workers ---------------------------------------------------------------------------------- */

/** Adds a worker, which may have been removed before. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_rref_peer_back(struct mu_rref_table *t, const char *name);
/** Removes a worker: it holds and owns nothing any more, and its late messages are refused. */
void mu_rref_peer_gone(struct mu_rref_table *t, mu_mono_t now, const char *name);

/* --- actions ---------------------------------------------------------------------------------- */

/** Returns the next message to send; NULL: no message is due. */
struct mu_rref_op *mu_rref_next_op(struct mu_rref_table *t, mu_mono_t now);
/** Returns the user of a CREATE. */
struct mu_rref_user *mu_rref_op_user(struct mu_rref_op *op);
/** The answer came (0), or the message failed. MUSTER_EWORKER: no worker of that name is known. */
void mu_rref_op_ended(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_op *op, int status,
                      const struct mu_rref_answer *answer);
/** Returns a user that was confirmed, or cannot be used any more; NULL: there is none. */
struct mu_rref_user *mu_rref_next_changed(struct mu_rref_table *t);
/** Returns a value without users, which the caller frees with mu_rref_value_free(). NULL: there is
 * none. */
struct mu_rref_value *mu_rref_next_dead(struct mu_rref_table *t);
void mu_rref_value_free(struct mu_rref_table *t, struct mu_rref_value *value);
mu_mono_t mu_rref_deadline(const struct mu_rref_table *t);

/* --- statistics ------------------------------------------------------------------------------- */

struct mu_rref_stats {
    size_t values;        /* PyTorch's num_owner_rrefs */
    size_t forks;         /* num_forks */
    size_t users;         /* in this process */
    size_t pending_users; /* num_pending_users: not confirmed yet */
    size_t children;      /* tokens that are not settled */
};

void mu_rref_stats(const struct mu_rref_table *t, struct mu_rref_stats *ret);

#endif
