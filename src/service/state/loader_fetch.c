/* Fetching chunks: asks for them, lets them land in their place, has them hashed, and serves
 * them. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"
#include "service/state/loader_internal.h"

#define SWARM_EAGER    8 /* how often we ask about the swarm in quick succession */
#define SWARM_EAGER_MS 200

static mu_mono_t now_of(const struct mu_state_loader *l)
{
    return mu_env_now(l->env).mono;
}

/* --- the beginning ---------------------------------------------------------------------------- */

static bool init_fetch(struct mu_state_loader *l)
{
    struct mu_state_fetch_config config = mu_state_fetch_config_defaults();
    const struct mu_state_manifest *m = &l->share->offer.manifest;
    uint32_t chunks = l->share->chunks;

    config.chunks = chunks;
    config.chunk_bytes = m->chunk_bytes;
    config.last_bytes = chunks == 0 ? 0 : mu_state_chunk_len(m, chunks - 1);
    mu_env_entropy(l->env, &config.seed, sizeof(config.seed));
    config.deadline = l->deadline;
    config.idle_ms = l->config.idle_ms;
    config.stall_ms = l->config.stall_ms;
    config.donors_max = l->config.links_max;
    config.have = l->have;
    l->by_donor = mu_calloc(config.donors_max, sizeof(struct mu_state_link *));
    l->spares = mu_calloc(config.spares == 0 ? 1 : config.spares, sizeof(uint8_t *));
    l->spare_count = config.spares;
    if (l->by_donor == NULL || l->spares == NULL || !mu_state_place_init(l) ||
        mu_state_fetch_init(&l->fetch, &config, now_of(l)) != 0) {
        return false;
    }
    l->has_fetch = true;
    return true;
}

static void add_donor(struct mu_state_link *k)
{
    struct mu_state_loader *l = k->loader;

    if (!k->banned && !k->is_donor &&
        mu_state_fetch_add(&l->fetch, now_of(l), mu_span_str(k->name), &k->donor) == 0) {
        k->is_donor = true;
        k->wanted = false;
        k->gone = false;
        k->swarm_at = (mu_mono_t){0};
        k->swarm_asks = 0;
        l->by_donor[k->donor] = k;
        l->donor_count = k->donor + 1;
    }
}

static bool lists_want(const struct mu_state_link *k)
{
    for (size_t i = 0; i < k->entry_count; i++) {
        if (memcmp(k->entries[i].entry.id, k->loader->share->id, MU_STATE_ID_LEN) == 0) {
            return true;
        }
    }
    return false;
}

void mu_state_fetching_start(struct mu_state_loader *l)
{
    if (!init_fetch(l)) {
        mu_state_loader_end(l, MUSTER_ENOMEM, "out of memory for a download");
        return;
    }
    l->phase = MU_STATE_FETCHING;
    l->share->have = mu_state_fetch_bits(&l->fetch);
    l->share->have_count = mu_state_fetch_chunks_done(&l->fetch);
    if (l->config.donor != NULL) {
        l->served = mu_state_donor_add(l->config.donor, l->share) == 0;
    }
    MU_LIST_FOREACH (it, &l->links) {
        struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        if (lists_want(k)) {
            add_donor(k);
        }
    }
}

void mu_state_fetching_begin(struct mu_state_loader *l, struct mu_state_plan *plan)
{
    int err = mu_state_share_of(&l->offer, l->want.entry.id, plan->segments, plan->segment_count,
                                &l->share);

    if (err != 0) {
        /* The memory is released in the usual way. */
        struct mu_state_share fake = {.owner = plan->owner};

        if (plan->released != NULL) {
            plan->released(&fake);
        }
        mu_free(plan->segments);
        mu_free(plan->maybe);
        mu_state_loader_end(l, err, "out of memory");
        return;
    }
    memcpy(l->share->prefix, l->want.prefix, l->want.entry.prefix.len);
    l->share->prefix[l->want.entry.prefix.len] = '\0';
    l->share->priority = l->want.entry.priority;
    l->share->read = plan->read;
    l->share->prepare = plan->prepare;
    l->share->released = plan->released;
    l->share->owner = plan->owner;
    mu_state_resume_begin(l, plan);
}

/* --- a donor ---------------------------------------------------------------------------------- */

