/* The command line: a table of verbs in main.c, one cmd_<verb>.c each. */
#ifndef MU_CLI_H
#define MU_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/muster.h>

/* Exit codes, documented in muster(1). */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1,  /* the operation failed */
    CLI_USAGE = 2,   /* wrong usage */
    CLI_TIMEOUT = 3, /* timed out */
    CLI_CONNECT = 4, /* cannot connect, or it is not a store */
    CLI_STORAGE = 5, /* the data directory or the disk */
    CLI_ADDRESS = 6, /* an address in use or not usable */
    CLI_NO_KEY = 7,  /* no such key, no such run */
    CLI_CLOSED = 8,  /* the run is closed */
};

/** The exit code that fits an error of the library. */
int cli_exit_code(int err);
/** Prints "muster: " and the text to standard error, or a line of the log; returns `code`. */
int cli_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** As cli_fail() with CLI_USAGE, and a hint at --help. */
int cli_usage(const char *verb, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** torchrun's LOGLEVEL. Without it, only what somebody should look at. */
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

/* One option of a verb. The same table drives parsing and --help. What comes behind `max` may be
 * left out. */
struct cli_option {
    const char *name;  /* without the dashes */
    const char *value; /* what its value is called, or NULL if it takes none */
    const char *help;
    enum cli_option_type type;
    void *to;
    uint64_t max;          /* of numbers and sizes; 0: no bound */
    char letter;           /* "-r" beside "--redirects"; 0: none */
    const char *variable;  /* of the environment, which has its default; NULL: none. Flags: a whole
                              number, on if it is not 0 */
    const char *const *of; /* the words it may be, ended by NULL; NULL: any */
    bool *given;           /* set to true if it was, by word or by variable; or NULL */
    bool whole;            /* with cli_verb.argparse: it is never abbreviated */
};

struct cli_verb {
    const char *name;
    const char *synopsis;
    const char *description;
    const struct cli_option *options;
    size_t option_count; /* at most 64 */
    bool argparse;       /* takes words as Python's argparse does: see below */
};

/**
 * Parses options up to the first word that is none ("--" ends them, too), moves *argc and *argv
 * behind them. --help prints and exits. Returns 0 or CLI_USAGE, said; CLI_FAILED for a flag's
 * variable that is no number. "--name value" and "--name=value". With `argparse` also: "_" for "-"
 * in names, names cut short as long as only one fits, letters together and with their value
 * ("-mr3", "-r=3"), and a value that begins with "-" only if it is a number or has a blank in it.
 */
int cli_parse(const struct cli_verb *verb, int *argc, char ***argv);
/** A whole number; false if it is none or over `max`. With `size`, K, M, G and T may follow. */
bool cli_parse_number(const char *text, bool size, uint64_t max, uint64_t *ret);

/** The job's token, the first line of a file that its owner alone can read. 0 or an exit code,
 * said. */
int cli_read_token(const char *path, char *token, size_t cap);

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
