/* Who has what, which of it is taken, and its offer. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "crypto/state_tree.h"
#include "service/log.h"
#include "service/state_loader_internal.h"

#define ASK_AGAIN_MS 500

static void say(struct mu_state_link *k, int status, const char *text)
{
    k->status = status;
    (void)snprintf(k->text, sizeof(k->text), "%.150s", text);
    k->loader->last_status = mu_err(&k->loader->last, status, "%.120s: %.120s", k->name, text);
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

    say(k, status, text);
    k->asked = true;
    k->entry_count = 0;
    if (l->offerer == k && !l->checking) {
        l->offerer = NULL; /* Another one is asked for it. */
    }
}

/* Somebody has it of whom that was not known: its offer may be a good one. */
static void unrefuse(struct mu_state_loader *l, const uint8_t id[MU_STATE_ID_LEN])
{
    for (size_t i = 0; i < l->refused_count; i++) {
        if (memcmp(l->refused[i], id, MU_STATE_ID_LEN) == 0) {
            memcpy(l->refused[i], l->refused[--l->refused_count], MU_STATE_ID_LEN);
            return;
        }
    }
}

static int take_entries(struct mu_state_link *k, struct mu_span walk)
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
        listed = &k->entries[k->entry_count++];
        listed->entry = entry;
        memcpy(listed->prefix, entry.prefix.data, entry.prefix.len);
        listed->entry.prefix.data = (const uint8_t *)listed->prefix;
        unrefuse(k->loader, entry.id);
    }
    return rc;
}

static void on_list(struct mu_state_link *k, const struct mu_rpc_event *event)
{
    struct mu_state_loader *l = k->loader;
    char text[120];
    int err = event->status;

    k->list_call = 0;
    k->asked = true;
    if (err != 0) {
        (void)snprintf(text, sizeof(text), "%.*s",
                       (int)(event->payload.len < 100 ? event->payload.len : 100),
                       (const char *)event->payload.data);
        say(k, err, text[0] != '\0' ? text : muster_strerror(err));
        return;
    }
    err = take_entries(k, event->payload);
    if (err != 0) {
        say(k, err, "its list cannot be read");
        return;
    }
    k->status = 0;
    k->text[0] = '\0';
    if (k->entry_count != 0 && l->settle_at.ns == UINT64_MAX) {
        l->settle_at = mu_mono_add_ms(mu_env_now(l->env).mono, l->config.settle_ms);
    }
}

/* --- which one -------------------------------------------------------------------------------- */

static bool is_refused(const struct mu_state_loader *l, const uint8_t *id)
{
    for (size_t i = 0; i < l->refused_count; i++) {
        if (memcmp(l->refused[i], id, MU_STATE_ID_LEN) == 0) {
            return true;
        }
    }
    return false;
}

/* Below, at or above zero as `a` is worse, as good as or better than `b`. */
static int compare(const struct mu_state_entry *a, const struct mu_state_entry *b)
{
    if (a->priority != b->priority) {
        return a->priority < b->priority ? -1 : 1;
    }
    if (a->epoch != b->epoch) {
        return a->epoch < b->epoch ? -1 : 1;
    }
    return a->step == b->step ? 0 : a->step < b->step ? -1 : 1;
}

