#include "codec/store/msg.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "core/reader.h"

/* --- encoding --------------------------------------------------------------------------------- */

/* Adds the size of a count and its parts; false above 32 bits or what memory can hold. */
static bool add_parts(size_t *size, const struct mu_span *parts, size_t count)
{
    if (count > UINT32_MAX || __builtin_add_overflow(*size, 4, size)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (parts[i].len > UINT32_MAX || __builtin_add_overflow(*size, 4, size) ||
            __builtin_add_overflow(*size, parts[i].len, size)) {
            return false;
        }
    }
    return true;
}

static void put_part(struct mu_buf *out, struct mu_span part)
{
    mu_buf_put_u32(out, (uint32_t)part.len);
    mu_buf_put(out, part);
}

static void put_parts(struct mu_buf *out, const struct mu_span *parts, size_t count)
{
    mu_buf_put_u32(out, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        put_part(out, parts[i]);
    }
}

int mu_store_request_encode(struct mu_buf *out, const struct mu_store_request *request)
{
    size_t size = 4 + 8 + 8;
    int err;

    if (!add_parts(&size, request->keys, request->key_count) ||
        !add_parts(&size, request->values, request->value_count)) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, size);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u32(out, request->flags);
    mu_buf_put_u64(out, (uint64_t)request->number);
    mu_buf_put_u64(out, request->lease);
    put_parts(out, request->keys, request->key_count);
    put_parts(out, request->values, request->value_count);
    return 0;
}

int mu_store_reply_encode(struct mu_buf *out, const struct mu_store_reply *reply)
{
    size_t size = 8;
    int err;

    if (!add_parts(&size, reply->values, reply->value_count)) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, size);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u64(out, (uint64_t)reply->number);
    put_parts(out, reply->values, reply->value_count);
    return 0;
}

int mu_store_change_encode(struct mu_buf *out, const struct mu_change *change, bool with_old)
{
    struct mu_span parts[] = {change->key, change->value, change->old_value};
    size_t size = 1 + 8 - 4; /* the parts of a change have no count before them */
    int err;

    if (!add_parts(&size, parts, with_old ? 3 : 2)) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, size);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(out, (uint8_t)change->kind);
    mu_buf_put_u64(out, change->revision);
    put_part(out, change->key);
    put_part(out, change->value);
    if (with_old) {
        put_part(out, change->old_value);
    }
    return 0;
}

/* --- decoding --------------------------------------------------------------------------------- */

/*
 * Walks over a count and its parts without keeping them. Each part takes at least four bytes, so a
 * count that is too large for the bytes is found at once.
 */
static int skip_parts(struct mu_reader *r, size_t parts_max, size_t *ret_count)
{
    uint32_t count = mu_read_u32(r);

    if (r->failed || count > r->rest.len / 4) {
        return MUSTER_EPROTO;
    }
    if (count > parts_max) {
        return MUSTER_ELIMIT;
    }
    for (uint32_t i = 0; i < count; i++) {
        (void)mu_read_span32(r);
    }
    *ret_count = count;
    return r->failed ? MUSTER_EPROTO : 0;
}

/* Reads parts that skip_parts() found whole, now that there is room for them. */
static void read_parts(struct mu_reader *r, struct mu_span *parts)
{
    uint32_t count = mu_read_u32(r);

    for (uint32_t i = 0; i < count; i++) {
        parts[i] = mu_read_span32(r);
    }
}

/* Makes an array for `count` parts; NULL for 0. */
static int make_parts(size_t count, struct mu_span **ret_parts)
{
    struct mu_span *parts = NULL;

    if (count != 0) {
        parts = mu_calloc(count, sizeof(*parts));
        if (parts == NULL) {
            return MUSTER_ENOMEM;
        }
    }
    *ret_parts = parts;
    return 0;
}

int mu_store_request_decode(struct mu_span in, enum mu_store_verb verb, size_t parts_max,
                            struct mu_store_request *ret, struct mu_span **ret_parts)
{
    struct mu_reader r = mu_reader(in);
    struct mu_store_request q = {.verb = verb};
    struct mu_reader again;
    struct mu_span *parts;
    int err;

    q.flags = mu_read_u32(&r);
    q.number = (int64_t)mu_read_u64(&r);
    q.lease = mu_read_u64(&r);
    again = r;
    err = skip_parts(&r, parts_max, &q.key_count);
    if (err == 0) {
        err = skip_parts(&r, parts_max, &q.value_count);
    }
    if (err != 0) {
        return err;
    }
    if (!mu_reader_done(&r) || (q.flags & ~MU_STORE_FLAGS) != 0 || !mu_store_request_fits(&q)) {
        return MUSTER_EPROTO;
    }
    err = make_parts(q.key_count + q.value_count, &parts);
    if (err != 0) {
        return err;
    }
    if (parts != NULL) {
        read_parts(&again, parts);
        read_parts(&again, parts + q.key_count);
        q.keys = parts;
        q.values = parts + q.key_count;
    }
    *ret = q;
    *ret_parts = parts;
    return 0;
}

int mu_store_reply_decode(struct mu_span in, size_t parts_max, struct mu_store_reply *ret,
                          struct mu_span **ret_parts)
{
    struct mu_reader r = mu_reader(in);
    struct mu_store_reply reply = {0};
    struct mu_reader again;
    struct mu_span *parts;
    int err;

    reply.number = (int64_t)mu_read_u64(&r);
    again = r;
    err = skip_parts(&r, parts_max, &reply.value_count);
    if (err != 0) {
        return err;
    }
    if (!mu_reader_done(&r)) {
        return MUSTER_EPROTO;
    }
    err = make_parts(reply.value_count, &parts);
    if (err != 0) {
        return err;
    }
    if (parts != NULL) {
        read_parts(&again, parts);
    }
    reply.values = parts;
    *ret = reply;
    *ret_parts = parts;
    return 0;
}

int mu_store_change_decode(struct mu_span in, struct mu_change *ret)
{
    struct mu_reader r = mu_reader(in);
    uint8_t kind = mu_read_u8(&r);
    struct mu_change change = {0};

    change.revision = mu_read_u64(&r);
    change.key = mu_read_span32(&r);
    change.value = mu_read_span32(&r);
    if (!r.failed && r.rest.len != 0) {
        change.old_value = mu_read_span32(&r);
    }
    if (!mu_reader_done(&r) || kind < MU_CHANGE_CREATED || kind > MU_CHANGE_EXPIRED) {
        return MUSTER_EPROTO;
    }
    change.kind = (enum mu_change_kind)kind;
    *ret = change;
    return 0;
}
