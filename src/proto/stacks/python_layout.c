#include "proto/stacks/python_layout.h"

#include <muster/error.h>

#include "core/buf.h"

#define NONE MU_PYTHON_NONE

/* An offset in the runtime or an interpreter, which are large, and in any other object. */
#define FAR_MAX  (4u << 20)
#define NEAR_MAX 4096u
/* A frame is read in one piece. */
#define FRAME_MAX 256u

/* Objects of 3.8 to 3.11: the str still has its wchar_t form. */
#define OBJECTS_OLD                                                                                \
    .object_type = 8, .type_name = 24, .bytes_len = 16, .bytes_data = 32, .str_state = 32,         \
    .str_len = 16, .str_ascii = 48, .str_compact = 72
#define OBJECTS_312                                                                                \
    .object_type = 8, .type_name = 24, .bytes_len = 16, .bytes_data = 32, .str_state = 32,         \
    .str_len = 16, .str_ascii = 40, .str_compact = 56
/* Frames of 3.8 to 3.10 are objects. */
#define FRAMES_OLD                                                                                 \
    .interp_next = 0, .interp_threads = 8, .interp_gil = NONE, .gil_holder = NONE,                 \
    .gil_locked = NONE, .thread_next = 8, .thread_interp = 16, .thread_ident = 176,                \
    .thread_native = NONE, .thread_frame = 24, .thread_cframe = NONE, .cframe_frame = NONE,        \
    .frame_bytes = 112, .frame_back = 24, .frame_code = 32, .frame_owner = NONE,                   \
    .owner_shim = NONE, .frame_tlbc = NONE, .code_file = 104, .code_name = 112, .code_table = 120, \
    .code_line = 40, .code_first = NONE, .code_bytes = NONE, .code_tlbc = NONE

static const struct mu_python_layout tables[] = {
    {.minor = 8,
     .micro = NONE,
     .lines = MU_PYTHON_LNOTAB,
     .interpreters = 32,
     .current = 1368,
     .frame_at = 104,
     .frame_line = 108,
     FRAMES_OLD,
     OBJECTS_OLD},
    {.minor = 9,
     .micro = NONE,
     .lines = MU_PYTHON_LNOTAB,
     .interpreters = 32,
     .current = 568,
     .frame_at = 104,
     .frame_line = 108,
     FRAMES_OLD,
     OBJECTS_OLD},
    {.minor = 10,
     .micro = NONE,
     .lines = MU_PYTHON_LINETABLE,
     .interpreters = 32,
     .current = 568,
     .frame_at = 96,
     .frame_line = NONE,
     FRAMES_OLD,
     OBJECTS_OLD},
    {.minor = 11,
     .micro = NONE,
     .lines = MU_PYTHON_LOCATIONS,
     .interpreters = 40,
     .current = 576,
     .interp_next = 0,
     .interp_threads = 16,
     .interp_gil = NONE,
     .gil_holder = NONE,
     .gil_locked = NONE,
     .thread_next = 8,
     .thread_interp = 16,
     .thread_ident = 152,
     .thread_native = 160,
     .thread_frame = NONE,
     .thread_cframe = 56,
     .cframe_frame = 8,
     .frame_bytes = 72,
     .frame_back = 48,
     .frame_code = 32,
     .frame_at = 56,
     .frame_line = NONE,
     .frame_owner = 69,
     .owner_shim = NONE,
     .frame_tlbc = NONE,
     .code_file = 112,
     .code_name = 128,
     .code_table = 136,
     .code_line = 72,
     .code_first = 168,
     .code_bytes = 184,
     .code_tlbc = NONE,
     OBJECTS_OLD},
    {.minor = 12,
     .micro = NONE,
     .lines = MU_PYTHON_LOCATIONS,
     .interpreters = 40,
     .current = NONE,
     .interp_next = 0,
     .interp_threads = 72,
     .interp_gil = 384,
     .gil_holder = 8,
     .gil_locked = 16,
     .thread_next = 8,
     .thread_interp = 16,
     .thread_ident = 136,
     .thread_native = 144,
     .thread_frame = NONE,
     .thread_cframe = 56,
     .cframe_frame = 0,
     .frame_bytes = 72,
     .frame_back = 8,
     .frame_code = 0,
     .frame_at = 56,
     .frame_line = NONE,
     .frame_owner = 70,
     .owner_shim = 3,
     .frame_tlbc = NONE,
     .code_file = 112,
     .code_name = 128,
     .code_table = 136,
     .code_line = 68,
     .code_first = 176,
     .code_bytes = 192,
     .code_tlbc = NONE,
     OBJECTS_312},
};

