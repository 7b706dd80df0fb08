#include "service/agent/exchange.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/alloc.h"

/* PyTorch's keys. */
#define ROLE_INFO_1    "torchelastic/role_info"
#define ROLE_INFO_2    "torchelastic/role_info/"
#define ASSIGNED_RANKS "torchelastic/assigned_ranks/"
#define TERMINAL_STATE "torchelastic/agent/terminal_state"
#define KEY_CAP        80
#define LOOK_MS        2000u /* how long others are waited for before a look at who they are */

/* The keys and values of one operation, in one block of memory. */
struct batch {
    struct mu_span *keys;
    struct mu_span *values;
    char *text;
    size_t used;
    size_t count;
};

/* --- the end ---------------------------------------------------------------------------------- */

static void on_finish(struct mu_timer *timer)
{
    struct mu_agent_exchange *x = MU_CONTAINER_OF(timer, struct mu_agent_exchange, timer);

    x->config.done(x, x->status);
}

/* Inside a callback of the store or a call of our user: `done` comes on a turn of its own. */
static void finish(struct mu_agent_exchange *x, int status)
{
    if (x->canceled && status != 0) {
        status = MUSTER_ECANCELED;
    }
    if (status != 0 && x->errmsg.text[0] == '\0') {
        (void)mu_err(&x->errmsg, status, "%s", muster_strerror(status));
    }
    x->status = status;
    x->waiting = false;
    mu_free(x->block);
    x->block = NULL;
    mu_timer_init(&x->timer, on_finish);
    mu_env_timer_arm(x->config.env, &x->timer, mu_env_now(x->config.env).mono);
}

/* --- operations ------------------------------------------------------------------------------- */

static void look(struct mu_agent_exchange *x);

static bool is_late(const struct mu_agent_exchange *x)
{
    return x->config.timeout_ms != 0 &&
           mu_mono_reached(x->deadline, mu_env_now(x->config.env).mono);
}

static void on_op_done(struct mu_store_op *op)
{
    struct mu_agent_exchange *x = MU_CONTAINER_OF(op, struct mu_agent_exchange, op);

    x->waiting = false;
    if (op->status == MUSTER_ETIMEDOUT && x->looking && !x->canceled && !is_late(x)) {
        look(x);
    } else if (op->status != 0) {
        (void)mu_err(&x->errmsg, op->status, "%s",
                     op->errmsg.text[0] != '\0' ? op->errmsg.text : muster_strerror(op->status));
        finish(x, op->status);
    } else if (x->canceled) {
        finish(x, MUSTER_ECANCELED);
    } else {
        x->next(x);
    }
}

/* Room for `count` keys, each with a value of up to `value_cap` bytes. */
static int begin_batch(struct mu_agent_exchange *x, struct batch *b, size_t count, size_t value_cap)
{
    size_t spans = 2 * count * sizeof(struct mu_span);

    mu_free(x->block);
    x->block = mu_malloc(spans + count * (KEY_CAP + value_cap + 1));
    if (x->block == NULL) {
        return MUSTER_ENOMEM;
    }
    *b = (struct batch){.keys = x->block};
    b->values = b->keys + count;
    b->text = (char *)(b->values + count);
    return 0;
}

/* Adds a key, made of a prefix, a number and a suffix. Returns where the caller writes the value,
 * followed by put_value(). */
static char *put_key(struct batch *b, const char *prefix, uint32_t number, const char *suffix)
{
    char *at = b->text + b->used;
    int len = snprintf(at, KEY_CAP, "%s%" PRIu32 "%s", prefix, number, suffix);

    b->keys[b->count++] = mu_span(at, (size_t)len);
    b->used += (size_t)len;
    return b->text + b->used;
}

static void put_value(struct batch *b, size_t len)
{
    b->values[b->count - 1] = mu_span(b->text + b->used, len);
    b->used += len;
}

