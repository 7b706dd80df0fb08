#include "codec/rdzv/params.h"

#include <inttypes.h>
#include <stdio.h>

#include "codec/rdzv/msg.h"
#include "core/addr.h"

#define PORT_DIGITS_MAX 5
#define YEAR_MS         (UINT64_C(366) * 24 * 60 * 60 * 1000)

/* Text from outside as an error may show it. */
struct quoted {
    char text[80];
};

static const char *quote(struct quoted *q, struct mu_span s)
{
    return mu_span_quote(q->text, sizeof(q->text), s);
}

static struct mu_span span_of(const char *text)
{
    return mu_span_str(text == NULL ? "" : text);
}

static bool is_blank(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
}

static bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

static struct mu_span trim(struct mu_span s)
{
    while (s.len != 0 && is_blank(s.data[0])) {
        s = mu_span_skip(s, 1);
    }
    while (s.len != 0 && is_blank(s.data[s.len - 1])) {
        s.len--;
    }
    return s;
}

/* --- configuration ---------------------------------------------------------------------------- */

struct item {
    struct mu_span key;
    struct mu_span value; /* empty: no value */
};

/* Takes the text up to the next comma off `rest`. False once nothing is left: a part, perhaps an
 * empty one, follows each comma. */
static bool next_part(struct mu_span *rest, struct mu_span *ret)
{
    const uint8_t *comma;

    *ret = *rest;
    if (rest->data == NULL) {
        return false;
    }
    comma = memchr(rest->data, ',', rest->len);
    if (comma == NULL) {
        *rest = mu_span(NULL, 0);
    } else {
        ret->len = (size_t)(comma - ret->data);
        *rest = mu_span_skip(*rest, ret->len + 1);
    }
    return true;
}

/* The value of this key is a list: parts without a key that follow it belong to it. */
static void extend_list(struct mu_span *rest, struct item *item)
{
    struct mu_span after = *rest;
    struct mu_span part;

    if (!mu_span_eq(item->key, MU_SPAN_LIT(MU_RDZV_LIST_KEY)) || item->value.len == 0) {
        return;
    }
    while (next_part(&after, &part) && trim(part).len != 0 &&
           memchr(part.data, '=', part.len) == NULL) {
        item->value.len = (size_t)(part.data + part.len - item->value.data);
        *rest = after;
    }
    item->value = trim(item->value);
}

/* As next_part(): each part is an item, but for the parts of a list. */
static bool next_item(struct mu_span *rest, struct item *ret)
{
    struct mu_span whole;
    const uint8_t *equals;

    if (!next_part(rest, &whole)) {
        return false;
    }
    equals = memchr(whole.data, '=', whole.len);
    if (equals == NULL) {
        *ret = (struct item){.key = trim(whole)};
        return true;
    }
    ret->key = trim(mu_span(whole.data, (size_t)(equals - whole.data)));
    ret->value = trim(mu_span_skip(whole, (size_t)(equals - whole.data) + 1));
    extend_list(rest, ret);
    return true;
}

/* The items of a config: nothing for a blank text. */
static struct mu_span items_of(const char *config)
{
    struct mu_span text = trim(span_of(config));

    return text.len == 0 ? mu_span(NULL, 0) : text;
}

bool mu_rdzv_config_next(struct mu_span *rest, struct mu_span *ret_key)
{
    struct item item;

    if (!next_item(rest, &item)) {
        return false;
    }
    *ret_key = item.key;
    return true;
}

int mu_rdzv_config_check(const char *config, struct mu_errmsg *reterr_msg)
{
    struct mu_span rest = items_of(config);
    struct item item;
    struct quoted q;
    size_t index = 0;

    if (rest.len > MU_RDZV_CONFIG_LEN_MAX) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the rendezvous configuration has %zu bytes; at most %d are allowed",
                      rest.len, MU_RDZV_CONFIG_LEN_MAX);
    }
    while (next_item(&rest, &item)) {
        index++;
        if (item.key.len == 0) {
            return mu_err(reterr_msg, MUSTER_EINVAL,
                          "item %zu of the rendezvous configuration has no key: write "
                          "key=value,key=value",
                          index);
        }
        if (item.value.len == 0) {
            return mu_err(reterr_msg, MUSTER_EINVAL,
                          "the rendezvous configuration option %s has no value",
                          quote(&q, item.key));
        }
    }
    return 0;
}

