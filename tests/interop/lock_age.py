#!/usr/bin/python3
"""The lock at an age: a server, and one who dials, whose clock moves by minutes and by years while
they run, forwards and backwards, still know their token; certificates that end are named; a
credential that is replaced on disk is taken up without a restart; and a server that was stopped for
a while drops nobody whose handshake it slept through.

    lock_age.py [MUSTER] [--only=TEXT]

It runs in a network of its own if the system lets it make one; else on the address of this host.
The clock is libfaketime's, and the wall clock alone: that is what certificates and OpenSSL go by.
"""
import os
import resource
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import time

from lib import (PATIENCE, Checks, Muster, Scratch, beyond_loopback, die_with_parent, free_port,
                 is_sanitized, muster_path, run_muster, wait_until)

checks = Checks()
LIBRARY = "/usr/$LIB/faketime/libfaketimeMT.so.1"
# In the order in which they come: the clock jumps from each to the next.
AGES = ("+303", "+600", "+2d", "+400d", "-400d", "+0", "+20y")


class Clock:
    """The wall clock of the processes that are started with `run()` before them."""

    def __init__(self, scratch, name):
        self.path = os.path.join(scratch, name)
        self.set("+0")

    def set(self, age):
        with open(self.path + ".new", "w") as file:
            file.write(age + "\n")
        os.rename(self.path + ".new", self.path)

    def run(self):
        os.environ.update(LD_PRELOAD=LIBRARY, FAKETIME_TIMESTAMP_FILE=self.path,
                          FAKETIME_NO_CACHE="1", FAKETIME_DONT_FAKE_MONOTONIC="1")


