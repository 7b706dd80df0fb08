/*
 * A whole node of the DHT: requests of strangers and answers to its own calls, made of the input.
 * It answers every request once, every operation ends, and what it keeps stays within its limits.
 */
#include <stdint.h>
#include <stdlib.h>

#include <muster/error.h>

#include "core/assert.h"
#include "core/reader.h"
#include "proto/dht/node.h"

#define CALLS 64

static struct mu_now now_of(uint64_t ms)
{
    return (struct mu_now){{1 + ms * MU_NS_PER_MS}, {MU_NS_PER_S * 1000 + ms * MU_NS_PER_MS}};
}

struct world {
    struct mu_dht *d;
    uint64_t calls[CALLS]; /* that wait for an answer */
    size_t call_count;
    size_t replies;
    size_t ended;
};

static void drain(struct world *w)
{
    struct mu_dht_event e;

    while (mu_dht_next_event(w->d, &e)) {
        switch (e.type) {
        case MU_DHT_EVENT_CALL:
            if (w->call_count < CALLS) {
                w->calls[w->call_count++] = e.number;
            } else {
                mu_dht_answer(w->d, now_of(0), e.number, MUSTER_ECONN, (struct mu_span){0});
            }
            break;
        case MU_DHT_EVENT_REPLY:
            w->replies++;
            break;
        case MU_DHT_EVENT_ENDED:
            w->ended++;
            mu_dht_op_free(e.op);
            break;
        }
    }
}

/* Nobody answers any more, and all time has passed: whatever was begun must end. */
static void settle(struct world *w, uint64_t ms)
{
    for (int i = 0; i < 1000 && w->call_count > 0; i++) {
        mu_dht_answer(w->d, now_of(ms), w->calls[--w->call_count], MUSTER_ECONN,
                      (struct mu_span){0});
        drain(w);
    }
    mu_dht_tick(w->d, now_of(ms + 120000));
    drain(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_dht_config config = mu_dht_config_defaults();
    struct mu_reader r = mu_reader(mu_span(data, size));
    struct mu_dht_owner_validator owner;
    struct mu_dht_id key = {{1}};
    struct mu_peer_id from = {.len = 34, .bytes = {0x12, 0x20}};
    struct mu_dht_op *op;
    struct world w = {0};
    struct mu_dht_stats stats;
    uint64_t ms = 0;
    size_t begun = 0;
    size_t requests = 0;

    config.self.peer = (struct mu_peer_id){.len = 34, .bytes = {0x12, 0x20, 0xff}};
    config.storage.bytes_max = 1 << 20;
    config.cache.bytes_max = 1 << 20;
    MU_ASSERT(mu_dht_owner_init(&owner, NULL) == 0);
    MU_ASSERT(mu_dht_chain_add(&config.chain, &owner.base) == 0);
    MU_ASSERT(mu_dht_new(&config, &w.d) == 0);
    while (!r.failed && r.rest.len > 0) {
        uint8_t what = mu_read_u8(&r);
        struct mu_span message = mu_read_bytes(&r, mu_read_u16(&r));

        from.bytes[2] = what >> 4;
        if (r.failed) {
            break;
        }
        switch (what % 8) {
        case 0:
        case 1:
        case 2:
            MU_ASSERT(mu_dht_request(w.d, now_of(ms), ++requests, &from,
                                     (enum mu_dht_method)(MU_DHT_PING + what % 8), message) == 0);
            break;
        case 3:
        case 4:
            if (w.call_count > 0) {
                mu_dht_answer(w.d, now_of(ms), w.calls[--w.call_count],
                              what % 8 == 3 ? 0 : MUSTER_ETIMEDOUT, message);
            }
            break;
        case 5:
            key.bytes[19] = message.len > 0 ? message.data[0] : 0;
            begun += mu_dht_get(w.d, now_of(ms), &key, 1, what >= 128, &op) == 0;
            break;
        case 6:
            begun += mu_dht_store(w.d, now_of(ms),
                                  &(struct mu_dht_put){.key = key,
                                                       .value = MU_SPAN_LIT("\x01"),
                                                       .expiration = 1010 + (double)ms / 1e3},
                                  1, &op) == 0;
            break;
        default:
            ms += message.len * 10;
            mu_dht_tick(w.d, now_of(ms));
            break;
        }
        drain(&w);
    }
    settle(&w, ms);
    MU_ASSERT(w.ended == begun);
    MU_ASSERT(w.replies == requests);
    mu_dht_stats(w.d, &stats);
    MU_ASSERT(stats.bytes <= 3 << 20);
    mu_dht_free(w.d);
    mu_dht_owner_fini(&owner);
    return 0;
}
