/* Owners of records, and the authorization wrapper: what is signed is taken, all else is not. */
#include "unit.h"

#include <muster/error.h>

#include "codec/bin/msgpack.h"
#include "codec/text/base64.h"
#include "crypto/owner_key.h"
#include "proto/dht/auth.h"
#include "proto/dht/node.h"
#include "proto/dht/validate.h"

/*
 * The progress of an owner, 3933.0 until 1647814697.5, under albert_progress, signed by Python's
 * cryptography, which hivemind uses.
 */
static const char python_line[] =
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC30GAcUn8Y9WN4qmJXh/0pxsnsaoXOqI/R/vKUaSRFsHn596l9"
    "DTamBB5S2WeojNz/P5kKyma09W3E60BrWPEFjl13+Hyhg1K0SXEilWvpLHkEIsJ4n1EpTHAN4Plf+NSnaKa4CVTt"
    "FdDiFih4IxLmQOHjjzYYzkhOc85yUANo0AFzaQrY8k5qynPtNeCKApKbwUETeifPtUgXZSypruk8qyDb4cFXaaB6"
    "Mo473apIZk+lLpu11Uv3DvuKnnoCIOHtMS9o2SdWdN7RB42n629snp5S5+xkgA8a5+g+aBbBK9g1D45EkyKrtmbv"
    "1GxPsoiK9Wn9B5ziXK9XlNd1iw5p";
static const char python_signature[] =
    "tiSUu0N4EdFMTXlbzINDP7TXmcRZdchTURE6PbtAb2xoocQst2NIwUytri1eC4GtGCkRkk3o0EvUOd/CjRvs0qRv"
    "/wITBN2TF4ty6wMkIV0PETo3UnY0yHWcWSUPX62dPnf1WgQyGryxWkQFKv57Q5a/l5LjjY1h6lsFmWIs+8B9AKEu"
    "M3EErLT1xKj3nrAQnkCHKYrE74zpIYHUm7Pg2fAVcfcN6qF1y3n+rNuH64kCadwpka635+tvE8jOySErLi+uEISL"
    "lPOy/YTzm2UL7trjpEjXyKj+Z2BbbzEhK00rXYTq6AYzqhA2tCrnsnSVwll8p71hKkNUqNlYwg7MWg==";

static struct mu_identity owner;
static struct mu_identity stranger;
static struct mu_dht_owner_validator ours;
static struct mu_dht_chain chain;
static struct mu_buf tag;
static struct mu_dht_id key = {{7}};

static int set_up(void **unused)
{
    (void)unused;
    assert_int_equal(mu_identity_generate_rsa(&owner, 2048), 0);
    assert_int_equal(mu_identity_generate_rsa(&stranger, 2048), 0);
    assert_int_equal(mu_dht_owner_init(&ours, &owner), 0);
    assert_int_equal(mu_dht_chain_add(&chain, &ours.base), 0);
    mu_buf_init(&tag, 4096);
    return mu_buf_append(&tag, mu_dht_owner_mark(&ours));
}

static int tear_down(void **unused)
{
    (void)unused;
    mu_buf_fini(&tag);
    mu_dht_owner_fini(&ours);
    mu_identity_fini(&owner);
    mu_identity_fini(&stranger);
    return 0;
}

static struct mu_dht_claim claim_of(const char *value)
{
    return (struct mu_dht_claim){mu_dht_id_span(&key), mu_buf_span(&tag), mu_span_str(value), 5.5};
}

static void test_owner_line_is_that_of_openssh(void **unused)
{
    struct mu_span mark = mu_dht_owner_mark(&ours);

    (void)unused;
    /* Of 2048 bits: 381 bytes of line (7 + 1 + 372, and one for its end, which is not there). */
    assert_true(mu_span_starts_with(mark, MU_SPAN_LIT("[owner:ssh-rsa AAAAB3NzaC1yc2EAAAADAQAB")));
    assert_int_equal(mark.data[mark.len - 1], ']');
    assert_int_equal(mark.len, 7 + 380 + 1);
}

