#include "service/server/rdzv_hub.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "crypto/hash.h"
#include "service/base/log.h"
#include "service/server/rdzv_hub_internal.h"

#define LOOK_MS    100 /* how often to look whether all members were heard after a failure */
#define STARVED_MS 20  /* until something that found no memory is tried again */

/* How far beyond an incarnation of another server ours begin, at most. */
#define DISTANCE_MAX (UINT64_C(1) << 20)

/* An incarnation that a node may name; the rest is left for counting. */
#define INCARNATION_MAX (UINT64_MAX / 2)

/* Room for the list of members, above what any frame could carry. */
#define MEMBERS_BYTES_MAX ((size_t)64 << 20)

struct mu_rdzv_hub_config mu_rdzv_hub_config_defaults(void)
{
    return (struct mu_rdzv_hub_config){
        .runs_max = 10000,
        .runs_idle_max = 1000,
        .members_max = 65536,
        .joins_max = 1024,
    };
}

static struct mu_rdzv_run *run_of(struct mu_list *link)
{
    return MU_CONTAINER_OF(link, struct mu_rdzv_run, link);
}

static void on_timer(struct mu_timer *timer);
static void pump_run(struct mu_rdzv_run *run);

/* --- keys ------------------------------------------------------------------------------------- */

/* Deletes the keys of one round, or (NULL) of all rounds of an incarnation. */
static void delete_keys(struct mu_rdzv_run *run, uint64_t incarnation, const uint64_t *round)
{
    char prefix[MU_RDZV_NAME_LEN_MAX + 64];
    size_t removed = 0;
    int n;

    n = snprintf(prefix, sizeof(prefix), "/rdzv/%s/%" PRIu64 ".", run->id, incarnation);
    if (round != NULL) {
        n += snprintf(prefix + n, sizeof(prefix) - (size_t)n, "%" PRIu64 "/", *round);
    }
    if (run->hub->on.delete_prefix != NULL) {
        run->hub->on.delete_prefix(run->hub->on.context, mu_span(prefix, (size_t)n));
        return;
    }
    mu_ks_delete_prefix(run->hub->on.ks, mu_span(prefix, (size_t)n), &removed);
    if (removed != 0) {
        mu_log(MUSTER_LOG_DEBUG, "RDZV-KEYS-DELETED", "prefix=\"%s\" keys=%zu", prefix, removed);
    }
}

/* --- runs ------------------------------------------------------------------------------------- */

