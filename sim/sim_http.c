#include "sim_http.h"
#include "sim_impl.h"

#include <stdio.h>
#include <string.h>

#include "core/addr.h"
#include "core/alloc.h"
#include "core/assert.h"

#define LOST_PPM   30000u             /* requests and answers lost if connections are reset */
#define STREAM_NS  (20 * MU_NS_PER_S) /* how long streams last then */
#define CONNECT_MS 10000u

struct mu_sim_http_server {
    struct mu_list link; /* of sim->http_servers */
    struct mu_sim_host *host;
    uint16_t port;
    const struct mu_sim_http_ops *ops;
    void *arg;
    bool down;
};

/* A part of an answer on its way. */
struct piece {
    struct mu_list link;
    uint64_t at_ns;
    int code; /* of the first */
    bool end;
    size_t len;
    uint8_t bytes[];
};

struct mu_sim_exchange {
    struct mu_sim *sim;
    struct mu_list link; /* of sim->exchanges */
    struct mu_sim_proc *proc;
    struct mu_http *http;
    struct mu_sim_http_server *server; /* NULL: the server does not know it yet, or has ended it */
    struct mu_sim_host *host;          /* the server's */
    bool served;
    char *method;
    char *path;
    uint8_t *body;
    size_t body_len;
    void *context;
    char kept[MU_HTTP_KEPT_MAX];
    struct mu_list pieces;
    struct mu_buf held;
    uint64_t last_at_ns;
    bool lose_answer;
    bool headed; /* the server has begun its answer */
    bool over;
    bool in_data;
    bool resumed;
    bool stuck;
    int status; /* for `done` */
    bool sent;
    struct sim_action arrive; /* the request */
    struct sim_action tell;   /* the next callback */
    struct sim_action fail;   /* its time is up, or it is reset */
};

/* --- ends ------------------------------------------------------------------------------------- */

static void leave_server(struct mu_sim_exchange *x)
{
    struct mu_sim_http_server *server = x->server;

    x->server = NULL;
    if (server != NULL && x->served) {
        server->ops->gone(server->arg, x);
    }
}

static void free_exchange(struct mu_sim_exchange *x)
{
    struct mu_list *it;

    leave_server(x);
    while ((it = mu_list_pop(&x->pieces)) != NULL) {
        mu_free(MU_CONTAINER_OF(it, struct piece, link));
    }
    sim_cancel(x->sim, &x->arrive);
    sim_cancel(x->sim, &x->tell);
    sim_cancel(x->sim, &x->fail);
    mu_list_remove(&x->link);
    mu_buf_fini(&x->held);
    mu_free(x->method);
    mu_free(x->path);
    mu_free(x->body);
    mu_free(x);
}

static void tell_soon(struct mu_sim_exchange *x, uint64_t at_ns)
{
    if (!sim_scheduled(&x->tell)) {
        sim_schedule(x->sim, &x->tell, at_ns);
    }
}

/* The exchange ends for its client with an error; what was on its way is lost. */
static void break_exchange(struct mu_sim_exchange *x, int status)
{
    if (x->over && x->status != 0) {
        return;
    }
    x->over = true;
    x->status = status;
    sim_cancel(x->sim, &x->fail);
    sim_cancel(x->sim, &x->tell);
    sim_schedule(x->sim, &x->tell, x->sim->now_ns);
}

/* The exchange will end with this status, unless its time is up before. */
static void fail_at(struct mu_sim_exchange *x, int status, uint64_t at_ns)
{
    if (!sim_scheduled(&x->fail) || at_ns < x->fail.node.at.ns) {
        x->status = status;
        sim_schedule(x->sim, &x->fail, at_ns);
    }
}

static void run_fail(struct sim_action *action)
{
    struct mu_sim_exchange *x = MU_CONTAINER_OF(action, struct mu_sim_exchange, fail);

    sim_trace_step(x->sim, 1, 0);
    break_exchange(x, x->status);
}

/* --- the client's end ------------------------------------------------------------------------- */

static void tell_done(struct mu_sim_exchange *x)
{
    struct mu_http *http = x->http;
    struct mu_sim_proc *proc = x->proc;
    int status = x->over && x->status != 0 ? x->status : 0;

    http->sent = x->sent;
    http->impl = NULL;
    if (status != 0) {
        (void)mu_err(&http->error, status, "%s", muster_strerror(status));
    }
    sim_trace_step(x->sim, 3, (uint64_t)-status);
    if (sim_scheduled(&x->arrive) && x->sent) {
        x->http = NULL; /* The request is on its way, and will be done although its client is
                           gone. */
        x->tell.proc = NULL;
    } else {
        free_exchange(x);
    }
    sim_enter(proc);
    http->on->done(http, status);
    sim_leave(proc);
}

