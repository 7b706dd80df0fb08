#!/usr/bin/python3
"""Runs what the pages on etcd tell their readers to run, between hosts: three have an etcd each and
are called e0, e1 and e2, the others train.

    docs_etcd.py [MUSTER] [--only=TEXT]
"""
import os

from docs_site import PATIENCE, Site, checks, commands, fill, unrun
from rig import Rig, option, skip, wait_until
import etcd_lib  # which rig makes known

PAGE = "docs/from-etcd.md"
# The last call takes 30 s. All nodes start at once here, and this is long enough for the slowest.
V2 = ["--enable-v2"] if etcd_lib.has_v2() else []
QUICK = {"PET_RDZV_CONF": "last_call_timeout=5"}


class Cluster:
    """An etcd on each of the first three hosts."""

    def __init__(self, rig):
        self.hosts = rig.hosts[:3]
        with open(os.path.join(rig.path, "hosts"), "a") as file:
            for i, host in enumerate(self.hosts):
                file.write("%s e%d\n" % (host.address, i))
        peers = ",".join("e%d=http://%s:2380" % (i, host.address)
                         for i, host in enumerate(self.hosts))
        self.members = [host.start(
            "etcd", "--logger", "zap", "--log-outputs", "stderr", *V2,
            "--name", "e%d" % i, "--data-dir", "data",
            "--listen-client-urls", "http://%s:2379" % host.address,
            "--advertise-client-urls", "http://%s:2379" % host.address,
            "--listen-peer-urls", "http://%s:2380" % host.address,
            "--initial-advertise-peer-urls", "http://%s:2380" % host.address,
            "--initial-cluster", peers) for i, host in enumerate(self.hosts)]
        for member in self.members:
            member.says("serving client traffic", PATIENCE)


class Trainers(Site):
    """The other hosts, with a token."""

    def __init__(self, rig):
        super().__init__(rig)
        self.cluster = Cluster(rig)
        self.hosts = rig.hosts[3:]
        self.run(rig.hosts[0], "muster keygen token job.token", "the token")
        self.copy()

    def train(self, texts, words, what):
        self.together(self.hosts, texts, words, "from-etcd: " + what, **QUICK)


def lacks_v2(what):
    if not V2:
        checks.skip("%s: this etcd has no API v2" % what)
    return not V2


def test_old():
    if lacks_v2("PyTorch's backend"):
        return
    with Rig(5) as rig:
        site = Trainers(rig)
        torchrun, ours = commands(PAGE, "etcd old")
        site.train([ours, ours], "worker 1 of 2", "PyTorch's own rendezvous")


def test_doctor():
    with Rig(5) as rig:
        site = Trainers(rig)
        said = site.run(site.hosts[0], commands(PAGE, "etcd doctor")[0], "from-etcd: the doctor")
        checks.ok("healthy" in said, "from-etcd: the doctor finds it well", said)
        site.run(site.hosts[0], "muster doctor etcd etcd://node0", "troubleshooting: the doctor")


def test_old_mixed():
    if lacks_v2("beside an agent of PyTorch 1.13"):
        return
    with Rig(5) as rig:
        site = Trainers(rig)
        torchrun = commands(PAGE, "etcd old")[0]
        site.train([torchrun, commands(PAGE, "etcd old torch")[0]], "worker 1 of 2",
                   "beside an agent of PyTorch 1.13")


def test_old_mixed_with_a_token():
    if lacks_v2("beside an agent of PyTorch 1.13, with a token"):
        return
    with Rig(5) as rig:
        site = Trainers(rig)
        torchrun = commands(PAGE, "etcd old")[0]
        ours = commands(PAGE, "etcd old torch")[0]
        site.train([torchrun, ours.replace("--allow", "--token-file job.token --allow")],
                   "worker 1 of 2", "beside an agent of PyTorch 1.13, with a token")


def test_v3():
    with Rig(5) as rig:
        site = Trainers(rig)
        command = commands(PAGE, "etcd v3")[0]
        site.train([command, command], "worker 1 of 2", "etcd-v3")


def test_backing():
    with Rig(5) as rig:
        site = Trainers(rig)
        command = commands(PAGE, "etcd backing")[0]
        site.train([command, command], "worker 1 of 2", "a store in etcd")
        put, wait, keys = commands(PAGE, "etcd kv")
        a, b = site.hosts
        waiter = site.start(b, wait)
        site.run(a, put, "from-etcd: a key is set")
        checks.equal(waiter.wait(PATIENCE), 0, "from-etcd: who waits for it hears of it")
        if V2:
            site.run(a, keys, "from-etcd: PyTorch's store, from the shell")
        else:
            code, _, err = site.ask(a, keys)
            checks.ok(code != 0 and "3.6" in err, "from-etcd: PyTorch's store needs API v2, and says so", err)


def test_rendezvous_page():
    with Rig(5) as rig:
        site = Trainers(rig)
        join, status, close, run = commands("docs/rendezvous-etcd-v3.md", "etcd rendezvous")
        nodes = [site.start(host, join) for host in site.hosts]
        a = site.hosts[0]
        wait_until(lambda: "gathering 2" in site.ask(a, status)[1]
                   or "running 2" in site.ask(a, status)[1], "two nodes in etcd", PATIENCE, 0.2)
        site.run(a, close, "rendezvous-etcd-v3: a run is closed")
        for node in nodes:
            node.says("closed", PATIENCE)
        checks.ok(True, "rendezvous-etcd-v3: its nodes hear of it")
        site.train([run, run], "worker 1 of 2", "etcd-v3, from the page on the rendezvous")


def test_without_etcd():
    with Rig(5) as rig:
        site = Trainers(rig)
        serve, run = commands(PAGE, "etcd none")
        here = {"10.0.0.5": rig.hosts[0].address, "/var/lib/muster": "muster"}
        site.serve(rig.hosts[0], fill(serve, here), "serving on", "from-etcd: a server instead")
        run = fill(run, here)
        site.train([run, run], "worker 1 of 2", "without etcd")


if __name__ == "__main__":
    if not os.access("/usr/bin/etcd", os.X_OK):
        skip("there is no etcd")
    checks.run_tests(globals())
    if V2 and not option("only", ""):
        checks.equal(list(unrun("docs_etcd")), [], "every command for several hosts was run")
    checks.done()
