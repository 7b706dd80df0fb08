/*
 * Which PyTorch the workers will import, found without running Python: the interpreter is sought as
 * the shell would, and torch/version.py in the folders from which that interpreter imports.
 *
 * The answer decides under which name the workers are told to handle errors of NCCL: PyTorch before
 * 2.2 knows only NCCL_ASYNC_ERROR_HANDLING, and later ones warn of that name. Where the answer is
 * not known (a program that is not Python, an interpreter with folders of its own), later ones are
 * assumed.
 */
#ifndef MU_RUN_TORCH_H
#define MU_RUN_TORCH_H

#include <stdbool.h>

struct run_torch {
    int major; /* 0: not known */
    int minor;
};

/* The variables that matter; NULL: not set. */
struct run_torch_env {
    const char *path;       /* PATH */
    const char *pythonpath; /* PYTHONPATH */
    const char *userbase;   /* PYTHONUSERBASE */
    const char *home;       /* HOME */
};

/** Finds the PyTorch of a worker's command (argv, up to a NULL): of the interpreter that it names,
 * or that its script names in its first line. */
struct run_torch run_torch_find(const char *const *argv, const struct run_torch_env *env);
/** Whether that PyTorch knows only the older name. */
bool run_torch_is_old(struct run_torch torch);
/** Whether it warns of the older names of its flight recorder's variables, as from 2.9 on. Where it
 * is not known, no. */
bool run_torch_renamed_flight(struct run_torch torch);

#endif
