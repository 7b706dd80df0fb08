/*
 * What the files of muster doctor HOST... share.
 *
 *     doctor_host.c     the command: all hosts at once, a thread for each; then the clocks
 *     doctor_probe.c    one host: names, ports, what answers there, packets. Blocks
 *     doctor_clock.c    clocks of muster servers, on the loop
 *     doctor_judge.c    findings from the facts, and the facts as JSON
 *     doctor_self.c     this machine
 *     doctor_health.c   its GPUs, network ports, memory and disk
 */
#ifndef MU_DOCTOR_HOST_H
#define MU_DOCTOR_HOST_H

#include "cli/cli_loop.h"
#include "cli/cmd_doctor.h"
#include "transport/net_probe.h"

#define DOCTOR_HOSTS_MAX 64
#define DOCTOR_PORTS_MAX 8

/* What is at a port, judged by its answer to a greeting. */
enum doctor_speaks {
    DOCTOR_NOBODY = 0, /* no connection */
    DOCTOR_MUSTER,     /* the native wire */
    DOCTOR_REFUSED,    /* the native wire, but it refuses us */
    DOCTOR_TORCH_1,    /* PyTorch's store, up to 1.13 */
    DOCTOR_TORCH_2,    /* PyTorch's store, since 2.0 */
    DOCTOR_HTTP,
    DOCTOR_TLS,
    DOCTOR_PEER,     /* a libp2p peer */
    DOCTOR_OTHER,    /* it answers something else */
    DOCTOR_HANGS_UP, /* it closes the connection without an answer */
    DOCTOR_SILENT,
};

struct doctor_port {
    uint16_t number;
    int status;     /* the best of all addresses: 0, or a negated errno */
    size_t reached; /* which address of the host answered */
    uint32_t rtt_us;
    uint32_t mss;
    enum doctor_speaks speaks;
    char said[160]; /* REFUSED: the reason */
    /* of a muster server */
    bool has_clock;
    int64_t clock_us;        /* its clock minus ours */
    uint32_t clock_round_us; /* twice the uncertainty of that */
    char no_clock[160];      /* why its clock is unknown */
};

struct doctor_exam {
    const char *word;
    struct mu_addr addr;
    struct doctor_port ports[DOCTOR_PORTS_MAX];
    size_t port_count;
    bool named; /* the user named the port */
    uint32_t timeout_ms;
    uint8_t session[16]; /* random; sent in our greeting */
    /* what was found */
    bool resolving;
    bool done;
    struct mu_errmsg no_name;
    int status; /* the resolver's status */
    struct mu_probe_number numbers[MU_PROBE_NUMBERS];
    size_t number_count;
    struct mu_probe_try tries[MU_PROBE_NUMBERS * DOCTOR_PORTS_MAX]; /* by address, then by port */
    struct mu_probe_mtu mtu;
    bool has_mtu;
};

/** Probes everything but names. */
void doctor_probe(struct doctor_exam *e);
/** Asks every muster server that was found for its time. Returns 0, or an exit code after it has
 * printed the error. */
int doctor_clocks(struct cli_loop *loop, struct doctor_exam *exams, size_t count,
                  uint32_t timeout_ms);
void doctor_judge(struct doctor_report *r, const struct doctor_exam *e);
json_t *doctor_exam_json(const struct doctor_exam *e);
/** Begins to look at the health of this machine. */
void doctor_health_begin(void);
/** Waits for what was seen, within a time; adds findings and facts. */
void doctor_health(struct doctor_report *r, json_t *facts);
/** Adds findings about this machine; returns the facts as JSON. */
json_t *doctor_self(struct doctor_report *r);

const char *doctor_speaks_name(enum doctor_speaks speaks);

#endif
