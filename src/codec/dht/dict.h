/*
 * A dictionary of the DHT as one value: subkeys, each with a value and an expiration of its own
 * (hivemind's DictionaryDHTValue, extension 0x50 of MessagePack).
 *
 *     ext 0x50 [maxsize, latest expiration, [[subkey, value as bin, expiration], ...]]
 *
 * A subkey is any MessagePack value and is identified by its encoding. A value is bytes that hold
 * an encoding of their own, perhaps with a signature after it.
 */
#ifndef MU_DHT_DICT_H
#define MU_DHT_DICT_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/span.h"

struct mu_dht_dict {
    double latest; /* the latest expiration that was ever offered to it */
    uint32_t count;
    struct mu_span walk; /* its entries */
};

struct mu_dht_entry {
    struct mu_span subkey; /* encoded; points into the input, as the value does */
    struct mu_span value;
    double expiration;
};

/** Reads all of it once, so that walking it cannot fail. MUSTER_EPROTO. */
int mu_dht_dict_decode(struct mu_span bytes, struct mu_dht_dict *ret);
/** Takes the next entry off. False: there are no more. */
bool mu_dht_dict_next(struct mu_dht_dict *dict, struct mu_dht_entry *ret);

/** How long the encoding is of an entry, and of a dictionary with that many bytes of entries. */
size_t mu_dht_entry_len(const struct mu_dht_entry *entry);
size_t mu_dht_dict_len(size_t count, size_t entry_bytes);
/** Appends the head: `count` entries with that many bytes in total must follow. MUSTER_ELIMIT,
 * MUSTER_ENOMEM. */
int mu_dht_dict_begin(struct mu_buf *out, double latest, size_t count, size_t entry_bytes);
int mu_dht_dict_put(struct mu_buf *out, const struct mu_dht_entry *entry);

#endif
