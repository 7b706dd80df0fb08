"""Conversations of real clients, as tests/live/storm.h has them: what PyTorch sent, what muster's
own commands say through a proxy that listens, and what peers say inside Noise."""
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path.insert(0, os.path.join(HERE, "..", "interop"))
import lib  # noqa: E402
import p2pd_lib  # noqa: E402
from raw_peer import DATA, RawPeer, Refused, field, line, uvarint  # noqa: E402

SMALL = 24 << 10  # a conversation is cut here: more of the same teaches nobody anything


class Conversation:
    def __init__(self, name):
        self.name = name.replace(" ", "-")[:60]
        self.steps = []  # (bytes that had come back, stream or None, bytes)
        self.back = 0

    def say(self, data, stream=None):
        if sum(len(s[2]) for s in self.steps) < SMALL:
            self.steps.append((self.back, stream, data[:SMALL]))

    def text(self):
        return "conv %s\n" % self.name + "".join(
            "send %d %s %s\n" % (after, "-" if stream is None else stream, data.hex())
            for after, stream, data in self.steps)


def write(path, conversations):
    kept = [c for c in conversations if c.steps]
    with open(path, "w") as file:
        file.write("".join(c.text() for c in kept))
    return len(kept)


# --- a proxy ------------------------------------------------------------------------------------


class Proxy:
    """Listens, passes everything on, and keeps what clients say."""

    def __init__(self, target, name, unix=None):
        self.target, self.name = target, name
        self.conversations = []
        self.listener = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        self.listener.bind(unix or (lib.HOST, 0))
        self.listener.listen(16)
        self.address = unix or "%s:%d" % self.listener.getsockname()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
                kept = Conversation("%s-%d" % (self.name, len(self.conversations)))
                self.conversations.append(kept)
                server = socket.socket(socket.AF_UNIX if isinstance(self.target, str)
                                       else socket.AF_INET)
                server.connect(self.target)
            except OSError:
                return
            threading.Thread(target=self.pass_on, args=(client, server, kept.say),
                             daemon=True).start()
            threading.Thread(target=self.pass_on, args=(
                server, client, lambda data, k=kept: setattr(k, "back", k.back + len(data))),
                daemon=True).start()

    @staticmethod
    def pass_on(source, sink, note):
        try:
            while True:
                data = source.recv(1 << 16)
                if not data:
                    break
                note(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()
            sink.close()

    def close(self):
        self.listener.close()
        return self.conversations


def run(argv, patience=20, input=None):
    return subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          stdin=subprocess.DEVNULL if input is None else None, input=input,
                          timeout=patience, preexec_fn=lib.die_with_parent).returncode


def run_through(port, name, commands):
    """Runs commands, in which {} stands for the address of a proxy to that port; those that stay
    are ended after a while."""
    proxy = Proxy((lib.HOST, port), name)
    for argv in commands:
        argv = [word.replace("{}", proxy.address) for word in argv]
        try:
            run(argv, 3)
        except subprocess.TimeoutExpired:
            pass
    return proxy.close()


# --- the store ----------------------------------------------------------------------------------


def vectors(version):
    """What PyTorch of that version sent: a conversation for each connection of each part."""
    found, there = [], {}
    with open(os.path.join(ROOT, "tests", "vectors", "torch-%s.txt" % version)) as file:
        for text in file:
            mark, _, rest = text.strip().partition(" ")
            if mark == "store":
                there = {}
            elif mark == "conn":
                if rest not in there:
                    there[rest] = Conversation("torch-%s-%d" % (version, len(found)))
                    found.append(there[rest])
                now = there[rest]
            elif mark == ">":
                now.say(bytes.fromhex(rest))
            elif mark == "<":
                now.back += len(bytes.fromhex(rest))
    return found


def store2(port):
    """Every operation of the second generation."""
    proxy = Proxy((lib.HOST, port), "gen2")
    for part in range(3):
        with lib.Conn(int(proxy.address.rsplit(":", 1)[1]), 2) as c:
            key = "/live%d" % part
            c.set_acked(key, "x" * 40)
            c.get(key)
            c.add(key + "n", 7)
            c.cas(key, "x" * 40, "z")
            c.check(key, key + "n")
            c.append(key, "tail")
            c.multi_set([(key + "a", "1"), (key + "b", "2")])
            c.multi_get([key + "a", key + "b"])
            c.push(key + "q", "element")
            c.pop(key + "q")
            c.queue_len(key + "q")
            if part:
                c.start_wait(key + "later")
                c.cancel()
                assert c.recv(1) == lib.WAIT_CANCELED
            c.num_keys()
            c.list_keys()
            c.delete(key)
    return proxy.close()


