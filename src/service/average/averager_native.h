/*
 * What the parts of an averager on the native wire share; proto/average/native.h has the machine.
 *
 *     averager_native.c  a round: what the machine says is done, and how the step ends
 *     averager_link.c    streams and links: one between each two members
 *     averager_values.c  arithmetic, on other threads: encoding, sums, the digest, placing
 *
 * A round outlives its step. Whoever has the result stays until all others have it, or until the
 * time of the round is over; meanwhile the next step may begin. Its life:
 *
 *     encoding ──▶ running ──END──▶ the step ends ──RELEASE──▶ leaving ──▶ gone
 *
 * Nothing is freed while a job of the round is on another thread.
 */
#ifndef MU_AVERAGER_NATIVE_H
#define MU_AVERAGER_NATIVE_H

#include "proto/average/native.h"
#include "proto/average/native_schema.h"
#include "service/average/averager_internal.h"

#define MU_AVERAGER_BLOCK       128 /* values with one scale, in the encodings of a byte */
#define MU_AVERAGER_CONTROL_MAX 512 /* messages that wait for a member; then its link ends */
#define MU_AVERAGER_LINGER_MAX  2   /* rounds that wait for others; then the oldest ends */

/* A stream between two members, of ours or of theirs. */
struct mu_averager_stream {
    struct mu_list link; /* averager->strangers, until it belongs to a round */
    struct mu_averager *averager;
    struct mu_peer_items items;
    struct mu_timer timer;       /* theirs: for its HELLO */
    struct mu_averager_link *of; /* NULL: it is not known whose it is */
    bool greeted;                /* its HELLO has come */
    bool ours;                   /* we dialled */
    bool waiting;                /* for our group to be known */
    struct mu_native_hello hello;
};

/* What waits to be sent. Values are looked up when they go: until then they may be forgotten. */
struct mu_averager_frame {
    struct mu_list link;
    enum mu_native_type type;
    uint32_t part, sum;    /* PART, AVERAGE */
    struct mu_buf message; /* others */
};

/* The link to another member, for one round. */
struct mu_averager_link {
    struct mu_averager_native *round;
    uint32_t member;
    struct mu_averager_stream *stream; /* NULL: it is not there yet, or over */
    bool over;
    bool left;            /* it has ended the link, as who is done does */
    bool ending;          /* all was sent, and our end as well */
    struct mu_list queue; /* struct mu_averager_frame */
    uint32_t queued;
    mu_mono_t heard, said;
    size_t partial; /* of an item, when we looked last */
    struct mu_errmsg why;
};

/* An average of a part, encoded. */
struct mu_averager_average {
    struct mu_list link; /* round->trash */
    uint32_t sum;
    size_t len;
    _Alignas(8) uint8_t bytes[];
};

enum mu_averager_job_kind {
    MU_AVERAGER_ENCODE = 1, /* our own values */
    MU_AVERAGER_SUM,
    MU_AVERAGER_HASH,
    MU_AVERAGER_PLACE,
};

/* Arithmetic on another thread. Jobs end in the order in which they began. */
struct mu_averager_job {
    struct mu_work work;
    struct mu_list link; /* round->jobs */
    struct mu_averager_native *round;
    enum mu_averager_job_kind kind;
    bool done, good;
    uint32_t part, sum;
    struct mu_native_set set;
    float *sums, *scratch;
    struct mu_averager_average *average;   /* SUM: its result */
    struct mu_averager_average **averages; /* HASH, PLACE: all of them */
    uint8_t digest[MU_NATIVE_DIGEST_LEN];
};

