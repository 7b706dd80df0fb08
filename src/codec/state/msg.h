/*
 * The messages of the native state download, payloads of calls on the native wire. docs/state.md,
 * section "On the wire". Integers are little-endian; texts and addresses have a u8 length before
 * them.
 *
 *     muster::State.list   asks: a prefix, "" for all; answered by entries, one after the other:
 *                          u8 length and prefix, 32 bytes id, u64 epoch, u64 step, u64 bytes,
 *                          u32 tensors, f64 priority, u32 chunks it has, u32 chunks there are,
 *                          u16 length and key, u16 length and signature, as in its offer
 *     muster::State.offer  asks: u8 1 and 32 bytes id, or u8 2 and a prefix: the one with the
 *                          highest priority; answered by the offer (codec/state/manifest.h): ITEMs
 *                          of any length, and the REPLY's payload after them
 *     muster::State.swarm  asks: 32 bytes id, u8 length and the asker's own address ("": it serves
 *                          nobody); answered by u32 milliseconds after which to ask
 *                          again, u16 which part of the state is the asker's and u16 of how many
 *                          (0: there are no parts), and the addresses of others that have some
 *     muster::State.have   asks: 32 bytes id; answered by u8 1: it has all chunks, or u8 0 and a
 *                          bit for each, the lowest first, unused ones zero
 *     muster::State.fetch  asks: 32 bytes id; then ITEMs with one u32 chunk index or several; each
 *                          is answered in order by an ITEM with the chunk's bytes, an empty one if
 *                          it is missing. The REPLY ends it: MUSTER_ENOENT the state is gone,
 *                          MUSTER_EBUSY no slot is free, and the text says when to ask again.
 */
#ifndef MU_STATE_MSG_H
#define MU_STATE_MSG_H

#include "codec/state/manifest.h"

#define MU_STATE_METHOD_PREFIX "muster::State."
#define MU_STATE_METHOD_LIST   "muster::State.list"
#define MU_STATE_METHOD_OFFER  "muster::State.offer"
#define MU_STATE_METHOD_SWARM  "muster::State.swarm"
#define MU_STATE_METHOD_HAVE   "muster::State.have"
#define MU_STATE_METHOD_FETCH  "muster::State.fetch"

#define MU_STATE_PREFIX_MAX 200 /* bytes of a prefix */
#define MU_STATE_ADDR_MAX   255 /* bytes of an address */
#define MU_STATE_SWARM_MAX  64  /* addresses in an answer */
#define MU_STATE_ASK_MAX    64  /* chunk indices in an item */
#define MU_STATE_ENTRY_MAX                                                                         \
    (1 + MU_STATE_PREFIX_MAX + MU_STATE_ID_LEN + 8 + 8 + 8 + 4 + 8 + 4 + 4 + 2 +                   \
     MU_STATE_KEY_LEN_MAX + 2 + MU_STATE_SIG_LEN_MAX) /* bytes */

/* --- list ------------------------------------------------------------------------------------- */

struct mu_state_entry {
    struct mu_span prefix; /* points into the input */
    uint8_t id[MU_STATE_ID_LEN];
    uint64_t epoch;
    uint64_t step;
    uint64_t bytes;
    uint32_t tensors;
    double priority; /* never NaN */
    uint32_t have;   /* how many of `chunks` it has */
    uint32_t chunks;
    struct mu_span public_key; /* the signer's; points into the input, as the signature does */
    struct mu_span signature;
};

/** Appends an entry. MUSTER_EINVAL: something is too long, or the priority is not a number;
 * MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_state_entry_encode(struct mu_buf *out, const struct mu_state_entry *entry);
/** Takes the next entry off `*walk`: 1, or 0 at the end. MUSTER_EPROTO. */
int mu_state_entry_next(struct mu_span *walk, struct mu_state_entry *ret);

/* --- offer ------------------------------------------------------------------------------------ */

/* Which state is meant: by its id, or the newest under a prefix. */
struct mu_state_which {
    bool by_id;
    uint8_t id[MU_STATE_ID_LEN];
    struct mu_span prefix; /* points into the input */
};

/** Appends. MUSTER_EINVAL, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_state_which_encode(struct mu_buf *out, const struct mu_state_which *which);
/** MUSTER_EPROTO. */
int mu_state_which_decode(struct mu_span in, struct mu_state_which *ret);

