/* muster top: shows the status of a server, an agent or a download in a terminal. */
#include "cli/cli_lock.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "cli/cli_loop.h"
#include "cli/cli_terminal.h"
#include "cli/top_screen.h"
#include "service/page/page_client.h"

#define ANSWER_MAX ((size_t)64 << 20)

struct top {
    struct cli_loop loop;
    const char *url;
    char page[1024];
    char authorization[600];
    double interval;
    double timeout;
    bool once;
    bool json;
    bool terminal;
    struct mu_timer timer;
    struct mu_page_client client;
    json_t *now;
    json_t *before;
    bool asking;
    bool ending;
    bool lost; /* the user was told that the page does not answer */
    int code;
};

/* --- the terminal ----------------------------------------------------------------------------- */

static void measure(struct top_screen *s)
{
    struct winsize size;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20 && size.ws_row >= 4) {
        s->width = size.ws_col;
        s->height = size.ws_row - 1; /* The last line stays empty, so that nothing scrolls. */
    }
}

static void draw(struct top *t)
{
    /* In a pipe nothing is cut. */
    struct top_screen screen = {
        .width = TOP_WHOLE, .height = TOP_WHOLE, .now = t->now, .before = t->before};
    char *text;

    screen.color = cli_terminal_colors(STDOUT_FILENO);
    if (t->terminal) {
        screen.width = 80;
        screen.height = 23;
        measure(&screen);
    }
    text = top_screen_draw(&screen);
    if (text != NULL) {
        /* Each line is written over the old one and its rest cleared, so that nothing flickers. */
        if (t->terminal && !t->once) {
            (void)fputs("\033[H", stdout);
        }
        for (char *line = text; *line != '\0';) {
            size_t n = strcspn(line, "\n");

            (void)fwrite(line, 1, n, stdout);
            (void)fputs(t->terminal && !t->once ? "\033[K\n" : "\n", stdout);
            line += n + (line[n] == '\n' ? 1 : 0);
        }
        if (t->terminal && !t->once) {
            (void)fputs("\033[J", stdout);
        }
        (void)fflush(stdout);
    }
    free(text); /* tidy: top_screen_draw() allocated it */
}

/* --- asking ----------------------------------------------------------------------------------- */

static void finish(struct top *t, int code)
{
    t->code = code;
    t->ending = true;
    mu_env_timer_arm(t->loop.env, &t->timer, MU_MONO_NEVER);
    if (t->asking) {
        mu_page_client_cancel(&t->client);
    } else {
        cli_loop_stop(&t->loop);
    }
}

static void take_answer(struct top *t)
{
    json_error_t error;
    struct mu_span in = mu_buf_span(&t->client.body);
    json_t *status = json_loadb((const char *)in.data, in.len, 0, &error);

    if (status == NULL || !json_is_string(json_object_get(status, "kind"))) {
        json_decref(status);
        finish(t, cli_fail(CLI_CONNECT, "%s is not a muster status page", t->url));
        return;
    }
    json_decref(t->before);
    t->before = t->now;
    t->now = status;
    t->lost = false;
    if (t->json) {
        cli_print_json(json_incref(status));
        if (t->once) {
            finish(t, CLI_OK);
        }
        return;
    }
    /* Rates need two answers. */
    if (!t->once || t->before != NULL) {
        draw(t);
        if (t->once) {
            finish(t, CLI_OK);
        }
    }
}

