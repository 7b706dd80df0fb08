#include "service/rpc/gather.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"

struct mu_rpc_gather {
    struct mu_env *env;
    struct mu_rpc_agent *agent;
    struct mu_rpc_handler handler;
    struct mu_map rooms; /* by tag */
    struct mu_list all;
    bool stopped;
};

enum place {
    AWAY = 0,
    HERE,
    GAVE_UP, /* it was here, and does not wait any more */
};

struct mu_rpc_room {
    struct mu_rpc_gather *gather;
    struct mu_map_node by_tag;
    struct mu_list link;
    struct mu_list guests;    /* the guests that wait */
    struct mu_rpc_lead *lead; /* NULL: the leader has not come yet */
    enum place *places;       /* of the other workers */
    size_t here_count;
    struct mu_timer timer;
    size_t tag_len;
    char tag[MU_RPC_GATHER_TAG_MAX + 1];
};

/* A worker that has called. */
struct guest {
    struct mu_list link;
    struct mu_rpc_in *in;
    struct mu_rpc_room *room;
    struct mu_buf object;
    struct mu_timer patience;
    size_t place; /* SIZE_MAX: not known yet */
};

/* --- rooms ------------------------------------------------------------------------------------ */

static void on_timer(struct mu_timer *timer);

static struct mu_rpc_room *get_room(struct mu_rpc_gather *g, struct mu_span tag)
{
    struct mu_map_node *node = mu_map_find(&g->rooms, tag);
    struct mu_rpc_room *room;

    if (node != NULL) {
        return MU_CONTAINER_OF(node, struct mu_rpc_room, by_tag);
    }
    room = mu_calloc(1, sizeof(*room));
    if (room == NULL) {
        return NULL;
    }
    room->gather = g;
    room->tag_len = tag.len;
    memcpy(room->tag, tag.data, tag.len);
    mu_list_init(&room->guests);
    mu_timer_init(&room->timer, on_timer);
    if (mu_map_insert(&g->rooms, &room->by_tag, mu_span(room->tag, room->tag_len)) != 0) {
        mu_free(room);
        return NULL;
    }
    mu_list_push(&g->all, &room->link);
    return room;
}

static void free_if_empty(struct mu_rpc_room *room)
{
    if (room->lead != NULL || !mu_list_empty(&room->guests)) {
        return;
    }
    mu_map_remove(&room->gather->rooms, &room->by_tag);
    mu_list_remove(&room->link);
    mu_free(room->places);
    mu_free(room);
}

static void answer(struct guest *guest, int status, struct mu_span message)
{
    mu_list_remove(&guest->link);
    mu_env_timer_arm(guest->room->gather->env, &guest->patience, MU_MONO_NEVER);
    mu_rpc_in_reply(guest->in, status, message);
    mu_buf_fini(&guest->object);
    mu_free(guest);
}

/* Ends the leader's part. Guests that came for the next time stay in the room. */
static void finish(struct mu_rpc_room *room, int status, struct mu_span message)
{
    struct mu_rpc_lead *lead = room->lead;

    MU_LIST_FOREACH_SAFE (it, tmp, &room->guests) {
        struct guest *guest = MU_CONTAINER_OF(it, struct guest, link);

        if (guest->place != SIZE_MAX) {
            answer(guest, status, message);
        }
    }
    mu_env_timer_arm(room->gather->env, &room->timer, MU_MONO_NEVER);
    mu_free(room->places);
    room->places = NULL;
    room->here_count = 0;
    room->lead = NULL;
    free_if_empty(room);
    lead->done(lead, status, message);
}

/* --- results ---------------------------------------------------------------------------------- */

static int encode_one(struct mu_buf *out, struct mu_span object)
{
    struct mu_rpc_part part = {object, -1};
    int err = mu_rpc_msg_head(out, &part, 1);

    return err != 0 ? err : mu_buf_append(out, object);
}

static int encode_all(const struct mu_rpc_room *room, struct mu_buf *out)
{
    const struct mu_rpc_lead *lead = room->lead;
    size_t count = lead->count + 1;
    struct mu_rpc_part *parts = mu_calloc(count, sizeof(*parts));
    int err;

    if (parts == NULL) {
        return MUSTER_ENOMEM;
    }
    parts[lead->place] = (struct mu_rpc_part){lead->object, -1};
    MU_LIST_FOREACH (it, &room->guests) {
        const struct guest *guest = MU_CONTAINER_OF(it, struct guest, link);

        if (guest->place != SIZE_MAX) {
            size_t place = guest->place + (guest->place >= lead->place ? 1 : 0);

            parts[place] = (struct mu_rpc_part){mu_buf_span(&guest->object), -1};
        }
    }
    err = mu_rpc_msg_head(out, parts, count);
    for (size_t i = 0; err == 0 && i < count; i++) {
        err = mu_buf_append(out, parts[i].data);
    }
    mu_free(parts);
    return err;
}

