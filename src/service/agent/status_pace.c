/* What the status of an agent says of stragglers. */
#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "service/agent/status.h"

/* --- callbacks -------------------------------------------------------------------------------- */

void mu_agent_status_straggler(struct mu_agent_status *s, const struct mu_straggle_change *change)
{
    struct mu_stragglers *list = &s->stragglers;
    size_t i = 0;

    while (i < list->count && !mu_straggler_is(&list->list[i], &change->who)) {
        i++;
    }
    if (change->word == MU_STRAGGLE_NAMED && i < MU_STRAGGLERS_MAX) {
        s->straggler_count++;
        list->list[i] = change->who;
        list->count = i == list->count ? i + 1 : list->count;
    } else if (change->word == MU_STRAGGLE_OVER && i < list->count) {
        list->count--;
        memmove(&list->list[i], &list->list[i + 1], (list->count - i) * sizeof(list->list[0]));
    }
}

/* Ranks of a node follow each other. */
static void add_rank(struct mu_agent_status *s, const struct mu_straggle *run, uint32_t rank)
{
    struct mu_straggle_rank r = mu_straggle_rank(run, rank);
    struct mu_agent_status_node *node = &s->nodes[r.node];

    s->kept[rank] = r.known ? r.kept_permille : MU_AGENT_STATUS_UNKNOWN;
    if (node->count++ == 0) {
        memcpy(node->name, run->names[r.node], sizeof(node->name));
        node->first = rank;
    }
    if (r.known && r.kept_permille > node->kept_permille) {
        node->kept_permille = r.kept_permille;
    }
}

void mu_agent_status_paced(struct mu_agent_status *s, const struct mu_agent_paced *paced)
{
    const struct mu_straggle *run = paced->run;

    for (uint32_t i = 0; i < s->worker_count; i++) {
        s->workers[i].pace = paced->workers[i];
    }
    mu_free(s->nodes);
    mu_free(s->kept);
    s->nodes = NULL;
    s->kept = NULL;
    s->node_count = s->kept_count = 0;
    if (run == NULL) {
        return;
    }
    s->nodes = mu_calloc(run->config.nodes, sizeof(*s->nodes));
    s->kept = mu_calloc(run->config.world, sizeof(*s->kept));
    if (s->nodes != NULL && s->kept != NULL) {
        s->node_count = run->config.nodes;
        s->kept_count = run->config.world;
        for (uint32_t i = 0; i < s->kept_count; i++) {
            add_rank(s, run, i);
        }
    }
}

/* --- JSON ------------------------------------------------------------------------------------- */

static void put_ranks(struct mu_status_text *t, const struct mu_agent_status *s,
                      const struct mu_agent_status_node *node)
{
    mu_status_put(t, ",\"kept_permille\":[");
    for (uint32_t i = 0; i < node->count && node->first + i < s->kept_count; i++) {
        uint16_t kept = s->kept[node->first + i];

        mu_status_put(t, kept == MU_AGENT_STATUS_UNKNOWN ? "%snull" : "%s%u", i == 0 ? "" : ",",
                      kept);
    }
    mu_status_put(t, "]");
}

static void put_nodes(struct mu_status_text *t, const struct mu_agent_status *s)
{
    for (uint32_t i = 0; i < s->node_count; i++) {
        const struct mu_agent_status_node *node = &s->nodes[i];

        mu_status_put(t, "%s{\"node\":", i == 0 ? "" : ",");
        mu_status_quote(t, node->name);
        mu_status_put(t, ",\"first\":%" PRIu32 ",\"count\":%" PRIu32 ",\"most_permille\":%u",
                      node->first, node->count, node->kept_permille);
        if (s->kept_count <= MU_AGENT_STATUS_RANKS) {
            put_ranks(t, s, node);
        }
        mu_status_put(t, "}");
    }
}

void mu_agent_status_put_stragglers(struct mu_status_text *t, const struct mu_agent_status *s)
{
    if (s->ended) {
        return;
    }
    if (s->node_count != 0) {
        mu_status_put(t, ",\"paces\":[");
        put_nodes(t, s);
        mu_status_put(t, "]");
    }
    if (s->stragglers.count == 0) {
        return;
    }
    mu_status_put(t, ",\"stragglers\":[");
    for (size_t i = 0; i < s->stragglers.count; i++) {
        const struct mu_straggler *who = &s->stragglers.list[i];

        mu_status_put(t,
                      "%s{\"rank\":%" PRIu32 ",\"ranks\":%" PRIu32 ",\"node\":", i == 0 ? "" : ",",
                      who->rank, who->rank_count);
        mu_status_quote(t, who->node);
        mu_status_put(t,
                      ",\"kept_permille\":%u,\"delay_permille\":%u,\"text\":", who->kept_permille,
                      who->delay_permille);
        mu_status_quote(t, who->text);
        mu_status_put(t, "}");
    }
    mu_status_put(t, "]");
}

/* --- Prometheus ------------------------------------------------------------------------------- */

static void put_ratio(struct mu_status_text *t, const struct mu_agent_status *s, const char *name,
                      uint32_t worker, uint32_t permille)
{
    mu_status_put(t, "%s{run=", name);
    mu_status_quote(t, s->config->rdzv.run_id);
    mu_status_put(t, ",rank=\"%" PRIu32 "\"} %" PRIu32 ".%03" PRIu32 "\n",
                  s->attempt.ranks.base + worker, permille / 1000, permille % 1000);
}

void mu_agent_status_pace_metrics(struct mu_status_text *t, const struct mu_agent_status *s)
{
    static const struct {
        const char *name;
        const char *type;
        const char *help;
    } ratios[] = {
        {"muster_agent_waits_ratio", "gauge",
         "Share of the time that a worker waits for other ranks."},
        {"muster_agent_kept_waiting_ratio", "gauge",
         "Share of the time that a worker keeps the others waiting."},
        {"muster_agent_sched_delay_ratio", "gauge",
         "Share of the time that others had a worker's CPU."},
    };

    mu_status_metric(t, "muster_agent_stragglers_total", "counter",
                     "Stragglers of the run that were named.");
    mu_status_put(t, "muster_agent_stragglers_total{run=");
    mu_status_quote(t, s->config->rdzv.run_id);
    mu_status_put(t, "} %" PRIu64 "\n", s->straggler_count);
    mu_status_metric(t, "muster_agent_stragglers", "gauge",
                     "Ranks or nodes that keep the others waiting now.");
    mu_status_put(t, "muster_agent_stragglers{run=");
    mu_status_quote(t, s->config->rdzv.run_id);
    mu_status_put(t, "} %zu\n", s->ended ? 0 : s->stragglers.count);
    for (size_t m = 0; s->has_attempt && m < sizeof(ratios) / sizeof(ratios[0]); m++) {
        mu_status_metric(t, ratios[m].name, ratios[m].type, ratios[m].help);
        for (uint32_t i = 0; i < s->worker_count && i < MU_AGENT_STATUS_WORKERS; i++) {
            const struct mu_straggle_rank *p = &s->workers[i].pace;

            if (p->known) {
                put_ratio(t, s, ratios[m].name, i,
                          m == 0   ? p->waits_permille
                          : m == 1 ? p->kept_permille
                                   : p->delay_permille);
            }
        }
    }
}
