/* One end of a connection between peers, with the keys of the published transcript. */
#ifndef MU_TEST_PEER_SIDE_H
#define MU_TEST_PEER_SIDE_H

#include <string.h>

#include "core/assert.h"
#include "proto/peer/conn.h"

#define PEER_LISTENER_ID "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"
#define PEER_DIALLER_ID  "12D3KooWJWoaqZhDaoEFshF7Rh1bpY9ohihFhzcW6d69Lr2NASuq"

struct peer_side {
    struct mu_identity identity;
    struct mu_peer_conn conn;
};

static inline struct mu_peer_conn_config peer_side_config(enum mu_peer_role role)
{
    struct mu_peer_conn_config config = mu_peer_conn_config_defaults();
    bool dialler = role == MU_PEER_DIALLER;

    config.role = role;
    config.seed = 3;
    memset(config.secret_static, dialler ? 4 : 3, sizeof(config.secret_static));
    memset(config.secret_ephemeral, dialler ? 6 : 5, sizeof(config.secret_ephemeral));
    return config;
}

/** `config` is as above, and changed at will. Zero, or MUSTER_ENOMEM. */
static inline int peer_side_init(struct peer_side *s, struct mu_peer_conn_config config,
                                 mu_mono_t now)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN];
    int err;

    memset(seed, config.role == MU_PEER_DIALLER ? 2 : 1, sizeof(seed));
    err = mu_identity_from_seed(&s->identity, seed);
    if (err != 0) {
        return err;
    }
    config.identity = &s->identity;
    err = mu_peer_conn_init(&s->conn, &config, now);
    if (err != 0) {
        mu_identity_fini(&s->identity);
    }
    return err;
}

static inline void peer_side_fini(struct peer_side *s)
{
    mu_peer_conn_fini(&s->conn);
    mu_identity_fini(&s->identity);
}

struct peer_pair {
    struct peer_side d; /* the dialler */
    struct peer_side l; /* the listener */
};

/** Carries bytes until there are none, or the other takes none. Whether there were some. */
static inline bool peer_carry(struct peer_side *from, struct peer_side *to, mu_mono_t now)
{
    bool moved = false;

    for (;;) {
        struct mu_span out = mu_peer_conn_output(&from->conn);
        size_t used;

        if (out.len == 0 || mu_peer_conn_recv(&to->conn, now, out, &used) != 0 || used == 0) {
            return moved;
        }
        mu_peer_conn_sent(&from->conn, used);
        moved = true;
    }
}

/** Two that have shaken hands, and said so. */
static inline void peer_pair_start(struct peer_pair *p, bool muxer_late, mu_mono_t now)
{
    struct mu_peer_conn_config config = peer_side_config(MU_PEER_DIALLER);
    struct mu_peer_event e;

    config.muxer_late = muxer_late;
    MU_ASSERT(peer_side_init(&p->d, config, now) == 0);
    MU_ASSERT(peer_side_init(&p->l, peer_side_config(MU_PEER_LISTENER), now) == 0);
    for (int i = 0; i < 10; i++) {
        (void)peer_carry(&p->d, &p->l, now);
        while (mu_peer_conn_next_event(&p->l.conn, &e)) {
            MU_ASSERT(e.type == MU_PEER_EV_SECURED);
        }
        (void)peer_carry(&p->l, &p->d, now);
        while (mu_peer_conn_next_event(&p->d.conn, &e)) {
            MU_ASSERT(e.type == MU_PEER_EV_SECURED);
        }
    }
    MU_ASSERT(p->d.conn.stage == MU_PEER_OPEN && p->l.conn.stage == MU_PEER_OPEN);
}

static inline void peer_pair_fini(struct peer_pair *p)
{
    peer_side_fini(&p->d);
    peer_side_fini(&p->l);
}

#endif
