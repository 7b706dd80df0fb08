#include "service/base/listen.h"

#include <errno.h>

int mu_listen_failed(struct mu_env *env, const struct mu_addr *addr, int err,
                     struct mu_errmsg *reterr_msg)
{
    char text[MU_ADDR_HOST_MAX + 16];

    (void)mu_addr_format(addr, text, sizeof(text));
    if (err == MUSTER_ELOCKED) {
        return mu_err(reterr_msg, err, "cannot listen on %.60s: %s", text,
                      mu_env_strerror(env, err));
    }
    return mu_err(reterr_msg, MUSTER_EADDR, "cannot listen on %.150s: %s%s", text,
                  muster_strerror(err),
                  err == -EADDRINUSE ? "; choose another port, or 0 for any free one" : "");
}
