/*
 * The status of `muster state serve` and `pull`, for their page (--http): what is shared and which
 * nodes load it, or the progress of a download.
 *
 *     state_page_open(&page, options)
 *     state_page_serve(&page, state, prefix)    serve: the page reads its figures
 *     state_page_progress(&page, progress)      pull: from the runtime's thread
 *     state_page_note(&page, "what happened")
 *     state_page_close(&page)                   before the state is closed
 */
#ifndef MU_STATE_PAGE_H
#define MU_STATE_PAGE_H

#include <pthread.h>

#include "cli/cli_page.h"
#include "cli/cmd_state.h"
#include "service/page/status_text.h"

#define STATE_PAGE_ROWS 256

struct state_page {
    struct cli_page page;
    pthread_mutex_t lock; /* guards everything below */
    const struct state_options *o;
    muster_state *state; /* serve; NULL until it is open */
    const char *what;    /* static: "sharing", "asking", "loading", "done", "failed" */
    char prefix[208];
    struct muster_state_progress progress;
    bool has_progress;
    mu_mono_t began;
    struct mu_status_events events;
    struct muster_state_transfer rows[STATE_PAGE_ROWS];
};

/** Returns 0, also if no page was requested, or an exit code after it has printed the error. */
int state_page_open(struct state_page *p, const struct state_options *o, const char *what);
/** Sets what is shared from here on, and under which prefix. */
void state_page_serve(struct state_page *p, muster_state *state, const char *prefix);
void state_page_progress(struct state_page *p, const struct muster_state_progress *progress);
/** Adds an event. `what`: the new status, static; NULL: unchanged. */
void state_page_note(struct state_page *p, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void state_page_close(struct state_page *p);

#endif
