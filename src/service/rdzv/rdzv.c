#include "service/rdzv/rdzv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "codec/rdzv/keys.h"
#include "service/base/log.h"
#include "service/rdzv/url.h"

#define KEEP_ALIVE_MS       UINT64_C(5000) /* PyTorch's defaults */
#define KEEP_ALIVE_ATTEMPTS 3
#define HOST_PART_MAX       200 /* bytes of a default name, so that the rest fits behind it */

static const struct {
    const char *name;
    int (*create)(struct mu_env *env, const struct mu_rdzv_params *params,
                  const struct mu_rdzv_events *events, struct mu_rdzv_handler **ret_handler,
                  struct mu_errmsg *reterr_msg);
} backends[] = {
    {"muster", mu_rdzv_muster_new}, {"c10d", mu_rdzv_c10d_new},    {"etcd", mu_rdzv_etcd_new},
    {"etcd-v2", mu_rdzv_c10d_new},  {"etcd-v3", mu_rdzv_c10d_new}, {"static", mu_rdzv_static_new},
};

static int open_backend(struct mu_env *env, const struct mu_rdzv_params *params,
                        const struct mu_rdzv_events *events, struct mu_rdzv_handler **ret_handler,
                        struct mu_errmsg *reterr_msg)
{
    int err = mu_rdzv_params_check(params, reterr_msg);
    char names[128];
    size_t len = 0;

    if (err != 0) {
        return err;
    }
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        if (strcmp(params->backend, backends[i].name) == 0) {
            return backends[i].create(env, params, events, ret_handler, reterr_msg);
        }
    }
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        len += (size_t)snprintf(names + len, sizeof(names) - len, "%s%s", i == 0 ? "" : ", ",
                                backends[i].name);
    }
    return mu_err(reterr_msg, MUSTER_EINVAL,
                  "there is no rendezvous backend \"%.64s\"; use one of: %s", params->backend,
                  names);
}

int mu_rdzv_open(struct mu_env *env, const struct mu_rdzv_params *params,
                 const struct mu_rdzv_events *events, struct mu_rdzv_handler **ret_handler,
                 struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_url url;
    int err;

    if (!mu_rdzv_url_is(params->backend, params->endpoint)) {
        return open_backend(env, params, events, ret_handler, reterr_msg);
    }
    err = mu_rdzv_url_init(&url, params, reterr_msg);
    if (err == 0) {
        err = open_backend(env, &url.params, events, ret_handler, reterr_msg);
        mu_rdzv_url_fini(&url);
    }
    return err;
}

/* --- for backends ----------------------------------------------------------------------------- */

/* Copies a text that becomes part of names, keys and lines: bounded, and without control
 * characters. */
static int copy_text(char *to, size_t cap, struct mu_span text, const char *what,
                     struct mu_errmsg *reterr_msg)
{
    if (text.len >= cap) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the %s is longer than %zu bytes", what, cap - 1);
    }
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < 0x20 || text.data[i] == 0x7f) {
            return mu_err(reterr_msg, MUSTER_EINVAL, "the %s contains a control character", what);
        }
    }
    if (text.len != 0) {
        memcpy(to, text.data, text.len);
    }
    to[text.len] = '\0';
    return 0;
}

static struct mu_span text_span(const char *text)
{
    return text == NULL ? (struct mu_span){0} : mu_span(text, strlen(text));
}

/*
 * Host and process do not identify a node: there may be several in one process, and containers
 * share host names and process ids. Hence the random part.
 */
static void make_name(struct mu_rdzv_handler *h, const struct mu_self *self)
{
    uint32_t random;

    mu_env_entropy(h->env, &random, sizeof(random));
    (void)snprintf(h->node, sizeof(h->node), "%.*s_%" PRId64 "_%08" PRIx32, HOST_PART_MAX,
                   self->host, self->pid, random);
}

