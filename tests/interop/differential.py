#!/usr/bin/python3
"""The same random requests to PyTorch's server and to ours, and the same bytes back.

Batches of requests go over several connections, cut at random places, to both servers. Compared are
every reply, byte for byte; where a connection is closed (a GET of a missing key, an ADD on what is
no number, unknown opcodes, absurd lengths); which waiters are woken by what; what watchers hear.

What the two servers are known to do differently is kept out: compare_set does not wake waiters in
PyTorch 1.13 (so keys that are waited for are not touched by it); a request behind a pending WAIT
means to ours that the client gave it up (so waiters are silent); opcodes 9 to 12 are those of
PyTorch 2.0; and a watcher that goes away must not break those who set its key.

    differential.py [MUSTER] [--ops=100000] [--seed=N] [--torch-twice | --durable | --gateway]

--torch-twice compares PyTorch's server with itself: a test of this test. --durable lets ours write
everything to disk before it answers, which must not show.
"""
import random
import re
import struct
import sys
import time

import lib
from lib import Closed, Conn, i64, text, texts, u64

KEYS = ["/k%d" % i for i in range(12)] + ["", "/", "/a long key " + "x" * 200, "/" + "y" * 8000]
WAIT_KEYS = ["/w%d" % i for i in range(6)]
NUMBERS = [b" 7", b"12abc", b"-5", b"+3", b"0x10", b"9223372036854775807", b"-9223372036854775808",
           b"99999999999999999999", b"", b"abc", b"\t\n\v\f\r 42", b"4 2", b"12\0009", b"- 1",
           b"+-2",
           b"007", b"-0", b"1e3", b"\xc2\xa07", b"9223372036854775808", b"--1", b"+"]
DELTAS = [0, 1, 1, 1, -1, 5, -7, 2**63 - 1, -(2**63), 123456789]
ABSURD = [2**62, 2**63, 2**64 - 1, 2**64 - 8]

# What a reply looks like: "" none, 1 one byte, 8 eight bytes, "t" a text.
SET, CAS, GET, ADD, CHECK, WAIT, NUM_KEYS, WATCH, DELETE = range(9)


class Request:
    """`apply` does to a dict what a server does to its keys, and says whether it must hang up."""

    __slots__ = ("bytes", "reply", "name", "apply")

    def __init__(self, name, op, rest, reply, apply=lambda keys: False):
        self.name = name
        self.bytes = bytes([op]) + rest
        self.reply = reply
        self.apply = apply


def set_request(key, value):
    def apply(keys):
        keys[key] = value
        return False

    return Request("set", SET, text(key) + text(value), "", apply)


def add_request(key, delta):
    def apply(keys):
        number = re.match(rb"[ \t\n\v\f\r]*([+-]?[0-9]+)", keys.get(key, b"0"))
        if not number or not -(2**63) <= int(number.group(1)) < 2**63:
            return True
        total = (int(number.group(1)) + delta + 2**63) % 2**64 - 2**63
        keys[key] = str(total).encode()
        return False

    return Request("add", ADD, text(key) + i64(delta), 8, apply)


def cas_request(key, expected, desired):
    def apply(keys):
        if keys.get(key, b"") == expected:
            keys[key] = desired
        return False

    return Request("cas", CAS, text(key) + text(expected) + text(desired), "t", apply)


def get_request(key):
    return Request("get", GET, text(key), "t", lambda keys: key not in keys)


def delete_request(key):
    def apply(keys):
        keys.pop(key, None)
        return False

    return Request("delete", DELETE, text(key), 8, apply)


def fatal_request(name, op, rest=b""):
    return Request(name, op, rest, 1, lambda keys: True)


def random_value(rng):
    kind = rng.random()
    if kind < 0.45:
        return str(rng.randint(-1000, 1000)).encode()
    if kind < 0.6:
        return rng.choice(NUMBERS)
    if kind < 0.98:
        return rng.randbytes(rng.randint(0, 120))
    return rng.randbytes(rng.randint(0, 40000))


def random_request(rng):
    """Most requests succeed. Those that cost the connection come by now and then."""
    key = rng.choice(KEYS if rng.random() < 0.8 else WAIT_KEYS)
    waited = key in WAIT_KEYS
    kind = rng.random()
    if kind < 0.30:
        return set_request(key, random_value(rng))
    if kind < 0.48:
        return get_request(key)
    if kind < 0.62:
        return add_request(rng.choice(["/n1", "/n2", "/n3"]) if rng.random() < 0.9 else key,
                           rng.choice(DELTAS))
    if kind < 0.72:
        keys = [rng.choice(KEYS + WAIT_KEYS) for _ in range(rng.randint(0, 4))]
        return Request("check", CHECK, texts(keys), 1)
    if kind < 0.83 and not waited:
        expected = rng.choice([b"", b"1", b"a", random_value(rng)])
        return cas_request(key, expected, rng.choice([b"1", b"a", b""]))
    if kind < 0.86:
        return Request("num_keys", NUM_KEYS, b"", 8)
    if kind < 0.93:
        return delete_request(key)
    if kind < 0.9978:
        return set_request(key, str(rng.randint(0, 99)).encode())
    kind = rng.randint(0, 3)
    if kind == 0:
        return fatal_request("unknown opcode", rng.randint(13, 255))
    if kind == 1:
        op = rng.choice([SET, GET, ADD, DELETE, CAS])
        return fatal_request("absurd key", op, u64(rng.choice(ABSURD)))
    if kind == 2:
        return fatal_request("absurd value", SET, text("/absurd") + u64(rng.choice(ABSURD)))
    return fatal_request("absurd count", rng.choice([CHECK, WAIT]), u64(rng.choice(ABSURD)))


