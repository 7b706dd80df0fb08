/*
 * Machines do not log. They emit trace events, a name and a few numbers, into a sink that the
 * caller supplies; it is off unless a test, the simulator or a debug log asks for it. Events are
 * rendered as text, and golden traces compare that text.
 */
#ifndef MU_TRACE_H
#define MU_TRACE_H

#include <stddef.h>
#include <stdint.h>

struct mu_trace {
    /** `what` is a static string such as "rpc.resume"; a, b are its numbers. NULL: off. */
    void (*emit)(void *context, const char *what, uint64_t a, uint64_t b);
    void *context;
};

static inline void mu_trace(const struct mu_trace *t, const char *what, uint64_t a, uint64_t b)
{
    if (t != NULL && t->emit != NULL) {
        t->emit(t->context, what, a, b);
    }
}

#endif
