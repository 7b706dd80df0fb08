/*
 * Held keys: messages, and a gateway's cache that is told anything in any order. The first byte
 * says which; what was decoded must encode to the same bytes, and a cache keeps its bounds.
 */
#include "codec/store/hold.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "proto/store/cache.h"
#include "proto/store/holds.h"

#define ASKS 8

static void check_same(struct mu_buf *b, int err, struct mu_span in)
{
    MU_ASSERT(err == 0);
    MU_ASSERT(mu_span_eq(mu_buf_span(b), in));
}

static void decode(uint8_t kind, struct mu_span in)
{
    struct mu_found *found = NULL;
    struct mu_span *keys = NULL;
    uint32_t number;
    size_t count;
    struct mu_buf b;

    mu_buf_init(&b, in.len + 64);
    if (kind == 0 && mu_hold_keys_decode(in, &keys, &count) == 0) {
        check_same(&b, mu_hold_keys_encode(&b, keys, count), in);
    } else if (kind == 1 && mu_fetch_decode(in, &number, &keys, &count) == 0) {
        check_same(&b, mu_fetch_encode(&b, number, keys, count), in);
    } else if (kind == 2 && mu_found_decode(in, &number, &found, &count) == 0) {
        check_same(&b, mu_found_encode(&b, number, found, count), in);
    } else if (kind == 3 && mu_hold_lease_decode(in, &number) == 0) {
        check_same(&b, mu_hold_lease_encode(&b, number), in);
    }
    mu_free(keys);
    mu_free(found);
    mu_buf_fini(&b);
}

/* --- a cache ---------------------------------------------------------------------------------- */

struct asking {
    struct mu_cache_ask ask;
    struct mu_store_request request;
    struct mu_span key;
};

struct fuzzed {
    struct mu_cache cache;
    struct asking asks[ASKS];
    struct mu_cache_flight *flights[ASKS];
    mu_mono_t now;
};

static const struct mu_span keys[] = {MU_SPAN_LIT("a"), MU_SPAN_LIT("b"), MU_SPAN_LIT("")};

static void pull(struct fuzzed *f)
{
    struct mu_cache_outcome out;

    while (mu_cache_next(&f->cache, f->now, &out)) {
        MU_ASSERT(out.ask->flight == NULL);
    }
}

static void land(struct fuzzed *f, size_t i, int status, struct mu_span payload)
{
    struct mu_cache_flight *flight = f->flights[i];

    f->flights[i] = NULL;
    if (flight != NULL) {
        mu_cache_land(&f->cache, f->now, flight, status, payload);
        pull(f);
    }
}

static void ask(struct fuzzed *f, size_t i, uint8_t how)
{
    static const enum mu_store_verb verbs[] = {MU_STORE_GET, MU_STORE_CHECK, MU_STORE_WAIT,
                                               MU_STORE_MULTI_GET};
    struct asking *a = &f->asks[i];

    if (a->ask.flight != NULL) {
        struct mu_cache_flight *empty = mu_cache_leave(&f->cache, &a->ask);

        MU_ASSERT(empty == NULL || empty->aloft);
        return;
    }
    a->key = keys[how % 3];
    a->request = (struct mu_store_request){.verb = verbs[how / 3 % 4],
                                           .flags = how & (MU_STORE_NOWAIT | MU_STORE_OR_EMPTY),
                                           .keys = &a->key,
                                           .key_count = 1};
    a->ask.request = &a->request;
    (void)mu_cache_knows(&f->cache, f->now, &a->request);
    (void)mu_cache_join(&f->cache, &a->ask);
}

