#include "cli/run_writer.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FULL_BYTES  ((size_t)4 << 20)
#define CHUNK_BYTES ((size_t)64 << 10)

struct chunk {
    struct chunk *next;
    int fd;
    bool close;
    size_t len;
    size_t cap;
    char data[];
};

struct run_writer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct chunk *first;
    struct chunk **last;
    size_t bytes; /* that wait */
    bool asked;   /* somebody was told that it is full */
    bool ending;
    void (*drained)(void *context);
    void *context;
};

/* All of it, or as much as there can be: a console that has gone must not end the job. */
static void write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);

        if (n > 0) {
            data += n;
            len -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            /* Somebody who shares the console with us has made it so. */
            (void)poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        } else if (n == 0 || errno != EINTR) {
            return;
        }
    }
}

static void *run_thread(void *context)
{
    struct run_writer *w = context;

    (void)pthread_mutex_lock(&w->lock);
    for (;;) {
        struct chunk *c = w->first;
        bool tell;

        if (c == NULL && w->ending) {
            break;
        }
        if (c == NULL) {
            (void)pthread_cond_wait(&w->cond, &w->lock);
            continue;
        }
        w->first = c->next;
        if (w->first == NULL) {
            w->last = &w->first;
        }
        (void)pthread_mutex_unlock(&w->lock);
        write_all(c->fd, c->data, c->len);
        if (c->close) {
            (void)close(c->fd);
        }
        (void)pthread_mutex_lock(&w->lock);
        w->bytes -= c->len;
        free(c);
        tell = w->asked && w->bytes < FULL_BYTES / 2;
        if (tell) {
            w->asked = false;
            (void)pthread_mutex_unlock(&w->lock);
            w->drained(w->context);
            (void)pthread_mutex_lock(&w->lock);
        }
    }
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct run_writer *run_writer_new(void (*drained)(void *context), void *context)
{
    struct run_writer *w = calloc(1, sizeof(*w));

    if (w == NULL) {
        return NULL;
    }
    w->last = &w->first;
    w->drained = drained;
    w->context = context;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->cond, NULL);
    if (pthread_create(&w->thread, NULL, run_thread, w) != 0) {
        free(w);
        return NULL;
    }
    return w;
}

bool run_writer_full(struct run_writer *w)
{
    bool full;

    (void)pthread_mutex_lock(&w->lock);
    full = w->bytes >= FULL_BYTES;
    w->asked = w->asked || full;
    (void)pthread_mutex_unlock(&w->lock);
    return full;
}

/* The chunk at the end with room for `len` more bytes to `fd`; a new one if need be. Locked. */
static struct chunk *make_room(struct run_writer *w, int fd, size_t len)
{
    size_t cap = len > CHUNK_BYTES ? len : CHUNK_BYTES;
    struct chunk *c = NULL;

    if (w->first != NULL) {
        c = (struct chunk *)(void *)((char *)w->last - offsetof(struct chunk, next));
    }
    if (c != NULL && c->fd == fd && !c->close && c->cap - c->len >= len) {
        return c;
    }
    c = malloc(sizeof(*c) + cap);
    if (c != NULL) {
        *c = (struct chunk){.fd = fd, .cap = cap};
        *w->last = c;
        w->last = &c->next;
    }
    return c;
}

void run_writer_put(struct run_writer *w, int fd, const char *first, size_t first_len,
                    const char *second, size_t second_len)
{
    size_t len = first_len + second_len;
    struct chunk *c;

    if (len == 0) {
        return;
    }
    (void)pthread_mutex_lock(&w->lock);
    c = make_room(w, fd, len);
    if (c != NULL) {
        if (first_len != 0) {
            memcpy(c->data + c->len, first, first_len);
        }
        if (second_len != 0) {
            memcpy(c->data + c->len + first_len, second, second_len);
        }
        c->len += len;
        w->bytes += len;
        (void)pthread_cond_signal(&w->cond);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

void run_writer_close(struct run_writer *w, int fd)
{
    struct chunk *c;

    (void)pthread_mutex_lock(&w->lock);
    c = make_room(w, fd, 0);
    if (c != NULL) {
        c->close = true;
        (void)pthread_cond_signal(&w->cond);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

void run_writer_free(struct run_writer *w)
{
    if (w == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&w->lock);
    w->ending = true;
    (void)pthread_cond_signal(&w->cond);
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_join(w->thread, NULL);
    (void)pthread_cond_destroy(&w->cond);
    (void)pthread_mutex_destroy(&w->lock);
    free(w);
}
