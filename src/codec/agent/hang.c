#include "codec/agent/hang.h"

#include <string.h>

#include <muster/error.h>

#include "codec/agent/failure.h"
#include "codec/text/json_string.h"
#include "codec/text/json_view.h"
#include "core/alloc.h"

static const char *const action_names[] = {
    [MU_HANG_TELL] = "tell",
    [MU_HANG_STACKS] = "stacks",
    [MU_HANG_RESTART] = "restart",
    [MU_HANG_EXCLUDE] = "exclude",
};
#define ACTIONS (sizeof(action_names) / sizeof(action_names[0]))

const char *mu_hang_action_name(enum mu_hang_action action)
{
    return action_names[action];
}

bool mu_hang_action_of(struct mu_span name, enum mu_hang_action *ret_action)
{
    for (size_t i = MU_HANG_TELL; i < ACTIONS; i++) {
        if (mu_span_eq(name, mu_span_str(action_names[i]))) {
            *ret_action = (enum mu_hang_action)i;
            return true;
        }
    }
    return false;
}

void mu_hang_fini(struct mu_hang *h)
{
    mu_free(h->missing);
    mu_free(h->text);
    mu_free(h->stacks);
    *h = (struct mu_hang){0};
}

/* --- writing ---------------------------------------------------------------------------------- */

static int put_text(struct mu_buf *out, const char *name, const char *text, size_t max)
{
    struct mu_span s = text == NULL ? (struct mu_span){0} : mu_span_str(text);
    int err = mu_failure_put(out, ", \"%s\": ", name);

    if (s.len > max) {
        s.len = max;
        while (s.len > 0 && (s.data[s.len] & 0xc0) == 0x80) {
            s.len -= 1;
        }
    }
    return err == 0 ? mu_failure_put_text(out, s) : err;
}

int mu_hang_encode(struct mu_buf *out, const struct mu_hang *h)
{
    int err =
        mu_failure_put(out,
                       "{\"hang\": %llu, \"over\": %s, \"since\": %lld, \"still_ms\": %llu, "
                       "\"missing_count\": %u, \"split\": %s, \"blamed\": %u, \"action\": \"%s\"",
                       (unsigned long long)h->number, h->over ? "true" : "false",
                       (long long)h->since_s, (unsigned long long)h->still_ms, h->missing_count,
                       h->split ? "true" : "false", h->blamed, mu_hang_action_name(h->action));

    if (err == 0) {
        err = put_text(out, "missing", h->missing, MU_HANG_MISSING_MAX);
    }
    if (err == 0) {
        err = put_text(out, "text", h->text, MU_HANG_TEXT_MAX);
    }
    if (err == 0) {
        err = put_text(out, "stacks", h->stacks, MU_HANG_STACKS_MAX);
    }
    return err == 0 ? mu_failure_put(out, "}") : err;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Replaces the text that was there. */
static int take_text(char **to, struct mu_span string, size_t max)
{
    size_t cap;
    char *text;

    if (!mu_jv_is_string(string)) {
        return MUSTER_EPROTO;
    }
    cap = string.len - 1; /* an escape is never shorter than what it stands for */
    text = mu_malloc(cap);
    if (text == NULL) {
        return MUSTER_ENOMEM;
    }
    (void)mu_json_decode(string, text, cap);
    if (strlen(text) > max) {
        mu_free(text);
        return MUSTER_EPROTO;
    }
    mu_free(*to);
    *to = text;
    return 0;
}

static int take_number(struct mu_span value, int64_t max, int64_t *ret)
{
    int64_t v;

    if (mu_jv_is_string(value) || !mu_jv_int(value, &v) || v < 0 || v > max) {
        return MUSTER_EPROTO;
    }
    *ret = v;
    return 0;
}

static int take_action(struct mu_hang *h, struct mu_span value)
{
    return mu_jv_is_string(value) &&
                   mu_hang_action_of(mu_span(value.data + 1, value.len - 2), &h->action)
               ? 0
               : MUSTER_EPROTO;
}

static int take_member(struct mu_hang *h, struct mu_span name, struct mu_span value)
{
    static const char *const names[] = {"hang",          "over",  "since",  "still_ms",
                                        "missing_count", "split", "blamed", "action",
                                        "missing",       "text",  "stacks"};
    size_t which = 0;
    int64_t v = 0;
    int err;

    while (which < sizeof(names) / sizeof(names[0]) &&
           !mu_span_eq(name, mu_span_str(names[which]))) {
        which++;
    }
    switch (which) {
    case 0:
        err = take_number(value, INT64_MAX, &v);
        h->number = (uint64_t)v;
        return err;
    case 1:
        h->over = mu_jv_is_true(value);
        return 0;
    case 2:
        return take_number(value, INT64_MAX, &h->since_s);
    case 3:
        err = take_number(value, INT64_MAX, &v);
        h->still_ms = (uint64_t)v;
        return err;
    case 4:
        err = take_number(value, UINT32_MAX, &v);
        h->missing_count = (uint32_t)v;
        return err;
    case 5:
        h->split = mu_jv_is_true(value);
        return 0;
    case 6:
        err = take_number(value, UINT32_MAX, &v);
        h->blamed = (uint32_t)v;
        return err;
    case 7:
        return take_action(h, value);
    case 8:
        return take_text(&h->missing, value, MU_HANG_MISSING_MAX);
    case 9:
        return take_text(&h->text, value, MU_HANG_TEXT_MAX);
    case 10:
        return take_text(&h->stacks, value, MU_HANG_STACKS_MAX);
    default:
        return 0;
    }
}

static int fill_texts(struct mu_hang *h)
{
    char **const texts[] = {&h->missing, &h->text, &h->stacks};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (*texts[i] == NULL) {
            *texts[i] = mu_strndup("", 0);
        }
        if (*texts[i] == NULL) {
            return MUSTER_ENOMEM;
        }
    }
    return 0;
}

int mu_hang_decode(struct mu_span in, struct mu_hang *ret_hang)
{
    struct mu_hang h = {.action = MU_HANG_TELL};
    struct mu_jv_walk w;
    struct mu_span name;
    struct mu_span value;
    int err = 0;

    if (in.len > MU_HANG_BYTES_MAX || !mu_jv_valid(in)) {
        return MUSTER_EPROTO;
    }
    w = mu_jv_walk(mu_jv_root(in));
    if (!w.object) {
        return MUSTER_EPROTO;
    }
    while (err == 0 && mu_jv_next(&w, &name, &value)) {
        err = take_member(&h, name, value);
    }
    err = err == 0 ? fill_texts(&h) : err;
    if (err != 0) {
        mu_hang_fini(&h);
        return err;
    }
    *ret_hang = h;
    return 0;
}
