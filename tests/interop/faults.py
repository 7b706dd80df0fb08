#!/usr/bin/python3
"""What goes wrong around a server, done to real processes: signals, ports and directories in use,
damaged and full disks, no descriptors left, clients that stop, vanish or attack.

Behaviour is asserted, not speed: nobody else is disturbed, nothing acknowledged is lost, whoever
must fail says why in one sentence with the documented exit code, and nothing hangs.

    faults.py [MUSTER] [--only=NAME]
"""
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import lib
from lib import Conn, Muster, i64, text, texts, u64

USAGE, NO_STORE, STORAGE, ADDRESS = 2, 4, 5, 6


def sentence(output):
    """The lines that a user is meant to read."""
    return [line for line in output.strip().splitlines() if line.strip()]


def refuses(checks, what, codes, args, mention=None, preexec=None, harmless=lambda port: False):
    """Starting a server like this must fail with a sentence, unless all is well after all."""
    try:
        server = Muster(*args, preexec=preexec)
    except lib.EarlyEnd as end:
        checks.ok(end.code in codes, what + ": exit code",
                  "%s instead of %s: %s" % (end.code, codes, end.output))
        said = sentence(end.output)
        checks.ok(len(said) >= 1 and (mention is None or mention in end.output),
                  what + ": the sentence",
                  "it said %r, which does not mention %r" % (end.output, mention))
        return
    except AssertionError as error:
        checks.ok(False, what, error)
        return
    try:
        checks.ok(harmless(server.port), what, "it served")
    except (lib.Closed, lib.Silent):
        checks.ok(False, what, "it served, and then: " + server.output()[-300:])
    server.kill()


def cpu_seconds(pid):
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def process_state(pid):
    with open("/proc/%d/stat" % pid) as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def resident_mib(pid):
    with open("/proc/%d/status" % pid) as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0


def honest(checks, port, what, generation=2):
    """A client that wants nothing special gets it."""
    with Conn(port, generation) as c:
        key = "/honest/%x" % random.getrandbits(64)
        c.set_acked(key, "1")
        checks.ok(c.get(key) == b"1" and c.add(key, 1) == 2 and c.delete(key) == 1, what)


# --- signals ------------------------------------------------------------------------------------


def test_term(checks):
    for name, number in (("SIGTERM", signal.SIGTERM), ("SIGINT", signal.SIGINT)):
        with Muster() as server:
            idle, waiter, busy = Conn(server.port), Conn(server.port), Conn(server.port, 2)
            waiter.start_wait("/never")
            count = 2000
            busy.send(b"".join(busy.op("add", text("/n") + i64(1)) for _ in range(count)))
            first = busy.recv_i64()
            os.kill(server.pid, number)
            code = server.process.wait(lib.PATIENCE)
            checks.equal(code, 0, name + " ends it with exit code 0")
            sums = [first]
            try:
                while len(sums) < count:
                    sums.append(busy.recv_i64())
            except lib.Closed:
                pass
            checks.equal(sums, list(range(1, len(sums) + 1)),
                         name + ": the answers given are whole and in order")
            checks.ok(idle.closed() and waiter.closed(),
                      name + ": idle and waiting clients are let go")
            refused = True
            try:
                socket.create_connection((lib.HOST, server.port), 1).close()
                refused = False
            except OSError:
                pass
            checks.ok(refused, name + ": nobody is let in any more")


def test_term_durable(checks):
    with lib.Scratch() as scratch:
        for sync in ("always", "interval"):
            data = os.path.join(scratch, sync)
            server = Muster("--data-dir", data, "--sync", sync)
            with Conn(server.port, 2) as c:
                c.set_acked("/kept", "yes")
                c.push("/q", "element")
                c.barrier()
            checks.equal(server.stop(), 0, "--sync %s: SIGTERM, exit code 0" % sync)
            with Muster("--data-dir", data, "--sync", sync) as server, Conn(server.port, 2) as c:
                checks.equal((c.get("/kept"), c.pop("/q")), (b"yes", (1, b"element")),
                             "--sync %s: values and queues are there after the restart" % sync)


# --- what it is given ---------------------------------------------------------------------------


