#!/usr/bin/python3
"""Whether the glossary of ARCHITECTURE.md has the words of our own, each once.

usage: glossary.py ROOT [--self-test]

The words are those that the names of files and folders in src/ and of its types (struct, enum and
union mu_*) are made of, split at "_"; a plural counts as its singular. Each is in the glossary, or
in COMMON below, which has the words that need no explanation. The glossary has no word that is not
used, and no name uses a word of RETIRED.
"""
import collections
import os
import re
import shutil
import sys
import tempfile

# The words that need no explanation, by the reason why.
COMMON = {
    "layers and rooms, which ARCHITECTURE.md lists":
        "api base bin cli codec core crypto proto src text transport",
    "names of other projects, protocols and formats":
        "aead autonat base58 base64 c10d cgroup cidr curl dht elf etcd etcd2 gil hm http ip json jv kad lmdb mp msgpack "
        "mss mtu multiaddr muster noise mt numa nvml p2pd pb pickle psk python rpc safetensors sha256 std tcp tls torch utf8 uv "
        "uvarint v2 v3 x25519 yamux",
    "words of libp2p, hivemind, etcd, PyTorch and TLS, with their meaning there":
        "auth barrier bucket schema candidate circuit compare compression contact device dict dtype dump envelope "
        "fork hello hop identify identity neighbour reservation role tensor trainer txn unary "
        "voucher",
    "what every program has":
        "addr alloc arg assert buf builder cache case cert class client clock cmd code config conn connect "
        "connection console context cpus cursor data decode deps decoder dial dirent disk download encode encoder endpoint "
        "entry err errmsg exec executor families field file flag frame future get gpu gpus guess hash head header heap "
        "help history hook id idle info internal item key keygen kernel kind kv len level library link list listen listener log lookup loop main "
        "map memory method mode msg name net number op option output owner param part path phase pipe point pool port "
        "prefix print private prng proc process program prompt protocol read reader record registry remote reply request response "
        "result retry row runtime screen search section segment set setting shape sink size slot "
        "sample snapshot sock source spawn spec split stat static status step storage string sync table target "
        "task terminal thread time timer trace tree type update url user validate validator value var view "
        "version void walk write writer install piece summary",
    "plain verbs, and what has happened by them":
        "accepted act action answer ask away bench body caller change check close commit copy defer "
        "divide does echo edit end ending exam expect explain fetch find finding follow found gather given go "
        "goodbye greet have hear held hosted join judge known lead leave listed load loaded loading locked "
        "look make mapped missing pending pick ping place plan probe pull put query question report "
        "resolve running save say seen serve served stop take transfer try use waiting want watched welcome work",
    "plain nouns, adjectives and adverbs":
        "account assembler before bit blob block budget chain child collect dialect element event extra fact "
        "failure family fault filter group half handler in later layout life limit local mark mask meter mono "
        "near news note now out outcome plain policy printable reason raw ref root router routing rule scope self "
        "side slow stage term to token top two wall which word",
}
# Words that once needed an explanation, and the word in their place.
RETIRED = {
    "backed": "backing", "cell": "register", "chair": "leader", "crowd": "guest", "keeper": "backing or gateway",
    "leg": "stream", "seat": "place", "told": "event", "visit": "look or guest",
}

TYPE = re.compile(r"\b(?:struct|enum|union) mu_(\w+)")
COMMENT = re.compile(r"/\*.*?\*/", re.S)
ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \| ([^|]*) \|$", re.M)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def find_words(root):
    """{word: the names that it is used in}."""
    used = collections.defaultdict(set)
    for folder, _, names in os.walk(os.path.join(root, "src")):
        where = os.path.relpath(folder, root)
        for word in os.path.basename(folder).split("_"):
            used[word].add(where)
        for name in names:
            if not name.endswith((".c", ".h")):
                continue
            for word in name[:-2].split("_"):
                used[word].add(os.path.join(where, name))
            for type_name in TYPE.findall(COMMENT.sub(" ", read(os.path.join(folder, name)))):
                for word in type_name.split("_"):
                    used[word].add("mu_" + type_name)
    return used


