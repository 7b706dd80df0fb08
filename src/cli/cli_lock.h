/*
 * The job's lock on the command line: the same options for every command that listens or connects.
 *
 *     struct cli_lock lock = {0};
 *     const struct cli_option options[] = {..., CLI_LOCK_OPTIONS(&lock)};
 *     ... cli_runtime_new(&lock, &rt), or cli_loop_lock(&loop, &lock) ...
 *
 * A command whose --allow takes more than address ranges uses CLI_LOCK_CREDENTIAL and defines the
 * other two options itself.
 */
#ifndef MU_CLI_LOCK_H
#define MU_CLI_LOCK_H

#include <limits.h>

#include "cli/cli.h"

struct cli_lock {
    struct muster_lock lock; /* what the command line gave */
    const char *allow;       /* address ranges, separated by commas */
    /* private */
    struct muster_lock whole;
    const char *ranges;
    char passed[PATH_MAX]; /* the token that systemd passes */
};

/* clang-format off */
#define CLI_LOCK_CREDENTIAL(l)                                                                     \
    {"token-file", "FILE", "the job's token (MUSTER_TOKEN_FILE; see muster keygen)", CLI_TEXT,     \
     &(l)->lock.token_file, 0},                                                                    \
    {"tls-cert", "FILE", "instead of a token: this node's certificate (MUSTER_TLS_CERT)",          \
     CLI_TEXT, &(l)->lock.cert, 0},                                                                \
    {"tls-key", "FILE", "the certificate's private key (MUSTER_TLS_KEY)", CLI_TEXT,                \
     &(l)->lock.key, 0},                                                                           \
    {"tls-ca", "FILE", "the authority that signs all certificates (MUSTER_TLS_CA)", CLI_TEXT,      \
     &(l)->lock.ca, 0},                                                                            \
    {"tls-name", "NAME", "name that a dialled server's certificate must have (the host)",          \
     CLI_TEXT, &(l)->lock.name, 0}
#define CLI_LOCK_OPTIONS(l)                                                                        \
    CLI_LOCK_CREDENTIAL(l),                                                                        \
    {"allow", "CIDR,...", "addresses to speak PyTorch's plain protocol with (MUSTER_ALLOW)",       \
     CLI_TEXT, &(l)->allow, 0},                                                                    \
    {"insecure", NULL, "let everyone in, without a credential (MUSTER_INSECURE=1)", CLI_FLAG,      \
     &(l)->lock.insecure, 0}
/* clang-format on */

/** Returns the lock for the library, with the environment's variables for the options that were not
 * given, and without any of those the token that systemd passes (LoadCredential=muster.token). It
 * is valid as long as `lock`. */
const struct muster_lock *cli_lock_of(struct cli_lock *lock);
/** Returns whether the lock lets in clients from other hosts that use the native protocol. */
bool cli_lock_lets_in(struct cli_lock *lock);
/** Creates a runtime with that lock. Returns 0, or an exit code after it has printed the error. */
int cli_runtime_new(struct cli_lock *lock, muster_runtime **ret_runtime);

#endif