int mu_rdzv_handler_init(struct mu_rdzv_handler *h, const struct mu_rdzv_handler_ops *ops,
                         struct mu_env *env, const struct mu_rdzv_params *params,
                         const struct mu_rdzv_events *events, struct mu_errmsg *reterr_msg)
{
    struct mu_self self;
    struct mu_span value;
    int err;

    h->ops = ops;
    h->env = env;
    h->events = *events;
    h->hosting = false;
    h->join_by = h->unknown_since = MU_MONO_NEVER;
    mu_env_self(env, &self);
    err = copy_text(h->backend, sizeof(h->backend), text_span(params->backend), "backend's name",
                    reterr_msg);
    if (err == 0) {
        err = copy_text(h->run_id, sizeof(h->run_id), text_span(params->run_id), "run id",
                        reterr_msg);
    }
    if (err == 0 && mu_rdzv_config_get(params->config, "name", &value) && value.len != 0) {
        err = copy_text(h->node, sizeof(h->node), value, "node's name", reterr_msg);
    } else if (err == 0) {
        make_name(h, &self);
    }
    if (err == 0) {
        if (!mu_rdzv_config_get(params->config, "addr", &value) || value.len == 0) {
            value = text_span(params->local_addr);
        }
        value = value.len == 0 ? text_span(self.host) : value;
        err = copy_text(h->addr, sizeof(h->addr), value, "node's address", reterr_msg);
    }
    if (err == 0) {
        err =
            mu_rdzv_config_bool(params->config, "keep_trying", false, &h->keep_trying, reterr_msg);
    }
    if (err == 0 && params->page != NULL) {
        err = copy_text(h->page, sizeof(h->page), text_span(params->page), "page's address",
                        reterr_msg);
    }
    return err;
}

int mu_rdzv_handler_keys(const struct mu_rdzv_params *params, struct mu_errmsg *reterr_msg)
{
    struct mu_span rest = text_span(params->config);
    struct mu_span key;
    char quoted[80];

    while (mu_rdzv_config_next(&rest, &key)) {
        if (key.len == 0) {
            continue;
        }
        switch (mu_rdzv_key_judge(params->backend, key, reterr_msg)) {
        case MU_RDZV_KEY_USED:
            break;
        case MU_RDZV_KEY_IGNORED:
            mu_rdzv_handler_ignore(params, mu_span_quote(quoted, sizeof(quoted), key));
            break;
        case MU_RDZV_KEY_REFUSED:
            return MUSTER_EINVAL;
        }
    }
    return 0;
}

void mu_rdzv_handler_ignore(const struct mu_rdzv_params *params, const char *what)
{
    mu_log(MUSTER_LOG_WARN, "RDZV-CONF",
           "run=\"%.255s\" the option %s has no meaning for the backend %.32s and is ignored",
           params->run_id, what, params->backend);
}

int mu_rdzv_handler_silence(const struct mu_rdzv_params *params, uint64_t *ret_ms,
                            struct mu_errmsg *reterr_msg)
{
    uint64_t interval_ms;
    struct mu_span value;
    int64_t attempts;
    int err = mu_rdzv_config_seconds(params->config, "keep_alive_interval", KEEP_ALIVE_MS,
                                     &interval_ms, reterr_msg);

    if (err == 0) {
        err = mu_rdzv_config_int(params->config, "keep_alive_max_attempt", KEEP_ALIVE_ATTEMPTS,
                                 &attempts, reterr_msg);
    }
    if (err == 0 && (attempts < 1 || attempts > UINT16_MAX)) {
        err = mu_err(reterr_msg, MUSTER_EINVAL,
                     "keep_alive_max_attempt is %" PRId64 ": it must be between 1 and %d", attempts,
                     UINT16_MAX);
    }
    if (err == 0) {
        bool given = mu_rdzv_config_get(params->config, "keep_alive_interval", &value) ||
                     mu_rdzv_config_get(params->config, "keep_alive_max_attempt", &value);

        *ret_ms = given ? interval_ms * (uint64_t)attempts : 0;
    }
    return err;
}

void mu_rdzv_handler_record(struct mu_rdzv_handler *h, enum mu_rdzv_record_state state,
                            int64_t rank, const char *name, const char *format, ...)
{
    char message[1024];
    va_list args;

    if (h->events.record == NULL) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    h->events.record(h->events.context, &(struct mu_rdzv_record){
                                            .name = name,
                                            .run_id = h->run_id,
                                            .message = message,
                                            .node = h->node,
                                            .state = state,
                                            .rank = rank,
                                        });
}