static void submit(struct mu_agent_exchange *x, enum mu_store_verb verb, const struct batch *b,
                   bool values, void (*next)(struct mu_agent_exchange *x))
{
    mu_mono_t now = mu_env_now(x->config.env).mono;
    uint64_t left = x->config.timeout_ms == 0 ? 0 : mu_mono_until_ms(x->deadline, now);

    if (x->config.timeout_ms != 0 && left == 0) {
        (void)mu_err(&x->errmsg, MUSTER_ETIMEDOUT, "the agents took more than %" PRIu32 " ms",
                     x->config.timeout_ms);
        finish(x, MUSTER_ETIMEDOUT);
        return;
    }
    if (x->looking && (left == 0 || left > LOOK_MS)) {
        left = LOOK_MS;
    }
    x->op = (struct mu_store_op){
        .request = {.verb = verb,
                    .keys = b->keys,
                    .key_count = b->count,
                    .values = values ? b->values : NULL,
                    .value_count = values ? b->count : 0,
                    .number = verb == MU_STORE_ADD ? 1 : 0},
        .timeout_ms = (uint32_t)left,
        .done = on_op_done,
    };
    x->next = next;
    x->waiting = true;
    mu_store_submit(x->config.store, &x->op);
}

/* Submits an operation on one key, with a value or (NULL) without. */
static void submit_one(struct mu_agent_exchange *x, enum mu_store_verb verb, const char *prefix,
                       uint32_t number, const char *suffix, const char *value,
                       void (*next)(struct mu_agent_exchange *x))
{
    size_t len = value == NULL ? 0 : strlen(value);
    struct batch b;
    int err = begin_batch(x, &b, 1, len);

    if (err != 0) {
        finish(x, err);
        return;
    }
    memcpy(put_key(&b, prefix, number, suffix), value == NULL ? "" : value, len);
    put_value(&b, len);
    submit(x, verb, &b, value != NULL, next);
}

/* The same for a key without a number. */
static void submit_name(struct mu_agent_exchange *x, enum mu_store_verb verb, const char *name,
                        const char *value, void (*next)(struct mu_agent_exchange *x))
{
    struct mu_span *spans = mu_malloc(2 * sizeof(*spans));
    struct batch b = {.keys = spans, .count = 1};

    mu_free(x->block);
    x->block = spans;
    if (spans == NULL) {
        finish(x, MUSTER_ENOMEM);
        return;
    }
    b.values = spans + 1;
    spans[0] = mu_span_str(name);
    spans[1] = value == NULL ? (struct mu_span){0} : mu_span_str(value);
    submit(x, verb, &b, value != NULL, next);
}

/* Reads the keys of all agents at once, waiting for each. */
static void read_all(struct mu_agent_exchange *x, const char *prefix, const char *suffix,
                     void (*next)(struct mu_agent_exchange *x))
{
    struct batch b;
    int err = begin_batch(x, &b, x->config.world, 0);

    if (err != 0) {
        finish(x, err);
        return;
    }
    for (uint32_t i = 0; i < x->config.world; i++) {
        (void)put_key(&b, prefix, i, suffix);
    }
    submit(x, MU_STORE_MULTI_GET, &b, false, next);
}

/* --- ranks ------------------------------------------------------------------------------------ */

/* Decodes what all agents wrote, and computes the ranks of all. The result is for mu_free(). */
static int assign_all(struct mu_agent_exchange *x, struct mu_ranks **ret_ranks)
{
    const struct mu_store_reply *reply = &x->op.reply;
    uint32_t world = x->config.world;
    struct mu_role_info *infos;
    struct mu_ranks *ranks;
    int err = 0;

    if (reply->value_count != world) {
        return mu_err(&x->errmsg, MUSTER_EPROTO, "the store gave %zu values for %" PRIu32 " keys",
                      reply->value_count, world);
    }
    infos = mu_calloc(world, sizeof(*infos));
    ranks = mu_calloc(world, sizeof(*ranks));
    if (infos == NULL || ranks == NULL) {
        err = MUSTER_ENOMEM;
    }
    for (uint32_t i = 0; err == 0 && i < world; i++) {
        err = mu_role_info_decode(reply->values[i], &infos[i]);
        if (err != 0) {
            char quoted[128];

            (void)mu_err(&x->errmsg, err, "agent %" PRIu32 " describes itself with a bad entry: %s",
                         i, mu_span_quote(quoted, sizeof(quoted), reply->values[i]));
        }
    }
    if (err == 0) {
        err = mu_ranks_assign(infos, world, ranks, &x->errmsg);
    }
    mu_free(infos);
    if (err != 0) {
        mu_free(ranks);
        return err;
    }
    *ret_ranks = ranks;
    return 0;
}

