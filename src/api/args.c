/* Structs that begin with their size, and timeouts: checked at the door. */
#include "api/args.h"

#include <string.h>

#include <muster/error.h>
#include <muster/types.h>

#include "api/api.h"

/* --- structs that begin with their size ------------------------------------------------------- */

void mu_api_give(void *to, size_t size, const void *ours, size_t ours_size)
{
    memcpy(to, ours, size < ours_size ? size : ours_size);
    if (size > ours_size) {
        memset((char *)to + ours_size, 0, size - ours_size);
    }
    if (size >= sizeof(size)) {
        memcpy(to, &size, sizeof(size));
    }
}

static int refuse(const char *name, const char *why)
{
    struct mu_errmsg msg;

    return mu_api_error(mu_err(&msg, MUSTER_EINVAL, "struct %s %s", name, why), msg.text);
}

static int refuse_unmade(const char *name, size_t size)
{
    struct mu_errmsg msg;

    return mu_api_error(mu_err(&msg, MUSTER_EINVAL,
                               "struct %s says that it has %zu bytes, which it never had: make it "
                               "with %s_defaults()",
                               name, size, name),
                        msg.text);
}

int mu_api_take(void *to, size_t to_size, const void *from, const char *name)
{
    size_t size;

    if (from == NULL) {
        struct mu_errmsg msg;

        return mu_api_error(mu_err(&msg, MUSTER_EINVAL,
                                   "struct %s is missing: make it with %s_defaults()", name, name),
                            msg.text);
    }
    memcpy(&size, from, sizeof(size));
    if (size < MU_API_SIZE_MIN || size > MU_API_SIZE_MAX) {
        return refuse_unmade(name, size);
    }
    for (size_t i = to_size; i < size; i++) {
        if (((const char *)from)[i] != 0) {
            return refuse(name, "was made for a newer version of the library, and has a field that "
                                "this one does not know: leave that field as it is by default, or "
                                "update the library");
        }
    }
    memcpy(to, from, size < to_size ? size : to_size);
    memcpy(to, &to_size, sizeof(to_size));
    return 0;
}

/* --- timeouts --------------------------------------------------------------------------------- */

static int refuse_negative(int64_t timeout_ms)
{
    struct mu_errmsg msg;

    return mu_api_error(mu_err(&msg, MUSTER_EINVAL,
                               "%lld is not a timeout: give milliseconds, MUSTER_TIMEOUT_NEVER or "
                               "MUSTER_TIMEOUT_DEFAULT",
                               (long long)timeout_ms),
                        msg.text);
}

static uint32_t bounded(int64_t timeout_ms)
{
    return (uint32_t)(timeout_ms < MU_API_TIMEOUT_MAX ? timeout_ms : MU_API_TIMEOUT_MAX);
}

int mu_api_timeout(int64_t timeout_ms, uint32_t fallback_ms, uint32_t *ret_ms)
{
    if (timeout_ms < MUSTER_TIMEOUT_DEFAULT) {
        return refuse_negative(timeout_ms);
    }
    if (timeout_ms == 0) {
        return mu_api_error(MUSTER_EINVAL,
                            "a timeout of 0 leaves no time for an answer: give 1 ms or more, or "
                            "MUSTER_TIMEOUT_NEVER for no bound");
    }
    *ret_ms = timeout_ms == MUSTER_TIMEOUT_DEFAULT ? fallback_ms
              : timeout_ms == MUSTER_TIMEOUT_NEVER ? MU_API_NO_BOUND
                                                   : bounded(timeout_ms);
    return 0;
}

int64_t mu_api_timeout_public(uint32_t ms)
{
    return ms == MU_API_NO_BOUND ? MUSTER_TIMEOUT_NEVER : (int64_t)ms;
}

int mu_api_patience(int64_t timeout_ms, int64_t *ret_ms)
{
    if (timeout_ms < MUSTER_TIMEOUT_DEFAULT) {
        return refuse_negative(timeout_ms);
    }
    *ret_ms = timeout_ms < 0 ? -1 : (int64_t)bounded(timeout_ms);
    return 0;
}
