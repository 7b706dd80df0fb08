/* The status of a store server, for the status page and for Prometheus. */
#include <inttypes.h>
#include <stdio.h>

#include <muster/version.h>

#include "codec/agent/failure.h"
#include "service/server/rdzv_hub_internal.h"
#include "service/server/server_internal.h"

/* --- the clock -------------------------------------------------------------------------------- */

void mu_store_clock_start(struct mu_store_session *session, const struct mu_rpc_event *event)
{
    uint8_t now[8];

    mu_put_u64(now, mu_env_now(session->server->env).wall.ns);
    mu_rpc_session_reply(&session->base, event->id, 0, mu_span(now, sizeof(now)));
}

/* --- JSON ------------------------------------------------------------------------------------- */

static const char *room_state(const struct mu_rdzv_run *run)
{
    static const char *const names[] = {
        [MU_ROOM_IS_GATHERING] = "gathering",
        [MU_ROOM_IS_RUNNING] = "running",
        [MU_ROOM_IS_CLOSED] = "closed",
        [MU_ROOM_IS_FAILED] = "failed",
    };

    return names[run->room.state];
}

static const struct {
    enum mu_room_member_state state;
    const char *name;
} places[] = {
    {MU_ROOM_RUNNING, "running"},
    {MU_ROOM_GATHERING, "gathering"},
    {MU_ROOM_WAITING, "waiting"},
    {MU_ROOM_SPARE, "spare"},
};
#define PLACES (sizeof(places) / sizeof(places[0]))

/* Reads a number of at most 18 digits off the text. False: there is none. */
static bool take_number(struct mu_span *text, uint64_t *ret)
{
    size_t n = 0;

    *ret = 0;
    while (n < text->len && text->data[n] >= '0' && text->data[n] <= '9') {
        *ret = *ret * 10 + (uint64_t)(text->data[n++] - '0');
        if (n > 18) {
            return false;
        }
    }
    *text = mu_span(text->data + n, text->len - n);
    return n != 0;
}

/* The last step of a node, where its agent has left it (service/agent/step.c). Others can write
 * there, too. */
static void put_step(struct mu_status_text *t, const struct mu_rdzv_run *run, uint32_t rank)
{
    char key[MU_RDZV_NAME_LEN_MAX + 96];
    struct mu_span value;
    uint64_t step;
    uint64_t us;
    int n = snprintf(key, sizeof(key), "/rdzv/%s/%" PRIu64 ".%" PRIu64 "/muster/step/%" PRIu32,
                     run->id, run->room.incarnation, run->room.round, rank);

    if (mu_ks_get(run->hub->on.ks, mu_span(key, (size_t)n), &value) != 0 ||
        !take_number(&value, &step) || value.len == 0 || value.data[0] != ' ') {
        return;
    }
    value = mu_span(value.data + 1, value.len - 1);
    if (take_number(&value, &us) && value.len == 0) {
        mu_status_put(t, ",\"step\":%" PRIu64 ",\"step_us\":%" PRIu64, step, us);
    }
}

static void put_member(struct mu_status_text *t, const struct mu_room_member *room,
                       const char *place, mu_mono_t now)
{
    const struct mu_rdzv_member *m = room->owner;
    mu_mono_t heard = mu_rpc_last_heard(&m->base.session->rpc);

    mu_status_put(t, "{\"name\":");
    mu_status_quote(t, room->name);
    mu_status_put(t, ",\"addr\":");
    mu_status_quote(t, m->addr);
    mu_status_put(t, ",\"state\":\"%s\"", place);
    if (room->state == MU_ROOM_RUNNING) {
        mu_status_put(t, ",\"rank\":%" PRIu32, room->rank);
        put_step(t, m->run, room->rank);
    }
    if (m->page[0] != '\0') {
        mu_status_put(t, ",\"page\":");
        mu_status_quote(t, m->page);
    }
    mu_status_put(t, ",\"silent_ms\":%" PRIu64 "}", mu_mono_since(heard, now) / MU_NS_PER_MS);
}

