#include "service/state/share.h"

#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "crypto/state_tree.h"

int mu_state_segments_new(const struct mu_layout *layout, uint8_t *const *tensors, uint8_t *data,
                          struct mu_state_segment **ret, size_t *ret_count)
{
    size_t count = tensors == NULL ? 1 : layout->count;
    struct mu_state_segment *segments = mu_calloc(count == 0 ? 1 : count, sizeof(*segments));
    size_t used = 0;

    if (segments == NULL) {
        return MUSTER_ENOMEM;
    }
    if (tensors == NULL) {
        segments[0] = (struct mu_state_segment){0, layout->bytes, data};
        used = layout->bytes == 0 ? 0 : 1;
    }
    for (size_t i = 0; tensors != NULL && i < layout->count; i++) {
        const struct mu_tensor *t = &layout->tensors[i];
        struct mu_state_segment *last = used == 0 ? NULL : &segments[used - 1];

        if (t->len == 0) {
            continue;
        }
        /* Neighbours in memory become one piece: most often a whole model does. */
        if (last != NULL && last->data + last->len == tensors[i]) {
            last->len += t->len;
        } else {
            segments[used++] = (struct mu_state_segment){t->offset, t->len, tensors[i]};
        }
    }
    *ret = segments;
    *ret_count = used;
    return 0;
}

/* --- life ------------------------------------------------------------------------------------- */

static void free_share(struct mu_state_share *share)
{
    mu_state_manifest_fini(&share->manifest);
    mu_state_offer_fini(&share->offer);
    mu_free(share->leaves);
    mu_free(share->segments);
    mu_free(share);
}

void mu_state_share_drop(struct mu_state_share *share)
{
    if (share != NULL && --share->refs == 0) {
        if (share->released != NULL) {
            share->released(share);
        }
        free_share(share);
    }
}

static struct mu_state_share *new_share(void)
{
    struct mu_state_share *share = mu_calloc(1, sizeof(*share));

    if (share != NULL) {
        share->refs = 1;
        mu_state_manifest_init(&share->manifest);
        mu_state_offer_init(&share->offer);
    }
    return share;
}

static int copy_layout(const struct mu_layout *from, struct mu_layout *to)
{
    for (size_t i = 0; i < from->count; i++) {
        int err = mu_layout_add(to, mu_layout_name(from, i), from->tensors[i].dtype,
                                mu_layout_shape(from, i), from->tensors[i].rank);

        if (err != 0) {
            return err;
        }
    }
    return 0;
}

static int fill(struct mu_state_share *share, const struct mu_state_share_spec *spec,
                struct mu_errmsg *reterr_msg)
{
    struct mu_state_manifest *m = &share->manifest;
    int err;

    memcpy(share->prefix, spec->prefix.data, spec->prefix.len);
    share->priority = spec->priority;
    share->hidden = spec->hidden;
    m->epoch = spec->epoch;
    m->step = spec->step;
    m->chunk_bytes = spec->chunk_bytes != 0 ? spec->chunk_bytes : MU_STATE_CHUNK_BYTES;
    err = copy_layout(spec->layout, &m->layout);
    if (err == 0) {
        err = mu_buf_append(&m->metadata, spec->metadata);
    }
    if (err != 0) {
        return mu_err(reterr_msg, err, "the state's description is not valid: %s",
                      muster_strerror(err));
    }
    err = mu_state_manifest_check(m, reterr_msg);
    if (err != 0) {
        return err;
    }
    share->chunks = share->have_count = mu_state_chunk_count(m);
    share->leaves = mu_calloc(share->chunks == 0 ? 1 : share->chunks, MU_STATE_HASH_LEN);
    if (share->leaves == NULL ||
        mu_state_segments_new(&m->layout, spec->tensors, spec->data, &share->segments,
                              &share->segment_count) != 0) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    return 0;
}

int mu_state_share_new(const struct mu_state_share_spec *spec, struct mu_state_share **ret,
                       struct mu_errmsg *reterr_msg)
{
    struct mu_state_share *share;
    int err;

    if (spec->prefix.len > MU_STATE_PREFIX_MAX || isnan(spec->priority)) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a prefix may have at most %d bytes, and a priority must be a number",
                      MU_STATE_PREFIX_MAX);
    }
    share = new_share();
    if (share == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    err = fill(share, spec, reterr_msg);
    if (err != 0) {
        free_share(share);
        return err;
    }
    *ret = share;
    return 0;
}

int mu_state_share_of(struct mu_state_offer *offer, const uint8_t id[MU_STATE_ID_LEN],
                      struct mu_state_segment *segments, size_t segment_count,
                      struct mu_state_share **ret)
{
    struct mu_state_share *share = new_share();

    if (share == NULL) {
        return MUSTER_ENOMEM;
    }
    share->offer = *offer;
    mu_state_offer_init(offer);
    memcpy(share->id, id, sizeof(share->id));
    share->chunks = share->have_count = mu_state_chunk_count(&share->offer.manifest);
    share->segments = segments;
    share->segment_count = segment_count;
    *ret = share;
    return 0;
}

/* --- chunks ----------------------------------------------------------------------------------- */

static const struct mu_state_manifest *manifest_of(const struct mu_state_share *share)
{
    return share->offer.whole ? &share->offer.manifest : &share->manifest;
}

