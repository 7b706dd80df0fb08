/*
 * What the files of the loader share.
 *
 *     loader.c        life, the phases, progress and the end
 *     loader_link.c   a donor: connecting, calls, answers
 *     loader_ask.c    what donors have, and which state is chosen
 *     loader_offer.c  the offer of that state
 *     loader_resume.c chunks that may be there already
 *     loader_fetch.c  chunks: asked for, landed
 *     loader_check.c  chunks: hashed
 *     loader_place.c  chunks: memory for them
 */
#ifndef MU_STATE_LOADER_INTERNAL_H
#define MU_STATE_LOADER_INTERNAL_H

#include "proto/state/fetch.h"
#include "service/wire/rpc_client.h"
#include "service/state/loader.h"

#define MU_STATE_ENTRIES_MAX 64 /* how many entries of one donor count */
#define MU_STATE_REFUSED_MAX 64 /* states of which no donor had a good offer, or gave chunks */
#define MU_STATE_SAMPLES     32

enum mu_state_phase {
    MU_STATE_ASKING = 1,
    MU_STATE_OFFERING,
    MU_STATE_RESUMING,
    MU_STATE_FETCHING,
    MU_STATE_LEAVING, /* landing and serving are ending */
    MU_STATE_ENDED,
};

/* An entry that a donor listed, and the text that it refers to. */
struct mu_state_listed {
    struct mu_state_entry entry; /* without its key and signature, which were checked */
    struct mu_peer_id signer;
    char prefix[MU_STATE_PREFIX_MAX];
};

/* A donor that may have the state. */
struct mu_state_link {
    struct mu_list link; /* loader->links */
    struct mu_state_loader *loader;
    char name[MU_STATE_ADDR_MAX + 1];
    struct mu_addr addr;
    bool found; /* through the swarm: we do not ask what else it has */

    struct mu_rpc_client client;
    bool live;    /* it has a client */
    bool closing; /* `closed` will come */
    bool ready;   /* calls can be made */
    bool dirty;   /* has something to send */

    /* Asking. */
    bool asked; /* in this round: it has answered or failed */
    uint64_t list_call;
    uint64_t offer_call;
    bool offer_tried;
    bool banned;
    int status; /* of its last error before it was asked for chunks */
    char text[MU_ERRMSG_CAP];
    struct mu_state_listed *entries;
    size_t entry_count;

    /* Fetching. */
    bool is_donor;
    uint32_t donor;
    bool wanted; /* a stream must be opened as soon as it is ready */
    bool gone;   /* it does not have the version any more */
    uint64_t stream;
    uint64_t have_call;
    uint64_t swarm_call;
    mu_mono_t swarm_at;
    uint32_t swarm_asks; /* of this download */
    bool aimed;          /* room was given for this ask */
    struct mu_state_ask_request aim;
    uint8_t *bounce; /* where the chunk lands if its place is in pieces */
    size_t arrived;
    struct mu_buf waiting; /* u32 each: asks that wait until their place is ready */
};

/* A chunk that is being hashed, or an offer. */
struct mu_state_check {
    struct mu_work work;
    struct mu_state_loader *loader;
    void (*settle)(struct mu_state_check *c); /* called when it is hashed: `ok` */
    struct mu_state_check *second;            /* hashed together with it; owned */
    struct mu_state_link *link; /* whose stream gets its window back; `stream` says whether it is
                                   still there */
    uint64_t stream;
    uint32_t donor;
    uint32_t chunk;
    uint64_t offset;
    uint8_t *bounce; /* owned */
    const uint8_t *data;
    size_t len;
    const uint8_t *leaf;
    struct mu_state_share *share; /* resuming: a reference */
    bool ok;
    /* An offer. */
    int err;
    struct mu_errmsg msg;
    uint8_t id[MU_STATE_ID_LEN];
    struct mu_peer_id signer;
};

struct mu_state_loader {
    struct mu_env *env;
    struct mu_state_loader_config config;
    enum mu_state_phase phase;
    struct mu_list links;
    size_t link_count;
    struct mu_timer timer;
    mu_mono_t deadline;
    mu_mono_t idle_at; /* until the first chunk comes */
    bool in_turn;
    bool canceled;
    bool closed;

