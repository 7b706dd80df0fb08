/* The findings of flight_compare.h in words. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <muster/error.h>

#include "codec/stacks/place.h"
#include "core/alloc.h"
#include "proto/stacks/flight_compare_internal.h"
#include "proto/stacks/group.h"

#define RANGES_CAP 96

static struct mu_flight_finding *begin(struct mu_flight_work *w, enum mu_flight_fault fault,
                                       uint64_t seq, size_t at_fault)
{
    struct mu_flight_compare *c = w->c;
    struct mu_flight_finding *finding;

    if (c->finding_count == MU_FLIGHT_FINDINGS_MAX) {
        c->left_out++;
        return NULL;
    }
    if (c->rank_cap - c->rank_count < at_fault) {
        size_t cap = 2 * c->rank_cap + at_fault;
        uint32_t *grown = mu_realloc(c->ranks, cap * sizeof(*grown));

        if (grown == NULL) {
            w->err = MUSTER_ENOMEM;
            return NULL;
        }
        c->ranks = grown;
        c->rank_cap = cap;
    }
    finding = &c->findings[c->finding_count++];
    finding->fault = fault;
    finding->seq = seq;
    finding->first = (uint32_t)c->rank_count;
    finding->count = (uint32_t)at_fault;
    memcpy(c->ranks + c->rank_count, w->ranks, at_fault * sizeof(*c->ranks));
    c->rank_count += at_fault;
    return finding;
}

__attribute__((format(printf, 2, 3))) static void say(struct mu_flight_finding *finding,
                                                      const char *format, ...)
{
    size_t len = strlen(finding->text);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(finding->text + len, sizeof(finding->text) - len, format, args);
    va_end(args);
}

/* "rank 3", "ranks 0-2,4" */
static void say_ranks(struct mu_flight_finding *finding, const uint32_t *ranks, size_t count)
{
    char text[RANGES_CAP];

    (void)mu_groups_ranges(text, sizeof(text), ranks, count);
    say(finding, "%s %s", count == 1 ? "rank" : "ranks", text);
}

static const char *group_name(const struct mu_flight_work *w, const struct mu_flight_member *m)
{
    const struct mu_flight *f = w->dumps[m->dump].flight;
    const char *desc = mu_flight_text(f, f->groups[m->group].desc);

    if (strcmp(desc, "default_pg") == 0) {
        return "default";
    }
    return desc[0] == '\0' || strcmp(desc, "undefined") == 0
               ? mu_flight_text(f, f->groups[m->group].name)
               : desc;
}

static const char *op_name(const struct mu_flight_work *w, const struct mu_flight_member *m,
                           const struct mu_flight_entry *e)
{
    return mu_flight_text(w->dumps[m->dump].flight, e->name);
}

/* " (train.py:81)", if the stack was recorded. */
static void say_place(struct mu_flight_work *w, struct mu_flight_finding *finding,
                      const struct mu_flight_member *m, const struct mu_flight_entry *e)
{
    const char *file = mu_flight_text(w->dumps[m->dump].flight, e->file);

    if (file[0] != '\0') {
        struct mu_span base = mu_place_base(mu_span_str(file));

        say(finding, " (%.*s:%u)", (int)base.len, (const char *)base.data, e->line);
    }
}

static const struct mu_flight_member *find_member(const struct mu_flight_work *w, uint32_t rank)
{
    for (size_t i = 0; i < w->member_count; i++) {
        if (w->members[i].rank == rank) {
            return &w->members[i];
        }
    }
    return NULL;
}

/* The first collective that a rank is in: the reason, often, why it is not here. */
static void say_elsewhere(struct mu_flight_work *w, struct mu_flight_finding *finding,
                          const struct mu_flight_member *m)
{
    const struct mu_flight *f = w->dumps[m->dump].flight;

    for (size_t i = 0; i < f->entry_count; i++) {
        const struct mu_flight_entry *e = &f->entries[i];
        struct mu_flight_member there = {.dump = m->dump, .group = e->group};

        if (!e->p2p && !e->ended) {
            say(finding, ", and it waits in %s #%llu of group %s", op_name(w, &there, e),
                (unsigned long long)e->seq, group_name(w, &there));
            say_place(w, finding, &there, e);
            return;
        }
    }
}

