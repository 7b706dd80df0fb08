/* Goal: the PyTorch that a worker will import is found without running Python, wherever the usual
 * ways of installing it put it; where it cannot be found, nothing is claimed. */
#include "unit.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/run_torch.h"

static char root[] = "/tmp/muster-torch-XXXXXX";
static char path[4][256];

static const char *below(int slot, const char *name)
{
    (void)snprintf(path[slot], sizeof(path[slot]), "%s/%s", root, name);
    return path[slot];
}

static void put(const char *name, const char *text)
{
    char whole[512];
    FILE *file;

    (void)snprintf(whole, sizeof(whole), "%s/%s", root, name);
    for (char *slash = strchr(whole + strlen(root) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        assert_true(mkdir(whole, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    file = fopen(whole, "w");
    assert_non_null(file);
    (void)fputs(text, file);
    (void)fclose(file);
    assert_int_equal(chmod(whole, 0700), 0);
}

static int forget(const char *name, const struct stat *status, int kind, struct FTW *at)
{
    (void)status;
    (void)kind;
    return at->level == 0 ? 0 : remove(name);
}

static int clear_folder(void **state)
{
    (void)state;
    return nftw(root, forget, 16, FTW_DEPTH | FTW_PHYS);
}

static void assert_torch(const char *program, const struct run_torch_env *env, int major, int minor)
{
    const char *const argv[] = {program, "-u", "train.py", NULL};
    struct run_torch found = run_torch_find(argv, env);

    if (found.major != major || found.minor != minor) {
        fail_msg("%s: %d.%d, not %d.%d", program, found.major, found.minor, major, minor);
    }
}

static void test_run_torch_beside_the_interpreter(void **state)
{
    struct run_torch_env env = {.path = below(0, "conda/bin")};

    (void)state;
    put("conda/bin/python3.11", "\177ELF");
    assert_int_equal(symlink("python3.11", below(1, "conda/bin/python3")), 0);
    assert_torch("python3", &env, 0, 0);
    put("conda/lib/python3.9/site-packages/torch/version.py", "__version__ = '1.8.0'\n");
    assert_torch("python3", &env, 0, 0); /* another Python's */
    put("conda/lib/python3.11/site-packages/torch/version.py",
        "from typing import Optional\n\n__all__ = ['__version__']\n__version__ = '2.11.0+cu130'\n");
    assert_torch("python3", &env, 2, 11);
    assert_torch(below(2, "conda/bin/python3.11"), &env, 2, 11);
    /* What PYTHONPATH names comes first. */
    put("mine/torch/version.py", "__version__ = \"1.13.1\"\n");
    env.pythonpath = below(3, "mine");
    assert_torch("python3", &env, 1, 13);
}

static void test_run_torch_of_a_virtual_environment(void **state)
{
    struct run_torch_env env = {.path = below(0, "venv/bin")};

    (void)state;
    put("system/bin/python3.12", "\177ELF");
    put("system/lib/python3/dist-packages/torch/version.py", "__version__ = '1.13.0a0'\n");
    put("venv/bin/activate", "");
    assert_int_equal(symlink(below(1, "system/bin/python3.12"), below(2, "venv/bin/python")), 0);
    assert_int_equal(symlink("python", below(3, "venv/bin/python3")), 0);
    put("venv/pyvenv.cfg", "home = /x\ninclude-system-site-packages = false\n");
    assert_torch("python3", &env, 0, 0);
    put("venv/pyvenv.cfg", "home = /x\ninclude-system-site-packages = true\n");
    assert_torch("python3", &env, 1, 13);
    put("venv/lib/python3.12/site-packages/torch/version.py", "__version__ = '2.4.1'\n");
    assert_torch("python3", &env, 2, 4);
}

static void test_run_torch_of_a_user(void **state)
{
    struct run_torch_env env = {.path = below(0, "bin"), .home = below(1, "home")};

    (void)state;
    put("bin/python3.11", "\177ELF");
    put("home/.local/lib/python3.11/site-packages/torch/version.py", "__version__ = '2.1.2'\n");
    assert_torch("python3.11", &env, 2, 1);
    put("base/lib/python3.11/site-packages/torch/version.py", "__version__ = '2.2.0'\n");
    env.userbase = below(2, "base");
    assert_torch("python3.11", &env, 2, 2);
}

static void test_run_torch_of_a_program_is_that_of_its_first_line(void **state)
{
    struct run_torch_env env = {.path = below(0, "bin")};
    char line[512];

    (void)state;
    put("bin/python3.11", "\177ELF");
    put("lib/python3.11/site-packages/torch/version.py", "__version__ = '1.12.0'\n");
    (void)snprintf(line, sizeof(line), "#!%s -u\n", below(1, "bin/python3.11"));
    put("train", line);
    assert_torch(below(2, "train"), &env, 1, 12);
    put("train", "#!/usr/bin/env -S python3.11 -u\n");
    assert_torch(below(2, "train"), &env, 1, 12);
    put("train", "#!/bin/sh\n");
    assert_torch(below(2, "train"), &env, 0, 0);
    put("train", "\177ELF");
    assert_torch(below(2, "train"), &env, 0, 0);
    assert_torch("nowhere", &env, 0, 0);
    assert_torch(below(2, "nothing"), &env, 0, 0);
}

static void test_run_torch_from_2_9_has_other_names_for_flight_recorders(void **state)
{
    (void)state;
    assert_false(run_torch_renamed_flight((struct run_torch){1, 13}));
    assert_false(run_torch_renamed_flight((struct run_torch){2, 8}));
    assert_true(run_torch_renamed_flight((struct run_torch){2, 9}));
    assert_true(run_torch_renamed_flight((struct run_torch){2, 15}));
    assert_true(run_torch_renamed_flight((struct run_torch){3, 0}));
    assert_false(run_torch_renamed_flight((struct run_torch){0, 0}));
}

static void test_run_torch_before_2_2_has_the_older_name(void **state)
{
    (void)state;
    assert_true(run_torch_is_old((struct run_torch){1, 13}));
    assert_true(run_torch_is_old((struct run_torch){2, 1}));
    assert_false(run_torch_is_old((struct run_torch){2, 2}));
    assert_false(run_torch_is_old((struct run_torch){2, 11}));
    assert_false(run_torch_is_old((struct run_torch){0, 0}));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, clear_folder)
    const struct CMUnitTest tests[] = {
        TEST(test_run_torch_beside_the_interpreter),
        TEST(test_run_torch_of_a_virtual_environment),
        TEST(test_run_torch_of_a_user),
        TEST(test_run_torch_of_a_program_is_that_of_its_first_line),
        TEST(test_run_torch_from_2_9_has_other_names_for_flight_recorders),
        TEST(test_run_torch_before_2_2_has_the_older_name),
    };
    int failed;

    if (mkdtemp(root) == NULL) {
        return 1;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)clear_folder(NULL);
    (void)rmdir(root);
    return failed;
}
