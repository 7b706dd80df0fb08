/*
 * Ranges of addresses in text: "10.0.0.0/8", "fd00::/8", or one address alone. IPv4 is kept in its
 * IPv6 form (::ffff:a.b.c.d), so that a host is the same over either kind of socket.
 */
#ifndef MU_CIDR_H
#define MU_CIDR_H

#include "core/err.h"
#include "core/span.h"

#define MU_IP_LEN 16

struct mu_cidr {
    uint8_t address[MU_IP_LEN];
    uint8_t bits; /* how many of the 128 count */
};

/** Parses a numeric address of either family; a zone ("%eth0") is ignored. */
bool mu_ip_parse(struct mu_span text, uint8_t ret_ip[MU_IP_LEN]);
/** 127.0.0.0/8, ::1. */
bool mu_ip_is_loopback(const uint8_t ip[MU_IP_LEN]);
/** Whether an address means something else on every host, or no host: loopback, link-local
 * addresses, and those of no host (0.0.0.0/8, ::). */
bool mu_ip_is_local(const uint8_t ip[MU_IP_LEN]);
/**
 * MUSTER_EINVAL with the reason. An address with bits beyond the prefix ("10.1.2.3/8") is refused,
 * since it is probably a mistake in the prefix or in the address.
 */
int mu_cidr_parse(struct mu_span text, struct mu_cidr *ret_cidr, struct mu_errmsg *reterr_msg);
bool mu_cidr_has(const struct mu_cidr *cidr, const uint8_t ip[MU_IP_LEN]);

#endif
