/*
 * The steps of an examination, one HTTP exchange each:
 *
 *     VERSION -> HEALTH -> STATUS (/v3, /v3beta, /v3alpha) -> AUTH -> MEMBERS -> PUT, GET ...
 *             -> DELETE -> V2 -> V2_PUT -> V2_DELETE -> done
 *
 * From 3.5 on, a server with users tells its status only to them: it is asked again after AUTH.
 *
 * Not by the client of etcd.h, whose purpose is that one does not see which endpoint answered.
 */
#include "service/etcd/doctor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/etcd/json.h"
#include "codec/etcd/v2.h"
#include "codec/text/json_view.h"
#include "core/addr.h"
#include "core/alloc.h"
#include "core/civil.h"
#include "service/etcd/etcd_internal.h"

#define TIMEOUT_MS UINT32_C(5000)
#define ANSWER_MAX (4u << 20)
#define TEXT_MAX   8192u

enum step {
    VERSION = 1,
    HEALTH,
    STATUS,
    AUTH,
    MEMBERS,
    PUT,
    GET,
    DELETE,
    V2,
    V2_PUT,
    V2_DELETE,
    DONE,
};

struct doctor;

struct patient {
    struct doctor *d;
    struct mu_etcd_exam *exam;
    struct mu_http http;
    struct mu_buf in;
    struct mu_buf url;
    struct mu_buf body;
    struct mu_buf token;
    bool too_long; /* the answer that was cut off */
    enum step step;
    size_t v3_at; /* which prefix is tried */
    size_t tries;
    mu_mono_t asked;
    mu_wall_t asked_wall;
    uint32_t times_us[2][MU_ETCD_DOCTOR_TRIES];
};

struct doctor {
    struct mu_etcd_doctor base;
    struct mu_env *env;
    struct mu_etcd_doctor_config config;
    struct patient patients[MU_ETCD_ENDPOINTS_MAX];
    struct mu_timer turn;
    size_t left;
    char key[64]; /* behind the prefix */
};

static const char *const v3_prefixes[] = {"/v3", "/v3beta", "/v3alpha"};

static void ask(struct patient *p, enum step step);

/* --- asking ----------------------------------------------------------------------------------- */

static void finish(struct patient *p)
{
    p->step = DONE;
    if (--p->d->left == 0) {
        p->d->config.done(&p->d->base, p->d->config.context);
    }
}

static size_t on_data(struct mu_http *http, struct mu_span in)
{
    struct patient *p = MU_CONTAINER_OF(http, struct patient, http);

    if (mu_buf_append(&p->in, in) != 0) {
        p->too_long = true;
        mu_env_http_cancel(p->d->env, http);
    }
    return in.len;
}

static void on_head(struct mu_http *http)
{
    (void)http;
}

static void on_done(struct mu_http *http, int status);

static const struct mu_http_events events = {.head = on_head, .data = on_data, .done = on_done};

/* The path of a step, and its body where it has one. */
static int make_path(struct patient *p, struct mu_span *ret_body)
{
    const struct doctor *d = p->d;
    const char *v3 = p->exam->v3 != NULL ? p->exam->v3 : v3_prefixes[p->v3_at];
    char text[160] = "";
    char key[TEXT_MAX];
    struct mu_etcd_op op = {0};
    int err = 0;

    (void)snprintf(key, sizeof(key), "%s%s", d->config.prefix, d->key);
    op.key = mu_span_str(key);
    op.value = MU_SPAN_LIT("muster doctor");
    op.kind = p->step == PUT ? MU_ETCD_PUT : p->step == GET ? MU_ETCD_RANGE : MU_ETCD_DELETE;
    mu_buf_reset(&p->body);
    switch (p->step) {
    case VERSION:
        (void)snprintf(text, sizeof(text), "/version");
        break;
    case HEALTH:
        (void)snprintf(text, sizeof(text), "/health");
        break;
    case STATUS:
        (void)snprintf(text, sizeof(text), "%s/maintenance/status", v3);
        err = mu_buf_append(&p->body, MU_SPAN_LIT("{}"));
        break;
    case AUTH:
        (void)snprintf(text, sizeof(text), "%s/auth/authenticate", v3);
        err =
            mu_etcd_encode_auth(&p->body, mu_span_str(d->config.user != NULL ? d->config.user : ""),
                                mu_span_str(d->config.password != NULL ? d->config.password : ""));
        break;
    case MEMBERS:
        (void)snprintf(text, sizeof(text), "%s/cluster/member/list", v3);
        err = mu_buf_append(&p->body, MU_SPAN_LIT("{}"));
        break;
    case PUT:
    case GET:
    case DELETE:
        (void)snprintf(text, sizeof(text), "%s%s", v3, mu_etcd_op_path(op.kind) + 3);
        err = mu_etcd_encode_op(&p->body, &op);
        break;
    case V2:
        (void)snprintf(text, sizeof(text), "/v2/keys/?quorum=false");
        break;
    case V2_PUT:
        err = mu_etcd2_field(&p->body, "value", op.value);
        err = err != 0 ? err : mu_etcd2_field(&p->body, "ttl", MU_SPAN_LIT("60"));
        (void)snprintf(text, sizeof(text), "/v2/keys");
        break;
    case V2_DELETE:
        (void)snprintf(text, sizeof(text), "/v2/keys");
        break;
    case DONE:
        break;
    }
    err = err != 0 ? err : mu_buf_append(&p->url, mu_span_str(text));
    if (err == 0 && (p->step == V2_PUT || p->step == V2_DELETE)) {
        err = mu_etcd2_path(&p->url, mu_span_str(key));
    }
    *ret_body = mu_buf_span(&p->body);
    return err != 0 ? err : mu_buf_append(&p->url, mu_span("", 1));
}

