/*
 * The guest of the scenario `peer`. It dials the hosts again and again, each time with another
 * trick: bytes that are not Noise, a handshake that breaks off, is changed or was recorded from
 * another connection, streams without end, more than a window, a frame of 2^32 bytes, and calls as
 * a stranger. It uses our own peer_conn where it must behave well for a while.
 */
#include "scenarios/peer/peer_world.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "proto/peer/conn.h"

enum trick {
    TRICK_GARBAGE,
    TRICK_CLEAR,  /* refuses to encrypt */
    TRICK_SILENT, /* connects and stays silent */
    TRICK_CUT,    /* breaks off somewhere in the handshake */
    TRICK_FLIP,   /* one bit of what it sends is wrong */
    TRICK_REPLAY, /* replays what was sent on the connection before */
    TRICK_CALL,   /* asks for service as a stranger */
    TRICK_FLOOD,  /* opens streams without end */
    TRICK_WINDOW, /* sends more than the window allows */
    TRICK_HUGE,   /* a frame of 2^32 - 1 bytes */
    TRICK_JUNK,   /* encrypted bytes that are not frames */
    TRICKS,
};

#define RECORD_MAX 4096

struct guest {
    struct peer_world *world;
    struct mu_env *env;
    struct mu_conn conn;
    struct mu_peer_conn pc;
    struct mu_timer timer;
    struct mu_prng prng;
    enum trick trick;
    bool dialled; /* conn is in use */
    bool open;
    bool has_pc;
    bool done; /* the trick was played */
    uint64_t sent;
    uint64_t fatal_at; /* where the trick comes in */
    uint8_t record[RECORD_MAX];
    size_t recorded;
    size_t replayed;
};

static void hang_up(struct guest *g)
{
    if (g->dialled) {
        mu_env_close(g->env, &g->conn, mu_prng_chance(&g->prng, 500000));
    }
}

static void send_raw(struct guest *g, struct mu_span bytes)
{
    size_t taken;

    mu_env_send(g->env, &g->conn, bytes, &taken);
    g->sent += taken;
}

/* Sends the machine's output, with the trick applied on its way. */
static void pump(struct guest *g)
{
    struct mu_span out;

    while (g->has_pc && g->open && (out = mu_peer_conn_output(&g->pc)).len != 0) {
        uint8_t copy[2048];
        size_t n = out.len < sizeof(copy) ? out.len : sizeof(copy);
        size_t taken;

        memcpy(copy, out.data, n);
        if (g->trick == TRICK_CUT && g->sent + n > g->fatal_at) {
            hang_up(g);
            return;
        }
        if (g->trick == TRICK_FLIP && g->fatal_at >= g->sent && g->fatal_at < g->sent + n) {
            copy[g->fatal_at - g->sent] ^= (uint8_t)(1u << mu_prng_below(&g->prng, 8));
        }
        mu_env_send(g->env, &g->conn, mu_span(copy, n), &taken);
        for (size_t i = 0; i < taken && g->recorded < RECORD_MAX; i++) {
            g->record[g->recorded++] = copy[i];
        }
        g->sent += taken;
        mu_peer_conn_sent(&g->pc, taken);
        if (taken < n) {
            return;
        }
    }
}

/* Sends bytes encrypted, after what the machine has sealed so far. */
static void say(struct guest *g, const void *bytes, size_t len)
{
    size_t taken;

    (void)mu_noise_send(&g->pc.noise, mu_span(bytes, len), &taken);
}

static void put_frame(uint8_t *to, uint8_t type, uint8_t flags, uint32_t id, uint32_t length)
{
    const uint8_t head[12] = {0,
                              type,
                              0,
                              flags,
                              (uint8_t)(id >> 24),
                              (uint8_t)(id >> 16),
                              (uint8_t)(id >> 8),
                              (uint8_t)id,
                              (uint8_t)(length >> 24),
                              (uint8_t)(length >> 16),
                              (uint8_t)(length >> 8),
                              (uint8_t)length};

    memcpy(to, head, sizeof(head));
}

static void play(struct guest *g)
{
    static const struct mu_span name[] = {{(const uint8_t *)PEER_NAME, sizeof(PEER_NAME) - 1}};
    uint8_t frames[4096] = {0};
    uint32_t id;
    size_t taken;

    if (g->done || g->pc.stage != MU_PEER_OPEN) {
        return;
    }
    g->done = true;
    switch (g->trick) {
    case TRICK_CALL:
    case TRICK_FLIP:
    case TRICK_CUT:
        if (mu_peer_conn_open(&g->pc, mu_env_now(g->env).mono, name, 1, &id) == 0) {
            (void)mu_peer_conn_write(&g->pc, id, MU_SPAN_LIT("let me in"), &taken);
        }
        break;
    case TRICK_FLOOD:
        for (uint32_t i = 0; i < 300; i++) {
            put_frame(frames + (i % 300) * 12, 1, 1, 2 * i + 101, 0);
        }
        say(g, frames, (size_t)300 * 12);
        break;
    case TRICK_WINDOW:
        put_frame(frames, 1, 1, 101, 0);
        put_frame(frames + 12, 0, 0, 101, MU_YAMUX_WINDOW_FIRST + 1);
        say(g, frames, sizeof(frames));
        break;
    case TRICK_HUGE:
        put_frame(frames, 0, 1, 101, UINT32_MAX);
        say(g, frames, sizeof(frames));
        break;
    case TRICK_JUNK:
        for (size_t i = 0; i < 256; i++) {
            frames[i] = (uint8_t)mu_prng_u64(&g->prng);
        }
        say(g, frames, 256);
        break;
    case TRICK_GARBAGE:
    case TRICK_CLEAR:
    case TRICK_SILENT:
    case TRICK_REPLAY:
    case TRICKS:
        break;
    }
}

