/* Manifests, offers, and the hash tree with its signature. */
#include "unit.h"

#include <stdlib.h>
#include <string.h>

#include "core/prng.h"
#include "crypto/state_tree.h"
#include "failheap.h"
#include "hex.h"

#define CHUNK 1024u

/* Three tensors of 0, 4 * 300 and 2 * 1000 bytes: 3200 bytes, four chunks, the last of 128. */
static void fill_manifest(struct mu_state_manifest *m)
{
    static const uint64_t shape[] = {3, 100};
    static const uint64_t flat[] = {1000};

    mu_state_manifest_init(m);
    m->epoch = 7;
    m->step = 70000;
    m->chunk_bytes = CHUNK;
    assert_int_equal(mu_buf_append(&m->metadata, MU_SPAN_LIT("\x81\xa5"
                                                             "epoch\x07")),
                     0);
    assert_int_equal(
        mu_layout_add(&m->layout, MU_SPAN_LIT("empty"), MU_DTYPE_I64, (uint64_t[]){0, 5}, 2), 0);
    assert_int_equal(mu_layout_add(&m->layout, MU_SPAN_LIT("w"), MU_DTYPE_F32, shape, 2), 0);
    assert_int_equal(mu_layout_add(&m->layout, MU_SPAN_LIT("b"), MU_DTYPE_BF16, flat, 1), 0);
}

static void fill_bytes(uint8_t *bytes, size_t len)
{
    struct mu_prng prng = {4711};

    for (size_t i = 0; i < len; i++) {
        bytes[i] = (uint8_t)mu_prng_u64(&prng);
    }
}

static void make_identity(struct mu_identity *identity)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN];

    memset(seed, 9, sizeof(seed));
    assert_int_equal(mu_identity_from_seed(identity, seed), 0);
}

/* A whole, signed offer of the state above. */
static void make_offer(struct mu_buf *out, uint8_t id[MU_STATE_ID_LEN])
{
    uint8_t bytes[3200];
    struct mu_state_builder builder;
    struct mu_state_manifest m;
    struct mu_identity identity;
    struct mu_errmsg msg;
    uint8_t root[MU_STATE_HASH_LEN];

    fill_bytes(bytes, sizeof(bytes));
    fill_manifest(&m);
    make_identity(&identity);
    mu_state_builder_init(&builder, CHUNK);
    assert_int_equal(mu_state_builder_add(&builder, mu_span(bytes, sizeof(bytes))), 0);
    assert_int_equal(mu_state_builder_end(&builder, root), 0);
    mu_buf_init(out, SIZE_MAX / 2);
    assert_int_equal(
        mu_state_offer_make(&m, mu_buf_span(&builder.leaves), &identity, out, id, &msg), 0);
    assert_memory_equal(m.root, root, sizeof(root));
    mu_state_builder_fini(&builder);
    mu_state_manifest_fini(&m);
    mu_identity_fini(&identity);
}

static void test_state_manifest_has_the_bytes_that_the_header_says(void **state)
{
    struct mu_state_manifest m;
    struct mu_errmsg msg;
    struct mu_buf out;
    uint8_t expected[128];
    size_t len;

    (void)state;
    mu_state_manifest_init(&m);
    m.epoch = 1;
    m.step = 2;
    m.chunk_bytes = 4096;
    memset(m.root, 0xaa, sizeof(m.root));
    assert_int_equal(mu_buf_append(&m.metadata, MU_SPAN_LIT("\xc0")), 0);
    assert_int_equal(mu_layout_add(&m.layout, MU_SPAN_LIT("w"), MU_DTYPE_F16, (uint64_t[]){3}, 1),
                     0);
    mu_buf_init(&out, 4096);

    assert_int_equal(mu_state_manifest_encode(&m, &out, &msg), 0);

    len = hex_decode(expected, sizeof(expected),
                     "4d55534d 01 0100000000000000 0200000000000000 00100000"
                     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                     "01000000 c0 01000000 09 01 0300000000000000 01000000 77");
    assert_int_equal(out.len, len);
    assert_memory_equal(mu_buf_span(&out).data, expected, len);
    mu_buf_fini(&out);
    mu_state_manifest_fini(&m);
}

