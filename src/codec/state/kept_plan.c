#include "codec/state/kept_plan.h"

#include "core/alloc.h"

#define FORMAT  1u
#define NO_NODE UINT32_MAX

/* --- a holding -------------------------------------------------------------------------------- */

static uint8_t *put_text(uint8_t *at, struct mu_span text)
{
    *at = (uint8_t)text.len;
    if (text.len != 0) {
        memcpy(at + 1, text.data, text.len);
    }
    return at + 1 + text.len;
}

int mu_kept_holding_encode(const struct mu_kept_holding *h, struct mu_buf *out)
{
    size_t len = 4 + 1 + 1 + 1 + h->addr.len + 1 + h->topology.len + 4 +
                 h->head_count * MU_KEPT_REPORT_ENTRY_LEN;
    uint8_t *at;
    int err;

    if (h->addr.len == 0 || h->addr.len > MU_KEPT_TEXT_MAX || h->topology.len > MU_KEPT_TEXT_MAX ||
        h->head_count > MU_KEPT_HELD_MAX || h->copies == 0 || h->copies > MU_KEPT_COPIES_MAX) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, len);
    if (err != 0) {
        return err;
    }
    at = mu_buf_grow(out, len);
    memcpy(at, "MUKC", 4);
    at[4] = FORMAT;
    at[5] = (uint8_t)h->copies;
    at = put_text(at + 6, h->addr);
    at = put_text(at, h->topology);
    mu_put_u32(at, (uint32_t)h->head_count);
    at += 4;
    for (size_t i = 0; i < h->head_count; i++, at += MU_KEPT_REPORT_ENTRY_LEN) {
        mu_kept_entry_put(at, &h->heads[i]);
    }
    return 0;
}

int mu_kept_holding_decode(struct mu_span in, struct mu_kept_holding *ret_holding)
{
    struct mu_reader r = mu_reader(in);
    struct mu_kept_holding h = {0};
    bool ok = mu_span_eq(mu_read_bytes(&r, 4), MU_SPAN_LIT("MUKC")) && mu_read_u8(&r) == FORMAT;

    h.copies = mu_read_u8(&r);
    h.addr = mu_read_bytes(&r, mu_read_u8(&r));
    h.topology = mu_read_bytes(&r, mu_read_u8(&r));
    h.head_count = mu_read_u32(&r);
    if (!ok || r.failed || h.copies == 0 || h.copies > MU_KEPT_COPIES_MAX || h.addr.len == 0 ||
        h.head_count > MU_KEPT_HELD_MAX || r.rest.len != h.head_count * MU_KEPT_REPORT_ENTRY_LEN) {
        return MUSTER_EPROTO;
    }
    h.heads = mu_calloc(h.head_count + 1, sizeof(*h.heads));
    if (h.heads == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < h.head_count; i++) {
        if (!mu_kept_entry_read(&r, &h.heads[i])) {
            mu_free(h.heads);
            return MUSTER_EPROTO;
        }
    }
    *ret_holding = h;
    return 0;
}

/* --- a plan ----------------------------------------------------------------------------------- */

static void put_fetch(uint8_t *at, const struct mu_kept_fetch *f)
{
    mu_put_u32(at, f->rank);
    for (uint32_t i = 0; i < MU_KEPT_SOURCES_MAX; i++) {
        mu_put_u32(at + 4 + 4 * (size_t)i, i < f->node_count ? f->nodes[i] : NO_NODE);
    }
}

int mu_kept_plan_encode(const struct mu_kept_plan *p, struct mu_buf *out)
{
    size_t len = MU_KEPT_PLAN_HEAD_LEN + 8 + p->fetch_count * MU_KEPT_FETCH_LEN +
                 p->part_count * MU_KEPT_PART_LEN;
    uint8_t *at;
    int err;

    if (p->fetch_count > MU_KEPT_FETCHES_MAX || p->part_count > MU_KEPT_PARTS_MAX ||
        p->copies > MU_KEPT_COPIES_MAX) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, len);
    if (err != 0) {
        return err;
    }
    at = mu_buf_grow(out, len);
    memcpy(at, "MUKP", 4);
    at[4] = FORMAT;
    mu_kept_answer_encode(&p->answer, at + 5);
    at[5 + MU_KEPT_ANSWER_LEN] = (uint8_t)p->copies;
    at += MU_KEPT_PLAN_HEAD_LEN;
    mu_put_u32(at, (uint32_t)p->fetch_count);
    at += 4;
    for (size_t i = 0; i < p->fetch_count; i++, at += MU_KEPT_FETCH_LEN) {
        put_fetch(at, &p->fetches[i]);
    }
    mu_put_u32(at, (uint32_t)p->part_count);
    at += 4;
    for (size_t i = 0; i < p->part_count; i++, at += MU_KEPT_PART_LEN) {
        mu_put_u32(at, p->parts[i].nodes);
        mu_put_u32(at + 4, p->parts[i].key);
    }
    return 0;
}

