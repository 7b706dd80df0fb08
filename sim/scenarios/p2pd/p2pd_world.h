/*
 * What the files of the scenario `p2pd` share.
 *
 *     p2pd.c           the daemons, the world, and what must hold
 *     p2pd_client.c    a client: calls, and handles calls
 *     p2pd_stream.c    its streams, and those of others to it
 */
#ifndef MU_SIM_P2PD_WORLD_H
#define MU_SIM_P2PD_WORLD_H

#include "checkers/once.h"
#include "codec/peer/p2pd_msg.h"
#include "service/p2pd/p2pd_internal.h"
#include "sim.h"

#define P2PD_DAEMONS  10
#define P2PD_CLIENTS  12 /* two of the daemons have two */
#define P2PD_PORT     4001
#define P2PD_CONTROL  "/p2pd"
#define P2PD_UNARY    "sim::Echo.unary"
#define P2PD_STREAM   "sim::Echo.stream"
#define P2PD_CALLS    4 /* of one client at a time */
#define P2PD_REQUESTS 32
#define P2PD_STREAMS  2

enum p2pd_plant {
    P2PD_PLANT_NONE = 0,
    P2PD_PLANT_FORGETS, /* a daemon forgets a call */
    P2PD_PLANT_CLINGS,  /* a daemon keeps a handler of a client that is gone */
};

struct p2pd_world;
struct p2pd_client_app;

struct p2pd_daemon_state {
    struct p2pd_world *world;
    uint32_t number;
    struct mu_identity identity;
    struct mu_sim_host *sim_host;
    struct mu_sim_proc *proc;
    struct mu_p2pd *d; /* while it runs */
    struct mu_timer timer;
};

/* What outlives a client's process. */
struct p2pd_client_state {
    struct p2pd_world *world;
    uint32_t number;
    uint32_t daemon;
    struct mu_sim_proc *proc;
    uint32_t answered; /* calls, well */
    uint32_t echoed;   /* streams, whole */
};

struct p2pd_world {
    struct mu_sim *sim;
    struct once *calls;
    struct once *streams;
    struct p2pd_daemon_state daemons[P2PD_DAEMONS];
    struct p2pd_client_state clients[P2PD_CLIENTS];
    uint32_t wanted_answers[P2PD_CLIENTS];
    uint32_t wanted_echoes[P2PD_CLIENTS];
    enum p2pd_plant plant;
    bool planted;
    bool healed;
    bool leaving;
    bool stopping;
};

/* A stream of a client, or one from another client. */
struct p2pd_stream_app {
    struct mu_conn conn;
    struct p2pd_client_app *app; /* NULL: free */
    bool ours;
    bool begun;  /* the head was read */
    bool ending; /* the other side has ended */
    uint64_t ticket;
    uint32_t len;
    uint32_t sent;
    uint32_t got;
    struct mu_buf in;
    struct mu_buf out;
};

struct p2pd_call_app {
    bool used;
    bool canceled;
    uint8_t id[MU_P2PD_CALL_ID_LEN];
    uint64_t ticket;
    uint32_t len;
};

struct p2pd_request_app {
    bool used;
    uint8_t id[MU_P2PD_CALL_ID_LEN];
    mu_mono_t at;
    struct mu_buf data;
};

/* A client, in its process's memory. */
struct p2pd_client_app {
    struct p2pd_client_state *state;
    struct mu_env *env;
    struct mu_conn conn; /* persistent */
    bool dialled;
    bool open;
    bool upgraded;
    bool blocked;
    bool leaving;
    bool exited;
    struct mu_buf in;
    struct mu_buf out;
    struct mu_timer timer;
    struct p2pd_call_app calls[P2PD_CALLS];
    struct p2pd_request_app requests[P2PD_REQUESTS];
    uint32_t call_count;
    struct mu_listener listener; /* for streams */
    bool listening;
    struct mu_conn handler_conn; /* tells the daemon of the listener */
    bool telling;
    bool told;
    struct p2pd_stream_app streams[P2PD_STREAMS];
    size_t brought; /* streams from others now */
};

int p2pd_client_start(struct mu_env *env, void *arg);
void p2pd_client_killed(void *arg);
/** Ends the process once nothing is left. */
void p2pd_client_check_left(struct p2pd_client_app *app);
/** Returns byte number `at` of what a client sends. */
uint8_t p2pd_byte(uint32_t number, uint32_t len, uint32_t at);
/** Reads a message at the front of a buffer; it is lent. False: more must come. */
bool p2pd_next_message(struct mu_buf *in, struct mu_span *ret, size_t *ret_used);

/** Listens for streams, and tells the daemon. */
void p2pd_streams_listen(struct p2pd_client_app *app);
void p2pd_stream_open(struct p2pd_client_app *app, uint32_t to);
void p2pd_streams_leave(struct p2pd_client_app *app);
bool p2pd_streams_left(const struct p2pd_client_app *app);

#endif
