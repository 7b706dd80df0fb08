"""Programs of other folders as parts of a suite: with another interpreter, or another etcd first in
PATH, they meet other peers than in `make test`."""
import os
import re
import subprocess
import sys
import time

from peers_lib import ROOT, SHORT
import lib  # which peers_lib makes known

COUNTED = re.compile(r"(\d+) checks passed, (\d+) failed")
LOGS = os.path.join(os.environ.get("MUSTER_PEERS") or os.path.join(ROOT, "build-peers"), "logs")


def run_program(checks, title, path, *args, seconds=600, environment=None, python=sys.executable):
    """Runs `path` (from the root of the tree) and adds up what it checked and skipped. It fails as a
    whole if it ends otherwise than with 0, or 77 where it says what it skips."""
    os.makedirs(LOGS, exist_ok=True)
    log = os.path.join(LOGS, re.sub(r"[^\w.-]+", "-", title) + ".log")
    started = time.monotonic()
    with open(log, "w") as out:
        try:
            code = subprocess.run([python, os.path.join(ROOT, path), *args], stdout=out, stderr=out,
                                  stdin=subprocess.DEVNULL, timeout=seconds, check=False,
                                  env=dict(os.environ, **(environment or {}))).returncode
        except subprocess.TimeoutExpired:
            code = "%d s without an end" % seconds
    with open(log, errors="replace") as file:
        lines = file.read().splitlines()
    counts = [(int(a), int(b)) for a, b in COUNTED.findall("\n".join(lines))]
    said = [line for line in lines if line.startswith(("FAIL", "failed:", "skip "))]
    for line in said:
        checks.note(line)
    passed, skipped = sum(passed for passed, _ in counts), sum(line.startswith("skip ") for line in said)
    if code == lib.SKIP and not passed:
        checks.skip("%s: %s" % (title, said[0][len("skip "):] if said else "it does not say why"))
    elif code in (0, lib.SKIP) and not any(line.startswith("FAIL") for line in lines):
        # One that does not count its checks is one.
        checks.passed += max(1, passed)
        checks.skipped += skipped
        print("ok   %s (%d s)" % (title, time.monotonic() - started), flush=True)
    else:
        checks.ok(False, title, "it ended with %s; see %s" % (code, log))


def chosen(programs):
    """All of them, or with --short the first."""
    return programs[:1] if SHORT else programs
