#!/usr/bin/python3
"""One client cannot take the server from the others: readers of large values, which read slowly or
not at all, beside a client that does nothing but small GETs.

    store_fair.py [MUSTER] [--readers=40] [--seconds=3]
"""
import socket
import subprocess
import sys
import threading
import time

import lib
from lib import Conn, Muster, text, texts

MIB = 1 << 20
VALUE = 8 * MIB
NAMED = 6  # times one MULTI_GET names the value


def rss_mib(pid):
    with open("/proc/%d/status" % pid) as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


def answer_len():
    return NAMED * (8 + VALUE)


def latencies(conn, seconds):
    """How long each of an honest client's GETs took, in ms, sorted."""
    took = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        assert conn.get("/small") == b"small"
        took.append((time.monotonic() - began) * 1000)
    return sorted(took)


def summary(took):
    return "%d GETs, p50 %.3f ms, p99 %.3f ms, worst %.1f ms" % (
        len(took), took[len(took) // 2], took[len(took) * 99 // 100], took[-1])


def drain(conn, count, pause):
    """Reads an answer, resting after each piece; how much came."""
    came = 0
    conn.sock.settimeout(lib.PATIENCE)
    while came < count:
        piece = conn.sock.recv(min(MIB, count - came))
        if not piece:
            break
        came += len(piece)
        time.sleep(pause)
    return came


class Fair:
    def __init__(self, checks, generation):
        self.checks = checks
        self.generation = generation
        self.readers = lib.option("readers", 40)
        self.seconds = lib.option("seconds", 3.0)

    def say(self, what):
        return "generation %d: %s" % (self.generation, what)

    def attack(self, server):
        """Readers that have asked and do not read."""
        conns = []
        for _ in range(self.readers):
            conn = Conn(server.port, self.generation)
            conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            conn.send(conn.op("multi_get", texts(["/large"] * NAMED)))
            conns.append(conn)
        return conns

    def run(self):
        with Muster() as server, Conn(server.port, self.generation) as honest:
            honest.set("/small", "small")
            honest.set_acked("/large", b"\x5a" * VALUE)
            alone = latencies(honest, self.seconds)
            before = rss_mib(server.pid)
            self.checks.note(self.say("alone: " + summary(alone)))

            conns = self.attack(server)
            silent = latencies(honest, self.seconds)
            grown = rss_mib(server.pid) - before
            self.checks.note(self.say("beside %d readers that do not read: %s; the server grew by "
                                      "%.0f MiB" % (self.readers, summary(silent), grown)))
            self.checks.ok(grown < 64, self.say("reads of one value share it"),
                           "grew by %.0f MiB" % grown)
            self.checks.ok(silent[-1] < 1000, self.say("an honest client is not kept waiting"),
                           "%.0f ms" % silent[-1])

            came = []
            threads = [threading.Thread(target=lambda c=c: came.append(
                drain(c, answer_len(), 0.02))) for c in conns]
            for thread in threads:
                thread.start()
            slow = latencies(honest, self.seconds)
            self.checks.note(self.say("beside the same reading slowly: " + summary(slow)))
            for thread in threads:
                thread.join()
            self.checks.equal(came, [answer_len()] * self.readers,
                              self.say("each of them has its whole answer"))
            for conn in conns:
                conn.close()

    def replaced(self):
        """What was asked for is answered as it was, whatever becomes of the value."""
        with Muster() as server, Conn(server.port, self.generation) as honest:
            honest.set_acked("/large", b"\x5a" * VALUE)
            conns = self.attack(server)
            assert all(conn.recv(8) == lib.u64(VALUE) for conn in conns)
            honest.set_acked("/large", b"\xa5" * VALUE)
            honest.send(honest.op("delete", text("/large")))
            honest.recv_i64()
            good = 0
            for conn in conns[:4]:
                conn.buffer = lib.u64(VALUE) + conn.buffer
                good += sum(conn.recv_text() == b"\x5a" * VALUE for _ in range(NAMED))
            self.checks.equal(good, 4 * NAMED, self.say("replaced values are sent as they were"))
            for conn in conns:
                conn.close()

    def heaviest(self):
        """Where the buffers of all are over their limit, it is who holds the most that goes."""
        with Muster("--buffers", "26M") as server, Conn(server.port, self.generation) as honest:
            honest.set_acked("/small", b"small")
            hoarders = [Conn(server.port, self.generation) for _ in range(2)]
            piece = text("/k") + text(b"\x5a" * 7 * MIB)
            hoarders[0].send(hoarders[0].op("multi_set", lib.u64(6)) + piece * 2)
            hoarders[1].send(hoarders[1].op("multi_set", lib.u64(6)) + piece)
            try:
                honest.set_acked("/medium", b"\xa5" * 4 * MIB)
                got = honest.get("/small")
            except lib.Closed:
                got = "closed"
            self.checks.equal(got, b"small", self.say("who came last and holds little stays"))
            self.checks.ok(hoarders[0].closed(), self.say("who holds the most goes"))
            self.checks.ok(hoarders[1].silent(), self.say("the next one stays"))
            for hoarder in hoarders:
                hoarder.close()

    def stopped(self):
        """Of those, who has read nothing for a while goes before one who is heard in this moment and
        holds more."""
        with Muster("--buffers", "26M") as server, Conn(server.port, self.generation) as honest:
            readers = [Conn(server.port, self.generation) for _ in range(5)]
            for i, reader in enumerate(readers):
                honest.set_acked("/large", bytes([i]) * 5 * MIB)
                reader.send(reader.op("multi_get", texts(["/large"])))
                assert reader.recv(8) == lib.u64(5 * MIB)
            time.sleep(1)
            written = 0
            for _ in range(3):
                try:
                    honest.set_acked("/medium", b"\xa5" * 7 * MIB)
                    written += 1
                except lib.Closed:
                    break
            self.checks.equal(written, 3, self.say("who writes beside those who stopped to read"))
            for reader in readers:
                reader.close()


class Valve:
    """Between native clients and a server: what clients say goes through, what they are told only up
    to a few bytes until it is opened."""

    def __init__(self, port):
        self.behind = port
        self.shut = 0
        self.opened = threading.Event()
        self.listener = socket.create_server((lib.HOST, 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                front, _ = self.listener.accept()
            except OSError:
                return
            back = socket.socket()
            back.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            back.connect((lib.HOST, self.behind))
            for source, sink, shut in ((front, back, False), (back, front, True)):
                threading.Thread(target=self.copy, args=(source, sink, shut), daemon=True).start()

    def copy(self, source, sink, shut):
        passed = 0
        try:
            while True:
                if shut and passed > 4096 and not self.opened.is_set():
                    self.shut += 1
                    self.opened.wait()
                piece = source.recv(65536)
                if not piece:
                    break
                sink.sendall(piece)
                passed += len(piece)
        except OSError:
            pass
        for sock in (source, sink):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def native(checks, readers=12):
    with Muster() as server, Conn(server.port, 2) as honest:
        honest.set("/small", "small")
        honest.set_acked("/large", b"\x5a" * VALUE)
        before = rss_mib(server.pid)
        valve = Valve(server.port)
        clients = [subprocess.Popen(
            [lib.muster_path(), "kv", "--store", "tcp://%s:%d" % (lib.HOST, valve.port), "mget"] +
            ["large"] * NAMED, stdout=subprocess.PIPE, preexec_fn=lib.die_with_parent)
            for _ in range(readers)]
        lib.wait_until(lambda: valve.shut >= readers, "the readers to be held back")
        took = latencies(honest, 2)
        grown = rss_mib(server.pid) - before
        checks.note("native: beside %d readers that do not read: %s; the server grew by %.0f MiB" %
                    (readers, summary(took), grown))
        checks.ok(grown < 64, "native: reads of one value share it", "grew by %.0f MiB" % grown)
        honest.set_acked("/large", b"\xa5" * VALUE)
        valve.opened.set()
        value = b"\x5a" * VALUE + b"\n"
        good = [client.communicate(timeout=60)[0] == value * NAMED for client in clients]
        checks.equal(good, [True] * readers, "native: each has its whole answer, as it was")
        valve.close()


def native_on_disk(checks, readers=8):
    """Answers that wait for the disk share their values as well, and are whole."""
    with lib.Scratch() as directory, Muster("--data-dir", directory) as server, \
            Conn(server.port, 2) as honest:
        honest.set_acked("/large", b"\x5a" * VALUE)
        clients = [subprocess.Popen(
            [lib.muster_path(), "kv", "--store", "tcp://%s:%d" % (lib.HOST, server.port), "mget"] +
            ["large"] * NAMED, stdout=subprocess.PIPE, preexec_fn=lib.die_with_parent)
            for _ in range(readers)]
        stop = threading.Event()

        def write():
            while not stop.is_set():
                honest.add("/n", 1)

        writer = threading.Thread(target=write)
        writer.start()
        value = b"\x5a" * VALUE + b"\n"
        good = [client.communicate(timeout=60)[0] == value * NAMED for client in clients]
        stop.set()
        writer.join()
        checks.equal(good, [True] * readers, "native, on disk: each has its whole answer")


def main():
    checks = lib.Checks()
    for generation in (1, 2):
        fair = Fair(checks, generation)
        fair.run()
        fair.replaced()
        fair.heaviest()
        fair.stopped()
    native(checks)
    native_on_disk(checks)
    checks.done()


if __name__ == "__main__":
    sys.exit(main())
