/*
 * A small language model: it guesses the next character of a text from the eight before it. Each
 * character has a vector, a hidden layer looks at the eight of them, and another says how likely
 * each character is to follow. Learned by Adam. Some 58,000 numbers, and no library but libm.
 *
 * What a state is made of is here as well: the tensors have names, so that a newcomer can be given
 * them by others.
 */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include <stddef.h>
#include <stdint.h>

#define MODEL_CONTEXT 8
#define MODEL_CHARS   96 /* those that can be printed, and one for all others */
#define MODEL_VECTOR  24
#define MODEL_HIDDEN  192

enum { MODEL_LAYERS = 5 };

/* One of the things that are learned: where it begins among all numbers, and its shape. */
struct model_layer {
    const char *name;
    size_t at;
    uint64_t shape[2];
    uint32_t rank;
};

extern const struct model_layer model_layers[MODEL_LAYERS];
/* All numbers of all layers. */
#define MODEL_NUMBERS                                                                              \
    (MODEL_CHARS * MODEL_VECTOR + MODEL_CONTEXT * MODEL_VECTOR * MODEL_HIDDEN + MODEL_HIDDEN +     \
     MODEL_HIDDEN * MODEL_CHARS + MODEL_CHARS)

/* What a node must have to go on exactly where the others are. */
struct model {
    float weights[MODEL_NUMBERS];
    float mean[MODEL_NUMBERS];   /* of Adam */
    float square[MODEL_NUMBERS]; /* of Adam */
};

struct model_text {
    uint8_t *chars; /* each 0 to MODEL_CHARS - 1 */
    size_t count;
};

/** Reads a file. 0, or -1 with errno set; EINVAL: it is too short to learn from. */
int model_text_read(struct model_text *text, const char *path);

/** Every node that begins with one seed begins with one model. */
void model_init(struct model *m, uint64_t seed);
/**
 * Of a batch that all nodes know by the number of its step, this node's share: every `world`th
 * example from `rank` on. Adds to the gradient, which is of the whole batch's mean when the shares
 * of all are added up; returns this share's part of the mean loss.
 */
float model_learn(const struct model *m, const struct model_text *text, uint64_t step, size_t batch,
                  uint32_t rank, uint32_t world, float *gradient);
/** One step of Adam along the whole batch's gradient; `step` counts from 0. */
void model_step(struct model *m, const float *gradient, uint64_t step);

#endif
