#include "service/rdzv/succession.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"
#include "service/server/server.h"

#define INSIST_MS 6000 /* until the only endpoint hosts without a majority */
#define TURN_MS   3000 /* for a new host to take our join */
#define CHECK_MS  5000 /* for the host's answer, which is not waited for */

static mu_mono_t mono(const struct mu_rdzv_succession *s)
{
    return mu_env_now(s->n->base.env).mono;
}

static bool is_hosting(const struct mu_rdzv_succession *s)
{
    return s->machine.state == MU_SUCCESSION_HOSTING;
}

/* --- lines ------------------------------------------------------------------------------------ */

void mu_rdzv_line_free(struct mu_rdzv_line *l)
{
    mu_free(l->heirs);
    *l = (struct mu_rdzv_line){0};
}

int mu_rdzv_line_make(struct mu_rdzv_line *l, struct mu_span bytes)
{
    struct mu_span rest = bytes;
    struct mu_rdzv_heir heir;
    uint32_t count = 0;
    size_t size = 0;
    char *at;

    while (mu_rdzv_heir_next(&rest, &heir) == 0) {
        size += heir.node.len + heir.addr.len + 2;
        count++;
    }
    l->heirs = mu_malloc(count * sizeof(*l->heirs) + size + 1);
    if (l->heirs == NULL) {
        return MUSTER_ENOMEM;
    }
    at = (char *)(l->heirs + count);
    rest = bytes;
    for (uint32_t i = 0; i < count && mu_rdzv_heir_next(&rest, &heir) == 0; i++) {
        l->heirs[i].name = mu_span_put_text(&at, heir.node);
        l->heirs[i].address = mu_span_put_text(&at, heir.addr);
    }
    l->line = (struct mu_succession_line){.count = count, .heirs = l->heirs};
    return 0;
}

/*
 * A node for people: its host, as the address has it, or its whole name where all are on one host.
 * Lent until the line changes, or in `text`.
 */
static const char *name_of(const struct mu_rdzv_succession *s, const char *address, char *text)
{
    struct mu_errmsg msg;
    struct mu_addr addr;

    if (mu_rdzv_endpoint_parse(address, MU_RDZV_PORT, &addr, &msg) == 0 &&
        !mu_rdzv_is_loopback(addr.host)) {
        (void)snprintf(text, MU_SUCCESSION_NAME_MAX + 1, "%s", addr.host);
        return text;
    }
    for (uint32_t i = 0; i < s->line.line.count; i++) {
        const struct mu_succession_heir *heir = &s->line.heirs[i];

        if (strcmp(heir->address, address) == 0 && heir->name[0] != '\0') {
            return heir->name;
        }
    }
    return address;
}

/* A line that finds no memory is not taken: the one before it is better than none. */
static void take_line(struct mu_rdzv_succession *s, const struct mu_rdzv_notice *notice)
{
    struct mu_rdzv_line line;

    if (notice->line.len != 0 && mu_rdzv_line_make(&line, notice->line) == 0) {
        mu_succession_set_line(&s->machine, &line.line);
        mu_rdzv_line_free(&s->line);
        s->line = line;
    }
}

static void take_legacy(struct mu_rdzv_succession *s, struct mu_span bytes)
{
    struct mu_rdzv_legacy legacy;
    struct mu_buf copy;

    mu_buf_init(&copy, MU_RDZV_LEGACY_MAX);
    if (bytes.len == 0 || mu_rdzv_legacy_decode(bytes, &legacy) != 0 ||
        mu_buf_append(&copy, bytes) != 0 ||
        !mu_succession_set_legacy(&s->machine,
                                  &(struct mu_succession_legacy){.term = legacy.term,
                                                                 .round = legacy.round,
                                                                 .version = legacy.version,
                                                                 .bytes = mu_buf_span(&copy)})) {
        mu_buf_fini(&copy);
        return;
    }
    mu_buf_fini(&s->legacy);
    s->legacy = copy;
}

/* --- what the machine wants done -------------------------------------------------------------- */