bool mu_rdzv_config_get(const char *config, const char *key, struct mu_span *ret_value)
{
    struct mu_span rest = items_of(config);
    struct mu_span wanted = mu_span_str(key);
    struct item item;
    bool found = false;

    while (next_item(&rest, &item)) {
        if (item.value.len != 0 && mu_span_eq(item.key, wanted)) {
            *ret_value = item.value;
            found = true;
        }
    }
    return found;
}

static bool equals_in_any_case(struct mu_span s, const char *lower)
{
    size_t len = strlen(lower);

    if (s.len != len) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        uint8_t c = s.data[i];

        if (c >= 'A' && c <= 'Z') {
            c = (uint8_t)(c - 'A' + 'a');
        }
        if (c != (uint8_t)lower[i]) {
            return false;
        }
    }
    return true;
}

int mu_rdzv_config_bool(const char *config, const char *key, bool fallback, bool *ret,
                        struct mu_errmsg *reterr_msg)
{
    static const char *const words[][2] = {
        {"0", "1"}, {"false", "true"}, {"f", "t"}, {"no", "yes"}, {"n", "y"},
    };
    struct mu_span value;
    struct quoted q;

    if (!mu_rdzv_config_get(config, key, &value)) {
        *ret = fallback;
        return 0;
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        for (size_t truth = 0; truth < 2; truth++) {
            if (equals_in_any_case(value, words[i][truth])) {
                *ret = truth == 1;
                return 0;
            }
        }
    }
    return mu_err(
        reterr_msg, MUSTER_EINVAL,
        "the rendezvous configuration option '%s' is %s, which is not a boolean: write true "
        "or false",
        key, quote(&q, value));
}

/* Reads digits, with single underscores between them, as Python. False: none, or too large. */
static bool parse_digits(struct mu_span s, uint64_t *ret)
{
    uint64_t number = 0;

    if (s.len == 0 || s.data[0] == '_' || s.data[s.len - 1] == '_') {
        return false;
    }
    for (size_t i = 0; i < s.len; i++) {
        if (s.data[i] == '_' && s.data[i - 1] != '_') {
            continue;
        }
        if (!is_digit(s.data[i]) || __builtin_mul_overflow(number, (uint64_t)10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(s.data[i] - '0'), &number)) {
            return false;
        }
    }
    *ret = number;
    return true;
}

int mu_rdzv_config_int(const char *config, const char *key, int64_t fallback, int64_t *ret,
                       struct mu_errmsg *reterr_msg)
{
    struct mu_span value;
    struct mu_span digits;
    struct quoted q;
    uint64_t number;
    bool negative;

    if (!mu_rdzv_config_get(config, key, &value)) {
        *ret = fallback;
        return 0;
    }
    negative = value.data[0] == '-';
    digits = negative || value.data[0] == '+' ? mu_span_skip(value, 1) : value;
    if (!parse_digits(digits, &number) || number > (uint64_t)INT64_MAX) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the rendezvous configuration option '%s' is %s, which is not an integer",
                      key, quote(&q, value));
    }
    *ret = negative ? -(int64_t)number : (int64_t)number;
    return 0;
}

/* Reads the unit of a time, and converts milliseconds that were read as if it were seconds. */
static bool take_unit(struct mu_span unit, uint64_t *ms)
{
    static const struct {
        const char *name;
        uint64_t times, over;
    } units[] = {{"", 1, 1}, {"s", 1, 1}, {"m", 60, 1}, {"h", 3600, 1}, {"ms", 1, 1000}};

    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (mu_span_eq(unit, mu_span_str(units[i].name))) {
            *ms = (*ms * units[i].times + units[i].over - 1) / units[i].over;
            return true;
        }
    }
    return false;
}

