/*
 * One connection of a client that speaks PyTorch's TCPStore protocol, server side: a stream machine
 * that executes what it reads on a keyspace and writes the answers. Both generations (1.13
 * with 2.0, and 2.1 onward) are told apart by the first bytes. docs/torch-wire.md has the bytes.
 *
 * The keyspace is shared by all connections and is handed to every call that may touch it. After
 * each such call the owner pulls mu_ks_next_ready() and mu_ks_next_change() and passes what belongs
 * to this connection back in through _wake() and _changed().
 *
 * The protocol has no error frame: what breaks a rule loses its connection. recv then returns the
 * error, mu_torch_server_errmsg() says why in words for the log, and every further input returns
 * the same error. Answers to what came before the bad request are still in the output.
 *
 * Backpressure: while more than `output_bytes_high` of answers wait to be sent, recv uses nothing.
 *
 * Memory: a connection with no half-sent request and no unsent answer holds nothing but this
 * struct and its registrations in the keyspace.
 */
#ifndef MU_TORCH_SERVER_H
#define MU_TORCH_SERVER_H

#include "core/buf.h"
#include "core/err.h"
#include "core/span.h"
#include "proto/keyspace.h"

struct mu_torch_limits {
    size_t key_bytes_max; /* lengths are checked as soon as they are read, before the bytes */
    size_t value_bytes_max;
    size_t keys_max;          /* keys named by one request */
    size_t request_bytes_max; /* one request in all: bounds what a half-sent one can hold. 64 MiB */
    size_t output_bytes_high; /* stop reading above this. 256 KiB */
    size_t output_bytes_max;  /* answers to one request may take this much in all. 256 MiB */
    size_t watches_max;       /* WATCH_KEY registrations of one connection. 1024 */
};

struct mu_torch_limits mu_torch_limits_defaults(void);

enum mu_torch_generation {
    MU_TORCH_UNDECIDED = 0,
    MU_TORCH_1, /* 1.13 and 2.0: opcodes 0-12, no handshake */
    MU_TORCH_2, /* 2.1 onward: VALIDATE first, opcodes 1-18 */
};

struct mu_torch_server {
    void *owner; /* the caller's; also the owner of its wait and its watches in the keyspace */
    const struct mu_torch_limits *limits; /* borrowed for the machine's life; shared by all */
    enum mu_torch_generation generation;
    int poison;
    struct mu_buf in; /* the head of a request whose rest has not come yet */
    struct mu_buf out;
    struct mu_ks_wait wait; /* the pending WAIT, if any */
    struct mu_list watches;
    uint32_t watch_count;
    uint32_t out_hint;  /* private: how much was sent at once the last time */
    size_t scan_offset; /* private: how far the request at hand was checked already, */
    uint64_t scan_left; /* and how many of its parts have not shown their length yet */
    char *errmsg;       /* NULL until something went wrong */
};

void mu_torch_server_init(struct mu_torch_server *t, const struct mu_torch_limits *limits,
                          void *owner);
/** Cancels its wait and watches. */
void mu_torch_server_fini(struct mu_torch_server *t, struct mu_keyspace *ks);

/**
 * Whether the first bytes of a connection are for this machine: 1 yes, 0 no, MUSTER_EAGAIN for more
 * bytes. Only byte 0 matters: opcodes end at 18.
 */
int mu_torch_server_sniff(struct mu_span first);

/**
 * Takes bytes. `*ret_used` is less than all of them only under backpressure. Errors: MUSTER_EPROTO,
 * MUSTER_ELIMIT, MUSTER_EFULL, MUSTER_ENOTNUM, MUSTER_ENOENT (a GET of an absent key, generation
 * 1), MUSTER_ENOMEM.
 */
int mu_torch_server_recv(struct mu_torch_server *t, struct mu_keyspace *ks, struct mu_span in,
                         size_t *ret_used);
/** The connection whose wait or watch this is. */
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

/** Answers to send; lent until the next call. */
static inline struct mu_span mu_torch_server_output(const struct mu_torch_server *t)
{
    return mu_buf_span(&t->out);
}
/** `n` bytes of the output were sent. */
void mu_torch_server_sent(struct mu_torch_server *t, size_t n);
/** Memory held beside the struct. */
size_t mu_torch_server_memory(const struct mu_torch_server *t);
/** Why it was poisoned, or "". */
const char *mu_torch_server_errmsg(const struct mu_torch_server *t);

#endif