def test_usage(checks):
    def run(what, args, code, mention):
        try:
            got, _, err = lib.run_muster(*args, patience=10)
        except subprocess.TimeoutExpired:
            checks.ok(False, what, "it hung")
            return
        checks.ok(got == code and len(sentence(err)) >= 1 and mention in err, what, (got, err))

    run("unknown option", ["serve", "--no-such-option"], USAGE, "--no-such-option")
    run("unknown command", ["no-such-command"], USAGE, "no-such-command")
    run("malformed --listen", ["serve", "--listen", "127.0.0.1:port"], USAGE, "127.0.0.1:port")
    run("port out of range", ["serve", "--listen", "127.0.0.1:70000"], USAGE, "70000")
    run("unknown --sync", ["serve", "--listen", "127.0.0.1:0", "--sync", "sometimes"], USAGE,
        "sometimes")
    run("malformed URL", ["kv", "--store", "nonsense", "get", "x"], USAGE, "nonsense")
    run("unknown scheme", ["kv", "--store", "ftp://host/x", "get", "x"], USAGE, "ftp")
    run("not an amount", ["kv", "--store", "hash:", "add", "x", "many"], USAGE, "many")
    run("an address of another machine", ["serve", "--listen", "192.0.2.1:0"], ADDRESS, "192.0.2.1")


def test_port_in_use(checks):
    with Muster() as server:
        address = "%s:%d" % (lib.HOST, server.port)
        done = subprocess.run([lib.muster_path(), "serve", "--listen", address],
                              stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=lib.PATIENCE,
                              text=True)
        checks.ok(done.returncode == ADDRESS and address in done.stderr, "a port in use",
                  (done.returncode, done.stderr))
        honest(checks, server.port, "the one that has it serves on")


def test_not_a_store(checks):
    """A listener that answers like a web server, one that hangs up, and none at all."""

    def serve(listener, answer):
        try:
            while True:
                conn, _ = listener.accept()
                conn.recv(100)
                conn.sendall(answer)
                conn.close()
        except OSError:
            pass

    for what, answer in (("speaks HTTP", b"HTTP/1.1 400 Bad Request\r\n\r\n"), ("hangs up", b"")):
        listener = socket.create_server((lib.HOST, 0))
        port = listener.getsockname()[1]
        threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
        url = "tcp://%s:%d?connect=3000" % (lib.HOST, port)
        try:
            code, _, err = lib.run_muster("kv", "--store", url, "--timeout", "3s", "get", "x")
            checks.ok(code == NO_STORE and str(port) in err,
                      "a peer that is not a store (it %s)" % what, (code, err))
        except subprocess.TimeoutExpired:
            checks.ok(False, "a peer that is not a store (it %s)" % what, "it hung")
    with socket.create_server((lib.HOST, 0)) as listener:
        port = listener.getsockname()[1]
    url = "tcp://%s:%d?connect=500" % (lib.HOST, port)
    code, _, err = lib.run_muster("kv", "--store", url, "--timeout", "1s", "get", "x")
    checks.ok(code in (NO_STORE, 3) and str(port) in err, "nobody listens", (code, err))


def has_client(port):
    """Whether somebody is connected to that port of this machine."""
    established = "01"
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table][1:]
    return any(row[1].endswith(":%04X" % port) and row[3] == established for row in rows)


def test_store_goes_away(checks):
    server = Muster()
    url = "tcp://%s:%d?connect=2000" % (lib.HOST, server.port)
    waiting = subprocess.Popen([lib.muster_path(), "kv", "--store", url, "--timeout", "3s",
                                "wait", "never"],
                               stderr=subprocess.PIPE, text=True)
    lib.wait_until(lambda: has_client(server.port), "the client's connection")
    server.kill()
    try:
        _, err = waiting.communicate(timeout=lib.PATIENCE)
        checks.ok(waiting.returncode in (3, 4) and len(sentence(err)) >= 1,
                  "a store that goes away",
                  (waiting.returncode, err))
    except subprocess.TimeoutExpired:
        waiting.kill()
        checks.ok(False, "a store that goes away", "the client hung")


# --- disks --------------------------------------------------------------------------------------


def test_data_dir_locked(checks):
    with lib.Scratch() as scratch:
        with Muster("--data-dir", scratch, "--sync", "always") as server:
            refuses(checks, "a data directory in use", (STORAGE,), ("--data-dir", scratch), scratch)
            honest(checks, server.port, "the one that has it serves on")


