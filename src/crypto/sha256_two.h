/*
 * SHA-256 of two messages at a time, for processors with instructions for it. A round waits for the
 * one before it, so one message leaves such a unit idle half of the time, and a second one costs
 * next to nothing. Part of hash.h, which has the rest of the algorithm.
 */
#ifndef MU_SHA256_TWO_H
#define MU_SHA256_TWO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Whether this processor can do it. */
bool mu_sha256_two_can(void);
/** Works `count` blocks of 64 bytes into each state. Only if mu_sha256_two_can(). */
void mu_sha256_two_blocks(uint32_t a[8], const uint8_t *a_blocks, uint32_t b[8],
                          const uint8_t *b_blocks, size_t count);

#endif