    /* Asking. */
    mu_mono_t ask_at;    /* when donors that had nothing are asked again */
    mu_mono_t settle_at; /* when we stop waiting for other answers */
    struct mu_state_listed want;
    bool has_want;
    uint8_t refused[MU_STATE_REFUSED_MAX][MU_STATE_ID_LEN];
    size_t refused_count;
    struct {
        uint8_t id[MU_STATE_ID_LEN];
        unsigned times;
    } failed[MU_STATE_REFUSED_MAX]; /* states whose donors gave no chunks */
    size_t failed_count;
    struct mu_state_offer offer;
    struct mu_state_link *offerer;
    mu_mono_t offer_at; /* when another donor is asked for it, if nothing more comes */
    bool checking;      /* the offer is being checked on another thread */
    int last_status;
    struct mu_errmsg last;

    /* Fetching. */
    struct mu_state_share *share;
    struct mu_state_fetch fetch;
    bool has_fetch;
    struct mu_state_link **by_donor;
    uint32_t donor_count;
    uint8_t **spares;
    uint32_t spare_count;
    uint8_t *have; /* resuming */
    uint8_t *maybe;
    bool whole_only; /* of the plan */
    bool spoiled;    /* some chunk was not there */
    uint32_t resume_next;
    uint8_t *stretches;       /* enum mu_state_stretch for each; NULL: all memory is ready */
    uint32_t stretch_chunks;  /* how many chunks a stretch has */
    uint32_t stretches_ahead; /* how many are being made ready before anybody asked for them */
    size_t jobs;
    struct mu_state_check *held;     /* waits for a second chunk, */
    mu_mono_t held_until;            /* until then */
    struct mu_state_check *verified; /* whose answer is being handled */
    bool served;                     /* the donor has the share */
    bool whole;

    /* For progress, the report and the end. */
    uint64_t resumed_bytes;
    uint64_t done_bytes;    /* at the end */
    uint64_t wasted_before; /* by versions that were gone */
    uint32_t restarts;
    uint32_t lost;
    mu_mono_t progress_at;
    struct {
        mu_mono_t at;
        uint64_t bytes;
    } samples[MU_STATE_SAMPLES];
    size_t sample_count;
    bool again; /* LEAVING: for another version */
    bool told;
    int status;
    struct mu_errmsg text;
    struct mu_buf report; /* of downloads that failed */
};

/* --- loader.c --------------------------------------------------------------------------- */

/** To be called after anything happened: does what is due, sends, re-arms the timer. */
void mu_state_loader_turn(struct mu_state_loader *l);
/** Ends the load, with success or not. */
void mu_state_loader_end(struct mu_state_loader *l, int status, const char *text);
/** This version is gone: begins anew. */
void mu_state_loader_restart(struct mu_state_loader *l);
/** Adds a donor that was found. NULL: it is known, or there are too many. */
struct mu_state_link *mu_state_loader_link(struct mu_state_loader *l, const char *name,
                                           struct mu_errmsg *reterr_msg);

/* --- loader_link.c ---------------------------------------------------------------------- */

/** Connects if there is no connection. False: that is impossible; the link says why. */
bool mu_state_link_dial(struct mu_state_link *k);
void mu_state_link_close(struct mu_state_link *k);
/** Calls a method. 0: the call failed. */
uint64_t mu_state_link_call(struct mu_state_link *k, const char *method, struct mu_span payload,
                            uint32_t timeout_ms);
void mu_state_link_flush(struct mu_state_link *k);

/* --- loader_ask.c ----------------------------------------------------------------------- */

void mu_state_ask_begin(struct mu_state_loader *l);
/** The link can be called, or cannot be reached. */
void mu_state_ask_ready(struct mu_state_link *k);
void mu_state_ask_failed(struct mu_state_link *k, int status, const char *text);
void mu_state_ask_reply(struct mu_state_link *k, const struct mu_rpc_event *event);
/** Notes the error of a donor. */
void mu_state_ask_say(struct mu_state_link *k, int status, const char *text);
/** Bans a donor that gave out something wrong: it is not asked again. */
void mu_state_ask_ban(struct mu_state_link *k, int status, const char *text);
/** Whether states that this peer has signed may be taken; and whether this state may be, as far as
 * we know: that others have a good offer of it. */
bool mu_state_ask_trusts(const struct mu_state_loader *l, const struct mu_peer_id *signer);
bool mu_state_ask_wants(const struct mu_state_loader *l, const struct mu_state_listed *e);
/** No donor gives the chunks of the chosen state, and there is another one: after some such
 * tries that one is taken, even if it is older. */
