#include "codec/state/manifest.h"

#include <inttypes.h>

#include "core/alloc.h"
#include "core/reader.h"

#define VERSION  1
#define HEAD_LEN (4 + 1 + 8 + 8 + 4 + MU_STATE_HASH_LEN)

static const uint8_t manifest_magic[4] = {'M', 'U', 'S', 'M'};
static const uint8_t offer_magic[4] = {'M', 'U', 'S', 'O'};

/* --- the manifest ----------------------------------------------------------------------------- */

void mu_state_manifest_init(struct mu_state_manifest *m)
{
    *m = (struct mu_state_manifest){.chunk_bytes = MU_STATE_CHUNK_BYTES};
    mu_buf_init(&m->metadata, MU_STATE_METADATA_MAX);
    mu_layout_init(&m->layout);
}

void mu_state_manifest_fini(struct mu_state_manifest *m)
{
    mu_buf_fini(&m->metadata);
    mu_layout_fini(&m->layout);
}

static bool is_chunk_length(uint32_t n)
{
    return n >= MU_STATE_CHUNK_BYTES_MIN && n <= MU_STATE_CHUNK_BYTES_MAX && (n & (n - 1)) == 0;
}

static bool is_zero(const uint8_t hash[MU_STATE_HASH_LEN])
{
    uint8_t any = 0;

    for (size_t i = 0; i < MU_STATE_HASH_LEN; i++) {
        any |= hash[i];
    }
    return any == 0;
}

int mu_state_manifest_check(const struct mu_state_manifest *m, struct mu_errmsg *reterr_msg)
{
    const struct mu_layout *l = &m->layout;

    if (!is_chunk_length(m->chunk_bytes)) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "chunks cannot have %" PRIu32 " bytes",
                      m->chunk_bytes);
    }
    if (mu_state_chunks(l->bytes, m->chunk_bytes) > MU_STATE_CHUNKS_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT,
                      "%" PRIu64 " bytes are too many for chunks of %" PRIu32, l->bytes,
                      m->chunk_bytes);
    }
    if (m->metadata.len > MU_STATE_METADATA_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "%zu bytes of metadata are too many",
                      m->metadata.len);
    }
    if (l->count > MU_STATE_TENSORS_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "%zu tensors are too many", l->count);
    }
    for (size_t i = 0; i < l->count; i++) {
        if (l->tensors[i].name_len > MU_STATE_NAME_MAX) {
            return mu_err(reterr_msg, MUSTER_ELIMIT, "the name of tensor %zu is too long", i);
        }
    }
    return 0;
}

/* Names have at most 64 KiB, and there are at most a million: the sum fits. */
static size_t encoded_len(const struct mu_state_manifest *m)
{
    const struct mu_layout *l = &m->layout;
    size_t len = HEAD_LEN + 4 + m->metadata.len + 4;

    for (size_t i = 0; i < l->count; i++) {
        len += 1 + 1 + 8 * (size_t)l->tensors[i].rank + 4 + l->tensors[i].name_len;
    }
    return len;
}

static void put_tensor(const struct mu_layout *l, size_t i, struct mu_buf *out)
{
    const struct mu_tensor *t = &l->tensors[i];

    mu_buf_put_u8(out, (uint8_t)t->dtype);
    mu_buf_put_u8(out, (uint8_t)t->rank);
    for (uint32_t k = 0; k < t->rank; k++) {
        mu_buf_put_u64(out, mu_layout_shape(l, i)[k]);
    }
    mu_buf_put_u32(out, (uint32_t)t->name_len);
    mu_buf_put(out, mu_layout_name(l, i));
}

int mu_state_manifest_encode(const struct mu_state_manifest *m, struct mu_buf *out,
                             struct mu_errmsg *reterr_msg)
{
    int err = mu_state_manifest_check(m, reterr_msg);
    size_t len;

