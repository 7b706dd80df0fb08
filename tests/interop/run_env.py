#!/usr/bin/python3
"""The same script under Debian's torchrun (PyTorch 1.13) and under `muster run`: what it finds in its
environment, compared variable by variable.

usage: run_env.py path/to/muster

Every difference must be one of those listed here, each with its reason. Whatever else differs fails.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

from lib import Checks, free_port, muster_path, torch_version

PROBE = """
import json, os, sys
path = os.path.join(sys.argv[1], os.environ["RANK"] + ".json")
with open(path + ".part", "w") as f:
    json.dump({"env": dict(os.environ), "argv": sys.argv[2:], "cwd": os.getcwd()}, f)
os.rename(path + ".part", path)
"""

# Only under muster, and why.
OURS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "the name that PyTorch 2.x gives to NCCL_ASYNC_ERROR_HANDLING",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "torchrun has it since 2.x",
    "MUSTER_ROUND": "ours: the number of the round",
    "MUSTER_GRACE": "ours: seconds between SIGTERM and SIGKILL",
    "MUSTER_NOTIFY_FD": "ours: where to ask to be told of a change",
    "MUSTER_KEEP": "ours: where to keep something until the next round",
    "PYTHONFAULTHANDLER": "ours: a worker that is aborted says where it was",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "ours: where the flight recorder listens",
    "TORCH_FR_DUMP_TEMP_FILE" if torch_version() >= (2, 9) else "TORCH_NCCL_DEBUG_INFO_TEMP_FILE":
        "ours: where it writes",
    "TORCH_FR_BUFFER_SIZE" if torch_version() >= (2, 9) else "TORCH_NCCL_TRACE_BUFFER_SIZE":
        "ours: how much it keeps",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "ours: also when PyTorch itself gives up",
    "MUSTER_CHILD": "ours: how the agent knows its own",
}
# In both, with another value, and why.
DIFFER = {
    "MASTER_ADDR": "1.13 publishes its full host name, we how the node is reached",
    "MASTER_PORT": "any free port; each launcher finds its own",
    "TORCHELASTIC_ERROR_FILE": "each launcher has its own log directory",
    "TORCHELASTIC_USE_AGENT_STORE":
        "1.13 serves the workers' store only with `static`; 2.x and we always do",
}
# Only under torchrun, and why.
THEIRS = {
    "LC_CTYPE": "set by the launcher's own Python where the locale is C (PEP 538); ours has none",
}
# What must be there at all.
EXPECTED = (
    "LOCAL_RANK RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE GROUP_WORLD_SIZE "
    "ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS "
    "TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ERROR_FILE OMP_NUM_THREADS "
    "TORCH_NCCL_ASYNC_ERROR_HANDLING").split()
if torch_version() < (2, 2):
    EXPECTED.append("NCCL_ASYNC_ERROR_HANDLING")


class Probe:
    """A directory with the script, in which every worker leaves what it found."""

    def __init__(self, checks, muster):
        self.checks = checks
        self.muster = muster
        self.directory = tempfile.mkdtemp(prefix="muster-run-env-")
        self.script = os.path.join(self.directory, "probe.py")
        with open(self.script, "w") as f:
            f.write(PROBE)

    def run(self, name, launcher, options, workers, environment=None, nodes=1):
        """Returns what the workers found, by rank."""
        found = os.path.join(self.directory, name)
        log = os.path.join(self.directory, "log-" + name)
        os.mkdir(found)
        os.mkdir(log)
        # -r 1 -t 1: Debian's torchrun cannot parse its own defaults with this Python.
        command = launcher + options + ["-r", "1", "-t", "1", "--log_dir", log, self.script, found,
                                        "--flag", "${local_rank}", "$$x", "$other"]
        base = {k: v for k, v in os.environ.items()
                if not k.startswith(("PET_", "TORCH", "MUSTER", "NCCL_", "OMP_"))}
        base["PYTHON_EXEC"] = sys.executable
        base.update(environment or {})
        agents = [subprocess.Popen(command, env=base, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   universal_newlines=True) for _ in range(nodes)]
        said = ""
        for agent in agents:
            try:
                said += agent.communicate(timeout=90)[0]
            except subprocess.TimeoutExpired:
                agent.kill()
                said += agent.communicate()[0]
        codes = [agent.returncode for agent in agents]
        if not self.checks.ok(not any(codes), f"{name}: ends with 0", (codes, said[-2000:])):
            return []
        result = []
        for rank in range(workers):
            path = os.path.join(found, f"{rank}.json")
            if not os.path.exists(path):
                self.checks.ok(False, f"{name}: worker {rank} was there", said[-2000:])
                return []
            with open(path) as f:
                result.append(json.load(f))
        return result

    def torchrun(self, name, options, workers, environment=None, nodes=1):
        return self.run(name, [sys.executable, "-m", "torch.distributed.run"], options, workers,
                        environment, nodes)

    def ours(self, name, options, workers, environment=None, nodes=1):
        return self.run(name, [self.muster, "run"], options, workers, environment, nodes)


def compare(checks, name, theirs, ours, same=()):
    """One worker's environments; `same` must not differ here though they may elsewhere."""
    t, o = theirs["env"], ours["env"]
    missing = [v for v in EXPECTED if v not in o]
    checks.ok(not missing, f"{name}: every variable of torchrun is there", missing)
    wrong = []
    for variable in sorted(set(t) | set(o)):
        if variable not in t and variable in OURS or variable not in o and variable in THEIRS:
            continue
        if t.get(variable) != o.get(variable) and \
                (variable not in DIFFER or variable in same or not t.get(variable) or
                 not o.get(variable)):
            wrong.append(f"{variable}: torchrun {t.get(variable)!r}, muster {o.get(variable)!r}")
    checks.ok(not wrong, f"{name}: nothing differs but what is listed", "; ".join(wrong))
    tail = [e["TORCHELASTIC_ERROR_FILE"].split("/")[-3:] for e in (t, o)]
    checks.ok(tail[0] == tail[1], f"{name}: the error file has the same place in the log", tail)
    checks.ok(theirs["argv"] == ours["argv"], f"{name}: the same arguments",
              (theirs["argv"], ours["argv"]))
    checks.ok(theirs["cwd"] == ours["cwd"], f"{name}: the same directory")


