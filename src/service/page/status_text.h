/*
 * Writes status texts, JSON and Prometheus' format, piece by piece; and the recent events that a
 * status ends with.
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

#endif
