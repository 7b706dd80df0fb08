#include "service/lock/guests.h"

#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"

struct mu_guest_house {
    struct mu_map_node node;
    uint8_t ip[MU_IP_LEN];
    struct mu_list class_link; /* in no list: a house of this host */
    struct mu_list turn;       /* on book->turns while a guest waits and may go on */
    struct mu_list idle;       /* guests that are silent, or have begun; oldest first */
    struct mu_list waiting;
    size_t count;
    size_t shaking;
    bool near;
};

static struct mu_guest *guest_of(struct mu_list *link)
{
    return MU_CONTAINER_OF(link, struct mu_guest, link);
}

static unsigned class_of(size_t count)
{
    unsigned class = 0;

    while (count > 1 && class < MU_GUESTS_CLASSES - 1) {
        count /= 2;
        class ++;
    }
    return class;
}

/* --- houses ----------------------------------------------------------------------------------- */

static struct mu_guest_house *new_house(void)
{
    struct mu_guest_house *h = mu_calloc(1, sizeof(*h));

    if (h != NULL) {
        mu_list_init(&h->class_link);
        mu_list_init(&h->turn);
        mu_list_init(&h->idle);
        mu_list_init(&h->waiting);
    }
    return h;
}

/* The owner of an IPv6 network has all its addresses. */
static void mask(const uint8_t ip[MU_IP_LEN], uint8_t ret[MU_IP_LEN])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    memset(ret, 0, MU_IP_LEN);
    memcpy(ret, ip, memcmp(ip, mapped, sizeof(mapped)) == 0 ? MU_IP_LEN : 8);
}

static struct mu_guest_house *house_of(struct mu_guests *book, const uint8_t *ip)
{
    struct mu_guest_house *h;
    struct mu_map_node *node;
    uint8_t key[MU_IP_LEN];

    if (ip == NULL) {
        return book->near;
    }
    mask(ip, key);
    node = mu_map_find(&book->houses, mu_span(key, sizeof(key)));
    if (node != NULL) {
        return MU_CONTAINER_OF(node, struct mu_guest_house, node);
    }
    h = new_house();
    if (h == NULL) {
        return NULL;
    }
    memcpy(h->ip, key, sizeof(key));
    if (mu_map_insert(&book->houses, &h->node, mu_span(h->ip, sizeof(h->ip))) != 0) {
        mu_free(h);
        return NULL;
    }
    return h;
}

/* The house has more guests, or fewer; when the last one is gone, it is freed. */
static void count_house(struct mu_guests *book, struct mu_guest_house *h, bool more)
{
    unsigned before = class_of(h->count);

    h->count = more ? h->count + 1 : h->count - 1;
    if (h->near) {
        return;
    }
    book->count = more ? book->count + 1 : book->count - 1;
    if (h->count == 0) {
        MU_ASSERT(mu_list_empty(&h->turn));
        mu_list_remove(&h->class_link);
        mu_map_remove(&book->houses, &h->node);
        mu_free(h);
    } else if (mu_list_empty(&h->class_link) || class_of(h->count) != before) {
        mu_list_remove(&h->class_link);
        mu_list_push(&book->classes[class_of(h->count)], &h->class_link);
    }
}

/* Queues the house for a turn if one of its guests may go on. */
static void queue_house(struct mu_guests *book, struct mu_guest_house *h)
{
    bool may =
        !mu_list_empty(&h->waiting) && (h->near || h->shaking < book->limits.shaking_of_address);

    if (!may) {
        mu_list_remove(&h->turn);
    } else if (mu_list_empty(&h->turn)) {
        mu_list_push(&book->turns, &h->turn);
    }
}

/* --- the book --------------------------------------------------------------------------------- */

