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
    {"keygen", cmd_keygen, "make the job's credential: a token or certificates"},
    {"top", cmd_top, "show the status of a server, an agent or a download in a terminal"},
    {"doctor", cmd_doctor, "check this machine, other hosts or an etcd cluster"},
    {"bench", cmd_bench, "measure a store, a rendezvous or etcd"},
};

static void print_help(void)
{
    printf("muster %s: coordination for training jobs whose machines come and go\n\n"
           "usage: muster COMMAND [OPTIONS]\n\n",
           muster_version());
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        printf("  %-8s %s\n", verbs[i].name, verbs[i].description);
    }
    printf("\n`muster COMMAND --help` lists the options of a command, with defaults in "
           "parentheses;\n`man muster` lists the exit codes.\n");
}

/* Started under another name, the program is another command. */
static bool is_called(const char *self, const char *name)
{
    const char *slash = self == NULL ? NULL : strrchr(self, '/');

    return self != NULL && strcmp(slash == NULL ? self : slash + 1, name) == 0;
}

int main(int argc, char **argv)
{
    cli_terminal_open();
    if (argc > 0 && is_called(argv[0], "p2pd")) {
        return cmd_p2pd(argc, argv);
    }
    if (argc < 2) {
        print_help();
        return CLI_USAGE;
    }
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(argv[1], verbs[i].name) == 0) {
            return verbs[i].run(argc - 1, argv + 1);
        }
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help();
        return CLI_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("muster %s\n", muster_version());
        return CLI_OK;
    }
    cli_log_foresee(NULL, getenv("MUSTER_LOG_FORMAT"));
    return cli_fail(CLI_USAGE, "there is no command \"%s\"; `muster --help` lists the commands",
                    argv[1]);
}
