#include "codec/rpc/intro.h"

#include "core/alloc.h"
#include "core/err.h"

int mu_rpc_intro_encode(struct mu_buf *out, const struct mu_rpc_part *parts, size_t count)
{
    int err = mu_rpc_msg_head(out, parts, count);

    for (size_t i = 0; err == 0 && i < count; i++) {
        err = mu_buf_append(out, parts[i].data);
    }
    return err;
}

int32_t mu_rpc_intro_device(struct mu_span devices, size_t index)
{
    return (int32_t)mu_get_u32(devices.data + index * 4);
}

static bool is_printable(struct mu_span text)
{
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < 0x20 || text.data[i] >= 0x7f) {
            return false;
        }
    }
    return text.len != 0;
}

static bool are_devices(struct mu_span devices, size_t each)
{
    if (devices.len % (each * 4) != 0) {
        return false;
    }
    for (size_t i = 0; i < devices.len / 4; i++) {
        if (mu_rpc_intro_device(devices, i) < 0) {
            return false;
        }
    }
    return true;
}

static bool is_intro(const struct mu_rpc_part *parts, size_t count)
{
    if (count == 1) {
        return is_printable(parts[0].data);
    }
    if (count < 3 || count % 2 == 0 || !mu_rpc_worker_name_ok(parts[0].data) ||
        !is_printable(parts[1].data) || !are_devices(parts[2].data, 1)) {
        return false;
    }
    for (size_t i = 3; i < count; i += 2) {
        if (!mu_rpc_worker_name_ok(parts[i].data) || !are_devices(parts[i + 1].data, 2)) {
            return false;
        }
    }
    return true;
}

int mu_rpc_intro_decode(struct mu_span in, struct mu_rpc_intro *ret)
{
    struct mu_rpc_part *parts = NULL;
    size_t count = 0;
    int err = mu_rpc_msg_decode(in, &parts, &count);

    if (err == 0 && !is_intro(parts, count)) {
        err = MUSTER_EPROTO;
    }
    if (err != 0) {
        mu_free(parts);
        return err;
    }
    *ret = (struct mu_rpc_intro){.parts = parts};
    if (count == 1) {
        ret->notice = parts[0].data;
        return 0;
    }
    ret->name = parts[0].data;
    ret->address = parts[1].data;
    ret->devices = parts[2].data;
    ret->maps = parts + 3;
    ret->map_count = (count - 3) / 2;
    return 0;
}

void mu_rpc_intro_fini(struct mu_rpc_intro *intro)
{
    mu_free(intro->parts);
    *intro = (struct mu_rpc_intro){0};
}
