#include "codec/peer/multiaddr.h"

#include <stdio.h>

#include <muster/error.h>

#include "codec/text/cidr.h"
#include "codec/text/ip.h"
#include "codec/bin/uvarint.h"
#include "core/reader.h"

enum value_kind {
    NOTHING = 1,
    PORT,
    IP4,
    IP6,
    NAME,
    PATH,
    PEER,
};

static const struct protocol {
    const char *name;
    uint64_t code;
    enum value_kind kind;
} protocols[] = {
    {"ip4", MU_MA_IP4, IP4},
    {"tcp", MU_MA_TCP, PORT},
    {"ip6", MU_MA_IP6, IP6},
    {"dns", MU_MA_DNS, NAME},
    {"dns4", MU_MA_DNS4, NAME},
    {"dns6", MU_MA_DNS6, NAME},
    {"dnsaddr", MU_MA_DNSADDR, NAME},
    {"udp", MU_MA_UDP, PORT},
    {"p2p-circuit", MU_MA_P2P_CIRCUIT, NOTHING},
    {"unix", MU_MA_UNIX, PATH},
    {"p2p", MU_MA_P2P, PEER},
    {"ipfs", MU_MA_P2P, PEER}, /* its old name: read, not written */
    {"quic", MU_MA_QUIC, NOTHING},
    {"quic-v1", MU_MA_QUIC_V1, NOTHING},
    {"ws", MU_MA_WS, NOTHING},
    {"wss", MU_MA_WSS, NOTHING},
};

static const struct protocol *find_code(uint64_t code)
{
    for (size_t i = 0; i < sizeof(protocols) / sizeof(protocols[0]); i++) {
        if (protocols[i].code == code) {
            return &protocols[i];
        }
    }
    return NULL;
}

static const struct protocol *find_name(struct mu_span name)
{
    for (size_t i = 0; i < sizeof(protocols) / sizeof(protocols[0]); i++) {
        if (mu_span_eq(mu_span_str(protocols[i].name), name)) {
            return &protocols[i];
        }
    }
    return NULL;
}

/* Some programs write a peer as a CIDv1, that is, with two bytes before the multihash. */
static struct mu_span strip_cid(struct mu_span value)
{
    bool cid = value.len > 2 && value.data[0] == 0x01 && value.data[1] == 0x72;

    return cid ? mu_span_skip(value, 2) : value;
}

static bool is_plain(struct mu_span value)
{
    for (size_t i = 0; i < value.len; i++) {
        if (value.data[i] <= ' ' || value.data[i] == 0x7f) {
            return false;
        }
    }
    return value.len != 0;
}

static bool value_holds(enum value_kind kind, struct mu_span value)
{
    struct mu_peer_id id;

    switch (kind) {
    case NOTHING:
    case PORT:
    case IP4:
    case IP6:
        return true;
    case NAME:
        return value.len <= MU_ADDR_HOST_MAX && is_plain(value) &&
               memchr(value.data, '/', value.len) == NULL;
    case PATH:
        return value.len > 1 && value.data[0] == '/' && is_plain(value);
    case PEER:
        return mu_peer_id_from_bytes(&id, strip_cid(value)) == 0;
    }
    return false;
}

int mu_multiaddr_next(struct mu_span *addr, struct mu_multiaddr_part *ret_part)
{
    static const uint8_t fixed[] = {[NOTHING] = 0, [PORT] = 2, [IP4] = 4, [IP6] = 16};
    struct mu_reader r = mu_reader(*addr);
    const struct protocol *p;
    struct mu_span value;
    uint64_t code;
    uint64_t len;
    size_t used;

    if (addr->len == 0) {
        return 0;
    }
    if (mu_uvarint_get(r.rest, &used, &code) != 0) {
        return MUSTER_EPROTO;
    }
    (void)mu_read_bytes(&r, used);
    p = find_code(code);
    if (p == NULL) {
        return MUSTER_EPROTO;
    }
    if (p->kind <= IP6) {
        len = fixed[p->kind];
    } else {
        if (mu_uvarint_get(r.rest, &used, &len) != 0) {
            return MUSTER_EPROTO;
        }
        (void)mu_read_bytes(&r, used);
    }
    value = mu_read_bytes(&r, len);
    if (r.failed || !value_holds(p->kind, value)) {
        return MUSTER_EPROTO;
    }
    *addr = r.rest;
    *ret_part = (struct mu_multiaddr_part){code, p->kind == PEER ? strip_cid(value) : value};
    return 1;
}

