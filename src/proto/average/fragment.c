#include "proto/average/fragment.h"

#include "core/assert.h"

bool mu_fragment_check(uint32_t every, uint32_t count)
{
    return count != 0 && count <= MU_FRAGMENT_COUNT_MAX && every >= count &&
           every <= MU_FRAGMENT_EVERY_MAX;
}

/* How many fragments have been due after that many steps. */
static uint64_t rounds_after(uint32_t every, uint32_t count, uint64_t step)
{
    return step / every * count + step % every * count / every;
}

bool mu_fragment_due(uint32_t every, uint32_t count, uint64_t step, uint32_t *ret_fragment)
{
    uint64_t rounds;

    MU_ASSERT(mu_fragment_check(every, count));
    rounds = rounds_after(every, count, step);
    if (step == 0 || rounds == rounds_after(every, count, step - 1)) {
        return false;
    }
    *ret_fragment = (uint32_t)((rounds - 1) % count);
    return true;
}

uint64_t mu_fragment_next(uint32_t every, uint32_t count, uint64_t step, uint32_t *ret_fragment)
{
    uint64_t round = rounds_after(every, count, step) + 1;
    /* The first step with that many rounds behind it. */
    uint64_t next = round / count * every + (round % count * every + count - 1) / count;

    MU_ASSERT(mu_fragment_check(every, count));
    *ret_fragment = (uint32_t)((round - 1) % count);
    return next;
}
