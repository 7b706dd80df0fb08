/*
 * --warm: the command that keeps standbys of a worker. It runs zygote.py with the interpreter and
 * the flags that the worker will have, and gives it the rest of the worker's command.
 */
#include <ctype.h>
#include <string.h>

#include "cli/run_options.h"

extern const unsigned char run_zygote_py[];
extern const size_t run_zygote_py_len;

/* So that the program, which is long, stands in one place of the command. */
static const char loader[] = "import sys; exec(sys.argv[1])";

/* "torch,numpy.linalg": names of Python, of which only the first letter is checked closely. */
static bool are_modules(const char *text)
{
    bool first = true;

    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '.' || c == ',') {
            if (first) {
                return false;
            }
            first = true;
        } else if (isalpha(c) || c == '_' || c >= 0x80 || (!first && isdigit(c))) {
            first = false;
        } else {
            return false;
        }
    }
    return !first;
}

static bool is_python(const char *program)
{
    const char *slash = strrchr(program, '/');
    const char *name = slash == NULL ? program : slash + 1;

    return strncmp(name, "python", 6) == 0 && name[6 + strspn(name + 6, "0123456789.")] == '\0';
}

/* How many words of a command are Python and its flags; 0: they are unusual. */
static size_t count_flags(const struct run_texts *argv)
{
    size_t i = 1;

    if (!is_python(argv->items[0])) {
        return 0;
    }
    for (; i < argv->count && argv->items[i][0] == '-'; i++) {
        const char *word = argv->items[i];

        if (strcmp(word, "-m") == 0 || strcmp(word, "-c") == 0) {
            return i + 1 < argv->count ? i : 0;
        }
        if (strcmp(word, "-W") == 0 || strcmp(word, "-X") == 0) {
            i++;
        } else if (word[1] != 'W' && word[1] != 'X' &&
                   (word[1] == '\0' || word[1 + strspn(word + 1, "bBdOqRsuv")] != '\0')) {
            return 0;
        }
    }
    return i < argv->count ? i : 0;
}

static bool has_rank(const struct run_texts *argv, size_t count)
{
    for (size_t i = 0; i < count && i < argv->count; i++) {
        if (strchr(argv->items[i], '$') != NULL) {
            return true;
        }
    }
    return false;
}

static bool add(struct run_texts *t, const char *text)
{
    return run_texts_add(t, text, strlen(text));
}

int run_warm_resolve(struct run_options *o)
{
    size_t flags = o->no_python ? count_flags(&o->argv) : 2;
    bool ok = true;

    if (o->warm == NULL) {
        return 0;
    }
    if (!are_modules(o->warm)) {
        return cli_usage("run", "--warm=%s does not name Python modules, as in --warm=torch,numpy",
                         o->warm);
    }
    if (flags == 0) {
        run_warn("--warm: workers start plainly, because %s is not started as \"python SCRIPT\"",
                 o->argv.items[0]);
        return 0;
    }
    /* What comes behind the name of the script, or of the module, may differ between workers. */
    if (has_rank(&o->argv, flags + (o->argv.items[flags][0] == '-' ? 2 : 1))) {
        run_warn("--warm: workers start plainly, because their scripts differ by local rank");
        return 0;
    }
    for (size_t i = 0; ok && i < flags; i++) {
        ok = add(&o->zygote, o->argv.items[i]);
    }
    ok = ok && add(&o->zygote, "-c") && add(&o->zygote, loader) &&
         run_texts_add(&o->zygote, (const char *)run_zygote_py, run_zygote_py_len) &&
         add(&o->zygote, o->warm);
    for (size_t i = flags; ok && i < o->argv.count; i++) {
        ok = add(&o->zygote, o->argv.items[i]);
    }
    return ok ? 0 : cli_fail(CLI_FAILED, "out of memory");
}
