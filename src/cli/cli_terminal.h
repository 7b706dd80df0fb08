/*
 * Safe output to a terminal. A terminal obeys control sequences, and much of what the command
 * prints comes from others: values of a store, names of nodes and states, errors. On a terminal,
 * standard output and standard error become streams that pass everything through core/printable.h;
 * elsewhere they stay as they are, byte for byte.
 */
#ifndef MU_CLI_TERMINAL_H
#define MU_CLI_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

/** Returns whether the descriptor is a terminal that may show colours: NO_COLOR in the environment,
 * unless it is empty, and TERM=dumb forbid them. */
bool cli_terminal_colors(int fd);
/** Call it before anything is printed. */
void cli_terminal_open(void);
/** Ends the filtering: the caller prints only its own or filtered text from here on. */
void cli_terminal_close(void);
/** Prints a control sequence of our own, after the text that was printed before. */
void cli_terminal_control(FILE *to, const char *text);

#endif
