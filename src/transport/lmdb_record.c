#include "transport/lmdb_record.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/reader.h"

#define RECORD_HEAD 5u
#define SUM_BYTES   8u
#define RECORD_MAX  0xfffffff0u /* LMDB's own limit is four gigabytes minus one */

static const uint8_t magic[8] = {'M', 'U', 'S', 'T', 'E', 'R', 'K', 'S'};

void mu_lmdb_head_put(uint8_t *p, uint64_t revision, uint64_t txn)
{
    memcpy(p, magic, sizeof(magic));
    mu_put_u32(p + 8, MU_LMDB_FORMAT);
    mu_put_u32(p + 12, 0);
    mu_put_u64(p + 16, revision);
    mu_put_u64(p + 24, txn);
    mu_put_u64(p + 32, XXH64(p, 32, MU_LMDB_HEAD_NUMBER));
}

bool mu_lmdb_head_get(struct mu_span s, uint32_t *ret_format, uint64_t *ret_revision,
                      uint64_t *ret_txn)
{
    if (s.len != MU_LMDB_HEAD_BYTES || memcmp(s.data, magic, sizeof(magic)) != 0 ||
        mu_get_u64(s.data + 32) != XXH64(s.data, 32, MU_LMDB_HEAD_NUMBER)) {
        return false;
    }
    *ret_format = mu_get_u32(s.data + 8);
    *ret_revision = mu_get_u64(s.data + 16);
    *ret_txn = mu_get_u64(s.data + 24);
    return true;
}

size_t mu_lmdb_record_len(const struct mu_lmdb_change *c)
{
    return RECORD_HEAD + c->key.len + c->value.len + SUM_BYTES;
}

void mu_lmdb_record_put(uint8_t *p, const struct mu_lmdb_change *c)
{
    size_t len = RECORD_HEAD + c->key.len + c->value.len;

    p[0] = c->op;
    mu_put_u32(p + 1, (uint32_t)c->key.len);
    if (c->key.len != 0) {
        memcpy(p + RECORD_HEAD, c->key.data, c->key.len);
    }
    if (c->value.len != 0) {
        memcpy(p + RECORD_HEAD + c->key.len, c->value.data, c->value.len);
    }
    mu_put_u64(p + len, XXH64(p, len, c->number));
}

const char *mu_lmdb_record_get(uint64_t number, struct mu_span s, struct mu_lmdb_change *ret)
{
    struct mu_reader r;

    if (s.len < RECORD_HEAD + SUM_BYTES ||
        mu_get_u64(s.data + s.len - SUM_BYTES) != XXH64(s.data, s.len - SUM_BYTES, number)) {
        return "its checksum is wrong";
    }
    r = mu_reader(mu_span(s.data, s.len - SUM_BYTES));
    *ret = (struct mu_lmdb_change){.number = number, .op = mu_read_u8(&r)};
    ret->key = mu_read_span32(&r);
    ret->value = r.rest;
    if (r.failed || (ret->op != MU_LMDB_PUT && ret->op != MU_LMDB_QUEUE)) {
        return "it is malformed";
    }
    return NULL;
}

/* Reads the next operation of a piece of journal; false if it is malformed. */
static bool next_change(struct mu_reader *r, struct mu_lmdb_change *ret)
{
    uint32_t key_len = 0;
    uint64_t value_len = 0;

    *ret = (struct mu_lmdb_change){0};
    ret->op = mu_read_u8(r);
    ret->number = mu_read_u64(r);
    if (ret->op != MU_LMDB_DELETE) {
        key_len = mu_read_u32(r);
        value_len = mu_read_u64(r);
    }
    ret->key = mu_read_bytes(r, key_len);
    ret->value = mu_read_bytes(r, value_len);
    return !r->failed && ret->op >= MU_LMDB_PUT && ret->op <= MU_LMDB_DELETE &&
           ret->number != MU_LMDB_HEAD_NUMBER && mu_lmdb_record_len(ret) <= RECORD_MAX;
}

static int compare_changes(const void *a, const void *b)
{
    const struct mu_lmdb_change *x = a;
    const struct mu_lmdb_change *y = b;

    if (x->number != y->number) {
        return x->number < y->number ? -1 : 1;
    }
    return x->at < y->at ? -1 : 1;
}

int mu_lmdb_journal_sort(struct mu_span journal, struct mu_lmdb_change **ret_changes,
                         size_t *ret_count)
{
    struct mu_reader r = mu_reader(journal);
    struct mu_lmdb_change *changes;
    struct mu_lmdb_change one;
    size_t count = 0;
    size_t kept = 0;
    bool sorted = true;
    uint64_t last = 0;

    while (r.rest.len != 0) {
        if (!next_change(&r, &one)) {
            return MUSTER_EINVAL;
        }
        sorted = sorted && one.number > last;
        last = one.number;
        count++;
    }
    changes = mu_calloc(count, sizeof(*changes));
    if (changes == NULL) {
        return MUSTER_ENOMEM;
    }
    r = mu_reader(journal);
    for (size_t i = 0; i < count; i++) {
        (void)next_change(&r, &changes[i]);
        changes[i].at = i;
    }
    if (!sorted) {
        qsort(changes, count, sizeof(*changes), compare_changes);
    }
    for (size_t i = 0; i < count; i++) {
        if (i + 1 == count || changes[i + 1].number != changes[i].number) {
            changes[kept++] = changes[i];
        }
    }
    *ret_changes = changes;
    *ret_count = kept;
    return 0;
}