static bool lists_all(const struct mu_state_link *k)
{
    for (size_t i = 0; i < k->entry_count; i++) {
        const struct mu_state_entry *e = &k->entries[i].entry;

        if (memcmp(e->id, k->loader->share->id, MU_STATE_ID_LEN) == 0) {
            return e->have == e->chunks;
        }
    }
    return false;
}

static struct mu_span id_of(const struct mu_state_loader *l)
{
    return mu_span(l->share->id, MU_STATE_ID_LEN);
}

static void ask_have(struct mu_state_link *k)
{
    if (k->have_call == 0) {
        k->have_call = mu_state_link_call(k, MU_STATE_METHOD_HAVE, id_of(k->loader),
                                          k->loader->config.connect_ms);
    }
}

/* Opens the stream on a session that is ready. */
void mu_state_fetching_ready(struct mu_state_link *k)
{
    struct mu_state_loader *l = k->loader;

    if (!k->wanted || !l->has_fetch) {
        return;
    }
    k->wanted = false;
    k->arrived = 0;
    mu_buf_reset(&k->waiting);
    k->stream = mu_state_link_call(k, MU_STATE_METHOD_FETCH, id_of(l), 0);
    if (k->stream == 0) {
        mu_state_fetch_lost(&l->fetch, now_of(l), k->donor, MUSTER_ENOMEM,
                            "it refused to open a stream");
        return;
    }
    mu_state_fetch_ready(&l->fetch, now_of(l), k->donor);
    if (!lists_all(k)) {
        ask_have(k);
    } else if (mu_state_fetch_have(&l->fetch, now_of(l), k->donor, NULL) != 0) {
        ask_have(k);
    }
}

static void open_stream(struct mu_state_link *k)
{
    k->wanted = true;
    if (k->ready && !k->closing) {
        mu_state_fetching_ready(k);
    } else if (!mu_state_link_dial(k)) {
        k->wanted = false;
        mu_state_fetch_lost(&k->loader->fetch, now_of(k->loader), k->donor, MUSTER_EADDR,
                            "its address cannot be dialled");
    }
}

void mu_state_fetching_failed(struct mu_state_link *k, int status, const char *text)
{
    struct mu_state_loader *l = k->loader;
    bool was_open = k->stream != 0;

    mu_state_fetching_unaim(k);
    k->stream = 0;
    if (!l->has_fetch || (!was_open && !k->wanted)) {
        return;
    }
    k->wanted = false;
    l->lost += was_open ? 1 : 0;
    mu_state_fetch_lost(&l->fetch, now_of(l), k->donor, status, text);
}

/* The stream has ended, which a healthy donor never does. */
static void on_stream_end(struct mu_state_link *k, const struct mu_rpc_event *event)
{
    struct mu_state_loader *l = k->loader;
    struct mu_span said = event->payload;
    int status = event->status == 0 ? MUSTER_ECLOSED : event->status;
    char text[128];

    mu_state_fetching_unaim(k);
    k->stream = 0;
    if (!l->has_fetch) {
        return;
    }
    if (status == MUSTER_EBUSY) {
        mu_state_fetch_busy(&l->fetch, now_of(l), k->donor, mu_state_busy_parse(said, 1000));
        return;
    }
    k->gone = status == MUSTER_ENOENT;
    l->lost++;
    (void)snprintf(text, sizeof(text), "%.*s", (int)(said.len < 100 ? said.len : 100),
                   (const char *)said.data);
    mu_state_fetch_lost(&l->fetch, now_of(l), k->donor, status,
                        text[0] != '\0' ? text : muster_strerror(status));
    if (status == MUSTER_ESESSION || status == MUSTER_ECLOSED || status == MUSTER_ECONN) {
        mu_state_link_close(k);
    }
}

static void on_have(struct mu_state_link *k, const struct mu_rpc_event *event)
{
    struct mu_state_loader *l = k->loader;
    struct mu_state_have have;

    k->have_call = 0;
    if (!l->has_fetch || event->status != 0) {
        return; /* the stream ends for the same reason */
    }
    if (mu_state_have_decode(event->payload, l->share->chunks, &have) != 0) {
        mu_state_fetch_lost(&l->fetch, now_of(l), k->donor, MUSTER_EPROTO,
                            "its list of chunks cannot be read");
        k->stream = 0;
        mu_state_link_close(k);
        return;
    }
    (void)mu_state_fetch_have(&l->fetch, now_of(l), k->donor, have.all ? NULL : have.bits.data);
}

