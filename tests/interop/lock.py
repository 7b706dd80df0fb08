#!/usr/bin/python3
"""Who is let in beyond loopback: every port of muster's, with no credential, a wrong one and the
right one; and that the credential is nowhere to be read.

    lock.py [MUSTER]

It runs in a network of its own if the system lets it make one; else on the address of this host.
"""
import os
import re
import resource
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request

from lib import (HOST, PATIENCE, Checks, Muster, Scratch, beyond_loopback, die_with_parent,
                 muster_path, run_muster, wait_until)

checks = Checks()
ADDRESS, CONNECT, FAILED = 6, 4, 1


def token_file(scratch, name):
    path = os.path.join(scratch, name)
    code, _, err = run_muster("keygen", "token", path)
    checks.equal((code, err), (0, ""), "a token is made: " + name)
    return path


def read(path):
    with open(path) as file:
        return file.read().strip()


def expect(what, code, text, *args):
    """Runs muster; it ends with that code, at once, and says that."""
    begun = time.monotonic()
    got, out, err = run_muster(*args)
    took = time.monotonic() - begun
    checks.ok(got == code and text in err + out.decode(), what, (got, out, err))
    checks.ok(took < PATIENCE / 3, "%s, at once" % what, "after %.1f s" % took)


# PyTorch 2.x: VALIDATE with its magic, then PING; the answer to that is the nonce.
def torch_answers(address, port, source=None):
    with socket.socket() as s:
        s.settimeout(PATIENCE)
        if source is not None:
            s.bind((source, 0))
        try:
            s.connect((address, port))
            s.sendall(struct.pack("<BI", 0, 0x3C85F7CE) + struct.pack("<BI", 13, 0x01020304))
            got = s.recv(4)
        except ConnectionError:
            return False
        return got == struct.pack("<I", 0x01020304)


