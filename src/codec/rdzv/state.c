#include "codec/rdzv/state.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"

#define FIRST_CAP 16

void mu_rdzv_state_init(struct mu_rdzv_state *s)
{
    *s = (struct mu_rdzv_state){0};
}

void mu_rdzv_state_fini(struct mu_rdzv_state *s)
{
    for (size_t i = 0; i < s->member_count; i++) {
        mu_free(s->members[i].node.addr);
    }
    mu_free(s->members);
    mu_free(s->order);
    mu_rdzv_state_init(s);
}

bool mu_rdzv_node_equal(const struct mu_rdzv_node *a, const struct mu_rdzv_node *b)
{
    return a->pid == b->pid && a->local_id == b->local_id && strcmp(a->addr, b->addr) == 0;
}

static int compare_int(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/* Python compares text by code point; the bytes of UTF-8 have the same order. */
int mu_rdzv_node_compare(const struct mu_rdzv_node *a, const struct mu_rdzv_node *b)
{
    int sign = strcmp(a->addr, b->addr);

    if (sign == 0) {
        sign = compare_int(a->pid, b->pid);
    }
    return sign != 0 ? sign : compare_int(a->local_id, b->local_id);
}

/* Where the node is in `order`, or would be. */
static size_t find_place(const struct mu_rdzv_state *s, const struct mu_rdzv_node *node,
                         bool *ret_found)
{
    size_t low = 0;
    size_t high = s->member_count;

    *ret_found = false;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int sign = mu_rdzv_node_compare(&s->members[s->order[middle]].node, node);

        if (sign == 0) {
            *ret_found = true;
            return middle;
        }
        if (sign < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct mu_rdzv_member *mu_rdzv_state_find(const struct mu_rdzv_state *s,
                                          const struct mu_rdzv_node *node)
{
    bool found;
    size_t place = find_place(s, node, &found);

    return found ? &s->members[s->order[place]] : NULL;
}

/* The second half of `order` is room for compaction, which therefore cannot fail. */
static int set_capacity(struct mu_rdzv_state *s, size_t cap)
{
    struct mu_rdzv_member *members;
    uint32_t *order = mu_realloc(s->order, 2 * cap * sizeof(*order));

    if (order == NULL) {
        return MUSTER_ENOMEM;
    }
    s->order = order;
    members = mu_realloc(s->members, cap * sizeof(*members));
    if (members == NULL) {
        return MUSTER_ENOMEM;
    }
    s->members = members;
    s->member_cap = cap;
    return 0;
}

int mu_rdzv_state_add(struct mu_rdzv_state *s, const struct mu_rdzv_node *node,
                      struct mu_rdzv_member **ret_member)
{
    size_t addr_len = strnlen(node->addr, MU_RDZV_ADDR_MAX + 1);
    struct mu_rdzv_member *member;
    bool found;
    size_t place = find_place(s, node, &found);
    char *addr;

    if (found) {
        *ret_member = &s->members[s->order[place]];
        return 0;
    }
    if (addr_len > MU_RDZV_ADDR_MAX || s->member_count >= MU_RDZV_MEMBERS_MAX) {
        return MUSTER_ELIMIT;
    }
    if (s->member_count == s->member_cap &&
        set_capacity(s, s->member_cap == 0 ? FIRST_CAP : 2 * s->member_cap) != 0) {
        return MUSTER_ENOMEM;
    }
    addr = mu_strndup(node->addr, addr_len);
    if (addr == NULL) {
        return MUSTER_ENOMEM;
    }
    memmove(&s->order[place + 1], &s->order[place],
            (s->member_count - place) * sizeof(s->order[0]));
    s->order[place] = (uint32_t)s->member_count;
    member = &s->members[s->member_count++];
    *member = (struct mu_rdzv_member){
        .node = {.addr = addr, .pid = node->pid, .local_id = node->local_id}};
    *ret_member = member;
    return 0;
}

int mu_rdzv_state_copy(struct mu_rdzv_state *to, const struct mu_rdzv_state *from)
{
    struct mu_rdzv_state copy = *from;

    if (to == from) {
        return 0;
    }
    copy.members = NULL;
    copy.order = NULL;
    copy.member_count = 0;
    copy.member_cap = 0;
    if (from->member_count != 0) {
        if (set_capacity(&copy, from->member_count) != 0) {
            mu_rdzv_state_fini(&copy);
            return MUSTER_ENOMEM;
        }
        memcpy(copy.order, from->order, from->member_count * sizeof(copy.order[0]));
    }
    for (size_t i = 0; i < from->member_count; i++) {
        const char *addr = from->members[i].node.addr;

        copy.members[i] = from->members[i];
        copy.members[i].node.addr = mu_strndup(addr, strlen(addr));
        if (copy.members[i].node.addr == NULL) {
            mu_rdzv_state_fini(&copy);
            return MUSTER_ENOMEM;
        }
        copy.member_count++;
    }
    mu_rdzv_state_fini(to);
    *to = copy;
    return 0;
}

static bool has_flag(const struct mu_rdzv_member *m)
{
    return m->participant || m->waiting || m->spare || m->has_heartbeat;
}

void mu_rdzv_state_compact(struct mu_rdzv_state *s)
{
    size_t count = s->member_count;
    uint32_t *moved_to; /* the new index of each member that stays */
    size_t kept = 0;
    size_t place = 0;

    if (count == 0) {
        return;
    }
    moved_to = s->order + s->member_cap;
    for (size_t i = 0; i < count; i++) {
        if (!has_flag(&s->members[i])) {
            mu_free(s->members[i].node.addr);
            moved_to[i] = UINT32_MAX;
            continue;
        }
        moved_to[i] = (uint32_t)kept;
        s->members[kept++] = s->members[i];
    }
    for (size_t i = 0; i < count; i++) {
        if (moved_to[s->order[i]] != UINT32_MAX) {
            s->order[place++] = moved_to[s->order[i]];
        }
    }
    MU_ASSERT(place == kept);
    s->member_count = kept;
}