static void test_state_manifest_comes_back_as_it_was(void **state)
{
    struct mu_state_manifest m;
    struct mu_state_manifest back;
    struct mu_errmsg msg;
    struct mu_buf out;
    struct mu_buf again;

    (void)state;
    fill_manifest(&m);
    memset(m.root, 5, sizeof(m.root));
    mu_buf_init(&out, 4096);
    mu_buf_init(&again, 4096);
    assert_int_equal(mu_state_manifest_encode(&m, &out, &msg), 0);

    assert_int_equal(mu_state_manifest_decode(mu_buf_span(&out), &back, &msg), 0);

    assert_int_equal(back.epoch, 7);
    assert_int_equal(back.step, 70000);
    assert_int_equal(back.chunk_bytes, CHUNK);
    assert_int_equal(mu_state_chunk_count(&back), 4);
    assert_int_equal(mu_state_chunk_len(&back, 0), CHUNK);
    assert_int_equal(mu_state_chunk_len(&back, 3), 128);
    assert_int_equal(mu_state_chunk_offset(&back, 3), 3072);
    assert_int_equal(mu_layout_check(&m.layout, &back.layout, &msg), 0);
    assert_true(mu_span_eq(mu_buf_span(&m.metadata), mu_buf_span(&back.metadata)));
    assert_int_equal(mu_state_manifest_encode(&back, &again, &msg), 0);
    assert_true(mu_span_eq(mu_buf_span(&out), mu_buf_span(&again)));
    mu_state_manifest_fini(&back);
    mu_state_manifest_fini(&m);
    mu_buf_fini(&out);
    mu_buf_fini(&again);
}

static void test_state_manifest_that_is_cut_or_followed_by_more_is_refused(void **state)
{
    struct mu_state_manifest m;
    struct mu_state_manifest back;
    struct mu_errmsg msg;
    struct mu_buf out;

    (void)state;
    fill_manifest(&m);
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_state_manifest_encode(&m, &out, &msg), 0);

    for (size_t len = 0; len < out.len; len++) {
        assert_int_equal(
            mu_state_manifest_decode(mu_span(mu_buf_span(&out).data, len), &back, &msg),
            MUSTER_EPROTO);
    }
    assert_int_equal(mu_buf_append(&out, MU_SPAN_LIT("x")), 0);
    assert_int_equal(mu_state_manifest_decode(mu_buf_span(&out), &back, &msg), MUSTER_EPROTO);
    mu_buf_fini(&out);
    mu_state_manifest_fini(&m);
}

/* The encoded manifest with some bytes written over, and what becomes of it. */
static int decode_changed(size_t at, const void *bytes, size_t len)
{
    struct mu_state_manifest m;
    struct mu_state_manifest back;
    struct mu_errmsg msg;
    struct mu_buf out;
    int err;

    fill_manifest(&m);
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_state_manifest_encode(&m, &out, &msg), 0);
    assert_true(at + len <= out.len);
    memcpy(out.data + out.head + at, bytes, len);
    err = mu_state_manifest_decode(mu_buf_span(&out), &back, &msg);
    if (err == 0) {
        mu_state_manifest_fini(&back);
    }
    mu_buf_fini(&out);
    mu_state_manifest_fini(&m);
    return err;
}

#define AT_CHUNK    21
#define AT_METADATA (25 + 32)
#define AT_TENSORS  (AT_METADATA + 4 + 8)
#define AT_FIRST    (AT_TENSORS + 4) /* dtype, rank, 2 dimensions, length, "empty" */
#define AT_SECOND   (AT_FIRST + 2 + 16 + 4 + 5)

