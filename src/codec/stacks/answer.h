/*
 * What a node answers to whoever asks for the stacks of a run: the reports of its workers, one
 * after the other.
 *
 *     version      1 byte
 *     head         its length (4 bytes), then workers, left_out, cut and world (4 bytes each), the
 *                  node's name after its length (2 bytes), and how long all flights are (4 bytes)
 *     reports      each after its length (4 bytes); see codec/stacks/report.h
 *     flights      each after its length (4 bytes): a rank (4 bytes), then 1 and the dump of its
 *                  flight recorder, shortened (codec/stacks/flight.h), or 0 and why there is none
 *
 * A later version of the sender may append fields to the head: its length lets a reader skip what
 * it does not know. The whole is bounded. Of a report that does not fit, its main thread alone is
 * sent (`cut`); what does not fit even so is left out. Both are counted.
 *
 *     mu_stacks_answer_begin(&w, &answer, MU_STACKS_ANSWER_BYTES_MAX);
 *     for each worker: mu_stacks_answer_add(&w, report, main_only);
 *     for each worker with a flight recorder: mu_stacks_answer_add_flight(&w, &flight);
 *     ... mu_stacks_answer_end(&w) ...        the bytes, until the next call
 *     mu_stacks_answer_fini(&w);
 */
#ifndef MU_STACKS_ANSWER_H
#define MU_STACKS_ANSWER_H

#include "codec/stacks/report.h"

#define MU_STACKS_ANSWER_BYTES_MAX (512u << 10) /* an etcd takes no more than thrice that */

struct mu_stacks_answer {
    struct mu_span node; /* its name, at most MU_STACKS_NAME_MAX bytes */
    uint32_t workers;    /* that it has */
    uint32_t left_out;   /* of these: for whose report there was no room */
    uint32_t cut;        /* of these: whose report has only the main thread, for lack of room */
    uint32_t world;      /* workers of all nodes; 0: not known */
    struct mu_span reports;
    struct mu_span flights; /* empty: no worker has a flight recorder */
};

struct mu_stacks_flight {
    uint32_t rank;
    struct mu_span dump; /* empty: there is none, and `note` says why */
    struct mu_span note; /* at most MU_STACKS_NOTE_MAX bytes */
};

/**
 * Reads the head; the reports are checked one by one. MUSTER_EPROTO: it is malformed, or of another
 * version; MUSTER_ELIMIT: it is too long.
 */
int mu_stacks_answer_decode(struct mu_span in, struct mu_stacks_answer *ret_answer);
/**
 * Takes the next report off; it borrows from the input. MUSTER_ENOENT: there are no more.
 * MUSTER_EPROTO, MUSTER_ELIMIT: this one cannot be read. Either it was skipped, and the next may be
 * taken, or nothing is left.
 */
int mu_stacks_answer_next(struct mu_span *reports, struct mu_stacks_report *ret_report);

/** Takes the next flight off, likewise. */
int mu_stacks_answer_next_flight(struct mu_span *flights, struct mu_stacks_flight *ret_flight);

/* --- to make one ------------------------------------------------------------------------------ */

struct mu_stacks_answer_writer {
    struct mu_buf out;
    uint32_t left_out;
    uint32_t cut;
    uint32_t flights; /* bytes */
};

/** `bytes_max`: of the whole, at least 1,024. The fields of `head` before `left_out`, and `world`,
 * are copied. MUSTER_ENOMEM. */
int mu_stacks_answer_begin(struct mu_stacks_answer_writer *w, const struct mu_stacks_answer *head,
                           size_t bytes_max);
/** Appends a worker's report, which is encoded, or its main thread alone. MUSTER_EPROTO: it is not
 * a report; MUSTER_ENOMEM. Nothing has changed then. */
int mu_stacks_answer_add(struct mu_stacks_answer_writer *w, struct mu_span report, bool main_only);
/** Appends a flight; no report comes after it. One that does not fit is left out. MUSTER_ENOMEM. */
int mu_stacks_answer_add_flight(struct mu_stacks_answer_writer *w,
                                const struct mu_stacks_flight *flight);
/** The answer so far; valid until the next call. */
struct mu_span mu_stacks_answer_end(struct mu_stacks_answer_writer *w);
void mu_stacks_answer_fini(struct mu_stacks_answer_writer *w);

#endif
