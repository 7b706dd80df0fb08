#!/usr/bin/python3
"""What the verbs that serve have in common: how they take those who speak nothing they know, and
SIGHUP.

    serving.py [MUSTER] [--only=TEXT]
"""
import fcntl
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import termios
import time

from lib import (HOST, PATIENCE, Checks, Scratch, die_with_parent, free_port, muster_path,
                 wait_until)

checks = Checks()
STRANGERS = 300


class Serving:
    """A verb that serves, and what it says."""

    def __init__(self, scratch, *args, prepare=die_with_parent):
        self.path = os.path.join(scratch, "server.log")
        with open(self.path, "wb") as log:
            self.process = subprocess.Popen([muster_path()] + list(args), stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, preexec_fn=prepare,
                                            env=dict(os.environ, LOGLEVEL="INFO"))

    def text(self):
        with open(self.path, errors="replace") as file:
            return file.read()

    def wait_for(self, port):
        def listens():
            assert self.process.poll() is None, self.text()
            with socket.socket() as s:
                return s.connect_ex((HOST, port)) == 0
        wait_until(listens, "it listens")

    def stop(self):
        """SIGTERM; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def make_model(scratch):
    path = os.path.join(scratch, "model.safetensors")
    text = b'{"a":{"dtype":"F32","shape":[256],"data_offsets":[0,1024]}}'
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + os.urandom(1024))
    return path


def be_a_stranger(port):
    """Says what no protocol begins with, and is shown out."""
    with socket.create_connection((HOST, port), PATIENCE) as s:
        try:
            s.sendall(b"?" * 64)
            while s.recv(4096):
                pass
        except ConnectionError:
            pass


def told_of(text, line):
    """How many lines there are, and of how many strangers these tell."""
    lines = [one for one in text.splitlines() if line in one]
    return len(lines), sum("peer=" in one for one in lines) + sum(
        int(more) for more in re.findall(line + r".*\bmore=(\d+)", text))


def storm(server, port, line):
    server.wait_for(port)
    begun = time.monotonic()
    for _ in range(STRANGERS):
        be_a_stranger(port)
    took = time.monotonic() - begun
    wait_until(lambda: told_of(server.text(), line)[1] == STRANGERS,
               "%s tells of all %d: %r" % (line, STRANGERS, told_of(server.text(), line)))
    lines = told_of(server.text(), line)[0]
    checks.ok(lines <= took + 2, "%s: a line in a second, with how many more there were" % line,
              "%d lines in %.1f s" % (lines, took))
    be_a_stranger(port)
    be_a_stranger(port)
    checks.equal(server.stop(), 0, "it ends as it should")
    checks.equal(told_of(server.text(), line)[1], STRANGERS + 2,
                 "%s: what was not said yet is said at the end" % line)


def test_strangers_cost_a_donor_few_lines():
    with Scratch() as scratch:
        port = free_port()
        with Serving(scratch, "state", "serve", "--listen", "%s:%d" % (HOST, port),
                     make_model(scratch)) as server:
            storm(server, port, "STATE-PEER-DROPPED")


def test_strangers_cost_a_worker_few_lines():
    with Scratch() as scratch:
        port = free_port()
        with Serving(scratch, "rpc", "serve", "--listen", "%s:%d" % (HOST, port)) as server:
            storm(server, port, "RPC-PEER-DROPPED")


def without_a_terminal():
    die_with_parent()
    os.setsid()


def serving_verbs():
    """Words, and the port where each listens then. A donor takes SIGHUP for something else."""
    for words in (("serve", "--listen", HOST + ":%d"),
                  ("rpc", "serve", "--listen", HOST + ":%d"),
                  ("dht", "serve", "--listen", "/ip4/%s/tcp/%%d" % HOST),
                  ("peer", "serve", "--listen", "/ip4/%s/tcp/%%d" % HOST),
                  ("p2pd", "-listen=/unix%(scratch)s/p2pd", "-hostAddrs=/ip4/%s/tcp/%%d" % HOST)):
        yield words, free_port()


def name_of(words):
    return " ".join(words[:1 if words[1][0] == "-" else 2])


def start(scratch, words, port, prepare):
    words = [w.replace("%(scratch)s", scratch).replace("%d", str(port)) for w in words]
    server = Serving(scratch, *words, prepare=prepare)
    server.wait_for(port)
    return server


def test_hangup_without_a_terminal_ends_nothing():
    for words, port in serving_verbs():
        name = name_of(words)
        with Scratch() as scratch, start(scratch, words, port, without_a_terminal) as server:
            server.process.send_signal(signal.SIGHUP)
            # SIGTERM comes after it.
            code = server.stop()
            checks.ok(code in (0, 128 + signal.SIGTERM), "%s goes on after SIGHUP" % name, code)


def test_hangup_of_the_terminal_ends():
    for words, port in serving_verbs():
        ours, theirs = pty.openpty()

        def with_a_terminal(theirs=theirs):
            without_a_terminal()
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        with Scratch() as scratch, start(scratch, words, port, with_a_terminal) as server:
            os.close(theirs)
            os.close(ours)
            checks.equal(server.process.wait(PATIENCE), -signal.SIGHUP,
                         "%s ends with its terminal" % name_of(words))


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
