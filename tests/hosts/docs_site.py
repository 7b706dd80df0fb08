"""What the tests of the pages share: hosts whose readers follow a page, and which of the pages'
commands have been run.

A command that reaches other hosts (its words name one: node1, 10.0.0.5, e0, 0.0.0.0, $BOOT) must be
run by a test as it stands, between hosts: unrun() names those that none has run.
"""
import os
import re
import shutil
import subprocess
import sys

from rig import HERE, Checks, muster_path

ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "tree"))
import pages  # noqa: E402

checks = Checks()
PYTHON = "/usr/bin/python3"
PATIENCE = 120  # seconds; PyTorch takes its time to be imported
PAGES = {page.path: page for page in pages.read_pages(ROOT)}

# A worker that needs no PyTorch.
WORKER = """
import os, time
print(f"worker {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
time.sleep(0.5)
"""

# PyTorch 1.13 spells its options with underscores, stumbles over its own default of -r and -t under
# Python 3.11, and does not find muster's backend by itself.
TORCHRUN = """#!/bin/sh
module=torch.distributed.run
case $* in *--rdzv-backend=muster*) module=muster.torchrun ;; esac
for word; do
    shift
    case $word in --*) word=--$(printf %s "${word#--}" | tr - _) ;; esac
    set -- "$@" "$word"
done
exec /usr/bin/python3 -m $module -r 1 -t 1 "$@"
"""
# What the Python module needs from a build of this tree (docs/python.md).
MODULE = {
    "PYTHONPATH": os.path.join(ROOT, "python"),
    "PYTHONDONTWRITEBYTECODE": "1",
    "MUSTER_LIBRARY": os.path.join(os.path.dirname(muster_path()), "libmuster.so.0"),
}


IN_ETCD = ("docs/from-etcd.md", "docs/rendezvous-etcd-v3.md")
# The commands of a swarm, on any page.
SWARM = re.compile(r"/ip4/|--dht\b|\$BOOT|\bmuster (dht|peer|p2pd)\b")
RAN = []  # the texts that were run, as the pages have them
# What names another host in a command: those of the examples, and all addresses at once.
FAR = re.compile(r"\bnode\d|\b10\.0\.0\.\d|\b203\.0\.113\.|\b192\.0\.2\.|\b0\.0\.0\.0\b|\$BOOT|"
                 r"\be\d\b(?=[,:/' ]|$)")


def squeeze(text):
    return " ".join(text.replace("\\\n", " ").split())


def strip_remark(line):
    """The command of a line, without what is said behind it."""
    return re.split(r"\s{2,}(?=#|once\b|on\b|from\b|the\b)", line)[0]


def far_commands(page):
    """(number, command) of each that reaches other hosts: in a block, or in backticks."""
    lines = [found for block in page.blocks if block.language in ("", "sh")
             for found in block.commands()] + list(page.snippets())
    for number, line in lines:
        line = re.sub(r"^\$ ", "", strip_remark(line))
        words = pages.split_command(line)
        if words and any(len(command) > 1 for command in pages.muster_words(words)) \
                and FAR.search(line):
            yield number, line


def runner_of(path, line):
    """The program of this folder that runs it."""
    if path == "docs/install.md":
        return "service"  # on a machine with systemd, every command of the page
    if path == "docs/averaging.md":
        return "docs_average"
    if path in IN_ETCD or "etcd://" in line:
        return "docs_etcd"
    return "docs_swarm" if SWARM.search(line) else "docs_hosts"


def unrun(program):
    """What this program should have run, and has not."""
    ran = [squeeze(text) for text in RAN]
    for path, page in PAGES.items():
        for number, line in far_commands(page):
            if runner_of(path, line) == program and not any(squeeze(line) in text for text in ran):
                yield "%s:%d: %s" % (path, number, line)


def fill(command, places):
    """A command of a page with what only its reader knows: {what stands there: what it is}. It is
    about to be run."""
    RAN.append(command)
    for old, new in places.items():
        command = command.replace(old, new)
    return command


def block(path, mark):
    return next(block for block in PAGES[path].blocks if block.mark == mark)


def commands(path, mark):
    """The commands of a block, without the remarks behind them."""
    return [strip_remark(line) for _, line in block(path, mark).commands()]


class Site:
    """Hosts whose readers follow a page, each in its own folder."""

    def __init__(self, rig, program=WORKER):
        self.rig = rig
        self.bin = os.path.join(rig.path, "bin")
        os.mkdir(self.bin)
        os.symlink(muster_path(), os.path.join(self.bin, "muster"))
        with open(os.path.join(self.bin, "torchrun"), "w") as file:
            file.write(TORCHRUN)
        os.chmod(file.name, 0o755)
        for host in rig.hosts:
            os.symlink(os.path.join(ROOT, "examples"), os.path.join(host.path, "examples"))
            self.write(host, "train.py", program)

    def write(self, host, name, text):
        with open(os.path.join(host.path, name), "w") as file:
            file.write(text)

    def start(self, host, text, pid1=False, memory=None, **env):
        RAN.append(text)
        text = text.replace("10.0.0.0/24", "10.78.0.0/24").replace("203.0.113.7", "10.78.0.1")
        env = dict({"PATH": self.bin + ":" + os.environ["PATH"], "PYTHON_EXEC": PYTHON}, **env)
        return host.start("sh", "-c", text, env=env, pid1=pid1, memory=memory)

    def ask(self, host, text, **env):
        """Runs a command that may fail: (exit code, standard output, standard error)."""
        RAN.append(text)
        return host.run("sh", "-c", "PATH=%s:$PATH; %s" % (self.bin, text), env=env)

    def run(self, host, text, what, **env):
        """Runs a command to its end, which must be good; what it said."""
        process = self.start(host, text, **env)
        code = process.wait(PATIENCE)
        checks.ok(code == 0, what, "ended with %s: %s" % (code, process.output()))
        return process.output()

    def serve(self, host, text, words, what, **options):
        """Starts what goes on beside the rest."""
        process = self.start(host, text, **options)
        try:
            process.says(words, PATIENCE)
            checks.ok(True, what)
        except AssertionError as error:
            checks.ok(False, what, error)
        return process

    def copy(self, name="job.token"):
        """From node0 to the others, as `scp -p` does."""
        for host in self.rig.hosts[1:]:
            shutil.copy2(os.path.join(self.rig.hosts[0].path, name), host.path)

    def together(self, hosts, texts, words, what, **env):
        """The same or different commands on several hosts, which all end well; one says this."""
        processes = [self.start(host, text, **env) for host, text in zip(hosts, texts)]
        for process in processes:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
        ends = [(process.popen.returncode, process.output()) for process in processes]
        checks.equal([code for code, _ in ends], [0] * len(ends), what + ": all end well")
        said = "".join(said for _, said in ends)
        checks.ok(words in said, "%s: %s" % (what, words), said)
        return said
