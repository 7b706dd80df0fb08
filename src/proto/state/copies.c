#include "proto/state/copies.h"

#include "core/assert.h"

unsigned mu_copies_next(const struct mu_copies *c)
{
    if (!c->whole[0] || !c->whole[1]) {
        return c->whole[0] ? 1 : 0;
    }
    return mu_kept_version_cmp(&c->heads[0].version, &c->heads[1].version) > 0 ? 1 : 0;
}

const struct mu_kept_head *mu_copies_newest(const struct mu_copies *c)
{
    unsigned other = 1 - mu_copies_next(c);

    return c->whole[other] ? &c->heads[other] : NULL;
}

bool mu_copies_wants(const struct mu_copies *c, const struct mu_kept_head *head)
{
    const struct mu_kept_head *newest = mu_copies_newest(c);

    return !c->loading &&
           (newest == NULL || mu_kept_version_cmp(&head->version, &newest->version) > 0);
}

unsigned mu_copies_begin(struct mu_copies *c, const struct mu_kept_head *head)
{
    MU_ASSERT(!c->loading);
    c->loading = true;
    c->into = mu_copies_next(c);
    c->coming = *head;
    c->whole[c->into] = false;
    return c->into;
}

void mu_copies_end(struct mu_copies *c, bool whole)
{
    MU_ASSERT(c->loading);
    c->loading = false;
    c->whole[c->into] = whole;
    c->heads[c->into] = c->coming;
}

void mu_copies_forget(struct mu_copies *c, const struct mu_kept_version *version)
{
    MU_ASSERT(!c->loading);
    for (unsigned i = 0; i < MU_COPIES_PLACES; i++) {
        c->whole[i] = c->whole[i] && version != NULL &&
                      mu_kept_version_cmp(&c->heads[i].version, version) <= 0;
    }
}
