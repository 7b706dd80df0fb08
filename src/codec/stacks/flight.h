/*
 * The dump of PyTorch's flight recorder: the last collectives of one rank, as it recorded them.
 * A rank writes it when a byte comes through its FIFO, when a collective times out, or when it is
 * asked to (`torch._C._distributed_c10d._dump_nccl_trace`). It is a pickle of protocol 2 without
 * classes:
 *
 *     {"version": "2.10",
 *      "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
 *      "pg_status": {"0": {"last_enqueued_collective": 118, "last_started_collective": 118,
 *                          "last_completed_collective": 117}},
 *      "entries": [{"record_id": 5, "pg_id": 0, "process_group": ("0", "default_pg"),
 *                   "collective_seq_id": 118, "p2p_seq_id": 0, "op_id": 118,
 *                   "profiling_name": "nccl:all_reduce", "state": "started",
 *                   "input_sizes": [[1024, 4]], "input_dtypes": ["Float"], ...,
 *                   "time_created_ns": ..., "duration_ms": 1.5, "timeout_ms": 600000,
 *                   "is_p2p": False, "frames": [{"name": ..., "filename": ..., "line": 81}, ...]}]}
 *
 * Versions 2.1 to 2.10 (PyTorch 2.4 to 2.15) differ in which keys there are: those that we do not
 * know are skipped, and those that are missing are left at zero. Entries are in the order in which
 * they were recorded; the recorder keeps the newest few thousand.
 *
 * In newer versions gloo records, too. It leaves all entries "scheduled" and only retires them when
 * they have ended, it has no times but of their creation, and it gives all groups the name "" in
 * pg_config.
 *
 *     struct mu_flight f;
 *     mu_flight_init(&f);
 *     err = mu_flight_decode(&f, bytes, &msg);
 *     for (i < f.entry_count) mu_flight_text(&f, f.entries[i].name) ...
 *     mu_flight_fini(&f);
 *
 * A decoded dump owns what it holds; texts are printable, terminated, and cut at
 * MU_FLIGHT_TEXT_MAX bytes. Nothing in it is believed: a worker writes what it likes.
 */
#ifndef MU_FLIGHT_H
#define MU_FLIGHT_H

#include "core/buf.h"
#include "core/err.h"
#include "core/span.h"

#define MU_FLIGHT_BYTES_MAX   ((size_t)32 << 20) /* of a dump: 20,000 entries with C++ stacks */
#define MU_FLIGHT_ENTRIES_MAX 65536
#define MU_FLIGHT_GROUPS_MAX  4096
#define MU_FLIGHT_RANKS_MAX   ((size_t)1 << 20) /* members of all groups, counted together */
#define MU_FLIGHT_TEXT_MAX    255               /* bytes of a text; longer ones are cut */

enum mu_flight_state {
    MU_FLIGHT_SCHEDULED = 1, /* the rank has entered it; its kernel waits for a turn */
    MU_FLIGHT_STARTED,
    MU_FLIGHT_COMPLETED,
};

/* The inputs or the outputs of an operation. */
struct mu_flight_tensors {
    uint64_t sizes_digest; /* equal sizes have equal digests, also where the text was cut */
    uint64_t types_digest;
    uint64_t elements; /* in all tensors together; saturates */
    uint32_t sizes;    /* a text, "[[1024, 4]]" */
    uint32_t types;    /* a text, "[Float]" */
};

struct mu_flight_entry {
    uint64_t seq; /* the group's number of the collective; of a message, of that */
    uint64_t op;  /* counts the operations of a coalesced collective as well */
    struct mu_flight_tensors inputs;
    struct mu_flight_tensors outputs;
    uint64_t created_ns; /* on the rank's wall clock; 0 for each that is not known */
    uint64_t started_ns;
    uint64_t completed_ns;
    uint64_t duration_ns; /* measured by the GPU; 0 if it was not */
    uint64_t timeout_ms;
    uint32_t group;    /* an index of `groups` */
    uint32_t name;     /* texts: "all_reduce", or "recv 3<-0" */
    uint32_t function; /* of the innermost frame of the user's; empty texts if there is none */
    uint32_t file;
    uint32_t line;
    uint8_t state; /* enum mu_flight_state */
    bool p2p;      /* a message between two ranks, not a collective */
    bool retired;  /* PyTorch has let go of it */
    bool gloo;     /* recorded by gloo, not by NCCL */
    bool ended;    /* it is completed, by its state or by what gloo says instead */
};

struct mu_flight_group {
    uint32_t name; /* texts: "0", and "default_pg" */
    uint32_t desc;
    uint32_t first; /* its members are `ranks[first]` and so on, in the group's order */
    uint32_t count; /* 0: they are not known */
    uint64_t id;    /* pg_id, by which pg_status names it; UINT64_MAX: not known */
    int64_t enqueued;
    int64_t started;
    int64_t completed; /* the newest of each; -1: none, or not known */
};

struct mu_flight {
    struct mu_flight_entry *entries;
    size_t entry_count;
    struct mu_flight_group *groups;
    size_t group_count;
    uint32_t *ranks;
    size_t rank_count;
    char *texts; /* terminated, one behind the other; the first is empty */
    size_t text_len;
    size_t text_cap;
    uint32_t version; /* a text */
};

void mu_flight_init(struct mu_flight *f);
void mu_flight_fini(struct mu_flight *f);

/**
 * Decodes a dump, which is all of `in`. MUSTER_ECORRUPT: it is damaged, of another version, or not
 * a dump. MUSTER_ELIMIT: it is larger than the limits above. MUSTER_ENOMEM. All have a text. After
 * an error, `f` is empty.
 */
int mu_flight_decode(struct mu_flight *f, struct mu_span in, struct mu_errmsg *reterr_msg);

/**
 * Writes a shorter dump into `out`, which is empty, and as long as its maximum allows: all groups,
 * and of each the entries around the first that has not ended. It says as much as the whole one to
 * who compares it with those of other ranks (proto/stacks/flight_compare.h), but has no times.
 * MUSTER_ELIMIT: the least that makes sense does not fit; MUSTER_ENOMEM. `out` is empty then.
 */
int mu_flight_brief(const struct mu_flight *f, struct mu_buf *out);

static inline const char *mu_flight_text(const struct mu_flight *f, uint32_t text)
{
    return f->texts == NULL ? "" : f->texts + text;
}

#endif
