/* X25519: RFC 7748's numbers, and the points that nothing can be shared with. */
#include "unit.h"

#include <muster/error.h>

#include "crypto/x25519.h"
#include "hex.h"

static void read_key(uint8_t key[MU_X25519_LEN], const char *text)
{
    assert_int_equal(hex_decode(key, MU_X25519_LEN, text), MU_X25519_LEN);
}

static void assert_shared(const char *secret_text, const char *peer_text, const char *want_text)
{
    uint8_t secret[MU_X25519_LEN];
    uint8_t peer[MU_X25519_LEN];
    uint8_t want[MU_X25519_LEN];
    uint8_t got[MU_X25519_LEN];

    read_key(secret, secret_text);
    read_key(peer, peer_text);
    read_key(want, want_text);
    assert_int_equal(mu_x25519(got, secret, peer), 0);
    assert_memory_equal(got, want, sizeof(want));
}

static void test_x25519_gives_the_numbers_of_the_rfc(void **state)
{
    (void)state;
    assert_shared("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
                  "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
                  "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552");
    assert_shared("4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
                  "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
                  "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957");
}

static void test_x25519_goes_round_a_thousand_times(void **state)
{
    uint8_t k[MU_X25519_LEN] = {9};
    uint8_t u[MU_X25519_LEN] = {9};
    uint8_t next[MU_X25519_LEN];
    uint8_t want[MU_X25519_LEN];

    (void)state;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(mu_x25519(next, k, u), 0);
        memcpy(u, k, sizeof(u));
        memcpy(k, next, sizeof(k));
    }
    read_key(want, "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51");
    assert_memory_equal(k, want, sizeof(want));
}

static void test_x25519_public_key_is_shared_with_the_base_point(void **state)
{
    const uint8_t base[MU_X25519_LEN] = {9};
    uint8_t shared[MU_X25519_LEN];
    uint8_t key[MU_X25519_LEN];
    uint8_t want[MU_X25519_LEN];

    (void)state;
    assert_int_equal(mu_x25519_public(key, base), 0);
    read_key(want, "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079");
    assert_memory_equal(key, want, sizeof(want));
    assert_int_equal(mu_x25519(shared, base, base), 0);
    assert_memory_equal(shared, key, sizeof(key));
}

static void test_x25519_refuses_points_of_small_order(void **state)
{
    const uint8_t secret[MU_X25519_LEN] = {1, 2, 3};
    uint8_t point[MU_X25519_LEN] = {0};
    uint8_t shared[MU_X25519_LEN];

    (void)state;
    assert_int_equal(mu_x25519(shared, secret, point), MUSTER_ECORRUPT);
    point[0] = 1;
    assert_int_equal(mu_x25519(shared, secret, point), MUSTER_ECORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_x25519_gives_the_numbers_of_the_rfc),
        cmocka_unit_test(test_x25519_goes_round_a_thousand_times),
        cmocka_unit_test(test_x25519_public_key_is_shared_with_the_base_point),
        cmocka_unit_test(test_x25519_refuses_points_of_small_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
