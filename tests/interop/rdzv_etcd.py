#!/usr/bin/python3
"""The backend etcd-v3 on a real cluster: rounds while its leader is killed, members that die, leave
and come late, the end of a run, certificates and passwords.

    rdzv_etcd.py [MUSTER] [--seeds=N] [--first=SEED] [--only=NAME]

The moment of the kill follows from the seed. 50 seeds are the long form.
"""
import os
import random
import subprocess
import threading
import time

import etcd_lib
import lib
from etcd_cluster import Cluster
from lib import muster_path, option, wait_until
from rdzv_nodes import Fleet, Node, agree

TTL_S = 6
CONFIG = "last_call_timeout=0.3,upscale_delay=0.1,lease_ttl=%d" % TTL_S
NODES = 8
CLOSED = 8  # muster's exit code for a run that is over
checks = lib.Checks()


def command(endpoint, run_id, *args):
    return subprocess.run([muster_path(), "rdzv", *args, "--rdzv-backend", "etcd-v3",
                           "--rdzv-endpoint", endpoint, "--rdzv-id", run_id],
                          capture_output=True, timeout=60)


def fleet(cluster, run_id, nnodes, **more):
    return Fleet(cluster.endpoints, run_id, nnodes, backend="etcd-v3",
                 **dict(dict(config=CONFIG, args=("--rejoin",)), **more))


def by_member(events):
    """Events by the name that the others know the node by."""
    return {e["members"][e["rank"]]["name"]: e for e in events}


def assigned(*nodes, world=None):
    """The world that all these nodes come to be in."""
    events = [node.until("assigned") for node in nodes]
    top = max(e["round"] for e in events)
    for i, node in enumerate(nodes):
        while events[i]["round"] < top or (world and events[i]["world_size"] != world):
            events[i] = node.until("assigned")
            top = max(top, events[i]["round"])
    if any(e["round"] != top for e in events):
        return assigned_again(nodes, events)
    return events


def assigned_again(nodes, events):
    top = max(e["round"] for e in events)
    for i, node in enumerate(nodes):
        while events[i]["round"] < top:
            events[i] = node.until("assigned")
            top = max(top, events[i]["round"])
    return events


def test_meet_leave_and_die(cluster):
    with fleet(cluster, "meet", "2:3") as run:
        a, b = run.add("a"), run.add("b")
        events = assigned(a, b)
        checks.equal(agree(by_member(events)), "", "two nodes are in one world")
        c = run.add("c")
        events = assigned(a, b, c, world=3)
        checks.equal(agree(by_member(events)), "", "a late one is let in")
        status = command(cluster.endpoints, "meet", "status")
        checks.ok(status.returncode == 0 and b"running 3" in status.stdout, "status says so", status)

        store = events[0]["store"]
        done = [subprocess.run([muster_path(), "kv", "--store", store, *words],
                               capture_output=True, timeout=30).stdout
                for words in (("set", "k", "v"), ("get", "k"))]
        checks.equal(done[1], b"v\n", "the round's store is in etcd: %s" % store)

        started = time.monotonic()
        c.stop()
        ended = [a.until("ended"), b.until("ended")]
        # A lease that is not given back lives for two thirds of its time at least.
        checks.ok(max(e["at"] for e in ended) - started < TTL_S / 2,
                  "one that leaves is missed at once", ended)
        assigned(a, b, world=2)
        d = run.add("d")
        assigned(a, b, d, world=3)
        started = time.monotonic()
        a.kill()  # the oldest, which leads
        ended = [b.until("ended"), d.until("ended")]
        took = max(e["at"] for e in ended) - started
        checks.ok(took < TTL_S + 20, "a killed leader is missed within its lease's time: %.1f s" % took)
        checks.equal(agree(by_member(assigned(b, d, world=2))), "", "and the others go on")
        done = command(cluster.endpoints, "meet", "close")
        checks.equal(done.returncode, 0, "the run is closed %s" % done.stderr)
        b.until("closed")
        d.until("closed")
        with Node(cluster.endpoints, "meet", "2:3", config=CONFIG, backend="etcd-v3") as late:
            checks.equal(late.wait(), CLOSED, "nobody joins it any more")
    left = {key.split(b"/")[6] for key in cluster.get_prefix("/muster/rdzv/meet/store/k/")}
    checks.ok(b"%012d" % events[0]["round"] not in left, "stores of earlier rounds are cleared",
              left)
    wait_until(lambda: not [k for k in cluster.get_prefix("/muster/rdzv/meet/nodes/")],
               "no key of a node that is gone")
    checks.ok(True, "nodes leave nothing behind")


def test_spares(cluster):
    with fleet(cluster, "spare", "2:2") as run:
        a, b = run.add("a"), run.add("b")
        assigned(a, b)
        c = run.add("c")
        wait_until(lambda: b"spare 1" in command(cluster.endpoints, "spare", "status").stdout,
                   "the third to be a spare")
        b.kill()
        a.until("ended")
        checks.equal(agree(by_member(assigned(a, c))), "", "a spare takes the place of a dead one")


