#!/usr/bin/python3
"""Whether each limit in a header is named by a test or a scenario.

usage: limits.py ROOT [--self-test]

A limit is a member of a struct of settings (config, limits, settings, terms) whose name ends in
_max, _min or grace_ms, or a constant of src/codec, which reads bytes from outside, whose name ends
in _MAX or _MIN. A test counts if it sees the header, by its own includes or those of what it
includes, and names the member; for a constant the name is enough. WAIVED lists those that need no
test, each with its reason.
"""
import collections
import os
import re
import sys
import tempfile

WAIVED = {
    "mu_rpc_server_config.eof_grace_ms": "the agent passes its own on, which a test meets",
    "mu_store_server_config.connections_max": "muster_server_config has it, and its test",
    "mu_store_server_config.sessions_max": "muster_server_config has it, and its test",
    "mu_store_server_config.buffer_bytes_max": "muster_server_config has it, and its test",
    "mu_store_server_config.eof_grace_ms": "mu_rpc_server does it, as for the agent",
    "MU_HM_HALF_MAX": "the largest number of a format, not a limit of ours",
    "MU_HM_STD_MIN": "a number that the encoding begins with, not a limit",
    "MU_STATE_ENTRY_MAX": "the size of a buffer, made of the limits of its parts",
    "MU_STATE_OFFER_BYTES_MAX": "the size of a buffer, made of the limits of its parts",
    "MU_TORCH_OPCODE_MAX": "the last operation of a protocol, not a limit",
}

STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\}", re.M | re.S)
SETTINGS = re.compile(r"(_config|_limits|_settings|_terms)$")
MEMBER = re.compile(r"\b([a-z]\w*(?:_max|_min)|(?:\w+_)?grace_ms)\s*;")
CONSTANT = re.compile(r"^\s*#define (\w+_(?:MAX|MIN))\b", re.M)
COMMENT = re.compile(r"/\*.*?\*/", re.S)
INCLUDE = re.compile(r'^\s*#include [<"]([^>"]+)[>"]', re.M)


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def walk(root, folders, endings):
    for folder in folders:
        for where, _, names in os.walk(os.path.join(root, folder)):
            for name in names:
                if name.endswith(endings):
                    yield os.path.relpath(os.path.join(where, name), root)


def find_limits(root):
    """(header, struct, name) of each limit; the struct of a constant is None."""
    limits = []
    for header in sorted(walk(root, ("src", "include"), (".h",))):
        text = COMMENT.sub(" ", read(os.path.join(root, header)))
        for struct, body in STRUCT.findall(text):
            if SETTINGS.search(struct):
                limits += [(header, struct, name) for name in MEMBER.findall(body)]
        if header.startswith(os.path.join("src", "codec", "")):
            limits += [(header, None, name) for name in CONSTANT.findall(text)]
    return limits


class Tests:
    """The files of tests and scenarios: which words are in them, and which headers they see."""

    def __init__(self, root):
        self.root = root
        self.includes = {}
        self.words = collections.defaultdict(list)
        for path in walk(root, ("tests", "sim"), (".c", ".h", ".py")):
            if path.startswith(os.path.join("tests", "tree", "")):
                continue
            for word in set(re.findall(r"\w+", COMMENT.sub(" ", read(os.path.join(root, path))))):
                self.words[word].append(path)

    def resolve(self, path, name):
        for folder in (os.path.dirname(path), "src", "include", "sim", "tests/lib"):
            found = os.path.normpath(os.path.join(folder, name))
            if os.path.exists(os.path.join(self.root, found)):
                return found
        return None

    def seen_by(self, path):
        """All that a file includes, and what these do."""
        seen = set()
        left = [path]
        while left:
            one = left.pop()
            if one not in self.includes:
                names = INCLUDE.findall(read(os.path.join(self.root, one)))
                self.includes[one] = [self.resolve(one, name) for name in names]
            for found in self.includes[one]:
                if found is not None and found not in seen:
                    seen.add(found)
                    left.append(found)
        return seen

    def name(self, header, struct, word):
        return any(struct is None or header in self.seen_by(path) for path in self.words[word])


def check(root, waived):
    """What is wrong, as sentences."""
    tests = Tests(root)
    limits = find_limits(root)
    faults = []
    for header, struct, name in limits:
        key = f"{struct}.{name}" if struct else name
        if tests.name(header, struct, name):
            if key in waived:
                faults.append(f"{header}: a test names {key}; take it off the list of the waived")
        elif key not in waived:
            faults.append(f"{header}: no test names {key}; write one that meets this limit")
    known = {f"{struct}.{name}" if struct else name for _, struct, name in limits}
    faults += [f"{key} is waived, and is no limit" for key in sorted(set(waived) - known)]
    return faults, len(limits)


def self_test():
    with tempfile.TemporaryDirectory() as root:
        def write(path, text):
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)

        write("src/proto/b.h", "#define NOT_LOOKED_AT_MAX 1\n")
        write("src/codec/a.h", "#define A_MAX 1\n#define B_MAX 2 /* C_MAX */\n"
              "struct mu_a_config {\n    int met_max;\n    int unmet_max; /* of it */\n"
              "    int other_max;\n};\nstruct mu_a {\n    int private_max;\n};\n")
        write("tests/lib/rig.h", '#include "codec/a.h"\n')
        write("tests/unit/one.c", '#include "rig.h"\nmet_max A_MAX /* unmet_max */\n')
        write("tests/unit/two.c", "other_max\n")
        faults, count = check(root, {"B_MAX": "why", "A_MAX": "why", "gone_max": "why"})
    expected = ["src/codec/a.h: no test names mu_a_config.unmet_max; write one that meets this limit",
                "src/codec/a.h: no test names mu_a_config.other_max; write one that meets this limit",
                "src/codec/a.h: a test names A_MAX; take it off the list of the waived",
                "gone_max is waived, and is no limit"]
    return [f"expected {expected}, got {faults}"] if faults != expected or count != 5 else []


def main(root, mode=None):
    if mode == "--self-test":
        faults, count = self_test(), 5
    else:
        faults, count = check(root, WAIVED)
    for fault in faults:
        print(fault)
    print(f"{count} limits, {len(WAIVED)} waived: {len(faults)} faults")
    return 1 if faults or count == 0 else 0


sys.exit(main(*sys.argv[1:]))
