/*
 * The other half of hm_tensor.py: encodes and decodes tensors in hivemind's encodings.
 *
 *     hm_tensor_recode encode|encode-raw|decode COMPRESSION DTYPE [DIMENSION...] <in >out
 *
 * `encode-raw` leaves bfloat16 as it is. Exits with 1, and says why, when it cannot be done.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/state/hm_tensor.h"

#define INPUT_MAX ((size_t)1 << 28)

static struct mu_span read_all(void)
{
    uint8_t *data = NULL;
    size_t len = 0;
    size_t cap = 0;
    size_t n;

    do {
        if (len == cap) {
            cap = cap == 0 ? 65536 : 2 * cap;
            data = cap > INPUT_MAX ? NULL : realloc(data, cap);
            if (data == NULL) {
                exit(1);
            }
        }
        n = fread(data + len, 1, cap - len, stdin);
        len += n;
    } while (n != 0);
    return mu_span(data, len);
}

static int encode(const struct mu_hm_tensor *t, struct mu_span in)
{
    struct mu_hm_encoder e;
    struct mu_hm_cursor c;
    int err = mu_hm_encoder_init(&e, t, in);

    if (err != 0) {
        (void)fprintf(stderr, "%s\n", muster_strerror(err));
        return 1;
    }
    mu_hm_cursor_init(&c);
    while (c.offset < mu_hm_encoder_len(&e)) {
        uint8_t piece[1021];
        uint64_t left = mu_hm_encoder_len(&e) - c.offset;
        size_t n = left < sizeof(piece) ? (size_t)left : sizeof(piece);

        mu_hm_encoder_read(&e, &c, piece, n);
        (void)fwrite(piece, 1, n, stdout);
    }
    mu_hm_encoder_fini(&e);
    return 0;
}

static int decode(const struct mu_hm_tensor *t, struct mu_span in)
{
    struct mu_errmsg msg = {{0}};
    uint64_t len = 0;
    int err = mu_hm_tensor_len(t, &len);
    uint8_t *out = err == 0 ? malloc((size_t)len + 1) : NULL;

    if (out == NULL || mu_hm_decode(t, in, (struct mu_space){out, (size_t)len}, &msg) != 0) {
        (void)fprintf(stderr, "%s\n", msg.text);
        free(out);
        return 1;
    }
    (void)fwrite(out, 1, (size_t)len, stdout);
    free(out);
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t shape[MU_TENSOR_RANK_MAX];
    struct mu_hm_tensor t = {.shape = shape};
    struct mu_span in;
    int code;

    if (argc < 4 || argc > 4 + MU_TENSOR_RANK_MAX ||
        !mu_hm_compression_parse(mu_span_str(argv[2]), &t.compression)) {
        (void)fprintf(stderr, "see the head of hm_tensor_recode.c\n");
        return 2;
    }
    t.dtype = mu_dtype_parse(mu_span_str(argv[3]));
    t.bfloat16_raw = strcmp(argv[1], "encode-raw") == 0;
    for (int i = 4; i < argc; i++) {
        shape[t.rank++] = strtoull(argv[i], NULL, 10);
    }
    if (t.dtype == 0) {
        (void)fprintf(stderr, "no such type: %s\n", argv[3]);
        return 2;
    }
    in = read_all();
    code = strcmp(argv[1], "decode") == 0 ? decode(&t, in) : encode(&t, in);
    free((void *)(uintptr_t)in.data);
    return code;
}
