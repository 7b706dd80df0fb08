/*
 * What follows the handshake of TLS: records that a peer with the right key may send, of any type
 * and with anything in them, and bytes that are no record at all, in pieces and rooms of any size.
 * What is data comes out as it went in, up to the first thing that is refused; what we say then and
 * later is read by the peer, whose key follows ours.
 *
 * An input is a list of steps: a type, two bytes of length, a byte that says how it is cut and
 * read, and so many bytes. Type 0: the bytes as they are. Type 1: we say them. Type 2: the last of
 * the bytes that is not zero is the type, and the zeroes behind it are for show.
 */
#include <stdlib.h>

#include <openssl/ssl.h>

#include "core/assert.h"
#include "transport/tls.h"

#define PADDED 2

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct world {
    struct mu_tls t;
    struct mu_tls_half seals;
    struct mu_tls_half opens;
    struct mu_buf sent;
    struct mu_buf got;
    bool raw; /* a byte that was sealed by nobody has come: it cannot go on */
    int err;
};

static struct mu_tls_context *context;
static const SSL_CIPHER *suite;
static const uint8_t secrets[2][32] = {{1}, {2}};

/* Any suite that is there; no handshake takes place. */
static void set_up(void)
{
    struct mu_tls_config config = {.token = MU_SPAN_LIT("0123456789abcdef0123456789abcdef")};
    struct mu_errmsg why;
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    SSL *ssl = SSL_new(ctx);
    static const uint8_t id[] = {0x13, 0x01};

    MU_ASSERT(mu_tls_context_new(&config, &context, &why) == 0);
    suite = SSL_CIPHER_find(ssl, id);
    MU_ASSERT(suite != NULL);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
}

static void world_init(struct world *w)
{
    struct mu_span ours = mu_span(secrets[0], sizeof(secrets[0]));
    struct mu_span theirs = mu_span(secrets[1], sizeof(secrets[1]));

    *w = (struct world){0};
    MU_ASSERT(mu_tls_init(&w->t, context, NULL) == 0);
    MU_ASSERT(mu_tls_half_init(&w->t.sends, true, suite, ours) == 0);
    MU_ASSERT(mu_tls_half_init(&w->t.receives, false, suite, theirs) == 0);
    w->t.heard = w->t.ready = true;
    MU_ASSERT(mu_tls_half_init(&w->seals, true, suite, theirs) == 0);
    MU_ASSERT(mu_tls_half_init(&w->opens, false, suite, ours) == 0);
    mu_buf_init(&w->sent, 1u << 24);
    mu_buf_init(&w->got, 1u << 24);
}

static void world_fini(struct world *w)
{
    mu_tls_fini(&w->t);
    mu_tls_half_fini(&w->seals);
    mu_tls_half_fini(&w->opens);
    mu_buf_fini(&w->sent);
    mu_buf_fini(&w->got);
}

static void hear(struct world *w, struct mu_span in, size_t cut, size_t room)
{
    static uint8_t plain[MU_TLS_RECORD_MAX];
    struct mu_span parts[] = {mu_span(in.data, cut), mu_span_skip(in, cut)};

    for (int i = 0; i < 2; i++) {
        size_t len = 1;

        while (w->err == 0 && !w->t.peer_ended && (parts[i].len != 0 || len != 0)) {
            w->err = mu_tls_recv(&w->t, &parts[i], plain, room, &len);
            if (w->err == 0) {
                MU_ASSERT(len <= room);
                MU_ASSERT(mu_buf_append(&w->got, mu_span(plain, len)) == 0);
            }
        }
    }
}

/* The peer reads all that we have said, and goes on with the key that we have named. */
static void read_ours(struct world *w)
{
    static uint8_t plain[MU_TLS_RECORD_LONGEST];

    for (;;) {
        struct mu_span out = mu_tls_output(&w->t);
        uint8_t type = 0;
        size_t len = 0;
        size_t n;

        if (out.len == 0) {
            return;
        }
        MU_ASSERT(out.len >= MU_TLS_RECORD_HEAD);
        n = mu_tls_record_len(out.data);
        MU_ASSERT(n != 0 && n <= out.len);
        MU_ASSERT(mu_tls_half_open(&w->opens, mu_span(out.data, n), plain, &type, &len) == 0);
        if (type == MU_TLS_HANDSHAKE) {
            MU_ASSERT(len == 5 && plain[0] == 24 && plain[4] == 0);
            MU_ASSERT(mu_tls_half_update(&w->opens) == 0);
        }
        mu_tls_sent(&w->t, n);
    }
}

static bool is_update(uint8_t type, struct mu_span in)
{
    return type == MU_TLS_HANDSHAKE && in.len == 5 && in.data[0] == 24 && in.data[4] <= 1;
}

static void send_record(struct world *w, uint8_t type, struct mu_span in, uint8_t how)
{
    static uint8_t record[MU_TLS_RECORD_LONGEST + MU_TLS_RECORD_HEAD];
    size_t len = in.len + MU_TLS_RECORD_EXTRA;
    bool alive = w->err == 0 && !w->t.peer_ended && !w->raw;

    type = type == PADDED ? 0 : type;
    MU_ASSERT(mu_tls_half_seal(&w->seals, type, in, record) == 0);
    hear(w, mu_span(record, len), len * how / 256, how % 4 == 0 ? 1 : MU_TLS_RECORD_MAX);
    while (type == 0 && in.len != 0) {
        type = in.data[--in.len];
    }
    if (alive && type == MU_TLS_DATA) {
        MU_ASSERT(w->err == 0);
        MU_ASSERT(mu_buf_append(&w->sent, in) == 0);
    } else if (alive && is_update(type, in) && w->err == 0) {
        MU_ASSERT(mu_tls_half_update(&w->seals) == 0);
    }
}

static void step(struct world *w, uint8_t type, struct mu_span in, uint8_t how)
{
    size_t taken;

    switch (type) {
    case 0:
        w->raw = w->raw || in.len != 0;
        hear(w, in, in.len * how / 256, MU_TLS_RECORD_MAX);
        break;
    case 1:
        if (w->err == 0) {
            w->err = mu_tls_write(&w->t, in, &taken);
            MU_ASSERT(w->err == 0);
        }
        break;
    default:
        send_record(w, type, in, how);
        break;
    }
    read_ours(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world w;

    if (context == NULL) {
        set_up();
    }
    world_init(&w);
    for (int steps = 0; size >= 4 && steps < 64; steps++) {
        size_t len = (size_t)(data[1] << 8 | data[2]) % (MU_TLS_RECORD_MAX + 1);
        struct mu_span in;

        len = len < size - 4 ? len : size - 4;
        in = mu_span(data + 4, len);
        step(&w, data[0], in, data[3]);
        data += 4 + len;
        size -= 4 + len;
    }
    MU_ASSERT(mu_span_eq(mu_buf_span(&w.got), mu_buf_span(&w.sent)));
    world_fini(&w);
    return 0;
}
