#!/usr/bin/python3
"""Whether the library exports what its headers declare and src/api/symbols.txt lists, and no more.

usage: symbols.py LIBMUSTER ROOT [--self-test]

LIBMUSTER is the shared library. The list is what the linker exports, so all three must agree. Beyond
that, each struct that begins with its size has its two functions, and is in tests/api/test_sized.c;
each function that takes a timeout is in tests/api/test_timeouts.c.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Dict, Iterator, List, Set, Tuple

LIST = "src/api/symbols.txt"
NODE = "MUSTER_0"


def read(root: str, path: str) -> str:
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def read_headers(root: str) -> str:
    """All of them, without comments."""
    paths = sorted(glob.glob(os.path.join(root, "include", "muster", "*.h")))
    return re.sub(r"/\*.*?\*/", "", "\n".join(read(root, path) for path in paths), flags=re.S)


def declared(headers: str) -> Dict[str, str]:
    """The exported functions, each with its declaration."""
    found = {}
    for text in re.findall(r"^MUSTER_EXPORT\b[^;]*;", headers, re.M):
        found[re.search(r"\b(muster_\w+)\s*\(", text)[1]] = text
    return found


def exported(library: str) -> Set[str]:
    """What the library defines for others, as NAME@@VERSION."""
    lines = subprocess.run(["nm", "-D", "--defined-only", library], stdout=subprocess.PIPE,
                           check=True, universal_newlines=True).stdout.splitlines()
    # The version is itself an absolute symbol.
    return {line.split()[-1] for line in lines} - {NODE}


def check_list(root: str, functions: Set[str], exports: Set[str]) -> Iterator[str]:
    lines = read(root, LIST).splitlines()
    if lines != sorted(set(lines)):
        yield f"{LIST}: the names are not sorted, or one is there twice"
    for name in sorted(functions - set(lines)):
        yield f"{LIST}: {name}() is missing, which a header declares"
    for name in sorted(set(lines) - functions):
        yield f"{LIST}: {name}() is in no header"
    for name in sorted(set(lines) - {name.split("@")[0] for name in exports}):
        yield f"{LIST}: the library does not export {name}()"
    for name in sorted(exports - {f"{name}@@{NODE}" for name in lines}):
        yield f"the library exports {name}, which is not in {LIST} with the version {NODE}"


def check_structs(root: str, headers: str, functions: Set[str]) -> Iterator[str]:
    # A struct that a program fills in has its size first, and no other struct has one there.
    sized = set(re.findall(r"^struct muster_(\w+) \{\s*size_t size;", headers, re.M))
    made = {name[len("muster_"):-len("_init")] for name in functions if name.endswith("_init")}
    tested = set(re.findall(r"\bX\((\w+), ", read(root, "tests/api/test_sized.c")))
    for name in sorted(sized - made):
        yield f"struct muster_{name} begins with its size, and there is no muster_{name}_init()"
    for name in sorted(made - sized):
        yield f"struct muster_{name} has a muster_{name}_init(), and does not begin with its size"
    for name in sorted(made):
        if f"static inline struct muster_{name} muster_{name}_defaults(void)" not in headers:
            yield f"struct muster_{name} has no muster_{name}_defaults() in its header"
    for name in sorted(made - tested):
        yield f"tests/api/test_sized.c: struct muster_{name} is not in the table"


def check_timeouts(root: str, functions: Dict[str, str]) -> Iterator[str]:
    tables = read(root, "tests/api/test_timeouts.c")
    for name, text in sorted(functions.items()):
        if "timeout_ms" in text and "int64_t timeout_ms" not in text:
            yield f"{name}(): a timeout is an int64_t"
        if "timeout_ms" in text and f'{{"{name}"' not in tables:
            yield f"tests/api/test_timeouts.c: {name}() is in no table"


def check(root: str, exports: Set[str]) -> List[str]:
    headers = read_headers(root)
    functions = declared(headers)
    faults = list(check_list(root, set(functions), exports))
    faults += list(check_structs(root, headers, set(functions)))
    return faults + list(check_timeouts(root, functions))


# A file, what is replaced in it by what, and a part of the sentence that must follow.
PLANTED = [
    (LIST, "muster_store_get\n", "", "muster_store_get() is missing, which a header declares"),
    (LIST, "muster_store_get\n", "", "exports muster_store_get@@MUSTER_0, which is not in"),
    (LIST, "muster_store_get\n", "muster_store_get\nmuster_store_got\n", "muster_store_got() is in no header"),
    (LIST, "muster_store_get\n", "muster_store_get\nmuster_store_got\n", "does not export muster_store_got()"),
    (LIST, "muster_store_get\n", "muster_store_get\nmuster_store_get\n", "is there twice"),
    ("include/muster/store.h", "int muster_store_get(", "int muster_store_read(",
     "muster_store_read() is missing"),
    ("include/muster/store.h", "struct muster_store_config {\n    size_t size;",
     "struct muster_store_config {\n    size_t bytes;", "does not begin with its size"),
    ("include/muster/store.h", "void muster_store_config_init(", "void muster_store_config_fill(",
     "there is no muster_store_config_init()"),
    ("include/muster/store.h", "muster_store_config_defaults(void)\n{", "muster_store_config_make(void)\n{",
     "has no muster_store_config_defaults()"),
    ("tests/api/test_sized.c", "X(store_config, ", "Y(store_config, ", "muster_store_config is not in the table"),
    ("tests/api/test_timeouts.c", '{"muster_store_get"', '{"a get"', "muster_store_get() is in no table"),
    ("include/muster/store.h", "muster_store_set_timeout(muster_store *store, int64_t",
     "muster_store_set_timeout(muster_store *store, uint32_t", "a timeout is an int64_t"),
]


def self_test(root: str, exports: Set[str]) -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as work:
        for folder in ("src/api", "include", "tests/api"):
            shutil.copytree(os.path.join(root, folder), os.path.join(work, folder))
        cases: List[Tuple[str, str, str, str]] = list(PLANTED)
        before = check(work, exports)
        for path, old, new, words in cases:
            text = read(work, path)
            with open(os.path.join(work, path), "w", encoding="utf-8") as file:
                file.write(text.replace(old, new))
            faults = [fault for fault in check(work, exports) if fault not in before]
            with open(os.path.join(work, path), "w", encoding="utf-8") as file:
                file.write(text)
            if old not in text or not any(words in fault for fault in faults):
                print(f"not seen in {path}: {new!r}; got {faults}")
                missed += 1
        # A name of another library that came in with it.
        if not any("exports SSL_new" in fault for fault in check(work, exports | {"SSL_new"})):
            print("not seen: the library exports a name of another")
            missed += 1
    print(f"{len(PLANTED) + 1} faults planted, {missed} not seen")
    return 1 if missed else 0


def main(library: str, root: str, mode: str = "") -> int:
    exports = exported(library)
    if mode:
        return self_test(root, exports)
    faults = check(root, exports)
    for fault in faults:
        print(fault)
    print(f"{len(exports)} names exported: {len(faults)} faults")
    return 1 if faults or not exports else 0


sys.exit(main(*sys.argv[1:]))
