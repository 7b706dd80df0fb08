#include "proto/dht/validate.h"

#include <muster/error.h>

#include "codec/text/base64.h"
#include "codec/bin/msgpack.h"
#include "crypto/owner_key.h"

#define VALUE_MAX (8u << 20)
#define PRIORITY  10
#define OWNER     "[owner:"
#define SIGNATURE "[signature:"

/* --- chains ----------------------------------------------------------------------------------- */

int mu_dht_chain_add(struct mu_dht_chain *chain, const struct mu_dht_validator *v)
{
    size_t at = chain->count;

    if (chain->count == MU_DHT_VALIDATORS_MAX) {
        return MUSTER_ELIMIT;
    }
    for (; at > 0 && chain->validators[at - 1]->priority > v->priority; at--) {
        chain->validators[at] = chain->validators[at - 1];
    }
    chain->validators[at] = v;
    chain->count++;
    return 0;
}

bool mu_dht_chain_concerns(const struct mu_dht_chain *chain, const struct mu_dht_claim *claim)
{
    for (size_t i = 0; i < chain->count; i++) {
        const struct mu_dht_validator *v = chain->validators[i];

        if (v->concerns == NULL || v->concerns(v, claim)) {
            return true;
        }
    }
    return false;
}

/*
 * Removes the validators' signatures, the last one's first. With `out`, the rest goes there;
 * without it, each validator checks what is left for it, and the first one's signature may stay.
 */
static int unwrap(const struct mu_dht_chain *chain, struct mu_dht_claim seen, struct mu_buf *out)
{
    struct mu_buf bufs[2];
    int err = 0;

    mu_buf_init(&bufs[0], VALUE_MAX);
    mu_buf_init(&bufs[1], VALUE_MAX);
    for (size_t i = chain->count; i > 0 && err == 0; i--) {
        const struct mu_dht_validator *v = chain->validators[i - 1];

        if (out == NULL) {
            err = v->validate(v, &seen);
        }
        if (err == 0 && (out != NULL || i > 1)) {
            struct mu_buf *next = &bufs[i % 2];

            mu_buf_reset(next);
            err = v->strip(v, seen.value, next);
            seen.value = mu_buf_span(next);
        }
    }
    if (err == 0 && out != NULL) {
        err = mu_buf_append(out, seen.value);
    }
    mu_buf_fini(&bufs[0]);
    mu_buf_fini(&bufs[1]);
    return err;
}

int mu_dht_chain_validate(const struct mu_dht_chain *chain, const struct mu_dht_claim *claim)
{
    return unwrap(chain, *claim, NULL);
}

int mu_dht_chain_sign(const struct mu_dht_chain *chain, const struct mu_dht_claim *claim,
                      struct mu_buf *out)
{
    struct mu_dht_claim seen = *claim;
    struct mu_buf bufs[2];
    int err = 0;

    mu_buf_init(&bufs[0], VALUE_MAX);
    mu_buf_init(&bufs[1], VALUE_MAX);
    for (size_t i = 0; i < chain->count && err == 0; i++) {
        struct mu_buf *next = &bufs[i % 2];

        mu_buf_reset(next);
        err = chain->validators[i]->sign(chain->validators[i], &seen, next);
        seen.value = mu_buf_span(next);
    }
    err = err != 0 ? err : mu_buf_append(out, seen.value);
    mu_buf_fini(&bufs[0]);
    mu_buf_fini(&bufs[1]);
    return err;
}

int mu_dht_chain_strip(const struct mu_dht_chain *chain, struct mu_span value, struct mu_buf *out)
{
    return unwrap(chain, (struct mu_dht_claim){.value = value}, out);
}

/* --- records with an owner -------------------------------------------------------------------- */

/*
 * Finds the next `OPEN text ]` in `*rest`: the text has at least one byte, is as short as possible
 * and has no line end in it, as with Python's `.+?`. `*ret_before` is what comes before it.
 *
 * A mark that a line end spoils spoils all others before that line end, as there was no `]` on the
 * way to it. So each byte is read a few times at most, whatever a peer has written.
 */
static bool next_mark(struct mu_span *rest, struct mu_span open, struct mu_span *ret_before,
                      struct mu_span *ret_text)
{
    const uint8_t *from = rest->data;
    const uint8_t *end = rest->data + rest->len;
    const uint8_t *close = NULL;

    while (from != NULL && (size_t)(end - from) > open.len + 1) {
        const uint8_t *at = memmem(from, (size_t)(end - from), open.data, open.len);
        const uint8_t *text;
        const uint8_t *line_end;

        if (at == NULL || (size_t)(end - at) <= open.len + 1) {
            return false;
        }
        text = at + open.len;
        if (close == NULL || close <= text) {
            close = memchr(text + 1, ']', (size_t)(end - text) - 1);
        }
        if (close == NULL) {
            return false;
        }
        line_end = memchr(text, '\n', (size_t)(close - text));
        if (line_end == NULL) {
            *ret_before = mu_span(rest->data, (size_t)(at - rest->data));
            *ret_text = mu_span(text, (size_t)(close - text));
            *rest = mu_span(close + 1, (size_t)(end - close) - 1);
            return true;
        }
        from = line_end + 1;
    }
    return false;
}

/* Finds the record's owner. Returns 1; 0: it has no owner; MUSTER_EDHT_OWNER: it has several. */
static int find_owner(const struct mu_dht_claim *claim, struct mu_span *ret)
{
    const struct mu_span places[] = {claim->key, claim->tag};
    int found = 0;

    for (size_t i = 0; i < 2; i++) {
        struct mu_span rest = places[i];
        struct mu_span before;
        struct mu_span text;

        while (next_mark(&rest, MU_SPAN_LIT(OWNER), &before, &text)) {
            if (found != 0 && !mu_span_eq(*ret, text)) {
                return MUSTER_EDHT_OWNER;
            }
            *ret = text;
            found = 1;
        }
    }
    return found;
}

