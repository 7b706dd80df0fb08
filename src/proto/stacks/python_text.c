#include <string.h>

#include "core/buf.h"
#include "core/utf8.h"
#include "proto/stacks/python_internal.h"

/* --- str -------------------------------------------------------------------------------------- */

#define UNITS_MAX 1024u /* characters of a str that are read at most */
#define LEN_MAX   ((uint64_t)1 << 40)

struct str {
    uint64_t data; /* the address of its characters */
    uint64_t len;  /* how many */
    uint32_t width;
};

/* The bits of its state begin after those that say whether it is interned. Without a GIL these are
 * a byte or two of their own since 3.14. */
static unsigned state_shift(const struct mu_python_layout *l, uint32_t state)
{
    if (!l->free_threaded || l->minor < 14) {
        return 2;
    }
    return (state & 0xff00) != 0 ? 8 : 16;
}

static bool read_str(struct mu_python *p, uint64_t addr, struct str *ret)
{
    const struct mu_python_layout *l = &p->layout;
    uint32_t state;

    if (!mu_python_plausible(addr) || !mu_python_u64(p, addr + l->str_len, &ret->len) ||
        !mu_python_u32(p, addr + l->str_state, &state)) {
        return false;
    }
    state >>= state_shift(l, state);
    ret->width = state & 7;
    if (ret->len > LEN_MAX || (ret->width != 1 && ret->width != 2 && ret->width != 4)) {
        return false;
    }
    if ((state & 8) == 0) { /* it is not compact: its characters are elsewhere */
        return mu_python_u64(p, addr + l->str_compact, &ret->data);
    }
    ret->data = addr + ((state & 16) != 0 ? l->str_ascii : l->str_compact);
    return true;
}

static uint32_t unit_at(const uint8_t *units, uint32_t width, size_t i)
{
    return width == 1   ? units[i]
           : width == 2 ? mu_get_u16(units + 2 * i)
                        : mu_get_u32(units + 4 * i);
}

/* What cannot be written as UTF-8 becomes U+FFFD. */
static size_t put_unit(uint8_t out[4], uint32_t c)
{
    return mu_utf8_put(out, c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff) ? 0xfffd : c);
}

/* Of the units, how many at the end fit into `cap` bytes; returns the index of the first. */
static size_t fitting_tail(const uint8_t *units, uint32_t width, size_t count, size_t cap)
{
    uint8_t c[4];
    size_t size = 0;

    while (count > 0) {
        size += put_unit(c, unit_at(units, width, count - 1));
        if (size > cap) {
            break;
        }
        count--;
    }
    return count;
}

bool mu_python_str(struct mu_python *p, uint64_t addr, bool tail, uint8_t *to, size_t cap,
                   size_t *ret_len)
{
    uint8_t units[UNITS_MAX * 4];
    struct str s;
    size_t count;
    size_t len = 0;

    if (!read_str(p, addr, &s)) {
        return false;
    }
    count = s.len < UNITS_MAX ? (size_t)s.len : UNITS_MAX;
    if (!mu_python_read(p, s.data + (tail ? (s.len - count) * s.width : 0), units,
                        count * s.width)) {
        return false;
    }
    for (size_t i = tail ? fitting_tail(units, s.width, count, cap) : 0; i < count; i++) {
        uint8_t c[4];
        size_t n = put_unit(c, unit_at(units, s.width, i));

        if (n > cap - len) {
            break;
        }
        memcpy(to + len, c, n);
        len += n;
    }
    *ret_len = len;
    return true;
}

/* --- lines ------------------------------------------------------------------------------------ */

/* Bytes of the target, one after the other. */
struct bytes {
    struct mu_python *p;
    uint64_t addr;
    uint64_t left; /* after those in the buffer */
    uint8_t buf[512];
    size_t at;
    size_t len;
    bool failed;
};

