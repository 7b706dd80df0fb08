/* A libcurl that is too old, of which no function but one may be called. */
#include <stdlib.h>

#include "transport/uv_curl.h"

#undef curl_easy_getinfo
#undef curl_easy_setopt
#undef curl_multi_setopt

curl_version_info_data *curl_version_info(CURLversion age)
{
    static curl_version_info_data data = {.version = "7.61.1", .version_num = 0x073d01};

    (void)age;
    return &data;
}

#define ABORTS(name)                                                                               \
    void old_##name(void) __asm__("curl_" #name);                                                  \
    void old_##name(void)                                                                          \
    {                                                                                              \
        abort();                                                                                   \
    }
ABORTS(easy_cleanup)
ABORTS(easy_getinfo)
ABORTS(easy_init)
ABORTS(easy_pause)
ABORTS(easy_setopt)
ABORTS(easy_strerror)
ABORTS(global_init)
ABORTS(multi_add_handle)
ABORTS(multi_assign)
ABORTS(multi_cleanup)
ABORTS(multi_info_read)
ABORTS(multi_init)
ABORTS(multi_remove_handle)
ABORTS(multi_setopt)
ABORTS(multi_socket_action)
ABORTS(slist_append)
ABORTS(slist_free_all)
