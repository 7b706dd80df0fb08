/* The simulated network: links between hosts, listening and dialling, and what faults do to it. */
#include "sim_conn.h"

#include <errno.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

#define LOOPBACK_NS    8000
#define PORT_EPHEMERAL 40000

/* --- links ------------------------------------------------------------------------------------ */

struct sim_link *sim_link_get(struct mu_sim_host *from, struct mu_sim_host *to)
{
    const struct mu_sim_faults *f = &from->sim->faults;
    struct sim_link *link;

    if (to->index >= from->link_count) {
        size_t count = from->sim->host_count;
        struct mu_sim_heap *heap = mu_sim_outside();
        struct sim_link *links = mu_realloc(from->links, count * sizeof(*links));

        mu_sim_inside(heap);
        MU_ASSERT(links != NULL);
        memset(links + from->link_count, 0, (count - from->link_count) * sizeof(*links));
        from->links = links;
        from->link_count = count;
    }
    link = &from->links[to->index];
    if (!link->drawn) {
        uint64_t spread =
            f->latency_max_ns > f->latency_min_ns ? f->latency_max_ns - f->latency_min_ns : 0;

        link->drawn = true;
        link->latency_ns =
            from == to ? LOOPBACK_NS : f->latency_min_ns + sim_draw_ns(&from->sim->prng, spread);
    }
    return link;
}

bool sim_link_is_cut(struct mu_sim_host *from, struct mu_sim_host *to)
{
    return sim_link_get(from, to)->cut_until_ns > from->sim->now_ns;
}

uint64_t sim_link_arrival(struct mu_sim_host *from, struct mu_sim_host *to, size_t n,
                          uint64_t after_ns)
{
    struct mu_sim *sim = from->sim;
    const struct mu_sim_faults *f = &sim->faults;
    struct sim_link *link = sim_link_get(from, to);
    uint64_t at = sim->now_ns;

    if (f->ns_per_byte != 0 && n != 0) {
        at = at > link->busy_until_ns ? at : link->busy_until_ns;
        at += n * f->ns_per_byte;
        link->busy_until_ns = at;
    }
    at += link->latency_ns + mu_prng_below(&sim->prng, link->latency_ns / 2 + 1);
    if (mu_prng_chance(&sim->prng, f->spike_ppm)) {
        at += sim_draw_ns(&sim->prng, f->spike_max_ns);
    }
    if (link->cut_until_ns > sim->now_ns) {
        uint64_t again = link->cut_until_ns + mu_prng_below(&sim->prng, SIM_RTO_NS);

        at = at > again ? at : again;
    }
    return at > after_ns ? at : after_ns;
}

/* --- listening -------------------------------------------------------------------------------- */

static bool is_loopback(const char *host)
{
    return strcmp(host, "127.0.0.1") == 0 || strcmp(host, "localhost") == 0 ||
           strcmp(host, "::1") == 0;
}

