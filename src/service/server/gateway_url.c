#include "service/server/gateway_url.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/url.h"
#include "service/server/gateway.h"

#define DEFAULT_PORT 29500

static int parse_relays(const char *text, struct mu_gateway_url *facts,
                        struct mu_errmsg *reterr_msg)
{
    char one[MU_ADDR_HOST_MAX + 16];

    while (*text != '\0') {
        size_t n = strcspn(text, ",");
        int err;

        if (n >= sizeof(one) || facts->relay_count == MU_CARRY_RELAYS_MAX) {
            return mu_err(reterr_msg, MUSTER_EURL, "the URL's via= names more than %d relays",
                          MU_CARRY_RELAYS_MAX);
        }
        (void)snprintf(one, sizeof(one), "%.*s", (int)n, text);
        err = mu_addr_parse(one, DEFAULT_PORT, &facts->relays[facts->relay_count++], reterr_msg);
        if (err != 0) {
            return err;
        }
        text += n + (text[n] == ',' ? 1 : 0);
    }
    return 0;
}

static int parse_params(const struct mu_url *url, struct mu_gateway_url *facts,
                        struct mu_errmsg *reterr_msg)
{
    const char *hold = mu_url_param(url, "hold");
    const char *via = mu_url_param(url, "via");
    const char *text = mu_url_param(url, "connect");
    char *end;
    long long v;
    int err;

    for (size_t i = 0; i < url->param_count; i++) {
        if (strcmp(url->params[i].name, "connect") != 0 &&
            strcmp(url->params[i].name, "hold") != 0 && strcmp(url->params[i].name, "via") != 0) {
            return mu_err(reterr_msg, MUSTER_EURL,
                          "a backing's tcp: URL has no parameter \"%.64s\"", url->params[i].name);
        }
    }
    if (hold != NULL && strcmp(hold, "yes") != 0 && strcmp(hold, "no") != 0) {
        return mu_err(reterr_msg, MUSTER_EURL, "the URL's hold=%.64s is neither yes nor no", hold);
    }
    facts->holds = hold == NULL || strcmp(hold, "yes") == 0;
    err = via == NULL ? 0 : parse_relays(via, facts, reterr_msg);
    if (err != 0 || text == NULL) {
        return err;
    }
    errno = 0;
    v = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || v < 1 || v > INT32_MAX) {
        return mu_err(reterr_msg, MUSTER_EURL,
                      "the URL's connect=%.64s is not a number of milliseconds", text);
    }
    facts->config.connect_ms = (uint32_t)v;
    return 0;
}

int mu_gateway_url_parse(const char *text, struct mu_gateway_url *facts,
                         struct mu_errmsg *reterr_msg)
{
    struct mu_store_tcp_config *config = &facts->config;
    struct mu_url url;
    int err = mu_url_parse(&url, text, reterr_msg);

    *facts = (struct mu_gateway_url){.config = mu_store_tcp_config_defaults()};
    config->protocol = MU_STORE_TCP_MUSTER;
    config->name = MU_GATEWAY_NAME;
    config->wire_keys = true;
    if (err == 0 && url.path[0] != '\0' && strcmp(url.path, "/") != 0) {
        err =
            mu_err(reterr_msg, MUSTER_EURL,
                   "a backing's tcp: URL has no path, since all of that server's keys are served");
    }
    if (err == 0) {
        err = parse_params(&url, facts, reterr_msg);
    }
    if (err == 0) {
        err = mu_addr_parse(url.authority, DEFAULT_PORT, &config->addr, reterr_msg);
    }
    if (err == 0 && config->addr.kind == MU_ADDR_TCP && config->addr.port == 0) {
        err = mu_err(reterr_msg, MUSTER_EURL, "the URL names port 0; name the port of the server");
    }
    return err;
}
