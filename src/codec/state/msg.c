#include "codec/state/msg.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "core/reader.h"

#define HOUR_MS UINT32_C(3600000)

enum {
    WHICH_ID = 1,
    WHICH_PREFIX = 2,
};

/* --- list ------------------------------------------------------------------------------------- */

int mu_state_entry_encode(struct mu_buf *out, const struct mu_state_entry *entry)
{
    uint64_t priority;
    int err;

    if (entry->prefix.len > MU_STATE_PREFIX_MAX || isnan(entry->priority) ||
        entry->public_key.len > MU_STATE_KEY_LEN_MAX ||
        entry->signature.len > MU_STATE_SIG_LEN_MAX) {
        return MUSTER_EINVAL;
    }
    err = mu_buf_reserve(out, MU_STATE_ENTRY_MAX);
    if (err != 0) {
        return err;
    }
    memcpy(&priority, &entry->priority, sizeof(priority));
    mu_buf_put_u8(out, (uint8_t)entry->prefix.len);
    mu_buf_put(out, entry->prefix);
    mu_buf_put(out, mu_span(entry->id, MU_STATE_ID_LEN));
    mu_buf_put_u64(out, entry->epoch);
    mu_buf_put_u64(out, entry->step);
    mu_buf_put_u64(out, entry->bytes);
    mu_buf_put_u32(out, entry->tensors);
    mu_buf_put_u64(out, priority);
    mu_buf_put_u32(out, entry->have);
    mu_buf_put_u32(out, entry->chunks);
    mu_buf_put_u16(out, (uint16_t)entry->public_key.len);
    mu_buf_put(out, entry->public_key);
    mu_buf_put_u16(out, (uint16_t)entry->signature.len);
    mu_buf_put(out, entry->signature);
    return 0;
}

int mu_state_entry_next(struct mu_span *walk, struct mu_state_entry *ret)
{
    struct mu_reader r = mu_reader(*walk);
    struct mu_state_entry entry;
    struct mu_span id;
    uint64_t priority;

    if (walk->len == 0) {
        return 0;
    }
    entry.prefix = mu_read_bytes(&r, mu_read_u8(&r));
    id = mu_read_bytes(&r, MU_STATE_ID_LEN);
    entry.epoch = mu_read_u64(&r);
    entry.step = mu_read_u64(&r);
    entry.bytes = mu_read_u64(&r);
    entry.tensors = mu_read_u32(&r);
    priority = mu_read_u64(&r);
    entry.have = mu_read_u32(&r);
    entry.chunks = mu_read_u32(&r);
    entry.public_key = mu_read_bytes(&r, mu_read_u16(&r));
    entry.signature = mu_read_bytes(&r, mu_read_u16(&r));
    memcpy(&entry.priority, &priority, sizeof(priority));
    if (r.failed || entry.prefix.len > MU_STATE_PREFIX_MAX || isnan(entry.priority) ||
        entry.have > entry.chunks || entry.chunks > MU_STATE_CHUNKS_MAX ||
        entry.public_key.len > MU_STATE_KEY_LEN_MAX || entry.signature.len > MU_STATE_SIG_LEN_MAX) {
        return MUSTER_EPROTO;
    }
    memcpy(entry.id, id.data, MU_STATE_ID_LEN);
    *walk = r.rest;
    *ret = entry;
    return 1;
}

/* --- offer ------------------------------------------------------------------------------------ */

int mu_state_which_encode(struct mu_buf *out, const struct mu_state_which *which)
{
    struct mu_span what = which->by_id ? mu_span(which->id, MU_STATE_ID_LEN) : which->prefix;
    int err;

    if (!which->by_id && which->prefix.len > MU_STATE_PREFIX_MAX) {
        return MUSTER_EINVAL;
    }
    err = mu_buf_reserve(out, 1 + what.len);
    if (err == 0) {
        mu_buf_put_u8(out, which->by_id ? WHICH_ID : WHICH_PREFIX);
        mu_buf_put(out, what);
    }
    return err;
}

int mu_state_which_decode(struct mu_span in, struct mu_state_which *ret)
{
    struct mu_reader r = mu_reader(in);
    uint8_t kind = mu_read_u8(&r);

    if (kind == WHICH_ID && r.rest.len == MU_STATE_ID_LEN) {
        *ret = (struct mu_state_which){.by_id = true};
        memcpy(ret->id, r.rest.data, MU_STATE_ID_LEN);
        return 0;
    }
    if (kind == WHICH_PREFIX && r.rest.len <= MU_STATE_PREFIX_MAX) {
        *ret = (struct mu_state_which){.prefix = r.rest};
        return 0;
    }
    return MUSTER_EPROTO;
}

/* --- swarm ------------------------------------------------------------------------------------ */

int mu_state_swarm_ask_encode(struct mu_buf *out, const struct mu_state_swarm_ask *ask)
{
    int err;

    if (ask->addr.len > MU_STATE_ADDR_MAX) {
        return MUSTER_EINVAL;
    }
    err = mu_buf_reserve(out, MU_STATE_ID_LEN + 1 + ask->addr.len);
    if (err == 0) {
        mu_buf_put(out, mu_span(ask->id, MU_STATE_ID_LEN));
        mu_buf_put_u8(out, (uint8_t)ask->addr.len);
        mu_buf_put(out, ask->addr);
    }
    return err;
}

int mu_state_swarm_ask_decode(struct mu_span in, struct mu_state_swarm_ask *ret)
{
    struct mu_reader r = mu_reader(in);
    struct mu_span id = mu_read_bytes(&r, MU_STATE_ID_LEN);
    struct mu_span addr = mu_read_bytes(&r, mu_read_u8(&r));

    if (!mu_reader_done(&r)) {
        return MUSTER_EPROTO;
    }
    memcpy(ret->id, id.data, MU_STATE_ID_LEN);
    ret->addr = addr;
    return 0;
}

