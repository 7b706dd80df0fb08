/* The history of the fake etcd, and what ranges of keys were at a revision of it. */
#ifndef MU_FAKE_ETCD_LOG_H
#define MU_FAKE_ETCD_LOG_H

#include "fake_etcd.h"

int fake_etcd_compare(struct mu_span a, struct mu_span b);
/** Returns whether a key is in a range, as in etcd; `end` empty: one key; a zero byte: all after */
bool fake_etcd_in_range(struct mu_span k, struct mu_span key, struct mu_span end);
/** Returns copies of the keys of a range at a revision, in order, because the log may move. The
 * caller frees them. */
struct fake_etcd_event *fake_etcd_list(const struct fake_etcd_event *log, size_t log_count,
                                       struct mu_span key, struct mu_span end, int64_t revision,
                                       size_t *ret_count);
/** Applies a range's options to them; returns how many are left. */
size_t fake_etcd_pick(struct fake_etcd_event *found, size_t count, int64_t create_max,
                      bool by_creation, bool descending);

#endif
