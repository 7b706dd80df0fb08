/* The process groups of a dump: their members, and the newest collective of each. */
#include "codec/stacks/flight_internal.h"

#include <stdlib.h>

#include <muster/error.h>

#include "core/alloc.h"

static int make_group(struct mu_flight_decoder *d, uint32_t name, uint32_t desc,
                      uint32_t *ret_group)
{
    struct mu_flight *f = &d->f;

    if (f->group_count == MU_FLIGHT_GROUPS_MAX) {
        return mu_err(d->msg, MUSTER_ELIMIT, "the dump has more than %d groups",
                      MU_FLIGHT_GROUPS_MAX);
    }
    if (f->group_count == d->group_cap) {
        size_t cap = d->group_cap == 0 ? 8 : 2 * d->group_cap;
        struct mu_flight_group *grown = mu_realloc(f->groups, cap * sizeof(*grown));

        if (grown == NULL) {
            return mu_flight_lack_memory(d);
        }
        f->groups = grown;
        d->group_cap = cap;
    }
    *ret_group = (uint32_t)f->group_count;
    f->groups[f->group_count++] = (struct mu_flight_group){.name = name,
                                                           .desc = desc,
                                                           .id = UINT64_MAX,
                                                           .enqueued = -1,
                                                           .started = -1,
                                                           .completed = -1};
    return 0;
}

int mu_flight_meet_group(struct mu_flight_decoder *d, uint32_t name, uint32_t desc,
                         uint32_t *ret_group)
{
    struct mu_flight_note *note = &d->notes[name];
    uint32_t name_text = 0;
    uint32_t desc_text = 0;
    uint32_t group = 0;
    int err;

    if (note->group != 0) {
        *ret_group = note->group - 1;
        return 0;
    }
    err = mu_flight_read_text(d, name, "the name of a group", &name_text);
    if (err == 0) {
        err = mu_flight_read_text(d, desc, "the description of a group", &desc_text);
    }
    if (err == 0) {
        err = mu_flight_pay(d, d->f.group_count);
    }
    if (err != 0) {
        return err;
    }
    while (group < d->f.group_count && strcmp(mu_flight_text(&d->f, d->f.groups[group].name),
                                              mu_flight_text(&d->f, name_text)) != 0) {
        group++;
    }
    if (group == d->f.group_count) {
        err = make_group(d, name_text, desc_text, &group);
    }
    if (err == 0) {
        note->group = group + 1;
        *ret_group = group;
    }
    return err;
}

static int add_rank(struct mu_flight_decoder *d, uint32_t rank)
{
    struct mu_flight *f = &d->f;

    if (f->rank_count == MU_FLIGHT_RANKS_MAX) {
        return mu_err(d->msg, MUSTER_ELIMIT, "the groups of the dump have more than %zu members",
                      MU_FLIGHT_RANKS_MAX);
    }
    if (f->rank_count == d->rank_cap) {
        size_t cap = d->rank_cap == 0 ? 64 : 2 * d->rank_cap;
        uint32_t *grown = mu_realloc(f->ranks, cap * sizeof(*grown));

        if (grown == NULL) {
            return mu_flight_lack_memory(d);
        }
        f->ranks = grown;
        d->rank_cap = cap;
    }
    f->ranks[f->rank_count++] = rank;
    return 0;
}

/* Adds the ranks after the last one, too, if they are a range. */
static int add_ranks(struct mu_flight_decoder *d, uint32_t rank, bool is_range)
{
    uint32_t from = is_range ? d->f.ranks[d->f.rank_count - 1] + 1 : rank;
    int err = 0;

    if (is_range && from > rank) {
        return mu_flight_refuse(d, "a range of ranks of the dump ends before it begins");
    }
    for (uint32_t i = from; err == 0 && i <= rank; i++) {
        err = add_rank(d, i);
    }
    return err;
}

