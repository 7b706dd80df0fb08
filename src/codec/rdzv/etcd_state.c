#include "codec/rdzv/etcd_state.h"

#include <inttypes.h>
#include <muster/error.h>
#include <stdio.h>
#include <string.h>

#include "codec/text/json_string.h"
#include "codec/text/json_view.h"

#define VERSION_DIGITS_MAX 18
#define NUMBER_CAP         24

/* The members that have a meaning here. */
enum member {
    STATUS = 0,
    VERSION,
    PARTICIPANTS,
    KEEP_ALIVES,
    WAITING,
    MEMBERS,
};

static const char *const member_names[MEMBERS] = {"status", "version", "participants",
                                                  "keep_alives", "num_workers_waiting"};

static enum member find_member(struct mu_span name)
{
    enum member m = STATUS;

    while (m < MEMBERS && !mu_span_eq(name, mu_span_str(member_names[m]))) {
        m++;
    }
    return m;
}

/* --- reading ---------------------------------------------------------------------------------- */

static bool is_string(struct mu_span value)
{
    return value.len >= 2 && value.data[0] == '"';
}

static bool is_array(struct mu_span value)
{
    return value.len >= 2 && value.data[0] == '[';
}

/* A string as it is written, without quotes: the texts it is compared with have no escapes. */
static struct mu_span inside(struct mu_span value)
{
    return mu_span(value.data + 1, value.len - 2);
}

static enum mu_retcd_status find_status(struct mu_span value)
{
    static const char *const names[] = {"setup", "joinable", "frozen", "final", "closed"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (mu_span_eq(inside(value), mu_span_str(names[i]))) {
            return (enum mu_retcd_status)(MU_RETCD_SETUP + i);
        }
    }
    return MU_RETCD_OTHER;
}

/* Reads a decimal number in quotes, above zero: it becomes part of paths. */
static int read_version(struct mu_span value, uint64_t *ret)
{
    uint64_t number = 0;
    struct mu_span digits;

    if (!is_string(value)) {
        return MUSTER_EPROTO;
    }
    digits = inside(value);
    if (digits.len == 0 || digits.len > VERSION_DIGITS_MAX || digits.data[0] == '0') {
        return MUSTER_EPROTO;
    }
    for (size_t i = 0; i < digits.len; i++) {
        if (digits.data[i] < '0' || digits.data[i] > '9') {
            return MUSTER_EPROTO;
        }
        number = number * 10 + (uint64_t)(digits.data[i] - '0');
    }
    *ret = number;
    return 0;
}

static int count_elements(struct mu_span value, bool strings, size_t *ret)
{
    struct mu_jv_walk w = mu_jv_walk(value);
    struct mu_span element;
    size_t count = 0;

    if (!is_array(value)) {
        return MUSTER_EPROTO;
    }
    while (mu_jv_next(&w, NULL, &element)) {
        if (strings && !is_string(element)) {
            return MUSTER_EPROTO;
        }
        count++;
    }
    *ret = count;
    return 0;
}

static int find_members(struct mu_span text, struct mu_span values[MEMBERS])
{
    struct mu_jv_walk w;
    struct mu_span name;
    struct mu_span value;

    memset(values, 0, MEMBERS * sizeof(values[0]));
    if (text.len > MU_RETCD_STATE_MAX || !mu_jv_valid(text)) {
        return MUSTER_EPROTO;
    }
    w = mu_jv_walk(mu_jv_root(text));
    if (!w.object) {
        return MUSTER_EPROTO;
    }
    while (mu_jv_next(&w, &name, &value)) {
        enum member m = find_member(name);

        if (m < MEMBERS && values[m].len != 0) {
            return MUSTER_EPROTO;
        }
        if (m < MEMBERS) {
            values[m] = value;
        }
    }
    return is_string(values[STATUS]) ? 0 : MUSTER_EPROTO;
}

