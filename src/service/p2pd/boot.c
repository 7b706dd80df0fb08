/* Those to bootstrap from: dialled in any order, a few at a time; the first that is met is enough
 * to begin with. */
#include <muster/error.h>

#include <string.h>

#include "core/alloc.h"
#include "service/base/log.h"
#include "service/p2pd/p2pd_internal.h"

#define AT_ONCE 4

static void told(struct mu_p2pd *d, int status, const char *text)
{
    if (d->booting) {
        d->booting = false;
        if (d->config.bootstrapped != NULL) {
            d->config.bootstrapped(d->config.context, status, text);
        }
    }
}

static void dial_more(struct mu_p2pd *d, const char *text);

static void on_done(struct mu_peer_connect *connect, int status, const char *text)
{
    struct mu_p2pd_boot *b = MU_CONTAINER_OF(connect, struct mu_p2pd_boot, connect);
    struct mu_p2pd *d = b->d;

    b->busy = false;
    b->met = status == 0;
    if (b->met && !b->kept) {
        b->kept = mu_peer_host_keep(d->host, &connect->peer, true) == 0;
    }
    if (b->met) {
        if (d->kad != NULL) {
            mu_kad_refresh(d->kad);
        }
        told(d, 0, "");
    } else {
        char addr[MU_MULTIADDR_TEXT_MAX];

        mu_log(MUSTER_LOG_INFO, "P2PD-BOOTSTRAP-FAILED", "addr=%s error=\"%s\"",
               mu_multiaddr_format(mu_span(b->addr, b->addr_len), addr, sizeof(addr)), text);
        dial_more(d, text);
    }
}

static struct mu_p2pd_boot *next_untried(struct mu_p2pd *d)
{
    struct mu_p2pd_boot *best = NULL;

    MU_LIST_FOREACH (it, &d->boots) {
        struct mu_p2pd_boot *b = MU_CONTAINER_OF(it, struct mu_p2pd_boot, link);

        if (!b->tried && (best == NULL || b->order < best->order)) {
            best = b;
        }
    }
    return best;
}

static void dial_more(struct mu_p2pd *d, const char *text)
{
    size_t busy = 0;
    struct mu_p2pd_boot *b;

    MU_LIST_FOREACH (it, &d->boots) {
        b = MU_CONTAINER_OF(it, struct mu_p2pd_boot, link);
        busy += b->busy || b->met ? 1 : 0;
    }
    while (busy < AT_ONCE && (b = next_untried(d)) != NULL) {
        b->tried = true;
        b->busy = true;
        b->connect.peer.len = 0;
        b->connect.addr = mu_span(b->addr, b->addr_len);
        b->connect.done = on_done;
        mu_peer_host_connect(d->host, &b->connect);
        busy++;
    }
    if (busy == 0) {
        told(d, MUSTER_ECONN, text);
    }
}

static void start_round(struct mu_p2pd *d)
{
    MU_LIST_FOREACH (it, &d->boots) {
        struct mu_p2pd_boot *b = MU_CONTAINER_OF(it, struct mu_p2pd_boot, link);

        b->tried = b->busy;
        b->met = false;
        b->order = mu_prng_u64(&d->prng);
    }
    dial_more(d, "there is nobody to bootstrap from");
}

/* While nobody was met it is the end of patience; later it is time to look again. */
void mu_p2pd_boot_timer(struct mu_timer *timer)
{
    struct mu_p2pd *d = MU_CONTAINER_OF(timer, struct mu_p2pd, boot_timer);

    mu_env_timer_arm(d->env, &d->boot_timer,
                     mu_mono_add_ms(mu_env_now(d->env).mono, d->config.rebootstrap_ms));
    if (d->booting) {
        told(d, MUSTER_ETIMEDOUT, "nobody has answered in time");
    } else {
        start_round(d);
    }
}

int mu_p2pd_bootstrap(struct mu_p2pd *d, const char *multiaddr, struct mu_errmsg *reterr_msg)
{
    struct mu_p2pd_boot *b = NULL;
    struct mu_buf addr;
    int err;

    mu_buf_init(&addr, MU_MULTIADDR_MAX);
    err = mu_multiaddr_parse(&addr, multiaddr, reterr_msg);
    if (err == 0) {
        b = mu_calloc(1, sizeof(*b) + addr.len);
        err = b == NULL ? mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory") : 0;
    }
    if (err == 0) {
        b->d = d;
        b->addr_len = addr.len;
        memcpy(b->addr, mu_buf_span(&addr).data, addr.len);
        mu_list_init(&b->link);
        mu_list_push(&d->boots, &b->link);
    }
    mu_buf_fini(&addr);
    return err;
}

void mu_p2pd_bootstrap_begin(struct mu_p2pd *d)
{
    d->booting = true;
    mu_env_timer_arm(d->env, &d->boot_timer,
                     mu_mono_add_ms(mu_env_now(d->env).mono, d->config.bootstrap_ms));
    start_round(d);
}

void mu_p2pd_boot_free(struct mu_p2pd *d)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &d->boots) {
        struct mu_p2pd_boot *b = MU_CONTAINER_OF(it, struct mu_p2pd_boot, link);

        mu_peer_host_connect_cancel(&b->connect);
        mu_list_remove(&b->link);
        mu_free(b);
    }
}
