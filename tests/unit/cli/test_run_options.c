/*
 * The command line of `muster run`: words and variables in, what they mean out; each as torchrun
 * has it, and what it says when it refuses.
 */
#include "unit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/run_options.h"

#define WORDS_MAX 32

static struct run_options o;
static char said[4096];

/* Standard error, kept while a parser speaks. */
static int capture(FILE *file)
{
    int keep = dup(STDERR_FILENO);

    assert_true(keep >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    return keep;
}

static void release(FILE *file, int keep)
{
    size_t n;

    (void)fflush(stderr);
    (void)dup2(keep, STDERR_FILENO);
    (void)close(keep);
    rewind(file);
    n = fread(said, 1, sizeof(said) - 1, file);
    said[n] = '\0';
    (void)fclose(file);
}

/* Parses a line of words, separated by blanks. */
static int parse_on(const char *line, const struct run_machine *machine)
{
    static char text[1024];
    static char name[] = "run";
    static char *argv[WORDS_MAX + 1];
    FILE *file = tmpfile();
    int argc = 1;
    int keep;
    int code;

    assert_non_null(file);
    run_options_fini(&o);
    (void)snprintf(text, sizeof(text), "%s", line);
    argv[0] = name;
    for (char *at = text; *at != '\0' && argc < WORDS_MAX;) {
        size_t len = strcspn(at, " ");

        argv[argc++] = at;
        at += len;
        if (*at == ' ') {
            *at++ = '\0';
        }
    }
    argv[argc] = NULL;
    keep = capture(file);
    code = run_options_parse(&o, argc, argv);
    if (code == 0) {
        code = run_options_resolve(&o, machine);
    }
    release(file, keep);
    return code;
}

static int parse(const char *line)
{
    static const struct run_machine machine = {.cpus = 6, .gpus = 0, .root = "/nowhere"};

    return parse_on(line, &machine);
}

static void assert_parses(const char *line)
{
    int code = parse(line);

    if (code != 0) {
        fail_msg("refused: %s: %s", line, said);
    }
}

static void assert_refused(int code, const char *line, const char *words)
{
    int got = parse(line);

    if (got != code || strstr(said, words) == NULL) {
        fail_msg("%s: %d, said \"%s\"; not %d with \"%s\"", line, got, said, code, words);
    }
    /* One sentence, on one line. */
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
}

static void assert_argv(const char *expected)
{
    char got[1024] = "";
    size_t n = 0;

    for (size_t i = 0; i < o.argv.count; i++) {
        n += (size_t)snprintf(got + n, sizeof(got) - n, "%s%s", i == 0 ? "" : " ", o.argv.items[i]);
    }
    assert_string_equal(got, expected);
    assert_null(o.argv.items[o.argv.count]);
}

static int clear_environment(void **state)
{
    (void)state;
    run_options_fini(&o);
    (void)clearenv();
    return 0;
}

/* --- words ------------------------------------------------------------------------------------ */

static void test_run_options_defaults_are_torchruns(void **state)
{
    (void)state;
    assert_parses("train.py");
    assert_int_equal(o.rdzv.nodes_min, 1);
    assert_int_equal(o.rdzv.nodes_max, 1);
    assert_int_equal(o.workers, 1);
    assert_string_equal(o.rdzv.run_id, "none");
    assert_string_equal(o.role, "default");
    assert_int_equal(o.restarts_max, 0);
    assert_int_equal(o.grace_ms, 30000);
    assert_null(o.log_dir);
    assert_true(o.handled[SIGTERM] && o.handled[SIGINT] && o.handled[SIGHUP] && o.handled[SIGQUIT]);
    assert_false(o.handled[SIGUSR1]);
    assert_int_equal(mu_std_masks_get(&o.redirect_masks, 0), 0);
    assert_true(mu_rank_filter_shows(&o.shown, 0));
    assert_argv("python3 -u train.py");
}

static void test_run_options_take_both_spellings_and_beginnings(void **state)
{
    static const char *const lines[] = {
        "--nproc-per-node 3 x",
        "--nproc_per_node 3 x",
        "--nproc-per-node=3 x",
        "--nproc_per-node=3 x",
        "--np 3 x",
        "--nproc=3 x",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        assert_parses(lines[i]);
        assert_int_equal(o.workers, 3);
    }
    assert_parses("--stand x");
    assert_true(o.standalone);
    assert_parses("--signal SIGTERM x"); /* unique in torchrun, whatever we have added */
    assert_refused(CLI_USAGE, "--n 3 x", "--n could be --nnodes or --nproc-per-node");
    assert_refused(CLI_USAGE, "--rdzv x y", "could be");
    assert_refused(CLI_USAGE, "--grac 1 x", "there is no option --grac");
    assert_refused(CLI_USAGE, "--bogus x", "there is no option --bogus");
    assert_refused(CLI_USAGE, "-x y", "there is no option -x");
}

static void test_run_options_take_letters_as_argparse_does(void **state)
{
    (void)state;
    assert_parses("-r 1 -t 2 -m pkg.train");
    assert_int_equal(mu_std_masks_get(&o.redirect_masks, 0), 1);
    assert_int_equal(mu_std_masks_get(&o.tee_masks, 0), 2);
    assert_argv("python3 -u -m pkg.train");
    assert_parses("-mr3 -t=1 x");
    assert_true(o.module);
    assert_int_equal(mu_std_masks_get(&o.redirect_masks, 0), 3);
    assert_int_equal(mu_std_masks_get(&o.tee_masks, 0), 1);
    assert_refused(CLI_USAGE, "-m=1 x", "--module takes no value");
    assert_refused(CLI_USAGE, "-r", "--redirects needs a value");
}

static void test_run_options_pass_on_all_that_follows_the_script(void **state)
{
    (void)state;
    assert_parses("--nnodes 1 train.py --nnodes 9 -m -- --help -x");
    assert_argv("python3 -u train.py --nnodes 9 -m -- --help -x");
    assert_parses("--nnodes 1 -- train.py -r 3");
    assert_argv("python3 -u train.py -r 3");
    assert_refused(CLI_USAGE, "--nnodes 1", "the script to run is missing");
    assert_refused(CLI_USAGE, "--", "the script to run is missing");
}

static void test_run_options_values_that_begin_with_a_dash_are_options_unless_numbers(void **state)
{
    (void)state;
    assert_refused(CLI_USAGE, "--role -x y", "--role needs a value");
    assert_refused(CLI_USAGE, "--role --nnodes 1 y", "--role needs a value");
    assert_parses("--role=-x y");
    assert_string_equal(o.role, "-x");
    assert_parses("--node-rank -1 y");
    assert_int_equal(o.node_rank, -1);
}

static void test_run_options_wrong_types_are_syntax_errors(void **state)
{
    (void)state;
    assert_refused(CLI_USAGE, "--max-restarts many x", "--max-restarts many");
    assert_refused(CLI_USAGE, "--max-restarts 1.5 x", "--max-restarts 1.5");
    assert_refused(CLI_USAGE, "--master-port http x", "--master-port http");
    assert_refused(CLI_USAGE, "--monitor-interval soon x", "--monitor-interval soon");
    assert_refused(CLI_USAGE, "--monitor-interval nan x", "--monitor-interval nan");
    assert_refused(CLI_USAGE, "--start-method thread x", "is not one of spawn, fork, forkserver");
    assert_refused(CLI_USAGE, "--numa-binding core x", "is not one of");
    assert_parses("--start-method forkserver --monitor-interval .5 x");
}

static void test_run_options_variables_are_defaults(void **state)
{
    (void)state;
    (void)setenv("PET_NPROC_PER_NODE", "4", 1);
    (void)setenv("PET_NNODES", "2:4", 1);
    (void)setenv("PET_MAX_RESTARTS", "7", 1);
    (void)setenv("PET_REDIRECTS", "3", 1);
    (void)setenv("PET_NO_PYTHON", "1", 1);
    (void)setenv("PET_MODULE", "0", 1);
    (void)setenv("PET_RDZV_BACKEND", "c10d", 1);
    assert_parses("--nproc-per-node 2 prog");
    assert_int_equal(o.workers, 2);
    assert_int_equal(o.rdzv.nodes_min, 2);
    assert_int_equal(o.rdzv.nodes_max, 4);
    assert_int_equal(o.restarts_max, 7);
    assert_int_equal(mu_std_masks_get(&o.redirect_masks, 1), 3);
    assert_string_equal(o.rdzv.backend, "c10d");
    assert_argv("prog");
    (void)setenv("PET_MAX_RESTARTS", "x", 1);
    assert_refused(CLI_USAGE, "prog", "PET_MAX_RESTARTS=x");
    assert_parses("--max-restarts 1 prog");
    (void)setenv("PET_STANDALONE", "yes", 1);
    assert_refused(CLI_FAILED, "--max-restarts 1 prog", "PET_STANDALONE=yes");
    /* Those that torchrun takes no variable for have none here either. */
    (void)unsetenv("PET_STANDALONE");
    (void)unsetenv("PET_MAX_RESTARTS");
    (void)setenv("PET_LOGS_SPECS", "x", 1);
    (void)setenv("PET_GRACE", "5", 1);
    assert_parses("prog");
    assert_int_equal(o.grace_ms, 30000);
}

/* --- meanings --------------------------------------------------------------------------------- */

static void test_run_options_nodes_are_one_number_or_two(void **state)
{
    static const char *const bad[] = {"--nnodes 0 x",     "--nnodes 3:2 x", "--nnodes a x",
                                      "--nnodes 1:2:3 x", "--nnodes 1: x",  "--nnodes=-1 x",
                                      "--nnodes= x",      "--nnodes :1 x"};

    (void)state;
    assert_parses("--nnodes 3 --rdzv-endpoint h x");
    assert_int_equal(o.rdzv.nodes_min, 3);
    assert_int_equal(o.rdzv.nodes_max, 3);
    assert_parses("--nnodes 2:4 --rdzv-endpoint h x");
    assert_int_equal(o.rdzv.nodes_min, 2);
    assert_int_equal(o.rdzv.nodes_max, 4);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_refused(CLI_FAILED, bad[i], "nodes");
    }
}