def clock_works(scratch):
    """Whether there is a libfaketime, and it moves the clock of a process."""
    clock = Clock(scratch, "probe")
    clock.set("+400d")
    read, write = os.pipe()
    if os.fork() == 0:
        clock.run()
        os.dup2(write, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.execlp("date", "date", "+%s")
    os.close(write)
    with os.fdopen(read) as file:
        moved = int(file.read() or 0)
    os.wait()
    return moved > os.stat(clock.path).st_mtime + 399 * 86400


def token_lock(scratch, name="token"):
    path = os.path.join(scratch, name)
    if not os.path.exists(path):
        run_muster("keygen", "token", path)
    return "--token-file", path


def make_certificates(scratch, name, address, days="365"):
    """A directory with an authority, and what it signed for that address: server and client."""
    directory = os.path.join(scratch, name)
    code, _, err = run_muster("keygen", "tls", directory, "--host", address, "--days", days)
    assert code == 0, err
    return directory


def certificates_lock(directory, address):
    at = os.path.join(directory, address)
    return ("--tls-cert", at + ".pem", "--tls-key", at + ".key", "--tls-ca",
            os.path.join(directory, "ca.pem"))


def replace(source, target):
    """As whoever renews a certificate does it."""
    shutil.copy(source, target + ".new")
    os.rename(target + ".new", target)


def ask(server, address, lock, clock=None):
    """One who dials anew: (exit code, standard error)."""
    done = subprocess.run([muster_path(), "kv", "--store", "tcp://%s:%d" % (address, server.port),
                           *lock, "set", "key", "value"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, timeout=PATIENCE,
                          preexec_fn=clock.run if clock else None)
    return done.returncode, done.stderr.decode(errors="replace")


def await_answer(server, address, lock, code, what):
    wait_until(lambda: ask(server, address, lock)[0] == code, what)
    checks.ok(True, what)


def test_server_of_any_age_takes_a_client(scratch, address):
    clock = Clock(scratch, "server")
    lock = token_lock(scratch)
    with Muster(*lock, listen=address + ":0", preexec=clock.run) as server:
        for age in AGES:
            clock.set(age)
            checks.equal(ask(server, address, lock), (0, ""),
                         "a server of the age %s takes a client" % age)


def test_old_client_dials(scratch, address):
    """A gateway is one who dials again whenever its origin was away."""
    clock = Clock(scratch, "gateway")
    lock = token_lock(scratch)
    port = free_port()
    where = "%s:%d" % (address, port)
    origin = Muster(*lock, listen=where)
    try:
        with Muster("--backing", "tcp://" + where, *lock, preexec=clock.run) as gateway:
            for age in AGES:
                clock.set(age)
                origin.kill()
                origin = Muster(*lock, listen=where)
                checks.equal(ask(gateway, "127.0.0.1", ()), (0, ""),
                             "one of the age %s who dials is let in" % age)
    finally:
        origin.kill()


class Slow:
    """One who shakes hands in the steps that it is told to, and then speaks PyTorch's protocol."""

    def __init__(self, directory, address, port):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        at = os.path.join(directory, address)
        context.load_cert_chain(at + ".pem", at + ".key")
        context.load_verify_locations(os.path.join(directory, "ca.pem"))
        self.sock = socket.create_connection((address, port), PATIENCE)
        self.come, self.go = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.come, self.go, server_hostname=address)
        self.step(self.tls.do_handshake)

    def step(self, call):
        """What the call returns; None if it needs more of the peer's."""
        try:
            return call()
        except ssl.SSLWantReadError:
            return None

    def send(self, count=-1):
        self.sock.sendall(self.go.read(count))

    def hear(self):
        """Takes what the server says next."""
        data = self.sock.recv(65536)
        if not data:
            raise ConnectionError("the server hung up")
        self.come.write(data)

    def finish(self):
        """The rest of it; whether the server answers then."""
        try:
            self.send()
            while self.tls.cipher() is None or self.step(self.tls.do_handshake) is False:
                self.hear()
                self.step(self.tls.do_handshake)
            self.tls.write(struct.pack("<BIBI", 0, 0x3C85F7CE, 13, 0x01020304))
            self.send()
            while (got := self.step(lambda: self.tls.read(4))) is None:
                self.hear()
        except OSError as error:
            return error
        return got == struct.pack("<I", 0x01020304)


def test_server_that_was_stopped_drops_nobody(scratch, address):
    directory = make_certificates(scratch, "stopped", address)
    with Muster(*certificates_lock(directory, address), listen=address + ":0") as server:
        early, late = (Slow(directory, address, server.port) for _ in range(2))
        early.send(100)  # half of its hello
        late.send()
        late.hear()
        late.step(late.tls.do_handshake)
        checks.equal(ask(server, address, certificates_lock(directory, address))[0], 0,
                     "a server has heard the first words of two")
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(6.5)  # Each has five seconds to say the rest.
        early.send()
        late.send()
        server.process.send_signal(signal.SIGCONT)
        checks.equal(early.finish(), True, "who was in the middle of its hello gets in")
        checks.equal(late.finish(), True, "and who was at the end of its handshake")


def test_who_is_broken_off_comes_again(scratch, address):
    """A server that dies in the middle of a handshake, or says that it is too busy."""
    for words in (b"\x16\x03\x03", b"\x15\x03\x03\x00\x02\x02\x50"):
        with socket.socket() as listener:
            listener.bind((address, 0))
            listener.listen()
            listener.settimeout(PATIENCE)
            asker = subprocess.Popen([muster_path(), "kv", "--store",
                                      "tcp://%s:%d" % listener.getsockname(), *token_lock(scratch),
                                      "--connect", "10s", "get", "key"],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                     preexec_fn=die_with_parent)
            try:
                for _ in range(2):
                    conn, _ = listener.accept()
                    with conn:
                        conn.recv(4096)
                        conn.sendall(words)
                checks.ok(True, "who was broken off by %r comes again" % words)
            except socket.timeout:
                checks.ok(False, "who was broken off by %r comes again" % words)
            finally:
                asker.kill()
                asker.wait()


def test_who_is_sent_away_before_its_hello_is_told(scratch, address):
    """It would take an end without a word for that of a server that knows no TLS."""
    few = 64  # descriptors: 16 strangers, 4 of one address
    with Muster(*token_lock(scratch), listen=address + ":0",
                preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))) as server:
        for what, words in (("nothing", b""), ("a part of it", b"\x16\x03\x01")):
            strangers = []
            for _ in range(6):
                strangers.append(socket.create_connection((address, server.port), PATIENCE))
                strangers[-1].sendall(words)
                # What it says is heard before that of the next one.
                ask(server, address, token_lock(scratch))
            checks.equal(strangers[0].recv(64), b"\x15\x03\x03\x00\x02\x02\x50",
                         "who has said %s when it has to go may come again" % what)
            for stranger in strangers:
                stranger.close()