static void on_swarm(struct mu_state_link *k, const struct mu_rpc_event *event)
{
    struct mu_state_loader *l = k->loader;
    struct mu_state_swarm_head head;
    uint32_t again_ms;
    struct mu_span walk = {0};
    struct mu_span addr;

    k->swarm_call = 0;
    if (event->status != 0 || mu_state_swarm_decode(event->payload, &head, &walk) != 0) {
        k->swarm_at = mu_mono_add_ms(now_of(l), 5000);
        return;
    }
    if (l->has_fetch && k->is_donor) {
        mu_state_fetch_part(&l->fetch, k->donor, head.part, head.parts);
    }
    again_ms = head.again_ms < 100 ? 100 : head.again_ms > 60000 ? 60000 : head.again_ms;
    /* Loaders that begin together find each other while most of the state is still missing. */
    if (k->swarm_asks++ < SWARM_EAGER && again_ms > SWARM_EAGER_MS) {
        again_ms = SWARM_EAGER_MS;
    }
    k->swarm_at = mu_mono_add_ms(now_of(l), again_ms);
    while (l->has_fetch && mu_state_swarm_next(&walk, &addr) == 1) {
        char name[MU_STATE_ADDR_MAX + 1];
        struct mu_state_link *other;
        struct mu_errmsg msg;

        (void)snprintf(name, sizeof(name), "%.*s", (int)addr.len, (const char *)addr.data);
        if (strcmp(name, l->config.own_addr) == 0 ||
            (l->config.may_dial != NULL && !l->config.may_dial(l->config.context, name))) {
            continue;
        }
        other = mu_state_loader_link(l, name, &msg);
        if (other != NULL) {
            other->found = true;
            add_donor(other);
        }
    }
}

static void ask_swarm(struct mu_state_link *k)
{
    struct mu_state_loader *l = k->loader;
    struct mu_state_swarm_ask ask = {.addr = mu_span_str(l->served ? l->config.own_addr : "")};
    struct mu_buf out;

    memcpy(ask.id, l->share->id, sizeof(ask.id));
    mu_buf_init(&out, 1024);
    if (mu_state_swarm_ask_encode(&out, &ask) == 0) {
        k->swarm_call =
            mu_state_link_call(k, MU_STATE_METHOD_SWARM, mu_buf_span(&out), l->config.connect_ms);
    }
    mu_buf_fini(&out);
    k->swarm_at = mu_mono_add_ms(now_of(l), 1000);
}

void mu_state_fetching_reply(struct mu_state_link *k, const struct mu_rpc_event *event)
{
    if (event->id == k->stream) {
        on_stream_end(k, event);
    } else if (event->id == k->have_call) {
        on_have(k, event);
    } else {
        on_swarm(k, event);
    }
}

/* --- landing ---------------------------------------------------------------------------------- */

void mu_state_fetching_unaim(struct mu_state_link *k)
{
    if (k->aimed) {
        k->aimed = false;
        (void)mu_rpc_land(&k->client.rpc, k->stream, (struct mu_space){0});
    }
}

/* Where an answer lands: in its place, in a side buffer, or, if its place is in pieces, in memory
 * of its own. */
static struct mu_space room_for(struct mu_state_link *k, const struct mu_state_ask_request *ask)
{
    struct mu_state_loader *l = k->loader;
    uint32_t len = mu_state_share_len(l->share, ask->chunk);
    struct mu_space place = {0};

    if (ask->spare != MU_STATE_NO_SPARE) {
        if (l->spares[ask->spare] == NULL) {
            l->spares[ask->spare] = mu_malloc(l->share->offer.manifest.chunk_bytes);
        }
        place = (struct mu_space){l->spares[ask->spare], len};
    } else if (!mu_state_share_place(l->share, ask->chunk, &place)) {
        if (k->bounce == NULL) {
            k->bounce = mu_malloc(l->share->offer.manifest.chunk_bytes);
        }
        place = (struct mu_space){k->bounce, len};
    }
    return place.data == NULL ? (struct mu_space){0} : place;
}

/* Gives the next answer the memory in which it lands. */
static void aim(struct mu_state_link *k)
{
    struct mu_state_ask_request ask;
    bool revoked;

    if (k->stream == 0 || k->aimed ||
        !mu_state_fetch_owes(&k->loader->fetch, k->donor, &ask, &revoked) || revoked) {
        return;
    }
    if (mu_rpc_land(&k->client.rpc, k->stream, room_for(k, &ask)) == 0) {
        k->aimed = true;
        k->aim = ask;
    }
}

