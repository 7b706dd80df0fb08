/* The first bytes of a connection, at the side that listens. */
#include "proto/rpc/rpc.h"

#define GREETING_MAX (MU_RPC_MAGIC_LEN + MU_RPC_HEADER + MU_RPC_HELLO_MAX)

void mu_rpc_greet_init(struct mu_rpc_greet *g)
{
    mu_buf_init(&g->in, GREETING_MAX);
}

void mu_rpc_greet_fini(struct mu_rpc_greet *g)
{
    mu_buf_fini(&g->in);
}

int mu_rpc_greet_sniff(struct mu_span first)
{
    size_t n = first.len < MU_RPC_MAGIC_LEN ? first.len : MU_RPC_MAGIC_LEN;

    if (n != 0 && memcmp(first.data, MU_RPC_MAGIC, n) != 0) {
        return 0;
    }
    return n == MU_RPC_MAGIC_LEN ? 1 : MUSTER_EAGAIN;
}

/* Returns how many bytes the greeting has, as far as `have` tells: at first, those of the fixed
 * part. */
static int greeting_size(struct mu_span have, size_t *ret_size)
{
    struct mu_rpc_header h;
    int err;

    if (mu_rpc_greet_sniff(have) == 0) {
        return MUSTER_EPROTO;
    }
    *ret_size = MU_RPC_MAGIC_LEN + MU_RPC_HEADER;
    if (have.len < *ret_size) {
        return 0;
    }
    err = mu_rpc_header_decode(have.data + MU_RPC_MAGIC_LEN, &h);
    if (err != 0) {
        return err;
    }
    if (h.type != MU_RPC_HELLO || h.id != 0 || h.len > MU_RPC_HELLO_MAX) {
        return MUSTER_EPROTO;
    }
    *ret_size += h.len;
    return 0;
}

int mu_rpc_greet_recv(struct mu_rpc_greet *g, struct mu_span in, size_t *ret_used,
                      struct mu_rpc_hello *ret_hello)
{
    struct mu_rpc_hello hello;
    struct mu_span have;
    size_t used = 0;
    size_t size;
    int err;

    /* Reserves room for everything that may be taken, before any of it is. */
    err = mu_buf_reserve(&g->in, in.len < g->in.max - g->in.len ? in.len : g->in.max - g->in.len);
    if (err != 0) {
        return err;
    }
    for (;;) {
        size_t part;

        err = greeting_size(mu_buf_span(&g->in), &size);
        if (err != 0) {
            return err;
        }
        if (g->in.len == size) {
            break;
        }
        if (used == in.len) {
            *ret_used = used;
            return MUSTER_EAGAIN;
        }
        part = size - g->in.len < in.len - used ? size - g->in.len : in.len - used;
        mu_buf_put(&g->in, mu_span(in.data + used, part));
        used += part;
    }
    have = mu_span_skip(mu_buf_span(&g->in), MU_RPC_MAGIC_LEN);
    err = mu_rpc_hello_decode(mu_span_skip(have, MU_RPC_HEADER), &hello);
    if (err != 0) {
        return err;
    }
    hello.ack = mu_get_u64(have.data + 8);
    *ret_hello = hello;
    *ret_used = used;
    return 0;
}

int mu_rpc_refuse(struct mu_buf *out, int status, const char *text)
{
    struct mu_rpc_status s = {.status = status, .payload = mu_span_str(text)};
    struct mu_rpc_header h = {.type = MU_RPC_REFUSE};
    size_t at = out->len;
    int err = mu_buf_reserve(out, MU_RPC_HEADER + 4 + MU_RPC_MESSAGE_MAX);

    if (err != 0) {
        return err;
    }
    (void)mu_buf_grow(out, MU_RPC_HEADER);
    (void)mu_rpc_status_encode(out, &s); /* there is room, the text is cut */
    h.len = (uint32_t)(out->len - at - MU_RPC_HEADER);
    mu_rpc_header_encode(out->data + out->head + at, &h);
    return 0;
}
