#include "proto/agent/relays.h"

static uint32_t root_of(uint32_t n)
{
    uint32_t root = 1;

    while (root < MU_RELAYS_MAX && (uint64_t)root * root < n) {
        root++;
    }
    return root;
}

struct mu_relays mu_relays_of(uint32_t wanted, uint32_t nodes)
{
    struct mu_relays r = {0};
    uint32_t others = nodes == 0 ? 0 : nodes - 1;

    if (wanted == MU_RELAYS_OFF || (wanted == MU_RELAYS_AUTO && nodes < MU_RELAYS_FROM)) {
        return r;
    }
    wanted = wanted == MU_RELAYS_AUTO ? root_of(nodes) : wanted;
    if (wanted >= others) {
        return r; /* nobody would be behind them */
    }
    r.group = (others + wanted - 1) / wanted;
    r.count = (others + r.group - 1) / r.group;
    return r;
}

uint32_t mu_relays_group(const struct mu_relays *r, uint32_t rank)
{
    return r->count == 0 || rank == 0 ? UINT32_MAX : (rank - 1) / r->group;
}

bool mu_relays_is_one(const struct mu_relays *r, uint32_t rank)
{
    return r->count != 0 && rank != 0 && (rank - 1) % r->group == 0;
}

size_t mu_relays_for(const struct mu_relays *r, uint32_t rank, uint32_t *ret_groups)
{
    uint32_t group = mu_relays_group(r, rank);
    size_t n = 0;

    if (group == UINT32_MAX || mu_relays_is_one(r, rank)) {
        return 0;
    }
    for (; n < MU_RELAYS_TRIED && n < r->count; n++) {
        ret_groups[n] = (uint32_t)((group + n) % r->count);
    }
    return n;
}
