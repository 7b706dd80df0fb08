/*
 * A group as bytes: its state (1 byte: 'T' if the main thread is stopped, else 0), a note after its
 * length (2 bytes), then frames until the end, the innermost first: the line (4 bytes), the
 * function and the file, each after its length (2 bytes). A place is a group with one frame: the
 * function that was called, and the user's line that called it.
 */
#ifndef MU_GROUP_INTERNAL_H
#define MU_GROUP_INTERNAL_H

#include "core/reader.h"
#include "proto/stacks/group.h"

#define MU_GROUP_NONE UINT32_MAX

struct mu_group_view {
    bool stopped;
    struct mu_span note;
    struct mu_reader frames;
};

struct mu_group_view mu_group_view(struct mu_span key);
/** Takes the next frame off; false: there are no more. */
bool mu_group_next(struct mu_group_view *view, struct mu_stacks_frame *ret_frame);
/** Where that is in the user's script; false: there are no frames. */
bool mu_group_place(struct mu_span key, struct mu_stacks_frame *ret_place);

#endif
