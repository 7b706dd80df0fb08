/*
 * Noise as libp2p speaks it: Noise_XX_25519_ChaChaPoly_SHA256, each side's identity key vouching
 * for its static key. A stream machine between a connection and its multiplexer.
 *
 *     dialler                                   listener
 *     mu_noise_init()   A: e            ---->
 *                                       <----   B: e, ee, s, es, identity
 *     verifies          C: s, se, identity -->  verifies
 *     mu_noise_done()                           mu_noise_done()
 *
 *     mu_noise_recv()   bytes of the connection; mu_noise_plain() has the decrypted bytes
 *     mu_noise_send()   bytes to encrypt; mu_noise_output() has the bytes for the
 *                       connection
 *
 * Nothing can be sent or read before the other side has proved its id. Counters are nonces and are
 * never used twice: a side that has sent 2^64 - 1 messages cannot send more. Keys are handed in, so
 * that a transcript can be replayed.
 */
#ifndef MU_NOISE_H
#define MU_NOISE_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/err.h"
#include "crypto/aead.h"
#include "crypto/hash.h"
#include "crypto/identity.h"
#include "crypto/x25519.h"

#define MU_NOISE_FRAME_MAX  65535 /* length of a message, including its tag */
#define MU_NOISE_PLAIN_MAX  (MU_NOISE_FRAME_MAX - MU_AEAD_TAG_LEN)
#define MU_NOISE_MUXERS_MAX 100

enum mu_noise_role {
    MU_NOISE_DIALLER = 1,
    MU_NOISE_LISTENER,
};

struct mu_noise_config {
    enum mu_noise_role role;
    const struct mu_identity *identity;   /* borrowed until done */
    uint8_t secret_static[MU_X25519_LEN]; /* both are drawn for this connection */
    uint8_t secret_ephemeral[MU_X25519_LEN];
    struct mu_peer_id expected; /* the peer that it must be; length 0: any peer */
    const char *muxer;          /* the muxer that we propose, such as /yamux/1.0.0. NULL: propose
                                nothing */
    size_t output_bytes_max;    /* limit of what is kept for sending. At least 128 KiB */
};

enum mu_noise_state {
    MU_NOISE_WANT_A = 1, /* listener */
    MU_NOISE_WANT_B,     /* dialler */
    MU_NOISE_WANT_C,     /* listener */
    MU_NOISE_OPEN,
};

struct mu_noise {
    enum mu_noise_role role;
    enum mu_noise_state state;
    struct mu_peer_id remote; /* once it is done */
    bool muxer_agreed;        /* both sides named our muxer: it need not be negotiated */
    /* private */
    struct mu_noise_config config;
    int poison;
    struct mu_errmsg why;
    uint8_t hash[MU_SHA256_LEN]; /* h; once the handshake is done, the hash of all of it */
    uint8_t chain[MU_SHA256_LEN];
    uint8_t remote_ephemeral[MU_X25519_LEN];
    uint8_t key[MU_AEAD_KEY_LEN]; /* of the handshake */
    bool has_key;
    uint64_t counter;
    struct mu_aead sealing;
    struct mu_aead opening;
    uint64_t sealed; /* how many messages were sealed */
    uint64_t opened;
    struct mu_buf in;    /* an incomplete frame */
    struct mu_buf plain; /* opened, not consumed yet */
    struct mu_buf out;
};

/** A dialler's first message is in the output then. MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_noise_init(struct mu_noise *n, const struct mu_noise_config *config);
void mu_noise_fini(struct mu_noise *n);

/**
 * Takes bytes; all of them, unless plain text waits to be consumed: then no more than one frame
 * beyond it. MUSTER_EPROTO (not noise), MUSTER_ECORRUPT (a message was changed on its way, or
 * belongs to another connection), MUSTER_ESIGNATURE, MUSTER_EPEERID poison it: mu_noise_errmsg()
 * says more. MUSTER_ENOMEM does not.
 */
int mu_noise_recv(struct mu_noise *n, struct mu_span in, size_t *ret_used);
/** Returns whether the handshake is over and `remote` has proved its id. */
bool mu_noise_done(const struct mu_noise *n);
/** Returns the decrypted bytes; lent until the next recv or consume. */
struct mu_span mu_noise_plain(const struct mu_noise *n);
void mu_noise_consume(struct mu_noise *n, size_t len);

/**
 * Seals as much as there is room for. MUSTER_EAGAIN before the handshake is over; MUSTER_ELIMIT
 * when no counter is left; MUSTER_ENOMEM. Nothing was taken then.
 */
int mu_noise_send(struct mu_noise *n, struct mu_span plain, size_t *ret_taken);
/**
 * Seals `count` spans as one message, straight from the caller's memory: all of them, at most
 * MU_NOISE_PLAIN_MAX bytes. MUSTER_EAGAIN: there is no room now, or the handshake is not over;
 * others as mu_noise_send().
 */
int mu_noise_send_whole(struct mu_noise *n, const struct mu_span *parts, size_t count);
struct mu_span mu_noise_output(const struct mu_noise *n);
void mu_noise_sent(struct mu_noise *n, size_t len);

const char *mu_noise_errmsg(const struct mu_noise *n);

#endif
