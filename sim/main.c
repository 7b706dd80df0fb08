/*
 * muster-sim: runs a scenario with one seed or many. A run that fails is reported in full, and the
 * last line says how to repeat it. Exit codes: 0 all clean, 1 a run failed, 2 wrong usage.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim.h"

struct options {
    const struct mu_sim_scenario *scenario;
    uint64_t from;
    uint64_t count;
    uint64_t hours; /* 0: the scenario's own length */
    bool trace;
    bool keep_going;
};

static void print_usage(FILE *out)
{
    fputs("usage: muster-sim [--scenario NAME] [--seed S | --from S --seeds N] [--trace]\n"
          "                  [--hours H] [--keep-going]\n"
          "       muster-sim --list | --list-planted\n"
          "\n"
          "  --scenario NAME  this one; without it all but the slow and those with a planted bug\n"
          "  --seed S         run this one seed (0x... or decimal)\n"
          "  --from S         the first seed of many (default 1)\n"
          "  --seeds N        how many (default 1)\n"
          "  --hours H        of virtual time, for a scenario that can last (rdzv-steady)\n"
          "  --trace          one line for each step on standard output (docs/simulator.md)\n"
          "  --keep-going     do not stop at the first seed that fails\n",
          out);
}

static bool parse_number(const char *text, uint64_t *ret)
{
    char *end;
    unsigned long long v;

    errno = 0;
    v = strtoull(text, &end, 0);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-') {
        return false;
    }
    *ret = v;
    return true;
}

/* Reads an option that has a value. 1: it was this option; 0: it was another; -1: the value is
 * bad. */
static int read_value(struct options *o, const char *name, const char *value)
{
    if (strcmp(name, "--scenario") == 0) {
        o->scenario = value == NULL ? NULL : mu_sim_scenario_find(value);
        if (o->scenario == NULL) {
            fprintf(stderr, "muster-sim: no scenario \"%s\"; --list names them\n",
                    value == NULL ? "" : value);
            return -1;
        }
        return 1;
    }
    if (strcmp(name, "--seed") == 0 || strcmp(name, "--from") == 0 ||
        strcmp(name, "--seeds") == 0 || strcmp(name, "--hours") == 0) {
        uint64_t *at = strcmp(name, "--seeds") == 0   ? &o->count
                       : strcmp(name, "--hours") == 0 ? &o->hours
                                                      : &o->from;

        if (value == NULL || !parse_number(value, at)) {
            fprintf(stderr, "muster-sim: %s wants a number, not \"%s\"\n", name,
                    value == NULL ? "" : value);
            return -1;
        }
        return 1;
    }
    return 0;
}

static int read_options(struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int rc;

        if (strcmp(argv[i], "--trace") == 0) {
            o->trace = true;
            continue;
        }
        if (strcmp(argv[i], "--keep-going") == 0) {
            o->keep_going = true;
            continue;
        }
        rc = read_value(o, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
        if (rc == 0) {
            fprintf(stderr, "muster-sim: unknown option \"%s\"\n", argv[i]);
            return -1;
        }
        if (rc < 0) {
            return -1;
        }
        i++;
    }
    return 0;
}

static void print_failure(const struct options *o, uint64_t seed, const struct mu_sim_result *r)
{
    printf("%s: seed 0x%" PRIx64 " failed after %" PRIu64 " steps, %.3f s of virtual time\n",
           o->scenario->name, seed, r->steps, (double)r->virtual_ns / 1e9);
    printf("  %s\n", r->failure);
}

/* The real time is only for the summary of a run; nothing in a simulation ever sees it. */
static double seconds_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* tidy: of the program, not of a simulation */
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int run_seeds(const struct options *o)
{
    double began = seconds_now();
    uint64_t steps = 0;
    uint64_t failed = 0;
    uint64_t last_failed = 0;
    uint64_t done = 0;
    uint64_t digest = 0;
    uint64_t undecided = 0;

    while (done < o->count && (failed == 0 || o->keep_going)) {
        struct mu_sim_result r;
        uint64_t seed = o->from + done;

        mu_sim_scenario_run_for(o->scenario, seed, o->hours * 3600 * MU_NS_PER_S,
                                o->trace ? stdout : NULL, &r);
        done++;
        steps += r.steps;
        digest ^= r.digest;
        undecided += r.undecided ? 1 : 0;
        if (r.failed) {
            failed++;
            last_failed = seed;
            print_failure(o, seed, &r);
        }
    }
    printf("%s: %" PRIu64 " seeds from 0x%" PRIx64 ", %" PRIu64 " failed, %" PRIu64
           " undecided, %" PRIu64 " steps, digest %016" PRIx64 ", %.2f s\n",
           o->scenario->name, done, o->from, failed, undecided, steps, digest,
           seconds_now() - began);
    if (failed != 0) {
        printf("FAILED scenario %s seed 0x%" PRIx64
               "; again: muster-sim --scenario %s --seed 0x%" PRIx64 " --trace\n",
               o->scenario->name, last_failed, o->scenario->name, last_failed);
    }
    return failed == 0 ? 0 : 1;
}

/* Every scenario that should be clean, one after another. */
static int run_scenarios(struct options *o)
{
    int worst = 0;

    for (size_t i = 0; mu_sim_scenarios[i] != NULL; i++) {
        if (!mu_sim_scenarios[i]->planted && !mu_sim_scenarios[i]->slow &&
            (worst == 0 || o->keep_going)) {
            int rc;

            o->scenario = mu_sim_scenarios[i];
            rc = run_seeds(o);
            worst = rc > worst ? rc : worst;
        }
    }
    return worst;
}

static void print_list(bool planted)
{
    for (size_t i = 0; mu_sim_scenarios[i] != NULL; i++) {
        if (mu_sim_scenarios[i]->planted == planted) {
            printf("%-20s %s%s\n", mu_sim_scenarios[i]->name, mu_sim_scenarios[i]->summary,
                   mu_sim_scenarios[i]->slow ? " [slow]" : "");
        }
    }
}

int main(int argc, char **argv)
{
    struct options o = {.from = 1, .count = 1};

    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        print_usage(stdout);
        return 0;
    }
    if (argc == 2 && (strcmp(argv[1], "--list") == 0 || strcmp(argv[1], "--list-planted") == 0)) {
        print_list(strcmp(argv[1], "--list-planted") == 0);
        return 0;
    }
    if (read_options(&o, argc, argv) != 0) {
        print_usage(stderr);
        return 2;
    }
    return o.scenario == NULL ? run_scenarios(&o) : run_seeds(&o);
}
