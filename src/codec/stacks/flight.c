#include "codec/stacks/flight_internal.h"

#include <muster/error.h>

#include "codec/stacks/place.h"
#include "core/alloc.h"
#include "core/printable.h"

#define MEMORY_BASE     ((size_t)64 << 10)
#define MEMORY_PER_BYTE 32
#define MEMORY_MAX      ((size_t)256 << 20)
#define TEXTS_MAX       ((size_t)64 << 20)
#define KEYS_MAX        64 /* of one dict: PyTorch writes 24 */
#define FRAMES_MAX      256
#define STEPS_BASE      65536
#define STEPS_PER_BYTE  32

static const char *const field_names[MU_FIELD_COUNT] = {
#define X(name, text) [MU_FIELD_##name] = text,
    MU_FLIGHT_FIELDS(X)
#undef X
};

const char *mu_flight_field_name(enum mu_flight_field field)
{
    return field_names[field];
}

void mu_flight_init(struct mu_flight *f)
{
    *f = (struct mu_flight){0};
}

void mu_flight_fini(struct mu_flight *f)
{
    mu_free(f->entries);
    mu_free(f->groups);
    mu_free(f->ranks);
    mu_free(f->texts);
    mu_flight_init(f);
}

int mu_flight_refuse(struct mu_flight_decoder *d, const char *what)
{
    return mu_err(d->msg, MUSTER_ECORRUPT, "%s", what);
}

int mu_flight_lack_memory(struct mu_flight_decoder *d)
{
    return mu_err(d->msg, MUSTER_ENOMEM, "there is no memory for the dump of a flight recorder");
}

int mu_flight_pay(struct mu_flight_decoder *d, uint64_t steps)
{
    if (steps > d->steps) {
        return mu_flight_refuse(d, "the parts of the dump refer to each other too often");
    }
    d->steps -= steps;
    return 0;
}

int mu_flight_walk(struct mu_flight_decoder *d, uint32_t number, enum mu_pickle_kind kind,
                   size_t count_max, const char *what, struct mu_pickle_walk *ret_walk)
{
    const struct mu_pickle_value *box = mu_pickle_at(&d->p, number);

    if (box->kind != kind) {
        return mu_err(d->msg, MUSTER_ECORRUPT, "%s of the dump is of the wrong kind", what);
    }
    if (box->count > count_max) {
        return mu_err(d->msg, MUSTER_ELIMIT, "%s of the dump has more than %zu items", what,
                      count_max);
    }
    *ret_walk = mu_pickle_walk(&d->p, number);
    return mu_flight_pay(d, box->count);
}

int mu_flight_add_text(struct mu_flight_decoder *d, struct mu_span text, uint32_t *ret_text)
{
    struct mu_flight *f = &d->f;

    if (f->text_cap - f->text_len < MU_FLIGHT_TEXT_MAX + 1) {
        size_t cap = f->text_cap == 0 ? 4096 : 2 * f->text_cap;
        char *grown;

        if (cap > TEXTS_MAX) {
            return mu_err(d->msg, MUSTER_ELIMIT, "the texts of the dump are longer than %zu bytes",
                          TEXTS_MAX);
        }
        grown = mu_realloc(f->texts, cap);
        if (grown == NULL) {
            return mu_flight_lack_memory(d);
        }
        f->texts = grown;
        f->text_cap = cap;
    }
    *ret_text = (uint32_t)f->text_len;
    f->text_len += mu_printable(f->texts + f->text_len, MU_FLIGHT_TEXT_MAX + 1, text, false) + 1;
    return 0;
}

int mu_flight_read_text(struct mu_flight_decoder *d, uint32_t number, const char *what,
                        uint32_t *ret_text)
{
    struct mu_flight_note *note = &d->notes[number];
    int err = 0;

    if (!mu_pickle_is(&d->p, number, MU_PICKLE_TEXT)) {
        return mu_err(d->msg, MUSTER_ECORRUPT, "%s of the dump is not a text", what);
    }
    if (note->text == 0) {
        err = mu_flight_add_text(d, mu_pickle_bytes(&d->p, number), &note->text);
    }
    *ret_text = note->text;
    return err;
}

int mu_flight_read_number(struct mu_flight_decoder *d, uint32_t number, const char *what,
                          uint64_t *ret)
{
    const struct mu_pickle_value *v = mu_pickle_at(&d->p, number);

    if (v->kind == MU_PICKLE_NONE) {
        *ret = 0;
        return 0;
    }
    if ((v->kind != MU_PICKLE_INT && v->kind != MU_PICKLE_BOOL) || v->as.integer < 0) {
        return mu_err(d->msg, MUSTER_ECORRUPT, "%s of the dump is not a whole number", what);
    }
    *ret = (uint64_t)v->as.integer;
    return 0;
}

