#include "codec/store/hold.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "core/reader.h"

/* --- encoding --------------------------------------------------------------------------------- */

static size_t size_of_keys(const struct mu_span *keys, size_t count)
{
    size_t size = 4;

    for (size_t i = 0; i < count; i++) {
        size += 4 + keys[i].len;
    }
    return size;
}

static void put_keys(struct mu_buf *out, const struct mu_span *keys, size_t count)
{
    mu_buf_put_u32(out, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        mu_buf_put_u32(out, (uint32_t)keys[i].len);
        mu_buf_put(out, keys[i]);
    }
}

int mu_hold_keys_encode(struct mu_buf *out, const struct mu_span *keys, size_t count)
{
    int err = mu_buf_reserve(out, size_of_keys(keys, count));

    if (err == 0) {
        put_keys(out, keys, count);
    }
    return err;
}

int mu_fetch_encode(struct mu_buf *out, uint32_t flags, const struct mu_span *keys, size_t count)
{
    int err = mu_buf_reserve(out, 4 + size_of_keys(keys, count));

    if (err == 0) {
        mu_buf_put_u32(out, flags);
        put_keys(out, keys, count);
    }
    return err;
}

int mu_found_encode(struct mu_buf *out, uint32_t lease_ms, const struct mu_found *found,
                    size_t count)
{
    size_t size = 8;
    int err;

    for (size_t i = 0; i < count; i++) {
        size += 1 + ((found[i].state & MU_FOUND_VALUE) != 0 ? 4 + found[i].value.len : 0);
    }
    err = mu_buf_reserve(out, size);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u32(out, lease_ms);
    mu_buf_put_u32(out, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        mu_buf_put_u8(out, (uint8_t)found[i].state);
        if ((found[i].state & MU_FOUND_VALUE) != 0) {
            mu_buf_put_u32(out, (uint32_t)found[i].value.len);
            mu_buf_put(out, found[i].value);
        }
    }
    return 0;
}

int mu_hold_lease_encode(struct mu_buf *out, uint32_t lease_ms)
{
    int err = mu_buf_reserve(out, 4);

    if (err == 0) {
        mu_buf_put_u32(out, lease_ms);
    }
    return err;
}

/* --- decoding --------------------------------------------------------------------------------- */

/* Reads a count of things that take at least `least` bytes each. */
static int read_count(struct mu_reader *r, size_t least, size_t *ret_count)
{
    uint32_t count = mu_read_u32(r);

    if (r->failed || count > r->rest.len / least) {
        return MUSTER_EPROTO;
    }
    *ret_count = count;
    return count > MU_HOLD_KEYS_MAX ? MUSTER_ELIMIT : 0;
}

static int read_keys(struct mu_reader *r, struct mu_span **ret_keys, size_t *ret_count)
{
    struct mu_span *keys;
    size_t count = 0;
    int err = read_count(r, 4, &count);

    if (err != 0) {
        return err;
    }
    keys = mu_calloc(count + 1, sizeof(*keys));
    if (keys == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        keys[i] = mu_read_span32(r);
    }
    if (r->failed || r->rest.len != 0) {
        mu_free(keys);
        return MUSTER_EPROTO;
    }
    *ret_keys = keys;
    *ret_count = count;
    return 0;
}

int mu_hold_keys_decode(struct mu_span in, struct mu_span **ret_keys, size_t *ret_count)
{
    struct mu_reader r = mu_reader(in);

    return read_keys(&r, ret_keys, ret_count);
}

int mu_fetch_decode(struct mu_span in, uint32_t *ret_flags, struct mu_span **ret_keys,
                    size_t *ret_count)
{
    struct mu_reader r = mu_reader(in);
    uint32_t flags = mu_read_u32(&r);

    if (r.failed || (flags & ~MU_FETCH_FLAGS) != 0) {
        return MUSTER_EPROTO;
    }
    *ret_flags = flags;
    return read_keys(&r, ret_keys, ret_count);
}

int mu_found_decode(struct mu_span in, uint32_t *ret_lease_ms, struct mu_found **ret_found,
                    size_t *ret_count)
{
    struct mu_reader r = mu_reader(in);
    uint32_t lease_ms = mu_read_u32(&r);
    struct mu_found *found;
    bool fits = true;
    size_t count = 0;
    int err = read_count(&r, 1, &count);

    if (err != 0) {
        return err;
    }
    found = mu_calloc(count + 1, sizeof(*found));
    if (found == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        found[i].state = mu_read_u8(&r);
        fits = fits && (found[i].state & ~MU_FOUND_STATES) == 0 &&
               (found[i].state & (MU_FOUND_VALUE | MU_FOUND_LARGE)) !=
                   (MU_FOUND_VALUE | MU_FOUND_LARGE);
        if ((found[i].state & MU_FOUND_VALUE) != 0) {
            found[i].value = mu_read_span32(&r);
        }
    }
    if (!fits || r.failed || r.rest.len != 0) {
        mu_free(found);
        return MUSTER_EPROTO;
    }
    *ret_lease_ms = lease_ms;
    *ret_found = found;
    *ret_count = count;
    return 0;
}

int mu_hold_lease_decode(struct mu_span in, uint32_t *ret_lease_ms)
{
    struct mu_reader r = mu_reader(in);
    uint32_t lease_ms = mu_read_u32(&r);

    if (r.failed || r.rest.len != 0) {
        return MUSTER_EPROTO;
    }
    *ret_lease_ms = lease_ms;
    return 0;
}
