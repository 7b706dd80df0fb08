#include "service/server/keeper.h"

#include <string.h>

#include "core/alloc.h"

/* --- etcd ------------------------------------------------------------------------------------- */

struct etcd_keeper {
    struct mu_keeper base;
    struct mu_backing *backing;
    void (*closed)(void *context);
    void *context;
};

static struct etcd_keeper *etcd_of(const struct mu_keeper *k)
{
    return MU_CONTAINER_OF((struct mu_keeper *)(uintptr_t)k, struct etcd_keeper, base);
}

static void etcd_submit(struct mu_keeper *k, struct mu_backed_client *client,
                        struct mu_backing_op *op)
{
    mu_backing_submit(etcd_of(k)->backing, client, op);
}

static bool etcd_cancel(struct mu_keeper *k, struct mu_backing_op *op)
{
    return mu_backing_cancel(etcd_of(k)->backing, op);
}

static bool etcd_watches(const struct mu_keeper *k)
{
    return mu_backing_watches(etcd_of(k)->backing);
}

static void etcd_tell_current(struct mu_keeper *k, struct mu_backing_op *op)
{
    mu_backing_tell_current(etcd_of(k)->backing, op);
}

static bool etcd_idle(const struct mu_keeper *k)
{
    return mu_backing_idle(etcd_of(k)->backing);
}

static void on_etcd_closed(void *context)
{
    struct etcd_keeper *e = context;
    void (*closed)(void *) = e->closed;
    void *closed_context = e->context;

    mu_free(e);
    closed(closed_context);
}

static void etcd_close(struct mu_keeper *k, bool drop, void (*closed)(void *context), void *context)
{
    struct etcd_keeper *e = etcd_of(k);

    e->closed = closed;
    e->context = context;
    mu_backing_close(e->backing, drop, on_etcd_closed, e);
}

/* It ends by itself; nobody waits for it. */
static void forget_it(void *context)
{
    (void)context;
}

static void etcd_drop(struct mu_keeper *k)
{
    etcd_close(k, false, forget_it, NULL);
}

static const struct mu_keeper_kind etcd_kind = {
    .submit = etcd_submit,
    .cancel = etcd_cancel,
    .watches = etcd_watches,
    .tell_current = etcd_tell_current,
    .idle = etcd_idle,
    .close = etcd_close,
    .drop = etcd_drop,
};

static int etcd_new(struct mu_env *env, const char *url, const struct mu_backing_events *events,
                    struct mu_keeper **ret_keeper, struct mu_errmsg *reterr_msg)
{
    struct etcd_keeper *e = mu_calloc(1, sizeof(*e));
    int err;

    if (e == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    e->base.kind = &etcd_kind;
    err = mu_backing_new(env, url, events, &e->backing, reterr_msg);
    if (err != 0) {
        mu_free(e);
        return err;
    }
    *ret_keeper = &e->base;
    return 0;
}

const struct mu_backing *mu_keeper_etcd(const struct mu_keeper *k)
{
    return k->kind == &etcd_kind ? etcd_of(k)->backing : NULL;
}

/* --- by URL ----------------------------------------------------------------------------------- */

static bool is_remote(const char *url)
{
    return strncmp(url, "tcp:", 4) == 0;
}

int mu_keeper_check(const char *url, struct mu_errmsg *reterr_msg)
{
    return is_remote(url) ? mu_remote_check(url, reterr_msg) : mu_backing_check(url, reterr_msg);
}

int mu_keeper_new(struct mu_env *env, const char *url, const struct mu_backing_events *events,
                  struct mu_keeper **ret_keeper, struct mu_errmsg *reterr_msg)
{
    return is_remote(url) ? mu_remote_new(env, url, events, ret_keeper, reterr_msg)
                          : etcd_new(env, url, events, ret_keeper, reterr_msg);
}
