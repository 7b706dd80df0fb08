/* IP addresses in text. The C library's own functions would do, but pure folders do not use the
 * sockets' headers. */
#ifndef MU_IP_H
#define MU_IP_H

#include "core/span.h"

#define MU_IP_TEXT_MAX 46

/** Parses four numbers of at most 255 without leading zeroes. */
bool mu_ip4_parse(struct mu_span text, uint8_t ret_bytes[4]);
/** Parses RFC 4291's forms, with an IPv4 address in the last place too, and without a zone. */
bool mu_ip6_parse(struct mu_span text, uint8_t ret_bytes[16]);
/** Write a terminated text and return `text`. IPv6 as in RFC 5952. */
char *mu_ip4_format(const uint8_t bytes[4], char text[MU_IP_TEXT_MAX]);
char *mu_ip6_format(const uint8_t bytes[16], char text[MU_IP_TEXT_MAX]);

#endif
