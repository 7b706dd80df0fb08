/*
 * The runtime: one thread with an event loop that does all the work of the stores and servers
 * opened in it. Most programs have one.
 *
 * Every function of the library may be called from any thread, except where it says otherwise.
 * Callbacks run on the runtime's thread, one at a time; they must not block, and must not call
 * functions that wait (those return MUSTER_EINVAL there).
 */
#ifndef MUSTER_RUNTIME_H
#define MUSTER_RUNTIME_H

#include <muster/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_runtime muster_runtime;

/** Starts a runtime. MUSTER_ENOMEM, or a negated errno. */
MUSTER_EXPORT int muster_runtime_new(muster_runtime **ret_runtime);

/** Ends it. Everything opened in it must have been closed. NULL is fine. */
MUSTER_EXPORT void muster_runtime_free(muster_runtime *runtime);

#ifdef __cplusplus
}
#endif

#endif