/* Checks that agent 0 has the same view of us as we have. */
static int check_own(struct mu_agent_exchange *x, const struct mu_ranks *r)
{
    if (r->base + (uint64_t)x->config.workers > r->world ||
        r->role_base + (uint64_t)x->config.workers > r->role_world) {
        return mu_err(&x->errmsg, MUSTER_EPROTO,
                      "agent 0 gives ranks from %" PRIu32 " of %" PRIu32 " to %" PRIu32 " workers",
                      r->base, r->world, x->config.workers);
    }
    x->ranks = *r;
    return 0;
}

static void say_role(struct mu_agent_exchange *x, const char *prefix,
                     void (*next)(struct mu_agent_exchange *x))
{
    struct mu_role_info info = {.rank = x->config.rank, .local_world_size = x->config.workers};
    char text[MU_ROLE_INFO_LEN_MAX + 1];

    (void)snprintf(info.role, sizeof(info.role), "%s", x->config.role);
    (void)mu_role_info_encode(&info, text);
    submit_one(x, MU_STORE_SET, prefix, x->config.rank, "", text, next);
}

/* --- generation 2 ----------------------------------------------------------------------------- */

static void on_told_all(struct mu_agent_exchange *x)
{
    finish(x, 0);
}

static void tell_all(struct mu_agent_exchange *x, const struct mu_ranks *ranks)
{
    struct batch b;
    int err = begin_batch(x, &b, x->config.world, MU_RANKS_LEN_MAX + 1);

    if (err != 0) {
        finish(x, err);
        return;
    }
    for (uint32_t i = 0; i < x->config.world; i++) {
        put_value(&b, mu_ranks_encode(&ranks[i], put_key(&b, ASSIGNED_RANKS, i, "")));
    }
    submit(x, MU_STORE_MULTI_SET, &b, true, on_told_all);
}

static void on_all_roles_2(struct mu_agent_exchange *x)
{
    struct mu_ranks *ranks = NULL;
    int err = assign_all(x, &ranks);

    x->looking = false;
    if (err == 0) {
        err = check_own(x, &ranks[x->config.rank]);
    }
    if (err == 0) {
        tell_all(x, ranks);
    } else {
        finish(x, err);
    }
    mu_free(ranks);
}

static void on_share(struct mu_agent_exchange *x)
{
    struct mu_ranks ranks;
    int err = x->op.reply.value_count == 1 ? mu_ranks_decode(x->op.reply.values[0], &ranks)
                                           : MUSTER_EPROTO;

    if (err != 0) {
        (void)mu_err(&x->errmsg, err, "agent 0 has assigned something that is not a list of ranks");
    } else {
        err = check_own(x, &ranks);
    }
    finish(x, err);
}

static void on_role_said_2(struct mu_agent_exchange *x)
{
    x->looking = x->config.world > 1;
    if (x->config.rank == 0) {
        read_all(x, ROLE_INFO_2, "", on_all_roles_2);
    } else {
        submit_one(x, MU_STORE_GET, ASSIGNED_RANKS, x->config.rank, "", NULL, on_share);
    }
}

/* The others are late, or they are of PyTorch 1.13, and wait for us in their own way. In etcd
 * nothing else shows which. */
static void on_looked(struct mu_agent_exchange *x)
{
    if (x->op.reply.number != 0) {
        finish(x, mu_err(&x->errmsg, MUSTER_EPROTO,
                         "agent %" PRIu32 " is PyTorch 1.13's and exchanges ranks in its own way; "
                         "give --rdzv-conf dialect=1.13 on every muster node",
                         x->look_rank));
    } else {
        on_role_said_2(x);
    }
}

