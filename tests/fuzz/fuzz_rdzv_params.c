/*
 * Any text as an endpoint and as a configuration: it is refused in words, or what it means can be
 * written down and read again. The first line is the endpoint, the rest the configuration.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/addr.h"
#include "codec/rdzv/params.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_endpoint(const char *text)
{
    struct mu_errmsg msg = {0};
    struct mu_addr addr;
    struct mu_addr again;
    char formatted[MU_ADDR_HOST_MAX + 16];
    int rc = mu_rdzv_endpoint_parse(text, MU_RDZV_PORT, &addr, &msg);

    if (rc != 0) {
        if (rc != MUSTER_EINVAL || msg.text[0] == '\0') {
            abort();
        }
        return;
    }
    mu_addr_format(&addr, formatted, sizeof(formatted));
    if (mu_rdzv_endpoint_parse(formatted, 0, &again, &msg) != 0 || again.port != addr.port ||
        again.kind != MU_ADDR_TCP || strcmp(again.host, addr.host) != 0) {
        abort();
    }
}

/* A value that was found lies in the text, trimmed, and getters agree with it. */
static void try_key(const char *config, const char *key)
{
    struct mu_errmsg msg = {0};
    struct mu_span value = {0};
    uint64_t ms = 0;
    int64_t number;
    bool truth;

    if (mu_rdzv_config_get(config, key, &value)) {
        const uint8_t *start = (const uint8_t *)config;

        if (value.len == 0 || value.data < start ||
            value.data + value.len > start + strlen(config)) {
            abort();
        }
    }
    if (mu_rdzv_config_seconds(config, key, 5, &ms, &msg) == 0 && ms == 0) {
        abort();
    }
    if (mu_rdzv_config_int(config, key, 5, &number, &msg) != 0 && msg.text[0] == '\0') {
        abort();
    }
    (void)mu_rdzv_config_bool(config, key, true, &truth, &msg);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_errmsg msg = {0};
    char *text = malloc(size + 1);
    char *config;

    if (text == NULL) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    config = strchr(text, '\n');
    if (config != NULL) {
        *config++ = '\0';
        if (mu_rdzv_config_check(config, &msg) != 0 && msg.text[0] == '\0') {
            abort();
        }
        try_key(config, "k");
        try_key(config, "join_timeout");
    }
    try_endpoint(text);
    free(text);
    return 0;
}
