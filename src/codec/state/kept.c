#include "codec/state/kept.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/alloc.h"

#define FORMAT     1u
#define REPLICATED 1u
#define SUM_AT     (MU_KEPT_HEAD_LEN - 8)
#define WORLD_MAX  ((uint32_t)INT32_MAX)

static const uint8_t magic[8] = {'M', 'U', 'S', 'T', 'K', 'E', 'P', 'T'};

int mu_kept_version_cmp(const struct mu_kept_version *a, const struct mu_kept_version *b)
{
    if (a->era != b->era) {
        return a->era < b->era ? -1 : 1;
    }
    if (a->nonce != b->nonce) {
        return a->nonce < b->nonce ? -1 : 1;
    }
    return a->step < b->step ? -1 : a->step > b->step;
}

/* --- the head of a vault ---------------------------------------------------------------------- */

/* FNV-1a: it tells a head from bytes that are none; it keeps no one from writing a false one. */
static uint64_t sum_of(const uint8_t *bytes, size_t len)
{
    uint64_t sum = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < len; i++) {
        sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return sum == 0 ? 1 : sum;
}

static void put_version(uint8_t *out, const struct mu_kept_version *v)
{
    mu_put_u64(out, v->era);
    mu_put_u64(out + 8, v->nonce);
    mu_put_u64(out + 16, v->step);
}

static struct mu_kept_version read_version(struct mu_reader *r)
{
    struct mu_kept_version v;

    v.era = mu_read_u64(r);
    v.nonce = mu_read_u64(r);
    v.step = mu_read_u64(r);
    return v;
}

static bool is_place(uint32_t rank, uint32_t world)
{
    return world >= 1 && world <= WORLD_MAX && rank < world;
}

void mu_kept_head_encode(const struct mu_kept_head *head, uint8_t out[MU_KEPT_HEAD_LEN])
{
    memcpy(out, magic, sizeof(magic));
    mu_put_u32(out + 8, FORMAT);
    mu_put_u32(out + 12, head->replicated ? REPLICATED : 0);
    put_version(out + 16, &head->version);
    mu_put_u32(out + 40, head->rank);
    mu_put_u32(out + 44, head->world);
    mu_put_u64(out + 48, head->bytes);
    mu_put_u64(out + SUM_AT, sum_of(out, SUM_AT));
}

int mu_kept_head_decode(const uint8_t in[MU_KEPT_HEAD_LEN], uint64_t vault_bytes,
                        struct mu_kept_head *ret_head)
{
    struct mu_reader r = mu_reader(mu_span(in + sizeof(magic), MU_KEPT_HEAD_LEN - sizeof(magic)));
    struct mu_kept_head h;
    uint32_t flags;
    bool ok = memcmp(in, magic, sizeof(magic)) == 0 &&
              mu_get_u64(in + SUM_AT) == sum_of(in, SUM_AT) && mu_read_u32(&r) == FORMAT;

    if (!ok) {
        return MUSTER_ENOENT;
    }
    flags = mu_read_u32(&r);
    h.version = read_version(&r);
    h.replicated = flags == REPLICATED;
    h.rank = mu_read_u32(&r);
    h.world = mu_read_u32(&r);
    h.bytes = mu_read_u64(&r);
    if (flags > REPLICATED || !is_place(h.rank, h.world) || vault_bytes < MU_KEPT_HEAD_BYTES ||
        h.bytes > vault_bytes - MU_KEPT_HEAD_BYTES) {
        return MUSTER_ENOENT;
    }
    *ret_head = h;
    return 0;
}

/* --- between agents --------------------------------------------------------------------------- */

void mu_kept_entry_put(uint8_t *out, const struct mu_kept_head *head)
{
    put_version(out, &head->version);
    mu_put_u32(out + 24, head->replicated ? REPLICATED : 0);
    mu_put_u32(out + 28, head->rank);
    mu_put_u32(out + 32, head->world);
}

