/* The native backend's answer to what a join waits for. */
#include "service/rdzv/muster.h"

#include <inttypes.h>

#define ASK_MS 5000 /* for the server to answer */

static void tell(struct mu_rdzv_muster *n, const char *text)
{
    if (n->member.user == MU_MEMBER_JOINING && !n->freeing && n->base.events.explained != NULL) {
        n->base.events.explained(n->base.events.context, text);
    }
}

static void tell_silence(struct mu_rdzv_muster *n)
{
    struct mu_errmsg text;

    (void)mu_err(&text, 0, "%.120s does not answer; `muster doctor %.120s` looks into it",
                 n->address, n->address);
    tell(n, text.text);
}

static void tell_unreached(struct mu_rdzv_muster *n)
{
    struct mu_errmsg text;
    int why = n->rpc.last_error;

    (void)mu_err(&text, 0, "cannot connect to %.120s%s%s; `muster doctor %.120s` looks into it",
                 n->address, why == 0 ? "" : ": ", why == 0 ? "" : muster_strerror(why),
                 n->address);
    tell(n, text.text);
}

void mu_rdzv_muster_explain(struct mu_rdzv_muster *n)
{
    if (n->member.user != MU_MEMBER_JOINING || n->freeing) {
        return;
    }
    if (n->client != MU_RDZV_CLIENT_LIVE || !mu_rpc_client_linked(&n->rpc)) {
        tell_unreached(n);
    } else if (n->explain_call != 0 || mu_rdzv_muster_ask(n, MU_SPAN_LIT(MU_RDZV_METHOD_EXPLAIN),
                                                          ASK_MS, &n->explain_call) != 0) {
        tell_silence(n);
    }
}

void mu_rdzv_muster_explain_reply(struct mu_rdzv_muster *n, int status, const char *text)
{
    n->explain_call = 0;
    if (status == 0) {
        tell(n, text);
    } else if (status == MUSTER_ETIMEDOUT) {
        tell_silence(n);
    } else {
        /* An older server, or one that was started anew and does not know the run yet. */
        tell(n, "the server has been asked for a place, and does not say more");
    }
}
