/*
 * The RPC agent's payloads of the native wire. docs/rpc.md, section "On the wire".
 *
 * A message is a list of parts, each with a device in the receiver's numbering (-1: in memory).
 * Calls, answers and items of a stream are messages:
 *
 *     u8 0, the bytes of one part in memory
 *     u8 1, u16 count, for each part (u64 length, i32 device), the bytes of all parts
 *
 * Messages of more than MU_RPC_MSG_LONG bytes are always written in the second form, so that the
 * receiver knows their length. Long ones travel in pieces: a CALL with the flag MORE has the head,
 * ITEMs have the bytes, END ends them; an answer is the ITEMs and the REPLY together. A call that
 * must run at most once has a key before its message:
 *
 *     16 bytes caller, u64 number, u64 floor, u8 whether it was sent before
 *
 * The credential of an agent's HELLO:
 *
 *     "MRPC", u8 1, i32 worker id (-1: no id), 16 bytes incarnation,
 *     u8 length and name of the worker to call ("": any)
 */
#ifndef MU_RPC_MSG_H
#define MU_RPC_MSG_H

#include "core/buf.h"
#include "core/span.h"

#define MU_RPC_CALL_MORE   1u /* ITEMs and END complete the message */
#define MU_RPC_CALL_STREAM 2u /* ITEMs are messages of their own */
#define MU_RPC_CALL_ONCE   4u /* a key comes first */
#define MU_RPC_CALL_FLAGS  7u

#define MU_RPC_MSG_LONG 65536

#define MU_RPC_PARTS_MAX      65535
#define MU_RPC_WORKER_MAX     127 /* bytes of a worker's name */
#define MU_RPC_CREDENTIAL_LEN (4 + 1 + 4 + 16 + 1 + MU_RPC_WORKER_MAX)
#define MU_RPC_KEY_LEN        33

struct mu_rpc_part {
    struct mu_span data;
    int32_t device; /* -1: in memory */
};

struct mu_rpc_key {
    uint8_t caller[16];
    uint64_t seq;
    uint64_t floor;
    bool again;
};

struct mu_rpc_card {
    int32_t id;
    uint8_t incarnation[16];
    struct mu_span meant;
};

/** Whether a name can be a worker's: 1 to 127 of A-Z a-z 0-9 - _ : */
bool mu_rpc_worker_name_ok(struct mu_span name);

/** Appends the head of a message of these parts, not their bytes. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_rpc_msg_head(struct mu_buf *out, const struct mu_rpc_part *parts, size_t count);
/**
 * Reads, from the beginning of a message with at least its head, the length of the head and of the
 * whole message. MUSTER_EPROTO: it has no length, or an impossible one.
 */
int mu_rpc_msg_total(struct mu_span first, size_t *ret_head, size_t *ret_total);
/** How many bytes the parts have; MUSTER_ELIMIT if the sum overflows. */
int mu_rpc_msg_size(const struct mu_rpc_part *parts, size_t count, size_t *ret_size);
/**
 * Reads a whole message. `*ret_parts` is allocated (free it with mu_free()); its spans point into
 * `in`. MUSTER_EPROTO, MUSTER_ENOMEM.
 */
int mu_rpc_msg_decode(struct mu_span in, struct mu_rpc_part **ret_parts, size_t *ret_count);

int mu_rpc_key_encode(struct mu_buf *out, const struct mu_rpc_key *key);
/** Takes the key from the front of `*in`. MUSTER_EPROTO. */
int mu_rpc_key_decode(struct mu_span *in, struct mu_rpc_key *ret);
int mu_rpc_card_encode(struct mu_buf *out, const struct mu_rpc_card *card);
int mu_rpc_card_decode(struct mu_span in, struct mu_rpc_card *ret);

#endif
