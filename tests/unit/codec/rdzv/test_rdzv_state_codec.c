/*
 * States as PyTorch 1.13 and 2.11 wrote them: what is in them, and the same bytes again. What many
 * other states look like is compared with Python itself in tests/interop/rdzv_state.py.
 */
#include "unit.h"

#include <stdlib.h>

#include <muster/error.h>

#include "codec/rdzv/state.h"
#include "failheap.h"
#include "rdzv_vectors.h"

#define START_NS (UINT64_C(1794735015) * MU_NS_PER_S) /* 2026-11-15T09:30:15Z */

struct fixture {
    struct mu_buf pickle;
    struct mu_buf again;
    struct mu_rdzv_state s;
    enum mu_rdzv_dialect dialect;
    struct mu_errmsg msg;
};

static void set_up(struct fixture *f)
{
    *f = (struct fixture){0};
    mu_buf_init(&f->pickle, MU_RDZV_STATE_BYTES_MAX);
    mu_buf_init(&f->again, MU_RDZV_STATE_BYTES_MAX);
    mu_rdzv_state_init(&f->s);
}

static void tear_down(struct fixture *f)
{
    mu_buf_fini(&f->pickle);
    mu_buf_fini(&f->again);
    mu_rdzv_state_fini(&f->s);
}

static void decode(struct fixture *f)
{
    if (mu_rdzv_state_decode(mu_buf_span(&f->pickle), &f->s, &f->dialect, &f->msg) != 0) {
        fail_msg("%s", f->msg.text);
    }
}

static void load(struct fixture *f, const char *file, const char *name)
{
    set_up(f);
    assert_true(rdzv_vector(file, name, 0, &f->pickle));
    decode(f);
}

static void check_member(const struct mu_rdzv_member *m, const char *addr, int64_t pid,
                         int64_t local_id, uint64_t us)
{
    assert_string_equal(m->node.addr, addr);
    assert_int_equal(m->node.pid, pid);
    assert_int_equal(m->node.local_id, local_id);
    assert_true(m->has_heartbeat);
    assert_int_equal(m->heartbeat.ns, START_NS + us * 1000);
}

static void test_rdzv_state_reads_what_pytorch_2_11_wrote(void **unused)
{
    struct fixture f;
    const struct mu_rdzv_member *m;

    (void)unused;
    load(&f, RDZV_VECTORS_2_11, "complete, one redundant");
    m = f.s.members;

    assert_int_equal(f.dialect, MU_RDZV_DIALECT_2);
    assert_int_equal(f.s.round, 300);
    assert_true(f.s.complete && !f.s.closed && !f.s.has_deadline);
    assert_int_equal(f.s.member_count, 4);
    check_member(&m[0], "host-a", 101, 0, 123456);
    check_member(&m[1], "host-b", 202, 1, 0);
    check_member(&m[2], "host-c", 303, 0, 1);
    check_member(&m[3], "host-d", 70000, 2, 2);
    assert_true(m[0].participant && m[0].rank == 0 && !m[0].waiting && !m[0].spare);
    assert_true(m[1].participant && m[1].rank == 1 && !m[1].waiting && !m[1].spare);
    assert_true(!m[2].participant && m[2].waiting && !m[2].spare);
    assert_true(!m[3].participant && !m[3].waiting && m[3].spare);
    tear_down(&f);

    load(&f, RDZV_VECTORS_2_11, "two participants with deadline");
    assert_true(f.s.has_deadline && !f.s.complete);
    assert_int_equal(f.s.deadline.ns, START_NS + 999999 * 1000);
    tear_down(&f);

    load(&f, RDZV_VECTORS_2_11, "closed");
    assert_true(f.s.closed);
    tear_down(&f);
}

static void test_rdzv_state_reads_what_pytorch_1_13_wrote(void **unused)
{
    struct fixture f;
    const struct mu_rdzv_member *m;

    (void)unused;
    load(&f, RDZV_VECTORS_1_13, "complete, one waiting");
    m = f.s.members;

    assert_int_equal(f.dialect, MU_RDZV_DIALECT_1_13);
    assert_int_equal(f.s.round, 300);
    assert_true(f.s.complete && !f.s.closed && !f.s.has_deadline);
    assert_int_equal(f.s.member_count, 3);
    check_member(&m[0], "host-a", 101, 0, 123456);
    check_member(&m[1], "host-b", 202, 1, 0);
    assert_true(m[1].participant && m[1].rank == 1);
    assert_true(!m[2].participant && m[2].waiting && !m[2].spare);
    tear_down(&f);
}

static unsigned rewrite_all(const char *file, enum mu_rdzv_dialect dialect)
{
    struct fixture f;
    unsigned count = 0;

    set_up(&f);
    while (rdzv_vector(file, NULL, count, &f.pickle)) {
        decode(&f);
        assert_true(f.dialect == dialect || f.s.member_count == 0);
        mu_buf_reset(&f.again);
        assert_int_equal(mu_rdzv_state_encode(&f.again, &f.s, dialect), 0);
        assert_int_equal(f.again.len, f.pickle.len);
        assert_memory_equal(mu_buf_span(&f.again).data, mu_buf_span(&f.pickle).data, f.again.len);
        count++;
    }
    tear_down(&f);
    return count;
}

