#!/usr/bin/python3
"""States of a rendezvous: Python's pickle and our codec must read each other, and write the same
bytes.

    rdzv_state.py RECODE

RECODE (rdzv_recode.c) decodes a state and encodes it again. The classes of 1.13 are PyTorch's own;
those of 2 are simulated by what a pickle shows of them: their names and attributes.
"""
import datetime
import pickle
import random
import struct
import subprocess
import sys

import torch.distributed.elastic.rendezvous.dynamic_rendezvous as real

import lib

UNKNOWN, D1_13, D2_NAIVE, D2 = range(4)
NAMES = ["unknown", "1.13", "2-naive", "2"]
SIZES = [0, 1, 2, 3, 73, 74, 75, 999, 1000, 1001, 2000, 3000]
START = datetime.datetime(2026, 11, 15, 9, 48, 56, 123456)


class Node2:
    def __init__(self, addr, pid, local_id):
        self.addr, self.pid, self.local_id = addr, pid, local_id

    def __eq__(self, other):
        return (self.addr, self.pid, self.local_id) == (other.addr, other.pid, other.local_id)

    def __hash__(self):
        return hash((self.addr, self.pid, self.local_id))


class State2:
    def __init__(self):
        self.round = 0
        self.complete = False
        self.deadline = None
        self.closed = False
        self.participants = {}
        self.wait_list = set()
        self.redundancy_list = set()
        self.last_heartbeats = {}


class Swapped:
    """Puts the simulated classes in the place of the real ones, under their names."""

    def __init__(self, dialect):
        self.simulated = dialect != D1_13

    def __enter__(self):
        self.kept = real._NodeDesc, real._RendezvousState
        if self.simulated:
            for cls, name in ((Node2, "_NodeDesc"), (State2, "_RendezvousState")):
                cls.__module__, cls.__qualname__, cls.__name__ = real.__name__, name, name
                setattr(real, name, cls)
        return real

    def __exit__(self, *_):
        real._NodeDesc, real._RendezvousState = self.kept


class Recode:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        preexec_fn=lib.die_with_parent)

    def __call__(self, data, dialect=UNKNOWN):
        self.process.stdin.write(struct.pack("<BI", dialect, len(data)) + data)
        self.process.stdin.flush()
        refused, found, size = struct.unpack("<BBI", self.process.stdout.read(6))
        data = self.process.stdout.read(size)
        return (None, data.decode()) if refused else (found, data)


def contents(state):
    """All that counts of a state, without regard to the order of dicts and sets."""
    def key(node):
        return (getattr(node, "addr", None) or getattr(node, "fqdn", None), node.pid,
                node.local_id)
    return {
        "round": state.round, "complete": state.complete, "deadline": state.deadline,
        "closed": state.closed,
        "participants": {key(n): r for n, r in state.participants.items()},
        "wait_list": {key(n) for n in state.wait_list},
        "redundancy_list": {key(n) for n in getattr(state, "redundancy_list", ())},
        "last_heartbeats": {key(n): t for n, t in state.last_heartbeats.items()},
    }


def build(classes, dialect, count, shared, waiting=0, spare=0, addr="node-%d.cluster.example"):
    """`count` participants, then nodes that wait or are spare, all with a heartbeat."""
    zone = datetime.timezone.utc if dialect == D2 else None
    state = classes._RendezvousState()
    state.round = count * 7
    state.complete = count > 2
    state.deadline = START.replace(tzinfo=zone) if count % 2 else None
    descriptions = [(addr % i, 1 + i * 37, i % 5) for i in range(count + waiting + spare)]
    nodes = [classes._NodeDesc(*d) for d in descriptions]
    for i, node in enumerate(nodes):
        if i < count:
            state.participants[node] = i
        elif i < count + waiting:
            state.wait_list.add(node)
        else:
            state.redundancy_list.add(node)
    for i, node in enumerate(nodes):
        key = node if shared else classes._NodeDesc(*descriptions[i])
        state.last_heartbeats[key] = (START + datetime.timedelta(
            microseconds=i * 1000003)).replace(tzinfo=zone)
    return state


def told(dialect, count):
    """What a decoder can tell: without a time, 2 and 2-naive look alike."""
    return dialect if dialect == D1_13 or count > 0 else UNKNOWN


def test_sizes(checks, recode, dialect):
    for shared in (False, True):
        for count in SIZES:
            with Swapped(dialect) as classes:
                state = build(classes, dialect, count, shared)
                data = pickle.dumps(state)
                found, again = recode(data, dialect)
                what = "%s, %d nodes%s" % (NAMES[dialect], count, ", shared" if shared else "")
                checks.equal(found, told(dialect, count), what + ": the dialect is told")
                checks.ok(again == data, what + ": the bytes are Python's", (len(data), len(again)))
                if again != data:
                    checks.equal(contents(pickle.loads(again)), contents(state), what + ": loads")


def test_lists(checks, recode, dialect):
    for waiting in (1, 2, 40, 1000, 1001):
        spare = 0 if dialect == D1_13 else waiting
        with Swapped(dialect) as classes:
            state = build(classes, dialect, 3, True, waiting, spare)
            found, again = recode(pickle.dumps(state))
            what = "%s, %d waiting, %d spare" % (NAMES[dialect], waiting, spare)
            checks.equal(found, dialect, what + ": the dialect is told")
            back = pickle.loads(again)
            checks.ok(contents(back) == contents(state), what + ": Python loads what it wrote")
            # What we wrote is in our order: from now on nothing changes any more.
            checks.ok(recode(again)[1] == again, what + ": and it stays as it is")


