/*
 * Vaults: memory that the workers of one place fill, one after the other, and that outlives them.
 * The agent makes it and hands it to each worker that it starts (core/child.h); it is there for as
 * long as any process has it. transport/vault.c has the real ones; a simulated machine has none.
 *
 * The length of a vault is fixed when it is made: nobody who has it can make it shorter or longer.
 * Only what was written in it takes memory. What is in it was written by another process, and may
 * be anything at any time.
 */
#ifndef MU_VAULT_H
#define MU_VAULT_H

#include <stddef.h>
#include <stdint.h>

struct mu_vault {
    intptr_t handle;
    uint64_t bytes;
};

/* One of our own, for what we fetch for others: only we write to it. */
struct mu_vault_own {
    struct mu_vault vault;
    struct mu_vault reader; /* the same, for a child, which can only read it */
    uint8_t *at;            /* all of it */
};

struct mu_vaults {
    /** `bytes` is at least 1. A negated errno, such as -EMFILE. */
    int (*make)(uint64_t bytes, struct mu_vault *ret_vault);
    /** Reads exactly `len` bytes. MUSTER_EINVAL: they are not all in the vault; a negated errno. */
    int (*read)(const struct mu_vault *vault, uint64_t offset, void *buf, size_t len);
    /** Lets go of it; once. */
    void (*drop)(struct mu_vault *vault);
    /** Makes one of our own. Errors as of `make`, and MUSTER_ENOMEM. */
    int (*own)(uint64_t bytes, struct mu_vault_own *ret_own);
    /** Takes memory for these bytes of one of our own, which may be written from then on; on any
     * thread. MUSTER_ENOMEM, a negated errno. */
    int (*ready)(const struct mu_vault_own *own, uint64_t offset, uint64_t len);
    /** Lets go of one of our own; once. Its memory is free at once, also if children have it. */
    void (*disown)(struct mu_vault_own *own);
};

#endif
