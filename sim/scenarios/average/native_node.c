#include "scenarios/average/native_node.h"

#include <string.h>

#include "codec/average/kernel.h"
#include "core/assert.h"
#include "core/buf.h"
#include "crypto/hash.h"

#define BLOCK MU_QUANT_BLOCK_MIN

const char *const nat_bug_names[NAT_BUGS] = {"none",   "sum-all", "raw-own", "feedback", "relabel",
                                             "regive", "forget",  "hide",    "minority", "early",
                                             "boast",  "leave",   "deaf"};

void nat_round_init(struct nat_round *r, uint32_t count, uint64_t clients, uint32_t parts,
                    uint32_t codec, uint64_t salt)
{
    memset(r, 0, sizeof(*r));
    r->count = count;
    r->clients = clients;
    r->codec = codec;
    r->salt = salt;
    r->division.parts = r->parts;
    r->division.member_count = count;
    for (uint32_t i = 0; i < count; i++) {
        r->weights[i] = 1 + (double)(salt >> (4 * i) & 3);
        r->division.first[i] = (uint32_t)r->division.part_count;
        for (uint32_t k = 0; k < parts && (clients >> i & 1) == 0; k++) {
            r->parts[r->division.part_count++] =
                (struct mu_avg_part){.owner = i, .elements = NAT_VALUES};
            r->division.count[i]++;
        }
    }
    r->times = mu_native_config_defaults();
}

/* --- values ----------------------------------------------------------------------------------- */

static size_t part_len(const struct nat_round *r)
{
    return r->codec == 0 ? NAT_BYTES_MAX : mu_quant_len(BLOCK, NAT_VALUES);
}

static float value_of(const struct nat_round *r, uint32_t member, uint32_t part, uint32_t i)
{
    uint64_t x = (r->salt + member * 1000 + part * 10 + i + 1) * UINT64_C(0x9e3779b97f4a7c15);

    x ^= x >> 29;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    return (float)(int32_t)(x >> 33) / 1e5f;
}

static void encode(const struct nat_round *r, const float *values, float *residuals, uint8_t *out)
{
    if (r->codec == 0) {
        memcpy(out, values, NAT_BYTES_MAX);
    } else {
        MU_ASSERT(mu_quant_encode((enum mu_quant)r->codec, BLOCK, values, residuals, NAT_VALUES,
                                  out) == 0);
    }
}

static bool decode(const struct nat_round *r, struct mu_span in, float *values)
{
    if (r->codec == 0) {
        memcpy(values, in.data, NAT_BYTES_MAX);
        return mu_avg_finite(MU_DTYPE_F32, in.data, NAT_VALUES);
    }
    return mu_quant_decode((enum mu_quant)r->codec, BLOCK, in, values, NAT_VALUES) == 0;
}

/* The model: straight down, from the values of the members. */
static void compute(const struct nat_round *r, const struct mu_native_set *set, uint32_t part,
                    float *ret)
{
    float sum[NAT_VALUES] = {0};
    float weights = 0;
    uint8_t bytes[NAT_BYTES_MAX];

    for (uint32_t k = 0; k < r->count; k++) {
        float values[NAT_VALUES];

        if ((set->members >> k & 1) == 0) {
            continue;
        }
        for (uint32_t i = 0; i < NAT_VALUES; i++) {
            values[i] = value_of(r, k, part, i);
        }
        encode(r, values, NULL, bytes);
        (void)decode(r, mu_span(bytes, part_len(r)), values);
        for (uint32_t i = 0; i < NAT_VALUES; i++) {
            volatile float product = (float)r->weights[k] * values[i];

            sum[i] += product;
        }
        weights += (float)r->weights[k];
    }
    for (uint32_t i = 0; i < NAT_VALUES; i++) {
        sum[i] /= weights;
    }
    encode(r, sum, NULL, bytes);
    (void)decode(r, mu_span(bytes, part_len(r)), ret);
}

