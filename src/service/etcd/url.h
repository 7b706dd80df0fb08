/*
 * Clients of etcd by URL, for whatever stands on etcd:
 *
 *     etcd://HOST[:PORT][,HOST[:PORT]...][/PREFIX][?tls=true&cacert=F&cert=F&key=F&user=U&
 *                                                   password_file=F]
 *
 * Parameters that are somebody else's are left alone here.
 */
#ifndef MU_ETCD_URL_H
#define MU_ETCD_URL_H

#include "core/url.h"
#include "service/etcd/etcd.h"

/**
 * A client of the cluster that the URL names; what the URL does not say is as in `defaults`. The
 * password is the first line of the file that password_file names. MUSTER_EURL in words,
 * MUSTER_ENOMEM.
 */
int mu_etcd_new_url(struct mu_env *env, const struct mu_url *url,
                    const struct mu_etcd_config *defaults, struct mu_etcd **ret_etcd,
                    struct mu_errmsg *reterr_msg);
/** The path as the beginning of keys: with its slash in front and none behind, or `fallback` where
 * there is none. MUSTER_EURL: it does not fit. */
int mu_etcd_url_prefix(const struct mu_url *url, const char *fallback, char *buf, size_t cap,
                       struct mu_errmsg *reterr_msg);

#endif