/* For those who look at the server: what happened, in a sentence. */
static void note(struct mu_rdzv_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void note(struct mu_rdzv_run *run, const char *format, ...)
{
    char text[MU_STATUS_EVENT_MAX];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    mu_status_events_add(run->hub->on.events, mu_env_now(run->hub->env).wall, run->id, text);
}

void mu_rdzv_run_mark(struct mu_rdzv_run *run, enum mu_status_mark mark, uint64_t round,
                      uint32_t nodes, const char *who)
{
    struct mu_status_point point = {
        .at = mu_env_now(run->hub->env).wall, .round = round, .mark = mark, .nodes = nodes};

    (void)snprintf(point.who, sizeof(point.who), "%s", who == NULL ? "" : who);
    mu_status_history_add(&run->history, &point);
}

static void log_end(const struct mu_rdzv_run *run, const char *reason)
{
    const struct mu_room *room = &run->room;
    char id[100];
    char who[200] = "";

    if (!mu_log_enabled(MUSTER_LOG_INFO)) {
        return;
    }
    if (room->last_end.has_who) {
        char name[140];

        (void)snprintf(who, sizeof(who), " rank=%" PRIu32 " node=%s", room->last_end.who_rank,
                       mu_span_quote(name, sizeof(name), mu_span_str(room->last_end.who)));
    }
    mu_log(MUSTER_LOG_INFO, "RDZV-ROUND-ENDED",
           "run=%s incarnation=%" PRIu64 " round=%" PRIu64 " reason=\"%s\"%s",
           mu_span_quote(id, sizeof(id), run->by_id.key), room->incarnation, room->last_end.round,
           reason, who);
}

/* Once for each round: why it is over. */
static void note_end(struct mu_rdzv_run *run)
{
    static const char *const reasons[] = {
        [MU_ROOM_END_LOST] = "lost",
        [MU_ROOM_END_LEFT] = "left by",
        [MU_ROOM_END_UPSCALE] = "others are let in",
        [MU_ROOM_END_FAILED] = "workers failed on",
    };
    const struct mu_room *room = &run->room;

    if (run->ended_noted || room->last_end.reason == 0) {
        return;
    }
    run->ended_noted = true;
    log_end(run, reasons[room->last_end.reason]);
    if (room->last_end.reason == MU_ROOM_END_FAILED) {
        run->hub->restarts++;
        mu_rdzv_run_mark(run, MU_STATUS_FAILED, room->last_end.round, 1, room->last_end.who);
    }
    mu_rdzv_run_mark(run, MU_STATUS_ENDED, room->last_end.round, 0, NULL);
    if (room->last_end.has_who) {
        note(run, "round %" PRIu64 " is over: %s %s, node %" PRIu32, room->last_end.round,
             reasons[room->last_end.reason], room->last_end.who, room->last_end.who_rank);
    } else {
        note(run, "round %" PRIu64 " is over: %s", room->last_end.round,
             reasons[room->last_end.reason]);
    }
}

static void log_run(enum muster_log_level level, const char *id, const struct mu_rdzv_run *run,
                    const char *why)
{
    char quoted[100];

    if (mu_log_enabled(level)) {
        mu_log(level, id, "run=%s incarnation=%" PRIu64 " round=%" PRIu64 " %s",
               mu_span_quote(quoted, sizeof(quoted), run->by_id.key), run->room.incarnation,
               run->room.round, why);
    }
}

struct mu_rdzv_run *mu_rdzv_run_find(struct mu_rdzv_hub *hub, struct mu_span id)
{
    struct mu_map_node *node = mu_map_find(&hub->runs, id);

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rdzv_run, by_id);
}

void mu_rdzv_run_touch(struct mu_rdzv_run *run)
{
    if (mu_list_empty(&run->dirty)) {
        mu_list_push(&run->hub->dirty, &run->dirty);
    }
}

static void forget_run(struct mu_rdzv_run *run)
{
    struct mu_rdzv_hub *hub = run->hub;

    MU_ASSERT(!run->busy);
    hub->idle_count--;
    if (run->room.incarnation > hub->forgotten) {
        hub->forgotten = run->room.incarnation;
    }
    mu_env_timer_arm(hub->env, &run->timer, MU_MONO_NEVER);
    if (!run->over) {
        mu_room_fini(&run->room);
    }
    mu_list_remove(&run->link);
    mu_list_remove(&run->dirty);
    mu_map_remove(&hub->runs, &run->by_id);
    mu_buf_fini(&run->members);
    mu_free(run);
}

/* Whether a run has members decides in which list it is. */
static void file_run(struct mu_rdzv_run *run)
{
    struct mu_rdzv_hub *hub = run->hub;
    bool busy = !run->over && run->room.names.count != 0;

    if (busy == run->busy) {
        return;
    }
    run->busy = busy;
    hub->busy_count += busy ? 1 : (size_t)-1;
    hub->idle_count += busy ? (size_t)-1 : 1;
    mu_list_remove(&run->link);
    mu_list_push(busy ? &hub->busy : &hub->idle, &run->link);
    while (hub->idle_count > hub->config.runs_idle_max) {
        struct mu_rdzv_run *oldest = run_of(hub->idle.next);

        delete_keys(oldest, oldest->room.incarnation, NULL);
        log_run(MUSTER_LOG_DEBUG, "RDZV-FORGOTTEN", oldest, "");
        forget_run(oldest); /* It may be this one. */
    }
}