    if (err == 0) {
        err = mu_layout_check_names(&m->layout, reterr_msg);
    }
    if (err != 0) {
        return err;
    }
    len = encoded_len(m);
    if (len > MU_STATE_MANIFEST_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "a manifest of %zu bytes is too long", len);
    }
    err = mu_buf_reserve(out, len);
    if (err != 0) {
        return mu_err(reterr_msg, err, "there is no room for a manifest of %zu bytes", len);
    }
    mu_buf_put(out, mu_span(manifest_magic, sizeof(manifest_magic)));
    mu_buf_put_u8(out, VERSION);
    mu_buf_put_u64(out, m->epoch);
    mu_buf_put_u64(out, m->step);
    mu_buf_put_u32(out, m->chunk_bytes);
    mu_buf_put(out, mu_span(m->root, sizeof(m->root)));
    mu_buf_put_u32(out, (uint32_t)m->metadata.len);
    mu_buf_put(out, mu_buf_span(&m->metadata));
    mu_buf_put_u32(out, (uint32_t)m->layout.count);
    for (size_t i = 0; i < m->layout.count; i++) {
        put_tensor(&m->layout, i, out);
    }
    return 0;
}

static int read_tensor(struct mu_reader *r, struct mu_layout *l, struct mu_errmsg *reterr_msg)
{
    uint64_t shape[MU_TENSOR_RANK_MAX];
    uint8_t dtype = mu_read_u8(r);
    uint8_t rank = mu_read_u8(r);
    struct mu_span name;
    int err;

    if (!r->failed && (dtype < MU_DTYPE_BOOL || dtype > MU_DTYPE_LAST)) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "tensor %zu has the unknown type %u", l->count,
                      (unsigned)dtype);
    }
    if (rank > MU_TENSOR_RANK_MAX) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "tensor %zu has %u dimensions", l->count,
                      (unsigned)rank);
    }
    for (uint8_t k = 0; k < rank; k++) {
        shape[k] = mu_read_u64(r);
    }
    name = mu_read_span32(r);
    if (r->failed) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "the manifest ends within tensor %zu", l->count);
    }
    if (name.len > MU_STATE_NAME_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "the name of tensor %zu is too long", l->count);
    }
    err = mu_layout_add(l, name, (enum mu_dtype)dtype, shape, rank);
    if (err == MUSTER_EINVAL) {
        err = MUSTER_EPROTO;
    }
    return err == 0 ? 0 : mu_err(reterr_msg, err, "tensor %zu is impossibly large", l->count);
}

/* Reads everything after magic and version. */
static int read_manifest(struct mu_reader *r, struct mu_state_manifest *m,
                         struct mu_errmsg *reterr_msg)
{
    struct mu_span root;
    struct mu_span metadata;
    uint32_t tensors;
    int err;

    m->epoch = mu_read_u64(r);
    m->step = mu_read_u64(r);
    m->chunk_bytes = mu_read_u32(r);
    root = mu_read_bytes(r, MU_STATE_HASH_LEN);
    metadata = mu_read_span32(r);
    tensors = mu_read_u32(r);
    if (r->failed) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "the manifest ends early");
    }
    memcpy(m->root, root.data, MU_STATE_HASH_LEN);
    if (metadata.len > MU_STATE_METADATA_MAX || tensors > MU_STATE_TENSORS_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT,
                      "%zu bytes of metadata and %" PRIu32 " tensors are too many", metadata.len,
                      tensors);
    }
    err = mu_buf_append(&m->metadata, metadata);
    if (err != 0) {
        return mu_err(reterr_msg, err, "there is no memory for the metadata");
    }
    for (uint32_t i = 0; i < tensors; i++) {
        err = read_tensor(r, &m->layout, reterr_msg);
        if (err != 0) {
            return err;
        }
    }
    if (!mu_reader_done(r)) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "%zu bytes follow the manifest", r->rest.len);
    }
    return 0;
}

/* Checks that what was read is a manifest that this code could have written. */
static int check_read(const struct mu_state_manifest *m, struct mu_errmsg *reterr_msg)
{
    int err = mu_state_manifest_check(m, reterr_msg);

    if (err == 0) {
        err = mu_layout_check_names(&m->layout, reterr_msg);
    }
    if (err == 0 && m->layout.bytes == 0 && !is_zero(m->root)) {
        err = mu_err(reterr_msg, MUSTER_EPROTO, "a state without bytes has a root");
    }
    return err == MUSTER_EINVAL || err == MUSTER_EEXIST ? MUSTER_EPROTO : err;
}

int mu_state_manifest_decode(struct mu_span in, struct mu_state_manifest *ret,
                             struct mu_errmsg *reterr_msg)
{
    struct mu_reader r = mu_reader(in);
    struct mu_state_manifest m;
    struct mu_span magic;
    uint8_t version;
    int err;

