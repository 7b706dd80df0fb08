#!/usr/bin/python3
"""Strangers who connect and show nothing, thousands of them: an honest client still gets in, in
about the time it took alone, and the server's memory stays small.

    lock_flood.py [MUSTER] [--only=TEXT] [--count=20000]

Needs a network of its own, in which 50 addresses attack. The honest client has one beside them.
Prints how long a connection of its own takes it, alone and attacked, and a request on one that it
has. These are figures of a machine that has the attackers to run as well: only what a user would
call broken fails the test.
"""
import concurrent.futures
import os
import re
import resource
import select
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

from lib import (PATIENCE, Checks, Muster, Scratch, beyond_loopback, die_with_parent, is_sanitized,
                 option, run_muster)

checks = Checks()
ATTACKERS = ["10.79.0.%d" % i for i in range(1, 51)]
COUNT = option("count", 20000)
TRIES = 200
LASTS = 20  # seconds, if it does not get so many tries
HERD = 500
# What a server has beside what it has for strangers, and what these may take.
MEMORY_MAX = 192 << 20


def set_up_network():
    for address in ATTACKERS:
        if subprocess.run(["ip", "addr", "add", address + "/32", "dev", "lo"],
                          check=False).returncode != 0:
            return False
    return True


def make_context(directory, address):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    at = os.path.join(directory, address)
    context.load_cert_chain(at + ".pem", at + ".key")
    context.load_verify_locations(os.path.join(directory, "ca.pem"))
    return context


def make_hello(groups):
    """What `openssl s_client` says first, with these groups."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with subprocess.Popen(["openssl", "s_client", "-connect",
                               "127.0.0.1:%d" % listener.getsockname()[1], "-tls1_3", "-groups",
                               groups], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, preexec_fn=die_with_parent) as client:
            conn, _ = listener.accept()
            with conn:
                hello = conn.recv(5)
                hello += conn.recv(struct.unpack(">H", hello[3:])[0], socket.MSG_WAITALL)
            client.kill()
    return hello


class Attack:
    """Processes that keep `count` connections up which say `words`, each of an attacker in turn; who
    is dropped comes again, so many in a second. They stand for other machines, and do not take the
    server's cores."""

    PROCESSES = 4  # none has descriptors for all

    PROGRAM = """
import os, select, socket, sys, time
os.nice(19)
host, port, count, rate, words, attackers = sys.argv[1:]
count, rate, words, attackers = int(count), int(rate), bytes.fromhex(words), attackers.split(",")
poll, conns, made, begun, told = select.epoll(), {}, 0, time.monotonic(), False
while True:
    budget = min(count - len(conns), int((time.monotonic() - begun) * rate) - made, 200)
    for _ in range(budget):
        s = socket.socket()
        s.setblocking(False)
        s.bind((attackers[made % len(attackers)], 0))
        s.connect_ex((host, int(port)))
        poll.register(s, select.EPOLLIN | select.EPOLLOUT)
        conns[s.fileno()] = s
        made += 1
    if made >= count and not told:
        print(made, flush=True)
        told = True
    for fd, events in poll.poll(0.01):
        s = conns[fd]
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            try:
                over = not s.recv(4096) or bool(events & select.EPOLLHUP)
            except BlockingIOError:
                over = False
            except OSError:
                over = True
            if over:
                poll.unregister(fd)
                conns.pop(fd).close()
                continue
        if events & select.EPOLLOUT:
            poll.modify(fd, select.EPOLLIN)
            try:
                s.send(words)
            except OSError:
                pass
"""

    def __init__(self, host, port, count, words, rate):
        part = str(count // self.PROCESSES), str(rate // self.PROCESSES)
        self.processes = [subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM, host, str(port), *part, words.hex(),
             ",".join(ATTACKERS)], stdout=subprocess.PIPE, preexec_fn=die_with_parent)
                          for _ in range(self.PROCESSES)]

    def __enter__(self):
        """Returns when all of them have been there, or it takes too long for them to come."""
        for process in self.processes:
            select.select([process.stdout], [], [], PATIENCE)
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.communicate()