/* Reads "5", "0.25", ".5", "500ms", "5s", "2m" or "1h" as milliseconds, rounded up so that what is
 * above zero stays so. */
static bool parse_seconds(struct mu_span s, uint64_t *ret_ms)
{
    uint64_t ms = 0;
    uint64_t unit = 1000;
    bool rest = false;
    bool any = false;
    size_t i = 0;

    for (; i < s.len && is_digit(s.data[i]); i++, any = true) {
        ms = ms * 10 + (uint64_t)(s.data[i] - '0') * 1000;
        if (ms > YEAR_MS) {
            return false;
        }
    }
    if (i < s.len && s.data[i] == '.') {
        for (i++; i < s.len && is_digit(s.data[i]); i++, any = true) {
            unit /= 10;
            ms += (uint64_t)(s.data[i] - '0') * unit;
            rest = rest || (unit == 0 && s.data[i] != '0');
        }
    }
    ms += rest ? 1 : 0;
    any = take_unit(mu_span_skip(s, i), &ms) && any;
    *ret_ms = ms;
    return any && ms != 0 && ms <= YEAR_MS;
}

int mu_rdzv_config_seconds(const char *config, const char *key, uint64_t fallback_ms,
                           uint64_t *ret_ms, struct mu_errmsg *reterr_msg)
{
    struct mu_span value;
    struct quoted q;
    uint64_t ms;

    if (!mu_rdzv_config_get(config, key, &value)) {
        *ret_ms = fallback_ms;
        return 0;
    }
    if (!parse_seconds(value, &ms)) {
        return mu_err(
            reterr_msg, MUSTER_EINVAL,
            "the rendezvous configuration option '%s' is %s: it must be a time above zero "
            "and at most a year, such as 500ms, 5s, 2m, or a number of seconds",
            key, quote(&q, value));
    }
    *ret_ms = ms;
    return 0;
}

/* "N/TIME". */
static bool parse_rate(struct mu_span text, uint32_t *ret_max, uint64_t *ret_ms)
{
    const uint8_t *slash = text.len == 0 ? NULL : memchr(text.data, '/', text.len);
    size_t len = slash == NULL ? 0 : (size_t)(slash - text.data);
    uint64_t max;

    if (slash == NULL || !parse_digits(mu_span(text.data, len), &max) || max >= UINT32_MAX ||
        !parse_seconds(mu_span_skip(text, len + 1), ret_ms)) {
        return false;
    }
    *ret_max = (uint32_t)max;
    return true;
}

int mu_rdzv_losses_parse(struct mu_span text, uint32_t *ret_max, uint64_t *ret_ms,
                         struct mu_errmsg *reterr_msg)
{
    struct quoted q;

    return parse_rate(text, ret_max, ret_ms)
               ? 0
               : mu_err(reterr_msg, MUSTER_EINVAL,
                        "%s is not a number of losses and a time: write N/TIME, such as 100/1h",
                        quote(&q, text));
}

int mu_rdzv_failures_parse(struct mu_span text, uint32_t *ret_max, uint64_t *ret_ms,
                           struct mu_errmsg *reterr_msg)
{
    struct quoted q;
    uint32_t max;
    uint64_t ms;

    if (!parse_rate(text, &max, &ms) || max == 0 || max > MU_RDZV_FAILURES_MAX) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "%s is not a number of failures (1 to %d) and a time: write N/TIME, such as "
                      "3/10m",
                      quote(&q, text), MU_RDZV_FAILURES_MAX);
    }
    *ret_max = max;
    *ret_ms = ms;
    return 0;
}

/* --- endpoint --------------------------------------------------------------------------------- */

/* The length of the letter that starts with a byte above ASCII; 0 if a host's name may not contain
 * it: it is not UTF-8, or one of the blanks and signs below U+00C0 and in U+2000. */
