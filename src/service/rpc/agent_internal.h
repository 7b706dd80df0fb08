/*
 * What the files of the RPC agent share.
 *
 *     agent.c         life, workers, the turn
 *     agent_line.c    lines: a session with a peer, dialled or accepted, and which one is kept
 *     agent_call.c    our calls
 *     agent_serve.c   others' calls
 *     agent_coming.c  messages in pieces: their memory
 */
#ifndef MU_RPC_AGENT_INTERNAL_H
#define MU_RPC_AGENT_INTERNAL_H

#include "service/base/log.h"
#include "service/rpc/agent.h"
#include "service/wire/rpc_client.h"
#include "service/wire/rpc_server.h"

/* The longest payload that is sent in one frame, so that none holds up the others for long. */
#define MU_RPC_PIECE ((size_t)256 << 10)

#define MU_RPC_DROPPED "RPC-PEER-DROPPED"

/* One end of a session with a peer. */
struct mu_rpc_line {
    struct mu_rpc_agent *agent;
    struct mu_rpc_peer *peer;
    struct mu_list dirty; /* agent->dirty_lines: has something to send */
    struct mu_map outs;
    struct mu_map ins;
    bool dialled; /* a struct mu_rpc_dial, else a struct mu_rpc_accepted */
    bool ready;   /* calls may be made */
    bool lost;
    uint8_t incarnation[MU_RPC_SESSION_LEN]; /* of the process at the other end, once ready */
};

struct mu_rpc_dial {
    struct mu_rpc_client client;
    struct mu_rpc_line line;
    struct mu_list link; /* agent->dials */
    uint8_t card[MU_RPC_CREDENTIAL_LEN];
    bool closing;
};

struct mu_rpc_accepted {
    struct mu_rpc_session base;
    struct mu_rpc_line line;
};

struct mu_rpc_peer {
    struct mu_map_node by_name;
    struct mu_map_node by_id;
    struct mu_list link; /* agent->workers, or agent->guests */
    struct mu_rpc_agent *agent;
    char name[MU_RPC_WORKER_MAX + 1];
    int32_t id;
    bool guest; /* it called us, and nobody told us of it */
    bool has_addr;
    struct mu_addr addr;
    struct mu_addr near;      /* kind 0: none */
    struct mu_rpc_line *line; /* the one that calls go to; NULL: none */
    size_t lines;             /* that name it */
    struct mu_list unsent;
    struct mu_list outs;  /* all calls to it that have not ended */
    struct mu_list dirty; /* agent->dirty_peers: calls may be begun */
    struct mu_timer dial_timer;
    bool dial_held; /* until the timer: it is to dial us */
    bool left;      /* it said goodbye, and was not heard of since */
    struct mu_rpc_budget budget;
};

struct mu_rpc_agent {
    struct mu_env *env;
    struct mu_rpc_agent_config config;
    struct mu_rpc_server server;
    struct mu_rpc_listener listener;
    struct mu_rpc_listener near;
    struct mu_addr near_addr; /* kind 0: it does not listen there */
    struct mu_list dirty_lines;
    struct mu_list dials;
    struct mu_map by_name;
    struct mu_map by_id;
    struct mu_list workers;
    struct mu_list guests;
    struct mu_list dirty_peers;
    struct mu_map handlers;
    /* our calls */
    struct mu_heap deadlines;
    struct mu_rpc_retry_set retries;
    struct mu_list ending;
    struct mu_list once_outs; /* in the order of their numbers */
    uint64_t seq;
    size_t in_flight;
    struct mu_list idlers; /* struct mu_rpc_idle */
    struct mu_timer timer;
    struct mu_buf scratch;
    struct mu_list answers; /* long ones that were handed to their sessions: struct mu_rpc_blob */
    struct mu_buf lent;     /* the answer that is being told, if it came in pieces */
    /* others' */
    struct mu_rpc_once once;
    struct mu_list running;
    size_t running_count;
    size_t coming; /* bytes of messages that are not whole yet */
    struct mu_rpc_agent_stats stats;
    struct mu_log_limit dropped; /* lines of peers who were: MU_RPC_DROPPED */
    bool stopping;
    bool stopped;
    bool in_turn;
    bool in_event; /* something is being told, and a turn follows */
};

/* --- agent.c ------------------------------------------------------------------------------ */