/* --- opening ---------------------------------------------------------------------------------- */

static int check_numbers(const struct mu_rdzv_hub *hub, const struct mu_rdzv_join *join,
                         struct mu_errmsg *reterr_msg)
{
    if (join->nodes_min == 0 || join->nodes_max < join->nodes_min) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a run needs at least 1 node, and at most no less than at least: not %" PRIu32
                      " to %" PRIu32,
                      join->nodes_min, join->nodes_max);
    }
    if (join->nodes_max > hub->config.members_max) {
        return mu_err(reterr_msg, MUSTER_ELIMIT,
                      "%" PRIu32 " nodes are more than the %" PRIu32 " this server takes in a run",
                      join->nodes_max, hub->config.members_max);
    }
    return 0;
}

/* A number above ours was given by a server before this one, which may have left keys of it on the
 * disk: those to come are others. */
static void pass_incarnation(struct mu_rdzv_hub *hub, uint64_t named)
{
    uint64_t distance;

    if (named > hub->incarnation) {
        mu_env_entropy(hub->env, &distance, sizeof(distance));
        hub->incarnation = named + distance % DISTANCE_MAX;
    }
}

/* Who is beyond that is refused. */
static uint32_t count_members_max(const struct mu_rdzv_hub *hub, const struct mu_rdzv_join *join)
{
    uint32_t max = hub->config.members_max;

    if ((join->flags & MU_RDZV_JOIN_SPARES) != 0 && join->spares < max - join->nodes_max) {
        max = join->nodes_max + join->spares;
    }
    return max;
}

/* Initialises the room as the next incarnation. */
static void open_room(struct mu_rdzv_run *run, const struct mu_rdzv_join *join)
{
    struct mu_rdzv_hub *hub = run->hub;
    struct mu_room_config config = {
        .nodes_min = join->nodes_min,
        .nodes_max = join->nodes_max,
        .last_call_ms = join->last_call_ms,
        .upscale_delay_ms = join->upscale_delay_ms,
        .restarts_max = join->restarts_max,
        .losses = (join->flags & MU_RDZV_JOIN_LOSSES) == 0
                      ? MU_LOSSES_DEFAULT
                      : (struct mu_losses){join->losses_max, join->losses_ms},
        .exclude = {join->exclude_after, join->exclude_within_ms,
                    join->exclude_for_ms == 0 ? MU_EXCLUDE_FOR_MS : join->exclude_for_ms},
        .members_max = count_members_max(hub, join),
        .seed = hub->on.wire->config.rpc.seed,
    };
    int err;

    pass_incarnation(hub, join->incarnation);
    hub->incarnation++;
    err = mu_room_init(&run->room, &config, hub->incarnation);
    MU_ASSERT(err == 0); /* The numbers were checked. */
    run->over = false;
    run->formed = false;
    run->promoted = 0;
    run->excluded = 0;
    if (run->lead != NULL) {
        /* No term gives a number twice. */
        run->room.round = run->lead->machine->first_round - MU_RDZV_LEAD_FIRST;
    }
    if (hub->on.keys_outlive) {
        delete_keys(run, hub->incarnation, NULL);
    }
    log_run(MUSTER_LOG_INFO, "RDZV-OPENED", run, "");
    note(run, "the run is open: %" PRIu32 " to %" PRIu32 " nodes", run->room.config.nodes_min,
         run->room.config.nodes_max);
}

/* The next incarnation of a run that is over, or that nobody is in. */
static void reopen_run(struct mu_rdzv_run *run, const struct mu_rdzv_join *join)
{
    MU_ASSERT(!run->busy);
    run->fence = run->room.incarnation;
    delete_keys(run, run->room.incarnation, NULL);
    if (!run->over) {
        mu_room_fini(&run->room);
    }
    open_room(run, join);
}

