#include "checkers/rounds.h"

#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "sim.h"

/* All memory belongs to the test, whatever process runs. */
static void *grow(void *old, size_t size)
{
    struct mu_sim_heap *heap = mu_sim_outside();
    void *p = mu_realloc(old, size);

    mu_sim_inside(heap);
    MU_ASSERT(p != NULL);
    return p;
}

static int fault(struct mu_errmsg *reterr_msg, uint32_t node, uint64_t incarnation, uint64_t round,
                 const char *what)
{
    return mu_err(reterr_msg, MUSTER_ECORRUPT,
                  "node %" PRIu32 ", incarnation %" PRIu64 ", round %" PRIu64 ": %s", node,
                  incarnation, round, what);
}

void rounds_init(struct rounds *r, size_t node_count)
{
    *r = (struct rounds){.node_count = node_count};
    r->nodes = grow(NULL, node_count * sizeof(*r->nodes));
    memset(r->nodes, 0, node_count * sizeof(*r->nodes));
}

void rounds_fini(struct rounds *r)
{
    for (size_t i = 0; i < r->world_count; i++) {
        mu_free(r->worlds[i].nodes);
        mu_free(r->worlds[i].store);
    }
    mu_free(r->worlds);
    mu_free(r->nodes);
    *r = (struct rounds){0};
}

/* Returns whether (incarnation, round) of `a` comes before that of `b`. */
static bool is_before(uint64_t incarnation, uint64_t round, uint64_t than_incarnation,
                      uint64_t than_round)
{
    return incarnation != than_incarnation ? incarnation < than_incarnation : round < than_round;
}

static uint64_t hash_members(const struct mu_rdzv_assignment *a)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    if (a->member_count == 0) {
        return 0;
    }
    for (size_t i = 0; i < a->member_count; i++) {
        const char *texts[] = {a->members[i].name, a->members[i].addr};

        for (size_t k = 0; k < 2; k++) {
            for (const char *c = texts[k]; *c != '\0'; c++) {
                hash = (hash ^ (uint8_t)*c) * UINT64_C(0x100000001b3);
            }
            hash = (hash ^ 0xff) * UINT64_C(0x100000001b3);
        }
    }
    return hash | 1;
}

static struct rounds_world *find_world(const struct rounds *r, uint64_t incarnation, uint64_t round)
{
    for (size_t i = r->world_count; i-- > 0;) {
        if (r->worlds[i].incarnation == incarnation && r->worlds[i].round == round) {
            return &r->worlds[i];
        }
    }
    return NULL;
}

static struct rounds_world *add_world(struct rounds *r, const struct mu_rdzv_assignment *a)
{
    struct rounds_world *w;
    size_t len = strlen(a->store) + 1;

    if (r->world_count == r->world_cap) {
        r->world_cap = r->world_cap == 0 ? 64 : 2 * r->world_cap;
        r->worlds = grow(r->worlds, r->world_cap * sizeof(*r->worlds));
    }
    w = &r->worlds[r->world_count++];
    *w = (struct rounds_world){
        .incarnation = a->incarnation,
        .round = a->round,
        .size = a->world,
        .members = hash_members(a),
    };
    w->nodes = grow(NULL, a->world * sizeof(*w->nodes));
    memset(w->nodes, 0, a->world * sizeof(*w->nodes));
    w->store = grow(NULL, len);
    memcpy(w->store, a->store, len);
    return w;
}

/* Checks the node itself in the list that it was given. */
static const char *judge_members(const struct mu_rdzv_assignment *a, const char *name)
{
    if (a->world == 0 || a->rank >= a->world) {
        return "its rank is not below the world's size";
    }
    if (a->member_count == 0) {
        return NULL;
    }
    if (a->member_count != a->world) {
        return "the list of members is not as long as the world is large";
    }
    if (strcmp(a->members[a->rank].name, name) != 0) {
        return "another one has its rank in the list of members";
    }
    if (a->world > 64) {
        return NULL; /* The quadratic check is for small worlds. */
    }
    for (size_t i = 0; i < a->member_count; i++) {
        for (size_t k = 0; k < i; k++) {
            if (strcmp(a->members[i].name, a->members[k].name) == 0) {
                return "a name is in the list of members twice";
            }
        }
    }
    return NULL;
}

