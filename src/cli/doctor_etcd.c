/* muster doctor etcd: turns the facts of service/etcd/doctor.h into findings. */
#include "cli/cmd_doctor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli_loop.h"
#include "core/url.h"
#include "service/etcd/doctor.h"

#define SLOW_US     50000u              /* a slower put means a slow disk, or members far apart */
#define CLOCK_MS    3000                /* etcd tells whole seconds, and the network takes time */
#define DB_BYTES    (UINT64_C(3) << 29) /* three quarters of etcd's default quota of 2 GiB */
#define NO_PASSWORD "give user=NAME&password_file=FILE in the URL"

struct checkup {
    struct cli_loop loop;
    const struct doctor_options *o;
    const char *url_text;
    struct mu_url url;
    struct mu_etcd_doctor_config config;
    char prefix[1024];
    char password[512];
    struct doctor_report report;
    bool use_v3;
    bool use_v2;
    int code;
};

/* --- findings --------------------------------------------------------------------------------- */

static void judge_silence(struct checkup *v, const struct mu_etcd_exam *e)
{
    struct doctor_finding *f = doctor_find(&v->report, DOCTOR_BAD, e->name, "%s", e->text.text);

    switch (e->status) {
    case MUSTER_ENAME:
        doctor_remedy(f, "no host has that name: correct it, or add it to DNS or /etc/hosts");
        break;
    case MUSTER_ECONN:
        if (!v->config.tls && strstr(e->text.text, "TLS") != NULL) {
            doctor_remedy(f, "add tls=true, or cacert=FILE, to the URL");
        } else if (v->config.tls && v->config.cert == NULL &&
                   strstr(e->text.text, "onnect") == NULL) {
            /* With TLS 1.3 the refusal of a client without a certificate comes late, or not at
             * all. */
            doctor_remedy(f,
                          "a server with --client-cert-auth needs cert=FILE&key=FILE in the URL");
        } else {
            doctor_remedy(
                f, "start that member, or remove it from the URL; check that no firewall blocks "
                   "the port and that etcd listens on that address (--listen-client-urls)");
        }
        break;
    case MUSTER_ETIMEDOUT:
        doctor_remedy(
            f, "start the host, or let its port through the firewall that drops the packets");
        break;
    case MUSTER_ETLS:
        doctor_remedy(f, v->config.tls ? "cacert=FILE must have signed the server's certificate, "
                                         "which must name this host and be valid today; a server "
                                         "with --client-cert-auth needs cert=FILE&key=FILE"
                                       : "add tls=true, or cacert=FILE, to the URL");
        break;
    case MUSTER_EPROTO:
        doctor_remedy(
            f, "check that this is the port for clients (2379), not the one for members (2380)");
        break;
    default:
        break;
    }
}

static void judge_auth(struct checkup *v, const struct mu_etcd_exam *e)
{
    const char *user = v->config.user;
    struct doctor_finding *f;

    if (e->auth == MU_ETCD_NO && user != NULL) {
        f = doctor_find(&v->report, DOCTOR_NOTE, e->name,
                        "etcd does not ask for a user: user %s is not needed", user);
        doctor_remedy(f, "anyone who reaches it can change everything: use etcdctl auth enable");
    } else if (e->auth == MU_ETCD_YES && user == NULL) {
        f = doctor_find(&v->report, DOCTOR_BAD, e->name, "etcd requires a user and a password");
        doctor_remedy(f, NO_PASSWORD);
    } else if (e->auth == MU_ETCD_YES && e->password == MU_ETCD_YES) {
        (void)doctor_find(&v->report, DOCTOR_OK, e->name, "etcd accepts us as user %s", user);
    } else if (e->auth == MU_ETCD_YES && e->password == MU_ETCD_BROKEN) {
        f = doctor_find(&v->report, DOCTOR_BAD, e->name, "etcd cannot let in user %s: %s", user,
                        e->auth_text.text);
        doctor_remedy(f, "use etcd --auth-token=simple, or shorter JWT claims");
    } else if (e->auth == MU_ETCD_YES) {
        f = doctor_find(&v->report, DOCTOR_BAD, e->name,
                        "etcd does not accept the password of user %s", user);
        doctor_remedy(
            f,
            "correct the first line of password_file; etcdctl user passwd %s sets another password",
            user);
    }
}

static void judge_write(struct checkup *v, const struct mu_etcd_exam *e, const char *api,
                        enum mu_etcd_finding found)
{
    const char *user = v->config.user != NULL ? v->config.user : "nobody";
    struct doctor_finding *f;

