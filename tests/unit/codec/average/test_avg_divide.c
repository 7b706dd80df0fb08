/* Fractions, parts and owners; the arithmetic on parts. Values that hivemind computed. */
#include "unit.h"

#include <math.h>

#include "codec/average/divide.h"
#include "codec/average/kernel.h"
#include "core/alloc.h"
#include "failheap.h"
#include "hex.h"

static const struct mu_avg_gather node = {.mode = MU_AVG_NODE};
static const struct mu_avg_gather client = {.mode = MU_AVG_CLIENT};

static void test_fractions(void **state)
{
    struct mu_avg_gather seven[7] = {node, node, node, node, node, node, node};
    struct mu_avg_gather mixed[3] = {node, client, node};
    uint64_t got[7];

    (void)state;
    assert_int_equal(mu_avg_fractions(10, seven, 3, got), 0);
    assert_true(got[0] == 4 && got[1] == 3 && got[2] == 3);
    assert_int_equal(mu_avg_fractions(7, seven, 3, got), 0);
    assert_true(got[0] == 3 && got[1] == 2 && got[2] == 2);
    assert_int_equal(mu_avg_fractions(12, mixed, 3, got), 0);
    assert_true(got[0] == 6 && got[1] == 0 && got[2] == 6);
    assert_int_equal(mu_avg_fractions(1, seven, 3, got), 0);
    assert_true(got[0] == 1 && got[1] == 0 && got[2] == 0);
    assert_int_equal(mu_avg_fractions(1000003, seven, 7, got), 0);
    for (int i = 0; i < 7; i++) {
        assert_int_equal(got[i], i < 4 ? 142858 : 142857);
    }
}

static void test_bad_fractions(void **state)
{
    struct mu_avg_gather members[2] = {client, client};
    static struct mu_avg_gather many[MU_AVG_MEMBERS_MAX + 1];
    static uint64_t got[MU_AVG_MEMBERS_MAX + 1];

    (void)state;
    assert_int_equal(mu_avg_fractions(10, members, 2, got), MUSTER_EINVAL);
    assert_int_equal(mu_avg_fractions(10, members, 0, got), MUSTER_EINVAL);
    members[0] = (struct mu_avg_gather){.bandwidth_known = true, .bandwidth = 100};
    assert_int_equal(mu_avg_fractions(10, members, 2, got), MUSTER_ENOTSUP);
    members[0] = (struct mu_avg_gather){.bandwidth_known = true};
    members[1] = node;
    assert_int_equal(mu_avg_fractions(10, members, 2, got), 0);
    assert_true(got[0] == 0 && got[1] == 10);
    assert_int_equal(mu_avg_fractions(MU_AVG_VALUES_MAX + 1, members, 2, got), MUSTER_EINVAL);
    assert_int_equal(mu_avg_fractions(1, many, MU_AVG_MEMBERS_MAX, got), 0);
    assert_int_equal(mu_avg_fractions(1, many, MU_AVG_MEMBERS_MAX + 1, got), MUSTER_EINVAL);
}

/* Elements of all tensors, fractions of all members, and the parts of each member; a list ends with
 * -1, a member's parts with -2. */
struct cut {
    long elements[4];
    long fractions[8];
    uint64_t part_bytes;
    enum mu_hm_compression compression;
    long parts[32];
};

static void check_cut(const struct cut *c)
{
    struct mu_avg_tensor tensors[4] = {0};
    uint64_t fractions[8] = {0};
    struct mu_avg_division d;
    const long *want = c->parts;
    size_t n = 0;
    size_t m = 0;

    for (; c->elements[n] >= 0; n++) {
        tensors[n] = (struct mu_avg_tensor){(uint64_t)c->elements[n], MU_DTYPE_F32, MU_DTYPE_F32,
                                            c->compression};
    }
    for (; c->fractions[m] >= 0; m++) {
        fractions[m] = (uint64_t)c->fractions[m];
    }
    assert_int_equal(mu_avg_divide_vector(&d, tensors, n, fractions, m, c->part_bytes), 0);
    for (size_t k = 0; k < m; k++, want++) {
        for (size_t i = 0; i < d.count[k]; i++) {
            assert_int_equal(d.parts[d.first[k] + i].elements, *want++);
            assert_int_equal(d.parts[d.first[k] + i].owner, k);
        }
        assert_int_equal(*want, -2);
    }
    mu_avg_division_fini(&d);
}