static void test_run_options_workers_are_a_number_or_what_is_here(void **state)
{
    static const struct run_machine gpus = {.cpus = 6, .gpus = 2, .root = "/nowhere"};

    (void)state;
    assert_parses("--nproc-per-node cpu x");
    assert_int_equal(o.workers, 6);
    assert_parses("--nproc-per-node auto x");
    assert_int_equal(o.workers, 6);
    assert_int_equal(parse_on("--nproc-per-node gpu x", &gpus), 0);
    assert_int_equal(o.workers, 2);
    assert_int_equal(parse_on("--nproc-per-node auto x", &gpus), 0);
    assert_int_equal(o.workers, 2);
    assert_refused(CLI_FAILED, "--nproc-per-node gpu x", "Cuda is not available.");
    assert_refused(CLI_FAILED, "--nproc-per-node tpu x", "Unsupported nproc_per_node value: tpu");
    assert_refused(CLI_FAILED, "--nproc-per-node 0 x", "from 1 to 4096");
    assert_refused(CLI_FAILED, "--nproc-per-node 4097 x", "from 1 to 4096");
}

static void test_run_options_devices_are_counted_as_cuda_does(void **state)
{
    (void)state;
    assert_int_equal(run_machine_count_devices("0,1,2"), 3);
    assert_int_equal(run_machine_count_devices(" 3 "), 1);
    assert_int_equal(run_machine_count_devices(""), 0);
    assert_int_equal(run_machine_count_devices("-1"), 0);
    assert_int_equal(run_machine_count_devices("0,-1,2"), 1);
    assert_int_equal(run_machine_count_devices("GPU-a,MIG-b"), 2);
    (void)setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4", 1);
    assert_int_equal(run_machine_probe().gpus, 5);
}

