/* Turns the facts about a host into findings. */
#include "cli/doctor_host.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SLOW_US    50000u  /* a round trip that slows a rendezvous down */
#define CLOCK_US   1000000 /* PyTorch's c10d compares the clocks of hosts, in seconds */
#define CLOCK_BAD  60000000
#define MTU_LEAST  1280u /* the least that IPv6 must carry */
#define MTU_COMMON 1500u

const char *doctor_speaks_name(enum doctor_speaks speaks)
{
    static const char *const names[] = {
        [DOCTOR_NOBODY] = "nothing",    [DOCTOR_MUSTER] = "muster",  [DOCTOR_REFUSED] = "muster",
        [DOCTOR_TORCH_1] = "torch1",    [DOCTOR_TORCH_2] = "torch2", [DOCTOR_HTTP] = "http",
        [DOCTOR_TLS] = "tls",           [DOCTOR_PEER] = "libp2p",    [DOCTOR_OTHER] = "other",
        [DOCTOR_HANGS_UP] = "hangs up", [DOCTOR_SILENT] = "silent",
    };

    return names[speaks];
}

/* --- names ------------------------------------------------------------------------------------ */

static void list_numbers(const struct doctor_exam *e, char *out, size_t cap)
{
    size_t len = 0;

    out[0] = '\0';
    for (size_t i = 0; i < e->number_count && len < cap; i++) {
        len += (size_t)snprintf(out + len, cap - len, "%s%s", i == 0 ? "" : ", ", e->numbers[i].ip);
    }
}

static bool judge_name(struct doctor_report *r, const struct doctor_exam *e)
{
    size_t here = 0;
    char list[256];
    struct doctor_finding *f;

    if (e->status != 0 || !e->done) {
        bool slow = !e->done && e->resolving;

        f = doctor_find(r, DOCTOR_BAD, e->word, "%s: %s", e->addr.host,
                        e->done ? e->no_name.text
                        : slow  ? "no name server answers for this name"
                                : "the check took too long");
        doctor_remedy(
            f, slow ? "check that the servers in /etc/resolv.conf can be reached"
                    : "correct the name, or add it to DNS or /etc/hosts, here and on every node");
        return false;
    }
    for (size_t i = 0; i < e->number_count; i++) {
        here += e->numbers[i].scope == MU_PROBE_HOST ? 1 : 0;
    }
    list_numbers(e, list, sizeof(list));
    if (e->number_count == 1 && strcmp(e->numbers[0].ip, e->addr.host) == 0) {
        return true;
    }
    f = doctor_find(r,
                    here == 0 || strcmp(e->addr.host, "localhost") == 0 ? DOCTOR_OK : DOCTOR_WARN,
                    e->word, "%s is %s", e->addr.host, list);
    if (f->level == DOCTOR_WARN) {
        doctor_remedy(f, "that is loopback, which means a different machine on every host: remove "
                         "the line with 127.0.1.1, or 127.0.0.1, and this name from /etc/hosts, or "
                         "use the address that other hosts know");
    }
    return true;
}

/* --- ports ------------------------------------------------------------------------------------ */

static const char *remedy_for(int status)
{
    switch (status) {
    case -ECONNREFUSED:
        return "start the server there, or check that it listens on that address and not only on "
               "loopback (ss -ltn, there)";
    case -ETIMEDOUT:
        return "start the host, or let the port through the firewall or security group that drops "
               "the packets";
    case -ENETUNREACH:
    case -EHOSTUNREACH:
        return "there is no route to it: check `ip route get` with that address, and that the host "
               "is up";
    default:
        return "check whether a firewall here forbids it";
    }
}

static void judge_closed(struct doctor_report *r, const struct doctor_exam *e,
                         const struct doctor_port *p, bool any)
{
    enum doctor_level level = any && !e->named ? DOCTOR_NOTE : DOCTOR_BAD;
    struct doctor_finding *f = doctor_find(r, level, e->word, "port %u: %s", p->number,
                                           p->status == -ECONNREFUSED ? "nothing listens"
                                           : p->status == -ETIMEDOUT  ? "no answer"
                                                                      : strerror(-p->status));

    if (level == DOCTOR_BAD) {
        doctor_remedy(f, "%s", remedy_for(p->status));
    }
}