static int new_run(struct mu_rdzv_hub *hub, const struct mu_rdzv_join *join,
                   struct mu_rdzv_run **ret_run, struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_run *run;

    if (hub->busy_count >= hub->config.runs_max) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "the server has %zu runs, no more are taken",
                      hub->busy_count);
    }
    run = mu_calloc(1, sizeof(*run));
    if (run == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "no memory for another run");
    }
    memcpy(run->id, join->run_id.data, join->run_id.len);
    run->id_len = join->run_id.len;
    if (mu_map_insert(&hub->runs, &run->by_id, mu_span(run->id, run->id_len)) != 0) {
        mu_free(run);
        return mu_err(reterr_msg, MUSTER_ENOMEM, "no memory for another run");
    }
    run->hub = hub;
    run->lead = mu_rdzv_lead_is(hub, join->run_id) ? hub->lead : NULL;
    run->fence = hub->forgotten;
    mu_list_init(&run->dirty);
    mu_list_init(&run->spares);
    mu_heap_init(&run->timeouts);
    mu_timer_init(&run->timer, on_timer);
    mu_buf_init(&run->members, MEMBERS_BYTES_MAX);
    mu_list_push(&hub->idle, &run->link);
    hub->idle_count++;
    open_room(run, join);
    *ret_run = run;
    return 0;
}

/* How many nodes of the last round are left, if no other than the host is lost. */
static uint32_t count_ran(const struct mu_succession *m, bool host_ran)
{
    bool ran = m->base_count > 0 && m->bases[0].term > 0;

    return ran ? m->bases[0].world - host_ran : 0;
}

int mu_rdzv_run_succeed(struct mu_rdzv_lead *lead, const struct mu_rdzv_legacy *legacy,
                        uint64_t first_round, struct mu_rdzv_run **ret_run,
                        struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_hub *hub = lead->hub;
    mu_mono_t now = mu_env_now(hub->env).mono;
    const struct mu_rdzv_join join = {
        .run_id = mu_span_str(lead->run_id),
        .flags = MU_RDZV_JOIN_LOSSES | MU_RDZV_JOIN_SPARES,
        .nodes_min = legacy->nodes_min,
        .nodes_max = legacy->nodes_max,
        .spares = legacy->members_max - legacy->nodes_max,
        .restarts_max = legacy->restarts_max,
        .last_call_ms = legacy->last_call_ms,
        .upscale_delay_ms = legacy->upscale_delay_ms,
        .losses_max = legacy->losses_max,
        .losses_ms = legacy->losses_ms,
        .exclude_after = legacy->exclude_after,
        .exclude_within_ms = legacy->exclude_within_ms,
        .exclude_for_ms = legacy->exclude_for_ms,
    };
    int err = check_numbers(hub, &join, reterr_msg);

    if (err == 0) {
        err = new_run(hub, &join, ret_run, reterr_msg);
    }
    if (err == 0) {
        struct mu_room_legacy past = {
            .round = first_round - MU_RDZV_LEAD_FIRST - 1,
            .restarts = legacy->restarts,
            .losses_until = mu_mono_add_ms(now, legacy->losses_for_ms),
            .expected =
                legacy->members <= legacy->nodes_max ? legacy->members - 1 : legacy->nodes_max,
            .ran = count_ran(lead->machine, legacy->host.len != 0),
            .place.rank = legacy->rank,
        };
        char *name = past.place.name;
        char *topology = past.place.topology;

        (void)mu_span_put_text(&name, legacy->host);
        (void)mu_span_put_text(&topology, legacy->topology);
        (*ret_run)->fence = 0;
        (*ret_run)->room.incarnation = legacy->incarnation;
        pass_incarnation(hub, legacy->incarnation);
        mu_room_succeed(&(*ret_run)->room, now, &past);
        (void)mu_exclusions_decode(&(*ret_run)->room.exclusions, now, legacy->excluded);
        (*ret_run)->excluded = (*ret_run)->room.exclusions.total; /* They were noted before. */
        mu_rdzv_run_touch(*ret_run);
    }
    return err;
}

