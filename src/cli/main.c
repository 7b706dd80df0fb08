#include "cli/cli_log.h"
#include "cli/cli_terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *description;
} verbs[] = {
    {"run", cmd_run, "start the workers of a training job, as torchrun does"},
    {"serve", cmd_serve, "run a store and rendezvous server"},
    {"kv", cmd_kv, "use a store from the shell"},
    {"rdzv", cmd_rdzv, "use a rendezvous from the shell"},
    {"peer", cmd_peer, "make a libp2p identity; serve, ping and call libp2p peers"},
    {"dht", cmd_dht, "run a node of hivemind's DHT; read and write its records"},
    {"p2pd", cmd_p2pd, "run a p2p daemon for hivemind, in place of libp2p's"},
    {"rpc", cmd_rpc, "run an RPC worker, or call one"},
    {"state", cmd_state, "share, pull and list the states of a model"},
    {"average", cmd_average, "average a file of tensors with hivemind's peers, or muster's"},
    {"keygen", cmd_keygen, "make the job's credential: a token or certificates"},
    {"top", cmd_top, "show the status of a server, an agent or a download in a terminal"},
    {"stacks", cmd_stacks, "show what processes are doing, down to the line of Python"},
    {"doctor", cmd_doctor, "check this machine, other hosts or an etcd cluster"},
    {"bench", cmd_bench, "measure a store, a rendezvous, the start of a job or etcd"},
};

#define VERB_COUNT (sizeof(verbs) / sizeof(verbs[0]))

static void print_help(void)
{
    printf("muster %s: coordination for training jobs whose machines come and go\n\n"
           "usage: muster COMMAND [OPTIONS]\n\n",
           muster_version());
    for (size_t i = 0; i < VERB_COUNT; i++) {
        printf("  %-8s %s\n", verbs[i].name, verbs[i].description);
    }
    printf("\n`muster help COMMAND` lists the options of a command, with defaults in parentheses;\n"
           "`muster version` prints the version, and `man muster` lists the exit codes.\n");
}

static void print_help_json(void)
{
    json_t *list = json_array();
    json_t *object = json_pack("{s:s, s:o}", "version", muster_version(), "commands", list);

    for (size_t i = 0; i < VERB_COUNT; i++) {
        (void)json_array_append_new(list, json_pack("{s:s, s:s, s:b}", "name", verbs[i].name,
                                                    "description", verbs[i].description, "foreign",
                                                    verbs[i].run == cmd_p2pd));
    }
    cli_print_json(object);
}

/* Started under another name, the program is another command. */
static bool is_called(const char *self, const char *name)
{
    const char *slash = self == NULL ? NULL : strrchr(self, '/');

    return self != NULL && strcmp(slash == NULL ? self : slash + 1, name) == 0;
}

static int refuse_command(const char *word)
{
    struct mu_guess g = {.word = mu_span_str(word)};
    char said[96];

    for (size_t i = 0; i < VERB_COUNT; i++) {
        mu_guess_try(&g, verbs[i].name);
    }
    mu_guess_try(&g, "help");
    mu_guess_try(&g, "version");
    cli_log_foresee(NULL, getenv("MUSTER_LOG_FORMAT"));
    return cli_fail(CLI_USAGE, "there is no command \"%s\"%s; `muster help` lists the commands",
                    word, cli_guess_say(&g, "", said));
}

static int run_command(int argc, char **argv)
{
    for (size_t i = 0; i < VERB_COUNT; i++) {
        if (strcmp(argv[0], verbs[i].name) == 0) {
            return verbs[i].run(argc, argv);
        }
    }
    return refuse_command(argv[0]);
}

/* A script or a flag follows these two, and never an operation: a --help behind it would be the
 * script's. */
static bool has_operations(const char *command)
{
    return strcmp(command, "run") != 0 && strcmp(command, "p2pd") != 0;
}

/* muster help [COMMAND [OPERATION]] */
static int cmd_help(int argc, char **argv)
{
    static char help[] = "--help";
    static char as_json[] = "--json";
    bool json = false;
    const struct cli_option options[] = {
        {"json", NULL, "print the commands, or the options of a command, as JSON", CLI_FLAG, &json,
         0},
    };
    const struct cli_verb verb = {"help", "[COMMAND [OPERATION]] [--json]",
                                  "Prints what a command does, and its options.", options, 1};
    int err = cli_parse(&verb, &argc, &argv);
    char *words[5];
    int count = 0;
    int most = argc > 0 && has_operations(argv[0]) ? 2 : 1;

    if (err == 0 && argc > most) {
        err = cli_usage("help", "unexpected argument \"%s\"", argv[most]);
    }
    if (err != 0) {
        return err;
    }
    if (argc == 0) {
        json ? print_help_json() : print_help();
        return CLI_OK;
    }
    for (; count < argc; count++) {
        words[count] = argv[count];
    }
    words[count++] = help;
    if (json) {
        words[count++] = as_json;
    }
    words[count] = NULL;
    return run_command(count, words);
}

static int cmd_version(int argc, char **argv)
{
    bool json = false;
    const struct cli_option options[] = {
        {"json", NULL, "print one JSON object", CLI_FLAG, &json, 0},
    };
    const struct cli_verb verb = {"version", "[--json]", "Prints the version.", options, 1};
    int err = cli_parse(&verb, &argc, &argv);

    if (err == 0 && argc > 0) {
        err = cli_usage("version", "unexpected argument \"%s\"", argv[0]);
    }
    if (err == 0) {
        printf(json ? "{\"version\":\"%s\"}\n" : "muster %s\n", muster_version());
    }
    return err;
}

int cli_main(int argc, char **argv)
{
    cli_terminal_open();
    if (argc > 0 && is_called(argv[0], "p2pd")) {
        return cmd_p2pd(argc, argv);
    }
    if (argc < 2) {
        print_help();
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        return cmd_help(argc - 1, argv + 1);
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0) {
        return cmd_version(argc - 1, argv + 1);
    }
    return run_command(argc - 1, argv + 1);
}
