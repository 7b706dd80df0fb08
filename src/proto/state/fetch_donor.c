/* Donors: adding, resting, removal, and reports of what they did. */
#include <inttypes.h>

#include "proto/state/fetch_internal.h"

#define BUSY_MS_MAX UINT32_C(3600000)

/* --- adding ------------------------------------------------------- */

static void open_donor(struct mu_state_fetch *f, mu_mono_t now, struct mu_state_donor *d)
{
    d->state = MU_STATE_DONOR_OPENING;
    d->heard = now;
    mu_state_fetch_push(f, &(struct mu_state_fetch_event){
                               .type = MU_STATE_FETCH_EV_OPEN,
                               .donor = d->index,
                               .spare = MU_STATE_NO_SPARE,
                           });
}

int mu_state_fetch_add(struct mu_state_fetch *f, mu_mono_t now, struct mu_span name,
                       uint32_t *ret_donor)
{
    struct mu_state_donor *d;

    if (!mu_state_fetch_runs(f)) {
        return MUSTER_ECLOSED;
    }
    if (f->donor_count == f->config.donors_max) {
        return MUSTER_ELIMIT;
    }
    d = mu_calloc(1, sizeof(*d));
    if (d == NULL) {
        return MUSTER_ENOMEM;
    }
    name.len = name.len < MU_STATE_DONOR_NAME_MAX ? name.len : MU_STATE_DONOR_NAME_MAX;
    if (name.len != 0) {
        memcpy(d->name, name.data, name.len);
    }
    d->index = f->donor_count;
    d->cursor = (uint32_t)mu_prng_below(&f->prng, f->config.chunks);
    d->latency_ns = UINT64_MAX;
    d->have_at = MU_MONO_NEVER;
    mu_list_init(&d->owes);
    f->donors[f->donor_count++] = d;
    open_donor(f, now, d);
    *ret_donor = d->index;
    return 0;
}

void mu_state_fetch_ready(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor)
{
    struct mu_state_donor *d = f->donors[donor];

    if (!mu_state_fetch_runs(f) || d->state != MU_STATE_DONOR_OPENING) {
        return;
    }
    d->state = MU_STATE_DONOR_READY;
    d->heard = now;
    d->idle = now;
    d->mark = now;
    d->mark_bytes = 0;
    d->paused = false;
    d->have_at = d->full ? MU_MONO_NEVER : now;
    mu_state_donor_count(f, d, true);
}

void mu_state_fetch_part(struct mu_state_fetch *f, uint32_t donor, uint32_t part, uint32_t parts)
{
    f->donors[donor]->part = part < parts ? part : 0;
    f->donors[donor]->parts = part < parts ? parts : 0;
}

/* --- losing ------------------------------------------------------- */

void mu_state_donor_release(struct mu_state_fetch *f, struct mu_state_donor *d)
{
    struct mu_list *node;

    if (d->head_bytes != 0) {
        d->half++;
        d->half_bytes += d->head_bytes;
        f->bytes_wasted += d->head_bytes;
        d->head_bytes = 0;
    }
    while ((node = mu_list_pop(&d->owes)) != NULL) {
        struct mu_state_ask *ask = MU_CONTAINER_OF(node, struct mu_state_ask, by_donor);

        if (ask->revoked) {
            mu_state_ask_free(f, ask);
        } else {
            mu_state_ask_let_go(f, ask);
        }
    }
    d->in_flight = 0;
    d->have_at = MU_MONO_NEVER;
    mu_state_donor_count(f, d, false);
}

static bool is_final(int status)
{
    switch (status) {
    case MUSTER_ENOENT:
    case MUSTER_ENOMETHOD:
    case MUSTER_EPROTO:
    case MUSTER_ELIMIT:
    case MUSTER_ENOTSUP:
    case MUSTER_EREFUSED:
    case MUSTER_EVERSION:
    case MUSTER_ECORRUPT:
    case MUSTER_ESIGNATURE:
    case MUSTER_EPEERID:
    case MUSTER_EPEERDENIED:
        return true;
    default:
        return false;
    }
}

/* The rest is random by a quarter, so that not all newcomers come back at once. */
static void rest(struct mu_state_fetch *f, mu_mono_t now, struct mu_state_donor *d, uint64_t ms)
{
    ms = ms * 3 / 4 + mu_prng_below(&f->prng, ms / 2 + 1);
    d->state = MU_STATE_DONOR_RESTING;
    d->open_at = mu_mono_add_ms(now, ms);
}

