#!/usr/bin/python3
"""`muster kv` on a real etcd: every operation on v3, a cluster whose members are killed, TLS,
passwords, and each thing that can be wrong with those with its own words.

    etcd_kv.py [MUSTER]
"""
import base64
import os
import socket
import struct
import subprocess
import threading
import time
import urllib.request

import etcd_lib
import lib
from etcd_lib import kv

OK, NOT_WRITTEN, TIMED_OUT, NO_KEY = 0, 1, 3, 7


def b64(text):
    return base64.b64encode(text.encode()).decode()


def test_operations(checks, url):
    def same(expected, what, *args, **options):
        code, out, err = kv(url, *args, **options)
        checks.equal((code, out.decode()), expected, what + (": " + err.strip() if err else ""))

    same((OK, ""), "set", "set", "a", "hello")
    same((OK, "hello\n"), "get", "get", "a")
    same((OK, "5\n"), "add creates", "add", "n", "5")
    same((OK, "3\n"), "add adds", "add", "n", "-2")
    same((OK, "bye\n"), "cas that holds", "cas", "a", "hello", "bye")
    same((NOT_WRITTEN, "bye\n"), "cas that does not", "cas", "a", "hello", "no")
    same((NOT_WRITTEN, "x\n"), "cas of no key", "cas", "none", "x", "y")
    same((OK, "v\n"), "cas creates", "cas", "new", "", "v")
    kv(url, "append", "a", "!")
    same((OK, "bye!\n"), "append", "get", "a")
    same((OK, "1\n"), "check", "check", "a", "n")
    same((NO_KEY, "0\n"), "check of no key", "check", "a", "none")
    same((OK, "a\nn\nnew\n"), "keys", "keys")
    same((OK, "n\nnew\n"), "keys with a prefix", "keys", "n")
    same((OK, "3\n"), "count", "count")
    same((OK, "1\n"), "del", "del", "a")
    same((NO_KEY, "0\n"), "del of no key", "del", "a")
    many = [part for i in range(130) for part in ("m%03d" % i, str(i))]
    same((OK, ""), "mset of more than fit a transaction", "mset", *many)
    same((OK, "".join("%d\n" % i for i in range(130))), "mget of as many", "mget", *many[::2])
    kv(url, "push", "q", "one")
    kv(url, "push", "q", "two")
    same((OK, "2\n"), "a queue's length", "len", "q")
    same((OK, "one\n"), "pop in order", "pop", "q")
    same((OK, "two\n"), "pop the next", "pop", "q")
    same((NO_KEY, ""), "pop of nothing", "pop", "q")
    same((NO_KEY, ""), "get of nothing", "get", "never")
    same((NO_KEY, ""), "mget of something and nothing", "mget", "a", "never")
    same((OK, ""), "barrier of one", "barrier", "b", "1")
    code, _, err = kv(url, "get", "never", "--wait", timeout=300)
    checks.ok(code == TIMED_OUT and '"never"' in err, "a timeout names the key", err)


def test_waiting(checks, url):
    for name, write in (("get", ("set", "late", "x")), ("pop", ("push", "late", "x"))):
        waiter = subprocess.Popen([lib.muster_path(), "kv", "--store", url, "--timeout", "10s",
                                   "--wait", name, "late"], stdout=subprocess.PIPE,
                                  preexec_fn=lib.die_with_parent)
        try:
            waiter.wait(0.4)
        except subprocess.TimeoutExpired:
            pass
        checks.ok(waiter.poll() is None, name + " waits")
        kv(url, *write)
        checks.equal(waiter.communicate(timeout=10)[0], b"x\n", name + " gets what was waited for")


class LateRelay:
    """Between a client and etcd: the first write is held back and its connection closed,
    while somebody else writes the key. What was held arrives before the client's third write, or
    right behind it."""

    def __init__(self, etcd, key, before):
        self.etcd, self.key, self.before = etcd, key, before
        self.held, self.count = None, 0
        self.listener = socket.create_server((lib.HOST, 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            conn, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(conn,), daemon=True).start()

    def post(self, path, body):
        query = urllib.request.Request(self.etcd.url() + path, body)
        with urllib.request.urlopen(query, timeout=10) as reply:
            return reply.read()

    def arrive(self):
        """The key is gone once more, so that what was held finds what it expects."""
        self.etcd.call("/v3/kv/deleterange", {"key": b64(self.key)})
        self.post("/v3/kv/txn", self.held)

    def serve(self, conn):
        stream = conn.makefile("rb")
        while True:
            line = stream.readline()
            if not line:
                return
            length = 0
            while True:
                header = stream.readline()
                if header.lower().startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
                if header in (b"\r\n", b""):
                    break
            body, path = stream.read(length), line.split()[1].decode()
            writes = path == "/v3/kv/txn" and b"request_put" in body
            if writes:
                self.count += 1
                if self.count == 1:
                    self.held = body
                    self.etcd.call("/v3/kv/put", {"key": b64(self.key), "value": b64("37")})
                    conn.shutdown(socket.SHUT_RDWR)
                    return
                if self.count == 3 and self.before:
                    self.arrive()
            reply = self.post(path, body)
            if writes and self.count == 3 and not self.before:
                self.arrive()
            conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                         b"Content-Length: %d\r\n\r\n" % len(reply) + reply)


