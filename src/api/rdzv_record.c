/* The record of a rendezvous: where it goes, and the sink that writes JSON lines. */
#include "api/rdzv_api.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/utf8.h"
#include "service/base/log.h"

/* A line that fits in here is written at once, and lines with nodes' names fit. */
#define LINE_ROOM 65536

/* Held while the sink runs, so that a sink is not called after it was replaced. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static muster_rdzv_sink *the_sink = muster_rdzv_sink_default;
static void *the_context;

void muster_rdzv_set_sink(muster_rdzv_sink *sink, void *context)
{
    (void)pthread_mutex_lock(&lock);
    the_sink = sink;
    the_context = context;
    (void)pthread_mutex_unlock(&lock);
}

void mu_rdzv_tell(const struct muster_rdzv_record *record)
{
    (void)pthread_mutex_lock(&lock);
    if (the_sink != NULL) {
        the_sink(record, the_context);
    }
    (void)pthread_mutex_unlock(&lock);
}

/* --- JSON lines ------------------------------------------------------------------------------- */

static void write_text(FILE *out, const char *key, const char *text)
{
    const unsigned char *s = (const unsigned char *)(text == NULL ? "" : text);

    (void)fprintf(out, ",\"%s\":\"", key);
    while (*s != '\0') {
        size_t len = mu_utf8_len(mu_span(s, strnlen((const char *)s, 4)));

        if (len == 0) {
            (void)fputs("\\ufffd", out);
            s++;
        } else if (*s == '"' || *s == '\\') {
            (void)fprintf(out, "\\%c", *s++);
        } else if (*s < 0x20 || *s == 0x7f) {
            (void)fprintf(out, "\\u%04x", *s++);
        } else {
            (void)fwrite(s, 1, len, out);
            s += len;
        }
    }
    (void)fputc('"', out);
}

static const char *state_name(enum muster_rdzv_state state)
{
    switch (state) {
    case MUSTER_RDZV_INIT:
        return "INIT";
    case MUSTER_RDZV_RUNNING:
        return "RUNNING";
    case MUSTER_RDZV_SUCCEEDED:
        return "SUCCEEDED";
    case MUSTER_RDZV_FAILED:
        return "FAILED";
    }
    return "";
}

void muster_rdzv_sink_json(const struct muster_rdzv_record *r, void *context)
{
    FILE *out = context;

    /* The lock keeps the line whole if other threads write there. */
    flockfile(out);
    (void)fprintf(out, "{\"time\":%" PRId64 ".%06" PRId64, r->time_us / 1000000,
                  r->time_us % 1000000);
    write_text(out, "name", r->name);
    write_text(out, "run_id", r->run_id);
    write_text(out, "message", r->message);
    write_text(out, "hostname", r->host);
    (void)fprintf(out, ",\"pid\":%" PRId64, r->pid);
    write_text(out, "node_state", state_name(r->state));
    if (r->rank >= 0) {
        (void)fprintf(out, ",\"rank\":%" PRId64, r->rank);
    } else {
        (void)fputs(",\"rank\":null", out);
    }
    write_text(out, "node", r->node);
    (void)fputs("}\n", out);
    (void)fflush(out);
    funlockfile(out);
}

/* --- the default ------------------------------------------------------------------------------ */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static FILE *events; /* NULL: they are not wanted */

/* Stays open as long as the process runs. */
static void open_events(void)
{
    const char *path = secure_getenv("MUSTER_RDZV_EVENTS");

    if (path == NULL || path[0] == '\0') {
        return;
    }
    if (strcmp(path, "-") == 0) {
        events = stderr;
        return;
    }
    events = fopen(path, "ae");
    if (events == NULL) {
        mu_log(MUSTER_LOG_WARN, "RDZV-EVENTS-LOST", "path=\"%s\" why=\"%s\"", path,
               muster_strerror(-errno));
        return;
    }
    (void)setvbuf(events, NULL, _IOFBF, LINE_ROOM);
}

void muster_rdzv_sink_default(const struct muster_rdzv_record *record, void *context)
{
    (void)context;
    (void)pthread_once(&once, open_events);
    if (events != NULL) {
        muster_rdzv_sink_json(record, events);
    }
}
