#!/usr/bin/python3
"""Interpreters inside an interpreter, which have the module each for itself, in every Python that is
found here."""

import subprocess

import harness

checks = harness.checks

INNER = """
import threading, muster
store = muster.Store("hash:")
store.set("a", "b")
thread = threading.Thread(target=lambda: store.set("a", "c"))
thread.start(); thread.join()
assert store.get("a") == b"c"
left_open = muster.Store("hash:")
"""

OUTER = """
import sys, muster
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
store = muster.Store("hash:")
store.set("a", "main")
for isolated in (False, True):
    try:
        if hasattr(interpreters, "new_config"):
            config = interpreters.new_config("isolated" if isolated else "legacy")
            number = interpreters.create(config)
        else:
            number = interpreters.create(isolated=isolated)
        failed = interpreters.run_string(number, sys.argv[1])
        interpreters.destroy(number)
        print("works" if failed is None else "refused: " + str(failed.formatted))
    except Exception as error:
        print("refused:", error)
assert store.get("a") == b"main"
"""


def test_inner_interpreters() -> None:
    for python in harness.pythons():
        version = subprocess.run([python, "-c", "import sys; print(*sys.version_info[:2])"],
                                 stdout=subprocess.PIPE, universal_newlines=True).stdout.split()
        major, minor = int(version[0]), int(version[1])
        if minor < 11:
            continue  # experimental there, and crashes by itself
        ended = harness.run(OUTER, INNER, python=python)
        lines = ended.out.splitlines()
        checks.ok(ended.code == 0 and ended.err == "" and lines[:1] == ["works"],
                  f"Python {major}.{minor}: an interpreter that shares the lock", ended)
        # Isolated: Python 3.11 has no threads there, and ctypes of 3.12 refuses to be loaded.
        expected = {11: "thread is not supported", 12: "_ctypes does not support"}.get(minor, "works")
        checks.ok(expected in "".join(lines[1:]),
                  f"Python {major}.{minor}: one that is isolated: {''.join(lines[1:])[:90]}", ended)


def test_without_the_lock() -> None:
    """A free-threaded build says of itself whether it has the lock now."""
    program = "import sys; sys._is_gil_enabled = lambda: {}; import muster; muster.Store"
    ended = harness.run(program.format(False))
    checks.ok(ended.code == 1 and "PYTHON_GIL=1" in ended.err and "ImportError" in ended.err,
              "without the lock it is refused, with the remedy", ended)
    checks.equal(harness.run(program.format(True)).code, 0, "with the lock it works")


harness.main(globals())