static int start(struct patient *p)
{
    static const char *const json[] = {"Content-Type: application/json", NULL};
    static const char *const form[] = {"Content-Type: application/x-www-form-urlencoded", NULL};
    struct doctor *d = p->d;
    bool v2 = p->step >= V2;
    struct mu_http_request q = {
        .method = p->step == VERSION || p->step == HEALTH || p->step == V2 ? "GET"
                  : p->step == V2_PUT                                      ? "PUT"
                  : p->step == V2_DELETE                                   ? "DELETE"
                                                                           : "POST",
        .headers = v2 ? form : json,
        .keep = "Date",
        .cacert = d->config.cacert,
        .cert = d->config.cert,
        .key = d->config.key,
        .connect_ms = d->config.timeout_ms,
        .timeout_ms = d->config.timeout_ms,
    };
    int err;

    mu_buf_reset(&p->url);
    mu_buf_reset(&p->in);
    err = mu_buf_append(&p->url, d->config.tls ? MU_SPAN_LIT("https://") : MU_SPAN_LIT("http://"));
    err = err != 0 ? err : mu_buf_append(&p->url, mu_span_str(p->exam->name));
    err = err != 0 ? err : make_path(p, &q.body);
    if (err != 0) {
        return err;
    }
    q.url = (const char *)mu_buf_span(&p->url).data;
    if (v2 && d->config.user != NULL) {
        q.user = d->config.user;
        q.password = d->config.password;
    } else if (!v2 && p->token.len > 0) {
        q.authorization = (const char *)mu_buf_span(&p->token).data;
    }
    p->asked = mu_env_now(d->env).mono;
    p->asked_wall = mu_env_now(d->env).wall;
    p->http = (struct mu_http){.on = &events};
    return mu_env_http(d->env, &p->http, &q);
}

static void ask(struct patient *p, enum step step)
{
    int err;

    p->step = step;
    if (step == DONE) {
        finish(p);
        return;
    }
    err = start(p);
    if (err != 0) {
        p->exam->status = mu_err(&p->exam->text, err, "%s", muster_strerror(err));
        finish(p);
    }
}

/* --- answers ---------------------------------------------------------------------------------- */

static void copy_text(char *to, size_t cap, struct mu_span value)
{
    if (value.len >= 2 && value.data[0] == '"') {
        value = mu_span(value.data + 1, value.len - 2);
    }
    (void)snprintf(to, cap, "%.*s", (int)(value.len < 127 ? value.len : 127),
                   value.data == NULL ? "" : (const char *)value.data);
}

/* Numbers of 64 bits come in quotes, and ids use all of them. */
static uint64_t read_id(struct mu_span value)
{
    char text[32];

    copy_text(text, sizeof(text), value);
    return strtoull(text, NULL, 10);
}

static struct mu_span member_of(struct mu_span text, const char *name)
{
    return mu_jv_valid(text) ? mu_jv_member(mu_jv_root(text), name) : (struct mu_span){0};
}

/* "Sun, 15 Nov 2026 20:01:17 GMT". */
static bool read_date(const char *text, int64_t *ret_us)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    struct mu_civil c = {0};
    char month[4];
    const char *at;

    if (strlen(text) < 29 || sscanf(text + 5, "%2d %3s %4d %2d:%2d:%2d", &c.day, month, &c.year,
                                    &c.hour, &c.minute, &c.second) != 6) {
        return false;
    }
    at = strstr(months, month);
    if (at == NULL || (at - months) % 3 != 0) {
        return false;
    }
    c.month = (int)((at - months) / 3) + 1;
    return mu_civil_to_us(&c, ret_us) == 0;
}

