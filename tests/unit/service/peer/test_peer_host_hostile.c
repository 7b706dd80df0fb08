/*
 * A hostile peer at a host: each trick is refused with an error of its own, what it can make the
 * host hold is bounded, and an honest call that is under way all the time goes well.
 */
#include "peer_rig.h"

#include "proto/peer/conn.h"

enum trick {
    WRONG_SIGNATURE,
    RECORD, /* a good handshake, to be replayed */
    REPLAY,
    DOWNGRADE,
    FLOOD,
    WINDOW,
    HUGE_FRAME,
    SILENT,
};

/* Dials with our own machine, and changes what it says. */
struct evil {
    struct rig *rig;
    struct mu_env *env;
    struct mu_conn conn;
    struct mu_peer_conn pc;
    struct mu_identity identity;
    enum trick trick;
    bool has_pc;
    bool played;
    bool closed;
    bool said_na;
    uint8_t record[4096];
    size_t recorded;
};

static void put_frame(uint8_t *to, uint8_t type, uint8_t flags, uint32_t id, uint32_t length)
{
    const uint8_t head[12] = {
        0,
        type,
        0,
        flags,
        0,
        0,
        (uint8_t)(id >> 8),
        (uint8_t)id,
        (uint8_t)(length >> 24),
        (uint8_t)(length >> 16),
        (uint8_t)(length >> 8),
        (uint8_t)length,
    };

    memcpy(to, head, sizeof(head));
}

static void say(struct evil *e, const void *bytes, size_t len)
{
    size_t taken;

    assert_int_equal(mu_noise_send(&e->pc.noise, mu_span(bytes, len), &taken), 0);
}

static void pump(struct evil *e)
{
    struct mu_span out;

    while (e->has_pc && (out = mu_peer_conn_output(&e->pc)).len != 0) {
        size_t taken;

        mu_env_send(e->env, &e->conn, out, &taken);
        for (size_t i = 0; i < taken && e->trick == RECORD && e->recorded < 4096; i++) {
            e->record[e->recorded++] = out.data[i];
        }
        mu_peer_conn_sent(&e->pc, taken);
        if (taken == 0) {
            return;
        }
    }
}

static void play(struct evil *e)
{
    static uint8_t frames[60000];
    uint32_t next = 101;

    if (e->played || e->pc.stage != MU_PEER_OPEN) {
        return;
    }
    e->played = true;
    memset(frames, 0, sizeof(frames));
    if (e->trick == FLOOD) {
        for (size_t i = 0; i < 3000; i++, next += 2) {
            put_frame(frames + i * 12, 1, 1, next, 0);
        }
        say(e, frames, (size_t)3000 * 12);
    } else if (e->trick == WINDOW) {
        put_frame(frames, 1, 1, next, 0);
        put_frame(frames + 12, 0, 0, next, MU_YAMUX_WINDOW_FIRST + 1);
        say(e, frames, 1000);
    } else if (e->trick == HUGE_FRAME) {
        put_frame(frames, 0, 1, next, UINT32_MAX);
        say(e, frames, 1000);
    }
}

static void on_open(struct mu_conn *conn)
{
    struct evil *e = MU_CONTAINER_OF(conn, struct evil, conn);
    size_t taken;

    if (e->trick == REPLAY) {
        mu_env_send(e->env, conn, mu_span(e->record, e->recorded), &taken);
    } else if (e->trick == DOWNGRADE) {
        mu_env_send(e->env, conn, MU_SPAN_LIT("\x13/multistream/1.0.0\n\x11/plaintext/2.0.0\n"),
                    &taken);
    }
    pump(e);
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    struct evil *e = MU_CONTAINER_OF(conn, struct evil, conn);
    struct mu_peer_event event;
    size_t used = 0;
    size_t n = 1;

    e->said_na = e->said_na || (in.len >= 4 && memcmp(in.data + in.len - 4, "\x03na\n", 4) == 0);
    while (e->has_pc && used < in.len && n != 0 &&
           mu_peer_conn_recv(&e->pc, mu_env_now(e->env).mono, mu_span_skip(in, used), &n) == 0) {
        used += n;
        while (mu_peer_conn_next_event(&e->pc, &event)) {
            continue;
        }
        play(e);
    }
    pump(e);
    return in.len;
}