void mu_rdzv_run_drop(struct mu_rdzv_run *run)
{
    uint64_t forgotten = run->hub->forgotten;
    struct mu_rdzv_hub *hub = run->hub;

    mu_list_remove(&run->dirty);
    file_run(run); /* Nobody is in it any more. */
    forget_run(run);
    hub->forgotten = forgotten; /* It goes on elsewhere. */
}

int mu_rdzv_run_get(struct mu_rdzv_hub *hub, const struct mu_rdzv_join *join,
                    struct mu_rdzv_run **ret_run, struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_run *run = mu_rdzv_run_find(hub, join->run_id);
    int err = check_numbers(hub, join, reterr_msg);

    if (err != 0) {
        return err;
    }
    if (run != NULL && !mu_list_empty(&run->dirty)) {
        /* What happened earlier in this turn may have been its end. */
        mu_list_remove(&run->dirty);
        pump_run(run);
        run = mu_rdzv_run_find(hub, join->run_id);
    }
    if (join->incarnation > INCARNATION_MAX) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "no run has that many incarnations");
    }
    if (join->incarnation != 0 && run != NULL &&
        (join->incarnation <= run->fence ||
         (run->over && join->incarnation <= run->room.incarnation))) {
        return mu_err(reterr_msg, MUSTER_ERDZV_CLOSED,
                      "incarnation %" PRIu64 " of this run is over", join->incarnation);
    }
    if (join->incarnation != 0 && run == NULL && join->incarnation <= hub->forgotten) {
        return mu_err(reterr_msg, MUSTER_ERDZV_CLOSED,
                      "incarnation %" PRIu64 " of this run is over, and the run forgotten",
                      join->incarnation);
    }
    if (run == NULL) {
        return new_run(hub, join, ret_run, reterr_msg);
    }
    if (!run->busy && (run->over || run->room.config.nodes_min != join->nodes_min ||
                       run->room.config.nodes_max != join->nodes_max)) {
        reopen_run(run, join);
    }
    pass_incarnation(hub, join->incarnation);
    *ret_run = run;
    return 0;
}

/* --- what there is to tell -------------------------------------------------------------------- */

struct list_context {
    struct mu_buf *out;
    int err;
};

static void list_member(void *context, const struct mu_room_member *room)
{
    const struct mu_rdzv_member *m = room->owner;
    struct list_context *c = context;
    struct mu_rdzv_member_msg msg = {
        .node = mu_span_str(m->room.name),
        .addr = mu_span_str(m->addr),
        .rank = room->rank,
    };

    if (c->err == 0) {
        c->err = mu_rdzv_member_encode(c->out, &msg);
    }
}

int mu_rdzv_run_members(struct mu_rdzv_run *run, struct mu_span *ret_members)
{
    struct list_context c = {.out = &run->members};

    if (run->members.len == 0) {
        mu_room_each_ranked(&run->room, list_member, &c);
        if (c.err != 0) {
            mu_buf_reset(&run->members);
            return c.err;
        }
    }
    *ret_members = mu_buf_span(&run->members);
    return 0;
}

/* Nobody has asked for these keys, and so nobody holds them: their names were known to nobody. */
static int keep_list(struct mu_rdzv_run *run, struct mu_span members)
{
    struct mu_rdzv_list list = {.len = (uint32_t)members.len};
    int err = 0;

    mu_sha256(list.hash, members);
    for (uint32_t i = 0; members.len != 0 && err == 0; i++) {
        char text[MU_RDZV_LIST_KEY_MAX];
        struct mu_span key = mu_rdzv_list_key(text, run->by_id.key, run->room.incarnation,
                                              run->room.round, &list, i);
        struct mu_span piece = members;

        piece.len = piece.len < MU_RDZV_LIST_PIECE ? piece.len : MU_RDZV_LIST_PIECE;
        err = mu_ks_set(run->hub->on.ks, key, piece, 0);
        members = mu_span_skip(members, piece.len);
    }
    run->list = err == 0 ? list : run->list;
    return err;
}

