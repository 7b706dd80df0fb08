/*
 * The flight recorders of a whole run, as its nodes have sent them: gathered, compared, and put
 * into words.
 *
 *     mu_flights_init(&f);
 *     for each answer: mu_flights_add(&f, answer->flights);      nothing is borrowed after it
 *     mu_flights_write_line(&f, &out);  mu_flights_write_text(&f, &out);
 *     mu_flights_fini(&f);
 */
#ifndef MU_FLIGHT_GATHER_H
#define MU_FLIGHT_GATHER_H

#include "codec/stacks/answer.h"
#include "proto/stacks/flight_compare.h"

#define MU_FLIGHTS_NOTES_MAX                                                                       \
    8 /* different reasons why there is no dump; ranks beyond are left out */
#define MU_FLIGHTS_LINE_MAX  2  /* findings in a line */
#define MU_FLIGHTS_SHOWN_MAX 10 /* findings on a page */

struct mu_flights_note {
    char text[MU_STACKS_NOTE_MAX + 1];
    uint32_t *ranks;
    uint32_t count;
    uint32_t cap;
};

struct mu_flights {
    struct mu_flight *flights;
    uint32_t *ranks; /* of each */
    uint32_t count;
    uint32_t cap;
    struct mu_flights_note notes[MU_FLIGHTS_NOTES_MAX];
    uint32_t note_count;
};

void mu_flights_init(struct mu_flights *f);
void mu_flights_fini(struct mu_flights *f);
/** Adds what a node has sent; a dump that cannot be read becomes a note. MUSTER_ENOMEM. */
int mu_flights_add(struct mu_flights *f, struct mu_span flights);
/** Compares the dumps; `c` is initialized, and ended by the caller. MUSTER_ENOMEM. */
int mu_flights_compare(const struct mu_flights *f, struct mu_flight_compare *c);
/** Appends the first findings in one sentence without a full stop; nothing, if there are none.
 * MUSTER_ELIMIT: `out` is too small; MUSTER_ENOMEM. */
int mu_flights_write_line(const struct mu_flights *f, struct mu_buf *out);
/** Appends a page: a line for each finding and for each reason why there is no dump; nothing, if no
 * rank has a flight recorder. Likewise. */
int mu_flights_write_text(const struct mu_flights *f, struct mu_buf *out);
/** Appends a JSON object: {"dumps": 8, "findings": ["rank 5 ..."]}. Likewise. */
int mu_flights_write_json(const struct mu_flights *f, struct mu_buf *out);

#endif