static void put_members(struct mu_status_text *t, const struct mu_rdzv_run *run, mu_mono_t now)
{
    size_t left = MU_STORE_STATUS_MEMBERS;
    size_t more = 0;

    mu_status_put(t, ",\"members\":[");
    for (size_t i = 0; i < PLACES && !run->over; i++) {
        MU_LIST_FOREACH (it, &run->room.in[places[i].state].members) {
            if (left == 0) {
                more++;
                continue;
            }
            mu_status_put(t, "%s", left == MU_STORE_STATUS_MEMBERS ? "" : ",");
            put_member(t, MU_CONTAINER_OF(it, struct mu_room_member, link), places[i].name, now);
            left--;
        }
    }
    mu_status_put(t, "],\"members_more\":%zu", more);
}

/* The first failure of the last round, where its agents have left it for each other (see
 * service/agent/agent.h). */
static void put_failure(struct mu_status_text *t, const struct mu_rdzv_run *run)
{
    char key[MU_RDZV_NAME_LEN_MAX + 96];
    struct mu_failure failure;
    struct mu_span value;
    int n = snprintf(key, sizeof(key), "/rdzv/%s/%" PRIu64 ".%" PRIu64 "/muster/failure", run->id,
                     run->room.incarnation, run->told);

    if (!run->formed || t->err != 0 ||
        mu_ks_get(run->hub->on.ks, mu_span(key, (size_t)n), &value) != 0 ||
        mu_failure_decode(value, &failure) != 0) {
        return;
    }
    mu_status_put(t, ",\"failure\":");
    t->err = t->err != 0 ? t->err : mu_failure_brief(t->out, &failure);
    mu_failure_fini(&failure);
}

static void put_exclusions(struct mu_status_text *t, const struct mu_rdzv_run *run, mu_mono_t now)
{
    const struct mu_exclusions *x = &run->room.exclusions;
    const char *comma = "";

    mu_status_put(t, ",\"exclusions\":[");
    for (uint32_t i = 0; !run->over && i < x->count; i++) {
        const struct mu_exclusion *e = &x->all[i];

        if (mu_exclusion_holds(e, now)) {
            mu_status_put(t, "%s{\"node\":", comma);
            mu_status_quote(t, e->node);
            mu_status_put(t, ",\"machine\":");
            mu_status_quote(t, e->key);
            mu_status_put(t, ",\"reason\":");
            mu_status_quote(t, e->reason);
            mu_status_put(t, ",\"left_ms\":%" PRIu64 "}", mu_mono_until_ms(e->until, now));
            comma = ",";
        }
    }
    mu_status_put(t, "]");
}

static void put_run(struct mu_status_text *t, const struct mu_rdzv_run *run, mu_mono_t now,
                    bool detailed)
{
    const struct mu_room *room = &run->room;
    char why[MU_STATUS_EVENT_MAX];

    mu_status_put(t, "{\"id\":");
    mu_status_quote(t, run->id);
    mu_status_put(t, ",\"state\":\"%s\",\"incarnation\":%" PRIu64 ",\"round\":%" PRIu64,
                  room_state(run), room->incarnation, room->round);
    mu_status_put(t, ",\"nodes_min\":%" PRIu32 ",\"nodes_max\":%" PRIu32, room->config.nodes_min,
                  room->config.nodes_max);
    if (room->config.restarts_max != UINT32_MAX) {
        mu_status_put(t, ",\"restarts_left\":%" PRIu32, room->config.restarts_max - room->restarts);
    }
    mu_room_explain(room, why, sizeof(why));
    mu_status_put(t, ",\"text\":");
    mu_status_quote(t, why);
    if (detailed) {
        put_failure(t, run);
        mu_status_history_put(t, &run->history);
    }
    put_members(t, run, now);
    put_exclusions(t, run, now);
    mu_status_put(t, "}");
}

static void put_runs(struct mu_status_text *t, const struct mu_store_server *s, mu_mono_t now)
{
    const struct mu_list *const lists[] = {&s->hub.busy, &s->hub.idle};
    const size_t counts[] = {s->hub.busy_count, s->hub.idle_count};
    size_t count = 0;

    mu_status_put(t, ",\"runs\":[");
    for (size_t i = 0; i < 2; i++) {
        size_t left = counts[i];

        MU_LIST_FOREACH (it, lists[i]) {
            if (count < MU_STORE_STATUS_RUNS) {
                mu_status_put(t, "%s", count == 0 ? "" : ",");
                /* The newest are the last of a list. */
                put_run(t, MU_CONTAINER_OF(it, struct mu_rdzv_run, link), now,
                        left <= MU_STORE_STATUS_DETAILED);
            }
            count++;
            left--;
        }
    }
    mu_status_put(t, "],\"runs_more\":%zu",
                  count > MU_STORE_STATUS_RUNS ? count - MU_STORE_STATUS_RUNS : (size_t)0);
}