/* Returns the segment in which a byte lies; there is always one. */
static const struct mu_state_segment *segment_at(const struct mu_state_share *share,
                                                 uint64_t offset)
{
    size_t low = 0;
    size_t high = share->segment_count;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;

        if (share->segments[middle].offset <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &share->segments[low];
}

struct mu_state_entry mu_state_share_entry(const struct mu_state_share *share)
{
    const struct mu_state_manifest *m = &share->offer.manifest;
    struct mu_state_entry entry = {
        .prefix = mu_span_str(share->prefix),
        .epoch = m->epoch,
        .step = m->step,
        .bytes = m->layout.bytes,
        .tensors = (uint32_t)m->layout.count,
        .priority = share->priority,
        .have = share->have == NULL ? share->chunks : share->have_count,
        .chunks = share->chunks,
        .public_key = share->offer.public_key,
        .signature = share->offer.signature,
    };

    memcpy(entry.id, share->id, sizeof(entry.id));
    return entry;
}

bool mu_state_share_place(const struct mu_state_share *share, uint32_t chunk,
                          struct mu_space *ret_place)
{
    const struct mu_state_manifest *m = manifest_of(share);
    uint64_t offset = mu_state_chunk_offset(m, chunk);
    uint32_t len = mu_state_chunk_len(m, chunk);
    const struct mu_state_segment *s = segment_at(share, offset);

    if (s->offset + s->len - offset < len) {
        return false;
    }
    *ret_place = (struct mu_space){s->data + (offset - s->offset), len};
    return true;
}

static void copy_pieces(const struct mu_state_share *share, uint32_t chunk, uint8_t *bytes,
                        bool into)
{
    const struct mu_state_manifest *m = manifest_of(share);
    uint64_t offset = mu_state_chunk_offset(m, chunk);
    const struct mu_state_segment *s = segment_at(share, offset);
    size_t left = mu_state_chunk_len(m, chunk);

    while (left != 0) {
        uint8_t *at = s->data + (offset - s->offset);
        uint64_t rest = s->offset + s->len - offset;
        size_t n = rest < left ? (size_t)rest : left;

        memcpy(into ? at : bytes, into ? bytes : at, n);
        bytes += n;
        offset += n;
        left -= n;
        s++;
    }
}

void mu_state_share_gather(const struct mu_state_share *share, uint32_t chunk, uint8_t *to)
{
    copy_pieces(share, chunk, to, false);
}

void mu_state_share_scatter(const struct mu_state_share *share, uint32_t chunk, const uint8_t *from)
{
    copy_pieces(share, chunk, (uint8_t *)(uintptr_t)from, true);
}

struct mu_span mu_state_share_tensor(const struct mu_state_share *share, size_t i)
{
    const struct mu_tensor *t = &share->offer.manifest.layout.tensors[i];
    const struct mu_state_segment *s;

    if (t->len == 0) {
        return (struct mu_span){0};
    }
    s = segment_at(share, t->offset); /* several tensors may lie in one segment */
    return mu_span(s->data + (t->offset - s->offset), (size_t)t->len);
}

/* --- making a share --------------------------------------------------------------------------- */

/* Finds a chunk in one piece: where it lies, or else in `copy`. */
static int find_chunk(struct mu_state_share *share, uint32_t i, uint8_t *copy,
                      struct mu_span *ret_chunk)
{
    uint32_t len = mu_state_chunk_len(&share->manifest, i);
    struct mu_space place;

    if (share->read == NULL && mu_state_share_place(share, i, &place)) {
        *ret_chunk = mu_span(place.data, place.len);
        return 0;
    }
    *ret_chunk = mu_span(copy, len);
    if (share->read != NULL) {
        return share->read(share, mu_state_chunk_offset(&share->manifest, i), copy, len);
    }
    mu_state_share_gather(share, i, copy);
    return 0;
}

int mu_state_share_hash(struct mu_state_share *share, uint32_t first, uint32_t count)
{
    size_t chunk_bytes = share->manifest.chunk_bytes;
    uint8_t *copies = mu_calloc(2, chunk_bytes);
    int err = copies == NULL ? MUSTER_ENOMEM : 0;

    for (uint32_t i = 0; err == 0 && i < count; i += 2) {
        uint8_t *leaf = share->leaves + (size_t)(first + i) * MU_STATE_HASH_LEN;
        struct mu_span chunks[2];

        err = find_chunk(share, first + i, copies, &chunks[0]);
        if (err == 0 && i + 1 < count) {
            err = find_chunk(share, first + i + 1, copies + chunk_bytes, &chunks[1]);
            if (err == 0) {
                mu_state_leaf_two(leaf, chunks[0], leaf + MU_STATE_HASH_LEN, chunks[1]);
            }
        } else if (err == 0) {
            mu_state_leaf(leaf, &chunks[0], 1);
        }
    }
    mu_free(copies);
    return err;
}

int mu_state_share_set_leaves(struct mu_state_share *share, struct mu_span leaves)
{
    if (leaves.len != (size_t)share->chunks * MU_STATE_HASH_LEN) {
        return MUSTER_EINVAL;
    }
    if (leaves.len != 0) {
        memcpy(share->leaves, leaves.data, leaves.len);
    }
    return 0;
}

int mu_state_share_seal(struct mu_state_share *share, const struct mu_identity *identity,
                        struct mu_errmsg *reterr_msg)
{
    struct mu_span leaves = mu_span(share->leaves, (size_t)share->chunks * MU_STATE_HASH_LEN);
    struct mu_buf bytes;
    int err;

    mu_buf_init(&bytes, MU_STATE_OFFER_BYTES_MAX);
    err = mu_state_offer_make(&share->manifest, leaves, identity, &bytes, share->id, reterr_msg);
    if (err == 0) {
        err = mu_state_offer_recv(&share->offer, mu_buf_span(&bytes), reterr_msg);
        MU_ASSERT(err != MUSTER_EAGAIN);
    }
    mu_buf_fini(&bytes);
    if (err == 0) {
        mu_free(share->leaves);
        share->leaves = NULL;
        mu_state_manifest_fini(&share->manifest);
        mu_state_manifest_init(&share->manifest);
    }
    return err;
}