static void test_owner_verifies_what_it_signed_and_nothing_else(void **unused)
{
    struct mu_span mark = mu_dht_owner_mark(&ours);
    struct mu_span line = mu_span(mark.data + 7, mark.len - 8);
    struct mu_buf signature;

    (void)unused;
    mu_buf_init(&signature, 1024);
    assert_int_equal(mu_owner_sign(&owner, MU_SPAN_LIT("message"), &signature), 0);
    assert_int_equal(signature.len, 256);
    assert_int_equal(mu_owner_verify(line, MU_SPAN_LIT("message"), mu_buf_span(&signature)), 0);
    assert_int_equal(mu_owner_verify(line, MU_SPAN_LIT("messagf"), mu_buf_span(&signature)),
                     MUSTER_ECORRUPT);
    signature.data[signature.head + 100] ^= 1;
    assert_int_equal(mu_owner_verify(line, MU_SPAN_LIT("message"), mu_buf_span(&signature)),
                     MUSTER_ECORRUPT);
    assert_int_equal(
        mu_owner_verify(MU_SPAN_LIT("ssh-rsa AAAA"), MU_SPAN_LIT("m"), mu_buf_span(&signature)),
        MUSTER_EINVAL);
    assert_int_equal(mu_owner_verify(mu_span(line.data, line.len - 4), MU_SPAN_LIT("m"),
                                     mu_buf_span(&signature)),
                     MUSTER_EINVAL);
    mu_buf_fini(&signature);
}

/* A line of OpenSSH with a modulus of so many bytes. */
static void put_owner_line(struct mu_buf *out, size_t modulus)
{
    struct mu_buf blob;

    mu_buf_init(&blob, 4096);
    assert_int_equal(mu_buf_reserve(&blob, 22 + modulus), 0);
    mu_buf_put(&blob, MU_SPAN_LIT("\0\0\0\x07ssh-rsa\0\0\0\x03\1\0\1\0\0"));
    mu_buf_put_u8(&blob, (uint8_t)(modulus >> 8));
    mu_buf_put_u8(&blob, (uint8_t)modulus);
    for (size_t i = 0; i < modulus; i++) {
        mu_buf_put_u8(&blob, 0x55);
    }
    assert_int_equal(mu_buf_append(out, MU_SPAN_LIT("ssh-rsa ")), 0);
    assert_int_equal(mu_base64_encode(out, mu_buf_span(&blob)), 0);
    mu_buf_fini(&blob);
}

static void test_owner_line_is_so_long(void **unused)
{
    struct mu_buf line;

    (void)unused;
    mu_buf_init(&line, (size_t)2 * MU_OWNER_LINE_MAX);
    put_owner_line(&line, 1024); /* the largest key that is taken */
    assert_true(line.len <= MU_OWNER_LINE_MAX);
    assert_int_equal(mu_owner_verify(mu_buf_span(&line), MU_SPAN_LIT("m"), MU_SPAN_LIT("s")),
                     MUSTER_ECORRUPT);
    mu_buf_reset(&line);
    put_owner_line(&line, 1175);
    assert_true(line.len > MU_OWNER_LINE_MAX);
    assert_int_equal(mu_owner_verify(mu_buf_span(&line), MU_SPAN_LIT("m"), MU_SPAN_LIT("s")),
                     MUSTER_EINVAL);
    mu_buf_fini(&line);
}

