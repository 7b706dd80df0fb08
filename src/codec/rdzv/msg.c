#include "codec/rdzv/msg.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "codec/rdzv/heir.h"
#include "codec/rdzv/msg_internal.h"

/* The bounds of a message's enums. */

#define KIND_MAX   MU_RDZV_NOTICE_MOVED
#define REASON_MAX 4 /* the last one of enum mu_room_end_reason */
#define STATE_MAX  4 /* the last one of enum mu_room_state */
#define PLACE_MAX  MU_RDZV_PLACE_SPARE

#define JOIN_FLAGS                                                                                 \
    ((uint32_t)(MU_RDZV_JOIN_MEMBERS | MU_RDZV_JOIN_FEW | MU_RDZV_JOIN_SPARES |                    \
                MU_RDZV_JOIN_SPENT | MU_RDZV_JOIN_LOSSES | MU_RDZV_JOIN_PAGE |                     \
                MU_RDZV_JOIN_MACHINE | MU_RDZV_JOIN_HEIR | MU_RDZV_JOIN_EXCLUDE |                  \
                MU_RDZV_JOIN_TERM))

static bool names_fit(const struct mu_span *names, size_t count, size_t *size)
{
    for (size_t i = 0; i < count; i++) {
        if (names[i].len > MU_RDZV_NAME_LEN_MAX) {
            return false;
        }
        *size += 1 + names[i].len;
    }
    return true;
}

/* --- join ------------------------------------------------------------------------------------- */

/* What follows the fields that every join has. */
static void put_optional(struct mu_buf *out, const struct mu_rdzv_join *join)
{
    if ((join->flags & MU_RDZV_JOIN_SPARES) != 0) {
        mu_buf_put_u32(out, join->spares);
    }
    if ((join->flags & MU_RDZV_JOIN_SPENT) != 0) {
        mu_buf_put_u32(out, join->spent);
    }
    if ((join->flags & MU_RDZV_JOIN_LOSSES) != 0) {
        mu_buf_put_u32(out, join->losses_max);
        mu_buf_put_u64(out, join->losses_ms);
    }
    if ((join->flags & MU_RDZV_JOIN_PAGE) != 0) {
        mu_rdzv_name_put(out, join->page);
    }
    if ((join->flags & MU_RDZV_JOIN_MACHINE) != 0) {
        mu_rdzv_name_put(out, join->machine);
    }
    if ((join->flags & MU_RDZV_JOIN_HEIR) != 0) {
        mu_rdzv_name_put(out, join->heir);
    }
    if ((join->flags & MU_RDZV_JOIN_EXCLUDE) != 0) {
        mu_buf_put_u32(out, join->exclude_after);
        mu_buf_put_u64(out, join->exclude_within_ms);
        mu_buf_put_u64(out, join->exclude_for_ms);
    }
}

static void read_optional(struct mu_reader *r, struct mu_rdzv_join *join)
{
    if ((join->flags & MU_RDZV_JOIN_SPARES) != 0) {
        join->spares = mu_read_u32(r);
    }
    if ((join->flags & MU_RDZV_JOIN_SPENT) != 0) {
        join->spent = mu_read_u32(r);
    }
    if ((join->flags & MU_RDZV_JOIN_LOSSES) != 0) {
        join->losses_max = mu_read_u32(r);
        join->losses_ms = mu_read_u64(r);
    }
    if ((join->flags & MU_RDZV_JOIN_PAGE) != 0) {
        join->page = mu_rdzv_name_read(r);
    }
    if ((join->flags & MU_RDZV_JOIN_MACHINE) != 0) {
        join->machine = mu_rdzv_name_read(r);
    }
    if ((join->flags & MU_RDZV_JOIN_HEIR) != 0) {
        join->heir = mu_rdzv_name_read(r);
    }
    if ((join->flags & MU_RDZV_JOIN_EXCLUDE) != 0) {
        join->exclude_after = mu_read_u32(r);
        join->exclude_within_ms = mu_read_u64(r);
        join->exclude_for_ms = mu_read_u64(r);
    }
}

