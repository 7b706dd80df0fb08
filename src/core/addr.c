#include "core/addr.h"

#include <stdio.h>
#include <string.h>

#include "core/span.h"

/* How many bytes a socket's path may have, with its terminator, on every system we know. */
#define UNIX_PATH_CAP 108u

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_alnum(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_hex(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* The text as an error may show it. */
struct quoted {
    char text[80];
};

static const char *quote(struct quoted *q, const char *text)
{
    return mu_span_quote(q->text, sizeof(q->text), mu_span_str(text));
}

/* Four numbers from 0 to 255 with dots between them. */
static bool is_v4(const char *s, size_t len)
{
    size_t i = 0;

    for (int part = 0; part < 4; part++) {
        unsigned value = 0;
        size_t digits = 0;

        if (part != 0 && (i == len || s[i++] != '.')) {
            return false;
        }
        for (; i < len && is_digit(s[i]) && digits < 4; i++, digits++) {
            value = value * 10 + (unsigned)(s[i] - '0');
        }
        if (digits == 0 || digits > 3 || value > 255) {
            return false;
        }
    }
    return i == len;
}

/* Groups of up to four hex digits, one gap "::" at the most, perhaps an IPv4 address as the end. */
static bool is_v6(const char *s, size_t len)
{
    size_t i = 0;
    int groups = 0;
    bool gap = false;

    if (len >= 2 && s[0] == ':' && s[1] == ':') {
        gap = true;
        i = 2;
    }
    while (i < len) {
        size_t start = i;

        while (i < len && is_hex(s[i])) {
            i++;
        }
        if (i < len && s[i] == '.') {
            groups += 2;
            i = len;
            if (!is_v4(s + start, len - start)) {
                return false;
            }
            break;
        }
        if (i == start || i - start > 4) {
            return false;
        }
        groups++;
        if (i == len) {
            break;
        }
        if (s[i] != ':' || i + 1 == len) {
            return false;
        }
        i++;
        if (s[i] == ':') {
            if (gap) {
                return false;
            }
            gap = true;
            i++;
        }
    }
    return gap ? groups < 8 : groups == 8;
}

/* An IPv6 address with or without a zone. */
static bool is_v6_zone(const char *s, size_t len)
{
    const char *percent = memchr(s, '%', len);
    size_t plain = percent == NULL ? len : (size_t)(percent - s);

    for (size_t i = plain + 1; i < len; i++) {
        if (!is_alnum(s[i]) && strchr("-._~", s[i]) == NULL) {
            return false;
        }
    }
    return is_v6(s, plain) && plain + 1 != len;
}

/* A name, an IPv4 address, "*", or nothing at all (every address of the machine). */
static bool is_host(const char *s, size_t len)
{
    if (len == 1 && s[0] == '*') {
        return true;
    }
    if (len == 4 && memcmp(s, "unix", 4) == 0) {
        return false; /* with a port it would read as the other kind */
    }
    for (size_t i = 0; i < len; i++) {
        if (!is_alnum(s[i]) && strchr("-._", s[i]) == NULL) {
            return false;
        }
    }
    return len == 0 || (s[0] != '-' && s[0] != '.');
}

/* Parses what follows the host: nothing, or ":" and a number. */
static int parse_port(const char *s, const char *text, uint16_t default_port, uint16_t *ret,
                      struct mu_errmsg *reterr_msg)
{
    struct quoted q;
    uint32_t value = 0;
    size_t i = 1;

    if (s[0] == '\0') {
        if (default_port == 0) {
            return mu_err(reterr_msg, MUSTER_EURL, "%s has no port: write host:port",
                          quote(&q, text));
        }
        *ret = default_port;
        return 0;
    }
    for (; is_digit(s[i]) && i <= 5; i++) {
        value = value * 10 + (uint32_t)(s[i] - '0');
    }
    if (s[0] != ':' || i == 1 || s[i] != '\0' || value > UINT16_MAX) {
        return mu_err(reterr_msg, MUSTER_EURL, "the port of %s is not a number from 0 to 65535",
                      quote(&q, text));
    }
    *ret = (uint16_t)value;
    return 0;
}

static int parse_unix(const char *text, const char *path, struct mu_addr *ret,
                      struct mu_errmsg *reterr_msg)
{
    struct quoted q;
    size_t len = strlen(path);

    if (path[0] != '/' && (path[0] != '@' || len == 1)) {
        return mu_err(reterr_msg, MUSTER_EURL,
                      "%s has no absolute path: write unix:/path, or unix:@name", quote(&q, text));
    }
    if (len >= UNIX_PATH_CAP) {
        return mu_err(reterr_msg, MUSTER_EURL,
                      "the path of %s is too long for a socket: %zu bytes, at most %u",
                      quote(&q, text), len, UNIX_PATH_CAP - 1);
    }
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)path[i] < 0x20 || path[i] == 0x7f) {
            return mu_err(reterr_msg, MUSTER_EURL, "%s has a control character in its path",
                          quote(&q, text));
        }
    }
    *ret = (struct mu_addr){.kind = MU_ADDR_UNIX};
    memcpy(ret->host, path, len);
    return 0;
}