static void test_validator_takes_what_the_owner_signed(void **unused)
{
    struct mu_dht_claim claim = claim_of("value");
    struct mu_buf value;
    struct mu_buf plain;
    struct mu_buf twice;

    (void)unused;
    mu_buf_init(&twice, 4096);
    mu_buf_init(&value, 4096);
    mu_buf_init(&plain, 4096);
    assert_int_equal(mu_dht_chain_sign(&chain, &claim, &value), 0);
    assert_int_equal(value.len, 5 + 11 + 344 + 1);
    claim.value = mu_buf_span(&value);
    assert_int_equal(mu_dht_chain_validate(&chain, &claim), 0);
    assert_int_equal(mu_dht_chain_strip(&chain, claim.value, &plain), 0);
    assert_span_text(mu_buf_span(&plain), "value");
    /* Neither a later expiration nor another key goes with that signature. */
    claim.expiration = 6;
    assert_int_equal(mu_dht_chain_validate(&chain, &claim), MUSTER_EDHT_OWNER);
    claim.expiration = 5.5;
    key.bytes[1] ^= 1;
    assert_int_equal(mu_dht_chain_validate(&chain, &claim), MUSTER_EDHT_OWNER);
    key.bytes[1] ^= 1;
    /* Nor may it be there twice, however good it is. */
    assert_int_equal(mu_buf_append(&twice, claim.value), 0);
    assert_int_equal(mu_buf_append(&twice, mu_span_skip(claim.value, 5)), 0);
    claim.value = mu_buf_span(&twice);
    assert_int_equal(mu_dht_chain_validate(&chain, &claim), MUSTER_EDHT_OWNER);
    mu_buf_fini(&twice);
    /* Nor a value that says more. */
    assert_int_equal(mu_buf_append(&value, MU_SPAN_LIT("!")), 0);
    claim.value = mu_buf_span(&value);
    assert_int_equal(mu_dht_chain_validate(&chain, &claim), MUSTER_EDHT_OWNER);
    mu_buf_fini(&value);
    mu_buf_fini(&plain);
}

static void test_validator_refuses_none_two_or_bad_signatures(void **unused)
{
    static const char *const values[] = {
        "value",
        "value[signature:]",
        "value[signature:AAAA]",
        "value[signature:AAAA",
        "value[signature:AAAA][signature:AAAA]",
        "value[signature:no base64!]",
        "",
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        struct mu_dht_claim claim = claim_of(values[i]);

        assert_int_equal(mu_dht_chain_validate(&chain, &claim), MUSTER_EDHT_OWNER);
    }
}

/* Marks that are begun without end: a look at each from each would take hours. */
static void test_validator_looks_at_each_byte_a_few_times_only(void **unused)
{
    static const char *const begun[] = {"[signature:\n", "[signature:"};

    (void)unused;
    for (size_t i = 0; i < 2; i++) {
        struct mu_dht_claim claim = claim_of("");
        struct mu_buf value;

        mu_buf_init(&value, 8 << 20);
        while (value.len < 7 << 20) {
            assert_int_equal(mu_buf_append(&value, mu_span_str(begun[i])), 0);
        }
        assert_int_equal(mu_buf_append(&value, MU_SPAN_LIT("\n]")), 0);
        claim.value = mu_buf_span(&value);
        assert_int_equal(mu_dht_chain_validate(&chain, &claim), MUSTER_EDHT_OWNER);
        mu_buf_fini(&value);
    }
}

static void test_validator_a_record_with_two_owners_is_nobodys_to_write(void **unused)
{
    struct mu_dht_owner_validator theirs;
    struct mu_dht_claim claim = claim_of("value");
    struct mu_buf value;

    (void)unused;
    assert_int_equal(mu_dht_owner_init(&theirs, &stranger), 0);
    mu_buf_init(&value, 4096);
    assert_int_equal(mu_dht_chain_sign(&chain, &claim, &value), 0);
    assert_int_equal(mu_buf_append(&tag, mu_dht_owner_mark(&theirs)), 0);
    claim = claim_of("");
    claim.value = mu_buf_span(&value);
    assert_int_equal(mu_dht_chain_validate(&chain, &claim), MUSTER_EDHT_OWNER);
    mu_buf_consume(&tag, 0);
    tag.len = mu_dht_owner_mark(&ours).len;
    mu_buf_fini(&value);
    mu_dht_owner_fini(&theirs);
}

