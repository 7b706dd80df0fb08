/*
 * Kept states: the vaults of our workers, and which version of what is in them the workers of a
 * round load. Before ranks are exchanged, each agent that keeps states writes into the round's
 * store what its vaults hold. So when the exchange is over, all that will come has come: the agent
 * of node 0 reads it, decides, and writes the answer; the others read that. An agent that keeps
 * nothing writes nothing, and then no version counts.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "service/agent/kept_internal.h"

#define REPORT_KEY "muster/kept/"
#define ANSWER_KEY MU_AGENT_KEPT_ANSWER_KEY
#define PAGE       ((uint64_t)4096)
#define BYTES_MIN  (64 * PAGE) /* of a vault; the description of a state takes 70 KiB */

static struct mu_agent_round *round_of(struct mu_store_op *op)
{
    return MU_CONTAINER_OF(op, struct mu_agent_round, kept.op);
}

/* --- vaults ----------------------------------------------------------------------------------- */

static uint32_t vault_count(const struct mu_agent_service *s)
{
    return s->config.policy.workers * MU_KEPT_VAULTS;
}

static void drop_vaults(struct mu_agent_service *s)
{
    struct mu_agent_kept *k = &s->kept;

    mu_agent_copies_fini(s);
    while (k->made > 0) {
        k->made--;
        k->source->drop(&k->vaults[k->made]);
    }
    mu_free(k->vaults);
    mu_free(k->heads);
    mu_free(k->whole);
    *k = (struct mu_agent_kept){0};
}

static int make_vaults(struct mu_agent_service *s, uint64_t bytes)
{
    struct mu_agent_kept *k = &s->kept;
    uint32_t count = vault_count(s);
    int err = 0;

    k->vaults = mu_calloc(count, sizeof(*k->vaults));
    k->heads = mu_calloc(count, sizeof(*k->heads));
    k->whole = mu_calloc(count, sizeof(*k->whole));
    if (k->vaults == NULL || k->heads == NULL || k->whole == NULL) {
        err = MUSTER_ENOMEM;
    }
    while (err == 0 && k->made < count) {
        err = k->source->make(bytes, &k->vaults[k->made]);
        k->made += err == 0;
    }
    return err;
}

static void say_start(struct mu_agent_service *s)
{
    const struct mu_agent_kept *k = &s->kept;
    char copies[120] = "";

    if (k->copies != NULL) {
        (void)snprintf(copies, sizeof(copies),
                       "; what they do not need of it is for copies of those of %" PRIu32
                       " other node%s (--keep-copies)",
                       k->copies->wanted, k->copies->wanted == 1 ? "" : "s");
    }
    mu_agent_log(s,
                 "keeps states of up to %" PRIu64 " MiB for each of %" PRIu32
                 " workers, in %" PRIu64 " MiB of memory at most (--keep-memory)%s",
                 k->bytes >> 20, s->config.policy.workers, (k->bytes * vault_count(s)) >> 20,
                 copies);
}

/* An agent that cannot keep states says so and goes on: the job does not depend on it. */
void mu_agent_kept_start(struct mu_agent_service *s)
{
    struct mu_agent_kept *k = &s->kept;
    uint64_t total = s->config.keep_bytes;
    uint64_t bytes;
    int err;

    if (!s->config.keeps) {
        return;
    }
    if (total == 0) {
        total = mu_env_memory(s->env);
        total = total == UINT64_MAX ? 0 : total / 2;
    }
    bytes = total / vault_count(s) / PAGE * PAGE;
    k->source = mu_env_vaults(s->env);
    if (k->source == NULL || bytes < BYTES_MIN) {
        mu_agent_log(s, "keeps no states: %s",
                     k->source == NULL ? "this environment has no memory for them"
                                       : "give --keep-memory more, at least 768K for each worker");
        k->source = NULL;
        return;
    }
    err = make_vaults(s, bytes);
    if (err != 0) {
        drop_vaults(s);
        mu_agent_log(s, "keeps no states: their memory could not be made: %s",
                     muster_strerror(err));
        return;
    }
    k->bytes = bytes;
    if (s->config.keep_copies != 0) {
        mu_agent_copies_start(s);
    }
    say_start(s);
}

void mu_agent_kept_fini(struct mu_agent_service *s)
{
    drop_vaults(s);
}

