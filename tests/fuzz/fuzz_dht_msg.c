/* The DHT's messages, dictionaries and wrappers: the first byte says which; what was read once in
 * full can be walked to its end. */
#include <stdint.h>
#include <stdlib.h>

#include "codec/dht/dict.h"
#include "codec/dht/msg.h"
#include "core/alloc.h"
#include "core/assert.h"

static void read_store(struct mu_span in)
{
    struct mu_dht_store store;
    struct mu_dht_store again;
    struct mu_dht_item *items;
    struct mu_buf out;
    size_t n = 0;

    if (mu_dht_store_decode(in, &store) != 0) {
        return;
    }
    items = mu_calloc(store.count + 1, sizeof(*items));
    while (n < store.count && mu_dht_store_next(&store, &items[n])) {
        n++;
    }
    MU_ASSERT(n == store.count && !mu_dht_store_next(&store, &items[n]));
    mu_buf_init(&out, 4 * in.len + 256);
    MU_ASSERT(mu_dht_store_encode(&out, &store.head, items, n) == 0);
    MU_ASSERT(mu_dht_store_decode(mu_buf_span(&out), &again) == 0 && again.count == n);
    mu_buf_fini(&out);
    mu_free(items);
}

static void read_find_reply(struct mu_span in)
{
    struct mu_dht_find_reply reply;
    struct mu_dht_found found;
    struct mu_dht_neighbour near;
    size_t n = 0;

    if (mu_dht_find_reply_decode(in, &reply) != 0) {
        return;
    }
    while (mu_dht_find_reply_next(&reply, &found)) {
        size_t count = 0;

        while (mu_dht_found_next(&found, &near)) {
            count++;
        }
        MU_ASSERT(count <= found.near_count);
        n++;
    }
    MU_ASSERT(n == reply.count);
}

static void read_dict(struct mu_span in)
{
    struct mu_dht_dict dict;
    struct mu_dht_entry e;
    struct mu_buf out;
    size_t bytes = 0;
    size_t n = 0;

    if (mu_dht_dict_decode(in, &dict) != 0) {
        return;
    }
    mu_buf_init(&out, 4 * in.len + 64);
    for (struct mu_dht_dict walk = dict; mu_dht_dict_next(&walk, &e); n++) {
        bytes += mu_dht_entry_len(&e);
    }
    MU_ASSERT(n == dict.count);
    MU_ASSERT(mu_dht_dict_begin(&out, dict.latest, n, bytes) == 0);
    for (struct mu_dht_dict walk = dict; mu_dht_dict_next(&walk, &e);) {
        MU_ASSERT(mu_dht_dict_put(&out, &e) == 0);
    }
    MU_ASSERT(out.len == mu_dht_dict_len(n, bytes));
    MU_ASSERT(mu_dht_dict_decode(mu_buf_span(&out), &dict) == 0 && dict.count == n);
    mu_buf_fini(&out);
}

static void read_auth(struct mu_span in)
{
    struct mu_dht_reply_auth reply;
    struct mu_dht_token token;
    struct mu_dht_auth auth;
    struct mu_span found;
    struct mu_buf out;

    (void)mu_dht_auth_decode(in, &auth);
    (void)mu_dht_reply_auth_decode(in, &reply);
    (void)mu_dht_token_decode(in, &token);
    mu_buf_init(&out, in.len + 64);
    if (mu_dht_auth_replace(&out, in, MU_SPAN_LIT("wrapper")) == 0) {
        MU_ASSERT(mu_dht_auth_find(mu_buf_span(&out), &found) == 0);
        MU_ASSERT(mu_span_eq(found, MU_SPAN_LIT("wrapper")));
    }
    mu_buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_dht_store_reply stored;
    struct mu_dht_ping_reply pinged;
    struct mu_dht_ping ping;
    struct mu_dht_find find;
    struct mu_dht_id key;
    struct mu_span in;
    size_t n = 0;
    bool ok;

    if (size == 0) {
        return 0;
    }
    in = mu_span(data + 1, size - 1);
    switch (data[0] % 6) {
    case 0:
        (void)mu_dht_ping_decode(in, &ping);
        (void)mu_dht_ping_reply_decode(in, &pinged);
        break;
    case 1:
        read_store(in);
        break;
    case 2:
        if (mu_dht_store_reply_decode(in, &stored) == 0) {
            while (mu_dht_store_reply_next(&stored, &ok)) {
                n++;
            }
            MU_ASSERT(n == stored.count);
        }
        if (mu_dht_find_decode(in, &find) == 0) {
            for (n = 0; mu_dht_find_next(&find, &key); n++) {
            }
            MU_ASSERT(n == find.count);
        }
        break;
    case 3:
        read_find_reply(in);
        break;
    case 4:
        read_dict(in);
        break;
    default:
        read_auth(in);
        break;
    }
    return 0;
}
