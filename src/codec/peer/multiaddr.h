/*
 * Multiaddrs: addresses that say how to reach a peer, layer by layer (/ip4/127.0.0.1/tcp/4001).
 * Kept and compared in their binary form; text is for people.
 */
#ifndef MU_MULTIADDR_H
#define MU_MULTIADDR_H

#include "codec/peer/id.h"
#include "core/buf.h"
#include "core/addr.h"
#include "core/err.h"
#include "core/span.h"

#define MU_MULTIADDR_MAX      512 /* bytes in binary */
#define MU_MULTIADDR_TEXT_MAX 1024

enum mu_multiaddr_code {
    MU_MA_IP4 = 4,
    MU_MA_TCP = 6,
    MU_MA_IP6 = 41,
    MU_MA_DNS = 53,
    MU_MA_DNS4 = 54,
    MU_MA_DNS6 = 55,
    MU_MA_DNSADDR = 56,
    MU_MA_UDP = 273,
    MU_MA_P2P_CIRCUIT = 290,
    MU_MA_UNIX = 400,
    MU_MA_P2P = 421,
    MU_MA_QUIC = 460,
    MU_MA_QUIC_V1 = 461,
    MU_MA_WS = 477,
    MU_MA_WSS = 478,
};

/* One layer; its value points into the input. */
struct mu_multiaddr_part {
    uint64_t code;
    struct mu_span value; /* without its length */
};

/** Takes the first part off. 1: there is one; 0: there are no more; MUSTER_EPROTO: an unknown code,
 * a value that is cut off or invalid. */
int mu_multiaddr_next(struct mu_span *addr, struct mu_multiaddr_part *ret_part);
/** Checks that all of it can be read, and is not empty or too long: 0 or MUSTER_EPROTO. */
int mu_multiaddr_check(struct mu_span addr);

/** Whether its first part is a different place on every host: a unix socket, loopback, a link-local
 * address. Names are not looked up; "localhost" counts as loopback. */
bool mu_multiaddr_is_local(struct mu_span addr);
/** Appends the binary form. MUSTER_EINVAL, with a text; MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_multiaddr_parse(struct mu_buf *out, const char *text, struct mu_errmsg *reterr_msg);
/** Writes the text, terminated and cut off at `cap`, which is at least 1; what cannot be read
 * becomes "?". Returns `text`. */
char *mu_multiaddr_format(struct mu_span addr, char *text, size_t cap);

/**
 * What to dial: host and port of an address that is a host and TCP, or a socket's path, with or
 * without a peer after it. MUSTER_ENOTSUP: another transport; MUSTER_EPROTO. `ret_peer` (may be
 * NULL) is the named peer, with length 0 if no peer is named.
 */
int mu_multiaddr_dial(struct mu_span addr, struct mu_addr *ret_addr, struct mu_peer_id *ret_peer);
/** Why mu_multiaddr_dial() does not know what to dial, in words that name the other transport. */
const char *mu_multiaddr_refusal(struct mu_span addr);
/**
 * The parts of an address that leads through a relay (…/p2p/RELAY/p2p-circuit, with or without
 * /p2p/PEER after it): what is before /p2p-circuit, including the relay's id at its end, and the
 * peer, with length 0 if no peer is named. MUSTER_ENOTSUP: it leads through no relay, or through
 * more than one; MUSTER_EPROTO. Each of the three may be NULL.
 */
int mu_multiaddr_circuit(struct mu_span addr, struct mu_span *ret_before,
                         struct mu_peer_id *ret_relay, struct mu_peer_id *ret_peer);
/** Makes a multiaddr of an IP address and a port or of a socket's path; names would need a dns
 * part. Errors as mu_multiaddr_parse(). */
int mu_multiaddr_from(struct mu_buf *out, const struct mu_addr *addr, struct mu_errmsg *reterr_msg);

#endif
