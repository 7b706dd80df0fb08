#include "service/state/file.h"

#include "codec/text/base64.h"
#include "codec/text/json_view.h"
#include "codec/bin/msgpack.h"

#define KEY_TEXT  "safetensors"
#define KEY_HEAD  "safetensors_head"
#define KEY_OTHER "muster_metadata"

#define PAGE          ((size_t)4096)
#define RESERVE_LEAST (16 * PAGE) /* for some 700 tensors */
#define RESERVE_MOST  ((size_t)32 << 20)

int mu_state_file_head_len(struct mu_span head, uint64_t file_len, size_t *ret_len,
                           struct mu_errmsg *reterr_msg)
{
    size_t json;
    int err;

    if (head.len < MU_SAFETENSORS_PREFIX_LEN) {
        return mu_err(reterr_msg, MUSTER_ECORRUPT, "it is too short to be a safetensors file");
    }
    err = mu_safetensors_length(head.data, file_len, &json, reterr_msg);
    if (err == 0) {
        *ret_len = MU_SAFETENSORS_PREFIX_LEN + json;
    }
    return err;
}

/* An optimizer's metadata has at least 20 bytes for each tensor. In the head, its name, type, shape
 * and place take less than 130, and the metadata a third more than it is. */
size_t mu_state_file_reserve(size_t metadata_len)
{
    size_t len = RESERVE_LEAST + 8 * (metadata_len < RESERVE_MOST ? metadata_len : RESERVE_MOST);

    len = len < RESERVE_MOST ? len : RESERVE_MOST;
    return (len + PAGE - 1) / PAGE * PAGE;
}

/* Reads the metadata of a state that mu_state_file_head() wrote into a file. */
static bool unwrap(struct mu_span text, struct mu_buf *metadata)
{
    struct mu_span name;
    struct mu_span value;
    struct mu_span again;
    struct mu_jv_walk walk = mu_jv_walk(text);

    return mu_jv_next(&walk, &name, &value) && mu_span_eq(name, MU_SPAN_LIT(KEY_OTHER)) &&
           value.len >= 2 &&
           mu_base64_decode(metadata, mu_span(value.data + 1, value.len - 2)) == 0 &&
           !mu_jv_next(&walk, &name, &again);
}

/* Whether this library would have written the same head. */
static bool is_ours(struct mu_span head, const struct mu_layout *layout, struct mu_span text)
{
    struct mu_buf again;
    bool same;

    mu_buf_init(&again, MU_SAFETENSORS_PREFIX_LEN + (size_t)MU_SAFETENSORS_HEADER_MAX);
    same = mu_safetensors_write(layout, text, &again) == 0 && mu_span_eq(mu_buf_span(&again), head);
    mu_buf_fini(&again);
    return same;
}

static int put_one(struct mu_buf *out, struct mu_span key, struct mu_span value, bool text)
{
    struct mu_mp_out mp = mu_mp_out(out);

    mu_mp_put_map(&mp, 1);
    mu_mp_put_str(&mp, key);
    if (text) {
        mu_mp_put_str(&mp, value);
    } else {
        mu_mp_put_bin(&mp, value);
    }
    return mp.err;
}

/* --- writing a head --------------------------------------------------------------------------- */

/* Gets the value of a map that has only this key. */
static bool get_one(struct mu_span in, struct mu_span key, enum mu_mp_type type,
                    struct mu_span *ret)
{
    struct mu_mp t;

    if (mu_mp_next(&in, &t) != 0 || t.type != MU_MP_MAP || t.count != 1 ||
        mu_mp_next(&in, &t) != 0 || t.type != MU_MP_STR || !mu_span_eq(t.bytes, key) ||
        mu_mp_next(&in, &t) != 0 || t.type != type || in.len != 0) {
        return false;
    }
    *ret = t.bytes;
    return true;
}

/* Whether a head that came with a state describes exactly that state. */
static bool fits(struct mu_span head, const struct mu_state_manifest *m)
{
    struct mu_layout layout;
    struct mu_errmsg msg;
    size_t len = 0;
    bool ok;

    mu_layout_init(&layout);
    ok = mu_state_file_head_len(head, head.len + m->layout.bytes, &len, &msg) == 0 &&
         len == head.len &&
         mu_safetensors_parse(mu_span_skip(head, MU_SAFETENSORS_PREFIX_LEN), m->layout.bytes,
                              &layout, NULL, &msg) == 0 &&
         mu_layout_check(&m->layout, &layout, &msg) == 0;
    mu_layout_fini(&layout);
    return ok;
}

