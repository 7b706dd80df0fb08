/*
 * The messages of remote references, inside the messages of the RPC agent. docs/rpc.md, section
 * "Remote references".
 *
 * Everything except a value is one part of fixed length in memory, little-endian:
 *
 *     u64 life      of the sender: random from its start, so that a process is not taken for
 *                   the one that had its name before
 *     u64 floor     all tokens of the sender with a lower number are settled
 *     u64 u64       the reference: the life that made it, and a number
 *     u64 u64       the fork: the same
 *
 * In CREATE the method's name follows, and the arguments as further parts. The answer:
 *
 *     u64 life, u64 floor, u8 verdict
 *
 * A token is a fork on its way from a parent to a child:
 *
 *     u8 1, u64 u64 reference, u64 u64 fork, u64 life of the owner,
 *     u8 length and name of the owner, u8 length and name of the parent
 */
#ifndef MU_RREF_MSG_H
#define MU_RREF_MSG_H

#include "codec/rpc/msg.h"
#include "core/span.h"

/* The id of a reference or of a fork. Numbers begin with 1. */
struct mu_rref_id {
    uint64_t life;
    uint64_t number;
};

static inline bool mu_rref_id_equal(struct mu_rref_id a, struct mu_rref_id b)
{
    return a.life == b.life && a.number == b.number;
}

struct mu_rref_msg {
    uint64_t life;
    uint64_t floor;
    struct mu_rref_id rref;
    struct mu_rref_id fork;
};

enum mu_rref_verdict {
    MU_RREF_DONE = 0,
    MU_RREF_UNKNOWN = 1, /* FORK: there is no such value, or no longer */
    MU_RREF_VOID = 2,    /* CANCEL: the token was not taken, and never will be */
    MU_RREF_TAKEN = 3,   /* CANCEL: too late, it was taken */
    MU_RREF_STALE = 4,   /* the sender counted as gone, and no longer holds anything here */
};

struct mu_rref_answer {
    uint64_t life;
    uint64_t floor;
    enum mu_rref_verdict verdict;
};

struct mu_rref_token {
    struct mu_rref_id rref;
    struct mu_rref_id fork;
    uint64_t owner_life;
    char owner[MU_RPC_WORKER_MAX + 1];
    char parent[MU_RPC_WORKER_MAX + 1];
};

#define MU_RREF_MSG_LEN    48
#define MU_RREF_ANSWER_LEN 17
#define MU_RREF_TOKEN_MAX  (1 + 16 + 16 + 8 + 2 * (1 + MU_RPC_WORKER_MAX))

void mu_rref_msg_encode(uint8_t out[MU_RREF_MSG_LEN], const struct mu_rref_msg *msg);
/** Takes the message from the front of `*in`. MUSTER_EPROTO: it is too short, or a number is 0. */
int mu_rref_msg_decode(struct mu_span *in, struct mu_rref_msg *ret);
void mu_rref_answer_encode(uint8_t out[MU_RREF_ANSWER_LEN], const struct mu_rref_answer *answer);
/** MUSTER_EPROTO. */
int mu_rref_answer_decode(struct mu_span in, struct mu_rref_answer *ret);
/** Returns its length. */
size_t mu_rref_token_encode(uint8_t out[MU_RREF_TOKEN_MAX], const struct mu_rref_token *token);
/** MUSTER_EPROTO: it is not a token. */
int mu_rref_token_decode(struct mu_span in, struct mu_rref_token *ret);

#endif
