/* Messages of averaging: what hivemind sent, byte for byte, and what is refused. */
#include "unit.h"

#include <math.h>
#include <stdlib.h>

#include "codec/average/msg.h"
#include "core/alloc.h"
#include "failheap.h"
#include "hex.h"

#define SCHEMA "5578c6505562e219755e54af6ee1e54d4461a392"
#define GROUP  "c80329189f7d949a0644020e1e7b2f3e2eb25355"
#define PEER_A "002408011220944deb3928e240c4f90760773aba43e694448c89eaf56c40e66ca214c908f616"
#define PEER_B "00240801122020a04e386cac8244388e0df5ea0416bd9d1a61564652da81c3e29ea02b82420b"
#define F32    "2207666c6f61743332"

static uint8_t bytes[1 << 16];

static struct mu_span hex(const char *text)
{
    return mu_span(bytes, hex_decode(bytes, sizeof(bytes), text));
}

static void assert_buf_hex(struct mu_buf *b, const char *text)
{
    static uint8_t wanted[4096];
    size_t len = hex_decode(wanted, sizeof(wanted), text);

    assert_int_equal(b->len, len);
    assert_memory_equal(mu_buf_span(b).data, wanted, len);
    mu_buf_fini(b);
}

/* --- vectors ---------------------------------------------------------------------------------- */

static void check_join(const char *text, double expiration, bool client, const char *key)
{
    struct mu_avg_join join;
    struct mu_avg_gather gather;
    struct mu_buf out;

    assert_int_equal(mu_avg_join_decode(hex(text), &join), 0);
    assert_int_equal(join.schema_hash.len, MU_AVG_SCHEMA_LEN);
    assert_true(join.expiration == expiration);
    assert_int_equal(join.client_mode, client);
    assert_span_text(join.group_key, key);
    assert_int_equal(mu_avg_gather_decode(join.gather, &gather), 0);
    assert_int_equal(gather.mode, client ? MU_AVG_CLIENT : MU_AVG_NODE);
    assert_false(gather.bandwidth_known);
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_avg_join_encode(&join, &out), 0);
    assert_buf_hex(&out, text);
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_avg_gather_encode(&gather, &out), 0);
    assert_true(mu_span_eq(mu_buf_span(&out), join.gather));
    mu_buf_fini(&out);
}

static void test_joins(void **state)
{
    (void)state;
    check_join("1214" SCHEMA "199bb39266b0beda41220993c000c40481a16901320764656d6f2e3062",
               1794818458.2922122, false, "demo.0b");
    check_join("12141fd603407177c8748001526806a2f3552a89c92119dfcdcc70b0beda41220693c001c401c0"
               "2801320764656d6f2e3062",
               1794818499.2000654, true, "demo.0b");
    check_join("1214ad06ecbbb440ed64a7df27a16ac996bc505cb61919157be67db0beda41220693c000c401c0"
               "320964656d6f2e30623031",
               1794818551.6012623, false, "demo.0b01");
}

static void test_replies(void **state)
{
    static const char begin[] =
        "08031214" GROUP "2226" PEER_B "2226" PEER_A "2a0993c000c40481a169012a0993c000c40481a16900";
    struct mu_avg_reply reply;
    struct mu_buf out;

    (void)state;
    assert_int_equal(mu_avg_reply_decode(hex("0802"), &reply), 0);
    assert_int_equal(reply.code, MU_AVG_ACCEPTED);
    assert_int_equal(mu_avg_reply_decode(hex("08111a26" PEER_A), &reply), 0);
    assert_int_equal(reply.code, MU_AVG_GROUP_DISBANDED);
    assert_true(reply.suggested);
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_avg_reply_encode(&reply, &out), 0);
    assert_buf_hex(&out, "08111a26" PEER_A);
    assert_int_equal(mu_avg_reply_decode(hex(begin), &reply), 0);
    assert_int_equal(reply.code, MU_AVG_BEGIN_ALLREDUCE);
    assert_int_equal(reply.member_count, 2);
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_avg_reply_encode(&reply, &out), 0);
    assert_buf_hex(&out, begin);
}

