#include "codec/text/cidr.h"

#include "codec/text/ip.h"

/* The first bits of every IPv4 address inside IPv6. */
static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool mu_ip_parse(struct mu_span text, uint8_t ret_ip[MU_IP_LEN])
{
    const uint8_t *zone = text.len == 0 ? NULL : memchr(text.data, '%', text.len);
    uint8_t v4[4];

    if (mu_ip4_parse(text, v4)) {
        memcpy(ret_ip, mapped, sizeof(mapped));
        memcpy(ret_ip + sizeof(mapped), v4, sizeof(v4));
        return true;
    }
    if (zone != NULL) {
        text.len = (size_t)(zone - text.data);
    }
    return mu_ip6_parse(text, ret_ip);
}

bool mu_ip_is_loopback(const uint8_t ip[MU_IP_LEN])
{
    static const uint8_t one[MU_IP_LEN] = {[15] = 1};

    return memcmp(ip, one, sizeof(one)) == 0 ||
           (memcmp(ip, mapped, sizeof(mapped)) == 0 && ip[sizeof(mapped)] == 127);
}

bool mu_ip_is_local(const uint8_t ip[MU_IP_LEN])
{
    static const uint8_t none[MU_IP_LEN] = {0};
    const uint8_t *v4 = ip + sizeof(mapped);

    if (memcmp(ip, mapped, sizeof(mapped)) == 0) {
        return v4[0] == 127 || v4[0] == 0 || (v4[0] == 169 && v4[1] == 254);
    }
    return mu_ip_is_loopback(ip) || memcmp(ip, none, sizeof(none)) == 0 ||
           (ip[0] == 0xfe && (ip[1] & 0xc0) == 0x80);
}

/* Parses a number of at most three digits, without a leading zero. */
static bool parse_bits(struct mu_span text, unsigned max, unsigned *ret)
{
    unsigned value = 0;

    if (text.len == 0 || text.len > 3 || (text.len > 1 && text.data[0] == '0')) {
        return false;
    }
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') {
            return false;
        }
        value = value * 10 + (text.data[i] - (unsigned)'0');
    }
    *ret = value;
    return value <= max;
}

/* The bits of byte `i` that count. */
static uint8_t mask_of(unsigned bits, size_t i)
{
    unsigned before = (unsigned)i * 8;

    if (bits >= before + 8) {
        return 0xff;
    }
    if (bits <= before) {
        return 0;
    }
    return (uint8_t)(0xffu << (8 - (bits - before)));
}

int mu_cidr_parse(struct mu_span text, struct mu_cidr *ret_cidr, struct mu_errmsg *reterr_msg)
{
    const uint8_t *slash = text.len == 0 ? NULL : memchr(text.data, '/', text.len);
    struct mu_span address = text;
    struct mu_cidr cidr;
    unsigned width;
    unsigned bits;
    char quoted[64];

    if (slash != NULL) {
        address.len = (size_t)(slash - text.data);
    }
    (void)mu_span_quote(quoted, sizeof(quoted), text);
    if (!mu_ip_parse(address, cidr.address) || memchr(address.data, '%', address.len) != NULL) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "%s is not a range of addresses: write 10.0.0.0/8, fd00::/8 or one address",
                      quoted);
    }
    width = memchr(address.data, ':', address.len) == NULL ? 32 : 128;
    bits = width;
    if (slash != NULL && !parse_bits(mu_span_skip(text, address.len + 1), width, &bits)) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "%s has no prefix from 0 to %u after its /",
                      quoted, width);
    }
    bits += 128 - width;
    for (size_t i = 0; i < MU_IP_LEN; i++) {
        if ((cidr.address[i] & ~mask_of(bits, i) & 0xff) != 0) {
            return mu_err(reterr_msg, MUSTER_EINVAL,
                          "%s has address bits beyond its prefix of %u bits", quoted,
                          bits - (128 - width));
        }
    }
    cidr.bits = (uint8_t)bits;
    *ret_cidr = cidr;
    return 0;
}

bool mu_cidr_has(const struct mu_cidr *cidr, const uint8_t ip[MU_IP_LEN])
{
    for (size_t i = 0; i < MU_IP_LEN; i++) {
        if (((cidr->address[i] ^ ip[i]) & mask_of(cidr->bits, i)) != 0) {
            return false;
        }
    }
    return true;
}
