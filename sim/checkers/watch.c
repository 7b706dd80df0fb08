#include "checkers/watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/span.h"
#include "sim.h"

/* --- histories -------------------------------------------------------------------------------- */

static void *grow(void *array, size_t count, size_t *cap, size_t size)
{
    struct mu_sim_heap *heap;

    if (count < *cap) {
        return array;
    }
    heap = mu_sim_outside();
    *cap = *cap == 0 ? 16 : *cap * 2;
    array = mu_realloc(array, *cap * size);
    mu_sim_inside(heap);
    MU_ASSERT(array != NULL);
    return array;
}

void watch_fini(struct watch_history *h)
{
    for (size_t i = 0; i < h->life_count; i++) {
        mu_free(h->lives[i].changes.changes);
    }
    for (size_t i = 0; i < h->run_count; i++) {
        mu_free(h->runs[i].told.changes);
    }
    mu_free(h->lives);
    mu_free(h->runs);
    *h = (struct watch_history){0};
}

static uint64_t hash_value(struct mu_span value)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ value.len;

    for (size_t i = 0; i < value.len; i++) {
        hash = (hash ^ value.data[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static struct watch_change *add_change(struct watch_list *list, const struct mu_change *change,
                                       int kind, uint64_t now_ns)
{
    struct watch_change *c;
    size_t len = change->key.len < WATCH_KEY_MAX - 1 ? change->key.len : WATCH_KEY_MAX - 1;

    list->changes = grow(list->changes, list->count, &list->cap, sizeof(*list->changes));
    c = &list->changes[list->count++];
    *c = (struct watch_change){.kind = kind,
                               .revision = change->revision,
                               .hash = hash_value(change->value),
                               .at_ns = now_ns};
    if (len != 0) {
        memcpy(c->key, change->key.data, len);
    }
    return c;
}

void watch_life_begins(struct watch_history *h, uint64_t revision)
{
    h->lives = grow(h->lives, h->life_count, &h->life_cap, sizeof(*h->lives));
    h->lives[h->life_count++] = (struct watch_life){.first = revision};
}

void watch_note(struct watch_history *h, const struct mu_change *change, int kind, uint64_t now_ns)
{
    (void)add_change(&h->lives[h->life_count - 1].changes, change, kind, now_ns);
}

size_t watch_begin(struct watch_history *h, const char *pattern, bool prefix, bool current,
                   uint32_t life)
{
    struct watch_run *run;

    h->runs = grow(h->runs, h->run_count, &h->run_cap, sizeof(*h->runs));
    run = &h->runs[h->run_count];
    *run =
        (struct watch_run){.prefix = prefix, .current = current, .life_min = life == 0 ? 1 : life};
    (void)snprintf(run->pattern, sizeof(run->pattern), "%s", pattern);
    run->life_max = run->life_min;
    return h->run_count++;
}

void watch_told(struct watch_history *h, size_t run, const struct mu_change *change, uint64_t kept,
                uint64_t now_ns)
{
    struct watch_run *r = &h->runs[run];

    add_change(&r->told, change, (int)change->kind, now_ns)->kept = kept;
    r->life_max = (uint32_t)h->life_count;
}

/* --- the check -------------------------------------------------------------------------------- */

static bool concerns(const struct watch_run *run, const struct watch_change *change)
{
    return run->prefix ? strncmp(change->key, run->pattern, strlen(run->pattern)) == 0
                       : strcmp(change->key, run->pattern) == 0;
}

static bool is_gone(const struct watch_change *change)
{
    return change->kind == MU_CHANGE_DELETED || change->kind == MU_CHANGE_EXPIRED;
}

static bool is_same(const struct watch_change *a, const struct watch_change *b)
{
    return a->revision == b->revision && a->hash == b->hash && strcmp(a->key, b->key) == 0;
}

/* Returns whether the key of the change at `at` had this very value as of `revision`. */
static bool is_latest(const struct watch_list *list, size_t at, uint64_t revision)
{
    for (size_t i = at + 1; i < list->count && list->changes[i].revision <= revision; i++) {
        if (strcmp(list->changes[i].key, list->changes[at].key) == 0) {
            return false;
        }
    }
    return true;
}

static int complain(const struct watch_run *run, const struct watch_change *change,
                    const char *what, struct mu_errmsg *reterr_msg)
{
    return mu_err(reterr_msg, MUSTER_ECORRUPT,
                  "watch of %s%s: %s: %s, revision %" PRIu64 ", kind %d, at %.3f ms", run->pattern,
                  run->prefix ? "*" : "", what, change->key, change->revision, change->kind,
                  (double)change->at_ns / 1e6);
}

/* Checks the initial items: all that was there, as of the revision of the first. */
static int check_current(const struct watch_run *run, const struct watch_life *life,
                         size_t *ret_told, struct mu_errmsg *reterr_msg)
{
    const struct watch_list *told = &run->told;
    const struct watch_list *list = &life->changes;
    uint64_t revision = told->changes[0].revision;
    size_t known = 0;
    size_t n = 0;

    while (n < told->count && told->changes[n].revision == revision) {
        n++;
    }
    if (revision < life->first) {
        return complain(run, &told->changes[0], "it began before the server did", reterr_msg);
    }
    for (size_t i = 0; i < list->count && list->changes[i].revision <= revision; i++) {
        const struct watch_change *c = &list->changes[i];
        size_t k = 0;

        if (!concerns(run, c) || is_gone(c) || !is_latest(list, i, revision)) {
            continue;
        }
        while (k < n &&
               (strcmp(told->changes[k].key, c->key) != 0 || told->changes[k].hash != c->hash)) {
            k++;
        }
        known += k < n ? 1 : 0;
        /* A watch that was cut off at its beginning has told only a part of it. */
        if (k == n && !(run->ended && n == told->count)) {
            return complain(run, c, "it did not begin with what was there", reterr_msg);
        }
    }
    if (known != n) {
        return complain(run, &told->changes[0], "it began with more than was there", reterr_msg);
    }
    *ret_told = n;
    return 0;
}

/* Finds the first of the life's changes that the watch owes after its first `*told` items. */
static int find_start(const struct watch_run *run, const struct watch_life *life, size_t *told,
                      size_t *ret_at, struct mu_errmsg *reterr_msg)
{
    const struct watch_change *first = run->told.changes;
    const struct watch_list *list = &life->changes;
    size_t at = 0;
    int err;

    *told = 0;
    if (run->current) {
        err = check_current(run, life, told, reterr_msg);
        if (err != 0) {
            return err;
        }
        while (at < list->count && list->changes[at].revision <= first->revision) {
            at++;
        }
    } else {
        while (at < list->count &&
               (list->changes[at].kind == 0 || !is_same(&list->changes[at], first))) {
            at++;
        }
        if (at == list->count) {
            return complain(run, first, "it told of a change that never was", reterr_msg);
        }
    }
    *ret_at = at;
    return 0;
}

/* Checks the watch, if it ran in this life of the server. */
static int check_run(const struct watch_run *run, const struct watch_life *life, uint64_t slack_ns,
                     struct mu_errmsg *reterr_msg)
{
    const struct watch_list *list = &life->changes;
    size_t at = 0;
    size_t k = 0;
    int err = 0;

    if (run->told.count != 0) {
        err = find_start(run, life, &k, &at, reterr_msg);
    } else if (!run->current) {
        return 0; /* It is unknown when the watch began. */
    }
    for (; err == 0 && at < list->count; at++) {
        const struct watch_change *c = &list->changes[at];
        const struct watch_change *t = k < run->told.count ? &run->told.changes[k] : NULL;

        if (!concerns(run, c) || (run->told.count == 0 && !is_latest(list, at, UINT64_MAX))) {
            continue;
        }
        if (t == NULL) {
            bool owed = !run->ended && c->at_ns + slack_ns < run->live_ns &&
                        (run->told.count != 0 || !is_gone(c));

            return owed ? complain(run, c, "it still ran and never told of", reterr_msg) : 0;
        }
        if (!is_same(c, t) || c->kind != t->kind) {
            err = complain(run, c, "it skipped a change, or told it twice", reterr_msg);
        } else if (t->kept < t->revision) {
            err = complain(run, t, "it told of a change that was not on disk", reterr_msg);
        }
        k++;
    }
    if (err == 0 && k < run->told.count) {
        err =
            complain(run, &run->told.changes[k], "it told of a change that never was", reterr_msg);
    }
    return err;
}

int watch_check(struct watch_history *h, uint64_t slack_ns, struct mu_errmsg *reterr_msg)
{
    for (size_t i = 0; i < h->run_count; i++) {
        const struct watch_run *run = &h->runs[i];
        int err = h->life_count == 0 ? 0 : MUSTER_ECORRUPT;
        /* A watch that told nothing and still runs is in the last life. */
        size_t low = run->told.count == 0 ? h->life_count : run->life_min;
        size_t high = run->told.count == 0 ? h->life_count : run->life_max;

        for (size_t life = low; life <= high && life <= h->life_count && err != 0; life++) {
            err = check_run(run, &h->lives[life - 1], slack_ns, reterr_msg);
        }
        if (err != 0) {
            return err;
        }
    }
    return 0;
}
