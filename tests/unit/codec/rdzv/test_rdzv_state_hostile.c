/* States that nobody's agent wrote: garbage, bombs, what is too long. Each is refused in words, in
 * little time and memory. */
#include "unit.h"

#include <stdlib.h>

#include <muster/error.h>

#include "codec/rdzv/state.h"
#include "core/alloc.h"
#include "core/prng.h"
#include "rdzv_vectors.h"

#define TORCH "torch.distributed.elastic.rendezvous.dynamic_rendezvous"

static size_t memory_now;

static bool count_memory(size_t size)
{
    memory_now += size;
    return true;
}

static int try_decode(struct mu_span in, struct mu_errmsg *msg)
{
    enum mu_rdzv_dialect dialect = MU_RDZV_DIALECT_UNKNOWN;
    struct mu_rdzv_state s;
    int err;

    mu_rdzv_state_init(&s);
    s.round = 42;
    *msg = (struct mu_errmsg){{0}};
    memory_now = 0;
    mu_alloc_hook = count_memory;
    err = mu_rdzv_state_decode(in, &s, &dialect, msg);
    mu_alloc_hook = NULL;
    if (err != 0) {
        assert_int_equal(s.round, 42);
        assert_int_equal(s.member_count, 0);
        assert_int_equal(dialect, MU_RDZV_DIALECT_UNKNOWN);
        assert_true(msg->text[0] != '\0');
    }
    mu_rdzv_state_fini(&s);
    return err;
}

static void expect_refused(struct mu_span in, int code, const char *words)
{
    struct mu_errmsg msg;

    assert_int_equal(try_decode(in, &msg), code);
    if (strstr(msg.text, words) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", words, msg.text);
    }
}

static void put(struct mu_buf *b, const void *data, size_t len)
{
    assert_int_equal(mu_buf_append(b, mu_span(data, len)), 0);
}

#define PUT(b, literal) put(b, literal, sizeof(literal) - 1)

/*
 * A state by hand: all up to the participants, which the caller writes as a dict. The class of
 * nodes is in an attribute that nobody knows, so that it can be referred to as number 0.
 */
static void begin_state(struct mu_buf *b, size_t max)
{
    mu_buf_init(b, max);
    PUT(b, "\x80\x04\x8c\x37" TORCH "\x8c\x10_RendezvousState\x93)\x81}("
           "\x8c\x05roundK\x00\x8c\x08"
           "complete\x89\x8c\x08"
           "deadlineN\x8c\x06"
           "closed\x89"
           "\x8c\x06"
           "class0\x8c\x37" TORCH "\x8c\x09_NodeDesc\x93\x94");
}

static void put_node(struct mu_buf *b, const char *addr, uint32_t pid)
{
    uint8_t number[4];
    uint8_t len[4];

    mu_put_u32(number, pid);
    mu_put_u32(len, (uint32_t)strlen(addr));
    PUT(b, "h\x00)\x81}(\x8c\x03pidJ");
    put(b, number, sizeof(number));
    PUT(b, "\x8c\x08local_idK\x00\x8c\x04"
           "addrX");
    put(b, len, sizeof(len));
    put(b, addr, strlen(addr));
    PUT(b, "ub");
}

static void end_state(struct mu_buf *b)
{
    PUT(b, "\x8c\x09wait_list\x8f\x8c\x0flast_heartbeats}ub.");
}

static void test_rdzv_state_of_a_hundred_megabytes_is_refused_unread(void **unused)
{
    size_t len = (size_t)100 << 20;
    uint8_t *zeroes = calloc(len, 1); /* never touched, so it costs nothing */

    (void)unused;
    expect_refused(mu_span(zeroes, len), MUSTER_ELIMIT, "a state of 104857600 bytes");
    assert_int_equal(memory_now, 0);
    free(zeroes);
}

/* A state with one participant of that address. */
static void put_address(struct mu_buf *b, const char *addr)
{
    begin_state(b, (size_t)2 << 20);
    PUT(b, "\x8c\x0cparticipants}");
    put_node(b, addr, 1);
    PUT(b, "K\x00s");
    end_state(b);
}