static enum mu_flight_field field_of(struct mu_flight_decoder *d, uint32_t key)
{
    struct mu_flight_note *note = &d->notes[key];

    if (note->field == MU_FIELD_NOT_LOOKED_UP) {
        note->field = MU_FIELD_OTHER;
        for (unsigned i = MU_FIELD_OTHER + 1;
             i < MU_FIELD_COUNT && mu_pickle_is(&d->p, key, MU_PICKLE_TEXT); i++) {
            if (mu_span_eq(mu_pickle_bytes(&d->p, key), mu_span_str(field_names[i]))) {
                note->field = (uint8_t)i;
                break;
            }
        }
    }
    return (enum mu_flight_field)note->field;
}

int mu_flight_find_fields(struct mu_flight_decoder *d, uint32_t dict, const char *what,
                          uint32_t found[MU_FIELD_COUNT])
{
    struct mu_pickle_walk w;
    int err = mu_flight_walk(d, dict, MU_PICKLE_DICT, (size_t)2 * KEYS_MAX, what, &w);

    for (unsigned i = 0; i < MU_FIELD_COUNT; i++) {
        found[i] = MU_PICKLE_NOTHING;
    }
    if (err != 0) {
        return err;
    }
    for (uint32_t k = mu_pickle_next(&d->p, &w); k != MU_PICKLE_NOTHING;
         k = mu_pickle_next(&d->p, &w)) {
        found[field_of(d, k)] = mu_pickle_next(&d->p, &w);
    }
    return 0;
}

/* The innermost frame that is the user's own, which is what a person wants to see. */
static int read_frames(struct mu_flight_decoder *d, uint32_t list, struct mu_flight_entry *e)
{
    struct mu_pickle_walk w;
    int err = mu_flight_walk(d, list, MU_PICKLE_LIST, FRAMES_MAX, "a stack", &w);

    for (uint32_t i; err == 0 && (i = mu_pickle_next(&d->p, &w)) != MU_PICKLE_NOTHING;) {
        uint32_t found[MU_FIELD_COUNT];
        uint64_t line = 0;

        err = mu_flight_find_fields(d, i, "a frame", found);
        if (err != 0 || found[MU_FIELD_NAME] == MU_PICKLE_NOTHING ||
            found[MU_FIELD_FILENAME] == MU_PICKLE_NOTHING ||
            !mu_pickle_is(&d->p, found[MU_FIELD_FILENAME], MU_PICKLE_TEXT) ||
            mu_place_is_library(mu_pickle_bytes(&d->p, found[MU_FIELD_FILENAME]))) {
            continue;
        }
        err = mu_flight_read_text(d, found[MU_FIELD_NAME], "a function", &e->function);
        if (err == 0) {
            err = mu_flight_read_text(d, found[MU_FIELD_FILENAME], "a file", &e->file);
        }
        if (err == 0 && found[MU_FIELD_LINE] != MU_PICKLE_NOTHING) {
            err = mu_flight_read_number(d, found[MU_FIELD_LINE], "a line", &line);
            e->line = line > UINT32_MAX ? 0 : (uint32_t)line;
        }
        return err;
    }
    return err;
}

static int read_state(struct mu_flight_decoder *d, uint32_t number, struct mu_flight_entry *e)
{
    static const char *const states[] = {[MU_FLIGHT_SCHEDULED] = "scheduled",
                                         [MU_FLIGHT_STARTED] = "started",
                                         [MU_FLIGHT_COMPLETED] = "completed"};

    for (uint8_t i = MU_FLIGHT_SCHEDULED; i <= MU_FLIGHT_COMPLETED; i++) {
        if (mu_pickle_is(&d->p, number, MU_PICKLE_TEXT) &&
            mu_span_eq(mu_pickle_bytes(&d->p, number), mu_span_str(states[i]))) {
            e->state = i;
            return 0;
        }
    }
    return mu_flight_refuse(d, "the state of an entry of the dump is not one that we know");
}

/* "nccl:all_reduce": the part behind the colon. */
static int read_name(struct mu_flight_decoder *d, uint32_t number, struct mu_flight_entry *e)
{
    const char *colon;
    int err = mu_flight_read_text(d, number, "the name of an entry", &e->name);

    if (err != 0) {
        return err;
    }
    colon = strchr(mu_flight_text(&d->f, e->name), ':');
    e->gloo = strncmp(mu_flight_text(&d->f, e->name), "gloo:", 5) == 0;
    if (colon != NULL) {
        e->name = (uint32_t)(colon + 1 - d->f.texts);
    }
    return 0;
}