static void tell_data(struct mu_sim_exchange *x)
{
    struct mu_http *http = x->http;
    struct mu_span in = mu_buf_span(&x->held);
    size_t used;

    if (in.len > 1 && mu_prng_chance(&x->sim->prng, x->sim->faults.chunk_ppm)) {
        in.len = 1 + (size_t)mu_prng_below(&x->sim->prng, in.len - 1);
    }
    sim_trace_step(x->sim, 2, in.len);
    x->resumed = false;
    sim_enter(x->proc);
    used = http->on->data(http, in);
    sim_leave(x->proc);
    MU_ASSERT(used <= in.len);
    mu_buf_consume(&x->held, used);
    x->stuck = used < in.len && !x->resumed;
}

/* Each step makes one callback. */
static void run_tell(struct sim_action *action)
{
    struct mu_sim_exchange *x = MU_CONTAINER_OF(action, struct mu_sim_exchange, tell);
    struct piece *p =
        mu_list_empty(&x->pieces) ? NULL : MU_CONTAINER_OF(x->pieces.next, struct piece, link);

    if (x->http == NULL) {
        sim_trace_step(x->sim, 3, 0);
        free_exchange(x);
        return;
    }
    if (x->over && x->status != 0) {
        tell_done(x);
        return;
    }
    if (x->held.len > 0 && !x->stuck) {
        tell_data(x);
    } else if (p != NULL && p->at_ns <= x->sim->now_ns && !x->stuck) {
        int code = p->code;

        mu_list_remove(&p->link);
        MU_ASSERT(mu_buf_append(&x->held, mu_span(p->bytes, p->len)) == 0);
        x->over = p->end;
        x->status = p->end ? 0 : x->status;
        mu_free(p);
        if (code != 0) {
            x->http->code = code;
            memcpy(x->http->kept, x->kept, sizeof(x->kept));
            sim_enter(x->proc);
            x->http->on->head(x->http);
            sim_leave(x->proc);
        }
    } else if (x->over && x->held.len == 0) {
        tell_done(x);
        return;
    }
    if (x->over && x->status != 0) {
        return; /* It was cancelled meanwhile, and its end is due. */
    }
    p = mu_list_empty(&x->pieces) ? NULL : MU_CONTAINER_OF(x->pieces.next, struct piece, link);
    if (!x->stuck && (x->held.len > 0 || x->over)) {
        tell_soon(x, x->sim->now_ns);
    } else if (!x->stuck && p != NULL) {
        tell_soon(x, p->at_ns);
    }
}

/* --- the server's end ------------------------------------------------------------------------- */

void mu_sim_http_set_context(struct mu_sim_exchange *x, void *context)
{
    x->context = context;
}

void *mu_sim_http_context(const struct mu_sim_exchange *x)
{
    return x->context;
}

void mu_sim_http_keep(struct mu_sim_exchange *x, const char *value)
{
    (void)snprintf(x->kept, sizeof(x->kept), "%s", value);
}

void mu_sim_http_answer(struct mu_sim_exchange *x, int code, struct mu_span part, bool end)
{
    struct mu_sim_host *from = x->server->host;
    struct piece *p;

    if (x->http == NULL) {
        return;
    }
    p = mu_calloc(1, sizeof(*p) + part.len);
    MU_ASSERT(p != NULL);
    p->code = x->headed ? 0 : code;
    p->end = end;
    p->len = part.len;
    if (part.len != 0) {
        memcpy(p->bytes, part.data, part.len);
    }
    x->headed = true;
    x->last_at_ns = p->at_ns = sim_link_arrival(from, x->proc->host, part.len, x->last_at_ns);
    if (x->lose_answer && end) {
        mu_free(p);
        fail_at(x, MUSTER_ECONN, x->last_at_ns);
    } else {
        mu_list_push(&x->pieces, &p->link);
        tell_soon(x, p->at_ns);
    }
    if (end) {
        leave_server(x);
    }
}

static void run_arrive(struct sim_action *action)
{
    struct mu_sim_exchange *x = MU_CONTAINER_OF(action, struct mu_sim_exchange, arrive);
    struct mu_sim_http_server *server = x->server;

    sim_trace_step(x->sim, 0, x->body_len);
    if (x->http == NULL) {
        sim_schedule(x->sim, &x->tell, x->sim->now_ns);
    }
    if (server->down) {
        x->server = NULL;
        x->sent = false;
        if (x->http != NULL) {
            break_exchange(x, MUSTER_ECONN);
        }
        return;
    }
    x->served = true;
    server->ops->request(server->arg, x, x->method, x->path, mu_span(x->body, x->body_len));
}

