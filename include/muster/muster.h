/*
 * muster: coordination for training jobs whose machines come and go.
 *
 * Include this for everything, or the headers below for a part. Start with muster/runtime.h (the
 * thread that does the work, and which calls may be made where), then muster/store.h and
 * muster/rendezvous.h.
 *
 * Caveats. A runtime does not survive fork(): make it in the child. Everything opened in a runtime
 * must be closed before the runtime is freed. Keys and values are bytes; only the decimal numbers
 * of add are interpreted.
 */
#ifndef MUSTER_MUSTER_H
#define MUSTER_MUSTER_H

#include <muster/average.h>
#include <muster/error.h>
#include <muster/log.h>
#include <muster/progress.h>
#include <muster/queue.h>
#include <muster/rendezvous.h>
#include <muster/rpc.h>
#include <muster/rref.h>
#include <muster/runtime.h>
#include <muster/server.h>
#include <muster/state.h>
#include <muster/store.h>
#include <muster/types.h>
#include <muster/version.h>

#endif