/* Says who hosts now, and whom it succeeds. */
static void tell_host(struct mu_rdzv_succession *s, uint64_t term, const char *address)
{
    struct mu_rdzv_handler *h = &s->n->base;
    bool ours = strcmp(address, s->address) == 0;
    char text[MU_SUCCESSION_NAME_MAX + 1];
    const char *name = name_of(s, address, text);

    if (s->lost_name[0] != '\0' && strcmp(s->lost_name, name) == 0) {
        mu_rdzv_handler_record(h, MU_RDZV_RECORD_RUNNING, -1, "muster.host",
                               "%.120s is back, and hosts the rendezvous (term %" PRIu64 ")", name,
                               term);
    } else if (s->lost_name[0] != '\0' && s->gave_way) {
        mu_rdzv_handler_record(h, MU_RDZV_RECORD_RUNNING, -1, "muster.host",
                               "%.120s hosts the rendezvous now (term %" PRIu64
                               "), in the place of %.120s",
                               name, term, s->lost_name);
    } else if (s->lost_name[0] != '\0') {
        mu_rdzv_handler_record(h, MU_RDZV_RECORD_RUNNING, -1, "muster.host",
                               "%.120s hosts the rendezvous now (term %" PRIu64 "): %.120s is gone",
                               name, term, s->lost_name);
    } else if (term > 1 || !ours || s->endpoints.line.count > 1) {
        mu_rdzv_handler_record(h, MU_RDZV_RECORD_RUNNING, -1, "muster.host",
                               "%.120s hosts the rendezvous (term %" PRIu64 ")", name, term);
    }
    s->lost_name[0] = '\0';
}

/* Joins that come here wait: it is not known who hosts. Two nodes that took each other for the host
 * would otherwise send everybody to and fro between them. */
static void let_wait(struct mu_rdzv_succession *s)
{
    if (s->lead.hub != NULL) {
        mu_rdzv_lead_moved(&s->lead, 0, "");
    }
}

static void follow(struct mu_rdzv_succession *s, uint64_t term, const char *address)
{
    struct mu_rdzv_muster *n = s->n;
    struct mu_errmsg msg;

    let_wait(s); /* Nobody is sent there before it has taken our own join. */
    if (mu_rdzv_endpoint_parse(address, MU_RDZV_PORT, &n->endpoint, &msg) != 0) {
        mu_succession_lost(&s->machine, mono(s));
        return;
    }
    tell_host(s, term, address);
    s->turn_by = mu_mono_add_ms(mono(s), TURN_MS);
    mu_rdzv_muster_connect(n);
}

/*
 * Whether the legacy is of the host whose rounds we go on from. One of another life of the run, as
 * there may be where endpoints were started anew, would make us give a number twice; without one
 * the run is begun anew, as by any server that knows nothing of it. We need not have been in a
 * round ourselves: the electorates that elected us know which life it is.
 */
static bool is_heir(const struct mu_rdzv_succession *s)
{
    const struct mu_succession *m = &s->machine;
    struct mu_rdzv_legacy legacy;
    const struct mu_electorate *last = NULL;
    uint64_t term;

    for (uint32_t i = 0; i < m->base_count; i++) {
        last = last == NULL || m->bases[i].term > last->term ? &m->bases[i] : last;
    }
    term = last == NULL ? 0 : last->term;
    return term != 0 && mu_rdzv_legacy_decode(mu_buf_span(&s->heritage), &legacy) == 0 &&
           legacy.incarnation == last->incarnation &&
           (legacy.term == term || legacy.term == m->view.term) &&
           legacy.round + MU_RDZV_LEAD_FIRST < m->first_round;
}