static void judge_speaker(struct doctor_report *r, const struct doctor_exam *e,
                          const struct doctor_port *p)
{
    struct doctor_finding *f;

    switch (p->speaks) {
    case DOCTOR_MUSTER:
        (void)doctor_find(r, DOCTOR_OK, e->word, "port %u: a muster server, %.1f ms away",
                          p->number, p->rtt_us / 1000.0);
        return;
    case DOCTOR_REFUSED:
        /* With the credential, the server may have let us in anyway and told its time. */
        f = doctor_find(r, p->has_clock ? DOCTOR_OK : DOCTOR_WARN, e->word,
                        "port %u: a muster server, %.1f ms away, that requires a credential%s",
                        p->number, p->rtt_us / 1000.0, p->has_clock ? ", and accepts ours" : "");
        if (!p->has_clock) {
            doctor_remedy(f, "it says: %.100s%s%.150s", p->said,
                          p->no_clock[0] != '\0' ? "; our attempt to connect: " : "", p->no_clock);
        }
        return;
    case DOCTOR_TORCH_1:
    case DOCTOR_TORCH_2:
        (void)doctor_find(r, DOCTOR_OK, e->word, "port %u: a store of PyTorch %s, %.1f ms away",
                          p->number, p->speaks == DOCTOR_TORCH_1 ? "1.x" : "2.x",
                          p->rtt_us / 1000.0);
        return;
    case DOCTOR_HTTP:
    case DOCTOR_TLS:
    case DOCTOR_PEER:
    case DOCTOR_OTHER:
    case DOCTOR_HANGS_UP:
    case DOCTOR_SILENT:
    case DOCTOR_NOBODY:
        break;
    }
    f = doctor_find(r, e->named ? DOCTOR_BAD : DOCTOR_WARN, e->word, "port %u: %s", p->number,
                    p->speaks == DOCTOR_HTTP       ? "a web server, not a store"
                    : p->speaks == DOCTOR_TLS      ? "something that speaks TLS, not a plain store"
                    : p->speaks == DOCTOR_PEER     ? "a libp2p peer, not a store"
                    : p->speaks == DOCTOR_HANGS_UP ? "something that hangs up, not a store"
                    : p->speaks == DOCTOR_SILENT
                        ? "something that accepts connections and is silent"
                        : "something that is not a store");
    doctor_remedy(
        f,
        p->speaks == DOCTOR_SILENT
            ? "check whether the process there hangs, or a proxy accepts connections in its place"
            : "another program has the port: name the right port, or give the server another one");
}

/* An address family that is unreachable costs every client a timeout before it tries the other. */
static void judge_numbers(struct doctor_report *r, const struct doctor_exam *e, size_t i)
{
    const struct doctor_port *p = &e->ports[i];

    for (size_t n = 0; p->status == 0 && n < e->number_count; n++) {
        const struct mu_probe_try *t = &e->tries[n * e->port_count + i];

        if (t->status == 0 ||
            (t->status == -ECONNREFUSED && e->numbers[n].scope == MU_PROBE_HOST)) {
            continue;
        }
        doctor_remedy(doctor_find(r, DOCTOR_WARN, e->word, "port %u does not answer at %s: %s",
                                  p->number, e->numbers[n].ip, strerror(-t->status)),
                      "make the server listen on all of its addresses ([::] takes IPv4 and IPv6), "
                      "or remove this address from the name");
    }
}

static void judge_speed(struct doctor_report *r, const struct doctor_exam *e,
                        const struct doctor_port *p)
{
    if (p->rtt_us > SLOW_US) {
        doctor_remedy(
            doctor_find(r, DOCTOR_WARN, e->word, "a round trip takes %.0f ms", p->rtt_us / 1000.0),
            "muster works over it, but PyTorch's all-reduce is slow: check that the route is the "
            "one you want");
    }
}

static void judge_clock(struct doctor_report *r, const struct doctor_exam *e,
                        const struct doctor_port *p)
{
    int64_t off = p->clock_us < 0 ? -p->clock_us : p->clock_us;
    double ms = (double)off / 1000;
    struct doctor_finding *f;

    if (p->speaks != DOCTOR_MUSTER && p->speaks != DOCTOR_REFUSED) {
        return;
    }
    if (!p->has_clock) {
        (void)doctor_find(r, DOCTOR_NOTE, e->word, "its clock cannot be compared with ours: %s",
                          p->no_clock[0] != '\0' ? p->no_clock : "it was not asked");
        return;
    }
    f = doctor_find(r,
                    off > CLOCK_BAD  ? DOCTOR_BAD
                    : off > CLOCK_US ? DOCTOR_WARN
                                     : DOCTOR_OK,
                    e->word, "its clock is %.1f ms %s ours, give or take %.1f", ms,
                    p->clock_us < 0 ? "behind" : "ahead of", p->clock_round_us / 2000.0);
    if (off > CLOCK_US) {
        doctor_remedy(f, "run chrony or systemd-timesyncd on both: PyTorch's c10d rendezvous and "
                         "certificates depend on the clock; muster's own rendezvous does not");
    }
}

/* --- packets ---------------------------------------------------------------------------------- */

static void judge_hole(struct doctor_report *r, const struct doctor_exam *e, uint32_t mss_mtu)
{
    const struct mu_probe_mtu *m = &e->mtu;
    bool spared = mss_mtu != 0 && mss_mtu < m->local;
    struct doctor_finding *f = doctor_find(r, spared ? DOCTOR_WARN : DOCTOR_BAD, e->word,
                                           "packets of %u bytes, which this machine sends, are "
                                           "lost on the way; packets of %u bytes arrive",
                                           m->local, m->path);

    doctor_remedy(f,
                  "set the MTU of both ends to what the route carries (ip link set dev ETH mtu "
                  "%u), or let ICMP through%s",
                  m->path, spared ? "; TCP learns the size from the other end, UDP does not" : "");
}

