#include "proto/stacks/flight_gather.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <muster/error.h>

#include "codec/text/json_string.h"
#include "core/alloc.h"
#include "core/printable.h"
#include "proto/stacks/group.h"

void mu_flights_init(struct mu_flights *f)
{
    *f = (struct mu_flights){.count = 0};
}

void mu_flights_fini(struct mu_flights *f)
{
    for (uint32_t i = 0; i < f->count; i++) {
        mu_flight_fini(&f->flights[i]);
    }
    for (uint32_t i = 0; i < f->note_count; i++) {
        mu_free(f->notes[i].ranks);
    }
    mu_free(f->flights);
    mu_free(f->ranks);
    mu_flights_init(f);
}

/* --- to gather -------------------------------------------------------------------------------- */

static int add_rank(struct mu_flights_note *note, uint32_t rank)
{
    if (note->count == note->cap) {
        uint32_t cap = note->cap == 0 ? 8 : 2 * note->cap;
        uint32_t *grown = mu_realloc(note->ranks, cap * sizeof(*grown));

        if (grown == NULL) {
            return MUSTER_ENOMEM;
        }
        note->ranks = grown;
        note->cap = cap;
    }
    note->ranks[note->count++] = rank;
    return 0;
}

static int add_note(struct mu_flights *f, uint32_t rank, struct mu_span note)
{
    char text[MU_STACKS_NOTE_MAX + 1];
    uint32_t i = 0;

    (void)mu_printable(text, sizeof(text), note, false);
    while (i < f->note_count && strcmp(f->notes[i].text, text) != 0) {
        i++;
    }
    if (i == MU_FLIGHTS_NOTES_MAX) {
        return 0;
    }
    if (i == f->note_count) {
        f->notes[f->note_count++] = (struct mu_flights_note){.count = 0};
        memcpy(f->notes[i].text, text, sizeof(text));
    }
    return add_rank(&f->notes[i], rank);
}

static int make_room(struct mu_flights *f)
{
    uint32_t cap = f->cap == 0 ? 8 : 2 * f->cap;
    struct mu_flight *flights;
    uint32_t *ranks;

    if (f->count < f->cap) {
        return 0;
    }
    flights = mu_realloc(f->flights, cap * sizeof(*flights));
    if (flights == NULL) {
        return MUSTER_ENOMEM;
    }
    f->flights = flights;
    ranks = mu_realloc(f->ranks, cap * sizeof(*ranks));
    if (ranks == NULL) {
        return MUSTER_ENOMEM;
    }
    f->ranks = ranks;
    f->cap = cap;
    return 0;
}

static int add_dump(struct mu_flights *f, uint32_t rank, struct mu_span dump)
{
    struct mu_errmsg why = {{0}};
    int err = f->count == MU_FLIGHT_DUMPS_MAX ? MUSTER_ELIMIT : make_room(f);

    if (err != 0) {
        return err == MUSTER_ELIMIT ? 0 : err;
    }
    mu_flight_init(&f->flights[f->count]);
    err = mu_flight_decode(&f->flights[f->count], dump, &why);
    if (err == 0) {
        f->ranks[f->count++] = rank;
    } else if (err != MUSTER_ENOMEM) {
        err = add_note(f, rank, mu_span_str(why.text));
    }
    return err;
}

int mu_flights_add(struct mu_flights *f, struct mu_span flights)
{
    struct mu_stacks_flight flight;
    int err;

    while ((err = mu_stacks_answer_next_flight(&flights, &flight)) != MUSTER_ENOENT) {
        if (err == 0) {
            err = flight.dump.len != 0 ? add_dump(f, flight.rank, flight.dump)
                                       : add_note(f, flight.rank, flight.note);
        }
        if (err == MUSTER_ENOMEM) {
            return err;
        }
    }
    return 0;
}

/* --- to say ----------------------------------------------------------------------------------- */