    switch (found) {
    case MU_ETCD_YES:
        (void)doctor_find(&v->report, DOCTOR_OK, e->name, "%s: we may write below %s", api,
                          v->prefix);
        break;
    case MU_ETCD_REFUSED:
        f = doctor_find(&v->report, DOCTOR_BAD, e->name, "%s: user %s may not write below %s", api,
                        user, v->prefix);
        doctor_remedy(f,
                      "run etcdctl role grant-permission ROLE readwrite --prefix=true %s/, and "
                      "give that role to the user",
                      v->prefix);
        break;
    case MU_ETCD_BROKEN:
        f = doctor_find(&v->report, DOCTOR_BAD, e->name, "%s: a write below %s fails%s%s", api,
                        v->prefix, e->write_text.text[0] != '\0' ? ": " : "", e->write_text.text);
        doctor_remedy(
            f, strstr(e->write_text.text, "space exceeded") != NULL
                   ? "etcd's space is used up: compact, defragment, then disarm the alarm"
                   : "a cluster without a majority accepts no writes: check the other members");
        break;
    case MU_ETCD_NOT_ASKED:
    case MU_ETCD_NO:
        break;
    }
}

static void judge_speed(struct checkup *v, const struct mu_etcd_exam *e)
{
    struct doctor_finding *f;

    if (e->put_us == 0) {
        return;
    }
    f = doctor_find(&v->report, e->put_us > SLOW_US ? DOCTOR_WARN : DOCTOR_OK, e->name,
                    "a put takes %.1f ms, a get %.1f ms (medians of %d)", e->put_us / 1000.0,
                    e->get_us / 1000.0, MU_ETCD_DOCTOR_TRIES);
    if (e->put_us > SLOW_US) {
        doctor_remedy(f, "every write waits for etcd's disk and for a majority of the members: "
                         "give etcd its own SSD, and place the members near each other");
    }
}

static void judge_clock(struct checkup *v, const struct mu_etcd_exam *e)
{
    int64_t off = e->clock_ms < 0 ? -e->clock_ms : e->clock_ms;
    struct doctor_finding *f;

    if (!e->has_clock) {
        return;
    }
    if (off <= CLOCK_MS) {
        (void)doctor_find(&v->report, DOCTOR_OK, e->name, "its clock agrees with ours (to %d s)",
                          CLOCK_MS / 1000);
        return;
    }
    f = doctor_find(&v->report, DOCTOR_WARN, e->name, "our clock is %s its clock by %.0f s",
                    e->clock_ms > 0 ? "ahead of" : "behind", (double)off / 1000);
    doctor_remedy(f, "run NTP on both: certificates and PyTorch's etcd-v2 and c10d rendezvous "
                     "depend on the clock; muster's own rendezvous uses leases and does not");
}

static void judge_member(struct checkup *v, const struct mu_etcd_exam *e)
{
    struct doctor_finding *f;

    f = doctor_find(&v->report, e->healthy == MU_ETCD_YES ? DOCTOR_OK : DOCTOR_BAD, e->name,
                    "etcd %s%s%s%s, %s", e->version,
                    e->cluster_version[0] != '\0' ? " in a cluster of " : "", e->cluster_version,
                    e->leader_id != 0 && e->leader_id == e->member_id ? ", its leader" : "",
                    e->healthy == MU_ETCD_YES ? "healthy" : "NOT healthy");
    if (e->healthy != MU_ETCD_YES) {
        doctor_remedy(f, "a member without a majority is not healthy: start the others, and check "
                         "etcdctl endpoint health and alarm list");
    }
    if (e->has_status && e->leader_id == 0) {
        f = doctor_find(&v->report, DOCTOR_BAD, e->name, "it knows no leader");
        doctor_remedy(f, "start a majority of the members, and check that they can reach each "
                         "other (port 2380)");
    }
    if (e->db_bytes > DB_BYTES) {
        f = doctor_find(&v->report, DOCTOR_WARN, e->name, "its database has reached %.1f GiB",
                        (double)e->db_bytes / (1u << 30));
        doctor_remedy(f, "at its quota (2 GiB by default) etcd accepts no more writes: compact and "
                         "defragment it");
    }
}