static void step(struct fuzzed *f, uint8_t what, uint8_t how, struct mu_span rest)
{
    size_t i = how % ASKS;

    switch (what % 8) {
    case 0:
    case 1:
        ask(f, i, how);
        break;
    case 2:
        if (f->flights[i] == NULL) {
            f->flights[i] = mu_cache_next_flight(&f->cache, f->now);
        }
        break;
    case 3:
        land(f, i, how > 200 ? -1 : 0, rest);
        break;
    case 4:
        mu_cache_recall(&f->cache, keys[how % 3]);
        break;
    case 5:
        mu_cache_change(&f->cache, keys[how % 3]);
        break;
    case 6:
        mu_cache_renewed(&f->cache, f->now, f->now, how * 20u);
        break;
    default:
        f->now = mu_mono_add_ms(f->now, how * 10u);
        break;
    }
    MU_ASSERT(f->cache.count <= f->cache.config.keys_max);
    MU_ASSERT(f->cache.bytes <= f->cache.config.bytes_max);
}

static void drive(struct mu_span in)
{
    struct fuzzed f = {.now = {MU_NS_PER_S}};
    struct mu_cache_config config = mu_cache_config_defaults();
    struct mu_cache_flight *flight;

    config.keys_max = 2;
    config.bytes_max = 400;
    config.spoils_max = 2;
    mu_cache_init(&f.cache, &config);
    f.cache.on = true;
    while (in.len >= 2) {
        step(&f, in.data[0], in.data[1], mu_span_skip(in, 2));
        in = mu_span_skip(in, 2);
    }
    for (size_t i = 0; i < ASKS; i++) {
        land(&f, i, -1, (struct mu_span){0});
    }
    while ((flight = mu_cache_next_flight(&f.cache, f.now)) != NULL) {
        mu_cache_land(&f.cache, f.now, flight, -1, (struct mu_span){0});
        pull(&f);
    }
    mu_cache_fini(&f.cache);
}

/* --- the server's table ----------------------------------------------------------------------- */

static void drive_holds(struct mu_span in)
{
    struct mu_holds_config config = mu_holds_config_defaults();
    struct mu_hold_writer writers[4] = {0};
    struct mu_holder *holders[8] = {NULL};
    struct mu_holds h;
    mu_mono_t now = {MU_NS_PER_S};

    config.keys_max = 2;
    mu_holds_init(&h, &config);
    for (; in.len >= 2; in = mu_span_skip(in, 2)) {
        uint8_t how = in.data[1];
        struct mu_holder **holder = &holders[how % 8];
        struct mu_span key = keys[how / 8 % 3];
        struct mu_holder *told;
        struct mu_span told_key;

        switch (in.data[0] % 8) {
        case 0:
            if (*holder == NULL) {
                *holder = mu_holds_join(&h, &writers);
            } else {
                (void)mu_holds_renew(&h, *holder, now, MU_MONO_NEVER);
            }
            break;
        case 1:
            if (*holder != NULL) {
                mu_holds_leave(&h, *holder, how > 127);
                *holder = NULL;
            }
            break;
        case 2:
            (void)(*holder != NULL && mu_holds_grant(&h, *holder, now, key));
            break;
        case 3:
            if (*holder != NULL) {
                mu_holds_drop(&h, *holder, key);
            }
            break;
        case 4:
            (void)mu_holds_ask(&h, &writers[how % 4], *holder, now, &key, 1);
            break;
        case 5:
            mu_holds_withdraw(&h, &writers[how % 4]);
            break;
        case 6:
            while (mu_holds_next_recall(&h, &told, &told_key)) {
                MU_ASSERT(told->owner != NULL);
            }
            while (mu_holds_next_writer(&h) != NULL) {
            }
            break;
        default:
            now = mu_mono_add_ms(now, how * 50u);
            mu_holds_tick(&h, now);
            break;
        }
        MU_ASSERT(h.count <= config.keys_max);
    }
    for (size_t i = 0; i < 4; i++) {
        mu_holds_withdraw(&h, &writers[i]);
    }
    mu_holds_fini(&h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_span in;

    if (size == 0) {
        return 0;
    }
    in = mu_span(data + 1, size - 1);
    if (data[0] < 4) {
        decode(data[0], in);
    } else if (data[0] % 2 == 0) {
        drive(in);
    } else {
        drive_holds(in);
    }
    return 0;
}
