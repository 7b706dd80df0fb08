/* What a group is called, and the next bits: values that hivemind computed. */
#include "unit.h"

#include "hex.h"
#include "proto/average/group.h"

static void add(struct mu_layout *l, enum mu_dtype dtype, const uint64_t *shape, size_t rank)
{
    assert_int_equal(mu_layout_add(l, mu_span("", 0), dtype, shape, rank), 0);
}

static void check_hash(struct mu_layout *l, const char *want)
{
    uint8_t got[MU_AVG_SCHEMA_LEN];
    uint8_t wanted[MU_AVG_SCHEMA_LEN];

    hex_decode(wanted, sizeof(wanted), want);
    assert_int_equal(mu_avg_schema_hash(l, got), 0);
    assert_memory_equal(got, wanted, sizeof(got));
    mu_layout_fini(l);
    mu_layout_init(l);
}

static void test_schema(void **state)
{
    static const uint64_t two_three[] = {2, 3};
    static const uint64_t two[] = {2};
    static const uint64_t none[] = {0};
    static const uint64_t four[] = {4};
    struct mu_layout l;
    uint8_t got[MU_AVG_SCHEMA_LEN];

    (void)state;
    mu_layout_init(&l);
    add(&l, MU_DTYPE_F32, two_three, 2);
    check_hash(&l, "146f7c5c169704cb31db7afcc541179aee51384c");
    add(&l, MU_DTYPE_F32, NULL, 0);
    check_hash(&l, "ce72eceaf65845f17eb0cb160cfc770d7c25553e");
    add(&l, MU_DTYPE_F32, none, 1);
    check_hash(&l, "e293dd03140745c6713340ca58989375842b7d4e");
    add(&l, MU_DTYPE_BF16, four, 1);
    check_hash(&l, "aae642d0dc9acaebe77f696fa5737625f696a608");
    add(&l, MU_DTYPE_F32, two_three, 2);
    add(&l, MU_DTYPE_F32, two, 1);
    check_hash(&l, "5578c6505562e219755e54af6ee1e54d4461a392");
    add(&l, MU_DTYPE_F32, two_three, 2);
    add(&l, MU_DTYPE_F16, four, 1);
    check_hash(&l, "68a52555f8f18fda9f8360b04c305de8fe7d45ed");
    add(&l, MU_DTYPE_F6_E2M3, four, 1);
    assert_int_equal(mu_avg_schema_hash(&l, got), MUSTER_ENOTSUP);
    mu_layout_fini(&l);
}

static void test_keys(void **state)
{
    static const char *const good[] = {"demo.0b", "demo.0b01", "a_b-c.0b1"};
    static const char *const bad[] = {"", "demo", ".0b", "demo.0b2", "a.b.0b", "demo.0c", "demo.0"};
    char key[MU_AVG_KEY_MAX + 1];
    char long_name[300];

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        assert_true(mu_avg_key_is_valid(mu_span_str(good[i])));
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_false(mu_avg_key_is_valid(mu_span_str(bad[i])));
    }
    assert_int_equal(mu_avg_key_format(key, "demo", "01"), 0);
    assert_string_equal(key, "demo.0b01");
    assert_int_equal(mu_avg_key_format(key, "de.mo", ""), MUSTER_EINVAL);
    assert_int_equal(mu_avg_key_format(key, "", ""), MUSTER_EINVAL);
    memset(long_name, 'x', sizeof(long_name));
    long_name[MU_AVG_KEY_MAX - 3] = '\0';
    assert_int_equal(mu_avg_key_format(key, long_name, ""), 0);
    long_name[MU_AVG_KEY_MAX - 3] = 'x';
    long_name[MU_AVG_KEY_MAX - 2] = '\0';
    assert_int_equal(mu_avg_key_format(key, long_name, ""), MUSTER_ELIMIT);
    /* MU_AVG_BITS_MAX */
    memset(long_name, '1', sizeof(long_name));
    long_name[MU_AVG_BITS_MAX] = '\0';
    assert_int_equal(mu_avg_key_format(key, "demo", long_name), 0);
    long_name[MU_AVG_BITS_MAX] = '1';
    long_name[MU_AVG_BITS_MAX + 1] = '\0';
    assert_int_equal(mu_avg_key_format(key, "demo", long_name), MUSTER_EINVAL);
}

static void test_handlers(void **state)
{
    char name[MU_AVG_NAME_MAX];

    (void)state;
    assert_int_equal(mu_avg_handler_format(name, sizeof(name), "demo", "DecentralizedAverager",
                                           "rpc_join_group"),
                     0);
    assert_string_equal(name, "demo::DecentralizedAverager.rpc_join_group");
    assert_int_equal(mu_avg_handler_format(name, 8, "demo", "X", "rpc_join_group"), MUSTER_ELIMIT);
    assert_int_equal(mu_avg_handler_format(name, sizeof(name), "demo", "", "x"), MUSTER_EINVAL);
}

static void check_sample(const char *group_id, uint32_t n, uint32_t count, const uint32_t *want)
{
    uint8_t id[20];
    uint32_t width = n == 2 ? 1 : n == 4 ? 2 : 3;

    hex_decode(id, sizeof(id), group_id);
    for (uint32_t position = 0; position < count; position++) {
        char bits[MU_AVG_BITS_MAX + 1] = "00000000";
        uint32_t got = 0;

        assert_int_equal(mu_avg_next_bits(mu_span(id, 20), n, count, position, bits), 0);
        assert_int_equal(strlen(bits), 8);
        for (uint32_t i = 0; i < width; i++) {
            got = got * 2 + (bits[8 - width + i] == '1');
        }
        assert_int_equal(got, want[position]);
    }
}

static void test_bits(void **state)
{
    static const uint32_t first[] = {1, 2, 3};
    static const uint32_t second[] = {0, 1};
    static const uint32_t third[] = {1, 2, 4, 7, 3};
    static const uint32_t seen[] = {1, 0};
    uint8_t id[20] = {0};
    char bits[MU_AVG_BITS_MAX + 1] = "01";

    (void)state;
    check_sample("0101010101010101010101010101010101010101", 4, 3, first);
    check_sample("000102030405060708090a0b0c0d0e0f10111213", 2, 2, second);
    check_sample("000102030405060708090a0b0c0d0e0f10111213", 8, 5, third);
    check_sample("f991ec95310b009d0f5f2bf7fa6b0ee560f01fb0", 2, 2, seen);
    /* What was seen: 01 became 11 and 10. */
    hex_decode(id, sizeof(id), "f991ec95310b009d0f5f2bf7fa6b0ee560f01fb0");
    assert_int_equal(mu_avg_next_bits(mu_span(id, 20), 0, 2, 0, bits), 0);
    assert_string_equal(bits, "11");
    /* A group of one has one bucket, and its bits stay. */
    assert_int_equal(mu_avg_next_bits(mu_span(id, 20), 0, 1, 0, bits), 0);
    assert_string_equal(bits, "11");
    bits[0] = '\0';
    assert_int_equal(mu_avg_next_bits(mu_span(id, 20), 0, 2, 0, bits), 0);
    assert_string_equal(bits, "");
    assert_int_equal(mu_avg_next_bits(mu_span(id, 20), 2, 3, 0, bits), MUSTER_EINVAL);
    assert_int_equal(mu_avg_next_bits(mu_span(id, 20), 0, MU_AVG_MEMBERS_MAX + 1, 0, bits),
                     MUSTER_EINVAL);
    assert_int_equal(mu_avg_next_bits(mu_span(id, 20), 0, 2, 2, bits), MUSTER_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schema),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_handlers),
        cmocka_unit_test(test_bits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
