/*
 * The state of PyTorch's `etcd` rendezvous: the JSON text under `active_version`.
 *
 *     {"status": "setup"}
 *     {"status": "joinable", "version": "1", "participants": [0, 1]}
 *     {"status": "frozen", "version": "1", "participants": [0, 1], "keep_alives": ["/v_1/rank_0"]}
 *     {"status": "final", ..., "num_workers_waiting": 0}
 *     {"status": "closed", ...}                                 with the members it had before
 *
 * Writers compare the whole text, so a change is made to the text that was read: members keep their
 * order, and unknown members are copied as they are.
 */
#ifndef MU_RDZV_ETCD_STATE_H
#define MU_RDZV_ETCD_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/etcd/v2.h"
#include "core/buf.h"
#include "core/span.h"

#define MU_RETCD_STATE_MAX (4u << 20) /* bytes of a text: more than 30,000 nodes */

enum mu_retcd_status {
    MU_RETCD_SETUP = 1,
    MU_RETCD_JOINABLE,
    MU_RETCD_FROZEN,
    MU_RETCD_FINAL,
    MU_RETCD_CLOSED,
    MU_RETCD_OTHER, /* any other: PyTorch takes it for a change under way */
};

struct mu_retcd_state {
    enum mu_retcd_status status;
    uint64_t version;    /* 0: no version, which only setup, closed and other may have */
    size_t participants; /* how many there are */
    size_t keep_alives;
    uint64_t waiting; /* num_workers_waiting; of a final state only */
};

/**
 * Reads a text. MUSTER_EPROTO: it is not JSON or not an object, has no status or a known member
 * twice, or lacks what a state of its status must have.
 */
int mu_retcd_state_decode(struct mu_span text, struct mu_retcd_state *ret_state);

/* What to change. */
struct mu_retcd_edit {
    const char *status;     /* NULL: it stays */
    bool join;              /* one more participant, whose number is the count before */
    bool empty_keep_alives; /* begins the list, or empties it */
    const char *keep_alive; /* a path to add to the list, or NULL */
    bool set_waiting;
    uint64_t waiting;
};

/**
 * Appends the changed text to `out`. mu_retcd_state_decode() must have accepted the text.
 * MUSTER_ENOMEM, MUSTER_ELIMIT.
 */
int mu_retcd_state_edit(struct mu_span text, const struct mu_retcd_edit *edit, struct mu_buf *out);

/** Whether a path is among the keep-alives; paths are the same with and without a first slash.
 * MUSTER_ENOMEM. */
int mu_retcd_state_has(struct mu_span text, const char *path, bool *ret_has);
/**
 * The first keep-alive that is not among the nodes of a listing: 1, with the number after the last
 * `_` of its path, or UINT64_MAX if there is no number. 0: all are there. `except` (may be NULL)
 * may be missing. MUSTER_ENOMEM.
 */
int mu_retcd_state_missing(struct mu_span text, const struct mu_etcd2_reply *listing,
                           const char *except, uint64_t *ret_rank);

/* Extra data: one JSON object of texts. */

/** Appends the object with `key` set to `value`; an empty `text` is an empty object.
 * MUSTER_EPROTO: the text is not an object. */
int mu_retcd_extra_edit(struct mu_span text, struct mu_span key, struct mu_span value,
                        struct mu_buf *out);
/** Appends the value of `key`: 1, or 0 if it is absent. A text is decoded, any other value is
 * appended as it is written. MUSTER_EPROTO, MUSTER_ENOMEM. */
int mu_retcd_extra_get(struct mu_span text, struct mu_span key, struct mu_buf *out);

#endif
