/* The messages that may follow the handshake of TLS 1.3, from a plain end of OpenSSL and forged. */
#include "tls_ends.h"

#define TOKEN      "a token of some length"
#define KEY_UPDATE 24

static size_t updates[2]; /* that the other end has read, and written */

static void note_message(int written, int version, int type, const void *buf, size_t len, SSL *ssl,
                         void *arg)
{
    (void)version;
    (void)ssl;
    (void)arg;
    if (type == TLS_FORGE_HANDSHAKE && len != 0 && *(const uint8_t *)buf == KEY_UPDATE) {
        updates[written != 0 ? 1 : 0]++;
    }
}

static void begin(struct tls_ends *e)
{
    tls_ends_init(e);
    tls_ends_shake_hands(e);
    memset(updates, 0, sizeof(updates));
    SSL_set_msg_callback(e->ssl, note_message);
}

/* They change their key and, with `asks`, have us change ours. */
static void change_key(struct tls_ends *e, bool asks)
{
    assert_int_equal(
        SSL_key_update(e->ssl, asks ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED), 1);
    assert_int_equal(SSL_do_handshake(e->ssl), 1);
}

/* A ticket of `len` bytes in all. */
static struct mu_span make_ticket(uint8_t *text, size_t len)
{
    size_t n = len - 18;

    memset(text, 't', len);
    memset(text, 0, 14);
    text[0] = 4;
    text[2] = (uint8_t)((len - 4) >> 8);
    text[3] = (uint8_t)(len - 4);
    text[7] = 60; /* seconds */
    text[12] = 1; /* byte of a nonce */
    text[14] = (uint8_t)(n >> 8);
    text[15] = (uint8_t)n;
    text[len - 2] = text[len - 1] = 0; /* no extension */
    return mu_span(text, len);
}

static void test_ticket_and_key_update_in_one_record(void **state)
{
    static const uint8_t update[] = {KEY_UPDATE, 0, 0, 1, 0};
    struct tls_ends e = {.we_dial = true, .token = TOKEN};
    struct tls_forge forge;
    uint8_t text[200 + sizeof(update)];
    uint8_t record[300];

    (void)state;
    begin(&e);
    tls_forge_init(&forge, false);
    (void)make_ticket(text, 200);
    memcpy(text + 200, update, sizeof(update));
    tls_ends_hear(&e,
                  tls_forge_seal(&forge, TLS_FORGE_HANDSHAKE, mu_span(text, sizeof(text)), record));
    tls_forge_update(&forge);
    tls_ends_hear(&e, tls_forge_seal(&forge, TLS_FORGE_DATA, MU_SPAN_LIT("behind it"), record));
    assert_int_equal(e.err, 0);
    assert_true(mu_span_eq(mu_buf_span(&e.got), MU_SPAN_LIT("behind it")));
    tls_ends_fini(&e);
}

static int enlarge_ticket(SSL *ssl, void *arg)
{
    uint8_t data[1000] = {0};

    (void)arg;
    return SSL_SESSION_set1_ticket_appdata(SSL_get_session(ssl), data, sizeof(data));
}

/* Goal: a ticket in several records is read, and what we write meanwhile is not lost. Method: a
 * large one of OpenSSL's, in records of 512 bytes. */
static void test_ticket_is_split_over_records(void **state)
{
    struct tls_ends e = {.we_dial = true};
    char *bytes;
    long all;
    uint8_t got[16];
    size_t n = 0;

    (void)state;
    begin(&e);
    assert_int_equal(SSL_CTX_set_session_ticket_cb(e.ctx, enlarge_ticket, NULL, NULL), 1);
    assert_int_equal(SSL_set_max_send_fragment(e.ssl, 512), 1);
    assert_int_equal(SSL_new_session_ticket(e.ssl), 1);
    assert_int_equal(SSL_do_handshake(e.ssl), 1);
    all = BIO_get_mem_data(e.from, &bytes);
    assert_true(all > 512 + 2 * TLS_FORGE_EXTRA);
    tls_ends_hear(&e, mu_span(bytes, 512 + TLS_FORGE_EXTRA));
    assert_int_equal(e.err, 0);
    assert_int_equal(mu_tls_write(&e.t, MU_SPAN_LIT("meanwhile"), &n), 0);
    if (n == 0) { /* It has to wait for the rest. */
        tls_ends_hear(&e,
                      mu_span(bytes + 512 + TLS_FORGE_EXTRA, (size_t)all - 512 - TLS_FORGE_EXTRA));
        assert_int_equal(e.err, 0);
        assert_int_equal(mu_tls_write(&e.t, MU_SPAN_LIT("meanwhile"), &n), 0);
    }
    assert_int_equal(n, 9);
    (void)BIO_reset(e.from);
    tls_ends_to_them(&e);
    assert_int_equal(SSL_read_ex(e.ssl, got, sizeof(got), &n), 1);
    assert_int_equal(n, 9);
    assert_memory_equal(got, "meanwhile", 9);
    tls_ends_cross(&e);
    tls_ends_fini(&e);
}

