#!/usr/bin/python3
"""Runs what the pages tell their readers to run on one machine: marked blocks of README.md and
tours. What they run on several is run by tests/hosts/docs_hosts.py.

usage: docs_run.py MUSTER

A block behind <!-- test: run --> is run as it stands, in order with the others of its page; a
command that serves goes on beside them, and what a comment "# prints X" says must be printed. Other
marks have a function here each. Ports are replaced.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import lib

ROOT = os.path.dirname(os.path.dirname(lib.HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "tree"))
import pages  # noqa: E402

PYTHON = "/usr/bin/python3"
PATIENCE = 90  # seconds; PyTorch takes its time to be imported

# A worker that needs no PyTorch.
WORKER = """
import os, time
print(f"worker {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
time.sleep(0.3)
"""


class Rig:
    """A directory, and the processes that run there."""

    def __init__(self, muster, work):
        self.work = work
        self.build = os.path.dirname(os.path.realpath(muster))
        self.running = []
        self.ports = {}
        self.bin = os.path.join(work, "bin")
        os.mkdir(self.bin)
        os.symlink(muster, os.path.join(self.bin, "muster"))
        # The Python module is that of this tree, as python.md says.
        self.env = dict(os.environ, PATH=self.bin + ":" + os.environ["PATH"], PYTHON_EXEC=PYTHON,
                        MUSTER_LIBRARY=os.path.join(self.build, "libmuster.so.0"),
                        PYTHONPATH=os.path.join(ROOT, "python"), PYTHONDONTWRITEBYTECODE="1")
        self.env.pop("MUSTER_TOKEN_FILE", None)
        self.folder = os.path.join(work, "node0")
        os.mkdir(self.folder)

    def adapt(self, text):
        """Its ports in the place of the page's."""
        for port in ("29400", "29500", "29501", "29701", "4001"):
            if port not in self.ports:
                self.ports[port] = str(lib.free_port())
            text = re.sub(rf"\b{port}\b", self.ports[port], text)
        return text

    def start(self, text, shell="sh", **env):
        """Runs a script beside this; its output goes to a file."""
        output = tempfile.NamedTemporaryFile(dir=self.work, delete=False)
        process = subprocess.Popen(
            [shell, "-c", self.adapt(text)], cwd=self.folder, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=lib.die_with_parent,
            env=dict(self.env, **env))
        process.output = output.name
        self.running.append(process)
        return process

    def said(self, process):
        with open(process.output, encoding="utf-8", errors="replace") as file:
            return file.read()

    def finish(self, process):
        """(its exit code, what it said)"""
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = "none"
        return code, self.said(process)

    def wait_for(self, process, words):
        """Until it has said something, a regular expression."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(words, self.said(process)):
            if process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def stop(self, process):
        if process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except (ProcessLookupError, PermissionError):
                process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running.remove(process)

    def stop_all(self):
        for process in list(reversed(self.running)):
            self.stop(process)


# --- README.md ------------------------------------------------------------------------------------

def run_c(rig, source):
    """Compiles and runs it with the library as it was built."""
    rig.write("hello.c", rig.adapt(source))
    return rig.finish(rig.start(
        f"gcc -std=gnu17 -Wall -Werror -I {ROOT}/include hello.c -L {rig.build} -lmuster "
        f"-Wl,-rpath,{rig.build} -o hello && ./hello"))


def run_python_block(page, block, rig, checks):
    """It must end well, and print what its comments "# prints X" say, line by line."""
    wanted = "".join(line + "\n" for line in re.findall(r"# prints (.*)", block.text()))
    code, said = rig.finish(rig.start(block.text(), shell=PYTHON))
    name = os.path.basename(page.path)
    checks.equal((code, said), (0, rig.adapt(wanted)), f"{name}:{block.number}: python")


def run_readme(page, rig, checks):
    os.symlink(os.path.join(ROOT, "examples"), os.path.join(rig.folder, "examples"))
    exports = ""
    for block in page.blocks:
        if block.mark != "run":
            continue
        if block.language == "python":
            run_python_block(page, block, rig, checks)
            continue
        if block.language == "c":
            code, said = run_c(rig, block.text())
            checks.equal((code, said), (0, "hello\n"), f"README.md:{block.number}: C")
            continue
        for number, line in block.commands():
            if line.startswith("export "):
                exports += line + "\n"
                continue
            if re.match(r"muster serve\b", line):
                server = rig.start(line)
                checks.ok(rig.wait_for(server, "serving on"), f"README.md:{number}: {line}",
                          rig.said(server))
                continue
            code, said = rig.finish(rig.start(exports + line))
            checks.ok(code == 0, f"README.md:{number}: {line}", f"ended with {code}: {said}")
            wanted = re.search(r"# prints (.*)$", line)
            if wanted:
                checks.equal(said.strip(), wanted[1], f"README.md:{number}: prints")
    code, said = rig.finish(rig.start(exports + "muster kv get from_torch"))
    checks.equal(said.strip(), "hello", "README.md: what PyTorch has set")
    rig.stop_all()


# --- the tours ------------------------------------------------------------------------------------

def lines_of(page, mark):
    """The commands of a block that are muster's."""
    block = next(block for block in page.blocks if block.mark == mark)
    return [line for _, line in block.commands() if line.startswith("muster ")]


def run_from_torchrun(page, rig, checks):
    rig.write("train.py", WORKER)
    code, said = rig.finish(rig.start(lines_of(page, "standalone")[0]))
    checks.ok(code == 0 and "worker 3 of 4" in said, "from-torchrun: standalone", said)


# --- watching -----------------------------------------------------------------------------------

def run_operate(page, rig, checks):
    script = next(block.text() for block in page.blocks if block.mark == "steps")
    rig.write("train.py", script + """
import time
for step in range(1200):
    report_step(step)
    time.sleep(0.05)
""")
    job = rig.start("muster run --standalone --http 127.0.0.1:0 train.py")
    checks.ok(rig.wait_for(job, "status at http"), "operate: the page is there", rig.said(job))
    address = re.search(r"status at (http://[0-9.:]+/)", rig.said(job))[1]

    def last_step():
        with urllib.request.urlopen(address + "status.json", timeout=20) as answer:
            workers = json.load(answer)["workers"]
        return workers and workers[0].get("step", 0) > 2 and workers[0]["step_us"] > 1000

    checks.ok(lib.wait_until(last_step, "steps are reported"), "operate: steps and their times")
    rig.stop(job)


# --- the Python module --------------------------------------------------------------------------

def run_python(page, rig, checks):
    """Each block is a program of its own, with a server on port 29500 beside it."""
    server = rig.start("muster serve --listen 127.0.0.1:29500")
    checks.ok(rig.wait_for(server, "serving on"), "python.md: the server", rig.said(server))
    for block in page.blocks:
        if block.mark != "run" or block.language != "python":
            continue
        run_python_block(page, block, rig, checks)
    rig.stop(server)


def main():
    muster = lib.muster_path()
    checks = lib.Checks()
    all_pages = {page.path: page for page in pages.read_pages(ROOT)}
    with tempfile.TemporaryDirectory(prefix="muster-docs-") as work:
        rig = Rig(muster, work)
        try:
            run_readme(all_pages["README.md"], rig, checks)
            run_from_torchrun(all_pages["docs/from-torchrun.md"], rig, checks)
            run_operate(all_pages["docs/operate.md"], rig, checks)
            run_python(all_pages["docs/python.md"], rig, checks)
        finally:
            rig.stop_all()
    checks.done()


main()
