/* References and fetches of this process. */
#include "service/rpc/rref_agent_internal.h"

#include <string.h>

#include "core/alloc.h"

static void init_ref(struct mu_rref_agent *refs, struct mu_rref *ref, struct mu_rref_user *user)
{
    ref->refs = refs;
    ref->user = user;
    ref->text = NULL;
    mu_list_init(&ref->fetches);
    user->handle = ref;
    mu_rref_agent_poke(refs);
}

/* Encodes the arguments as one message, for a handler of our own. */
static int encode_call(const struct mu_rref_remote *call, struct mu_buf *message)
{
    int err = mu_rpc_msg_head(message, call->parts, call->part_count);

    for (size_t i = 0; err == 0 && i < call->part_count; i++) {
        err = mu_buf_append(message, call->parts[i].data);
    }
    return err;
}

static int remote_here(struct mu_rref_agent *refs, struct mu_rref *ref,
                       const struct mu_rref_remote *call)
{
    struct mu_rref_user *user;
    struct mu_buf message;
    int err;

    mu_buf_init(&message, SIZE_MAX / 4);
    err = encode_call(call, &message);
    if (err == 0) {
        err = mu_rref_create_here(&refs->table, &user);
    }
    if (err == 0) {
        init_ref(refs, ref, user);
        mu_rref_make(refs, user->value, mu_span_str(call->method), &message, refs->config.rref.name,
                     refs->id);
    }
    mu_buf_fini(&message);
    return err;
}

int mu_rref_agent_remote(struct mu_rref_agent *refs, struct mu_rref *ref, const char *to,
                         const struct mu_rref_remote *call)
{
    struct mu_rref_flight *f;
    struct mu_rref_user *user;
    int err;

    if (!mu_rpc_is_method(mu_span_str(call->method)) || call->part_count >= MU_RPC_PARTS_MAX) {
        return MUSTER_EINVAL;
    }
    if (strcmp(to, refs->config.rref.name) == 0) {
        return remote_here(refs, ref, call);
    }
    f = mu_rref_flight_new(call);
    if (f == NULL) {
        return MUSTER_ENOMEM;
    }
    err = mu_rref_create(&refs->table, mu_rref_agent_now(refs), to, f, &user);
    if (err != 0) {
        mu_free(f);
        return err;
    }
    init_ref(refs, ref, user);
    return 0;
}

int mu_rref_agent_local(struct mu_rref_agent *refs, struct mu_rref *ref, struct mu_buf *message)
{
    struct mu_rref_user *user;
    int err = mu_rref_create_here(&refs->table, &user);

    if (err == 0) {
        user->value->ready = true;
        user->value->content = *message;
        mu_buf_init(message, message->max);
        init_ref(refs, ref, user);
    }
    return err;
}

int mu_rref_agent_take(struct mu_rref_agent *refs, struct mu_rref *ref, struct mu_span token,
                       struct mu_errmsg *reterr_msg)
{
    struct mu_rref_user *user;
    int err = mu_rref_take(&refs->table, mu_rref_agent_now(refs), token, &user, reterr_msg);

    if (err == 0) {
        init_ref(refs, ref, user);
    }
    return err;
}

int mu_rref_agent_fork(struct mu_rref *ref, const char *child, uint8_t ret_token[MU_RREF_TOKEN_MAX],
                       size_t *ret_len, uint64_t *ret_number)
{
    int err = mu_rref_fork(&ref->refs->table, ref->user, child, ret_token, ret_len, ret_number);

    mu_rref_agent_poke(ref->refs);
    return err;
}

void mu_rref_agent_cancel(struct mu_rref_agent *refs, uint64_t number)
{
    mu_rref_cancel(&refs->table, mu_rref_agent_now(refs), number);
    mu_rref_agent_poke(refs);
}

void mu_rref_agent_release(struct mu_rref *ref)
{
    struct mu_rref_agent *refs = ref->refs;

    while (!mu_list_empty(&ref->fetches)) {
        mu_rref_fetch_end(MU_CONTAINER_OF(ref->fetches.next, struct mu_rref_fetch, link),
                          MUSTER_ECANCELED, MU_SPAN_LIT("the reference was released"));
    }
    mu_rref_release(&refs->table, mu_rref_agent_now(refs), ref->user);
    mu_free(ref->text);
    ref->text = NULL;
    ref->user = NULL;
    mu_rref_agent_poke(refs);
}