static void take_clock(struct patient *p)
{
    uint64_t took_ns = mu_mono_since(p->asked, mu_env_now(p->d->env).mono);
    int64_t ours = (int64_t)((p->asked_wall.ns + took_ns / 2) / MU_NS_PER_MS);
    int64_t theirs;

    if (read_date(p->http.kept, &theirs)) {
        /* It cuts its own to whole seconds: half of one is as likely as any. */
        p->exam->has_clock = true;
        p->exam->clock_ms = ours - (theirs / 1000 + 500);
    }
}

/* A refusal of v3, for the step that it answers. */
static enum mu_etcd_finding judge_v3(struct patient *p, struct mu_errmsg *words)
{
    struct mu_etcd_reply r;
    enum mu_etcd_finding finding = MU_ETCD_BROKEN;

    mu_etcd_reply_init(&r);
    if (p->http.code == 404) {
        finding = MU_ETCD_NO;
    } else if (mu_etcd_reply_decode(&r, mu_buf_span(&p->in)) != 0) {
        (void)mu_err(words, 0, "HTTP %d, and not etcd's JSON", p->http.code);
    } else if (!r.is_error && p->http.code == 200) {
        finding = MU_ETCD_YES;
    } else {
        bool who = r.code == MU_ETCD_DENIED || r.code == MU_ETCD_UNAUTHORIZED ||
                   (r.message.len > 0 &&
                    (memmem(r.message.data, r.message.len, "user name is empty", 18) != NULL ||
                     memmem(r.message.data, r.message.len, "authentication failed", 21) != NULL));

        finding = who ? MU_ETCD_REFUSED : MU_ETCD_BROKEN;
        (void)mu_err(words, 0, "etcd says: %.*s", (int)(r.message.len < 150 ? r.message.len : 150),
                     (const char *)r.message.data);
    }
    mu_etcd_reply_fini(&r);
    return finding;
}

static enum step take_status(struct patient *p)
{
    struct mu_etcd_exam *e = p->exam;
    struct mu_span text = mu_buf_span(&p->in);
    struct mu_span header = member_of(text, "header");
    enum mu_etcd_finding found = judge_v3(p, &e->write_text);

    e->write_text.text[0] = '\0';
    if (found == MU_ETCD_NO && p->v3_at + 1 < sizeof(v3_prefixes) / sizeof(v3_prefixes[0])) {
        p->v3_at++;
        return STATUS;
    }
    if (found == MU_ETCD_YES) {
        e->has_status = true;
        e->leader_id = read_id(member_of(text, "leader"));
        e->db_bytes = read_id(member_of(text, "dbSize"));
        e->member_id = read_id(mu_jv_member(header, "member_id"));
        e->cluster_id = read_id(mu_jv_member(header, "cluster_id"));
    } else if (found != MU_ETCD_REFUSED) {
        return V2;
    }
    e->v3 = v3_prefixes[p->v3_at];
    return e->auth == MU_ETCD_NOT_ASKED ? AUTH : MEMBERS;
}

static void take_auth(struct patient *p)
{
    struct mu_etcd_exam *e = p->exam;
    struct mu_etcd_reply r;
    enum mu_etcd_finding found = judge_v3(p, &e->auth_text);

    if (found == MU_ETCD_YES) {
        e->auth = e->password = MU_ETCD_YES;
        mu_etcd_reply_init(&r);
        if (mu_etcd_reply_decode(&r, mu_buf_span(&p->in)) == 0) {
            if (r.token.len >= TEXT_MAX) {
                e->password = MU_ETCD_BROKEN;
                (void)mu_err(&e->auth_text, MUSTER_ELIMIT,
                             "its token has %zu bytes, and at most %u are taken", r.token.len,
                             TEXT_MAX - 1);
            } else if (mu_buf_append(&p->token, r.token) == 0) {
                (void)mu_buf_append(&p->token, mu_span("", 1));
            }
        }
        mu_etcd_reply_fini(&r);
    } else if (strstr(e->auth_text.text, "authentication is not enabled") != NULL) {
        e->auth = MU_ETCD_NO;
        e->auth_text.text[0] = '\0';
    } else {
        e->auth = MU_ETCD_YES;
        e->password = p->d->config.user == NULL ? MU_ETCD_NOT_ASKED : found;
    }
}

