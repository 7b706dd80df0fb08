#include "lg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A script of one request over and over is repeated so that a batch is one slice of memory. */
#define REPEATS 128

uint8_t lg_torch_op(enum lg_proto proto, uint8_t op1)
{
    /* Generation 2 put VALIDATE in front and dropped WATCH_KEY: 0 to 6 moved up, 8 and on stayed.
     */
    return proto == LG_TORCH2 && op1 <= 6 ? (uint8_t)(op1 + 1) : op1;
}

static void append_op(struct lg_bytes *bytes, enum lg_proto proto, uint8_t op1)
{
    uint8_t op = lg_torch_op(proto, op1);
    lg_append(bytes, &op, 1);
}

static void append_text(struct lg_bytes *bytes, const char *text)
{
    lg_append(bytes, text, strlen(text));
}

/* RESP's bulk string. */
static void append_bulk(struct lg_bytes *bytes, const void *data, size_t len)
{
    char head[32];
    (void)snprintf(head, sizeof head, "$%zu\r\n", len);
    append_text(bytes, head);
    lg_append(bytes, data, len);
    append_text(bytes, "\r\n");
}

/* Keys of one length, so that all requests of a script have one length. */
static size_t shared_key(char ret_key[48], size_t index, size_t size)
{
    return (size_t)snprintf(ret_key, 48, "/bench/%08zu/%08zu", size, index);
}

static size_t own_key(char ret_key[48], const char *what, uint64_t nonce, size_t index)
{
    return (size_t)snprintf(ret_key, 48, "/%s/%016llx/%08zu", what, (unsigned long long)nonce,
                            index);
}

/* A value that differs from key to key, so that an answer for the wrong key is seen. */
static uint8_t *make_value(size_t size, uint64_t seed)
{
    uint8_t *value = lg_alloc(size + 1, 1);
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + 1;
    for (size_t i = 0; i < size; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        value[i] = (uint8_t)(x >> 32);
    }
    return value;
}

static void append_get(struct lg_script *script, enum lg_proto proto, const char *key,
                       size_t key_len, const uint8_t *value, size_t size)
{
    if (proto == LG_RESP) {
        append_text(&script->requests, "*2\r\n$3\r\nGET\r\n");
        append_bulk(&script->requests, key, key_len);
        append_bulk(&script->replies, value, size);
        return;
    }
    append_op(&script->requests, proto, LG_OP1_GET);
    lg_append_str(&script->requests, key, key_len);
    lg_append_str(&script->replies, value, size);
}

/* PyTorch's SET has no answer; an empty CHECK behind it has one, and comes after it. */
static void append_set(struct lg_script *script, enum lg_proto proto, const char *key,
                       size_t key_len, const uint8_t *value, size_t size)
{
    if (proto == LG_RESP) {
        append_text(&script->requests, "*3\r\n$3\r\nSET\r\n");
        append_bulk(&script->requests, key, key_len);
        append_bulk(&script->requests, value, size);
        append_text(&script->replies, "+OK\r\n");
        return;
    }
    append_op(&script->requests, proto, LG_OP1_SET);
    lg_append_str(&script->requests, key, key_len);
    lg_append_str(&script->requests, value, size);
    append_op(&script->requests, proto, LG_OP1_CHECK);
    lg_append_u64(&script->requests, 0);
    lg_append(&script->replies, "\0", 1);
}

static void append_add(struct lg_script *script, enum lg_proto proto, const char *key,
                       size_t key_len)
{
    if (proto == LG_RESP) {
        append_text(&script->requests, "*3\r\n$6\r\nINCRBY\r\n");
        append_bulk(&script->requests, key, key_len);
        append_bulk(&script->requests, "1", 1);
        return;
    }
    append_op(&script->requests, proto, LG_OP1_ADD);
    lg_append_str(&script->requests, key, key_len);
    lg_append_u64(&script->requests, 1);
}

static void append_cas(struct lg_script *script, enum lg_proto proto, const char *key,
                       size_t key_len, const uint8_t *from, const uint8_t *to, size_t size)
{
    append_op(&script->requests, proto, LG_OP1_CAS);
    lg_append_str(&script->requests, key, key_len);
    lg_append_str(&script->requests, from, size);
    lg_append_str(&script->requests, to, size);
    lg_append_str(&script->replies, to, size);
}

