/*
 * A node whose session is carried by relays (wire/carry.h). A relay that is lost is noticed at
 * once, and the next one is dialled, at last the server itself; the session goes on. A relay that
 * is there and silent would be noticed only with the session's silence, when others may begin
 * without us: so it is left before, for whatever comes next.
 */
#include <stdio.h>

#include "core/addr.h"
#include "service/rdzv/muster.h"

/* Parts of the time for which the server keeps our session: the fence (proto/rdzv/member.h) comes
 * after 22/30 of it, and the next relay must have answered by then. */
#define SILENT_PART  2 /* without a word by a relay that had carried some */
#define DIALLED_PART 4 /* and by one that is dialled again */

static void on_moved(void *context)
{
    (void)context; /* The session dials again by itself. */
}

int mu_rdzv_via_new(struct mu_rdzv_muster *n)
{
    int err = n->config.relay_count == 0 ? 0 : mu_carry_env_new(n->base.env, &n->carry);

    if (n->carry != NULL) {
        mu_carry_env_via(n->carry, n->config.relays, n->config.relay_count, on_moved, n);
    }
    return err;
}

struct mu_env *mu_rdzv_via_env(struct mu_rdzv_muster *n)
{
    return n->carry == NULL ? n->base.env : mu_carry_env_env(n->carry);
}

const char *mu_rdzv_via_text(const struct mu_rdzv_muster *n, char *text, size_t cap)
{
    const struct mu_addr *relay = n->carry == NULL ? NULL : mu_carry_env_relay(n->carry);
    char at[MU_ADDR_HOST_MAX + 16];

    text[0] = '\0';
    if (relay != NULL) {
        (void)snprintf(text, cap, " by way of %.100s", mu_addr_format(relay, at, sizeof(at)));
    }
    return text;
}

/* When the relay is left. MU_MONO_NEVER: there is none, or one was left already and nothing was
 * heard since: if it is the server that is silent, all would hurry from one relay to the next. */
static mu_mono_t patience(const struct mu_rdzv_muster *n)
{
    uint32_t kept_ms = mu_rpc_kept_ms(&n->rpc.rpc);
    mu_mono_t confirmed = mu_rpc_confirmed(&n->rpc.rpc);
    mu_mono_t since = mu_rpc_client_since(&n->rpc);

    if (n->left_since.ns == confirmed.ns) {
        return MU_MONO_NEVER;
    }
    if (since.ns == MU_MONO_NEVER.ns) {
        since = mu_env_now(n->base.env).mono; /* it is dialled in a moment */
    }
    if (!mu_rpc_client_linked(&n->rpc)) {
        return mu_mono_add_ms(since, kept_ms / DIALLED_PART);
    }
    return mu_mono_add_ms(mu_mono_before(since, confirmed) ? confirmed : since,
                          kept_ms / SILENT_PART);
}

void mu_rdzv_via_look(struct mu_rdzv_muster *n)
{
    bool relayed = n->carry != NULL && mu_carry_env_relay(n->carry) != NULL;
    char via[MU_ADDR_HOST_MAX + 32];

    n->leave_at = MU_MONO_NEVER;
    if (!relayed || n->freeing || n->client != MU_RDZV_CLIENT_LIVE || !n->rpc.ready) {
        return;
    }
    n->leave_at = patience(n);
    if (mu_mono_reached(n->leave_at, mu_env_now(n->base.env).mono)) {
        n->leave_at = MU_MONO_NEVER;
        n->left_since = mu_rpc_confirmed(&n->rpc.rpc);
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, n->rank, "muster.relay",
                               "nothing is heard%s: leaving that relay",
                               mu_rdzv_via_text(n, via, sizeof(via)));
        mu_carry_env_next(n->carry);
    }
}
