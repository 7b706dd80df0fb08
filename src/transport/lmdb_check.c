#include "transport/lmdb_check.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "transport/lmdb_record.h"

#define LMDB_MAGIC      0xBEEFC0DEu
#define LMDB_VERSION    1u
#define LMDB_NO_PAGE    UINT64_MAX
#define LMDB_PAGE_MIN   512u
#define LMDB_PAGE_MAX   65536u
#define LMDB_DEPTH_MAX  32u
#define LMDB_META_BYTES 152u /* bytes of a meta page that have a meaning */
#define HEADER_BYTES    16u  /* at the head of every page */
#define NODE_BYTES      8u   /* at the head of every node */
#define KEY_BYTES       8u

enum {
    PAGE_BRANCH = 0x01,
    PAGE_LEAF = 0x02,
    PAGE_OVERFLOW = 0x04,
    PAGE_META = 0x08,
};

/* The kind of a tree; the other bits say how the file was opened when it was new. */
#define TREE_KIND_MASK   0x7fu
#define TREE_INTEGER_KEY 0x08u

#define NODE_BIG 0x01u /* the value is on overflow pages */

/* The root of a tree, from a meta page. */
struct root {
    uint32_t flags;
    uint32_t depth;
    uint64_t entries;
    uint64_t pgno;
};

struct meta {
    uint32_t page_size;
    uint64_t last_page;
    uint64_t txn;
    struct root free;
    struct root main;
};

/* A walk down a tree. */
struct level {
    uint8_t *page;
    uint32_t count; /* nodes in it */
    uint32_t next;  /* the next node to check */
};

struct check {
    int fd;
    uint32_t page_size;
    uint64_t last_page;
    uint8_t *used; /* one bit for each page */
    uint8_t *pages;
    struct level levels[LMDB_DEPTH_MAX];
    /* Within one tree: */
    bool free_tree;
    uint64_t entries;
    bool has_key;
    uint64_t key;   /* the last one */
    uint64_t lower; /* the least that the next key may be, by the branches above it */
    struct mu_errmsg *msg;
};

/* LMDB writes integers in the machine's byte order. */
static uint16_t get16(const uint8_t *p)
{
    uint16_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

static uint64_t get64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* The two halves of a node's size are in the machine's order as well. */
static uint32_t get_halves(const uint8_t *node)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return (uint32_t)get16(node) | (uint32_t)get16(node + 2) << 16;
#else
    return (uint32_t)get16(node + 2) | (uint32_t)get16(node) << 16;
#endif
}

static int read_at(int fd, uint64_t at, void *buf, size_t len, struct mu_errmsg *msg)
{
    size_t got = 0;

    while (got < len) {
        ssize_t n = pread(fd, (uint8_t *)buf + got, len - got, (off_t)(at + got));

        if (n > 0) {
            got += (size_t)n;
        } else if (n == 0) {
            return mu_err(msg, MUSTER_ECORRUPT, "it ends early, at byte %llu",
                          (unsigned long long)(at + got));
        } else if (errno != EINTR) {
            return mu_err(msg, MUSTER_EDISK, "it cannot be read: %s", strerror(errno));
        }
    }
    return 0;
}

/* Claims a run of pages; each may be claimed once. */
static int claim(struct check *c, uint64_t pgno, uint64_t count)
{
    if (pgno < 2 || pgno > c->last_page || count == 0 || count > c->last_page - pgno + 1) {
        return mu_err(c->msg, MUSTER_ECORRUPT, "it refers to page %llu, which does not exist",
                      (unsigned long long)pgno);
    }
    for (uint64_t i = pgno; i < pgno + count; i++) {
        if ((c->used[i / 8] >> (i % 8) & 1) != 0) {
            return mu_err(c->msg, MUSTER_ECORRUPT, "its page %llu is in use twice",
                          (unsigned long long)i);
        }
        c->used[i / 8] |= (uint8_t)(1u << (i % 8));
    }
    return 0;
}

static int bad_page(struct check *c, const uint8_t *page)
{
    return mu_err(c->msg, MUSTER_ECORRUPT, "its page %llu is malformed",
                  (unsigned long long)get64(page));
}

