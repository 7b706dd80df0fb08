/* The side of the native wire that dials, against a server that says anything. */
#include "fuzz_rpc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_run(MU_RPC_CLIENT, data, size);
}