int mu_rdzv_run_list(struct mu_rdzv_run *run, struct mu_rdzv_list *ret_list)
{
    struct mu_span members;
    int err = run->list.len != 0 ? 0 : mu_rdzv_run_members(run, &members);

    if (err == 0 && run->list.len == 0) {
        err = keep_list(run, members);
    }
    *ret_list = run->list;
    return err;
}

/* Once for each round: what is old goes. */
static void note_round(struct mu_rdzv_run *run, const struct mu_room_notice *notice)
{
    char text[64];

    if (notice->kind == MU_ROOM_ENDED) {
        mu_rdzv_lead_ended(run);
        note_end(run);
        run->list.len = 0;
        mu_buf_reset(&run->members);
        mu_buf_trim(&run->members, 0);
        return;
    }
    if (notice->kind != MU_ROOM_ASSIGNED || (run->formed && run->told == notice->round)) {
        return;
    }
    run->list.len = 0;
    mu_buf_reset(&run->members);
    run->formed = true;
    run->told = notice->round;
    run->hub->rounds++;
    (void)snprintf(text, sizeof(text), "world=%" PRIu32, notice->world);
    log_run(MUSTER_LOG_INFO, "RDZV-ROUND-FORMED", run, text);
    note(run, "round %" PRIu64 " has begun with %" PRIu32 " nodes", notice->round, notice->world);
    mu_rdzv_run_mark(run, MU_STATUS_ROUND, notice->round, notice->world, NULL);
    run->ended_noted = false;
    mu_rdzv_lead_formed(run, notice->round, notice->world);
    if (notice->round >= 2) {
        uint64_t old = notice->round - 2;

        delete_keys(run, notice->incarnation, &old);
    }
}

/* Spares that were promoted are not spare any more: their time to get a rank begins. */
static void note_promoted(struct mu_rdzv_run *run)
{
    if (run->promoted == run->room.promoted) {
        return;
    }
    run->promoted = run->room.promoted;
    MU_LIST_FOREACH_SAFE (it, next, &run->spares) {
        struct mu_rdzv_member *m = MU_CONTAINER_OF(it, struct mu_rdzv_member, spare);

        if (m->room.state == MU_ROOM_SPARE) {
            continue;
        }
        mu_list_remove(&m->spare);
        if (m->room.state != MU_ROOM_RUNNING) {
            mu_rdzv_member_arm(m);
        }
    }
}

/* Those who look at the server see which node was excluded last, and why. */
static void note_excluded(struct mu_rdzv_run *run)
{
    const struct mu_exclusions *x = &run->room.exclusions;
    const struct mu_exclusion *last = NULL;
    char text[2 * MU_STATUS_EVENT_MAX];

    if (run->excluded == x->total) {
        return;
    }
    run->hub->exclusions += x->total - run->excluded;
    run->excluded = x->total;
    mu_rdzv_lead_changed(run);
    for (uint32_t i = 0; i < x->count; i++) {
        if (x->all[i].at.ns != 0 && (last == NULL || mu_mono_before(last->at, x->all[i].at))) {
            last = &x->all[i];
        }
    }
    if (last == NULL) {
        return; /* It was lifted again. */
    }
    (void)snprintf(text, sizeof(text), "%.100s is excluded for %" PRIu64 " s: %.200s", last->node,
                   mu_mono_since(last->at, last->until) / MU_NS_PER_S, last->reason);
    note(run, "%s", text);
    log_run(MUSTER_LOG_WARN, "RDZV-EXCLUDED", run, text);
    mu_rdzv_run_mark(run, MU_STATUS_LEFT, run->room.round, 1, last->node);
}

