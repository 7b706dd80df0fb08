/*
 * libcurl, loaded when the first HTTP request is made: a process that never asks etcd anything
 * needs no libcurl, and does not wait at its start until libcurl's two dozen libraries are there.
 *
 *     err = mu_uv_curl_load(&text);        any thread, as often as it likes
 *     easy = mu_uv_curl.easy_init();       what is curl_easy_init() in libcurl's manual
 *
 * The headers of libcurl are needed to build, for its types and constants. The arguments of
 * easy_setopt are not checked by the compiler: what libcurl's manual calls a long must be a long.
 */
#ifndef MU_UV_CURL_H
#define MU_UV_CURL_H

#include <curl/curl.h>

#include "core/err.h"

/* The oldest that was tried. Before 7.87 it does not know every option that is set; uv_http.c says
 * what that costs. */
#define MU_UV_CURL_OLDEST      0x074a00u
#define MU_UV_CURL_OLDEST_TEXT "7.74"

#define MU_UV_CURL_FUNCTIONS(X)                                                                    \
    X(easy_cleanup)                                                                                \
    X(easy_getinfo)                                                                                \
    X(easy_init)                                                                                   \
    X(easy_pause)                                                                                  \
    X(easy_setopt)                                                                                 \
    X(easy_strerror)                                                                               \
    X(global_init)                                                                                 \
    X(multi_add_handle)                                                                            \
    X(multi_assign)                                                                                \
    X(multi_cleanup)                                                                               \
    X(multi_info_read)                                                                             \
    X(multi_init)                                                                                  \
    X(multi_remove_handle)                                                                         \
    X(multi_setopt)                                                                                \
    X(multi_socket_action)                                                                         \
    X(slist_append)                                                                                \
    X(slist_free_all)                                                                              \
    X(version_info)

struct mu_uv_curl {
#define MU_UV_CURL_MEMBER(name) __typeof__(curl_##name) *name;
    MU_UV_CURL_FUNCTIONS(MU_UV_CURL_MEMBER)
#undef MU_UV_CURL_MEMBER
};

/* Its functions may be called once mu_uv_curl_load() has returned 0. */
extern struct mu_uv_curl mu_uv_curl;

/**
 * Loads and initializes libcurl, once for the process; later calls have the first one's result. It
 * stays loaded. MUSTER_ENOTSUP: there is no libcurl that can be used, with a text that names the
 * packages that have it. The text is static.
 */
int mu_uv_curl_load(const char **reterr_text);

#endif
