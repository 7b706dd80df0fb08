/* The etcd backend's options, with PyTorch's names, and the client and URL that they describe. */
#include "service/rdzv/etcd.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/url.h"
#include "service/base/log.h"

#define FIRST_MS       UINT64_C(30000)
#define PASSWORD_CAP   512
#define VERSION_WIDEST UINT64_C(999999999999999999)

static int copy_option(const char *config, const char *key, char *to, size_t cap,
                       struct mu_errmsg *reterr_msg)
{
    struct mu_span value;

    if (!mu_rdzv_config_get(config, key, &value)) {
        return 0;
    }
    if (value.len >= cap || memchr(value.data, '\0', value.len) != NULL) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the rendezvous configuration option '%s' is longer than %zu bytes", key,
                      cap - 1);
    }
    memcpy(to, value.data, value.len);
    to[value.len] = '\0';
    return 0;
}

static int copy_options(struct mu_rdzv_etcd_config *c, const char *config,
                        struct mu_errmsg *reterr_msg)
{
    const struct {
        const char *key;
        char *to;
        size_t cap;
    } options[] = {
        {"etcd_prefix", c->prefix, sizeof(c->prefix)},
        /* etcd-v2 has other names for these; this backend's own names win. */
        {"ca_cert", c->cacert, sizeof(c->cacert)},
        {"ssl_cert", c->cert, sizeof(c->cert)},
        {"ssl_cert_key", c->key, sizeof(c->key)},
        {"cacert", c->cacert, sizeof(c->cacert)},
        {"cert", c->cert, sizeof(c->cert)},
        {"key", c->key, sizeof(c->key)},
        {"user", c->user, sizeof(c->user)},
        {"password_file", c->password_file, sizeof(c->password_file)},
    };
    int err = 0;

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]) && err == 0; i++) {
        err = copy_option(config, options[i].key, options[i].to, options[i].cap, reterr_msg);
    }
    return err;
}

/* Whether the value is "0" or "0.0", which mu_rdzv_config_seconds() does not take. */
static bool is_zero(struct mu_span value)
{
    size_t dots = 0;

    for (size_t i = 0; i < value.len; i++) {
        dots += value.data[i] == '.' ? 1 : 0;
        if (value.data[i] != '0' && value.data[i] != '.') {
            return false;
        }
    }
    return dots <= 1 && value.len > dots;
}

static int parse_delay(const char *config, const char *key, uint64_t *ms,
                       struct mu_errmsg *reterr_msg)
{
    struct mu_span value;

    if (mu_rdzv_config_get(config, key, &value) && is_zero(value)) {
        *ms = 0;
        return 0;
    }
    return mu_rdzv_config_seconds(config, key, *ms, ms, reterr_msg);
}

static int parse_times(struct mu_rdzv_etcd_config *c, const char *config,
                       struct mu_errmsg *reterr_msg)
{
    struct mu_retcd_config *m = &c->machine;
    struct mu_span value;
    int err = mu_rdzv_config_seconds(config, "timeout", m->timeout_ms, &m->timeout_ms, reterr_msg);

    /* The other backends' name for it; this backend's own name wins. */
    if (err == 0 && !mu_rdzv_config_get(config, "timeout", &value)) {
        err = mu_rdzv_config_seconds(config, "join_timeout", m->timeout_ms, &m->timeout_ms,
                                     reterr_msg);
    }
    if (err == 0) {
        err = parse_delay(config, "last_call_timeout", &m->last_call_ms, reterr_msg);
    }
    if (err == 0) {
        err = parse_delay(config, "notice_delay", &m->notice_ms, reterr_msg);
    }
    if (err == 0) {
        err =
            mu_rdzv_config_seconds(config, "close_timeout", m->close_ms, &m->close_ms, reterr_msg);
    }
    if (err == 0 && mu_rdzv_config_get(config, "upscale_delay", &value) &&
        mu_span_eq(value, MU_SPAN_LIT("never"))) {
        c->upscale_delay_ms = UINT64_MAX;
    } else if (err == 0) {
        err = parse_delay(config, "upscale_delay", &c->upscale_delay_ms, reterr_msg);
    }
    return err;
}

static int parse_protocol(struct mu_rdzv_etcd_config *c, const char *config,
                          struct mu_errmsg *reterr_msg)
{
    struct mu_span value;
    char quoted[40];