/* What the first of those that are not there did last. */
static void say_last(struct mu_flight_work *w, struct mu_flight_finding *finding, uint32_t rank,
                     bool alone)
{
    const struct mu_flight_member *m = find_member(w, rank);

    if (m == NULL) {
        return;
    }
    if (alone) {
        say(finding, ": its last was ");
    } else {
        say(finding, ": the last of rank %u was ", rank);
    }
    if (m->count == 0) {
        say(finding, "none of this group");
    } else {
        const struct mu_flight_item *item = &m->items[m->count - 1];
        const struct mu_flight_entry *e = mu_flight_entry_of(w, m, item);

        say(finding, "%s #%llu", op_name(w, m, e), (unsigned long long)item->seq);
        say_place(w, finding, m, e);
    }
    say_elsewhere(w, finding, m);
}

void mu_flight_say_not_entered(struct mu_flight_work *w, const struct mu_flight_member *in,
                               size_t at_fault, size_t waiting)
{
    const struct mu_flight_entry *e = mu_flight_at(w, in);
    struct mu_flight_finding *finding = begin(w, MU_FLIGHT_NOT_ENTERED, e->seq, at_fault);

    if (finding == NULL) {
        return;
    }
    say_ranks(finding, w->others, waiting);
    say(finding, " %s in %s #%llu of group %s", waiting == 1 ? "waits" : "wait", op_name(w, in, e),
        (unsigned long long)e->seq, group_name(w, in));
    say_place(w, finding, in, e);
    say(finding, "; ");
    say_ranks(finding, w->ranks, at_fault);
    say(finding, " %s not entered it", at_fault == 1 ? "has" : "have");
    say_last(w, finding, w->ranks[0], at_fault == 1);
}

void mu_flight_say_left_out(struct mu_flight_work *w, const struct mu_flight_member *in,
                            const struct mu_flight_member *odd, size_t at_fault, size_t others)
{
    const struct mu_flight_entry *e = mu_flight_at(w, in);
    const struct mu_flight_entry *next = mu_flight_at(w, odd);
    struct mu_flight_finding *finding = begin(w, MU_FLIGHT_LEFT_OUT, e->seq, at_fault);

    if (finding == NULL) {
        return;
    }
    say_ranks(finding, w->others, others);
    say(finding, " entered %s #%llu of group %s", op_name(w, in, e), (unsigned long long)e->seq,
        group_name(w, in));
    say_place(w, finding, in, e);
    say(finding, ", which ");
    say_ranks(finding, w->ranks, at_fault);
    say(finding, " left out for %s #%llu", op_name(w, odd, next), (unsigned long long)next->seq);
    say_place(w, finding, odd, next);
}

void mu_flight_say_other(struct mu_flight_work *w, const struct mu_flight_member *in,
                         const struct mu_flight_member *odd, enum mu_flight_fault fault,
                         size_t at_fault, size_t others)
{
    const struct mu_flight_entry *usual = mu_flight_at(w, in);
    const struct mu_flight_entry *e = mu_flight_at(w, odd);
    const struct mu_flight *f = w->dumps[odd->dump].flight;
    const struct mu_flight *usual_f = w->dumps[in->dump].flight;
    struct mu_flight_finding *finding = begin(w, fault, e->seq, at_fault);

    if (finding == NULL) {
        return;
    }
    say_ranks(finding, w->ranks, at_fault);
    say(finding, " entered %s #%llu of group %s", op_name(w, odd, e), (unsigned long long)e->seq,
        group_name(w, odd));
    if (fault != MU_FLIGHT_OTHER_OP) {
        bool sizes = fault == MU_FLIGHT_OTHER_SIZES;
        bool in_differs = e->inputs.sizes_digest != usual->inputs.sizes_digest;
        const struct mu_flight_tensors *t = !sizes || in_differs ? &e->inputs : &e->outputs;
        const struct mu_flight_tensors *u = !sizes || in_differs ? &usual->inputs : &usual->outputs;

        say(finding, " with %s %s", sizes ? "sizes" : "types",
            mu_flight_text(f, sizes ? t->sizes : t->types));
        say_place(w, finding, odd, e);
        say(finding, ", but ");
        say_ranks(finding, w->others, others);
        say(finding, " with %s", mu_flight_text(usual_f, sizes ? u->sizes : u->types));
    } else {
        say_place(w, finding, odd, e);
        say(finding, ", but ");
        say_ranks(finding, w->others, others);
        say(finding, " entered %s", op_name(w, in, usual));
    }
    say_place(w, finding, in, usual);
}