/* --- queries ---------------------------------------------------------------------------------- */

const char *mu_rref_owner(const struct mu_rref *ref)
{
    return ref->user->owner != NULL ? ref->user->owner->name : ref->refs->config.rref.name;
}

bool mu_rref_is_owner(const struct mu_rref *ref)
{
    return ref->user->owner == NULL;
}

int mu_rref_status(const struct mu_rref *ref, const char **ret_text)
{
    const struct mu_rref_user *u = ref->user;

    *ret_text = ref->text != NULL ? ref->text
                : u->status == MUSTER_ESESSION
                    ? "its owner was restarted and does not have it any more"
                : u->status == MUSTER_ENOENT  ? "its owner does not have it any more"
                : u->status == MUSTER_EWORKER ? "its owner and this worker are not in one group"
                                              : muster_strerror(u->status);
    return u->status != 0 ? u->status : u->asked ? 0 : MUSTER_EAGAIN;
}

int mu_rref_value(const struct mu_rref *ref, struct mu_span *ret_message)
{
    const struct mu_rref_value *v = ref->user->value;

    if (v == NULL) {
        return MUSTER_EINVAL;
    }
    if (!v->ready) {
        return MUSTER_EAGAIN;
    }
    *ret_message = mu_buf_span(&v->content);
    return v->status;
}

/* --- fetches ---------------------------------------------------------------------------------- */

/* Keeps what went wrong, and with which worker's value. */
static void keep_error(struct mu_rref_fetch *f, struct mu_span text)
{
    struct mu_errmsg msg;

    (void)mu_err(&msg, 0, "the value of %s: %.*s", f->owner,
                 (int)(text.len < MU_ERRMSG_CAP ? text.len : MU_ERRMSG_CAP),
                 (const char *)text.data);
    mu_buf_reset(&f->message);
    (void)mu_buf_append(&f->message, mu_span(msg.text, strlen(msg.text) + 1));
}

void mu_rref_fetch_end(struct mu_rref_fetch *f, int status, struct mu_span message)
{
    mu_list_remove(&f->link);
    mu_heap_remove(&f->refs->deadlines, &f->deadline);
    if (status == 0 && mu_buf_append(&f->message, message) != 0) {
        status = MUSTER_ENOMEM;
        message = mu_span_str(muster_strerror(status));
    }
    if (status != 0) {
        keep_error(f, message);
    }
    f->status = status;
    f->over = true;
    mu_list_push(&f->refs->ended, &f->link);
    mu_rref_agent_poke(f->refs);
}

bool mu_rref_fetches_tell(struct mu_rref_agent *refs)
{
    struct mu_list *it;
    bool did = false;

    while ((it = mu_list_pop(&refs->ended)) != NULL) {
        struct mu_rref_fetch *f = MU_CONTAINER_OF(it, struct mu_rref_fetch, link);
        struct mu_buf message = f->message; /* `f` is gone when `ended` returns */
        int status = f->status;

        mu_buf_init(&f->message, 0);
        mu_rpc_agent_tell(refs->agent, f->out, status,
                          status == 0        ? ""
                          : message.len != 0 ? (const char *)mu_buf_span(&message).data
                                             : muster_strerror(status),
                          &message);
        did = true;
    }
    return did;
}

void mu_rref_fetches_tick(struct mu_rref_agent *refs)
{
    mu_mono_t now = mu_rref_agent_now(refs);
    struct mu_heap_node *node;

    while ((node = mu_heap_pop_due(&refs->deadlines, now)) != NULL) {
        mu_rref_fetch_end(MU_CONTAINER_OF(node, struct mu_rref_fetch, deadline), MUSTER_ETIMEDOUT,
                          MU_SPAN_LIT("it did not come within the set timeout"));
    }
}