static void test_rdzv_state_with_a_name_of_a_megabyte_is_refused(void **unused)
{
    size_t len = (size_t)1 << 20;
    char *name = malloc(len + 1);
    struct mu_buf b;

    (void)unused;
    memset(name, 'n', len);
    name[len] = '\0';
    put_address(&b, name);
    expect_refused(mu_buf_span(&b), MUSTER_ELIMIT, "address of 1048576 bytes");
    assert_true(memory_now < 64 << 10);
    mu_buf_fini(&b);
    free(name);
}

static void test_rdzv_state_has_only_texts_for_addresses(void **unused)
{
    static const struct {
        const char *addr;
        bool good;
    } addrs[] = {
        {"plain", true},
        {"\xc2\x80 \xdf\xbf \xe0\xa0\x80 \xed\x9f\xbf \xee\x80\x80 \xf0\x90\x80\x80 "
         "\xf4\x8f\xbf\xbf",
         true},
        {"\x80", false},
        {"\xc1\xbf", false},
        {"\xc3", false},
        {"\xc3"
         "A",
         false},
        {"\xe0\x9f\xbf", false},
        {"\xed\xa0\x80", false},
        {"\xe4\xb8", false},
        {"\xf0\x8f\xbf\xbf", false},
        {"\xf4\x90\x80\x80", false},
        {"\xf5\x80\x80\x80", false},
        {"a\xff", false},
    };
    struct mu_errmsg msg;
    struct mu_buf b;

    (void)unused;
    for (size_t i = 0; i < sizeof(addrs) / sizeof(addrs[0]); i++) {
        put_address(&b, addrs[i].addr);
        assert_int_equal(try_decode(mu_buf_span(&b), &msg), addrs[i].good ? 0 : MUSTER_ECORRUPT);
        assert_true(addrs[i].good || strcmp(msg.text, "a node's address is not a text") == 0);
        mu_buf_fini(&b);
    }
    put_address(&b, "zero");
    *(uint8_t *)memmem(b.data, b.len, "zero", 4) = '\0';
    expect_refused(mu_buf_span(&b), MUSTER_ECORRUPT, "a node's address is not a text");
    mu_buf_fini(&b);
}

static void test_rdzv_state_that_is_garbage_is_refused(void **unused)
{
    struct mu_errmsg msg;
    struct mu_prng rng;
    uint8_t bytes[512];

    (void)unused;
    mu_prng_seed(&rng, 2);
    for (int i = 0; i < 3000; i++) {
        size_t len = mu_prng_below(&rng, sizeof(bytes));

        for (size_t k = 0; k < len; k++) {
            bytes[k] = (uint8_t)mu_prng_below(&rng, 256);
        }
        if (i % 2 == 0 && len >= 2) {
            memcpy(bytes, "\x80\x04", 2);
        }
        assert_int_equal(try_decode(mu_span(bytes, len), &msg), MUSTER_ECORRUPT);
        assert_true(memory_now < 64 << 10);
    }
}

static void test_rdzv_state_cut_anywhere_is_refused(void **unused)
{
    struct mu_errmsg msg;
    struct mu_buf b;

    (void)unused;
    mu_buf_init(&b, 4096);
    for (size_t i = 0; rdzv_vector(RDZV_VECTORS_2_11, NULL, i, &b); i++) {
        for (size_t len = 0; len < b.len; len++) {
            uint8_t *copy = malloc(len + 1);

            memcpy(copy, mu_buf_span(&b).data, len);
            assert_int_equal(try_decode(mu_span(copy, len), &msg), MUSTER_ECORRUPT);
            free(copy);
        }
    }
    mu_buf_fini(&b);
}

static void test_rdzv_state_with_changed_bytes_is_refused_or_read(void **unused)
{
    struct mu_errmsg msg;
    struct mu_prng rng;
    struct mu_buf b;
    unsigned read = 0;

    (void)unused;
    mu_buf_init(&b, 4096);
    mu_prng_seed(&rng, 4);
    for (size_t i = 0; rdzv_vector(RDZV_VECTORS_2_11, NULL, i, &b); i++) {
        for (int k = 0; k < 3000; k++) {
            size_t at = mu_prng_below(&rng, b.len);
            uint8_t was = b.data[at];
            int err;

            b.data[at] = (uint8_t)mu_prng_below(&rng, 256);
            err = try_decode(mu_buf_span(&b), &msg);
            assert_true(err == 0 || err == MUSTER_ECORRUPT);
            read += err == 0 ? 1 : 0;
            b.data[at] = was;
        }
    }
    assert_true(read > 100);
    mu_buf_fini(&b);
}