int mu_rdzv_join_encode(struct mu_buf *out, const struct mu_rdzv_join *join)
{
    const struct mu_span names[] = {join->run_id, join->node,    join->addr, join->topology,
                                    join->page,   join->machine, join->heir};
    /* with all that is optional, but for the view, which makes room for itself */
    size_t size = 1 + 5 * 4 + 4 * 8 + 3 * 4 + 8 + 4 + 2 * 8 + 8;
    int err;

    if (!names_fit(names, 7, &size)) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, size);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(out, MU_RDZV_MSG_VERSION);
    for (size_t i = 0; i < 4; i++) {
        mu_rdzv_name_put(out, names[i]);
    }
    mu_buf_put_u32(out, join->flags);
    mu_buf_put_u32(out, join->nodes_min);
    mu_buf_put_u32(out, join->nodes_max);
    mu_buf_put_u32(out, join->target);
    mu_buf_put_u32(out, join->restarts_max);
    mu_buf_put_u64(out, join->last_call_ms);
    mu_buf_put_u64(out, join->upscale_delay_ms);
    mu_buf_put_u64(out, join->join_timeout_ms);
    mu_buf_put_u64(out, join->incarnation);
    put_optional(out, join);
    if ((join->flags & MU_RDZV_JOIN_TERM) != 0) {
        mu_buf_put_u64(out, join->term);
        return mu_rdzv_view_put(out, &join->view);
    }
    return 0;
}

int mu_rdzv_join_decode(struct mu_span in, struct mu_rdzv_join *ret_join)
{
    struct mu_reader r = mu_rdzv_version_read(in);
    struct mu_rdzv_join join = {0};

    join.run_id = mu_rdzv_name_read(&r);
    join.node = mu_rdzv_name_read(&r);
    join.addr = mu_rdzv_name_read(&r);
    join.topology = mu_rdzv_name_read(&r);
    join.flags = mu_read_u32(&r);
    join.nodes_min = mu_read_u32(&r);
    join.nodes_max = mu_read_u32(&r);
    join.target = mu_read_u32(&r);
    join.restarts_max = mu_read_u32(&r);
    join.last_call_ms = mu_read_u64(&r);
    join.upscale_delay_ms = mu_read_u64(&r);
    join.join_timeout_ms = mu_read_u64(&r);
    join.incarnation = mu_read_u64(&r);
    read_optional(&r, &join);
    if ((join.flags & MU_RDZV_JOIN_TERM) != 0) {
        join.term = mu_read_u64(&r);
        r.failed = r.failed || !mu_rdzv_view_read(r.rest, &join.view);
    }
    if (r.failed || (join.flags & ~JOIN_FLAGS) != 0 || join.exclude_after > MU_RDZV_FAILURES_MAX) {
        return MUSTER_EPROTO;
    }
    *ret_join = join;
    return 0;
}

/* --- what a member says ----------------------------------------------------------------------- */

int mu_rdzv_say_encode(struct mu_buf *out, enum mu_rdzv_say what, uint64_t round)
{
    int err = mu_buf_reserve(out, 1 + 1 + 8);

    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(out, MU_RDZV_MSG_VERSION);
    mu_buf_put_u8(out, (uint8_t)what);
    mu_buf_put_u64(out, round);
    return 0;
}

int mu_rdzv_say_decode(struct mu_span in, enum mu_rdzv_say *ret_what, uint64_t *ret_round)
{
    struct mu_reader r = mu_rdzv_version_read(in);
    uint8_t word = mu_read_u8(&r);
    uint64_t round = mu_read_u64(&r);

    if (r.failed || word < MU_RDZV_SAY_FAILED || word > MU_RDZV_SAY_READY) {
        return MUSTER_EPROTO;
    }
    *ret_what = (enum mu_rdzv_say)word;
    *ret_round = round;
    return 0;
}

int mu_rdzv_ready_encode(struct mu_buf *out, const struct mu_rdzv_ready *ready)
{
    int err = mu_rdzv_say_encode(out, MU_RDZV_SAY_READY, ready->round);

    if (err == 0) {
        err = mu_buf_reserve(out, 8 + 1);
    }
    if (err != 0) {
        return err;
    }
    mu_buf_put_u64(out, ready->term);
    mu_buf_put_u8(out, (uint8_t)ready->step);
    return 0;
}

int mu_rdzv_ready_decode(struct mu_span in, struct mu_rdzv_ready *ret_ready)
{
    struct mu_reader r = mu_rdzv_version_read(in);
    struct mu_rdzv_ready ready = {0};
    uint8_t word = mu_read_u8(&r);

    ready.round = mu_read_u64(&r);
    ready.term = mu_read_u64(&r);
    ready.step = mu_read_u8(&r);
    if (r.failed || word != MU_RDZV_SAY_READY || ready.step == 0 || ready.step > MU_RDZV_STEP_MAX) {
        return MUSTER_EPROTO;
    }
    *ret_ready = ready;
    return 0;
}