int mu_flights_compare(const struct mu_flights *f, struct mu_flight_compare *c)
{
    struct mu_flight_dump *dumps = mu_calloc(f->count + 1, sizeof(*dumps));
    int err;

    if (dumps == NULL) {
        return MUSTER_ENOMEM;
    }
    for (uint32_t i = 0; i < f->count; i++) {
        dumps[i] = (struct mu_flight_dump){f->ranks[i], &f->flights[i]};
    }
    err = mu_flight_compare(c, dumps, f->count);
    mu_free(dumps);
    return err;
}

static int put(struct mu_buf *out, const char *text)
{
    return mu_buf_append(out, mu_span_str(text));
}

int mu_flights_write_line(const struct mu_flights *f, struct mu_buf *out)
{
    struct mu_flight_compare c;
    int err = 0;

    if (f->count == 0) {
        return 0;
    }
    mu_flight_compare_init(&c);
    err = mu_flights_compare(f, &c);
    for (size_t i = 0; err == 0 && i < c.finding_count && i < MU_FLIGHTS_LINE_MAX; i++) {
        err = i == 0 ? 0 : put(out, "; ");
        if (err == 0) {
            err = put(out, c.findings[i].text);
        }
    }
    mu_flight_compare_fini(&c);
    return err;
}

static int write_findings(const struct mu_flights *f, struct mu_buf *out)
{
    struct mu_flight_compare c;
    size_t shown = 0;
    char more[64];
    int err;

    mu_flight_compare_init(&c);
    err = mu_flights_compare(f, &c);
    for (; err == 0 && shown < c.finding_count && shown < MU_FLIGHTS_SHOWN_MAX; shown++) {
        err = put(out, "  ");
        if (err == 0) {
            err = put(out, c.findings[shown].text);
        }
        if (err == 0) {
            err = put(out, "\n");
        }
    }
    if (err == 0 && c.finding_count + c.left_out > shown) {
        (void)snprintf(more, sizeof(more), "  and %zu more\n",
                       c.finding_count + c.left_out - shown);
        err = put(out, more);
    }
    if (err == 0 && f->count != 0 && c.finding_count == 0) {
        err = put(out, "  all ranks are in the same collectives, and all of these have ended\n");
    }
    mu_flight_compare_fini(&c);
    return err;
}

static int compare_ranks(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static int write_note(const struct mu_flights_note *note, struct mu_buf *out)
{
    char line[MU_STACKS_NOTE_MAX + 192];
    char ranks[128];

    qsort(note->ranks, note->count, sizeof(*note->ranks), compare_ranks);
    (void)mu_groups_ranges(ranks, sizeof(ranks), note->ranks, note->count);
    (void)snprintf(line, sizeof(line), "  no dump of rank%s %s: %s\n", note->count == 1 ? "" : "s",
                   ranks, note->text);
    return put(out, line);
}

int mu_flights_write_text(const struct mu_flights *f, struct mu_buf *out)
{
    char head[64];
    int err;

    if (f->count == 0 && f->note_count == 0) {
        return 0;
    }
    (void)snprintf(head, sizeof(head), "flight recorders of %" PRIu32 " rank%s:\n", f->count,
                   f->count == 1 ? "" : "s");
    err = put(out, head);
    if (err == 0) {
        err = write_findings(f, out);
    }
    for (uint32_t i = 0; err == 0 && i < f->note_count; i++) {
        err = write_note(&f->notes[i], out);
    }
    return err;
}

int mu_flights_write_json(const struct mu_flights *f, struct mu_buf *out)
{
    struct mu_flight_compare c;
    char text[6 * MU_FLIGHT_SENTENCE + 3];
    int err;

    mu_flight_compare_init(&c);
    (void)snprintf(text, sizeof(text), "{\"dumps\": %" PRIu32 ", \"findings\": [", f->count);
    err = put(out, text);
    if (err == 0) {
        err = mu_flights_compare(f, &c);
    }
    for (size_t i = 0; err == 0 && i < c.finding_count; i++) {
        size_t len = mu_json_quote(mu_span_str(c.findings[i].text), text, sizeof(text));

        err = i == 0 ? 0 : put(out, ", ");
        if (err == 0) {
            err = mu_buf_append(out, mu_span(text, len));
        }
    }
    mu_flight_compare_fini(&c);
    return err != 0 ? err : put(out, "]}");
}
