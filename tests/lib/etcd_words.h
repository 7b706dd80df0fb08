/*
 * Answers of etcd made of words, for tests of its client, so that a test shows keys and revisions
 * and not base64 in JSON.
 *
 *     KEY=VALUE@REVISION           a key as it stands, created by that revision
 *     KEY=VALUE@REVISION:CREATED   created before that
 */
#ifndef MU_ETCD_WORDS_H
#define MU_ETCD_WORDS_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/text/base64.h"
#include "core/buf.h"

__attribute__((format(printf, 2, 3))) static inline void etcd_say(struct mu_buf *out,
                                                                  const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (mu_buf_append(out, mu_span_str(text)) != 0) {
        abort();
    }
}

static inline void etcd_say_base64(struct mu_buf *out, const char *name, const char *text,
                                   size_t len)
{
    etcd_say(out, "\"%s\":\"", name);
    if (mu_base64_encode(out, mu_span(text, len)) != 0) {
        abort();
    }
    etcd_say(out, "\",");
}

/* {"key":...} */
static inline void etcd_say_kv(struct mu_buf *out, const char *word)
{
    size_t key = strcspn(word, "=@");
    const char *value = word + key + (word[key] == '=' ? 1 : 0);
    size_t len = strcspn(value, "@");
    char *end = NULL;
    long long revision = strtoll(value + len + (value[len] == '@' ? 1 : 0), &end, 10);
    long long created = *end == ':' ? strtoll(end + 1, NULL, 10) : revision;

    etcd_say(out, "{");
    etcd_say_base64(out, "key", word, key);
    if (word[key] == '=') {
        etcd_say_base64(out, "value", value, len);
        etcd_say(out, "\"create_revision\":\"%lld\",", created);
    }
    etcd_say(out, "\"mod_revision\":\"%lld\"}", revision);
}

/** The answer to a read of a range. */
static inline void etcd_say_range(struct mu_buf *out, long long revision, const char *const *kvs,
                                  size_t count)
{
    etcd_say(out, "{\"header\":{\"revision\":\"%lld\"},\"kvs\":[", revision);
    for (size_t i = 0; i < count; i++) {
        etcd_say(out, "%s", i == 0 ? "" : ",");
        etcd_say_kv(out, kvs[i]);
    }
    etcd_say(out, "],\"count\":\"%zu\"}", count);
}

/** A piece of a watch, of these words: created, canceled, compacted:REVISION, why:WORD_WORD,
 * code:NUMBER, put:KV, del:KEY@REVISION. */
static inline void etcd_say_piece(struct mu_buf *out, const char *const *words, size_t count)
{
    bool events = false;

    etcd_say(out, "{\"result\":{\"header\":{\"revision\":\"1\"}");
    for (size_t i = 0; i < count; i++) {
        const char *word = words[i];
        const char *rest = word + strcspn(word, ":") + (strchr(word, ':') != NULL ? 1 : 0);
        bool put = strncmp(word, "put:", 4) == 0;

        if (put || strncmp(word, "del:", 4) == 0) {
            etcd_say(out, events ? "," : ",\"events\":[");
            events = true;
            etcd_say(out, "{%s\"kv\":", put ? "" : "\"type\":\"DELETE\",");
            etcd_say_kv(out, rest);
            etcd_say(out, "}");
        } else if (strncmp(word, "compacted:", 10) == 0) {
            etcd_say(out, ",\"canceled\":true,\"compact_revision\":\"%s\"", rest);
        } else if (strncmp(word, "why:", 4) == 0) {
            etcd_say(out, ",\"cancel_reason\":\"%s\"", rest);
        } else if (strncmp(word, "code:", 5) == 0) {
            etcd_say(out, ",\"code\":%s", rest);
        } else {
            etcd_say(out, ",\"%s\":true", word);
        }
    }
    etcd_say(out, "%s}}\n", events ? "]" : "");
}

#endif