static void init_shared(struct lg_script *script, const struct lg_options *options, enum lg_op op)
{
    script->count = options->keys;
    for (size_t i = 0; i < options->keys; i++) {
        char key[48];
        size_t key_len = shared_key(key, i, options->size);
        uint8_t *value = make_value(options->size, i + 1);
        if (op == LG_GET) {
            append_get(script, options->proto, key, key_len, value, options->size);
        } else {
            append_set(script, options->proto, key, key_len, value, options->size);
        }
        free(value);
    }
}

static void init_add(struct lg_script *script, const struct lg_options *options, uint64_t nonce,
                     size_t index)
{
    char key[48];
    size_t key_len = own_key(key, "add", nonce, index);
    script->count = REPEATS;
    for (size_t i = 0; i < REPEATS; i++) {
        append_add(script, options->proto, key, key_len);
    }
}

static void init_cas(struct lg_script *script, const struct lg_options *options, uint64_t nonce,
                     size_t index)
{
    char key[48];
    size_t key_len = own_key(key, "cas", nonce, index);
    uint8_t *even = make_value(options->size, 1);
    uint8_t *odd = make_value(options->size, 2);
    script->count = REPEATS;
    for (size_t i = 0; i < REPEATS; i++) {
        append_cas(script, options->proto, key, key_len, i % 2 == 0 ? even : odd,
                   i % 2 == 0 ? odd : even, options->size);
    }
    free(even);
    free(odd);
}

void lg_script_init(struct lg_script *script, const struct lg_options *options, enum lg_op op,
                    uint64_t nonce, size_t index)
{
    memset(script, 0, sizeof *script);
    switch (op) {
    case LG_GET:
    case LG_SET:
        init_shared(script, options, op);
        break;
    case LG_ADD:
        init_add(script, options, nonce, index);
        break;
    case LG_CAS:
        init_cas(script, options, nonce, index);
        break;
    }
    script->request_len = script->requests.len / script->count;
    script->reply_len = script->replies.len / script->count;
}

void lg_script_fini(struct lg_script *script)
{
    lg_bytes_free(&script->requests);
    lg_bytes_free(&script->replies);
}

size_t lg_script_first(const struct lg_script *script, size_t index)
{
    return index * 17 % script->count;
}

void lg_script_run(const struct lg_script *script, int fd)
{
    for (size_t i = 0; i < script->count; i++) {
        lg_exchange(fd, script->requests.data + i * script->request_len, script->request_len,
                    script->replies.data + i * script->reply_len, script->reply_len);
    }
}

void lg_script_prepare(const struct lg_script *script, const struct lg_options *options, int fd,
                       uint64_t nonce, size_t index)
{
    char key[48];
    size_t key_len = own_key(key, "cas", nonce, index);
    uint8_t *even = make_value(options->size, 1);
    struct lg_script set = {.count = 1};

    (void)script;
    append_set(&set, options->proto, key, key_len, even, options->size);
    set.request_len = set.requests.len;
    set.reply_len = set.replies.len;
    lg_script_run(&set, fd);
    lg_script_fini(&set);
    free(even);
}

size_t lg_sum_reply(enum lg_proto proto, uint64_t n, uint8_t *ret_reply)
{
    if (proto != LG_RESP) {
        memcpy(ret_reply, &n, 8);
        return 8;
    }
    uint8_t digits[24];
    size_t count = 0;
    do {
        digits[count++] = (uint8_t)('0' + n % 10);
        n /= 10;
    } while (n != 0);
    size_t len = 0;
    ret_reply[len++] = ':';
    while (count > 0) {
        ret_reply[len++] = digits[--count];
    }
    ret_reply[len++] = '\r';
    ret_reply[len++] = '\n';
    return len;
}

size_t lg_probe(enum lg_proto proto, uint8_t ret_request[16], uint8_t ret_reply[16],
                size_t *ret_reply_len)
{
    if (proto == LG_RESP) {
        memcpy(ret_request, "PING\r\n", 6);
        memcpy(ret_reply, "+PONG\r\n", 7);
        *ret_reply_len = 7;
        return 6;
    }
    memset(ret_request, 0, 16);
    ret_request[0] = lg_torch_op(proto, LG_OP1_CHECK);
    ret_reply[0] = 0;
    *ret_reply_len = 1;
    return 9;
}