static void judge_apis(struct checkup *v, const struct mu_etcd_exam *e)
{
    struct doctor_finding *f;

    if (e->v3 == NULL) {
        f = doctor_find(&v->report, DOCTOR_BAD, e->name, "it does not offer the v3 API over HTTP");
        doctor_remedy(f,
                      "use etcd 3.4 or later with --enable-grpc-gateway, which is on by default");
    } else if (strcmp(e->v3, "/v3") != 0) {
        f = doctor_find(&v->report, DOCTOR_BAD, e->name,
                        "its v3 API is at %s, and muster needs it at /v3", e->v3);
        doctor_remedy(f, "use etcd 3.4 or later");
    } else {
        (void)doctor_find(&v->report, DOCTOR_OK, e->name, "it offers the v3 API at /v3");
    }
    if (e->v2 == MU_ETCD_YES || e->v2 == MU_ETCD_REFUSED) {
        (void)doctor_find(&v->report, DOCTOR_OK, e->name, "it offers the v2 API");
    } else {
        f = doctor_find(&v->report, DOCTOR_NOTE, e->name, "it does not offer the v2 API");
        doctor_remedy(
            f,
            "only the backends etcd and etcd-v2, which PyTorch's fleets use, need it: "
            "use etcd up to 3.5, started with --enable-v2; 3.6 has no v2 API, use --rdzv-backend "
            "etcd-v3 with it");
    }
}

static void judge_endpoint(struct checkup *v, const struct mu_etcd_exam *e)
{
    if (e->status != 0) {
        judge_silence(v, e);
        return;
    }
    judge_member(v, e);
    judge_apis(v, e);
    judge_auth(v, e);
    judge_write(v, e, "v3", e->write3);
    if (e->v2 == MU_ETCD_YES || e->v2 == MU_ETCD_REFUSED) {
        judge_write(v, e, "v2", e->write2);
    }
    judge_speed(v, e);
    judge_clock(v, e);
    v->use_v3 = v->use_v3 || (e->write3 == MU_ETCD_YES && strcmp(e->v3, "/v3") == 0);
    v->use_v2 = v->use_v2 || e->write2 == MU_ETCD_YES;
}

/* --- the cluster ------------------------------------------------------------------------------ */

static bool is_examined(const struct mu_etcd_doctor *d, uint64_t member)
{
    for (size_t i = 0; i < d->exam_count; i++) {
        if (d->exams[i].status == 0 && d->exams[i].member_id == member) {
            return true;
        }
    }
    return false;
}

static void judge_members(struct checkup *v, const struct mu_etcd_doctor *d)
{
    size_t missing = 0;
    struct doctor_finding *f;

    if (d->member_count == 0) {
        return;
    }
    for (size_t i = 0; i < d->member_count; i++) {
        if (!is_examined(d, d->members[i].id)) {
            missing++;
            f = doctor_find(&v->report, DOCTOR_NOTE, "cluster", "member %s (%s) was not checked",
                            d->members[i].name, d->members[i].url);
            doctor_remedy(f, "start it if it is down, and name it in the URL, so that muster can "
                             "use it when the others fail");
        }
    }
    f = doctor_find(&v->report, d->member_count < 3 ? DOCTOR_WARN : DOCTOR_OK, "cluster",
                    "%zu member%s, %zu checked: the cluster works as long as %zu of them do",
                    d->member_count, d->member_count == 1 ? "" : "s", d->member_count - missing,
                    d->member_count / 2 + 1);
    if (d->member_count < 3) {
        doctor_remedy(f,
                      "three members survive the loss of one; one or two members survive no loss");
    }
}

static void judge_agreement(struct checkup *v, const struct mu_etcd_doctor *d)
{
    const struct mu_etcd_exam *first = NULL;

    for (size_t i = 0; i < d->exam_count; i++) {
        const struct mu_etcd_exam *e = &d->exams[i];
        struct doctor_finding *f;

        if (e->status != 0 || !e->has_status) {
            continue;
        }
        if (first == NULL) {
            first = e;
            continue;
        }
        if (e->cluster_id != first->cluster_id) {
            f = doctor_find(&v->report, DOCTOR_BAD, "cluster",
                            "%s and %s belong to two different clusters", first->name, e->name);
            doctor_remedy(
                f, "name the members of one cluster: what is written to one is not in the other");
        }
        if (strcmp(e->version, first->version) != 0) {
            f = doctor_find(&v->report, DOCTOR_NOTE, "cluster", "%s is etcd %s, %s is %s",
                            first->name, first->version, e->name, e->version);
            doctor_remedy(f, "finish the upgrade when convenient");
        }
    }
}

static void judge_tls(struct checkup *v)
{
    const struct mu_etcd_doctor_config *c = &v->config;

    if (!c->tls) {
        (void)doctor_find(&v->report, DOCTOR_NOTE, "TLS",
                          "off: others on the network can read and change the data");
        return;
    }
    (void)doctor_find(&v->report, DOCTOR_OK, "TLS",
                      "the server's certificate must be signed by %s; we show %s",
                      c->cacert != NULL ? c->cacert : "one of the system's authorities",
                      c->cert != NULL ? c->cert : "no certificate");
}