    if (mu_rdzv_config_get(config, "protocol", &value)) {
        c->tls = mu_span_eq(value, MU_SPAN_LIT("https"));
        if (!c->tls && !mu_span_eq(value, MU_SPAN_LIT("http"))) {
            return mu_err(reterr_msg, MUSTER_EINVAL,
                          "the rendezvous configuration option 'protocol' is %s: it must be http "
                          "or https",
                          mu_span_quote(quoted, sizeof(quoted), value));
        }
    }
    if (!c->tls && (c->cacert[0] != '\0' || c->cert[0] != '\0' || c->key[0] != '\0')) {
        /* PyTorch ignores them without a word. */
        mu_log(MUSTER_LOG_WARN, "RDZV-NO-TLS",
               "certificates are given, but not used; add protocol=https to use them");
        c->cacert[0] = c->cert[0] = c->key[0] = '\0';
    }
    if (c->key[0] != '\0' && c->cert[0] == '\0') {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the rendezvous configuration has 'key' but no 'cert'; give both");
    }
    return 0;
}

static int parse_words(struct mu_rdzv_etcd_config *c, const char *config,
                       struct mu_errmsg *reterr_msg)
{
    struct mu_span value;
    char quoted[40];

    if (mu_rdzv_config_get(config, "dialect", &value)) {
        c->torch_1 = mu_span_eq(value, MU_SPAN_LIT("1.13"));
        if (!c->torch_1 && !mu_span_eq(value, MU_SPAN_LIT("2"))) {
            return mu_err(reterr_msg, MUSTER_EINVAL,
                          "the rendezvous configuration option 'dialect' is %s: it must be 1.13 or "
                          "2",
                          mu_span_quote(quoted, sizeof(quoted), value));
        }
    }
    return mu_rdzv_config_bool(config, "notice_lost", c->machine.notice_lost,
                               &c->machine.notice_lost, reterr_msg);
}

/* Reads the numbers of nodes, in the form of the URL. */
static int parse_nodes(struct mu_rdzv_etcd_config *c, const struct mu_rdzv_params *params,
                       struct mu_errmsg *reterr_msg)
{
    int64_t min = params->nodes_min;
    int64_t max = params->nodes_max;
    int err = mu_rdzv_config_int(params->config, "min_workers", min, &min, reterr_msg);

    if (err == 0) {
        err = mu_rdzv_config_int(params->config, "max_workers", max > min ? max : min, &max,
                                 reterr_msg);
    }
    if (err == 0 && (min < 1 || max < min || max > INT32_MAX)) {
        err = mu_err(reterr_msg, MUSTER_EINVAL,
                     "%" PRId64 " to %" PRId64 " nodes: the minimum must be above zero and the "
                     "maximum not below it",
                     min, max);
    }
    if (err == 0) {
        c->machine.min_nodes = (uint32_t)min;
        c->machine.max_nodes = (uint32_t)max;
    }
    return err;
}

/* Copies HOST[:PORT], or several: the client checks each when it is made. */
static int copy_endpoints(struct mu_rdzv_etcd_config *c, const char *endpoint,
                          struct mu_errmsg *reterr_msg)
{
    const char *text = endpoint == NULL || endpoint[0] == '\0' ? "localhost" : endpoint;

    if (strlen(text) >= sizeof(c->endpoints)) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the endpoint is longer than %zu bytes",
                      sizeof(c->endpoints) - 1);
    }
    (void)snprintf(c->endpoints, sizeof(c->endpoints), "%s", text);
    return 0;
}

int mu_rdzv_etcd_configure(struct mu_rdzv_etcd_config *c, const struct mu_rdzv_params *params,
                           struct mu_errmsg *reterr_msg)
{
    char url[MU_RDZV_ETCD_URL_CAP];
    int err = mu_rdzv_handler_keys(params, reterr_msg);

    *c = (struct mu_rdzv_etcd_config){.machine = mu_retcd_config_defaults()};
    (void)snprintf(c->prefix, sizeof(c->prefix), "%s", c->machine.prefix);
    if (err == 0) {
        err = copy_options(c, params->config, reterr_msg);
    }
    if (err == 0) {
        err = parse_times(c, params->config, reterr_msg);
    }
    if (err == 0) {
        err = parse_protocol(c, params->config, reterr_msg);
    }
    if (err == 0) {
        err = parse_words(c, params->config, reterr_msg);
    }
    if (err == 0) {
        err = parse_nodes(c, params, reterr_msg);
    }
    if (err == 0) {
        err = copy_endpoints(c, params->endpoint, reterr_msg);
    }
    if (err == 0 && !mu_rdzv_etcd_url(url, c, params->run_id, VERSION_WIDEST)) {
        err = mu_err(reterr_msg, MUSTER_EINVAL,
                     "prefix, run id and files are too long to name a round's store in %d bytes",
                     MU_URL_MAX);
    }
    c->machine.prefix = c->prefix;
    return err;
}

