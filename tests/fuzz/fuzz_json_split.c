/*
 * The splitter: however a stream is cut, the same objects come out; and what is valid JSON in it
 * can be walked from end to end. The first byte says how it is cut.
 */
#include "codec/text/json_view.h"
#include "core/assert.h"

/* Objects that ended, and a hash of where; the bytes come `step` at a time. */
static uint64_t split_by(struct mu_span in, size_t step)
{
    struct mu_jv_split s = {0};
    uint64_t hash = 0;
    size_t at = 0;

    while (at < in.len) {
        struct mu_span part = mu_span(in.data + at, step < in.len - at ? step : in.len - at);

        while (part.len > 0) {
            size_t used;
            bool whole;

            if (mu_jv_split(&s, part, &used, &whole) != 0) {
                return ~hash;
            }
            MU_ASSERT(used > 0);
            at += used;
            part = mu_span_skip(part, used);
            if (whole) {
                hash = hash * 31 + at;
            }
        }
    }
    return hash;
}

static void walk(struct mu_span value, int depth)
{
    struct mu_jv_walk w = mu_jv_walk(value);
    struct mu_span name;
    struct mu_span member;
    int64_t number;

    (void)mu_jv_int(value, &number);
    while (mu_jv_next(&w, &name, &member)) {
        MU_ASSERT(member.len > 0 && member.data >= value.data &&
                  member.data + member.len <= value.data + value.len);
        if (depth < MU_JV_DEPTH_MAX) {
            walk(member, depth + 1);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_span in;

    if (size == 0) {
        return 0;
    }
    in = mu_span(data + 1, size - 1);
    MU_ASSERT(split_by(in, 1u + data[0]) == split_by(in, in.len + 1));
    MU_ASSERT(split_by(in, 1) == split_by(in, in.len + 1));
    if (mu_jv_valid(in)) {
        walk(mu_jv_root(in), 0);
    }
    return 0;
}
