#include "service/state/file.h"

#include "codec/text/base64.h"
#include "codec/text/json_view.h"
#include "codec/bin/msgpack.h"

#define KEY_TEXT  "safetensors"
#define KEY_HEAD  "safetensors_head"
#define KEY_OTHER "muster_metadata"

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

int mu_state_file_parse(struct mu_span head, uint64_t file_len, struct mu_layout *layout,
                        struct mu_buf *metadata, struct mu_errmsg *reterr_msg)
{
    struct mu_buf text;
    bool ours;
    int err;

    mu_buf_init(&text, MU_SAFETENSORS_HEADER_MAX);
    err = mu_safetensors_parse(mu_span_skip(head, MU_SAFETENSORS_PREFIX_LEN), file_len - head.len,
                               layout, &text, reterr_msg);
    ours = err == 0 && is_ours(head, layout, mu_buf_span(&text));
    if (err == 0 && !ours && head.len < MU_STATE_METADATA_MAX - 64) {
        err = put_one(metadata, MU_SPAN_LIT(KEY_HEAD), head, false);
    } else if (err == 0 && text.len != 0 && !unwrap(mu_buf_span(&text), metadata)) {
        mu_buf_reset(metadata);
        err = put_one(metadata, MU_SPAN_LIT(KEY_TEXT), mu_buf_span(&text), true);
    }
    mu_buf_fini(&text);
    if (err == MUSTER_ENOMEM || err == MUSTER_ELIMIT) {
        (void)mu_err(reterr_msg, err, "its metadata is not valid: %s", muster_strerror(err));
    }
    return err;
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

static int put_wrapped(const struct mu_state_manifest *m, struct mu_buf *out)
{
    struct mu_buf text;
    int err;

    mu_buf_init(&text, 2 * MU_STATE_METADATA_MAX);
    err = mu_buf_append(&text, MU_SPAN_LIT("{\"" KEY_OTHER "\":\""));
    err = err != 0 ? err : mu_base64_encode(&text, mu_buf_span(&m->metadata));
    err = err != 0 ? err : mu_buf_append(&text, MU_SPAN_LIT("\"}"));
    err = err != 0 ? err : mu_safetensors_write(&m->layout, mu_buf_span(&text), out);
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
                             : put_wrapped(m, out);
}
