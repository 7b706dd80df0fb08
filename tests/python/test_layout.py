#!/usr/bin/python3
"""What the module says about the library, beside what the compiler says: the layout of each struct,
constants, versions, and that each error has a class."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from typing import Dict, List, Tuple

import harness

import muster
from muster import _lib, _runtime, _verbs, errors, store

checks = harness.checks

HEADERS = os.path.join(harness.ROOT, "include")


def compiled(lines: List[str]) -> str:
    """Compiles and runs a program that prints."""
    source = "#include <stddef.h>\n#include <stdio.h>\n#include <muster/muster.h>\n"
    source += "int main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    with harness.Scratch() as folder:
        program = os.path.join(folder, "layout")
        subprocess.run(["cc", "-std=gnu17", "-I", HEADERS, "-x", "c", "-", "-o", program,
                        "-L", os.path.dirname(harness.LIBRARY), "-lmuster"],
                       input=source.encode(), check=True)
        path = os.path.dirname(harness.LIBRARY)
        done = subprocess.run([program], stdout=subprocess.PIPE, check=True,
                              env=dict(os.environ, LD_LIBRARY_PATH=path))
    return done.stdout.decode()


def fields_in_header(name: str) -> List[str]:
    """The fields of a struct as its header has them."""
    for folder, _, files in os.walk(HEADERS):
        for file in files:
            with open(os.path.join(folder, file), encoding="utf-8") as header:
                text = re.sub(r"/\*.*?\*/", "", header.read(), flags=re.S)
            found = re.search(r"struct %s \{(.*?)\n\}" % name, text, re.S)
            if found:
                # A pointer to a function: its name is between parentheses.
                declared = re.sub(r"\(\*(\w+)\)\s*\([^;]*\)", r"\1", found[1])
                return re.findall(r"(\w+)(?:\[[^\]]*\])*;", declared)
    return []


def test_structs() -> None:
    lines = []
    for name, cls in sorted(_lib.LAYOUTS.items()):
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field in cls._fields_:
            it = field[0]
            lines.append(f'printf("{name}.{it} %zu %zu\\n", offsetof(struct {name}, {it}),'
                         f" sizeof(((struct {name} *)0)->{it}));")
    theirs: Dict[str, Tuple[int, ...]] = {}
    for line in compiled(lines).splitlines():
        what, *numbers = line.split()
        theirs[what] = tuple(map(int, numbers))
    for name, cls in sorted(_lib.LAYOUTS.items()):
        ours = {name: (ctypes.sizeof(cls),)}
        for field in cls._fields_:
            place = getattr(cls, field[0])
            ours[f"{name}.{field[0]}"] = (place.offset, place.size)
        expected = {key: theirs[key] for key in ours}
        checks.equal(ours, expected, f"struct {name}: {len(ours) - 1} fields")
        checks.equal([f[0] for f in cls._fields_], fields_in_header(name),
                     f"struct {name} has the fields of its header")


def test_constants() -> None:
    verbs = [name for name in dir(_verbs) if name.isupper() and not name.startswith("_")]
    lines = []
    ours = {}
    for name in verbs:
        if name == "TYPE_CHECKING":
            continue
        ours["MUSTER_STORE_" + name] = getattr(_verbs, name)
    for kind in store.ChangeKind:
        ours["MUSTER_CHANGE_" + kind.name] = kind.value
    for name in dir(_runtime):
        if name.startswith("QUEUED_"):
            ours["MUSTER_" + name] = getattr(_runtime, name)
    for name in dir(_lib):
        if re.fullmatch(r"E[A-Z]+|TIMEOUT_[A-Z]+", name):
            ours["MUSTER_" + name] = getattr(_lib, name)
    for name in ours:
        lines.append(f'printf("{name} %lld\\n", (long long){name});')
    theirs = {line.split()[0]: int(line.split()[1]) for line in compiled(lines).splitlines()}
    checks.ok(len(ours) > 30, f"{len(ours)} constants are compared")
    checks.equal(ours, theirs, "constants are those of the headers")
    lease = compiled(['printf("%llu", (unsigned long long)MUSTER_LEASE_SESSION);'])
    checks.equal(store.SESSION, int(lease), "the session's lease")


def test_versions() -> None:
    with open(os.path.join(harness.ROOT, "meson.build"), encoding="utf-8") as file:
        built = re.search(r"version: '([^']+)'", file.read())
    assert built is not None
    checks.equal(muster.__version__, built[1], "the module's version is the project's")
    checks.equal(_lib.text(_lib.fast.muster_version()), muster.__version__,
                 "the library's version is the module's")


def test_errors() -> None:
    with open(os.path.join(HEADERS, "muster", "error.h"), encoding="utf-8") as file:
        found = re.findall(r"X\((E\w+), (-\d+)", file.read())
    checks.ok(len(found) > 40, f"{len(found)} errors are in the header")
    for name, code in found:
        error = errors.from_code(int(code), "text")
        checks.equal((error.code, error.name, str(error)), (int(code), "MUSTER_" + name, "text"),
                     f"{name} is {type(error).__name__}")
        if not name.startswith("EDHT_"):  # the module has no DHT
            checks.ok(type(error) is not errors.MusterError, f"{name} has a class of its own")
    error = errors.from_code(-13, "text")
    checks.equal((type(error), error.errno, error.code, error.name),
                 (errors.SystemFailure, 13, -13, "EACCES"), "an error of the system")
    for name in errors._CLASSES:
        checks.ok(name in dict(found), f"{name} is an error of the library")


def test_module_in_an_archive() -> None:
    """The system loads a library from a file only. Where the system has one of its own, that does."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MUSTER_", "PYTHON"))}
    with harness.Scratch() as folder:
        archive = shutil.make_archive(os.path.join(folder, "app"), "zip", harness.ROOT + "/python")
        done = subprocess.run([sys.executable, "-c", "import muster; muster.Store('hash:')"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=dict(environment, PYTHONPATH=archive), universal_newlines=True)
        checks.ok(done.returncode == 0 or "the module is in an archive" in done.stderr,
                  "a module in an archive says so", done.stderr)


harness.main(globals())
