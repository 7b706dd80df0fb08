/*
 * How hivemind's peers call each other, each call on a stream of its own (as the p2p daemon
 * specifies it).
 *
 * Unary: one message in each direction, after its length as a uvarint: a call with its id, the
 * callee, the handler's name and the data; an answer with the same id and a response or an error.
 *
 * Streaming: each message follows a marker (0: an item; 1: an RPCError) and its length, eight
 * bytes, the most significant first. The caller ends its items with an empty error.
 */
#ifndef MU_PEER_FRAME_H
#define MU_PEER_FRAME_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/span.h"

#define MU_CALL_ID_LEN       16
#define MU_CALL_FRAME_MAX    (4u << 20) /* of a unary message, without its length */
#define MU_ITEM_HEAD_LEN     9
#define MU_ITEM_MARKER_DATA  0
#define MU_ITEM_MARKER_ERROR 1

enum mu_call_kind {
    MU_CALL_REQUEST = 1,
    MU_CALL_RESPONSE,
    MU_CALL_ERROR, /* the handler failed; `data` says how */
};

struct mu_call_frame {
    enum mu_call_kind kind;
    struct mu_span id;
    struct mu_span peer; /* REQUEST: the callee */
    struct mu_span name; /* REQUEST */
    struct mu_span data;
};

/** Appends the frame with its length. MUSTER_ELIMIT: it would be too long; MUSTER_ENOMEM. */
int mu_call_frame_encode(struct mu_buf *out, const struct mu_call_frame *frame);
/**
 * Reads the frame at the front of `in`, and points into it. 1: there is one, of `*ret_used` bytes
 * with its length; 0: more must come; MUSTER_EPROTO, MUSTER_ELIMIT.
 */
int mu_call_frame_decode(struct mu_span in, struct mu_call_frame *ret, size_t *ret_used);

/** Appends an item's head and its bytes. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_item_encode(struct mu_buf *out, uint8_t marker, struct mu_span message);
/** The same for an item that lies in two places. */
int mu_item_encode_two(struct mu_buf *out, uint8_t marker, struct mu_span a, struct mu_span b);
/** Appends an RPCError with that text; without a text, it ends the caller's items. */
int mu_item_error_encode(struct mu_buf *out, struct mu_span text);
/** Reads the head at the front: 1; 0: more must come; MUSTER_EPROTO: no such marker. */
int mu_item_head_decode(struct mu_span in, uint8_t *ret_marker, uint64_t *ret_len);
/** Reads the text of an RPCError, and points into it. MUSTER_EPROTO. */
int mu_item_error_decode(struct mu_span message, struct mu_span *ret_text);

#endif
