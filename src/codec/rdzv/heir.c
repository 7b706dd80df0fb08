#include "codec/rdzv/heir.h"

#include <muster/error.h>

#include "codec/rdzv/msg_internal.h"

/* --- what a node was told --------------------------------------------------------------------- */

void mu_rdzv_electorate_put(struct mu_buf *out, const struct mu_rdzv_electorate *e)
{
    mu_buf_put_u64(out, e->term);
    mu_buf_put_u64(out, e->round);
    mu_buf_put_u32(out, e->world);
    mu_buf_put_u32(out, e->rank);
    mu_buf_put_u64(out, e->incarnation);
}

static bool read_electorate(struct mu_reader *r, struct mu_rdzv_electorate *ret)
{
    ret->term = mu_read_u64(r);
    ret->round = mu_read_u64(r);
    ret->world = mu_read_u32(r);
    ret->rank = mu_read_u32(r);
    ret->incarnation = mu_read_u64(r);
    return !r->failed && ret->world != 0 && (ret->rank < ret->world || ret->rank == UINT32_MAX);
}

int mu_rdzv_view_put(struct mu_buf *out, const struct mu_rdzv_view *view)
{
    bool told = view->told.world != 0;
    size_t count = (size_t)view->count + view->past_count + (told ? 1 : 0);
    int err = view->count > MU_RDZV_ELECTORATES_MAX || view->past_count > MU_RDZV_ELECTORATES_MAX
                  ? MUSTER_ELIMIT
                  : mu_buf_reserve(out, 2 * 8 + 4 + count * MU_RDZV_ELECTORATE_BYTES);

    if (err != 0) {
        return err;
    }
    mu_buf_put_u64(out, view->term);
    mu_buf_put_u64(out, view->round);
    mu_buf_put_u8(out, (uint8_t)view->step);
    mu_buf_put_u8(out, (uint8_t)view->count);
    mu_buf_put_u8(out, told);
    mu_buf_put_u8(out, (uint8_t)view->past_count);
    for (uint32_t i = 0; i < view->count; i++) {
        mu_rdzv_electorate_put(out, &view->may[i]);
    }
    if (told) {
        mu_rdzv_electorate_put(out, &view->told);
    }
    for (uint32_t i = 0; i < view->past_count; i++) {
        mu_rdzv_electorate_put(out, &view->past[i]);
    }
    return 0;
}

bool mu_rdzv_electorates_read(struct mu_reader *r, struct mu_rdzv_electorate *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!read_electorate(r, &list[i])) {
            return false;
        }
    }
    return true;
}

bool mu_rdzv_view_read(struct mu_span in, struct mu_rdzv_view *ret_view)
{
    struct mu_reader r = mu_reader(in);
    struct mu_rdzv_view view = {0};
    uint8_t told;

    view.term = mu_read_u64(&r);
    view.round = mu_read_u64(&r);
    view.step = mu_read_u8(&r);
    view.count = mu_read_u8(&r);
    told = mu_read_u8(&r);
    view.past_count = mu_read_u8(&r);
    if (r.failed || view.step > MU_RDZV_STEP_MAX || view.count > MU_RDZV_ELECTORATES_MAX ||
        view.past_count > MU_RDZV_ELECTORATES_MAX || told > 1 ||
        (view.count != 0) != (view.step != 0) ||
        !mu_rdzv_electorates_read(&r, view.may, view.count) ||
        !mu_rdzv_electorates_read(&r, &view.told, told) ||
        !mu_rdzv_electorates_read(&r, view.past, view.past_count)) {
        return false;
    }
    *ret_view = view;
    return true;
}

/* --- the line, and the legacy ----------------------------------------------------------------- */

int mu_rdzv_heir_encode(struct mu_buf *out, const struct mu_rdzv_heir *heir)
{
    int err;

    if (heir->node.len > MU_RDZV_NAME_LEN_MAX || heir->addr.len > MU_RDZV_NAME_LEN_MAX) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, 2 + heir->node.len + heir->addr.len);
    if (err != 0) {
        return err;
    }
    mu_rdzv_name_put(out, heir->node);
    mu_rdzv_name_put(out, heir->addr);
    return 0;
}

int mu_rdzv_heir_next(struct mu_span *line, struct mu_rdzv_heir *ret_heir)
{
    struct mu_reader r = mu_reader(*line);
    struct mu_rdzv_heir heir;

    if (line->len == 0) {
        return MUSTER_ENOENT;
    }
    heir.node = mu_rdzv_name_read(&r);
    heir.addr = mu_rdzv_name_read(&r);
    if (r.failed || heir.addr.len == 0) {
        return MUSTER_EPROTO;
    }
    *line = r.rest;
    *ret_heir = heir;
    return 0;
}

