/* The parts of the backends etcd-v2 and etcd-v3 that c10d lacks: the cluster, and the store in
 * it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "service/etcd/url.h"
#include "service/rdzv/c10d.h"
#include "service/rdzv/register_v3.h"

#define LEASE_TTL_S     5
#define NODES_PER_TTL_S 50 /* a cluster that keeps hundreds of leases may be slow with one */
#define LEASE_TTL_S_MAX 3600
#define WATCH_QUIET_MS  10000u
/* If etcd's leader dies during a request, etcd answers only after 6 or 7 s. All requests of the
 * etcd-v3 backend can be repeated. */
#define TRY_MS        2500u
#define TRY_MS_A_NODE 10u /* hundreds of nodes that come together wait for each other */
#define TRY_MS_MAX    8000u
#define V2_STORE      "/torch/elastic/store" /* PyTorch's, for all runs */

static const char *const url_params[] = {"tls", "cacert", "cert", "key", "user", "password_file"};

static bool is_url_param(const char *name)
{
    for (size_t i = 0; i < sizeof(url_params) / sizeof(url_params[0]); i++) {
        if (strcmp(url_params[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* Reads HOST[:PORT],... or etcd://HOST[:PORT],.../PREFIX?...; an empty endpoint is localhost. */
static int parse_endpoint(struct mu_rdzv_c10d_config *c, const char *text,
                          struct mu_errmsg *reterr_msg)
{
    char url[MU_URL_MAX];
    int len;
    int err;

    text = text == NULL ? "" : text + strspn(text, " \t");
    if (strncmp(text, "etcd://", 7) == 0) {
        text += 7;
    } else if (strstr(text, "://") != NULL) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the endpoint %.100s is not an etcd endpoint; write HOST:PORT,HOST:PORT,... "
                      "or etcd://HOST:PORT,.../PREFIX",
                      text);
    }
    len = snprintf(url, sizeof(url), "etcd://%s", text[0] == '\0' ? "localhost" : text);
    if (len < 0 || (size_t)len >= sizeof(url)) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the endpoint is longer than a URL may be");
    }
    err = mu_url_parse(&c->etcd, url, reterr_msg);
    if (err != 0) {
        return MUSTER_EINVAL;
    }
    for (size_t i = 0; i < c->etcd.param_count; i++) {
        if (!is_url_param(c->etcd.params[i].name)) {
            return mu_err(reterr_msg, MUSTER_EINVAL,
                          "an endpoint in etcd has no parameter \"%.64s\"", c->etcd.params[i].name);
        }
    }
    if (c->place == MU_RDZV_C10D_ETCD_V2 && c->etcd.path[0] != '\0' &&
        strcmp(c->etcd.path, "/") != 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the backend etcd-v2 keeps its keys where PyTorch does; leave %.64s out of "
                      "its endpoint",
                      c->etcd.path);
    }
    return mu_etcd_url_prefix(&c->etcd, "/muster", c->etcd_prefix, sizeof(c->etcd_prefix),
                              reterr_msg);
}

/* Reads PyTorch's options for TLS. Its backend "etcd" has other names for them; those of "etcd-v2"
 * win. */
static int parse_tls(struct mu_rdzv_c10d_config *c, const char *config,
                     struct mu_errmsg *reterr_msg)
{
    static const char *const names[][2] = {
        {"ca_cert", "cacert"}, {"ssl_cert", "cert"}, {"ssl_cert_key", "key"}};
    struct mu_span value;
    char quoted[40];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (!mu_rdzv_config_get(config, names[i][0], &value) &&
            !mu_rdzv_config_get(config, names[i][1], &value)) {
            continue;
        }
        if (value.len >= sizeof(c->etcd_files[i])) {
            return mu_err(reterr_msg, MUSTER_EINVAL, "the path of %s is too long", names[i][0]);
        }
        memcpy(c->etcd_files[i], value.data, value.len);
        c->etcd_files[i][value.len] = '\0';
    }
    if (mu_rdzv_config_get(config, "protocol", &value)) {
        c->etcd_tls = mu_span_eq(value, MU_SPAN_LIT("https"));
        if (!c->etcd_tls && !mu_span_eq(value, MU_SPAN_LIT("http"))) {
            return mu_err(reterr_msg, MUSTER_EINVAL,
                          "the protocol of etcd is http or https, not %s",
                          mu_span_quote(quoted, sizeof(quoted), value));
        }
    }
    return 0;
}

int mu_rdzv_c10d_configure_etcd(struct mu_rdzv_c10d_config *c, const struct mu_rdzv_params *params,
                                struct mu_errmsg *reterr_msg)
{
    int64_t ttl_s = params->nodes_max / NODES_PER_TTL_S;
    uint64_t silence_ms = 0;
    int err = parse_endpoint(c, params->endpoint, reterr_msg);

