/*
 * muster average --watch: reads the buckets of a prefix every second, and says who is in them. A
 * client of the DHT, which nobody sees.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd_average.h"
#include "cli/cmd_dht.h"
#include "codec/average/schema.h"
#include "codec/bin/msgpack.h"
#include "service/average/averager.h"

#define PAUSE_MS    1000
#define BUCKETS_MAX (1 << AVERAGE_BITS_MAX)
#define PEERS_MAX   1000 /* of a bucket, that are told */

/* Who looks for a group. */
struct seeker {
    struct mu_peer_id peer;
    double begins;
};

struct bucket {
    char key[MU_AVG_KEY_MAX + 1];
    struct seeker *seekers; /* as they were told last, in the order in which they would lead */
    size_t count;
    bool told;
};

struct watch {
    struct dht_app app;
    struct dht_options options;
    const struct average_watch *o;
    struct mu_timer timer;
    mu_mono_t until;
    struct bucket buckets[BUCKETS_MAX];
    struct mu_dht_id keys[BUCKETS_MAX];
    size_t count;
    bool unheard; /* that no node answered was said */
};

/* By their bytes, as members compare them. */
static bool precedes(const struct mu_peer_id *a, const struct mu_peer_id *b)
{
    struct mu_span x = mu_peer_id_span(a);
    struct mu_span y = mu_peer_id_span(b);
    int order = memcmp(x.data, y.data, x.len < y.len ? x.len : y.len);

    return order != 0 ? order < 0 : x.len < y.len;
}

static int by_time(const void *a, const void *b)
{
    const struct seeker *x = a;
    const struct seeker *y = b;

    if (x->begins != y->begins) {
        return x->begins < y->begins ? -1 : 1;
    }
    return mu_peer_id_eq(&x->peer, &y->peer) ? 0 : precedes(&x->peer, &y->peer) ? -1 : 1;
}

/* Whether an entry is a peer that looks for a group now. */
static bool take_seeker(const struct mu_dht_entry *e, double now, struct seeker *ret)
{
    struct mu_span subkey = e->subkey;
    struct mu_span value = e->value;
    struct mu_mp id;
    struct mu_mp looks;

    ret->begins = e->expiration;
    return mu_mp_next(&subkey, &id) == 0 && id.type == MU_MP_BIN &&
           mu_peer_id_from_bytes(&ret->peer, id.bytes) == 0 && mu_mp_next(&value, &looks) == 0 &&
           looks.type == MU_MP_BOOL && looks.boolean && e->expiration > now;
}

static size_t read_bucket(const struct mu_dht_result *r, double now, struct seeker *ret)
{
    struct mu_dht_dict dict;
    struct mu_dht_entry e;
    size_t count = 0;

    if (r->type == MU_DHT_FOUND_DICTIONARY &&
        mu_dht_dict_decode(mu_buf_span(&r->value), &dict) == 0) {
        while (count < PEERS_MAX && mu_dht_dict_next(&dict, &e)) {
            count += take_seeker(&e, now, &ret[count]) ? 1 : 0;
        }
    }
    qsort(ret, count, sizeof(*ret), by_time);
    return count;
}

static void print_bucket(const struct watch *w, const struct bucket *b, double now)
{
    char peer[MU_PEER_ID_TEXT_MAX];
    json_t *list;

    if (w->o->json) {
        list = json_array();
        for (size_t i = 0; i < b->count; i++) {
            (void)json_array_append_new(
                list, json_pack("{s:s, s:f}", "peer", mu_peer_id_format(&b->seekers[i].peer, peer),
                                "begins", b->seekers[i].begins));
        }
        cli_print_json(json_pack("{s:s, s:f, s:o}", "key", b->key, "time", now, "peers", list));
    } else if (b->count == 0) {
        printf("%s: nobody looks for a group\n", b->key);
    } else {
        printf("%s: %zu %s for a group; in %.1f s it is led by %s\n", b->key, b->count,
               b->count == 1 ? "looks" : "look", b->seekers[0].begins - now,
               mu_peer_id_format(&b->seekers[0].peer, peer));
    }
    (void)fflush(stdout);
}

/* Tells of a bucket, if it is not as it was. Returns whether there was memory. */
static bool tell(const struct watch *w, struct bucket *b, const struct mu_dht_result *r, double now)
{
    struct seeker *found = calloc(PEERS_MAX, sizeof(*found));
    size_t count;
    bool same;

    if (found == NULL) {
        return false;
    }
    count = read_bucket(r, now, found);
    same = b->told && count == b->count;
    for (size_t i = 0; i < count && same; i++) {
        same = by_time(&found[i], &b->seekers[i]) == 0;
    }
    free(b->seekers);
    b->seekers = found;
    b->count = count;
    if (!same) {
        b->told = true;
        print_bucket(w, b, now);
    }
    return true;
}