int mu_guests_init(struct mu_guests *book, const struct mu_lock_limits *limits, uint64_t seed)
{
    *book = (struct mu_guests){.limits = *limits, .near = new_house()};
    if (book->near == NULL) {
        return MUSTER_ENOMEM;
    }
    book->near->near = true;
    mu_map_init(&book->houses, seed);
    for (size_t i = 0; i < MU_GUESTS_CLASSES; i++) {
        mu_list_init(&book->classes[i]);
    }
    mu_list_init(&book->turns);
    mu_list_init(&book->shaking);
    return 0;
}

void mu_guests_fini(struct mu_guests *book)
{
    MU_ASSERT(book->count == 0 && book->near->count == 0);
    mu_map_fini(&book->houses);
    mu_free(book->near);
}

int mu_guests_add(struct mu_guests *book, struct mu_guest *guest, const uint8_t *ip)
{
    struct mu_guest_house *h = house_of(book, ip);

    if (h == NULL) {
        return MUSTER_ENOMEM;
    }
    *guest = (struct mu_guest){.house = h, .stage = MU_GUEST_SILENT};
    mu_list_push(&h->idle, &guest->link);
    count_house(book, h, true);
    return 0;
}

/* The guest of a house that has to go; NULL: TLS is under way with all of them. */
static struct mu_guest *choose(struct mu_guest_house *h)
{
    if (!mu_list_empty(&h->idle)) {
        return guest_of(h->idle.next);
    }
    return mu_list_empty(&h->waiting) ? NULL : guest_of(h->waiting.prev);
}

struct mu_guest *mu_guests_over(struct mu_guests *book, struct mu_guest *guest)
{
    struct mu_guest *victim = NULL;

    if (guest->house == NULL || guest->house->near) {
        return NULL;
    }
    if (guest->house->count > book->limits.of_address) {
        return choose(guest->house);
    }
    if (book->count <= book->limits.guests) {
        return NULL;
    }
    for (size_t i = MU_GUESTS_CLASSES; i > 0 && victim == NULL; i--) {
        struct mu_list *first = book->classes[i - 1].next;

        if (first != &book->classes[i - 1]) {
            victim = choose(MU_CONTAINER_OF(first, struct mu_guest_house, class_link));
            /* The next turn is another house's. */
            mu_list_remove(first);
            mu_list_push(&book->classes[i - 1], first);
        }
    }
    return victim != NULL ? victim : guest;
}

void mu_guests_move(struct mu_guests *book, struct mu_guest *guest, enum mu_guest_stage stage)
{
    struct mu_guest_house *h = guest->house;

    MU_ASSERT(h != NULL && (stage == MU_GUEST_BEGUN || stage == MU_GUEST_WAITING));
    guest->stage = stage;
    mu_list_remove(&guest->link);
    mu_list_push(stage == MU_GUEST_BEGUN ? &h->idle : &h->waiting, &guest->link);
    queue_house(book, h);
}

struct mu_guest *mu_guests_next(struct mu_guests *book)
{
    struct mu_list *turn = mu_list_pop(&book->turns);
    struct mu_guest_house *h;
    struct mu_guest *guest;

    if (turn == NULL) {
        return NULL;
    }
    h = MU_CONTAINER_OF(turn, struct mu_guest_house, turn);
    guest = guest_of(mu_list_pop(&h->waiting));
    guest->stage = MU_GUEST_SHAKING;
    h->shaking++;
    if (!h->near) {
        mu_list_push(&book->shaking, &guest->link);
        book->shaking_count++;
    }
    queue_house(book, h);
    return guest;
}

struct mu_guest *mu_guests_surplus(const struct mu_guests *book)
{
    return book->shaking_count > book->limits.shaking ? guest_of(book->shaking.next) : NULL;
}

void mu_guests_leave(struct mu_guests *book, struct mu_guest *guest)
{
    struct mu_guest_house *h = guest->house;

    if (h == NULL) {
        return;
    }
    mu_list_remove(&guest->link);
    if (guest->stage == MU_GUEST_SHAKING) {
        h->shaking--;
        book->shaking_count -= h->near ? 0 : 1;
    }
    *guest = (struct mu_guest){0};
    queue_house(book, h);
    count_house(book, h, false);
}
