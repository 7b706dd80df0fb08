/* The options of the backends on a register, and texts for their users. */
#include "service/rdzv/c10d.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/addr.h"
#include "core/alloc.h"

/* Reads one of a list of words; takes the fallback where the key is absent. */
static int parse_word(const char *config, const char *key, const char *const *words,
                      size_t fallback, size_t *ret, struct mu_errmsg *reterr_msg)
{
    struct mu_span value;
    char quoted[40];

    *ret = fallback;
    if (!mu_rdzv_config_get(config, key, &value)) {
        return 0;
    }
    for (size_t i = 0; words[i] != NULL; i++) {
        if (mu_span_eq(value, mu_span_str(words[i]))) {
            *ret = i;
            return 0;
        }
    }
    return mu_err(
        reterr_msg, MUSTER_EINVAL,
        "the rendezvous configuration option '%s' does not take the value %s; see muster-rdzv(1)",
        key, mu_span_quote(quoted, sizeof(quoted), value));
}

static int parse_times(struct mu_rdzv_c10d_config *c, const char *config,
                       struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_settings *set = &c->settings;
    const struct {
        const char *key;
        uint64_t *ms;
    } times[] = {
        {"join_timeout", &set->join_timeout_ms},
        {"last_call_timeout", &set->last_call_timeout_ms},
        {"close_timeout", &set->close_timeout_ms},
        {"heartbeat_timeout", &set->heartbeat_timeout_ms},
        {"keep_alive_interval", &set->keep_alive_interval_ms},
        {"read_timeout", &c->read_timeout_ms},
    };
    struct mu_span value = {0};
    int err = 0;

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]) && err == 0; i++) {
        err = mu_rdzv_config_seconds(config, times[i].key, *times[i].ms, times[i].ms, reterr_msg);
    }
    c->upscale_delay_ms = 0;
    if (err == 0 && mu_rdzv_config_get(config, "upscale_delay", &value) &&
        !mu_span_eq(value, MU_SPAN_LIT("0"))) {
        if (mu_span_eq(value, MU_SPAN_LIT("never"))) {
            c->upscale_delay_ms = UINT64_MAX;
        } else {
            err = mu_rdzv_config_seconds(config, "upscale_delay", 0, &c->upscale_delay_ms,
                                         reterr_msg);
        }
    }
    return err;
}

static int parse_numbers(struct mu_rdzv_c10d_config *c, struct mu_env *env, const char *config,
                         struct mu_errmsg *reterr_msg)
{
    struct mu_self self;
    int64_t attempts;
    int err = mu_rdzv_config_int(config, "keep_alive_max_attempt",
                                 c->settings.keep_alive_max_attempt, &attempts, reterr_msg);

    if (err == 0 && (attempts < 1 || attempts > UINT16_MAX)) {
        err = mu_err(reterr_msg, MUSTER_EINVAL,
                     "keep_alive_max_attempt is %" PRId64 ": it must be between 1 and %d", attempts,
                     UINT16_MAX);
    }
    if (err == 0) {
        c->settings.keep_alive_max_attempt = (uint32_t)attempts;
        mu_env_self(env, &self);
        err = mu_rdzv_config_int(config, "pid", self.pid, &c->pid, reterr_msg);
    }
    if (err == 0) {
        err = mu_rdzv_config_int(config, "local_id", -1, &c->local_id, reterr_msg);
    }
    return err;
}

/* What etcd speaks, which PyTorch's backends of that name are told by the same key. */
static bool is_etcds_protocol(const char *config)
{
    struct mu_span value;

    return mu_rdzv_config_get(config, "protocol", &value) &&
           (mu_span_eq(value, MU_SPAN_LIT("http")) || mu_span_eq(value, MU_SPAN_LIT("https")));
}

static int parse_words(struct mu_rdzv_c10d_config *c, const struct mu_rdzv_params *params,
                       struct mu_errmsg *reterr_msg)
{
    static const char *const stores[] = {"tcp", "file", NULL};
    static const char *const dialects[] = {"1.13", "2-naive", "2", NULL};
    static const char *const protocols[] = {"any", "muster", "torch1", "torch2", NULL};
    const char *config = params->config;
    struct mu_span value;
    size_t word = 0;
    bool host = false;
    int err = c->place != MU_RDZV_C10D_STORE
                  ? 0
                  : parse_word(config, "store_type", stores, 0, &word, reterr_msg);

    c->file = word == 1;
    if (err == 0) {
        err = parse_word(config, "dialect", dialects, 2, &word, reterr_msg);
        c->dialect = (enum mu_rdzv_dialect)(MU_RDZV_DIALECT_1_13 + word);
        c->dialect_given = mu_rdzv_config_get(config, "dialect", &value);
    }
    if (err == 0 && c->place == MU_RDZV_C10D_STORE && is_etcds_protocol(config)) {
        mu_rdzv_handler_ignore(params, "\"protocol\" of etcd");
    } else if (err == 0 && c->place == MU_RDZV_C10D_STORE) {
        err = parse_word(config, "protocol", protocols, 0, &word, reterr_msg);
        c->protocol = (enum mu_store_tcp_protocol)(MU_STORE_TCP_ANY + word);
    }
    if (err == 0) {
        err = mu_rdzv_config_bool(config, "members", true, &c->members, reterr_msg);
    }
    if (err == 0) {
        err = mu_rdzv_config_bool(config, "is_host", false, &host, reterr_msg);
        c->host = !mu_rdzv_config_get(config, "is_host", &value) ? MU_RDZV_HOST_TRY
                  : host                                         ? MU_RDZV_HOST_YES
                                                                 : MU_RDZV_HOST_NO;
    }
    return err;
}

