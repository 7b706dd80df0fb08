"""What the tests of the Python module share.

A test is a script, run by any Python from 3.8 on::

    python3 tests/python/test_NAME.py [build/muster] [--only=TEXT]

It imports `harness` before `muster`, defines functions named ``test_*`` and ends with
``harness.main(globals())``, which runs them in order and exits with 1 if a check failed::

    import harness
    import muster

    checks = harness.checks

    def test_get() -> None:
        with harness.Server() as server, muster.Store(server.url) as store:
            store.set("key", "value")
            checks.equal(store.get("key"), b"value", "what was set is read")

    harness.main(globals())

The module is that of this tree, the library and the command are those of the build directory:
beside the path of muster that was given, or build/. Servers are processes of their own (`Server`).
"""

import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(1, os.path.join(ROOT, "tests", "interop"))
sys.path.insert(1, os.path.join(ROOT, "python"))

import lib  # noqa: E402

MUSTER = lib.muster_path()
LIBRARY = os.environ.setdefault(
    "MUSTER_LIBRARY", os.path.join(os.path.dirname(os.path.realpath(MUSTER)), "libmuster.so.0")
)
os.environ["MUSTER"] = MUSTER
for _name in ("MUSTER_TOKEN_FILE", "MUSTER_TLS_CERT", "MUSTER_TLS_KEY", "MUSTER_TLS_CA",
              "MUSTER_ALLOW", "MUSTER_INSECURE"):
    os.environ.pop(_name, None)

#: For programs that a test starts: they find the module, the library and this file.
ENVIRONMENT = dict(
    os.environ,
    PYTHONPATH=os.pathsep.join([os.path.join(ROOT, "python"), HERE]),
    PYTHONDONTWRITEBYTECODE="1",
)

checks = lib.Checks()
option = lib.option
free_port = lib.free_port
wait_until = lib.wait_until
Scratch = lib.Scratch
PATIENCE = lib.PATIENCE


class Server(lib.Muster):
    """`muster serve` on a free port of loopback, until the context is left."""

    def __init__(self, *args: str, **options: Any) -> None:
        super().__init__(*args, path=MUSTER, **options)

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"


class Ended:
    """How a program ended: its code, what it printed, and what it said on standard error."""

    def __init__(self, code: Optional[int], out: str, err: str, seconds: float) -> None:
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def __repr__(self) -> str:
        return f"code {self.code} after {self.seconds:.2f} s, out {self.out!r}, err {self.err!r}"


def start(program: str, *args: str, python: str = sys.executable,
          env: Optional[Dict[str, str]] = None) -> "subprocess.Popen[str]":
    """Starts a program in Python, given as its text, in a process of its own."""
    return subprocess.Popen(
        [python, "-c", program, *args], env=dict(ENVIRONMENT, **(env or {})),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True, preexec_fn=lib.die_with_parent, start_new_session=True,
    )  # fmt: skip


def _kill_all(process: "subprocess.Popen[str]") -> None:
    """Kills a program and what it started: those have its output open, too."""
    if os.getpgid(process.pid) == process.pid:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def finish(process: "subprocess.Popen[str]", patience: float = PATIENCE) -> Ended:
    """Waits for the end of a program; kills one that does not end, whose code is then None."""
    began = time.monotonic()
    try:
        out, err = process.communicate(timeout=patience)
        code: Optional[int] = process.returncode
    except subprocess.TimeoutExpired:
        _kill_all(process)
        out, err = process.communicate()
        code = None
    return Ended(code, out, err, time.monotonic() - began)


def run(program: str, *args: str, patience: float = PATIENCE, **options: Any) -> Ended:
    """Runs a program in Python, given as its text, to its end."""
    return finish(start(program, *args, **options), patience)


def pythons() -> List[str]:
    """Every Python from 3.8 on that can be found here, this one first; MUSTER_PYTHONS (paths with
    colons between them) adds some."""
    import glob

    found = [sys.executable]
    found += [p for p in os.environ.get("MUSTER_PYTHONS", "").split(":") if p]
    found += sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin/python3")))
    probe = "import sys; sys.exit(sys.version_info < (3, 8))"
    return [python for python in dict.fromkeys(found)
            if subprocess.run([python, "-c", probe], check=False).returncode == 0]


def main(names: Dict[str, Any]) -> None:
    """Runs the tests of a script, and ends the program with the verdict."""
    checks.note(f"Python {sys.version.split()[0]}, {LIBRARY}")
    checks.run_tests({k: v for k, v in names.items() if callable(v)})
    checks.done()
