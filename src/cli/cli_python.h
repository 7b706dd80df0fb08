/*
 * The Python of the environment in which this command is installed.
 *
 * A wheel in a virtual environment puts the command beside that environment's interpreter, and as
 * torchrun there, the command starts this one, whether or not the environment is the first in PATH.
 * What counts is the path by which the command was called: a link from elsewhere, as pipx makes
 * it, is how one command serves all environments, and says nothing about them.
 */
#ifndef MU_CLI_PYTHON_H
#define MU_CLI_PYTHON_H

#include <limits.h>
#include <stdbool.h>

/** Finds the interpreter beside a program that is in the folder bin of a virtual environment or of
 * conda's, as an absolute path. */
bool cli_python_beside(const char *program, char ret[PATH_MAX]);

/** The interpreter beside this program; without one, "python3", for PATH to tell. */
const char *cli_python(void);

#endif
