#include "codec/stacks/place.h"

static bool contains(struct mu_span text, struct mu_span part)
{
    return text.len != 0 && memmem(text.data, text.len, part.data, part.len) != NULL;
}

static bool ends_with(struct mu_span text, struct mu_span end)
{
    return text.len >= end.len && memcmp(text.data + text.len - end.len, end.data, end.len) == 0;
}

/* C++ frames that PyTorch has put between those of Python. */
static bool is_native(struct mu_span file)
{
    static const struct mu_span ends[] = {
        MU_SPAN_LIT(".cpp"), MU_SPAN_LIT(".cc"), MU_SPAN_LIT(".c"),  MU_SPAN_LIT(".h"),
        MU_SPAN_LIT(".hpp"), MU_SPAN_LIT(".so"), MU_SPAN_LIT(".cu"),
    };

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        if (ends_with(file, ends[i])) {
            return true;
        }
    }
    return file.len == 0 || file.data[0] == '?' || contains(file, MU_SPAN_LIT(".so."));
}

bool mu_place_is_library(struct mu_span file)
{
    return contains(file, MU_SPAN_LIT("/site-packages/")) ||
           contains(file, MU_SPAN_LIT("/dist-packages/")) ||
           contains(file, MU_SPAN_LIT("/lib/python3")) ||
           contains(file, MU_SPAN_LIT("/lib64/python3")) ||
           mu_span_starts_with(file, MU_SPAN_LIT("<frozen ")) ||
           mu_span_starts_with(file, MU_SPAN_LIT("<__array_function__")) || is_native(file);
}

struct mu_span mu_place_base(struct mu_span file)
{
    const uint8_t *slash = file.len == 0 ? NULL : memrchr(file.data, '/', file.len);

    return slash == NULL ? file : mu_span_skip(file, (size_t)(slash - file.data) + 1);
}
