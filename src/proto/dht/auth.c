#include "proto/dht/auth.h"

#include <muster/error.h>

#include "codec/text/base64.h"
#include "core/alloc.h"
#include "crypto/owner_key.h"

#define MESSAGE_MAX (8u << 20)
#define CLOCK_S     60.0  /* how far a request's time may be off */
#define SEEN_S      180.0 /* how long its nonce is remembered */
#define NONCES_MAX  65536

struct nonce {
    struct mu_map_node by_value;
    struct mu_list link;
    double until;
    uint8_t value[MU_DHT_NONCE_LEN];
};

static void begin(struct mu_dht_auth_terms *t)
{
    if (!t->begun) {
        mu_map_init(&t->seen, 0);
        mu_list_init(&t->seen_list);
        t->nonces_max = t->nonces_max != 0 ? t->nonces_max : NONCES_MAX;
        t->begun = true;
    }
}

static void forget(struct mu_dht_auth_terms *t, double now)
{
    while (!mu_list_empty(&t->seen_list)) {
        struct nonce *n = MU_CONTAINER_OF(t->seen_list.next, struct nonce, link);

        if (n->until > now) {
            return;
        }
        mu_map_remove(&t->seen, &n->by_value);
        mu_list_remove(&n->link);
        mu_free(n);
    }
}

void mu_dht_auth_fini(struct mu_dht_auth_terms *t)
{
    if (t->begun) {
        forget(t, __builtin_inf());
        mu_map_fini(&t->seen);
        t->begun = false;
    }
}

/* Takes a nonce that was not seen before. When too many are remembered, no nonce counts as new
 * until some are old. */
static int remember(struct mu_dht_auth_terms *t, double now, struct mu_span value)
{
    struct nonce *n;

    forget(t, now);
    if (mu_map_find(&t->seen, value) != NULL || t->seen.count >= t->nonces_max) {
        return MUSTER_EDHT_DENIED;
    }
    n = mu_calloc(1, sizeof(*n));
    if (n == NULL) {
        return MUSTER_ENOMEM;
    }
    memcpy(n->value, value.data, MU_DHT_NONCE_LEN);
    n->until = now + SEEN_S;
    mu_list_init(&n->link);
    if (mu_map_insert(&t->seen, &n->by_value, mu_span(n->value, MU_DHT_NONCE_LEN)) != 0) {
        mu_free(n);
        return MUSTER_ENOMEM;
    }
    mu_list_push(&t->seen_list, &n->link);
    return 0;
}

/* Writes the wrapper without a signature, signs the message with it, then writes the wrapper again
 * with the signature. */
static int sign(struct mu_dht_auth_terms *t, struct mu_dht_auth *request,
                struct mu_dht_reply_auth *reply, struct mu_span message, struct mu_buf *out)
{
    struct mu_buf auth;
    struct mu_buf whole;
    struct mu_buf raw;
    struct mu_buf text;
    int err;

    mu_buf_init(&auth, MESSAGE_MAX);
    mu_buf_init(&whole, MESSAGE_MAX);
    mu_buf_init(&raw, MU_IDENTITY_SIG_LEN_MAX);
    mu_buf_init(&text, 2 * MU_IDENTITY_SIG_LEN_MAX);
    err = request != NULL ? mu_dht_auth_encode(&auth, request)
                          : mu_dht_reply_auth_encode(&auth, reply);
    err = err != 0 ? err : mu_dht_auth_replace(&whole, message, mu_buf_span(&auth));
    err = err != 0 ? err : mu_owner_sign(t->key, mu_buf_span(&whole), &raw);
    err = err != 0 ? err : mu_base64_encode(&text, mu_buf_span(&raw));
    mu_buf_reset(&auth);
    if (err == 0 && request != NULL) {
        request->signature = mu_buf_span(&text);
        err = mu_dht_auth_encode(&auth, request);
    } else if (err == 0) {
        reply->signature = mu_buf_span(&text);
        err = mu_dht_reply_auth_encode(&auth, reply);
    }
    err = err != 0 ? err : mu_dht_auth_replace(out, message, mu_buf_span(&auth));
    mu_buf_fini(&auth);
    mu_buf_fini(&whole);
    mu_buf_fini(&raw);
    mu_buf_fini(&text);
    return err;
}

/* Returns whether the token's key has signed the message, whose wrapper without a signature is
 * `bare`. */
static int verify(const struct mu_dht_token *token, struct mu_span message, struct mu_span bare,
                  struct mu_span signature)
{
    struct mu_buf whole;
    struct mu_buf raw;
    int err;