static void test_rdzv_state_writes_the_bytes_that_pytorch_wrote(void **unused)
{
    (void)unused;
    assert_int_equal(rewrite_all(RDZV_VECTORS_1_13, MU_RDZV_DIALECT_1_13), 5);
    assert_int_equal(rewrite_all(RDZV_VECTORS_2_11, MU_RDZV_DIALECT_2), 6);
}

static void test_rdzv_state_tells_what_dialect_it_can(void **unused)
{
    struct fixture f;

    (void)unused;
    load(&f, RDZV_VECTORS_1_13, "empty");
    assert_int_equal(f.dialect, MU_RDZV_DIALECT_1_13);
    tear_down(&f);
    load(&f, RDZV_VECTORS_2_11, "empty");
    assert_int_equal(f.dialect, MU_RDZV_DIALECT_UNKNOWN);
    assert_int_equal(mu_rdzv_state_encode(&f.again, &f.s, f.dialect), MUSTER_EINVAL);
    tear_down(&f);
}

static bool contains(const struct mu_buf *b, const char *text)
{
    return memmem(mu_buf_span(b).data, b->len, text, strlen(text)) != NULL;
}

/* Decoded, changed and encoded in each dialect, it says the same and has that dialect's marks. */
static void test_rdzv_state_speaks_each_dialect(void **unused)
{
    static const struct {
        enum mu_rdzv_dialect dialect;
        bool fqdn;
        bool zone;
        bool spares;
    } dialects[] = {
        {MU_RDZV_DIALECT_1_13, true, false, false},
        {MU_RDZV_DIALECT_2_NAIVE, false, false, true},
        {MU_RDZV_DIALECT_2, false, true, true},
    };

    (void)unused;
    for (size_t i = 0; i < 3; i++) {
        struct mu_rdzv_node node = {(char *)(uintptr_t) "host-e", -5, 0};
        struct mu_rdzv_member *member = NULL;
        struct fixture f;

        load(&f, RDZV_VECTORS_2_11, "complete, one redundant");
        assert_int_equal(mu_rdzv_state_add(&f.s, &node, &member), 0);
        member->waiting = true;
        f.s.members[0].participant = false;
        assert_int_equal(mu_rdzv_state_encode(&f.again, &f.s, dialects[i].dialect), 0);
        assert_int_equal(contains(&f.again, "fqdn"), dialects[i].fqdn);
        assert_int_equal(contains(&f.again, "addr"), !dialects[i].fqdn);
        assert_int_equal(contains(&f.again, "timezone"), dialects[i].zone);
        assert_int_equal(contains(&f.again, "redundancy_list"), dialects[i].spares);

        mu_buf_reset(&f.pickle);
        assert_int_equal(mu_buf_append(&f.pickle, mu_buf_span(&f.again)), 0);
        decode(&f);
        assert_int_equal(f.dialect, dialects[i].dialect);
        assert_int_equal(f.s.member_count, 5);
        node.addr = (char *)(uintptr_t) "host-d";
        node.pid = 70000;
        node.local_id = 2;
        assert_int_equal(mu_rdzv_state_find(&f.s, &node)->spare, dialects[i].spares);
        node.addr = (char *)(uintptr_t) "host-a";
        node.pid = 101;
        node.local_id = 0;
        assert_false(mu_rdzv_state_find(&f.s, &node)->participant);
        tear_down(&f);
    }
}

static void test_rdzv_state_cuts_times_to_the_microsecond(void **unused)
{
    struct fixture f;

    (void)unused;
    set_up(&f);
    f.s.has_deadline = true;
    f.s.deadline.ns = UINT64_MAX;
    assert_int_equal(mu_rdzv_state_encode(&f.pickle, &f.s, MU_RDZV_DIALECT_2), 0);
    decode(&f);
    assert_int_equal(f.dialect, MU_RDZV_DIALECT_2);
    assert_int_equal(f.s.deadline.ns, UINT64_MAX / 1000 * 1000);
    tear_down(&f);
}

/* Puts a moment in the place of the only one of a state, and returns what becomes of it. */
static int decode_with_time(struct fixture *f, const uint8_t time[10])
{
    uint8_t *at;

    load(f, RDZV_VECTORS_1_13, "one participant, no deadline");
    at = memmem(f->pickle.data, f->pickle.len, "C\x0a", 2);
    assert_non_null(at);
    memcpy(at + 2, time, 10);
    return mu_rdzv_state_decode(mu_buf_span(&f->pickle), &f->s, &f->dialect, &f->msg);
}

