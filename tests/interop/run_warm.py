#!/usr/bin/python3
"""`muster run --warm` when things go wrong: restarts, modules that cannot be forked, zygotes and
standbys that are killed, an agent that is, processes that a worker leaves behind, a spare. No job
fails because of it, and nothing is left. What scripts see is tested by warm.py.

usage: run_warm.py path/to/muster [--only=restarts]
"""
import os
import re
import signal
import subprocess
import textwrap

from lib import Checks, Scratch, die_with_parent, free_port, muster_path, option, wait_until

SCRIPT = """
    import os, sys, time
    import {module}
    with open("/proc/self/stat") as f: parent = int(f.read().split()[3])
    print("start", os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["LOCAL_RANK"], os.getpid(),
          "warm" if "json" in sys.modules else "plain", parent, flush=True)
    {more}
    while not os.path.exists("go." + os.environ["TORCHELASTIC_RESTART_COUNT"]): time.sleep(0.01)
    sys.exit(0 if os.path.exists("end") else 3)
    """


class Job:
    """An agent with --warm; workers of restart N wait for the file go.N."""

    def __init__(self, muster, directory, *options, module="time", more="", warm="json", workers=2,
                 name="agent", script=SCRIPT):
        self.directory = directory
        self.path = os.path.join(directory, name)
        with open(os.path.join(directory, "script.py"), "w") as file:
            file.write(textwrap.dedent(script).format(module=module, more=more))
        with open(self.path, "wb") as out:
            self.agent = subprocess.Popen(
                [muster, "run", "--nproc-per-node=%d" % workers, "--max-restarts=5", "--grace=5s",
                 *(options or ["--standalone"]), *(["--warm=" + warm] if warm else []), "script.py"],
                cwd=directory, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent)

    def text(self):
        with open(self.path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def wait(self, words, count=1):
        wait_until(lambda: self.text().count(words) >= count or self.agent.poll() is not None,
                   words + "\n" + self.text(), patience=60)
        return self.text().count(words) >= count

    def starts(self, restart):
        """(rank, pid, how, parent) of its workers."""
        lines = [line.split() for line in self.text().splitlines() if line.startswith("start ")]
        return [(w[2], int(w[3]), w[4], int(w[5])) for w in lines if w[1] == str(restart)]

    def go(self, restart, last=False):
        """Lets the workers of that restart end; the last ones succeed."""
        for name in (["end"] if last else []) + ["go.%d" % restart]:
            with open(os.path.join(self.directory, name), "w"):
                pass

    def end(self):
        return self.agent.wait(60)


def processes(pid):
    """Its descendants, however deep: [(pid, command)]."""
    found, todo = [], [pid]
    while todo:
        parent = todo.pop()
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/stat" % entry) as file:
                    ppid = int(file.read().rpartition(")")[2].split()[1])
                with open("/proc/%s/cmdline" % entry, "rb") as file:
                    command = file.read()
            except OSError:
                continue
            if ppid == parent:
                found.append((int(entry), command))
                todo.append(int(entry))
    return found


def standbys(job):
    """Children of the agent that are no workers of the moment: the zygote, and what it forked."""
    workers = {w[1] for r in range(9) for w in job.starts(r)}
    return [p for p, command in processes(job.agent.pid) if p not in workers and command.startswith(b"python3")]


def zygote(job):
    """It is the oldest of them."""
    return min(standbys(job), key=lambda p: int(open("/proc/%d/stat" % p).read().rpartition(")")[2].split()[19]))


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def restarts(checks, muster):
    with Scratch() as directory:
        job = Job(muster, directory)
        checks.ok(job.wait("standbys wait"), "restarts: standbys come")
        checks.equal({s[2] for s in job.starts(0)}, {"plain"}, "restarts: the first start is plain")
        for restart in range(3):
            wait_until(lambda: len(standbys(job)) == 3, "two standbys and their zygote")
            job.go(restart)
            wait_until(lambda: len(job.starts(restart + 1)) == 2, job.text())
            checks.equal([s[2:] for s in job.starts(restart + 1)], [("warm", job.agent.pid)] * 2,
                         "restarts: workers of restart %d were standbys, and are the agent's children" %
                         (restart + 1))
        job.go(3, last=True)
        checks.equal(job.end(), 0, "restarts: the job ends well")
        checks.ok("plainly" not in job.text(), "restarts: nothing is said", job.text())


def imported_environment(checks, muster):
    """What a module does to the environment when it is imported is done in every worker, but not to
    what its round has set."""
    with Scratch() as directory:
        with open(os.path.join(directory, "sets.py"), "w") as file:
            file.write("import os\n"
                       "os.environ['SET'] = 'yes'\n"
                       "os.environ.setdefault('MISSING', 'no')\n"
                       "os.environ.setdefault('RANK', '99')\n"
                       "os.environ.pop('DROPPED', None)\n")
        with open(os.path.join(directory, "shows.py"), "w") as file:
            file.write("import os, sys\n"
                       "warm = 'sets' in sys.modules\n"
                       "import sets\n"
                       "restart = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
                       "names = ('SET', 'MISSING', 'RANK', 'DROPPED')\n"
                       "print(restart, warm, *map(os.environ.get, names), flush=True)\n"
                       "while restart == '0' and not os.path.exists('go'): pass\n"
                       "sys.exit(restart == '0')\n")
        environment = dict(os.environ, DROPPED="1", PYTHONPATH=str(directory))
        agent = subprocess.Popen([muster, "run", "--standalone", "--max-restarts=1", "--warm=sets",
                                  "shows.py"], cwd=str(directory), env=environment,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 universal_newlines=True, preexec_fn=die_with_parent)
        said = []
        for line in agent.stdout:
            said.append(line)
            if "standbys wait" in line or "standby waits" in line:
                open(os.path.join(directory, "go"), "w").close()
        checks.equal(agent.wait(60), 0, "imported environment: the job ends well")
        shown = re.findall(r"(\d (?:True|False)) (yes .*)", "".join(said))
        checks.equal(shown, [("0 False", "yes no 0 None"), ("1 True", "yes no 0 None")],
                     "imported environment: as at a plain start")


def refuses(checks, muster, what, module, files, says):
    """One line, and everything goes on without standbys."""
    with Scratch() as directory:
        for name, text in files.items():
            with open(os.path.join(directory, name), "w") as file:
                file.write(text)
        job = Job(muster, directory, warm=module)
        checks.ok(job.wait(says), "%s: it is said why" % what, job.text())
        job.go(0)
        wait_until(lambda: len(job.starts(1)) == 2, job.text())
        job.go(1, last=True)
        checks.equal(job.end(), 0, "%s: the job ends well" % what)
        checks.equal(job.text().count("--warm"), 1, "%s: in one line" % what)


def refusals(checks, muster):
    refuses(checks, muster, "no such module", "json,nowhere", {},
            "--warm: workers start plainly from now on: ModuleNotFoundError: No module named 'nowhere'")
    refuses(checks, muster, "a thread at import", "threaded",
            {"threaded.py": "import threading, time\n"
             "threading.Thread(target=time.sleep, args=(999,), daemon=True).start()\n"},
            "start plainly from now on: an import started 1 threads")
    refuses(checks, muster, "an import that exits", "exits", {"exits.py": "import sys; sys.exit(3)\n"},
            "start plainly from now on: SystemExit: 3")
    refuses(checks, muster, "an import that exits at once", "exits", {"exits.py": "import os; os._exit(0)\n"},
            "start plainly from now on: it exited with code 0")
    refuses(checks, muster, "an import that replaces a stream", "wraps",
            {"wraps.py": "import sys, io; sys.stdout = io.StringIO()\n"},
            "start plainly from now on: an import replaced sys.stdout")


def killed(checks, muster):
    with Scratch() as directory:
        job = Job(muster, directory)
        checks.ok(job.wait("standbys wait"), "killed: standbys come")
        wait_until(lambda: len(standbys(job)) == 3, "two standbys and their zygote")
        first = zygote(job)
        one = next(p for p in standbys(job) if p != first)
        os.kill(one, signal.SIGKILL)
        wait_until(lambda: len(standbys(job)) == 3 and one not in standbys(job), "another standby")
        checks.ok(True, "killed: a standby is replaced")
        others = standbys(job)
        os.kill(first, signal.SIGKILL)
        checks.ok(job.wait("ended (it was ended by signal 9); another one starts in 1 s"),
                  "killed: the zygote's end is told", job.text())
        wait_until(lambda: not any(map(alive, others)), "the end of its standbys")
        job.go(0)
        wait_until(lambda: len(job.starts(1)) == 2, job.text())
        checks.ok(job.wait("standbys wait", 2), "killed: another zygote has standbys", job.text())
        wait_until(lambda: len(standbys(job)) == 3, "two standbys and their zygote")
        job.go(1)
        wait_until(lambda: len(job.starts(2)) == 2, job.text())
        checks.equal({s[2] for s in job.starts(2)}, {"warm"}, "killed: they become workers")
        job.go(2, last=True)
        checks.equal(job.end(), 0, "killed: the job ends well")


def not_ready(checks, muster):
    """Workers fail before their standbys wait."""
    with Scratch() as directory:
        with open(os.path.join(directory, "slow.py"), "w") as file:
            file.write("import os, time\nwhile not os.path.exists('imported'): time.sleep(0.01)\n")
        job = Job(muster, directory, warm="slow")
        job.go(0)
        wait_until(lambda: len(job.starts(1)) == 2, job.text())
        checks.equal(job.text().count("--warm: no standby was ready for 2 of 2 workers, which start plainly"),
                     1, "not ready: it is said, but not of the first start")
        job.go(1, last=True)
        checks.equal(job.end(), 0, "not ready: the job ends well, although the import goes on")


def large(checks, muster):
    """An environment beyond WHOLE_ENV_MAX of service/agent/warm.c; workers get it whole."""
    with Scratch() as directory:
        os.environ["LARGE"] = "x" * 110000
        job = Job(muster, directory, more='print("large", len(os.environ["LARGE"]), flush=True)')
        checks.ok(job.wait("standbys wait"), "large: standbys come")
        del os.environ["LARGE"]
        # The first that ends takes the other one with it, which may not have said it yet.
        wait_until(lambda: job.text().count("large 110000") == 2, job.text())
        job.go(0)
        wait_until(lambda: len(job.starts(1)) == 2, job.text())
        job.go(1, last=True)
        checks.equal(job.end(), 0, "large: the job ends well")
        checks.equal(({s[2] for s in job.starts(1)}, job.text().count("large 110000")), ({"warm"}, 4),
                     "large: workers have the whole environment")


def left_behind(checks, muster):
    """A worker's daemon, which only its environment tells, is gone before the next start."""
    more = """
    if os.environ["LOCAL_RANK"] == "0" and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            print("daemon", os.getpid(), flush=True)
            time.sleep(999)
        os._exit(0)
    """
    with Scratch() as directory:
        job = Job(muster, directory, more=textwrap.dedent(more))
        checks.ok(job.wait("standbys wait"), "left behind: standbys come")
        for restart in range(2):
            wait_until(lambda: job.text().count("daemon") > restart, "a daemon")
            wait_until(lambda: len(standbys(job)) == 4, "standbys, their zygote, and a daemon")
            job.go(restart)
            wait_until(lambda: len(job.starts(restart + 1)) == 2, job.text())
            daemon = [int(l.split()[1]) for l in job.text().splitlines() if l.startswith("daemon ")][restart]
            checks.ok(not alive(daemon), "left behind: the daemon of start %d is gone" % restart)
        wait_until(lambda: job.text().count("daemon") > 2, "a daemon")
        wait_until(lambda: len(standbys(job)) == 4, "standbys, their zygote, and a daemon")
        everything = [p for p, _ in processes(job.agent.pid)]
        checks.ok(len(everything) >= 7, "left behind: workers, daemon, zygote, standbys, watcher", everything)
        job.agent.kill()
        job.agent.wait()
        wait_until(lambda: not any(map(alive, everything)), "the end of everything")
        checks.ok(True, "left behind: nothing, when the agent is killed")


def interrupted(checks, muster):
    """A signal while the zygote imports, and one while standbys wait."""
    for warm, words in (("slow", "start 0"), ("json", "standbys wait")):
        with Scratch() as directory:
            with open(os.path.join(directory, "slow.py"), "w") as file:
                file.write("import time; time.sleep(999)\n")
            job = Job(muster, directory, warm=warm)
            job.wait(words)
            wait_until(lambda: len(job.starts(0)) == 2, job.text())
            everything = [p for p, _ in processes(job.agent.pid)]
            job.agent.send_signal(signal.SIGTERM)
            job.end()
            checks.ok(not any(map(alive, everything)), "interrupted: nothing is left (%s)" % words)


def spare(checks, muster):
    """A node that waits for a place has standbys, in a job with a token."""
    with Scratch() as directory:
        token = os.path.join(directory, "token")
        subprocess.run([muster, "keygen", "token", token], check=True, stdout=subprocess.DEVNULL)
        options = ["--nnodes=1", "--rdzv-endpoint=127.0.0.1:%d" % free_port(), "--token-file", token,
                   "--rdzv-id=spare", "--detect=2s"]
        with subprocess.Popen([muster, "serve", "--token-file", token, "--listen", options[1].split("=")[1]],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            options.append("--rdzv-conf=is_host=false")
            one = Job(muster, directory, *options, name="one")
            wait_until(lambda: len(one.starts(0)) == 2, one.text())
            two = Job(muster, directory, *options, name="two")
            checks.ok(two.wait("standbys wait"), "spare: it has standbys", two.text())
            checks.equal(two.starts(0), [], "spare: and no workers")
            one.agent.kill()
            one.agent.wait()
            wait_until(lambda: "start " in two.text() or two.agent.poll() is not None, two.text(), patience=60)
            wait_until(lambda: two.text().count("start ") == 2, two.text())
            checks.ok("plain " not in two.text() and two.text().count(" warm ") == 2,
                      "spare: its first workers were standbys", two.text())
            for restart in range(2):
                two.go(restart, last=True)
            checks.equal(two.end(), 0, "spare: the job ends well")
            server.terminate()


def main():
    checks = Checks()
    for test in (restarts, imported_environment, refusals, killed, not_ready, large, left_behind,
                 interrupted, spare):
        if option("only", test.__name__) == test.__name__:
            test(checks, muster_path())
    checks.done()


if __name__ == "__main__":
    main()
