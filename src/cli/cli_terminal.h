/*
 * What the command prints to a terminal: a terminal obeys what it is sent, and much of what is
 * printed are words of others, such as values of a store, names of nodes and states, and errors.
 * On a terminal standard output and standard error are streams that let core/printable.h look at
 * all of it; anywhere else they are what they were, byte for byte.
 */
#ifndef MU_CLI_TERMINAL_H
#define MU_CLI_TERMINAL_H

#include <stdio.h>

/** First of all. */
void cli_terminal_open(void);
/** From here on what is printed is ours, or was looked at. */
void cli_terminal_close(void);
/** A control sequence of our own, which is behind what was printed before. */
void cli_terminal_control(FILE *to, const char *text);

#endif
