#!/usr/bin/python3
"""A worker is killed in the middle of ten thousand calls, and comes back under its name.

    rpc_kill9.py [MUSTER] [--calls=10000]

Every call must end, within its deadline, with an answer or with an error that names the worker;
calls that are made after it is back must go through, and no answer of the old process is taken for
one of the new. Beside that, the commands: what they print, and how they exit.
"""
import re
import signal
import subprocess

import lib
from lib import HOST, Checks, die_with_parent, muster_path, option, run_muster, wait_until

checks = Checks()
CALLS = option("calls", 10000)
TIMEOUT = 4


class Worker:
    """`muster rpc serve`."""

    def __init__(self, name="w", listen=HOST + ":0", extra=()):
        self.process = subprocess.Popen(
            [muster_path(), "rpc", "serve", "--name", name, "--listen", listen] + list(extra),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
        line = self.process.stdout.readline().decode()
        match = re.match(r"(\S+) serves at (\S+)\n", line)
        assert match, "it said %r" % line
        self.address = match.group(2)
        self.to = name + "@" + self.address

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=lib.PATIENCE)


def stats(worker):
    code, out, err = run_muster("rpc", "call", "--to", worker.to, "muster::Rpc.stats")
    assert code == 0, err
    return dict(line.split() for line in out.decode().splitlines() if line)


def start_calls(worker, count, *extra):
    return subprocess.Popen(
        [muster_path(), "rpc", "call", "--to", worker.to, "--count", str(count), "--in-flight",
         str(CALLS), "--timeout", str(TIMEOUT)] + list(extra) + ["muster::Rpc.sleep", "20"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=die_with_parent)


def end_calls(process):
    out, err = process.communicate(timeout=6 * TIMEOUT + lib.PATIENCE)
    numbers = dict(line.split()[:2] for line in out.decode().splitlines())
    return int(numbers["ok"]), int(numbers["failed"]), float(numbers["longest"]), err.decode()


def kill_in_the_middle(worker):
    """Once some calls have been answered, and most have not."""

    def answered():
        numbers = stats(worker)
        return int(numbers["agent.served"]) - int(numbers["agent.server_active_calls"])

    wait_until(lambda: answered() > 100, "calls under way")
    worker.kill()


def test_killed_for_good():
    worker = Worker()
    process = start_calls(worker, CALLS)
    kill_in_the_middle(worker)
    ok, failed, longest, err = end_calls(process)
    checks.equal(ok + failed, CALLS, "each of %d calls has ended" % CALLS)
    checks.ok(ok > 0 and failed > 0, "in the middle", (ok, failed))
    checks.ok(longest < TIMEOUT + 1.5, "within its deadline", longest)
    lines = [line for line in err.splitlines() if line.startswith("muster: muster::")]
    checks.ok(lines and all(" to w: " in line for line in lines), "every error names the worker",
              err)


def test_killed_and_back():
    worker = Worker()
    process = start_calls(worker, CALLS + 1000)
    kill_in_the_middle(worker)
    again = Worker(listen=worker.address)
    ok, failed, longest, err = end_calls(process)
    checks.equal(ok + failed, CALLS + 1000, "each call has ended")
    checks.ok(failed > 0 and longest < TIMEOUT + 1.5, "those that were lost in time",
              (failed, longest))
    checks.ok("the outcome is unknown" in err, "and said so", err)
    served = int(stats(again)["agent.served"])
    checks.ok(served > 0, "calls go through to the new process", served)
    code, out, err = run_muster("rpc", "call", "--to", again.to, "muster::Rpc.echo", "hello")
    checks.equal((code, out), (0, b"hello\n"), "and so do those of others")
    checks.equal(again.stop(), 0, "it leaves in order")


def test_at_most_once():
    worker = Worker()
    process = start_calls(worker, CALLS, "--once", "--retries", "5", "--retry-delay", "100ms")
    kill_in_the_middle(worker)
    again = Worker(listen=worker.address)
    ok, failed, _, err = end_calls(process)
    checks.equal(ok + failed, CALLS, "each call that runs at most once has ended")
    checks.ok(failed > 0 and "must not run twice" in err,
              "what the old process may have run, the new one does not", err)
    again.stop()


def test_commands():
    worker = Worker("a")
    for args, code, words in (
            (["--to", worker.to, "muster::Rpc.fail", "disk full"], 1, "to a: disk full"),
            (["--to", worker.to, "muster::Rpc.none"], 1, "serves no method"),
            (["--to", "b@" + worker.address, "muster::Rpc.echo"], 4, "not the worker you mean"),
            (["--to", worker.to, "--timeout", "1", "muster::Rpc.sleep", "9000"], 3,
             "set timeout (1000 ms)"),
            (["--to", worker.to, "--retries", "2", "--retry-delay", "1ms", "muster::Rpc.fail"], 1,
             "max retries (2)"),
            (["muster::Rpc.echo"], 2, "--to"),
    ):
        got, _, err = run_muster("rpc", "call", *args)
        checks.equal(got, code, "exit code of %s" % args[-1])
        checks.ok(words in err, "in words", err)
    code, out, err = run_muster("rpc", "bench", "--to", worker.to, "--duration", "1s")
    checks.equal(code, 0, "a bench")
    checks.ok(re.search(rb"rpc\.echo\.rate \d+ calls/s", out), "and its numbers", out)
    code, _, err = run_muster("rpc", "serve", "--name", "a b")
    checks.equal(code, 2, "a bad name")
    checks.ok("A-Z" in err, "in words", err)
    code, _, err = run_muster("rpc", "serve", "--listen", worker.address)
    checks.equal(code, 6, "a port in use")
    worker.stop()


def test_group():
    with lib.Muster() as server:
        url = "tcp://%s:%d" % (HOST, server.port)
        processes = [
            subprocess.Popen(
                [muster_path(), "rpc", "serve", "--name", name, "--id", str(i), "--listen",
                 HOST + ":0", "--store", url, "--world", "3", "--group", "g"],
                stdout=subprocess.PIPE, preexec_fn=die_with_parent)
            for i, name in enumerate(("a", "b", "c"))
        ]
        lines = [process.stdout.readline().decode() for process in processes]
        checks.ok(all("serves at" in line for line in lines), "a group of three", lines)
        for process in processes:
            process.terminate()
            process.wait()


def main():
    checks.run_tests(globals())
    checks.done()


if __name__ == "__main__":
    main()