static void host(struct mu_rdzv_succession *s, uint64_t term)
{
    struct mu_rdzv_muster *n = s->n;
    bool runs = n->member.user == MU_MEMBER_IN || n->member.user == MU_MEMBER_BETWEEN;
    mu_mono_t own = mu_mono_add_ms(mono(s), runs ? n->config.dead_ms : 0);
    const struct mu_rdzv_heritage heritage = {
        .legacy = is_heir(s) ? mu_buf_span(&s->heritage) : (struct mu_span){0},
        .first_round = s->machine.first_round,
        .hold = runs         ? own
                : s->certain ? (mu_mono_t){0}
                             : s->stopped,
    };
    struct mu_errmsg msg = {{0}};

    if (s->lead.hub == NULL || mu_rdzv_lead_host(&s->lead, &heritage, &msg) != 0) {
        /* Without a server, or memory for it, others must. */
        mu_succession_left(&s->machine);
        s->started = false;
        return;
    }
    n->base.hosting = true;
    (void)mu_rdzv_endpoint_parse(s->address, MU_RDZV_PORT, &n->endpoint, &msg);
    tell_host(s, term, s->address);
    s->turn_by = MU_MONO_NEVER;
    mu_rdzv_muster_connect(n);
}

static void step_down(struct mu_rdzv_succession *s, uint64_t term, const char *address)
{
    struct mu_rdzv_muster *n = s->n;

    n->base.hosting = false;
    n->member.incarnation = 0;
    mu_rdzv_lead_moved(&s->lead, term, address);
    mu_rdzv_muster_disconnect(n, "the others have gone on with another host");
}

static void log_action(const struct mu_rdzv_succession *s, const struct mu_succession_action *a)
{
    static const char *const words[] = {
        [MU_SUCCESSION_ASK] = "ask",
        [MU_SUCCESSION_HANG_UP] = "hang up",
        [MU_SUCCESSION_FOLLOW] = "follow",
        [MU_SUCCESSION_CHECK] = "check",
        [MU_SUCCESSION_SAY_READY] = "be ready",
        [MU_SUCCESSION_HOST] = "host",
        [MU_SUCCESSION_COMMIT] = "commit",
        [MU_SUCCESSION_STEP_DOWN] = "step down",
        [MU_SUCCESSION_PROBE] = "probe",
    };

    if (mu_log_enabled(MUSTER_LOG_DEBUG)) {
        mu_log(MUSTER_LOG_DEBUG, "RDZV-SUCCESSION",
               "node=\"%.80s\" does=\"%s\" term=%" PRIu64 " round=%" PRIu64
               " step=%d at=\"%.100s\" promised=%" PRIu64,
               s->n->base.node, words[a->type], a->term, a->round, (int)a->step, a->address,
               s->machine.promised);
    }
}

static void act(struct mu_rdzv_succession *s, const struct mu_succession_action *a)
{
    uint64_t id;

    log_action(s, a);
    switch (a->type) {
    case MU_SUCCESSION_ASK:
        mu_rdzv_caller_call(&s->asks[a->call], a->address);
        break;
    case MU_SUCCESSION_HANG_UP:
        mu_rdzv_caller_hang_up(&s->asks[a->call]);
        break;
    case MU_SUCCESSION_FOLLOW:
        if (s->machine.state == MU_SUCCESSION_TURNING && s->machine.host_term == a->term &&
            strcmp(s->machine.host, a->address) == 0) {
            follow(s, a->term, a->address);
        }
        break;
    case MU_SUCCESSION_CHECK:
        s->checks = mono(s);
        if (s->n->client == MU_RDZV_CLIENT_LIVE && s->n->rpc.ready) {
            (void)mu_rdzv_muster_ask(s->n, MU_SPAN_LIT(MU_RDZV_METHOD_EXPLAIN), CHECK_MS, &id);
            mu_rpc_client_run_soon(&s->n->rpc);
        }
        break;
    case MU_SUCCESSION_SAY_READY:
        s->ready_owed = true;
        s->ready =
            (struct mu_rdzv_ready){.round = a->round, .term = a->term, .step = (uint32_t)a->step};
        if (s->n->client == MU_RDZV_CLIENT_LIVE) {
            mu_rpc_client_run_soon(&s->n->rpc);
        }
        break;
    case MU_SUCCESSION_HOST:
        host(s, a->term);
        break;
    case MU_SUCCESSION_COMMIT:
        mu_rdzv_lead_commit(&s->lead, a->round);
        break;
    case MU_SUCCESSION_STEP_DOWN:
        step_down(s, a->term, a->address);
        break;
    case MU_SUCCESSION_PROBE:
        if (s->probe.client == MU_RDZV_CLIENT_NONE) {
            mu_rdzv_caller_call(&s->probe, a->address);
        }
        break;
    }
}

