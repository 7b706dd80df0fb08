#!/usr/bin/python3
"""Whether what CONTRIBUTING.md and ARCHITECTURE.md list is all that is in the tree.

usage: guide.py ROOT [--self-test]

Every store verb is in each file that the list for verbs names; every command has each of the files
that the list for commands names; every metric is in docs/operate.md, and no other; every fuzz target
has its source and its inputs. The lists for the public API name the files that tests/tree/symbols.py
compares. The list has to name each of these files, so that a step which a new verb needs cannot be
left out of it.

In ARCHITECTURE.md every verb of the environment has its place in the table of them, which the header
repeats, and the drawing of the rooms has every room above those that it uses by the table of walls.
"""
import os
import re
import shutil
import sys
import tempfile

ALL = {"READS", "LISTS", "CHANGES", "WATCHES", "LEASES"}
# Where a verb stands, by what it does to keys.
VERB_FILES = {
    "src/codec/store/op.h": ALL,
    "include/muster/store.h": ALL,
    "src/proto/store/keyspace.h": {"CHANGES", "WATCHES", "LEASES"},
    "src/service/store/exec.c": ALL,
    "src/proto/store/backing_write.c": {"CHANGES"},
    "src/proto/store/backing_read.c": {"READS", "LISTS"},
    "src/service/store/etcd_op.c": ALL,
    "src/api/store.c": ALL - {"WATCHES"},
    "src/cli/kv_ops.c": ALL,
    "docs/store.md": ALL,
    "tests/api/test_store.c": ALL,
}
# Where a command stands: a file, and what is in it. NAME is the command's.
COMMAND_FILES = {
    "src/cli/cmd_NAME.c": r"^int cmd_NAME\(",
    "src/cli/meson.build": r"'cmd_NAME\.c'",
    "src/cli/cli.h": r"^int cmd_NAME\(",
    "src/cli/main.c": r'\{"NAME", cmd_NAME,',
    "docs/man/muster-NAME.1": r"^\.Dt MUSTER-",
    "docs/man/meson.build": r"'muster-NAME\.1'",
    "docs/man/muster.1": r"muster-NAME 1",
    "README.md": r"^\| `muster NAME\b",
}
# Where metrics are made: a file, how it names them, and what it leaves off.
METRIC_FILES = {
    "src/service/server/status.c": (r'FIGURE\("(\w+)"|# HELP muster_([a-z]\w*)', "muster_"),
    "src/service/agent/status.c": (r'"(muster_[a-z_]+)", "(?:gauge|counter)"', ""),
    "src/service/agent/status_pace.c": (r'"(muster_[a-z_]+)", "(?:gauge|counter)"', ""),
    "src/cli/state_page.c": (r'"(muster_[a-z_]+)", "(?:gauge|counter)"', ""),
}

# What the lists for the public API name.
API_FILES = {
    "To add a field to a public struct": ("tests/api/test_sized.c",),
    "To add a public function": ("src/api/symbols.txt", "include/muster/types.h", "src/api/args.h",
                                 "tests/api/test_timeouts.c"),
}