static void test_state_manifest_refuses_lengths_that_cannot_be(void **state)
{
    (void)state;
    assert_int_equal(decode_changed(0, "MUSN", 4), MUSTER_EPROTO);
    assert_int_equal(decode_changed(4, "\2", 1), MUSTER_EVERSION);
    assert_int_equal(decode_changed(AT_CHUNK, "\0\0\0\0", 4), MUSTER_EPROTO);
    assert_int_equal(decode_changed(AT_CHUNK, "\1\4\0\0", 4), MUSTER_EPROTO);
    assert_int_equal(decode_changed(AT_CHUNK, "\0\2\0\0", 4), MUSTER_EPROTO);
    assert_int_equal(decode_changed(AT_CHUNK, "\0\0\200\0", 4), MUSTER_EPROTO);
    assert_int_equal(decode_changed(AT_METADATA, "\377\377\377\377", 4), MUSTER_EPROTO);
    assert_int_equal(decode_changed(AT_TENSORS, "\377\377\377\377", 4), MUSTER_ELIMIT);
    assert_int_equal(decode_changed(AT_TENSORS, "\4\0\0\0", 4), MUSTER_EPROTO);
    assert_int_equal(decode_changed(AT_TENSORS, "\2\0\0\0", 4), MUSTER_EPROTO);
    assert_int_equal(decode_changed(AT_FIRST, "\0", 1), MUSTER_EPROTO);
    assert_int_equal(decode_changed(AT_FIRST, "\25", 1), MUSTER_EPROTO);
    assert_int_equal(decode_changed(AT_FIRST + 1, "\101", 1), MUSTER_EPROTO);
    assert_int_equal(decode_changed(AT_FIRST + 18, "\377\377\377\377", 4), MUSTER_EPROTO);
    /* More elements than can be counted, none, and more chunks than there may be. */
    assert_int_equal(decode_changed(AT_SECOND + 2, "\0\0\0\0\0\0\0\200", 8), MUSTER_EPROTO);
    assert_int_equal(decode_changed(AT_SECOND + 2, "\0\0\0\0\0\0\0\0", 8), 0);
    assert_int_equal(decode_changed(AT_SECOND + 2, "\0\0\0\0\0\0\1\0", 8), MUSTER_ELIMIT);
}

static void test_state_manifest_has_each_name_once(void **state)
{
    struct mu_state_manifest m;
    struct mu_errmsg msg;
    struct mu_buf out;

    (void)state;
    /* "w" becomes "b", which the third one is called. */
    assert_int_equal(decode_changed(AT_SECOND + 2 + 16 + 4, "b", 1), MUSTER_EPROTO);

    fill_manifest(&m);
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_layout_add(&m.layout, MU_SPAN_LIT("w"), MU_DTYPE_U8, NULL, 0), 0);
    assert_int_equal(mu_state_manifest_encode(&m, &out, &msg), MUSTER_EEXIST);
    assert_non_null(strstr(msg.text, "\"w\""));
    assert_int_equal(out.len, 0);
    mu_state_manifest_fini(&m);
}

static void test_state_without_bytes_has_no_root(void **state)
{
    struct mu_state_manifest m;
    struct mu_state_manifest back;
    struct mu_errmsg msg;
    struct mu_buf out;

    (void)state;
    mu_state_manifest_init(&m);
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_state_manifest_encode(&m, &out, &msg), 0);
    assert_int_equal(mu_state_manifest_decode(mu_buf_span(&out), &back, &msg), 0);
    assert_int_equal(mu_state_chunk_count(&back), 0);
    mu_state_manifest_fini(&back);
    out.data[out.head + 30] = 1;
    assert_int_equal(mu_state_manifest_decode(mu_buf_span(&out), &back, &msg), MUSTER_EPROTO);
    mu_buf_fini(&out);
    mu_state_manifest_fini(&m);
}

/* The tree as it is described: level by level, pairs joined, the odd one carried up. */
static void root_by_levels(uint8_t *nodes, size_t count, uint8_t ret[MU_STATE_HASH_LEN])
{
    while (count > 1) {
        size_t up = 0;

        for (size_t i = 0; i < count; i += 2) {
            uint8_t both[65] = {1};

            if (i + 1 == count) {
                memmove(nodes + up * 32, nodes + i * 32, 32);
            } else {
                memcpy(both + 1, nodes + i * 32, 64);
                mu_sha256(nodes + up * 32, mu_span(both, sizeof(both)));
            }
            up++;
        }
        count = up;
    }
    memcpy(ret, nodes, MU_STATE_HASH_LEN);
}

