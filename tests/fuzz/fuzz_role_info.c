/* What agents find in the store under the names of other agents: any bytes at all. */
#include <stdlib.h>

#include "codec/agent/role_info.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_span in = mu_span(data, size);
    char text[MU_ROLE_INFO_LEN_MAX + 1];
    struct mu_role_info info, again;
    struct mu_ranks ranks, same;

    /* What is understood is the same when it is said again. */
    if (mu_role_info_decode(in, &info) == 0 && strlen(info.role) <= MU_ROLE_LEN_MAX &&
        (mu_role_info_decode(mu_span(text, mu_role_info_encode(&info, text)), &again) != 0 ||
         strcmp(info.role, again.role) != 0 || info.rank != again.rank ||
         info.local_world_size != again.local_world_size)) {
        abort();
    }
    if (mu_ranks_decode(in, &ranks) == 0 &&
        (mu_ranks_decode(mu_span(text, mu_ranks_encode(&ranks, text)), &same) != 0 ||
         memcmp(&ranks, &same, sizeof(ranks)) != 0)) {
        abort();
    }
    return 0;
}
