#!/usr/bin/python3
"""Calls between peers, from the shell, in hivemind's framing.

    peer_call.py [MUSTER]

Unary and streaming, to a multiaddr and to a bare id that a third peer knows; and what is said, with
which exit code, when there is no answer.
"""
import json
import os
import signal
import subprocess

import lib
from lib import Checks, die_with_parent, muster_path, run_muster, wait_until

checks = Checks()
STRANGER = "12D3KooWNvSZnPi3RrhrTwEY4LuuBeB6K6facKUCJcyWG1aoDd2p"


class Peer:
    """`muster peer serve`, which says where it listens, with its first line."""

    def __init__(self, *args):
        self.process = subprocess.Popen([muster_path(), "peer", "serve"] + list(args),
                                        stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        self.address = self.process.stdout.readline().decode().strip()
        self.id = self.address.rsplit("/", 1)[-1]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=lib.PATIENCE)


def call(*args, **more):
    return run_muster("peer", "call", *args, **more)


def answers(a):
    code, out, err = call(a.address, "muster::Echo.echo", "hello")
    checks.equal((code, out), (0, b"hello\n"), "a unary call: %s" % err)
    code, out, err = call(a.address, "muster::Echo.echo")
    checks.equal((code, out), (0, b"\n"), "of nothing: %s" % err)
    code, out, err = call(a.address, "muster::Echo.echo", "hex:ff00", "--json")
    checks.equal((code, json.loads(out)),
                 (0, {"peer": a.id, "method": "muster::Echo.echo", "bytes": 2, "hex": "ff00"}),
                 "of bytes: %s" % err)
    code, out, err = call(a.address, "muster::Echo.stream", "--stream", "one", "two", "", "--json")
    checks.equal((code, [json.loads(line)["text"] for line in out.decode().splitlines()]),
                 (0, ["one", "two", ""]), "a streaming call: %s" % err)
    long = os.urandom(3 << 20)
    code, out, err = call(a.address, "muster::Echo.echo", "-", input=long)
    checks.ok(code == 0 and out == long + b"\n", "a long one", err)
    long *= 5
    code, out, err = call(a.address, "muster::Echo.stream", "--stream", "-", "end", input=long)
    checks.ok(code == 0 and out == long + b"\nend\n", "long items", err)


def found(a, b):
    """b is known to a alone."""
    got = []

    def ask():
        got[:] = call(b.id, "muster::Echo.echo", "found", "--bootstrap", a.address)
        return got[0] == 0

    wait_until(ask, "b has met a")
    checks.equal(got[1], b"found\n", "a bare id is found through a peer that knows it")
    code, out, err = call("/p2p/" + b.id, "muster::Echo.stream", "x", "y", "--stream",
                          "--bootstrap", "/ip4/127.0.0.1/tcp/1," + a.address)
    checks.equal((code, out), (0, b"x\ny\n"), "though not all can be reached: %s" % err)


def awaited():
    """One that comes up after the peer that is to bootstrap from it; and again, as somebody else."""
    port = lib.free_port()
    listen = "/ip4/127.0.0.1/tcp/%d" % port
    b = Peer("--bootstrap", listen)
    for what in ("is met once it is there", "is met again when another is there"):
        a = Peer("--listen", listen)

        def ask():
            return call(b.id, "muster::Echo.echo", "x", "--bootstrap", a.address)[0] == 0

        wait_until(ask, "a peer to bootstrap from " + what)
        checks.equal(a.stop(), 0, "a peer to bootstrap from " + what)
    checks.equal(b.stop(), 0, "who waits for one again ends in order")


def is_caught(pid):
    """Whether the process has taken SIGINT into its own hands: it blocks it, for its own thread."""
    with open("/proc/%d/status" % pid) as file:
        blocked = [line for line in file if line.startswith("SigBlk:")]
    return bool(int(blocked[0].split()[1], 16) & 1 << (signal.SIGINT - 1))


def failures(a):
    def fails(code, text, what, *args):
        got, out, err = call(*args)
        checks.ok(got == code and text in err and out == b"", what, "%d: %s" % (got, err))

    def names(method, *args):
        _, _, err = call(*args)
        checks.ok(a.id in err and method in err, "whom and what it was about", err)

    fails(1, "does not serve muster::No.no", "no such method", a.address, "muster::No.no")
    fails(1, "namespace::Service.method", "what a name is", a.address, "echo")
    fails(1, "try --stream", "a streaming one", a.address, "muster::Echo.stream", "x")
    fails(1, "without --stream", "a unary one", a.address, "muster::Echo.echo", "x", "--stream")
    names("muster::No.no", a.address, "muster::No.no")
    fails(4, "Connection refused", "nobody there", "/ip4/127.0.0.1/tcp/1", "n::S.m")
    fails(4, "not " + STRANGER, "somebody else there",
          a.address.replace(a.id, STRANGER), "n::S.m")
    fails(4, "no address of that peer is known", "nobody knows it", STRANGER, "n::S.m",
          "--bootstrap", a.address)
    fails(4, "no peer to bootstrap from can be reached", "nobody to ask", STRANGER, "n::S.m",
          "--bootstrap", "/ip4/127.0.0.1/tcp/1")
    fails(2, "--bootstrap MULTIADDR finds", "nobody given to ask", STRANGER, "n::S.m")
    fails(2, "neither a multiaddr nor a peer id", "nonsense", "nonsense", "n::S.m")
    fails(2, "one DATA", "two of a unary call", a.address, "n::S.m", "1", "2")
    fails(2, "is not pairs of hex digits", "no hex", a.address, "n::S.m", "hex:0g")
    # One that has been stopped takes the connection and says nothing.
    a.process.send_signal(signal.SIGSTOP)
    try:
        fails(3, "--timeout", "no answer", a.address, "muster::Echo.echo", "x", "--timeout",
              "300ms")
        waiting = subprocess.Popen([muster_path(), "peer", "call", a.address, "n::S.m"],
                                   preexec_fn=die_with_parent)
        wait_until(lambda: is_caught(waiting.pid), "it can be interrupted")
        waiting.send_signal(signal.SIGINT)
        checks.equal(waiting.wait(timeout=lib.PATIENCE), 1, "interrupted, it has failed")
    finally:
        a.process.send_signal(signal.SIGCONT)


def main():
    a = Peer()
    b = Peer("--bootstrap", a.address)
    answers(a)
    found(a, b)
    awaited()
    failures(a)
    checks.equal(b.stop(), 0, "b ends in order")
    checks.equal(a.stop(), 0, "a ends in order")
    checks.done()


main()
