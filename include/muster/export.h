/* Symbols are hidden unless marked: these headers declare everything that can be linked to. */
#ifndef MUSTER_EXPORT_H
#define MUSTER_EXPORT_H

#if defined(__GNUC__)
#define MUSTER_EXPORT __attribute__((visibility("default")))
#else
#define MUSTER_EXPORT
#endif

#endif
