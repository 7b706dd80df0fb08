#!/usr/bin/python3
"""Two versions of muster on one machine: each module with its own library, also in a process that
has loaded another one; and the wrong library is refused, not used."""

import glob
import os

import harness

import muster
from muster import _lib

checks = harness.checks

USE = """
import muster
from muster import _lib
with muster.Server() as server, muster.Store(server.url) as store:
    store.set("a", "b")
    print(store.get("a"), _lib.fast.muster_version())
"""


def make_other(folder: str) -> str:
    """The library, with another version in it."""
    with open(harness.LIBRARY, "rb") as file:
        data = file.read()
    ours = muster.__version__.encode() + b"\0"
    theirs = b"9" * (len(ours) - 1) + b"\0"
    checks.ok(ours in data, "the library has its version in it")
    path = os.path.join(folder, "libmuster.so.0")
    with open(path, "wb") as file:
        file.write(data.replace(ours, theirs))
    return path


def test_two_in_one_process() -> None:
    """The other one comes first, as that of a program which is linked with it and runs Python."""
    with harness.Scratch() as folder:
        other = make_other(folder)
        bindings = os.path.join(folder, "bindings")
        got = harness.run(USE, env={"LD_PRELOAD": other, "LD_DEBUG": "bindings",
                                    "LD_DEBUG_OUTPUT": bindings})
        checks.equal(got.out.strip(), f"b'b' {muster.__version__.encode()!r}",
                     "the module uses its own library")
        lines = [line for path in glob.glob(bindings + ".*") for line in open(path, errors="replace")]
        ours = [line for line in lines if f"binding file {os.path.realpath(harness.LIBRARY)}" in line
                or f"binding file {harness.LIBRARY}" in line]
        checks.ok(len(ours) > 100, "what is bound was seen", len(ours))
        checks.equal([line for line in ours if f" to {other}" in line], [],
                     "no name of the one is bound to the other")


def test_the_wrong_one() -> None:
    with harness.Scratch() as folder:
        other = make_other(folder)
        got = harness.run(USE, env={"MUSTER_LIBRARY": other})
        last = got.err.strip().splitlines()[-1] if got.err else ""
        checks.ok(got.code == 1 and last.startswith("ImportError") and other in last
                  and f"of {muster.__version__}" in last and "of version 9" in last,
                  "a library of another version is refused, with both named", got)
    checks.equal(_lib.fast.muster_version(), muster.__version__.encode(), "ours is the same")


harness.main(globals())