static void test_cuts(void **state)
{
    static const struct cut cuts[] = {
        {{100, 50, 200, -1},
         {100, 150, 100, -1},
         160,
         MU_HM_NONE,
         {40, 40, 20, -2, 40, 10, 40, 40, 40, -2, 40, 40, -2}},
        {{6, 2, -1}, {4, 4, -1}, 16, MU_HM_NONE, {4, -2, 2, 2, -2}},
        {{1, 0, 5, -1}, {3, 3, -1}, 8, MU_HM_NONE, {1, 0, 2, -2, 2, 1, -2}},
        {{300000, -1},
         {100000, 100000, 100000, -1},
         524288,
         MU_HM_NONE,
         {131072, -2, 131072, -2, 37856, -2}},
        {{300000, -1},
         {100000, 100000, 100000, -1},
         524288,
         MU_HM_FLOAT16,
         {262144, -2, -2, 37856, -2}},
        {{300000, -1},
         {100000, 100000, 100000, -1},
         524288,
         MU_HM_UNIFORM_8BIT,
         {300000, -2, -2, -2}},
        /* 22 values and fractions 8, 7, 7: the second pivot is 14, not 15. */
        {{14, 1, 7, -1}, {8, 7, 7, -1}, 4, MU_HM_NONE, {1, 1, 1,  1, 1, 1, 1, 1, -2, 1, 1, 1, 1,
                                                        1, 1, -2, 1, 1, 1, 1, 1, 1,  1, 1, -2}},
        /* No values at all. */
        {{0, 0, -1}, {0, 0, -1}, 4, MU_HM_NONE, {0, 0, -2, -2}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        check_cut(&cuts[i]);
    }
}

/* The codec's ratio comes from the type that is told, the length of a value from what is
 * averaged. */
static void test_told(void **state)
{
    struct mu_avg_tensor t = {300000, MU_DTYPE_F32, MU_DTYPE_F16, MU_HM_FLOAT16};
    uint64_t whole = 300000;
    struct mu_avg_division d;

    (void)state;
    assert_int_equal(mu_avg_divide_vector(&d, &t, 1, &whole, 1, MU_AVG_PART_BYTES), 0);
    assert_int_equal(d.parts[0].elements, 131072);
    mu_avg_division_fini(&d);
    t.told = MU_DTYPE_F32;
    assert_int_equal(mu_avg_divide_vector(&d, &t, 1, &whole, 1, MU_AVG_PART_BYTES), 0);
    assert_int_equal(d.parts[0].elements, 262144);
    mu_avg_division_fini(&d);
}

static void test_bad_cuts(void **state)
{
    struct mu_avg_tensor t = {10, MU_DTYPE_F32, MU_DTYPE_F32, MU_HM_NONE};
    uint64_t fractions[] = {5, 5};
    uint64_t none[] = {0, 0};
    struct mu_avg_division d;

    (void)state;
    assert_int_equal(mu_avg_divide_vector(&d, &t, 1, none, 2, 64), MUSTER_EINVAL);
    assert_int_equal(mu_avg_divide_vector(&d, &t, 1, fractions, 0, 64), MUSTER_EINVAL);
    assert_int_equal(mu_avg_divide_vector(&d, &t, 1, fractions, 2, 3), MUSTER_EINVAL);
    assert_int_equal(
        mu_avg_divide_vector(&d, &t, 1, fractions, 2, (uint64_t)MU_AVG_PART_BYTES_MAX + 1),
        MUSTER_EINVAL);
    assert_int_equal(mu_avg_divide_vector(&d, &t, MU_AVG_TENSORS_MAX + 1, fractions, 2, 64),
                     MUSTER_ELIMIT);
    t.elements = MU_AVG_VALUES_MAX + 1;
    assert_int_equal(mu_avg_divide_vector(&d, &t, 1, fractions, 2, 64), MUSTER_ELIMIT);
    t.elements = (uint64_t)MU_AVG_PARTS_MAX + 1;
    assert_int_equal(mu_avg_divide_vector(&d, &t, 1, fractions, 2, 4), MUSTER_ELIMIT);
    t = (struct mu_avg_tensor){10, MU_DTYPE_I32, MU_DTYPE_F32, MU_HM_NONE};
    assert_int_equal(mu_avg_divide_vector(&d, &t, 1, fractions, 2, 64), MUSTER_EINVAL);
    t.dtype = MU_DTYPE_F32;
    failheap_arm(0);
    assert_int_equal(mu_avg_divide_vector(&d, &t, 1, fractions, 2, 64), MUSTER_ENOMEM);
    failheap_disarm();
}

/* --- arithmetic ------------------------------------------------------------------------------- */

/* A round that hivemind made: 1, 2, 3, 4 with weight 1 and their doubles with weight 2. */
static void test_capture(void **state)
{
    uint8_t a[17];
    uint8_t b[17];
    uint8_t out[17];
    uint8_t want[16];
    float sum[4] = {0};

    (void)state;
    /* At an odd address, as in a message. */
    assert_int_equal(hex_decode(a + 1, 16, "0000803f000000400000404000008040"), 16);
    assert_int_equal(hex_decode(b + 1, 16, "00000040000080400000c04000000041"), 16);
    mu_avg_add(sum, MU_DTYPE_F32, a + 1, 4, 1);
    mu_avg_add(sum, MU_DTYPE_F32, b + 1, 4, 2);
    mu_avg_divide(sum, 4, 3);
    mu_avg_delta(out + 1, sum, MU_DTYPE_F32, a + 1, 4);
    assert_int_equal(hex_decode(want, 16, "aaaa2a3faaaaaa3f00000040aaaa2a40"), 16);
    assert_memory_equal(out + 1, want, 16);
    mu_avg_apply(MU_DTYPE_F32, a + 1, out + 1, 4, 1);
    assert_memory_equal(a + 1, sum, 16);
}

/* Parts of 1.5 in every type make a sum of float32, and a delta of the promoted type. */
static void test_types(void **state)
{
    static const struct {
        enum mu_dtype dtype;
        const char *value;
    } types[] = {{MU_DTYPE_F16, "003e"},
                 {MU_DTYPE_BF16, "c03f"},
                 {MU_DTYPE_F32, "0000c03f"},
                 {MU_DTYPE_F64, "000000000000f83f"}};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        uint8_t value[8];
        uint8_t delta[8];
        float sum[1] = {0};

        hex_decode(value, sizeof(value), types[i].value);
        mu_avg_add(sum, types[i].dtype, value, 1, 2);
        assert_true(sum[0] == 3);
        mu_avg_delta(delta, sum, types[i].dtype, value, 1);
        if (types[i].dtype == MU_DTYPE_F64) {
            assert_int_equal(mu_avg_delta_dtype(types[i].dtype), MU_DTYPE_F64);
            assert_memory_equal(delta, value, 8);
        } else {
            float x;

            assert_int_equal(mu_avg_delta_dtype(types[i].dtype), MU_DTYPE_F32);
            memcpy(&x, delta, 4);
            assert_true(x == 1.5f);
        }
        /* Half of the way from 1.5 to 3. */
        mu_avg_apply(types[i].dtype, value, delta, 1, 0.5);
        sum[0] = 0;
        mu_avg_add(sum, types[i].dtype, value, 1, 1);
        assert_true(sum[0] == 2.25f);
        mu_avg_load(sum, types[i].dtype, value, 1);
        assert_true(sum[0] == 2.25f);
        sum[0] = 1.5f;
        mu_avg_store(types[i].dtype, value, sum, 1);
        hex_decode(delta, sizeof(delta), types[i].value);
        assert_memory_equal(value, delta, mu_dtype_bits(types[i].dtype) / 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fractions), cmocka_unit_test(test_bad_fractions),
        cmocka_unit_test(test_cuts),      cmocka_unit_test(test_told),
        cmocka_unit_test(test_bad_cuts),  cmocka_unit_test(test_capture),
        cmocka_unit_test(test_types),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