/* Makes the path absolute: the URL of a round's store cannot hold another. Without a path a file is
 * made, as in PyTorch: it serves one node, since no other knows its name. */
static int parse_path(struct mu_rdzv_c10d_config *c, struct mu_env *env, const char *endpoint,
                      struct mu_errmsg *reterr_msg)
{
    const struct mu_paths *paths = mu_env_paths(env);
    bool given = endpoint != NULL && endpoint[0] != '\0';
    int err = paths == NULL ? MUSTER_ENOTSUP
              : given       ? paths->absolute(endpoint, c->path, sizeof(c->path))
                            : paths->create(c->path, sizeof(c->path));

    if (err == MUSTER_ELIMIT) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the path of the store has more than %d bytes",
                      MU_RDZV_C10D_PATH_CAP - 1);
    }
    return err == 0 ? 0
                    : mu_err(reterr_msg, given ? MUSTER_EINVAL : MUSTER_EADDR,
                             given ? "the working directory cannot be found: %s"
                                   : "cannot make a file in /tmp: %s",
                             muster_strerror(err));
}

int mu_rdzv_c10d_configure(struct mu_rdzv_c10d_config *c, struct mu_env *env,
                           const struct mu_rdzv_params *params, struct mu_errmsg *reterr_msg)
{
    bool v2 = strcmp(params->backend, "etcd-v2") == 0;
    bool v3 = strcmp(params->backend, "etcd-v3") == 0;
    int err = mu_rdzv_handler_keys(params, reterr_msg);

    *c = (struct mu_rdzv_c10d_config){.settings = mu_rdzv_settings_defaults(),
                                      .read_timeout_ms = 60000};
    c->place = v2 ? MU_RDZV_C10D_ETCD_V2 : v3 ? MU_RDZV_C10D_ETCD_V3 : MU_RDZV_C10D_STORE;
    c->settings.min_nodes = params->nodes_min;
    c->settings.max_nodes = params->nodes_max;
    if (err == 0) {
        err = parse_times(c, params->config, reterr_msg);
    }
    if (err == 0) {
        err = parse_numbers(c, env, params->config, reterr_msg);
    }
    if (err == 0) {
        err = parse_words(c, params, reterr_msg);
    }
    if (err == 0) {
        err = mu_rdzv_settings_check(&c->settings, reterr_msg);
    }
    if (err == 0 && c->place != MU_RDZV_C10D_STORE) {
        return mu_rdzv_c10d_configure_etcd(c, params, reterr_msg);
    }
    if (err == 0 && c->file) {
        return parse_path(c, env, params->endpoint, reterr_msg);
    }
    return err != 0
               ? err
               : mu_rdzv_endpoint_parse(params->endpoint, MU_RDZV_PORT, &c->endpoint, reterr_msg);
}

/* --- texts ------------------------------------------------------------------------------------ */

/* Whether a byte needs no escape in a URL's path or query, and reads better without. */
static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("-._~/:@", c) != NULL);
}

char *mu_rdzv_c10d_escape(char *at, const char *text)
{
    static const char hex[] = "0123456789ABCDEF";

    for (; *text != '\0'; text++) {
        if (is_plain(*text)) {
            *at++ = *text;
        } else {
            *at++ = '%';
            *at++ = hex[(uint8_t)*text >> 4];
            *at++ = hex[(uint8_t)*text & 15];
        }
    }
    return at;
}

char *mu_rdzv_c10d_url(char *url, const struct mu_rdzv_c10d_config *c, const char *run_id,
                       int64_t round)
{
    static const char prefix[] = "?prefix=torch.rendezvous.";
    char address[MU_ADDR_HOST_MAX + 16];
    char *at = url;

    if (c->place != MU_RDZV_C10D_STORE) {
        return mu_rdzv_c10d_etcd_url(url, c, run_id, round);
    }
    if (c->file) {
        at += snprintf(at, MU_RDZV_C10D_URL_CAP, "file://");
        at = mu_rdzv_c10d_escape(at, c->path);
    } else {
        at += snprintf(at, MU_RDZV_C10D_URL_CAP, "tcp://%s",
                       mu_addr_format(&c->endpoint, address, sizeof(address)));
    }
    memcpy(at, prefix, sizeof(prefix) - 1);
    at = mu_rdzv_c10d_escape(at + sizeof(prefix) - 1, run_id);
    (void)snprintf(at, (size_t)(url + MU_RDZV_C10D_URL_CAP - at), ".%" PRId64, round);
    return url;
}

char *mu_rdzv_c10d_name(char *name, const struct mu_rdzv_node *node)
{
    (void)snprintf(name, MU_RDZV_C10D_NAME_CAP, "%s_%" PRId64 "_%" PRId64, node->addr, node->pid,
                   node->local_id);
    return name;
}

struct mu_rdzv_peer *mu_rdzv_c10d_peers(const struct mu_rdzv_node *const *members, size_t count)
{
    struct mu_rdzv_peer *peers;
    size_t bytes = 0;
    char *at;

    for (size_t i = 0; i < count; i++) {
        /* Room for the address, and for the name with two numbers behind it. */
        bytes += 2 * strlen(members[i]->addr) + 48;
    }
    peers = mu_malloc(count * sizeof(*peers) + bytes);
    if (peers == NULL) {
        return NULL;
    }
    at = (char *)(peers + count);
    for (size_t i = 0; i < count; i++) {
        size_t len = strlen(members[i]->addr) + 1;

        peers[i].addr = memcpy(at, members[i]->addr, len);
        at += len;
        peers[i].name = at;
        at += snprintf(at, len + 46, "%s_%" PRId64 "_%" PRId64, members[i]->addr, members[i]->pid,
                       members[i]->local_id) +
              1;
    }
    return peers;
}