static void test_run_options_backend_is_static_where_torchruns_old_words_are_used(void **state)
{
    (void)state;
    assert_parses("x");
    assert_string_equal(o.rdzv.backend, "muster");
    assert_string_equal(o.rdzv.endpoint, "127.0.0.1:0"); /* alone: any port */
    assert_refused(CLI_FAILED, "--nnodes 2:4 x", "`muster run --nnodes 2:4 --rdzv-endpoint ");
    assert_parses("--nnodes 2 --rdzv-backend c10d x"); /* as torchrun: localhost */
    assert_string_equal(o.rdzv.endpoint, "");
    assert_parses("--nnodes 2 --node-rank 1 --master-addr [::1] --master-port 1234 x");
    assert_string_equal(o.rdzv.backend, "static");
    assert_string_equal(o.rdzv.endpoint, "[::1]:1234");
    assert_string_equal(o.rdzv.config, "rank=1,timeout=900");
    assert_parses("--master-port 5 --rdzv-conf timeout=3 x");
    assert_string_equal(o.rdzv.endpoint, "127.0.0.1:5");
    assert_string_equal(o.rdzv.config, "timeout=3,rank=0");
    assert_parses("--rdzv-backend c10d --node-rank 1 --rdzv-endpoint h:1 --rdzv-conf a=b x");
    assert_string_equal(o.rdzv.backend, "c10d");
    assert_string_equal(o.rdzv.endpoint, "h:1");
    assert_string_equal(o.rdzv.config, "a=b");
    assert_parses("--rdzv-backend static --rdzv-endpoint h:1 x");
    assert_string_equal(o.rdzv.endpoint, "h:1");
    assert_refused(CLI_FAILED, "--master-port 70000 x", "--master-port 70000");
}

