#include "service/server/gateway.h"

#include <string.h>

#include "core/alloc.h"

/* --- etcd ------------------------------------------------------------------------------------- */

struct etcd_gateway {
    struct mu_gateway base;
    struct mu_gateway_etcd *backing;
    void (*closed)(void *context);
    void *context;
};

static struct etcd_gateway *etcd_of(const struct mu_gateway *k)
{
    return MU_CONTAINER_OF((struct mu_gateway *)(uintptr_t)k, struct etcd_gateway, base);
}

static void etcd_submit(struct mu_gateway *k, struct mu_backing_client *client,
                        struct mu_gateway_op *op)
{
    mu_gateway_etcd_submit(etcd_of(k)->backing, client, op);
}

static bool etcd_cancel(struct mu_gateway *k, struct mu_gateway_op *op)
{
    return mu_gateway_etcd_cancel(etcd_of(k)->backing, op);
}

static bool etcd_watches(const struct mu_gateway *k)
{
    return mu_gateway_etcd_watches(etcd_of(k)->backing);
}

static void etcd_tell_current(struct mu_gateway *k, struct mu_gateway_op *op)
{
    mu_gateway_etcd_tell_current(etcd_of(k)->backing, op);
}

static bool etcd_idle(const struct mu_gateway *k)
{
    return mu_gateway_etcd_idle(etcd_of(k)->backing);
}

static void on_etcd_closed(void *context)
{
    struct etcd_gateway *e = context;
    void (*closed)(void *) = e->closed;
    void *closed_context = e->context;

    mu_free(e);
    closed(closed_context);
}

static void etcd_close(struct mu_gateway *k, bool drop, void (*closed)(void *context),
                       void *context)
{
    struct etcd_gateway *e = etcd_of(k);

    e->closed = closed;
    e->context = context;
    mu_gateway_etcd_close(e->backing, drop, on_etcd_closed, e);
}

/* The gateway ends by itself; nothing waits for it. */
static void forget_it(void *context)
{
    (void)context;
}

static void etcd_drop(struct mu_gateway *k)
{
    etcd_close(k, false, forget_it, NULL);
}

static const struct mu_gateway_kind etcd_kind = {
    .submit = etcd_submit,
    .cancel = etcd_cancel,
    .watches = etcd_watches,
    .tell_current = etcd_tell_current,
    .idle = etcd_idle,
    .close = etcd_close,
    .drop = etcd_drop,
};

static int etcd_new(struct mu_env *env, const char *url, const struct mu_gateway_events *events,
                    struct mu_gateway **ret_gateway, struct mu_errmsg *reterr_msg)
{
    struct etcd_gateway *e = mu_calloc(1, sizeof(*e));
    int err;

    if (e == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    e->base.kind = &etcd_kind;
    err = mu_gateway_etcd_new(env, url, events, &e->backing, reterr_msg);
    if (err != 0) {
        mu_free(e);
        return err;
    }
    *ret_gateway = &e->base;
    return 0;
}

const struct mu_gateway_etcd *mu_gateway_etcd(const struct mu_gateway *k)
{
    return k->kind == &etcd_kind ? etcd_of(k)->backing : NULL;
}

/* --- by URL ----------------------------------------------------------------------------------- */

static bool is_remote(const char *url)
{
    return strncmp(url, "tcp:", 4) == 0;
}

int mu_gateway_check(const char *url, struct mu_errmsg *reterr_msg)
{
    return is_remote(url) ? mu_gateway_server_check(url, reterr_msg)
                          : mu_gateway_etcd_check(url, reterr_msg);
}

int mu_gateway_new(struct mu_env *env, const char *url, const struct mu_gateway_events *events,
                   struct mu_gateway **ret_gateway, struct mu_errmsg *reterr_msg)
{
    return is_remote(url) ? mu_gateway_server_new(env, url, events, ret_gateway, reterr_msg)
                          : etcd_new(env, url, events, ret_gateway, reterr_msg);
}
