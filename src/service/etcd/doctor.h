/*
 * Looks at an etcd cluster as muster would use it: each endpoint by itself, all of them at once.
 * What it finds are facts; what they mean is for the caller to say (cli/doctor_etcd.c).
 *
 *     config.endpoints = "a:2379,b:2379"; config.prefix = "/muster"; config.done = on_done;
 *     mu_etcd_doctor_start(env, &config, &doctor, &msg)     done(doctor) follows
 *     mu_etcd_doctor_free(doctor)                           from `done` on
 *
 * It writes one key below the prefix, of a random name, and takes it away again.
 */
#ifndef MU_ETCD_DOCTOR_H
#define MU_ETCD_DOCTOR_H

#include "core/env.h"
#include "core/err.h"
#include "service/etcd/etcd.h"

#define MU_ETCD_DOCTOR_TRIES   9 /* of which the median is told */
#define MU_ETCD_DOCTOR_MEMBERS 16

/* What became of a question. */
enum mu_etcd_finding {
    MU_ETCD_NOT_ASKED = 0,
    MU_ETCD_YES,
    MU_ETCD_NO,      /* it is not offered, or not so */
    MU_ETCD_REFUSED, /* we may not */
    MU_ETCD_BROKEN,  /* anything else: the words say what */
};

struct mu_etcd_exam {
    char name[MU_ADDR_HOST_MAX + 16]; /* HOST:PORT */

    /* Whether it was reached: 0, or the code with a sentence. Without it there is nothing else. */
    int status;
    struct mu_errmsg text;

    char version[32]; /* of the server, */
    char cluster_version[32];
    enum mu_etcd_finding healthy;
    struct mu_errmsg health_text;
    bool has_clock;
    int64_t clock_ms; /* ours less its own; it tells whole seconds */
    const char *v3;   /* "/v3", "/v3beta", "/v3alpha" or NULL */
    enum mu_etcd_finding v2;
    enum mu_etcd_finding auth;     /* whether it asks who we are */
    enum mu_etcd_finding password; /* whether ours is right */
    struct mu_errmsg auth_text;
    bool has_status; /* what follows up to db_bytes; 3.5 tells it only users that it knows */
    uint64_t cluster_id;
    uint64_t member_id;
    uint64_t leader_id; /* 0: it knows none */
    uint64_t db_bytes;
    enum mu_etcd_finding write3; /* may we, below the prefix, by either API */
    enum mu_etcd_finding write2;
    struct mu_errmsg write_text;
    uint32_t put_us; /* medians; 0: not measured */
    uint32_t get_us;
};

struct mu_etcd_doctor_member {
    uint64_t id;
    char name[64];
    char url[128]; /* for clients, the first */
};

struct mu_etcd_doctor {
    struct mu_etcd_exam exams[MU_ETCD_ENDPOINTS_MAX];
    size_t exam_count;
    struct mu_etcd_doctor_member members[MU_ETCD_DOCTOR_MEMBERS]; /* as the first one told them */
    size_t member_count;
    void *impl;
};

struct mu_etcd_doctor_config {
    const char *endpoints;
    const char *prefix; /* with its slash in front, and none behind */
    bool tls;
    const char *cacert;
    const char *cert;
    const char *key;
    const char *user;
    const char *password;
    uint32_t timeout_ms; /* of one question. 0: 5 s */
    void (*done)(struct mu_etcd_doctor *doctor, void *context);
    void *context;
};

/** Texts are borrowed until `done`. MUSTER_EURL in words, MUSTER_ENOMEM. */
int mu_etcd_doctor_start(struct mu_env *env, const struct mu_etcd_doctor_config *config,
                         struct mu_etcd_doctor **ret_doctor, struct mu_errmsg *reterr_msg);
void mu_etcd_doctor_free(struct mu_etcd_doctor *doctor);

#endif
