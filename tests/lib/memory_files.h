/*
 * Files and consoles in memory (core/files.h), for tests: what was written to which path, and
 * consoles that take no more than they are told to.
 */
#ifndef MU_MEMORY_FILES_H
#define MU_MEMORY_FILES_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files.h"

#define MEMORY_FILES_MAX 32

struct memory_sink {
    struct mu_sink sink; /* first */
    char path[256];
    char *text; /* always terminated */
    size_t len;
    size_t room; /* it takes no more than this; SIZE_MAX: everything */
    bool wants_room;
    int breaks; /* the next write fails so */
    int open;
    bool removed;
};

struct memory_files {
    struct mu_files files; /* first */
    struct memory_sink sinks[MEMORY_FILES_MAX];
    size_t count;
    struct memory_sink consoles[2];
    bool one_console;
    char dirs[4096]; /* what was made, a line each */
    char removed[4096];
    char pruned[256]; /* the last that was */
    int fail;         /* the next call fails so */
};

static inline void memory_write(struct mu_sink *sink, struct mu_span data, size_t *ret_taken)
{
    struct memory_sink *s = (struct memory_sink *)sink;
    size_t n = data.len < s->room ? data.len : s->room;

    if (s->breaks != 0) {
        sink->error = s->breaks;
        *ret_taken = data.len;
        return;
    }
    s->text = realloc(s->text, s->len + n + 1);
    if (n > 0) {
        memcpy(s->text + s->len, data.data, n);
    }
    s->len += n;
    s->text[s->len] = '\0';
    s->room -= s->room == SIZE_MAX ? 0 : n;
    s->wants_room = s->wants_room || n < data.len;
    *ret_taken = n;
}

static inline void memory_close(struct mu_sink *sink)
{
    ((struct memory_sink *)sink)->open--;
}

static const struct mu_sink_ops memory_sink_ops = {.write = memory_write, .close = memory_close};

/** Lets a console take that much more, and says so. */
static inline void memory_give_room(struct memory_sink *s, size_t room)
{
    s->room = room == SIZE_MAX ? room : s->room + room;
    if (s->wants_room) {
        s->wants_room = false;
        s->sink.writable(&s->sink);
    }
}

static inline int memory_failed(struct memory_files *f, struct mu_errmsg *msg)
{
    int rc = f->fail;

    f->fail = 0;
    return rc == 0 ? 0 : mu_err(msg, rc, "as told");
}

static inline int memory_make_dir(struct mu_files *files, const char *path, struct mu_errmsg *msg)
{
    struct memory_files *f = (struct memory_files *)files;

    (void)snprintf(f->dirs + strlen(f->dirs), sizeof(f->dirs) - strlen(f->dirs), "%s\n", path);
    return memory_failed(f, msg);
}

static inline int memory_make_unique(struct mu_files *files, const char *path, char *ret,
                                     size_t cap, struct mu_errmsg *msg)
{
    (void)snprintf(ret, cap, "%s123456", path);
    return memory_make_dir(files, ret, msg);
}

static inline int memory_remove(struct mu_files *files, const char *path, struct mu_errmsg *msg)
{
    struct memory_files *f = (struct memory_files *)files;

    (void)snprintf(f->removed + strlen(f->removed), sizeof(f->removed) - strlen(f->removed), "%s\n",
                   path);
    return memory_failed(f, msg);
}

static inline void memory_prune(struct mu_files *files, const char *path)
{
    struct memory_files *f = (struct memory_files *)files;

    (void)snprintf(f->pruned, sizeof(f->pruned), "%s", path);
}

static inline int memory_create(struct mu_files *files, const char *path, struct mu_sink **ret,
                                struct mu_errmsg *msg)
{
    struct memory_files *f = (struct memory_files *)files;
    struct memory_sink *s;
    int rc = memory_failed(f, msg);

    if (rc != 0) {
        return rc;
    }
    if (f->count == MEMORY_FILES_MAX) {
        return mu_err(msg, -EMFILE, "too many");
    }
    s = &f->sinks[f->count++];
    (void)snprintf(s->path, sizeof(s->path), "%s", path);
    s->sink.ops = &memory_sink_ops;
    s->text = calloc(1, 1);
    s->room = SIZE_MAX;
    s->open = 1;
    *ret = &s->sink;
    return 0;
}

static inline struct memory_sink *memory_find(struct memory_files *f, const char *path)
{
    for (size_t i = f->count; i > 0; i--) {
        if (strcmp(f->sinks[i - 1].path, path) == 0) {
            return &f->sinks[i - 1];
        }
    }
    return NULL;
}

static inline int memory_read_end(struct mu_files *files, const char *path, uint8_t *buf,
                                  size_t cap, size_t *ret_len, struct mu_errmsg *msg)
{
    struct memory_sink *s = memory_find((struct memory_files *)files, path);

    if (s == NULL) {
        return mu_err(msg, -ENOENT, "no such file");
    }
    *ret_len = s->len < cap ? s->len : cap;
    memcpy(buf, s->text + (s->len - *ret_len), *ret_len);
    return 0;
}

static inline int memory_console(struct mu_files *files, enum mu_stream stream,
                                 struct mu_sink **ret, struct mu_errmsg *msg)
{
    struct memory_files *f = (struct memory_files *)files;
    struct memory_sink *s = &f->consoles[!f->one_console && stream == MU_STDERR];
    int rc = memory_failed(f, msg);

    if (rc != 0) {
        return rc;
    }
    s->open++;
    *ret = &s->sink;
    return 0;
}

static const struct mu_files_ops memory_files_ops = {
    .make_dir = memory_make_dir,
    .make_unique_dir = memory_make_unique,
    .remove_dir = memory_remove,
    .prune_dir = memory_prune,
    .create = memory_create,
    .read_end = memory_read_end,
    .console = memory_console,
};

static inline void memory_files_init(struct memory_files *f)
{
    memset(f, 0, sizeof(*f));
    f->files.ops = &memory_files_ops;
    for (int i = 0; i < 2; i++) {
        f->consoles[i].sink.ops = &memory_sink_ops;
        f->consoles[i].text = calloc(1, 1);
        f->consoles[i].room = SIZE_MAX;
    }
}

/** Forgets the files; false if one is still open. */
static inline bool memory_files_fini_sinks(struct memory_files *f)
{
    bool closed = true;

    for (size_t i = 0; i < f->count; i++) {
        closed = closed && f->sinks[i].open == 0;
        free(f->sinks[i].text);
    }
    memset(f->sinks, 0, sizeof(f->sinks));
    f->count = 0;
    return closed;
}

/** False if something is still open. */
static inline bool memory_files_fini(struct memory_files *f)
{
    bool closed = memory_files_fini_sinks(f);

    for (int i = 0; i < 2; i++) {
        closed = closed && f->consoles[i].open == 0;
        free(f->consoles[i].text);
    }
    return closed;
}

#endif
