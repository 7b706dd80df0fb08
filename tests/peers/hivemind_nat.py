#!/usr/bin/python3
"""hivemind's daemon and ours on hosts of their own, one of which nobody can dial: it is reached through
a relay, whoever is the relay, the hidden one and the caller. And both on hosts that dial each other at once.

    hivemind_nat.py MUSTER [--short] [--only=TEXT]

The hosts are network namespaces (tests/hosts/rig.py). The hidden one opens connections to others, and
nobody can open one to it, as behind a NAT."""
import asyncio
import itertools
import os
import sys

import peers_lib
import lib
import p2pd_lib

sys.path.insert(0, os.path.join(peers_lib.ROOT, "tests", "hosts"))
from rig import Rig  # noqa: E402

checks = peers_lib.Checks()
KINDS = "theirs", "ours"
PYTHON = peers_lib.program("hivemind", "python")


class Site:
    """The public host, the hidden one, and one that calls."""

    def __init__(self, rig):
        self.public, self.hidden, self.other = rig.hosts
        self.hidden.link.set("in", shut=1)
        self.path = rig.path
        self.binaries = {"theirs": peers_lib.hivemind_daemon(), "ours": p2pd_lib.link_binary(rig.path)}

    def can_be_dialled(self, port):
        """Whether the hidden host's port can be reached from outside."""
        return self.other.run("/usr/bin/python3", "-c", "import socket; socket.create_connection((%r, %d), 3)" % (
            self.hidden.address, port))[0] == 0

    def on(self, host, kind):
        """A program that is the daemon on that host. Its clients may be elsewhere: they use a unix socket."""
        path = os.path.join(host.path, "p2pd-" + kind)
        if not os.path.exists(path):
            with open(path, "w") as file:
                file.write("#!/bin/sh\nexec nsenter -t %d -n -- %s \"$@\"\n" % (host.anchor.pid, self.binaries[kind]))
            os.chmod(path, 0o755)
        return path

    async def daemon(self, host, kind, *flags):
        return await p2pd_lib.Daemon(self.on(host, kind), *flags).start("/ip4/%s/tcp/0" % host.address)


async def until(attempt, what):
    """Waits for what comes in its time, such as a place at a relay."""
    end = asyncio.get_running_loop().time() + 60
    while True:
        try:
            return await attempt()
        except (p2pd_lib.Failure, p2pd_lib.DaemonError) as error:
            if asyncio.get_running_loop().time() > end:
                raise AssertionError("%s: %s" % (what, error)) from None
            await asyncio.sleep(0.5)


def where(host, daemon):
    return "/ip4/%s/tcp/%d/p2p/%s" % (host.address, int.from_bytes(daemon.addrs[0][6:8], "big"), daemon.name)


async def relayed(site, relay, hidden, caller):
    # Theirs asks for a place when it knows four relays, or three minutes after its start.
    daemons = [await site.daemon(site.public, relay, "-relay=1", "-dhtServer=1", "-forceReachabilityPublic=1")
               for _ in range(4 if hidden == "theirs" else 1)]
    relays = [where(site.public, daemon) for daemon in daemons]
    boot = ["-b=1", "-bootstrapPeers=" + ",".join(relays), "-dhtClient=1"]
    behind = await site.daemon(site.hidden, hidden, "-relay=1", "-autoRelay=1", "-forceReachabilityPrivate=1",
                               "-trustedRelays=" + ",".join(relays), *boot)
    outside = await site.daemon(site.other, caller, *boot)
    try:
        serving, calling = await behind.client(), await outside.client()
        await serving.add("echo", p2pd_lib.echo)
        if site.can_be_dialled(int.from_bytes(behind.addrs[0][6:8], "big")):
            return "it can be dialled"
        circuits = [p2pd_lib.maddr(address) + p2pd_lib.uvarint(290) for address in relays]
        await until(lambda: outside.connect(behind, addrs=circuits, timeout=10), "a connection through the relay")
        answer = await until(lambda: calling.call(behind.id, "echo", b"x" * 100_000), "a call through the relay")
        places = [addr for peer, addr in await outside.list_peers() if peer == behind.id]
        # Theirs may open a connection of its own to a caller of ours, whose address it has from identify.
        through = all(p2pd_lib.uvarint(290) in addr for addr in places)
        return len(answer), bool(places) and (hidden == "theirs" or through)
    finally:
        for daemon in *daemons, behind, outside:
            daemon.process.kill()
            await daemon.process.wait()