/* One round. */
struct mu_averager_native {
    struct mu_list link; /* averager->lingering, after its step */
    struct mu_averager *averager;
    struct mu_avg_division division;
    struct mu_native machine;
    struct mu_native_hello hello;
    struct mu_peer_id *peers;
    uint64_t clients;
    double weight;
    uint32_t *got;
    struct mu_averager_link *links;        /* one for each member; ours is not used */
    uint8_t **own;                         /* of each part: our encoded values; NULL: as they lie */
    uint8_t **kept[MU_NATIVE_MEMBERS_MAX]; /* of each shard: encoded values, by part and member */
    struct mu_averager_average **averages; /* of each part */
    uint32_t averaged;                     /* so many of them are here */
    struct mu_list jobs, trash;
    struct mu_timer timer;
    mu_mono_t begun, beat_at, leave_until;
    uint64_t bytes_sent, bytes_received;
    bool running, canceled;
    bool place_due, placing, placed;
    bool ended;   /* the machine has a result */
    bool told;    /* the step has ended */
    bool leaving; /* links end */
    int status;   /* of what failed here */
};

/* --- averager_native.c ------------------------------------------------------------------------ */

/** Begins the round of the group that the matchmaker found. */
int mu_averager_native_begin(struct mu_averager *a, struct mu_errmsg *msg);
/** Carries out what the machines of all rounds say. */
void mu_averager_native_pump(struct mu_averager *a);
void mu_averager_native_cancel(struct mu_averager *a);
/** Ends all rounds at once. They are gone when their jobs have ended, and then we pump. */
void mu_averager_native_cut(struct mu_averager *a);
/** A job has ended: gives its result to the machine. */
void mu_averager_native_done(struct mu_averager_job *job);
/** A message of another member. */
void mu_averager_native_take(struct mu_averager_link *l, struct mu_span message);

/* --- averager_link.c -------------------------------------------------------------------------- */

/** Somebody calls us. */
struct mu_peer_items *mu_averager_on_link(struct mu_peer_items_handler *h,
                                          const struct mu_peer_id *peer);
/** The search is over, or a round runs: streams that waited for it go on. */
void mu_averager_sort_streams(struct mu_averager *a);
/** Calls the members that are ours to call. */
void mu_averager_links_open(struct mu_averager_native *r);
/** Queues a message, and sends what it can. */
void mu_averager_link_say(struct mu_averager_link *l, const struct mu_native_msg *msg);
/** Queues our part, or an average. */
void mu_averager_link_give(struct mu_averager_link *l, enum mu_native_type type, uint32_t part,
                           uint32_t sum);
void mu_averager_link_flush(struct mu_averager_link *l);
/** The link is over; the machine is told unless it knows. */
void mu_averager_link_sever(struct mu_averager_link *l, const char *why);
/** Ends the link when all was sent. */
void mu_averager_link_leave(struct mu_averager_link *l);
/** Says that we live, and notices who does not. */
void mu_averager_links_beat(struct mu_averager_native *r);
void mu_averager_stream_free(struct mu_averager_stream *s);

/* --- averager_values.c ------------------------------------------------------------------------ */

/** Bytes of a part, encoded. */
size_t mu_averager_encoded_len(const struct mu_averager_native *r, uint32_t part);
/** Our own encoded values of a part. */
struct mu_span mu_averager_encoded(const struct mu_averager_native *r, uint32_t part);
/** Whether the values of a part are as many as they should be, and all finite. */
bool mu_averager_values_good(const struct mu_averager_native *r, uint32_t part,
                             struct mu_span values);
/** Copies an average. NULL: there is no memory. */
struct mu_averager_average *mu_averager_average_new(uint32_t sum, size_t len);
/** Frees an average, when no job can use it. */
void mu_averager_average_free(struct mu_averager_native *r, struct mu_averager_average *average);
/** Whether our values must be encoded before a round; makes room for that. MUSTER_ENOMEM. */
int mu_averager_own_new(struct mu_averager_native *r, bool *ret_encode);
/** Begins a job. For SUM `e` says what. MUSTER_ENOMEM. */
int mu_averager_job_begin(struct mu_averager_native *r, enum mu_averager_job_kind kind,
                          const struct mu_native_event *e);

#endif