def check(root):
    text = read(os.path.join(root, "ARCHITECTURE.md"))
    section = re.search(r"^## Glossary$(.*?)(?=^## )", text + "\n## ", re.M | re.S)
    rows = ROW.findall(section[1]) if section else []
    entries = [word for row in rows for word in re.findall(r"\w+", row[0])]
    common = {word for words in COMMON.values() for word in words.split()}
    used = find_words(root)
    faults = [f"ARCHITECTURE.md: the glossary has {word} {count} times"
              for word, count in collections.Counter(entries).items() if count > 1]
    met = set()
    for word, names in sorted(used.items()):
        known = next((form for form in (word, word[:-1] if word.endswith("s") else word)
                      if form in entries or form in common or form in RETIRED), None)
        if known is None:
            faults.append(f"{min(names)}: the word {word} is not in the glossary of ARCHITECTURE.md; "
                          "put it there, or into COMMON if everybody knows it")
        elif known in RETIRED:
            faults.append(f"{min(names)}: the word {word} is retired; write {RETIRED[known]}")
        else:
            met.add(known)
    faults += [f"ARCHITECTURE.md: no name uses {word}; take it out of the glossary"
               for word in sorted(set(entries) - met)]
    faults += [f"ARCHITECTURE.md: {word} is in the glossary and in COMMON or RETIRED"
               for word in sorted(set(entries) & (common | set(RETIRED)))]
    return faults, len(used), len(entries)


def self_test(root):
    with tempfile.TemporaryDirectory() as work:
        shutil.copytree(os.path.join(root, "src"), os.path.join(work, "src"))
        glossary = read(os.path.join(root, "ARCHITECTURE.md"))
        gate = re.search(r"^\| `gate` .*\n", glossary, re.M)[0]

        def plant(path, text, page=glossary):
            with open(os.path.join(work, "ARCHITECTURE.md"), "w", encoding="utf-8") as file:
                file.write(page)
            path = os.path.join(work, path)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            faults = check(work)[0]
            os.remove(path)
            return faults

        before = set(plant("src/core/planted.c", "") + ["src/core/planted.c: the word planted"])
        missed = 0
        cases = [
            ("src/core/zorn.c", "", glossary, "zorn is not in the glossary"),
            ("src/core/map_keeper.h", "", glossary, "keeper is retired"),
            ("src/core/map_told.c", "", glossary, "told is retired"),
            ("src/core/a.h", "struct mu_map_cell {\n};\n", glossary, "mu_map_cell: the word cell"),
            ("src/core/a.h", "/* struct mu_zorn */ enum mu_quux {\n};\n", glossary, "mu_quux: the word quux"),
            ("src/core/span.txt", "", glossary.replace(gate, ""), "the word gate is not in"),
            ("src/core/span.txt", "", glossary.replace(gate, gate + gate), "has gate 2 times"),
            ("src/core/span.txt", "", glossary.replace(gate, gate + gate.replace("gate", "zorn")),
             "no name uses zorn"),
            ("src/core/span.txt", "", glossary.replace(gate, gate + gate.replace("gate", "map")),
             "map is in the glossary and in COMMON"),
        ]
        for path, text, page, words in cases:
            faults = [fault for fault in plant(path, text, page) if fault not in before]
            if not any(words in fault for fault in faults):
                print(f"not seen: {path} {text!r} ({words}); got {faults}")
                missed += 1
    print(f"{len(cases)} faults planted, {missed} not seen")
    return 1 if missed else 0


def main(root, mode=None):
    if mode == "--self-test":
        return self_test(root)
    faults, used, entries = check(root)
    for fault in faults:
        print(fault)
    print(f"{used} words, {entries} of them in the glossary: {len(faults)} faults")
    return 1 if faults or not entries else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