def read_reply(conn, request):
    if request.reply == "":
        return b""
    if request.reply == "t":
        head = conn.recv(8)
        return head + conn.recv(struct.unpack("<Q", head)[0])
    return conn.recv(request.reply)


BARRIER = Request("barrier", CHECK, u64(0), 1)


def run_batch(conn, requests, cuts):
    """Sends all, reads all. The replies, the last of them b"closed" if the server hung up there."""
    data = b"".join(request.bytes for request in requests)
    try:
        start = 0
        for cut in cuts:
            cut = start + int(cut * (len(data) - start))
            conn.send(data[start:cut])
            start = cut
        conn.send(data[start:])
    except Closed:
        pass
    replies = []
    try:
        for request in requests:
            replies.append(read_reply(conn, request))
    except Closed:
        replies.append(b"closed")
    return replies


class Side:
    """One of the two servers with all connections to it."""

    def __init__(self, port, plain, waiters, watchers):
        self.port = port
        self.plain = [Conn(port) for _ in range(plain)]
        self.waiters = [Conn(port) for _ in range(waiters)]
        self.watchers = [Conn(port) for _ in range(watchers)]

    def mark(self, conn, name):
        """Everything the server pushed on this connection so far. The mark behind it is the answer
        to an ADD, whose lowest byte no pushed frame begins with."""
        conn.send(bytes([ADD]) + text("/mark/" + name) + i64(0x100))
        pushed = b""
        while True:
            first = conn.recv(1)
            if first == b"\x77":
                conn.recv(7)
                return pushed
            pushed += first
            for _ in range(3):
                head = conn.recv(8)
                pushed += head + conn.recv(struct.unpack("<Q", head)[0])

    def prepare_marks(self):
        for i, conn in enumerate(self.watchers):
            conn.send(bytes([ADD]) + text("/mark/%d" % i) + i64(0x77))
            assert conn.recv(8) == i64(0x77)

    def woken(self, index, patience=0.0):
        """Whether the waiter's answer is there."""
        try:
            assert self.waiters[index].recv(1, patience) == b"\0"
            return True
        except lib.Silent:
            return False


class Differ(Exception):
    pass


def explain(requests, ours, theirs):
    for i, request in enumerate(requests):
        a = ours[i] if i < len(ours) else None
        b = theirs[i] if i < len(theirs) else None
        if a != b:
            return "request %d of the batch, %s %r:\n  muster  %r\n  pytorch %r" % (
                i, request.name, request.bytes[:120], a and a[:120], b and b[:120])
    return "equal"