def test_data_dir_bad(checks):
    with lib.Scratch() as scratch:
        plain = os.path.join(scratch, "file")
        open(plain, "w").close()
        refuses(checks, "a data directory that is a file", (STORAGE, USAGE), ("--data-dir", plain),
                plain)
        refuses(checks, "a data directory that cannot be made", (STORAGE, USAGE),
                ("--data-dir", "/proc/no/such"), "/proc/no/such")


def test_data_dir_corrupt(checks):
    def zero_meta(data):
        return bytes(8192) + data[8192:]

    def flip_pages(data):
        page = bytearray(data)
        for offset in range(8192, len(page), 64):
            page[offset] ^= 0x5A
        return bytes(page)

    damages = (("random bytes", lambda data: random.Random(1).randbytes(len(data))),
               ("cut to 100 bytes", lambda data: data[:100]),
               ("its head zeroed", zero_meta),
               ("every page hit", flip_pages),
               ("cut in half", lambda data: data[: len(data) // 8192 * 4096]))
    def has_all(port):
        with Conn(port) as c:
            return all(c.has("/k%d" % i) and c.get("/k%d" % i) == b"v" * 500 for i in range(300))

    for name, damage in damages:
        with lib.Scratch() as scratch:
            server = Muster("--data-dir", scratch, "--sync", "always")
            with Conn(server.port) as c:
                for i in range(300):
                    c.set("/k%d" % i, b"v" * 500)
                c.barrier()
            server.stop()
            files = [os.path.join(scratch, f) for f in os.listdir(scratch) if f.endswith(".mdb")
                     and "lock" not in f]
            checks.ok(len(files) == 1, "there is one data file", os.listdir(scratch))
            with open(files[0], "rb") as file:
                data = file.read()
            with open(files[0], "wb") as file:
                file.write(damage(data))
            refuses(checks, "a damaged data directory (%s)" % name, (STORAGE,),
                    ("--data-dir", scratch), scratch, harmless=has_all)


def fill_disk(checks, data):
    """Writes until a write fails. Then the server either serves on what it acknowledged, or ends
    with the documented code and a sentence; a restart has all of it."""
    server = Muster("--data-dir", data, "--sync", "always")
    kept = []
    for i in range(400):
        key, value = "/full/%d" % i, bytes([i % 256]) * 20000
        try:
            with Conn(server.port, 2, patience=5) as c:
                c.set_acked(key, value)
        except (lib.Closed, lib.Silent, OSError):
            break
        kept.append((key, value))
    checks.ok(5 < len(kept) < 400, "a full disk: changes are refused, not acknowledged", len(kept))
    served = 0
    try:
        with Conn(server.port, 2) as c:
            for key, value in kept:
                served += c.get(key) == value
    except (lib.Closed, OSError):
        pass
    if served < len(kept):
        lib.wait_until(lambda: not server.alive(), "the server to end after its disk was full", 5)
        checks.equal(server.process.returncode, STORAGE, "a full disk: the server ends, exit code")
    checks.ok("space" in server.output() or "full" in server.output(),
              "a full disk: it says so", server.output()[-500:])
    server.stop()
    with Muster("--data-dir", data, "--sync", "always") as server, Conn(server.port, 2) as c:
        checks.ok(all(c.get(k) == v for k, v in kept),
                  "a full disk: what was acknowledged is there after a restart")


def test_disk_full(checks):
    with lib.Scratch() as scratch:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", scratch],
                          stderr=subprocess.DEVNULL).returncode != 0:
            checks.skip("full disk: this takes root")
            return
        try:
            fill_disk(checks, os.path.join(scratch, "data"))
        finally:
            subprocess.run(["umount", "-l", scratch])


# --- descriptors --------------------------------------------------------------------------------


def test_no_descriptors(checks):
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    with Muster(preexec=few) as server:
        conns = []
        for _ in range(80):
            try:
                conns.append(Conn(server.port, 1, patience=0.4))
            except OSError:
                break
        served = []
        for conn in conns:
            try:
                conn.barrier()
                served.append(conn)
            except (lib.Silent, lib.Closed):
                pass
        checks.ok(8 <= len(served) < 40, "no descriptors left: those inside are served",
                  len(served))
        before = cpu_seconds(server.pid)
        time.sleep(0.5)
        checks.ok(cpu_seconds(server.pid) - before < 0.25, "no descriptors left: it does not spin",
                  cpu_seconds(server.pid) - before)
        for conn in conns:
            conn.close()
        lib.wait_until(lambda: try_barrier(server.port), "service after descriptors came free")
        checks.ok(True, "no descriptors left: newcomers are served once some leave")


def try_barrier(port):
    try:
        with Conn(port, 1, patience=0.5) as c:
            c.barrier()
        return True
    except (lib.Silent, lib.Closed, OSError):
        return False


def test_hardly_any_descriptors(checks):
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))

    try:
        server = Muster(preexec=few, patience=5)
    except lib.EarlyEnd as end:
        checks.ok(end.code > 0 and len(sentence(end.output)) >= 1,
                  "8 descriptors: refused with a sentence",
                  (end.code, end.output))
        return
    except AssertionError as error:
        checks.ok(False, "8 descriptors", error)
        return
    checks.ok(try_barrier(server.port) or server.alive(),
              "8 descriptors: it serves, or at least lives")
    server.stop()


