/* Asking all agents of a round for the stacks of their workers. */
#include <inttypes.h>
#include <stdio.h>

#include "core/alloc.h"
#include "service/agent/agent_internal.h"
#include "service/agent/stacks.h"

/* One node's answer, while it is waited for. */
struct mu_stacks_ask_node {
    struct mu_stacks_ask *ask;
    struct mu_store_op op;
    bool busy;
    bool answered;
    struct mu_span key;
    char name[48];
};

static uint32_t left_ms(const struct mu_stacks_ask *ask)
{
    uint64_t left = mu_mono_until_ms(ask->deadline, mu_env_now(ask->config.env).mono);

    return left == 0 ? 1 : (uint32_t)left; /* 0 would be for ever */
}

/* --- the end ---------------------------------------------------------------------------------- */

static void on_finish(struct mu_timer *timer)
{
    struct mu_stacks_ask *ask = MU_CONTAINER_OF(timer, struct mu_stacks_ask, timer);
    struct mu_agent_round *round = ask->round;
    struct mu_stacks_ask_node *nodes = ask->nodes;

    if (round != NULL) {
        mu_list_remove(&ask->link);
    }
    ask->config.done(ask, ask->status); /* the struct may be gone after it */
    mu_free(nodes);
    if (round != NULL) {
        mu_agent_round_settle(round);
    }
}

/* `done` comes on a turn of its own. */
static void finish(struct mu_stacks_ask *ask, int status, const char *text)
{
    if (ask->canceled) {
        status = MUSTER_ECANCELED;
    }
    ask->status = status;
    if (status != 0) {
        (void)mu_err(&ask->errmsg, status, "%s",
                     text != NULL && text[0] != '\0' ? text : muster_strerror(status));
    }
    mu_timer_init(&ask->timer, on_finish);
    mu_env_timer_arm(ask->config.env, &ask->timer, mu_env_now(ask->config.env).mono);
}

/* --- answers ---------------------------------------------------------------------------------- */

static void on_answer(struct mu_store_op *op)
{
    struct mu_stacks_ask_node *node = MU_CONTAINER_OF(op, struct mu_stacks_ask_node, op);
    struct mu_stacks_ask *ask = node->ask;
    struct mu_stacks_answer answer;

    node->busy = false;
    ask->waiting--;
    if (op->status == 0 && op->reply.value_count == 1 && !ask->canceled &&
        mu_stacks_answer_decode(op->reply.values[0], &answer) == 0) {
        node->answered = true;
        ask->answered++;
        ask->config.answer(ask->config.context, (uint32_t)(node - ask->nodes), &answer);
    }
    if (ask->waiting == 0) {
        finish(ask, 0, NULL);
    }
}

static void await_answers(struct mu_stacks_ask *ask, uint64_t question)
{
    uint32_t timeout_ms = left_ms(ask);

    ask->waiting = ask->config.nodes;
    for (uint32_t i = 0; i < ask->config.nodes; i++) {
        struct mu_stacks_ask_node *node = &ask->nodes[i];
        int len = snprintf(node->name, sizeof(node->name),
                           MU_AGENT_STACKS_KEY "%" PRIu64 "/%" PRIu32, question, i);

        node->ask = ask;
        node->key = mu_span(node->name, (size_t)len);
        node->op = (struct mu_store_op){
            .request = {.verb = MU_STORE_GET, .keys = &node->key, .key_count = 1},
            .timeout_ms = timeout_ms,
            .done = on_answer,
        };
        node->busy = true;
        mu_store_submit(ask->config.store, &node->op);
    }
}

/* --- the question ----------------------------------------------------------------------------- */

static bool has_failed(struct mu_stacks_ask *ask)
{
    ask->waiting--;
    if (ask->op.status != 0 || ask->canceled) {
        finish(ask, ask->op.status, ask->op.errmsg.text);
        return true;
    }
    return false;
}

static void on_set(struct mu_store_op *op)
{
    struct mu_stacks_ask *ask = MU_CONTAINER_OF(op, struct mu_stacks_ask, op);

    if (!has_failed(ask)) {
        await_answers(ask, ask->question);
    }
}

/* Sets the question, and the one before: who asked that may have been lost before setting it, and
 * agents wait for it. */
