#!/usr/bin/python3
"""Peers of ours and of js-libp2p speak to each other, each as dialler and as listener.

    peer_js.py [MUSTER] [--peerload=PATH] [--bytes=16777216] [--streams=500]

Handshakes with Ed25519 and RSA identities on either side, identify, ping, a protocol that echoes
both ways at once, many streams on one connection, a name that nobody knows, resets, and closing,
over IPv4 and IPv6; and each finds peers through the other. tests/interop/js/peer.mjs is the other
side; `--bytes` is how much is echoed: a gibibyte is the whole of it, and takes minutes.
"""
import json
import os
import subprocess
import sys

import lib
import peer_js_lib
from lib import Checks, die_with_parent, muster_path, option, run_muster
from peer_js_lib import JS, Peer

checks = Checks()
BYTES = option("bytes", 16 << 20)
STREAMS = option("streams", 500)
PATIENCE = peer_js_lib.PATIENCE + BYTES / (10 << 20)
PEERLOAD = option("peerload", os.path.join(os.path.dirname(muster_path()), "bench", "peerload"))


def js_listen(*extra):
    return Peer(["node", "peer.mjs", "listen"] + list(extra))


def run(argv, what):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=JS,
                          timeout=PATIENCE, preexec_fn=die_with_parent)
    if not checks.ok(done.returncode == 0, what, done.stderr.decode()[-2000:]):
        return {}
    lines = done.stdout.decode().splitlines()
    return json.loads(lines[-1]) if lines else {}


def js(address, what, *extra):
    return run(["node", "peer.mjs", "dial", address, what] + list(extra),
               "js dials, %s %s" % (what, " ".join(extra)))


def ours(mode, address, *extra):
    return run([PEERLOAD, mode, address] + list(extra),
               "we dial, %s %s" % (mode, " ".join(extra)))


def rate(result):
    if result.get("seconds"):
        checks.note("%.0f MiB/s each way" % (result["bytes"] / result["seconds"] / (1 << 20)))


def they_dial():
    """js-libp2p as dialler; the commands, and peerload for what they do not serve."""
    serve = Peer([muster_path(), "peer", "serve", "--listen",
                  "/ip4/127.0.0.1/tcp/0,/ip6/::1/tcp/0"])
    said = js(serve.address, "identify")
    checks.ok(said.get("agent", "").startswith("muster/"), "we say who we are", said)
    checks.ok(any(a in serve.address for a in said.get("addresses", [])),
              "we say where we listen", said)
    checks.ok(said.get("certified"), "with a signature that js believes", said)
    second = serve.process.stdout.readline().decode().strip()
    checks.ok(second.startswith("/ip6/::1/"), "we listen on IPv6", second)
    js(second, "ping")
    js(serve.address, "ping", "--rsa")
    js(serve.address, "unknown")
    checks.equal(serve.stop(), 0, "muster peer serve ends in order")
    peer = Peer([PEERLOAD, "serve", "--rsa"])
    js(peer.address, "identify")
    js(peer.address, "identify", "--rsa")
    rate(js(peer.address, "echo", "--bytes", str(BYTES)))
    js(peer.address, "streams", "--streams", str(STREAMS), "--bytes", "20000")
    js(peer.address, "reset")
    js(peer.address, "ping")
    peer.process.kill()
    peer.process.wait()


def we_dial():
    peer = js_listen()
    code, out, err = run_muster("peer", "ping", peer.address, "--count", "3", "--json")
    checks.equal(code, 0, "muster peer ping: %s" % err)
    checks.equal([json.loads(line)["seq"] for line in out.decode().splitlines()], [1, 2, 3],
                 "three answers")
    rate(ours("echo", peer.address, "--bytes", str(BYTES)))
    ours("echo", peer.address, "--streams", str(STREAMS), "--bytes", "20000")
    ours("echo", peer.address, "--rsa")
    ours("reset", peer.address)
    said, code = peer.end()
    checks.equal(code, 0, "js ends in order")
    checks.equal(said["open"], 0, "js has seen every connection closed")
    checks.ok(said["connections"] >= 5, "js has seen them open", said)
    peer = js_listen("--rsa")
    run_muster("peer", "ping", peer.address)
    ours("echo", peer.address, "--rsa")
    wrong = peer.address[:peer.address.rindex("/")] + \
        "/12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"
    code, out, err = run_muster("peer", "ping", wrong)
    checks.ok(code == 4 and "not 12D3" in err, "another peer than was meant is refused", err)
    peer.end()
    peer = js_listen("--listen", "/ip6/::1/tcp/0")
    ours("echo", peer.address)
    peer.end()


def meet(knows):
    """One of ours that others can find only through who knows of it: a call of ours has."""
    peer = Peer([muster_path(), "peer", "serve", "--bootstrap", knows.address])
    peer.id = peer.address.rsplit("/", 1)[-1]
    lib.wait_until(lambda: run_muster("peer", "call", peer.id, "muster::Echo.echo", "found",
                                      "--bootstrap", knows.address)[:2] == (0, b"found\n"),
                   "a peer is found through who knows of it", patience=PATIENCE)
    return peer


def they_find():
    """Each looks for a peer that only the other knows of, by its bare id."""
    knows = Peer([muster_path(), "peer", "serve"])
    sought = meet(knows)
    said = js(knows.address, "find", "--kad", "--peer", sought.id)
    checks.ok(any(a in sought.address for a in said.get("addresses", [])),
              "js finds a peer through us", said)
    sought.stop()
    knows.stop()
    knows = js_listen("--kad")
    sought = meet(knows)
    checks.ok(sought.id, "we find a peer through js")
    sought.stop()
    knows.end()


def they_close():
    """js-libp2p closes a connection that we hold: nothing is amiss."""
    peer = js_listen()
    held = subprocess.Popen([PEERLOAD, "echo", peer.address, "--linger"], stdout=subprocess.PIPE,
                            preexec_fn=die_with_parent)
    checks.ok(b"seconds" in held.stdout.readline(), "we hold a connection")
    peer.process.stdin.write(b"hangup\n")
    peer.process.stdin.flush()
    checks.equal(held.wait(timeout=lib.PATIENCE), 0, "they close it, and we see it closed")
    peer.end()


def main():
    if not os.path.isdir(os.path.join(JS, "node_modules")):
        print("js-libp2p is not here; tools/install-deps test gets it", file=sys.stderr)
        sys.exit(1)
    they_dial()
    we_dial()
    they_find()
    they_close()
    checks.done()


main()
