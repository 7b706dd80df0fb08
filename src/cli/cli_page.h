/*
 * A status page on a thread of its own, for commands that wait for the library's answers and have
 * no loop:
 *
 *     cli_page_open(&page, "127.0.0.1:29701", token_file, &source);
 *     ... cli_page_address(&page) ...
 *     cli_page_close(&page);
 *
 * The source is asked on that thread.
 */
#ifndef MU_CLI_PAGE_H
#define MU_CLI_PAGE_H

#include <pthread.h>

#include "service/status_page.h"
#include "transport/uv_env.h"

struct cli_page {
    struct mu_uv_env *uv; /* NULL: there is none */
    struct mu_status_page *page;
    struct mu_post post;
    pthread_t thread;
    char address[MU_ADDR_HOST_MAX + 16];
};

/** 0 or an exit code, said. `token_file` may be NULL. */
int cli_page_open(struct cli_page *p, const char *http, const char *token_file,
                  const struct mu_status_source *source);
/** Tells those who look a last time, then ends it. Twice, or without a page, is harmless. */
void cli_page_close(struct cli_page *p);

#endif