/* The owner knows us: asks it for the value. */
static void ask(struct mu_rref *ref, struct mu_rref_fetch *f)
{
    struct mu_rref_agent *refs = ref->refs;
    struct mu_rref_msg msg = {
        .life = refs->config.rref.life, .rref = ref->user->rref, .fork = ref->user->fork};

    f->out->to = mu_rpc_agent_find(refs->agent, mu_rref_owner(ref));
    if (f->out->to == NULL) {
        mu_rref_fetch_end(f, MUSTER_EWORKER, MU_SPAN_LIT("this worker does not know the owner"));
        return;
    }
    if (mu_heap_contains(&f->deadline)) {
        uint64_t left = mu_mono_until_ms(f->deadline.at, mu_rref_agent_now(refs));

        f->out->timeout_ms = left == 0 ? 1 : (uint32_t)left;
        mu_heap_remove(&refs->deadlines, &f->deadline);
    }
    mu_list_remove(&f->link);
    mu_rref_msg_encode(f->msg, &msg);
    f->part = (struct mu_rpc_part){mu_span(f->msg, sizeof(f->msg)), -1};
    f->out->method = mu_rref_methods[0];
    f->out->parts = &f->part;
    f->out->part_count = 1;
    f->called = true;
    mu_rpc_agent_call(refs->agent, f->out);
    mu_rpc_agent_soon(refs->agent);
}

/* Fetches a value of our own. */
static void fetch_here(struct mu_rref_value *v, struct mu_rref_fetch *f)
{
    if (!v->ready) {
        mu_list_push(&v->local, &f->link);
    } else {
        mu_rref_fetch_end(f, v->status, mu_buf_span(&v->content));
    }
}

void mu_rref_agent_fetch(struct mu_rref *ref, struct mu_rref_fetch *f)
{
    struct mu_rref_agent *refs = ref->refs;
    const char *text;
    int status = mu_rref_status(ref, &text);

    f->refs = refs;
    f->called = f->over = false;
    f->owner = mu_rref_owner(ref);
    mu_list_init(&f->link);
    mu_heap_node_init(&f->deadline);
    mu_buf_init(&f->message, SIZE_MAX / 4);
    if (refs->stopped) {
        mu_rref_fetch_end(f, MUSTER_ECLOSED, MU_SPAN_LIT("the agent was shut down"));
        return;
    }
    if (f->out->timeout_ms != 0) {
        mu_heap_insert(&refs->deadlines, &f->deadline,
                       mu_mono_add_ms(mu_rref_agent_now(refs), f->out->timeout_ms));
        mu_rref_agent_poke(refs);
    }
    if (status == MUSTER_EAGAIN) {
        mu_list_push(&ref->fetches, &f->link);
    } else if (status != 0) {
        mu_rref_fetch_end(f, status, mu_span_str(text));
    } else if (ref->user->value != NULL) {
        fetch_here(ref->user->value, f);
    } else {
        ask(ref, f);
    }
}

void mu_rref_fetch_cancel(struct mu_rref_fetch *f)
{
    if (f->called) {
        mu_rpc_out_cancel(f->out);
        mu_rpc_agent_soon(f->refs->agent);
    } else if (!f->over) {
        mu_rref_fetch_end(f, MUSTER_ECANCELED, MU_SPAN_LIT("canceled"));
    }
}

void mu_rref_tell(struct mu_rref *ref)
{
    const char *text;
    int status = mu_rref_status(ref, &text);

    while (!mu_list_empty(&ref->fetches)) {
        struct mu_rref_fetch *f = MU_CONTAINER_OF(ref->fetches.next, struct mu_rref_fetch, link);

        if (status == 0) {
            ask(ref, f);
        } else {
            mu_rref_fetch_end(f, status, mu_span_str(text));
        }
    }
    if (ref->changed != NULL) {
        ref->changed(ref);
    }
}

void mu_rref_fetches_stop(struct mu_rref_agent *refs)
{
    MU_LIST_FOREACH (it, &refs->table.all_users) {
        struct mu_rref *ref = MU_CONTAINER_OF(it, struct mu_rref_user, all)->handle;

        while (ref != NULL && !mu_list_empty(&ref->fetches)) {
            mu_rref_fetch_end(MU_CONTAINER_OF(ref->fetches.next, struct mu_rref_fetch, link),
                              MUSTER_ECLOSED, MU_SPAN_LIT("the agent was shut down"));
        }
    }
}