/* When the run must be looked at again. */
static mu_mono_t next_look(const struct mu_rdzv_run *run)
{
    mu_mono_t at = mu_mono_min(mu_room_deadline(&run->room), mu_heap_deadline(&run->timeouts));

    if (run->room.undecided) {
        at = mu_mono_min(at, mu_mono_add_ms(mu_env_now(run->hub->env).mono, LOOK_MS));
    }
    return at;
}

static void pump_run(struct mu_rdzv_run *run)
{
    struct mu_room_member *member;
    struct mu_room_notice notice;

    if (!run->over) {
        note_excluded(run);
    }
    while (!run->over && mu_room_next_notice(&run->room, &member, &notice)) {
        note_round(run, &notice);
        mu_rdzv_member_tell(member->owner, &notice);
    }
    note_promoted(run);
    if (!run->over && mu_room_done(&run->room)) {
        char why[MU_RDZV_WHY_MAX];

        mu_room_explain(&run->room, why, sizeof(why));
        log_run(MUSTER_LOG_INFO, "RDZV-OVER", run, why);
        note(run, "%s", why);
        if (run->room.state == MU_ROOM_IS_FAILED && !run->ended_noted) { /* of its last round */
            mu_rdzv_run_mark(run, MU_STATUS_FAILED, run->room.last_end.round, 1,
                             run->room.last_end.who);
        }
        mu_rdzv_run_mark(run, MU_STATUS_OVER, run->room.round, 0, NULL);
        mu_buf_fini(&run->members);
        mu_room_fini(&run->room);
        run->over = true;
    }
    mu_env_timer_arm(run->hub->env, &run->timer, run->over ? MU_MONO_NEVER : next_look(run));
    file_run(run);
}

void mu_rdzv_hub_pump(struct mu_rdzv_hub *hub)
{
    struct mu_list *it;

    while ((it = mu_list_pop(&hub->dirty)) != NULL) {
        pump_run(MU_CONTAINER_OF(it, struct mu_rdzv_run, dirty));
    }
    if (!mu_list_empty(&hub->starved) && !mu_heap_contains(&hub->starved_timer.node)) {
        mu_env_timer_arm(hub->env, &hub->starved_timer,
                         mu_mono_add_ms(mu_env_now(hub->env).mono, STARVED_MS));
    }
}

/* --- time ------------------------------------------------------------------------------------- */

/* Members that got no rank in time. What was missing is the same for all of them. */
static void expire_members(struct mu_rdzv_run *run, mu_mono_t now)
{
    struct mu_heap_node *node = mu_heap_pop_due(&run->timeouts, now);
    char words[MU_RDZV_WHY_MAX - 40];
    char why[MU_RDZV_WHY_MAX];

    if (node == NULL) {
        return;
    }
    mu_room_explain(&run->room, words, sizeof(words));
    do {
        struct mu_rdzv_member *m = MU_CONTAINER_OF(node, struct mu_rdzv_member, timeout);

        if (m->room.state != MU_ROOM_RUNNING) { /* Else it has one, and is about to be told. */
            (void)snprintf(why, sizeof(why), "timed out after %g s: %s",
                           (double)m->join_timeout_ms / 1000, words);
            mu_rdzv_run_mark(run, MU_STATUS_LEFT, run->room.round, 1, m->room.name);
            mu_room_leave(&run->room, now, &m->room);
            mu_rdzv_member_dismiss(m, MUSTER_ERDZV_TIMEOUT, why);
        }
    } while ((node = mu_heap_pop_due(&run->timeouts, now)) != NULL);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_rdzv_run *run = MU_CONTAINER_OF(timer, struct mu_rdzv_run, timer);
    struct mu_rdzv_hub *hub = run->hub;
    mu_mono_t now = mu_env_now(hub->env).mono;

    mu_rpc_server_feel_pulse(hub->on.wire);
    if (!run->over) {
        /* A round that can be formed in this moment is better than a timeout. */
        mu_rdzv_run_doubt(run);
        if (run->room.undecided && mu_rdzv_run_heard_all(run)) {
            mu_room_be_sure(&run->room, now);
        }
        mu_room_tick(&run->room, now);
        expire_members(run, now);
    }
    mu_rdzv_run_touch(run);
    mu_rpc_server_end_turn(hub->on.wire);
}

