/*
 * The job's lock around an environment: reads and enforces what muster/runtime.h calls a lock. The
 * runtime and the command's loop, which have environments of their own, use it.
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
    struct mu_env *env; /* for everything but libp2p, which has its own handshake */
    struct mu_lock_env *lock;
    struct mu_tls_env *tls; /* NULL: no credential */
    struct mu_lock_files *files;
    char page[MU_PAGE_KEY_CAP]; /* the status page's password, from the token at the start (a page
                                   keeps its password); "": no token */
};

/* The size of a token, with its terminator. */
#define MU_LOCK_TOKEN_CAP 513
#define MU_LOCK_TOKEN_MIN 16

/** `lock` NULL: the lock comes from the process's environment variables. MUSTER_EINVAL,
 * MUSTER_ETLS, MUSTER_ENOMEM, a negated errno, each with a text. `env` is borrowed. */
int mu_locked_open(struct mu_locked *l, struct mu_env *env, const struct muster_lock *lock,
                   struct mu_errmsg *reterr_msg);
/** To call after the last callback of everything that was opened in it, when the loop below no
 * longer runs: this runs it until nothing is left. A second call is harmless. */
void mu_locked_close(struct mu_locked *l, struct mu_uv_env *uv);

/* The default of `listen`: every address of the host if the lock lets other hosts in with a
 * credential, otherwise loopback. It is recognised by its address, not by its text. */
extern const char mu_listen_default[];
const char *mu_locked_listen(const struct mu_locked *l, const char *listen);

/**
 * Reads the first line of a file that only its owner can read, or that root lets a group read. The
 * caller wipes it. `ret_note` is written if the token is valid but a group can read it, or it could
 * be guessed. Errors as above.
 */
int mu_lock_read_token(const char *path, char ret_token[MU_LOCK_TOKEN_CAP],
                       struct mu_errmsg *ret_note, struct mu_errmsg *reterr_msg);
/** How many guesses a token may take, as a power of two. This is an upper bound, since words and
 * patterns are recognised by their look only. */
unsigned mu_lock_token_bits(const char *token);

/**
 * Opens a layer of TLS on `wire` with the credential of `lock`, which has one. If its files are
 * replaced, the next handshake uses the new ones, at most a second later, unless they are invalid
 * (logs LOCK-RENEWED, LOCK-NOT-RENEWED). It also logs certificates that expire within two weeks
 * (LOCK-EXPIRES). Errors as mu_locked_open().
 */
int mu_lock_files_open(const struct muster_lock *lock, struct mu_env *wire,
                       struct mu_lock_files **ret, struct mu_tls_env **ret_tls,
                       char ret_page[MU_PAGE_KEY_CAP], struct mu_errmsg *reterr_msg);
/** To call after the layer is closed. NULL is fine. */
void mu_lock_files_free(struct mu_lock_files *f);

#endif
