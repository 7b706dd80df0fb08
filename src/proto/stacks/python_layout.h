/*
 * Where CPython keeps what we look for: the offsets of fields, for each minor version. The layouts
 * of 3.8 to 3.12 are tables, which hold for all their releases on 64-bit machines. From 3.13 on the
 * interpreter describes itself, in the `_Py_DebugOffsets` at the beginning of `_PyRuntime`.
 */
#ifndef MU_STACKS_PYTHON_LAYOUT_H
#define MU_STACKS_PYTHON_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/span.h"

#define MU_PYTHON_MINOR_MIN   8
#define MU_PYTHON_MINOR_MAX   14
#define MU_PYTHON_MINOR_TABLE 12 /* the last one with a table here */

/* How a code object says which line an instruction belongs to. */
enum mu_python_lines {
    MU_PYTHON_LNOTAB = 1, /* up to 3.9 */
    MU_PYTHON_LINETABLE,  /* 3.10 */
    MU_PYTHON_LOCATIONS,  /* since 3.11 */
};

/* Fields that a version does not have are MU_PYTHON_NONE. */
#define MU_PYTHON_NONE UINT32_MAX
struct mu_python_layout {
    uint32_t minor;
    uint32_t micro; /* MU_PYTHON_NONE: unknown */
    bool free_threaded;
    enum mu_python_lines lines;

    uint32_t interpreters;   /* in the runtime: the first interpreter */
    uint32_t current;        /* in the runtime: the thread state that holds the GIL; up to 3.11 */
    uint32_t interp_next;    /* in an interpreter */
    uint32_t interp_threads; /* the first thread state */
    uint32_t interp_gil;     /* a pointer to its GIL; since 3.12 */
    uint32_t gil_holder;     /* in a GIL */
    uint32_t gil_locked;

    uint32_t thread_next; /* in a thread state */
    uint32_t thread_interp;
    uint32_t thread_ident;
    uint32_t thread_native; /* the kernel's number of the thread; since 3.11 */
    uint32_t thread_frame;  /* the innermost frame, or */
    uint32_t thread_cframe; /* where that is written (3.11, 3.12): */
    uint32_t cframe_frame;

    uint32_t frame_bytes; /* of a frame, as far as we look */
    uint32_t frame_back;
    uint32_t frame_code;
    uint32_t frame_at;    /* the index of its instruction, or a pointer to it (since 3.11) */
    uint32_t frame_line;  /* the first line of its code, unless it is traced; up to 3.9 */
    uint32_t frame_owner; /* since 3.11 */
    uint32_t owner_shim;  /* owners from this one on have no code of Python's */
    uint32_t frame_tlbc;  /* of free threads: which copy of the code it runs */

    uint32_t code_file; /* in a code object */
    uint32_t code_name; /* the qualified one, since 3.11 */
    uint32_t code_table;
    uint32_t code_line;
    uint32_t code_first; /* the first instruction of a frame that is complete; 3.11, 3.12 */
    uint32_t code_bytes; /* where its instructions begin; since 3.11 */
    uint32_t code_tlbc;

    uint32_t object_type; /* in an object; the name in its type */
    uint32_t type_name;
    uint32_t bytes_len; /* in a bytes object */
    uint32_t bytes_data;
    uint32_t str_state; /* in a str */
    uint32_t str_len;
    uint32_t str_ascii;   /* how long the struct is before the characters: of an ASCII one, */
    uint32_t str_compact; /* of others; there is also where others have a pointer to them */
};

/** The table of a minor version; NULL: there is none. */
const struct mu_python_layout *mu_python_layout_of(uint32_t minor);

#define MU_PYTHON_COOKIE     "xdebugpy"
#define MU_PYTHON_SELF_BYTES (81u * 8) /* as much of what 3.14 says of itself as we look at */
/**
 * Reads what an interpreter says of itself: the MU_PYTHON_SELF_BYTES that begin with the cookie.
 * MUSTER_ENOTSUP: a version that we do not know, and `*reterr_version` is that; MUSTER_EPROTO:
 * there is no cookie, or its offsets make no sense.
 */
int mu_python_layout_read(struct mu_span self, struct mu_python_layout *ret,
                          uint32_t *reterr_version);

#endif