const struct mu_python_layout *mu_python_layout_of(uint32_t minor)
{
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        if (tables[i].minor == minor) {
            return &tables[i];
        }
    }
    return NULL;
}

/* --- what an interpreter says of itself ------------------------------------------------------- */

/* Which of its numbers, counted from the cookie, says what. */
struct self_places {
    uint8_t interpreters, interp_next, interp_threads, interp_gil, gil_state, gil_locked,
        gil_holder;
    uint8_t thread_next, thread_interp, thread_frame, thread_ident, thread_native;
    uint8_t frame_bytes, frame_back, frame_code, frame_at, frame_owner, frame_tlbc; /* 0: none */
    uint8_t code_file, code_name, code_table, code_line, code_bytes, code_tlbc;
    uint8_t object_type, type_name, bytes_len, bytes_data;
    uint8_t str_bytes, str_state, str_len, str_ascii;
};

static const struct self_places places_313 = {
    .interpreters = 5,
    .interp_next = 8,
    .interp_threads = 9,
    .interp_gil = 14,
    .gil_state = 15,
    .gil_locked = 17,
    .gil_holder = 18,
    .thread_next = 21,
    .thread_interp = 22,
    .thread_frame = 23,
    .thread_ident = 24,
    .thread_native = 25,
    .frame_bytes = 28,
    .frame_back = 29,
    .frame_code = 30,
    .frame_at = 31,
    .frame_owner = 33,
    .code_file = 35,
    .code_name = 37,
    .code_table = 38,
    .code_line = 39,
    .code_bytes = 43,
    .object_type = 45,
    .type_name = 47,
    .bytes_len = 65,
    .bytes_data = 66,
    .str_bytes = 67,
    .str_state = 68,
    .str_len = 69,
    .str_ascii = 70,
};

static const struct self_places places_314 = {
    .interpreters = 5,
    .interp_next = 8,
    .interp_threads = 9,
    .interp_gil = 15,
    .gil_state = 16,
    .gil_locked = 18,
    .gil_holder = 19,
    .thread_next = 24,
    .thread_interp = 25,
    .thread_frame = 26,
    .thread_ident = 27,
    .thread_native = 28,
    .frame_bytes = 31,
    .frame_back = 32,
    .frame_code = 33,
    .frame_at = 34,
    .frame_owner = 36,
    .frame_tlbc = 38,
    .code_file = 40,
    .code_name = 42,
    .code_table = 43,
    .code_line = 44,
    .code_bytes = 48,
    .code_tlbc = 49,
    .object_type = 51,
    .type_name = 53,
    .bytes_len = 75,
    .bytes_data = 76,
    .str_bytes = 77,
    .str_state = 78,
    .str_len = 79,
    .str_ascii = 80,
};

struct self {
    const uint8_t *data;
    bool senseless;
};

static uint32_t offset_at(struct self *s, uint8_t place, uint32_t max)
{
    uint64_t v = mu_get_u64(s->data + (size_t)place * 8);

    if (v > max) {
        s->senseless = true;
        return 0;
    }
    return (uint32_t)v;
}

static uint32_t far(struct self *s, uint8_t place)
{
    return offset_at(s, place, FAR_MAX);
}

static uint32_t near(struct self *s, uint8_t place)
{
    return offset_at(s, place, NEAR_MAX);
}

