/*
 * The messages between a client and a p2p daemon (libp2p's daemon control protocol with hivemind's
 * persistent connections): protocol buffers, each after its length as a uvarint.
 *
 * A connection begins with requests, each answered with a response. One request makes the
 * connection persistent: from then on both sides send calls, each with an id.
 *
 * Decoders take a message without its length, and point into it. Encoders append a message with its
 * length; all of them return 0, MUSTER_ELIMIT or MUSTER_ENOMEM.
 */
#ifndef MU_P2PD_MSG_H
#define MU_P2PD_MSG_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/span.h"

#define MU_P2PD_CALL_ID_LEN 16
/* How many bytes may surround the data of a call: ids, a name, heads. */
#define MU_P2PD_CALL_EXTRA 2048

/* --- requests --------------------------------------------------------------------------------- */

enum mu_p2pd_type {
    MU_P2PD_IDENTIFY = 0,
    MU_P2PD_CONNECT = 1,
    MU_P2PD_STREAM_OPEN = 2,
    MU_P2PD_STREAM_HANDLER = 3,
    MU_P2PD_DHT = 4,
    MU_P2PD_LIST_PEERS = 5,
    MU_P2PD_CONNMANAGER = 6,
    MU_P2PD_DISCONNECT = 7,
    MU_P2PD_PUBSUB = 8,
    MU_P2PD_UPGRADE = 9,
    MU_P2PD_REMOVE_STREAM_HANDLER = 10,
};
#define MU_P2PD_TYPE_MAX 10

enum mu_p2pd_dht_type {
    MU_P2PD_FIND_PEER = 0,
    MU_P2PD_FIND_PEERS_CONNECTED = 1,
    MU_P2PD_FIND_PROVIDERS = 2,
    MU_P2PD_GET_CLOSEST_PEERS = 3,
    MU_P2PD_GET_PUBLIC_KEY = 4,
    MU_P2PD_GET_VALUE = 5,
    MU_P2PD_SEARCH_VALUE = 6,
    MU_P2PD_PUT_VALUE = 7,
    MU_P2PD_PROVIDE = 8,
};

struct mu_p2pd_request {
    enum mu_p2pd_type type;
    bool given;         /* its parameters are present */
    struct mu_span all; /* the parameters: mu_p2pd_next_addr(), mu_p2pd_next_name() */
    uint64_t what;      /* DHT: enum mu_p2pd_dht_type; CONNMANAGER, PUBSUB: their own types */
    bool has_peer;      /* DHT, CONNMANAGER, where a peer is optional */
    struct mu_span peer;
    struct mu_span addr; /* of a handler */
    bool has_key;
    struct mu_span key; /* DHT */
    int64_t timeout_s;  /* 0: the default */
    bool balanced;
};

/** MUSTER_EPROTO: it cannot be read, lacks something required, or its type is unknown. */
int mu_p2pd_request_decode(struct mu_span in, struct mu_p2pd_request *ret);
/** Takes the next address of CONNECT off; false: there are no more. */
bool mu_p2pd_next_addr(const struct mu_p2pd_request *r, struct mu_span *walk, struct mu_span *ret);
/** Takes the next protocol name of STREAM_OPEN, STREAM_HANDLER and REMOVE_STREAM_HANDLER off.
 * `*walk` begins as r->all. */
bool mu_p2pd_next_name(const struct mu_p2pd_request *r, struct mu_span *walk, struct mu_span *ret);
/** For clients: writes a request with at most one address and one name (empty: left out). Uses
 * type, what, peer, addr, timeout_s, balanced, and has_peer, has_key for DHT. */
int mu_p2pd_request_encode(struct mu_buf *out, const struct mu_p2pd_request *r,
                           struct mu_span name);

/* --- responses -------------------------------------------------------------------------------- */

/* A peer and its addresses. */
struct mu_p2pd_peer {
    struct mu_span id;
    const struct mu_span *addrs;
    size_t addr_count;
};

