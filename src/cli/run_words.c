/* Parses the values of options of `muster run`, and counts what the machine has. */
#include "cli/run_options.h"

#include <dirent.h>
#include <netdb.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- texts ------------------------------------------------------------------------------------ */

bool run_texts_add(struct run_texts *t, const char *text, size_t len)
{
    char **items = realloc(t->items, (t->count + 2) * sizeof(*items));
    char *copy = malloc(len + 1);

    if (items != NULL) {
        t->items = items;
    }
    if (items == NULL || copy == NULL) {
        free(copy);
        return false;
    }
    memcpy(copy, text, len);
    copy[len] = '\0';
    items[t->count++] = copy;
    items[t->count] = NULL;
    return true;
}

void run_texts_fini(struct run_texts *t)
{
    for (size_t i = 0; i < t->count; i++) {
        free(t->items[i]);
    }
    free(t->items);
    *t = (struct run_texts){0};
}

/* --- warnings --------------------------------------------------------------------------------- */

void run_warn(const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (!cli_log_is_json()) {
        (void)fprintf(stderr, "muster: %s\n", text);
    }
    cli_log_tell(MUSTER_LOG_WARN, "RUN", -1, NULL, "%s", text);
}

/* --- signals ---------------------------------------------------------------------------------- */

int run_signal_number(const char *text, size_t len)
{
    bool prefixed = len > 3 && strncmp(text, "SIG", 3) == 0;

    if (len > 0 && len <= 2 && strspn(text, "0123456789") >= len) {
        int number = text[0] - '0';

        number = len == 2 ? number * 10 + text[1] - '0' : number;
        return number <= RUN_SIGNAL_MAX ? number : 0;
    }
    if (prefixed) {
        text += 3;
        len -= 3;
    }
    for (int i = 1; i <= RUN_SIGNAL_MAX; i++) {
        const char *name = sigabbrev_np(i);

        if (name != NULL && strlen(name) == len && strncmp(name, text, len) == 0) {
            return i;
        }
    }
    return 0;
}

void run_signals_parse(const char *text, bool handled[RUN_SIGNAL_MAX + 1])
{
    for (const char *at = text; *at != '\0';) {
        size_t len;
        int number;

        at += strspn(at, ", \t");
        len = strcspn(at, ", \t");
        if (len == 0) {
            break;
        }
        number = run_signal_number(at, len);
        if (number == 0 || number == SIGKILL || number == SIGSTOP) {
            run_warn("signal %.*s is unknown or cannot be handled, and is skipped", (int)len, at);
        } else {
            handled[number] = true;
        }
        at += len;
    }
}

int run_signal_map_parse(const char *text, bool handled[RUN_SIGNAL_MAX + 1],
                         int sent_for[RUN_SIGNAL_MAX + 1])
{
    const char *at = text;

    for (;;) {
        size_t from_len = strcspn(at, "=,");
        const char *second = at + from_len + (at[from_len] == '=');
        size_t to_len = strcspn(second, ",");
        int from = run_signal_number(at, from_len);
        int to = at[from_len] == '=' ? run_signal_number(second, to_len) : 0;

        if (from == 0 || to == 0 || from == SIGKILL || from == SIGSTOP) {
            return cli_usage("run",
                             "--signal-map %s: \"%.*s\" is not SIGNAL=SIGNAL, such as USR1=TERM; "
                             "KILL and STOP cannot be mapped",
                             text, (int)(second + to_len - at), at);
        }
        handled[from] = true;
        sent_for[from] = to;
        at = second + to_len;
        if (*at == '\0') {
            return 0;
        }
        at++;
    }
}

/* --- the machine ------------------------------------------------------------------------------ */

uint32_t run_machine_count_devices(const char *visible)
{
    uint32_t count = 0;

    for (const char *at = visible;;) {
        size_t len;

        at += strspn(at, " \t");
        len = strcspn(at, ",");
        if (len == 0 || at[0] == '-') {
            return count; /* "-1", or an empty word, hides all that follow */
        }
        count++;
        at += len;
        if (*at == '\0') {
            return count;
        }
        at++;
    }
}

/* /dev/nvidia0 and so on; not nvidiactl, nvidia-uvm. */
static uint32_t count_nvidia_devices(void)
{
    DIR *dir = opendir("/dev");
    const struct dirent *entry;
    uint32_t count = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        const char *digits = entry->d_name + 6;

        if (strncmp(entry->d_name, "nvidia", 6) == 0 && digits[0] != '\0' &&
            strspn(digits, "0123456789") == strlen(digits)) {
            count++;
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return count;
}

static bool can_look_up(const char *name)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    bool known = getaddrinfo(name, NULL, &hints, &found) == 0;

    if (known) {
        freeaddrinfo(found);
    }
    return known;
}

struct run_machine run_machine_probe(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    return (struct run_machine){
        .cpus = cpus < 1 ? 1 : (uint32_t)cpus,
        .gpus = visible != NULL ? run_machine_count_devices(visible) : count_nvidia_devices(),
        .root = "",
        .allowed = run_numa_allowed(),
        .knows_name = can_look_up,
    };
}

/* --- the workers' CPUs ------------------------------------------------------------------------ */

int run_cpus_resolve(struct run_options *o, const struct run_machine *machine)
{
    static struct run_numa numa;
    struct mu_errmsg msg = {{0}};
    enum run_numa_mode mode = RUN_NUMA_NODE;
    int err;

    if (o->numa_binding == NULL) {
        return 0;
    }
    while (strcmp(run_numa_modes[mode], o->numa_binding) != 0) {
        mode++;
    }
    o->cpus = calloc(o->workers, sizeof(*o->cpus));
    if (o->cpus == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    err = run_numa_open(&numa, machine->root, getenv("CUDA_VISIBLE_DEVICES"), &machine->allowed,
                        &msg);
    for (uint32_t i = 0; i < o->workers && err == 0; i++) {
        err = run_numa_choose(&numa, mode, i, &o->cpus[i], &msg);
    }
    return err == 0 ? 0 : cli_fail(CLI_FAILED, "--numa-binding %s: %s", o->numa_binding, msg.text);
}