/* --- swarm ------------------------------------------------------------------------------------ */

struct mu_state_swarm_ask {
    uint8_t id[MU_STATE_ID_LEN];
    struct mu_span addr; /* empty: no address; points into the input */
};

/** Appends. MUSTER_EINVAL, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_state_swarm_ask_encode(struct mu_buf *out, const struct mu_state_swarm_ask *ask);
/** MUSTER_EPROTO. */
int mu_state_swarm_ask_decode(struct mu_span in, struct mu_state_swarm_ask *ret);

/* The head of an answer. Newcomers that load together each begin with another part of the state, so
 * that a donor does not give a chunk twice that one of them could pass on. */
struct mu_state_swarm_head {
    uint32_t again_ms;
    uint16_t part;  /* the asker's, below `parts` */
    uint16_t parts; /* 0: there are no parts */
};

/** Appends the head of an answer; addresses follow. MUSTER_EINVAL: a part that does not exist;
 * MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_state_swarm_encode(struct mu_buf *out, const struct mu_state_swarm_head *head);
/** Appends an address to an answer. MUSTER_EINVAL: empty or too long; MUSTER_ELIMIT,
 * MUSTER_ENOMEM. */
int mu_state_swarm_add(struct mu_buf *out, struct mu_span addr);
/**
 * Reads the head of an answer, and checks all of it; `*ret_walk` are the addresses. MUSTER_EPROTO,
 * also for more than MU_STATE_SWARM_MAX.
 */
int mu_state_swarm_decode(struct mu_span in, struct mu_state_swarm_head *ret,
                          struct mu_span *ret_walk);
/** Takes the next address off `*walk`: 1, or 0 at the end. MUSTER_EPROTO. */
int mu_state_swarm_next(struct mu_span *walk, struct mu_span *ret_addr);

/* --- have ------------------------------------------------------------------------------------- */

/* Which chunks a donor has. */
struct mu_state_have {
    bool all;
    struct mu_span bits; /* unless it has all: a bit for each chunk; points into the input */
};

/** How many bytes the bits of `chunks` chunks take. */
static inline size_t mu_state_bits_len(uint32_t chunks)
{
    return (size_t)chunks / 8 + (chunks % 8 != 0);
}
static inline bool mu_state_bit(const uint8_t *bits, uint32_t chunk)
{
    return (bits[chunk / 8] >> (chunk % 8) & 1) != 0;
}
static inline void mu_state_bit_set(uint8_t *bits, uint32_t chunk)
{
    bits[chunk / 8] = (uint8_t)(bits[chunk / 8] | 1u << (chunk % 8));
}
static inline void mu_state_bit_clear(uint8_t *bits, uint32_t chunk)
{
    bits[chunk / 8] = (uint8_t)(bits[chunk / 8] & ~(1u << (chunk % 8)));
}

/** Appends. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_state_have_encode(struct mu_buf *out, const struct mu_state_have *have);
/** Decodes it for a state of `chunks` chunks. MUSTER_EPROTO: the number of bits is wrong, or a bit
 * is set without a chunk. */
int mu_state_have_decode(struct mu_span in, uint32_t chunks, struct mu_state_have *ret);

/* --- have and fetch: the id, and what is asked ------------------------------------------------ */

/** Reads a payload that is an id and nothing else. MUSTER_EPROTO. */
int mu_state_id_decode(struct mu_span in, uint8_t ret[MU_STATE_ID_LEN]);

/**
 * Takes the next chunk index off an item of the fetcher, `*walk`: 1, or 0 at the end.
 * MUSTER_EPROTO: half an index, an index that the state does not have, or too many.
 */
int mu_state_ask_next(struct mu_span *walk, uint32_t chunks, uint32_t *ret_chunk);

#define MU_STATE_BUSY_TEXT_MAX 64
/** Writes the text of a MUSTER_EBUSY; returns `out`. */
char *mu_state_busy_text(char out[MU_STATE_BUSY_TEXT_MAX], uint32_t retry_ms);
/** When to ask again, from such a text; `otherwise` if it does not say. At most an hour. */
uint32_t mu_state_busy_parse(struct mu_span text, uint32_t otherwise);

#endif
