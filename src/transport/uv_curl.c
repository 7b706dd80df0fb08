#include "transport/uv_curl.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <uv.h>

/* The name that every build of libcurl since 2006 has for programs, whichever TLS it is on. */
#define LIBRARY  "libcurl.so.4"
#define PACKAGES "the package libcurl4 (Debian, Ubuntu) or libcurl (RHEL, Fedora)"

struct mu_uv_curl mu_uv_curl;

static struct {
    int err;
    struct mu_errmsg why;
} loaded;

static int find_functions(void *library, struct mu_errmsg *reterr)
{
    static const struct {
        const char *name;
        size_t at;
    } functions[] = {
#define FUNCTION(name) {"curl_" #name, offsetof(struct mu_uv_curl, name)},
        MU_UV_CURL_FUNCTIONS(FUNCTION)
#undef FUNCTION
    };

    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *function = dlsym(library, functions[i].name);

        if (function == NULL) {
            return mu_err(reterr, MUSTER_ENOTSUP,
                          LIBRARY " has no function %s, so HTTP cannot be used: install " PACKAGES,
                          functions[i].name);
        }
        memcpy((char *)&mu_uv_curl + functions[i].at, &function, sizeof(function));
    }
    return 0;
}

static int load(struct mu_errmsg *reterr)
{
    const curl_version_info_data *version;
    /* Its names are seen by nobody else: the process may have another OpenSSL than libcurl's. */
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    int err;

    if (library == NULL) {
        const char *why = dlerror();

        return mu_err(reterr, MUSTER_ENOTSUP, "HTTP needs libcurl: install " PACKAGES "; %s",
                      why != NULL ? why : LIBRARY);
    }
    err = find_functions(library, reterr);
    if (err != 0) {
        return err;
    }
    version = mu_uv_curl.version_info(CURLVERSION_NOW);
    if (version->version_num < MU_UV_CURL_OLDEST) {
        return mu_err(reterr, MUSTER_ENOTSUP,
                      "libcurl %s is too old, HTTP needs " MU_UV_CURL_OLDEST_TEXT
                      " or newer: upgrade " PACKAGES,
                      version->version);
    }
    if (mu_uv_curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        return mu_err(reterr, MUSTER_ENOTSUP, "libcurl %s cannot be initialized", version->version);
    }
    return 0;
}

static void load_once(void)
{
    loaded.err = load(&loaded.why);
}

int mu_uv_curl_load(const char **reterr_text)
{
    static uv_once_t once = UV_ONCE_INIT;

    uv_once(&once, load_once);
    if (loaded.err != 0) {
        *reterr_text = loaded.why.text;
    }
    return loaded.err;
}
