#!/usr/bin/python3
"""kill -9 under load with `--sync always`: nothing acknowledged is lost, nothing half-written seen.

Each of several connections owns its keys and keeps a model of them. When the server dies, it is
known which operations were acknowledged and which were merely sent. After the restart the state of
each connection's keys must be exactly the state after some number of its operations, at least all
acknowledged ones and at most all sent ones: that rules out a loss, a half-written value, a
multi_set of which one half is there, and a later change that overtook an earlier one.

    kill9.py [MUSTER] [--rounds=20] [--seed=N]
"""
import copy
import os
import random
import select
import struct
import sys
import time

import lib
from lib import Conn, i64, text, u64

CONNS = 8
DEPTH = 12
VALUES, QUEUE, COUNTER = 8, "q", "n"


class State:
    """The keys of one connection, as a model."""

    def __init__(self):
        self.values = {}
        self.queue = []

    def __eq__(self, other):
        return self.values == other.values and self.queue == other.queue


class Op:
    """One operation: its bytes, what it does to a State, and the reply it must get."""

    def __init__(self, data, apply):
        self.data = data
        self.apply = apply
        self.reply = None


class Writer:
    def __init__(self, index, rng):
        self.index = index
        self.rng = rng
        self.acked = State()
        self.newest = State()
        self.pending = []
        self.conn = None
        self.done = 0
        self.buffer = b""

    def key(self, name):
        return "/%d/%s" % (self.index, name)

    def value(self):
        kind = self.rng.random()
        size = self.rng.randint(0, 40) if kind < 0.7 else self.rng.randint(0, 3000)
        size = size if kind < 0.97 else self.rng.randint(0, 100000)
        return self.rng.randbytes(size)

    # Operations without an answer are acknowledged by an empty CHECK behind them.

    def make_set(self):
        key, value = self.key(self.rng.randrange(VALUES)), self.value()

        def apply(state):
            state.values[key] = value
            return b"\0"

        return Op(b"\1" + text(key) + text(value) + b"\5" + u64(0), apply)

    def make_multi_set(self):
        pairs = [(self.key(i), self.value()) for i in self.rng.sample(range(VALUES), 3)]

        def apply(state):
            state.values.update(pairs)
            return b"\0"

        body = b"".join(text(key) + text(value) for key, value in pairs)
        return Op(b"\x0b" + u64(len(pairs)) + body + b"\5" + u64(0), apply)

    def make_append(self):
        key, value = self.key("log"), self.value()[:50]

        def apply(state):
            state.values[key] = state.values.get(key, b"") + value
            return b"\0"

        return Op(b"\x09" + text(key) + text(value) + b"\5" + u64(0), apply)

    def make_add(self):
        key = self.key(COUNTER)

        def apply(state):
            state.values[key] = str(int(state.values.get(key, b"0")) + 1).encode()
            return i64(int(state.values[key]))

        return Op(b"\4" + text(key) + i64(1), apply)

    def make_delete(self):
        key = self.key(self.rng.randrange(VALUES) if self.rng.random() < 0.9 else "log")

        def apply(state):
            return i64(0 if state.values.pop(key, None) is None else 1)

        return Op(b"\x08" + text(key), apply)

    def make_cas(self):
        key, desired = self.key("cas"), self.value()[:20]
        expected = self.newest.values.get(key, b"") if self.rng.random() < 0.7 else b"nonsense"

        def apply(state):
            if state.values.get(key, b"") == expected:
                state.values[key] = desired
                return text(desired)
            return text(state.values.get(key, expected))

        return Op(b"\2" + text(key) + text(expected) + text(desired), apply)

    def make_push(self):
        value = self.value()[:200]

        def apply(state):
            state.queue.append(value)
            return b"\0"

        return Op(b"\x0e" + text(self.key(QUEUE)) + text(value) + b"\5" + u64(0), apply)

    def make_pop(self):
        def apply(state):
            before = len(state.queue)
            return i64(before) + (text(state.queue.pop(0)) if before else b"")

        return Op(b"\x0f" + text(self.key(QUEUE)), apply)

    def submit(self):
        make = self.rng.choices(
            [self.make_set, self.make_multi_set, self.make_append, self.make_add, self.make_delete,
             self.make_cas, self.make_push, self.make_pop],
            [30, 10, 10, 20, 10, 10, 12, 8])[0]
        op = make()
        op.reply = op.apply(self.newest)
        self.pending.append(op)
        return op.data

    def fill(self):
        data = b""
        while len(self.pending) < DEPTH:
            data += self.submit()
        if data:
            self.conn.send(data)

    def take(self, more):
        """Bytes from the server: each whole reply acknowledges one operation."""
        self.buffer += more
        while self.pending and len(self.buffer) >= len(self.pending[0].reply):
            op = self.pending.pop(0)
            got, self.buffer = self.buffer[: len(op.reply)], self.buffer[len(op.reply) :]
            if got != op.reply:
                raise AssertionError("connection %d: the reply was %r, expected %r" % (
                    self.index, got[:60], op.reply[:60]))
            op.apply(self.acked)
            self.done += 1

    def drain(self):
        """What the server sent before it died was acknowledged, read or not."""
        self.conn.sock.settimeout(5)
        try:
            while True:
                more = self.conn.sock.recv(1 << 16)
                if not more:
                    break
                self.take(more)
        except OSError:
            pass
        self.conn.close()
        self.buffer = b""

    def observe(self, conn):
        """What the restarted server has of our keys. Reading the queue empties it."""
        state = State()
        names = [self.key(i) for i in range(VALUES)] + [self.key(n)
                                                        for n in ("log", COUNTER, "cas")]
        for name in names:
            if conn.has(name):
                state.values[name] = conn.get(name)
        while True:
            before, element = conn.pop(self.key(QUEUE))
            if not before:
                return state
            state.queue.append(element)

    def verify(self, conn):
        """Returns how many operations beyond the acknowledged ones had reached the disk."""
        observed = self.observe(conn)
        state = copy.deepcopy(self.acked)
        for beyond in range(len(self.pending) + 1):
            if state == observed:
                break
            if beyond < len(self.pending):
                self.pending[beyond].apply(state)
        else:
            raise AssertionError(self.explain(observed))
        observed.queue = []
        self.acked = observed
        self.newest = copy.deepcopy(observed)
        self.pending = []
        return beyond

    def explain(self, observed):
        lines = ["connection %d: the state after the restart is that of no moment" % self.index]
        for key in sorted(set(observed.values) | set(self.acked.values)):
            a, b = self.acked.values.get(key), observed.values.get(key)
            if a != b:
                lines.append("  %s: acknowledged %r, found %r" % (key, a and a[:40], b and b[:40]))
        if observed.queue != self.acked.queue:
            lines.append("  queue: acknowledged %d elements, found %d" %
                         (len(self.acked.queue), len(observed.queue)))
        lines.append("  %d operations were sent and not acknowledged" % len(self.pending))
        return "\n".join(lines)


