/* Prints reports of stacks (codec/stacks/report.h), for people and for programs. */
#ifndef MU_CLI_STACKS_PRINT_H
#define MU_CLI_STACKS_PRINT_H

#include <jansson.h>

#include "codec/stacks/report.h"

/** Prints a process, its threads and their frames. Names from the process are made printable. */
void stacks_print(const struct mu_stacks_report *report);
/** The same as a JSON object. */
json_t *stacks_json(const struct mu_stacks_report *report);

#endif
