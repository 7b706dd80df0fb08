#include "codec/bin/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec/text/json_string.h"
#include "codec/text/json_view.h"
#include "core/alloc.h"
#include "core/assert.h"

int mu_safetensors_length(const uint8_t prefix[MU_SAFETENSORS_PREFIX_LEN], uint64_t file_len,
                          size_t *ret_len, struct mu_errmsg *reterr_msg)
{
    uint64_t len = mu_get_u64(prefix);

    /* torch.save() writes a zip archive; before PyTorch 1.6, it wrote a bare pickle. */
    if (len > MU_SAFETENSORS_HEADER_MAX &&
        (memcmp(prefix, "PK\3\4", 4) == 0 ||
         (prefix[0] == 0x80 && prefix[1] >= 2 && prefix[1] <= 5))) {
        return mu_err(reterr_msg, MUSTER_ECORRUPT,
                      "this is a PyTorch pickle; save it as safetensors: safetensors.torch."
                      "save_file(torch.load(\"model.pt\"), \"model.safetensors\")");
    }
    if (len > MU_SAFETENSORS_HEADER_MAX) {
        return mu_err(reterr_msg, MUSTER_ECORRUPT,
                      "this is not a safetensors file: its head would have %" PRIu64 " bytes", len);
    }
    if (file_len < MU_SAFETENSORS_PREFIX_LEN || len > file_len - MU_SAFETENSORS_PREFIX_LEN) {
        return mu_err(reterr_msg, MUSTER_ECORRUPT,
                      "the file is cut short: its head has %" PRIu64
                      " bytes, and the file %" PRIu64,
                      len, file_len);
    }
    *ret_len = (size_t)len;
    return 0;
}

/* One tensor of the head; all spans point into the JSON. */
struct entry {
    struct mu_span name; /* as written, without quotes */
    struct mu_span shape;
    enum mu_dtype dtype;
    uint64_t begin;
    uint64_t end;
};

struct entries {
    struct entry *list;
    size_t count;
    size_t cap;
};

static bool read_u64(struct mu_span value, uint64_t *ret)
{
    int64_t number;

    /* Not in quotes, which mu_jv_int() would accept. */
    if (value.len == 0 || value.data[0] == '"' || !mu_jv_int(value, &number) || number < 0) {
        return false;
    }
    *ret = (uint64_t)number;
    return true;
}

static bool read_offsets(struct mu_span value, struct entry *e)
{
    struct mu_jv_walk walk = mu_jv_walk(value);
    struct mu_span begin;
    struct mu_span end;
    struct mu_span more;

    return value.len != 0 && value.data[0] == '[' && mu_jv_next(&walk, NULL, &begin) &&
           mu_jv_next(&walk, NULL, &end) && !mu_jv_next(&walk, NULL, &more) &&
           read_u64(begin, &e->begin) && read_u64(end, &e->end) && e->begin <= e->end;
}

static int complain(struct mu_errmsg *reterr_msg, struct mu_span name, int code, const char *what)
{
    char quoted[96];

    return mu_err(reterr_msg, code, "tensor %s: %s", mu_span_quote(quoted, sizeof(quoted), name),
                  what);
}

static int read_entry(struct mu_span name, struct mu_span value, struct entry *ret,
                      struct mu_errmsg *reterr_msg)
{
    struct mu_span dtype = mu_jv_member(value, "dtype");

    *ret = (struct entry){.name = name, .shape = mu_jv_member(value, "shape")};
    if (!mu_jv_is_object(value) || dtype.len < 2 || dtype.data[0] != '"') {
        return complain(reterr_msg, name, MUSTER_ECORRUPT, "it has no dtype");
    }
    ret->dtype = mu_dtype_parse(mu_span(dtype.data + 1, dtype.len - 2));
    if (ret->dtype == 0) {
        return complain(reterr_msg, name, MUSTER_ENOTSUP, "its dtype is unknown");
    }
    if (ret->shape.len == 0 || ret->shape.data[0] != '[') {
        return complain(reterr_msg, name, MUSTER_ECORRUPT, "it has no shape");
    }
    if (!read_offsets(mu_jv_member(value, "data_offsets"), ret)) {
        return complain(reterr_msg, name, MUSTER_ECORRUPT, "its data_offsets are invalid");
    }
    return 0;
}

static int push_entry(struct entries *es, const struct entry *e)
{
    if (es->count == es->cap) {
        size_t cap = es->cap == 0 ? 64 : es->cap * 2;
        struct entry *bigger = mu_realloc(es->list, cap * sizeof(*bigger));

        if (bigger == NULL) {
            return MUSTER_ENOMEM;
        }
        es->list = bigger;
        es->cap = cap;
    }
    es->list[es->count++] = *e;
    return 0;
}

