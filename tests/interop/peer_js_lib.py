"""Peers as child processes, of ours and of js-libp2p."""
import json
import os
import signal
import subprocess

import lib
from lib import die_with_parent

JS = os.path.join(lib.HERE, "js")
PATIENCE = max(lib.PATIENCE, 60)


class Peer:
    """A process that says where it is reached, with its first line."""

    def __init__(self, argv):
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        preexec_fn=die_with_parent, cwd=JS)
        self.address = self.process.stdout.readline().decode().strip()
        assert self.address.startswith("/"), "%s said %r" % (argv, self.address)

    def stop(self):
        """By signal: ours."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE)

    def end(self):
        """By the end of its input: theirs. Returns what it says, if anything, and its exit code."""
        out, _ = self.process.communicate(timeout=PATIENCE)
        return json.loads(out.decode()) if out else None, self.process.returncode
