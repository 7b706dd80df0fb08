/* The messages of AutoNAT: bytes as other implementations write them, and what cannot be read. */
#include "unit.h"

#include <muster/error.h>

#include "codec/peer/autonat_msg.h"
#include "hex.h"

#define PEER "0024080112208a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
#define ADDR "047f000001060fa1"
#define ASK  "080012340a320a26" PEER "1208" ADDR
#define OK   "08011a0e080012001a08" ADDR
#define LOST "08011a110864120b6469616c206661696c65641a00" /* "dial failed" */

static uint8_t room[512];

static struct mu_span bytes_of(const char *hex)
{
    return mu_span(room, hex_decode(room, sizeof(room), hex));
}

static void assert_written(const struct mu_buf *out, const char *hex)
{
    struct mu_span want = bytes_of(hex);

    assert_int_equal(out->len, want.len + 1);
    assert_int_equal(mu_buf_span(out).data[0], want.len);
    assert_memory_equal(mu_buf_span(out).data + 1, want.data, want.len);
}

static void test_autonat_question_is_that_of_others(void **state)
{
    uint8_t id_bytes[MU_PEER_ID_MAX];
    uint8_t addr_bytes[16];
    struct mu_span addr = mu_span(addr_bytes, hex_decode(addr_bytes, sizeof(addr_bytes), ADDR));
    struct mu_autonat_msg msg;
    struct mu_peer_id id;
    struct mu_span got;
    struct mu_buf out;

    (void)state;
    assert_int_equal(
        mu_peer_id_from_bytes(&id, mu_span(id_bytes, hex_decode(id_bytes, sizeof(id_bytes), PEER))),
        0);
    mu_buf_init(&out, 256);
    assert_int_equal(mu_autonat_ask(&id, &addr, 1, &out), 0);
    assert_written(&out, ASK);
    mu_buf_fini(&out);
    assert_int_equal(mu_autonat_msg_decode(bytes_of(ASK), &msg), 0);
    assert_false(msg.response);
    assert_true(mu_span_eq(msg.peer, mu_peer_id_span(&id)));
    assert_true(mu_autonat_next_addr(&msg.addrs, &got));
    assert_true(mu_span_eq(got, addr));
    assert_false(mu_autonat_next_addr(&msg.addrs, &got));
}

static void test_autonat_answers_are_those_of_others(void **state)
{
    uint8_t addr_bytes[16];
    struct mu_span addr = mu_span(addr_bytes, hex_decode(addr_bytes, sizeof(addr_bytes), ADDR));
    struct mu_autonat_msg msg;
    struct mu_buf out;

    (void)state;
    mu_buf_init(&out, 256);
    assert_int_equal(mu_autonat_answer(MU_AUTONAT_OK, mu_span_str(""), addr, &out), 0);
    assert_written(&out, OK);
    assert_int_equal(mu_autonat_msg_decode(bytes_of(OK), &msg), 0);
    assert_true(msg.response && msg.status == MU_AUTONAT_OK && mu_span_eq(msg.addr, addr));
    mu_buf_reset(&out);
    assert_int_equal(mu_autonat_answer(MU_AUTONAT_DIAL_ERROR, mu_span_str("dial failed"),
                                       (struct mu_span){0}, &out),
                     0);
    assert_written(&out, LOST);
    assert_int_equal(mu_autonat_msg_decode(bytes_of(LOST), &msg), 0);
    assert_int_equal(msg.status, MU_AUTONAT_DIAL_ERROR);
    assert_true(mu_span_eq(msg.text, MU_SPAN_LIT("dial failed")));
    mu_buf_fini(&out);
}

static void test_autonat_message_that_cannot_be_read_is_refused(void **state)
{
    static const char *const broken[] = {
        "",
        "0800",             /* a question without one */
        "0801",             /* an answer without one */
        "0802",             /* there is no such type */
        "0801120a",         /* it is cut off, */
        "08001203",         /* here too */
        "080012030a0105",   /* a peer that is not a message */
        "08011a0208",       /* a status that is cut off */
        "08001a020800",     /* a question with an answer in it */
        "0801120612040a00", /* and the other way round */
    };
    struct mu_autonat_msg msg;

    (void)state;
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        assert_int_equal(mu_autonat_msg_decode(bytes_of(broken[i]), &msg), MUSTER_EPROTO);
    }
}

static void test_autonat_message_that_is_too_long_is_not_written(void **state)
{
    static const uint8_t zeros[MU_AUTONAT_MSG_MAX];
    struct mu_buf out;

    (void)state;
    mu_buf_init(&out, 2 * MU_AUTONAT_MSG_MAX);
    assert_int_equal(
        mu_autonat_answer(MU_AUTONAT_OK, mu_span(zeros, sizeof(zeros)), (struct mu_span){0}, &out),
        MUSTER_ELIMIT);
    assert_int_equal(out.len, 0);
    mu_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_autonat_question_is_that_of_others),
        cmocka_unit_test(test_autonat_answers_are_those_of_others),
        cmocka_unit_test(test_autonat_message_that_cannot_be_read_is_refused),
        cmocka_unit_test(test_autonat_message_that_is_too_long_is_not_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