/* --- counters --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    const char *type; /* of Prometheus */
    const char *help;
    size_t at; /* offset in the stats */
} figures[] = {
#define FIGURE(name, type, help, field)                                                            \
    {                                                                                              \
        name, type, help, offsetof(struct mu_store_server_stats, field)                            \
    }
    FIGURE("connections", "gauge", "Open connections.", connections),
    FIGURE("connections_total", "counter", "Connections accepted so far.", connections_total),
    FIGURE("sessions", "gauge", "Sessions of the native wire.", sessions),
    FIGURE("keys", "gauge", "Keys in the store.", keys),
    FIGURE("memory_bytes", "gauge", "Bytes of keys and values in memory.", memory_bytes),
    FIGURE("buffer_bytes", "gauge", "Bytes of half-read requests and unsent answers.",
           buffer_bytes),
    FIGURE("revision", "gauge", "The store's revision: the changes to it so far.", revision),
    FIGURE("waits", "gauge", "Clients that wait for keys.", waits),
    FIGURE("watches", "gauge", "Open watches.", watches),
    FIGURE("holds", "gauge", "Keys that gateways may answer for, counted for each gateway.", holds),
    FIGURE("granted_total", "counter", "Keys that gateways were given to answer for.", granted),
    FIGURE("recalls_total", "counter", "Keys that gateways were asked to give back.", recalls),
    FIGURE("cached_keys", "gauge", "Keys of another server that this gateway may answer for.",
           cached),
    FIGURE("cache_hits_total", "counter", "Reads that this gateway answered by itself.",
           cache_hits),
    FIGURE("cache_misses_total", "counter", "Reads that this gateway asked the other server for.",
           cache_misses),
    FIGURE("commits_total", "counter", "Writes to the disk.", commits),
    FIGURE("disk_full", "gauge", "Whether the disk is full, so that changes are refused.",
           disk_full),
    FIGURE("messages_in_total", "counter", "Requests and frames received.", messages_in),
    FIGURE("messages_out_total", "counter", "Answers and frames sent.", messages_out),
    FIGURE("bytes_in_total", "counter", "Bytes received.", bytes_in),
    FIGURE("bytes_out_total", "counter", "Bytes sent.", bytes_out),
    FIGURE("peers_dropped_total", "counter",
           "Connections dropped because the client broke the protocol or did not read.",
           peers_dropped),
    FIGURE("joins_total", "counter", "Nodes that joined a rendezvous.", joins),
    FIGURE("rounds_total", "counter", "Rounds that were formed.", rounds),
    FIGURE("losses_total", "counter", "Nodes that were lost.", losses),
    FIGURE("restarts_total", "counter", "Rounds that ended because workers failed.", restarts),
    FIGURE("exclusions_total", "counter", "Nodes that were excluded from a run.", exclusions),
    FIGURE("excluded_joins_total", "counter", "Joins of excluded nodes, which were refused.",
           excluded_joins),
#undef FIGURE
};
#define FIGURES (sizeof(figures) / sizeof(figures[0]))

static uint64_t value_of(const struct mu_store_server_stats *stats, size_t i)
{
    return *(const uint64_t *)(const void *)((const char *)stats + figures[i].at);
}

bool mu_store_server_ready(const struct mu_store_server *s)
{
    return s->wire.listening != 0 && !s->draining && !s->stopping;
}

