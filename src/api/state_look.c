/*
 * Donors that are announced in a store while a load runs. The loop looks for them, so that they are
 * found whether a thread waits for the load or not.
 */
#include <stdio.h>
#include <string.h>

#include "api/state_api.h"

#define LOOK_MS 500 /* how often to look, and how long a look may take */

/* The address follows the prefix; it may have slashes itself, as a multiaddr does. */
static const char *address_in(const muster_state_loading *g, const char *key)
{
    const char *rest = key + strlen("muster-state/") + strlen(g->config.prefix);
    const char *multiaddr = strstr(rest, "//");

    if (g->config.prefix[0] != '\0') {
        return rest + 1;
    }
    return multiaddr != NULL            ? multiaddr + 1
           : strrchr(rest, '/') != NULL ? strrchr(rest, '/') + 1
                                        : rest;
}

static void print_prefix(const muster_state_loading *g, char *out, size_t cap)
{
    (void)snprintf(out, cap, "muster-state/%s%s", g->config.prefix,
                   g->config.prefix[0] == '\0' ? "" : "/");
}

int mu_state_look_first(muster_state_loading *g, int64_t timeout_ms, struct muster_values *ret)
{
    char prefix[MU_STATE_PREFIX_MAX + 32];

    print_prefix(g, prefix, sizeof(prefix));
    return muster_store_list_keys(g->look.store, muster_str(prefix), ret, timeout_ms);
}

void mu_state_look_add(muster_state_loading *g, const char *key)
{
    struct mu_errmsg msg;

    /* Other programs may have written anything into the store. */
    if (g->loader != NULL && g->swarm_load == NULL) {
        (void)mu_state_loader_add(g->loader, address_in(g, key), &msg);
    }
}

/* --- on the loop ------------------------------------------------------------------------------ */

static void look_later(muster_state_loading *g)
{
    mu_env_timer_arm(g->rt->env, &g->look.timer,
                     mu_mono_add_ms(mu_env_now(g->rt->env).mono, LOOK_MS));
}

static void on_looked(struct mu_post *post)
{
    muster_state_loading *g = MU_CONTAINER_OF(post, muster_state_loading, look.post);

    if (g->look.op == NULL) {
        return; /* the load has ended meanwhile */
    }
    for (size_t i = 0; !g->closed && i < muster_op_value_count(g->look.op); i++) {
        mu_state_look_add(g, muster_op_value(g->look.op, i).data);
    }
    muster_op_free(g->look.op);
    g->look.op = NULL;
    if (!g->closed) {
        look_later(g);
    }
}

/* The store may have another runtime than the load. */
static void on_listed(muster_op *op, void *context)
{
    muster_state_loading *g = context;

    (void)op;
    mu_uv_env_post(g->rt->uv, &g->look.post);
}

static void on_timer(struct mu_timer *timer)
{
    muster_state_loading *g = MU_CONTAINER_OF(timer, muster_state_loading, look.timer);
    struct muster_store_request q = muster_store_request_defaults();
    char prefix[MU_STATE_PREFIX_MAX + 32];
    struct muster_bytes key;

    if (g->closed) {
        return;
    }
    print_prefix(g, prefix, sizeof(prefix));
    key = muster_str(prefix);
    q.verb = MUSTER_STORE_LIST_KEYS;
    q.keys = &key;
    q.key_count = 1;
    q.timeout_ms = LOOK_MS;
    q.done = on_listed;
    q.context = g;
    if (muster_store_submit(g->look.store, &q, &g->look.op) != 0) {
        g->look.op = NULL;
        look_later(g);
    }
}

void mu_state_look_init(muster_state_loading *g, muster_store *store)
{
    g->look.store = store;
    mu_timer_init(&g->look.timer, on_timer);
    g->look.post.run = on_looked;
}

void mu_state_look_start(muster_state_loading *g)
{
    if (g->look.store != NULL) {
        look_later(g);
    }
}

void mu_state_look_stop(muster_state_loading *g)
{
    if (g->look.store != NULL) {
        mu_env_timer_arm(g->rt->env, &g->look.timer, MU_MONO_NEVER);
        muster_op_free(g->look.op);
        g->look.op = NULL;
    }
}
