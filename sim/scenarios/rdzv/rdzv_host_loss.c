/*
 * The native rendezvous whose host may be lost: no server but those of the nodes, any of which may
 * host, and faults that kill, stop and cut off whoever does. scenarios/rdzv/rdzv_world.h describes
 * the story.
 *
 * The first three nodes are the endpoints that are named. They come back after a crash knowing
 * nothing, so when two of them are dead at once, the run may begin anew with another incarnation;
 * other than that there is one for all terms, and the checker sees that no number of a round is
 * given twice in it, whoever hosts.
 */
#include <inttypes.h>

#include "core/assert.h"
#include "scenarios/rdzv/rdzv_world.h"
#include "scenarios/scenarios.h"
#include "proto/rdzv/succession_internal.h"
#include "service/rdzv/succession.h"

static void configure(struct rdzv_node *n, char *text, size_t cap)
{
    size_t len;

    rdzv_native_configure(n, text, cap);
    len = strlen(text);
    len += (size_t)snprintf(text + len, cap - len, ",succession=majority");
    MU_ASSERT(len < cap);
}

static const struct mu_rdzv_muster *handler_of(const struct rdzv_node *n)
{
    return n->life == NULL || n->life->handler == NULL
               ? NULL
               : MU_CONTAINER_OF(n->life->handler, const struct mu_rdzv_muster, base);
}

/* A spare waits for as long as the round is full. */
static bool may_wait(const struct rdzv_node *n)
{
    const struct mu_rdzv_muster *h = handler_of(n);

    /* One whose connection is broken, from when there were faults, may give up. */
    return h != NULL && h->member.call == MU_MEMBER_CALL_SPARE &&
           h->client == MU_RDZV_CLIENT_LIVE && mu_rpc_client_linked(&h->rpc);
}

/* There is no server to start. */
static void begin(struct rdzv_world *w)
{
    (void)w;
}

/* Who hosts, and as of which term. Another host may have begun the run anew. */
static uint64_t sign(const struct rdzv_world *w)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < w->node_count; i++) {
        const struct mu_rdzv_muster *h = handler_of(&w->nodes[i]);

        if (h != NULL && h->heir->machine.state == MU_SUCCESSION_HOSTING) {
            sum = sum * 31 + h->heir->machine.host_term * RDZV_NODES_MAX + i;
        }
    }
    return sum;
}

/* No term has two hosts, and who hosts knows it. */
static void check(struct rdzv_world *w)
{
    uint64_t hosts = sign(w);

    w->server_lives += hosts != w->seen_news ? 1 : 0;
    w->seen_news = hosts;
    for (uint32_t i = 0; i < w->node_count; i++) {
        const struct mu_rdzv_muster *a = handler_of(&w->nodes[i]);

        rdzv_node_note_spare(&w->nodes[i]);
        if (a != NULL && a->member.call == MU_MEMBER_CALL_SPARE) {
            w->nodes[i].since_ns = mu_sim_now_ns(w->sim); /* also while its connection is broken */
        }
        if (a == NULL || a->heir->machine.state != MU_SUCCESSION_HOSTING || a->freeing) {
            continue;
        }
        for (uint32_t j = 0; j < i; j++) {
            const struct mu_rdzv_muster *b = handler_of(&w->nodes[j]);

            if (b != NULL && b->heir->machine.state == MU_SUCCESSION_HOSTING && !b->freeing &&
                a->heir->machine.host_term == b->heir->machine.host_term && !w->anew) {
                mu_sim_fail(w->sim, "%s and %s both host term %" PRIu64, w->nodes[i].name,
                            w->nodes[j].name, a->heir->machine.host_term);
            }
        }
    }
}

/* Where late nodes are not let in, one that is out of touch when the others meet stays out, and may
 * have promised what makes their host step down. */
static void tune(struct rdzv_world *w)
{
    w->upscale_delay_ms = w->upscale_delay_ms == UINT64_MAX ? 500 : w->upscale_delay_ms;
}

/* How many living nodes vote in it. */
static uint32_t count_votes(const struct rdzv_world *w, const struct mu_electorate *e)
{
    uint32_t votes = 0;

    for (uint32_t i = 0; i < w->node_count; i++) {
        const struct mu_rdzv_muster *h = handler_of(&w->nodes[i]);

        votes += h != NULL && h->heir->started &&
                 mu_succession_vote(&h->heir->machine.view, e) != MU_SUCCESSION_NO_RANK;
    }
    return votes;
}

static void describe(const struct rdzv_world *w)
{
    static const char *const states[] = {"out",      "turning",  "following", "walking",
                                         "standing", "claiming", "hosting"};

    for (uint32_t i = 0; i < w->node_count; i++) {
        const struct mu_rdzv_muster *h = handler_of(&w->nodes[i]);
        const struct mu_succession *m = h == NULL ? NULL : &h->heir->machine;
        char text[256] = "";

        if (m != NULL) {
            mu_succession_explain(m, text, sizeof(text));
            mu_sim_note(w->sim, w->nodes[i].proc,
                        "%s: %s %" PRIu64 " at %s, promised %" PRIu64 ", view %" PRIu64 ".%" PRIu64
                        ".%d of %" PRIu32 ", client %d to %s, user %d call %d; %s",
                        w->nodes[i].name, states[m->state], m->host_term, m->host, m->promised,
                        m->view.term, m->view.round, (int)m->view.step, m->view.count,
                        (int)h->client, h->address, (int)h->member.user, (int)h->member.call, text);
        }
    }
}

/* Those who could say whether the last round went on elsewhere are gone: nobody may go on. */
static bool excused(const struct rdzv_world *w)
{
    const struct mu_succession_view *latest = NULL;

    for (uint32_t i = 0; i < w->node_count; i++) {
        const struct mu_rdzv_muster *h = handler_of(&w->nodes[i]);

        if (h != NULL && h->heir->started &&
            (latest == NULL || mu_succession_view_later(&h->heir->machine.view, latest))) {
            latest = &h->heir->machine.view;
        }
    }
    for (uint32_t i = 0; latest != NULL && i < latest->count; i++) {
        if (count_votes(w, &latest->may[i]) * 2 <= latest->may[i].world) {
            return true;
        }
    }
    describe(w);
    return false;
}

#define SUCCESSION                                                                                 \
    .backend = "muster", .converge_ns = 180 * MU_NS_PER_S, .join_factor = 2,                       \
    .answer_ns = 5 * MU_NS_PER_S, .leave_ns = 2 * MU_NS_PER_S, .close_ns = 31 * MU_NS_PER_S,       \
    .lost_ns = 3500 * MU_NS_PER_MS, .configure = configure, .may_wait = may_wait, .check = check,  \
    .excused = excused, .tune = tune, .endpoint = "host0:29400,host1:29400,host2:29400",           \
    .begin = begin, .endpoints = 3

RDZV_SCENARIO(rdzv_host_loss, "rdzv-host-loss",
              "native rendezvous without a server of its own: whoever hosts may be lost",
              mu_sim_faults_draw_all, false, SUCCESSION)
