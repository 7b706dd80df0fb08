#!/usr/bin/python3
"""Who failed first: one rank of four, on one of two agents, ends badly in the middle of steps in which
all four exchange data; the others fail because of it, often before the agent of the first one
knows. Both agents must name the one that began, where it ran and how it ended. And which interpreter
failed to import a module, and what chose it.

usage: run_verdict.py path/to/muster [--seeds=25] [--first=0] [--gloo=2]

--gloo: of those seeds so many again with PyTorch's gloo in place of plain sockets.
"""
import json
import os
import signal
import socket
import subprocess
import sys

from lib import HERE, Checks, Scratch, free_port, muster_path, option
from run_ddp import Agent, wait_for
from verdict_worker import Plan


def start_agent(muster, directory, seed, port, index, gloo):
    command = [muster, "run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-id=seed%d" % seed,
               "--rdzv-endpoint=127.0.0.1:%d" % port, "--local-addr=127.0.0.1",
               "--log-dir", os.path.join(directory, "log%d" % index),
               "--verdict", os.path.join(directory, "verdict%d" % index),
               os.path.join(HERE, "verdict_worker.py"), directory, str(seed)]
    os.mkdir(os.path.join(directory, "log%d" % index))
    return Agent(command + (["--gloo"] if gloo else []), directory)


def check_failure(checks, plan, first, what, said):
    """The record of the first failure, against what happened."""
    if not checks.ok(first is not None and first["rank"] == plan.victim,
                     "%s: names rank %d" % (what, plan.victim), said):
        return
    code = plan.exit_code()
    checks.equal(first["exit_code"], code, what + ": how it ended")
    checks.equal(first.get("signal"), signal.Signals(-code).name if code < 0 else None,
                 what + ": by which signal")
    checks.equal((first["host"], first["group_rank"], first["local_rank"]),
                 (socket.gethostname(), plan.victim // 2, plan.victim % 2), what + ": where it ran")
    checks.ok("rank %d is about to end" % plan.victim in first["tail"], what + ": its last lines",
              first["tail"])
    if plan.way == "record":
        checks.equal((first["message"], first["traceback"]),
                     ("ValueError: " + plan.message(), "Traceback of it"),
                     what + ": its error file")


def run_seed(checks, muster, seed, gloo):
    plan = Plan(seed)
    with Scratch() as directory:
        port = free_port()
        agents = [start_agent(muster, directory, seed, port, i, gloo) for i in range(2)]
        codes = wait_for(agents)
        said = [agent.said() for agent in agents]
        here = []
        for i, code in enumerate(codes):
            what = "seed %d%s (%s), agent %d" % (seed, " gloo" if gloo else "", plan.way, i)
            if not checks.equal(code, 1, what + ": ends with 1"):
                checks.note("\n".join(said))  # whom it waited for may be at the other one
                continue
            with open(os.path.join(directory, "verdict%d" % i)) as f:
                verdict = json.load(f)
            first = verdict["first_failure"]
            check_failure(checks, plan, first, what, said[i])
            checks.ok("first failure: rank %d " % plan.victim in said[i], what + ": says so")
            here.append(first is not None and first["here"])
        checks.equal(sorted(here), [False, True], "seed %d: one agent says that it was here" % seed)


def run_import(checks, muster):
    """Where the interpreter came from, in which a module is missing."""
    with Scratch() as directory:
        script = os.path.join(directory, "worker.py")
        with open(script, "w") as file:
            file.write("import a_module_that_nobody_has\n")
        venv = os.path.join(directory, "venv")
        os.makedirs(os.path.join(venv, "bin"))
        os.symlink(sys.executable, os.path.join(venv, "bin", "python3"))
        for what, path, env, cause in (
                ("PATH", "/usr/bin", {}, "/usr/bin/python3, the first python3 in PATH\n"),
                ("VIRTUAL_ENV", venv + "/bin:/usr/bin", {"VIRTUAL_ENV": venv},
                 venv + "/bin/python3, the first python3 in PATH and that of VIRTUAL_ENV\n")):
            done = subprocess.run([muster, "run", "--standalone", script], text=True,
                                  stderr=subprocess.PIPE, env=dict(env, PATH=path))
            checks.ok(done.returncode == 1 and "an import failed in the interpreter " + cause in
                      done.stderr, "an import, interpreter from %s: it is named" % what, done.stderr)


def main():
    checks = Checks()
    muster = muster_path()
    run_import(checks, muster)
    first = option("first", 0)
    for seed in range(first, first + option("seeds", 25)):
        run_seed(checks, muster, seed, False)
    for seed in range(first, first + option("gloo", 2)):
        run_seed(checks, muster, seed, True)
    checks.done()


if __name__ == "__main__":
    main()
