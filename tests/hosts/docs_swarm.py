#!/usr/bin/python3
"""Runs what the pages tell the users of a swarm to run on several hosts, with the addresses that
the commands print; and a donor that others cannot dial.

    docs_swarm.py [MUSTER] [--only=TEXT]
"""
import asyncio
import base64
import json
import os
import re
import struct
import time

from docs_hosts import read_model, write_model
from docs_site import PATIENCE, Site, block, checks, commands, fill, unrun
from rig import Rig, muster_path, option, wait_until
import p2pd_lib

RUN = "run_state_averager"
TRAINER = "TrainingStateAverager"
SECONDS = 30  # until a donor hears that others cannot dial it: 5 where a firewall is silent


def dialled(process, host, port=r"\d+"):
    """The multiaddr that it prints and that others can dial."""
    wait_until(lambda: "/p2p/" in process.output(), "an address: " + process.output(), PATIENCE)
    found = re.search(r"/ip4/%s/tcp/%s/p2p/\w+" % (re.escape(host.address), port), process.output())
    checks.ok(found, "%s prints where it can be dialled" % host.name, process.output())
    checks.ok(not re.search(r"/ip4/(0|127)\.|/ip6/::", process.output()),
              "%s prints no address that others cannot dial" % host.name, process.output())
    return found[0] if found else ""


# --- states of hivemind's trainers --------------------------------------------------------------


def pack(value):
    """MessagePack, as far as it is needed here."""
    if isinstance(value, dict):
        return bytes([0x80 + len(value)]) + b"".join(pack(k) + pack(v) for k, v in value.items())
    if isinstance(value, list):
        return bytes([0x90 + len(value)]) + b"".join(map(pack, value))
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, int):
        return bytes([value])
    return bytes([0xa0 + len(value)]) + value.encode()


