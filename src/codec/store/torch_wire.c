#include "codec/store/torch_wire.h"

const struct mu_torch_shape mu_torch_shapes[MU_TORCH_OP_COUNT] = {
#define MU_TORCH_OP_SHAPE(name, gen2, gen1, list, parts, tail)                                     \
    [gen2] = {#name, gen1, list, parts, tail},
    MU_TORCH_OP_MAP(MU_TORCH_OP_SHAPE)
#undef MU_TORCH_OP_SHAPE
};

const uint8_t mu_torch_ops_1[MU_TORCH_OPCODE_MAX_1 + 1] = {
    MU_TORCH_SET,         MU_TORCH_COMPARE_SET, MU_TORCH_GET,        MU_TORCH_ADD,
    MU_TORCH_CHECK,       MU_TORCH_WAIT,        MU_TORCH_GETNUMKEYS, MU_TORCH_WATCH_KEY,
    MU_TORCH_DELETE_KEY,  MU_TORCH_APPEND,      MU_TORCH_MULTI_GET,  MU_TORCH_MULTI_SET,
    MU_TORCH_CANCEL_WAIT,
};
