/*
 * One connection of a client that speaks PyTorch's TCPStore protocol, server side: a stream machine
 * that executes what it reads on a keyspace and writes the answers. The first bytes tell the
 * generation: 1.13 and 2.0, or 2.1 onward. docs/torch-wire.md has the bytes.
 *
 * The keyspace is shared by all connections and is handed to every call that may touch it. After
 * each such call the owner pulls mu_ks_next_ready() and mu_ks_next_change() and passes what belongs
 * to this connection back in through _wake() and _changed().
 *
 * The protocol has no error frame: a client that breaks a rule loses its connection. recv then
 * returns the error, mu_torch_server_errmsg() has the text for the log, and every further input
 * returns the same error. Answers to what came before the bad request are still in the output.
 *
 * Backpressure: while more than `output_bytes_high` of answers wait to be sent, recv uses nothing;
 * nor does it while a request of it is `blocked`, because gateways hold keys that it changes.
 * Large values in an answer are not copied: the output points to them in the keyspace.
 *
 * Memory: a connection with no half-sent request and no unsent answer holds nothing but this
 * struct and its registrations in the keyspace.
 */
#ifndef MU_TORCH_SERVER_H
#define MU_TORCH_SERVER_H

#include "core/buf.h"
#include "core/err.h"
#include "core/span.h"
#include "proto/store/holds.h"
#include "proto/store/keyspace.h"

struct mu_torch_limits {
    size_t key_bytes_max; /* lengths are checked as soon as they are read, before the bytes */
    size_t value_bytes_max;
    size_t keys_max;          /* keys named by one request */
    size_t request_bytes_max; /* one request in all: limits what a half-sent one can hold. 64 MiB */
    size_t output_bytes_high; /* reading stops above this. 256 KiB */
    size_t output_bytes_max;  /* answers to one request may take this much in all. 256 MiB */
    size_t watches_max;       /* WATCH_KEY registrations of one connection. 1024 */
};

struct mu_torch_limits mu_torch_limits_defaults(void);

enum mu_torch_generation {
    MU_TORCH_UNDECIDED = 0,
    MU_TORCH_1, /* 1.13 and 2.0: opcodes 0-12, no handshake */
    MU_TORCH_2, /* 2.1 onward: VALIDATE first, opcodes 1-18 */
};

/*
 * A request that is not executed here, see mu_torch_server_next_request(). Its keys are as on the
 * wire; its executor may change the spans in `parts`, in which the keys come first.
 */
struct mu_torch_request {
    uint8_t op; /* enum mu_torch_op */
    struct mu_store_request request;
    struct mu_span *parts;
    struct mu_torch_server *server; /* NULL: the connection is gone, and the answer is not needed */
    void *impl;                     /* the executor's */
    struct mu_list link;            /* private from here */
    size_t memory;
    uint32_t state;
    uint8_t ping[4];
};

struct mu_torch_server {
    void *owner; /* the caller's; also the owner of its wait and its watches in the keyspace */
    const struct mu_torch_limits *limits; /* borrowed for the machine's life; shared by all */
    enum mu_torch_generation generation;
    int poison;
    struct mu_buf in;    /* the head of a request whose rest has not come yet */
    struct mu_buf out;   /* answers, without the large values */
    struct mu_list lent; /* the large values, which go in between; private, as all that follows */
    size_t lent_bytes;   /* of these, how much is not sent */
    size_t lent_before;  /* of `out`, how much goes before the last of them */
    size_t lent_memory;
    struct mu_ks_wait wait; /* the pending WAIT, if any */
    struct mu_list watches;
    uint32_t watch_count;
    uint32_t out_hint;  /* private: how much was sent at once last time */
    size_t scan_offset; /* private: how far the current request was checked already */
    uint64_t scan_left; /* how many of its parts have not shown their length yet */
    char *errmsg;       /* NULL until something went wrong */
    /* Requests that another executor handles. */
    struct mu_list deferred; /* in the order in which they came */
    struct mu_list dropped;  /* those that the executor still has, though no answer is owed */
    size_t deferred_count;
    size_t deferred_bytes;
    /* NULL, or those that may answer for keys elsewhere, who are asked before a key is changed; the
     * owner sets it. */
    struct mu_holds *holds;
    struct mu_hold_writer *writer; /* of a request that waits for keys to be given back, or NULL */
    /* By that; the owner clears it when the writer's turn has come, and feeds again. */
    bool blocked;
    bool agent; /* generation 1: it is an agent that takes part in a rendezvous */
    bool cut;   /* an answer was an error: later requests get no answer */
};

void mu_torch_server_init(struct mu_torch_server *t, const struct mu_torch_limits *limits,
                          void *owner);