/* Looks at one of the others, at the next one each time. */
static void look(struct mu_agent_exchange *x)
{
    x->looking = false;
    do {
        x->look_rank = (x->look_rank + 1) % x->config.world;
    } while (x->look_rank == x->config.rank);
    submit_one(x, MU_STORE_CHECK, ROLE_INFO_1, x->look_rank, "", NULL, on_looked);
}

/* --- generation 1 ----------------------------------------------------------------------------- */

static void on_master(struct mu_agent_exchange *x)
{
    const struct mu_store_reply *reply = &x->op.reply;
    uint32_t port = 0;
    bool ok = reply->value_count == 2 && reply->values[0].len != 0 &&
              reply->values[0].len <= MU_ADDR_HOST_MAX && reply->values[1].len != 0 &&
              reply->values[1].len <= 5 &&
              memchr(reply->values[0].data, '\0', reply->values[0].len) == NULL;

    for (size_t i = 0; ok && i < reply->values[1].len; i++) {
        ok = reply->values[1].data[i] >= '0' && reply->values[1].data[i] <= '9';
        port = port * 10 + (uint32_t)(reply->values[1].data[i] - '0');
    }
    if (!ok || port > UINT16_MAX) {
        finish(x, mu_err(&x->errmsg, MUSTER_EPROTO,
                         "agent 0 has published something that is not an address and a port"));
        return;
    }
    memcpy(x->master_addr, reply->values[0].data, reply->values[0].len);
    x->master_addr[reply->values[0].len] = '\0';
    x->master_port = (uint16_t)port;
    finish(x, 0);
}

static void read_master(struct mu_agent_exchange *x)
{
    static const struct mu_span keys[] = {{(const uint8_t *)"MASTER_ADDR", 11},
                                          {(const uint8_t *)"MASTER_PORT", 11}};
    struct mu_span *spans = mu_malloc(sizeof(keys));
    struct batch b = {.keys = spans, .count = 2};

    mu_free(x->block);
    x->block = spans;
    if (spans == NULL) {
        finish(x, MUSTER_ENOMEM);
        return;
    }
    memcpy(spans, keys, sizeof(keys));
    submit(x, MU_STORE_MULTI_GET, &b, false, on_master);
}

static void on_master_addr_said(struct mu_agent_exchange *x)
{
    (void)snprintf(x->port_text, sizeof(x->port_text), "%u", x->config.master_port);
    submit_name(x, MU_STORE_SET, "MASTER_PORT", x->port_text, read_master);
}

static void exchange_master(struct mu_agent_exchange *x)
{
    if (x->config.rank == 0) {
        submit_name(x, MU_STORE_SET, "MASTER_ADDR", x->config.master_addr, on_master_addr_said);
    } else {
        read_master(x);
    }
}

static void on_fin_said(struct mu_agent_exchange *x)
{
    /* PyTorch's agent 0 serves the store, and so waits until all others have read. */
    if (x->config.rank == 0) {
        read_all(x, ROLE_INFO_1, ".FIN", exchange_master);
    } else {
        exchange_master(x);
    }
}

static void on_all_roles_1(struct mu_agent_exchange *x)
{
    struct mu_ranks *ranks = NULL;
    int err = assign_all(x, &ranks);

    if (err == 0) {
        err = check_own(x, &ranks[x->config.rank]);
    }
    mu_free(ranks);
    if (err != 0) {
        finish(x, err);
    } else {
        submit_one(x, MU_STORE_SET, ROLE_INFO_1, x->config.rank, ".FIN", "FIN", on_fin_said);
    }
}

static void on_role_said_1(struct mu_agent_exchange *x)
{
    read_all(x, ROLE_INFO_1, "", on_all_roles_1);
}

/* --- the barrier ------------------------------------------------------------------------------ */

static void await_last(struct mu_agent_exchange *x)
{
    submit_name(x, MU_STORE_WAIT, TERMINAL_STATE "/last_member", NULL, on_told_all);
}

