/* What workers say of themselves to their group: what is read keeps what its header promises. */
#include <stdint.h>
#include <stdlib.h>

#include "codec/rpc/intro.h"

static void check_devices(struct mu_span devices, size_t each)
{
    for (size_t i = 0; i < devices.len / 4; i++) {
        if (mu_rpc_intro_device(devices, i) < 0) {
            abort();
        }
    }
    if (devices.len % (each * 4) != 0) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_rpc_intro intro;

    if (mu_rpc_intro_decode(mu_span(data, size), &intro) != 0) {
        return 0;
    }
    if ((intro.notice.len != 0) == (intro.name.len != 0) ||
        (intro.notice.len != 0 && (intro.address.len != 0 || intro.map_count != 0))) {
        abort();
    }
    if (intro.name.len != 0 && !mu_rpc_worker_name_ok(intro.name)) {
        abort();
    }
    check_devices(intro.devices, 1);
    for (size_t i = 0; i < intro.map_count; i++) {
        if (!mu_rpc_worker_name_ok(intro.maps[i * 2].data)) {
            abort();
        }
        check_devices(intro.maps[i * 2 + 1].data, 2);
    }
    mu_rpc_intro_fini(&intro);
    return 0;
}