static void test_validator_what_is_nobodys_is_everybodys(void **unused)
{
    struct mu_dht_claim claim = {mu_dht_id_span(&key), MU_SPAN_LIT("[owner:]"), MU_SPAN_LIT("x"),
                                 1};
    struct mu_buf value;

    (void)unused;
    assert_int_equal(mu_dht_chain_validate(&chain, &claim), 0);
    claim.tag = MU_SPAN_LIT("[owner:a\nb]");
    assert_int_equal(mu_dht_chain_validate(&chain, &claim), 0);
    claim.tag = MU_SPAN_LIT("[owner:a]");
    assert_int_equal(mu_dht_chain_validate(&chain, &claim), MUSTER_EDHT_OWNER);
    claim.tag = MU_SPAN_LIT("plain");
    mu_buf_init(&value, 64);
    assert_int_equal(mu_dht_chain_sign(&chain, &claim, &value), 0);
    assert_span_text(mu_buf_span(&value), "x");
    mu_buf_fini(&value);
}

static void test_validator_takes_what_python_signed(void **unused)
{
    static const uint8_t plain[] = {0xcb, 0x40, 0xae, 0xba, 0, 0, 0, 0, 0};
    struct mu_dht_id progress;
    struct mu_dht_claim claim = {.expiration = 1647814697.5};
    struct mu_buf mark;
    struct mu_buf subkey;
    struct mu_buf value;
    struct mu_mp_out mp;

    (void)unused;
    mu_buf_init(&mark, 4096);
    mu_buf_init(&subkey, 4096);
    mu_buf_init(&value, 4096);
    assert_int_equal(mu_dht_key_text(MU_SPAN_LIT("albert_progress"), &progress), 0);
    assert_int_equal(mu_buf_append(&mark, MU_SPAN_LIT("[owner:")), 0);
    assert_int_equal(mu_buf_append(&mark, mu_span_str(python_line)), 0);
    assert_int_equal(mu_buf_append(&mark, MU_SPAN_LIT("]")), 0);
    mp = mu_mp_out(&subkey);
    mu_mp_put_bin(&mp, mu_buf_span(&mark));
    assert_int_equal(mu_buf_append(&value, mu_span(plain, sizeof(plain))), 0);
    assert_int_equal(mu_buf_append(&value, MU_SPAN_LIT("[signature:")), 0);
    assert_int_equal(mu_buf_append(&value, mu_span_str(python_signature)), 0);
    assert_int_equal(mu_buf_append(&value, MU_SPAN_LIT("]")), 0);
    claim.key = mu_dht_id_span(&progress);
    claim.tag = mu_buf_span(&subkey);
    claim.value = mu_buf_span(&value);
    assert_int_equal(mu_dht_chain_validate(&chain, &claim), 0);
    value.data[value.head + 1] ^= 1;
    assert_int_equal(mu_dht_chain_validate(&chain, &claim), MUSTER_EDHT_OWNER);
    mu_buf_fini(&mark);
    mu_buf_fini(&subkey);
    mu_buf_fini(&value);
}

/* --- the order of a chain --------------------------------------------------------------------- */

struct letter {
    struct mu_dht_validator base;
    char letter;
};

static int sign_letter(const struct mu_dht_validator *v, const struct mu_dht_claim *claim,
                       struct mu_buf *out)
{
    int err = mu_buf_append(out, claim->value);

    return err != 0 ? err : mu_buf_append(out, mu_span(&((const struct letter *)v)->letter, 1));
}

static int check_letter(const struct mu_dht_validator *v, const struct mu_dht_claim *claim)
{
    return claim->value.len > 0 && claim->value.data[claim->value.len - 1] ==
                                       (uint8_t)((const struct letter *)v)->letter
               ? 0
               : MUSTER_EDHT_VALUE;
}

static int strip_letter(const struct mu_dht_validator *v, struct mu_span value, struct mu_buf *out)
{
    (void)v;
    return mu_buf_append(out, mu_span(value.data, value.len - 1));
}

