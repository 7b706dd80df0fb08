#include "proto/agent/partners.h"

#include "core/alloc.h"
#include "core/err.h"

/* Puts the nodes into the ring, those of a key together. `next` has room for a number for each
 * node, all zero. Returns how many nodes the most frequent key has. */
static uint32_t fill_ring(struct mu_partners *p, const uint32_t *keys, uint32_t *next)
{
    uint32_t longest = 0;
    uint32_t begin = 0;

    for (uint32_t i = 0; i < p->nodes; i++) {
        next[keys == NULL ? 0 : keys[i]]++;
    }
    for (uint32_t key = 0; key < p->nodes; key++) {
        uint32_t count = next[key];

        longest = count > longest ? count : longest;
        next[key] = begin;
        begin += count;
    }
    for (uint32_t i = 0; i < p->nodes; i++) {
        p->place[i] = next[keys == NULL ? 0 : keys[i]]++;
        p->ring[p->place[i]] = i;
    }
    return longest;
}

int mu_partners_init(struct mu_partners *p, uint32_t wanted, uint32_t nodes, const uint32_t *keys)
{
    uint32_t *next = mu_calloc((size_t)nodes + 1, sizeof(*next));
    uint32_t longest;

    *p = (struct mu_partners){.nodes = nodes};
    p->ring = mu_calloc((size_t)nodes + 1, sizeof(*p->ring));
    p->place = mu_calloc((size_t)nodes + 1, sizeof(*p->place));
    if (wanted > MU_PARTNERS_MAX || next == NULL || p->ring == NULL || p->place == NULL) {
        mu_free(next);
        mu_partners_fini(p);
        return wanted > MU_PARTNERS_MAX ? MUSTER_ELIMIT : MUSTER_ENOMEM;
    }
    longest = fill_ring(p, keys, next);
    mu_free(next);
    p->wanted = nodes == 0 ? 0 : wanted < nodes - 1 ? wanted : nodes - 1;
    /* With one key, or none, the next; with one that most nodes have, half the ring. */
    p->distance = longest == nodes ? 1 : longest > nodes / 2 ? nodes / 2 : longest;
    return 0;
}

void mu_partners_fini(struct mu_partners *p)
{
    mu_free(p->ring);
    mu_free(p->place);
    *p = (struct mu_partners){0};
}

/* The distance of partner `i`, from 1 to nodes - 1. */
static uint32_t distance_of(const struct mu_partners *p, uint32_t i)
{
    return (p->distance - 1 + i) % (p->nodes - 1) + 1;
}

size_t mu_partners_of(const struct mu_partners *p, uint32_t rank, uint32_t ret[MU_PARTNERS_MAX])
{
    for (uint32_t i = 0; i < p->wanted; i++) {
        uint64_t at = (uint64_t)p->place[rank] + distance_of(p, i);

        ret[i] = p->ring[at % p->nodes];
    }
    return p->wanted;
}

size_t mu_partners_sources(const struct mu_partners *p, uint32_t rank,
                           uint32_t ret[MU_PARTNERS_MAX])
{
    for (uint32_t i = 0; i < p->wanted; i++) {
        uint64_t at = (uint64_t)p->place[rank] + p->nodes - distance_of(p, i);

        ret[i] = p->ring[at % p->nodes];
    }
    return p->wanted;
}