def start(data_dir):
    return lib.Muster("--data-dir", data_dir, "--sync", "always")


def load(server, writers, seconds):
    """Keeps all writers busy, then kills."""
    for writer in writers:
        writer.conn = Conn(server.port, 2)
        writer.conn.sock.settimeout(lib.PATIENCE)
    end = time.monotonic() + seconds
    by_fd = {writer.conn.sock.fileno(): writer for writer in writers}
    for writer in writers:
        writer.fill()
    while time.monotonic() < end:
        ready, _, _ = select.select(list(by_fd), [], [], max(0, end - time.monotonic()))
        for fd in ready:
            more = by_fd[fd].conn.sock.recv(1 << 16)
            if not more:
                raise AssertionError("the server closed a connection:\n" + server.output())
            by_fd[fd].take(more)
            by_fd[fd].fill()
    server.kill()
    for writer in writers:
        writer.drain()


def kill_while_starting(rng, data_dir):
    """A server that dies before it serves must leave a directory that opens."""
    import signal
    import subprocess

    process = subprocess.Popen([lib.muster_path(), "serve", "--listen", lib.HOST + ":0",
                                "--data-dir", data_dir,
                                "--sync", "always"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    time.sleep(rng.random() * 0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()


def main():
    rounds = lib.option("rounds", 20)
    seed = lib.option("seed", int(time.time()))
    print("seed %d, %d rounds" % (seed, rounds), flush=True)
    rng = random.Random(seed)
    writers = [Writer(i, random.Random(rng.random())) for i in range(CONNS)]
    beyond = 0
    with lib.Scratch() as scratch:
        data_dir = os.path.join(scratch, "data")
        try:
            for number in range(rounds):
                server = start(data_dir)
                try:
                    with Conn(server.port, 2) as conn:
                        beyond += sum(writer.verify(conn) for writer in writers)
                    load(server, writers, rng.uniform(0.02, 0.3))
                finally:
                    if server.alive():
                        server.kill()
                for _ in range(rng.choice([0, 0, 0, 0, 1, 2])):
                    kill_while_starting(rng, data_dir)
            server = start(data_dir)
            with Conn(server.port, 2) as conn:
                beyond += sum(writer.verify(conn) for writer in writers)
            code = server.stop()
        except (AssertionError, lib.EarlyEnd) as error:
            print("FAIL seed %d, round %d: %s" % (seed, number + 1, error))
            sys.exit(1)
    done = sum(writer.done for writer in writers)
    print("ok   %d times kill -9 under load: %d operations acknowledged, none lost, %d more on "
          "disk unacknowledged, nothing half-written (seed %d)" % (rounds, done, beyond, seed))
    if done < rounds * 10:
        print("FAIL too little was acknowledged for this to be a test")
        sys.exit(1)
    if code != 0:
        print("FAIL the last server was to end by SIGTERM and ended with %s" % code)
        sys.exit(1)


main()