    if (in.len > MU_STATE_MANIFEST_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "a manifest of %zu bytes is too long", in.len);
    }
    magic = mu_read_bytes(&r, sizeof(manifest_magic));
    version = mu_read_u8(&r);
    if (r.failed || memcmp(magic.data, manifest_magic, sizeof(manifest_magic)) != 0) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "this is not a manifest");
    }
    if (version != VERSION) {
        return mu_err(reterr_msg, MUSTER_EVERSION, "the manifest has the unknown version %u",
                      (unsigned)version);
    }
    mu_state_manifest_init(&m);
    err = read_manifest(&r, &m, reterr_msg);
    if (err == 0) {
        err = check_read(&m, reterr_msg);
    }
    if (err != 0) {
        mu_state_manifest_fini(&m);
        return err;
    }
    *ret = m;
    return 0;
}

/* --- the offer -------------------------------------------------------------------------------- */

int mu_state_offer_encode(struct mu_buf *out, struct mu_span manifest, struct mu_span leaves,
                          struct mu_span public_key, struct mu_span signature)
{
    int err;

    if (manifest.len > MU_STATE_MANIFEST_MAX || leaves.len % MU_STATE_HASH_LEN != 0 ||
        leaves.len / MU_STATE_HASH_LEN > MU_STATE_CHUNKS_MAX ||
        public_key.len > MU_STATE_KEY_LEN_MAX || signature.len > MU_STATE_SIG_LEN_MAX) {
        return MUSTER_EINVAL;
    }
    err = mu_buf_reserve(out, MU_STATE_OFFER_HEAD_LEN + manifest.len + leaves.len + public_key.len +
                                  signature.len);
    if (err != 0) {
        return err;
    }
    mu_buf_put(out, mu_span(offer_magic, sizeof(offer_magic)));
    mu_buf_put_u8(out, VERSION);
    mu_buf_put_u32(out, (uint32_t)manifest.len);
    mu_buf_put_u32(out, (uint32_t)(leaves.len / MU_STATE_HASH_LEN));
    mu_buf_put_u16(out, (uint16_t)public_key.len);
    mu_buf_put_u16(out, (uint16_t)signature.len);
    mu_buf_put(out, manifest);
    mu_buf_put(out, leaves);
    mu_buf_put(out, public_key);
    mu_buf_put(out, signature);
    return 0;
}

void mu_state_offer_init(struct mu_state_offer *o)
{
    *o = (struct mu_state_offer){0};
    mu_buf_init(&o->bytes, MU_STATE_OFFER_BYTES_MAX);
}

void mu_state_offer_fini(struct mu_state_offer *o)
{
    if (o->whole) {
        mu_state_manifest_fini(&o->manifest);
    }
    mu_buf_fini(&o->bytes);
    *o = (struct mu_state_offer){.bytes = o->bytes};
}

struct offer_head {
    uint32_t manifest_len;
    uint32_t leaves;
    uint16_t key_len;
    uint16_t sig_len;
};

/* Reads the head, which is whole, and checks that the lengths are within their limits. */
static int read_head(struct mu_reader *r, struct offer_head *ret, struct mu_errmsg *reterr_msg)
{
    struct mu_span magic = mu_read_bytes(r, sizeof(offer_magic));
    uint8_t version = mu_read_u8(r);

    ret->manifest_len = mu_read_u32(r);
    ret->leaves = mu_read_u32(r);
    ret->key_len = mu_read_u16(r);
    ret->sig_len = mu_read_u16(r);
    if (memcmp(magic.data, offer_magic, sizeof(offer_magic)) != 0) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "this is not an offer of a state");
    }
    if (version != VERSION) {
        return mu_err(reterr_msg, MUSTER_EVERSION, "the offer has the unknown version %u",
                      (unsigned)version);
    }
    if (ret->manifest_len > MU_STATE_MANIFEST_MAX || ret->leaves > MU_STATE_CHUNKS_MAX ||
        ret->key_len > MU_STATE_KEY_LEN_MAX || ret->sig_len > MU_STATE_SIG_LEN_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT,
                      "an offer with %" PRIu32 " bytes of manifest and %" PRIu32
                      " leaves is too long",
                      ret->manifest_len, ret->leaves);
    }
    return 0;
}

