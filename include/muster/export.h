/* Symbols are hidden unless marked: what stands in these headers is all there is to link to. */
#ifndef MUSTER_EXPORT_H
#define MUSTER_EXPORT_H

#if defined(__GNUC__)
#define MUSTER_EXPORT __attribute__((visibility("default")))
#else
#define MUSTER_EXPORT
#endif

#endif
