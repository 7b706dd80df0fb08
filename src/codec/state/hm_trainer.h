/*
 * What hivemind's TrainingStateAverager can load. Its states are the parameters of an optimizer in
 * their order, extra tensors, and then the optimizer's own tensors; the metadata is a map:
 *
 *     {"epoch": 5, "optimizer_metadata": [{"type": "tensor", "index": 0},
 *                                         {"type": "value", "value": 0.9}, ...], ...}
 *
 * with one entry for each value of the optimizer's state_dict(), and the optimizer's tensors
 * counted from 0. A trainer that gets anything else downloads it again and again, for ever.
 */
#ifndef MU_HM_TRAINER_H
#define MU_HM_TRAINER_H

#include "codec/bin/tensor.h"
#include "core/err.h"
#include "core/span.h"

#define MU_HM_TRAINER "TrainingStateAverager"

/**
 * Whether such a trainer can load this; 0, and the epoch. Tensors that have the names of those that
 * were loaded from hivemind's peers (tensor.0, tensor.1) must be in that order. MUSTER_EINVAL, with
 * a text.
 */
int mu_hm_trainer_check(struct mu_span metadata, const struct mu_layout *layout,
                        uint64_t *ret_epoch, struct mu_errmsg *reterr_msg);

#endif
