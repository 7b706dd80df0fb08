#include "proto/stacks/elf.h"

#include <string.h>

#include <muster/error.h>

#include "core/buf.h"

/* The sizes of the format's structs, and where their fields are. */
#define HEADER_BYTES  64
#define SEGMENT_BYTES 56
#define SECTION_BYTES 64
#define SYMBOL_BYTES  24
#define SYMBOLS_READ  128 /* at a time */

enum {
    TYPE_EXEC = 2,
    SEGMENT_LOAD = 1,
    SECTION_SYMTAB = 2,
    SECTION_DYNSYM = 11,
    SYMBOL_OBJECT = 1,
};

struct section {
    uint32_t name;
    uint32_t type;
    uint64_t addr;
    uint64_t offset;
    uint64_t size;
    uint32_t link;
};

struct elf {
    struct mu_memory file;
    uint64_t sections; /* their offset */
    uint32_t section_count;
    uint32_t names; /* which section has their names */
    uint64_t symbols_left;
};

static bool read_section(const struct elf *e, uint32_t i, struct section *ret)
{
    uint8_t b[SECTION_BYTES];

    if (i >= e->section_count ||
        !mu_memory_read(&e->file, e->sections + (uint64_t)i * SECTION_BYTES, b, sizeof(b))) {
        return false;
    }
    *ret = (struct section){
        .name = mu_get_u32(b),
        .type = mu_get_u32(b + 4),
        .addr = mu_get_u64(b + 16),
        .offset = mu_get_u64(b + 24),
        .size = mu_get_u64(b + 32),
        .link = mu_get_u32(b + 40),
    };
    return true;
}

/* Whether the text at `at` of a section of texts is this one. */
static bool text_is(const struct elf *e, const struct section *texts, uint32_t at, const char *text)
{
    char b[16];
    size_t len = strlen(text) + 1;

    return len <= sizeof(b) && at <= texts->size && len <= texts->size - at &&
           mu_memory_read(&e->file, texts->offset + at, b, len) && memcmp(b, text, len) == 0;
}

/* --- symbols ---------------------------------------------------------------------------------- */

static void look_at_symbol(const struct elf *e, const struct section *texts, const uint8_t *symbol,
                           struct mu_elf_python *found)
{
    uint64_t size = mu_get_u64(symbol + 16);
    uint64_t value = mu_get_u64(symbol + 8);

    if ((symbol[4] & 15) != SYMBOL_OBJECT || value == 0) {
        return;
    }
    if (size > 256 && found->runtime == 0 && text_is(e, texts, mu_get_u32(symbol), "_PyRuntime")) {
        found->runtime = value;
    } else if (size == 8 && found->version == 0 &&
               text_is(e, texts, mu_get_u32(symbol), "Py_Version")) {
        found->version = value;
    }
}

static void look_at_symbols(struct elf *e, const struct section *table, struct mu_elf_python *found)
{
    uint8_t b[SYMBOLS_READ * SYMBOL_BYTES];
    struct section texts;
    uint64_t count = table->size / SYMBOL_BYTES;

    if (!read_section(e, table->link, &texts)) {
        return;
    }
    count = count < e->symbols_left ? count : e->symbols_left;
    e->symbols_left -= count;
    for (uint64_t i = 0; i < count && (found->runtime == 0 || found->version == 0);
         i += SYMBOLS_READ) {
        size_t n = count - i < SYMBOLS_READ ? (size_t)(count - i) : SYMBOLS_READ;

        if (!mu_memory_read(&e->file, table->offset + i * SYMBOL_BYTES, b, n * SYMBOL_BYTES)) {
            return;
        }
        for (size_t j = 0; j < n; j++) {
            look_at_symbol(e, &texts, b + j * SYMBOL_BYTES, found);
        }
    }
}

/* Since 3.13 the runtime has a section of its own, also where there are no symbols. */
static void look_at_sections(struct elf *e, uint32_t type, struct mu_elf_python *found)
{
    struct section names;
    bool named = read_section(e, e->names, &names);

    for (uint32_t i = 0; i < e->section_count; i++) {
        struct section s;

        if (!read_section(e, i, &s)) {
            return;
        }
        if (s.type == type && (type == SECTION_DYNSYM || found->runtime == 0)) {
            look_at_symbols(e, &s, found);
        } else if (named && found->runtime == 0 && s.addr != 0 &&
                   text_is(e, &names, s.name, ".PyRuntime")) {
            found->runtime = s.addr;
        }
    }
}

/* --- the file --------------------------------------------------------------------------------- */

/* The address of the file's first byte: by the first segment that is loaded. */
static bool find_base(const struct elf *e, uint64_t segments, uint32_t count, uint64_t *ret)
{
    for (uint32_t i = 0; i < count && i < MU_ELF_SEGMENTS_MAX; i++) {
        uint8_t b[SEGMENT_BYTES];

        if (!mu_memory_read(&e->file, segments + (uint64_t)i * SEGMENT_BYTES, b, sizeof(b))) {
            return false;
        }
        if (mu_get_u32(b) == SEGMENT_LOAD) {
            *ret = mu_get_u64(b + 16) - mu_get_u64(b + 8);
            return true;
        }
    }
    return false;
}

int mu_elf_find_python(struct mu_memory file, struct mu_elf_python *ret)
{
    static const uint8_t magic[4] = {0x7f, 'E', 'L', 'F'};
    struct mu_elf_python found = {0};
    struct elf e = {.file = file, .symbols_left = MU_ELF_SYMBOLS_MAX};
    uint8_t h[HEADER_BYTES];

    if (!mu_memory_read(&file, 0, h, sizeof(h)) || memcmp(h, magic, sizeof(magic)) != 0) {
        return MUSTER_EPROTO;
    }
    if (h[4] != 2 || h[5] != 1) { /* 64 bits, little-endian */
        return MUSTER_ENOTSUP;
    }
    if (mu_get_u16(h + 54) != SEGMENT_BYTES || mu_get_u16(h + 58) != SECTION_BYTES) {
        return MUSTER_EPROTO;
    }
    e.sections = mu_get_u64(h + 40);
    e.section_count = mu_get_u16(h + 60);
    e.names = mu_get_u16(h + 62);
    if (e.section_count > MU_ELF_SECTIONS_MAX) {
        e.section_count = MU_ELF_SECTIONS_MAX;
    }
    found.fixed = mu_get_u16(h + 16) == TYPE_EXEC;
    if (!find_base(&e, mu_get_u64(h + 32), mu_get_u16(h + 56), &found.base)) {
        return MUSTER_EPROTO;
    }
    look_at_sections(&e, SECTION_DYNSYM, &found);
    look_at_sections(&e, SECTION_SYMTAB, &found);
    if (found.runtime == 0) {
        return MUSTER_ENOENT;
    }
    *ret = found;
    return 0;
}
