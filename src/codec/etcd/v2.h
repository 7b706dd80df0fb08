/*
 * etcd's v2 API: forms go in, JSON comes back. Its keys are paths of text, its values text; PyTorch
 * writes base64 for both.
 */
#ifndef MU_ETCD_V2_H
#define MU_ETCD_V2_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/span.h"

/* The codes of its refusals that matter. */
#define MU_ETCD2_NOT_FOUND      100
#define MU_ETCD2_COMPARE_FAILED 101
#define MU_ETCD2_NOT_FILE       102
#define MU_ETCD2_NOT_DIR        104
#define MU_ETCD2_EXISTS         105
#define MU_ETCD2_ELECTION       301
#define MU_ETCD2_CLEARED        400
#define MU_ETCD2_OUTDATED       401

struct mu_etcd2_node {
    struct mu_span key; /* its whole path */
    struct mu_span value;
    int64_t modified;
    int64_t created;
    int64_t ttl_s; /* 0: for ever */
    bool dir;
    struct mu_span nodes; /* the decoder's own */
};

struct mu_etcd2_reply {
    struct mu_span action;       /* get, set, expire ... */
    struct mu_etcd2_node *nodes; /* the node, then all below it that are in the reply */
    size_t node_count;
    struct mu_etcd2_node prev;
    bool has_prev;
    /* A refusal: */
    int64_t code; /* 0: no refusal */
    struct mu_span message;
    struct mu_span cause;
    int64_t index;

    struct mu_buf bytes; /* the decoder's own */
    size_t node_cap;
};

/** Appends name=value to a form or a query, escaped, after a `&` if `out` is not empty. */
int mu_etcd2_field(struct mu_buf *out, const char *name, struct mu_span value);
/** Appends a path; everything except letters, digits, "-._~" and slashes is escaped. */
int mu_etcd2_path(struct mu_buf *out, struct mu_span path);

void mu_etcd2_reply_init(struct mu_etcd2_reply *r);
void mu_etcd2_reply_fini(struct mu_etcd2_reply *r);
/**
 * Reads one text; the previous reply is forgotten. Spans point into `text` or into the reply.
 * MUSTER_EPROTO, MUSTER_ENOMEM; the reply is then empty.
 */
int mu_etcd2_reply_decode(struct mu_etcd2_reply *r, struct mu_span text);

#endif