static void test_rdzv_state_bends_times_that_it_cannot_hold(void **unused)
{
    static const struct {
        uint8_t time[10];
        int err;
        uint64_t ns;
    } times[] = {
        {{0x07, 0xb2, 1, 1, 0, 0, 0, 0, 0, 1}, 0, 1000},
        {{0x07, 0xb1, 12, 31, 23, 59, 59, 0x0f, 0x42, 0x3f}, 0, 0},
        {{0x00, 0x01, 1, 1, 0, 0, 0, 0, 0, 0}, 0, 0},
        {{0x27, 0x0f, 12, 31, 23, 59, 59, 0x0f, 0x42, 0x3f}, 0, UINT64_MAX / 1000 * 1000},
        {{0x07, 0xb2, 0x81, 1, 0, 0, 0, 0, 0, 1}, 0, 1000}, /* the second of two equal hours */
        {{0x00, 0x00, 1, 1, 0, 0, 0, 0, 0, 0}, MUSTER_ECORRUPT, 0},
        {{0x27, 0x10, 1, 1, 0, 0, 0, 0, 0, 0}, MUSTER_ECORRUPT, 0},
        {{0x07, 0xea, 13, 1, 0, 0, 0, 0, 0, 0}, MUSTER_ECORRUPT, 0},
        {{0x07, 0xea, 2, 29, 0, 0, 0, 0, 0, 0}, MUSTER_ECORRUPT, 0},
        {{0x07, 0xea, 1, 1, 24, 0, 0, 0, 0, 0}, MUSTER_ECORRUPT, 0},
        {{0x07, 0xea, 1, 1, 0, 0, 0, 0x0f, 0x42, 0x40}, MUSTER_ECORRUPT, 0},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        struct fixture f;

        assert_int_equal(decode_with_time(&f, times[i].time), times[i].err);
        if (times[i].err == 0) {
            assert_int_equal(f.s.members[0].heartbeat.ns, times[i].ns);
        } else {
            assert_string_equal(f.msg.text, "a time is not a valid date");
        }
        tear_down(&f);
    }
}

static void test_rdzv_state_appends_and_takes_back(void **unused)
{
    struct fixture f;

    (void)unused;
    load(&f, RDZV_VECTORS_2_11, "complete, one redundant");
    assert_int_equal(mu_buf_append(&f.again, MU_SPAN_LIT("before")), 0);
    assert_int_equal(mu_rdzv_state_encode(&f.again, &f.s, MU_RDZV_DIALECT_2), 0);
    assert_int_equal(f.again.len, 6 + f.pickle.len);
    assert_memory_equal(f.again.data + 6, f.pickle.data, f.pickle.len);

    for (size_t max = 6; max < 6 + f.pickle.len; max++) {
        struct mu_buf tight;

        mu_buf_init(&tight, max);
        assert_int_equal(mu_buf_append(&tight, MU_SPAN_LIT("before")), 0);
        assert_int_equal(mu_rdzv_state_encode(&tight, &f.s, MU_RDZV_DIALECT_2), MUSTER_ELIMIT);
        assert_span_text(mu_buf_span(&tight), "before");
        mu_buf_fini(&tight);
    }
    tear_down(&f);
}

static void test_rdzv_state_codec_survives_a_failing_heap(void **unused)
{
    struct fixture f;

    (void)unused;
    for (long nth = 0;; nth++) {
        struct mu_rdzv_state got;
        bool fired;
        int err;

        load(&f, RDZV_VECTORS_2_11, "complete, one redundant");
        mu_rdzv_state_init(&got);
        got.round = 42;
        failheap_arm(nth);
        err = mu_rdzv_state_decode(mu_buf_span(&f.pickle), &got, &f.dialect, &f.msg);
        assert_int_equal(got.round, err == 0 ? 300 : 42);
        if (err == 0) {
            err = mu_rdzv_state_encode(&f.again, &got, MU_RDZV_DIALECT_2);
        }
        fired = failheap_fired();
        failheap_disarm();

        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        assert_int_equal(f.again.len, fired ? 0 : f.pickle.len);
        mu_rdzv_state_fini(&got);
        tear_down(&f);
        if (!fired) {
            assert_true(nth > 10);
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_state_reads_what_pytorch_2_11_wrote),
        cmocka_unit_test(test_rdzv_state_reads_what_pytorch_1_13_wrote),
        cmocka_unit_test(test_rdzv_state_writes_the_bytes_that_pytorch_wrote),
        cmocka_unit_test(test_rdzv_state_tells_what_dialect_it_can),
        cmocka_unit_test(test_rdzv_state_speaks_each_dialect),
        cmocka_unit_test(test_rdzv_state_cuts_times_to_the_microsecond),
        cmocka_unit_test(test_rdzv_state_bends_times_that_it_cannot_hold),
        cmocka_unit_test(test_rdzv_state_appends_and_takes_back),
        cmocka_unit_test(test_rdzv_state_codec_survives_a_failing_heap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