static void test_run_options_nodes_on_one_machine_need_no_name(void **state)
{
    (void)state;
    assert_parses("x");
    assert_string_equal(o.rdzv.local_addr, "localhost");
    assert_parses("--nnodes 2 --rdzv-endpoint 127.0.0.1:5 x");
    assert_string_equal(o.rdzv.local_addr, "localhost");
    assert_parses("--nnodes 2 --rdzv-endpoint [::1] x");
    assert_string_equal(o.rdzv.local_addr, "localhost");
    assert_parses("--nnodes 2 --rdzv-endpoint node0:5 x");
    assert_string_equal(o.rdzv.local_addr, "");
    assert_parses("--nnodes 1 --local-addr 10.0.0.1 x");
    assert_string_equal(o.rdzv.local_addr, "10.0.0.1");
}

static bool knows_nobody(const char *name)
{
    (void)name;
    return false;
}

/* A bare container may have no /etc/hosts. */
static void test_run_options_a_machine_may_not_know_localhost(void **state)
{
    static const struct run_machine bare = {
        .cpus = 6, .root = "/nowhere", .knows_name = knows_nobody};
    char longer_than_any[128] = "";

    (void)state;
    assert_int_equal(parse_on("--standalone x", &bare), 0);
    assert_string_equal(o.rdzv.endpoint, "127.0.0.1:0");
    assert_string_equal(o.rdzv.local_addr, "127.0.0.1");
    assert_int_equal(parse_on("--nnodes 2 --rdzv-endpoint 127.0.0.1:5 x", &bare), 0);
    assert_string_equal(o.rdzv.local_addr, "127.0.0.1");
    assert_int_equal(parse_on("--local-addr localhost x", &bare), 0); /* the user's word counts */
    assert_string_equal(o.rdzv.local_addr, "localhost");
    memset(longer_than_any, 'x', sizeof(longer_than_any) - 1);
    assert_true(run_machine_probe().knows_name("127.0.0.1"));
    assert_false(run_machine_probe().knows_name(longer_than_any));
}