static void take_members(struct patient *p)
{
    struct mu_etcd_doctor *base = &p->d->base;
    struct mu_jv_walk w = mu_jv_walk(member_of(mu_buf_span(&p->in), "members"));
    struct mu_span value;

    if (base->member_count != 0 || w.object) {
        return;
    }
    while (mu_jv_next(&w, NULL, &value) && base->member_count < MU_ETCD_DOCTOR_MEMBERS) {
        struct mu_etcd_doctor_member *m = &base->members[base->member_count++];
        struct mu_jv_walk urls = mu_jv_walk(mu_jv_member(value, "clientURLs"));
        struct mu_span url = {0};

        m->id = read_id(mu_jv_member(value, "ID"));
        copy_text(m->name, sizeof(m->name), mu_jv_member(value, "name"));
        (void)mu_jv_next(&urls, NULL, &url);
        copy_text(m->url, sizeof(m->url), url);
    }
}

static int compare_times(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a;
    uint32_t right = *(const uint32_t *)b;

    return left < right ? -1 : left > right;
}

static uint32_t median(uint32_t *times)
{
    qsort(times, MU_ETCD_DOCTOR_TRIES, sizeof(times[0]), compare_times);
    return times[MU_ETCD_DOCTOR_TRIES / 2];
}

/* A put, then a get, and so on. */
static enum step take_try(struct patient *p)
{
    struct mu_etcd_exam *e = p->exam;
    uint64_t us = mu_mono_since(p->asked, mu_env_now(p->d->env).mono) / 1000;

    p->times_us[p->step == PUT ? 0 : 1][p->tries] = us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
    if (p->step == PUT) {
        e->write3 = judge_v3(p, &e->write_text);
        return e->write3 == MU_ETCD_YES ? GET : V2;
    }
    if (judge_v3(p, &e->write_text) != MU_ETCD_YES) {
        e->write3 = MU_ETCD_BROKEN;
        return DELETE;
    }
    if (++p->tries < MU_ETCD_DOCTOR_TRIES) {
        return PUT;
    }
    e->put_us = median(p->times_us[0]);
    e->get_us = median(p->times_us[1]);
    return DELETE;
}

static enum mu_etcd_finding judge_v2(struct patient *p)
{
    struct mu_span text = mu_buf_span(&p->in);

    if (p->http.code == 401 || p->http.code == 403) {
        return MU_ETCD_REFUSED;
    }
    if (p->http.code == 404 && (text.len == 0 || text.data[0] != '{')) {
        return MU_ETCD_NO;
    }
    return p->http.code == 200 || p->http.code == 201 ? MU_ETCD_YES : MU_ETCD_BROKEN;
}

static enum step take_version(struct patient *p)
{
    struct mu_span text = mu_buf_span(&p->in);
    struct mu_span version = member_of(text, "etcdserver");

    take_clock(p);
    if (version.len == 0) {
        p->exam->status =
            text.len > 0 && memmem(text.data, text.len, "HTTP request to an HTTPS", 24) != NULL
                ? mu_err(&p->exam->text, MUSTER_ETLS, "it wants TLS")
                : mu_err(&p->exam->text, MUSTER_EPROTO,
                         "something answers that is not etcd "
                         "(HTTP %d)",
                         p->http.code);
        return DONE;
    }
    copy_text(p->exam->version, sizeof(p->exam->version), version);
    copy_text(p->exam->cluster_version, sizeof(p->exam->cluster_version),
              member_of(text, "etcdcluster"));
    return HEALTH;
}

static enum step take_answer(struct patient *p)
{
    struct mu_etcd_exam *e = p->exam;
    char health[16];

    switch (p->step) {
    case VERSION:
        return take_version(p);
    case HEALTH:
        copy_text(health, sizeof(health), member_of(mu_buf_span(&p->in), "health"));
        e->healthy = strcmp(health, "true") == 0 ? MU_ETCD_YES : MU_ETCD_NO;
        return STATUS;
    case STATUS:
        return take_status(p);
    case AUTH:
        take_auth(p);
        return e->auth == MU_ETCD_YES && e->password != MU_ETCD_YES ? V2
               : e->has_status                                      ? MEMBERS
                                                                    : STATUS;
    case MEMBERS:
        take_members(p);
        return PUT;
    case PUT:
    case GET:
        return take_try(p);
    case DELETE:
        return V2;
    case V2:
        e->v2 = judge_v2(p);
        return e->v2 == MU_ETCD_YES || e->v2 == MU_ETCD_REFUSED ? V2_PUT : DONE;
    case V2_PUT:
        e->write2 = judge_v2(p);
        e->v2 = e->v2 == MU_ETCD_REFUSED && e->write2 == MU_ETCD_YES ? MU_ETCD_YES : e->v2;
        return e->write2 == MU_ETCD_YES ? V2_DELETE : DONE;
    case V2_DELETE:
    case DONE:
        break;
    }
    return DONE;
}