void mu_state_fetching_heard(struct mu_state_link *k)
{
    size_t arrived;

    if (!k->is_donor || k->stream == 0 || !k->loader->has_fetch) {
        return;
    }
    arrived = mu_rpc_arriving(&k->client.rpc);
    if (arrived > k->arrived) {
        mu_state_fetch_heard(&k->loader->fetch, now_of(k->loader), k->donor, arrived - k->arrived);
        k->arrived = arrived;
    }
}

static void violate(struct mu_state_link *k, const char *text)
{
    mu_log(MUSTER_LOG_WARN, "STATE-DONOR-VIOLATION", "donor=%s why=\"%s\"", k->name, text);
    mu_state_fetching_failed(k, MUSTER_EPROTO, text);
    mu_state_link_close(k);
}

static void pull(struct mu_state_loader *l);

static void settle_fetched(struct mu_state_check *c)
{
    struct mu_state_loader *l = c->loader;
    struct mu_state_link *k = c->link;

    if (!l->has_fetch) {
        return;
    }
    if (k->stream == c->stream && c->stream != 0) {
        (void)mu_rpc_consumed(&k->client.rpc, mu_env_now(l->env), c->stream, c->len);
        k->dirty = true;
    }
    /* The bounce buffer is needed until the chunk is in its place. */
    l->verified = c;
    mu_state_fetch_verified(&l->fetch, now_of(l), c->donor, c->chunk, c->ok);
    l->in_turn = true;
    pull(l);
    l->in_turn = false;
    l->verified = NULL;
}

/* Whether a donor owes another chunk, which is likely to come soon. */
static bool is_more_owed(struct mu_state_link *k)
{
    struct mu_state_ask_request ask;
    bool revoked;

    return mu_state_fetch_owes(&k->loader->fetch, k->donor, &ask, &revoked);
}

/* A chunk is complete; it has landed in its memory, or is copied there. */
static bool begin_check(struct mu_state_link *k, const struct mu_state_ask_request *ask,
                        struct mu_span payload)
{
    struct mu_state_check *c = mu_state_check_new(k->loader, ask->chunk, settle_fetched);
    struct mu_space room = room_for(k, ask);

    if (c == NULL || room.len == 0) {
        mu_state_check_free(c);
        return false;
    }
    if (payload.data != room.data) {
        memcpy(room.data, payload.data, payload.len);
    }
    if (room.data == k->bounce) {
        c->bounce = k->bounce;
        k->bounce = NULL;
    }
    c->link = k;
    c->stream = k->stream;
    c->donor = k->donor;
    c->data = room.data;
    return mu_state_check_begin(c, is_more_owed(k)) == 0;
}

static void consume(struct mu_state_link *k, size_t n)
{
    (void)mu_rpc_consumed(&k->client.rpc, mu_env_now(k->loader->env), k->stream, n);
}

void mu_state_fetching_item(struct mu_state_link *k, struct mu_span payload)
{
    struct mu_state_loader *l = k->loader;
    struct mu_state_ask_request ask;
    bool revoked;

    /* Empty and short answers do not use up the memory that they got. */
    mu_state_fetching_unaim(k);
    k->arrived = 0;
    if (!l->has_fetch || !mu_state_fetch_owes(&l->fetch, k->donor, &ask, &revoked)) {
        violate(k, "it sent a chunk that it was not asked for");
        return;
    }
    if (payload.len == 0) {
        (void)mu_state_fetch_absent(&l->fetch, now_of(l), k->donor, ask.chunk);
        return;
    }
    if (payload.len != mu_state_share_len(l->share, ask.chunk)) {
        violate(k, "it sent a chunk of another length");
        return;
    }
    switch (mu_state_fetch_received(&l->fetch, now_of(l), k->donor, ask.chunk)) {
    case MU_STATE_FETCH_VERIFY:
        if (payload.data == NULL || !begin_check(k, &ask, payload)) {
            mu_state_loader_end(l, MUSTER_ENOMEM, "out of memory for a chunk");
        }
        break;
    case MU_STATE_FETCH_DISCARD:
        consume(k, payload.len);
        break;
    case MU_STATE_FETCH_NOT_ASKED:
        violate(k, "it sent a chunk that it was not asked for");
        break;
    }
    aim(k);
}

/* --- the turn --------------------------------------------------------------------------------- */

