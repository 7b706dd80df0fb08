#!/usr/bin/env python3
"""torchrun's agents in an elastic job: a node joins, a node is lost, the first node is lost.

usage: torch2_elastic.py [--backends muster,c10d,mixed] [--seconds N] [--share] [MUSTER]

Three agents of `torchrun --nnodes 1:3` on loopback, with one worker each that does all_reduce
(gloo) again and again. The times are from a new agent's command, or from kill -9 of an agent and
its worker, to the moment when the workers of the new world have made their first all_reduce.

mixed is c10d with agents of both kinds, as in a job that moves from one to the other: those that
join are `muster run` and torchrun in turn, and both are lost. It needs MUSTER, and its store is a
muster server.

muster and mixed must do all of it: if they do not, the exit status is 1. c10d is beside them for
comparison: what it cannot do within --seconds is said. Its agents have a store of their own in a
process apart, because the store of the first agent would go with it; so has muster's (a muster
server inside this process). PyTorch 2.11's c10d shares one store for workers among rounds, and
breaks when the members change; it is run with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 unless --share
is given.

Needs a PyTorch with the package muster beside it, and nothing else. Run it by hand; `make test` has
tests/python/test_torch.py and tests/hosts/python_torchrun.py.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HOST = "127.0.0.1"

WORKER = """
import datetime, os, sys, time
import torch
import torch.distributed as dist
with open(os.environ["ELASTIC_DIR"] + "/worker-" + os.environ["ELASTIC_NODE"], "w") as file:
    file.write(str(os.getpid()))
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
told = False
while True:
    total = torch.ones(1)
    dist.all_reduce(total)
    assert int(total) == dist.get_world_size(), total
    if not told:
        told = True
        print("world", os.environ["ELASTIC_NODE"], dist.get_world_size(), repr(time.monotonic()),
              flush=True)
    time.sleep(0.02)
"""

AGENT = """
import sys
from torch.distributed import run
if sys.argv[1] == "muster":
    import muster.torchrun
    muster.torchrun.register()
run.main(sys.argv[2:])
"""

STORE = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("up", flush=True)
time.sleep(3600)
"""


def free_port():
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


