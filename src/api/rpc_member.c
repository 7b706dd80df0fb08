/*
 * What a worker says of itself in a group: the value of one key, a message (codec/rpc_msg.h) of
 * these parts:
 *
 *     name, address
 *
 * One part alone is a notice in the place of a worker: why there will be no group.
 */
#include <stdlib.h>
#include <string.h>

#include "api/rpc_api.h"
#include "core/alloc.h"

static int encode(const struct mu_rpc_part *parts, size_t count, struct mu_buf *out)
{
    int err = mu_rpc_msg_head(out, parts, count);

    for (size_t i = 0; err == 0 && i < count; i++) {
        err = mu_buf_append(out, parts[i].data);
    }
    return err;
}

int mu_rpc_member_encode(const muster_rpc_agent *a, struct mu_buf *out)
{
    struct mu_rpc_part parts[] = {
        {mu_span_str(a->name), -1},
        {mu_span_str(a->published), -1},
    };

    return encode(parts, 2, out);
}

int mu_rpc_notice_encode(const char *text, struct mu_buf *out)
{
    struct mu_rpc_part part = {mu_span_str(text), -1};

    return encode(&part, 1, out);
}

static bool take_text(struct mu_span from, char *to, size_t cap)
{
    if (from.len == 0 || from.len >= cap || memchr(from.data, '\0', from.len) != NULL) {
        return false;
    }
    memcpy(to, from.data, from.len);
    to[from.len] = '\0';
    return true;
}

int mu_rpc_member_decode(struct muster_bytes value, struct mu_rpc_member *ret,
                         struct mu_errmsg *reterr_msg)
{
    struct mu_rpc_part *parts = NULL;
    char text[MU_ERRMSG_CAP];
    size_t count = 0;
    int err = mu_rpc_msg_decode(mu_span(value.data, value.len), &parts, &count);

    if (err == 0 && count == 1 && take_text(parts[0].data, text, sizeof(text))) {
        err = mu_err(reterr_msg, MUSTER_EEXIST, "%s", text);
    } else if (err == 0 && (count != 2 || !mu_rpc_worker_name_ok(parts[0].data) ||
                            !take_text(parts[0].data, ret->name, sizeof(ret->name)) ||
                            !take_text(parts[1].data, ret->address, sizeof(ret->address)))) {
        err = MUSTER_EPROTO;
    }
    mu_free(parts);
    if (err != 0 && err != MUSTER_EEXIST) {
        (void)mu_err(reterr_msg, err, "what a worker of the group says of itself is malformed");
    }
    return err;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int mu_rpc_members_check(const struct mu_rpc_member *members, size_t count)
{
    const char **names = mu_calloc(count, sizeof(*names));
    struct mu_errmsg msg;
    int err = 0;

    if (names == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    for (size_t i = 0; i < count; i++) {
        names[i] = members[i].name;
    }
    qsort(names, count, sizeof(*names), by_name);
    for (size_t i = 1; i < count && err == 0; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            err = mu_api_error(
                mu_err(&msg, MUSTER_EEXIST, "two workers of the group are named %s", names[i]),
                msg.text);
        }
    }
    mu_free(names);
    return err;
}
