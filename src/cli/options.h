/*
 * Options of the command line. Each command has a table, which drives parsing, --help, the shells'
 * completions and the test that all commands behave alike:
 *
 *     options.c          the parser
 *     options_value.c    numbers, sizes and times
 *     options_help.c     --help, as text and as JSON
 *
 * One grammar holds for all commands. Options may stand before, between and after the other words;
 * "--" ends them. A word that is "-", or begins like a negative number, is no option. `run` alone
 * follows Python's argparse, because it takes torchrun's command lines: everything after the script
 * belongs to the script.
 */
#ifndef MU_CLI_OPTIONS_H
#define MU_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/text/guess.h"

enum cli_option_type {
    CLI_FLAG = 1, /* bool */
    CLI_TEXT,     /* const char * */
    CLI_NUMBER,   /* uint64_t */
    CLI_SIZE,     /* uint64_t; K, M, G, T may follow the number */
    CLI_INTEGER,  /* int64_t, with a sign; to 2^31 - 1 either way */
    CLI_REAL,     /* double, with a sign; to 10^9 either way */
    CLI_SECONDS,  /* double, at least 0: a time such as "500ms", "5s", "2m" or "1h"; a number alone
                     is in seconds */
    CLI_GONE,     /* the option was removed or renamed: `help` says what to write instead */
};

/* Longest time, in seconds, where an option sets no limit of its own: its milliseconds fit into 32
 * bits. */
#define CLI_SECONDS_MAX 4294967

/* One option of a command. The members after `max` may be left out. */
struct cli_option {
    const char *name;  /* without the dashes */
    const char *value; /* the name of its value, or NULL if it takes no value */
    const char *help;
    enum cli_option_type type;
    void *to;
    uint64_t max;          /* greatest number, size or time in seconds; 0: no limit of its own */
    char letter;           /* "-r" for "--redirects"; 0: no letter */
    const char *variable;  /* environment variable that has its default; NULL: no variable. Flags: a
                              whole number, on if it is not 0 */
    const char *const *of; /* the values it takes, ended by NULL; NULL: any value */
    bool *given;           /* set to true if the command line or the variable gave it; or NULL */
    bool whole;            /* with cli_verb.argparse: the name cannot be abbreviated */
    const char *otherwise; /* its value if none follows "=": the next word never is its value.
                              NULL: it needs a value */
    uint32_t bare;         /* greatest time without a unit, in seconds; 0: a day. Larger ones are
                              probably milliseconds and are refused. */
};

struct cli_verb {
    const char *name;
    const char *synopsis;
    const char *description;
    const struct cli_option *options;
    size_t option_count;           /* at most 64 */
    bool argparse;                 /* parses as Python's argparse does: see below */
    const char *const *operations; /* the words of which one comes first ("serve"), ended by NULL;
                                      NULL: there are none */
    bool alone;                    /* the command also does something without an operation */
};

/**
 * Parses all options, and leaves the other words in *argc and *argv. --help prints and exits.
 * Returns 0 or, after it has printed the error, CLI_USAGE, or CLI_FAILED for a flag's variable that
 * is not a number. Moves words inside of *argv. The first of the other words is one of the
 * operations, where there are any.
 *
 * With `argparse`, parses options only up to the first word that is not an option. Then it also
 * takes "_" for "-" in names, abbreviated names that fit only one option, letters together and with
 * their value ("-mr3", "-r=3"), and a value that begins with "-" only if it is a number or contains
 * a blank.
 */
int cli_parse(const struct cli_verb *verb, int *argc, char ***argv);

/** Parses a whole number; returns false if it is not one or is greater than `max`. With `size`, K,
 * M, G and T may follow. */
bool cli_parse_number(const char *text, bool size, uint64_t max, uint64_t *ret);
/** Parses a time into seconds; returns false if it is not one, or is longer than
 * CLI_SECONDS_MAX. `ret_bare` tells whether it has no unit. */
bool cli_parse_seconds(const char *text, double *ret, bool *ret_bare);
/** Returns a time in milliseconds, rounded up, so that 0 remains the only time that is 0. */
uint32_t cli_ms(double seconds);
/** The same as a timeout of the library: 0 is no limit, as the help of the options says. */
int64_t cli_timeout(double seconds);

/* --- did you mean ----------------------------------------------------------------------------- */

/** Writes " (did you mean NAME?)", with `before` before the name, or nothing if no name is near.
 * Returns `out`. */
const char *cli_guess_say(const struct mu_guess *g, const char *before, char out[96]);

/* --- for the parser --------------------------------------------------------------------------- */

/** Stores an option's value; says what is wrong and returns false if the option does not take it.
 */
bool cli_option_keep(const struct cli_option *o, const char *value, char why[160]);
/** Prints the help of a command. */
void cli_help(const struct cli_verb *verb);
/** Prints its table as JSON. */
void cli_help_json(const struct cli_verb *verb);
/** Prints "serve, get or store". */
const char *cli_list(const char *const *words, char *out, size_t cap);

#endif
