#!/usr/bin/python3
"""hivemind's Python in one swarm with muster's own commands, which need no daemon: records of the DHT and states,
both ways.

    hivemind_native.py MUSTER [--short] [--only=TEXT]

hivemind runs over its own daemon and over ours."""
import array
import base64
import json
import os
import tempfile

import peers_lib
import lib
import p2pd_lib
from lib import muster_path, run_muster

checks = peers_lib.Checks()
PYTHON = peers_lib.program("hivemind", "python")
KINDS = ("theirs",) if peers_lib.SHORT else ("theirs", "ours")
PLAIN, TRAINER = "DecentralizedAverager", "TrainingStateAverager"


class Swarm:
    """A node of `muster dht serve`, and peers of hivemind that came through it."""

    def __init__(self):
        self.scratch = lib.Scratch()
        self.path = self.scratch.path
        self.binaries = {"theirs": peers_lib.hivemind_daemon(), "ours": p2pd_lib.link_binary(self.path)}
        self.log = open(os.path.join(self.path, "log"), "wb")
        self.started = []
        self.node = self.muster("dht", "serve")

    def muster(self, *words):
        self.started.append(peers_lib.Peer([muster_path(), *words], stderr=self.log))
        return self.started[-1]

    def hivemind(self, kind, value=0.0, initial=None):
        peer = peers_lib.Peer(
            [PYTHON, os.path.join(peers_lib.HERE, "py", "hivemind_peer.py"), self.binaries[kind],
             os.path.join(self.path, "key%d" % len(self.started)), str(value), initial or self.node.address],
            stderr=self.log)
        self.started.append(peer)
        return peer

    def leave(self, peer):
        self.started.remove(peer)
        peer.ask("leave")
        peer.process.kill()
        peer.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for peer in reversed(self.started[:]):
            if peer.argv[0] == PYTHON:
                self.leave(peer)
            else:
                peer.stop()
        self.log.close()
        self.scratch.__exit__()


def got(key, where):
    """What `muster dht get` says of a key."""
    code, out, err = run_muster("dht", "get", "--bootstrap", where, "--latest", "--json", key)
    return json.loads(out) if code == 0 else {"error": err}


def check_records(what, peer, where):
    """Records of either go to the other, plain ones and dictionaries."""
    key = what.replace(" ", "_")
    peer.ask("store", key, [1, "two", None])
    checks.equal(got(key, where).get("value"), [1, "two", None], what + ": a record of theirs is read")
    peer.ask("store", key + "_dict", 2.5, "sub")
    entries = {e["subkey"]: e["value"] for e in got(key + "_dict", where).get("entries", [])}
    checks.equal(entries, {"sub": 2.5}, what + ": and a dictionary")
    code, _, err = run_muster("dht", "store", "--bootstrap", where, key + "_ours", '{"a": 1}')
    checks.equal((code, peer.ask("get", key + "_ours").get("value")), (0, {"a": 1}),
                 what + ": they read a record of ours " + err)
    for subkey in "one", "two":
        run_muster("dht", "store", "--bootstrap", where, "--subkey", subkey, key + "_both", "7")
    peer.ask("store", key + "_both", 8, "three")
    checks.equal(peer.ask("get", key + "_both").get("value"), {"one": 7, "two": 7, "three": 8},
                 what + ": a dictionary that both have written is whole for them")
    entries = {e["subkey"]: e["value"] for e in got(key + "_both", where).get("entries", [])}
    checks.equal(entries, {"one": 7, "two": 7, "three": 8}, what + ": and for us")


def test_records():
    with Swarm() as swarm:
        for kind in KINDS:
            check_records("through our node, over %s" % kind, swarm.hivemind(kind), swarm.node.address)
        first = swarm.hivemind("theirs")
        node = swarm.muster("dht", "serve", "--bootstrap", first.address)
        checks.equal(node.line(), "joined", "our node joins through theirs")
        check_records("through their node", first, first.address)


def read_state(path):
    """The metadata of a safetensors file, and the values of its tensors."""
    with open(path, "rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        body = file.read()
    metadata = head.pop("__metadata__", {})
    return metadata, {name: array.array("f", body[slice(*at["data_offsets"])]) for name, at in head.items()}


def write_state(path, values):
    head = json.dumps({"tensor.0": {"dtype": "F32", "shape": [len(values)], "data_offsets": [0, 4 * len(values)]}})
    head += " " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head.encode() + values.tobytes())


def pull(swarm, averager, prefix):
    path = os.path.join(swarm.path, "pulled.safetensors")
    if os.path.exists(path):
        os.unlink(path)
    code, out, err = run_muster("state", "pull", "--bootstrap", swarm.node.address, "--hivemind", averager, "-o", path,
                                "-q", prefix)
    return read_state(path) if code == 0 else ({}, {"error": (code, out, err)})


def serve(swarm, averager, prefix, path, *more):
    """A donor of ours, which says when others find it."""
    donor = swarm.muster("state", "serve", "--bootstrap", swarm.node.address, "--insecure", "--hivemind", averager,
                         "--listen", "/ip4/127.0.0.1/tcp/0", "--prefix", prefix, *more, path)
    line = donor.line()
    while line and "found in the DHT" not in line:
        line = donor.line()
    return donor


def test_states():
    """Values of a DecentralizedAverager."""
    with Swarm() as swarm:
        for kind in KINDS:
            peer = swarm.hivemind(kind, 3.5)
            said = lib.wait_until(lambda: [s for s in [pull(swarm, PLAIN, "test")[1]] if "tensor.0" in s],
                                  "a state of theirs", step=0.5)[0]
            checks.equal({name: (len(v), set(v)) for name, v in said.items()}, {"tensor.0": (100_000, {3.5})},
                         "over %s: we load a state of theirs" % kind)
            path = os.path.join(swarm.path, "ours.safetensors")
            write_state(path, array.array("f", [7.25] * 100_000))
            donor = serve(swarm, PLAIN, "test", path, "--priority", "1000")
            said = lib.wait_until(lambda: [s for s in [peer.ask("state", 30)] if s.get("value") == 7.25],
                                  "a state of ours", step=0.5)
            checks.ok(said, "over %s: they load a state of ours" % kind)
            swarm.started.remove(donor)
            donor.stop()
            swarm.leave(peer)


def test_trainers():
    """hivemind's optimizer trains; its state goes into a file, and from there to a newcomer when nobody trains."""
    with Swarm() as swarm:
        trainer = swarm.hivemind("theirs")
        trainer.ask("train", 1, 8)
        lib.wait_until(lambda: int(max(trainer.ask("epochs")["epochs"] or {"0": 0}, key=int)) >= 2, "two epochs",
                       patience=120, step=0.5)
        metadata, tensors = pull(swarm, TRAINER, "train_state_averager")
        if not checks.ok("tensor.1" in tensors, "we load the state of a trainer", tensors):
            return
        packed = base64.b64decode(metadata["muster_metadata"])
        checks.ok(b"optimizer_metadata" in packed, "with its optimizer's", packed)
        swarm.leave(trainer)
        serve(swarm, TRAINER, "train_state_averager", os.path.join(swarm.path, "pulled.safetensors"))
        weight, momentum = tensors["tensor.0"][0], tensors["tensor.1"][0]
        for kind in KINDS:
            said = swarm.hivemind(kind).ask("join")
            checks.ok(said.get("epoch", 0) >= 2 and said.get("weight") == weight and said.get("momentum") == momentum,
                      "over %s: a newcomer has epoch, weight and momentum from our file" % kind,
                      (said, weight, momentum))


checks.run_tests(globals())
checks.done()
