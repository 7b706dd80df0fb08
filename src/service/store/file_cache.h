/*
 * The content of a FileStore's log, kept in memory, and the store's operations on it. Only the
 * holder of the file's lock may use it: an operation's records gather in `out`, and are appended to
 * the file before the outcome is reported. Keys are those of the file, with their leading '/'.
 */
#ifndef MU_FILE_CACHE_H
#define MU_FILE_CACHE_H

#include "codec/store/file_record.h"
#include "codec/store/op.h"
#include "core/err.h"
#include "core/file_log.h"
#include "core/map.h"

/* A longer file is not loaded, and no file may grow beyond this. */
#define MU_FILE_BYTES_MAX (UINT64_C(1) << 30)

struct mu_file_cache {
    struct mu_map map;
    uint64_t pos;        /* of the file: where the records that are in the map end */
    uint64_t size;       /* of the file when it was last read; a record that was cut off may lie
                            between `pos` and here */
    uint64_t generation; /* grows with every change */
    struct mu_buf out;   /* records that belong behind `pos` */
    struct mu_buf in;
};

/* The answer to an operation, in memory of its own. */
struct mu_file_answer {
    bool given;
    int status;
    int64_t number;
    struct mu_span *values;
    size_t value_count;
    struct mu_errmsg errmsg;
};

/** MUSTER_ENOMEM. */
int mu_file_cache_init(struct mu_file_cache *c, uint64_t seed);
void mu_file_cache_fini(struct mu_file_cache *c);
/** Forgets everything; the next read is from the start. */
void mu_file_cache_reset(struct mu_file_cache *c);
/**
 * Under the lock: reads what the file has behind `pos`, up to its `size`. A record that is cut off
 * at the end stays unread. MUSTER_ECORRUPT, MUSTER_ELIMIT, MUSTER_EDISK, MUSTER_ENOMEM.
 */
int mu_file_cache_read(struct mu_file_cache *c, struct mu_file_log *log, const char *path,
                       uint64_t size, struct mu_errmsg *reterr_msg);
/**
 * Under the exclusive lock, after mu_file_cache_read(): appends `out`, over a record that was cut
 * off. After an error nothing was written and the cache is empty. MUSTER_EDISK, MUSTER_ECORRUPT.
 */
int mu_file_cache_write(struct mu_file_cache *c, struct mu_file_log *log, const char *path,
                        struct mu_errmsg *reterr_msg);
/** Whether a FileStore supports the verb; if not, the text says so. */
bool mu_file_supports(const struct mu_store_request *q, struct mu_errmsg *reterr_msg);
/** Decides an operation, all of it or nothing. No answer is given if it has to wait for keys. */
void mu_file_cache_execute(struct mu_file_cache *c, const struct mu_store_request *q,
                           struct mu_file_answer *answer);
/** Frees what the answer holds; no answer is given any more. */
void mu_file_answer_clear(struct mu_file_answer *answer);
/** Says which of the keys are missing. */
void mu_file_cache_explain(const struct mu_file_cache *c, const struct mu_store_request *q,
                           struct mu_errmsg *reterr_msg);
/** Returns the value of a counter: 0 if it is absent, or not a number. */
int64_t mu_file_cache_counter(const struct mu_file_cache *c, struct mu_span key);

#endif
