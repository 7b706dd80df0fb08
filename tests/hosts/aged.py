#!/usr/bin/python3
"""Every listener takes a client from another host, however old it is: with a token, with
certificates, and those of peers.

    aged.py [MUSTER] [--whole] [--only=TEXT]

The clock moves under the running listeners: they are new, then 10 minutes, 2 days and 400 days old.
Others are started on a machine whose time in milliseconds since its start is about to pass 2^31 or
2^32, and are asked before and after. --whole: all ages and both of these for everything, and timers
that have been asleep for as long.
"""
import base64
import hashlib
import os
import re
import struct
import sys
import time

from drill import make_certificates, make_token
from rig import HERE, Checks, Rig, muster_path, wait_until

checks = Checks()
WHOLE = "--whole" in sys.argv
MUSTER = muster_path()
PYTHON = sys.executable
AGES = (("new", {}), ("10 minutes old", {"minutes": 10}), ("2 days old", {"days": 2}),
        ("400 days old", {"days": 400}))
# Where a count of milliseconds in 31 or 32 bits begins anew, in days.
WRAPS = {"24.8 days": (1 << 31) / 86400e3, "49.7 days": (1 << 32) / 86400e3}

TORCH = """
import sys
sys.path.insert(0, sys.argv[1])
from lib import Conn
for generation in (1, 2):
    with Conn(int(sys.argv[3]), generation, host=sys.argv[2]) as conn:
        conn.set_acked("torch%d" % generation, "v")
        assert conn.get("torch%d" % generation) == b"v"
print("good")
"""
PAGE = """
import base64, sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": sys.argv[2]})
print("good" if urllib.request.urlopen(request, timeout=20).status == 200 else "bad")
"""


def make_model(path):
    text = b'{"a":{"dtype":"F32","shape":[65536],"data_offsets":[0,262144]}}'
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + bytes(range(256)) * 1024)
    return path


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


class Listener:
    """A process that listens, and how a client on node1 sees that it is well."""

    def __init__(self, name, process, ask):
        self.name, self.process, self.ask = name, process, ask


class Site:
    """Listeners on node0, those in the middle on node2, clients on node1; one clock for all."""

    def __init__(self, rig, wrap_at=None, wrap_days=None):
        self.rig = rig
        self.server, self.client, self.middle = rig.hosts
        self.wrap_at, self.wrap_days = wrap_at, wrap_days
        self.listeners = []

    def uptime(self):
        """For a machine whose count wraps at the given moment of ours."""
        if self.wrap_days is None:
            return None
        return self.wrap_days - (self.wrap_at - time.monotonic()) / 86400

    def add(self, name, argv, ready, ask, env=None, host=None):
        process = (host or self.server).start(MUSTER, *argv, clock=True, env=env,
                                              uptime_days=self.uptime())
        process.says(ready)
        self.listeners.append(Listener(name, process, ask))
        return process

    def run(self, *argv):
        """Runs muster on node1: what it printed; an AssertionError if it failed."""
        code, out, err = self.client.run(MUSTER, *argv, clock=True)
        assert code == 0, "%s: %s, %s" % (" ".join(argv[:2]), code, err.strip())
        return out

    def check(self, age):
        """Every listener's client, one after the other."""
        for listener in self.listeners:
            try:
                good, detail = listener.ask(), ""
            except AssertionError as error:
                good, detail = False, error
            checks.ok(good, "%s, %s, takes a client" % (listener.name, age), detail)
            checks.ok(listener.process.alive(), "%s, %s, lives" % (listener.name, age),
                      listener.process.output())

    def grow_old(self):
        """Asks at all ages."""
        passed = 0
        for age, step in AGES:
            seconds = step.get("minutes", 0) * 60 + step.get("days", 0) * 86400
            self.rig.advance(seconds=seconds - passed)
            passed = seconds
            self.check(age)
        if WHOLE:
            self.rig.advance(days=400, timers=True)
            self.check("after timers slept for 400 days")

    def pass_the_wrap(self, what):
        """Asks before and after the moment when the count begins anew."""
        self.check("up for almost " + what)
        time.sleep(max(0, self.wrap_at + 2 - time.monotonic()))
        self.check("up for more than " + what)