# --- clients that stop or vanish ----------------------------------------------------------------

STOPPED = """
import os, signal, socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
whole = bytes.fromhex(sys.argv[2])
s.sendall(whole[:len(whole) // 2])
print("half", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
s.sendall(whole[len(whole) // 2:])
print(s.recv(108, socket.MSG_WAITALL).hex(), flush=True)
"""


def test_stopped_client(checks):
    with Muster() as server:
        request = b"\0" + text("/stopped") + text("x" * 100) + b"\2" + text("/stopped")
        child = subprocess.Popen([sys.executable, "-c", STOPPED, str(server.port), request.hex()],
                                 stdout=subprocess.PIPE, text=True, preexec_fn=lib.die_with_parent)
        assert child.stdout.readline() == "half\n"
        honest(checks, server.port, "others are served beside a client that stopped half-way")
        with Conn(server.port, 2) as c:
            checks.ok(not c.has("/stopped"), "half a request does nothing")
        lib.wait_until(lambda: process_state(child.pid) == "T", "the client to be stopped")
        os.kill(child.pid, signal.SIGCONT)
        out, _ = child.communicate(timeout=lib.PATIENCE)
        checks.equal(bytes.fromhex(out.strip()), text("x" * 100), "and is answered when it goes on")


def vanish(conn):
    """Ends a connection without a packet: the other side still thinks it is there. Needs root."""
    TCP_REPAIR = 19
    conn.sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    conn.sock.close()


def test_vanished_client(checks):
    with Muster() as server:
        for name, leave in (("closes", Conn.close), ("resets", Conn.reset),
                            ("vanishes without a packet", vanish)):
            waiter, watcher, half = Conn(server.port), Conn(server.port), Conn(server.port)
            key = "/gone/" + name
            waiter.start_wait(key)
            watcher.send(watcher.op("watch", text(key)))
            watcher.recv(1)
            half.send(b"\0" + text(key)[:5])
            try:
                for conn in (waiter, watcher, half):
                    leave(conn)
            except PermissionError:
                checks.skip("vanishing clients: this takes root")
                continue
            with Conn(server.port) as c:
                for i in range(5):
                    c.set_acked(key, str(i))
                checks.ok(c.get(key) == b"4" and c.delete(key) == 1,
                          "a waiter and a watcher %s: who sets the key is not disturbed" % name)
        c = Conn(server.port, 2)
        c.send(c.op("add", text("/half-closed") + i64(1)))
        c.sock.shutdown(socket.SHUT_WR)
        checks.equal(c.recv_i64(), 1, "a client that closed its half is still answered")
        checks.ok(c.closed(), "and then closed")
        checks.ok(server.alive(), "the server is still there")


# --- hostile clients ----------------------------------------------------------------------------


def attack_dribble(port, stop):
    data = b"\0" + text("/dribble") + text("x" * 50)
    conns = [Conn(port) for _ in range(20)]
    i = 0
    while not stop.is_set():
        for conn in conns:
            conn.send(data[i % len(data) : i % len(data) + 1])
        i += 1
        time.sleep(0.002)


def attack_lengths(port, stop):
    rng = random.Random(2)
    while not stop.is_set():
        with Conn(port, rng.choice([1, 2])) as conn:
            length = rng.choice([2**64 - 1, 2**64 - 9, 2**63, 2**62, 2**40])
            body = rng.choice([u64(length), text("/k") + u64(length), u64(1) + u64(length),
                               u64(length) * 3])
            conn.send(bytes([rng.randint(1, 17)]) + body)
            conn.closed(0.02)


