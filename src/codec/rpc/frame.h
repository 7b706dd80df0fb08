/*
 * Frames of the native wire: bytes to structs and back, without state. docs/native-wire.md is the
 * specification; this header repeats its tables.
 *
 * A connection opens with eight bytes from the side that dialled, then frames both ways:
 *
 *     magic    4d 55 53 54 45 52 0d 0a     "MUSTER\r\n"
 *
 *     offset size  field
 *          0    4  length of what follows the header
 *          4    1  type
 *          5    1  flags
 *          6    2  zero
 *          8    8  ack: how many sequenced frames this side has received in this session
 *         16    8  id: of the call; 0 if the frame is about the connection
 *         24       payload
 *
 * Integers are little-endian. Sequenced frames are counted, kept until they are acknowledged, and
 * sent again after a reconnect, so that each is received exactly once and in order for as long as
 * the session lives. The others belong to one connection and are forgotten with it.
 */
#ifndef MU_RPC_FRAME_H
#define MU_RPC_FRAME_H

#include "core/buf.h"
#include "core/span.h"

#define MU_RPC_MAGIC     "MUSTER\r\n"
#define MU_RPC_MAGIC_LEN 8
#define MU_RPC_HEADER    24
#define MU_RPC_VERSION   1

#define MU_RPC_SESSION_LEN    16
#define MU_RPC_METHOD_MAX     255  /* bytes of a method's name, `namespace::Service.method` */
#define MU_RPC_NAME_MAX       255  /* bytes of a client's or server's name for itself */
#define MU_RPC_CREDENTIAL_MAX 4096 /* bytes */
#define MU_RPC_MESSAGE_MAX    1024 /* bytes of an error's text; longer ones are cut */
#define MU_RPC_HELLO_MAX      8192 /* bytes of a HELLO of any version: a later one may grow */

/* Each side takes at least this much, so calls can be written before the other end speaks. */
#define MU_RPC_CREDIT_MIN 65536 /* calls_credit */
#define MU_RPC_FRAME_MIN  65536 /* frame_bytes_max */

/* The bounds of what HELLO and WELCOME may ask for and promise. */
#define MU_RPC_BEAT_MS_MIN 50
#define MU_RPC_DEAD_MS_MAX 3600000

/* X(enum suffix, number, sequenced) */
#define MU_RPC_FRAME_MAP(X)                                                                        \
    X(HELLO, 1, 0)   /* the dialler's first: its name, session and credential */                   \
    X(WELCOME, 2, 0) /* the answer: the session exists; its terms */                               \
    X(REFUSE, 3, 0)  /* the answer: no, and why; the connection closes */                          \
    X(PING, 4, 0)    /* u64 nonce */                                                               \
    X(PONG, 5, 0)    /* the same nonce */                                                          \
    X(ACK, 6, 0)     /* only its header matters */                                                 \
    X(DRAIN, 7, 0)   /* make no new calls: this side is about to leave */                          \
    X(BYE, 8, 0)     /* the session ends on purpose: free it now */                                \
    X(CALL, 16, 1)   /* id: a new call */                                                          \
    X(REPLY, 17, 1)  /* id: the end of a call */                                                   \
    X(ITEM, 18, 1)   /* id: an item of its stream, in either direction */                          \
    X(END, 19, 1)    /* id: the caller has no more items */                                        \
    X(CANCEL, 20, 1) /* id: the caller does not want the answer any more */                        \
    X(CREDIT, 21, 1) /* id 0: calls; else that call's items. u64: bytes that may be sent in total */

enum mu_rpc_frame_type {
#define MU_RPC_FRAME_ENUM(name, number, sequenced) MU_RPC_##name = (number),
    MU_RPC_FRAME_MAP(MU_RPC_FRAME_ENUM)
#undef MU_RPC_FRAME_ENUM
};

struct mu_rpc_header {
    uint32_t len;
    uint8_t type;
    uint8_t flags; /* zero in version 1 */
    uint64_t ack;
    uint64_t id;
};

/* HELLO: u16 lowest and u16 highest version spoken, 16 bytes session, u32 life, u64 calls_credit,
 * u32 frame_bytes_max, u32 grace_ms, u32 beat_ms, u32 dead_ms, u16 length and name, u16 length and
 * credential. Where the highest version is above 1, more may follow, which version 1 skips. */
