#!/usr/bin/python3
"""`muster run` from the shell, without PyTorch: what a user sees of restarts, signals, output, logs and
the verdict, and with which code it ends.

usage: run_cli.py path/to/muster
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from lib import Checks, Muster, free_port, muster_path, wait_until


class Bench:
    def __init__(self, checks, muster):
        self.checks, self.muster = checks, muster
        self.directory = tempfile.mkdtemp(prefix="muster-run-cli-")
        self.tmp = os.path.join(self.directory, "tmp")
        os.mkdir(self.tmp)

    def environment(self, **more):
        base = {k: v for k, v in os.environ.items()
                if not k.startswith(("PET_", "TORCH", "MUSTER", "OMP_", "LOGLEVEL"))}
        base.update(TMPDIR=self.tmp, PYTHON_EXEC=sys.executable, **more)
        return base

    def start(self, *words, **variables):
        return subprocess.Popen([self.muster, "run"] + list(words), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=self.environment(**variables), universal_newlines=True)

    def run(self, *words, **variables):
        """Code, standard output, standard error."""
        p = self.start(*words, **variables)
        try:
            out, err = p.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            p.kill()
            out, err = p.communicate()
            err += "(killed: it did not end)"
        return p.returncode, out, err

    def shell(self, options, script, **variables):
        return self.run(*options, "--no-python", "sh", "-c", script, **variables)

    def path(self, *names):
        return os.path.join(self.directory, *names)


def check_codes(b):
    ok = b.checks.ok
    code, out, err = b.shell([], "echo $RANK of $WORLD_SIZE")
    ok(code == 0 and out == "0 of 1\n", "success is 0", (code, out, err))
    ok(os.listdir(b.tmp) == [], "nothing is left in TMPDIR", os.listdir(b.tmp))
    code, _, err = b.shell([], "exit 7")
    ok(code == 1 and "exit code 7" in err, "a worker's failure is 1, and its code is told", err)
    code, _, err = b.run("--no-python", "/no/such/program")
    ok(code == 1 and "/no/such/program" in err, "a program that is not there is 1", err)
    code, _, err = b.run("--bogus", "x")
    ok(code == 2 and "--bogus" in err, "an unknown option is 2", err)
    code, _, err = b.run("--nnodes", "0", "x")
    ok(code == 1 and err.count("\n") == 1, "a value that makes no sense is 1, in one line", err)
    code, _, err = b.run("--rdzv-conf", "nonsense=1", "--no-python", "true")
    ok(code == 1 and "nonsense" in err, "a key of the rendezvous that does not exist is 1", err)
    code, out, _ = b.run("--help")
    ok(code == 0 and "--nproc-per-node" in out and "--signal-map" in out, "--help lists options")
    code, _, err = b.run("--standalone", "--no-python", "true", LOGLEVEL="ERROR")
    ok(code == 0 and err == "", "LOGLEVEL=ERROR is silent", err)


def check_restarts(b):
    ok = b.checks.ok
    code, out, err = b.shell(["--max-restarts", "2", "--nproc-per-node", "2", "--verdict",
                              b.path("again.json")],
                             "echo try $TORCHELASTIC_RESTART_COUNT; "
                             "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || [ $RANK = 0 ]")
    ok(code == 0, "workers are started again until they succeed", (code, err))
    ok(out.count("try 2") == 2, "all of them, each time", out)
    with open(b.path("again.json")) as f:
        became = [worker["became"] for worker in json.load(f)["workers"]]
    ok(became == ["succeeded", "succeeded"], "and the verdict says so of those that did", became)
    code, out, err = b.shell(["--max-restarts", "1", "--verdict", b.path("v.json")],
                             "echo about to fail; exit 3")
    ok(code == 1 and out.count("about to fail") == 2, "and not more often than was said", out)
    with open(b.path("v.json")) as f:
        verdict = json.load(f)
    first = verdict["first_failure"] or {}
    ok(verdict["outcome"] == "FAILED" and first.get("exit_code") == 3 and
       "about to fail" in first.get("tail", ""), "the verdict has it all", verdict)
    code, out, err = b.shell(["--verdict", b.path("no/such/v.json")], "echo started")
    ok(code == 1 and "cannot write the verdict" in err and "started" not in out,
       "a verdict that cannot be written is said before the job", (code, out, err))
    code, _, _ = b.shell(["--verdict", b.path("good.json")], "true")
    with open(b.path("good.json")) as f:
        ok(json.load(f)["outcome"] == "SUCCEEDED", "success has a verdict, too")


def check_signals(b):
    ok = b.checks.ok
    script = "trap 'echo got %s; exit 0' %s; echo up; while :; do sleep 0.05; done"
    for words, sent, got in (([], signal.SIGTERM, "TERM"), ([], signal.SIGINT, "INT"),
                             (["--signal-map", "USR1=HUP"], signal.SIGUSR1, "HUP")):
        p = b.start(*words, "--no-python", "sh", "-c", script % (got, got))
        first = p.stdout.readline()
        p.send_signal(sent)
        out, err = p.communicate(timeout=30)
        ok(first == "up\n" and f"got {got}" in out and p.returncode == 1,
           f"{sent.name} reaches the workers as SIG{got}, and the agent ends with 1",
           (first, out, err, p.returncode))
    p = b.start("--grace", "0.3", "--no-python", "sh", "-c",
                "trap '' TERM; echo $$$$; while :; do sleep 0.05; done")
    pid = int(p.stdout.readline())
    p.terminate()
    p.communicate(timeout=30)
    ok(p.returncode == 1 and not os.path.exists(f"/proc/{pid}"), "who ignores SIGTERM is killed")
    p = b.start("--no-python", "sh", "-c", "echo $$$$; sleep 1000")
    pid = int(p.stdout.readline())
    p.kill()
    p.communicate(timeout=30)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the worker of a killed agent to end")
    ok(True, "workers do not outlive an agent that is killed")


def check_output(b):
    ok = b.checks.ok
    log = b.path("log")
    code, out, err = b.shell(["--nproc-per-node", "3", "-r", "0:1", "-t", "1:3", "--role", "r",
                              "--log-dir", log, "--rdzv-id", "job/9"],
                             "echo out $RANK; echo err $RANK >&2; echo {} > $TORCHELASTIC_ERROR_FILE")
    ok(code == 0 and sorted(out.split("\n")) == ["", "[r1]:out 1", "out 2"],
       "redirect hides, tee has a prefix, the rest is as it is", out)
    ok({"err 0", "[r1]:err 1", "err 2"} <= set(err.split("\n")), "on standard error as well", err)
    run = os.listdir(log)
    ok(len(run) == 1 and re.fullmatch(r"job_9_\w{6}", run[0]), "the log directory is the run's", run)
    files = sorted(os.path.relpath(os.path.join(d, f), os.path.join(log, run[0]))
                   for d, _, names in os.walk(log) for f in names)
    ok(files == ["attempt_0/0/error.json", "attempt_0/0/stdout.log", "attempt_0/1/error.json",
                 "attempt_0/1/stderr.log", "attempt_0/1/stdout.log", "attempt_0/2/error.json"],
       "its files are torchrun's", files)
    # Two that write as fast as they can: every line whole.
    code, out, _ = b.run("--nproc-per-node", "2", "--no-python", sys.executable, "-c",
                         "import os, sys\n"
                         "for i in range(20000): sys.stdout.write(os.environ['RANK'] * 79 + '\\n')")
    lines = out.split("\n")
    ok(code == 0 and len(lines) == 40001 and set(lines) == {"0" * 79, "1" * 79, ""},
       "lines are never torn", (code, len(lines)))
    # A console that nobody reads, and a worker whose last words wait for it: another takes its place.
    # The pipe to us, our queue less one line and the worker's pipe hold 352 KiB.
    again = b.path("again")
    p = b.start("--max-restarts", "1", "--no-python", "sh", "-c",
                "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then yes | head -c 330000; exit 1; fi; "
                f"echo > {again}")
    wait_until(lambda: os.path.exists(again), "the second worker")
    out, err = p.communicate(timeout=30)
    ok(p.returncode == 0 and out == "y\n" * 165000, "a stuck console keeps no worker from ending",
       (p.returncode, len(out), err))
    # A line without an end is a question.
    p = subprocess.Popen([b.muster, "run", "--no-python", "sh", "-c",
                          "printf 'name? '; read name; echo hello $name"], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=b.environment())
    asked = os.read(p.stdout.fileno(), 100)
    out, _ = p.communicate(b"Bob\n", timeout=30)
    ok(asked == b"name? " and out == b"hello Bob\n", "a prompt is shown before its end", (asked, out))
    with open(os.devnull, "w") as null:
        p = subprocess.Popen([b.muster, "run", "--no-python", "sh", "-c",
                              f"yes | head -c 3000000; echo ok > {b.path('survived')}"],
                             stdout=subprocess.PIPE, stderr=null, env=b.environment())
        p.stdout.read(10)
        p.stdout.close()
        ok(p.wait(60) == 0 and os.path.exists(b.path("survived")),
           "a console that goes away does not end the job")


def check_commands(b):
    ok = b.checks.ok
    os.makedirs(b.path("pkg"))
    open(b.path("pkg", "__init__.py"), "w").close()
    with open(b.path("pkg", "mod.py"), "w") as f:
        f.write("import sys\nprint(__name__, sys.argv[1:])\n")
    script = b.path("pkg", "mod.py")
    _, out, err = b.run(script, "-x", "${local_rank}", "--", "$HOME")
    ok(out == "__main__ ['-x', '0', '--', '$HOME']\n", "a script", (out, err))
    _, out, err = b.run("-m", "pkg.mod", "a", PYTHONPATH=b.directory)
    ok(out == "__main__ ['a']\n", "a module", (out, err))
    _, out, err = b.run("--run-path", script, "a")
    ok(out == "__main__ ['a']\n", "a script by run_path", (out, err))
    _, out, _ = b.shell([], "echo $WORLD_SIZE $LOCAL_WORLD_SIZE", PET_NPROC_PER_NODE="2")
    ok(out == "2 2\n2 2\n", "options from the environment", out)
    _, out, _ = b.shell(["--nproc-per-node", "2", "--virtual-local-rank"],
                        "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES", CUDA_VISIBLE_DEVICES="5,7")
    ok(sorted(out.split("\n")) == ["", "0 5", "0 7"], "virtual local ranks", out)
    _, out, err = b.shell(["--nproc-per-node", "gpu"], "echo $WORLD_SIZE",
                          CUDA_VISIBLE_DEVICES="0,1,2")
    ok(out == "3\n3\n3\n", "as many workers as devices", (out, err))


def check_own_python(b):
    """A command in an environment that is not in PATH takes the Python beside it, as torchrun."""
    ok = b.checks.ok
    venv, script, link = b.path("a venv"), b.path("where.py"), b.path("link")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    shutil.copy(b.muster, venv + "/bin/muster")
    os.symlink(venv + "/bin/muster", link)
    with open(script, "w") as f:
        f.write("import sys\nprint(sys.prefix)\n")

    def prefix(command, **more):
        env = b.environment(PATH="/usr/bin:/bin")
        del env["PYTHON_EXEC"]
        env.update(more)
        done = subprocess.run([command, "run", script], env=env, cwd=b.directory, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              universal_newlines=True, check=False)
        return done.stdout.strip() or (done.returncode, done.stderr)

    for command in (venv + "/bin/muster", "a venv/bin/muster"):
        got = prefix(command)
        ok(got == venv, "%s takes the Python beside it" % command, got)
    for command, more, what in ((link, {}, "a link from elsewhere says nothing"),
                                (b.muster, {}, "a command that is in no environment"),
                                (venv + "/bin/muster", {"PYTHON_EXEC": "python3"},
                                 "PYTHON_EXEC names another one")):
        got = prefix(command, **more)
        ok(isinstance(got, str) and got != venv, what, got)
    os.remove(script)
    with open(script, "w") as f:
        f.write("import no_such_module\n")
    got = prefix(venv + "/bin/muster")
    ok("a venv/bin/python3, that beside this command" in str(got), "the verdict names it", got)


def check_nodes(b):
    """Two nodes; the one that fails is named by both."""
    ok = b.checks.ok
    words = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-endpoint",
             f"127.0.0.1:{free_port()}", "--no-python", "sh", "-c",
             "echo $RANK/$WORLD_SIZE; [ $RANK != 3 ] || { sleep 0.3; exit 5; }; sleep 60"]
    agents = [b.start("--verdict", b.path(f"node{i}.json"), *words) for i in range(2)]
    said = [p.communicate(timeout=60) for p in agents]
    ok([p.returncode for p in agents] == [1, 1], "the failure of one node is everybody's",
       [p.returncode for p in agents])
    lines = sorted("".join(out for out, _ in said).split())
    ok(lines == ["0/4", "1/4", "2/4", "3/4"], "one world of two nodes", lines)
    for i in range(2):
        with open(b.path(f"node{i}.json")) as f:
            first = json.load(f)["first_failure"] or {}
        ok(first.get("rank") == 3 and first.get("exit_code") == 5,
           f"node {i} names the one that failed first", first)


def check_events(b):
    """torchrun's records, one line each."""
    script = 'if [ $RANK = 1 ]; then echo \'{"message": "boom"}\' >$TORCHELASTIC_ERROR_FILE; ' \
        'exit 4; fi; exec sleep 60'
    code, _, err = b.shell(["--event-log-handler", "console", "--nproc-per-node", "2", "--role",
                            "trainer", "--rdzv-id", "ev"], script)
    events = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    b.checks.equal([(e["source"], e["name"].split(".")[-1], e["metadata"]["global_rank"])
                    for e in events],
                   [("AGENT", "RENDEZVOUS", None), ("AGENT", "ASSIGN_WORKER_RANKS", None),
                    ("WORKER", "START", 0), ("WORKER", "START", 1), ("WORKER", "TERMINATED", 0),
                    ("WORKER", "FAILED", 1), ("AGENT", "SUCCEEDED", None)],
                   "the events of a run that fails, in order")
    keys = ["run_id", "global_rank", "group_rank", "worker_id", "role", "hostname", "state",
            "total_run_time", "rdzv_backend", "raw_error", "metadata", "agent_restarts",
            "duration_ms"]
    b.checks.ok(all(list(e["metadata"]) == keys and e["timestamp"] == 0 for e in events),
                "events have torchrun's members", events)
    failed = events[5]["metadata"]
    inner = json.loads(failed["metadata"])
    b.checks.equal((failed["role"], failed["run_id"], failed["raw_error"]),
                   ("trainer", "ev", '{"message": "boom"}\n'), "who failed, and its error file")
    b.checks.equal((inner["local_rank"], inner["exit_code"], inner["worker_pid"]),
                   ([1], [4], [int(failed["worker_id"])]), "the inner metadata is a text of arrays")
    b.checks.ok(isinstance(events[0]["metadata"]["duration_ms"], int),
                "the rendezvous took some time", events[0])
    b.checks.equal(code, 1, "such a run ends with 1")


