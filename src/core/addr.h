/* Addresses in text. The parsers read bytes from outside and refuse what they do not know. */
#ifndef MU_ADDR_H
#define MU_ADDR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

/* An address in text, resolved by the environment. */
#define MU_ADDR_HOST_MAX 255

enum mu_addr_kind {
    MU_ADDR_TCP = 1,
    MU_ADDR_UNIX,
    MU_ADDR_PEER,
};

struct mu_addr {
    enum mu_addr_kind kind;
    uint16_t port; /* TCP only; 0 when listening: any free one */
    /* A name or a number without brackets; a socket's path, or "@" and a name in the abstract
     * namespace, which leaves no file behind; or a peer's id, which is empty for our own. */
    char host[MU_ADDR_HOST_MAX + 1];
};

/**
 * Parses "host:port", "[v6]:port", "unix:/path", "unix:@name" or "peer:ID" (the id is not checked).
 * A missing port is `default_port` (0: it must be there). MUSTER_EURL with the reason in
 * `reterr_msg`.
 */
int mu_addr_parse(const char *text, uint16_t default_port, struct mu_addr *ret,
                  struct mu_errmsg *reterr_msg);
/** Writes the address as a terminated text of at most `cap` bytes. Returns `buf`. */
char *mu_addr_format(const struct mu_addr *addr, char *buf, size_t cap);
/**
 * Whether only this host can reach the address: a unix socket, the name localhost, 127.0.0.0/8,
 * ::1. Other names are not resolved: they count as reachable by others.
 */
bool mu_addr_is_loopback(const struct mu_addr *addr);

#endif