/* --- notice ----------------------------------------------------------------------------------- */

/* What a notice that tells of a term has behind the rest. */
static int put_term(struct mu_buf *out, const struct mu_rdzv_notice *notice)
{
    int err = mu_buf_reserve(out, 8 + 2 + notice->base_count * MU_RDZV_ELECTORATE_BYTES + 4 +
                                      notice->line.len + 2 + notice->legacy.len);

    if (err != 0) {
        return err;
    }
    mu_buf_put_u64(out, notice->term);
    mu_buf_put_u8(out, (uint8_t)notice->step);
    mu_buf_put_u8(out, (uint8_t)notice->base_count);
    for (uint32_t i = 0; i < notice->base_count; i++) {
        mu_rdzv_electorate_put(out, &notice->bases[i]);
    }
    mu_buf_put_u32(out, (uint32_t)notice->line.len);
    mu_buf_put(out, notice->line);
    mu_buf_put_u16(out, (uint16_t)notice->legacy.len);
    mu_buf_put(out, notice->legacy);
    return 0;
}

int mu_rdzv_notice_encode(struct mu_buf *out, const struct mu_rdzv_notice *notice)
{
    size_t size = 1 + 1 + 2 * 8 + 4 * 4 + 1 + 1 + 1 + 4 + 4 + 4 + MU_RDZV_LIST_HASH_LEN;
    int err;

    if (!names_fit(&notice->who, 1, &size) || notice->members.len > UINT32_MAX ||
        __builtin_add_overflow(size, notice->members.len, &size)) {
        return MUSTER_ELIMIT;
    }
    if (notice->base_count > MU_RDZV_ELECTORATES_MAX || notice->legacy.len > MU_RDZV_LEGACY_MAX ||
        notice->line.len > MU_RDZV_LINE_BYTES_MAX) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, size);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(out, MU_RDZV_MSG_VERSION);
    mu_buf_put_u8(out, (uint8_t)notice->kind);
    mu_buf_put_u64(out, notice->incarnation);
    mu_buf_put_u64(out, notice->round);
    mu_buf_put_u32(out, notice->rank);
    mu_buf_put_u32(out, notice->world);
    mu_buf_put_u32(out, notice->restarts_left);
    mu_buf_put_u32(out, notice->waiters);
    mu_buf_put_u8(out, (uint8_t)notice->reason);
    mu_buf_put_u8(out, (uint8_t)notice->place);
    mu_buf_put_u8(out, notice->has_who);
    mu_rdzv_name_put(out, notice->who);
    mu_buf_put_u32(out, notice->who_rank);
    mu_buf_put_u32(out, (uint32_t)notice->members.len);
    mu_buf_put(out, notice->members);
    if (notice->list.len != 0 && notice->members.len == 0) {
        mu_buf_put_u32(out, notice->list.len);
        mu_buf_put(out, mu_span(notice->list.hash, sizeof(notice->list.hash)));
    }
    return notice->term != 0 ? put_term(out, notice) : 0;
}

static bool read_list(struct mu_reader *r, struct mu_rdzv_notice *notice)
{
    struct mu_span hash;

    notice->list.len = mu_read_u32(r);
    hash = mu_read_bytes(r, MU_RDZV_LIST_HASH_LEN);
    if (r->failed || notice->list.len == 0 || notice->list.len > MU_RDZV_LIST_BYTES_MAX) {
        return false;
    }
    memcpy(notice->list.hash, hash.data, hash.len);
    return true;
}

static bool read_term(struct mu_reader *r, struct mu_rdzv_notice *notice)
{
    struct mu_rdzv_legacy legacy;

    notice->term = mu_read_u64(r);
    notice->step = mu_read_u8(r);
    notice->base_count = mu_read_u8(r);
    if (r->failed || notice->step > MU_RDZV_STEP_MAX ||
        notice->base_count > MU_RDZV_ELECTORATES_MAX) {
        return false;
    }
    if (!mu_rdzv_electorates_read(r, notice->bases, notice->base_count)) {
        return false;
    }
    notice->line = mu_read_span32(r);
    notice->legacy = mu_read_bytes(r, mu_read_u16(r));
    return !r->failed && notice->term != 0 && mu_rdzv_line_fits(notice->line) &&
           (notice->legacy.len == 0 || mu_rdzv_legacy_decode(notice->legacy, &legacy) == 0);
}

