/*
 * Ranks: who keeps its own, who takes the place of whom, and in which order the rest fill what is
 * left.
 */
#include "proto/rdzv/room_internal.h"

#include "core/assert.h"

/* --- order ----------------------------------------------------------------------------------- */

/* Compares by topology, then by name. Names are unique, so two members are never equal. */
static int compare_members(const struct mu_list *a, const struct mu_list *b)
{
    const struct mu_room_member *x = mu_room_member_of(a);
    const struct mu_room_member *y = mu_room_member_of(b);
    int order = mu_span_natural_cmp(mu_span_str(x->topology), mu_span_str(y->topology));

    return order != 0 ? order : mu_span_natural_cmp(x->named.key, y->named.key);
}

/* Compares by the rank in the room before; of two with the same, the one that had it last is first,
 * then the one that came first. */
static int compare_ranks(const struct mu_list *a, const struct mu_list *b)
{
    const struct mu_room_member *x = mu_room_member_of(a);
    const struct mu_room_member *y = mu_room_member_of(b);

    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    if (x->before.round != y->before.round) {
        return x->before.round > y->before.round ? -1 : 1;
    }
    return x->arrival < y->arrival ? -1 : 1;
}

typedef int (*comparison)(const struct mu_list *a, const struct mu_list *b);

/* Merges two sorted chains, linked by `next` and ended by NULL. */
static struct mu_list *merge(struct mu_room *room, comparison compare, struct mu_list *a,
                             struct mu_list *b)
{
    struct mu_list head = {0};
    struct mu_list *tail = &head;

    while (a != NULL && b != NULL) {
        struct mu_list **from = compare(a, b) < 0 ? &a : &b;

        tail->next = *from;
        tail = *from;
        *from = tail->next;
        room->steps++;
    }
    tail->next = a != NULL ? a : b;
    return head.next;
}

/*
 * Merge sort from the bottom up, without extra memory: place i holds nothing or a sorted chain of
 * 2^i members, and two of the same length are merged into the next place, as a carry is.
 */
static void sort_members(struct mu_room *room, comparison compare, struct mu_list *members)
{
    struct mu_list *places[33] = {0};
    struct mu_list *chain = NULL;
    struct mu_list *node;

    while ((node = mu_list_pop(members)) != NULL) {
        size_t i = 0;

        node->next = NULL;
        for (; places[i] != NULL; i++) {
            node = merge(room, compare, places[i], node);
            places[i] = NULL;
        }
        places[i] = node;
    }
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (places[i] != NULL) {
            chain = merge(room, compare, places[i], chain);
        }
    }
    while (chain != NULL) {
        node = chain;
        chain = chain->next;
        mu_list_push(members, node);
    }
}

/* --- nearness -------------------------------------------------------------------------------- */

#define SAME_KEY UINT32_MAX

/* A key has parts, as a path has: "zone2/rack7". */
static bool is_in_part(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (uint8_t)c >= 0x80;
}

/* How near two topology keys are: how many whole parts at their beginning are the same. */
static uint32_t nearness(const char *a, const char *b)
{
    uint32_t parts = 0;
    size_t i = 0;

    for (; a[i] == b[i]; i++) {
        if (a[i] == '\0') {
            return SAME_KEY;
        }
        parts += !is_in_part(a[i]) && i != 0 && is_in_part(a[i - 1]);
    }
    /* One of them ends where the next part of the other begins. */
    return parts + (i != 0 && is_in_part(a[i - 1]) && !is_in_part(a[i]) && !is_in_part(b[i]));
}

/* Returns the first of those that are nearest to the key, or NULL if none is as near as `least`. */
static struct mu_room_member *nearest(struct mu_room *room, const struct mu_list *members,
                                      const char *key, uint32_t least)
{
    struct mu_room_member *best = NULL;
    uint32_t best_near = 0;

    MU_LIST_FOREACH (it, members) {
        struct mu_room_member *member = mu_room_member_of(it);
        uint32_t near = nearness(key, member->topology);

        room->steps++;
        if (near >= least && (best == NULL || near > best_near)) {
            best = member;
            best_near = near;
        }
        if (best_near == SAME_KEY) {
            break;
        }
    }
    return best;
}

bool mu_room_promote(struct mu_room *room, const char *topology, enum mu_room_member_state state)
{
    struct mu_room_member *spare = nearest(room, &room->in[MU_ROOM_SPARE].members, topology, 0);

    if (spare == NULL) {
        return false;
    }
    mu_room_move(room, spare, state);
    room->promoted++;
    return true;
}

