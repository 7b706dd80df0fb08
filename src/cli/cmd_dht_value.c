/* muster dht: values of the DHT, which are MessagePack, as JSON and back. */
#include "cli/cmd_dht.h"

#include <math.h>
#include <string.h>

#include "codec/bin/msgpack.h"

#define DEPTH_MAX 32
#define HEX       "hex:"

/* --- from JSON -------------------------------------------------------------------------------- */

static void put_json(struct mu_mp_out *out, json_t *value, int depth)
{
    const char *key;
    json_t *item;
    size_t i;

    if (depth > DEPTH_MAX) {
        out->err = MUSTER_ELIMIT;
        return;
    }
    switch (json_typeof(value)) {
    case JSON_NULL:
        mu_mp_put_nil(out);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        mu_mp_put_bool(out, json_is_true(value));
        break;
    case JSON_INTEGER:
        mu_mp_put_int(out, json_integer_value(value));
        break;
    case JSON_REAL:
        mu_mp_put_double(out, json_real_value(value));
        break;
    case JSON_STRING:
        mu_mp_put_str(out, mu_span(json_string_value(value), json_string_length(value)));
        break;
    case JSON_ARRAY:
        mu_mp_put_array(out, json_array_size(value));
        json_array_foreach(value, i, item)
        {
            put_json(out, item, depth + 1);
        }
        break;
    case JSON_OBJECT:
        mu_mp_put_map(out, json_object_size(value));
        json_object_foreach(value, key, item)
        {
            mu_mp_put_str(out, mu_span_str(key));
            put_json(out, item, depth + 1);
        }
        break;
    }
}

static int put_hex(struct mu_mp_out *out, const char *hex)
{
    struct mu_buf bytes;
    size_t len = strlen(hex);
    int err = len % 2 != 0 ? MUSTER_EINVAL : 0;

    mu_buf_init(&bytes, 1u << 20);
    for (size_t i = 0; i < len && err == 0; i += 2) {
        unsigned value;
        uint8_t byte;

        if (strspn(hex + i, "0123456789abcdefABCDEF") < 2 || sscanf(hex + i, "%2x", &value) != 1) {
            err = MUSTER_EINVAL;
        } else {
            byte = (uint8_t)value;
            err = mu_buf_append(&bytes, mu_span(&byte, 1));
        }
    }
    if (err == 0) {
        mu_mp_put_bin(out, mu_buf_span(&bytes));
    }
    mu_buf_fini(&bytes);
    return err;
}

int dht_encode_word(struct mu_buf *buf, const char *word, bool text)
{
    struct mu_mp_out out = mu_mp_out(buf);
    json_t *value = text ? NULL : json_loads(word, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);

    if (!text && strncmp(word, HEX, strlen(HEX)) == 0) {
        if (put_hex(&out, word + strlen(HEX)) != 0) {
            json_decref(value);
            return cli_usage("dht", "\"%s\" is not pairs of hex digits", word);
        }
    } else if (value != NULL) {
        put_json(&out, value, 0);
    } else {
        mu_mp_put_str(&out, mu_span_str(word));
    }
    json_decref(value);
    return out.err == 0 ? 0 : cli_fail(CLI_FAILED, "a value: %s", muster_strerror(out.err));
}

/* --- to JSON ---------------------------------------------------------------------------------- */

static json_t *hex_of(struct mu_span bytes)
{
    static const char digits[] = "0123456789abcdef";
    char *text = malloc(2 * bytes.len + 1);
    json_t *made;

    if (text == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < bytes.len; i++) {
        text[2 * i] = digits[bytes.data[i] >> 4];
        text[2 * i + 1] = digits[bytes.data[i] & 15];
    }
    made = json_pack("{s:s#}", "hex", text, (int)(2 * bytes.len));
    free(text);
    return made;
}

static json_t *scalar_of(const struct mu_mp *t)
{
    json_t *made = NULL;

    switch (t->type) {
    case MU_MP_NIL:
        return json_null();
    case MU_MP_BOOL:
        return json_boolean(t->boolean);
    case MU_MP_UINT:
        return t->number <= INT64_MAX ? json_integer((json_int_t)t->number)
                                      : json_real((double)t->number);
    case MU_MP_INT:
        return json_integer(t->negative);
    case MU_MP_FLOAT:
        return isfinite(t->real) ? json_real(t->real) : json_string(t->real > 0 ? "inf" : "-inf");
    case MU_MP_STR:
        made = json_stringn((const char *)t->bytes.data, t->bytes.len);
        return made != NULL ? made : hex_of(t->bytes);
    case MU_MP_BIN:
    case MU_MP_EXT:
        return hex_of(t->bytes);
    case MU_MP_ARRAY:
    case MU_MP_MAP:
        break;
    }
    return NULL;
}

/* A container that is being filled. A tuple is an array in its own bytes. */
struct level {
    json_t *into;
    uint32_t left;
    bool map;
    json_t *key;
    struct mu_span rest; /* the bytes after a tuple, to continue with */
    bool tuple;
};

static void add_to(struct level *l, json_t *value)
{
    char text[32];

    if (!l->map) {
        (void)json_array_append_new(l->into, value);
        l->left--;
    } else if (l->key == NULL) {
        l->key = value;
    } else {
        char *dumped =
            json_is_string(l->key) ? NULL : json_dumps(l->key, JSON_COMPACT | JSON_ENCODE_ANY);
        const char *key = dumped != NULL ? dumped : json_string_value(l->key);

        (void)snprintf(text, sizeof(text), "%zu", json_object_size(l->into));
        (void)json_object_set_new(l->into, key != NULL ? key : text, value);
        free(dumped); /* tidy: jansson allocated it */
        json_decref(l->key);
        l->key = NULL;
        l->left--;
    }
}

/* Values are untrusted, so this uses its own stack and limits their depth. */
json_t *dht_decode_value(struct mu_span value)
{
    struct level stack[DEPTH_MAX + 1] = {{.into = json_array(), .left = 1}};
    struct mu_span in = value;
    size_t depth = 1;
    json_t *made;

    while (depth > 1 || stack[0].left > 0) {
        struct level *top = &stack[depth - 1];
        struct mu_mp t;

        if (top->left == 0) {
            json_t *done = top->into;

            in = top->tuple ? top->rest : in;
            depth--;
            add_to(&stack[depth - 1], done);
            continue;
        }
        if (mu_mp_next(&in, &t) != 0 || depth == DEPTH_MAX) {
            break;
        }
        if (t.type == MU_MP_EXT && t.ext == MU_MP_EXT_TUPLE) {
            struct mu_span rest = in;

            in = t.bytes;
            if (mu_mp_next(&in, &t) != 0 || t.type != MU_MP_ARRAY) {
                break;
            }
            stack[depth++] =
                (struct level){.into = json_array(), .left = t.count, .tuple = true, .rest = rest};
        } else if (t.type == MU_MP_ARRAY || t.type == MU_MP_MAP) {
            stack[depth++] =
                (struct level){.into = t.type == MU_MP_MAP ? json_object() : json_array(),
                               .left = t.count,
                               .map = t.type == MU_MP_MAP};
        } else {
            add_to(top, scalar_of(&t));
        }
    }
    if (depth == 1 && stack[0].left == 0) {
        made = json_incref(json_array_get(stack[0].into, 0));
    } else {
        made = hex_of(value);
    }
    for (; depth > 0; depth--) {
        json_decref(stack[depth - 1].into);
        json_decref(stack[depth - 1].key);
    }
    return made;
}