static size_t letter_len(struct mu_span s)
{
    uint8_t first = s.data[0];
    size_t len = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;

    if (first < 0xc3 || first > 0xf4 || s.len < len) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if ((s.data[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if ((first == 0xe0 && s.data[1] < 0xa0) || (first == 0xed && s.data[1] > 0x9f) ||
        (first == 0xf0 && s.data[1] < 0x90) || (first == 0xf4 && s.data[1] > 0x8f)) {
        return 0; /* overlong, a surrogate, or beyond the last one */
    }
    if ((first == 0xe2 && s.data[1] <= 0x81) || (first == 0xe3 && s.data[1] == 0x80)) {
        return 0; /* U+2000..U+207F and U+3000..U+303F: blanks and punctuation */
    }
    return len;
}

static bool is_host(struct mu_span host)
{
    size_t used;

    if (host.len == 0 || host.len > MU_ADDR_HOST_MAX) {
        return false;
    }
    for (size_t i = 0; i < host.len; i += used) {
        uint8_t c = host.data[i];

        used = 1;
        if (c >= 0x80) {
            used = letter_len(mu_span_skip(host, i));
        } else if (!is_digit(c) && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') &&
                   (c == '\0' || strchr("_.:-", c) == NULL)) {
            return false;
        }
        if (used == 0) {
            return false;
        }
    }
    return true;
}

static bool is_v6(const struct mu_addr *addr)
{
    struct mu_errmsg ignored;
    struct mu_addr parsed;
    char text[MU_ADDR_HOST_MAX + 16];

    (void)snprintf(text, sizeof(text), "[%s]:1", addr->host);
    return mu_addr_parse(text, 0, &parsed, &ignored) == 0;
}

static bool parse_port(struct mu_span digits, uint16_t *ret)
{
    uint32_t value = 0;

    if (digits.len == 0 || digits.len > PORT_DIGITS_MAX) {
        return false;
    }
    for (size_t i = 0; i < digits.len; i++) {
        if (!is_digit(digits.data[i])) {
            return false;
        }
        value = value * 10 + (uint32_t)(digits.data[i] - '0');
    }
    *ret = (uint16_t)value;
    return value <= UINT16_MAX;
}

int mu_rdzv_endpoint_parse(const char *text, uint16_t default_port, struct mu_addr *ret,
                           struct mu_errmsg *reterr_msg)
{
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = default_port};
    struct mu_span whole = trim(span_of(text));
    struct mu_span host = whole;
    const uint8_t *colon;
    struct quoted q;
    bool bare;

    if (whole.len == 0) {
        host = MU_SPAN_LIT("localhost");
    }
    if (memchr(host.data, ',', host.len) != NULL) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the rendezvous endpoint %s names several hosts: only the backend muster "
                      "takes that, with --succession majority or any; name one",
                      quote(&q, whole));
    }
    bare = host.data[0] != '[';
    colon = memrchr(host.data, ':', host.len);
    if (colon != NULL && (bare || host.data[host.len - 1] != ']')) {
        host.len = (size_t)(colon - host.data);
        if (!parse_port(mu_span_skip(whole, host.len + 1), &addr.port)) {
            return mu_err(reterr_msg, MUSTER_EINVAL,
                          "the port of the rendezvous endpoint %s must be an integer between 0 "
                          "and 65535",
                          quote(&q, whole));
        }
    }
    if (host.len >= 2 && host.data[0] == '[' && host.data[host.len - 1] == ']') {
        host = mu_span(host.data + 1, host.len - 2);
    }
    if (!is_host(host)) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the rendezvous endpoint %s does not name a host",
                      quote(&q, whole));
    }
    memcpy(addr.host, host.data, host.len);
    if (memchr(host.data, ':', host.len) != NULL && !is_v6(&addr)) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the rendezvous endpoint %s has several colons: write an IPv6 address as "
                      "[address]:port",
                      quote(&q, whole));
    }
    *ret = addr;
    return 0;
}

/* Takes the next endpoint off the text. MUSTER_EINVAL in words. */
static int next_endpoint(const char **rest, uint16_t default_port, struct mu_addr *ret,
                         struct mu_errmsg *reterr_msg)
{
    char text[MU_ADDR_HOST_MAX + 32];
    size_t len = strcspn(*rest, ",");
    bool last = (*rest)[len] == '\0';