struct mu_rpc_hello {
    uint16_t version_min;
    uint16_t version_max;
    uint8_t session[MU_RPC_SESSION_LEN]; /* random, from the dialler; needed to resume it */
    /* How often the dialler saw this session welcomed as a fresh one: 0 is a new session, and a
     * server resumes only this life. A flag would not do: the WELCOME that announced a fresh start
     * can be lost with its connection. */
    uint32_t life;
    uint64_t calls_credit;    /* how many bytes of calls we take at first, counted as for CREDIT */
    uint32_t frame_bytes_max; /* the longest payload that we take */
    uint32_t grace_ms; /* how long the session should outlive a lost connection; 0: not at all */
    uint32_t beat_ms;  /* each side sends something at least this often; 0: the server's choice */
    uint32_t dead_ms;  /* an end silent for this long counts as dead; 0: the server's choice */
    struct mu_span name;
    struct mu_span credential;
    uint64_t ack; /* not of the payload: the ack of the frame's header, for mu_rpc_accepted() */
};

/* WELCOME: u16 version, u8 resumed, u8 zero, then as HELLO from calls_credit to name; the grace,
 * beat and dead times are final. After them 16 bytes incarnation: a new one means that the server
 * was restarted. At least 50 ms beat, dead two beats to an hour. */
struct mu_rpc_welcome {
    uint16_t version;
    bool resumed;
    uint64_t calls_credit;
    uint32_t frame_bytes_max;
    uint32_t grace_ms;
    uint32_t beat_ms;
    uint32_t dead_ms;
    struct mu_span name;
    uint8_t incarnation[MU_RPC_SESSION_LEN];
};

/* REFUSE, REPLY, DRAIN: i32 status (0 or a muster error code), then the payload; if the status is
 * not 0, the payload is the error's text, UTF-8. */
struct mu_rpc_status {
    int32_t status;
    struct mu_span payload;
};

/* CALL: u32 timeout_ms (0: no timeout), u32 the call's flags, u64 credit for items to the caller,
 * u8 length and method (printable ASCII without blanks), then the payload. */
#define MU_RPC_CALL_HEAD 17
struct mu_rpc_call_body {
    uint32_t timeout_ms;
    uint32_t flags;
    uint64_t item_credit; /* how many bytes of items the caller takes at first */
    struct mu_span method;
    struct mu_span payload;
};

/** Writes 24 bytes. */
void mu_rpc_header_encode(uint8_t *out, const struct mu_rpc_header *h);
/** Reads 24 bytes. MUSTER_EPROTO: an unknown type, or nonzero flags or reserved fields. */
int mu_rpc_header_decode(const uint8_t *in, struct mu_rpc_header *ret);
/** Whether frames of this type are counted and kept. */
bool mu_rpc_is_sequenced(uint8_t type);
/** The type's name, such as "CALL", or "unknown"; static. */
const char *mu_rpc_frame_name(uint8_t type);
/** Whether these bytes can name a method: 1 to 255 of them, printable ASCII without blanks. */
bool mu_rpc_is_method(struct mu_span method);

/* Each encoder appends a payload; MUSTER_ELIMIT (a name is too long, the buffer is full),
 * MUSTER_ENOMEM. Spans from decoders point into `in`; MUSTER_EPROTO for anything short, long or out
 * of range. A HELLO that does not speak version 1 is MUSTER_EVERSION, whatever else is in it. */
int mu_rpc_hello_encode(struct mu_buf *out, const struct mu_rpc_hello *h);
int mu_rpc_hello_decode(struct mu_span in, struct mu_rpc_hello *ret);
int mu_rpc_welcome_encode(struct mu_buf *out, const struct mu_rpc_welcome *w);
int mu_rpc_welcome_decode(struct mu_span in, struct mu_rpc_welcome *ret);
int mu_rpc_status_encode(struct mu_buf *out, const struct mu_rpc_status *s);
int mu_rpc_status_decode(struct mu_span in, struct mu_rpc_status *ret);
int mu_rpc_call_encode(struct mu_buf *out, const struct mu_rpc_call_body *c);
int mu_rpc_call_decode(struct mu_span in, struct mu_rpc_call_body *ret);

#endif
