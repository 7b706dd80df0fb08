#include "service/agent/env.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/alloc.h"
#include "core/buf.h"

#define ENV_BYTES_MAX ((size_t)64 << 20) /* far beyond what the kernel takes */
#define OWN_MAX       40
#define FLIGHT_SIZE   "2000" /* entries that are kept, as PyTorch has it by default since 2.9 */

const char *mu_agent_env_get(const char *const *envp, const char *name)
{
    size_t len = strlen(name);

    for (; *envp != NULL; envp++) {
        if (strncmp(*envp, name, len) == 0 && (*envp)[len] == '=') {
            return *envp + len + 1;
        }
    }
    return NULL;
}

/* --- lists ------------------------------------------------------------------------------------ */

/* Makes one block of pointers and texts out of consecutive texts. */
static int make_list(struct mu_buf *texts, size_t count, const char *const **ret_list)
{
    struct mu_span s = mu_buf_span(texts);
    const char **list = mu_malloc((count + 1) * sizeof(*list) + s.len);
    char *at;

    if (list == NULL) {
        return MUSTER_ENOMEM;
    }
    at = (char *)(list + count + 1);
    if (s.len != 0) {
        memcpy(at, s.data, s.len);
    }
    for (size_t i = 0; i < count; i++) {
        list[i] = at;
        at += strlen(at) + 1;
    }
    list[count] = NULL;
    *ret_list = list;
    return 0;
}

/* The variables that are set here, in the order they are set. */
struct own {
    struct mu_buf texts;
    const char *names[OWN_MAX];
    size_t count;
    int err;
};

static void put(struct own *o, const char *name, const char *value)
{
    size_t name_len = strlen(name);
    size_t value_len = strlen(value);

    if (o->err == 0) {
        o->err = mu_buf_reserve(&o->texts, name_len + value_len + 2);
    }
    if (o->err == 0) {
        mu_buf_put(&o->texts, mu_span(name, name_len));
        mu_buf_put_u8(&o->texts, '=');
        mu_buf_put(&o->texts, mu_span(value, value_len + 1));
        o->names[o->count++] = name;
    }
}

static void put_number(struct own *o, const char *name, uint64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof(text), "%" PRIu64, value);
    put(o, name, text);
}

static void put_default(struct own *o, const struct mu_agent_env *e, const char *name,
                        const char *value)
{
    const char *inherited = mu_agent_env_get(e->inherited, name);

    put(o, name, inherited != NULL ? inherited : value);
}

