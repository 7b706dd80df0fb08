/*
 * What one worker was seen doing: its threads, and the frames of each. An agent makes such a report
 * of each of its workers, and whoever asked for the stacks of a run groups and prints them.
 *
 *     version         1 byte
 *     bytes a frame   1 byte, at least 12
 *     head            its length (4 bytes), then the fields of the worker
 *     texts           their length (4 bytes), then the texts, each after its length (2 bytes)
 *     threads         their length (4 bytes), then each after its length (4 bytes)
 *
 * A text is named by its place among the texts, so a function or file that is in many frames is
 * sent once. A later version of the sender may append fields to the head, a thread or a frame, and
 * more at the end: the lengths let a reader skip what it does not know.
 *
 * A decoded report borrows: its spans point into the input. Texts are bytes from a process that may
 * be hostile; who prints them must make them printable (core/printable.h).
 */
#ifndef MU_STACKS_REPORT_H
#define MU_STACKS_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/span.h"

#define MU_STACKS_REPORT_BYTES_MAX (256u << 10)
#define MU_STACKS_THREADS_MAX      256  /* of one worker that are kept */
#define MU_STACKS_FRAMES_MAX       128  /* of one thread that are kept: */
#define MU_STACKS_INNER_MAX        96   /* the innermost of them; the others are the outermost */
#define MU_STACKS_NAME_MAX         255  /* of a node, a thread, a function, a kernel function */
#define MU_STACKS_FILE_MAX         1023 /* of a longer path, the end is kept */
#define MU_STACKS_NOTE_MAX         511

#define MU_STACKS_NO_RANK UINT32_MAX

/* What the process runs, as far as it could be seen. */
enum mu_stacks_kind {
    MU_STACKS_PYTHON = 1,
    MU_STACKS_OTHER, /* not Python, or nobody could look: see the note */
};

enum mu_stacks_gil {
    MU_STACKS_GIL_UNKNOWN = 0,
    MU_STACKS_GIL_HELD,
    MU_STACKS_GIL_NOT_HELD,
};

struct mu_stacks_frame {
    struct mu_span function; /* qualified, as in DataLoader.__next__, since Python 3.11 */
    struct mu_span file;
    uint32_t line; /* 0: unknown */
};

/* Frames, the innermost first; take them off with mu_stacks_frame_next(). */
struct mu_stacks_frames {
    struct mu_span rest;
    struct mu_span texts;
    size_t stride;
};

struct mu_stacks_thread {
    uint64_t tid; /* of the kernel; 0: a thread of the interpreter that could not be matched */
    struct mu_span name;
    char state; /* as in /proc/PID/stat: R, S, D, T...; '?': unknown */
    bool main;
    enum mu_stacks_gil gil;
    struct mu_span kernel; /* where it is in the kernel: a function, or a system call; may be "" */
    uint32_t omitted;      /* frames that were left out after the first MU_STACKS_INNER_MAX */
    bool endless;          /* there are more than were followed: the outermost ones are not there */
    bool torn;             /* it changed each time that it was read: its frames are not certain */
    uint32_t frame_count;
    struct mu_stacks_frames frames;
};

/* Threads, the main one first; take them off with mu_stacks_thread_next(). */
struct mu_stacks_threads {
    struct mu_span rest;
    struct mu_span texts;
    size_t stride;
};

struct mu_stacks_report {
    enum mu_stacks_kind kind;
    struct mu_span node; /* its name; "": not part of a run */
    uint32_t rank;       /* or MU_STACKS_NO_RANK */
    uint32_t local_rank; /* likewise */
    int64_t pid;
    uint64_t round;
    struct mu_span version; /* of the interpreter: "3.11.2"; may be "" */
    struct mu_span note; /* a sentence: why there are no frames, or what is uncertain; may be "" */
    uint32_t left_out;   /* threads that did not fit */
    uint32_t thread_count;
    struct mu_stacks_threads threads;
};

/**
 * Reads and checks all of a report; what it returns can be walked without further errors.
 * MUSTER_EPROTO: it is malformed, or of another version; MUSTER_ELIMIT: over a limit above.
 */
int mu_stacks_report_decode(struct mu_span in, struct mu_stacks_report *ret_report);
/** Takes the next thread off. 0; MUSTER_ENOENT: there are no more. */
int mu_stacks_thread_next(struct mu_stacks_threads *threads, struct mu_stacks_thread *ret_thread);
/** Takes the next frame off. 0; MUSTER_ENOENT: there are no more. */
int mu_stacks_frame_next(struct mu_stacks_frames *frames, struct mu_stacks_frame *ret_frame);

/* --- to make one ------------------------------------------------------------------------------ */

#define MU_STACKS_SLOTS 512 /* of the table that finds texts which are already there */

/* A report that is being made. All texts are copied, and cut where they are too long. */
struct mu_stacks_writer {
    struct mu_buf texts;
    struct mu_buf threads;
    uint32_t slots[MU_STACKS_SLOTS]; /* where a text may be, plus one; 0: nowhere */
    uint32_t thread_count;
    uint32_t left_out;
};

void mu_stacks_writer_init(struct mu_stacks_writer *w);
void mu_stacks_writer_fini(struct mu_stacks_writer *w);

/**
 * Appends a thread with `thread->frame_count` frames; `thread->frames` is not looked at. One that
 * does not fit any more is counted in `left_out`. MUSTER_ENOMEM: nothing has changed.
 */
int mu_stacks_writer_thread(struct mu_stacks_writer *w, const struct mu_stacks_thread *thread,
                            const struct mu_stacks_frame *frames);
/**
 * Appends the report to `out`: the fields of `head` before its `left_out`, and the threads so far.
 * MUSTER_ENOMEM; MUSTER_ELIMIT: `out` is too small.
 */
int mu_stacks_writer_finish(struct mu_stacks_writer *w, const struct mu_stacks_report *head,
                            struct mu_buf *out);

#endif