/* Whether what is told of terms fits the kind. */
static bool term_fits(const struct mu_rdzv_notice *n, uint8_t kind)
{
    if (kind == MU_RDZV_NOTICE_PREPARE) {
        return n->term != 0 && n->step != 0 && n->world != 0 &&
               (n->rank < n->world || n->rank == UINT32_MAX);
    }
    return kind != MU_RDZV_NOTICE_MOVED || (n->term != 0 && n->line.len != 0);
}

/* Whether there are no members, or `count` of them; `ranked`: one for each rank, in order. */
static bool members_fit(struct mu_span members, uint32_t count, bool ranked)
{
    struct mu_rdzv_member_msg member;
    uint32_t seen = 0;
    int err;

    if (members.len == 0) {
        return true;
    }
    while ((err = mu_rdzv_member_next(&members, &member)) == 0) {
        if (seen == count || (ranked && member.rank != seen)) {
            return false;
        }
        seen++;
    }
    return err == MUSTER_ENOENT && seen == count;
}

int mu_rdzv_notice_decode(struct mu_span in, struct mu_rdzv_notice *ret_notice)
{
    struct mu_reader r = mu_rdzv_version_read(in);
    struct mu_rdzv_notice notice = {0};
    uint8_t kind = mu_read_u8(&r);
    uint8_t has_who;

    notice.incarnation = mu_read_u64(&r);
    notice.round = mu_read_u64(&r);
    notice.rank = mu_read_u32(&r);
    notice.world = mu_read_u32(&r);
    notice.restarts_left = mu_read_u32(&r);
    notice.waiters = mu_read_u32(&r);
    notice.reason = mu_read_u8(&r);
    notice.place = mu_read_u8(&r);
    has_who = mu_read_u8(&r);
    notice.who = mu_rdzv_name_read(&r);
    notice.who_rank = mu_read_u32(&r);
    notice.members = mu_read_span32(&r);
    if (r.failed || kind == 0 || kind > KIND_MAX || notice.reason > REASON_MAX ||
        notice.place > PLACE_MAX || has_who > 1 ||
        !members_fit(notice.members, notice.world, true)) {
        return MUSTER_EPROTO;
    }
    if (kind == MU_RDZV_NOTICE_ASSIGNED &&
        (notice.rank >= notice.world ||
         (notice.members.len == 0 && r.rest.len != 0 && !read_list(&r, &notice)))) {
        return MUSTER_EPROTO;
    }
    if ((kind >= MU_RDZV_NOTICE_ENTERED && r.rest.len != 0 && !read_term(&r, &notice)) ||
        !term_fits(&notice, kind)) {
        return MUSTER_EPROTO;
    }
    notice.kind = (enum mu_rdzv_notice_kind)kind;
    notice.has_who = has_who == 1;
    *ret_notice = notice;
    return 0;
}

struct mu_span mu_rdzv_list_key(char text[MU_RDZV_LIST_KEY_MAX], struct mu_span run_id,
                                uint64_t incarnation, uint64_t round,
                                const struct mu_rdzv_list *list, uint32_t piece)
{
    char hash[2 * MU_RDZV_LIST_HASH_LEN + 1];
    int len;

    for (size_t i = 0; i < MU_RDZV_LIST_HASH_LEN; i++) {
        (void)snprintf(hash + 2 * i, 3, "%02x", list->hash[i]);
    }
    len = snprintf(text, MU_RDZV_LIST_KEY_MAX,
                   "/rdzv/%.*s/%" PRIu64 ".%" PRIu64 "/members.%s.%" PRIu32, (int)run_id.len,
                   (const char *)run_id.data, incarnation, round, hash, piece);
    return mu_span(text, (size_t)len);
}

/* --- members ---------------------------------------------------------------------------------- */

int mu_rdzv_member_encode(struct mu_buf *out, const struct mu_rdzv_member_msg *member)
{
    const struct mu_span names[] = {member->node, member->addr};
    size_t size = 4 + 1 + 8;
    int err;

    if (!names_fit(names, 2, &size)) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, 2 + size);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u16(out, (uint16_t)size);
    mu_rdzv_name_put(out, member->node);
    mu_rdzv_name_put(out, member->addr);
    mu_buf_put_u32(out, member->rank);
    mu_buf_put_u8(out, (uint8_t)member->place);
    mu_buf_put_u64(out, member->silent_ms);
    return 0;
}

