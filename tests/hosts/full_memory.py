#!/usr/bin/python3
"""The server of deploy/kubernetes in the memory that its manifest gives it, filled to the brim: changes
are refused with the documented error, what is there is read, and nothing is killed.

    full_memory.py [MUSTER] [--only=TEXT]
"""
import os
import re
import socket
import sys

from drill import make_token
from rig import HERE, Checks, Rig, muster_path, wait_until

sys.path.insert(0, os.path.join(HERE, "..", "interop"))
import lib  # noqa: E402

MUSTER = muster_path()
MIB = 1 << 20
PORT = 29400
checks = Checks()


def manifest_memory():
    """What the server may have, in bytes."""
    with open(os.path.join(HERE, "..", "..", "deploy", "kubernetes", "server.yaml")) as file:
        return int(re.search(r"limits:\n +memory: (\d+)Mi", file.read())[1]) * MIB


# --- the client, on a host of its own ---------------------------------------------------------


def fill(host, size):
    """Writes until no connection is let write any more; prints what is in, and reads some of it."""
    lib.HOST = host
    value = b"\x5a" * size
    written = 0
    refused = 0
    conns = [lib.Conn(PORT, 2, host=host, patience=60) for _ in range(4)]
    while refused < 8:
        for i, conn in enumerate(conns):
            try:
                batch = max(1, 65536 // size)
                conn.send(b"".join(conn.op("set", lib.text("/k%d" % (written + n)) + lib.text(value))
                                   for n in range(batch)) + conn.op("check", lib.u64(0)))
                assert conn.recv(1) == lib.READY
                written += batch
            except lib.Closed:
                refused += 1
                conns[i] = lib.Conn(PORT, 2, host=host, patience=60)
    with lib.Conn(PORT, 2, host=host, patience=60) as conn:
        good = sum(conn.get("/k%d" % n) == value for n in range(0, written, max(1, written // 50)))
        silent = [lib.Conn(PORT, 2, host=host, patience=60) for _ in range(20)]
        for c in silent:  # and some who ask for much and read nothing
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            c.send(c.op("multi_get", lib.texts(["/k%d" % n for n in range(min(written, 64))])))
        good += conn.get("/k0") == value
    print("filled %d %d" % (written, good), flush=True)


# --- the test ---------------------------------------------------------------------------------


def run(size, on_disk=False):
    limit = manifest_memory()
    with Rig(2) as rig:
        server_host, client_host = rig.hosts
        credential = make_token(rig)
        server = server_host.start(
            MUSTER, "serve", "--listen", "0.0.0.0:%d" % PORT, *credential["node0"], "--allow",
            "10.78.0.0/24", *(["--data-dir", os.path.join(rig.path, "data")] if on_disk else []),
            memory=limit)
        server.says("%d" % PORT)
        code, out, err = client_host.run(
            sys.executable, os.path.abspath(__file__), "--fill=%s,%d" % (
                server_host.address, size), patience=100)
        filled = re.search(r"filled (\d+) (\d+)", out)
        what = "values of %d bytes" % size
        if not checks.ok(code == 0 and filled, what + ": the store is filled", (code, out, err)):
            checks.ok(server.popen.poll() is None, what + ": the server lives", server.output())
            return
        stored = int(filled[1]) * size
        checks.note("%s: %.0f MiB of %.0f, at most %.0f MiB in use" % (
            what, stored / MIB, limit / MIB, server.memory_peak() / MIB))
        checks.ok(server.popen.poll() is None, what + ": the server lives")
        checks.ok(int(filled[2]) > min(50, int(filled[1])), what + ": what is in can be read", filled[2])
        checks.ok(stored > limit / 8, what + ": there is room for a good part", stored)
        wait_until(lambda: "memory limit" in server.output(), "the log to name the limit")
        code, _, err = client_host.run(MUSTER, "kv", "--store", "tcp://%s:%d" % (
            server_host.address, PORT), *credential["node1"], "set", "more", "-",
            input=b"x" * max(size, MIB))
        checks.ok(code != 0 and "memory limit" in err, what + ": the error says so", err)


def test_small_values():
    run(64)


def test_pages():
    run(5000)


def test_large_values():
    run(8 * MIB)


def test_large_values_on_disk():
    run(3 * MIB, on_disk=True)


def main():
    for arg in sys.argv[1:]:
        if arg.startswith("--fill="):
            host, size = arg[7:].split(",")
            fill(host, int(size))
            return
    checks.run_tests(globals())
    checks.done()


if __name__ == "__main__":
    sys.exit(main())
