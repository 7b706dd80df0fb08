#!/usr/bin/python3
"""Hostile peers at a real node: each trick is refused with an error of its own, the node's memory
stays bounded, and those who are honest notice nothing.

usage: hostile_peers.py MUSTER [--streams=20000] [--subkeys=10000]

The node is `muster dht serve`. Its honest company: another node, a `muster peer ping` that goes on
all the time, and a record that is looked up after each trick. The hostile peer is raw_peer.py.
"""
import hashlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import lib
from lib import Checks, die_with_parent, muster_path, option, run_muster, wait_until
from raw_peer import (DATA, Identity, RawPeer, Refused, SYN, WINDOW, field, first, frame, line,
                      replay, uvarint)

checks = Checks()
STREAMS = option("streams", 20000)
SUBKEYS = option("subkeys", 10000)
MEMORY = (256 if lib.is_sanitized() else 64) << 20  # that a hostile peer may cost at the most


class Node:
    """A `muster dht serve` that says all it has to say."""

    def __init__(self, scratch, name, peers=()):
        self.log_path = os.path.join(scratch, name)
        argv = [muster_path(), "dht", "serve", "--json"]
        argv += ["--bootstrap", ",".join(peers)] if peers else []
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log,
                                            env=dict(os.environ, LOGLEVEL="DEBUG"),
                                            preexec_fn=die_with_parent)
        self.address = json.loads(self.process.stdout.readline())["listen"][0]
        assert json.loads(self.process.stdout.readline())["joined"]

    def log(self):
        with open(self.log_path, errors="replace") as file:
            return file.read()

    def memory(self, name):
        with open("/proc/%d/status" % self.process.pid) as file:
            return int(re.search(name + r":\s+(\d+) kB", file.read()).group(1)) << 10

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=lib.PATIENCE)