int mu_rdzv_member_next(struct mu_span *members, struct mu_rdzv_member_msg *ret_member)
{
    struct mu_reader all = mu_reader(*members);
    struct mu_rdzv_member_msg member = {0};
    struct mu_reader r;

    if (members->len == 0) {
        return MUSTER_ENOENT;
    }
    r = mu_reader(mu_read_bytes(&all, mu_read_u16(&all)));
    member.node = mu_rdzv_name_read(&r);
    member.addr = mu_rdzv_name_read(&r);
    member.rank = mu_read_u32(&r);
    member.place = mu_read_u8(&r);
    member.silent_ms = mu_read_u64(&r);
    if (all.failed || r.failed || member.place > PLACE_MAX) {
        return MUSTER_EPROTO;
    }
    *members = all.rest;
    *ret_member = member;
    return 0;
}

/* --- status and close ------------------------------------------------------------------------- */

int mu_rdzv_run_id_encode(struct mu_buf *out, struct mu_span run_id)
{
    size_t size = 1;
    int err;

    if (!names_fit(&run_id, 1, &size)) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, size);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(out, MU_RDZV_MSG_VERSION);
    mu_rdzv_name_put(out, run_id);
    return 0;
}

int mu_rdzv_run_id_decode(struct mu_span in, struct mu_span *ret_run_id)
{
    struct mu_reader r = mu_rdzv_version_read(in);
    struct mu_span run_id = mu_rdzv_name_read(&r);

    if (r.failed) {
        return MUSTER_EPROTO;
    }
    *ret_run_id = run_id;
    return 0;
}

int mu_rdzv_run_encode(struct mu_buf *out, const struct mu_rdzv_run_msg *run)
{
    size_t size = 1 + 2 * 8 + 3 * 4 + 4 * 4 + 2 + 4 + 4 + 4;
    int err;

    if (!names_fit(&run->run_id, 1, &size) || run->text.len > UINT16_MAX ||
        run->exclusions.len > UINT32_MAX / 2 ||
        run->members.len > UINT32_MAX / 2 - UINT16_MAX - 2 * MU_RDZV_NAME_LEN_MAX) {
        return MUSTER_ELIMIT;
    }
    size += run->text.len + run->members.len + run->exclusions.len;
    err = mu_buf_reserve(out, 4 + size);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u32(out, (uint32_t)size);
    mu_rdzv_name_put(out, run->run_id);
    mu_buf_put_u8(out, (uint8_t)run->state);
    mu_buf_put_u64(out, run->incarnation);
    mu_buf_put_u64(out, run->round);
    mu_buf_put_u32(out, run->nodes_min);
    mu_buf_put_u32(out, run->nodes_max);
    mu_buf_put_u32(out, run->restarts_left);
    for (size_t i = 0; i < 4; i++) {
        mu_buf_put_u32(out, run->counts[i]);
    }
    mu_buf_put_u16(out, (uint16_t)run->text.len);
    mu_buf_put(out, run->text);
    mu_buf_put_u32(out, run->member_count);
    mu_buf_put_u32(out, (uint32_t)run->members.len);
    mu_buf_put(out, run->members);
    mu_buf_put_u32(out, (uint32_t)run->exclusions.len);
    mu_buf_put(out, run->exclusions);
    return 0;
}

static bool exclusions_fit(struct mu_span exclusions)
{
    struct mu_rdzv_exclusion_msg exclusion;
    int err;

    do {
        err = mu_rdzv_exclusion_next(&exclusions, &exclusion);
    } while (err == 0);
    return err == MUSTER_ENOENT;
}

