/*
 * What the files of `muster kv` share.
 *
 *     cmd_kv.c       the command
 *     kv_ops.c       the operations
 *     kv_prompt.c    the prompt: `muster kv` without an operation, on a terminal
 *     kv_split.c     a line of the prompt as words
 */
#ifndef MU_CMD_KV_H
#define MU_CMD_KV_H

#include "cli/cli_lock.h"

struct kv {
    const char *url;
    double timeout; /* 0: none */
    double connect;
    uint64_t lease;
    bool json;
    bool raw;
    bool wait;
    bool prefix;
    bool current;
    bool once;
    struct cli_lock lock;
    muster_store *store;
    int argc;
    char **argv; /* after the operation */
};

/* Their names, ended by NULL. */
extern const char *const kv_operations[];

/** Refuses an operation with too few or too many words. */
int kv_check_words(const char *operation, int argc);
/** Runs an operation on the open store. Returns an exit code, and prints the error. */
int kv_run(struct kv *kv, const char *operation);

#define KV_WORDS_MAX 1024

/**
 * Divides a line into words, in place, as a shell does: blanks divide, '...' and "..." keep blanks,
 * and a backslash takes the next character as it is, except in '...'. Returns how many there are,
 * or -1 if a quote does not end, or there are more than `max`.
 */
int kv_split(char *line, char **words, int max);

struct kv_prompt {
    const char *url;
    const struct cli_verb *verb;
    /** Runs the words of a line: argv[1] is an operation, or an option. */
    void (*run)(int argc, char **argv);
    /** Calls `each` for the keys of the store that begin with a text. */
    void (*keys)(const char *begin, void (*each)(const char *key, size_t len));
};

/** Reads lines from the terminal and runs them, until the end or "quit". Returns an exit code. */
int kv_prompt(const struct kv_prompt *p);

#endif