static void test_run_options_standalone_ignores_what_was_said_of_the_rendezvous(void **state)
{
    (void)state;
    assert_parses("--standalone --rdzv-backend c10d --rdzv-endpoint h:1 --rdzv-id job x");
    assert_string_equal(o.rdzv.backend, "muster");
    assert_string_equal(o.rdzv.endpoint, "127.0.0.1:0");
    assert_int_equal(strlen(o.rdzv.run_id), 36);
}

static void test_run_options_empty_id_is_drawn(void **state)
{
    char first[64];

    (void)state;
    assert_parses("--rdzv-id= x");
    assert_int_equal(strlen(o.rdzv.run_id), 36);
    assert_string_equal(said, "");
    (void)snprintf(first, sizeof(first), "%s", o.rdzv.run_id);
    assert_parses("--rdzv-id= --nnodes 2 --rdzv-endpoint node0:29400 x");
    assert_int_equal(strlen(o.rdzv.run_id), 36);
    assert_string_not_equal(o.rdzv.run_id, first);
    assert_non_null(strstr(said, "other nodes must be given the same id"));
    assert_parses("--rdzv-id= --rdzv-endpoint c10d://node0:29400/job7 x");
    assert_string_equal(o.rdzv.run_id, "job7");
}

static void test_run_options_timeout_is_torchruns_unless_given(void **state)
{
    (void)state;
    assert_parses("--rdzv-backend etcd --rdzv-endpoint e0 x");
    assert_string_equal(o.rdzv.config, "timeout=900");
    assert_parses("--rdzv-backend etcd --rdzv-endpoint e0 --rdzv-conf join_timeout=60 x");
    assert_string_equal(o.rdzv.config, "join_timeout=60");
    assert_parses("--node-rank 0 --rdzv-conf join_timeout=60 x");
    assert_string_equal(o.rdzv.config, "join_timeout=60,rank=0");
}

static void test_run_options_numa_needs_gpus(void **state)
{
    (void)state;
    assert_refused(CLI_USAGE, "--numa-binding cpu x", "numa-binding");
    assert_refused(CLI_FAILED, "--numa-binding node x",
                   "--numa-binding node: workers are placed by their GPUs, and there is none");
    assert_parses("x");
    assert_null(o.cpus);
}

static void test_run_options_own_words_reach_the_native_backend(void **state)
{
    (void)state;
    assert_parses("--detect 0.5 --upscale-delay 0 --spares 2 --max-restarts 3 --grace 1.5 x");
    assert_string_equal(o.rdzv.config, "dead=0.5,upscale_delay=0,spares=2,max_restarts=3");
    assert_int_equal(o.grace_ms, 1500);
    assert_parses("--nnodes 2 --rdzv-endpoint h:1 --max-restarts 3 x");
    assert_string_equal(o.rdzv.config, "succession=majority,max_restarts=3");
    assert_parses("--nnodes 2 --rdzv-endpoint h:1 --rdzv-conf via=a:1,b:2 x");
    assert_string_equal(o.rdzv.config, "via=a:1,b:2,max_restarts=0");
    assert_refused(CLI_FAILED,
                   "--nnodes 2 --rdzv-endpoint h:1 --rdzv-conf via=a:1 --succession any x",
                   "--succession any and --rdzv-conf via= exclude each other");
    assert_parses("--nnodes 2 --rdzv-endpoint muster://h:1/run?via=a:1,b:2 x");
    assert_string_equal(o.rdzv.config, "via=a:1,b:2,max_restarts=0");
    assert_refused(CLI_FAILED, "--nnodes 2 --rdzv-endpoint muster://h:1/run?via=a:1,dead=2 x",
                   "via");
    assert_refused(CLI_FAILED, "--detect 0 x", "--detect 0");
    assert_refused(CLI_USAGE, "--grace=-1 x", "--grace -1 is not a time");
    assert_refused(CLI_USAGE, "--nproc_per_ndoe 2 x", "(did you mean --nproc-per-node?)");
    assert_refused(CLI_FAILED, "--detect 1 --rdzv-backend c10d x", "keep_alive_interval");
    assert_refused(CLI_FAILED, "--upscale-delay 1 --node-rank 0 x", "no late nodes");
    assert_parses("--max-losses 5/60 x");
    assert_string_equal(o.rdzv.config, "max_losses=5/60,max_restarts=0");
    assert_parses("--max-losses 5/60 --rdzv-backend c10d x");
    assert_int_equal(o.losses_max, 5);
    assert_int_equal(o.losses_ms, 60000);
    assert_refused(CLI_FAILED, "--max-losses 5 x", "--max-losses: \"5\" is not a number of losses");
    assert_refused(CLI_FAILED, "--max-losses 5/60 --node-rank 0 x", "ends when a node is lost");
    assert_parses("--upscale-delay 1.5 --rdzv-backend c10d x");
    assert_string_equal(o.rdzv.config, "upscale_delay=1.5");
    assert_refused(CLI_FAILED, "--spares 1 --node-rank 0 x", "static");
    assert_refused(CLI_FAILED, "--spares 1 --rdzv-backend c10d x", "may wait for a place");
    assert_refused(CLI_FAILED, "--store-backing file:///x x", "does not name an etcd cluster");
}