static void begin_raw(struct guest *g)
{
    uint8_t bytes[512];

    if (g->trick == TRICK_GARBAGE) {
        for (size_t i = 0; i < sizeof(bytes); i++) {
            bytes[i] = (uint8_t)mu_prng_u64(&g->prng);
        }
        send_raw(g, mu_span(bytes, 1 + mu_prng_below(&g->prng, sizeof(bytes))));
    } else if (g->trick == TRICK_CLEAR) {
        send_raw(g, MU_SPAN_LIT("\x13/multistream/1.0.0\n\x11/plaintext/2.0.0\n"));
    } else if (g->trick == TRICK_REPLAY) {
        send_raw(g, mu_span(g->record, g->replayed));
    }
}

static void on_open(struct mu_conn *conn)
{
    struct guest *g = MU_CONTAINER_OF(conn, struct guest, conn);

    g->open = true;
    begin_raw(g);
    pump(g);
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    struct guest *g = MU_CONTAINER_OF(conn, struct guest, conn);
    struct mu_peer_event e;
    size_t used = 0;
    size_t n = 1;

    while (g->has_pc && used < in.len && n != 0) {
        if (mu_peer_conn_recv(&g->pc, mu_env_now(g->env).mono, mu_span_skip(in, used), &n) != 0) {
            break;
        }
        used += n;
        while (mu_peer_conn_next_event(&g->pc, &e)) {
            continue;
        }
        play(g);
    }
    pump(g);
    return in.len;
}

static void on_eof(struct mu_conn *conn)
{
    hang_up(MU_CONTAINER_OF(conn, struct guest, conn));
}

static void on_writable(struct mu_conn *conn)
{
    pump(MU_CONTAINER_OF(conn, struct guest, conn));
}

static void on_closed(struct mu_conn *conn, int status)
{
    struct guest *g = MU_CONTAINER_OF(conn, struct guest, conn);

    (void)status;
    g->dialled = false;
    if (g->has_pc) {
        mu_peer_conn_fini(&g->pc);
        g->has_pc = false;
    }
}

static const struct mu_conn_events guest_events = {
    .open = on_open,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .closed = on_closed,
};

static void dial(struct guest *g)
{
    struct mu_peer_conn_config config = mu_peer_conn_config_defaults();
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PEER_PORT};

    (void)snprintf(addr.host, sizeof(addr.host), "h%u",
                   (unsigned)mu_prng_below(&g->prng, PEER_HOSTS));
    g->trick = (enum trick)mu_prng_below(&g->prng, TRICKS);
    if (g->world->plant == PEER_PLANT_OPENDOOR) {
        g->trick = TRICK_CALL;
    }
    g->open = g->done = false;
    g->sent = 0;
    g->replayed = g->recorded;
    g->fatal_at = mu_prng_below(&g->prng, 400);
    if (g->trick != TRICK_GARBAGE && g->trick != TRICK_CLEAR && g->trick != TRICK_SILENT &&
        g->trick != TRICK_REPLAY) {
        config.role = MU_PEER_DIALLER;
        config.identity = &g->world->stranger;
        config.seed = 1;
        mu_env_entropy(g->env, config.secret_static, sizeof(config.secret_static));
        mu_env_entropy(g->env, config.secret_ephemeral, sizeof(config.secret_ephemeral));
        g->has_pc = mu_peer_conn_init(&g->pc, &config, mu_env_now(g->env).mono) == 0;
        g->recorded = 0;
    }
    g->conn.on = &guest_events;
    g->dialled = mu_env_dial(g->env, &g->conn, &addr) == 0;
    if (!g->dialled && g->has_pc) {
        mu_peer_conn_fini(&g->pc);
        g->has_pc = false;
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct guest *g = MU_CONTAINER_OF(timer, struct guest, timer);

    if (g->world->healed) {
        hang_up(g);
        if (!g->dialled) {
            g->world->guest_app = NULL;
            mu_sim_exit(g->env);
            mu_free(g);
            return;
        }
    } else if (!g->dialled) {
        dial(g);
    } else if (mu_prng_chance(&g->prng, 300000)) {
        hang_up(g);
    }
    mu_env_timer_arm(g->env, &g->timer,
                     mu_mono_add_ms(mu_env_now(g->env).mono, mu_prng_below(&g->prng, 1000)));
}

static int start_guest(struct mu_env *env, void *arg)
{
    struct guest *g = mu_sim_calloc(sizeof(*g));

    g->world = arg;
    g->world->guest_app = g;
    g->env = env;
    mu_prng_seed(&g->prng, mu_prng_u64(mu_sim_prng(g->world->sim)));
    mu_timer_init(&g->timer, on_timer);
    mu_env_timer_arm(env, &g->timer, mu_env_now(env).mono);
    return 0;
}

void peer_hostile_start(struct peer_world *w)
{
    w->guest = mu_sim_proc_new(
        mu_sim_host_new(w->sim, "guest"),
        &(struct mu_sim_program){
            .name = "guest", .start = start_guest, .arg = w, .flags = MU_SIM_KEEP_ALIVE});
}

void peer_hostile_release(struct peer_world *w)
{
    if (w->guest_app != NULL && w->guest_app->has_pc) {
        mu_aead_fini(&w->guest_app->pc.noise.sealing);
        mu_aead_fini(&w->guest_app->pc.noise.opening);
    }
    w->guest_app = NULL;
}
