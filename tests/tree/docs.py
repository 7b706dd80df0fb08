#!/usr/bin/python3
"""Whether what the pages say is so: links, names of files, commands and their options, code.

usage: docs.py MUSTER TREE [--self-test]

Every link within the tree leads to a file and a heading that are there. Every `muster` in a block
of code, in backticks or in an example of a manual page is a command that there is, with options
that it takes; every `make` is a target; every path and every name of a source file is one of this tree. Shell, Python, YAML and JSON
between fences are parsed; the examples in the headers' comments are compiled. What can also be run
is run by tests/interop/docs_run.py.

With --self-test each fault is planted in a copy of the pages, and must be seen.
"""
import ast
import glob
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import pages

FOLDERS = "src|include|tests|tools|docs|examples|bench|sim|data|deploy"
# Names that stand for files of others.
FOREIGN = {"uv.h", "lmdb.h", "stdio.h", "train.py", "data.py", "hello.c"}


def load_completions(root):
    path = os.path.join(root, "tools", "completions")
    loader = importlib.machinery.SourceFileLoader("completions", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("completions", loader))
    loader.exec_module(module)
    return module


class Commands:
    """What `muster` takes, as it says itself."""

    def __init__(self, root, muster):
        self.root = root
        self.verbs = {verb.name: verb for verb in load_completions(root).read_verbs(muster)}
        self.flags = set(re.findall(r"^  (-\w+) ", subprocess.run(
            [muster, "p2pd", "--help"], stdout=subprocess.PIPE, check=True,
            universal_newlines=True).stdout, re.M))
        with open(os.path.join(root, "Makefile"), encoding="utf-8") as file:
            makefile = file.read()
        self.targets = set(" ".join(re.findall(r"^([a-z][a-z -]*):", makefile, re.M)).split())

    def find_option(self, verb, word):
        """(name, whether it takes a value), or None."""
        name = word.split("=")[0]
        if verb.name == "run":
            name = name[:2] + name[2:].replace("_", "-")
        for letter, long, value, _ in verb.options:
            if name in (letter, "--" + long):
                return "--" + long, bool(value)
        return None

    def check(self, words):
        """What is wrong with `muster WORDS...`."""
        if not words or words[0] in ("--help", "--version", "help", "version"):
            return
        if words[0] not in self.verbs:
            yield f"there is no `muster {words[0]}`"
            return
        verb = self.verbs[words[0]]
        if verb.name == "p2pd":
            for word in words[1:]:
                if word.startswith("-") and word.split("=")[0].replace("--", "-") not in self.flags:
                    yield f"`muster p2pd` has no {word}"
            return
        plain, skip = [], False
        for word in words[1:]:
            if skip:
                skip = False
            elif word.startswith("-") and len(word) > 1 and not re.match(r"-\d", word):
                if word == "--":
                    break
                found = self.find_option(verb, word)
                if not found:
                    yield f"`muster {verb.name}` has no {word}"
                else:
                    skip = found[1] and "=" not in word
            else:
                plain.append(word)
                if verb.name == "run":
                    break
        if skip:
            yield f"`muster {verb.name}`: {words[-1]} wants a value"
        if verb.words and plain and re.fullmatch(r"[a-z]+", plain[0]) and \
                plain[0] not in verb.words:
            yield f"there is no `muster {verb.name} {plain[0]}`"

    def check_loose(self, text):
        """The same of what stands in backticks, which may be a mere shape: [OPTIONS] FILE…"""
        found = re.match(r"(?:build/|\./build/)?muster ([a-z0-9]+)\b(.*)", text)
        if not found or found[1] not in self.verbs:
            if found and found[1] not in ("help", "version") and not re.match(r"[a-z0-9]+:", found[0][7:]):
                yield f"there is no `muster {found[1]}`"
            return
        verb = self.verbs[found[1]]
        rest = found[2].split(" -- ")[0]
        for word in re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]*", rest):
            if verb.name == "p2pd" and word[1:] in self.flags:
                continue
            if not self.find_option(verb, word):
                yield f"`muster {verb.name}` has no {word}"


