/* The battery on libuv: what a struct env_under_test needs; its context is the struct mu_uv_env. */
#ifndef MU_TEST_DRIVE_UV_H
#define MU_TEST_DRIVE_UV_H

#include "battery.h"

int drive_uv_up(struct env_under_test *eut);
void drive_uv_down(struct env_under_test *eut);
bool drive_uv_run_until(struct env_under_test *eut, bool (*done)(void *context), void *context);
/** So that a thousand connections have descriptors. */
void drive_uv_raise_files(void);

#endif