static void on_done(struct mu_page_client *client, int status)
{
    struct top *t = MU_CONTAINER_OF(client, struct top, client);

    t->asking = false;
    if (t->ending) {
        cli_loop_stop(&t->loop);
        return;
    }
    if (status == 0 && client->code == 200) {
        take_answer(t);
    } else if (client->code == 401) {
        finish(t, cli_fail(CLI_FAILED, "%s requires a token: give --token-file FILE", t->url));
    } else if (status == 0) {
        finish(t, cli_fail(CLI_CONNECT, "%s is not a muster status page: it answers %d", t->url,
                           client->code));
    } else if (status == MUSTER_ENOTSUP) {
        finish(t, cli_fail(CLI_FAILED, "%s", client->error.text));
    } else if (t->now == NULL) {
        finish(t, cli_fail(CLI_CONNECT,
                           "%s; is `muster serve --http`, or `muster run --http`, running there?",
                           client->error.text));
    } else if (!t->lost) {
        t->lost = true;
        if (t->json) {
            (void)cli_fail(0, "%s does not answer; trying again", t->url);
        } else {
            printf("%s does not answer; trying again\n", t->url);
            (void)fflush(stdout);
        }
    }
    if (!t->ending) {
        double wait = t->once ? 0.5 : t->interval;

        mu_env_timer_arm(t->loop.env, &t->timer,
                         mu_mono_add_ns(mu_env_now(t->loop.env).mono, (uint64_t)(wait * 1e9)));
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct top *t = MU_CONTAINER_OF(timer, struct top, timer);
    const struct mu_page_request request = {
        .url = t->page,
        .authorization = t->authorization[0] == '\0' ? NULL : t->authorization,
        .connect_ms = cli_ms(t->timeout < 5 ? t->timeout : 5),
        .timeout_ms = cli_ms(t->timeout)};
    int err = mu_page_client_get(&t->client, &request);

    if (err != 0) {
        finish(t, cli_fail(CLI_USAGE, "\"%s\" is not the address of a page: %s", t->url,
                           t->client.error.text[0] != '\0' ? t->client.error.text
                                                           : muster_strerror(err)));
        return;
    }
    t->asking = true;
}

static void on_signal(void *context, int number)
{
    (void)number;
    finish(context, CLI_OK);
}

/* --- keys ------------------------------------------------------------------------------------- */

struct keys {
    struct termios before;
    bool open;
};

static void *read_keys(void *context)
{
    char key = '\0';

    (void)context;
    while (read(STDIN_FILENO, &key, 1) == 1) {
        if (key == 'q' || key == 'Q') {
            (void)kill(getpid(), SIGTERM); /* This ends the loop in order. */
            break;
        }
    }
    return NULL;
}

/* Has single keys read while the screen is shown. A process in the background leaves the terminal
 * alone. */
static void listen_to_keys(struct keys *k)
{
    struct termios raw;
    pthread_t thread;

    if (tcgetpgrp(STDIN_FILENO) != getpgrp() || tcgetattr(STDIN_FILENO, &k->before) != 0) {
        return;
    }
    raw = k->before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    k->open = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
    if (k->open && pthread_create(&thread, NULL, read_keys, NULL) == 0) {
        (void)pthread_detach(thread);
    }
}

static int run(struct top *t)
{
    struct keys keys = {.open = false};
    int code = cli_loop_open(&t->loop, on_signal, t);

    if (code != 0) {
        return code;
    }
    t->terminal = isatty(STDOUT_FILENO) == 1 && !t->json;
    cli_terminal_close(); /* The screen filters its lines itself. */
    mu_page_client_init(&t->client, t->loop.env, ANSWER_MAX, on_done);
    mu_timer_init(&t->timer, on_timer);
    mu_env_timer_arm(t->loop.env, &t->timer, mu_env_now(t->loop.env).mono);
    if (t->terminal && !t->once) {
        (void)fputs("\033[?1049h\033[?25l", stdout); /* the alternate screen, without a cursor */
        listen_to_keys(&keys);
    }
    cli_loop_run(&t->loop);
    if (t->terminal && !t->once) {
        (void)fputs("\033[?25h\033[?1049l", stdout);
        (void)fflush(stdout);
        if (keys.open) {
            (void)tcsetattr(STDIN_FILENO, TCSANOW, &keys.before);
        }
    }
    json_decref(t->now);
    json_decref(t->before);
    mu_page_client_fini(&t->client);
    cli_loop_close(&t->loop);
    return t->code;
}

/* The token itself does not go over the wire, only a key made from it. */
static int show_token(struct top *t, const char *path)
{
    char key[MU_PAGE_KEY_CAP];
    char token[512];
    int err = cli_read_token(path, token, sizeof(token));

    if (err == 0) {
        mu_page_key(mu_span_str(token), key);
        (void)snprintf(t->authorization, sizeof(t->authorization), "Bearer %s", key);
    }
    explicit_bzero(token, sizeof(token));
    return err;
}

int cmd_top(int argc, char **argv)
{
    static struct top t = {.interval = 1, .timeout = 10};
    const char *token_file = NULL;
    const struct cli_option options[] = {
        {"token-file", "FILE", "the job's token (MUSTER_TOKEN_FILE; see muster keygen)", CLI_TEXT,
         &token_file, 0, .variable = "MUSTER_TOKEN_FILE"},
        {"interval", "TIME", "how often to ask, 100ms to 1h (1s)", CLI_SECONDS, &t.interval, 0},
        {"timeout", "TIME", "how long the page may take to answer (10s)", CLI_SECONDS, &t.timeout,
         3600},
        {"once", NULL, "print everything once, and end", CLI_FLAG, &t.once, 0},
        {"json", NULL, "print the status as one JSON object per line", CLI_FLAG, &t.json, 0},
    };
    const struct cli_verb verb = {
        "top", "[OPTIONS] HOST:PORT",
        "Shows in a terminal what a status page shows: the runs and members of a server, the\n"
        "workers of an agent, downloads, rates and recent events. HOST:PORT is the address that\n"
        "muster serve, run or state was given with --http. q ends it.",
        options, sizeof(options) / sizeof(options[0])};
    int err = cli_parse(&verb, &argc, &argv);

    if (err == 0 && argc != 1) {
        err = cli_usage("top", "name the page: the HOST:PORT of --http");
    }
    if (err == 0 && !(t.timeout > 0)) {
        err = cli_usage("top", "--timeout must be greater than 0");
    }
    if (err == 0 && !(t.interval >= 0.1 && t.interval <= 3600)) {
        err = cli_usage("top", "--interval must be from 100ms to 1h");
    }
    if (err == 0 && token_file != NULL) {
        err = show_token(&t, token_file);
    }
    if (err != 0) {
        return err;
    }
    t.url = argv[0];
    (void)snprintf(t.page, sizeof(t.page), "%s%s%sstatus.json",
                   strstr(t.url, "://") == NULL ? "http://" : "", t.url,
                   t.url[strlen(t.url) - 1] == '/' ? "" : "/");
    return run(&t);
}
