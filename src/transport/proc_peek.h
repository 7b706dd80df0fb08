/* Other processes of this machine, behind core/peek.h: /proc and process_vm_readv(). */
#ifndef MU_TRANSPORT_PROC_PEEK_H
#define MU_TRANSPORT_PROC_PEEK_H

#include "core/peek.h"

extern const struct mu_peek mu_peek_real;

#endif
