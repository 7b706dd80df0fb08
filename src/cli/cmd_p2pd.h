/*
 * What the files of `muster p2pd` share.
 *
 *     cmd_p2pd.c          the daemon on a loop
 *     cmd_p2pd_flags.c    its flags, which are those of libp2p's daemon
 *     p2pd_install.c      puts the daemon into hivemind's package
 *     p2pd_log.c          its log, ruled by go-log's variables
 */
#ifndef MU_CMD_P2PD_H
#define MU_CMD_P2PD_H

#include <stdbool.h>
#include <stdint.h>

/* How the daemon calls itself to peers, before its version. */
#define P2PD_AGENT "muster-p2pd/"

struct p2pd_options {
    bool install; /* do nothing else, as with the next */
    bool uninstall;
    const char *listen;
    const char *id; /* a key file; "": a temporary key */
    const char *host_addrs;
    const char *announce_addrs;
    const char *bootstrap_peers;
    const char *trusted_relays;
    bool remote_control; /* other hosts may reach `listen` */
    bool quiet;
    bool bootstrap;
    bool dht;
    bool dht_client;
    bool dht_server;
    bool no_listen;
    bool relay;
    bool relay_given; /* -relay was given */
    bool relay_service;
    bool relay_service_given;
    bool relay_discovery;
    bool auto_relay;
    bool autonat;
    bool force_public;
    bool force_private;
    int64_t relay_max_circuits;
    int64_t relay_max_reservations;
    int64_t relay_data_limit;
    uint64_t relay_time_limit_ms;
    uint64_t idle_ms;
    int64_t msg_len_max;
};

/** Reads flags as Go's programs take them: -k=v, --k=v, -k v, and -k for booleans. Returns 0, or an
 * exit code after it has printed the error; a negative number: help was printed. */
int p2pd_parse(int argc, char **argv, struct p2pd_options *o);

/** Puts this program into the hivemind package that python3 imports and keeps the daemon that is
 * there, or (false) brings that one back. Returns an exit code after it has said what it did. */
int p2pd_install(bool in);

/** Sets level, format and place of the log as GOLOG_LOG_LEVEL, GOLOG_LOG_FMT, GOLOG_FILE,
 * GOLOG_OUTPUT and GOLOG_LOG_LABELS say. A value that cannot be used is named and ignored. */
void p2pd_log_open(void);

/** Prints "p2pd: " and the text to standard error, as one line, because the program that started
 * the daemon shows the last line. Returns `code`. */
int p2pd_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
