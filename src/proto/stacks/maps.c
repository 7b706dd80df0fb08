#include "proto/stacks/maps.h"

#include <string.h>

void mu_maps_init(struct mu_maps *m, struct mu_span exe)
{
    *m = (struct mu_maps){0};
    if (exe.len <= MU_MAPS_PATH_MAX) {
        memcpy(m->exe, exe.data, exe.len);
    }
}

/* Takes digits of this base off the line; false: there are none, or too many. */
static bool take_number(struct mu_span *line, unsigned base, uint64_t *ret)
{
    uint64_t v = 0;
    size_t n = 0;

    for (; n < line->len; n++) {
        uint8_t c = line->data[n];
        unsigned digit = c >= '0' && c <= '9'   ? (unsigned)c - '0'
                         : c >= 'a' && c <= 'f' ? (unsigned)c - 'a' + 10
                                                : 16;

        if (digit >= base) {
            break;
        }
        if (v > (UINT64_MAX - digit) / base) {
            return false;
        }
        v = v * base + digit;
    }
    *line = mu_span_skip(*line, n);
    *ret = v;
    return n != 0;
}

static bool take(struct mu_span *line, char c)
{
    if (line->len == 0 || line->data[0] != (uint8_t)c) {
        return false;
    }
    *line = mu_span_skip(*line, 1);
    return true;
}

static void take_word(struct mu_span *line)
{
    while (line->len != 0 && line->data[0] != ' ') {
        *line = mu_span_skip(*line, 1);
    }
}

static void take_spaces(struct mu_span *line)
{
    while (take(line, ' ')) {
    }
}

static struct mu_span name_in(struct mu_span path)
{
    for (size_t i = path.len; i-- > 0;) {
        if (path.data[i] == '/') {
            return mu_span_skip(path, i + 1);
        }
    }
    return path;
}

static void note_file(struct mu_maps_file *file, uint64_t start, struct mu_span path)
{
    if (!file->found && path.len <= MU_MAPS_PATH_MAX) {
        file->found = true;
        file->start = start;
        memcpy(file->path, path.data, path.len);
        file->path[path.len] = '\0';
    }
}

/* START-END PERMS OFFSET DEVICE INODE      PATH */
static void read_line(struct mu_maps *m, struct mu_span line)
{
    uint64_t start;
    uint64_t end;
    uint64_t offset;

    if (!take_number(&line, 16, &start) || !take(&line, '-') || !take_number(&line, 16, &end) ||
        end < start || !take(&line, ' ')) {
        return;
    }
    take_word(&line);
    if (!take(&line, ' ') || !take_number(&line, 16, &offset) || offset != 0) {
        return;
    }
    for (int i = 0; i < 2; i++) { /* the device, the inode */
        take_spaces(&line);
        take_word(&line);
    }
    take_spaces(&line);
    if (line.len == 0 || line.data[0] != '/') {
        return;
    }
    if (mu_span_eq(line, mu_span_str(m->exe))) {
        note_file(&m->program, start, line);
    } else if (mu_span_starts_with(name_in(line), MU_SPAN_LIT("libpython3.")) ||
               mu_span_starts_with(name_in(line), MU_SPAN_LIT("python3."))) {
        note_file(&m->library, start, line);
    }
}

void mu_maps_feed(struct mu_maps *m, struct mu_span in)
{
    for (size_t i = 0; i < in.len; i++) {
        if (in.data[i] == '\n') {
            if (!m->skip) {
                read_line(m, mu_span(m->line, m->len));
            }
            m->len = 0;
            m->skip = false;
        } else if (m->len < sizeof(m->line)) {
            m->line[m->len++] = (char)in.data[i];
        } else {
            m->skip = true;
        }
    }
}

uint32_t mu_maps_version(const char *path)
{
    static const char mark[] = "python3.";
    struct mu_span name = name_in(mu_span_str(path));
    uint64_t minor;

    while (name.len != 0 && !mu_span_starts_with(name, MU_SPAN_LIT(mark))) {
        name = mu_span_skip(name, 1);
    }
    if (name.len == 0) {
        return 0;
    }
    name = mu_span_skip(name, sizeof(mark) - 1);
    return take_number(&name, 10, &minor) && minor <= 255 ? 0x03000000u | (uint32_t)minor << 16 : 0;
}
