/* What the battery's tests are made of: ends of connections that watch what they are told. */
#ifndef MU_TEST_ENV_BATTERY_PEER_H
#define MU_TEST_ENV_BATTERY_PEER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "battery.h"

/* The environment of the test that is running. */
extern struct env_under_test *battery_eut;
/* The first rule that was broken inside a callback, where a test cannot be left; or NULL. */
extern const char *battery_broken;
/* Whether a verb is being called: no callback may run then. */
extern int battery_in_verb;

/** Notes a broken rule. */
void battery_expect(bool held, const char *rule);
#define EXPECT(expr) battery_expect((expr), #expr)

#define VERB(call)                                                                                 \
    do {                                                                                           \
        battery_in_verb++;                                                                         \
        call;                                                                                      \
        battery_in_verb--;                                                                         \
    } while (0)

/** Runs until `done`, or fails the test. */
void battery_run_until(bool (*done)(void *context), void *context);
/** Runs until a flag is set. */
void battery_run_until_set(const bool *flag);
/** Runs until a count has been reached. */
void battery_run_until_count(const size_t *count, size_t at_least);
/** Lets that much of the environment's time pass. */
void battery_run_for_ms(uint64_t ms);

/* One end of a connection. It sends and expects the same endless pattern of bytes. */
struct peer {
    struct mu_conn conn;
    /* What it does. */
    size_t send_total; /* bytes of the pattern to send in all; echoes do not count */
    bool in_spans;     /* sends it in pieces of all lengths, many at a time */
    uint8_t *room;     /* where what comes is to lie, one `room_len` bytes behind the other, */
    size_t room_len;   /* or NULL */
    size_t use_max;    /* uses no more of each delivery; 0: all */
    bool echo;         /* sends back what it gets; at most sizeof(held) at a time */
    bool no_check;     /* what comes is not the pattern */
    bool close_on_eof;
    void (*on_open)(struct peer *p);
    void (*on_data)(struct peer *p);
    void (*on_eof)(struct peer *p);
    void (*on_writable)(struct peer *p);
    void (*on_closed)(struct peer *p);
    /* What happened. */
    size_t sent; /* taken by the environment */
    size_t short_takes;
    size_t writables;
    bool want_writable;
    size_t received;
    size_t deliveries;
    size_t last_delivery; /* bytes it offered */
    size_t in_room;       /* bytes that came where they were to lie */
    bool opened;
    bool eof;
    bool hung_up;
    bool closed;
    size_t closed_count;
    int status;
    /* What an echo could not send yet. */
    uint8_t held[4096];
    size_t held_len;
};

void peer_init(struct peer *p);
/** Sends as much of its pattern as is taken. */
void peer_push(struct peer *p);
void peer_close(struct peer *p, bool abort);
void peer_resume(struct peer *p);

/* A listener that hands out peers from an array. */
struct hub {
    struct mu_listener listener;
    struct mu_addr addr; /* where it listens */
    struct mu_addr dial; /* how to get there */
    struct peer *peers;
    size_t room;
    size_t accepted;
    bool closed;
};

/** Listens; the peers are set up by the test, and accepted ones beyond them are turned away. */
void hub_open(struct hub *h, struct peer *peers, size_t room);
void hub_close(struct hub *h);
void hub_dial(struct hub *h, struct peer *p);

/* A listener with one accepted connection and its dialler. */
struct pair {
    struct hub hub;
    struct peer a; /* dialled */
    struct peer b; /* accepted */
};

/** Fresh peers that are not connected yet, so that a test can set them up. */
void pair_init(struct pair *pair);
void pair_connect(struct pair *pair);
/** Closes whatever is still open and waits for the end of it. */
void pair_end(struct pair *pair);

/* The tests by subject; each list ends with a NULL test_func. */
extern const struct CMUnitTest battery_child_tests[];
extern const struct CMUnitTest battery_standby_tests[];
extern const struct CMUnitTest battery_conn_tests[];
extern const struct CMUnitTest battery_end_tests[];

#endif