static void test_state_root_is_that_of_the_tree_joined_level_by_level(void **state)
{
    uint8_t leaves[40 * 32];
    uint8_t scratch[sizeof(leaves)];
    uint8_t root[MU_STATE_HASH_LEN];
    uint8_t expected[MU_STATE_HASH_LEN];

    (void)state;
    fill_bytes(leaves, sizeof(leaves));
    for (size_t count = 1; count <= 40; count++) {
        memcpy(scratch, leaves, sizeof(leaves));
        root_by_levels(scratch, count, expected);
        mu_state_root_of(root, mu_span(leaves, count * 32));
        assert_memory_equal(root, expected, sizeof(root));
    }
    memset(expected, 0, sizeof(expected));
    mu_state_root_of(root, (struct mu_span){0});
    assert_memory_equal(root, expected, sizeof(root));
}

static void test_state_leaf_is_the_hash_of_a_zero_and_the_chunk(void **state)
{
    uint8_t tagged[11] = "\0chunkbytes";
    struct mu_span parts[] = {MU_SPAN_LIT("chunk"), MU_SPAN_LIT("bytes")};
    uint8_t expected[MU_STATE_HASH_LEN];
    uint8_t leaf[MU_STATE_HASH_LEN];

    (void)state;
    mu_sha256(expected, mu_span(tagged, sizeof(tagged)));
    mu_state_leaf(leaf, parts, 2);
    assert_memory_equal(leaf, expected, sizeof(leaf));
}

static void test_state_leaves_of_two_chunks_are_those_of_each(void **state)
{
    static const size_t lens[] = {0, 1, 62, 63, 64, 126, 127, 128, 1000, 4096};
    uint8_t bytes[2][4096];
    uint8_t expected[2][MU_STATE_HASH_LEN];
    uint8_t leaves[2][MU_STATE_HASH_LEN];

    (void)state;
    fill_bytes(bytes[0], sizeof(bytes));
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        for (size_t j = 0; j < sizeof(lens) / sizeof(lens[0]); j++) {
            struct mu_span a = mu_span(bytes[0], lens[i]);
            struct mu_span b = mu_span(bytes[1], lens[j]);

            mu_state_leaf(expected[0], &a, 1);
            mu_state_leaf(expected[1], &b, 1);
            mu_state_leaf_two(leaves[0], a, leaves[1], b);
            assert_memory_equal(leaves, expected, sizeof(leaves));
        }
    }
}

static void test_state_builder_does_not_care_how_the_bytes_are_cut(void **state)
{
    uint8_t bytes[3200] = {0};
    uint8_t roots[3][MU_STATE_HASH_LEN];
    struct mu_state_builder b[3];
    struct mu_prng prng = {1};
    uint8_t leaf[MU_STATE_HASH_LEN];
    struct mu_span last = mu_span(bytes + 3072, 128);

    (void)state;
    fill_bytes(bytes, sizeof(bytes));
    for (int i = 0; i < 3; i++) {
        size_t at = 0;

        mu_state_builder_init(&b[i], CHUNK);
        while (at < sizeof(bytes)) {
            size_t n = i == 0 ? sizeof(bytes) : i == 1 ? 1 : 1 + mu_prng_below(&prng, 1500);

            n = n < sizeof(bytes) - at ? n : sizeof(bytes) - at;
            assert_int_equal(mu_state_builder_add(&b[i], mu_span(bytes + at, n)), 0);
            at += n;
        }
        assert_int_equal(mu_state_builder_end(&b[i], roots[i]), 0);
        assert_int_equal(b[i].leaves.len, 4 * MU_STATE_HASH_LEN);
        assert_memory_equal(roots[i], roots[0], MU_STATE_HASH_LEN);
        assert_true(mu_span_eq(mu_buf_span(&b[i].leaves), mu_buf_span(&b[0].leaves)));
    }
    mu_state_leaf(leaf, &last, 1);
    assert_memory_equal(mu_buf_span(&b[0].leaves).data + 96, leaf, sizeof(leaf));
    for (int i = 0; i < 3; i++) {
        mu_state_builder_fini(&b[i]);
    }
}

