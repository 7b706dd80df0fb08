/*
 * The bytes of PyTorch's TCPStore protocol: opcodes, enums, request shapes, limits. Stateless.
 * docs/torch-wire.md describes the protocol.
 *
 * A request is its opcode, then (for a list) a u64 count, then parts, then perhaps a fixed tail. A
 * part is a u64 length and that many bytes: a key or a value. All integers are little-endian.
 */
#ifndef MU_TORCH_WIRE_H
#define MU_TORCH_WIRE_H

#include <stdbool.h>
#include <stdint.h>

/* What VALIDATE carries: the bytes CE F7 85 3C. */
#define MU_TORCH_MAGIC UINT32_C(0x3C85F7CE)
/* VALIDATE as a whole, which tells the generations apart. */
#define MU_TORCH_VALIDATE_LEN 5

/* The limits of PyTorch 2.x's default server. */
#define MU_TORCH_KEY_BYTES_MAX   8192u
#define MU_TORCH_VALUE_BYTES_MAX (8u * 1024 * 1024)
#define MU_TORCH_KEYS_MAX        131072u

/* The worker-count key, the only one that clients send without a leading '/'. */
#define MU_TORCH_WORKERS_KEY "init/"

#define MU_TORCH_NONE 0xff /* no opcode in that generation */

/*
 * X(name, generation 2 opcode, generation 1 opcode, list, parts, tail bytes)
 * `parts` are of the request, or of each item if it is a list; the first one is a key, the others
 * are values. Operations are numbered as generation 2 numbers them; WATCH_KEY, which generation 2
 * dropped, follows its last one.
 */
#define MU_TORCH_OP_MAP(X)                                                                         \
    X(VALIDATE, 0, MU_TORCH_NONE, false, 0, 4)                                                     \
    X(SET, 1, 0, false, 2, 0)                                                                      \
    X(COMPARE_SET, 2, 1, false, 3, 0)                                                              \
    X(GET, 3, 2, false, 1, 0)                                                                      \
    X(ADD, 4, 3, false, 1, 8)                                                                      \
    X(CHECK, 5, 4, true, 1, 0)                                                                     \
    X(WAIT, 6, 5, true, 1, 0)                                                                      \
    X(GETNUMKEYS, 7, 6, false, 0, 0)                                                               \
    X(DELETE_KEY, 8, 8, false, 1, 0)                                                               \
    X(APPEND, 9, 9, false, 2, 0)                                                                   \
    X(MULTI_GET, 10, 10, true, 1, 0)                                                               \
    X(MULTI_SET, 11, 11, true, 2, 0)                                                               \
    X(CANCEL_WAIT, 12, 12, false, 0, 0)                                                            \
    X(PING, 13, MU_TORCH_NONE, false, 0, 4)                                                        \
    X(QUEUE_PUSH, 14, MU_TORCH_NONE, false, 2, 0)                                                  \
    X(QUEUE_POP, 15, MU_TORCH_NONE, false, 1, 0)                                                   \
    X(QUEUE_LEN, 16, MU_TORCH_NONE, false, 1, 0)                                                   \
    X(LIST_KEYS, 17, MU_TORCH_NONE, false, 0, 0)                                                   \
    X(BARRIER, 18, MU_TORCH_NONE, false, 1, 8)                                                     \
    X(WATCH_KEY, 19, 7, false, 1, 0)

enum mu_torch_op {
#define MU_TORCH_OP_ENUM(name, gen2, gen1, list, parts, tail) MU_TORCH_##name = (gen2),
    MU_TORCH_OP_MAP(MU_TORCH_OP_ENUM)
#undef MU_TORCH_OP_ENUM
};
#define MU_TORCH_OP_COUNT 20
/* The highest opcode either generation can send. */
#define MU_TORCH_OPCODE_MAX 18
/* The highest opcode of generation 1. */
#define MU_TORCH_OPCODE_MAX_1 12

enum mu_torch_check_reply {
    MU_TORCH_READY = 0,
    MU_TORCH_NOT_READY = 1,
};

enum mu_torch_wait_reply {
    MU_TORCH_STOP_WAITING = 0,
    MU_TORCH_WAIT_CANCELED = 1,
};

enum mu_torch_watch_reply {
    MU_TORCH_KEY_UPDATED = 0,
    MU_TORCH_KEY_CREATED = 1,
    MU_TORCH_KEY_DELETED = 2,
    MU_TORCH_KEY_CALLBACK_REGISTERED = 3,
    MU_TORCH_KEY_APPENDED = 4,
};

struct mu_torch_shape {
    const char *name;
    uint8_t gen1; /* its opcode in generation 1, or MU_TORCH_NONE */
    bool list;
    uint8_t parts;
    uint8_t tail;
};

/** Indexed by enum mu_torch_op. */
extern const struct mu_torch_shape mu_torch_shapes[MU_TORCH_OP_COUNT];
/** From an opcode of generation 1, which is at most MU_TORCH_OPCODE_MAX_1, to the operation. */
extern const uint8_t mu_torch_ops_1[MU_TORCH_OPCODE_MAX_1 + 1];

/** Whether the next part is a key, with `left` parts still to come, including this one. */
static inline bool mu_torch_part_is_key(const struct mu_torch_shape *shape, uint64_t left)
{
    if (shape->list) {
        return shape->parts == 1 || (left & 1) == 0;
    }
    return left == shape->parts;
}

#endif