/* A worker may have written anything. */
static size_t look(struct mu_agent_service *s)
{
    struct mu_agent_kept *k = &s->kept;
    size_t found = 0;

    for (uint32_t i = 0; i < k->made; i++) {
        uint8_t bytes[MU_KEPT_HEAD_LEN];

        k->whole[i] = k->source->read(&k->vaults[i], 0, bytes, sizeof(bytes)) == 0 &&
                      mu_kept_head_decode(bytes, k->bytes, &k->heads[i]) == 0;
        found += k->whole[i];
    }
    return found;
}

/* --- operations ------------------------------------------------------------------------------- */

void mu_agent_kept_submit(struct mu_agent_round *r, enum mu_store_verb verb, size_t keys,
                          size_t values, uint32_t timeout_ms, void (*done)(struct mu_store_op *op))
{
    struct mu_agent_kept_op *k = &r->kept;

    k->busy = true;
    k->op = (struct mu_store_op){
        .request = {.verb = verb,
                    .keys = k->keys != NULL ? k->keys : k->pair,
                    .key_count = keys,
                    .values = values == 0 ? NULL : k->values,
                    .value_count = values},
        .timeout_ms = timeout_ms,
        .done = done,
    };
    mu_store_submit(r->stores.store, &k->op);
}

static void submit(struct mu_agent_round *r, enum mu_store_verb verb, size_t keys, size_t values,
                   void (*done)(struct mu_store_op *op))
{
    mu_agent_kept_submit(r, verb, keys, values, r->s->config.store_ms, done);
}

bool mu_agent_kept_goes_on(struct mu_agent_round *r)
{
    struct mu_errmsg msg;

    r->kept.busy = false;
    mu_free(r->kept.keys);
    r->kept.keys = NULL;
    if (r->closing) {
        mu_agent_round_settle(r);
        return false;
    }
    if (r->kept.op.status != 0) {
        (void)mu_err(&msg, r->kept.op.status, "kept states: %s",
                     r->kept.op.errmsg.text[0] != '\0' ? r->kept.op.errmsg.text
                                                       : muster_strerror(r->kept.op.status));
        mu_agent_round_not_ready(r, r->kept.op.status, msg.text);
        return false;
    }
    return true;
}

static void set_key(struct mu_agent_round *r, uint32_t rank)
{
    int len = snprintf(r->kept.name, sizeof(r->kept.name), REPORT_KEY "%" PRIu32, rank);

    r->kept.pair[0] = mu_span(r->kept.name, (size_t)len);
}

/* --- before the exchange ---------------------------------------------------------------------- */

static void on_reported(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);

    if (mu_agent_kept_goes_on(r)) {
        r->kept.reported = true;
        mu_agent_round_begin(r);
    }
}

static int encode_report(struct mu_agent_round *r, size_t found)
{
    struct mu_agent_service *s = r->s;
    struct mu_kept_report report = {.workers = s->config.policy.workers};
    int err;

    report.heads = mu_calloc(found + 1, sizeof(*report.heads));
    if (report.heads == NULL) {
        return MUSTER_ENOMEM;
    }
    for (uint32_t i = 0; i < s->kept.made; i++) {
        if (s->kept.whole[i]) {
            report.heads[report.head_count++] = s->kept.heads[i];
        }
    }
    err = mu_kept_report_encode(&report, &r->kept.text);
    mu_free(report.heads);
    return err;
}

bool mu_agent_kept_report(struct mu_agent_round *r)
{
    if (r->s->kept.made == 0 || r->kept.reported) {
        return false;
    }
    r->kept.found = look(r->s);
    if (encode_report(r, r->kept.found) != 0) {
        return false; /* as if we kept nothing */
    }
    set_key(r, r->rank);
    r->kept.values[0] = mu_buf_span(&r->kept.text);
    if (mu_agent_plan_report(r)) {
        submit(r, MU_STORE_MULTI_SET, 2, 2, on_reported);
    } else {
        submit(r, MU_STORE_SET, 1, 1, on_reported);
    }
    return true;
}

/* --- after it --------------------------------------------------------------------------------- */

/* Where a rank finds the version that is loaded: in a vault of its place, or another's, or
 * in what we have of other nodes. */
static const struct mu_vault *find_source(const struct mu_agent_service *s,
                                          const struct mu_kept_answer *answer, uint32_t rank,
                                          uint32_t local_rank)
{
    const struct mu_agent_kept *k = &s->kept;

    for (uint32_t n = 0; n < k->made; n++) {
        uint32_t i = (local_rank * MU_KEPT_VAULTS + n) % k->made;
        const struct mu_kept_head *h = &k->heads[i];

        if (k->whole[i] && mu_kept_version_cmp(&h->version, &answer->version) == 0 &&
            h->replicated == answer->replicated && (h->replicated || h->rank == rank)) {
            return &k->vaults[i];
        }
    }
    if (k->copies != NULL) {
        const struct mu_vault *v = mu_agent_fetches_find(k->copies, answer, rank);

        return v != NULL ? v : mu_agent_copiers_find(k->copies, answer, rank);
    }
    return NULL;
}

