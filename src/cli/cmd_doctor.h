/*
 * What the files of `muster doctor` share: a list of findings, each with its remedy, and the
 * verdict on all of them.
 */
#ifndef MU_CMD_DOCTOR_H
#define MU_CMD_DOCTOR_H

#include "cli/cli_lock.h"
#include "core/addr.h"
#include "core/err.h"

#include <jansson.h>

#define DOCTOR_FINDINGS_MAX 1024

enum doctor_level {
    DOCTOR_OK = 1,
    DOCTOR_NOTE, /* worth knowing; nothing is wrong */
    DOCTOR_WARN, /* muster works, but not as well as it could */
    DOCTOR_BAD,
};

struct doctor_finding {
    enum doctor_level level;
    char subject[MU_ADDR_HOST_MAX + 16];
    char text[320];
    char remedy[320]; /* "": nothing needs to be done */
};

struct doctor_report {
    struct doctor_finding findings[DOCTOR_FINDINGS_MAX];
    size_t count;
};

/** Adds a finding; returns it, so that the caller can add a remedy. */
struct doctor_finding *doctor_find(struct doctor_report *r, enum doctor_level level,
                                   const char *subject, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void doctor_remedy(struct doctor_finding *f, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** Returns the worst level of all findings. */
enum doctor_level doctor_worst(const struct doctor_report *r);
void doctor_print(const struct doctor_report *r);
json_t *doctor_json(const struct doctor_report *r);

struct doctor_options {
    double timeout;    /* seconds for one question; 0: the default */
    const char *ports; /* ports of hosts, separated by commas; NULL: the usual ones */
    struct cli_lock lock;
    bool json;
};

/** muster doctor etcd URL. Returns an exit code. */
int doctor_etcd(const struct doctor_options *o, const char *url);
/** muster doctor [HOST[:PORT]...]: this machine and those hosts. Returns an exit code. */
int doctor_hosts(struct doctor_options *o, const char *const *words, size_t count);

#endif
