/* What the donors have, and which state is chosen. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "crypto/state_tree.h"
#include "service/base/log.h"
#include "service/state/loader_internal.h"

#define DOWNLOADS_MAX 2 /* of a state whose donors give no chunks; each has several tries */

void mu_state_ask_say(struct mu_state_link *k, int status, const char *text)
{
    k->status = status;
    (void)snprintf(k->text, sizeof(k->text), "%s", text);
    k->loader->last_status = mu_err(&k->loader->last, status, "%s: %s", k->name, text);
}

/* --- list ------------------------------------------------------------------------------------- */

void mu_state_ask_ready(struct mu_state_link *k)
{
    struct mu_state_loader *l = k->loader;

    k->list_call = mu_state_link_call(k, MU_STATE_METHOD_LIST, mu_span_str(l->config.prefix),
                                      l->config.connect_ms);
    if (k->list_call == 0) {
        mu_state_ask_failed(k, MUSTER_ENOMEM, "out of memory");
    }
}

void mu_state_ask_failed(struct mu_state_link *k, int status, const char *text)
{
    struct mu_state_loader *l = k->loader;

    mu_state_ask_say(k, status, text);
    k->asked = true;
    k->entry_count = 0;
    if (l->offerer == k && !l->checking) {
        l->offerer = NULL; /* another donor is asked for it */
    }
}

/* Another donor has the state: its offer may be a good one. */
static void unrefuse(struct mu_state_loader *l, const uint8_t id[MU_STATE_ID_LEN])
{
    for (size_t i = 0; i < l->refused_count; i++) {
        if (memcmp(l->refused[i], id, MU_STATE_ID_LEN) == 0) {
            memcpy(l->refused[i], l->refused[--l->refused_count], MU_STATE_ID_LEN);
            return;
        }
    }
}

