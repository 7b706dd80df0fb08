/* A round on the loop's side: what was assigned, its store, and where its workers meet. */
#include "api/rdzv_api.h"

#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"

/*
 * With our own server, a round may be assigned before its rank 0 has asked for it, because that
 * node still ends its workers. The server makes sure that rank 0 lives, so we give it time; and the
 * store that it served in the round before is still there, so no node may use that one.
 */
#define NATIVE_TIMEOUT_MS 600000

/* --- the end ---------------------------------------------------------------------------------- */

static void let_go(struct mu_rdzv_round *r)
{
    struct mu_rdzv_client *s = r->client;

    if (--r->pending != 0 || !r->dropped) {
        return;
    }
    mu_api_store_unwrap(r->info.store);
    mu_free(r->texts);
    mu_free(r);
    mu_rdzv_client_round_freed(s);
}

static void on_store_closed(void *context)
{
    let_go(context);
}

static void on_bootstrap_ended(void *context)
{
    let_go(context);
}

void mu_rdzv_round_drop(struct mu_rdzv_round *r)
{
    if (r == NULL) {
        return;
    }
    r->dropped = true;
    r->pending++; /* for this call */
    if (r->bootstrap != NULL) {
        mu_rdzv_bootstrap_end(r->bootstrap);
    }
    if (r->stores.store != NULL) {
        r->pending++;
        mu_store_close(r->stores.store, on_store_closed, r);
    }
    let_go(r);
}

/* --- what was assigned ------------------------------------------------------------------------ */

/* Copies the text to `*at` and moves that past it. */
static const char *copy_text(char **at, const char *text)
{
    size_t len = strlen(text) + 1;
    char *to = *at;

    memcpy(to, text, len);
    *at += len;
    return to;
}

static int copy_assignment(struct mu_rdzv_round *r, const struct mu_rdzv_assignment *a)
{
    size_t bytes = strlen(a->store) + 1;
    const char **names;
    char *at;

    for (size_t i = 0; i < a->member_count; i++) {
        bytes += strlen(a->members[i].name) + strlen(a->members[i].addr) + 2;
    }
    if (a->member_count > (SIZE_MAX - bytes) / (2 * sizeof(*names))) {
        return MUSTER_ENOMEM;
    }
    names = r->texts = mu_malloc(2 * a->member_count * sizeof(*names) + bytes);
    if (names == NULL) {
        return MUSTER_ENOMEM;
    }
    at = (char *)(names + 2 * a->member_count);
    for (size_t i = 0; i < a->member_count; i++) {
        names[i] = copy_text(&at, a->members[i].name);
        names[a->member_count + i] = copy_text(&at, a->members[i].addr);
    }
    r->info = (struct muster_rdzv_info){
        .store_url = copy_text(&at, a->store),
        .round = a->round,
        .incarnation = a->incarnation,
        .rank = a->rank,
        .world_size = a->world,
        .restarts_left = a->restarts_left,
        .bootstrap_addr = "",
        .member_count = a->member_count,
        .members = names,
        .member_addrs = names + a->member_count,
    };
    return 0;
}

/* --- opening ---------------------------------------------------------------------------------- */

static void on_bootstrap_done(void *context, const char *addr, uint16_t port)
{
    struct mu_rdzv_round *r = context;

    r->info.bootstrap_addr = addr;
    r->info.bootstrap_port = port;
    mu_rdzv_client_opened(r->client);
}

static void on_bootstrap_failed(void *context, int status, const char *text)
{
    struct mu_rdzv_round *r = context;

    mu_rdzv_client_not_opened(r->client, status, text);
}

static int start_bootstrap(struct mu_rdzv_round *r, struct mu_errmsg *reterr_msg)
{
    bool native = strcmp(r->client->handler->backend, "muster") == 0;
    struct mu_rdzv_bootstrap_config config = {
        .store = r->stores.store,
        .run = native ? NULL : r->stores.run,
        .timeout_ms = native ? NATIVE_TIMEOUT_MS : MU_RDZV_BOOTSTRAP_TIMEOUT_MS,
        .prefix = r->stores.prefix,
        .round = r->info.round,
        .rank = r->info.rank,
        .addr = r->client->handler->addr,
        .addr_0 = r->info.member_count > 0 ? r->info.member_addrs[0] : NULL,
        .nearby = mu_rdzv_round_store_is_near(r->info.store_url),
        .share = r->share,
        .done = on_bootstrap_done,
        .failed = on_bootstrap_failed,
        .ended = on_bootstrap_ended,
        .context = r,
    };
    int err = mu_rdzv_bootstrap_start(r->client->rt->env, &config, &r->bootstrap, reterr_msg);

    if (err == 0) {
        r->pending++;
    }
    return err;
}

static void on_probe_done(struct mu_store_op *op)
{
    struct mu_rdzv_round *r = MU_CONTAINER_OF(op, struct mu_rdzv_round, probe);
    struct mu_errmsg msg;

    if (!r->dropped && op->status == 0) {
        mu_rdzv_client_opened(r->client);
    } else if (!r->dropped) {
        (void)mu_err(&msg, MUSTER_ERDZV_CONN, "cannot open the store of round %" PRIu64 ": %s",
                     r->info.round, op->errmsg.text);
        mu_rdzv_client_not_opened(
            r->client, op->status == MUSTER_ENOMEM ? MUSTER_ENOMEM : MUSTER_ERDZV_CONN, msg.text);
    }
    let_go(r);
}

/* Asks something that every store can answer: whether all of no keys exist. */
static void probe_store(struct mu_rdzv_round *r)
{
    r->probe = (struct mu_store_op){
        .request = {.verb = MU_STORE_CHECK},
        .timeout_ms = MU_RDZV_BOOTSTRAP_TIMEOUT_MS,
        .done = on_probe_done,
    };
    r->pending++;
    mu_store_submit(r->stores.store, &r->probe);
}

static int open_parts(struct mu_rdzv_round *r, struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_client *s = r->client;
    int err;

    if ((s->flags & MUSTER_RDZV_NO_BOOTSTRAP) == 0 && s->is_static) {
        r->info.bootstrap_addr = s->endpoint.host;
        r->info.bootstrap_port = s->endpoint.port;
    }
    if ((s->flags & MUSTER_RDZV_NO_STORE) != 0) {
        return 1;
    }
    err = mu_rdzv_round_store_open(s->rt->env, r->info.store_url, MU_RDZV_BOOTSTRAP_TIMEOUT_MS,
                                   &r->stores, reterr_msg);
    if (err != 0) {
        return err;
    }
    r->info.store = mu_api_store_wrap(s->rt, r->stores.store);
    if (r->info.store == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    if ((s->flags & MUSTER_RDZV_NO_BOOTSTRAP) == 0 && !s->is_static) {
        return start_bootstrap(r, reterr_msg);
    }
    probe_store(r);
    return 0;
}

int mu_rdzv_round_open(struct mu_rdzv_client *s, const struct mu_rdzv_assignment *a,
                       struct mu_rdzv_round **ret_round, struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_round *r = mu_calloc(1, sizeof(*r));
    int err = r == NULL ? MUSTER_ENOMEM : copy_assignment(r, a);

    if (err != 0) {
        mu_free(r);
        return mu_err(reterr_msg, err, "out of memory");
    }
    r->client = s;
    r->share = s->is_static || (s->share_wanted && !a->torch_1 && !a->workers_serve);
    s->rounds++;
    err = open_parts(r, reterr_msg);
    if (err < 0) {
        mu_rdzv_round_drop(r);
        return err;
    }
    *ret_round = r;
    return err;
}
