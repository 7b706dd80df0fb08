/*
 * What the hang watchdog wants to know of a stack: where the main thread of a worker is, and what
 * it waits for there, if that can be told from the functions that it is in.
 *
 *     sample.place = mu_stance_place(&report);
 *     sample.stance = mu_stance_of(&report);
 */
#ifndef MU_STANCE_H
#define MU_STANCE_H

#include "codec/stacks/pulse.h"
#include "codec/stacks/report.h"

/** A digest of the main thread's functions, files and lines; of a process that is not Python, of
 * where the thread is in the kernel. 0: nothing is known, or it changed while it was read. */
uint64_t mu_stance_place(const struct mu_stacks_report *report);

/**
 * MU_STANCE_OTHERS: the innermost frame is in a collective of PyTorch, or in a store.
 * MU_STANCE_REQUESTS: a server of the standard library, of asyncio or of gRPC waits for work; or a
 * process that is not Python waits for any of several descriptors, or for connections.
 * MU_STANCE_PERSON: a debugger of Python waits for a command, or for an editor (debugpy, pydevd).
 * MU_STANCE_PERHAPS: the innermost frame is one behind which another thread, or the GPU, may wait
 * for other ranks (mu_pacer_wait_of()).
 * MU_STANCE_UNKNOWN: anything else.
 */
enum mu_pulse_stance mu_stance_of(const struct mu_stacks_report *report);

#endif
