#include "crypto/page_key.h"

#include "crypto/hash.h"

/* HKDF (RFC 5869) for one block; the label keeps it apart from any other use of the token. */
void mu_page_key(struct mu_span token, char ret_text[MU_PAGE_KEY_CAP])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t prk[MU_SHA256_LEN];
    uint8_t key[MU_SHA256_LEN];

    mu_hmac_sha256(prk, MU_SPAN_LIT("muster lock"), token, (struct mu_span){0});
    mu_hmac_sha256(key, mu_span(prk, sizeof(prk)), MU_SPAN_LIT("muster page 1"),
                   MU_SPAN_LIT("\x01"));
    for (size_t i = 0; i < sizeof(key); i++) {
        ret_text[2 * i] = digits[key[i] >> 4];
        ret_text[2 * i + 1] = digits[key[i] & 15];
    }
    ret_text[2 * sizeof(key)] = '\0';
    explicit_bzero(prk, sizeof(prk));
    explicit_bzero(key, sizeof(key));
}
