#include "service/rdzv/url.h"

#include <string.h>

#include "core/alloc.h"

bool mu_rdzv_url_is(const char *backend, const char *endpoint)
{
    size_t len = backend == NULL ? 0 : strlen(backend);
    const char *sign = endpoint == NULL ? NULL : strstr(endpoint, "://");

    return sign != NULL &&
           (len == 0 || ((size_t)(sign - endpoint) == len && strncmp(endpoint, backend, len) == 0));
}

static const char *text_of(const char *text)
{
    return text == NULL ? "" : text;
}

static int read_count(const struct mu_rdzv_url *u, const char *name, uint32_t *ret,
                      struct mu_errmsg *reterr_msg)
{
    const char *text = mu_url_param(&u->url, name);
    uint64_t number = 0;

    if (text == NULL) {
        return 0;
    }
    for (const char *at = text; *at != '\0'; at++) {
        if (*at < '0' || *at > '9' || number > INT32_MAX) {
            number = 0;
            break;
        }
        number = number * 10 + (uint64_t)(*at - '0');
    }
    if (number == 0 || number > INT32_MAX) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the URL's %s=%.32s is not a number of nodes; give one above zero", name,
                      text);
    }
    *ret = (uint32_t)number;
    return 0;
}

static bool is_count(const char *name)
{
    return strcmp(name, "min_workers") == 0 || strcmp(name, "max_workers") == 0;
}

/* A value with a comma could name other options, unless it is a list. */
static bool is_item(const char *name, const char *value)
{
    return strcmp(name, MU_RDZV_LIST_KEY) == 0 ? strchr(value, '=') == NULL
                                               : strchr(value, ',') == NULL;
}

static char *put(char *at, const char *text)
{
    size_t len = strlen(text);

    memcpy(at, text, len);
    return at + len;
}

/* Joins the given configuration and that of the URL, which comes last so that it wins. */
static int join_config(struct mu_rdzv_url *u, const char *given, struct mu_errmsg *reterr_msg)
{
    size_t cap = strlen(given) + MU_URL_MAX + MU_URL_PARAMS_MAX * 2 + 2;
    char *at = mu_malloc(cap);

    if (at == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    u->config = at;
    at = put(at, given);
    for (size_t i = 0; i < u->url.param_count; i++) {
        const char *name = u->url.params[i].name;
        const char *value = u->url.params[i].value;

        if (is_count(name)) {
            continue;
        }
        if (name[strcspn(name, ",=")] != '\0' || value[0] == '\0' || !is_item(name, value)) {
            return mu_err(reterr_msg, MUSTER_EINVAL,
                          "the URL's parameter \"%.64s\" is empty or contains a comma", name);
        }
        at = at == u->config ? at : put(at, ",");
        at = put(put(put(at, name), "="), value);
    }
    *at = '\0';
    u->params.config = u->config;
    return 0;
}

int mu_rdzv_url_init(struct mu_rdzv_url *u, const struct mu_rdzv_params *params,
                     struct mu_errmsg *reterr_msg)
{
    int err = mu_url_parse(&u->url, params->endpoint, reterr_msg);

    u->params = *params;
    u->config = NULL;
    if (err != 0) {
        return MUSTER_EINVAL;
    }
    u->params.backend = u->url.scheme;
    u->params.endpoint = u->url.authority;
    if (u->url.path[0] == '/' && u->url.path[1] != '\0') {
        u->params.run_id = u->url.path + 1;
    }
    err = read_count(u, "min_workers", &u->params.nodes_min, reterr_msg);
    if (err == 0) {
        if (mu_url_param(&u->url, "max_workers") == NULL &&
            u->params.nodes_max < u->params.nodes_min) {
            u->params.nodes_max = u->params.nodes_min;
        }
        err = read_count(u, "max_workers", &u->params.nodes_max, reterr_msg);
    }
    err = err != 0 ? err : join_config(u, text_of(params->config), reterr_msg);
    if (err != 0) {
        mu_rdzv_url_fini(u);
    }
    return err;
}

void mu_rdzv_url_fini(struct mu_rdzv_url *u)
{
    mu_free(u->config);
    u->config = NULL;
}
