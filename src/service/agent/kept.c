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
#include "proto/state/recall.h"
#include "service/agent/agent_internal.h"

#define REPORT_KEY "muster/kept/"
#define ANSWER_KEY "muster/kept/answer"
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

static void drop_vaults(struct mu_agent_kept *k)
{
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
        drop_vaults(k);
        mu_agent_log(s, "keeps no states: their memory could not be made: %s",
                     muster_strerror(err));
        return;
    }
    k->bytes = bytes;
    mu_agent_log(s,
                 "keeps states of up to %" PRIu64 " MiB for each of %" PRIu32
                 " workers, in %" PRIu64 " MiB of memory at most (--keep-memory)",
                 bytes >> 20, s->config.policy.workers, (bytes * vault_count(s)) >> 20);
}

void mu_agent_kept_fini(struct mu_agent_service *s)
{
    drop_vaults(&s->kept);
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

static void submit(struct mu_agent_round *r, enum mu_store_verb verb, size_t keys, size_t values,
                   void (*done)(struct mu_store_op *op))
{
    struct mu_agent_kept_op *k = &r->kept;

    k->busy = true;
    k->op = (struct mu_store_op){
        .request = {.verb = verb,
                    .keys = keys == 1 ? &k->key : k->keys,
                    .key_count = keys,
                    .values = values == 0 ? NULL : &k->value,
                    .value_count = values},
        .timeout_ms = r->s->config.store_ms,
        .done = done,
    };
    mu_store_submit(r->stores.store, &k->op);
}

/* Whether the round goes on after an operation. If not, it ends or was told why. */
static bool goes_on(struct mu_agent_round *r)
{
    struct mu_errmsg msg;

    r->kept.busy = false;
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

    r->kept.key = mu_span(r->kept.name, (size_t)len);
}

/* --- before the exchange ---------------------------------------------------------------------- */

static void on_reported(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);

    if (goes_on(r)) {
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
    r->kept.value = mu_buf_span(&r->kept.text);
    submit(r, MU_STORE_SET, 1, 1, on_reported);
    return true;
}

/* --- after it --------------------------------------------------------------------------------- */

static void take_answer(struct mu_agent_round *r, const struct mu_kept_answer *answer)
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
    mu_agent_round_decided(r);
}

static void on_answer_written(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);

    if (goes_on(r)) {
        take_answer(r, &r->kept.decided);
    }
}

static void write_answer(struct mu_agent_round *r, struct mu_recall *recall)
{
    uint64_t nonce;

    mu_env_entropy(r->s->env, &nonce, sizeof(nonce));
    r->kept.missing = mu_recall_missing(recall);
    mu_recall_decide(recall, nonce, &r->kept.decided);
    mu_kept_answer_encode(&r->kept.decided, r->kept.answer_bytes);
    r->kept.key = mu_span_str(ANSWER_KEY);
    r->kept.value = mu_span(r->kept.answer_bytes, sizeof(r->kept.answer_bytes));
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
    struct mu_recall recall;
    struct mu_errmsg msg;
    uint32_t node = 0;
    int err = mu_recall_init(&recall, r->world);

    for (; err == 0 && node < count; node++) {
        err = take_report(&recall, node, values[node]);
    }
    if (err == 0) {
        write_answer(r, &recall);
    } else {
        (void)mu_err(&msg, err, "kept states: what node %" PRIu32 " reports: %s",
                     node == 0 ? 0 : node - 1, muster_strerror(err));
        mu_agent_round_not_ready(r, err, msg.text);
    }
    mu_recall_fini(&recall);
}

static void on_reports(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);

    if (goes_on(r)) {
        decide(r, op->reply.values, op->reply.value_count == r->world ? r->world : 0);
    }
}

static void on_all_looked(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);
    struct mu_span own;

    if (!goes_on(r)) {
        return;
    }
    if (op->reply.number != 0) {
        submit(r, MU_STORE_MULTI_GET, r->world, 0, on_reports);
    } else {
        own = mu_buf_span(&r->kept.text);
        decide(r, &own, 1);
    }
}

static void on_answer(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);
    struct mu_kept_answer answer;

    if (!goes_on(r)) {
        return;
    }
    if (op->reply.value_count == 1 && mu_kept_answer_decode(op->reply.values[0], &answer) == 0) {
        take_answer(r, &answer);
    } else {
        mu_agent_round_not_ready(
            r, MUSTER_EPROTO, "kept states: node 0 has answered something that is not an answer");
    }
}

static void on_first_looked(struct mu_store_op *op)
{
    struct mu_agent_round *r = round_of(op);

    if (!goes_on(r)) {
        return;
    }
    if (op->reply.number != 0) {
        r->kept.key = mu_span_str(ANSWER_KEY);
        submit(r, MU_STORE_GET, 1, 0, on_answer); /* it is written, or is about to be */
    } else {
        mu_agent_log(r->s,
                     "round %" PRIu64
                     ": nothing is kept, because node 0 does not keep states (--keep-memory)",
                     r->number);
        mu_agent_round_decided(r);
    }
}

/* The keys of all reports, in one block of memory with their spans. */
static int make_keys(struct mu_agent_round *r)
{
    size_t cap = sizeof(REPORT_KEY) + 10;
    char *text;

    r->kept.keys = mu_malloc((size_t)r->world * (sizeof(*r->kept.keys) + cap));
    if (r->kept.keys == NULL) {
        return MUSTER_ENOMEM;
    }
    text = (char *)(r->kept.keys + r->world);
    for (uint32_t i = 0; i < r->world; i++, text += cap) {
        r->kept.keys[i] = mu_span(text, (size_t)snprintf(text, cap, REPORT_KEY "%" PRIu32, i));
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
    } else if (make_keys(r) != 0) {
        mu_agent_round_not_ready(r, MUSTER_ENOMEM, "out of memory");
    } else {
        r->kept.key = r->kept.keys[0];
        submit(r, MU_STORE_CHECK, r->world, 0, on_all_looked);
    }
}

void mu_agent_kept_op_init(struct mu_agent_round *r)
{
    mu_buf_init(&r->kept.text, MU_KEPT_REPORT_BYTES_MAX);
}

void mu_agent_kept_op_fini(struct mu_agent_kept_op *k)
{
    mu_buf_fini(&k->text);
    mu_free(k->keys);
}

/* --- for workers ------------------------------------------------------------------------------ */

/* Where a rank finds the version that is loaded: in a vault of its place, or another's. */
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
    return NULL;
}

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
