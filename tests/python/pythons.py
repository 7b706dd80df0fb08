#!/usr/bin/python3
"""Every other Python that is found here runs the tests of the module. Run it by hand, since most
machines have one Python, and six of them take five minutes.

usage: MUSTER_LIBRARY=build/libmuster.so.0 PYTHONPATH=python tests/python/pythons.py [MUSTER]
MUSTER_PYTHONS=PATH[:PATH...] names more Pythons.
"""

import subprocess
import sys

import harness

checks = harness.checks

TESTS = ("store", "threads", "interrupt", "fork", "exit")


def test_every_python() -> None:
    others = [python for python in harness.pythons() if python != sys.executable]
    if not others:
        checks.skip("there is only one Python here")
    for python in others:
        for name in TESTS:
            done = subprocess.run(
                [python, f"{harness.HERE}/test_{name}.py", harness.MUSTER], stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, universal_newlines=True, env=harness.ENVIRONMENT)
            last = [line for line in done.stdout.splitlines() if "checks passed" in line]
            checks.ok(done.returncode == 0, f"{python}: {name}: {last[-1] if last else ''}",
                      "\n".join(line for line in done.stdout.splitlines()
                                if not line.startswith(("ok ", "  "))))


harness.main(globals())
