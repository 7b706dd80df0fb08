/*
 * Errors.
 *
 * Every function that can fail returns an int: 0 is success, a negative number is an error, and a
 * positive number is always a documented count. One list yields the codes, their names and their
 * texts. muster's own codes are below -10000, so an int can also carry a code of the event loop or
 * of the operating system (a negated errno); muster_strerror() knows them all.
 */
#ifndef MUSTER_ERROR_H
#define MUSTER_ERROR_H

#include <muster/export.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MUSTER_ERRNO_MAP(X)                                                                        \
    X(EINVAL, -10001, "invalid argument")                                                          \
    X(ENOMEM, -10002, "out of memory")                                                             \
    X(EAGAIN, -10003, "not now, try again")                                                        \
    X(ETIMEDOUT, -10004, "timed out")                                                              \
    X(ECANCELED, -10005, "canceled")                                                               \
    X(ENOENT, -10006, "no such key")                                                               \
    X(EPROTO, -10007, "the other end broke the protocol")                                          \
    X(ELIMIT, -10008, "a configured limit was exceeded")                                           \
    X(EFULL, -10009, "the store's memory limit is reached")                                        \
    X(ENOTNUM, -10010, "the stored value is not a number")                                         \
    X(ENOTSUP, -10011, "not supported by this kind of store")                                      \
    X(ECLOSED, -10012, "closed")                                                                   \
    X(ECONN, -10013, "connection failed")                                                          \
    X(ESESSION, -10014, "the server no longer knows this session; the outcome is unknown")         \
    X(EREFUSED, -10015, "refused by the server")                                                   \
    X(EVERSION, -10016, "no protocol version in common")                                           \
    X(EWINDOW, -10017, "the other end exceeded the flow control window")                           \
    X(EOVERFLOW, -10018, "the receiver fell too far behind")                                       \
    X(ENOMETHOD, -10019, "no such method")                                                         \
    X(ECORRUPT, -10020, "data is damaged")                                                         \
    X(EDISK, -10021, "storage failed")                                                             \
    X(EBUSY, -10022, "in use by another process")                                                  \
    X(EURL, -10023, "malformed URL")                                                               \
    X(ENOTSTORE, -10024, "what answers there is not a store")                                      \
    X(EDRAIN, -10025, "the server is shutting down")                                               \
    X(EEXIST, -10026, "already exists")                                                            \
    X(EADDR, -10027, "cannot use that address")                                                    \
    X(ENAME, -10028, "the host name is unknown")                                                   \
    X(ERDZV_CLOSED, -10029, "the rendezvous is closed")                                            \
    X(ERDZV_TIMEOUT, -10030, "the rendezvous did not complete in time")                            \
    X(ERDZV_CONN, -10031, "the backend of the rendezvous cannot be reached")                       \
    X(ERDZV_STATE, -10032, "the state of the rendezvous is corrupt")                               \
    X(ERDZV_GRACEFUL, -10033, "the rendezvous ended while this node was spare")                    \
    X(ERDZV_RESTARTS, -10034, "this run has no restarts left")                                     \
    X(ERDZV_LOST, -10035, "the other nodes have gone on without this one")                         \
    X(ETLS, -10036, "the secure connection failed")                                                \
    X(ELOCKED, -10037, "locked: connections beyond loopback need the job's credential")            \
    X(ENOTLS, -10038, "the other end does not speak TLS")                                          \
    X(ERDZV_LOSSES, -10039, "this run has lost nodes too often")                                   \
    X(ESIGNATURE, -10040, "the peer cannot prove its identity")                                    \
    X(EPEERID, -10041, "a different peer answered than the one that was dialled")                  \
    X(EPEERDENIED, -10042, "this peer is not allowed here")                                        \
    X(ERDZV_EXCLUDED, -10043, "this node is excluded from the run for now")                        \
    X(EREMOTE, -10050, "the handler failed")                                                       \
    X(EONCE, -10051, "the call may have run already, and must not run twice")                      \
    X(EWORKER, -10052, "no worker has that name or number")                                        \
    X(EDHT_EXPIRED, -10060, "the record has expired")                                              \
    X(EDHT_FUTURE, -10061, "the record would expire too far in the future")                        \
    X(EDHT_OLD, -10062, "the stored record expires at the same time or later")                     \
    X(EDHT_OWNER, -10063, "the record is not signed by the key that owns it")                      \
    X(EDHT_SUBKEYS, -10064, "too many subkeys")                                                    \
    X(EDHT_VALUE, -10065, "the record is malformed or too long")                                   \
    X(EDHT_QUOTA, -10066, "the peer has stored as much as one peer may")                           \
    X(EDHT_CLOCK, -10067, "this node's clock disagrees with those of the others")                  \
    X(EDHT_NOBODY, -10068, "no node of the DHT answers")                                           \
    X(EDHT_DENIED, -10069, "not authorized")

enum muster_errno {
#define MUSTER_ERRNO_ENUM(name, code, text) MUSTER_##name = (code),
    MUSTER_ERRNO_MAP(MUSTER_ERRNO_ENUM)
#undef MUSTER_ERRNO_ENUM
};

/** Describes any code that this library returns. Never NULL; the text is static. */
MUSTER_EXPORT const char *muster_strerror(int code);

/** The code's name, such as "MUSTER_ETIMEDOUT", or "unknown". Never NULL; the text is static. */
MUSTER_EXPORT const char *muster_errname(int code);

#ifdef __cplusplus
}
#endif

#endif
