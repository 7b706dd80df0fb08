/*
 * What the tests of real children share: beasts (children that write down what they are told), a
 * private copy of tests/lib/zoo, and a look at /proc that says what is left of it.
 */
#ifndef MU_TEST_ZOO_RIG_H
#define MU_TEST_ZOO_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/env.h"
#include "skipped.h"
#include "transport/uv_env.h"

extern struct mu_uv_env *zoo_uv;
extern struct mu_env *zoo_env;
extern char zoo_dir[64];   /* a directory of our own; all of it goes at the end */
extern char zoo_path[128]; /* the copy of the program in it, so that its processes are ours alone */

#define BEAST_TEXT_MAX 65536

/* For what always comes, on a machine with much else to do; who waits longer hangs. */
#define ZOO_PATIENCE_MS 60000

struct beast {
    struct mu_child child;
    char story[256]; /* what was told, a letter each: s S(failed) o e O E(ends) x g */
    size_t story_len;
    char text[2][BEAST_TEXT_MAX]; /* stdout, stderr: the beginning of it */
    size_t text_len[2];
    uint64_t bytes[2];
    size_t use_max; /* uses no more of each delivery; 0: all */
    bool rests;     /* uses nothing, until told otherwise */
    bool started;
    bool exited;
    bool gone;
    int start_status;
    int status;
    int kill_on_exit; /* sends this to its family when it has exited; 0: nothing */
    void (*on_started)(struct beast *b);
};

/** Makes the directory and the copy. `program` is the path of the zoo. */
void zoo_open(const char *program);
/** Removes them. */
void zoo_close(void);
/** A fresh environment, for one test. */
int zoo_up(void **state);
int zoo_down(void **state);
/** Skips the test, and says why, where no cgroup can be made that is killed whole. */
void zoo_skip_without_cgroups(void);

/** Starts a beast that does what the arguments say, up to a NULL; both its streams come to us. */
void beast_start(struct beast *b, ...);
/** The same by a list; `what` is filled in but for argv and envp. */
int beast_spawn(struct beast *b, struct mu_spawn *what, const char *const *argv);
void beast_init(struct beast *b);
/** Runs the loop until the flag is set; fails the test if that never happens. */
void zoo_run_until(const bool *flag);
void zoo_run_ms(uint64_t ms);
/** Runs the loop until `text` was written to standard output. */
void beast_run_until_said(struct beast *b, const char *text);

/** How many processes of the zoo live. Zombies do not count, nor does a process that has given back
 * its memory but not yet ended: to others it still is one. */
size_t zoo_count(void);
/** How many of these have an empty environment. */
size_t zoo_count_scrubbed(void);
/** Ends those, so that a test that failed is alone with it. */
int zoo_kill_left(void **state);
/** Runs the loop until that many live. */
void zoo_run_until_count(size_t count);
/** How many children the process has, by /proc, watchers left out; zombies count. */
size_t zoo_children_of(int64_t pid);
/** The watcher of a process, or 0. */
int64_t zoo_watcher_of(int64_t pid);
/** Asks until nothing of the zoo lives, without running the loop; false if something stays. */
bool zoo_empties(void);
/** Nothing lives, no zombie is left, no cgroup. */
void zoo_assert_empty(void);

#endif
