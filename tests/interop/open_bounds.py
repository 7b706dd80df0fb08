#!/usr/bin/python3
"""Opening a store has bounds, whoever answers: servers that greet and then hang, or hang up, do not
hold a client for longer than it was told to try, are not dialled without a rest, and are named.

    open_bounds.py [MUSTER] [--only=TEXT]
"""
import socket
import sys
import threading
import time

import lib
from lib import HOST, Muster, run_muster

CONNECT_S = 3
checks = lib.Checks()


class Fake:
    """A listener that counts its connections and hands each to `serve` on a thread."""

    def __init__(self, serve):
        self.serve = serve
        self.count = 0
        self.listener = socket.create_server((HOST, 0), backlog=512)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            self.count += 1
            threading.Thread(target=self.guard, args=(conn,), daemon=True).start()

    def guard(self, conn):
        with conn:
            try:
                self.serve(conn)
            except OSError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def read_forever(conn):
    while conn.recv(65536):
        pass


def greet_as_torch2(conn):
    """VALIDATE has no answer, PING has its nonce; what comes then has none."""
    got = b""
    while len(got) < 10:
        more = conn.recv(4096)
        if not more:
            return
        got += more
        if got[0] != 0:
            break
    if got[0] == 0:
        conn.sendall(got[6:10])
    read_forever(conn)


def greet_as_torch1(conn):
    """NUM_KEYS alone is answered; PyTorch 1.13 hangs up on what it does not know."""
    got = conn.recv(4096)
    if got[:1] == bytes([lib.OPS1["num_keys"]]):
        conn.sendall(lib.i64(0))
        read_forever(conn)


def greet_as_muster(server, then_close):
    """The greeting of a real server, and nothing behind it."""
    def serve(conn):
        with socket.create_connection((HOST, server.port), 20) as behind:
            behind.sendall(conn.recv(4096))
            conn.sendall(behind.recv(4096))
            if not then_close:
                read_forever(conn)
    return serve


def check_open(serve, what, dials_max):
    with Fake(serve) as fake:
        began = time.monotonic()
        code, _, error = run_muster("kv", "--store", "tcp://%s:%d" % (HOST, fake.port),
                                    "--connect", str(CONNECT_S), "--timeout", "1m", "get", "k",
                                    patience=55)
        took = time.monotonic() - began
        checks.note("%s: %.1f s, %d connections: %s" % (what, took, fake.count, error.strip()))
        checks.ok(code != 0 and took < CONNECT_S + 20, what + ": it ends in time", took)
        checks.ok(fake.count <= dials_max, what + ": it is not dialled without a rest", fake.count)
        checks.ok("%s:%d" % (HOST, fake.port) in error and "answer" in error,
                  what + ": the error names the address and what was awaited", error)


def test_pytorch_2_that_hangs():
    check_open(greet_as_torch2, "PyTorch 2's greeting, then nothing", 8)


def test_pytorch_1_that_hangs():
    check_open(greet_as_torch1, "PyTorch 1.13's greeting, then nothing", 8)


def test_muster_that_hangs():
    with Muster() as server:
        check_open(greet_as_muster(server, False), "muster's greeting, then nothing", 8)


def test_muster_that_hangs_up():
    with Muster() as server:
        check_open(greet_as_muster(server, True), "muster's greeting, then the end", 16)


def main():
    checks.run_tests(globals())
    checks.done()


if __name__ == "__main__":
    sys.exit(main())