class Witness:
    """An honest peer whose connection lasts as long as the test, and is pinged all the time."""

    def __init__(self, address):
        self.answers = 0
        self.process = subprocess.Popen(
            [muster_path(), "peer", "ping", "--json", "--count", "1000000", address],
            stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for _ in self.process.stdout:
            self.answers += 1

    def is_answered(self):
        """Whether pings that are sent from now on are answered."""
        enough = self.answers + 3
        wait_until(lambda: self.answers >= enough or self.process.poll() is not None, "pings")
        return self.process.poll() is None


class World:
    def __init__(self, scratch):
        self.scratch = scratch
        self.node = Node(scratch, "node")
        self.other = Node(scratch, "other", [self.node.address])
        self.witness = Witness(self.node.address)
        self.store("honest", '"well"')
        self.owner = os.path.join(scratch, "owner")
        run_muster("peer", "id", "--new", "--type", "rsa", self.owner)
        self.store("owned", '"mine"', "--owner", self.owner)
        self.idle = self.node.memory("VmRSS")

    def store(self, *words):
        code, _, err = run_muster("dht", "store", "--bootstrap", self.node.address, "--expiration",
                                  "3600", *words)
        return checks.equal(code, 0, "%s is stored%s" % (words[0], err and ": " + err))

    def get(self, key, through=None):
        code, out, _ = run_muster("dht", "get", "--json", "--latest", "--bootstrap",
                                  (through or self.node).address, key)
        return json.loads(out) if code == 0 else None

    def refused_with(self, text, mark, what):
        """The node said so in a line behind the mark, and all is well."""
        try:
            wait_until(lambda: text in self.node.log()[mark:], text)
        except AssertionError:
            checks.ok(False, what, "not in the log: %s" % text + self.node.log()[mark:])
        else:
            checks.ok(True, '%s: refused with "%s"' % (what, text))
        self.all_is_well(what)

    def all_is_well(self, what):
        found = self.get("honest")
        checks.ok(found is not None and found["value"] == "well" and self.witness.is_answered(),
                  "honest peers notice nothing of %s" % what, found)

    def mark(self):
        return len(self.node.log())


# --- the handshake ------------------------------------------------------------------------------


def violate(w, what, text, frames=b"", signer=None):
    """Shakes hands, says that, and is hung up on."""
    mark = w.mark()
    with RawPeer(w.node.address, signer=signer) as peer:
        peer.handshake()
        peer.say(frames)
        checks.ok(peer.hung_up(), "%s: hung up on" % what)
    w.refused_with(text, mark, what)


def wrong_signature(w):
    violate(w, "a wrong signature", "signature", signer=Identity())


def replayed_handshake(w):
    with RawPeer(w.node.address) as peer:
        peer.handshake()
        stream = peer.open("/ipfs/ping/1.0.0")
        peer.write(stream, b"x" * 32)
        peer.hear_until(lambda: peer.streams[stream].endswith(b"x" * 32), "the ping")
        said = peer.said
    mark = w.mark()
    with replay(w.node.address, said) as peer:
        checks.ok(peer.hung_up(), "who says what was said before is hung up on")
    w.refused_with("changed on its way", mark, "a replayed handshake")


def downgrade(w):
    mark = w.mark()
    with RawPeer(w.node.address) as peer:
        checks.equal(peer.negotiate("/plaintext/2.0.0"), "na", "nobody is spoken to in the clear")
        for name in ("/tls/1.0.0", "/secio/1.0.0", "/yamux/1.0.0", "/ipfs/ping/1.0.0"):
            peer.send(line(name))
            checks.equal(peer.recv_line(), "na", "nor as %s" % name)
        peer.send(b"\x20" + b"x" * 32)
        checks.ok(peer.hung_up(), "and who goes on in the clear is hung up on")
    w.refused_with("line end", mark, "a downgrade")


def downgrading_listener(w):
    """One that we dial, and that does not want secrets."""
    with socket.socket() as listener:
        listener.bind((lib.HOST, 0))
        listener.listen(1)

        def answer():
            conn, _ = listener.accept()
            with conn:
                conn.sendall(line("/multistream/1.0.0") + line("na"))
                while conn.recv(4096):
                    pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        code, _, err = run_muster("peer", "ping", "--count", "1",
                                  "/ip4/127.0.0.1/tcp/%d" % listener.getsockname()[1])
        thread.join(lib.PATIENCE)
    checks.ok(code == 4 and "/noise" in err, "who does not speak /noise is not spoken to",
              (code, err))
    w.all_is_well("a listener that wants a downgrade")


def wrong_peer_id(w):
    """The address says another peer than the key that is there."""
    address = w.node.address.rsplit("/", 1)[0] + "/" + w.other.address.rsplit("/", 1)[1]
    code, _, err = run_muster("peer", "ping", "--count", "1", address)
    checks.ok(code == 4 and w.node.address.rsplit("/", 1)[1] in err,
              "a key of another id than the one that was meant is refused, and said", (code, err))
    w.all_is_well("a wrong peer id")


# --- streams ------------------------------------------------------------------------------------


def stream_flood(w):
    with RawPeer(w.node.address) as peer:
        peer.handshake()
        for at in range(0, STREAMS, 1000):
            some = range(at, min(at + 1000, STREAMS))
            peer.say(b"".join(frame(WINDOW, SYN, 101 + 2 * i, 0) for i in some))
        peer.hear_until(lambda: len(peer.resets) >= STREAMS - 1024, "the flood is turned away")
        checks.ok(len(peer.resets) <= STREAMS - 900,
                  "of %d streams all are reset but what is allowed" % STREAMS, len(peer.resets))
        w.all_is_well("a flood of streams")
        grown = w.node.memory("VmRSS") - w.idle
        checks.ok(grown < MEMORY, "it costs little memory", grown)


def window_violation(w):
    violate(w, "a window violation", "more than its window",
            frame(WINDOW, SYN, 101, 0) + frame(DATA, 0, 101, (1 << 18) + 1, b"x" * 1000))


def huge_frame(w):
    violate(w, "a frame of 2^32 - 1 bytes", "any window",
            frame(DATA, SYN, 101, (1 << 32) - 1, b"x" * 1000))


def huge_call(w):
    """A call that says that it has 2^32 bytes costs its stream, and nothing else."""
    with RawPeer(w.node.address) as peer:
        peer.handshake()
        stream = peer.open("DHTProtocol.rpc_ping")
        peer.write(stream, uvarint(1 << 32) + b"x" * 100000)
        peer.hear_until(lambda: stream in peer.resets, "the call is reset")
        checks.ok(first(peer.call("DHTProtocol.rpc_ping", b""), 2) != b"",
                  "a call of 2^32 bytes is reset, and the next is served")
    w.all_is_well("a call of 2^32 bytes")


# --- the DHT ------------------------------------------------------------------------------------


def pack_bin(data):
    head = b"\xc4" + bytes([len(data)]) if len(data) < 256 else b"\xc5" + struct.pack(
        ">H", len(data))
    return head + data


def store_request(records):
    """Records are (key, subkey, value, expiration)."""
    return (b"".join(field(2, r[0]) for r in records) + b"".join(field(3, r[1]) for r in records)
            + b"".join(field(4, r[2]) for r in records)
            + field(5, b"".join(struct.pack("<d", r[3]) for r in records))
            + field(6, bytes(len(records))) + field(7, b""))


def poison(peer, records):
    """How many of the records were taken."""
    return sum(first(peer.call("DHTProtocol.rpc_store", store_request(records)), 2))


def key_of(text):
    return hashlib.sha1(bytes([0xa0 + len(text)]) + text.encode()).digest()


def signed_record(peer, key):
    """(subkey, signed value, expiration) as the node keeps it: the only entry of a dictionary."""
    value = first(first(peer.call("DHTProtocol.rpc_find", field(2, key)), 2), 2)
    start = value.index(b"[owner:")
    end = value.index(b"]", start) + 1
    mark = value[start:end]
    signed = value[end + 3:value.index(b"]", end) + 1]  # behind the head of a bin
    return pack_bin(mark), signed, struct.unpack(">d", value[-8:])[0]


def poison_owner(w):
    mark = w.mark()
    before = w.get("owned")
    key = key_of("owned")
    with RawPeer(w.node.address) as peer:
        peer.handshake()
        subkey, signed, until = signed_record(peer, key)
        later = until + 100
        taken = poison(peer, [
            (key, subkey, b"\xa4evil", later),
            (key, subkey, b"\xa4evil[signature:QUJD]", later),
            (key, subkey, signed, later),
            (key, subkey, signed.replace(b"mine", b"evil"), later),
        ])
        checks.equal(taken, 0, "of an owner's key nothing is taken that he has not signed")
    w.refused_with("DHT-REFUSED owner=4", mark, "unsigned records of an owned key")
    checks.equal(w.get("owned"), before, "and what he has stored is there")


def poison_future(w):
    mark = w.mark()
    with RawPeer(w.node.address) as peer:
        peer.handshake()
        taken = poison(peer, [(key_of("honest"), b"\xc0", b"\xa4evil", until)
                              for until in (1e18, float("inf"), 1e300, time.time() + 40 * 86400,
                                            float("nan"), -1.0, 0.0)] * 2)
        checks.equal(taken, 0, "nothing is taken that would last for ever")
    w.refused_with("future=8", mark, "expirations far in the future")


def poison_subkeys(w):
    mark = w.mark()
    until = time.time() + 600
    with RawPeer(w.node.address) as peer:
        peer.handshake()
        taken = poison(peer, [(key_of("dict"), b"\xce" + struct.pack(">I", i), b"\xc0", until)
                              for i in range(SUBKEYS)])
        checks.equal(taken, 1024, "of %d subkeys a peer's share is taken" % SUBKEYS)
    w.refused_with("subkeys=%d" % (SUBKEYS - 1024), mark, "%d subkeys" % SUBKEYS)
    w.store("dict", '"room"', "--subkey", "honest")
    entries = {e["subkey"]: e["value"] for e in w.get("dict", w.other)["entries"]}
    checks.equal(entries.get("honest"), "room", "and an honest writer's place is not taken")


def main():
    with lib.Scratch() as scratch:
        w = World(scratch)
        for trick in (wrong_signature, replayed_handshake, downgrade, downgrading_listener,
                      wrong_peer_id, stream_flood, window_violation, huge_frame, huge_call,
                      poison_owner, poison_future, poison_subkeys):
            try:
                trick(w)
            except (AssertionError, Refused, ValueError, OSError) as error:
                checks.ok(False, trick.__name__, repr(error))
        peak = w.node.memory("VmHWM") - w.idle
        checks.ok(peak < MEMORY, "all of it has cost less than %d MiB" % (MEMORY >> 20), peak)
        checks.note("%.1f MiB at the most, %d pings answered"
                    % (peak / (1 << 20), w.witness.answers))
        w.witness.process.kill()
        w.witness.process.wait()
        checks.equal([w.other.stop(), w.node.stop()], [0, 0], "the nodes leave in peace")
    checks.done()


main()
