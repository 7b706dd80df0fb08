#include "proto/etcd/route.h"

#include <string.h>

#include "core/assert.h"

#define REST_MIN_MS 20u
#define REST_MAX_MS 500u
#define AUTHS_MAX   4u
#define SLOW_MAX    4u /* how often the time for a try doubles */

/* --- the route -------------------------------------------------------------------------------- */

void mu_etcd_route_init(struct mu_etcd_route *r, const struct mu_etcd_route_config *config,
                        uint64_t seed)
{
    *r = (struct mu_etcd_route){.config = *config};
    mu_prng_seed(&r->prng, seed);
    r->current = (uint32_t)mu_prng_below(&r->prng, config->endpoint_count);
}

void mu_etcd_route_leave(struct mu_etcd_route *r, uint32_t endpoint)
{
    if (r->current == endpoint) {
        r->current = (endpoint + 1) % r->config.endpoint_count;
    }
}

void mu_etcd_route_answered(struct mu_etcd_route *r, uint32_t endpoint, mu_mono_t now)
{
    r->current = endpoint;
    r->answered = now;
    r->ever_answered = true;
}

uint64_t mu_etcd_route_rest_ns(struct mu_etcd_route *r, uint32_t tries)
{
    uint32_t rounds = tries / r->config.endpoint_count;
    uint64_t ms = REST_MIN_MS;

    if (tries % r->config.endpoint_count != 0) {
        return 0;
    }
    while (rounds-- > 1 && ms < REST_MAX_MS) {
        ms *= 2;
    }
    ms = ms < REST_MAX_MS ? ms : REST_MAX_MS;
    return (ms / 2) * MU_NS_PER_MS + mu_prng_below(&r->prng, ms / 2 * MU_NS_PER_MS + 1);
}

bool mu_etcd_route_silent(const struct mu_etcd_route *r, mu_mono_t started, mu_mono_t now)
{
    uint32_t ms = r->ever_answered ? r->config.patience_ms : r->config.first_ms;
    mu_mono_t since =
        r->ever_answered && mu_mono_before(started, r->answered) ? r->answered : started;

    return mu_mono_reached(mu_mono_add_ms(since, ms), now);
}

/* --- the token -------------------------------------------------------------------------------- */

bool mu_etcd_route_needs_token(struct mu_etcd_route *r, bool *ret_ask)
{
    *ret_ask = r->config.user != NULL && r->token == MU_ETCD_TOKEN_MISSING;
    r->token = *ret_ask ? MU_ETCD_TOKEN_ASKED : r->token;
    return r->token == MU_ETCD_TOKEN_ASKED;
}

void mu_etcd_route_drop_token(struct mu_etcd_route *r, uint64_t number)
{
    /* Whatever its number was: somebody may have switched authentication on. */
    if (r->token == MU_ETCD_TOKEN_OFF ||
        (r->token == MU_ETCD_TOKEN_HELD && r->token_number == number)) {
        r->token = MU_ETCD_TOKEN_MISSING;
    }
}

int mu_etcd_route_authed(struct mu_etcd_route *r, int status, struct mu_errmsg *msg)
{
    r->token = MU_ETCD_TOKEN_MISSING;
    if (status == 0) {
        r->token = MU_ETCD_TOKEN_HELD;
        r->token_number++;
    } else if (status == MUSTER_EREFUSED &&
               strstr(msg->text, "authentication is not enabled") != NULL) {
        r->token = MU_ETCD_TOKEN_OFF;
        status = 0;
    } else if (status == MUSTER_EREFUSED) {
        (void)mu_err(msg, status, "etcd does not accept the password of user \"%.64s\"",
                     r->config.user);
    }
    return status;
}

/* --- one call --------------------------------------------------------------------------------- */

static void finish(struct mu_etcd_asker *a, int status)
{
    a->state = MU_ETCD_ASKER_IDLE;
    a->wake = MU_MONO_NEVER;
    a->due = MU_ETCD_ASKER_END;
    a->answer.status = status;
    if (status == 0) {
        a->answer.unknown = false;
        return;
    }
    a->answer.reply = NULL;
    if (a->answer.errmsg.text[0] == '\0') {
        (void)mu_err(&a->answer.errmsg, status, "%s", muster_strerror(status));
    }
}