def test_late_tries(checks, etcd):
    """A try whose answer was lost arrives when its key, which was there meanwhile, is gone again."""
    for i, before in enumerate((True, False)):
        for verb in (("add", "n%d" % i, "5"), ("cas", "c%d" % i, "", "5")):
            relay = LateRelay(etcd, "/late/k/" + verb[1], before)
            code, out, err = kv("etcd://%s:%d/late" % (lib.HOST, relay.port), *verb)
            checks.ok(relay.count >= 3, "%s: its first try is late" % verb[0])
            code2, kept, _ = kv("etcd://%s/late" % etcd.authority(), "get", verb[1])
            checks.equal((code, out, code2, kept), (OK, b"5\n", OK, b"5\n"),
                         "%s, whose late try comes %s the next: what is answered is what is there"
                         % (verb[0], "before" if before else "behind") + err)


def test_limits(checks, url):
    """What is larger than etcd takes: whose limit that is, and what can be done."""
    with lib.Muster("--backing", url) as server:
        for store in (url, "tcp://%s:%d" % (lib.HOST, server.port)):
            for size in (1700 << 10, 8 << 20):
                done = subprocess.run([lib.muster_path(), "kv", "--store", store, "set", "large",
                                       "-"], input=bytes(size), capture_output=True,
                                      timeout=lib.PATIENCE)
                checks.ok(done.returncode != 0 and b"1.5 MiB" in done.stderr and
                          b"--max-request-bytes" in done.stderr,
                          "%s: a value of %d bytes is refused in words" % (store[:4], size),
                          done.stderr)
            checks.equal(kv(store, "set", "small", "x")[0], OK, "and nobody else felt it")


def test_leases(checks, etcd, url):
    code, out, _ = kv(url, "lease", "grant", "1m")
    lease = out.decode().strip()
    kv(url, "--lease", lease, "set", "leased", "v")
    checks.equal(kv(url, "lease", "keep", lease)[:2], (OK, b"60000\n"), "a lease is kept")
    checks.equal(kv(url, "lease", "revoke", lease)[:2], (OK, b"1\n"), "revoked with its key")
    checks.equal(kv(url, "check", "leased")[0], NO_KEY, "which is gone")
    code, _, err = kv(url, "lease", "keep", lease)
    checks.ok(code == NO_KEY and "lease" in err, "a lease that is no more", err)
    left = etcd.call("/v3/kv/range", {"key": b64("/job/s/"), "range_end": b64("/job/s0")})
    checks.equal(left.get("count", "0"), "0", "no session of a client that left stays behind")


def test_watch(checks, etcd, url):
    watcher = subprocess.Popen([lib.muster_path(), "kv", "--store", url, "--prefix", "--current",
                                "watch", "w"], stdout=subprocess.PIPE,
                               preexec_fn=lib.die_with_parent)
    try:
        kv(url, "set", "w0", "here")
        lines = [watcher.stdout.readline() for _ in range(1)]
        kv(url, "set", "w1", "a")
        kv(url, "set", "w1", "b")
        kv(url, "set", "other", "x")
        kv(url, "del", "w1")
        lines += [watcher.stdout.readline() for _ in range(3)]
        checks.equal(b"".join(lines), b"created w0 here\ncreated w1 a\nupdated w1 b\ndeleted w1\n",
                     "a watch tells what happens to its keys")
        # A restarted server: the watch goes on behind what it told.
        revision = etcd.call("/v3/kv/range", {"key": b64("x")})["header"]["revision"]
        etcd.kill(0)
        etcd.start(0)
        lib.wait_until(lambda: etcd.listens(0), "etcd to be back")
        etcd.call("/v3/kv/compaction", {"revision": revision})
        kv(url, "set", "w2", "again")
        checks.equal(watcher.stdout.readline(), b"created w2 again\n",
                     "and goes on when the server was restarted and has compacted")
    finally:
        watcher.kill()
        watcher.wait()