static bool is_refused(const struct mu_state_loader *l, const uint8_t *id)
{
    for (size_t i = 0; i < l->refused_count; i++) {
        if (memcmp(l->refused[i], id, MU_STATE_ID_LEN) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_given_up(const struct mu_state_loader *l, const uint8_t *id)
{
    for (size_t i = 0; i < l->failed_count; i++) {
        if (memcmp(l->failed[i].id, id, MU_STATE_ID_LEN) == 0) {
            return l->failed[i].times >= DOWNLOADS_MAX;
        }
    }
    return false;
}

void mu_state_ask_give_up(struct mu_state_loader *l, const char *why)
{
    const struct mu_state_entry *e = &l->want.entry;
    char line[320];
    size_t i = 0;

    while (i < l->failed_count && memcmp(l->failed[i].id, e->id, MU_STATE_ID_LEN) != 0) {
        i++;
    }
    if (i == MU_STATE_REFUSED_MAX) {
        return;
    }
    if (i == l->failed_count) {
        l->failed_count++;
        memcpy(l->failed[i].id, e->id, MU_STATE_ID_LEN);
    }
    if (++l->failed[i].times == DOWNLOADS_MAX) {
        mu_log(MUSTER_LOG_WARN, "STATE-PASSED-OVER",
               "epoch=%" PRIu64 " step=%" PRIu64 " why=\"%s\"", e->epoch, e->step, why);
        (void)snprintf(line, sizeof(line),
                       "version %" PRIu64 ".%" PRIu64
                       " is passed over, no donor gives it: %.200s\n",
                       e->epoch, e->step, why);
        (void)mu_buf_append(&l->report, mu_span_str(line));
    }
}

bool mu_state_ask_trusts(const struct mu_state_loader *l, const struct mu_peer_id *signer)
{
    for (size_t i = 0; i < l->config.trust_count; i++) {
        if (mu_peer_id_eq(&l->config.trust[i], signer)) {
            return true;
        }
    }
    return l->config.trust_count == 0;
}

bool mu_state_ask_wants(const struct mu_state_loader *l, const struct mu_state_listed *e)
{
    return mu_state_ask_trusts(l, &e->signer) && !is_refused(l, e->entry.id) &&
           !is_given_up(l, e->entry.id) &&
           (l->config.id == NULL || memcmp(l->config.id, e->entry.id, MU_STATE_ID_LEN) == 0) &&
           (l->config.wants == NULL || l->config.wants(l->config.context, &e->entry));
}

/* Takes the list of what a donor has. The signatures are checked here: a signature is over the id
 * alone. */
static int take_entries(struct mu_state_link *k, struct mu_span walk, struct mu_errmsg *msg)
{
    struct mu_state_listed *listed;
    struct mu_state_entry entry;
    int rc;

    k->entry_count = 0;
    if (k->entries == NULL) {
        k->entries = mu_calloc(MU_STATE_ENTRIES_MAX, sizeof(*k->entries));
    }
    if (k->entries == NULL) {
        return MUSTER_ENOMEM;
    }
    while ((rc = mu_state_entry_next(&walk, &entry)) == 1) {
        if (k->entry_count == MU_STATE_ENTRIES_MAX ||
            (k->loader->config.prefix[0] != '\0' &&
             !mu_span_eq(entry.prefix, mu_span_str(k->loader->config.prefix)))) {
            continue;
        }
        listed = &k->entries[k->entry_count];
        rc = mu_state_signer(entry.id, entry.public_key, entry.signature, &listed->signer, msg);
        if (rc != 0) {
            return rc;
        }
        k->entry_count++;
        listed->entry = entry;
        listed->entry.public_key = listed->entry.signature = (struct mu_span){0};
        memcpy(listed->prefix, entry.prefix.data, entry.prefix.len);
        listed->entry.prefix.data = (const uint8_t *)listed->prefix;
        unrefuse(k->loader, entry.id);
    }
    return rc;
}

/* Bans a donor that gave out something wrong: it is not asked again. */
void mu_state_ask_ban(struct mu_state_link *k, int status, const char *text)
{
    mu_log(MUSTER_LOG_WARN, "STATE-DONOR-BANNED", "donor=%s why=\"%s\"", k->name, text);
    mu_state_ask_say(k, status, text);
    k->banned = true;
    k->entry_count = 0;
    mu_state_link_close(k);
}

/* Says that a donor has only states that we do not want, which is not its fault. */
static void say_unwanted(struct mu_state_link *k)
{
    const struct mu_state_loader *l = k->loader;
    const struct mu_state_listed *e = &k->entries[0];
    char signer[MU_PEER_ID_TEXT_MAX];

    for (size_t i = 0; i < k->entry_count; i++) {
        if (mu_state_ask_wants(l, &k->entries[i])) {
            return;
        }
    }
    if (!mu_state_ask_trusts(l, &e->signer)) {
        (void)snprintf(k->text, sizeof(k->text),
                       "ignored: its state is signed by %s, which is not trusted",
                       mu_peer_id_format(&e->signer, signer));
    } else if (is_given_up(l, e->entry.id)) {
        (void)snprintf(k->text, sizeof(k->text), "ignored: its state could not be loaded");
    } else {
        (void)snprintf(k->text, sizeof(k->text), "ignored: it does not have the requested state");
    }
}

static void on_list(struct mu_state_link *k, const struct mu_rpc_event *event)
{
    struct mu_state_loader *l = k->loader;
    struct mu_errmsg msg = {{0}};
    char text[120];
    int err = event->status;

    k->list_call = 0;
    k->asked = true;
    if (err != 0) {
        (void)snprintf(text, sizeof(text), "%.*s",
                       (int)(event->payload.len < 100 ? event->payload.len : 100),
                       (const char *)event->payload.data);
        mu_state_ask_say(k, err, text[0] != '\0' ? text : muster_strerror(err));
        return;
    }
    err = take_entries(k, event->payload, &msg);
    if (err != 0 && msg.text[0] != '\0' && err != MUSTER_ENOMEM) {
        mu_state_ask_ban(k, err, msg.text);
        return;
    }
    if (err != 0) {
        k->entry_count = 0;
        mu_state_ask_say(k, err, "its list cannot be read");
        return;
    }
    k->status = 0;
    k->text[0] = '\0';
    if (k->entry_count != 0 && !l->config.list_only) {
        say_unwanted(k);
    }
    if (k->entry_count != 0 && l->settle_at.ns == UINT64_MAX) {
        l->settle_at = mu_mono_add_ms(mu_env_now(l->env).mono, l->config.settle_ms);
    }
}

/* --- the choice ------------------------------------------------------------------------------- */

/* Returns below, at or above zero as `a` is worse than, as good as or better than `b`. The epoch is
 * signed with the state; the priority is only claimed. */
static int compare(const struct mu_state_loader *l, const struct mu_state_entry *a,
                   const struct mu_state_entry *b)
{
    if (!l->config.by_priority && a->epoch != b->epoch) {
        return a->epoch < b->epoch ? -1 : 1;
    }
    if (a->priority != b->priority) {
        return a->priority < b->priority ? -1 : 1;
    }
    if (a->epoch != b->epoch) {
        return a->epoch < b->epoch ? -1 : 1;
    }
    return a->step == b->step ? 0 : a->step < b->step ? -1 : 1;
}

/* Chooses the newest; of several that are as good, one at random. */
static bool choose(struct mu_state_loader *l)
{
    const struct mu_state_listed *best = NULL;
    uint32_t ties = 0;

    MU_LIST_FOREACH (it, &l->links) {
        struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        for (size_t i = 0; i < k->entry_count && !k->banned; i++) {
            const struct mu_state_listed *e = &k->entries[i];
            int order = best == NULL ? 1 : compare(l, &e->entry, &best->entry);
            uint32_t random;

            if (!mu_state_ask_wants(l, e) || order < 0 ||
                (best != NULL && order == 0 &&
                 memcmp(e->entry.id, best->entry.id, MU_STATE_ID_LEN) == 0)) {
                continue;
            }
            ties = order > 0 ? 1 : ties + 1;
            mu_env_entropy(l->env, &random, sizeof(random));
            if (random % ties == 0) {
                best = e;
            }
        }
    }
    if (best == NULL) {
        return false;
    }
    l->want = *best;
    l->want.entry.prefix.data = (const uint8_t *)l->want.prefix;
    l->has_want = true;
    MU_LIST_FOREACH (it, &l->links) {
        MU_CONTAINER_OF(it, struct mu_state_link, link)->offer_tried = false;
    }
    return true;
}

const struct mu_state_listed *mu_state_ask_listed(const struct mu_state_link *k,
                                                  const uint8_t id[MU_STATE_ID_LEN])
{
    for (size_t i = 0; i < k->entry_count; i++) {
        if (memcmp(k->entries[i].entry.id, id, MU_STATE_ID_LEN) == 0) {
            return &k->entries[i];
        }
    }
    return NULL;
}

void mu_state_ask_reply(struct mu_state_link *k, const struct mu_rpc_event *event)
{
    if (event->id == k->list_call) {
        on_list(k, event);
    } else {
        mu_state_offer_reply(k, event);
    }
}

/* --- the turn --------------------------------------------------------------------------------- */

void mu_state_ask_begin(struct mu_state_loader *l)
{
    mu_mono_t now = mu_env_now(l->env).mono;

    l->phase = MU_STATE_ASKING;
    l->settle_at = MU_MONO_NEVER;
    l->ask_at = now;
    l->idle_at = l->config.idle_ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(now, l->config.idle_ms);
    l->has_want = false;
    l->offerer = NULL;
    MU_LIST_FOREACH (it, &l->links) {
        struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        k->asked = false;
        k->offer_tried = false;
        k->entry_count = 0;
    }
}

/* Asks the donors that were not asked in this round. */
static void ask_all(struct mu_state_loader *l)
{
    MU_LIST_FOREACH (it, &l->links) {
        struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        if (k->asked || k->banned || k->list_call != 0 || k->closing) {
            continue;
        }
        if (k->ready) {
            mu_state_ask_ready(k);
        } else if (!k->live && !mu_state_link_dial(k)) {
            mu_state_ask_failed(k, MUSTER_EADDR, "its address cannot be dialled");
        }
    }
}

static const char *say_none(const struct mu_state_loader *l)
{
    return l->config.id != NULL          ? "no donor has the requested state"
           : l->config.trust_count != 0  ? "no donor has a state that is signed by a trusted peer"
           : l->config.prefix[0] == '\0' ? "no donor has a state"
                                         : "no donor has a state under that prefix";
}

/* All have answered, and no donor has anything: asks again later. */
static void ask_later(struct mu_state_loader *l)
{
    mu_mono_t now = mu_env_now(l->env).mono;
    bool answered = false;

    MU_LIST_FOREACH (it, &l->links) {
        answered = answered || MU_CONTAINER_OF(it, struct mu_state_link, link)->status == 0;
    }
    if (!l->config.expect_more) {
        if (l->link_count == 0) {
            mu_state_loader_end(l, MUSTER_ENOENT, "no donor is known");
        } else if (answered) {
            mu_state_loader_end(l, MUSTER_ENOENT, say_none(l));
        } else {
            mu_state_loader_end(l, l->last_status == 0 ? MUSTER_ECONN : l->last_status,
                                l->last.text);
        }
        return;
    }
    if (l->ask_at.ns <= now.ns) {
        l->ask_at = mu_mono_add_ms(now, l->config.again_ms);
        MU_LIST_FOREACH (it, &l->links) {
            MU_CONTAINER_OF(it, struct mu_state_link, link)->asked = false;
        }
    }
}

static bool all_asked(const struct mu_state_loader *l)
{
    MU_LIST_FOREACH (it, &l->links) {
        const struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        if (!k->asked && !k->banned) {
            return false;
        }
    }
    return true;
}

/* We know enough of what donors have, or all that we will know. */
static void decide(struct mu_state_loader *l)
{
    l->settle_at = MU_MONO_NEVER;
    if (l->config.list_only) {
        mu_state_loader_end(l, 0, "");
    } else if (choose(l)) {
        l->phase = MU_STATE_OFFERING;
    } else if (!all_asked(l)) {
        return; /* the others may have something better */
    } else if (l->refused_count + l->failed_count != 0 && !l->config.expect_more) {
        mu_state_loader_end(l, l->last_status == 0 ? MUSTER_ECORRUPT : l->last_status,
                            l->last.text);
    } else {
        ask_later(l);
    }
}

void mu_state_ask_turn(struct mu_state_loader *l)
{
    mu_mono_t now = mu_env_now(l->env).mono;

    if (l->phase == MU_STATE_ASKING) {
        ask_all(l);
        if (all_asked(l) || mu_mono_reached(l->settle_at, now)) {
            decide(l);
        }
    }
    if (l->phase == MU_STATE_OFFERING) {
        mu_state_offer_turn(l);
    }
    while (l->phase == MU_STATE_OFFERING && l->offerer == NULL && !mu_state_offer_ask(l)) {
        mu_state_offer_refuse(l);
        if (l->phase == MU_STATE_OFFERING) {
            l->phase = MU_STATE_ASKING;
            decide(l);
        }
    }
}

mu_mono_t mu_state_ask_deadline(const struct mu_state_loader *l)
{
    mu_mono_t at = mu_mono_min(l->deadline, l->idle_at);

    if (l->phase == MU_STATE_ASKING) {
        at = mu_mono_min(at, l->settle_at);
        at = l->config.expect_more && all_asked(l) ? mu_mono_min(at, l->ask_at) : at;
    } else if (l->offerer != NULL && !l->checking) {
        at = mu_mono_min(at, l->offer_at);
    }
    return at;
}
