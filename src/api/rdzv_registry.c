/* The backends by name: our own, and those that were registered. */
#include "api/rdzv_api.h"

#include <string.h>

#include "core/alloc.h"
#include "service/rdzv/url.h"

struct backend {
    struct mu_list link;
    muster_rdzv_creator *create;
    char name[MU_RDZV_BACKEND_LEN_MAX + 1];
};

static const char *const built_in[] = {"muster", "c10d", "etcd", "etcd-v2", "etcd-v3", "static"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mu_list registered = {&registered, &registered}; /* under the lock */

static bool is_built_in(const char *name)
{
    for (size_t i = 0; i < sizeof(built_in) / sizeof(built_in[0]); i++) {
        if (strcmp(built_in[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static int check_name(const char *name, const char *caller)
{
    struct mu_errmsg msg;

    if (name == NULL || name[0] == '\0' || strlen(name) > MU_RDZV_BACKEND_LEN_MAX) {
        return mu_api_error(mu_err(&msg, MUSTER_EINVAL,
                                   "%s: a backend's name must have 1 to %d bytes", caller,
                                   MU_RDZV_BACKEND_LEN_MAX),
                            msg.text);
    }
    return 0;
}

static struct backend *find(const char *name)
{
    MU_LIST_FOREACH (it, &registered) {
        struct backend *b = MU_CONTAINER_OF(it, struct backend, link);

        if (strcmp(b->name, name) == 0) {
            return b;
        }
    }
    return NULL;
}

int muster_rdzv_register(const char *name, muster_rdzv_creator *create)
{
    int err = check_name(name, "muster_rdzv_register");
    struct backend *fresh;
    struct backend *b;
    struct mu_errmsg msg;

    if (err != 0) {
        return err;
    }
    if (create == NULL) {
        return mu_api_error(MUSTER_EINVAL, "muster_rdzv_register: the creator is missing");
    }
    if (is_built_in(name)) {
        return mu_api_error(mu_err(&msg, MUSTER_EEXIST,
                                   "the backend \"%s\" is muster's own and cannot be replaced",
                                   name),
                            msg.text);
    }
    fresh = mu_calloc(1, sizeof(*fresh));
    if (fresh == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    memcpy(fresh->name, name, strlen(name));
    fresh->create = create;
    (void)pthread_mutex_lock(&lock);
    b = find(name);
    if (b == NULL) {
        mu_list_push(&registered, &fresh->link);
        fresh = NULL;
    } else if (b->create != create) {
        err = mu_err(&msg, MUSTER_EEXIST, "another backend is already registered as \"%s\"", name);
    }
    (void)pthread_mutex_unlock(&lock);
    mu_free(fresh);
    return err == 0 ? 0 : mu_api_error(err, msg.text);
}

void muster_rdzv_ops_init(struct muster_rdzv_ops *ret, size_t size)
{
    struct muster_rdzv_ops ours = {.next = NULL};

    mu_api_give(ret, size, &ours, sizeof(ours));
}

int muster_rdzv_new(const char *backend, const char *run_id, const struct muster_rdzv_ops *given,
                    void *context, muster_rdzv **ret_rdzv)
{
    int err = check_name(backend, "muster_rdzv_new");
    struct muster_rdzv_ops ops;
    muster_rdzv *r;
    size_t len;

    if (err == 0) {
        err = MU_API_TAKE(rdzv_ops, &ops, given);
    }
    if (err != 0) {
        return err;
    }
    if (run_id == NULL || ops.next == NULL || ops.is_closed == NULL || ops.set_closed == NULL ||
        ops.num_nodes_waiting == NULL || ops.shutdown == NULL || ops.close == NULL ||
        ret_rdzv == NULL) {
        return mu_api_error(MUSTER_EINVAL, "muster_rdzv_new: a run id, all ops except ended and "
                                           "use_agent_store, and a place for the result are "
                                           "needed");
    }
    len = strlen(run_id) + 1;
    r = mu_calloc(1, sizeof(*r) + len);
    if (r == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    r->ops = ops;
    r->context = context;
    memcpy(r->backend, backend, strlen(backend));
    memcpy(r->run_id, run_id, len);
    *ret_rdzv = r;
    return 0;
}

int muster_rdzv_fail(int code, const char *text)
{
    return mu_api_error(code, text);
}

static int refuse_unknown(const char *name)
{
    struct mu_errmsg msg;
    char quoted[64];

    return mu_api_error(
        mu_err(&msg, MUSTER_ENOENT,
               "there is no rendezvous backend %s; the backends are muster, c10d, etcd, "
               "etcd-v2, etcd-v3, static, and those given to muster_rdzv_register()",
               mu_span_quote(quoted, sizeof(quoted), mu_span_str(name))),
        msg.text);
}

/* Makes a handler of a registered backend. */
static int create_registered(muster_runtime *rt, const struct muster_rdzv_params *params,
                             muster_rdzv **ret_rdzv)
{
    muster_rdzv_creator *create = NULL;
    muster_rdzv *r = NULL;
    struct backend *b;
    struct mu_errmsg msg;
    int err;

    (void)pthread_mutex_lock(&lock);
    b = find(params->backend);
    if (b != NULL) {
        create = b->create;
    }
    (void)pthread_mutex_unlock(&lock);
    if (create == NULL) {
        return refuse_unknown(params->backend);
    }
    err = create(rt, params, &r);
    if (err != 0) {
        return err;
    }
    if (r == NULL) {
        return mu_api_error(mu_err(&msg, MUSTER_EINVAL,
                                   "the creator of the backend \"%s\" returned no handler",
                                   params->backend),
                            msg.text);
    }
    if (strcmp(r->backend, params->backend) != 0) {
        (void)mu_err(&msg, MUSTER_EINVAL,
                     "the creator of the backend \"%s\" returned a handler of \"%s\"",
                     params->backend, r->backend);
        muster_rdzv_close(r);
        return mu_api_error(MUSTER_EINVAL, msg.text);
    }
    *ret_rdzv = r;
    return 0;
}

static int open_parts(muster_runtime *rt, const struct muster_rdzv_params *params,
                      muster_rdzv **ret_rdzv)
{
    int err = muster_rdzv_params_check(params);

    if (err != 0) {
        return err;
    }
    return is_built_in(params->backend) ? mu_rdzv_client_new(rt, params, ret_rdzv)
                                        : create_registered(rt, params, ret_rdzv);
}

/* Opens a URL as if its parts had been given. */
static int open_url(muster_runtime *rt, const struct muster_rdzv_params *params,
                    muster_rdzv **ret_rdzv)
{
    struct mu_rdzv_params given = {
        .backend = params->backend,
        .endpoint = params->endpoint,
        .run_id = params->run_id,
        .nodes_min = params->nodes_min,
        .nodes_max = params->nodes_max,
        .config = params->config,
    };
    struct muster_rdzv_params parts = *params; /* ours already */
    struct mu_rdzv_url url;
    struct mu_errmsg msg = {{0}};
    int err = mu_rdzv_url_init(&url, &given, &msg);

    if (err != 0) {
        return mu_api_error(err, msg.text);
    }
    parts.backend = url.params.backend;
    parts.endpoint = url.params.endpoint;
    parts.run_id = url.params.run_id;
    parts.nodes_min = url.params.nodes_min;
    parts.nodes_max = url.params.nodes_max;
    parts.config = url.params.config;
    err = open_parts(rt, &parts, ret_rdzv);
    mu_rdzv_url_fini(&url);
    return err;
}

int muster_rdzv_open(muster_runtime *rt, const struct muster_rdzv_params *given,
                     muster_rdzv **ret_rdzv)
{
    struct muster_rdzv_params params;
    int err;

    if (rt == NULL || given == NULL || ret_rdzv == NULL || mu_runtime_is_mine(rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "muster_rdzv_open() needs a runtime, parameters and a place "
                            "for the result, and waits: call it on a thread of your own");
    }
    err = MU_API_TAKE(rdzv_params, &params, given);
    if (err != 0) {
        return err;
    }
    return mu_rdzv_url_is(params.backend, params.endpoint) ? open_url(rt, &params, ret_rdzv)
                                                           : open_parts(rt, &params, ret_rdzv);
}