/* No answer: of the first question, that is all there is to say of it. */
static enum step take_silence(struct patient *p, int status)
{
    struct mu_etcd_exam *e = p->exam;

    switch (p->step) {
    case VERSION:
        e->status = mu_err(&e->text, status, "%s", p->http.error.text);
        return DONE;
    case HEALTH:
        e->healthy = MU_ETCD_BROKEN;
        (void)mu_err(&e->health_text, status, "%s", p->http.error.text);
        return STATUS;
    case PUT:
    case GET:
        e->write3 = MU_ETCD_BROKEN;
        (void)mu_err(&e->write_text, status, "%s", p->http.error.text);
        return p->step == PUT ? V2 : DELETE;
    case V2_PUT:
        e->write2 = MU_ETCD_BROKEN;
        return DONE;
    case STATUS:
    case AUTH:
    case MEMBERS:
    case DELETE:
        return V2;
    case V2:
    case V2_DELETE:
    case DONE:
        break;
    }
    return DONE;
}

static void on_done(struct mu_http *http, int status)
{
    struct patient *p = MU_CONTAINER_OF(http, struct patient, http);

    if (p->too_long) {
        p->too_long = false;
        status = mu_err(&http->error, MUSTER_ELIMIT,
                        "its answer is longer than %u MiB: check that the URL names etcd's client "
                        "port, and nothing between it and us",
                        ANSWER_MAX >> 20);
    }
    ask(p, status == 0 ? take_answer(p) : take_silence(p, status));
}

/* --- life ------------------------------------------------------------------------------------- */

static void add_patient(struct doctor *d, const struct mu_addr *addr)
{
    struct patient *p = &d->patients[d->base.exam_count];

    p->d = d;
    p->exam = &d->base.exams[d->base.exam_count++];
    (void)mu_addr_format(addr, p->exam->name, sizeof(p->exam->name));
    mu_buf_init(&p->in, ANSWER_MAX);
    mu_buf_init(&p->url, 4 * TEXT_MAX);
    mu_buf_init(&p->body, 4 * TEXT_MAX);
    mu_buf_init(&p->token, TEXT_MAX);
}

static void on_turn(struct mu_timer *timer)
{
    struct doctor *d = MU_CONTAINER_OF(timer, struct doctor, turn);
    size_t count = d->base.exam_count;

    for (size_t i = 0; i < count; i++) {
        ask(&d->patients[i], VERSION);
    }
}

int mu_etcd_doctor_start(struct mu_env *env, const struct mu_etcd_doctor_config *config,
                         struct mu_etcd_doctor **ret_doctor, struct mu_errmsg *reterr_msg)
{
    struct doctor *d = mu_calloc(1, sizeof(*d));
    const char *list = config->endpoints;
    struct mu_addr addr;
    uint64_t random;
    int err;

    if (d == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    d->env = env;
    d->config = *config;
    d->config.timeout_ms = config->timeout_ms == 0 ? TIMEOUT_MS : config->timeout_ms;
    d->base.impl = d;
    mu_env_entropy(env, &random, sizeof(random));
    (void)snprintf(d->key, sizeof(d->key), "/doctor-%016" PRIx64, random);
    do {
        err = mu_etcd_next_endpoint(&list, d->base.exam_count, &addr, reterr_msg);
        if (err != 0) {
            mu_etcd_doctor_free(&d->base);
            return err;
        }
        add_patient(d, &addr);
    } while (*list != '\0');
    d->left = d->base.exam_count;
    mu_timer_init(&d->turn, on_turn);
    mu_env_timer_arm(env, &d->turn, mu_env_now(env).mono);
    *ret_doctor = &d->base;
    return 0;
}

void mu_etcd_doctor_free(struct mu_etcd_doctor *doctor)
{
    struct doctor *d = doctor->impl;

    for (size_t i = 0; i < doctor->exam_count; i++) {
        struct patient *p = &d->patients[i];

        mu_buf_fini(&p->in);
        mu_buf_fini(&p->url);
        mu_buf_fini(&p->body);
        mu_buf_fini(&p->token);
    }
    mu_free(d);
}