class Agent:
    """A torchrun agent, and what its workers say."""

    def __init__(self, job, name, ours):
        import torch

        self.job, self.name = job, name
        self.began = time.monotonic()
        self.said = []
        self.ours = ours
        command = [job.muster, "run"] if ours else [sys.executable, "-c", AGENT, job.backend]
        command += [
            "--nnodes", "1:3", "--nproc_per_node", "1",
            "--rdzv_backend", job.backend, "--rdzv_endpoint", f"{HOST}:{job.port}",
            "--rdzv_id", "job",
            "--rdzv_conf", job.conf, "--monitor_interval", "0.1", "--max_restarts", "100",
            "--log_dir", job.work,
        ]  # fmt: skip
        if torch.__version__.startswith("1."):
            command += ["-r", "1", "-t", "1"]
        else:
            command += ["--local_addr", HOST]
        env = dict(os.environ, ELASTIC_NODE=name, ELASTIC_DIR=job.work, OMP_NUM_THREADS="1",
                   PYTHON_EXEC=sys.executable)  # fmt: skip
        if not job.share:
            env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        self.log = open(os.path.join(job.work, name + ".log"), "w")
        self.process = subprocess.Popen(
            command + [job.script],
            env=env,
            stdout=subprocess.PIPE,
            stderr=self.log,
            universal_newlines=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            words = line.partition("world ")[2].split()
            if len(words) == 3:
                with self.job.changed:
                    self.said.append((int(words[1]), float(words[2])))
                    self.job.changed.notify_all()

    def kill(self):
        """As if the machine went: the agent and its worker at once."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            with open(os.path.join(self.job.work, "worker-" + self.name)) as file:
                os.kill(int(file.read()), signal.SIGKILL)
        except (OSError, ValueError):
            pass
        self.process.kill()
        self.process.wait()

    def title(self):
        """Who it is, where that is not the same for all."""
        kinds = {True: "muster run ", False: "torchrun "}
        return kinds[self.ours] if self.job.kind == "mixed" else "a node "

    def complaint(self):
        self.log.flush()
        with open(self.log.name) as file:
            lines = [line.strip() for line in file if "Error" in line]
        return lines[-1][-200:] if lines else "no error in its log"


class Job:
    """A run with one of the backends."""

    def __init__(self, kind, work, options):
        self.kind, self.backend = kind, "c10d" if kind == "mixed" else kind
        self.work, self.share = work, options.share or kind == "muster"
        self.muster, self.seconds = options.muster, options.seconds
        self.changed = threading.Condition()
        self.script = os.path.join(work, "worker.py")
        with open(self.script, "w") as file:
            file.write(WORKER)
        self.agents = []
        if kind != "c10d":
            import muster

            self.server = muster.Server(f"{HOST}:0")
            self.port = self.server.port
            self.conf = "is_host=0,last_call_timeout=1"
            self.conf += ",upscale_delay=0" * (kind == "muster")
        else:
            self.port = free_port()
            self.server = subprocess.Popen(
                [sys.executable, "-c", STORE, str(self.port)], stdout=subprocess.PIPE
            )
            self.server.stdout.readline()
            self.conf = "is_host=0,last_call_timeout=1"

    def start(self, name, ours=False):
        agent = Agent(self, name, ours and self.kind == "mixed")
        self.agents.append(agent)
        return agent

    def world(self, size, since):
        """Waits until the workers of all agents are in a world of `size` that began after `since`;
        returns when the last of them said so."""
        end = time.monotonic() + self.seconds

        def last():
            times = [[t for n, t in a.said if n == size and t > since] for a in self.agents]
            return max(t[0] for t in times) if all(times) else None

        with self.changed:
            while last() is None:
                dead = [a for a in self.agents if a.process.poll() is not None]
                if dead:
                    raise RuntimeError(f"the agent {dead[0].name} has ended: {dead[0].complaint()}")
                if not self.changed.wait(min(0.5, max(0.01, end - time.monotonic()))):
                    if time.monotonic() >= end:
                        raise RuntimeError(f"no world of {size} within {self.seconds} s")
            return last()

    def close(self):
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.kill()
        if self.kind != "c10d":
            self.server.close()
        else:
            self.server.kill()
            self.server.wait()


def story(job):
    """Each step says how long it took."""

    def lose(victim, what):
        job.agents.remove(victim)
        began = time.monotonic()
        victim.kill()
        took = job.world(len(job.agents), began) - began
        tell(f"{what} is lost, to a world of {len(job.agents)}", took)

    def join(name, ours):
        agent = job.start(name, ours)
        size = len(job.agents)
        tell(f"{agent.title()}joins, from the command to a world of {size}",
             job.world(size, agent.began) - agent.began)  # fmt: skip
        return agent

    def tell(what, took):
        print(f"{job.kind}: {what}: {took:.2f} s", flush=True)

    first = job.start("a")
    job.world(1, 0)
    print(f"{job.kind}: started", flush=True)
    second = join("b", True)
    third = join("c", False)
    lose(third, "the last node")
    if job.kind == "mixed":
        lose(second, "muster's node")
        join("d", True)
        join("e", False)
    lose(first, "the first node")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", default="muster,c10d")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--share", action="store_true")
    parser.add_argument("muster", nargs="?", help="the program, for mixed")
    options = parser.parse_args()
    if "mixed" in options.backends and not options.muster:
        parser.error("mixed needs the path of muster")
    import torch

    print(
        f"PyTorch {torch.__version__}, Python {sys.version.split()[0]}, "
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    failed = False
    for backend in options.backends.split(","):
        with tempfile.TemporaryDirectory() as work:
            job = Job(backend, work, options)
            try:
                story(job)
            except RuntimeError as error:
                print(f"{backend}: FAILED: {error}", flush=True)
                failed = failed or backend != "c10d"
            finally:
                job.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