/* Nodes come before what stands for none, and none comes twice. */
static bool read_fetch(struct mu_reader *r, struct mu_kept_fetch *ret)
{
    bool ok = true;

    ret->rank = mu_read_u32(r);
    ret->node_count = 0;
    for (uint32_t i = 0; i < MU_KEPT_SOURCES_MAX; i++) {
        uint32_t node = mu_read_u32(r);

        ok = ok && (node == NO_NODE || ret->node_count == i);
        for (uint32_t k = 0; k < ret->node_count; k++) {
            ok = ok && (node == NO_NODE || node != ret->nodes[k]);
        }
        if (node != NO_NODE) {
            ret->nodes[ret->node_count++] = node;
        }
    }
    return ok && !r->failed && ret->node_count != 0;
}

static int read_fetches(struct mu_reader *r, struct mu_kept_plan *p)
{
    size_t count = mu_read_u32(r);

    if (r->failed || count > MU_KEPT_FETCHES_MAX || count > r->rest.len / MU_KEPT_FETCH_LEN) {
        return MUSTER_EPROTO;
    }
    p->fetches = mu_calloc(count + 1, sizeof(*p->fetches));
    if (p->fetches == NULL) {
        return MUSTER_ENOMEM;
    }
    for (; p->fetch_count < count; p->fetch_count++) {
        struct mu_kept_fetch *f = &p->fetches[p->fetch_count];

        if (!read_fetch(r, f) || (p->fetch_count != 0 && f[-1].rank >= f->rank) ||
            !p->answer.found) {
            return MUSTER_EPROTO;
        }
    }
    return 0;
}

static int read_parts(struct mu_reader *r, struct mu_kept_plan *p)
{
    size_t count = mu_read_u32(r);

    if (r->failed || count > MU_KEPT_PARTS_MAX || r->rest.len != count * MU_KEPT_PART_LEN) {
        return MUSTER_EPROTO;
    }
    p->parts = mu_calloc(count + 1, sizeof(*p->parts));
    if (p->parts == NULL) {
        return MUSTER_ENOMEM;
    }
    for (; p->part_count < count; p->part_count++) {
        struct mu_kept_part *part = &p->parts[p->part_count];

        part->nodes = mu_read_u32(r);
        part->key = mu_read_u32(r);
        if (part->nodes == 0) {
            return MUSTER_EPROTO;
        }
    }
    return 0;
}

int mu_kept_plan_decode(struct mu_span in, struct mu_kept_plan *ret_plan)
{
    struct mu_reader r = mu_reader(in);
    struct mu_kept_plan p = {0};
    int err = MUSTER_EPROTO;

    if (mu_span_eq(mu_read_bytes(&r, 4), MU_SPAN_LIT("MUKP")) && mu_read_u8(&r) == FORMAT &&
        mu_kept_answer_decode(mu_read_bytes(&r, MU_KEPT_ANSWER_LEN), &p.answer) == 0) {
        p.copies = mu_read_u8(&r);
        err = p.copies > MU_KEPT_COPIES_MAX ? MUSTER_EPROTO : read_fetches(&r, &p);
        err = err != 0 ? err : read_parts(&r, &p);
    }
    if (err != 0) {
        mu_kept_plan_fini(&p);
        return err;
    }
    *ret_plan = p;
    return 0;
}

void mu_kept_plan_fini(struct mu_kept_plan *plan)
{
    mu_free(plan->fetches);
    mu_free(plan->parts);
    *plan = (struct mu_kept_plan){0};
}
