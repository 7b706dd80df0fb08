#include "codec/stacks/pulse.h"

#include <muster/error.h>

#include "core/reader.h"

#define VERSION     1
#define HEADER_SIZE 6

int mu_pulse_encode(struct mu_buf *out, const struct mu_pulse *pulses, size_t count)
{
    int err;

    if (count > MU_PULSES_MAX) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, HEADER_SIZE + count * MU_PULSE_SIZE);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(out, VERSION);
    mu_buf_put_u8(out, MU_PULSE_SIZE);
    mu_buf_put_u32(out, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        mu_buf_put_u32(out, pulses[i].rank);
        mu_buf_put_u8(out, (uint8_t)pulses[i].state);
        mu_buf_put_u8(out, (uint8_t)pulses[i].stance);
        mu_buf_put_u16(out, 0);
        mu_buf_put_u64(out, pulses[i].still_ms);
        mu_buf_put_u64(out, pulses[i].fixed_ms);
        mu_buf_put_u64(out, pulses[i].place);
        mu_buf_put_u64(out, pulses[i].step);
    }
    return 0;
}

int mu_pulse_count(struct mu_span in, size_t *ret_count)
{
    struct mu_reader r = mu_reader(in);
    uint8_t version = mu_read_u8(&r);
    uint8_t stride = mu_read_u8(&r);
    uint32_t count = mu_read_u32(&r);

    if (r.failed || version != VERSION || stride < MU_PULSE_SIZE) {
        return MUSTER_EPROTO;
    }
    if (count > MU_PULSES_MAX) {
        return MUSTER_ELIMIT;
    }
    if (r.rest.len != (size_t)stride * count) {
        return MUSTER_EPROTO;
    }
    for (size_t i = 0; i < count; i++) {
        const uint8_t *at = r.rest.data + i * stride;

        if (at[4] < MU_PULSE_FRESH || at[4] > MU_PULSE_ENDED || at[5] > MU_STANCE_PERHAPS) {
            return MUSTER_EPROTO;
        }
    }
    *ret_count = count;
    return 0;
}

struct mu_pulse mu_pulse_at(struct mu_span in, size_t i)
{
    const uint8_t *at = in.data + HEADER_SIZE + i * in.data[1];

    return (struct mu_pulse){
        .rank = mu_get_u32(at),
        .state = (enum mu_pulse_state)at[4],
        .stance = (enum mu_pulse_stance)at[5],
        .still_ms = mu_get_u64(at + 8),
        .fixed_ms = mu_get_u64(at + 16),
        .place = mu_get_u64(at + 24),
        .step = mu_get_u64(at + 32),
    };
}
