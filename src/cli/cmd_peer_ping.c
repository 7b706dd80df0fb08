/* muster peer ping. */
#include "cli/cmd_peer.h"

#include <inttypes.h>
#include <stdio.h>

#include "codec/peer/multiaddr.h"

struct ping {
    struct peer_app app;
    struct mu_peer_connect connect;
    struct mu_peer_ping ping;
    struct mu_timer timer;
    struct mu_buf addr;
    uint64_t sent, answered;
};

static void print_ping(const struct ping *p, uint64_t rtt_ns)
{
    char id[MU_PEER_ID_TEXT_MAX];

    (void)mu_peer_id_format(&p->ping.peer, id);
    if (p->app.o->json) {
        printf("{\"peer\":\"%s\",\"seq\":%" PRIu64 ",\"rtt_us\":%.1f}\n", id, p->sent,
               (double)rtt_ns / 1000.0);
    } else {
        printf("%s: seq=%" PRIu64 " time=%.3f ms\n", id, p->sent, (double)rtt_ns / 1e6);
    }
    (void)fflush(stdout);
}

static void on_ping(struct mu_peer_ping *ping, int status, const char *text, uint64_t rtt_ns)
{
    struct ping *p = MU_CONTAINER_OF(ping, struct ping, ping);

    if (p->app.loop.stopping) {
        return;
    }
    if (status != 0) {
        peer_app_stop(&p->app,
                      cli_fail(status == MUSTER_ETIMEDOUT ? CLI_TIMEOUT : CLI_FAILED, "%s", text));
        return;
    }
    p->answered++;
    print_ping(p, rtt_ns);
    if (p->sent >= p->app.o->count) {
        peer_app_stop(&p->app, 0);
    } else {
        mu_env_timer_arm(p->app.loop.env, &p->timer,
                         mu_mono_add_ms(mu_env_now(p->app.loop.env).mono, 10));
    }
}

static void send_ping(struct ping *p)
{
    p->sent++;
    p->ping.timeout_ms = cli_ms(p->app.o->timeout);
    p->ping.done = on_ping;
    mu_peer_host_ping(p->app.host, &p->ping);
}

static void on_timer(struct mu_timer *timer)
{
    struct ping *p = MU_CONTAINER_OF(timer, struct ping, timer);

    if (!p->app.loop.stopping) {
        send_ping(p);
    }
}

static void on_connected(struct mu_peer_connect *connect, int status, const char *text)
{
    struct ping *p = MU_CONTAINER_OF(connect, struct ping, connect);

    if (p->app.loop.stopping) {
        return;
    }
    if (status != 0) {
        peer_app_stop(&p->app,
                      cli_fail(status == MUSTER_ETIMEDOUT ? CLI_TIMEOUT : CLI_CONNECT, "%s", text));
        return;
    }
    p->ping.peer = connect->peer;
    send_ping(p);
}

static int begin_ping(struct peer_app *app)
{
    struct ping *p = MU_CONTAINER_OF(app, struct ping, app);
    struct mu_errmsg msg;

    mu_timer_init(&p->timer, on_timer);
    if (mu_multiaddr_parse(&p->addr, p->app.o->address, &msg) != 0) {
        return cli_fail(CLI_USAGE, "%s", msg.text);
    }
    p->connect.addr = mu_buf_span(&p->addr);
    p->connect.done = on_connected;
    mu_peer_host_connect(p->app.host, &p->connect);
    return 0;
}

int peer_ping(const struct peer_options *o)
{
    struct ping p = {.app.o = o, .app.interrupted = CLI_FAILED};
    int code;

    mu_buf_init(&p.addr, MU_MULTIADDR_MAX);
    code = peer_app_run(&p.app, begin_ping);
    mu_buf_fini(&p.addr);
    return code;
}