/* --- what an observer sees -------------------------------------------------------------------- */

static void check_result(struct nat_node *n)
{
    struct nat_truth *t = n->truth;
    const struct nat_round *r = n->round;

    if (t->any && (t->set.members != n->m.set.members ||
                   memcmp(t->digest, n->m.digest, sizeof(t->digest)) != 0)) {
        n->failed(n->context, "two members end with different results");
        return;
    }
    for (uint32_t k = 0; k < r->count; k++) {
        if ((n->m.set.members >> k & 1) != 0 && n->m.set.weights[k] != r->weights[k]) {
            n->failed(n->context, "a weight is not what the member said");
            return;
        }
    }
    for (uint32_t p = 0; p < r->division.part_count; p++) {
        float want[NAT_VALUES];

        compute(r, &n->m.set, p, want);
        if (memcmp(want, n->values[p], sizeof(want)) != 0) {
            n->failed(n->context, "the average is not that of the members that it names");
            return;
        }
    }
    t->any = true;
    t->set = n->m.set;
    memcpy(t->digest, n->m.digest, sizeof(t->digest));
}

/* --- doing what the machine says -------------------------------------------------------------- */

static void send(struct nat_node *n, uint32_t to, const struct mu_native_msg *msg)
{
    struct nat_frame frame;
    struct mu_buf out;

    mu_buf_init(&out, 4096);
    MU_ASSERT(mu_native_msg_encode(msg, &out) == 0 && out.len <= sizeof(frame.bytes));
    memset(&frame, 0, sizeof(frame));
    frame.len = (uint16_t)out.len;
    memcpy(frame.bytes, mu_buf_span(&out).data, out.len);
    mu_buf_fini(&out);
    n->send(n->context, n->id, to, &frame);
}

static void say(struct nat_node *n, const struct mu_native_event *e)
{
    struct mu_native_msg msg = *e->msg;

    if (n->bug == NAT_BUG_HIDE && msg.type == MU_NATIVE_PROMISE) {
        msg.accepted = msg.final = msg.proposed = msg.whole = false;
    }
    if (n->bug == NAT_BUG_BOAST && msg.type == MU_NATIVE_HAVE && e->msg->shard == n->id) {
        msg.set.members = n->m.all;
        memcpy(msg.set.weights, n->round->weights, sizeof(n->round->weights));
    }
    send(n, e->member, &msg);
    if (n->bug == NAT_BUG_FORGET && msg.type == MU_NATIVE_PROMISE) {
        n->m.promised = n->m.proposed ? n->m.proposed_at : n->m.promised % n->round->count;
    }
}

static void give(struct nat_node *n, const struct mu_native_event *e)
{
    uint8_t *bytes = n->parts[e->part][n->id];
    struct mu_native_msg msg = {.type = MU_NATIVE_PART,
                                .part = e->part,
                                .weight = n->round->weights[n->id],
                                .values = mu_span(bytes, part_len(n->round))};
    uint32_t shard = n->round->parts[e->part].owner;
    uint8_t changed[NAT_BYTES_MAX];

    memcpy(changed, bytes, sizeof(changed));
    if (n->bug == NAT_BUG_REGIVE && e->member != shard && shard != n->id) {
        changed[0] ^= 1;
        msg.values.data = changed;
    }
    send(n, e->member, &msg);
}

static void tell(struct nat_node *n, const struct mu_native_event *e)
{
    struct mu_native_msg msg = {.type = MU_NATIVE_AVERAGE,
                                .sum = e->sum,
                                .part = e->part,
                                .values = mu_span(n->averages[e->part], part_len(n->round))};

    send(n, e->member, &msg);
}

