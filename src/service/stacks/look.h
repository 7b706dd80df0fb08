/*
 * The part of taking stacks that may block: it looks at one process, and writes the report. See
 * service/stacks/take.h.
 */
#ifndef MU_STACKS_LOOK_H
#define MU_STACKS_LOOK_H

#include "codec/stacks/report.h"
#include "core/err.h"
#include "core/peek.h"
#include "proto/stacks/maps.h"
#include "proto/stacks/python.h"

#define MU_STACKS_TASKS_MAX 1024 /* threads of a process, Python's and others, that are looked at */
#define MU_STACKS_TRIES_MAX 3    /* to find the interpreter and its threads */
#define MU_STACKS_TORN_MAX  8    /* tries to read the frames of a thread */
#define MU_STACKS_MAPS_MAX  (16u << 20) /* bytes of /proc/PID/maps */

/* Where the interpreter of a process was found; zeros: nobody has looked yet. Whoever looks at the
 * same process again keeps it: to find the interpreter is most of what a look costs. */
struct mu_stacks_known {
    uint64_t runtime;
    uint32_t version;
};

struct mu_stacks_look {
    const struct mu_peek *peek;
    struct mu_stacks_known known; /* of that process, before and after */
    bool main_only;               /* the report has only the main thread */
    /* private */
    struct mu_peek_process *process;
    int64_t pid;
    int refused; /* the error of a read that was not permitted; 0: none */
    struct mu_maps maps;
    struct mu_python python;
    struct mu_python_stack stack;
    struct mu_python_thread threads[MU_STACKS_THREADS_MAX];
    size_t thread_count;
    uint64_t tids[MU_STACKS_TASKS_MAX];
    uint64_t inner[MU_STACKS_TASKS_MAX]; /* the same, as the process sees them */
    bool told[MU_STACKS_TASKS_MAX];      /* it is in the report */
    size_t tid_count;
    uint32_t torn;
    struct mu_stacks_writer writer;
    struct mu_errmsg note;
    char version[16];
    char text[64 << 10];
};

/**
 * Looks at a process with `look->peek`, and appends its report, which has the fields of `head`, to
 * `out`. MUSTER_ENOENT: there is no such process; MUSTER_ENOMEM.
 */
int mu_stacks_look(struct mu_stacks_look *look, int64_t pid, const struct mu_stacks_report *head,
                   struct mu_buf *out, struct mu_errmsg *reterr_why);

#endif
