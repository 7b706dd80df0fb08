#include "codec/stacks/pace.h"

#include <string.h>

#include <muster/error.h>

#include "core/reader.h"

#define VERSION     1
#define HEADER_SIZE 11

int mu_paces_encode(struct mu_buf *out, uint32_t span, struct mu_span node,
                    const struct mu_pace *paces, size_t count)
{
    int err;

    node.len = node.len < MU_PACE_NODE_MAX ? node.len : MU_PACE_NODE_MAX;
    if (count > MU_PACES_MAX) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, HEADER_SIZE + node.len + count * MU_PACE_SIZE);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(out, VERSION);
    mu_buf_put_u8(out, MU_PACE_SIZE);
    mu_buf_put_u32(out, span);
    mu_buf_put_u32(out, (uint32_t)count);
    mu_buf_put_u8(out, (uint8_t)node.len);
    mu_buf_put(out, node);
    for (size_t i = 0; i < count; i++) {
        mu_buf_put_u32(out, paces[i].rank);
        mu_buf_put_u16(out, paces[i].looks);
        mu_buf_put_u16(out, paces[i].waits);
        mu_buf_put_u16(out, paces[i].turns);
        mu_buf_put_u16(out, paces[i].delay_permille);
        mu_buf_put_u32(out, paces[i].marks);
    }
    return 0;
}

struct mu_pace mu_paces_at(const struct mu_paces *paces, size_t i)
{
    const uint8_t *at = paces->bytes.data + i * paces->stride;

    return (struct mu_pace){
        .rank = mu_get_u32(at),
        .looks = mu_get_u16(at + 4),
        .waits = mu_get_u16(at + 6),
        .turns = mu_get_u16(at + 8),
        .delay_permille = mu_get_u16(at + 10),
        .marks = mu_get_u32(at + 12),
    };
}

int mu_paces_decode(struct mu_span in, struct mu_paces *ret_paces)
{
    struct mu_reader r = mu_reader(in);
    uint8_t version = mu_read_u8(&r);
    struct mu_paces p = {.stride = mu_read_u8(&r)};

    p.span = mu_read_u32(&r);
    p.count = mu_read_u32(&r);
    p.node = mu_read_bytes(&r, mu_read_u8(&r));
    p.bytes = r.rest;
    if (r.failed || version != VERSION || p.stride < MU_PACE_SIZE) {
        return MUSTER_EPROTO;
    }
    if (p.count > MU_PACES_MAX || p.node.len > MU_PACE_NODE_MAX) {
        return MUSTER_ELIMIT;
    }
    if (p.bytes.len != p.stride * p.count) {
        return MUSTER_EPROTO;
    }
    for (size_t i = 0; i < p.count; i++) {
        struct mu_pace pace = mu_paces_at(&p, i);

        if (pace.waits > pace.looks || pace.turns > pace.looks || pace.delay_permille > 1000) {
            return MUSTER_EPROTO;
        }
    }
    *ret_paces = p;
    return 0;
}

/* --- stragglers ------------------------------------------------------------------------------- */

static void put_text(struct mu_buf *out, const char *text)
{
    mu_buf_put_u16(out, (uint16_t)strlen(text));
    mu_buf_put(out, mu_span_str(text));
}

int mu_stragglers_encode(struct mu_buf *out, const struct mu_stragglers *list)
{
    size_t bytes = 4;
    int err;

    if (list->count > MU_STRAGGLERS_MAX) {
        return MUSTER_ELIMIT;
    }
    for (size_t i = 0; i < list->count; i++) {
        bytes += 16 + strlen(list->list[i].node) + strlen(list->list[i].text);
    }
    err = mu_buf_reserve(out, bytes);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(out, VERSION);
    mu_buf_put_u16(out, list->typical_permille);
    mu_buf_put_u8(out, (uint8_t)list->count);
    for (size_t i = 0; i < list->count; i++) {
        const struct mu_straggler *s = &list->list[i];

        mu_buf_put_u32(out, s->rank);
        mu_buf_put_u32(out, s->rank_count);
        mu_buf_put_u16(out, s->kept_permille);
        mu_buf_put_u16(out, s->delay_permille);
        put_text(out, s->node);
        put_text(out, s->text);
    }
    return 0;
}

/* Takes a text that must fit, without a zero in it. */
static int take_text(struct mu_reader *r, char *to, size_t cap)
{
    struct mu_span text = mu_read_bytes(r, mu_read_u16(r));

    if (text.len >= cap) {
        return MUSTER_ELIMIT;
    }
    if (text.len != 0 && memchr(text.data, 0, text.len) != NULL) {
        return MUSTER_EPROTO;
    }
    if (text.len != 0) {
        memcpy(to, text.data, text.len);
    }
    to[text.len] = '\0';
    return 0;
}

static int take_straggler(struct mu_reader *r, struct mu_straggler *s)
{
    int err;

    s->rank = mu_read_u32(r);
    s->rank_count = mu_read_u32(r);
    s->kept_permille = mu_read_u16(r);
    s->delay_permille = mu_read_u16(r);
    err = take_text(r, s->node, sizeof(s->node));
    if (err == 0) {
        err = take_text(r, s->text, sizeof(s->text));
    }
    if (err == 0 && (s->rank_count == 0 || s->kept_permille > 1000 || s->delay_permille > 1000)) {
        err = MUSTER_EPROTO;
    }
    return err;
}

int mu_stragglers_decode(struct mu_span in, struct mu_stragglers *ret_list)
{
    struct mu_reader r = mu_reader(in);
    uint8_t version = mu_read_u8(&r);
    uint16_t typical = mu_read_u16(&r);
    size_t count = mu_read_u8(&r);
    int err = 0;

    if (r.failed || version != VERSION || typical > 1000) {
        return MUSTER_EPROTO;
    }
    if (count > MU_STRAGGLERS_MAX) {
        return MUSTER_ELIMIT;
    }
    *ret_list = (struct mu_stragglers){.typical_permille = typical};
    while (err == 0 && ret_list->count < count) {
        err = take_straggler(&r, &ret_list->list[ret_list->count]);
        ret_list->count += err == 0;
    }
    if (err == 0 && !mu_reader_done(&r)) {
        err = MUSTER_EPROTO;
    }
    return err;
}

bool mu_straggler_is(const struct mu_straggler *a, const struct mu_straggler *b)
{
    return a->rank == b->rank && (a->rank_count == 1) == (b->rank_count == 1);
}