static void judge_use(struct checkup *v)
{
    struct doctor_finding *f;

    if (v->use_v3) {
        (void)doctor_find(&v->report, DOCTOR_OK, "muster",
                          "would use v3: stores at %s, rendezvous with --rdzv-backend etcd-v3%s",
                          v->url_text, v->use_v2 ? ", or etcd and etcd-v2 beside PyTorch" : "");
    } else if (v->use_v2) {
        f = doctor_find(&v->report, DOCTOR_WARN, "muster",
                        "would use v2: stores with api=v2, --rdzv-backend etcd or etcd-v2");
        doctor_remedy(f,
                      "v2 has no transactions and no leases, and etcd 3.6 removed it: prefer v3");
    } else {
        f = doctor_find(&v->report, DOCTOR_BAD, "muster", "cannot use this etcd");
        doctor_remedy(f, "correct the findings above that are bad");
    }
}

/* --- printing --------------------------------------------------------------------------------- */

static json_t *number_or_null(uint64_t value, double scale)
{
    return value == 0 ? json_null() : json_real((double)value / scale);
}

static json_t *id_json(uint64_t id)
{
    char text[20];

    (void)snprintf(text, sizeof(text), "%" PRIx64, id);
    return id == 0 ? json_null() : json_string(text);
}

static const char *finding_name(enum mu_etcd_finding finding)
{
    static const char *const names[] = {"unknown", "yes", "no", "refused", "broken"};

    return names[finding];
}

static json_t *exam_json(const struct mu_etcd_exam *e)
{
    json_t *o = json_object();

    (void)json_object_set_new(o, "endpoint", json_string(e->name));
    (void)json_object_set_new(o, "reached", json_boolean(e->status == 0));
    if (e->status != 0) {
        json_t *text = json_string(e->text.text);

        (void)json_object_set_new(o, "error", json_string(muster_errname(e->status)));
        (void)json_object_set_new(o, "text", text != NULL ? text : json_string("?"));
        return o;
    }
    (void)json_object_set_new(o, "version", json_string(e->version));
    (void)json_object_set_new(o, "cluster_version", json_string(e->cluster_version));
    (void)json_object_set_new(o, "healthy", json_boolean(e->healthy == MU_ETCD_YES));
    (void)json_object_set_new(o, "member", id_json(e->member_id));
    (void)json_object_set_new(o, "leader", id_json(e->leader_id));
    (void)json_object_set_new(o, "cluster", id_json(e->cluster_id));
    (void)json_object_set_new(o, "v3", e->v3 != NULL ? json_string(e->v3) : json_null());
    (void)json_object_set_new(o, "v2", json_boolean(e->v2 == MU_ETCD_YES));
    (void)json_object_set_new(o, "auth", json_string(finding_name(e->auth)));
    (void)json_object_set_new(o, "password", json_string(finding_name(e->password)));
    (void)json_object_set_new(o, "write_v3", json_string(finding_name(e->write3)));
    (void)json_object_set_new(o, "write_v2", json_string(finding_name(e->write2)));
    (void)json_object_set_new(o, "put_ms", number_or_null(e->put_us, 1000));
    (void)json_object_set_new(o, "get_ms", number_or_null(e->get_us, 1000));
    (void)json_object_set_new(o, "clock_ms",
                              e->has_clock ? json_integer((json_int_t)e->clock_ms) : json_null());
    (void)json_object_set_new(o, "db_bytes", json_integer((json_int_t)e->db_bytes));
    return o;
}

static void print_json(const struct checkup *v, const struct mu_etcd_doctor *d)
{
    json_t *o = json_object();
    json_t *endpoints = json_array();
    json_t *members = json_array();
    json_t *url = json_string(v->url_text);

    for (size_t i = 0; i < d->exam_count; i++) {
        (void)json_array_append_new(endpoints, exam_json(&d->exams[i]));
    }
    for (size_t i = 0; i < d->member_count; i++) {
        json_t *m = json_object();

        (void)json_object_set_new(m, "member", id_json(d->members[i].id));
        (void)json_object_set_new(m, "name", json_string(d->members[i].name));
        (void)json_object_set_new(m, "url", json_string(d->members[i].url));
        (void)json_array_append_new(members, m);
    }
    (void)json_object_set_new(o, "url", url != NULL ? url : json_string("?"));
    (void)json_object_set_new(o, "endpoints", endpoints);
    (void)json_object_set_new(o, "members", members);
    (void)json_object_set_new(o, "findings", doctor_json(&v->report));
    (void)json_object_set_new(o, "use",
                              v->use_v3   ? json_string("v3")
                              : v->use_v2 ? json_string("v2")
                                          : json_null());
    (void)json_object_set_new(o, "exit_code", json_integer(v->code));
    (void)json_dumpf(o, stdout, JSON_COMPACT);
    (void)fputc('\n', stdout);
    json_decref(o);
}

