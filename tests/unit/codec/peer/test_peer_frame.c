/* How peers call each other: the bytes of the daemon, and every cut of them. */
#include "unit.h"

#include <muster/error.h>

#include "call_bytes.h"
#include "codec/peer/frame.h"

static void assert_frame(const struct mu_call_frame *frame, const char *want)
{
    uint8_t bytes[512];
    size_t len = hex_decode(bytes, sizeof(bytes), want);
    struct mu_call_frame back;
    size_t used;

    mu_buf_reset(&buf);
    assert_int_equal(mu_call_frame_encode(&buf, frame), 0);
    assert_int_equal(buf.len, len);
    assert_memory_equal(mu_buf_span(&buf).data, bytes, len);
    for (size_t cut = 0; cut < len; cut++) {
        assert_int_equal(mu_call_frame_decode(mu_span(bytes, cut), &back, &used), 0);
    }
    assert_int_equal(mu_call_frame_decode(mu_buf_span(&buf), &back, &used), 1);
    assert_int_equal(used, len);
    assert_int_equal(back.kind, frame->kind);
    assert_true(mu_span_eq(back.id, frame->id) && mu_span_eq(back.peer, frame->peer) &&
                mu_span_eq(back.name, frame->name) && mu_span_eq(back.data, frame->data));
}

static void test_call_frames_are_those_of_the_daemon(void **unused)
{
    struct mu_call_frame f = {.kind = MU_CALL_REQUEST,
                              .id = hex(0, ID),
                              .peer = hex(1, PEER_L),
                              .name = MU_SPAN_LIT("DHTProtocol.rpc_ping"),
                              .data = hex(2, "12160a14" N01 "1801")};

    (void)unused;
    assert_frame(&f, "6e 0a10" ID "1a5a 0a26" PEER_L "1214" PING "1a1a 12160a14" N01 "1801");
    f = (struct mu_call_frame){.kind = MU_CALL_RESPONSE,
                               .id = hex(0, ID),
                               .data = hex(2, "12160a14" N02 "210000600aea8dd8412801")};
    assert_frame(&f, "39 0a10" ID "2225 0a23 12160a14" N02 "210000600aea8dd8412801");
    f.kind = MU_CALL_ERROR;
    f.data = MU_SPAN_LIT("ValueError()");
    assert_frame(&f, "22 0a10" ID "220e 120c 56616c75654572726f722829");
}

static void test_call_frames_that_cannot_be_are_refused(void **unused)
{
    struct mu_call_frame f;
    size_t used;

    (void)unused;
    assert_int_equal(mu_call_frame_decode(hex(0, "02 0800"), &f, &used), MUSTER_EPROTO);
    assert_int_equal(mu_call_frame_decode(hex(0, "818080 02"), &f, &used), MUSTER_ELIMIT);
    assert_int_equal(mu_call_frame_decode(hex(0, "8000"), &f, &used), MUSTER_EPROTO);
    assert_int_equal(mu_call_frame_decode(hex(0, "04 1a02 0aff"), &f, &used), MUSTER_EPROTO);
    /* An answer with neither is an error. */
    assert_int_equal(mu_call_frame_decode(hex(0, "02 2200"), &f, &used), 1);
    assert_int_equal(f.kind, MU_CALL_ERROR);
}

static void test_items_are_those_of_hivemind(void **unused)
{
    struct mu_span text;
    uint8_t want[64];
    size_t len = hex_decode(want, sizeof(want),
                            "00 0000000000000000 01 0000000000000000 00 0000000000000003 616263"
                            "01 0000000000000003 0a0178");
    uint8_t marker;
    uint64_t size;

    (void)unused;
    assert_int_equal(mu_item_encode(&buf, MU_ITEM_MARKER_DATA, (struct mu_span){0}), 0);
    assert_int_equal(mu_item_error_encode(&buf, (struct mu_span){0}), 0);
    assert_int_equal(
        mu_item_encode_two(&buf, MU_ITEM_MARKER_DATA, MU_SPAN_LIT("a"), MU_SPAN_LIT("bc")), 0);
    assert_int_equal(mu_item_error_encode(&buf, MU_SPAN_LIT("x")), 0);
    assert_int_equal(buf.len, len);
    assert_memory_equal(mu_buf_span(&buf).data, want, len);
    assert_int_equal(mu_item_head_decode(mu_span(want + 18, 9), &marker, &size), 1);
    assert_true(marker == 0 && size == 3);
    for (size_t cut = 0; cut < 9; cut++) {
        assert_int_equal(mu_item_head_decode(mu_span(want, cut), &marker, &size), 0);
    }
    assert_int_equal(mu_item_head_decode(MU_SPAN_LIT("\x02"), &marker, &size), MUSTER_EPROTO);
    assert_int_equal(mu_item_error_decode(mu_span(want + len - 3, 3), &text), 0);
    assert_span_text(text, "x");
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_call_frames_are_those_of_the_daemon),
        T(test_call_frames_that_cannot_be_are_refused),
        T(test_items_are_those_of_hivemind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
