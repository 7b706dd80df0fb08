/*
 * The keys of etcd's v2 API as a model: a tree of paths with times to live, an index that counts
 * changes, and their history. Answers are a server's JSON. It is used for the golden traces of the
 * etcd rendezvous, and behind HTTP for its scenario (fake_etcd2.h).
 */
#ifndef MU_ETCD2_MODEL_H
#define MU_ETCD2_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/list.h"
#include "core/span.h"

struct etcd2_event {
    int64_t index;
    const char *action;
    char *path;
    char *value;
};

struct etcd2_model {
    struct mu_list nodes;
    struct etcd2_event *events;
    size_t event_count;
    size_t event_cap;
    int64_t index;
    struct mu_buf out; /* the answer of the last call */
};

struct etcd2_put {
    const char *path;
    const char *value; /* NULL: no value */
    const char *prev_value;
    int64_t prev_index; /* 0: not compared */
    int prev_exist;     /* -1: not compared */
    int64_t ttl_s;      /* 0: for ever */
    bool dir;
    bool refresh;
};

void etcd2_model_init(struct etcd2_model *m);
void etcd2_model_fini(struct etcd2_model *m);
/** Ends what is due; call it before any other call. True: something has ended. */
bool etcd2_model_expire(struct etcd2_model *m, uint64_t now_ns);
/** Returns when the next key ends; UINT64_MAX: no key does. */
uint64_t etcd2_model_next(const struct etcd2_model *m);
/* Each returns the HTTP status code. */
int etcd2_model_put(struct etcd2_model *m, uint64_t now_ns, const struct etcd2_put *put);
int etcd2_model_get(struct etcd2_model *m, uint64_t now_ns, const char *path);
int etcd2_model_delete(struct etcd2_model *m, const char *path, const char *prev_value);
/** Writes the first change of `path` from `index` on; 0: there was no change yet. */
int etcd2_model_watch(struct etcd2_model *m, const char *path, int64_t index, bool recursive);
/** Returns the value of a path, or NULL. */
const char *etcd2_model_value(const struct etcd2_model *m, const char *path);

#endif