static void test_chain_signs_upwards_and_validates_downwards(void **unused)
{
    struct letter letters[3] = {{{20, check_letter, sign_letter, strip_letter}, 'c'},
                                {{0, check_letter, sign_letter, strip_letter}, 'a'},
                                {{10, check_letter, sign_letter, strip_letter}, 'b'}};
    struct mu_dht_claim claim = {{0}, {0}, MU_SPAN_LIT("x"), 1};
    struct mu_dht_chain c = {0};
    struct mu_buf value;
    struct mu_buf plain;

    (void)unused;
    mu_buf_init(&value, 64);
    mu_buf_init(&plain, 64);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mu_dht_chain_add(&c, &letters[i].base), 0);
    }
    assert_int_equal(mu_dht_chain_sign(&c, &claim, &value), 0);
    assert_span_text(mu_buf_span(&value), "xabc");
    claim.value = mu_buf_span(&value);
    assert_int_equal(mu_dht_chain_validate(&c, &claim), 0);
    assert_int_equal(mu_dht_chain_strip(&c, claim.value, &plain), 0);
    assert_span_text(mu_buf_span(&plain), "x");
    claim.value = MU_SPAN_LIT("xbac");
    assert_int_equal(mu_dht_chain_validate(&c, &claim), MUSTER_EDHT_VALUE);
    mu_buf_fini(&value);
    mu_buf_fini(&plain);
}

static void test_chain_has_so_many_validators(void **unused)
{
    struct letter letters[MU_DHT_VALIDATORS_MAX + 1] = {{{0}}};
    struct mu_dht_chain c = {0};

    (void)unused;
    for (size_t i = 0; i < MU_DHT_VALIDATORS_MAX; i++) {
        assert_int_equal(mu_dht_chain_add(&c, &letters[i].base), 0);
    }
    assert_int_equal(mu_dht_chain_add(&c, &letters[MU_DHT_VALIDATORS_MAX].base), MUSTER_ELIMIT);
}

/* --- the wrapper ------------------------------------------------------------------------------ */

static bool any_token(struct mu_dht_auth_terms *terms, const struct mu_dht_token *token, double now)
{
    (void)terms;
    (void)now;
    return mu_span_eq(token->username, MU_SPAN_LIT("somebody"));
}

static void test_auth_takes_a_signed_request_once_and_in_time(void **unused)
{
    struct mu_dht_token token = {.username = MU_SPAN_LIT("somebody")};
    struct mu_dht_ping ping = {.head = {.has_node = true}, .validate = true};
    struct mu_dht_auth_terms terms = {.key = &owner, .check_token = any_token};
    struct mu_span mark = mu_dht_owner_mark(&ours);
    uint8_t nonce[MU_DHT_NONCE_LEN] = "nonce 1";
    uint8_t got[MU_DHT_NONCE_LEN];
    struct mu_buf encoded;
    struct mu_buf message;
    struct mu_buf request;
    struct mu_buf reply;

    (void)unused;
    mu_buf_init(&encoded, 4096);
    mu_buf_init(&message, 4096);
    mu_buf_init(&request, 4096);
    mu_buf_init(&reply, 4096);
    token.public_key = mu_span(mark.data + 7, mark.len - 8);
    assert_int_equal(mu_dht_token_encode(&encoded, &token), 0);
    terms.token = mu_buf_span(&encoded);
    assert_int_equal(mu_dht_ping_encode(&message, &ping), 0);
    assert_int_equal(mu_dht_auth_sign_request(&terms, 1000, nonce, mu_buf_span(&message), &request),
                     0);

    assert_int_equal(mu_dht_auth_check_request(&terms, 1061, mu_buf_span(&request), got),
                     MUSTER_EDHT_DENIED);
    assert_int_equal(mu_dht_auth_check_request(&terms, 939, mu_buf_span(&request), got),
                     MUSTER_EDHT_DENIED);
    assert_int_equal(mu_dht_auth_check_request(&terms, 1000, mu_buf_span(&message), got),
                     MUSTER_EDHT_DENIED);
    assert_int_equal(mu_dht_auth_check_request(&terms, 1000, mu_buf_span(&request), got), 0);
    assert_memory_equal(got, nonce, sizeof(nonce));
    assert_int_equal(mu_dht_auth_check_request(&terms, 1001, mu_buf_span(&request), got),
                     MUSTER_EDHT_DENIED);
    assert_int_equal(mu_dht_ping_decode(mu_buf_span(&request), &ping), 0);
    assert_true(ping.validate);

    assert_int_equal(mu_dht_auth_sign_reply(&terms, got, mu_buf_span(&message), &reply), 0);
    assert_int_equal(mu_dht_auth_check_reply(&terms, 1000, nonce, mu_buf_span(&reply)), 0);
    nonce[0]++;
    assert_int_equal(mu_dht_auth_check_reply(&terms, 1000, nonce, mu_buf_span(&reply)),
                     MUSTER_EDHT_DENIED);
    nonce[0]--;
    reply.data[reply.head + reply.len - 1] ^= 1; /* of the message, not of the wrapper */
    assert_int_equal(mu_dht_auth_check_reply(&terms, 1000, nonce, mu_buf_span(&reply)),
                     MUSTER_EDHT_DENIED);
    mu_dht_auth_fini(&terms);
    mu_buf_fini(&encoded);
    mu_buf_fini(&message);
    mu_buf_fini(&request);
    mu_buf_fini(&reply);
}