/* Whether what was decided on is here for each of our workers, as we have reported. */
static bool is_here(const struct mu_agent_round *r)
{
    for (uint32_t i = 0; r->kept.answer.found && i < r->s->config.policy.workers; i++) {
        if (find_source(r->s, &r->kept.answer, r->ranks.base + i, i) == NULL) {
            return false;
        }
    }
    return true;
}

void mu_agent_kept_settled(struct mu_agent_round *r, const struct mu_kept_answer *answer)
{
    if (answer->found) {
        mu_agent_log(r->s,
                     "round %" PRIu64 ": the workers load step %" PRIu64
                     ", the newest that all ranks have kept",
                     r->number, answer->version.step);
    } else if (r->kept.found != 0) {
        mu_agent_log(r->s, "round %" PRIu64 ": the workers begin without a kept state: %s",
                     r->number,
                     r->kept.missing != 0 ? "not all nodes keep states (--keep-memory)"
                                          : "there is no version that all ranks have");
    }
    r->kept.answer = *answer;
    r->kept.has_answer = true;
    if (is_here(r)) {
        mu_agent_round_decided(r);
    } else {
        mu_agent_round_not_ready(r, MUSTER_ENOENT,
                                 "kept states: this node no longer has what it had reported");
    }
}

static void on_answer_written(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);

    if (mu_agent_kept_goes_on(r)) {
        mu_agent_kept_settled(r, &r->kept.decided);
    }
}

void mu_agent_kept_answer(struct mu_agent_round *r)
{
    uint64_t nonce;

    mu_env_entropy(r->s->env, &nonce, sizeof(nonce));
    r->kept.missing = mu_recall_missing(&r->kept.recall);
    mu_recall_decide(&r->kept.recall, nonce, &r->kept.decided);
    mu_kept_answer_encode(&r->kept.decided, r->kept.answer_bytes);
    r->kept.pair[0] = mu_span_str(ANSWER_KEY);
    r->kept.values[0] = mu_span(r->kept.answer_bytes, sizeof(r->kept.answer_bytes));
    submit(r, MU_STORE_SET, 1, 1, on_answer_written);
}

static int take_report(struct mu_recall *recall, uint32_t node, struct mu_span bytes)
{
    struct mu_kept_report report;
    int err = mu_kept_report_decode(bytes, &report);

    if (err == 0) {
        err = mu_recall_take(recall, node, &report);
        mu_free(report.heads);
    }
    return err;
}

/* `values` are the reports of all nodes, or, if some have none, only ours. */
static void decide(struct mu_agent_round *r, const struct mu_span *values, size_t count)
{
    struct mu_errmsg msg;
    uint32_t node = 0;
    int err = mu_recall_init(&r->kept.recall, r->world);

    for (; err == 0 && node < count; node++) {
        err = take_report(&r->kept.recall, node, values[node]);
    }
    if (err != 0) {
        (void)mu_err(&msg, err, "kept states: what node %" PRIu32 " reports: %s",
                     node == 0 ? 0 : node - 1, muster_strerror(err));
        mu_agent_round_not_ready(r, err, msg.text);
    } else if (r->kept.holds && count == r->world) {
        mu_agent_plan_begin(r);
    } else {
        mu_agent_kept_answer(r);
    }
}

static void on_reports(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);

    if (mu_agent_kept_goes_on(r)) {
        decide(r, op->reply.values, op->reply.value_count == r->world ? r->world : 0);
    }
}

static void on_all_looked(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);
    struct mu_span own;

    if (!mu_agent_kept_goes_on(r)) {
        return;
    }
    if (op->reply.number == 0) {
        own = mu_buf_span(&r->kept.text);
        decide(r, &own, 1);
    } else if (mu_agent_kept_keys(r, REPORT_KEY, NULL, r->world) != 0) {
        mu_agent_round_not_ready(r, MUSTER_ENOMEM, "out of memory");
    } else {
        submit(r, MU_STORE_MULTI_GET, r->world, 0, on_reports);
    }
}