/* A chunk is verified: if it did not land in its place, it is copied there. */
static void take_chunk(struct mu_state_loader *l, const struct mu_state_fetch_event *event)
{
    const struct mu_state_check *c = l->verified;

    if (event->spare != MU_STATE_NO_SPARE) {
        mu_state_share_scatter(l->share, event->chunk, l->spares[event->spare]);
    } else if (c != NULL && c->chunk == event->chunk && c->bounce != NULL) {
        mu_state_share_scatter(l->share, event->chunk, c->bounce);
    }
    l->share->have_count = mu_state_fetch_chunks_done(&l->fetch);
}

/* Whether the version is gone, rather than its donors. */
static bool is_gone(const struct mu_state_loader *l)
{
    for (uint32_t i = 0; i < l->donor_count; i++) {
        if (l->by_donor[i] != NULL && l->by_donor[i]->gone) {
            return true;
        }
    }
    return false;
}

/* Whether a donor that can be asked has listed another state: if no donor is left that gives this
 * one correctly, the other is better than nothing. */
static bool is_another_there(const struct mu_state_loader *l)
{
    MU_LIST_FOREACH (it, &l->links) {
        const struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        for (size_t i = 0; i < k->entry_count && !k->banned && k->ready; i++) {
            if (memcmp(k->entries[i].entry.id, l->share->id, MU_STATE_ID_LEN) != 0 &&
                mu_state_ask_wants(l, &k->entries[i])) {
                return true;
            }
        }
    }
    return false;
}

static void on_end(struct mu_state_loader *l, const struct mu_state_fetch_event *event)
{
    if (event->status == 0) {
        l->whole = true;
        mu_state_loader_end(l, 0, "");
    } else if (event->status != MUSTER_ECANCELED && event->status != MUSTER_ETIMEDOUT &&
               (is_gone(l) || is_another_there(l))) {
        if (!is_gone(l)) {
            mu_state_ask_give_up(l, event->text);
        }
        mu_state_loader_restart(l);
    } else {
        mu_state_loader_end(l, event->status, event->text);
    }
}

static void handle(struct mu_state_loader *l, const struct mu_state_fetch_event *event)
{
    struct mu_state_link *k =
        event->type == MU_STATE_FETCH_EV_END || event->type == MU_STATE_FETCH_EV_HAVE
            ? NULL
            : l->by_donor[event->donor];

    switch (event->type) {
    case MU_STATE_FETCH_EV_OPEN:
        open_stream(k);
        break;
    case MU_STATE_FETCH_EV_ASK_HAVE:
        ask_have(k);
        break;
    case MU_STATE_FETCH_EV_REVOKE:
        if (k->aimed && k->aim.chunk == event->chunk && k->aim.spare == event->spare) {
            mu_state_fetching_unaim(k);
        }
        break;
    case MU_STATE_FETCH_EV_HAVE:
        take_chunk(l, event);
        break;
    case MU_STATE_FETCH_EV_BAN:
        mu_log(MUSTER_LOG_WARN, "STATE-DONOR-BANNED", "donor=%s why=\"%s\"", k->name, event->text);
        k->banned = true;
        k->status = event->status;
        (void)snprintf(k->text, sizeof(k->text), "%s", event->text);
        k->wanted = false;
        mu_state_link_close(k);
        break;
    case MU_STATE_FETCH_EV_DROP:
        l->lost++;
        mu_state_link_close(k);
        break;
    case MU_STATE_FETCH_EV_END:
        on_end(l, event);
        break;
    }
}

static void pull(struct mu_state_loader *l)
{
    struct mu_state_fetch_event event;

    while (l->phase == MU_STATE_FETCHING && mu_state_fetch_next_event(&l->fetch, &event)) {
        handle(l, &event);
    }
}

static bool send_ask(struct mu_state_link *k, uint32_t chunk)
{
    uint8_t index[4];

    mu_put_u32(index, chunk);
    if (k->stream == 0 || mu_rpc_item(&k->client.rpc, mu_env_now(k->loader->env), k->stream,
                                      mu_span(index, sizeof(index))) != 0) {
        return false;
    }
    k->dirty = true;
    return true;
}

