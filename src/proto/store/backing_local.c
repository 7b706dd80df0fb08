/*
 * Reads that the mirror answers, as of the revision that the watch has reached, and what is done if
 * the watch cannot get there.
 */
#include <inttypes.h>
#include <stdio.h>

#include "core/assert.h"
#include "proto/store/backing_internal.h"

#define GAP_READS_MAX 4096u
#define WARY          16u /* reads after a gap */
#define FEW           8u  /* reads for which asking twice costs more than asking for their keys */

bool mu_backing_is_whole(const struct mu_backing *m)
{
    return m->watching && m->whole && !m->holed && m->gap == 0;
}

bool mu_backing_trusts_mirror(const struct mu_backing *m)
{
    return mu_backing_is_whole(m) && (m->wary == 0 || m->queued >= FEW);
}

bool mu_backing_is_local(const struct mu_backing_op *op)
{
    const struct mu_store_request *q = &op->request;

    return mu_store_verb_facts(q->verb)->does == MU_STORE_READS ||
           (q->verb == MU_STORE_MULTI_SET && q->key_count == 0);
}

/* --- answers ---------------------------------------------------------------------------------- */

static const struct mu_backing_key *find_value(const struct mu_backing *m, struct mu_span key)
{
    const struct mu_backing_key *k = mu_backing_find(m, key);

    return k == NULL || k->mod == 0 ? NULL : k;
}

static bool is_there(const struct mu_backing *m, const struct mu_backing_op *op, size_t i)
{
    const struct mu_backing_key *k = mu_backing_find(m, op->request.keys[i]);

    return k != NULL && (k->mod != 0 || ((op->request.flags & MU_BACKING_NO_QUEUES) == 0 &&
                                         !mu_list_empty(&k->elements)));
}

static void sleep_on(struct mu_backing *m, struct mu_backing_op *op, struct mu_span key)
{
    int err = mu_backing_register(m, op, key, m->reached);

    if (err != 0) {
        mu_backing_finish(m, op, err, NULL);
    } else {
        mu_backing_sleep(m, op);
    }
}

static void end_get(struct mu_backing *m, struct mu_backing_op *op)
{
    const struct mu_backing_key *k = find_value(m, op->request.keys[0]);
    int err;

    if (k == NULL && (op->request.flags & MU_STORE_NOWAIT) == 0) {
        sleep_on(m, op, op->request.keys[0]);
        return;
    }
    mu_buf_reset(&op->held);
    err = k == NULL ? MUSTER_ENOENT : mu_buf_append(&op->held, mu_span(k->value, k->len));
    if (err != 0) {
        mu_backing_finish(m, op, err, NULL);
        return;
    }
    op->one = mu_buf_span(&op->held);
    mu_backing_answer(m, op, 0, &op->one, 1);
}

static void end_multi_get(struct mu_backing *m, struct mu_backing_op *op)
{
    bool empty = (op->request.flags & MU_BACKING_OR_EMPTY) != 0;
    int err = mu_backing_make_lens(op);

    for (; err == 0 && op->at < op->request.key_count; op->at++) {
        const struct mu_backing_key *k = find_value(m, op->request.keys[op->at]);

        if (k == NULL && !empty && (op->request.flags & MU_STORE_NOWAIT) == 0) {
            sleep_on(m, op, op->request.keys[op->at]);
            return;
        }
        op->lens[op->at] = k == NULL ? 0 : k->len;
        if (k != NULL) {
            err = mu_buf_append(&op->held, mu_span(k->value, k->len));
        } else {
            err = empty ? 0 : MUSTER_ENOENT;
        }
    }
    if (err != 0) {
        mu_backing_finish(m, op, err, NULL);
    } else {
        mu_backing_answer_many(m, op);
    }
}

static void end_wait(struct mu_backing *m, struct mu_backing_op *op)
{
    for (; op->at < op->request.key_count; op->at++) {
        int err = is_there(m, op, op->at)
                      ? 0
                      : mu_backing_register(m, op, op->request.keys[op->at], m->reached);

        if (err != 0) {
            mu_backing_finish(m, op, err, NULL);
            return;
        }
    }
    mu_backing_sleep(m, op);
}

static int64_t count_elements(const struct mu_backing *m, struct mu_span key)
{
    const struct mu_backing_key *k = mu_backing_find(m, key);
    int64_t count = 0;

    if (k != NULL) {
        MU_LIST_FOREACH (it, &k->elements) {
            count++;
        }
    }
    return count;
}

static void end_op(struct mu_backing *m, struct mu_backing_op *op)
{
    int64_t number = 0;

    switch ((int)op->request.verb) {
    case MU_STORE_GET:
        end_get(m, op);
        return;
    case MU_STORE_MULTI_GET:
        end_multi_get(m, op);
        return;
    case MU_STORE_WAIT:
        end_wait(m, op);
        return;
    case MU_STORE_CHECK:
        while (op->at < op->request.key_count && is_there(m, op, op->at)) {
            op->at++;
        }
        number = op->at == op->request.key_count ? 1 : 0;
        break;
    case MU_STORE_QUEUE_LEN:
        number = count_elements(m, op->request.keys[0]);
        break;
    default:
        MU_ASSERT(op->request.verb == MU_STORE_MULTI_SET); /* Of nothing. */
        break;
    }
    mu_backing_answer(m, op, number, NULL, 0);
}

