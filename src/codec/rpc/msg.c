#include "codec/rpc/msg.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "core/reader.h"

bool mu_rpc_worker_name_ok(struct mu_span name)
{
    if (name.len == 0 || name.len > MU_RPC_WORKER_MAX) {
        return false;
    }
    for (size_t i = 0; i < name.len; i++) {
        uint8_t c = name.data[i];

        if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
              c == '-' || c == '_' || c == ':')) {
            return false;
        }
    }
    return true;
}

/* --- messages --------------------------------------------------------------------------------- */

int mu_rpc_msg_size(const struct mu_rpc_part *parts, size_t count, size_t *ret_size)
{
    size_t size = 0;

    for (size_t i = 0; i < count; i++) {
        if (parts[i].data.len > SIZE_MAX / 4 - size) {
            return MUSTER_ELIMIT;
        }
        size += parts[i].data.len;
    }
    *ret_size = size;
    return 0;
}

int mu_rpc_msg_head(struct mu_buf *out, const struct mu_rpc_part *parts, size_t count)
{
    int err;

    if (count > MU_RPC_PARTS_MAX) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, 3 + count * 12);
    if (err != 0) {
        return err;
    }
    if (count == 1 && parts[0].device == -1 && parts[0].data.len <= MU_RPC_MSG_LONG) {
        mu_buf_put_u8(out, 0);
        return 0;
    }
    mu_buf_put_u8(out, 1);
    mu_buf_put_u16(out, (uint16_t)count);
    for (size_t i = 0; i < count; i++) {
        mu_buf_put_u64(out, parts[i].data.len);
        mu_buf_put_u32(out, (uint32_t)parts[i].device);
    }
    return 0;
}

int mu_rpc_msg_total(struct mu_span first, size_t *ret_head, size_t *ret_total)
{
    struct mu_reader r = mu_reader(first);
    uint8_t kind = mu_read_u8(&r);
    size_t count = mu_read_u16(&r);
    size_t total = 3 + count * 12;

    if (r.failed || kind != 1 || first.len < total) {
        return MUSTER_EPROTO;
    }
    *ret_head = total;
    for (size_t i = 0; i < count; i++) {
        uint64_t len = mu_read_u64(&r);

        (void)mu_read_u32(&r);
        if (len > SIZE_MAX / 4 - total) {
            return MUSTER_EPROTO;
        }
        total += (size_t)len;
    }
    *ret_total = total;
    return 0;
}

static int decode_parts(struct mu_reader *r, struct mu_rpc_part **ret_parts, size_t *ret_count)
{
    size_t count = mu_read_u16(r);
    struct mu_rpc_part *parts;
    struct mu_reader bytes = *r;

    /* Checks that the table is there before taking memory for it. */
    (void)mu_read_bytes(&bytes, (uint64_t)count * 12);
    if (bytes.failed) {
        return MUSTER_EPROTO;
    }
    parts = mu_calloc(count + 1, sizeof(*parts));
    if (parts == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t len = mu_read_u64(r);

        parts[i].device = (int32_t)mu_read_u32(r);
        parts[i].data = mu_read_bytes(&bytes, len);
    }
    if (!mu_reader_done(&bytes)) {
        mu_free(parts);
        return MUSTER_EPROTO;
    }
    *ret_parts = parts;
    *ret_count = count;
    return 0;
}

int mu_rpc_msg_decode(struct mu_span in, struct mu_rpc_part **ret_parts, size_t *ret_count)
{
    struct mu_reader r = mu_reader(in);
    uint8_t kind = mu_read_u8(&r);
    struct mu_rpc_part *one;

    if (r.failed || kind > 1) {
        return MUSTER_EPROTO;
    }
    if (kind == 1) {
        return decode_parts(&r, ret_parts, ret_count);
    }
    one = mu_calloc(1, sizeof(*one));
    if (one == NULL) {
        return MUSTER_ENOMEM;
    }
    *one = (struct mu_rpc_part){.data = r.rest, .device = -1};
    *ret_parts = one;
    *ret_count = 1;
    return 0;
}

/* --- keys and cards --------------------------------------------------------------------------- */

int mu_rpc_key_encode(struct mu_buf *out, const struct mu_rpc_key *key)
{
    int err = mu_buf_reserve(out, MU_RPC_KEY_LEN);

    if (err != 0) {
        return err;
    }
    mu_buf_put(out, mu_span(key->caller, sizeof(key->caller)));
    mu_buf_put_u64(out, key->seq);
    mu_buf_put_u64(out, key->floor);
    mu_buf_put_u8(out, key->again ? 1 : 0);
    return 0;
}

int mu_rpc_key_decode(struct mu_span *in, struct mu_rpc_key *ret)
{
    struct mu_reader r = mu_reader(*in);
    struct mu_span caller = mu_read_bytes(&r, sizeof(ret->caller));
    uint8_t again;

    ret->seq = mu_read_u64(&r);
    ret->floor = mu_read_u64(&r);
    again = mu_read_u8(&r);
    if (r.failed || again > 1) {
        return MUSTER_EPROTO;
    }
    memcpy(ret->caller, caller.data, sizeof(ret->caller));
    ret->again = again == 1;
    *in = r.rest;
    return 0;
}

int mu_rpc_card_encode(struct mu_buf *out, const struct mu_rpc_card *card)
{
    int err = card->meant.len > MU_RPC_WORKER_MAX ? MUSTER_ELIMIT
                                                  : mu_buf_reserve(out, MU_RPC_CREDENTIAL_LEN);

    if (err != 0) {
        return err;
    }
    mu_buf_put(out, MU_SPAN_LIT("MRPC"));
    mu_buf_put_u8(out, 1);
    mu_buf_put_u32(out, (uint32_t)card->id);
    mu_buf_put(out, mu_span(card->incarnation, sizeof(card->incarnation)));
    mu_buf_put_u8(out, (uint8_t)card->meant.len);
    mu_buf_put(out, card->meant);
    return 0;
}

int mu_rpc_card_decode(struct mu_span in, struct mu_rpc_card *ret)
{
    struct mu_reader r = mu_reader(in);
    struct mu_span magic = mu_read_bytes(&r, 4);
    uint8_t version = mu_read_u8(&r);
    int32_t id = (int32_t)mu_read_u32(&r);
    struct mu_span incarnation = mu_read_bytes(&r, sizeof(ret->incarnation));
    struct mu_span meant = mu_read_bytes(&r, mu_read_u8(&r));

    if (!mu_reader_done(&r) || !mu_span_eq(magic, MU_SPAN_LIT("MRPC")) || version != 1 || id < -1 ||
        id > INT16_MAX || meant.len > MU_RPC_WORKER_MAX) {
        return MUSTER_EPROTO;
    }
    ret->id = id;
    memcpy(ret->incarnation, incarnation.data, sizeof(ret->incarnation));
    ret->meant = meant;
    return 0;
}