def test_bad_words(cluster):
    for text, words in (("etcd://127.0.0.1:1/x?no=1", "no parameter"),
                        ("http://127.0.0.1:2379", "etcd://")):
        with Node(text, "bad", 1, backend="etcd-v3") as node:
            checks.ok(node.wait() != 0 and words in node.complaint, "refused: " + text,
                      node.complaint)
    with Node("127.0.0.1:1", "bad", 1, backend="etcd-v3", config="join_timeout=1") as node:
        checks.ok(node.wait() != 0 and "127.0.0.1:1" in node.complaint, "nobody there",
                  node.complaint)
    with Node(cluster.endpoints, "bad", 1, backend="etcd-v2", config="join_timeout=3") as node:
        checks.ok(node.wait() != 0 and "v2 API" in node.complaint, "no v2 on this etcd",
                  node.complaint)
    status = command(cluster.endpoints, "never", "status")
    checks.ok(status.returncode == 7 and b"no run" in status.stderr, "no such run", status)


def test_certificates_and_passwords(_):
    with lib.Scratch() as path:
        tls = etcd_lib.Certificates(path)
        tls.issue("server")
        tls.issue("client")
        query = "?cacert=%s&cert=%s&key=%s" % tuple(map(tls.file, ("ca.pem", "client.pem",
                                                                   "client.key")))
        with Cluster(1, tls=tls) as secret:
            endpoint = "etcd://%s/jobs%s" % (secret.endpoints, query)
            with Fleet(endpoint, "tls", 2, backend="etcd-v3", config=CONFIG) as run:
                events = assigned(run.add("a"), run.add("b"))
                checks.equal(agree(by_member(events)), "", "a round over TLS, under a prefix")
                checks.ok("cacert=" in events[0]["store"], "its store is reached likewise",
                          events[0]["store"])
        file = os.path.join(path, "password")
        with open(file, "w") as out:
            out.write("s3cret\n")
        with Cluster(1, auth=("muster", "s3cret")) as locked:
            endpoint = "etcd://%s?user=muster&password_file=%s" % (locked.endpoints, file)
            with Fleet(endpoint, "auth", 2, backend="etcd-v3", config=CONFIG) as run:
                checks.equal(agree(by_member(assigned(run.add("a"), run.add("b")))), "",
                             "a round with a password")
            with Node(locked.endpoints, "auth", 2, backend="etcd-v3",
                      config="join_timeout=5") as node:
                checks.ok(node.wait() != 0 and "user name is empty" in node.complaint,
                          "and none without", node.complaint)


# --- the leader is killed -----------------------------------------------------------------------


def world_is_one(nodes, seen):
    """'' once the last that each node was told is one world of all of them."""
    last = []
    for node in nodes:
        told = [e for e in list(node.said) if e["event"] in ("assigned", "ended")]
        if not told or told[-1]["event"] != "assigned" or told[-1]["world_size"] != len(nodes):
            return "not yet: %r" % (told[-1:],)
        last.append(told[-1])
    seen[:] = last
    return agree(by_member(last))


def check_story(checks, nodes, what):
    """Every round has one world, whoever was told of it; and nobody is in two of them."""
    worlds = {}
    for node in nodes:
        inside = None
        for e in list(node.said):
            if e["event"] == "assigned":
                names = [m["name"] for m in e["members"]]
                key = (e["world_size"], tuple(names), e["store"])
                if worlds.setdefault(e["round"], key) != key:
                    checks.ok(False, what + ": one world for each round", (e, worlds[e["round"]]))
                if inside is not None:
                    checks.ok(False, what + ": nobody is in two worlds", (inside, e))
                if len(set(names)) != e["world_size"] or e["rank"] >= e["world_size"]:
                    checks.ok(False, what + ": ranks are unique", e)
                inside = e["round"]
            elif e["event"] == "ended":
                inside = None


def leader_killed(cluster, seed):
    """Eight nodes come together, one after the other, and the leader is killed on the way."""
    rng = random.Random(seed)
    leader = cluster.leader()
    started = time.monotonic()
    delay = rng.uniform(0, 0.6)
    killer = threading.Timer(delay, cluster.kill, (leader,))
    what = "seed %d, the leader killed after %.3f s" % (seed, delay)
    with fleet(cluster, "leader-%d" % seed, "%d:%d" % (NODES, NODES)) as run:
        killer.start()
        for i in range(NODES):
            run.add("n%d" % i)
            time.sleep(rng.uniform(0, 0.04))
        nodes, seen = list(run.nodes.values()), []
        try:
            wait_until(lambda: world_is_one(nodes, seen) == "", what)
        finally:
            killer.join()
        checks.note("together after %.1f s" % (time.monotonic() - started))
        check_story(checks, nodes, what)
        checks.ok(not world_is_one(nodes, seen), what + ": one world of %d, round %d"
                  % (NODES, seen[0]["round"]))
        for node in nodes:
            node.process.terminate()
        checks.ok(all(node.wait() in (0, 143) for node in nodes), what + ": all leave in order")
        checks.note("all left after %.1f s" % (time.monotonic() - started))
    cluster.restart(leader)


def test_leader_killed(cluster):
    first = option("first", 1)
    for seed in range(first, first + option("seeds", 5)):
        started = time.monotonic()
        leader_killed(cluster, seed)
        checks.note("seed %d took %.1f s" % (seed, time.monotonic() - started))


def main():
    with Cluster(3) as cluster:
        checks.run_tests(globals(), cluster)
    checks.done()


main()