static bool is_there(const struct mu_state_donor *d)
{
    return d->state == MU_STATE_DONOR_OPENING || d->state == MU_STATE_DONOR_READY;
}

/* The donor is lost; d->msg says why. */
static void lose(struct mu_state_fetch *f, mu_mono_t now, struct mu_state_donor *d, int status)
{
    uint64_t ms = f->config.rest_ms;

    mu_state_donor_release(f, d);
    d->losses++;
    d->status = status;
    mu_trace(&f->config.trace, "state.lost", d->index, d->losses);
    if (is_final(status) || ++d->tries >= f->config.tries) {
        d->state = MU_STATE_DONOR_GIVEN_UP;
        return;
    }
    for (uint32_t i = 1; i < d->tries && ms < f->config.rest_ms_max; i++) {
        ms *= 2;
    }
    rest(f, now, d, ms < f->config.rest_ms_max ? ms : f->config.rest_ms_max);
}

void mu_state_fetch_lost(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor, int status,
                         const char *text)
{
    struct mu_state_donor *d = f->donors[donor];

    if (!mu_state_fetch_runs(f) || !is_there(d)) {
        return;
    }
    (void)mu_err(&d->msg, 0, "%s", text != NULL && *text != 0 ? text : muster_strerror(status));
    lose(f, now, d, status);
    mu_state_fetch_check_hope(f);
}

void mu_state_fetch_busy(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor, uint32_t retry_ms)
{
    struct mu_state_donor *d = f->donors[donor];

    if (!mu_state_fetch_runs(f) || !is_there(d)) {
        return;
    }
    (void)mu_err(&d->msg, 0, "had no slot free");
    mu_state_donor_release(f, d);
    d->losses++;
    d->status = MUSTER_EBUSY;
    rest(f, now, d, retry_ms < BUSY_MS_MAX ? retry_ms : BUSY_MS_MAX);
}

void mu_state_donor_drop(struct mu_state_fetch *f, mu_mono_t now, struct mu_state_donor *d,
                         int status)
{
    lose(f, now, d, status);
    mu_state_fetch_push(f, &(struct mu_state_fetch_event){
                               .type = MU_STATE_FETCH_EV_DROP,
                               .donor = d->index,
                               .spare = MU_STATE_NO_SPARE,
                               .status = status,
                               .text = d->msg.text,
                           });
    mu_state_fetch_check_hope(f);
}

void mu_state_donor_ban(struct mu_state_fetch *f, struct mu_state_donor *d, uint32_t chunk)
{
    if (d->state == MU_STATE_DONOR_BANNED) {
        return;
    }
    mu_state_donor_release(f, d);
    d->state = MU_STATE_DONOR_BANNED;
    d->status =
        mu_err(&d->msg, MUSTER_ECORRUPT, "chunk %" PRIu32 " is not what the manifest says", chunk);
    mu_trace(&f->config.trace, "state.ban", d->index, chunk);
    mu_state_fetch_push(f, &(struct mu_state_fetch_event){
                               .type = MU_STATE_FETCH_EV_BAN,
                               .donor = d->index,
                               .chunk = chunk,
                               .spare = MU_STATE_NO_SPARE,
                               .status = d->status,
                               .text = d->msg.text,
                           });
}

/* --- time --------------------------------------------------------- */

static mu_mono_t stall_at(const struct mu_state_fetch *f, const struct mu_state_donor *d)
{
    bool waited_for = d->state == MU_STATE_DONOR_OPENING ||
                      (d->state == MU_STATE_DONOR_READY && d->in_flight != 0);

    return waited_for ? mu_mono_add_ms(d->heard, f->config.stall_ms) : MU_MONO_NEVER;
}

