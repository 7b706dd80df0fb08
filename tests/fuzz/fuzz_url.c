/* URLs of stores: any text is taken apart or refused; every part is terminated and inside. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "core/url.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    struct mu_url *url = malloc(sizeof(*url));
    struct mu_errmsg msg = {{0}};

    memcpy(text, data, size);
    text[size] = '\0';
    if (mu_url_parse(url, text, &msg) == 0) {
        MU_ASSERT(strlen(url->scheme) + strlen(url->authority) + strlen(url->path) <= strlen(text));
        for (size_t i = 0; i < url->param_count; i++) {
            MU_ASSERT(url->params[i].name >= url->text &&
                      url->params[i].value < url->text + sizeof(url->text));
            MU_ASSERT(strlen(url->params[i].name) > 0 || url->params[i].name[0] == '\0');
        }
    } else {
        MU_ASSERT(msg.text[0] != '\0');
    }
    free(url);
    free(text);
    return 0;
}