static void test_tickets_are_split_anywhere(void **state)
{
    uint8_t text[300];
    uint8_t record[400];

    (void)state;
    for (size_t cut = 1; cut < 200; cut += 7) {
        struct tls_ends e = {.we_dial = true, .token = TOKEN};
        struct mu_span ticket = make_ticket(text, 200);
        struct tls_forge forge;

        begin(&e);
        tls_forge_init(&forge, false);
        tls_ends_hear(&e, tls_forge_seal(&forge, TLS_FORGE_HANDSHAKE, mu_span(text, cut), record));
        tls_ends_hear(
            &e, tls_forge_seal(&forge, TLS_FORGE_HANDSHAKE, mu_span_skip(ticket, cut), record));
        tls_ends_hear(&e, tls_forge_seal(&forge, TLS_FORGE_DATA, MU_SPAN_LIT("more"), record));
        assert_int_equal(e.err, 0);
        assert_int_equal(e.got.len, 4);
        tls_ends_fini(&e);
    }
}

static void test_keys_change_in_the_middle_of_transfers(void **state)
{
    static const char *const tokens[] = {NULL, TOKEN};

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct tls_ends e = {.we_dial = i % 2 == 0, .token = tokens[i / 2]};

        begin(&e);
        for (int round = 0; round < 12; round++) {
            change_key(&e, round % 3 == 0);
            if (round % 6 == 1) {
                e.t.sealed = MU_TLS_RECORDS_OF_A_KEY; /* We change ours as well. */
            }
            tls_ends_cross(&e);
        }
        assert_int_equal(updates[1], 12);
        assert_int_equal(updates[0], 4 + 2);
        tls_ends_fini(&e);
    }
}

static void test_key_is_changed_before_it_has_sealed_too_much(void **state)
{
    struct tls_ends e = {.we_dial = true};
    uint8_t got[32];
    size_t n;

    (void)state;
    begin(&e);
    e.t.sealed = MU_TLS_RECORDS_OF_A_KEY - 1;
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(mu_tls_write(&e.t, MU_SPAN_LIT("some"), &n), 0);
        tls_ends_to_them(&e);
        assert_int_equal(SSL_read_ex(e.ssl, got, sizeof(got), &n), 1);
        assert_int_equal(updates[0], i == 0 ? 0 : 1);
    }
    tls_ends_fini(&e);
}

/* Goal: a peer that asks and never reads costs bounded memory, and is told. */
static void test_peer_that_asks_for_keys_and_never_reads_is_closed(void **state)
{
    struct tls_ends e = {.token = TOKEN};
    size_t sent = 0;

    (void)state;
    begin(&e);
    while (e.err == 0 && sent < 100000) {
        for (int i = 0; i < 100; i++, sent++) {
            change_key(&e, true);
        }
        tls_ends_to_us(&e);
        assert_true(mu_tls_output(&e.t).len <= 512 * 1024);
    }
    assert_int_equal(e.err, MUSTER_ETLS);
    assert_non_null(strstr(mu_tls_errmsg(&e.t), "does not read our answers: 511 KiB are waiting"));
    assert_true(sent > 10000 && sent < 25000);
    tls_ends_fini(&e);
}