def test_cluster(checks):
    """Adders on a cluster of three, one member of which is killed at a time: no add is lost, none
    is done twice."""
    with etcd_lib.Etcd(3) as etcd:
        url = "etcd://%s/count" % etcd.authority()
        sums, stop = [], threading.Event()

        def add():
            while not stop.is_set():
                # What a follower passed on to a leader that then died, etcd answers after 7 s, and
                # on a busy machine the next leader may be one that is about to be replaced, too.
                code, out, err = kv(url, "add", "n", "1", timeout=120000, connect=120000)
                sums.append(int(out) if code == OK else err)

        adders = [threading.Thread(target=add) for _ in range(3)]
        for adder in adders:
            adder.start()
        for member in (0, 1, 2):
            before = len(sums)
            lib.wait_until(lambda: len(sums) > before + 10, "adds before a member is killed")
            etcd.kill(member)
            before = len(sums)
            lib.wait_until(lambda: len(sums) > before + 10, "adds without member %d" % member)
            etcd.start(member)
            lib.wait_until(lambda: etcd.listens(member), "member %d to be back" % member)
        stop.set()
        for adder in adders:
            adder.join()
        bad = [s for s in sums if not isinstance(s, int)]
        checks.equal(bad, [], "no add failed while members were killed")
        checks.equal(sorted(s for s in sums if isinstance(s, int)), list(range(1, len(sums) + 1)),
                     "each of %d adds was done once" % len(sums))


def expect_words(checks, what, words, url, *args):
    code, _, err = kv(url, *(args or ("get", "a")), timeout=3000, connect=2000)
    checks.ok(code not in (OK, NO_KEY) and all(w in err for w in words), what,
              "exit %d, %r" % (code, err))


class Resetting:
    """A server that resets every connection when it has heard of it."""

    def __enter__(self):
        self.socket = socket.socket()
        self.socket.bind((lib.HOST, 0))
        self.socket.listen()
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                      struct.pack("ii", 1, 0))

    def __exit__(self, *_):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def test_tls(checks, path):
    tls = etcd_lib.Certificates(path)
    for name in ("server", "client"):
        tls.issue(name)
    tls.issue("late", expired=True)
    tls.authority("other")
    tls.issue("stranger", authority="other")

    def url(etcd, cacert="ca", cert="client", key=None):
        text = "etcd://%s/job?cacert=%s" % (etcd.authority(), tls.file(cacert + ".pem"))
        if cert:
            text += "&cert=%s&key=%s" % (tls.file(cert + ".pem"), tls.file((key or cert) + ".key"))
        return text

    with etcd_lib.Etcd(tls=tls) as etcd:
        checks.equal(kv(url(etcd), "set", "a", "secret")[0], OK, "TLS with a client certificate")
        checks.equal(kv(url(etcd), "get", "a")[1], b"secret\n", "and back")
        if etcd.v2:
            checks.equal(kv(url(etcd) + "&api=v2", "set", "a", "two")[0], OK, "v2 as well")
        expect_words(checks, "a wrong CA", ["SSL certificate problem"], url(etcd, cacert="other"))
        expect_words(checks, "no client certificate", ["certificate"], url(etcd, cert=None))
        expect_words(checks, "a certificate of another CA", ["certificate"],
                     url(etcd, cert="stranger"))
        expect_words(checks, "an expired client certificate", ["expired", "late.pem"],
                     url(etcd, cert="late"))
        expect_words(checks, "a key that is not the certificate's", ["key"],
                     url(etcd, key="server"))
        expect_words(checks, "a file that is not there", ["none.pem"], url(etcd, cacert="none"))
        expect_words(checks, "no TLS where there is some", ["TLS"],
                     "etcd://%s/job" % etcd.authority())
    with etcd_lib.Etcd(tls=tls, server="late", client_auth=False) as etcd:
        expect_words(checks, "an expired server certificate", ["certificate has expired"],
                     url(etcd, cert=None))
    with etcd_lib.Etcd() as etcd:
        expect_words(checks, "TLS where there is none", ["SSL"], url(etcd, cert=None))
    # What is not made for TLS may also hang up, without a word, before its answer is read.
    with Resetting() as server:
        expect_words(checks, "a server that hangs up in the handshake", ["SSL"],
                     "etcd://%s:%d/job?cacert=%s" % (lib.HOST, server.port, tls.file("ca.pem")))


def write_password(path, name, text):
    with open(os.path.join(path, name), "w") as out:
        out.write(text + "\n")
    return os.path.join(path, name)