/** Cancels its wait and watches. */
void mu_torch_server_fini(struct mu_torch_server *t, struct mu_keyspace *ks);

/**
 * Returns whether the first bytes of a connection are for this machine: 1 yes, 0 no, MUSTER_EAGAIN:
 * more bytes are needed. Only byte 0 matters: opcodes end at 18.
 */
int mu_torch_server_sniff(struct mu_span first);

/**
 * Takes bytes. `*ret_used` is less than all of them only under backpressure. Errors: MUSTER_EPROTO,
 * MUSTER_ELIMIT, MUSTER_EFULL, MUSTER_ENOTNUM, MUSTER_ENOENT (a GET of an absent key, generation
 * 1), MUSTER_ENOMEM.
 */
int mu_torch_server_recv(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span in,
                         size_t *ret_used);
/** Returns the connection of a wait or watch. */
static inline struct mu_torch_server *mu_torch_server_of_wait(struct mu_ks_wait *wait)
{
    return MU_CONTAINER_OF(wait, struct mu_torch_server, wait);
}
struct mu_torch_server *mu_torch_server_of_watch(struct mu_ks_watch *watch);
/** The connection's wait ended (mu_ks_next_ready() returned it). MUSTER_ENOMEM. */
int mu_torch_server_wake(struct mu_torch_server *t, struct mu_ks_wait *wait);
/**
 * A key it watches changed (mu_ks_next_change() returned it). MUSTER_EOVERFLOW if the reader is so
 * slow that over `output_bytes_max` would wait for it, MUSTER_ENOMEM.
 */
int mu_torch_server_changed(struct mu_torch_server *t, struct mu_ks_watch *watch,
                            const struct mu_change *change);

/*
 * Requests that another executor handles: if the keys are not in a local keyspace, all calls are
 * made with NULL in its place. Then mu_torch_server_recv() only parses requests, up to
 * MU_TORCH_DEFERRED_MAX of them, and uses nothing while so many wait.
 *
 *     while ((r = mu_torch_server_next_request(t)) != NULL) { execute it, in this order }
 *     while ((r = mu_torch_server_next_dropped(t)) != NULL) { stop it; mu_torch_request_free(r); }
 *     mu_torch_server_answer(t, r, 0, &reply, NULL);
 *
 * Answers are given in the order of the requests, except that of a WAIT. A request whose connection
 * is gone (r->server is NULL) is executed nevertheless, unless it is a WAIT, and freed. Requests
 * before one that breaks a rule are executed and answered as usual.
 */
#define MU_TORCH_DEFERRED_MAX 1024
/** Returns whether so many requests wait that no more are taken. */
bool mu_torch_server_is_full(const struct mu_torch_server *t);
/** Returns whether requests other than WAITs must still be answered and can be. */
bool mu_torch_server_owes(const struct mu_torch_server *t);
/** Returns the next request to execute; NULL if there is none. */
struct mu_torch_request *mu_torch_server_next_request(struct mu_torch_server *t);
/** Returns a WAIT that needs no answer any more; the caller stops and frees it. */
struct mu_torch_request *mu_torch_server_next_dropped(struct mu_torch_server *t);
/**
 * Takes the request and answers it. `status` MUSTER_ENOENT: a get or pop found nothing. Other
 * statuses poison the machine; the errors are those of mu_torch_server_recv(). A WATCH_KEY stays
 * with the caller, which reports changes with mu_torch_server_told() and frees it in the end.
 */
int mu_torch_server_answer(struct mu_torch_server *t, struct mu_torch_request *r, int status,
                           const struct mu_store_reply *reply, const char *text);
/** A key of a WATCH_KEY has changed; `key` as on the wire. Otherwise the same as
 * mu_torch_server_changed(). */
int mu_torch_server_told(struct mu_torch_server *t, struct mu_span key,
                         const struct mu_change *change);
void mu_torch_request_free(struct mu_torch_request *r);

/** Returns the first answers to send in up to `cap` spans, and their number. Lent until the next
 * call. */
size_t mu_torch_server_output(const struct mu_torch_server *t, struct mu_span *spans, size_t cap);
/** Returns how many bytes these are in all. */
static inline size_t mu_torch_server_output_len(const struct mu_torch_server *t)
{
    return t->out.len + t->lent_bytes;
}
/** `n` bytes of the output were sent. */
void mu_torch_server_sent(struct mu_torch_server *t, size_t n);
/** Returns how much memory is held besides the struct, without the keyspace's values. */
size_t mu_torch_server_memory(const struct mu_torch_server *t);
/** Returns why it was poisoned, or "". */
const char *mu_torch_server_errmsg(const struct mu_torch_server *t);

#endif