/* --- the client ------------------------------------------------------------------------------- */

static const char *or_null(const char *text)
{
    return text[0] == '\0' ? NULL : text;
}

int mu_rdzv_etcd_client(const struct mu_rdzv_etcd_config *c, struct mu_env *env,
                        struct mu_etcd **ret_etcd, struct mu_errmsg *reterr_msg)
{
    struct mu_etcd_config config = mu_etcd_config_defaults();
    uint64_t first = c->machine.timeout_ms < FIRST_MS ? c->machine.timeout_ms : FIRST_MS;
    char password[PASSWORD_CAP];
    int err = mu_etcd_read_password(env, c->password_file, password, sizeof(password), reterr_msg);

    if (err != 0) {
        return MUSTER_EINVAL;
    }
    config.endpoints = c->endpoints;
    config.tls = c->tls;
    config.cacert = or_null(c->cacert);
    config.cert = or_null(c->cert);
    config.key = or_null(c->key);
    config.user = or_null(c->user);
    config.password = password;
    config.first_ms = (uint32_t)first;
    err = mu_etcd_new(env, &config, ret_etcd, reterr_msg);
    return err == MUSTER_EURL ? MUSTER_EINVAL : err;
}

/* --- the round's store ------------------------------------------------------------------------ */

struct text {
    char *at;
    char *end;
    bool cut;
};

static void put(struct text *t, const char *text, bool escape)
{
    for (; *text != '\0'; text++) {
        if (t->end - t->at <= MU_URL_ESCAPED) {
            t->cut = true;
            return;
        }
        if (escape) {
            t->at = mu_url_escape(t->at, *text, "-._~/");
        } else {
            *t->at++ = *text;
        }
    }
}

static void put_param(struct text *t, const char *name, const char *value)
{
    if (value[0] != '\0') {
        put(t, "&", false);
        put(t, name, false);
        put(t, "=", false);
        put(t, value, true);
    }
}

bool mu_rdzv_etcd_url(char url[MU_RDZV_ETCD_URL_CAP], const struct mu_rdzv_etcd_config *c,
                      const char *run_id, uint64_t version)
{
    struct text t = {.at = url, .end = url + MU_RDZV_ETCD_URL_CAP};
    size_t len = strlen(c->prefix);
    char tail[64];

    put(&t, "etcd://", false);
    put(&t, c->endpoints, false);
    put(&t, c->prefix[0] == '/' ? "" : "/", false);
    put(&t, c->prefix, true);
    put(&t, len > 0 && c->prefix[len - 1] == '/' ? "run_" : "/run_", false);
    put(&t, run_id == NULL ? "" : run_id, true);
    (void)snprintf(tail, sizeof(tail), "/rdzv/v_%" PRIu64 "/kv?api=v2", version);
    put(&t, tail, false);
    put_param(&t, "tls", c->tls ? "true" : "");
    put_param(&t, "cacert", c->cacert);
    put_param(&t, "cert", c->cert);
    put_param(&t, "key", c->key);
    put_param(&t, "user", c->user);
    put_param(&t, "password_file", c->password_file);
    *t.at = '\0';
    return !t.cut;
}

int mu_rdzv_etcd_path(struct mu_buf *out, const struct mu_rdzv_etcd_config *c, const char *run_id,
                      const char *tail)
{
    size_t len = strlen(c->prefix);
    int err = mu_buf_append(out, MU_SPAN_LIT("/v2/keys"));

    while (len > 0 && c->prefix[len - 1] == '/') {
        len--;
    }
    if (err == 0 && (len == 0 || c->prefix[0] != '/')) {
        err = mu_buf_append(out, MU_SPAN_LIT("/"));
    }
    err = err != 0 ? err : mu_etcd2_path(out, mu_span(c->prefix, len));
    err = err != 0 || len == 0 ? err : mu_buf_append(out, MU_SPAN_LIT("/"));
    err = err != 0 ? err : mu_buf_append(out, MU_SPAN_LIT("run_"));
    err = err != 0 ? err : mu_etcd2_path(out, mu_span_str(run_id));
    err = err != 0 ? err : mu_buf_append(out, MU_SPAN_LIT("/rdzv/"));
    return err != 0 ? err : mu_buf_append(out, mu_span(tail, strlen(tail) + 1));
}
