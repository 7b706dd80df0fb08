#!/usr/bin/python3
"""Real nodes of the DHT on loopback: records stored through some are found through others, most
survive when a third of the nodes is killed, and each is gone when its time is over.

usage: dht_loopback.py MUSTER [--nodes=20] [--records=200] [--kill=0.3] [--replicas=8] [--seed=1]

The whole of it: --nodes=100 --records=1000.

Of those that died with all their keepers nothing can be found; all others must be, without
exception, with as many replicas as you like. That at least 99 % are found depends on luck too: keys
that are near to each other have the same keepers, so losses come in clumps. With hivemind's five
replicas one run in twenty of the whole loses more than one record in a hundred, with eight one in a
thousand: hence eight.
"""
import hashlib
import json
import random
import signal
import subprocess
import time

import lib

NODES = lib.option("nodes", 20)
RECORDS = lib.option("records", 200)
KILL = lib.option("kill", 0.3)
REPLICAS = lib.option("replicas", 8)
SEED = lib.option("seed", 1)
BATCH = 100
MUSTER = lib.muster_path()


class Node:
    """A `muster dht serve`."""

    def __init__(self, peers):
        command = [MUSTER, "dht", "serve", "--json", "--replicas", str(REPLICAS)]
        if peers:
            command += ["--bootstrap", ",".join(peers)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, universal_newlines=True)
        told = json.loads(self.process.stdout.readline())
        self.address = told["listen"][0]
        self.id = int(told["node"], 16)

    def joined(self):
        return json.loads(self.process.stdout.readline())["joined"]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=lib.PATIENCE)


def command(node, verb, words, *options):
    """Runs `muster dht VERB` through a node; the objects it printed, and its exit code."""
    done = subprocess.run([MUSTER, "dht", verb, "--json", "--bootstrap", node.address,
                           "--timeout", "1m", "--replicas", str(REPLICAS), *options,
                           *words],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
                          timeout=180)
    if done.returncode not in (0, 7):
        print("     " + done.stderr.strip(), flush=True)
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode


def start_nodes(checks):
    nodes = [Node([])]
    nodes[0].joined()
    failed = 0
    for _ in range(NODES - 1):
        nodes.append(Node([n.address for n in random.sample(nodes, min(3, len(nodes)))]))
        failed += not nodes[-1].joined()
    checks.equal(failed, 0, "%d nodes have joined" % NODES)
    return nodes


def store_all(checks, nodes):
    keys = ["key-%d" % i for i in range(RECORDS)]
    stored = 0
    for at in range(0, RECORDS, BATCH):
        words = []
        for key in keys[at:at + BATCH]:
            words += [key, json.dumps({"of": key})]
        results, _ = command(random.choice(nodes), "store", words, "--expiration", "3600")
        stored += sum(r["stored"] > 0 for r in results)
    checks.equal(stored, RECORDS, "%d records are stored" % RECORDS)
    return keys


def key_id(key):
    """SHA-1 of the key in MessagePack, which has a byte before so short a text."""
    assert len(key) < 32
    return int.from_bytes(hashlib.sha1(bytes([0xa0 + len(key)]) + key.encode()).digest(), "big")


def died_whole(nodes, victims, keys):
    """The records whose nearest nodes have all been killed."""
    dead = {node.id for node in victims}
    everybody = [node.id for node in nodes] + list(dead)
    return {key for key in keys
            if dead.issuperset(sorted(everybody, key=lambda n: n ^ key_id(key))[:REPLICAS])}


def look_up(nodes, keys, *options):
    """The keys that were found, and how far it was to them."""
    found = set()
    hops = []
    for at in range(0, len(keys), BATCH):
        results, _ = command(random.choice(nodes), "get", keys[at:at + BATCH], *options)
        found |= {r["key"] for r in results if r["found"] and r["value"] == {"of": r["key"]}}
        hops += [r["hops"] for r in results]
    return found, sum(hops) / max(len(hops), 1)


def check_killed(checks, nodes, victims, which, keys):
    found, hops = look_up(nodes, keys)
    whole = died_whole(nodes, victims, keys)
    checks.ok(found >= set(keys) - whole,
              "with %d nodes killed all of those %s are found that have a keeper left"
              % (len(victims), which), sorted(set(keys) - whole - found))
    checks.ok(len(found) >= 0.99 * len(keys), "and at least 99 % of all of them",
              "%d of %d" % (len(found), len(keys)))
    checks.note("%d of %d (%d have lost all their keepers), %.2f hops on average"
                % (len(found), len(keys), len(whole), hops))


def check_expiry(checks, nodes):
    """What is looked for before a record expires is found, and what is looked for later is not."""
    a, b = random.sample(nodes, 2)
    began = time.time()
    stored, _ = command(a, "store", ["short", "1"], "--expiration", "4")
    until = stored[0]["expiration"]
    checks.ok(began + 4 <= until <= time.time() + 4, "the expiration is what was asked for")
    early = []
    late = []
    while len(late) < 3:
        before = time.time()
        found = command(b, "get", ["short"])[0][0]["found"]
        if time.time() < until:
            early.append(found)
        elif before >= until:
            late.append(found)
    checks.ok(early and all(early), "a record is there until it expires", early)
    checks.ok(not any(late), "and is not there when it has", late)


def check_subkeys(checks, nodes):
    for i, node in enumerate(random.sample(nodes, 3)):
        command(node, "store", ["dict", json.dumps(i)], "--subkey", "sub%d" % i)
    results, _ = command(random.choice(nodes), "get", ["dict"], "--latest")
    entries = {e["subkey"]: e["value"] for e in results[0].get("entries", [])}
    checks.equal(entries, {"sub0": 0, "sub1": 1, "sub2": 2}, "subkeys of several writers are one")
    command(nodes[0], "store", ["dict", "7"], "--subkey", "sub1", "--expiration", "600")
    command(nodes[1], "store", ["dict", "8"], "--subkey", "sub1", "--expiration", "100")
    results, _ = command(random.choice(nodes), "get", ["dict"], "--latest")
    entries = {e["subkey"]: e["value"] for e in results[0].get("entries", [])}
    checks.equal(entries.get("sub1"), 7, "of two values of a subkey the one that lasts is kept")


def main():
    checks = lib.Checks()
    random.seed(SEED)
    nodes = []
    try:
        nodes = start_nodes(checks)
        keys = store_all(checks, nodes)
        # What is looked up is cached on the way, which would be one more copy: half of the records
        # are not asked for before nodes die.
        read, unread = keys[::2], keys[1::2]
        found, hops = look_up(nodes, read)
        checks.equal(len(found), len(read), "all that is looked up is found from other nodes")
        checks.note("%.2f hops on average" % hops)
        check_subkeys(checks, nodes)
        check_expiry(checks, nodes)
        victims = random.sample(nodes, int(KILL * NODES))
        for node in victims:
            node.kill()
        nodes = [n for n in nodes if n not in victims]
        for which, some in (("never read before", unread), ("read before", read)):
            check_killed(checks, nodes, victims, which, some)
    finally:
        codes = [node.stop() for node in nodes]
    checks.equal(set(codes), {0}, "nodes leave when they are asked to")
    checks.done()


main()
