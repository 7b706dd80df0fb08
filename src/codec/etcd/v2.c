#include "codec/etcd/v2.h"

#include <muster/error.h>
#include <string.h>

#include "codec/text/json_view.h"
#include "core/alloc.h"
#include "core/url.h"

/* --- requests --------------------------------------------------------------------------------- */

static int append_escaped(struct mu_buf *out, struct mu_span text, bool slashes)
{
    int err =
        text.len > SIZE_MAX / 4 ? MUSTER_ELIMIT : mu_buf_reserve(out, text.len * MU_URL_ESCAPED);

    for (size_t i = 0; err == 0 && i < text.len; i++) {
        char bytes[MU_URL_ESCAPED];
        char *end = mu_url_escape(bytes, (char)text.data[i], slashes ? "-._~/" : "-._~");

        err = mu_buf_append(out, mu_span(bytes, (size_t)(end - bytes)));
    }
    return err;
}

int mu_etcd2_field(struct mu_buf *out, const char *name, struct mu_span value)
{
    size_t from = out->len;
    int err = out->len == 0 ? 0 : mu_buf_append(out, MU_SPAN_LIT("&"));

    if (err == 0) {
        err = mu_buf_append(out, mu_span_str(name));
    }
    if (err == 0) {
        err = mu_buf_append(out, MU_SPAN_LIT("="));
    }
    if (err == 0) {
        err = append_escaped(out, value, false);
    }
    if (err != 0) {
        out->len = from;
    }
    return err;
}

int mu_etcd2_path(struct mu_buf *out, struct mu_span path)
{
    return append_escaped(out, path, true);
}

/* --- replies ---------------------------------------------------------------------------------- */

void mu_etcd2_reply_init(struct mu_etcd2_reply *r)
{
    *r = (struct mu_etcd2_reply){0};
    mu_buf_init(&r->bytes, SIZE_MAX / 2);
}

static void clear(struct mu_etcd2_reply *r)
{
    struct mu_etcd2_reply empty = {.bytes = r->bytes, .nodes = r->nodes, .node_cap = r->node_cap};

    mu_buf_reset(&empty.bytes);
    *r = empty;
}

void mu_etcd2_reply_fini(struct mu_etcd2_reply *r)
{
    mu_buf_fini(&r->bytes);
    mu_free(r->nodes);
    mu_etcd2_reply_init(r);
}

static int read_node(struct mu_etcd2_reply *r, struct mu_span object, struct mu_etcd2_node *ret)
{
    const struct mu_jv_field fields[] = {
        {"key", MU_JV_TEXT, &ret->key},
        {"value", MU_JV_TEXT, &ret->value},
        {"modifiedIndex", MU_JV_INT, &ret->modified},
        {"createdIndex", MU_JV_INT, &ret->created},
        {"ttl", MU_JV_INT, &ret->ttl_s},
        {"dir", MU_JV_TRUE, &ret->dir},
        {"nodes", MU_JV_ANY, &ret->nodes},
    };

    *ret = (struct mu_etcd2_node){0};
    return mu_jv_read_all(object, fields, sizeof(fields) / sizeof(fields[0]), &r->bytes);
}

/* Reads level by level, without recursion: then the children of each node in turn. */
static int read_tree(struct mu_etcd2_reply *r, struct mu_span root)
{
    int err = 0;

    if (r->node_count != 0 || r->node_cap == 0) {
        return MUSTER_EPROTO;
    }
    err = read_node(r, root, &r->nodes[0]);
    r->node_count = 1;
    for (size_t i = 0; err == 0 && i < r->node_count; i++) {
        struct mu_jv_walk w = mu_jv_walk(r->nodes[i].nodes);
        struct mu_span value;

        while (err == 0 && !w.object && mu_jv_next(&w, NULL, &value)) {
            if (r->node_count == r->node_cap) {
                return MUSTER_EPROTO; /* more nodes than braces: these are not objects */
            }
            err = read_node(r, value, &r->nodes[r->node_count++]);
        }
    }
    return err;
}

static int read_member(struct mu_etcd2_reply *r, struct mu_span name, struct mu_span value)
{
    const struct mu_jv_field fields[] = {
        {"action", MU_JV_TEXT, &r->action},   {"errorCode", MU_JV_INT, &r->code},
        {"message", MU_JV_TEXT, &r->message}, {"cause", MU_JV_TEXT, &r->cause},
        {"index", MU_JV_INT, &r->index},
    };
    int rc;

    if (mu_span_eq(name, MU_SPAN_LIT("node"))) {
        return read_tree(r, value);
    }
    if (mu_span_eq(name, MU_SPAN_LIT("prevNode"))) {
        r->has_prev = true;
        return read_node(r, value, &r->prev);
    }
    rc = mu_jv_read(fields, sizeof(fields) / sizeof(fields[0]), name, value, &r->bytes);
    return rc < 0 ? rc : 0;
}

static int make_room(struct mu_etcd2_reply *r, struct mu_span text)
{
    size_t braces = 0;

    if (mu_buf_reserve(&r->bytes, text.len + 1) != 0) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < text.len; i++) {
        braces += text.data[i] == '{' ? 1 : 0;
    }
    if (braces > r->node_cap) {
        struct mu_etcd2_node *nodes = mu_realloc(r->nodes, braces * sizeof(*nodes));

        if (nodes == NULL) {
            return MUSTER_ENOMEM;
        }
        r->nodes = nodes;
        r->node_cap = braces;
    }
    return 0;
}

int mu_etcd2_reply_decode(struct mu_etcd2_reply *r, struct mu_span text)
{
    struct mu_jv_walk w;
    struct mu_span name;
    struct mu_span value;
    int err;

    clear(r);
    if (text.len > SIZE_MAX / 256 || !mu_jv_valid(text)) {
        return MUSTER_EPROTO;
    }
    w = mu_jv_walk(mu_jv_root(text));
    err = w.object ? make_room(r, text) : MUSTER_EPROTO;
    while (err == 0 && mu_jv_next(&w, &name, &value)) {
        err = read_member(r, name, value);
    }
    if (err != 0) {
        clear(r);
    }
    return err;
}
