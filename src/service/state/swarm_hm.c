/* A load through a swarm: hivemind's donors, one after the other. */
#include <math.h>

#include <muster/error.h>

#include "codec/dht/dict.h"
#include "codec/bin/msgpack.h"
#include "service/state/swarm_load_internal.h"

#define IDLE_MS 15000

/* --- hivemind's donors ------------------------------------------------------------------------ */

static bool is_wanted(const struct mu_state_swarm_load *l, const struct mu_state_found *f)
{
    double best = -INFINITY;

    if (f->kind != SPEAKS_OTHER || f->asked) {
        return false;
    }
    for (size_t i = 0; i < l->found_count; i++) {
        if (mu_state_swarm_is_native(&l->found[i])) {
            best = best > l->found[i].priority ? best : l->found[i].priority;
        }
    }
    return l->phase == REST || f->priority > best;
}

/* Appends an entry as it was under the key. */
static int put_entry(struct mu_state_swarm_load *l, const struct mu_state_found *f,
                     struct mu_buf *out, size_t *ret_len)
{
    struct mu_buf subkey;
    struct mu_buf value;
    struct mu_mp_out s;
    struct mu_mp_out v;
    struct mu_dht_entry entry;
    int err;

    mu_buf_init(&subkey, 128);
    mu_buf_init(&value, 16);
    s = mu_mp_out(&subkey);
    v = mu_mp_out(&value);
    mu_mp_put_bin(&s, mu_peer_id_span(&f->connect.peer));
    mu_mp_put_double(&v, f->priority);
    entry = (struct mu_dht_entry){mu_buf_span(&subkey), mu_buf_span(&value),
                                  mu_dht_service_time(mu_state_swarm_dht(l->config.swarm)) + 3600};
    err = s.err != 0 ? s.err : v.err;
    *ret_len = mu_dht_entry_len(&entry);
    if (err == 0 && out != NULL) {
        err = mu_dht_dict_put(out, &entry);
    }
    mu_buf_fini(&subkey);
    mu_buf_fini(&value);
    return err;
}

static int gather_known(struct mu_state_swarm_load *l, size_t *ret_count)
{
    size_t bytes = 0;
    size_t len = 0;
    int err = 0;

    *ret_count = 0;
    mu_buf_reset(&l->known);
    for (size_t i = 0; err == 0 && i < l->found_count; i++) {
        if (is_wanted(l, &l->found[i])) {
            err = put_entry(l, &l->found[i], NULL, &len);
            bytes += len;
            ++*ret_count;
        }
    }
    err = err != 0
              ? err
              : mu_dht_dict_begin(&l->known,
                                  mu_dht_service_time(mu_state_swarm_dht(l->config.swarm)) + 3600,
                                  *ret_count, bytes);
    for (size_t i = 0; err == 0 && i < l->found_count; i++) {
        if (is_wanted(l, &l->found[i])) {
            err = put_entry(l, &l->found[i], &l->known, &len);
        }
    }
    return err;
}

static double priority_of(const struct mu_state_swarm_load *l, const struct mu_peer_id *peer)
{
    for (size_t i = 0; i < l->found_count; i++) {
        if (mu_peer_id_eq(&l->found[i].connect.peer, peer)) {
            return l->found[i].priority;
        }
    }
    return 0;
}

static void on_hm_done(struct mu_hm_load *hm, int status, const char *text)
{
    struct mu_state_swarm_load *l = MU_CONTAINER_OF(hm, struct mu_state_swarm_load, hm);
    struct mu_peer_id from;

    (void)mu_hm_download_report(mu_hm_load_machine(hm), &l->report);
    if (status == 0) {
        mu_hm_load_take(hm, &l->loaded, &from);
        l->has_loaded = true;
        l->priority = priority_of(l, &from);
    } else if (l->phase == REST || status == MUSTER_ETIMEDOUT) {
        mu_state_swarm_note(l, status, text);
    }
    mu_hm_load_fini(hm);
    l->busy = false;
    mu_state_swarm_turn_later(l);
}

void mu_state_swarm_start_hm(struct mu_state_swarm_load *l, enum mu_state_swarm_phase phase)
{
    struct mu_hm_load_config config = {
        .calls = mu_state_swarm_calls(l->config.swarm),
        .dht = mu_state_swarm_dht(l->config.swarm),
        .prefix = l->config.native.prefix,
        .name = l->name,
        .download = mu_hm_download_config_defaults(),
        .sink = l->config.sink,
    };
    uint32_t idle = l->config.native.idle_ms;
    size_t count = 0;
    int err;

    l->phase = phase;
    /* Hivemind's donors sign nothing, so there is no signer to trust, and no id of a state. */
    if (l->config.native.list_only || l->config.native.trust_count != 0 ||
        l->config.native.id != NULL || mu_state_swarm_averager(l->config.swarm) == NULL ||
        (phase == NEWER && mu_state_swarm_count_native(l) == 0)) {
        return;
    }
    err = gather_known(l, &count);
    if (err == 0 && count == 0) {
        return;
    }
    config.known = mu_buf_span(&l->known);
    config.download.self = *mu_peer_host_id(mu_state_swarm_host(l->config.swarm));
    config.download.state.expected = l->config.expected;
    if (l->config.bytes_max != 0) {
        config.download.state.bytes_max = l->config.bytes_max;
    }
    config.download.idle_ms = idle == 0 || idle > IDLE_MS ? IDLE_MS : idle;
    config.download.total_ms =
        l->config.native.timeout_ms == 0 || mu_state_swarm_ms_left(l) > UINT32_MAX
            ? UINT32_MAX
            : (uint32_t)mu_state_swarm_ms_left(l);
    l->hm.done = on_hm_done;
    err = err != 0 ? err : mu_hm_load_start(l->env, &config, &l->hm);
    if (err != 0) {
        mu_state_swarm_note(l, err, muster_strerror(err));
        return;
    }
    l->busy = true;
    for (size_t i = 0; i < l->found_count; i++) {
        l->found[i].asked = l->found[i].asked || is_wanted(l, &l->found[i]);
    }
}
