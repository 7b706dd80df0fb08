/*
 * Finds an interpreter in an executable or a library: where `_PyRuntime` and `Py_Version` are. The
 * bytes of the file are read through a struct mu_memory, whose addresses are offsets; nothing in
 * them is believed. Files of 64 bits and the machine's byte order (little-endian) are read.
 */
#ifndef MU_STACKS_ELF_H
#define MU_STACKS_ELF_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/stacks/memory.h"

#define MU_ELF_SECTIONS_MAX 256u
#define MU_ELF_SEGMENTS_MAX 64u
#define MU_ELF_SYMBOLS_MAX  (1u << 19) /* of all tables that are looked at */

struct mu_elf_python {
    uint64_t runtime; /* addresses as the file says them; 0: it is not there */
    uint64_t version;
    uint64_t base; /* the address of the byte at offset 0 of the file */
    bool fixed;    /* it is always loaded at these addresses */
};

/**
 * MUSTER_ENOENT: it has no `_PyRuntime`; MUSTER_ENOTSUP: it is a file for another kind of machine;
 * MUSTER_EPROTO: it is no such file, or damaged.
 */
int mu_elf_find_python(struct mu_memory file, struct mu_elf_python *ret);

#endif
