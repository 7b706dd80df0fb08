#include "codec/store/op.h"

#include <muster/error.h>

static const struct mu_store_verb_facts verbs[] = {{.name = "?", .method = "", .keys_min = 1},
#define FACTS(verb, number, text, fewest, most, count, effect, patience, kinds, words)             \
    [number] = {.name = (text),                                                                    \
                .method = MU_STORE_SERVICE text,                                                   \
                .name_len = sizeof(text) - 1,                                                      \
                .keys_min = (fewest),                                                              \
                .keys_max = (most),                                                                \
                .values = (count),                                                                 \
                .known = MU_STORE_IN_##kinds,                                                      \
                .does = MU_STORE_##effect,                                                         \
                .waits = MU_STORE_##patience,                                                      \
                .lack = (words)},
#define ANY  MU_STORE_ANY
#define EACH MU_STORE_EACH
                                                   MU_STORE_VERB_MAP(FACTS)
#undef FACTS
#undef ANY
#undef EACH
};

#define VERB_END (sizeof(verbs) / sizeof(verbs[0]))

const struct mu_store_verb_facts *mu_store_verb_facts(enum mu_store_verb verb)
{
    return &verbs[(size_t)verb < VERB_END ? (size_t)verb : 0];
}

int mu_store_verb_of(struct mu_span method, enum mu_store_verb *ret_verb)
{
    struct mu_span service = MU_SPAN_LIT(MU_STORE_SERVICE);
    struct mu_span name;

    if (!mu_span_starts_with(method, service)) {
        return MUSTER_ENOMETHOD;
    }
    name = mu_span_skip(method, service.len);
    for (size_t i = 1; i < VERB_END; i++) {
        if (mu_span_eq(name, mu_span(verbs[i].name, verbs[i].name_len))) {
            *ret_verb = (enum mu_store_verb)i;
            return 0;
        }
    }
    return MUSTER_ENOMETHOD;
}

bool mu_store_verb_is_read(enum mu_store_verb verb)
{
    enum mu_store_does does = mu_store_verb_facts(verb)->does;

    return does == MU_STORE_READS || does == MU_STORE_LISTS;
}

bool mu_store_may_block(const struct mu_store_request *q)
{
    enum mu_store_waits waits = mu_store_verb_facts(q->verb)->waits;

    return waits == MU_STORE_ALWAYS ||
           (waits == MU_STORE_UNLESS && (q->flags & MU_STORE_NOWAIT) == 0);
}

bool mu_store_request_fits(const struct mu_store_request *request)
{
    const struct mu_store_verb_facts *facts = mu_store_verb_facts(request->verb);

    if (request->key_count < facts->keys_min ||
        (facts->keys_max != MU_STORE_ANY && request->key_count > facts->keys_max)) {
        return false;
    }
    return request->value_count ==
           (facts->values == MU_STORE_EACH ? request->key_count : facts->values);
}

const char *mu_store_lacks(unsigned kind, const struct mu_store_request *q)
{
    const struct mu_store_verb_facts *facts = mu_store_verb_facts(q->verb);

    if ((facts->known & kind) == 0 && facts->lack != NULL) {
        return facts->lack;
    }
    return q->lease != 0 ? "leases" : NULL;
}