static void on_starved_timer(struct mu_timer *timer)
{
    struct mu_rdzv_hub *hub = MU_CONTAINER_OF(timer, struct mu_rdzv_hub, starved_timer);
    struct mu_list again;
    struct mu_list *it;

    mu_list_init(&again);
    while ((it = mu_list_pop(&hub->starved)) != NULL) {
        mu_list_push(&again, it);
    }
    while ((it = mu_list_pop(&again)) != NULL) {
        mu_rdzv_member_push(MU_CONTAINER_OF(it, struct mu_rdzv_member, starved));
    }
    mu_rpc_server_end_turn(hub->on.wire);
}

/* --- life ------------------------------------------------------------------------------------- */

void mu_rdzv_hub_init(struct mu_rdzv_hub *hub, const struct mu_rdzv_hub_config *config,
                      const struct mu_rdzv_hub_base *on)
{
    struct mu_now now = mu_env_now(on->wire->env);

    *hub = (struct mu_rdzv_hub){
        .env = on->wire->env,
        .config = *config,
        .on = *on,
        .started = now.mono,
        .incarnation = now.wall.ns / 1000,
    };
    mu_map_init(&hub->runs, on->wire->config.rpc.seed);
    mu_list_init(&hub->busy);
    mu_list_init(&hub->idle);
    mu_list_init(&hub->dirty);
    mu_list_init(&hub->starved);
    mu_timer_init(&hub->starved_timer, on_starved_timer);
}

void mu_rdzv_hub_fini(struct mu_rdzv_hub *hub)
{
    mu_rdzv_hub_pump(hub); /* Whose members went last is filed among the idle. */
    MU_ASSERT(hub->busy_count == 0);
    while (!mu_list_empty(&hub->idle)) {
        forget_run(run_of(hub->idle.next));
    }
    mu_env_timer_arm(hub->env, &hub->starved_timer, MU_MONO_NEVER);
    mu_map_fini(&hub->runs);
}

void mu_rdzv_hub_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session, size_t *joins,
                       const struct mu_rpc_event *event)
{
    char quoted[128];
    char text[200];

    if (mu_span_eq(event->method, MU_SPAN_LIT(MU_RDZV_METHOD_JOIN))) {
        mu_rdzv_member_start(hub, session, joins, event);
    } else if (mu_span_eq(event->method, MU_SPAN_LIT(MU_RDZV_METHOD_STATUS))) {
        mu_rdzv_status_start(hub, session, event);
    } else if (mu_span_eq(event->method, MU_SPAN_LIT(MU_RDZV_METHOD_EXPLAIN))) {
        mu_rdzv_explain_start(hub, session, event);
    } else if (mu_span_eq(event->method, MU_SPAN_LIT(MU_RDZV_METHOD_PROMISE))) {
        mu_rdzv_promise_start(hub, session, event);
    } else if (mu_span_eq(event->method, MU_SPAN_LIT(MU_RDZV_METHOD_HOST))) {
        mu_rdzv_host_start(hub, session, event);
    } else if (mu_span_eq(event->method, MU_SPAN_LIT(MU_RDZV_METHOD_CLOSE))) {
        mu_rdzv_close_start(hub, session, event);
    } else if (mu_span_eq(event->method, MU_SPAN_LIT(MU_RDZV_METHOD_EXCLUDE))) {
        mu_rdzv_exclude_start(hub, session, event);
    } else {
        (void)snprintf(text, sizeof(text), "no such method: %s",
                       mu_span_quote(quoted, sizeof(quoted), event->method));
        mu_rpc_session_reply(session, event->id, MUSTER_ENOMETHOD, mu_span_str(text));
    }
}