static const char *judge_node(const struct rounds_node *n, uint32_t life,
                              const struct mu_rdzv_assignment *a)
{
    if (n->in) {
        return "it is still in the round before: two live rounds";
    }
    if (n->fenced && life == n->life && n->incarnation != a->incarnation) {
        return "its handler knows another incarnation";
    }
    if (n->ever && life == n->seen &&
        !is_before(n->incarnation, n->round, a->incarnation, a->round)) {
        return "it was told of this round, or a later one, before";
    }
    return NULL;
}

static const char *judge_world(struct rounds_world *w, const struct mu_rdzv_assignment *a)
{
    uint64_t members = hash_members(a);

    if (w->size != a->world) {
        return "others were told another world size: two worlds in one round";
    }
    if (w->members == 0) {
        w->members = members;
    }
    if (members != 0 && w->members != members) {
        return "others were told of other members: two worlds in one round";
    }
    if (strcmp(w->store, a->store) != 0) {
        return "others were told of another store";
    }
    if (w->nodes[a->rank] != 0) {
        return "its rank was told before";
    }
    return NULL;
}

int rounds_assigned(struct rounds *r, uint32_t node, const char *name, uint32_t life,
                    const struct mu_rdzv_assignment *a, struct mu_errmsg *reterr_msg)
{
    struct rounds_node *n = &r->nodes[node];
    struct rounds_world *w = find_world(r, a->incarnation, a->round);
    const char *what = judge_members(a, name);

    what = what != NULL ? what : judge_node(n, life, a);
    if (what == NULL) {
        w = w != NULL ? w : add_world(r, a);
        what = judge_world(w, a);
    }
    if (what != NULL) {
        return fault(reterr_msg, node, a->incarnation, a->round, what);
    }
    w->nodes[a->rank] = node + 1;
    w->told++;
    *n = (struct rounds_node){.in = true,
                              .ever = true,
                              .fenced = true,
                              .incarnation = a->incarnation,
                              .round = a->round,
                              .rank = a->rank,
                              .life = n->life,
                              .seen = n->life};
    return 0;
}

int rounds_ended(struct rounds *r, uint32_t node, uint64_t round, struct mu_errmsg *reterr_msg)
{
    struct rounds_node *n = &r->nodes[node];

    if (!n->in) {
        return fault(reterr_msg, node, n->incarnation, round, "it ended and the node is in none");
    }
    if (n->round != round) {
        return fault(reterr_msg, node, n->incarnation, round,
                     "it ended and the node is in another one");
    }
    n->in = false;
    return 0;
}

void rounds_out(struct rounds *r, uint32_t node)
{
    r->nodes[node].in = false;
}

void rounds_fresh(struct rounds *r, uint32_t node, uint32_t life)
{
    r->nodes[node].life = life;
    r->nodes[node].in = false;
    r->nodes[node].fenced = false;
}

const struct rounds_world *rounds_of(const struct rounds *r, uint32_t node)
{
    const struct rounds_node *n = &r->nodes[node];

    return n->in ? find_world(r, n->incarnation, n->round) : NULL;
}

const struct rounds_world *rounds_only(const struct rounds *r)
{
    const struct rounds_node *first = NULL;

    for (size_t i = 0; i < r->node_count; i++) {
        const struct rounds_node *n = &r->nodes[i];

        if (n->in && first == NULL) {
            first = n;
        }
        if (n->in && (n->incarnation != first->incarnation || n->round != first->round)) {
            return NULL;
        }
    }
    return first == NULL ? NULL : find_world(r, first->incarnation, first->round);
}

bool rounds_whole(const struct rounds *r, const struct rounds_world *w)
{
    for (uint32_t rank = 0; rank < w->size; rank++) {
        const struct rounds_node *n;

        if (w->nodes[rank] == 0) {
            return false;
        }
        n = &r->nodes[w->nodes[rank] - 1];
        if (!n->in || n->incarnation != w->incarnation || n->round != w->round) {
            return false;
        }
    }
    return true;
}
