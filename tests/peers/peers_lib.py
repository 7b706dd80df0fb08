"""What the suites share: where the peers are, processes that are peers, and the verdict.

A suite is a program `tests/peers/NAME.py MUSTER [--short]`; tools/test-peers knows what it needs. It
prints what it checks, and last `N passed, M failed, K skipped`."""
import glob
import json
import os
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "interop"))
import lib  # noqa: E402
from lib import die_with_parent  # noqa: E402

BUILD = os.environ.get("MUSTER_PEERS") or os.path.join(ROOT, "build-peers")
SHORT = "--short" in sys.argv


def program(peer, name):
    """A program of a peer."""
    return os.path.join(BUILD, peer, "bin", name)


def hivemind_daemon():
    """hivemind's own, as its wheel has it; the folder is called after a version of Python."""
    found = glob.glob(os.path.join(BUILD, "hivemind", "lib", "python3*", "site-packages", "hivemind", "hivemind_cli",
                                   "p2pd"))
    return found[0] if found else os.path.join(BUILD, "hivemind", "p2pd")


def kill_all(process):
    """Kills what leads a session of its own, with all that it has started there."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Checks(lib.Checks):
    """Ends with the line that tools/test-peers reads."""

    def done(self):
        for what in self.failed:
            print("failed: " + what, flush=True)
        print("%d passed, %d failed, %d skipped" % (self.passed, len(self.failed), self.skipped),
              flush=True)
        sys.exit(1 if self.failed else 0)


class Peer:
    """A process that says where it is reached, with its first line; those behind it are `more`."""

    def __init__(self, argv, **options):
        self.argv = argv
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        preexec_fn=die_with_parent, **options)
        self.address = self.line()
        assert self.address.startswith("/"), "%s said %r" % (argv, self.address)

    @property
    def id(self):
        return self.address.rsplit("/", 1)[-1]

    def line(self):
        return self.process.stdout.readline().decode().strip()

    def ask(self, *request):
        """A program of ours takes requests on its input, a line each, and answers with JSON."""
        self.process.stdin.write((json.dumps(list(request)) + "\n").encode())
        self.process.stdin.flush()
        said = self.line()
        return json.loads(said) if said else {"error": "it is gone"}

    def stop(self):
        """By signal."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=lib.PATIENCE)
        finally:
            self.process.stdin.close()
            self.process.stdout.close()
        return code