/* Reads the offer once all bytes are here. */
static int finish(struct mu_state_offer *o, struct mu_errmsg *reterr_msg)
{
    struct mu_reader r = mu_reader(mu_buf_span(&o->bytes));
    struct offer_head head;
    int err = read_head(&r, &head, reterr_msg);

    if (err != 0) {
        return err;
    }
    o->manifest_bytes = mu_read_bytes(&r, head.manifest_len);
    o->leaves = mu_read_bytes(&r, (uint64_t)head.leaves * MU_STATE_HASH_LEN);
    o->public_key = mu_read_bytes(&r, head.key_len);
    o->signature = mu_read_bytes(&r, head.sig_len);
    err = mu_state_manifest_decode(o->manifest_bytes, &o->manifest, reterr_msg);
    if (err != 0) {
        return err;
    }
    if (head.leaves != mu_state_chunk_count(&o->manifest)) {
        err = mu_err(reterr_msg, MUSTER_EPROTO, "%" PRIu32 " leaves for %" PRIu32 " chunks",
                     head.leaves, mu_state_chunk_count(&o->manifest));
        mu_state_manifest_fini(&o->manifest);
        return err;
    }
    o->whole = true;
    return 0;
}

/* Reads the head if it is whole by now. */
static int look_at_head(struct mu_state_offer *o, struct mu_errmsg *reterr_msg)
{
    struct mu_reader r = mu_reader(mu_buf_span(&o->bytes));
    struct offer_head head;
    int err;

    if (o->total != 0 || o->bytes.len < MU_STATE_OFFER_HEAD_LEN) {
        return 0;
    }
    err = read_head(&r, &head, reterr_msg);
    if (err == 0) {
        o->total = MU_STATE_OFFER_HEAD_LEN + (size_t)head.manifest_len +
                   (size_t)head.leaves * MU_STATE_HASH_LEN + head.key_len + head.sig_len;
    }
    return err;
}

/* Appends as much of `*in` as the head needs, or all if that is known. */
static int take(struct mu_state_offer *o, struct mu_span *in)
{
    size_t n = in->len;
    int err;

    if (o->total == 0 && n > MU_STATE_OFFER_HEAD_LEN - o->bytes.len) {
        n = MU_STATE_OFFER_HEAD_LEN - o->bytes.len;
    }
    err = mu_buf_append(&o->bytes, mu_span(in->data, n));
    if (err == 0) {
        *in = mu_span_skip(*in, n);
    }
    return err;
}

/* Takes bytes up to the end of the offer; `*in` is then what follows it. */
static int advance(struct mu_state_offer *o, struct mu_span *in, struct mu_errmsg *reterr_msg)
{
    struct mu_span mine;
    int err = 0;

    if (o->total == 0) {
        err = take(o, in);
        if (err == 0) {
            err = look_at_head(o, reterr_msg);
        }
    }
    if (err != 0 || o->total == 0) {
        return err != 0 ? err : MUSTER_EAGAIN;
    }
    mine = mu_span(in->data, in->len < o->total - o->bytes.len ? in->len : o->total - o->bytes.len);
    *in = mu_span_skip(*in, mine.len);
    err = take(o, &mine);
    if (err != 0) {
        return err;
    }
    return o->bytes.len < o->total ? MUSTER_EAGAIN : finish(o, reterr_msg);
}

int mu_state_offer_recv(struct mu_state_offer *o, struct mu_span in, struct mu_errmsg *reterr_msg)
{
    size_t before = o->bytes.len;
    size_t total = o->total;
    int err = 0;

    if (o->poison != 0) {
        return mu_err(reterr_msg, o->poison, "the offer was refused before");
    }
    if (!o->whole) {
        err = advance(o, &in, reterr_msg);
    }
    if (err == MUSTER_ENOMEM) {
        /* Undoes this piece. */
        o->bytes.len = before;
        o->total = total;
        return mu_err(reterr_msg, err, "there is no memory for the offer");
    }
    if (err == 0 && in.len != 0) {
        err = mu_err(reterr_msg, MUSTER_EPROTO, "%zu bytes follow the offer", in.len);
        mu_state_manifest_fini(&o->manifest);
        o->whole = false;
    }
    if (err != 0 && err != MUSTER_EAGAIN) {
        o->poison = err;
    }
    return err;
}