class Tree:
    """The files that are there."""

    def __init__(self, root):
        self.root = root
        self.names = set()
        for _, folders, names in os.walk(root):
            folders[:] = [f for f in folders if not f.startswith((".", "build", "node_modules"))]
            self.names |= set(names)

    def has(self, path):
        path = path.rstrip("/").rstrip(".,:;")
        return bool(glob.glob(os.path.join(self.root, path)))


def check_links(page, all_pages, tree):
    anchors = {other.path: other.anchors for other in all_pages}
    for number, target in page.links():
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        here = os.path.dirname(page.path)
        full = os.path.normpath(os.path.join(here, path)) if path else page.path
        if not os.path.exists(os.path.join(tree.root, full)):
            yield number, f"the link to {target} leads nowhere"
        elif anchor and anchor not in anchors.get(full, set()):
            yield number, f"{full} has no heading #{anchor}"


def check_index(all_pages):
    """Every page of docs/ is in its index."""
    index = next((page for page in all_pages if page.path == "docs/README.md"), None)
    linked = {target for _, target in index.links()} if index else set()
    for page in all_pages:
        name = os.path.basename(page.path)
        if page.path.startswith("docs/") and page is not index and name not in linked:
            yield f"docs/README.md:1: {name} is not in the index"


def check_table(all_pages, commands):
    """Every command is in the README's table."""
    text = "\n".join(line for _, line in all_pages[0].prose)
    for verb in commands.verbs:
        if not re.search(rf"^\| `muster {verb}\b", text, re.M):
            yield f"README.md:1: `muster {verb}` is not in the table of commands"


def read_verbs(root):
    """{verb: (the kinds of stores that know it, what the others lack)}, from the store's table."""
    with open(os.path.join(root, "src", "codec", "store", "op.h"), encoding="utf-8") as file:
        text = file.read()
    sets = {name: set(re.findall(r"MU_STORE_IN_(\w+)", value)) or {name} - {"NONE"}
            for name, value in re.findall(r"#define MU_STORE_IN_(\w+) +(.*)", text)}
    kinds = {name: set().union(*(sets[part] for part in parts)) for name, parts in sets.items()}
    return {verb: (kinds[known], lack.strip('"')) for verb, known, lack in
            re.findall(r'^    X\(\w+, +\d+, "(\w+)",.* (\w+), +(NULL|".*")\)', text, re.M)}


# The rows of the table of kinds, by words in them.
KINDS = {"2.x's TCPStore": "TORCH2", "1.13's TCPStore": "TORCH1", "FileStore": "FILE",
         "EtcdStore": "ETCD2"}


def check_store(all_pages, root):
    """The tables of docs/store.md and the store's own say the same of its verbs."""
    verbs = read_verbs(root)
    rows = [(number, [cell.strip() for cell in line.split("|")[1:-1]]) for page in all_pages
            if page.path == "docs/store.md" for number, line in page.prose if line.startswith("|")]
    named = [name for _, cells in rows if len(cells) == 2 for name in cells[0].split(", ")]
    for verb in verbs:
        if named.count(verb) != 1:
            yield f"docs/store.md:1: {verb} does not have its place in the table of operations"
    before = ""
    for words, kind in KINDS.items():
        number, said = next(((number, cells[2]) for number, cells in rows
                             if len(cells) == 3 and words in cells[1]), (1, ""))
        before = said = said.replace("the same, and", before + ",")
        items = {re.sub("^a ", "", item.strip()) for item in said.split(",")}
        # A barrier is made of other verbs.
        lacks = {lack for known, lack in verbs.values() if kind not in known} - {"NULL", "barriers"}
        if not verbs or items - {"keys bound to a session"} != lacks:
            yield f"docs/store.md:{number}: {words} lacks {', '.join(sorted(lacks))}"


