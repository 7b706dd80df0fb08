/*
 * What the files of the room share. room.c holds who is in and what was asked,
 * room_round.c how rounds are formed and ended, room_notice.c what is told.
 */
#ifndef MU_RDZV_ROOM_INTERNAL_H
#define MU_RDZV_ROOM_INTERNAL_H

#include "proto/rdzv/room.h"

static inline struct mu_room_member *mu_room_member_of(const struct mu_list *link)
{
    return MU_CONTAINER_OF(link, struct mu_room_member, link);
}

/* The first of those that are in that state, or NULL. */
static inline struct mu_room_member *mu_room_first(const struct mu_room *room,
                                                   enum mu_room_member_state state)
{
    const struct mu_list *members = &room->in[state].members;

    return mu_list_empty(members) ? NULL : mu_room_member_of(members->next);
}

/* --- who is in: room.c ------------------------------------------------------------------ */

/* Changes the state of a member: to the end of those that are in it. OUT: of none. */
void mu_room_move(struct mu_room *room, struct mu_room_member *member,
                  enum mu_room_member_state state);
/* Takes the member out: it has no state, no name and no target in the room any more. */
void mu_room_take_out(struct mu_room *room, struct mu_room_member *member);

/* --- rounds: room_round.c --------------------------------------------------------------- */

/* The largest target that was announced, or 0. */
uint32_t mu_room_target(const struct mu_room *room);
/*
 * Ends the round that runs. `who` is the reason, or NULL; its name and rank are still what they
 * were. Then everybody who is in gathers, as far as there is room, or is out if the restart budget
 * is spent; after an upscale the next round runs already.
 */
void mu_room_end_round(struct mu_room *room, mu_mono_t now, enum mu_room_end_reason reason,
                       const struct mu_room_member *who);
/* Whatever has changed: forms a round, ends one, sets the clocks. */
void mu_room_settle(struct mu_room *room, mu_mono_t now);

/* --- notices: room_notice.c ------------------------------------------------------------- */

void mu_room_tell(struct mu_room *room, struct mu_room_member *member,
                  enum mu_room_notice_kind kind);
/* Takes a notice back that was not pulled; whether it was there. */
bool mu_room_untell(struct mu_room_member *member, enum mu_room_notice_kind kind);
/* Takes all of them back. */
void mu_room_untell_all(struct mu_room_member *member);
/* Everybody is out, and is told `kind` (CLOSED or FAILED) instead of what was pending. */
void mu_room_dismiss(struct mu_room *room, enum mu_room_notice_kind kind);

#endif
