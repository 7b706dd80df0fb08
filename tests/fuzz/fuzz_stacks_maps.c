/*
 * /proc/PID/maps, and the other texts of /proc: the first byte says where the pieces end, the first
 * line is the program's path. In pieces it says the same as in one.
 */
#include <string.h>

#include "core/assert.h"
#include "proto/stacks/kernel.h"
#include "proto/stacks/maps.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct mu_maps whole;
    static struct mu_maps pieces;
    struct mu_kernel_stat stat;
    struct mu_span in = mu_span(data, size);
    struct mu_span exe;
    char text[64];
    int64_t pid;
    size_t piece;

    if (size == 0) {
        return 0;
    }
    piece = (size_t)data[0] + 1;
    in = mu_span_skip(in, 1);
    exe = in;
    exe.len = 0;
    while (exe.len < in.len && in.data[exe.len] != '\n') {
        exe.len++;
    }
    mu_maps_init(&whole, exe);
    mu_maps_init(&pieces, exe);
    mu_maps_feed(&whole, in);
    for (struct mu_span rest = in; rest.len != 0;) {
        size_t n = rest.len < piece ? rest.len : piece;

        mu_maps_feed(&pieces, mu_span(rest.data, n));
        rest = mu_span_skip(rest, n);
    }
    MU_ASSERT(memcmp(&whole.program, &pieces.program, sizeof(whole.program)) == 0);
    MU_ASSERT(memcmp(&whole.library, &pieces.library, sizeof(whole.library)) == 0);
    (void)mu_maps_version(whole.library.path);
    (void)mu_kernel_stat_read(in, &stat);
    (void)mu_kernel_inner_tid(in);
    (void)mu_kernel_io_bytes(in);
    (void)mu_kernel_is_traced(in);
    (void)mu_kernel_delay_ns(in);
    (void)mu_kernel_disk_bytes(in);
    (void)mu_kernel_net_bytes(in);
    for (struct mu_span rest = in; mu_kernel_child_next(&rest, &pid);) {
        MU_ASSERT(pid > 0 && pid <= INT32_MAX);
    }
    (void)mu_kernel_text(text, sizeof(text), in, exe);
    return 0;
}
