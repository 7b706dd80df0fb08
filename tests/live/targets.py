"""The live servers of fuzz_live.py: how each is started, how it is reached, and who its honest
client is."""
import base64
import filecmp
import json
import os
import re
import signal
import socket
import struct
import subprocess
import urllib.request

import record
from record import lib, p2pd_lib

FAR = "10.77.0.1"  # of the network of our own (lib.beyond_loopback)
PROMPT = 10.0      # within which an honest client is answered, on a machine that is busy
PEERS = 80         # cases at a time, where 128 who have not proved themselves find room

OPTIONS = {"ASAN_OPTIONS": "detect_leaks=1:exitcode=99:quarantine_size_mb=16",
           "UBSAN_OPTIONS": "print_stacktrace=1",
           "LOGLEVEL": "ERROR"}

SANITIZER = re.compile(rb"ERROR: \w+Sanitizer|runtime error: |SUMMARY: ")


class Live:
    """A server under way. `ways` are how it is stormed, `honest` is called again and again."""

    def __init__(self, name, argv, scratch, stdout=None):
        self.name, self.ways, self.honest, self.clean = name, [], None, lambda: None
        self.slots = 128  # cases at a time
        self.read, self.said = 0, None  # bytes of its log; what a sanitizer has said there
        self.log_path = os.path.join(scratch, name + ".log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stdout or log,
                                            stderr=log, env=dict(os.environ, **OPTIONS),
                                            preexec_fn=lib.die_with_parent)

    def log(self):
        with open(self.log_path, errors="replace") as file:
            return file.read()

    def wait_for(self, where):
        """Until it listens there: (host, port) or a path."""
        def listens():
            if self.process.poll() is not None:
                raise AssertionError("%s did not start: %s" % (self.name, self.log()))
            with socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET) as s:
                return s.connect_ex(where) == 0
        lib.wait_until(listens, "%s listens" % self.name, 60, 0.02)

    def lines(self, count):
        return [json.loads(self.process.stdout.readline()) for _ in range(count)]

    def trouble(self):
        """What a sanitizer or the system says of it, or None."""
        code = self.process.poll()
        self.said = self.said or self.read_on(code is not None)
        if self.said or code is None:
            return self.said
        return "it ended with %d: %s" % (code, self.log()[-400:])

    def read_on(self, all_of_it):
        """The first line of a sanitizer's in what is new in the log, or None. No byte is looked at
        twice: the honest clients, who are timed, wait for this process's lock meanwhile."""
        with open(self.log_path, "rb") as file:
            file.seek(self.read)
            new = file.read()
        new = new if all_of_it else new[:new.rfind(b"\n") + 1]
        self.read += len(new)
        found = SANITIZER.search(new)
        if not found:
            return None
        end = new.find(b"\n", found.end())
        return new[new.rfind(b"\n", 0, found.start()) + 1:end if end >= 0 else None].decode(
            errors="replace")

    def memory(self):
        with open("/proc/%d/status" % self.process.pid) as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) << 10

    def descriptors(self):
        return len(os.listdir("/proc/%d/fd" % self.process.pid))

    def stop(self):
        """SIGTERM; what is wrong with how it ended, or None."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                return "it did not end within 60 s of SIGTERM"
        # p2pd says by which signal it was ended, as Go's does.
        return None if self.process.returncode in (0, 128 + signal.SIGTERM) else self.trouble()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class World:
    """What all targets need: programs, credentials, a place for files."""

    def __init__(self, scratch, server, client):
        self.scratch, self.server, self.client = scratch, server, client
        self.count = 0
        self.token = os.path.join(scratch, "token")
        certs = os.path.join(scratch, "certs")
        self.run("keygen", "token", self.token)
        self.run("keygen", "tls", certs, "--host", FAR)
        self.cert, self.key = certs + "/%s.pem" % FAR, certs + "/%s.key" % FAR
        self.locks = {"token": ["--token-file", self.token],
                      "certs": ["--tls-cert", self.cert, "--tls-key", self.key, "--tls-ca",
                                certs + "/ca.pem"]}
        self.model = os.path.join(scratch, "model.safetensors")
        head = b'{"a":{"dtype":"F32","shape":[16384],"data_offsets":[0,65536]}}'
        head += b" " * (-len(head) % 8)
        with open(self.model, "wb") as file:
            file.write(struct.pack("<Q", len(head)) + head + os.urandom(65536))

    def run(self, *argv):
        done = subprocess.run([self.client] + list(argv), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=6 * PROMPT, preexec_fn=lib.die_with_parent)
        if done.returncode != 0:
            raise AssertionError("%s: exit code %d: %s" % (
                " ".join(argv[:2]), done.returncode, done.stderr.decode(errors="replace")[-300:]))
        return done.stdout.decode(errors="replace").strip()

    def expect(self, answer, *argv):
        got = self.run(*argv)
        if got != answer:
            raise AssertionError("%s answered %r instead of %r" % (" ".join(argv), got, answer))

    def start(self, name, *argv, where=None, stdout=None):
        self.count += 1
        live = Live("%s-%d" % (name, self.count), [self.server] + list(argv), self.scratch, stdout)
        if where:
            live.wait_for(where)
        return live


# --- the store ----------------------------------------------------------------------------------


def purge(port):
    """What mutations have stored is no leak."""
    with lib.Conn(port, 2, patience=PROMPT) as c:
        for key in c.list_keys():
            if not key.startswith(b"/honest"):
                c.delete(key)


class HonestStore:
    """PyTorch's protocol on a connection that stays and on one that is new; the native wire,
    sealed."""

    def __init__(self, world, port, lock, generation):
        self.world, self.port, self.generation, self.count = world, port, generation, 0
        self.kept = lib.Conn(port, generation, patience=PROMPT)
        self.kv = ["kv", "--store", "tcp://%s:%d" % (FAR, port), "--timeout",
                   "%ds" % PROMPT] + world.locks[lock]

    def __call__(self):
        self.count += 1
        value = b"value %d" % self.count
        self.kept.set("/honest/a", value)
        with lib.Conn(self.port, self.generation, patience=PROMPT) as c:
            c.set_acked("/honest/b", value)
            got = (self.kept.get("/honest/b"), c.add("/honest/n", 1), self.kept.get("/honest/a"))
        if got != (value, self.count, value):
            raise AssertionError("the store answered %r at %d" % (got, self.count))
        if self.count % 8 == 1:
            # As PyTorch's clients, it puts a slash before each key.
            self.world.run(*self.kv, "set", "honest/c", value.decode())
            self.world.expect(value.decode(), *self.kv, "get", "honest/c")
        if self.count % 64 == 0:
            purge(self.port)


def serve(world, lock, generation=2, *more):
    port = lib.free_port()
    live = world.start("serve-" + lock, "serve", "--listen", "0.0.0.0:%d" % port,
                       "--session-grace", "1s", *world.locks[lock], *more,
                       where=(lib.HOST, port))
    live.port = port
    # A handshake takes as long as ten cases without: a quarter are sealed.
    live.ways = ["plain@127.0.0.1:%d" % port, "plain@127.0.0.1:%d" % port,
                 "%s@%s:%d" % (lock, FAR, port), "plain@%s:%d" % (FAR, port)]
    live.honest = HonestStore(world, port, lock, generation)
    live.clean = lambda: purge(port)
    return live


def both(start, world, record_from):
    """A server for each credential; what is said is recorded at the first."""
    lives = [start(world, "token"), start(world, "certs")]
    return lives, record_from(lives[0])


def store1(world):
    return both(lambda w, lock: serve(w, lock, 1), world, lambda _: record.vectors("1.13"))


def store2(world):
    return both(serve, world, lambda live: record.vectors("2.11") + record.store2(live.port))


def native(world):
    return both(serve, world, lambda live: record.native(live.port, world.client))


def tls(world):
    return both(serve, world, lambda live: record.tls(live.port, world.scratch))


def http(world):
    page = lib.free_port()
    live = serve(world, "token", 2, "--http", "%s:%d" % (lib.HOST, page))
    live.wait_for((lib.HOST, page))
    live.ways = ["plain@127.0.0.1:%d" % page]
    live.slots = 24  # a page takes 64 connections

    password = base64.b64encode(b"x:" + world.run("keygen", "page", world.token).encode())
    request = urllib.request.Request("http://%s:%d/status.json" % (lib.HOST, page),
                                     headers={"Authorization": "Basic " + password.decode()})

    def ask():
        with urllib.request.urlopen(request, timeout=PROMPT) as answer:
            json.loads(answer.read())

    live.honest = ask
    return [live], record.http(password)


# --- workers and states -------------------------------------------------------------------------


def rpc_serve(world, lock):
    port = lib.free_port()
    live = world.start("rpc-" + lock, "rpc", "serve", "--listen", "0.0.0.0:%d" % port,
                       "--advertise", FAR, *world.locks[lock], where=(lib.HOST, port))
    live.port = port
    live.ways = ["plain@127.0.0.1:%d" % port, "%s@%s:%d" % (lock, FAR, port),
                 "plain@%s:%d" % (FAR, port)]
    live.honest = lambda: world.expect("hello", "rpc", "call", "--to", "%s:%d" % (FAR, port),
                                       *world.locks[lock], "muster::Rpc.echo", "hello")
    return live


def rpc(world):
    return both(rpc_serve, world, lambda live: record.rpc(live.port, world.client))


def pull_and_compare(world, live, *argv):
    copy = os.path.join(world.scratch, live.name + ".copy")
    if os.path.exists(copy):
        os.unlink(copy)
    world.run("state", "pull", "-q", "--no-serve", "-o", copy, *argv)
    if not filecmp.cmp(copy, world.model, shallow=False):
        raise AssertionError("another state than the one that is shared was pulled")


def state_serve(world, lock):
    port = lib.free_port()
    live = world.start("state-" + lock, "state", "serve", "--listen", "0.0.0.0:%d" % port,
                       "--advertise", FAR, *world.locks[lock], world.model, where=(lib.HOST, port))
    live.port = port
    live.ways = ["plain@127.0.0.1:%d" % port, "%s@%s:%d" % (lock, FAR, port),
                 "plain@%s:%d" % (FAR, port)]
    live.honest = lambda: pull_and_compare(world, live, *world.locks[lock], "%s:%d" % (FAR, port))
    return live


def state(world):
    return both(state_serve, world,
                lambda live: record.state(live.port, world.client, world.scratch))


# --- peers --------------------------------------------------------------------------------------


def port_of(address):
    return int(address.split("/")[4])


def peer_live(world, name, *argv, count=1):
    live = world.start(name, *argv, "--json", stdout=subprocess.PIPE)
    live.address = live.lines(count)[0]["listen"][0]
    at = "127.0.0.1:%d" % port_of(live.address)
    live.ways = ["noise@" + at, "noise@" + at, "noise@" + at, "plain@" + at]
    live.slots = PEERS
    return live


def peer(world):
    live = peer_live(world, "peer", "peer", "serve", "--relay")
    live.honest = lambda: world.expect("hello", "peer", "call", live.address, "muster::Echo.echo",
                                       "hello")
    methods = [("muster::Echo.echo", b"hello"), ("muster::Echo.stream", b"hello")]
    return [live], record.raw_handshake(live.address) + record.peer(live.address, methods)


def dht(world):
    live = peer_live(world, "dht", "dht", "serve", count=2)
    world.run("dht", "store", "--bootstrap", live.address, "--expiration", "24h", "honest", '"well"')

    def ask():
        if json.loads(world.run("dht", "get", "--json", "--latest", "--bootstrap", live.address,
                                "honest"))["value"] != "well":
            raise AssertionError("another record than the one that was stored")

    live.honest = ask
    return [live], record.peer(live.address, record.dht_methods())


def state_peer(world):
    """A state between peers: the native wire on streams of yamux, inside Noise."""
    plain = state_serve(world, "token")
    said = record.state(plain.port, world.client, world.scratch)
    plain.kill()
    identity = os.path.join(world.scratch, "donor.key")
    world.run("peer", "id", "--new", identity)
    port = lib.free_port()
    live = world.start("state-peer", "state", "serve", "--listen", "/ip4/127.0.0.1/tcp/%d" % port,
                       "--identity", identity, world.model, where=(lib.HOST, port))
    address = "/ip4/127.0.0.1/tcp/%d/p2p/%s" % (port, re.search(
        r"12D3\w+", world.run("peer", "id", identity))[0])
    live.ways = ["noise@127.0.0.1:%d" % port]
    live.slots = PEERS
    live.honest = lambda: pull_and_compare(world, live, "--identity", identity + ".me", address)
    world.run("peer", "id", "--new", identity + ".me")
    return [live], record.inside("/muster/rpc/1.0.0", said)


class Daemon:
    """An honest client of a p2p daemon: a connection that stays, and new ones."""

    def __init__(self, control, other_id, other_address):
        self.control, self.other_id, self.count = control, other_id, 0
        d = p2pd_lib
        # A daemon ends with the last of those who stay.
        self.kept = self.dial()
        self.ask(self.kept, d.number(1, d.UPGRADE))
        self.connect_other = d.number(1, d.CONNECT) + d.data(
            2, d.data(1, other_id) + d.data(2, other_address))

    def dial(self):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(PROMPT)
        s.connect(self.control)
        return s

    @staticmethod
    def ask(s, message):
        s.sendall(p2pd_lib.framed(message))
        length = shift = 0
        while True:
            byte = s.recv(1)[0]
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        got = b""
        while len(got) < length:
            got += s.recv(length - len(got))
        return p2pd_lib.fields(got)

    def __call__(self):
        d = p2pd_lib
        self.count += 1
        with self.dial() as s:
            answer = self.ask(s, d.number(1, d.IDENTIFY))
        if answer[1][0] != 0 or 4 not in answer:
            raise AssertionError("identify is answered with %r" % answer)
        for _ in range(5):
            if self.call_other():
                return
        raise AssertionError("calls to another peer fail again and again")

    def call_other(self):
        """False: somebody has closed the daemon's connection to it, or told it that the peer is
        elsewhere, as any client may."""
        d = p2pd_lib
        with self.dial() as s:
            self.ask(s, self.connect_other)
        said = b"hello %d" % self.count
        answer = self.ask(self.kept, d.data(1, os.urandom(16)) + d.data(
            3, d.data(1, self.other_id) + d.data(2, "muster::Echo.echo") + d.data(3, said)))
        if 4 in answer:
            return False
        if 2 not in answer or d.fields(answer[2][0]).get(1) != [said]:
            raise AssertionError("a call is answered with %r" % answer)
        return True


def p2pd(world):
    control = os.path.join(world.scratch, "p2pd.sock")
    port = lib.free_port()
    other = world.start("other", "peer", "serve", "--json", stdout=subprocess.PIPE)
    where = other.lines(1)[0]["listen"][0]
    other_id = p2pd_lib.from_base58(where.rsplit("/", 1)[1])
    other_address = p2pd_lib.maddr(where.rsplit("/p2p", 1)[0])
    live = world.start("p2pd", "p2pd", "-listen=/unix" + control, "-dhtServer",
                       "-hostAddrs=/ip4/127.0.0.1/tcp/%d" % port, where=control)
    live.companions = [other]
    live.ways = ["plain@" + control, "plain@" + control, "noise@127.0.0.1:%d" % port]
    live.honest = Daemon(control, other_id, other_address)
    said = record.p2pd(control, world.scratch, other_id, other_address)
    return [live], said + record.peer("/ip4/127.0.0.1/tcp/%d/p2p/%s" % (
        port, re.search(r"Peer ID: (\w+)", live.log())[1]), [])


TARGETS = {"store1": store1, "store2": store2, "native": native, "tls": tls, "http": http,
           "rpc": rpc, "state": state, "peer": peer, "dht": dht, "state_peer": state_peer,
           "p2pd": p2pd}