static void test_run_options_say_what_only_python_can(void **state)
{
    (void)state;
    assert_refused(CLI_FAILED, "--logs-specs mine x", "also done by --log-dir, --redirects, --tee");
    assert_refused(CLI_FAILED, "--event-log-handler mine x", "inside Python");
    assert_parses("--event-log-handler console x");
    assert_true(o.events);
    assert_parses("--event-log-handler null x");
    assert_false(o.events);
    assert_refused(CLI_FAILED, "--max-restarts -1 x", "must be at least 0");
    assert_refused(CLI_FAILED, "--monitor-interval 0 x", "must be greater than 0");
}

static void test_run_options_command_is_pythons_unless_told(void **state)
{
    (void)state;
    (void)setenv("PYTHON_EXEC", "/opt/python", 1);
    assert_parses("train.py --rank ${local_rank}");
    assert_argv("/opt/python -u train.py --rank ${local_rank}");
    assert_parses("--no-python ./prog a");
    assert_argv("./prog a");
    assert_refused(CLI_FAILED, "--no-python -m prog", "Don't use both");
    assert_parses("--run-path --no-python -m /abs/train.py a"); /* wins over both */
    assert_int_equal(o.argv.count, 6);
    assert_string_equal(o.argv.items[2], "-c");
    assert_non_null(strstr(o.argv.items[3], "runpy.run_path"));
    assert_string_equal(o.argv.items[4], "/abs/train.py");
}

/* The command of the zygote, without the program that it runs. */
static void assert_zygote(const char *line, const char *before, const char *behind)
{
    char text[512] = "";
    size_t at = 0;
    size_t len = 0;

    assert_parses(line);
    while (at < o.zygote.count && strcmp(o.zygote.items[at], "-c") != 0) {
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s ", o.zygote.items[at++]);
    }
    assert_string_equal(text, before);
    assert_non_null(strstr(o.zygote.items[at + 1], "exec(sys.argv[1])"));
    assert_non_null(strstr(o.zygote.items[at + 2], "def fork_standbys"));
    text[len = 0] = '\0';
    for (at += 3; at < o.zygote.count; at++) {
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s ", o.zygote.items[at]);
    }
    assert_string_equal(text, behind);
}

static void assert_plain(const char *line, const char *why)
{
    assert_parses(line);
    assert_int_equal(o.zygote.count, 0);
    assert_true((said[0] == '\0') == (why[0] == '\0'));
    assert_non_null(strstr(said, why));
}

static void test_run_options_warm_has_a_command_of_its_own(void **state)
{
    (void)state;
    (void)setenv("PYTHON_EXEC", "/opt/python", 1);
    assert_plain("train.py", "");
    assert_zygote("--warm train.py --x", "/opt/python -u ", "torch train.py --x ");
    assert_zygote("--warm=numpy,a.b -m pack a", "/opt/python -u ", "numpy,a.b -m pack a ");
    assert_zygote("--warm train.py --rank=${local_rank}", "/opt/python -u ",
                  "torch train.py --rank=${local_rank} ");
    assert_zygote("--warm --no-python python3.11 -OB -W error -Xdev x.py -c",
                  "python3.11 -OB -W error -Xdev ", "torch x.py -c ");
    assert_zygote("--warm --no-python /a/python -c pass b", "/a/python ", "torch -c pass b ");
}