static void test_peer_that_changes_its_own_key_is_followed_without_end(void **state)
{
    struct tls_ends e = {.token = TOKEN};

    (void)state;
    begin(&e);
    for (size_t sent = 0; sent < 100000; sent += 100) {
        for (int i = 0; i < 100; i++) {
            change_key(&e, false);
        }
        tls_ends_to_us(&e);
        assert_int_equal(e.err, 0);
        assert_int_equal(mu_tls_output(&e.t).len, 0);
    }
    tls_ends_cross(&e);
    tls_ends_fini(&e);
}

static void test_nothing_follows_our_end(void **state)
{
    struct tls_ends e = {.token = TOKEN};
    size_t n;

    (void)state;
    begin(&e);
    mu_tls_end(&e.t);
    tls_ends_to_them(&e);
    for (int i = 0; i < 3; i++) {
        change_key(&e, true);
    }
    assert_int_equal(SSL_write_ex(e.ssl, "last words", 10, &n), 1);
    tls_ends_to_us(&e);
    assert_int_equal(e.err, 0);
    assert_int_equal(e.got.len, 10);
    assert_int_equal(mu_tls_output(&e.t).len, 0);
    tls_ends_hear(&e, MU_SPAN_LIT("\x17\x03\x03\x00\x13this was not sealed"));
    assert_int_equal(e.err, MUSTER_ETLS);
    assert_int_equal(mu_tls_output(&e.t).len, 0);
    tls_ends_fini(&e);
}

static void test_messages_out_of_place_are_refused(void **state)
{
    static const struct {
        uint8_t type;
        uint8_t len;
        uint8_t text[24];
    } cases[] = {
        {TLS_FORGE_HANDSHAKE, 5, {KEY_UPDATE, 0, 0, 1, 2}},
        {TLS_FORGE_HANDSHAKE, 6, {KEY_UPDATE, 0, 0, 2, 0, 0}},
        {TLS_FORGE_HANDSHAKE, 4, {KEY_UPDATE, 0, 0, 0}},
        {TLS_FORGE_HANDSHAKE, 6, {KEY_UPDATE, 0, 0, 1, 0, KEY_UPDATE}}, /* spans two keys */
        {TLS_FORGE_HANDSHAKE, 5, {KEY_UPDATE, 0x7f, 0xff, 0xff, 0}},    /* 8 MiB long */
        {TLS_FORGE_HANDSHAKE, 8, {1, 0, 0, 4, 3, 3, 0, 0}},             /* a hello */
        {TLS_FORGE_HANDSHAKE, 8, {4, 0, 0, 4, 0, 0, 0, 0}},             /* a ticket for a server */
        {TLS_FORGE_HANDSHAKE, 8, {20, 0, 0, 4, 1, 2, 3, 4}},            /* a Finished */
        {TLS_FORGE_HANDSHAKE, 0, {0}},
        {TLS_FORGE_ALERT, 1, {1}},
        {TLS_FORGE_ALERT, 2, {2, 80}},
        {20, 1, {1}},
        {24, 3, {1, 2, 3}},
    };
    uint8_t record[64];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tls_ends e = {.token = TOKEN};
        struct tls_forge forge;

        begin(&e);
        tls_forge_init(&forge, true);
        tls_ends_hear(&e, tls_forge_seal(&forge, cases[i].type,
                                         mu_span(cases[i].text, cases[i].len), record));
        assert_int_equal(e.err, MUSTER_ETLS);
        assert_false(e.t.peer_ended);
        assert_int_equal(e.got.len, 0);
        tls_ends_fini(&e);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ticket_and_key_update_in_one_record),
        cmocka_unit_test(test_ticket_is_split_over_records),
        cmocka_unit_test(test_tickets_are_split_anywhere),
        cmocka_unit_test(test_keys_change_in_the_middle_of_transfers),
        cmocka_unit_test(test_key_is_changed_before_it_has_sealed_too_much),
        cmocka_unit_test(test_peer_that_asks_for_keys_and_never_reads_is_closed),
        cmocka_unit_test(test_peer_that_changes_its_own_key_is_followed_without_end),
        cmocka_unit_test(test_nothing_follows_our_end),
        cmocka_unit_test(test_messages_out_of_place_are_refused),
    };
    int failed;

    tls_ends_set_up();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    tls_ends_tear_down();
    return failed;
}
