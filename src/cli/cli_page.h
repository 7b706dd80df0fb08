/*
 * A status page on a thread of its own, for commands that wait for the library's answers and have
 * no loop:
 *
 *     cli_page_open(&page, &(struct cli_page_place){.http = "127.0.0.1:0"}, &source);
 *     ... page.address ...
 *     cli_page_close(&page);
 *
 * The source is asked on that thread.
 */
#ifndef MU_CLI_PAGE_H
#define MU_CLI_PAGE_H

#include <pthread.h>

#include "service/page/status_page.h"
#include "transport/uv_env.h"

struct cli_page {
    struct mu_uv_env *uv; /* NULL: there is none */
    struct mu_status_page *page;
    struct mu_post post;
    pthread_t thread;
    char address[MU_ADDR_HOST_MAX + 16];
};

/* Where a page is, and who may see it. */
struct cli_page_place {
    const char *http;       /* HOST:PORT */
    const char *token_file; /* or NULL */
    bool insecure;          /* beyond loopback without a token */
};

#define CLI_PAGE_TOKEN_CAP 513

/** Fills in `listen` and `token`, which is lent by `token` and to be wiped. 0 or an exit code,
 * said. */
int cli_page_prepare(const struct cli_page_place *place, struct mu_status_page_config *config,
                     char token[CLI_PAGE_TOKEN_CAP]);
/** 0 or an exit code, said. */
int cli_page_open(struct cli_page *p, const struct cli_page_place *place,
                  const struct mu_status_source *source);
/** Tells those who look a last time, then ends it. Twice, or without a page, is harmless. */
void cli_page_close(struct cli_page *p);

#endif
