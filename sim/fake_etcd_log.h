/* The history of the fake etcd, and what ranges of keys were at a revision of it. */
#ifndef MU_FAKE_ETCD_LOG_H
#define MU_FAKE_ETCD_LOG_H

#include "fake_etcd.h"

int fake_etcd_compare(struct mu_span a, struct mu_span b);
/** Whether a key is in a range as etcd has it; `end` empty: the one key; a zero byte: all behind */
bool fake_etcd_in_range(struct mu_span k, struct mu_span key, struct mu_span end);
/** The keys of a range at a revision, in order; copies, as the log may move. The caller frees. */
struct fake_etcd_event *fake_etcd_list(const struct fake_etcd_event *log, size_t log_count,
                                       struct mu_span key, struct mu_span end, int64_t revision,
                                       size_t *ret_count);
/** What a range asks for of those: how many are left. */
size_t fake_etcd_pick(struct fake_etcd_event *found, size_t count, int64_t create_max,
                      bool by_creation, bool descending);

#endif