static void finish_if_all_came(struct mu_rpc_room *room)
{
    struct mu_buf result;
    int err;

    if (room->here_count < room->lead->count) {
        return;
    }
    mu_buf_init(&result, SIZE_MAX / 4);
    err =
        room->lead->broadcast ? encode_one(&result, room->lead->object) : encode_all(room, &result);
    finish(room, err, err == 0 ? mu_buf_span(&result) : mu_span_str(muster_strerror(err)));
    mu_buf_fini(&result);
}

/* --- time ------------------------------------------------------------------------------------- */

static size_t count_places(const struct mu_rpc_room *room, enum place place)
{
    size_t count = 0;

    for (size_t i = 0; i < room->lead->count; i++) {
        count += room->places[i] == place ? 1 : 0;
    }
    return count;
}

/* Appends the names of the workers at that place, as far as there is room. */
static size_t list_places(const struct mu_rpc_room *room, enum place place, char *text, size_t at)
{
    for (size_t i = 0; i < room->lead->count && at < MU_ERRMSG_CAP - 4; i++) {
        if (room->places[i] == place) {
            int n = snprintf(text + at, MU_ERRMSG_CAP - at, " %s", room->lead->names[i]);

            at += n > 0 ? (size_t)n : 0;
        }
    }
    return at;
}