/* Variables that would mislead a worker if it inherited them from the agent. */
static bool is_dropped(const char *name, size_t len)
{
    static const char *const dropped[] = {"MUSTER_NOTIFY_FD", "MUSTER_VAULTS"};

    for (size_t i = 0; i < sizeof(dropped) / sizeof(dropped[0]); i++) {
        if (strlen(dropped[i]) == len && memcmp(dropped[i], name, len) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_own(const struct own *o, const char *text)
{
    size_t len = strcspn(text, "=");

    for (size_t i = 0; i < o->count; i++) {
        if (strlen(o->names[i]) == len && memcmp(o->names[i], text, len) == 0) {
            return true;
        }
    }
    return is_dropped(text, len);
}

/* --- the environment -------------------------------------------------------------------------- */

static void put_ranks(struct own *o, const struct mu_agent_env *e, uint32_t local_rank)
{
    put_number(o, "LOCAL_RANK", e->virtual_local_rank ? 0 : local_rank);
    put_number(o, "RANK", (uint64_t)e->ranks.base + local_rank);
    put_number(o, "GROUP_RANK", e->group_rank);
    put_number(o, "ROLE_RANK", (uint64_t)e->ranks.role_base + local_rank);
    put(o, "ROLE_NAME", e->role);
    put_number(o, "LOCAL_WORLD_SIZE", e->workers);
    put_number(o, "WORLD_SIZE", e->ranks.world);
    put_number(o, "GROUP_WORLD_SIZE", e->group_world);
    put_number(o, "ROLE_WORLD_SIZE", e->ranks.role_world);
}

static void put_elastic(struct own *o, const struct mu_agent_env *e, const char *error_file)
{
    put(o, "MASTER_ADDR", e->master_addr);
    put_number(o, "MASTER_PORT", e->master_port);
    put_number(o, "TORCHELASTIC_RESTART_COUNT", e->restart_count);
    put_number(o, "TORCHELASTIC_MAX_RESTARTS", e->restarts_max);
    put(o, "TORCHELASTIC_RUN_ID", e->run_id);
    put(o, "TORCHELASTIC_USE_AGENT_STORE", e->use_agent_store ? "True" : "False");
    put_default(o, e, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
    put(o, "TORCHELASTIC_ERROR_FILE", error_file);
    if (e->signals_to_handle != NULL) {
        put(o, "TORCHELASTIC_SIGNALS_TO_HANDLE", e->signals_to_handle);
    }
    if (e->workers > 1) {
        put_default(o, e, "OMP_NUM_THREADS", "1");
    }
}

/* Under one of two names, unless either is inherited: all versions know the older one, of which
 * later ones warn. */
static void put_renamed(struct own *o, const struct mu_agent_env *e, const char *older,
                        const char *later, const char *value)
{
    if (mu_agent_env_get(e->inherited, older) == NULL &&
        mu_agent_env_get(e->inherited, later) == NULL) {
        put(o, e->flight_renamed ? later : older, value);
    }
}

static void put_flight(struct own *o, const struct mu_agent_env *e)
{
    struct mu_agent_env_flight flight = mu_agent_env_flight(e->inherited, e->flight);

    if (flight.pipe == NULL) {
        return;
    }
    put(o, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", flight.pipe);
    put_default(o, e, "TORCH_NCCL_DUMP_ON_TIMEOUT", "1");
    put_renamed(o, e, "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE", FLIGHT_SIZE);
    put_renamed(o, e, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE", e->flight);
}

struct mu_agent_env_flight mu_agent_env_flight(const char *const *inherited, const char *flight)
{
    struct mu_agent_env_flight f = {0};

    if (flight == NULL) {
        return f;
    }
    f.pipe = mu_agent_env_get(inherited, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE");
    f.pipe = f.pipe == NULL ? flight : f.pipe[0] == '\0' ? NULL : f.pipe;
    f.dumps[0] = mu_agent_env_get(inherited, "TORCH_FR_DUMP_TEMP_FILE");
    f.dumps[1] = mu_agent_env_get(inherited, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE");
    if (f.dumps[0] == NULL && f.dumps[1] == NULL) {
        f.dumps[1] = flight;
    }
    return f;
}

static void put_muster(struct own *o, const struct mu_agent_env *e)
{
    char text[40];
    int len = snprintf(text, sizeof(text), "%" PRIu64 ".%03" PRIu64, e->grace_ms / 1000,
                       e->grace_ms % 1000);

    /* Trailing zeros are cut: "30", "0.25". */
    while (text[len - 1] == '0') {
        text[--len] = '\0';
    }
    if (text[len - 1] == '.') {
        text[--len] = '\0';
    }
    put_number(o, "MUSTER_ROUND", e->round);
    put(o, "MUSTER_GRACE", text);
    if (e->notify_fd >= 0) {
        put_number(o, "MUSTER_NOTIFY_FD", (uint64_t)e->notify_fd);
    }
    if (e->vaults != NULL) {
        put(o, "MUSTER_VAULTS", e->vaults);
    }
}

/* The device that a worker with a virtual local rank sees: its entry of our list, or its number. */
static int put_device(struct own *o, const struct mu_agent_env *e, uint32_t local_rank,
                      struct mu_errmsg *reterr_msg)
{
    const char *visible = mu_agent_env_get(e->inherited, "CUDA_VISIBLE_DEVICES");
    char device[128];
    size_t len;

    if (visible == NULL) {
        put_number(o, "CUDA_VISIBLE_DEVICES", local_rank);
        return 0;
    }
    for (uint32_t i = 0; i < local_rank; i++) {
        visible += strcspn(visible, ",");
        if (*visible == '\0') {
            return mu_err(reterr_msg, MUSTER_EINVAL,
                          "CUDA_VISIBLE_DEVICES names %" PRIu32 " devices, but worker %" PRIu32
                          " needs one of its own (--virtual-local-rank)",
                          i + 1, local_rank);
        }
        visible++;
    }
    visible += strspn(visible, " \t");
    len = strcspn(visible, ",");
    while (len > 0 && (visible[len - 1] == ' ' || visible[len - 1] == '\t')) {
        len--;
    }
    if (len == 0 || len >= sizeof(device)) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "CUDA_VISIBLE_DEVICES has no device for worker %" PRIu32
                      " (--virtual-local-rank)",
                      local_rank);
    }
    memcpy(device, visible, len);
    device[len] = '\0';
    put(o, "CUDA_VISIBLE_DEVICES", device);
    return 0;
}

static int add_inherited(struct own *o, const struct mu_agent_env *e, size_t *count)
{
    for (const char *const *at = e->inherited; *at != NULL; at++) {
        int err;

        if (is_own(o, *at)) {
            continue;
        }
        err = mu_buf_append(&o->texts, mu_span(*at, strlen(*at) + 1));
        if (err != 0) {
            return err;
        }
        (*count)++;
    }
    return 0;
}

int mu_agent_env_build(const struct mu_agent_env *e, uint32_t local_rank, const char *error_file,
                       const char *const **ret_envp, struct mu_errmsg *reterr_msg)
{
    struct own o = {.count = 0};
    size_t count;
    int err = 0;

    mu_buf_init(&o.texts, ENV_BYTES_MAX);
    put_ranks(&o, e, local_rank);
    put_elastic(&o, e, error_file);
    put_muster(&o, e);
    put_default(&o, e, "PYTHONFAULTHANDLER", "1");
    put_flight(&o, e);
    if (e->virtual_local_rank) {
        err = put_device(&o, e, local_rank, reterr_msg);
    }
    if (err == 0) {
        count = o.count;
        err = o.err != 0 ? o.err : add_inherited(&o, e, &count);
        if (err == 0) {
            err = make_list(&o.texts, count, ret_envp);
        }
        if (err != 0) {
            (void)mu_err(reterr_msg, err, "the environment of worker %" PRIu32 ": %s", local_rank,
                         muster_strerror(err));
        }
    }
    mu_buf_fini(&o.texts);
    return err;
}

/* --- the command ------------------------------------------------------------------------------ */

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c >= '0' && c <= '9');
}

/* How many bytes from the $ at `text` on are the placeholder for the local rank. */
static size_t placeholder_len(const char *text)
{
    static const char name[] = "local_rank";
    size_t braces = text[1] == '{';
    const char *at = text + 1 + braces;

    if (strncmp(at, name, sizeof(name) - 1) != 0) {
        return 0;
    }
    at += sizeof(name) - 1;
    if (braces != 0) {
        return *at == '}' ? (size_t)(at + 1 - text) : 0;
    }
    return is_name(*at) ? 0 : (size_t)(at - text);
}

static int put_argument(struct mu_buf *out, const char *text, struct mu_span number)
{
    int err = 0;

    while (err == 0 && *text != '\0') {
        size_t plain = strcspn(text, "$");
        size_t len = text[plain] == '$' ? placeholder_len(text + plain) : 0;

        err = mu_buf_append(out, mu_span(text, plain));
        text += plain;
        if (err != 0 || *text == '\0') {
            continue;
        }
        if (len != 0) {
            err = mu_buf_append(out, number);
            text += len;
        } else {
            err = mu_buf_append(out, MU_SPAN_LIT("$"));
            text += text[1] == '$' ? 2 : 1;
        }
    }
    return err != 0 ? err : mu_buf_append(out, mu_span("", 1));
}

int mu_agent_argv_build(const char *const *argv, uint32_t local_rank, const char *const **ret_argv)
{
    struct mu_buf texts;
    char number[16];
    int len = snprintf(number, sizeof(number), "%" PRIu32, local_rank);
    size_t count = 0;
    int err = 0;

    mu_buf_init(&texts, ENV_BYTES_MAX);
    for (; err == 0 && argv[count] != NULL; count++) {
        /* The program itself is not an argument. */
        err = count == 0 ? mu_buf_append(&texts, mu_span(argv[0], strlen(argv[0]) + 1))
                         : put_argument(&texts, argv[count], mu_span(number, (size_t)len));
    }
    if (err == 0) {
        err = make_list(&texts, count, ret_argv);
    }
    mu_buf_fini(&texts);
    return err;
}
