#include "proto/state/hm_download.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec/dht/dict.h"
#include "codec/bin/msgpack.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "proto/dht/node.h"

/* A peer that claims to share a state. */
struct candidate {
    struct mu_peer_id peer;
    double priority;
    uint64_t lot; /* decides between equals */
};

int mu_hm_all_averagers(const char *prefix, struct mu_dht_id *ret)
{
    struct mu_buf text;
    int err;

    if (prefix[0] == '\0' || strchr(prefix, '.') != NULL) {
        return MUSTER_EINVAL;
    }
    mu_buf_init(&text, 1u << 16);
    err = mu_buf_append(&text, mu_span_str(prefix));
    err = err != 0 ? err : mu_buf_append(&text, MU_SPAN_LIT(".all_averagers"));
    err = err != 0 ? err : mu_dht_key_text(mu_buf_span(&text), ret);
    mu_buf_fini(&text);
    return err;
}

int mu_hm_handler_name(char *buf, size_t cap, const char *prefix, const char *averager)
{
    int len = snprintf(buf, cap, "%s::%s.rpc_download_state", prefix, averager);

    return len < 0 || (size_t)len >= cap ? MUSTER_ELIMIT : 0;
}

struct mu_hm_download_config mu_hm_download_config_defaults(void)
{
    return (struct mu_hm_download_config){
        .state = mu_hm_assembler_config_defaults(),
        .idle_ms = 15000,
        .total_ms = 600000,
        .donors_max = 64,
    };
}

void mu_hm_download_init(struct mu_hm_download *d, const struct mu_hm_download_config *config,
                         struct mu_now now)
{
    *d = (struct mu_hm_download){.config = *config};
    mu_prng_seed(&d->prng, config->seed);
    mu_hm_assembler_init(&d->assembler, &config->state);
    d->idle = MU_MONO_NEVER;
    d->total = mu_mono_add_ms(now.mono, config->total_ms);
    d->want_find = true;
    d->finding = true;
}

void mu_hm_download_fini(struct mu_hm_download *d)
{
    if (d->ended && d->status == 0 && !d->taken) {
        mu_hm_loaded_fini(&d->loaded);
    }
    mu_hm_assembler_fini(&d->assembler);
    mu_free(d->donors);
    d->donors = NULL;
    d->donor_count = 0;
}

/* A call that was not opened yet needs no DROP. */
static void drop_call(struct mu_hm_download *d)
{
    if (d->number != 0 && !d->want_open) {
        d->drop = d->number;
    }
    d->number = 0;
    d->want_open = false;
}

static void end_with(struct mu_hm_download *d, int status, const char *text)
{
    if (d->ended) {
        return;
    }
    if (d->number != 0 && status != 0 && d->donors[d->turn].status == 1) {
        d->donors[d->turn].status = mu_err(&d->donors[d->turn].text, status, "%s", text);
    }
    drop_call(d);
    d->status = status;
    (void)mu_err(&d->text, status, "%s", text);
    d->idle = MU_MONO_NEVER;
    d->total = MU_MONO_NEVER;
    d->ended = true;
    d->finding = false;
    d->want_find = false;
    d->want_end = true;
    mu_hm_assembler_reset(&d->assembler);
}

/* --- donors ----------------------------------------------------------------------------------- */

static bool is_finite(double x)
{
    return x - x == 0;
}

/* A subkey is the bytes of a peer id, its value a number; nil is a peer that has stopped
 * sharing. */
bool mu_hm_donor_entry(const struct mu_dht_entry *entry, double now, struct mu_peer_id *ret_peer,
                       double *ret_priority)
{
    struct mu_span subkey = entry->subkey;
    struct mu_span value = entry->value;
    struct mu_mp t;

    if (!(entry->expiration >= now) || mu_mp_next(&subkey, &t) != 0 || t.type != MU_MP_BIN ||
        mu_peer_id_from_bytes(ret_peer, t.bytes) != 0) {
        return false;
    }
    return mu_mp_next(&value, &t) == 0 && mu_mp_double(&t, ret_priority) &&
           is_finite(*ret_priority);
}

static bool read_candidate(struct mu_hm_download *d, const struct mu_dht_entry *entry, double now,
                           struct candidate *ret)
{
    if (!mu_hm_donor_entry(entry, now, &ret->peer, &ret->priority) ||
        mu_peer_id_eq(&ret->peer, &d->config.self)) {
        return false;
    }
    ret->lot = mu_prng_u64(&d->prng);
    return true;
}