/* Asks for what had to wait. The donor's silence does not count meanwhile. */
static void send_waiting(struct mu_state_link *k)
{
    struct mu_state_loader *l = k->loader;
    uint32_t chunk;

    while (k->stream != 0 && k->waiting.len != 0) {
        memcpy(&chunk, mu_buf_span(&k->waiting).data, sizeof(chunk));
        if (!mu_state_place_is_ready(l, chunk)) {
            mu_state_fetch_heard(&l->fetch, now_of(l), k->donor, 0);
            return;
        }
        if (!send_ask(k, chunk)) {
            return; /* there is room again when others were answered */
        }
        mu_buf_consume(&k->waiting, sizeof(chunk));
    }
}

/* A donor answers in the order in which the machine has asked: so asks wait behind each other. */
static void ask(struct mu_state_loader *l, const struct mu_state_ask_request *request)
{
    struct mu_state_link *k = l->by_donor[request->donor];
    bool done;

    mu_state_place_want(l, request->chunk);
    if (k->waiting.len != 0 || !mu_state_place_is_ready(l, request->chunk)) {
        done = k->stream != 0 &&
               mu_buf_append(&k->waiting, mu_span(&request->chunk, sizeof(request->chunk))) == 0;
    } else {
        done = send_ask(k, request->chunk);
    }
    if (!done) {
        mu_state_fetch_refuse(&l->fetch, request);
    }
}

/* Asks donors that were just found, or have only now said that they have the state; as long as a
 * donor has not said what it has, nothing is lost. */
static void add_late(struct mu_state_loader *l)
{
    bool more = l->config.expect_more;

    MU_LIST_FOREACH (it, &l->links) {
        struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        if (k->is_donor || k->banned) {
            continue;
        }
        if (k->found ? !k->live : k->asked && lists_want(k)) {
            add_donor(k);
        }
        more = more || (!k->asked && !k->found && k->live && !k->closing);
    }
    mu_state_fetch_expect(&l->fetch, now_of(l), more);
}

void mu_state_fetching_turn(struct mu_state_loader *l)
{
    struct mu_state_ask_request request;
    mu_mono_t now = now_of(l);

    if (l->phase == MU_STATE_RESUMING) {
        mu_state_resume_turn(l);
    }
    if (l->phase != MU_STATE_FETCHING) {
        return;
    }
    if (mu_state_check_flush(l, now) != 0) {
        mu_state_loader_end(l, MUSTER_ENOMEM, "out of memory for a chunk");
        return;
    }
    add_late(l);
    pull(l);
    while (l->phase == MU_STATE_FETCHING && mu_state_fetch_next(&l->fetch, now, &request)) {
        ask(l, &request);
        pull(l);
    }
    for (uint32_t i = 0; l->phase == MU_STATE_FETCHING && i < l->donor_count; i++) {
        struct mu_state_link *k = l->by_donor[i];

        send_waiting(k);
        aim(k);
        if (k->ready && k->stream != 0 && k->swarm_call == 0 && mu_mono_reached(k->swarm_at, now)) {
            ask_swarm(k);
        }
    }
}

mu_mono_t mu_state_fetching_deadline(const struct mu_state_loader *l)
{
    mu_mono_t at = l->deadline;

    if (l->phase != MU_STATE_FETCHING) {
        return at;
    }
    at = mu_mono_min(at, mu_state_fetch_deadline(&l->fetch));
    at = mu_mono_min(at, mu_state_check_deadline(l));
    for (uint32_t i = 0; i < l->donor_count; i++) {
        const struct mu_state_link *k = l->by_donor[i];

        if (k->ready && k->stream != 0 && k->swarm_call == 0) {
            at = mu_mono_min(at, k->swarm_at);
        }
    }
    return at;
}

void mu_state_fetching_fini(struct mu_state_loader *l)
{
    MU_ASSERT(l->jobs == 0);
    mu_state_check_fini(l);
    mu_state_place_fini(l);
    for (uint32_t i = 0; l->spares != NULL && i < l->spare_count; i++) {
        mu_free(l->spares[i]);
    }
    if (l->has_fetch) {
        mu_state_fetch_fini(&l->fetch);
        l->has_fetch = false;
    }
    mu_free(l->spares);
    mu_free(l->by_donor);
    mu_free(l->have);
    mu_free(l->maybe);
    l->spares = NULL;
    l->by_donor = NULL;
    l->have = NULL;
    l->maybe = NULL;
    l->donor_count = 0;
    MU_LIST_FOREACH (it, &l->links) {
        struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        k->is_donor = false;
        k->wanted = false;
        mu_free(k->bounce);
        k->bounce = NULL;
    }
}
