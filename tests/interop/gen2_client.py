#!/usr/bin/python3
"""A client of PyTorch's second generation (2.1 onward), written by hand, on our server.

What PyTorch 2.11's default server answers, asked here again. Where its answer is a defect, ours is
the right thing, and says so below.

With --backed the server keeps its keys in an etcd that takes requests large enough; with --gateway
it passes everything on to another.

    gen2_client.py [MUSTER] [--backed | --gateway]
"""
import contextlib
import struct
import sys

import etcd_lib
import lib
from lib import Conn, MAGIC, i64, text, texts, u32, u64

MIB = 1 << 20


class Asked:
    def __init__(self, checks, port, backed):
        self.checks = checks
        self.port = port
        self.backed = backed
        self.names = 0

    def key(self):
        """A key nobody used yet."""
        self.names += 1
        return "/key %d" % self.names

    def conn(self, **options):
        return Conn(self.port, 2, **options)

    # --- the start of a connection ---

    def handshake(self):
        with Conn(self.port, 2, handshake=False) as c:
            c.send(b"\0" + MAGIC + b"\x0d" + u32(0x279))
            self.checks.equal(c.recv(4), u32(0x279), "VALIDATE and PING in one segment")
        with Conn(self.port, 2, handshake=False) as c:
            for byte in b"\0" + MAGIC + b"\x0d" + u32(7):
                c.send(bytes([byte]))
            self.checks.equal(c.recv(4), u32(7), "VALIDATE and PING byte by byte")
        with Conn(self.port, 2, handshake=False) as c:
            c.send(b"\0" + MAGIC)
            c.set("/v", "1")
            self.checks.equal(c.get("/v"), b"1", "VALIDATE without PING")
        with self.conn() as c:
            c.send(b"\0" + MAGIC)
            self.checks.ok(c.closed(), "VALIDATE a second time: closed")

    def validate_alone(self):
        with Conn(self.port, 2, handshake=False) as c:
            c.send(b"\0" + MAGIC)
            self.checks.ok(c.silent(), "VALIDATE has no answer")

    # --- values ---

    def values(self):
        k, n = self.key(), self.key()
        with self.conn() as c:
            c.set(k, "v")
            self.checks.equal(c.get(k), b"v", "SET, GET")
            self.checks.equal(c.get(self.key()), b"", "GET of a missing key: an empty value")
            self.checks.equal(c.add(n, 5), 5, "ADD creates")
            self.checks.equal(c.add(n, -2), 3, "ADD of a negative number")
            c.set(n, " 7")
            self.checks.equal(c.add(n, 1), 8, "ADD on ' 7'")
            c.set(n, str(2**63 - 1))
            self.checks.equal(c.add(n, 1), -(2**63), "ADD past the largest number wraps")
            self.checks.equal(c.check(k, n), b"\0", "CHECK of what is there")
            self.checks.equal(c.check(k, self.key()), b"\1", "CHECK of what is not all there")
            self.checks.equal(c.check(), b"\0", "CHECK of nothing")
            self.checks.equal(c.delete(k), 1, "DELETE_KEY")
            self.checks.equal(c.delete(k), 0, "DELETE_KEY of nothing")
            c.append(k, "xy")
            c.append(k, "z")
            self.checks.equal(c.get(k), b"xyz", "APPEND creates and appends")
            c.set(k, "")
            self.checks.equal(c.get(k), b"", "an empty value")

    def compare_set(self):
        k = self.key()
        with self.conn() as c:
            self.checks.equal(c.cas(k, "x", "y"), b"x",
                              "COMPARE_SET on nothing answers what was expected")
            self.checks.equal(c.check(k), b"\1", "and creates nothing")
            self.checks.equal(c.cas(k, "", "a"), b"a", "COMPARE_SET creates")
            self.checks.equal(c.cas(k, "a", "b"), b"b", "COMPARE_SET that matches")
            self.checks.equal(c.cas(k, "zzz", "c"), b"b", "COMPARE_SET that does not")
            c.set(k, "")
            self.checks.equal(c.cas(k, "", "d"), b"d", "COMPARE_SET on an empty value")

    def several(self):
        m1, m2, missing = self.key(), self.key(), self.key()
        with self.conn() as c:
            c.multi_set([(m1, "1"), (m2, "22")])
            self.checks.equal(c.multi_get([m1, m2]), [b"1", b"22"], "MULTI_SET, MULTI_GET")
            self.checks.equal(c.multi_get([m1, missing, m2]), [b"1", b"", b"22"],
                              "MULTI_GET with one missing: an empty value in its place")
            self.checks.equal(c.multi_get([]), [], "MULTI_GET of nothing")
            c.multi_set([])
            c.multi_set([(m1, "a"), (m1, "b")])
            self.checks.equal(c.get(m1), b"b", "MULTI_SET of one key twice: the last one wins")

    # --- waiting ---

    def waiting(self):
        with self.conn() as waiter, self.conn() as c:
            for name, make in (("SET", lambda k: c.set(k, "1")), ("ADD", lambda k: c.add(k, 1)),
                               ("APPEND", lambda k: c.append(k, "1")),
                               ("MULTI_SET", lambda k: c.multi_set([(k, "1")])),
                               ("COMPARE_SET", lambda k: c.cas(k, "", "1"))):
                k = self.key()
                self.checks.ok(waiter.start_wait(k),
                               "WAIT is pending, a CHECK behind it is answered ahead")
                make(k)
                self.checks.ok(waiter.woken(), "a waiter is woken by " + name)
            k = self.key()
            waiter.start_wait(k)
            c.cas(k, "something", "1")
            self.checks.ok(waiter.still_waiting(),
                           "a COMPARE_SET that fails does not wake (it does in PyTorch, a defect)")
            c.set(k, "1")
            self.checks.ok(waiter.woken(), "the SET behind it does")
            waiter.send(waiter.op("wait", u64(0)))
            self.checks.equal(waiter.recv(1), b"\0", "WAIT with an empty list is answered at once")

    def waiting_for_several(self):
        a, b, c3 = self.key(), self.key(), self.key()
        with self.conn() as waiter, self.conn() as c:
            c.set_acked(a, "1")
            waiter.start_wait(a, b, c3, b)
            c.set_acked(b, "1")
            self.checks.ok(waiter.still_waiting(), "one of two missing keys is not enough")
            c.delete(b)
            c.set(c3, "1")
            self.checks.ok(waiter.woken(), "a key that came and went counts")

    def cancelling(self):
        k = self.key()
        with self.conn() as waiter, self.conn() as c:
            waiter.cancel()
            self.checks.equal(waiter.recv(1), b"\1", "CANCEL_WAIT with no wait pending")
            waiter.start_wait(k)
            waiter.cancel()
            self.checks.equal(waiter.recv(1), b"\1", "CANCEL_WAIT of a pending wait")
            c.set_acked(k, "1")
            self.checks.equal(waiter.get(k), b"1", "no stray byte comes when the key comes later")
            gone = self.key()
            waiter.start_wait(gone)
            waiter.close()
            c.set_acked(gone, "1")
            self.checks.equal(c.get(gone), b"1", "a waiter that went away disturbs nobody")

    def barriers(self):
        """PyTorch's client cancels a barrier that has timed out, and waits until that is answered."""
        k, other = self.key(), self.key()
        with self.conn() as waiter, self.conn() as c:
            waiter.send(waiter.op("meet", text(k) + u64(2)))
            self.checks.ok(waiter.still_waiting(), "BARRIER is pending, a CHECK behind it is answered ahead")
            c.send(c.op("meet", text(k) + u64(2)))
            self.checks.equal((waiter.recv(1), c.recv(1)), (b"\0", b"\0"), "two meet")
            waiter.send(waiter.op("meet", text(other) + u64(2)))
            waiter.cancel()
            self.checks.equal(waiter.recv(1), b"\1", "CANCEL_WAIT of a pending BARRIER")
            waiter.set(k, "1")
            self.checks.equal(waiter.get(k), b"1", "and its client goes on")

    # --- queues and lists ---

    def queues(self):
        q, plain = self.key(), self.key()
        with self.conn() as c:
            keys = c.num_keys()
            c.push(q, "e1")
            c.push(q, "e22")
            self.checks.equal(c.queue_len(q), 2, "QUEUE_LEN")
            self.checks.equal(c.check(q), b"\0", "CHECK of a queue that holds something")
            self.checks.equal(c.num_keys(), keys, "GETNUMKEYS does not count queues")
            self.checks.equal(c.get(q), b"", "GET of a queue's key: an empty value")
            self.checks.equal(c.delete(q), 0, "DELETE_KEY of a queue's key: 0")
            self.checks.equal(c.pop(q), (2, b"e1"), "QUEUE_POP: the oldest")
            self.checks.equal(c.pop(q), (1, b"e22"), "QUEUE_POP: the last")
            self.checks.equal(c.pop(q), (0, None), "QUEUE_POP of an empty queue")
            self.checks.equal(c.check(q), b"\1", "CHECK of a drained queue")
            self.checks.equal(c.queue_len(self.key()), 0, "QUEUE_LEN of nothing")
            c.set(plain, "1")
            self.checks.equal(c.pop(plain), (0, None), "QUEUE_POP of a plain key")
            c.push(q, "")
            self.checks.equal(c.pop(q), (1, b""), "an empty element")

    def queue_waiting(self):
        q = self.key()
        with self.conn() as w1, self.conn() as w2, self.conn() as c:
            w1.start_wait(q)
            w2.start_wait(q)
            c.push(q, "a")
            c.barrier()
            states = [w1.still_waiting(), w2.still_waiting()]
            self.checks.equal(states, [False, True],
                              "one push wakes one waiter (the first come; in PyTorch the last)")
            c.push(q, "b")
            self.checks.ok(w2.woken(), "the second push wakes the other")

    def queue_workers(self):
        """As PyTorch's queue_pop of several workers: each waits, and pops when it is woken. Who is woken
        without an element would get an error."""
        q = self.key()
        with contextlib.ExitStack() as stack:
            waiters = [stack.enter_context(self.conn()) for _ in range(5)]
            c = stack.enter_context(self.conn())
            for w in waiters:
                w.start_wait(q)
            for value in ("a", "b", "c"):
                c.push(q, value)
                awake = lib.wait_until(lambda: [w for w in waiters if not w.silent(0.05)], "a worker to wake")
                self.checks.equal(len(awake), 1, "a push wakes one worker")
                self.checks.ok(awake[0].woken(), "and tells it so")
                self.checks.equal(awake[0].pop(q), (1, value.encode()), "which pops the element")
                waiters.remove(awake[0])
                self.checks.equal([w.still_waiting() for w in waiters], [True] * len(waiters),
                                  "and the others wait on")
            c.set(q, "1")
            self.checks.equal([w.woken() for w in waiters], [True] * len(waiters), "a SET wakes all")

    def listing(self):
        names = [self.key() for _ in range(3)]
        with self.conn() as c:
            before = set(c.list_keys())
            for name in names:
                c.set(name, "1")
            c.push(self.key(), "in a queue")
            after = c.list_keys()
            self.checks.equal(set(after) - before, {name.encode() for name in names},
                              "LIST_KEYS: the new keys, queues left out")
            self.checks.equal(len(after), len(set(after)), "LIST_KEYS: none twice")
            self.checks.equal(c.num_keys(), len(after), "GETNUMKEYS agrees")

    # --- what costs the connection ---

    def fatal(self, what, data, generation=2):
        with Conn(self.port, generation) as c:
            try:
                c.send(data)
                closed = c.closed()
            except lib.Closed:
                closed = True
            self.checks.ok(closed, what + ": closed")

    def refusals(self):
        for opcode in (19, 42, 127, 255):
            self.fatal("unknown opcode %d" % opcode, bytes([opcode]))
        k = self.key()
        with self.conn() as c:
            c.set_acked(k, "abc")
        self.fatal("ADD on 'abc'", b"\4" + text(k) + i64(1))
        for length in (2**62, 2**63, 2**64 - 1):
            self.fatal("a key of %#x bytes" % length, b"\3" + u64(length))
            self.fatal("a value of %#x bytes" % length, b"\1" + text(k) + u64(length))
            self.fatal("a MULTI_SET of %#x pairs" % length, b"\x0b" + u64(length))
        self.fatal("WAIT naming 131,073 keys", b"\6" + u64(131073))
        self.fatal("MULTI_GET naming 131,073 keys", b"\x0a" + u64(131073))
        self.fatal("a key of 8193 bytes", b"\1" + text("k" * 8193) + text("v"))
        self.fatal("a value of 8 MiB and one byte",
                   b"\1" + text(k) + u64(8 * MIB + 1) + b"x" * 65536)
        with self.conn() as c:
            self.checks.equal(c.get(k), b"abc", "and nobody else felt it")

    def limits(self):
        k = "/" + "k" * 8191
        with self.conn() as c:
            c.set_acked(k, "1")
            self.checks.equal(c.get(k), b"1", "a key of 8192 bytes is taken")
            big = self.key()
            value = struct.pack("<Q", 0x0123456789abcdef) * MIB
            c.set_acked(big, value)
            self.checks.ok(c.get(big) == value, "a value of 8 MiB is taken and comes back")
            c.delete(big)
            keys = ["/many/%d" % i for i in range(131072)]
            c.send(c.op("check", texts(keys)))
            self.checks.equal(c.recv(1), b"\1", "CHECK of 131,072 keys is taken")

    # --- streams ---

    def pipelining(self):
        k = self.key()
        count = 5000
        with self.conn() as c:
            c.send(b"".join(c.op("add", text(k) + i64(1)) for _ in range(count)))
            sums = [c.recv_i64() for _ in range(count)]
            self.checks.equal(sums, list(range(1, count + 1)),
                              "%d requests in one go, answered in order" % count)

    def dribble(self):
        k = self.key()
        with self.conn() as slow, self.conn() as c:
            data = slow.op("set", text(k) + text("slow")) + slow.op("get", text(k))
            for i in range(len(data) - 1):
                slow.send(data[i : i + 1])
                if i % 10 == 0:
                    c.add(self.key(), 1)
            self.checks.ok(slow.silent(0.02),
                           "a half-sent request has no answer, others are served meanwhile")
            slow.send(data[-1:])
            self.checks.equal(slow.recv_text(), b"slow", "one byte at a time")

    def both_generations(self):
        k = self.key()
        with Conn(self.port, 1) as old, self.conn() as new:
            old.set_acked(k, "from 1.13")
            self.checks.equal(new.get(k), b"from 1.13", "what a 1.13 client set, a 2.x client gets")
            waited = self.key()
            old.start_wait(waited)
            new.set(waited, "1")
            self.checks.ok(old.woken(), "a 1.13 client's wait is ended by a 2.x client")
            watched = self.key()
            old.send(old.op("watch", text(watched)))
            self.checks.equal(old.recv(1), b"\3", "WATCH_KEY of generation 1")
            new.set(watched, "one")
            self.checks.equal(self.notice(old), (b"\1", watched.encode(), b"", b"one"),
                              "its notice of a creation")
            new.append(watched, "two")
            # etcd tells of a new value, and not how it came to be.
            self.checks.equal(self.notice(old),
                              (b"\0", watched.encode(), b"one", b"onetwo") if self.backed else
                              (b"\4", watched.encode(), b"", b"two"), "its notice of an append")

    @staticmethod
    def notice(conn):
        """Kind, key, old value, new value."""
        return conn.recv(1), conn.recv_text(), conn.recv_text(), conn.recv_text()

    def old_timeout(self):
        """A 1.13 client cannot say that its wait timed out; its next request says so. A late answer
        would put it off by one byte for ever, as it does with PyTorch's server."""
        k = self.key()
        with Conn(self.port, 1) as old, self.conn() as new:
            old.start_wait(k)
            self.checks.equal(old.add(k + "/n", 1), 1,
                              "generation 1: a request behind a WAIT is answered")
            new.set_acked(k, "late")
            self.checks.equal(old.get(k), b"late",
                              "and no stray byte comes when the key comes later")

    def old_extended(self):
        """PyTorch 2.0: the first generation's numbers with append, multi_get, multi_set, cancel."""
        a, b = self.key(), self.key()
        with Conn(self.port, 1) as c:
            c.append(a, "1")
            c.append(a, "2")
            c.multi_set([(b, "x")])
            self.checks.equal(c.multi_get([a, b]), [b"12", b"x"],
                              "generation 1: APPEND, MULTI_SET, MULTI_GET")
            c.start_wait(self.key())
            c.cancel()
            self.checks.equal(c.recv(1), b"\1", "generation 1: CANCEL_WAIT")
        self.fatal("generation 1: GET of a missing key", b"\2" + text(self.key()), 1)


@contextlib.contextmanager
def start(backed):
    if not backed:
        with lib.Gateway() if "--gateway" in sys.argv else lib.Muster() as server:
            yield server
        return
    with etcd_lib.Etcd(more=["--max-request-bytes", str(16 * MIB)]) as etcd, \
            lib.Muster("--backing", "etcd://%s/gen2" % etcd.authority()) as server:
        yield server


def main():
    checks = lib.Checks()
    backed = "--backed" in sys.argv
    with start(backed) as server:
        asked = Asked(checks, server.port, backed)
        for test in (asked.handshake, asked.validate_alone, asked.values, asked.compare_set,
                     asked.several,
                     asked.waiting, asked.waiting_for_several, asked.cancelling, asked.barriers, asked.queues,
                     asked.queue_waiting, asked.queue_workers, asked.listing, asked.refusals, asked.limits,
                     asked.pipelining,
                     asked.dribble, asked.both_generations, asked.old_timeout, asked.old_extended):
            try:
                test()
            except (lib.Closed, lib.Silent, AssertionError, OSError) as error:
                checks.ok(False, test.__name__, "ended early: %r" % error)
        checks.ok(server.alive(), "the server is still there")
    checks.done()


main()