class Serving:
    """A verb that serves and prints where; `pattern` finds the port."""

    def __init__(self, *args, pattern=r":(\d+)\b"):
        self.process = subprocess.Popen([muster_path()] + list(args), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        preexec_fn=die_with_parent)
        self.text = ""
        while not (found := re.search(pattern, self.text)):
            line = self.process.stdout.readline().decode()
            assert line, "%s ended: %s" % (args[0], self.text)
            self.text += line
        self.port = int(found[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.text += self.process.communicate(timeout=PATIENCE)[0].decode()


def test_keygen(scratch):
    path = os.path.join(scratch, "made")
    run_muster("keygen", "token", path)
    checks.equal(os.stat(path).st_mode & 0o777, 0o600, "a token is its owner's alone")
    checks.ok(re.fullmatch(r"[\w-]{43}", read(path)), "and has 32 bytes", read(path))
    before = read(path)
    expect("a token is not overwritten", FAILED, "exists already", "keygen", "token", path)
    checks.equal(read(path), before, "and is still what it was")
    checks.ok(run_muster("keygen", "token")[1] != run_muster("keygen", "token")[1],
              "no token is made twice")
    os.chmod(path, 0o644)
    expect("a token that others can read is refused", 2, "chmod 600", "kv", "--store",
           "tcp://%s:1" % HOST, "--token-file", path, "count")
    if os.stat(path).st_uid == 0:
        os.chmod(path, 0o440)  # root's, and its group's: a Secret of Kubernetes
        with Muster("--token-file", path) as server:
            checks.ok("LOCK-TOKEN" in server.output() and "can read the token" in server.output(),
                      "one that root gives a group is taken, which is said", server.output())
    os.chmod(path, 0o600)
    with open(path, "w") as file:
        file.write("correct-horse-battery-staple\n")
    with Muster("--token-file", path) as server:
        checks.ok("could be guessed" in server.output() and "staple" not in server.output(),
                  "so is one that could be guessed, with a warning", server.output())
    with open(path, "w") as file:
        file.write("short\n")
    os.chmod(path, 0o600)
    expect("so is a short one", 2, "too short", "kv", "--store", "tcp://%s:1" % HOST,
           "--token-file", path, "count")
    tls = os.path.join(scratch, "tls")
    code, out, _ = run_muster("keygen", "tls", tls, "--host", "node1,10.0.0.7")
    checks.ok(code == 0 and b"node1.key" in out, "certificates are made", out)
    checks.equal(os.stat(os.path.join(tls, "ca.key")).st_mode & 0o777, 0o600,
                 "their keys are their owner's alone")
    names = subprocess.run(["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in",
                            os.path.join(tls, "10.0.0.7.pem")], stdout=subprocess.PIPE,
                           check=False).stdout
    checks.ok(b"IP Address:10.0.0.7" in names, "an address is in its certificate as one", names)
    expect("a certificate is not overwritten", FAILED, "already exists", "keygen", "tls", tls,
           "--host", "node1")
    checks.equal(run_muster("keygen", "tls", tls, "--host", "node2")[0], 0, "but others are added")
    checks.equal(subprocess.run(["openssl", "verify", "-CAfile", os.path.join(tls, "ca.pem"),
                                 os.path.join(tls, "node2.pem")], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, check=False).returncode, 0,
                 "of the same authority")


def test_nobody_listens_there_without_a_credential(scratch, address):
    where = address + ":0"
    words = "no credential"
    model = make_model(scratch)
    expect("a store beyond loopback without one does not start", ADDRESS, words, "serve",
           "--listen", where)
    expect("nor on all addresses", ADDRESS, "--token-file", "serve", "--listen", "0.0.0.0:0")
    expect("nor on those of IPv6", ADDRESS, "--insecure", "serve", "--listen", "[::]:0")
    expect("nor a worker", ADDRESS, words, "rpc", "serve", "--listen", where)
    expect("nor a donor", ADDRESS, words, "state", "serve", "--listen", where, model)
    expect("nor a page", ADDRESS, "needs a token", "serve", "--listen", HOST + ":0", "--http",
           where)
    expect("nor the host of a rendezvous", ADDRESS, words, "rdzv", "join", "--rdzv-endpoint",
           address + ":29471", "--rdzv-id", "x", "--rdzv-conf", "is_host=true")


def make_model(scratch):
    path = os.path.join(scratch, "model.safetensors")
    text = b'{"a":{"dtype":"F32","shape":[256],"data_offsets":[0,1024]}}'
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + os.urandom(1024))
    return path


def test_store(token, wrong, address):
    with Muster("--token-file", token, listen="0.0.0.0:0") as server:
        store = "tcp://%s:%d" % (address, server.port)
        near = "tcp://%s:%d" % (HOST, server.port)
        expect("with the token a store is open", 0, "", "kv", "--store", store, "--token-file",
               token, "set", "key", "value")
        expect("what was set is there", 0, "value", "kv", "--store", store, "--token-file", token,
               "get", "key")
        expect("loopback is open", 0, "value", "kv", "--store", near, "get", "key")
        expect("to those who have a token, too", 0, "value", "kv", "--store", near,
               "--token-file", wrong, "get", "key")
        expect("with no token it is shut", CONNECT, "wants the job's credential", "kv", "--store",
               store, "get", "key")
        expect("with another one, too", CONNECT, "it has a different token", "kv", "--store", store,
               "--token-file", wrong, "get", "key")
        expect("runs are not shown to strangers", CONNECT, "wants the job's credential", "rdzv",
               "status", "--rdzv-endpoint", "%s:%d" % (address, server.port))
        expect("but to members", 0, "", "rdzv", "status", "--token-file", token, "--rdzv-endpoint",
               "%s:%d" % (address, server.port))
        checks.ok(not torch_answers(address, server.port), "PyTorch's protocol is shut out")
        checks.ok(torch_answers(HOST, server.port), "and open on loopback")


def refusals(text):
    """Those whom the log names, and how many there were in all."""
    named = re.findall(r"LOCK-REFUSED peer=(\S+):\d+ why=\"([^\"]*)", text)
    return named, len(named) + sum(int(more) for more in
                                   re.findall(r"LOCK-REFUSED.*\bmore=(\d+)", text))


def test_log(token, wrong, address):
    def kv(*options):
        return lambda port: run_muster("kv", "--store", "tcp://%s:%d" % (address, port), *options,
                                       "count")

    # A client without a token tries PyTorch's protocol, too.
    for what, knock, each, why in (
            ("another token", kv("--token-file", wrong), 1, "a different token"),
            ("no token", kv(), 2, "shows no credential"),
            ("PyTorch's protocol", lambda port: torch_answers(address, port), 1,
             "plain connections from its address are not allowed")):
        with Muster("--token-file", token, listen="0.0.0.0:0") as server:
            for _ in range(6):
                knock(server.port)
            wait_until(lambda: "LOCK-REFUSED" in server.output(), "a line in the log")
        named, count = refusals(server.last_output)
        checks.ok([peer for peer, _ in named] == [address] and why in named[0][1],
                  "the log names who comes with %s, once" % what, server.last_output)
        checks.equal(count, 6 * each, "and counts the rest")


def test_allow(token, address, other):
    with Muster("--token-file", token, "--allow", address, listen="0.0.0.0:0") as server:
        checks.ok(torch_answers(address, server.port), "PyTorch's protocol, where it is allowed")
        expect("but not the native one", CONNECT, "wants the job's credential", "kv", "--store",
               "tcp://%s:%d?protocol=muster" % (address, server.port), "count")
        expect("so a client without a token speaks PyTorch's", 0, "0", "kv", "--store",
               "tcp://%s:%d" % (address, server.port), "count")
        if other is not None:
            checks.ok(not torch_answers(address, server.port, other),
                      "and from no other address", server.output())
        # Our own client of PyTorch's protocol obeys the lock as well.
        store = "tcp://%s:%d?protocol=torch2" % (address, server.port)
        expect("one who has the token does not speak plain", ADDRESS, "does not speak PyTorch's plain protocol",
               "kv", "--store", store, "--token-file", token, "count")
        expect("unless it is told to whom", 0, "0", "kv", "--store", store, "--token-file", token,
               "--allow", address, "count")
    with Muster("--allow", address, listen="0.0.0.0:0") as server:
        checks.ok(torch_answers(address, server.port), "a range alone lets PyTorch's in")
        expect("and nobody else", CONNECT, "wants the job's credential", "kv", "--store",
               "tcp://%s:%d?protocol=muster" % (address, server.port), "count")
    with Muster("--token-file", token, listen="0.0.0.0:0") as server:
        expect("a client of PyTorch's protocol is told that the server may be locked", CONNECT,
               "locked, leave protocol= out", "kv", "--store",
               "tcp://%s:%d?protocol=torch2" % (address, server.port), "count")
    expect("a range that is none is named", 2, "10.0.0.1/8", "serve", "--listen", HOST + ":0",
           "--allow", "10.0.0.1/8")


def test_insecure(token, address):
    with Muster("--insecure", listen="0.0.0.0:0") as server:
        store = "tcp://%s:%d" % (address, server.port)
        expect("--insecure lets anybody in", 0, "0", "kv", "--store", store, "count")
        checks.ok(torch_answers(address, server.port), "with either protocol")
        expect("who has a token is told that the server has none", CONNECT, "does not speak TLS", "kv",
               "--store", store, "--token-file", token, "count")


def test_rpc_and_state_with_certificates(scratch, options, ours, theirs, address):
    with Serving("rpc", "serve", "--listen", address + ":0", *options(ours, address)) as worker:
        call = ["rpc", "call", "--to", "%s:%d" % (address, worker.port), "--timeout", "10"]
        hello = ["muster::Rpc.echo", "hello"]
        expect("a worker answers who has a certificate", 0, "hello", *call,
               *options(ours, "node9"), *hello)
        expect("and nobody with one of another authority", CONNECT, "the other end refuses us", *call,
               *options(theirs, address, ours), *hello)
        expect("nor with none", CONNECT, "credential", *call, *hello)
    model, copy = make_model(scratch), os.path.join(scratch, "certified")
    with Serving("state", "serve", "--listen", "0.0.0.0:0", "--advertise", address,
                 *options(ours, address), model) as donor:
        far, near = "%s:%d" % (address, donor.port), "%s:%d" % (HOST, donor.port)
        checks.ok("for nodes with the job's credential" in donor.text, "a donor says who can read",
                  donor.text)
        expect("it gives to who has a certificate", 0, "", "state", "pull", "-q", "-o", copy,
               *options(ours, "node9"), far)
        for what, given in (("with one of another authority", options(theirs, address, ours)),
                            ("with none", [])):
            code, out, err = run_muster("state", "pull", "-q", "-o", copy + ".no", *given, far)
            checks.ok(code != 0 and not os.path.exists(copy + ".no"), "and to nobody " + what,
                      (code, out, err))
        expect("on loopback it is open", 0, "", "state", "pull", "-q", "-o", copy + ".near", near)


def test_certificates(scratch, token, address):
    ours, theirs = os.path.join(scratch, "ours"), os.path.join(scratch, "theirs")
    run_muster("keygen", "tls", ours, "--host", "%s,node9" % address)
    run_muster("keygen", "tls", theirs, "--host", address)

    def options(directory, name, ca=None):
        return ["--tls-cert", "%s/%s.pem" % (directory, name), "--tls-key",
                "%s/%s.key" % (directory, name), "--tls-ca", "%s/ca.pem" % (ca or directory)]

    with Muster(*options(ours, address), listen="0.0.0.0:0") as server:
        kv = ["kv", "--store", "tcp://%s:%d" % (address, server.port)]
        expect("with a certificate of the job it is open", 0, "0", *kv, *options(ours, "node9"),
               "count")
        expect("with none it is shut", CONNECT, "wants the job's credential", *kv, "count")
        expect("with one of another authority, too", CONNECT, "the other end refuses us", *kv,
               *options(theirs, address, ours), "count")
        expect("whose authority does not know the server's", CONNECT, "another authority than ours",
               *kv, *options(theirs, address), "count")
        expect("and with a token", CONNECT, "locked with certificates", *kv, "--token-file", token,
               "count")
    test_rpc_and_state_with_certificates(scratch, options, ours, theirs, address)
    expect("both at once are refused", 2, "not both", "serve", "--listen", address + ":0",
           "--token-file", token, *options(ours, address))


def test_server_that_is_silent_behind_its_certificate(scratch, address):
    """It may be paused, or busy: it is tried for as long as was said, and not taken for PyTorch's."""
    made = os.path.join(scratch, "silent")
    run_muster("keygen", "tls", made, "--host", "%s,node9" % address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("%s/%s.pem" % (made, address), "%s/%s.key" % (made, address))
    context.load_verify_locations(made + "/ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def be_silent(conn):
        try:
            with context.wrap_socket(conn, server_side=True) as sealed:
                while sealed.recv(65536):
                    pass
        except OSError:
            pass

    def accept(listener):
        while True:
            try:
                conn = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=be_silent, args=(conn,), daemon=True).start()

    with socket.create_server((address, 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        began = time.monotonic()
        expect("a silent server is said to be silent", CONNECT, "does not answer", "kv", "--store",
               "tcp://%s:%d" % listener.getsockname(), "--connect", "6s", "--tls-cert",
               made + "/node9.pem", "--tls-key", made + "/node9.key", "--tls-ca", made + "/ca.pem",
               "count")
        took = time.monotonic() - began
        checks.ok(took >= 6, "after the time that it was given", "%.1f s" % took)
        listener.shutdown(socket.SHUT_RDWR)


def test_rpc(token, wrong, address):
    with Serving("rpc", "serve", "--listen", address + ":0", "--token-file", token) as worker:
        call = ["rpc", "call", "--to", "%s:%d" % (address, worker.port), "--timeout", "10"]
        expect("a worker answers who has the token", 0, "hello", *call, "--token-file", token,
               "muster::Rpc.echo", "hello")
        code, _, err = run_muster(*call, "muster::Rpc.echo", "hello")
        checks.ok(code != 0 and "credential" in err, "and nobody who has none", (code, err))
        code, _, err = run_muster(*call, "--token-file", wrong, "muster::Rpc.echo", "hello")
        checks.ok(code != 0 and "a different token" in err, "nor another", (code, err))


def test_state(scratch, token, wrong, address):
    model = make_model(scratch)
    copy = os.path.join(scratch, "copy.safetensors")
    with Serving("state", "serve", "--listen", address + ":0", "--token-file", token,
                 model) as donor:
        where = "%s:%d" % (address, donor.port)
        expect("a donor is seen by who has the token", 0, "model", "state", "ls", "--token-file",
               token, where)
        expect("and gives", 0, "", "state", "pull", "--token-file", token, "-o", copy, where)
        with open(model, "rb") as one, open(copy, "rb") as two:
            checks.ok(one.read() == two.read(), "what it has")
        for what, options in (("nobody who has none", []),
                              ("nor another", ["--token-file", wrong])):
            got = os.path.join(scratch, "stolen")
            code, _, err = run_muster("state", "pull", "-q", "--connect", "5", *options, "-o", got,
                                      where)
            checks.ok(code != 0 and not os.path.exists(got), "and " + what, (code, err))


def ask(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers),
                                    timeout=PATIENCE) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_page(token, wrong, address):
    with Muster("--http", address + ":0", "--token-file", token) as server:
        found = wait_until(lambda: re.search(r"http://(\S+)/", server.output()), "the page")
        url = found[0]
        key = run_muster("keygen", "page", token)[1].decode().strip()
        other = run_muster("keygen", "page", wrong)[1].decode().strip()
        checks.ok(read(token) not in key, "what is shown to the page is not the token")
        for path in ("", "status.json", "metrics", "events?", "healthz/", "none", "healthz",
                     "readyz"):
            code = 200 if path in ("healthz", "readyz") else 401
            checks.equal((ask(url + path), ask(url + path, Authorization="Bearer " + other)),
                         (code, code), "/%s: with nothing, another key" % path)
        for path in ("", "status.json", "metrics", "healthz", "readyz"):
            checks.equal(ask(url + path, Authorization="Bearer " + key), 200,
                         "/%s: with the key" % path)
        said = re.findall(r"HTTP-REFUSED peer=(\S+):\d+ why=", server.output())
        checks.ok(address in said and len(said) < 5, "the log says so, a line a second",
                  server.output())
        expect("muster top shows the key", 0, "", "top", "--once", "--token-file", token, found[1])
        expect("and is refused without", FAILED, "token", "top", "--once", found[1])
    with Muster("--http", address + ":0", "--insecure") as server:
        found = wait_until(lambda: re.search(r"http://(\S+)/", server.output()), "the page")
        checks.equal(ask(found[0]), 200, "--insecure opens the page")


def dumps_core(scratch, *lock):
    """Whether a server that crashes leaves its memory behind."""

    def let_it():
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
        os.chdir(scratch)

    try:
        server = Muster(*lock, preexec=let_it)
        server.process.send_signal(signal.SIGSEGV)
        _, status = os.waitpid(server.pid, 0)
        server.process.returncode = -signal.SIGSEGV
        server.scratch.__exit__()
    except ValueError:
        return None  # It may not.
    return os.WCOREDUMP(status)


def test_no_core_has_the_credential(scratch, token):
    if not dumps_core(scratch):
        checks.note("this system makes no core dumps: that a credential is in none is not checked")
        return
    checks.ok(not dumps_core(scratch, "--token-file", token), "no core dump has the credential")


def test_credential_is_nowhere(token, address):
    secret = read(token).encode()
    with Muster("--token-file", token, "--verbose", "--http", address + ":0",
                listen="0.0.0.0:0") as server:
        for options in ([], ["--token-file", token]):
            run_muster("kv", "--store", "tcp://%s:%d" % (address, server.port), *options, "count")
        for name in ("cmdline", "environ"):
            with open("/proc/%d/%s" % (server.pid, name), "rb") as file:
                checks.ok(secret not in file.read(), "the token is not in " + name)
        checks.ok(secret.decode() not in server.output(), "nor in the log", server.output())


def main():
    address, other = beyond_loopback()
    for name in list(os.environ):
        if name.startswith("MUSTER_T") and name not in ("MUSTER_TEST_NETWORK",
                                                        "MUSTER_TEST_PATIENCE"):
            del os.environ[name]
    with Scratch() as scratch:
        token, wrong = token_file(scratch, "token"), token_file(scratch, "wrong")
        test_keygen(scratch)
        test_nobody_listens_there_without_a_credential(scratch, address)
        test_store(token, wrong, address)
        test_log(token, wrong, address)
        test_allow(token, address, other)
        test_insecure(token, address)
        test_certificates(scratch, token, address)
        test_server_that_is_silent_behind_its_certificate(scratch, address)
        test_rpc(token, wrong, address)
        test_state(scratch, token, wrong, address)
        test_page(token, wrong, address)
        test_no_core_has_the_credential(scratch, token)
        test_credential_is_nowhere(token, address)
    checks.done()


main()
