/* The real one of core/health.h. */
#ifndef MU_HEALTH_REAL_H
#define MU_HEALTH_REAL_H

#include "core/health.h"

extern const struct mu_health_source mu_health_real;

#endif
