"""Runs the lines of docs/from-torchrun.md about accelerate and Lightning as they stand."""
import os
import re
import shutil
import socket
import subprocess
import sys

from peers_lib import HERE, ROOT
from torch2 import MODULE, installed
from lib import HOST, PATIENCE, Scratch, die_with_parent, free_port, muster_path, run_muster, wait_until

PAGE = os.path.join(ROOT, "docs", "from-torchrun.md")


def command(mark):
    """The command behind <!-- test: MARK -->, on one line."""
    with open(PAGE) as file:
        found = re.search(r"<!-- test: %s -->\n\n((?:    .*\n)+)" % mark, file.read())
    return re.sub(r"\\\n\s*", " ", found[1]).strip()


class Reader:
    """Somebody who follows the page, in a folder with a script and a token."""

    def __init__(self, script):
        self.scratch = Scratch()
        self.path = self.scratch.path
        self.port = free_port()
        shutil.copy(os.path.join(HERE, script), os.path.join(self.path, "train.py"))
        os.mkdir(os.path.join(self.path, "bin"))
        os.symlink(muster_path(), os.path.join(self.path, "bin", "muster"))
        run_muster("keygen", "token", os.path.join(self.path, "job.token"))
        installed(os.path.join(self.path, "packages"))

    def start(self, text):
        text = text.replace("node0", HOST).replace("29400", str(self.port))
        path = ":".join([os.path.join(self.path, "bin"), os.path.dirname(sys.executable),
                         os.environ["PATH"]])
        return subprocess.Popen(["sh", "-c", text], cwd=self.path, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                preexec_fn=die_with_parent, env=dict(os.environ, PATH=path, **MODULE))

    def wait_for_host(self):
        def listens():
            with socket.socket() as s:
                return s.connect_ex((HOST, self.port)) == 0
        wait_until(listens, "the first machine's agent to listen", 2 * PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.scratch.__exit__()


def end(checks, what, processes, words):
    said = [process.communicate(timeout=4 * PATIENCE)[0] for process in processes]
    text = "".join(said)
    checks.ok([process.returncode for process in processes] == [0] * len(processes) and
              all(word in text for word in words), what, text[-3000:])
