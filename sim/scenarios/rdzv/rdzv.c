/*
 * The native rendezvous: the server keeps the room, and the test can read it.
 * scenarios/rdzv/rdzv_world.h describes the story.
 */
#include <inttypes.h>
#include <string.h>

#include "core/assert.h"
#include "scenarios/rdzv/rdzv_world.h"
#include "scenarios/scenarios.h"
#include "service/server/rdzv_hub_internal.h"
#include "service/rdzv/muster.h"

void rdzv_native_configure(struct rdzv_node *n, char *text, size_t cap)
{
    struct rdzv_world *w = n->world;
    size_t len = rdzv_config_delay(text, cap, "last_call_timeout", w->last_call_ms);
    int more;

    len += rdzv_config_delay(text + len, cap - len, "upscale_delay", w->upscale_delay_ms);
    more =
        snprintf(text + len, cap - len, ",name=%s,topology=rack%" PRIu32 ",max_losses=10000/3600",
                 n->name, n->number % w->racks);
    len += (size_t)more;
    if (w->excludes) {
        more = snprintf(text + len, cap - len, ",exclude_after=3/5,exclude_for=4");
        len += (size_t)more;
    }
    if (w->restarts_max != UINT32_MAX) {
        more = snprintf(text + len, cap - len, ",max_restarts=%" PRIu32, w->restarts_max);
        len += (size_t)more;
    }
    if (w->target != 0) {
        more = snprintf(text + len, cap - len, ",target=%" PRIu32, w->target);
        len += (size_t)more;
    }
    if (w->setup->relays && n->number % 4 != 3) {
        more = snprintf(text + len, cap - len, ",via=relay%" PRIu32 ":29400%s", n->number % 2,
                        n->number % 4 == 0 ? ",relay1:29400" : "");
        len += (size_t)more;
    }
    MU_ASSERT(len < cap);
}

static const struct mu_room *peek_room(const struct rdzv_world *w)
{
    struct mu_rdzv_run *run =
        w->server == NULL ? NULL : mu_rdzv_run_find(&w->server->hub, MU_SPAN_LIT("run0"));

    return run == NULL || run->over ? NULL : &run->room;
}

/* The node that hosts the rendezvous has the server. */
static struct mu_store_server *native_hosted(const struct rdzv_life *l)
{
    return MU_CONTAINER_OF(l->handler, struct mu_rdzv_muster, base)->server;
}

/* A spare waits for as long as the round is full. */
static bool native_may_wait(const struct rdzv_node *n)
{
    const struct mu_room *room = peek_room(n->world);
    struct mu_room_member *m = room == NULL ? NULL : mu_room_find(room, mu_span_str(n->name));

    return m != NULL && m->state == MU_ROOM_SPARE;
}

static void swap_ranks(const struct mu_room *room)
{
    struct mu_list *first = room->in[MU_ROOM_RUNNING].members.next;

    if (room->in[MU_ROOM_RUNNING].count >= 2) {
        MU_CONTAINER_OF(first, struct mu_room_member, link)->rank = 1;
        MU_CONTAINER_OF(first->next, struct mu_room_member, link)->rank = 0;
    }
}

/* A server that forgets who had which rank. */
static void forget_ranks(const struct mu_room *room)
{
    MU_LIST_FOREACH (it, &room->in[MU_ROOM_GATHERING].members) {
        MU_CONTAINER_OF(it, struct mu_room_member, link)->has_rank = false;
    }
}

static bool is_in(const struct mu_room *room, const struct rdzv_seat *seat)
{
    const struct mu_room_member *m = mu_room_find(room, mu_span_str(seat->name));

    return m != NULL && m == seat->member && m->arrival == seat->arrival;
}

static void note_seat(struct rdzv_seats *seats, const struct mu_room_member *m)
{
    struct rdzv_seat *seat = &seats->all[seats->count];

    if (seats->count == RDZV_SEATS_MAX) {
        return; /* Of so many spares the last are not watched. */
    }
    seats->count++;
    *seat = (struct rdzv_seat){.member = m, .arrival = m->arrival, .rank = m->rank};
    (void)snprintf(seat->name, sizeof(seat->name), "%s", m->name);
    (void)snprintf(seat->topology, sizeof(seat->topology), "%s", m->topology);
}