static bool is_localhost(struct mu_span name)
{
    static const char suffix[] = ".localhost";
    size_t len = sizeof(suffix) - 1;

    return mu_span_eq(name, mu_span_str(suffix + 1)) ||
           (name.len > len && mu_span_eq(mu_span_skip(name, name.len - len), mu_span(suffix, len)));
}

bool mu_multiaddr_is_local(struct mu_span addr)
{
    uint8_t ip[MU_IP_LEN] = {[10] = 0xff, [11] = 0xff};
    struct mu_multiaddr_part part;

    if (mu_multiaddr_next(&addr, &part) != 1) {
        return false;
    }
    switch (part.code) {
    case MU_MA_IP4:
        memcpy(ip + 12, part.value.data, 4);
        return mu_ip_is_local(ip);
    case MU_MA_IP6:
        memcpy(ip, part.value.data, sizeof(ip));
        return mu_ip_is_local(ip);
    case MU_MA_UNIX:
        return true;
    case MU_MA_DNS:
    case MU_MA_DNS4:
    case MU_MA_DNS6:
    case MU_MA_DNSADDR:
        return is_localhost(part.value);
    default:
        return false;
    }
}

int mu_multiaddr_check(struct mu_span addr)
{
    struct mu_multiaddr_part part;
    int err = 1;

    if (addr.len == 0 || addr.len > MU_MULTIADDR_MAX) {
        return MUSTER_EPROTO;
    }
    while (err == 1) {
        err = mu_multiaddr_next(&addr, &part);
    }
    return err;
}

/* --- text ------------------------------------------------------------------------------------- */

static int append_part(struct mu_buf *out, const struct protocol *p, struct mu_span value)
{
    int err = mu_uvarint_append(out, p->code);

    if (err == 0 && p->kind > IP6) {
        err = mu_uvarint_append(out, value.len);
    }
    return err == 0 ? mu_buf_append(out, value) : err;
}

static bool parse_port(struct mu_span text, uint8_t ret[2])
{
    unsigned port = 0;

    if (text.len == 0 || text.len > 5) {
        return false;
    }
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') {
            return false;
        }
        port = port * 10 + (text.data[i] - (unsigned)'0');
    }
    ret[0] = (uint8_t)(port >> 8);
    ret[1] = (uint8_t)port;
    return port <= 65535;
}

/* Parses a value: its bytes are in `room`, or in the text. */
static bool parse_value(enum value_kind kind, struct mu_span text, uint8_t room[MU_PEER_ID_MAX],
                        struct mu_span *ret_value)
{
    char name[MU_ADDR_HOST_MAX + 1];
    struct mu_errmsg unused;
    struct mu_peer_id id;

    *ret_value = text;
    switch (kind) {
    case NOTHING:
        return true;
    case PORT:
        *ret_value = mu_span(room, 2);
        return parse_port(text, room);
    case IP4:
        *ret_value = mu_span(room, 4);
        return mu_ip4_parse(text, room);
    case IP6:
        *ret_value = mu_span(room, 16);
        return mu_ip6_parse(text, room);
    case NAME:
    case PATH:
        return value_holds(kind, text);
    case PEER:
        if (text.len >= sizeof(name)) {
            return false;
        }
        memcpy(name, text.data, text.len);
        name[text.len] = '\0';
        if (mu_peer_id_parse(&id, name, &unused) != 0) {
            return false;
        }
        memcpy(room, id.bytes, id.len);
        *ret_value = mu_span(room, id.len);
        return true;
    }
    return false;
}

/* Takes the text up to the next slash, and the slash. */
static struct mu_span take_word(struct mu_span *text)
{
    const uint8_t *slash = text->len == 0 ? NULL : memchr(text->data, '/', text->len);
    size_t len = slash == NULL ? text->len : (size_t)(slash - text->data);
    struct mu_span word = mu_span(text->data, len);

    *text = mu_span_skip(*text, slash == NULL ? len : len + 1);
    return word;
}