def check_error_file(b):
    """A launcher that is a worker itself tells its own launcher what went wrong."""
    path = b.path("own-error.json")

    def run(script):
        b.shell([], script, TORCHELASTIC_ERROR_FILE=path)
        with open(path) as f:
            return json.load(f)["message"]

    b.shell([], "exit 0", TORCHELASTIC_ERROR_FILE=path)
    b.checks.ok(not os.path.exists(path), "success leaves no error file")
    message = run("exit 7")
    b.checks.ok(message["errorCode"] == 7 and "rank 0" in message["message"] and
                message["extraInfo"]["timestamp"].isdigit(),
                "the launcher's error file has the first failure", message)
    theirs = {"message": {"message": "ValueError: boom", "extraInfo": {
        "py_callstack": "Traceback", "timestamp": "17"}}}
    message = run("echo '%s' >$TORCHELASTIC_ERROR_FILE; exit 3" % json.dumps(theirs))
    b.checks.equal(message, dict(theirs["message"], errorCode=3),
                   "it is the worker's own word, if there is one")


def check_spares(b):
    """One more than the world may wait; who comes then is refused."""
    with Muster(path=b.muster) as server:
        endpoint = "127.0.0.1:%d" % server.port
        options = ["--nnodes", "1", "--spares", "1", "--max-restarts", "1", "--rdzv-endpoint",
                   endpoint, "--no-python", "sh", "-c", "echo runs; exec sleep 60"]

        def has_spare():
            status = subprocess.run([b.muster, "rdzv", "status", "--json", "--rdzv-endpoint",
                                     endpoint, "--rdzv-id", "none"], stdout=subprocess.PIPE)
            return status.returncode == 0 and json.loads(status.stdout)["spare"] == 1

        agents = [b.start(*options)]
        try:
            b.checks.equal(agents[0].stdout.readline(), "runs\n", "the first node runs")
            agents.append(b.start(*options))
            wait_until(has_spare, "the second node waits")
            code, _, err = b.run(*options)
            b.checks.ok(code == 1 and "takes no more" in err, "one too many is refused",
                        (code, err))
            agents[0].kill()
            b.checks.equal(agents[1].stdout.readline(), "runs\n", "the spare takes its place")
        finally:
            for agent in agents:
                agent.kill()
                agent.communicate()


def main():
    checks = Checks()
    b = Bench(checks, muster_path())
    try:
        for check in (check_codes, check_restarts, check_signals, check_output, check_commands,
                      check_own_python, check_nodes, check_events, check_error_file, check_spares):
            check(b)
    finally:
        shutil.rmtree(b.directory, ignore_errors=True)
    checks.done()


if __name__ == "__main__":
    main()
