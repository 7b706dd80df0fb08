/*
 * An agent's policy by hand: events in, updates out, with a time that the test moves. Each helper
 * gives one event and returns the flags of the update, which stays in `rig.u`.
 */
#ifndef MU_AGENT_RIG_H
#define MU_AGENT_RIG_H

#include "unit.h"

#include <string.h>

#include "proto/agent/agent.h"

static struct {
    struct mu_agent a;
    struct mu_agent_update u;
    mu_mono_t now;
} rig;

static inline int rig_try(struct mu_agent_event event)
{
    event.now = (struct mu_now){.mono = rig.now};
    return mu_agent_step(&rig.a, &event, &rig.u);
}

static inline unsigned rig_step(struct mu_agent_event event)
{
    assert_int_equal(rig_try(event), 0);
    assert_int_equal(rig.u.deadline.ns, mu_agent_deadline(&rig.a).ns);
    return rig.u.flags;
}

static inline void rig_init(struct mu_agent_config config)
{
    struct mu_errmsg msg;

    rig.now = (mu_mono_t){MU_NS_PER_S};
    assert_int_equal(mu_agent_init(&rig.a, &config, &msg), 0);
}

/** Two workers, two restarts. */
static inline struct mu_agent_config rig_config(void)
{
    struct mu_agent_config config = mu_agent_config_defaults();

    config.workers = 2;
    config.restarts_max = 2;
    return config;
}

static inline unsigned rig_start(void)
{
    return rig_step((struct mu_agent_event){.type = MU_AGENT_START});
}

static inline unsigned rig_assigned_kept(uint64_t round, uint32_t left, bool host)
{
    return rig_step((struct mu_agent_event){
        .type = MU_AGENT_ASSIGNED, .round = round, .restarts_left = left, .host = host});
}

static inline unsigned rig_assigned(uint64_t round)
{
    return rig_assigned_kept(round, MU_AGENT_NOT_KEPT, false);
}

static inline unsigned rig_round(enum mu_agent_event_type type, uint64_t round, int code)
{
    return rig_step((struct mu_agent_event){.type = type, .round = round, .code = code});
}

static inline unsigned rig_group(enum mu_agent_event_type type, uint64_t generation)
{
    return rig_step((struct mu_agent_event){.type = type, .generation = generation});
}

static inline unsigned rig_exited(uint64_t generation, uint32_t rank, int code)
{
    return rig_step((struct mu_agent_event){
        .type = MU_AGENT_EXITED, .generation = generation, .local_rank = rank, .exit_code = code});
}

/* The others go on without us in so many milliseconds. */
static inline unsigned rig_cut_off(uint64_t ms)
{
    return rig_step(
        (struct mu_agent_event){.type = MU_AGENT_CUT_OFF, .by = mu_mono_add_ms(rig.now, ms)});
}

static inline unsigned rig_signal(int signal)
{
    return rig_step((struct mu_agent_event){.type = MU_AGENT_SIGNAL, .signal = signal});
}

static inline unsigned rig_rdzv_failed(int code)
{
    return rig_step((struct mu_agent_event){.type = MU_AGENT_RDZV_FAILED, .code = code});
}

static inline unsigned rig_closed(void)
{
    return rig_step((struct mu_agent_event){.type = MU_AGENT_RDZV_CLOSED});
}

/** Time passes; TIMEOUT is sent whether or not something is due. */
static inline unsigned rig_pass(uint64_t ms)
{
    rig.now = mu_mono_add_ms(rig.now, ms);
    return rig_step((struct mu_agent_event){.type = MU_AGENT_TIMEOUT});
}

/** From the start, or from a JOINING, to workers that run in that round and generation. */
static inline void rig_run_kept(uint64_t round, uint64_t generation, uint32_t left, bool host)
{
    if (rig.a.state == MU_AGENT_IS_IDLE) {
        assert_int_equal(rig_start(), MU_AGENT_DO_JOIN);
    }
    assert_int_equal(rig_assigned_kept(round, left, host), MU_AGENT_DO_EXCHANGE);
    assert_int_equal(rig.u.round, round);
    assert_int_equal(rig_round(MU_AGENT_READY, round, 0), MU_AGENT_DO_SPAWN);
    assert_int_equal(rig.u.generation, generation);
    assert_int_equal(rig_group(MU_AGENT_SPAWNED, generation), 0);
    assert_int_equal(rig.a.state, MU_AGENT_IS_RUNNING);
}

static inline void rig_run(uint64_t round, uint64_t generation)
{
    rig_run_kept(round, generation, MU_AGENT_NOT_KEPT, false);
}

/** All exit with 0, nothing is left behind. */
static inline void rig_succeed(uint64_t generation)
{
    for (uint32_t i = 0; i < rig.a.config.workers; i++) {
        assert_int_equal(rig_exited(generation, i, 0),
                         i + 1 == rig.a.config.workers ? MU_AGENT_DO_BARRIER : 0);
    }
    assert_int_equal(rig_group(MU_AGENT_GROUP_GONE, generation), 0);
}

static inline void assert_ended(enum mu_agent_outcome outcome)
{
    assert_int_equal(rig.a.state, MU_AGENT_IS_ENDED);
    assert_true((rig.u.flags & MU_AGENT_ENDED) != 0);
    assert_string_equal(mu_agent_outcome_name(rig.u.outcome), mu_agent_outcome_name(outcome));
    assert_true(rig.u.text != NULL && rig.u.text[0] != '\0');
    assert_int_equal(mu_agent_deadline(&rig.a).ns, MU_MONO_NEVER.ns);
}

#endif
