/*
 * Only in a shared library that holds the libraries it needs (the option static_deps).
 *
 * libuv, LMDB and jansson: Debian compiles libuv_a.a and the like for programs, whose code reaches
 * the variables of libc in a way that a shared library's cannot. meson.build renames them in copies
 * of these files, so that they find the ones here, which nobody else sees. libuv assigns to
 * `environ` when uv_spawn() is given an environment, and libc would not see that: tools/tidy keeps
 * uv_spawn() out of src/, where children come from child_exec.c.
 *
 * OpenSSL: libcrypto would read the file openssl.cnf of the system that it was compiled for, and
 * load what that names. Where the library runs, that file may be missing, or be meant for another
 * version, and the modules are the system's: it reads none.
 */
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

extern HIDDEN FILE *mu_static_stderr;
extern HIDDEN FILE *mu_static_stdin;
extern HIDDEN char **mu_static_environ;
extern HIDDEN const struct in6_addr mu_static_in6addr_any;

FILE *mu_static_stderr;
FILE *mu_static_stdin;
char **mu_static_environ;
const struct in6_addr mu_static_in6addr_any = IN6ADDR_ANY_INIT;

static __attribute__((constructor)) void prepare(void)
{
    mu_static_stderr = stderr;
    mu_static_stdin = stdin;
    mu_static_environ = environ;
    (void)OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, NULL);
}