int mu_multiaddr_parse(struct mu_buf *out, const char *text, struct mu_errmsg *reterr_msg)
{
    struct mu_span rest = mu_span_str(text);
    size_t before = out->len;
    char quoted[96];
    int err = 0;

    if (rest.len < 2 || rest.len > MU_MULTIADDR_TEXT_MAX || rest.data[0] != '/') {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "%s is not a multiaddr: it should look like /ip4/127.0.0.1/tcp/4001",
                      mu_span_quote(quoted, sizeof(quoted), rest));
    }
    rest = mu_span_skip(rest, 1);
    while (rest.len != 0 && err == 0) {
        struct mu_span name = take_word(&rest);
        const struct protocol *p = find_name(name);
        uint8_t room[MU_PEER_ID_MAX];
        struct mu_span word = {0};
        struct mu_span value;

        if (p == NULL) {
            out->len = before;
            return mu_err(reterr_msg, MUSTER_EINVAL, "a multiaddr cannot have a part named %s",
                          mu_span_quote(quoted, sizeof(quoted), name));
        }
        if (p->kind == PATH) {
            /* The path is everything that is left, with the slash that take_word() has taken. */
            word = rest.len == 0 ? rest : mu_span(rest.data - 1, rest.len + 1);
            rest = mu_span_skip(rest, rest.len);
        } else if (p->kind != NOTHING) {
            word = take_word(&rest);
        }
        if (!parse_value(p->kind, word, room, &value)) {
            out->len = before;
            return mu_err(reterr_msg, MUSTER_EINVAL, "%s cannot follow /%s",
                          mu_span_quote(quoted, sizeof(quoted), word), p->name);
        }
        err = append_part(out, p, value);
    }
    if (err == 0 && out->len - before > MU_MULTIADDR_MAX) {
        err = MUSTER_ELIMIT;
    }
    if (err != 0) {
        out->len = before;
    }
    return err == 0 ? 0 : mu_err(reterr_msg, err, "%s", muster_strerror(err));
}

static void format_value(enum value_kind kind, struct mu_span value, char *text, size_t cap)
{
    char room[MU_PEER_ID_TEXT_MAX];
    struct mu_peer_id id = {0};

    switch (kind) {
    case NOTHING:
        break;
    case PORT:
        (void)snprintf(text, cap, "/%d", value.data[0] << 8 | value.data[1]);
        break;
    case IP4:
        (void)snprintf(text, cap, "/%s", mu_ip4_format(value.data, room));
        break;
    case IP6:
        (void)snprintf(text, cap, "/%s", mu_ip6_format(value.data, room));
        break;
    case NAME:
        (void)snprintf(text, cap, "/%.*s", (int)value.len, (const char *)value.data);
        break;
    case PATH:
        (void)snprintf(text, cap, "%.*s", (int)value.len, (const char *)value.data);
        break;
    case PEER:
        (void)mu_peer_id_from_bytes(&id, value);
        (void)snprintf(text, cap, "/%s", mu_peer_id_format(&id, room));
        break;
    }
}

char *mu_multiaddr_format(struct mu_span addr, char *text, size_t cap)
{
    struct mu_multiaddr_part part;
    size_t len = 0;
    int err;

    text[0] = '\0';
    while ((err = mu_multiaddr_next(&addr, &part)) == 1 && len + 1 < cap) {
        const struct protocol *p = find_code(part.code);

        (void)snprintf(text + len, cap - len, "/%s", p->name);
        len += strlen(text + len);
        format_value(p->kind, part.value, text + len, cap - len);
        len += strlen(text + len);
    }
    if (err < 0) {
        (void)snprintf(text + len, cap - len, "?");
    }
    return text;
}

/* --- what to dial ----------------------------------------------------------------------------- */

static int read_host(const struct mu_multiaddr_part *part, struct mu_addr *ret_addr)
{
    char text[MU_PEER_ID_TEXT_MAX];

    switch (part->code) {
    case MU_MA_IP4:
        (void)snprintf(ret_addr->host, sizeof(ret_addr->host), "%s",
                       mu_ip4_format(part->value.data, text));
        return 0;
    case MU_MA_IP6:
        (void)snprintf(ret_addr->host, sizeof(ret_addr->host), "%s",
                       mu_ip6_format(part->value.data, text));
        return 0;
    case MU_MA_DNS:
    case MU_MA_DNS4:
    case MU_MA_DNS6:
    case MU_MA_UNIX:
        if (part->value.len > MU_ADDR_HOST_MAX) {
            return MUSTER_ENOTSUP;
        }
        memcpy(ret_addr->host, part->value.data, part->value.len);
        ret_addr->host[part->value.len] = '\0';
        return 0;
    default:
        return MUSTER_ENOTSUP;
    }
}

