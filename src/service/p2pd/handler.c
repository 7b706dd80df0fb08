/* The protocols of clients, as the host serves them. */
#include <muster/error.h>

#include "core/alloc.h"
#include "service/p2pd/p2pd_internal.h"

struct served {
    struct mu_peer_handler handler;
    struct mu_p2pd *d;
    const struct mu_p2pd_name *name;
};

static struct mu_host_stream *on_opened(struct mu_peer_handler *handler,
                                        const struct mu_peer_id *peer, struct mu_span name)
{
    struct served *s = MU_CONTAINER_OF(handler, struct served, handler);

    return s->name->unary ? mu_p2pd_call_opened(s->d, peer, name)
                          : mu_p2pd_pipe_opened(s->d, mu_p2pd_names_next(&s->d->calls.names, name),
                                                peer, name);
}

int mu_p2pd_handle(struct mu_p2pd *d, struct mu_span name, struct mu_p2pd_user *user,
                   struct mu_span addr, bool balanced, struct mu_errmsg *reterr_msg)
{
    struct mu_p2pd_name *n;
    int err = mu_p2pd_names_add(&d->calls.names, name, user, addr, balanced, &n, reterr_msg);
    struct served *s;

    if (err != 0 || n->owner != NULL) {
        return err;
    }
    s = mu_calloc(1, sizeof(*s));
    if (s == NULL) {
        return mu_p2pd_names_refuse(n, MUSTER_ENOMEM, reterr_msg);
    }
    s->d = d;
    s->name = n;
    s->handler.name = n->text;
    s->handler.opened = on_opened;
    mu_list_init(&s->handler.link);
    err = mu_peer_host_serve(d->host, &s->handler);
    if (err != 0) {
        mu_free(s);
        return mu_p2pd_names_refuse(n, err, reterr_msg);
    }
    n->owner = s;
    return 0;
}

void mu_p2pd_unserve(struct mu_p2pd_name *name)
{
    struct served *s = name->owner;

    if (s != NULL) {
        mu_peer_host_unserve(&s->handler);
        mu_free(s);
    }
    mu_p2pd_name_free(name);
}