/* Each is decoded, and encoded again from its values. */
static void test_data(void **state)
{
    static const struct {
        const char *text;
        enum mu_avg_code code;
        size_t elements;
        double weight;
    } vectors[] = {
        {"08041214" GROUP "221e0a100000803f000000400000404000008040120104" F32 "29000000000000f03f",
         MU_AVG_PART_FOR_AVERAGING, 4, 1},
        {"22160a080000a04100002042120102" F32 "290000000000000040", MU_AVG_NO_CODE, 2, 2},
        {"080522160a085855d5bf000000c0120102" F32, MU_AVG_AVERAGED_PART, 2, 0},
        {"0804121454c30336c7a36d6088a2f9020661b66e96b09d7222200a100000004200468048004a804b804c404d"
         "120108" F32 "280229000000000000f03f",
         MU_AVG_PART_FOR_AVERAGING, 8, 1},
        {"0804121b1aad15d84cfac06e80fd6333a4a3311dcd3e72fa50484153455f50222e0a20"
         "0000000000000000000000000000000000000000000000000000000000000000120108" F32
         "29000000000000f03f",
         MU_AVG_PART_FOR_AVERAGING, 8, 1},
        /* An empty tensor is a part without values. */
        {"220c120100" F32 "29000000000000f03f", MU_AVG_NO_CODE, 0, 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        uint8_t values[64];
        struct mu_avg_data data;
        struct mu_buf out;

        assert_int_equal(mu_avg_data_decode(hex(vectors[i].text), &data), 0);
        assert_int_equal(data.code, vectors[i].code);
        assert_int_equal(data.elements, vectors[i].elements);
        assert_true(data.weight == vectors[i].weight);
        assert_int_equal(mu_avg_data_values(&data, (struct mu_space){values, sizeof(values)}), 0);
        mu_buf_init(&out, 4096);
        assert_int_equal(mu_avg_data_encode(&data, mu_span(values, mu_avg_data_len(&data)), &out),
                         0);
        assert_buf_hex(&out, vectors[i].text);
    }
}

/* --- what is refused -------------------------------------------------------------------------- */

static void test_bad_data(void **state)
{
    static const struct {
        const char *text;
        int err;
    } cases[] = {
        {"08", MUSTER_EPROTO},
        {"0813", MUSTER_EPROTO},                                /* no such code */
        {"12000a", MUSTER_EPROTO},                              /* cut off */
        {"1001", MUSTER_EPROTO},                                /* the group id a number */
        {"220d12010c0c" F32, MUSTER_EPROTO},                    /* a broken tensor */
        {"220d12020101" F32, MUSTER_EPROTO},                    /* two dimensions */
        {"2209" F32, MUSTER_EPROTO},                            /* no dimension */
        {"220b1201012206717561696e74", MUSTER_ENOTSUP},         /* no such type */
        {"220a1201012205696e743634", MUSTER_ENOTSUP},           /* integers */
        {"220e120101" F32 "2806", MUSTER_ENOTSUP},              /* no such encoding */
        {"220f120101220862666c6f617431362802", MUSTER_ENOTSUP}, /* halves of bfloat16 */
        {"22160a080000a0410000a041120101" F32, MUSTER_EPROTO},  /* more than its size */
        {"220e120101" F32 "3002", MUSTER_EPROTO},               /* in chunks */
        {"220f1204ffffff7f" F32, MUSTER_ELIMIT}, /* 2^28 values: over MU_AVG_PART_BYTES_MAX */
        {"29000000000000f87f", MUSTER_EPROTO},   /* NaN */
        {"29000000000000f07f", MUSTER_EPROTO},   /* an infinity */
        {"29000000000000f0bf", MUSTER_EPROTO},   /* -1 */
        {"299c7500883ce4377e", MUSTER_EPROTO},   /* 1e300: over MU_AVG_WEIGHT_MAX */
        {"1221" GROUP "00000000000000000000000000", MUSTER_ELIMIT},
    };
    struct mu_avg_data data;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int err = mu_avg_data_decode(hex(cases[i].text), &data);

        if (err != cases[i].err) {
            fail_msg("case %zu: %d", i, err);
        }
    }
}

