#include "proto/state/fetch_internal.h"

size_t mu_state_words_len(uint32_t chunks)
{
    return ((size_t)chunks + 63) / 64 * 8;
}

/* One donor more, or less, has the chunk. */
static void count_one(struct mu_state_fetch *f, uint32_t chunk, bool more)
{
    f->rarity[chunk] = (uint16_t)(more ? f->rarity[chunk] + 1 : f->rarity[chunk] - 1);
    if (f->rarity[chunk] != 0) {
        mu_state_bit_set(f->spread, chunk);
    } else {
        mu_state_bit_clear(f->spread, chunk);
    }
}

void mu_state_donor_count(struct mu_state_fetch *f, struct mu_state_donor *d, bool counted)
{
    if (d->counted == counted || d->full || d->bits == NULL) {
        return;
    }
    d->counted = counted;
    for (uint32_t i = 0; i < f->config.chunks; i++) {
        if (mu_state_bit(d->bits, i)) {
            count_one(f, i, counted);
        }
    }
}

/* Takes over `bits`; NULL: all. */
static void set_bits(struct mu_state_fetch *f, struct mu_state_donor *d, uint8_t *bits)
{
    mu_state_donor_count(f, d, false);
    mu_free(d->bits);
    d->bits = bits;
    d->full = bits == NULL;
    mu_state_donor_count(f, d, d->state == MU_STATE_DONOR_READY);
}

static bool is_all(const struct mu_state_fetch *f, const uint8_t *bits)
{
    for (uint32_t i = 0; i < f->config.chunks; i++) {
        if (!mu_state_bit(bits, i)) {
            return false;
        }
    }
    return true;
}

int mu_state_fetch_have(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor,
                        const uint8_t *bits)
{
    struct mu_state_donor *d = f->donors[donor];
    uint8_t *copy = NULL;

    if (!mu_state_fetch_runs(f)) {
        return 0;
    }
    if (bits != NULL && !is_all(f, bits)) {
        copy = mu_calloc(1, mu_state_words_len(f->config.chunks));
        if (copy == NULL) {
            return MUSTER_ENOMEM;
        }
        memcpy(copy, bits, mu_state_bits_len(f->config.chunks));
    }
    set_bits(f, d, copy);
    d->have_at = d->full ? MU_MONO_NEVER : mu_mono_add_ms(now, f->config.have_ms);
    return 0;
}

int mu_state_donor_lacks(struct mu_state_fetch *f, struct mu_state_donor *d, uint32_t chunk)
{
    if (d->full) {
        size_t len = mu_state_bits_len(f->config.chunks);
        uint8_t *bits = mu_calloc(1, mu_state_words_len(f->config.chunks));

        if (bits == NULL) {
            return MUSTER_ENOMEM;
        }
        memset(bits, 0xff, len);
        set_bits(f, d, bits);
    }
    if (mu_state_donor_has(d, chunk)) {
        mu_state_bit_clear(d->bits, chunk);
        if (d->counted) {
            count_one(f, chunk, false);
        }
    }
    return 0;
}

/* After the last chunk all bits of `claimed` are set, so nothing is found there. */
static bool scan(const struct mu_state_fetch *f, const struct mu_state_donor *d, uint32_t from,
                 const uint8_t *without, uint32_t *ret_chunk)
{
    size_t len = mu_state_words_len(f->config.chunks);
    uint64_t mask = UINT64_MAX << (from % 64);

    if (!d->full && d->bits == NULL) {
        return false;
    }
    for (size_t at = (size_t)from / 64 * 8; at < len; at += 8) {
        uint64_t word = ~mu_get_u64(f->claimed + at) & mask;

        word &= without == NULL ? UINT64_MAX : ~mu_get_u64(without + at);
        word &= d->full ? UINT64_MAX : mu_get_u64(d->bits + at);
        if (word != 0) {
            *ret_chunk = (uint32_t)(at * 8 + (size_t)__builtin_ctzll(word));
            return true;
        }
        mask = UINT64_MAX;
    }
    return false;
}

bool mu_state_fetch_scan(const struct mu_state_fetch *f, const struct mu_state_donor *d,
                         uint32_t from, uint32_t *ret_chunk)
{
    return scan(f, d, from, NULL, ret_chunk);
}

bool mu_state_fetch_scan_rare(const struct mu_state_fetch *f, const struct mu_state_donor *d,
                              uint32_t from, uint32_t to, uint32_t *ret_chunk)
{
    uint32_t chunk;

    if (!scan(f, d, from, f->spread, &chunk) || chunk >= to) {
        return false;
    }
    *ret_chunk = chunk;
    return true;
}
