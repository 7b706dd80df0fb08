/*
 * A member of a round of averaging in the native mode, with real arithmetic on a small vector and
 * without a network: the driver that proto/average/native.h wants, as short as it can be. The
 * scenario of native.c carries its messages over the simulator's connections;
 * tests/sim/test_native.c delivers them in every order.
 *
 * The truth is what an observer sees of all members: whoever ends with success must hold the same
 * bits as the others, which must be those that a model computes for exactly the members that the
 * result names.
 */
#ifndef MU_SIM_NATIVE_NODE_H
#define MU_SIM_NATIVE_NODE_H

#include "codec/average/quant.h"
#include "proto/average/native.h"

#define NAT_NODES_MAX 7
#define NAT_PARTS_MAX (2 * NAT_NODES_MAX)
#define NAT_VALUES    5
#define NAT_BYTES_MAX (NAT_VALUES * 4)
#define NAT_FRAME_MAX 160

/* Bugs that can be planted, each in what a driver does or in what passes between it and the
 * machine. */
enum nat_bug {
    NAT_BUG_NONE = 0,
    NAT_BUG_SUM_ALL,  /* an owner sums all that it has, not those that were proposed */
    NAT_BUG_RAW_OWN,  /* an owner takes its own values as they are, not as they are encoded */
    NAT_BUG_FEEDBACK, /* an owner has error feedback on its averages */
    NAT_BUG_RELABEL,  /* an average is taken whatever sum it is of */
    NAT_BUG_REGIVE,   /* what is given a second time is not what it was */
    NAT_BUG_FORGET,   /* a promise is forgotten once it is given */
    NAT_BUG_HIDE,     /* a promise does not say what was accepted */
    NAT_BUG_MINORITY, /* members that were never heard of count as having accepted */
    NAT_BUG_EARLY,    /* averages are placed when they are accepted */
    NAT_BUG_BOAST,    /* an owner says that it has everything of everybody */
    NAT_BUG_LEAVE,    /* who has its result leaves at once */
    NAT_BUG_DEAF,     /* nobody is sent the averages that it asks for */
    NAT_BUGS,
};

extern const char *const nat_bug_names[NAT_BUGS];

struct nat_frame {
    uint16_t len;
    uint8_t bytes[NAT_FRAME_MAX];
};

struct nat_truth {
    bool any;
    struct mu_native_set set;
    uint8_t digest[MU_NATIVE_DIGEST_LEN];
    uint32_t successes, failures;
};

/* What all members of a round share. */
struct nat_round {
    uint32_t count;
    uint64_t clients;
    uint32_t codec; /* 0: float32 */
    uint64_t salt;  /* of the values */
    double weights[NAT_NODES_MAX];
    struct mu_avg_division division;
    struct mu_avg_part parts[NAT_PARTS_MAX];
    struct mu_native_config times;
};

struct nat_node {
    uint32_t id;
    const struct nat_round *round;
    struct mu_native m;
    uint32_t got[NAT_NODES_MAX * NAT_NODES_MAX];
    uint8_t parts[NAT_PARTS_MAX][NAT_NODES_MAX][NAT_BYTES_MAX]; /* encoded, of each member */
    uint8_t averages[NAT_PARTS_MAX][NAT_BYTES_MAX];             /* encoded, */
    uint32_t average_of[NAT_PARTS_MAX];                         /* of that sum */
    float values[NAT_PARTS_MAX][NAT_VALUES];                    /* ours, or the result */
    float feedback[NAT_VALUES];
    bool ended, released, placed;
    int status;
    enum nat_bug bug;
    struct nat_truth *truth;
    void (*send)(void *context, uint32_t from, uint32_t to, const struct nat_frame *frame);
    void (*failed)(void *context, const char *what);
    void *context;
};

/** Cuts a vector so that each member that can has one or two parts. */
void nat_round_init(struct nat_round *r, uint32_t count, uint64_t clients, uint32_t parts,
                    uint32_t codec, uint64_t salt);
/** Begins. The callbacks and the rest are set by then. */
void nat_node_start(struct nat_node *n, struct mu_now now, uint32_t id,
                    const struct nat_round *round);
void nat_node_receive(struct nat_node *n, struct mu_now now, uint32_t from, struct mu_span frame);
void nat_node_lost(struct nat_node *n, struct mu_now now, uint32_t member);
void nat_node_tick(struct nat_node *n, struct mu_now now);
/** Ends the round of that member by hand. */
void nat_node_cancel(struct nat_node *n, struct mu_now now);

#endif
