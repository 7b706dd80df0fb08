/* The model of examples/train.c: forward, backward, Adam. */
#include "train_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUTS (MODEL_CONTEXT * MODEL_VECTOR)

#define VECTORS_AT 0
#define W1_AT      (VECTORS_AT + MODEL_CHARS * MODEL_VECTOR)
#define B1_AT      (W1_AT + INPUTS * MODEL_HIDDEN)
#define W2_AT      (B1_AT + MODEL_HIDDEN)
#define B2_AT      (W2_AT + MODEL_HIDDEN * MODEL_CHARS)

const struct model_layer model_layers[MODEL_LAYERS] = {
    {"vectors", VECTORS_AT, {MODEL_CHARS, MODEL_VECTOR}, 2},
    {"hidden.weight", W1_AT, {INPUTS, MODEL_HIDDEN}, 2},
    {"hidden.bias", B1_AT, {MODEL_HIDDEN}, 1},
    {"output.weight", W2_AT, {MODEL_HIDDEN, MODEL_CHARS}, 2},
    {"output.bias", B2_AT, {MODEL_CHARS}, 1},
};

/* --- the text --------------------------------------------------------------------------------- */

int model_text_read(struct model_text *text, const char *path)
{
    FILE *file = fopen(path, "rb");
    size_t cap = 0;
    int c;

    *text = (struct model_text){0};
    if (file == NULL) {
        return -1;
    }
    while ((c = getc(file)) != EOF) {
        if (text->count == cap) {
            uint8_t *more;

            cap = cap == 0 ? 65536 : cap * 2;
            more = realloc(text->chars, cap);
            if (more == NULL) {
                break;
            }
            text->chars = more;
        }
        text->chars[text->count++] = (uint8_t)(c >= ' ' && c <= '~' ? c - ' ' : MODEL_CHARS - 1);
    }
    if (ferror(file) || !feof(file) || text->count < 256) {
        errno = text->count < 256 ? EINVAL : errno;
        free(text->chars);
        (void)fclose(file);
        return -1;
    }
    (void)fclose(file);
    return 0;
}

/* --- the model -------------------------------------------------------------------------------- */

/* SplitMix64: from a number that counts, one that looks drawn. */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static float draw(uint64_t seed, size_t i, float width)
{
    return ((float)(mix(seed + i) >> 40) / (float)(1 << 24) * 2.0F - 1.0F) * width;
}

void model_init(struct model *m, uint64_t seed)
{
    memset(m, 0, sizeof(*m));
    for (size_t i = 0; i < MODEL_NUMBERS; i++) {
        if (i < W1_AT) {
            m->weights[i] = draw(seed, i, 1.0F);
        } else if (i < B1_AT) {
            m->weights[i] = draw(seed, i, 1.0F / sqrtf(INPUTS));
        } else if (i >= W2_AT && i < B2_AT) {
            m->weights[i] = draw(seed, i, 1.0F / sqrtf(MODEL_HIDDEN));
        }
    }
}

/* One example on its way through the layers. */
struct pass {
    const uint8_t *context;
    float input[INPUTS];
    float hidden[MODEL_HIDDEN];
    float chance[MODEL_CHARS];
};

static void forward(const struct model *m, struct pass *p)
{
    const float *w = m->weights;
    float most = -INFINITY;
    float sum = 0;

    for (size_t i = 0; i < MODEL_CONTEXT; i++) {
        memcpy(p->input + i * MODEL_VECTOR, w + VECTORS_AT + (size_t)p->context[i] * MODEL_VECTOR,
               sizeof(float) * MODEL_VECTOR);
    }
    memcpy(p->hidden, w + B1_AT, sizeof(p->hidden));
    for (size_t i = 0; i < INPUTS; i++) {
        for (size_t k = 0; k < MODEL_HIDDEN; k++) {
            p->hidden[k] += p->input[i] * w[W1_AT + i * MODEL_HIDDEN + k];
        }
    }
    memcpy(p->chance, w + B2_AT, sizeof(p->chance));
    for (size_t i = 0; i < MODEL_HIDDEN; i++) {
        p->hidden[i] = tanhf(p->hidden[i]);
        for (size_t k = 0; k < MODEL_CHARS; k++) {
            p->chance[k] += p->hidden[i] * w[W2_AT + i * MODEL_CHARS + k];
        }
    }
    for (size_t k = 0; k < MODEL_CHARS; k++) {
        most = fmaxf(most, p->chance[k]);
    }
    for (size_t k = 0; k < MODEL_CHARS; k++) {
        p->chance[k] = expf(p->chance[k] - most);
        sum += p->chance[k];
    }
    for (size_t k = 0; k < MODEL_CHARS; k++) {
        p->chance[k] /= sum;
    }
}

static void backward(const struct model *m, struct pass *p, uint8_t target, float scale, float *g)
{
    const float *w = m->weights;
    float d_hidden[MODEL_HIDDEN];

    p->chance[target] -= 1.0F;
    for (size_t k = 0; k < MODEL_CHARS; k++) {
        p->chance[k] *= scale;
        g[B2_AT + k] += p->chance[k];
    }
    for (size_t i = 0; i < MODEL_HIDDEN; i++) {
        float d = 0;

        for (size_t k = 0; k < MODEL_CHARS; k++) {
            d += p->chance[k] * w[W2_AT + i * MODEL_CHARS + k];
            g[W2_AT + i * MODEL_CHARS + k] += p->hidden[i] * p->chance[k];
        }
        d_hidden[i] = d * (1.0F - p->hidden[i] * p->hidden[i]);
        g[B1_AT + i] += d_hidden[i];
    }
    for (size_t i = 0; i < INPUTS; i++) {
        size_t vector = VECTORS_AT + (size_t)p->context[i / MODEL_VECTOR] * MODEL_VECTOR;
        float d = 0;

        for (size_t k = 0; k < MODEL_HIDDEN; k++) {
            d += d_hidden[k] * w[W1_AT + i * MODEL_HIDDEN + k];
            g[W1_AT + i * MODEL_HIDDEN + k] += p->input[i] * d_hidden[k];
        }
        g[vector + i % MODEL_VECTOR] += d;
    }
}

float model_learn(const struct model *m, const struct model_text *text, uint64_t step, size_t batch,
                  uint32_t rank, uint32_t world, float *gradient)
{
    float scale = 1.0F / (float)batch;
    float loss = 0;

    for (size_t i = rank; i < batch; i += world) {
        size_t at = (size_t)(mix(step * batch + i) % (text->count - MODEL_CONTEXT));
        uint8_t target = text->chars[at + MODEL_CONTEXT];
        struct pass p = {.context = text->chars + at};

        forward(m, &p);
        loss -= logf(p.chance[target] + 1e-9F) * scale;
        backward(m, &p, target, scale, gradient);
    }
    return loss;
}

void model_step(struct model *m, const float *gradient, uint64_t step)
{
    const float rate = 0.003F;
    const float keep_mean = 0.9F;
    const float keep_square = 0.99F;
    float due_mean = 1.0F - powf(keep_mean, (float)(step + 1));
    float due_square = 1.0F - powf(keep_square, (float)(step + 1));

    for (size_t i = 0; i < MODEL_NUMBERS; i++) {
        float g = gradient[i];

        m->mean[i] = keep_mean * m->mean[i] + (1.0F - keep_mean) * g;
        m->square[i] = keep_square * m->square[i] + (1.0F - keep_square) * g * g;
        m->weights[i] -=
            rate * (m->mean[i] / due_mean) / (sqrtf(m->square[i] / due_square) + 1e-8F);
    }
}