static int read_duration(struct mu_flight_decoder *d, uint32_t number, struct mu_flight_entry *e)
{
    const struct mu_pickle_value *v = mu_pickle_at(&d->p, number);
    double ms = v->kind == MU_PICKLE_FLOAT ? v->as.real : 0;

    if (v->kind != MU_PICKLE_FLOAT && v->kind != MU_PICKLE_NONE) {
        return mu_flight_refuse(d, "a duration of the dump is not a number");
    }
    /* False for what is not a number, too; a year has 3.2e10 ms. */
    e->duration_ns = ms > 0 && ms < 3.2e10 ? (uint64_t)(ms * 1e6) : 0;
    return 0;
}

static int read_entry_group(struct mu_flight_decoder *d, uint32_t number, uint32_t id,
                            struct mu_flight_entry *e)
{
    uint64_t pg_id = 0;
    int err;

    if (!mu_pickle_is(&d->p, number, MU_PICKLE_TUPLE) || mu_pickle_at(&d->p, number)->count != 2) {
        return mu_flight_refuse(d, "the process_group of an entry of the dump is not a pair");
    }
    err = mu_flight_meet_group(d, mu_pickle_item(&d->p, number, 0),
                               mu_pickle_item(&d->p, number, 1), &e->group);
    if (err == 0 && id != MU_PICKLE_NOTHING) {
        err = mu_flight_read_number(d, id, "pg_id", &pg_id);
        d->f.groups[e->group].id = pg_id;
    }
    return err;
}

static int read_field(struct mu_flight_decoder *d, enum mu_flight_field field, uint32_t number,
                      struct mu_flight_entry *e)
{
    uint64_t flag = 0;
    int err;

    switch ((int)field) {
    case MU_FIELD_OP_ID:
        return mu_flight_read_number(d, number, "op_id", &e->op);
    case MU_FIELD_PROFILING_NAME:
        return read_name(d, number, e);
    case MU_FIELD_INPUT_SIZES:
        return mu_flight_read_sizes(d, number, &e->inputs);
    case MU_FIELD_INPUT_TYPES:
        return mu_flight_read_types(d, number, &e->inputs);
    case MU_FIELD_OUTPUT_SIZES:
        return mu_flight_read_sizes(d, number, &e->outputs);
    case MU_FIELD_OUTPUT_TYPES:
        return mu_flight_read_types(d, number, &e->outputs);
    case MU_FIELD_STATE:
        return read_state(d, number, e);
    case MU_FIELD_CREATED:
        return mu_flight_read_number(d, number, "time_created_ns", &e->created_ns);
    case MU_FIELD_STARTED:
        return mu_flight_read_number(d, number, "time_discovered_started_ns", &e->started_ns);
    case MU_FIELD_COMPLETED:
        return mu_flight_read_number(d, number, "time_discovered_completed_ns", &e->completed_ns);
    case MU_FIELD_DURATION:
        return read_duration(d, number, e);
    case MU_FIELD_TIMEOUT:
        return mu_flight_read_number(d, number, "timeout_ms", &e->timeout_ms);
    case MU_FIELD_RETIRED:
        err = mu_flight_read_number(d, number, "retired", &flag);
        e->retired = flag != 0;
        return err;
    case MU_FIELD_FRAMES:
        return read_frames(d, number, e);
    default:
        return 0;
    }
}

static int read_entry(struct mu_flight_decoder *d, uint32_t dict, struct mu_flight_entry *e)
{
    uint32_t found[MU_FIELD_COUNT];
    uint64_t p2p = 0;
    uint32_t seq;
    int err = mu_flight_find_fields(d, dict, "an entry", found);

    *e = (struct mu_flight_entry){0};
    if (err != 0) {
        return err;
    }
    if (found[MU_FIELD_PROCESS_GROUP] == MU_PICKLE_NOTHING ||
        found[MU_FIELD_STATE] == MU_PICKLE_NOTHING ||
        found[MU_FIELD_PROFILING_NAME] == MU_PICKLE_NOTHING) {
        return mu_flight_refuse(d, "an entry of the dump lacks its group, its name or its state");
    }
    err = read_entry_group(d, found[MU_FIELD_PROCESS_GROUP], found[MU_FIELD_PG_ID], e);
    if (err == 0 && found[MU_FIELD_IS_P2P] != MU_PICKLE_NOTHING) {
        err = mu_flight_read_number(d, found[MU_FIELD_IS_P2P], "is_p2p", &p2p);
    }
    e->p2p = p2p != 0;
    seq = found[e->p2p ? MU_FIELD_P2P_SEQ : MU_FIELD_COLLECTIVE_SEQ];
    if (err == 0 && seq == MU_PICKLE_NOTHING) {
        err = mu_flight_refuse(d, "an entry of the dump has no number");
    }
    if (err == 0) {
        err = mu_flight_read_number(d, seq, "the number of an entry", &e->seq);
    }
    for (unsigned i = MU_FIELD_OTHER + 1; err == 0 && i < MU_FIELD_COUNT; i++) {
        if (found[i] != MU_PICKLE_NOTHING) {
            err = read_field(d, (enum mu_flight_field)i, found[i], e);
        }
    }
    /* An entry that NCCL has retired but not completed has timed out. */
    e->ended = e->state == MU_FLIGHT_COMPLETED || (e->gloo && e->retired);
    return err;
}

