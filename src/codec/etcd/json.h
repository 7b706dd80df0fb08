/*
 * etcd's v3 API as its JSON gateway speaks it: POST, keys and values in base64, 64-bit numbers in
 * quotes, and replies that leave out what is zero, false or empty. One struct holds every reply;
 * what a reply leaves out is zero in it.
 */
#ifndef MU_ETCD_JSON_H
#define MU_ETCD_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/span.h"

/* --- requests: each appends one JSON text. MUSTER_ELIMIT, MUSTER_ENOMEM; nothing appended ----- */

enum mu_etcd_op_kind {
    MU_ETCD_RANGE = 1,
    MU_ETCD_PUT,
    MU_ETCD_DELETE,
};

/* A request of its own, or a part of a transaction. */
struct mu_etcd_op {
    enum mu_etcd_op_kind kind;
    struct mu_span key;
    struct mu_span end; /* range, delete: the end, exclusive; empty: the one key */
    struct mu_span value;
    int64_t lease;    /* put; 0: no lease */
    int64_t limit;    /* range; 0: all */
    int64_t revision; /* range: as of then; 0: now */
    bool keys_only;
    bool count_only;
    bool by_creation;   /* range: the oldest first */
    bool newest_first;  /* with it: the newest first */
    int64_t create_max; /* range: only keys created up to here; 0: all */
    bool prev_kv;       /* put, delete */
};

enum mu_etcd_target {
    MU_ETCD_MOD = 1, /* of a missing key: 0 */
    MU_ETCD_CREATE,
    MU_ETCD_VERSION,
    MU_ETCD_VALUE, /* of a missing key: never true */
    MU_ETCD_LEASE,
};

struct mu_etcd_compare {
    struct mu_span key;
    enum mu_etcd_target target;
    enum {
        MU_ETCD_EQUAL = 0,
        MU_ETCD_GREATER,
        MU_ETCD_LESS,
        MU_ETCD_NOT_EQUAL,
    } result;
    int64_t number;
    struct mu_span value; /* MU_ETCD_VALUE */
};

struct mu_etcd_txn {
    const struct mu_etcd_compare *compares;
    size_t compare_count;
    const struct mu_etcd_op *success;
    size_t success_count;
    const struct mu_etcd_op *failure;
    size_t failure_count;
};

struct mu_etcd_watch_request {
    struct mu_span key;
    struct mu_span end;
    int64_t start_revision;
    bool prev_kv;
    bool no_delete; /* puts only */
};

/** The path that an operation is posted to, such as "/v3/kv/range". */
const char *mu_etcd_op_path(enum mu_etcd_op_kind kind);
int mu_etcd_encode_op(struct mu_buf *out, const struct mu_etcd_op *op);
int mu_etcd_encode_txn(struct mu_buf *out, const struct mu_etcd_txn *txn);
int mu_etcd_encode_watch(struct mu_buf *out, const struct mu_etcd_watch_request *watch);
/** {"TTL":"..."}; with an id of 0 the server chooses. */
int mu_etcd_encode_grant(struct mu_buf *out, int64_t ttl_s, int64_t id);
/** {"ID":"..."}, for keep-alive and revoke; with `keys`, for a time to live with its keys. */
int mu_etcd_encode_lease(struct mu_buf *out, int64_t id, bool keys);
int mu_etcd_encode_auth(struct mu_buf *out, struct mu_span name, struct mu_span password);

/**
 * Appends the end of the range of all keys that begin with `prefix`. An empty prefix means all
 * keys, and so does one of 0xff only.
 */
int mu_etcd_prefix_end(struct mu_buf *out, struct mu_span prefix);

/* --- replies ---------------------------------------------------------------------------------- */

struct mu_etcd_kv {
    struct mu_span key;
    struct mu_span value;
    int64_t create_revision;
    int64_t mod_revision;
    int64_t version;
    int64_t lease;
};

struct mu_etcd_event {
    bool deleted;
    bool has_prev;
    struct mu_etcd_kv kv; /* deleted: only its key and mod_revision */
    struct mu_etcd_kv prev;
};

/* The answer to one operation. */
struct mu_etcd_result {
    enum mu_etcd_op_kind kind; /* in a transaction; 0 in a single operation */
    struct mu_etcd_kv *kvs;    /* also the previous ones, if they were asked for */
    size_t kv_count;
    int64_t count; /* range: how many keys there are, whatever the limit */
    int64_t deleted;
    bool more;
};

struct mu_etcd_reply {
    int64_t revision;               /* the store's revision when it answered */
    bool succeeded;                 /* a transaction's compares */
    struct mu_etcd_result *results; /* one, or one for each operation of the branch */
    size_t result_count;
    int64_t lease_id;
    int64_t ttl_s; /* -1: the lease, asked for its time to live, has ended */
    int64_t granted_s;
    size_t lease_keys; /* how many keys it has, if asked for */
    struct mu_span token;
    struct mu_span version; /* of the server */
    /* A piece of a watch. */
    bool created;
    bool canceled;
    int64_t compact_revision;
    struct mu_etcd_event *events;
    size_t event_count;
    /* A refusal. */
    bool is_error;
    int64_t code; /* gRPC's */
    struct mu_span message;

    /* Private to the decoder: what the spans above point into, beside the text. */
    struct mu_buf bytes;
    struct mu_etcd_kv *kvs;
    size_t kv_count;
    size_t kv_cap;
};

/* gRPC's codes that matter. */
#define MU_ETCD_INVALID       3
#define MU_ETCD_NOT_FOUND     5
#define MU_ETCD_DENIED        7
#define MU_ETCD_EXHAUSTED     8
#define MU_ETCD_PRECONDITION  9
#define MU_ETCD_OUT_OF_RANGE  11
#define MU_ETCD_UNIMPLEMENTED 12
#define MU_ETCD_UNAVAILABLE   14
#define MU_ETCD_UNAUTHORIZED  16

/** Call this before the first decode. */
void mu_etcd_reply_init(struct mu_etcd_reply *r);
void mu_etcd_reply_fini(struct mu_etcd_reply *r);
/**
 * Reads one text, whichever call it answers; the previous reply is forgotten. Spans point into
 * `text` or into the reply and are valid as long as both. MUSTER_EPROTO: it is not JSON, or a
 * number or base64 in it is invalid; MUSTER_ENOMEM. The reply is then empty.
 */
int mu_etcd_reply_decode(struct mu_etcd_reply *r, struct mu_span text);

#endif