int mu_multiaddr_dial(struct mu_span addr, struct mu_addr *ret_addr, struct mu_peer_id *ret_peer)
{
    struct mu_addr found = {.kind = MU_ADDR_TCP};
    struct mu_peer_id peer = {0};
    struct mu_multiaddr_part part;
    int err = mu_multiaddr_check(addr);

    if (err != 0) {
        return err;
    }
    (void)mu_multiaddr_next(&addr, &part);
    err = read_host(&part, &found);
    if (err != 0) {
        return err;
    }
    if (part.code == MU_MA_UNIX) {
        found.kind = MU_ADDR_UNIX;
    } else if (mu_multiaddr_next(&addr, &part) != 1 || part.code != MU_MA_TCP) {
        return MUSTER_ENOTSUP;
    } else {
        found.port = (uint16_t)(part.value.data[0] << 8 | part.value.data[1]);
    }
    if (mu_multiaddr_next(&addr, &part) == 1) {
        if (part.code != MU_MA_P2P || addr.len != 0) {
            return MUSTER_ENOTSUP;
        }
        (void)mu_peer_id_from_bytes(&peer, part.value);
    }
    *ret_addr = found;
    if (ret_peer != NULL) {
        *ret_peer = peer;
    }
    return 0;
}

const char *mu_multiaddr_refusal(struct mu_span addr)
{
    struct mu_multiaddr_part part;

    while (mu_multiaddr_next(&addr, &part) == 1) {
        switch (part.code) {
        case MU_MA_QUIC:
        case MU_MA_QUIC_V1:
            return "it is for QUIC, and muster speaks TCP only; give the peer's /tcp/ address";
        case MU_MA_WS:
        case MU_MA_WSS:
            return "it is for WebSockets, and muster speaks plain TCP only; give the peer's other "
                   "/tcp/ address";
        default:
            break;
        }
    }
    return "only TCP and unix sockets can be dialled";
}

int mu_multiaddr_circuit(struct mu_span addr, struct mu_span *ret_before,
                         struct mu_peer_id *ret_relay, struct mu_peer_id *ret_peer)
{
    struct mu_span rest = addr;
    struct mu_span before = {0};
    struct mu_peer_id ids[2] = {{0}}; /* of the relay, and of the peer behind it */
    struct mu_multiaddr_part part;
    int err = mu_multiaddr_check(addr);
    bool behind = false;

    while (err == 0 && mu_multiaddr_next(&rest, &part) == 1) {
        if (part.code == MU_MA_P2P) {
            (void)mu_peer_id_from_bytes(&ids[behind ? 1 : 0], part.value);
            err = behind && rest.len != 0 ? MUSTER_ENOTSUP : 0;
        } else if (part.code == MU_MA_P2P_CIRCUIT && !behind) {
            behind = true;
            err = ids[0].len == 0 ? MUSTER_ENOTSUP : 0;
        } else if (behind || ids[0].len != 0) {
            err = MUSTER_ENOTSUP;
        }
        if (!behind) {
            before = mu_span(addr.data, addr.len - rest.len);
        }
    }
    if (err != 0 || !behind) {
        return err != 0 ? err : MUSTER_ENOTSUP;
    }
    if (ret_before != NULL) {
        *ret_before = before;
    }
    if (ret_relay != NULL) {
        *ret_relay = ids[0];
    }
    if (ret_peer != NULL) {
        *ret_peer = ids[1];
    }
    return 0;
}

int mu_multiaddr_from(struct mu_buf *out, const struct mu_addr *addr, struct mu_errmsg *reterr_msg)
{
    char text[MU_MULTIADDR_TEXT_MAX];
    struct mu_span host = mu_span_str(addr->host);
    uint8_t room[16];

    if (addr->kind == MU_ADDR_UNIX) {
        (void)snprintf(text, sizeof(text), "/unix%s", addr->host);
    } else {
        const char *kind = mu_ip4_parse(host, room)   ? "ip4"
                           : mu_ip6_parse(host, room) ? "ip6"
                                                      : "dns";

        (void)snprintf(text, sizeof(text), "/%s/%s/tcp/%u", kind, addr->host, addr->port);
    }
    return mu_multiaddr_parse(out, text, reterr_msg);
}
