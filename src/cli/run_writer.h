/*
 * A thread that writes, so that a slow console or disk does not stop the loop, which has peers to
 * answer. What is put is written in order, and whole; memory is bounded by asking before putting.
 */
#ifndef MU_RUN_WRITER_H
#define MU_RUN_WRITER_H

#include <stdbool.h>
#include <stddef.h>

struct run_writer;

/**
 * `drained` is called on the writer's thread, once after run_writer_full() said true, when there is
 * room again. NULL: no memory, or no thread.
 */
struct run_writer *run_writer_new(void (*drained)(void *context), void *context);
/** Whether enough waits to be written; `drained` follows then. */
bool run_writer_full(struct run_writer *w);
/** Takes a copy of both parts, to be written one behind the other. Lost if there is no memory. */
void run_writer_put(struct run_writer *w, int fd, const char *first, size_t first_len,
                    const char *second, size_t second_len);
/** Closes it once all that was put for it before is written. */
void run_writer_close(struct run_writer *w, int fd);
/** Waits until everything is written, and ends the thread. NULL is fine. */
void run_writer_free(struct run_writer *w);

#endif