void mu_state_ask_give_up(struct mu_state_loader *l, const char *why);
/** What a donor said about a state; NULL: it does not have it. */
const struct mu_state_listed *mu_state_ask_listed(const struct mu_state_link *k,
                                                  const uint8_t id[MU_STATE_ID_LEN]);
/** Chooses when it is time. */
void mu_state_ask_turn(struct mu_state_loader *l);
mu_mono_t mu_state_ask_deadline(const struct mu_state_loader *l);

/* --- loader_offer.c --------------------------------------------------------------------- */

/** Asks a donor that has the chosen state for its offer. False: no donor is left. */
bool mu_state_offer_ask(struct mu_state_loader *l);
/** No donor has a good offer of the state: takes the next best. */
void mu_state_offer_refuse(struct mu_state_loader *l);
/** A piece of an offer. */
void mu_state_offer_item(struct mu_state_link *k, struct mu_span piece);
/** The memory of a share whose chunks are not all there is exchanged for memory that can be written
 * to. */
void mu_state_offer_accept_again(struct mu_state_loader *l);
/** The last piece of an offer, or an error. */
void mu_state_offer_reply(struct mu_state_link *k, const struct mu_rpc_event *event);
/** Passes over a donor that does not send its offer. */
void mu_state_offer_turn(struct mu_state_loader *l);

/* --- loader_check.c --------------------------------------------------------------------- */

/** Makes a check of a chunk. The caller then sets where the chunk is: `data`, or `share`, from
 * which it is read. `settle` is called when it is hashed. NULL: no memory. */
struct mu_state_check *mu_state_check_new(struct mu_state_loader *l, uint32_t chunk,
                                          void (*settle)(struct mu_state_check *c));
/** Frees a check that was not begun. NULL is fine. */
void mu_state_check_free(struct mu_state_check *c);
/** Begins a check, and takes it. With `more`, others are coming, and it may wait a moment for one
 * of them. MUSTER_ENOMEM: it and the one that waited for it are gone. */
int mu_state_check_begin(struct mu_state_check *c, bool more);
/** Begins a check that has waited long enough; with MU_MONO_NEVER any. MUSTER_ENOMEM likewise. */
int mu_state_check_flush(struct mu_state_loader *l, mu_mono_t now);
mu_mono_t mu_state_check_deadline(const struct mu_state_loader *l);
void mu_state_check_fini(struct mu_state_loader *l);

/* --- loader_place.c --------------------------------------------------------------------- */

/** The memory of the share is not ready to be written to. False: out of memory. */
bool mu_state_place_init(struct mu_state_loader *l);
/** A chunk was asked for: has its place made ready, and those after it. */
void mu_state_place_want(struct mu_state_loader *l, uint32_t chunk);
/** Whether something may be put into the place of a chunk. */
bool mu_state_place_is_ready(const struct mu_state_loader *l, uint32_t chunk);
void mu_state_place_fini(struct mu_state_loader *l);

/* --- loader_resume.c -------------------------------------------------------------------- */

/** Has the chunks hashed that may be in the share's memory; this takes the plan's bits. */
void mu_state_resume_begin(struct mu_state_loader *l, const struct mu_state_plan *plan);
void mu_state_resume_turn(struct mu_state_loader *l);

/* --- loader_fetch.c --------------------------------------------------------------------- */

/** The offer was accepted. */
void mu_state_fetching_begin(struct mu_state_loader *l, struct mu_state_plan *plan);
/** What may be there is hashed: asks for the rest. */
void mu_state_fetching_start(struct mu_state_loader *l);
void mu_state_fetching_ready(struct mu_state_link *k);
void mu_state_fetching_failed(struct mu_state_link *k, int status, const char *text);
void mu_state_fetching_reply(struct mu_state_link *k, const struct mu_rpc_event *event);
void mu_state_fetching_item(struct mu_state_link *k, struct mu_span payload);
/** A part of a chunk has come. */
void mu_state_fetching_heard(struct mu_state_link *k);
void mu_state_fetching_turn(struct mu_state_loader *l);
mu_mono_t mu_state_fetching_deadline(const struct mu_state_loader *l);
/** Nothing from this donor lands any more. */
void mu_state_fetching_unaim(struct mu_state_link *k);
/** Frees what a download had. No job may be under way. */
void mu_state_fetching_fini(struct mu_state_loader *l);

#endif