def write_trained(host, name="model.safetensors", epoch=5, tensors=("tensor.0", "tensor.1")):
    """A file as `state pull --hivemind` writes it: a parameter and its momentum."""
    metadata = pack({"epoch": epoch, "group_bits": "", "optimizer_metadata": [
        {"type": "value", "value": 0.9}, {"type": "tensor", "index": 0}]})
    head = {"__metadata__": {"muster_metadata": base64.b64encode(metadata).decode()}}
    for i, tensor in enumerate(tensors):
        head[tensor] = {"dtype": "F32", "shape": [256], "data_offsets": [1024 * i, 1024 * i + 1024]}
    text = json.dumps(head, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    model = len(text).to_bytes(8, "little") + text.encode() + bytes(range(256)) * 8
    with open(os.path.join(host.path, name), "wb") as file:
        file.write(model)
    return model


def content(model):
    """What a safetensors file says and holds; its head may be padded."""
    end = 8 + int.from_bytes(model[:8], "little")
    return json.loads(model[8:end]), model[end:]


# --- what is printed ----------------------------------------------------------------------------


def test_printed():
    with Rig(2) as rig:
        site = Site(rig)
        a, b = rig.hosts
        write_model(a)
        for line in ("muster dht serve --listen /ip4/0.0.0.0/tcp/4001",
                     "muster peer serve --listen /ip4/0.0.0.0/tcp/4002",
                     "muster state serve --insecure --bootstrap new model.safetensors"):
            address = dialled(site.start(a, "exec " + line), a)
            code, out, err = b.run(muster_path(), "peer", "ping", "--count", "1", address)
            checks.equal(code, 0, "printed: %s: others reach it there" % line.split(" --")[0])
        given = site.start(a, "exec muster state serve --insecure --advertise train.example.org "
                           "--identity '' --listen /ip4/0.0.0.0/tcp/4003 model.safetensors")
        given.says("/dns/train.example.org/tcp/4003/p2p/", PATIENCE)
        checks.ok("/ip4/" not in given.output(), "printed: what is advertised, and no other",
                  given.output())
        six = site.start(a, "exec muster dht serve --listen /ip6/::/tcp/4004")
        six.says("/ip6/fd78::1/tcp/4004/p2p/", PATIENCE)
        checks.ok("/ip6/::" not in six.output(), "printed: IPv6", six.output())


# --- the pages ----------------------------------------------------------------------------------


def test_dht_page():
    there = "/ip4/192.0.2.7/tcp/4001/p2p/12D3Koo..."
    with Rig(3) as rig:
        site = Site(rig)
        a, b, c = rig.hosts
        first, second, store, get = commands("docs/dht.md", "hosts dht")
        address = dialled(site.serve(a, first, "joined", "dht.md: the first node"), a)
        site.serve(b, fill(second, {there: address}), "joined", "dht.md: another")
        site.run(c, fill(store, {there: address}), "dht.md: a record")
        said = site.run(c, fill(get, {there: address}), "dht.md: is found")
        checks.equal(json.loads(said)["value"], "hello", "dht.md: and is the same")


def test_relay_page():
    with Rig(3) as rig:
        site = Site(rig)
        a, b, c = rig.hosts
        serve, via, ping = commands("docs/relay.md", "hosts relay")
        address = dialled(site.serve(a, serve, "/p2p/", "relay.md: a relay"), a)
        peer = site.serve(b, fill(via, {"/ip4/…/tcp/4001/p2p/RELAY": address}), "p2p-circuit",
                          "relay.md: a peer that is reached through it")
        name = re.search(r"p2p-circuit/p2p/(\w+)", peer.output())[1]
        text = fill(ping, {"/ip4/…/tcp/4001/p2p/RELAY": address, "PEER": name})
        checks.ok("time=" in site.run(c, text, "relay.md: from anywhere"), "relay.md: a round trip")


def test_state_page():
    with Rig(3) as rig:
        site = Site(rig)
        a, b, c = rig.hosts
        model = write_model(a)
        write_model(b)
        first, second, pull = commands("docs/state.md", "hosts swarm")
        there = "/ip4/10.0.0.1/tcp/29701/p2p/12D3..."
        address = dialled(site.serve(a, first, "found in the DHT", "state.md: the first"), a)
        site.serve(b, fill(second, {there: address}), "found in the DHT", "state.md: another")
        site.run(c, fill(pull, {there: address}), "state.md: a newcomer")
        checks.equal(read_model(c, "state.safetensors"), model, "state.md: and it is the same")


def test_recipe_swarm():
    page = "docs/recipes.md"
    with Rig(3) as rig:
        site = Site(rig)
        a, b, c = rig.hosts
        model = write_model(b)
        boot = site.serve(a, block(page, "swarm boot").text(), "joined", "recipes: the first peer")
        env = {"BOOT": dialled(boot, a, 4001)}
        site.serve(b, block(page, "swarm serve").text(), "found in the DHT", "recipes: a donor",
                   **env)
        said = site.run(c, block(page, "swarm pull").text(), "recipes: a newcomer", **env)
        checks.ok("12.0" in said, "recipes: swarm: ls says which", said)
        checks.equal(read_model(c), model, "recipes: swarm: byte for byte")


def test_from_hivemind():
    """The trainer is a donor that has what a trainer would give: hivemind is not needed here."""
    page = "docs/from-hivemind.md"
    with Rig(4) as rig:
        site = Site(rig)
        a, b, c, d = rig.hosts
        model = write_trained(b)
        boot = site.serve(a, "\n".join(commands(page, "hivemind dht")), "joined",
                          "from-hivemind: the first peer")
        dialled(site.serve(a, "\n".join(commands(page, "hivemind relay")), "/p2p/",
                           "from-hivemind: the relay"), a, 4002)
        pull, serve = commands(page, "hivemind state")
        env = {"BOOT": dialled(boot, a, 4001)}
        trainer = site.serve(b, "exec " + serve, "found in the DHT", "from-hivemind: a trainer",
                             **env)
        checks.ok("version 5.0" in trainer.output(), "from-hivemind: the epoch is the metadata's",
                  trainer.output())
        site.run(c, pull, "from-hivemind: its state", **env)
        checks.equal(content(read_model(c)), content(model), "from-hivemind: it is the same")
        trainer.stop()
        site.serve(c, serve, "found in the DHT", "from-hivemind: is served again", **env)
        site.run(d, pull, "from-hivemind: a newcomer", **env)
        checks.equal(content(read_model(d)), content(model), "from-hivemind: and again")
        via = commands(page, "hivemind via")[0]
        site.serve(d, via, "/p2p-circuit/p2p/", "from-hivemind: through the first peer", **env)


# --- what a trainer cannot load -----------------------------------------------------------------


def test_refused():
    with Rig(2) as rig:
        site = Site(rig)
        a, b = rig.hosts
        write_model(b)
        write_trained(b, "trained.safetensors")
        write_trained(b, "sorted.safetensors", tensors=("tensor.1", "tensor.0"))
        boot = site.serve(a, "muster dht serve --listen /ip4/0.0.0.0/tcp/4001", "joined",
                          "refused: the first peer")
        serve = "exec muster state serve --insecure --bootstrap %s --prefix %s --hivemind %s " % (
            dialled(boot, a), RUN, TRAINER)
        for words, say in (("model.safetensors", "no optimizer_metadata"),
                           ("sorted.safetensors", "not in the optimizer's order"),
                           ("--epoch 6 trained.safetensors", "epoch 5"),
                           ("--priority 7 trained.safetensors", "epoch 5")):
            process = site.start(b, serve + words)
            checks.equal(process.wait(PATIENCE), 2, "refused: %s: exit code" % words)
            checks.ok(say in process.output(), "refused: %s: %s" % (words, say), process.output())
            checks.ok("found in the DHT" not in process.output(), "refused: it is not offered")
        gone = dialled(boot, a).replace(a.address, "10.78.0.99")
        process = site.start(b, "exec muster state serve --insecure --bootstrap %s trained."
                             "safetensors" % gone)
        checks.equal(process.wait(PATIENCE), 4, "refused: a node that does not answer: exit code")
        checks.ok("10.78.0.99:4001" in process.output(), "refused: it is named", process.output())
        stranger = "12D3KooWABkRWKbvXsofeqabwQmVnZCYJZVmbE2egfh1t4ZpKQnG"
        process = site.start(b, "exec muster state serve --bootstrap %s --allow %s "
                             "trained.safetensors" % (dialled(boot, a), stranger))
        checks.equal(process.wait(PATIENCE), 4, "refused: a list without the DHT's node: exit code")
        checks.ok("not on the list" in process.output(), "refused: and it says why",
                  process.output())
        code, out, err = a.run(muster_path(), "dht", "get", "--latest", "--bootstrap",
                               dialled(boot, a), RUN + ".all_averagers")
        checks.equal(code, 7, "refused: nothing is in the DHT")
        site.serve(b, serve + "--epoch 5 --priority 5 trained.safetensors", "version 5.0",
                   "refused: its own epoch is not")


# --- behind a NAT -------------------------------------------------------------------------------


def hide_behind_nat(host):
    """It listens at an address to which only its own network has a way. Others see the router's."""
    host.must_run("sh", "-ec", "ip addr add 10.99.0.1/32 dev lo")
    return "--listen /ip4/10.99.0.1/tcp/29701 "


def hide_behind_firewall(host):
    """Nobody gets in, and nobody is told."""
    code, _, err = host.run("sh", "-ec", "iptables -A INPUT -i eth0 -p tcp --syn -j DROP || "
                            "nft 'add table ip f; add chain ip f in { type filter hook input "
                            "priority 0; }; add rule ip f in iif eth0 tcp flags syn drop'")
    if code != 0:
        checks.note("no firewall can be made here: " + err.strip())
    return "" if code == 0 else None


def check_hidden(hide, what):
    with Rig(3) as rig:
        site = Site(rig)
        a, b, c = rig.hosts
        words = hide(b)
        if words is None:
            return
        model = write_model(b)
        boot = dialled(site.serve(a, "muster dht serve --listen /ip4/0.0.0.0/tcp/4001", "joined",
                                  what + ": the first peer"), a)
        serve = "exec muster state serve --insecure --bootstrap %s %s" % (boot, words)
        pull = "muster state pull --bootstrap %s -o model.safetensors model" % boot
        # One that nobody can dial is told so, and what was tried.
        began = time.monotonic()
        donor = site.start(b, serve + "model.safetensors")
        donor.says("SWARM-UNREACHABLE", PATIENCE)
        took = time.monotonic() - began
        checks.ok(took < SECONDS, "%s: the donor hears of it after %.1f s" % (what, took))
        checks.ok(b.address + ":29701" in donor.output() and "--via " + boot in donor.output(),
                  what + ": what was tried, and what helps", donor.output())
        process = site.start(c, pull)
        checks.ok(process.wait(PATIENCE) != 0, what + ": nobody can load from it")
        checks.ok(":29701" in process.output() or "/tcp/29701" in process.output(),
                  what + ": the error names the whole address", process.output())
        donor.stop()
        # Through the first peer, everybody can.
        donor = site.serve(b, serve + "--via %s model.safetensors" % boot, "found in the DHT",
                           what + ": a donor through a relay")
        checks.ok("%s/p2p-circuit/p2p/" % boot in donor.output(), what + ": it says how",
                  donor.output())
        site.run(c, pull, what + ": a newcomer loads from it")
        checks.equal(read_model(c), model, what + ": byte for byte")
        checks.ok("SWARM-UNREACHABLE" not in donor.output(), what + ": it is reached")
        os.unlink(os.path.join(c.path, "model.safetensors"))
        # Also by its whole address.
        address = re.search(r"/ip4/\S+/p2p-circuit/p2p/\w+", donor.output())[0]
        site.run(c, "muster state pull -o model.safetensors " + address, what + ": by its address")
        checks.equal(read_model(c), model, what + ": byte for byte, too")
        os.unlink(os.path.join(c.path, "model.safetensors"))
        said = site.run(c, "muster dht get --latest --bootstrap %s model.all_averagers" % address,
                        what + ": a node of the DHT, too")
        checks.ok(said, what + ": it finds itself there")
        donor.stop()
        process = site.start(c, "muster state pull --connect 3 -o model.safetensors " + address)
        checks.ok(process.wait(PATIENCE) != 0, what + ": it is gone")
        checks.ok(address in process.output(), what + ": the error has the whole address",
                  process.output())


def test_behind_nat():
    check_hidden(hide_behind_nat, "NAT")


def test_behind_firewall():
    check_hidden(hide_behind_firewall, "firewall")


def test_trainers_reach_a_hidden_donor():
    """As hivemind does: the donor's id from the DHT, its address from the daemon's own routing."""
    with Rig(3) as rig:
        site = Site(rig)
        a, b, c = rig.hosts
        hidden = hide_behind_nat(b)
        write_trained(b)
        boot = dialled(site.serve(a, "muster dht serve --listen /ip4/0.0.0.0/tcp/4001", "joined",
                                  "trainers: the first peer"), a)
        donor = site.serve(b, "exec muster state serve --insecure --bootstrap %s --via %s --prefix "
                           "%s --hivemind %s %s model.safetensors" % (boot, boot, RUN, TRAINER,
                                                                      hidden),
                           "found in the DHT", "trainers: a donor that they cannot dial")
        peer = re.search(r"p2p-circuit/p2p/(\w+)", donor.output())[1]
        method = "%s::%s.rpc_download_state" % (RUN, TRAINER)
        said = site.run(c, "muster peer call --stream --bootstrap %s %s %s ''" % (boot, peer,
                                                                                  method),
                        "trainers: they call it all the same")
        checks.ok("optimizer_metadata" in said or b"optimizer_metadata".hex() in said,
                  "trainers: and get what they need", said)
        control = os.path.join(c.path, "c.sock")
        site.serve(c, "exec muster p2pd -b=1 -bootstrapPeers=%s -dhtServer=1 -relay=1 -hostAddrs="
                   "/ip4/0.0.0.0/tcp/0 -listen=/unix%s" % (boot, control), "Peer Addrs",
                   "trainers: a daemon")
        daemon = p2pd_lib.Daemon(muster_path(), listen="/unix" + control)
        try:
            asyncio.run(asyncio.wait_for(
                daemon.stream(p2pd_lib.from_base58(peer), method.encode()), PATIENCE))
            checks.ok(True, "trainers: the daemon opens a stream to it")
        except p2pd_lib.Failure as error:
            checks.ok(False, "trainers: the daemon opens a stream to it", error)
        os.rmdir(daemon.dir)


def test_p2pd_dials_back():
    """In a swarm of hivemind's trainers, their daemons are the peers that are asked."""
    with Rig(2) as rig:
        site = Site(rig)
        a, b = rig.hosts
        daemon = site.serve(a, "muster peer id --new --identity boot.key; exec muster p2pd -autonat=1 -dhtServer=1 "
                            "-hostAddrs=/ip4/0.0.0.0/tcp/4001 -listen=/unix/tmp/%s.sock -id=boot.key"
                            % os.path.basename(rig.path), "Peer Addrs", "p2pd: a daemon")
        peer = re.search(r"Peer ID: (\w+)", daemon.output())[1]
        hidden = hide_behind_nat(b)
        process = site.start(b, "exec muster peer serve --bootstrap /ip4/%s/tcp/4001/p2p/%s %s" % (
            a.address, peer, hidden))
        process.says("cannot dial this one", PATIENCE)
        checks.ok(b.address + ":29701" in process.output(), "p2pd: it says what was tried",
                  process.output())


def test_no_relay():
    with Rig(2) as rig:
        site = Site(rig)
        a, b = rig.hosts
        write_model(b)
        boot = dialled(site.serve(a, "muster dht serve --no-relay --listen /ip4/0.0.0.0/tcp/4001",
                                  "joined", "no relay: the first peer"), a)
        process = site.start(b, "exec muster state serve --insecure --bootstrap %s --via %s "
                             "model.safetensors" % (boot, boot))
        checks.ok(process.wait(PATIENCE) != 0, "no relay: a donor cannot use it")
        checks.ok("is not a relay" in process.output(), "no relay: and is told why",
                  process.output())


if __name__ == "__main__":
    checks.run_tests(globals())
    if not option("only", ""):
        checks.equal(list(unrun("docs_swarm")), [], "every command for several hosts was run")
    checks.done()