bool mu_rdzv_line_fits(struct mu_span line)
{
    struct mu_rdzv_heir heir;
    size_t count = 0;
    int err;

    while ((err = mu_rdzv_heir_next(&line, &heir)) == 0) {
        if (++count > MU_RDZV_LINE_MAX) {
            return false;
        }
    }
    return err == MUSTER_ENOENT;
}

int mu_rdzv_legacy_encode(struct mu_buf *out, const struct mu_rdzv_legacy *legacy)
{
    size_t size = 1 + 10 * 8 + 9 * 4 + 1 + 1 + legacy->host.len + 1 + legacy->topology.len + 2 +
                  legacy->excluded.len;
    int err;

    if (legacy->excluded.len > MU_RDZV_LEGACY_EXCLUDED_MAX ||
        legacy->host.len > MU_RDZV_NAME_LEN_MAX || legacy->topology.len > MU_RDZV_NAME_LEN_MAX) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, size);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(out, MU_RDZV_MSG_VERSION);
    mu_buf_put_u64(out, legacy->term);
    mu_buf_put_u64(out, legacy->round);
    mu_buf_put_u64(out, legacy->version);
    mu_buf_put_u64(out, legacy->incarnation);
    mu_buf_put_u32(out, legacy->restarts);
    mu_buf_put_u64(out, legacy->losses_for_ms);
    mu_buf_put_u8(out, legacy->closed);
    mu_buf_put_u32(out, legacy->members);
    mu_buf_put_u32(out, legacy->nodes_min);
    mu_buf_put_u32(out, legacy->nodes_max);
    mu_buf_put_u32(out, legacy->members_max);
    mu_buf_put_u32(out, legacy->restarts_max);
    mu_buf_put_u32(out, legacy->losses_max);
    mu_buf_put_u64(out, legacy->losses_ms);
    mu_buf_put_u64(out, legacy->last_call_ms);
    mu_buf_put_u64(out, legacy->upscale_delay_ms);
    mu_buf_put_u32(out, legacy->exclude_after);
    mu_buf_put_u64(out, legacy->exclude_within_ms);
    mu_buf_put_u64(out, legacy->exclude_for_ms);
    mu_rdzv_name_put(out, legacy->host);
    mu_rdzv_name_put(out, legacy->topology);
    mu_buf_put_u32(out, legacy->rank);
    mu_buf_put_u16(out, (uint16_t)legacy->excluded.len);
    mu_buf_put(out, legacy->excluded);
    return 0;
}

int mu_rdzv_legacy_decode(struct mu_span in, struct mu_rdzv_legacy *ret_legacy)
{
    struct mu_reader r = mu_rdzv_version_read(in);
    struct mu_rdzv_legacy legacy = {0};
    uint8_t closed;

    legacy.term = mu_read_u64(&r);
    legacy.round = mu_read_u64(&r);
    legacy.version = mu_read_u64(&r);
    legacy.incarnation = mu_read_u64(&r);
    legacy.restarts = mu_read_u32(&r);
    legacy.losses_for_ms = mu_read_u64(&r);
    closed = mu_read_u8(&r);
    legacy.members = mu_read_u32(&r);
    legacy.nodes_min = mu_read_u32(&r);
    legacy.nodes_max = mu_read_u32(&r);
    legacy.members_max = mu_read_u32(&r);
    legacy.restarts_max = mu_read_u32(&r);
    legacy.losses_max = mu_read_u32(&r);
    legacy.losses_ms = mu_read_u64(&r);
    legacy.last_call_ms = mu_read_u64(&r);
    legacy.upscale_delay_ms = mu_read_u64(&r);
    legacy.exclude_after = mu_read_u32(&r);
    legacy.exclude_within_ms = mu_read_u64(&r);
    legacy.exclude_for_ms = mu_read_u64(&r);
    legacy.host = mu_rdzv_name_read(&r);
    legacy.topology = mu_rdzv_name_read(&r);
    legacy.rank = mu_read_u32(&r);
    legacy.excluded = mu_read_bytes(&r, mu_read_u16(&r));
    if (r.failed || in.len > MU_RDZV_LEGACY_MAX || closed > 1 || legacy.members == 0 ||
        legacy.nodes_min == 0 || legacy.nodes_max < legacy.nodes_min ||
        legacy.members_max < legacy.nodes_max || legacy.exclude_after > MU_RDZV_FAILURES_MAX ||
        legacy.excluded.len > MU_RDZV_LEGACY_EXCLUDED_MAX) {
        return MUSTER_EPROTO;
    }
    legacy.closed = closed == 1;
    *ret_legacy = legacy;
    return 0;
}