static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a;
    const struct candidate *y = b;

    if (x->priority > y->priority || x->priority < y->priority) {
        return x->priority > y->priority ? -1 : 1;
    }
    return (x->lot < y->lot) - (x->lot > y->lot);
}

static int set_donors(struct mu_hm_download *d, struct candidate *candidates, size_t count)
{
    qsort(candidates, count, sizeof(*candidates), compare_candidates);
    count = count < d->config.donors_max ? count : d->config.donors_max;
    d->donors = mu_calloc(count + 1, sizeof(*d->donors));
    if (d->donors == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        d->donors[i].peer = candidates[i].peer;
        d->donors[i].priority = candidates[i].priority;
        d->donors[i].status = 1;
    }
    d->donor_count = count;
    return 0;
}

static int read_donors(struct mu_hm_download *d, struct mu_now now, struct mu_span dictionary)
{
    struct candidate *candidates;
    struct mu_dht_dict dict;
    struct mu_dht_entry entry;
    size_t count = 0;
    int err = mu_dht_dict_decode(dictionary, &dict);

    if (err != 0) {
        return err;
    }
    candidates = mu_calloc((size_t)dict.count + 1, sizeof(*candidates));
    if (candidates == NULL) {
        return MUSTER_ENOMEM;
    }
    while (mu_dht_dict_next(&dict, &entry)) {
        count += read_candidate(d, &entry, (double)now.wall.ns / 1e9, &candidates[count]);
    }
    err = set_donors(d, candidates, count);
    mu_free(candidates);
    return err;
}

/* --- turns ------------------------------------------------------------------------------------ */

static void begin_turn(struct mu_hm_download *d, struct mu_now now)
{
    if (d->turn == d->donor_count) {
        char text[MU_ERRMSG_CAP + 64];

        (void)snprintf(text, sizeof(text), "no state came from %zu donors; the last: %s",
                       d->donor_count, d->donors[d->turn - 1].text.text);
        end_with(d, d->donors[d->turn - 1].status, text);
        return;
    }
    d->number = ++d->numbers;
    d->want_open = true;
    d->idle = mu_mono_add_ms(now.mono, d->config.idle_ms);
}

/* The donor has failed; what it sent is dropped, and the next one is asked. */
static void end_turn(struct mu_hm_download *d, struct mu_now now, int status, const char *text)
{
    struct mu_hm_donor_report *donor = &d->donors[d->turn];

    donor->status = status;
    (void)mu_err(&donor->text, status, "%s", text);
    drop_call(d);
    d->turn++;
    mu_hm_assembler_reset(&d->assembler);
    begin_turn(d, now);
}

void mu_hm_download_found(struct mu_hm_download *d, struct mu_now now, int status,
                          struct mu_span dictionary)
{
    int err = status;

    if (!d->finding) {
        return;
    }
    d->finding = false;
    if (err == 0 && dictionary.len != 0) {
        err = read_donors(d, now, dictionary);
    }
    if (err != 0) {
        char text[MU_ERRMSG_CAP];

        (void)snprintf(text, sizeof(text), "donors cannot be looked up: %s", muster_strerror(err));
        end_with(d, err, text);
    } else if (d->donor_count == 0) {
        end_with(d, MUSTER_ENOENT, "no peer shares a state");
    } else {
        begin_turn(d, now);
    }
}

void mu_hm_download_item(struct mu_hm_download *d, struct mu_now now, uint64_t number,
                         struct mu_span message)
{
    struct mu_errmsg msg;
    int err;

    d->assembler.piece = (struct mu_hm_piece){0};
    if (number != d->number || number == 0) {
        return;
    }
    err = mu_hm_assembler_take(&d->assembler, message, &msg);
    d->donors[d->turn].messages = d->assembler.messages;
    d->donors[d->turn].bytes = d->assembler.bytes;
    d->idle = mu_mono_add_ms(now.mono, d->config.idle_ms);
    if (err != 0) {
        end_turn(d, now, err, msg.text);
    }
}

static int check_epoch(const struct mu_hm_download *d, struct mu_errmsg *reterr_msg)
{
    uint64_t epoch;

    if (!d->config.epoch_wanted) {
        return 0;
    }
    if (mu_hm_metadata_epoch(mu_buf_span(&d->loaded.metadata), &epoch) != 0) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "the metadata tells no epoch");
    }
    if (epoch < d->config.epoch_min) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "its state is of epoch %" PRIu64 ", and %" PRIu64 " was wanted", epoch,
                      d->config.epoch_min);
    }
    return 0;
}

