/* Users in this process, and the tokens that they give away. */
#include "proto/rpc/rref_internal.h"

#include "core/alloc.h"
#include "core/assert.h"

/* A worker that is unknown after this many tries was never in the group. */
#define UNKNOWN_MAX 8

void mu_rref_changed(struct mu_rref_table *t, struct mu_rref_user *u)
{
    if (u->handle != NULL && mu_list_empty(&u->changed)) {
        mu_list_push(&t->changed, &u->changed);
    }
}

/* --- the next step ---------------------------------------------------------------------------- */

/* Chooses the next message to send; 0: nothing for now. */
static int next_verb(const struct mu_rref_table *t, const struct mu_rref_user *u)
{
    if (!u->asked) {
        return u->creates ? MU_RREF_CREATE : MU_RREF_FORK;
    }
    if (u->parent != NULL) {
        return MU_RREF_ACCEPT;
    }
    if (u->there && (u->released || u->status != 0) && (u->children == 0 || t->config.hasty)) {
        return MU_RREF_DELETE;
    }
    return 0;
}

static mu_mono_t again_at(const struct mu_rref_table *t, mu_mono_t now, const struct mu_rref_op *op)
{
    uint64_t ms = t->config.again_ms;

    for (uint32_t i = 1; i < op->failures && ms < t->config.again_ms_max; i++) {
        ms *= 2;
    }
    return op->failures == 0
               ? now
               : mu_mono_add_ms(now, ms < t->config.again_ms_max ? ms : t->config.again_ms_max);
}

static void free_user(struct mu_rref_table *t, struct mu_rref_user *u)
{
    mu_map_remove(&t->users, &u->by_fork);
    mu_list_remove(&u->all);
    mu_list_remove(&u->by_owner);
    mu_list_remove(&u->by_parent);
    mu_list_remove(&u->changed);
    mu_free(u->payload);
    mu_free(u);
}

void mu_rref_advance(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *u)
{
    int verb = next_verb(t, u);
    struct mu_rref_fork *fork;

    if (u->op.state == MU_RREF_OP_OUT) {
        return; /* The message's end leads here again. */
    }
    if (verb == MU_RREF_DELETE && u->owner == NULL) {
        fork = mu_rref_find_fork(t, u->fork);
        if (fork != NULL) {
            mu_rref_remove_fork(t, fork);
        }
        u->there = false;
        u->value = NULL;
        verb = next_verb(t, u);
    }
    if (verb != 0) {
        if (u->op.state != MU_RREF_OP_QUEUED || (int)u->op.verb != verb) {
            u->op.failures = (int)u->op.verb == verb ? u->op.failures : 0;
            mu_rref_op_queue(t, again_at(t, now, &u->op), &u->op, (enum mu_rref_verb)verb,
                             verb == MU_RREF_ACCEPT ? u->parent : u->owner);
        }
        return;
    }
    mu_rref_op_drop(t, &u->op);
    if (u->released && u->children == 0) {
        free_user(t, u);
    }
}

void mu_rref_user_told(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *u)
{
    u->parent = NULL;
    mu_list_remove(&u->by_parent);
    mu_rref_advance(t, now, u);
}

/* The owner has decided about a fork: if we are the parent ourselves, the token is settled. */
static void decided(struct mu_rref_table *t, mu_mono_t now, const struct mu_rref_user *u)
{
    struct mu_rref_child *c = !u->creates && u->fork.life == t->config.life
                                  ? mu_rref_find_child(t, u->fork.number)
                                  : NULL;

    if (c != NULL) {
        mu_rref_settle(t, now, c);
    }
}

void mu_rref_user_lose(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *u, int status)
{
    u->asked = true;
    u->there = false;
    if (u->status == 0) {
        u->status = status;
        mu_rref_changed(t, u);
    }
    decided(t, now, u);
    mu_rref_advance(t, now, u);
}

/* --- answers ---------------------------------------------------------------------------------- */

static void create_ended(struct mu_rref_table *t, struct mu_rref_user *u, int status,
                         const struct mu_rref_answer *answer)
{
    u->asked = true;
    if (status != 0) {
        /* The CREATE may have arrived all the same: the DELETE that follows cannot overtake it. */
        u->status = status;
        u->there = status != MUSTER_EWORKER;
    } else if (answer->verdict != MU_RREF_DONE) {
        u->status = MUSTER_EWORKER;
    } else {
        u->there = true;
        u->owner_life = answer->life;
    }
    mu_rref_changed(t, u);
}