/* --- ranks ----------------------------------------------------------------------------------- */

void mu_room_vacate(struct mu_room *room, const struct mu_room_member *member, bool lost)
{
    struct mu_room_place *places = room->places;
    uint32_t i = room->place_count;

    if (i == MU_ROOM_PLACES_MAX) {
        room->missing_more |= lost;
        return;
    }
    for (; i > 0 && places[i - 1].rank > member->rank; i--) {
        places[i] = places[i - 1];
    }
    places[i] = (struct mu_room_place){.rank = member->rank, .missing = lost};
    memcpy(places[i].name, member->name, sizeof(places[i].name));
    memcpy(places[i].topology, member->topology, sizeof(places[i].topology));
    room->place_count++;
}

static struct mu_room_member *find_name(const struct mu_list *members, const char *name)
{
    MU_LIST_FOREACH (it, members) {
        if (strcmp(mu_room_member_of(it)->name, name) == 0) {
            return mu_room_member_of(it);
        }
    }
    return NULL;
}

/* Whether a place is still to be given. In a room that succeeds another, what is known of places
 * may be of different rounds, so that somebody else may have it, or two places one rank. */
static bool is_vacant(const struct mu_room *room, uint32_t i)
{
    if (i > 0 && room->places[i - 1].rank == room->places[i].rank) {
        return false;
    }
    if (room->succeeds) {
        MU_LIST_FOREACH (it, &room->in[MU_ROOM_GATHERING].members) {
            if (mu_room_member_of(it)->rank == room->places[i].rank) {
                return false;
            }
        }
    }
    return true;
}

/*
 * Finds who takes the places that were lost: their old owners, then who has the same topology key,
 * then who has the nearest one. Whoever does moves to the list of its place.
 */
static void fill_places(struct mu_room *room, uint32_t world, struct mu_list *rest,
                        struct mu_room_member **takers)
{
    enum { BY_NAME, BY_KEY, BY_PART, WAYS };

    for (int way = BY_NAME; way < WAYS; way++) {
        for (uint32_t i = 0; i < room->place_count && !mu_list_empty(rest); i++) {
            const struct mu_room_place *place = &room->places[i];

            if (takers[i] != NULL || place->rank >= world || !is_vacant(room, i)) {
                continue;
            }
            takers[i] = way == BY_NAME
                            ? find_name(rest, place->name)
                            : nearest(room, rest, place->topology, way == BY_KEY ? SAME_KEY : 1);
            if (takers[i] != NULL) {
                mu_list_remove(&takers[i]->link);
            }
        }
    }
}

static void give_rank(struct mu_room *room, struct mu_room_member *member, uint32_t rank)
{
    mu_room_move(room, member, MU_ROOM_RUNNING);
    member->rank = rank;
    member->has_rank = true;
    member->finished = false;
    mu_room_tell(room, member, MU_ROOM_ASSIGNED);
}

void mu_room_give_ranks(struct mu_room *room)
{
    struct mu_list *gathering = &room->in[MU_ROOM_GATHERING].members;
    uint32_t world = room->in[MU_ROOM_GATHERING].count;
    struct mu_room_member *takers[MU_ROOM_PLACES_MAX] = {0};
    const struct mu_room_member *last = NULL;
    struct mu_list rest;
    uint32_t place = 0;

    mu_list_init(&rest);
    if (room->succeeds) {
        sort_members(room, compare_ranks, gathering); /* They have come in any order. */
    }
    MU_LIST_FOREACH_SAFE (it, next, gathering) {
        struct mu_room_member *member = mu_room_member_of(it);

        if (!member->has_rank || member->rank >= world ||
            (last != NULL && last->rank == member->rank)) {
            mu_list_remove(it);
            mu_list_push(&rest, it);
        } else {
            last = member;
        }
        room->steps++;
    }
    sort_members(room, compare_members, &rest);
    fill_places(room, world, &rest, takers);

    for (uint32_t rank = 0; rank < world; rank++) {
        struct mu_room_member *member = mu_room_first(room, MU_ROOM_GATHERING);

        if (member == NULL || member->rank != rank) {
            while (place < room->place_count && room->places[place].rank < rank) {
                place++;
            }
            member = place < room->place_count && room->places[place].rank == rank ? takers[place]
                                                                                   : NULL;
        }
        if (member == NULL) {
            MU_ASSERT(!mu_list_empty(&rest));
            member = mu_room_member_of(rest.next);
        }
        give_rank(room, member, rank);
    }
}
