/* Any text: it is refused in words, or what it means can be written down and read again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/addr.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_errmsg msg = {0};
    struct mu_addr addr;
    struct mu_addr again;
    char formatted[MU_ADDR_HOST_MAX + 16];
    char text[1024];

    if (size < 2 || size - 2 >= sizeof(text)) {
        return 0;
    }
    memcpy(text, data + 2, size - 2);
    text[size - 2] = '\0';
    if (mu_addr_parse(text, (uint16_t)(data[0] | data[1] << 8), &addr, &msg) != 0) {
        if (msg.text[0] == '\0') {
            abort();
        }
        return 0;
    }
    mu_addr_format(&addr, formatted, sizeof(formatted));
    if (mu_addr_parse(formatted, 0, &again, &msg) != 0 || again.kind != addr.kind ||
        again.port != addr.port || strcmp(again.host, addr.host) != 0) {
        abort();
    }
    return 0;
}
