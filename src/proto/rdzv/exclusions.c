#include "proto/rdzv/exclusions.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"

void mu_exclusions_init(struct mu_exclusions *x, const struct mu_exclude_policy *policy)
{
    *x = (struct mu_exclusions){.policy = *policy};
    if (x->policy.after > MU_RDZV_FAILURES_MAX) {
        x->policy.after = MU_RDZV_FAILURES_MAX;
    }
}

void mu_exclusions_fini(struct mu_exclusions *x)
{
    mu_free(x->all);
    x->all = NULL;
    x->count = x->cap = 0;
}

/* --- entries --------------------------------------------------------------------------------- */

static void put_text(char *to, struct mu_span text)
{
    size_t len = text.len < MU_EXCLUSION_TEXT_MAX ? text.len : MU_EXCLUSION_TEXT_MAX;

    if (len != 0) {
        memmove(to, text.data, len);
    }
    to[len] = '\0';
}

bool mu_exclusion_names(const char *who, const char *machine, const char *node)
{
    size_t len = strlen(who);

    return len != 0 && (strcmp(who, machine) == 0 || strcmp(who, node) == 0 ||
                        (strncmp(who, node, len) == 0 && node[len] == '_'));
}

static struct mu_exclusion *find_key(const struct mu_exclusions *x, const char *key)
{
    for (uint32_t i = 0; i < x->count; i++) {
        if (strcmp(x->all[i].key, key) == 0) {
            return &x->all[i];
        }
    }
    return NULL;
}

/* Until when an entry is of any use. */
static mu_mono_t over_at(const struct mu_exclusions *x, const struct mu_exclusion *e)
{
    mu_mono_t counted = e->failed_count == 0
                            ? (mu_mono_t){0}
                            : mu_mono_add_ms(e->failed[e->failed_count - 1], x->policy.within_ms);

    return mu_mono_before(e->until, counted) ? counted : e->until;
}

static void drop(struct mu_exclusions *x, struct mu_exclusion *e)
{
    *e = x->all[--x->count];
}

/* Makes room for another entry. */
static int reserve(struct mu_exclusions *x, mu_mono_t now)
{
    struct mu_exclusion *first = NULL;
    struct mu_exclusion *all;
    uint32_t cap = x->cap == 0 ? 4 : 2 * x->cap;

    for (uint32_t i = 0; i < x->count; i++) {
        if (first == NULL || mu_mono_before(over_at(x, &x->all[i]), over_at(x, first))) {
            first = &x->all[i];
        }
    }
    if (x->count == MU_EXCLUSIONS_MAX ||
        (first != NULL && mu_mono_reached(over_at(x, first), now))) {
        drop(x, first);
    }
    if (x->count < x->cap) {
        return 0;
    }
    all = mu_realloc(x->all, cap * sizeof(*all));
    if (all == NULL) {
        return MUSTER_ENOMEM;
    }
    x->all = all;
    x->cap = cap;
    return 0;
}

/* Finds or makes the entry of a node. NULL: no memory. */
static struct mu_exclusion *take(struct mu_exclusions *x, mu_mono_t now, const char *machine,
                                 const char *node)
{
    const char *key = machine[0] != '\0' ? machine : node;
    struct mu_exclusion *e = find_key(x, key);

    if (e == NULL) {
        if (reserve(x, now) != 0) {
            return NULL;
        }
        e = &x->all[x->count++];
        *e = (struct mu_exclusion){0};
        put_text(e->key, mu_span_str(key));
    }
    put_text(e->node, mu_span_str(node));
    return e;
}

/* --- failures -------------------------------------------------------------------------------- */

/* Forgets the failures that do not count any more. */
static void forget_old(const struct mu_exclusions *x, struct mu_exclusion *e, mu_mono_t now)
{
    uint32_t old = 0;

    while (old < e->failed_count &&
           ((e->at.ns != 0 && mu_mono_reached(e->failed[old], e->at)) ||
            mu_mono_reached(mu_mono_add_ms(e->failed[old], x->policy.within_ms), now))) {
        old++;
    }
    e->failed_count -= old;
    memmove(e->failed, e->failed + old, e->failed_count * sizeof(e->failed[0]));
}

bool mu_exclusions_fail(struct mu_exclusions *x, mu_mono_t now, const char *machine,
                        const char *node)
{
    struct mu_exclusion *e = x->policy.after == 0 ? NULL : take(x, now, machine, node);

    if (e == NULL) {
        return false;
    }
    forget_old(x, e, now);
    if (e->failed_count == MU_RDZV_FAILURES_MAX) {
        e->failed_count--;
        memmove(e->failed, e->failed + 1, e->failed_count * sizeof(e->failed[0]));
    }
    e->failed[e->failed_count++] = now;
    if (e->failed_count < x->policy.after || mu_exclusion_holds(e, now)) {
        return false;
    }
    (void)snprintf(e->reason, sizeof(e->reason),
                   "its workers failed, or it was lost, %u times within %llu s", x->policy.after,
                   (unsigned long long)(x->policy.within_ms / 1000));
    e->by_hand = false;
    e->at = now;
    e->until = mu_mono_add_ms(now, x->policy.for_ms);
    x->total++;
    return true;
}