class Run:
    def __init__(self, seed, ours, theirs):
        self.rng = random.Random(seed)
        self.sides = (ours, theirs)
        self.keys = {}
        self.pending = set()
        self.ops = self.closes = self.wakes = self.notices = 0
        for side in self.sides:
            side.prepare_marks()
        for i in range(len(ours.watchers)):
            key = (KEYS + WAIT_KEYS)[i % (len(KEYS) + len(WAIT_KEYS))]
            for side in self.sides:
                side.watchers[i].send(bytes([WATCH]) + text(key))
                assert side.watchers[i].recv(1) == b"\3"

    def make_batch(self, count):
        """Requests up to the first that costs the connection, so that no byte is left unread when a
        server closes: TCP would then throw away answers that are still on their way."""
        requests = []
        for _ in range(count):
            requests.append(random_request(self.rng))
            if requests[-1].apply(self.keys):
                return requests, True
        return requests + [BARRIER], False

    def batch(self):
        """One batch on one connection of each side."""
        rng = self.rng
        index = rng.randrange(len(self.sides[0].plain))
        requests, fatal = self.make_batch(rng.randint(1, 48))
        cuts = [rng.random() for _ in range(rng.choice([0, 0, 0, 0, 1, 2, 8]))]
        ours, theirs = (run_batch(side.plain[index], requests, cuts) for side in self.sides)
        if ours != theirs:
            raise Differ(explain(requests, ours, theirs))
        self.ops += len(ours)
        if (theirs[-1] == b"closed") != fatal:
            raise Differ("both servers closed, or did not, against expectation, at %s %r" % (
                requests[len(theirs) - 1].name, requests[len(theirs) - 1].bytes[:120]))
        if fatal:
            self.closes += 1
            for side in self.sides:
                side.plain[index].close()
                side.plain[index] = Conn(side.port)
                side.plain[index].barrier()

    def start_wait(self):
        idle = [i for i in range(len(self.sides[0].waiters)) if i not in self.pending]
        if not idle:
            return
        index = self.rng.choice(idle)
        keys = [self.rng.choice(WAIT_KEYS) for _ in range(self.rng.randint(0, 3))]
        for side in self.sides:
            # The CHECK's answer says that the segment with the WAIT in it has arrived.
            conn = side.waiters[index]
            conn.send(bytes([CHECK]) + u64(0) + bytes([WAIT]) + texts(keys))
            assert conn.recv(1) == b"\0"
        self.ops += 2
        self.pending.add(index)
        self.look_at_waiters()

    def look_at_waiters(self):
        """Who was woken. If one server has answered, the other must, perhaps a moment later."""
        for side in self.sides:
            for _ in range(2):
                side.plain[0].barrier()
        for index in sorted(self.pending):
            woken = [side.woken(index) for side in self.sides]
            if woken[0] != woken[1]:
                late = woken.index(False)
                if not self.sides[late].woken(index, 2):
                    raise Differ("waiter %d was woken by %s only" %
                                 (index, ["muster", "pytorch"][1 - late]))
                woken = [True, True]
            if woken[0]:
                self.pending.remove(index)
                self.wakes += 1

    def abandon_waiter(self):
        """A client that goes away in the middle of its wait."""
        if not self.pending:
            return
        index = self.rng.choice(sorted(self.pending))
        self.pending.remove(index)
        for side in self.sides:
            side.waiters[index].close()
            side.waiters[index] = Conn(side.port)

    def abandon_request(self):
        """A client that goes away in the middle of a request."""
        whole = bytes([SET]) + text("/half") + text(b"z" * 100)
        cut = self.rng.randint(1, len(whole) - 1)
        for side in self.sides:
            conn = Conn(side.port)
            conn.send(whole[:cut])
            conn.close()

    def look_at_watchers(self):
        for index in range(len(self.sides[0].watchers)):
            pushed = [side.mark(side.watchers[index], str(index)) for side in self.sides]
            self.ops += 1
            if pushed[0] != pushed[1]:
                raise Differ("watcher %d: muster %r, pytorch %r" %
                             (index, pushed[0][:200], pushed[1][:200]))
            self.notices += len(pushed[0]) > 0

    def delete_waited(self):
        requests = [delete_request(key) for key in WAIT_KEYS]
        for request in requests:
            request.apply(self.keys)
        ours, theirs = (run_batch(side.plain[0], requests, []) for side in self.sides)
        if ours != theirs:
            raise Differ(explain(requests, ours, theirs))
        self.ops += len(requests)

    def turn(self):
        kind = self.rng.random()
        self.batch()
        self.look_at_waiters()
        if kind < 0.5:
            self.start_wait()
        elif kind < 0.52:
            self.abandon_waiter()
        elif kind < 0.54:
            self.abandon_request()
        elif kind < 0.8:
            # Waited keys must go away again, or nobody would ever wait.
            self.delete_waited()
        elif kind < 0.85:
            self.look_at_watchers()

    def look_at_everything(self):
        requests = [Request("num_keys", NUM_KEYS, b"", 8)]
        for key in KEYS + WAIT_KEYS + ["/n1", "/n2", "/n3", "/half", "/absurd"]:
            requests.append(cas_request(key, b"\0no such value\0", b""))
        ours, theirs = (run_batch(side.plain[0], requests, []) for side in self.sides)
        if ours != theirs:
            raise Differ("at the end: " + explain(requests, ours, theirs))


def start_ours(twice, scratch):
    if twice:
        return lib.TorchServer()
    if "--durable" in sys.argv:
        return lib.Muster("--data-dir", scratch, "--sync", "always")
    return lib.Gateway() if "--gateway" in sys.argv else lib.Muster()


def main():
    count = lib.option("ops", 100000)
    seed = lib.option("seed", int(time.time()))
    twice = "--torch-twice" in sys.argv
    print("seed %d, at least %d operations" % (seed, count), flush=True)
    with lib.Scratch() as scratch, lib.TorchServer() as torch, \
            start_ours(twice, scratch) as muster:
        run = Run(seed, Side(muster.port, 6, 4, 20), Side(torch.port, 6, 4, 20))
        start = time.monotonic()
        try:
            while run.ops < count:
                run.turn()
            run.look_at_watchers()
            run.look_at_everything()
        except Differ as error:
            print("FAIL seed %d, after %d operations: %s" % (seed, run.ops, error))
            if not twice:
                print("muster %s, and said:\n%s" % ("lives" if muster.alive() else "is dead",
                                                    muster.output()[-1000:]))
            sys.exit(1)
        print("ok   %d operations had equal replies, %d closes, %d wakes and %d notices among them "
              "(%.1f s, seed %d)" % (run.ops, run.closes, run.wakes, run.notices,
                                     time.monotonic() - start, seed))
        if run.closes < 20 or run.wakes < 20 or run.notices < 20:
            print("FAIL too few closes, wakes or notices for this to be a test")
            sys.exit(1)


main()