def test_token_renewal(checks, path):
    """A token that is not used for its time ends, with calls, a watch and a wait under way."""
    with etcd_lib.Etcd(more=["--auth-token-ttl", "1"]) as etcd:
        etcd.call("/v3/auth/user/add", {"name": "root", "password": "so"})
        etcd.call("/v3/auth/role/add", {"name": "root"})
        etcd.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
        etcd.call("/v3/auth/enable", {})
        url = "etcd://%s/job?user=root&password_file=%s" % (etcd.authority(),
                                                           write_password(path, "so", "so"))
        with lib.Muster("--backing", url) as server:
            near = "tcp://%s:%d" % (lib.HOST, server.port)
            checks.equal(kv(near, "set", "a", "1")[0], OK, "a server with a token")
            waiter = subprocess.Popen([lib.muster_path(), "kv", "--store", near, "--timeout",
                                       "20s", "get", "--wait", "late"], stdout=subprocess.PIPE,
                                      preexec_fn=lib.die_with_parent)
            direct = subprocess.Popen([lib.muster_path(), "kv", "--store", url, "--timeout",
                                       "20s", "get", "--wait", "late"], stdout=subprocess.PIPE,
                                      preexec_fn=lib.die_with_parent)
            for i in range(2):
                time.sleep(3)
                old = count_tokens(etcd)
                checks.equal(kv(near, "add", "n", "1")[:2], (OK, b"%d\n" % (i + 1)),
                             "whose token has ended gets another")
                checks.ok(count_tokens(etcd) > old, "which etcd gave it")
            kv(near, "set", "late", "x")
            checks.equal([waiter.communicate(timeout=20)[0], direct.communicate(timeout=20)[0]],
                         [b"x\n", b"x\n"], "and waits outlive tokens")


def count_tokens(etcd):
    """How many passwords the server has been asked to believe."""
    with urllib.request.urlopen(etcd.url() + "/metrics", timeout=10) as reply:
        for line in reply.read().decode().splitlines():
            if line.startswith("grpc_server_handled_total") and \
                    'grpc_method="Authenticate"' in line and 'grpc_code="OK"' in line:
                return float(line.split()[-1])
    return 0


def test_passwords(checks, path):
    def password(name, text):
        return write_password(path, name, text)

    with etcd_lib.Etcd() as etcd:
        plain = "etcd://%s/job" % etcd.authority()
        known = plain + "?user=root&password_file=" + password("right", 'it\'s "so"')
        checks.equal(kv(known, "set", "a", "1")[0], OK, "a password that nobody asks for")
        etcd.call("/v3/auth/user/add", {"name": "root", "password": 'it\'s "so"'})
        etcd.call("/v3/auth/user/add", {"name": "guest", "password": "guest"})
        etcd.call("/v3/auth/role/add", {"name": "root"})
        etcd.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
        etcd.call("/v3/auth/enable", {})
        checks.equal(kv(known, "get", "a")[:2], (OK, b"1\n"), "the right password")
        checks.equal(kv(known, "set", "a", "2")[0], OK, "and it may write")
        expect_words(checks, "a wrong password", ["password", "root"],
                     plain + "?user=root&password_file=" + password("wrong", "no"))
        expect_words(checks, "no password", ["user name is empty"], plain)
        expect_words(checks, "a user without permission", ["permission denied"],
                     plain + "?user=guest&password_file=" + password("guest", "guest"))
        expect_words(checks, "no such password file", ["password_file"],
                     plain + "?user=root&password_file=/nonexistent/x")


def test_versions(checks):
    with etcd_lib.Etcd(v2=False) as etcd:
        expect_words(checks, "v2 of a server that has none",
                     ["v2 API", "--enable-v2", "3.6", "without api=v2"],
                     "etcd://%s/job?api=v2" % etcd.authority())
    with lib.Muster() as server:
        expect_words(checks, "a server that is no etcd", ["127.0.0.1"],
                     "etcd://127.0.0.1:%d/job" % server.port)
    expect_words(checks, "nobody there", ["127.0.0.1:1"], "etcd://127.0.0.1:1/job")
    expect_words(checks, "no such host", ["resolve"], "etcd://no-such-host.invalid/job")
    expect_words(checks, "an API that never was", ["use v3 or v2"],
                 "etcd://127.0.0.1/job?api=v4")


def main():
    checks = lib.Checks()
    with etcd_lib.Etcd() as etcd:
        url = "etcd://%s/job" % etcd.authority()
        test_operations(checks, url)
        test_waiting(checks, url)
        test_late_tries(checks, etcd)
        test_limits(checks, url)
        test_leases(checks, etcd, url)
        test_watch(checks, etcd, url)
    test_cluster(checks)
    with lib.Scratch() as path:
        test_tls(checks, path)
        test_passwords(checks, path)
        test_token_renewal(checks, path)
    test_versions(checks)
    checks.done()


main()