void mu_exclusions_forgive(struct mu_exclusions *x, mu_mono_t since)
{
    for (uint32_t i = 0; i < x->count; i++) {
        struct mu_exclusion *e = &x->all[i];

        while (e->failed_count != 0 && mu_mono_reached(since, e->failed[e->failed_count - 1])) {
            e->failed_count--;
        }
        if (!e->by_hand && e->at.ns != 0 && mu_mono_reached(since, e->at)) {
            e->at = e->until = (mu_mono_t){0};
        }
    }
}

/* --- by hand --------------------------------------------------------------------------------- */

int mu_exclusions_add(struct mu_exclusions *x, mu_mono_t now, const char *machine, const char *node,
                      struct mu_span reason, uint64_t for_ms)
{
    struct mu_exclusion *e = take(x, now, machine, node);

    if (e == NULL) {
        return MUSTER_ENOMEM;
    }
    put_text(e->reason, reason.len == 0 ? MU_SPAN_LIT("excluded by hand") : reason);
    e->by_hand = true;
    e->at = now;
    e->until = mu_mono_add_ms(now, for_ms);
    x->total++;
    return 0;
}

uint32_t mu_exclusions_lift(struct mu_exclusions *x, const char *who)
{
    uint32_t lifted = 0;

    for (uint32_t i = x->count; i-- > 0;) {
        if (mu_exclusion_names(who, x->all[i].key, x->all[i].node)) {
            drop(x, &x->all[i]);
            lifted++;
        }
    }
    return lifted;
}

const struct mu_exclusion *mu_exclusions_find(const struct mu_exclusions *x, mu_mono_t now,
                                              const char *machine, const char *node)
{
    for (uint32_t i = 0; i < x->count; i++) {
        if (mu_exclusion_holds(&x->all[i], now) &&
            mu_exclusion_names(x->all[i].key, machine, node)) {
            return &x->all[i];
        }
    }
    return NULL;
}

uint32_t mu_exclusions_count(const struct mu_exclusions *x, mu_mono_t now)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < x->count; i++) {
        count += mu_exclusion_holds(&x->all[i], now);
    }
    return count;
}

/* --- for others ------------------------------------------------------------------------------ */

int mu_exclusions_encode(const struct mu_exclusions *x, mu_mono_t now, bool all, struct mu_buf *out)
{
    for (uint32_t i = 0; i < x->count; i++) {
        const struct mu_exclusion *e = &x->all[i];
        struct mu_rdzv_exclusion_msg msg = {
            .key = mu_span_str(e->key),
            .node = mu_span_str(e->node),
            .reason = mu_span_str(e->reason),
            .by_hand = e->by_hand,
            .left_ms = mu_exclusion_holds(e, now) ? mu_mono_until_ms(e->until, now) : 0,
            .failure_count = e->failed_count,
        };
        int err;

        if (!all && msg.left_ms == 0) {
            continue;
        }
        for (uint32_t k = 0; k < e->failed_count; k++) {
            msg.ago_ms[k] = mu_mono_since(e->failed[k], now) / MU_NS_PER_MS;
        }
        err = mu_rdzv_exclusion_encode(out, &msg);
        if (err != 0) {
            return err;
        }
    }
    return 0;
}

static mu_mono_t before(mu_mono_t now, uint64_t ms)
{
    return (mu_mono_t){ms > (now.ns - 1) / MU_NS_PER_MS ? 1 : now.ns - ms * MU_NS_PER_MS};
}

int mu_exclusions_decode(struct mu_exclusions *x, mu_mono_t now, struct mu_span in)
{
    struct mu_rdzv_exclusion_msg msg;
    int err;

    while ((err = mu_rdzv_exclusion_next(&in, &msg)) == 0) {
        char key[MU_EXCLUSION_TEXT_MAX + 1];
        char node[MU_EXCLUSION_TEXT_MAX + 1];
        struct mu_exclusion *e;

        put_text(key, msg.key);
        put_text(node, msg.node);
        e = take(x, now, key, node);
        if (e == NULL) {
            return MUSTER_ENOMEM;
        }
        put_text(e->reason, msg.reason);
        e->by_hand = msg.by_hand;
        e->at = msg.left_ms == 0 ? (mu_mono_t){0} : now;
        e->until = msg.left_ms == 0 ? (mu_mono_t){0} : mu_mono_add_ms(now, msg.left_ms);
        e->failed_count = msg.failure_count;
        for (uint32_t k = 0; k < msg.failure_count; k++) {
            e->failed[k] = before(now, msg.ago_ms[k]);
        }
    }
    return err == MUSTER_ENOENT ? 0 : err;
}
