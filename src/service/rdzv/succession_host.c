/* How a node that could host its run begins and ends: its endpoints, and its server. */
#include "service/rdzv/succession.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "service/server/server.h"

/* --- the endpoints ---------------------------------------------------------------------------- */

/* Serves at the endpoint if it is ours. MUSTER_ELOCKED and such in words. */
static int try_endpoint(struct mu_rdzv_succession *s, struct mu_addr *addr, uint32_t index,
                        struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_muster *n = s->n;
    int rc;

    if (n->server != NULL) {
        return 0;
    }
    rc = mu_rdzv_host(n->base.env, n->config.host, true, addr, &n->server, reterr_msg);
    s->elsewhere = s->elsewhere || rc == MU_RDZV_ELSEWHERE;
    if (rc == 1) {
        if (strcmp(addr->host, "0.0.0.0") == 0 || strcmp(addr->host, "::") == 0) {
            (void)snprintf(addr->host, sizeof(addr->host), "%s", n->base.addr); /* for others */
        }
        s->index = index;
        (void)mu_addr_format(addr, s->address, sizeof(s->address));
    }
    if (rc >= 0 && (rc == 1 || n->host_text.text[0] == '\0')) {
        n->host_text = *reterr_msg;
    }
    return rc < 0 ? rc : 0;
}

/* Of several endpoints, the one that can be bound here need not be the one that hosts. */
static void say_several(struct mu_rdzv_succession *s, int count)
{
    static const char connecting[] = "connecting to ";
    struct mu_errmsg *text = &s->n->host_text;
    struct mu_errmsg why = *text;

    if (s->index != MU_SUCCESSION_NO_RANK) {
        (void)mu_err(text, 0,
                     "listening at %.120s, one of %d endpoints: more than half of them agree which "
                     "one hosts",
                     s->address, count);
    } else {
        (void)mu_err(
            text, 0, "asking the %d endpoints which one hosts: none is here (%.200s)", count,
            strncmp(why.text, connecting, strlen(connecting)) == 0 ? why.text + strlen(connecting)
                                                                   : why.text);
    }
}

static int take_endpoints(struct mu_rdzv_succession *s, const char *text,
                          struct mu_errmsg *reterr_msg)
{
    struct mu_addr addrs[MU_SUCCESSION_ENDPOINTS_MAX];
    char address[MU_ADDR_HOST_MAX + 16];
    int count =
        mu_rdzv_endpoints_parse(text, MU_RDZV_PORT, addrs, MU_SUCCESSION_ENDPOINTS_MAX, reterr_msg);
    int err = count < 0 ? count : 0;

    for (int i = 0; i < count && err == 0; i++) {
        err = try_endpoint(s, &addrs[i], (uint32_t)i, reterr_msg);
    }
    for (int i = 0; i < count && err == 0; i++) {
        const struct mu_rdzv_heir heir = {
            .addr = mu_span_str(mu_addr_format(&addrs[i], address, sizeof(address)))};

        err = mu_rdzv_heir_encode(&s->named, &heir) == 0
                  ? 0
                  : mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    s->n->endpoint = addrs[0];
    if (err == 0 && count > 1) {
        say_several(s, count);
    }
    return err;
}

/* --- our server ------------------------------------------------------------------------------- */

/* Serves at an address of our own, where the others can find us if they must. Without it, this node
 * only follows. */
static void serve_aside(struct mu_rdzv_succession *s)
{
    struct mu_rdzv_muster *n = s->n;
    const char *name = mu_rdzv_is_loopback(n->endpoint.host) ? n->endpoint.host : n->base.addr;
    struct mu_addr addr = {.kind = MU_ADDR_TCP};
    struct mu_errmsg why = {{0}};

    (void)snprintf(addr.host, sizeof(addr.host), "%s", name);
    if (mu_rdzv_host(n->base.env, MU_RDZV_HOST_TRY, true, &addr, &n->server, &why) == 1) {
        (void)mu_addr_format(&addr, s->address, sizeof(s->address));
    } else {
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, -1, "muster.heir",
                               "this node cannot host the rendezvous if others are lost: %s",
                               why.text);
    }
}

static void begin_machine(struct mu_rdzv_succession *s)
{
    struct mu_succession_config config = {
        .name = s->n->base.node,
        .address = s->address,
        .rounds_from = MU_RDZV_LEAD_FIRST,
        .mode = s->n->config.succession == MU_RDZV_SUCCESSION_ANY ? MU_SUCCESSION_ANY
                                                                  : MU_SUCCESSION_MAJORITY,
    };

    mu_env_entropy(s->n->base.env, &config.seed, sizeof(config.seed));
    mu_succession_init(&s->machine, &config);
    s->lead.run_id = s->n->base.run_id;
    s->lead.machine = &s->machine;
    s->lead.named = mu_buf_span(&s->named);
    mu_rdzv_succession_listen(s);
    if (s->n->server != NULL) {
        mu_rdzv_lead_begin(&s->lead, mu_store_server_hub(s->n->server));
    }
}