static void fork_ended(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *u, int status,
                       const struct mu_rref_answer *answer)
{
    if (status != 0) {
        return;
    }
    u->asked = true;
    u->there = answer->verdict == MU_RREF_DONE;
    u->status = u->there ? 0 : answer->verdict == MU_RREF_UNKNOWN ? MUSTER_ENOENT : MUSTER_EWORKER;
    mu_rref_changed(t, u);
    decided(t, now, u);
}

void mu_rref_user_ended(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *u, int status,
                        const struct mu_rref_answer *answer)
{
    bool unknown = status == MUSTER_EWORKER && u->op.failures >= UNKNOWN_MAX;

    switch (u->op.verb) {
    case MU_RREF_CREATE:
        if (!u->asked) {
            create_ended(t, u, status, answer);
        }
        break;
    case MU_RREF_FORK:
        if (unknown) {
            mu_rref_user_lose(t, now, u, MUSTER_EWORKER);
            return;
        }
        if (!u->asked) {
            fork_ended(t, now, u, status, answer);
        }
        break;
    case MU_RREF_ACCEPT:
        if (u->parent != NULL && (status == 0 || unknown)) {
            u->parent = NULL;
            mu_list_remove(&u->by_parent);
        }
        break;
    case MU_RREF_DELETE:
        u->there = u->there && status != 0 && !unknown;
        break;
    case MU_RREF_CANCEL:
    case MU_RREF_PROBE:
        break;
    }
    mu_rref_advance(t, now, u);
}

/* --- beginnings ------------------------------------------------------------------------------- */

static struct mu_rref_user *new_user(struct mu_rref_table *t, struct mu_rref_id rref,
                                     struct mu_rref_id fork, struct mu_rref_peer *owner)
{
    struct mu_rref_user *u = mu_calloc(1, sizeof(*u));

    if (u == NULL) {
        return NULL;
    }
    u->rref = rref;
    u->fork = fork;
    u->owner = owner;
    mu_rref_op_init(&u->op);
    mu_list_init(&u->by_owner);
    mu_list_init(&u->by_parent);
    mu_list_init(&u->changed);
    if (mu_map_insert(&t->users, &u->by_fork, mu_span(&u->fork, sizeof(u->fork))) != 0) {
        mu_free(u);
        return NULL;
    }
    mu_list_push(&t->all_users, &u->all);
    if (owner != NULL) {
        mu_list_push(&owner->users, &u->by_owner);
    }
    return u;
}

int mu_rref_create(struct mu_rref_table *t, mu_mono_t now, const char *owner, void *payload,
                   struct mu_rref_user **ret_user)
{
    struct mu_rref_id id = {t->config.life, t->number + 1};
    struct mu_rref_peer *peer;
    struct mu_rref_user *u;
    int err = mu_rref_peer_get(t, owner, &peer);

    if (err != 0) {
        return err;
    }
    u = new_user(t, id, id, peer);
    if (u == NULL) {
        return MUSTER_ENOMEM;
    }
    t->number++;
    u->creates = true;
    u->payload = payload;
    mu_rref_advance(t, now, u);
    *ret_user = u;
    return 0;
}

int mu_rref_create_here(struct mu_rref_table *t, struct mu_rref_user **ret_user)
{
    struct mu_rref_id id = {t->config.life, t->number + 1};
    struct mu_rref_value *v;
    struct mu_rref_user *u;
    int err = mu_rref_add_value(t, id, &v);

    if (err != 0) {
        return err;
    }
    u = new_user(t, id, id, NULL);
    err = u == NULL ? MUSTER_ENOMEM : mu_rref_add_fork(t, v, id, NULL);
    if (err != 0) {
        if (u != NULL) {
            free_user(t, u);
        }
        mu_map_remove(&t->values, &v->by_id);
        mu_rref_value_free(t, v);
        return err;
    }
    t->number++;
    u->value = v;
    u->owner_life = t->config.life;
    u->asked = u->there = true;
    *ret_user = u;
    return 0;
}

