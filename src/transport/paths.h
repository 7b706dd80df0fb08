/* The file system of this machine, as core/paths.h has it. */
#ifndef MU_TRANSPORT_PATHS_H
#define MU_TRANSPORT_PATHS_H

#include "core/paths.h"

extern const struct mu_paths mu_paths_real;

#endif
