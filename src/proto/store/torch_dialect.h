/*
 * Lets an agent of PyTorch 1.13 into a rendezvous that muster's nodes have begun. Agents of 1.13
 * and of 2.x write the rendezvous' state in dialects that the other kind dies of
 * (codec/rdzv/state.h), and muster's nodes write that of 2.x until they find another. Which kind a
 * client is shows in its protocol before it reads the state: so the store writes the state anew, in
 * the client's dialect, and muster's nodes follow what they find.
 */
#ifndef MU_TORCH_DIALECT_H
#define MU_TORCH_DIALECT_H

#include "core/span.h"
#include "proto/store/keyspace.h"

/** Whether a key may hold the state of a rendezvous in a store: "/torch.rendezvous.RUN". */
bool mu_torch_dialect_is_state(struct mu_span key);
/**
 * A client of PyTorch 1.13 is about to read or write that key: a state in another dialect is
 * written in that of 1.13 if all of its nodes are muster's. A state with a node of PyTorch 2.x
 * stays, since that node would die instead. So does the state if memory runs out.
 */
void mu_torch_dialect_fit(struct mu_keyspace *ks, struct mu_span key);

#endif