void mu_rref_release(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_user *u)
{
    u->released = true;
    u->handle = NULL;
    mu_list_remove(&u->changed);
    mu_rref_advance(t, now, u);
}

/* --- tokens ----------------------------------------------------------------------------------- */

struct mu_rref_child *mu_rref_find_child(struct mu_rref_table *t, uint64_t number)
{
    struct mu_map_node *node = mu_map_find(&t->children, mu_span(&number, sizeof(number)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rref_child, by_number);
}

int mu_rref_fork(struct mu_rref_table *t, struct mu_rref_user *user, const char *child,
                 uint8_t ret_token[MU_RREF_TOKEN_MAX], size_t *ret_len, uint64_t *ret_number)
{
    struct mu_rref_token token = {.rref = user->rref, .owner_life = user->owner_life};
    const char *owner = user->owner == NULL ? t->config.name : user->owner->name;
    struct mu_rref_peer *dest = NULL;
    struct mu_rref_child *c;
    int err = user->status != 0 ? user->status : !user->asked ? MUSTER_EAGAIN : 0;

    if (err == 0 && !mu_rref_is_self(t, child)) {
        err = mu_rref_peer_get(t, child, &dest);
    }
    if (err != 0) {
        return err;
    }
    c = mu_calloc(1, sizeof(*c));
    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    *c = (struct mu_rref_child){.parent = user, .dest = dest, .number = t->number + 1};
    mu_rref_op_init(&c->op);
    mu_list_init(&c->by_dest);
    if (mu_map_insert(&t->children, &c->by_number, mu_span(&c->number, sizeof(c->number))) != 0) {
        mu_free(c);
        return MUSTER_ENOMEM;
    }
    t->number++;
    user->children++;
    mu_list_push(&t->pending, &c->link);
    if (dest != NULL) {
        mu_list_push(&dest->children, &c->by_dest);
        mu_rref_watch(t, dest);
    }
    token.fork = (struct mu_rref_id){t->config.life, c->number};
    memcpy(token.owner, owner, strlen(owner) + 1);
    memcpy(token.parent, t->config.name, strlen(t->config.name) + 1);
    *ret_len = mu_rref_token_encode(ret_token, &token);
    *ret_number = c->number;
    return 0;
}

void mu_rref_settle(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_child *c)
{
    struct mu_rref_user *parent = c->parent;

    if (c->settled) {
        return;
    }
    c->settled = true;
    mu_map_remove(&t->children, &c->by_number);
    mu_list_remove(&c->link);
    mu_list_remove(&c->by_dest);
    mu_rref_op_drop(t, &c->op);
    if (c->op.state != MU_RREF_OP_OUT) {
        mu_free(c);
    }
    MU_ASSERT(parent->children != 0);
    parent->children--;
    mu_rref_advance(t, now, parent);
}

void mu_rref_cancel(struct mu_rref_table *t, mu_mono_t now, uint64_t number)
{
    struct mu_rref_child *c = mu_rref_find_child(t, number);
    struct mu_rref_id fork = {t->config.life, number};

    if (c == NULL) {
        return;
    }
    if (c->dest != NULL) {
        mu_rref_op_queue(t, now, &c->op, MU_RREF_CANCEL, c->dest);
    } else if (mu_map_find(&t->users, mu_span(&fork, sizeof(fork))) == NULL) {
        mu_rref_settle(t, now, c); /* A worker that takes it now finds no child of that number. */
    }
}

void mu_rref_child_ended(struct mu_rref_table *t, mu_mono_t now, struct mu_rref_child *c,
                         int status, const struct mu_rref_answer *answer)
{
    if (c->settled) {
        mu_free(c);
        return;
    }
    if (status == MUSTER_EWORKER ||
        (status == 0 && (answer->verdict == MU_RREF_VOID || answer->verdict == MU_RREF_STALE))) {
        mu_rref_settle(t, now, c);
        return;
    }
    /* The token was taken: ACCEPT follows, and if the child has forgotten that, it says so
     * later. */
    mu_rref_op_queue(
        t, status != 0 ? again_at(t, now, &c->op) : mu_mono_add_ms(now, t->config.probe_ms), &c->op,
        MU_RREF_CANCEL, c->dest);
}

/* --- taking ----------------------------------------------------------------------------------- */

static int check_token(struct mu_rref_table *t, const struct mu_rref_token *token,
                       struct mu_errmsg *reterr_msg)
{
    struct mu_rref_peer *parent = mu_rref_peer_find(t, token->parent);
    struct mu_rref_peer *owner = mu_rref_peer_find(t, token->owner);
    bool from_self = mu_rref_is_self(t, token->parent);