static void test_state_offer_does_not_care_how_it_is_cut(void **state)
{
    uint8_t id[MU_STATE_ID_LEN];
    uint8_t got[MU_STATE_ID_LEN];
    struct mu_prng prng = {2};
    struct mu_errmsg msg;
    struct mu_buf bytes;

    (void)state;
    make_offer(&bytes, id);
    for (int i = 0; i < 50; i++) {
        struct mu_span rest = mu_buf_span(&bytes);
        struct mu_peer_id signer;
        struct mu_state_offer o;

        mu_state_offer_init(&o);
        while (rest.len != 0) {
            size_t n = i == 0 ? rest.len : i == 1 ? 1 : 1 + mu_prng_below(&prng, 60);
            int err;

            n = n < rest.len ? n : rest.len;
            err = mu_state_offer_recv(&o, mu_span(rest.data, n), &msg);
            rest = mu_span_skip(rest, n);
            assert_int_equal(err, rest.len == 0 ? 0 : MUSTER_EAGAIN);
        }
        assert_true(o.whole);
        assert_true(mu_span_eq(mu_buf_span(&o.bytes), mu_buf_span(&bytes)));
        assert_int_equal(mu_state_offer_verify(&o, id, got, &signer, &msg), 0);
        assert_memory_equal(got, id, sizeof(id));
        assert_int_equal(mu_state_offer_recv(&o, MU_SPAN_LIT("x"), &msg), MUSTER_EPROTO);
        mu_state_offer_fini(&o);
    }
    mu_buf_fini(&bytes);
}

static int recv_changed(size_t at, const void *change, size_t len, struct mu_errmsg *msg)
{
    uint8_t id[MU_STATE_ID_LEN];
    struct mu_state_offer o;
    struct mu_buf bytes;
    struct mu_peer_id signer;
    int err;

    make_offer(&bytes, id);
    memcpy(bytes.data + bytes.head + at, change, len);
    mu_state_offer_init(&o);
    err = mu_state_offer_recv(&o, mu_buf_span(&bytes), msg);
    if (err == 0) {
        err = mu_state_offer_verify(&o, id, id, &signer, msg);
    } else {
        assert_false(o.whole);
    }
    if (err != 0 && !o.whole && err != MUSTER_EAGAIN) {
        struct mu_errmsg again;

        assert_int_equal(mu_state_offer_recv(&o, MU_SPAN_LIT("x"), &again), err);
    }
    mu_state_offer_fini(&o);
    mu_buf_fini(&bytes);
    return err;
}

static void test_state_offer_refuses_lengths_that_cannot_be(void **state)
{
    struct mu_errmsg msg;

    (void)state;
    assert_int_equal(recv_changed(0, "x", 1, &msg), MUSTER_EPROTO);
    assert_int_equal(recv_changed(4, "\2", 1, &msg), MUSTER_EVERSION);
    assert_int_equal(recv_changed(5, "\377\377\377\377", 4, &msg), MUSTER_ELIMIT);
    assert_int_equal(recv_changed(9, "\377\377\377\377", 4, &msg), MUSTER_ELIMIT);
    assert_int_equal(recv_changed(9, "\5\0\0\0", 4, &msg), MUSTER_EAGAIN);
    assert_int_equal(recv_changed(9, "\3\0\0\0", 4, &msg), MUSTER_EPROTO);
    assert_int_equal(recv_changed(13, "\377\377", 2, &msg), MUSTER_ELIMIT);
    assert_int_equal(recv_changed(15, "\377\377", 2, &msg), MUSTER_ELIMIT);
}

static void test_state_offer_takes_memory_for_what_came_only(void **state)
{
    uint8_t head[MU_STATE_OFFER_HEAD_LEN] = "MUSO\1";
    struct mu_state_offer o;
    struct mu_errmsg msg;

    (void)state;
    mu_put_u32(head + 5, (uint32_t)MU_STATE_MANIFEST_MAX);
    mu_put_u32(head + 9, (uint32_t)MU_STATE_CHUNKS_MAX);
    mu_state_offer_init(&o);
    assert_int_equal(mu_state_offer_recv(&o, mu_span(head, sizeof(head)), &msg), MUSTER_EAGAIN);
    assert_true(o.bytes.cap < 4096);
    mu_state_offer_fini(&o);
}

/* Whatever byte of it is changed, somebody notices. */
static void test_state_offer_with_any_byte_changed_is_not_believed(void **state)
{
    uint8_t id[MU_STATE_ID_LEN];
    struct mu_errmsg msg;
    struct mu_buf bytes;

    (void)state;
    make_offer(&bytes, id);
    for (size_t i = 0; i < bytes.len; i++) {
        uint8_t other = (uint8_t)(bytes.data[bytes.head + i] ^ 0x40);

        assert_int_not_equal(recv_changed(i, &other, 1, &msg), 0);
    }
    mu_buf_fini(&bytes);
}