/* Names the workers that have not come, and those that gave up, in MU_ERRMSG_CAP bytes. */
static void describe(const struct mu_rpc_room *room, char *text)
{
    size_t away = count_places(room, AWAY);
    size_t at = (size_t)snprintf(text, MU_ERRMSG_CAP, "%.60s:", room->tag);

    if (away != 0) {
        at += (size_t)snprintf(text + at, MU_ERRMSG_CAP - at,
                               " %zu of %zu did not come in time:", away, room->lead->count);
        at = list_places(room, AWAY, text, at);
    }
    if (count_places(room, GAVE_UP) != 0 && at < MU_ERRMSG_CAP - 30) {
        at += (size_t)snprintf(text + at, MU_ERRMSG_CAP - at,
                               "%s gave up waiting:", away != 0 ? ";" : "");
        (void)list_places(room, GAVE_UP, text, at);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_rpc_room *room = MU_CONTAINER_OF(timer, struct mu_rpc_room, timer);
    struct mu_rpc_agent *agent = room->gather->agent;
    char text[MU_ERRMSG_CAP];

    describe(room, text);
    finish(room, MUSTER_ETIMEDOUT, mu_span_str(text));
    mu_rpc_agent_turn(agent);
}

/* A guest does not wait any more, but it was here. */
static void let_go(struct guest *guest, int status, const char *text)
{
    struct mu_rpc_room *room = guest->room;

    if (guest->place != SIZE_MAX) {
        room->places[guest->place] = GAVE_UP;
        room->here_count--;
    }
    answer(guest, status, mu_span_str(text));
    free_if_empty(room);
}

static void on_patience(struct mu_timer *timer)
{
    struct guest *guest = MU_CONTAINER_OF(timer, struct guest, patience);
    const struct mu_rpc_room *room = guest->room;
    struct mu_rpc_agent *agent = room->gather->agent;
    char text[MU_ERRMSG_CAP];

    if (room->lead == NULL) {
        (void)snprintf(text, sizeof(text), "%.60s: the leader did not come in time", room->tag);
    } else if (guest->place == SIZE_MAX) {
        (void)snprintf(text, sizeof(text), "%.60s: an earlier call with this tag has not ended",
                       room->tag);
    } else {
        describe(room, text);
    }
    let_go(guest, MUSTER_ETIMEDOUT, text);
    mu_rpc_agent_turn(agent);
}

/* --- guests ----------------------------------------------------------------------------------- */

/* The leader is there and a guest, too: takes its object, if it is its turn. */
static void seat(struct mu_rpc_room *room, struct guest *guest)
{
    const struct mu_rpc_lead *lead = room->lead;
    struct mu_buf result;
    size_t i = 0;
    int err;

    while (i < lead->count && strcmp(lead->names[i], guest->in->caller) != 0) {
        i++;
    }
    if (i == lead->count) {
        answer(guest, MUSTER_EINVAL,
               MU_SPAN_LIT("the leader's group does not include this worker"));
        return;
    }
    if (room->places[i] == HERE) {
        return; /* it is one round ahead */
    }
    room->places[i] = HERE;
    room->here_count++;
    guest->place = i;
    if (lead->broadcast) {
        mu_buf_init(&result, SIZE_MAX / 4);
        err = encode_one(&result, lead->object);
        answer(guest, err, err == 0 ? mu_buf_span(&result) : mu_span_str(muster_strerror(err)));
        mu_buf_fini(&result);
    }
}

static int admit(struct mu_rpc_gather *g, struct mu_rpc_in *in, struct mu_span message,
                 struct guest **ret_guest)
{
    struct mu_rpc_part *parts = NULL;
    struct guest *guest = NULL;
    size_t count = 0;
    int err = mu_rpc_msg_decode(message, &parts, &count);

    if (err == 0 && (count != 3 || parts[0].data.len > MU_RPC_GATHER_TAG_MAX ||
                     parts[0].data.len == 0 || parts[2].data.len != 4)) {
        err = MUSTER_EPROTO;
    }
    if (err == 0) {
        guest = mu_calloc(1, sizeof(*guest));
        err = guest == NULL ? MUSTER_ENOMEM : 0;
    }
    if (err == 0) {
        mu_buf_init(&guest->object, SIZE_MAX / 4);
        guest->in = in;
        guest->place = SIZE_MAX;
        err = mu_buf_append(&guest->object, parts[1].data);
    }
    if (err == 0) {
        guest->room = get_room(g, parts[0].data);
        err = guest->room == NULL ? MUSTER_ENOMEM : 0;
    }
    if (err == 0) {
        uint32_t wait_ms = mu_get_u32(parts[2].data.data);

        mu_timer_init(&guest->patience, on_patience);
        mu_env_timer_arm(g->env, &guest->patience,
                         wait_ms == 0 ? MU_MONO_NEVER
                                      : mu_mono_add_ms(mu_env_now(g->env).mono, wait_ms));
    }
    mu_free(parts);
    if (err != 0 && guest != NULL) {
        mu_buf_fini(&guest->object);
        mu_free(guest);
    }
    *ret_guest = guest;
    return err;
}

static void on_guest(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    struct mu_rpc_gather *g = MU_CONTAINER_OF(h, struct mu_rpc_gather, handler);
    struct mu_rpc_room *room;
    struct guest *guest;
    int err = g->stopped ? MUSTER_EDRAIN : admit(g, in, message, &guest);

    if (err != 0) {
        mu_rpc_in_reply(in, err, mu_span_str(muster_strerror(err)));
        return;
    }
    room = guest->room;
    in->owner = guest;
    mu_list_push(&room->guests, &guest->link);
    if (room->lead != NULL) {
        seat(room, guest);
        finish_if_all_came(room);
    }
}

static void on_cancel(struct mu_rpc_in *in, int why)
{
    let_go(in->owner, why, muster_strerror(why));
}

/* --- life ------------------------------------------------------------------------------------- */

int mu_rpc_gather_start(struct mu_env *env, struct mu_rpc_agent *agent,
                        struct mu_rpc_gather **ret_gather)
{
    struct mu_rpc_gather *g = mu_calloc(1, sizeof(*g));
    uint64_t seed;
    int err;

    if (g == NULL) {
        return MUSTER_ENOMEM;
    }
    g->env = env;
    g->agent = agent;
    mu_env_entropy(env, &seed, sizeof(seed));
    mu_map_init(&g->rooms, seed);
    mu_list_init(&g->all);
    g->handler = (struct mu_rpc_handler){
        .method = MU_RPC_GATHER_METHOD, .start = on_guest, .cancel = on_cancel};
    err = mu_rpc_agent_serve(agent, &g->handler);
    if (err != 0) {
        mu_free(g);
        return err;
    }
    *ret_gather = g;
    return 0;
}

int mu_rpc_gather_open(struct mu_rpc_gather *g, struct mu_rpc_lead *lead)
{
    struct mu_rpc_room *room = g->stopped ? NULL : get_room(g, mu_span_str(lead->tag));

    if (room == NULL) {
        return g->stopped ? MUSTER_ECLOSED : MUSTER_ENOMEM;
    }
    if (room->lead != NULL) {
        return MUSTER_EBUSY;
    }
    room->places = mu_calloc(lead->count + 1, sizeof(*room->places));
    if (room->places == NULL) {
        free_if_empty(room);
        return MUSTER_ENOMEM;
    }
    room->lead = lead;
    MU_LIST_FOREACH_SAFE (it, tmp, &room->guests) {
        seat(room, MU_CONTAINER_OF(it, struct guest, link));
    }
    mu_env_timer_arm(g->env, &room->timer,
                     lead->timeout_ms == 0
                         ? MU_MONO_NEVER
                         : mu_mono_add_ms(mu_env_now(g->env).mono, lead->timeout_ms));
    finish_if_all_came(room);
    return 0;
}

void mu_rpc_gather_stop(struct mu_rpc_gather *g)
{
    g->stopped = true;
    MU_LIST_FOREACH_SAFE (it, tmp, &g->all) {
        struct mu_rpc_room *room = MU_CONTAINER_OF(it, struct mu_rpc_room, link);

        MU_LIST_FOREACH_SAFE (one, next, &room->guests) {
            answer(MU_CONTAINER_OF(one, struct guest, link), MUSTER_EDRAIN,
                   MU_SPAN_LIT("the leader was shut down"));
        }
        if (room->lead != NULL) {
            finish(room, MUSTER_ECLOSED, MU_SPAN_LIT("the agent was shut down"));
        } else {
            free_if_empty(room);
        }
    }
}

void mu_rpc_gather_free(struct mu_rpc_gather *g)
{
    if (g != NULL) {
        mu_map_fini(&g->rooms);
        mu_free(g);
    }
}