def compare_all(checks, name, theirs, ours, same=()):
    for rank, (t, o) in enumerate(zip(theirs, ours)):
        compare(checks, f"{name}, rank {rank}", t, o, same)
    if ours:
        pairs = {(w["env"]["MASTER_ADDR"], w["env"]["MASTER_PORT"]) for w in ours}
        checks.ok(len(pairs) == 1, f"{name}: one address for all workers", pairs)
        served = {w["env"]["TORCHELASTIC_USE_AGENT_STORE"] for w in ours}
        checks.ok(served == {"True"}, f"{name}: the store is the agent's", served)


def main():
    checks = Checks()
    probe = Probe(checks, muster_path())
    try:
        common = ["--nproc_per_node", "2", "--rdzv_id", "job7", "--role", "trainer",
                  "--max_restarts", "2"]
        theirs = probe.torchrun("torchrun-c10d", common + [
            "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_port()}"], 2)
        compare_all(checks, "muster", theirs, probe.ours("muster", common, 2))
        compare_all(checks, "c10d", theirs, probe.ours("c10d", common + [
            "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_port()}"], 2))

        # Two nodes, on this machine.
        two = ["--nnodes", "2", "--nproc_per_node", "2", "--rdzv_id", "job8"]
        theirs = probe.torchrun("torchrun-two", two + [
            "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_port()}"], 4, nodes=2)
        ours = probe.ours("two", two + ["--rdzv_endpoint", f"127.0.0.1:{free_port()}"], 4, nodes=2)
        compare_all(checks, "two nodes", theirs, ours)

        # With torchrun's oldest words the address is given, and the store is the agent's in both.
        port = str(free_port())
        words = ["--nproc_per_node", "2", "--nnodes", "1", "--node_rank", "0", "--master_addr",
                 "127.0.0.1", "--master_port", port]
        compare_all(checks, "static", probe.torchrun("torchrun-static", words, 2),
                    probe.ours("static", words, 2),
                    same=("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"))

        # What is set around the launcher reaches workers; options may come from the environment.
        around = {"OMP_NUM_THREADS": "3", "NCCL_ASYNC_ERROR_HANDLING": "0", "PET_NPROC_PER_NODE": "1",
                  "PET_RDZV_ID": "from-pet", "RANK": "77", "MASTER_PORT": "1"}
        compare_all(checks, "variables",
                    probe.torchrun("torchrun-variables", [
                        "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_port()}"], 1,
                        around),
                    probe.ours("variables", [], 1, around))
        for name, why in {**OURS, **DIFFER, **THEIRS}.items():
            print(f"     {name}: {why}")
    finally:
        shutil.rmtree(probe.directory, ignore_errors=True)
    checks.done()


if __name__ == "__main__":
    main()