int mu_p2pd_put_ok(struct mu_buf *out);
int mu_p2pd_put_error(struct mu_buf *out, const char *text);
int mu_p2pd_put_identify(struct mu_buf *out, const struct mu_p2pd_peer *self);
int mu_p2pd_put_peers(struct mu_buf *out, const struct mu_p2pd_peer *peers, size_t count);

struct mu_p2pd_stream_info {
    struct mu_span peer;
    struct mu_span addr;
    struct mu_span name;
};

/** Writes it as a response. */
int mu_p2pd_put_stream(struct mu_buf *out, const struct mu_p2pd_stream_info *info);
/** Writes it bare, which begins a connection to a handler. */
int mu_p2pd_put_stream_info(struct mu_buf *out, const struct mu_p2pd_stream_info *info);
int mu_p2pd_stream_info_decode(struct mu_span in, struct mu_p2pd_stream_info *ret);

enum mu_p2pd_dht_answer { MU_P2PD_DHT_BEGIN = 0, MU_P2PD_DHT_VALUE = 1, MU_P2PD_DHT_END = 2 };

/** Writes it as a response, or bare: one of those that follow a BEGIN. The peer (NULL) and the
 * value (empty) may be left out. */
int mu_p2pd_put_dht(struct mu_buf *out, bool bare, enum mu_p2pd_dht_answer answer,
                    const struct mu_p2pd_peer *peer, struct mu_span value);

/* A response, as clients read it. */
struct mu_p2pd_response {
    bool ok;
    struct mu_span error; /* the error's text, if it is not ok */
    struct mu_span peer;  /* IDENTIFY: the daemon; STREAM_OPEN: the other end */
    struct mu_span name;  /* STREAM_OPEN */
    uint32_t peers;       /* LIST_PEERS: how many */
};

/** MUSTER_EPROTO. */
int mu_p2pd_response_decode(struct mu_span in, struct mu_p2pd_response *ret);

/* --- calls ------------------------------------------------------------------------------------ */

enum mu_p2pd_call_kind {
    MU_P2PD_NOTHING = 0, /* only an id: it was done; from a client: an unknown kind */
    /* from a client */
    MU_P2PD_ADD_UNARY,
    MU_P2PD_CALL_UNARY,
    MU_P2PD_UNARY_RESPONSE, /* to a REQUEST */
    MU_P2PD_REMOVE_UNARY,
    /* from a daemon */
    MU_P2PD_CALL_RESPONSE, /* to a CALL_UNARY */
    MU_P2PD_REQUEST,       /* a peer's call, for the client to handle */
    MU_P2PD_DAEMON_ERROR,
    /* from either */
    MU_P2PD_CANCEL,
};

struct mu_p2pd_call {
    enum mu_p2pd_call_kind kind;
    struct mu_span id;
    struct mu_span peer; /* CALL_UNARY: the callee; REQUEST: the caller */
    struct mu_span name; /* ADD_UNARY, REMOVE_UNARY, CALL_UNARY, REQUEST */
    bool balanced;       /* ADD_UNARY */
    struct mu_span data; /* CALL_UNARY, REQUEST; DAEMON_ERROR: the text */
    struct mu_span
        body; /* UNARY_RESPONSE, CALL_RESPONSE: a response or an error, passed on as is */
};

/** Reads what a client has sent, or a peer's call or its answer. MUSTER_EPROTO. */
int mu_p2pd_call_decode(struct mu_span in, struct mu_p2pd_call *ret);
/** Reads what a daemon has sent. MUSTER_EPROTO. */
int mu_p2pd_answer_decode(struct mu_span in, struct mu_p2pd_call *ret);
/** Writes what either side sends, by its kind. */
int mu_p2pd_call_encode(struct mu_buf *out, const struct mu_p2pd_call *call);
/** How long it will be, with its length. */
size_t mu_p2pd_call_len(const struct mu_p2pd_call *call);
/** Reads the body of a response: its data, or its error. False: an error, or neither. */
bool mu_p2pd_body_decode(struct mu_span body, struct mu_span *ret_data);
/** Appends such a body; it has no length. */
int mu_p2pd_body_encode(struct mu_buf *out, bool error, struct mu_span data);

#endif
