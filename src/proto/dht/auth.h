/*
 * The authorization wrapper of the DHT's messages (hivemind's AuthRPCWrapper): every request and
 * every answer carries a token from an issuer, and is signed with the key that the token names. It
 * is off unless a swarm wants it.
 *
 * A request has its time and a nonce; it is refused if its time is more than a minute off or its
 * nonce was seen before. An answer must have the request's nonce. Only the issuer can judge a
 * token: `check_token` says whether it is good.
 */
#ifndef MU_DHT_AUTH_H
#define MU_DHT_AUTH_H

#include "codec/dht/msg.h"
#include "core/buf.h"
#include "core/list.h"
#include "core/map.h"
#include "crypto/identity.h"

#define MU_DHT_NONCE_LEN 8

struct mu_dht_auth_terms {
    const struct mu_identity *key; /* RSA; the token names it. Borrowed */
    struct mu_span token;          /* encoded; borrowed */
    /** Returns whether a token is good at this time. */
    bool (*check_token)(struct mu_dht_auth_terms *terms, const struct mu_dht_token *token,
                        double now);
    void *context;
    uint32_t nonces_max; /* how many are remembered; beyond that, all are denied for a while.
                            65,536 */
    /* private */
    struct mu_map seen;
    struct mu_list seen_list; /* oldest first */
    bool begun;
};

/** Appends the signed message. MUSTER_EINVAL: the key is not RSA; MUSTER_ENOMEM, MUSTER_ELIMIT. */
int mu_dht_auth_sign_request(struct mu_dht_auth_terms *t, double now,
                             const uint8_t nonce[MU_DHT_NONCE_LEN], struct mu_span message,
                             struct mu_buf *out);
/** Checks a request and returns the nonce to answer with. MUSTER_EDHT_DENIED, MUSTER_ENOMEM. */
int mu_dht_auth_check_request(struct mu_dht_auth_terms *t, double now, struct mu_span message,
                              uint8_t ret_nonce[MU_DHT_NONCE_LEN]);
int mu_dht_auth_sign_reply(struct mu_dht_auth_terms *t, const uint8_t nonce[MU_DHT_NONCE_LEN],
                           struct mu_span message, struct mu_buf *out);
/** MUSTER_EDHT_DENIED, MUSTER_ENOMEM. */
int mu_dht_auth_check_reply(struct mu_dht_auth_terms *t, double now,
                            const uint8_t nonce[MU_DHT_NONCE_LEN], struct mu_span message);
/** Forgets all nonces. */
void mu_dht_auth_fini(struct mu_dht_auth_terms *t);

#endif