def native(port, muster):
    kv = [muster, "kv", "--store", "tcp://{}"]
    rdzv = [muster, "rdzv"]
    where = ["--rdzv-endpoint", "{}", "--rdzv-id", "live"]
    return run_through(port, "native", [
        kv + ["set", "a", "value"], kv + ["get", "a"], kv + ["add", "n", "3"],
        kv + ["cas", "a", "value", "other"], kv + ["keys"], kv + ["mset", "b", "1", "c", "2"],
        kv + ["mget", "a", "b", "c"], kv + ["push", "q", "x"], kv + ["pop", "q"],
        kv + ["lease", "grant", "1s"], kv + ["append", "a", "tail"], kv + ["del", "a"],
        kv + ["--timeout", "300ms", "wait", "never"], kv + ["--timeout", "300ms", "watch", "a"],
        kv + ["barrier", "bar", "1"],
        rdzv + ["join"] + where, rdzv + ["status"] + where, rdzv + ["close"] + where])


def rpc(port, muster):
    call = [muster, "rpc", "call", "--to", "{}", "--timeout", "2"]
    return run_through(port, "rpc", [
        call + ["muster::Rpc.echo", "hello"], call + ["muster::Rpc.count"],
        call + ["muster::Rpc.fail"], call + ["muster::Rpc.stats"], call + ["no::Such.method", "x"],
        call + ["--once", "muster::Rpc.count"],
        call + ["--timeout", "0.2", "muster::Rpc.sleep", "5"],
        call + ["--count", "20", "--in-flight", "8", "muster::Rpc.echo", "many"]])


def state(port, muster, scratch):
    return run_through(port, "state", [
        [muster, "state", "ls", "{}"],
        [muster, "state", "pull", "-q", "--no-serve", "-o", os.path.join(scratch, "a"), "{}"],
        [muster, "state", "pull", "-q", "-o", os.path.join(scratch, "b"), "{}"]])


def http(password):
    """What browsers and programs ask a page, with the right password."""
    found = []
    for path in ("/", "/status.json", "/metrics", "/healthz", "/readyz", "/events", "/nothing",
                 "/%2e%2e/etc/passwd?a=b"):
        c = Conversation("http" + path.replace("/", "-"))
        c.say(b"GET %s HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Mozilla/5.0\r\nAccept: */*\r\n"
              b"Authorization: Basic %s\r\nConnection: keep-alive\r\n\r\n" % (
                  path.encode(), password))
        c.back = 1
        c.say(b"HEAD %s HTTP/1.0\r\n\r\n" % path.encode())
        c.say(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody" % path.encode())
        found.append(c)
    return found


def tls(port, scratch):
    """First flights of others' TLS: Python's, with and without old versions, and s_client's with a
    key that is nobody's."""
    found = []
    for old in (False, True):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = (ssl.TLSVersion.TLSv1_2 if old else ssl.TLSVersion.TLSv1_3)
        out = ssl.MemoryBIO()
        tls_object = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="node1")
        try:
            tls_object.do_handshake()
        except ssl.SSLWantReadError:
            pass
        c = Conversation("hello-%d" % old)
        c.say(out.read())
        found.append(c)
    return found + run_through(port, "s_client", [
        ["openssl", "s_client", "-quiet", "-tls1_3", "-connect", "{}", "-psk_identity", "muster",
         "-psk", "11" * 32],
        ["openssl", "s_client", "-quiet", "-tls1_3", "-connect", "{}"]])


# --- peers --------------------------------------------------------------------------------------


class Listening(RawPeer):
    """A peer whose words are kept as they are before they are sealed."""

    def __init__(self, address, name):
        super().__init__(address, patience=10)
        self.framed = Conversation(name + "-frames")
        self.streamed = Conversation(name)

    def say(self, plain):
        self.framed.say(plain)
        at = 0
        while at + 12 <= len(plain):
            kind, stream = plain[at + 1], int.from_bytes(plain[at + 4:at + 8], "big")
            size = int.from_bytes(plain[at + 8:at + 12], "big") if kind == DATA else 0
            if kind == DATA:
                self.streamed.say(plain[at + 12:at + 12 + size], stream)
            at += 12 + size
        super().say(plain)

    def hear(self):
        before = len(self.plain) + sum(len(s) for s in self.streams.values())
        super().hear()
        after = len(self.plain) + sum(len(s) for s in self.streams.values())
        self.framed.back += max(after - before, 0)
        self.streamed.back = self.framed.back


def seeds(*targets):
    """What the fuzzers of tests/fuzz begin with."""
    for target in targets:
        folder = os.path.join(ROOT, "tests", "fuzz", "corpus", target)
        for name in sorted(os.listdir(folder))[:16]:
            with open(os.path.join(folder, name), "rb") as file:
                yield name, file.read()[:4096]


def greeting(name):
    return line("/multistream/1.0.0") + line(name)


def on_stream(name, protocol, *messages):
    c = Conversation(name)
    c.say(greeting(protocol) + (messages[0] if messages else b""), 1)
    for number, message in enumerate(messages[1:]):
        c.say(message, 1 + 2 * (number % 2))
    return c


