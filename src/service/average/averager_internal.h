/*
 * What the parts of an averager share.
 *
 *     averager.c         its life, its steps and their results
 *     averager_search.c   drives the matchmaker: the bucket, our call to a leader, calls to us
 *     averager_reduce.c  drives the all-reduce: our calls to the owners of parts, sums
 *     averager_serve.c   calls of other members with parts for us, and our answers
 *     averager_power.c   what is averaged instead of gradients with PowerSGD
 *
 * The last three are for hivemind's wire; averager_native.h has those of the native one.
 */
#ifndef MU_AVERAGER_INTERNAL_H
#define MU_AVERAGER_INTERNAL_H

#include "core/alloc.h"
#include "proto/average/group.h"
#include "service/average/averager.h"

/* Our call to a peer that may lead. */
struct mu_averager_ask {
    struct mu_averager *averager;
    struct mu_peer_items items;
    uint64_t number;
    bool active;
};

/*
 * Calls of others end in one order: the caller ends its requests, then we end the stream. libp2p's
 * own daemon closes the whole pipe to its client when a stream ends, so a client that is still
 * writing would lose what it has not read yet.
 */

/* A peer that asks to join us. */
struct mu_averager_joiner {
    struct mu_list link;
    struct mu_averager *averager;
    struct mu_peer_items items;
    struct mu_timer timer; /* for its request, and then for its end */
    uint64_t number;       /* 0: it has not asked yet */
    bool answered;         /* with the last reply */
    bool requests_ended;
};

/* Values of a part of one member, until they are answered. */
struct mu_averager_values {
    struct mu_buf bytes; /* decoded */
    enum mu_dtype dtype;
    enum mu_hm_compression compression;
    uint64_t elements;
};

struct mu_averager_answer {
    struct mu_list link;
    struct mu_buf message;
};

/* A peer that sends us parts. */
struct mu_averager_sender {
    struct mu_list link;
    struct mu_averager *averager;
    struct mu_peer_items items;
    struct mu_timer timer; /* for its first message; for it to read, when it is not in a round */
    struct mu_buf first;   /* its first message, while we look for our group */
    bool begun;            /* its first message was judged, or waits */
    bool in_round;
    uint32_t member; /* in the round */
    bool held;       /* a message waits for the window */
    bool good;       /* of what is held, */
    struct mu_avg_data data;
    struct mu_averager_values decoded; /* the values of the message at hand */
    struct mu_averager_values *values; /* a ring of `window` */
    uint32_t window;
    struct mu_list answers; /* struct mu_averager_answer, the oldest first */
    bool withheld;          /* a client that has not sent everything reads nothing */
    bool finishing;         /* after these answers the call ends */
    bool ended;             /* nothing is sent any more */
    bool requests_ended;
};

/* Our call to the owner of parts. When all results have come it is left to end by itself: hivemind
 * takes a call that is reset for a failure of its own, and gives up its round. */
struct mu_averager_out {
    struct mu_list link;   /* averager->outs, when the round is over */
    struct mu_timer timer; /* for its end then */
    bool over;
    struct mu_averager *averager;
    uint32_t member;
    struct mu_peer_items items;
    bool active;
    struct mu_buf message; /* waits for room */
    bool waiting;
    bool last;
    struct mu_errmsg why;
};

/* What an all-reduce averages. */
struct mu_averager_vector {
    const struct mu_avg_tensor *tensors;
    size_t count;
    uint8_t *const *data;
};

/* PowerSGD averages two vectors, one after the other. */
enum {
    MU_AVERAGER_WHOLE = 0, /* without it: the tensors themselves */
    MU_AVERAGER_PHASE_P,
    MU_AVERAGER_PHASE_Q,
};

/* One all-reduce. */
struct mu_averager_round {
    unsigned phase;
    struct mu_averager_vector vector;
    uint8_t group_id[MU_AVG_GROUP_ID_MAX]; /* with the phase's suffix */
    size_t group_id_len;
    struct mu_avg_division division;
    struct mu_reduce reduce;
    struct mu_averager_out **outs; /* for each member; NULL: not called */
    float **sums;                  /* a ring of `window` */
    uint32_t *sum_parts;           /* which part each is of; UINT32_MAX: none */
    uint64_t part_elements_max;
    uint32_t window;
    uint32_t parts_done;
    struct mu_buf scratch; /* values of a delta */
};

struct mu_averager_power; /* averager_power.c */

struct mu_averager {
    struct mu_averager_config config;
    struct mu_env *env;
    struct mu_peer_id self;
    char *join_name;
    char *part_name;
    char prefix[MU_AVG_KEY_MAX + 1];
    char key[MU_AVG_KEY_MAX + 1];
    char bits[MU_AVG_BITS_MAX + 1];
    uint8_t schema[MU_AVG_SCHEMA_LEN];
    struct mu_avg_tensor *tensors; /* as they are cut */
    size_t tensor_count;
    uint64_t values; /* of all tensors */
    struct mu_peer_items_handler join_handler, part_handler;
    bool serving;
    struct mu_timer timer;
    bool pumping, again;
    bool stopping;
    mu_mono_t linger_until;

    /* The bucket. */
    struct mu_dht_wish store_wish, fetch_wish;
    bool storing, fetching;
    uint64_t fetch_number;
    bool to_store, store_value;
    double store_expiration;
    char store_key[MU_AVG_KEY_MAX + 1];
    char fetch_key[MU_AVG_KEY_MAX + 1]; /* of the read under way */

    /* Calls of others. */
    struct mu_list joiners;
    struct mu_list senders;
    struct mu_list outs; /* calls of ours that outlive their round */
    uint32_t streams;
    uint64_t numbers;

