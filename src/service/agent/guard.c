/*
 * The ports of rounds that are over. A worker that comes late, for it was cut off or slow, knows
 * the address of its round's store and nothing else: if the store of a later round got the same
 * port, the worker would take it for its own. So the agent keeps the ports of its last rounds, and
 * whoever comes there is turned away.
 */
#include "core/alloc.h"
#include "service/agent/agent_internal.h"
#include "service/server/server.h"

#define GUARDS_MAX 64

struct guard {
    struct mu_listener listener;
    struct mu_list link; /* s->guards */
    struct mu_agent_service *s;
};

static struct mu_conn *turn_away(struct mu_listener *listener)
{
    (void)listener;
    return NULL;
}

static void on_closed(struct mu_listener *listener)
{
    struct guard *g = MU_CONTAINER_OF(listener, struct guard, listener);
    struct mu_agent_service *s = g->s;

    s->guard_count--;
    mu_free(g);
    mu_agent_settle(s);
}

static void end_first(struct mu_agent_service *s)
{
    struct guard *g = MU_CONTAINER_OF(mu_list_pop(&s->guards), struct guard, link);

    mu_env_unlisten(s->env, &g->listener);
}

void mu_agent_guard(struct mu_agent_service *s, const struct mu_addr *was)
{
    struct guard *g = s->freeing ? NULL : mu_calloc(1, sizeof(*g));
    struct mu_addr addr = *was;

    if (g == NULL) {
        return;
    }
    g->s = s;
    g->listener = (struct mu_listener){.accept = turn_away, .closed = on_closed};
    mu_list_init(&g->link);
    if (mu_env_listen(s->env, &g->listener, &addr) != 0) {
        mu_free(g);
        return;
    }
    mu_list_push(&s->guards, &g->link);
    if (++s->guard_count > GUARDS_MAX) {
        end_first(s);
    }
}

bool mu_agent_guards_end(struct mu_agent_service *s)
{
    while (!mu_list_empty(&s->guards)) {
        end_first(s);
    }
    return s->guard_count == 0;
}
