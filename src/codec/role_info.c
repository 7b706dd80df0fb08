#include "codec/role_info.h"

#include <stdio.h>

#include "codec/json.h"
#include "core/alloc.h"

size_t mu_role_info_encode(const struct mu_role_info *info, char out[MU_ROLE_INFO_LEN_MAX + 1])
{
    char role[MU_ROLE_LEN_MAX * 6 + 3];
    size_t len = mu_json_quote(mu_span_str(info->role), role, sizeof(role) - 1);

    role[len] = '\0';
    return (size_t)snprintf(out, MU_ROLE_INFO_LEN_MAX + 1,
                            "{\"role\": %s, \"rank\": %u, \"local_world_size\": %u}", role,
                            info->rank, info->local_world_size);
}

static int decode_u31(const struct mu_json_token *t, uint32_t *ret)
{
    int64_t v;

    if (t->type != MU_JSON_NUMBER || !mu_json_int(t->text, &v) || v < 0 || v > INT32_MAX) {
        return MUSTER_EPROTO;
    }
    *ret = (uint32_t)v;
    return 0;
}

int mu_role_info_decode(struct mu_span in, struct mu_role_info *ret_info)
{
    struct mu_role_info info = {.rank = UINT32_MAX};
    struct mu_json_token t;
    struct mu_span key = {0};
    bool has_role = false;
    struct mu_json j;
    size_t len;
    int err;

    mu_json_init(&j, in);
    err = mu_json_next(&j, &t);
    if (err == 0 && t.type != MU_JSON_OBJECT) {
        return MUSTER_EPROTO;
    }
    while (err == 0 && (err = mu_json_next(&j, &t)) == 0) {
        if (t.depth != 1) {
            continue; /* the end, or inside something that a later version says */
        }
        if (t.type == MU_JSON_KEY) {
            key = t.text;
        } else if (mu_json_is(key, "role")) {
            len = mu_json_decode(t.text, info.role, sizeof(info.role));
            has_role = t.type == MU_JSON_STRING && len == strlen(info.role);
        } else if (mu_json_is(key, "rank")) {
            err = decode_u31(&t, &info.rank);
        } else if (mu_json_is(key, "local_world_size")) {
            err = decode_u31(&t, &info.local_world_size);
        }
    }
    if (err != MUSTER_ENOENT || !has_role || info.rank == UINT32_MAX ||
        info.local_world_size == 0) {
        return MUSTER_EPROTO;
    }
    *ret_info = info;
    return 0;
}

size_t mu_ranks_encode(const struct mu_ranks *r, char out[MU_RANKS_LEN_MAX + 1])
{
    return (size_t)snprintf(out, MU_RANKS_LEN_MAX + 1, "[%u, %u, %u, %u]", r->base, r->world,
                            r->role_base, r->role_world);
}

int mu_ranks_decode(struct mu_span in, struct mu_ranks *ret_ranks)
{
    struct mu_ranks r = {0};
    uint32_t *const fields[] = {&r.base, &r.world, &r.role_base, &r.role_world};
    struct mu_json_token t;
    struct mu_json j;
    int err;

    mu_json_init(&j, in);
    err = mu_json_next(&j, &t);
    if (err == 0 && t.type != MU_JSON_ARRAY) {
        return MUSTER_EPROTO;
    }
    for (size_t i = 0; err == 0 && i < 4; i++) {
        err = mu_json_next(&j, &t);
        if (err == 0) {
            err = decode_u31(&t, fields[i]);
        }
    }
    if (err != 0 || mu_json_next(&j, &t) != 0 || t.type != MU_JSON_ARRAY_END ||
        mu_json_next(&j, &t) != MUSTER_ENOENT || r.base >= r.world || r.role_base >= r.role_world) {
        return MUSTER_EPROTO;
    }
    *ret_ranks = r;
    return 0;
}

/* A role, and how many workers of it have been counted. */
struct tally {
    const char *role;
    uint32_t count;
};

static struct tally *find_tally(struct tally *tallies, size_t *count, const char *role)
{
    for (size_t i = 0; i < *count; i++) {
        if (strcmp(tallies[i].role, role) == 0) {
            return &tallies[i];
        }
    }
    tallies[*count] = (struct tally){.role = role};
    return &tallies[(*count)++];
}

int mu_ranks_assign(const struct mu_role_info *infos, size_t count, struct mu_ranks *ret_ranks,
                    struct mu_errmsg *reterr_msg)
{
    struct tally *tallies;
    size_t roles = 0;
    uint64_t total = 0;

    for (size_t i = 0; i < count; i++) {
        if (infos[i].rank != i) {
            return mu_err(reterr_msg, MUSTER_EPROTO,
                          "the agent of rank %zu says that its rank is %u", i, infos[i].rank);
        }
        total += infos[i].local_world_size;
        if (total > INT32_MAX) {
            return mu_err(reterr_msg, MUSTER_ELIMIT, "more than %d workers", INT32_MAX);
        }
    }
    tallies = mu_calloc(count, sizeof(*tallies));
    if (tallies == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    for (size_t i = 0, base = 0; i < count; i++) {
        struct tally *t = find_tally(tallies, &roles, infos[i].role);

        ret_ranks[i] = (struct mu_ranks){
            .base = (uint32_t)base, .world = (uint32_t)total, .role_base = t->count};
        base += infos[i].local_world_size;
        t->count += infos[i].local_world_size;
    }
    for (size_t i = 0; i < count; i++) {
        ret_ranks[i].role_world = find_tally(tallies, &roles, infos[i].role)->count;
    }
    mu_free(tallies);
    return 0;
}
