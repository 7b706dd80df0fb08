/* The side of the native wire that listens: greeting, session and a trivial service. */
#include "fuzz_rpc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_run(MU_RPC_SERVER, data, size);
}
