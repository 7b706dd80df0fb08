/*
 * A member of a native run under events in any order, made of the input: a byte and a number for
 * each, see member_world_event(). What must hold is checked after every event; in the end nobody
 * answers, and what the user waits for ends all the same.
 */
#include "core/reader.h"
#include "member_world.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_reader r = mu_reader(mu_span(data, size));
    uint8_t terms = mu_read_u8(&r);
    struct member_world w;

    member_world_init(&w, (terms & 1) != 0 ? 0 : MEMBER_JOIN_MS);
    w.m.link.linked = (terms & 2) != 0;
    w.m.link.hosting = (terms & 4) != 0;
    while (!r.failed && r.rest.len >= 3) {
        uint8_t kind = mu_read_u8(&r);

        member_world_event(&w, kind, mu_read_u16(&r));
    }
    member_world_finish(&w);
    return 0;
}
