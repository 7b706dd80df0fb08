/* A load through a swarm: which donors there are, and which protocols they speak. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/error.h>

#include "codec/dht/dict.h"
#include "core/alloc.h"
#include "service/peer/env.h"
#include "service/state/swarm_load_internal.h"

#define FOUND_MAX   64   /* donors that are considered */
#define IDENTIFY_MS 3000 /* for a connected host to say which protocols it speaks */

/* --- the donors in the DHT -------------------------------------------------------------------- */

static int compare_found(const void *a, const void *b)
{
    const struct mu_state_found *x = a;
    const struct mu_state_found *y = b;

    if (x->trusted != y->trusted) {
        return x->trusted ? -1 : 1;
    }
    if (x->priority > y->priority || x->priority < y->priority) {
        return x->priority > y->priority ? -1 : 1;
    }
    return (x->lot < y->lot) - (x->lot > y->lot);
}

static int compare_lots(const void *a, const void *b)
{
    const struct mu_state_found *x = a;
    const struct mu_state_found *y = b;

    return (x->lot < y->lot) - (x->lot > y->lot);
}

/* An attacker can claim any priority in the DHT, for any number of peers. So half of the places are
 * drawn at random, unless the load goes by priority. */
static void pick_found(struct mu_state_swarm_load *l)
{
    size_t half = FOUND_MAX / 2;

    qsort(l->found, l->found_count, sizeof(*l->found), compare_found);
    if (l->found_count > FOUND_MAX) {
        if (!l->config.native.by_priority) {
            qsort(l->found + half, l->found_count - half, sizeof(*l->found), compare_lots);
            qsort(l->found + half, FOUND_MAX - half, sizeof(*l->found), compare_found);
        }
        l->found_count = FOUND_MAX;
    }
}

static bool is_trusted(const struct mu_state_loader_config *c, const struct mu_peer_id *peer)
{
    for (size_t i = 0; i < c->trust_count; i++) {
        if (mu_peer_id_eq(&c->trust[i], peer)) {
            return true;
        }
    }
    return false;
}

static int read_found(struct mu_state_swarm_load *l, struct mu_span dictionary)
{
    const struct mu_peer_id *self = mu_peer_host_id(mu_state_swarm_host(l->config.swarm));
    double now = mu_dht_service_time(mu_state_swarm_dht(l->config.swarm));
    struct mu_dht_dict dict;
    struct mu_dht_entry entry;
    int err = mu_dht_dict_decode(dictionary, &dict);

    if (err != 0) {
        return err;
    }
    l->found = mu_calloc((size_t)dict.count + 1, sizeof(*l->found));
    if (l->found == NULL) {
        return MUSTER_ENOMEM;
    }
    while (mu_dht_dict_next(&dict, &entry)) {
        struct mu_state_found *f = &l->found[l->found_count];

        if (mu_hm_donor_entry(&entry, now, &f->connect.peer, &f->priority) &&
            !mu_peer_id_eq(&f->connect.peer, self)) {
            mu_env_entropy(l->env, &f->lot, sizeof(f->lot));
            f->trusted = is_trusted(&l->config.native, &f->connect.peer);
            f->load = l;
            l->found_count++;
        }
    }
    pick_found(l);
    return 0;
}

static const char *say_other(const struct mu_state_swarm_load *l)
{
    return l->config.native.trust_count != 0 || l->config.native.id != NULL
               ? "ignored: it does not speak the native wire, so its state is not signed"
               : "does not speak the native wire";
}

static void settle(struct mu_state_found *f, enum mu_state_swarm_kind kind, int status,
                   const char *text)
{
    struct mu_state_swarm_load *l = f->load;

    if (f->kind != UNKNOWN) {
        return;
    }
    f->kind = kind;
    f->status = status;
    (void)snprintf(f->text, sizeof(f->text), "%s", text);
    if (l->phase == PROBING && kind != UNREACHED) {
        l->probe_by = mu_mono_min(
            l->probe_by, mu_mono_add_ms(mu_state_swarm_now(l), l->config.native.settle_ms));
    } else if (l->phase == NATIVE && kind == SPEAKS_NATIVE && l->busy) {
        mu_state_swarm_add_native(l, f); /* it came late, and is still of use */
    }
    mu_state_swarm_turn_later(l);
}

static bool speaks_native(const struct mu_state_found *f)
{
    return mu_peer_host_speaks(mu_state_swarm_host(f->load->config.swarm), &f->connect.peer,
                               MU_PEER_WIRE_NAME);
}

/* Looks at the protocols that a peer has named, if it has named any. */
static void look_at(struct mu_state_found *f)
{
    struct mu_peer_host *host = mu_state_swarm_host(f->load->config.swarm);

    if (speaks_native(f)) {
        settle(f, SPEAKS_NATIVE, 0, "");
    } else if (mu_peer_host_agent(host, &f->connect.peer).len != 0 ||
               mu_mono_reached(f->identify_by, mu_state_swarm_now(f->load))) {
        settle(f, SPEAKS_OTHER, 0, say_other(f->load));
    }
}

