#include "codec/dht/dict.h"

#include <muster/error.h>

#include "codec/bin/msgpack.h"

#define UNLIMITED (__builtin_inf()) /* hivemind's maxsize of a dictionary without one */

static int next_array(struct mu_span *in, uint32_t *ret_count)
{
    struct mu_mp t;

    if (mu_mp_next(in, &t) != 0 || t.type != MU_MP_ARRAY) {
        return MUSTER_EPROTO;
    }
    *ret_count = t.count;
    return 0;
}

static int next_double(struct mu_span *in, double *ret)
{
    struct mu_mp t;

    return mu_mp_next(in, &t) == 0 && mu_mp_double(&t, ret) ? 0 : MUSTER_EPROTO;
}

static int next_entry(struct mu_span *in, struct mu_dht_entry *ret)
{
    struct mu_dht_entry e;
    struct mu_mp t;
    uint32_t count;

    if (next_array(in, &count) != 0 || count != 3 || mu_mp_skip(in, &e.subkey) != 0 ||
        mu_mp_next(in, &t) != 0 || t.type != MU_MP_BIN || next_double(in, &e.expiration) != 0) {
        return MUSTER_EPROTO;
    }
    e.value = t.bytes;
    *ret = e;
    return 0;
}

int mu_dht_dict_decode(struct mu_span bytes, struct mu_dht_dict *ret)
{
    struct mu_dht_dict dict;
    struct mu_dht_entry e;
    struct mu_span rest;
    struct mu_mp t;
    uint32_t count;
    double maxsize;

    if (mu_mp_next(&bytes, &t) != 0 || t.type != MU_MP_EXT || t.ext != MU_MP_EXT_DICT ||
        bytes.len != 0) {
        return MUSTER_EPROTO;
    }
    rest = t.bytes;
    if (next_array(&rest, &count) != 0 || count != 3 || next_double(&rest, &maxsize) != 0 ||
        next_double(&rest, &dict.latest) != 0 || next_array(&rest, &dict.count) != 0) {
        return MUSTER_EPROTO;
    }
    dict.walk = rest;
    for (uint32_t i = 0; i < dict.count; i++) {
        if (next_entry(&rest, &e) != 0) {
            return MUSTER_EPROTO;
        }
    }
    if (rest.len != 0) {
        return MUSTER_EPROTO;
    }
    *ret = dict;
    return 0;
}

bool mu_dht_dict_next(struct mu_dht_dict *dict, struct mu_dht_entry *ret)
{
    return dict->walk.len != 0 && next_entry(&dict->walk, ret) == 0;
}

size_t mu_dht_entry_len(const struct mu_dht_entry *entry)
{
    return 1 + entry->subkey.len + mu_mp_bin_len(entry->value.len) + MU_MP_DOUBLE_LEN;
}

static size_t body_len(size_t count, size_t entry_bytes)
{
    return 1 + 2 * MU_MP_DOUBLE_LEN + mu_mp_array_len(count) + entry_bytes;
}

size_t mu_dht_dict_len(size_t count, size_t entry_bytes)
{
    size_t body = body_len(count, entry_bytes);

    return mu_mp_bin_len(body) + 1; /* an extension has one byte more than bytes of that length */
}

int mu_dht_dict_begin(struct mu_buf *out, double latest, size_t count, size_t entry_bytes)
{
    struct mu_mp_out mp = mu_mp_out(out);

    mu_mp_put_ext(&mp, MU_MP_EXT_DICT, body_len(count, entry_bytes));
    mu_mp_put_array(&mp, 3);
    mu_mp_put_double(&mp, UNLIMITED);
    mu_mp_put_double(&mp, latest);
    mu_mp_put_array(&mp, count);
    return mp.err;
}

int mu_dht_dict_put(struct mu_buf *out, const struct mu_dht_entry *entry)
{
    struct mu_mp_out mp = mu_mp_out(out);

    mu_mp_put_array(&mp, 3);
    mu_mp_put_raw(&mp, entry->subkey);
    mu_mp_put_bin(&mp, entry->value);
    mu_mp_put_double(&mp, entry->expiration);
    return mp.err;
}
