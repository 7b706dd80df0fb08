/*
 * Reads the threads and frames of a CPython interpreter, 3.8 to 3.14, from outside, while it runs.
 * Nothing is stopped, called or written there.
 *
 *     mu_python_open(p, memory, runtime, ...)         is there an interpreter, and which?
 *     mu_python_threads(p, ...)                       its threads
 *     mu_python_match(p, ...)                         which thread of the kernel is which
 *     mu_python_stack(p, &thread, stack)              what one of them is doing
 *
 * The memory belongs to somebody else: it may change between any two reads, and may be made to
 * mislead. So each pointer is only a number, each length is bounded, lists end after a while, and
 * no memory is taken by what is read. A chain of frames is read twice; if it is not the same both
 * times, or makes no sense, the stack is *torn* (MUSTER_EAGAIN) and the caller tries again a few
 * times. The innermost instruction may differ: a thread that runs is somewhere. An interpreter
 * costs at most MU_PYTHON_READS_MAX reads.
 *
 * What a thread is called by the kernel: since 3.11 the interpreter keeps that number. Before, it
 * keeps only the address of the C library's thread, in which the number is at a place that differs
 * between C libraries; mu_python_match() tries those that it knows, and believes one only if it
 * finds a thread of that process there.
 */
#ifndef MU_STACKS_PYTHON_H
#define MU_STACKS_PYTHON_H

#include <stdbool.h>
#include <stdint.h>

#include "codec/stacks/report.h"
#include "proto/stacks/memory.h"
#include "proto/stacks/python_layout.h"

#define MU_PYTHON_READS_MAX   150000u      /* of an interpreter, in all */
#define MU_PYTHON_INTERPS_MAX 64u          /* interpreters of a process */
#define MU_PYTHON_LIST_MAX    8192u        /* threads of an interpreter that are followed */
#define MU_PYTHON_CHAIN_MAX   4096u        /* frames of a thread that are followed */
#define MU_PYTHON_TABLE_MAX   (256u << 10) /* bytes of a table of lines that are looked at */
#define MU_PYTHON_TEXTS_MAX   (64u << 10)  /* of the names in one stack */

struct mu_python {
    struct mu_memory memory;
    struct mu_python_layout layout;
    uint64_t runtime;
    uint64_t code_type; /* where the type of code objects is; 0: not seen yet */
    bool strict;        /* a table is on trial: frames must be of that very version */
    uint32_t reads_left;
    struct mu_python_seen { /* code objects that this stack has shown already */
        uint64_t code;
        uint32_t first; /* its first instruction that counts, in bytes */
    } seen[32];
    uint32_t reterr_version; /* after MUSTER_ENOTSUP: as in Py_Version */
};

struct mu_python_thread {
    uint64_t state; /* its address */
    uint64_t ident;
    uint64_t native; /* 0: unknown */
    uint64_t tid;    /* after a match: which of the caller's; 0: none */
    enum mu_stacks_gil gil;
};

/* Large: not for the C stack. */
struct mu_python_stack {
    struct mu_stacks_frame frames[MU_STACKS_FRAMES_MAX]; /* their texts are in here, too */
    uint32_t frame_count;
    uint32_t omitted;
    bool endless;
    /* the reader's own */
    struct mu_python_raw {
        uint64_t code;
        int64_t at; /* the index of the instruction in bytes; -1: before the first */
    } raw[MU_STACKS_FRAMES_MAX];
    size_t texts_len;
    uint8_t texts[MU_PYTHON_TEXTS_MAX];
};

/**
 * Looks at the `_PyRuntime` at `runtime`. `version` is the value of `Py_Version`, or 3.MINOR as
 * 0x03MM0000 if only that is known, or 0: then the tables are tried, with the help of `scratch`;
 * 3.8 counts as 3.9 there, and who holds its GIL is unknown. MUSTER_ENOTSUP: a version that is not
 * known here; MUSTER_EPROTO: what is there is no interpreter, or none that has started.
 */
int mu_python_open(struct mu_python *p, struct mu_memory memory, uint64_t runtime, uint32_t version,
                   struct mu_python_stack *scratch);

/** At most `cap` threads of all interpreters: the newest, and the oldest, which is the main thread.
 * MUSTER_EAGAIN: the list makes no sense now. */
int mu_python_threads(struct mu_python *p, struct mu_python_thread *threads, size_t cap,
                      size_t *ret_count);
/** Sets the `tid` of the threads; `tids` are those of the process, as it sees them itself. */
void mu_python_match(struct mu_python *p, struct mu_python_thread *threads, size_t count,
                     const uint64_t *tids, size_t tid_count);
/** MUSTER_EAGAIN: it is torn. `stack` then holds nothing, or what could be read of it. */
int mu_python_stack(struct mu_python *p, const struct mu_python_thread *thread,
                    struct mu_python_stack *stack);
/** The innermost frame alone, without its line, in a dozen reads. MUSTER_EAGAIN: it could not be
 * read, or there is none. */
int mu_python_top(struct mu_python *p, const struct mu_python_thread *thread,
                  struct mu_python_stack *stack);

#endif
