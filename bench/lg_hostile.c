#include "lg.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/*
 * What a hostile client may do to a server while an honest one is measured beside it. The rate is
 * bounded (a turn of each connection, `rate` times a second), so that what the honest client feels
 * is the server's doing and not a fight for the core that both clients run on.
 */
#define BIG_VALUE_BYTES ((size_t)1024 * 1024)
#define GETS_PER_TURN   64
#define WAIT_KEYS       256

struct attacker {
    enum lg_attack attack;
    int fd; /* -1: not connected */
    struct lg_bytes request;
    size_t sent;
    uint64_t turns;
};

struct tally {
    uint64_t connections;
    uint64_t closed; /* by the server */
    uint64_t bytes;
};

static void append_op(struct lg_bytes *bytes, uint8_t op1)
{
    lg_append(bytes, &op1, 1);
}

/* Whole requests, again and again; the server sees them one byte at a time. */
static void make_dribble(struct lg_bytes *bytes)
{
    static const uint8_t value[64];
    append_op(bytes, LG_OP1_SET);
    lg_append_str(bytes, "/hostile/dribble", 16);
    lg_append_str(bytes, value, sizeof value);
    append_op(bytes, LG_OP1_WAIT);
    lg_append_u64(bytes, 1);
    lg_append_str(bytes, "/hostile/dribble", 16);
}

static void make_lengths(struct lg_bytes *bytes, uint64_t turn)
{
    static const uint64_t lengths[] = {UINT64_MAX, UINT64_MAX - 7,   UINT64_MAX / 2,
                                       1ull << 63, 1ull << 62,       1ull << 48,
                                       1ull << 32, (1ull << 32) - 1, UINT64_MAX - 0xffff};
    static const uint8_t ops[] = {
        LG_OP1_SET, LG_OP1_CAS, LG_OP1_GET, LG_OP1_ADD, LG_OP1_CHECK, LG_OP1_WAIT, 7, 8, 9, 10, 11};
    uint64_t length = lengths[turn % (sizeof lengths / sizeof *lengths)];
    uint8_t op = ops[turn / 3 % sizeof ops];
    append_op(bytes, op);
    if (op == LG_OP1_SET && turn % 2 == 1) {
        lg_append_str(bytes, "/hostile/lengths", 16);
    }
    lg_append_u64(bytes, length);
    lg_append_u64(bytes, length);
    lg_append_u64(bytes, length);
}

static void make_big_value(struct lg_bytes *bytes)
{
    uint8_t *value = lg_alloc(BIG_VALUE_BYTES, 1);
    append_op(bytes, LG_OP1_SET);
    lg_append_str(bytes, "/hostile/big", 12);
    lg_append_str(bytes, value, BIG_VALUE_BYTES);
    free(value);
}

static void make_gets(struct lg_bytes *bytes)
{
    for (int i = 0; i < GETS_PER_TURN; i++) {
        append_op(bytes, LG_OP1_GET);
        lg_append_str(bytes, "/hostile/big", 12);
    }
}

static void make_waits(struct lg_bytes *bytes, uint64_t turn)
{
    append_op(bytes, LG_OP1_WAIT);
    lg_append_u64(bytes, WAIT_KEYS);
    for (uint64_t i = 0; i < WAIT_KEYS; i++) {
        uint64_t key[2] = {turn, i};
        lg_append_str(bytes, key, sizeof key);
    }
}

static void make_request(struct attacker *attacker)
{
    attacker->request.len = 0;
    attacker->sent = 0;
    switch (attacker->attack) {
    case LG_DRIBBLE:
        make_dribble(&attacker->request);
        break;
    case LG_LENGTHS:
        make_lengths(&attacker->request, attacker->turns);
        break;
    case LG_NOREAD:
        if (attacker->turns == 0) {
            make_big_value(&attacker->request);
        } else {
            make_gets(&attacker->request);
        }
        break;
    case LG_WAITS:
        make_waits(&attacker->request, attacker->turns);
        break;
    case LG_MIXED:
        break;
    }
    attacker->turns++;
}