def test_token_is_replaced(scratch, address):
    old, new = token_lock(scratch, "old"), token_lock(scratch, "new")
    used = os.path.join(scratch, "used")
    replace(old[1], used)
    with Muster("--token-file", used, listen=address + ":0") as server:
        checks.equal(ask(server, address, old)[0], 0, "a token is good")
        replace(new[1], used)
        await_answer(server, address, new, 0, "the one in its place is good without a restart")
        code, err = ask(server, address, old)
        checks.ok(code == 4 and "a different token" in err, "the old one is none any more", err)
        with open(used, "w") as file:
            file.write("short\n")
        wait_until(lambda: ask(server, address, new) and "LOCK-NOT-RENEWED" in server.output(),
                   "a replacement that is no good is in the log")
        checks.ok("too short" in server.output(), "with the reason", server.output())
        checks.equal(ask(server, address, new)[0], 0, "and the one before it is still good")


def hello():
    """What somebody says first."""
    come, go = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(come, go, server_hostname="node")
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return go.read()


def test_token_is_replaced_while_no_file_can_be_opened(scratch, address):
    old, new = token_lock(scratch, "old"), token_lock(scratch, "new")
    used = os.path.join(scratch, "used")
    replace(old[1], used)
    with Muster("--token-file", used, listen=address + ":0") as server:
        with socket.create_connection((address, server.port), PATIENCE) as stranger:
            checks.equal(ask(server, address, old)[0], 0, "a token is good")
            time.sleep(1.1)  # from when on the next handshake looks at the file
            replace(new[1], used)
            limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
            stranger.sendall(hello())
            wait_until(lambda: "LOCK-NOT-RENEWED" in server.output(), "the token cannot be read")
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)
        await_answer(server, address, new, 0, "it is taken up once it can be read")
        checks.equal(server.output().count("LOCK-NOT-RENEWED"), 1, "that it could not is said once")


def test_token_from_a_pipe(scratch, address):
    """Which is read once: nobody writes it again."""
    lock = token_lock(scratch)
    pipe = os.path.join(scratch, "pipe")
    os.mkfifo(pipe, 0o600)
    writer = subprocess.Popen(["sh", "-c", 'cat "$0" >"$1"', lock[1], pipe],
                              preexec_fn=die_with_parent)
    with Muster("--token-file", pipe, listen=address + ":0") as server:
        writer.wait(PATIENCE)
        time.sleep(1.1)  # from when on the next handshake looks at the file
        for _ in range(2):
            checks.equal(ask(server, address, (*lock, "--connect", "10s"))[0], 0,
                         "a token from a pipe stays good")


