#include "cli/cli_page.h"

#include <signal.h>
#include <string.h>

#include "cli/cli.h"

static void on_stopped(void *context)
{
    struct cli_page *p = context;

    mu_uv_env_stop(p->uv);
}

static void *run_loop(void *context)
{
    struct cli_page *p = context;

    mu_uv_env_run(p->uv);
    return NULL;
}

static void end_on_loop(struct mu_post *post)
{
    struct cli_page *p = MU_CONTAINER_OF(post, struct cli_page, post);

    mu_status_page_tell(p->page);
    mu_status_page_stop(p->page);
}

int cli_page_prepare(const struct cli_page_place *place, struct mu_status_page_config *config,
                     char token[CLI_PAGE_TOKEN_CAP])
{
    struct mu_errmsg msg = {{0}};
    int code;

    token[0] = '\0';
    if (mu_addr_parse(place->http, 0, &config->listen, &msg) != 0) {
        return cli_fail(CLI_USAGE, "--http: %s", msg.text);
    }
    if (place->token_file != NULL) {
        code = cli_read_token(place->token_file, token, CLI_PAGE_TOKEN_CAP);
        if (code != 0) {
            return code;
        }
    } else if (!place->insecure && !mu_addr_is_loopback(&config->listen)) {
        return cli_fail(cli_exit_code(MUSTER_ELOCKED),
                        "a status page beyond loopback needs a token (--token-file), or "
                        "--insecure: everyone who reaches %s could read it",
                        place->http);
    }
    config->token = mu_span_str(token);
    return 0;
}

static int start(struct cli_page *p, const struct cli_page_place *place,
                 const struct mu_status_source *source)
{
    struct mu_status_page_config config = {.stopped = on_stopped, .context = p};
    struct mu_errmsg msg = {{0}};
    char token[CLI_PAGE_TOKEN_CAP];
    int code = cli_page_prepare(place, &config, token);
    int err =
        code != 0 ? 0 : mu_status_page_start(mu_uv_env_env(p->uv), source, &config, &p->page, &msg);

    explicit_bzero(token, sizeof(token));
    return err == 0 ? code : cli_fail(cli_exit_code(err), "--http: %s", msg.text);
}

int cli_page_open(struct cli_page *p, const struct cli_page_place *place,
                  const struct mu_status_source *source)
{
    sigset_t all;
    sigset_t before;
    int code;

    *p = (struct cli_page){0};
    if (mu_uv_env_new(&p->uv) != 0) {
        return cli_fail(CLI_FAILED, "cannot start the status page");
    }
    code = start(p, place, source);
    if (code != 0) {
        mu_uv_env_free(p->uv);
        p->uv = NULL;
        return code;
    }
    (void)mu_addr_format(mu_status_page_addr(p->page), p->address, sizeof(p->address));
    p->post.run = end_on_loop;
    /* Other threads wait for the signals. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before);
    code = pthread_create(&p->thread, NULL, run_loop, p);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        mu_status_page_stop(p->page);
        mu_uv_env_run(p->uv);
        mu_status_page_free(p->page);
        mu_uv_env_free(p->uv);
        p->uv = NULL;
        return cli_fail(CLI_FAILED, "cannot start a thread");
    }
    return 0;
}

void cli_page_close(struct cli_page *p)
{
    if (p->uv == NULL) {
        return;
    }
    mu_uv_env_post(p->uv, &p->post);
    (void)pthread_join(p->thread, NULL);
    mu_status_page_free(p->page);
    mu_uv_env_free(p->uv);
    p->uv = NULL;
}