static bool is_queued(const struct mu_rdzv_succession *s, enum mu_succession_action_type type)
{
    for (uint32_t i = 0; i < s->queued; i++) {
        if (s->queue[i].type == type) {
            return true;
        }
    }
    return false;
}

static void unqueue(struct mu_rdzv_succession *s, enum mu_succession_action_type type)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < s->queued; i++) {
        if (s->queue[i].type != type) {
            s->queue[kept++] = s->queue[i];
        }
    }
    s->queued = kept;
}

/* Takes what there is to do, after every input: the machine keeps little, and what it lends with it
 * is another's. */
static void take_actions(struct mu_rdzv_succession *s)
{
    struct mu_succession_action action;

    while (mu_succession_next(&s->machine, &action)) {
        if (action.type == MU_SUCCESSION_HOST) {
            mu_buf_reset(&s->heritage);
            (void)mu_buf_append(&s->heritage, s->machine.heritage.bytes);
        }
        if (action.type == MU_SUCCESSION_FOLLOW) {
            s->turn_by = mu_mono_add_ms(mono(s), TURN_MS); /* not from when it turned before */
        }
        if (action.type == MU_SUCCESSION_SAY_READY) {
            /* The host asks for one step at a time: it waits for none that came before. After we
             * were away, there may have been many. */
            unqueue(s, MU_SUCCESSION_SAY_READY);
        }
        if (action.type != MU_SUCCESSION_CHECK || !is_queued(s, MU_SUCCESSION_CHECK)) {
            MU_ASSERT(s->queued < MU_RDZV_SUCCESSION_QUEUE);
            s->queue[s->queued++] = action;
        }
    }
}

/* False: the machine wants nothing. */
static bool do_next(struct mu_rdzv_succession *s)
{
    struct mu_succession_prepare prepare;
    struct mu_succession_answer answer;
    struct mu_succession_action action;
    struct mu_succession_asker *asker;
    struct mu_succession_peer *peer;

    take_actions(s);
    while (mu_succession_next_prepare(&s->machine, &peer, &prepare)) {
        mu_rdzv_lead_prepare(&s->lead, peer, &prepare);
    }
    while (mu_succession_next_answer(&s->machine, &asker, &answer)) {
        mu_rdzv_lead_answer(asker, &answer);
    }
    take_actions(s);
    if (s->n->freeing || s->queued == 0) {
        return false;
    }
    action = s->queue[0];
    memmove(&s->queue[0], &s->queue[1], --s->queued * sizeof(s->queue[0]));
    act(s, &action);
    return true;
}

/* Whether we wait for a host to take our join. */
static bool is_turning(const struct mu_rdzv_succession *s)
{
    const struct mu_member *m = &s->n->member;

    return (s->machine.state == MU_SUCCESSION_TURNING ||
            s->machine.state == MU_SUCCESSION_FOLLOWING) &&
           m->user == MU_MEMBER_JOINING &&
           (m->call == MU_MEMBER_CALL_NONE || m->call == MU_MEMBER_CALL_ASKED);
}

static void rearm(struct mu_rdzv_succession *s)
{
    mu_mono_t at = mu_succession_deadline(&s->machine);

    if (is_turning(s)) {
        at = mu_mono_min(at, s->turn_by);
    }
    at = mu_mono_min(at, s->insist_at);
    mu_env_timer_arm(s->n->base.env, &s->timer, s->n->freeing ? MU_MONO_NEVER : at);
}

static void run(struct mu_rdzv_succession *s)
{
    while (do_next(s)) {
    }
    rearm(s);
}

