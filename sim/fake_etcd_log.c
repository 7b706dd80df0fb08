#include "fake_etcd_log.h"

#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

int fake_etcd_compare(struct mu_span a, struct mu_span b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int c = n == 0 ? 0 : memcmp(a.data, b.data, n);

    return c != 0 ? c : a.len < b.len ? -1 : a.len > b.len ? 1 : 0;
}

bool fake_etcd_in_range(struct mu_span k, struct mu_span key, struct mu_span end)
{
    if (end.len == 0) {
        return mu_span_eq(k, key);
    }
    return fake_etcd_compare(k, key) >= 0 &&
           ((end.len == 1 && end.data[0] == 0) || fake_etcd_compare(k, end) < 0);
}

struct fake_etcd_event *fake_etcd_list(const struct fake_etcd_event *log, size_t log_count,
                                       struct mu_span key, struct mu_span end, int64_t revision,
                                       size_t *ret_count)
{
    struct fake_etcd_event *found = mu_malloc((log_count + 1) * sizeof(*found));
    size_t count = 0;

    MU_ASSERT(found != NULL);
    for (size_t i = 0; i < log_count; i++) {
        const struct fake_etcd_event *v = &log[i];
        size_t at = count;

        if (v->revision > revision || v->deleted || (v->until != 0 && v->until <= revision) ||
            !fake_etcd_in_range(v->key, key, end)) {
            continue;
        }
        while (at > 0 && fake_etcd_compare(found[at - 1].key, v->key) > 0) {
            found[at] = found[at - 1];
            at--;
        }
        found[at] = *v;
        count++;
    }
    *ret_count = count;
    return found;
}

static void sort_by_creation(struct fake_etcd_event *found, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        for (size_t at = i; at > 0 && found[at - 1].create_revision > found[at].create_revision;
             at--) {
            struct fake_etcd_event tmp = found[at];

            found[at] = found[at - 1];
            found[at - 1] = tmp;
        }
    }
}

static void reverse(struct fake_etcd_event *found, size_t count)
{
    for (size_t i = 0; i < count / 2; i++) {
        struct fake_etcd_event tmp = found[i];

        found[i] = found[count - 1 - i];
        found[count - 1 - i] = tmp;
    }
}

/* Keeps the keys that were created at a revision or before; 0: all. Returns how many are left. */
static size_t drop_later(struct fake_etcd_event *found, size_t count, int64_t create_max)
{
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        if (create_max == 0 || found[i].create_revision <= create_max) {
            found[kept++] = found[i];
        }
    }
    return kept;
}

size_t fake_etcd_pick(struct fake_etcd_event *found, size_t count, int64_t create_max,
                      bool by_creation, bool descending)
{
    count = drop_later(found, count, create_max);
    if (by_creation) {
        sort_by_creation(found, count);
    }
    if (descending) {
        reverse(found, count);
    }
    return count;
}