def test_protocols(checks, recode, dialect):
    for protocol in (2, 3, 4, 5):
        for count in (0, 1, 80, 1500):
            with Swapped(dialect) as classes:
                state = build(classes, dialect, count, True, 2, 0)
                found, again = recode(pickle.dumps(state, protocol), dialect)
                what = "%s, protocol %d, %d nodes" % (NAMES[dialect], protocol, count)
                checks.equal(found, dialect, what + " is read")
                checks.ok(found is not None and contents(pickle.loads(again)) == contents(state),
                          what + " is the same", again[:200])
            if found is None:
                return


def test_python_writer(checks, recode):
    """The pickler written in Python divides dicts and frames in other ways than the one in C."""
    with Swapped(D2) as classes:
        for count in (1, 1000, 1001, 2500):
            state = build(classes, D2, count, True)
            found, again = recode(pickle._dumps(state))
            checks.ok(found == D2 and contents(pickle.loads(again)) == contents(state),
                      "pickle.py, %d nodes" % count)
            checks.ok(contents(pickle._loads(again)) == contents(state),
                      "pickle.py reads ours, %d nodes" % count)


def test_values(checks, recode):
    numbers = [0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**40, 2**47 - 1, 2**47, 2**48 - 1,
               2**55, 2**62, 2**63 - 1, -1, -128, -129, -2**31, -2**31 - 1, -2**39, -2**39 - 1,
               -2**47, -2**47 - 1, -2**63]
    addrs = ["", "x", "n" * 255, "n" * 256, "n" * 1024, "knoten-\u00e4\u4e2d\U0001f600"]
    for number in numbers:
        state = real._RendezvousState()
        state.participants[real._NodeDesc("host", number, -number if number > -2**63 else 0)] = 0
        data = pickle.dumps(state)
        checks.ok(recode(data) == (D1_13, data), "pid %d" % number)
    for addr in addrs:
        state = real._RendezvousState()
        state.participants[real._NodeDesc(addr, 1, 0)] = 0
        data = pickle.dumps(state)
        checks.ok(recode(data) == (D1_13, data), "an address of %d characters" % len(addr))
    for number in (2**63, -2**63 - 1, 2**200):
        state = real._RendezvousState()
        state.participants[real._NodeDesc("host", number, 0)] = 0
        checks.ok(recode(pickle.dumps(state))[0] is None, "pid %d is refused" % number)
    rng = random.Random(1)
    for _ in range(300):
        state = real._RendezvousState()
        state.deadline = datetime.datetime(1970, 1, 1) + datetime.timedelta(
            microseconds=rng.randrange(584 * 365 * 86400 * 10**6))
        data = pickle.dumps(state)
        if recode(data) != (D1_13, data):
            checks.ok(False, "a deadline of %s" % state.deadline)
            break
    else:
        checks.ok(True, "300 deadlines between 1970 and 2554")


def test_zones(checks, recode):
    with Swapped(D2) as classes:
        for minutes in (90, -330, 24 * 60 - 1, 1 - 24 * 60):
            zone = datetime.timezone(datetime.timedelta(minutes=minutes))
            state = classes._RendezvousState()
            state.deadline = START.replace(tzinfo=zone)
            found, again = recode(pickle.dumps(state))
            checks.ok(found == D2 and pickle.loads(again).deadline == state.deadline,
                      "a time zone %d minutes from UTC" % minutes, again[:100])


def test_dialects(checks, recode):
    """Both attributes in one node can be read by either; a mixture of nodes by nobody."""
    with Swapped(D2) as classes:
        state = build(classes, D2_NAIVE, 2, True)
        for node in state.participants:
            node.fqdn = node.addr
        checks.equal(recode(pickle.dumps(state))[0], D2_NAIVE, "nodes with both names")
        node = next(iter(state.participants))
        del node.fqdn
        checks.equal(recode(pickle.dumps(state))[0], D2_NAIVE, "both names beside addr")
        node.fqdn = node.addr
        data = pickle.dumps(state).replace(b"\x8c\x04addr", b"\x8c\x04xddr")
        checks.equal(recode(data)[0], D1_13, "a name that is not known is skipped")
        del state.redundancy_list
        checks.equal(recode(pickle.dumps(state))[0], D1_13, "both names, no redundancy list")
        state = build(classes, D2, 2, True)
        state.deadline = START
        checks.ok(recode(pickle.dumps(state))[0] is None, "times of two kinds are refused")
        state = build(classes, D2, 2, True)
        state.weather = {"sun": [1, (2, 3), None, b"x"]}
        checks.equal(recode(pickle.dumps(state))[0], D2, "unknown attributes are skipped")


def test_refusals(checks, recode):
    import os
    for what, value, word in (
            ("a function", os.system, b"system"), ("a list", [1, 2], b"not a rendezvous state"),
            ("a float", 1.5, b"not a rendezvous state"), ("an exception", ValueError("x"), b"ValueError"),
            ("a long tuple", (1, 2, 3, 4), b"not a rendezvous state"),
            ("a node", real._NodeDesc("a", 1, 2), b"not a rendezvous state")):
        found, why = recode(pickle.dumps(value))
        checks.ok(found is None and word.decode() in why, what + " is refused", why)
    state = real._RendezvousState()
    state.wait_list.add(real._NodeDesc("a", 1, 2))
    state.wait_list.add(3)
    checks.ok(recode(pickle.dumps(state))[0] is None, "a number in the wait list is refused")


def main():
    checks = lib.Checks()
    recode = Recode(sys.argv[1])
    for dialect in (D1_13, D2_NAIVE, D2):
        test_sizes(checks, recode, dialect)
        test_lists(checks, recode, dialect)
        test_protocols(checks, recode, dialect)
    test_python_writer(checks, recode)
    test_values(checks, recode)
    test_zones(checks, recode)
    test_dialects(checks, recode)
    test_refusals(checks, recode)
    checks.done()


main()
