/* The file system of this machine, behind core/paths.h. */
#ifndef MU_TRANSPORT_PATHS_H
#define MU_TRANSPORT_PATHS_H

#include "core/paths.h"

extern const struct mu_paths mu_paths_real;

#endif