static void hang_up(struct attacker *attacker, struct tally *tally, bool by_server)
{
    (void)close(attacker->fd);
    attacker->fd = -1;
    attacker->sent = attacker->request.len;
    tally->closed += by_server;
}

/* Whether the server closed. What it answered is read away, except by the one who never reads. */
static bool is_closed(const struct attacker *attacker)
{
    uint8_t scratch[4096];
    ssize_t got;
    if (attacker->attack == LG_NOREAD) {
        got = recv(attacker->fd, scratch, 1, MSG_PEEK | MSG_DONTWAIT);
        return got == 0 || (got < 0 && errno != EAGAIN);
    }
    do {
        got = recv(attacker->fd, scratch, sizeof scratch, MSG_DONTWAIT);
    } while (got > 0);
    return got == 0 || errno != EAGAIN;
}

static void take_turn(struct attacker *attacker, const struct lg_options *options,
                      struct tally *tally)
{
    if (attacker->fd < 0) {
        int small = 4096;
        attacker->fd = lg_connect(options, LG_TORCH1);
        (void)setsockopt(attacker->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        lg_set_nonblocking(attacker->fd);
        tally->connections++;
    } else if (is_closed(attacker)) {
        hang_up(attacker, tally, true);
        return;
    }
    if (attacker->sent == attacker->request.len) {
        /* A connection that sent a bad length and was not closed within a turn is given up. */
        if (attacker->attack == LG_LENGTHS && attacker->request.len > 0 && attacker->turns % 2) {
            hang_up(attacker, tally, false);
            attacker->turns++;
            return;
        }
        make_request(attacker);
    }
    size_t len = attacker->request.len - attacker->sent;
    len = attacker->attack == LG_DRIBBLE ? 1 : len;
    ssize_t sent = send(attacker->fd, attacker->request.data + attacker->sent, len, MSG_NOSIGNAL);
    if (sent > 0) {
        attacker->sent += (size_t)sent;
        tally->bytes += (uint64_t)sent;
    } else if (errno != EAGAIN && errno != EINTR) {
        hang_up(attacker, tally, true);
    }
}

static void sleep_until(uint64_t when_ns)
{
    struct timespec when = {.tv_sec = (time_t)(when_ns / 1000000000ull),
                            .tv_nsec = (long)(when_ns % 1000000000ull)};
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL);
}

int lg_run_hostile(const struct lg_options *options)
{
    static const enum lg_attack mix[] = {LG_DRIBBLE, LG_LENGTHS, LG_NOREAD, LG_WAITS};
    struct tally tally = {0};
    struct attacker *attackers = lg_alloc(options->conns, sizeof *attackers);
    lg_want_descriptors(options->conns + 16);
    for (size_t i = 0; i < options->conns; i++) {
        attackers[i].fd = -1;
        attackers[i].attack = options->attack == LG_MIXED ? mix[i % 4] : options->attack;
    }

    uint64_t start = lg_now_ns();
    uint64_t end = start + (uint64_t)(options->seconds * 1e9);
    uint64_t step = 1000000000ull / options->rate / options->conns;
    /* One connection after another, evenly spread, rather than all in one burst. */
    size_t next = 0;
    for (uint64_t when = start; when < end; when += step) {
        sleep_until(when);
        take_turn(&attackers[next], options, &tally);
        next = next + 1 < options->conns ? next + 1 : 0;
    }
    for (size_t i = 0; i < options->conns; i++) {
        if (attackers[i].fd >= 0) {
            (void)close(attackers[i].fd);
        }
        lg_bytes_free(&attackers[i].request);
    }
    free(attackers);
    lg_print(options, "connections", (double)tally.connections, "count");
    lg_print(options, "closed_by_server", (double)tally.closed, "count");
    lg_print(options, "sent", (double)tally.bytes, "bytes");
    return 0;
}
