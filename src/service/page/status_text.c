#include "service/page/status_text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "core/utf8.h"

void mu_status_put(struct mu_status_text *t, const char *format, ...)
{
    char piece[512];
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(piece, sizeof(piece), format, args);
    va_end(args);
    if (t->err == 0) {
        t->err = n < 0 || (size_t)n >= sizeof(piece)
                     ? MUSTER_ELIMIT
                     : mu_buf_append(t->out, mu_span(piece, (size_t)n));
    }
}

/* --- quoting ---------------------------------------------------------------------------------- */

void mu_status_quote(struct mu_status_text *t, const char *text)
{
    char out[MU_STATUS_QUOTE_MAX + 8];
    const unsigned char *s = (const unsigned char *)text;
    size_t len = 0;

    out[len++] = '"';
    while (*s != '\0' && len <= MU_STATUS_QUOTE_MAX - 8) {
        size_t n = mu_utf8_len(mu_span(s, strnlen((const char *)s, 4)));

        if (n == 0) {
            len += (size_t)snprintf(out + len, sizeof(out) - len, "\\ufffd");
        } else if (*s == '"' || *s == '\\') {
            len += (size_t)snprintf(out + len, sizeof(out) - len, "\\%c", *s);
        } else if (*s == '\n') {
            len += (size_t)snprintf(out + len, sizeof(out) - len, "\\n");
        } else if (*s < 0x20 || *s == 0x7f) {
            len += (size_t)snprintf(out + len, sizeof(out) - len, "\\u%04x", *s);
        } else {
            memcpy(out + len, s, n);
            len += n;
        }
        s += n == 0 ? 1 : n;
    }
    out[len++] = '"';
    if (t->err == 0) {
        t->err = *s != '\0' ? MUSTER_ELIMIT : mu_buf_append(t->out, mu_span(out, len));
    }
}

void mu_status_metric(struct mu_status_text *t, const char *name, const char *type,
                      const char *help)
{
    mu_status_put(t, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* --- recent events ---------------------------------------------------------------------------- */

void mu_status_events_add(struct mu_status_events *e, mu_wall_t at, const char *run,
                          const char *text)
{
    struct mu_status_event *event = &e->last[e->count++ % MU_STATUS_EVENTS];

    event->at = at;
    (void)snprintf(event->run, sizeof(event->run), "%s", run);
    (void)snprintf(event->text, sizeof(event->text), "%s", text);
}

void mu_status_events_put(struct mu_status_text *t, const struct mu_status_events *e)
{
    uint64_t count = e->count < MU_STATUS_EVENTS ? e->count : MU_STATUS_EVENTS;

    mu_status_put(t, ",\"events\":[");
    for (uint64_t i = 0; i < count; i++) {
        const struct mu_status_event *event = &e->last[(e->count - 1 - i) % MU_STATUS_EVENTS];

        mu_status_put(t, "%s{\"at_ms\":%" PRIu64 ",\"run\":", i == 0 ? "" : ",",
                      event->at.ns / MU_NS_PER_MS);
        mu_status_quote(t, event->run);
        mu_status_put(t, ",\"text\":");
        mu_status_quote(t, event->text);
        mu_status_put(t, "}");
    }
    mu_status_put(t, "]");
}

/* --- the time line of a run ------------------------------------------------------------------- */

#define TOGETHER_NS MU_NS_PER_S

static bool happened_together(const struct mu_status_point *last,
                              const struct mu_status_point *point)
{
    return last->mark == point->mark && point->at.ns >= last->at.ns &&
           point->at.ns - last->at.ns < TOGETHER_NS &&
           (point->mark == MU_STATUS_JOINED || point->mark == MU_STATUS_LOST ||
            point->mark == MU_STATUS_LEFT);
}

void mu_status_history_add(struct mu_status_history *h, const struct mu_status_point *point)
{
    struct mu_status_point *last = &h->last[(h->count + MU_STATUS_HISTORY - 1) % MU_STATUS_HISTORY];

    if (h->count != 0 && happened_together(last, point)) {
        last->nodes += point->nodes;
    } else {
        h->last[h->count++ % MU_STATUS_HISTORY] = *point;
    }
}

void mu_status_history_put(struct mu_status_text *t, const struct mu_status_history *h)
{
    static const char *const names[] = {
        [MU_STATUS_JOINED] = "joined", [MU_STATUS_ROUND] = "round",   [MU_STATUS_LOST] = "lost",
        [MU_STATUS_LEFT] = "left",     [MU_STATUS_FAILED] = "failed", [MU_STATUS_ENDED] = "ended",
        [MU_STATUS_OVER] = "over",
    };
    uint64_t first = h->count < MU_STATUS_HISTORY ? 0 : h->count - MU_STATUS_HISTORY;

    mu_status_put(t, ",\"history\":[");
    for (uint64_t i = first; i < h->count; i++) {
        const struct mu_status_point *p = &h->last[i % MU_STATUS_HISTORY];

        mu_status_put(
            t, "%s{\"at_ms\":%" PRIu64 ",\"what\":\"%s\",\"round\":%" PRIu64 ",\"nodes\":%" PRIu32,
            i == first ? "" : ",", p->at.ns / MU_NS_PER_MS, names[p->mark], p->round, p->nodes);
        if (p->who[0] != '\0') {
            mu_status_put(t, ",\"who\":");
            mu_status_quote(t, p->who);
        }
        mu_status_put(t, "}");
    }
    mu_status_put(t, "]");
}