/* --- what a join waits for -------------------------------------------------------------------- */

bool mu_rdzv_is_refusal(int status)
{
    return status == MUSTER_ETLS || status == MUSTER_ENOTLS || status == MUSTER_EREFUSED ||
           status == MUSTER_ELOCKED;
}

bool mu_rdzv_is_over(int status)
{
    return status == MUSTER_ERDZV_CLOSED || status == MUSTER_ERDZV_GRACEFUL ||
           status == MUSTER_ERDZV_RESTARTS || status == MUSTER_ERDZV_LOSSES;
}

static bool is_never(mu_mono_t at)
{
    return at.ns == MU_MONO_NEVER.ns;
}

bool mu_rdzv_handler_gives_up(const struct mu_rdzv_handler *h, int status)
{
    return status == MUSTER_ENAME && !h->keep_trying && !is_never(h->unknown_since) &&
           mu_mono_since(h->unknown_since, mu_env_now(h->env).mono) >=
               MU_RDZV_NAME_MS * MU_NS_PER_MS;
}

/* Whether the words of the trouble are a sentence that names the place already. */
static bool is_whole(const struct mu_rdzv_handler *h)
{
    static const char begins[] = "cannot connect to ";

    return strncmp(h->trouble.text, begins, sizeof(begins) - 1) == 0;
}

void mu_rdzv_handler_trouble(struct mu_rdzv_handler *h, int status, const char *where,
                             const char *why)
{
    char name[sizeof(h->backend) + sizeof(".trouble")];

    (void)mu_err(&h->trouble, 0, "%s", why != NULL ? why : muster_strerror(status));
    if (h->trouble_count == 0 || status != MUSTER_ENAME || is_never(h->unknown_since)) {
        h->unknown_since = status == MUSTER_ENAME ? mu_env_now(h->env).mono : MU_MONO_NEVER;
    }
    for (size_t i = 0; i < h->trouble_count; i++) {
        if (h->troubles[i] == status) {
            return;
        }
    }
    if (h->trouble_count == MU_RDZV_TROUBLES_MAX) {
        return;
    }
    h->troubles[h->trouble_count++] = status;
    (void)snprintf(name, sizeof(name), "%s.trouble", h->backend);
    if (is_whole(h)) {
        mu_rdzv_handler_record(h, MU_RDZV_RECORD_RUNNING, -1, name, "%s; trying again",
                               h->trouble.text);
    } else if (status == MUSTER_ENAME && !h->keep_trying) {
        mu_rdzv_handler_record(h, MU_RDZV_RECORD_RUNNING, -1, name,
                               "cannot connect to %.120s: %.200s; this node gives up if it is "
                               "still unknown after %d s, unless --keep-trying is given",
                               where, h->trouble.text, MU_RDZV_NAME_MS / 1000);
    } else {
        mu_rdzv_handler_record(h, MU_RDZV_RECORD_RUNNING, -1, name,
                               "cannot connect to %.120s: %.200s; trying again", where,
                               h->trouble.text);
    }
}

void mu_rdzv_handler_unreached(const struct mu_rdzv_handler *h, const char *where,
                               const char *doctor, struct mu_errmsg *ret)
{
    if (h->trouble_count != 0 && is_whole(h)) {
        (void)mu_err(ret, 0, "%.160s; `muster doctor %.60s` looks into it", h->trouble.text,
                     doctor);
    } else if (h->trouble_count != 0) {
        (void)mu_err(ret, 0, "cannot connect to %.60s: %.200s; `muster doctor %.60s` looks into it",
                     where, h->trouble.text, doctor);
    } else {
        (void)mu_err(
            ret, 0,
            "%.60s does not answer: the name or the address may be wrong, or a firewall may "
            "drop the packets; `muster doctor %.60s` looks into it",
            where, doctor);
    }
}

void mu_rdzv_handler_explained(struct mu_rdzv_handler *h, mu_mono_t by, const char *text)
{
    h->join_by = by;
    if (h->events.explained != NULL) {
        h->events.explained(h->events.context, text);
    }
}