int mu_retcd_state_decode(struct mu_span text, struct mu_retcd_state *ret_state)
{
    struct mu_span values[MEMBERS];
    struct mu_retcd_state s = {0};
    int64_t waiting = 0;
    int err = find_members(text, values);

    if (err != 0) {
        return err;
    }
    s.status = find_status(values[STATUS]);
    if (s.status == MU_RETCD_JOINABLE || s.status == MU_RETCD_FROZEN ||
        s.status == MU_RETCD_FINAL) {
        err = read_version(values[VERSION], &s.version);
        err = err != 0 ? err : count_elements(values[PARTICIPANTS], false, &s.participants);
    }
    if (err == 0 && (s.status == MU_RETCD_FROZEN || s.status == MU_RETCD_FINAL)) {
        err = count_elements(values[KEEP_ALIVES], true, &s.keep_alives);
    }
    if (err == 0 && s.status == MU_RETCD_FINAL) {
        if (is_string(values[WAITING]) || !mu_jv_int(values[WAITING], &waiting) || waiting < 0 ||
            waiting > INT32_MAX) {
            return MUSTER_EPROTO;
        }
        s.waiting = (uint64_t)waiting;
    }
    if (err == 0) {
        *ret_state = s;
    }
    return err;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Writes a name as Python's json.dumps() does: ", " between members, ": " after a name. */
static int put_name(struct mu_buf *out, struct mu_span name, bool *first)
{
    int err = mu_buf_append(out, *first ? MU_SPAN_LIT("\"") : MU_SPAN_LIT(", \""));

    *first = false;
    err = err != 0 ? err : mu_buf_append(out, name);
    return err != 0 ? err : mu_buf_append(out, MU_SPAN_LIT("\": "));
}

static int put_string(struct mu_buf *out, struct mu_span text)
{
    size_t cap = text.len > SIZE_MAX / 8 ? SIZE_MAX / 8 : text.len * 6 + 2;
    int err = mu_buf_reserve(out, cap);
    uint8_t *at;

    if (err != 0) {
        return err;
    }
    at = mu_buf_grow(out, cap);
    out->len -= cap;
    out->len += mu_json_quote(text, (char *)at, cap);
    return 0;
}

static int put_number(struct mu_buf *out, uint64_t number)
{
    char text[NUMBER_CAP];

    (void)snprintf(text, sizeof(text), "%" PRIu64, number);
    return mu_buf_append(out, mu_span_str(text));
}

/* Writes an array without its closing bracket, and a comma if it is not empty. */
static int open_array(struct mu_buf *out, struct mu_span array)
{
    struct mu_jv_walk w = mu_jv_walk(array);
    struct mu_span ignored;
    bool any = mu_jv_next(&w, NULL, &ignored);
    int err = mu_buf_append(out, any ? mu_span(array.data, array.len - 1) : MU_SPAN_LIT("["));

    return err != 0 || !any ? err : mu_buf_append(out, MU_SPAN_LIT(", "));
}

static int put_keep_alives(struct mu_buf *out, struct mu_span array,
                           const struct mu_retcd_edit *edit)
{
    int err = open_array(out, edit->empty_keep_alives ? (struct mu_span){0} : array);

    if (err == 0 && edit->keep_alive != NULL) {
        err = put_string(out, mu_span_str(edit->keep_alive));
    }
    return err != 0 ? err : mu_buf_append(out, MU_SPAN_LIT("]"));
}

static int put_participants(struct mu_buf *out, struct mu_span array)
{
    size_t count = 0;
    int err = count_elements(array, false, &count);

    err = err != 0 ? err : open_array(out, array);
    err = err != 0 ? err : put_number(out, count);
    return err != 0 ? err : mu_buf_append(out, MU_SPAN_LIT("]"));
}

/* Writes a member if it is changed, and says whether it is. `value` is empty for a new member. */
static int put_edited(struct mu_buf *out, enum member m, struct mu_span value,
                      const struct mu_retcd_edit *edit, bool *ret_done)
{
    *ret_done = true;
    if (m == STATUS && edit->status != NULL) {
        return put_string(out, mu_span_str(edit->status));
    }
    if (m == PARTICIPANTS && edit->join) {
        return put_participants(out, value);
    }
    if (m == KEEP_ALIVES && (edit->empty_keep_alives || edit->keep_alive != NULL)) {
        return put_keep_alives(out, value, edit);
    }
    if (m == WAITING && edit->set_waiting) {
        return put_number(out, edit->waiting);
    }
    *ret_done = false;
    return 0;
}

static int put_members(struct mu_span text, const struct mu_retcd_edit *edit, struct mu_buf *out)
{
    struct mu_jv_walk w = mu_jv_walk(mu_jv_root(text));
    struct mu_span name;
    struct mu_span value;
    bool first = true;
    bool seen[MEMBERS + 1] = {false};
    bool done;
    int err = mu_buf_append(out, MU_SPAN_LIT("{"));

    while (err == 0 && mu_jv_next(&w, &name, &value)) {
        enum member m = find_member(name);

        seen[m] = true;
        err = put_name(out, name, &first);
        err = err != 0 ? err : put_edited(out, m, value, edit, &done);
        err = err != 0 || done ? err : mu_buf_append(out, value);
    }
    if (err == 0 && !seen[KEEP_ALIVES] && (edit->empty_keep_alives || edit->keep_alive != NULL)) {
        err = put_name(out, mu_span_str(member_names[KEEP_ALIVES]), &first);
        err = err != 0 ? err : put_keep_alives(out, (struct mu_span){0}, edit);
    }
    if (err == 0 && !seen[WAITING] && edit->set_waiting) {
        err = put_name(out, mu_span_str(member_names[WAITING]), &first);
        err = err != 0 ? err : put_number(out, edit->waiting);
    }
    return err != 0 ? err : mu_buf_append(out, MU_SPAN_LIT("}"));
}

int mu_retcd_state_edit(struct mu_span text, const struct mu_retcd_edit *edit, struct mu_buf *out)
{
    size_t from = out->len;
    int err = put_members(text, edit, out);

    if (err != 0) {
        out->len = from;
    }
    return err;
}

/* --- keep-alives ------------------------------------------------------------------------------ */

static struct mu_span without_slash(struct mu_span path)
{
    return path.len > 0 && path.data[0] == '/' ? mu_span_skip(path, 1) : path;
}

static bool is_listed(const struct mu_etcd2_reply *listing, struct mu_span path)
{
    for (size_t i = 0; i < listing->node_count; i++) {
        if (mu_span_eq(without_slash(listing->nodes[i].key), without_slash(path))) {
            return true;
        }
    }
    return false;
}

static uint64_t read_rank(struct mu_span path)
{
    uint64_t rank = 0;
    size_t at = path.len;

    while (at > 0 && path.data[at - 1] != '_') {
        at--;
    }
    if (at == 0 || at == path.len || path.len - at > 9) {
        return UINT64_MAX;
    }
    for (; at < path.len; at++) {
        if (path.data[at] < '0' || path.data[at] > '9') {
            return UINT64_MAX;
        }
        rank = rank * 10 + (uint64_t)(path.data[at] - '0');
    }
    return rank;
}

/* A walk over the paths, decoded one after the other into `scratch`. */
struct paths {
    struct mu_jv_walk w;
    struct mu_buf scratch;
};

static int open_paths(struct paths *p, struct mu_span text)
{
    p->w = mu_jv_walk(mu_jv_member(mu_jv_root(text), member_names[KEEP_ALIVES]));
    mu_buf_init(&p->scratch, MU_RETCD_STATE_MAX + 1);
    return mu_buf_reserve(&p->scratch, text.len + 1);
}

static bool next_path(struct paths *p, struct mu_span *ret_path)
{
    struct mu_span value;

    mu_buf_reset(&p->scratch);
    if (p->w.object || !mu_jv_next(&p->w, NULL, &value)) {
        return false;
    }
    if (!mu_jv_string(value, &p->scratch, ret_path)) {
        *ret_path = value; /* half a character: no key has such a name */
    }
    return true;
}

int mu_retcd_state_has(struct mu_span text, const char *path, bool *ret_has)
{
    struct mu_span wanted = without_slash(mu_span_str(path));
    struct mu_span found;
    struct paths p;
    int err = open_paths(&p, text);

    *ret_has = false;
    while (err == 0 && !*ret_has && next_path(&p, &found)) {
        *ret_has = mu_span_eq(without_slash(found), wanted);
    }
    mu_buf_fini(&p.scratch);
    return err;
}

int mu_retcd_state_missing(struct mu_span text, const struct mu_etcd2_reply *listing,
                           const char *except, uint64_t *ret_rank)
{
    struct mu_span spared = without_slash(mu_span_str(except == NULL ? "" : except));
    struct mu_span path;
    struct paths p;
    int rc = open_paths(&p, text);

    while (rc == 0 && next_path(&p, &path)) {
        if (!mu_span_eq(without_slash(path), spared) && !is_listed(listing, path)) {
            *ret_rank = read_rank(path);
            rc = 1;
        }
    }
    mu_buf_fini(&p.scratch);
    return rc;
}

/* --- extra data ------------------------------------------------------------------------------- */

/* Writes all members of the object except one to `out`, after an open brace. */
static int put_others(struct mu_span text, struct mu_span key, struct mu_buf *out,
                      struct mu_buf *scratch, bool *first)
{
    struct mu_jv_walk w = mu_jv_walk(mu_jv_root(text));
    struct mu_span name;
    struct mu_span value;
    int err = 0;

    while (err == 0 && mu_jv_next(&w, &name, &value)) {
        struct mu_span decoded = {0};

        /* The name with its quotes, which are around it in the text. */
        mu_buf_reset(scratch);
        if (!mu_jv_string(mu_span(name.data - 1, name.len + 2), scratch, &decoded) ||
            !mu_span_eq(decoded, key)) {
            err = put_name(out, name, first);
            err = err != 0 ? err : mu_buf_append(out, value);
        }
    }
    return err;
}

static int check_object(struct mu_span text)
{
    if (text.len > MU_RETCD_STATE_MAX || !mu_jv_valid(text) || !mu_jv_is_object(mu_jv_root(text))) {
        return MUSTER_EPROTO;
    }
    return 0;
}

int mu_retcd_extra_edit(struct mu_span text, struct mu_span key, struct mu_span value,
                        struct mu_buf *out)
{
    struct mu_buf scratch;
    size_t from = out->len;
    bool first = true;
    int err = text.len == 0 ? 0 : check_object(text);

    if (err != 0) {
        return err;
    }
    mu_buf_init(&scratch, MU_RETCD_STATE_MAX + 1);
    err = mu_buf_append(out, MU_SPAN_LIT("{"));
    if (err == 0 && text.len != 0) {
        err = mu_buf_reserve(&scratch, text.len);
        err = err != 0 ? err : put_others(text, key, out, &scratch, &first);
    }
    err = err != 0 || first ? err : mu_buf_append(out, MU_SPAN_LIT(", "));
    err = err != 0 ? err : put_string(out, key);
    err = err != 0 ? err : mu_buf_append(out, MU_SPAN_LIT(": "));
    err = err != 0 ? err : put_string(out, value);
    err = err != 0 ? err : mu_buf_append(out, MU_SPAN_LIT("}"));
    if (err != 0) {
        out->len = from;
    }
    mu_buf_fini(&scratch);
    return err;
}

int mu_retcd_extra_get(struct mu_span text, struct mu_span key, struct mu_buf *out)
{
    struct mu_buf scratch;
    struct mu_jv_walk w;
    struct mu_span name;
    struct mu_span value;
    struct mu_span found;
    int rc = check_object(text);

    if (rc != 0) {
        return rc;
    }
    mu_buf_init(&scratch, 2 * MU_RETCD_STATE_MAX + 2);
    rc = mu_buf_reserve(&scratch, text.len);
    w = mu_jv_walk(mu_jv_root(text));
    while (rc == 0 && mu_jv_next(&w, &name, &value)) {
        mu_buf_reset(&scratch);
        if (!mu_jv_string(mu_span(name.data - 1, name.len + 2), &scratch, &found) ||
            !mu_span_eq(found, key)) {
            continue;
        }
        mu_buf_reset(&scratch);
        found = value;
        (void)mu_jv_string(value, &scratch, &found);
        rc = mu_buf_append(out, found);
        rc = rc != 0 ? rc : 1;
    }
    mu_buf_fini(&scratch);
    return rc;
}
