/* What the URL of a backing that is another server says: tcp://HOST[:PORT], then perhaps
 * ?connect=MS&hold=no&via=HOST:PORT,... */
#ifndef MU_SERVER_GATEWAY_URL_H
#define MU_SERVER_GATEWAY_URL_H

#include "service/store/store.h"
#include "service/wire/carry.h"

struct mu_gateway_url {
    struct mu_store_tcp_config config;
    bool holds; /* it does not forbid it */
    struct mu_addr relays[MU_CARRY_RELAYS_MAX];
    size_t relay_count;
};

/** MUSTER_EURL with a text. */
int mu_gateway_url_parse(const char *text, struct mu_gateway_url *ret_url,
                         struct mu_errmsg *reterr_msg);

#endif