    mu_buf_init(&whole, MESSAGE_MAX);
    mu_buf_init(&raw, MU_IDENTITY_SIG_LEN_MAX);
    err = mu_dht_auth_replace(&whole, message, bare);
    err = err != 0 ? err : mu_base64_decode(&raw, signature);
    err =
        err != 0 ? err : mu_owner_verify(token->public_key, mu_buf_span(&whole), mu_buf_span(&raw));
    mu_buf_fini(&whole);
    mu_buf_fini(&raw);
    return err == 0 || err == MUSTER_ENOMEM ? err : MUSTER_EDHT_DENIED;
}

/* Finds the wrapper of a message, which is field 1 in every kind of message. */
static struct mu_span wrapper_of(struct mu_span message)
{
    struct mu_span auth;

    return mu_dht_auth_find(message, &auth) == 0 ? auth : (struct mu_span){0};
}

int mu_dht_auth_sign_request(struct mu_dht_auth_terms *t, double now,
                             const uint8_t nonce[MU_DHT_NONCE_LEN], struct mu_span message,
                             struct mu_buf *out)
{
    struct mu_dht_auth auth = {
        .token = t->token, .time = now, .nonce = mu_span(nonce, MU_DHT_NONCE_LEN)};

    return sign(t, &auth, NULL, message, out);
}

int mu_dht_auth_sign_reply(struct mu_dht_auth_terms *t, const uint8_t nonce[MU_DHT_NONCE_LEN],
                           struct mu_span message, struct mu_buf *out)
{
    struct mu_dht_reply_auth auth = {.token = t->token, .nonce = mu_span(nonce, MU_DHT_NONCE_LEN)};

    return sign(t, NULL, &auth, message, out);
}

/* Returns whether the service key, if one is named, is ours. */
static int check_service(const struct mu_dht_auth_terms *t, struct mu_span named)
{
    struct mu_buf line;
    int err;

    if (named.len == 0) {
        return 0;
    }
    mu_buf_init(&line, MU_OWNER_LINE_MAX);
    err = mu_owner_line(t->key, &line);
    if (err == 0 && !mu_span_eq(mu_buf_span(&line), named)) {
        err = MUSTER_EDHT_DENIED;
    }
    mu_buf_fini(&line);
    return err;
}

int mu_dht_auth_check_request(struct mu_dht_auth_terms *t, double now, struct mu_span message,
                              uint8_t ret_nonce[MU_DHT_NONCE_LEN])
{
    struct mu_dht_token token;
    struct mu_dht_auth auth;
    struct mu_span signature;
    struct mu_buf bare;
    int err;

    begin(t);
    if (mu_dht_auth_decode(wrapper_of(message), &auth) != 0 ||
        mu_dht_token_decode(auth.token, &token) != 0 || auth.nonce.len != MU_DHT_NONCE_LEN ||
        !(auth.time >= now - CLOCK_S && auth.time <= now + CLOCK_S) ||
        !t->check_token(t, &token, now)) {
        return MUSTER_EDHT_DENIED;
    }
    signature = auth.signature;
    auth.signature = (struct mu_span){0};
    mu_buf_init(&bare, MESSAGE_MAX);
    err = check_service(t, auth.service_key);
    err = err != 0 ? err : mu_dht_auth_encode(&bare, &auth);
    err = err != 0 ? err : verify(&token, message, mu_buf_span(&bare), signature);
    mu_buf_fini(&bare);
    err = err != 0 ? err : remember(t, now, auth.nonce);
    if (err == 0) {
        memcpy(ret_nonce, auth.nonce.data, MU_DHT_NONCE_LEN);
    }
    return err;
}

int mu_dht_auth_check_reply(struct mu_dht_auth_terms *t, double now,
                            const uint8_t nonce[MU_DHT_NONCE_LEN], struct mu_span message)
{
    struct mu_dht_reply_auth auth;
    struct mu_dht_token token;
    struct mu_span signature;
    struct mu_buf bare;
    int err;

    if (mu_dht_reply_auth_decode(wrapper_of(message), &auth) != 0 ||
        mu_dht_token_decode(auth.token, &token) != 0 ||
        !mu_span_eq(auth.nonce, mu_span(nonce, MU_DHT_NONCE_LEN)) ||
        !t->check_token(t, &token, now)) {
        return MUSTER_EDHT_DENIED;
    }
    signature = auth.signature;
    auth.signature = (struct mu_span){0};
    mu_buf_init(&bare, MESSAGE_MAX);
    err = mu_dht_reply_auth_encode(&bare, &auth);
    err = err != 0 ? err : verify(&token, message, mu_buf_span(&bare), signature);
    mu_buf_fini(&bare);
    return err;
}
