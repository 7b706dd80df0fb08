/*
 * A connection of TLS that listens, after its handshake: records that the other end may seal with
 * the right key, of any type and with anything in them, and bytes that are no record at all, in
 * pieces and rooms of any size. What is data comes out as it went in, up to the first thing that is
 * refused; what we say then and later is read by the other end.
 *
 * An input is a list of steps: a type, two bytes of length, a byte that says how it is cut and
 * read, and so many bytes. Type 0: the bytes as they are. Type 1: we say them. Type 2: the last of
 * the bytes that is not zero is the type, and the zeroes behind it are for show.
 */
#include <stdlib.h>

#include "core/assert.h"
#include "tls_forge.h"
#include "service/lock/tls_internal.h"

#define PADDED 2

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct world {
    struct mu_tls t;
    struct mu_tls them; /* shakes hands and reads; its records are the forge's */
    struct tls_forge forge;
    struct mu_buf sent;
    struct mu_buf got;
    struct mu_buf said;
    struct mu_buf heard;
    bool raw;  /* a byte that was sealed by nobody has come: it cannot go on */
    bool half; /* a message of a handshake has come that may lack its end */
    int err;
};

static struct mu_tls_context *contexts[2];

static void set_up(void)
{
    struct mu_tls_config config = {.token = MU_SPAN_LIT("0123456789abcdef0123456789abcdef")};
    struct mu_errmsg why;

    for (int i = 0; i < 2; i++) {
        MU_ASSERT(mu_tls_context_new(&config, &contexts[i], &why) == 0);
    }
    SSL_CTX_set_keylog_callback(contexts[1]->ctx, tls_forge_note);
}

/* Reads at one end what the other has said, in two pieces; its status. */
static int hear(struct mu_tls *t, struct mu_span in, size_t cut, size_t room, struct mu_buf *got)
{
    static uint8_t plain[MU_TLS_RECORD_MAX];
    struct mu_span parts[] = {mu_span(in.data, cut), mu_span_skip(in, cut)};
    int err = 0;

    for (int i = 0; i < 2; i++) {
        size_t len = 1;

        while (err == 0 && !t->peer_ended && (parts[i].len != 0 || len != 0)) {
            err = mu_tls_recv(t, &parts[i], plain, room, &len);
            MU_ASSERT(len <= room && (err == 0 || len == 0));
            MU_ASSERT(mu_buf_append(got, mu_span(plain, len)) == 0);
        }
    }
    return err;
}

/* What is said on one end is heard on the other. */
static int carry(struct mu_tls *from, struct mu_tls *to, struct mu_buf *got)
{
    struct mu_span out = mu_tls_output(from);
    int err = hear(to, out, 0, MU_TLS_RECORD_MAX, got);

    mu_tls_sent(from, out.len);
    return err;
}

static void world_init(struct world *w)
{
    *w = (struct world){0};
    mu_buf_init(&w->sent, 1u << 24);
    mu_buf_init(&w->got, 1u << 24);
    mu_buf_init(&w->said, 1u << 24);
    mu_buf_init(&w->heard, 1u << 24);
    MU_ASSERT(mu_tls_init(&w->t, contexts[0], NULL) == 0);
    MU_ASSERT(mu_tls_init(&w->them, contexts[1], "node1") == 0);
    MU_ASSERT(carry(&w->them, &w->t, &w->got) == 0);
    MU_ASSERT(carry(&w->t, &w->them, &w->heard) == 0);
    MU_ASSERT(carry(&w->them, &w->t, &w->got) == 0);
    MU_ASSERT(mu_tls_ready(&w->t) && mu_tls_ready(&w->them));
    tls_forge_init(&w->forge, true);
}

static void world_fini(struct world *w)
{
    mu_tls_fini(&w->t);
    mu_tls_fini(&w->them);
    mu_buf_fini(&w->sent);
    mu_buf_fini(&w->got);
    mu_buf_fini(&w->said);
    mu_buf_fini(&w->heard);
}

static bool is_update(uint8_t type, struct mu_span in)
{
    static const uint8_t head[] = {24, 0, 0, 1};

    return type == TLS_FORGE_HANDSHAKE && in.len == 5 && in.data[4] <= 1 &&
           memcmp(in.data, head, sizeof(head)) == 0;
}

static void send_record(struct world *w, uint8_t type, struct mu_span in, uint8_t how)
{
    static uint8_t record[MU_TLS_RECORD_MAX + TLS_FORGE_EXTRA];
    bool alive = w->err == 0 && !w->t.peer_ended && !w->raw;
    struct mu_span sealed;

    type = type == PADDED ? 0 : type;
    sealed = tls_forge_seal(&w->forge, type, in, record);
    if (w->err == 0) {
        w->err = hear(&w->t, sealed, sealed.len * how / 256, how % 4 == 0 ? 1 : MU_TLS_RECORD_MAX,
                      &w->got);
    }
    while (type == 0 && in.len != 0) {
        type = in.data[--in.len];
    }
    if (alive && type == TLS_FORGE_DATA) {
        MU_ASSERT(w->err == 0 || w->half || in.len == 0); /* Empty ones may become too many. */
        if (w->err == 0) {
            MU_ASSERT(mu_buf_append(&w->sent, in) == 0);
        }
    } else if (alive && is_update(type, in)) {
        MU_ASSERT(w->err == 0 || w->half);
        tls_forge_update(&w->forge);
    } else if (type == TLS_FORGE_HANDSHAKE) {
        w->half = true;
    }
}

static void say(struct world *w, struct mu_span in)
{
    size_t taken = 0;

    if (w->err == 0) {
        MU_ASSERT(mu_tls_write(&w->t, in, &taken) == 0);
        MU_ASSERT(taken == in.len || w->half || w->raw);
        MU_ASSERT(mu_buf_append(&w->said, mu_span(in.data, taken)) == 0);
    }
}

static void step(struct world *w, uint8_t type, struct mu_span in, uint8_t how)
{
    switch (type) {
    case 0:
        w->raw = w->raw || in.len != 0;
        if (w->err == 0) {
            w->err = hear(&w->t, in, in.len * how / 256, MU_TLS_RECORD_MAX, &w->got);
        }
        break;
    case 1:
        say(w, in);
        break;
    default:
        send_record(w, type, in, how);
        break;
    }
    /* They read all of it, and hear of what was refused. */
    MU_ASSERT(carry(&w->t, &w->them, &w->heard) == 0 || w->err != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world w;

    if (contexts[0] == NULL) {
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
    MU_ASSERT(mu_span_eq(mu_buf_span(&w.heard), mu_buf_span(&w.said)));
    world_fini(&w);
    return 0;
}
