/* The scheduler of a download, with donors that are rows of a table. */
#ifndef MU_TEST_FETCH_RIG_H
#define MU_TEST_FETCH_RIG_H

#include "unit.h"

#include <string.h>

#include <muster/error.h>

#include "codec/state/msg.h"
#include "proto/state/fetch.h"

#define CHUNK 4096u

struct fetch_rig {
    struct mu_state_fetch f;
    mu_mono_t now;
    struct mu_state_fetch_event last; /* of its type */
};

static inline struct mu_state_fetch_config fetch_config(uint32_t chunks)
{
    struct mu_state_fetch_config config = mu_state_fetch_config_defaults();

    config.chunks = chunks;
    config.chunk_bytes = CHUNK;
    config.last_bytes = 100;
    config.seed = 1;
    return config;
}

static inline void fetch_open_with(struct fetch_rig *w, const struct mu_state_fetch_config *config)
{
    memset(w, 0, sizeof(*w));
    w->now = (mu_mono_t){MU_NS_PER_S};
    assert_int_equal(mu_state_fetch_init(&w->f, config, w->now), 0);
}

static inline void fetch_open(struct fetch_rig *w, uint32_t chunks)
{
    struct mu_state_fetch_config config = fetch_config(chunks);

    fetch_open_with(w, &config);
}

/* Moves on and ticks. */
static inline void fetch_sleep_ms(struct fetch_rig *w, uint64_t ms)
{
    w->now = mu_mono_add_ms(w->now, ms);
    mu_state_fetch_tick(&w->f, w->now);
}

/* How many events of a type there are; all are pulled, the last of them is kept. */
static inline int fetch_pull(struct fetch_rig *w, enum mu_state_fetch_event_type type)
{
    struct mu_state_fetch_event event;
    int count = 0;

    while (mu_state_fetch_next_event(&w->f, &event)) {
        if (event.type == type) {
            w->last = event;
            count++;
        }
    }
    return count;
}

static inline uint32_t fetch_add_donor(struct fetch_rig *w, const char *name)
{
    uint32_t donor;

    assert_int_equal(mu_state_fetch_add(&w->f, w->now, mu_span_str(name), &donor), 0);
    assert_int_equal(fetch_pull(w, MU_STATE_FETCH_EV_OPEN), 1);
    assert_int_equal(w->last.donor, donor);
    mu_state_fetch_ready(&w->f, w->now, donor);
    return donor;
}

static inline uint32_t fetch_add_full(struct fetch_rig *w, const char *name)
{
    uint32_t donor = fetch_add_donor(w, name);

    assert_int_equal(mu_state_fetch_have(&w->f, w->now, donor, NULL), 0);
    return donor;
}

/* Everything that can be asked now; the last is kept. */
static inline uint32_t fetch_ask_all(struct fetch_rig *w, struct mu_state_ask_request *last)
{
    struct mu_state_ask_request request;
    uint32_t count = 0;

    *last = (struct mu_state_ask_request){UINT32_MAX, UINT32_MAX, 0};
    while (mu_state_fetch_next(&w->f, w->now, &request)) {
        *last = request;
        count++;
    }
    return count;
}

/* The donor answers what it owes next, and it is hashed. */
static inline void fetch_answer(struct fetch_rig *w, uint32_t donor, bool ok)
{
    struct mu_state_ask_request owed;
    bool revoked;

    assert_true(mu_state_fetch_owes(&w->f, donor, &owed, &revoked));
    if (mu_state_fetch_received(&w->f, w->now, donor, owed.chunk) == MU_STATE_FETCH_VERIFY) {
        mu_state_fetch_verified(&w->f, w->now, donor, owed.chunk, ok);
    }
}

static inline struct mu_state_donor_account fetch_account(const struct fetch_rig *w, uint32_t donor)
{
    struct mu_state_donor_account a;

    mu_state_fetch_account(&w->f, donor, &a);
    return a;
}

#endif
