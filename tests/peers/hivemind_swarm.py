#!/usr/bin/python3
"""Swarms of hivemind over its own daemon and over ours, mixed; and a swarm that is migrated.

    hivemind_swarm.py MUSTER [--short] [--only=TEXT] [--peers=8]

Each peer is a process of tests/peers/py/hivemind_peer.py, with hivemind as it comes from PyPI."""
import asyncio
import concurrent.futures
import itertools
import os
import tempfile
import time

import peers_lib
import lib
import p2pd_lib

checks = peers_lib.Checks()
PEERS = lib.option("peers", 8)
PYTHON = peers_lib.program("hivemind", "python")
THEIRS = peers_lib.hivemind_daemon()


class Swarm:
    """Peers by number, over either daemon; a peer that comes back is the same one."""

    def __init__(self, folder):
        self.folder = folder
        self.binaries = {"theirs": THEIRS, "ours": p2pd_lib.link_binary(folder)}
        self.peers, self.kinds = {}, {}
        self.ours_since = {}  # by id
        self.log = open(os.path.join(folder, "log"), "wb")

    def start(self, n, kind):
        initial = [p.address for p in self.peers.values()][:3]
        self.peers[n] = peers_lib.Peer(
            [PYTHON, os.path.join(peers_lib.HERE, "py", "hivemind_peer.py"), self.binaries[kind],
             os.path.join(self.folder, "key%d" % n), str(n), *initial], stderr=self.log)
        self.kinds[n] = kind
        if kind == "ours":
            self.ours_since.setdefault(self.peers[n].id, time.time())
        return self.peers[n]

    def all(self, *request, but=()):
        """All of them at once."""
        chosen = {n: p for n, p in list(self.peers.items()) if n not in but}
        with concurrent.futures.ThreadPoolExecutor(len(chosen)) as pool:
            return dict(zip(chosen, pool.map(lambda p: p.ask(*request), chosen.values())))

    def average(self, what, tries=3):
        """One round in which everybody has the same mean at the end; matchmaking may take several tries."""
        mean = sum(self.peers) / len(self.peers)
        for _ in range(tries):
            for n, peer in self.peers.items():
                peer.ask("value", n)
            said = self.all("average", 40)
            if all(s.get("group") == len(self.peers) for s in said.values()):
                break
        checks.ok(all(s.get("group") == len(self.peers) and abs(s["value"] - mean) < 1e-3 and s["spread"] < 1e-3
                      for s in said.values()), "%s: all of them average to %g" % (what, mean), said)

    def end(self):
        self.all("leave")  # their own processes would go on without them
        for peer in self.peers.values():
            peer.process.kill()
            peer.process.wait()
        self.log.close()


def mixed(swarm):
    for n in range(4):
        swarm.start(n, ("theirs", "ours")[n % 2])
    for n, peer in swarm.peers.items():
        checks.ok(peer.ask("store", "key%d" % n, n).get("ok"), "a record is stored over %s" % swarm.kinds[n])
    for n, said in swarm.all("get", "key0").items():
        checks.equal(said.get("value"), 0, "theirs stored it, and it is read over %s" % swarm.kinds[n])
    for n, said in swarm.all("get", "key1").items():
        checks.equal(said.get("value"), 1, "ours stored it, and it is read over %s" % swarm.kinds[n])
    swarm.all("load", *(p.id for p in swarm.peers.values()))
    swarm.average("two daemons of each kind")
    for n in 0, 1:
        said = swarm.peers[n].ask("state", 30)
        checks.ok(said.get("value") is not None, "a state is loaded over %s" % swarm.kinds[n], said)
    tell_calls(swarm, swarm.all("counts"), "between daemons of both kinds")


def test_state_both_ways():
    """Two peers, so that whoever loads a state has it from a daemon of the other kind."""
    with tempfile.TemporaryDirectory() as folder:
        swarm = Swarm(folder)
        try:
            for n, kind in enumerate(("theirs", "ours")):
                swarm.start(n, kind)
            for n in 0, 1:
                lib.wait_until(lambda n=n: swarm.peers[n].ask("state", 30).get("value") == 1 - n,
                               "the state of the other", patience=60, step=0.5)
                checks.ok(True, "a state is loaded over %s, from a peer over %s" % (swarm.kinds[n], swarm.kinds[1 - n]))
        finally:
            swarm.end()


def agreed(swarm, least):
    """The last epoch, from `least` on, after which all have the same weight."""
    said = [s["epochs"] for s in swarm.all("epochs").values()]
    common = [epoch for epoch in set.intersection(*map(set, said)) if int(epoch) >= least
              and max(s[epoch] for s in said) - min(s[epoch] for s in said) < 1e-3]
    return max(map(int, common), default=None)


def optimize(swarm):
    """hivemind's optimizer over both daemons; then a newcomer over each, which has to load the state."""
    for n in range(2):
        swarm.start(n, ("theirs", "ours")[n])
    for n, peer in swarm.peers.items():
        peer.ask("train", n + 1, 120)
    epoch = lib.wait_until(lambda: agreed(swarm, 2), "all have the same weight", patience=240, step=1)
    checks.ok(True, "peers over both daemons train together: they have the same weight after epoch %d" % epoch)
    for n, kind in (2, "theirs"), (3, "ours"):
        swarm.start(n, kind).ask("train", n + 1, 120)
        epoch = lib.wait_until(lambda: agreed(swarm, epoch + 1), "the newcomer has it, too", patience=240, step=1)
        checks.ok(True, "a newcomer over %s has the weight of all others after epoch %d" % (kind, epoch))