    if ((len == 0 && !last) || (!last && (*rest)[len + 1] == '\0')) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a rendezvous endpoint is empty: write HOST:PORT,HOST:PORT");
    }
    if (len >= sizeof(text)) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "a rendezvous endpoint is longer than %zu bytes",
                      sizeof(text) - 1);
    }
    memcpy(text, *rest, len);
    text[len] = '\0';
    *rest += len + (last ? 0 : 1);
    return mu_rdzv_endpoint_parse(text, default_port, ret, reterr_msg);
}

int mu_rdzv_endpoints_parse(const char *text, uint16_t default_port, struct mu_addr *ret, int cap,
                            struct mu_errmsg *reterr_msg)
{
    char address[MU_ADDR_HOST_MAX + 16];
    int count = 0;

    do {
        int err;

        if (count == cap) {
            return mu_err(reterr_msg, MUSTER_EINVAL, "there are more than %d rendezvous endpoints",
                          cap);
        }
        err = next_endpoint(&text, default_port, &ret[count], reterr_msg);
        if (err != 0) {
            return err;
        }
        for (int i = 0; i < count; i++) {
            if (ret[i].port == ret[count].port && strcmp(ret[i].host, ret[count].host) == 0) {
                return mu_err(reterr_msg, MUSTER_EINVAL,
                              "the rendezvous endpoint %.120s is named twice: each is a place of "
                              "its own where the run can be hosted",
                              mu_addr_format(&ret[i], address, sizeof(address)));
            }
        }
        count++;
    } while (*text != '\0');
    return count;
}

/* Takes the next address off the list. MUSTER_EINVAL in words. */
static int next_relay(struct mu_span *rest, struct mu_addr *ret, struct mu_errmsg *reterr_msg)
{
    char text[MU_ADDR_HOST_MAX + 32];
    struct mu_span part;
    struct quoted q;
    int err;

    (void)next_part(rest, &part);
    part = trim(part);
    if (part.len >= sizeof(text)) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "an address is longer than %zu bytes",
                      sizeof(text) - 1);
    }
    memcpy(text, part.data, part.len);
    text[part.len] = '\0';
    err = mu_addr_parse(text, 0, ret, reterr_msg);
    if (err != 0 || ret->kind != MU_ADDR_TCP || ret->port == 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "%s is not HOST:PORT", quote(&q, part));
    }
    return 0;
}

int mu_rdzv_relays_parse(struct mu_span text, struct mu_addr *ret, int cap,
                         struct mu_errmsg *reterr_msg)
{
    int count = 0;

    do {
        int err;

        if (count == cap) {
            return mu_err(reterr_msg, MUSTER_EINVAL, "there are more than %d relays", cap);
        }
        err = next_relay(&text, &ret[count++], reterr_msg);
        if (err != 0) {
            return err;
        }
    } while (text.data != NULL);
    return count;
}

/* --- all of it -------------------------------------------------------------------------------- */

int mu_rdzv_params_check(const struct mu_rdzv_params *params, struct mu_errmsg *reterr_msg)
{
    size_t run_id_len = span_of(params->run_id).len;

    if (span_of(params->backend).len == 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the rendezvous backend has no name");
    }
    if (run_id_len == 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the run id is empty");
    }
    if (run_id_len > MU_RDZV_RUN_ID_MAX) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the run id has %zu bytes; at most %d are allowed",
                      run_id_len, MU_RDZV_RUN_ID_MAX);
    }
    if (params->nodes_min < 1) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the minimum number of nodes is %" PRIu32 ", it must be above zero",
                      params->nodes_min);
    }
    if (params->nodes_max < params->nodes_min) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the maximum number of nodes (%" PRIu32 ") is below the minimum (%" PRIu32
                      ")",
                      params->nodes_max, params->nodes_min);
    }
    return mu_rdzv_config_check(params->config, reterr_msg);
}
