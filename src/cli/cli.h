/* The command line: main.c has a table of commands, and each command has its cmd_<name>.c. */
#ifndef MU_CLI_H
#define MU_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include <muster/muster.h>

#include "cli/options.h"
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
/** Prints a figure as "name value unit", or as a JSON object. */
void cli_figure(bool json, const char *name, double value, int digits, const char *unit);
/** Adds bytes to a JSON object: as text if they are UTF-8, else as base64 under the name with
 * "_base64" appended. */
void cli_put_bytes(json_t *object, const char *name, struct muster_bytes bytes);
/** Prints a JSON object or array on one line, and frees it. */
void cli_print_json(json_t *value);
/** Returns the level that torchrun's LOGLEVEL names; without it, warnings and errors are logged. */
enum muster_log_level cli_log_level(void);

/** Reads the job's token: the first line of a file that only its owner can read. Returns 0, or an
 * exit code after it has printed the error. */
int cli_read_token(const char *path, char *token, size_t cap);

typedef int cli_word_fn(void *context, const char *word, struct mu_errmsg *msg);
/** Calls `use` for each of the words between the commas of `list`, which may be NULL, until one
 * fails. Returns its error, and its text with the word in it. */
int cli_each_word(const char *list, cli_word_fn *use, void *context, struct mu_errmsg *msg);
/** The same for a command; prints the error and returns an exit code. */
int cli_use_words(const char *list, cli_word_fn *use, void *context);

/** The whole command: what main() returns. */
int cli_main(int argc, char **argv);

int cmd_run(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_average(int argc, char **argv);
int cmd_keygen(int argc, char **argv);
int cmd_kv(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_bench_etcd(int argc, char **argv);
int cmd_bench_rdzv(int argc, char **argv);
int cmd_bench_job(int argc, char **argv);
int cmd_dht(int argc, char **argv);
int cmd_rdzv(int argc, char **argv);
int cmd_p2pd(int argc, char **argv);
int cmd_peer(int argc, char **argv);
int cmd_rpc(int argc, char **argv);
int cmd_state(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_stacks(int argc, char **argv);
int cmd_top(int argc, char **argv);

#endif
