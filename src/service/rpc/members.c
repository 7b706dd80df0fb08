#include "service/rpc/members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

int mu_rpc_member_decode(struct mu_span value, struct mu_rpc_member *ret,
                         struct mu_errmsg *reterr_msg)
{
    struct mu_rpc_intro intro = {0};
    int err = mu_rpc_intro_decode(value, &intro);

    if (err == 0 && intro.notice.len != 0) {
        err = mu_err(reterr_msg, MUSTER_EEXIST, "%.*s",
                     (int)(intro.notice.len < MU_ERRMSG_CAP ? intro.notice.len : MU_ERRMSG_CAP),
                     (const char *)intro.notice.data);
    } else if (err != 0 || intro.address.len >= sizeof(ret->address)) {
        err = mu_err(reterr_msg, err != 0 ? err : MUSTER_EPROTO,
                     "the description of a worker of the group is malformed");
    }
    if (err != 0) {
        mu_rpc_intro_fini(&intro);
        return err;
    }
    (void)snprintf(ret->name, sizeof(ret->name), "%.*s", (int)intro.name.len,
                   (const char *)intro.name.data);
    (void)snprintf(ret->address, sizeof(ret->address), "%.*s", (int)intro.address.len,
                   (const char *)intro.address.data);
    ret->intro = intro;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct mu_rpc_member *const *)a)->name,
                  (*(const struct mu_rpc_member *const *)b)->name);
}

static const struct mu_rpc_member *find(const struct mu_rpc_member *const *sorted, size_t count,
                                        struct mu_span name)
{
    struct mu_rpc_member key;
    const struct mu_rpc_member *one = &key;
    const struct mu_rpc_member *const *at;

    (void)snprintf(key.name, sizeof(key.name), "%.*s", (int)name.len, (const char *)name.data);
    at = bsearch(&one, sorted, count, sizeof(*sorted), by_name);
    return at == NULL ? NULL : *at;
}

/* Whether the worker may have the device, if it says which it has. */
static bool may_have(const struct mu_rpc_member *m, int32_t device)
{
    for (size_t i = 0; i < m->intro.devices.len / 4; i++) {
        if (mu_rpc_intro_device(m->intro.devices, i) == device) {
            return true;
        }
    }
    return m->intro.devices.len == 0;
}

static int check_map(const struct mu_rpc_member *from, const struct mu_rpc_member *to,
                     struct mu_span pairs, struct mu_errmsg *reterr_msg)
{
    for (size_t i = 0; i < pairs.len / 8; i++) {
        int32_t local = mu_rpc_intro_device(pairs, i * 2);
        int32_t remote = mu_rpc_intro_device(pairs, i * 2 + 1);
        bool ours = may_have(from, local);

        if (!ours || !may_have(to, remote)) {
            return mu_err(reterr_msg, MUSTER_EINVAL,
                          "%.60s maps its device %d to device %d of %.60s: %.60s has no device %d",
                          from->name, (int)local, (int)remote, to->name,
                          ours ? to->name : from->name, (int)(ours ? remote : local));
        }
    }
    return 0;
}

static int check_maps(const struct mu_rpc_member *m, const struct mu_rpc_member *const *sorted,
                      size_t count, bool all_there, struct mu_errmsg *reterr_msg)
{
    int err = 0;

    for (size_t i = 0; i < m->intro.map_count && err == 0; i++) {
        struct mu_span name = m->intro.maps[i * 2].data;
        const struct mu_rpc_member *to = find(sorted, count, name);

        if (to != NULL) {
            err = check_map(m, to, m->intro.maps[i * 2 + 1].data, reterr_msg);
        } else if (all_there) {
            err = mu_err(reterr_msg, MUSTER_EINVAL,
                         "%.100s has a device map to %.*s, which is not in the group", m->name,
                         (int)name.len, (const char *)name.data);
        }
    }
    return err;
}

int mu_rpc_members_check(const struct mu_rpc_member *members, size_t count, bool all_there,
                         struct mu_errmsg *reterr_msg)
{
    const struct mu_rpc_member **sorted = mu_calloc(count, sizeof(*sorted));
    int err = sorted == NULL ? mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory") : 0;

    for (size_t i = 0; i < count && err == 0; i++) {
        sorted[i] = &members[i];
    }
    if (err == 0) {
        qsort(sorted, count, sizeof(*sorted), by_name);
    }
    for (size_t i = 1; i < count && err == 0; i++) {
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) {
            err = mu_err(reterr_msg, MUSTER_EEXIST, "two workers of the group are named %s",
                         sorted[i]->name);
        }
    }
    for (size_t i = 0; i < count && err == 0; i++) {
        err = check_maps(&members[i], sorted, count, all_there, reterr_msg);
    }
    mu_free((void *)sorted);
    return err;
}

int mu_rpc_members_devices(const struct mu_rpc_member *members, size_t count, const char *name,
                           struct mu_buf *out)
{
    int err = 0;

    for (size_t i = 0; i < count; i++) {
        const struct mu_rpc_intro *intro = &members[i].intro;

        for (size_t k = 0; k < intro->map_count; k++) {
            struct mu_span pairs = intro->maps[k * 2 + 1].data;

            if (!mu_span_eq(intro->maps[k * 2].data, mu_span_str(name))) {
                continue;
            }
            for (size_t j = 0; j < pairs.len / 8 && err == 0; j++) {
                err = mu_buf_append(out, mu_span(pairs.data + j * 8 + 4, 4));
            }
        }
    }
    return err;
}
