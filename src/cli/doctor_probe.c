#include "cli/doctor_host.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "codec/rpc/frame.h"
#include "codec/store/torch_wire.h"

#define ASK_MS_MAX 1500
#define MTU_MS_MAX 3000

/* --- what is there ---------------------------------------------------------------------------- */

static uint32_t at_most(uint32_t ms, uint32_t max)
{
    return ms < max ? ms : max;
}

/* Our greeting on the native wire, for a session that the server need not keep. */
static int make_greeting(const struct doctor_exam *e, struct mu_buf *out)
{
    struct mu_rpc_hello hello = {
        .version_min = MU_RPC_VERSION,
        .version_max = MU_RPC_VERSION,
        .calls_credit = MU_RPC_CREDIT_MIN,
        .frame_bytes_max = MU_RPC_FRAME_MIN,
        .name = MU_SPAN_LIT("muster doctor"),
    };
    uint8_t header[MU_RPC_HEADER];
    struct mu_buf payload;
    int err;

    memcpy(hello.session, e->session, sizeof(hello.session));
    mu_buf_init(&payload, MU_RPC_HELLO_MAX);
    err = mu_rpc_hello_encode(&payload, &hello);
    mu_rpc_header_encode(
        header, &(struct mu_rpc_header){.len = (uint32_t)payload.len, .type = MU_RPC_HELLO});
    err = err != 0 ? err : mu_buf_append(out, MU_SPAN_LIT(MU_RPC_MAGIC));
    err = err != 0 ? err : mu_buf_append(out, mu_span(header, sizeof(header)));
    err = err != 0 ? err : mu_buf_append(out, mu_buf_span(&payload));
    mu_buf_fini(&payload);
    return err;
}

static bool begins(const uint8_t *answer, size_t len, const char *with)
{
    return len >= strlen(with) && memcmp(answer, with, strlen(with)) == 0;
}

/* Judges an answer to the greeting. */
static enum doctor_speaks recognize(const uint8_t *answer, size_t len, struct doctor_port *p)
{
    struct mu_rpc_header header;
    struct mu_rpc_status status;

    if (len >= MU_RPC_HEADER && mu_rpc_header_decode(answer, &header) == 0 &&
        (header.type == MU_RPC_WELCOME || header.type == MU_RPC_REFUSE)) {
        if (header.type == MU_RPC_WELCOME) {
            return DOCTOR_MUSTER;
        }
        if (header.len <= len - MU_RPC_HEADER &&
            mu_rpc_status_decode(mu_span(answer + MU_RPC_HEADER, header.len), &status) == 0) {
            (void)snprintf(p->said, sizeof(p->said), "%.*s", (int)status.payload.len,
                           (const char *)status.payload.data);
        }
        return DOCTOR_REFUSED;
    }
    if (begins(answer, len, "HTTP/")) {
        return DOCTOR_HTTP;
    }
    if (len >= 3 && answer[0] == 0x15 && answer[1] == 3) {
        return DOCTOR_TLS; /* an alert */
    }
    return begins(answer, len, "\x13/multistream") ? DOCTOR_PEER : DOCTOR_OTHER;
}

/*
 * Probes for PyTorch's stores. A store of generation 1 takes the bytes of generation 2 for a key of
 * a gigabyte, so it is probed first: by one byte, which asks for the number of keys, and at which a
 * store of generation 2 hangs up.
 */
static enum doctor_speaks ask_torch(const struct mu_probe_number *n, uint16_t port, uint32_t ms)
{
    static const uint8_t one[] = {6};
    static const uint8_t two[] = {0, 0xce, 0xf7, 0x85, 0x3c, MU_TORCH_GETNUMKEYS};
    uint8_t answer[8];
    size_t len = 0;
    enum mu_probe_end end =
        mu_probe_ask(n, port, mu_span(one, sizeof(one)), ms, answer, sizeof(answer), 8, &len);

