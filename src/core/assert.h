/*
 * Assertions for our own bugs only. They stay on in release builds: a machine that reached a state
 * it cannot be in must not go on acknowledging writes. What the other end, a caller or the
 * environment can cause is never asserted; the function returns an error.
 */
#ifndef MU_ASSERT_H
#define MU_ASSERT_H

#define MU_ASSERT(expr) ((expr) ? (void)0 : mu_panic(__FILE__, __LINE__, #expr))

/** Prints the broken expectation to standard error and aborts. */
_Noreturn void mu_panic(const char *file, int line, const char *what);

#endif