/* Accepts letters and digits; other modules know what they mean. */
static int parse_peer(const char *text, const char *id, struct mu_addr *ret,
                      struct mu_errmsg *reterr_msg)
{
    size_t len = strlen(id);
    struct quoted q;

    for (size_t i = 0; i < len; i++) {
        if (!is_alnum(id[i])) {
            return mu_err(reterr_msg, MUSTER_EURL, "%s does not name a peer", quote(&q, text));
        }
    }
    if (len > MU_ADDR_HOST_MAX) {
        return mu_err(reterr_msg, MUSTER_EURL, "%s is too long for a peer", quote(&q, text));
    }
    *ret = (struct mu_addr){.kind = MU_ADDR_PEER};
    memcpy(ret->host, id, len);
    return 0;
}

static int parse_tcp(const char *text, uint16_t default_port, struct mu_addr *ret,
                     struct mu_errmsg *reterr_msg)
{
    struct mu_addr addr = {.kind = MU_ADDR_TCP};
    struct quoted q;
    const char *host = text;
    const char *end = text + strcspn(text, ":");
    const char *rest = end;
    bool good;
    int rc;

    if (text[0] == '[') {
        host = text + 1;
        end = host + strcspn(host, "]");
        if (*end == '\0') {
            return mu_err(reterr_msg, MUSTER_EURL, "%s has no closing bracket", quote(&q, text));
        }
        rest = end + 1;
        good = is_v6_zone(host, (size_t)(end - host));
    } else if (*end == ':' && strchr(end + 1, ':') != NULL) {
        return mu_err(reterr_msg, MUSTER_EURL,
                      "%s has several colons: write an IPv6 address as [address]:port",
                      quote(&q, text));
    } else {
        good = is_host(host, (size_t)(end - host));
    }
    if (!good || end - host > MU_ADDR_HOST_MAX) {
        return mu_err(reterr_msg, MUSTER_EURL, "%s does not name a host", quote(&q, text));
    }
    rc = parse_port(rest, text, default_port, &addr.port, reterr_msg);
    if (rc != 0) {
        return rc;
    }
    memcpy(addr.host, host, (size_t)(end - host));
    *ret = addr;
    return 0;
}

int mu_addr_parse(const char *text, uint16_t default_port, struct mu_addr *ret,
                  struct mu_errmsg *reterr_msg)
{
    if (text[0] == '\0') {
        return mu_err(reterr_msg, MUSTER_EURL, "the address is empty: write host:port");
    }
    if (strncmp(text, "unix:", 5) == 0) {
        return parse_unix(text, text + 5, ret, reterr_msg);
    }
    if (strncmp(text, "peer:", 5) == 0) {
        return parse_peer(text, text + 5, ret, reterr_msg);
    }
    return parse_tcp(text, default_port, ret, reterr_msg);
}

char *mu_addr_format(const struct mu_addr *addr, char *buf, size_t cap)
{
    switch (addr->kind) {
    case MU_ADDR_TCP:
        (void)snprintf(buf, cap, strchr(addr->host, ':') != NULL ? "[%s]:%u" : "%s:%u", addr->host,
                       addr->port);
        break;
    case MU_ADDR_PEER:
        (void)snprintf(buf, cap, "peer:%s", addr->host);
        break;
    case MU_ADDR_UNIX:
        (void)snprintf(buf, cap, "unix:%s", addr->host);
        break;
    }
    return buf;
}

bool mu_addr_is_loopback(const struct mu_addr *addr)
{
    size_t len = strlen(addr->host);

    if (addr->kind != MU_ADDR_TCP) {
        return addr->kind == MU_ADDR_UNIX;
    }
    return strcmp(addr->host, "localhost") == 0 || strcmp(addr->host, "::1") == 0 ||
           (is_v4(addr->host, len) && strncmp(addr->host, "127.", 4) == 0);
}
