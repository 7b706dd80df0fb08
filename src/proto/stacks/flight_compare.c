#include "proto/stacks/flight_compare.h"

#include <stdlib.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "proto/stacks/flight_compare_internal.h"

#define FNV_BASIS UINT64_C(0xcbf29ce484222325)
#define FNV_PRIME UINT64_C(0x100000001b3)

void mu_flight_compare_init(struct mu_flight_compare *c)
{
    *c = (struct mu_flight_compare){0};
}

void mu_flight_compare_fini(struct mu_flight_compare *c)
{
    mu_free(c->findings);
    mu_free(c->ranks);
    mu_free(c->lags);
    mu_flight_compare_init(c);
}

const struct mu_flight_entry *mu_flight_at(const struct mu_flight_work *w,
                                           const struct mu_flight_member *m)
{
    return m->at == m->count ? NULL : mu_flight_entry_of(w, m, &m->items[m->at]);
}

/* --- order ------------------------------------------------------------------------------------ */

static int compare_items(const void *a, const void *b)
{
    const struct mu_flight_item *x = a;
    const struct mu_flight_item *y = b;

    if (x->group != y->group) {
        return x->group < y->group ? -1 : 1;
    }
    if (x->p2p != y->p2p) {
        return x->p2p ? 1 : -1;
    }
    if (x->seq != y->seq) {
        return x->seq < y->seq ? -1 : 1;
    }
    return (x->index > y->index) - (x->index < y->index);
}

static int compare_parts(const void *a, const void *b)
{
    const struct mu_flight_part *x = a;
    const struct mu_flight_part *y = b;

    if (x->lead != y->lead) {
        return x->lead < y->lead ? -1 : 1;
    }
    if (x->digest != y->digest) {
        return x->digest < y->digest ? -1 : 1;
    }
    return (x->dump > y->dump) - (x->dump < y->dump);
}

/* Brings those of one group together, and the groups into the order in which they are first met. */
static void sort_parts(struct mu_flight_work *w)
{
    qsort(w->parts, w->part_count, sizeof(*w->parts), compare_parts);
    for (size_t i = 0; i < w->part_count; i++) {
        struct mu_flight_part *part = &w->parts[i];

        part->lead = i != 0 && part[-1].digest == part->digest
                         ? part[-1].lead
                         : (uint64_t)part->dump << 32 | part->group;
    }
    qsort(w->parts, w->part_count, sizeof(*w->parts), compare_parts);
}

