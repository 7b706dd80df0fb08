/* Writes of a dump what somebody else needs to compare it with those of other ranks. */
#include <inttypes.h>
#include <stdio.h>

#include <muster/error.h>

#include "codec/stacks/flight_internal.h"
#include "core/alloc.h"

/* How many entries of a group are kept before and from its first one that has not ended: as many as
 * fit, of these. */
static const struct window {
    size_t before;
    size_t after;
} windows[] = {{64, 16}, {16, 8}, {4, 2}};

struct brief {
    const struct mu_flight *f;
    struct mu_buf *out;
    uint32_t *kept; /* indexes of entries, in the order of the dump */
    size_t kept_count;
    uint8_t numbers[MU_FIELD_COUNT]; /* one more than a key's number in the memo; 0: not written */
    uint8_t key_count;
    int err;
};

/* --- opcodes ---------------------------------------------------------------------------------- */

static bool make_room(struct brief *b, size_t len)
{
    if (b->err == 0) {
        b->err = mu_buf_reserve(b->out, len);
    }
    return b->err == 0;
}

static void put_code(struct brief *b, uint8_t code)
{
    if (make_room(b, 1)) {
        mu_buf_put_u8(b->out, code);
    }
}

static void put_span(struct brief *b, struct mu_span text)
{
    if (make_room(b, 5 + text.len)) {
        mu_buf_put_u8(b->out, 'X');
        mu_buf_put_u32(b->out, (uint32_t)text.len);
        mu_buf_put(b->out, text);
    }
}

static void put_text(struct brief *b, const char *text)
{
    put_span(b, mu_span_str(text));
}

static void put_number(struct brief *b, uint64_t number)
{
    if (!make_room(b, 10)) {
        return;
    }
    if (number <= INT32_MAX) {
        mu_buf_put_u8(b->out, 'J');
        mu_buf_put_u32(b->out, (uint32_t)number);
    } else {
        mu_buf_put_u8(b->out, 0x8a);
        mu_buf_put_u8(b->out, 8);
        mu_buf_put_u64(b->out, number & INT64_MAX);
    }
}

/* A key is written once, and then by its number. */
static void put_key(struct brief *b, enum mu_flight_field field)
{
    if (b->numbers[field] == 0) {
        put_text(b, mu_flight_field_name(field));
        put_code(b, 'q');
        put_code(b, b->key_count);
        b->numbers[field] = ++b->key_count;
    } else {
        put_code(b, 'h');
        put_code(b, b->numbers[field] - 1);
    }
}

static void put_key_number(struct brief *b, enum mu_flight_field field, uint64_t number)
{
    put_key(b, field);
    put_number(b, number);
}

static void put_key_text(struct brief *b, enum mu_flight_field field, const char *text)
{
    put_key(b, field);
    put_text(b, text);
}

/* --- tensors ---------------------------------------------------------------------------------- */

/* Sizes are kept as "[[1024, 4]]", which may be cut. What was cut off is replaced by its digest, so
 * that sizes which differ there differ still. */
static void put_sizes(struct brief *b, enum mu_flight_field field,
                      const struct mu_flight_tensors *t)
{
    const char *c = mu_flight_text(b->f, t->sizes);
    bool cut = strlen(c) >= MU_FLIGHT_TEXT_MAX;
    uint64_t number = 0;
    bool digits = false;
    int depth = 0;

    if (*c == '\0') {
        return;
    }
    put_key(b, field);
    for (; *c != '\0'; c++) {
        if (*c >= '0' && *c <= '9') {
            number = number * 10 + (uint64_t)(*c - '0');
            digits = true;
            continue;
        }
        if (digits) {
            put_number(b, number);
            number = 0;
            digits = false;
        }
        if (*c == '[') {
            put_code(b, ']');
            put_code(b, '(');
            depth++;
        } else if (*c == ']') {
            put_code(b, 'e');
            depth--;
        }
    }
    if (cut && depth == 1) {
        put_code(b, ']');
        put_code(b, '(');
        depth++;
    }
    if (cut && depth > 0) {
        put_number(b, t->sizes_digest);
    }
    for (; depth > 0; depth--) {
        put_code(b, 'e');
    }
}