def test_optimizer():
    if peers_lib.SHORT:
        return
    with tempfile.TemporaryDirectory() as folder:
        swarm = Swarm(folder)
        try:
            optimize(swarm)
        finally:
            swarm.end()


def tell_calls(swarm, counts, what):
    """A call in which no daemon of ours had a part is not ours to answer for: it is told, and fails nothing."""
    calls = sum(s.get("calls", 0) for s in counts.values())
    failures = [f for s in counts.values() for f in s.get("failures", [{"said": "%r" % s}])]
    among = [f for f in failures if f.get("theirs") and f["at"] < swarm.ours_since.get(f["callee"], float("inf"))]
    ours = [f for f in failures if f not in among]
    for failure in among:
        checks.note("hivemind's daemons among themselves: %s" % failure)
    checks.ok(calls > 0 and not ours, "%d calls %s, %d failed" % (calls, what, len(ours)), ours[:5])


def test_mixed():
    with tempfile.TemporaryDirectory() as folder:
        swarm = Swarm(folder)
        try:
            mixed(swarm)
        finally:
            swarm.end()


def migrate(swarm):
    """Each peer leaves in order and comes back over the other daemon, with its key; the others go on."""
    for n in range(PEERS):
        swarm.start(n, "theirs")
    everybody = [p.id for p in swarm.peers.values()]
    swarm.all("load", *everybody)
    swarm.average("before")
    left, rounds = {}, []
    for n in range(PEERS):
        name = swarm.peers[n].id
        swarm.all("spare", name, but=(n,))
        left["%d, before" % n] = swarm.peers[n].ask("leave")
        swarm.peers.pop(n).process.wait(lib.PATIENCE)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            averaging = pool.submit(swarm.all, "average", 40)
            back = swarm.start(n, "ours")  # by the main thread: a peer ends with the thread that has started it
            rounds.append(min(s.get("group", 0) for s in averaging.result().values()))
        checks.equal(back.id, name, "peer %d is back over %s" % (n, swarm.kinds[n]))
        checks.note("%s is called since %s" % (name, time.strftime("%X")))
        swarm.all("load", *everybody)
        if n == PEERS // 2 - 1:
            swarm.average("half way")
    swarm.average("after")
    checks.equal(set(swarm.kinds.values()), {"ours"}, "every daemon was replaced")
    # Matchmaking may split those who are left into several groups, whatever the daemon is.
    checks.ok(min(rounds) >= 2, "the others averaged meanwhile: the smallest groups had %s peers" % rounds)
    tell_calls(swarm, {**left, **swarm.all("counts")}, "during the migration of %d daemons" % PEERS)


def test_migration():
    if peers_lib.SHORT:
        return
    with tempfile.TemporaryDirectory() as folder:
        swarm = Swarm(folder)
        try:
            migrate(swarm)
        finally:
            swarm.end()


async def relayed(binaries, relay, hidden, caller):
    """A call to a daemon that is met through another. Theirs makes a direct connection as soon as it can."""
    via = await p2pd_lib.Daemon(binaries[relay], "-relay=1", "-dhtServer=1", "-forceReachabilityPublic=1").start()
    where = "/ip4/127.0.0.1/tcp/%d/p2p/%s" % (int.from_bytes(via.addrs[0][6:8], "big"), via.name)
    boot = ["-b=1", "-bootstrapPeers=" + where, "-dhtClient=1"]
    behind = await p2pd_lib.Daemon(binaries[hidden], "-relay=1", "-autoRelay=1", "-forceReachabilityPrivate=1",
                                   "-trustedRelays=" + where, *boot).start()
    serving = await behind.client()
    await serving.add("echo", p2pd_lib.echo)
    outside = await p2pd_lib.Daemon(binaries[caller], *boot).start()
    circuit = p2pd_lib.maddr(where) + p2pd_lib.uvarint(290)
    end = asyncio.get_running_loop().time() + lib.PATIENCE
    while True:
        try:
            await outside.connect(behind, addrs=[circuit], timeout=5)
            break
        except p2pd_lib.Failure:  # the place is not there yet
            if asyncio.get_running_loop().time() > end:
                raise
            await asyncio.sleep(0.5)
    calling = await outside.client()
    answer = await calling.call(behind.id, "echo", b"x" * 1000)
    places = [addr for peer, addr in await outside.list_peers() if peer == behind.id]
    for daemon in via, behind, outside:
        daemon.process.kill()
        await daemon.process.wait()
    return len(answer), hidden == "theirs" or all(p2pd_lib.uvarint(290) in addr for addr in places)


def test_relays():
    kinds = "theirs", "ours"
    with tempfile.TemporaryDirectory() as folder:
        binaries = {"theirs": THEIRS, "ours": p2pd_lib.link_binary(folder)}
        for relay, hidden, caller in itertools.product(kinds, kinds, kinds):
            what = "relay %s, behind it %s, caller %s" % (relay, hidden, caller)
            try:
                checks.equal(asyncio.run(asyncio.wait_for(relayed(binaries, relay, hidden, caller), 90)), (1000, True),
                             what)
            except (p2pd_lib.Failure, p2pd_lib.DaemonError, asyncio.TimeoutError) as error:
                checks.ok(False, what, repr(error))


checks.run_tests(globals())
checks.done()
