#include "codec/state/hm_trainer.h"

#include <stdio.h>

#include <muster/error.h>

#include "codec/bin/msgpack.h"
#include "codec/state/hm_state.h"

/* Finds a value in a map by its key. */
static bool find(struct mu_span map, const char *key, struct mu_span *ret_value)
{
    struct mu_mp head;

    if (mu_mp_next(&map, &head) != 0 || head.type != MU_MP_MAP) {
        return false;
    }
    for (uint32_t i = 0; i < head.count; i++) {
        struct mu_span name;
        struct mu_mp t;

        if (mu_mp_skip(&map, &name) != 0 || mu_mp_skip(&map, ret_value) != 0) {
            return false;
        }
        if (mu_mp_next(&name, &t) == 0 && t.type == MU_MP_STR &&
            mu_span_eq(t.bytes, mu_span_str(key))) {
            return true;
        }
    }
    return false;
}

/* Counts the optimizer's tensors, which must be numbered from 0. */
static int count_tensors(struct mu_span list, uint64_t *ret_count)
{
    struct mu_span entry;
    struct mu_mp head;
    struct mu_mp t;

    *ret_count = 0;
    if (mu_mp_next(&list, &head) != 0 || head.type != MU_MP_ARRAY) {
        return MUSTER_EPROTO;
    }
    for (uint32_t i = 0; i < head.count; i++) {
        struct mu_span value;

        if (mu_mp_skip(&list, &entry) != 0 || !find(entry, "type", &value) ||
            mu_mp_next(&value, &t) != 0 || t.type != MU_MP_STR) {
            return MUSTER_EPROTO;
        }
        if (mu_span_eq(t.bytes, MU_SPAN_LIT("tensor"))) {
            if (!find(entry, "index", &value) || mu_mp_next(&value, &t) != 0 ||
                t.type != MU_MP_UINT || t.number != *ret_count) {
                return MUSTER_EPROTO;
            }
            ++*ret_count;
        } else if (!mu_span_eq(t.bytes, MU_SPAN_LIT("value")) || !find(entry, "value", &value)) {
            return MUSTER_EPROTO;
        }
    }
    return 0;
}

/* Returns the first tensor that is called tensor.N and is not number N; the count if there is
 * none. */
static size_t find_misplaced(const struct mu_layout *layout)
{
    char name[32];
    size_t i = 0;

    while (i < layout->count) {
        (void)snprintf(name, sizeof(name), "tensor.%zu", i);
        if (mu_span_starts_with(mu_layout_name(layout, i), MU_SPAN_LIT("tensor.")) &&
            !mu_span_eq(mu_layout_name(layout, i), mu_span_str(name))) {
            break;
        }
        i++;
    }
    return i;
}

int mu_hm_trainer_check(struct mu_span metadata, const struct mu_layout *layout,
                        uint64_t *ret_epoch, struct mu_errmsg *reterr_msg)
{
    size_t misplaced = find_misplaced(layout);
    struct mu_span list;
    uint64_t own;

    if (!find(metadata, "optimizer_metadata", &list)) {
        return mu_err(
            reterr_msg, MUSTER_EINVAL,
            "there is no optimizer_metadata in it, so a %s cannot load it: share a file that "
            "\"muster state pull --hivemind\" wrote, or leave out --hivemind",
            MU_HM_TRAINER);
    }
    if (count_tensors(list, &own) != 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "its optimizer_metadata is not what a %s writes",
                      MU_HM_TRAINER);
    }
    if (mu_hm_metadata_epoch(metadata, ret_epoch) != 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "its metadata has no epoch, so a %s cannot load it", MU_HM_TRAINER);
    }
    if (own >= layout->count) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "it has %zu tensors, and %llu of an optimizer are expected after its "
                      "parameters: a %s cannot load it",
                      layout->count, (unsigned long long)own, MU_HM_TRAINER);
    }
    if (misplaced != layout->count) {
        struct mu_span name = mu_layout_name(layout, misplaced);

        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "its tensors are not in the optimizer's order: %.*s is number %zu; share a "
                      "file as \"muster state pull --hivemind\" wrote it",
                      (int)(name.len < 40 ? name.len : 40), (const char *)name.data, misplaced);
    }
    return 0;
}