def test_certificates_are_replaced(scratch, address):
    first, second, third = (make_certificates(scratch, "tls%d" % i, address) for i in range(3))
    used = make_certificates(scratch, "used-tls", address)
    old, new = certificates_lock(first, address), certificates_lock(second, address)
    lock = certificates_lock(used, address)
    files = ("ca.pem", address + ".pem", address + ".key")

    def put(directory, *names):
        for name in names or files:
            replace(os.path.join(directory, name), os.path.join(used, name))

    put(first)
    with Muster(*lock, listen=address + ":0") as server:
        checks.equal(ask(server, address, old)[0], 0, "a certificate is good")
        put(second)
        await_answer(server, address, new, 0, "the one in its place is good without a restart")
        checks.ok(ask(server, address, old)[0] != 0, "and its authority is the only one")
        # A key that is not there yet, and a file that was cut: nothing changes, and it is said.
        put(third, address + ".pem")
        wait_until(lambda: ask(server, address, new) and "does not belong to" in server.output(),
                   "half of a pair is in the log")
        checks.equal(ask(server, address, new)[0], 0, "half of a pair changes nothing")
        put(second, address + ".pem")
        with open(os.path.join(used, "ca.pem"), "w") as file:
            file.write("-----BEGIN CERT")
        wait_until(lambda: ask(server, address, new) and "the authority" in server.output(),
                   "a file that was cut is in the log")
        checks.equal(ask(server, address, new)[0], 0, "a file that was cut changes nothing")
        put(third)
        await_answer(server, address, certificates_lock(third, address), 0,
                     "all of it, and the new one is good")


def test_certificates_that_end_are_named(scratch, address):
    short = make_certificates(scratch, "short", address, days="20")
    long = os.path.join(scratch, "long")
    os.mkdir(long)
    for name in ("ca.pem", "ca.key"):
        shutil.copy(os.path.join(short, name), long)
    make_certificates(scratch, "long", address, days="900")
    clock = Clock(scratch, "wall")
    ours, lasting = certificates_lock(short, address), certificates_lock(long, address)
    with Muster(*ours, listen=address + ":0", preexec=clock.run) as server:
        checks.equal(ask(server, address, ours, clock), (0, ""), "a certificate is good")
        checks.ok("LOCK-EXPIRES" not in server.output(), "nothing is said of its end")
        clock.set("+10d")
        time.sleep(1.1)  # The files, and their ends, are looked at once a second.
        checks.equal(ask(server, address, lasting, clock), (0, ""), "it is still good")
        wait_until(lambda: "LOCK-EXPIRES" in server.output(), "a warning of its end")
        checks.ok(short in server.output().split("LOCK-EXPIRES")[1], "its file is named",
                  server.output())
        clock.set("+21d")
        code, err = ask(server, address, lasting, clock)
        checks.ok(code != 0 and "that of %s ended on" % address in err,
                  "who dials learns whose certificate has ended, and when", err)
        wait_until(lambda: "our certificate %s" % short in server.output(),
                   "the server says that its certificate has ended")
        checks.ok("put a new one in its place" in server.output(), "and what to do")
        for name in (address + ".pem", address + ".key"):
            replace(os.path.join(long, name), os.path.join(short, name))
        time.sleep(1.1)
        checks.equal(ask(server, address, lasting, clock), (0, ""), "that was done: it is good")
        checks.equal(ask(server, address, ours, clock), (0, ""), "and so it is who dials")
    early = make_certificates(scratch, "early", address, days="20")
    for name in ("ca.pem", "ca.key"):
        shutil.copy(os.path.join(short, name), early)
    os.remove(os.path.join(early, address + ".pem"))
    os.remove(os.path.join(early, address + ".key"))
    ended = certificates_lock(make_certificates(scratch, "early", address, days="20"), address)
    with Muster(*lasting, listen=address + ":0", preexec=clock.run) as server:
        code, err = ask(server, address, ended, clock)
        checks.ok(code != 0 and "our certificate %s" % early in err and "ended on" in err,
                  "who dials with one that has ended is told that it has", err)
        wait_until(lambda: "that of %s ended on" % address in server.output(),
                   "and the server says whose it was")


def main():
    address, _ = beyond_loopback()
    if is_sanitized():
        checks.skip("libfaketime and a sanitizer want the same calls")
        checks.done()
    with Scratch() as scratch:
        if clock_works(scratch):
            checks.run_tests(globals(), scratch, address)
        else:
            checks.skip("there is no libfaketime: apt-get install faketime")
    checks.done()


if __name__ == "__main__":
    main()
