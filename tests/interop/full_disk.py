#!/usr/bin/python3
"""A data directory that fills up stops changes with an error, and nothing else: reads, rendezvous
and the process go on, and changes are taken again when there is room. The directory is a small
tmpfs in a mount namespace of the test's own.

    full_disk.py [MUSTER] [--only=TEXT]
"""
import ctypes
import os
import re
import sys
import urllib.request

import lib
from lib import HOST, Closed, Conn, Muster, Scratch, run_muster, wait_until
from rdzv_nodes import Fleet, endpoint_of

MIB = 1 << 20
CLONE_NEWNS = 0x00020000
MS_REC_PRIVATE = 0x4000 | 0x40000
checks = lib.Checks()


def own_mounts():
    """Whether this process has mounts of its own from now on."""
    libc = ctypes.CDLL(None)
    return libc.unshare(CLONE_NEWNS) == 0 and \
        libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) == 0


class Disk(Scratch):
    """A directory with room for 8 MiB, and ways to fill it and to make room again."""

    def __enter__(self):
        assert ctypes.CDLL(None).mount(b"tmpfs", self.path.encode(), b"tmpfs", 0, b"size=8m") == 0
        return self

    def __exit__(self, *_):
        ctypes.CDLL(None).umount2(self.path.encode(), 2)
        super().__exit__()

    def fill(self):
        with open(self.path + "/filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 4096)
            except OSError:
                file.truncate(max(0, file.tell() - MIB))  # for some changes

    def make_room(self):
        os.unlink(self.path + "/filler")


class Server(Muster):
    """`muster serve` with its keys there."""

    def __init__(self, disk, *args):
        token = os.path.join(disk.path, "token")
        if not os.path.exists(token):
            run_muster("keygen", "token", token)
        self.key = run_muster("keygen", "page", token)[1].decode().strip()
        super().__init__("--data-dir", disk.path, "--http", HOST + ":0", "--token-file", token,
                         *args)
        self.page = re.search(r"status at (http://\S+/)", wait_until(
            lambda: self.output() if "status at" in self.output() else None, "the page"))[1]

    def ask(self, path, with_key=True):
        request = urllib.request.Request(self.page + path)
        if with_key:
            request.add_header("Authorization", "Bearer " + self.key)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()

    def full(self):
        return "muster_disk_full 1" in self.ask("metrics")[1]


def kv(server, *args):
    code, out, error = run_muster("kv", "--store", "tcp://" + endpoint_of(server), *args)
    return code, out.decode().strip(), error.strip()


def write_until_full(server, native):
    """Writes until one is refused; what was acknowledged."""
    acked = []
    for i in range(100):
        value = "%d" % i * 20000
        try:
            if native:
                code, _, error = kv(server, "set", "key%d" % i, value)
                if code != 0:
                    return acked, error
            else:
                with Conn(server.port, 2) as conn:
                    conn.set_acked("/key%d" % i, value)
        except Closed:
            return acked, "closed"
        acked.append((i, value))
    return acked, "never"


def check_while_full(server, acked):
    wait_until(server.full, "the metric to say it")
    checks.ok(server.alive(), "the process goes on")
    code, text = server.ask("readyz")
    checks.ok(code == 200 and "takes no more changes" in text, "readyz says it", text)
    checks.equal(server.ask("readyz", with_key=False), (200, "ready\n"),
                 "but not to who does not show the key")
    checks.ok('"kept":"on disk, which is full"' in server.ask("status.json")[1], "so does the page")
    with Conn(server.port, 2) as conn:
        checks.ok(all(conn.get("/key%d" % i) == value.encode() for i, value in acked[:5]),
                  "PyTorch's clients read what was acknowledged")
        conn.set("/more", "x")
        checks.ok(conn.closed(), "and lose their connection when they write")
    checks.ok(kv(server, "get", "key0")[:2] == (0, acked[0][1]), "native clients read")
    code, _, error = kv(server, "set", "more", "x")
    checks.ok(code != 0 and "takes no more changes" in error and "free space" in error,
              "and are told why they cannot write", error)
    with Fleet(endpoint_of(server), "run", "1:2") as fleet:
        fleet.add("node")
        fleet.assigned()
        checks.ok(True, "a rendezvous is held")


def run(native, *args):
    with Disk() as disk:
        with Server(disk, *args) as server:
            assert kv(server, "set", "first", "value")[0] == 0
            disk.fill()
            acked, how = write_until_full(server, native)
            checks.ok(how not in ("never", "") and len(acked) > 0,
                      "%d changes fit, the next is refused" % len(acked), how)
            check_while_full(server, acked)
            disk.make_room()
            wait_until(lambda: not server.full(), "room to be found")
            checks.equal(kv(server, "set", "after", "room")[0], 0, "changes are taken again")
            server.process.kill()
            server.process.wait()
        with Server(disk, *args) as server, Conn(server.port, 2) as conn:
            kept = [(i, value) for i, value in acked if conn.get("/key%d" % i) == value.encode()]
            checks.equal(len(kept), len(acked), "what was acknowledged outlives a kill")
            checks.ok(args or conn.get("/after") == b"room", "and what came behind")


def test_a_full_disk_refuses_changes_of_pytorch_and_keeps_the_rest():
    run(False)


def test_a_full_disk_refuses_native_changes_and_keeps_the_rest():
    run(True)


def test_a_full_disk_with_sync_interval():
    run(True, "--sync", "interval")


def test_a_server_that_stops_with_a_full_disk_says_what_is_lost():
    with Disk() as disk:
        server = Server(disk)
        disk.fill()
        write_until_full(server, True)
        code = server.stop()
        checks.ok(code not in (0, None) and "takes no more changes" in server.last_output,
                  "it ends with an error that names the directory", (code, server.last_output))


def main():
    if own_mounts():
        checks.run_tests(globals())
    else:
        checks.skip("no mount namespace can be made here")
    checks.done()


if __name__ == "__main__":
    sys.exit(main())
