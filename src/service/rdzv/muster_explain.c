/* The native backend's answer to what a join waits for. */
#include "service/rdzv/succession.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ASK_MS 5000 /* for the server to answer */

static void tell(struct mu_rdzv_muster *n, const char *text)
{
    if (n->member.user == MU_MEMBER_JOINING && !n->freeing) {
        /* How much longer the server takes to say that the join is late is not known here. */
        mu_rdzv_handler_explained(&n->base, n->member.extended ? MU_MONO_NEVER : n->member.user_at,
                                  text);
    }
}

static void tell_silence(struct mu_rdzv_muster *n)
{
    struct mu_errmsg text;

    (void)mu_err(
        &text, 0,
        "%.80s takes the connection, but does not answer; `muster doctor %.80s` looks into it",
        n->address, n->address);
    tell(n, text.text);
}

static void tell_unreached(struct mu_rdzv_muster *n)
{
    struct mu_errmsg text;

    if (n->client == MU_RDZV_CLIENT_LIVE && n->rpc.link == MU_RPC_CLIENT_UP) {
        tell_silence(n);
        return;
    }
    mu_rdzv_handler_unreached(&n->base, n->address, n->address, &text);
    tell(n, text.text);
}

void mu_rdzv_muster_explain(struct mu_rdzv_muster *n)
{
    char text[MU_RPC_MESSAGE_MAX];

    if (n->member.user != MU_MEMBER_JOINING || n->freeing) {
        return;
    }
    if (n->heir != NULL && mu_rdzv_succession_explain(n->heir, text, sizeof(text))) {
        tell(n, text);
    } else if (n->client != MU_RDZV_CLIENT_LIVE || !mu_rpc_client_linked(&n->rpc)) {
        tell_unreached(n);
    } else if (n->explain_call != 0 || mu_rdzv_muster_ask(n, MU_SPAN_LIT(MU_RDZV_METHOD_EXPLAIN),
                                                          ASK_MS, &n->explain_call) != 0) {
        tell_silence(n);
    }
}

/* The server counts the nodes; a node that is missing finds out why by itself. */
static void tell_words(struct mu_rdzv_muster *n, struct mu_span words)
{
    char text[MU_RPC_MESSAGE_MAX + MU_ADDR_HOST_MAX + 80];
    size_t len = words.len < MU_RPC_MESSAGE_MAX ? words.len : MU_RPC_MESSAGE_MAX;

    (void)snprintf(text, sizeof(text), "%.*s", (int)len, (const char *)words.data);
    if (strstr(text, " nodes are here") != NULL && strstr(text, "last call") == NULL) {
        len = strlen(text);
        (void)snprintf(text + len, sizeof(text) - len,
                       "; on a missing node, try `muster doctor %s`", n->address);
    }
    tell(n, text);
}

void mu_rdzv_muster_explain_reply(struct mu_rdzv_muster *n, int status, struct mu_span words)
{
    n->explain_call = 0;
    if (status == 0) {
        tell_words(n, words);
    } else if (status == MUSTER_ETIMEDOUT) {
        tell_silence(n);
    } else {
        /* An older server, or one that was started anew and does not know the run yet. */
        tell(n, "the server has been asked for a place, and does not say more");
    }
}
