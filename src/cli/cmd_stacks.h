/*
 * What the files of `muster stacks` share:
 *
 *     cmd_stacks.c     the options; processes by number
 *     stacks_local.c   the workers of this machine
 *     stacks_run.c     the workers of a whole run, through its server
 *     stacks_list.c    a look at processes of this machine
 *     stacks_page.c    many reports on one page
 *     stacks_print.c   a report in full
 */
#ifndef MU_CMD_STACKS_H
#define MU_CMD_STACKS_H

#include <jansson.h>

#include "cli/cli_loop.h"
#include "codec/stacks/report.h"

struct stacks_options {
    const char *pids; /* numbers, separated by commas */
    const char *backend;
    const char *endpoint;
    const char *run_id;
    double timeout; /* seconds, for the agents */
    bool json;
    bool all_threads;
    struct cli_lock *lock;
};

/** Each returns an exit code, after it has printed. */
int stacks_of_run(const struct stacks_options *o);
int stacks_local(const struct stacks_options *o);

/* --- processes of this machine ---------------------------------------------------------------- */

#define STACKS_PIDS_MAX 4096

struct stacks_list;

/** NULL: no memory. */
struct stacks_list *stacks_list_new(void);
void stacks_list_free(struct stacks_list *list);
/** The spans of `head` must last as long as the list. For a worker, which has a rank, the Python
 * that it has started is shown if it is not Python itself. False: there are STACKS_PIDS_MAX. */
bool stacks_list_add(struct stacks_list *list, const struct mu_stacks_report *head);
size_t stacks_list_count(const struct stacks_list *list);
/** Looks at all of them. Returns 0 or an exit code after it has printed the error. */
int stacks_list_take(struct stacks_list *list);
/** Whether a look has not come back. Then the process has to end by _exit(): exit() would wait. */
bool stacks_list_stuck(void);
/** The report of one, which is encoded; or MUSTER_... with a text: there is none.
 * MUSTER_ETIMEDOUT: its look has not come back. */
int stacks_list_report(const struct stacks_list *list, size_t i, struct mu_span *ret_report,
                       const char **reterr_text);

/* --- the page --------------------------------------------------------------------------------- */

/* Reports, of which groups are made once all of them are there. */
struct stacks_page {
    struct mu_buf reports; /* each after its length */
    size_t count;
    uint32_t world; /* how many there should be; 0: not known */
    bool json;
    bool all_threads;
    json_t *object; /* --json: what is printed, and the caller may add to it */
};

void stacks_page_init(struct stacks_page *page, const struct stacks_options *o);
void stacks_page_fini(struct stacks_page *page);
/** Adds a report, which is encoded; one that cannot be read is passed over. MUSTER_ENOMEM. */
int stacks_page_add(struct stacks_page *page, struct mu_span report);
/** Prints the groups, the odd ones first, and then, if it was asked for, all threads. Returns an
 * exit code. */
int stacks_page_print(struct stacks_page *page);

#endif