static bool is_object_of_strings(struct mu_span text)
{
    struct mu_span value;
    struct mu_jv_walk walk;

    if (!mu_jv_valid(text) || !mu_jv_is_object(mu_jv_root(text))) {
        return false;
    }
    walk = mu_jv_walk(mu_jv_root(text));
    while (mu_jv_next(&walk, NULL, &value)) {
        if (value.len == 0 || value.data[0] != '"') {
            return false;
        }
    }
    return true;
}

/* Pads the head that begins at `start`. */
static int pad(struct mu_buf *out, size_t start, size_t len)
{
    size_t more = out->len - start < len ? len - (out->len - start) : 0;
    int err = mu_buf_reserve(out, more);

    if (err == 0) {
        memset(mu_buf_grow(out, more), ' ', more);
        mu_put_u64(out->data + out->head + start, out->len - start - MU_SAFETENSORS_PREFIX_LEN);
    }
    return err;
}

static int put_wrapped(const struct mu_layout *layout, struct mu_span metadata, struct mu_buf *out)
{
    size_t start = out->len;
    struct mu_buf text;
    int err;

    mu_buf_init(&text, 2 * MU_STATE_METADATA_MAX);
    err = mu_buf_append(&text, MU_SPAN_LIT("{\"" KEY_OTHER "\":\""));
    err = err != 0 ? err : mu_base64_encode(&text, metadata);
    err = err != 0 ? err : mu_buf_append(&text, MU_SPAN_LIT("\"}"));
    err = err != 0 ? err : mu_safetensors_write(layout, mu_buf_span(&text), out);
    err = err != 0 ? err : pad(out, start, mu_state_file_reserve(metadata.len));
    mu_buf_fini(&text);
    return err;
}

int mu_state_file_head(const struct mu_state_manifest *m, struct mu_buf *out)
{
    struct mu_span metadata = mu_buf_span(&m->metadata);
    struct mu_span value;

    if (get_one(metadata, MU_SPAN_LIT(KEY_HEAD), MU_MP_BIN, &value) && fits(value, m)) {
        return mu_buf_append(out, value);
    }
    if (get_one(metadata, MU_SPAN_LIT(KEY_TEXT), MU_MP_STR, &value) &&
        is_object_of_strings(value)) {
        return mu_safetensors_write(&m->layout, value, out);
    }
    return metadata.len == 0 ? mu_safetensors_write(&m->layout, (struct mu_span){0}, out)
                             : put_wrapped(&m->layout, metadata, out);
}

/* --- reading a head --------------------------------------------------------------------------- */

/* Whether it is the head of a state that came from no file; gets its metadata then. */
static bool is_wrapped(struct mu_span head, const struct mu_layout *layout, struct mu_span text,
                       struct mu_buf *metadata)
{
    struct mu_buf again;
    bool same;

    mu_buf_init(&again, MU_SAFETENSORS_PREFIX_LEN + (size_t)MU_SAFETENSORS_HEADER_MAX);
    /* Early versions did not pad it. */
    same = text.len != 0 && unwrap(text, metadata) &&
           put_wrapped(layout, mu_buf_span(metadata), &again) == 0 &&
           (mu_span_eq(mu_buf_span(&again), head) || is_ours(head, layout, text));
    mu_buf_fini(&again);
    return same;
}

int mu_state_file_parse(struct mu_span head, uint64_t file_len, struct mu_layout *layout,
                        struct mu_buf *metadata, struct mu_errmsg *reterr_msg)
{
    struct mu_buf text;
    int err;

    mu_buf_init(&text, MU_SAFETENSORS_HEADER_MAX);
    err = mu_safetensors_parse(mu_span_skip(head, MU_SAFETENSORS_PREFIX_LEN), file_len - head.len,
                               layout, &text, reterr_msg);
    if (err == 0 && !is_wrapped(head, layout, mu_buf_span(&text), metadata)) {
        mu_buf_reset(metadata);
        if (!is_ours(head, layout, mu_buf_span(&text)) && head.len < MU_STATE_METADATA_MAX - 64) {
            err = put_one(metadata, MU_SPAN_LIT(KEY_HEAD), head, false);
        } else if (text.len != 0) {
            err = put_one(metadata, MU_SPAN_LIT(KEY_TEXT), mu_buf_span(&text), true);
        }
    }
    mu_buf_fini(&text);
    if (err == MUSTER_ENOMEM || err == MUSTER_ELIMIT) {
        (void)mu_err(reterr_msg, err, "its metadata is not valid: %s", muster_strerror(err));
    }
    return err;
}