struct mu_rpc_peer *mu_rpc_peer_new(struct mu_rpc_agent *a, struct mu_span name, int32_t id,
                                    bool guest);
/** Frees a guest that nobody refers to any more. */
void mu_rpc_peer_drop_guest(struct mu_rpc_peer *peer);
/** Calls to it may be begun: at the end of the turn. */
void mu_rpc_peer_touch(struct mu_rpc_peer *peer);
/** Counts a duration in a histogram. */
void mu_rpc_count(uint64_t *buckets, uint64_t ns);

/* --- agent_line.c ------------------------------------------------------------------------- */

extern const struct mu_rpc_server_ops mu_rpc_agent_server_ops;
struct mu_rpc *mu_rpc_line_rpc(struct mu_rpc_line *line);
/** The machine was given something to send: it goes out at the end of the turn. */
void mu_rpc_line_touch(struct mu_rpc_line *line);
/** Sends. */
void mu_rpc_line_flush(struct mu_rpc_line *line);
/** A line to the peer on which calls can be made, or NULL: one is being made. */
struct mu_rpc_line *mu_rpc_peer_line(struct mu_rpc_peer *peer);
/** Ends all its calls: ours with `status` and `text`. It is the peer's line no more. */
void mu_rpc_line_lose(struct mu_rpc_line *line, int status, const char *text);
/** Says goodbye on all lines, and listens no more. */
void mu_rpc_lines_close(struct mu_rpc_agent *a);

/* --- agent_call.c ------------------------------------------------------------------------- */

/** Begins the calls that wait for this peer, as far as there is credit. */
void mu_rpc_calls_begin(struct mu_rpc_peer *peer);
/** An attempt has failed: it is tried again, or ends. */
void mu_rpc_out_failed(struct mu_rpc_out *out, int status, const char *text);
void mu_rpc_out_on_reply(struct mu_rpc_out *out, const struct mu_rpc_event *event);
void mu_rpc_out_on_item(struct mu_rpc_out *out, const struct mu_rpc_event *event);
void mu_rpc_out_on_credit(struct mu_rpc_out *out);
/** All calls to a peer that wait for a line end with this. */
void mu_rpc_calls_fail(struct mu_rpc_peer *peer, int status, const char *text);
/** All calls to a peer end with this, whatever they wait for. */
void mu_rpc_calls_end(struct mu_rpc_peer *peer, int status, const char *text);
/** Deadlines and retries that are due. */
void mu_rpc_calls_tick(struct mu_rpc_agent *a);
mu_mono_t mu_rpc_calls_deadline(const struct mu_rpc_agent *a);
/** Tells of those that ended without an answer. */
void mu_rpc_calls_tell(struct mu_rpc_agent *a);
/** The agent stops: everything ends. */
void mu_rpc_calls_stop(struct mu_rpc_agent *a);

/* --- agent_serve.c ------------------------------------------------------------------------ */

void mu_rpc_in_on_call(struct mu_rpc_line *line, const struct mu_rpc_event *event);
void mu_rpc_in_on_item(struct mu_rpc_in *in, const struct mu_rpc_event *event);
void mu_rpc_in_on_end(struct mu_rpc_in *in);
void mu_rpc_in_on_cancel(struct mu_rpc_in *in, int why);
void mu_rpc_in_on_credit(struct mu_rpc_in *in);
/** Its line is gone. */
void mu_rpc_in_orphan(struct mu_rpc_in *in);

/* --- agent_coming.c ----------------------------------------------------------------------- */

/** Another piece, of the call `id` of this line. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_rpc_coming_add(struct mu_rpc_line *line, uint64_t id, struct mu_rpc_coming *c,
                      struct mu_span piece);
/** Nothing more of it is wanted. `line` may be NULL: then nothing can come. */
void mu_rpc_coming_drop(struct mu_rpc_line *line, uint64_t id, struct mu_rpc_coming *c);
/** Gives memory of a long message to those who keep some, or back. */
void mu_rpc_agent_give_buf(struct mu_rpc_agent *a, struct mu_buf *buf);
/** A long answer is with its session now: takes the reference, until it has been received. */
void mu_rpc_answer_keep(struct mu_rpc_agent *a, struct mu_rpc_blob *blob);
void mu_rpc_answers_sweep(struct mu_rpc_agent *a, bool all);

#endif