static void on_eof(struct mu_conn *conn)
{
    mu_env_close(conn->env, conn, false);
}

static void on_writable(struct mu_conn *conn)
{
    pump(MU_CONTAINER_OF(conn, struct evil, conn));
}

static void on_closed(struct mu_conn *conn, int status)
{
    struct evil *e = MU_CONTAINER_OF(conn, struct evil, conn);

    (void)status;
    e->closed = true;
    if (e->has_pc) {
        mu_peer_conn_fini(&e->pc);
        e->has_pc = false;
    }
}

static const struct mu_conn_events events = {
    .open = on_open,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .closed = on_closed,
};

static void dial(void *arg)
{
    struct evil *e = arg;
    struct mu_peer_conn_config config = mu_peer_conn_config_defaults();
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = RIG_PORT, .host = "b"};

    e->played = e->closed = e->said_na = false;
    if (e->trick != REPLAY && e->trick != DOWNGRADE && e->trick != SILENT) {
        config.role = MU_PEER_DIALLER;
        config.identity = &e->identity;
        mu_env_entropy(e->env, config.secret_static, sizeof(config.secret_static));
        mu_env_entropy(e->env, config.secret_ephemeral, sizeof(config.secret_ephemeral));
        assert_int_equal(mu_peer_conn_init(&e->pc, &config, mu_env_now(e->env).mono), 0);
        e->has_pc = true;
    }
    e->conn.on = &events;
    assert_int_equal(mu_env_dial(e->env, &e->conn, &addr), 0);
}

static void hang_up(void *arg)
{
    struct evil *e = arg;

    if (!e->closed) {
        mu_env_close(e->env, &e->conn, true);
    }
}

static int start_evil(struct mu_env *env, void *arg)
{
    ((struct evil *)arg)->env = env;
    return 0;
}

/* One trick, with an honest call beside it. Returns what the host noted. */
static struct mu_peer_host_stats play_trick(struct rig *r, struct mu_sim_proc *proc, struct evil *e,
                                            enum trick trick, uint64_t ms)
{
    struct rig_call honest;
    struct mu_peer_host_stats before;
    struct mu_peer_host_stats after;

    e->trick = trick;
    rig_call(&r->node[0], &r->node[1], &honest, 3000000);
    before = rig_stats(&r->node[1]);
    mu_sim_call(proc, dial, e);
    rig_run(r, ms);
    after = rig_stats(&r->node[1]);
    mu_sim_call(proc, hang_up, e);
    rig_run(r, 1000);
    rig_assert_echoed(&honest);
    assert_int_equal(rig_stats(&r->node[1]).conns, 1);
    after.failed -= before.failed;
    after.violations -= before.violations;
    return after;
}

static void test_peer_host_refuses_each_trick_with_its_own_error(void **state)
{
    static struct rig r;
    static struct evil e;
    struct mu_sim_proc *proc;
    struct mu_peer_host_stats stats;
    struct mu_buf kept;
    uint8_t seed[32];

    (void)state;
    rig_open(&r, 2, NULL);
    memset(&e, 0, sizeof(e));
    memset(seed, 77, sizeof(seed));
    assert_int_equal(mu_identity_from_seed(&e.identity, seed), 0);
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    proc =
        mu_sim_proc_new(mu_sim_host_new(r.sim, "evil"),
                        &(struct mu_sim_program){.name = "evil", .start = start_evil, .arg = &e});
    rig_run(&r, 10);

    /* It says that it is a, and cannot sign as a. */
    kept = e.identity.public_key;
    e.identity.public_key = r.node[0].identity.public_key;
    stats = play_trick(&r, proc, &e, WRONG_SIGNATURE, 2000);
    e.identity.public_key = kept;
    assert_int_equal(stats.last_failure, MUSTER_ESIGNATURE);
    assert_int_equal(stats.failed, 1);

    (void)play_trick(&r, proc, &e, RECORD, 500);
    assert_true(e.recorded > 100);
    stats = play_trick(&r, proc, &e, REPLAY, 2000);
    assert_int_equal(stats.last_failure, MUSTER_ECORRUPT);
    assert_int_equal(stats.failed, 1);

    stats = play_trick(&r, proc, &e, DOWNGRADE, 20000);
    assert_true(e.said_na);
    assert_int_equal(stats.last_failure, MUSTER_ETIMEDOUT);

    stats = play_trick(&r, proc, &e, FLOOD, 2000);
    assert_true(stats.granted < (64u << 20));
    assert_true(mu_sim_proc_blocks(r.node[1].proc) < 4000);

    stats = play_trick(&r, proc, &e, WINDOW, 2000);
    assert_int_equal(stats.last_failure, MUSTER_EWINDOW);
    assert_int_equal(stats.violations, 1);

    stats = play_trick(&r, proc, &e, HUGE_FRAME, 2000);
    assert_int_equal(stats.last_failure, MUSTER_ELIMIT);
    assert_int_equal(stats.violations, 1);

    stats = play_trick(&r, proc, &e, SILENT, 20000);
    assert_int_equal(stats.last_failure, MUSTER_ETIMEDOUT);
    mu_identity_fini(&e.identity);
    rig_close(&r);
}

