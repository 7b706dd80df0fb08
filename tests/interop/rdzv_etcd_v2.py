#!/usr/bin/python3
"""Mixed fleets on etcd's v2 API: PyTorch's etcd-v2 backend and ours in one run.

    rdzv_etcd_v2.py [MUSTER] [--only=NAME]
"""
import signal
import subprocess
import time

import etcd
from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

import etcd_lib
from etcd_cluster import Cluster
from lib import HOST, muster_path, wait_until
from rdzv_mixed import BEAT_S, TorchNode, agree, assigned, checks
from rdzv_nodes import Node

CONFIG = "dialect=1.13,keep_alive_interval=%d,upscale_delay=0" % BEAT_S


class EtcdTorchNode(TorchNode):
    """PyTorch's handler on its own backend, as its create_backend() makes it."""

    def open_backend(self):
        client = etcd.Client(host=HOST, port=self.where.port(), allow_reconnect=True,
                             read_timeout=60)
        return (EtcdRendezvousBackend(client, self.run_id, key_prefix="/torch/elastic/rendezvous"),
                EtcdStore(client, "/torch/elastic/store"))


class Mixed:
    """A run with nodes of both kinds; all of them go when the test does."""

    def __init__(self, cluster, run_id, nnodes, config="", **torch):
        self.cluster, self.run_id, self.nnodes, self.torch_options = cluster, run_id, nnodes, torch
        self.config = ",".join(item for item in (CONFIG, config) if item)
        self.nodes = []

    def torch(self, **more):
        self.nodes.append(EtcdTorchNode(self.cluster, self.run_id, self.nnodes,
                                        **dict(self.torch_options, **more)))
        return self.nodes[-1]

    def muster(self, *args):
        node = Node(self.cluster.endpoints, self.run_id, self.nnodes, *(args or ("--rejoin",)),
                    config=self.config, backend="etcd-v2")
        node.name = "muster"
        self.nodes.append(node)
        return node

    def command(self, *args):
        return subprocess.run([muster_path(), "rdzv", *args, "--rdzv-backend", "etcd-v2",
                               "--rdzv-endpoint", self.cluster.endpoints, "--rdzv-id",
                               self.run_id], capture_output=True, timeout=30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            node.__exit__()


def test_one_and_one(cluster):
    with Mixed(cluster, "one", 2) as run:
        events = assigned(run.torch(), run.muster())
        checks.equal(agree(events), "", "1 + 1 nodes are in one world")
        mine, torch = events[1], events[0]
        done = subprocess.run([muster_path(), "kv", "--store", mine["store"], "--wait", "get",
                               "torch-%d" % torch["rank"]], capture_output=True, timeout=30)
        checks.equal(done.stdout, b"here\n", "what PyTorch's node set in the round's store is there")
        status = run.command("status")
        checks.ok(status.returncode == 0 and b"running 2" in status.stdout,
                  "status sees both", status)


def test_ours_first(cluster):
    with Mixed(cluster, "first", 2) as run:
        mine = run.muster()
        wait_until(lambda: b"gathering 1" in run.command("status").stdout, "our node's first state")
        checks.equal(agree(assigned(mine, run.torch())), "", "PyTorch's node joins ours")


def test_two_and_two(cluster):
    with Mixed(cluster, "two", 4) as run:
        nodes = [run.torch(), run.muster(), run.torch(), run.muster()]
        checks.equal(agree(assigned(*nodes)), "", "2 + 2 nodes are in one world")


def test_late_joiner(cluster):
    for kind in ("torch", "muster"):
        with Mixed(cluster, "late-" + kind, "2:3", config="last_call_timeout=1",
                   last_call=1) as run:
            nodes = [run.torch(), run.muster()]
            checks.equal(agree(assigned(*nodes)), "", "two are together, before a late %s" % kind)
            nodes.append(getattr(run, kind)())
            checks.equal(agree(assigned(*nodes)), "", "a late joiner of %s is let in" % kind)


def test_dead_member(cluster):
    with Mixed(cluster, "dead", "2:3", config="last_call_timeout=1", last_call=1) as run:
        torch, mine, other = run.torch(), run.muster(), run.muster()
        assigned(torch, mine, other)
        other.kill()
        mine.until("ended")
        checks.equal(agree(assigned(torch, mine)), "", "both go on without one of ours that is dead")
        checks.equal(agree(assigned(torch, mine, run.torch())), "", "and another takes its place")
    with Mixed(cluster, "dead-torch", "2:3", config="last_call_timeout=1", last_call=1) as run:
        mine, torch = run.muster(), run.torch()
        assigned(mine, torch)
        torch.kill()
        started = time.monotonic()
        checks.ok(mine.until("ended") and time.monotonic() - started < 60,
                  "ours sees that PyTorch's node is dead")


def test_close(cluster):
    with Mixed(cluster, "closed-by-us", 2) as run:
        torch, mine = run.torch(), run.muster()
        assigned(torch, mine)
        done = run.command("close")
        checks.equal(done.returncode, 0, "we close the run %s" % done.stderr)
        torch.until("closed")
        mine.until("closed")
        checks.ok(True, "and both kinds hear of it")
    with Mixed(cluster, "closed-by-torch", 2) as run:
        torch, mine = run.torch(), run.muster()
        assigned(torch, mine)
        torch.kill(signal.SIGUSR1)
        mine.until("closed")
        checks.ok(True, "ours hears that PyTorch's node has closed the run")


def main():
    etcd_lib.need_v2()
    with Cluster(1, v2=True) as cluster:
        checks.run_tests(globals(), cluster)
    checks.done()


main()