static bool more(struct bytes *b)
{
    size_t n = b->left < sizeof(b->buf) ? (size_t)b->left : sizeof(b->buf);

    if (b->at < b->len) {
        return true;
    }
    if (n == 0 || b->failed) {
        return false;
    }
    b->failed = !mu_python_read(b->p, b->addr, b->buf, n);
    b->addr += n;
    b->left -= n;
    b->at = 0;
    b->len = b->failed ? 0 : n;
    return !b->failed;
}

static uint8_t next(struct bytes *b)
{
    return more(b) ? b->buf[b->at++] : 0;
}

static bool open_table(struct mu_python *p, uint64_t code, struct bytes *ret)
{
    uint64_t table;
    uint64_t len;

    if (!mu_python_u64(p, code + p->layout.code_table, &table) || !mu_python_plausible(table) ||
        !mu_python_u64(p, table + p->layout.bytes_len, &len) || len > LEN_MAX) {
        return false;
    }
    ret->p = p;
    ret->addr = table + p->layout.bytes_data;
    ret->left = len < MU_PYTHON_TABLE_MAX ? len : MU_PYTHON_TABLE_MAX;
    ret->at = ret->len = 0;
    ret->failed = false;
    return true;
}

/* Pairs: how many bytes further, how many lines further. */
static int64_t from_lnotab(struct bytes *b, int64_t line, int64_t at)
{
    int64_t addr = 0;

    while (more(b)) {
        addr += next(b);
        if (addr > at) {
            break;
        }
        line += (int8_t)next(b);
    }
    return line;
}

/* Pairs: how many bytes it covers, how many lines further; -128: these have no line. */
static int64_t from_linetable(struct bytes *b, int64_t line, int64_t at)
{
    int64_t end = 0;

    while (more(b)) {
        int8_t step;

        end += next(b);
        step = (int8_t)next(b);
        line += step == -128 ? 0 : step;
        if (at < end) {
            return step == -128 ? 0 : line;
        }
    }
    return 0;
}

/* Six bits a byte, the lowest first; the lowest bit of all is the sign. */
static int64_t signed_varint(struct bytes *b)
{
    uint64_t v = 0;
    uint8_t c = 0x40;

    for (unsigned shift = 0; (c & 0x40) != 0 && shift < 36; shift += 6) {
        c = next(b);
        v |= (uint64_t)(c & 0x3f) << shift;
    }
    return (v & 1) != 0 ? -(int64_t)(v >> 1) : (int64_t)(v >> 1);
}

/* Entries that begin with a byte of 128 or more: what form it has, and how much it covers. */
static int64_t from_locations(struct bytes *b, int64_t line, int64_t at)
{
    int64_t end = 0;

    while (more(b)) {
        uint8_t first = next(b);
        unsigned form = first >> 3 & 15;

        if ((first & 0x80) == 0) {
            continue; /* the rest of the one before */
        }
        end += 2 * ((first & 7) + 1);
        if (form == 13 || form == 14) {
            line += signed_varint(b);
        } else if (form >= 10 && form <= 12) {
            line += form - 10;
        }
        if (at < end) {
            return form == 15 ? 0 : line;
        }
    }
    return 0;
}

bool mu_python_line(struct mu_python *p, uint64_t code, int64_t at, uint32_t *ret_line)
{
    struct bytes b;
    uint32_t first;
    int64_t line;

    if (!mu_python_u32(p, code + p->layout.code_line, &first) || first > INT32_MAX ||
        !open_table(p, code, &b)) {
        return false;
    }
    if (at < 0) {
        line = first;
    } else if (p->layout.lines == MU_PYTHON_LNOTAB) {
        line = from_lnotab(&b, first, at);
    } else if (p->layout.lines == MU_PYTHON_LINETABLE) {
        line = from_linetable(&b, first, at);
    } else {
        line = from_locations(&b, first, at);
    }
    *ret_line = line > 0 && line <= INT32_MAX ? (uint32_t)line : 0;
    return !b.failed;
}
