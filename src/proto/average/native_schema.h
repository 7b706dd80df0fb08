/* What members of a native group must have in common, as one hash: it is in the HELLO of every
 * link, so only equals meet. */
#ifndef MU_NATIVE_SCHEMA_H
#define MU_NATIVE_SCHEMA_H

#include "codec/average/native_msg.h"
#include "codec/average/schema.h"

struct mu_native_schema {
    uint8_t layout[MU_AVG_SCHEMA_LEN]; /* mu_avg_schema_hash() */
    uint64_t part_bytes;
    uint8_t parts_codec, averages_codec; /* 0: as they are; enum mu_quant */
    uint32_t block;                      /* of those */
};

/** SHA-256 of the version and all of that. */
void mu_native_schema_hash(const struct mu_native_schema *s, uint8_t ret[MU_NATIVE_SCHEMA_LEN]);
/** Whether the other end of a link means the same: NULL, or in a few words what differs. */
const char *mu_native_hello_check(const struct mu_native_hello *ours,
                                  const struct mu_native_hello *theirs);

#endif