void mu_state_donor_tick(struct mu_state_fetch *f, mu_mono_t now, struct mu_state_donor *d)
{
    if (d->state == MU_STATE_DONOR_RESTING && mu_mono_reached(d->open_at, now)) {
        open_donor(f, now, d);
        return;
    }
    if (mu_mono_reached(stall_at(f, d), now)) {
        (void)mu_err(&d->msg, 0, "was silent for %" PRIu32 " ms", f->config.stall_ms);
        mu_state_donor_drop(f, now, d, MUSTER_ETIMEDOUT);
        return;
    }
    if (d->state == MU_STATE_DONOR_READY && mu_mono_reached(d->have_at, now)) {
        /* It is asked sooner once it has answered, because an answer may take long. */
        d->have_at = mu_mono_add_ms(now, (uint64_t)f->config.have_ms * 8);
        mu_state_fetch_push(f, &(struct mu_state_fetch_event){
                                   .type = MU_STATE_FETCH_EV_ASK_HAVE,
                                   .donor = d->index,
                                   .spare = MU_STATE_NO_SPARE,
                               });
    }
}

mu_mono_t mu_state_donor_deadline(const struct mu_state_fetch *f, const struct mu_state_donor *d)
{
    switch (d->state) {
    case MU_STATE_DONOR_RESTING:
        return d->open_at;
    case MU_STATE_DONOR_OPENING:
        return stall_at(f, d);
    case MU_STATE_DONOR_READY:
        return mu_mono_min(d->have_at, stall_at(f, d));
    case MU_STATE_DONOR_GIVEN_UP:
    case MU_STATE_DONOR_BANNED:
        break;
    }
    return MU_MONO_NEVER;
}

/* --- reports ------------------------------------------------------ */

void mu_state_fetch_account(const struct mu_state_fetch *f, uint32_t donor,
                            struct mu_state_donor_account *ret)
{
    const struct mu_state_donor *d = f->donors[donor];

    *ret = (struct mu_state_donor_account){
        .name = d->name,
        .state = d->state,
        .full = d->full,
        .in_flight = d->in_flight,
        .bytes = d->bytes,
        .chunks = d->chunks,
        .duplicates = d->duplicates,
        .bad = d->bad,
        .absent = d->absent,
        .losses = d->losses,
        .half = d->half,
        .half_bytes = d->half_bytes,
        .bytes_per_s = d->bytes_per_s,
        .status = d->status,
        .text = d->msg.text,
    };
}

static const char *word_of(const struct mu_state_donor *d)
{
    switch (d->state) {
    case MU_STATE_DONOR_OPENING:
        return d->status == 0 ? "not reached yet" : "not reached again";
    case MU_STATE_DONOR_READY:
        return d->status == 0 ? "" : "back after it was lost";
    case MU_STATE_DONOR_RESTING:
        return "lost";
    case MU_STATE_DONOR_GIVEN_UP:
        return "given up";
    case MU_STATE_DONOR_BANNED:
        return "banned";
    }
    return "";
}

static int append_count(struct mu_buf *out, uint32_t count, const char *what)
{
    struct mu_errmsg text;

    if (count == 0) {
        return 0;
    }
    (void)mu_err(&text, 0, ", %" PRIu32 " %s", count, what);
    return mu_buf_append(out, mu_span_str(text.text));
}

static int append_donor(struct mu_buf *out, const struct mu_state_donor *d)
{
    const char *word = word_of(d);
    struct mu_errmsg text;
    int err;

    (void)mu_err(&text, 0, "%s: %" PRIu32 " chunks, %" PRIu64 ".%" PRIu64 " MiB", d->name,
                 d->chunks, d->bytes >> 20, (d->bytes & 0xfffff) * 10 >> 20);
    err = mu_buf_append(out, mu_span_str(text.text));
    err = err == 0 ? append_count(out, d->bad, "bad") : err;
    err = err == 0 ? append_count(out, d->half, "half") : err;
    err = err == 0 ? append_count(out, d->duplicates, "twice") : err;
    err = err == 0 ? append_count(out, d->absent, "not there") : err;
    if (err == 0 && *word != 0) {
        (void)mu_err(&text, 0, "; %s%s%s", word, *d->msg.text == 0 ? "" : ": ", d->msg.text);
        err = mu_buf_append(out, mu_span_str(text.text));
    }
    return err == 0 ? mu_buf_append(out, MU_SPAN_LIT("\n")) : err;
}

int mu_state_fetch_report(const struct mu_state_fetch *f, struct mu_buf *out)
{
    int err = 0;

    for (uint32_t i = 0; err == 0 && i < f->donor_count; i++) {
        err = append_donor(out, f->donors[i]);
    }
    return err;
}
