/* What the files of the decoder of flight recorder dumps share. */
#ifndef MU_FLIGHT_INTERNAL_H
#define MU_FLIGHT_INTERNAL_H

#include "codec/bin/pickle.h"
#include "codec/stacks/flight.h"

#define MU_FLIGHT_SHAPES 256

/* The keys that we read, of all dicts. MU_FIELD_NOT_LOOKED_UP is what a key is at first. */
#define MU_FLIGHT_FIELDS(X)                                                                        \
    X(VERSION, "version")                                                                          \
    X(PG_CONFIG, "pg_config")                                                                      \
    X(PG_STATUS, "pg_status")                                                                      \
    X(ENTRIES, "entries")                                                                          \
    X(PG_ID, "pg_id")                                                                              \
    X(PROCESS_GROUP, "process_group")                                                              \
    X(COLLECTIVE_SEQ, "collective_seq_id")                                                         \
    X(P2P_SEQ, "p2p_seq_id")                                                                       \
    X(OP_ID, "op_id")                                                                              \
    X(PROFILING_NAME, "profiling_name")                                                            \
    X(INPUT_SIZES, "input_sizes")                                                                  \
    X(INPUT_TYPES, "input_dtypes")                                                                 \
    X(OUTPUT_SIZES, "output_sizes")                                                                \
    X(OUTPUT_TYPES, "output_dtypes")                                                               \
    X(STATE, "state")                                                                              \
    X(CREATED, "time_created_ns")                                                                  \
    X(STARTED, "time_discovered_started_ns")                                                       \
    X(COMPLETED, "time_discovered_completed_ns")                                                   \
    X(DURATION, "duration_ms")                                                                     \
    X(TIMEOUT, "timeout_ms")                                                                       \
    X(IS_P2P, "is_p2p")                                                                            \
    X(RETIRED, "retired")                                                                          \
    X(FRAMES, "frames")                                                                            \
    X(NAME, "name")                                                                                \
    X(DESC, "desc")                                                                                \
    X(RANKS, "ranks")                                                                              \
    X(FILENAME, "filename")                                                                        \
    X(LINE, "line")                                                                                \
    X(LAST_ENQUEUED, "last_enqueued_collective")                                                   \
    X(LAST_STARTED, "last_started_collective")                                                     \
    X(LAST_COMPLETED, "last_completed_collective")

enum mu_flight_field {
    MU_FIELD_NOT_LOOKED_UP,
    MU_FIELD_OTHER,
#define X(name, text) MU_FIELD_##name,
    MU_FLIGHT_FIELDS(X)
#undef X
        MU_FIELD_COUNT,
};

/** The key. */
const char *mu_flight_field_name(enum mu_flight_field field);

/* What is known of a value of the pickle. PyTorch writes each text once and refers to it from then
 * on, so that all of this is found out once for each text, not once for each entry. */
struct mu_flight_note {
    uint32_t text;  /* where its copy is; 0: there is none yet */
    uint32_t group; /* one more than the group that has this name; 0: not looked up */
    uint8_t field;  /* as a key */
};

struct mu_flight_shape {
    uint64_t digest;
    uint32_t text;
};

struct mu_flight_decoder {
    struct mu_pickle p;
    struct mu_flight f;
    struct mu_flight_note *notes;
    size_t group_cap;
    size_t rank_cap;
    uint64_t steps; /* left */
    struct mu_flight_shape shapes[MU_FLIGHT_SHAPES];
    struct mu_errmsg *msg;
};

/* All return 0, or an error with its text. `what` names a part of the dump in that text. */
int mu_flight_refuse(struct mu_flight_decoder *d, const char *what);
int mu_flight_lack_memory(struct mu_flight_decoder *d);
/** Pays for a walk of so many steps: a pickle whose parts all refer to one large part would take as
 * good as forever otherwise. */
int mu_flight_pay(struct mu_flight_decoder *d, uint64_t steps);
/** Begins to walk a container of that kind, whose length is paid for. */
int mu_flight_walk(struct mu_flight_decoder *d, uint32_t number, enum mu_pickle_kind kind,
                   size_t count_max, const char *what, struct mu_pickle_walk *ret_walk);
int mu_flight_add_text(struct mu_flight_decoder *d, struct mu_span text, uint32_t *ret_text);
int mu_flight_read_text(struct mu_flight_decoder *d, uint32_t number, const char *what,
                        uint32_t *ret_text);
/** A whole number that is not negative; None counts as 0. */
int mu_flight_read_number(struct mu_flight_decoder *d, uint32_t number, const char *what,
                          uint64_t *ret);
/** The values of the fields in a dict; MU_PICKLE_NOTHING for those that it lacks. */
int mu_flight_find_fields(struct mu_flight_decoder *d, uint32_t dict, const char *what,
                          uint32_t found[MU_FIELD_COUNT]);

/* flight_tensors.c */
int mu_flight_read_sizes(struct mu_flight_decoder *d, uint32_t list, struct mu_flight_tensors *t);
int mu_flight_read_types(struct mu_flight_decoder *d, uint32_t list, struct mu_flight_tensors *t);

/* flight_group.c */
/** The group of that name, which is made if it is new. */
int mu_flight_meet_group(struct mu_flight_decoder *d, uint32_t name, uint32_t desc,
                         uint32_t *ret_group);
int mu_flight_read_config(struct mu_flight_decoder *d, uint32_t dict);
int mu_flight_read_status(struct mu_flight_decoder *d, uint32_t dict);

#endif
