#include "codec/lock/tls_hello.h"

#include <muster/error.h>

#define RECORD_HEAD  5
#define MESSAGE_HEAD 4
#define HANDSHAKE    22
#define CLIENT_HELLO 1

/* A message may be split into several records (RFC 8446, 5.1), which must not be empty. */
int mu_tls_hello_scan(struct mu_span in)
{
    uint8_t head[MESSAGE_HEAD] = {0};
    size_t have = 0; /* of the message */
    size_t want = MESSAGE_HEAD;
    size_t wire = 0; /* of the records before this one */

    for (;;) {
        struct mu_span record = mu_span_skip(in, wire < in.len ? wire : in.len);
        size_t len;

        if (record.len >= 1 && record.data[0] != HANDSHAKE) {
            return MUSTER_ECORRUPT;
        }
        if (record.len < RECORD_HEAD) {
            return 0;
        }
        len = (size_t)record.data[3] << 8 | record.data[4];
        wire += RECORD_HEAD + len;
        if (len == 0 || wire > MU_TLS_HELLO_MAX) {
            return MUSTER_ECORRUPT;
        }
        record = mu_span_skip(record, RECORD_HEAD);
        for (size_t i = 0; i < len && i < record.len && have + i < MESSAGE_HEAD; i++) {
            head[have + i] = record.data[i];
        }
        have += len < record.len ? len : record.len;
        if (have >= 1 && head[0] != CLIENT_HELLO) {
            return MUSTER_ECORRUPT;
        }
        if (have >= MESSAGE_HEAD) {
            want = MESSAGE_HEAD + ((size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3]);
        }
        if (want > MU_TLS_HELLO_MAX) {
            return MUSTER_ECORRUPT;
        }
        if (record.len < len) {
            return 0;
        }
        if (have >= want) {
            return have == want ? 1 : MUSTER_ECORRUPT;
        }
    }
}
