/* What is asked of a donor, and answered at once. */
#include <stdio.h>
#include <string.h>

#include "core/addr.h"
#include "core/alloc.h"
#include "service/state/donor_internal.h"

static void reply(struct mu_state_client *v, uint64_t id, int status, struct mu_span payload)
{
    struct mu_now now = mu_env_now(v->donor->env);

    if (mu_rpc_reply(&v->base.rpc, now, id, status, payload) != 0) {
        mu_rpc_fail(&v->base.rpc, now, id, status != 0 ? status : MUSTER_ENOMEM);
    }
    mu_rpc_session_touch(&v->base);
}

static void fail(struct mu_state_client *v, uint64_t id, int status, const char *text)
{
    reply(v, id, status, mu_span_str(text));
}

static const char gone[] = "gone: nobody here has that state";

/* --- list ------------------------------------------------------------------------------------- */

static int put_entry(struct mu_buf *out, const struct mu_state_share *share)
{
    struct mu_state_entry entry = mu_state_share_entry(share);

    return mu_state_entry_encode(out, &entry);
}

static void on_list(struct mu_state_client *v, uint64_t id, struct mu_span prefix)
{
    struct mu_buf out;
    int err = 0;

    mu_buf_init(&out, MU_STATE_CHUNK_BYTES);
    MU_LIST_FOREACH (it, &v->donor->given_list) {
        const struct mu_state_given *given = MU_CONTAINER_OF(it, struct mu_state_given, link);

        if (err == 0 && !given->leaving && !given->share->hidden &&
            (prefix.len == 0 || mu_span_eq(prefix, mu_span_str(given->share->prefix)))) {
            err = put_entry(&out, given->share);
        }
    }
    if (err != 0) {
        fail(v, id, err, muster_strerror(err));
    } else {
        reply(v, id, 0, mu_buf_span(&out));
    }
    mu_buf_fini(&out);
}

/* --- have ------------------------------------------------------------------------------------- */

static struct mu_state_given *find_id(struct mu_state_client *v, struct mu_span id)
{
    struct mu_state_which which = {.by_id = true};

    return mu_state_id_decode(id, which.id) != 0 ? NULL : mu_state_given_find(v->donor, &which);
}

static void on_have(struct mu_state_client *v, uint64_t id, struct mu_span payload)
{
    struct mu_state_given *given = find_id(v, payload);
    struct mu_state_have have = {.all = true};
    struct mu_buf out;
    int err;

    if (given == NULL) {
        fail(v, id, MUSTER_ENOENT, gone);
        return;
    }
    if (given->share->have != NULL) {
        have.all = false;
        have.bits = mu_span(given->share->have, mu_state_bits_len(given->share->chunks));
    }
    mu_buf_init(&out, MU_STATE_CHUNKS_MAX / 8 + 16);
    err = mu_state_have_encode(&out, &have);
    if (err != 0) {
        fail(v, id, err, muster_strerror(err));
    } else {
        reply(v, id, 0, mu_buf_span(&out));
    }
    mu_buf_fini(&out);
}

/* --- swarm ------------------------------------------------------------------------------------ */

