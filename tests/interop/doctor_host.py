#!/usr/bin/python3
"""`muster doctor HOST...` on real servers, closed ports, silence, names that lead nowhere, clocks that
are off, and, in network namespaces of its own, on black holes and on ways that carry short packets only.

    doctor_host.py [MUSTER] [--only=NAME]
"""
import contextlib
import json
import os
import socket
import struct
import subprocess
import threading
import time

import lib
from lib import HOST, Checks, Muster, Scratch, die_with_parent, free_port, muster_path, option

OK, FAULTY, USAGE = 0, 1, 2
checks = Checks()


def doctor(*args, inside=()):
    """(exit code, the JSON, {subject: [(level, text, remedy)]}, seconds)"""
    began = time.monotonic()
    done = subprocess.run([*inside, muster_path(), "doctor", "--json", *args], timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    took = time.monotonic() - began
    report = json.loads(done.stdout) if done.stdout else {"findings": []}
    found = {}
    for f in report["findings"]:
        found.setdefault(f["subject"], []).append((f["level"], f["text"], f.get("remedy", "")))
    return done.returncode, report, found, took


def has(found, subject, level, *words):
    return any(l == level and all(w in text + " -> " + remedy for w in words)
               for l, text, remedy in found.get(subject, []))


@contextlib.contextmanager
def listener(serve):
    """Somebody at a port, who does `serve(connection)` to each caller."""
    with socket.socket() as s:
        s.bind((HOST, 0))
        s.listen(16)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    conn, _ = s.accept()
                    with conn, contextlib.suppress(OSError):
                        serve(conn)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield "%s:%d" % (HOST, s.getsockname()[1])
        s.shutdown(socket.SHUT_RDWR)
        thread.join(10)


# --- a muster server by hand, whose clock is what we like --------------------------------------


def read_exactly(conn, n):
    data = b""
    while len(data) < n:
        piece = conn.recv(n - len(data))
        if not piece:
            raise OSError("the other end is gone")
        data += piece
    return data


def frame(kind, payload, call=0, ack=0):
    return struct.pack("<IBBHQQ", len(payload), kind, 0, 0, ack, call) + payload


def native(answer):
    """Greets, then answers each call with `answer()`: a status and bytes."""
    def serve(conn):
        read_exactly(conn, 8)
        calls = 0
        while True:
            length, kind, _, _, _, call = struct.unpack("<IBBHQQ", read_exactly(conn, 24))
            read_exactly(conn, length)
            if kind == 1:
                welcome = struct.pack("<HBBQIIIIH", 1, 0, 0, 1 << 20, 1 << 20, 0, 1000, 10000, 0)
                conn.sendall(frame(2, welcome + b"i" * 16))
            elif kind == 16:
                calls += 1
                status, data = answer()
                conn.sendall(frame(17, struct.pack("<i", status) + data, call, calls))
    return serve


def clock(offset_s):
    return native(lambda: (0, struct.pack("<Q", int((time.time() + offset_s) * 1e9))))


def refuse(conn):
    read_exactly(conn, 8)
    length = struct.unpack("<I", read_exactly(conn, 24)[:4])[0]
    read_exactly(conn, length)
    conn.sendall(frame(3, struct.pack("<i", -10015) + b"show the job's token"))


# --- on loopback --------------------------------------------------------------------------------


def test_a_server_is_well():
    with Muster("--http", HOST + ":0") as server:
        word = "%s:%d" % (HOST, server.port)
        code, report, found, took = doctor(word)
        checks.ok(code == OK and took < 30, "a server that is there is well, soon", (code, found))
        port = report["hosts"][0]["ports"][0]
        checks.ok(port["speaks"] == "muster" and port["reached"] and 0 < port["rtt_ms"] < 1000 and
                  abs(port["clock_ms"]) < 1000, "it is muster, and its clock is ours", port)
        checks.ok(has(found, word, "ok", "a muster server"), "which is said", found)
        here = report["here"]
        checks.ok(here["loopback"] and here["descriptors"] > 0 and here["somaxconn"] > 0 and
                  len(here["port_range"]) == 2 and "clock_synchronized" in here and
                  here["shm_bytes"] >= 0 and here["name"], "this machine is looked at", here)
        done = subprocess.run([muster_path(), "doctor", word], capture_output=True, text=True,
                              timeout=60)
        checks.ok(done.returncode == OK and "a muster server" in done.stdout and
                  "its clock is" in done.stdout, "the same for people", done.stdout)
        page = server.output().split("status at http://")[1].split("/")[0]
        code, report, found, _ = doctor(page)
        checks.ok(code == FAULTY and has(found, page, "bad", "a web server", "another"),
                  "a page is no store", found)
        checks.equal(subprocess.run([muster_path(), "kv", "--store", "tcp://" + word, "keys"],
                                    capture_output=True, timeout=30).stdout, b"",
                     "the visit left nothing behind")


def test_torch_stores_are_told_apart():
    program = ("import torch.distributed as d, datetime, sys\n"
               "s = d.TCPStore('127.0.0.1', 0, None, True, timeout=datetime.timedelta(seconds=9),"
               " wait_for_workers=False)\n"
               "print(s.port, flush=True); sys.stdin.read(1)\n"
               "s.set('after', 'all'); print(s.get('after').decode(), flush=True)\n")
    server = subprocess.Popen(["/usr/bin/python3", "-c", program], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
    try:
        word = "%s:%s" % (HOST, server.stdout.readline().strip())
        code, report, found, _ = doctor(word)
        checks.ok(code == OK and report["hosts"][0]["ports"][0]["speaks"] in ("torch1", "torch2") and
                  has(found, word, "ok", "a store of PyTorch"), "PyTorch's store is known", found)
        server.stdin.write("\n")
        server.stdin.flush()
        checks.equal(server.stdout.readline().strip(), "all", "and works afterwards as before")
    finally:
        server.kill()
        server.wait()

    def generation_2(conn):
        if conn.recv(1) == b"\0" and conn.recv(5, socket.MSG_WAITALL) == b"\xce\xf7\x85\x3c\7":
            conn.sendall(struct.pack("<q", 3))

    with listener(generation_2) as word:
        _, report, _, _ = doctor(word)
        checks.equal(report["hosts"][0]["ports"][0]["speaks"], "torch2", "generation 2 is known")


def test_others_are_told_apart():
    for name, serve, speaks, level, words in (
            ("hangs up", lambda c: None, "hangs up", "bad", "hangs up"),
            ("is silent", lambda c: c.recv(1 << 16) and time.sleep(3), "silent", "bad", "silent"),
            ("speaks TLS", lambda c: c.sendall(b"\x15\x03\x01\x00\x02\x02\x32"), "tls", "bad", "TLS"),
            ("is ssh", lambda c: c.sendall(b"SSH-2.0-x\r\n"), "other", "bad", "not a store"),
            ("is a peer", lambda c: c.sendall(b"\x13/multistream/1.0.0\n"), "libp2p", "bad",
             "libp2p"),
            ("requires a credential", refuse, "muster", "warn", "token")):
        with listener(serve) as word:
            code, report, found, took = doctor(word, "--timeout", "2")
            got = report["hosts"][0]["ports"][0]["speaks"]
            checks.ok(got == speaks and has(found, word, level, words) and took < 30,
                      "somebody who " + name, (got, found, took))


def test_clocks():
    for offset, level, words in ((0.0, "ok", ("its clock is",)), (7.5, "warn", ("ahead", "chrony")),
                                 (-7.5, "warn", ("behind", "chrony")), (3600, "bad", ("ahead",))):
        with listener(clock(offset)) as word:
            code, report, found, _ = doctor(word)
            seen = report["hosts"][0]["ports"][0]["clock_ms"]
            checks.ok(has(found, word, level, *words) and seen is not None and
                      abs(seen - offset * 1000) < 500 and code == (FAULTY if level == "bad" else OK),
                      "a clock that is %+.1f s off" % offset, (seen, found))
    with listener(native(lambda: (-10021, b"no such method"))) as word:
        code, report, found, _ = doctor(word)
        checks.ok(code == OK and report["hosts"][0]["ports"][0]["clock_ms"] is None and
                  has(found, word, "note", "cannot be compared"), "an old server has no clock", found)


def test_nobody_and_no_name():
    word = "%s:%d" % (HOST, free_port())
    code, report, found, took = doctor(word, "no-such-host.invalid")
    checks.ok(code == FAULTY and has(found, word, "bad", "nothing listens", "start the server"),
              "a closed port", found)
    checks.ok(has(found, "no-such-host.invalid", "bad", "/etc/hosts"), "a name of nobody", found)
    checks.equal(report["exit_code"], code, "the exit code is in the JSON")
    with Muster() as server:
        ports = "%d,%d" % (server.port, free_port())
        code, _, found, _ = doctor("--ports", ports, "localhost")
        checks.ok(code == OK and has(found, "localhost", "note", "nothing listens"),
                  "of the ports that may be, one is enough", found)
        code, _, found, _ = doctor("localhost:" + ports.split(",")[1])
        checks.equal(code, FAULTY, "a port that was named must be there")
    for args in (("--ports", "0", "x"), ("--ports", "1,2,3,4,5,6,7,8,9", "x"), ("--ports", "a", "x"),
                 ("--timeout", "0", "x"), ("unix:/x",), ("etcd",), ("h:99999",)):
        checks.equal(doctor(*args)[0], USAGE, "usage: " + " ".join(args))


# --- in namespaces of our own -------------------------------------------------------------------

NAMES = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--uts"]


def may_unshare():
    return subprocess.run([*NAMES, "true"], capture_output=True).returncode == 0


class Space:
    """Namespaces of our own, held by a process that sleeps in them."""

    def __init__(self):
        self.process = subprocess.Popen([*NAMES, "sh", "-c", "ip link set lo up; echo; exec cat"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        preexec_fn=die_with_parent)
        self.process.stdout.readline()
        self.enter = ["nsenter", "-t", str(self.process.pid), "--user", "--preserve-credentials",
                      "--net", "--mount", "--uts"]

    def sh(self, text):
        subprocess.run([*self.enter, "sh", "-ec", text], check=True, timeout=30)

    @contextlib.contextmanager
    def wire(self, *mode):
        """Hosts at 10.9.x.x, while inside. False: there are no tun devices here."""
        with subprocess.Popen([*self.enter, "/usr/bin/python3",
                               os.path.join(lib.HERE, "tun_wire.py"), *mode],
                              stdout=subprocess.PIPE, text=True,
                              preexec_fn=die_with_parent) as process:
            yield process.stdout.readline() == "up\n"
            process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def test_black_holes_take_seconds_only():
    with Space() as here, here.wire("never") as up:
        if not up:
            return checks.skip("black holes: there are no tun devices here")
        here.sh("ip route add unreachable 10.8.0.0/24")
        many = ["10.9.66.%d" % i for i in range(2, 42)]
        code, report, found, took = doctor("--timeout", "2", *many, "10.8.0.1", "10.7.0.1",
                                           inside=here.enter)
        checks.ok(code == FAULTY and took < 40, "40 black holes at once take seconds", took)
        checks.ok(all(has(found, word, "bad", "no answer", "firewall") for word in many),
                  "each is named as what it is", found.get(many[0]))
        checks.ok(has(found, "10.8.0.1", "bad", "ip route") and
                  has(found, "10.7.0.1", "bad", "ip route"), "no way is another thing",
                  (found.get("10.8.0.1"), found.get("10.7.0.1")))


def test_short_packets():
    word = "10.9.1.1"
    for mode, expected, level, words in (
            (("never",), {"finding": "passes", "local": 1500, "path": 1500}, "ok", ("1500",)),
            (("told", "1300"), {"finding": "told", "local": 1500, "path": 1300}, "note",
             ("1300", "1500", "router")),
            (("told", "1000"), {"finding": "told", "local": 1500, "path": 1000}, "warn", ("1000",)),
            (("vanish", "1450"), {"finding": "vanish", "local": 1500, "path": 1400}, "bad",
             ("lost", "1400", "ICMP"))):
        with Space() as here, here.wire(*mode) as up:
            if not up:
                return checks.skip("short packets: there are no tun devices here")
            for again in ("", ", also when the kernel knows it already"):
                _, report, found, took = doctor(word, inside=here.enter)
                checks.equal(report["hosts"][0].get("mtu"), expected, " ".join(mode) + again)
                checks.ok(has(found, word, level, *words) and took < 30, "which is said", found)


def test_a_locked_server():
    with Scratch() as scratch, Space() as here:
        here.sh("ip addr add 10.5.0.1/32 dev lo")
        files = []
        for name in ("right", "wrong"):
            files.append(os.path.join(scratch, name))
            with open(files[-1], "w", opener=lambda p, f: os.open(p, f, 0o600)) as file:
                file.write("the-%s-token-of-the-job\n" % name)
        with subprocess.Popen([*here.enter, muster_path(), "serve", "--listen", "10.5.0.1:29500",
                               "--token-file", files[0]], stdout=subprocess.PIPE, text=True,
                              preexec_fn=die_with_parent) as server:
            server.stdout.readline()
            word = "10.5.0.1:29500"
            code, report, found, _ = doctor(word, inside=here.enter)
            port = report["hosts"][0]["ports"][0]
            checks.ok(code == OK and port["refused"] and port["clock_ms"] is None and
                      has(found, word, "warn", "requires a credential", "--token-file"),
                      "without the credential it is said that one is wanted", found)
            code, report, found, _ = doctor(word, "--token-file", files[0], inside=here.enter)
            port = report["hosts"][0]["ports"][0]
            checks.ok(code == OK and port["clock_ms"] is not None and
                      has(found, word, "ok", "accepts ours"), "the right one is taken", found)
            code, report, found, took = doctor(word, "--token-file", files[1], inside=here.enter)
            checks.ok(has(found, word, "warn", "requires a credential", "our attempt to connect") and took < 30,
                      "a wrong one is not, and soon", (found.get(word), took))
            server.kill()


def test_names_of_loopback():
    with Scratch() as scratch, Space() as here:
        hosts = os.path.join(scratch, "hosts")
        with open(hosts, "w") as file:
            file.write("127.0.0.1 localhost\n127.0.1.1 trapped.example trapped\n")
        here.sh("hostname trapped; mount --bind %s /etc/hosts" % hosts)
        code, report, found, _ = doctor("trapped.example", inside=here.enter)
        checks.ok(has(found, "here", "warn", "trapped", "127.0.1.1", "--local-addr"),
                  "our own name that leads to loopback is Debian's trap", found)
        checks.ok(has(found, "trapped.example", "warn", "127.0.1.1", "/etc/hosts"),
                  "so is a name that somebody gave us", found)
        here.sh("ip link set lo down")
        code, report, found, _ = doctor(inside=here.enter)
        checks.ok(code == FAULTY and has(found, "here", "bad", "loopback does not work", "lo up"),
                  "loopback that is down is found out", found)
        limited = [*here.enter, "sh", "-c", "ulimit -n 512; exec \"$@\"", "-"]
        code, report, found, _ = doctor(inside=limited)
        checks.ok(has(found, "here", "bad", "512 descriptors", "LimitNOFILE"),
                  "few descriptors are found out", found)
        here.sh("sysctl -qw net.core.somaxconn=64 "
                "net.ipv4.ip_local_port_range='29000 30000'; ip link set lo up")
        code, report, found, _ = doctor(inside=here.enter)
        checks.ok(code == OK and has(found, "here", "warn", "64 connections", "somaxconn=4096") and
                  has(found, "here", "warn", "29000 to 30000") and
                  has(found, "here", "warn", "port 29400", "reserved"), "so are short queues and "
                  "few ports", found)


only = option("only", "")
for name, test in list(globals().items()):
    if name.startswith("test_") and only in name:
        if test in (test_black_holes_take_seconds_only, test_short_packets, test_a_locked_server,
                    test_names_of_loopback) and not may_unshare():
            checks.skip(name[5:] + ": there are no namespaces here")
            continue
        print("-- " + name[5:].replace("_", " "), flush=True)
        test()
checks.done()
