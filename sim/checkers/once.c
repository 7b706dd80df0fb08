#include "checkers/once.h"

#include <inttypes.h>

#include "core/alloc.h"
#include "core/assert.h"

enum ticket_state {
    BEGUN = 1,
    ENDED,
    FORGIVEN,
};

struct ticket {
    uint32_t owner;
    enum ticket_state state;
};

struct once {
    struct mu_sim *sim;
    const char *what;
    struct ticket *tickets; /* number n is at n - 1 */
    size_t count;
    size_t cap;
    size_t open;
};

struct once *once_new(struct mu_sim *sim, const char *what)
{
    struct mu_sim_heap *heap = mu_sim_outside();
    struct once *o = mu_calloc(1, sizeof(*o));

    mu_sim_inside(heap);
    if (o != NULL) {
        o->sim = sim;
        o->what = what;
    }
    return o;
}

void once_free(struct once *o)
{
    if (o != NULL) {
        mu_free(o->tickets);
        mu_free(o);
    }
}

uint64_t once_begin(struct once *o, uint32_t owner)
{
    if (o->count == o->cap) {
        struct mu_sim_heap *heap = mu_sim_outside();
        size_t cap = o->cap == 0 ? 64 : o->cap * 2;
        struct ticket *bigger = mu_realloc(o->tickets, cap * sizeof(*bigger));

        mu_sim_inside(heap);
        MU_ASSERT(bigger != NULL);
        o->tickets = bigger;
        o->cap = cap;
    }
    o->tickets[o->count++] = (struct ticket){owner, BEGUN};
    o->open++;
    return o->count;
}

void once_end(struct once *o, uint64_t ticket)
{
    struct ticket *t;

    if (ticket == 0 || ticket > o->count) {
        mu_sim_fail(o->sim, "%s %" PRIu64 " ended and had never begun", o->what, ticket);
        return;
    }
    t = &o->tickets[ticket - 1];
    switch (t->state) {
    case BEGUN:
        t->state = ENDED;
        o->open--;
        return;
    case ENDED:
        mu_sim_fail(o->sim, "%s %" PRIu64 " of %" PRIu32 " ended twice", o->what, ticket, t->owner);
        return;
    case FORGIVEN:
        mu_sim_fail(o->sim, "%s %" PRIu64 " of %" PRIu32 " ended after its owner died", o->what,
                    ticket, t->owner);
        return;
    }
}

void once_forgive(struct once *o, uint32_t owner)
{
    for (size_t i = 0; i < o->count; i++) {
        if (o->tickets[i].owner == owner && o->tickets[i].state == BEGUN) {
            o->tickets[i].state = FORGIVEN;
            o->open--;
        }
    }
}

size_t once_open(const struct once *o)
{
    return o->open;
}

void once_finish(struct once *o)
{
    for (size_t i = 0; i < o->count; i++) {
        if (o->tickets[i].state == BEGUN) {
            mu_sim_fail(o->sim, "%s %zu of %" PRIu32 " never ended (%zu did not)", o->what, i + 1,
                        o->tickets[i].owner, o->open);
            return;
        }
    }
}