static bool is_part(const struct mu_state_swarm_head *head)
{
    return head->parts == 0 ? head->part == 0 : head->part < head->parts;
}

int mu_state_swarm_encode(struct mu_buf *out, const struct mu_state_swarm_head *head)
{
    int err = is_part(head) ? mu_buf_reserve(out, 4 + 2 + 2) : MUSTER_EINVAL;

    if (err == 0) {
        mu_buf_put_u32(out, head->again_ms);
        mu_buf_put_u16(out, head->part);
        mu_buf_put_u16(out, head->parts);
    }
    return err;
}

int mu_state_swarm_add(struct mu_buf *out, struct mu_span addr)
{
    int err;

    if (addr.len == 0 || addr.len > MU_STATE_ADDR_MAX) {
        return MUSTER_EINVAL;
    }
    err = mu_buf_reserve(out, 1 + addr.len);
    if (err == 0) {
        mu_buf_put_u8(out, (uint8_t)addr.len);
        mu_buf_put(out, addr);
    }
    return err;
}

int mu_state_swarm_next(struct mu_span *walk, struct mu_span *ret_addr)
{
    struct mu_reader r = mu_reader(*walk);
    struct mu_span addr;

    if (walk->len == 0) {
        return 0;
    }
    addr = mu_read_bytes(&r, mu_read_u8(&r));
    if (r.failed || addr.len == 0) {
        return MUSTER_EPROTO;
    }
    *walk = r.rest;
    *ret_addr = addr;
    return 1;
}

int mu_state_swarm_decode(struct mu_span in, struct mu_state_swarm_head *ret,
                          struct mu_span *ret_walk)
{
    struct mu_reader r = mu_reader(in);
    struct mu_state_swarm_head head;
    struct mu_span walk;
    struct mu_span addr;
    size_t count = 0;
    int got = 0;

    head.again_ms = mu_read_u32(&r);
    head.part = mu_read_u16(&r);
    head.parts = mu_read_u16(&r);
    walk = r.rest;
    while (!r.failed && (got = mu_state_swarm_next(&walk, &addr)) == 1) {
        count++;
    }
    if (r.failed || !is_part(&head) || got < 0 || count > MU_STATE_SWARM_MAX) {
        return MUSTER_EPROTO;
    }
    *ret = head;
    *ret_walk = r.rest;
    return 0;
}

/* --- have ------------------------------------------------------------------------------------- */

int mu_state_have_encode(struct mu_buf *out, const struct mu_state_have *have)
{
    size_t len = have->all ? 0 : have->bits.len;
    int err = len > SIZE_MAX - 1 ? MUSTER_ELIMIT : mu_buf_reserve(out, 1 + len);

    if (err == 0) {
        mu_buf_put_u8(out, have->all ? 1 : 0);
        mu_buf_put(out, mu_span(have->bits.data, len));
    }
    return err;
}

int mu_state_have_decode(struct mu_span in, uint32_t chunks, struct mu_state_have *ret)
{
    struct mu_reader r = mu_reader(in);
    uint8_t all = mu_read_u8(&r);

    if (r.failed || all > 1 || r.rest.len != (all == 1 ? 0 : mu_state_bits_len(chunks))) {
        return MUSTER_EPROTO;
    }
    if (all == 0 && chunks % 8 != 0 && r.rest.data[chunks / 8] >> (chunks % 8) != 0) {
        return MUSTER_EPROTO;
    }
    *ret = (struct mu_state_have){.all = all == 1, .bits = r.rest};
    return 0;
}

/* --- fetch ------------------------------------------------------------------------------------ */

int mu_state_id_decode(struct mu_span in, uint8_t ret[MU_STATE_ID_LEN])
{
    if (in.len != MU_STATE_ID_LEN) {
        return MUSTER_EPROTO;
    }
    memcpy(ret, in.data, MU_STATE_ID_LEN);
    return 0;
}

int mu_state_ask_next(struct mu_span *walk, uint32_t chunks, uint32_t *ret_chunk)
{
    struct mu_reader r = mu_reader(*walk);
    uint32_t chunk;

    if (walk->len == 0) {
        return 0;
    }
    chunk = mu_read_u32(&r);
    if (r.failed || walk->len > 4 * MU_STATE_ASK_MAX || chunk >= chunks) {
        return MUSTER_EPROTO;
    }
    *walk = r.rest;
    *ret_chunk = chunk;
    return 1;
}

char *mu_state_busy_text(char out[MU_STATE_BUSY_TEXT_MAX], uint32_t retry_ms)
{
    (void)snprintf(out, MU_STATE_BUSY_TEXT_MAX, "no slot is free; retry after %" PRIu32 " ms",
                   retry_ms);
    return out;
}

/* Reads the number after the last "after ", so that the words around it may change. */
uint32_t mu_state_busy_parse(struct mu_span text, uint32_t otherwise)
{
    static const char mark[] = "after ";
    const size_t mark_len = sizeof(mark) - 1;
    uint64_t ms = 0;
    size_t at = text.len;
    bool any = false;

    while (at >= mark_len && memcmp(text.data + at - mark_len, mark, mark_len) != 0) {
        at--;
    }
    if (at < mark_len) {
        return otherwise;
    }
    for (; at < text.len && text.data[at] >= '0' && text.data[at] <= '9'; at++) {
        ms = ms * 10 + (uint64_t)(text.data[at] - '0');
        ms = ms > HOUR_MS ? HOUR_MS : ms;
        any = true;
    }
    return any ? (uint32_t)ms : otherwise;
}
