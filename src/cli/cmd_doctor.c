/* muster doctor: checks what muster is going to use, as seen from this machine. */
#include "cli/cmd_doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WORDS_MAX 64

/* --- findings --------------------------------------------------------------------------------- */

struct doctor_finding *doctor_find(struct doctor_report *r, enum doctor_level level,
                                   const char *subject, const char *format, ...)
{
    struct doctor_finding *f = &r->findings[r->count];
    va_list args;

    r->count += r->count < DOCTOR_FINDINGS_MAX - 1 ? 1 : 0; /* When the list is full, its last
                                                               finding is overwritten. */
    *f = (struct doctor_finding){.level = level};
    (void)snprintf(f->subject, sizeof(f->subject), "%s", subject);
    va_start(args, format);
    (void)vsnprintf(f->text, sizeof(f->text), format, args);
    va_end(args);
    return f;
}

void doctor_remedy(struct doctor_finding *f, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(f->remedy, sizeof(f->remedy), format, args);
    va_end(args);
}

enum doctor_level doctor_worst(const struct doctor_report *r)
{
    enum doctor_level worst = DOCTOR_OK;

    for (size_t i = 0; i < r->count; i++) {
        worst = r->findings[i].level > worst ? r->findings[i].level : worst;
    }
    return worst;
}

static const char *level_name(enum doctor_level level)
{
    switch (level) {
    case DOCTOR_OK:
        return "ok";
    case DOCTOR_NOTE:
        return "note";
    case DOCTOR_WARN:
        return "warn";
    case DOCTOR_BAD:
        return "BAD";
    }
    return "?";
}

void doctor_print(const struct doctor_report *r)
{
    int width = 8;

    for (size_t i = 0; i < r->count; i++) {
        int len = (int)strlen(r->findings[i].subject);

        width = len > width ? len : width;
    }
    for (size_t i = 0; i < r->count; i++) {
        const struct doctor_finding *f = &r->findings[i];

        printf("%-4s  %-*s  %s\n", level_name(f->level), width, f->subject, f->text);
        if (f->remedy[0] != '\0') {
            printf("%-4s  %-*s  -> %s\n", "", width, "", f->remedy);
        }
    }
}

json_t *doctor_json(const struct doctor_report *r)
{
    static const char *const levels[] = {"", "ok", "note", "warn", "bad"};
    json_t *list = json_array();

    for (size_t i = 0; i < r->count; i++) {
        const struct doctor_finding *f = &r->findings[i];
        json_t *object = json_object();
        json_t *text = json_string(f->text);

        (void)json_object_set_new(object, "level", json_string(levels[f->level]));
        (void)json_object_set_new(object, "subject", json_string(f->subject));
        (void)json_object_set_new(object, "text", text != NULL ? text : json_string("?"));
        if (f->remedy[0] != '\0') {
            json_t *remedy = json_string(f->remedy);

            (void)json_object_set_new(object, "remedy", remedy != NULL ? remedy : json_string("?"));
        }
        (void)json_array_append_new(list, object);
    }
    return list;
}

/* --- the command ------------------------------------------------------------------------------ */

int cmd_doctor(int argc, char **argv)
{
    struct doctor_options o = {0};
    bool timed = false;
    const struct cli_option options[] = {
        {"json", NULL, "print one JSON object", CLI_FLAG, &o.json, 0},
        {"ports", "PORT,...", "ports of hosts that are named without a port (29400,29500)",
         CLI_TEXT, &o.ports, 0},
        {"timeout", "TIME", "how long to wait for each answer (hosts 3s, etcd 5s)", CLI_SECONDS,
         &o.timeout, 600, .given = &timed},
        CLI_LOCK_OPTIONS(&o.lock),
    };
    const struct cli_verb verb = {
        "doctor", "[OPTIONS] [HOST[:PORT]...] | etcd URL [OPTIONS]",
        "HOST      checks this machine, and each HOST as seen from here: names, ports and what\n"
        "          answers there, round trips, packet sizes, clocks, limits\n"
        "etcd URL  checks every endpoint of an etcd cluster, etcd://HOST[,HOST...][/PREFIX]:\n"
        "          versions, health, members, latency, APIs, clocks, permissions, TLS, and\n"
        "          which API muster would use\n\n"
        "Each line is a finding; if something is wrong, the next line says what to do about it.\n"
        "Exit codes: 0 nothing is bad, 1 something is bad, 4 muster cannot use the etcd cluster.",
        options, sizeof(options) / sizeof(options[0])};
    int err = cli_parse(&verb, &argc, &argv);

    if (err != 0) {
        return err;
    }
    if (argc > WORDS_MAX) {
        return cli_usage("doctor", "name at most %d hosts", WORDS_MAX);
    }
    if (timed && o.timeout == 0) {
        return cli_usage("doctor", "--timeout must be greater than 0");
    }
    if (argc == 0 || strcmp(argv[0], "etcd") != 0) {
        return doctor_hosts(&o, (const char *const *)argv, (size_t)argc);
    }
    if (argc != 2) {
        return cli_usage("doctor",
                         "write muster doctor etcd URL; for a host named etcd, write etcd:PORT");
    }
    o.timeout = o.timeout == 0 ? 5 : o.timeout;
    return doctor_etcd(&o, argv[1]);
}