static void on_counted(struct mu_agent_exchange *x)
{
    if (x->op.reply.number == (int64_t)x->config.world) {
        /* The last agent does not wait; the one that serves the store may leave on this key. */
        submit_name(x, MU_STORE_SET, TERMINAL_STATE "/last_member", "<val_ignored>", on_told_all);
    } else {
        await_last(x);
    }
}

static void on_end_fin_said(struct mu_agent_exchange *x)
{
    if (x->config.rank == 0) {
        read_all(x, TERMINAL_STATE, ".FIN", on_told_all);
    } else {
        finish(x, 0);
    }
}

static void on_all_ended(struct mu_agent_exchange *x)
{
    submit_one(x, MU_STORE_SET, TERMINAL_STATE, x->config.rank, ".FIN", "FIN", on_end_fin_said);
}

static void on_end_said(struct mu_agent_exchange *x)
{
    read_all(x, TERMINAL_STATE, "", on_all_ended);
}

/* --- public functions ------------------------------------------------------------------------- */

/* False: the exchange is over already. */
static bool begin(struct mu_agent_exchange *x)
{
    const struct mu_agent_exchange_config *c = &x->config;

    x->ranks = (struct mu_ranks){0};
    x->errmsg.text[0] = '\0';
    x->block = NULL;
    x->waiting = x->canceled = x->looking = false;
    x->look_rank = c->rank;
    x->deadline = mu_mono_add_ms(mu_env_now(c->env).mono, c->timeout_ms);
    if (c->world == 0 || c->world > MU_EXCHANGE_AGENTS_MAX || c->rank >= c->world) {
        finish(x, mu_err(&x->errmsg, MUSTER_EINVAL, "rank %" PRIu32 " of %" PRIu32 " agents",
                         c->rank, c->world));
        return false;
    }
    return true;
}

static void assign_identical(struct mu_agent_exchange *x)
{
    uint64_t world = (uint64_t)x->config.world * x->config.workers;
    uint32_t base = x->config.rank * x->config.workers;

    if (world > INT32_MAX) {
        finish(x,
               mu_err(&x->errmsg, MUSTER_ELIMIT, "a node may have at most %d workers", INT32_MAX));
        return;
    }
    x->ranks = (struct mu_ranks){base, (uint32_t)world, base, (uint32_t)world};
    finish(x, 0);
}

void mu_agent_exchange_start(struct mu_agent_exchange *x)
{
    const struct mu_agent_exchange_config *c = &x->config;

    x->master_addr[0] = '\0';
    x->master_port = 0;
    if (!begin(x)) {
        return;
    }
    if (c->workers == 0 || c->workers > INT32_MAX || strlen(c->role) > MU_ROLE_LEN_MAX) {
        finish(x, mu_err(&x->errmsg, MUSTER_EINVAL, "%" PRIu32 " workers of a role of %zu bytes",
                         c->workers, strlen(c->role)));
        return;
    }
    switch (c->generation) {
    case MU_EXCHANGE_1:
        say_role(x, ROLE_INFO_1, on_role_said_1);
        return;
    case MU_EXCHANGE_2:
        if (c->identical) {
            assign_identical(x);
        } else {
            say_role(x, ROLE_INFO_2, on_role_said_2);
        }
        return;
    }
}

void mu_agent_barrier_start(struct mu_agent_exchange *x)
{
    char rank[16];

    if (!begin(x)) {
        return;
    }
    switch (x->config.generation) {
    case MU_EXCHANGE_1:
        (void)snprintf(rank, sizeof(rank), "%" PRIu32, x->config.rank);
        submit_one(x, MU_STORE_SET, TERMINAL_STATE, x->config.rank, "", rank, on_end_said);
        return;
    case MU_EXCHANGE_2:
        submit_name(x, MU_STORE_ADD, TERMINAL_STATE "/num_members", NULL, on_counted);
        return;
    }
}

void mu_agent_exchange_cancel(struct mu_agent_exchange *x)
{
    x->canceled = true;
    if (x->waiting) {
        mu_store_cancel(&x->op);
    }
}