def check_names(page, tree):
    """Paths and names of sources, in backticks or in blocks; man pages."""
    texts = list(page.snippets())
    for block in page.blocks:
        texts += [(block.number + i, line) for i, line in enumerate(block.lines)]
    for number, text in texts:
        for path in re.findall(rf"(?<![\w/.:$}}-])(?:\./)?((?:{FOLDERS})/[\w./*{{}},-]*)", text):
            # NAME stands for a name.
            if not re.search(r"[{A-Z]", path) and not tree.has(path):
                yield number, f"there is no {path}"
        for name in re.findall(r"(?<![\w./*-])([a-z][\w]*\.(?:c|h|py))\b(?!/)", text):
            if name not in tree.names | FOREIGN:
                yield number, f"there is no file {name}"
        for name in re.findall(r"(?<![\w/.])(muster/\w+\.h)\b", text):
            if not tree.has("include/" + name):
                yield number, f"there is no {name}"
    for number, line in page.prose:
        for name, section in re.findall(r"\b(muster(?:-\w+)?)\(([17])\)", line):
            if not tree.has(f"docs/man/{name}.{section}"):
                yield number, f"there is no manual page {name}({section})"


def check_make(number, words, commands):
    for word in words:
        if "=" in word or word.startswith("-"):
            continue
        if re.fullmatch(r"[a-z][a-z-]*", word) and word not in commands.targets:
            yield number, f"there is no `make {word}`"
        else:
            return


def check_blocks(blocks, commands):
    for block in blocks:
        if block.language not in ("", "sh", "bash", "console") or "─" in block.text():
            continue
        for number, line in block.commands():
            words = pages.split_command(line)
            if words is None:
                # A drawing, or words beside a command.
                words = line.split()
            for rest in pages.muster_words(words):
                for fault in commands.check(cut_remark(rest)):
                    yield number, fault
            if words[:1] and re.fullmatch(r"(\./)?(tools/)?make", words[0]):
                yield from check_make(number, words[1:2], commands)


def check_commands(page, commands):
    yield from check_blocks(page.blocks, commands)
    for number, text in page.snippets():
        for fault in commands.check_loose(text):
            yield number, fault
        found = re.match(r"make ([a-z][a-z-]*)", text)
        if found:
            yield from check_make(number, [found[1]], commands)


def cut_remark(words):
    """Ends at what is plainly not of the command: `muster state pull X    on another machine`."""
    for i, word in enumerate(words):
        if word in ("...", "…"):
            return words[:i] + ["..."] * words[i - 1].startswith("-")
    return words


def muster_lists(value):
    """Every list in a YAML document that is a command line of muster."""
    if isinstance(value, dict):
        if isinstance(value.get("command"), list) and value["command"][:1] == ["muster"]:
            yield [str(word) for word in value["command"][1:] + value.get("args", [])]
        for part in value.values():
            yield from muster_lists(part)
    elif isinstance(value, list):
        for part in value:
            yield from muster_lists(part)


def check_code(page, commands):
    for block in page.blocks:
        try:
            if block.language in ("sh", "bash"):
                done = subprocess.run([block.language, "-n"], input=block.text(),
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      universal_newlines=True)
                if done.returncode:
                    yield block.number, "not shell: " + done.stdout.strip()
            elif block.language == "c":
                # A part of a program is put into a function.
                whole = "#include" in block.text()
                fault = compile_c(commands.root, block.text() if whole else
                                  PRELUDE + "void part(void);\nvoid part(void)\n{\n" +
                                  block.text() + "}\n")
                if fault:
                    yield block.number, "not C: " + fault
            elif block.language == "python":
                ast.parse(block.text())
            elif block.language == "json":
                json.loads(block.text())
            elif block.language == "yaml":
                import yaml
                for document in yaml.safe_load_all(block.text()):
                    for words in muster_lists(document):
                        for fault in commands.check(words):
                            yield block.number, fault
        except (SyntaxError, ValueError) as error:
            yield block.number, f"not {block.language}: {error}"
        except Exception as error:  # of PyYAML, which has no common name for its own
            yield block.number, f"not {block.language}: {type(error).__name__} {error}"


# --- the examples of the headers ------------------------------------------------------------------

# What they leave to the reader.
PRELUDE = """
#include <muster/muster.h>
#pragma GCC diagnostic ignored "-Wunused"
void die(const char *); void complain(const char *); void use(struct muster_bytes);
void set_learning_rate_from(struct muster_bytes); void step(void);
uint64_t take_gradients(void); void train_from(uint64_t);
extern muster_runtime *rt, *runtime; extern muster_store *store; extern muster_rpc_agent *agent;
extern muster_rpc_future *future; extern muster_rpc_stream *stream; extern muster_state *state;
extern muster_average *average; extern struct muster_average_result *result;
extern muster_progress *progress; extern muster_state_copy *copy;
extern muster_rpc_call_in *call_in;
extern struct muster_rpc_request request, use_it;
extern struct muster_progress_hooks hooks; extern struct muster_state_request load;
extern const struct muster_rpc_part *parts; extern size_t count; extern int n; extern size_t size;
extern struct muster_tensor *tensors, *mine; extern muster_rref *taken;
extern uint64_t samples, epoch; extern muster_rpc_handler add;
void look_at(const struct muster_queued *); extern void *me; extern muster_op *op;
"""


