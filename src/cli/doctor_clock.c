/* Compares the clocks of muster servers with ours: each server is asked a few times, and the
 * fastest answer counts. */
#include "cli/doctor_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "service/wire/rpc_client.h"
#include "service/server/server.h"

#define QUESTIONS 5

struct ask {
    struct doctor_port *port;
    struct mu_rpc_client client;
    struct asks *all;
    mu_wall_t sent;
    mu_mono_t sent_at;
    unsigned asked;
    bool closing;
    bool used;
};

struct asks {
    struct cli_loop *loop;
    struct mu_timer timer;
    struct ask *items;
    size_t count;
    size_t open;
};

static void end(struct ask *a, const char *why)
{
    if (!a->port->has_clock && a->port->no_clock[0] == '\0') {
        (void)snprintf(a->port->no_clock, sizeof(a->port->no_clock), "%s", why);
    }
    if (!a->closing) {
        a->closing = true;
        mu_rpc_client_close(&a->client);
    }
}

static void question(struct ask *a)
{
    struct mu_now now = mu_env_now(a->all->loop->env);
    uint64_t id;

    a->sent = now.wall;
    a->sent_at = now.mono;
    if (a->asked++ == QUESTIONS ||
        mu_rpc_client_call(&a->client, MU_SPAN_LIT(MU_STORE_METHOD_CLOCK), (struct mu_span){0}, 0,
                           &id) != 0) {
        end(a, "it refuses the question");
    }
}

static void on_ready(void *context)
{
    question(context);
}

static void on_mismatch(void *context, bool silent)
{
    end(context, silent ? "it did not answer" : "it hung up");
}

static void on_failed(void *context, int status, const char *text)
{
    (void)status;
    end(context, text);
}

static void on_reply(void *context, uint64_t id, int status, struct mu_span payload)
{
    struct ask *a = context;
    struct doctor_port *p = a->port;
    struct mu_now now = mu_env_now(a->all->loop->env);
    uint64_t took = mu_mono_since(a->sent_at, now.mono);

    (void)id;
    if (a->closing) {
        return;
    }
    if (status != 0 || payload.len != 8) {
        end(a, status == MUSTER_ENOTSUP || status == MUSTER_ENOENT
                   ? "its version of muster is too old to tell"
                   : "it does not tell its time");
        return;
    }
    if (!p->has_clock || took / 1000 < p->clock_round_us) {
        int64_t theirs = (int64_t)mu_get_u64(payload.data);

        p->has_clock = true;
        p->clock_us = (theirs - (int64_t)(a->sent.ns + took / 2)) / 1000;
        p->clock_round_us = took / 1000 < UINT32_MAX ? (uint32_t)(took / 1000) : UINT32_MAX;
    }
    question(a);
}

static void on_closed(void *context)
{
    struct ask *a = context;

    if (--a->all->open == 0) {
        mu_env_timer_arm(a->all->loop->env, &a->all->timer, MU_MONO_NEVER);
        cli_loop_stop(a->all->loop);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct asks *all = MU_CONTAINER_OF(timer, struct asks, timer);

    for (size_t i = 0; i < all->count; i++) {
        if (all->items[i].used) {
            end(&all->items[i], "it did not answer in time");
        }
    }
}

static void start(struct asks *all, const struct doctor_exam *e, struct doctor_port *p,
                  uint32_t timeout_ms)
{
    struct ask *a = &all->items[all->count++];
    struct mu_rpc_client_config config = {
        .name = "muster doctor",
        .connect_ms = timeout_ms,
        .reconnect_ms = timeout_ms,
        .probe_ms = timeout_ms,
        .greetings = 1,
    };
    const struct mu_rpc_client_events events = {
        .ready = on_ready,
        .mismatch = on_mismatch,
        .failed = on_failed,
        .gave_up = on_failed,
        .reply = on_reply,
        .closed = on_closed,
        .context = a,
    };

    a->port = p;
    a->all = all;
    config.addr = (struct mu_addr){.kind = MU_ADDR_TCP, .port = p->number};
    (void)snprintf(config.addr.host, sizeof(config.addr.host), "%s", e->numbers[p->reached].ip);
    a->used = mu_rpc_client_init(&a->client, all->loop->env, &config, &events) == 0;
    all->open += a->used ? 1 : 0;
}

int doctor_clocks(struct cli_loop *loop, struct doctor_exam *exams, size_t count,
                  uint32_t timeout_ms)
{
    struct asks all = {.loop = loop};

    all.items = calloc(count * DOCTOR_PORTS_MAX + 1, sizeof(*all.items));
    if (all.items == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    mu_timer_init(&all.timer, on_timer);
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < exams[i].port_count; k++) {
            enum doctor_speaks speaks = exams[i].ports[k].speaks;

            if (speaks == DOCTOR_MUSTER || speaks == DOCTOR_REFUSED) {
                start(&all, &exams[i], &exams[i].ports[k], timeout_ms);
            }
        }
    }
    if (all.open != 0) {
        mu_env_timer_arm(loop->env, &all.timer,
                         mu_mono_add_ms(mu_env_now(loop->env).mono, timeout_ms));
        cli_loop_run(loop);
    }
    free(all.items);
    return 0;
}
