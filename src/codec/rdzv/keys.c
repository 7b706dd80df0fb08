#include "codec/rdzv/keys.h"

#include <stdio.h>
#include <string.h>

#include "codec/text/guess.h"

/* The backends, as bits. */
enum {
    ON_MUSTER = 1 << 0,
    ON_C10D = 1 << 1,
    ON_ETCD_V2 = 1 << 2,
    ON_ETCD_V3 = 1 << 3,
    ON_ETCD = 1 << 4,
    ON_STATIC = 1 << 5,
    ON_REGISTER = ON_C10D | ON_ETCD_V2 | ON_ETCD_V3,
    ON_CLUSTER = ON_ETCD_V2 | ON_ETCD_V3 | ON_ETCD,
    ON_DYNAMIC = ON_MUSTER | ON_REGISTER | ON_ETCD,
    ON_ALL = ON_DYNAMIC | ON_STATIC,
};

static const struct {
    const char *name;
    unsigned bit;
} backends[] = {
    {"muster", ON_MUSTER},   {"c10d", ON_C10D}, {"etcd-v2", ON_ETCD_V2},
    {"etcd-v3", ON_ETCD_V3}, {"etcd", ON_ETCD}, {"static", ON_STATIC},
};

#define BACKEND_COUNT (sizeof(backends) / sizeof(backends[0]))

static const struct key {
    const char *name;
    unsigned used;   /* by these backends */
    bool is_torches; /* one of PyTorch's backends has it */
} keys[] = {
    {"join_timeout", ON_ALL, true},
    {"last_call_timeout", ON_DYNAMIC, true},
    {"close_timeout", ON_REGISTER | ON_ETCD, true},
    {"heartbeat_timeout", ON_C10D | ON_ETCD_V2, true},
    {"keep_alive_interval", ON_MUSTER | ON_REGISTER, true},
    {"keep_alive_max_attempt", ON_MUSTER | ON_REGISTER, true},
    {"read_timeout", ON_C10D | ON_ETCD_V2, true},
    {"is_host", ON_MUSTER | ON_C10D | ON_STATIC, true},
    {"store_type", ON_C10D, true},
    {"use_libuv", 0, true}, /* some releases: which server PyTorch starts */
    {"timeout", ON_MUSTER | ON_ETCD | ON_STATIC, true},
    {"rank", ON_STATIC, true},
    {"etcd_prefix", ON_ETCD, true},
    {"protocol", ON_C10D | ON_CLUSTER, true},
    {"cacert", ON_CLUSTER, true},
    {"cert", ON_CLUSTER, true},
    {"key", ON_CLUSTER, true},
    {"ca_cert", ON_CLUSTER, true},
    {"ssl_cert", ON_CLUSTER, true},
    {"ssl_cert_key", ON_CLUSTER, true},
    {"min_workers", ON_ETCD, true},
    {"max_workers", ON_ETCD, true},
    {"name", ON_ALL, false},
    {"addr", ON_ALL, false},
    {"keep_trying", ON_ALL, false},
    {"upscale_delay", ON_DYNAMIC, false},
    {"members", ON_MUSTER | ON_REGISTER, false},
    {"pid", ON_REGISTER, false},
    {"local_id", ON_REGISTER, false},
    {"dialect", ON_C10D | ON_ETCD_V2 | ON_ETCD, false},
    {"lease_ttl", ON_ETCD_V3, false},
    {"beat", ON_MUSTER, false},
    {"dead", ON_MUSTER, false},
    {"grace", ON_MUSTER, false},
    {"max_restarts", ON_MUSTER, false},
    {"max_losses", ON_MUSTER, false},
    {"exclude_after", ON_MUSTER, false},
    {"exclude_for", ON_MUSTER, false},
    {"machine", ON_MUSTER, false},
    {"spares", ON_MUSTER, false},
    {"succession", ON_MUSTER, false},
    {"target", ON_MUSTER, false},
    {"topology", ON_MUSTER, false},
    {"via", ON_MUSTER, false},
    {"notice_delay", ON_ETCD, false},
    {"notice_lost", ON_ETCD, false},
    {"user", ON_ETCD, false},
    {"password_file", ON_ETCD, false},
};

#define KEY_COUNT (sizeof(keys) / sizeof(keys[0]))

/* --- judging a key ---------------------------------------------------------------------------- */

static unsigned bit_of(const char *backend)
{
    for (size_t i = 0; i < BACKEND_COUNT; i++) {
        if (strcmp(backends[i].name, backend) == 0) {
            return backends[i].bit;
        }
    }
    return 0;
}

static const struct key *find_key(struct mu_span name)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (mu_span_eq(name, mu_span_str(keys[i].name))) {
            return &keys[i];
        }
    }
    return NULL;
}

/* Suggests the nearest key that the backend has a use for. */
static void refuse_unknown(const char *backend, unsigned bit, struct mu_span key,
                           struct mu_errmsg *reterr_msg)
{
    struct mu_guess guess = {.word = key};
    char quoted[80];

    for (size_t i = 0; i < KEY_COUNT; i++) {
        if ((keys[i].used & bit) != 0) {
            mu_guess_try(&guess, keys[i].name);
        }
    }
    (void)mu_span_quote(quoted, sizeof(quoted), key);
    if (guess.best != NULL) {
        (void)mu_err(reterr_msg, MUSTER_EINVAL,
                     "the %.32s backend has no configuration option %s; did you mean \"%s\"?",
                     backend, quoted, guess.best);
    } else {
        (void)mu_err(reterr_msg, MUSTER_EINVAL,
                     "the %.32s backend has no configuration option %s; muster-rdzv(1) lists its "
                     "options",
                     backend, quoted);
    }
}

static void refuse_anothers(const char *backend, const struct key *key,
                            struct mu_errmsg *reterr_msg)
{
    char names[128];
    size_t len = 0;

    for (size_t i = 0; i < BACKEND_COUNT; i++) {
        if ((key->used & backends[i].bit) != 0) {
            len += (size_t)snprintf(names + len, sizeof(names) - len, "%s%s", len == 0 ? "" : ", ",
                                    backends[i].name);
        }
    }
    (void)mu_err(reterr_msg, MUSTER_EINVAL,
                 "the %.32s backend has no configuration option \"%s\"; it is for: %s", backend,
                 key->name, names);
}

enum mu_rdzv_key_verdict mu_rdzv_key_judge(const char *backend, struct mu_span key,
                                           struct mu_errmsg *reterr_msg)
{
    const struct key *found = find_key(key);
    unsigned bit = bit_of(backend);

    if (found == NULL) {
        refuse_unknown(backend, bit, key, reterr_msg);
        return MU_RDZV_KEY_REFUSED;
    }
    if ((found->used & bit) != 0) {
        return MU_RDZV_KEY_USED;
    }
    if (found->is_torches) {
        return MU_RDZV_KEY_IGNORED;
    }
    refuse_anothers(backend, found, reterr_msg);
    return MU_RDZV_KEY_REFUSED;
}
