#include "service/stacks/summary.h"

#include "core/reader.h"
#include "proto/stacks/flight_gather.h"
#include "proto/stacks/group.h"

static int add_all(struct mu_groups *groups, struct mu_span reports)
{
    struct mu_reader r = mu_reader(reports);
    struct mu_stacks_report report;
    int err = 0;

    while (err == 0 && r.rest.len != 0 && !r.failed) {
        if (mu_stacks_report_decode(mu_read_span32(&r), &report) == 0) {
            err = mu_groups_add(groups, &report);
        }
    }
    return err;
}

int mu_stacks_summary(struct mu_span reports, uint32_t world, bool json, struct mu_buf *out)
{
    struct mu_groups_config config;
    struct mu_groups groups;
    int err;

    mu_groups_defaults(&config);
    config.world = world;
    mu_groups_init(&groups, &config);
    err = add_all(&groups, reports);
    if (err == 0) {
        err = json ? mu_groups_write_json(&groups, out) : mu_groups_write_text(&groups, out);
    }
    mu_groups_fini(&groups);
    return err;
}

int mu_stacks_flights(struct mu_span flights, bool json, struct mu_buf *out)
{
    struct mu_flights f;
    int err;

    mu_flights_init(&f);
    err = mu_flights_add(&f, flights);
    if (err == 0) {
        err = json ? mu_flights_write_json(&f, out) : mu_flights_write_text(&f, out);
    }
    mu_flights_fini(&f);
    return err;
}