/* "[0, 1, 2]", or "[0-2]", which PyTorch does not write, but mu_flight_brief() does. */
static int read_ranks(struct mu_flight_decoder *d, uint32_t number, struct mu_flight_group *group)
{
    struct mu_span text;
    uint64_t rank = 0;
    bool inside = false;
    bool is_range = false;
    int err;

    if (!mu_pickle_is(&d->p, number, MU_PICKLE_TEXT)) {
        return mu_flight_refuse(d, "the ranks of a group of the dump are not a text");
    }
    text = mu_pickle_bytes(&d->p, number);
    err = mu_flight_pay(d, text.len);
    group->first = (uint32_t)d->f.rank_count;
    for (size_t i = 0; err == 0 && i <= text.len; i++) {
        uint8_t c = i < text.len ? text.data[i] : ']';

        if (c >= '0' && c <= '9') {
            rank = rank * 10 + (uint64_t)(c - '0');
            inside = true;
            if (rank > UINT32_MAX / 2) {
                return mu_flight_refuse(d, "a rank of a group of the dump is too large");
            }
        } else if (inside) {
            err = add_ranks(d, (uint32_t)rank, is_range);
            rank = 0;
            inside = false;
            is_range = c == '-';
        }
    }
    group->count = (uint32_t)(d->f.rank_count - group->first);
    return err;
}

int mu_flight_read_config(struct mu_flight_decoder *d, uint32_t dict)
{
    struct mu_pickle_walk w;
    int err =
        mu_flight_walk(d, dict, MU_PICKLE_DICT, (size_t)2 * MU_FLIGHT_GROUPS_MAX, "pg_config", &w);

    for (uint32_t k; err == 0 && (k = mu_pickle_next(&d->p, &w)) != MU_PICKLE_NOTHING;) {
        uint32_t found[MU_FIELD_COUNT];
        uint32_t group = 0;

        err = mu_flight_find_fields(d, mu_pickle_next(&d->p, &w), "a group", found);
        if (err == 0) {
            uint32_t name = found[MU_FIELD_NAME] == MU_PICKLE_NOTHING ? k : found[MU_FIELD_NAME];

            err = mu_flight_meet_group(
                d, name, found[MU_FIELD_DESC] == MU_PICKLE_NOTHING ? name : found[MU_FIELD_DESC],
                &group);
        }
        if (err == 0 && found[MU_FIELD_RANKS] != MU_PICKLE_NOTHING &&
            d->f.groups[group].count == 0) {
            err = read_ranks(d, found[MU_FIELD_RANKS], &d->f.groups[group]);
        }
    }
    return err;
}

static int read_newest(struct mu_flight_decoder *d, uint32_t number, int64_t *ret)
{
    const struct mu_pickle_value *v;

    if (number == MU_PICKLE_NOTHING) {
        return 0;
    }
    v = mu_pickle_at(&d->p, number);
    if (v->kind != MU_PICKLE_INT) {
        return mu_flight_refuse(d, "a number of pg_status of the dump is not whole");
    }
    *ret = v->as.integer < 0 ? -1 : v->as.integer;
    return 0;
}

static int read_group_status(struct mu_flight_decoder *d, uint32_t key, uint32_t dict)
{
    uint32_t found[MU_FIELD_COUNT];
    uint32_t text = 0;
    int err = mu_flight_find_fields(d, dict, "a status", found);

    if (err == 0) {
        err = mu_flight_read_text(d, key, "a key of pg_status", &text);
    }
    if (err == 0) {
        err = mu_flight_pay(d, d->f.group_count);
    }
    if (err != 0) {
        return err;
    }
    for (size_t i = 0; err == 0 && i < d->f.group_count; i++) {
        struct mu_flight_group *group = &d->f.groups[i];

        if (group->id != UINT64_MAX &&
            group->id == strtoull(mu_flight_text(&d->f, text), NULL, 10)) {
            err = read_newest(d, found[MU_FIELD_LAST_ENQUEUED], &group->enqueued);
            if (err == 0) {
                err = read_newest(d, found[MU_FIELD_LAST_STARTED], &group->started);
            }
            if (err == 0) {
                err = read_newest(d, found[MU_FIELD_LAST_COMPLETED], &group->completed);
            }
        }
    }
    return err;
}

int mu_flight_read_status(struct mu_flight_decoder *d, uint32_t dict)
{
    struct mu_pickle_walk w;
    int err =
        mu_flight_walk(d, dict, MU_PICKLE_DICT, (size_t)2 * MU_FLIGHT_GROUPS_MAX, "pg_status", &w);

    for (uint32_t k; err == 0 && (k = mu_pickle_next(&d->p, &w)) != MU_PICKLE_NOTHING;) {
        err = read_group_status(d, k, mu_pickle_next(&d->p, &w));
    }
    return err;
}