static bool is_any(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static struct sim_listener *find_listener(struct mu_sim_host *host, const struct mu_addr *addr)
{
    MU_LIST_FOREACH (p, &host->procs) {
        struct mu_sim_proc *proc = MU_CONTAINER_OF(p, struct mu_sim_proc, link);

        MU_LIST_FOREACH (l, &proc->listeners) {
            struct sim_listener *listener = MU_CONTAINER_OF(l, struct sim_listener, link);

            if (!listener->closing && listener->addr.kind == addr->kind &&
                (addr->kind == MU_ADDR_TCP ? listener->addr.port == addr->port
                                           : strcmp(listener->addr.host, addr->host) == 0)) {
                return listener;
            }
        }
    }
    return NULL;
}

static void run_unlistened(struct sim_action *action)
{
    struct sim_listener *l = MU_CONTAINER_OF(action, struct sim_listener, closed);
    struct mu_listener *listener = l->listener;
    struct mu_sim_proc *proc = l->proc;

    sim_trace_step(proc->sim, 0, 0);
    mu_list_remove(&l->link);
    mu_free(l);
    listener->impl = NULL;
    sim_enter(proc);
    listener->closed(listener);
    sim_leave(proc);
}

int sim_net_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr)
{
    struct mu_sim_proc *proc = mu_sim_proc_of(env);
    struct mu_sim_host *host = proc->host;
    struct mu_sim_heap *heap;
    struct sim_listener *l;

    if ((addr->kind != MU_ADDR_TCP && addr->kind != MU_ADDR_UNIX) || addr->host[0] == '\0') {
        return MUSTER_EINVAL;
    }
    if (addr->kind == MU_ADDR_TCP && !is_loopback(addr->host) && !is_any(addr->host) &&
        strcmp(addr->host, host->name) != 0) {
        return -EADDRNOTAVAIL;
    }
    if (addr->kind == MU_ADDR_TCP && addr->port == 0) {
        do {
            addr->port = host->next_port++;
            host->next_port = host->next_port < PORT_EPHEMERAL ? PORT_EPHEMERAL : host->next_port;
        } while (find_listener(host, addr) != NULL);
    } else if (find_listener(host, addr) != NULL) {
        return -EADDRINUSE;
    }
    if (mu_sim_out_of_memory(env)) {
        return MUSTER_ENOMEM;
    }
    heap = mu_sim_outside();
    l = mu_sim_calloc(sizeof(*l));
    mu_sim_inside(heap);
    l->proc = proc;
    l->listener = listener;
    l->addr = *addr;
    l->loopback = addr->kind == MU_ADDR_TCP && is_loopback(addr->host);
    l->closed = (struct sim_action){.run = run_unlistened, .proc = proc, .kind = SIM_UNLISTEN};
    mu_list_init(&l->backlog);
    mu_list_push(&proc->listeners, &l->link);
    listener->env = env;
    listener->impl = l;
    listener->here_only = l->loopback || addr->kind == MU_ADDR_UNIX;
    return 0;
}

/* Ends connections that were never accepted. */
static void drop_backlog(struct sim_listener *l)
{
    struct mu_list *node;

    while ((node = mu_list_pop(&l->backlog)) != NULL) {
        struct sim_end *end = MU_CONTAINER_OF(node, struct sim_end, link);
        struct sim_pair *pair = end->pair;

        sim_end_orphan(end);
        sim_pair_release(pair);
    }
}

void sim_net_unlisten(struct mu_env *env, struct mu_listener *listener)
{
    struct sim_listener *l = listener->impl;

    if (!l->closing) {
        l->closing = true;
        drop_backlog(l);
        sim_schedule(mu_sim_of(env), &l->closed, mu_sim_of(env)->now_ns);
    }
}

/* --- dialling --------------------------------------------------------------------------------- */

static struct mu_sim_host *resolve(struct mu_sim_host *from, const struct mu_addr *addr)
{
    if (addr->kind == MU_ADDR_UNIX || is_loopback(addr->host) || is_any(addr->host)) {
        return from;
    }
    return mu_sim_host_find(from->sim, addr->host);
}

static void run_accept(struct sim_action *action)
{
    struct sim_pair *pair = MU_CONTAINER_OF(action, struct sim_pair, accept);
    struct sim_end *end = &pair->ends[1];
    struct sim_listener *l = end->listener;
    struct mu_sim_proc *proc = l->proc;
    struct mu_conn *conn;

    mu_list_remove(&end->link); /* `accept` may stop listening, which must not end this
                                   connection. */
    end->listener = NULL;
    sim_enter(proc);
    conn = l->listener->accept(l->listener);
    sim_leave(proc);
    sim_trace_step(proc->sim, conn == NULL ? 0 : 1, 0);
    if (conn == NULL) {
        sim_end_orphan(end);
        sim_pair_release(pair);
        return;
    }
    mu_list_push(&proc->ends, &end->link);
    end->conn = conn;
    end->state = SIM_END_OPEN;
    conn->env = &proc->env;
    conn->impl = end;
    sim_end_own(end, proc);
    sim_end_arm(end);
    sim_end_notice(end);
}

static void run_open(struct sim_action *action)
{
    struct sim_pair *pair = MU_CONTAINER_OF(action, struct sim_pair, open);
    struct sim_end *end = &pair->ends[0];
    struct sim_end *peer = &pair->ends[1];
    struct mu_sim *sim = pair->sim;

    if (sim_link_is_cut(peer->host, end->host)) {
        sim_schedule(sim, &pair->open, sim_link_arrival(peer->host, end->host, 0, 0));
        return;
    }
    sim_trace_step(sim, 1, 0);
    if (end->rst_status == -ETIMEDOUT) {
        sim_cancel(sim, &end->rst); /* This is the dial's own time limit, not a reset on its way. */
    }
    end->state = SIM_END_OPEN;
    end->last_at_ns = sim->now_ns;
    if (end->want_writable) {
        sim_schedule(sim, &end->ack, sim->now_ns);
    }
    sim_end_arm(end);
    sim_enter(end->proc);
    end->conn->on->open(end->conn);
    sim_leave(end->proc);
}

