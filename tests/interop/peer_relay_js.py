#!/usr/bin/python3
"""Circuit relay v2 between peers of ours and of js-libp2p, each as relay, behind one, and as dialler.

    peer_relay_js.py [MUSTER]

tests/interop/js/relay.mjs is the other side.
"""
import json
import os
import signal
import subprocess
import sys

from lib import Checks, die_with_parent, muster_path, run_muster
from peer_js_lib import JS, PATIENCE, Peer

checks = Checks()
NOBODY = "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"


def ours(*extra):
    return Peer([muster_path(), "peer", "serve"] + list(extra))


def ours_behind(relay):
    """Listens nowhere: its first line is where the relay leads to it."""
    return ours("--listen", "", "--via", relay)


def theirs(*words):
    return Peer(["node", "relay.mjs"] + list(words))


def js_dial(address, what, *extra, good=True):
    done = subprocess.run(["node", "relay.mjs", "dial", address] + list(extra), cwd=JS,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE,
                          preexec_fn=die_with_parent)
    checks.ok((done.returncode == 0) == good, "js dials: " + what, done.stderr.decode()[-1500:])
    lines = done.stdout.decode().splitlines()
    return json.loads(lines[-1]) if lines and good else {}


def we_ping(address, what):
    code, out, err = run_muster("peer", "ping", address, "--count", "3", "--json")
    checks.equal(code, 0, "we ping: %s: %s" % (what, err))
    checks.equal(len(out.decode().splitlines()), 3, "three answers: " + what)


def their_relay():
    relay = theirs("relay")
    b = ours_behind(relay.address)
    checks.ok(b.address.startswith(relay.address + "/p2p-circuit/p2p/"),
              "their relay leads to us", b.address)
    we_ping(b.address, "ours, through theirs")
    code, out, err = run_muster("peer", "call", b.address, "muster::Echo.echo", "x" * 50000)
    checks.ok(code == 0 and out.strip() == b"x" * 50000, "a call through their relay", err)
    said = js_dial(b.address, "ours, through theirs", "--bytes", "3000000")
    checks.equal(said.get("transient"), True, "js takes it for limited")
    c = theirs("behind", relay.address)
    we_ping(c.address, "theirs, through theirs")
    code, out, err = run_muster("peer", "ping", relay.address + "/p2p-circuit/p2p/" + NOBODY)
    checks.ok(code == 4 and "no reservation" in err, "a peer without a place there", err)
    checks.equal(b.stop(), 0, "we end in order")
    checks.equal(c.end()[1], 0, "they end in order")
    relay.end()


def our_relay():
    relay = ours("--relay")
    b = theirs("behind", relay.address)
    checks.ok(b.address.startswith(relay.address + "/p2p-circuit/p2p/"),
              "our relay leads to them", b.address)
    we_ping(b.address, "theirs, through ours")
    said = js_dial(b.address, "theirs, through ours", "--bytes", "3000000")
    checks.equal(said.get("transient"), True, "js is told of the limit")
    c = ours_behind(relay.address)
    js_dial(c.address, "ours, through ours", "--bytes", "3000000")
    js_dial(relay.address + "/p2p-circuit/p2p/" + NOBODY, "nobody, through ours", good=False)
    code, out, err = run_muster("peer", "call", "--bootstrap", relay.address,
                                c.address.split("/")[-1], "muster::Echo.echo", "hi")
    checks.ok(code == 0 and out.strip() == b"hi", "a bare id is found, and led to", err)
    d = ours("--listen", "", "--autorelay", "--bootstrap", relay.address)
    checks.ok(d.address.startswith(relay.address + "/p2p-circuit/p2p/"),
              "a relay that was met leads to us", d.address)
    we_ping(d.address, "ours, through one that was met")
    checks.equal(d.stop(), 0, "it ends in order")
    checks.equal(b.end()[1], 0, "they end in order")
    checks.equal(c.stop(), 0, "we end in order")
    checks.equal(relay.stop(), 0, "the relay ends in order")


def limits():
    """What a relay of one kind says of limits is kept by it, and borne by the other."""
    relay = ours("--relay", "--relay-bytes", "200K")
    b = theirs("behind", relay.address)
    js_dial(b.address, "less than the limit", "--bytes", "50000")
    js_dial(b.address, "more than the limit", "--bytes", "400000", good=False)
    js_dial(b.address, "another circuit", "--bytes", "50000")
    b.end()
    relay.stop()
    relay = ours("--relay", "--relay-bytes", "0", "--relay-time", "0")
    b = theirs("behind", relay.address)
    said = js_dial(b.address, "without a limit", "--bytes", "1000000")
    checks.equal(said.get("transient"), False, "js takes it for a connection like others")
    b.end()
    relay.stop()


def the_relay_dies():
    """A place is lost with its relay, and that is told."""
    relay = theirs("relay")
    b = subprocess.Popen([muster_path(), "peer", "serve", "--json", "--listen", "", "--via",
                          relay.address], stdout=subprocess.PIPE, preexec_fn=die_with_parent)
    checks.equal(json.loads(b.stdout.readline())["listen"], [], "we listen nowhere")
    checks.equal(len(json.loads(b.stdout.readline())["relayed"]), 1, "a place")
    relay.process.kill()
    relay.process.wait()
    checks.equal(json.loads(b.stdout.readline())["relayed"], [], "and none without the relay")
    b.send_signal(signal.SIGTERM)
    checks.equal(b.wait(timeout=PATIENCE), 0, "we end in order")


def main():
    if not os.path.isdir(os.path.join(JS, "node_modules", "@libp2p", "circuit-relay-v2")):
        print("js-libp2p is not here; tools/install-deps test gets it", file=sys.stderr)
        sys.exit(1)
    their_relay()
    our_relay()
    limits()
    the_relay_dies()
    checks.done()


main()
