#!/usr/bin/python3
"""Whether the completions complete, in the shells that they are for.

usage: completions.py MUSTER COMPLETIONS
"""
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PATIENCE = 60

# What is typed before the tabulator, and what the last word becomes.
CASES = [
    ("muster ser", "serve"),
    ("muster vers", "version"),
    ("muster help ser", "serve"),
    ("muster serve --token-f", "--token-file"),
    ("muster run --nproc", "--nproc-per-node"),
    ("muster run --log-format js", "json"),
    ("muster state pu", "pull"),
    ("muster kv barr", "barrier"),
    ("muster keygen tok", "token"),
]

BASH = """
source "$1"
read -ra COMP_WORDS <<<"$2"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_muster
printf '%s\\n' "${COMPREPLY[@]}"
"""


def complete_bash(path, typed):
    found = subprocess.run(["bash", "--norc", "-c", BASH, "bash", path, typed], check=True,
                           stdout=subprocess.PIPE, universal_newlines=True)
    return found.stdout.split()


class Zsh:
    """A shell at a terminal, since only there it completes."""

    def __init__(self, folder):
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "TERM": "dumb", "LANG": "C.UTF-8"}
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe("zsh", ["zsh", "-f", "-i"], environment)
        self.said = ""
        self.type("stty cols 500; PS1='' RPS1=''; fpath=(%s $fpath); autoload -Uz compinit; "
                  "compinit -u -D; print rea''dy\n" % folder)
        self.until("ready\r\n")

    def type(self, text):
        os.write(self.fd, text.encode())

    def until(self, text):
        """Whether that is said in time; what comes up to it is forgotten."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.said:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                return False
            self.said += os.read(self.fd, 65536).decode(errors="replace")
        self.said = self.said.partition(text)[2]
        return True

    def complete(self, typed, word):
        self.type(typed + "\t")
        good = self.until(typed.rpartition(" ")[0] + " " + word)
        self.type("\x15")  # takes the line back
        return good

    def end(self):
        os.close(self.fd)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def main(muster, completions):
    failed = 0
    folder = tempfile.mkdtemp()
    try:
        for shell, name in (("bash", "muster.bash"), ("zsh", "_muster")):
            with open(os.path.join(folder, name), "w") as file:
                subprocess.run([completions, shell, muster], stdout=file, check=True)
        zsh = Zsh(folder)
        for typed, word in CASES:
            found = complete_bash(os.path.join(folder, "muster.bash"), typed)
            for shell, good in (("bash", word in found), ("zsh", zsh.complete(typed, word))):
                print("%s %s: %s -> %s" % ("ok  " if good else "FAIL", shell, typed, word))
                failed += not good
        zsh.end()
    finally:
        shutil.rmtree(folder)
    return 1 if failed else 0


sys.exit(main(*sys.argv[1:3]))
