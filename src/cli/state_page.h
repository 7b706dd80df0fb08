/*
 * How `muster state serve` and `pull` stand, for their page (--http): what is shared and to whom it
 * goes, or how far a download is.
 *
 *     state_page_open(&page, options)
 *     state_page_serve(&page, state, prefix)    serve: is asked for its figures
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
    pthread_mutex_t lock; /* of all below */
    const struct state_options *o;
    muster_state *state; /* serve; NULL until there is one */
    const char *what;    /* static: "sharing", "asking", "loading", "done", "failed" */
    char prefix[208];
    struct muster_state_progress progress;
    bool has_progress;
    mu_mono_t began;
    struct mu_status_events events;
    struct muster_state_transfer rows[STATE_PAGE_ROWS];
};

/** 0, also if there is to be no page, or an exit code, said. */
int state_page_open(struct state_page *p, const struct state_options *o, const char *what);
/** What is shared from here on, and under which prefix. */
void state_page_serve(struct state_page *p, muster_state *state, const char *prefix);
void state_page_progress(struct state_page *p, const struct muster_state_progress *progress);
/** `what`: the new state, static; NULL: as it was. */
void state_page_note(struct state_page *p, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void state_page_close(struct state_page *p);

#endif