static void sum_up(struct nat_node *n, struct mu_now now, const struct mu_native_event *e)
{
    uint32_t shard = n->round->parts[e->part].owner;
    float sum[NAT_VALUES] = {0};
    double weights = 0;

    for (uint32_t k = 0; k < n->round->count; k++) {
        float values[NAT_VALUES];
        bool in = (e->set->members >> k & 1) != 0;

        if (n->bug == NAT_BUG_SUM_ALL) {
            in = n->got[shard * n->round->count + k] == n->round->division.count[shard];
        }
        if (!in) {
            continue;
        }
        if (!decode(n->round, mu_span(n->parts[e->part][k], part_len(n->round)), values)) {
            n->failed(n->context, "an owner sums what it has not got");
            return;
        }
        if (n->bug == NAT_BUG_RAW_OWN && k == n->id) {
            memcpy(values, n->values[e->part], sizeof(values));
        }
        mu_avg_add(sum, MU_DTYPE_F32, (const uint8_t *)values, NAT_VALUES, n->round->weights[k]);
        weights += n->round->weights[k];
    }
    mu_avg_divide(sum, NAT_VALUES, weights);
    encode(n->round, sum, n->bug == NAT_BUG_FEEDBACK ? n->feedback : NULL, n->averages[e->part]);
    n->average_of[e->part] = e->sum;
    mu_native_summed(&n->m, now, e->sum, e->part, true);
}

static void decode_all(struct nat_node *n, float out[NAT_PARTS_MAX][NAT_VALUES])
{
    for (uint32_t p = 0; p < n->round->division.part_count; p++) {
        (void)decode(n->round, mu_span(n->averages[p], part_len(n->round)), out[p]);
    }
}

static void hash(struct nat_node *n, struct mu_now now, uint32_t sum)
{
    float all[NAT_PARTS_MAX][NAT_VALUES];
    uint8_t digest[MU_NATIVE_DIGEST_LEN];

    memset(all, 0, sizeof(all));
    decode_all(n, all);
    mu_sha256(digest, mu_span((const uint8_t *)all, sizeof(all)));
    mu_native_hashed(&n->m, now, sum, digest);
    if (n->bug == NAT_BUG_EARLY && !n->m.placed && n->m.accepted) {
        n->m.final = true;
        memcpy(n->m.wanted_digest, n->m.digest, sizeof(n->m.digest));
        n->m.placed = n->m.place_due = true;
    }
    if (n->bug == NAT_BUG_MINORITY && n->m.lead == MU_NATIVE_LEAD_PROPOSED) {
        for (uint32_t i = 0; i < n->round->count; i++) {
            struct mu_native_msg msg = {
                .type = MU_NATIVE_ACCEPT, .ballot = n->m.ballot, .sum = n->m.sum_led};

            memcpy(msg.digest, digest, sizeof(digest));
            mu_native_received(&n->m, now, i, &msg);
        }
    }
}

static void end(struct nat_node *n, struct mu_now now)
{
    n->ended = true;
    n->status = mu_native_status(&n->m);
    if (n->status == 0) {
        n->truth->successes++;
        check_result(n);
    } else {
        n->truth->failures++;
    }
    if (n->bug == NAT_BUG_LEAVE && !n->released) {
        n->m.released = true;
        (void)now;
    }
}

static void forget(struct nat_node *n, uint32_t sum)
{
    for (uint32_t p = 0; p < n->round->division.part_count && n->bug != NAT_BUG_RELABEL; p++) {
        if (n->average_of[p] != sum || sum == MU_NATIVE_NO_SUM) {
            memset(n->averages[p], 0xff, sizeof(n->averages[p]));
        }
    }
}