    if (mu_map_find(&t->users, mu_span(&token->fork, sizeof(token->fork))) != NULL) {
        return mu_err(reterr_msg, MUSTER_EEXIST, "the reference was taken already");
    }
    if ((from_self && token->fork.life != t->config.life) ||
        (mu_rref_is_self(t, token->owner) && token->owner_life != t->config.life) ||
        (owner != NULL && mu_rref_is_gone(owner, token->owner_life)) ||
        (parent != NULL && mu_rref_is_gone(parent, token->fork.life))) {
        return mu_err(reterr_msg, MUSTER_ESESSION,
                      "the reference is of a process that is gone (of %s, from %s)", token->owner,
                      token->parent);
    }
    if ((from_self && mu_rref_find_child(t, token->fork.number) == NULL) ||
        (parent != NULL && mu_rref_is_void(parent, token->fork))) {
        return mu_err(reterr_msg, MUSTER_ECANCELED,
                      "the reference is void: it was taken, or the call of %s has ended",
                      token->parent);
    }
    return 0;
}

/* The token is for a value of ours. */
static int take_own(struct mu_rref_table *t, const struct mu_rref_token *token,
                    struct mu_rref_user **ret_user, struct mu_errmsg *reterr_msg)
{
    struct mu_rref_value *v = mu_rref_find_value(t, token->rref);
    struct mu_rref_user *u;

    if (v == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOENT, "the value of the reference was freed");
    }
    u = new_user(t, token->rref, token->fork, NULL);
    if (u == NULL || mu_rref_add_fork(t, v, token->fork, NULL) != 0) {
        if (u != NULL) {
            free_user(t, u);
        }
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    u->value = v;
    u->asked = u->there = true;
    *ret_user = u;
    return 0;
}

int mu_rref_take(struct mu_rref_table *t, mu_mono_t now, struct mu_span bytes,
                 struct mu_rref_user **ret_user, struct mu_errmsg *reterr_msg)
{
    struct mu_rref_peer *parent = NULL;
    struct mu_rref_peer *owner = NULL;
    struct mu_rref_user *u = NULL;
    struct mu_rref_token token;
    int err = mu_rref_token_decode(bytes, &token);

    if (err != 0) {
        return mu_err(reterr_msg, err, "this is not a reference");
    }
    err = check_token(t, &token, reterr_msg);
    if (err != 0) {
        return err;
    }
    if (!mu_rref_is_self(t, token.owner)) {
        err = mu_rref_peer_get(t, token.owner, &owner);
    }
    if (err == 0 && !mu_rref_is_self(t, token.parent)) {
        err = mu_rref_peer_get(t, token.parent, &parent);
    }
    /* A call that runs twice brings the token twice. */
    if (err == 0 && parent != NULL && (parent->life == 0 || parent->life == token.fork.life)) {
        err = mu_rref_add_void(parent, token.fork.number);
    }
    if (err != 0) {
        return mu_err(reterr_msg, err, "%s", muster_strerror(err));
    }
    if (owner == NULL) {
        err = take_own(t, &token, &u, reterr_msg);
    } else {
        u = new_user(t, token.rref, token.fork, owner);
        err = u == NULL ? mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory") : 0;
    }
    if (err != 0) {
        return err;
    }
    u->owner_life = token.owner_life;
    if (parent != NULL && parent != owner) { /* An owner that is the parent learns of it by FORK. */
        u->parent = parent;
        mu_list_push(&parent->taken, &u->by_parent);
    }
    if (parent == NULL && owner == NULL) {
        mu_rref_settle(t, now, mu_rref_find_child(t, token.fork.number));
    }
    mu_rref_advance(t, now, u);
    *ret_user = u;
    return 0;
}