static int read_entries(struct mu_flight_decoder *d, uint32_t list)
{
    struct mu_pickle_walk w;
    int err = mu_flight_walk(d, list, MU_PICKLE_LIST, MU_FLIGHT_ENTRIES_MAX, "entries", &w);

    if (err != 0) {
        return err;
    }
    d->f.entries = mu_calloc((size_t)mu_pickle_at(&d->p, list)->count + 1, sizeof(*d->f.entries));
    if (d->f.entries == NULL) {
        return mu_flight_lack_memory(d);
    }
    for (uint32_t i; err == 0 && (i = mu_pickle_next(&d->p, &w)) != MU_PICKLE_NOTHING;) {
        err = read_entry(d, i, &d->f.entries[d->f.entry_count]);
        d->f.entry_count += err == 0 ? 1 : 0;
    }
    return err;
}

static int read_root(struct mu_flight_decoder *d)
{
    uint32_t found[MU_FIELD_COUNT];
    uint32_t empty;
    int err = mu_flight_add_text(d, MU_SPAN_LIT(""), &empty);

    if (err == 0) {
        err = mu_flight_find_fields(d, d->p.root, "the whole", found);
    }
    if (err != 0) {
        return err;
    }
    if (found[MU_FIELD_VERSION] == MU_PICKLE_NOTHING) {
        return mu_flight_refuse(d, "this is not the dump of a flight recorder: it has no version");
    }
    err = mu_flight_read_text(d, found[MU_FIELD_VERSION], "the version", &d->f.version);
    if (err == 0 && strncmp(mu_flight_text(&d->f, d->f.version), "2.", 2) != 0) {
        err = mu_err(d->msg, MUSTER_ECORRUPT,
                     "the dump is of version %.32s, and only versions 2.x are read",
                     mu_flight_text(&d->f, d->f.version));
    }
    if (err == 0 && found[MU_FIELD_PG_CONFIG] != MU_PICKLE_NOTHING) {
        err = mu_flight_read_config(d, found[MU_FIELD_PG_CONFIG]);
    }
    if (err == 0 && found[MU_FIELD_ENTRIES] != MU_PICKLE_NOTHING) {
        err = read_entries(d, found[MU_FIELD_ENTRIES]);
    }
    if (err == 0 && found[MU_FIELD_PG_STATUS] != MU_PICKLE_NOTHING) {
        err = mu_flight_read_status(d, found[MU_FIELD_PG_STATUS]);
    }
    return err;
}

int mu_flight_decode(struct mu_flight *f, struct mu_span in, struct mu_errmsg *reterr_msg)
{
    struct mu_flight_decoder *d;
    size_t memory = MEMORY_BASE + in.len * MEMORY_PER_BYTE;
    int err;

    mu_flight_fini(f);
    if (in.len > MU_FLIGHT_BYTES_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "a dump of %zu bytes is longer than %zu", in.len,
                      MU_FLIGHT_BYTES_MAX);
    }
    d = mu_calloc(1, sizeof(*d));
    if (d == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "there is no memory for a decoder");
    }
    d->msg = reterr_msg;
    d->steps = STEPS_BASE + (uint64_t)in.len * STEPS_PER_BYTE;
    mu_pickle_init(&d->p);
    err = mu_pickle_read(&d->p, in, memory < MEMORY_MAX ? memory : MEMORY_MAX, reterr_msg);
    if (err == 0) {
        d->notes = mu_calloc(d->p.value_count, sizeof(*d->notes));
        err = d->notes == NULL ? mu_flight_lack_memory(d) : read_root(d);
    }
    mu_pickle_fini(&d->p);
    mu_free(d->notes);
    if (err == 0) {
        *f = d->f;
    } else {
        mu_flight_fini(&d->f);
    }
    mu_free(d);
    return err;
}