struct mu_sim_http_server *mu_sim_http_serve(struct mu_sim_host *host, uint16_t port,
                                             const struct mu_sim_http_ops *ops, void *arg)
{
    struct mu_sim_http_server *server = mu_calloc(1, sizeof(*server));

    MU_ASSERT(server != NULL);
    *server = (struct mu_sim_http_server){.host = host, .port = port, .ops = ops, .arg = arg};
    mu_list_init(&server->link);
    mu_list_push(&host->sim->http_servers, &server->link);
    return server;
}

void mu_sim_http_down(struct mu_sim_http_server *server, bool down)
{
    server->down = down;
    MU_LIST_FOREACH_SAFE (it, tmp, &server->host->sim->exchanges) {
        struct mu_sim_exchange *x = MU_CONTAINER_OF(it, struct mu_sim_exchange, link);

        if (down && x->server == server && x->served && x->http != NULL) {
            leave_server(x);
            break_exchange(x, MUSTER_ECONN);
        }
    }
}

/* --- the verbs -------------------------------------------------------------------------------- */

static struct mu_sim_http_server *find_server(struct mu_sim *sim, const struct mu_addr *addr)
{
    MU_LIST_FOREACH (it, &sim->http_servers) {
        struct mu_sim_http_server *s = MU_CONTAINER_OF(it, struct mu_sim_http_server, link);

        if (s->port == addr->port && strcmp(s->host->name, addr->host) == 0) {
            return s;
        }
    }
    return NULL;
}

static bool split_url(const char *url, struct mu_addr *ret_addr, const char **ret_path)
{
    struct mu_errmsg msg;
    char text[MU_ADDR_HOST_MAX + 16];
    size_t len;

    if (strncmp(url, "http://", 7) != 0) {
        return false;
    }
    len = strcspn(url + 7, "/?");
    if (len >= sizeof(text)) {
        return false;
    }
    memcpy(text, url + 7, len);
    text[len] = '\0';
    *ret_path = url + 7 + len;
    return mu_addr_parse(text, 80, ret_addr, &msg) == 0;
}

/* Draws what will go wrong with the request, and when. */
static void draw_fate(struct mu_sim_exchange *x, const struct mu_http_request *q)
{
    struct mu_sim *sim = x->sim;
    struct mu_sim_host *to = x->server->host;
    uint64_t connect_ns = (q->connect_ms == 0 ? CONNECT_MS : q->connect_ms) * MU_NS_PER_MS;
    bool resets = sim->faults.reset_every_ns != 0;
    bool fresh = mu_prng_below(&sim->prng, 2) == 0;
    uint64_t at = sim_link_arrival(x->proc->host, to, q->body.len, 0);

    x->status = MUSTER_ETIMEDOUT;
    x->sent = true;
    x->last_at_ns = at;
    if (q->timeout_ms != 0) {
        sim_schedule(sim, &x->fail, sim->now_ns + q->timeout_ms * MU_NS_PER_MS);
    }
    if (fresh && at > sim->now_ns + connect_ns) {
        x->sent = false; /* Not even a connection is made. */
        sim_schedule(sim, &x->fail, sim->now_ns + connect_ns);
        return;
    }
    if (mu_prng_chance(&sim->prng, sim->faults.dial_refuse_ppm / 4)) {
        x->sent = false;
        fail_at(x, MUSTER_ECONN, at);
        return;
    }
    if (resets && mu_prng_chance(&sim->prng, LOST_PPM)) {
        fail_at(x, MUSTER_ECONN, at);
        return;
    }
    x->lose_answer = resets && mu_prng_chance(&sim->prng, LOST_PPM);
    if (resets && q->timeout_ms == 0) {
        x->status = MUSTER_ECONN;
        sim_schedule(sim, &x->fail, at + sim_draw_ns(&sim->prng, STREAM_NS));
    }
    sim_schedule(sim, &x->arrive, at);
}

