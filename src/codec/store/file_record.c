#include "codec/store/file_record.h"

#include <muster/error.h>

#include "core/reader.h"

#define LENGTH_SIZE   sizeof(uint32_t)
#define DELETE_PREFIX '-'

/* Whether a key begins like a user's key, a deletion, or one of PyTorch's counters. This tells a
 * log from another kind of file at its first record. */
static bool could_be_key(struct mu_span key, size_t len)
{
    static const char *const counters[] = {MU_FILE_CLEANUP_KEY, MU_FILE_REFCOUNT_KEY};

    if (key.len != 0 && key.data[0] == DELETE_PREFIX) {
        key = mu_span_skip(key, 1);
        len--;
    }
    if (len == 0) {
        return false;
    }
    if (key.len == 0 || key.data[0] == MU_FILE_USER_PREFIX) {
        return true;
    }
    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++) {
        if (len == strlen(counters[i]) && memcmp(key.data, counters[i], key.len) == 0) {
            return true;
        }
    }
    return false;
}

size_t mu_file_record_size(const struct mu_file_record *record)
{
    return 2 * LENGTH_SIZE + (record->deletion ? 1u : 0u) + record->key.len + record->value.len;
}

int mu_file_record_encode(struct mu_buf *out, const struct mu_file_record *record)
{
    size_t key_len = record->key.len + (record->deletion ? 1u : 0u);
    int err;

    if (record->key.len >= MU_FILE_KEY_MAX || record->value.len > MU_FILE_VALUE_MAX) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, mu_file_record_size(record));
    if (err != 0) {
        return err;
    }
    mu_buf_put_u32(out, (uint32_t)key_len);
    if (record->deletion) {
        mu_buf_put_u8(out, DELETE_PREFIX);
    }
    mu_buf_put(out, record->key);
    mu_buf_put_u32(out, (uint32_t)record->value.len);
    mu_buf_put(out, record->value);
    return 0;
}

int mu_file_record_decode(struct mu_span in, struct mu_file_record *ret_record, size_t *ret_used,
                          size_t *ret_needed)
{
    struct mu_reader r = mu_reader(in);
    uint32_t key_len = mu_read_u32(&r);
    uint32_t value_len;
    struct mu_span key;
    bool deletion;

    if (r.failed) {
        *ret_needed = LENGTH_SIZE;
        return MUSTER_EAGAIN;
    }
    key = mu_span(r.rest.data, r.rest.len < key_len ? r.rest.len : key_len);
    if (key_len == 0 || key_len > MU_FILE_KEY_MAX || !could_be_key(key, key_len)) {
        return MUSTER_ECORRUPT;
    }
    deletion = key.len != 0 && key.data[0] == DELETE_PREFIX;
    (void)mu_read_bytes(&r, key_len);
    value_len = mu_read_u32(&r);
    if (r.failed) {
        *ret_needed = 2 * LENGTH_SIZE + (size_t)key_len;
        return MUSTER_EAGAIN;
    }
    if (value_len > MU_FILE_VALUE_MAX || (deletion && value_len != 0)) {
        return MUSTER_ECORRUPT;
    }
    ret_record->deletion = deletion;
    ret_record->key = mu_span_skip(key, deletion ? 1 : 0);
    ret_record->value = mu_read_bytes(&r, value_len);
    if (r.failed) {
        *ret_needed = 2 * LENGTH_SIZE + (size_t)key_len + value_len;
        return MUSTER_EAGAIN;
    }
    *ret_used = 2 * LENGTH_SIZE + (size_t)key_len + value_len;
    return 0;
}