void mu_state_swarm_identified(struct mu_peer_watch *watch, const struct mu_peer_id *peer)
{
    struct mu_state_swarm_load *l = MU_CONTAINER_OF(watch, struct mu_state_swarm_load, watch);

    for (size_t i = 0; i < l->found_count; i++) {
        struct mu_state_found *f = &l->found[i];

        if (f->connected && mu_peer_id_eq(&f->connect.peer, peer)) {
            settle(f, speaks_native(f) ? SPEAKS_NATIVE : SPEAKS_OTHER, 0,
                   speaks_native(f) ? "" : say_other(l));
        }
    }
}

static void on_connected(struct mu_peer_connect *connect, int status, const char *text)
{
    struct mu_state_found *f = MU_CONTAINER_OF(connect, struct mu_state_found, connect);

    f->connecting = false;
    if (status != 0) {
        struct mu_errmsg why;

        (void)mu_err(&why, status, "cannot be reached: %s", text);
        settle(f, UNREACHED, status, why.text);
        return;
    }
    f->connected = true;
    f->identify_by = mu_mono_add_ms(mu_state_swarm_now(f->load), IDENTIFY_MS);
    look_at(f);
    mu_state_swarm_turn_later(f->load);
}

void mu_state_swarm_looked(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct mu_state_swarm_load *l = MU_CONTAINER_OF(wish, struct mu_state_swarm_load, wish);
    bool found = op->count != 0 && op->results[0].type == MU_DHT_FOUND_DICTIONARY;
    int err = found ? read_found(l, mu_buf_span(&op->results[0].value)) : op->status;

    l->busy = false;
    if (err != 0 && l->donor_count == 0) {
        char text[120];

        (void)snprintf(text, sizeof(text), "cannot look up donors: %s", muster_strerror(err));
        mu_state_swarm_note(l, err, text);
    }
    mu_state_swarm_turn_later(l);
}

void mu_state_swarm_probe(struct mu_state_swarm_load *l)
{
    l->phase = PROBING;
    l->probe_by = mu_mono_add_ms(mu_state_swarm_now(l), l->config.native.connect_ms);
    for (size_t i = 0; i < l->found_count; i++) {
        struct mu_state_found *f = &l->found[i];

        f->connect.done = on_connected;
        f->connecting = true;
        mu_peer_host_connect(mu_state_swarm_host(l->config.swarm), &f->connect);
    }
}

bool mu_state_swarm_probed(struct mu_state_swarm_load *l)
{
    bool known = true;

    for (size_t i = 0; i < l->found_count; i++) {
        if (l->found[i].kind == UNKNOWN && l->found[i].connected) {
            look_at(&l->found[i]);
        }
        known = known && l->found[i].kind != UNKNOWN;
    }
    return known || mu_mono_reached(l->probe_by, mu_state_swarm_now(l));
}

/* --- the report ------------------------------------------------------------------------------- */

int mu_state_swarm_load_report(const struct mu_state_swarm_load *l, struct mu_buf *out)
{
    int err = mu_buf_append(out, mu_buf_span(&l->report));

    for (size_t i = 0; err == 0 && i < l->found_count; i++) {
        const struct mu_state_found *f = &l->found[i];
        char id[MU_PEER_ID_TEXT_MAX];
        char line[MU_PEER_ID_TEXT_MAX + MU_ERRMSG_CAP + 32];

        if (f->kind != SPEAKS_NATIVE && !f->asked) {
            (void)snprintf(line, sizeof(line), "%s, priority %g: %s\n",
                           mu_peer_id_format(&f->connect.peer, id), f->priority,
                           f->kind == UNKNOWN ? "did not answer in time" : f->text);
            err = mu_buf_append(out, mu_span_str(line));
        }
    }
    return err;
}

bool mu_state_swarm_load_row(const struct mu_state_swarm_load *l, size_t i,
                             struct mu_state_swarm_row *ret)
{
    for (size_t k = 0; k < l->found_count; k++) {
        const struct mu_state_found *f = &l->found[k];

        if (mu_state_swarm_is_native(f) || i-- != 0) {
            continue;
        }
        *ret = (struct mu_state_swarm_row){.donor = "/p2p/", .priority = f->priority};
        (void)mu_peer_id_format(&f->connect.peer, ret->donor + 5);
        ret->status = f->kind == UNKNOWN ? MUSTER_ETIMEDOUT : f->status;
        ret->text = f->kind == UNKNOWN ? "did not answer in time" : f->text;
        return true;
    }
    return false;
}