static void answer_syn(struct sim_pair *pair, struct mu_sim_host *to, struct sim_listener *l)
{
    struct mu_sim *sim = pair->sim;
    struct sim_end *dialler = &pair->ends[0];
    uint64_t back = sim_link_arrival(to, dialler->host, 0, 0);

    sim_trace_step(sim, l != NULL ? 1 : 0, 0);
    if (l == NULL) {
        if (sim_link_is_cut(to, dialler->host)) {
            sim_schedule(sim, &pair->syn, back + SIM_RTO_NS);
        } else {
            dialler->rst_status = -ECONNREFUSED;
            sim_schedule(sim, &dialler->rst, back);
        }
        return;
    }
    sim_end_init(&pair->ends[1], pair, to, SIM_END_BACKLOG);
    pair->ends[1].listener = l;
    pair->ends[1].last_at_ns = back;
    mu_list_push(&l->backlog, &pair->ends[1].link);
    pair->accept.proc = l->proc;
    sim_schedule(sim, &pair->accept, sim->now_ns);
    sim_schedule(sim, &pair->open, back);
}

/* The first packet of a dial reaches its host; until then it is sent again and again. */
static void run_syn(struct sim_action *action)
{
    struct sim_pair *pair = MU_CONTAINER_OF(action, struct sim_pair, syn);
    struct mu_sim *sim = pair->sim;
    struct sim_end *dialler = &pair->ends[0];
    struct mu_sim_host *to = resolve(dialler->host, &pair->addr);
    struct sim_listener *l;

    if (!to->up || sim_link_is_cut(dialler->host, to)) {
        uint64_t again = sim->now_ns + 5 * SIM_RTO_NS + mu_prng_below(&sim->prng, SIM_RTO_NS);

        sim_trace_step(sim, 0, 1);
        sim_schedule(sim, &pair->syn, again);
        return;
    }
    l = find_listener(to, &pair->addr);
    if ((l != NULL && l->loopback && to != dialler->host) ||
        mu_prng_chance(&sim->prng, sim->faults.dial_refuse_ppm)) {
        l = NULL;
    }
    answer_syn(pair, to, l);
}

int sim_net_dial(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr)
{
    struct mu_sim_proc *proc = mu_sim_proc_of(env);
    struct mu_sim *sim = proc->sim;
    struct mu_sim_host *to = resolve(proc->host, addr);
    struct mu_sim_heap *heap;
    struct sim_pair *pair;
    struct sim_end *end;
    uint64_t at;

    if ((addr->kind != MU_ADDR_TCP && addr->kind != MU_ADDR_UNIX) || addr->host[0] == '\0') {
        return MUSTER_EINVAL;
    }
    if (mu_sim_out_of_memory(env)) {
        return MUSTER_ENOMEM;
    }
    heap = mu_sim_outside();
    pair = mu_sim_calloc(sizeof(*pair));
    mu_sim_inside(heap);
    pair->sim = sim;
    pair->id = ++sim->conn_seq;
    pair->addr = *addr;
    pair->ends[1].pair = pair;
    pair->port = (uint16_t)(1024 + pair->id % 60000);
    pair->syn = (struct sim_action){.run = run_syn, .kind = SIM_SYN, .subject = pair->id};
    pair->accept = (struct sim_action){.run = run_accept, .kind = SIM_ACCEPT, .subject = pair->id};
    pair->open =
        (struct sim_action){.run = run_open, .proc = proc, .kind = SIM_OPEN, .subject = pair->id};
    mu_list_push(&sim->pairs, &pair->link);
    end = &pair->ends[0];
    sim_end_init(end, pair, proc->host, SIM_END_DIALLING);
    end->conn = conn;
    sim_end_own(end, proc);
    mu_list_push(&proc->ends, &end->link);
    conn->env = env;
    conn->impl = end;
    if (to == NULL) {
        end->rst_status = MUSTER_ENAME; /* as the name server says */
        sim_schedule(sim, &end->rst, sim->now_ns);
        return 0;
    }
    at = sim_link_arrival(proc->host, to, 0, 0);
    if (mu_prng_chance(&sim->prng, sim->faults.dial_slow_ppm)) {
        at += sim_draw_ns(&sim->prng, sim->faults.dial_slow_max_ns);
    }
    sim_schedule(sim, &pair->syn, at);
    end->rst_status = -ETIMEDOUT;
    sim_schedule(sim, &end->rst, sim->now_ns + SIM_DIAL_NS);
    return 0;
}