int mu_rdzv_run_next(struct mu_span *runs, struct mu_rdzv_run_msg *ret_run)
{
    struct mu_reader all = mu_reader(*runs);
    struct mu_rdzv_run_msg run = {0};
    struct mu_reader r;

    if (runs->len == 0) {
        return MUSTER_ENOENT;
    }
    r = mu_reader(mu_read_span32(&all));
    run.run_id = mu_rdzv_name_read(&r);
    run.state = mu_read_u8(&r);
    run.incarnation = mu_read_u64(&r);
    run.round = mu_read_u64(&r);
    run.nodes_min = mu_read_u32(&r);
    run.nodes_max = mu_read_u32(&r);
    run.restarts_left = mu_read_u32(&r);
    for (size_t i = 0; i < 4; i++) {
        run.counts[i] = mu_read_u32(&r);
    }
    run.text = mu_read_bytes(&r, mu_read_u16(&r));
    run.member_count = mu_read_u32(&r);
    run.members = mu_read_span32(&r);
    if (r.rest.len != 0) { /* An older server says nothing of them. */
        run.exclusions = mu_read_span32(&r);
    }
    if (all.failed || r.failed || run.state == 0 || run.state > STATE_MAX ||
        !members_fit(run.members, run.member_count, false) || !exclusions_fit(run.exclusions)) {
        return MUSTER_EPROTO;
    }
    *runs = all.rest;
    *ret_run = run;
    return 0;
}

/* --- exclusions ------------------------------------------------------------------------------- */

int mu_rdzv_exclusion_encode(struct mu_buf *out, const struct mu_rdzv_exclusion_msg *exclusion)
{
    const struct mu_span names[] = {exclusion->key, exclusion->node, exclusion->reason};
    size_t size = 1 + 8 + 1 + (size_t)exclusion->failure_count * 8;
    int err;

    if (exclusion->failure_count > MU_RDZV_FAILURES_MAX || !names_fit(names, 3, &size)) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, 2 + size);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u16(out, (uint16_t)size);
    for (size_t i = 0; i < 3; i++) {
        mu_rdzv_name_put(out, names[i]);
    }
    mu_buf_put_u8(out, exclusion->by_hand);
    mu_buf_put_u64(out, exclusion->left_ms);
    mu_buf_put_u8(out, (uint8_t)exclusion->failure_count);
    for (uint32_t i = 0; i < exclusion->failure_count; i++) {
        mu_buf_put_u64(out, exclusion->ago_ms[i]);
    }
    return 0;
}

int mu_rdzv_exclusion_next(struct mu_span *exclusions, struct mu_rdzv_exclusion_msg *ret_exclusion)
{
    struct mu_reader all = mu_reader(*exclusions);
    struct mu_rdzv_exclusion_msg exclusion = {0};
    struct mu_reader r;
    uint8_t by_hand;

    if (exclusions->len == 0) {
        return MUSTER_ENOENT;
    }
    r = mu_reader(mu_read_bytes(&all, mu_read_u16(&all)));
    exclusion.key = mu_rdzv_name_read(&r);
    exclusion.node = mu_rdzv_name_read(&r);
    exclusion.reason = mu_rdzv_name_read(&r);
    by_hand = mu_read_u8(&r);
    exclusion.by_hand = by_hand == 1;
    exclusion.left_ms = mu_read_u64(&r);
    exclusion.failure_count = mu_read_u8(&r);
    for (uint32_t i = 0; i < exclusion.failure_count && i < MU_RDZV_FAILURES_MAX; i++) {
        exclusion.ago_ms[i] = mu_read_u64(&r);
    }
    if (all.failed || r.failed || by_hand > 1 || exclusion.key.len == 0 ||
        exclusion.failure_count > MU_RDZV_FAILURES_MAX) {
        return MUSTER_EPROTO;
    }
    *exclusions = all.rest;
    *ret_exclusion = exclusion;
    return 0;
}

int mu_rdzv_exclude_encode(struct mu_buf *out, const struct mu_rdzv_exclude_msg *exclude)
{
    const struct mu_span names[] = {exclude->run_id, exclude->who, exclude->reason};
    size_t size = 1 + 8;
    int err;

    if (!names_fit(names, 3, &size)) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, size);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(out, MU_RDZV_MSG_VERSION);
    for (size_t i = 0; i < 3; i++) {
        mu_rdzv_name_put(out, names[i]);
    }
    mu_buf_put_u64(out, exclude->for_ms);
    return 0;
}

int mu_rdzv_exclude_decode(struct mu_span in, struct mu_rdzv_exclude_msg *ret_exclude)
{
    struct mu_reader r = mu_rdzv_version_read(in);
    struct mu_rdzv_exclude_msg exclude = {0};

    exclude.run_id = mu_rdzv_name_read(&r);
    exclude.who = mu_rdzv_name_read(&r);
    exclude.reason = mu_rdzv_name_read(&r);
    exclude.for_ms = mu_read_u64(&r);
    if (r.failed) {
        return MUSTER_EPROTO;
    }
    *ret_exclude = exclude;
    return 0;
}