static void test_state_offer_says_what_is_wrong_with_it(void **state)
{
    uint8_t id[MU_STATE_ID_LEN];
    uint8_t other[MU_STATE_ID_LEN] = {0};
    struct mu_peer_id signer;
    struct mu_identity identity;
    struct mu_state_offer o;
    struct mu_errmsg msg;
    struct mu_buf bytes;

    (void)state;
    make_offer(&bytes, id);
    mu_state_offer_init(&o);
    assert_int_equal(mu_state_offer_recv(&o, mu_buf_span(&bytes), &msg), 0);
    assert_int_equal(mu_state_offer_verify(&o, NULL, id, &signer, &msg), 0);
    make_identity(&identity);
    assert_int_equal(signer.len, identity.id.len);
    assert_memory_equal(signer.bytes, identity.id.bytes, signer.len);

    assert_int_equal(mu_state_offer_verify(&o, other, id, &signer, &msg), MUSTER_ENOENT);
    assert_non_null(strstr(msg.text, "epoch 7"));
    o.bytes.data[o.bytes.head + o.bytes.len - 1] ^= 1;
    assert_int_equal(mu_state_offer_verify(&o, NULL, id, &signer, &msg), MUSTER_ESIGNATURE);
    o.bytes.data[o.bytes.head + o.bytes.len - 1] ^= 1;
    ((uint8_t *)(uintptr_t)o.leaves.data)[5] ^= 1;
    assert_int_equal(mu_state_offer_verify(&o, NULL, id, &signer, &msg), MUSTER_ECORRUPT);
    mu_identity_fini(&identity);
    mu_state_offer_fini(&o);
    mu_buf_fini(&bytes);
}

static void test_state_offer_survives_every_failing_allocation(void **state)
{
    uint8_t id[MU_STATE_ID_LEN];
    struct mu_errmsg msg;
    struct mu_buf bytes;
    bool fired = true;

    (void)state;
    make_offer(&bytes, id);
    for (long nth = 0; fired; nth++) {
        struct mu_span half = mu_span(mu_buf_span(&bytes).data, 100);
        struct mu_span rest = mu_span_skip(mu_buf_span(&bytes), 100);
        struct mu_state_offer o;
        int err;

        mu_state_offer_init(&o);
        failheap_arm(nth);
        err = mu_state_offer_recv(&o, half, &msg);
        if (err == MUSTER_EAGAIN) {
            err = mu_state_offer_recv(&o, rest, &msg);
        }
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        if (fired) {
            /* What was not taken is given again. */
            err = mu_state_offer_recv(&o, o.bytes.len == 0 ? half : rest, &msg);
            err = err == MUSTER_EAGAIN ? mu_state_offer_recv(&o, rest, &msg) : err;
            assert_int_equal(err, 0);
        }
        assert_true(o.whole);
        mu_state_offer_fini(&o);
    }
    mu_buf_fini(&bytes);
}

static void test_state_manifest_survives_every_failing_allocation(void **state)
{
    uint8_t id[MU_STATE_ID_LEN];
    uint8_t leaves[4 * MU_STATE_HASH_LEN] = {1};
    struct mu_state_manifest m;
    struct mu_identity identity;
    struct mu_errmsg msg;
    struct mu_buf out;
    bool fired = true;

    (void)state;
    fill_manifest(&m);
    make_identity(&identity);
    mu_buf_init(&out, 65536);
    for (long nth = 0; fired; nth++) {
        int err;

        failheap_arm(nth);
        err = mu_state_offer_make(&m, mu_span(leaves, sizeof(leaves)), &identity, &out, id, &msg);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        if (fired) {
            assert_int_equal(out.len, 0);
        }
    }
    assert_int_equal(mu_state_offer_make(&m, mu_span(leaves, 96), &identity, &out, id, &msg),
                     MUSTER_EINVAL);
    mu_buf_fini(&out);
    mu_identity_fini(&identity);
    mu_state_manifest_fini(&m);
}