/* "[Float, Half]" */
static void put_types(struct brief *b, enum mu_flight_field field,
                      const struct mu_flight_tensors *t)
{
    const char *c = mu_flight_text(b->f, t->types);
    size_t len = strlen(c);
    char digest[24];

    if (len == 0) {
        return;
    }
    put_key(b, field);
    put_code(b, ']');
    put_code(b, '(');
    if (len >= MU_FLIGHT_TEXT_MAX) {
        (void)snprintf(digest, sizeof(digest), "%" PRIx64, t->types_digest);
        put_text(b, digest);
    }
    for (c++; *c != '\0' && *c != ']';) {
        size_t word = strcspn(c, ",]");

        put_span(b, mu_span(c, word));
        c += word;
        c += strspn(c, ", ");
    }
    put_code(b, 'e');
}

/* --- entries ---------------------------------------------------------------------------------- */

static void put_frame(struct brief *b, const struct mu_flight_entry *e)
{
    if (mu_flight_text(b->f, e->file)[0] == '\0') {
        return;
    }
    put_key(b, MU_FIELD_FRAMES);
    put_code(b, ']');
    put_code(b, '}');
    put_code(b, '(');
    put_key_text(b, MU_FIELD_NAME, mu_flight_text(b->f, e->function));
    put_key_text(b, MU_FIELD_FILENAME, mu_flight_text(b->f, e->file));
    put_key_number(b, MU_FIELD_LINE, e->line);
    put_code(b, 'u');
    put_code(b, 'a');
}

static void put_entry(struct brief *b, const struct mu_flight_entry *e)
{
    static const char *const states[] = {"scheduled", "scheduled", "started", "completed"};
    const struct mu_flight_group *group = &b->f->groups[e->group];
    char name[MU_FLIGHT_TEXT_MAX + 8];

    put_code(b, '}');
    put_code(b, '(');
    put_key(b, MU_FIELD_PROCESS_GROUP);
    put_text(b, mu_flight_text(b->f, group->name));
    put_text(b, mu_flight_text(b->f, group->desc));
    put_code(b, 0x86);
    if (group->id != UINT64_MAX) {
        put_key_number(b, MU_FIELD_PG_ID, group->id);
    }
    put_key_number(b, e->p2p ? MU_FIELD_P2P_SEQ : MU_FIELD_COLLECTIVE_SEQ, e->seq);
    put_key_number(b, MU_FIELD_OP_ID, e->op);
    put_key_number(b, MU_FIELD_IS_P2P, e->p2p ? 1 : 0);
    (void)snprintf(name, sizeof(name), "%s:%s", e->gloo ? "gloo" : "nccl",
                   mu_flight_text(b->f, e->name));
    put_key_text(b, MU_FIELD_PROFILING_NAME, name);
    put_key_text(b, MU_FIELD_STATE, states[e->ended ? MU_FLIGHT_COMPLETED : e->state]);
    put_sizes(b, MU_FIELD_INPUT_SIZES, &e->inputs);
    put_types(b, MU_FIELD_INPUT_TYPES, &e->inputs);
    put_sizes(b, MU_FIELD_OUTPUT_SIZES, &e->outputs);
    put_frame(b, e);
    put_code(b, 'u');
}

/* --- groups ----------------------------------------------------------------------------------- */