static void test_run_options_warm_needs_python_and_modules(void **state)
{
    static const char *const bad[] = {"--warm= x",   "--warm=a, x",  "--warm=,a x", "--warm=a..b x",
                                      "--warm=1a x", "--warm=a-b x", "--warm=. x"};

    (void)state;
    (void)unsetenv("PYTHON_EXEC");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_refused(CLI_USAGE, bad[i], "does not name Python modules");
    }
    assert_plain("--warm --no-python ./prog a", "./prog is not started as");
    assert_plain("--warm --no-python python3 -I a.py", "python3 is not started as");
    assert_plain("--warm --no-python python3 -m", "python3 is not started as");
    assert_plain("--warm --no-python python3 -u", "python3 is not started as");
    assert_plain("--warm --no-python pythonista a.py", "pythonista is not started as");
    assert_plain("--warm train${local_rank}.py", "their scripts differ by local rank");
    assert_plain("--warm -m pack$local_rank", "their scripts differ by local rank");
}

static void test_run_options_masks_are_for_all_or_by_rank(void **state)
{
    static const char *const bad[] = {"-r 4 x",     "-r 0:4 x", "-r 0: x",  "-r 0:1, x",
                                      "-r :1 x",    "-r 33 x",  "-r a x",   "-r 0:1;1:1 x",
                                      "-r 0:1,1 x", "-r= x",    "-r 1:11 x"};

    (void)state;
    assert_parses("--nproc-per-node 12 -r 0:1,11:2,0:3,99:1 -t 2 x");
    assert_int_equal(mu_std_masks_get(&o.redirect_masks, 0), 3);
    assert_int_equal(mu_std_masks_get(&o.redirect_masks, 1), 0);
    assert_int_equal(mu_std_masks_get(&o.redirect_masks, 11), 2);
    assert_int_equal(mu_std_masks_get(&o.tee_masks, 11), 2);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_refused(CLI_FAILED, bad[i], "--redirects");
    }
}

static void test_run_options_filters_are_lists(void **state)
{
    (void)state;
    assert_parses("--nproc-per-node 4 --local-ranks-filter 0,3,9 --duplicate-stdout-filters "
                  "loss,a,,b --duplicate-stderr-filters= x");
    assert_true(mu_rank_filter_shows(&o.shown, 0) && mu_rank_filter_shows(&o.shown, 3));
    assert_false(mu_rank_filter_shows(&o.shown, 1));
    assert_int_equal(o.stdout_filters.count, 2);
    assert_span_text(o.stdout_filters.texts[0], "loss");
    assert_span_text(o.stdout_filters.texts[1], "a,b");
    assert_int_equal(o.stderr_filters.count, 0);
    assert_refused(CLI_FAILED, "--local-ranks-filter a x", "comma-separated list of local ranks");
    assert_refused(CLI_FAILED, "--local-ranks-filter 0, x", "comma");
}

static void test_run_options_signals_have_names_and_other_names(void **state)
{
    (void)state;
    assert_parses(
        "--signals-to-handle SIGTERM,SIGUSR1 --signal-map USR2=SIGTERM,SIGINT=2,HUP=USR1 x");
    assert_true(o.handled[SIGTERM] && o.handled[SIGUSR1] && o.handled[SIGUSR2]);
    assert_true(o.handled[SIGINT] && o.handled[SIGHUP]);
    assert_false(o.handled[SIGQUIT]);
    assert_int_equal(o.sent_for[SIGUSR2], SIGTERM);
    assert_int_equal(o.sent_for[SIGINT], SIGINT);
    assert_int_equal(o.sent_for[SIGHUP], SIGUSR1);
    assert_int_equal(o.sent_for[SIGTERM], 0);
    /* As torchrun: what does not exist is skipped, with a warning. */
    assert_parses("--signals-to-handle SIGBOGUS,SIGTERM,SIGKILL x");
    assert_true(o.handled[SIGTERM]);
    assert_non_null(strstr(said, "SIGBOGUS"));
    assert_false(o.handled[SIGKILL]);
    assert_refused(CLI_USAGE, "--signal-map USR1 x", "\"USR1\"");
    assert_refused(CLI_USAGE, "--signal-map USR1=TERM,=INT x", "\"=INT\"");
    assert_refused(CLI_USAGE, "--signal-map KILL=TERM x", "\"KILL=TERM\"");
    assert_refused(CLI_USAGE, "--signal-map USR1=NONE x", "\"USR1=NONE\"");
}