static void test_state_manifest_checks_its_limits(void **state)
{
    static const uint32_t chunks[] = {MU_STATE_CHUNK_BYTES_MIN / 2, MU_STATE_CHUNK_BYTES_MIN,
                                      MU_STATE_CHUNK_BYTES_MAX, MU_STATE_CHUNK_BYTES_MAX * 2};
    struct mu_state_manifest m;
    struct mu_errmsg msg;
    size_t was;

    (void)state;
    fill_manifest(&m);
    for (size_t i = 0; i < 4; i++) {
        m.chunk_bytes = chunks[i];
        assert_int_equal(mu_state_manifest_check(&m, &msg), i == 1 || i == 2 ? 0 : MUSTER_EINVAL);
    }
    m.chunk_bytes = CHUNK;
    /* Lengths only: nothing behind them is looked at. */
    was = m.metadata.len;
    m.metadata.len = MU_STATE_METADATA_MAX;
    assert_int_equal(mu_state_manifest_check(&m, &msg), 0);
    m.metadata.len = MU_STATE_METADATA_MAX + 1;
    assert_int_equal(mu_state_manifest_check(&m, &msg), MUSTER_ELIMIT);
    m.metadata.len = was;
    was = m.layout.count;
    m.layout.count = MU_STATE_TENSORS_MAX + 1;
    assert_int_equal(mu_state_manifest_check(&m, &msg), MUSTER_ELIMIT);
    assert_string_equal(msg.text, "1048577 tensors are too many");
    m.layout.count = was;
    was = m.layout.tensors[1].name_len;
    m.layout.tensors[1].name_len = MU_STATE_NAME_MAX;
    assert_int_equal(mu_state_manifest_check(&m, &msg), 0);
    m.layout.tensors[1].name_len = MU_STATE_NAME_MAX + 1;
    assert_int_equal(mu_state_manifest_check(&m, &msg), MUSTER_ELIMIT);
    m.layout.tensors[1].name_len = (uint32_t)was;
    mu_state_manifest_fini(&m);
}

static void test_state_offer_has_a_key_that_is_so_long(void **state)
{
    struct mu_errmsg msg;
    uint8_t len[2];

    (void)state;
    mu_put_u16(len, MU_STATE_KEY_LEN_MAX);
    assert_int_equal(recv_changed(13, len, 2, &msg), MUSTER_EAGAIN); /* The rest is missing. */
    mu_put_u16(len, MU_STATE_KEY_LEN_MAX + 1);
    assert_int_equal(recv_changed(13, len, 2, &msg), MUSTER_ELIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_manifest_has_the_bytes_that_the_header_says),
        cmocka_unit_test(test_state_manifest_comes_back_as_it_was),
        cmocka_unit_test(test_state_manifest_that_is_cut_or_followed_by_more_is_refused),
        cmocka_unit_test(test_state_manifest_refuses_lengths_that_cannot_be),
        cmocka_unit_test(test_state_manifest_has_each_name_once),
        cmocka_unit_test(test_state_without_bytes_has_no_root),
        cmocka_unit_test(test_state_root_is_that_of_the_tree_joined_level_by_level),
        cmocka_unit_test(test_state_leaf_is_the_hash_of_a_zero_and_the_chunk),
        cmocka_unit_test(test_state_leaves_of_two_chunks_are_those_of_each),
        cmocka_unit_test(test_state_builder_does_not_care_how_the_bytes_are_cut),
        cmocka_unit_test(test_state_offer_does_not_care_how_it_is_cut),
        cmocka_unit_test(test_state_offer_refuses_lengths_that_cannot_be),
        cmocka_unit_test(test_state_offer_takes_memory_for_what_came_only),
        cmocka_unit_test(test_state_offer_with_any_byte_changed_is_not_believed),
        cmocka_unit_test(test_state_offer_says_what_is_wrong_with_it),
        cmocka_unit_test(test_state_offer_survives_every_failing_allocation),
        cmocka_unit_test(test_state_manifest_survives_every_failing_allocation),
        cmocka_unit_test(test_state_manifest_checks_its_limits),
        cmocka_unit_test(test_state_offer_has_a_key_that_is_so_long),
    };

    return cmocka_run_group_tests_name("state_manifest", tests, NULL, NULL);
}
