#ifndef MUSTER_VERSION_H
#define MUSTER_VERSION_H

#include <muster/export.h>

#define MUSTER_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/** The version of the library that is linked. */
MUSTER_EXPORT const char *muster_version(void);

#ifdef __cplusplus
}
#endif

#endif