def test_daemons():
    matrix = list(itertools.product(KINDS, KINDS, KINDS))
    with Rig(3) as rig:
        site = Site(rig)
        for relay, hidden, caller in matrix[2:3] if peers_lib.SHORT else matrix:
            what = "relay %s, hidden %s, caller %s" % (relay, hidden, caller)
            try:
                checks.equal(asyncio.run(asyncio.wait_for(relayed(site, relay, hidden, caller), 150)),
                             (100_000, True), what)
            except (AssertionError, p2pd_lib.Failure, p2pd_lib.DaemonError, asyncio.TimeoutError) as error:
                checks.ok(False, what, repr(error))


async def both_dial(site):
    """Both have two connections then, and theirs may call on the one that we would not."""
    theirs, ours = await site.daemon(site.public, "theirs"), await site.daemon(site.other, "ours")
    try:
        calling, serving = await theirs.client(), await ours.client()
        await serving.add("echo", p2pd_lib.echo)
        await asyncio.gather(theirs.connect(ours), ours.connect(theirs))
        for _ in range(4):
            if await calling.call(ours.id, "echo", b"x") != b"x":
                return "another answer"
            await asyncio.sleep(1.1)
        return "all calls were answered"
    except p2pd_lib.DaemonError as error:
        return str(error)
    finally:
        for daemon in theirs, ours:
            daemon.process.kill()
            await daemon.process.wait()


def test_both_dial():
    if peers_lib.SHORT:
        return
    with Rig(3) as rig:
        site = Site(rig)
        site.public.link.set(delay_ms=100)
        for n in range(6):
            checks.equal(asyncio.run(asyncio.wait_for(both_dial(site), 60)), "all calls were answered",
                         "they and we dial each other at once, and they call now and then, %d" % n)


class Peers:
    """hivemind's Python on the hosts."""

    def __init__(self, site):
        self.site, self.peers = site, {}
        self.log = open(os.path.join(site.path, "log"), "wb")

    def start(self, host, kind):
        hidden = host is self.site.hidden
        listen = "--listen=/ip4/%s/tcp/0" % host.address
        self.peers[host] = peers_lib.Peer(
            ["nsenter", "-t", str(host.anchor.pid), "-n", "--", PYTHON,
             os.path.join(peers_lib.HERE, "py", "hivemind_peer.py"), listen, *["--hidden"] * hidden,
             self.site.binaries[kind], os.path.join(host.path, "key"), str(host.number),
             *[peer.address for peer in self.peers.values()][:1]], stderr=self.log)
        return self.peers[host]

    def end(self):
        for peer in self.peers.values():
            peer.ask("leave")
            peer.process.kill()
            peer.process.wait()
        self.log.close()


def swarm_of(site, kinds):
    """A record of the hidden peer is found, and calls reach it; through the relay, or on a connection that it has
    opened itself."""
    public, hidden, other = kinds
    what = "hivemind, public %s, hidden %s, other %s" % kinds
    swarm = Peers(site)
    try:
        swarm.start(site.public, public)
        behind, caller = swarm.start(site.hidden, hidden), swarm.start(site.other, other)
        lib.wait_until(lambda: any("p2p-circuit" in a for a in behind.ask("addresses")["addresses"]),
                       what + ": a place at the relay", 60, 0.5)
        checks.ok(True, what + ": the hidden peer has a place at the public one")
        lib.wait_until(lambda: behind.ask("store", "key", 7).get("ok"), what + ": a record is stored", 60, 0.5)
        checks.equal(caller.ask("get", "key").get("value"), 7, what + ": a record of the hidden peer is found")
        lib.wait_until(lambda: caller.ask("call", behind.id).get("ok"), what + ": it is called", 60, 0.5)
        checks.ok(True, what + ": the other calls it")
        said = behind.ask("call", caller.id)
        checks.ok(said.get("ok"), what + ": it calls the other", said)
    finally:
        swarm.end()


def test_hivemind():
    if peers_lib.SHORT:
        return
    # A hidden peer over theirs needs four relays, as above, and hivemind three minutes to find that many.
    for kinds in ("theirs", "ours", "theirs"), ("ours", "ours", "theirs"), ("theirs", "ours", "ours"):
        with Rig(3) as rig:
            swarm_of(Site(rig), kinds)


checks.run_tests(globals())
checks.done()