class Honest:
    """PyTorch's protocol inside of TLS, and how long it takes."""

    def __init__(self, context, address, port):
        self.context, self.address, self.port = context, address, port
        self.lasting = self.connect()

    def connect(self):
        begun = time.monotonic()
        raw = socket.create_connection((self.address, self.port), PATIENCE)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        conn = self.context.wrap_socket(raw, server_hostname=self.address)
        conn.sendall(struct.pack("<BI", 0, 0x3C85F7CE))
        self.ping(conn)
        self.took = time.monotonic() - begun
        return conn

    def ping(self, conn):
        begun = time.monotonic()
        conn.sendall(struct.pack("<BI", 13, 0x01020304))
        got = b""
        while len(got) < 4:
            more = conn.recv(4 - len(got))
            if not more:
                raise ConnectionError("the server hung up")
            got += more
        return time.monotonic() - begun

    def measure(self, what):
        """Medians and 99th percentiles in ms, of connections and of requests, and who failed."""
        anew, kept, failed = [], [], 0
        end = time.monotonic() + LASTS
        for _ in range(TRIES):
            try:
                self.connect().close()
                anew.append(self.took)
            except (OSError, ssl.SSLError) as error:
                failed += 1
                print("     %s: %s" % (what, error), flush=True)
            kept.append(self.ping(self.lasting))
            if time.monotonic() > end:
                break
        checks.note("%-10s connect p50 %6.2f p99 %6.2f ms, request p50 %6.2f p99 %6.2f ms" % (
            (what,) + tuple(1000 * sorted(times)[int(len(times) * part)]
                            for times in (anew or [PATIENCE], kept) for part in (0.5, 0.99))))
        return anew, kept, failed


def memory_of(server):
    with open("/proc/%d/status" % server.pid) as file:
        return int(re.search(r"VmHWM:\s+(\d+)", file.read())[1]) << 10


def certificates(scratch, address):
    directory = os.path.join(scratch, "tls")
    if not os.path.exists(directory):
        run_muster("keygen", "tls", directory, "--host", address)
    at = os.path.join(directory, address)
    return directory, ("--tls-cert", at + ".pem", "--tls-key", at + ".key", "--tls-ca",
                       os.path.join(directory, "ca.pem"))


def attack(scratch, address, words, count, rate=5000):
    directory, lock = certificates(scratch, address)
    with Muster(*lock, listen=address + ":0") as server:
        honest = Honest(make_context(directory, address), address, server.port)
        honest.measure("alone")
        with Attack(address, server.port, count, words, rate):
            _, kept, failed = honest.measure("attacked")
        memory = memory_of(server)
        checks.note("memory %.0f MiB at most" % (memory / (1 << 20)))
        checks.ok(failed == 0, "each connection of an honest client comes about", failed)
        checks.ok(max(kept) < PATIENCE / 4, "none of its requests waits for long", max(kept))
        if not is_sanitized():
            checks.ok(memory < MEMORY_MAX, "the server's memory stays small", memory)


def test_herd(scratch, address):
    """Honest ones of one address, all at once: they wait for each other, and all get in."""
    directory, lock = certificates(scratch, address)
    context = make_context(directory, address)
    with Muster(*lock, listen=address + ":0") as server:
        start = threading.Barrier(HERD)

        def come(_):
            start.wait(PATIENCE)
            try:
                return Honest(context, address, server.port).took
            except OSError as error:
                return error

        with concurrent.futures.ThreadPoolExecutor(HERD) as pool:
            took = list(pool.map(come, range(HERD)))
        failed = [error for error in took if isinstance(error, OSError)]
        checks.ok(not failed, "%d who come at once all get in" % HERD, failed[:3])
        if not failed:
            checks.note("the last one after %.1f s" % max(took))


def test_silence(scratch, address):
    attack(scratch, address, b"", COUNT)


def test_one_byte(scratch, address):
    attack(scratch, address, b"\x16", COUNT)


def test_half_a_hello(scratch, address):
    attack(scratch, address, make_hello("X25519")[:-1], COUNT)


def test_hello_and_no_more(scratch, address):
    attack(scratch, address, make_hello("X25519"), COUNT // 10, rate=500)


def test_hello_of_a_slow_group(scratch, address):
    attack(scratch, address, make_hello("ffdhe8192"), COUNT // 20, rate=500)


def main():
    address, other = beyond_loopback()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if other is None or not set_up_network():
        checks.skip("this needs a network of its own")
    elif resource.getrlimit(resource.RLIMIT_NOFILE)[0] < COUNT // Attack.PROCESSES + 100:
        checks.skip("this needs %d descriptors" % (COUNT // Attack.PROCESSES + 100))
    else:
        with Scratch() as scratch:
            checks.run_tests(globals(), scratch, address)
    checks.done()


if __name__ == "__main__":
    main()
