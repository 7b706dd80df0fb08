/*
 * What peers say of themselves: the first byte says how much is read at once. In pieces or whole it
 * is taken alike; what can be read can be said again and is then read the same; and whatever it
 * holds for a signed record is tried as one.
 */
#include <stdint.h>
#include <stdlib.h>

#include "codec/peer/identify.h"
#include "core/assert.h"
#include "crypto/peer_record.h"

static int read_all(struct mu_identify_in *in, struct mu_span bytes, size_t step)
{
    int err = 0;

    mu_identify_in_init(in);
    for (size_t at = 0; at < bytes.len && err == 0; at += step) {
        size_t len = bytes.len - at < step ? bytes.len - at : step;

        err = mu_identify_in_recv(in, mu_span(bytes.data + at, len));
    }
    return err;
}

static bool same(struct mu_span a, struct mu_span b)
{
    return mu_span_eq(a, b) && (a.data == NULL) == (b.data == NULL);
}

static void say_again(const struct mu_identify *id)
{
    static struct mu_span addrs[MU_IDENTIFY_ADDRS_MAX];
    static struct mu_span names[MU_IDENTIFY_PROTOCOLS_MAX];
    struct mu_identify_out say = {
        .public_key = id->public_key,
        .addrs = addrs,
        .protocols = names,
        .observed_addr = id->observed_addr,
        .protocol_version = id->protocol_version,
        .agent_version = id->agent_version,
        .signed_record = id->signed_record,
    };
    struct mu_span walk = id->all;
    struct mu_identify again;
    struct mu_identify_in in;
    struct mu_span bytes;
    struct mu_buf out;

    while (mu_identify_next_addr(&walk, &addrs[say.addr_count])) {
        say.addr_count++;
    }
    MU_ASSERT(say.addr_count == id->addr_count);
    walk = id->all;
    while (mu_identify_next_protocol(&walk, &names[say.protocol_count])) {
        say.protocol_count++;
    }
    MU_ASSERT(say.protocol_count == id->protocol_count);
    mu_buf_init(&out, 1 << 20);
    if (mu_identify_encode(&say, &out) == 0) {
        MU_ASSERT(read_all(&in, mu_buf_span(&out), out.len) == 0);
        MU_ASSERT(mu_identify_in_end(&in, &bytes) == 0);
        MU_ASSERT(mu_identify_decode(bytes, &again) == 0);
        MU_ASSERT(same(again.public_key, id->public_key));
        MU_ASSERT(same(again.observed_addr, id->observed_addr));
        MU_ASSERT(same(again.agent_version, id->agent_version));
        MU_ASSERT(same(again.signed_record, id->signed_record));
        MU_ASSERT(again.addr_count == id->addr_count);
        MU_ASSERT(again.protocol_count == id->protocol_count);
        mu_identify_in_fini(&in);
    }
    mu_buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_identify_in whole;
    struct mu_identify_in pieces;
    struct mu_identify id;
    struct mu_peer_record record;
    struct mu_span bytes;
    struct mu_span other;

    if (size < 1) {
        return 0;
    }
    MU_ASSERT(read_all(&whole, mu_span(data + 1, size - 1), size) ==
              read_all(&pieces, mu_span(data + 1, size - 1), data[0] % 64 + 1));
    if (mu_identify_in_end(&whole, &bytes) == 0) {
        MU_ASSERT(mu_identify_in_end(&pieces, &other) == 0 && mu_span_eq(bytes, other));
        if (mu_identify_decode(bytes, &id) == 0) {
            say_again(&id);
            if (id.signed_record.data != NULL &&
                mu_peer_record_open(id.signed_record, &record) == 0) {
                while (mu_peer_record_next_addr(&record.addrs, &other)) {
                }
            }
        }
    }
    mu_identify_in_fini(&whole);
    mu_identify_in_fini(&pieces);
    return 0;
}
