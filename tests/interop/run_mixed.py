#!/usr/bin/python3
"""One job of a torchrun agent (of this interpreter's PyTorch) and a muster agent: a DDP script runs to its end
in one world, on PyTorch's store, on ours and in etcd, whoever has rank 0.

usage: run_mixed.py path/to/muster
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import etcd_lib
from lib import Checks, Muster, dialect, free_port, muster_path, wait_until

TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(12, 4)
y = x.sum(1, keepdim=True)
for step in range(20):
    optimizer.zero_grad()
    loss = ((model(x[rank::world]) - y[rank::world]) ** 2).mean()
    loss.backward()
    optimizer.step()
total = ((model.module(x) - y) ** 2).mean()
dist.barrier()
print("rank=%d world=%d loss=%.6f" % (rank, world, total.item()), flush=True)
dist.destroy_process_group()
"""


class Job:
    """Agents of one run, in the order in which they are started."""

    def __init__(self, checks, muster, script, name, backend="c10d"):
        self.checks, self.muster, self.script, self.name = checks, muster, script, name
        self.backend = backend
        self.agents = []

    def start(self, kind, endpoint, workers, conf=""):
        command = [self.muster, "run"] if kind == "muster" else \
            [sys.executable, "-m", "torch.distributed.run", "--monitor_interval", "0.5"]
        command += ["--nnodes", "2", "--nproc_per_node", str(workers), "--rdzv_backend",
                    self.backend, "--rdzv_endpoint", endpoint, "--rdzv_id", "mixed",
                    "-r", "1", "-t", "1"]
        if conf:
            command += ["--rdzv_conf", conf]
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith(("PET_", "TORCH", "MUSTER"))}
        environment.update(PYTHON_EXEC=sys.executable, OMP_NUM_THREADS="1",
                           TMPDIR=os.path.dirname(self.script))
        self.agents.append((kind, subprocess.Popen(
            command + [self.script], env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, universal_newlines=True)))

    def finish(self, world):
        """All agents end with 0, and all workers tell of one world with one loss."""
        said = {}
        for kind, agent in self.agents:
            try:
                said[kind] = agent.communicate(timeout=240)[0]
            except subprocess.TimeoutExpired:
                agent.kill()
                said[kind] = agent.communicate()[0] + "\n(killed: it did not end)"
            self.checks.ok(agent.returncode == 0, f"{self.name}: {kind} ends with 0",
                           (agent.returncode, said[kind][-2000:]))
        lines = re.findall(r"rank=(\d+) world=(\d+) loss=([\d.]+)", "".join(said.values()))
        self.checks.ok(sorted(int(r) for r, _, _ in lines) == list(range(world)),
                       f"{self.name}: every rank of {world} is there once", lines)
        self.checks.ok({w for _, w, _ in lines} == {str(world)}, f"{self.name}: one world", lines)
        self.checks.ok(len({l for _, _, l in lines}) == 1, f"{self.name}: one loss", lines)
        self.checks.ok("failed to shutdown" not in "".join(said.values()),
                       f"{self.name}: nobody is cut off at the end")
        return lines[0][2] if lines else None


def joined(server):
    """How many have come to the run in etcd."""
    path = "/v2/keys/torchelastic/p2p/run_mixed/rdzv/active_version"
    try:
        with urllib.request.urlopen(server.url() + path, timeout=5) as reply:
            state = json.loads(json.load(reply)["node"]["value"])
    except urllib.error.HTTPError:
        return 0
    return len(state.get("participants", []))


def main():
    checks = Checks()
    muster = muster_path()
    directory = tempfile.mkdtemp(prefix="muster-mixed-")
    script = os.path.join(directory, "train.py")
    with open(script, "w") as f:
        f.write(TRAIN)
    losses = {}
    try:
        # torchrun holds the store; ours knows its dialect, whoever is there first.
        job = Job(checks, muster, script, "on torchrun's store")
        endpoint = f"localhost:{free_port()}"
        job.start("torchrun", endpoint, 2)
        job.start("muster", endpoint, 1, "is_host=0")
        losses["torchrun's"] = job.finish(3)

        # Our agent holds it, and is there first; the store knows who comes.
        job = Job(checks, muster, script, "on our agent's store")
        endpoint = f"localhost:{free_port()}"
        job.start("muster", endpoint, 1, "is_host=1")
        job.start("torchrun", endpoint, 2, "is_host=0")
        losses["ours"] = job.finish(3)

        # A server that is neither's. Ranks go by address: ours is named so that it comes first.
        with Muster(path=muster) as server:
            job = Job(checks, muster, script, "on a server of its own")
            endpoint = f"127.0.0.1:{server.port}"
            job.start("muster", endpoint, 1, "addr=127.0.0.1,is_host=0")
            job.start("torchrun", endpoint, 2, "is_host=0")
            losses["a server's"] = job.finish(3)

        # In etcd, by the protocol that PyTorch calls "etcd". Ranks go by who comes first.
        for first, second in (("torchrun", "muster"), ("muster", "torchrun")):
            with etcd_lib.Etcd() as server:
                job = Job(checks, muster, script, f"in etcd, {first} first", "etcd")
                for kind, workers in ((first, 2), (second, 1)):
                    job.start(kind, server.authority(), workers,
                              "dialect=" + dialect() if kind == "muster" else "")
                    wait_until(lambda: joined(server) >= len(job.agents),
                               f"{kind} to have joined", 60)
                losses[f"etcd's, {first} first"] = job.finish(3)
        checks.ok(len(set(losses.values())) == 1, "the same loss on every store", losses)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    checks.done()


if __name__ == "__main__":
    main()
