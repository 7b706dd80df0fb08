/*
 * The load generator's parts. One program asks every peer the same questions with the same care:
 * PyTorch's store in both generations of its protocol, and Redis. It shares no code with muster, so
 * that an error in muster's own codec cannot hide here.
 *
 * Requests and the replies they must get are written out once, before the clock starts; a run then
 * sends slices of the one and compares what comes back with slices of the other. A wrong byte, an
 * early close or a silence of ten seconds ends the program with exit code 1 and a sentence.
 */
#ifndef LG_H
#define LG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdnoreturn.h>

enum lg_proto { LG_TORCH1 = 1, LG_TORCH2, LG_RESP };

enum lg_op { LG_GET = 1, LG_SET, LG_ADD, LG_CAS };

enum lg_attack {
    LG_DRIBBLE = 1, /* one byte at a time, for ever in the middle of a request */
    LG_LENGTHS,     /* lengths and counts up to 2^64-1 */
    LG_NOREAD,      /* asks for big values and never reads */
    LG_WAITS,       /* a flood of waits for keys that never come */
    LG_MIXED,       /* all of them at once */
};

struct lg_options {
    const char *name; /* goes before each figure's name, with a dot; may be empty */
    enum lg_proto proto;
    enum lg_op op;
    enum lg_attack attack;
    const char *host;
    uint16_t port;
    size_t conns;
    size_t depth;
    size_t size;
    size_t idle;
    size_t keys;
    size_t rounds;
    size_t rate; /* hostile: turns a second */
    double seconds;
    double warmup_seconds;
    int cpu;        /* -1: anywhere */
    int server_cpu; /* floor: where its sender runs */
    bool spin;      /* never sleep in epoll */
    bool bare;      /* the server knows the script and nothing else */
};

/* --- small things --------------------------------------------------------------------------- */

struct lg_bytes {
    uint8_t *data;
    size_t len;
    size_t cap;
};

/** Says the sentence on standard error and exits with 1. */
noreturn void lg_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/** Zeroed memory or no return. */
void *lg_alloc(size_t count, size_t size);
void lg_append(struct lg_bytes *bytes, const void *data, size_t len);
void lg_append_u64(struct lg_bytes *bytes, uint64_t value);
/** `len`, then the bytes: PyTorch's string. */
void lg_append_str(struct lg_bytes *bytes, const void *data, size_t len);
void lg_bytes_free(struct lg_bytes *bytes);
uint64_t lg_now_ns(void);
void lg_pin(int cpu);
/** Prints one `name value unit` line. */
void lg_print(const struct lg_options *options, const char *name, double value, const char *unit);
/** Raises the limit of open descriptors as far as it goes; dies if `wanted` do not fit. */
void lg_want_descriptors(size_t wanted);

/* --- sockets (lg_net.c) --------------------------------------------------------------------- */

/** A connected TCP socket without delay, blocking. For LG_TORCH2 it has shaken hands. */
int lg_connect(const struct lg_options *options, enum lg_proto proto);
void lg_set_nonblocking(int fd);
/** A listener on a free port of the loopback. */
int lg_listen(uint16_t *ret_port);
void lg_send_all(int fd, const void *data, size_t len);
/** Receives exactly `len` bytes within ten seconds. */
void lg_recv_all(int fd, void *data, size_t len);
/** Sends a request and compares its whole reply. */
void lg_exchange(int fd, const void *request, size_t request_len, const void *reply,
                 size_t reply_len);
/**
 * `count` connections, each of which has had one answer, so that the server surely knows it. The
 * caller closes and frees.
 */
int *lg_connect_many(const struct lg_options *options, size_t count);

/* --- requests (lg_wire.c) ------------------------------------------------------------------- */

/*
 * `count` requests, all of one length, and the replies they get, one after another. For LG_ADD the
 * reply is a number that grows, so `replies` is empty and lg_script_sum() says what comes.
 */
struct lg_script {
    struct lg_bytes requests;
    struct lg_bytes replies;
    size_t count;
    size_t request_len;
    size_t reply_len;
};

/**
 * The script of one connection. get and set walk over `options->keys` shared keys; add and cas have
 * a key of their own, named by `nonce` and `index`.
 */
void lg_script_init(struct lg_script *script, const struct lg_options *options, enum lg_op op,
                    uint64_t nonce, size_t index);
void lg_script_fini(struct lg_script *script);
/** Where in the script the connection of this index begins: each at another key. */
size_t lg_script_first(const struct lg_script *script, size_t index);
/** Asks for everything in the script once over `fd`, one by one. */
void lg_script_run(const struct lg_script *script, int fd);
/** What must be there before a cas script runs. */
void lg_script_prepare(const struct lg_script *script, const struct lg_options *options, int fd,
                       uint64_t nonce, size_t index);
/** The reply to the `n`th add of 1, counted from 1. Returns its length, at most 32. */
size_t lg_sum_reply(enum lg_proto proto, uint64_t n, uint8_t *ret_reply);
/** The cheapest question and its answer; returns the length of the question. */
size_t lg_probe(enum lg_proto proto, uint8_t ret_request[16], uint8_t ret_reply[16],
                size_t *ret_reply_len);
/** PyTorch's number for an operation that generation 1 numbers `op1`. */
uint8_t lg_torch_op(enum lg_proto proto, uint8_t op1);

#define LG_OP1_SET    0
#define LG_OP1_CAS    1
#define LG_OP1_GET    2
#define LG_OP1_ADD    3
#define LG_OP1_CHECK  4
#define LG_OP1_WAIT   5
#define LG_OP1_CANCEL 12

/* --- times (lg_hist.c) ---------------------------------------------------------------------- */

#define LG_HIST_BUCKETS 4096

/* A histogram of durations, exact to 1.6 %. */
struct lg_hist {
    uint64_t counts[LG_HIST_BUCKETS];
    uint64_t total;
};

void lg_hist_add(struct lg_hist *hist, uint64_t ns, uint64_t times);
/** The smallest bucket below which `share` of all durations lie, in ns. */
double lg_hist_at(const struct lg_hist *hist, double share);

/* --- what it can do ------------------------------------------------------------------------- */

/** Requests as fast as they are answered, `depth` in flight on each connection. */
int lg_run_load(const struct lg_options *options);
/** The same load on a server that only moves the bytes. */
int lg_run_bare(const struct lg_options *options);
/** From a set to the last of `conns` waiters woken. */
int lg_run_waiters(const struct lg_options *options);
/** The same reader under a bare loop of sends. */
int lg_run_floor(const struct lg_options *options);
/** Holds idle connections until standard input ends. */
int lg_run_connect(const struct lg_options *options);
/** Attacks until the time is over. */
int lg_run_hostile(const struct lg_options *options);

#endif
