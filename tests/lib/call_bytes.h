/* What the recorded calls of daemons are made of, in hex, and a buffer to write others into. */
#ifndef CALL_BYTES_H
#define CALL_BYTES_H

#include "core/buf.h"
#include "hex.h"

#define ID     "000102030405060708090a0b0c0d0e0f"
#define PEER_L "0024080112208a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
#define PEER_D "0024080112208139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394"
#define PING   "44485450726f746f636f6c2e7270635f70696e67"
#define N01    "0101010101010101010101010101010101010101"
#define N02    "0202020202020202020202020202020202020202"

static struct mu_buf buf;
static uint8_t scratch[4][512];

static int set_up(void **unused)
{
    (void)unused;
    mu_buf_init(&buf, 8 << 20);
    return 0;
}

static int tear_down(void **unused)
{
    (void)unused;
    mu_buf_fini(&buf);
    return 0;
}

/* Lent until the slot is used again. */
static inline struct mu_span hex(int slot, const char *text)
{
    return mu_span(scratch[slot], hex_decode(scratch[slot], sizeof(scratch[slot]), text));
}

#endif