/* The newest by priority; of several that are as good, one at random. */
static bool choose(struct mu_state_loader *l)
{
    const struct mu_state_listed *best = NULL;
    uint32_t ties = 0;

    MU_LIST_FOREACH (it, &l->links) {
        struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        for (size_t i = 0; i < k->entry_count && !k->banned; i++) {
            const struct mu_state_listed *e = &k->entries[i];
            int order = best == NULL ? 1 : compare(&e->entry, &best->entry);
            uint32_t random;

            if (is_refused(l, e->entry.id) || order < 0 ||
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

static const struct mu_state_entry *entry_of(const struct mu_state_link *k,
                                             const uint8_t id[MU_STATE_ID_LEN])
{
    for (size_t i = 0; i < k->entry_count; i++) {
        if (memcmp(k->entries[i].entry.id, id, MU_STATE_ID_LEN) == 0) {
            return &k->entries[i].entry;
        }
    }
    return NULL;
}

/* --- its offer -------------------------------------------------------------------------------- */

/* Asks somebody who has the state that is wanted for its offer. False: there is nobody left. */
static bool ask_offer(struct mu_state_loader *l)
{
    struct mu_state_which which = {.by_id = true};
    struct mu_state_link *best = NULL;
    struct mu_buf out;

    memcpy(which.id, l->want.entry.id, sizeof(which.id));
    MU_LIST_FOREACH (it, &l->links) {
        struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        if (!k->banned && !k->offer_tried && k->ready && entry_of(k, which.id) != NULL) {
            best = k;
        }
    }
    if (best == NULL) {
        return false;
    }
    best->offer_tried = true;
    mu_state_offer_fini(&l->offer);
    mu_state_offer_init(&l->offer);
    mu_buf_init(&out, 1024);
    if (mu_state_which_encode(&out, &which) == 0) {
        best->offer_call =
            mu_state_link_call(best, MU_STATE_METHOD_OFFER, mu_buf_span(&out), l->config.idle_ms);
    }
    mu_buf_fini(&out);
    l->offerer = best->offer_call == 0 ? NULL : best;
    return true;
}

/* Nobody has a good offer of it: the next best is taken. */
static void refuse_want(struct mu_state_loader *l)
{
    if (l->refused_count < MU_STATE_REFUSED_MAX) {
        memcpy(l->refused[l->refused_count++], l->want.entry.id, MU_STATE_ID_LEN);
    } else {
        mu_state_loader_end(l, MUSTER_ELIMIT, "too many states that nobody had a good offer of");
    }
    l->has_want = false;
}

/* The one who gave out something that is not as it should be is not asked again. */
static void ban(struct mu_state_link *k, int status, const char *text)
{
    mu_log(MUSTER_LOG_WARN, "STATE-DONOR-BANNED", "donor=%s why=\"%s\"", k->name, text);
    say(k, status, text);
    k->banned = true;
    k->entry_count = 0;
    mu_state_link_close(k);
}

static void accept(struct mu_state_loader *l)
{
    struct mu_state_plan plan = {.offer = &l->offer, .entry = &l->want.entry};
    struct mu_errmsg msg = {0};
    int err = l->config.accept(l->config.context, &plan, &msg);

    if (err != 0) {
        mu_state_loader_end(l, err, msg.text);
        return;
    }
    mu_state_fetching_begin(l, &plan);
}

static bool agrees(const struct mu_state_manifest *m, const struct mu_state_entry *e)
{
    return e->epoch == m->epoch && e->step == m->step && e->bytes == m->layout.bytes &&
           e->tensors == m->layout.count && e->chunks == mu_state_chunk_count(m);
}

/* Whoever said other things of this state than its manifest does is not asked again. False: it was
 * wanted for what one of them said. */
static bool check_told(struct mu_state_loader *l)
{
    const struct mu_state_manifest *m = &l->offer.manifest;

    MU_LIST_FOREACH (it, &l->links) {
        struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);
        const struct mu_state_entry *e = entry_of(k, l->want.entry.id);

        if (e != NULL && !k->banned && !agrees(m, e)) {
            ban(k, MUSTER_ECORRUPT, "its manifest is of another version than it says it has");
        }
    }
    return agrees(m, &l->want.entry);
}

static void run_check(struct mu_work *work)
{
    struct mu_state_check *c = MU_CONTAINER_OF(work, struct mu_state_check, work);
    struct mu_peer_id signer;

    c->err = mu_state_offer_verify(&c->loader->offer, c->id, c->id, &signer, &c->msg);
}

static void check_done(struct mu_work *work)
{
    struct mu_state_check *c = MU_CONTAINER_OF(work, struct mu_state_check, work);
    struct mu_state_loader *l = c->loader;
    struct mu_state_link *k = l->offerer;
    int err = c->err;

    l->jobs--;
    l->checking = false;
    l->offerer = NULL;
    if (l->phase == MU_STATE_OFFERING) {
        if (err == MUSTER_ENOMEM) {
            mu_state_loader_end(l, err, "out of memory");
        } else if (err != 0) {
            ban(k, err, c->msg.text);
        } else if (!check_told(l)) {
            l->has_want = false;
            l->phase = MU_STATE_ASKING;
        } else {
            accept(l);
        }
    }
    mu_free(c);
    mu_state_loader_turn(l);
}

/* The offer is whole: whether it holds together is found out on another thread. */
static void check_offer(struct mu_state_loader *l)
{
    struct mu_state_check *c = mu_calloc(1, sizeof(*c));

    if (c != NULL) {
        c->work.run = run_check;
        c->work.done = check_done;
        c->loader = l;
        memcpy(c->id, l->want.entry.id, sizeof(c->id));
    }
    if (c == NULL || mu_env_work(l->env, &c->work) != 0) {
        mu_free(c);
        mu_state_loader_end(l, MUSTER_ENOMEM, "out of memory");
        return;
    }
    l->checking = true;
    l->jobs++;
}

/* False: it is not whole, and no more comes; or it is none. */
static void take_piece(struct mu_state_link *k, struct mu_span piece, bool last)
{
    struct mu_state_loader *l = k->loader;
    struct mu_errmsg msg = {0};
    int err = l->offerer != k ? MUSTER_EAGAIN : mu_state_offer_recv(&l->offer, piece, &msg);

    if (l->offerer != k || (err == MUSTER_EAGAIN && !last) || (err == 0 && !last)) {
        return; /* What is whole is looked at when its reply has come. */
    }
    if (err == 0) {
        check_offer(l);
        return;
    }
    l->offerer = NULL;
    if (err == MUSTER_ENOMEM) {
        mu_state_loader_end(l, err, "out of memory for an offer");
    } else {
        ban(k, err == MUSTER_EAGAIN ? MUSTER_EPROTO : err,
            err == MUSTER_EAGAIN ? "its offer is not whole" : msg.text);
    }
}

void mu_state_ask_item(struct mu_state_link *k, struct mu_span piece)
{
    take_piece(k, piece, false);
}

void mu_state_ask_reply(struct mu_state_link *k, const struct mu_rpc_event *event)
{
    struct mu_state_loader *l = k->loader;
    char text[120];

    if (event->id == k->list_call) {
        on_list(k, event);
        return;
    }
    k->offer_call = 0;
    if (event->status == 0) {
        take_piece(k, event->payload, true);
        return;
    }
    if (l->offerer == k) {
        l->offerer = NULL;
    }
    (void)snprintf(text, sizeof(text), "no offer: %.*s",
                   (int)(event->payload.len < 100 ? event->payload.len : 100),
                   (const char *)event->payload.data);
    say(k, event->status, text);
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

/* Asks those who were not asked in this round. */
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

/* All have answered, and nobody has anything. */
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
            mu_state_loader_end(l, MUSTER_ENOENT,
                                l->config.prefix[0] == '\0'
                                    ? "no donor has a state"
                                    : "no donor has a state under that prefix");
        } else {
            mu_state_loader_end(l, l->last_status == 0 ? MUSTER_ECONN : l->last_status,
                                l->last.text);
        }
        return;
    }
    if (l->ask_at.ns <= now.ns) {
        l->ask_at = mu_mono_add_ms(now, ASK_AGAIN_MS);
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

/* Enough is known of who has what, or all that will be. */
static void decide(struct mu_state_loader *l)
{
    l->settle_at = MU_MONO_NEVER;
    if (l->config.list_only) {
        mu_state_loader_end(l, 0, "");
    } else if (choose(l)) {
        l->phase = MU_STATE_OFFERING;
    } else if (!all_asked(l)) {
        return; /* The others may have something better. */
    } else if (l->refused_count != 0 && !l->config.expect_more) {
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
    while (l->phase == MU_STATE_OFFERING && l->offerer == NULL && !ask_offer(l)) {
        refuse_want(l);
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
    }
    return at;
}
