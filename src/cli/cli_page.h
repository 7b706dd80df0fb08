/*
 * A status page on its own thread, for commands that wait for the library's answers and have no
 * loop:
 *
 *     cli_page_open(&page, &(struct cli_page_place){.http = "127.0.0.1:0"}, &source);
 *     ... page.address ...
 *     cli_page_close(&page);
 *
 * The source is called on that thread.
 */
#ifndef MU_CLI_PAGE_H
#define MU_CLI_PAGE_H

#include <pthread.h>

#include "service/page/status_page.h"
#include "transport/uv_env.h"

struct cli_page {
    struct mu_uv_env *uv; /* NULL: there is no page */
    struct mu_status_page *page;
    struct mu_post post;
    pthread_t thread;
    char address[MU_ADDR_HOST_MAX + 16];
};

/* The page's address, and the lock on it. */
struct cli_page_place {
    const char *http;       /* HOST:PORT */
    const char *token_file; /* or NULL */
    bool insecure;          /* lets other hosts in without a token */
};

#define CLI_PAGE_TOKEN_CAP 513

/** Fills in the configuration's `listen` and `token`; the latter borrows `token`, which the caller
 * wipes. Returns 0, or an exit code after it has printed the error. */
int cli_page_prepare(const struct cli_page_place *place, struct mu_status_page_config *config,
                     char token[CLI_PAGE_TOKEN_CAP]);
/** Returns 0, or an exit code after it has printed the error. */
int cli_page_open(struct cli_page *p, const struct cli_page_place *place,
                  const struct mu_status_source *source);
/** Sends the open pages a last update, then closes the page. A second call, or a call without a
 * page, does nothing. */
void cli_page_close(struct cli_page *p);

#endif