/* Finds the words for a call that ends without an answer. */
static void end(struct mu_etcd_asker *a, int status)
{
    struct mu_errmsg *msg = &a->answer.errmsg;
    struct mu_errmsg last = *msg;
    bool stopped = status == MUSTER_ECANCELED || status == MUSTER_ECLOSED;

    if (status == MUSTER_ETIMEDOUT) {
        (void)mu_err(msg, status, "etcd did not answer within %u ms%s%.150s", a->terms.timeout_ms,
                     last.text[0] != '\0' ? ": " : "", last.text);
    } else if (stopped) {
        (void)mu_err(msg, status, "%s", muster_strerror(status));
    }
    if (a->answer.unknown && !stopped && !a->terms.repeat) {
        mu_err_prefix(msg, "it may or may not have happened");
    }
    finish(a, status);
}

static void rest(struct mu_etcd_asker *a, mu_mono_t now, uint64_t ns)
{
    a->state = MU_ETCD_ASKER_RESTING;
    a->wake = mu_mono_min(mu_mono_add_ns(now, ns), a->deadline);
}

/* It will not be tried again, or it will. */
static void try_again(struct mu_etcd_asker *a, enum mu_etcd_verdict verdict, mu_mono_t now)
{
    struct mu_etcd_route *r = a->route;
    int status = a->answer.status != 0 ? a->answer.status : MUSTER_ECONN;

    if (verdict == MU_ETCD_REAUTH) {
        mu_etcd_route_drop_token(r, a->token);
        if (r->config.user == NULL || ++a->auths > AUTHS_MAX) {
            end(a, status);
        } else {
            rest(a, now, 0);
        }
        return;
    }
    a->hopeless |= verdict == MU_ETCD_HOPELESS ? 1u << a->endpoint : 0;
    a->answer.unknown = a->answer.unknown || verdict == MU_ETCD_UNKNOWN;
    a->tries++;
    mu_etcd_route_leave(r, a->endpoint);
    if (a->hopeless == (1u << r->config.endpoint_count) - 1 ||
        (a->answer.unknown && !a->terms.repeat)) {
        end(a, status);
    } else if (mu_mono_reached(a->deadline, now)) {
        end(a, MUSTER_ETIMEDOUT);
    } else if (mu_etcd_route_silent(r, a->started, now)) {
        end(a, status);
    } else {
        rest(a, now, mu_etcd_route_rest_ns(r, a->tries));
    }
}

/* A try that was given up while etcd worked on it was for nothing: the next has twice its time. */
static uint32_t try_ms(const struct mu_etcd_asker *a, mu_mono_t now)
{
    uint32_t try_max = a->route->config.try_ms << (a->slow < SLOW_MAX ? a->slow : SLOW_MAX);
    uint64_t left = mu_mono_until_ms(a->deadline, now);

    left = a->deadline.ns == MU_MONO_NEVER.ns || left > INT32_MAX ? 0 : left == 0 ? 1 : left;
    return a->terms.repeat && (left == 0 || left > try_max) ? try_max : (uint32_t)left;
}

static void try_now(struct mu_etcd_asker *a, mu_mono_t now)
{
    struct mu_etcd_route *r = a->route;
    bool ask;

    if (a->terms.named && mu_etcd_route_needs_token(r, &ask)) {
        a->state = MU_ETCD_ASKER_UNNAMED;
        a->wake = a->deadline;
        a->due = ask ? MU_ETCD_ASKER_AUTHENTICATE : 0;
        return;
    }
    a->state = MU_ETCD_ASKER_OUT;
    a->wake = MU_MONO_NEVER;
    a->endpoint = r->current;
    a->token = r->token_number;
    a->try_ms = try_ms(a, now);
    a->sent = now;
    a->due = MU_ETCD_ASKER_SEND;
}