/* A server that nobody waits for ends by itself. */
static void on_abandoned(void *context)
{
    (void)context;
}

int mu_rdzv_succession_new(struct mu_rdzv_muster *n, const char *endpoints,
                           struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_succession *s = mu_calloc(1, sizeof(*s));
    int err;

    if (s == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    n->heir = s;
    s->n = n;
    s->index = MU_SUCCESSION_NO_RANK;
    s->checks = s->turn_by = s->insist_at = MU_MONO_NEVER;
    for (uint32_t i = 0; i < MU_SUCCESSION_CALLS; i++) {
        s->asks[i].n = n;
        s->asks[i].number = i;
    }
    s->probe.n = n;
    s->probe.probes = true;
    mu_buf_init(&s->named, MU_RDZV_LINE_BYTES_MAX);
    mu_buf_init(&s->legacy, MU_RDZV_LEGACY_MAX);
    mu_buf_init(&s->heritage, MU_RDZV_LEGACY_MAX);
    err = take_endpoints(s, endpoints == NULL ? "" : endpoints, reterr_msg);
    if (err == 0 && mu_rdzv_line_make(&s->endpoints, mu_buf_span(&s->named)) != 0) {
        err = mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    if (err != 0) {
        if (n->server != NULL) {
            mu_rdzv_unhost(n->server, 0, on_abandoned, NULL);
        }
        mu_rdzv_succession_free(s);
        n->heir = NULL;
        return err;
    }
    if (n->server == NULL) {
        serve_aside(s);
    }
    begin_machine(s);
    (void)mu_addr_format(&n->endpoint, n->address, sizeof(n->address));
    mu_rdzv_succession_begin(s);
    return 0;
}

bool mu_rdzv_succession_take_endpoint(struct mu_rdzv_succession *s)
{
    struct mu_rdzv_muster *n = s->n;
    const char *endpoint = s->endpoints.heirs[0].address;
    struct mu_addr addr;
    struct mu_errmsg why;

    if (s->endpoints.line.count != 1 || s->elsewhere || s->index != MU_SUCCESSION_NO_RANK ||
        n->config.host == MU_RDZV_HOST_NO || n->server == NULL ||
        strcmp(s->lost_addr, endpoint) != 0 ||
        mu_rdzv_endpoint_parse(endpoint, MU_RDZV_PORT, &addr, &why) != 0 ||
        mu_rdzv_place(n->base.env, &addr) != 0 ||
        mu_store_server_listen(n->server, &addr, &why) != 0) {
        return false;
    }
    mu_rdzv_succession_hang_up(s);
    mu_succession_left(&s->machine);
    s->started = false;
    s->index = 0;
    (void)snprintf(s->address, sizeof(s->address), "%s", endpoint);
    mu_rdzv_succession_start(s);
    return true;
}

void mu_rdzv_succession_free(struct mu_rdzv_succession *s)
{
    mu_env_timer_arm(s->n->base.env, &s->timer, MU_MONO_NEVER);
    if (s->lead.hub != NULL) {
        mu_rdzv_lead_fini(&s->lead);
    }
    mu_rdzv_line_free(&s->endpoints);
    mu_rdzv_line_free(&s->line);
    mu_buf_fini(&s->named);
    mu_buf_fini(&s->legacy);
    mu_buf_fini(&s->heritage);
    mu_free(s);
}

bool mu_rdzv_succession_end(struct mu_rdzv_succession *s)
{
    mu_env_timer_arm(s->n->base.env, &s->timer, MU_MONO_NEVER);
    mu_rdzv_succession_hang_up(s);
    mu_rdzv_caller_hang_up(&s->probe);
    for (uint32_t i = 0; i < MU_SUCCESSION_CALLS; i++) {
        if (s->asks[i].client != MU_RDZV_CLIENT_NONE) {
            return false;
        }
    }
    return s->probe.client == MU_RDZV_CLIENT_NONE;
}

bool mu_rdzv_succession_begin(struct mu_rdzv_succession *s)
{
    bool alone = s->endpoints.line.count == 1;

    if (s->started || s->machine.state == MU_SUCCESSION_HOSTING) {
        return s->n->reaches;
    }
    if (alone && s->index == MU_SUCCESSION_NO_RANK && s->n->reaches) {
        return true;
    }
    if (alone && s->index == MU_SUCCESSION_NO_RANK) {
        struct mu_errmsg msg;

        /* There is one place to ask; who is there can say whether it hosts. */
        (void)mu_rdzv_endpoint_parse(s->endpoints.heirs[0].address, MU_RDZV_PORT, &s->n->endpoint,
                                     &msg);
        (void)mu_addr_format(&s->n->endpoint, s->n->address, sizeof(s->n->address));
        s->n->reaches = true;
        return true;
    }
    if (s->n->client != MU_RDZV_CLIENT_NONE) {
        mu_rdzv_muster_disconnect(s->n, "the host of the rendezvous is looked for anew");
    }
    mu_rdzv_succession_start(s);
    return s->n->reaches;
}