    struct mu_averager_power *power; /* NULL: without PowerSGD */

    /* On the native wire. */
    uint8_t native_schema[32]; /* what members have in common */
    uint32_t *filled;          /* which tensors have values: those that are cut */
    uint64_t *residual_at;     /* of each of them */
    float *residuals;          /* of all values, in the encodings of a byte */
    struct mu_list strangers;  /* struct mu_averager_stream */
    struct mu_list lingering;  /* rounds that others may still need */

    /* The step. */
    struct mu_averager_step *step; /* NULL: none */
    mu_mono_t begun, until;
    struct mu_matchmaker *match; /* while it looks for a group */
    struct mu_averager_ask asking;
    struct mu_averager_round *round;
    mu_mono_t reducing; /* since when, in all phases */
    struct mu_averager_native *native;
    struct mu_peer_id refused;
    enum mu_avg_code refusal;
    char refused_why[MU_AVERAGER_WHY];
    uint32_t candidates; /* in the bucket, when the search ended */
    /* Its end, which is told when all is done. */
    bool finished;
    struct mu_averager_result result;
    struct mu_errmsg text;
    struct mu_averager_member *members;
    struct mu_errmsg *whys; /* of members */
    struct mu_buf told;     /* what members told each other */
    char result_key[MU_AVG_KEY_MAX + 1];
};

/* --- averager.c ------------------------------------------------------------------------------- */

/** After any input: carries out what the machines say, and arms the timer. The averager's step may
 * have ended inside of it, and its owner may have stopped it. */
void mu_averager_pump(struct mu_averager *a);
/** The step ends with this, when the pump is done. */
void mu_averager_finish(struct mu_averager *a, int status, const char *text);
/** Counts a stream of that peer. False: it has too many, or all have. */
bool mu_averager_may_open(const struct mu_averager *a, const struct mu_peer_id *peer);

/* --- averager_search.c ------------------------------------------------------------------------ */

int mu_averager_match_begin(struct mu_averager *a, struct mu_span user, uint64_t timeout_ms,
                            struct mu_errmsg *msg);
void mu_averager_match_pump(struct mu_averager *a);
void mu_averager_match_free(struct mu_averager *a);
struct mu_peer_items *mu_averager_on_join(struct mu_peer_items_handler *h,
                                          const struct mu_peer_id *peer);
void mu_averager_joiner_free(struct mu_averager_joiner *j);

/* --- averager_reduce.c ------------------------------------------------------------------------ */

/** Takes over what the matchmaker found: the members, our next bucket, and who owns which part. */
int mu_averager_take_group(struct mu_averager *a, struct mu_avg_division *ret,
                           struct mu_errmsg *msg);
/** Begins the all-reduce of the group that the matchmaker found. */
int mu_averager_round_begin(struct mu_averager *a, struct mu_errmsg *msg);
void mu_averager_round_pump(struct mu_averager *a);
void mu_averager_round_free(struct mu_averager *a);
void mu_averager_out_free(struct mu_averager_out *o);
/** The sum of one of our parts. */
float *mu_averager_sum(struct mu_averager_round *r, uint32_t part);
/** Our own values of a part, on the native wire. */
uint8_t *mu_averager_own(const struct mu_averager *a, const struct mu_avg_part *part);
/** Whether the parts of that group are for a phase that has not begun. */
bool mu_averager_is_next(const struct mu_averager *a, struct mu_span group_id);

/* --- averager_power.c ------------------------------------------------------------------------- */

/** Prepares what is kept from step to step. MUSTER_EINVAL (the rank, the ratio, or nothing to
 * compress), MUSTER_ENOMEM. */
int mu_averager_power_new(struct mu_averager *a, struct mu_errmsg *msg);
void mu_averager_power_free(struct mu_averager *a);
/** What is averaged in the first phase: takes the gradients. MUSTER_ENOMEM. */
int mu_averager_power_begin(struct mu_averager *a, struct mu_averager_vector *ret);
/** The first phase has ended: what is averaged in the second. MUSTER_EINVAL: it is not finite. */
int mu_averager_power_turn(struct mu_averager *a, struct mu_averager_vector *ret);
/** The second has: puts the averages into the gradients. MUSTER_EINVAL: they are not finite, and
 * those that were compressed are as before. */
int mu_averager_power_put(struct mu_averager *a);
/** The step is over: what was not put is dropped. */
void mu_averager_power_end(struct mu_averager *a);

/* --- averager_serve.c ------------------------------------------------------------------------- */

struct mu_peer_items *mu_averager_on_part(struct mu_peer_items_handler *h,
                                          const struct mu_peer_id *peer);
/** The search is over: calls that waited for it go on. */
void mu_averager_sort_senders(struct mu_averager *a);
struct mu_averager_sender *mu_averager_sender_of(struct mu_averager *a, uint32_t member);
/** The window has moved: takes the message that was held. */
void mu_averager_sender_read(struct mu_averager_sender *s);
/** Ends its call with a code. Whoever had paused it resumes it; what comes is not looked at. */
void mu_averager_sender_refuse(struct mu_averager_sender *s, enum mu_avg_code code);
/** Answers it: the encoded message is taken over. */
int mu_averager_sender_answer(struct mu_averager_sender *s, struct mu_buf *message);
/** Sends what it may. */
void mu_averager_sender_flush(struct mu_averager_sender *s);
/** The round is over for it. */
void mu_averager_sender_leave(struct mu_averager_sender *s);
void mu_averager_sender_free(struct mu_averager_sender *s);

/* Room that was reserved; a part may be empty, and then there is none. */
static inline uint8_t *mu_averager_room(struct mu_buf *b, size_t len)
{
    return len == 0 ? NULL : mu_buf_grow(b, len);
}

#endif
