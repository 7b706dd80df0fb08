/*
 * Rules for who may write what into the DHT: validators check every record that is stored here or
 * comes from elsewhere, and sign those that we write. Pure, but for the salt of signatures.
 *
 * Several make a chain. A record is signed in the order of increasing priority, and validated in
 * the opposite one, each validator seeing it without what those before it have added.
 *
 * There is one validator (hivemind's RSASignatureValidator, priority 10): a record whose key or
 * subkey holds `[owner:KEY]`, with KEY as OpenSSH writes it, must have exactly one
 * `[signature:BASE64]` in its value, by that key, over MessagePack's tuple of key, subkey, value
 * without the signature, and expiration. Every node may write a record without an owner.
 */
#ifndef MU_DHT_VALIDATE_H
#define MU_DHT_VALIDATE_H

#include "codec/dht/msg.h"
#include "core/buf.h"
#include "core/span.h"
#include "crypto/identity.h"

#define MU_DHT_VALIDATORS_MAX 4

/* A record as it is stored: `tag` is MU_DHT_TAG_REGULAR or an encoded subkey. */
struct mu_dht_claim {
    struct mu_span key;
    struct mu_span tag;
    struct mu_span value;
    double expiration;
};

struct mu_dht_validator {
    int priority;
    /** Checks a record: 0, MUSTER_EDHT_OWNER, MUSTER_EDHT_VALUE, MUSTER_ENOMEM. */
    int (*validate)(const struct mu_dht_validator *v, const struct mu_dht_claim *claim);
    /** Appends the value with what this validator adds to it. */
    int (*sign)(const struct mu_dht_validator *v, const struct mu_dht_claim *claim,
                struct mu_buf *out);
    /** Appends the value without it. */
    int (*strip)(const struct mu_dht_validator *v, struct mu_span value, struct mu_buf *out);
    /** Returns whether there is something to check in such a record, which takes time. NULL:
     * always. */
    bool (*concerns)(const struct mu_dht_validator *v, const struct mu_dht_claim *claim);
};

struct mu_dht_chain {
    const struct mu_dht_validator *validators[MU_DHT_VALIDATORS_MAX]; /* by priority */
    size_t count;
};

/** Adds a validator, which is borrowed. MUSTER_ELIMIT. */
int mu_dht_chain_add(struct mu_dht_chain *chain, const struct mu_dht_validator *v);
/** Returns whether any validator has something to check. */
bool mu_dht_chain_concerns(const struct mu_dht_chain *chain, const struct mu_dht_claim *claim);
int mu_dht_chain_validate(const struct mu_dht_chain *chain, const struct mu_dht_claim *claim);
/** Appends the value to store. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_dht_chain_sign(const struct mu_dht_chain *chain, const struct mu_dht_claim *claim,
                      struct mu_buf *out);
/** Appends the original value. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_dht_chain_strip(const struct mu_dht_chain *chain, struct mu_span value, struct mu_buf *out);

/* --- records with an owner -------------------------------------------------------------------- */

struct mu_dht_owner_validator {
    struct mu_dht_validator base;
    const struct mu_identity *key; /* borrowed; NULL: nothing is signed */
    struct mu_buf mark;            /* `[owner:...]` of that key */
};

/** MUSTER_EINVAL: the key is not RSA; MUSTER_ENOMEM. */
int mu_dht_owner_init(struct mu_dht_owner_validator *v, const struct mu_identity *key);
void mu_dht_owner_fini(struct mu_dht_owner_validator *v);
/** Returns `[owner:KEY]` of our own key, which a subkey of ours must contain. Empty without a
 * key. */
static inline struct mu_span mu_dht_owner_mark(const struct mu_dht_owner_validator *v)
{
    return mu_buf_span(&v->mark);
}

#endif
