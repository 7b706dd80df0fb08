/* The offer of the chosen state: asks for it, puts its pieces together, checks it. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "crypto/state_tree.h"
#include "service/state/loader_internal.h"

bool mu_state_offer_ask(struct mu_state_loader *l)
{
    struct mu_state_which which = {.by_id = true};
    struct mu_state_link *best = NULL;
    struct mu_buf out;

    memcpy(which.id, l->want.entry.id, sizeof(which.id));
    MU_LIST_FOREACH (it, &l->links) {
        struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);
        const struct mu_state_listed *e = mu_state_ask_listed(k, which.id);

        /* Other donors may have the same bytes, under a signature that does not count. */
        if (!k->banned && !k->offer_tried && k->ready && e != NULL && mu_state_ask_wants(l, e)) {
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
    l->offer_at = mu_mono_add_ms(mu_env_now(l->env).mono, l->config.stall_ms);
    return true;
}

void mu_state_offer_refuse(struct mu_state_loader *l)
{
    if (l->refused_count < MU_STATE_REFUSED_MAX) {
        memcpy(l->refused[l->refused_count++], l->want.entry.id, MU_STATE_ID_LEN);
    } else {
        mu_state_loader_end(l, MUSTER_ELIMIT,
                            "there are too many states of which no donor had a good offer");
    }
    l->has_want = false;
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

void mu_state_offer_accept_again(struct mu_state_loader *l)
{
    struct mu_state_plan plan = {.offer = &l->share->offer, .entry = &l->want.entry, .again = true};
    struct mu_state_share old = *l->share;
    struct mu_errmsg msg = {0};
    int err = l->config.accept(l->config.context, &plan, &msg);

    if (err != 0) {
        mu_state_loader_end(l, err, msg.text);
        return;
    }
    l->share->segments = plan.segments;
    l->share->segment_count = plan.segment_count;
    l->share->read = plan.read;
    l->share->prepare = plan.prepare;
    l->share->released = plan.released;
    l->share->owner = plan.owner;
    if (old.released != NULL) {
        old.released(&old);
    }
    mu_free(old.segments);
    mu_state_resume_begin(l, &plan);
}

static bool agrees(const struct mu_state_manifest *m, const struct mu_state_entry *e)
{
    return e->epoch == m->epoch && e->step == m->step && e->bytes == m->layout.bytes &&
           e->tensors == m->layout.count && e->chunks == mu_state_chunk_count(m);
}

/* Bans donors that described this state differently from its manifest. False: the state was chosen
 * because of such a description. */
static bool check_told(struct mu_state_loader *l)
{
    const struct mu_state_manifest *m = &l->offer.manifest;

    MU_LIST_FOREACH (it, &l->links) {
        struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);
        const struct mu_state_listed *e = mu_state_ask_listed(k, l->want.entry.id);

        if (e != NULL && !k->banned && !agrees(m, &e->entry)) {
            mu_state_ask_ban(k, MUSTER_ECORRUPT,
                             "its manifest belongs to another version than it listed");
        }
    }
    return agrees(m, &l->want.entry);
}

static void run_check(struct mu_work *work)
{
    struct mu_state_check *c = MU_CONTAINER_OF(work, struct mu_state_check, work);

    c->err = mu_state_offer_verify(&c->loader->offer, c->id, c->id, &c->signer, &c->msg);
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
            mu_state_ask_ban(k, err, c->msg.text);
        } else if (!mu_state_ask_trusts(l, &c->signer)) {
            mu_state_ask_ban(k, MUSTER_ESIGNATURE,
                             "its offer is not signed by the signer that it listed");
        } else if (!check_told(l)) {
            l->has_want = false;
            l->phase = MU_STATE_ASKING;
        } else {
            l->want.signer = c->signer;
            accept(l);
        }
    }
    mu_free(c);
    mu_state_loader_turn(l);
}

/* The offer is complete: another thread verifies it. */
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

/* Takes a piece of an offer; drops the donor if the offer cannot become complete. */
static void take_piece(struct mu_state_link *k, struct mu_span piece, bool last)
{
    struct mu_state_loader *l = k->loader;
    struct mu_errmsg msg = {0};
    int err = l->offerer != k ? MUSTER_EAGAIN : mu_state_offer_recv(&l->offer, piece, &msg);

    if (l->offerer != k || (err == MUSTER_EAGAIN && !last) || (err == 0 && !last)) {
        l->offer_at = mu_mono_add_ms(mu_env_now(l->env).mono, l->config.stall_ms);
        return; /* a complete offer is checked when its reply has come */
    }
    if (err == 0) {
        check_offer(l);
        return;
    }
    l->offerer = NULL;
    if (err == MUSTER_ENOMEM) {
        mu_state_loader_end(l, err, "out of memory for an offer");
    } else {
        mu_state_ask_ban(k, err == MUSTER_EAGAIN ? MUSTER_EPROTO : err,
                         err == MUSTER_EAGAIN ? "its offer is incomplete" : msg.text);
    }
}

void mu_state_offer_item(struct mu_state_link *k, struct mu_span piece)
{
    take_piece(k, piece, false);
}

void mu_state_offer_reply(struct mu_state_link *k, const struct mu_rpc_event *event)
{
    struct mu_state_loader *l = k->loader;
    char text[120];

    k->offer_call = 0;
    if (event->status == 0) {
        take_piece(k, event->payload, true);
        return;
    }
    if (l->offerer == k) {
        l->offerer = NULL;
    }
    (void)snprintf(text, sizeof(text), "it sent no offer: %.*s",
                   (int)(event->payload.len < 100 ? event->payload.len : 100),
                   (const char *)event->payload.data);
    mu_state_ask_say(k, event->status, text);
}

/* Whether another donor has a state that we could take instead. */
static bool has_other(const struct mu_state_loader *l)
{
    MU_LIST_FOREACH (it, &l->links) {
        const struct mu_state_link *k = MU_CONTAINER_OF(it, struct mu_state_link, link);

        for (size_t i = 0; i < k->entry_count && k != l->offerer && k->ready && !k->banned; i++) {
            if (mu_state_ask_wants(l, &k->entries[i])) {
                return true;
            }
        }
    }
    return false;
}

void mu_state_offer_turn(struct mu_state_loader *l)
{
    struct mu_state_link *k = l->offerer;

    /* A donor that claims the newest state and then sends nothing does not hold up the others. */
    if (k != NULL && !l->checking && mu_mono_reached(l->offer_at, mu_env_now(l->env).mono)) {
        l->offer_at = MU_MONO_NEVER;
        if (has_other(l)) {
            (void)mu_rpc_client_cancel(&k->client, k->offer_call);
            k->offer_call = 0;
            k->dirty = true;
            l->offerer = NULL;
            mu_state_ask_say(k, MUSTER_ETIMEDOUT, "its offer did not come");
        }
    }
}
