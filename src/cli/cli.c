#include "cli/cli_log.h"
#include "cli/cli_time.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "codec/text/base64.h"
#include "core/printable.h"

int cli_exit_code(int err)
{
    switch (err) {
    case 0:
    case MUSTER_ERDZV_GRACEFUL:
        return CLI_OK;
    case MUSTER_ETIMEDOUT:
    case MUSTER_ERDZV_TIMEOUT:
        return CLI_TIMEOUT;
    case MUSTER_ECONN:
    case MUSTER_ENOTSTORE:
    case MUSTER_EREFUSED:
    case MUSTER_ESESSION:
    case MUSTER_EDRAIN:
    case MUSTER_ERDZV_CONN:
    case MUSTER_EDHT_NOBODY:
    case MUSTER_ENOTLS:
    case MUSTER_ETLS:
    case MUSTER_ENAME:
        return CLI_CONNECT;
    case MUSTER_ERDZV_CLOSED:
        return CLI_CLOSED;
    case MUSTER_EDISK:
    case MUSTER_ECORRUPT:
    case MUSTER_EBUSY:
    case MUSTER_EFULL:
        return CLI_STORAGE;
    case MUSTER_EADDR:
    case MUSTER_ELOCKED:
        return CLI_ADDRESS;
    case MUSTER_EURL:
    case MUSTER_EINVAL:
        return CLI_USAGE;
    case MUSTER_ENOENT:
        return CLI_NO_KEY;
    default:
        return CLI_FAILED;
    }
}

int cli_fail(int code, const char *format, ...)
{
    char said[4096];
    char text[sizeof(said)];
    char stamp[CLI_TIME_CAP];
    va_list args;

    (void)fflush(stdout);
    va_start(args, format);
    (void)vsnprintf(said, sizeof(said), format, args);
    va_end(args);
    (void)mu_printable(text, sizeof(text), mu_span_str(said), true);
    if (!cli_log_is_json()) {
        (void)fprintf(stderr, "%smuster: %s\n", cli_time_stamp(stamp), text);
    }
    cli_log_tell(MUSTER_LOG_ERROR, "FAILED", -1, json_pack("{s:i}", "exit_code", code), "%s", text);
    return code;
}

int cli_usage(const char *verb, const char *format, ...)
{
    char text[4096];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (!cli_log_is_json()) {
        (void)fprintf(stderr, "muster %s: %s; see `muster %s --help`\n", verb, text, verb);
    }
    cli_log_tell(MUSTER_LOG_ERROR, "USAGE", -1,
                 json_pack("{s:s, s:i}", "verb", verb, "exit_code", CLI_USAGE),
                 "%s; see `muster %s --help`", text, verb);
    return CLI_USAGE;
}

void cli_print_json(json_t *value)
{
    (void)json_dumpf(value, stdout, JSON_COMPACT);
    (void)fputc('\n', stdout);
    (void)fflush(stdout);
    json_decref(value);
}

void cli_put_bytes(json_t *object, const char *name, struct muster_bytes bytes)
{
    json_t *text = json_stringn(bytes.data, bytes.len);
    char longer[64];
    struct mu_buf out;

    if (text != NULL) {
        (void)json_object_set_new(object, name, text);
        return;
    }
    mu_buf_init(&out, SIZE_MAX);
    if (mu_base64_encode(&out, mu_span(bytes.data, bytes.len)) == 0) {
        (void)snprintf(longer, sizeof(longer), "%s_base64", name);
        (void)json_object_set_new(object, longer,
                                  json_stringn((const char *)mu_buf_span(&out).data, out.len));
    }
    mu_buf_fini(&out);
}

void cli_figure(bool json, const char *name, double value, int digits, const char *unit)
{
    if (json) {
        cli_print_json(json_pack("{s:s, s:f, s:s}", "name", name, "value", value, "unit", unit));
    } else {
        printf("%s %.*f %s\n", name, digits, value, unit);
    }
}

int cli_each_word(const char *list, cli_word_fn *use, void *context, struct mu_errmsg *msg)
{
    char *copy = list == NULL ? NULL : strdup(list);
    char *save = NULL;
    int err = 0;

    for (char *word = copy == NULL ? NULL : strtok_r(copy, ",", &save); word != NULL && err == 0;
         word = strtok_r(NULL, ",", &save)) {
        err = use(context, word, msg);
        if (err != 0 && msg->text[0] == '\0') {
            (void)mu_err(msg, err, "%s", muster_strerror(err));
        }
        if (err != 0 && strstr(msg->text, word) == NULL) {
            mu_err_prefix(msg, "%s", word);
        }
    }
    free(copy);
    return err;
}

int cli_use_words(const char *list, cli_word_fn *use, void *context)
{
    struct mu_errmsg msg = {""};
    int err = cli_each_word(list, use, context, &msg);

    return err == 0 ? 0 : cli_fail(err == MUSTER_EINVAL ? CLI_USAGE : CLI_ADDRESS, "%s", msg.text);
}

enum muster_log_level cli_log_level(void)
{
    const char *text = getenv("LOGLEVEL");

    if (text != NULL && strcasecmp(text, "DEBUG") == 0) {
        return MUSTER_LOG_DEBUG;
    }
    if (text != NULL && strcasecmp(text, "INFO") == 0) {
        return MUSTER_LOG_INFO;
    }
    if (text != NULL && (strcasecmp(text, "ERROR") == 0 || strcasecmp(text, "CRITICAL") == 0)) {
        return MUSTER_LOG_ERROR;
    }
    return MUSTER_LOG_WARN;
}