/* Free pages are not in use. */
static int check_free_list(struct check *c, const uint8_t *list, uint32_t len)
{
    uint64_t count = len < 8 ? UINT64_MAX : get64(list);

    if (count > len / 8 - 1) {
        return mu_err(c->msg, MUSTER_ECORRUPT, "its list of free pages is malformed");
    }
    for (uint64_t i = 1; i <= count; i++) {
        int rc = claim(c, get64(list + i * 8), 1);

        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* A value of `len` bytes on overflow pages. */
static int check_overflow(struct check *c, uint64_t pgno, uint32_t len)
{
    uint64_t count = ((uint64_t)HEADER_BYTES + len + c->page_size - 1) / c->page_size;
    uint8_t header[HEADER_BYTES];
    uint8_t *list;
    int rc = claim(c, pgno, count);

    if (rc == 0) {
        rc = read_at(c->fd, pgno * c->page_size, header, sizeof(header), c->msg);
    }
    if (rc != 0) {
        return rc;
    }
    if (get64(header) != pgno || get16(header + 10) != PAGE_OVERFLOW ||
        get32(header + 12) != count) {
        return bad_page(c, header);
    }
    if (!c->free_tree) {
        return 0;
    }
    list = mu_malloc(len);
    if (list == NULL) {
        return mu_err(c->msg, MUSTER_ENOMEM, "out of memory");
    }
    rc = read_at(c->fd, pgno * c->page_size + HEADER_BYTES, list, len, c->msg);
    if (rc == 0) {
        rc = check_free_list(c, list, len);
    }
    mu_free(list);
    return rc;
}

/* Checks one entry. `room` is how much the page has from the node to its end. */
static int check_leaf_node(struct check *c, const uint8_t *page, const uint8_t *node, size_t room)
{
    uint32_t len = get_halves(node);
    uint16_t flags = get16(node + 4);
    uint64_t key;

    if (room < NODE_BYTES + KEY_BYTES || get16(node + 6) != KEY_BYTES || (flags & ~NODE_BIG) != 0) {
        return bad_page(c, page);
    }
    key = get64(node + NODE_BYTES);
    if (key < c->lower || (c->has_key && key <= c->key)) {
        return mu_err(c->msg, MUSTER_ECORRUPT, "its keys are not in order");
    }
    c->has_key = true;
    c->key = key;
    c->entries++;
    node += NODE_BYTES + KEY_BYTES;
    room -= NODE_BYTES + KEY_BYTES;
    if ((flags & NODE_BIG) != 0) {
        return room < 8 ? bad_page(c, page) : check_overflow(c, get64(node), len);
    }
    if (len > room) {
        return bad_page(c, page);
    }
    return c->free_tree ? check_free_list(c, node, len) : 0;
}

/* Checks one way down. The first node of a branch has no key: it leads to everything smaller. */
static int check_branch_node(struct check *c, const struct level *level, const uint8_t *node,
                             size_t room, uint64_t *ret_child)
{
    *ret_child = (uint64_t)get_halves(node) | (uint64_t)get16(node + 4) << 32;
    if (level->next == 1) {
        return 0;
    }
    if (room < NODE_BYTES + KEY_BYTES || get16(node + 6) != KEY_BYTES) {
        return bad_page(c, level->page);
    }
    c->lower = get64(node + NODE_BYTES);
    if (c->has_key && c->lower <= c->key) {
        return mu_err(c->msg, MUSTER_ECORRUPT, "its branches are not in order");
    }
    return 0;
}

/* Reads a page of a tree into a level. `depth` levels are left below and with it. */
static int enter_page(struct check *c, struct level *level, uint64_t pgno, bool leaf)
{
    uint32_t lower;
    uint32_t upper;
    int rc = claim(c, pgno, 1);

    if (rc == 0) {
        rc = read_at(c->fd, pgno * c->page_size, level->page, c->page_size, c->msg);
    }
    if (rc != 0) {
        return rc;
    }
    lower = get16(level->page + 12);
    upper = get16(level->page + 14);
    if (get64(level->page) != pgno || get16(level->page + 10) != (leaf ? PAGE_LEAF : PAGE_BRANCH) ||
        lower < HEADER_BYTES || lower % 2 != 0 || upper < lower || upper > c->page_size) {
        return bad_page(c, level->page);
    }
    level->count = (lower - HEADER_BYTES) / 2;
    level->next = 0;
    if (level->count < (leaf ? 1u : 2u)) {
        return bad_page(c, level->page);
    }
    return 0;
}

static int check_tree(struct check *c, const struct root *root, bool free_tree)
{
    uint32_t at = 0;
    int rc;

    c->free_tree = free_tree;
    c->entries = 0;
    c->has_key = false;
    c->lower = 0;
    if (root->pgno == LMDB_NO_PAGE) {
        return root->depth == 0 && root->entries == 0
                   ? 0
                   : mu_err(c->msg, MUSTER_ECORRUPT, "one of its trees has lost its root");
    }
    if ((root->flags & TREE_KIND_MASK) != TREE_INTEGER_KEY) {
        return mu_err(c->msg, MUSTER_ECORRUPT, "one of its trees is of another kind (%#x)",
                      root->flags);
    }
    if (root->depth == 0 || root->depth > LMDB_DEPTH_MAX) {
        return mu_err(c->msg, MUSTER_ECORRUPT, "one of its trees is %u levels deep", root->depth);
    }
    rc = enter_page(c, &c->levels[0], root->pgno, root->depth == 1);
    while (rc == 0) {
        struct level *level = &c->levels[at];
        uint32_t upper = get16(level->page + 14);
        uint32_t offset;
        uint64_t child;

        if (level->next == level->count) {
            if (at == 0) {
                break;
            }
            at--;
            continue;
        }
        offset = get16(level->page + HEADER_BYTES + 2 * level->next++);
        if (offset < upper || offset > c->page_size - NODE_BYTES) {
            return bad_page(c, level->page);
        }
        if (at + 1 == root->depth) {
            rc = check_leaf_node(c, level->page, level->page + offset, c->page_size - offset);
            continue;
        }
        rc = check_branch_node(c, level, level->page + offset, c->page_size - offset, &child);
        if (rc == 0) {
            at++;
            rc = enter_page(c, &c->levels[at], child, at + 1 == root->depth);
        }
    }
    if (rc == 0 && c->entries != root->entries) {
        rc = mu_err(c->msg, MUSTER_ECORRUPT, "it has %llu entries but claims %llu",
                    (unsigned long long)c->entries, (unsigned long long)root->entries);
    }
    return rc;
}

static struct root parse_root(const uint8_t *p)
{
    return (struct root){.flags = get16(p + 4),
                         .depth = get16(p + 6),
                         .entries = get64(p + 32),
                         .pgno = get64(p + 40)};
}

static int read_meta(int fd, uint64_t at, uint64_t pgno, struct meta *ret, struct mu_errmsg *msg)
{
    uint8_t p[LMDB_META_BYTES];
    int rc = read_at(fd, at, p, sizeof(p), msg);

    if (rc != 0) {
        return rc;
    }
    if (get64(p) != pgno || get16(p + 10) != PAGE_META || get32(p + 16) != LMDB_MAGIC) {
        return mu_err(msg, MUSTER_ECORRUPT, "it is not an LMDB file, or its head is damaged");
    }
    if (get32(p + 20) != LMDB_VERSION) {
        return mu_err(msg, MUSTER_ECORRUPT, "it is of LMDB version %u, not %u", get32(p + 20),
                      LMDB_VERSION);
    }
    *ret = (struct meta){
        .page_size = get32(p + 40),
        .free = parse_root(p + 40),
        .main = parse_root(p + 88),
        .last_page = get64(p + 136),
        .txn = get64(p + 144),
    };
    return 0;
}

/* Picks the newest state and the one before, and checks that the file is long enough for them. */
static int pick_meta(int fd, struct meta *ret, struct meta *ret_old, struct mu_errmsg *msg)
{
    struct meta second = {0};
    struct stat st;
    int rc = read_meta(fd, 0, 0, ret, msg);

    if (rc != 0) {
        return rc;
    }
    if (ret->page_size < LMDB_PAGE_MIN || ret->page_size > LMDB_PAGE_MAX ||
        (ret->page_size & (ret->page_size - 1)) != 0) {
        return mu_err(msg, MUSTER_ECORRUPT, "its pages have %u bytes", ret->page_size);
    }
    rc = read_meta(fd, ret->page_size, 1, &second, msg);
    if (rc != 0) {
        return rc;
    }
    if (second.page_size != ret->page_size) {
        return mu_err(msg, MUSTER_ECORRUPT, "the two halves of its head differ");
    }
    *ret_old = second;
    if (ret->txn < second.txn) {
        *ret_old = *ret;
        *ret = second;
    }
    if (fstat(fd, &st) != 0) {
        return mu_err(msg, MUSTER_EDISK, "%s", strerror(errno));
    }
    if (ret->last_page < 1 || ret->last_page >= (uint64_t)st.st_size / ret->page_size) {
        return mu_err(msg, MUSTER_ECORRUPT, "it has %lld bytes and should have %llu pages of %u",
                      (long long)st.st_size, (unsigned long long)ret->last_page + 1,
                      ret->page_size);
    }
    return 0;
}

/*
 * Each state of the file has the number of its transaction in its head. LMDB keeps two states and
 * takes the one with the higher number. No checksum covers that number; a wrong one would make LMDB
 * serve the state before the last.
 */
static int check_head(const struct meta *m, int fd, struct mu_errmsg *msg)
{
    uint64_t pgno = m->main.pgno;
    uint8_t *page;
    uint64_t revision;
    uint64_t txn = 0;
    uint32_t format;
    int rc = 0;

    if (m->main.pgno == LMDB_NO_PAGE && m->txn == 1) {
        return 0; /* the one that made the file */
    }
    page = mu_malloc(m->page_size);
    if (page == NULL) {
        return mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    /* Goes down the first nodes; a link out of its page ends it. */
    for (uint32_t left = m->main.depth; left > 0 && left <= LMDB_DEPTH_MAX; left--) {
        size_t need = left == 1 ? NODE_BYTES + KEY_BYTES + MU_LMDB_HEAD_BYTES : NODE_BYTES;
        const uint8_t *node;

        rc = pgno > m->last_page ? 0 : read_at(fd, pgno * m->page_size, page, m->page_size, msg);
        if (rc != 0 || pgno > m->last_page || get16(page + HEADER_BYTES) > m->page_size - need) {
            break;
        }
        node = page + get16(page + HEADER_BYTES);
        pgno = (uint64_t)get_halves(node) | (uint64_t)get16(node + 4) << 32;
        if (left == 1) {
            (void)mu_lmdb_head_get(mu_span(node + NODE_BYTES + KEY_BYTES, MU_LMDB_HEAD_BYTES),
                                   &format, &revision, &txn);
        }
    }
    mu_free(page);
    if (rc == 0 && txn != m->txn) {
        rc = mu_err(msg, MUSTER_ECORRUPT, "its head is of transaction %llu, not of %llu",
                    (unsigned long long)txn, (unsigned long long)m->txn);
    }
    return rc;
}

int mu_lmdb_check(int fd, struct mu_errmsg *reterr_msg)
{
    struct meta meta;
    struct meta old;
    struct check c = {.fd = fd, .msg = reterr_msg};
    uint32_t depth;
    int rc = pick_meta(fd, &meta, &old, reterr_msg);

    if (rc == 0) {
        rc = check_head(&old, fd, reterr_msg);
    }
    if (rc == 0) {
        rc = check_head(&meta, fd, reterr_msg);
    }
    if (rc != 0) {
        return rc;
    }
    c.page_size = meta.page_size;
    c.last_page = meta.last_page;
    depth = meta.main.depth > meta.free.depth ? meta.main.depth : meta.free.depth;
    depth = depth > LMDB_DEPTH_MAX ? LMDB_DEPTH_MAX : depth;
    c.used = mu_calloc((size_t)(meta.last_page / 8 + 1), 1);
    c.pages = mu_malloc((size_t)depth * meta.page_size);
    if (c.used == NULL || c.pages == NULL) {
        rc = mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    } else {
        for (uint32_t i = 0; i < depth; i++) {
            c.levels[i].page = c.pages + (size_t)i * meta.page_size;
        }
        rc = check_tree(&c, &meta.main, false);
        if (rc == 0) {
            rc = check_tree(&c, &meta.free, true);
        }
    }
    mu_free(c.used);
    mu_free(c.pages);
    return rc;
}