static void on_got(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct watch *w = MU_CONTAINER_OF(wish, struct watch, app.wish);
    struct mu_now now = mu_env_now(w->app.loop.env);
    double time = mu_dht_service_time(w->app.dht);
    bool answered = op->status == 0;

    if (w->app.stopping || op->status == MUSTER_ECLOSED) {
        return;
    }
    for (size_t i = 0; i < op->count; i++) {
        answered |= op->results[i].type != MU_DHT_NOT_FOUND;
    }
    if (!answered && !w->unheard) {
        (void)cli_fail(0, "no node of the DHT answers: %s", muster_strerror(op->status));
    }
    w->unheard = !answered;
    for (size_t i = 0; answered && i < op->count; i++) {
        if (!tell(w, &w->buckets[i], &op->results[i], time)) {
            dht_stop(&w->app, cli_fail(CLI_FAILED, "out of memory"));
            return;
        }
    }
    mu_env_timer_arm(w->app.loop.env, &w->timer, mu_mono_add_ms(now.mono, PAUSE_MS));
}

static int read_all(struct watch *w)
{
    int err = mu_dht_service_get(w->app.dht, &w->app.wish, w->keys, w->count, true);

    return err == 0 ? 0 : cli_fail(CLI_FAILED, "%s", muster_strerror(err));
}

static void on_timer(struct mu_timer *timer)
{
    struct watch *w = MU_CONTAINER_OF(timer, struct watch, timer);
    bool over = mu_mono_reached(w->until, mu_env_now(w->app.loop.env).mono);
    int code = over ? 0 : read_all(w);

    if (over || code != 0) {
        dht_stop(&w->app, code);
    }
}

static int begin(struct dht_app *app)
{
    struct watch *w = MU_CONTAINER_OF(app, struct watch, app);

    w->until = w->o->timeout == 0
                   ? MU_MONO_NEVER
                   : mu_mono_add_ms(mu_env_now(app->loop.env).mono, cli_ms(w->o->timeout));
    mu_timer_init(&w->timer, on_timer);
    w->app.wish.done = on_got;
    return read_all(w);
}

static void on_stopping(struct dht_app *app)
{
    struct watch *w = MU_CONTAINER_OF(app, struct watch, app);

    if (w->timer.fire != NULL) {
        mu_env_timer_arm(app->loop.env, &w->timer, MU_MONO_NEVER);
    }
}

static int name_buckets(struct watch *w)
{
    char prefix[MU_AVG_KEY_MAX + 1];
    char bits[AVERAGE_BITS_MAX + 1] = "";

    (void)snprintf(prefix, sizeof(prefix), "%s%s", w->o->prefix,
                   w->o->native ? MU_AVERAGER_NATIVE_SUFFIX : "");
    w->count = (size_t)1 << w->o->bits;
    for (size_t i = 0; i < w->count; i++) {
        struct bucket *b = &w->buckets[i];

        for (size_t k = 0; k < w->o->bits; k++) {
            bits[k] = (i >> (w->o->bits - 1 - k) & 1) != 0 ? '1' : '0';
        }
        if (strlen(w->o->prefix) > MU_AVG_KEY_MAX / 2 || w->o->prefix[0] == '\0' ||
            snprintf(b->key, sizeof(b->key), "%s.0b%s", prefix, bits) >= (int)sizeof(b->key) ||
            !mu_avg_key_is_valid(mu_span_str(b->key)) ||
            mu_dht_key_text(mu_span_str(b->key), &w->keys[i]) != 0) {
            return cli_usage("average", "%s: a prefix is a short name without a dot", w->o->prefix);
        }
    }
    return 0;
}

int average_watch(const struct average_watch *o)
{
    struct watch *w = calloc(1, sizeof(*w));
    int code = w == NULL ? cli_fail(CLI_FAILED, "out of memory") : 0;

    if (code == 0) {
        w->o = o;
        w->options = (struct dht_options){
            .peers = o->bootstrap, .identity = o->identity, .replicas = 5, .timeout = 30};
        w->app.o = &w->options;
        w->app.begin = begin;
        w->app.stopped = on_stopping;
        code = name_buckets(w);
    }
    code = code != 0 ? code : dht_run(&w->app, true);
    for (size_t i = 0; w != NULL && i < w->count; i++) {
        free(w->buckets[i].seekers);
    }
    free(w);
    return code;
}