static void test_peer_host_takes_no_other_for_who_was_meant(void **state)
{
    struct rig r;
    struct rig_call call;
    struct mu_buf addr;
    struct mu_errmsg msg;

    (void)state;
    rig_open(&r, 3, NULL);
    rig_run_all(&r);
    mu_buf_init(&addr, 256);
    assert_int_equal(mu_multiaddr_parse(&addr, "/dns4/c/tcp/4001", &msg), 0);
    assert_int_equal(
        mu_peer_host_add_addr(r.node[0].host, &r.node[1].identity.id, mu_buf_span(&addr)), 0);
    mu_buf_fini(&addr);
    rig_call(&r.node[0], &r.node[1], &call, 10);
    rig_run(&r, 3000);
    assert_int_equal(call.ended, 1);
    assert_int_equal(call.status, MUSTER_EPEERID);
    assert_int_equal(r.node[2].connected, 0);
    rig_close(&r);
}

static void test_peer_host_bounds_those_who_have_not_proved_themselves(void **state)
{
    static struct rig r;
    static struct evil e[12];
    struct rig_call honest, newcomer;
    struct mu_sim_host *host;

    (void)state;
    rig_open(&r, 3, NULL);
    r.node[1].config.pending_max = 8;
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    rig_introduce(&r.node[2], &r.node[1]);
    rig_call(&r.node[0], &r.node[1], &honest, 10);
    rig_run(&r, 1000);
    rig_assert_echoed(&honest);
    host = mu_sim_host_new(r.sim, "evil");
    for (size_t i = 0; i < 12; i++) {
        struct mu_sim_proc *proc;

        e[i].trick = SILENT;
        proc = mu_sim_proc_new(
            host, &(struct mu_sim_program){.name = "evil", .start = start_evil, .arg = &e[i]});
        rig_run(&r, 10);
        mu_sim_call(proc, dial, &e[i]);
    }
    rig_run(&r, 1000);
    assert_int_equal(rig_stats(&r.node[1]).pending, 8);
    assert_int_equal(rig_stats(&r.node[1]).turned_away, 4);
    assert_int_equal(rig_stats(&r.node[1]).last_failure, MUSTER_ELIMIT);
    /* Who means to prove himself is not kept out by them, nor is who has. */
    rig_call(&r.node[2], &r.node[1], &newcomer, 1000);
    rig_call(&r.node[0], &r.node[1], &honest, 1000);
    rig_run(&r, 1000);
    rig_assert_echoed(&newcomer);
    rig_assert_echoed(&honest);
    assert_int_equal(rig_stats(&r.node[1]).pending, 7);
    rig_run(&r, 20000);
    assert_int_equal(rig_stats(&r.node[1]).pending, 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_host_refuses_each_trick_with_its_own_error),
        cmocka_unit_test(test_peer_host_takes_no_other_for_who_was_meant),
        cmocka_unit_test(test_peer_host_bounds_those_who_have_not_proved_themselves),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