def header_examples(path):
    """(number, lines) of each display of C in a header's comments."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    number, display = 0, []
    for i, line in enumerate(lines + [""], 1):
        found = re.match(r" \*     (.*)$", line)
        if found or (display and line == " *"):
            if not display:
                number = i
            display.append(found[1] if found else "")
            continue
        if any(";" in shown for shown in display):
            yield number, display
        display = []


def make_compilable(lines):
    """Takes out what is said to the reader beside the code."""
    out = []
    for line in lines:
        line = re.sub(r"([;{},)])\s{2,}[^\s/*].*$", r"\1", line)  # words in a column of their own
        line = re.sub(r"^(\s*\.\.\.|\s{30,}\w).*$", "", line)
        line = line.replace(", ...}", "}")
        if re.match(r"\s*[a-z]+ [a-z ,]+$", line):  # a line of words
            line = ""
        out.append(line)
    return "\n".join(out)


def compile_c(root, source):
    """The first fault that the compiler finds, or None."""
    done = subprocess.run(["gcc", "-std=gnu17", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-unused",
                           "-Wno-missing-field-initializers", "-I", os.path.join(root, "include"),
                           "-x", "c", "-"],
                          input=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    if done.returncode or "warning" in done.stdout:
        return next((line for line in done.stdout.split("\n")
                     if "error" in line or "warning" in line), done.stdout)
    return None


def check_headers(tree):
    for path in sorted(glob.glob(os.path.join(tree.root, "include", "muster", "*.h"))):
        shown = os.path.relpath(path, tree.root)
        examples = list(header_examples(path))
        for number, lines in examples:
            code = make_compilable(lines)
            # Those of one comment go on where the one before ended, so each may use its names.
            source = PRELUDE + f"void example_{number}(void);\nvoid example_{number}(void)\n" + \
                "{\n" + HEADER_NAMES.get(os.path.basename(path), "") + "{\n" + code + "\n}}\n"
            fault = compile_c(tree.root, source)
            if fault:
                yield shown, number, "the example does not compile: " + fault


# Names that an example of that header takes from the text around it.
HEADER_NAMES = {
    "rref.h": "muster_rref *mine; muster_rpc_call_in *call = call_in;",
    "rpc.h": "struct muster_rpc_part *given = 0; size_t part_count = 0;",
    "state.h": "struct muster_state_config config = muster_state_config_defaults();\n"
               "struct muster_state_request request = muster_state_request_defaults();\n"
               "size_t n = 0;",
    "queue.h": "size_t i, n;",
    "progress.h": "struct muster_state_request request = muster_state_request_defaults();",
}


# --- all of it ------------------------------------------------------------------------------------

def check_tree(root, commands):
    """Every fault as "FILE:LINE: sentence", and how many pages, links and commands there were."""
    all_pages = pages.read_pages(root)
    tree = Tree(root)
    faults = list(check_index(all_pages)) + list(check_table(all_pages, commands)) + \
        list(check_store(all_pages, root))
    for page in all_pages:
        found = list(check_links(page, all_pages, tree)) + list(check_commands(page, commands)) + \
            list(check_code(page, commands))
        if page.path != "CHANGELOG.md":
            found += list(check_names(page, tree))
        faults += [f"{page.path}:{number}: {sentence}" for number, sentence in sorted(found)]
    for path in sorted(glob.glob(os.path.join(root, "docs", "man", "*.[1-8]"))):
        faults += [f"{os.path.relpath(path, root)}:{number}: {sentence}" for number, sentence in
                   check_blocks(pages.manual_blocks(path), commands)]
    return faults, all_pages


def copy_pages(root, work):
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile"):
        shutil.copy(os.path.join(root, name), work)
    for name in ("docs", "tools", "include"):
        shutil.copytree(os.path.join(root, name), os.path.join(work, name))
    for name in FOLDERS.split("|"):
        if not os.path.exists(os.path.join(work, name)):
            os.symlink(os.path.join(root, name), os.path.join(work, name))


PLANTED = {
    "See [here](docs/nothing.md).": "leads nowhere",
    "See [there](docs/run.md#nothing).": "no heading #nothing",
    "Run `muster fly --high`.": "no `muster fly`",
    "Run `muster serve --fly`.": "has no --fly",
    "    build/muster kv --store tcp://a fly away": "no `muster kv fly`",
    "    A=b muster run --nnodes 2 --fly train.py": "has no --fly",
    "    muster rdzv join --rdzv-id": "wants a value",
    "    true && muster state fly x": "no `muster state fly`",
    "    muster p2pd -fly=1": "has no -fly=1",
    "    make fly": "no `make fly`",
    "It is in `src/core/nothing.h`.": "no src/core/nothing.h",
    "It is in `nothing_at_all.h`.": "no file nothing_at_all.h",
    "Include `muster/nothing.h`.": "no muster/nothing.h",
    "See muster-fly(1).": "no manual page",
    "```sh\nif true; do\n```": "not shell",
    "```python\ndef (:\n```": "not python",
    "```yaml\na: [\n```": "not yaml",
    "```yaml\ncommand: [muster, run, --fly, x]\n```": "has no --fly",
    "```json\n{a}\n```": "not json",
    "```c\n#include <muster/store.h>\nint x = muster_store_fly();\n```": "not C",
}


def self_test(root, muster):
    commands = Commands(root, muster)
    missed = 0
    with tempfile.TemporaryDirectory() as work:
        copy_pages(root, work)
        before, _ = check_tree(work, commands)
        with open(os.path.join(work, "README.md"), encoding="utf-8") as file:
            readme = file.read()
        for fault, words in PLANTED.items():
            with open(os.path.join(work, "README.md"), "w", encoding="utf-8") as file:
                file.write(readme + "\nText.\n\n" + fault + "\n")
            after, _ = check_tree(work, commands)
            if not any(words in line for line in after if line not in before):
                print(f"not seen: {fault!r}")
                missed += 1
        with open(os.path.join(work, "docs", "man", "muster.1"), "a", encoding="utf-8") as file:
            file.write(".Dl muster serve --fly\n.Pp\n")
        if not any("muster.1" in line for line in check_tree(work, commands)[0]):
            print("not seen: a wrong option in a manual page")
            missed += 1
        for old, new, words in (("| barrier |", "| barriers |", "barrier does not have its place"),
                                ("| queues, watches,", "| watches,", "FileStore lacks")):
            path = os.path.join(work, "docs", "store.md")
            with open(path, encoding="utf-8") as file:
                text = file.read()
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace(old, new))
            if not any(words in line for line in check_tree(work, commands)[0]):
                print(f"not seen: {new!r} in docs/store.md")
                missed += 1
        header = os.path.join(work, "include", "muster", "store.h")
        with open(header, encoding="utf-8") as file:
            text = file.read()
        with open(header, "w", encoding="utf-8") as file:
            file.write(text.replace("muster_runtime_new(&rt)", "muster_runtime_new(rt)"))
        if not list(check_headers(Tree(work))):
            print("not seen: an example that does not compile")
            missed += 1
    print(f"{len(PLANTED) + 4} faults planted, {missed} not seen")
    return 1 if missed else 0


def main(muster, root, *mode):
    muster, root = os.path.abspath(muster), os.path.abspath(root)
    if mode:
        return self_test(root, muster)
    faults, all_pages = check_tree(root, Commands(root, muster))
    faults += [f"{path}:{number}: {sentence}"
               for path, number, sentence in check_headers(Tree(root))]
    for fault in faults:
        print(fault)
    links = sum(len(list(page.links())) for page in all_pages)
    blocks = sum(len(page.blocks) for page in all_pages)
    print(f"{len(all_pages)} pages, {links} links, {blocks} blocks of code: {len(faults)} faults")
    return 1 if faults or not links or not blocks else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