void mu_flight_say_not_finished(struct mu_flight_work *w, const struct mu_flight_member *in,
                                size_t at_fault, size_t finished)
{
    const struct mu_flight_entry *e = mu_flight_at(w, in);
    struct mu_flight_finding *finding = begin(w, MU_FLIGHT_NOT_FINISHED, e->seq, at_fault);

    if (finding == NULL) {
        return;
    }
    say_ranks(finding, w->ranks, at_fault);
    say(finding, " %s entered %s #%llu of group %s and not finished it",
        at_fault == 1 ? "has" : "have", op_name(w, in, e), (unsigned long long)e->seq,
        group_name(w, in));
    say_place(w, finding, in, e);
    if (finished != 0) {
        say(finding, ", but ");
        say_ranks(finding, w->others, finished);
        say(finding, " %s", finished == 1 ? "has" : "have");
    }
}

/* The name that the other end of a message has: "recv 3<-0" for "send 0->3". False: it has none. */
static bool other_end(const char *name, char out[64], uint32_t *ret_peer)
{
    unsigned a = 0;
    unsigned b = 0;

    if (sscanf(name, "send %u->%u", &a, &b) == 2) {
        (void)snprintf(out, 64, "recv %u<-%u", b, a);
    } else if (sscanf(name, "recv %u<-%u", &a, &b) == 2) {
        (void)snprintf(out, 64, "send %u->%u", b, a);
    } else {
        return false;
    }
    *ret_peer = b;
    return true;
}

static bool is_in_message(const struct mu_flight_work *w, const struct mu_flight_member *m,
                          const char *name)
{
    for (size_t i = 0; i < m->message_count; i++) {
        const struct mu_flight_entry *e = mu_flight_entry_of(w, m, &m->messages[i]);

        if (!e->ended && strcmp(op_name(w, m, e), name) == 0) {
            return true;
        }
    }
    return false;
}

void mu_flight_say_message(struct mu_flight_work *w, const struct mu_flight_member *m,
                           const struct mu_flight_item *item)
{
    const struct mu_flight_entry *e = mu_flight_entry_of(w, m, item);
    const struct mu_flight *f = w->dumps[m->dump].flight;
    const struct mu_flight_group *group = &f->groups[m->group];
    const struct mu_flight_member *peer;
    struct mu_flight_finding *finding;
    char wanted[64];
    uint32_t number = 0;

    w->ranks[0] = m->rank;
    finding = begin(w, MU_FLIGHT_MESSAGE, item->seq, 1);
    if (finding == NULL) {
        return;
    }
    say(finding, "rank %u waits in %s of group %s", m->rank, op_name(w, m, e), group_name(w, m));
    say_place(w, finding, m, e);
    if (!other_end(op_name(w, m, e), wanted, &number) || number >= group->count) {
        return;
    }
    /* The numbers in the name are those of the group's members, not of the world. */
    peer = find_member(w, f->ranks[group->first + number]);
    if (peer != NULL) {
        say(finding, "; rank %u is %sin the %.4s that belongs to it", peer->rank,
            is_in_message(w, peer, wanted) ? "" : "not ", wanted);
    }
}

void mu_flight_say_no_dump(struct mu_flight_work *w, size_t at_fault)
{
    struct mu_flight_finding *finding = begin(w, MU_FLIGHT_NO_DUMP, 0, at_fault);

    if (finding == NULL) {
        return;
    }
    say(finding, "there is no dump of ");
    say_ranks(finding, w->ranks, at_fault);
    say(finding, ", which %s to group %s", at_fault == 1 ? "belongs" : "belong",
        group_name(w, &w->members[0]));
}