static int compare_members(const void *a, const void *b)
{
    const struct mu_flight_member *x = a;
    const struct mu_flight_member *y = b;

    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* By its name and its members. */
static uint64_t digest_group(const struct mu_flight *f, const struct mu_flight_group *group)
{
    uint64_t digest = FNV_BASIS;

    for (const char *c = mu_flight_text(f, group->name); *c != '\0'; c++) {
        digest = (digest ^ (uint8_t)*c) * FNV_PRIME;
    }
    for (uint32_t i = 0; i < group->count; i++) {
        digest = (digest ^ f->ranks[group->first + i] ^ UINT64_C(1) << 40) * FNV_PRIME;
    }
    return digest;
}

static void sort_dump(struct mu_flight_work *w, uint32_t dump)
{
    const struct mu_flight *f = w->dumps[dump].flight;
    struct mu_flight_item *items = w->items + w->first[dump];

    for (uint32_t i = 0; i < f->entry_count; i++) {
        const struct mu_flight_entry *e = &f->entries[i];

        items[i] = (struct mu_flight_item){e->seq, e->group, i, e->p2p};
    }
    qsort(items, f->entry_count, sizeof(*items), compare_items);
    for (uint32_t i = 0; i < f->group_count; i++) {
        w->parts[w->part_count++] =
            (struct mu_flight_part){digest_group(f, &f->groups[i]), 0, dump, i};
    }
}

/* The first item of a dump that is not before the given one. */
static const struct mu_flight_item *find_item(const struct mu_flight_work *w, uint32_t dump,
                                              const struct mu_flight_item *wanted)
{
    size_t low = w->first[dump];
    size_t high = w->first[dump + 1];

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (compare_items(&w->items[middle], wanted) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return w->items + low;
}

static void make_member(struct mu_flight_work *w, const struct mu_flight_part *part)
{
    struct mu_flight_member *m = &w->members[w->member_count++];
    struct mu_flight_item begin = {.group = part->group};
    struct mu_flight_item middle = {.group = part->group, .p2p = true};
    struct mu_flight_item end = {.group = part->group + 1};

    *m = (struct mu_flight_member){
        .rank = w->dumps[part->dump].rank, .dump = part->dump, .group = part->group};
    m->items = find_item(w, part->dump, &begin);
    m->messages = find_item(w, part->dump, &middle);
    m->count = (size_t)(m->messages - m->items);
    m->message_count = (size_t)(find_item(w, part->dump, &end) - m->messages);
}

/* --- one collective --------------------------------------------------------------------------- */

static uint64_t seq_at(const struct mu_flight_member *m)
{
    return m->items[m->at].seq;
}

/* The member that is the furthest behind, of those that have something left; NULL: none. */
static struct mu_flight_member *find_next(struct mu_flight_work *w)
{
    struct mu_flight_member *next = NULL;

    for (size_t i = 0; i < w->member_count; i++) {
        struct mu_flight_member *m = &w->members[i];

        if (m->at < m->count && (next == NULL || seq_at(m) < seq_at(next))) {
            next = m;
        }
    }
    return next;
}

static bool is_there(const struct mu_flight_member *m, const struct mu_flight_member *next)
{
    return m->at < m->count && seq_at(m) == seq_at(next);
}

static bool has_name(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether two ranks in one collective have the sizes that they must have. Those of an all_gather
 * may differ in what goes in, those of a reduce_scatter in what comes out; of others nothing is
 * known. */
static bool same_sizes(const char *name, const struct mu_flight_entry *a,
                       const struct mu_flight_entry *b)
{
    static const char *const inputs[] = {
        "all_reduce",           "broadcast",       "reduce", "reduce_scatter",
        "_reduce_scatter_base", "_all_gather_base"};
    static const char *const outputs[] = {"all_gather", "_reduce_scatter_base", "_all_gather_base"};

    return (!has_name(name, inputs, sizeof(inputs) / sizeof(inputs[0])) ||
            a->inputs.sizes_digest == b->inputs.sizes_digest) &&
           (!has_name(name, outputs, sizeof(outputs) / sizeof(outputs[0])) ||
            a->outputs.sizes_digest == b->outputs.sizes_digest);
}

static bool are_alike(const struct mu_flight_work *w, const struct mu_flight_member *a,
                      const struct mu_flight_member *b, enum mu_flight_fault by)
{
    const struct mu_flight_entry *x = mu_flight_at(w, a);
    const struct mu_flight_entry *y = mu_flight_at(w, b);
    const char *x_name = mu_flight_text(w->dumps[a->dump].flight, x->name);
    const char *y_name = mu_flight_text(w->dumps[b->dump].flight, y->name);

    if (strcmp(x_name, y_name) != 0) {
        return by != MU_FLIGHT_OTHER_OP;
    }
    if (by == MU_FLIGHT_OTHER_SIZES) {
        return same_sizes(x_name, x, y);
    }
    return by != MU_FLIGHT_OTHER_TYPES || x->inputs.types_digest == y->inputs.types_digest;
}

/* The one that most of those at `next` agree with: the candidate that outlives a vote of each
 * against each. If there is no majority, it is one of them. */
static struct mu_flight_member *find_usual(struct mu_flight_work *w, struct mu_flight_member *next,
                                           enum mu_flight_fault by)
{
    struct mu_flight_member *usual = next;
    size_t votes = 0;

    for (size_t i = 0; i < w->member_count; i++) {
        struct mu_flight_member *m = &w->members[i];

        if (!is_there(m, next)) {
            continue;
        }
        if (votes == 0) {
            usual = m;
        }
        votes += are_alike(w, m, usual, by) ? 1 : (size_t)-1;
    }
    return usual;
}

/* Says who differs from most in one respect. Returns whether somebody does. */
static bool find_odd(struct mu_flight_work *w, struct mu_flight_member *next,
                     enum mu_flight_fault by)
{
    struct mu_flight_member *usual = find_usual(w, next, by);
    const struct mu_flight_member *first = NULL;
    size_t before = w->c->finding_count;
    size_t odd = 0;
    size_t others = 0;
    bool ended = false;

    for (size_t i = 0; i < w->member_count; i++) {
        const struct mu_flight_member *m = &w->members[i];

        if (!is_there(m, next)) {
            continue;
        }
        ended |= mu_flight_at(w, m)->ended;
        if (are_alike(w, m, usual, by)) {
            w->others[others++] = m->rank;
        } else {
            first = first == NULL ? m : first;
            w->ranks[odd++] = m->rank;
        }
    }
    if (odd != 0) {
        mu_flight_say_other(w, usual, first, by, odd, others);
    }
    if (w->c->finding_count > before) {
        w->c->findings[before].ended = ended;
    }
    return odd != 0;
}

static size_t list_there(struct mu_flight_work *w, const struct mu_flight_member *next)
{
    size_t there = 0;

    for (size_t i = 0; i < w->member_count; i++) {
        if (is_there(&w->members[i], next)) {
            w->others[there++] = w->members[i].rank;
        }
    }
    return there;
}

static bool find_absent(struct mu_flight_work *w, const struct mu_flight_member *next)
{
    size_t absent = 0;

    for (size_t i = 0; i < w->member_count; i++) {
        if (w->members[i].at == w->members[i].count) {
            w->ranks[absent++] = w->members[i].rank;
        }
    }
    if (absent != 0) {
        mu_flight_say_not_entered(w, next, absent, list_there(w, next));
    }
    return absent != 0;
}

/* PyTorch leaves out no number, so this is one of several operations that were put together. */
static bool find_left_out(struct mu_flight_work *w, const struct mu_flight_member *next)
{
    const struct mu_flight_member *first = NULL;
    size_t ahead = 0;

    for (size_t i = 0; i < w->member_count; i++) {
        const struct mu_flight_member *m = &w->members[i];

        if (m->at < m->count && !is_there(m, next)) {
            first = first == NULL ? m : first;
            w->ranks[ahead++] = m->rank;
        }
    }
    if (ahead != 0) {
        mu_flight_say_left_out(w, next, first, ahead, list_there(w, next));
    }
    return ahead != 0;
}

static bool find_unfinished(struct mu_flight_work *w, const struct mu_flight_member *next)
{
    size_t unfinished = 0;
    size_t finished = 0;

    for (size_t i = 0; i < w->member_count; i++) {
        const struct mu_flight_member *m = &w->members[i];

        if (!is_there(m, next)) {
            continue;
        }
        if (mu_flight_at(w, m)->ended) {
            w->others[finished++] = m->rank;
        } else {
            w->ranks[unfinished++] = m->rank;
        }
    }
    if (unfinished != 0) {
        mu_flight_say_not_finished(w, next, unfinished, finished);
    }
    return unfinished != 0;
}

/* --- lags ------------------------------------------------------------------------------------- */

/* For how long a rank was in a collective, by its own clocks; 0: not known. */
static uint64_t time_in(const struct mu_flight_entry *e)
{
    uint64_t from = e->started_ns != 0 ? e->started_ns : e->created_ns;

    if (e->duration_ns != 0) {
        return e->duration_ns;
    }
    return e->ended && from != 0 && e->completed_ns > from ? e->completed_ns - from : 0;
}

static void count_lags(struct mu_flight_work *w)
{
    const struct mu_flight_member *last = NULL;
    uint64_t least = UINT64_MAX;
    uint64_t second = UINT64_MAX;

    for (size_t i = 0; i < w->member_count; i++) {
        uint64_t ns = time_in(mu_flight_at(w, &w->members[i]));

        if (ns == 0) {
            return;
        }
        if (ns < least) {
            second = least;
            least = ns;
            last = &w->members[i];
        } else if (ns < second) {
            second = ns;
        }
    }
    for (size_t i = 0; i < w->member_count; i++) {
        struct mu_flight_lag *lag = &w->c->lags[w->members[i].dump];

        lag->collectives++;
        lag->waited_ns += time_in(mu_flight_at(w, &w->members[i])) - least;
    }
    if (last != NULL && second > least) {
        w->c->lags[last->dump].last++;
        w->c->lags[last->dump].kept_ns += second - least;
    }
}

static void measure_span(struct mu_flight_work *w, uint32_t dump)
{
    const struct mu_flight *f = w->dumps[dump].flight;
    uint64_t first = UINT64_MAX;
    uint64_t last = 0;

    for (size_t i = 0; i < f->entry_count; i++) {
        const struct mu_flight_entry *e = &f->entries[i];
        uint64_t end = e->completed_ns > e->created_ns ? e->completed_ns : e->created_ns;

        first = e->created_ns != 0 && e->created_ns < first ? e->created_ns : first;
        last = end > last ? end : last;
    }
    w->c->lags[dump].span_ns = last > first ? last - first : 0;
}

/* --- one group -------------------------------------------------------------------------------- */

static void skip_before(struct mu_flight_work *w, uint64_t seq)
{
    for (size_t i = 0; i < w->member_count; i++) {
        struct mu_flight_member *m = &w->members[i];

        while (m->at < m->count && seq_at(m) < seq) {
            m->at++;
        }
    }
}

static size_t count_same(const struct mu_flight_member *m)
{
    size_t count = 0;

    while (m->at + count < m->count && m->items[m->at + count].seq == seq_at(m)) {
        count++;
    }
    return count;
}

/* Whether some recorders have more operations of the oldest number than others, and all have gone
 * on since: then some have forgotten a part of it, and it is no use to compare it. */
static bool is_cut(const struct mu_flight_work *w, uint64_t oldest)
{
    size_t same = 0;
    bool cut = false;

    for (size_t i = 0; i < w->member_count; i++) {
        const struct mu_flight_member *m = &w->members[i];

        if (m->at == m->count || m->items[m->count - 1].seq == oldest) {
            return false;
        }
        if (seq_at(m) == oldest) {
            cut |= same != 0 && count_same(m) != same;
            same = count_same(m);
        }
    }
    return cut;
}

/* Begins at the oldest collective that all recorders still have. A rank that has fallen so far
 * behind that the others have forgotten where it is has nothing left to compare. */
static void skip_forgotten(struct mu_flight_work *w)
{
    uint64_t oldest = 0;

    for (size_t i = 0; i < w->member_count; i++) {
        const struct mu_flight_member *m = &w->members[i];

        oldest = m->count != 0 && m->items[0].seq > oldest ? m->items[0].seq : oldest;
    }
    skip_before(w, oldest);
    if (is_cut(w, oldest)) {
        skip_before(w, oldest + 1);
    }
}

static bool are_all_there(struct mu_flight_work *w, const struct mu_flight_member *next)
{
    for (size_t i = 0; i < w->member_count; i++) {
        if (!is_there(&w->members[i], next)) {
            return false;
        }
    }
    return true;
}

static bool find_fault(struct mu_flight_work *w, struct mu_flight_member *next)
{
    bool other = find_odd(w, next, MU_FLIGHT_OTHER_OP);
    bool absent = find_absent(w, next);
    bool left_out = find_left_out(w, next);
    bool sizes = find_odd(w, next, MU_FLIGHT_OTHER_SIZES);
    bool types = find_odd(w, next, MU_FLIGHT_OTHER_TYPES);

    return other || absent || left_out || sizes || types || find_unfinished(w, next);
}

static void advance(struct mu_flight_work *w, const struct mu_flight_member *next)
{
    struct mu_flight_member now = *next;

    for (size_t i = 0; i < w->member_count; i++) {
        if (is_there(&w->members[i], &now)) {
            w->members[i].at++;
        }
    }
}

static void compare_collectives(struct mu_flight_work *w)
{
    struct mu_flight_member *next;

    skip_forgotten(w);
    while ((next = find_next(w)) != NULL && !find_fault(w, next)) {
        if (w->member_count > 1 && are_all_there(w, next)) {
            count_lags(w);
        }
        advance(w, next);
    }
}

static void compare_messages(struct mu_flight_work *w)
{
    for (size_t i = 0; i < w->member_count; i++) {
        const struct mu_flight_member *m = &w->members[i];

        for (size_t k = 0; k < m->message_count; k++) {
            if (!mu_flight_entry_of(w, m, &m->messages[k])->ended) {
                mu_flight_say_message(w, m, &m->messages[k]);
                break;
            }
        }
    }
}

static int compare_numbers(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* Members of the group whose dump was not given. */
static void find_no_dump(struct mu_flight_work *w)
{
    const struct mu_flight *f = w->dumps[w->members[0].dump].flight;
    const struct mu_flight_group *group = &f->groups[w->members[0].group];
    size_t missing = 0;

    for (uint32_t i = 0; i < group->count; i++) {
        struct mu_flight_member wanted = {.rank = f->ranks[group->first + i]};

        if (bsearch(&wanted, w->members, w->member_count, sizeof(wanted), compare_members) ==
            NULL) {
            w->ranks[missing++] = wanted.rank;
        }
    }
    if (missing != 0) {
        qsort(w->ranks, missing, sizeof(*w->ranks), compare_numbers);
        mu_flight_say_no_dump(w, missing);
    }
}

/* A group that nobody has used says nothing. Gloo even lists one that does not exist. */
static bool has_items(const struct mu_flight_work *w)
{
    for (size_t i = 0; i < w->member_count; i++) {
        if (w->members[i].count != 0 || w->members[i].message_count != 0) {
            return true;
        }
    }
    return false;
}

static void compare_groups(struct mu_flight_work *w)
{
    for (size_t i = 0; i < w->part_count && w->err == 0;) {
        size_t end = i;

        w->member_count = 0;
        while (end < w->part_count && w->parts[end].digest == w->parts[i].digest) {
            make_member(w, &w->parts[end++]);
        }
        i = end;
        qsort(w->members, w->member_count, sizeof(*w->members), compare_members);
        if (has_items(w)) {
            compare_collectives(w);
            compare_messages(w);
            find_no_dump(w);
        }
    }
}

/* --- all -------------------------------------------------------------------------------------- */

static int prepare(struct mu_flight_work *w)
{
    size_t items = 0;
    size_t parts = 0;
    size_t ranks = 0;

    w->first = mu_calloc(w->dump_count + 1, sizeof(*w->first));
    if (w->first == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < w->dump_count; i++) {
        const struct mu_flight *f = w->dumps[i].flight;

        w->first[i] = items;
        items += f->entry_count;
        parts += f->group_count;
        ranks = f->rank_count > ranks ? f->rank_count : ranks;
    }
    w->first[w->dump_count] = items;
    ranks = ranks > parts ? ranks : parts;
    w->items = mu_calloc(items + 1, sizeof(*w->items));
    w->parts = mu_calloc(parts + 1, sizeof(*w->parts));
    w->members = mu_calloc(parts + 1, sizeof(*w->members));
    w->ranks = mu_calloc(ranks + 1, sizeof(*w->ranks));
    w->others = mu_calloc(ranks + 1, sizeof(*w->others));
    w->c->lags = mu_calloc(w->dump_count + 1, sizeof(*w->c->lags));
    w->c->findings = mu_calloc(MU_FLIGHT_FINDINGS_MAX, sizeof(*w->c->findings));
    return w->items == NULL || w->parts == NULL || w->members == NULL || w->ranks == NULL ||
                   w->others == NULL || w->c->lags == NULL || w->c->findings == NULL
               ? MUSTER_ENOMEM
               : 0;
}

int mu_flight_compare(struct mu_flight_compare *c, const struct mu_flight_dump *dumps, size_t count)
{
    struct mu_flight_work w = {.c = c, .dumps = dumps, .dump_count = count};

    mu_flight_compare_fini(c);
    if (count > MU_FLIGHT_DUMPS_MAX) {
        return MUSTER_ELIMIT;
    }
    w.err = prepare(&w);
    for (uint32_t i = 0; i < count && w.err == 0; i++) {
        sort_dump(&w, i);
        measure_span(&w, i);
    }
    if (w.err == 0) {
        sort_parts(&w);
        compare_groups(&w);
    }
    mu_free(w.first);
    mu_free(w.items);
    mu_free(w.parts);
    mu_free(w.members);
    mu_free(w.ranks);
    mu_free(w.others);
    if (w.err != 0) {
        mu_flight_compare_fini(c);
    }
    return w.err;
}

bool mu_flight_is_certain(const struct mu_flight_compare *c, uint32_t world)
{
    const struct mu_flight_finding *f = c->findings;

    return c->finding_count != 0 && f->fault >= MU_FLIGHT_OTHER_OP &&
           f->fault <= MU_FLIGHT_OTHER_TYPES && !f->ended && f->count < world;
}