void mu_hm_download_closed(struct mu_hm_download *d, struct mu_now now, uint64_t number, int status,
                           const char *text)
{
    struct mu_errmsg msg;
    int err = status;

    if (number != d->number || number == 0) {
        return;
    }
    d->number = 0; /* there is nothing to drop any more */
    d->want_open = false;
    if (err != 0) {
        end_turn(d, now, err, text);
        return;
    }
    err = mu_hm_assembler_end(&d->assembler, &d->loaded, &msg);
    if (err == 0) {
        err = check_epoch(d, &msg);
        if (err != 0) {
            mu_hm_loaded_fini(&d->loaded);
        }
    }
    if (err != 0) {
        end_turn(d, now, err, msg.text);
        return;
    }
    d->donors[d->turn].status = 0;
    end_with(d, 0, "");
}

void mu_hm_download_tick(struct mu_hm_download *d, struct mu_now now)
{
    char text[MU_ERRMSG_CAP];

    if (d->ended) {
        return;
    }
    if (mu_mono_reached(d->total, now.mono)) {
        if (d->number != 0) {
            struct mu_hm_donor_report *donor = &d->donors[d->turn];

            donor->status =
                mu_err(&donor->text, MUSTER_ETIMEDOUT,
                       "the total time was over after %" PRIu64 " messages", donor->messages);
        }
        (void)snprintf(text, sizeof(text), "no state within %" PRIu32 " ms", d->config.total_ms);
        end_with(d, MUSTER_ETIMEDOUT, text);
    } else if (d->number != 0 && mu_mono_reached(d->idle, now.mono)) {
        (void)snprintf(text, sizeof(text), "silent for %" PRIu32 " ms after %" PRIu64 " messages",
                       d->config.idle_ms, d->donors[d->turn].messages);
        end_turn(d, now, MUSTER_ETIMEDOUT, text);
    }
}

void mu_hm_download_cancel(struct mu_hm_download *d)
{
    end_with(d, MUSTER_ECANCELED, "canceled");
}

void mu_hm_download_fail(struct mu_hm_download *d, int status, const char *text)
{
    end_with(d, status, text);
}

/* --- out -------------------------------------------------------------------------------------- */

bool mu_hm_download_next_event(struct mu_hm_download *d, struct mu_hm_download_event *ret)
{
    *ret = (struct mu_hm_download_event){0};
    if (d->drop != 0) {
        ret->type = MU_HM_DOWNLOAD_DROP;
        ret->number = d->drop;
        d->drop = 0;
    } else if (d->want_find) {
        d->want_find = false;
        ret->type = MU_HM_DOWNLOAD_FIND;
    } else if (d->want_open) {
        d->want_open = false;
        ret->type = MU_HM_DOWNLOAD_OPEN;
        ret->number = d->number;
        ret->peer = d->donors[d->turn].peer;
    } else if (d->want_end) {
        d->want_end = false;
        ret->type = MU_HM_DOWNLOAD_ENDED;
    }
    return ret->type != 0;
}

mu_mono_t mu_hm_download_deadline(const struct mu_hm_download *d)
{
    return d->number != 0 ? mu_mono_min(d->idle, d->total) : d->total;
}

int mu_hm_download_status(const struct mu_hm_download *d)
{
    return d->status;
}

const char *mu_hm_download_text(const struct mu_hm_download *d)
{
    return d->text.text;
}

int mu_hm_download_report(const struct mu_hm_download *d, struct mu_buf *out)
{
    for (size_t i = 0; i < d->donor_count; i++) {
        const struct mu_hm_donor_report *donor = &d->donors[i];
        char id[MU_PEER_ID_TEXT_MAX];
        char line[MU_ERRMSG_CAP + 256];
        int len = snprintf(line, sizeof(line),
                           "%s, priority %g: %s (%" PRIu64 " messages, %" PRIu64 " bytes)\n",
                           mu_peer_id_format(&donor->peer, id), donor->priority,
                           donor->status == 1   ? "not asked"
                           : donor->status == 0 ? "gave its state"
                                                : donor->text.text,
                           donor->messages, donor->bytes);
        int err = mu_buf_append(out, mu_span(line, (size_t)len));

        if (err != 0) {
            return err;
        }
    }
    return 0;
}

void mu_hm_download_take(struct mu_hm_download *d, struct mu_hm_loaded *ret,
                         struct mu_peer_id *ret_from)
{
    MU_ASSERT(d->ended && d->status == 0 && !d->taken);
    d->taken = true;
    *ret = d->loaded;
    *ret_from = d->donors[d->turn].peer;
}

const struct mu_hm_donor_report *mu_hm_download_current(const struct mu_hm_download *d)
{
    return d->number != 0 ? &d->donors[d->turn] : NULL;
}