void sim_net_peer(struct mu_env *env, const struct mu_conn *conn, char *buf, size_t cap)
{
    const struct sim_end *end = conn->impl;

    (void)env;
    if (end == NULL) {
        (void)snprintf(buf, cap, "closed");
    } else if (end->pair->addr.kind == MU_ADDR_UNIX) {
        (void)snprintf(buf, cap, "unix:%s", end->pair->addr.host);
    } else if (end == &end->pair->ends[0]) {
        (void)snprintf(buf, cap, "%s:%u", end->pair->addr.host, end->pair->addr.port);
    } else {
        (void)snprintf(buf, cap, "%s:%u", end->pair->ends[0].host->name, end->pair->port);
    }
}

/* --- faults ----------------------------------------------------------------------------------- */

/* Runs `visit` on every end; it may end the pair that it is given. */
static void each_end(struct mu_sim *sim, void (*visit)(struct sim_end *end, void *arg), void *arg)
{
    MU_LIST_FOREACH_SAFE (node, tmp, &sim->pairs) {
        struct sim_pair *pair = MU_CONTAINER_OF(node, struct sim_pair, link);

        for (int i = 0; i < 2; i++) {
            if (pair->ends[i].state != SIM_END_NONE) {
                visit(&pair->ends[i], arg);
            }
        }
        sim_pair_release(pair);
    }
}

static void darken(struct sim_end *end, void *arg)
{
    if (end->state != SIM_END_NONE && end->host == arg) {
        sim_end_dark(end);
    }
}

void sim_net_drop(struct mu_sim_proc *proc, enum mu_sim_kill how)
{
    struct mu_list *node;

    while ((node = mu_list_pop(&proc->ends)) != NULL) {
        struct sim_end *end = MU_CONTAINER_OF(node, struct sim_end, link);

        sim_cancel(proc->sim, &end->closed);
        end->conn = NULL;
        sim_end_own(end, NULL);
        if (how == MU_SIM_KILL_POWER) {
            sim_end_dark(end);
        } else {
            sim_end_orphan(end);
        }
        sim_pair_release(end->pair);
    }
    if (how == MU_SIM_KILL_POWER) {
        each_end(proc->sim, darken, proc->host);
    }
    while ((node = mu_list_pop(&proc->listeners)) != NULL) {
        struct sim_listener *l = MU_CONTAINER_OF(node, struct sim_listener, link);

        drop_backlog(l);
        sim_cancel(proc->sim, &l->closed);
        mu_free(l);
    }
}

static void forget(struct sim_end *end, void *arg)
{
    struct mu_sim_host *host = arg;
    struct sim_end *peer = sim_end_peer(end);

    if (end->state == SIM_END_DARK && end->host == host) {
        end->state = SIM_END_GONE;
        if (peer->sent != peer->delivered || peer->fin) {
            sim_schedule(host->sim, &end->arrive,
                         host->sim->now_ns + mu_prng_below(&host->sim->prng, 4 * SIM_RTO_NS));
        }
    }
}

void sim_net_reboot(struct mu_sim_host *host)
{
    each_end(host->sim, forget, host);
}

size_t sim_net_count(const struct mu_sim *sim)
{
    size_t count = 0;

    MU_LIST_FOREACH (node, &sim->pairs) {
        count++;
    }
    return count;
}

void sim_net_reset_one(struct mu_sim *sim, uint64_t choice, bool both)
{
    size_t side = choice & 1;

    choice >>= 1;
    MU_LIST_FOREACH (node, &sim->pairs) {
        struct sim_pair *pair = MU_CONTAINER_OF(node, struct sim_pair, link);

        if (choice-- == 0) {
            sim_end_fail(&pair->ends[side], -ECONNRESET);
            if (both) {
                sim_end_fail(&pair->ends[1 - side], -ECONNRESET);
            }
            sim_pair_release(pair);
            return;
        }
    }
}

