#include "api/lock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "api/args.h"

/* A close needs one turn, or two. */
#define CLOSE_TURNS 16

/* How many ranges may be allowed; a firewall is the place for more. */
#define ALLOW_MAX 64

void muster_lock_init(struct muster_lock *ret, size_t size)
{
    struct muster_lock ours = {.insecure = false};

    mu_api_give(ret, size, &ours, sizeof(ours));
}

/* --- the environment of the process ----------------------------------------------------------- */

static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value == NULL || value[0] == '\0' ? NULL : value;
}

/* MUSTER_ALLOW is one text with commas; `allow` then points to it. */
static struct muster_lock lock_of_process(const char **allow)
{
    const char *insecure = variable("MUSTER_INSECURE");
    struct muster_lock lock = muster_lock_defaults();

    lock.token_file = variable("MUSTER_TOKEN_FILE");
    lock.cert = variable("MUSTER_TLS_CERT");
    lock.key = variable("MUSTER_TLS_KEY");
    lock.ca = variable("MUSTER_TLS_CA");
    lock.insecure = insecure != NULL && strcmp(insecure, "0") != 0;
    *allow = variable("MUSTER_ALLOW");
    if (*allow != NULL) {
        lock.allow = allow;
        lock.allow_count = 1;
    }
    return lock;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* One text may name several ranges, with commas between them. */
static int parse_allow(const struct muster_lock *lock, struct mu_cidr *ranges, size_t *ret_count,
                       struct mu_errmsg *msg)
{
    size_t count = 0;

    for (size_t i = 0; i < lock->allow_count; i++) {
        struct mu_span rest = mu_span_str(lock->allow[i]);

        for (;;) {
            const uint8_t *comma = rest.len == 0 ? NULL : memchr(rest.data, ',', rest.len);
            size_t len = comma == NULL ? rest.len : (size_t)(comma - rest.data);
            int err;

            if (count == ALLOW_MAX) {
                return mu_err(msg, MUSTER_EINVAL, "at most %d ranges may be given with --allow",
                              ALLOW_MAX);
            }
            err = mu_cidr_parse(mu_span(rest.data, len), &ranges[count++], msg);
            if (err != 0) {
                return err;
            }
            if (comma == NULL) {
                break;
            }
            rest = mu_span_skip(rest, len + 1);
        }
    }
    *ret_count = count;
    return 0;
}

static int seal(struct mu_locked *l, const struct muster_lock *lock, struct mu_errmsg *msg)
{
    int err;

    if (lock->token_file == NULL && lock->cert == NULL && lock->key == NULL && lock->ca == NULL) {
        return 0;
    }
    err = mu_lock_files_open(lock, mu_lock_env_wire(l->lock), &l->files, &l->tls, l->page, msg);
    if (err == 0) {
        mu_tls_env_on_refused(l->tls, mu_lock_env_refused, l->lock);
        mu_tls_env_on_shown(l->tls, mu_lock_env_shown, l->lock);
        mu_lock_env_seal(l->lock, mu_tls_env_env(l->tls));
    }
    return err;
}

/* Connections without a credential get at most a quarter of the descriptors. */
static void bound_guests(struct mu_lock_env *lock)
{
    struct mu_lock_limits limits = {MU_LOCK_GUESTS, MU_LOCK_GUESTS_OF_ADDRESS, MU_LOCK_SHAKING,
                                    MU_LOCK_SHAKING_OF_ADDRESS};
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 4 < limits.guests) {
        limits.guests = (size_t)files.rlim_cur / 4;
        limits.of_address = limits.guests / 4;
        mu_lock_env_limit(lock, &limits);
    }
}

int mu_locked_open(struct mu_locked *l, struct mu_env *env, const struct muster_lock *lock,
                   struct mu_errmsg *reterr_msg)
{
    struct mu_cidr ranges[ALLOW_MAX];
    struct mu_lock_policy policy = {.allow = ranges};
    struct muster_lock from_process;
    const char *allow = NULL;
    int err;

    *l = (struct mu_locked){0};
    if (lock == NULL) {
        from_process = lock_of_process(&allow);
        lock = &from_process;
    }
    policy.insecure = lock->insecure;
    err = parse_allow(lock, ranges, &policy.allow_count, reterr_msg);
    if (err != 0) {
        return err;
    }
    err = mu_lock_env_new(env, &policy, &l->lock);
    if (err != 0) {
        return mu_err(reterr_msg, err, "out of memory");
    }
    bound_guests(l->lock);
    err = seal(l, lock, reterr_msg);
    if (err != 0) {
        mu_lock_env_free(l->lock);
        *l = (struct mu_locked){0};
        return err;
    }
    l->env = mu_lock_env_env(l->lock);
    return 0;
}

const char mu_listen_default[] = "0.0.0.0:0";

const char *mu_locked_listen(const struct mu_locked *l, const char *listen)
{
    const struct mu_lock_policy *policy = mu_lock_env_policy(l->lock);

    return listen == mu_listen_default && !policy->sealed && !policy->insecure ? "127.0.0.1:0"
                                                                               : listen;
}

void mu_locked_close(struct mu_locked *l, struct mu_uv_env *uv)
{
    for (int i = 0; l->lock != NULL && !mu_lock_env_idle(l->lock) && i < CLOSE_TURNS; i++) {
        mu_uv_env_turn(uv);
    }
    mu_lock_env_free(l->lock);
    mu_tls_env_free(l->tls);
    mu_lock_files_free(l->files);
    explicit_bzero(l->page, sizeof(l->page));
    *l = (struct mu_locked){0};
}
