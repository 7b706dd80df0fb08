/*
 * The job's lock around an environment: what muster/runtime.h calls a lock, read and carried out.
 * For whoever has an environment of its own: the runtime, and the command's loop.
 */
#ifndef MU_API_LOCK_H
#define MU_API_LOCK_H

#include <muster/runtime.h>

#include "core/env.h"
#include "core/err.h"
#include "service/http_server.h"
#include "service/lock_env.h"
#include "transport/tls_env.h"

struct mu_locked {
    struct mu_env *env; /* for all but libp2p, whose own handshake is its lock */
    struct mu_lock_env *lock;
    struct mu_tls_env *tls;     /* NULL: no credential */
    char page[MU_PAGE_KEY_CAP]; /* what shows the token to a status page; "": no token */
};

/* Of a token, with its end. */
#define MU_LOCK_TOKEN_CAP 513
#define MU_LOCK_TOKEN_MIN 16

/** `lock` NULL: that of the process's environment. MUSTER_EINVAL, MUSTER_ETLS, MUSTER_ENOMEM, a
 * negated errno; in words. `env` is borrowed. */
int mu_locked_open(struct mu_locked *l, struct mu_env *env, const struct muster_lock *lock,
                   struct mu_errmsg *reterr_msg);
/** After the last callback of all that was opened in it. Twice is harmless. */
void mu_locked_close(struct mu_locked *l);

/* Where those listen who were not told: every address of the host if the lock lets others in who
 * show the credential, else loopback. Told by its own memory from a text that says the same. */
extern const char mu_listen_default[];
const char *mu_locked_listen(const struct mu_locked *l, const char *listen);

/** The first line of a file that its owner alone can read. The caller wipes it. Errors as above. */
int mu_lock_read_token(const char *path, char ret_token[MU_LOCK_TOKEN_CAP],
                       struct mu_errmsg *reterr_msg);

#endif