/* Meets MU_AVG_GROUP_ID_MAX and MU_AVG_WEIGHT_MAX, which is 2^40. */
static void test_data_limits(void **state)
{
    struct mu_avg_data data;

    (void)state;
    assert_int_equal(mu_avg_data_decode(hex("1220" GROUP "000000000000000000000000"), &data), 0);
    assert_int_equal(data.group_id.len, MU_AVG_GROUP_ID_MAX);
    assert_int_equal(mu_avg_data_decode(hex("290000000000007042"), &data), 0);
    assert_true(data.weight == MU_AVG_WEIGHT_MAX);
    assert_int_equal(mu_avg_data_decode(hex("290100000000007042"), &data), MUSTER_EPROTO);
}

/* A value that is not finite is refused, in every type. */
static void test_bad_values(void **state)
{
    static const char *const cases[] = {
        "221a0a0c0000803f0000c07f00000040120103" F32,       /* NaN */
        "221a0a0c0000803f000080ff00000040120103" F32,       /* an infinity */
        "22100a02007c1201012207666c6f61743136",             /* half */
        "22110a02807f120101220862666c6f61743136",           /* bfloat16 */
        "22160a08000000000000f07f1201012207666c6f61743634", /* double */
        "22120a0400008000120102" F32,                       /* fewer bytes than its size */
    };
    uint8_t values[64];
    struct mu_avg_data data;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (mu_avg_data_decode(hex(cases[i]), &data) == 0) {
            assert_int_equal(mu_avg_data_values(&data, (struct mu_space){values, sizeof(values)}),
                             MUSTER_EPROTO);
        } else {
            fail_msg("case %zu", i);
        }
    }
}

static void test_bad_gather(void **state)
{
    static const char *const cases[] = {
        "",
        "c0",
        "92c000",
        "93c003c401c0",                 /* no such mode */
        "93cb7ff800000000000000c401c0", /* NaN */
        "93cbbff000000000000000c401c0", /* below zero */
        "93a16100c401c0",               /* a text for a number */
        "93c000c402c0c0",               /* two values */
        "93c000c400",                   /* no value */
        "93c000c0",
        "93c000c401c0c0",
    };
    struct mu_avg_gather g;
    struct mu_buf out;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(mu_avg_gather_decode(hex(cases[i]), &g), MUSTER_EPROTO);
    }
    assert_int_equal(mu_avg_gather_decode(mu_span(bytes, MU_AVG_GATHER_MAX + 1), &g),
                     MUSTER_ELIMIT);
    assert_int_equal(mu_avg_gather_decode(hex("93cb40590000000000"
                                              "0002c401c0"),
                                          &g),
                     0);
    assert_true(g.bandwidth_known && g.bandwidth == 100 && g.mode == MU_AVG_AUX);
    mu_buf_init(&out, 64);
    g.user = mu_span("", 0);
    assert_int_equal(mu_avg_gather_encode(&g, &out), MUSTER_EINVAL);
    mu_buf_fini(&out);
}

static void test_bad_replies(void **state)
{
    static const char *const cases[] = {
        "0803",                         /* a group without members */
        "08031214" GROUP "2226" PEER_A, /* nothing gathered */
        "0803"
        "2226" PEER_A "2a0693c000c401c0", /* no id */
        "08031202"
        "0000"
        "2226" PEER_A "2a0693c000c401c0", /* a short id */
        "0802"
        "2226" PEER_A "2a0693c000c401c0", /* members, but no group */
        "08031214" GROUP "2226" PEER_A "2226" PEER_A "2a00"
        "2a00", /* one member twice */
        "08031214" GROUP "2203"
        "010203"
        "2a00",           /* no peer id */
        "08111a03010203", /* no peer id */
        "0813",
        "0a00",
    };
    static struct mu_avg_reply reply;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (mu_avg_reply_decode(hex(cases[i]), &reply) != MUSTER_EPROTO) {
            fail_msg("case %zu", i);
        }
    }
}