/* "[0-7, 12]": ranks that follow each other are written as a range. */
static void put_ranks(struct brief *b, const struct mu_flight_group *group)
{
    const uint32_t *ranks = group->count == 0 ? NULL : b->f->ranks + group->first;
    struct mu_buf text;
    char range[32];

    mu_buf_init(&text, MU_FLIGHT_BYTES_MAX);
    for (uint32_t i = 0; b->err == 0 && i < group->count;) {
        uint32_t last = i;
        int len;

        while (last + 1 < group->count && ranks[last + 1] == ranks[last] + 1) {
            last++;
        }
        len = last == i ? snprintf(range, sizeof(range), "%" PRIu32 ",", ranks[i])
                        : snprintf(range, sizeof(range), "%" PRIu32 "-%" PRIu32 ",", ranks[i],
                                   ranks[last]);
        b->err = mu_buf_append(&text, mu_span(range, (size_t)len));
        i = last + 1;
    }
    put_key(b, MU_FIELD_RANKS);
    put_span(b, mu_buf_span(&text));
    mu_buf_fini(&text);
}

static void put_groups(struct brief *b)
{
    put_key(b, MU_FIELD_PG_CONFIG);
    put_code(b, '}');
    put_code(b, '(');
    for (size_t i = 0; i < b->f->group_count; i++) {
        const struct mu_flight_group *group = &b->f->groups[i];

        put_text(b, mu_flight_text(b->f, group->name));
        put_code(b, '}');
        put_code(b, '(');
        put_key_text(b, MU_FIELD_NAME, mu_flight_text(b->f, group->name));
        put_key_text(b, MU_FIELD_DESC, mu_flight_text(b->f, group->desc));
        put_ranks(b, group);
        put_code(b, 'u');
    }
    put_code(b, 'u');
}

/* --- what is kept ----------------------------------------------------------------------------- */

/* Of one group, and either its collectives or its messages: those around the first that has not
 * ended, or the last ones if all have. */
static void keep_some(struct brief *b, uint32_t group, bool p2p, const struct window *w)
{
    const struct mu_flight *f = b->f;
    size_t begin = b->kept_count;
    size_t first = SIZE_MAX; /* in `kept` */
    size_t drop;

    for (uint32_t i = 0; i < f->entry_count; i++) {
        const struct mu_flight_entry *e = &f->entries[i];

        if (e->group != group || e->p2p != p2p) {
            continue;
        }
        if (first != SIZE_MAX && b->kept_count - first >= w->after) {
            break;
        }
        if (first == SIZE_MAX && !e->ended) {
            first = b->kept_count;
        }
        b->kept[b->kept_count++] = i;
    }
    first = first == SIZE_MAX ? b->kept_count : first;
    drop = first - begin > w->before ? first - begin - w->before : 0;
    memmove(b->kept + begin, b->kept + begin + drop,
            (b->kept_count - begin - drop) * sizeof(*b->kept));
    b->kept_count -= drop;
}

static void write_brief(struct brief *b, const struct window *w)
{
    b->kept_count = 0;
    for (uint32_t i = 0; i < b->f->group_count; i++) {
        keep_some(b, i, false, w);
        keep_some(b, i, true, w);
    }
    put_code(b, 0x80);
    put_code(b, 2);
    put_code(b, '}');
    put_code(b, '(');
    put_key_text(b, MU_FIELD_VERSION, mu_flight_text(b->f, b->f->version));
    put_groups(b);
    put_key(b, MU_FIELD_ENTRIES);
    put_code(b, ']');
    put_code(b, '(');
    for (size_t i = 0; i < b->kept_count; i++) {
        put_entry(b, &b->f->entries[b->kept[i]]);
    }
    put_code(b, 'e');
    put_code(b, 'u');
    put_code(b, '.');
}

int mu_flight_brief(const struct mu_flight *f, struct mu_buf *out)
{
    uint32_t *kept = mu_calloc(f->entry_count + 1, sizeof(*kept));
    int err = MUSTER_ELIMIT;

    if (kept == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; err == MUSTER_ELIMIT && i < sizeof(windows) / sizeof(windows[0]); i++) {
        struct brief b = {.f = f, .out = out, .kept = kept};

        mu_buf_reset(out);
        write_brief(&b, &windows[i]);
        err = b.err;
    }
    if (err != 0) {
        mu_buf_reset(out);
    }
    mu_free(kept);
    return err;
}