    if (end == MU_PROBE_ANSWERED) {
        return len == 8 ? DOCTOR_TORCH_1 : DOCTOR_OTHER;
    }
    if (end != MU_PROBE_CLOSED) {
        return DOCTOR_HANGS_UP;
    }
    end = mu_probe_ask(n, port, mu_span(two, sizeof(two)), ms, answer, sizeof(answer), 8, &len);
    return end == MU_PROBE_ANSWERED && len == 8 ? DOCTOR_TORCH_2 : DOCTOR_HANGS_UP;
}

/* A web server waits for the end of a request, and our greeting has no such end. */
static enum doctor_speaks ask_http(const struct mu_probe_number *n, uint16_t port, uint32_t ms)
{
    static const char request[] = "HEAD / HTTP/1.0\r\nHost: localhost\r\n\r\n";
    uint8_t answer[64];
    size_t len = 0;

    (void)mu_probe_ask(n, port, mu_span_str(request), ms, answer, sizeof(answer), 5, &len);
    return begins(answer, len, "HTTP/") ? DOCTOR_HTTP : len != 0 ? DOCTOR_OTHER : DOCTOR_SILENT;
}

static void ask_who(const struct doctor_exam *e, struct doctor_port *p)
{
    const struct mu_probe_number *n = &e->numbers[p->reached];
    uint32_t ms = at_most(e->timeout_ms, ASK_MS_MAX);
    uint8_t answer[1024];
    size_t len = 0;
    struct mu_buf greeting;
    enum mu_probe_end end = MU_PROBE_FAILED;

    mu_buf_init(&greeting, MU_RPC_HELLO_MAX);
    if (make_greeting(e, &greeting) == 0) {
        end = mu_probe_ask(n, p->number, mu_buf_span(&greeting), ms, answer, sizeof(answer),
                           MU_RPC_HEADER, &len);
    }
    mu_buf_fini(&greeting);
    switch (end) {
    case MU_PROBE_ANSWERED:
        p->speaks = recognize(answer, len, p);
        break;
    case MU_PROBE_CLOSED:
        p->speaks = ask_torch(n, p->number, ms);
        break;
    case MU_PROBE_SILENT:
        p->speaks = ask_http(n, p->number, ms);
        break;
    case MU_PROBE_FAILED:
        p->speaks = DOCTOR_NOBODY;
        break;
    }
}

/* --- one host --------------------------------------------------------------------------------- */

/* A refusal says more than an unreachable address, which says more than silence. */
static int worth(int status)
{
    return status == 0 ? 3 : status == -ECONNREFUSED ? 2 : status == -ETIMEDOUT ? 0 : 1;
}

static void sum_up_port(struct doctor_exam *e, size_t i)
{
    struct doctor_port *p = &e->ports[i];

    p->status = -ETIMEDOUT;
    for (size_t n = 0; n < e->number_count; n++) {
        const struct mu_probe_try *t = &e->tries[n * e->port_count + i];

        if (worth(t->status) > worth(p->status) || (n == 0 && t->status != 0)) {
            p->status = t->status;
            p->reached = n;
            p->rtt_us = t->rtt_us;
            p->mss = t->mss;
        }
    }
}

void doctor_probe(struct doctor_exam *e)
{
    size_t count = e->number_count * e->port_count;
    size_t number = 0;
    bool reached = false;

    for (size_t i = 0; i < count; i++) {
        e->tries[i] = (struct mu_probe_try){.number = &e->numbers[i / e->port_count],
                                            .port = e->ports[i % e->port_count].number};
    }
    mu_probe_dial(e->tries, count, e->timeout_ms);
    for (size_t i = 0; i < e->port_count; i++) {
        struct doctor_port *p = &e->ports[i];

        sum_up_port(e, i);
        if (p->status == 0) {
            ask_who(e, p);
        }
        /* A host that refuses a connection exists, too. */
        if (!reached && (p->status == 0 || p->status == -ECONNREFUSED)) {
            reached = true;
            number = p->reached;
        }
    }
    /* Loopback needs no probe of packet sizes. */
    e->has_mtu =
        reached && e->numbers[number].scope != MU_PROBE_HOST &&
        mu_probe_mtu(&e->numbers[number], at_most(e->timeout_ms, MTU_MS_MAX), &e->mtu) == 0;
}
