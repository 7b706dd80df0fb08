/* The command line: main.c has a table of commands, and each command has its cmd_<name>.c. */
#ifndef MU_CLI_H
#define MU_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/muster.h>

#include "core/err.h"

/* Exit codes, documented in muster(1). */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1,  /* the operation failed */
    CLI_USAGE = 2,   /* wrong usage */
    CLI_TIMEOUT = 3, /* timed out */
    CLI_CONNECT = 4, /* cannot connect, or the other end is not a store */
    CLI_STORAGE = 5, /* the disk, the data directory, or no room in the store */
    CLI_ADDRESS = 6, /* an address that is in use or cannot be used */
    CLI_NO_KEY = 7,  /* no such key, no such run */
    CLI_CLOSED = 8,  /* the run is closed */
};

/** Returns the exit code for an error of the library. */
int cli_exit_code(int err);
/** Prints "muster: " and the text to standard error, or writes a line of the log; returns
 * `code`. */
int cli_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** The same as cli_fail() with CLI_USAGE, and points to --help. */
int cli_usage(const char *verb, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Returns the level that torchrun's LOGLEVEL names; without it, warnings and errors are logged. */
enum muster_log_level cli_log_level(void);

/* --- options ---------------------------------------------------------------------------------- */

enum cli_option_type {
    CLI_FLAG = 1, /* bool */
    CLI_TEXT,     /* const char * */
    CLI_NUMBER,   /* uint64_t */
    CLI_SIZE,     /* uint64_t; K, M, G, T may follow the number */
    CLI_INTEGER,  /* int64_t, with a sign; to 2^31 - 1 either way */
    CLI_SECONDS,  /* double: whole or with a point; may be negative, never infinite */
};

/* One option of a command. The same table drives parsing and --help. The members after `max` may be
 * left out. */
struct cli_option {
    const char *name;  /* without the dashes */
    const char *value; /* the name of its value, or NULL if it takes no value */
    const char *help;
    enum cli_option_type type;
    void *to;
    uint64_t max;          /* greatest number or size; 0: no limit */
    char letter;           /* "-r" for "--redirects"; 0: no letter */
    const char *variable;  /* environment variable that has its default; NULL: no variable. Flags: a
                              whole number, on if it is not 0 */
    const char *const *of; /* the values it takes, ended by NULL; NULL: any value */
    bool *given;           /* set to true if the command line or the variable gave it; or NULL */
    bool whole;            /* with cli_verb.argparse: the name cannot be abbreviated */
};

struct cli_verb {
    const char *name;
    const char *synopsis;
    const char *description;
    const struct cli_option *options;
    size_t option_count; /* at most 64 */
    bool argparse;       /* parses as Python's argparse does: see below */
};

/**
 * Parses options up to the first word that is not an option, or up to "--", and moves *argc and
 * *argv behind them. --help prints and exits. Returns 0 or, after it has printed the error,
 * CLI_USAGE, or CLI_FAILED for a flag's variable that is not a number. Takes "--name value" and
 * "--name=value". With `argparse` also: "_" for "-" in names, abbreviated names that fit only one
 * option, letters together and with their value ("-mr3", "-r=3"), and a value that begins with "-"
 * only if it is a number or contains a blank.
 */
int cli_parse(const struct cli_verb *verb, int *argc, char ***argv);
/** Parses a whole number; returns false if it is not one or is greater than `max`. With `size`, K,
 * M, G and T may follow. */
bool cli_parse_number(const char *text, bool size, uint64_t max, uint64_t *ret);

/** Reads the job's token: the first line of a file that only its owner can read. Returns 0, or an
 * exit code after it has printed the error. */
int cli_read_token(const char *path, char *token, size_t cap);

typedef int cli_word_fn(void *context, const char *word, struct mu_errmsg *msg);
/** Calls `use` for each of the words between the commas of `list`, which may be NULL, until one
 * fails. Returns its error, and its text with the word in it. */
int cli_each_word(const char *list, cli_word_fn *use, void *context, struct mu_errmsg *msg);
/** The same for a command; prints the error and returns an exit code. */
int cli_use_words(const char *list, cli_word_fn *use, void *context);

int cmd_run(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_keygen(int argc, char **argv);
int cmd_kv(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_bench_etcd(int argc, char **argv);
int cmd_bench_rdzv(int argc, char **argv);
int cmd_dht(int argc, char **argv);
int cmd_rdzv(int argc, char **argv);
int cmd_p2pd(int argc, char **argv);
int cmd_peer(int argc, char **argv);
int cmd_rpc(int argc, char **argv);
int cmd_state(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_top(int argc, char **argv);

#endif
