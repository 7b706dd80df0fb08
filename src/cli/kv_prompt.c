/* The prompt of `muster kv`. With libedit it has a history and completes operations, options and
 * keys; without, it only reads lines. */
#include "cli/cmd_kv.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Runs a line; returns false if it says to end. */
static bool run(const struct kv_prompt *p, char *line)
{
    static char name[] = "kv";
    static char *words[KV_WORDS_MAX + 2];
    int count = kv_split(line, words + 1, KV_WORDS_MAX);

    if (count < 0) {
        (void)cli_usage("kv", "a quote does not end, or there are more than %d words",
                        KV_WORDS_MAX);
        return true;
    }
    if (count == 0) {
        return true;
    }
    if (strcmp(words[1], "quit") == 0 || strcmp(words[1], "exit") == 0) {
        return false;
    }
    /* --help would end the program. */
    for (int i = 1; i <= count; i++) {
        if (strcmp(words[i], "--help") == 0 || strcmp(words[i], "-h") == 0 ||
            strcmp(words[1], "help") == 0) {
            cli_help(p->verb);
            return true;
        }
    }
    words[0] = name;
    words[count + 1] = NULL;
    p->run(count + 1, words);
    return true;
}

/* The store, without what follows a question mark in its URL. */
static void make_prompt(const struct kv_prompt *p, char out[80])
{
    (void)snprintf(out, 80, "%.*s> ", (int)strcspn(p->url, "?"), p->url);
}

#ifdef MU_LIBEDIT

#include <editline/readline.h>
#include <locale.h>
#include <sys/stat.h>

#define HISTORY_MAX 1000
#define MATCHES_MAX 1000

static const char *const own_words[] = {"help", "quit", "exit", NULL};

static const struct kv_prompt *prompt;
static char *matches[MATCHES_MAX];
static size_t match_count;
static size_t match_next;
static const char *match_text;

static void match(const char *name, size_t len)
{
    size_t have = strlen(match_text);

    /* A key with a blank, or with bytes that are no text, cannot be completed. */
    for (size_t i = 0; i < len; i++) {
        if (!isgraph((unsigned char)name[i]) || strchr("'\"\\", name[i]) != NULL) {
            return;
        }
    }
    if (match_count < MATCHES_MAX && len >= have && strncmp(name, match_text, have) == 0) {
        matches[match_count] = strndup(name, len); /* tidy: libedit frees it */
        match_count += matches[match_count] != NULL;
    }
}

static void match_options(void)
{
    for (size_t i = 0; i < prompt->verb->option_count; i++) {
        const struct cli_option *o = &prompt->verb->options[i];
        char name[64];

        if (o->type != CLI_GONE) {
            match(name, (size_t)snprintf(name, sizeof(name), "--%s", o->name));
        }
    }
}

static void match_words(const char *const *words)
{
    for (; *words != NULL; words++) {
        match(*words, strlen(*words));
    }
}

/* The library frees each match. */
static char *next_match(const char *text, int state)
{
    (void)text;
    match_next = state == 0 ? 0 : match_next;
    return match_next < match_count ? matches[match_next++] : NULL;
}

static char **complete(const char *text, int start, int end)
{
    (void)end;
    match_count = 0;
    match_text = text;
    if (text[0] == '-') {
        match_options();
    } else if (strspn(rl_line_buffer, " \t") == (size_t)start) {
        match_words(prompt->verb->operations);
        match_words(own_words);
    } else {
        prompt->keys(text, match);
    }
    rl_attempted_completion_over = 1; /* The words are not files. */
    return rl_completion_matches(text, next_match);
}

int kv_prompt(const struct kv_prompt *p)
{
    static char breaks[] = " \t";
    const char *home = getenv("HOME");
    mode_t mask = umask(077); /* Values may be secret. */
    FILE *out = fdopen(dup(STDOUT_FILENO), "w");
    char file[4096];
    char text[80];
    char *line;
    bool more = true;

    (void)snprintf(file, sizeof(file), "%s/.muster_history", home == NULL ? "" : home);
    make_prompt(p, text);
    prompt = p;
    (void)setlocale(LC_CTYPE, ""); /* Without it, the library drops all letters but ASCII's. */
    rl_readline_name = "muster";
    rl_outstream = out; /* Standard output filters what it writes to a terminal. */
    rl_completer_word_break_characters = breaks;
    rl_attempted_completion_function = complete;
    using_history();
    stifle_history(HISTORY_MAX);
    (void)read_history(file);
    while (more && (line = readline(text)) != NULL) {
        if (line[strspn(line, " \t")] != '\0') {
            (void)add_history(line);
            (void)write_history(file); /* Ctrl-C may end the program at any time. */
        }
        more = run(p, line);
        free(line); /* tidy: the library allocated it */
    }
    if (more) {
        (void)putchar('\n');
    }
    (void)umask(mask);
    (void)fclose(out);
    return CLI_OK;
}

#else

int kv_prompt(const struct kv_prompt *p)
{
    char text[80];
    char *line = NULL;
    size_t cap = 0;
    bool more = true;

    make_prompt(p, text);
    do {
        (void)fputs(text, stdout);
        (void)fflush(stdout);
        more = getline(&line, &cap, stdin) >= 0 && run(p, line);
    } while (more);
    free(line);
    return CLI_OK;
}

#endif