static void pump(struct nat_node *n, struct mu_now now)
{
    struct mu_native_event e;

    while (mu_native_next_event(&n->m, &e)) {
        switch (e.type) {
        case MU_NATIVE_EVENT_SEND:
            say(n, &e);
            break;
        case MU_NATIVE_EVENT_GIVE:
            give(n, &e);
            mu_native_sent(&n->m, now, e.member);
            break;
        case MU_NATIVE_EVENT_TELL:
            tell(n, &e);
            mu_native_sent(&n->m, now, e.member);
            break;
        case MU_NATIVE_EVENT_SUM:
            sum_up(n, now, &e);
            break;
        case MU_NATIVE_EVENT_FORGET:
            forget(n, e.sum);
            break;
        case MU_NATIVE_EVENT_HASH:
            hash(n, now, e.sum);
            break;
        case MU_NATIVE_EVENT_PLACE:
            decode_all(n, n->values);
            n->placed = true;
            break;
        case MU_NATIVE_EVENT_CUT:
            n->failed(n->context, "an honest member is taken for one that breaks the rules");
            break;
        case MU_NATIVE_EVENT_END:
            end(n, now);
            break;
        case MU_NATIVE_EVENT_RELEASE:
            n->released = true;
            break;
        }
    }
}

void nat_node_start(struct nat_node *n, struct mu_now now, uint32_t id,
                    const struct nat_round *round)
{
    struct mu_native_config c = round->times;

    n->id = id;
    n->round = round;
    c.division = &round->division;
    c.position = id;
    c.clients = round->clients;
    c.weight = round->weights[id];
    c.got = n->got;
    c.window = 1 + id % 2;
    memset(n->parts, 0xff, sizeof(n->parts)); /* no value is finite */
    memset(n->averages, 0xff, sizeof(n->averages));
    for (uint32_t p = 0; p < round->division.part_count; p++) {
        for (uint32_t i = 0; i < NAT_VALUES; i++) {
            n->values[p][i] = value_of(round, id, p, i);
        }
        encode(round, n->values[p], NULL, n->parts[p][id]);
    }
    MU_ASSERT(mu_native_init(&n->m, &c, now) == 0);
    pump(n, now);
}

static void take_part(struct nat_node *n, struct mu_now now, uint32_t from,
                      const struct mu_native_msg *msg)
{
    float values[NAT_VALUES];
    bool good = msg->part < n->round->division.part_count &&
                msg->values.len == part_len(n->round) && decode(n->round, msg->values, values);

    if (mu_native_contributed(&n->m, now, from, msg->part, msg->weight, good)) {
        memcpy(n->parts[msg->part][from], msg->values.data, msg->values.len);
    }
}

static void take_average(struct nat_node *n, struct mu_now now, uint32_t from,
                         const struct mu_native_msg *msg)
{
    float values[NAT_VALUES];
    bool good = msg->part < n->round->division.part_count &&
                msg->values.len == part_len(n->round) && decode(n->round, msg->values, values);
    uint32_t sum = n->bug == NAT_BUG_RELABEL && n->m.sum != MU_NATIVE_NO_SUM ? n->m.sum : msg->sum;

    if (mu_native_averaged(&n->m, now, from, sum, msg->part, good)) {
        memcpy(n->averages[msg->part], msg->values.data, msg->values.len);
        n->average_of[msg->part] = sum;
    }
}

void nat_node_receive(struct nat_node *n, struct mu_now now, uint32_t from, struct mu_span frame)
{
    struct mu_native_msg msg;

    if (n->released) {
        return;
    }
    if (mu_native_msg_decode(frame, &msg) != 0) {
        n->failed(n->context, "a message cannot be read");
        return;
    }
    if (msg.type == MU_NATIVE_PART) {
        take_part(n, now, from, &msg);
    } else if (msg.type == MU_NATIVE_AVERAGE) {
        take_average(n, now, from, &msg);
    } else if (n->bug != NAT_BUG_DEAF || msg.type != MU_NATIVE_WANT) {
        mu_native_received(&n->m, now, from, &msg);
    }
    pump(n, now);
}

void nat_node_lost(struct nat_node *n, struct mu_now now, uint32_t member)
{
    mu_native_lost(&n->m, now, member);
    pump(n, now);
}

void nat_node_tick(struct nat_node *n, struct mu_now now)
{
    mu_native_tick(&n->m, now);
    pump(n, now);
}

void nat_node_cancel(struct nat_node *n, struct mu_now now)
{
    mu_native_cancel(&n->m, now);
    pump(n, now);
}