/* The metadata must map strings to strings. */
static int take_metadata(struct mu_span value, struct mu_buf *out, struct mu_errmsg *reterr_msg)
{
    struct mu_jv_walk walk = mu_jv_walk(value);
    struct mu_span member;

    if (!mu_jv_is_object(value)) {
        return mu_err(reterr_msg, MUSTER_ECORRUPT, "__metadata__ is not an object");
    }
    while (mu_jv_next(&walk, NULL, &member)) {
        if (member.data[0] != '"') {
            return mu_err(reterr_msg, MUSTER_ECORRUPT, "__metadata__ holds more than strings");
        }
    }
    if (out == NULL) {
        return 0;
    }
    mu_buf_reset(out);
    return mu_buf_append(out, value);
}

static int collect(struct mu_span json, struct entries *es, struct mu_buf *metadata,
                   struct mu_errmsg *reterr_msg)
{
    struct mu_jv_walk walk;
    struct mu_span name;
    struct mu_span value;
    struct entry e;

    if (json.len == 0 || json.data[0] != '{' || !mu_jv_valid(json)) {
        return mu_err(reterr_msg, MUSTER_ECORRUPT, "the head is not a JSON object");
    }
    walk = mu_jv_walk(mu_jv_root(json));
    while (mu_jv_next(&walk, &name, &value)) {
        int err;

        if (mu_span_eq(name, MU_SPAN_LIT("__metadata__"))) {
            err = take_metadata(value, metadata, reterr_msg);
        } else {
            err = read_entry(name, value, &e, reterr_msg);
            if (err == 0) {
                err = push_entry(es, &e);
            }
        }
        if (err != 0) {
            return err;
        }
    }
    return 0;
}

/* Orders tensors by their bytes; those without bytes by their names as written. */
static int compare_entries(const void *left, const void *right)
{
    const struct entry *a = left;
    const struct entry *b = right;
    size_t shorter = a->name.len < b->name.len ? a->name.len : b->name.len;
    int order;

    if (a->begin != b->begin) {
        return a->begin < b->begin ? -1 : 1;
    }
    if (a->end != b->end) {
        return a->end < b->end ? -1 : 1;
    }
    order = shorter == 0 ? 0 : memcmp(a->name.data, b->name.data, shorter);
    return order != 0 ? order : (a->name.len > b->name.len) - (a->name.len < b->name.len);
}

/* Decodes the name without its escapes; the scratch buffer has room for it. */
static int decode_name(struct mu_span name, struct mu_buf *scratch, struct mu_span *ret)
{
    int err;

    mu_buf_reset(scratch);
    err = mu_buf_reserve(scratch, name.len + 2);
    if (err != 0) {
        return err;
    }
    return mu_jv_string(mu_span(name.data - 1, name.len + 2), scratch, ret) ? 0 : MUSTER_ECORRUPT;
}

static int add_entry(struct mu_layout *layout, const struct entry *e, struct mu_buf *scratch,
                     struct mu_errmsg *reterr_msg)
{
    struct mu_jv_walk walk = mu_jv_walk(e->shape);
    uint64_t shape[MU_TENSOR_RANK_MAX];
    struct mu_span value;
    struct mu_span name;
    size_t rank = 0;
    int err;

    while (mu_jv_next(&walk, NULL, &value)) {
        if (rank == MU_TENSOR_RANK_MAX) {
            return complain(reterr_msg, e->name, MUSTER_ECORRUPT, "it has too many dimensions");
        }
        if (!read_u64(value, &shape[rank++])) {
            return complain(reterr_msg, e->name, MUSTER_ECORRUPT, "its shape is invalid");
        }
    }
    err = decode_name(e->name, scratch, &name);
    if (err == MUSTER_ECORRUPT) {
        return complain(reterr_msg, e->name, err, "its name is invalid");
    }
    if (err == 0) {
        err = mu_layout_add(layout, name, e->dtype, shape, rank);
    }
    if (err == MUSTER_EINVAL) {
        return complain(reterr_msg, e->name, MUSTER_ECORRUPT, "its bits do not make whole bytes");
    }
    if (err == 0 && layout->tensors[layout->count - 1].len != e->end - e->begin) {
        return complain(reterr_msg, e->name, MUSTER_ECORRUPT,
                        "its number of bytes does not match its dtype and shape");
    }
    return err;
}

static int fill_layout(const struct entries *es, uint64_t data_len, struct mu_layout *layout,
                       struct mu_buf *scratch, struct mu_errmsg *reterr_msg)
{
    for (size_t i = 0; i < es->count; i++) {
        int err;

        if (es->list[i].begin != layout->bytes) {
            return complain(reterr_msg, es->list[i].name, MUSTER_ECORRUPT,
                            es->list[i].begin < layout->bytes
                                ? "its bytes overlap those of another tensor"
                                : "there is a gap before its bytes");
        }
        err = add_entry(layout, &es->list[i], scratch, reterr_msg);
        if (err != 0) {
            return err;
        }
    }
    if (layout->bytes != data_len) {
        return mu_err(reterr_msg, MUSTER_ECORRUPT,
                      "the tensors have %" PRIu64 " bytes, but the file has %" PRIu64 " for them",
                      layout->bytes, data_len);
    }
    return 0;
}

