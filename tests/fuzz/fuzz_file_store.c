/*
 * Any file: it is loaded or refused in words, the same at once as when it grows bit by bit, and
 * what was read is what would be written.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "memory_log.h"
#include "service/store/file_cache.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool truth)
{
    if (!truth) {
        abort();
    }
}

/* Reads what the log has now; the lock is its caller's business here. */
static int load(struct mu_file_cache *c, struct memory_log *log, struct mu_errmsg *msg)
{
    int err;

    log->locked = true;
    err = mu_file_cache_read(c, &log->base, "file", log->size, msg);
    log->locked = false;
    check(c->pos <= log->size);
    check(err == 0 || (err == MUSTER_ECORRUPT && msg->text[0] != '\0'));
    return err;
}

/* Every record, decoded and encoded again, gives the same bytes. */
static void rewrite(struct mu_span in, uint64_t end)
{
    struct mu_buf out;
    size_t at = 0;

    mu_buf_init(&out, SIZE_MAX);
    while (at < end) {
        struct mu_file_record record;
        size_t used = 0;
        size_t needed = 0;

        check(mu_file_record_decode(mu_span_skip(in, at), &record, &used, &needed) == 0);
        check(mu_file_record_encode(&out, &record) == 0);
        at += used;
    }
    check(mu_span_eq(mu_buf_span(&out), mu_span(in.data, (size_t)end)));
    mu_buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct memory_log log;
    struct mu_file_cache whole;
    struct mu_file_cache grown;
    struct mu_errmsg msg;
    int err;
    int grown_err = 0;

    if (size < 1 || size - 1 > sizeof(log.data)) {
        return 0;
    }
    check(mu_file_cache_init(&whole, 1) == 0 && mu_file_cache_init(&grown, 1) == 0);
    memory_log_init(&log);
    for (size_t at = 1; at < size && grown_err == 0;) {
        size_t n = (size_t)data[0] + 1 < size - at ? (size_t)data[0] + 1 : size - at;

        memory_log_add(&log, data + at, n);
        grown_err = load(&grown, &log, &msg);
        at += n;
    }
    err = load(&whole, &log, &msg);
    check(err == grown_err && whole.pos == grown.pos && whole.map.count == grown.map.count);
    rewrite(mu_span(data + 1, log.size), whole.pos);
    mu_file_cache_fini(&whole);
    mu_file_cache_fini(&grown);
    return 0;
}
