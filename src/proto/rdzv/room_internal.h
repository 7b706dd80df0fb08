/*
 * What the files of the room share. room.c holds the members and their requests, room_round.c forms
 * and ends rounds, room_rank.c gives out ranks and places, room_notice.c makes the notices.
 */
#ifndef MU_RDZV_ROOM_INTERNAL_H
#define MU_RDZV_ROOM_INTERNAL_H

#include "proto/rdzv/room.h"

static inline struct mu_room_member *mu_room_member_of(const struct mu_list *link)
{
    return MU_CONTAINER_OF(link, struct mu_room_member, link);
}

/* Returns the first member in that state, or NULL. */
static inline struct mu_room_member *mu_room_first(const struct mu_room *room,
                                                   enum mu_room_member_state state)
{
    const struct mu_list *members = &room->in[state].members;

    return mu_list_empty(members) ? NULL : mu_room_member_of(members->next);
}

/* --- members: room.c -------------------------------------------------------------------- */

/* Changes the state of a member and appends it to the list of that state. OUT: to no list. */
void mu_room_move(struct mu_room *room, struct mu_room_member *member,
                  enum mu_room_member_state state);
/* Removes the member: it has no state, name or target in the room any more. */
void mu_room_take_out(struct mu_room *room, struct mu_room_member *member);

/* --- rounds: room_round.c --------------------------------------------------------------- */

/* Returns the largest target that was announced, or 0. */
uint32_t mu_room_target(const struct mu_room *room);
/*
 * Ends the round that runs. `who` is the reason, or NULL; its name and rank are still what they
 * were. Then all members gather, as far as there is room, or are out if the restart budget is
 * spent; after an upscale the next round runs already.
 */
void mu_room_end_round(struct mu_room *room, mu_mono_t now, enum mu_room_end_reason reason,
                       const struct mu_room_member *who);
/* A member was lost: that is one more, and perhaps one too many. */
void mu_room_count_loss(struct mu_room *room, mu_mono_t now, const struct mu_room_member *who);
/* A member was lost or has left: failures that are in doubt were the echo of that. Returns whether
 * there were any. */
bool mu_room_forgive(struct mu_room *room, mu_mono_t now);
/* Reacts to any change: forms a round, ends one, sets the clocks. */
void mu_room_settle(struct mu_room *room, mu_mono_t now);

/* --- ranks: room_rank.c ------------------------------------------------------------------ */

/* Makes a spare WAITING or GATHERING: the one whose topology key is nearest, or ("") that came
 * first. Returns whether there was one. */
bool mu_room_promote(struct mu_room *room, const char *topology, enum mu_room_member_state state);
/* How many would be in a round that is formed now. */
uint32_t mu_room_here(const struct mu_room *room);
/* Keeps the place of a member that is gone, and its name for explain() if it was lost. */
void mu_room_vacate(struct mu_room *room, const struct mu_room_member *member, bool lost);
/*
 * Makes all that gather RUNNING, each with a rank, and tells them. Survivors come first in the
 * gathering, ordered by their old rank: those whose rank is below the size of the world keep it.
 */
void mu_room_give_ranks(struct mu_room *room);

/* --- notices: room_notice.c ------------------------------------------------------------- */

void mu_room_tell(struct mu_room *room, struct mu_room_member *member,
                  enum mu_room_notice_kind kind);
/* Takes back a notice that was not pulled; returns whether there was one. */
bool mu_room_untell(struct mu_room_member *member, enum mu_room_notice_kind kind);
/* Takes back all notices. */
void mu_room_untell_all(struct mu_room_member *member);
/* All members are out, and are told `kind` (CLOSED or FAILED) instead of what was pending. */
void mu_room_dismiss(struct mu_room *room, enum mu_room_notice_kind kind);

#endif