int sim_http_start(struct mu_env *env, struct mu_http *http, const struct mu_http_request *q)
{
    struct mu_sim_proc *proc = mu_sim_proc_of(env);
    struct mu_sim *sim = proc->sim;
    struct mu_sim_exchange *x;
    struct mu_sim_heap *heap;
    struct mu_addr addr;
    const char *path;

    if (!split_url(q->url, &addr, &path)) {
        return MUSTER_EINVAL;
    }
    if (mu_sim_out_of_memory(env)) {
        return MUSTER_ENOMEM;
    }
    heap = mu_sim_outside();
    x = mu_sim_calloc(sizeof(*x));
    x->method = mu_strndup(q->method, strlen(q->method));
    x->path = mu_strndup(path, strlen(path));
    x->body = mu_sim_calloc(q->body.len + 1);
    x->body_len = q->body.len;
    if (q->body.len != 0) {
        memcpy(x->body, q->body.data, q->body.len);
    }
    mu_buf_init(&x->held, SIZE_MAX / 2);
    mu_sim_inside(heap);
    x->sim = sim;
    x->proc = proc;
    x->http = http;
    mu_list_init(&x->pieces);
    mu_list_init(&x->link);
    mu_list_push(&sim->exchanges, &x->link);
    x->arrive = (struct sim_action){.run = run_arrive, .kind = SIM_HTTP};
    x->tell = (struct sim_action){.run = run_tell, .proc = proc, .kind = SIM_HTTP};
    x->fail = (struct sim_action){.run = run_fail, .kind = SIM_HTTP};
    http->env = env;
    http->impl = x;
    http->code = 0;
    http->kept[0] = '\0';
    http->error.text[0] = '\0';
    x->server = find_server(sim, &addr);
    if (x->server == NULL) {
        x->status = MUSTER_ENAME;
        sim_schedule(sim, &x->fail, sim->now_ns + MU_NS_PER_MS);
    } else {
        x->host = x->server->host;
        draw_fate(x, q);
    }
    return 0;
}

void sim_http_resume(struct mu_env *env, struct mu_http *http)
{
    struct mu_sim_exchange *x = http->impl;

    (void)env;
    x->resumed = true;
    x->stuck = false;
    tell_soon(x, x->sim->now_ns);
}

void sim_http_cancel(struct mu_env *env, struct mu_http *http)
{
    struct mu_sim_exchange *x = http->impl;
    struct mu_sim_heap *heap;

    (void)env;
    heap = mu_sim_outside();
    if (!sim_scheduled(&x->arrive)) {
        leave_server(x);
    }
    break_exchange(x, MUSTER_ECANCELED);
    mu_sim_inside(heap);
}

void sim_http_drop(struct mu_sim_proc *proc)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &proc->sim->exchanges) {
        struct mu_sim_exchange *x = MU_CONTAINER_OF(it, struct mu_sim_exchange, link);

        if (x->proc == proc) {
            free_exchange(x);
        }
    }
}

/* What waited for the end of a cut comes sooner, in order. */
static void hasten(struct mu_sim_exchange *x)
{
    uint64_t last = 0;

    if (sim_scheduled(&x->arrive)) {
        uint64_t at = sim_link_arrival(x->proc->host, x->host, x->body_len, 0);

        if (at < x->arrive.node.at.ns) {
            sim_schedule(x->sim, &x->arrive, at);
        }
    }
    MU_LIST_FOREACH (it, &x->pieces) {
        struct piece *p = MU_CONTAINER_OF(it, struct piece, link);
        uint64_t at = sim_link_arrival(x->host, x->proc->host, p->len, last);

        p->at_ns = p->at_ns < at ? p->at_ns : at;
        last = p->at_ns;
    }
    x->last_at_ns = last;
    if (last != 0 && sim_scheduled(&x->tell) && x->http != NULL && !(x->over && x->status != 0)) {
        struct piece *first = MU_CONTAINER_OF(x->pieces.next, struct piece, link);

        if (first->at_ns < x->tell.node.at.ns) {
            sim_schedule(x->sim, &x->tell, first->at_ns);
        }
    }
}

void sim_http_kick(struct mu_sim *sim, struct mu_sim_host *from, struct mu_sim_host *to)
{
    MU_LIST_FOREACH (it, &sim->exchanges) {
        struct mu_sim_exchange *x = MU_CONTAINER_OF(it, struct mu_sim_exchange, link);

        if (x->host != NULL && ((x->host == from && x->proc->host == to) ||
                                (x->host == to && x->proc->host == from))) {
            hasten(x);
        }
    }
}

bool sim_http_idle(const struct mu_sim_proc *proc)
{
    MU_LIST_FOREACH (it, &proc->sim->exchanges) {
        const struct mu_sim_exchange *x = MU_CONTAINER_OF(it, struct mu_sim_exchange, link);

        if (x->proc == proc && x->http != NULL) {
            return false;
        }
    }
    return true;
}

void sim_http_free(struct mu_sim *sim)
{
    struct mu_list *it;

    while (!mu_list_empty(&sim->exchanges)) {
        free_exchange(MU_CONTAINER_OF(sim->exchanges.next, struct mu_sim_exchange, link));
    }
    while ((it = mu_list_pop(&sim->http_servers)) != NULL) {
        mu_free(MU_CONTAINER_OF(it, struct mu_sim_http_server, link));
    }
}