static void read_states(struct self *s, const struct self_places *p, struct mu_python_layout *ret)
{
    uint32_t gil = far(s, p->gil_state);

    ret->interpreters = far(s, p->interpreters);
    ret->current = NONE;
    ret->interp_next = far(s, p->interp_next);
    ret->interp_threads = far(s, p->interp_threads);
    ret->interp_gil = ret->free_threaded ? NONE : far(s, p->interp_gil);
    ret->gil_locked = far(s, p->gil_locked) - gil;
    ret->gil_holder = far(s, p->gil_holder) - gil;
    if (ret->gil_locked > NEAR_MAX || ret->gil_holder > NEAR_MAX) {
        s->senseless = true;
    }
    ret->thread_next = near(s, p->thread_next);
    ret->thread_interp = near(s, p->thread_interp);
    ret->thread_ident = near(s, p->thread_ident);
    ret->thread_native = near(s, p->thread_native);
    ret->thread_frame = near(s, p->thread_frame);
    ret->thread_cframe = NONE;
    ret->cframe_frame = NONE;
}

static void read_frames(struct self *s, const struct self_places *p, struct mu_python_layout *ret)
{
    ret->frame_bytes = offset_at(s, p->frame_bytes, FRAME_MAX);
    ret->frame_back = near(s, p->frame_back);
    ret->frame_code = near(s, p->frame_code);
    ret->frame_at = near(s, p->frame_at);
    ret->frame_line = NONE;
    ret->frame_owner = near(s, p->frame_owner);
    ret->frame_tlbc = ret->free_threaded && p->frame_tlbc != 0 ? near(s, p->frame_tlbc) : NONE;
    ret->owner_shim = 3;
    ret->code_file = near(s, p->code_file);
    ret->code_name = near(s, p->code_name);
    ret->code_table = near(s, p->code_table);
    ret->code_line = near(s, p->code_line);
    ret->code_first = NONE;
    ret->code_bytes = near(s, p->code_bytes);
    ret->code_tlbc = ret->free_threaded && p->code_tlbc != 0 ? near(s, p->code_tlbc) : NONE;
}

static void read_objects(struct self *s, const struct self_places *p, struct mu_python_layout *ret)
{
    uint32_t whole = near(s, p->str_bytes);

    ret->object_type = near(s, p->object_type);
    ret->type_name = near(s, p->type_name);
    ret->bytes_len = near(s, p->bytes_len);
    ret->bytes_data = near(s, p->bytes_data);
    ret->str_state = near(s, p->str_state);
    ret->str_len = near(s, p->str_len);
    ret->str_ascii = near(s, p->str_ascii);
    ret->str_compact = whole - 8; /* all but the pointer of those that are not compact */
    if (whole < 8) {
        s->senseless = true;
    }
}

/* Whether a frame's fields are within it. */
static bool frame_fits(const struct mu_python_layout *l)
{
    return l->frame_bytes >= 8 && l->frame_back <= l->frame_bytes - 8 &&
           l->frame_code <= l->frame_bytes - 8 && l->frame_at <= l->frame_bytes - 8 &&
           l->frame_owner < l->frame_bytes &&
           (l->frame_tlbc == NONE || l->frame_tlbc <= l->frame_bytes - 8);
}

int mu_python_layout_read(struct mu_span bytes, struct mu_python_layout *ret,
                          uint32_t *reterr_version)
{
    struct mu_python_layout layout = {.lines = MU_PYTHON_LOCATIONS};
    struct self s = {.data = bytes.data};
    const struct self_places *places;
    uint32_t version;

    if (bytes.len < MU_PYTHON_SELF_BYTES ||
        !mu_span_starts_with(bytes, MU_SPAN_LIT(MU_PYTHON_COOKIE))) {
        return MUSTER_EPROTO;
    }
    version = mu_get_u32(bytes.data + 8);
    layout.minor = version >> 16 & 0xff;
    layout.micro = version >> 8 & 0xff;
    layout.free_threaded = mu_get_u64(bytes.data + 16) != 0;
    if (version >> 24 != 3 || layout.minor <= MU_PYTHON_MINOR_TABLE ||
        layout.minor > MU_PYTHON_MINOR_MAX) {
        *reterr_version = version;
        return MUSTER_ENOTSUP;
    }
    places = layout.minor == 13 ? &places_313 : &places_314;
    read_states(&s, places, &layout);
    read_frames(&s, places, &layout);
    read_objects(&s, places, &layout);
    if (s.senseless || !frame_fits(&layout)) {
        return MUSTER_EPROTO;
    }
    *ret = layout;
    return 0;
}
