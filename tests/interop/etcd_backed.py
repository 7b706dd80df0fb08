#!/usr/bin/python3
"""A store that survives its host: servers whose keys are in a real etcd cluster of three.

PyTorch's clients on two servers share one store: values, waits, sums. Then, under load, a random
member of the cluster is killed (and comes back), or a server's connection to it is cut, again and
again: no acknowledged write is lost, no add counted twice, and no client notices. A server that is
killed takes nothing with it. In the end `muster run --store-backing` trains on two nodes while the
cluster's leader is killed.

    etcd_backed.py [MUSTER] [--kills=10] [--no-ddp]
"""
import os
import random
import re
import select
import socket
import subprocess
import sys
import threading
import time
import types
from datetime import timedelta

import torch.distributed as dist

import lib
from etcd_cluster import Cluster
from run_ddp import Agent, wait_for

PATIENCE = 60


class Link:
    """A TCP relay to one member of the cluster, whose connections can be cut."""

    def __init__(self, port):
        self.to = port
        self.listener = socket.create_server((lib.HOST, 0))
        self.port = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.open = set()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            try:
                far = socket.create_connection((lib.HOST, self.to), 5)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            with self.lock:
                self.open |= {near, far}
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    def pump(self, source, sink):
        try:
            while True:
                data = source.recv(65536)
                if not data:
                    break
                sink.sendall(data)
        except OSError:
            pass
        self.close(source, sink)

    def close(self, *socks):
        for sock in socks:
            with self.lock:
                self.open.discard(sock)
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        with self.lock:
            socks = list(self.open)
        self.close(*socks)


def client(server, timeout=PATIENCE):
    return dist.TCPStore(lib.HOST, server.port, is_master=False,
                         timeout=timedelta(seconds=timeout), wait_for_workers=False)


def share(checks, a, b):
    a.set("key", "value")
    checks.equal(b.get("key"), b"value", "what one server was told the other one says")
    sums = [s.add("n", i) for i, s in enumerate([a, b, a, b], 1)]
    checks.equal(sums, [1, 3, 6, 10], "adds on both servers are one sum")
    checks.equal(b.compare_set("key", "value", "other"), b"other", "compare_set of what is there")
    checks.equal(a.compare_set("key", "value", "no"), b"other", "compare_set of what is not")
    checks.equal(a.num_keys(), b.num_keys(), "both count the same keys")
    threading.Timer(0.3, lambda: a.set("late", "x")).start()
    checks.equal(b.get("late"), b"x", "a wait on one server is ended by a set on the other")
    checks.ok(b.delete_key("late") and not a.delete_key("late"), "a key is deleted once")
    checks.raises((RuntimeError, ValueError),
                  lambda: b.wait(["never"], timedelta(seconds=0.5)), "a wait times out")


def share_both(checks, cluster, prefix, reads):
    url = "etcd://%s/%s" % (cluster.endpoints, prefix)
    with lib.Muster("--backing", url + reads) as one, lib.Muster("--backing", url + reads) as two:
        share(checks, client(one), client(two))
        code, out, _ = lib.run_muster("kv", "--store", url, "get", "n")
        checks.equal((code, out), (0, b"10\n"), "a client of etcd itself sees the same key")
        checks.equal([one.stop(), two.stop()], [0, 0], "both servers leave in order")
    left = cluster.get_prefix("/%s/" % prefix)
    checks.equal([key for key in left if b"/s/" in key or b"/m/" in key], [],
                 "and leave nothing behind but keys")


class Load(threading.Thread):
    """One client that writes, adds and reads, and remembers what it was told. In a process of its
    own: PyTorch 1.13 makes what `get` returns without Python's lock, which no second thread
    survives for long."""

    def __init__(self, number, server):
        super().__init__(daemon=True)
        self.number = number
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--load=%d" % number, "--port=%d" % server.port],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=lib.die_with_parent)
        self.last = -1
        self.added = 0
        self.done = 0
        self.error = None

    def run(self):
        for line in self.process.stdout:
            word, last, added, done, text = line.rstrip("\n").split(" ", 4)
            self.last, self.added, self.done = int(last), int(added), int(done)
            if word == "error":
                self.error = text
        if self.process.wait() != 0 and not self.error:
            self.error = "client %d ended with %d" % (self.number, self.process.returncode)

    def stop(self):
        self.process.stdin.close()


def load(number, port):
    """The process. It ends when its standard input does."""
    store = client(types.SimpleNamespace(port=port))
    key = "w%d" % number
    last, added, step, error = -1, 0, 0, ""
    try:
        while not select.select([sys.stdin], [], [], 0)[0]:
            store.set(key, str(step))
            got = int(store.get(key))  # Behind its answer the set is acknowledged.
            if got != step:
                raise AssertionError("%s is %d, was set to %d" % (key, got, step))
            last = step
            total = store.add("sum", 1)
            added += 1
            if total < added:
                raise AssertionError("the sum is %d after %d adds" % (total, added))
            store.compare_set("c%d" % number, str(step - 1) if step else "", str(step))
            step += 1
            print("round", last, added, step, "-", flush=True)
    except Exception as why:  # pylint: disable=broad-except
        error = repr(why).replace("\n", " ")
    print("error" if error else "end", last, added, step, error or "-", flush=True)


