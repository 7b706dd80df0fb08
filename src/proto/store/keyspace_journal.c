#include "core/assert.h"
#include "proto/store/keyspace_internal.h"

#define DEL_LEN ((size_t)1 + 8)
#define PUT_LEN (DEL_LEN + 4 + 8)

size_t mu_ks_journal_put_len(const struct mu_keyspace *ks, size_t key_len, size_t value_len)
{
    return ks->config.journal ? PUT_LEN + key_len + value_len : 0;
}

size_t mu_ks_journal_del_len(const struct mu_keyspace *ks)
{
    return ks->config.journal ? DEL_LEN : 0;
}

int mu_ks_journal_reserve(struct mu_keyspace *ks, size_t n)
{
    return n == 0 ? 0 : ks->frozen != 0 ? ks->frozen : mu_buf_reserve(&ks->journal, n);
}

static void write_put(struct mu_buf *b, uint8_t op, uint64_t number, struct mu_span key,
                      struct mu_span value)
{
    mu_buf_put_u8(b, op);
    mu_buf_put_u64(b, number);
    mu_buf_put_u32(b, (uint32_t)key.len);
    mu_buf_put_u64(b, value.len);
    mu_buf_put(b, key);
    mu_buf_put(b, value);
}

void mu_ks_journal_del(struct mu_keyspace *ks, uint64_t *record)
{
    if (*record != 0 && ks->config.journal) {
        mu_buf_put_u8(&ks->journal, MU_KS_JOURNAL_DEL);
        mu_buf_put_u64(&ks->journal, *record);
    }
    *record = 0;
}

void mu_ks_journal_value(struct mu_keyspace *ks, struct mu_ks_entry *e)
{
    if (e->lease != NULL) {
        mu_ks_journal_del(ks, &e->record);
        return;
    }
    if (e->record == 0) {
        e->record = ++ks->record_id;
    }
    write_put(&ks->journal, MU_KS_JOURNAL_PUT, e->record, e->node.key, mu_ks_value(e));
}

void mu_ks_journal_element(struct mu_keyspace *ks, const struct mu_ks_entry *e,
                           struct mu_ks_element *element)
{
    if (ks->config.journal) {
        element->record = ++ks->record_id;
        write_put(&ks->journal, MU_KS_JOURNAL_QUEUE, element->record, e->node.key,
                  mu_span(element->data, element->len));
    }
}

void mu_ks_journal_take(struct mu_keyspace *ks, struct mu_buf *ret_journal)
{
    struct mu_buf full = ks->journal;

    mu_buf_reset(ret_journal);
    ks->journal = *ret_journal;
    ks->journal.max = SIZE_MAX;
    *ret_journal = full;
}

size_t mu_ks_journal_len(const struct mu_keyspace *ks)
{
    return ks->journal.len;
}

int mu_ks_load(struct mu_keyspace *ks, uint8_t op, uint64_t number, struct mu_span key,
               struct mu_span value)
{
    int err = MUSTER_ECORRUPT;

    if (number <= ks->record_id || key.len > UINT32_MAX || value.len > SIZE_MAX / 4) {
        return MUSTER_ECORRUPT;
    }
    if (op == MU_KS_JOURNAL_PUT) {
        err = mu_ks_load_value(ks, number, key, value);
    } else if (op == MU_KS_JOURNAL_QUEUE) {
        err = mu_ks_load_element(ks, number, key, value);
    }
    if (err == 0) {
        ks->record_id = number;
    }
    return err;
}
