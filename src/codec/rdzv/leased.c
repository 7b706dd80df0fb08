#include "codec/rdzv/leased.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "codec/text/json_string.h"
#include "codec/text/json_view.h"
#include "core/alloc.h"

/* The bytes of a node beside its address: three numbers, a rank or a list, and their names. */
#define NODE_BYTES   192
#define QUOTED_CAP   (6 * MU_RDZV_ADDR_MAX + 3)
#define NS_PER_US    UINT64_C(1000)
#define TEXT_LEN_MAX ((size_t)MU_RDZV_STATE_BYTES_MAX)

static const char *const wish_names[] = {
    [MU_RDZV_WISH_JOIN] = "join",
    [MU_RDZV_WISH_OUT] = "out",
    [MU_RDZV_WISH_UNSPARE] = "unspare",
};

/* --- writing ---------------------------------------------------------------------------------- */

/* Writes `{"addr":...,"pid":...,"id":...` without its end. */
static int put_node(struct mu_buf *out, const struct mu_rdzv_node *node)
{
    char quoted[QUOTED_CAP];
    char numbers[80];
    size_t len = mu_json_quote(mu_span_str(node->addr), quoted, sizeof(quoted));
    int err;

    if (len > sizeof(quoted)) {
        return MUSTER_ELIMIT;
    }
    (void)snprintf(numbers, sizeof(numbers), ",\"pid\":%" PRId64 ",\"id\":\"%" PRId64 "\"",
                   node->pid, node->local_id);
    err = mu_buf_append(out, MU_SPAN_LIT("{\"addr\":"));
    if (err == 0) {
        err = mu_buf_append(out, mu_span(quoted, len));
    }
    return err != 0 ? err : mu_buf_append(out, mu_span_str(numbers));
}

static int put_member(struct mu_buf *out, const struct mu_rdzv_member *m, bool first, bool complete)
{
    char text[80];
    int len = snprintf(text, sizeof(text), ",\"born\":\"%" PRId64 "\"", m->born);
    int err = first ? 0 : mu_buf_append(out, MU_SPAN_LIT(",\n"));

    if (m->participant && complete) {
        len += snprintf(text + len, sizeof(text) - (size_t)len, ",\"rank\":%" PRId64, m->rank);
    } else if (!m->participant) {
        len += snprintf(text + len, sizeof(text) - (size_t)len, ",\"list\":\"%s\"",
                        m->waiting ? "wait" : "spare");
    }
    if (err == 0) {
        err = put_node(out, &m->node);
    }
    if (err == 0) {
        err = mu_buf_append(out, mu_span(text, (size_t)len));
    }
    return err != 0 ? err : mu_buf_append(out, MU_SPAN_LIT("}"));
}

static int put_state(struct mu_buf *out, const struct mu_rdzv_state *s, int64_t seen)
{
    char text[192];
    int len = snprintf(text, sizeof(text), "{\"round\":%" PRId64 ",\"complete\":%s,", s->round,
                       s->complete ? "true" : "false");
    bool first = true;
    int err;

    len += s->complete ? snprintf(text + len, sizeof(text) - (size_t)len, "\"world\":%" PRIu64 ",",
                                  s->has_deadline ? s->deadline.ns % MU_NS_PER_S / NS_PER_US : 0)
                       : snprintf(text + len, sizeof(text) - (size_t)len, "\"last_call\":%s,",
                                  s->has_deadline ? "true" : "false");
    (void)snprintf(text + len, sizeof(text) - (size_t)len,
                   "\"closed\":%s,\"seen\":\"%" PRId64 "\",\"nodes\":[\n",
                   s->closed ? "true" : "false", seen);
    err = mu_buf_append(out, mu_span_str(text));
    for (size_t i = 0; err == 0 && i < s->member_count; i++) {
        const struct mu_rdzv_member *m = &s->members[i];

        if (m->participant || m->waiting || m->spare) {
            err = put_member(out, m, first, s->complete);
            first = false;
        }
    }
    return err != 0 ? err : mu_buf_append(out, MU_SPAN_LIT("]}"));
}

int mu_rdzv_leased_encode(struct mu_buf *out, const struct mu_rdzv_state *s, int64_t seen)
{
    size_t from = out->len;
    int err = put_state(out, s, seen);

    if (err != 0) {
        out->len = from;
    }
    return err;
}

int mu_rdzv_wish_encode(struct mu_buf *out, const struct mu_rdzv_node *node, enum mu_rdzv_wish wish,
                        uint64_t number)
{
    size_t from = out->len;
    char text[80];
    int err = put_node(out, node);

    (void)snprintf(text, sizeof(text), ",\"wish\":\"%s\",\"number\":\"%" PRIu64 "\"}",
                   wish_names[wish], number);
    if (err == 0) {
        err = mu_buf_append(out, mu_span_str(text));
    }
    if (err != 0) {
        out->len = from;
    }
    return err;
}

/* --- reading ---------------------------------------------------------------------------------- */

static bool read_count(struct mu_span object, const char *name, int64_t max, int64_t *ret)
{
    return mu_jv_int(mu_jv_member(object, name), ret) && *ret >= 0 && *ret <= max;
}

static bool is_word(struct mu_span value, const char *word)
{
    size_t len = strlen(word);

    return value.len == len + 2 && value.data[0] == '"' && memcmp(value.data + 1, word, len) == 0;
}

static bool read_truth(struct mu_span object, const char *name, bool *ret)
{
    struct mu_span value = mu_jv_member(object, name);

    *ret = mu_jv_is_true(value);
    return *ret || mu_span_eq(value, MU_SPAN_LIT("false"));
}