int mu_kept_report_encode(const struct mu_kept_report *report, struct mu_buf *out)
{
    size_t len = MU_KEPT_REPORT_HEAD_LEN + report->head_count * MU_KEPT_REPORT_ENTRY_LEN;
    uint8_t *at;
    int err;

    if (report->workers > MU_KEPT_WORKERS_MAX ||
        report->head_count > (size_t)report->workers * MU_KEPT_VAULTS) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(out, len);
    if (err != 0) {
        return err;
    }
    at = mu_buf_grow(out, len);
    memcpy(at, "MUKR", 4);
    at[4] = FORMAT;
    mu_put_u32(at + 5, report->workers);
    mu_put_u32(at + 9, (uint32_t)report->head_count);
    at += MU_KEPT_REPORT_HEAD_LEN;
    for (size_t i = 0; i < report->head_count; i++, at += MU_KEPT_REPORT_ENTRY_LEN) {
        mu_kept_entry_put(at, &report->heads[i]);
    }
    return 0;
}

bool mu_kept_entry_read(struct mu_reader *r, struct mu_kept_head *ret)
{
    uint32_t flags;

    ret->version = read_version(r);
    flags = mu_read_u32(r);
    ret->replicated = flags == REPLICATED;
    ret->rank = mu_read_u32(r);
    ret->world = mu_read_u32(r);
    ret->bytes = 0;
    return !r->failed && flags <= REPLICATED && is_place(ret->rank, ret->world);
}

int mu_kept_report_decode(struct mu_span in, struct mu_kept_report *ret_report)
{
    struct mu_reader r = mu_reader(in);
    struct mu_kept_report report = {0};
    bool ok = mu_span_eq(mu_read_bytes(&r, 4), MU_SPAN_LIT("MUKR")) && mu_read_u8(&r) == FORMAT;

    report.workers = mu_read_u32(&r);
    report.head_count = mu_read_u32(&r);
    if (!ok || r.failed || report.workers == 0 || report.workers > MU_KEPT_WORKERS_MAX ||
        report.head_count > (size_t)report.workers * MU_KEPT_VAULTS ||
        r.rest.len != report.head_count * MU_KEPT_REPORT_ENTRY_LEN) {
        return MUSTER_EPROTO;
    }
    report.heads = mu_calloc(report.head_count + 1, sizeof(*report.heads));
    if (report.heads == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < report.head_count; i++) {
        if (!mu_kept_entry_read(&r, &report.heads[i])) {
            mu_free(report.heads);
            return MUSTER_EPROTO;
        }
    }
    *ret_report = report;
    return 0;
}

void mu_kept_answer_encode(const struct mu_kept_answer *answer, uint8_t out[MU_KEPT_ANSWER_LEN])
{
    memset(out, 0, MU_KEPT_ANSWER_LEN);
    memcpy(out, "MUKA", 4);
    out[4] = FORMAT;
    mu_put_u64(out + 5, answer->era);
    mu_put_u64(out + 13, answer->nonce);
    out[21] = answer->found;
    if (answer->found) {
        put_version(out + 22, &answer->version);
        out[46] = answer->replicated;
        mu_put_u32(out + 47, answer->world);
    }
}

int mu_kept_answer_decode(struct mu_span in, struct mu_kept_answer *ret_answer)
{
    struct mu_reader r = mu_reader(in);
    struct mu_kept_answer a = {0};
    uint8_t again[MU_KEPT_ANSWER_LEN];
    bool ok = in.len == MU_KEPT_ANSWER_LEN &&
              mu_span_eq(mu_read_bytes(&r, 4), MU_SPAN_LIT("MUKA")) && mu_read_u8(&r) == FORMAT;

    if (!ok) {
        return MUSTER_EPROTO;
    }
    a.era = mu_read_u64(&r);
    a.nonce = mu_read_u64(&r);
    a.found = mu_read_u8(&r) == 1;
    if (a.found) {
        a.version = read_version(&r);
        a.replicated = mu_read_u8(&r) == 1;
        a.world = mu_read_u32(&r);
    }
    mu_kept_answer_encode(&a, again); /* there is one way to write it */
    if (!mu_span_eq(in, mu_span(again, sizeof(again))) || (a.found && !is_place(0, a.world))) {
        return MUSTER_EPROTO;
    }
    *ret_answer = a;
    return 0;
}