static int check_names(const struct mu_layout *layout, struct mu_errmsg *reterr_msg)
{
    size_t *index;
    size_t twice = 0;
    int err;

    if (layout->count == 0) {
        return 0;
    }
    index = mu_malloc(layout->count * sizeof(*index));
    if (index == NULL) {
        return MUSTER_ENOMEM;
    }
    err = mu_layout_sort(layout, index, &twice);
    mu_free(index);
    return err == 0 ? 0
                    : complain(reterr_msg, mu_layout_name(layout, twice), MUSTER_ECORRUPT,
                               "it occurs twice");
}

int mu_safetensors_parse(struct mu_span json, uint64_t data_len, struct mu_layout *layout,
                         struct mu_buf *metadata, struct mu_errmsg *reterr_msg)
{
    struct entries es = {0};
    struct mu_buf scratch;
    int err;

    MU_ASSERT(layout->count == 0);
    reterr_msg->text[0] = '\0';
    mu_buf_init(&scratch, (size_t)MU_SAFETENSORS_HEADER_MAX + 2);
    err = collect(json, &es, metadata, reterr_msg);
    if (err == 0) {
        if (es.count > 1) {
            qsort(es.list, es.count, sizeof(*es.list), compare_entries);
        }
        err = fill_layout(&es, data_len, layout, &scratch, reterr_msg);
    }
    if (err == 0) {
        err = check_names(layout, reterr_msg);
    }
    if (err != 0 && reterr_msg->text[0] == '\0') {
        (void)mu_err(reterr_msg, err, "%s", muster_strerror(err));
    }
    mu_free(es.list);
    mu_buf_fini(&scratch);
    return err;
}

/* --- writing ---------------------------------------------------------------------------------- */

static int put_text(struct mu_buf *out, const char *text)
{
    return mu_buf_append(out, mu_span_str(text));
}

static int put_number(struct mu_buf *out, const char *before, uint64_t number)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%s%" PRIu64, before, number);
    return put_text(out, text);
}

static int put_quoted(struct mu_buf *out, struct mu_span text)
{
    size_t room = text.len * 6 + 2; /* each byte as \u00XX at the worst */
    int err = mu_buf_reserve(out, room);

    if (err == 0) {
        out->len += mu_json_quote(text, (char *)out->data + out->head + out->len, room);
    }
    return err;
}

static int put_tensor(const struct mu_layout *l, size_t i, struct mu_buf *out)
{
    const struct mu_tensor *t = &l->tensors[i];
    int err = put_quoted(out, mu_layout_name(l, i));

    if (err == 0) {
        err = put_text(out, ":{\"dtype\":\"");
    }
    if (err == 0) {
        err = put_text(out, mu_dtype_name(t->dtype));
    }
    if (err == 0) {
        err = put_text(out, "\",\"shape\":[");
    }
    for (uint32_t k = 0; err == 0 && k < t->rank; k++) {
        err = put_number(out, k == 0 ? "" : ",", mu_layout_shape(l, i)[k]);
    }
    if (err == 0) {
        err = put_number(out, "],\"data_offsets\":[", t->offset);
    }
    if (err == 0) {
        err = put_number(out, ",", t->offset + t->len);
    }
    return err == 0 ? put_text(out, "]}") : err;
}

static int put_json(const struct mu_layout *l, struct mu_span metadata, struct mu_buf *out)
{
    const char *before = "{";
    int err = 0;

    if (metadata.len != 0) {
        err = put_text(out, "{\"__metadata__\":");
        if (err == 0) {
            err = mu_buf_append(out, metadata);
        }
        before = ",";
    }
    for (size_t i = 0; err == 0 && i < l->count; i++) {
        err = put_text(out, before);
        if (err == 0) {
            err = put_tensor(l, i, out);
        }
        before = ",";
    }
    if (err == 0 && metadata.len == 0 && l->count == 0) {
        err = put_text(out, "{");
    }
    return err == 0 ? put_text(out, "}") : err;
}

int mu_safetensors_write(const struct mu_layout *layout, struct mu_span metadata,
                         struct mu_buf *out)
{
    size_t start = out->len;
    uint8_t prefix[MU_SAFETENSORS_PREFIX_LEN] = {0};
    size_t len;
    int err = mu_buf_append(out, mu_span(prefix, sizeof(prefix)));

    if (err == 0) {
        err = put_json(layout, metadata, out);
    }
    while (err == 0 && (out->len - start) % 8 != 0) {
        err = put_text(out, " ");
    }
    len = out->len - start - sizeof(prefix);
    if (err == 0 && len > MU_SAFETENSORS_HEADER_MAX) {
        err = MUSTER_ELIMIT;
    }
    if (err != 0) {
        out->len = start < out->len ? start : out->len;
        return err;
    }
    mu_put_u64(out->data + out->head + start, len);
    return 0;
}