/* While as many nonces are remembered as may be, nobody's is new, until the first is forgotten. */
static void test_auth_remembers_so_many_nonces(void **unused)
{
    struct mu_dht_token token = {.username = MU_SPAN_LIT("somebody")};
    struct mu_dht_auth_terms terms = {.key = &owner, .check_token = any_token, .nonces_max = 2};
    struct mu_span mark = mu_dht_owner_mark(&ours);
    static const struct {
        double now;
        int err;
    } steps[] = {{1000, 0}, {1001, 0}, {1002, MUSTER_EDHT_DENIED}, {1181, 0}};
    uint8_t nonce[MU_DHT_NONCE_LEN] = "nonce 0";
    uint8_t got[MU_DHT_NONCE_LEN];
    struct mu_buf encoded;
    struct mu_buf message;
    struct mu_buf request;

    (void)unused;
    mu_buf_init(&encoded, 4096);
    mu_buf_init(&message, 4096);
    mu_buf_init(&request, 4096);
    token.public_key = mu_span(mark.data + 7, mark.len - 8);
    assert_int_equal(mu_dht_token_encode(&encoded, &token), 0);
    terms.token = mu_buf_span(&encoded);
    assert_int_equal(mu_dht_ping_encode(&message, &(struct mu_dht_ping){.validate = true}), 0);
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        nonce[6]++;
        mu_buf_reset(&request);
        assert_int_equal(
            mu_dht_auth_sign_request(&terms, steps[i].now, nonce, mu_buf_span(&message), &request),
            0);
        assert_int_equal(
            mu_dht_auth_check_request(&terms, steps[i].now, mu_buf_span(&request), got),
            steps[i].err);
        assert_true(terms.seen.count <= terms.nonces_max);
    }
    mu_dht_auth_fini(&terms);
    mu_buf_fini(&encoded);
    mu_buf_fini(&message);
    mu_buf_fini(&request);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_owner_line_is_that_of_openssh),
        cmocka_unit_test(test_owner_verifies_what_it_signed_and_nothing_else),
        cmocka_unit_test(test_owner_line_is_so_long),
        cmocka_unit_test(test_validator_takes_what_the_owner_signed),
        cmocka_unit_test(test_validator_refuses_none_two_or_bad_signatures),
        cmocka_unit_test(test_validator_looks_at_each_byte_a_few_times_only),
        cmocka_unit_test(test_validator_a_record_with_two_owners_is_nobodys_to_write),
        cmocka_unit_test(test_validator_what_is_nobodys_is_everybodys),
        cmocka_unit_test(test_validator_takes_what_python_signed),
        cmocka_unit_test(test_chain_signs_upwards_and_validates_downwards),
        cmocka_unit_test(test_chain_has_so_many_validators),
        cmocka_unit_test(test_auth_takes_a_signed_request_once_and_in_time),
        cmocka_unit_test(test_auth_remembers_so_many_nonces),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