struct host_pair {
    struct mu_sim_host *a;
    struct mu_sim_host *b;
};

static void reset_between(struct sim_end *end, void *arg)
{
    const struct host_pair *hosts = arg;
    struct sim_end *peer = sim_end_peer(end);

    if (peer->state != SIM_END_NONE && ((end->host == hosts->a && peer->host == hosts->b) ||
                                        (end->host == hosts->b && peer->host == hosts->a))) {
        sim_end_fail(end, -ECONNRESET);
    }
}

void mu_sim_reset(struct mu_sim_host *a, struct mu_sim_host *b)
{
    each_end(a->sim, reset_between, &(struct host_pair){a, b});
}

static uint64_t sooner(uint64_t at_ns, uint64_t limit_ns)
{
    return at_ns < limit_ns ? at_ns : limit_ns;
}

/* What waited for the cut to end comes soon after. */
static void kick_end(struct sim_end *end, void *arg)
{
    const struct host_pair *hosts = arg;
    struct sim_end *peer = sim_end_peer(end);
    struct mu_sim *sim = hosts->a->sim;
    struct sim_action *late[] = {&end->arrive, &end->ack, &end->pair->open};
    uint64_t soon = sim->now_ns + mu_prng_below(&sim->prng, SIM_RTO_NS);

    sim_end_widen(end); /* also one that is being dialled */
    if (end->state == SIM_END_NONE || peer->state == SIM_END_NONE || end->host != hosts->b ||
        peer->host != hosts->a) {
        return;
    }
    if (end->doomed && sim_scheduled(&end->rst)) {
        sim_schedule(sim, &end->rst, soon);
    }
    for (size_t i = 0; i < peer->segment_count; i++) {
        struct sim_segment *s = &peer->segments[(peer->segment_head + i) % peer->segment_cap];

        s->at_ns = sooner(s->at_ns, soon);
    }
    peer->last_at_ns = sooner(peer->last_at_ns, soon);
    peer->fin_at_ns = sooner(peer->fin_at_ns, soon);
    for (size_t i = 0; i < sizeof(late) / sizeof(late[0]); i++) {
        if (sim_scheduled(late[i]) && late[i]->node.at.ns > soon) {
            sim_schedule(sim, late[i], soon);
        }
    }
}

/* The connection does not survive the cut: each end gives it up in its own time. */
static void doom_end(struct sim_end *end, void *arg)
{
    const struct host_pair *hosts = arg;
    struct sim_end *peer = sim_end_peer(end);
    struct mu_sim *sim = hosts->a->sim;
    bool across = (end->host == hosts->a && peer->host == hosts->b) ||
                  (end->host == hosts->b && peer->host == hosts->a);

    if (across && end->state == SIM_END_OPEN && !sim_scheduled(&end->rst)) {
        end->rst_status = -ETIMEDOUT;
        end->doomed = true;
        sim_schedule(sim, &end->rst,
                     sim_link_get(hosts->a, hosts->b)->cut_until_ns +
                         mu_prng_below(&sim->prng, SIM_RTO_NS));
    }
}

void sim_net_doom(struct mu_sim_host *from, struct mu_sim_host *to)
{
    each_end(from->sim, doom_end, &(struct host_pair){from, to});
}

void sim_net_kick(struct mu_sim *sim, struct mu_sim_host *from, struct mu_sim_host *to)
{
    each_end(sim, kick_end, &(struct host_pair){from, to});
}

void mu_sim_cut(struct mu_sim_host *from, struct mu_sim_host *to, uint64_t ns)
{
    struct sim_link *link = sim_link_get(from, to);
    uint64_t until = from->sim->now_ns + ns;

    mu_sim_note(from->sim, NULL, "nothing gets from %s to %s for %.3f ms", from->name, to->name,
                (double)ns / (double)MU_NS_PER_MS);
    link->cut_until_ns = until > link->cut_until_ns ? until : link->cut_until_ns;
}

void sim_net_free(struct mu_sim *sim)
{
    MU_LIST_FOREACH_SAFE (node, tmp, &sim->pairs) {
        sim_pair_free(MU_CONTAINER_OF(node, struct sim_pair, link));
    }
}