/* --- waiting for the watch -------------------------------------------------------------------- */

/* Answers have told more of these keys than the watch: the watch must get there first. */
static void raise_need(struct mu_backing *m, struct mu_backing_op *op)
{
    for (size_t i = op->at; i < op->request.key_count; i++) {
        const struct mu_backing_key *k = mu_backing_find(m, op->request.keys[i]);

        if (k != NULL && k->mod > m->reached) {
            op->need = k->mod > op->need ? k->mod : op->need;
            mu_backing_expect(m, k->mod);
        }
        if (k != NULL && k->gone > op->need) {
            op->need = k->gone;
        }
    }
}

/* Answers a read. False: it must wait. */
static bool try_answer(struct mu_backing *m, struct mu_backing_op *op)
{
    if (!op->canceled && !m->config.hasty) {
        raise_need(m, op);
        if (op->need > m->reached) {
            return false;
        }
    }
    op->client->held--;
    m->stats.local_ops++;
    if (!mu_backing_land(m, op)) {
        end_op(m, op);
    }
    return true;
}

void mu_backing_hold(struct mu_backing *m, struct mu_backing_op *op, int64_t need)
{
    mu_list_remove(&op->link);
    mu_list_push(&m->held, &op->link);
    op->client->held++;
    op->need = need;
}

void mu_backing_settle(struct mu_backing *m)
{
    bool lost = false;

    MU_LIST_FOREACH_SAFE (it, tmp, &m->held) {
        struct mu_backing_op *op = MU_CONTAINER_OF(it, struct mu_backing_op, link);

        /* Answers come in order. */
        if (op->client->stuck || !try_answer(m, op)) {
            op->client->stuck = true;
            lost = lost || op->need > m->expected;
        }
    }
    MU_LIST_FOREACH (it, &m->held) {
        MU_CONTAINER_OF(it, struct mu_backing_op, link)->client->stuck = false;
    }
    if (lost || !m->watching) {
        mu_backing_unhold(m);
    }
}

bool mu_backing_holds(const struct mu_backing *m)
{
    return !mu_list_empty(&m->held);
}

void mu_backing_unhold(struct mu_backing *m)
{
    while (!mu_list_empty(&m->held)) {
        struct mu_backing_op *op = MU_CONTAINER_OF(m->held.prev, struct mu_backing_op, link);

        if (op->need > m->reached) {
            m->gap = op->need > m->gap ? op->need : m->gap;
            m->wary = WARY;
        }
        op->client->held--;
        if (!mu_backing_land(m, op)) {
            mu_backing_requeue(m, op);
        }
    }
}

void mu_backing_read_cached(struct mu_backing *m)
{
    if (!mu_backing_is_whole(m)) {
        return;
    }
    MU_LIST_FOREACH_SAFE (it, tmp, &m->clients) {
        struct mu_backing_client *c = MU_CONTAINER_OF(it, struct mu_backing_client, link);

        while (!mu_list_empty(&c->queue) && c->flying == c->held) {
            struct mu_backing_op *op = MU_CONTAINER_OF(c->queue.next, struct mu_backing_op, link);

            if (!mu_backing_is_local(op)) {
                break;
            }
            m->queued--;
            op->status = 0;
            op->state = MU_BACKING_FLYING;
            c->flying++;
            mu_backing_hold(m, op, m->answered);
        }
        if (mu_list_empty(&c->queue)) {
            mu_list_remove(&c->link);
        }
    }
    mu_backing_settle(m);
}

/* --- passing a gap ---------------------------------------------------------------------------- */

void mu_backing_note_probe(struct mu_backing *m, int64_t revision)
{
    if ((revision <= m->reached || revision <= m->expected) &&
        m->gap_reads_max > MU_BACKING_GAP_READS) {
        m->gap_reads_max--;
    }
}

void mu_backing_note_gap(struct mu_backing *m)
{
    if (m->gap != 0 && ++m->gap_reads >= m->gap_reads_max) {
        m->mark_due = true;
    }
}

bool mu_backing_plan_mark(struct mu_backing *m)
{
    struct mu_backing_txn *t = m->mark;
    char key[MU_BACKING_SLOT];
    int len = snprintf(key, sizeof(key), "%.*s/m/%016" PRIx64, (int)m->prefix_len, m->prefix,
                       (uint64_t)m->session);
    struct mu_etcd_op put = {.kind = MU_ETCD_PUT, .key = mu_span(key, (size_t)len)};

    put.lease = m->session;
    m->mark_due = false;
    m->gap_reads = 0;
    /* If it does not help for long, others write all the time, and it is tried seldom. */
    m->gap_reads_max = m->gap_reads_max < GAP_READS_MAX ? 2 * m->gap_reads_max : GAP_READS_MAX;
    mu_buf_reset(&t->body);
    if (mu_etcd_encode_txn(&t->body, &(struct mu_etcd_txn){.success = &put, .success_count = 1}) !=
        0) {
        return false;
    }
    m->marking = t->sent = true;
    m->stats.marks++;
    return true;
}

void mu_backing_marked(struct mu_backing *m, int status, const struct mu_etcd_reply *reply)
{
    m->marking = false;
    if (status == 0) {
        mu_backing_expect(m, reply->revision);
    }
}
