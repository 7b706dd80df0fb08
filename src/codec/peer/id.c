#include "codec/peer/id.h"

#include <muster/error.h>

#include "codec/text/base58.h"

enum {
    HASH_IDENTITY = 0x00,
    HASH_SHA256 = 0x12,
    SHA256_LEN = 32,
    CID_VERSION = 0x01,
    CID_LIBP2P_KEY = 0x72,
};

int mu_peer_id_from_bytes(struct mu_peer_id *ret_id, struct mu_span bytes)
{
    bool identity;

    if (bytes.len < 3 || bytes.len > MU_PEER_ID_MAX || bytes.data[1] != bytes.len - 2) {
        return MUSTER_EINVAL;
    }
    identity = bytes.data[0] == HASH_IDENTITY;
    if (!identity && (bytes.data[0] != HASH_SHA256 || bytes.data[1] != SHA256_LEN)) {
        return MUSTER_EINVAL;
    }
    ret_id->len = (uint8_t)bytes.len;
    memset(ret_id->bytes, 0, sizeof(ret_id->bytes));
    memcpy(ret_id->bytes, bytes.data, bytes.len);
    return 0;
}

/* Base32 of RFC 4648 in lower case, without padding, as in CIDs. */
static int decode_base32(uint8_t *ret, size_t cap, size_t *ret_len, struct mu_span text)
{
    uint32_t bits = 0;
    unsigned held = 0;
    size_t len = 0;

    for (size_t i = 0; i < text.len; i++) {
        uint8_t c = text.data[i];
        unsigned value;

        if (c >= 'a' && c <= 'z') {
            value = c - 'a';
        } else if (c >= '2' && c <= '7') {
            value = c - '2' + 26u;
        } else {
            return MUSTER_EINVAL;
        }
        bits = bits << 5 | value;
        held += 5;
        if (held >= 8) {
            held -= 8;
            if (len == cap) {
                return MUSTER_EINVAL;
            }
            ret[len++] = (uint8_t)(bits >> held);
        }
    }
    if (held >= 5 || (bits & ((1u << held) - 1)) != 0) {
        return MUSTER_EINVAL;
    }
    *ret_len = len;
    return 0;
}

int mu_peer_id_parse(struct mu_peer_id *ret_id, const char *text, struct mu_errmsg *reterr_msg)
{
    struct mu_span in = mu_span_str(text);
    uint8_t bytes[MU_BASE58_BYTES_MAX];
    char quoted[96];
    size_t len = 0;
    int err;

    if (in.len > 1 && in.data[0] == 'b') {
        /* A multihash never begins like this in base58: its first byte would be above 0x12. */
        err = decode_base32(bytes, sizeof(bytes), &len, mu_span_skip(in, 1));
        if (err == 0 && (len < 2 || bytes[0] != CID_VERSION || bytes[1] != CID_LIBP2P_KEY)) {
            err = MUSTER_EINVAL;
        }
        if (err == 0) {
            err = mu_peer_id_from_bytes(ret_id, mu_span(bytes + 2, len - 2));
        }
    } else {
        err = mu_base58_decode(bytes, &len, in);
        if (err == 0) {
            err = mu_peer_id_from_bytes(ret_id, mu_span(bytes, len));
        }
    }
    if (err != 0) {
        return mu_err(
            reterr_msg, MUSTER_EINVAL,
            "%s is not a peer id: these begin with Qm or 12D3KooW and have 46 or 52 letters",
            mu_span_quote(quoted, sizeof(quoted), in));
    }
    return 0;
}

char *mu_peer_id_format(const struct mu_peer_id *id, char text[MU_PEER_ID_TEXT_MAX])
{
    char all[MU_BASE58_TEXT_MAX + 1];
    size_t len = mu_base58_encode(all, mu_peer_id_span(id));

    /* 44 bytes make at most 61 letters. */
    memcpy(text, all, len + 1);
    return text;
}

char *mu_peer_id_format_cid(const struct mu_peer_id *id, char text[MU_PEER_ID_CID_MAX])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
    uint8_t bytes[2 + MU_PEER_ID_MAX] = {CID_VERSION, CID_LIBP2P_KEY};
    size_t count = 2u + id->len;
    uint32_t bits = 0;
    unsigned held = 0;
    size_t len = 0;

    memcpy(bytes + 2, id->bytes, id->len);
    text[len++] = 'b';
    for (size_t i = 0; i < count; i++) {
        bits = bits << 8 | bytes[i];
        for (held += 8; held >= 5; held -= 5) {
            text[len++] = letters[bits >> (held - 5) & 31];
        }
    }
    if (held != 0) {
        text[len++] = letters[bits << (5 - held) & 31];
    }
    text[len] = '\0';
    return text;
}