static bool is_any(const char *host)
{
    return host[0] == '\0' || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

/* Who listens everywhere does not know under which number it is seen: we do. */
static size_t complete_addr(const struct mu_state_client *v, struct mu_span told,
                            char out[MU_STATE_ADDR_MAX + 1])
{
    struct mu_addr seen;
    struct mu_addr addr;
    struct mu_errmsg msg;

    (void)snprintf(out, MU_STATE_ADDR_MAX + 1, "%.*s", (int)told.len, (const char *)told.data);
    if (strlen(out) == told.len && mu_addr_parse(out, 0, &addr, &msg) == 0 &&
        addr.kind == MU_ADDR_TCP && is_any(addr.host) &&
        mu_addr_parse(v->base.peer, 0, &seen, &msg) == 0 && seen.kind == MU_ADDR_TCP) {
        seen.port = addr.port;
        (void)mu_addr_format(&seen, out, MU_STATE_ADDR_MAX + 1);
    }
    return strlen(out);
}

/* Remembers somebody who has some of it, or hears of it again. */
static void note_member(struct mu_state_given *given, const struct mu_state_client *v,
                        struct mu_span told)
{
    struct mu_state_donor *d = given->donor;
    char addr[MU_STATE_ADDR_MAX + 1];
    struct mu_state_member *member = NULL;
    size_t len = complete_addr(v, told, addr);

    MU_LIST_FOREACH (it, &given->swarm) {
        struct mu_state_member *m = MU_CONTAINER_OF(it, struct mu_state_member, link);

        if (m->addr_len == len && memcmp(m->addr, addr, len) == 0) {
            member = m;
        }
    }
    if (len == 0 || (member == NULL && given->swarm_count >= d->config.sessions_max)) {
        return;
    }
    if (member == NULL) {
        member = mu_calloc(1, sizeof(*member));
        if (member == NULL) {
            return;
        }
        memcpy(member->addr, addr, len);
        member->addr_len = len;
        mu_list_init(&member->link);
        given->swarm_count++;
    }
    member->client = v;
    member->until = mu_mono_add_ms(mu_env_now(d->env).mono, d->config.swarm_ms);
    mu_list_remove(&member->link);
    mu_list_push(&given->swarm, &member->link);
}

void mu_state_given_forget(struct mu_state_given *given,
                           const struct mu_state_client *gone_accepted)
{
    mu_mono_t now = mu_env_now(given->donor->env).mono;

    MU_LIST_FOREACH_SAFE (it, tmp, &given->swarm) {
        struct mu_state_member *m = MU_CONTAINER_OF(it, struct mu_state_member, link);

        if (m->client == gone_accepted || mu_mono_reached(m->until, now)) {
            mu_list_remove(&m->link);
            mu_free(m);
            given->swarm_count--;
        }
    }
}

/* Others than the one who asks; if there are too many, from a random place on. */
static int put_members(struct mu_buf *out, const struct mu_state_given *given,
                       const struct mu_state_client *v)
{
    size_t skip = 0;
    size_t count = 0;
    size_t at = 0;
    int err = 0;

    if (given->swarm_count > MU_STATE_SWARM_MAX) {
        mu_env_entropy(given->donor->env, &skip, sizeof(skip));
        skip %= given->swarm_count - MU_STATE_SWARM_MAX + 1;
    }
    MU_LIST_FOREACH (it, &given->swarm) {
        const struct mu_state_member *m = MU_CONTAINER_OF(it, struct mu_state_member, link);

        if (at++ >= skip && m->client != v && err == 0 && count < MU_STATE_SWARM_MAX) {
            err = mu_state_swarm_add(out, mu_span(m->addr, m->addr_len));
            count++;
        }
    }
    return err;
}

/* Each of those who load begins with a part of its own. They are in the order of their addresses,
 * which all donors of this state see alike. */
static void number_parts(const struct mu_state_given *given, const struct mu_state_client *v,
                         struct mu_state_swarm_head *head)
{
    const struct mu_state_member *own = NULL;

    MU_LIST_FOREACH (it, &given->swarm) {
        const struct mu_state_member *m = MU_CONTAINER_OF(it, struct mu_state_member, link);

        own = m->client == v ? m : own;
    }
    if (own == NULL || given->swarm_count > UINT16_MAX) {
        return;
    }
    head->parts = (uint16_t)given->swarm_count;
    MU_LIST_FOREACH (it, &given->swarm) {
        const struct mu_state_member *m = MU_CONTAINER_OF(it, struct mu_state_member, link);

        if (mu_span_natural_cmp(mu_span(m->addr, m->addr_len), mu_span(own->addr, own->addr_len)) <
            0) {
            head->part++;
        }
    }
}

static void on_swarm(struct mu_state_client *v, uint64_t id, struct mu_span payload)
{
    struct mu_state_swarm_ask ask;
    struct mu_state_which which = {.by_id = true};
    struct mu_state_swarm_head head = {.again_ms = v->donor->config.again_ms};
    struct mu_state_given *given;
    struct mu_buf out;
    int err;

    if (mu_state_swarm_ask_decode(payload, &ask) != 0) {
        fail(v, id, MUSTER_EPROTO, "malformed question about a swarm");
        return;
    }
    memcpy(which.id, ask.id, sizeof(which.id));
    given = mu_state_given_find(v->donor, &which);
    if (given == NULL) {
        fail(v, id, MUSTER_ENOENT, gone);
        return;
    }
    mu_state_given_forget(given, NULL);
    if (ask.addr.len != 0) {
        note_member(given, v, ask.addr);
    }
    number_parts(given, v, &head);
    mu_buf_init(&out, 65536);
    err = mu_state_swarm_encode(&out, &head);
    err = err != 0 ? err : put_members(&out, given, v);
    if (err != 0) {
        fail(v, id, err, muster_strerror(err));
    } else {
        reply(v, id, 0, mu_buf_span(&out));
    }
    mu_buf_fini(&out);
}

/* --- offer and fetch -------------------------------------------------------------------------- */

static void on_offer(struct mu_state_client *v, uint64_t id, struct mu_span payload)
{
    struct mu_state_which which;
    struct mu_state_given *given;

    if (mu_state_which_decode(payload, &which) != 0) {
        fail(v, id, MUSTER_EPROTO, "malformed question for an offer");
        return;
    }
    given = mu_state_given_find(v->donor, &which);
    if (given == NULL) {
        fail(v, id, MUSTER_ENOENT, gone);
    } else if (mu_state_stream_new(v, id, given, true) != 0) {
        fail(v, id, MUSTER_ENOMEM, "out of memory");
    }
}

static void on_fetch(struct mu_state_client *v, uint64_t id, struct mu_span payload)
{
    struct mu_state_donor *d = v->donor;
    struct mu_state_given *given = find_id(v, payload);
    char text[MU_STATE_BUSY_TEXT_MAX];
    uint32_t retry_ms = 0;

    if (given == NULL) {
        fail(v, id, MUSTER_ENOENT, gone);
        return;
    }
    if (mu_state_gate_enter(&d->gate, &retry_ms) != 0) {
        d->stats.turned_away++;
        fail(v, id, MUSTER_EBUSY, mu_state_busy_text(text, retry_ms));
        return;
    }
    if (mu_state_stream_new(v, id, given, false) != 0) {
        mu_state_gate_leave(&d->gate);
        fail(v, id, MUSTER_ENOMEM, "out of memory");
        return;
    }
    d->stats.downloads++;
}

/* --- calls ------------------------------------------------------------------------------------ */

void mu_state_donor_call(struct mu_rpc_session *session, const struct mu_rpc_event *event)
{
    static const struct {
        const char *method;
        void (*serve)(struct mu_state_client *v, uint64_t id, struct mu_span payload);
    } served[] = {
        {MU_STATE_METHOD_LIST, on_list},   {MU_STATE_METHOD_OFFER, on_offer},
        {MU_STATE_METHOD_SWARM, on_swarm}, {MU_STATE_METHOD_HAVE, on_have},
        {MU_STATE_METHOD_FETCH, on_fetch},
    };
    struct mu_state_client *v = MU_CONTAINER_OF(session, struct mu_state_client, base);

    for (size_t i = 0; i < sizeof(served) / sizeof(served[0]); i++) {
        if (mu_span_eq(event->method, mu_span_str(served[i].method))) {
            served[i].serve(v, event->id, event->payload);
            return;
        }
    }
    fail(v, event->id, MUSTER_ENOMETHOD, "this is a donor of states, and has no such method");
}