static void on_answer(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);
    struct mu_kept_answer answer;
    struct mu_kept_plan plan;
    struct mu_span text;

    if (!mu_agent_kept_goes_on(r)) {
        return;
    }
    text = op->reply.value_count == 1 ? op->reply.values[0] : (struct mu_span){0};
    if (mu_kept_answer_decode(text, &answer) == 0) {
        mu_agent_kept_settled(r, &answer);
    } else if (r->kept.holds && mu_kept_plan_decode(text, &plan) == 0) {
        mu_agent_plan_take(r, &plan);
    } else {
        mu_agent_round_not_ready(
            r, MUSTER_EPROTO, "kept states: node 0 has answered something that is not an answer");
    }
}

static void on_first_looked(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);

    if (!mu_agent_kept_goes_on(r)) {
        return;
    }
    if (op->reply.number != 0) {
        r->kept.pair[0] = mu_span_str(ANSWER_KEY);
        submit(r, MU_STORE_GET, 1, 0, on_answer); /* it is written, or is about to be */
    } else {
        mu_agent_log(r->s,
                     "round %" PRIu64
                     ": nothing is kept, because node 0 does not keep states (--keep-memory)",
                     r->number);
        mu_agent_round_decided(r);
    }
}

/* In one block of memory with their spans. */
int mu_agent_kept_keys(struct mu_agent_round *r, const char *prefix, const uint32_t *nodes,
                       size_t count)
{
    size_t cap = strlen(prefix) + 11;
    char *text;

    mu_free(r->kept.keys);
    r->kept.keys = mu_malloc(count * (sizeof(*r->kept.keys) + cap) + 1);
    if (r->kept.keys == NULL) {
        return MUSTER_ENOMEM;
    }
    text = (char *)(r->kept.keys + count);
    for (size_t i = 0; i < count; i++, text += cap) {
        uint32_t node = nodes == NULL ? (uint32_t)i : nodes[i];

        r->kept.keys[i] = mu_span(text, (size_t)snprintf(text, cap, "%s%" PRIu32, prefix, node));
    }
    return 0;
}

void mu_agent_kept_decide(struct mu_agent_round *r)
{
    if (!r->kept.reported) {
        mu_agent_round_decided(r);
    } else if (r->rank != 0) {
        set_key(r, 0);
        submit(r, MU_STORE_CHECK, 1, 0, on_first_looked);
    } else if (mu_agent_kept_keys(r, REPORT_KEY, NULL, r->world) != 0) {
        mu_agent_round_not_ready(r, MUSTER_ENOMEM, "out of memory");
    } else {
        submit(r, MU_STORE_CHECK, r->world, 0, on_all_looked);
    }
}

void mu_agent_kept_op_init(struct mu_agent_round *r)
{
    mu_buf_init(&r->kept.text, MU_KEPT_REPORT_BYTES_MAX);
    mu_buf_init(&r->kept.holding, MU_KEPT_PLAN_BYTES_MAX);
}

void mu_agent_kept_op_fini(struct mu_agent_kept_op *k)
{
    mu_buf_fini(&k->text);
    mu_buf_fini(&k->holding);
    mu_recall_fini(&k->recall);
    mu_kept_plan_fini(&k->plan);
    mu_free(k->keys);
}

/* --- for workers ------------------------------------------------------------------------------ */

bool mu_agent_kept_give(const struct mu_agent_service *s, uint32_t local_rank,
                        const struct mu_vault *vaults[MU_CHILD_VAULTS_MAX],
                        struct mu_kept_terms *ret_terms)
{
    const struct mu_agent_round *r = s->round;
    const struct mu_kept_answer *answer = &r->kept.answer;
    uint32_t rank = r->ranks.base + local_rank;

    if (!r->kept.has_answer) {
        return false;
    }
    for (uint32_t i = 0; i < MU_KEPT_VAULTS; i++) {
        vaults[i] = &s->kept.vaults[local_rank * MU_KEPT_VAULTS + i];
    }
    if (answer->found) {
        vaults[MU_KEPT_VAULTS] = find_source(s, answer, rank, local_rank);
    }
    *ret_terms = (struct mu_kept_terms){
        .fd = MU_CHILD_VAULT_FD,
        .bytes = s->kept.bytes,
        .era = answer->era,
        .nonce = answer->nonce,
        .rank = rank,
        .world = r->ranks.world,
        .found = vaults[MU_KEPT_VAULTS] != NULL,
        .version = answer->version,
        .replicated = answer->replicated,
    };
    return true;
}