void mu_rdzv_succession_wake(struct mu_rdzv_succession *s)
{
    take_actions(s);
    if (s->n->freeing) {
        s->queued = 0; /* Nobody counts on us any more. */
    } else {
        mu_env_timer_arm(s->n->base.env, &s->timer, mono(s));
    }
}

static void lose(struct mu_rdzv_succession *s, bool certain);

/*
 * The agent at the only endpoint was started anew, and others know more of the run than it does,
 * but are no majority without the one before it: nobody else can host. Another host would have
 * probed us by now.
 */
static void insist(struct mu_rdzv_succession *s)
{
    bool stands = s->started && s->index != MU_SUCCESSION_NO_RANK && s->endpoints.line.count == 1 &&
                  !is_hosting(s) && s->machine.state != MU_SUCCESSION_FOLLOWING &&
                  s->machine.state != MU_SUCCESSION_TURNING;

    if (!stands) {
        s->insist_at = MU_MONO_NEVER;
    } else if (s->insist_at.ns == MU_MONO_NEVER.ns) {
        s->insist_at = mu_mono_add_ms(mono(s), INSIST_MS);
    } else if (mu_mono_reached(s->insist_at, mono(s))) {
        s->insist_at = MU_MONO_NEVER;
        mu_succession_insist(&s->machine, mono(s));
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_rdzv_succession *s = MU_CONTAINER_OF(timer, struct mu_rdzv_succession, timer);

    if (is_turning(s) && mu_mono_reached(s->turn_by, mono(s))) {
        lose(s, false);
    }
    insist(s);
    mu_succession_tick(&s->machine, mono(s));
    run(s);
    if (s->lead.hub != NULL) {
        mu_rdzv_lead_end_turn(&s->lead);
    }
}

static void on_lead_wake(void *context)
{
    mu_rdzv_succession_wake(context);
}

static void on_asked(void *context, const struct mu_rdzv_promise *promise)
{
    struct mu_rdzv_succession *s = context;
    mu_mono_t stopped = mu_mono_add_ms(mono(s), promise->stopped_in_ms);

    if (promise->stopped_in_ms == 0) {
        s->certain = s->certain || promise->lost.len != 0;
    } else if (mu_mono_before(s->stopped, stopped)) {
        s->stopped = stopped;
    }
}

void mu_rdzv_succession_listen(struct mu_rdzv_succession *s)
{
    s->lead.wake = on_lead_wake;
    s->lead.asked = on_asked;
    s->lead.context = s;
    mu_timer_init(&s->timer, on_timer);
}

/* --- the session with the host ---------------------------------------------------------------- */

void mu_rdzv_succession_start(struct mu_rdzv_succession *s)
{
    if (!s->started) {
        s->started = true;
        mu_succession_start(&s->machine, mono(s), &s->endpoints.line, s->index);
        if (s->index != MU_SUCCESSION_NO_RANK && s->endpoints.line.count == 1) {
            run(s); /* It hosts from now on. */
        }
        mu_rdzv_succession_wake(s);
    }
}

static void lose(struct mu_rdzv_succession *s, bool certain)
{
    struct mu_rdzv_muster *n = s->n;
    char text[MU_SUCCESSION_NAME_MAX + 1];
    struct mu_errmsg why;

    s->lost = true;
    s->gave_way = false;
    if (s->machine.state == MU_SUCCESSION_FOLLOWING) {
        s->certain = certain;
        s->stopped = mu_mono_add_ms(mu_rpc_last_heard(&n->rpc.rpc), mu_rpc_kept_ms(&n->rpc.rpc));
        (void)snprintf(s->lost_name, sizeof(s->lost_name), "%s", name_of(s, s->machine.host, text));
    }
    (void)snprintf(s->lost_addr, sizeof(s->lost_addr), "%s", s->machine.host);
    s->checks = MU_MONO_NEVER;
    let_wait(s);
    (void)mu_err(&why, 0, "%.120s, which hosts the rendezvous, is gone", s->lost_name);
    mu_rdzv_muster_disconnect(n, why.text);
    mu_rdzv_succession_joins(s);
}

bool mu_rdzv_succession_trouble(struct mu_rdzv_succession *s, int status, bool was_open)
{
    bool refused = !was_open && status == -ECONNREFUSED;
    bool silent = was_open && status == MUSTER_ETIMEDOUT;

    if ((!refused && !silent) || (s->machine.state != MU_SUCCESSION_FOLLOWING &&
                                  s->machine.state != MU_SUCCESSION_TURNING)) {
        return false;
    }
    if (silent && s->n->member.user == MU_MEMBER_IN && s->n->stays) {
        return false; /* It needs no other round, but the end of this one. */
    }
    if (s->endpoints.line.count == 1 && s->line.line.count <= 1) {
        /* No round was formed, so nobody could succeed: we wait for the host, or are it. */
        (void)snprintf(s->lost_addr, sizeof(s->lost_addr), "%s", s->machine.host);
        return refused && s->n->member.user == MU_MEMBER_JOINING &&
               mu_rdzv_succession_take_endpoint(s);
    }
    lose(s, refused);
    return true;
}

/* Whether more than half of those who ran could be found without the host. */
static bool has_majority(const struct mu_rdzv_succession *s)
{
    for (uint32_t i = 0; i < s->machine.view.count; i++) {
        const struct mu_electorate *e = &s->machine.view.may[i];

        if (e->rank != MU_SUCCESSION_NO_RANK && e->world > 2) {
            return true;
        }
    }
    return false;
}

void mu_rdzv_succession_joins(struct mu_rdzv_succession *s)
{
    s->turn_by = mu_mono_add_ms(mono(s), TURN_MS);
    if (s->lost && s->n->member.user == MU_MEMBER_JOINING) {
        s->lost = false;
        if (s->certain && !has_majority(s) && mu_rdzv_succession_take_endpoint(s)) {
            return;
        }
        mu_succession_lost(&s->machine, mono(s));
    }
    mu_rdzv_succession_wake(s);
}

void mu_rdzv_succession_turned(struct mu_rdzv_succession *s)
{
    struct mu_rdzv_muster *n = s->n;
    struct mu_buf out;

    if (s->ready_owed && n->client == MU_RDZV_CLIENT_LIVE && n->rpc.ready && n->call != 0) {
        mu_buf_init(&out, 64);
        s->ready_owed = mu_rdzv_ready_encode(&out, &s->ready) != 0 ||
                        mu_rpc_client_item(&n->rpc, n->call, mu_buf_span(&out)) != 0;
        mu_buf_fini(&out);
    }
    if (s->checks.ns != MU_MONO_NEVER.ns && n->client == MU_RDZV_CLIENT_LIVE &&
        mu_rpc_client_linked(&n->rpc) &&
        mu_mono_before(s->checks, mu_rpc_last_heard(&n->rpc.rpc))) {
        s->checks = MU_MONO_NEVER;
        mu_succession_heard(&s->machine, mono(s));
        mu_rdzv_succession_wake(s);
    }
}

static void be_entered(struct mu_rdzv_succession *s, const struct mu_rdzv_notice *notice)
{
    if (notice->term == 0) {
        /* A server that is no node of the run, or an old one: nobody succeeds it. */
        if (s->started && !is_hosting(s)) {
            mu_succession_left(&s->machine);
            s->started = false;
        }
    } else if (notice->term < s->machine.promised) {
        lose(s, false); /* Only an ask can tell which of us is right. */
        s->gave_way = true;
    } else {
        mu_rdzv_succession_start(s);
        take_line(s, notice);
        take_legacy(s, notice->legacy);
        mu_succession_followed(&s->machine, mono(s), notice->term, s->n->address);
        s->lost = false;
        s->lost_name[0] = '\0';
        if (s->lead.hub != NULL && !is_hosting(s)) {
            mu_rdzv_lead_moved(&s->lead, notice->term, s->n->address);
        }
    }
    mu_rdzv_succession_wake(s);
}

static void be_prepared(struct mu_rdzv_succession *s, const struct mu_rdzv_notice *notice)
{
    struct mu_succession_prepare prepare = {
        .term = notice->term,
        .step = (enum mu_succession_step)notice->step,
        .round = {.term = notice->term,
                  .round = notice->round,
                  .world = notice->world,
                  .rank = notice->rank,
                  .incarnation = notice->incarnation},
        .base_count = notice->base_count,
    };

    for (uint32_t i = 0; i < notice->base_count; i++) {
        prepare.bases[i] = (struct mu_electorate){.term = notice->bases[i].term,
                                                  .round = notice->bases[i].round,
                                                  .world = notice->bases[i].world,
                                                  .rank = MU_SUCCESSION_NO_RANK,
                                                  .incarnation = notice->bases[i].incarnation};
    }
    take_line(s, notice);
    take_legacy(s, notice->legacy);
    mu_succession_prepare(&s->machine, mono(s), &prepare);
    mu_rdzv_succession_wake(s);
}

/* Another one hosts the run. */
static void be_moved(struct mu_rdzv_succession *s, const struct mu_rdzv_notice *notice)
{
    struct mu_span rest = notice->line;
    struct mu_rdzv_heir heir;
    char address[MU_RDZV_NAME_LEN_MAX + 1];

    if (mu_rdzv_heir_next(&rest, &heir) != 0) {
        return;
    }
    (void)snprintf(address, sizeof(address), "%.*s", (int)heir.addr.len,
                   (const char *)heir.addr.data);
    let_wait(s);
    mu_rdzv_muster_disconnect(s->n, "another node hosts the rendezvous now");
    mu_rdzv_succession_start(s);
    mu_succession_lost(&s->machine, mono(s));
    mu_succession_better(&s->machine, mono(s),
                         &(struct mu_succession_probe){.term = notice->term, .address = address});
    mu_rdzv_succession_wake(s);
}

bool mu_rdzv_succession_notice(struct mu_rdzv_succession *s, const struct mu_rdzv_notice *notice)
{
    switch (notice->kind) {
    case MU_RDZV_NOTICE_ENTERED:
        if (notice->place == MU_RDZV_PLACE_RUNNING) {
            take_line(s, notice); /* It goes on; what it must leave to others has changed. */
            take_legacy(s, notice->legacy);
            return true;
        }
        be_entered(s, notice);
        break;
    case MU_RDZV_NOTICE_ASSIGNED:
        mu_succession_assigned(&s->machine, s->machine.host_term,
                               notice->round + MU_RDZV_LEAD_FIRST);
        break;
    case MU_RDZV_NOTICE_PREPARE:
        be_prepared(s, notice);
        return true;
    case MU_RDZV_NOTICE_MOVED:
        be_moved(s, notice);
        return true;
    case MU_RDZV_NOTICE_ENDED:
    case MU_RDZV_NOTICE_WAITERS:
        break;
    }
    return false;
}

bool mu_rdzv_succession_forgotten(struct mu_rdzv_succession *s)
{
    if (s->machine.state != MU_SUCCESSION_FOLLOWING && s->machine.state != MU_SUCCESSION_TURNING) {
        return false;
    }
    lose(s, false);
    s->gave_way = true;
    return true;
}

bool mu_rdzv_succession_refused(struct mu_rdzv_succession *s)
{
    bool first = !s->plain && !s->started;

    s->plain = s->plain || first;
    return first;
}

void mu_rdzv_succession_left(struct mu_rdzv_succession *s)
{
    if (s->started && !is_hosting(s)) {
        mu_rdzv_succession_hang_up(s);
        mu_succession_left(&s->machine);
        s->started = false;
        mu_rdzv_succession_wake(s);
    }
}

bool mu_rdzv_succession_explain(const struct mu_rdzv_succession *s, char *text, size_t cap)
{
    text[0] = '\0';
    if (s->started && s->machine.state != MU_SUCCESSION_FOLLOWING && !is_hosting(s)) {
        mu_succession_explain(&s->machine, text, cap);
    }
    return text[0] != '\0';
}