/* --- the checkup --------------------------------------------------------------------------------
 * */

static void on_done(struct mu_etcd_doctor *d, void *context)
{
    struct checkup *v = context;

    for (size_t i = 0; i < d->exam_count; i++) {
        judge_endpoint(v, &d->exams[i]);
    }
    judge_agreement(v, d);
    judge_members(v, d);
    judge_tls(v);
    judge_use(v);
    v->code = !v->use_v3 && !v->use_v2                 ? CLI_CONNECT
              : doctor_worst(&v->report) == DOCTOR_BAD ? CLI_FAILED
                                                       : CLI_OK;
    if (v->o->json) {
        print_json(v, d);
    } else {
        doctor_print(&v->report);
    }
    mu_etcd_doctor_free(d);
    cli_loop_stop(&v->loop);
}

static void on_signal(void *context, int number)
{
    (void)context;
    exit(128 + number);
}

static bool is_true(const char *text)
{
    return text != NULL && (strcmp(text, "true") == 0 || strcmp(text, "1") == 0);
}

/* The URL of a store has all the parameters. */
static int read_url(struct checkup *v, struct mu_errmsg *msg)
{
    static const char *const known[] = {"api",  "tls",           "cacert",  "cert",   "key",
                                        "user", "password_file", "connect", "prefix", NULL};
    struct mu_etcd_doctor_config *c = &v->config;
    size_t len;
    int err = mu_url_parse(&v->url, v->url_text, msg);

    if (err == 0 && strcmp(v->url.scheme, "etcd") != 0) {
        err = mu_err(msg, MUSTER_EURL, "%s is not the URL of an etcd cluster: write etcd://HOST",
                     v->url_text);
    }
    for (size_t i = 0; err == 0 && i < v->url.param_count; i++) {
        const char *const *k = known;

        while (*k != NULL && strcmp(*k, v->url.params[i].name) != 0) {
            k++;
        }
        if (*k == NULL) {
            err = mu_err(msg, MUSTER_EURL, "an etcd: URL has no parameter \"%.64s\"",
                         v->url.params[i].name);
        }
    }
    if (err != 0) {
        return err;
    }
    (void)snprintf(v->prefix, sizeof(v->prefix), "%s", v->url.path);
    for (len = strlen(v->prefix); len > 0 && v->prefix[len - 1] == '/'; len--) {
        v->prefix[len - 1] = '\0';
    }
    if (v->prefix[0] == '\0') {
        (void)snprintf(v->prefix, sizeof(v->prefix), "/muster");
    }
    c->endpoints = v->url.authority;
    c->prefix = v->prefix;
    c->cacert = mu_url_param(&v->url, "cacert");
    c->cert = mu_url_param(&v->url, "cert");
    c->key = mu_url_param(&v->url, "key");
    c->user = mu_url_param(&v->url, "user");
    c->tls = is_true(mu_url_param(&v->url, "tls")) || c->cacert != NULL || c->cert != NULL ||
             c->key != NULL;
    c->password = v->password;
    return 0;
}

int doctor_etcd(const struct doctor_options *o, const char *url)
{
    struct checkup *v = calloc(1, sizeof(*v));
    struct mu_etcd_doctor *doctor;
    struct mu_errmsg msg = {{0}};
    int code;

    if (v == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    v->o = o;
    v->url_text = url;
    if (read_url(v, &msg) != 0) {
        free(v);
        return cli_usage("doctor", "%s", msg.text);
    }
    v->config.timeout_ms = cli_ms(o->timeout);
    v->config.done = on_done;
    v->config.context = v;
    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    code = cli_loop_open(&v->loop, on_signal, v);
    if (code == 0) {
        if (mu_etcd_read_password(v->loop.env, mu_url_param(&v->url, "password_file"), v->password,
                                  sizeof(v->password), &msg) != 0 ||
            mu_etcd_doctor_start(v->loop.env, &v->config, &doctor, &msg) != 0) {
            code = cli_usage("doctor", "%s", msg.text);
        } else {
            cli_loop_run(&v->loop);
            code = v->code;
        }
        cli_loop_close(&v->loop);
    }
    free(v);
    return code;
}