def trouble(rng, cluster, links, kills, loads):
    """One fault at a time, each with the cluster whole before the next."""
    counts = {"member": 0, "cut": 0}
    for _ in range(kills):
        before = sum(each.done for each in loads)
        if rng.random() < 0.5:
            victim = rng.randrange(cluster.count)
            cluster.kill(victim)
            time.sleep(rng.random() * 0.5)
            cluster.restart(victim)
            counts["member"] += 1
        else:
            for _ in range(5):
                rng.choice(links).cut()
                time.sleep(rng.random() * 0.1)
            counts["cut"] += 1
        # Everybody gets on again.
        lib.wait_until(lambda b=before: sum(each.done for each in loads) > b + len(loads) or
                       any(each.error for each in loads), "clients to go on", PATIENCE)
        if any(each.error for each in loads):
            break
    return counts


def survive(checks, cluster, kills, seed):
    rng = random.Random(seed)
    links = [Link(cluster.port(i)) for i in range(cluster.count)]
    url = "etcd://%s/load" % ",".join("%s:%d" % (lib.HOST, link.port) for link in links)
    with lib.Muster("--backing", url) as one, lib.Muster("--backing", url) as two:
        loads = [Load(i, (one, two)[i % 2]) for i in range(6)]
        for each in loads:
            each.start()
        lib.wait_until(lambda: all(each.done or each.error for each in loads),
                       "clients to begin", PATIENCE)
        counts = trouble(rng, cluster, links, kills, loads)
        for each in loads:
            each.stop()
        for each in loads:
            each.join(PATIENCE)
        checks.equal([str(each.error) for each in loads if each.error or each.is_alive()], [],
                     "%d kills of a member and %d cuts: no client noticed (seed %d)" %
                     (counts["member"], counts["cut"], seed))
        checks.note("%d rounds of the clients" % sum(each.done for each in loads))
        # A server of its own, so that nothing is remembered.
        with lib.Muster("--backing", url) as three:
            store = client(three)
            checks.equal(int(store.get("sum")), sum(each.added for each in loads),
                         "every add was counted once")
            checks.equal([int(store.get("w%d" % each.number)) >= each.last for each in loads],
                         [True] * len(loads), "no acknowledged set is lost")
        one.kill()
        checks.equal(int(client(two).get("sum")), sum(each.added for each in loads),
                     "a server that is killed takes nothing with it")


def train(checks, cluster, muster):
    steps = 25
    with lib.Scratch() as scratch:
        port = lib.free_port()
        agents = [Agent([muster, "run", "--nnodes", "2", "--nproc_per_node", "1",
                         "--rdzv_endpoint", "%s:%d" % (lib.HOST, port), "--rdzv_id", "backed",
                         "--store-backing", "etcd://%s/jobs" % cluster.endpoints,
                         os.path.join(lib.HERE, "ddp_train.py"), "--steps", str(steps)], scratch)
                  for _ in range(2)]
        try:
            # Workers are starting: they meet in the store while the cluster has no leader.
            lib.wait_until(lambda: all("workers' store: in etcd" in agent.said()
                                       for agent in agents), "servers of the store", 90)
            leader = cluster.leader()
            cluster.kill(leader)
            codes = wait_for(agents)
            cluster.restart(leader)
        finally:
            for agent in agents:
                agent.kill()
        said = "".join(agent.said() for agent in agents)
        checks.equal(codes, [0, 0], "muster run --store-backing: both agents end with 0") or \
            print(said[-4000:])
        checks.equal(sorted(re.findall(r"end rank=(\d) world=2", said)), ["0", "1"],
                     "both workers come to their end, though the leader was killed")
        checks.equal(said.count("workers' store: in etcd"), 2, "each agent served its workers")
        checks.equal(cluster.get_prefix("/jobs/"), {}, "and the round's keys are gone")


def main():
    if lib.option("load", -1) >= 0:
        load(lib.option("load", -1), lib.option("port", 0))
        return
    checks = lib.Checks()
    kills = lib.option("kills", 10)
    seed = lib.option("seed", int(time.time()))
    with Cluster(3) as cluster:
        share_both(checks, cluster, "shared", "")
        share_both(checks, cluster, "cached", "?reads=cached")
        survive(checks, cluster, kills, seed)
        if "--no-ddp" not in sys.argv:
            train(checks, cluster, lib.muster_path())
    checks.done()


main()