def pull(site, model, *words):
    """Pulls a state on node1: whether it is the donor's."""
    target = os.path.join(site.client.path, "pulled")
    if os.path.exists(target):
        os.unlink(target)
    site.run("state", "pull", "--no-serve", "-o", target, *words)
    return digest(target) == digest(model)


def add_locked(site, words, credential, page=None):
    """What is locked with the job's credential."""
    def kv(port, host="node0"):
        def ask():
            store = ["kv", "--store", "tcp://%s:%d" % (host, port)] + credential["node1"]
            site.run(*store, "set", "key", "value")
            return site.run(*store, "get", "key") == "value\n"
        return ask

    def torch():
        return site.client.must_run(PYTHON, "-c", TORCH, os.path.join(HERE, "..", "interop"),
                                    "node0", "29500") == "good\n"

    def status():
        return site.client.must_run(PYTHON, "-c", PAGE, "http://node0:29501/metrics",
                                    page) == "good\n"

    def rpc():
        return "hello" in site.run("rpc", "call", "--to", "node0:29600", *credential["node1"],
                                   "muster::Rpc.echo", "hello")

    model = make_model(os.path.join(site.server.path, "model.safetensors"))
    serve = ["serve", "--listen", "0.0.0.0:29500", "--allow", "10.78.0.0/24"]
    store = site.add("a store with " + words,
                     serve + (["--http", "0.0.0.0:29501"] if page else []) + credential["node0"],
                     "29500", kv(29500))
    site.listeners.append(Listener("PyTorch's protocol beside " + words, store, torch))
    if page:
        site.listeners.append(Listener("a status page with " + words, store, status))
    site.add("a gateway with " + words, ["serve", "--listen", "0.0.0.0:29510", "--backing",
                                         "tcp://node0:29500"] + credential["node2"], "29510",
             kv(29510, "node2"), host=site.middle)
    site.add("a worker with " + words, ["rpc", "serve", "--listen", "0.0.0.0:29600",
                                        "--advertise", "node0"] + credential["node0"], "29600", rpc)
    site.add("a donor with " + words, ["state", "serve", "--listen", "0.0.0.0:29700", "--advertise",
                                       "node0"] + credential["node0"] + [model], "29700",
             lambda: pull(site, model, *credential["node1"], "node0:29700"))


# A worker of a job: it meets all others of its round at the round's store, says so, and waits.
WORKER = """#!/bin/sh
"$MUSTER" kv --store "tcp://$MASTER_ADDR:$MASTER_PORT" barrier "round" "$WORLD_SIZE" &&
    echo "world of $WORLD_SIZE, rank $RANK"
exec sleep 1000
"""


def add_job(site, words, credential):
    """The host of a job, which another node joins and leaves at each age: the host's listener, and
    the store of each round."""
    worker = os.path.join(site.server.path, "worker.sh")
    with open(worker, "w") as file:
        file.write(WORKER)
    os.chmod(worker, 0o755)
    job = ["run", "--nnodes", "1:2", "--rdzv-endpoint", "node0:29400", "--rdzv-id", "aged",
           "--max-restarts", "20", "--grace", "1", "--detect", "2"]
    env = {"MUSTER": MUSTER}
    rounds = {"met": 0}

    def join():
        node = site.client.start(MUSTER, *job, *credential["node1"], "--no-python", worker,
                                 clock=True, env=env)
        node.says("world of 2", 40)
        wait_until(lambda: host.output().count("world of 2") > rounds["met"],
                   "a world of two on the host")
        rounds["met"] = host.output().count("world of 2")
        alone = host.output().count("world of 1")
        node.stop()
        wait_until(lambda: host.output().count("world of 1") > alone,
                   "the host, alone again", 40)
        return True

    host = site.add("the host of a job with " + words, job + credential["node0"] +
                    ["--no-python", worker], "world of 1", join, env=env)