static int strip_signature(const struct mu_dht_validator *v, struct mu_span value,
                           struct mu_buf *out)
{
    struct mu_span rest = value;
    struct mu_span before;
    struct mu_span text;

    (void)v;
    while (next_mark(&rest, MU_SPAN_LIT(SIGNATURE), &before, &text)) {
        int err = mu_buf_append(out, before);

        if (err != 0) {
            return err;
        }
    }
    return mu_buf_append(out, rest);
}

/* Writes what is signed: the tuple of all four, the value without a signature. */
static int encode_claim(const struct mu_dht_claim *claim, struct mu_span value, struct mu_buf *out)
{
    struct mu_mp_out mp = mu_mp_out(out);

    mu_mp_put_ext(&mp, MU_MP_EXT_TUPLE,
                  mu_mp_array_len(4) + mu_mp_bin_len(claim->key.len) +
                      mu_mp_bin_len(claim->tag.len) + mu_mp_bin_len(value.len) + MU_MP_DOUBLE_LEN);
    mu_mp_put_array(&mp, 4);
    mu_mp_put_bin(&mp, claim->key);
    mu_mp_put_bin(&mp, claim->tag);
    mu_mp_put_bin(&mp, value);
    mu_mp_put_double(&mp, claim->expiration);
    return mp.err;
}

/* Finds the value's only signature, in base64. */
static int find_signature(struct mu_span value, struct mu_span *ret)
{
    struct mu_span before;
    struct mu_span text;
    int count = 0;

    while (next_mark(&value, MU_SPAN_LIT(SIGNATURE), &before, &text)) {
        *ret = text;
        count++;
    }
    return count == 1 ? 0 : MUSTER_EDHT_OWNER;
}

static bool concerns_owner(const struct mu_dht_validator *v, const struct mu_dht_claim *claim)
{
    struct mu_span owner;

    (void)v;
    return find_owner(claim, &owner) != 0;
}

static int validate_owner(const struct mu_dht_validator *v, const struct mu_dht_claim *claim)
{
    struct mu_span owner = {0};
    struct mu_span text = {0};
    struct mu_buf plain;
    struct mu_buf message;
    struct mu_buf signature;
    int found = find_owner(claim, &owner);
    int err;

    if (found != 1) {
        return found;
    }
    err = find_signature(claim->value, &text);
    if (err != 0) {
        return err;
    }
    mu_buf_init(&plain, VALUE_MAX);
    mu_buf_init(&message, VALUE_MAX);
    mu_buf_init(&signature, MU_IDENTITY_SIG_LEN_MAX);
    err = strip_signature(v, claim->value, &plain);
    err = err != 0 ? err : encode_claim(claim, mu_buf_span(&plain), &message);
    err = err != 0 ? err : mu_base64_decode(&signature, text);
    err = err != 0 ? err : mu_owner_verify(owner, mu_buf_span(&message), mu_buf_span(&signature));
    mu_buf_fini(&plain);
    mu_buf_fini(&message);
    mu_buf_fini(&signature);
    return err == 0 || err == MUSTER_ENOMEM ? err : MUSTER_EDHT_OWNER;
}

/* Signs our own records; those without an owner or of another owner stay as they are. */
static int sign_owner(const struct mu_dht_validator *v, const struct mu_dht_claim *claim,
                      struct mu_buf *out)
{
    const struct mu_dht_owner_validator *self = (const struct mu_dht_owner_validator *)v;
    struct mu_span mark = mu_dht_owner_mark(self);
    struct mu_buf message;
    struct mu_buf signature;
    int err;

    if (mark.len == 0 || (memmem(claim->key.data, claim->key.len, mark.data, mark.len) == NULL &&
                          memmem(claim->tag.data, claim->tag.len, mark.data, mark.len) == NULL)) {
        return mu_buf_append(out, claim->value);
    }
    mu_buf_init(&message, VALUE_MAX);
    mu_buf_init(&signature, MU_IDENTITY_SIG_LEN_MAX);
    err = encode_claim(claim, claim->value, &message);
    err = err != 0 ? err : mu_owner_sign(self->key, mu_buf_span(&message), &signature);
    err = err != 0 ? err : mu_buf_append(out, claim->value);
    err = err != 0 ? err : mu_buf_append(out, MU_SPAN_LIT(SIGNATURE));
    err = err != 0 ? err : mu_base64_encode(out, mu_buf_span(&signature));
    err = err != 0 ? err : mu_buf_append(out, MU_SPAN_LIT("]"));
    mu_buf_fini(&message);
    mu_buf_fini(&signature);
    return err;
}

int mu_dht_owner_init(struct mu_dht_owner_validator *v, const struct mu_identity *key)
{
    int err = 0;

    *v = (struct mu_dht_owner_validator){.base = {.priority = PRIORITY,
                                                  .concerns = concerns_owner,
                                                  .validate = validate_owner,
                                                  .sign = sign_owner,
                                                  .strip = strip_signature},
                                         .key = key};
    mu_buf_init(&v->mark, MU_OWNER_LINE_MAX + 16);
    if (key != NULL) {
        err = mu_buf_append(&v->mark, MU_SPAN_LIT(OWNER));
        err = err != 0 ? err : mu_owner_line(key, &v->mark);
        err = err != 0 ? err : mu_buf_append(&v->mark, MU_SPAN_LIT("]"));
    }
    if (err != 0) {
        mu_buf_fini(&v->mark);
    }
    return err;
}

void mu_dht_owner_fini(struct mu_dht_owner_validator *v)
{
    mu_buf_fini(&v->mark);
}