/* Whoever has been a member since the last round keeps its rank in this one, if the world is that
 * large. */
static void check_kept(struct rdzv_world *w, const struct mu_room *room)
{
    uint32_t world = room->in[MU_ROOM_RUNNING].count;

    for (uint32_t i = 0; i < w->ranked.count; i++) {
        const struct rdzv_seat *seat = &w->ranked.all[i];

        if (is_in(room, seat) && seat->rank < world && seat->rank != seat->member->rank) {
            mu_sim_fail(w->sim,
                        "%s survived round %" PRIu64 " with rank %" PRIu32 " and got %" PRIu32
                        " in a world of %" PRIu32,
                        seat->name, w->seats_round, seat->rank, seat->member->rank, world);
        }
    }
}

/* One member is gone, and one spare came for it: no other spare was nearer. */
static void check_spare(struct rdzv_world *w, const struct mu_room *room,
                        const struct rdzv_seat *gone)
{
    const struct rdzv_seat *taker = NULL;

    for (uint32_t i = 0; i < w->spares.count; i++) {
        const struct rdzv_seat *spare = &w->spares.all[i];

        if (is_in(room, spare) && spare->member->state != MU_ROOM_SPARE) {
            taker = taker == NULL ? spare : NULL;
        }
    }
    for (uint32_t i = 0; taker != NULL && i < w->spares.count; i++) {
        const struct rdzv_seat *spare = &w->spares.all[i];

        if (is_in(room, spare) && spare->member->state == MU_ROOM_SPARE &&
            strcmp(spare->topology, gone->topology) == 0 &&
            strcmp(taker->topology, gone->topology) != 0) {
            mu_sim_fail(w->sim, "%s of %s takes the place of %s of %s, and %s is spare",
                        taker->name, taker->topology, gone->name, gone->topology, spare->name);
        }
    }
}

/* Follows who has which rank and who is spare, from one step to the next: who is out is forgotten
 * at once. */
static void watch_seats(struct rdzv_world *w, const struct mu_room *room)
{
    struct rdzv_seats stay = {0};
    const struct rdzv_seat *gone = NULL;

    if (w->seats_incarnation != room->incarnation) {
        w->seats_incarnation = room->incarnation;
        w->ranked.count = w->spares.count = 0;
    }
    /* A round in between, which began and ended in one step, may have been smaller. */
    if (room->state == MU_ROOM_IS_RUNNING && w->seats_round + 1 == room->round) {
        check_kept(w, room);
    }
    for (uint32_t i = 0; i < w->ranked.count; i++) {
        if (is_in(room, &w->ranked.all[i])) {
            stay.all[stay.count++] = w->ranked.all[i];
        } else {
            gone = &w->ranked.all[i];
        }
    }
    if (stay.count + 1 == w->ranked.count) {
        check_spare(w, room, gone);
    }
    if (room->state == MU_ROOM_IS_RUNNING) {
        w->seats_round = room->round;
        stay.count = 0;
        MU_LIST_FOREACH (it, &room->in[MU_ROOM_RUNNING].members) {
            note_seat(&stay, MU_CONTAINER_OF(it, struct mu_room_member, link));
        }
    }
    w->ranked = stay;
    w->spares.count = 0;
    MU_LIST_FOREACH (it, &room->in[MU_ROOM_SPARE].members) {
        note_seat(&w->spares, MU_CONTAINER_OF(it, struct mu_room_member, link));
    }
}