def add_peers(site):
    """Those that know each other by their keys."""
    def address(process, port):
        found = re.search(r"(?:/p2p/|Peer ID: |^)(12D3\w+)", process.output(), re.M)
        assert found, "no id in: " + process.output()
        return "/ip4/10.78.0.1/tcp/%d/p2p/%s" % (port, found[1])

    def ping():
        return "ms" in site.run("peer", "ping", "--count", "1", address(daemon, 29820))

    def call():
        return "hello" in site.run("peer", "call", address(peer, 29800), "muster::Echo.echo",
                                   "hello")

    def record():
        site.run("dht", "store", "--bootstrap", address(dht, 29810), "key", "value")
        return "value" in site.run("dht", "get", "--bootstrap", address(dht, 29810), "key")

    def take():
        return pull(site, model, "--identity", keys["node1"], address(donor, 29830))

    keys, ids = {}, {}
    for host in (site.server, site.client):
        keys[host.name] = os.path.join(host.path, "peer.key")
        ids[host.name] = host.must_run(MUSTER, "peer", "id", "--new", "--identity",
                                       keys[host.name]).split()[0]
    model = make_model(os.path.join(site.server.path, "model.safetensors"))
    donor = site.add("a donor among peers", [
        "state", "serve", "--identity", keys["node0"], "--allow", ids["node1"], "--listen",
        "/ip4/0.0.0.0/tcp/29830", model], "serving at", take)
    peer = site.add("a peer", ["peer", "serve", "--listen", "/ip4/0.0.0.0/tcp/29800"], "29800",
                    call)
    dht = site.add("a node of the DHT", ["dht", "serve", "--listen", "/ip4/0.0.0.0/tcp/29810"],
                   "29810", record)
    daemon = site.add("a p2p daemon", [
        "p2pd", "-listen=/unix" + os.path.join(site.server.path, "p2pd.sock"),
        "-hostAddrs=/ip4/0.0.0.0/tcp/29820"], "29820", ping)


def token(rig):
    """The same token for all, and what shows it to a status page."""
    credential = make_token(rig)
    password = rig.hosts[0].must_run(MUSTER, "keygen", "page", credential["node0"][1]).strip()
    return credential, "Basic " + base64.b64encode(("muster:" + password).encode()).decode()


def test_ages_with_a_token():
    with Rig(3) as rig:
        site = Site(rig)
        credential, page = token(rig)
        add_locked(site, "a token", credential, page)
        add_job(site, "a token", credential)
        site.grow_old()


def test_ages_with_certificates():
    with Rig(3) as rig:
        site = Site(rig)
        credential = make_certificates(rig)
        add_locked(site, "certificates", credential)
        add_job(site, "certificates", credential)
        site.grow_old()


def test_certificates_that_end():
    """They are named when they have ended, and new ones are taken up where they lie."""
    with Rig(3) as rig:
        site = Site(rig)
        folder = os.path.join(rig.path, "tls")
        credential = make_certificates(rig, days=300)
        add_locked(site, "certificates", credential)
        site.check("new")
        rig.advance(days=400)
        for listener in site.listeners:
            if "PyTorch" in listener.name:  # which has none
                continue
            try:
                listener.ask()
                checks.ok(False, "%s with one that has ended refuses" % listener.name)
            except AssertionError as error:
                checks.ok("ended" in str(error) or "expired" in str(error),
                          "%s: it is named that it has ended" % listener.name, error)
        for name in os.listdir(folder):
            if not name.startswith("ca."):
                os.unlink(os.path.join(folder, name))
        code, _, err = rig.hosts[0].run(MUSTER, "keygen", "tls", folder, "--host",
                                        "node0,node1,node2", clock=True)
        checks.equal((code, err), (0, ""), "new ones of the same authority")
        time.sleep(1.1)  # what lies there is looked at once a second
        site.check("400 days old, with new certificates")


def test_ages_of_peers():
    with Rig(3) as rig:
        site = Site(rig)
        add_peers(site)
        site.grow_old()


def test_uptimes():
    for what, days in WRAPS.items():
        with Rig(3) as rig:
            site = Site(rig, time.monotonic() + (15 if WHOLE else 8), days)
            credential, page = token(rig)
            add_locked(site, "a token", credential, page)
            add_peers(site)
            if WHOLE:
                add_job(site, "a token", credential)
            site.pass_the_wrap(what)


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