void mu_etcd_asker_start(struct mu_etcd_asker *a, struct mu_etcd_route *route,
                         const struct mu_etcd_terms *terms, mu_mono_t now)
{
    MU_ASSERT(a->state == MU_ETCD_ASKER_IDLE);
    *a = (struct mu_etcd_asker){
        .route = route,
        .terms = *terms,
        .started = now,
        .deadline = terms->timeout_ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(now, terms->timeout_ms),
        .ending = route->closing ? MUSTER_ECLOSED : 0,
    };
    if (a->ending != 0) {
        rest(a, now, 0);
    } else {
        try_now(a, now);
    }
}

void mu_etcd_asker_done(struct mu_etcd_asker *a, const struct mu_etcd_exchange *x, mu_mono_t now)
{
    struct mu_etcd_route *r = a->route;
    struct mu_etcd_answer *answer = &a->answer;
    enum mu_etcd_verdict verdict = MU_ETCD_DONE;

    if (a->ending != 0) {
        answer->unknown = answer->unknown || x->sent;
        end(a, a->ending);
    } else if (a->spoilt != 0) {
        answer->unknown = true;
        (void)mu_err(&answer->errmsg, a->spoilt, "the answer is longer than %zu bytes",
                     r->config.reply_bytes_max);
        end(a, a->spoilt);
    } else if (x->status == MUSTER_ETIMEDOUT && a->terms.poll && x->code == 200) {
        mu_etcd_route_answered(r, a->endpoint, now); /* By its head. */
        finish(a, x->status);
    } else if (x->status != 0) {
        a->slow += x->status == MUSTER_ETIMEDOUT && x->sent ? 1 : 0;
        answer->status = mu_err(&answer->errmsg, x->status, "%s: %.180s", x->where, x->error);
        try_again(a,
                  x->status == MUSTER_ETLS || x->status == MUSTER_ENOTSUP ? MU_ETCD_HOPELESS
                  : x->sent                                               ? MU_ETCD_UNKNOWN
                                                                          : MU_ETCD_NEXT,
                  now);
    } else {
        answer->code = x->code;
        if (a->terms.bare) {
            answer->status = 0;
            answer->text = x->text;
        } else {
            verdict = a->terms.v2 ? mu_etcd_judge_v2(x, r->config.user != NULL, answer)
                                  : mu_etcd_judge_v3(x, r->config.user != NULL, answer);
        }
        if (verdict == MU_ETCD_DONE) {
            mu_etcd_route_answered(r, a->endpoint, now);
            finish(a, answer->status);
            return;
        }
        mu_err_prefix(&answer->errmsg, "%s", x->where);
        try_again(a, verdict, now);
    }
}

void mu_etcd_asker_unsent(struct mu_etcd_asker *a, int err, mu_mono_t now)
{
    a->ending = err;
    rest(a, now, 0);
}

void mu_etcd_asker_spoil(struct mu_etcd_asker *a, int err)
{
    if (a->spoilt == 0) {
        a->spoilt = err;
        a->due = MU_ETCD_ASKER_CANCEL;
    }
}

void mu_etcd_asker_authed(struct mu_etcd_asker *a, int status, const char *text, mu_mono_t now)
{
    if (a->state == MU_ETCD_ASKER_UNNAMED) {
        if (status != 0) {
            a->ending = mu_err(&a->answer.errmsg, status, "%s", text);
        }
        rest(a, now, 0);
    }
}

void mu_etcd_asker_stop(struct mu_etcd_asker *a, int why, mu_mono_t now)
{
    if (a->state == MU_ETCD_ASKER_IDLE || a->ending != 0) {
        return;
    }
    a->ending = why;
    if (a->state == MU_ETCD_ASKER_OUT) {
        a->due = MU_ETCD_ASKER_CANCEL;
    } else {
        rest(a, now, 0);
    }
}

void mu_etcd_asker_tick(struct mu_etcd_asker *a, mu_mono_t now)
{
    if (!mu_mono_reached(a->wake, now) || a->state == MU_ETCD_ASKER_IDLE) {
        return;
    }
    if (a->ending != 0) {
        end(a, a->ending);
    } else if (mu_mono_reached(a->deadline, now)) {
        end(a, MUSTER_ETIMEDOUT);
    } else {
        try_now(a, now);
    }
}

enum mu_etcd_asker_action mu_etcd_asker_next(struct mu_etcd_asker *a)
{
    enum mu_etcd_asker_action due = a->due;

    a->due = 0;
    return due;
}