def peer(address, methods):
    """Streams that peers open: identify, ping, kad, relays, calls in hivemind's framing."""
    found = []
    with Listening(address, "peer") as p:
        p.handshake()
        stream = p.open("/ipfs/ping/1.0.0")
        p.write(stream, os.urandom(32))
        p.hear_until(lambda: len(p.streams[stream]) >= 32 + 20, "the ping")
        for method, message in methods:
            try:
                p.call(method, message)
            except Refused:
                pass
        p.open("/ipfs/id/1.0.0")
        p.hear()
        found += [p.framed, p.streamed]
    for name, data in seeds("kad_msg"):
        found.append(on_stream("kad-" + name, "/ipfs/kad/1.0.0", uvarint(len(data)) + data))
    for name, data in seeds("relay_msg"):
        for protocol in ("hop", "stop"):
            found.append(on_stream("relay-" + protocol, "/libp2p/circuit/relay/0.2.0/" + protocol,
                                   uvarint(len(data)) + data))
    for name, data in seeds("identify"):
        found.append(on_stream("push-" + name, "/ipfs/id/push/1.0.0", uvarint(len(data)) + data))
    for method, message in methods:
        ask = field(1, os.urandom(16)) + field(
            3, field(1, os.urandom(34)) + field(2, method.encode()) + field(3, message))
        found.append(on_stream(method, method, uvarint(len(ask)) + ask))
    return found


def dht_methods():
    found = [("DHTProtocol.rpc_ping", b""), ("DHTProtocol.rpc_find", field(2, b"\x11" * 20))]
    for name, data in seeds("dht_msg"):
        found += [("DHTProtocol.rpc_" + kind, data[1:]) for kind in ("ping", "store", "find")]
    now = int(time.time()) + 300
    found.append(("DHTProtocol.rpc_store", field(2, b"\x22" * 20) + field(3, b"\xc0")
                  + field(4, b"\xa4live") + field(5, struct.pack("<d", now)) + field(6, b"\0")
                  + field(7, b"")))
    return found


def inside(protocol, conversations):
    """The same, on a stream of that protocol between peers."""
    found = []
    for c in conversations:
        kept = Conversation("peer-" + c.name)
        kept.say(greeting(protocol), 1)
        for after, _, data in c.steps:
            kept.back = after + 60 if after else 0
            kept.say(data, 1)
        found.append(kept)
    return found


def raw_handshake(address):
    """The beginning of a connection to a peer, as it is on the wire."""
    c = Conversation("noise")
    with RawPeer(address, patience=10) as p:
        p.handshake()
        said = p.said
    c.say(said[:28])
    c.back = 28
    c.say(said[28:62])
    c.back = 29
    c.say(said[62:])
    return [c]


# --- p2pd ---------------------------------------------------------------------------------------


def p2pd(control, scratch, other_id, other_address):
    """Requests to a daemon, and a connection that stays."""
    path = os.path.join(scratch, "recorder.sock")
    proxy = Proxy(control, "p2pd", unix=path)
    d = p2pd_lib
    peer_of = d.data(1, other_id)
    requests = [
        d.number(1, d.IDENTIFY),
        d.number(1, d.CONNECT) + d.data(2, peer_of + d.data(2, other_address) + d.number(3, 1)),
        d.number(1, d.LIST_PEERS),
        d.number(1, d.STREAM_OPEN) + d.data(3, peer_of + d.data(2, "/muster/echo/1.0.0")),
        d.number(1, d.STREAM_HANDLER) + d.data(4, d.data(1, d.maddr("/unix" + path + ".h"))
                                               + d.data(2, "/live/1") + d.number(3, 1)),
        d.number(1, d.REMOVE_STREAM_HANDLER) + d.data(9, d.data(1, d.maddr("/unix" + path + ".h"))
                                                      + d.data(2, "/live/1")),
        d.number(1, d.DHT) + d.data(5, d.number(1, 0) + d.data(2, other_id)),
        d.number(1, d.CONNMANAGER) + d.data(6, d.number(1, 0) + d.data(2, other_id)),
        d.number(1, d.PUBSUB) + d.data(8, d.number(1, 0)),
        d.number(1, d.DISCONNECT) + d.data(7, peer_of)]
    calls = [
        d.data(1, os.urandom(16)) + d.data(2, d.data(1, "live.method") + d.number(2, 1)),
        d.data(1, os.urandom(16)) + d.data(3, peer_of + d.data(2, "muster::Echo.echo")
                                           + d.data(3, b"hello")),
        d.data(1, os.urandom(16)) + d.data(5, b""),
        d.data(1, os.urandom(16)) + d.data(6, d.data(1, "live.method"))]
    for request in requests:
        say_to(path, [d.framed(request)])
    say_to(path, [d.framed(r) for r in (requests[0], requests[2], requests[6])])
    say_to(path, [d.framed(d.number(1, d.UPGRADE))] + [d.framed(c) for c in calls])
    found = proxy.close()
    os.unlink(path)
    return found


def say_to(path, messages):
    """Says each and reads an answer, if one comes soon."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        s.settimeout(0.3)
        for message in messages:
            s.sendall(message)
            try:
                s.recv(1 << 16)
            except (socket.timeout, ConnectionError):
                pass
