/* Many reports of stacks on one page. */
#include <stdio.h>

#include "cli/cmd_stacks.h"
#include "cli/stacks_print.h"
#include "core/reader.h"
#include "service/stacks/summary.h"

#define REPORTS_BYTES_MAX ((size_t)4 << 30)
#define PAGE_BYTES_MAX    ((size_t)16 << 20)

void stacks_page_init(struct stacks_page *page, const struct stacks_options *o)
{
    *page = (struct stacks_page){.json = o->json, .all_threads = o->all_threads};
    page->object = o->json ? json_object() : NULL;
    mu_buf_init(&page->reports, REPORTS_BYTES_MAX);
}

void stacks_page_fini(struct stacks_page *page)
{
    mu_buf_fini(&page->reports);
    json_decref(page->object);
}

int stacks_page_add(struct stacks_page *page, struct mu_span report)
{
    struct mu_stacks_report parts;
    int err;

    if (mu_stacks_report_decode(report, &parts) != 0) {
        return 0;
    }
    err = mu_buf_reserve(&page->reports, 4 + report.len);
    if (err == 0) {
        mu_buf_put_u32(&page->reports, (uint32_t)report.len);
        mu_buf_put(&page->reports, report);
        page->count++;
    }
    return err;
}

/* Takes the next report off, which was checked when it was added. */
static bool next(struct mu_reader *r, struct mu_stacks_report *ret_report)
{
    return r->rest.len != 0 && mu_stacks_report_decode(mu_read_span32(r), ret_report) == 0;
}

/* --- the groups ------------------------------------------------------------------------------- */

static void put_groups(struct stacks_page *page, struct mu_span text)
{
    json_t *groups;

    if (!page->json) {
        (void)fwrite(text.data, 1, text.len, stdout);
        return;
    }
    groups = json_loadb((const char *)text.data, text.len, 0, NULL);
    (void)json_object_update(page->object, groups);
    json_decref(groups);
}

static int show_groups(struct stacks_page *page)
{
    struct mu_buf out;
    int err;

    mu_buf_init(&out, PAGE_BYTES_MAX);
    err = mu_stacks_summary(mu_buf_span(&page->reports), page->world, page->json, &out);
    if (err == 0) {
        put_groups(page, mu_buf_span(&out));
    }
    mu_buf_fini(&out);
    return err;
}

/* --- all threads ------------------------------------------------------------------------------ */

static void show_processes(struct stacks_page *page)
{
    struct mu_reader r = mu_reader(mu_buf_span(&page->reports));
    json_t *list = page->json ? json_array() : NULL;
    struct mu_stacks_report report;

    while (next(&r, &report)) {
        if (page->json) {
            (void)json_array_append_new(list, stacks_json(&report));
        } else {
            printf("\n");
            stacks_print(&report);
        }
    }
    if (page->json) {
        (void)json_object_set_new(page->object, "processes", list);
    }
}

int stacks_page_print(struct stacks_page *page)
{
    int err = show_groups(page);

    if (err != 0) {
        return cli_fail(CLI_FAILED, "%s", muster_strerror(err));
    }
    if (page->all_threads) {
        show_processes(page);
    }
    if (page->json) {
        json_t *object = page->object;

        page->object = NULL;
        cli_print_json(object);
    }
    return CLI_OK;
}