/* --- to a worker ------------------------------------------------------------------------------ */

size_t mu_kept_terms_encode(const struct mu_kept_terms *t, char out[MU_KEPT_TERMS_LEN_MAX + 1])
{
    int len = snprintf(out, MU_KEPT_TERMS_LEN_MAX + 1,
                       "1,%" PRIu32 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu32 ",%" PRIu32,
                       t->fd, t->bytes, t->era, t->nonce, t->rank, t->world);

    if (t->found) {
        len += snprintf(out + len, (size_t)(MU_KEPT_TERMS_LEN_MAX + 1 - len),
                        ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%d", t->version.era, t->version.nonce,
                        t->version.step, t->replicated);
    }
    return (size_t)len;
}

/* Reads a decimal number, and the comma after it, if there is one. */
static bool take_number(struct mu_span *in, uint64_t most, uint64_t *ret)
{
    uint64_t value = 0;
    size_t len = 0;

    while (len < in->len && in->data[len] >= '0' && in->data[len] <= '9') {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(in->data[len] - '0'), &value)) {
            return false;
        }
        len++;
    }
    if (len == 0 || (len > 1 && in->data[0] == '0') || value > most) {
        return false;
    }
    if (len < in->len && (in->data[len] != ',' || ++len == in->len)) {
        return false;
    }
    *in = mu_span_skip(*in, len);
    *ret = value;
    return true;
}

int mu_kept_terms_decode(struct mu_span in, struct mu_kept_terms *ret_terms)
{
    static const uint64_t most[] = {1,          INT32_MAX,  INT64_MAX, UINT64_MAX,
                                    UINT64_MAX, WORLD_MAX,  WORLD_MAX, UINT64_MAX,
                                    UINT64_MAX, UINT64_MAX, 1};
    uint64_t n[sizeof(most) / sizeof(most[0])] = {0};
    size_t count = 0;

    while (in.len > 0 && count < sizeof(n) / sizeof(n[0])) {
        if (!take_number(&in, most[count], &n[count])) {
            return MUSTER_EPROTO;
        }
        count++;
    }
    if (in.len > 0 || (count != 7 && count != 11) || n[0] != 1 ||
        !is_place((uint32_t)n[5], (uint32_t)n[6])) {
        return MUSTER_EPROTO;
    }
    *ret_terms = (struct mu_kept_terms){
        .fd = (uint32_t)n[1],
        .bytes = n[2],
        .era = n[3],
        .nonce = n[4],
        .rank = (uint32_t)n[5],
        .world = (uint32_t)n[6],
        .found = count == 11,
        .version = {.era = n[7], .nonce = n[8], .step = n[9]},
        .replicated = n[10] == 1,
    };
    return 0;
}

/* Of an earlier attempt, and not what this one began with: then nobody will load it. */
static bool is_useless(const struct mu_kept_head *h, const struct mu_kept_terms *terms)
{
    bool ours = h->version.era == terms->era && h->version.nonce == terms->nonce;

    return !ours && (!terms->found || mu_kept_version_cmp(&h->version, &terms->version) != 0);
}

unsigned mu_kept_oldest(const struct mu_kept_head heads[MU_KEPT_VAULTS],
                        const bool whole[MU_KEPT_VAULTS], const struct mu_kept_terms *terms)
{
    unsigned best = 0;

    for (unsigned i = 0; i < MU_KEPT_VAULTS; i++) {
        bool better;

        if (!whole[i]) {
            return i;
        }
        if (is_useless(&heads[i], terms) != is_useless(&heads[best], terms)) {
            better = is_useless(&heads[i], terms);
        } else {
            better = mu_kept_version_cmp(&heads[i].version, &heads[best].version) < 0;
        }
        if (better) {
            best = i;
        }
    }
    return best;
}
