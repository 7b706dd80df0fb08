/*
 * Writes status texts, JSON and Prometheus' format, piece by piece; the recent events that a status
 * ends with; and the time line of a run.
 *
 *     struct mu_status_text t = {.out = out};
 *     mu_status_put(&t, "{\"round\":%" PRIu64 ",\"run\":", round);
 *     mu_status_quote(&t, run);
 *     return t.err;                       the first error; nothing was written after it
 */
#ifndef MU_STATUS_TEXT_H
#define MU_STATUS_TEXT_H

#include "core/buf.h"
#include "core/time.h"

struct mu_status_text {
    struct mu_buf *out;
    int err;
};

/** Appends a piece of at most 511 bytes. */
void mu_status_put(struct mu_status_text *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** Appends a JSON string; Prometheus quotes in the same way. Names from outside may be any bytes:
 * what is not UTF-8 becomes U+FFFD. MUSTER_ELIMIT past MU_STATUS_QUOTE_MAX bytes. */
#define MU_STATUS_QUOTE_MAX 4096
void mu_status_quote(struct mu_status_text *t, const char *text);
/** Appends the head of a metric. */
void mu_status_metric(struct mu_status_text *t, const char *name, const char *type,
                      const char *help);

/* --- recent events ---------------------------------------------------------------------------- */

#define MU_STATUS_EVENTS    64
#define MU_STATUS_EVENT_MAX 400

struct mu_status_event {
    mu_wall_t at;
    char run[64]; /* longer names are cut */
    char text[MU_STATUS_EVENT_MAX];
};

/* A ring of the last events. */
struct mu_status_events {
    uint64_t count; /* of all events so far */
    struct mu_status_event last[MU_STATUS_EVENTS];
};

void mu_status_events_add(struct mu_status_events *e, mu_wall_t at, const char *run,
                          const char *text);
/** Appends ,"events":[...], the newest first. */
void mu_status_events_put(struct mu_status_text *t, const struct mu_status_events *e);

/* --- the time line of a run ------------------------------------------------------------------- */

#define MU_STATUS_HISTORY     64
#define MU_STATUS_HISTORY_WHO 40

enum mu_status_mark {
    MU_STATUS_JOINED = 1, /* a node joined */
    MU_STATUS_ROUND,      /* a round began, with `nodes` nodes */
    MU_STATUS_LOST,       /* a node was lost */
    MU_STATUS_LEFT,       /* a node left */
    MU_STATUS_FAILED,     /* workers failed; the next round starts them again */
    MU_STATUS_ENDED,      /* the round ended */
    MU_STATUS_OVER,       /* the run is over */
};

struct mu_status_point {
    mu_wall_t at;
    uint64_t round;
    enum mu_status_mark mark;
    uint32_t nodes;                  /* ROUND: its nodes; otherwise how many nodes did it */
    char who[MU_STATUS_HISTORY_WHO]; /* the node, the first of several; longer names are cut */
};

/* A ring of the last points. */
struct mu_status_history {
    uint64_t count; /* of all points so far */
    struct mu_status_point last[MU_STATUS_HISTORY];
};

/** Adds a point. Nodes that join, leave or are lost within a second of each other make one point,
 * so that a large run's beginning leaves room for the rest. */
void mu_status_history_add(struct mu_status_history *h, const struct mu_status_point *point);
/** Appends ,"history":[...], the oldest first. */
void mu_status_history_put(struct mu_status_text *t, const struct mu_status_history *h);

#endif