    ttl_s = ttl_s < LEASE_TTL_S ? LEASE_TTL_S : ttl_s;
    if (err == 0) {
        err = parse_tls(c, params->config, reterr_msg);
    }
    if (err == 0) {
        err = mu_rdzv_handler_silence(params, &silence_ms, reterr_msg);
        ttl_s = silence_ms == 0 ? ttl_s : (int64_t)((silence_ms + 999) / 1000);
    }
    if (err == 0) {
        err = mu_rdzv_config_int(params->config, "lease_ttl", ttl_s, &c->lease_ttl_s, reterr_msg);
    }
    if (err == 0 && (c->lease_ttl_s < 1 || c->lease_ttl_s > LEASE_TTL_S_MAX)) {
        err = mu_err(reterr_msg, MUSTER_EINVAL,
                     "lease_ttl is %" PRId64 ": it must be between 1 and %d seconds",
                     c->lease_ttl_s, LEASE_TTL_S_MAX);
    }
    return err;
}

static const char *file_or_none(const char *file)
{
    return file[0] == '\0' ? NULL : file;
}

int mu_rdzv_c10d_open_etcd(const struct mu_rdzv_c10d_config *c, struct mu_env *env,
                           struct mu_etcd **ret_etcd, struct mu_errmsg *reterr_msg)
{
    struct mu_etcd_config config = mu_etcd_config_defaults();
    uint64_t join_ms = c->settings.join_timeout_ms;

    config.first_ms = (uint32_t)(join_ms < INT32_MAX ? join_ms : INT32_MAX);
    config.quiet_ms = WATCH_QUIET_MS;
    if (c->place == MU_RDZV_C10D_ETCD_V3) {
        uint64_t ms = TRY_MS + c->settings.max_nodes * TRY_MS_A_NODE;

        config.try_ms = (uint32_t)(ms < TRY_MS_MAX ? ms : TRY_MS_MAX);
    }
    config.tls = c->etcd_tls;
    config.cacert = file_or_none(c->etcd_files[0]);
    config.cert = file_or_none(c->etcd_files[1]);
    config.key = file_or_none(c->etcd_files[2]);
    return mu_etcd_new_url(env, &c->etcd, &config, ret_etcd, reterr_msg);
}

/* A slash in a run's id would lead to the keys of another run. */
char *mu_rdzv_c10d_v3_prefix(char *prefix, size_t cap, const struct mu_rdzv_c10d_config *c,
                             const char *run_id)
{
    size_t len = (size_t)snprintf(prefix, cap, "%s/rdzv/", c->etcd_prefix);

    for (; *run_id != '\0' && len + 4 < cap; run_id++) {
        if (*run_id == '/' || *run_id == '%') {
            len += (size_t)snprintf(prefix + len, cap - len, "%%%02X", (unsigned char)*run_id);
        } else {
            prefix[len++] = *run_id;
        }
    }
    prefix[len] = '\0';
    return prefix;
}

static char *put_text(char *at, const char *text)
{
    size_t len = strlen(text);

    memcpy(at, text, len);
    return at + len;
}

static char *put_param(char *at, char before, const char *name, const char *value)
{
    *at++ = before;
    at = put_text(at, name);
    *at++ = '=';
    return mu_rdzv_c10d_escape(at, value);
}

/* All but the authority is escaped: a text that fitted into a URL before fits into three times its
 * length. */
char *mu_rdzv_c10d_etcd_url(char *url, const struct mu_rdzv_c10d_config *c, const char *run_id,
                            int64_t round)
{
    static const char *const files[] = {"cacert", "cert", "key"};
    bool v2 = c->place == MU_RDZV_C10D_ETCD_V2;
    char prefix[MU_RDZV_C10D_PATH_CAP + 3 * MU_RDZV_RUN_ID_MAX + 16];
    char number[24];
    char *at = put_text(url, "etcd://");

    at = put_text(at, c->etcd.authority);
    if (v2) {
        at = put_text(at, V2_STORE);
    } else {
        at = mu_rdzv_c10d_escape(at, mu_rdzv_c10d_v3_prefix(prefix, sizeof(prefix), c, run_id));
        at = put_text(at, "/store");
    }
    at = put_param(at, '?', "api", v2 ? "v2" : "v3");
    if (c->etcd_tls) {
        at = put_param(at, '&', "tls", "true");
    }
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        if (c->etcd_files[i][0] != '\0') {
            at = put_param(at, '&', files[i], c->etcd_files[i]);
        }
    }
    for (size_t i = 0; i < c->etcd.param_count; i++) {
        at = put_param(at, '&', c->etcd.params[i].name, c->etcd.params[i].value);
    }
    /* In v3 all rounds have the same number of digits, so that earlier rounds are one range of
     * keys. */
    (void)snprintf(number, sizeof(number), v2 ? "%" PRId64 : MU_RDZV_V3_ROUND, round);
    if (v2) {
        at = put_param(at, '&', "prefix", "torch.rendezvous.");
        at = mu_rdzv_c10d_escape(at, run_id);
        *at++ = '.';
        at = put_text(at, number);
    } else {
        at = put_param(at, '&', "prefix", number);
    }
    *at = '\0';
    return url;
}
