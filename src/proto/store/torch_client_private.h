/* What torch_client.c (requests) and torch_client_answer.c (answers) share. */
#ifndef MU_TORCH_CLIENT_PRIVATE_H
#define MU_TORCH_CLIENT_PRIVATE_H

#include "codec/store/torch_wire.h"
#include "proto/store/torch_client.h"

/* What the next answer looks like. */
enum mu_torch_expect {
    MU_TORCH_EXPECT_PONG = 1, /* u32: the handshake's nonce */
    MU_TORCH_EXPECT_WAIT,     /* u8 */
    MU_TORCH_EXPECT_CANCEL, /* u8: WAIT_CANCELED, after a STOP_WAITING that crossed our CANCEL_WAIT
                             */
    MU_TORCH_EXPECT_CHECK,  /* u8 */
    MU_TORCH_EXPECT_ACK,    /* u8: READY, of the empty CHECK after a request without an answer */
    MU_TORCH_EXPECT_NUMBER, /* i64 */
    MU_TORCH_EXPECT_VALUES, /* `values` times length and bytes */
    MU_TORCH_EXPECT_POP,    /* i64; length and bytes unless it is 0 */
    MU_TORCH_EXPECT_LIST,   /* i64 count; as many keys */
};

/* A request in flight. */
struct mu_torch_flight {
    struct mu_list link;
    uint64_t tag;
    enum mu_store_verb verb;
    enum mu_torch_expect expect; /* the next answer */
    enum mu_torch_expect then;   /* the answer to the second step; 0 if there is no second step */
    bool alone;                  /* nothing may be submitted after it */
    bool blocking;
    size_t values; /* MU_TORCH_EXPECT_VALUES: how many */
    size_t extra_len;
    uint8_t extra[]; /* the request of the second step, or the desired value of compare_set */
};

#endif