int mu_store_server_status(const struct mu_store_server *s, struct mu_buf *out)
{
    struct mu_status_text t = {.out = out};
    struct mu_now now = mu_env_now(s->env);
    struct mu_store_server_stats stats;
    char address[MU_ADDR_HOST_MAX + 16];

    mu_status_put(&t, "{\"kind\":\"server\",\"version\":\"" MUSTER_VERSION "\",\"address\":");
    mu_status_quote(&t, mu_addr_format(&s->config.listen, address, sizeof(address)));
    mu_status_put(&t, ",\"at_ms\":%" PRIu64 ",\"ready\":%s,\"kept\":\"%s\",\"store\":{",
                  now.wall.ns / MU_NS_PER_MS, mu_store_server_ready(s) ? "true" : "false",
                  s->backing != NULL ? (s->backing->kind->remote ? "on another server" : "in etcd")
                  : s->disk_full     ? "on disk, which is full"
                  : s->config.disk != NULL ? "on disk"
                                           : "in memory");
    mu_store_server_stats(s, &stats);
    for (size_t i = 0; i < FIGURES; i++) {
        mu_status_put(&t, "%s\"%s\":%" PRIu64, i == 0 ? "" : ",", figures[i].name,
                      value_of(&stats, i));
    }
    mu_status_put(&t, "}");
    put_runs(&t, s, now.mono);
    mu_status_events_put(&t, &s->events);
    mu_status_put(&t, "}");
    return t.err;
}

/* --- Prometheus ------------------------------------------------------------------------------- */

static void put_run_metrics(struct mu_status_text *t, const struct mu_store_server *s, bool members)
{
    size_t count = 0;

    mu_status_put(t, members ? "# HELP muster_rdzv_members Nodes of a run, by state.\n# TYPE "
                               "muster_rdzv_members gauge\n"
                             : "# HELP muster_rdzv_round The current round of a run, or the next "
                               "one.\n# TYPE muster_rdzv_round gauge\n");
    MU_LIST_FOREACH (it, &s->hub.busy) {
        const struct mu_rdzv_run *run = MU_CONTAINER_OF(it, struct mu_rdzv_run, link);

        if (count++ == MU_STORE_STATUS_RUNS) {
            break;
        }
        for (size_t i = 0; members && i < PLACES; i++) {
            mu_status_put(t, "muster_rdzv_members{run=");
            mu_status_quote(t, run->id);
            mu_status_put(t, ",state=\"%s\"} %" PRIu32 "\n", places[i].name,
                          run->room.in[places[i].state].count);
        }
        if (!members) {
            mu_status_put(t, "muster_rdzv_round{run=");
            mu_status_quote(t, run->id);
            mu_status_put(t, "} %" PRIu64 "\n", run->room.round);
        }
    }
}

int mu_store_server_metrics(const struct mu_store_server *s, struct mu_buf *out)
{
    struct mu_status_text t = {.out = out};
    struct mu_store_server_stats stats;

    mu_status_put(&t, "# HELP muster_info The version of muster.\n# TYPE muster_info "
                      "gauge\nmuster_info{version=\"" MUSTER_VERSION "\"} 1\n");
    mu_store_server_stats(s, &stats);
    for (size_t i = 0; i < FIGURES; i++) {
        mu_status_put(&t, "# HELP muster_%s %s\n# TYPE muster_%s %s\nmuster_%s %" PRIu64 "\n",
                      figures[i].name, figures[i].help, figures[i].name, figures[i].type,
                      figures[i].name, value_of(&stats, i));
    }
    mu_status_put(&t,
                  "# HELP muster_runs Runs with members.\n# TYPE muster_runs gauge\n"
                  "muster_runs %zu\n",
                  s->hub.busy_count);
    put_run_metrics(&t, s, true);
    put_run_metrics(&t, s, false);
    return t.err;
}

/* --- the page --------------------------------------------------------------------------------- */

static int tell_status(void *context, struct mu_buf *out)
{
    return mu_store_server_status(context, out);
}

static int tell_metrics(void *context, struct mu_buf *out)
{
    return mu_store_server_metrics(context, out);
}

static bool tell_ready(void *context)
{
    return mu_store_server_ready(context);
}

static const char *tell_ailment(void *context)
{
    const struct mu_store_server *s = context;

    return s->disk_full ? s->full_why.text : NULL;
}

struct mu_status_source mu_store_server_source(struct mu_store_server *s)
{
    return (struct mu_status_source){.json = tell_status,
                                     .metrics = tell_metrics,
                                     .ready = tell_ready,
                                     .ailment = tell_ailment,
                                     .context = s};
}
