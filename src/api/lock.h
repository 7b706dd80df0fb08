/*
 * The job's lock around an environment: what muster/runtime.h calls a lock, read and carried out.
 * For whoever has an environment of its own: the runtime, and the command's loop.
 */
#ifndef MU_API_LOCK_H
#define MU_API_LOCK_H

#include <muster/runtime.h>

#include "core/env.h"
#include "core/err.h"
#include "service/page/http_server.h"
#include "service/lock/env.h"
#include "service/lock/tls_env.h"
#include "transport/uv_env.h"

struct mu_lock_files;

struct mu_locked {
    struct mu_env *env; /* for all but libp2p, whose own handshake is its lock */
    struct mu_lock_env *lock;
    struct mu_tls_env *tls; /* NULL: no credential */
    struct mu_lock_files *files;
    char page[MU_PAGE_KEY_CAP]; /* what shows the token to a status page; "": no token. That of the
                                   start: a page keeps its password */
};

/* Of a token, with its end. */
#define MU_LOCK_TOKEN_CAP 513
#define MU_LOCK_TOKEN_MIN 16

/** `lock` NULL: that of the process's environment. MUSTER_EINVAL, MUSTER_ETLS, MUSTER_ENOMEM, a
 * negated errno; in words. `env` is borrowed. */
int mu_locked_open(struct mu_locked *l, struct mu_env *env, const struct muster_lock *lock,
                   struct mu_errmsg *reterr_msg);
/** After the last callback of all that was opened in it, when nobody runs the loop below any more:
 * it is turned until nothing is left. Twice is harmless. */
void mu_locked_close(struct mu_locked *l, struct mu_uv_env *uv);

/* Where those listen who were not told: every address of the host if the lock lets others in who
 * show the credential, else loopback. Told by its own memory from a text that says the same. */
extern const char mu_listen_default[];
const char *mu_locked_listen(const struct mu_locked *l, const char *listen);

/**
 * The first line of a file that its owner alone can read, or that root gives to a group to read.
 * The caller wipes it. `ret_note` is written if there is something to say of it all the same: that
 * it is a group's, or could be guessed. Errors as above.
 */
int mu_lock_read_token(const char *path, char ret_token[MU_LOCK_TOKEN_CAP],
                       struct mu_errmsg *ret_note, struct mu_errmsg *reterr_msg);
/** How many guesses a token may take, as a power of two: at most, since words and patterns are
 * known by their look only. */
unsigned mu_lock_token_bits(const char *token);

/**
 * A layer of TLS on `wire` with the credential of `lock`, which has one. Others in the place of its
 * files are taken up by the next handshake, at most a second later; those that are no good are not,
 * which the log says (LOCK-RENEWED, LOCK-NOT-RENEWED), as it does of certificates that end within a
 * fortnight (LOCK-EXPIRES). Errors as mu_locked_open().
 */
int mu_lock_files_open(const struct muster_lock *lock, struct mu_env *wire,
                       struct mu_lock_files **ret, struct mu_tls_env **ret_tls,
                       char ret_page[MU_PAGE_KEY_CAP], struct mu_errmsg *reterr_msg);
/** After the layer. NULL is fine. */
void mu_lock_files_free(struct mu_lock_files *f);

#endif