static void judge_mtu(struct doctor_report *r, const struct doctor_exam *e)
{
    const struct mu_probe_mtu *m = &e->mtu;
    uint32_t mss_mtu = 0;
    struct doctor_finding *f;

    for (size_t i = 0; i < e->port_count; i++) {
        const struct doctor_port *p = &e->ports[i];

        if (p->status == 0 && p->mss != 0) {
            mss_mtu = p->mss + (e->numbers[p->reached].v6 ? 60 : 40);
        }
    }
    switch (m->finding) {
    case MU_PROBE_MTU_UNKNOWN:
        if (m->local != 0 && m->local <= 65535) {
            (void)doctor_find(r, DOCTOR_NOTE, e->word,
                              "packets of up to %u bytes leave this machine; whether they arrive "
                              "is unknown, because the host does not answer datagrams%s",
                              m->local,
                              mss_mtu != 0 && mss_mtu < m->local
                                  ? " (the other end of a connection asks for less)"
                                  : "");
        }
        break;
    case MU_PROBE_MTU_PASSES:
        f = doctor_find(r, m->path < MTU_LEAST ? DOCTOR_WARN : DOCTOR_OK, e->word,
                        "packets of up to %u bytes arrive", m->path);
        if (m->path < MTU_LEAST) {
            doctor_remedy(f, "that is little, perhaps because of a tunnel: check `ip link` here");
        }
        break;
    case MU_PROBE_MTU_TOLD:
        f = doctor_find(r, m->path < MTU_LEAST || m->local > MTU_COMMON ? DOCTOR_WARN : DOCTOR_NOTE,
                        e->word, "packets of up to %u bytes arrive; this machine sends %u", m->path,
                        m->local);
        doctor_remedy(
            f,
            "a router reports it and connections adapt; an MTU of %u at both ends avoids the delay",
            m->path);
        break;
    case MU_PROBE_MTU_HOLE:
        judge_hole(r, e, mss_mtu);
        break;
    }
}

/* --- all -------------------------------------------------------------------------------------- */

void doctor_judge(struct doctor_report *r, const struct doctor_exam *e)
{
    bool any = false;

    if (!judge_name(r, e)) {
        return;
    }
    for (size_t i = 0; i < e->port_count; i++) {
        any = any || e->ports[i].status == 0;
    }
    for (size_t i = 0; i < e->port_count; i++) {
        const struct doctor_port *p = &e->ports[i];

        if (p->status != 0) {
            judge_closed(r, e, p, any);
            continue;
        }
        judge_speaker(r, e, p);
        judge_numbers(r, e, i);
        judge_speed(r, e, p);
        judge_clock(r, e, p);
    }
    if (e->has_mtu) {
        judge_mtu(r, e);
    }
}

/* --- JSON ------------------------------------------------------------------------------------- */

static json_t *port_json(const struct doctor_exam *e, const struct doctor_port *p)
{
    json_t *o = json_pack("{s:i, s:b, s:s}", "port", p->number, "reached", p->status == 0, "speaks",
                          doctor_speaks_name(p->speaks));

    if (p->status != 0) {
        (void)json_object_set_new(o, "error", json_string(strerror(-p->status)));
        return o;
    }
    (void)json_object_set_new(o, "address", json_string(e->numbers[p->reached].ip));
    (void)json_object_set_new(o, "rtt_ms", json_real(p->rtt_us / 1000.0));
    (void)json_object_set_new(o, "segment_bytes", json_integer(p->mss));
    (void)json_object_set_new(o, "refused", json_boolean(p->speaks == DOCTOR_REFUSED));
    (void)json_object_set_new(o, "clock_ms",
                              p->has_clock ? json_real((double)p->clock_us / 1000) : json_null());
    return o;
}

json_t *doctor_exam_json(const struct doctor_exam *e)
{
    static const char *const findings[] = {"", "unknown", "passes", "told", "vanish"};
    json_t *o = json_pack("{s:s, s:o, s:o}", "host", e->addr.host, "addresses", json_array(),
                          "ports", json_array());

    if (o == NULL) {
        return json_null(); /* The name is not valid text, and JSON cannot hold it. */
    }
    for (size_t i = 0; i < e->number_count; i++) {
        (void)json_array_append_new(json_object_get(o, "addresses"), json_string(e->numbers[i].ip));
    }
    for (size_t i = 0; e->done && e->number_count != 0 && i < e->port_count; i++) {
        (void)json_array_append_new(json_object_get(o, "ports"), port_json(e, &e->ports[i]));
    }
    if (e->has_mtu) {
        (void)json_object_set_new(o, "mtu",
                                  json_pack("{s:s, s:i, s:i}", "finding", findings[e->mtu.finding],
                                            "local", (int)e->mtu.local, "path", (int)e->mtu.path));
    }
    return o;
}
