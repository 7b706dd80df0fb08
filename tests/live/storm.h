/*
 * storm: says mutated conversations to a live server, thousands of them a second.
 *
 *     storm --seed N --seconds S --way KIND@ADDRESS... [--token FILE] [--cert FILE --key FILE]
 *           [--out FILE] [--slots N] [--from ADDRESS] CONVERSATIONS
 *     storm --replay FILE --way ...
 *
 * KIND is plain, token, certs (TLS with either credential) or noise (a libp2p peer's connection);
 * ADDRESS is HOST:PORT or the path of a unix socket. A case is one to three connections that each
 * say what a real client once said, changed here and there; it follows from the seed, its number
 * and the conversations alone. fuzz_live.py records the conversations and watches the server.
 *
 * The file of conversations, and of cases, has a line for each thing:
 *
 *     conv NAME                 a conversation begins
 *     send AFTER STREAM HEX     once AFTER bytes have come back; STREAM: of yamux, or - for none
 *     case NUMBER               a case begins; in it, for each connection:
 *     lane WAY ENDING PATIENT FAULT XOR   then its lines of `send`
 */
#ifndef STORM_H
#define STORM_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>

#define LANES_MAX 3 /* connections of one case */
#define WAYS_MAX  8
#define LANE_MAX  (256 << 10) /* bytes that one connection says */

/* What is said at once. */
struct step {
    uint32_t after; /* bytes that came before it was said */
    int stream;     /* of yamux, to be framed; -1: as it is */
    size_t len;
    uint8_t *data; /* ours */
};

struct conv {
    char name[64];
    struct step *steps;
    size_t count;
};

struct corpus {
    struct conv *convs;
    size_t count;
};

enum ending {
    END_CLOSE,
    END_SHUT, /* half-closes, and reads on */
    END_RESET,
    END_LEAVE, /* stays, and says nothing, for a while */
    END_COUNT,
};

struct lane {
    unsigned way;
    enum ending ending;
    bool patient;     /* waits for the answers that the real client had */
    int64_t fault_at; /* the byte on the wire, below TLS or Noise, that is changed; -1: none */
    uint8_t fault_xor;
    struct step *steps;
    size_t count;
};

struct storm_case {
    uint64_t number;
    struct lane lanes[LANES_MAX];
    unsigned count;
};

/* -- cases.c: files and mutations */

/* Ends the program with a sentence if the file cannot be used. */
void corpus_load(struct corpus *c, const char *path);
void corpus_free(struct corpus *c);
/* The case of that number; the same every time. */
void case_make(struct storm_case *ret, const struct corpus *c, uint64_t seed, uint64_t number,
               unsigned ways);
void case_free(struct storm_case *c);
void case_write(const struct storm_case *c, FILE *file);
/* Reads the next one of a file that case_write() wrote; false: there is none. */
bool case_read(struct storm_case *ret, FILE *file);

uint64_t draw(uint64_t *state);

/* -- wire.c: what lies between a conversation and a socket */

enum way_kind {
    WAY_PLAIN,
    WAY_TOKEN,
    WAY_CERTS,
    WAY_NOISE,
};

struct way {
    enum way_kind kind;
    struct sockaddr_storage address;
    socklen_t len;
    bool loopback;
};

struct bytes {
    uint8_t *data;
    size_t len;
    size_t cap;
};

struct wire; /* of one connection */

void bytes_add(struct bytes *b, const void *data, size_t len);
void bytes_drop(struct bytes *b, size_t len);

void wire_setup(const char *token_file, const char *cert_file, const char *key_file);
void wire_teardown(void);
struct wire *wire_new(enum way_kind kind);
void wire_free(struct wire *w);
/* Whether what is said goes out at once. */
bool wire_ready(const struct wire *w);
/* Bytes of the socket. False: it makes no sense, or was refused. */
bool wire_recv(struct wire *w, const uint8_t *data, size_t len);
void wire_say(struct wire *w, const struct step *step);
/* For the socket. */
struct bytes *wire_output(struct wire *w);
/* How many bytes were said to us, below TLS or Noise. */
uint64_t wire_heard(const struct wire *w);

#endif