def read(root, path):
    try:
        with open(os.path.join(root, path), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def section_of(text, heading):
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#)", text + "\n#", re.M | re.S)
    return found[1] if found else ""


def check_verbs(root, guide):
    table = read(root, "src/codec/store/op.h")
    verbs = re.findall(r'^    X\(\w+, +\d+, "(\w+)",.*?, ([A-Z]+), +[A-Z]+, ', table, re.M)
    if not verbs:
        yield "src/codec/store/op.h: no table of verbs"
    listed = section_of(guide, "To add a store verb")
    for path, kinds in VERB_FILES.items():
        if f"`{path}`" not in listed:
            yield f"CONTRIBUTING.md: the list for a store verb does not name {path}"
        text = read(root, path) or ""
        for verb, does in verbs:
            if does in kinds and not re.search(rf"(?<![a-z]){verb}(?![a-z])", text, re.I):
                yield f"{path}: the verb {verb} is not in it"


def check_commands(root, guide):
    names = re.findall(r'^    \{"(\w+)", cmd_', read(root, "src/cli/main.c"), re.M)
    if not names:
        yield "src/cli/main.c: no table of commands"
    listed = section_of(guide, "To add a command")
    for path, pattern in COMMAND_FILES.items():
        if f"`{path}`" not in listed:
            yield f"CONTRIBUTING.md: the list for a command does not name {path}"
        for name in names:
            text = read(root, path.replace("NAME", name))
            if text is None or not re.search(pattern.replace("NAME", name), text, re.M):
                yield f"{path.replace('NAME', name)}: the command {name} is not in it"


def check_metrics(root, guide):
    made = set()
    listed = section_of(guide, "To add a metric")
    for path, (pattern, prefix) in METRIC_FILES.items():
        if f"`{path}`" not in listed:
            yield f"CONTRIBUTING.md: the list for a metric does not name {path}"
        made |= {prefix + "".join(names) if isinstance(names, tuple) else prefix + names
                 for names in re.findall(pattern, read(root, path))}
    told = set()
    for paragraph in section_of(read(root, "docs/operate.md"), "Metrics").split("\n\n"):
        prefix = "muster"
        for name in re.findall(r"`(muster_\w+|_\w+)(?:\{[\w,]+\})?`", paragraph):
            if name.startswith("_"):
                told.add(prefix + name)
            else:
                told.add(name)
                known = re.match(r"muster_(?:agent|state)(?=_)", name)
                prefix = known[0] if known else "muster"
    if not made:
        yield "no metric was found"
    for name in sorted(made - told):
        yield f"docs/operate.md: the metric {name} is not under \"Metrics\""
    for name in sorted(told - made):
        yield f"docs/operate.md: there is no metric {name}"


def check_parsers(root, guide):
    build = "tests/fuzz/meson.build"
    names = re.findall(r"^  '(\w+)',$", read(root, build), re.M)
    if not names:
        yield f"{build}: no list of targets"
    listed = section_of(guide, "To add a parser of bytes from outside")
    for path in ("tests/fuzz/fuzz_NAME.c", build, "tests/fuzz/corpus/NAME/"):
        if f"`{path}`" not in listed:
            yield f"CONTRIBUTING.md: the list for a parser does not name {path}"
    for name in names:
        if read(root, f"tests/fuzz/fuzz_{name}.c") is None:
            yield f"{build}: there is no tests/fuzz/fuzz_{name}.c"
        corpus = os.path.join(root, "tests", "fuzz", "corpus", name)
        if not os.path.isdir(corpus) or not os.listdir(corpus):
            yield f"{build}: tests/fuzz/corpus/{name} has no inputs"
    sources = os.listdir(os.path.join(root, "tests", "fuzz"))
    for name in sorted(re.sub(r"^fuzz_|\.c$", "", source) for source in sources
                       if re.match(r"fuzz_\w+\.c$", source)):
        if name not in names:
            yield f"{build}: it does not name the target {name}"


def check_api(root, guide):
    for heading, paths in API_FILES.items():
        listed = section_of(guide, heading)
        for path in paths:
            if f"`{path}`" not in listed:
                yield f"CONTRIBUTING.md: \"{heading}\" does not name {path}"
            if read(root, path) is None:
                yield f"{path}: there is no such file"


def check_env(root, page):
    header = read(root, "src/core/env.h")
    ops = re.search(r"^struct mu_env_ops \{(.*?)^\};", header, re.M | re.S)[1]
    verbs = re.findall(r"\(\*(\w+)\)\(struct mu_env \*env", ops)
    section = section_of(page, "The environment")
    said = re.search(r"Its (\d+) verbs", section)
    if not said or int(said[1]) != len(verbs):
        yield f"ARCHITECTURE.md: the environment has {len(verbs)} verbs"
    comment = header[:header.index("#ifndef")]
    for verb in verbs:
        if not re.search(rf"^\|.*`{verb}`.*\|$", section, re.M):
            yield f"ARCHITECTURE.md: the verb {verb} is not in the table of the environment"
        if not re.search(rf"^ \* {{5,}}.*\b{verb}\b(?!\()", comment, re.M):
            yield f"src/core/env.h: the verb {verb} is in no group"


def check_order(page):
    """Each room of the table of walls is drawn, above all rooms that it uses."""
    drawing = re.search(r"^<!-- order -->\n\n((?: {7}.*\n)+)", page, re.M)
    lines, layer = {}, ""
    for number, line in enumerate(drawing[1].splitlines() if drawing else []):
        words = line.split()
        layer = words.pop(0) if line[7] != " " else layer
        for room in words or [""]:
            lines[f"{layer}/{room}".rstrip("/")] = number
    table = re.search(r"^<!-- walls -->$(.*?)^<!-- /walls -->$", page, re.M | re.S)[1]
    for room, uses in re.findall(r"^\| `([\w/]+)` \| ([^|]*) \|", table, re.M):
        if room not in lines:
            yield f"ARCHITECTURE.md: the room {room} is not in the drawing of their order"
        for other in filter(None, uses.split(", ")):
            if lines.get(room, 0) >= lines.get(other, len(lines)):
                yield f"ARCHITECTURE.md: {room} uses {other}, and is not drawn above it"


def check(root):
    guide = read(root, "CONTRIBUTING.md")
    page = read(root, "ARCHITECTURE.md")
    faults = list(check_env(root, page)) + list(check_order(page))
    lists = (check_verbs, check_commands, check_metrics, check_parsers, check_api)
    return faults + [fault for one in lists for fault in one(root, guide)]


# A file, what is replaced in it by what, and a part of the sentence that must follow.
PLANTED = [
    ("CONTRIBUTING.md", "`src/api/symbols.txt`", "`symbols.txt`", "does not name src/api/symbols.txt"),
    ("CONTRIBUTING.md", "### To add a field", "### To add fields", "does not name tests/api/test_sized.c"),
    ("CONTRIBUTING.md", "`src/service/store/exec.c`", "`exec.c`", "does not name src/service/store/exec.c"),
    ("CONTRIBUTING.md", "### To add a command", "### To add", "for a command does not name README.md"),
    ("src/codec/store/op.h", '"append", ', '"prepend",', "src/api/store.c: the verb prepend"),
    ("src/service/store/etcd_op.c", "QUEUE_LEN", "QUEUE_SIZE", "etcd_op.c: the verb queue_len"),
    ("src/cli/main.c", '{"top", cmd_top,', '{"tip", cmd_tip,', "docs/man/muster-tip.1: the command tip"),
    ("README.md", "| `muster top", "| muster top", "README.md: the command top"),
    ("src/service/server/status.c", '"commits_total"', '"commit_total"', "the metric muster_commit_total"),
    ("docs/operate.md", "`_restarts_total`, ", "", "the metric muster_agent_restarts_total"),
    ("docs/operate.md", "`_donors`", "`_givers`", "no metric muster_state_givers"),
    ("ARCHITECTURE.md", "`trust`, ", "", "the verb trust is not in the table"),
    ("ARCHITECTURE.md", "Its 32 verbs", "Its 12 verbs", "the environment has 32"),
    ("src/core/env.h", "dial_plain, listen,", "listen,", "the verb dial_plain is in no group"),
    ("ARCHITECTURE.md", "store  state  p2pd  rpc\n", "store  state  rpc\n", "service/p2pd is not in the drawing"),
    ("ARCHITECTURE.md", "                  rdzv\n                  server\n",
     "                  server\n                  rdzv\n", "service/rdzv uses service/server, and is not drawn"),
    ("tests/fuzz/meson.build", "  'url',\n", "", "does not name the target url"),
    ("tests/fuzz/meson.build", "  'url',\n", "  'url',\n  'urls',\n", "no tests/fuzz/fuzz_urls.c"),
]


def copy_tree(root, to):
    for folder in ("src", "include", "docs", "tests/api", "tests/fuzz"):
        shutil.copytree(os.path.join(root, folder), os.path.join(to, folder))
    for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"):
        shutil.copy(os.path.join(root, name), to)


def self_test(root):
    missed = 0
    with tempfile.TemporaryDirectory() as work:
        copy_tree(root, work)
        before = check(work)
        for path, old, new, words in PLANTED:
            text = read(work, path)
            with open(os.path.join(work, path), "w", encoding="utf-8") as file:
                file.write(text.replace(old, new))
            faults = [fault for fault in check(work) if fault not in before]
            with open(os.path.join(work, path), "w", encoding="utf-8") as file:
                file.write(text)
            if old not in text or not any(words in fault for fault in faults):
                print(f"not seen in {path}: {new!r}; got {faults}")
                missed += 1
    print(f"{len(PLANTED)} faults planted, {missed} not seen")
    return 1 if missed else 0


def main(root, mode=None):
    if mode == "--self-test":
        return self_test(root)
    faults = check(root)
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
