/*
 * What may never happen when hosts succeed each other, seen from above: the checker is told of
 * every promise, host and committed round of all nodes.
 *
 *  - A node promises a term to one node only.
 *  - A term has one host.
 *  - A host knows, as one of its bases, the last round that was committed before it, by any host
 *    that no other has succeeded since; and a round that is committed later, by a host that was
 *    succeeded meanwhile and does not know, is one of its bases as well.
 *  - No two committed rounds have the same number; no two nodes have the same rank in one.
 *  - A host has the legacy of the last round that was committed before it, or a newer one.
 *  - Of two committed rounds of different terms one is dead: more than half of its nodes have
 *    promised a higher term, and so run nothing of it any more.
 *
 * Each call returns NULL, or what is wrong: a static text. The struct has no pointers, so that it
 * can be copied and compared as bytes.
 */
#ifndef MU_CHECKER_SUCCESSION_H
#define MU_CHECKER_SUCCESSION_H

#include "proto/rdzv/succession.h"

#define SUCC_NODES_MAX   9
#define SUCC_TERMS_MAX   192
#define SUCC_COMMITS_MAX 96

/* An agent that is started anew, or forgets, is another voter. */
struct succ_voter {
    uint8_t node;
    uint8_t life;
};

struct succ_commit {
    uint64_t term;
    uint64_t round;
    uint64_t legacy;
    uint32_t world;
    struct succ_voter voters[SUCC_NODES_MAX];
};

struct succ_term {
    uint8_t host; /* plus 1 */
    uint8_t base_count;
    uint8_t last; /* the index of its last commit, plus 1 */
    struct {
        uint64_t term, round;
    } bases[MU_SUCCESSION_CONFIGS];
};

struct succ_truth {
    struct succ_term terms[SUCC_TERMS_MAX];
    uint32_t commit_count;
    struct succ_commit commits[SUCC_COMMITS_MAX];
    uint8_t lives[SUCC_NODES_MAX];
    uint8_t promised_to[SUCC_NODES_MAX][SUCC_TERMS_MAX]; /* plus 1, of the present life */
    uint64_t promised[SUCC_NODES_MAX];
};

/** The node is another voter from now on: it was started anew, or has forgotten. */
void succ_truth_reborn(struct succ_truth *t, uint32_t node);
/** It has promised that term to `to`, or follows its host `to`. */
const char *succ_truth_promise(struct succ_truth *t, uint32_t node, uint64_t term, uint32_t to);
void succ_truth_follow(struct succ_truth *t, uint32_t node, uint64_t term);
/** After HOST. */
const char *succ_truth_host(struct succ_truth *t, uint32_t node, const struct mu_succession *m);
/** `commit` is filled in but for the lives. */
const char *succ_truth_commit(struct succ_truth *t, const struct succ_commit *commit);
/** The node was told that this is its rank in a round. */
const char *succ_truth_assigned(const struct succ_truth *t, uint32_t node, uint64_t term,
                                uint64_t round, uint32_t rank);

#endif