/* Checks the server's own state whenever it has told a node something. */
static void native_check(struct rdzv_world *w)
{
    const struct mu_room *room;
    uint64_t news = w->server == NULL ? 0 : w->server->hub.notices + w->server->hub.joins;
    uint64_t members = w->server == NULL ? 0 : w->server->hub.members;
    uint32_t rank = 0;

    if (news == w->seen_news && members == w->seen_members) {
        return;
    }
    w->seen_news = news;
    w->seen_members = members;
    for (uint32_t i = 0; i < w->node_count; i++) {
        rdzv_node_note_spare(&w->nodes[i]);
    }
    room = peek_room(w);
    if (room == NULL) {
        w->seats_incarnation = 0;
        return;
    }
    if (w->setup->plant == RDZV_PLANT_SWAPPED) {
        swap_ranks(room);
    }
    if (w->setup->plant == RDZV_PLANT_SHUFFLED) {
        forget_ranks(room);
    }
    watch_seats(w, room);
    MU_LIST_FOREACH (node, &room->in[MU_ROOM_RUNNING].members) {
        const struct mu_room_member *m = MU_CONTAINER_OF(node, struct mu_room_member, link);

        if (mu_exclusions_find(&room->exclusions, room->seen, m->machine, m->name) != NULL) {
            mu_sim_fail(w->sim, "%s is excluded and has rank %" PRIu32, m->name, m->rank);
        }
        if (m->rank != rank++) {
            mu_sim_fail(w->sim, "the server has %s at rank %" PRIu32 " in the place of %" PRIu32,
                        m->name, m->rank, rank - 1);
        }
    }
    if (rank != 0 && (rank < w->nodes_min || rank > w->nodes_max)) {
        mu_sim_fail(w->sim, "the server has a round of %" PRIu32, rank);
    }
}

#define NATIVE                                                                                     \
    .backend = "muster", .converge_ns = 60 * MU_NS_PER_S, .join_factor = 2,                        \
    .answer_ns = 5 * MU_NS_PER_S, .leave_ns = 2 * MU_NS_PER_S, .close_ns = 31 * MU_NS_PER_S,       \
    .lost_ns = 3500 * MU_NS_PER_MS, .configure = rdzv_native_configure,                            \
    .may_wait = native_may_wait, .hosted = native_hosted, .check = native_check

RDZV_SCENARIO(rdzv, "rdzv",
              "native rendezvous under churn: one world per round, all nodes get there",
              mu_sim_faults_draw_all, false, NATIVE)

RDZV_SCENARIO(rdzv_relayed, "rdzv-relayed",
              "the same with nodes that reach the server by relays, which die as well",
              mu_sim_faults_draw_all, false, NATIVE, .relays = true)

#define PLANTED(id, bug, text, words)                                                              \
    RDZV_SCENARIO(id, text, "planted bug: " words, mu_sim_faults_draw_all, true, NATIVE,           \
                  .plant = (bug))

PLANTED(rdzv_deaf, RDZV_PLANT_DEAF, "rdzv-deaf", "a node that does not hear of the end of a round")
PLANTED(rdzv_dizzy, RDZV_PLANT_DIZZY, "rdzv-dizzy", "a node that believes in the rank it had")
PLANTED(rdzv_loose, RDZV_PLANT_LOOSE, "rdzv-loose", "a node that believes in a smaller world")
PLANTED(rdzv_ghost, RDZV_PLANT_GHOST, "rdzv-ghost",
        "a node that takes a round for one of the incarnation before")
PLANTED(rdzv_forgetful, RDZV_PLANT_FORGETFUL, "rdzv-forgetful", "a node whose join never ends")
PLANTED(rdzv_sulky, RDZV_PLANT_SULKY, "rdzv-sulky", "a node that does not join again")
PLANTED(rdzv_restless, RDZV_PLANT_RESTLESS, "rdzv-restless", "a node that ends rounds for nothing")
PLANTED(rdzv_recount, RDZV_PLANT_RECOUNT, "rdzv-recount", "a server that gives numbers again")
PLANTED(rdzv_swapped, RDZV_PLANT_SWAPPED, "rdzv-swapped", "a server that mixes up two ranks")
PLANTED(rdzv_shuffled, RDZV_PLANT_SHUFFLED, "rdzv-shuffled",
        "a server that gives survivors other ranks")