static void on_counted(struct mu_store_op *op)
{
    struct mu_stacks_ask *ask = MU_CONTAINER_OF(op, struct mu_stacks_ask, op);
    size_t count = 0;
    int text_len;

    if (has_failed(ask)) {
        return;
    }
    if (op->reply.number <= 0) {
        finish(ask, MUSTER_EPROTO, "the counter of questions for stacks has been spoiled");
        return;
    }
    ask->question = (uint64_t)op->reply.number;
    text_len = snprintf(ask->text, sizeof(ask->text), "%s %" PRIu32,
                        ask->config.all_threads ? "all" : "main",
                        ask->config.timeout_ms - ask->config.timeout_ms / 4);
    for (uint64_t n = ask->question; n > 0 && count < 2; n--) {
        int len = snprintf(ask->names[count], sizeof(ask->names[count]),
                           MU_AGENT_STACKS_ASK_KEY "/%" PRIu64, n);

        ask->keys[count] = mu_span(ask->names[count], (size_t)len);
        ask->values[count] = mu_span(ask->text, (size_t)text_len);
        count++;
    }
    ask->op = (struct mu_store_op){
        .request = {.verb = MU_STORE_MULTI_SET,
                    .keys = ask->keys,
                    .key_count = count,
                    .values = ask->values,
                    .value_count = count},
        .timeout_ms = left_ms(ask),
        .done = on_set,
    };
    ask->waiting++;
    mu_store_submit(ask->config.store, &ask->op);
}

void mu_stacks_ask_start(struct mu_stacks_ask *ask)
{
    const struct mu_stacks_ask_config *c = &ask->config;

    ask->answered = ask->waiting = 0;
    ask->canceled = false;
    ask->round = NULL;
    ask->errmsg.text[0] = '\0';
    ask->deadline = mu_mono_add_ms(mu_env_now(c->env).mono, c->timeout_ms);
    ask->nodes = NULL;
    if (c->nodes == 0 || c->nodes > MU_EXCHANGE_AGENTS_MAX) {
        finish(ask, MUSTER_EINVAL, NULL);
        return;
    }
    ask->nodes = mu_calloc(c->nodes, sizeof(*ask->nodes));
    if (ask->nodes == NULL) {
        finish(ask, MUSTER_ENOMEM, NULL);
        return;
    }
    ask->keys[0] = MU_SPAN_LIT(MU_AGENT_STACKS_ASK_KEY);
    ask->op = (struct mu_store_op){
        .request = {.verb = MU_STORE_ADD, .keys = ask->keys, .key_count = 1, .number = 1},
        .timeout_ms = left_ms(ask),
        .done = on_counted,
    };
    ask->waiting = 1;
    mu_store_submit(c->store, &ask->op);
}

void mu_stacks_ask_cancel(struct mu_stacks_ask *ask)
{
    if (ask->canceled || ask->waiting == 0) {
        return;
    }
    ask->canceled = true;
    if (ask->nodes[0].ask == NULL) {
        mu_store_cancel(&ask->op); /* the question is still being asked */
        return;
    }
    for (uint32_t i = 0; i < ask->config.nodes; i++) {
        if (ask->nodes[i].busy) {
            mu_store_cancel(&ask->nodes[i].op);
        }
    }
}

bool mu_stacks_ask_has(const struct mu_stacks_ask *ask, uint32_t node)
{
    return ask->nodes != NULL && node < ask->config.nodes && ask->nodes[node].answered;
}

/* --- inside an agent -------------------------------------------------------------------------- */

int mu_agent_stacks_ask(struct mu_agent_service *s, struct mu_stacks_ask *ask)
{
    struct mu_agent_round *r = s->round;

    if (r == NULL || r->closing || !r->store_open || r->store_gone) {
        return MUSTER_ENOENT;
    }
    ask->config.env = s->env;
    ask->config.store = r->stores.store;
    ask->config.nodes = r->world;
    mu_stacks_ask_start(ask);
    ask->round = r;
    mu_list_push(&r->stacks.asks, &ask->link);
    return 0;
}

const char *mu_agent_stacks_node(const struct mu_agent_service *s, uint32_t node)
{
    const struct mu_agent_round *r = s->round;
    const char *name = r == NULL ? NULL : r->names;

    if (name == NULL || node >= r->names_count) {
        return "";
    }
    for (uint32_t i = 0; i < node; i++) {
        name += strlen(name) + 1;
    }
    return name;
}
