#include "service/etcd/url.h"

#include <stdio.h>
#include <string.h>

#define PASSWORD_CAP 512

static bool parse_truth(const char *text)
{
    return strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
}

int mu_etcd_new_url(struct mu_env *env, const struct mu_url *url,
                    const struct mu_etcd_config *defaults, struct mu_etcd **ret_etcd,
                    struct mu_errmsg *reterr_msg)
{
    struct mu_etcd_config config = *defaults;
    const char *tls = mu_url_param(url, "tls");
    const char *file = mu_url_param(url, "password_file");
    const struct {
        const char *name;
        const char **text;
    } texts[] = {
        {"cacert", &config.cacert},
        {"cert", &config.cert},
        {"key", &config.key},
        {"user", &config.user},
    };
    char password[PASSWORD_CAP] = "";

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        const char *value = mu_url_param(url, texts[i].name);

        *texts[i].text = value != NULL ? value : *texts[i].text;
    }
    if (file != NULL) {
        int err = mu_etcd_read_password(env, file, password, sizeof(password), reterr_msg);

        if (err != 0) {
            return err;
        }
        config.password = password;
    }
    config.endpoints = url->authority;
    config.tls = tls != NULL ? parse_truth(tls) : config.tls;
    return mu_etcd_new(env, &config, ret_etcd, reterr_msg);
}

int mu_etcd_url_prefix(const struct mu_url *url, const char *fallback, char *buf, size_t cap,
                       struct mu_errmsg *reterr_msg)
{
    size_t len = strlen(url->path);

    while (len > 0 && url->path[len - 1] == '/') {
        len--;
    }
    if (len >= cap || strlen(fallback) >= cap) {
        return mu_err(reterr_msg, MUSTER_EURL, "the URL's path is too long");
    }
    (void)snprintf(buf, cap, "%.*s", (int)len, url->path);
    if (len == 0) {
        (void)snprintf(buf, cap, "%s", fallback);
    }
    return 0;
}