/* --- the call --------------------------------------------------------------------------------- */

int mu_rdzv_promise_encode(struct mu_buf *out, const struct mu_rdzv_promise *p)
{
    const struct mu_span names[] = {p->run_id, p->node, p->addr, p->lost};
    size_t size = 1 + 1 + 4 + 3 * 8 + 4 + 2 + p->legacy.len;
    int err;

    if (p->legacy.len > MU_RDZV_LEGACY_MAX) {
        return MUSTER_ELIMIT;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].len > MU_RDZV_NAME_LEN_MAX) {
            return MUSTER_ELIMIT;
        }
        size += names[i].len;
    }
    err = mu_buf_reserve(out, size);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(out, MU_RDZV_MSG_VERSION);
    mu_buf_put_u8(out, (uint8_t)p->kind);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        mu_rdzv_name_put(out, names[i]);
    }
    mu_buf_put_u64(out, p->term);
    mu_buf_put_u64(out, p->round);
    mu_buf_put_u64(out, p->promised);
    mu_buf_put_u32(out, p->stopped_in_ms);
    mu_buf_put_u16(out, (uint16_t)p->legacy.len);
    mu_buf_put(out, p->legacy);
    return mu_rdzv_view_put(out, &p->view);
}

int mu_rdzv_promise_decode(struct mu_span in, struct mu_rdzv_promise *ret_promise)
{
    struct mu_reader r = mu_rdzv_version_read(in);
    struct mu_rdzv_promise p = {0};
    struct mu_rdzv_legacy legacy;
    uint8_t kind = mu_read_u8(&r);

    p.run_id = mu_rdzv_name_read(&r);
    p.node = mu_rdzv_name_read(&r);
    p.addr = mu_rdzv_name_read(&r);
    p.lost = mu_rdzv_name_read(&r);
    p.term = mu_read_u64(&r);
    p.round = mu_read_u64(&r);
    p.promised = mu_read_u64(&r);
    p.stopped_in_ms = mu_read_u32(&r);
    p.legacy = mu_read_bytes(&r, mu_read_u16(&r));
    if (r.failed || kind < MU_RDZV_PROMISE_ASK || kind > MU_RDZV_PROMISE_PROBE ||
        p.run_id.len == 0 || p.node.len == 0 || !mu_rdzv_view_read(r.rest, &p.view) ||
        (kind == MU_RDZV_PROMISE_PROBE && (p.term == 0 || p.addr.len == 0)) ||
        (p.legacy.len != 0 && mu_rdzv_legacy_decode(p.legacy, &legacy) != 0)) {
        return MUSTER_EPROTO;
    }
    p.kind = (enum mu_rdzv_promise_kind)kind;
    *ret_promise = p;
    return 0;
}

int mu_rdzv_answer_encode(struct mu_buf *out, const struct mu_rdzv_answer *answer)
{
    int err = answer->addr.len > MU_RDZV_NAME_LEN_MAX
                  ? MUSTER_ELIMIT
                  : mu_buf_reserve(out, 1 + 1 + 2 * 8 + 1 + answer->addr.len);

    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(out, MU_RDZV_MSG_VERSION);
    mu_buf_put_u8(out, (uint8_t)answer->kind);
    mu_buf_put_u64(out, answer->term);
    mu_buf_put_u64(out, answer->round);
    mu_rdzv_name_put(out, answer->addr);
    return 0;
}

int mu_rdzv_answer_decode(struct mu_span in, struct mu_rdzv_answer *ret_answer)
{
    struct mu_reader r = mu_rdzv_version_read(in);
    struct mu_rdzv_answer answer = {0};
    uint8_t kind = mu_read_u8(&r);

    answer.term = mu_read_u64(&r);
    answer.round = mu_read_u64(&r);
    answer.addr = mu_rdzv_name_read(&r);
    if (r.failed || kind < MU_RDZV_ANSWER_RAISE || kind > MU_RDZV_ANSWER_PROBED ||
        (answer.term == 0 && kind != MU_RDZV_ANSWER_PROBED) ||
        (answer.addr.len == 0 && answer.term != 0 && kind != MU_RDZV_ANSWER_RAISE)) {
        return MUSTER_EPROTO;
    }
    answer.kind = (enum mu_rdzv_answer_kind)kind;
    *ret_answer = answer;
    return 0;
}