/* Meets MU_AVG_MEMBERS_MAX, MU_AVG_GATHER_MAX, MU_AVG_GATHERED_MAX and MU_AVG_KEY_MAX. */
static void test_limits(void **state)
{
    static struct mu_avg_reply reply;
    static struct mu_avg_reply back;
    static uint8_t gather[MU_AVG_GATHER_MAX + 1];
    struct mu_avg_join join = {.group_key = mu_span(gather, MU_AVG_KEY_MAX)};
    struct mu_avg_join read;
    struct mu_buf out;
    struct mu_span group_id = hex(GROUP);

    (void)state;
    mu_buf_init(&out, 32u << 20);
    reply.code = MU_AVG_BEGIN_ALLREDUCE;
    reply.group_id = group_id;
    reply.member_count = MU_AVG_MEMBERS_MAX;
    for (size_t i = 0; i < MU_AVG_MEMBERS_MAX; i++) {
        static uint8_t id[38] = {0, 0x24, 8, 1, 0x12, 0x20};

        id[6] = (uint8_t)i;
        assert_int_equal(mu_peer_id_from_bytes(&reply.members[i], mu_span(id, 38)), 0);
        reply.gathered[i] = mu_span(gather, MU_AVG_GATHERED_MAX / MU_AVG_MEMBERS_MAX);
    }
    assert_int_equal(mu_avg_reply_encode(&reply, &out), 0);
    assert_int_equal(mu_avg_reply_decode(mu_buf_span(&out), &back), 0);
    assert_int_equal(back.member_count, MU_AVG_MEMBERS_MAX);
    /* One byte more of what is gathered. */
    mu_buf_reset(&out);
    reply.gathered[7].len++;
    assert_int_equal(mu_avg_reply_encode(&reply, &out), 0);
    assert_int_equal(mu_avg_reply_decode(mu_buf_span(&out), &back), MUSTER_ELIMIT);
    /* One member more. */
    reply.gathered[7].len--;
    mu_buf_reset(&out);
    assert_int_equal(mu_avg_reply_encode(&reply, &out), 0);
    assert_int_equal(mu_buf_append(&out, hex("2226" PEER_A)), 0);
    assert_int_equal(mu_avg_reply_decode(mu_buf_span(&out), &back), MUSTER_ELIMIT);
    mu_buf_reset(&out);
    join.gather = mu_span(gather, MU_AVG_GATHER_MAX);
    assert_int_equal(mu_avg_join_encode(&join, &out), 0);
    assert_int_equal(mu_avg_join_decode(mu_buf_span(&out), &read), 0);
    mu_buf_reset(&out);
    join.gather.len++;
    assert_int_equal(mu_avg_join_encode(&join, &out), 0);
    assert_int_equal(mu_avg_join_decode(mu_buf_span(&out), &read), MUSTER_ELIMIT);
    mu_buf_reset(&out);
    join = (struct mu_avg_join){.group_key = mu_span(gather, MU_AVG_KEY_MAX + 1)};
    assert_int_equal(mu_avg_join_encode(&join, &out), 0);
    assert_int_equal(mu_avg_join_decode(mu_buf_span(&out), &read), MUSTER_ELIMIT);
    mu_buf_fini(&out);
}

/* Any allocation that fails is told, and nothing is lost. */
static void test_no_memory(void **state)
{
    static const uint8_t values[1024];
    struct mu_avg_data data = {.code = MU_AVG_AVERAGED_PART,
                               .tensor = true,
                               .dtype = MU_DTYPE_F32,
                               .compression = MU_HM_QUANTILE_8BIT,
                               .elements = 256};

    (void)state;
    for (long nth = 0;; nth++) {
        struct mu_buf out;
        bool fired;
        int err;

        mu_buf_init(&out, 1 << 16);
        failheap_arm(nth);
        err = mu_avg_data_encode(&data, mu_span(values, sizeof(values)), &out);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        mu_buf_fini(&out);
        if (!fired) {
            break;
        }
    }
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(mu_avg_code_name(MU_AVG_NO_CODE), "NO_CODE");
    assert_string_equal(mu_avg_code_name(MU_AVG_CODE_LAST), "BAD_GROUP_KEY");
    assert_string_equal(mu_avg_code_name(MU_AVG_GROUP_DISBANDED), "GROUP_DISBANDED");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joins),      cmocka_unit_test(test_replies),
        cmocka_unit_test(test_data),       cmocka_unit_test(test_bad_data),
        cmocka_unit_test(test_bad_values), cmocka_unit_test(test_data_limits),
        cmocka_unit_test(test_bad_gather), cmocka_unit_test(test_bad_replies),
        cmocka_unit_test(test_limits),     cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
