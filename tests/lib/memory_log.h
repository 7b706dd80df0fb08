/*
 * A struct mu_file_log in memory, with what can go wrong at the turn of a switch. Its calls come
 * from a worker thread: while one may be under way, a test uses memory_log_add() and
 * memory_log_count(); when no operation is, it may do as it likes.
 */
#ifndef MU_MEMORY_LOG_H
#define MU_MEMORY_LOG_H

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "core/buf.h"
#include "core/file_log.h"
#include "core/list.h"

struct memory_log {
    struct mu_file_log base;
    pthread_mutex_t guard;
    uint8_t data[1 << 16];
    size_t size;
    bool exists;
    bool replaced; /* told once */
    bool busy;     /* somebody else has the lock */
    bool full;     /* nothing more can be written */
    bool locked;   /* by us */
    bool exclusive;
    unsigned locks; /* that were taken */
    unsigned looks;
    unsigned closes;
};

static inline struct memory_log *memory_log_of(struct mu_file_log *log)
{
    return MU_CONTAINER_OF(log, struct memory_log, base);
}

static inline int memory_look(struct mu_file_log *log, bool create,
                              struct mu_file_log_state *ret_state, struct mu_errmsg *reterr_msg)
{
    struct memory_log *m = memory_log_of(log);

    (void)reterr_msg;
    (void)pthread_mutex_lock(&m->guard);
    m->exists = m->exists || create;
    m->looks++;
    *ret_state = (struct mu_file_log_state){
        .exists = m->exists,
        .replaced = m->replaced || !m->exists,
        .size = m->size,
    };
    m->replaced = false;
    (void)pthread_mutex_unlock(&m->guard);
    return 0;
}

static inline int memory_lock(struct mu_file_log *log, bool exclusive, uint64_t *ret_size,
                              struct mu_errmsg *reterr_msg)
{
    struct memory_log *m = memory_log_of(log);

    (void)reterr_msg;
    assert(!m->locked && m->exists);
    if (m->busy) {
        return MUSTER_EAGAIN;
    }
    (void)pthread_mutex_lock(&m->guard);
    m->locked = true;
    m->exclusive = exclusive;
    m->locks++;
    *ret_size = m->size;
    (void)pthread_mutex_unlock(&m->guard);
    return 0;
}

static inline void memory_unlock(struct mu_file_log *log)
{
    struct memory_log *m = memory_log_of(log);

    assert(m->locked);
    m->locked = false;
}

static inline int memory_read(struct mu_file_log *log, uint64_t offset, uint8_t *buf, size_t cap,
                              size_t *ret_len, struct mu_errmsg *reterr_msg)
{
    struct memory_log *m = memory_log_of(log);
    size_t left;

    (void)reterr_msg;
    assert(m->locked);
    (void)pthread_mutex_lock(&m->guard);
    left = offset < m->size ? m->size - (size_t)offset : 0;
    *ret_len = left < cap ? left : cap;
    if (*ret_len != 0) {
        memcpy(buf, m->data + offset, *ret_len);
    }
    (void)pthread_mutex_unlock(&m->guard);
    return 0;
}

static inline int memory_append(struct mu_file_log *log, uint64_t size, struct mu_span data,
                                struct mu_errmsg *reterr_msg)
{
    struct memory_log *m = memory_log_of(log);

    assert(m->locked && m->exclusive && size <= m->size);
    m->size = (size_t)size;
    if (m->full || data.len > sizeof(m->data) - m->size) {
        return mu_err(reterr_msg, MUSTER_EDISK, "cannot write to the memory: it is full");
    }
    memcpy(m->data + m->size, data.data, data.len);
    m->size += data.len;
    return 0;
}

static inline int memory_remove(struct mu_file_log *log, struct mu_errmsg *reterr_msg)
{
    struct memory_log *m = memory_log_of(log);

    (void)reterr_msg;
    assert(m->locked);
    m->exists = false;
    m->size = 0;
    return 0;
}

static inline void memory_close(struct mu_file_log *log)
{
    memory_log_of(log)->closes++;
}

static inline void memory_log_init(struct memory_log *m)
{
    static const struct mu_file_log_ops ops = {
        .look = memory_look,
        .lock = memory_lock,
        .unlock = memory_unlock,
        .read = memory_read,
        .append = memory_append,
        .remove = memory_remove,
        .close = memory_close,
    };

    *m = (struct memory_log){.base.ops = &ops, .guard = PTHREAD_MUTEX_INITIALIZER};
}

/* Somebody else's write. */
static inline void memory_log_add(struct memory_log *m, const void *data, size_t len)
{
    (void)pthread_mutex_lock(&m->guard);
    assert(len <= sizeof(m->data) - m->size);
    memcpy(m->data + m->size, data, len);
    m->size += len;
    m->exists = true;
    (void)pthread_mutex_unlock(&m->guard);
}

/* How often something was done. */
static inline unsigned memory_log_count(struct memory_log *m, const unsigned *counter)
{
    unsigned count;

    (void)pthread_mutex_lock(&m->guard);
    count = *counter;
    (void)pthread_mutex_unlock(&m->guard);
    return count;
}

#endif