static void test_run_options_threads_are_limited_unless_somebody_chose(void **state)
{
    (void)state;
    assert_parses("--nproc-per-node 2 x");
    assert_true(o.omp_threads);
    assert_parses("x");
    assert_false(o.omp_threads);
    (void)setenv("OMP_NUM_THREADS", "4", 1);
    assert_parses("--nproc-per-node 2 x");
    assert_false(o.omp_threads);
}

static void test_run_options_hang_is_a_time_or_off(void **state)
{
    (void)state;
    assert_parses("x");
    assert_int_equal(o.hang_ms, 60000);
    assert_string_equal(o.hang_action, "tell");
    assert_parses("--hang 5m --hang-action restart x");
    assert_int_equal(o.hang_ms, 300000);
    assert_string_equal(o.hang_action, "restart");
    assert_parses("--hang off x");
    assert_int_equal(o.hang_ms, 0);
    assert_parses("--hang 0 x");
    assert_int_equal(o.hang_ms, 0);
    assert_refused(CLI_USAGE, "--hang soon x", "\"soon\" is not a time");
    assert_refused(CLI_USAGE, "--hang 100ms x", "100ms is too short");
    assert_refused(CLI_USAGE, "--hang-action shout x", "hang-action");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, clear_environment)
    const struct CMUnitTest tests[] = {
        TEST(test_run_options_defaults_are_torchruns),
        TEST(test_run_options_hang_is_a_time_or_off),
        TEST(test_run_options_take_both_spellings_and_beginnings),
        TEST(test_run_options_take_letters_as_argparse_does),
        TEST(test_run_options_pass_on_all_that_follows_the_script),
        TEST(test_run_options_values_that_begin_with_a_dash_are_options_unless_numbers),
        TEST(test_run_options_wrong_types_are_syntax_errors),
        TEST(test_run_options_variables_are_defaults),
        TEST(test_run_options_nodes_are_one_number_or_two),
        TEST(test_run_options_workers_are_a_number_or_what_is_here),
        TEST(test_run_options_devices_are_counted_as_cuda_does),
        TEST(test_run_options_backend_is_static_where_torchruns_old_words_are_used),
        TEST(test_run_options_nodes_on_one_machine_need_no_name),
        TEST(test_run_options_a_machine_may_not_know_localhost),
        TEST(test_run_options_standalone_ignores_what_was_said_of_the_rendezvous),
        TEST(test_run_options_empty_id_is_drawn),
        TEST(test_run_options_timeout_is_torchruns_unless_given),
        TEST(test_run_options_numa_needs_gpus),
        TEST(test_run_options_own_words_reach_the_native_backend),
        TEST(test_run_options_say_what_only_python_can),
        TEST(test_run_options_command_is_pythons_unless_told),
        TEST(test_run_options_warm_has_a_command_of_its_own),
        TEST(test_run_options_warm_needs_python_and_modules),
        TEST(test_run_options_masks_are_for_all_or_by_rank),
        TEST(test_run_options_filters_are_lists),
        TEST(test_run_options_signals_have_names_and_other_names),
        TEST(test_run_options_threads_are_limited_unless_somebody_chose),
    };

    return cmocka_run_group_tests(tests, NULL, clear_environment);
}
