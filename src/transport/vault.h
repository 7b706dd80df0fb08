/* Vaults behind core/vault.h: files in memory, without a name, whose length is sealed. */
#ifndef MU_TRANSPORT_VAULT_H
#define MU_TRANSPORT_VAULT_H

#include <stdbool.h>

#include "core/vault.h"

extern const struct mu_vaults mu_vaults_real;

/** Whether a descriptor that this process has inherited is a vault of that length. */
bool mu_vault_is(int fd, uint64_t bytes);
/** How much memory what was written in it takes. */
uint64_t mu_vault_used(int fd);
/** Maps all of it. MUSTER_ENOMEM, a negated errno. */
int mu_vault_map(int fd, uint64_t bytes, bool writes, uint8_t **ret_at);
/** NULL is fine. */
void mu_vault_unmap(uint8_t *at, uint64_t bytes);

#endif
