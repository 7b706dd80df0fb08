#include "codec/agent/role_info.h"

#include <stdio.h>

#include "codec/text/json_string.h"
#include "codec/text/json_view.h"
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

static bool decode_u31(struct mu_span value, uint32_t *ret)
{
    int64_t v;

    if (mu_jv_is_string(value) || !mu_jv_int(value, &v) || v < 0 || v > INT32_MAX) {
        return false;
    }
    *ret = (uint32_t)v;
    return true;
}

/* Decodes a name that fits and has no zero byte. */
static bool decode_role(struct mu_span value, char role[MU_ROLE_LEN_MAX + 1])
{
    return mu_jv_is_string(value) &&
           mu_json_decode(value, role, MU_ROLE_LEN_MAX + 1) == strlen(role);
}

int mu_role_info_decode(struct mu_span in, struct mu_role_info *ret_info)
{
    struct mu_role_info info = {.rank = UINT32_MAX};
    bool has_role = false;
    struct mu_jv_walk w;
    struct mu_span name;
    struct mu_span value;
    bool good = mu_jv_valid(in);

    w = good ? mu_jv_walk(mu_jv_root(in)) : (struct mu_jv_walk){0};
    while (good && w.object && mu_jv_next(&w, &name, &value)) {
        if (mu_span_eq(name, MU_SPAN_LIT("role"))) {
            has_role = decode_role(value, info.role);
        } else if (mu_span_eq(name, MU_SPAN_LIT("rank"))) {
            good = decode_u31(value, &info.rank);
        } else if (mu_span_eq(name, MU_SPAN_LIT("local_world_size"))) {
            good = decode_u31(value, &info.local_world_size);
        }
    }
    if (!good || !has_role || info.rank == UINT32_MAX || info.local_world_size == 0) {
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
    struct mu_jv_walk w;
    struct mu_span value;
    size_t count = 0;

    if (!mu_jv_valid(in)) {
        return MUSTER_EPROTO;
    }
    w = mu_jv_walk(mu_jv_root(in));
    while (!w.object && mu_jv_next(&w, NULL, &value)) {
        if (count == 4 || !decode_u31(value, fields[count++])) {
            return MUSTER_EPROTO;
        }
    }
    if (count != 4 || r.base >= r.world || r.role_base >= r.role_world) {
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