/* Sixty thousand nodes share one dict of sixty thousand attributes: to look for an address in it
 * for each of them would take an hour. This meets NODE_ATTRIBUTES_MAX of
 * codec/rdzv/state_decode.c. */
static void test_rdzv_state_with_a_shared_giant_of_attributes_is_refused(void **unused)
{
    struct mu_buf b;

    (void)unused;
    begin_state(&b, (size_t)2 << 20);
    PUT(&b, "\x8c\x06"
            "giant1}\x94(");
    for (int i = 0; i < 60000; i++) {
        PUT(&b, "NN");
    }
    PUT(&b, "\x8c\x04"
            "addr\x8c\x01x\x8c\x03pidK\x01\x8c\x08local_idK\x00u\x8c\x0cparticipants}(");
    for (int i = 0; i < 60000; i++) {
        PUT(&b, "h\x00)\x81h\x01"
                "bK\x00");
    }
    PUT(&b, "u");
    end_state(&b);
    expect_refused(mu_buf_span(&b), MUSTER_ECORRUPT, "too many attributes");
    mu_buf_fini(&b);
}

static void test_rdzv_state_has_a_limit_of_members(void **unused)
{
    struct mu_errmsg msg;
    struct mu_buf b;

    (void)unused;
    for (uint32_t count = MU_RDZV_MEMBERS_MAX; count <= MU_RDZV_MEMBERS_MAX + 1; count++) {
        begin_state(&b, (size_t)8 << 20);
        PUT(&b, "\x8c\x0cparticipants}(");
        for (uint32_t i = 0; i < count; i++) {
            put_node(&b, "a", i * 40503 % 131071); /* by a stride, so that none comes in order */
            PUT(&b, "K\x00");
        }
        PUT(&b, "u");
        end_state(&b);
        if (count == MU_RDZV_MEMBERS_MAX) {
            assert_int_equal(try_decode(mu_buf_span(&b), &msg), 0);
        } else {
            expect_refused(mu_buf_span(&b), MUSTER_ELIMIT, "more than 65536 nodes");
        }
        mu_buf_fini(&b);
    }
}

static void test_rdzv_state_without_end_is_refused_at_the_ceiling(void **unused)
{
    struct mu_buf b;

    (void)unused;
    begin_state(&b, (size_t)16 << 20);
    for (size_t i = 0; i < (size_t)8 << 20; i++) {
        PUT(&b, "}");
    }
    expect_refused(mu_buf_span(&b), MUSTER_ELIMIT, "bytes of memory");
    /* All that was ever asked for, growth included. */
    assert_true(memory_now < (size_t)256 << 20);
    mu_buf_fini(&b);
}

/* The same node as a key a million times, in one dict that is all the lists that are dicts. */
static void test_rdzv_state_meets_a_node_once(void **unused)
{
    struct mu_errmsg msg;
    struct mu_buf b;

    (void)unused;
    begin_state(&b, (size_t)16 << 20);
    PUT(&b, "\x8c\x05node1");
    put_node(&b, "a", 1);
    PUT(&b, "\x94\x8c\x0cparticipants}(");
    for (int i = 0; i < 1000000; i++) {
        PUT(&b, "h\x01K\x07");
    }
    PUT(&b, "u");
    end_state(&b);
    assert_int_equal(try_decode(mu_buf_span(&b), &msg), 0);
    mu_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_state_of_a_hundred_megabytes_is_refused_unread),
        cmocka_unit_test(test_rdzv_state_with_a_name_of_a_megabyte_is_refused),
        cmocka_unit_test(test_rdzv_state_has_only_texts_for_addresses),
        cmocka_unit_test(test_rdzv_state_that_is_garbage_is_refused),
        cmocka_unit_test(test_rdzv_state_cut_anywhere_is_refused),
        cmocka_unit_test(test_rdzv_state_with_changed_bytes_is_refused_or_read),
        cmocka_unit_test(test_rdzv_state_with_a_shared_giant_of_attributes_is_refused),
        cmocka_unit_test(test_rdzv_state_has_a_limit_of_members),
        cmocka_unit_test(test_rdzv_state_without_end_is_refused_at_the_ceiling),
        cmocka_unit_test(test_rdzv_state_meets_a_node_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
