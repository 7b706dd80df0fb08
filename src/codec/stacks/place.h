/*
 * Whose code a frame of a stack is: the user's, or a library's. A person who asks where a rank
 * stands wants the line of the training script, not the inside of PyTorch that it called.
 */
#ifndef MU_STACKS_PLACE_H
#define MU_STACKS_PLACE_H

#include <stdbool.h>

#include "core/span.h"

/**
 * Whether the file of a frame belongs to the standard library, to an installed package, to the
 * interpreter itself (a frozen module) or to native code. All else is the user's, also code that
 * has no file ("<string>", "<stdin>").
 */
bool mu_place_is_library(struct mu_span file);

/** The last part of a path: "train.py" of "/job/train.py". */
struct mu_span mu_place_base(struct mu_span file);

#endif
