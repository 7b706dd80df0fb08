/*
 * Times in what a command prints for people:
 *
 *     cli_time_begin();                      the command runs from here on
 *     fprintf(stderr, "%smuster: ...", cli_time_stamp(stamp));
 *     cli_time_took(took, ms);               "3 min 12 s"
 *
 * Only commands that run for long (`run`, `serve`) put a time before their lines.
 */
#ifndef MU_CLI_TIME_H
#define MU_CLI_TIME_H

#include <stdint.h>

#define CLI_TIME_CAP 32

/** Lines begin with the time from here on, and cli_time_since() counts. */
void cli_time_begin(void);
/** Writes the local time and a blank, "2026-11-16 21:30:05.123 ", or "" before cli_time_begin().
 * Returns `buf`. */
const char *cli_time_stamp(char buf[CLI_TIME_CAP]);
/** Milliseconds since cli_time_begin(). */
uint64_t cli_time_since(void);
/** Writes a duration in two units at most: "0.8 s", "12.3 s", "3 min 12 s", "2 h 5 min",
 * "4 d 7 h". Returns `buf`. */
const char *cli_time_took(char buf[CLI_TIME_CAP], uint64_t ms);

#endif