/* The caller frees the address with mu_free(). MUSTER_ECORRUPT, MUSTER_ENOMEM. */
static int read_node(struct mu_span object, struct mu_rdzv_node *ret)
{
    struct mu_span addr = mu_jv_member(object, "addr");
    struct mu_buf bytes;
    struct mu_span text;
    int err = MUSTER_ECORRUPT;

    if (addr.len < 3 || addr.len > QUOTED_CAP || !mu_jv_is_object(object) ||
        !mu_jv_int(mu_jv_member(object, "pid"), &ret->pid) ||
        !mu_jv_int(mu_jv_member(object, "id"), &ret->local_id)) {
        return MUSTER_ECORRUPT;
    }
    mu_buf_init(&bytes, addr.len);
    if (mu_buf_reserve(&bytes, addr.len) != 0) {
        return MUSTER_ENOMEM;
    }
    if (mu_jv_string(addr, &bytes, &text) && text.len != 0 && text.len <= MU_RDZV_ADDR_MAX &&
        memchr(text.data, 0, text.len) == NULL) {
        ret->addr = mu_strndup((const char *)text.data, text.len);
        err = ret->addr == NULL ? MUSTER_ENOMEM : 0;
    }
    mu_buf_fini(&bytes);
    return err;
}

static int read_member(struct mu_rdzv_state *s, struct mu_span object)
{
    struct mu_span list = mu_jv_member(object, "list");
    struct mu_rdzv_node node;
    struct mu_rdzv_member *m;
    size_t before = s->member_count;
    int64_t born;
    int64_t rank = 0;
    int err;

    if (!read_count(object, "born", INT64_MAX, &born) ||
        (list.len != 0 && !is_word(list, "wait") && !is_word(list, "spare")) ||
        (list.len == 0 && s->complete && !read_count(object, "rank", MU_RDZV_MEMBERS_MAX, &rank))) {
        return MUSTER_ECORRUPT;
    }
    err = read_node(object, &node);
    if (err != 0) {
        return err;
    }
    err = mu_rdzv_state_add(s, &node, &m);
    mu_free(node.addr);
    if (err == 0 && s->member_count == before) {
        return MUSTER_ECORRUPT; /* a node occurs twice */
    }
    if (err == 0) {
        m->born = born;
        m->rank = rank;
        m->participant = list.len == 0;
        m->waiting = is_word(list, "wait");
        m->spare = is_word(list, "spare");
    }
    return err;
}

static int read_state(struct mu_span text, struct mu_rdzv_state *s, int64_t *ret_seen)
{
    struct mu_span root = mu_jv_root(text);
    struct mu_jv_walk walk = mu_jv_walk(mu_jv_member(root, "nodes"));
    struct mu_span node;
    int64_t world = 0;
    int err = 0;

    if (!mu_jv_is_object(root) || walk.object ||
        !read_count(root, "round", MU_RDZV_ROUND_MAX, &s->round) ||
        !read_count(root, "seen", INT64_MAX, ret_seen) ||
        !read_truth(root, "complete", &s->complete) || !read_truth(root, "closed", &s->closed)) {
        return MUSTER_ECORRUPT;
    }
    if (s->complete) {
        if (!read_count(root, "world", MU_RDZV_MEMBERS_MAX, &world)) {
            return MUSTER_ECORRUPT;
        }
        s->has_deadline = world != 0;
        s->deadline.ns = (uint64_t)world * NS_PER_US;
    } else {
        if (!read_truth(root, "last_call", &s->has_deadline)) {
            return MUSTER_ECORRUPT;
        }
        s->deadline.ns = s->has_deadline ? UINT64_MAX : 0;
    }
    while (err == 0 && mu_jv_next(&walk, NULL, &node)) {
        err = read_member(s, node);
    }
    return err;
}

int mu_rdzv_leased_decode(struct mu_span in, struct mu_rdzv_state *ret, int64_t *ret_seen,
                          struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_state s;
    int64_t seen = 0;
    int err;

    if (in.len > TEXT_LEN_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "it is longer than a state may be");
    }
    if (!mu_jv_valid(in)) {
        return mu_err(reterr_msg, MUSTER_ECORRUPT, "it is not JSON");
    }
    mu_rdzv_state_init(&s);
    err = read_state(in, &s, &seen);
    if (err != 0) {
        mu_rdzv_state_fini(&s);
        return mu_err(reterr_msg, err, "%s",
                      err == MUSTER_ECORRUPT ? "it is JSON, but not the state of a rendezvous"
                      : err == MUSTER_ELIMIT ? "it has more nodes than a state may have"
                                             : "out of memory");
    }
    mu_rdzv_state_fini(ret);
    *ret = s;
    *ret_seen = seen;
    return 0;
}

int mu_rdzv_wish_decode(struct mu_span in, struct mu_rdzv_node *ret_node,
                        enum mu_rdzv_wish *ret_wish)
{
    struct mu_rdzv_node node;
    struct mu_span wish;
    int err;

    if (in.len > QUOTED_CAP + NODE_BYTES || !mu_jv_valid(in)) {
        return MUSTER_ECORRUPT;
    }
    wish = mu_jv_member(mu_jv_root(in), "wish");
    for (int i = MU_RDZV_WISH_JOIN; i <= MU_RDZV_WISH_UNSPARE; i++) {
        if (is_word(wish, wish_names[i])) {
            err = read_node(mu_jv_root(in), &node);
            if (err == 0) {
                *ret_node = node;
                *ret_wish = (enum mu_rdzv_wish)i;
            }
            return err;
        }
    }
    return MUSTER_ECORRUPT;
}