def attack_noread(port, stop):
    big = Conn(port)
    big.set_acked("/big", b"x" * (4 << 20))
    conns = [Conn(port) for _ in range(16)]
    for conn in conns:
        conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        conn.sock.setblocking(False)
    request = (b"\2" + text("/big")) * 500
    while not stop.is_set():
        for conn in conns:
            try:
                conn.sock.send(request)
            except OSError:
                pass
        time.sleep(0.01)


def attack_waits(port, stop):
    rng = random.Random(3)
    conns = []
    while not stop.is_set():
        conns = conns[-30:] + [Conn(port, rng.choice([1, 2]))]
        conn = rng.choice(conns)
        try:
            keys = ["/never/%x" % rng.getrandbits(64) for _ in range(1000)]
            conn.send(conn.op("wait", texts(keys)) * 5)
        except lib.Closed:
            conns.remove(conn)
        time.sleep(0.005)


def attack_garbage(port, stop):
    rng = random.Random(4)
    while not stop.is_set():
        with Conn(port, 1) as conn:
            try:
                for _ in range(10):
                    conn.send(rng.randbytes(rng.randint(1, 500)))
            except lib.Closed:
                pass
        time.sleep(0.002)


def test_hostile(checks):
    with Muster() as server:
        stop = threading.Event()
        attacks = (attack_dribble, attack_lengths, attack_noread, attack_waits, attack_garbage)
        broken = []

        def run(attack):
            while not stop.is_set():
                try:
                    attack(server.port, stop)
                except (lib.Closed, lib.Silent, ConnectionError):
                    pass
                except OSError as error:
                    broken.append("%s: %s" % (attack.__name__, error))
                    return

        threads = [threading.Thread(target=run, args=(attack,), daemon=True) for attack in attacks]
        for thread in threads:
            thread.start()
        served, slowest = 0, 0.0
        try:
            with Conn(server.port, 2) as c, Conn(server.port, 1) as waiter:
                # For three seconds, or until it has had its share of a machine that is busy.
                end = time.monotonic() + 3
                patience = time.monotonic() + lib.PATIENCE
                begun = time.monotonic()
                while begun < end or (served <= 50 and begun < patience):
                    key = "/honest/%d" % served
                    waiter.start_wait(key)
                    c.set(key, "1")
                    assert waiter.woken()
                    assert c.add(key, 1) == 2 and c.get(key) == b"2" and c.delete(key) == 1
                    served += 1
                    slowest = max(slowest, time.monotonic() - begun)
                    begun = time.monotonic()
        except (lib.Closed, lib.Silent, AssertionError) as error:
            checks.ok(False, "an honest client beside hostile ones",
                      "after %d rounds: %r" % (served, error))
        peak = resident_mib(server.pid) if server.alive() else 0
        stop.set()
        for thread in threads:
            thread.join(lib.PATIENCE)
        checks.ok(served > 50, "an honest client was served all along", served)
        checks.note("%d rounds, the slowest took %.0f ms" % (served, slowest * 1000))
        checks.ok(server.alive(), "the server is still there", server.output()[-800:])
        # A sanitizer keeps what was freed for a while, to see who still uses it.
        bound = 1024 if lib.is_sanitized() else 256
        checks.ok(peak < bound, "its memory stayed bounded (%.0f MiB)" % peak, "%.0f MiB" % peak)
        checks.ok(not broken, "the attacks could be made", broken)
        honest(checks, server.port, "and a newcomer is served")
        checks.ok(len(server.output()) < 4 << 20, "the log did not flood", len(server.output()))
        checks.equal(server.stop(), 0, "SIGTERM ends it with exit code 0 after all that")


def main():
    checks = lib.Checks()
    only = lib.option("only", "")
    for test in (test_term, test_term_durable, test_usage, test_port_in_use, test_not_a_store,
                 test_store_goes_away,
                 test_data_dir_locked, test_data_dir_bad, test_data_dir_corrupt, test_disk_full,
                 test_no_descriptors,
                 test_hardly_any_descriptors, test_stopped_client, test_vanished_client,
                 test_hostile):
        if only and only not in test.__name__:
            continue
        try:
            test(checks)
        except (lib.Closed, lib.Silent, lib.EarlyEnd, AssertionError,
                subprocess.TimeoutExpired) as error:
            checks.ok(False, test.__name__, "ended early: %r" % error)
    checks.done()


main()
